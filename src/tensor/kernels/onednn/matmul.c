/*
 * matmul.c: matrix products by oneDNN's matmul primitive, which adds the bias, followed by an
 * activation.
 *
 * oneDNN does not apply the activation: see tdm__onednn_piece. A large result is divided into
 * pieces, of rows or, in a batch, of whole matrices: one primitive computes the full pieces,
 * another the rest, and the activation is applied to each piece while it is in the cache. The
 * division depends only on the shapes and the number of threads, so the bits are the same in every
 * run.
 *
 * Primitives and memory handles are created in prepare(); run() sets the pointers of the handles
 * and executes. Scratch is oneDNN's scratchpad, which the two share.
 */
#include "base/base.h"
#include "tensor/kernels/onednn/onednn.h"

#include <assert.h>
#include <stdlib.h>

enum { A, B, RESULT, SCRATCHPAD, BIAS, OPERAND_COUNT };

typedef struct product {
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[OPERAND_COUNT];
    int arg_count; /* BIAS is the last, and optional */
} product;

/* The state created by prepare(). A unit is a row of the result, or one matrix of a batch. */
typedef struct products {
    product full, rest;             /* `rest` has no primitive if all pieces are full */
    int64_t unit_count;             /* of all */
    int64_t piece_units;            /* of a full piece */
    int64_t unit_results;           /* numbers in one */
    int64_t unit_bytes[RESULT + 1]; /* from one unit to the next, in each operand */
} products;

typedef struct sizes {
    int64_t count; /* of matrices in a batch; 0: not batched */
    int64_t M, N, K;
} sizes;

static sizes sizes_of(const tdm_kernel_call *call)
{
    const tdm_shape *y = &call->out[0].shape;
    return (sizes){.count = y->rank == 3 ? y->dim[0] : 0,
                   .M = y->dim[y->rank - 2],
                   .N = y->dim[y->rank - 1],
                   .K = call->in[0].shape.dim[y->rank - 2 + (call->attrs.trans_a ? 0 : 1)]};
}

static void release_product(product *p)
{
    for (int i = 0; i < p->arg_count; i++) dnnl_memory_destroy(p->args[i].memory);
    if (p->primitive) dnnl_primitive_destroy(p->primitive);
}

static void release_products(tdm_kernel_call *call)
{
    products *p = call->prepared;
    if (!p) return;
    release_product(&p->full);
    release_product(&p->rest);
    free(p);
    call->prepared = NULL;
}

/* ---- preparing -------------------------------------------------------------------------------- */

/* A row-major matrix of rows `stride` numbers apart, or the transpose of one, viewed as [rows,
 * cols]; if count > 0, a batch of `count` contiguous ones. */
static tdm_status matmul_describe(int64_t count, int64_t rows, int64_t cols, bool transposed,
                                  int64_t stride, dnnl_memory_desc_t *out, tdm_error *err)
{
    dnnl_dims_t dims = {count, rows, cols};
    dnnl_dims_t strides = {rows * cols, transposed ? 1 : stride, transposed ? stride : 1};
    int skip = count > 0 ? 0 : 1;
    return tdm__onednn_check(
        dnnl_memory_desc_init_by_strides(out, 3 - skip, dims + skip, dnnl_f32, strides + skip),
        "describing a matrix", err);
}

static tdm_status add_operand(tdm__onednn *b, product *p, const dnnl_memory_desc_t *desc,
                              tdm_error *err)
{
    static const int names[OPERAND_COUNT] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST,
                                             DNNL_ARG_SCRATCHPAD, DNNL_ARG_BIAS};
    assert(p->arg_count < OPERAND_COUNT);
    dnnl_memory_t memory;
    TDM_TRY(tdm__onednn_check(dnnl_memory_create(&memory, desc, b->engine, DNNL_MEMORY_NONE),
                              "making a memory handle", err));
    p->args[p->arg_count] = (dnnl_exec_arg_t){names[p->arg_count], memory};
    p->arg_count++;
    return TDM_OK;
}

