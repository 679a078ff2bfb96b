/*
 * tcp_meet.c: makes all connections of the TCP transport: the higher rank of a pair connects.
 *
 * A connection begins with three messages of fixed size, before anything of variable size is read:
 *
 *   HELLO   from the side that accepts, 48 bytes
 *   +----------------+------------+------+-----------------------+
 *   | magic          | protection | zero | nonce                 |
 *   | "TdmLink1" 8 B | 4 B        | 4 B  | 32 B                  |
 *   +----------------+------------+------+-----------------------+
 *   PROOF   from the side that connects, 88 bytes
 *   +-------+------+-----+--------+---------+------------+-------+-------------------------------+
 *   | world | from | to  | stream | streams | protection | nonce | HMAC of a label, HELLO and    |
 *   | 4 B   | 4 B  | 4 B | 4 B    | 4 B     | 4 B        | 32 B  | this message before it, 32 B  |
 *   +-------+------+-----+--------+---------+------------+-------+-------------------------------+
 *   answer  from the side that accepts: the HMAC of the same with another label, 32 bytes
 *
 * The key of the HMAC is the world's. So both sides have proved that they know it, recorded messages
 * of earlier connections are useless, and a change of any byte in transit is detected. Then TLS
 * begins, if it is wanted, with a key that depends on both nonces.
 *
 * The life of a connection until it is a link:
 *
 *     this side connects                          this side accepts
 *
 *   WAITING <----------- failed, from                (accept: sends HELLO)
 *      | again_s         CONNECTING                         |
 *      v                 to AWAITS_ANSWER                   v
 *   CONNECTING                                        AWAITS_PROOF ---> closed: an invalid proof,
 *      | connected                                          |           too slow, or too many
 *      v                                                    |
 *   AWAITS_HELLO                                            |
 *      | HELLO: sends PROOF                                 |
 *      v                                                    |
 *   AWAITS_ANSWER                                           | PROOF: sends the answer
 *      | the answer                                         |
 *      v                                                    v
 *   ENCRYPTING --------- the TLS handshake has ended, or there is none ---------> READY: a link
 *
 *   transition                        function
 *   WAITING -> CONNECTING             meeting_connect
 *   CONNECTING -> AWAITS_HELLO        meeting_on_connected
 *   AWAITS_HELLO -> AWAITS_ANSWER     meeting_on_hello
 *   accept -> AWAITS_PROOF            meet_accept
 *   AWAITS_* -> ENCRYPTING            meeting_begin_encrypting
 *   ENCRYPTING -> READY               meeting_make_link
 *   failed -> WAITING, or closed      meeting_failed
 *
 * Other programs may connect while the ranks meet. A connection without a proof is closed after a
 * few seconds; of more than MAX_UNPROVED such connections, beside those that are expected, the
 * oldest is closed. When all ranks have met, the listening socket is closed.
 */
#include "base/timing.h"
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

enum { MAX_UNPROVED = 64, NONCE = 32, MAC = TDM_SHA256_BYTES };

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

typedef enum meeting_phase {
    MEETING_WAITING,
    MEETING_CONNECTING,
    MEETING_AWAITS_HELLO,
    MEETING_AWAITS_ANSWER,
    MEETING_AWAITS_PROOF,
    MEETING_ENCRYPTING,
    MEETING_READY
} meeting_phase;

/* A connection that is being made. */
typedef struct meeting {
    tdm__stream stream;
    meeting_phase phase;
    bool is_ours; /* this side connects */
    int peer, stream_index;
    double until_s; /* AWAITS_PROOF: when it is closed */
    double again_s; /* WAITING: when to connect */
    tdm__protection protection;
    hello hello;
    proof proof;
    uint8_t answer[MAC];
    uint8_t in[sizeof(proof)];
    size_t in_count;
    char remote[96];
    bool is_refused; /* the certificate of the peer is refused */
    struct meeting *next;
} meeting;

typedef struct meet {
    tdm__tcp *tcp;
    const uint8_t *const *addresses;
    meeting *all;
    int missing;  /* links that are not ready */
    int unproved; /* connections in AWAITS_PROOF */
    double until_s;
    char last[256]; /* the last failure, for the error when the time is over */
} meet;

/* ---- addresses -------------------------------------------------------------------------------- */

