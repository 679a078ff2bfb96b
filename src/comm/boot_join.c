/*
 * boot_join.c: a rank's way in: find the hub, prove to belong, wait for the others.
 *
 * Challenge and answer: the hub sends a nonce; the rank answers with its facts, a nonce of its own,
 * and HMAC-SHA256 of both nonces and the facts under the job's secret; the hub answers likewise. The
 * secret itself never travels, an answer is of no use a second time, and neither side believes the
 * other before it has proved itself. Whatever does not look like a hub is tried again until the time
 * is over, because somebody else may hold the port for a moment; a refusal is final. So is the end of a
 * hub that was there, for a rank that is asked whether to give up: its door is of one epoch alone, and
 * nobody else will open it again.
 */
#include "comm/boot.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum {
    HELLO_S = 10, /* for a hub to say hello, and to answer */
    GRACE_S = 1   /* for the hub to say that the time is over, and who is missing, by itself */
};

tdm_status tdm__draw(void *out, size_t bytes, tdm_error *err)
{
    uint8_t *at = out;
    while (bytes > 0) {
        ssize_t got = getrandom(at, bytes, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            return tdm_fail(err, TDM_ERR_SYSTEM, "cannot draw random bytes: %s", strerror(errno));
        at += got;
        bytes -= (size_t)got;
    }
    return TDM_OK;
}

bool tdm__proof_equal(const uint8_t *a, const uint8_t *b)
{
    unsigned different = 0;
    for (int i = 0; i < TDM_SHA256_BYTES; i++) different |= (unsigned)(a[i] ^ b[i]);
    return different == 0;
}

tdm_status tdm__prove(tdm__prover who, const char *key, const tdm__frame *join,
                      const uint8_t hub_nonce[TDM__WIRE_NONCE], uint32_t world,
                      uint8_t out[TDM_SHA256_BYTES])
{
    tdm_str text = TDM_STR_INIT;
    tdm_str_add(&text, who == TDM__PROVER_HUB ? "tandem hub " : "tandem rank ");
    tdm__wire_facts(join, hub_nonce, &text);
    tdm__wire_put_u32(world, &text);
    tdm_status status = TDM_ERR_NO_MEMORY;
    if (tdm_str_ok(&text)) status = tdm_hmac_sha256(key, strlen(key), text.data, text.length, out);
    tdm_str_release(&text);
    return status;
}

/* ---- one attempt ---------------------------------------------------------------------------------- */

typedef struct attempt {
    const tdm__facts *facts;
    tdm__rendezvous *meeting;
    tdm__channel channel;
    double until_s;
    bool greeted;                 /* a hub has said hello, in this attempt or an earlier one */
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
                protocol != TDM__WIRE_PROTOCOL)
                return tdm_fail(err, TDM_ERR_PEER_REFUSED,
                                "rank 0 speaks protocol %u of the control connection, this rank "
                                "protocol %d: run the same version of tandem everywhere",
                                protocol, TDM__WIRE_PROTOCOL);
            return again(err, a, "is not rank 0 of a world of tandem: it says something else");
        }
        if (tdm__channel_flush(&a->channel) != TDM__CHANNEL_OK)
            return again(err, a, "closed the connection");
        double left = until_s - tdm_clock_s();
        if (left <= 0) return tdm_fail(err, TDM_ERR_TIMEOUT, "no answer");
        if (tdm__patience_over(&a->facts->patience)) return given_up(a->facts, err);
        struct pollfd wait = {.fd = a->channel.fd, .events = POLLIN};
        if (tdm__channel_has_output(&a->channel)) wait.events |= POLLOUT;
        left = tdm__patience_slice(&a->facts->patience, left);
        poll(&wait, 1, left > 1 ? 1000 : (int)(left * 1000) + 1);
        tdm__channel_state state = tdm__channel_read(&a->channel);
        if (state != TDM__CHANNEL_OK && a->channel.in_count == 0)
            return again(err, a, "closed the connection");
        if (state != TDM__CHANNEL_OK) {
            got = tdm__channel_next(&a->channel, out);
            return got > 0 ? TDM_OK : again(err, a, "closed the connection");
        }
    }
}

/* A refusal, in the hub's words. */
static tdm_status refused(const tdm__frame *frame, const attempt *a, tdm_error *err)
{
    if (frame->status == TDM_ERR_PEER_TIMEOUT || frame->status == TDM_ERR_PEER_FAILED)
        return tdm_fail(err, (tdm_status)frame->status, "%s", frame->text);
    return tdm_fail(err, TDM_ERR_PEER_REFUSED, "rank 0 at %s turned rank %d away: %s",
                    a->meeting ? a->meeting->text : "its own hub", a->facts->rank, frame->text);
}

