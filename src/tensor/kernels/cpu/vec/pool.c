/*
 * pool.c: pools of images [B, H, W, C]: all channels of a position side by side in vectors.
 *
 * ref/pool.c defines what is computed, including padding, ties and NaN. A window's numbers are
 * processed in their order; the mean sums each row of the window separately and then the rows, so
 * that large windows have smaller rounding errors. The gradients start with zeros and add to the
 * positions of each window, image by image, windows in their order. Threads divide outputs by rows
 * of windows and gradients by images, and no number depends on the division.
 */
#include "tensor/kernels/cpu/vec/vec.h"

typedef struct pool {
    const float *from;
    float *to;
    const int32_t *index_in;
    int32_t *index_out;
    int64_t H, W, C, OH, OW; /* of the image, and of the outputs */
    int kernel[2], stride[2], pad[2];
} pool;

/* Positions [begin, end) of a window's axis that are in the image; position 0 is at `start`. */
typedef struct span {
    int64_t begin, end, start;
} span;

static inline span span_of(const pool *p, int axis, int64_t o)
{
    int64_t start = o * p->stride[axis] - p->pad[axis], size = axis ? p->W : p->H;
    int64_t kernel = p->kernel[axis];
    return (span){.begin = start < 0 ? -start : 0,
                  .end = start + kernel > size ? size - start : kernel,
                  .start = start};
}

static pool pool_of(const tdm_kernel_call *call, const tdm_shape *image, const tdm_shape *outputs)
{
    pool p = {.from = call->in[0].data,
              .to = call->out[0].data,
              .index_in = call->in[1].data,
              .index_out = call->out[1].data,
              .H = image->dim[1],
              .W = image->dim[2],
              .C = image->dim[3],
              .OH = outputs->dim[1],
              .OW = outputs->dim[2]};
    for (int axis = 0; axis < 2; axis++) {
        p.kernel[axis] = call->attrs.window.kernel[axis];
        p.stride[axis] = call->attrs.window.stride[axis];
        p.pad[axis] = call->attrs.window.pad_before[axis];
    }
    return p;
}

/* The words of an index are stored with the functions for floats: nothing is computed. */
static inline void store_index(int32_t *to, int64_t left, vi index)
{
    if (left >= TDM__WIDTH)
        *(vi *)to = index;
    else
        memcpy(to, &index, (size_t)left * sizeof(int32_t));
}

static inline vi load_index(const int32_t *from, int64_t left)
{
    vi index = {0};
    if (left >= TDM__WIDTH) return *(const vi *)from;
    memcpy(&index, from, (size_t)left * sizeof(int32_t));
    return index;
}

static inline const float *window_place(const pool *p, int64_t b, int64_t h, int64_t w)
{
    return p->from + ((b * p->H + h) * p->W + w) * p->C;
}

/* One window, all channels. */
static void pool_largest(const pool *p, int64_t b, span h, span w, float *y, int32_t *index)
{
    for (int64_t c = 0; c < p->C; c += TDM__WIDTH) {
        int64_t left = p->C - c;
        vf best = vf_load_up_to(window_place(p, b, h.start + h.begin, w.start + w.begin) + c, left,
                                0);
        vi winner = (vi){0} + (int32_t)(h.begin * p->kernel[1] + w.begin);
        for (int64_t kh = h.begin; kh < h.end; kh++)
            for (int64_t kw = w.begin; kw < w.end; kw++) {
                vf v = vf_load_up_to(window_place(p, b, h.start + kh, w.start + kw) + c, left, 0);
                vi better = (v > best) | (v != v); /* NaN wins, so that it is visible */
                best = (vf)(((vi)v & better) | ((vi)best & ~better));
                vi here = (vi){0} + (int32_t)(kh * p->kernel[1] + kw);
                winner = (here & better) | (winner & ~better);
            }
        vf_store_up_to(y + c, left, best);
        store_index(index + c, left, winner);
    }
}

