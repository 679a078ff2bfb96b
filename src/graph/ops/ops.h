/* ops.h: the families of ops that ops.c lists, and functions shared by their files. */
#ifndef TANDEM_GRAPH_OPS_OPS_H
#define TANDEM_GRAPH_OPS_OPS_H

#include "graph/internal.h"

extern const tdm__op_family tdm__ops_matmul, tdm__ops_basic, tdm__ops_custom;
extern const tdm__op_family tdm__ops_norm, tdm__ops_attention;
extern const tdm__op_family tdm__ops_shape, tdm__ops_elementwise, tdm__ops_loss, tdm__ops_embedding;
extern const tdm__op_family tdm__ops_conv, tdm__ops_pool, tdm__ops_batch_norm;

/* Inputs that the output may overwrite (tdm__op_row.in_place). */
enum { TDM__OVER_0 = 1, TDM__OVER_1 = 2, TDM__OVER_2 = 4 };

/* ---- checks: each sets `err` to what was expected and what was passed ------------------------- */

tdm_status tdm__wants_f32(const tdm__value *v, const char *what, tdm_error *err);
/* Both f32, or both bf16: the operands of a product. */
tdm_status tdm__wants_factors(const tdm__value *a, const char *a_name, const tdm__value *b,
                              const char *b_name, tdm_error *err);
tdm_status tdm__wants_rank(const tdm__value *v, int rank, const char *what, tdm_error *err);
tdm_status tdm__wants_same(const tdm__value *a, const tdm__value *b, tdm_error *err);
/* A vector of `columns` numbers. */
tdm_status tdm__wants_columns(const tdm__value *v, int64_t columns, const char *what,
                              tdm_error *err);
/* x -> the same shape. */
tdm_status tdm__infer_same(const tdm_op_attrs *attrs, const tdm__value *const in[],
                           tdm__value out[], tdm_error *err);
/* a, b of one shape -> that shape. */
tdm_status tdm__infer_two_same(const tdm_op_attrs *attrs, const tdm__value *const in[],
                               tdm__value out[], tdm_error *err);
/* dy, ... -> attrs.shape: the gradient of an op that changes the shape. */
tdm_status tdm__infer_shape_of_attrs(const tdm_op_attrs *attrs, const tdm__value *const in[],
                                     tdm__value out[], tdm_error *err);
/* How many windows (attrs.window) fit into `size` along an axis: 0 is height, 1 is width. */
tdm_status tdm__infer_window(const tdm_op_attrs *attrs, int axis, int64_t size, int64_t *out,
                             tdm_error *err);

/* ---- gradients -------------------------------------------------------------------------------- */

static inline tdm_value tdm__node_in(const tdm__node *node, int index)
{
    return (tdm_value){node->in[index]};
}

/* Whether any node needs the gradient of this input. */
static inline bool tdm__node_wants(const tdm_graph *graph, const tdm__node *node, int index)
{
    return tdm__value_needs_grad(graph, node->in[index]);
}

/* ---- activations that another op applies to its own result ------------------------------------ */

/* Whether one may be part of an op in a trained graph: its slope can be computed from the result,
 * so that its input need not be kept. */
bool tdm__activation_fuses(tdm_activation activation);
/* The gradient of the input of such an activation, from that of its result y. */
tdm_value tdm__activation_back(tdm_graph *graph, int activation, tdm_value dy, int32_t y);
/* FLOPs for `cells` numbers. */
uint64_t tdm__activation_flops(int activation, uint64_t cells);

/* ---- cost ------------------------------------------------------------------------------------- */

uint64_t tdm__elements_of(const tdm_graph *graph, int32_t value);
uint64_t tdm__flops_none(const tdm_graph *graph, const tdm__node *node);
/* One operation for each number read: element-wise ops and sums. */
uint64_t tdm__flops_per_input(const tdm_graph *graph, const tdm__node *node);
/* One for each number written. */
uint64_t tdm__flops_per_output(const tdm_graph *graph, const tdm__node *node);
/* Transcendental functions are counted as eight. */
uint64_t tdm__flops_costly(const tdm_graph *graph, const tdm__node *node);

#endif
