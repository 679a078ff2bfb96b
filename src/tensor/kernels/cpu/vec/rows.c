/*
 * rows.c: softmax and cross entropy: each row of the last dimension separately.
 *
 * A row is computed by one thread, so its bits depend on no other. Sums over a row are in double
 * precision, with one partial sum for each logical position (vec.h); the sum of the rows' losses is
 * in row order. The last positions of a row are padded with -infinity, which adds nothing. Outputs
 * may overwrite the first input.
 */
#include "base/base.h"
#include "tensor/kernels/cpu/vec/math.h"

#include <assert.h>

typedef struct work {
    const float *x, *y;
    const int32_t *classes;
    const tdm_op_attrs *attrs;
    float *out;
    double *losses; /* of each row */
    int64_t V;
    float factor;
} work;

/* ---- softmax ---------------------------------------------------------------------------------- */

static float largest_of(const float *x, int64_t count)
{
    vf_places largest;
    for (int p = 0; p < TDM__PARTS; p++) largest.part[p] = vf_set(-INFINITY);
    for (int64_t i = 0; i < count; i += TDM__PLACES)
        for (int p = 0; p < TDM__PARTS; p++) {
            int64_t v = i + p * TDM__WIDTH;
            vf part = vf_load_up_to(x + v, count - v, -INFINITY);
            largest.part[p] = vf_max(largest.part[p], part);
        }
    return vf_places_largest(&largest);
}

/* One row; returns the logarithm of the sum of exponentials. */
static double softmax_row(const float *x, float *y, int64_t V)
{
    float largest = largest_of(x, V);
    vsum sum = VSUM_ZERO;
    for (int64_t i = 0; i < V; i += TDM__PLACES)
        for (int p = 0; p < TDM__PARTS; p++) {
            int64_t v = i + p * TDM__WIDTH;
            vf e = vexpf(vf_load_up_to(x + v, V - v, -INFINITY) - largest);
            vf_store_up_to(y + v, V - v, e);
            vsum_add(&sum.part[p], e);
        }
    double total = vsum_total(&sum);
    float share = (float)(1.0 / total);
    for (int64_t v = 0; v < V; v += TDM__WIDTH)
        vf_store_up_to(y + v, V - v, vf_load_up_to(y + v, V - v, 0) * share);
    return tdm_math_log(total) + (double)largest;
}

static void range_softmax(const void *args, int64_t begin, int64_t end)
{
    const work *w = args;
    for (int64_t r = begin; r < end; r++) softmax_row(w->x + r * w->V, w->out + r * w->V, w->V);
}

static void run_softmax(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    work w = {.x = call->in[0].data, .out = call->out[0].data, .V = tdm__vec_columns(&call->in[0])};
    tdm__vec_split(tdm__vec_rows(&call->in[0]), w.V, range_softmax, &w);
}

/* dx = y (dy - sum of dy y) */
static void range_softmax_grad(const void *args, int64_t begin, int64_t end)
{
    const work *w = args;
    for (int64_t r = begin; r < end; r++) {
        const float *dy = w->x + r * w->V, *y = w->y + r * w->V;
        float *dx = w->out + r * w->V;
        vsum sum = VSUM_ZERO;
        for (int64_t i = 0; i < w->V; i += TDM__PLACES)
            for (int p = 0; p < TDM__PARTS; p++) {
                int64_t v = i + p * TDM__WIDTH;
                vsum_add_product(&sum.part[p], vf_load_up_to(dy + v, w->V - v, 0),
                                 vf_load_up_to(y + v, w->V - v, 0));
            }
        float dot = (float)vsum_total(&sum);
        for (int64_t v = 0; v < w->V; v += TDM__WIDTH) {
            vf off = vf_load_up_to(dy + v, w->V - v, 0) - dot;
            vf_store_up_to(dx + v, w->V - v, vf_load_up_to(y + v, w->V - v, 0) * off);
        }
    }
}

static void run_softmax_grad(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    work w = {.x = call->in[0].data,
              .y = call->in[1].data,
              .out = call->out[0].data,
              .V = tdm__vec_columns(&call->in[0])};
    tdm__vec_split(tdm__vec_rows(&call->in[0]), w.V, range_softmax_grad, &w);
}

/* ---- cross entropy ---------------------------------------------------------------------------- */

/* Whether the row is used. A class outside [0, V) would access memory outside the row. */
static bool row_counts(const work *w, int64_t row)
{
    int32_t class = w->classes[row];
    if (w->attrs->has_ignore && class == w->attrs->ignore) return false;
    assert(class >= 0 && class < w->V);
    return true;
}

