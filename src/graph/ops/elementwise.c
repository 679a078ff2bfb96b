/*
 * elementwise.c: sums and products of two values, scaling, and the activations that are not in
 * basic.c.
 *
 * In a sum or product, the shape of b may be a suffix of a's: b is then used for all leading
 * indices of a (a bias [C] or positions [T, C] on [B, T, C]). The gradient of such a b is the sum
 * over the leading part: dy viewed as [repeats, elements of b], with its rows summed.
 */
#include "graph/ops/ops.h"

/* ---- shapes ----------------------------------------------------------------------------------- */

static tdm_status infer_broadcast(const tdm_op_attrs *attrs, const tdm__value *const in[],
                                  tdm__value out[], tdm_error *err)
{
    const tdm_shape *a = &in[0]->shape, *b = &in[1]->shape;
    char x[128], y[128];
    bool suffix = b->rank <= a->rank;
    TDM_TRY(tdm__wants_f32(in[0], "a", err));
    TDM_TRY(tdm__wants_f32(in[1], "b", err));
    if (b->rank == a->rank) TDM_TRY(tdm__wants_same(in[0], in[1], err));
    for (int i = 0; suffix && i < b->rank; i++) suffix = b->dim[i] == a->dim[a->rank - b->rank + i];
    if (!suffix)
        return tdm_fail(err, TDM_ERR_INVALID, "shape %s is neither %s nor a suffix of it",
                        tdm_shape_text(b, y), tdm_shape_text(a, x));
    return tdm__infer_same(attrs, in, out, err);
}

/* ---- gradients -------------------------------------------------------------------------------- */

/* The gradient of an input of `shape` from dy, which has a's shape: the sum over the leading
 * part. */
static tdm_value sum_to(tdm_graph *graph, tdm_value dy, tdm_shape shape)
{
    tdm_shape from = tdm_graph_shape(graph, dy);
    if (tdm_shape_equal(&from, &shape)) return dy;
    int64_t count = tdm_shape_elements(&shape), rows = 1;
    for (int i = 0; i < from.rank - shape.rank; i++) rows *= from.dim[i];
    tdm_value sum = tdm_graph_sum_rows(graph,
                                       tdm_graph_reshape(graph, dy, tdm_shape_2(rows, count)));
    return shape.rank == 1 ? sum : tdm_graph_reshape(graph, sum, shape);
}

static void backward_add(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                         tdm_value d_in[])
{
    tdm_shape b = graph->values[node->in[1]].shape;
    if (tdm__node_wants(graph, node, 0)) d_in[0] = d_out[0];
    if (tdm__node_wants(graph, node, 1)) d_in[1] = sum_to(graph, d_out[0], b);
}

static void backward_mul(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                         tdm_value d_in[])
{
    tdm_value a = tdm__node_in(node, 0), b = tdm__node_in(node, 1);
    if (tdm__node_wants(graph, node, 0)) {
        d_in[0] = tdm_graph_mul(graph, d_out[0], b);
        tdm__graph_name_last(graph, "d_a");
    }
    if (!tdm__node_wants(graph, node, 1)) return;
    tdm_value d_b = tdm_graph_mul(graph, d_out[0], a);
    tdm__graph_name_last(graph, "d_b");
    d_in[1] = sum_to(graph, d_b, tdm_graph_shape(graph, b));
}

static void backward_scale(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                           tdm_value d_in[])
{
    d_in[0] = tdm_graph_scale(graph, d_out[0], node->attrs.scale);
}

static tdm_value slope_node(tdm_graph *graph, tdm_op_kind op, const tdm__node *node, tdm_value dy)
{
    tdm_value in[2] = {dy, tdm__node_in(node, 0)};
    return tdm__graph_add_node(graph, op, &(tdm_op_attrs){0}, in, 2, NULL);
}

static void backward_silu(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                          tdm_value d_in[])
{
    d_in[0] = slope_node(graph, TDM_OP_SILU_GRAD, node, d_out[0]);
}

static void backward_gelu_tanh(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                               tdm_value d_in[])
{
    d_in[0] = slope_node(graph, TDM_OP_GELU_TANH_GRAD, node, d_out[0]);
}

enum { OVER_BOTH = TDM__OVER_0 | TDM__OVER_1 };

