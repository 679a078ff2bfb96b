/*
 * graph.h: models as static graphs of ops, their gradients, and plans that run them.
 *
 * Build a graph once: inputs, parameters, ops. All shapes are known while building; a mistake is
 * remembered and reported by tdm_graph_check(), so that a model reads as a list of ops without an
 * `if` after each. tdm_graph_backward() extends the graph by the gradients. A plan then fixes the
 * order of execution, the kernel of each op and the place of each buffer, and runs steps without
 * allocating, locking or checking anything.
 *
 * Parameters do not live in the plan: they lie one after another in one block of memory that the
 * caller binds, and gradients in a second one with the same layout. So several plans, on several
 * threads, can share one copy of the parameters.
 *
 * Threading: a graph is built by one thread and is read-only afterwards. A plan is run by one
 * thread at a time; different plans run side by side.
 */
#ifndef TANDEM_GRAPH_H
#define TANDEM_GRAPH_H

#include <tandem/base.h>
#include <tandem/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tdm_graph tdm_graph;

/* A value in a graph. id 0 is "none", which every builder function passes on quietly. */
typedef struct tdm_value {
    int32_t id;
} tdm_value;

#define TDM_VALUE_NONE ((tdm_value){0})

/* How a parameter begins. */
typedef enum tdm_init_kind {
    TDM_INIT_ZERO = 0,
    TDM_INIT_UNIFORM, /* in [-scale, scale) */
    TDM_INIT_NORMAL,  /* mean 0, deviation `scale` */
    TDM_INIT_ONE
} tdm_init_kind;

typedef struct tdm_init {
    tdm_init_kind kind;
    double scale;
} tdm_init;

TDM_API tdm_graph *tdm_graph_create(void); /* NULL when out of memory */
TDM_API void tdm_graph_destroy(tdm_graph *graph);

/* The first mistake made while building, if any. */
TDM_API tdm_status tdm_graph_check(const tdm_graph *graph, tdm_error *err);
/* Names of ops added from here on begin with "scope."; NULL or "" ends it. */
TDM_API void tdm_graph_scope(tdm_graph *graph, const char *scope);

/* What comes from outside with each run. f32 or i32. */
TDM_API tdm_value tdm_graph_input(tdm_graph *graph, const char *name, tdm_dtype dtype,
                                  tdm_shape shape);
/* A trained parameter (f32). Names are unique in a graph. */
TDM_API tdm_value tdm_graph_param(tdm_graph *graph, const char *name, tdm_shape shape,
                                  tdm_init init);
/* Part of the model's state that is saved but not trained (f32). */
TDM_API tdm_value tdm_graph_buffer(tdm_graph *graph, const char *name, tdm_shape shape,
                                   tdm_init init);
/* Keeps a value readable after a run, under `name`. */
TDM_API void tdm_graph_output(tdm_graph *graph, const char *name, tdm_value value);

/* ---- ops ------------------------------------------------------------------------------------- */

typedef struct tdm_matmul_options {
    bool trans_a;
    bool trans_b;
    tdm_value bias; /* [N], added to each row; none by default */
} tdm_matmul_options;

/* [M, K] x [K, N] -> [M, N], either one transposed on the way. NULL: the defaults. */
TDM_API tdm_value tdm_graph_matmul(tdm_graph *graph, tdm_value a, tdm_value b,
                                   const tdm_matmul_options *options);
TDM_API tdm_value tdm_graph_add(tdm_graph *graph, tdm_value a, tdm_value b);
/* The same numbers in another shape; costs nothing. */
TDM_API tdm_value tdm_graph_reshape(tdm_graph *graph, tdm_value x, tdm_shape shape);
TDM_API tdm_value tdm_graph_sum_rows(tdm_graph *graph, tdm_value x); /* [B, N] -> [N] */
TDM_API tdm_value tdm_graph_relu(tdm_graph *graph, tdm_value x);
TDM_API tdm_value tdm_graph_gelu(tdm_graph *graph, tdm_value x); /* by erf */
TDM_API tdm_value tdm_graph_tanh(tdm_graph *graph, tdm_value x);
TDM_API tdm_value tdm_graph_sigmoid(tdm_graph *graph, tdm_value x);
/* Zeroes elements with probability p and scales the others by 1 / (1 - p). p in [0, 1). */
TDM_API tdm_value tdm_graph_dropout(tdm_graph *graph, tdm_value x, double p);
/* (x - shift) * scale for each column of x [B, N]; shift and scale are [N]. */
TDM_API tdm_value tdm_graph_normalise(tdm_graph *graph, tdm_value x, tdm_value shift,
                                      tdm_value scale);
