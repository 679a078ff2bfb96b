/*
 * basic.c: element-wise ops: one pass over memory, as wide as the processor can.
 */
#include "tensor/kernels/cpu/vec/vec.h"

static inline void add(const float *a, const float *b, float *out, int64_t n)
{
    int64_t i = 0;
    for (; i + TDM__WIDTH <= n; i += TDM__WIDTH)
        *(vf *)(out + i) = *(const vf *)(a + i) + *(const vf *)(b + i);
    for (; i < n; i++) out[i] = a[i] + b[i];
}

/* b may be the end of a's shape; it then serves every one of the leading indices. */
static void run_add(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const float *a = call->in[0].data, *b = call->in[1].data;
    float *out = call->out[0].data;
    int64_t n = tdm_tensor_elements(&call->out[0]), N = tdm_tensor_elements(&call->in[1]);
    for (int64_t i = 0; i < n; i += N) add(a + i, b, out + i, N);
}

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_ADD, .dtype = TDM_DTYPE_F32, .run = run_add},
};

const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_basic) = {kernels,
                                                         sizeof(kernels) / sizeof(kernels[0])};
