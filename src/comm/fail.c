/*
 * fail.c: errors of calls, and how all members learn of them.
 *
 * A call fails if two ranks make different calls, if a deadline passes, if a peer dies or leaves,
 * or if a resource is missing here. Each of these breaks the group: its pending calls end with one
 * status and text, later calls fail immediately, and the other members are notified through the
 * control connection, which works when calls do not. The first error of a group is kept; later ones
 * are ignored.
 *
 * The transport may still have buffers of a failed call. The call ends only when the transport has
 * returned them all. If a peer does not respond at all, the transport drops it after a grace
 * period.
 */
#include "comm/fail.h"
#include "base/base.h"
#include "base/timing.h"
#include "comm/engine.h"
#include "comm/group.h"
#include "comm/request.h"
#include "comm/transfer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_NAMED = 8,  /* ranks listed in an error */
    MAX_EARLY = 64, /* broken groups that do not exist here and are remembered */
    MAX_ROUNDS = 16 /* rounds of the transport that drop messages of a broken group */
};

/* ---- texts ------------------------------------------------------------------------------------ */

const char *tdm__call_name(const tdm_group *group, const tdm__head *head, char *out, size_t bytes)
{
    char name[32] = "world";
    if (group->id) snprintf(name, sizeof(name), "group %08x", group->id);
    if (head->kind >= TDM_CALL_SEND)
        snprintf(out, bytes, "send or recv #%u with tag %u of %s", head->sequence, head->step,
                 name);
    else
        snprintf(out, bytes, "%s #%u of %s", tdm_call_kind_name((tdm_call_kind)head->kind),
                 head->sequence, name);
    return out;
}

const char *tdm__head_text(const tdm__head *head, char *out, size_t bytes)
{
    const char *kind = tdm_call_kind_name((tdm_call_kind)head->kind);
    if (head->kind == TDM_CALL_BARRIER) {
        snprintf(out, bytes, "%s", kind);
        return out;
    }
    char reduce[32] = "", root[32] = "", layout[40] = "";
    if (tdm__kind_reduces((tdm_call_kind)head->kind))
        snprintf(reduce, sizeof(reduce), " by %s", tdm_reduce_name((tdm_reduce)head->reduce));
    if (tdm__kind_has_root((tdm_call_kind)head->kind))
        snprintf(root, sizeof(root), ", root %d", head->root);
    if (head->layout) snprintf(layout, sizeof(layout), ", layout %08x", (uint32_t)head->layout);
    snprintf(out, bytes, "%s of %llu %s%s%s%s, algorithm %s", kind, (unsigned long long)head->count,
             tdm_dtype_name((tdm_dtype)head->dtype), reduce, root, layout,
             tdm_algorithm_name((tdm_algorithm)head->algorithm));
    return out;
}

/* "rank 2", "ranks 2 and 5", "ranks 1, 2, 3 and 4 more". */
static void ranks_text(const int *ranks, int count, char *out, size_t bytes)
{
    size_t at = (size_t)snprintf(out, bytes, count == 1 ? "rank" : "ranks");
    int shown = count > MAX_NAMED ? MAX_NAMED : count;
    for (int i = 0; i < shown && at < bytes; i++)
        at += (size_t)snprintf(out + at, bytes - at, "%s %d",
                               i == 0 ? "" : (i == count - 1 ? " and" : ","), ranks[i]);
    if (count > shown && at < bytes) snprintf(out + at, bytes - at, " and %d more", count - shown);
}

/* ---- breaking a group ------------------------------------------------------------------------- */

typedef struct tdm__tell {
    struct tdm__tell *next;
    uint32_t group;
    tdm_error error;
} tdm__tell;

static void tell_others(tdm_group *group)
{
    tdm_comm *comm = group->comm;
    tdm__tell *tell = malloc(sizeof(*tell));
    if (!tell) return; /* the other ranks have their own deadlines */
    *tell = (tdm__tell){.next = comm->tells, .group = group->id, .error = group->broken};
    comm->tells = tell;
}

void tdm__comm_lock(tdm_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
}

