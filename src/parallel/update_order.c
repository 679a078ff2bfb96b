/*
 * update_order.c: several updates of one step, each with the gradient of a single replica (sync.kind server).
 *
 * All gradients of the step are in shared memory. Each rank makes all updates for its own cells, in order. The gradient
 * of an update was computed from an earlier model, which the replica has in its first array. After an update the
 * replicas that read the model then get a copy of it, cell by cell, in the version that is not current.
 *
 * In the undo log each update of a piece is a separate step, and the record of the step lists the updates. So if a
 * rank dies, another one finds for each piece which updates are missing, makes them, and repeats the copies after the
 * last update of a piece (recover.c).
 *
 * Invariant: an update depends on the pieces and gradients only, and the norm of a gradient is that before any
 * compensation. So the bits do not depend on how updates are divided into steps.
 */
#include "base/base.h"
#include "parallel/internal.h"
#include "parallel/replicas.h"
#include "tensor/kernel.h"

#include <math.h>
#include <string.h>

typedef struct order_pass {
    tdm_team *team;
    tdm__replicas *replicas;
    float *grads; /* of the current update */
    uint64_t step;
    double grad_norm;
    const tdm__delay *delay;
    uint64_t readers;
    size_t first; /* the first piece, or cell, of the range */
    atomic_size_t *bad;
} order_pass;

uint64_t tdm__order_changed(const tdm_order_entry *order, int64_t count)
{
    uint64_t changed = 0;
    for (int64_t i = 0; i < count; i++)
        changed |= UINT64_C(1) << order[i].worker | order[i].readers;
    return changed;
}

static float *order_grads(const tdm_team *team, const tdm__replicas *replicas, int64_t update)
{
    return team->tree.held[replicas->count + team->in.order[update].worker];
}

/* Calls `run` for the pieces of this rank. */
static void order_spread_pieces(order_pass *pass, tdm_kernel_range_fn run)
{
    const tdm_team *team = pass->team;
    for (size_t i = 0; i < team->own_count; i++) {
        pass->first = team->own[i].first_piece;
        tdm_kernel_spread((int64_t)(team->own[i].end_piece - pass->first), TDM__CELL, run, pass);
    }
}

/* ---- finite gradients --------------------------------------------------------------------------- */

static void order_check_range(const void *args, int64_t begin, int64_t end)
{
    const order_pass *pass = args;
    for (int64_t i = begin; i < end; i++) {
        const tdm_optim_piece *piece = tdm_optimiser_piece_at(pass->team->options.optimiser,
                                                              pass->first + (size_t)i);
        tdm__nonfinite_find(pass->bad, pass->grads + piece->begin, piece->begin, piece->count,
                            TDM__GRADIENT_BOUND);
    }
}

tdm_status tdm__order_find_bad(tdm_team *team, size_t *out, tdm_error *err)
{
    bool in_safe_range = true;
    *out = SIZE_MAX;
    for (int i = 0; i < team->size; i++)
        in_safe_range = in_safe_range && team->notes[i].in_safe_range;
    if (in_safe_range) return TDM_OK;
    atomic_size_t bad = SIZE_MAX;
    order_pass pass = {
        .team = team, .replicas = tdm__params_replicas(team->options.store), .bad = &bad};
    for (int64_t i = 0; i < team->in.inner_count; i++) {
        pass.grads = order_grads(team, pass.replicas, i);
        if (pass.grads) order_spread_pieces(&pass, order_check_range);
    }
    int64_t first = atomic_load(&bad) == SIZE_MAX ? INT64_MAX : (int64_t)atomic_load(&bad);
    if (team->group)
        TDM_TRY(
            tdm_group_all_reduce(team->group, NULL, &first, 1, TDM_DTYPE_I64, TDM_REDUCE_MIN, err));
    *out = first == INT64_MAX ? SIZE_MAX : (size_t)first;
    return TDM_OK;
}

/* ---- norms -------------------------------------------------------------------------------------- */

static void order_measure_range(const void *args, int64_t begin, int64_t end)
{
    const order_pass *pass = args;
    tdm_optimiser *optimiser = pass->team->options.optimiser;
    for (int64_t i = begin; i < end; i++) {
        const tdm_optim_piece *piece = tdm_optimiser_piece_at(optimiser, pass->first + (size_t)i);
        tdm_optimiser_measure(optimiser, pass->first + (size_t)i, pass->grads + piece->begin);
    }
}

/* The norms of all gradients, before the first update: afterwards ranks do not wait for each other. */
static tdm_status order_measure(order_pass *pass, tdm__begun *begun, tdm_error *err)
{
    tdm_team *team = pass->team;
    tdm_optimiser *optimiser = team->options.optimiser;
    size_t pieces = tdm_optimiser_piece_count(optimiser);
    if (!tdm_optimiser_must_measure(optimiser)) return TDM_OK;
    for (int64_t i = 0; i < team->in.inner_count; i++) {
        double *squares = tdm_optimiser_squares(optimiser);
        memset(squares, 0, pieces * sizeof(*squares));
        pass->grads = order_grads(team, pass->replicas, i);
        if (pass->grads) order_spread_pieces(pass, order_measure_range);
        TDM_TRY(tdm__update_exchange(team, squares, pieces, err));
        begun->updates[i].grad_norm = tdm_optimiser_grad_norm(optimiser);
    }
    return TDM_OK;
}

