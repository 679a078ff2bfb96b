/*
 * pool.c: the maximum or the mean of each window of an image [B, H, W, C].
 *
 * Padding is ignored: it is never the maximum and does not count in a mean. Padding is at most half
 * a window, so that every window contains a number. The maximum stores the index of its position in
 * the window, which is all that its gradient needs. A global pool is a mean over one window as
 * large as the image.
 */
#include "graph/ops/ops.h"

static tdm_status infer_pool(const tdm_op_attrs *attrs, const tdm__value *const in[],
                             tdm__value out[], tdm_error *err)
{
    int64_t OH = 0, OW = 0;
    TDM_TRY(tdm__wants_f32(in[0], "x", err));
    TDM_TRY(tdm__wants_rank(in[0], 4, "x", err));
    for (int axis = 0; axis < 2; axis++)
        if (attrs->window.pad_before[axis] > attrs->window.kernel[axis] / 2)
            return tdm_fail(err, TDM_ERR_RANGE, "padding %d is more than half of the kernel's %d",
                            attrs->window.pad_before[axis], attrs->window.kernel[axis]);
    const tdm_shape *x = &in[0]->shape;
    TDM_TRY(tdm__infer_window(attrs, 0, x->dim[1], &OH, err));
    TDM_TRY(tdm__infer_window(attrs, 1, x->dim[2], &OW, err));
    out[0] = (tdm__value){.dtype = TDM_DTYPE_F32,
                          .shape = tdm_shape_4(x->dim[0], OH, OW, x->dim[3])};
    return TDM_OK;
}

static tdm_status infer_max_pool(const tdm_op_attrs *attrs, const tdm__value *const in[],
                                 tdm__value out[], tdm_error *err)
{
    int64_t places = (int64_t)attrs->window.kernel[0] * attrs->window.kernel[1];
    TDM_TRY(infer_pool(attrs, in, out, err));
    if (places > INT32_MAX)
        return tdm_fail(err, TDM_ERR_RANGE, "a window of %lld positions is too large",
                        (long long)places);
    out[1] = (tdm__value){.dtype = TDM_DTYPE_I32, .shape = out[0].shape};
    return TDM_OK;
}

static void backward_max_pool(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                              tdm_value d_in[])
{
    tdm_op_attrs attrs = node->attrs;
    attrs.shape = tdm_graph_shape(graph, tdm__node_in(node, 0));
    d_in[0] = tdm__graph_add_node(graph, TDM_OP_MAX_POOL_GRAD, &attrs,
                                  (tdm_value[]){d_out[0], {node->out[1]}}, 2, NULL);
}

static void backward_average_pool(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                                  tdm_value d_in[])
{
    tdm_op_attrs attrs = node->attrs;
    attrs.shape = tdm_graph_shape(graph, tdm__node_in(node, 0));
    d_in[0] = tdm__graph_add_node(graph, TDM_OP_AVERAGE_POOL_GRAD, &attrs, d_out, 1, NULL);
}

/* One for each position of each window; the gradients cost the same. */
static uint64_t flops_pool(const tdm_graph *graph, const tdm__node *node)
{
    const int *kernel = node->attrs.window.kernel;
    return tdm__elements_of(graph, node->out[0]) * (uint64_t)kernel[0] * (uint64_t)kernel[1];
}

static uint64_t flops_pool_grad(const tdm_graph *graph, const tdm__node *node)
{
    const int *kernel = node->attrs.window.kernel;
    return tdm__elements_of(graph, node->in[0]) * (uint64_t)kernel[0] * (uint64_t)kernel[1];
}

static const tdm__op_row rows[] = {
    {TDM_OP_MAX_POOL, "max_pool", 1, 1, 2, infer_max_pool, backward_max_pool, flops_pool, 0, 0},
    {TDM_OP_MAX_POOL_GRAD, "max_pool_grad", 2, 2, 1, tdm__infer_shape_of_attrs, NULL,
     flops_pool_grad, 0, 0},
    {TDM_OP_AVERAGE_POOL, "average_pool", 1, 1, 1, infer_pool, backward_average_pool, flops_pool, 0,
     0},
    {TDM_OP_AVERAGE_POOL_GRAD, "average_pool_grad", 1, 1, 1, tdm__infer_shape_of_attrs, NULL,
     flops_pool_grad, 0, 0},
};

const tdm__op_family tdm__ops_pool = {rows, sizeof(rows) / sizeof(rows[0])};

/* ---- building --------------------------------------------------------------------------------- */

tdm_value tdm_graph_pool(tdm_graph *graph, tdm_value x, tdm_pool kind,
                         const tdm_pool_options *options)
{
    tdm_pool_options o = options ? *options : (tdm_pool_options){0};
    tdm_op_attrs attrs = {0};
    for (int axis = 0; axis < 2; axis++) {
        attrs.window.kernel[axis] = o.kernel[axis];
        attrs.window.stride[axis] = o.stride[axis] ? o.stride[axis] : o.kernel[axis];
        attrs.window.dilation[axis] = 1;
        attrs.window.pad_before[axis] = attrs.window.pad_after[axis] = o.padding[axis];
    }
    attrs.window.groups = 1;
    tdm_op_kind op = kind == TDM_POOL_MAX ? TDM_OP_MAX_POOL : TDM_OP_AVERAGE_POOL;
    return tdm__graph_add_node(graph, op, &attrs, &x, 1, NULL);
}

tdm_value tdm_graph_global_pool(tdm_graph *graph, tdm_value x)
{
    tdm_shape s = tdm_graph_shape(graph, x);
    tdm_pool_options whole = {0};
    for (int axis = 0; axis < 2 && s.rank == 4; axis++)
        whole.kernel[axis] = s.dim[1 + axis] < INT32_MAX ? (int)s.dim[1 + axis] : 0;
    tdm_value y = tdm_graph_average_pool(graph, x, &whole);
    return tdm_graph_reshape(graph, y, tdm_shape_2(s.dim[0], s.dim[3]));
}
