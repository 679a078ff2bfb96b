/*
 * adagrad.c: Adagrad (Duchi, Hazan and Singer, 2011) as PyTorch defines it: weight decay is added
 * to the gradient; each number's rate falls with the root of the sum of its squared gradients so
 * far.
 */
#include "optim/vec/vec.h"

#include <math.h>

static void adagrad_update(const tdm_optim_settings *s, uint64_t step, const tdm_optim_range *r)
{
    (void)step;
    const float lr = (float)s->lr, eps = (float)s->eps, decay = (float)s->weight_decay;
    float *restrict sum = r->state[0];
    float *restrict param = r->param;
    const float *restrict grad = r->grad;
    for (size_t i = 0; i < r->count; i++) {
        float g = grad[i] + decay * param[i];
        float all = sum[i] + g * g;
        sum[i] = all;
        param[i] -= lr * (g / (sqrtf(all) + eps));
    }
}

const tdm_optim_ops TDM__AT_LEVEL(tdm__optim_adagrad) = {
    .name = "adagrad", .state_count = 1, .state_names = {"sum"}, .update = adagrad_update};
