/*
 * matmul.c: matrix products, single or batched, with a bias and an activation.
 *
 * An activation whose slope can be computed from its result (ReLU, tanh, sigmoid) is part of the
 * product. The gradients of the others need their input, so the builder adds them as separate ops,
 * and only a plan that computes no gradients (plan.c) fuses the two. The gradients of products are
 * products as well.
 */
#include "graph/ops/ops.h"

/* The sizes of op(a) op(b): B products of [M, K] x [K, N]; B is 1 for plain matrices. */
typedef struct sizes {
    int64_t B, M, N, K, K2;
} sizes;

static sizes sizes_of(const tdm_op_attrs *attrs, const tdm_shape *a, const tdm_shape *b)
{
    const int64_t *x = a->dim + (a->rank - 2), *y = b->dim + (b->rank - 2);
    return (sizes){.B = a->rank == 3 ? a->dim[0] : 1,
                   .M = x[attrs->trans_a],
                   .K = x[!attrs->trans_a],
                   .K2 = y[attrs->trans_b],
                   .N = y[!attrs->trans_b]};
}

static tdm_status infer_matmul(const tdm_op_attrs *attrs, const tdm__value *const in[],
                               tdm__value out[], tdm_error *err)
{
    char x[128], y[128];
    TDM_TRY(tdm__wants_factors(in[0], "a", in[1], "b", err));
    bool batched = in[0]->shape.rank == 3;
    TDM_TRY(tdm__wants_rank(in[0], batched ? 3 : 2, "a", err));
    TDM_TRY(tdm__wants_rank(in[1], batched ? 3 : 2, "b", err));
    sizes s = sizes_of(attrs, &in[0]->shape, &in[1]->shape);
    if (s.K != s.K2)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "%s%s times %s%s: the inner sizes %lld and %lld differ",
                        tdm_shape_text(&in[0]->shape, x), attrs->trans_a ? "^T" : "",
                        tdm_shape_text(&in[1]->shape, y), attrs->trans_b ? "^T" : "",
                        (long long)s.K, (long long)s.K2);
    if (batched && in[1]->shape.dim[0] != s.B)
        return tdm_fail(err, TDM_ERR_INVALID, "%s times %s: the numbers of matrices differ",
                        tdm_shape_text(&in[0]->shape, x), tdm_shape_text(&in[1]->shape, y));
    if (in[2]) TDM_TRY(tdm__wants_columns(in[2], s.N, "bias", err));
    out[0] = (tdm__value){.dtype = TDM_DTYPE_F32,
                          .shape = batched ? tdm_shape_3(s.B, s.M, s.N) : tdm_shape_2(s.M, s.N)};
    return TDM_OK;
}

static tdm_value graph_add_product(tdm_graph *graph, tdm_value a, bool trans_a, tdm_value b,
                                   bool trans_b)
{
    return tdm_graph_matmul(graph, a, b,
                            &(tdm_matmul_options){.trans_a = trans_a, .trans_b = trans_b});
}

/* A product that is the gradient of input `index`, and is named after it. */
static tdm_value grad_product(tdm_graph *graph, const tdm__node *node, int index, tdm_value a,
                              bool trans_a, tdm_value b, bool trans_b)
{
    bool has_weight = !graph->values[node->in[1]].of_inputs;
    tdm_value d = graph_add_product(graph, a, trans_a, b, trans_b);
    const char *of[] = {has_weight ? "d_x" : "d_a", has_weight ? "d_w" : "d_b"};
    tdm__graph_name_last(graph, of[index]);
    return d;
}

/*
 * With Y = op(A) op(B):  dA = dY op(B)^T, or its transpose if A was transposed;
 *                        dB = op(A)^T dY, likewise;  d_bias = the column sums of dY.
 * dY is the gradient before the activation.
 */
static void backward_matmul(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                            tdm_value d_in[])
{
    tdm_value a = {node->in[0]}, b = {node->in[1]};
    bool ta = node->attrs.trans_a, tb = node->attrs.trans_b;
    tdm_value dy = tdm__activation_back(graph, node->attrs.activation, d_out[0], node->out[0]);
    if (tdm__value_needs_grad(graph, node->in[0]))
        d_in[0] = ta ? grad_product(graph, node, 0, b, tb, dy, true)
                     : grad_product(graph, node, 0, dy, false, b, !tb);
    if (tdm__value_needs_grad(graph, node->in[1]))
        d_in[1] = tb ? grad_product(graph, node, 1, dy, true, a, ta)
                     : grad_product(graph, node, 1, a, !ta, dy, false);
    if (!tdm__value_needs_grad(graph, node->in[2])) return;
    tdm_shape y = tdm_graph_shape(graph, dy);
    if (y.rank == 3) dy = tdm_graph_reshape(graph, dy, tdm_shape_2(y.dim[0] * y.dim[1], y.dim[2]));
    d_in[2] = tdm_graph_sum_rows(graph, dy);
}

static uint64_t flops_matmul(const tdm_graph *graph, const tdm__node *node)
{
    sizes s = sizes_of(&node->attrs, &graph->values[node->in[0]].shape,
                       &graph->values[node->in[1]].shape);
    uint64_t cells = tdm__elements_of(graph, node->out[0]);
    return 2 * cells * (uint64_t)s.K + (node->in[2] ? cells : 0) +
           tdm__activation_flops(node->attrs.activation, cells);
}

static const tdm__op_row rows[] = {
    {TDM_OP_MATMUL, "matmul", 2, 3, 1, infer_matmul, backward_matmul, flops_matmul, 0, 0},
};

const tdm__op_family tdm__ops_matmul = {rows, sizeof(rows) / sizeof(rows[0])};

/* ---- building --------------------------------------------------------------------------------- */

tdm_value tdm_graph_matmul(tdm_graph *graph, tdm_value a, tdm_value b,
                           const tdm_matmul_options *options)
{
    static const tdm_matmul_options defaults = {0};
    const tdm_matmul_options *o = options ? options : &defaults;
    bool fused = tdm__activation_fuses(o->activation);
    tdm_op_attrs attrs = {.trans_a = o->trans_a,
                          .trans_b = o->trans_b,
                          .activation = fused ? o->activation : TDM_ACTIVATION_NONE};
    a = tdm__graph_round(graph, a);
    b = tdm__graph_round(graph, b);
    tdm_value y = tdm__graph_add_node(graph, TDM_OP_MATMUL, &attrs, (tdm_value[]){a, b, o->bias}, 3,
                                      NULL);
    return fused ? y : tdm_graph_activation(graph, y, o->activation);
}

tdm_value tdm_graph_linear(tdm_graph *graph, tdm_value x, tdm_value w, tdm_value bias,
                           tdm_activation activation)
{
    tdm_matmul_options options = {.trans_b = true, .bias = bias, .activation = activation};
    tdm_shape shape = tdm_graph_shape(graph, x), w_shape = tdm_graph_shape(graph, w);
    if (shape.rank <= 2) return tdm_graph_matmul(graph, x, w, &options);
    int64_t K = shape.dim[shape.rank - 1], rows_count = K > 0 ? tdm_shape_elements(&shape) / K : 0;
    x = tdm_graph_reshape(graph, tdm__graph_round(graph, x), tdm_shape_2(rows_count, K));
    tdm_value y = tdm_graph_matmul(graph, x, w, &options);
    shape.dim[shape.rank - 1] = w_shape.dim[0];
    return tdm_graph_reshape(graph, y, shape);
}
