/*
 * boot_join.c: a rank's way in: find the hub, prove to belong, wait for the others.
 *
 * Challenge and answer: the hub sends a nonce; the rank answers with a nonce of its own and HMAC-SHA256
 * of both under the job's secret; the hub answers likewise. The secret itself never travels, an answer is
 * of no use a second time, and neither side believes the other before it has proved itself. Then TLS is
 * put on top, where the connection leaves the host, and the rank says its facts. Whatever does not look like a hub is tried again until the time
 * is over, because somebody else may hold the port for a moment; a refusal is final. So is the end of a
 * hub that was there, for a rank that is asked whether to give up: its door is of one epoch alone, and
 * nobody else will open it again.
 */
#include "boot/boot.h"
#include "net/socket.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    HELLO_S = 10, /* for a hub to say hello, and to answer */
    GRACE_S = 1   /* for the hub to say that the time is over, and who is missing, by itself */
};

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
    if (channel->in_count > 0) /* it would be taken for something that came encrypted */
        return tdm_fail(err, TDM_ERR_PEER_REFUSED,
                        "somebody put %zu bytes between the opening of a control connection and "
                        "its encryption",
                        channel->in_count);
    if (tdm__prove(TDM__PROVER_TLS, key, prove, hub_nonce, shared) != TDM_OK)
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "no memory to join the world");
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
    bool greeted;                 /* a hub has said hello, in this attempt or an earlier one */
    bool proved;                  /* the hub of this attempt knows the secret */
    bool refused;                 /* for a reason that does not pass */
    char missing[TDM__WIRE_TEXT]; /* who has not come, as the hub said last */
} attempt;

static tdm_status given_up(const tdm__facts *facts, tdm_error *err)
{
    return tdm_fail(err, TDM_ERR_PEER_FAILED,
                    "rank %d no longer waits for the others: its epoch, %u, is over", facts->rank,
                    facts->epoch);
}

/* TDM_ERR_NOT_FOUND: this is no hub, or not yet: try again. */
static tdm_status again(tdm_error *err, const attempt *a, const char *why)
{
    return tdm_fail(err, TDM_ERR_NOT_FOUND, "%s %s", a->meeting ? a->meeting->text : "the hub",
                    why);
}

/* The connection has ended: by a refusal of TLS, which is final, or else to be tried again. */
static tdm_status broke(attempt *a, tdm_error *err)
{
    const tdm__tls *tls = a->channel.stream.tls;
    if (!tls || !*tdm__tls_why(tls)) return again(err, a, "closed the connection");
    a->refused = tdm__tls_is_refused(tls);
    return tdm_fail(err, TDM_ERR_PEER_REFUSED, "no encrypted connection with rank 0 at %s: %s%s",
                    a->meeting ? a->meeting->text : "its own hub", tdm__tls_why(tls),
                    a->refused ? "; check comm.tls_certificate and comm.tls_authority here and on "
                                 "the host of rank 0"
                               : "");
}

/* Waits for a frame until `until_s`; TDM_ERR_TIMEOUT after it. */
static tdm_status next_frame(attempt *a, double until_s, tdm__frame *out, tdm_error *err)
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
                                "rank 0 speaks protocol %u of the control connection, this rank "
                                "protocol %d: run the same version of tandem everywhere",
                                protocol, TDM__WIRE_PROTOCOL);
            }
            return again(err, a, "is not rank 0 of a world of tandem: it says something else");
        }
        if (tdm__channel_flush(&a->channel) != TDM__CHANNEL_OK) return broke(a, err);
        double left = until_s - tdm_clock_s();
        if (left <= 0) return tdm_fail(err, TDM_ERR_TIMEOUT, "no answer");
        if (tdm__cancellation_is_due(&a->facts->cancellation)) return given_up(a->facts, err);
        struct pollfd wait = {.fd = a->channel.stream.fd, .events = POLLIN};
        if (tdm__channel_wants_room(&a->channel)) wait.events |= POLLOUT;
        left = tdm__cancellation_slice(&a->facts->cancellation, left);
        if (!a->channel.has_more) poll(&wait, 1, left > 1 ? 1000 : (int)(left * 1000) + 1);
        tdm__channel_state state = tdm__channel_read(&a->channel);
        if (state != TDM__CHANNEL_OK && a->channel.in_count == 0) return broke(a, err);
        if (state != TDM__CHANNEL_OK) {
            got = tdm__channel_next(&a->channel, out);
            return got > 0 ? TDM_OK : broke(a, err);
        }
    }
}

/* A refusal, in the hub's words. Anybody could have sent it before the hub has proved itself; after that,
 * TDM_ERR_PEER_MISMATCH says that another attempt would not help. */
