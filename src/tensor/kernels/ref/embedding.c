/*
 * embedding.c: plain loops for looking up rows of a table, and for the gradient of the table.
 *
 * A row of the table's gradient is the sum of the gradients of all positions that select it, in the
 * order of the positions and in double precision. To this end the positions of each id are chained
 * first: scratch has C doubles for one row's sum, the first position of each of the V ids, and the
 * next position of each position. Every row of the result is written once. An id outside [0, V)
 * violates an invariant and aborts the program: it would access memory outside the table.
 */
#include "tensor/kernels/ref/ref.h"

#include <assert.h>
#include <string.h>

static void run_embedding(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const float *table = tdm__ref_in(call, 0);
    const int32_t *ids = call->in[1].data;
    float *y = tdm__ref_out(call, 0);
    int64_t V = call->in[0].shape.dim[0], C = call->in[0].shape.dim[1];
    for (int64_t i = 0, n = tdm_tensor_elements(&call->in[1]); i < n; i++) {
        assert(ids[i] >= 0 && ids[i] < V);
        memcpy(y + i * C, table + ids[i] * C, (size_t)C * sizeof(float));
    }
}

static tdm_status prepare_embedding_grad(void *backend, tdm_kernel_call *call, tdm_error *err)
{
    (void)backend;
    (void)err;
    size_t V = (size_t)call->out[0].shape.dim[0], C = (size_t)call->out[0].shape.dim[1];
    size_t places = (size_t)tdm_tensor_elements(&call->in[1]);
    call->scratch_bytes = C * sizeof(double) + (V + places) * sizeof(int64_t);
    return TDM_OK;
}

static void run_embedding_grad(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const float *dy = tdm__ref_in(call, 0), *base = call->in[2].data; /* may be NULL */
    const int32_t *ids = call->in[1].data;
    int64_t V = call->out[0].shape.dim[0], C = call->out[0].shape.dim[1];
    int64_t places = tdm_tensor_elements(&call->in[1]);
    double *sum = call->scratch;
    int64_t *first = (int64_t *)(sum + C), *next = first + V;
    for (int64_t v = 0; v < V; v++) first[v] = -1;
    for (int64_t i = places - 1; i >= 0; i--) { /* from the end, so that chains run forwards */
        assert(ids[i] >= 0 && ids[i] < V);
        next[i] = first[ids[i]];
        first[ids[i]] = i;
    }
    for (int64_t v = 0; v < V; v++) {
        float *d_table = tdm__ref_out(call, 0) + v * C;
        for (int64_t c = 0; c < C; c++) sum[c] = base ? (double)base[v * C + c] : 0;
        for (int64_t i = first[v]; i >= 0; i = next[i])
            for (int64_t c = 0; c < C; c++) sum[c] += (double)dy[i * C + c];
        for (int64_t c = 0; c < C; c++) d_table[c] = (float)sum[c];
    }
}

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_EMBEDDING, .dtype = TDM_DTYPE_F32, .run = run_embedding},
    {.op = TDM_OP_EMBEDDING_GRAD,
     .dtype = TDM_DTYPE_F32,
     .prepare = prepare_embedding_grad,
     .run = run_embedding_grad},
};

const tdm_kernel_family tdm__ref_embedding = {kernels, sizeof(kernels) / sizeof(kernels[0])};
