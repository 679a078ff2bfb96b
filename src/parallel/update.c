/*
 * update.c: the optimiser's passes over what this rank updates.
 *
 * A rank owns cells of the block of parameters, and with them the optimiser's pieces in them. The
 * gradient of a piece is its sum over the tree: added here and now, where all gradients lie in common
 * memory, so that it is still in cache when the optimiser wants it; or, with messages, it has arrived
 * in `summed`. Where the optimiser needs a sum over all pieces (the norm of the gradient, LAMB's
 * norms), there are two or three passes, and between them ranks exchange what each piece adds to it. A
 * piece's gradient then waits in `summed`, or in one of the buffers of the tree, its home.
 *
 * Nothing is changed when a gradient is not finite, or so large that its square is not: optimisers
 * remember squares, and an infinity among them would stay for good. As long as all numbers that ranks
 * bring are modest (tensor/kernel.h), no sum over the tree can be that large. When some are not, one
 * more pass looks at the very sums that the update would see, so the answer is the same for any number
 * of ranks.
 *
 * With a vault each change of a piece goes through its journal (undo_log.h), so that others can finish what a
 * dead rank has left.
 *
 * Invariants: sums over pieces are taken in the order of the pieces, whoever computed them; a rank
 * touches only its own cells of parameters and state.
 */
#include "parallel/internal.h"
#include "tensor/kernel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW_CELLS = 256 }; /* that are brought from a file at a time */

/* ---- what is this rank's ------------------------------------------------------------------------ */

/* The first piece that begins in this cell or behind it. */
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

/* Says in the vault whose it is to update it in this epoch. Inside of a writing section. */
static void sign(const tdm__undo_log *undo_log, tdm__mark *mark)
{
    atomic_store(&mark->slot, (uint32_t)undo_log->slot);
    atomic_store(&mark->epoch, undo_log->epoch);
}

static void sign_statistic(void *user, const tdm_param_info *p, size_t index, size_t begin,
                           size_t count)
{
    const tdm__undo_log *undo_log = user;
    (void)p;
    (void)begin;
    (void)count;
    sign(undo_log, &undo_log->cells[index]);
}

static void add_own(tdm_team *team, tdm__cells range)
{
    const tdm_optimiser *optimiser = team->options.optimiser;
    tdm__cells cells = tdm__layout_share(team->layout, range, team->place);
    if (cells.first == cells.end) return;
    struct tdm__own own = {cells, piece_at_cell(optimiser, cells.first),
                           piece_at_cell(optimiser, cells.end)};
    team->own[team->own_count++] = own;
    if (!team->undo_log) return;
    for (size_t i = own.first_piece; i < own.end_piece; i++)
        sign(team->undo_log, &team->undo_log->marks[i]);
    tdm__statistic_visit(team->graphs[0].graph, cells, sign_statistic, team->undo_log);
}

tdm_status tdm__update_create(tdm_team *team, tdm_error *err)
{
    const tdm__layout *l = team->layout;
    bool by_bucket = team->buckets && !l->common;
    team->own = calloc(by_bucket ? l->bucket_count + 1 : 1, sizeof(*team->own));
    if (!team->own) return tdm_fail(err, TDM_ERR_NO_MEMORY, "team: no memory");
    if (team->undo_log) TDM_TRY(tdm__undo_write_begin(team->undo_log, err));
    if (!by_bucket) add_own(team, (tdm__cells){0, l->trained_cells});
    for (size_t b = 0; by_bucket && b < l->bucket_count; b++)
        add_own(team, tdm__layout_bucket(l, b));
    if (team->undo_log) tdm__undo_write_end(team->undo_log);
    return TDM_OK;
}

/* ---- the gradient of a piece --------------------------------------------------------------------- */

static float *scratch_here(const tdm_team *team)
{
    return team->scratch + (size_t)tdm_kernel_thread() * team->scratch_elements;
}

/* A buffer in which sums can wait: any that is in the tree will do, because the part of it that is
 * overwritten was read for that very sum, and nobody else reads it. */
