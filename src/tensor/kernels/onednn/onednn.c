/*
 * onednn.c: matrix products by oneDNN's matmul primitive, which compiles code for the processor it
 * finds at hand.
 *
 * One engine and one stream for each plan. A product's primitive and its memory handles are made
 * in prepare(); run() only points the handles at the data and executes. Scratch memory comes from
 * the plan. oneDNN itself makes a few small allocations inside execute (it copies its argument
 * list); nothing else here does.
 */
#include "tensor/kernels/onednn/onednn.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

enum { ARG_MOST = 5 };

typedef struct product {
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[ARG_MOST];
    int arg_count;
} product;

const char *tdm_tensor_library(char buffer[TDM_LIBRARY_BYTES])
{
    const dnnl_version_t *version = dnnl_version();
    snprintf(buffer, TDM_LIBRARY_BYTES, "oneDNN %d.%d.%d", version->major, version->minor,
             version->patch);
    return buffer;
}

tdm_status tdm__onednn_check(dnnl_status_t status, const char *what, tdm_error *err)
{
    if (status == dnnl_success) return TDM_OK;
    tdm_status kind = status == dnnl_out_of_memory   ? TDM_ERR_NO_MEMORY
                      : status == dnnl_unimplemented ? TDM_ERR_UNSUPPORTED
                                                     : TDM_ERR_INTERNAL;
    return tdm_fail(err, kind, "oneDNN: %s failed with status %d", what, (int)status);
}

static void close_backend(void *backend)
{
    tdm__onednn *b = backend;
    if (!b) return;
    if (b->stream) dnnl_stream_destroy(b->stream);
    if (b->engine) dnnl_engine_destroy(b->engine);
    free(b);
}

static tdm_status open_backend(void **out, tdm_error *err)
{
    tdm__onednn *b = calloc(1, sizeof(*b));
    if (!b) return tdm_fail(err, TDM_ERR_NO_MEMORY, "oneDNN: no memory for an engine");
    tdm_status status = tdm__onednn_check(dnnl_engine_create(&b->engine, dnnl_cpu, 0),
                                          "making an engine", err);
    if (status == TDM_OK)
        status = tdm__onednn_check(
            dnnl_stream_create(&b->stream, b->engine, dnnl_stream_default_flags), "making a stream",
            err);
    if (status != TDM_OK) {
        close_backend(b);
        return status;
    }
    *out = b;
    return TDM_OK;
}

static void release_product(tdm_kernel_call *call)
{
    product *p = call->prepared;
    if (!p) return;
    for (int i = 0; i < p->arg_count; i++) dnnl_memory_destroy(p->args[i].memory);
    if (p->primitive) dnnl_primitive_destroy(p->primitive);
    free(p);
    call->prepared = NULL;
}

/* A row-major matrix, or its transpose, seen as [rows, cols]; B of them when B > 0. */
static tdm_status describe(int64_t B, int64_t rows, int64_t cols, bool transposed,
                           dnnl_memory_desc_t *out, tdm_error *err)
{
    dnnl_dims_t dims = {B, rows, cols};
    dnnl_dims_t strides = {rows * cols, transposed ? 1 : cols, transposed ? rows : 1};
    int skip = B > 0 ? 0 : 1;
    return tdm__onednn_check(
        dnnl_memory_desc_init_by_strides(out, 3 - skip, dims + skip, dnnl_f32, strides + skip),
        "describing a matrix", err);
}

static tdm_status add_arg(tdm__onednn *b, product *p, int which, const dnnl_memory_desc_t *desc,
                          tdm_error *err)
{
    assert(p->arg_count < ARG_MOST);
    dnnl_memory_t memory;
    TDM_TRY(tdm__onednn_check(dnnl_memory_create(&memory, desc, b->engine, DNNL_MEMORY_NONE),
                              "making a memory handle", err));
    p->args[p->arg_count++] = (dnnl_exec_arg_t){which, memory};
    return TDM_OK;
}

