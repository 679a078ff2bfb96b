/*
 * live.c: gradients that a second thread of each rank computes, for updates in the order in which they are complete
 * (sync.kind server with sync.order: live).
 *
 * The thread computes the gradients of the replicas of its rank, one after the other. Meanwhile the rank itself takes
 * part in short rounds with the other ranks: they exchange which gradients are complete, and apply these. So a rank that
 * computes slowly delays no other one.
 *
 * A task is the next gradient of a replica:
 *
 *      +------+  live_begin   +--------+   thread    +---------+   thread   +----------+
 *      | IDLE |-------------->| QUEUED |------------>| RUNNING |----------->| COMPLETE |
 *      +------+               +--------+             +---------+            +----------+
 *         ^                          tdm__live_finish                            |
 *         +----------------------------------------------------------------------+
 *
 * Invariants: what is decided in a round depends on what all ranks have reported, so it is the same on all ranks. The
 * thread uses its own copy of the team: its tree, its plans, and the first gradient buffers of the rank. A replica whose
 * task is not IDLE or COMPLETE keeps its versions, because no update changes the model that it has read. A gradient stays
 * in its buffer until the updates that use it are complete. The thread makes no collective call and writes nothing that
 * a recovery reads: after a failure the gradients that were not applied are computed again.
 */
#include "base/base.h"
#include "base/timing.h"
#include "comm/comm.h"
#include "job/job.h"
#include "os/thread.h"
#include "parallel/replica_run.h"
#include "tensor/kernel.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef enum live_phase { LIVE_IDLE, LIVE_QUEUED, LIVE_RUNNING, LIVE_COMPLETE } live_phase;

typedef struct live_task {
    live_phase phase;
    uint64_t batch;
    float *sum; /* the gradient */
    double loss;
    bool in_safe_range;
} live_task;

/* Where batches come from: see tdm_live_round. */
typedef struct live_source {
    void (*batch)(void *user, uint64_t batch, tdm_inner_step *out);
    void *user;
} live_source;

struct tdm__live {
    tdm_team *team;
    int64_t first, end; /* the replicas of this rank */
    tdm_team worker;    /* of the thread */
    tdm__replica_run run;
    pthread_t thread;
    bool has_thread;
    atomic_bool ends;
    pthread_mutex_t lock; /* protects what follows */
    pthread_cond_t changed;
    live_task tasks[TDM_ORDER_MAX_WORKERS];
    live_source source;
    float *released[TDM_ORDER_MAX_WORKERS]; /* buffers for the thread */
    int released_count;
    double task_seconds; /* of the last task */
    double lane_seconds; /* since the last round, like the next two */
    uint64_t lanes_done, rows_done;
    tdm_error error; /* of the thread */
};

/* ---- the thread ------------------------------------------------------------------------------- */

/* The task that was queued first. */
static int64_t live_next_task(const tdm__live *live)
{
    int64_t next = -1;
    for (int64_t r = live->first; r < live->end; r++)
        if (live->tasks[r].phase == LIVE_QUEUED &&
            (next < 0 || live->tasks[r].batch < live->tasks[next].batch))
            next = r;
    return next;
}

static tdm_status task_run(tdm__live *live, const live_source *source, int64_t replica,
                           live_task *task, tdm_error *err)
{
    tdm_team *worker = &live->worker;
    size_t nodes = 2 * (size_t)worker->options.lane_count;
    tdm_inner_step step = {.step = task->batch};
    source->batch(source->user, task->batch, &step);
    worker->in = (tdm_step_input){.step = task->batch, .batch = step.batch};
    worker->key_step = task->batch;
    memset(worker->tree.held, 0, nodes * sizeof(*worker->tree.held));
    memset(worker->has_loss, 0, nodes * sizeof(*worker->has_loss));
    atomic_store(&worker->overflow_risk, false);
    tdm__replica_load_read(worker, replica);
    TDM_TRY(tdm__replica_run_lanes(worker, replica, &task->sum, err));
    if (!task->sum || !tdm__tree_loss(worker, live->run.replicas->count + replica, &task->loss))
        return tdm_fail(err, TDM_ERR_INTERNAL, "batch %llu has no samples",
                        (unsigned long long)task->batch + 1);
    tdm__team_point(worker, "replica", (uint64_t)replica);
    task->in_safe_range = tdm__add_range(task->sum, NULL, worker->grad_extent) &&
                          !atomic_load(&worker->overflow_risk);
    return TDM_OK;
}