/* Logs one line at INFO, and the events that led to the error at DEBUG. */
static void log_break(const tdm_comm *comm)
{
    char last[512];
    tdm_log(TDM_LOG_INFO, "trace", "a call failed: this rank %s",
            tdm__recorder_last(comm->recorder, last, sizeof(last)));
    tdm__recorder_log(comm->recorder, TDM_LOG_DEBUG);
}

void tdm__comm_unlock(tdm_comm *comm)
{
    tdm__tell *tell = comm->tells;
    bool dumps = comm->dumps;
    comm->tells = NULL;
    comm->dumps = false;
    pthread_mutex_unlock(&comm->lock);
    while (tell) {
        tdm__tell *next = tell->next;
        comm->control->ops->broken(comm->control, tell->group, tell->error.status,
                                   tell->error.message);
        free(tell);
        tell = next;
    }
    if (dumps) log_break(comm);
}

void tdm__group_break(tdm_group *group, bool tell, tdm_status status, const char *fmt, ...)
{
    if (group->broken.status != TDM_OK) return;
    tdm_comm *comm = group->comm;
    va_list args;
    va_start(args, fmt);
    tdm_vfail(&group->broken, status, fmt, args);
    va_end(args);
    atomic_store_explicit(&group->is_broken, true, memory_order_release);
    tdm__record(comm->recorder, (tdm_trace_event){.kind = TDM_TRACE_BROKEN,
                                                  .peer = -1,
                                                  .group = group->id,
                                                  .sequence = group->next_sequence,
                                                  .status = (uint16_t)status});
    for (tdm_request *r = comm->pending; r; r = r->next)
        if (r->group == group) tdm__request_end(r, &group->broken);
    tdm__transfers_drop(comm, &group->id);
    if (tell) tell_others(group);
    if (!comm->has_dumped) comm->dumps = !comm->no_threads; /* the events before the first error */
    comm->has_dumped = true;
    comm->transport->ops->wake(comm->transport);
    pthread_cond_broadcast(&comm->changed);
}

bool tdm__heads_agree(const tdm__head *mine, const tdm__head *theirs)
{
    return mine->kind == theirs->kind && mine->dtype == theirs->dtype &&
           mine->reduce == theirs->reduce && mine->algorithm == theirs->algorithm &&
           mine->root == theirs->root && mine->count == theirs->count &&
           mine->layout == theirs->layout;
}

void tdm__group_mismatch(tdm_group *group, int their_world_rank, const tdm__head *mine,
                         const tdm__head *theirs)
{
    int own = group->comm->rank;
    bool swap = their_world_rank < own; /* both sides report the same text */
    char first[160], second[160], name[48] = "the world";
    tdm__head_text(swap ? theirs : mine, first, sizeof(first));
    tdm__head_text(swap ? mine : theirs, second, sizeof(second));
    if (group->id) snprintf(name, sizeof(name), "group %08x", group->id);
    tdm__group_break(
        group, true, TDM_ERR_PEER_MISMATCH,
        "rank %d and rank %d do not agree on call #%u of %s: rank %d called %s; rank %d called "
        "%s. All members must make the same calls in the same order",
        swap ? their_world_rank : own, swap ? own : their_world_rank, mine->sequence, name,
        swap ? their_world_rank : own, first, swap ? own : their_world_rank, second);
}

/* ---- peers ------------------------------------------------------------------------------------ */

static bool is_member(const tdm_group *group, int world_rank)
{
    for (int i = 0; i < group->size; i++)
        if (group->ranks[i] == world_rank) return true;
    return false;
}

/* A later report of a loss may add what happened before it. How it was detected is kept, unless it
 * was the transport, which cannot distinguish a process that has ended from an unreachable one. */
static void peer_note_loss(tdm_peer_loss *loss, const tdm_peer_loss *heard)
{
    tdm_peer_sign sign = loss->sign;
    if (sign == TDM_SIGN_TRANSPORT && heard->sign == TDM_SIGN_CLOSED) sign = TDM_SIGN_CLOSED;
    if (sign == TDM_SIGN_NONE || *heard->what) *loss = *heard;
    if (sign != TDM_SIGN_NONE) loss->sign = sign;
}

