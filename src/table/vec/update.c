/*
 * update.c: the methods that update rows, as compiled for each instruction-set level (tensor/level.h).
 *
 * Products and sums are rounded separately, so that each level computes the same bits. SGD, Adagrad and Adam are
 * the methods of src/optim/vec, and have the same bits as an update of a dense tensor with the same gradient. Adam
 * is lazy: a row's moments and its bias correction count the updates of the row, not the steps of the run.
 *
 * Rows are processed in pieces of LANES numbers, so that the compiler has loops of a constant length.
 */
#include "table/internal.h"
#include "tensor/level.h"

#include <math.h>

enum { LANES = 16 };

/* One piece of a row. All arrays have `count` numbers. */
typedef struct piece {
    float *restrict param, *restrict state0, *restrict state1;
    const float *restrict grad;
    float rate, root_correction; /* Adam */
} piece;

static inline __attribute__((always_inline)) void sgd_piece(const tdm__table_rule *r,
                                                            const piece *p, size_t count)
{
    const float lr = r->lr, decay = r->decay;
    float *restrict param = p->param;
    const float *restrict grad = p->grad;
    for (size_t i = 0; i < count; i++) param[i] -= lr * (grad[i] + decay * param[i]);
}

static inline __attribute__((always_inline)) void adagrad_piece(const tdm__table_rule *r,
                                                                const piece *p, size_t count)
{
    const float lr = r->lr, eps = r->eps, decay = r->decay;
    float *restrict param = p->param;
    float *restrict sum = p->state0;
    const float *restrict grad = p->grad;
    for (size_t i = 0; i < count; i++) {
        float g = grad[i] + decay * param[i];
        float all = sum[i] + g * g;
        sum[i] = all;
        param[i] -= lr * (g / (sqrtf(all) + eps));
    }
}

/* FTRL-proximal (McMahan et al., 2013), per coordinate; lr is alpha. */
static inline __attribute__((always_inline)) void ftrl_piece(const tdm__table_rule *r,
                                                             const piece *p, size_t count)
{
    const float alpha = r->lr, beta = r->beta, l1 = r->l1, l2 = r->l2;
    float *restrict param = p->param;
    float *restrict z = p->state0;
    float *restrict n = p->state1;
    const float *restrict grad = p->grad;
    for (size_t i = 0; i < count; i++) {
        float g = grad[i], old_n = n[i], new_n = old_n + g * g;
        float root = sqrtf(new_n), sigma = (root - sqrtf(old_n)) / alpha;
        float new_z = z[i] + (g - sigma * param[i]);
        float size = fabsf(new_z), signed_l1 = new_z < 0.0f ? -l1 : l1;
        float w = -(new_z - signed_l1) / ((beta + root) / alpha + l2);
        n[i] = new_n;
        z[i] = new_z;
        param[i] = size > l1 ? w : 0.0f;
    }
}

static inline __attribute__((always_inline)) void adam_piece(const tdm__table_rule *r,
                                                             const piece *p, size_t count)
{
    const float beta1 = r->beta1, beta2 = r->beta2, eps = r->eps;
    const float fresh1 = r->fresh1, fresh2 = r->fresh2, decay = r->decay;
    const float rate = p->rate, root_correction = p->root_correction;
    float *restrict m = p->state0;
    float *restrict v = p->state1;
    float *restrict param = p->param;
    const float *restrict grad = p->grad;
    for (size_t i = 0; i < count; i++) {
        float g = grad[i] + decay * param[i];
        m[i] = beta1 * m[i] + fresh1 * g;
        v[i] = beta2 * v[i] + fresh2 * g * g;
        param[i] -= rate * m[i] / (sqrtf(v[i]) * root_correction + eps);
    }
}

/* ---- gradients ---------------------------------------------------------------------------------- */

