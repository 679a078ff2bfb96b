/*
 * conv.c: convolutions of images [B, H, W, C] with weights [O, KH, KW, C/groups], and of sequences,
 * which are images of height 1.
 *
 * An activation whose slope can be computed from its result (ReLU, tanh, sigmoid) is part of the
 * convolution; the builder adds any other one as a separate op. The two gradients are separate ops
 * as well: their attributes contain the shape of their result.
 */
#include "graph/ops/ops.h"

tdm_status tdm__infer_window(const tdm_op_attrs *attrs, int axis, int64_t size, int64_t *out,
                             tdm_error *err)
{
    static const char *const names[2] = {"height", "width"};
    int64_t kernel = attrs->window.kernel[axis], stride = attrs->window.stride[axis];
    int64_t before = attrs->window.pad_before[axis], after = attrs->window.pad_after[axis];
    int64_t dilation = attrs->window.dilation[axis];
    if (kernel < 1 || stride < 1 || dilation < 1 || before < 0 || after < 0)
        return tdm_fail(
            err, TDM_ERR_RANGE,
            "%s: kernel %lld, stride %lld, dilation %lld must be 1 or more, and padding "
            "%lld not negative",
            names[axis], (long long)kernel, (long long)stride, (long long)dilation,
            (long long)before);
    int64_t extent = (kernel - 1) * dilation + 1, padded = size + before + after;
    if (padded < extent)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "%s: a window of %lld does not fit into %lld (%lld and the padding)",
                        names[axis], (long long)extent, (long long)padded, (long long)size);
    *out = (padded - extent) / stride + 1;
    return TDM_OK;
}

static tdm_status wants_groups(const tdm_op_attrs *attrs, const tdm_shape *x, const tdm_shape *w,
                               tdm_error *err)
{
    long long C = x->dim[3], O = w->dim[0], groups = attrs->window.groups;
    if (groups < 1 || C < 1 || O < 1 || C % groups != 0 || O % groups != 0)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "%lld input channels and %lld output channels cannot be divided into %lld "
                        "groups",
                        C, O, groups);
    if (w->dim[3] != C / groups)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "w is for %lld channels in a group, but x has %lld (%lld in %lld groups)",
                        (long long)w->dim[3], C / groups, C, groups);
    return TDM_OK;
}

static tdm_status infer_conv(const tdm_op_attrs *attrs, const tdm__value *const in[],
                             tdm__value out[], tdm_error *err)
{
    int64_t OH = 0, OW = 0;
    TDM_TRY(tdm__wants_factors(in[0], "x", in[1], "w", err));
    TDM_TRY(tdm__wants_rank(in[0], 4, "x", err));
    TDM_TRY(tdm__wants_rank(in[1], 4, "w", err));
    const tdm_shape *x = &in[0]->shape, *w = &in[1]->shape;
    TDM_TRY(wants_groups(attrs, x, w, err));
    TDM_TRY(tdm__infer_window(attrs, 0, x->dim[1], &OH, err));
    TDM_TRY(tdm__infer_window(attrs, 1, x->dim[2], &OW, err));
    if (in[2]) TDM_TRY(tdm__wants_columns(in[2], w->dim[0], "bias", err));
    out[0] = (tdm__value){.dtype = TDM_DTYPE_F32,
                          .shape = tdm_shape_4(x->dim[0], OH, OW, w->dim[0])};
    return TDM_OK;
}

static tdm_status infer_grad(const tdm_op_attrs *attrs, const tdm__value *const in[],
                             tdm__value out[], tdm_error *err)
{
    TDM_TRY(tdm__wants_factors(in[0], "dy", in[1], "x or w", err));
    out[0] = (tdm__value){.dtype = TDM_DTYPE_F32, .shape = attrs->shape};
    return TDM_OK;
}

static void backward_conv(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                          tdm_value d_in[])
{
    tdm_op_attrs attrs = {.window = node->attrs.window};
    tdm_value x = tdm__node_in(node, 0), w = tdm__node_in(node, 1), dy = d_out[0];
    if (tdm__node_wants(graph, node, 0)) w = tdm__graph_round(graph, w);
    dy = tdm__activation_back(graph, node->attrs.activation, dy, node->out[0]);
    bool has_product = tdm__node_wants(graph, node, 0) || tdm__node_wants(graph, node, 1);
    tdm_value factor = has_product ? tdm__graph_round(graph, dy) : dy;
    if (tdm__node_wants(graph, node, 0)) {
        attrs.shape = tdm_graph_shape(graph, x);
        d_in[0] = tdm__graph_add_node(graph, TDM_OP_CONV_GRAD_X, &attrs, (tdm_value[]){factor, w},
                                      2, NULL);
    }
    if (tdm__node_wants(graph, node, 1)) {
        attrs.shape = tdm_graph_shape(graph, w);
        d_in[1] = tdm__graph_add_node(graph, TDM_OP_CONV_GRAD_W, &attrs, (tdm_value[]){factor, x},
                                      2, NULL);
    }
    if (!tdm__node_wants(graph, node, 2)) return;
    tdm_shape y = tdm_graph_shape(graph, dy);
    tdm_shape flat = tdm_shape_2(y.dim[0] * y.dim[1] * y.dim[2], y.dim[3]);
    d_in[2] = tdm_graph_sum_rows(graph, tdm_graph_reshape(graph, dy, flat));
}

