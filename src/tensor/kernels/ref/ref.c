/*
 * ref.c: plain loops for every op, in f32: the basic ones here, the others in the files of this
 * directory, and the list of them all at the end.
 *
 * These define what an op computes: short, obvious, sums in double precision and in index order.
 * Other backends are tested against them. They also run where no faster kernel exists, so they are
 * written to vectorise, but nothing here is clever.
 */
#include "tensor/kernels/ref/ref.h"
#include "base/base.h"

#include <string.h>

#define UNUSED(name) ((void)(name))

static const float *f32_in(const tdm_kernel_call *call, int index)
{
    return call->in[index].data;
}

static float *f32_out(const tdm_kernel_call *call, int index)
{
    return call->out[index].data;
}

static int64_t out_elements(const tdm_kernel_call *call)
{
    return tdm_tensor_elements(&call->out[0]);
}

static void run_copy(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    UNUSED(backend);
    UNUSED(key);
    memmove(call->out[0].data, call->in[0].data, tdm_tensor_bytes(&call->out[0]));
}

static void run_fill(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    UNUSED(backend);
    UNUSED(key);
    float *out = f32_out(call, 0);
    for (int64_t i = 0, n = out_elements(call); i < n; i++) out[i] = (float)call->attrs.scale;
}

static void run_sum_rows(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    UNUSED(backend);
    UNUSED(key);
    const float *x = f32_in(call, 0);
    float *out = f32_out(call, 0);
    int64_t B = call->in[0].shape.dim[0], N = call->in[0].shape.dim[1];
    for (int64_t n = 0; n < N; n++) {
        double sum = 0;
        for (int64_t b = 0; b < B; b++) sum += (double)x[b * N + n];
        out[n] = (float)sum;
    }
}

/* The mask is recomputed from (seed, layer, step, row of the global batch): it is never stored, and
 * the backward pass, which is this same op on dy, draws the same one. */
static void run_dropout(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    UNUSED(backend);
    const float *x = f32_in(call, 0);
    float *y = f32_out(call, 0);
    int64_t B = call->in[0].shape.dim[0];
    int64_t row_elements = B > 0 ? out_elements(call) / B : 0;
    float p = call->attrs.p, keep_scale = 1.0f / (1.0f - p);
    for (int64_t b = 0; b < B; b++) {
        tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = key->seed,
                                                   .stream = TDM_RNG_STREAM_DROPOUT,
                                                   .sub_stream = call->attrs.sub_stream,
                                                   .step = key->step,
                                                   .sample = key->first_row + (uint64_t)b});
        for (int64_t i = b * row_elements; i < (b + 1) * row_elements; i++)
            y[i] = tdm_rng_uniform(&rng) < p ? 0.0f : x[i] * keep_scale;
    }
}

static void run_normalise(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    UNUSED(backend);
    UNUSED(key);
    const float *x = f32_in(call, 0), *shift = f32_in(call, 1), *scale = f32_in(call, 2);
    float *y = f32_out(call, 0);
    int64_t B = call->in[0].shape.dim[0], N = call->in[0].shape.dim[1];
    for (int64_t b = 0; b < B; b++)
        for (int64_t n = 0; n < N; n++) y[b * N + n] = (x[b * N + n] - shift[n]) * scale[n];
}

static void run_custom(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    UNUSED(backend);
    UNUSED(key);
    call->attrs.custom_run(call->in, call->attrs.custom_attrs, call->out[0]);
}

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_CUSTOM, .dtype = TDM_DTYPE_F32, .run = run_custom},
    {.op = TDM_OP_COPY, .dtype = TDM_DTYPE_F32, .run = run_copy},
    {.op = TDM_OP_LANE_SUM, .dtype = TDM_DTYPE_F32, .run = run_copy},
    {.op = TDM_OP_FILL, .dtype = TDM_DTYPE_F32, .run = run_fill},
    {.op = TDM_OP_SUM_ROWS, .dtype = TDM_DTYPE_F32, .run = run_sum_rows},
    {.op = TDM_OP_DROPOUT, .dtype = TDM_DTYPE_F32, .run = run_dropout},
    {.op = TDM_OP_NORMALISE, .dtype = TDM_DTYPE_F32, .run = run_normalise},
};

static const tdm_kernel_family basics = {kernels, sizeof(kernels) / sizeof(kernels[0])};

/* The list of the reference kernels: every op of the enum has a row in one of them. */
static const tdm_kernel_family *const families[] = {
    &tdm__ref_matmul,      &basics,        &tdm__ref_activations, &tdm__ref_shape,
    &tdm__ref_elementwise, &tdm__ref_loss, &tdm__ref_embedding,   &tdm__ref_norm,
    &tdm__ref_attention,   &tdm__ref_conv, &tdm__ref_pool,        &tdm__ref_batch_norm,
    &tdm__ref_cast,        NULL,
};

const tdm_kernel_backend_ops tdm__kernels_ref = {
    .name = "ref",
    .families = families,
};