static void *live_main(void *data)
{
    tdm__live *live = data;
    tdm_team *worker = &live->worker;
    tdm_kernel_mode before = tdm_kernel_enter(worker->thread_count);
    pthread_mutex_lock(&live->lock);
    while (!atomic_load(&live->ends)) {
        int64_t replica = live_next_task(live);
        while (live->released_count > 0)
            worker->free_grads[worker->free_count++] = live->released[--live->released_count];
        if (replica < 0 || live->error.status != TDM_OK) {
            pthread_cond_wait(&live->changed, &live->lock);
            continue;
        }
        live_task task = live->tasks[replica];
        live_source source = live->source;
        tdm_error why = {0};
        live->tasks[replica].phase = LIVE_RUNNING;
        pthread_mutex_unlock(&live->lock);

        double begin = tdm_clock_s();
        worker->lane_seconds = 0;
        worker->lanes_done = worker->rows_done = 0;
        tdm_status status = task_run(live, &source, replica, &task, &why);

        pthread_mutex_lock(&live->lock);
        if (status != TDM_OK && !atomic_load(&live->ends)) live->error = why;
        task.phase = LIVE_COMPLETE;
        if (status == TDM_OK) live->tasks[replica] = task;
        live->task_seconds = tdm_clock_s() - begin;
        live->lane_seconds += worker->lane_seconds;
        live->lanes_done += worker->lanes_done;
        live->rows_done += worker->rows_done;
        pthread_cond_broadcast(&live->changed);
    }
    pthread_mutex_unlock(&live->lock);
    tdm_kernel_leave(&before);
    return NULL;
}

/* ---- creation --------------------------------------------------------------------------------- */

int tdm__live_buffers(const tdm_team *team)
{
    int64_t replicas = (team->first[team->place + 1] - team->first[team->place]) /
                       team->slice_count;
    return (int)replicas +
           tdm_lane_buffers(team->options.lane_count, (tdm_slice){0, team->slice_count});
}

/* The copy of the team for the thread: with its own tree, and nothing that communicates. */
static tdm_status live_copy_team(tdm__live *live, tdm_error *err)
{
    const tdm_team *team = live->team;
    tdm_team *worker = &live->worker;
    size_t lanes = (size_t)team->options.lane_count;
    *worker = *team;
    worker->group = NULL;
    worker->buckets = NULL;
    worker->cancel = &live->ends;
    worker->run = calloc(1, sizeof(*worker->run));
    worker->absent = calloc(lanes, sizeof(*worker->absent));
    worker->tree.held = calloc(2 * lanes, sizeof(*worker->tree.held));
    worker->losses = calloc(2 * lanes, sizeof(*worker->losses));
    worker->has_loss = calloc(2 * lanes, sizeof(*worker->has_loss));
    worker->free_grads = calloc((size_t)team->buffer_count + 1, sizeof(*worker->free_grads));
    if (!worker->run || !worker->absent || !worker->tree.held || !worker->losses ||
        !worker->has_loss || !worker->free_grads)
        return tdm_fail_oom(err, "for the team");
    worker->free_count = 0;
    for (int i = 0; i < tdm__live_buffers(team); i++)
        worker->free_grads[worker->free_count++] = team->grads + (size_t)i * team->block_extent;
    live->run = *team->replicas;
    worker->replicas = &live->run;
    return TDM_OK;
}

tdm_status tdm__live_create(tdm_team *team, tdm_error *err)
{
    if (!tdm_job_is_live(team->job)) return TDM_OK;
    tdm__live *live = calloc(1, sizeof(*live));
    if (!live) return tdm_fail_oom(err, "for the team");
    team->live = live;
    live->team = team;
    live->first = team->first[team->place] / team->slice_count;
    live->end = team->first[team->place + 1] / team->slice_count;
    atomic_init(&live->ends, false);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&live->lock, NULL);
    pthread_cond_init(&live->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    TDM_TRY(live_copy_team(live, err));
    TDM_TRY(tdm__thread_start(&live->thread, live_main, live, err));
    live->has_thread = true;
    return TDM_OK;
}

void tdm__live_destroy(tdm_team *team)
{
    tdm__live *live = team->live;
    if (!live) return;
    if (live->has_thread) {
        pthread_mutex_lock(&live->lock);
        atomic_store(&live->ends, true);
        pthread_cond_broadcast(&live->changed);
        pthread_mutex_unlock(&live->lock);
        pthread_join(live->thread, NULL);
    }
    free(live->worker.run);
    free(live->worker.absent);
    free(live->worker.tree.held);
    free(live->worker.losses);
    free(live->worker.has_loss);
    free(live->worker.free_grads);
    pthread_cond_destroy(&live->changed);
    pthread_mutex_destroy(&live->lock);
    free(live);
    team->live = NULL;
}

/* ---- a round ----------------------------------------------------------------------------------- */

/* Queues the gradients that this rank's replicas can begin. */
static void live_begin(tdm__live *live, const tdm_live_round *round)
{
    pthread_mutex_lock(&live->lock);
    live->source = (live_source){round->batch, round->user};
    for (int64_t r = live->first; r < live->end; r++) {
        if (live->tasks[r].phase != LIVE_IDLE || round->state->workers[r].waits) continue;
        live->tasks[r] = (live_task){.phase = LIVE_QUEUED, .batch = round->state->workers[r].batch};
    }
    pthread_cond_broadcast(&live->changed);
    pthread_mutex_unlock(&live->lock);
}

/* A fraction of the time of a gradient: how long a complete one waits for ranks that have none. */
static double live_patience(const tdm__live *live)
{
    double wait = live->task_seconds / 16;
    if (wait < TDM__TIMING_PARALLEL_LIVE_MIN_S) return TDM__TIMING_PARALLEL_LIVE_MIN_S;
    return wait > TDM__TIMING_PARALLEL_LIVE_MAX_S ? TDM__TIMING_PARALLEL_LIVE_MAX_S : wait;
}

