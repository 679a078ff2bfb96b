/*
 * basic.c: basic ops: views, copies, sums of rows, activations, dropout.
 *
 * A gradient is built from ops as well, so it is planned, placed and tested like any other op. Ops
 * whose names end in "_grad" exist only for that and have no gradient.
 */
#include "graph/graph.h"
#include "graph/ops/ops.h"

/* ---- shapes ----------------------------------------------------------------------------------- */

static tdm_status infer_rows(const tdm_op_attrs *attrs, const tdm__value *const in[],
                             tdm__value out[], tdm_error *err)
{
    if (in[0]->shape.rank < 1)
        return tdm_fail(err, TDM_ERR_INVALID, "x must have at least one dimension: its rows");
    return tdm__infer_same(attrs, in, out, err);
}

static tdm_status infer_reshape(const tdm_op_attrs *attrs, const tdm__value *const in[],
                                tdm__value out[], tdm_error *err)
{
    char x[128], y[128];
    if (tdm_shape_elements(&attrs->shape) != tdm_shape_elements(&in[0]->shape))
        return tdm_fail(err, TDM_ERR_INVALID, "%s does not hold as many numbers as %s",
                        tdm_shape_text(&attrs->shape, y), tdm_shape_text(&in[0]->shape, x));
    out[0] = (tdm__value){.dtype = in[0]->dtype, .shape = attrs->shape};
    return TDM_OK;
}

static tdm_status infer_cast(const tdm_op_attrs *attrs, const tdm__value *const in[],
                             tdm__value out[], tdm_error *err)
{
    TDM_TRY(tdm__infer_same(attrs, in, out, err));
    out[0].dtype = TDM_DTYPE_BF16;
    return TDM_OK;
}

/* dy, y -> dx. Only the sign of y matters, and bf16 preserves it. */
static tdm_status infer_relu_grad(const tdm_op_attrs *attrs, const tdm__value *const in[],
                                  tdm__value out[], tdm_error *err)
{
    if (in[1]->dtype != TDM_DTYPE_BF16) return tdm__infer_two_same(attrs, in, out, err);
    TDM_TRY(tdm__wants_same(in[0], in[1], err));
    return tdm__infer_same(attrs, in, out, err);
}

static tdm_status infer_fill(const tdm_op_attrs *attrs, const tdm__value *const in[],
                             tdm__value out[], tdm_error *err)
{
    (void)in;
    (void)err;
    out[0] = (tdm__value){.dtype = TDM_DTYPE_F32, .shape = attrs->shape};
    return TDM_OK;
}

static tdm_status infer_sum_rows(const tdm_op_attrs *attrs, const tdm__value *const in[],
                                 tdm__value out[], tdm_error *err)
{
    (void)attrs;
    TDM_TRY(tdm__wants_f32(in[0], "x", err));
    TDM_TRY(tdm__wants_rank(in[0], 2, "x", err));
    out[0] = (tdm__value){.dtype = TDM_DTYPE_F32, .shape = tdm_shape_1(in[0]->shape.dim[1])};
    return TDM_OK;
}

static tdm_status infer_normalise(const tdm_op_attrs *attrs, const tdm__value *const in[],
                                  tdm__value out[], tdm_error *err)
{
    TDM_TRY(tdm__wants_rank(in[0], 2, "x", err));
    TDM_TRY(tdm__wants_columns(in[1], in[0]->shape.dim[1], "shift", err));
    TDM_TRY(tdm__wants_columns(in[2], in[0]->shape.dim[1], "scale", err));
    if (in[1]->needs_grad || in[2]->needs_grad)
        return tdm_fail(err, TDM_ERR_UNSUPPORTED,
                        "shift and scale are fixed; they cannot be trained");
    return tdm__infer_same(attrs, in, out, err);
}

/* ---- gradients -------------------------------------------------------------------------------- */

static tdm_value in_of(const tdm__node *node, int index)
{
    return (tdm_value){node->in[index]};
}

static bool grad_is_wanted(const tdm_graph *graph, const tdm__node *node, int index)
{
    return tdm__value_needs_grad(graph, node->in[index]);
}

static void backward_copy(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                          tdm_value d_in[])
{
    if (grad_is_wanted(graph, node, 0)) d_in[0] = d_out[0];
}

/* Every lane's result contains this lane's x: its gradient is the sum of theirs. */
static void backward_lane_sum(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                              tdm_value d_in[])
{
    if (grad_is_wanted(graph, node, 0)) d_in[0] = tdm_graph_lane_sum(graph, d_out[0]);
}

/* Rounding is treated as the identity: gradients are f32 and pass unchanged. */
static void backward_cast(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                          tdm_value d_in[])
{
    backward_copy(graph, node, d_out, d_in);
}

static void backward_reshape(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                             tdm_value d_in[])
{
    if (grad_is_wanted(graph, node, 0))
        d_in[0] = tdm_graph_reshape(graph, d_out[0], graph->values[node->in[0]].shape);
}

