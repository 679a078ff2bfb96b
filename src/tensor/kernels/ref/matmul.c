/* matmul.c: matrix products by their definition: sums over k in order, in double precision. */
#include "tensor/kernels/ref/ref.h"

/* c[m, n] = sum over k of op(a)[m, k] op(b)[k, n] + bias[n], for each of the B products. */
static void ref_product(const tdm_kernel_call *call)
{
    const float *a = tdm__ref_in(call, 0), *b = tdm__ref_in(call, 1);
    const float *bias = call->in[2].dtype ? tdm__ref_in(call, 2) : NULL;
    float *c = tdm__ref_out(call, 0);
    const tdm_shape *shape = &call->out[0].shape;
    const int64_t *last_two = shape->dim + (shape->rank - 2);
    int64_t B = shape->rank == 3 ? shape->dim[0] : 1, M = last_two[0], N = last_two[1];
    int64_t K = call->in[0].shape.dim[shape->rank - 2 + (call->attrs.trans_a ? 0 : 1)];
    int64_t a_row = call->attrs.trans_a ? 1 : K, a_col = call->attrs.trans_a ? M : 1;
    int64_t b_row = call->attrs.trans_b ? 1 : N, b_col = call->attrs.trans_b ? K : 1;
    for (int64_t p = 0; p < B; p++, a += M * K, b += K * N, c += M * N) {
        for (int64_t m = 0; m < M; m++) {
            for (int64_t n = 0; n < N; n++) {
                double sum = 0;
                for (int64_t k = 0; k < K; k++)
                    sum += (double)a[m * a_row + k * a_col] * (double)b[k * b_row + n * b_col];
                if (bias) sum += (double)bias[n];
                c[m * N + n] = (float)tdm__ref_activate(call->attrs.activation, sum);
            }
        }
    }
}

static void run_matmul(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    tdm_kernel_call wide = tdm__ref_wide(call);
    ref_product(&wide);
}

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_MATMUL,
     .dtype = TDM_DTYPE_F32,
     .prepare = tdm__ref_prepare_wide,
     .run = run_matmul},
};

const tdm_kernel_family tdm__ref_matmul = {kernels, sizeof(kernels) / sizeof(kernels[0])};