static float *find_home(const tdm_team *team)
{
    if (team->summed) return team->summed;
    for (int64_t node = 1; node < 2 * team->tree.lane_count; node++)
        if (team->tree.held[node]) return team->tree.held[node];
    return NULL; /* no lane had rows */
}

/* The sum over the tree of `count` elements at `begin`, which may be changed. With `home` it is left
 * there, otherwise it stays until the next call. NULL: no lane had rows. */
static float *sum_at(const tdm_team *team, size_t begin, size_t count, float *home)
{
    if (team->summed) return team->summed + begin;
    if (team->tree.held[1]) return team->tree.held[1] + begin;
    float *scratch = scratch_here(team);
    if (!tdm__tree_sum(&team->tree, 1, begin, count, scratch, scratch + TDM__CELL)) return NULL;
    if (!home) return scratch;
    return memcpy(home + begin, scratch, count * sizeof(float));
}

/* ---- pieces ------------------------------------------------------------------------------------- */

void tdm__update_piece(tdm__undo_log *undo_log, tdm_optimiser *optimiser, size_t index,
                       uint64_t step, float *grad, double grad_norm)
{
    const tdm_optim_piece *piece = tdm_optimiser_piece_at(optimiser, index);
    if (undo_log)
        tdm__undo_record_begin(undo_log, tdm_kernel_thread(), TDM__UNDO_UPDATE, index, piece->begin,
                               piece->count, grad);
    tdm_optimiser_update(optimiser, index, grad, grad_norm);
    if (!undo_log) return;
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
    if (undo_log)
        tdm__undo_record_begin(undo_log, tdm_kernel_thread(), TDM__UNDO_APPLY, index, piece->begin,
                               piece->count, grad);
    tdm_optimiser_apply(optimiser, index, grad, sums);
    if (undo_log)
        tdm__undo_record_commit(undo_log, tdm_kernel_thread(), TDM__UNDO_APPLY, index, step);
}

void tdm__follow(tdm__undo_log *undo_log, float *value, const float *observed,
                 const tdm_param_info *p, size_t index, size_t begin, size_t count, uint64_t step)
{
    float momentum = (float)p->momentum;
    if (undo_log)
        tdm__undo_record_begin(undo_log, tdm_kernel_thread(), TDM__UNDO_STATISTIC, index, begin,
                               count, NULL);
    for (size_t k = 0; observed && k < count; k++)
        value[k] = (1.0f - momentum) * value[k] + momentum * observed[k];
    if (undo_log)
        tdm__undo_record_commit(undo_log, tdm_kernel_thread(), TDM__UNDO_STATISTIC, index, step);
}

/* ---- passes ------------------------------------------------------------------------------------- */

/* What the passes share. Each pass is spread over the rank's threads. */
typedef struct update {
    tdm_team *team;
    float *home;
    double grad_norm;
    size_t first_piece; /* of the stretch in work */
    atomic_size_t *bad;
} update;

static void measure_range(const void *args, int64_t begin, int64_t end)
{
    const update *u = args;
    tdm_optimiser *optimiser = u->team->options.optimiser;
    for (size_t i = u->first_piece + (size_t)begin; i < u->first_piece + (size_t)end; i++) {
        const tdm_optim_piece *piece = tdm_optimiser_piece_at(optimiser, i);
        tdm_optimiser_measure(optimiser, i, sum_at(u->team, piece->begin, piece->count, u->home));
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
                               : sum_at(u->team, piece->begin, piece->count, u->home);
        tdm__update_piece(u->team->undo_log, optimiser, i, u->team->in.step, grad, u->grad_norm);
    }
}

static void apply_range(const void *args, int64_t begin, int64_t end)
{
    const update *u = args;
    tdm_optimiser *optimiser = u->team->options.optimiser;
    double sums[TDM_OPTIM_SUMS];
    size_t summed = SIZE_MAX; /* the parameter that `sums` belong to */
    for (size_t i = u->first_piece + (size_t)begin; i < u->first_piece + (size_t)end; i++) {
        const tdm_optim_piece *piece = tdm_optimiser_piece_at(optimiser, i);
        if (piece->param_index != summed) tdm_optimiser_sums(optimiser, piece->param_index, sums);
        summed = piece->param_index;
        tdm__apply_piece(u->team->undo_log, optimiser, i, u->team->in.step, u->home + piece->begin,
                         sums);
    }
}

