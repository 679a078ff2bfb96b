/*
 * replica_run.c: a rank executes its replicas (replicas.h).
 *
 * Without replicas, a rank adds the gradients of its lanes as far up the tree as its lanes reach (run.c). With
 * replicas, it stops at the node of each replica, which it then replaces by the contribution of the replica:
 *
 *   sync.kind local   The replica trains a copy of the model for the steps of the round, with the optimiser of the
 *                     job. Its contribution is the model before the round minus that copy, divided by the number of
 *                     replicas. The sum over all replicas is the gradient of the outer optimiser.
 *   sync.kind server  The contribution is the gradient of a batch, computed from the model that the replica has read
 *                     before. Contributions are not added: each of them is one update (update_order.c).
 *   compress          The contribution is encoded, with what earlier steps left over (compress.h).
 *
 * The contributions are added by the upper part of the same tree. So a round is executed, committed and recovered as
 * any step: if a rank dies, the round is repeated, or completed from the sums in shared memory.
 *
 * Invariants: a contribution, and the state of the replica after it, are functions of the model, of the state before,
 * and of the samples of the replica. The state is written to the version that is not current, so a step that fails or
 * is not finite changes nothing.
 */
#include "base/base.h"
#include "nn/nn.h"
#include "parallel/compress.h"
#include "parallel/internal.h"
#include "parallel/replicas.h"
#include "tensor/kernel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct tdm__replica_run {
    tdm__replicas *replicas;
    int64_t lanes; /* of a replica */
    bool is_local;
    bool is_ordered;
    uint64_t changed; /* ordered: the replicas that this step changes, bit r */
    tdm_optimiser *inner;
    tdm_pages pages;
    float *model; /* the copy that a replica trains; NULL: none */
    float *states[TDM_OPTIM_MAX_STATES];
    int state_arrays
        [TDM_OPTIM_MAX_STATES]; /* the array of each state; -1: the optimiser does not use it */
    double *losses;             /* by lane, over the inner steps */
    tdm__compress *compress;    /* NULL: contributions are not compressed */
};

/* ---- creation -------------------------------------------------------------------------------- */

/* Memory for the copy of the model, and for the states of its optimiser, if it has one. */
static tdm_status replica_run_make_model(tdm_team *team, tdm__replica_run *run, tdm_error *err)
{
    size_t stride = run->replicas->stride;
    int arrays = 0;
    run->inner = team->options.inner;
    for (int k = 0; k < TDM_OPTIM_MAX_STATES; k++)
        run->state_arrays[k] = run->inner && tdm_optimiser_uses_state(run->inner, k) ? arrays++
                                                                                     : -1;
    run->losses = calloc((size_t)team->options.lane_count, sizeof(*run->losses));
    if (!run->losses) return tdm_fail_oom(err, "for the replicas");
    TDM_TRY(tdm_pages_map((size_t)(1 + arrays) * stride * sizeof(float), false, &run->pages, err));

    run->model = run->pages.data;
    tdm_optim_blocks blocks = {.params = run->model};
    for (int k = 0; k < TDM_OPTIM_MAX_STATES; k++) {
        if (run->state_arrays[k] < 0) continue;
        run->states[k] = run->model + (size_t)(1 + run->state_arrays[k]) * stride;
        blocks.states[k] = run->states[k];
    }
    if (run->inner) tdm_optimiser_bind(run->inner, &blocks);
    for (int i = 0; i < team->max_run * team->graph_count; i++)
        tdm_plan_bind(team->plans[i], TDM_SPACE_PARAMS, run->model);
    return TDM_OK;
}

tdm_status tdm__replica_run_create(tdm_team *team, tdm_error *err)
{
    tdm__replicas *replicas = tdm__params_replicas(team->options.store);
    if (!replicas) return TDM_OK;
    if (replicas->count > team->options.lane_count)
        return tdm_fail(err, TDM_ERR_JOB_INVALID,
                        "sync.replicas is %lld, but the job has %lld lanes, and each replica needs "
                        "one; reduce it, or set parallel.lanes higher",
                        (long long)replicas->count, (long long)team->options.lane_count);
    tdm__replica_run *run = calloc(1, sizeof(*run));
    if (!run) return tdm_fail_oom(err, "for the replicas");
    team->replicas = run;
    run->replicas = replicas;
    run->lanes = team->options.lane_count / replicas->count;
    run->is_local = team->options.inner != NULL;
    run->is_ordered = replicas->is_ordered;
    int arrays = run->is_ordered;
    for (int k = 0; k < TDM_OPTIM_MAX_STATES && run->is_local; k++)
        arrays += tdm_optimiser_uses_state(team->options.inner, k);
    if (run->is_local || run->is_ordered) TDM_TRY(replica_run_make_model(team, run, err));
    return tdm__compress_create(team, replicas, arrays, &run->compress, err);
}

