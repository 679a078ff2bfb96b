/*
 * trace_blame.c: finds which ranks wait for which, and the rank that is the cause.
 *
 * A rank in a call waits for the ranks of its newest WAIT events. If it recorded none and the call
 * is one of the world, it waits for the ranks that have not begun that call. Following these waits
 * from rank to rank ends at a rank that does not wait, which is the culprit, or returns to a
 * visited rank: then these ranks wait for each other. Short calls within a host record no events
 * (that would cost as much as the call); a later call of the same group shows that they have ended.
 */
#include "trace/trace.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_LINES = 32 };

/* The state of a rank with respect to a call in which another rank waits. */
typedef enum regard {
    NO_TRACE,
    DEAD,   /* its process is gone, and it did not close its comm */
    CLOSED, /* it closed its comm */
    ABSENT, /* it did not begin that call */
    INSIDE, /* it is in that call as well */
    PAST    /* it has ended it */
} regard;

static void blame_stand_of(const tdm_trace_rank *r, tdm__stand *stand)
{
    memset(stand, 0, sizeof(*stand));
    for (size_t i = 0; i < r->event_count; i++) tdm__stand_fold(stand, &r->events[i]);
}

static bool blame_is_dead(const tdm_trace_rank *r)
{
    return !r->closed && r->here && !r->running;
}

/* Whether e belongs to the same sequence of calls (a group's collectives, or messages between the
 * same two ranks) as `call` of rank `waiter`, seen from the other side. */
static bool blame_same_line(const tdm_trace_event *e, const tdm_trace_event *call, int waiter)
{
    if (e->group != call->group || tdm__trace_is_pair(e) != tdm__trace_is_pair(call)) return false;
    return !tdm__trace_is_pair(e) || (e->peer == waiter && e->step == call->step &&
                                      tdm__trace_receives(e) != tdm__trace_receives(call));
}

/* The state of `r` with respect to the call in which rank `waiter` waits. */
static regard blame_regard_of(const tdm_trace_rank *r, const tdm_trace_event *call, int waiter)
{
    if (!r) return NO_TRACE;
    bool begun = false, past = false;
    for (size_t i = 0; i < r->event_count; i++) {
        const tdm_trace_event *e = &r->events[i];
        if ((e->kind != TDM_TRACE_BEGIN && e->kind != TDM_TRACE_END) ||
            !blame_same_line(e, call, waiter))
            continue;
        if (e->sequence == call->sequence) {
            begun = true;
            past = past || e->kind == TDM_TRACE_END;
        } else if (e->sequence > call->sequence && !begun) {
            past = true; /* calls are made in order, so this one has ended */
        }
    }
    if (past) return PAST;
    if (blame_is_dead(r)) return DEAD;
    if (begun) return INSIDE;
    return r->closed ? CLOSED : ABSENT;
}

/* The ranks of the world that did not begin this call, for a rank without WAIT events. */
static void blame_infer_waits(const tdm_trace *trace, const tdm_trace_rank *r, tdm_trace_stand *out)
{
    if (tdm__trace_is_pair(&out->call) && out->call.peer >= 0) {
        out->waits_for[0] = out->call.peer;
        out->since_ns[0] = out->call.time_ns;
        out->wait_count = 1;
        return;
    }
    if (out->call.group != 0) return;
    for (int rank = 0; rank < r->size && out->wait_count < TDM_MAX_TRACE_WAITS; rank++) {
        if (rank == r->rank) continue;
        regard how = blame_regard_of(tdm__trace_find(trace, rank, NULL), &out->call, r->rank);
        if (how != DEAD && how != CLOSED && how != ABSENT) continue;
        out->waits_for[out->wait_count] = rank;
        out->since_ns[out->wait_count++] = out->call.time_ns;
    }
}

void tdm_trace_stand_of(const tdm_trace *trace, size_t index, tdm_trace_stand *out)
{
    memset(out, 0, sizeof(*out));
    const tdm_trace_rank *r = tdm_trace_rank_at(trace, index);
    tdm__stand *stand = calloc(1, sizeof(*stand));
    if (!r || !stand) {
        free(stand);
        return;
    }
    blame_stand_of(r, stand);
    out->last = stand->last;
    out->in_call = stand->call_count > 0 && !r->closed;
    if (out->in_call) {
        out->call = stand->calls[0];
        for (int i = 0; i < stand->wait_count && out->wait_count < TDM_MAX_TRACE_WAITS; i++) {
            const tdm_trace_event *w = &stand->waits[i];
            if (!tdm__trace_same_call(w, &out->call) || w->peer < 0) continue;
            out->waits_for[out->wait_count] = w->peer;
            out->since_ns[out->wait_count++] = w->time_ns;
        }
        if (out->wait_count == 0) blame_infer_waits(trace, r, out);
    }
    free(stand);
}

