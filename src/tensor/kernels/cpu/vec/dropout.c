/*
 * dropout.c: zeroes random elements and scales the others.
 *
 * The mask is recomputed from (seed, layer, step, row of the global batch): it is never stored, and
 * the backward pass, which is this same op on dy, draws the same one. Element i of a row uses word
 * i of the row's sequence, as in the reference kernel, and the result has the same bits. Rows are
 * independent, and long ones are divided at the beginning of a group of words.
 */
#include "base/base.h"
#include "tensor/kernels/cpu/vec/philox.h"

#include <math.h>

typedef struct work {
    const float *x;
    float *y;
    tdm_rng_address address; /* of the call's first row */
    int64_t row_elements, row_groups;
    int32_t limit; /* drop if the upper 24 bits of the word are below this */
    float keep_scale;
} work;

static vf row_drop(const work *w, vf x, vi words)
{
    vi kept = ((words >> 8) & 0x00ffffff) >= w->limit;
    return (vf)((vi)(x * w->keep_scale) & kept);
}

/* Groups of words [begin, end) of one row. */
static void drop_groups(const work *w, int64_t row, int64_t begin, int64_t end)
{
    tdm_rng_address address = w->address;
    address.sample += (uint64_t)row;
    tdm_rng rng = tdm_rng_at(address);
    const float *x = w->x + row * w->row_elements;
    float *y = w->y + row * w->row_elements;
    for (int64_t group = begin; group < end; group++) {
        vi words[2];
        tdm__philox_group(&rng, (uint32_t)group, words);
        int64_t at = group * TDM__PHILOX_GROUP, left = w->row_elements - at;
        vf_store_up_to(y + at, left, row_drop(w, vf_load_up_to(x + at, left, 0), words[0]));
        at += TDM__WIDTH, left -= TDM__WIDTH;
        if (left > 0)
            vf_store_up_to(y + at, left, row_drop(w, vf_load_up_to(x + at, left, 0), words[1]));
    }
}

/* A unit is one group of words of one row. */
static void range_dropout(const void *args, int64_t begin, int64_t end)
{
    const work *w = args;
    for (int64_t unit = begin; unit < end;) {
        int64_t row = unit / w->row_groups, group = unit % w->row_groups;
        int64_t count = w->row_groups - group < end - unit ? w->row_groups - group : end - unit;
        drop_groups(w, row, group, group + count);
        unit += count;
    }
}

static void run_dropout(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    int64_t B = call->in[0].shape.dim[0];
    if (B < 1) return;
    work w = {.x = call->in[0].data,
              .y = call->out[0].data,
              .address = {.seed = key->seed,
                          .stream = TDM_RNG_STREAM_DROPOUT,
                          .sub_stream = call->attrs.sub_stream,
                          .step = key->step,
                          .sample = key->first_row},
              .row_elements = tdm_tensor_elements(&call->out[0]) / B,
              .keep_scale = 1.0f / (1.0f - call->attrs.p)};
    /* A uniform number u 2^-24 is below p if u is below p 2^24, which is exact in f32. */
    w.limit = (int32_t)ceilf(call->attrs.p * 0x1p24f);
    w.row_groups = (w.row_elements + TDM__PHILOX_GROUP - 1) / TDM__PHILOX_GROUP;
    tdm__vec_split(B * w.row_groups, TDM__PHILOX_GROUP, range_dropout, &w);
}

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_DROPOUT, .dtype = TDM_DTYPE_F32, .run = run_dropout},
};

const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_dropout) = {kernels,
                                                           sizeof(kernels) / sizeof(kernels[0])};