static bool endpoint_is_any(const tdm__endpoint *at)
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
    if (tcp->listen_fd < 0 && at.family == 6 && endpoint_is_any(&at)) { /* a host without IPv6 */
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

/* The address at which a peer listens. Zeros: the address at which this rank has reached rank 0. A
 * link-local address of the peer is on the network by which this rank has reached rank 0, whose
 * device has another number on this host. */
static socklen_t meet_address_of(const meet *all, int peer, struct sockaddr_storage *out)
{
    tdm__endpoint at;
    memcpy(&at, all->addresses[peer], sizeof(at));
    if (endpoint_is_any(&at)) {
        uint16_t port = at.port;
        at = all->tcp->rank_0;
        at.port = port;
    } else if (at.scope != 0 && all->tcp->rank_0.scope != 0) {
        at.scope = all->tcp->rank_0.scope;
    }
    return tdm__socket_address(&at, out);
}

/* ---- proofs ----------------------------------------------------------------------------------- */

/* HMAC of a label, the HELLO, and the PROOF up to its own HMAC. */
static bool meeting_prove(const tdm__tcp *tcp, const char *label, const meeting *m,
                          uint8_t out[MAC])
{
    uint8_t text[32 + sizeof(hello) + offsetof(proof, mac)] = {0};
    snprintf((char *)text, 32, "%s", label);
    memcpy(text + 32, &m->hello, sizeof(m->hello));
    memcpy(text + 32 + sizeof(m->hello), &m->proof, offsetof(proof, mac));
    return tdm_hmac_sha256(tcp->key, sizeof(tcp->key), text, sizeof(text), out) == TDM_OK;
}

/* ---- the list of connections ------------------------------------------------------------------ */

static meeting *meeting_add(meet *all, int fd, meeting_phase first, bool is_ours)
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
    if (!m->is_ours && m->phase == MEETING_AWAITS_PROOF) all->unproved--;
    tdm__stream_close(&m->stream, true);
    free(m);
}

static bool meeting_send(const meeting *m, const void *bytes, size_t count)
{
    /* These are the first bytes of the connection, so the socket has space for them. */
    return send(m->stream.fd, bytes, count, MSG_NOSIGNAL) == (ssize_t)count;
}

/* 1: all `wanted` bytes are in m->in; 0: not yet; -1: the connection failed. */
static int meeting_receive(meeting *m, size_t wanted)
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

/* ---- steps of one connection ------------------------------------------------------------------ */

/* Registers the connection as a link. False: epoll fails, with errno. */
static bool meeting_make_link(meet *all, meeting *m)
{
    tdm__tcp *tcp = all->tcp;
    tdm__tcp_link *link = &tcp->peers[m->peer].links[m->stream_index];
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = link};
    if (epoll_ctl(tcp->poll_fd, EPOLL_CTL_ADD, m->stream.fd, &event) != 0) return false;
    link->peer = &tcp->peers[m->peer];
    link->state = TDM__TCP_LINK_OPEN;
    link->stream = m->stream;
    link->events = EPOLLIN;
    m->stream = tdm__stream_of(-1);
    m->phase = MEETING_READY;
    all->missing--;
    all->until_s = tdm_clock_s() +
                   TDM__TIMING_TRANSPORT_MEET_S; /* on a busy host, many links take long */
    return true;
}

static tdm_status meeting_refuse_name(const meet *all, meeting *m, tdm_error *err)
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

/* Continues the TLS handshake. */
static tdm_status meeting_encrypt(meet *all, meeting *m, tdm_error *err)
{
    int ready = tdm__stream_flush(&m->stream);
    if (ready == 0) return TDM_OK;
    int why = errno;
    m->is_refused = ready < 0 && m->stream.tls && tdm__tls_is_refused(m->stream.tls);
    if (ready < 0)
        return tdm_fail(err, why == EPROTO ? TDM_ERR_PEER_REFUSED : TDM_ERR_PEER_FAILED,
                        "tcp: cannot encrypt the connection with rank %d: %s", m->peer,
                        tdm__stream_why(&m->stream, why));
    const char *name = all->tcp->host_names[m->peer];
    char address[96];
    tdm__socket_peer_address(m->stream.fd, address, sizeof(address));
    if (m->stream.tls && !tdm__tls_is_named(m->stream.tls, address) &&
        !(name && tdm__tls_is_named(m->stream.tls, name)))
        return meeting_refuse_name(all, m, err);
    if (!meeting_make_link(all, m))
        return tdm_fail(err, TDM_ERR_SYSTEM, "tcp: %s", strerror(errno));
    return TDM_OK;
}

/* The buffer for each direction of a link: smaller if there are many links. */
static size_t tcp_tls_buffer_bytes(const tdm__tcp *tcp)
{
    enum { FEW_LINKS = 64, SMALL = 32 << 10 };
    return (size_t)tcp->size * (size_t)tcp->streams <= FEW_LINKS ? TDM__TCP_TLS_BUFFER : SMALL;
}

