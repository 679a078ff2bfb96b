/*
 * conv.c: convolutions of images by their definition.
 *
 * Images are [B, H, W, C], weights [O, KH, KW, C/groups]; output channel o of group g uses only the
 * input channels of group g. A position outside the image counts as zero. Each of the three loops
 * below writes every number of its result once, as one sum in double precision and in index order.
 */
#include "tensor/kernels/ref/ref.h"

/* All sizes of one convolution, for any two of x, w and y. */
typedef struct sizes {
    int64_t B, H, W, C, O, KH, KW, OH, OW, group_in, group_out;
} sizes;

static sizes sizes_of(const tdm_tensor *x, const tdm_tensor *w, const tdm_tensor *y)
{
    return (sizes){.B = x->shape.dim[0],
                   .H = x->shape.dim[1],
                   .W = x->shape.dim[2],
                   .C = x->shape.dim[3],
                   .O = w->shape.dim[0],
                   .KH = w->shape.dim[1],
                   .KW = w->shape.dim[2],
                   .OH = y->shape.dim[1],
                   .OW = y->shape.dim[2],
                   .group_in = w->shape.dim[3],
                   .group_out = w->shape.dim[3] * w->shape.dim[0] / x->shape.dim[3]};
}

/* The coordinate in the image of position k of output o's window, along `axis`. */
static int64_t place_in(const tdm_op_attrs *attrs, int axis, int64_t o, int64_t k)
{
    return o * attrs->window.stride[axis] + k * attrs->window.dilation[axis] -
           attrs->window.pad_before[axis];
}

/* The output whose position k is at i; -1 if there is none among the first `count`. */
static int64_t output_at(const tdm_op_attrs *attrs, int axis, int64_t i, int64_t k, int64_t count)
{
    int64_t from = i + attrs->window.pad_before[axis] - k * attrs->window.dilation[axis];
    int64_t o = from / attrs->window.stride[axis];
    return from >= 0 && from % attrs->window.stride[axis] == 0 && o < count ? o : -1;
}

static double window_sum(const tdm_op_attrs *attrs, const sizes *s, const float *image,
                         const float *w, int64_t oh, int64_t ow)
{
    double sum = 0;
    for (int64_t kh = 0; kh < s->KH; kh++) {
        int64_t h = place_in(attrs, 0, oh, kh);
        if (h < 0 || h >= s->H) continue;
        for (int64_t kw = 0; kw < s->KW; kw++) {
            int64_t at = place_in(attrs, 1, ow, kw);
            if (at < 0 || at >= s->W) continue;
            const float *x = image + (h * s->W + at) * s->C;
            const float *weights = w + (kh * s->KW + kw) * s->group_in;
            for (int64_t c = 0; c < s->group_in; c++) sum += (double)x[c] * (double)weights[c];
        }
    }
    return sum;
}

static void run_conv(void *backend, const tdm_kernel_call *given, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    tdm_kernel_call wide = tdm__ref_wide(given);
    const tdm_kernel_call *call = &wide;
    sizes s = sizes_of(&call->in[0], &call->in[1], &call->out[0]);
    const float *bias = call->in[2].dtype ? tdm__ref_in(call, 2) : NULL;
    float *y = tdm__ref_out(call, 0);
    for (int64_t cell = 0; cell < s.B * s.OH * s.OW; cell++) {
        int64_t b = cell / (s.OH * s.OW), oh = cell / s.OW % s.OH, ow = cell % s.OW;
        for (int64_t o = 0; o < s.O; o++) {
            int64_t first_channel = o / s.group_out * s.group_in;
            const float *image = tdm__ref_in(call, 0) + b * s.H * s.W * s.C + first_channel;
            const float *w = tdm__ref_in(call, 1) + o * s.KH * s.KW * s.group_in;
            double sum = window_sum(&call->attrs, &s, image, w, oh, ow);
            if (bias) sum += (double)bias[o];
            y[cell * s.O + o] = (float)tdm__ref_activate(call->attrs.activation, sum);
        }
    }
}

/* dx at (h, at): for each position of a window that can be there, the outputs to which it
 * contributes. */
