/*
 * tcp_meet.c: makes all connections of the TCP transport: the higher rank of a pair connects.
 *
 * A connection opens with three messages of fixed size, before anything of variable size is read:
 *   the side that accepts sends HELLO: how it wants to protect the connection, and a nonce;
 *   the side that connects sends PROOF: who it is, whom it wants, a nonce, and an HMAC of all that and
 *     the HELLO under the world's key;
 *   the side that accepts answers with an HMAC of the same, under another label.
 * So both have proved the key, nothing recorded earlier is of use, and a change of any byte on the way is
 * noticed. TLS begins after that, where it is wanted, with a key that depends on both nonces.
 *
 * Strangers may connect while the ranks meet: they have a few seconds, at most STRANGERS_MOST of them are
 * kept, and of more the oldest goes. When all ranks have met, the listening socket is closed.
 */
#include "boot/boot.h"
#include "net/socket.h"
#include "transport/tcp_inner.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MAX_STRANGERS = 64, NO_DESCRIPTOR_MS = 10, NONCE = 32, MAC = TDM_SHA256_BYTES };
static const double max_meet_s = 20.0;
static const double max_unproved_s = 5.0;
static const double again_s = 0.05; /* after a refused connection */

typedef struct hello {
    char magic[8];
    uint32_t protection; /* a tdm__protection */
    uint32_t zero;
    uint8_t nonce[NONCE];
} hello;
_Static_assert(sizeof(hello) == 48, "no padding");

typedef struct proof {
    uint32_t world, from, to, stream, streams, protection;
    uint8_t nonce[NONCE];
    uint8_t mac[MAC];
} proof;
_Static_assert(sizeof(proof) == 88, "no padding");

static const char magic[8] = "TdmLink1";

typedef enum phase {
    CONNECTING,
    AWAITING_HELLO,
    AWAITING_ANSWER,
    AWAITING_PROOF, /* the side that accepts */
    ENCRYPTING,
    READY
} phase;

/* A connection that is being made. */
typedef struct meeting {
    tdm__stream stream;
    phase phase;
    bool is_ours; /* this side connects */
    int peer, stream_index;
    double until_s; /* of a stranger */
    double again_s; /* CONNECTING, after a refusal: when to try again */
    tdm__protection protection;
    hello hello;
    proof proof;
    uint8_t answer[MAC];
    uint8_t in[sizeof(proof)];
    size_t in_count;
    char remote[96];
    bool is_refused; /* because of a certificate */
    struct meeting *next;
} meeting;

typedef struct meet {
    tdm__tcp *tcp;
    const uint8_t *const *addresses;
    meeting *all;
    int missing; /* links that are not ready */
    int strangers;
    double until_s;
    char last[256]; /* what went wrong last, for the error at the end of the time */
} meet;

/* ---- addresses ------------------------------------------------------------------------------------------- */

static bool is_anywhere(const tdm__endpoint *at)
{
    static const uint8_t zeros[16];
    return memcmp(at->bytes, zeros, sizeof(zeros)) == 0;
}

tdm_status tdm__tcp_listen(tdm__tcp *tcp, uint8_t *out, size_t *out_bytes, tdm_error *err)
{
    struct sockaddr_storage address;
    tdm__endpoint at = tcp->here;
    if (at.family == 0) at = (tdm__endpoint){.family = 4, .bytes = {127, 0, 0, 1}};
    at.port = 0;
    tcp->listen_fd = tdm__socket_listen((struct sockaddr *)&address,
                                        tdm__socket_address(&at, &address));
    if (tcp->listen_fd < 0 && at.family == 6 && is_anywhere(&at)) { /* a host without IPv6 */
        at.family = 4;
        tcp->listen_fd = tdm__socket_listen((struct sockaddr *)&address,
                                            tdm__socket_address(&at, &address));
    }
    if (tcp->listen_fd < 0)
        return tdm_fail(err, TDM_ERR_SYSTEM, "tcp: rank %d cannot listen for other ranks: %s",
                        tcp->rank, strerror(errno));
    at.port = (uint16_t)tdm__socket_port(tcp->listen_fd);
    memcpy(out, &at, sizeof(at));
    *out_bytes = sizeof(at);
    return TDM_OK;
}