/* What reaches the bound is bad; so is NaN. */
static void find_bad(atomic_size_t *bad, const float *numbers, size_t begin, size_t count,
                     float bound)
{
    size_t k = 0;
    while (k < count && fabsf(numbers[k]) < bound) k++;
    size_t before = atomic_load(bad);
    while (k < count && begin + k < before &&
           !atomic_compare_exchange_weak(bad, &before, begin + k)) {
    }
}

static void check_range(const void *args, int64_t begin, int64_t end)
{
    const update *u = args;
    const tdm_optimiser *optimiser = u->team->options.optimiser;
    for (size_t i = u->first_piece + (size_t)begin; i < u->first_piece + (size_t)end; i++) {
        const tdm_optim_piece *piece = tdm_optimiser_piece_at(optimiser, i);
        const float *grad = sum_at(u->team, piece->begin, piece->count, NULL);
        find_bad(u->bad, grad, piece->begin, piece->count, TDM__GRADIENT_BOUND);
    }
}

static void spread(update *u, size_t first, size_t end, tdm_kernel_range_fn run)
{
    u->first_piece = first;
    tdm_kernel_spread((int64_t)(end - first), TDM__CELL, run, u);
}

static void pass(update *u, tdm_kernel_range_fn run)
{
    for (size_t i = 0; i < u->team->own_count; i++)
        spread(u, u->team->own[i].first_piece, u->team->own[i].end_piece, run);
}

/* A pass that changes state. When that lies in a file, it comes and goes in windows. */
static void changing_pass(update *u, tdm_kernel_range_fn run)
{
    tdm_team *team = u->team;
    if (!team->job->parallel.offload) {
        pass(u, run);
        return;
    }
    const tdm_optimiser *optimiser = team->options.optimiser;
    for (size_t i = 0; i < team->own_count; i++) {
        tdm__cells own = team->own[i].cells, window = {own.first, own.first};
        tdm__params_will_update(team->options.store, own);
        while (window.first < own.end) {
            window.end = own.end - window.first < WINDOW_CELLS ? own.end
                                                               : window.first + WINDOW_CELLS;
            spread(u, piece_at_cell(optimiser, window.first), piece_at_cell(optimiser, window.end),
                   run);
            tdm__params_has_updated(team->options.store, window);
            window.first = window.end;
        }
    }
}

/* What each piece adds to a sum over all of them: everybody's, where only this rank's is known. Others'
 * places hold zero, so adding changes no bit. */
static tdm_status exchange(tdm_team *team, double *numbers, size_t count, tdm_error *err)
{
    if (!team->layout->sharers) return TDM_OK;
    double begin = tdm_clock_s();
    tdm_status status = tdm_group_all_reduce(team->layout->sharers, numbers, numbers, count,
                                             TDM_DTYPE_F64, TDM_REDUCE_SUM, err);
    team->wait_seconds += tdm_clock_s() - begin;
    return status;
}

/* ---- statistics ---------------------------------------------------------------------------------- */

/* This rank's. */
static void visit_statistics(update *u, tdm__statistic_fn visit)
{
    const tdm_team *team = u->team;
    if (team->grad_extent == team->trained_extent) return;
    for (size_t o = 0; o < team->own_count; o++)
        tdm__statistic_visit(team->graphs[0].graph, team->own[o].cells, visit, u);
}

static void follow(void *user, const tdm_param_info *p, size_t index, size_t begin, size_t count)
{
    const update *u = user;
    const float *observed = sum_at(u->team, begin, count, NULL);
    float *value = tdm_params_block(u->team->options.store, TDM_BLOCK_PARAMS) + begin;
    tdm__follow(u->team->undo_log, value, observed, p, index, begin, count, u->team->in.step);
}

