/*
 * custom.c: custom ops: a row whose functions call those of the node's tdm_custom_op. The rest of
 * the graph treats them like the built-in ones.
 */
#include "graph/ops/ops.h"

#include <string.h>

static const tdm_custom_op *op_of(const tdm_op_attrs *attrs)
{
    return attrs->custom;
}

static tdm_status infer_custom(const tdm_op_attrs *attrs, const tdm__value *const in[],
                               tdm__value out[], tdm_error *err)
{
    const tdm_custom_op *op = op_of(attrs);
    tdm_shape shapes[TDM_CUSTOM_MAX_INPUTS] = {{0}}, shape = {0};
    for (int i = 0; i < op->in_count; i++) {
        TDM_TRY(tdm__wants_f32(in[i], "an input", err));
        shapes[i] = in[i]->shape;
    }
    tdm_fail(err, TDM_ERR_INVALID,
             "it does not support these inputs"); /* in case it returns an error without a
                                                   * message */
    TDM_TRY(op->infer(shapes, attrs->custom_attrs, &shape, err));
    out[0] = (tdm__value){.dtype = TDM_DTYPE_F32, .shape = shape};
    return TDM_OK;
}

static void backward_custom(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                            tdm_value d_in[])
{
    const tdm_custom_op *op = op_of(&node->attrs);
    tdm_value in[TDM_CUSTOM_MAX_INPUTS];
    if (!op->backward) {
        tdm__graph_break(graph, TDM_ERR_UNSUPPORTED, "%s: this op has no gradient", node->name);
        return;
    }
    for (int i = 0; i < TDM_CUSTOM_MAX_INPUTS; i++) in[i] = (tdm_value){node->in[i]};
    op->backward(graph, in, (tdm_value){node->out[0]}, d_out[0], node->attrs.custom_attrs, d_in);
}

static uint64_t flops_custom(const tdm_graph *graph, const tdm__node *node)
{
    const tdm_custom_op *op = op_of(&node->attrs);
    tdm_shape shapes[TDM_CUSTOM_MAX_INPUTS] = {{0}};
    if (!op->flops) return tdm__elements_of(graph, node->out[0]);
    for (int i = 0; i < op->in_count; i++) shapes[i] = graph->values[node->in[i]].shape;
    return op->flops(shapes, node->attrs.custom_attrs);
}

tdm_value tdm_graph_custom(tdm_graph *graph, const tdm_custom_op *op, const tdm_value in[],
                           const void *attrs)
{
    if (!op || !op->name || !op->infer || !op->run || op->in_count < 1 ||
        op->in_count > TDM_CUSTOM_MAX_INPUTS) {
        tdm__graph_break(graph, TDM_ERR_INVALID,
                         "custom op: it needs a name, infer, run, and 1 to %d inputs",
                         TDM_CUSTOM_MAX_INPUTS);
        return TDM_VALUE_NONE;
    }
    tdm_op_attrs a = {.custom = op, .custom_attrs = attrs, .custom_run = op->run};
    for (int i = 0; i < op->in_count; i++)
        if (in[i].id <= 0) {
            tdm__graph_break(graph, TDM_ERR_INVALID, "%s: input %d is none", op->name, i + 1);
            return TDM_VALUE_NONE;
        }
    return tdm__graph_add_node(graph, TDM_OP_CUSTOM, &a, in, op->in_count, NULL);
}

static const tdm__op_row rows[] = {
    {TDM_OP_CUSTOM, "custom", 1, TDM_CUSTOM_MAX_INPUTS, 1, infer_custom, backward_custom,
     flops_custom, 0, 0},
};

const tdm__op_family tdm__ops_custom = {rows, sizeof(rows) / sizeof(rows[0])};