/* Where a peer listens. Zeros: wherever this rank has reached rank 0. The peer's link-local address is on the
 * link by which this rank has reached rank 0: the device there has a number of this host's. */
static socklen_t address_of(const meet *all, int peer, struct sockaddr_storage *out)
{
    tdm__endpoint at;
    memcpy(&at, all->addresses[peer], sizeof(at));
    if (is_anywhere(&at)) {
        uint16_t port = at.port;
        at = all->tcp->rank_0;
        at.port = port;
    } else if (at.scope != 0 && all->tcp->rank_0.scope != 0) {
        at.scope = all->tcp->rank_0.scope;
    }
    return tdm__socket_address(&at, out);
}

/* ---- proofs ---------------------------------------------------------------------------------------------- */

/* HMAC of a label, the HELLO, and the PROOF up to its own HMAC. */
static bool prove(const tdm__tcp *tcp, const char *label, const meeting *m, uint8_t out[MAC])
{
    uint8_t text[32 + sizeof(hello) + offsetof(proof, mac)] = {0};
    snprintf((char *)text, 32, "%s", label);
    memcpy(text + 32, &m->hello, sizeof(m->hello));
    memcpy(text + 32 + sizeof(m->hello), &m->proof, offsetof(proof, mac));
    return tdm_hmac_sha256(tcp->key, sizeof(tcp->key), text, sizeof(text), out) == TDM_OK;
}

/* ---- the list -------------------------------------------------------------------------------------------- */

static meeting *meeting_add(meet *all, int fd, phase first, bool is_ours)
{
    meeting *m = calloc(1, sizeof(*m));
    if (!m) return NULL;
    m->stream = tdm__stream_of(fd);
    m->phase = first;
    m->is_ours = is_ours;
    m->peer = -1;
    m->next = all->all;
    all->all = m;
    return m;
}

static void meeting_remove(meet *all, meeting *m)
{
    meeting **at = &all->all;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    if (!m->is_ours && m->phase == AWAITING_PROOF) all->strangers--;
    tdm__stream_close(&m->stream, true);
    free(m);
}

static bool send_fixed(const meeting *m, const void *bytes, size_t count)
{
    /* The first bytes of a connection: there is room for them. */
    return send(m->stream.fd, bytes, count, MSG_NOSIGNAL) == (ssize_t)count;
}

/* 1: all `wanted` bytes are in m->in; 0: not yet; -1: the connection failed. */
static int receive_fixed(meeting *m, size_t wanted)
{
    while (m->in_count < wanted) {
        ssize_t got = recv(m->stream.fd, m->in + m->in_count, wanted - m->in_count, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
        if (got <= 0) return -1;
        m->in_count += (size_t)got;
    }
    m->in_count = 0;
    return 1;
}

/* ---- steps of one connection ------------------------------------------------------------------------------- */

/* The connection stands: it becomes a link. False: no memory. */
static bool make_link(meet *all, meeting *m)
{
    tdm__tcp *tcp = all->tcp;
    tdm__tcp_link *link = &tcp->peers[m->peer].links[m->stream_index];
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = link};
    if (epoll_ctl(tcp->poll_fd, EPOLL_CTL_ADD, m->stream.fd, &event) != 0) return false;
    link->peer = &tcp->peers[m->peer];
    link->stream = m->stream;
    link->events = EPOLLIN;
    m->stream = tdm__stream_of(-1);
    m->phase = READY;
    all->missing--;
    all->until_s = tdm_clock_s() + max_meet_s; /* many links on a busy host take long */
    return true;
}

static tdm_status name_mismatch(const meet *all, meeting *m, tdm_error *err)
{
    char subject[160];
    m->is_refused = true;
    const char *name = all->tcp->host_names[m->peer];
    tdm__tls_subject(m->stream.tls, subject, sizeof(subject));
    return tdm_fail(err, TDM_ERR_PEER_REFUSED,
                    "tcp: rank %d on host %s has a certificate of another name (%s); its subject "
                    "alternative names must have the host's name or its address %s",
                    m->peer, name ? name : "?", subject, m->remote);
}

