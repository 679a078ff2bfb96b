/*
 * boot_join.c: how a rank joins: it finds the hub, proves that it knows the secret and waits for the others.
 *
 * Challenge and response: the hub sends a nonce; the rank responds with its nonce and the HMAC-SHA256 of both
 * under the job's secret; the hub responds likewise. The secret itself is never sent, a response cannot be
 * reused, and neither side trusts the other before its proof. Then TLS is started if the connection leaves
 * the host, and the rank sends its facts.
 *
 * An endpoint that does not behave like a hub is tried again until the time is over, because another process
 * may hold the port for a moment. A refusal is final. With a cancellation, the end of a hub that had answered
 * is final as well: its endpoint belongs to one epoch, and no other process opens it again.
 */
#include "base/timing.h"
#include "boot/boot.h"
#include "net/socket.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

bool tdm__proof_equal(const uint8_t *a, const uint8_t *b)
{
    unsigned different = 0;
    for (int i = 0; i < TDM_SHA256_BYTES; i++) different |= (unsigned)(a[i] ^ b[i]);
    return different == 0;
}

tdm_status tdm__prove(tdm__prover who, const char *key, const tdm__frame *prove,
                      const uint8_t hub_nonce[TDM__WIRE_NONCE], uint8_t out[TDM_SHA256_BYTES])
{
    static const char *const labels[] = {[TDM__PROVER_RANK] = "tandem rank ",
                                         [TDM__PROVER_HUB] = "tandem hub ",
                                         [TDM__PROVER_TLS] = "tandem control key "};
    tdm_str text = TDM_STR_INIT;
    tdm_str_add(&text, labels[who]);
    tdm__wire_opening(prove, hub_nonce, &text);
    tdm_status status = TDM_ERR_NO_MEMORY;
    if (tdm_str_ok(&text)) status = tdm_hmac_sha256(key, strlen(key), text.data, text.length, out);
    tdm_str_release(&text);
    return status;
}

tdm_status tdm__channel_secure(tdm__channel *channel, const tdm__facts *facts, const char *key,
                               const tdm__frame *prove, const uint8_t hub_nonce[TDM__WIRE_NONCE],
                               bool is_server, tdm_error *err)
{
    enum { TLS_BUFFER = 64 << 10 };
    uint8_t shared[TDM_SHA256_BYTES];
    if (prove->protection == TDM__PLAIN) return TDM_OK;
    if (channel->in_count > 0) /* they would be taken for encrypted input */
        return tdm_fail(err, TDM_ERR_PEER_REFUSED,
                        "received %zu unexpected bytes before the encryption of a control "
                        "connection",
                        channel->in_count);
    if (tdm__prove(TDM__PROVER_TLS, key, prove, hub_nonce, shared) != TDM_OK)
        return tdm_fail_oom(err, "to join the world");
    tdm__tls_options options = {
        .context = facts->tls, .is_server = is_server, .key = shared, .buffer_bytes = TLS_BUFFER};
    tdm_status status = tdm__stream_secure(&channel->stream, prove->protection, &options, err);
    explicit_bzero(shared, sizeof(shared));
    return status;
}

/* ---- one attempt ---------------------------------------------------------------------------------- */

typedef struct attempt {
    const tdm__facts *facts;
    tdm__rendezvous *meeting;
    tdm__channel channel;
    double until_s;
    bool greeted;                 /* a hub has sent HELLO, in this attempt or an earlier one */
    bool proved;                  /* the hub of this attempt knows the secret */
    bool refused;                 /* permanently */
    char missing[TDM__WIRE_TEXT]; /* missing ranks, from the last PING of the hub */
} attempt;

static tdm_status attempt_cancelled(const tdm__facts *facts, tdm_error *err)
{
    return tdm_fail(err, TDM_ERR_PEER_FAILED,
                    "rank %d stops waiting for the other ranks: epoch %u has ended", facts->rank,
                    facts->epoch);
}

/* TDM_ERR_NOT_FOUND: this is not a hub, or it is not ready: the caller tries again. */
static tdm_status attempt_retry(tdm_error *err, const attempt *a, const char *why)
{
    return tdm_fail(err, TDM_ERR_NOT_FOUND, "%s %s", a->meeting ? a->meeting->text : "the hub",
                    why);
}

/* The connection has ended. A TLS refusal is final; otherwise the caller tries again. */
static tdm_status attempt_disconnected(attempt *a, tdm_error *err)
{
    const tdm__tls *tls = a->channel.stream.tls;
    if (!tls || !*tdm__tls_why(tls)) return attempt_retry(err, a, "closed the connection");
    a->refused = tdm__tls_is_refused(tls);
    return tdm_fail(err, TDM_ERR_PEER_REFUSED,
                    "cannot encrypt the connection with rank 0 at %s: %s%s",
                    a->meeting ? a->meeting->text : "its own hub", tdm__tls_why(tls),
                    a->refused ? "; check comm.tls_certificate and comm.tls_authority here and on "
                                 "the host of rank 0"
                               : "");
}

