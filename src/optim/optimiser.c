/*
 * optimiser.c: a method as configured by a job for one model.
 *
 * Creation divides each tensor into pieces where it crosses a multiple of PIECE_ELEMENTS in the
 * block, so that a cell of that grid contains only whole pieces, and computes the settings of each
 * tensor. A step is begin(), then up to three passes over the pieces (see optim.h). A pass writes
 * only data of its piece, including the fields for its sums, so threads need no lock; sums over
 * pieces are always computed in the order of the pieces.
 */
#include "base/base.h"
#include "optim/internal.h"

#include <math.h>
#include <stdlib.h>

enum { PIECE_ELEMENTS = TDM_OPTIM_PIECE_ELEMENTS };
#define NORM_EPS 1e-6 /* as in PyTorch's clip_grad_norm_ */

typedef struct param {
    double lr_scale;
    double weight_decay;
    size_t first_piece;
    size_t piece_count;
} param;

struct tdm_optimiser {
    const tdm_optim_ops *ops;
    const tdm__optim_loops *loops;
    tdm_optim_settings settings;
    double clip_norm, clip_value, ema; /* 0: off */
    tdm_arena *arena;
    param *params;
    size_t param_count;
    tdm_optim_piece *pieces;
    size_t piece_count;
    double *squares; /* of the gradient, by piece */
    double (*sums)[TDM_OPTIM_SUMS];
    tdm_optim_blocks blocks;
    uint64_t step; /* from 1 */
    double lr;
};

/* ---- creation --------------------------------------------------------------------------------- */

static void optimiser_cut_pieces(tdm_optimiser *o, const tdm_optim_param *params)
{
    for (size_t i = 0; i < o->param_count; i++) {
        o->params[i].first_piece = o->piece_count;
        size_t at = params[i].offset, end = at + params[i].elements;
        while (at < end) {
            size_t next = (at / PIECE_ELEMENTS + 1) * PIECE_ELEMENTS;
            if (next > end) next = end;
            o->pieces[o->piece_count++] = (tdm_optim_piece){
                .begin = at, .count = next - at, .param_index = i};
            at = next;
        }
        o->params[i].piece_count = o->piece_count - o->params[i].first_piece;
    }
}

static tdm_status apply_groups(tdm_optimiser *o, const tdm_job *job, const tdm_optim_param *params,
                               tdm_error *err)
{
    size_t *entries = tdm_arena_array(o->arena, o->param_count + 1, sizeof(*entries));
    if (!entries) return tdm_fail_oom(err, "for the optimiser");
    TDM_TRY(tdm__groups_match(job, params, o->param_count, entries, err));
    for (size_t i = 0; i < o->param_count; i++) {
        o->params[i].lr_scale = 1;
        o->params[i].weight_decay = job->optim.weight_decay;
        if (entries[i] == SIZE_MAX) continue;
        const tdm_job_param_group *group = &job->optim.groups.items[entries[i]];
        o->params[i].lr_scale = group->lr_scale;
        if (!isnan(group->weight_decay)) o->params[i].weight_decay = group->weight_decay;
    }
    return TDM_OK;
}

static tdm_status optimiser_build(tdm_optimiser *o, const tdm_job *job,
                                  const tdm_optim_param *params, tdm_error *err)
{
    size_t pieces = 1; /* an empty array would be NULL */
    for (size_t i = 0; i < o->param_count; i++) pieces += params[i].elements / PIECE_ELEMENTS + 2;
    o->arena = tdm_arena_create("optimiser");
    if (o->arena) {
        o->params = tdm_arena_array(o->arena, o->param_count + 1, sizeof(*o->params));
        o->pieces = tdm_arena_array(o->arena, pieces, sizeof(*o->pieces));
        o->squares = tdm_arena_array(o->arena, pieces, sizeof(*o->squares));
        o->sums = tdm_arena_array(o->arena, pieces, sizeof(*o->sums));
    }
    if (!o->arena || !o->params || !o->pieces || !o->squares || !o->sums)
        return tdm_fail_oom(err, "for the optimiser");
    optimiser_cut_pieces(o, params);
    return apply_groups(o, job, params, err);
}

tdm_status tdm_optimiser_create(const tdm_job *job, const tdm_optim_param *params,
                                size_t param_count, tdm_optimiser **out, tdm_error *err)
{
    const tdm_optim_ops *ops = tdm_optim_find(job->optim.kind);
    if (!ops) return tdm_fail(err, TDM_ERR_INVALID, "optim: invalid method %d", job->optim.kind);
    tdm_optimiser *o = calloc(1, sizeof(*o));
    if (!o) return tdm_fail_oom(err, "for the optimiser");
    o->ops = ops;
    o->loops = tdm__optims_here()->loops;
    o->settings = tdm_optim_settings_of(job);
    o->clip_norm = job->optim.clip_norm;
    o->clip_value = job->optim.clip_value;
    o->ema = job->optim.ema;
    o->param_count = param_count;
    tdm_status status = optimiser_build(o, job, params, err);
    if (status != TDM_OK) {
        tdm_optimiser_destroy(o);
        return status;
    }
    *out = o;
    return TDM_OK;
}

void tdm_optimiser_destroy(tdm_optimiser *optimiser)
{
    if (!optimiser) return;
    tdm_arena_destroy(optimiser->arena);
    free(optimiser);
}

