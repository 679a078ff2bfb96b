/*
 * wide.c: products and convolutions of bf16 for processors that are not faster at them than at f32: both
 * inputs are made f32 again, which is exact, in scratch, and the best f32 kernel does the rest.
 *
 * A backend in front of those it hands on to. Where its inputs are f32 it has nothing to offer.
 * What prepare() makes is the inner call; scratch is the inner kernel's, then the two inputs in f32.
 */
#include "tensor/kernels/backends.h"

#include <stdlib.h>

enum { WIDE_INPUTS = 2, ALIGN_BYTES = 64 };

/* Who computes in f32, best first. */
static const tdm_kernel_backend_ops *const inner_ops[] = {&tdm__kernels_winograd,
                                                          &tdm__kernels_onednn, &tdm__kernels_ref};
enum { INNER_COUNT = sizeof(inner_ops) / sizeof(inner_ops[0]) };

/* One for each plan: what the inner backends opened, those that were asked for something. */
typedef struct wide {
    void *inner[INNER_COUNT];
} wide;

/* What prepare() keeps. */
typedef struct widened {
    tdm_kernel_call call;
    const tdm_kernel *kernel;
    int inner;
    size_t offset[WIDE_INPUTS]; /* of the inputs in scratch */
} widened;

static void close_wide(void *backend)
{
    wide *b = backend;
    for (int i = 0; i < INNER_COUNT; i++)
        if (b->inner[i]) inner_ops[i]->close(b->inner[i]);
    free(b);
}

static tdm_status open_wide(void **out, tdm_error *err)
{
    *out = calloc(1, sizeof(wide));
    return *out ? TDM_OK : tdm_fail(err, TDM_ERR_NO_MEMORY, "bf16: no memory");
}

static void release_widened(tdm_kernel_call *call)
{
    widened *w = call->prepared;
    if (!w) return;
    if (w->kernel && w->kernel->release) w->kernel->release(&w->call);
    free(w);
    call->prepared = NULL;
}

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

/* The first of the inner backends that supports the call. */
static tdm_status choose_inner(wide *b, tdm_op_kind op, widened *w, tdm_error *err)
{
    tdm_status status = TDM_ERR_UNSUPPORTED;
    for (int i = 0; i < INNER_COUNT && status == TDM_ERR_UNSUPPORTED; i++) {
        const tdm_kernel *kernel = tdm_kernel_find(inner_ops[i], op, TDM_DTYPE_F32);
        if (!kernel) continue;
        if (inner_ops[i]->open && !b->inner[i]) TDM_TRY(inner_ops[i]->open(&b->inner[i], err));
        w->call.scratch_bytes = 0;
        status = kernel->prepare ? kernel->prepare(b->inner[i], &w->call, err) : TDM_OK;
        if (status != TDM_OK) continue;
        w->kernel = kernel;
        w->inner = i;
    }
    return status;
}

static tdm_status prepare(void *backend, tdm_kernel_call *call, tdm_op_kind op, tdm_error *err)
{
    if (call->in[0].dtype != TDM_DTYPE_BF16)
        return tdm_fail(err, TDM_ERR_UNSUPPORTED, "bf16: the inputs are not");
    widened *w = calloc(1, sizeof(*w));
    if (!w) return tdm_fail(err, TDM_ERR_NO_MEMORY, "bf16: no memory");
    w->call = *call;
    for (int i = 0; i < WIDE_INPUTS; i++) w->call.in[i].dtype = TDM_DTYPE_F32;
    tdm_status status = choose_inner(backend, op, w, err);
    if (status != TDM_OK) {
        free(w);
        return status;
    }
    size_t bytes = aligned(w->call.scratch_bytes);
    for (int i = 0; i < WIDE_INPUTS; i++) {
        w->offset[i] = bytes;
        bytes += aligned(tdm_tensor_bytes(&w->call.in[i]));
    }
    call->scratch_bytes = bytes;
    call->prepared = w;
    return TDM_OK;
}

static void run_widened(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    const wide *b = backend;
    widened *w = call->prepared;
    for (int i = 0; i < TDM_OP_MAX_INPUTS; i++) w->call.in[i].data = call->in[i].data;
    for (int i = 0; i < WIDE_INPUTS; i++) {
        w->call.in[i].data = (char *)call->scratch + w->offset[i];
        tdm__kernel_widen(call->in[i].data, w->call.in[i].data, tdm_tensor_elements(&call->in[i]));
    }
    w->call.out[0].data = call->out[0].data;
    w->call.scratch = call->scratch;
    w->kernel->run(b->inner[w->inner], &w->call, key);
}

#define PREPARE(name, op)                                                                          \
    static tdm_status prepare_##name(void *backend, tdm_kernel_call *call, tdm_error *err)         \
    {                                                                                              \
        return prepare(backend, call, op, err);                                                    \
    }
#define KERNEL(name, kind)                                                                         \
    {                                                                                              \
        .op = kind, .dtype = TDM_DTYPE_F32, .prepare = prepare_##name, .run = run_widened,         \
        .release = release_widened                                                                 \
    }

PREPARE(matmul, TDM_OP_MATMUL)
PREPARE(conv, TDM_OP_CONV)
PREPARE(conv_grad_x, TDM_OP_CONV_GRAD_X)
PREPARE(conv_grad_w, TDM_OP_CONV_GRAD_W)

static const tdm_kernel kernels[] = {
    KERNEL(matmul, TDM_OP_MATMUL),
    KERNEL(conv, TDM_OP_CONV),
    KERNEL(conv_grad_x, TDM_OP_CONV_GRAD_X),
    KERNEL(conv_grad_w, TDM_OP_CONV_GRAD_W),
};

static const tdm_kernel_family products = {kernels, sizeof(kernels) / sizeof(kernels[0])};
static const tdm_kernel_family *const families[] = {&products, NULL};

const tdm_kernel_backend_ops tdm__kernels_wide = {
    .name = "wide",
    .vendor = true,
    .open = open_wide,
    .close = close_wide,
    .families = families,
};