/* The product of `units` units. Raises call->scratch_bytes to what it needs. */
static tdm_status make_product(tdm__onednn *b, tdm_kernel_call *call, int64_t units, product *p,
                               tdm_error *err)
{
    sizes s = sizes_of(call);
    bool ta = call->attrs.trans_a, tb = call->attrs.trans_b;
    bool with_bias = call->in[2].dtype != TDM_DTYPE_NONE;
    int64_t count = s.count > 0 ? units : 0, rows = s.count > 0 ? s.M : units;
    dnnl_memory_desc_t md[OPERAND_COUNT];
    TDM_TRY(matmul_describe(count, rows, s.K, ta, ta ? s.M : s.K, &md[A], err));
    TDM_TRY(matmul_describe(count, s.K, s.N, tb, tb ? s.K : s.N, &md[B], err));
    TDM_TRY(matmul_describe(count, rows, s.N, false, s.N, &md[RESULT], err));
    TDM_TRY(matmul_describe(count > 0 ? 1 : 0, 1, s.N, false, s.N, &md[BIAS], err));
    dnnl_matmul_desc_t desc;
    TDM_TRY(tdm__onednn_check(
        dnnl_matmul_desc_init(&desc, &md[A], &md[B], with_bias ? &md[BIAS] : NULL, &md[RESULT]),
        "describing a product", err));
    dnnl_primitive_attr_t attr;
    dnnl_primitive_desc_t chosen;
    TDM_TRY(tdm__onednn_user_scratchpad(&attr, err));
    dnnl_status_t made = dnnl_primitive_desc_create(&chosen, &desc, attr, b->engine, NULL);
    dnnl_primitive_attr_destroy(attr);
    TDM_TRY(tdm__onednn_check(made, "choosing a product kernel", err));

    md[SCRATCHPAD] = *dnnl_primitive_desc_query_md(chosen, dnnl_query_scratchpad_md, 0);
    size_t bytes = dnnl_memory_desc_get_size(&md[SCRATCHPAD]);
    if (bytes > call->scratch_bytes) call->scratch_bytes = bytes;
    tdm_status status = tdm__onednn_check(dnnl_primitive_create(&p->primitive, chosen),
                                          "compiling a product", err);
    dnnl_primitive_desc_destroy(chosen);
    for (int i = 0; i < (with_bias ? OPERAND_COUNT : BIAS) && status == TDM_OK; i++)
        status = add_operand(b, p, &md[i], err);
    return status;
}

/*
 * Every piece of rows reads all of b again. If b is larger than a piece of the result, that would
 * cost more than the pass over the result that the division saves.
 */
static int64_t piece_units(const tdm_kernel_call *call, const products *p)
{
    sizes s = sizes_of(call);
    if (call->attrs.activation == TDM_ACTIVATION_NONE) return p->unit_count;
    int64_t units = tdm__onednn_piece(p->unit_count, p->unit_bytes[RESULT]);
    return s.count == 0 && units < s.K ? p->unit_count : units;
}

static tdm_status prepare_matmul(void *backend, tdm_kernel_call *call, tdm_error *err)
{
    if (tdm_tensor_elements(&call->out[0]) == 0 || tdm_tensor_elements(&call->in[0]) == 0)
        return tdm_fail(err, TDM_ERR_UNSUPPORTED, "oneDNN: an empty product");
    products *p = calloc(1, sizeof(*p));
    if (!p) return tdm_fail_oom(err, "for a product");
    call->prepared = p;
    sizes s = sizes_of(call);
    bool batch = s.count > 0;
    p->unit_count = batch ? s.count : s.M;
    p->unit_results = batch ? s.M * s.N : s.N;
    p->unit_bytes[A] = (batch ? s.M * s.K : call->attrs.trans_a ? 1 : s.K) * 4;
    p->unit_bytes[B] = batch ? s.K * s.N * 4 : 0;
    p->unit_bytes[RESULT] = p->unit_results * 4;
    p->piece_units = piece_units(call, p);
    int64_t rest = p->unit_count % p->piece_units;
    tdm_status status = make_product(backend, call, p->piece_units, &p->full, err);
    if (status == TDM_OK && rest > 0) status = make_product(backend, call, rest, &p->rest, err);
    if (status != TDM_OK) release_products(call);
    return status;
}

/* ---- running ---------------------------------------------------------------------------------- */

static void run_matmul(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)key;
    const products *p = call->prepared;
    for (int64_t at = 0; at < p->unit_count; at += p->piece_units) {
        int64_t left = p->unit_count - at;
        const product *one = left >= p->piece_units ? &p->full : &p->rest;
        int64_t units = left >= p->piece_units ? p->piece_units : left;
        char *result = (char *)call->out[0].data + at * p->unit_bytes[RESULT];
        void *const data[OPERAND_COUNT] = {(char *)call->in[0].data + at * p->unit_bytes[A],
                                           (char *)call->in[1].data + at * p->unit_bytes[B], result,
                                           call->scratch, call->in[2].data};
        for (int i = 0; i < one->arg_count; i++)
            dnnl_memory_set_data_handle(one->args[i].memory, data[i]);
        tdm__onednn_execute(backend, one->primitive, one->arg_count, one->args);
        tdm__kernel_activate((tdm_activation)call->attrs.activation, (float *)result,
                             units * p->unit_results);
    }
}

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_MATMUL,
     .dtype = TDM_DTYPE_F32,
     .prepare = prepare_matmul,
     .run = run_matmul,
     .release = release_products},
};

const tdm_kernel_family tdm__onednn_matmul = {kernels, sizeof(kernels) / sizeof(kernels[0])};