/* ---- updates ------------------------------------------------------------------------------------ */

static void order_update_range(const void *args, int64_t begin, int64_t end)
{
    const order_pass *pass = args;
    tdm_optimiser *optimiser = pass->team->options.optimiser;
    for (int64_t i = begin; i < end; i++) {
        size_t index = pass->first + (size_t)i;
        const tdm_optim_piece *piece = tdm_optimiser_piece_at(optimiser, index);
        tdm__update_piece(pass->team->undo_log, optimiser, index, pass->step,
                          pass->grads + piece->begin, pass->grad_norm, pass->delay);
    }
}

static void order_follow_statistic(void *user, const tdm_param_info *p, size_t index, size_t begin,
                                   size_t count)
{
    const order_pass *pass = user;
    float *value = tdm_params_block(pass->team->options.store, TDM_BLOCK_PARAMS) + begin;
    tdm__follow(pass->team->undo_log, value, pass->grads + begin, p, index, begin, count,
                pass->step);
}

static void order_copy_range(const void *args, int64_t begin, int64_t end)
{
    const order_pass *pass = args;
    const float *model = tdm_params_block(pass->team->options.store, TDM_BLOCK_PARAMS);
    size_t first = (pass->first + (size_t)begin) * TDM__CELL;
    size_t last = (pass->first + (size_t)end) * TDM__CELL;
    if (last > pass->team->trained_extent) last = pass->team->trained_extent;
    for (int64_t r = 0; r < pass->replicas->count && first < last; r++)
        if (pass->readers >> r & 1)
            memcpy(tdm__replica_array(pass->replicas, r, 1 - pass->replicas->current[r], 0) + first,
                   model + first, (last - first) * sizeof(float));
}

/* Gives the replicas that read the model now their copy of this rank's cells. */
static void order_copy(order_pass *pass)
{
    const tdm_team *team = pass->team;
    if (pass->readers == 0) return;
    for (size_t i = 0; i < team->own_count; i++) {
        pass->first = team->own[i].cells.first;
        tdm_kernel_spread((int64_t)(team->own[i].cells.end - pass->first), TDM__CELL,
                          order_copy_range, pass);
    }
}

static void order_update(order_pass *pass, const tdm__begun *begun, int64_t index)
{
    tdm_team *team = pass->team;
    const tdm__begun_update *update = &begun->updates[index];
    int64_t worker = update->entry.worker;
    tdm__delay delay = {
        (float)begun->compensation,
        tdm__replica_array(pass->replicas, worker, pass->replicas->current[worker], 0)};
    pass->grads = order_grads(team, pass->replicas, index);
    pass->step = begun->first + (uint64_t)index;
    pass->grad_norm = update->grad_norm;
    pass->delay = begun->compensation > 0 ? &delay : NULL;
    pass->readers = update->entry.readers;
    tdm_optimiser_begin(team->options.optimiser, pass->step, update->lr);
    order_spread_pieces(pass, order_update_range);
    for (size_t o = 0; o < team->own_count && team->grad_extent > team->trained_extent; o++)
        tdm__statistic_visit(team->graphs[0].graph, team->own[o].cells, order_follow_statistic,
                             pass);
    order_copy(pass);
    pass->delay = NULL;
}

tdm_status tdm__order_update_run(tdm_team *team, tdm_step_result *result, tdm_error *err)
{
    order_pass pass = {.team = team, .replicas = tdm__params_replicas(team->options.store)};
    int64_t count = team->in.inner_count;
    tdm__begun begun = {.step = team->in.step + (uint64_t)count - 1,
                        .first = team->in.step,
                        .kind = TDM__SUMS_TREE,
                        .batch = team->in.batch,
                        .loss = result->loss,
                        .tally = result->tally,
                        .requests = result->requests,
                        .update_count = (uint32_t)count,
                        .compensation = team->job->sync.compensation};
    for (int64_t i = 0; i < count; i++) {
        tdm_inner_step settings = {.step = team->in.step};
        team->in.inner(team->in.user, i, &settings);
        begun.updates[i] = (tdm__begun_update){.entry = team->in.order[i], .lr = settings.lr};
    }
    TDM_TRY(order_measure(&pass, &begun, err));
    begun.lr = begun.updates[count - 1].lr;
    result->grad_norm = begun.grad_norm = begun.updates[count - 1].grad_norm;

    TDM_TRY(tdm__undo_write_begin(team->undo_log, err));
    tdm__undo_step_begin(team->undo_log,
                         &begun); /* in the write section: no other rank has decided */
    for (int64_t i = 0; i < count; i++) order_update(&pass, &begun, i);
    tdm__undo_write_end(team->undo_log);
    return TDM_OK;
}
