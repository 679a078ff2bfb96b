/*
 * adamw.c: Adam with decoupled weight decay (Loshchilov and Hutter, 2019), in PyTorch's order of
 * operations: decay first, then the step with bias-corrected moments.
 */
#include "base/base.h"
#include "optim/vec/vec.h"

#include <math.h>

static void adamw_update(const tdm_optim_settings *s, uint64_t step, const tdm_optim_range *r)
{
    const float beta1 = (float)s->beta1, beta2 = (float)s->beta2, eps = (float)s->eps;
    const float fresh1 = (float)(1.0 - s->beta1), fresh2 = (float)(1.0 - s->beta2);
    const float keep = (float)(1.0 - s->lr * s->weight_decay);
    const float rate = (float)(s->lr / (1.0 - tdm_math_power(s->beta1, step)));
    const float root_correction = (float)(1.0 / sqrt(1.0 - tdm_math_power(s->beta2, step)));
    float *restrict m = r->state[0];
    float *restrict v = r->state[1];
    float *restrict param = r->param;
    const float *restrict grad = r->grad;
    for (size_t i = 0; i < r->count; i++) {
        float g = grad[i];
        m[i] = beta1 * m[i] + fresh1 * g;
        v[i] = beta2 * v[i] + fresh2 * g * g;
        param[i] = keep * param[i] - rate * m[i] / (sqrtf(v[i]) * root_correction + eps);
    }
}

const tdm_optim_ops TDM__AT_LEVEL(tdm__optim_adamw) = {
    .name = "adamw", .state_count = 2, .state_names = {"m", "v"}, .update = adamw_update};
