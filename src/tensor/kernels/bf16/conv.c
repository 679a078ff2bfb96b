/*
 * conv.c: convolutions of bf16 and their two gradients, as products in the order of bf16.h.
 *
 * The numbers of each window are a row of a matrix that exists only as a view of the image: rows
 * are positions, columns the numbers of the window in the order of the weights. Forward multiplies
 * that matrix by the weights; the gradient of the weights is the product of dy, transposed, and the
 * same matrix; for the gradient of the image the rows are the positions of the image and their
 * windows are over dy: the results to which the position contributed.
 *
 * Convolutions in groups, or with fewer than MIN_CHANNELS channels on either side, would spend most
 * of their time on gathering; the backend `wide` computes them in f32. Only the shape decides,
 * never the CPU, so that the bits are the same everywhere.
 */
#include "tensor/kernels/bf16/bf16.h"
#include "tensor/kernels/conv_way.h"

#include <string.h>

enum { MIN_CHANNELS = 32 };

/* Windows over an image, each a row. */
typedef struct windows {
    const uint16_t *image;
    int64_t H, W, C;   /* of the image */
    int64_t rows_high; /* number of positions in a column, and in a row */
    int64_t rows_wide;
    const tdm_op_attrs *attrs;
    bool back; /* the positions are those of an image, and the windows are over results */
} windows;

/* The coordinate along an axis of number k of the window at `place`; -1 if outside. Windows over
 * results are mirrored, so that k increases there as well. */
static int64_t look_up(const windows *w, int axis, int64_t place, int64_t k)
{
    int64_t stride = w->attrs->window.stride[axis], size = axis == 0 ? w->H : w->W;
    int64_t pad = w->attrs->window.pad_before[axis], last = w->attrs->window.kernel[axis] - 1;
    int64_t dilation = w->attrs->window.dilation[axis];
    int64_t at = w->back ? place + pad - (last - k) * dilation
                         : place * stride + k * dilation - pad;
    if (w->back) at = at >= 0 && at % stride == 0 ? at / stride : -1;
    return at >= 0 && at < size ? at : -1;
}

/* Copies numbers [first, first + count) of a row of `size`, with zeros outside of it. */
static void copy_within(const uint16_t *row, int64_t size, int64_t first, int64_t count,
                        uint16_t *to)
{
    int64_t before = first < 0 ? -first : 0, after = first + count - size;
    if (before > count) before = count;
    if (after < 0) after = 0;
    if (after > count - before) after = count - before;
    memset(to, 0, (size_t)before * sizeof(*to));
    memcpy(to + before, row + first + before, (size_t)(count - before - after) * sizeof(*to));
    memset(to + count - after, 0, (size_t)after * sizeof(*to));
}

/* Copies numbers of row k of a window, starting at `from`: contiguous in the image if the window
 * has no dilation, otherwise position by position. Returns their number, at most `max`. */
static int64_t read_row(const windows *w, const uint16_t *row, int64_t x, int64_t from, int64_t max,
                        uint16_t *to)
{
    int64_t KW = w->attrs->window.kernel[1], stride = w->attrs->window.stride[1];
    int64_t pad = w->attrs->window.pad_before[1], kw = from / w->C;
    if (w->attrs->window.dilation[1] == 1 && (!w->back || stride == 1)) {
        int64_t first = w->back ? x + pad - (KW - 1) : x * stride - pad;
        int64_t count = KW * w->C - from < max ? KW * w->C - from : max;
        copy_within(row, w->W * w->C, first * w->C + from, count, to);
        return count;
    }
    int64_t at = look_up(w, 1, x, kw), c = from % w->C;
    int64_t count = w->C - c < max ? w->C - c : max;
    if (at >= 0)
        memcpy(to, row + at * w->C + c, (size_t)count * sizeof(*to));
    else
        memset(to, 0, (size_t)count * sizeof(*to));
    return count;
}

/* One window: its numbers [col, col + cols). */
static void read_window(const windows *w, int64_t row, int64_t col, int64_t cols, uint16_t *to)
{
    int64_t per_image = w->rows_high * w->rows_wide, in_row = w->attrs->window.kernel[1] * w->C;
    const uint16_t *image = w->image + row / per_image * w->H * w->W * w->C;
    int64_t y = row % per_image / w->rows_wide, x = row % w->rows_wide;
    while (cols > 0) {
        int64_t from = col % in_row, h = look_up(w, 0, y, col / in_row);
        int64_t count = in_row - from < cols ? in_row - from : cols;
        if (h >= 0)
            count = read_row(w, image + h * w->W * w->C, x, from, cols, to);
        else
            memset(to, 0, (size_t)count * sizeof(*to));
        to += count;
        col += count;
        cols -= count;
    }
}

static void read_windows(const void *source, int64_t row, int64_t rows, int64_t col, int64_t cols,
                         uint16_t *to, int64_t stride)
{
    for (int64_t r = 0; r < rows; r++) read_window(source, row + r, col, cols, to + r * stride);
}

/* Weights [O, KH, KW, C] as rows of C numbers, in the order of a window over results: positions in
 * reverse order, and all of O at each. */
