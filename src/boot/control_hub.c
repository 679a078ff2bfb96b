/*
 * control_hub.c: the hub's thread: one non-blocking loop over all connections.
 *
 * A turn: wait for input or room for output, read frames, run the timers (heartbeats, deadlines), send what
 * is queued, free the connections that are over. At the end, the hub sends a BYE to all members and waits a
 * moment until they close. It does not wait for a member that was silent: the BYE and the end of the
 * connection stay in that member's socket.
 *
 * States of the hub (the rank states are drawn in control_hub_members.c, the connection states in
 * control_hub_accept.c):
 *
 *                all ranks have joined
 *     JOINING -------------------------> STARTED
 *      |    |                               |
 *      |    | join_s is over, or `fatal`    |
 *      |    v                               |
 *      |  GAVE_UP (JOINs are refused)       |
 *      |    |                               |
 *      |    | tdm__hub_destroy              | tdm__hub_destroy
 *      |    v                               |
 *      +-> ENDED <--------------------------+
 *           |  all connections closed, or BYE_S is over
 *           v
 *         the thread exits
 *
 *     JOINING -> STARTED     tdm__hub_start
 *     JOINING -> GAVE_UP     hub_give_up_joining
 *     any     -> ENDED       hub_send_end
 */
#include "boot/control_hub.h"
#include "base/timing.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS = 64 };

double tdm__beat_s(int size)
{
    return size <= 1024 ? TDM__TIMING_BOOT_BEAT_S : TDM__TIMING_BOOT_BEAT_S * size / 1024;
}

/* ---- connections -------------------------------------------------------------------------------------- */

void tdm__hub_peer_drop(tdm__hub *hub, tdm__hub_peer *peer)
{
    if (peer->state == TDM__HUB_PEER_OVER) return;
    if (peer->rank < 0) hub->non_member_count--;
    peer->state = TDM__HUB_PEER_OVER;
    hub->dirty = true;
}

void tdm__hub_peer_leave(tdm__hub *hub, tdm__hub_peer *peer)
{
    if (peer->state == TDM__HUB_PEER_OVER) return;
    peer->state = TDM__HUB_PEER_LEAVING;
    peer->until_s = tdm_clock_s() + TDM__TIMING_BOOT_LEAVING_S;
    hub->dirty = true;
}

/* Logs the failed TLS handshake of a rank that knows the secret; usually its certificate is the reason. */
static void peer_log_tls(tdm__hub *hub, const tdm__hub_peer *peer)
{
    const tdm__tls *tls = peer->channel.stream.tls;
    if (peer->state != TDM__HUB_PEER_PROVED || !tls || !*tdm__tls_why(tls)) return;
    tdm_log(TDM_LOG_WARN, "comm", "cannot encrypt the connection with a rank from %s: %s",
            peer->address, tdm__tls_why(tls));
    snprintf(hub->refused, sizeof(hub->refused),
             "cannot encrypt the connection with a rank from %s: %s", peer->address,
             tdm__tls_why(tls));
}

/* Ends a connection that was closed or failed. */
static void peer_disconnect(tdm__hub *hub, tdm__hub_peer *peer, const char *how)
{
    if (peer->state == TDM__HUB_PEER_OVER) return;
    if (peer->state == TDM__HUB_PEER_MEMBER) {
        tdm__hub_lost(hub, peer->rank, TDM_SIGN_CLOSED, "%s", how);
    } else {
        peer_log_tls(hub, peer);
        tdm__hub_peer_drop(hub, peer);
    }
}

void tdm__hub_send_blob(tdm__hub *hub, tdm__hub_peer *peer, tdm__blob *blob)
{
    if (peer->state == TDM__HUB_PEER_OVER) return;
    if (tdm__channel_put(&peer->channel, blob)) {
        hub->dirty = true;
    } else {
        peer_disconnect(hub, peer, "rank 0 has no memory for a message to it");
    }
}

void tdm__hub_send(tdm__hub *hub, tdm__hub_peer *peer, const tdm__frame *frame)
{
    tdm__blob *blob = tdm__blob_frame(frame);
    tdm__hub_send_blob(hub, peer, blob);
    tdm__blob_release(blob);
}