/* A shorter b has fewer bytes than the output, so the plan never stores the output over it. */
static const tdm__op_row rows[] = {
    {TDM_OP_ADD, "add", 2, 2, 1, infer_broadcast, backward_add, tdm__flops_per_input, OVER_BOTH, 0},
    {TDM_OP_MUL, "mul", 2, 2, 1, infer_broadcast, backward_mul, tdm__flops_per_input, OVER_BOTH, 0},
    {TDM_OP_SCALE, "scale", 1, 1, 1, tdm__infer_same, backward_scale, tdm__flops_per_input,
     TDM__OVER_0, 0},
    {TDM_OP_SILU, "silu", 1, 1, 1, tdm__infer_same, backward_silu, tdm__flops_costly, TDM__OVER_0,
     0},
    {TDM_OP_SILU_GRAD, "silu_grad", 2, 2, 1, tdm__infer_two_same, NULL, tdm__flops_costly,
     OVER_BOTH, 0},
    {TDM_OP_GELU_TANH, "gelu_tanh", 1, 1, 1, tdm__infer_same, backward_gelu_tanh, tdm__flops_costly,
     TDM__OVER_0, 0},
    {TDM_OP_GELU_TANH_GRAD, "gelu_tanh_grad", 2, 2, 1, tdm__infer_two_same, NULL, tdm__flops_costly,
     OVER_BOTH, 0},
};

const tdm__op_family tdm__ops_elementwise = {rows, sizeof(rows) / sizeof(rows[0])};

/* ---- the builder ------------------------------------------------------------------------------ */

tdm_value tdm_graph_mul(tdm_graph *graph, tdm_value a, tdm_value b)
{
    return tdm__graph_add_node(graph, TDM_OP_MUL, &(tdm_op_attrs){0}, (tdm_value[]){a, b}, 2, NULL);
}

tdm_value tdm_graph_scale(tdm_graph *graph, tdm_value x, double factor)
{
    return tdm__graph_add_node(graph, TDM_OP_SCALE, &(tdm_op_attrs){.scale = factor}, &x, 1, NULL);
}

/* ---- activations by number -------------------------------------------------------------------- */

static const struct {
    tdm_op_kind op;
    tdm_op_kind from_result; /* the gradient op, if it is computed from the result */
    uint64_t flops;
} activations[] = {
    [TDM_ACTIVATION_NONE] = {TDM_OP_NONE, TDM_OP_NONE, 0},
    [TDM_ACTIVATION_RELU] = {TDM_OP_RELU, TDM_OP_RELU_GRAD, 1},
    [TDM_ACTIVATION_GELU] = {TDM_OP_GELU, TDM_OP_NONE, 8},
    [TDM_ACTIVATION_GELU_TANH] = {TDM_OP_GELU_TANH, TDM_OP_NONE, 8},
    [TDM_ACTIVATION_SILU] = {TDM_OP_SILU, TDM_OP_NONE, 8},
    [TDM_ACTIVATION_TANH] = {TDM_OP_TANH, TDM_OP_TANH_GRAD, 8},
    [TDM_ACTIVATION_SIGMOID] = {TDM_OP_SIGMOID, TDM_OP_SIGMOID_GRAD, 8},
};
enum { ACTIVATION_COUNT = sizeof(activations) / sizeof(activations[0]) };

tdm_value tdm_graph_activation(tdm_graph *graph, tdm_value x, tdm_activation activation)
{
    if (activation == TDM_ACTIVATION_NONE) return x;
    if ((unsigned)activation >= ACTIVATION_COUNT) {
        tdm__graph_break(graph, TDM_ERR_INVALID, "activation: invalid activation %d",
                         (int)activation);
        return TDM_VALUE_NONE;
    }
    return tdm__graph_add_node(graph, activations[activation].op, &(tdm_op_attrs){0}, &x, 1, NULL);
}

int tdm__activation_of_op(tdm_op_kind op)
{
    int found = TDM_ACTIVATION_NONE;
    for (int i = TDM_ACTIVATION_RELU; i < ACTIVATION_COUNT; i++)
        if (activations[i].op == op) found = i;
    return found;
}

const char *tdm__activation_name(int activation)
{
    return tdm__op_row_of(activations[activation].op)->name;
}

bool tdm__activation_fuses(tdm_activation activation)
{
    return (unsigned)activation < ACTIVATION_COUNT &&
           activations[activation].from_result != TDM_OP_NONE;
}

tdm_value tdm__activation_back(tdm_graph *graph, int activation, tdm_value dy, int32_t y)
{
    if (activation == TDM_ACTIVATION_NONE) return dy;
    /* If a product has y in bf16 anyway, that is used for the sign, and y need not be kept. */
    if (activation == TDM_ACTIVATION_RELU && graph->values[y].rounded) y = graph->values[y].rounded;
    return tdm__graph_add_node(graph, activations[activation].from_result, &(tdm_op_attrs){0},
                               (tdm_value[]){dy, {y}}, 2, NULL);
}

uint64_t tdm__activation_flops(int activation, uint64_t cells)
{
    return activations[activation].flops * cells;
}
