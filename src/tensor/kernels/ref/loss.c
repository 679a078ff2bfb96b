/*
 * loss.c: plain loops for softmax and for losses: cross entropy, the element-wise losses, penalties
 * on weights.
 *
 * A loss is the sum over all rows or elements, in double precision and in index order, times
 * attrs.scale. Its gradient gets d_loss, the gradient of the loss. A class outside [0, V) that is
 * not the ignored one violates an invariant and aborts the program: it would access memory outside
 * the row.
 */
#include "tensor/kernels/ref/ref.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* ---- softmax ---------------------------------------------------------------------------------- */

/* One row; returns the logarithm of the sum of exponentials. */
static double softmax_row(const float *x, float *y, int64_t V)
{
    float largest = x[0];
    for (int64_t v = 1; v < V; v++)
        if (x[v] > largest) largest = x[v];
    double sum = 0;
    for (int64_t v = 0; v < V; v++) sum += exp((double)x[v] - (double)largest);
    double log_sum = log(sum) + (double)largest;
    for (int64_t v = 0; v < V; v++) y[v] = (float)exp((double)x[v] - log_sum);
    return log_sum;
}

static void run_softmax(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    int64_t rows = tdm__ref_rows(&call->in[0]), V = tdm__ref_columns(&call->in[0]);
    for (int64_t r = 0; r < rows; r++)
        softmax_row(tdm__ref_in(call, 0) + r * V, tdm__ref_out(call, 0) + r * V, V);
}

static void run_softmax_grad(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    int64_t rows = tdm__ref_rows(&call->in[0]), V = tdm__ref_columns(&call->in[0]);
    for (int64_t r = 0; r < rows; r++) {
        const float *dy = tdm__ref_in(call, 0) + r * V, *y = tdm__ref_in(call, 1) + r * V;
        float *dx = tdm__ref_out(call, 0) + r * V;
        double dot = 0;
        for (int64_t v = 0; v < V; v++) dot += (double)dy[v] * (double)y[v];
        for (int64_t v = 0; v < V; v++) dx[v] = (float)((double)y[v] * ((double)dy[v] - dot));
    }
}

/* ---- cross entropy ---------------------------------------------------------------------------- */

static bool row_counts(const tdm_op_attrs *attrs, int32_t class, int64_t V)
{
    if (attrs->has_ignore && class == attrs->ignore) return false;
    assert(class >= 0 && class < V);
    return true;
}

/*
 * The target is (1 - s) at the row's class, plus s / V everywhere, s being the smoothing. With log
 * p = x - log_sum the row's loss is log_sum - (1 - s) x[class] - s times the mean of x.
 */
static double expected_logit(const float *x, int32_t class, int64_t V, double smoothing)
{
    if (smoothing == 0) return (double)x[class];
    double sum = 0;
    for (int64_t v = 0; v < V; v++) sum += (double)x[v];
    return (1 - smoothing) * (double)x[class] + smoothing * (sum / (double)V);
}

static void run_cross_entropy(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const tdm_op_attrs *attrs = &call->attrs;
    const int32_t *classes = call->in[1].data;
    int64_t rows = tdm__ref_rows(&call->in[0]), V = tdm__ref_columns(&call->in[0]);
    double sum = 0;
    for (int64_t r = 0; r < rows; r++) {
        const float *x = tdm__ref_in(call, 0) + r * V;
        bool counted = row_counts(attrs, classes[r], V);
        /* The result may overwrite the logits, so the needed logits are read first. */
        double expected = counted ? expected_logit(x, classes[r], V, (double)attrs->label_smoothing)
                                  : 0;
        double log_sum = softmax_row(x, tdm__ref_out(call, 1) + r * V, V);
        if (counted) sum += log_sum - expected;
    }
    tdm__ref_out(call, 0)[0] = (float)(sum * attrs->scale);
}

static void run_cross_entropy_grad(void *backend, const tdm_kernel_call *call,
                                   const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const tdm_op_attrs *attrs = &call->attrs;
    const int32_t *classes = call->in[1].data;
    int64_t rows = tdm__ref_rows(&call->in[0]), V = tdm__ref_columns(&call->in[0]);
    float factor = (float)(attrs->scale * (double)tdm__ref_in(call, 2)[0]);
    float spread = attrs->label_smoothing / (float)V, peak = 1.0f - attrs->label_smoothing;
    for (int64_t r = 0; r < rows; r++) {
        const float *p = tdm__ref_in(call, 0) + r * V;
        float *dx = tdm__ref_out(call, 0) + r * V;
        if (!row_counts(attrs, classes[r], V)) {
            memset(dx, 0, (size_t)V * sizeof(float));
            continue;
        }
        for (int64_t v = 0; v < V; v++)
            dx[v] = (p[v] - (v == classes[r] ? peak + spread : spread)) * factor;
    }
}

/* ---- element-wise losses ---------------------------------------------------------------------- */

/* -1, 0 or 1; NaN stays NaN. */
static double sign(double x)
{
    return x > 0 ? 1 : x < 0 ? -1 : x;
}