/* Waits for a frame until `until_s`; TDM_ERR_TIMEOUT after it. */
static tdm_status attempt_next_frame(attempt *a, double until_s, tdm__frame *out, tdm_error *err)
{
    for (;;) {
        int got = tdm__channel_next(&a->channel, out);
        if (got > 0) return TDM_OK;
        if (got < 0) {
            uint32_t protocol = 0;
            if (tdm__wire_protocol(a->channel.in + a->channel.in_first, a->channel.in_count,
                                   &protocol) &&
                protocol != TDM__WIRE_PROTOCOL) {
                a->refused = true;
                return tdm_fail(err, TDM_ERR_PEER_REFUSED,
                                "rank 0 uses protocol %u of the control connection, this rank "
                                "protocol %d: run the same version of tandem everywhere",
                                protocol, TDM__WIRE_PROTOCOL);
            }
            return attempt_retry(err, a, "is not rank 0 of a tandem world: it sent something else");
        }
        if (tdm__channel_flush(&a->channel) != TDM__CHANNEL_OK) return attempt_disconnected(a, err);
        double left = until_s - tdm_clock_s();
        if (left <= 0) return tdm_fail(err, TDM_ERR_TIMEOUT, "no answer");
        if (tdm__cancellation_is_due(&a->facts->cancellation))
            return attempt_cancelled(a->facts, err);
        struct pollfd wait = {.fd = a->channel.stream.fd, .events = POLLIN};
        if (tdm__channel_wants_room(&a->channel)) wait.events |= POLLOUT;
        left = tdm__cancellation_slice(&a->facts->cancellation, left);
        if (!a->channel.has_more) poll(&wait, 1, left > 1 ? 1000 : (int)(left * 1000) + 1);
        tdm__channel_state state = tdm__channel_read(&a->channel);
        if (state != TDM__CHANNEL_OK && a->channel.in_count == 0)
            return attempt_disconnected(a, err);
        if (state != TDM__CHANNEL_OK) {
            got = tdm__channel_next(&a->channel, out);
            return got > 0 ? TDM_OK : attempt_disconnected(a, err);
        }
    }
}

/* The hub refused this rank. Before its proof, any process could have sent the refusal; after it,
 * TDM_ERR_PEER_MISMATCH means that another attempt would not help. */
static tdm_status attempt_refused(const tdm__frame *frame, attempt *a, tdm_error *err)
{
    a->refused = a->proved && frame->status == TDM_ERR_PEER_MISMATCH;
    if (frame->status == TDM_ERR_PEER_TIMEOUT || frame->status == TDM_ERR_PEER_FAILED)
        return tdm_fail(err, (tdm_status)frame->status, "%s", frame->text);
    return tdm_fail(err, TDM_ERR_PEER_REFUSED, "rank 0 at %s refused rank %d: %s",
                    a->meeting ? a->meeting->text : "its own hub", a->facts->rank, frame->text);
}

static tdm_status attempt_no_memory(tdm_error *err)
{
    return tdm_fail_oom(err, "to join the world");
}

/* Waits for the next frame of the handshake, which must have this type. */
static tdm_status attempt_opening_frame(attempt *a, double until_s, tdm__frame_type type,
                                        const char *late, tdm__frame *out, tdm_error *err)
{
    tdm_status status = attempt_next_frame(a, until_s, out, err);
    if (status == TDM_ERR_TIMEOUT) return attempt_retry(err, a, late);
    if (status != TDM_OK) return status;
    if (out->type == TDM__FRAME_REFUSED) return attempt_refused(out, a, err);
    return out->type == type ? TDM_OK : attempt_retry(err, a, "sent an unexpected answer");
}