/* Carries the TLS handshake on. */
static tdm_status step_encrypting(meet *all, meeting *m, tdm_error *err)
{
    int ready = tdm__stream_flush(&m->stream);
    if (ready == 0) return TDM_OK;
    int why = errno;
    m->is_refused = ready < 0 && m->stream.tls && tdm__tls_is_refused(m->stream.tls);
    if (ready < 0)
        return tdm_fail(err, why == EPROTO ? TDM_ERR_PEER_REFUSED : TDM_ERR_PEER_FAILED,
                        "tcp: no encrypted connection with rank %d: %s", m->peer,
                        tdm__stream_why(&m->stream, why));
    const char *name = all->tcp->host_names[m->peer];
    char address[96];
    tdm__socket_peer_address(m->stream.fd, address, sizeof(address));
    if (m->stream.tls && !tdm__tls_is_named(m->stream.tls, address) &&
        !(name && tdm__tls_is_named(m->stream.tls, name)))
        return name_mismatch(all, m, err);
    if (!make_link(all, m)) return tdm_fail(err, TDM_ERR_SYSTEM, "tcp: %s", strerror(errno));
    return TDM_OK;
}

/* Of each direction of a link: smaller where there are many. */
static size_t tls_buffer(const tdm__tcp *tcp)
{
    enum { LINKS_FEW = 64, SMALL = 32 << 10 };
    return (size_t)tcp->size * (size_t)tcp->streams <= LINKS_FEW ? TDM__TCP_TLS_BUFFER : SMALL;
}

static tdm_status begin_encrypting(meet *all, meeting *m, tdm_error *err)
{
    uint8_t key[MAC];
    if (!prove(all->tcp, "tandem link key", m, key)) return tdm_fail_oom(err, "for a message");
    tdm__tls_options options = {.context = all->tcp->tls,
                                .is_server = !m->is_ours,
                                .key = key,
                                .buffer_bytes = tls_buffer(all->tcp)};
    tdm_status status = tdm__stream_secure(&m->stream, m->protection, &options, err);
    explicit_bzero(key, sizeof(key));
    TDM_TRY(status);
    m->phase = ENCRYPTING;
    return step_encrypting(all, m, err);
}

/* The other side's HELLO: answers with the PROOF. */
static tdm_status step_hello(meet *all, meeting *m, tdm_error *err)
{
    tdm__tcp *tcp = all->tcp;
    memcpy(&m->hello, m->in, sizeof(m->hello));
    m->protection = tdm__protection_for(tcp->mode, m->stream.fd);
    if (memcmp(m->hello.magic, magic, sizeof(magic)) != 0)
        return tdm_fail(err, TDM_ERR_NOT_FOUND, "something else listens at %s", m->remote);
    if (m->hello.protection != m->protection)
        return tdm_fail(err, TDM_ERR_PEER_MISMATCH,
                        "tcp: rank %d wants its connections protected by %s, rank %d by %s; set "
                        "comm.security to the same on all hosts",
                        m->peer, tdm__protection_name(m->hello.protection), tcp->rank,
                        tdm__protection_name(m->protection));
    m->proof = (proof){.world = tcp->world,
                       .from = (uint32_t)tcp->rank,
                       .to = (uint32_t)m->peer,
                       .stream = (uint32_t)m->stream_index,
                       .streams = (uint32_t)tcp->streams,
                       .protection = m->protection};
    TDM_TRY(tdm_os_random(m->proof.nonce, sizeof(m->proof.nonce), err));
    if (!prove(tcp, "tandem link from", m, m->proof.mac)) return tdm_fail_oom(err, "for a message");
    if (!send_fixed(m, &m->proof, sizeof(m->proof)))
        return tdm_fail(err, TDM_ERR_NOT_FOUND, "%s closed the connection", m->remote);
    m->phase = AWAITING_ANSWER;
    return TDM_OK;
}

static tdm_status step_answer(meet *all, meeting *m, tdm_error *err)
{
    uint8_t wanted[MAC];
    if (!prove(all->tcp, "tandem link to", m, wanted)) return tdm_fail_oom(err, "for a message");
    if (!tdm__proof_equal(wanted, m->in))
        return tdm_fail(err, TDM_ERR_PEER_REFUSED,
                        "tcp: what listens for rank %d at %s does not know this world's key",
                        m->peer, m->remote);
    return begin_encrypting(all, m, err);
}