static double image_sum(const tdm_kernel_call *call, const sizes *s, int64_t b, int64_t h,
                        int64_t at, int64_t c)
{
    int64_t first = c / s->group_in * s->group_out;
    double sum = 0;
    for (int64_t kh = 0; kh < s->KH; kh++) {
        int64_t oh = output_at(&call->attrs, 0, h, kh, s->OH);
        if (oh < 0) continue;
        for (int64_t kw = 0; kw < s->KW; kw++) {
            int64_t ow = output_at(&call->attrs, 1, at, kw, s->OW);
            if (ow < 0) continue;
            const float *dy = tdm__ref_in(call, 0) + ((b * s->OH + oh) * s->OW + ow) * s->O;
            const float *w = tdm__ref_in(call, 1) + (kh * s->KW + kw) * s->group_in;
            for (int64_t o = first; o < first + s->group_out; o++)
                sum += (double)dy[o] * (double)w[o * s->KH * s->KW * s->group_in + c % s->group_in];
        }
    }
    return sum;
}

static void run_conv_grad_x(void *backend, const tdm_kernel_call *given, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    tdm_kernel_call wide = tdm__ref_wide(given);
    const tdm_kernel_call *call = &wide;
    sizes s = sizes_of(&call->out[0], &call->in[1], &call->in[0]);
    float *dx = tdm__ref_out(call, 0);
    for (int64_t b = 0; b < s.B; b++)
        for (int64_t h = 0; h < s.H; h++)
            for (int64_t at = 0; at < s.W; at++)
                for (int64_t c = 0; c < s.C; c++) *dx++ = (float)image_sum(call, &s, b, h, at, c);
}

/* One number of dw: over all outputs o, their gradient times the input of that weight. */
static double weight_sum(const tdm_kernel_call *call, const sizes *s, int64_t o, int64_t kh,
                         int64_t kw, int64_t c)
{
    const float *dy = tdm__ref_in(call, 0) + o;
    const float *x = tdm__ref_in(call, 1) + o / s->group_out * s->group_in + c;
    double sum = 0;
    for (int64_t b = 0; b < s->B; b++)
        for (int64_t oh = 0; oh < s->OH; oh++) {
            int64_t h = place_in(&call->attrs, 0, oh, kh);
            if (h < 0 || h >= s->H) continue;
            for (int64_t ow = 0; ow < s->OW; ow++) {
                int64_t at = place_in(&call->attrs, 1, ow, kw);
                if (at < 0 || at >= s->W) continue;
                sum += (double)dy[((b * s->OH + oh) * s->OW + ow) * s->O] *
                       (double)x[((b * s->H + h) * s->W + at) * s->C];
            }
        }
    return sum;
}

static void run_conv_grad_w(void *backend, const tdm_kernel_call *given, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    tdm_kernel_call wide = tdm__ref_wide(given);
    const tdm_kernel_call *call = &wide;
    sizes s = sizes_of(&call->in[1], &call->out[0], &call->in[0]);
    float *dw = tdm__ref_out(call, 0);
    for (int64_t o = 0; o < s.O; o++)
        for (int64_t kh = 0; kh < s.KH; kh++)
            for (int64_t kw = 0; kw < s.KW; kw++)
                for (int64_t c = 0; c < s.group_in; c++)
                    *dw++ = (float)weight_sum(call, &s, o, kh, kw, c);
}

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_CONV, .dtype = TDM_DTYPE_F32, .prepare = tdm__ref_prepare_wide, .run = run_conv},
    {.op = TDM_OP_CONV_GRAD_X,
     .dtype = TDM_DTYPE_F32,
     .prepare = tdm__ref_prepare_wide,
     .run = run_conv_grad_x},
    {.op = TDM_OP_CONV_GRAD_W,
     .dtype = TDM_DTYPE_F32,
     .prepare = tdm__ref_prepare_wide,
     .run = run_conv_grad_w},
};

const tdm_kernel_family tdm__ref_conv = {kernels, sizeof(kernels) / sizeof(kernels[0])};
