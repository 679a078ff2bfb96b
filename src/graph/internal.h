/*
 * internal.h: what a graph is made of, for the files of this room.
 *
 * Values and nodes are kept in growing arrays and named by index; value 0 is "none". Nodes stand in
 * an order in which they can run: an op can only use values that exist already, and backward()
 * appends. `broken` holds the first mistake; after it the builder only returns "none".
 */
#ifndef TANDEM_GRAPH_INTERNAL_H
#define TANDEM_GRAPH_INTERNAL_H

#include <tandem/graph.h>

#include "tensor/kernel.h"

typedef enum tdm__value_role {
    TDM__ROLE_COMPUTED = 0,
    TDM__ROLE_INPUT,
    TDM__ROLE_PARAM /* and buffers */
} tdm__value_role;

typedef struct tdm__value {
    tdm_dtype dtype;
    tdm_shape shape;
    tdm__value_role role;
    const char *name; /* inputs and outputs */
    bool is_output;
    bool needs_grad;       /* a trained parameter has a part in it */
    bool of_inputs;        /* an input has a part in it */
    int32_t param;         /* role PARAM: index in params */
    int32_t grad_of;       /* 1 + index of the parameter whose gradient this is; 0 for none */
    int32_t rounded;       /* the value that is this one in bf16; 0: nobody has asked for it yet */
    int32_t rounded_again; /* likewise, of a parameter in the backward pass */
    int32_t rounding_of;   /* the parameter that this is the rounding of; 0: of none */
} tdm__value;

typedef struct tdm__node {
    tdm_op_kind op;
    tdm_op_attrs attrs;
    int32_t in[TDM_OP_MAX_INPUTS]; /* value ids; 0: none */
    int32_t out[TDM_OP_MAX_OUTPUTS];
    const char *name;
    bool backward;
    bool recomputed;
    int32_t block; /* which of the model's blocks it is in */
} tdm__node;

/* Something from outside that goes with the graph. */
typedef struct tdm__kept tdm__kept;
struct tdm__kept {
    void (*release)(void *what);
    void *what;
    tdm__kept *before; /* added before this one */
};

struct tdm_graph {
    tdm_arena *arena;
    tdm__kept *kept; /* the last one added */
    tdm__value *values;
    size_t value_count, value_capacity;
    tdm__node *nodes;
    size_t node_count, node_capacity;
    tdm_param_info *params;
    int32_t *param_values;
    size_t param_count, param_capacity;
    size_t trained_extent, grad_extent, param_extent;
    const char *scope;
    uint32_t dropout_count;
    bool in_backward;
    bool has_backward;
    bool has_recompute;
    bool in_bf16;     /* products and convolutions get inputs in bf16 */
    bool round_again; /* parameters are rounded again in the backward pass */
    int32_t block;    /* of the nodes to come */
    tdm_error broken;
};

/* In tdm__op_row.in_place: the op reads other inputs at other indices than it writes, so none of
 * them may lie where the output does. Ops without it work index by index, or row by row in step. */
#define TDM__OVER_ALONE (1u << 31)

/* One op = one row. */
typedef struct tdm__op_row {
    tdm_op_kind op;
    const char *name;
    int in_least, in_most, out_count;
    /* Fills shape and dtype of the outputs from inputs and attributes, or refuses. */
    tdm_status (*infer)(const tdm_op_attrs *attrs, const tdm__value *const in[], tdm__value out[],
                        tdm_error *err);
    /* Adds the nodes of the gradient: given d_out (none where nothing flows back), sets d_in for
     * the inputs that need one. NULL: the op has no gradient. */
    void (*backward)(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                     tdm_value d_in[]);
    uint64_t (*flops)(const tdm_graph *graph, const tdm__node *node);
    unsigned in_place; /* bit i: the first output may lie over input i; TDM__OVER_ALONE */
    int in_place_out;  /* which output that is */
} tdm__op_row;

/* Rows that belong together: one file in ops/; ops.c lists them. */
typedef struct tdm__op_family {
    const tdm__op_row *rows;
    size_t count;
} tdm__op_family;

const tdm__op_row *tdm__op_row_of(tdm_op_kind op);

/* Adds a node; returns its first output, and the second in *second when that is not NULL. */
tdm_value tdm__graph_add_node(tdm_graph *graph, tdm_op_kind op, const tdm_op_attrs *attrs,
                              const tdm_value in[], int in_count, tdm_value *second);
/* What a product or a convolution takes for x: x itself or, in a graph of bf16, x rounded, for which
 * there is one node however many ask. */
tdm_value tdm__graph_round(tdm_graph *graph, tdm_value x);
/* Appends ".part" to the name of the node that was added last, to tell it from others of its scope. */
void tdm__graph_name_last(tdm_graph *graph, const char *part);
/* Adds a value as it is; returns its id, 0 when there is no memory. */
int32_t tdm__graph_add_value(tdm_graph *graph, tdm__value value);
/* Marks, by node, what outputs and (unless forward_only) gradients depend on. `wanted`, by value, is
 * all false at first, and so is `live`. */
void tdm__graph_find_live(const tdm_graph *graph, bool forward_only, bool *live, bool *wanted);
/* The tdm_activation that is an op of its own; none for other ops. */
int tdm__activation_of_op(tdm_op_kind op);
const char *tdm__activation_name(int activation);
/* Remembers the first mistake. */
tdm_status tdm__graph_break(tdm_graph *graph, tdm_status status, const char *fmt, ...)
    TDM_PRINTF(3, 4);
bool tdm__value_needs_grad(const tdm_graph *graph, int32_t id);

/* The most elements of a value, and of the block of parameters: their bytes can be counted. */
#define TDM__MAX_ELEMENTS (INT64_MAX / 16)

#endif