/* HELLO, the proofs of both sides, and TLS if it is required. */
static tdm_status attempt_open_channel(attempt *a, double until_s, tdm_error *err)
{
    const char *key = a->meeting ? a->meeting->key : "";
    tdm__frame hello, prove = {.type = TDM__FRAME_PROVE, .protocol = TDM__WIRE_PROTOCOL}, accept;
    TDM_TRY(attempt_opening_frame(a, until_s, TDM__FRAME_HELLO,
                                  "accepted the connection and sent nothing", &hello, err));
    a->greeted = true;
    prove.protection = tdm__protection_for(a->facts->security, a->channel.stream.fd);
    if (prove.protection != hello.protection) {
        a->refused = true;
        return tdm_fail(
            err, TDM_ERR_PEER_REFUSED,
            "rank 0 protects this connection by %s, rank %d requires %s; set comm.security "
            "(or TANDEM_SECURITY) to the same on all hosts",
            tdm__protection_name(hello.protection), a->facts->rank,
            tdm__protection_name(prove.protection));
    }
    TDM_TRY(tdm_os_random(prove.nonce, sizeof(prove.nonce), err));
    if (tdm__prove(TDM__PROVER_RANK, key, &prove, hello.nonce, prove.mac) != TDM_OK ||
        !tdm__channel_put_frame(&a->channel, &prove))
        return attempt_no_memory(err);
    TDM_TRY(attempt_opening_frame(a, until_s, TDM__FRAME_ACCEPT, "sent HELLO and nothing more",
                                  &accept, err));
    uint8_t proof[TDM_SHA256_BYTES];
    if (tdm__prove(TDM__PROVER_HUB, key, &prove, hello.nonce, proof) != TDM_OK)
        return attempt_no_memory(err);
    if (!tdm__proof_equal(proof, accept.mac))
        return tdm_fail(
            err, TDM_ERR_PEER_REFUSED,
            "the process at %s does not know the secret of this job: it is not rank 0 of "
            "this world; choose another rendezvous",
            a->meeting ? a->meeting->text : "the hub");
    a->proved = true;
    return tdm__channel_secure(&a->channel, a->facts, key, &prove, hello.nonce, false, err);
}

/* With certificates: that of rank 0 must name the requested host or its address. */
static tdm_status attempt_check_name(attempt *a, tdm_error *err)
{
    const tdm__tls *tls = a->channel.stream.tls;
    char address[96], subject[160];
    tdm__socket_peer_address(a->channel.stream.fd, address, sizeof(address));
    if (!tls || tdm__tls_is_named(tls, address) ||
        (a->meeting && tdm__tls_is_named(tls, a->meeting->host)))
        return TDM_OK;
    tdm__tls_subject(tls, subject, sizeof(subject));
    a->refused = true;
    return tdm_fail(err, TDM_ERR_PEER_REFUSED,
                    "rank 0 at %s has a certificate of another name (%s); its subject alternative "
                    "names must have the host's name or the address %s",
                    a->meeting ? a->meeting->text : "its own hub", subject, address);
}

/* Derives the key of the world from the secret and a nonce that the hub has chosen. */
static tdm_status attempt_derive_key(const attempt *a, const uint8_t nonce[TDM__WIRE_NONCE],
                                     uint8_t out[TDM__WORLD_KEY], tdm_error *err)
{
    static const char label[] = "tandem world key";
    const char *key = a->meeting ? a->meeting->key : "";
    uint8_t text[sizeof(label) + TDM__WIRE_NONCE];
    memcpy(text, label, sizeof(label));
    memcpy(text + sizeof(label), nonce, TDM__WIRE_NONCE);
    if (tdm_hmac_sha256(key, strlen(key), text, sizeof(text), out) != TDM_OK)
        return attempt_no_memory(err);
    return TDM_OK;
}

/* HELLO, proofs, JOIN, WELCOME. */
static tdm_status attempt_handshake(attempt *a, tdm__joined *out, tdm_error *err)
{
    const tdm__facts *facts = a->facts;
    double until_s = tdm_clock_s() + TDM__TIMING_BOOT_HANDSHAKE_S;
    if (until_s > a->until_s) until_s = a->until_s;
    TDM_TRY(attempt_open_channel(a, until_s, err));
    tdm__frame join = {.type = TDM__FRAME_JOIN,
                       .protocol = TDM__WIRE_PROTOCOL,
                       .rank = (uint32_t)facts->rank,
                       .size = (uint32_t)facts->size,
                       .epoch = facts->epoch,
                       .pid = (uint64_t)getpid()};
    memcpy(join.host, facts->host, sizeof(join.host));
    memcpy(join.host_name, facts->host_name, sizeof(join.host_name));
    memcpy(join.job, facts->job, sizeof(join.job));
    memcpy(join.version, TDM_VERSION, sizeof(TDM_VERSION));
    if (!tdm__channel_put_frame(&a->channel, &join)) return attempt_no_memory(err);
    tdm__frame welcome;
    TDM_TRY(
        attempt_opening_frame(a, until_s, TDM__FRAME_WELCOME, "does not answer", &welcome, err));
    TDM_TRY(attempt_check_name(a, err));
    out->world = welcome.world;
    return attempt_derive_key(a, welcome.nonce, out->key, err);
}

