/*
 * wide.c: products and convolutions of bf16 in shapes that bf16.h does not support (in groups, or
 * with few channels): both inputs are widened to f32, which is exact, in scratch, and an f32 kernel
 * computes the result.
 *
 * There are two backends: `wide` calls the portable f32 kernels, `wide_vendor` those of vendors.
 * Neither calls `ref`, which supports bf16 itself and is tried last. Both refuse f32 inputs.
 * wide_prepare() creates the inner call; scratch is the inner kernel's, then the two inputs in f32.
 */
#include "base/base.h"
#include "tensor/kernels/backends.h"

#include <stdlib.h>

enum { WIDE_INPUTS = 2, ALIGN_BYTES = 64 };

/* State of a plan: whose kernels it calls, and the state of the inner backends that were used, by
 * their index in the registry. */
typedef struct wide {
    bool vendor;
    void *inner[];
} wide;

/* The state created by wide_prepare(). */
typedef struct widened {
    tdm_kernel_call call;
    const tdm_kernel *kernel;
    size_t inner;               /* index in the registry */
    size_t offset[WIDE_INPUTS]; /* of the inputs in scratch */
} widened;

static void close_wide(void *backend)
{
    wide *b = backend;
    for (size_t i = 0; i < tdm_kernel_backend_count(); i++)
        if (b->inner[i]) tdm_kernel_backend_at(i)->close(b->inner[i]);
    free(b);
}

static tdm_status open_wide(bool vendor, void **out, tdm_error *err)
{
    wide *b = calloc(1, sizeof(*b) + tdm_kernel_backend_count() * sizeof(b->inner[0]));
    if (!b) return tdm_fail_oom(err, "for values in bf16");
    b->vendor = vendor;
    *out = b;
    return TDM_OK;
}

static tdm_status open_portable(void **out, tdm_error *err)
{
    return open_wide(false, out, err);
}

static tdm_status open_vendor(void **out, tdm_error *err)
{
    return open_wide(true, out, err);
}

static void release_widened(tdm_kernel_call *call)
{
    widened *w = call->prepared;
    if (!w) return;
    if (w->kernel && w->kernel->release) w->kernel->release(&w->call);
    free(w);
    call->prepared = NULL;
}

static bool is_inner(const wide *b, const tdm_kernel_backend_ops *ops)
{
    return ops->vendor == b->vendor && ops != &tdm__kernels_bf16 && ops != &tdm__kernels_wide &&
           ops != &tdm__kernels_wide_vendor && ops != &tdm__kernels_ref;
}

/* The first of the inner backends that supports the call. */
static tdm_status choose_inner(wide *b, tdm_op_kind op, widened *w, tdm_error *err)
{
    for (size_t i = 0; i < tdm_kernel_backend_count(); i++) {
        const tdm_kernel_backend_ops *ops = tdm_kernel_backend_at(i);
        const tdm_kernel *kernel = tdm_kernel_find(ops, op, TDM_DTYPE_F32);
        if (!kernel || !is_inner(b, ops)) continue;
        if (ops->open && !b->inner[i]) TDM_TRY(ops->open(&b->inner[i], err));
        w->call.scratch_bytes = 0;
        tdm_status status = kernel->prepare ? kernel->prepare(b->inner[i], &w->call, err) : TDM_OK;
        if (status == TDM_ERR_UNSUPPORTED) continue;
        w->kernel = kernel;
        w->inner = i;
        return status;
    }
    return tdm_fail(err, TDM_ERR_UNSUPPORTED, "bf16: no f32 kernel computes this");
}

static tdm_status wide_prepare(void *backend, tdm_kernel_call *call, tdm_op_kind op, tdm_error *err)
{
    if (call->in[0].dtype != TDM_DTYPE_BF16)
        return tdm_fail(err, TDM_ERR_UNSUPPORTED, "bf16: the inputs are not bf16");
    widened *w = calloc(1, sizeof(*w));
    if (!w) return tdm_fail_oom(err, "for values in bf16");
    w->call = *call;
    for (int i = 0; i < WIDE_INPUTS; i++) w->call.in[i].dtype = TDM_DTYPE_F32;
    tdm_status status = choose_inner(backend, op, w, err);
    if (status != TDM_OK) {
        free(w);
        return status;
    }
    size_t bytes = tdm_align_up(w->call.scratch_bytes, ALIGN_BYTES);
    for (int i = 0; i < WIDE_INPUTS; i++) {
        w->offset[i] = bytes;
        bytes += tdm_align_up(tdm_tensor_bytes(&w->call.in[i]), ALIGN_BYTES);
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
        return wide_prepare(backend, call, op, err);                                               \
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
    .open = open_portable,
    .close = close_wide,
    .families = families,
};

const tdm_kernel_backend_ops tdm__kernels_wide_vendor = {
    .name = "wide_vendor",
    .vendor = true,
    .open = open_vendor,
    .close = close_wide,
    .families = families,
};