static tdm_status meeting_begin_encrypting(meet *all, meeting *m, tdm_error *err)
{
    uint8_t key[MAC];
    if (!meeting_prove(all->tcp, "tandem link key", m, key))
        return tdm_fail_oom(err, "for a proof");
    tdm__tls_options options = {.context = all->tcp->tls,
                                .is_server = !m->is_ours,
                                .key = key,
                                .buffer_bytes = tcp_tls_buffer_bytes(all->tcp)};
    tdm_status status = tdm__stream_secure(&m->stream, m->protection, &options, err);
    explicit_bzero(key, sizeof(key));
    TDM_TRY(status);
    m->phase = MEETING_ENCRYPTING;
    return meeting_encrypt(all, m, err);
}

/* Checks HELLO, and answers with PROOF. */
static tdm_status meeting_on_hello(meet *all, meeting *m, tdm_error *err)
{
    tdm__tcp *tcp = all->tcp;
    memcpy(&m->hello, m->in, sizeof(m->hello));
    m->protection = tdm__protection_for(tcp->mode, m->stream.fd);
    if (memcmp(m->hello.magic, magic, sizeof(magic)) != 0)
        return tdm_fail(err, TDM_ERR_NOT_FOUND, "another program listens at %s", m->remote);
    if (m->hello.protection != m->protection)
        return tdm_fail(
            err, TDM_ERR_PEER_MISMATCH,
            "tcp: rank %d protects its connections by %s, rank %d by %s; set comm.security "
            "to the same value on all hosts",
            m->peer, tdm__protection_name(m->hello.protection), tcp->rank,
            tdm__protection_name(m->protection));
    m->proof = (proof){.world = tcp->world,
                       .from = (uint32_t)tcp->rank,
                       .to = (uint32_t)m->peer,
                       .stream = (uint32_t)m->stream_index,
                       .streams = (uint32_t)tcp->streams,
                       .protection = m->protection};
    TDM_TRY(tdm_os_random(m->proof.nonce, sizeof(m->proof.nonce), err));
    if (!meeting_prove(tcp, "tandem link from", m, m->proof.mac))
        return tdm_fail_oom(err, "for a proof");
    if (!meeting_send(m, &m->proof, sizeof(m->proof)))
        return tdm_fail(err, TDM_ERR_NOT_FOUND, "%s closed the connection", m->remote);
    m->phase = MEETING_AWAITS_ANSWER;
    return TDM_OK;
}

static tdm_status meeting_on_answer(meet *all, meeting *m, tdm_error *err)
{
    uint8_t wanted[MAC];
    if (!meeting_prove(all->tcp, "tandem link to", m, wanted))
        return tdm_fail_oom(err, "for a proof");
    if (!tdm__proof_equal(wanted, m->in))
        return tdm_fail(
            err, TDM_ERR_PEER_REFUSED,
            "tcp: the program that listens for rank %d at %s does not know this world's key",
            m->peer, m->remote);
    return meeting_begin_encrypting(all, m, err);
}

/* Checks PROOF. TDM_ERR_NOT_FOUND: the peer is not a rank of this world, or the link exists. */
static tdm_status meeting_on_proof(meet *all, meeting *m, tdm_error *err)
{
    tdm__tcp *tcp = all->tcp;
    uint8_t wanted[MAC], answer[MAC];
    memcpy(&m->proof, m->in, sizeof(m->proof));
    const proof *p = &m->proof;
    bool is_ours = meeting_prove(tcp, "tandem link from", m, wanted) &&
                   tdm__proof_equal(wanted, p->mac) && p->world == tcp->world &&
                   p->to == (uint32_t)tcp->rank && p->from < (uint32_t)tcp->size &&
                   p->from > (uint32_t)tcp->rank && p->streams == (uint32_t)tcp->streams &&
                   p->stream < (uint32_t)tcp->streams && p->protection == m->hello.protection &&
                   tcp->peers[p->from].state == TDM__TCP_WELL &&
                   tcp->peers[p->from].links[p->stream].stream.fd < 0;
    for (const meeting *at = all->all; is_ours && at; at = at->next)
        if (at != m && !at->is_ours && at->peer == (int)p->from &&
            at->phase == MEETING_ENCRYPTING && at->stream_index == (int)p->stream)
            is_ours = false;
    if (!is_ours || !meeting_prove(tcp, "tandem link to", m, answer) ||
        !meeting_send(m, answer, sizeof(answer)))
        return tdm_fail(err, TDM_ERR_NOT_FOUND,
                        "a program that is not a rank of this world connected from %s", m->remote);
    all->unproved--;
    m->phase = MEETING_ENCRYPTING;
    m->peer = (int)p->from;
    m->stream_index = (int)p->stream;
    return meeting_begin_encrypting(all, m, err);
}