void tdm__replica_run_destroy(tdm_team *team)
{
    tdm__replica_run *run = team->replicas;
    if (!run) return;
    tdm__compress_destroy(run->compress);
    tdm_pages_unmap(&run->pages);
    free(run->losses);
    free(run);
    team->replicas = NULL;
}

void tdm__replicas_use_model(tdm_team *team)
{
    const tdm__replica_run *run = team->replicas;
    if (!run || !run->model) return;
    memcpy(run->model, tdm_params_block(team->options.store, TDM_BLOCK_PARAMS),
           team->layout->elements * sizeof(float));
}

void tdm__replicas_commit(tdm_team *team)
{
    tdm__replica_run *run = team->replicas;
    if (!run) return;
    for (int64_t r = 0; r < run->replicas->count; r++) {
        if (run->is_ordered && !(run->changed >> r & 1)) continue;
        bool mine = tdm__replica_home(team->options.store, r) == team->place;
        if (run->is_ordered && mine)
            tdm__replica_write_end(run->replicas, r,
                                   team->in.step + (uint64_t)team->in.inner_count - 1);
        tdm__replica_flip(run->replicas, r);
    }
}

/* ---- the lanes of a replica -------------------------------------------------------------------- */

/* Executes the lanes of a replica; *out is the sum of their gradients, NULL if none has rows. */
static tdm_status replica_run_lanes(tdm_team *team, int64_t replica, float **out, tdm_error *err)
{
    const tdm__replica_run *run = team->replicas;
    int64_t first = replica * run->lanes, node = run->replicas->count + replica;
    for (int64_t l = first; l < first + run->lanes; l++)
        team->absent[l] = tdm__team_rows(team, l).count == 0;

    team->lowest_node = run->replicas->count;
    for (int64_t l = first; l < first + run->lanes; l++) {
        if (team->absent[l]) continue;
        tdm__team_set_up(team, 0, l, tdm__team_take_buffer(team, false));
        tdm__lane_plan_adds(team, &team->run[0], false);
        TDM_TRY(tdm__lanes_pass(team, 1, false, err));
    }
    team->lowest_node = 1;
    *out = team->tree.held[node];
    return TDM_OK;
}

/* Whether all numbers are finite. */
static bool sum_is_finite(const float *sum, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!isfinite(sum[i])) return false;
    return true;
}

/* ---- local steps -------------------------------------------------------------------------------- */

typedef struct inner_update {
    tdm_team *team;
    const tdm__replica_run *run;
    float *sum;
    float scale; /* from the mean over the batch to the mean over the rows of a replica */
    double grad_norm;
    bool scales; /* in this pass */
} inner_update;

static float *inner_piece(const inner_update *u, const tdm_optim_piece *piece)
{
    float *grad = u->sum + piece->begin;
    for (size_t i = 0; i < piece->count && u->scales; i++) grad[i] *= u->scale;
    return grad;
}

static void inner_measure_range(const void *args, int64_t begin, int64_t end)
{
    const inner_update *u = args;
    for (int64_t i = begin; i < end; i++)
        tdm_optimiser_measure(u->run->inner, (size_t)i,
                              inner_piece(u, tdm_optimiser_piece_at(u->run->inner, (size_t)i)));
}

static void inner_update_range(const void *args, int64_t begin, int64_t end)
{
    const inner_update *u = args;
    for (int64_t i = begin; i < end; i++)
        tdm_optimiser_update(u->run->inner, (size_t)i,
                             inner_piece(u, tdm_optimiser_piece_at(u->run->inner, (size_t)i)),
                             u->grad_norm);
}

static void inner_apply_range(const void *args, int64_t begin, int64_t end)
{
    const inner_update *u = args;
    double sums[TDM_OPTIM_SUMS];
    size_t summed = SIZE_MAX; /* the parameter of `sums` */
    for (int64_t i = begin; i < end; i++) {
        const tdm_optim_piece *piece = tdm_optimiser_piece_at(u->run->inner, (size_t)i);
        if (piece->param_index != summed)
            tdm_optimiser_sums(u->run->inner, piece->param_index, sums);
        summed = piece->param_index;
        tdm_optimiser_apply(u->run->inner, (size_t)i, u->sum + piece->begin, sums);
    }
}