/* Waits until all ranks have joined. */
static tdm_status attempt_await_start(attempt *a, tdm__entry **out, tdm_error *err)
{
    const tdm__facts *facts = a->facts;
    a->channel.limit = TDM__MAX_WIRE_GATHERED;
    for (;;) {
        tdm__frame frame;
        tdm_status status = attempt_next_frame(a, a->until_s + TDM__TIMING_BOOT_REPORT_S, &frame,
                                               err);
        if (status == TDM_ERR_TIMEOUT)
            return tdm_fail(err, TDM_ERR_PEER_TIMEOUT,
                            "not all of %d ranks joined within %.3g s; rank 0 reports: %s",
                            facts->size, facts->join_s, *a->missing ? a->missing : "nothing");
        if (status == TDM_ERR_PEER_FAILED) return status;
        if (status != TDM_OK)
            return tdm_fail(err, TDM_ERR_PEER_FAILED,
                            "rank 0 closed the connection before all of %d ranks had joined: it "
                            "exited or was killed",
                            facts->size);
        if (frame.type == TDM__FRAME_REFUSED) return attempt_refused(&frame, a, err);
        if (frame.type == TDM__FRAME_PING) memcpy(a->missing, frame.text, sizeof(a->missing));
        if (frame.type != TDM__FRAME_START) continue;
        tdm__entry *entries = calloc((size_t)facts->size, sizeof(*entries));
        if (!entries) return tdm_fail_oom(err, "to join the world");
        if (frame.count == (uint32_t)facts->size &&
            tdm__wire_entries(frame.bytes, frame.byte_count, frame.count, entries)) {
            *out = entries;
            return TDM_OK;
        }
        free(entries);
        return tdm_fail(err, TDM_ERR_FORMAT, "rank 0 sent an invalid list of ranks");
    }
}

static tdm_status attempt_run(attempt *a, int fd, tdm__joined *out, tdm_error *err)
{
    tdm__joined joined = {0};
    a->proved = a->refused = false;
    tdm__channel_init(&a->channel, fd, TDM__MAX_WIRE_JOIN);
    tdm_status status = attempt_handshake(a, &joined, err);
    if (status == TDM_OK) status = attempt_await_start(a, &joined.entries, err);
    if (status != TDM_OK) {
        tdm__channel_release(&a->channel);
        explicit_bzero(joined.key, sizeof(joined.key));
        return status;
    }
    joined.channel = a->channel;
    joined.here = tdm__socket_here(fd);
    joined.rank_0 = tdm__socket_there(fd);
    *out = joined;
    explicit_bzero(joined.key, sizeof(joined.key));
    return TDM_OK;
}

/* Sleeps; ends early when it is cancelled. */
static void sleep_cancellable(double seconds, const tdm__cancellation *cancellation)
{
    double until_s = tdm_clock_s() + seconds;
    for (double left;
         (left = until_s - tdm_clock_s()) > 0 && !tdm__cancellation_is_due(cancellation);) {
        tdm_clock_sleep(tdm__cancellation_slice(cancellation, left));
    }
}

/* Whether another attempt is useless: the hub of this epoch had answered, and is gone. */
static bool attempt_hub_has_died(const attempt *a)
{
    return a->greeted && a->facts->cancellation.is_over;
}

tdm_status tdm__join(const tdm__facts *facts, tdm__rendezvous *meeting, int fd, tdm__joined *out,
                     tdm_error *err)
{
    attempt a = {.facts = facts, .meeting = meeting, .until_s = tdm_clock_s() + facts->join_s};
    if (fd >= 0) {
        a.until_s +=
            TDM__TIMING_BOOT_HANDSHAKE_S; /* the hub in this process times out first and reports why */
        return attempt_run(&a, fd, out, err);
    }
    tdm_error last = {0};
    double pause_s = TDM__TIMING_BOOT_MIN_RETRY_S;
    for (;;) {
        tdm_status status = tdm__rendezvous_connect(meeting, a.until_s, &fd, &last);
        if (status == TDM_OK) status = attempt_run(&a, fd, out, &last);
        bool stale = status == TDM_ERR_PEER_REFUSED && tdm__rendezvous_changed(meeting);
        if (status != TDM_ERR_NOT_FOUND && !stale) {
            if (a.refused) tdm__refusal_tell(&facts->refusal, 0, last.message);
            if (err) *err = last;
            return status;
        }
        if (status == TDM_ERR_NOT_FOUND && attempt_hub_has_died(&a))
            return tdm_fail(err, TDM_ERR_PEER_FAILED, "rank 0 ended while rank %d was joining: %s",
                            facts->rank, last.message);
        if (tdm__cancellation_is_due(&facts->cancellation)) return attempt_cancelled(facts, err);
        if (tdm_clock_s() + pause_s > a.until_s)
            return tdm_fail(err, TDM_ERR_PEER_TIMEOUT,
                            "rank %d did not find rank 0 within %.3g s: %s", facts->rank,
                            facts->join_s, last.message);
        sleep_cancellable(pause_s, &facts->cancellation);
        if (pause_s < TDM__TIMING_BOOT_MAX_RETRY_S) pause_s *= 1.5;
    }
}
