/*
 * activations.c: activations and their slopes, in double precision: as ops, and applied by a
 * product or a convolution to its result.
 *
 * Gradient ops get dy and either x or y, whichever is simpler for the slope; kernel.h defines
 * which. Every output depends only on the inputs at its own index, so the output may overwrite an
 * input. ReLU keeps NaN: a model that diverges must not look like one whose units are dead.
 */
#include "tensor/kernels/ref/ref.h"

#include <math.h>

static double relu(double x)
{
    return x < 0 ? 0 : x;
}

static double relu_slope(double y)
{
    return y > 0 ? 1 : 0;
}

static double gelu(double x)
{
    return 0.5 * x * (1 + erf(x * M_SQRT1_2));
}

static double gelu_slope(double x)
{
    double density = exp(-0.5 * x * x) * 0.3989422804014326779;
    return 0.5 * (1 + erf(x * M_SQRT1_2)) + x * density;
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

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double sigmoid_slope(double y)
{
    return y * (1 - y);
}

static double silu(double x)
{
    return x / (1.0 + exp(-x));
}

static double silu_slope(double x)
{
    double s = sigmoid(x);
    return s * (1.0 + x * (1.0 - s));
}

static double tanh_slope(double y)
{
    return 1 - y * y;
}

double tdm__ref_activate(int activation, double x)
{
    switch ((tdm_activation)activation) {
    case TDM_ACTIVATION_NONE: break;
    case TDM_ACTIVATION_RELU: return relu(x);
    case TDM_ACTIVATION_GELU: return gelu(x);
    case TDM_ACTIVATION_GELU_TANH: return gelu_tanh(x);
    case TDM_ACTIVATION_SILU: return silu(x);
    case TDM_ACTIVATION_TANH: return tanh(x);
    case TDM_ACTIVATION_SIGMOID: return sigmoid(x);
    }
    return x;
}

static inline void elements_map(const tdm_kernel_call *call, double (*f)(double))
{
    const float *x = tdm__ref_in(call, 0);
    float *y = tdm__ref_out(call, 0);
    for (int64_t i = 0, n = tdm_tensor_elements(&call->out[0]); i < n; i++)
        y[i] = (float)f((double)x[i]);
}

static inline void map_slope(const tdm_kernel_call *call, double (*slope)(double))
{
    const float *dy = tdm__ref_in(call, 0), *at = tdm__ref_in(call, 1);
    float *dx = tdm__ref_out(call, 0);
    for (int64_t i = 0, n = tdm_tensor_elements(&call->out[0]); i < n; i++)
        dx[i] = (float)((double)dy[i] * slope((double)at[i]));
}

#define ACTIVATION(name, f, slope)                                                                 \
    static void run_##name(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)    \
    {                                                                                              \
        (void)backend;                                                                             \
        (void)key;                                                                                 \
        elements_map(call, f);                                                                     \
    }                                                                                              \
    static void run_##name##_grad(void *backend, const tdm_kernel_call *call,                      \
                                  const tdm_step_key *key)                                         \
    {                                                                                              \
        (void)backend;                                                                             \
        (void)key;                                                                                 \
        map_slope(call, slope);                                                                    \
    }

ACTIVATION(relu, relu, relu_slope)
ACTIVATION(gelu, gelu, gelu_slope)
ACTIVATION(gelu_tanh, gelu_tanh, gelu_tanh_slope)
ACTIVATION(silu, silu, silu_slope)
ACTIVATION(tanh, tanh, tanh_slope)
ACTIVATION(sigmoid, sigmoid, sigmoid_slope)

/* y may be bf16. */
static void run_relu_grad_by(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    if (call->in[1].dtype != TDM_DTYPE_BF16) {
        run_relu_grad(backend, call, key);
        return;
    }
    const float *dy = tdm__ref_in(call, 0);
    float *dx = tdm__ref_out(call, 0);
    for (int64_t i = 0, n = tdm_tensor_elements(&call->out[0]); i < n; i++) {
        float y;
        tdm_tensor_to_f32(TDM_DTYPE_BF16, (const uint16_t *)call->in[1].data + i, 1, &y);
        dx[i] = (float)((double)dy[i] * relu_slope((double)y));
    }
}

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_RELU, .dtype = TDM_DTYPE_F32, .run = run_relu},
    {.op = TDM_OP_RELU_GRAD, .dtype = TDM_DTYPE_F32, .run = run_relu_grad_by},
    {.op = TDM_OP_GELU, .dtype = TDM_DTYPE_F32, .run = run_gelu},
    {.op = TDM_OP_GELU_GRAD, .dtype = TDM_DTYPE_F32, .run = run_gelu_grad},
    {.op = TDM_OP_GELU_TANH, .dtype = TDM_DTYPE_F32, .run = run_gelu_tanh},
    {.op = TDM_OP_GELU_TANH_GRAD, .dtype = TDM_DTYPE_F32, .run = run_gelu_tanh_grad},
    {.op = TDM_OP_SILU, .dtype = TDM_DTYPE_F32, .run = run_silu},
    {.op = TDM_OP_SILU_GRAD, .dtype = TDM_DTYPE_F32, .run = run_silu_grad},
    {.op = TDM_OP_TANH, .dtype = TDM_DTYPE_F32, .run = run_tanh},
    {.op = TDM_OP_TANH_GRAD, .dtype = TDM_DTYPE_F32, .run = run_tanh_grad},
    {.op = TDM_OP_SIGMOID, .dtype = TDM_DTYPE_F32, .run = run_sigmoid},
    {.op = TDM_OP_SIGMOID_GRAD, .dtype = TDM_DTYPE_F32, .run = run_sigmoid_grad},
};

const tdm_kernel_family tdm__ref_activations = {kernels, sizeof(kernels) / sizeof(kernels[0])};
