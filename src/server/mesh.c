/*
 * mesh.c: see the header.
 *
 *     connects:  CONNECTING --> HELLO (waits for it) --> ACCEPT (waits) --> READY     sends NAME first
 *     accepts:   PROVE (waits for it) --> NAME (waits) --> READY
 *
 * What is sent before READY waits in a list. A connection that fails drops it: the protocol sends it again.
 */
#include "server/mesh.h"
#include "base/base.h"
#include "base/timing.h"
#include "boot/boot.h"
#include "net/socket.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    MAX_BODY = TDM__SERVER_MAX_OP + TDM__SERVER_HEAD + 4096,
    MAX_UNPROVED = 64,
    PROBLEMS = 16,
    MAX_LOGGED = 100,
    KEEPALIVE_IDLE_S = 5,
    KEEPALIVE_INTERVAL_S = 2,
    KEEPALIVE_COUNT = 3,
    MAX_QUEUE = 512 << 20
};

typedef enum peer_state {
    PEER_CONNECTING = 0,
    PEER_HELLO,
    PEER_ACCEPT,
    PEER_PROVE,
    PEER_NAME,
    PEER_READY,
    PEER_OVER
} peer_state;

typedef struct peer {
    struct peer *next;
    tdm__mesh *mesh;
    tdm__channel channel;
    tdm__loop_watch watch;
    unsigned events;
    peer_state state;
    bool is_outgoing;
    bool is_full; /* it will be closed at the next tick */
    uint64_t id;  /* 0: not known yet */
    double until_s;
    uint8_t nonce[TDM__WIRE_NONCE]; /* of HELLO */
    tdm__frame prove;
    char address[TDM__SERVER_ADDRESS_BYTES];
    tdm__outgoing *first, *last; /* before READY */
} peer;

typedef struct problem {
    uint64_t id;
    double until_s; /* no new attempt before */
    char text[200];
} problem;

struct tdm__mesh {
    tdm__mesh_options options;
    tdm__facts facts;
    char key[TDM__MAX_KEY];
    int listen_fd;
    tdm__loop_watch listen_watch;
    peer *peers;
    problem problems[PROBLEMS];
    size_t problem_count;
    int refused_count; /* refused connections; the first MAX_LOGGED are logged */
};

/* ---- problems --------------------------------------------------------------------------------------- */

static problem *mesh_problem_of(tdm__mesh *mesh, uint64_t id, bool creates)
{
    for (size_t i = 0; i < PROBLEMS; i++)
        if (mesh->problems[i].id == id) return &mesh->problems[i];
    if (!creates) return NULL;
    problem *p = &mesh->problems[mesh->problem_count++ % PROBLEMS];
    *p = (problem){.id = id};
    return p;
}

const char *tdm__mesh_problem(const tdm__mesh *mesh, uint64_t id)
{
    for (size_t i = 0; i < PROBLEMS; i++)
        if (mesh->problems[i].id == id) return mesh->problems[i].text;
    return "";
}

static void peer_note(peer *p, const char *why)
{
    if (!p->is_outgoing) {
        if (p->mesh->refused_count++ >= MAX_LOGGED) return;
        tdm_log(TDM_LOG_WARN, "server", "refused a connection from %s: %s", p->address, why);
        return;
    }
    problem *about = mesh_problem_of(p->mesh, p->id, true);
    about->until_s = tdm_clock_s() + TDM__TIMING_SERVER_RECONNECT_S;
    snprintf(about->text, sizeof(about->text), "%s", why);
}

/* ---- peers -------------------------------------------------------------------------------------------- */

static void peer_drop_pending(peer *p)
{
    while (p->first) {
        tdm__outgoing *item = p->first;
        p->first = item->next;
        tdm__blob_release(item->blob);
        free(item);
    }
    p->last = NULL;
}

/* Freed at the next tick. */
static void peer_end(peer *p)
{
    if (p->state == PEER_OVER) return;
    bool was_ready = p->state == PEER_READY;
    p->state = PEER_OVER;
    tdm__loop_watch_set(p->mesh->options.loop, &p->watch, 0, NULL);
    tdm__channel_release(&p->channel);
    peer_drop_pending(p);
    if (was_ready) p->mesh->options.lost(p->mesh->options.user, p->id);
}

