/*
 * conv.c: convolutions of f32 and their two gradients as matrix products (product.h).
 *
 * No matrix of windows is stored: the product reads the image through functions that find the
 * channels for a position of the window and a pixel.
 *
 *   forward   [pixels of y, (kh, kw, c)] x [(kh, kw, c), o]      k runs over kh, then kw, then c
 *   grad_x    [pixels of x, (kh, kw, o)] x [(kh, kw, o), c]      k runs over kh, then kw, then o
 *   grad_w    [o, pixels of y] x [pixels of y, (kh, kw, c)]      k runs over b, then y's rows, then columns
 *
 * These orders, together with product.h, define the bits of a convolution. A window position
 * outside the image contributes zeros. For grad_x with a stride, pixels of x are sorted into
 * phases: those whose windows contain the same positions. A phase is one product, over its
 * positions only.
 *
 * Each group is one product. Images with few channels are first copied with their padding, so that
 * a whole row of a window is one piece.
 */
#include "base/base.h"
#include "tensor/kernels/conv_way.h"
#include "tensor/kernels/product/product.h"

#include <string.h>

enum { FEW_CHANNELS = 16, ALIGN_BYTES = 64 };

/* The sizes of a convolution, named as in the forward direction. */
typedef struct conv_sizes {
    int64_t B, H, W, C, O, KH, KW, OH, OW;
    int64_t group_in, group_out, groups;
    int64_t stride[2], dilation[2], pad[2];
    int64_t padded_H, padded_W; /* of the copy of an image with few channels; 0: none is made */
} conv_sizes;

static conv_sizes conv_sizes_of(const tdm_kernel_call *call, tdm__conv_way way)
{
    tdm__conv_operands o = tdm__conv_operands_of(call, way);
    const int64_t *x = o.x->shape.dim, *w = o.w->shape.dim, *y = o.y->shape.dim;
    int64_t groups = call->attrs.window.groups;
    conv_sizes s = {.B = x[0],
                    .H = x[1],
                    .W = x[2],
                    .C = x[3],
                    .O = w[0],
                    .KH = w[1],
                    .KW = w[2],
                    .OH = y[1],
                    .OW = y[2],
                    .group_in = w[3],
                    .group_out = w[0] / groups,
                    .groups = groups};
    for (int axis = 0; axis < 2; axis++) {
        s.stride[axis] = call->attrs.window.stride[axis];
        s.dilation[axis] = call->attrs.window.dilation[axis];
        s.pad[axis] = call->attrs.window.pad_before[axis];
    }
    if (way != GRAD_X && groups == 1 && s.C < FEW_CHANNELS && s.dilation[1] == 1 && s.KW > 1) {
        /* As many rows and columns as windows cover, possibly fewer than the image has. */
        s.padded_H = (s.OH - 1) * s.stride[0] + (s.KH - 1) * s.dilation[0] + 1;
        s.padded_W = (s.OW - 1) * s.stride[1] + s.KW;
    }
    return s;
}

/* ---- windows of the image, for forward and grad_w --------------------------------------------- */

typedef struct conv_windows {
    const conv_sizes *sizes;
    const float *image; /* at the group's first channel */
} conv_windows;

/* Lines are pixels of y; piece p is position p of the window. */
static void window_lines(const void *source, int64_t first, int64_t count, int64_t piece,
                         const float **out)
{
    const conv_windows *v = source;
    const conv_sizes *s = v->sizes;
    int64_t up = piece / s->KW * s->dilation[0] - s->pad[0];
    int64_t left = piece % s->KW * s->dilation[1] - s->pad[1];
    int64_t ox = first % s->OW, oy = first / s->OW % s->OH, b = first / (s->OW * s->OH);
    for (int64_t i = 0; i < count; i++) {
        int64_t y = oy * s->stride[0] + up, x = ox * s->stride[1] + left;
        bool inside = y >= 0 && y < s->H && x >= 0 && x < s->W;
        out[i] = inside ? v->image + ((b * s->H + y) * s->W + x) * s->C : NULL;
        if (++ox < s->OW) continue;
        ox = 0;
        if (++oy < s->OH) continue;
        oy = 0;
        b++;
    }
}

