/*
 * checks.c: checks of inputs that the shape functions of several ops share, with common messages,
 * and common FLOP counts.
 */
#include "graph/ops/ops.h"

tdm_status tdm__wants_f32(const tdm__value *v, const char *what, tdm_error *err)
{
    if (v->dtype == TDM_DTYPE_F32) return TDM_OK;
    return tdm_fail(err, TDM_ERR_INVALID, "%s must be f32, not %s", what, tdm_dtype_name(v->dtype));
}

tdm_status tdm__wants_factors(const tdm__value *a, const char *a_name, const tdm__value *b,
                              const char *b_name, tdm_error *err)
{
    if (a->dtype == TDM_DTYPE_BF16 && b->dtype == TDM_DTYPE_BF16) return TDM_OK;
    TDM_TRY(tdm__wants_f32(a, a_name, err));
    return tdm__wants_f32(b, b_name, err);
}

tdm_status tdm__wants_rank(const tdm__value *v, int rank, const char *what, tdm_error *err)
{
    char text[128];
    if (v->shape.rank == rank) return TDM_OK;
    return tdm_fail(err, TDM_ERR_INVALID, "%s must have %d dimensions, not shape %s", what, rank,
                    tdm_shape_text(&v->shape, text));
}

tdm_status tdm__wants_same(const tdm__value *a, const tdm__value *b, tdm_error *err)
{
    char x[128], y[128];
    if (tdm_shape_equal(&a->shape, &b->shape)) return TDM_OK;
    return tdm_fail(err, TDM_ERR_INVALID, "shapes %s and %s differ", tdm_shape_text(&a->shape, x),
                    tdm_shape_text(&b->shape, y));
}

/* Requires a vector with one number for each column of `x`. */
tdm_status tdm__wants_columns(const tdm__value *v, int64_t columns, const char *what,
                              tdm_error *err)
{
    char text[128];
    TDM_TRY(tdm__wants_f32(v, what, err));
    if (v->shape.rank == 1 && v->shape.dim[0] == columns) return TDM_OK;
    return tdm_fail(err, TDM_ERR_INVALID, "%s must have shape [%lld], not %s", what,
                    (long long)columns, tdm_shape_text(&v->shape, text));
}

tdm_status tdm__infer_same(const tdm_op_attrs *attrs, const tdm__value *const in[],
                           tdm__value out[], tdm_error *err)
{
    (void)attrs;
    TDM_TRY(tdm__wants_f32(in[0], "x", err));
    out[0] = (tdm__value){.dtype = in[0]->dtype, .shape = in[0]->shape};
    return TDM_OK;
}

tdm_status tdm__infer_two_same(const tdm_op_attrs *attrs, const tdm__value *const in[],
                               tdm__value out[], tdm_error *err)
{
    TDM_TRY(tdm__wants_f32(in[1], "b", err));
    TDM_TRY(tdm__wants_same(in[0], in[1], err));
    return tdm__infer_same(attrs, in, out, err);
}

tdm_status tdm__infer_shape_of_attrs(const tdm_op_attrs *attrs, const tdm__value *const in[],
                                     tdm__value out[], tdm_error *err)
{
    TDM_TRY(tdm__wants_f32(in[0], "dy", err));
    out[0] = (tdm__value){.dtype = TDM_DTYPE_F32, .shape = attrs->shape};
    return TDM_OK;
}

uint64_t tdm__elements_of(const tdm_graph *graph, int32_t value)
{
    return (uint64_t)tdm_shape_elements(&graph->values[value].shape);
}

uint64_t tdm__flops_none(const tdm_graph *graph, const tdm__node *node)
{
    (void)graph;
    (void)node;
    return 0;
}

uint64_t tdm__flops_per_input(const tdm_graph *graph, const tdm__node *node)
{
    return tdm__elements_of(graph, node->in[0]);
}

uint64_t tdm__flops_per_output(const tdm_graph *graph, const tdm__node *node)
{
    return tdm__elements_of(graph, node->out[0]);
}

uint64_t tdm__flops_costly(const tdm_graph *graph, const tdm__node *node)
{
    return 8 * tdm__elements_of(graph, node->in[0]);
}