static tdm_status fill_join(const attempt *a, const char *key, const tdm__frame *hello,
                            tdm__frame *join, tdm_error *err)
{
    const tdm__facts *facts = a->facts;
    *join = (tdm__frame){.type = TDM__FRAME_JOIN,
                         .protocol = TDM__WIRE_PROTOCOL,
                         .rank = (uint32_t)facts->rank,
                         .size = (uint32_t)facts->size,
                         .epoch = facts->epoch,
                         .pid = (uint64_t)getpid()};
    memcpy(join->host, facts->host, sizeof join->host);
    memcpy(join->host_name, facts->host_name, sizeof join->host_name);
    memcpy(join->job, facts->job, sizeof join->job);
    memcpy(join->version, TDM_VERSION, sizeof TDM_VERSION);
    TDM_TRY(tdm__draw(join->nonce, sizeof join->nonce, err));
    if (tdm__prove(TDM__PROVER_RANK, key, join, hello->nonce, 0, join->mac) != TDM_OK)
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "no memory to join the world");
    return TDM_OK;
}

/* Hello, join, welcome. */
static tdm_status shake_hands(attempt *a, uint32_t *out_world, tdm_error *err)
{
    const char *key = a->meeting ? a->meeting->key : "";
    double until_s = tdm_clock_s() + HELLO_S;
    if (until_s > a->until_s) until_s = a->until_s;
    tdm__frame hello, join, welcome;
    tdm_status status = next_frame(a, until_s, &hello, err);
    if (status == TDM_ERR_TIMEOUT) return again(err, a, "took the connection and says nothing");
    if (status != TDM_OK) return status;
    if (hello.type != TDM__FRAME_HELLO) return again(err, a, "says no hello");
    a->greeted = true;
    TDM_TRY(fill_join(a, key, &hello, &join, err));
    if (!tdm__channel_put_frame(&a->channel, &join))
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "no memory to join the world");
    status = next_frame(a, until_s, &welcome, err);
    if (status == TDM_ERR_TIMEOUT) return again(err, a, "said hello and nothing more");
    if (status != TDM_OK) return status;
    if (welcome.type == TDM__FRAME_REFUSED) return refused(&welcome, a, err);
    if (welcome.type != TDM__FRAME_WELCOME) return again(err, a, "answers out of turn");
    uint8_t proof[TDM_SHA256_BYTES];
    status = tdm__prove(TDM__PROVER_HUB, key, &join, hello.nonce, welcome.world, proof);
    if (status != TDM_OK) return tdm_fail(err, status, "no memory to join the world");
    if (!tdm__proof_equal(proof, welcome.mac))
        return tdm_fail(err, TDM_ERR_PEER_REFUSED,
                        "who listens at %s does not know this job's secret: it is not rank 0 of "
                        "this world; choose another rendezvous",
                        a->meeting ? a->meeting->text : "the hub");
    *out_world = welcome.world;
    return TDM_OK;
}

/* Until all have come. */
static tdm_status await_start(attempt *a, tdm__entry **out, tdm_error *err)
{
    const tdm__facts *facts = a->facts;
    a->channel.limit = TDM__WIRE_GATHERED_MOST;
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
        if (frame.type == TDM__FRAME_PING) memcpy(a->missing, frame.text, sizeof a->missing);
        if (frame.type != TDM__FRAME_START) continue;
        tdm__entry *entries = calloc((size_t)facts->size, sizeof *entries);
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
    tdm__channel_init(&a->channel, fd, TDM__WIRE_JOIN_MOST);
    tdm_status status = shake_hands(a, &joined.world, err);
    if (status == TDM_OK) status = await_start(a, &joined.entries, err);
    if (status != TDM_OK) {
        tdm__channel_release(&a->channel);
        return status;
    }
    joined.channel = a->channel;
    *out = joined;
    return TDM_OK;
}

/* At most a second; ends early when the patience does. */
static void sleep_s(double seconds, const tdm__patience *patience)
{
    double until_s = tdm_clock_s() + seconds;
    for (double left; (left = until_s - tdm_clock_s()) > 0 && !tdm__patience_over(patience);) {
        struct timespec pause = {.tv_nsec = (long)(tdm__patience_slice(patience, left) * 1e9)};
        nanosleep(&pause, NULL);
    }
}

/* Whether there is nobody to be tried again: rank 0 had opened this epoch's door, and has gone. */
static bool hub_has_died(const attempt *a)
{
    return a->greeted && a->facts->patience.is_over;
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
            if (err) *err = last;
            return status;
        }
        if (status == TDM_ERR_NOT_FOUND && hub_has_died(&a))
            return tdm_fail(err, TDM_ERR_PEER_FAILED, "rank 0 has gone while rank %d joined: %s",
                            facts->rank, last.message);
        if (tdm__patience_over(&facts->patience)) return given_up(facts, err);
        if (tdm_clock_s() + pause_s > a.until_s)
            return tdm_fail(err, TDM_ERR_PEER_TIMEOUT, "rank %d found no rank 0 within %.3g s: %s",
                            facts->rank, facts->join_s, last.message);
        sleep_s(pause_s, &facts->patience);
        if (pause_s < 0.2) pause_s *= 1.5;
    }
}