void tdm__peer_lost(tdm_comm *comm, int peer, bool tell, tdm_peer_loss loss, const char *how)
{
    if (peer == comm->rank) return;
    bool had_left = comm->peer_states[peer] == TDM_PEER_LEFT;
    if (!had_left) peer_note_loss(&comm->losses[peer], &loss);
    if (comm->peer_states[peer] == TDM_PEER_LOST) return;
    if (!had_left) {
        comm->peer_states[peer] = TDM_PEER_LOST;
        tdm__record(comm->recorder, (tdm_trace_event){.kind = TDM_TRACE_LOST, .peer = peer});
        for (tdm_group *g = comm->groups; g; g = g->next)
            if (is_member(g, peer))
                tdm__group_break(g, tell, TDM_ERR_PEER_FAILED, "rank %d has failed: %s", peer, how);
    }
    comm->transport->ops->forget(comm->transport, peer);
    comm->transport->ops->wake(comm->transport);
}

void tdm__peer_suspect(tdm_comm *comm, int peer, const char *how)
{
    if (comm->peer_states[peer] != TDM_PEER_WELL) return;
    comm->peer_states[peer] = TDM__PEER_SUSPECTED;
    comm->losses[peer].sign = TDM_SIGN_TRANSPORT;
    snprintf(comm->loss_text, sizeof(comm->loss_text), "%s", how);
    if (comm->control->ops->suspect)
        comm->control->ops->suspect(comm->control, peer);
    else
        comm->has_suspects = true; /* this function is called by the transport: see progress */
}

/* The hub knows no other reason for the lost connection to the peer. */
static void peer_confirm_loss(tdm_comm *comm, int peer)
{
    tdm_peer_loss loss = {.sign = TDM_SIGN_TRANSPORT};
    if (comm->peer_states[peer] == TDM__PEER_SUSPECTED) /* as in request_drop_peers */
        tdm__peer_lost(comm, peer, !comm->closing, loss, comm->loss_text);
}

void tdm__engine_confirm_losses(tdm_comm *comm)
{
    comm->has_suspects = false;
    for (int i = 0; i < comm->size; i++) peer_confirm_loss(comm, i);
}

static void peer_left(tdm_comm *comm, int peer)
{
    if (comm->peer_states[peer] != TDM_PEER_LOST) comm->peer_states[peer] = TDM_PEER_LEFT;
    comm->left_count++;
    double last = tdm__comm_now(comm) + TDM__TIMING_COMM_LEFT_S;
    for (tdm_request *r = comm->pending; r; r = r->next)
        if (is_member(r->group, peer) && r->left_s == 0) r->left_s = last;
}

const tdm_error *tdm__early_word(const tdm_comm *comm, uint32_t group)
{
    for (const tdm__tell *word = comm->early; word; word = word->next)
        if (word->group == group) return &word->error;
    return NULL;
}

/* Frees all but the first `kept` entries. */
static void early_trim(tdm_comm *comm, int kept)
{
    tdm__tell **link = &comm->early;
    for (int i = 0; *link && i < kept; i++) link = &(*link)->next;
    while (*link) {
        tdm__tell *word = *link;
        *link = word->next;
        free(word);
    }
}

void tdm__early_free(tdm_comm *comm)
{
    early_trim(comm, 0);
}

void tdm__early_keep(tdm_comm *comm, uint32_t group, tdm_status status, const char *text)
{
    tdm__tell *word = malloc(sizeof(*word));
    if (!word) return; /* calls on it end by their deadline */
    *word = (tdm__tell){.next = comm->early, .group = group};
    tdm_fail(&word->error, status, "%s", text);
    comm->early = word;
    early_trim(comm, MAX_EARLY);
    tdm__transfers_drop(comm, &group);
}

void tdm__engine_drain(tdm_comm *comm)
{
    for (int i = 0; i < MAX_ROUNDS && !comm->no_threads; i++)
        if (comm->transport->ops->progress(comm->transport) == 0) break;
}

