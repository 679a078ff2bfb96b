/*
 * replica_local.c: a replica trains a model for the steps of a round.
 *
 * It uses the optimiser of the job. With sync.kind gossip the model is its own (replica_gossip.c). With sync.kind local
 * it is a copy of the common model, and the contribution of the replica is the model before the round minus that copy, divided by the
 * number of replicas. The sum over all replicas is the gradient of the outer optimiser (replica_run.c).
 */
#include "parallel/replica_run.h"
#include "tensor/kernel.h"

#include <math.h>
#include <string.h>

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
    if (run->gossip)
        tdm__gossip_load(team, replica);
    else
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

tdm_status tdm__replica_train(tdm_team *team, int64_t replica, bool *finite, tdm_error *err)
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
        TDM_TRY(tdm__replica_run_lanes(team, replica, &sum, err));
        replica_count_losses(team, replica, i);
        if (!sum) continue; /* the batch has fewer rows than there are lanes */
        double begin = tdm_clock_s();
        *finite = *finite && tdm__replica_is_finite(team, sum);
        if (*finite) replica_update_model(team, sum, &step);
        team->tree.held[run->replicas->count + replica] = NULL;
        team->free_grads[team->free_count++] = sum;
        team->lane_seconds += tdm_clock_s() - begin;
    }
    team->in.batch = in.batch;
    return TDM_OK;
}

/* ---- divergence -------------------------------------------------------------------------------- */

/* The unit of fixed-point numbers for changes: they are at most 1 for a replica, and there are at most 2^16 of them. */
#define CHANGE_UNIT 0x1p-46

typedef struct square_pass {
    const float *numbers;
    size_t count;
    double *out; /* by cell */
} square_pass;

static void square_range(const void *args, int64_t begin, int64_t end)
{
    const square_pass *pass = args;
    for (size_t cell = (size_t)begin; cell < (size_t)end; cell++) {
        size_t first = cell * TDM__CELL, left = pass->count - first;
        double sum = 0;
        for (size_t i = first; i < first + (left < TDM__CELL ? left : TDM__CELL); i++)
            sum += (double)pass->numbers[i] * (double)pass->numbers[i];
        pass->out[cell] = sum;
    }
}

/* The sum of the squares of the trained elements, in the order of cells. */
static double replica_square(const tdm_team *team, const float *numbers)
{
    square_pass pass = {numbers, team->trained_extent, team->replicas->squares};
    size_t cells = (pass.count + TDM__CELL - 1) / TDM__CELL;
    double sum = 0;
    tdm_kernel_spread((int64_t)cells, TDM__CELL, square_range, &pass);
    for (size_t c = 0; c < cells; c++) sum += pass.out[c];
    return sum;
}

tdm_status tdm__replicas_measure_begin(tdm_team *team, tdm_error *err)
{
    tdm__replica_run *run = team->replicas;
    TDM_TRY(tdm__params_await_all(team->options.store, err));
    double square = replica_square(team, tdm_params_block(team->options.store, TDM_BLOCK_PARAMS));
    run->model_square = square > 0 ? square : 1;
    run->change = 0;
    return TDM_OK;
}

/* Counts the change of a replica; its contribution is that divided by the number of replicas. */
static void replica_count_change(tdm_team *team, const float *contribution)
{
    tdm__replica_run *run = team->replicas;
    double count = (double)run->replicas->count;
    double change = replica_square(team, contribution) * count * count / run->model_square;
    if (!(change < 1)) change = 1; /* also if it is NaN: such a round changes nothing */
    run->change += (uint64_t)(change / CHANGE_UNIT);
}

uint64_t tdm__replicas_change(const tdm_team *team)
{
    return team->replicas && team->replicas->squares ? team->replicas->change : 0;
}

double tdm__replicas_divergence(const tdm_team *team, double grad_norm)
{
    const tdm__replica_run *run = team->replicas;
    if (!run || !run->squares) return 0;
    uint64_t sum = 0;
    for (int i = 0; i < team->size; i++) sum += team->notes[i].change;
    double mean = (double)sum * CHANGE_UNIT / (double)run->replicas->count;
    double rest = mean -
                  grad_norm * grad_norm / run->model_square; /* without the change of the mean */
    return rest > 0 ? sqrt(rest) : 0;
}

/* ---- the contribution ------------------------------------------------------------------------- */

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

float *tdm__replica_difference(tdm_team *team, bool finite)
{
    float *out = tdm__team_take_buffer(team, false);
    difference d = {.team = team,
                    .before = tdm_params_block(team->options.store, TDM_BLOCK_PARAMS),
                    .out = out,
                    .scale = 1.0f / (float)team->replicas->replicas->count};
    tdm_kernel_spread((int64_t)team->grad_extent, 1, difference_range, &d);
    if (!finite) out[0] = NAN; /* the round is not finite */
    if (team->replicas->squares) replica_count_change(team, out);
    return out;
}
