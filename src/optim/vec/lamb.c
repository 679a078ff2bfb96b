/*
 * lamb.c: LAMB (You et al., 2020, algorithm 2): Adam's direction with decoupled weight decay,
 * scaled to the tensor's norm times the learning rate.
 *
 * The direction u of a tensor is scaled by |param| / |u| (by 1 if either is zero), so it needs two
 * passes: lamb_prepare() sums both squares, lamb_apply() updates.
 */
#include "base/base.h"
#include "optim/vec/vec.h"

#include <math.h>

static void lamb_prepare(const tdm_optim_settings *s, uint64_t step, const tdm_optim_range *r,
                         double sums[TDM_OPTIM_SUMS])
{
    const float beta1 = (float)s->beta1, beta2 = (float)s->beta2, eps = (float)s->eps;
    const float fresh1 = (float)(1.0 - s->beta1), fresh2 = (float)(1.0 - s->beta2);
    const float correction = (float)(1.0 / (1.0 - tdm_math_power(s->beta1, step)));
    const float root_correction = (float)(1.0 / sqrt(1.0 - tdm_math_power(s->beta2, step)));
    const float decay = (float)s->weight_decay;
    float *restrict m = r->state[0];
    float *restrict v = r->state[1];
    const float *restrict param = r->param;
    const float *grad = r->grad; /* may be the same as direction */
    float *direction = r->direction;
    for (size_t i = 0; i < r->count; i++) {
        float g = grad[i];
        m[i] = beta1 * m[i] + fresh1 * g;
        v[i] = beta2 * v[i] + fresh2 * g * g;
        float adam = correction * m[i] / (sqrtf(v[i]) * root_correction + eps);
        direction[i] = adam + decay * param[i];
    }
    sums[0] = TDM__AT_LEVEL(tdm__optim_loops).sum_squares(param, r->count);
    sums[1] = TDM__AT_LEVEL(tdm__optim_loops).sum_squares(direction, r->count);
}

static void lamb_apply(const tdm_optim_settings *s, const tdm_optim_range *r,
                       const double sums[TDM_OPTIM_SUMS])
{
    const bool has_ratio = sums[0] > 0 && sums[1] > 0;
    const float rate = (float)(has_ratio ? s->lr * sqrt(sums[0] / sums[1]) : s->lr);
    float *restrict param = r->param;
    const float *restrict direction = r->direction;
    for (size_t i = 0; i < r->count; i++) param[i] -= rate * direction[i];
}

const tdm_optim_ops TDM__AT_LEVEL(tdm__optim_lamb) = {.name = "lamb",
                                                      .state_count = 2,
                                                      .state_names = {"m", "v"},
                                                      .prepare = lamb_prepare,
                                                      .apply = lamb_apply};
