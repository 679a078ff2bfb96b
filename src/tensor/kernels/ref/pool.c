/*
 * pool.c: the maximum or the mean of each window of an image, channel by channel.
 *
 * Positions of a window in the padding are ignored: they are never the maximum, and do not count in
 * a mean. Every window contains at least one position of the image: padding is at most half a
 * window. Of equal numbers the first is the maximum; NaN counts as larger than all numbers, so that
 * it is visible. The index of the maximum is its position in the window, kh * KW + kw. Gradients
 * are gathered: each number of dx is one sum over the windows that contain it, in their order.
 */
#include "tensor/kernels/ref/ref.h"

#include <math.h>

/* The positions [begin, end) of output o's window, along `axis`, that are in an image of `size`. */
typedef struct span {
    int64_t begin, end, start; /* start: coordinate of position 0, possibly before the image */
} span;

static span span_of(const tdm_op_attrs *attrs, int axis, int64_t o, int64_t size)
{
    int64_t start = o * attrs->window.stride[axis] - attrs->window.pad_before[axis];
    int64_t kernel = attrs->window.kernel[axis];
    return (span){.begin = start < 0 ? -start : 0,
                  .end = start + kernel > size ? size - start : kernel,
                  .start = start};
}

/* One window: `x` is the image's number at position (0, 0) of channel c. */
typedef struct window {
    span h, w;
    int64_t row, column; /* distances in x from one position to the next */
    int64_t KW;
} window;

static float pool_largest(const window *at, const float *x, int32_t *index)
{
    float best = 0;
    *index = -1;
    for (int64_t kh = at->h.begin; kh < at->h.end; kh++)
        for (int64_t kw = at->w.begin; kw < at->w.end; kw++) {
            float v = x[(at->h.start + kh) * at->row + (at->w.start + kw) * at->column];
            if (*index >= 0 && !(v > best) && !isnan(v)) continue;
            best = v;
            *index = (int32_t)(kh * at->KW + kw);
        }
    return best;
}

static float pool_average(const window *at, const float *x)
{
    double sum = 0;
    for (int64_t kh = at->h.begin; kh < at->h.end; kh++)
        for (int64_t kw = at->w.begin; kw < at->w.end; kw++)
            sum += (double)x[(at->h.start + kh) * at->row + (at->w.start + kw) * at->column];
    return (float)(sum / (double)((at->h.end - at->h.begin) * (at->w.end - at->w.begin)));
}

static void pool_windows(const tdm_kernel_call *call, int32_t *index)
{
    const int64_t *in = call->in[0].shape.dim, *out = call->out[0].shape.dim;
    int64_t H = in[1], W = in[2], C = in[3], OH = out[1], OW = out[2];
    float *y = tdm__ref_out(call, 0);
    for (int64_t i = 0; i < out[0] * OH * OW * C; i++) {
        int64_t b = i / (OH * OW * C), oh = i / (OW * C) % OH, ow = i / C % OW, c = i % C;
        window at = {.h = span_of(&call->attrs, 0, oh, H),
                     .w = span_of(&call->attrs, 1, ow, W),
                     .row = W * C,
                     .column = C,
                     .KW = call->attrs.window.kernel[1]};
        const float *x = tdm__ref_in(call, 0) + b * H * W * C + c;
        y[i] = index ? pool_largest(&at, x, &index[i]) : pool_average(&at, x);
    }
}

static void run_max_pool(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    pool_windows(call, call->out[1].data);
}

static void run_average_pool(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    pool_windows(call, NULL);
}

/* The outputs [first, past) whose windows contain position i, along `axis`. */
static void outputs_at(const tdm_op_attrs *attrs, int axis, int64_t i, int64_t count,
                       int64_t *first, int64_t *past)
{
    int64_t from = i + attrs->window.pad_before[axis], stride = attrs->window.stride[axis];
    int64_t kernel = attrs->window.kernel[axis];
    *first = from < kernel ? 0 : (from - kernel) / stride + 1;
    *past = from / stride + 1 < count ? from / stride + 1 : count;
}

/* dx at (h, w) of one channel: the sum over the windows that contain it. */
static double pool_grad_sum(const tdm_kernel_call *call, int64_t b, int64_t h, int64_t w, int64_t c)
{
    const int64_t *in = call->attrs.shape.dim, *out = call->in[0].shape.dim;
    const int32_t *index = call->in[1].dtype ? call->in[1].data : NULL;
    const float *dy = tdm__ref_in(call, 0);
    int64_t first[2], past[2];
    outputs_at(&call->attrs, 0, h, out[1], &first[0], &past[0]);
    outputs_at(&call->attrs, 1, w, out[2], &first[1], &past[1]);
    double sum = 0;
    for (int64_t oh = first[0]; oh < past[0]; oh++) {
        span hs = span_of(&call->attrs, 0, oh, in[1]);
        for (int64_t ow = first[1]; ow < past[1]; ow++) {
            span ws = span_of(&call->attrs, 1, ow, in[2]);
            int64_t from = ((b * out[1] + oh) * out[2] + ow) * out[3] + c;
            int64_t place = (h - hs.start) * call->attrs.window.kernel[1] + (w - ws.start);
            if (!index)
                sum += (double)dy[from] / (double)((hs.end - hs.begin) * (ws.end - ws.begin));
            else if (index[from] == place)
                sum += (double)dy[from];
        }
    }
    return sum;
}

static void run_pool_grad(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const int64_t *in = call->attrs.shape.dim;
    float *dx = tdm__ref_out(call, 0);
    for (int64_t b = 0; b < in[0]; b++)
        for (int64_t h = 0; h < in[1]; h++)
            for (int64_t w = 0; w < in[2]; w++)
                for (int64_t c = 0; c < in[3]; c++) *dx++ = (float)pool_grad_sum(call, b, h, w, c);
}

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_MAX_POOL, .dtype = TDM_DTYPE_F32, .run = run_max_pool},
    {.op = TDM_OP_MAX_POOL_GRAD, .dtype = TDM_DTYPE_F32, .run = run_pool_grad},
    {.op = TDM_OP_AVERAGE_POOL, .dtype = TDM_DTYPE_F32, .run = run_average_pool},
    {.op = TDM_OP_AVERAGE_POOL_GRAD, .dtype = TDM_DTYPE_F32, .run = run_pool_grad},
};

const tdm_kernel_family tdm__ref_pool = {kernels, sizeof(kernels) / sizeof(kernels[0])};