/* Waits for a complete gradient of this rank; with other ranks, only for a short time. */
static tdm_status live_await(tdm__live *live, uint64_t *complete, tdm_error *err)
{
    bool late = false;
    tdm_status status = TDM_OK;
    *complete = 0;
    pthread_mutex_lock(&live->lock);
    double until = tdm_clock_s() + live_patience(live);
    struct timespec end = {.tv_sec = (time_t)until,
                           .tv_nsec = (long)((until - floor(until)) * 1e9)};
    for (;;) {
        for (int64_t r = live->first; r < live->end; r++)
            if (live->tasks[r].phase == LIVE_COMPLETE) *complete |= UINT64_C(1) << r;
        if (*complete || late || live->error.status != TDM_OK) break;
        if (live->team->group)
            late = pthread_cond_timedwait(&live->changed, &live->lock, &end) != 0;
        else
            pthread_cond_wait(&live->changed, &live->lock);
    }
    if (live->error.status != TDM_OK)
        status = tdm_fail(err, live->error.status, "%s", live->error.message);
    pthread_mutex_unlock(&live->lock);
    return status;
}

/* The replicas of all ranks whose gradients are complete; at least one. */
static tdm_status live_collect(tdm__live *live, uint64_t *complete, tdm_error *err)
{
    tdm_team *team = live->team;
    double begin = tdm_clock_s();
    do {
        TDM_TRY(live_await(live, complete, err));
        int64_t all = (int64_t)*complete; /* each bit is that of one rank, so a sum is a union */
        if (team->group)
            TDM_TRY(tdm_group_all_reduce(team->group, NULL, &all, 1, TDM_DTYPE_I64, TDM_REDUCE_SUM,
                                         err));
        *complete = (uint64_t)all;
    } while (*complete == 0);
    team->wait_seconds += tdm_clock_s() - begin;
    return TDM_OK;
}

/* The updates of the round, in the order of the replicas. Then all workers read the model that may. */
static tdm_status live_decide(tdm_live_round *round, uint64_t complete, tdm_error *err)
{
    tdm_order_state after = *round->state;
    round->count = 0;
    for (int64_t r = 0; r < after.worker_count && round->count < round->max; r++) {
        if (!(complete >> r & 1)) continue;
        tdm_order_entry *entry = &round->entries[round->count++];
        *entry = (tdm_order_entry){.worker = (uint32_t)r,
                                   .staleness = (uint32_t)(after.next - after.workers[r].read_at),
                                   .batch = after.workers[r].batch};
        after.next++;
        after.workers[r].count++;
        after.workers[r].waits = 1;
    }
    for (int64_t r = 0; r < after.worker_count; r++)
        if (tdm_order_may_read(&after, r))
            round->entries[round->count - 1].readers |= UINT64_C(1) << r;
    after = *round->state;
    for (uint64_t i = 0; i < round->count; i++)
        TDM_TRY(tdm_order_follow(&after, &round->entries[i], err));
    return TDM_OK;
}

/* Makes the gradients of this rank parts of the step. */
static void live_contribute(tdm__live *live, const tdm_live_round *round)
{
    tdm_team *team = live->team;
    pthread_mutex_lock(&live->lock);
    for (uint64_t i = 0; i < round->count; i++) {
        int64_t r = round->entries[i].worker, node = live->run.replicas->count + r;
        const live_task *task = &live->tasks[r];
        if (r < live->first || r >= live->end) continue;
        team->tree.held[node] = task->sum;
        team->losses[node] = task->loss;
        team->has_loss[node] = true;
        if (!task->in_safe_range) atomic_store(&team->overflow_risk, true);
    }
    team->lane_seconds = live->lane_seconds;
    team->lanes_done = live->lanes_done;
    team->rows_done = live->rows_done;
    live->lane_seconds = 0;
    live->lanes_done = live->rows_done = 0;
    pthread_mutex_unlock(&live->lock);
}

tdm_status tdm__live_round(tdm_team *team, tdm_error *err)
{
    tdm_live_round *round = team->in.live;
    uint64_t complete = 0;
    live_begin(team->live, round);
    TDM_TRY(live_collect(team->live, &complete, err));
    TDM_TRY(live_decide(round, complete, err));
    team->in.order = round->entries;
    team->in.inner_count = (int64_t)round->count;
    live_contribute(team->live, round);
    return TDM_OK;
}

void tdm__live_finish(tdm_team *team)
{
    tdm__live *live = team->live;
    if (!live) return;
    pthread_mutex_lock(&live->lock);
    for (int64_t i = 0; i < team->in.inner_count; i++) {
        int64_t r = team->in.order[i].worker;
        if (r < live->first || r >= live->end) continue;
        live->released[live->released_count++] = live->tasks[r].sum;
        live->tasks[r] = (live_task){.phase = LIVE_IDLE};
    }
    pthread_mutex_unlock(&live->lock);
}