static void group_broken(tdm_comm *comm, const tdm__news *news)
{
    bool all = news->group == TDM__ALL_GROUPS;
    if (all && comm->revoked.status == TDM_OK)
        tdm_fail(&comm->revoked, news->status, "%s", news->text);
    for (tdm_group *g = comm->groups; g; g = g->next)
        if (g->id == news->group || all) tdm__group_break(g, false, news->status, "%s", news->text);
    if (!all && !tdm__comm_group(comm, news->group))
        tdm__early_keep(comm, news->group, news->status, news->text);
    /* Other ranks wait for their sends to this rank to end, and this rank may compute for a long
     * time. */
    tdm__engine_drain(comm);
}

void tdm__engine_news(void *user, const tdm__news *news)
{
    tdm_comm *comm = user;
    tdm__comm_lock(comm);
    if (news->kind == TDM__NEWS_LOST) {
        tdm_peer_loss loss = {.sign = TDM_SIGN_TOLD};
        tdm__peer_lost(comm, news->rank, false, news->loss ? *news->loss : loss, news->text);
    } else if (news->kind == TDM__NEWS_LEFT) {
        peer_left(comm, news->rank);
    } else if (news->kind == TDM__NEWS_CONFIRMED) {
        peer_confirm_loss(comm, news->rank);
    } else {
        group_broken(comm, news);
    }
    comm->transport->ops->wake(comm->transport);
    pthread_cond_broadcast(&comm->changed);
    tdm__comm_unlock(comm);
}

/* ---- deadlines -------------------------------------------------------------------------------- */

/* The transfers of a failed call did not end: drops the peers that have them. */
static void request_drop_peers(tdm_request *request)
{
    tdm_comm *comm = request->group->comm;
    for (;;) {
        int peer = -1;
        for (tdm__transfer *t = comm->transfers; t; t = t->next) {
            if (t->request == request && t->handed) peer = t->peer;
            if (peer >= 0 || t->next == comm->transfers) break;
        }
        if (peer < 0) return;
        if (comm->peer_states[peer] == TDM_PEER_LOST) { /* dropped already */
            comm->transport->ops->forget(comm->transport, peer);
            return;
        }
        /* A rank that closes its comm drops its peers only locally: they have not failed. */
        tdm_peer_loss loss = {.sign = TDM_SIGN_SILENCE};
        tdm__peer_lost(comm, peer, !comm->closing, loss,
                       "it did not respond while a failed call was cleaned up");
    }
}

/* Whether the call is still the one whose deadline passed: while the lock was released, it may have
 * ended, its memory may belong to another call, and its group may be destroyed. */
static bool is_still_late(const tdm_comm *comm, const tdm_request *request, const tdm__head *head)
{
    for (const tdm_request *r = comm->pending; r; r = r->next)
        if (r == request)
            return r->state == TDM__REQUEST_LATE && r->head.group == head->group &&
                   r->head.kind == head->kind && r->head.sequence == head->sequence;
    return false;
}

/* A deadline has passed. Releases the lock while it queries the last activity of the other
 * ranks. */
static void request_on_deadline(tdm_request *request, double now)
{
    tdm_group *group = request->group;
    tdm_comm *comm = group->comm;
    if (request->error.status != TDM_OK) { /* a transfer has failed, and the hub has not answered */
        tdm__group_break(group, !comm->closing, request->error.status, "%s",
                         request->error.message);
        return;
    }

    int missing[MAX_NAMED * 4];
    int count = tdm__request_missing(request, missing, MAX_NAMED * 4);
    double waited_s = now - request->begin_s;
    bool left = false;
    for (int i = 0; i < count; i++) left = left || comm->peer_states[missing[i]] == TDM_PEER_LEFT;

    char name[96], what[160], who[160] = "itself", report[600] = "";
    tdm__call_name(group, &request->head, name, sizeof(name));
    tdm__head_text(&request->head, what, sizeof(what));
    if (count) ranks_text(missing, count, who, sizeof(who));

    request->state = TDM__REQUEST_LATE;
    tdm__head head = request->head;
    tdm__comm_unlock(comm);
    if (count)
        comm->control->ops->report(comm->control, missing, count > MAX_NAMED ? MAX_NAMED : count,
                                   report, sizeof(report));
    tdm__comm_lock(comm);

    if (!is_still_late(comm, request, &head)) return;
    tdm__group_break(group, true, left ? TDM_ERR_PEER_LEFT : TDM_ERR_PEER_TIMEOUT,
                     "%s (%s) did not end within %.3g s on rank %d: it waits for %s%s%s%s", name,
                     what, waited_s, comm->rank, who,
                     left ? ", at least one of which has left the world" : "",
                     report[0] ? ". " : "", report);
}

