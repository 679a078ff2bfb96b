/*
 * cast.c: rounding to bf16, one number at a time, and products of bf16: the inputs are converted to
 * f32, which is exact, in scratch, and then processed like f32 ones.
 */
#include "base/base.h"
#include "tensor/kernels/ref/ref.h"

#include <string.h>

enum { WIDE_INPUTS = 2, ALIGN_BYTES = 64 };

static void run_cast(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const float *x = tdm__ref_in(call, 0);
    uint16_t *y = call->out[0].data;
    for (int64_t i = 0; i < tdm_tensor_elements(&call->in[0]); i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof(bits));
        y[i] = tdm__bf16_of(bits);
    }
}

/* Bytes of an input in f32, rounded up so that the next one is aligned. */
static size_t wide_bytes(const tdm_tensor *t)
{
    size_t bytes = (size_t)tdm_tensor_elements(t) * sizeof(float);
    return tdm_align_up(bytes, ALIGN_BYTES);
}

tdm_status tdm__ref_prepare_wide(void *backend, tdm_kernel_call *call, tdm_error *err)
{
    (void)backend;
    (void)err;
    for (int i = 0; i < WIDE_INPUTS; i++)
        if (call->in[i].dtype == TDM_DTYPE_BF16) call->scratch_bytes += wide_bytes(&call->in[i]);
    return TDM_OK;
}

tdm_kernel_call tdm__ref_wide(const tdm_kernel_call *call)
{
    tdm_kernel_call wide = *call;
    char *to = call->scratch;
    for (int i = 0; i < WIDE_INPUTS; i++) {
        const tdm_tensor *t = &call->in[i];
        if (t->dtype != TDM_DTYPE_BF16) continue;
        tdm_tensor_to_f32(t->dtype, t->data, tdm_tensor_elements(t), (float *)(void *)to);
        wide.in[i] = (tdm_tensor){.dtype = TDM_DTYPE_F32, .shape = t->shape, .data = to};
        to += wide_bytes(t);
    }
    return wide;
}

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_CAST, .dtype = TDM_DTYPE_BF16, .run = run_cast},
};

const tdm_kernel_family tdm__ref_cast = {kernels, sizeof(kernels) / sizeof(kernels[0])};
