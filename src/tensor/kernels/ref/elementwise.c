/*
 * elementwise.c: plain loops for sums and products of two tensors, where the second may be only the
 * end of the first's shape and is then used again for each of the leading indices; for scaling; and
 * for two activations.
 *
 * Every output number depends on the inputs' numbers at its own place (or, of a shorter b, at its
 * place within b), so the output may lie over an input of its own size.
 */
#include "tensor/kernels/ref/ref.h"

#include <math.h>

/* How often b is used: once when the shapes are equal. */
static int64_t repeats(const tdm_kernel_call *call)
{
    int64_t b = tdm_tensor_elements(&call->in[1]);
    return b > 0 ? tdm_tensor_elements(&call->in[0]) / b : 0;
}

static void run_add(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const float *b = tdm__ref_in(call, 1);
    int64_t rows = repeats(call), N = tdm_tensor_elements(&call->in[1]);
    for (int64_t r = 0; r < rows; r++) {
        const float *a = tdm__ref_in(call, 0) + r * N;
        float *out = tdm__ref_out(call, 0) + r * N;
        for (int64_t n = 0; n < N; n++) out[n] = a[n] + b[n];
    }
}

static void run_mul(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const float *b = tdm__ref_in(call, 1);
    int64_t rows = repeats(call), N = tdm_tensor_elements(&call->in[1]);
    for (int64_t r = 0; r < rows; r++) {
        const float *a = tdm__ref_in(call, 0) + r * N;
        float *out = tdm__ref_out(call, 0) + r * N;
        for (int64_t n = 0; n < N; n++) out[n] = a[n] * b[n];
    }
}

static void run_scale(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const float *x = tdm__ref_in(call, 0);
    float *y = tdm__ref_out(call, 0);
    for (int64_t i = 0, n = tdm_tensor_elements(&call->out[0]); i < n; i++)
        y[i] = (float)((double)x[i] * call->attrs.scale);
}

static double silu(double x)
{
    return x / (1.0 + exp(-x));
}

static double silu_slope(double x)
{
    double s = 1.0 / (1.0 + exp(-x));
    return s * (1.0 + x * (1.0 - s));
}

/* 0.5 x (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3). */
static const double ROOT_2_OVER_PI = 0.79788456080286535588, CUBIC = 0.044715;

static double gelu_tanh(double x)
{
    return 0.5 * x * (1.0 + tanh(ROOT_2_OVER_PI * (x + CUBIC * x * x * x)));
}

static double gelu_tanh_slope(double x)
{
    double t = tanh(ROOT_2_OVER_PI * (x + CUBIC * x * x * x));
    double du = ROOT_2_OVER_PI * (1.0 + 3.0 * CUBIC * x * x);
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * du;
}

static inline void map(const tdm_kernel_call *call, double (*f)(double))
{
    const float *x = tdm__ref_in(call, 0);
    float *y = tdm__ref_out(call, 0);
    for (int64_t i = 0, n = tdm_tensor_elements(&call->out[0]); i < n; i++)
        y[i] = (float)f((double)x[i]);
}

static inline void map_slope(const tdm_kernel_call *call, double (*slope)(double))
{
    const float *dy = tdm__ref_in(call, 0), *x = tdm__ref_in(call, 1);
    float *dx = tdm__ref_out(call, 0);
    for (int64_t i = 0, n = tdm_tensor_elements(&call->out[0]); i < n; i++)
        dx[i] = (float)((double)dy[i] * slope((double)x[i]));
}

static void run_silu(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    map(call, silu);
}

static void run_silu_grad(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    map_slope(call, silu_slope);
}

static void run_gelu_tanh(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    map(call, gelu_tanh);
}

static void run_gelu_tanh_grad(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    map_slope(call, gelu_tanh_slope);
}

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_ADD, .dtype = TDM_DTYPE_F32, .run = run_add},
    {.op = TDM_OP_MUL, .dtype = TDM_DTYPE_F32, .run = run_mul},
    {.op = TDM_OP_SCALE, .dtype = TDM_DTYPE_F32, .run = run_scale},
    {.op = TDM_OP_SILU, .dtype = TDM_DTYPE_F32, .run = run_silu},
    {.op = TDM_OP_SILU_GRAD, .dtype = TDM_DTYPE_F32, .run = run_silu_grad},
    {.op = TDM_OP_GELU_TANH, .dtype = TDM_DTYPE_F32, .run = run_gelu_tanh},
    {.op = TDM_OP_GELU_TANH_GRAD, .dtype = TDM_DTYPE_F32, .run = run_gelu_tanh_grad},
};

const tdm_kernel_family tdm__ref_elementwise = {kernels, sizeof(kernels) / sizeof(kernels[0])};