/* One multiplication and one addition for each output and each weight it uses, in all three
 * directions. */
static uint64_t conv_products(const tdm_graph *graph, int32_t y, const tdm_shape *w)
{
    return 2 * tdm__elements_of(graph, y) * (uint64_t)(w->dim[1] * w->dim[2] * w->dim[3]);
}

static uint64_t flops_conv(const tdm_graph *graph, const tdm__node *node)
{
    uint64_t cells = tdm__elements_of(graph, node->out[0]);
    return conv_products(graph, node->out[0], &graph->values[node->in[1]].shape) +
           (node->in[2] ? cells : 0) + tdm__activation_flops(node->attrs.activation, cells);
}

static uint64_t flops_grad_x(const tdm_graph *graph, const tdm__node *node)
{
    return conv_products(graph, node->in[0], &graph->values[node->in[1]].shape);
}

static uint64_t flops_grad_w(const tdm_graph *graph, const tdm__node *node)
{
    return conv_products(graph, node->in[0], &node->attrs.shape);
}

static const tdm__op_row rows[] = {
    {TDM_OP_CONV, "conv", 2, 3, 1, infer_conv, backward_conv, flops_conv, 0, 0},
    {TDM_OP_CONV_GRAD_X, "conv_grad_x", 2, 2, 1, infer_grad, NULL, flops_grad_x, 0, 0},
    {TDM_OP_CONV_GRAD_W, "conv_grad_w", 2, 2, 1, infer_grad, NULL, flops_grad_w, 0, 0},
};

const tdm__op_family tdm__ops_conv = {rows, sizeof(rows) / sizeof(rows[0])};

/* ---- building --------------------------------------------------------------------------------- */

static int or_one(int option)
{
    return option ? option : 1;
}

tdm_value tdm_graph_conv2d(tdm_graph *graph, tdm_value x, tdm_value w,
                           const tdm_conv_options *options)
{
    static const tdm_conv_options defaults = {0};
    const tdm_conv_options *o = options ? options : &defaults;
    tdm_shape weights = tdm_graph_shape(graph, w);
    bool fused = tdm__activation_fuses(o->activation);
    tdm_op_attrs attrs = {.activation = fused ? o->activation : TDM_ACTIVATION_NONE};
    attrs.window.groups = or_one(o->groups);
    for (int axis = 0; axis < 2; axis++) {
        /* A kernel beyond an int's range is too large for any image, and stays out of range
         * here. */
        int64_t kernel = weights.rank == 4 ? weights.dim[1 + axis] : 0;
        attrs.window.kernel[axis] = kernel < INT32_MAX ? (int)kernel : 0;
        attrs.window.stride[axis] = or_one(o->stride[axis]);
        attrs.window.dilation[axis] = or_one(o->dilation[axis]);
        attrs.window.pad_before[axis] = attrs.window.pad_after[axis] = o->padding[axis];
    }
    x = tdm__graph_round(graph, x);
    w = tdm__graph_round(graph, w);
    tdm_value y = tdm__graph_add_node(graph, TDM_OP_CONV, &attrs, (tdm_value[]){x, w, o->bias}, 3,
                                      NULL);
    return fused ? y : tdm_graph_activation(graph, y, o->activation);
}

tdm_value tdm_graph_conv1d(tdm_graph *graph, tdm_value x, tdm_value w,
                           const tdm_conv_options *options)
{
    tdm_conv_options o = options ? *options : (tdm_conv_options){0};
    tdm_shape xs = tdm_graph_shape(graph, x), ws = tdm_graph_shape(graph, w);
    if (xs.rank != 3 || ws.rank != 3) {
        char a[128], b[128];
        tdm__graph_break(graph, TDM_ERR_INVALID,
                         "conv1d: x must be [B, T, C] and w [O, K, C/groups], not %s and %s",
                         tdm_shape_text(&xs, a), tdm_shape_text(&ws, b));
        return TDM_VALUE_NONE;
    }
    o.stride[0] = o.padding[0] = o.dilation[0] = 0;
    x = tdm_graph_reshape(graph, tdm__graph_round(graph, x),
                          tdm_shape_4(xs.dim[0], 1, xs.dim[1], xs.dim[2]));
    w = tdm_graph_reshape(graph, tdm__graph_round(graph, w),
                          tdm_shape_4(ws.dim[0], 1, ws.dim[1], ws.dim[2]));
    tdm_value y = tdm_graph_conv2d(graph, x, w, &o);
    tdm_shape ys = tdm_graph_shape(graph, y);
    return tdm_graph_reshape(graph, y, tdm_shape_3(ys.dim[0], ys.dim[2], ys.dim[3]));
}