static const char *state_text(tdm__channel_state state)
{
    switch (state) {
    case TDM__CHANNEL_END: return "its connection to rank 0 was closed: it exited or was killed";
    case TDM__CHANNEL_GARBAGE: return "it sent rank 0 an invalid message";
    case TDM__CHANNEL_ERROR: break;
    case TDM__CHANNEL_OK: break;
    }
    if (errno == ECONNRESET || errno == EPIPE)
        return "its connection to rank 0 was closed: it exited or was killed";
    return errno == ETIMEDOUT ? "its connection to rank 0 timed out"
                              : "its connection to rank 0 broke";
}

static void peer_handle_frames(tdm__hub *hub, tdm__hub_peer *peer)
{
    tdm__frame frame;
    while (peer->state != TDM__HUB_PEER_OVER) {
        int got = peer->state <= TDM__HUB_PEER_MEMBER ? tdm__channel_next(&peer->channel, &frame)
                                                      : 0;
        if (got == 0) return;
        if (peer->state < TDM__HUB_PEER_MEMBER) {
            if (got > 0) {
                tdm__hub_handle_joining(hub, peer, &frame);
            } else {
                tdm__hub_handle_invalid(hub, peer);
            }
        } else if (got > 0) {
            tdm__hub_handle_member(hub, peer, &frame);
        } else {
            peer_disconnect(hub, peer, state_text(TDM__CHANNEL_GARBAGE));
        }
    }
}

/* Records that the connection has sent something. */
static void peer_note_heard(tdm__hub *hub, const tdm__hub_peer *peer, double now_s)
{
    if (peer->state != TDM__HUB_PEER_MEMBER) return;
    tdm__member *member = &hub->members[peer->rank];
    if (now_s - member->heard_s > member->longest_s) member->longest_s = now_s - member->heard_s;
    member->heard_s = now_s;
}

/* Reads once, so that a connection that sends continuously does not delay the others. What remains in a TLS
 * buffer is read in the next turn. */
static void peer_read(tdm__hub *hub, tdm__hub_peer *peer)
{
    size_t before = peer->channel.in_count;
    tdm__channel_state state = tdm__channel_read(&peer->channel);
    int why = errno;
    if (peer->channel.in_count > before) peer_note_heard(hub, peer, tdm_clock_s());
    peer_handle_frames(hub, peer);
    if (peer->state > TDM__HUB_PEER_MEMBER) peer->channel.in_first = peer->channel.in_count = 0;
    errno = why;
    if (state != TDM__CHANNEL_OK) peer_disconnect(hub, peer, state_text(state));
    if (peer->channel.has_more && peer->state != TDM__HUB_PEER_OVER) hub->has_input = true;
}

/* Reads what the last turn left in TLS buffers, which epoll does not report. */
static void hub_read_buffered(tdm__hub *hub)
{
    for (tdm__hub_peer *at = hub->peers; at; at = at->next)
        if (at->state != TDM__HUB_PEER_OVER && at->channel.has_more) peer_read(hub, at);
    hub->dirty = true;
}

/* Sends what is queued and updates the epoll registration for writing. */
static void peer_flush(tdm__hub *hub, tdm__hub_peer *peer)
{
    tdm__channel_state state = tdm__channel_flush(&peer->channel);
    if (state != TDM__CHANNEL_OK) {
        /* It may have sent something before, such as a BYE. */
        peer_read(hub, peer);
        peer_disconnect(hub, peer, state_text(state));
        return;
    }
    bool waiting = tdm__channel_wants_room(&peer->channel);
    if (!tdm__channel_has_output(&peer->channel) && peer->state == TDM__HUB_PEER_LEAVING) {
        peer->state = TDM__HUB_PEER_SHUT;
        shutdown(peer->channel.stream.fd, SHUT_WR);
    }
    if (waiting == peer->writable) return;
    peer->writable = waiting;
    struct epoll_event event = {.events = EPOLLIN | (waiting ? EPOLLOUT : 0), .data.ptr = peer};
    epoll_ctl(hub->epoll_fd, EPOLL_CTL_MOD, peer->channel.stream.fd, &event);
}

