/*
 * shape.c: ops that move or sum numbers: transpose, concatenation, slice, sums and means over an
 * axis. (Reshape is in basic.c: it moves nothing.)
 *
 * The gradient of a permutation is the inverse permutation, of a concatenation its slices, of a
 * slice zeros with the slice inserted, of a sum the same number for every summand. A mean is a sum
 * whose scale is one over the count, so it needs no separate op.
 */
#include "graph/ops/ops.h"

#include <string.h>

/* ---- shapes ----------------------------------------------------------------------------------- */

static tdm_status wants_axis(const tdm__value *v, int axis, tdm_error *err)
{
    char text[128];
    if (axis >= 0 && axis < v->shape.rank) return TDM_OK;
    return tdm_fail(err, TDM_ERR_RANGE, "axis %d is out of range for shape %s", axis,
                    tdm_shape_text(&v->shape, text));
}

static tdm_status infer_transpose(const tdm_op_attrs *attrs, const tdm__value *const in[],
                                  tdm__value out[], tdm_error *err)
{
    tdm_shape x = in[0]->shape, y = x;
    char text[128];
    unsigned seen = 0;
    TDM_TRY(tdm__wants_f32(in[0], "x", err));
    for (int i = 0; i < x.rank; i++) {
        int from = attrs->perm[i];
        if (from < 0 || from >= x.rank || (seen >> from & 1))
            return tdm_fail(err, TDM_ERR_INVALID,
                            "perm must contain each dimension of %s once; %d at index %d is "
                            "invalid",
                            tdm_shape_text(&x, text), from, i);
        seen |= 1u << from;
        y.dim[i] = x.dim[from];
    }
    out[0] = (tdm__value){.dtype = TDM_DTYPE_F32, .shape = y};
    return TDM_OK;
}

static tdm_status infer_concat(const tdm_op_attrs *attrs, const tdm__value *const in[],
                               tdm__value out[], tdm_error *err)
{
    tdm_shape y = in[0]->shape;
    char first[128], other[128];
    TDM_TRY(tdm__wants_f32(in[0], "x", err));
    TDM_TRY(wants_axis(in[0], attrs->axis, err));
    for (int k = 1; k < TDM_OP_MAX_INPUTS && in[k]; k++) {
        tdm_shape x = in[k]->shape;
        int64_t size = attrs->axis < x.rank ? x.dim[attrs->axis] : 0;
        TDM_TRY(tdm__wants_f32(in[k], "x", err));
        x.dim[attrs->axis] = y.dim[attrs->axis];
        if (!tdm_shape_equal(&x, &y))
            return tdm_fail(err, TDM_ERR_INVALID, "shapes %s and %s differ in more than axis %d",
                            tdm_shape_text(&in[0]->shape, first),
                            tdm_shape_text(&in[k]->shape, other), attrs->axis);
        if (__builtin_add_overflow(y.dim[attrs->axis], size, &y.dim[attrs->axis]))
            return tdm_fail(err, TDM_ERR_RANGE, "the result is too large");
    }
    out[0] = (tdm__value){.dtype = TDM_DTYPE_F32, .shape = y};
    return TDM_OK;
}

static tdm_status infer_slice(const tdm_op_attrs *attrs, const tdm__value *const in[],
                              tdm__value out[], tdm_error *err)
{
    tdm_shape y = in[0]->shape;
    char text[128];
    TDM_TRY(tdm__wants_f32(in[0], "x", err));
    TDM_TRY(wants_axis(in[0], attrs->axis, err));
    if (attrs->begin < 0 || attrs->begin >= attrs->end || attrs->end > y.dim[attrs->axis])
        return tdm_fail(err, TDM_ERR_RANGE, "[%lld, %lld) is not a part of axis %d of %s",
                        (long long)attrs->begin, (long long)attrs->end, attrs->axis,
                        tdm_shape_text(&y, text));
    y.dim[attrs->axis] = attrs->end - attrs->begin;
    out[0] = (tdm__value){.dtype = TDM_DTYPE_F32, .shape = y};
    return TDM_OK;
}

static tdm_status infer_reduce(const tdm_op_attrs *attrs, const tdm__value *const in[],
                               tdm__value out[], tdm_error *err)
{
    tdm_shape x = in[0]->shape, y = tdm_shape_0();
    TDM_TRY(tdm__wants_f32(in[0], "x", err));
    if (attrs->axis != -1) {
        TDM_TRY(wants_axis(in[0], attrs->axis, err));
        for (int i = 0; i < x.rank; i++)
            if (i != attrs->axis) y.dim[y.rank++] = x.dim[i];
    }
    out[0] = (tdm__value){.dtype = TDM_DTYPE_F32, .shape = y};
    return TDM_OK;
}

/* ---- gradients -------------------------------------------------------------------------------- */

static void backward_transpose(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                               tdm_value d_in[])
{
    int inverse[TDM_MAX_DIMS];
    int rank = graph->values[node->in[0]].shape.rank;
    for (int i = 0; i < rank; i++) inverse[node->attrs.perm[i]] = i;
    d_in[0] = tdm_graph_transpose(graph, d_out[0], inverse);
}

static void backward_concat(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                            tdm_value d_in[])
{
    int axis = node->attrs.axis;
    int64_t begin = 0;
    for (int k = 0; k < TDM_OP_MAX_INPUTS && node->in[k]; k++) {
        int64_t end = begin + graph->values[node->in[k]].shape.dim[axis];
        if (tdm__node_wants(graph, node, k) && end > begin)
            d_in[k] = tdm_graph_slice(graph, d_out[0], axis, begin, end);
        begin = end;
    }
}