static tdm_status refused(const tdm__frame *frame, attempt *a, tdm_error *err)
{
    a->refused = a->proved && frame->status == TDM_ERR_PEER_MISMATCH;
    if (frame->status == TDM_ERR_PEER_TIMEOUT || frame->status == TDM_ERR_PEER_FAILED)
        return tdm_fail(err, (tdm_status)frame->status, "%s", frame->text);
    return tdm_fail(err, TDM_ERR_PEER_REFUSED, "rank 0 at %s turned rank %d away: %s",
                    a->meeting ? a->meeting->text : "its own hub", a->facts->rank, frame->text);
}

static tdm_status out_of_memory(tdm_error *err)
{
    return tdm_fail(err, TDM_ERR_NO_MEMORY, "no memory to join the world");
}

/* The next frame of the opening, of this type. */
static tdm_status opening_frame(attempt *a, double until_s, tdm__frame_type type, const char *late,
                                tdm__frame *out, tdm_error *err)
{
    tdm_status status = next_frame(a, until_s, out, err);
    if (status == TDM_ERR_TIMEOUT) return again(err, a, late);
    if (status != TDM_OK) return status;
    if (out->type == TDM__FRAME_REFUSED) return refused(out, a, err);
    return out->type == type ? TDM_OK : again(err, a, "answers out of turn");
}

/* Hello, proofs of both sides, and TLS where it is wanted. */
static tdm_status open_channel(attempt *a, double until_s, tdm_error *err)
{
    const char *key = a->meeting ? a->meeting->key : "";
    tdm__frame hello, prove = {.type = TDM__FRAME_PROVE, .protocol = TDM__WIRE_PROTOCOL}, accept;
    TDM_TRY(opening_frame(a, until_s, TDM__FRAME_HELLO, "took the connection and says nothing",
                          &hello, err));
    a->greeted = true;
    prove.protection = tdm__protection_for(a->facts->security, a->channel.stream.fd);
    if (prove.protection != hello.protection) {
        a->refused = true;
        return tdm_fail(
            err, TDM_ERR_PEER_REFUSED,
            "rank 0 protects this connection by %s, rank %d wants %s; set comm.security "
            "(or TANDEM_SECURITY) to the same on all hosts",
            tdm__protection_name(hello.protection), a->facts->rank,
            tdm__protection_name(prove.protection));
    }
    TDM_TRY(tdm_os_random(prove.nonce, sizeof(prove.nonce), err));
    if (tdm__prove(TDM__PROVER_RANK, key, &prove, hello.nonce, prove.mac) != TDM_OK ||
        !tdm__channel_put_frame(&a->channel, &prove))
        return out_of_memory(err);
    TDM_TRY(
        opening_frame(a, until_s, TDM__FRAME_ACCEPT, "said hello and nothing more", &accept, err));
    uint8_t proof[TDM_SHA256_BYTES];
    if (tdm__prove(TDM__PROVER_HUB, key, &prove, hello.nonce, proof) != TDM_OK)
        return out_of_memory(err);
    if (!tdm__proof_equal(proof, accept.mac))
        return tdm_fail(err, TDM_ERR_PEER_REFUSED,
                        "what listens at %s does not know this job's secret: it is not rank 0 of "
                        "this world; choose another rendezvous",
                        a->meeting ? a->meeting->text : "the hub");
    a->proved = true;
    return tdm__channel_secure(&a->channel, a->facts, key, &prove, hello.nonce, false, err);
}

/* With certificates: rank 0's must name the host that was asked for, or its address. */
static tdm_status check_name(attempt *a, tdm_error *err)
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

/* What both sides of a world derive its key from is drawn by the hub. */
static tdm_status derive_key(const attempt *a, const uint8_t nonce[TDM__WIRE_NONCE],
                             uint8_t out[TDM__WORLD_KEY], tdm_error *err)
{
    static const char label[] = "tandem world key";
    const char *key = a->meeting ? a->meeting->key : "";
    uint8_t text[sizeof(label) + TDM__WIRE_NONCE];
    memcpy(text, label, sizeof(label));
    memcpy(text + sizeof(label), nonce, TDM__WIRE_NONCE);
    if (tdm_hmac_sha256(key, strlen(key), text, sizeof(text), out) != TDM_OK)
        return out_of_memory(err);
    return TDM_OK;
}

/* Hello, proofs, join, welcome. */
static tdm_status shake_hands(attempt *a, tdm__joined *out, tdm_error *err)
{
    const tdm__facts *facts = a->facts;
    double until_s = tdm_clock_s() + HELLO_S;
    if (until_s > a->until_s) until_s = a->until_s;
    TDM_TRY(open_channel(a, until_s, err));
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
    if (!tdm__channel_put_frame(&a->channel, &join)) return out_of_memory(err);
    tdm__frame welcome;
    TDM_TRY(opening_frame(a, until_s, TDM__FRAME_WELCOME, "does not answer", &welcome, err));
    TDM_TRY(check_name(a, err));
    out->world = welcome.world;
    return derive_key(a, welcome.nonce, out->key, err);
}