/* Every row gets the same gradient: ones [B, 1] times dy [1, N]. */
static void backward_sum_rows(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                              tdm_value d_in[])
{
    tdm_shape x = graph->values[node->in[0]].shape;
    tdm_op_attrs ones = {.scale = 1.0, .shape = tdm_shape_2(x.dim[0], 1)};
    tdm_value column = tdm__graph_add_node(graph, TDM_OP_FILL, &ones, NULL, 0, NULL);
    tdm_value row = tdm_graph_reshape(graph, d_out[0], tdm_shape_2(1, x.dim[1]));
    d_in[0] = tdm__graph_add_node(graph, TDM_OP_MATMUL, &(tdm_op_attrs){0},
                                  (tdm_value[]){column, row}, 2, NULL); /* never rounded */
}

static tdm_value grad_node(tdm_graph *graph, tdm_op_kind op, tdm_value dy, int32_t at)
{
    return tdm__graph_add_node(graph, op, &(tdm_op_attrs){0}, (tdm_value[]){dy, {at}}, 2, NULL);
}

static void backward_relu(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                          tdm_value d_in[])
{
    d_in[0] = tdm__activation_back(graph, TDM_ACTIVATION_RELU, d_out[0], node->out[0]);
}

static void backward_gelu(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                          tdm_value d_in[])
{
    d_in[0] = grad_node(graph, TDM_OP_GELU_GRAD, d_out[0], node->in[0]);
}

static void backward_tanh(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                          tdm_value d_in[])
{
    d_in[0] = grad_node(graph, TDM_OP_TANH_GRAD, d_out[0], node->out[0]);
}

static void backward_sigmoid(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                             tdm_value d_in[])
{
    d_in[0] = grad_node(graph, TDM_OP_SIGMOID_GRAD, d_out[0], node->out[0]);
}

/* The same mask from the same address, applied to dy. */
static void backward_dropout(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                             tdm_value d_in[])
{
    d_in[0] = tdm__graph_add_node(graph, TDM_OP_DROPOUT, &node->attrs, &d_out[0], 1, NULL);
}

/* shift and scale are constants here: dx = dy * scale = (dy - 0) * scale. */
static void backward_normalise(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                               tdm_value d_in[])
{
    tdm_op_attrs zeros = {.scale = 0.0, .shape = graph->values[node->in[1]].shape};
    tdm_value zero = tdm__graph_add_node(graph, TDM_OP_FILL, &zeros, NULL, 0, NULL);
    d_in[0] = tdm_graph_normalise(graph, d_out[0], zero, in_of(node, 2));
}

static const tdm__op_row rows[] = {
    {TDM_OP_COPY, "copy", 1, 1, 1, tdm__infer_same, backward_copy, tdm__flops_none, TDM__OVER_0, 0},
    {TDM_OP_LANE_SUM, "lane_sum", 1, 1, 1, tdm__infer_same, backward_lane_sum, tdm__flops_none,
     TDM__OVER_0, 0},
    {TDM_OP_CAST, "cast", 1, 1, 1, infer_cast, backward_cast, tdm__flops_none, 0, 0},
    {TDM_OP_RESHAPE, "reshape", 1, 1, 1, infer_reshape, backward_reshape, tdm__flops_none, 0, 0},
    {TDM_OP_SUM_ROWS, "sum_rows", 1, 1, 1, infer_sum_rows, backward_sum_rows, tdm__flops_per_input,
     0, 0},
    {TDM_OP_RELU, "relu", 1, 1, 1, tdm__infer_same, backward_relu, tdm__flops_per_input,
     TDM__OVER_0, 0},
    {TDM_OP_RELU_GRAD, "relu_grad", 2, 2, 1, infer_relu_grad, NULL, tdm__flops_per_input,
     TDM__OVER_0 | TDM__OVER_1, 0},
    {TDM_OP_GELU, "gelu", 1, 1, 1, tdm__infer_same, backward_gelu, tdm__flops_costly, TDM__OVER_0,
     0},
    {TDM_OP_GELU_GRAD, "gelu_grad", 2, 2, 1, tdm__infer_two_same, NULL, tdm__flops_costly,
     TDM__OVER_0 | TDM__OVER_1, 0},
    {TDM_OP_TANH, "tanh", 1, 1, 1, tdm__infer_same, backward_tanh, tdm__flops_costly, TDM__OVER_0,
     0},
    {TDM_OP_TANH_GRAD, "tanh_grad", 2, 2, 1, tdm__infer_two_same, NULL, tdm__flops_per_input,
     TDM__OVER_0 | TDM__OVER_1, 0},
    {TDM_OP_SIGMOID, "sigmoid", 1, 1, 1, tdm__infer_same, backward_sigmoid, tdm__flops_costly,
     TDM__OVER_0, 0},
    {TDM_OP_SIGMOID_GRAD, "sigmoid_grad", 2, 2, 1, tdm__infer_two_same, NULL, tdm__flops_per_input,
     TDM__OVER_0 | TDM__OVER_1, 0},
    {TDM_OP_DROPOUT, "dropout", 1, 1, 1, infer_rows, backward_dropout, tdm__flops_costly,
     TDM__OVER_0, 0},
    {TDM_OP_NORMALISE, "normalise", 3, 3, 1, infer_normalise, backward_normalise,
     tdm__flops_per_input, TDM__OVER_0, 0},
    {TDM_OP_FILL, "fill", 0, 0, 1, infer_fill, NULL, tdm__flops_none, 0, 0},
};

const tdm__op_family tdm__ops_basic = {rows, sizeof(rows) / sizeof(rows[0])};
