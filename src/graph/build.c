/*
 * build.c: the builder. Each function checks its arguments, adds a node or a value, and returns the
 * result; after an error all of them return "none", and tdm_graph_check() returns the first error.
 */
#include "base/base.h"
#include "graph/graph.h"
#include "graph/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A cache line, which is also the best alignment for vector loads. In elements of f32. */
enum { PARAM_ALIGN_ELEMENTS = 16 };

tdm_graph *tdm_graph_create(void)
{
    tdm_graph *graph = calloc(1, sizeof(*graph));
    if (!graph) return NULL;
    graph->arena = tdm_arena_create("graph");
    if (!graph->arena) {
        free(graph);
        return NULL;
    }
    graph->value_count = 1; /* value 0 is "none" */
    return graph;
}

void tdm_graph_destroy(tdm_graph *graph)
{
    if (!graph) return;
    free(graph->values);
    free(graph->nodes);
    free(graph->params);
    free(graph->param_values);
    for (const tdm__kept *kept = graph->kept; kept; kept = kept->before) kept->release(kept->what);
    tdm_arena_destroy(graph->arena);
    free(graph);
}

void *tdm_graph_memory(tdm_graph *graph, size_t bytes)
{
    if (graph->broken.status != TDM_OK) return NULL;
    void *memory = tdm_arena_alloc(graph->arena, bytes, 0);
    if (!memory) tdm__graph_break(graph, TDM_ERR_NO_MEMORY, "graph: no memory");
    return memory;
}

tdm_status tdm_graph_keep(tdm_graph *graph, void (*release)(void *what), void *what, tdm_error *err)
{
    tdm__kept *kept = tdm_arena_alloc(graph->arena, sizeof(*kept), 0);
    if (!kept) {
        release(what);
        return tdm_fail_oom(err, "for the graph");
    }
    *kept = (tdm__kept){.release = release, .what = what, .before = graph->kept};
    graph->kept = kept;
    return TDM_OK;
}

tdm_status tdm__graph_break(tdm_graph *graph, tdm_status status, const char *fmt, ...)
{
    if (graph->broken.status != TDM_OK) return graph->broken.status;
    va_list args;
    va_start(args, fmt);
    tdm_vfail(&graph->broken, status, fmt, args);
    va_end(args);
    return status;
}

tdm_value tdm_graph_refuse(tdm_graph *graph, const char *fmt, ...)
{
    if (graph->broken.status == TDM_OK) {
        va_list args;
        va_start(args, fmt);
        tdm_vfail(&graph->broken, TDM_ERR_INVALID, fmt, args);
        va_end(args);
    }
    return TDM_VALUE_NONE;
}

tdm_status tdm_graph_check(const tdm_graph *graph, tdm_error *err)
{
    if (graph->broken.status == TDM_OK) return TDM_OK;
    return tdm_fail(err, graph->broken.status, "%s", graph->broken.message);
}

void tdm_graph_scope(tdm_graph *graph, const char *scope)
{
    graph->scope = NULL;
    if (!scope || !*scope) return;
    graph->scope = tdm_arena_strdup(graph->arena, scope);
    if (!graph->scope) tdm__graph_break(graph, TDM_ERR_NO_MEMORY, "graph: no memory");
}

void tdm_graph_precision(tdm_graph *graph, tdm_dtype dtype)
{
    if (dtype != TDM_DTYPE_F32 && dtype != TDM_DTYPE_BF16)
        tdm__graph_break(graph, TDM_ERR_UNSUPPORTED, "precision: it must be f32 or bf16, not %s",
                         tdm_dtype_name(dtype));
    graph->in_bf16 = dtype == TDM_DTYPE_BF16;
}

void tdm_graph_round_again(tdm_graph *graph)
{
    graph->round_again = true;
}

/* Makes room for one more element; false (with the error stored) if memory runs out. */
static bool graph_grow(tdm_graph *graph, void **items, size_t count, size_t *capacity, size_t size)
{
    if (count < *capacity) return true;
    size_t wanted = *capacity ? 2 * *capacity : 64;
    void *bigger = realloc(*items, wanted * size);
    if (!bigger) {
        tdm__graph_break(graph, TDM_ERR_NO_MEMORY, "graph: no memory for %zu more entries", wanted);
        return false;
    }
    *items = bigger;
    *capacity = wanted;
    return true;
}

