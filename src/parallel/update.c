/*
 * update.c: the passes of the optimiser over the share of this rank.
 *
 * A rank owns cells of the parameter block, and with them the optimiser pieces in them. The
 * gradient of a piece is its sum over the tree. If all gradients are in shared
 * memory, it is summed here, so that it is still in cache when the optimiser uses it; with messages, it is
 * already in `summed`. If the optimiser needs a sum over all pieces (the norm of the gradient, LAMB's
 * norms), there are two or three passes, and between them ranks exchange the contributions of the pieces. A
 * piece's gradient is then kept in `summed`, or in one of the buffers of the tree, its home.
 *
 * Nothing is changed if a gradient is not finite, or so large that its square is not: optimisers
 * store squares, and an infinity among them would be permanent. As long as all numbers of all ranks
 * are in the safe range (tensor/kernel.h), no sum over the tree can be that large. If some are not, one
 * more pass checks the same sums that the update would use, so the answer is the same for any number
 * of ranks.
 *
 * In a session each change of a piece is recorded in the undo log (undo_log.h), so that other ranks can complete
 * the update of a dead rank.
 *
 * Invariants: sums over pieces are added in the order of the pieces, whichever rank computed them. A rank
 * accesses only its own cells of parameters and state.
 */
#include "base/base.h"
#include "parallel/internal.h"
#include "tensor/kernel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW_CELLS = 256 }; /* read from a file at a time */

/* ---- this rank's share --------------------------------------------------------------------------- */