/* The expected logit of the target: (1 - s) x[class] + s times the mean of x, s being the
 * smoothing. */
static double expected_logit(const work *w, int64_t row)
{
    const float *x = w->x + row * w->V;
    double smoothing = (double)w->attrs->label_smoothing, chosen = (double)x[w->classes[row]];
    if (smoothing == 0) return chosen;
    vsum sum = VSUM_ZERO;
    for (int64_t i = 0; i < w->V; i += TDM__PLACES)
        for (int p = 0; p < TDM__PARTS; p++) {
            int64_t v = i + p * TDM__WIDTH;
            vsum_add(&sum.part[p], vf_load_up_to(x + v, w->V - v, 0));
        }
    return (1 - smoothing) * chosen + smoothing * (vsum_total(&sum) / (double)w->V);
}

static void range_cross_entropy(const void *args, int64_t begin, int64_t end)
{
    const work *w = args;
    for (int64_t r = begin; r < end; r++) {
        bool counted = row_counts(w, r);
        /* The probabilities may overwrite the logits, so the needed logits are read first. */
        double expected = counted ? expected_logit(w, r) : 0;
        double log_sum = softmax_row(w->x + r * w->V, w->out + r * w->V, w->V);
        w->losses[r] = counted ? log_sum - expected : 0;
    }
}

static tdm_status prepare_cross_entropy(void *backend, tdm_kernel_call *call, tdm_error *err)
{
    (void)backend;
    (void)err;
    call->scratch_bytes = (size_t)tdm__vec_rows(&call->in[0]) * sizeof(double);
    return TDM_OK;
}

static void run_cross_entropy(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    int64_t rows = tdm__vec_rows(&call->in[0]);
    work w = {.x = call->in[0].data,
              .classes = call->in[1].data,
              .attrs = &call->attrs,
              .out = call->out[1].data,
              .losses = call->scratch,
              .V = tdm__vec_columns(&call->in[0])};
    tdm__vec_split(rows, w.V, range_cross_entropy, &w);
    double sum = 0;
    for (int64_t r = 0; r < rows; r++) sum += w.losses[r];
    *(float *)call->out[0].data = (float)(sum * call->attrs.scale);
}

/* (p - target) factor; the target is `spread` everywhere and `peak` more at the class. */
static void range_cross_entropy_grad(const void *args, int64_t begin, int64_t end)
{
    const work *w = args;
    float smoothing = w->attrs->label_smoothing;
    float spread = smoothing / (float)w->V, peak = 1.0f - smoothing;
    for (int64_t r = begin; r < end; r++) {
        const float *p = w->x + r * w->V;
        float *dx = w->out + r * w->V;
        if (!row_counts(w, r)) {
            memset(dx, 0, (size_t)w->V * sizeof(float));
            continue;
        }
        float chosen = p[w->classes[r]];
        for (int64_t v = 0; v < w->V; v += TDM__WIDTH) {
            vf off = vf_load_up_to(p + v, w->V - v, 0) - spread;
            vf_store_up_to(dx + v, w->V - v, off * w->factor);
        }
        dx[w->classes[r]] = (chosen - (peak + spread)) * w->factor;
    }
}

static void run_cross_entropy_grad(void *backend, const tdm_kernel_call *call,
                                   const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    double d_loss = (double)*(const float *)call->in[2].data;
    work w = {.x = call->in[0].data,
              .classes = call->in[1].data,
              .attrs = &call->attrs,
              .out = call->out[0].data,
              .V = tdm__vec_columns(&call->in[0]),
              .factor = (float)(call->attrs.scale * d_loss)};
    tdm__vec_split(tdm__vec_rows(&call->in[0]), w.V, range_cross_entropy_grad, &w);
}

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_SOFTMAX, .dtype = TDM_DTYPE_F32, .run = run_softmax},
    {.op = TDM_OP_SOFTMAX_GRAD, .dtype = TDM_DTYPE_F32, .run = run_softmax_grad},
    {.op = TDM_OP_CROSS_ENTROPY,
     .dtype = TDM_DTYPE_F32,
     .prepare = prepare_cross_entropy,
     .run = run_cross_entropy},
    {.op = TDM_OP_CROSS_ENTROPY_GRAD, .dtype = TDM_DTYPE_F32, .run = run_cross_entropy_grad},
};

const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_classes) = {kernels,
                                                           sizeof(kernels) / sizeof(kernels[0])};
