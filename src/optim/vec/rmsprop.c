/*
 * rmsprop.c: RMSprop (Hinton, 2012; Graves, 2013 for the centred form) as PyTorch defines it:
 * weight decay is added to the gradient; the gradient is divided by the root of a running mean of
 * its squares, from which the centred form subtracts the square of the running mean; momentum comes
 * last.
 *
 * One deviation: if rounding makes that difference slightly negative, zero is used, where PyTorch's
 * root is NaN.
 */
#include "optim/vec/vec.h"

#include <math.h>

enum { SQUARE, MEAN, VELOCITY };

static bool uses_state(const tdm_optim_settings *s, int state)
{
    return state == SQUARE || (state == MEAN ? s->centred : s->momentum != 0);
}

/* The gradient with decay divided by its root mean square. Inlined, so that each form below is one
 * straight loop. */
static inline __attribute__((always_inline)) float rmsprop_normalise(float g, float *square,
                                                                     float *mean, float alpha,
                                                                     float fresh, float eps)
{
    float sq = alpha * *square + fresh * g * g;
    *square = sq;
    if (mean) {
        float m = alpha * *mean + fresh * g;
        *mean = m;
        sq = sq - m * m;
        sq = sq > 0.0f ? sq : 0.0f;
    }
    return g / (sqrtf(sq) + eps);
}

static inline __attribute__((always_inline)) void update_form(const tdm_optim_settings *s,
                                                              const tdm_optim_range *r,
                                                              bool centred, bool has_momentum)
{
    const float lr = (float)s->lr, eps = (float)s->eps, decay = (float)s->weight_decay;
    const float alpha = (float)s->alpha, fresh = (float)(1.0 - s->alpha);
    const float momentum = (float)s->momentum;
    float *restrict square = r->state[SQUARE];
    float *restrict mean = r->state[MEAN];
    float *restrict velocity = r->state[VELOCITY];
    float *restrict param = r->param;
    const float *restrict grad = r->grad;
    for (size_t i = 0; i < r->count; i++) {
        float g = grad[i] + decay * param[i];
        float move = rmsprop_normalise(g, &square[i], centred ? &mean[i] : NULL, alpha, fresh, eps);
        if (has_momentum) {
            move = momentum * velocity[i] + move;
            velocity[i] = move;
        }
        param[i] -= lr * move;
    }
}

static void rmsprop_update(const tdm_optim_settings *s, uint64_t step, const tdm_optim_range *r)
{
    (void)step;
    if (s->centred && s->momentum != 0)
        update_form(s, r, true, true);
    else if (s->centred)
        update_form(s, r, true, false);
    else if (s->momentum != 0)
        update_form(s, r, false, true);
    else
        update_form(s, r, false, false);
}

const tdm_optim_ops TDM__AT_LEVEL(tdm__optim_rmsprop) = {
    .name = "rmsprop",
    .state_count = 3,
    .state_names = {"square", "mean", "velocity"},
    .uses_state = uses_state,
    .update = rmsprop_update};