static tdm_status make_product(tdm__onednn *b, tdm_kernel_call *call, product *p, tdm_error *err)
{
    const tdm_shape *y = &call->out[0].shape;
    int64_t B = y->rank == 3 ? y->dim[0] : 0, M = y->dim[y->rank - 2], N = y->dim[y->rank - 1];
    int64_t K = call->in[0].shape.dim[y->rank - 2 + (call->attrs.trans_a ? 0 : 1)];
    bool with_bias = call->in[2].dtype != TDM_DTYPE_NONE;
    dnnl_memory_desc_t src, weights, bias, dst;
    TDM_TRY(describe(B, M, K, call->attrs.trans_a, &src, err));
    TDM_TRY(describe(B, K, N, call->attrs.trans_b, &weights, err));
    TDM_TRY(describe(B > 0 ? 1 : 0, 1, N, false, &bias, err));
    TDM_TRY(describe(B, M, N, false, &dst, err));
    dnnl_matmul_desc_t desc;
    TDM_TRY(tdm__onednn_check(
        dnnl_matmul_desc_init(&desc, &src, &weights, with_bias ? &bias : NULL, &dst),
        "describing a product", err));

    dnnl_primitive_attr_t attr;
    TDM_TRY(tdm__onednn_check(dnnl_primitive_attr_create(&attr), "making attributes", err));
    dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    dnnl_primitive_desc_t primitive_desc;
    tdm_status status = tdm__onednn_check(
        dnnl_primitive_desc_create(&primitive_desc, &desc, attr, b->engine, NULL),
        "choosing a product kernel", err);
    dnnl_primitive_attr_destroy(attr);
    TDM_TRY(status);

    const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(primitive_desc,
                                                                     dnnl_query_scratchpad_md, 0);
    call->scratch_bytes = dnnl_memory_desc_get_size(scratch);
    status = tdm__onednn_check(dnnl_primitive_create(&p->primitive, primitive_desc),
                               "compiling a product", err);
    if (status == TDM_OK) status = add_arg(b, p, DNNL_ARG_SRC, &src, err);
    if (status == TDM_OK) status = add_arg(b, p, DNNL_ARG_WEIGHTS, &weights, err);
    if (status == TDM_OK) status = add_arg(b, p, DNNL_ARG_DST, &dst, err);
    if (status == TDM_OK) status = add_arg(b, p, DNNL_ARG_SCRATCHPAD, scratch, err);
    if (status == TDM_OK && with_bias) status = add_arg(b, p, DNNL_ARG_BIAS, &bias, err);
    dnnl_primitive_desc_destroy(primitive_desc);
    return status;
}

static tdm_status prepare_matmul(void *backend, tdm_kernel_call *call, tdm_error *err)
{
    if (tdm_tensor_elements(&call->out[0]) == 0 || tdm_tensor_elements(&call->in[0]) == 0)
        return tdm_fail(err, TDM_ERR_UNSUPPORTED, "oneDNN: an empty product");
    product *p = calloc(1, sizeof(*p));
    if (!p) return tdm_fail(err, TDM_ERR_NO_MEMORY, "oneDNN: no memory for a product");
    call->prepared = p;
    tdm_status status = make_product(backend, call, p, err);
    if (status != TDM_OK) release_product(call);
    return status;
}

static void run_matmul(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)key;
    const tdm__onednn *b = backend;
    const product *p = call->prepared;
    void *const data[ARG_MOST] = {call->in[0].data, call->in[1].data, call->out[0].data,
                                  call->scratch, call->in[2].data};
    for (int i = 0; i < p->arg_count; i++) dnnl_memory_set_data_handle(p->args[i].memory, data[i]);
    dnnl_status_t status = dnnl_primitive_execute(p->primitive, b->stream, p->arg_count, p->args);
    /* Shapes, handles and memory were all settled in prepare(): a failure here is a defect. */
    assert(status == dnnl_success);
    (void)status;
}

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_MATMUL,
     .dtype = TDM_DTYPE_F32,
     .prepare = prepare_matmul,
     .run = run_matmul,
     .release = release_product},
};

static const tdm_kernel_family products = {kernels, sizeof(kernels) / sizeof(kernels[0])};

/* The visible list of what oneDNN computes for us. */
static const tdm_kernel_family *const families[] = {&products, &tdm__onednn_conv, NULL};

const tdm_kernel_backend_ops tdm__kernels_onednn = {
    .name = "onednn",
    .open = open_backend,
    .close = close_backend,
    .families = families,
};