/* A stranger's PROOF. TDM_ERR_NOT_FOUND: it is none of ours. */
static tdm_status step_proof(meet *all, meeting *m, tdm_error *err)
{
    tdm__tcp *tcp = all->tcp;
    uint8_t wanted[MAC], answer[MAC];
    memcpy(&m->proof, m->in, sizeof(m->proof));
    const proof *p = &m->proof;
    bool is_ours = prove(tcp, "tandem link from", m, wanted) && tdm__proof_equal(wanted, p->mac) &&
                   p->world == tcp->world && p->to == (uint32_t)tcp->rank &&
                   p->from < (uint32_t)tcp->size && p->from > (uint32_t)tcp->rank &&
                   p->streams == (uint32_t)tcp->streams && p->stream < (uint32_t)tcp->streams &&
                   p->protection == m->hello.protection &&
                   tcp->peers[p->from].state == TDM__TCP_WELL &&
                   tcp->peers[p->from].links[p->stream].stream.fd < 0;
    for (const meeting *at = all->all; is_ours && at; at = at->next)
        if (at != m && !at->is_ours && at->peer == (int)p->from && at->phase == ENCRYPTING &&
            at->stream_index == (int)p->stream)
            is_ours = false;
    if (!is_ours || !prove(tcp, "tandem link to", m, answer) ||
        !send_fixed(m, answer, sizeof(answer)))
        return tdm_fail(err, TDM_ERR_NOT_FOUND, "a stranger connected from %s", m->remote);
    all->strangers--;
    m->phase = ENCRYPTING;
    m->peer = (int)p->from;
    m->stream_index = (int)p->stream;
    return begin_encrypting(all, m, err);
}

static tdm_status start_connecting(meet *all, meeting *m, tdm_error *err)
{
    struct sockaddr_storage to;
    socklen_t bytes = address_of(all, m->peer, &to);
    m->again_s = 0;
    tdm__socket_text((struct sockaddr *)&to, m->remote, sizeof(m->remote));
    m->stream.fd = tdm__socket_begin((struct sockaddr *)&to, bytes);
    if (m->stream.fd < 0)
        return tdm_fail(err, TDM_ERR_NOT_FOUND, "%s: %s", m->remote, strerror(errno));
    m->phase = CONNECTING;
    return TDM_OK;
}

/* Whether a connection that was begun stands. */
static tdm_status step_connecting(meeting *m, tdm_error *err)
{
    if (!tdm__socket_is_connected(m->stream.fd))
        return tdm_fail(err, TDM_ERR_NOT_FOUND, "%s: %s", m->remote, strerror(errno));
    m->phase = AWAITING_HELLO;
    return TDM_OK;
}

/* The connection can be read or written. TDM_ERR_NOT_FOUND: it has failed, and may be made again. */
static tdm_status step(meet *all, meeting *m, tdm_error *err)
{
    if (m->phase == CONNECTING) return step_connecting(m, err);
    if (m->phase == ENCRYPTING) return step_encrypting(all, m, err);
    size_t wanted = m->phase == AWAITING_HELLO    ? sizeof(hello)
                    : m->phase == AWAITING_ANSWER ? MAC
                                                  : sizeof(proof);
    int got = receive_fixed(m, wanted);
    if (got == 0) return TDM_OK;
    if (got < 0) return tdm_fail(err, TDM_ERR_NOT_FOUND, "%s closed the connection", m->remote);
    if (m->phase == AWAITING_HELLO) return step_hello(all, m, err);
    if (m->phase == AWAITING_ANSWER) return step_answer(all, m, err);
    return step_proof(all, m, err);
}

/* ---- strangers --------------------------------------------------------------------------------------------- */

/* Where there are too many, the one that has been here longest goes: ranks answer at once, and come again. */
static void drop_oldest(meet *all)
{
    meeting *oldest = NULL;
    for (meeting *m = all->all; m; m = m->next)
        if (m->phase == AWAITING_PROOF) oldest = m; /* new ones are put first */
    if (oldest) meeting_remove(all, oldest);
}

static void make_place(meet *all)
{
    if (all->strangers >= MAX_STRANGERS + all->missing) drop_oldest(all);
}