static void inner_follow_statistic(void *user, const tdm_param_info *p, size_t index, size_t begin,
                                   size_t count)
{
    const inner_update *u = user;
    float momentum = (float)p->momentum, *value = u->run->model + begin;
    (void)index;
    for (size_t i = 0; i < count; i++)
        value[i] = (1.0f - momentum) * value[i] + momentum * (u->sum[begin + i] * u->scale);
}

/* Updates the copy of the model with the sum of the lanes of this replica. */
static void replica_update_model(tdm_team *team, float *sum, const tdm_inner_step *step)
{
    const tdm__replica_run *run = team->replicas;
    tdm_optimiser *inner = run->inner;
    int64_t pieces = (int64_t)tdm_optimiser_piece_count(inner);
    inner_update u = {
        .team = team, .run = run, .sum = sum, .scale = (float)run->replicas->count, .scales = true};
    tdm_optimiser_begin(inner, step->step, step->lr);
    if (tdm_optimiser_must_measure(inner)) {
        memset(tdm_optimiser_squares(inner), 0, (size_t)pieces * sizeof(double));
        tdm_kernel_spread(pieces, TDM__CELL, inner_measure_range, &u);
        u.grad_norm = tdm_optimiser_grad_norm(inner);
        u.scales = false;
    }
    if (tdm_optimiser_must_apply(inner))
        memset(tdm_optimiser_piece_sums(inner), 0,
               (size_t)pieces * TDM_OPTIM_SUMS * sizeof(double));
    tdm_kernel_spread(pieces, TDM__CELL, inner_update_range, &u);
    if (tdm_optimiser_must_apply(inner))
        tdm_kernel_spread(pieces, TDM__CELL, inner_apply_range, &u);
    tdm__statistic_visit(team->graphs[0].graph, (tdm__cells){0, team->layout->trained_cells},
                         inner_follow_statistic, &u);
}

/* Copies the model, which may still be on its way from other nodes, and the replica's optimiser state. */
static tdm_status replica_load(tdm_team *team, int64_t replica, tdm_error *err)
{
    const tdm__replica_run *run = team->replicas;
    int version = run->replicas->current[replica];
    TDM_TRY(tdm__params_await_all(team->options.store, err));
    tdm__replicas_use_model(team);
    for (int k = 0; k < TDM_OPTIM_MAX_STATES; k++)
        if (run->state_arrays[k] >= 0)
            memcpy(run->states[k],
                   tdm__replica_array(run->replicas, replica, version, run->state_arrays[k]),
                   run->replicas->elements * sizeof(float));
    return TDM_OK;
}

/* Sums the losses of a replica's lanes over the inner steps, and stores the mean after the last one. */
static void replica_count_losses(tdm_team *team, int64_t replica, int64_t index)
{
    const tdm__replica_run *run = team->replicas;
    int64_t count = team->in.inner_count;
    for (int64_t l = replica * run->lanes; l < (replica + 1) * run->lanes; l++) {
        int64_t node = team->tree.lane_count + l;
        if (index == 0) run->losses[l] = 0;
        if (!team->absent[l]) run->losses[l] += team->losses[node];
        if (index + 1 < count) continue;
        team->losses[node] = run->losses[l] / (double)count;
        team->has_loss[node] = true;
    }
}

/* Trains the replica for the steps of the round. *finite: no gradient had a non-finite number. */
static tdm_status replica_train(tdm_team *team, int64_t replica, bool *finite, tdm_error *err)
{
    const tdm__replica_run *run = team->replicas;
    const tdm_step_input in = team->in;
    *finite = true;
    TDM_TRY(replica_load(team, replica, err));
    for (int64_t i = 0; i < in.inner_count; i++) {
        tdm_inner_step step = {.step = in.step};
        float *sum = NULL;
        in.inner(in.user, i, &step);
        team->in.batch = step.batch;
        team->key_step = step.step;
        TDM_TRY(replica_run_lanes(team, replica, &sum, err));
        replica_count_losses(team, replica, i);
        if (!sum) continue; /* the batch has fewer rows than there are lanes */
        double begin = tdm_clock_s();
        *finite = *finite && (tdm__add_range(sum, NULL, team->grad_extent) ||
                              sum_is_finite(sum, team->grad_extent));
        if (*finite) replica_update_model(team, sum, &step);
        team->tree.held[run->replicas->count + replica] = NULL;
        team->free_grads[team->free_count++] = sum;
        team->lane_seconds += tdm_clock_s() - begin;
    }
    team->in.batch = in.batch;
    return TDM_OK;
}