/* Repeats, because sending the news of one death may reveal another. Then frees connections that are over. */
static void hub_flush(tdm__hub *hub)
{
    while (hub->dirty) {
        hub->dirty = false;
        for (tdm__hub_peer *at = hub->peers; at; at = at->next)
            if (at->state != TDM__HUB_PEER_OVER &&
                (tdm__channel_wants_room(&at->channel) != at->writable ||
                 tdm__channel_has_output(&at->channel) || at->state == TDM__HUB_PEER_LEAVING))
                peer_flush(hub, at);
    }
    for (tdm__hub_peer **link = &hub->peers; *link;) {
        tdm__hub_peer *peer = *link;
        if (peer->state != TDM__HUB_PEER_OVER) {
            link = &peer->next;
            continue;
        }
        *link = peer->next;
        tdm__channel_release(&peer->channel); /* closing removes it from the epoll set */
        free(peer);
    }
}

/* ---- timers --------------------------------------------------------------------------------------------- */

static void hub_give_up_joining(tdm__hub *hub)
{
    tdm_str missing = TDM_STR_INIT;
    tdm__hub_missing(hub, &missing);
    tdm__frame frame = {.type = TDM__FRAME_REFUSED,
                        .status = hub->fatal[0] ? TDM_ERR_PEER_FAILED : TDM_ERR_PEER_TIMEOUT};
    tdm_str text = TDM_STR_INIT;
    if (hub->fatal[0])
        tdm_str_add(&text, hub->fatal);
    else
        tdm_str_addf(&text, "%d of %d ranks did not join within %.3g s: %s%s%s",
                     hub->facts.size - hub->here_count, hub->facts.size, hub->facts.join_s,
                     tdm_str_text(&missing), hub->refused[0] ? "; " : "", hub->refused);
    memcpy(frame.text, tdm_str_text(&text),
           text.length < sizeof(frame.text) ? text.length : sizeof(frame.text) - 1);
    for (int i = 0; i < hub->facts.size; i++) {
        tdm__member *member = &hub->members[i];
        if (member->state != TDM__MEMBER_HERE) continue;
        tdm__hub_send(hub, member->peer, &frame);
        if (member->state == TDM__MEMBER_HERE) tdm__hub_peer_leave(hub, member->peer);
        member->state = TDM__MEMBER_LOST;
        member->peer = NULL;
    }
    hub->state = TDM__HUB_GAVE_UP;
    tdm_str_release(&text);
    tdm_str_release(&missing);
}

static void hub_send_pings(tdm__hub *hub)
{
    tdm__frame frame = {.type = TDM__FRAME_PING};
    if (hub->state == TDM__HUB_JOINING) {
        tdm_str missing = TDM_STR_INIT;
        tdm__hub_missing(hub, &missing);
        size_t length = missing.length < sizeof(frame.text) ? missing.length
                                                            : sizeof(frame.text) - 1;
        memcpy(frame.text, tdm_str_text(&missing), length);
        tdm_str_release(&missing);
    } else {
        memcpy(frame.text, hub->members[0].text, sizeof(frame.text));
    }
    tdm__blob *blob = tdm__blob_frame(&frame);
    for (int i = 0; blob && i < hub->facts.size; i++) {
        tdm__member *member = &hub->members[i];
        if (member->state == TDM__MEMBER_HERE && !tdm__channel_has_output(&member->peer->channel))
            tdm__hub_send_blob(hub, member->peer, blob);
    }
    tdm__blob_release(blob);
}