static void accept_some(meet *all)
{
    enum { MAX_ACCEPT = 32 };
    for (int i = 0; i < MAX_ACCEPT; i++) {
        char remote[96];
        int fd = tdm__socket_accept(all->tcp->listen_fd, remote, sizeof(remote));
        if (fd < 0 &&
            (errno == EMFILE || errno == ENFILE)) { /* strangers may have taken them all */
            drop_oldest(all);
            poll(NULL, 0, NO_DESCRIPTOR_MS);
        }
        if (fd < 0) return;
        make_place(all);
        meeting *m = meeting_add(all, fd, AWAITING_PROOF, false);
        if (!m) {
            close(fd);
            return;
        }
        all->strangers++;
        m->until_s = tdm_clock_s() + max_unproved_s;
        tdm__socket_peer_host(fd, m->remote, sizeof(m->remote));
        m->protection = tdm__protection_for(all->tcp->mode, fd);
        memcpy(m->hello.magic, magic, sizeof(magic));
        m->hello.protection = m->protection;
        if (tdm_os_random(m->hello.nonce, sizeof(m->hello.nonce), NULL) != TDM_OK ||
            !send_fixed(m, &m->hello, sizeof(m->hello)))
            meeting_remove(all, m);
    }
}

/* ---- all of them ------------------------------------------------------------------------------------------- */

/* One connection has failed: final, a stranger's, or to be made again. */
static tdm_status meeting_failed(meet *all, meeting *m, const tdm_error *why, tdm_error *err)
{
    if (why->status != TDM_ERR_NOT_FOUND && m->peer >= 0) {
        if (m->is_refused) tdm__refusal_tell(&all->tcp->refusal, m->peer, why->message);
        if (err) *err = *why;
        return why->status;
    }
    if (!m->is_ours) {
        meeting_remove(all, m);
        return TDM_OK;
    }
    snprintf(all->last, sizeof(all->last), "rank %d at %.200s", m->peer, why->message);
    tdm__stream_close(&m->stream, true);
    m->in_count = 0;
    m->phase = CONNECTING;
    m->again_s = tdm_clock_s() + again_s;
    return TDM_OK;
}

static tdm_status turn(meet *all, const struct pollfd *fds, tdm_error *err)
{
    double now_s = tdm_clock_s();
    int at = 1;
    for (meeting *m = all->all, *next; m; m = next) {
        next = m->next;
        tdm_error why = {0};
        tdm_status status = TDM_OK;
        if (m->again_s > 0) {
            at++;
            if (now_s >= m->again_s) status = start_connecting(all, m, &why);
        } else if (fds[at++].revents) {
            status = step(all, m, &why);
        } else if (m->phase == AWAITING_PROOF && now_s > m->until_s) {
            meeting_remove(all, m);
            continue;
        }
        if (status != TDM_OK) {
            TDM_TRY(meeting_failed(all, m, &why, err));
        } else if (m->phase == READY) {
            meeting_remove(all, m);
        }
    }
    if (fds[0].revents) accept_some(all);
    return TDM_OK;
}

static struct pollfd *fill_poll(const meet *all, struct pollfd *fds, size_t *capacity,
                                int *out_count)
{
    size_t wanted = 1;
    for (const meeting *m = all->all; m; m = m->next) wanted++;
    if (wanted > *capacity) {
        struct pollfd *grown = realloc(fds, 2 * wanted * sizeof(*fds));
        if (!grown) return NULL;
        fds = grown;
        *capacity = 2 * wanted;
    }
    fds[0] = (struct pollfd){.fd = all->tcp->listen_fd, .events = POLLIN};
    int count = 1;
    for (const meeting *m = all->all; m; m = m->next) {
        short events = m->phase == CONNECTING ? POLLOUT : POLLIN;
        if (tdm__stream_has_output(&m->stream)) events |= POLLOUT;
        fds[count++] = (struct pollfd){.fd = m->again_s > 0 ? -1 : m->stream.fd, .events = events};
    }
    *out_count = count;
    return fds;
}

/* The first rank with a link that is not there. */
static int missing_rank(const tdm__tcp *tcp)
{
    for (int i = 0; i < tcp->size; i++)
        for (int k = 0; tcp->peers[i].links && k < tcp->streams; k++)
            if (tcp->peers[i].links[k].stream.fd < 0) return i;
    return -1;
}