/* Until all have come. */
static tdm_status await_start(attempt *a, tdm__entry **out, tdm_error *err)
{
    const tdm__facts *facts = a->facts;
    a->channel.limit = TDM__MAX_WIRE_GATHERED;
    for (;;) {
        tdm__frame frame;
        tdm_status status = next_frame(a, a->until_s + GRACE_S, &frame, err);
        if (status == TDM_ERR_TIMEOUT)
            return tdm_fail(err, TDM_ERR_PEER_TIMEOUT,
                            "not all of %d ranks came within %.3g s; rank 0 says: %s", facts->size,
                            facts->join_s, *a->missing ? a->missing : "nothing");
        if (status == TDM_ERR_PEER_FAILED) return status;
        if (status != TDM_OK)
            return tdm_fail(err, TDM_ERR_PEER_FAILED,
                            "rank 0 closed the connection before all of %d ranks had come: it "
                            "exited or was killed",
                            facts->size);
        if (frame.type == TDM__FRAME_REFUSED) return refused(&frame, a, err);
        if (frame.type == TDM__FRAME_PING) memcpy(a->missing, frame.text, sizeof(a->missing));
        if (frame.type != TDM__FRAME_START) continue;
        tdm__entry *entries = calloc((size_t)facts->size, sizeof(*entries));
        if (!entries) return tdm_fail(err, TDM_ERR_NO_MEMORY, "no memory to join the world");
        if (frame.count == (uint32_t)facts->size &&
            tdm__wire_entries(frame.bytes, frame.byte_count, frame.count, entries)) {
            *out = entries;
            return TDM_OK;
        }
        free(entries);
        return tdm_fail(err, TDM_ERR_FORMAT, "rank 0's list of ranks makes no sense");
    }
}

static tdm_status try_once(attempt *a, int fd, tdm__joined *out, tdm_error *err)
{
    tdm__joined joined = {0};
    a->proved = a->refused = false;
    tdm__channel_init(&a->channel, fd, TDM__MAX_WIRE_JOIN);
    tdm_status status = shake_hands(a, &joined, err);
    if (status == TDM_OK) status = await_start(a, &joined.entries, err);
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

/* At most a second; ends early when the patience does. */
static void sleep_s(double seconds, const tdm__cancellation *cancellation)
{
    double until_s = tdm_clock_s() + seconds;
    for (double left;
         (left = until_s - tdm_clock_s()) > 0 && !tdm__cancellation_is_due(cancellation);) {
        tdm_clock_sleep(tdm__cancellation_slice(cancellation, left));
    }
}

/* Whether there is nobody to be tried again: rank 0 had opened this epoch's door, and has gone. */
static bool hub_has_died(const attempt *a)
{
    return a->greeted && a->facts->cancellation.is_over;
}

tdm_status tdm__join(const tdm__facts *facts, tdm__rendezvous *meeting, int fd, tdm__joined *out,
                     tdm_error *err)
{
    attempt a = {.facts = facts, .meeting = meeting, .until_s = tdm_clock_s() + facts->join_s};
    if (fd >= 0) {
        a.until_s += HELLO_S; /* the hub in this process gives up by itself, and says why */
        return try_once(&a, fd, out, err);
    }
    tdm_error last = {0};
    double pause_s = 0.005;
    for (;;) {
        tdm_status status = tdm__rendezvous_connect(meeting, a.until_s, &fd, &last);
        if (status == TDM_OK) status = try_once(&a, fd, out, &last);
        bool stale = status == TDM_ERR_PEER_REFUSED && tdm__rendezvous_changed(meeting);
        if (status != TDM_ERR_NOT_FOUND && !stale) {
            if (a.refused) tdm__refusal_tell(&facts->refusal, 0, last.message);
            if (err) *err = last;
            return status;
        }
        if (status == TDM_ERR_NOT_FOUND && hub_has_died(&a))
            return tdm_fail(err, TDM_ERR_PEER_FAILED, "rank 0 has gone while rank %d joined: %s",
                            facts->rank, last.message);
        if (tdm__cancellation_is_due(&facts->cancellation)) return given_up(facts, err);
        if (tdm_clock_s() + pause_s > a.until_s)
            return tdm_fail(err, TDM_ERR_PEER_TIMEOUT, "rank %d found no rank 0 within %.3g s: %s",
                            facts->rank, facts->join_s, last.message);
        sleep_s(pause_s, &facts->cancellation);
        if (pause_s < 0.2) pause_s *= 1.5;
    }
}