int32_t tdm__graph_add_value(tdm_graph *graph, tdm__value value)
{
    if (!graph_grow(graph, (void **)&graph->values, graph->value_count, &graph->value_capacity,
                    sizeof(*graph->values)))
        return 0;
    if (graph->value_count == 1) memset(&graph->values[0], 0, sizeof(graph->values[0]));
    graph->values[graph->value_count] = value;
    return (int32_t)graph->value_count++;
}

static bool value_is_usable(tdm_graph *graph, tdm_value value, const char *where)
{
    if (graph->broken.status != TDM_OK) return false;
    if (value.id > 0 && (size_t)value.id < graph->value_count) return true;
    tdm__graph_break(graph, TDM_ERR_INVALID, "%s: input is not a value of this graph", where);
    return false;
}

static bool shape_is_countable(const tdm_shape *shape)
{
    int64_t elements = tdm_shape_elements(shape);
    return elements >= 0 && elements <= TDM__MAX_ELEMENTS;
}

bool tdm__value_needs_grad(const tdm_graph *graph, int32_t id)
{
    return id > 0 && graph->values[id].needs_grad;
}

tdm_shape tdm_graph_shape(const tdm_graph *graph, tdm_value value)
{
    if (value.id <= 0 || (size_t)value.id >= graph->value_count) return tdm_shape_0();
    return graph->values[value.id].shape;
}

tdm_dtype tdm_graph_dtype(const tdm_graph *graph, tdm_value value)
{
    if (value.id <= 0 || (size_t)value.id >= graph->value_count) return TDM_DTYPE_NONE;
    return graph->values[value.id].dtype;
}

tdm_value tdm_graph_input(tdm_graph *graph, const char *name, tdm_dtype dtype, tdm_shape shape)
{
    if (graph->broken.status != TDM_OK) return TDM_VALUE_NONE;
    for (size_t i = 1; i < graph->value_count; i++)
        if (graph->values[i].role == TDM__ROLE_INPUT && strcmp(graph->values[i].name, name) == 0)
            tdm__graph_break(graph, TDM_ERR_EXISTS, "graph: there are two inputs named '%s'", name);
    if (dtype != TDM_DTYPE_F32 && dtype != TDM_DTYPE_I32)
        tdm__graph_break(graph, TDM_ERR_UNSUPPORTED, "input '%s': the type must be f32 or i32",
                         name);
    if (!shape_is_countable(&shape))
        tdm__graph_break(graph, TDM_ERR_RANGE, "input '%s': the shape is negative or too large",
                         name);
    char *copy = tdm_arena_strdup(graph->arena, name);
    if (!copy) tdm__graph_break(graph, TDM_ERR_NO_MEMORY, "graph: no memory");
    if (graph->broken.status != TDM_OK) return TDM_VALUE_NONE;
    return (tdm_value){tdm__graph_add_value(graph, (tdm__value){.dtype = dtype,
                                                                .shape = shape,
                                                                .role = TDM__ROLE_INPUT,
                                                                .name = copy,
                                                                .of_inputs = true})};
}

void tdm_graph_trace_input(tdm_graph *graph, tdm_value input, const char *name)
{
    if (!value_is_usable(graph, input, "trace")) return;
    tdm__value *v = &graph->values[input.id];
    graph->traced_name = tdm_arena_strdup(graph->arena, name);
    if (!graph->traced_name) tdm__graph_break(graph, TDM_ERR_NO_MEMORY, "graph: no memory");
    if (v->role != TDM__ROLE_INPUT || v->dtype != TDM_DTYPE_F32 || graph->traced.id)
        tdm__graph_break(graph, TDM_ERR_INVALID,
                         "trace: it needs an input of type f32, and a graph traces one only");
    v->needs_grad = true;
    graph->traced = input;
}

/* The order of the block: trained parameters, statistics, buffers; each in the order of
 * creation. */
static void lay_out_params(tdm_graph *graph)
{
    size_t offset = 0;
    graph->trained_elements = 0;
    for (int pass = 0; pass < 3; pass++) {
        for (size_t i = 0; i < graph->param_count; i++) {
            tdm_param_info *p = &graph->params[i];
            if ((p->trained ? 0 : p->statistic ? 1 : 2) != pass) continue;
            p->offset = offset;
            offset += tdm_align_up(p->elements, PARAM_ALIGN_ELEMENTS);
            if (p->trained) graph->trained_elements += p->elements;
        }
        if (pass == 0) graph->trained_extent = offset;
        if (pass == 1) graph->grad_extent = offset;
    }
    graph->param_extent = offset;
}