static void pool_average(const pool *p, int64_t b, span h, span w, float *y)
{
    float share = 1.0f / (float)((h.end - h.begin) * (w.end - w.begin));
    for (int64_t c = 0; c < p->C; c += TDM__WIDTH) {
        int64_t left = p->C - c;
        vf sum = vf_set(0);
        for (int64_t kh = h.begin; kh < h.end; kh++) {
            vf row = vf_set(0);
            for (int64_t kw = w.begin; kw < w.end; kw++)
                row += vf_load_up_to(window_place(p, b, h.start + kh, w.start + kw) + c, left, 0);
            sum += row;
        }
        vf_store_up_to(y + c, left, sum * share);
    }
}

/* Rows of windows [begin, end), counted through the batch. */
static void pool_rows(const void *args, int64_t begin, int64_t end)
{
    const pool *p = args;
    for (int64_t row = begin; row < end; row++) {
        span h = span_of(p, 0, row % p->OH);
        for (int64_t ow = 0; ow < p->OW; ow++) {
            int64_t at = (row * p->OW + ow) * p->C;
            span w = span_of(p, 1, ow);
            if (p->index_out)
                pool_largest(p, row / p->OH, h, w, p->to + at, p->index_out + at);
            else
                pool_average(p, row / p->OH, h, w, p->to + at);
        }
    }
}

static void run_pool(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    pool p = pool_of(call, &call->in[0].shape, &call->out[0].shape);
    int64_t cost = p.OW * p.C * p.kernel[0] * p.kernel[1];
    tdm__vec_split(call->out[0].shape.dim[0] * p.OH, cost, pool_rows, &p);
}

/* ---- gradients -------------------------------------------------------------------------------- */

static inline void add_to(float *dx, int64_t left, vf d)
{
    vf_store_up_to(dx, left, vf_load_up_to(dx, left, 0) + d);
}

/* The gradient of one window: all of dy to the maximum, or an equal share to each position. */
static void give_back(const pool *p, span h, span w, int64_t from, float *image)
{
    float share = 1.0f / (float)((h.end - h.begin) * (w.end - w.begin));
    for (int64_t c = 0; c < p->C; c += TDM__WIDTH) {
        int64_t left = p->C - c;
        vf dy = vf_load_up_to(p->from + from + c, left, 0);
        vi winner = p->index_in ? load_index(p->index_in + from + c, left) : (vi){0};
        for (int64_t kh = h.begin; kh < h.end; kh++)
            for (int64_t kw = w.begin; kw < w.end; kw++) {
                vi here = winner == (vi){0} + (int32_t)(kh * p->kernel[1] + kw);
                vf d = dy * share;
                if (p->index_in) d = (vf)((vi)dy & here);
                add_to(image + ((h.start + kh) * p->W + w.start + kw) * p->C + c, left, d);
            }
    }
}

static void pool_grad_images(const void *args, int64_t begin, int64_t end)
{
    const pool *p = args;
    for (int64_t b = begin; b < end; b++) {
        float *image = p->to + b * p->H * p->W * p->C;
        memset(image, 0, (size_t)(p->H * p->W * p->C) * sizeof(float));
        for (int64_t oh = 0; oh < p->OH; oh++)
            for (int64_t ow = 0; ow < p->OW; ow++)
                give_back(p, span_of(p, 0, oh), span_of(p, 1, ow),
                          ((b * p->OH + oh) * p->OW + ow) * p->C, image);
    }
}

static void run_pool_grad(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    pool p = pool_of(call, &call->out[0].shape, &call->in[0].shape);
    tdm__vec_split(call->out[0].shape.dim[0], p.H * p.W * p.C + 1, pool_grad_images, &p);
}

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_MAX_POOL, .dtype = TDM_DTYPE_F32, .run = run_pool},
    {.op = TDM_OP_MAX_POOL_GRAD, .dtype = TDM_DTYPE_F32, .run = run_pool_grad},
    {.op = TDM_OP_AVERAGE_POOL, .dtype = TDM_DTYPE_F32, .run = run_pool},
    {.op = TDM_OP_AVERAGE_POOL_GRAD, .dtype = TDM_DTYPE_F32, .run = run_pool_grad},
};

const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_pool) = {kernels,
                                                        sizeof(kernels) / sizeof(kernels[0])};
