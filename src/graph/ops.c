/* ops.c: the list of the families of ops, and the mapping from an op to its row. */
#include "graph/ops/ops.h"

#include <assert.h>

static const tdm__op_family *const families[] = {
    &tdm__ops_matmul, &tdm__ops_basic,       &tdm__ops_norm,       &tdm__ops_attention,
    &tdm__ops_shape,  &tdm__ops_elementwise, &tdm__ops_loss,       &tdm__ops_embedding,
    &tdm__ops_conv,   &tdm__ops_pool,        &tdm__ops_batch_norm, &tdm__ops_custom,
};

const tdm__op_row *tdm__op_row_of(tdm_op_kind op)
{
    for (size_t f = 0; f < sizeof(families) / sizeof(families[0]); f++)
        for (size_t i = 0; i < families[f]->count; i++)
            if (families[f]->rows[i].op == op) return &families[f]->rows[i];
    assert(!"an op without a row");
    return NULL;
}