typedef struct filters {
    const uint16_t *data;
    int64_t places, O, C;
} filters;

static void read_filters(const void *source, int64_t row, int64_t rows, int64_t col, int64_t cols,
                         uint16_t *to, int64_t stride)
{
    const filters *f = source;
    for (int64_t r = 0; r < rows; r++) {
        int64_t place = f->places - 1 - (row + r) / f->O, o = (row + r) % f->O;
        memcpy(to + r * stride, f->data + (o * f->places + place) * f->C + col,
               (size_t)cols * sizeof(*to));
    }
}

/* ---- the three directions --------------------------------------------------------------------- */

/* The sizes of the product only. */
static tdm__bf16_product product_of(const tdm__conv_operands *o, tdm__conv_way way)
{
    const int64_t *x = o->x->shape.dim, *w = o->w->shape.dim, *y = o->y->shape.dim;
    int64_t places = w[1] * w[2], results = y[0] * y[1] * y[2];
    if (way == FORWARD)
        return (tdm__bf16_product){.M = results, .N = w[0], .K = places * w[3], .trans_b = true};
    if (way == GRAD_X)
        return (tdm__bf16_product){.M = x[0] * x[1] * x[2], .N = w[3], .K = places * w[0]};
    return (tdm__bf16_product){.M = w[0], .N = places * w[3], .K = results, .trans_a = true};
}

static tdm_status bf16_conv_prepare(tdm_kernel_call *call, tdm__conv_way way, tdm_error *err)
{
    tdm__conv_operands o = tdm__conv_operands_of(call, way);
    const int64_t *w = o.w->shape.dim;
    if (call->in[0].dtype != TDM_DTYPE_BF16 || call->attrs.window.groups != 1 ||
        w[0] < MIN_CHANNELS || w[3] < MIN_CHANNELS || tdm_tensor_elements(o.x) == 0 ||
        tdm_tensor_elements(o.y) == 0)
        return tdm_fail(err, TDM_ERR_UNSUPPORTED,
                        "bf16: the inputs are not bf16, or have groups or few channels");
    tdm__bf16_product p = product_of(&o, way);
    call->scratch_bytes = tdm__bf16_scratch_bytes(p.N, p.K);
    return TDM_OK;
}

static void bf16_conv_run(const tdm__bf16_unit *unit, const tdm_kernel_call *call,
                          tdm__conv_way way)
{
    tdm__conv_operands o = tdm__conv_operands_of(call, way);
    const int64_t *x = o.x->shape.dim, *w = o.w->shape.dim, *y = o.y->shape.dim;
    const int64_t *seen = way == GRAD_X ? y : x, *places = way == GRAD_X ? x : y;
    windows view = {.image = (way == GRAD_X ? o.y : o.x)->data,
                    .H = seen[1],
                    .W = seen[2],
                    .C = seen[3],
                    .rows_high = places[1],
                    .rows_wide = places[2],
                    .attrs = &call->attrs,
                    .back = way == GRAD_X};
    filters turned = {o.w->data, w[1] * w[2], w[0], w[3]};
    tdm__bf16_plain plain = way == GRAD_W ? (tdm__bf16_plain){o.y->data, y[3]}
                                          : (tdm__bf16_plain){o.w->data, w[1] * w[2] * w[3]};
    tdm__bf16_matrix gathered = {read_windows, &view}, straight = {tdm__bf16_read_plain, &plain};
    tdm__bf16_product p = product_of(&o, way);
    p.unit = unit;
    p.a = way == GRAD_W ? straight : gathered;
    p.b = way == FORWARD  ? straight
          : way == GRAD_X ? (tdm__bf16_matrix){read_filters, &turned}
                          : gathered;
    p.c = call->out[0].data;
    if (way == FORWARD) {
        p.bias = call->in[2].dtype ? call->in[2].data : NULL;
        p.activation = (tdm_activation)call->attrs.activation;
    }
    tdm__bf16_run(&p, call->scratch);
}

#define WAY(name, way)                                                                             \
    static tdm_status prepare_##name(void *backend, tdm_kernel_call *call, tdm_error *err)         \
    {                                                                                              \
        (void)backend;                                                                             \
        return bf16_conv_prepare(call, way, err);                                                  \
    }                                                                                              \
    static void run_##name(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)    \
    {                                                                                              \
        (void)key;                                                                                 \
        bf16_conv_run(backend, call, way);                                                         \
    }

WAY(conv, FORWARD)
WAY(grad_x, GRAD_X)
WAY(grad_w, GRAD_W)

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_CONV, .dtype = TDM_DTYPE_F32, .prepare = prepare_conv, .run = run_conv},
    {.op = TDM_OP_CONV_GRAD_X,
     .dtype = TDM_DTYPE_F32,
     .prepare = prepare_grad_x,
     .run = run_grad_x},
    {.op = TDM_OP_CONV_GRAD_W,
     .dtype = TDM_DTYPE_F32,
     .prepare = prepare_grad_w,
     .run = run_grad_w},
};

const tdm_kernel_family tdm__bf16_conv = {kernels, sizeof(kernels) / sizeof(kernels[0])};