static tdm_status run(meet *all, tdm_error *err)
{
    struct pollfd *fds = NULL;
    size_t capacity = 0;
    tdm_status status = TDM_OK;
    while (all->missing > 0 && status == TDM_OK) {
        int count = 0, rank = missing_rank(all->tcp);
        struct pollfd *filled = fill_poll(all, fds, &capacity, &count);
        double left_s = all->until_s - tdm_clock_s();
        if (!filled) {
            status = tdm_fail_oom(err, "to connect");
            break;
        }
        fds = filled;
        if (tdm__cancellation_is_due(&all->tcp->cancellation)) {
            status = tdm_fail(err, TDM_ERR_PEER_FAILED,
                              "tcp: rank %d no longer waits for a connection with rank %d",
                              all->tcp->rank, rank);
        } else if (left_s <= 0) {
            status = tdm_fail(
                err, TDM_ERR_PEER_TIMEOUT,
                "tcp: no connection with rank %d, nor another one, within %g s%s%s; is there a firewall "
                "between the hosts? TANDEM_ADDRESS sets the address of a host",
                rank, max_meet_s, *all->last ? ": " : "", all->last);
        } else {
            double slice_s = tdm__cancellation_slice(&all->tcp->cancellation,
                                                     left_s < again_s ? left_s : again_s);
            poll(fds, (nfds_t)count, (int)(slice_s * 1000) + 1);
            status = turn(all, fds, err);
        }
    }
    free(fds);
    return status;
}

/* Memory for the links, and a connection to each lower rank begun. */
static tdm_status begin(meet *all, const size_t *address_bytes, tdm_error *err)
{
    tdm__tcp *tcp = all->tcp;
    for (int i = 0; i < tcp->size; i++) {
        tdm__tcp_peer *peer = &tcp->peers[i];
        if (i == tcp->rank || address_bytes[i] == 0) continue;
        if (address_bytes[i] != sizeof(tdm__endpoint))
            return tdm_fail(err, TDM_ERR_PEER_MISMATCH, "tcp: rank %d has an address of %zu bytes",
                            i, address_bytes[i]);
        peer->links = calloc((size_t)tcp->streams, sizeof(*peer->links));
        if (!peer->links) return tdm_fail_oom(err, "for connections");
        peer->state = TDM__TCP_WELL;
        for (int k = 0; k < tcp->streams; k++) {
            peer->links[k].peer = peer;
            peer->links[k].stream = tdm__stream_of(-1);
            all->missing++;
            if (i > tcp->rank) continue;
            meeting *m = meeting_add(all, -1, CONNECTING, true);
            if (!m) return tdm_fail_oom(err, "for connections");
            m->peer = i;
            m->stream_index = k;
            m->again_s = tdm_clock_s();
        }
    }
    return TDM_OK;
}

/* Descriptors for all links, where the hard limit allows them. */
static tdm_status allow_descriptors(const tdm__tcp *tcp, const size_t *address_bytes,
                                    tdm_error *err)
{
    enum { OTHERS = 64 };
    struct rlimit limit;
    rlim_t wanted = OTHERS;
    for (int i = 0; i < tcp->size; i++)
        if (i != tcp->rank && address_bytes[i] > 0) wanted += (rlim_t)tcp->streams;
    if (wanted <= OTHERS + 64 || getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted)
        return TDM_OK;
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur >= wanted) return TDM_OK;
    return tdm_fail(
        err, TDM_ERR_SYSTEM,
        "tcp: rank %d needs %llu file descriptors and may have %llu; raise the hard limit "
        "(ulimit -Hn)",
        tcp->rank, (unsigned long long)wanted, (unsigned long long)limit.rlim_cur);
}

tdm_status tdm__tcp_meet(tdm__tcp *tcp, const uint8_t *const *addresses,
                         const size_t *address_bytes, tdm_error *err)
{
    meet all = {.tcp = tcp, .addresses = addresses, .until_s = tdm_clock_s() + max_meet_s};
    TDM_TRY(allow_descriptors(tcp, address_bytes, err));
    tdm_status status = begin(&all, address_bytes, err);
    if (status == TDM_OK) status = run(&all, err);
    while (all.all) meeting_remove(&all, all.all);
    return status;
}
