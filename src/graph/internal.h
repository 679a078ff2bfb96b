/*
 * internal.h: the data structures of a graph, for the files of this module.
 *
 * Values and nodes are in growing arrays and referenced by index; value 0 is "none". Nodes are in
 * an order in which they can run: an op can only use existing values, and backward() appends.
 * `broken` is the first error; after it the builder only returns "none".
 */
#ifndef TANDEM_GRAPH_INTERNAL_H
#define TANDEM_GRAPH_INTERNAL_H

#include <tandem/graph.h>

#include "tensor/kernel.h"

typedef enum tdm__value_role {
    TDM__ROLE_COMPUTED = 0,
    TDM__ROLE_INPUT,
    TDM__ROLE_PARAM /* includes buffers */
} tdm__value_role;

typedef struct tdm__value {
    tdm_dtype dtype;
    tdm_shape shape;
    tdm__value_role role;
    const char *name; /* inputs and outputs */
    bool is_output;
    bool needs_grad;       /* depends on a trained parameter */
    bool of_inputs;        /* depends on an input */
    int32_t param;         /* role PARAM: index in params */
    int32_t grad_of;       /* 1 + index of the parameter whose gradient this is; 0 for none */
    int32_t rounded;       /* this value rounded to bf16; 0: not needed so far */
    int32_t rounded_again; /* the same, of a parameter in the backward pass */
    int32_t rounding_of;   /* the parameter of which this is the rounded value; 0: none */
} tdm__value;

typedef struct tdm__node {
    tdm_op_kind op;
    tdm_op_attrs attrs;
    int32_t in[TDM_OP_MAX_INPUTS]; /* value ids; 0: none */
    int32_t out[TDM_OP_MAX_OUTPUTS];
    const char *name;
    bool backward;
    bool recomputed;
    int32_t block; /* the model's block that contains it */
} tdm__node;

/* An external object that is released with the graph. */
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
    uint64_t trained_elements; /* without gaps */
    const char *scope;
    uint32_t dropout_count;
    bool in_backward;
    bool has_backward;
    tdm_value traced; /* the input whose gradient is an output; 0: none */
    const char *traced_name;
    bool has_recompute;
    bool in_bf16;     /* inputs of products and convolutions are rounded to bf16 */
    bool round_again; /* parameters are rounded again in the backward pass */
    int32_t block;    /* of the next nodes */
    tdm_error broken;
};

/* In tdm__op_row.in_place: the op reads other inputs at other indices than it writes, so none of
 * them may share memory with the output. Ops without it work index by index, or row by row in
 * step. */
#define TDM__OVER_ALONE (1u << 31)

/* The definition of an op. */
typedef struct tdm__op_row {
    tdm_op_kind op;
    const char *name;
    int in_least, in_most, out_count;
    /* Sets shape and dtype of the outputs from inputs and attributes, or returns an error. */
    tdm_status (*infer)(const tdm_op_attrs *attrs, const tdm__value *const in[], tdm__value out[],
                        tdm_error *err);
    /* Adds the nodes of the gradient: given d_out (none without a gradient), sets d_in for the
     * inputs that need one. NULL: the op has no gradient. */
    void (*backward)(tdm_graph *graph, const tdm__node *node, const tdm_value d_out[],
                     tdm_value d_in[]);
    uint64_t (*flops)(const tdm_graph *graph, const tdm__node *node);
    unsigned in_place; /* bit i: the first output may overwrite input i; TDM__OVER_ALONE */
    int in_place_out;  /* the output to which in_place refers */
} tdm__op_row;

/* The rows of one file in ops/; ops.c lists them. */
typedef struct tdm__op_family {
    const tdm__op_row *rows;
    size_t count;
} tdm__op_family;

const tdm__op_row *tdm__op_row_of(tdm_op_kind op);

/* Adds a node; returns its first output, and the second in *second if that is not NULL. */
tdm_value tdm__graph_add_node(tdm_graph *graph, tdm_op_kind op, const tdm_op_attrs *attrs,
                              const tdm_value in[], int in_count, tdm_value *second);
/* The input of a product or a convolution for x: x itself or, in a bf16 graph, x rounded by one
 * node that all users share. */
tdm_value tdm__graph_round(tdm_graph *graph, tdm_value x);
/* Appends ".part" to the name of the last node, to distinguish it from others of its scope. */
void tdm__graph_name_last(tdm_graph *graph, const char *part);
/* Adds a value; returns its id, 0 if memory runs out. */
int32_t tdm__graph_add_value(tdm_graph *graph, tdm__value value);
/* Marks the nodes on which outputs and (unless forward_only) gradients depend. `wanted`, by value,
 * and `live` must be all false. */
void tdm__graph_find_live(const tdm_graph *graph, bool forward_only, bool *live, bool *wanted);
/* The tdm_activation that this op computes; none for other ops. */
int tdm__activation_of_op(tdm_op_kind op);
const char *tdm__activation_name(int activation);
/* Stores the first error. */
tdm_status tdm__graph_break(tdm_graph *graph, tdm_status status, const char *fmt, ...)
    TDM_PRINTF(3, 4);
bool tdm__value_needs_grad(const tdm_graph *graph, int32_t id);

/* Maximum elements of a value, and of the block of parameters: their size in bytes does not
 * overflow. */
#define TDM__MAX_ELEMENTS (INT64_MAX / 16)

#endif