static void hub_run_timers(tdm__hub *hub, double now_s)
{
    double late_s = now_s - hub->turn_s;
    hub->turn_s = now_s;
    if (late_s > TDM__TIMING_BOOT_STALL_S) /* this process was stopped: the ranks were not silent */
        for (int i = 0; i < hub->facts.size; i++) hub->members[i].heard_s += late_s;
    for (tdm__hub_peer *at = hub->peers; at; at = at->next)
        if (at->state != TDM__HUB_PEER_MEMBER && now_s > at->until_s) tdm__hub_peer_drop(hub, at);
    if (hub->listen_again_s > 0 && now_s > hub->listen_again_s && hub->listen_fd >= 0) {
        hub->listen_again_s = 0;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &hub->listen_fd};
        epoll_ctl(hub->epoll_fd, EPOLL_CTL_ADD, hub->listen_fd, &event);
    }
    if (hub->state == TDM__HUB_ENDED) return;
    if (hub->state == TDM__HUB_JOINING && (now_s > hub->join_until_s || hub->fatal[0]))
        hub_give_up_joining(hub);
    tdm__hub_answer_suspicions(hub, now_s);
    if (now_s < hub->beat_at_s) return;
    hub->beat_at_s = now_s + tdm__beat_s(hub->facts.size);
    hub_send_pings(hub);
    if (hub->state == TDM__HUB_STARTED) tdm__hub_check_silence(hub, now_s);
}

static void hub_send_end(tdm__hub *hub)
{
    bool had_started = hub->state == TDM__HUB_STARTED;
    double now_s = tdm_clock_s();
    hub->state = TDM__HUB_ENDED;
    hub->end_until_s = now_s + TDM__TIMING_BOOT_BYE_S;
    if (hub->listen_fd >= 0) close(hub->listen_fd);
    hub->listen_fd = -1;
    tdm__frame frame = {.type = TDM__FRAME_BYE};
    for (tdm__hub_peer *at = hub->peers; at; at = at->next) {
        if (at->state < TDM__HUB_PEER_MEMBER) {
            tdm__hub_peer_drop(hub, at);
        } else if (at->state == TDM__HUB_PEER_MEMBER) {
            int rank = at->rank;
            at->is_silent = had_started && tdm__hub_is_silent(hub, rank, now_s);
            tdm__hub_send(hub, at, &frame);
            hub->members[rank].state = TDM__MEMBER_LEFT;
            hub->members[rank].peer = NULL;
            tdm__hub_peer_leave(hub, at);
        }
    }
}

/* Whether the end still waits for a connection to close. */
static bool hub_has_open_peers(const tdm__hub *hub)
{
    for (const tdm__hub_peer *at = hub->peers; at; at = at->next)
        if (!at->is_silent) return true;
    return false;
}

static int hub_wait_ms(const tdm__hub *hub, double now_s)
{
    if (hub->has_input) return 0;
    double until_s = hub->state == TDM__HUB_ENDED ? hub->end_until_s : hub->beat_at_s;
    if (hub->state == TDM__HUB_JOINING && hub->join_until_s < until_s) until_s = hub->join_until_s;
    double left_s = until_s - now_s;
    return left_s > 0 ? (int)(left_s * 1000) + 1 : 0;
}

static void *hub_main(void *user)
{
    tdm__hub *hub = user;
    hub->turn_s = tdm_clock_s();
    tdm__thread_raise_priority();
    while (hub->state != TDM__HUB_ENDED ||
           (hub_has_open_peers(hub) && tdm_clock_s() < hub->end_until_s)) {
        struct epoll_event events[EVENTS];
        int count = epoll_wait(hub->epoll_fd, events, EVENTS, hub_wait_ms(hub, tdm_clock_s()));
        bool has_rest = hub->has_input;
        hub->has_input = false;
        if (has_rest) hub_read_buffered(hub);
        for (int i = 0; i < count; i++) {
            void *who = events[i].data.ptr;
            if (who == &hub->wake_fd) {
                uint64_t times;
                while (read(hub->wake_fd, &times, sizeof(times)) > 0) continue;
            } else if (who == &hub->listen_fd) {
                tdm__hub_accept(hub);
            } else if (((tdm__hub_peer *)who)->state != TDM__HUB_PEER_OVER) {
                if (events[i].events & ~(uint32_t)EPOLLOUT) peer_read(hub, who);
                hub->dirty = true;
            }
        }
        hub_run_timers(hub, tdm_clock_s());
        if (atomic_load(&hub->should_end) && hub->state != TDM__HUB_ENDED) hub_send_end(hub);
        hub_flush(hub);
    }
    return NULL;
}

