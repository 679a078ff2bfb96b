/*
 * elementwise.c: plain loops for sums and products of two tensors, where the shape of the second
 * may be a suffix of the first's and is then repeated for each leading index; and for scaling.
 *
 * Every output depends only on the inputs at its own index (or, for a shorter b, at the
 * corresponding index), so the output may overwrite an input of the same size.
 */
#include "tensor/kernels/ref/ref.h"

/* The number of repetitions of b: 1 if the shapes are equal. */
static int64_t shape_repeats(const tdm_kernel_call *call)
{
    int64_t b = tdm_tensor_elements(&call->in[1]);
    return b > 0 ? tdm_tensor_elements(&call->in[0]) / b : 0;
}

static void run_add(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const float *b = tdm__ref_in(call, 1);
    int64_t rows = shape_repeats(call), N = tdm_tensor_elements(&call->in[1]);
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
    int64_t rows = shape_repeats(call), N = tdm_tensor_elements(&call->in[1]);
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

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_ADD, .dtype = TDM_DTYPE_F32, .run = run_add},
    {.op = TDM_OP_MUL, .dtype = TDM_DTYPE_F32, .run = run_mul},
    {.op = TDM_OP_SCALE, .dtype = TDM_DTYPE_F32, .run = run_scale},
};

const tdm_kernel_family tdm__ref_elementwise = {kernels, sizeof(kernels) / sizeof(kernels[0])};