typedef struct difference {
    const tdm_team *team;
    const float *before;
    float *out;
    float scale;
} difference;

/* For trained elements the change of the replica, for statistics its share of the mean. */
static void difference_range(const void *args, int64_t begin, int64_t end)
{
    const difference *d = args;
    const float *model = d->team->replicas->model;
    int64_t trained = (int64_t)d->team->trained_extent;
    int64_t middle = trained < begin ? begin : trained > end ? end : trained;
    for (int64_t i = begin; i < middle; i++) d->out[i] = (d->before[i] - model[i]) * d->scale;
    for (int64_t i = middle; i < end; i++) d->out[i] = model[i] * d->scale;
}

/* The contribution of a replica after its steps. */
static float *replica_difference(tdm_team *team, bool finite)
{
    float *out = tdm__team_take_buffer(team, false);
    difference d = {.team = team,
                    .before = tdm_params_block(team->options.store, TDM_BLOCK_PARAMS),
                    .out = out,
                    .scale = 1.0f / (float)team->replicas->replicas->count};
    tdm_kernel_spread((int64_t)team->grad_extent, 1, difference_range, &d);
    if (!finite) out[0] = NAN; /* the round is not finite */
    return out;
}

/* ---- a replica ---------------------------------------------------------------------------------- */

/* Whether the contribution can be encoded. */
static bool replica_is_finite(const tdm_team *team, const float *sum)
{
    return tdm__add_range((float *)(uintptr_t)sum, NULL, team->grad_extent) ||
           sum_is_finite(sum, team->grad_extent);
}

/* Writes the state of the replica after the step, and compresses its contribution. One that is not finite stays as it
 * is, so that the step changes nothing. */
static tdm_status replica_store(tdm_team *team, int64_t replica, float *sum, tdm_error *err)
{
    const tdm__replica_run *run = team->replicas;
    int version = 1 - run->replicas->current[replica];
    bool compresses = run->compress && !team->visit;
    bool encodes = compresses && (!sum || replica_is_finite(team, sum));
    tdm_status status = TDM_OK;
    if (compresses && !encodes) tdm__compress_fail(run->compress, replica);
    if (run->replicas->array_count == 0 && !encodes) return TDM_OK;
    TDM_TRY(tdm__undo_write_begin(team->undo_log, err));
    tdm__replica_write_begin(run->replicas, replica);
    for (int k = 0; k < TDM_OPTIM_MAX_STATES && run->is_local; k++)
        if (run->state_arrays[k] >= 0)
            memcpy(tdm__replica_array(run->replicas, replica, version, run->state_arrays[k]),
                   run->states[k], run->replicas->elements * sizeof(float));
    if (encodes) status = tdm__compress_encode(run->compress, replica, sum, err);
    tdm__team_point(team, "replica", (uint64_t)replica);
    if (status == TDM_OK) tdm__replica_write_end(run->replicas, replica, team->in.step);
    tdm__undo_write_end(team->undo_log);
    if (status != TDM_ERR_DIVERGED) return status;
    tdm__compress_fail(run->compress, replica); /* a residual became infinite */
    sum[0] = NAN;
    return TDM_OK;
}

/* Adds the contribution of a replica to those before it, as far up the tree as the replicas of this rank reach. */
static void replica_add(tdm_team *team, int64_t replica, float *sum)
{
    tdm__lane_run *r = &team->run[0];
    int64_t node = team->replicas->replicas->count + replica;
    if (sum && !tdm__add_range(sum, NULL, team->grad_extent))
        atomic_store(&team->overflow_risk, true);
    team->tree.held[node] = sum;
    r->add_count = 0;
    r->is_final = false;
    tdm__node_complete(team, r, node);
    tdm__lane_add_all(team, r);
    tdm__lane_free_buffers(team, r);
}

static tdm_status replica_execute(tdm_team *team, int64_t replica, tdm_error *err)
{
    float *sum = NULL;
    if (team->replicas->is_local) {
        bool finite;
        TDM_TRY(replica_train(team, replica, &finite, err));
        sum = replica_difference(team, finite);
    } else {
        TDM_TRY(replica_run_lanes(team, replica, &sum, err));
    }
    TDM_TRY(replica_store(team, replica, sum, err));
    replica_add(team, replica, sum);
    return TDM_OK;
}

/* ---- updates in order ---------------------------------------------------------------------------- */

/* Copies the arrays that this step does not write to the version that will be current. The model is copied after the
 * update that the replica reads. */
