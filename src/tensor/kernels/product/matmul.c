/* matmul.c: matrix products, single or batched, with a bias and an activation, by product.h. */
#include "tensor/kernels/product/product.h"

static void matrix_lines(const void *source, int64_t first, int64_t count, int64_t piece,
                         const float **out)
{
    (void)piece;
    const tdm__matrix *m = source;
    for (int64_t i = 0; i < count; i++) out[i] = m->data + (first + i) * m->stride;
}

tdm__factor tdm__factor_of(const tdm__matrix *matrix, int64_t length, bool along_k)
{
    return (tdm__factor){.lines = matrix_lines,
                         .source = matrix,
                         .piece_length = length,
                         .along_k = along_k,
                         .stride = matrix->stride};
}

/* The sizes only: all that prepare() knows. */
static tdm__product matmul_sizes(const tdm_kernel_call *call)
{
    const tdm_shape *y = &call->out[0].shape, *a = &call->in[0].shape;
    return (tdm__product){.M = y->dim[y->rank - 2],
                          .N = y->dim[y->rank - 1],
                          .K = a->dim[y->rank - 2 + (call->attrs.trans_a ? 0 : 1)],
                          .activation = (tdm_activation)call->attrs.activation};
}

static tdm_status matmul_prepare(void *backend, tdm_kernel_call *call, tdm_error *err)
{
    (void)backend;
    tdm__product p = matmul_sizes(call);
    if (call->in[0].dtype != TDM_DTYPE_F32)
        return tdm_fail(err, TDM_ERR_UNSUPPORTED, "product: the factors are not f32");
    if (p.K == 0 || tdm_tensor_elements(&call->out[0]) == 0)
        return tdm_fail(err, TDM_ERR_UNSUPPORTED, "product: empty");
    call->scratch_bytes = tdm__product_here()->scratch_bytes(p.M, p.N, p.K);
    return TDM_OK;
}

static void matmul_run(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    tdm__product p = matmul_sizes(call);
    bool ta = call->attrs.trans_a, tb = call->attrs.trans_b;
    int64_t count = call->out[0].shape.rank == 3 ? call->out[0].shape.dim[0] : 1;
    tdm__matrix a = {call->in[0].data, ta ? p.M : p.K}, b = {call->in[1].data, tb ? p.K : p.N};
    p.a = tdm__factor_of(&a, ta ? p.M : p.K, !ta);
    p.b = tdm__factor_of(&b, tb ? p.K : p.N, tb);
    p.bias = call->in[2].dtype ? call->in[2].data : NULL;
    p.c = call->out[0].data;
    p.c_stride = p.N;
    for (int64_t i = 0; i < count; i++) {
        tdm__product_here()->run(&p, call->scratch);
        a.data += p.M * p.K;
        b.data += p.K * p.N;
        p.c += p.M * p.N;
    }
}

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_MATMUL, .dtype = TDM_DTYPE_F32, .prepare = matmul_prepare, .run = matmul_run},
};

const tdm_kernel_family tdm__product_matmul = {kernels, sizeof(kernels) / sizeof(kernels[0])};

static const tdm_kernel_family *const families[] = {&tdm__product_matmul, &tdm__product_conv, NULL};

const tdm_kernel_backend_ops tdm__kernels_product = {.name = "product", .families = families};