/* ---- text ------------------------------------------------------------------------------------- */

static double blame_age_s(const tdm_trace *trace, const tdm_trace_rank *r, uint64_t time_ns)
{
    int64_t age = trace->reference_ns - tdm__trace_moment_ns(r, time_ns);
    return age > 0 ? (double)age * 1e-9 : 0.0;
}

static void blame_add_last_act(const tdm_trace *trace, const tdm_trace_rank *r,
                               const tdm_trace_event *e, tdm_str *out)
{
    if (e->kind == TDM_TRACE_NONE) {
        tdm_str_add(out, "no events");
        return;
    }
    tdm_str_add(out, "last event: ");
    tdm_trace_event_text(e, out);
    tdm_str_addf(out, ", %.1f s ago", blame_age_s(trace, r, e->time_ns));
}

static void blame_add_ranks(const int *ranks, int count, tdm_str *out)
{
    enum { SHOWN = 8 };
    tdm_str_add(out, count == 1 ? "rank " : "ranks ");
    for (int i = 0; i < count && i < SHOWN; i++) {
        const char *between = i == 0 ? "" : i + 1 == count ? " and " : ", ";
        tdm_str_addf(out, "%s%d", between, ranks[i]);
    }
    if (count > SHOWN) tdm_str_addf(out, " and %d more", count - SHOWN);
}

/* Adds "; rank 2 did not call it: last event: ..." */
static void blame_add_regard(const tdm_trace *trace, int rank, const tdm_trace_event *call,
                             int waiter, tdm_str *out)
{
    size_t index = 0;
    const tdm_trace_rank *r = tdm__trace_find(trace, rank, &index);
    tdm_str_addf(out, "; rank %d ", rank);
    switch (blame_regard_of(r, call, waiter)) {
    case NO_TRACE: tdm_str_add(out, "has no trace here"); return;
    case DEAD:
        tdm_str_addf(out, "(process %lld) was killed or crashed: ", (long long)r->pid);
        break;
    case CLOSED: tdm_str_add(out, "has left the world: "); break;
    case ABSENT:
        tdm_str_add(out, !tdm__trace_is_pair(call)   ? "did not call it: "
                         : tdm__trace_receives(call) ? "did not send it: "
                                                     : "did not receive it: ");
        break;
    case INSIDE: tdm_str_add(out, "is also in it"); return;
    case PAST: tdm_str_add(out, "has ended it: "); break;
    }
    tdm_trace_stand stand;
    tdm_trace_stand_of(trace, index, &stand);
    blame_add_last_act(trace, r, &stand.last, out);
}

static void blame_add_wait(const tdm_trace *trace, const tdm_trace_rank *r,
                           const tdm_trace_stand *stand, tdm_str *out)
{
    uint64_t since = stand->since_ns[0];
    for (int i = 1; i < stand->wait_count; i++)
        if (stand->since_ns[i] < since) since = stand->since_ns[i];
    tdm_str_addf(out, "rank %d waits for ", r->rank);
    blame_add_ranks(stand->waits_for, stand->wait_count, out);
    tdm_str_add(out, " in ");
    tdm__trace_call_text(&stand->call, out);
    tdm_str_addf(out, " for %.1f s", blame_age_s(trace, r, since));
    for (int i = 0; i < stand->wait_count && i < 4; i++)
        blame_add_regard(trace, stand->waits_for[i], &stand->call, r->rank, out);
    tdm_str_add_char(out, '\n');
}

/* ---- culprits --------------------------------------------------------------------------------- */

typedef struct blame {
    const tdm_trace *trace;
    tdm_trace_stand *stands; /* by index */
    uint8_t *guilty;         /* by index: another rank's wait ends at it */
    int *missing;            /* ranks without a trace at which waits end */
    int missing_count;
    int *visit; /* by index: the walk that visited it */
} blame;

/* The one of r's peers to follow: a dead one, else one that does not wait, else the first. */
static int blame_next_of(const blame *b, const tdm_trace_stand *stand)
{
    int best = -1, best_value = -1;
    for (int i = 0; i < stand->wait_count; i++) {
        size_t index = 0;
        const tdm_trace_rank *r = tdm__trace_find(b->trace, stand->waits_for[i], &index);
        int value = !r || blame_is_dead(r) ? 2 : b->stands[index].wait_count == 0;
        if (value > best_value) best_value = value, best = stand->waits_for[i];
    }
    return best;
}

static void blame_note_missing(blame *b, int rank)
{
    for (int i = 0; i < b->missing_count; i++)
        if (b->missing[i] == rank) return;
    b->missing[b->missing_count++] = rank;
}

