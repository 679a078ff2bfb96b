/*
 * norm.c: layer norm and RMS norm over the last dimension.
 *
 * Forward keeps two numbers (or one) for each row in addition to the result; backward recomputes
 * the normalised values from them and x. The gradients of gamma and beta are a separate op that
 * runs first, so that the gradient of x may overwrite dy.
 */
#include "graph/ops/ops.h"

static int64_t columns_of(const tdm__value *x)
{
    return x->shape.dim[x->shape.rank - 1];
}

static tdm_status wants_columns_to_norm(const tdm__value *x, tdm_error *err)
{
    char text[128];
    TDM_TRY(tdm__wants_f32(x, "x", err));
    if (x->shape.rank > 0 && columns_of(x) > 0) return TDM_OK;
    return tdm_fail(err, TDM_ERR_INVALID, "x must have a last dimension to normalise, not shape %s",
                    tdm_shape_text(&x->shape, text));
}

static tdm_status infer_layer_norm(const tdm_op_attrs *attrs, const tdm__value *const in[],
                                   tdm__value out[], tdm_error *err)
{
    TDM_TRY(wants_columns_to_norm(in[0], err));
    int64_t C = columns_of(in[0]), rows = tdm_shape_elements(&in[0]->shape) / C;
    TDM_TRY(tdm__wants_columns(in[1], C, "gamma", err));
    TDM_TRY(tdm__wants_columns(in[2], C, "beta", err));
    out[1] = (tdm__value){.dtype = TDM_DTYPE_F32, .shape = tdm_shape_2(rows, 2)};
    return tdm__infer_same(attrs, in, out, err);
}

static tdm_status infer_rms_norm(const tdm_op_attrs *attrs, const tdm__value *const in[],
                                 tdm__value out[], tdm_error *err)
{
    TDM_TRY(wants_columns_to_norm(in[0], err));
    int64_t C = columns_of(in[0]), rows = tdm_shape_elements(&in[0]->shape) / C;
    TDM_TRY(tdm__wants_columns(in[1], C, "gamma", err));
    out[1] = (tdm__value){.dtype = TDM_DTYPE_F32, .shape = tdm_shape_1(rows)};
    return tdm__infer_same(attrs, in, out, err);
}

/* dy, x, ... -> as x. */
static tdm_status infer_grad(const tdm_op_attrs *attrs, const tdm__value *const in[],
                             tdm__value out[], tdm_error *err)
{
    TDM_TRY(tdm__wants_same(in[0], in[1], err));
    return tdm__infer_same(attrs, in, out, err);
}

/* dy, x, stats -> [C], and a second one for layer norm. */
static tdm_status infer_grad_params(const tdm_op_attrs *attrs, const tdm__value *const in[],
                                    tdm__value out[], tdm_error *err)
{
    (void)attrs;
    TDM_TRY(tdm__wants_same(in[0], in[1], err));
    TDM_TRY(wants_columns_to_norm(in[1], err));
    for (int i = 0; i < 2; i++)
        out[i] = (tdm__value){.dtype = TDM_DTYPE_F32, .shape = tdm_shape_1(columns_of(in[1]))};
    return TDM_OK;
}

static void backward_layer_norm(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                                tdm_value d_in[])
{
    tdm_value dy = d_out[0], x = {node->in[0]}, gamma = {node->in[1]}, stats = {node->out[1]};
    if (tdm__value_needs_grad(graph, node->in[1]) || tdm__value_needs_grad(graph, node->in[2]))
        d_in[1] = tdm__graph_add_node(graph, TDM_OP_LAYER_NORM_GRAD_PARAMS, &node->attrs,
                                      (tdm_value[]){dy, x, stats}, 3, &d_in[2]);
    if (tdm__value_needs_grad(graph, node->in[0]))
        d_in[0] = tdm__graph_add_node(graph, TDM_OP_LAYER_NORM_GRAD, &node->attrs,
                                      (tdm_value[]){dy, x, gamma, stats}, 4, NULL);
}

static void backward_rms_norm(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                              tdm_value d_in[])
{
    tdm_value dy = d_out[0], x = {node->in[0]}, gamma = {node->in[1]}, stats = {node->out[1]};
    if (tdm__value_needs_grad(graph, node->in[1]))
        d_in[1] = tdm__graph_add_node(graph, TDM_OP_RMS_NORM_GRAD_PARAMS, &node->attrs,
                                      (tdm_value[]){dy, x, stats}, 3, NULL);
    if (tdm__value_needs_grad(graph, node->in[0]))
        d_in[0] = tdm__graph_add_node(graph, TDM_OP_RMS_NORM_GRAD, &node->attrs,
                                      (tdm_value[]){dy, x, gamma, stats}, 4, NULL);
}

static bool settle_eps(tdm_graph *graph, const char *what, double eps, tdm_op_attrs *attrs)
{
    if (!(eps >= 0 && eps < 1)) {
        tdm__graph_break(graph, TDM_ERR_RANGE,
                         "%s: eps is %g; it must be at least 0 (which means 1e-5) and below 1",
                         what, eps);
        return false;
    }
    attrs->eps = eps > 0 ? (float)eps : 1e-5f;
    return true;
}

tdm_value tdm_graph_layer_norm(tdm_graph *graph, tdm_value x, tdm_value gamma, tdm_value beta,
                               double eps)
{
    tdm_op_attrs attrs = {0};
    if (!settle_eps(graph, "layer_norm", eps, &attrs)) return TDM_VALUE_NONE;
    return tdm__graph_add_node(graph, TDM_OP_LAYER_NORM, &attrs, (tdm_value[]){x, gamma, beta}, 3,
                               NULL);
}

tdm_value tdm_graph_rms_norm(tdm_graph *graph, tdm_value x, tdm_value gamma, double eps)
{
    tdm_op_attrs attrs = {0};
    if (!settle_eps(graph, "rms_norm", eps, &attrs)) return TDM_VALUE_NONE;
    return tdm__graph_add_node(graph, TDM_OP_RMS_NORM, &attrs, (tdm_value[]){x, gamma}, 2, NULL);
}

static const tdm__op_row rows[] = {
    {TDM_OP_LAYER_NORM, "layer_norm", 3, 3, 2, infer_layer_norm, backward_layer_norm,
     tdm__flops_costly, TDM__OVER_0, 0},
    {TDM_OP_LAYER_NORM_GRAD, "layer_norm_grad", 4, 4, 1, infer_grad, NULL, tdm__flops_costly,
     TDM__OVER_0 | TDM__OVER_1, 0},
    {TDM_OP_LAYER_NORM_GRAD_PARAMS, "layer_norm_grad_params", 3, 3, 2, infer_grad_params, NULL,
     tdm__flops_costly, 0, 0},
    {TDM_OP_RMS_NORM, "rms_norm", 2, 2, 2, infer_rms_norm, backward_rms_norm, tdm__flops_costly,
     TDM__OVER_0, 0},
    {TDM_OP_RMS_NORM_GRAD, "rms_norm_grad", 4, 4, 1, infer_grad, NULL, tdm__flops_costly,
     TDM__OVER_0 | TDM__OVER_1, 0},
    {TDM_OP_RMS_NORM_GRAD_PARAMS, "rms_norm_grad_params", 3, 3, 1, infer_grad_params, NULL,
     tdm__flops_costly, 0, 0},
};

const tdm__op_family tdm__ops_norm = {rows, sizeof(rows) / sizeof(rows[0])};