static tdm_status replica_carry_over(tdm_team *team, int64_t replica, bool reads, bool contributes,
                                     tdm_error *err)
{
    const tdm__replicas *replicas = team->replicas->replicas;
    int version = replicas->current[replica];
    TDM_TRY(tdm__undo_write_begin(team->undo_log, err));
    tdm__replica_write_begin(replicas, replica);
    for (int k = 0; k < replicas->array_count; k++)
        if (k == 0 ? !reads : !contributes)
            memcpy(tdm__replica_array(replicas, replica, 1 - version, k),
                   tdm__replica_array(replicas, replica, version, k),
                   replicas->elements * sizeof(float));
    tdm__undo_write_end(team->undo_log);
    return TDM_OK;
}

/* Loads the model that a replica has read. Buffers never change. */
static void replica_load_read(tdm_team *team, int64_t replica)
{
    const tdm__replica_run *run = team->replicas;
    const float *model = tdm_params_block(team->options.store, TDM_BLOCK_PARAMS);
    size_t trained = team->trained_extent;
    memcpy(run->model,
           tdm__replica_array(run->replicas, replica, run->replicas->current[replica], 0),
           trained * sizeof(float));
    memcpy(run->model + trained, model + trained,
           (team->layout->elements - trained) * sizeof(float));
}

/* Computes the gradient of update `index`, by the replica of this rank that makes it. */
static tdm_status replica_contribute(tdm_team *team, int64_t index, tdm_error *err)
{
    const tdm_step_input in = team->in;
    int64_t replica = in.order[index].worker;
    tdm_inner_step step = {.step = in.step};
    float *sum = NULL;
    in.inner(in.user, index, &step);
    team->in.batch = step.batch;
    team->key_step = step.step;
    replica_load_read(team, replica);
    TDM_TRY(replica_run_lanes(team, replica, &sum, err));
    team->in.batch = in.batch;
    if (!sum)
        return tdm_fail(err, TDM_ERR_INTERNAL, "update %llu has no samples",
                        (unsigned long long)step.step + 1);
    if (team->replicas->compress && replica_is_finite(team, sum)) {
        TDM_TRY(tdm__undo_write_begin(team->undo_log, err));
        tdm_status status = tdm__compress_encode(team->replicas->compress, replica, sum, err);
        tdm__undo_write_end(team->undo_log);
        if (status == TDM_ERR_DIVERGED) sum[0] = NAN;
        if (status != TDM_OK && status != TDM_ERR_DIVERGED) return status;
    }
    tdm__team_point(team, "replica", (uint64_t)replica);
    if (!tdm__add_range(sum, NULL, team->grad_extent)) atomic_store(&team->overflow_risk, true);
    return TDM_OK;
}

static tdm_status replicas_execute_ordered(tdm_team *team, tdm_error *err)
{
    tdm__replica_run *run = team->replicas;
    const tdm_order_entry *order = team->in.order;
    int64_t first = run->replicas->first[team->place], end = run->replicas->first[team->place + 1];
    uint64_t readers = 0, workers = 0;
    run->changed = tdm__order_changed(order, team->in.inner_count);
    for (int64_t i = 0; i < team->in.inner_count; i++) {
        readers |= order[i].readers;
        workers |= UINT64_C(1) << order[i].worker;
    }
    for (int64_t r = first; r < end; r++)
        if (run->changed >> r & 1)
            TDM_TRY(replica_carry_over(team, r, readers >> r & 1, workers >> r & 1, err));
    for (int64_t i = 0; i < team->in.inner_count; i++)
        if (order[i].worker >= first && order[i].worker < end)
            TDM_TRY(replica_contribute(team, i, err));
    return TDM_OK;
}

tdm_status tdm__replicas_execute(tdm_team *team, int64_t first, int64_t end, tdm_error *err)
{
    const tdm__replica_run *run = team->replicas;
    if (run->compress) tdm__compress_begin(run->compress);
    if (run->is_ordered) return replicas_execute_ordered(team, err);
    for (int64_t r = first / run->lanes; r < end / run->lanes; r++)
        TDM_TRY(replica_execute(team, r, err));
    if (run->is_local) /* every replica contributes, even if a batch had no rows for it */
        memset(team->absent, 0, (size_t)team->options.lane_count * sizeof(*team->absent));
    if (!team->buckets) return TDM_OK;
    tdm__buckets_begin(team);
    if (!run->compress) return TDM_OK;
    tdm__buckets_skip(team);
    return tdm__compress_exchange(run->compress, err);
}
