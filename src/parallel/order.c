/*
 * order.c: the order of asynchronous updates: drawn from a logical clock, or recorded by another run. See parallel.h.
 *
 * The clock is a discrete event simulation: each worker that computes has a time at which its gradient is complete; the
 * earliest one makes the next update, of equal ones that with the lowest number. Then it begins its next gradient, unless
 * it is further ahead of the slowest worker than the bound allows: then it waits until that worker has caught up.
 *
 * Invariant: every entry, drawn or recorded, follows from the state after the entries before it (tdm_order_follow). So a
 * recorded order never asks for a gradient of a model that its worker has not read.
 */
#include "base/base.h"
#include "job/job.h"
#include "parallel/parallel.h"

#include <stdlib.h>

enum { KEPT_ENTRIES = 256 };            /* of the past, and a round ahead */
enum { BY_UPDATE = 1, BY_READING = 2 }; /* tdm_order_state.rules */

struct tdm_order {
    tdm_order_state state; /* after the last entry that is known */
    /* virtual: */
    uint64_t seed;
    double jitter;
    double mean[TDM_ORDER_MAX_WORKERS];    /* time of a gradient */
    double end[TDM_ORDER_MAX_WORKERS];     /* time at which a worker's gradient is complete */
    tdm_order_entry entries[KEPT_ENTRIES]; /* by update modulo KEPT_ENTRIES */
    /* recorded: */
    bool is_recorded;
    tdm_order_entry *recorded;
    size_t room;
};

/* ---- what the workers do ---------------------------------------------------------------------- */

static tdm_order_state state_begin(int64_t workers, int64_t bound)
{
    tdm_order_state state = {.worker_count = workers,
                             .bound = bound,
                             .next_batch = (uint64_t)workers,
                             .rules = BY_UPDATE | BY_READING};
    for (int64_t w = 0; w < workers; w++) state.workers[w].batch = (uint64_t)w;
    return state;
}

tdm_status tdm_order_state_init(const tdm_job *job, tdm_order_state *out, tdm_error *err)
{
    int64_t workers = tdm_replicas_of(job);
    if (workers < 1 || workers > TDM_ORDER_MAX_WORKERS)
        return tdm_fail(err, TDM_ERR_JOB_INVALID, "sync.kind server has 1 to %d replicas, not %lld",
                        TDM_ORDER_MAX_WORKERS, (long long)workers);
    bool is_stale = job->sync.mode == TDM_JOB_SERVER_STALE;
    *out = state_begin(workers, is_stale ? job->sync.staleness : -1);
    return TDM_OK;
}

static uint64_t state_min_count(const tdm_order_state *state)
{
    uint64_t min = state->workers[0].count;
    for (int64_t i = 1; i < state->worker_count; i++)
        if (state->workers[i].count < min) min = state->workers[i].count;
    return min;
}

bool tdm_order_may_read(const tdm_order_state *state, int64_t worker)
{
    const struct tdm_order_worker *w = &state->workers[worker];
    if (!w->waits) return false;
    return state->bound < 0 || w->count <= state_min_count(state) + (uint64_t)state->bound;
}

/* After update `next` - 1 by a worker that is waiting since: the workers in `readers` read the model. */
static tdm_status state_read(tdm_order_state *state, uint64_t readers, tdm_error *err)
{
    for (int64_t w = 0; w < TDM_ORDER_MAX_WORKERS; w++) {
        if (!(readers >> w & 1)) continue;
        if (w >= state->worker_count || !state->workers[w].waits)
            return tdm_fail(err, TDM_ERR_FORMAT, "worker %lld reads the model, but %s",
                            (long long)w,
                            w >= state->worker_count ? "the order has fewer workers"
                                                     : "it is computing a gradient");
        if (!tdm_order_may_read(state, w))
            return tdm_fail(err, TDM_ERR_FORMAT,
                            "worker %lld reads the model, but it is further ahead of the slowest "
                            "one than sync.staleness allows",
                            (long long)w);
    }
    for (int64_t w = 0; w < state->worker_count; w++) {
        if (!(readers >> w & 1)) continue;
        state->workers[w].read_at = state->next;
        state->workers[w].waits = 0;
        state->workers[w].batch = state->next_batch++;
    }
    return TDM_OK;
}

tdm_status tdm_order_follow(tdm_order_state *state, const tdm_order_entry *entry, tdm_error *err)
{
    tdm_order_state after = *state;
    if (entry->worker >= state->worker_count)
        return tdm_fail(err, TDM_ERR_FORMAT, "worker %u is above the number of workers",
                        (unsigned)entry->worker);
    struct tdm_order_worker *w = &after.workers[entry->worker];
    if (w->waits)
        return tdm_fail(err, TDM_ERR_FORMAT, "worker %u has read no model since its last update",
                        (unsigned)entry->worker);
    if (entry->staleness != state->next - w->read_at)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "worker %u has staleness %u, but it has read the model %llu updates before",
                        (unsigned)entry->worker, (unsigned)entry->staleness,
                        (unsigned long long)(state->next - w->read_at));
    if (entry->batch != state->next) after.rules &= ~(uint64_t)BY_UPDATE;
    if (entry->batch != w->batch) after.rules &= ~(uint64_t)BY_READING;
    if (after.rules == 0)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "worker %u has the gradient of batch %llu, which another worker has or "
                        "will have",
                        (unsigned)entry->worker, (unsigned long long)entry->batch + 1);
    after.next++;
    w->count++;
    w->waits = 1;
    TDM_TRY(state_read(&after, entry->readers, err));
    bool any = false;
    for (int64_t i = 0; i < after.worker_count; i++) any = any || !after.workers[i].waits;
    if (!any)
        return tdm_fail(err, TDM_ERR_FORMAT, "no worker has read the model for a later update");
    *state = after;
    return TDM_OK;
}