/* Messages are compared when they are matched, so SEND and RECV need no notice. */
static void request_send_notices(tdm_request *request, double now)
{
    int missing[MAX_NAMED];
    int count = request->head.kind >= TDM_CALL_SEND
                    ? 0
                    : tdm__request_missing(request, missing, MAX_NAMED);
    for (int i = 0; i < count; i++)
        if (request->group->comm->peer_states[missing[i]] == TDM_PEER_WELL)
            tdm__transfer_notice(request, missing[i]);
    request->notice_s = now + 4 * TDM__TIMING_COMM_NOTICE_S;
}

/* A member has left, and the time for its last messages is over. This is not an error while the
 * call waits only for other members; then it is checked again later. */
static bool request_misses_left(tdm_request *request, double now)
{
    if (request->left_s == 0 || now < request->left_s) return false;
    int missing[MAX_NAMED * 4];
    int count = tdm__request_missing(request, missing, MAX_NAMED * 4);
    for (int i = 0; i < count; i++)
        if (request->group->comm->peer_states[missing[i]] == TDM_PEER_LEFT) return true;
    request->left_s = now + TDM__TIMING_COMM_LEFT_S;
    return false;
}

/* Cancels the opening of the world: the ranks it waits for will not come. */
static void comm_cancel_joining(tdm_comm *comm)
{
    tdm_error why = {0};
    comm->joining.is_over = NULL;
    if (!comm->control->ops->has_failed || !comm->control->ops->has_failed(comm->control, &why))
        tdm_fail(&why, TDM_ERR_PEER_FAILED,
                 "rank %d stops waiting for the other ranks: epoch %u has ended", comm->rank,
                 comm->epoch);
    for (tdm_group *g = comm->groups; g; g = g->next)
        tdm__group_break(g, false, why.status, "%s", why.message);
}

double tdm__engine_timers(tdm_comm *comm)
{
    if (tdm__cancellation_is_due(&comm->joining)) comm_cancel_joining(comm);
    double now = tdm__comm_now(comm);
    double next = now + tdm__cancellation_slice(&comm->joining, 3600);
    for (tdm_request *r = comm->pending; r; r = r->next) {
        if (r->state == TDM__REQUEST_ENDING) {
            if (r->outstanding > 0 && now >= r->ending_s + TDM__TIMING_COMM_CLEANUP_S)
                request_drop_peers(r);
            if (r->outstanding > 0 && r->ending_s + TDM__TIMING_COMM_CLEANUP_S < next)
                next = r->ending_s + TDM__TIMING_COMM_CLEANUP_S;
            if (r->outstanding > 0 && next <= now) next = now + TDM__TIMING_COMM_CLEANUP_S;
            continue;
        }
        if (r->state == TDM__REQUEST_LATE) continue;
        if (now >= r->deadline_s || request_misses_left(r, now)) {
            request_on_deadline(r, now);
            return now; /* the list may have changed */
        }
        if (r->notice_s == 0) r->notice_s = r->begin_s + TDM__TIMING_COMM_NOTICE_S;
        if (now >= r->notice_s) request_send_notices(r, now);
        if (r->deadline_s < next) next = r->deadline_s;
        if (r->left_s > 0 && r->left_s < next) next = r->left_s;
        if (r->notice_s < next) next = r->notice_s;
    }
    bool round = false;
    double stalled = tdm__transfers_stalled(comm, now, next, &round);
    if (round) return now;
    return stalled < next ? stalled : next;
}
