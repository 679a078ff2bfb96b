/*
 * attention.c: scaled dot-product attention with several heads, and its gradient.
 *
 * One op from qkv to the result, so no matrix of weights over (query, key) is ever a value of the
 * graph. In addition to the result it keeps, for each query, the logarithm of the sum of
 * exponentials (lse), from which the backward pass recomputes the weights, block by block.
 */
#include "graph/graph.h"
#include "graph/ops/ops.h"

/* Words in one random sequence: see tdm_rng. */
static const double max_random_words = 0x1p34;

static tdm_status wants_heads(const tdm_op_attrs *attrs, const tdm__value *qkv, tdm_error *err)
{
    char text[128];
    int64_t columns = qkv->shape.dim[2];
    if (attrs->heads < 1)
        return tdm_fail(err, TDM_ERR_INVALID, "heads is %d; there must be at least one",
                        attrs->heads);
    if (columns < 3 || columns % 3 != 0 || columns / 3 % attrs->heads != 0)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "qkv has shape %s; its last size must be three times a multiple of the "
                        "number of heads, which is %d",
                        tdm_shape_text(&qkv->shape, text), attrs->heads);
    return TDM_OK;
}

static tdm_status wants_lengths(const tdm__value *qkv, const tdm__value *lengths, tdm_error *err)
{
    char text[128];
    if (lengths->dtype != TDM_DTYPE_I32)
        return tdm_fail(err, TDM_ERR_INVALID, "lengths must be i32, not %s",
                        tdm_dtype_name(lengths->dtype));
    if (lengths->shape.rank == 1 && lengths->shape.dim[0] == qkv->shape.dim[0]) return TDM_OK;
    return tdm_fail(err, TDM_ERR_INVALID,
                    "lengths must have shape [%lld], one for each row, not %s",
                    (long long)qkv->shape.dim[0], tdm_shape_text(&lengths->shape, text));
}

static tdm_status infer_attention(const tdm_op_attrs *attrs, const tdm__value *const in[],
                                  tdm__value out[], tdm_error *err)
{
    TDM_TRY(tdm__wants_f32(in[0], "qkv", err));
    TDM_TRY(tdm__wants_rank(in[0], 3, "qkv", err));
    TDM_TRY(wants_heads(attrs, in[0], err));
    if (in[1]) TDM_TRY(wants_lengths(in[0], in[1], err));
    int64_t B = in[0]->shape.dim[0], T = in[0]->shape.dim[1], C = in[0]->shape.dim[2] / 3;
    if (attrs->p > 0 && attrs->heads * (double)T * (double)(T + 31) > max_random_words)
        return tdm_fail(
            err, TDM_ERR_RANGE,
            "%d heads over %lld positions need more random numbers for dropout than one row of "
            "the batch has; use a shorter sequence or no dropout",
            attrs->heads, (long long)T);
    out[0] = (tdm__value){.dtype = TDM_DTYPE_F32, .shape = tdm_shape_3(B, T, C)};
    out[1] = (tdm__value){.dtype = TDM_DTYPE_F32, .shape = tdm_shape_3(B, attrs->heads, T)};
    return TDM_OK;
}

/* dy, qkv, y, lse, [lengths] -> as qkv. */
static tdm_status infer_attention_grad(const tdm_op_attrs *attrs, const tdm__value *const in[],
                                       tdm__value out[], tdm_error *err)
{
    (void)attrs;
    TDM_TRY(tdm__wants_f32(in[0], "dy", err));
    TDM_TRY(tdm__wants_same(in[0], in[2], err));
    out[0] = (tdm__value){.dtype = TDM_DTYPE_F32, .shape = in[1]->shape};
    return TDM_OK;
}

static void backward_attention(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                               tdm_value d_in[])
{
    tdm_value in[5] = {d_out[0], {node->in[0]}, {node->out[0]}, {node->out[1]}, {node->in[1]}};
    d_in[0] = tdm__graph_add_node(graph, TDM_OP_ATTENTION_GRAD, &node->attrs, in, 5, NULL);
}

/* `products` products of T x T x C per row of the batch; a causal one needs half of each. */
static uint64_t flops_of(const tdm_graph *graph, const tdm__node *node, int32_t y,
                         uint64_t products)
{
    const tdm_shape *shape = &graph->values[y].shape;
    uint64_t B = (uint64_t)shape->dim[0], T = (uint64_t)shape->dim[1], C = (uint64_t)shape->dim[2];
    uint64_t pairs = node->attrs.causal ? T * (T + 1) / 2 : T * T;
    return B * pairs * (2 * products * C + 8 * (uint64_t)node->attrs.heads);
}

static uint64_t flops_attention(const tdm_graph *graph, const tdm__node *node)
{
    return flops_of(graph, node, node->out[0], 2);
}

static uint64_t flops_attention_grad(const tdm_graph *graph, const tdm__node *node)
{
    return flops_of(graph, node, node->in[0], 5);
}

tdm_value tdm_graph_attention(tdm_graph *graph, tdm_value qkv, const tdm_attention_options *options)
{
    const tdm_attention_options defaults = {0};
    const tdm_attention_options *o = options ? options : &defaults;
    if (!(o->dropout >= 0 && o->dropout < 1)) {
        tdm__graph_break(graph, TDM_ERR_RANGE,
                         "attention: dropout is %g; it must be at least 0 and below 1", o->dropout);
        return TDM_VALUE_NONE;
    }
    tdm_op_attrs attrs = {
        .heads = o->heads ? o->heads : 1, .causal = o->causal, .p = (float)o->dropout};
    if (o->dropout > 0) attrs.sub_stream = graph->dropout_count++;
    return tdm__graph_add_node(graph, TDM_OP_ATTENTION, &attrs, (tdm_value[]){qkv, o->lengths}, 2,
                               NULL);
}

static const tdm__op_row rows[] = {
    {TDM_OP_ATTENTION, "attention", 1, 2, 2, infer_attention, backward_attention, flops_attention,
     0, 0},
    {TDM_OP_ATTENTION_GRAD, "attention_grad", 4, 5, 1, infer_attention_grad, NULL,
     flops_attention_grad, 0, 0},
};

const tdm__op_family tdm__ops_attention = {rows, sizeof(rows) / sizeof(rows[0])};

/* Forward: q k' and p v. Backward: p' dy, dy v', ds k, ds' q; recomputing p is not counted. */
size_t tdm_graph_products_at(const tdm_graph *graph, size_t index,
                             tdm_product out[TDM_MAX_PRODUCTS])
{
    const tdm__node *node = &graph->nodes[index];
    bool forward = node->op == TDM_OP_ATTENTION;
    if (!forward && node->op != TDM_OP_ATTENTION_GRAD) return 0;
    const tdm_shape *qkv = &graph->values[node->in[forward ? 0 : 1]].shape;
    int64_t B = qkv->dim[0], T = qkv->dim[1], D = qkv->dim[2] / 3 / node->attrs.heads;
    double share = node->attrs.causal ? (double)(T + 1) / (2 * (double)T) : 1;
    tdm_product narrow = {B * node->attrs.heads, T, D, T, share};
    tdm_product wide = {B * node->attrs.heads, T, T, D, share};
    out[0] = wide;
    out[1] = narrow;
    if (forward) return 2;
    out[2] = narrow;
    out[3] = narrow;
    return 4;
}