TDM_API tdm_value tdm_graph_softmax(tdm_graph *graph, tdm_value x); /* over the columns */
/*
 * The cross entropy of softmax(logits [B, V]) against classes (i32 [B], each in [0, V)): the sum
 * over the rows times `scale`, a scalar. 1/B gives the mean.
 */
TDM_API tdm_value tdm_graph_cross_entropy(tdm_graph *graph, tdm_value logits, tdm_value classes,
                                          double scale);

TDM_API tdm_shape tdm_graph_shape(const tdm_graph *graph, tdm_value value);

/* Adds the gradient of the scalar `loss` with respect to every parameter. Once per graph. */
TDM_API tdm_status tdm_graph_backward(tdm_graph *graph, tdm_value loss, tdm_error *err);

/* ---- what is in a graph ---------------------------------------------------------------------- */

/* A parameter or buffer. Offsets are in elements of the one block of f32 that holds them all:
 * first the trained ones, then the buffers. */
typedef struct tdm_param_info {
    const char *name;
    tdm_shape shape;
    tdm_init init;
    bool trained;
    size_t offset;
    size_t elements;
} tdm_param_info;

TDM_API size_t tdm_graph_param_count(const tdm_graph *graph);
TDM_API const tdm_param_info *tdm_graph_param_at(const tdm_graph *graph, size_t index);
/* Elements of the block: of the trained part (gaps included), and of all of it. */
TDM_API size_t tdm_graph_trained_extent(const tdm_graph *graph);
TDM_API size_t tdm_graph_param_extent(const tdm_graph *graph);
/* The number of trained numbers, without gaps. */
TDM_API uint64_t tdm_graph_trained_elements(const tdm_graph *graph);

typedef struct tdm_node_info {
    const char *op;   /* "matmul" */
    const char *name; /* "fc1.matmul" */
    bool backward;
    tdm_shape shape; /* of the first output */
    tdm_dtype dtype;
    uint64_t flops;
} tdm_node_info;

TDM_API size_t tdm_graph_node_count(const tdm_graph *graph);
TDM_API tdm_node_info tdm_graph_node_at(const tdm_graph *graph, size_t index);

/* ---- plans ----------------------------------------------------------------------------------- */

typedef struct tdm_plan tdm_plan;

typedef struct tdm_plan_options {
    const char *backend; /* NULL: the best kernel for each op; "ref": plain loops only */
    int threads;         /* that a kernel may use; 0: 1 */
    bool forward_only;   /* leave out what only the gradients need */
} tdm_plan_options;

/* The blocks of memory a plan works on. */
typedef enum tdm_space {
    TDM_SPACE_ARENA = 0,  /* activations and scratch: one for each thread that runs plans */
    TDM_SPACE_PARAMS = 1, /* tdm_graph_param_extent floats, read */
    TDM_SPACE_GRADS = 2,  /* tdm_graph_trained_extent floats, written */
    TDM_SPACE_COUNT = 3
} tdm_space;

/* The graph must outlive the plan. */
TDM_API tdm_status tdm_plan_create(const tdm_graph *graph, const tdm_plan_options *options,
                                   tdm_plan **out, tdm_error *err);
TDM_API void tdm_plan_destroy(tdm_plan *plan);
/* Bytes the arena must have. Plans of one thread may share one arena of the largest size. */
TDM_API size_t tdm_plan_arena_bytes(const tdm_plan *plan);
/* Bytes it would take if no buffer were ever used again. */
TDM_API size_t tdm_plan_unshared_bytes(const tdm_plan *plan);
/* 64-byte aligned; may be called again between runs, costs a few stores per tensor, allocates
 * nothing. All three spaces must be bound before run (GRADS only after tdm_graph_backward). */
TDM_API void tdm_plan_bind(tdm_plan *plan, tdm_space space, void *base);
/* Views into the arena, to be filled before and read after a run. dtype NONE: no such name.
 * Pointers change with the binding of the arena. A run may write over its inputs. */
TDM_API tdm_tensor tdm_plan_input(const tdm_plan *plan, const char *name);
TDM_API tdm_tensor tdm_plan_output(const tdm_plan *plan, const char *name);
TDM_API void tdm_plan_run(tdm_plan *plan, const tdm_step_key *key);

typedef struct tdm_plan_node_info {
    size_t node;         /* index in the graph */
    const char *backend; /* which kernel it got; "view" when nothing runs */
    bool in_place;       /* its output overwrites an input */
    size_t arena_offset; /* of its first output; SIZE_MAX when that lies in another space */
    size_t bytes;        /* of its first output */
} tdm_plan_node_info;

TDM_API size_t tdm_plan_node_count(const tdm_plan *plan);
TDM_API tdm_plan_node_info tdm_plan_node_at(const tdm_plan *plan, size_t index);

#ifdef __cplusplus
}
#endif
#endif
