/*
 * loss.c: softmax, and scalar losses: cross entropy, the element-wise losses and penalties on
 * weights.
 *
 * Each is a sum times a scale that the caller sets, never a mean: only the caller knows the number
 * of rows of the global batch. Definitions are PyTorch's with reduction "sum". Classes and targets
 * are constants: they get no gradient, and a trained target is refused instead of being ignored
 * silently.
 */
#include "graph/ops/ops.h"

/* ---- shapes ----------------------------------------------------------------------------------- */

static tdm_status infer_softmax(const tdm_op_attrs *attrs, const tdm__value *const in[],
                                tdm__value out[], tdm_error *err)
{
    const tdm_shape *x = &in[0]->shape;
    if (x->rank < 1)
        return tdm_fail(err, TDM_ERR_INVALID, "x must have at least one dimension: its columns");
    if (x->dim[x->rank - 1] < 1) return tdm_fail(err, TDM_ERR_INVALID, "x has no columns");
    return tdm__infer_same(attrs, in, out, err);
}

static tdm_status wants_classes(const tdm__value *logits, const tdm__value *classes, tdm_error *err)
{
    char wanted[128], text[128];
    tdm_shape leading = logits->shape;
    leading.rank--;
    if (classes->dtype != TDM_DTYPE_I32)
        return tdm_fail(err, TDM_ERR_INVALID, "classes must be i32, not %s",
                        tdm_dtype_name(classes->dtype));
    if (tdm_shape_equal(&classes->shape, &leading)) return TDM_OK;
    return tdm_fail(err, TDM_ERR_INVALID, "classes must have shape %s, one for each row, not %s",
                    tdm_shape_text(&leading, wanted), tdm_shape_text(&classes->shape, text));
}

static tdm_status infer_cross_entropy(const tdm_op_attrs *attrs, const tdm__value *const in[],
                                      tdm__value out[], tdm_error *err)
{
    TDM_TRY(infer_softmax(attrs, in, &out[1], err));
    TDM_TRY(wants_classes(in[0], in[1], err));
    if (!(attrs->label_smoothing >= 0 && attrs->label_smoothing <= 1))
        return tdm_fail(err, TDM_ERR_RANGE, "label smoothing is %g; it must be between 0 and 1",
                        (double)attrs->label_smoothing);
    out[0] = (tdm__value){.dtype = TDM_DTYPE_F32, .shape = tdm_shape_0()};
    return TDM_OK;
}

static tdm_status infer_loss(const tdm_op_attrs *attrs, const tdm__value *const in[],
                             tdm__value out[], tdm_error *err)
{
    TDM_TRY(tdm__wants_f32(in[0], "x", err));
    TDM_TRY(tdm__wants_f32(in[1], "target", err));
    TDM_TRY(tdm__wants_same(in[0], in[1], err));
    if (in[1]->needs_grad)
        return tdm_fail(err, TDM_ERR_UNSUPPORTED,
                        "the target must be a constant; it cannot be trained");
    if (attrs->loss == TDM_LOSS_HUBER && !(attrs->delta > 0))
        return tdm_fail(err, TDM_ERR_RANGE, "delta is %g; it must be above 0",
                        (double)attrs->delta);
    out[0] = (tdm__value){.dtype = TDM_DTYPE_F32, .shape = tdm_shape_0()};
    return TDM_OK;
}

static tdm_status infer_penalty(const tdm_op_attrs *attrs, const tdm__value *const in[],
                                tdm__value out[], tdm_error *err)
{
    TDM_TRY(tdm__wants_f32(in[0], "w", err));
    if (attrs->power != 1 && attrs->power != 2)
        return tdm_fail(err, TDM_ERR_RANGE, "power is %d; it must be 1 or 2", attrs->power);
    out[0] = (tdm__value){.dtype = TDM_DTYPE_F32, .shape = tdm_shape_0()};
    return TDM_OK;
}

/* ---- gradients -------------------------------------------------------------------------------- */

static void backward_softmax(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                             tdm_value d_in[])
{
    tdm_value in[2] = {d_out[0], {node->out[0]}};
    d_in[0] = tdm__graph_add_node(graph, TDM_OP_SOFTMAX_GRAD, &(tdm_op_attrs){0}, in, 2, NULL);
}

static void backward_cross_entropy(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                                   tdm_value d_in[])
{
    tdm_value in[3] = {{node->out[1]}, tdm__node_in(node, 1), d_out[0]};
    d_in[0] = tdm__graph_add_node(graph, TDM_OP_CROSS_ENTROPY_GRAD, &node->attrs, in, 3, NULL);
}