/* The same in an image with its padding; piece p is row p of the window. */
static void padded_lines(const void *source, int64_t first, int64_t count, int64_t piece,
                         const float **out)
{
    const conv_windows *v = source;
    const conv_sizes *s = v->sizes;
    int64_t ox = first % s->OW, oy = first / s->OW % s->OH, b = first / (s->OW * s->OH);
    int64_t step = s->stride[1] * s->C, row = s->padded_W * s->C;
    for (int64_t i = 0; i < count;) {
        const float *from = v->image +
                            (b * s->padded_H + oy * s->stride[0] + piece * s->dilation[0]) * row +
                            ox * step;
        for (; i < count && ox < s->OW; i++, ox++, from += step) out[i] = from;
        ox = 0;
        if (++oy < s->OH) continue;
        oy = 0;
        b++;
    }
}

static void pad_images(const conv_sizes *s, const float *image, float *to)
{
    int64_t row = s->padded_W * s->C, from_left = s->pad[1] * s->C;
    int64_t cols = s->W * s->C < row - from_left ? s->W * s->C : row - from_left;
    memset(to, 0, (size_t)(s->B * s->padded_H * row) * sizeof(float));
    for (int64_t b = 0; b < s->B; b++)
        for (int64_t y = 0; cols > 0 && y < s->H && y + s->pad[0] < s->padded_H; y++)
            memcpy(to + (b * s->padded_H + y + s->pad[0]) * row + from_left,
                   image + (b * s->H + y) * s->W * s->C, (size_t)cols * sizeof(float));
}

static size_t padded_bytes(const conv_sizes *s)
{
    size_t bytes = (size_t)(s->B * s->padded_H * s->padded_W * s->C) * sizeof(float);
    return tdm_align_up(bytes, ALIGN_BYTES);
}

/* ---- phases, for grad_x ----------------------------------------------------------------------- */

/* Along one axis: pixels first, first + stride, ... of x, whose windows contain the same
 * positions. */
typedef struct conv_phase {
    int64_t first, count; /* pixels */
    int64_t places;       /* positions of the window: place, place + step, ... */
    int64_t place, step;
} conv_phase;

/* Pixel i contributes to position k of the windows where i + pad - k dilation is a multiple of the
 * stride. */
static conv_phase phase_of(const conv_sizes *s, int axis, int64_t index)
{
    int64_t stride = s->stride[axis], size = axis == 0 ? s->H : s->W;
    int64_t kernel = axis == 0 ? s->KH : s->KW;
    conv_phase p = {.first = index, .count = index < size ? (size - 1 - index) / stride + 1 : 0};
    int64_t before = -1;
    for (int64_t k = 0; k < kernel; k++) {
        if ((index + s->pad[axis] - k * s->dilation[axis]) % stride != 0) continue;
        if (p.places++ == 0) p.place = k;
        if (before >= 0) p.step = k - before;
        before = k;
    }
    return p;
}

/* The pixels of one phase of x, and the results to which they contribute. */
typedef struct conv_back {
    const conv_sizes *sizes;
    conv_phase phase[2];
    const float *dy, *weights; /* at the group's first channel, and filter */
    float *dx;
} conv_back;

static int64_t back_place(const conv_back *v, int axis, int64_t index)
{
    return v->phase[axis].place + index * v->phase[axis].step;
}

/* Lines are pixels of the phase; piece p is the p-th of their positions. */
static void back_lines(const void *source, int64_t first, int64_t count, int64_t piece,
                       const float **out)
{
    const conv_back *v = source;
    const conv_sizes *s = v->sizes;
    int64_t rows = v->phase[0].count, cols = v->phase[1].count;
    int64_t kh = back_place(v, 0, piece / v->phase[1].places);
    int64_t kw = back_place(v, 1, piece % v->phase[1].places);
    /* The divisions are exact by the definition of a phase. */
    int64_t up = (v->phase[0].first + s->pad[0] - kh * s->dilation[0]) / s->stride[0];
    int64_t left = (v->phase[1].first + s->pad[1] - kw * s->dilation[1]) / s->stride[1];
    int64_t x = first % cols, y = first / cols % rows, b = first / (cols * rows);
    for (int64_t i = 0; i < count; i++) {
        int64_t oy = y + up, ox = x + left;
        bool inside = oy >= 0 && oy < s->OH && ox >= 0 && ox < s->OW;
        out[i] = inside ? v->dy + ((b * s->OH + oy) * s->OW + ox) * s->O : NULL;
        if (++x < cols) continue;
        x = 0;
        if (++y < rows) continue;
        y = 0;
        b++;
    }
}