/* `kind` sets trained, statistic and momentum; the other fields are set here. */
static tdm_value add_param(tdm_graph *graph, const char *name, tdm_shape shape, tdm_init init,
                           tdm_param_info kind)
{
    if (graph->broken.status != TDM_OK) return TDM_VALUE_NONE;
    for (size_t i = 0; i < graph->param_count; i++)
        if (strcmp(graph->params[i].name, name) == 0)
            tdm__graph_break(graph, TDM_ERR_EXISTS, "graph: there are two parameters named '%s'",
                             name);

    int64_t elements = tdm_shape_elements(&shape);
    if (elements <= 0 || elements > TDM__MAX_ELEMENTS - (int64_t)graph->param_extent)
        tdm__graph_break(graph, TDM_ERR_RANGE, "parameter '%s': the shape is empty or too large",
                         name);
    char *copy = tdm_arena_strdup(graph->arena, name);
    if (!copy) tdm__graph_break(graph, TDM_ERR_NO_MEMORY, "graph: no memory");
    if (graph->broken.status != TDM_OK) return TDM_VALUE_NONE;

    size_t values_capacity = graph->param_capacity;
    if (!graph_grow(graph, (void **)&graph->params, graph->param_count, &graph->param_capacity,
                    sizeof(*graph->params)))
        return TDM_VALUE_NONE;
    if (!graph_grow(graph, (void **)&graph->param_values, graph->param_count, &values_capacity,
                    sizeof(*graph->param_values)))
        return TDM_VALUE_NONE;

    int32_t id = tdm__graph_add_value(graph, (tdm__value){.dtype = TDM_DTYPE_F32,
                                                          .shape = shape,
                                                          .role = TDM__ROLE_PARAM,
                                                          .needs_grad = kind.trained,
                                                          .param = (int32_t)graph->param_count});
    if (id == 0) return TDM_VALUE_NONE;

    kind.name = copy;
    kind.shape = shape;
    kind.init = init;
    kind.elements = (size_t)elements;
    graph->params[graph->param_count] = kind;
    graph->param_values[graph->param_count++] = id;
    lay_out_params(graph);
    return (tdm_value){id};
}

tdm_value tdm_graph_param(tdm_graph *graph, const char *name, tdm_shape shape, tdm_init init)
{
    return add_param(graph, name, shape, init, (tdm_param_info){.trained = true});
}

tdm_value tdm_graph_buffer(tdm_graph *graph, const char *name, tdm_shape shape, tdm_init init)
{
    return add_param(graph, name, shape, init, (tdm_param_info){.trained = false});
}

tdm_value tdm_graph_statistic(tdm_graph *graph, const char *name, tdm_shape shape, tdm_init init,
                              double momentum)
{
    return add_param(graph, name, shape, init,
                     (tdm_param_info){.statistic = true, .momentum = momentum});
}

void tdm_graph_follow(tdm_graph *graph, tdm_value statistic, tdm_value observed)
{
    if (!value_is_usable(graph, statistic, "follow") || !value_is_usable(graph, observed, "follow"))
        return;
    const tdm__value *s = &graph->values[statistic.id];
    tdm_shape observed_shape = graph->values[observed.id].shape;
    if (s->role != TDM__ROLE_PARAM || !graph->params[s->param].statistic ||
        !tdm_shape_equal(&s->shape, &observed_shape)) {
        tdm__graph_break(graph, TDM_ERR_INVALID,
                         "follow: it needs a statistic and a value of the same shape");
        return;
    }
    int32_t index = s->param;
    /* A separate copy, which the plan can place in the block of gradients. */
    tdm_value copy = tdm__graph_add_node(graph, TDM_OP_COPY, &(tdm_op_attrs){0}, &observed, 1,
                                         NULL);
    if (copy.id) graph->values[copy.id].grad_of = index + 1;
}

void tdm_graph_output(tdm_graph *graph, const char *name, tdm_value value)
{
    if (!value_is_usable(graph, value, "output")) return;
    for (size_t i = 1; i < graph->value_count; i++)
        if (graph->values[i].is_output && strcmp(graph->values[i].name, name) == 0)
            tdm__graph_break(graph, TDM_ERR_EXISTS, "graph: there are two outputs named '%s'",
                             name);
    tdm__value *v = &graph->values[value.id];
    if (v->role != TDM__ROLE_COMPUTED || v->is_output)
        tdm__graph_break(graph, TDM_ERR_INVALID,
                         "output '%s': it must be computed by an op and not be an output already",
                         name);
    char *copy = tdm_arena_strdup(graph->arena, name);
    if (!copy) tdm__graph_break(graph, TDM_ERR_NO_MEMORY, "graph: no memory");
    if (graph->broken.status != TDM_OK) return;
    v->is_output = true;
    v->name = copy;
}

