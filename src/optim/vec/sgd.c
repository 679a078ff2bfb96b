/*
 * sgd.c: stochastic gradient descent with momentum (Polyak), optionally Nesterov's, as PyTorch
 * defines them: weight decay is added to the gradient, velocity = momentum * velocity + gradient.
 * Without momentum it has no state.
 */
#include "optim/vec/vec.h"

static bool uses_state(const tdm_optim_settings *s, int state)
{
    (void)state;
    return s->momentum != 0;
}

static void update_plain(const tdm_optim_settings *s, const tdm_optim_range *r)
{
    const float lr = (float)s->lr, decay = (float)s->weight_decay;
    float *restrict param = r->param;
    const float *restrict grad = r->grad;
    for (size_t i = 0; i < r->count; i++) param[i] -= lr * (grad[i] + decay * param[i]);
}

static void sgd_update(const tdm_optim_settings *s, uint64_t step, const tdm_optim_range *r)
{
    (void)step;
    if (s->momentum == 0) {
        update_plain(s, r);
        return;
    }
    const float lr = (float)s->lr, momentum = (float)s->momentum, decay = (float)s->weight_decay;
    float *restrict velocity = r->state[0];
    float *restrict param = r->param;
    const float *restrict grad = r->grad;
    for (size_t i = 0; i < r->count; i++) {
        float g = grad[i] + decay * param[i];
        float v = momentum * velocity[i] + g;
        velocity[i] = v;
        param[i] -= lr * (s->nesterov ? g + momentum * v : v);
    }
}

const tdm_optim_ops TDM__AT_LEVEL(tdm__optim_sgd) = {.name = "sgd",
                                                     .state_count = 1,
                                                     .state_names = {"velocity"},
                                                     .uses_state = uses_state,
                                                     .update = sgd_update};