/* Nobody takes their squares. */
static void check_statistic(void *user, const tdm_param_info *p, size_t index, size_t begin,
                            size_t count)
{
    const update *u = user;
    (void)p;
    (void)index;
    const float *observed = sum_at(u->team, begin, count, NULL);
    if (observed) find_bad(u->bad, observed, begin, count, INFINITY);
}

/* ---- the whole ----------------------------------------------------------------------------------- */

tdm_status tdm__update_find_bad(tdm_team *team, size_t *out, tdm_error *err)
{
    bool in_safe_range = true;
    *out = SIZE_MAX;
    for (int i = 0; i < team->size; i++)
        in_safe_range = in_safe_range && team->notes[i].in_safe_range;
    if (in_safe_range) return TDM_OK;
    atomic_size_t bad = SIZE_MAX;
    update u = {.team = team, .bad = &bad};
    pass(&u, check_range);
    visit_statistics(&u, check_statistic);
    int64_t first = atomic_load(&bad) == SIZE_MAX ? INT64_MAX : (int64_t)atomic_load(&bad);
    if (team->group)
        TDM_TRY(
            tdm_group_all_reduce(team->group, NULL, &first, 1, TDM_DTYPE_I64, TDM_REDUCE_MIN, err));
    *out = first == INT64_MAX ? SIZE_MAX : (size_t)first;
    return TDM_OK;
}

static tdm_status enter(const tdm_team *team, tdm_error *err)
{
    return team->undo_log ? tdm__undo_write_begin(team->undo_log, err) : TDM_OK;
}

static void leave(const tdm_team *team)
{
    if (team->undo_log) tdm__undo_write_end(team->undo_log);
}

/* From here on the step will be finished, by others if need be. */
static void begin_update(tdm_team *team, const tdm_step_result *result, double grad_norm)
{
    if (!team->undo_log) return;
    tdm__begun begun = {.step = team->in.step,
                        .kind = team->buckets ? TDM__SUMS_PLACED : TDM__SUMS_TREE,
                        .batch = team->in.batch,
                        .lr = team->in.lr,
                        .grad_norm = grad_norm,
                        .loss = result->loss,
                        .tally = result->tally,
                        .requests = result->requests};
    tdm__undo_step_begin(team->undo_log, &begun);
}

static tdm_status measure(update *u, tdm_error *err)
{
    tdm_optimiser *optimiser = u->team->options.optimiser;
    size_t pieces = tdm_optimiser_piece_count(optimiser);
    double *squares = tdm_optimiser_squares(optimiser);
    memset(squares, 0, pieces * sizeof(*squares));
    pass(u, measure_range);
    TDM_TRY(exchange(u->team, squares, pieces, err));
    u->grad_norm = tdm_optimiser_grad_norm(optimiser);
    return TDM_OK;
}

tdm_status tdm__update_run(tdm_team *team, tdm_step_result *result, tdm_error *err)
{
    tdm_optimiser *optimiser = team->options.optimiser;
    bool measures = tdm_optimiser_must_measure(optimiser);
    bool applies = tdm_optimiser_must_apply(optimiser);
    size_t pieces = tdm_optimiser_piece_count(optimiser);
    update u = {.team = team, .home = measures || applies ? find_home(team) : NULL};
    if (measures) TDM_TRY(measure(&u, err));
    result->grad_norm = u.grad_norm;
    double *sums = tdm_optimiser_piece_sums(optimiser);
    if (applies) memset(sums, 0, pieces * TDM_OPTIM_SUMS * sizeof(*sums));
    TDM_TRY(enter(team, err));
    begin_update(team, result, u.grad_norm); /* inside: nobody else has come to a decision */
    visit_statistics(&u, follow);
    changing_pass(&u, update_range);
    leave(team);
    if (!applies) return TDM_OK;
    TDM_TRY(exchange(team, sums, pieces * TDM_OPTIM_SUMS, err));
    TDM_TRY(enter(team, err));
    changing_pass(&u, apply_range);
    leave(team);
    return TDM_OK;
}