void tdm_optimiser_bind(tdm_optimiser *optimiser, const tdm_optim_blocks *blocks)
{
    optimiser->blocks = *blocks;
}

/* ---- properties ------------------------------------------------------------------------------- */

const tdm_optim_ops *tdm_optimiser_ops(const tdm_optimiser *optimiser)
{
    return optimiser->ops;
}

bool tdm_optimiser_uses_state(const tdm_optimiser *optimiser, int state)
{
    return tdm_optim_uses_state(optimiser->ops, &optimiser->settings, state);
}

static tdm_optim_settings settings_at(const tdm_optimiser *o, size_t param_index, double lr)
{
    tdm_optim_settings s = o->settings;
    s.lr = lr * o->params[param_index].lr_scale;
    s.weight_decay = o->params[param_index].weight_decay;
    return s;
}

tdm_optim_settings tdm_optimiser_settings_at(const tdm_optimiser *optimiser, size_t param_index)
{
    return settings_at(optimiser, param_index, optimiser->settings.lr);
}

size_t tdm_optimiser_piece_count(const tdm_optimiser *optimiser)
{
    return optimiser->piece_count;
}

const tdm_optim_piece *tdm_optimiser_piece_at(const tdm_optimiser *optimiser, size_t index)
{
    return &optimiser->pieces[index];
}

bool tdm_optimiser_must_measure(const tdm_optimiser *optimiser)
{
    return optimiser->clip_norm > 0;
}

bool tdm_optimiser_must_apply(const tdm_optimiser *optimiser)
{
    return optimiser->ops->apply != NULL;
}

/* ---- a step ----------------------------------------------------------------------------------- */

void tdm_optimiser_begin(tdm_optimiser *optimiser, uint64_t step, double lr)
{
    optimiser->step = step + 1;
    optimiser->lr = lr;
}

void tdm_optimiser_measure(tdm_optimiser *optimiser, size_t piece, float *grad)
{
    size_t count = optimiser->pieces[piece].count;
    if (optimiser->clip_value > 0)
        optimiser->loops->clamp(grad, count, (float)optimiser->clip_value);
    optimiser->squares[piece] = optimiser->loops->sum_squares(grad, count);
}

double *tdm_optimiser_squares(tdm_optimiser *optimiser)
{
    return optimiser->squares;
}

double *tdm_optimiser_piece_sums(tdm_optimiser *optimiser)
{
    return optimiser->sums[0];
}

double tdm_optimiser_grad_norm(const tdm_optimiser *optimiser)
{
    double sum = 0;
    for (size_t i = 0; i < optimiser->piece_count; i++) sum += optimiser->squares[i];
    return sqrt(sum);
}

static tdm_optim_range range_of(const tdm_optimiser *o, const tdm_optim_piece *piece, float *grad)
{
    tdm_optim_range range = {.count = piece->count,
                             .grad = grad,
                             .param = o->blocks.params + piece->begin,
                             .direction = grad};
    for (int k = 0; k < o->ops->state_count; k++)
        if (o->blocks.states[k]) range.state[k] = o->blocks.states[k] + piece->begin;
    return range;
}

static void ema_follow(const tdm_optimiser *o, const tdm_optim_piece *piece)
{
    if (o->ema > 0 && o->blocks.ema)
        o->loops->average(o->blocks.ema + piece->begin, o->blocks.params + piece->begin,
                          piece->count, o->ema);
}

void tdm_optimiser_update(tdm_optimiser *optimiser, size_t piece_index, float *grad,
                          double grad_norm)
{
    tdm_optimiser *o = optimiser;
    const tdm_optim_piece *piece = &o->pieces[piece_index];
    if (o->clip_norm > 0) {
        double factor = o->clip_norm / (grad_norm + NORM_EPS);
        if (factor < 1) o->loops->scale(grad, piece->count, (float)factor);
    } else if (o->clip_value > 0) {
        o->loops->clamp(grad, piece->count, (float)o->clip_value);
    }
    tdm_optim_range range = range_of(o, piece, grad);
    tdm_optim_settings settings = settings_at(o, piece->param_index, o->lr);
    if (o->ops->prepare) {
        o->ops->prepare(&settings, o->step, &range, o->sums[piece_index]);
        return;
    }
    o->ops->update(&settings, o->step, &range);
    ema_follow(o, piece);
}

void tdm_optimiser_sums(const tdm_optimiser *optimiser, size_t param_index,
                        double sums[TDM_OPTIM_SUMS])
{
    const param *p = &optimiser->params[param_index];
    for (int k = 0; k < TDM_OPTIM_SUMS; k++) sums[k] = 0;
    for (size_t i = 0; i < p->piece_count; i++)
        for (int k = 0; k < TDM_OPTIM_SUMS; k++) sums[k] += optimiser->sums[p->first_piece + i][k];
}

void tdm_optimiser_apply(tdm_optimiser *optimiser, size_t piece_index, float *grad,
                         const double sums[TDM_OPTIM_SUMS])
{
    const tdm_optim_piece *piece = &optimiser->pieces[piece_index];
    tdm_optim_range range = range_of(optimiser, piece, grad);
    tdm_optim_settings settings = settings_at(optimiser, piece->param_index, optimiser->lr);
    optimiser->ops->apply(&settings, &range, sums);
    ema_follow(optimiser, piece);
}