static void peer_fail(peer *p, const char *why)
{
    if (p->state != PEER_READY) peer_note(p, why);
    peer_end(p);
}

static bool peer_watch(peer *p)
{
    unsigned events = TDM__LOOP_READ;
    if (p->state == PEER_CONNECTING || tdm__channel_wants_room(&p->channel))
        events |= TDM__LOOP_WRITE;
    if (events == p->events) return true;
    p->events = events;
    return tdm__loop_watch_set(p->mesh->options.loop, &p->watch, events, NULL) == TDM_OK;
}

static void peer_flush(peer *p)
{
    if (p->state == PEER_OVER || p->state == PEER_CONNECTING) return;
    if (tdm__channel_flush(&p->channel) != TDM__CHANNEL_OK)
        peer_fail(p, tdm__stream_why(&p->channel.stream, errno));
    else if (!peer_watch(p))
        peer_fail(p, "out of memory");
}

static void peer_ready(peer *p)
{
    p->state = PEER_READY;
    p->channel.limit = MAX_BODY;
    problem *about = mesh_problem_of(p->mesh, p->id, false);
    if (about && p->is_outgoing) about->text[0] = '\0';
    for (tdm__outgoing *item = p->first; item; item = item->next)
        if (!tdm__channel_put(&p->channel, item->blob)) break;
    peer_drop_pending(p);
}

static peer *peer_add(tdm__mesh *mesh, int fd, peer_state state)
{
    peer *p = calloc(1, sizeof(*p));
    if (!p) return NULL;
    p->mesh = mesh;
    p->state = state;
    p->until_s = tdm_clock_s() + TDM__TIMING_NET_PROOF_S;
    tdm__channel_init(&p->channel, fd, TDM__MAX_WIRE_JOIN);
    p->watch.fd = fd;
    p->watch.user = p;
    p->next = mesh->peers;
    mesh->peers = p;
    return p;
}

/* A connection whose other end has vanished ends within seconds, even if nothing is sent. */
static void socket_watch_life(int fd)
{
    if (tdm__socket_here(fd).family == 0) return;
    const struct {
        int level, option, value;
    } options[] = {{SOL_SOCKET, SO_KEEPALIVE, 1},
                   {IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S},
                   {IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S},
                   {IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_COUNT}};
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
        (void)setsockopt(fd, options[i].level, options[i].option, &options[i].value,
                         sizeof(options[i].value));
}

/* ---- frames -------------------------------------------------------------------------------------------- */

static tdm__blob *message_blob(const tdm__server_message *message)
{
    size_t body = TDM__SERVER_HEAD + message->byte_count;
    tdm__blob *blob = malloc(sizeof(*blob) + TDM__WIRE_HEAD + body);
    if (!blob) return NULL;
    blob->users = 1;
    blob->bytes = TDM__WIRE_HEAD + body;
    tdm__wire_data_head(body, blob->data);
    tdm__server_message_write(message, blob->data + TDM__WIRE_HEAD);
    if (message->byte_count > 0)
        memcpy(blob->data + TDM__WIRE_HEAD + TDM__SERVER_HEAD, message->bytes, message->byte_count);
    return blob;
}

static bool peer_put(peer *p, tdm__blob *blob)
{
    if (p->channel.out_bytes + blob->bytes > MAX_QUEUE) return false;
    if (p->state == PEER_READY) return tdm__channel_put(&p->channel, blob);
    tdm__outgoing *item = malloc(sizeof(*item));
    if (!item) return false;
    blob->users++;
    *item = (tdm__outgoing){.blob = blob};
    if (p->last)
        p->last->next = item;
    else
        p->first = item;
    p->last = item;
    return true;
}

/* HELLO: answers with the proof of this side. */
static void peer_prove(peer *p, const tdm__frame *hello)
{
    tdm__frame *prove = &p->prove;
    *prove = (tdm__frame){.type = TDM__FRAME_PROVE, .protocol = TDM__WIRE_PROTOCOL};
    memcpy(p->nonce, hello->nonce, sizeof(p->nonce));
    prove->protection = tdm__protection_for(p->mesh->facts.security, p->channel.stream.fd);
    if (prove->protection != hello->protection) {
        peer_fail(p,
                  "it protects the connection differently: set TANDEM_SECURITY to the same on all "
                  "hosts");
        return;
    }
    p->state = PEER_ACCEPT;
    if (tdm_os_random(prove->nonce, sizeof(prove->nonce), NULL) != TDM_OK ||
        tdm__prove(TDM__PROVER_RANK, p->mesh->key, prove, p->nonce, prove->mac) != TDM_OK ||
        !tdm__channel_put_frame(&p->channel, prove))
        peer_fail(p, "out of memory");
}