/* Follows the waits from `start` to their end; reports a cycle. */
static void blame_follow(blame *b, size_t start, tdm_str *out)
{
    size_t at = start;
    int walk = (int)start + 1;
    while (b->visit[at] == 0 && b->stands[at].wait_count > 0 &&
           !blame_is_dead(tdm_trace_rank_at(b->trace, at))) {
        b->visit[at] = walk;
        int next = blame_next_of(b, &b->stands[at]);
        if (!tdm__trace_find(b->trace, next, &at)) {
            blame_note_missing(b, next);
            return;
        }
    }
    if (b->visit[at] == 0) {
        b->guilty[at] = 1;
        b->visit[at] = walk;
    } else if (b->visit[at] == walk && b->stands[at].wait_count > 0) {
        int circle[TDM_MAX_TRACE_WAITS], count = 0;
        size_t stop = at;
        do {
            circle[count++] = tdm_trace_rank_at(b->trace, at)->rank;
            if (!tdm__trace_find(b->trace, blame_next_of(b, &b->stands[at]), &at)) return;
        } while (at != stop && count < TDM_MAX_TRACE_WAITS);
        tdm_str_add(out, "deadlock: ");
        blame_add_ranks(circle, count, out);
        tdm_str_add(out, " wait for each other\n");
    }
}

static void blame_add_culprit(const tdm_trace *trace, size_t index, const tdm_trace_stand *stand,
                              tdm_str *out)
{
    const tdm_trace_rank *r = tdm_trace_rank_at(trace, index);
    tdm_str_addf(out, "the culprit is rank %d (process %lld on %s): ", r->rank, (long long)r->pid,
                 r->host[0] ? r->host : "an unnamed host");
    if (blame_is_dead(r))
        tdm_str_add(out, "it was killed or crashed; ");
    else if (r->closed)
        tdm_str_add(out, "it has left the world; ");
    else if (stand->in_call)
        tdm_str_add(out, "it is in a call and does not wait for a rank; ");
    else
        tdm_str_add(out, r->running ? "it is running and in no call; " : "it is in no call; ");
    blame_add_last_act(trace, r, &stand->last, out);
    tdm_str_add_char(out, '\n');
}

static void blame_add_dead(const blame *b, tdm_str *out)
{
    for (size_t i = 0; i < b->trace->count; i++) {
        const tdm_trace_rank *r = tdm_trace_rank_at(b->trace, i);
        if (!blame_is_dead(r) || b->guilty[i]) continue;
        tdm_str_addf(out, "rank %d (process %lld) was killed or crashed; ", r->rank,
                     (long long)r->pid);
        blame_add_last_act(b->trace, r, &b->stands[i].last, out);
        tdm_str_add_char(out, '\n');
    }
}

static void blame_add_text(blame *b, tdm_str *out)
{
    size_t count = b->trace->count;
    int lines = 0;
    for (size_t i = 0; i < count; i++) {
        tdm_trace_stand_of(b->trace, i, &b->stands[i]);
        const tdm_trace_rank *r = tdm_trace_rank_at(b->trace, i);
        if (b->stands[i].wait_count == 0 || blame_is_dead(r)) continue;
        if (lines++ < MAX_LINES) blame_add_wait(b->trace, r, &b->stands[i], out);
    }
    if (lines > MAX_LINES) tdm_str_addf(out, "%d more ranks wait\n", lines - MAX_LINES);
    for (size_t i = 0; i < count; i++)
        if (b->stands[i].wait_count > 0 && b->visit[i] == 0) blame_follow(b, i, out);
    for (size_t i = 0; i < count; i++)
        if (b->guilty[i]) blame_add_culprit(b->trace, i, &b->stands[i], out);
    for (int i = 0; i < b->missing_count; i++)
        tdm_str_addf(out, "the culprit may be rank %d, which has no trace here\n", b->missing[i]);
    blame_add_dead(b, out);
    if (lines == 0) tdm_str_add(out, "no rank waits for another\n");
}

void tdm_trace_summary(const tdm_trace *trace, tdm_str *out)
{
    size_t count = trace->count;
    blame b = {.trace = trace,
               .stands = calloc(count, sizeof(*b.stands)),
               .guilty = calloc(count, sizeof(*b.guilty)),
               .missing = calloc(count, sizeof(*b.missing)),
               .visit = calloc(count, sizeof(*b.visit))};
    if (b.stands && b.guilty && b.missing && b.visit)
        blame_add_text(&b, out);
    else
        out->failed = true;
    free(b.stands);
    free(b.guilty);
    free(b.missing);
    free(b.visit);
}
