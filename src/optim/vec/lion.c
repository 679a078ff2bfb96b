/*
 * lion.c: Lion (Chen et al., 2023, algorithm 2): a step of fixed size in the direction of the sign
 * of a combination of momentum and gradient, with decoupled weight decay. The sign of zero is zero.
 */
#include "optim/vec/vec.h"

static void lion_update(const tdm_optim_settings *s, uint64_t step, const tdm_optim_range *r)
{
    (void)step;
    const float lr = (float)s->lr, keep = (float)(1.0 - s->lr * s->weight_decay);
    const float beta1 = (float)s->beta1, fresh1 = (float)(1.0 - s->beta1);
    const float beta2 = (float)s->beta2, fresh2 = (float)(1.0 - s->beta2);
    float *restrict m = r->state[0];
    float *restrict param = r->param;
    const float *restrict grad = r->grad;
    for (size_t i = 0; i < r->count; i++) {
        float g = grad[i];
        float mix = beta1 * m[i] + fresh1 * g;
        float move = mix > 0.0f ? lr : mix < 0.0f ? -lr : mix; /* keeps NaN visible */
        m[i] = beta2 * m[i] + fresh2 * g;
        param[i] = keep * param[i] - move;
    }
}

const tdm_optim_ops TDM__AT_LEVEL(tdm__optim_lion) = {
    .name = "lion", .state_count = 1, .state_names = {"m"}, .update = lion_update};