/* ACCEPT: checks the proof of the server; then both sides encrypt. */
static void peer_accepted(peer *p, const tdm__frame *accept)
{
    uint8_t proof[TDM_SHA256_BYTES];
    const tdm__server_message name = {.kind = TDM__SERVER_NAME, .client = p->mesh->options.id};
    if (tdm__prove(TDM__PROVER_HUB, p->mesh->key, &p->prove, p->nonce, proof) != TDM_OK ||
        !tdm__proof_equal(proof, accept->mac) ||
        tdm__channel_secure(&p->channel, &p->mesh->facts, p->mesh->key, &p->prove, p->nonce, false,
                            NULL) != TDM_OK) {
        peer_fail(p, "it does not know the secret of the group");
        return;
    }
    tdm__blob *blob = message_blob(&name);
    if (blob && tdm__channel_put(&p->channel, blob))
        peer_ready(p);
    else
        peer_fail(p, "out of memory");
    tdm__blob_release(blob);
}

static void peer_refuse(peer *p, const char *why)
{
    tdm__frame refused = {.type = TDM__FRAME_REFUSED, .status = TDM_ERR_PEER_REFUSED};
    snprintf(refused.text, sizeof(refused.text), "%s", why);
    if (tdm__channel_put_frame(&p->channel, &refused)) (void)tdm__channel_flush(&p->channel);
    peer_fail(p, why);
}

/* PROVE: checks the proof of the process that connects. */
static void peer_check(peer *p, const tdm__frame *prove)
{
    uint8_t proof[TDM_SHA256_BYTES];
    tdm__frame accept = {.type = TDM__FRAME_ACCEPT};
    if (prove->protection != tdm__protection_for(p->mesh->facts.security, p->channel.stream.fd)) {
        peer_refuse(p, "the protection differs: set TANDEM_SECURITY to the same on all hosts");
        return;
    }
    if (tdm__prove(TDM__PROVER_RANK, p->mesh->key, prove, p->nonce, proof) != TDM_OK ||
        !tdm__proof_equal(proof, prove->mac)) {
        peer_refuse(p, "another secret: set TANDEM_SECRET to the secret of the group");
        return;
    }
    bool is_sent = tdm__prove(TDM__PROVER_HUB, p->mesh->key, prove, p->nonce, accept.mac) ==
                       TDM_OK &&
                   tdm__channel_put_frame(&p->channel, &accept) &&
                   tdm__channel_flush(&p->channel) == TDM__CHANNEL_OK &&
                   !tdm__channel_has_output(&p->channel);
    if (!is_sent || tdm__channel_secure(&p->channel, &p->mesh->facts, p->mesh->key, prove, p->nonce,
                                        true, NULL) != TDM_OK)
        peer_fail(p, "the connection ended");
    else
        p->state = PEER_NAME;
}

static void peer_data(peer *p, const tdm__frame *frame)
{
    tdm__server_message message;
    if (!tdm__server_message_read(frame->bytes, frame->byte_count, &message) ||
        (p->state == PEER_NAME) != (message.kind == TDM__SERVER_NAME) ||
        (p->state == PEER_NAME && message.client == 0)) {
        peer_fail(p, "it sent an invalid message: all processes must run the same version");
        return;
    }
    if (p->state == PEER_READY) {
        p->mesh->options.message(p->mesh->options.user, p->id, &message);
        return;
    }
    p->id = message.client;
    peer_ready(p);
}