/* "scope.op", or "scope.op+activation" if the op applies one to its result. */
static const char *node_name(tdm_graph *graph, tdm_op_kind op, const tdm_op_attrs *attrs)
{
    const tdm_custom_op *custom = attrs->custom;
    const char *op_name = custom ? custom->name : tdm__op_row_of(op)->name;
    if (attrs->activation != TDM_ACTIVATION_NONE)
        op_name = tdm_arena_printf(graph->arena, "%s+%s", op_name,
                                   tdm__activation_name(attrs->activation));
    if (!op_name) {
        tdm__graph_break(graph, TDM_ERR_NO_MEMORY, "graph: no memory");
        return NULL;
    }
    const char *name = graph->scope && *graph->scope
                           ? tdm_arena_printf(graph->arena, "%s.%s", graph->scope, op_name)
                           : op_name;
    if (!name) tdm__graph_break(graph, TDM_ERR_NO_MEMORY, "graph: no memory");
    return name;
}

tdm_value tdm__graph_add_node(tdm_graph *graph, tdm_op_kind op, const tdm_op_attrs *attrs,
                              const tdm_value in[], int in_count, tdm_value *second)
{
    const tdm__op_row *row = tdm__op_row_of(op);
    const tdm__value *in_values[TDM_OP_MAX_INPUTS] = {0};
    tdm__value out[TDM_OP_MAX_OUTPUTS] = {{0}};
    tdm__node node = {
        .op = op, .attrs = *attrs, .backward = graph->in_backward, .block = graph->block};
    bool needs_grad = false, of_inputs = false;

    for (int i = 0; i < in_count; i++) {
        if (i >= row->in_least && in[i].id == 0) continue;
        if (!value_is_usable(graph, in[i], row->name)) return TDM_VALUE_NONE;
        node.in[i] = in[i].id;
        in_values[i] = &graph->values[in[i].id];
        needs_grad = needs_grad || in_values[i]->needs_grad;
        of_inputs = of_inputs || in_values[i]->of_inputs;
    }

    node.name = node_name(graph, op, attrs);
    tdm_error err;
    tdm_status status = row->infer(&node.attrs, in_values, out, &err);
    if (status != TDM_OK)
        tdm__graph_break(graph, status, "%s: %s", node.name ? node.name : row->name, err.message);
    for (int i = 0; i < row->out_count && status == TDM_OK; i++)
        if (!shape_is_countable(&out[i].shape))
            tdm__graph_break(graph, TDM_ERR_RANGE, "%s: the result is too large", node.name);
    if (graph->broken.status != TDM_OK) return TDM_VALUE_NONE;

    for (int i = 0; i < row->out_count; i++) {
        out[i].needs_grad = needs_grad;
        out[i].of_inputs = of_inputs;
        node.out[i] = tdm__graph_add_value(graph, out[i]);
        if (node.out[i] == 0) return TDM_VALUE_NONE;
    }

    if (!graph_grow(graph, (void **)&graph->nodes, graph->node_count, &graph->node_capacity,
                    sizeof(*graph->nodes)))
        return TDM_VALUE_NONE;
    graph->nodes[graph->node_count++] = node;
    if (second) *second = (tdm_value){node.out[1]};
    return (tdm_value){node.out[0]};
}

tdm_value tdm__graph_round(tdm_graph *graph, tdm_value x)
{
    if (!graph->in_bf16 || x.id <= 0 || (size_t)x.id >= graph->value_count) return x;
    int32_t param = graph->values[x.id].rounding_of;
    bool again = param && graph->round_again && graph->in_backward;
    if (again) x = (tdm_value){param};
    if (graph->values[x.id].dtype != TDM_DTYPE_F32) return x;
    int32_t known = again ? graph->values[x.id].rounded_again : graph->values[x.id].rounded;
    if (known) return (tdm_value){known};
    tdm_value y = tdm__graph_add_node(graph, TDM_OP_CAST, &(tdm_op_attrs){0}, &x, 1, NULL);
    if (y.id == 0) return y;
    tdm__value *of = &graph->values[x.id];
    *(again ? &of->rounded_again : &of->rounded) = y.id;
    if (of->role == TDM__ROLE_PARAM) graph->values[y.id].rounding_of = x.id;
    return y;
}

void tdm__graph_name_last(tdm_graph *graph, const char *part)
{
    if (graph->broken.status != TDM_OK) return;
    tdm__node *last = &graph->nodes[graph->node_count - 1];
    const char *name = tdm_arena_printf(graph->arena, "%s.%s", last->name, part);
    if (!name)
        tdm__graph_break(graph, TDM_ERR_NO_MEMORY, "graph: no memory");
    else
        last->name = name;
}