static double mse(double x, double t, double delta)
{
    (void)delta;
    return (x - t) * (x - t);
}

static double mse_slope(double x, double t, double delta)
{
    (void)delta;
    return 2 * (x - t);
}

static double l1(double x, double t, double delta)
{
    (void)delta;
    return fabs(x - t);
}

static double l1_slope(double x, double t, double delta)
{
    (void)delta;
    return sign(x - t);
}

static double huber(double x, double t, double delta)
{
    double off = fabs(x - t);
    return off > delta ? delta * (off - 0.5 * delta) : 0.5 * off * off;
}

static double huber_slope(double x, double t, double delta)
{
    double off = x - t;
    return fabs(off) > delta ? delta * sign(off) : off;
}

/* log(1 + e^x) - t x, written so that no exponential overflows: max(x, 0) - t x + log(1 + e^-|x|). */
static double bce_logits(double x, double t, double delta)
{
    (void)delta;
    return (x < 0 ? -t : 1 - t) * x + log1p(exp(-fabs(x)));
}

static double bce_logits_slope(double x, double t, double delta)
{
    (void)delta;
    return 1 / (1 + exp(-x)) - t;
}

/* t log t is 0 at t = 0. */
static double kl(double x, double t, double delta)
{
    (void)delta;
    return t * ((t == 0 ? 0 : log(t)) - x);
}

static double kl_slope(double x, double t, double delta)
{
    (void)x;
    (void)delta;
    return -t;
}

typedef struct element_loss {
    double (*value)(double x, double t, double delta);
    double (*slope)(double x, double t, double delta); /* by x */
} element_loss;

static const element_loss element_losses[] = {
    [TDM_LOSS_MSE] = {mse, mse_slope},       [TDM_LOSS_L1] = {l1, l1_slope},
    [TDM_LOSS_HUBER] = {huber, huber_slope}, [TDM_LOSS_BCE_LOGITS] = {bce_logits, bce_logits_slope},
    [TDM_LOSS_KL] = {kl, kl_slope},
};

static void run_loss(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const float *x = tdm__ref_in(call, 0), *t = tdm__ref_in(call, 1);
    const element_loss *loss = &element_losses[call->attrs.loss];
    double sum = 0;
    for (int64_t i = 0, n = tdm_tensor_elements(&call->in[0]); i < n; i++)
        sum += loss->value((double)x[i], (double)t[i], (double)call->attrs.delta);
    tdm__ref_out(call, 0)[0] = (float)(sum * call->attrs.scale);
}

static void run_loss_grad(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const float *x = tdm__ref_in(call, 0), *t = tdm__ref_in(call, 1);
    float *dx = tdm__ref_out(call, 0);
    const element_loss *loss = &element_losses[call->attrs.loss];
    double factor = call->attrs.scale * (double)tdm__ref_in(call, 2)[0];
    for (int64_t i = 0, n = tdm_tensor_elements(&call->in[0]); i < n; i++)
        dx[i] = (float)(factor *
                        loss->slope((double)x[i], (double)t[i], (double)call->attrs.delta));
}

/* ---- penalties -------------------------------------------------------------------------------- */

static void run_penalty(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const float *w = tdm__ref_in(call, 0);
    double sum = 0;
    for (int64_t i = 0, n = tdm_tensor_elements(&call->in[0]); i < n; i++)
        sum += call->attrs.power == 1 ? fabs((double)w[i]) : (double)w[i] * (double)w[i];
    tdm__ref_out(call, 0)[0] = (float)(sum * call->attrs.scale);
}

static void run_penalty_grad(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const float *w = tdm__ref_in(call, 0);
    float *dw = tdm__ref_out(call, 0);
    double factor = call->attrs.scale * (double)tdm__ref_in(call, 1)[0];
    for (int64_t i = 0, n = tdm_tensor_elements(&call->in[0]); i < n; i++)
        dw[i] = (float)(factor * (call->attrs.power == 1 ? sign((double)w[i]) : 2 * (double)w[i]));
}

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_SOFTMAX, .dtype = TDM_DTYPE_F32, .run = run_softmax},
    {.op = TDM_OP_SOFTMAX_GRAD, .dtype = TDM_DTYPE_F32, .run = run_softmax_grad},
    {.op = TDM_OP_CROSS_ENTROPY, .dtype = TDM_DTYPE_F32, .run = run_cross_entropy},
    {.op = TDM_OP_CROSS_ENTROPY_GRAD, .dtype = TDM_DTYPE_F32, .run = run_cross_entropy_grad},
    {.op = TDM_OP_LOSS, .dtype = TDM_DTYPE_F32, .run = run_loss},
    {.op = TDM_OP_LOSS_GRAD, .dtype = TDM_DTYPE_F32, .run = run_loss_grad},
    {.op = TDM_OP_PENALTY, .dtype = TDM_DTYPE_F32, .run = run_penalty},
    {.op = TDM_OP_PENALTY_GRAD, .dtype = TDM_DTYPE_F32, .run = run_penalty_grad},
};

const tdm_kernel_family tdm__ref_loss = {kernels, sizeof(kernels) / sizeof(kernels[0])};