/* Lines are (position, o); each runs along the channels of x. */
static void filter_lines(const void *source, int64_t first, int64_t count, int64_t piece,
                         const float **out)
{
    (void)piece;
    const conv_back *v = source;
    const conv_sizes *s = v->sizes;
    for (int64_t i = 0; i < count; i++) {
        int64_t place = (first + i) / s->group_out, o = (first + i) % s->group_out;
        int64_t kh = back_place(v, 0, place / v->phase[1].places);
        int64_t kw = back_place(v, 1, place % v->phase[1].places);
        out[i] = v->weights + ((o * s->KH + kh) * s->KW + kw) * s->group_in;
    }
}

static void pixel_lines(const void *source, int64_t first, int64_t count, float **out)
{
    const conv_back *v = source;
    const conv_sizes *s = v->sizes;
    int64_t rows = v->phase[0].count, cols = v->phase[1].count;
    int64_t x = first % cols, y = first / cols % rows, b = first / (cols * rows);
    for (int64_t i = 0; i < count; i++) {
        int64_t at_y = v->phase[0].first + y * s->stride[0];
        int64_t at_x = v->phase[1].first + x * s->stride[1];
        out[i] = v->dx + ((b * s->H + at_y) * s->W + at_x) * s->C;
        if (++x < cols) continue;
        x = 0;
        if (++y < rows) continue;
        y = 0;
        b++;
    }
}

static void zero_pixels(const conv_back *v)
{
    const conv_sizes *s = v->sizes;
    float *at;
    for (int64_t i = 0; i < s->B * v->phase[0].count * v->phase[1].count; i++) {
        pixel_lines(v, i, 1, &at);
        memset(at, 0, (size_t)s->group_in * sizeof(float));
    }
}

/* ---- the three directions --------------------------------------------------------------------- */

/* The sizes of the product of one group; for grad_x, bounds of those of its phases. */
static tdm__product conv_product_of(const conv_sizes *s, tdm__conv_way way)
{
    int64_t pixels = s->B * s->OH * s->OW, window = s->KH * s->KW * s->group_in;
    if (way == FORWARD) return (tdm__product){.M = pixels, .N = s->group_out, .K = window};
    if (way == GRAD_W) return (tdm__product){.M = s->group_out, .N = window, .K = pixels};
    return (tdm__product){
        .M = s->B * s->H * s->W, .N = s->group_in, .K = s->KH * s->KW * s->group_out};
}

static tdm_status conv_prepare(tdm_kernel_call *call, tdm__conv_way way, tdm_error *err)
{
    tdm__conv_operands o = tdm__conv_operands_of(call, way);
    if (call->in[0].dtype != TDM_DTYPE_F32)
        return tdm_fail(err, TDM_ERR_UNSUPPORTED, "product: the convolution is not of f32");
    if (tdm_tensor_elements(o.x) == 0 || tdm_tensor_elements(o.w) == 0 ||
        tdm_tensor_elements(o.y) == 0)
        return tdm_fail(err, TDM_ERR_UNSUPPORTED, "product: an empty convolution");
    conv_sizes s = conv_sizes_of(call, way);
    tdm__product p = conv_product_of(&s, way);
    call->scratch_bytes = padded_bytes(&s) + tdm__product_here()->scratch_bytes(p.M, p.N, p.K);
    return TDM_OK;
}

/* The factor of windows. A padded image is in scratch. */
static tdm__factor windows_factor(const conv_windows *v, bool along_k)
{
    const conv_sizes *s = v->sizes;
    bool padded = s->padded_H > 0;
    bool is_matrix = s->KH * s->KW == 1 && s->OH == s->H && s->OW == s->W && s->stride[0] == 1 &&
                     s->stride[1] == 1 && s->pad[0] == 0 && s->pad[1] == 0;
    return (tdm__factor){.lines = padded ? padded_lines : window_lines,
                         .source = v,
                         .piece_length = padded ? s->KW * s->C : s->group_in,
                         .along_k = along_k,
                         .stride = is_matrix ? s->C : 0};
}

