/*
 * embedding.c: rows of a table, selected by integers: tokens, positions.
 *
 * The gradient of the table has the table's size: row v is the sum of the gradients of all
 * positions that selected v, in the order of the positions. If the table has a gradient already (as
 * the head of a language model), that is a third input to which the rows are added: in place if no
 * other op needs it, and if it is not the memory that the rows are read from.
 */
#include "graph/ops/ops.h"

static tdm_status infer_embedding(const tdm_op_attrs *attrs, const tdm__value *const in[],
                                  tdm__value out[], tdm_error *err)
{
    (void)attrs;
    tdm_shape shape = in[1]->shape;
    char text[128];
    TDM_TRY(tdm__wants_f32(in[0], "table", err));
    TDM_TRY(tdm__wants_rank(in[0], 2, "table", err));
    if (in[1]->dtype != TDM_DTYPE_I32)
        return tdm_fail(err, TDM_ERR_INVALID, "ids must be i32, not %s",
                        tdm_dtype_name(in[1]->dtype));
    if (shape.rank + 1 > TDM_MAX_DIMS)
        return tdm_fail(err, TDM_ERR_RANGE, "ids of shape %s leave no dimension for the columns",
                        tdm_shape_text(&shape, text));
    shape.dim[shape.rank++] = in[0]->shape.dim[1];
    out[0] = (tdm__value){.dtype = TDM_DTYPE_F32, .shape = shape};
    return TDM_OK;
}

static void backward_embedding(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                               tdm_value d_in[])
{
    tdm_op_attrs attrs = {.shape = graph->values[node->in[0]].shape};
    tdm_value in[2] = {d_out[0], tdm__node_in(node, 1)};
    d_in[0] = tdm__graph_add_node(graph, TDM_OP_EMBEDDING_GRAD, &attrs, in, 2, NULL);
}

static const tdm__op_row rows[] = {
    {TDM_OP_EMBEDDING, "embedding", 2, 2, 1, infer_embedding, backward_embedding, tdm__flops_none,
     0, 0},
    {TDM_OP_EMBEDDING_GRAD, "embedding_grad", 2, 3, 1, tdm__infer_shape_of_attrs, NULL,
     tdm__flops_per_input, TDM__OVER_2 | TDM__OVER_ALONE, 0},
};

const tdm__op_family tdm__ops_embedding = {rows, sizeof(rows) / sizeof(rows[0])};

tdm_value tdm_graph_embedding(tdm_graph *graph, tdm_value table, tdm_value ids)
{
    return tdm__graph_add_node(graph, TDM_OP_EMBEDDING, &(tdm_op_attrs){0},
                               (tdm_value[]){table, ids}, 2, NULL);
}
