/*
 * autodiff.c: reverse-mode differentiation, graph to graph.
 *
 * Visits the nodes in reverse order; each op's row adds the ops of its gradient. The gradients of a
 * value that is used more than once are added in a fixed order, that of the visit. At the end every
 * trained parameter has one value that is its gradient, which the plan places in the block of
 * gradients. If that value cannot be placed there (it is a view, or the gradient of two
 * parameters), a copy is added.
 */
#include "base/base.h"
#include "graph/internal.h"

#include <assert.h>
#include <stdlib.h>

static void grads_collect(tdm_graph *graph, tdm_value *grads, int32_t value, tdm_value d)
{
    if (value == 0 || d.id == 0) return;
    grads[value] = grads[value].id ? tdm_graph_add(graph, grads[value], d) : d;
}

/* An embedding's gradient has few rows: if the table has a gradient already (from a tied head),
 * they are added to it instead of creating a second table. The node that computes them is the one
 * that the embedding's row has just added; no other node uses its result. */
static void collect_table(tdm_graph *graph, tdm_value *grads, int32_t table, tdm_value d)
{
    tdm__node *last = &graph->nodes[graph->node_count - 1];
    assert(last->op == TDM_OP_EMBEDDING_GRAD && last->out[0] == d.id && !last->in[2]);
    last->in[2] = grads[table].id;
    grads[table] = d;
}

static void walk_back(tdm_graph *graph, size_t from, tdm_value *grads)
{
    for (size_t i = from; i-- > 0;) {
        tdm__node node = graph->nodes[i]; /* a copy: adding nodes moves the array */
        const tdm__op_row *row = tdm__op_row_of(node.op);
        tdm_value d_out[TDM_OP_MAX_OUTPUTS] = {{0}}, d_in[TDM_OP_MAX_INPUTS] = {{0}};
        bool flows = false;
        for (int o = 0; o < row->out_count; o++) {
            d_out[o] = grads[node.out[o]];
            flows = flows || d_out[o].id != 0;
        }
        if (!flows || !tdm__value_needs_grad(graph, node.out[0])) continue;
        if (!row->backward || d_out[0].id == 0) {
            tdm__graph_break(graph, TDM_ERR_UNSUPPORTED, "%s: this op has no gradient", node.name);
            return;
        }
        graph->scope = NULL;
        graph->in_backward = true;
        tdm_graph_scope(graph, node.name);
        row->backward(graph, &node, d_out, d_in);
        if (graph->broken.status != TDM_OK) return;
        if (node.op == TDM_OP_EMBEDDING) {
            collect_table(graph, grads, node.in[0], d_in[0]);
            continue;
        }
        for (int k = 0; k < TDM_OP_MAX_INPUTS; k++)
            grads_collect(graph, grads, node.in[k], d_in[k]);
    }
}

/* Whether the value is computed by an op, and is neither an output nor (part of) a view. */
static bool can_be_placed(const tdm_graph *graph, tdm_value d)
{
    const tdm__value *v = &graph->values[d.id];
    if (v->role != TDM__ROLE_COMPUTED || v->grad_of != 0 || v->is_output) return false;
    for (size_t i = 0; i < graph->node_count; i++) {
        const tdm__node *node = &graph->nodes[i];
        if (node->op == TDM_OP_RESHAPE && (node->out[0] == d.id || node->in[0] == d.id))
            return false;
    }
    return true;
}

static void mark_parameter_grads(tdm_graph *graph, const tdm_value *grads)
{
    for (size_t p = 0; p < graph->param_count && graph->broken.status == TDM_OK; p++) {
        if (!graph->params[p].trained) continue;
        tdm_graph_scope(graph, graph->params[p].name);
        tdm_value d = grads[graph->param_values[p]];
        if (d.id == 0) { /* the loss does not depend on it */
            tdm_op_attrs zero = {.shape = graph->params[p].shape};
            d = tdm__graph_add_node(graph, TDM_OP_FILL, &zero, NULL, 0, NULL);
        } else if (!can_be_placed(graph, d)) {
            d = tdm__graph_add_node(graph, TDM_OP_COPY, &(tdm_op_attrs){0}, &d, 1, NULL);
        }
        if (graph->broken.status == TDM_OK) graph->values[d.id].grad_of = (int32_t)p + 1;
    }
}

/* The gradient of the traced input becomes an output; a copy if it is a view of another value. */
static void output_traced_grad(tdm_graph *graph, const tdm_value *grads)
{
    if (!graph->traced.id || graph->broken.status != TDM_OK) return;
    tdm_graph_scope(graph, graph->traced_name);
    tdm_value d = grads[graph->traced.id];
    if (d.id == 0) {
        tdm_op_attrs zero = {.shape = graph->values[graph->traced.id].shape};
        d = tdm__graph_add_node(graph, TDM_OP_FILL, &zero, NULL, 0, NULL);
    } else if (!can_be_placed(graph, d)) {
        d = tdm__graph_add_node(graph, TDM_OP_COPY, &(tdm_op_attrs){0}, &d, 1, NULL);
    }
    tdm_graph_output(graph, graph->traced_name, d);
}

tdm_status tdm_graph_backward(tdm_graph *graph, tdm_value loss, tdm_error *err)
{
    TDM_TRY(tdm_graph_check(graph, err));
    if (graph->has_backward)
        return tdm_fail(err, TDM_ERR_EXISTS, "graph: it already has gradients");
    if (loss.id <= 0 || (size_t)loss.id >= graph->value_count ||
        graph->values[loss.id].shape.rank != 0 || graph->values[loss.id].dtype != TDM_DTYPE_F32)
        return tdm_fail(err, TDM_ERR_INVALID, "graph: the loss must be a scalar f32 value");
    size_t forward_nodes = graph->node_count, forward_values = graph->value_count;
    tdm_value *grads = calloc(forward_values, sizeof(*grads));
    if (!grads) return tdm_fail_oom(err, "for the gradients");

    const char *scope = graph->scope;
    graph->in_backward = true;
    tdm_graph_scope(graph, "loss");
    grads[loss.id] = tdm__graph_add_node(graph, TDM_OP_FILL, &(tdm_op_attrs){.scale = 1.0}, NULL, 0,
                                         NULL);
    walk_back(graph, forward_nodes, grads);
    output_traced_grad(graph, grads);
    mark_parameter_grads(graph, grads);
    graph->in_backward = false;
    graph->scope = scope;
    graph->has_backward = true;
    free(grads);
    return tdm_graph_check(graph, err);
}