static void peer_frame(peer *p, const tdm__frame *frame)
{
    if (frame->type == TDM__FRAME_REFUSED && p->is_outgoing && p->state == PEER_ACCEPT)
        peer_fail(p, frame->text);
    else if (frame->type == TDM__FRAME_HELLO && p->state == PEER_HELLO)
        peer_prove(p, frame);
    else if (frame->type == TDM__FRAME_ACCEPT && p->state == PEER_ACCEPT)
        peer_accepted(p, frame);
    else if (frame->type == TDM__FRAME_PROVE && p->state == PEER_PROVE)
        peer_check(p, frame);
    else if (frame->type == TDM__FRAME_DATA && (p->state == PEER_NAME || p->state == PEER_READY))
        peer_data(p, frame);
    else
        peer_fail(p, "it is not a process of this group: it sent something else");
}

static void peer_read(peer *p)
{
    tdm__channel_state state = TDM__CHANNEL_OK;
    do {
        tdm__frame frame;
        int got = 0, error = 0;
        state = tdm__channel_read(&p->channel);
        error = state == TDM__CHANNEL_ERROR ? errno : 0;
        while (p->state != PEER_OVER && (got = tdm__channel_next(&p->channel, &frame)) > 0)
            peer_frame(p, &frame);
        if (p->state == PEER_OVER) return;
        if (got < 0)
            peer_fail(p, "it is not a process of this group: it sent something else");
        else if (state != TDM__CHANNEL_OK)
            peer_fail(p, tdm__stream_why(&p->channel.stream, error));
    } while (p->state != PEER_OVER && p->channel.has_more);
}

static void peer_on_ready(tdm__loop_watch *watch, unsigned ready)
{
    peer *p = watch->user;
    if (p->state == PEER_CONNECTING && (ready & TDM__LOOP_WRITE)) {
        if (!tdm__socket_is_connected(p->channel.stream.fd)) {
            peer_fail(p, strerror(errno));
            return;
        }
        socket_watch_life(p->channel.stream.fd);
        p->state = PEER_HELLO;
    }
    if (p->state != PEER_CONNECTING && p->state != PEER_OVER && (ready & TDM__LOOP_READ))
        peer_read(p);
    peer_flush(p);
}

/* ---- addresses ------------------------------------------------------------------------------------------- */

/* "unix:NAME", "HOST:PORT" or "[HOST]:PORT". Returns the length; 0: it is not an address. */
static socklen_t address_parse(const char *text, struct sockaddr_storage *out, const char **why)
{
    char host[TDM__SERVER_ADDRESS_BYTES];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    *why = "it is not HOST:PORT";
    if (strncmp(text, "unix:", 5) == 0) {
        struct sockaddr_un name;
        socklen_t bytes = tdm__socket_abstract(text + 5, &name);
        memcpy(out, &name, sizeof(name));
        return bytes;
    }
    const char *colon = strrchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : 0;
    if (length == 0 || length >= sizeof(host)) return 0;
    bool has_brackets = text[0] == '[' && text[length - 1] == ']';
    snprintf(host, sizeof(host), "%.*s", (int)(has_brackets ? length - 2 : length),
             has_brackets ? text + 1 : text);
    int bad = getaddrinfo(host, colon + 1, &hints, &list);
    if (bad != 0) *why = gai_strerror(bad);
    socklen_t bytes = bad == 0 ? list->ai_addrlen : 0;
    if (bytes > 0) memcpy(out, list->ai_addr, bytes);
    if (bad == 0) freeaddrinfo(list);
    return bytes;
}

/* A new connection to a server; NULL: not now. */
static peer *mesh_connect(tdm__mesh *mesh, uint64_t id)
{
    char address[TDM__SERVER_ADDRESS_BYTES];
    struct sockaddr_storage there = {0};
    const char *why = "";
    problem *before = mesh_problem_of(mesh, id, false);
    if ((before && tdm_clock_s() < before->until_s) ||
        !mesh->options.address(mesh->options.user, id, address))
        return NULL;
    socklen_t bytes = address_parse(address, &there, &why);
    int fd = bytes > 0 ? tdm__socket_begin((const struct sockaddr *)&there, bytes) : -1;
    if (bytes > 0 && fd < 0) why = strerror(errno);
    peer *p = fd >= 0 ? peer_add(mesh, fd, PEER_CONNECTING) : NULL;
    if (!p) {
        problem *about = mesh_problem_of(mesh, id, true);
        about->until_s = tdm_clock_s() + TDM__TIMING_SERVER_RECONNECT_S;
        snprintf(about->text, sizeof(about->text), "%s", fd >= 0 ? "out of memory" : why);
        if (fd >= 0) close(fd);
        return NULL;
    }
    p->is_outgoing = true;
    p->id = id;
    p->watch.on_ready = peer_on_ready;
    p->until_s = tdm_clock_s() + TDM__TIMING_SERVER_CONNECT_S;
    memcpy(p->address, address, sizeof(p->address));
    if (!peer_watch(p)) peer_fail(p, "out of memory");
    return p->state == PEER_OVER ? NULL : p;
}