/* The gradient of a key: that of its only position, or the sum of all in the order of the call. */
static inline const float *grad_of(const tdm__table_work *w, const tdm__table_unique *unique)
{
    const float *grad = w->grads + unique->first * w->width;
    if (unique->count == 1) return grad;
    float *restrict sum = w->sum;
    memcpy(sum, grad, w->width * sizeof(*sum));
    for (uint32_t position = unique->first; position != unique->last;) {
        position = w->next[position];
        const float *restrict other = w->grads + position * w->width;
        size_t i = 0;
        for (; i + LANES <= w->width; i += LANES)
            for (size_t k = 0; k < LANES; k++) sum[i + k] += other[i + k];
        for (; i < w->width; i++) sum[i] += other[i];
    }
    return sum;
}

static inline void unique_prefetch(const tdm__table_work *w, const tdm__table_unique *unique)
{
    if (unique->row == TDM__TABLE_NO_ROW) return;
    const uint8_t *row = w->rows + unique->row * w->row_bytes;
    for (size_t at = 0; at < w->row_bytes && at < 256; at += TDM__TABLE_LINE_BYTES)
        __builtin_prefetch(row + at, 1);
    __builtin_prefetch(w->grads + unique->first * w->width);
}

/* ---- Adam's bias correction --------------------------------------------------------------------- */

static inline void adam_correct(const tdm__table_rule *r, uint32_t t, piece *p)
{
    if (t < TDM__TABLE_CORRECTIONS) {
        p->rate = (float)(r->lr_f64 / r->correction1[t]);
        p->root_correction = r->root_correction[t];
        return;
    }
    p->rate = (float)(r->lr_f64 / (1.0 - tdm_math_power(r->beta1_f64, t)));
    p->root_correction = (float)(1.0 / sqrt(1.0 - tdm_math_power(r->beta2_f64, t)));
}

/* ---- the loop over rows, once for each method --------------------------------------------------- */

typedef void (*piece_fn)(const tdm__table_rule *rule, const piece *p, size_t count);

static inline __attribute__((always_inline)) void rows_update(const tdm__table_work *w,
                                                              piece_fn update, bool is_adam)
{
    for (size_t u = 0; u < w->count; u++) {
        if (u + TDM__TABLE_AHEAD < w->count) unique_prefetch(w, &w->uniques[u + TDM__TABLE_AHEAD]);
        const tdm__table_unique *unique = &w->uniques[u];
        if (unique->row == TDM__TABLE_NO_ROW) continue;
        const float *grad = grad_of(w, unique);
        float *param = (float *)(void *)(w->rows + unique->row * w->row_bytes);
        float *state0 = param + w->width, *state1 = state0 + w->width;
        piece p = {.rate = 0};
        if (w->use) {
            tdm__table_use *use = &w->use[unique->row];
            if (use->updates < UINT32_MAX) use->updates++;
            use->last_step = w->step;
            if (is_adam) adam_correct(w->rule, use->updates, &p);
        }
        size_t i = 0;
        for (; i + LANES <= w->width; i += LANES) {
            p.param = param + i, p.state0 = state0 + i, p.state1 = state1 + i, p.grad = grad + i;
            update(w->rule, &p, LANES);
        }
        p.param = param + i, p.state0 = state0 + i, p.state1 = state1 + i, p.grad = grad + i;
        update(w->rule, &p, w->width - i);
    }
}

static void sgd_update(const tdm__table_work *w)
{
    rows_update(w, sgd_piece, false);
}

static void adagrad_update(const tdm__table_work *w)
{
    rows_update(w, adagrad_piece, false);
}

static void ftrl_update(const tdm__table_work *w)
{
    rows_update(w, ftrl_piece, false);
}

static void adam_update(const tdm__table_work *w)
{
    rows_update(w, adam_piece, true);
}

const tdm__table_methods TDM__AT_LEVEL(tdm__table_methods) = {
    .level = TDM__LEVEL,
    .update = {[TDM_TABLE_OPTIM_SGD] = sgd_update,
               [TDM_TABLE_OPTIM_ADAGRAD] = adagrad_update,
               [TDM_TABLE_OPTIM_FTRL] = ftrl_update,
               [TDM_TABLE_OPTIM_ADAM] = adam_update}};