static tdm_status meeting_connect(meet *all, meeting *m, tdm_error *err)
{
    struct sockaddr_storage to;
    socklen_t bytes = meet_address_of(all, m->peer, &to);
    tdm__socket_text((struct sockaddr *)&to, m->remote, sizeof(m->remote));
    m->stream.fd = tdm__socket_begin((struct sockaddr *)&to, bytes);
    if (m->stream.fd < 0)
        return tdm_fail(err, TDM_ERR_NOT_FOUND, "%s: %s", m->remote, strerror(errno));
    m->phase = MEETING_CONNECTING;
    return TDM_OK;
}

static tdm_status meeting_on_connected(meeting *m, tdm_error *err)
{
    if (!tdm__socket_is_connected(m->stream.fd))
        return tdm_fail(err, TDM_ERR_NOT_FOUND, "%s: %s", m->remote, strerror(errno));
    m->phase = MEETING_AWAITS_HELLO;
    return TDM_OK;
}

/* The connection is readable or writable. TDM_ERR_NOT_FOUND: it has failed, and may be tried again. */
static tdm_status meeting_step(meet *all, meeting *m, tdm_error *err)
{
    if (m->phase == MEETING_CONNECTING) return meeting_on_connected(m, err);
    if (m->phase == MEETING_ENCRYPTING) return meeting_encrypt(all, m, err);
    size_t wanted = m->phase == MEETING_AWAITS_HELLO    ? sizeof(hello)
                    : m->phase == MEETING_AWAITS_ANSWER ? MAC
                                                        : sizeof(proof);
    int got = meeting_receive(m, wanted);
    if (got == 0) return TDM_OK;
    if (got < 0) return tdm_fail(err, TDM_ERR_NOT_FOUND, "%s closed the connection", m->remote);
    if (m->phase == MEETING_AWAITS_HELLO) return meeting_on_hello(all, m, err);
    if (m->phase == MEETING_AWAITS_ANSWER) return meeting_on_answer(all, m, err);
    return meeting_on_proof(all, m, err);
}

/* ---- accepting -------------------------------------------------------------------------------- */

/* Closes the oldest connection without a proof. Ranks send theirs immediately, and would connect
 * again. */
static void meet_drop_oldest(meet *all)
{
    meeting *oldest = NULL;
    for (meeting *m = all->all; m; m = m->next)
        if (m->phase == MEETING_AWAITS_PROOF) oldest = m; /* new ones are put first */
    if (oldest) meeting_remove(all, oldest);
}

static void meet_accept(meet *all)
{
    enum { MAX_ACCEPT = 32 };
    for (int i = 0; i < MAX_ACCEPT; i++) {
        char remote[96];
        int fd = tdm__socket_accept(all->tcp->listen_fd, remote, sizeof(remote));
        if (fd < 0 && (errno == EMFILE || errno == ENFILE)) { /* these connections may have all */
            meet_drop_oldest(all);
            tdm_clock_sleep(TDM__TIMING_NET_RETRY_S);
        }
        if (fd < 0) return;
        if (all->unproved >= MAX_UNPROVED + all->missing) meet_drop_oldest(all);
        meeting *m = meeting_add(all, fd, MEETING_AWAITS_PROOF, false);
        if (!m) {
            close(fd);
            return;
        }
        all->unproved++;
        m->until_s = tdm_clock_s() + TDM__TIMING_NET_PROOF_S;
        tdm__socket_peer_host(fd, m->remote, sizeof(m->remote));
        m->protection = tdm__protection_for(all->tcp->mode, fd);
        memcpy(m->hello.magic, magic, sizeof(magic));
        m->hello.protection = m->protection;
        if (tdm_os_random(m->hello.nonce, sizeof(m->hello.nonce), NULL) != TDM_OK ||
            !meeting_send(m, &m->hello, sizeof(m->hello)))
            meeting_remove(all, m);
    }
}

/* ---- the loop --------------------------------------------------------------------------------- */

/* A connection has failed. An error of a rank is final; other connections are closed, and those that
 * this side makes are tried again. */
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
    m->phase = MEETING_WAITING;
    m->again_s = tdm_clock_s() + TDM__TIMING_NET_RETRY_S;
    return TDM_OK;
}