/* ---- accepting --------------------------------------------------------------------------------------------- */

static void mesh_make_place(tdm__mesh *mesh)
{
    int count = 0;
    peer *oldest = NULL; /* new ones are at the head of the list */
    for (peer *p = mesh->peers; p; p = p->next) {
        if (p->state != PEER_PROVE && p->state != PEER_NAME) continue;
        count++;
        oldest = p;
    }
    if (count >= MAX_UNPROVED && oldest) peer_end(oldest);
}

static void mesh_on_listen(tdm__loop_watch *watch, unsigned ready)
{
    tdm__mesh *mesh = watch->user;
    char address[TDM__SERVER_ADDRESS_BYTES];
    (void)ready;
    int fd = tdm__socket_accept(mesh->listen_fd, address, sizeof(address));
    if (fd < 0) return;
    mesh_make_place(mesh);
    peer *p = tdm__socket_same_user(fd) ? peer_add(mesh, fd, PEER_PROVE) : NULL;
    if (!p) {
        close(fd);
        return;
    }
    tdm__frame hello = {.type = TDM__FRAME_HELLO, .protocol = TDM__WIRE_PROTOCOL};
    memcpy(p->address, address, sizeof(p->address));
    p->watch.on_ready = peer_on_ready;
    p->channel.limit = TDM__MAX_WIRE_PROVE;
    socket_watch_life(fd);
    hello.protection = tdm__protection_for(mesh->facts.security, fd);
    if (tdm_os_random(p->nonce, sizeof(p->nonce), NULL) != TDM_OK) {
        peer_fail(p, "no random numbers");
        return;
    }
    memcpy(hello.nonce, p->nonce, sizeof(hello.nonce));
    if (!tdm__channel_put_frame(&p->channel, &hello))
        peer_fail(p, "out of memory");
    else
        peer_flush(p);
}

tdm_status tdm__mesh_listen(tdm__mesh *mesh, const char *at, char out[TDM__SERVER_ADDRESS_BYTES],
                            tdm_error *err)
{
    struct sockaddr_storage here = {0};
    char name[TDM__SERVER_ADDRESS_BYTES];
    const char *why = "";
    snprintf(name, sizeof(name), "unix:tandem-server-%016llx",
             (unsigned long long)mesh->options.id);
    socklen_t bytes = address_parse(at ? at : name, &here, &why);
    if (bytes == 0)
        return tdm_fail(err, TDM_ERR_INVALID, "cannot listen at %s: %s; write HOST:PORT", at, why);
    mesh->listen_fd = tdm__socket_listen((const struct sockaddr *)&here, bytes);
    if (mesh->listen_fd < 0)
        return tdm_fail(err, tdm_os_errno_status(errno), "cannot listen at %s: %s", at ? at : name,
                        strerror(errno));
    mesh->listen_watch = (tdm__loop_watch){
        .fd = mesh->listen_fd, .on_ready = mesh_on_listen, .user = mesh};
    TDM_TRY(tdm__loop_watch_set(mesh->options.loop, &mesh->listen_watch, TDM__LOOP_READ, err));
    if (at)
        snprintf(out, TDM__SERVER_ADDRESS_BYTES, "%.*s:%d", (int)(strrchr(at, ':') - at), at,
                 tdm__socket_port(mesh->listen_fd));
    else
        snprintf(out, TDM__SERVER_ADDRESS_BYTES, "%s", name);
    return TDM_OK;
}

/* ---- the mesh ------------------------------------------------------------------------------------------------ */

