/*
 * order.c: draws the order of asynchronous updates from a logical clock. See parallel.h.
 *
 * A discrete event simulation: each worker that computes has a time at which its gradient is complete; the earliest
 * one makes the next update, of equal ones that with the lowest number. Then it begins its next gradient, unless it is
 * further ahead of the slowest worker than the bound allows: then it waits until that worker has caught up.
 */
#include "base/base.h"
#include "job/job.h"
#include "parallel/parallel.h"

#include <stdlib.h>

enum { KEPT_ENTRIES = 256 }; /* of the past, and a round ahead */

typedef struct order_worker {
    double end;       /* time at which its gradient is complete */
    uint64_t count;   /* of its gradients so far */
    uint64_t read_at; /* number of updates in the model that it read */
    bool waits;
} order_worker;

struct tdm_order {
    uint64_t seed;
    int worker_count;
    int64_t bound; /* -1: none */
    double jitter;
    double mean[TDM_ORDER_MAX_WORKERS]; /* time of a gradient */
    order_worker workers[TDM_ORDER_MAX_WORKERS];
    uint64_t next;                         /* the first update that is not drawn yet */
    tdm_order_entry entries[KEPT_ENTRIES]; /* by update modulo KEPT_ENTRIES */
};

/* ---- the clock ------------------------------------------------------------------------------- */

static double order_draw_time(const tdm_order *order, int worker)
{
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = order->seed,
                                               .stream = TDM_RNG_STREAM_ORDER,
                                               .sub_stream = (uint32_t)worker,
                                               .step = order->workers[worker].count});
    double u = (double)(tdm_rng_u64(&rng) >> 11) * 0x1p-53;
    return order->mean[worker] * (1.0 + order->jitter * (2.0 * u - 1.0));
}

static void order_start_worker(tdm_order *order, int worker, double now)
{
    order_worker *w = &order->workers[worker];
    w->end = now + order_draw_time(order, worker);
    w->read_at = order->next;
    w->waits = false;
}

static void order_restart(tdm_order *order)
{
    order->next = 0;
    for (int i = 0; i < order->worker_count; i++) {
        order->workers[i] = (order_worker){.count = 0};
        order_start_worker(order, i, 0);
    }
}

static uint64_t order_min_count(const tdm_order *order)
{
    uint64_t min = order->workers[0].count;
    for (int i = 1; i < order->worker_count; i++)
        if (order->workers[i].count < min) min = order->workers[i].count;
    return min;
}

static int order_next_worker(const tdm_order *order)
{
    int next = -1;
    for (int i = 0; i < order->worker_count; i++)
        if (!order->workers[i].waits &&
            (next < 0 || order->workers[i].end < order->workers[next].end))
            next = i;
    return next;
}

/* Draws one more update. The slowest worker never waits, so there is one. */
static void order_advance(tdm_order *order)
{
    int worker = order_next_worker(order);
    order_worker *w = &order->workers[worker];
    tdm_order_entry entry = {.worker = (uint32_t)worker,
                             .staleness = (uint32_t)(order->next - w->read_at)};
    double now = w->end;
    uint64_t update = order->next++;
    w->count++;
    w->waits = true;
    uint64_t min = order_min_count(order);
    for (int i = 0; i < order->worker_count; i++) {
        const order_worker *other = &order->workers[i];
        if (!other->waits) continue;
        if (order->bound >= 0 && other->count > min + (uint64_t)order->bound) continue;
        order_start_worker(order, i, now);
        entry.readers |= UINT64_C(1) << i;
    }
    order->entries[update % KEPT_ENTRIES] = entry;
}

/* ---- creation and use ------------------------------------------------------------------------- */

tdm_status tdm_order_create(const tdm_job *job, tdm_order **out, tdm_error *err)
{
    int64_t workers = tdm_replicas_of(job);
    const tdm_job_int_list *speeds = &job->sync.speeds;
    if (workers < 1 || workers > TDM_ORDER_MAX_WORKERS)
        return tdm_fail(err, TDM_ERR_JOB_INVALID, "sync.kind server has 1 to %d replicas, not %lld",
                        TDM_ORDER_MAX_WORKERS, (long long)workers);
    if (speeds->count > 0 && speeds->count != (size_t)workers)
        return tdm_fail(err, TDM_ERR_JOB_INVALID,
                        "sync.speeds has %zu numbers, but the job has %lld replicas; give one for "
                        "each",
                        speeds->count, (long long)workers);
    tdm_order *order = calloc(1, sizeof(*order));
    if (!order) return tdm_fail_oom(err, "for the order of updates");
    order->seed = (uint64_t)job->seed;
    order->worker_count = (int)workers;
    order->bound = job->sync.mode == TDM_JOB_SERVER_STALE ? job->sync.staleness : -1;
    order->jitter = job->sync.jitter;
    for (int i = 0; i < order->worker_count; i++)
        order->mean[i] = speeds->count > 0 ? 1.0 / (double)speeds->values[i] : 1.0;
    order_restart(order);
    *out = order;
    return TDM_OK;
}

void tdm_order_destroy(tdm_order *order)
{
    free(order);
}

tdm_order_entry tdm_order_at(tdm_order *order, uint64_t step)
{
    if (step + KEPT_ENTRIES < order->next) order_restart(order);
    while (order->next <= step) order_advance(order);
    return order->entries[step % KEPT_ENTRIES];
}

uint64_t tdm_order_round(tdm_order *order, uint64_t step, uint64_t max)
{
    uint64_t count = 0;
    if (max > TDM_ORDER_MAX_WORKERS) max = TDM_ORDER_MAX_WORKERS;
    while (count < max && tdm_order_at(order, step + count).staleness >= count) count++;
    return count > 0 ? count : 1;
}