/* ---- lifetime ------------------------------------------------------------------------------------------- */

static void hub_release(tdm__hub *hub)
{
    for (tdm__hub_peer *at = hub->peers; at; at = at->next) at->state = TDM__HUB_PEER_OVER;
    hub_flush(hub);
    for (int i = 0; hub->members && i < hub->facts.size; i++) free(hub->members[i].block);
    while (hub->suspicions) {
        tdm__suspicion *next = hub->suspicions->next;
        free(hub->suspicions);
        hub->suspicions = next;
    }
    free(hub->members);
    if (hub->listen_fd >= 0) close(hub->listen_fd);
    if (hub->wake_fd >= 0) close(hub->wake_fd);
    if (hub->epoll_fd >= 0) close(hub->epoll_fd);
    explicit_bzero(hub->key, sizeof(hub->key));
    free(hub);
}

static tdm_status hub_prepare(tdm__hub *hub, int inner_fd, tdm_error *err)
{
    hub->members = calloc((size_t)hub->facts.size, sizeof(*hub->members));
    hub->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    hub->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    for (int i = 0; hub->members && i < hub->facts.size; i++) hub->members[i].waits_for = -1;
    tdm__hub_peer *inner = NULL;
    if (hub->members && hub->epoll_fd >= 0) inner = tdm__hub_admit(hub, inner_fd, "rank 0 itself");
    if (!inner || hub->wake_fd < 0) {
        if (!inner) close(inner_fd);
        return tdm_fail(err, TDM_ERR_SYSTEM, "cannot create the hub of rank 0: %s",
                        strerror(errno));
    }
    inner->is_own = true;
    struct epoll_event wake = {.events = EPOLLIN, .data.ptr = &hub->wake_fd};
    struct epoll_event door = {.events = EPOLLIN, .data.ptr = &hub->listen_fd};
    if (epoll_ctl(hub->epoll_fd, EPOLL_CTL_ADD, hub->wake_fd, &wake) != 0 ||
        (hub->listen_fd >= 0 &&
         epoll_ctl(hub->epoll_fd, EPOLL_CTL_ADD, hub->listen_fd, &door) != 0))
        return tdm_fail(err, TDM_ERR_SYSTEM, "cannot create the hub of rank 0: %s",
                        strerror(errno));
    return TDM_OK;
}

tdm_status tdm__hub_create(const tdm__hub_options *options, tdm__hub **out, tdm_error *err)
{
    tdm__hub *hub = calloc(1, sizeof(*hub));
    if (!hub) {
        if (options->listen_fd >= 0) close(options->listen_fd);
        close(options->inner_fd);
        return tdm_fail_oom(err, "for the hub of rank 0");
    }
    double now_s = tdm_clock_s();
    hub->facts = *options->facts;
    hub->world = options->world;
    memcpy(hub->nonce, options->nonce, sizeof(hub->nonce));
    hub->listen_fd = options->listen_fd;
    hub->wake_fd = hub->epoll_fd = -1;
    hub->join_until_s = now_s + hub->facts.join_s;
    hub->beat_at_s = now_s;
    memcpy(hub->key, options->key, strnlen(options->key, sizeof(hub->key) - 1));
    tdm_status status = hub_prepare(hub, options->inner_fd, err);
    if (status == TDM_OK) status = tdm__thread_start(&hub->thread, hub_main, hub, err);
    if (status != TDM_OK) {
        hub_release(hub);
        return status;
    }
    *out = hub;
    return TDM_OK;
}

void tdm__hub_destroy(tdm__hub *hub)
{
    if (!hub) return;
    atomic_store(&hub->should_end, true);
    uint64_t one = 1;
    if (write(hub->wake_fd, &one, sizeof(one)) < 0) { /* full: the thread is awake */
    }
    pthread_join(hub->thread, NULL);
    hub_release(hub);
}