static void backward_slice(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                           tdm_value d_in[])
{
    tdm_op_attrs attrs = node->attrs;
    attrs.shape = graph->values[node->in[0]].shape;
    d_in[0] = tdm__graph_add_node(graph, TDM_OP_SLICE_GRAD, &attrs, d_out, 1, NULL);
}

static void backward_reduce(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                            tdm_value d_in[])
{
    tdm_op_attrs attrs = node->attrs;
    attrs.shape = graph->values[node->in[0]].shape;
    d_in[0] = tdm__graph_add_node(graph, TDM_OP_REDUCE_GRAD, &attrs, d_out, 1, NULL);
}

static const tdm__op_row rows[] = {
    {TDM_OP_TRANSPOSE, "transpose", 1, 1, 1, infer_transpose, backward_transpose, tdm__flops_none,
     0, 0},
    {TDM_OP_CONCAT, "concat", 1, TDM_OP_MAX_INPUTS, 1, infer_concat, backward_concat,
     tdm__flops_none, 0, 0},
    {TDM_OP_SLICE, "slice", 1, 1, 1, infer_slice, backward_slice, tdm__flops_none, 0, 0},
    {TDM_OP_SLICE_GRAD, "slice_grad", 1, 1, 1, tdm__infer_shape_of_attrs, NULL, tdm__flops_none, 0,
     0},
    {TDM_OP_REDUCE, "reduce", 1, 1, 1, infer_reduce, backward_reduce, tdm__flops_per_input, 0, 0},
    {TDM_OP_REDUCE_GRAD, "reduce_grad", 1, 1, 1, tdm__infer_shape_of_attrs, NULL,
     tdm__flops_per_output, 0, 0},
};

const tdm__op_family tdm__ops_shape = {rows, sizeof(rows) / sizeof(rows[0])};

/* ---- the builder ------------------------------------------------------------------------------ */

tdm_value tdm_graph_transpose(tdm_graph *graph, tdm_value x, const int *perm)
{
    tdm_op_attrs attrs = {0};
    int rank = tdm_graph_shape(graph, x).rank;
    if (rank > 0) memcpy(attrs.perm, perm, (size_t)rank * sizeof(*perm));
    return tdm__graph_add_node(graph, TDM_OP_TRANSPOSE, &attrs, &x, 1, NULL);
}

/* One op joins a few values; more are joined a few at a time, from the front. */
tdm_value tdm_graph_concat(tdm_graph *graph, const tdm_value *x, int count, int axis)
{
    tdm_op_attrs attrs = {.axis = axis};
    tdm_value parts[TDM_OP_MAX_INPUTS];
    int held = 0;
    if (count < 1) {
        tdm__graph_break(graph, TDM_ERR_INVALID, "concat: there are no inputs");
        return TDM_VALUE_NONE;
    }
    for (int i = 0; i < count; i++) {
        if (x[i].id <= 0) {
            tdm__graph_break(graph, TDM_ERR_INVALID, "concat: input %d is none", i + 1);
            return TDM_VALUE_NONE;
        }
        if (held == TDM_OP_MAX_INPUTS) {
            parts[0] = tdm__graph_add_node(graph, TDM_OP_CONCAT, &attrs, parts, held, NULL);
            held = 1;
        }
        parts[held++] = x[i];
    }
    return tdm__graph_add_node(graph, TDM_OP_CONCAT, &attrs, parts, held, NULL);
}

tdm_value tdm_graph_slice(tdm_graph *graph, tdm_value x, int axis, int64_t begin, int64_t end)
{
    tdm_op_attrs attrs = {.axis = axis, .begin = begin, .end = end};
    return tdm__graph_add_node(graph, TDM_OP_SLICE, &attrs, &x, 1, NULL);
}

void tdm_graph_split(tdm_graph *graph, tdm_value x, int axis, int count, tdm_value *out)
{
    tdm_shape shape = tdm_graph_shape(graph, x);
    char text[128];
    bool has_axis = axis >= 0 && axis < shape.rank;
    for (int i = 0; i < count; i++) out[i] = TDM_VALUE_NONE;
    if (x.id > 0 && (!has_axis || count < 1 || shape.dim[axis] % count != 0)) {
        tdm__graph_break(graph, TDM_ERR_INVALID,
                         "split: axis %d of %s cannot be cut into %d equal parts", axis,
                         tdm_shape_text(&shape, text), count);
        return;
    }
    for (int i = 0; i < count; i++) {
        int64_t part = has_axis ? shape.dim[axis] / count : 0;
        out[i] = tdm_graph_slice(graph, x, axis, i * part, (i + 1) * part);
    }
}

static tdm_value graph_add_reduce(tdm_graph *graph, tdm_value x, int axis, double scale)
{
    tdm_op_attrs attrs = {.axis = axis, .scale = scale};
    return tdm__graph_add_node(graph, TDM_OP_REDUCE, &attrs, &x, 1, NULL);
}

tdm_value tdm_graph_sum(tdm_graph *graph, tdm_value x, int axis)
{
    return graph_add_reduce(graph, x, axis, 1.0);
}

tdm_value tdm_graph_mean(tdm_graph *graph, tdm_value x, int axis)
{
    tdm_shape shape = tdm_graph_shape(graph, x);
    bool has_axis = axis >= 0 && axis < shape.rank;
    int64_t count = has_axis ? shape.dim[axis] : tdm_shape_elements(&shape);
    if (count == 0) {
        tdm__graph_break(graph, TDM_ERR_INVALID, "mean: there are no elements");
        return TDM_VALUE_NONE;
    }
    return graph_add_reduce(graph, x, axis, 1.0 / (double)count);
}