/* ---- the clock ------------------------------------------------------------------------------- */

static void order_start_worker(tdm_order *order, int64_t worker, double now)
{
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = order->seed,
                                               .stream = TDM_RNG_STREAM_ORDER,
                                               .sub_stream = (uint32_t)worker,
                                               .step = order->state.workers[worker].count});
    double u = (double)(tdm_rng_u64(&rng) >> 11) * 0x1p-53;
    order->end[worker] = now + order->mean[worker] * (1.0 + order->jitter * (2.0 * u - 1.0));
}

static void order_restart(tdm_order *order)
{
    tdm_order_state *s = &order->state;
    *s = state_begin(s->worker_count, s->bound);
    for (int64_t i = 0; i < s->worker_count; i++) order_start_worker(order, i, 0);
}

static int64_t order_next_worker(const tdm_order *order)
{
    int64_t next = -1;
    for (int64_t i = 0; i < order->state.worker_count; i++)
        if (!order->state.workers[i].waits && (next < 0 || order->end[i] < order->end[next]))
            next = i;
    return next;
}

/* Draws one more update. The slowest worker never waits, so there is one. */
static void order_advance(tdm_order *order)
{
    tdm_order_state *s = &order->state;
    int64_t worker = order_next_worker(order);
    struct tdm_order_worker *w = &s->workers[worker];
    tdm_order_entry entry = {.worker = (uint32_t)worker,
                             .staleness = (uint32_t)(s->next - w->read_at),
                             .batch = s->next};
    uint64_t update = s->next++;
    w->count++;
    w->waits = 1;
    for (int64_t i = 0; i < s->worker_count; i++)
        if (tdm_order_may_read(s, i)) entry.readers |= UINT64_C(1) << i;
    for (int64_t i = 0; i < s->worker_count; i++) {
        if (!(entry.readers >> i & 1)) continue;
        s->workers[i].read_at = s->next;
        s->workers[i].waits = 0;
        order_start_worker(order, i, order->end[worker]);
    }
    order->entries[update % KEPT_ENTRIES] = entry;
}

/* ---- creation and use ------------------------------------------------------------------------- */

static tdm_status order_check_speeds(const tdm_job *job, int64_t workers, tdm_error *err)
{
    size_t count = job->sync.speeds.count;
    if (count == 0 || count == (size_t)workers) return TDM_OK;
    return tdm_fail(err, TDM_ERR_JOB_INVALID,
                    "sync.speeds has %zu numbers, but the job has %lld replicas; give one for each",
                    count, (long long)workers);
}

tdm_status tdm_order_create(const tdm_job *job, tdm_order **out, tdm_error *err)
{
    const tdm_job_int_list *speeds = &job->sync.speeds;
    tdm_order_state state;
    TDM_TRY(tdm_order_state_init(job, &state, err));
    TDM_TRY(order_check_speeds(job, state.worker_count, err));
    tdm_order *order = calloc(1, sizeof(*order));
    if (!order) return tdm_fail_oom(err, "for the order of updates");
    order->state = state;
    order->is_recorded = job->sync.order != TDM_JOB_ORDER_VIRTUAL;
    order->seed = (uint64_t)job->seed;
    order->jitter = job->sync.jitter;
    for (int64_t i = 0; i < state.worker_count; i++)
        order->mean[i] = speeds->count > 0 ? 1.0 / (double)speeds->values[i] : 1.0;
    if (!order->is_recorded) order_restart(order);
    *out = order;
    return TDM_OK;
}

void tdm_order_destroy(tdm_order *order)
{
    if (!order) return;
    free(order->recorded);
    free(order);
}

tdm_status tdm_order_add(tdm_order *order, const tdm_order_entry *entry, tdm_error *err)
{
    size_t count = (size_t)order->state.next;
    if (count == order->room) {
        size_t room = 2 * order->room + 1024;
        tdm_order_entry *more = realloc(order->recorded, room * sizeof(*more));
        if (!more) return tdm_fail_oom(err, "for the order of updates");
        order->recorded = more;
        order->room = room;
    }
    TDM_TRY(tdm_order_follow(&order->state, entry, err));
    order->recorded[count] = *entry;
    return TDM_OK;
}

tdm_order_entry tdm_order_at(tdm_order *order, uint64_t step)
{
    if (order->is_recorded) return order->recorded[step];
    if (step + KEPT_ENTRIES < order->state.next) order_restart(order);
    while (order->state.next <= step) order_advance(order);
    return order->entries[step % KEPT_ENTRIES];
}

bool tdm_order_has_batches_in_order(const tdm_order *order)
{
    return (order->state.rules & BY_UPDATE) != 0;
}

uint64_t tdm_order_round(tdm_order *order, uint64_t step, uint64_t max)
{
    uint64_t count = 0;
    if (max > TDM_ORDER_MAX_WORKERS) max = TDM_ORDER_MAX_WORKERS;
    while (count < max && tdm_order_at(order, step + count).staleness >= count) count++;
    return count > 0 ? count : 1;
}