static void conv_forward(const tdm_kernel_call *call, const conv_sizes *s, char *scratch)
{
    const float *image = call->in[0].data, *weights = call->in[1].data;
    const float *bias = call->in[2].dtype ? call->in[2].data : NULL;
    if (s->padded_H > 0) {
        pad_images(s, image, (float *)scratch);
        image = (const float *)scratch;
    }
    for (int64_t g = 0; g < s->groups; g++) {
        tdm__product p = conv_product_of(s, FORWARD);
        conv_windows view = {s, image + g * s->group_in};
        tdm__matrix filters = {weights + g * s->group_out * p.K, p.K};
        p.a = windows_factor(&view, true);
        p.b = tdm__factor_of(&filters, p.K, true);
        p.c = (float *)call->out[0].data + g * s->group_out;
        p.c_stride = s->O;
        p.bias = bias ? bias + g * s->group_out : NULL;
        p.activation = (tdm_activation)call->attrs.activation;
        tdm__product_here()->run(&p, scratch + padded_bytes(s));
    }
}

static void conv_grad_w(const tdm_kernel_call *call, const conv_sizes *s, char *scratch)
{
    const float *dy = call->in[0].data, *image = call->in[1].data;
    if (s->padded_H > 0) {
        pad_images(s, image, (float *)scratch);
        image = (const float *)scratch;
    }
    for (int64_t g = 0; g < s->groups; g++) {
        tdm__product p = conv_product_of(s, GRAD_W);
        conv_windows view = {s, image + g * s->group_in};
        tdm__matrix results = {dy + g * s->group_out, s->O};
        p.a = tdm__factor_of(&results, s->group_out, false);
        p.b = windows_factor(&view, false);
        p.c = (float *)call->out[0].data + g * s->group_out * p.N;
        p.c_stride = p.N;
        tdm__product_here()->run(&p, scratch + padded_bytes(s));
    }
}

static void conv_grad_x(const tdm_kernel_call *call, const conv_sizes *s, char *scratch)
{
    conv_back v = {.sizes = s};
    int64_t phases = s->stride[0] * s->stride[1];
    for (int64_t i = 0; i < s->groups * phases; i++) {
        int64_t g = i / phases, phase = i % phases;
        v.phase[0] = phase_of(s, 0, phase / s->stride[1]);
        v.phase[1] = phase_of(s, 1, phase % s->stride[1]);
        v.dy = (const float *)call->in[0].data + g * s->group_out;
        v.weights = (const float *)call->in[1].data +
                    g * s->group_out * s->KH * s->KW * s->group_in;
        v.dx = (float *)call->out[0].data + g * s->group_in;
        tdm__product p = conv_product_of(s, GRAD_X);
        p.M = s->B * v.phase[0].count * v.phase[1].count;
        p.K = v.phase[0].places * v.phase[1].places * s->group_out;
        if (p.K == 0) zero_pixels(&v);
        if (p.K == 0 || p.M == 0) continue;
        p.a = (tdm__factor){
            .lines = back_lines, .source = &v, .piece_length = s->group_out, .along_k = true};
        p.b = (tdm__factor){.lines = filter_lines, .source = &v, .piece_length = s->group_in};
        p.c_lines = pixel_lines;
        p.c_source = &v;
        tdm__product_here()->run(&p, scratch);
    }
}

#define CONV(name, way)                                                                            \
    static tdm_status conv_prepare_##name(void *backend, tdm_kernel_call *call, tdm_error *err)    \
    {                                                                                              \
        (void)backend;                                                                             \
        return conv_prepare(call, way, err);                                                       \
    }                                                                                              \
    static void conv_run_##name(void *backend, const tdm_kernel_call *call,                        \
                                const tdm_step_key *key)                                           \
    {                                                                                              \
        (void)backend;                                                                             \
        (void)key;                                                                                 \
        conv_sizes s = conv_sizes_of(call, way);                                                   \
        conv_##name(call, &s, call->scratch);                                                      \
    }

CONV(forward, FORWARD)
CONV(grad_x, GRAD_X)
CONV(grad_w, GRAD_W)

#define KERNEL(kind, name)                                                                         \
    {                                                                                              \
        .op = kind, .dtype = TDM_DTYPE_F32, .prepare = conv_prepare_##name, .run = conv_run_##name \
    }

static const tdm_kernel kernels[] = {
    KERNEL(TDM_OP_CONV, forward),
    KERNEL(TDM_OP_CONV_GRAD_X, grad_x),
    KERNEL(TDM_OP_CONV_GRAD_W, grad_w),
};

const tdm_kernel_family tdm__product_conv = {kernels, sizeof(kernels) / sizeof(kernels[0])};