static tdm_status mesh_secure(tdm__mesh *mesh, tdm_error *err)
{
    const char *mode = getenv("TANDEM_SECURITY");
    tdm_comm_security security = {.mode = TDM_SECURITY_AUTO};
    if (mode && *mode && !tdm_security_parse(mode, &security.mode))
        return tdm_fail(err, TDM_ERR_INVALID,
                        "TANDEM_SECURITY is \"%.40s\": set it to auto, off or psk", mode);
    if (security.mode == TDM_SECURITY_TLS)
        return tdm_fail(
            err, TDM_ERR_UNSUPPORTED,
            "parameter servers do not support certificates (TANDEM_SECURITY=tls); set it "
            "to psk, which encrypts with the group's secret");
    mesh->facts.security = security.mode;
    if (security.mode == TDM_SECURITY_OFF) return TDM_OK;
    return tdm__tls_context_create(&security, &mesh->facts.tls, err);
}

tdm_status tdm__mesh_create(const tdm__mesh_options *options, tdm__mesh **out, tdm_error *err)
{
    tdm__mesh *mesh = calloc(1, sizeof(*mesh));
    if (!mesh) return tdm_fail_oom(err, "for the connections of a group of servers");
    mesh->options = *options;
    mesh->options.name = mesh->options.secret = NULL;
    mesh->listen_fd = -1;
    snprintf(mesh->key, sizeof(mesh->key), "tandem servers %s %s", options->name, options->secret);
    tdm_status status = mesh_secure(mesh, err);
    if (status == TDM_OK)
        *out = mesh;
    else
        tdm__mesh_destroy(mesh);
    return status;
}

void tdm__mesh_destroy(tdm__mesh *mesh)
{
    if (!mesh) return;
    while (mesh->peers) {
        peer *p = mesh->peers;
        mesh->peers = p->next;
        if (p->state == PEER_READY) (void)tdm__channel_flush(&p->channel);
        if (p->state != PEER_OVER) {
            tdm__loop_watch_set(mesh->options.loop, &p->watch, 0, NULL);
            tdm__channel_release(&p->channel);
            peer_drop_pending(p);
        }
        free(p);
    }
    if (mesh->listen_fd >= 0) {
        tdm__loop_watch_set(mesh->options.loop, &mesh->listen_watch, 0, NULL);
        close(mesh->listen_fd);
    }
    tdm__tls_context_destroy(mesh->facts.tls);
    explicit_bzero(mesh->key, sizeof(mesh->key));
    free(mesh);
}

/* Prefers a connection that is ready. */
static peer *mesh_find(const tdm__mesh *mesh, uint64_t id)
{
    peer *found = NULL;
    for (peer *p = mesh->peers; p; p = p->next) {
        if (p->id != id || p->state == PEER_OVER || p->is_full) continue;
        if (p->state == PEER_READY) return p;
        found = p;
    }
    return found;
}

bool tdm__mesh_is_connected(const tdm__mesh *mesh, uint64_t id)
{
    const peer *p = mesh_find(mesh, id);
    return p && p->state == PEER_READY;
}

void tdm__mesh_send(tdm__mesh *mesh, uint64_t to, const tdm__server_message *message)
{
    peer *p = mesh_find(mesh, to);
    if (!p) p = mesh_connect(mesh, to);
    if (!p) return;
    tdm__blob *blob = message_blob(message);
    if (!blob || !peer_put(p, blob)) {
        tdm_log(TDM_LOG_WARN, "server", "the queue of a connection is full: it is closed");
        p->is_full = true; /* the caller may still use what it has received from it */
    }
    tdm__blob_release(blob);
}

void tdm__mesh_tick(tdm__mesh *mesh)
{
    double now_s = tdm_clock_s();
    /* Callbacks may add connections, at the head of the list. */
    for (peer *p = mesh->peers; p; p = p->next) {
        if (p->is_full) peer_end(p);
        if (p->state != PEER_OVER && p->state != PEER_READY && now_s > p->until_s)
            peer_fail(p,
                      p->state == PEER_CONNECTING ? "it cannot be reached" : "it does not answer");
        if (p->state == PEER_READY &&
            (p->channel.out_first || tdm__channel_has_output(&p->channel)))
            peer_flush(p);
    }
    for (peer **at = &mesh->peers; *at;) {
        peer *p = *at;
        if (p->state == PEER_OVER) {
            *at = p->next;
            free(p);
        } else {
            at = &p->next;
        }
    }
}