/* The first piece that begins at or after a cell. */
static size_t piece_at_cell(const tdm_optimiser *optimiser, size_t cell)
{
    size_t low = 0, high = tdm_optimiser_piece_count(optimiser), begin = cell * TDM__CELL;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (tdm_optimiser_piece_at(optimiser, middle)->begin < begin)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Records in shared memory which slot has to update a piece in this epoch. In a write section. */
static void mark_set_owner(const tdm__undo_log *undo_log, tdm__mark *mark)
{
    atomic_store(&mark->slot, (uint32_t)undo_log->slot);
    atomic_store(&mark->epoch, undo_log->epoch);
}

static void mark_set_owner_of_statistic(void *user, const tdm_param_info *p, size_t index,
                                        size_t begin, size_t count)
{
    const tdm__undo_log *undo_log = user;
    (void)p;
    (void)begin;
    (void)count;
    mark_set_owner(undo_log, &undo_log->cells[index]);
}

static void update_add_share(tdm_team *team, tdm__cells range)
{
    const tdm_optimiser *optimiser = team->options.optimiser;
    tdm__cells cells = tdm__layout_share(team->layout, range, team->place);
    if (cells.first == cells.end) return;
    struct tdm__own own = {cells, piece_at_cell(optimiser, cells.first),
                           piece_at_cell(optimiser, cells.end)};
    team->own[team->own_count++] = own;
    for (size_t i = own.first_piece; i < own.end_piece; i++)
        mark_set_owner(team->undo_log, &team->undo_log->marks[i]);
    tdm__statistic_visit(team->graphs[0].graph, cells, mark_set_owner_of_statistic, team->undo_log);
}

tdm_status tdm__update_create(tdm_team *team, tdm_error *err)
{
    const tdm__layout *l = team->layout;
    bool by_bucket = team->buckets && !l->common;
    team->own = calloc(by_bucket ? l->bucket_count + 1 : 1, sizeof(*team->own));
    if (!team->own) return tdm_fail_oom(err, "for the team");
    TDM_TRY(tdm__undo_write_begin(team->undo_log, err));
    if (!by_bucket) update_add_share(team, (tdm__cells){0, l->trained_cells});
    for (size_t b = 0; by_bucket && b < l->bucket_count; b++)
        update_add_share(team, tdm__layout_bucket(l, b));
    tdm__undo_write_end(team->undo_log);
    return TDM_OK;
}

/* ---- the gradient of a piece --------------------------------------------------------------------- */

static float *thread_scratch(const tdm_team *team)
{
    return team->scratch + (size_t)tdm_kernel_thread() * team->scratch_elements;
}

/* A buffer to keep sums in. Any buffer of the tree will do, because the range that is
 * overwritten was read for that very sum, and no other rank reads it. */
static float *update_find_home(const tdm_team *team)
{
    if (team->summed) return team->summed;
    for (int64_t node = 1; node < 2 * team->tree.lane_count; node++)
        if (team->tree.held[node]) return team->tree.held[node];
    return NULL; /* no lane had rows */
}

/* The sum over the tree of `count` elements at `begin`; it may be changed. With `home` it is stored
 * there, otherwise it is valid until the next call. NULL: no lane had rows. */
static float *update_sum_at(const tdm_team *team, size_t begin, size_t count, float *home)
{
    if (team->summed) return team->summed + begin;
    if (team->tree.held[1]) return team->tree.held[1] + begin;
    float *scratch = thread_scratch(team);
    if (!tdm__tree_sum(&team->tree, 1, begin, count, scratch, scratch + TDM__CELL)) return NULL;
    if (!home) return scratch;
    return memcpy(home + begin, scratch, count * sizeof(float));
}

/* ---- pieces ------------------------------------------------------------------------------------- */

void tdm__update_piece(tdm__undo_log *undo_log, tdm_optimiser *optimiser, size_t index,
                       uint64_t step, float *grad, double grad_norm, const tdm__delay *delay)
{
    const tdm_optim_piece *piece = tdm_optimiser_piece_at(optimiser, index);
    tdm__undo_record_begin(undo_log, tdm_kernel_thread(),
                           &(tdm__undo_change){.kind = TDM__UNDO_UPDATE,
                                               .step = step,
                                               .index = index,
                                               .begin = piece->begin,
                                               .count = piece->count,
                                               .grad = grad});
    if (delay) {
        const float *now = undo_log->blocks[TDM_BLOCK_PARAMS] + piece->begin;
        const float *read = delay->read + piece->begin;
        for (size_t i = 0; i < piece->count; i++)
            grad[i] += delay->scale * grad[i] * grad[i] * (now[i] - read[i]);
    }
    tdm_optimiser_update(optimiser, index, grad, grad_norm);
    if (tdm_optimiser_must_apply(optimiser))
        memcpy(undo_log->marks[index].sums,
               tdm_optimiser_piece_sums(optimiser) + index * TDM_OPTIM_SUMS,
               sizeof(undo_log->marks[index].sums));
    tdm__undo_record_commit(undo_log, tdm_kernel_thread(), TDM__UNDO_UPDATE, index, step);
}

void tdm__apply_piece(tdm__undo_log *undo_log, tdm_optimiser *optimiser, size_t index,
                      uint64_t step, float *grad, const double *sums)
{
    const tdm_optim_piece *piece = tdm_optimiser_piece_at(optimiser, index);
    tdm__undo_record_begin(undo_log, tdm_kernel_thread(),
                           &(tdm__undo_change){.kind = TDM__UNDO_APPLY,
                                               .step = step,
                                               .index = index,
                                               .begin = piece->begin,
                                               .count = piece->count,
                                               .grad = grad});
    tdm_optimiser_apply(optimiser, index, grad, sums);
    tdm__undo_record_commit(undo_log, tdm_kernel_thread(), TDM__UNDO_APPLY, index, step);
}

void tdm__follow(tdm__undo_log *undo_log, float *value, const float *observed,
                 const tdm_param_info *p, size_t index, size_t begin, size_t count, uint64_t step)
{
    float momentum = undo_log->takes_statistics ? 1.0f : (float)p->momentum;
    tdm__undo_record_begin(undo_log, tdm_kernel_thread(),
                           &(tdm__undo_change){.kind = TDM__UNDO_STATISTIC,
                                               .step = step,
                                               .index = index,
                                               .begin = begin,
                                               .count = count});
    for (size_t k = 0; observed && k < count; k++)
        value[k] = (1.0f - momentum) * value[k] + momentum * observed[k];
    tdm__undo_record_commit(undo_log, tdm_kernel_thread(), TDM__UNDO_STATISTIC, index, step);
}

/* ---- passes ------------------------------------------------------------------------------------- */

/* State of the passes. Each pass is distributed over the rank's threads. */
typedef struct update {
    tdm_team *team;
    float *home;
    double grad_norm;
    size_t first_piece; /* of the current range */
    atomic_size_t *bad;
} update;

static void update_measure_range(const void *args, int64_t begin, int64_t end)
{
    const update *u = args;
    tdm_optimiser *optimiser = u->team->options.optimiser;
    for (size_t i = u->first_piece + (size_t)begin; i < u->first_piece + (size_t)end; i++) {
        const tdm_optim_piece *piece = tdm_optimiser_piece_at(optimiser, i);
        tdm_optimiser_measure(optimiser, i,
                              update_sum_at(u->team, piece->begin, piece->count, u->home));
    }
}

static void update_range(const void *args, int64_t begin, int64_t end)
{
    const update *u = args;
    tdm_optimiser *optimiser = u->team->options.optimiser;
    bool measured = tdm_optimiser_must_measure(optimiser);
    for (size_t i = u->first_piece + (size_t)begin; i < u->first_piece + (size_t)end; i++) {
        const tdm_optim_piece *piece = tdm_optimiser_piece_at(optimiser, i);
        float *grad = measured ? u->home + piece->begin
                               : update_sum_at(u->team, piece->begin, piece->count, u->home);
        tdm__update_piece(u->team->undo_log, optimiser, i, u->team->in.step, grad, u->grad_norm,
                          NULL);
    }
}

static void update_apply_range(const void *args, int64_t begin, int64_t end)
{
    const update *u = args;
    tdm_optimiser *optimiser = u->team->options.optimiser;
    double sums[TDM_OPTIM_SUMS];
    size_t summed = SIZE_MAX; /* the parameter of `sums` */
    for (size_t i = u->first_piece + (size_t)begin; i < u->first_piece + (size_t)end; i++) {
        const tdm_optim_piece *piece = tdm_optimiser_piece_at(optimiser, i);
        if (piece->param_index != summed) tdm_optimiser_sums(optimiser, piece->param_index, sums);
        summed = piece->param_index;
        tdm__apply_piece(u->team->undo_log, optimiser, i, u->team->in.step, u->home + piece->begin,
                         sums);
    }
}

/* Finds the first number with a magnitude of at least `bound`, or NaN. */
void tdm__nonfinite_find(atomic_size_t *bad, const float *numbers, size_t begin, size_t count,
                         float bound)
{
    size_t k = 0;
    while (k < count && fabsf(numbers[k]) < bound) k++;
    size_t before = atomic_load(bad);
    while (k < count && begin + k < before &&
           !atomic_compare_exchange_weak(bad, &before, begin + k)) {
    }
}

static void update_check_range(const void *args, int64_t begin, int64_t end)
{
    const update *u = args;
    const tdm_optimiser *optimiser = u->team->options.optimiser;
    for (size_t i = u->first_piece + (size_t)begin; i < u->first_piece + (size_t)end; i++) {
        const tdm_optim_piece *piece = tdm_optimiser_piece_at(optimiser, i);
        const float *grad = update_sum_at(u->team, piece->begin, piece->count, NULL);
        tdm__nonfinite_find(u->bad, grad, piece->begin, piece->count, TDM__GRADIENT_BOUND);
    }
}

static void update_spread(update *u, size_t first, size_t end, tdm_kernel_range_fn run)
{
    u->first_piece = first;
    tdm_kernel_spread((int64_t)(end - first), TDM__CELL, run, u);
}

static void update_pass(update *u, tdm_kernel_range_fn run)
{
    for (size_t i = 0; i < u->team->own_count; i++)
        update_spread(u, u->team->own[i].first_piece, u->team->own[i].end_piece, run);
}

/* A pass that changes the state. If that is in a file, it is processed in windows. */
static void update_changing_pass(update *u, tdm_kernel_range_fn run)
{
    tdm_team *team = u->team;
    if (!team->job->parallel.offload) {
        update_pass(u, run);
        return;
    }
    const tdm_optimiser *optimiser = team->options.optimiser;
    for (size_t i = 0; i < team->own_count; i++) {
        tdm__cells own = team->own[i].cells, window = {own.first, own.first};
        tdm__params_will_update(team->options.store, own);
        while (window.first < own.end) {
            window.end = own.end - window.first < WINDOW_CELLS ? own.end
                                                               : window.first + WINDOW_CELLS;
            update_spread(u, piece_at_cell(optimiser, window.first),
                          piece_at_cell(optimiser, window.end), run);
            tdm__params_has_updated(team->options.store, window);
            window.first = window.end;
        }
    }
}

/* Other entries are zero, so adding changes no bit. */
tdm_status tdm__update_exchange(tdm_team *team, double *numbers, size_t count, tdm_error *err)
{
    if (!team->layout->sharers) return TDM_OK;
    double begin = tdm_clock_s();
    tdm_status status = tdm_group_all_reduce(team->layout->sharers, numbers, numbers, count,
                                             TDM_DTYPE_F64, TDM_REDUCE_SUM, err);
    team->wait_seconds += tdm_clock_s() - begin;
    return status;
}

/* ---- statistics ---------------------------------------------------------------------------------- */

/* Visits the statistics of this rank. */
static void update_visit_statistics(update *u, tdm__statistic_fn visit)
{
    const tdm_team *team = u->team;
    if (team->grad_extent == team->trained_extent) return;
    for (size_t o = 0; o < team->own_count; o++)
        tdm__statistic_visit(team->graphs[0].graph, team->own[o].cells, visit, u);
}

static void update_statistic(void *user, const tdm_param_info *p, size_t index, size_t begin,
                             size_t count)
{
    const update *u = user;
    const float *observed = update_sum_at(u->team, begin, count, NULL);
    float *value = tdm_params_block(u->team->options.store, TDM_BLOCK_PARAMS) + begin;
    tdm__follow(u->team->undo_log, value, observed, p, index, begin, count, u->team->in.step);
}

/* Statistics are never squared, so their bound is infinity. */
static void update_check_statistic(void *user, const tdm_param_info *p, size_t index, size_t begin,
                                   size_t count)
{
    const update *u = user;
    (void)p;
    (void)index;
    const float *observed = update_sum_at(u->team, begin, count, NULL);
    if (observed) tdm__nonfinite_find(u->bad, observed, begin, count, INFINITY);
}

/* ---- the update ---------------------------------------------------------------------------------- */

tdm_status tdm__update_find_bad(tdm_team *team, size_t *out, tdm_error *err)
{
    bool in_safe_range = true;
    *out = SIZE_MAX;
    for (int i = 0; i < team->size; i++)
        in_safe_range = in_safe_range && team->notes[i].in_safe_range;
    if (in_safe_range) return TDM_OK;
    atomic_size_t bad = SIZE_MAX;
    update u = {.team = team, .bad = &bad};
    update_pass(&u, update_check_range);
    update_visit_statistics(&u, update_check_statistic);
    int64_t first = atomic_load(&bad) == SIZE_MAX ? INT64_MAX : (int64_t)atomic_load(&bad);
    if (team->group)
        TDM_TRY(
            tdm_group_all_reduce(team->group, NULL, &first, 1, TDM_DTYPE_I64, TDM_REDUCE_MIN, err));
    *out = first == INT64_MAX ? SIZE_MAX : (size_t)first;
    return TDM_OK;
}

/* Records that the step will be completed, by other ranks if necessary. */
static void update_record_begin(tdm_team *team, const tdm_step_result *result, double grad_norm)
{
    tdm__begun begun = {.step = team->in.step,
                        .first = team->in.step,
                        .kind = team->buckets ? TDM__SUMS_PLACED : TDM__SUMS_TREE,
                        .batch = team->in.batch,
                        .lr = team->in.lr,
                        .grad_norm = grad_norm,
                        .loss = result->loss,
                        .divergence = result->divergence,
                        .tally = result->tally,
                        .requests = result->requests};
    tdm__undo_step_begin(team->undo_log, &begun);
}

static tdm_status update_measure(update *u, tdm_error *err)
{
    tdm_optimiser *optimiser = u->team->options.optimiser;
    size_t pieces = tdm_optimiser_piece_count(optimiser);
    double *squares = tdm_optimiser_squares(optimiser);
    memset(squares, 0, pieces * sizeof(*squares));
    update_pass(u, update_measure_range);
    TDM_TRY(tdm__update_exchange(u->team, squares, pieces, err));
    u->grad_norm = tdm_optimiser_grad_norm(optimiser);
    return TDM_OK;
}

static void update_mark_statistic(void *user, const tdm_param_info *p, size_t index, size_t begin,
                                  size_t count)
{
    const update *u = user;
    (void)p;
    (void)begin;
    (void)count;
    tdm__undo_record_commit(u->team->undo_log, 0, TDM__UNDO_STATISTIC, index, u->team->in.step);
}

tdm_status tdm__update_mark(tdm_team *team, const tdm_step_result *result, tdm_error *err)
{
    update u = {.team = team};
    TDM_TRY(tdm__undo_write_begin(team->undo_log, err));
    update_record_begin(team, result, 0);
    update_visit_statistics(&u, update_mark_statistic);
    for (size_t o = 0; o < team->own_count; o++)
        for (size_t i = team->own[o].first_piece; i < team->own[o].end_piece; i++)
            tdm__undo_record_commit(team->undo_log, 0, TDM__UNDO_UPDATE, i, team->in.step);
    tdm__undo_write_end(team->undo_log);
    return TDM_OK;
}

tdm_status tdm__update_run(tdm_team *team, tdm_step_result *result, tdm_error *err)
{
    tdm_optimiser *optimiser = team->options.optimiser;
    bool measures = tdm_optimiser_must_measure(optimiser);
    bool applies = tdm_optimiser_must_apply(optimiser);
    size_t pieces = tdm_optimiser_piece_count(optimiser);
    update u = {.team = team, .home = measures || applies ? update_find_home(team) : NULL};
    if (measures) TDM_TRY(update_measure(&u, err));
    result->grad_norm = u.grad_norm;
    result->divergence = tdm__replicas_divergence(team, u.grad_norm);

    double *sums = tdm_optimiser_piece_sums(optimiser);
    if (applies) memset(sums, 0, pieces * TDM_OPTIM_SUMS * sizeof(*sums));
    TDM_TRY(tdm__undo_write_begin(team->undo_log, err));
    update_record_begin(team, result,
                        u.grad_norm); /* in the write section: no other rank has decided */
    update_visit_statistics(&u, update_statistic);
    update_changing_pass(&u, update_range);
    tdm__undo_write_end(team->undo_log);

    if (!applies) return TDM_OK;
    TDM_TRY(tdm__update_exchange(team, sums, pieces * TDM_OPTIM_SUMS, err));
    TDM_TRY(tdm__undo_write_begin(team->undo_log, err));
    update_changing_pass(&u, update_apply_range);
    tdm__undo_write_end(team->undo_log);
    return TDM_OK;
}
