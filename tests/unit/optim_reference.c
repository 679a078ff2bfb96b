/*
 * optim_reference.c: see optim_reference.h.
 */
#include "unit/optim_reference.h"

/* torch.optim.SGD, dampening 0. */
static void exact_sgd(const tdm_optim_settings *s, double g, exact_number *x)
{
    g += s->weight_decay * x->param;
    double velocity = s->momentum * x->state[0] + g;
    if (s->momentum != 0) x->state[0] = velocity;
    double step = s->momentum == 0 ? g : s->nesterov ? g + s->momentum * velocity : velocity;
    x->param -= s->lr * step;
}

/* torch.optim.Adagrad, lr_decay 0. */
static void exact_adagrad(const tdm_optim_settings *s, double g, exact_number *x)
{
    g += s->weight_decay * x->param;
    x->state[0] += g * g;
    x->param -= s->lr * g / (sqrt(x->state[0]) + s->eps);
}

/* torch.optim.RMSprop. */
static void exact_rmsprop(const tdm_optim_settings *s, double g, exact_number *x)
{
    g += s->weight_decay * x->param;
    x->state[0] = s->alpha * x->state[0] + (1 - s->alpha) * g * g;
    double variance = x->state[0];
    if (s->centred) {
        x->state[1] = s->alpha * x->state[1] + (1 - s->alpha) * g;
        variance -= x->state[1] * x->state[1];
    }
    double step = g / (sqrt(variance) + s->eps);
    if (s->momentum != 0) step = x->state[2] = s->momentum * x->state[2] + step;
    x->param -= s->lr * step;
}

/* Both moments of Adam, and the resulting direction at step `t`. */
static double exact_adam_direction(const tdm_optim_settings *s, double t, double g, exact_number *x)
{
    x->state[0] = s->beta1 * x->state[0] + (1 - s->beta1) * g;
    x->state[1] = s->beta2 * x->state[1] + (1 - s->beta2) * g * g;
    double m_hat = x->state[0] / (1 - pow(s->beta1, t));
    double v_hat = x->state[1] / (1 - pow(s->beta2, t));
    return m_hat / (sqrt(v_hat) + s->eps);
}

/* torch.optim.Adam. */
static void exact_adam(const tdm_optim_settings *s, double t, double g, exact_number *x)
{
    x->param -= s->lr * exact_adam_direction(s, t, g + s->weight_decay * x->param, x);
}

/* Loshchilov and Hutter, algorithm 2, with a schedule of 1. */
static void exact_adamw(const tdm_optim_settings *s, double t, double g, exact_number *x)
{
    x->param -= s->lr * s->weight_decay * x->param;
    x->param -= s->lr * exact_adam_direction(s, t, g, x);
}

/* Chen et al., algorithm 2. */
static void exact_lion(const tdm_optim_settings *s, double g, exact_number *x)
{
    double mix = s->beta1 * x->state[0] + (1 - s->beta1) * g;
    double sign = (mix > 0) - (mix < 0);
    x->param -= s->lr * (sign + s->weight_decay * x->param);
    x->state[0] = s->beta2 * x->state[0] + (1 - s->beta2) * g;
}

/* You et al., algorithm 2, with phi(z) = z: a tensor at a time. */
static void exact_lamb(const tdm_optim_settings *s, double t, const float *grad, exact_number *x,
                       size_t count)
{
    double params = 0, directions = 0, direction[256];
    for (size_t i = 0; i < count; i++) {
        direction[i] = exact_adam_direction(s, t, (double)grad[i], &x[i]) +
                       s->weight_decay * x[i].param;
        params += x[i].param * x[i].param;
        directions += direction[i] * direction[i];
    }
    double ratio = params > 0 && directions > 0 ? sqrt(params) / sqrt(directions) : 1;
    for (size_t i = 0; i < count; i++) x[i].param -= s->lr * ratio * direction[i];
}

void exact_step(int kind, const tdm_optim_settings *s, uint64_t step, const float *grad,
                exact_number *x, size_t count)
{
    double t = (double)step;
    if (kind == TDM_JOB_OPTIM_LAMB) exact_lamb(s, t, grad, x, count);
    for (size_t i = 0; i < count; i++) {
        double g = (double)grad[i];
        switch ((tdm_job_optim)kind) {
        case TDM_JOB_OPTIM_SGD: exact_sgd(s, g, &x[i]); break;
        case TDM_JOB_OPTIM_ADAGRAD: exact_adagrad(s, g, &x[i]); break;
        case TDM_JOB_OPTIM_RMSPROP: exact_rmsprop(s, g, &x[i]); break;
        case TDM_JOB_OPTIM_ADAM: exact_adam(s, t, g, &x[i]); break;
        case TDM_JOB_OPTIM_ADAMW: exact_adamw(s, t, g, &x[i]); break;
        case TDM_JOB_OPTIM_LION: exact_lion(s, g, &x[i]); break;
        case TDM_JOB_OPTIM_LAMB: break;
        }
    }
}
