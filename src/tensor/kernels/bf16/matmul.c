/* matmul.c: matrix products of bf16, single or batched, in the order of bf16.h. */
#include "tensor/kernels/bf16/bf16.h"

/* The product, and the distance to the next one of a batch. */
static tdm__bf16_product product_of(const tdm_kernel_call *call)
{
    const tdm_shape *y = &call->out[0].shape, *a = &call->in[0].shape;
    return (tdm__bf16_product){.M = y->dim[y->rank - 2],
                               .N = y->dim[y->rank - 1],
                               .K = a->dim[y->rank - 2 + (call->attrs.trans_a ? 0 : 1)],
                               .trans_a = call->attrs.trans_a,
                               .trans_b = call->attrs.trans_b,
                               .activation = (tdm_activation)call->attrs.activation};
}

static tdm_status prepare_matmul(void *backend, tdm_kernel_call *call, tdm_error *err)
{
    (void)backend;
    tdm__bf16_product p = product_of(call);
    if (call->in[0].dtype != TDM_DTYPE_BF16 || p.K == 0 || tdm_tensor_elements(&call->out[0]) == 0)
        return tdm_fail(err, TDM_ERR_UNSUPPORTED, "bf16: inputs are not bf16, or are empty");
    call->scratch_bytes = tdm__bf16_scratch_bytes(p.N, p.K);
    return TDM_OK;
}

static void run_matmul(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)key;
    tdm__bf16_product p = product_of(call);
    p.unit = backend;
    int64_t count = call->out[0].shape.rank == 3 ? call->out[0].shape.dim[0] : 1;
    tdm__bf16_plain a = {call->in[0].data, p.trans_a ? p.M : p.K};
    tdm__bf16_plain b = {call->in[1].data, p.trans_b ? p.K : p.N};
    p.a = (tdm__bf16_matrix){tdm__bf16_read_plain, &a};
    p.b = (tdm__bf16_matrix){tdm__bf16_read_plain, &b};
    p.bias = call->in[2].dtype ? call->in[2].data : NULL;
    p.c = call->out[0].data;
    for (int64_t i = 0; i < count; i++) {
        tdm__bf16_run(&p, call->scratch);
        a.data += p.M * p.K;
        b.data += p.K * p.N;
        p.c += p.M * p.N;
    }
}

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_MATMUL, .dtype = TDM_DTYPE_F32, .prepare = prepare_matmul, .run = run_matmul},
};

const tdm_kernel_family tdm__bf16_matmul = {kernels, sizeof(kernels) / sizeof(kernels[0])};