/* ---- ops -------------------------------------------------------------------------------------- */

static tdm_value graph_add_unary(tdm_graph *graph, tdm_op_kind op, tdm_value x)
{
    return tdm__graph_add_node(graph, op, &(tdm_op_attrs){0}, &x, 1, NULL);
}

tdm_value tdm_graph_add(tdm_graph *graph, tdm_value a, tdm_value b)
{
    return tdm__graph_add_node(graph, TDM_OP_ADD, &(tdm_op_attrs){0}, (tdm_value[]){a, b}, 2, NULL);
}

tdm_value tdm_graph_reshape(tdm_graph *graph, tdm_value x, tdm_shape shape)
{
    return tdm__graph_add_node(graph, TDM_OP_RESHAPE, &(tdm_op_attrs){.shape = shape}, &x, 1, NULL);
}

tdm_value tdm_graph_sum_rows(tdm_graph *graph, tdm_value x)
{
    return graph_add_unary(graph, TDM_OP_SUM_ROWS, x);
}

tdm_value tdm_graph_lane_sum(tdm_graph *graph, tdm_value x)
{
    return graph_add_unary(graph, TDM_OP_LANE_SUM, x);
}

tdm_value tdm_graph_dropout(tdm_graph *graph, tdm_value x, double p)
{
    if (!(p >= 0 && p < 1)) {
        tdm__graph_break(graph, TDM_ERR_RANGE,
                         "dropout: p is %g; it must be at least 0 and below 1", p);
        return TDM_VALUE_NONE;
    }
    if (p == 0) return x;
    tdm_op_attrs attrs = {.p = (float)p, .sub_stream = graph->dropout_count++};
    return tdm__graph_add_node(graph, TDM_OP_DROPOUT, &attrs, &x, 1, NULL);
}

tdm_value tdm_graph_normalise(tdm_graph *graph, tdm_value x, tdm_value shift, tdm_value scale)
{
    return tdm__graph_add_node(graph, TDM_OP_NORMALISE, &(tdm_op_attrs){0},
                               (tdm_value[]){x, shift, scale}, 3, NULL);
}

tdm_value tdm_graph_softmax(tdm_graph *graph, tdm_value x)
{
    return graph_add_unary(graph, TDM_OP_SOFTMAX, x);
}

/* ---- inspection ------------------------------------------------------------------------------- */

size_t tdm_graph_param_count(const tdm_graph *graph)
{
    return graph->param_count;
}

const tdm_param_info *tdm_graph_param_at(const tdm_graph *graph, size_t index)
{
    return &graph->params[index];
}

tdm_value tdm_graph_param_value(const tdm_graph *graph, size_t index)
{
    return (tdm_value){graph->param_values[index]};
}

tdm_graph_extents tdm_graph_extents_of(const tdm_graph *graph)
{
    tdm_graph_extents extents = {.trained = graph->trained_extent,
                                 .grads = graph->grad_extent,
                                 .params = graph->param_extent,
                                 .trained_elements = graph->trained_elements};
    return extents;
}

size_t tdm_graph_node_count(const tdm_graph *graph)
{
    return graph->node_count;
}

static uint64_t value_bytes(const tdm_graph *graph, int32_t id)
{
    const tdm__value *v = &graph->values[id];
    return id ? (uint64_t)tdm_shape_elements(&v->shape) * tdm_dtype_bytes(v->dtype) : 0;
}

tdm_node_info tdm_graph_node_at(const tdm_graph *graph, size_t index)
{
    const tdm__node *node = &graph->nodes[index];
    const tdm__op_row *row = tdm__op_row_of(node->op);
    const tdm__value *out = &graph->values[node->out[0]];
    const tdm_custom_op *custom = node->attrs.custom;
    uint64_t bytes = 0;
    for (int i = 0; i < TDM_OP_MAX_INPUTS; i++) bytes += value_bytes(graph, node->in[i]);
    for (int o = 0; o < TDM_OP_MAX_OUTPUTS; o++) bytes += value_bytes(graph, node->out[o]);
    return (tdm_node_info){.op = custom ? custom->name : row->name,
                           .name = node->name,
                           .backward = node->backward,
                           .recomputed = node->recomputed,
                           .shape = out->shape,
                           .dtype = out->dtype,
                           .of_inputs = out->of_inputs,
                           .flops = row->flops(graph, node),
                           .bytes = bytes};
}