static void backward_loss(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                          tdm_value d_in[])
{
    tdm_value in[3] = {tdm__node_in(node, 0), tdm__node_in(node, 1), d_out[0]};
    d_in[0] = tdm__graph_add_node(graph, TDM_OP_LOSS_GRAD, &node->attrs, in, 3, NULL);
}

static void backward_penalty(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                             tdm_value d_in[])
{
    tdm_value in[2] = {tdm__node_in(node, 0), d_out[0]};
    d_in[0] = tdm__graph_add_node(graph, TDM_OP_PENALTY_GRAD, &node->attrs, in, 2, NULL);
}

/* ---- cost ------------------------------------------------------------------------------------- */

/* A difference, a product and a sum for each element, or a logarithm. */
static uint64_t flops_loss(const tdm_graph *graph, const tdm__node *node)
{
    bool costly = node->attrs.loss == TDM_LOSS_BCE_LOGITS || node->attrs.loss == TDM_LOSS_KL;
    return (costly ? 8 : 3) * tdm__elements_of(graph, node->in[0]);
}

static uint64_t flops_penalty(const tdm_graph *graph, const tdm__node *node)
{
    return 2 * tdm__elements_of(graph, node->in[0]);
}

static const tdm__op_row rows[] = {
    {TDM_OP_SOFTMAX, "softmax", 1, 1, 1, infer_softmax, backward_softmax, tdm__flops_costly,
     TDM__OVER_0, 0},
    {TDM_OP_SOFTMAX_GRAD, "softmax_grad", 2, 2, 1, tdm__infer_two_same, NULL, tdm__flops_per_input,
     TDM__OVER_0 | TDM__OVER_1, 0},
    {TDM_OP_CROSS_ENTROPY, "cross_entropy", 2, 2, 2, infer_cross_entropy, backward_cross_entropy,
     tdm__flops_costly, TDM__OVER_0, 1},
    {TDM_OP_CROSS_ENTROPY_GRAD, "cross_entropy_grad", 3, 3, 1, tdm__infer_same, NULL,
     tdm__flops_per_input, TDM__OVER_0, 0},
    {TDM_OP_LOSS, "loss", 2, 2, 1, infer_loss, backward_loss, flops_loss, 0, 0},
    {TDM_OP_LOSS_GRAD, "loss_grad", 3, 3, 1, tdm__infer_same, NULL, flops_loss,
     TDM__OVER_0 | TDM__OVER_1, 0},
    {TDM_OP_PENALTY, "penalty", 1, 1, 1, infer_penalty, backward_penalty, flops_penalty, 0, 0},
    {TDM_OP_PENALTY_GRAD, "penalty_grad", 2, 2, 1, tdm__infer_same, NULL, tdm__flops_per_input,
     TDM__OVER_0, 0},
};

const tdm__op_family tdm__ops_loss = {rows, sizeof(rows) / sizeof(rows[0])};

/* ---- the builder ------------------------------------------------------------------------------ */

tdm_value tdm_graph_cross_entropy_with(tdm_graph *graph, tdm_value logits, tdm_value classes,
                                       const tdm_cross_entropy_options *options)
{
    tdm_cross_entropy_options o = options ? *options : (tdm_cross_entropy_options){0};
    tdm_op_attrs attrs = {.scale = o.scale != 0 ? o.scale : 1.0,
                          .label_smoothing = (float)o.label_smoothing,
                          .has_ignore = o.has_ignore,
                          .ignore = o.ignore};
    return tdm__graph_add_node(graph, TDM_OP_CROSS_ENTROPY, &attrs, (tdm_value[]){logits, classes},
                               2, NULL);
}

tdm_value tdm_graph_element_loss(tdm_graph *graph, tdm_element_loss kind, tdm_value x,
                                 tdm_value target, double delta, double scale)
{
    tdm_op_attrs attrs = {.loss = (int)kind, .delta = (float)delta, .scale = scale};
    return tdm__graph_add_node(graph, TDM_OP_LOSS, &attrs, (tdm_value[]){x, target}, 2, NULL);
}

tdm_value tdm_graph_penalty(tdm_graph *graph, tdm_value w, int power, double scale)
{
    return tdm__graph_add_node(graph, TDM_OP_PENALTY,
                               &(tdm_op_attrs){.power = power, .scale = scale}, &w, 1, NULL);
}
