/*
 * winograd.c: the backend of winograd.h, which precedes the one for all convolutions (conv.c).
 *
 * It supports 3 x 3 windows with stride 1, without dilation and groups, channels in multiples of
 * 16, and results of at least 4 x 4. The choice depends only on shapes, because it affects bits.
 */
#include "tensor/kernels/product/winograd.h"
#include "tensor/kernels/conv_way.h"

enum { MIN_SIZE = 4 };

static bool winograd_suits(const tdm_kernel_call *call, tdm__conv_way way)
{
    tdm__conv_operands o = tdm__conv_operands_of(call, way);
    const int64_t *x = o.x->shape.dim, *w = o.w->shape.dim, *y = o.y->shape.dim;
    bool suited = call->in[0].dtype == TDM_DTYPE_F32 && call->attrs.window.groups == 1 &&
                  w[0] % TDM__WINOGRAD_CHANNELS == 0 && w[3] % TDM__WINOGRAD_CHANNELS == 0 &&
                  y[0] > 0;
    for (int axis = 0; axis < 2; axis++)
        suited = suited && w[1 + axis] == 3 && call->attrs.window.stride[axis] == 1 &&
                 call->attrs.window.dilation[axis] == 1 && y[1 + axis] >= MIN_SIZE &&
                 x[1 + axis] >= MIN_SIZE && call->attrs.window.pad_before[axis] <= 2;
    return suited;
}

static tdm__winograd winograd_of(const tdm_kernel_call *call, tdm__conv_way way)
{
    tdm__conv_operands o = tdm__conv_operands_of(call, way);
    const tdm_tensor *from = way == GRAD_X ? o.y : o.x, *to = way == GRAD_X ? o.x : o.y;
    int64_t tile = way == FORWARD ? 2 : 4;
    /* dx[i] = sum of dy[i + pad - k] w[k]: windows rotated by 180 degrees, and the complementary
     * padding. */
    int64_t top = call->attrs.window.pad_before[0], left = call->attrs.window.pad_before[1];
    return (tdm__winograd){.B = from->shape.dim[0],
                           .H = from->shape.dim[1],
                           .W = from->shape.dim[2],
                           .C = from->shape.dim[3],
                           .O = to->shape.dim[3],
                           .out_H = to->shape.dim[1],
                           .out_W = to->shape.dim[2],
                           .pad_top = way == GRAD_X ? 2 - top : top,
                           .pad_left = way == GRAD_X ? 2 - left : left,
                           .tile = tile,
                           .tile_rows = (to->shape.dim[1] + tile - 1) / tile,
                           .tile_cols = (to->shape.dim[2] + tile - 1) / tile,
                           .back = way == GRAD_X,
                           .image = from->data,
                           .weights = o.w->data,
                           .bias = way == FORWARD && call->in[2].dtype ? call->in[2].data : NULL,
                           .activation = way == FORWARD ? (tdm_activation)call->attrs.activation
                                                        : TDM_ACTIVATION_NONE,
                           .result = to->data};
}

static tdm_status winograd_prepare(tdm_kernel_call *call, tdm__conv_way way, tdm_error *err)
{
    if (!winograd_suits(call, way))
        return tdm_fail(err, TDM_ERR_UNSUPPORTED, "Winograd: this convolution is not supported");
    tdm__winograd w = winograd_of(call, way);
    call->scratch_bytes = way == GRAD_W ? tdm__winograd_here()->grad_w_scratch_bytes(&w)
                                        : tdm__winograd_here()->scratch_bytes(&w);
    return TDM_OK;
}

static void winograd_run(const tdm_kernel_call *call, tdm__conv_way way)
{
    tdm__winograd w = winograd_of(call, way);
    if (way == GRAD_W)
        tdm__winograd_here()->grad_w(&w, call->out[0].data, call->scratch);
    else
        tdm__winograd_here()->run(&w, call->scratch);
}

#define WINOGRAD(name, way)                                                                        \
    static tdm_status winograd_prepare_##name(void *backend, tdm_kernel_call *call,                \
                                              tdm_error *err)                                      \
    {                                                                                              \
        (void)backend;                                                                             \
        return winograd_prepare(call, way, err);                                                   \
    }                                                                                              \
    static void winograd_run_##name(void *backend, const tdm_kernel_call *call,                    \
                                    const tdm_step_key *key)                                       \
    {                                                                                              \
        (void)backend;                                                                             \
        (void)key;                                                                                 \
        winograd_run(call, way);                                                                   \
    }

WINOGRAD(forward, FORWARD)
WINOGRAD(grad_x, GRAD_X)
WINOGRAD(grad_w, GRAD_W)

#define KERNEL(kind, name)                                                                         \
    {                                                                                              \
        .op = kind, .dtype = TDM_DTYPE_F32, .prepare = winograd_prepare_##name,                    \
        .run = winograd_run_##name                                                                 \
    }

static const tdm_kernel kernels[] = {
    KERNEL(TDM_OP_CONV, forward),
    KERNEL(TDM_OP_CONV_GRAD_X, grad_x),
    KERNEL(TDM_OP_CONV_GRAD_W, grad_w),
};

static const tdm_kernel_family convolutions = {kernels, sizeof(kernels) / sizeof(kernels[0])};
static const tdm_kernel_family *const families[] = {&convolutions, NULL};

const tdm_kernel_backend_ops tdm__kernels_winograd = {.name = "winograd", .families = families};