static tdm_status meet_turn(meet *all, const struct pollfd *fds, tdm_error *err)
{
    double now_s = tdm_clock_s();
    int at = 1;
    for (meeting *m = all->all, *next; m; m = next) {
        next = m->next;
        tdm_error why = {0};
        tdm_status status = TDM_OK;
        if (m->phase == MEETING_WAITING) {
            at++;
            if (now_s >= m->again_s) status = meeting_connect(all, m, &why);
        } else if (fds[at++].revents) {
            status = meeting_step(all, m, &why);
        } else if (m->phase == MEETING_AWAITS_PROOF && now_s > m->until_s) {
            meeting_remove(all, m);
            continue;
        }
        if (status != TDM_OK) {
            TDM_TRY(meeting_failed(all, m, &why, err));
        } else if (m->phase == MEETING_READY) {
            meeting_remove(all, m);
        }
    }
    if (fds[0].revents) meet_accept(all);
    return TDM_OK;
}

static struct pollfd *meet_fill_poll(const meet *all, struct pollfd *fds, size_t *capacity,
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
        short events = m->phase == MEETING_CONNECTING ? POLLOUT : POLLIN;
        if (tdm__stream_has_output(&m->stream)) events |= POLLOUT;
        fds[count++] = (struct pollfd){.fd = m->phase == MEETING_WAITING ? -1 : m->stream.fd,
                                       .events = events};
    }
    *out_count = count;
    return fds;
}

/* The first rank with a missing link. */
static int tcp_missing_rank(const tdm__tcp *tcp)
{
    for (int i = 0; i < tcp->size; i++)
        for (int k = 0; tcp->peers[i].links && k < tcp->streams; k++)
            if (tcp->peers[i].links[k].stream.fd < 0) return i;
    return -1;
}

static tdm_status meet_run(meet *all, tdm_error *err)
{
    struct pollfd *fds = NULL;
    size_t capacity = 0;
    tdm_status status = TDM_OK;
    while (all->missing > 0 && status == TDM_OK) {
        int count = 0, rank = tcp_missing_rank(all->tcp);
        struct pollfd *filled = meet_fill_poll(all, fds, &capacity, &count);
        double left_s = all->until_s - tdm_clock_s();
        if (!filled) {
            status = tdm_fail_oom(err, "to connect");
            break;
        }
        fds = filled;
        if (tdm__cancellation_is_due(&all->tcp->cancellation)) {
            status = tdm_fail(err, TDM_ERR_PEER_FAILED,
                              "tcp: rank %d stops waiting for a connection with rank %d",
                              all->tcp->rank, rank);
        } else if (left_s <= 0) {
            status = tdm_fail(
                err, TDM_ERR_PEER_TIMEOUT,
                "tcp: no connection with rank %d, and no other new one, within %g s%s%s; check for a "
                "firewall between the hosts; TANDEM_ADDRESS sets the address of a host",
                rank, TDM__TIMING_TRANSPORT_MEET_S, *all->last ? ": " : "", all->last);
        } else {
            double slice_s = tdm__cancellation_slice(
                &all->tcp->cancellation,
                left_s < TDM__TIMING_NET_RETRY_S ? left_s : TDM__TIMING_NET_RETRY_S);
            poll(fds, (nfds_t)count, (int)(slice_s * 1000) + 1);
            status = meet_turn(all, fds, err);
        }
    }
    free(fds);
    return status;
}

/* Allocates the links, and schedules a connection to each lower rank. */
static tdm_status meet_begin(meet *all, const size_t *address_bytes, tdm_error *err)
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
            meeting *m = meeting_add(all, -1, MEETING_WAITING, true);
            if (!m) return tdm_fail_oom(err, "for connections");
            m->peer = i;
            m->stream_index = k;
            m->again_s = tdm_clock_s();
        }
    }
    return TDM_OK;
}

/* Raises the limit of file descriptors for all links, if the hard limit allows it. */
static tdm_status tcp_allow_descriptors(const tdm__tcp *tcp, const size_t *address_bytes,
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
    meet all = {.tcp = tcp,
                .addresses = addresses,
                .until_s = tdm_clock_s() + TDM__TIMING_TRANSPORT_MEET_S};
    TDM_TRY(tcp_allow_descriptors(tcp, address_bytes, err));
    tdm_status status = meet_begin(&all, address_bytes, err);
    if (status == TDM_OK) status = meet_run(&all, err);
    while (all.all) meeting_remove(&all, all.all);
    return status;
}
