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
/* For code that builds models: remembers a mistake of one's own, unless there was one already, and
 * returns "none". */
TDM_API tdm_value tdm_graph_refuse(tdm_graph *graph, const char *fmt, ...) TDM_PRINTF(2, 3);
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
/*
 * Part of the state that follows the data instead of a gradient: after each step it becomes
 * (1 - momentum) * itself + momentum * (the sum over the batch's lanes of what tdm_graph_follow was
 * given, which the caller scales by the lane's share of the rows). Saved like a buffer. The running
 * statistics of batch norm are such.
 */
TDM_API tdm_value tdm_graph_statistic(tdm_graph *graph, const char *name, tdm_shape shape,
                                      tdm_init init, double momentum);
TDM_API void tdm_graph_follow(tdm_graph *graph, tdm_value statistic, tdm_value observed);
/* Keeps a value readable after a run, under `name`. */
TDM_API void tdm_graph_output(tdm_graph *graph, const char *name, tdm_value value);

/*
 * The numbers that matrix products and convolutions added from here on are made of: TDM_DTYPE_F32, as
 * at first, or TDM_DTYPE_BF16. Then their inputs, in the backward pass as well, are rounded to the
 * nearest bf16, each value once for all its readers; sums, bias and results are f32, and so is all
 * else: values have type f32 to whoever builds a graph. Before tdm_graph_backward.
 */
TDM_API void tdm_graph_precision(tdm_graph *graph, tdm_dtype dtype);
/* The backward pass rounds parameters again, in place of keeping what the forward pass made of them:
 * for parameters that are brought to each use of them. The bits are the same. */
TDM_API void tdm_graph_round_again(tdm_graph *graph);

/* ---- ops ------------------------------------------------------------------------------------- */

/*
 * Shapes: B rows of a batch, T time, C channels, V classes; images are [B, H, W, C], sequences
 * [B, T, C]; "[..., C]" is any number of leading dimensions. A NULL for options means the defaults,
 * and so does a zero in one.
 */

typedef struct tdm_matmul_options {
    bool trans_a;
    bool trans_b;
    tdm_value bias;            /* [N], added to each row; none by default */
    tdm_activation activation; /* applied to the result; ReLU, tanh and sigmoid by the same node */
} tdm_matmul_options;

/* [M, K] x [K, N] -> [M, N], either one transposed on the way; or a batch of them,
 * [B, M, K] x [B, K, N] -> [B, M, N]. */
TDM_API tdm_value tdm_graph_matmul(tdm_graph *graph, tdm_value a, tdm_value b,
                                   const tdm_matmul_options *options);
/* x [..., K], w [N, K] -> [..., N]: a fully connected layer. bias [N] may be none. */
TDM_API tdm_value tdm_graph_linear(tdm_graph *graph, tdm_value x, tdm_value w, tdm_value bias,
                                   tdm_activation activation);

/* Element-wise. In add and mul, b may also have a shape that is the end of a's. */
TDM_API tdm_value tdm_graph_add(tdm_graph *graph, tdm_value a, tdm_value b);
TDM_API tdm_value tdm_graph_mul(tdm_graph *graph, tdm_value a, tdm_value b);
TDM_API tdm_value tdm_graph_scale(tdm_graph *graph, tdm_value x, double factor);
TDM_API tdm_value tdm_graph_activation(tdm_graph *graph, tdm_value x, tdm_activation activation);
TDM_API tdm_value tdm_graph_relu(tdm_graph *graph, tdm_value x);
TDM_API tdm_value tdm_graph_gelu(tdm_graph *graph, tdm_value x); /* by erf */
TDM_API tdm_value tdm_graph_gelu_tanh(tdm_graph *graph, tdm_value x);
TDM_API tdm_value tdm_graph_silu(tdm_graph *graph, tdm_value x);
TDM_API tdm_value tdm_graph_tanh(tdm_graph *graph, tdm_value x);
TDM_API tdm_value tdm_graph_sigmoid(tdm_graph *graph, tdm_value x);
/* Zeroes elements with probability p and scales the others by 1 / (1 - p). p in [0, 1). */
TDM_API tdm_value tdm_graph_dropout(tdm_graph *graph, tdm_value x, double p);

/* Shapes and sums. */
TDM_API tdm_value tdm_graph_reshape(tdm_graph *graph, tdm_value x, tdm_shape shape); /* free */
/* perm[i] is the dimension of x that becomes dimension i. */
TDM_API tdm_value tdm_graph_transpose(tdm_graph *graph, tdm_value x, const int *perm);
TDM_API tdm_value tdm_graph_concat(tdm_graph *graph, const tdm_value *x, int count, int axis);
TDM_API tdm_value tdm_graph_slice(tdm_graph *graph, tdm_value x, int axis, int64_t begin,
                                  int64_t end);
/* `count` equal parts along an axis. */
TDM_API void tdm_graph_split(tdm_graph *graph, tdm_value x, int axis, int count, tdm_value *out);
TDM_API tdm_value tdm_graph_sum_rows(tdm_graph *graph, tdm_value x); /* [B, N] -> [N] */
/* Over one axis, which disappears, or over all (axis -1), to a scalar. */
TDM_API tdm_value tdm_graph_sum(tdm_graph *graph, tdm_value x, int axis);
TDM_API tdm_value tdm_graph_mean(tdm_graph *graph, tdm_value x, int axis);

/* Norms, over the last dimension. eps 0: 1e-5. */
TDM_API tdm_value tdm_graph_layer_norm(tdm_graph *graph, tdm_value x, tdm_value gamma,
                                       tdm_value beta, double eps);
TDM_API tdm_value tdm_graph_rms_norm(tdm_graph *graph, tdm_value x, tdm_value gamma, double eps);
/* (x - shift) * scale for each column of x [B, N]; shift and scale are [N]. */
TDM_API tdm_value tdm_graph_normalise(tdm_graph *graph, tdm_value x, tdm_value shift,
                                      tdm_value scale);
TDM_API tdm_value tdm_graph_softmax(tdm_graph *graph, tdm_value x); /* over the last dimension */

typedef enum tdm_batch_norm_mode {
    TDM_BATCH_NORM_TRAIN = 0, /* with the statistics of these rows; the running ones follow */
    TDM_BATCH_NORM_FIXED      /* with the running ones: inference, and frozen layers */
} tdm_batch_norm_mode;

typedef struct tdm_batch_norm_options {
    tdm_batch_norm_mode mode;
    double eps;               /* 0: 1e-5 */
    tdm_value gamma, beta;    /* [C], parameters */
    tdm_value mean, variance; /* [C], FIXED: the statistics to use; TRAIN does not need them */
    /* TRAIN, where not NULL: what these rows showed, [C] each, for the running statistics to follow
     * (tdm_graph_follow, scaled by the lane's share of the rows). The variance is the unbiased one,
     * though the rows themselves are normalised with the biased one, as everywhere. */
    tdm_value *observed_mean, *observed_variance;
    /* TRAIN, where not 0: x is made of lane_rows of the batch_rows rows of a batch whose others are in
     * other lanes, and all statistics are the whole batch's: one sum over lanes (tdm_graph_lane_sum)
     * forward, one backward. Lanes' means are squared about `mean`, where there is one (zero if not):
     * the closer it is to the batch's mean, the better, so the running one is good. */
    int64_t lane_rows, batch_rows;
} tdm_batch_norm_options;

/* x [..., C]: each channel over all else. In TRAIN each channel must have two numbers or more: in these
 * rows, or, with batch_rows, in the batch. */
TDM_API tdm_value tdm_graph_batch_norm(tdm_graph *graph, tdm_value x,
                                       const tdm_batch_norm_options *options);

/* table [V, C], ids i32 [...] -> [..., C]. Ids must lie in [0, V). */
TDM_API tdm_value tdm_graph_embedding(tdm_graph *graph, tdm_value table, tdm_value ids);

/* Index 0 is height, 1 is width; 1-D convolutions have height 1. Zeros: kernel from the weights,
 * stride 1, no padding, dilation 1, groups 1. */
typedef struct tdm_conv_options {
    int stride[2], padding[2], dilation[2];
    int groups;
    tdm_value bias;            /* [O] */
    tdm_activation activation; /* applied to the result; ReLU, tanh and sigmoid by the same node */
} tdm_conv_options;

/* x [B, H, W, C], w [O, KH, KW, C/groups] -> [B, H', W', O]. groups = C is depthwise. */
TDM_API tdm_value tdm_graph_conv2d(tdm_graph *graph, tdm_value x, tdm_value w,
                                   const tdm_conv_options *options);
/* x [B, T, C], w [O, K, C/groups] -> [B, T', O]; stride[1], padding[1], dilation[1] count. */
TDM_API tdm_value tdm_graph_conv1d(tdm_graph *graph, tdm_value x, tdm_value w,
                                   const tdm_conv_options *options);

typedef struct tdm_pool_options {
    int kernel[2], stride[2], padding[2]; /* stride 0: as the kernel; padding: half of it at most */
} tdm_pool_options;

TDM_API tdm_value tdm_graph_max_pool(tdm_graph *graph, tdm_value x,
                                     const tdm_pool_options *options);
/* Padding does not count in the average. */
TDM_API tdm_value tdm_graph_average_pool(tdm_graph *graph, tdm_value x,
                                         const tdm_pool_options *options);
TDM_API tdm_value tdm_graph_global_pool(tdm_graph *graph, tdm_value x); /* [B, H, W, C] -> [B, C] */

typedef struct tdm_attention_options {
    int heads;
    bool causal;
    double dropout;    /* of the attention's weights */
    tdm_value lengths; /* i32 [B]: keys at and past it are masked; none: all count */
} tdm_attention_options;

/* Scaled dot-product attention of qkv [B, T, 3C] (queries, keys, values side by side, each `heads`
 * parts of C/heads) -> [B, T, C]. Blocked: no T x T matrix is ever in memory. */
TDM_API tdm_value tdm_graph_attention(tdm_graph *graph, tdm_value qkv,
                                      const tdm_attention_options *options);

/*
 * The sum of x over all lanes of the batch, by the one tree (parallel.h); what a batch norm over the
 * whole batch is made of. Its gradient is the sum over lanes of the gradient. In a plan it is a step at
 * which a run must pause (tdm_plan_lane_sum_at); a run that does not pause takes its own x for the sum.
 */
TDM_API tdm_value tdm_graph_lane_sum(tdm_graph *graph, tdm_value x);

/* ---- losses: scalars ------------------------------------------------------------------------- */

typedef struct tdm_cross_entropy_options {
    double scale;           /* the loss is the rows' sum times this; 1/B gives the mean; 0: 1 */
    double label_smoothing; /* this share of the target is spread evenly over all classes */
    bool has_ignore;        /* rows of class `ignore` add nothing */
    int32_t ignore;
} tdm_cross_entropy_options;

/* The cross entropy of softmax(logits [..., V]) against classes (i32 [...], each in [0, V)): the
 * sum over the rows times `scale`. */
TDM_API tdm_value tdm_graph_cross_entropy(tdm_graph *graph, tdm_value logits, tdm_value classes,
                                          double scale);
TDM_API tdm_value tdm_graph_cross_entropy_with(tdm_graph *graph, tdm_value logits,
                                               tdm_value classes,
                                               const tdm_cross_entropy_options *options);
/* Sums over all elements, times scale. */
TDM_API tdm_value tdm_graph_mse(tdm_graph *graph, tdm_value x, tdm_value target, double scale);
TDM_API tdm_value tdm_graph_l1(tdm_graph *graph, tdm_value x, tdm_value target, double scale);
TDM_API tdm_value tdm_graph_huber(tdm_graph *graph, tdm_value x, tdm_value target, double delta,
                                  double scale);
TDM_API tdm_value tdm_graph_bce_logits(tdm_graph *graph, tdm_value x, tdm_value target,
                                       double scale);
/* x: log-probabilities, target: probabilities. */
TDM_API tdm_value tdm_graph_kl(tdm_graph *graph, tdm_value x, tdm_value target, double scale);
/* scale * sum |w| for power 1, scale * sum w^2 for power 2; to be added to a loss. */
TDM_API tdm_value tdm_graph_penalty(tdm_graph *graph, tdm_value w, int power, double scale);

/* ---- ops of one's own ------------------------------------------------------------------------ */

enum { TDM_CUSTOM_MAX_INPUTS = 6 };

/*
 * A new op, in f32: one output. `run` follows the rules of all kernels: it allocates nothing, and
 * gives the same bits for the same inputs. The struct must outlive the graph.
 */
typedef struct tdm_custom_op {
    const char *name;
    int in_count;
    tdm_status (*infer)(const tdm_shape in[], const void *attrs, tdm_shape *out, tdm_error *err);
    void (*run)(const tdm_tensor in[], const void *attrs, tdm_tensor out);
    /* Builds the gradient from ops: given d_out, sets d_in[i] for the inputs that need one (others
     * may be left at none). NULL: not differentiable. */
    void (*backward)(tdm_graph *graph, const tdm_value in[], tdm_value out, tdm_value d_out,
                     const void *attrs, tdm_value d_in[]);
    uint64_t (*flops)(const tdm_shape in[], const void *attrs); /* NULL: 1 for each output number */
} tdm_custom_op;

/* `attrs` (may be NULL) is borrowed and must outlive the graph's plans: tdm_graph_memory gives memory
 * that does. */
TDM_API tdm_value tdm_graph_custom(tdm_graph *graph, const tdm_custom_op *op, const tdm_value in[],
                                   const void *attrs);

/* Zeroed memory that lives as long as the graph. NULL, and a mistake remembered, when there is none
 * or the graph is broken already. */
TDM_API void *tdm_graph_memory(tdm_graph *graph, size_t bytes);
/* Calls release(what) when the graph is destroyed, for things that its ops need; what was added last
 * goes first. Where it cannot be remembered it is released at once: `what` is taken either way. */
TDM_API tdm_status tdm_graph_keep(tdm_graph *graph, void (*release)(void *what), void *what,
                                  tdm_error *err);

TDM_API tdm_shape tdm_graph_shape(const tdm_graph *graph, tdm_value value);
/* TDM_DTYPE_NONE for "none". */
TDM_API tdm_dtype tdm_graph_dtype(const tdm_graph *graph, tdm_value value);

/* Adds the gradient of the scalar `loss` with respect to every parameter. Once per graph. */
TDM_API tdm_status tdm_graph_backward(tdm_graph *graph, tdm_value loss, tdm_error *err);

/*
 * Less memory for more arithmetic. Before tdm_graph_backward, a model marks where its blocks begin;
 * after it, tdm_graph_recompute makes the backward pass compute activations again instead of
 * keeping them. What a graph computes stays the same, bit for bit.
 */
typedef enum tdm_recompute {
    TDM_RECOMPUTE_NONE = 0, /* every activation that is needed again is kept */
    TDM_RECOMPUTE_BLOCKS,   /* only what passes from one block to another is */
    /* The way that keeps the least, of: cuts at the marks, or wherever a single value passes; a
     * second level, groups of several segments, of which only what passes between groups is kept.
     * Up to two forward passes more. Of ways within 5 % the cheapest. */
    TDM_RECOMPUTE_FULL
} tdm_recompute;

/* The ops added from here on are a new block. */
TDM_API void tdm_graph_block(tdm_graph *graph);
/* Once per graph, after tdm_graph_backward. The last block is never computed again. */
TDM_API tdm_status tdm_graph_recompute(tdm_graph *graph, tdm_recompute what, tdm_error *err);

/* ---- what is in a graph ---------------------------------------------------------------------- */

/* A parameter, statistic or buffer. Offsets are in elements of the one block of f32 that holds them
 * all: first the trained ones, then the statistics, then the buffers. */
typedef struct tdm_param_info {
    const char *name;
    tdm_shape shape;
    tdm_init init;
    bool trained;
    bool statistic;
    double momentum; /* of a statistic */
    size_t offset;
    size_t elements;
} tdm_param_info;

TDM_API size_t tdm_graph_param_count(const tdm_graph *graph);
TDM_API const tdm_param_info *tdm_graph_param_at(const tdm_graph *graph, size_t index);
/* The value of the same, to build on: what tdm_graph_param, ..._statistic or ..._buffer returned. */
TDM_API tdm_value tdm_graph_param_value(const tdm_graph *graph, size_t index);
/* Elements of the block: of the trained part (gaps included), of that and the statistics, which is
 * also the size of a block of gradients, and of all of it. */
TDM_API size_t tdm_graph_trained_extent(const tdm_graph *graph);
TDM_API size_t tdm_graph_grad_extent(const tdm_graph *graph);
TDM_API size_t tdm_graph_param_extent(const tdm_graph *graph);
/* The number of trained numbers, without gaps. */
TDM_API uint64_t tdm_graph_trained_elements(const tdm_graph *graph);

typedef struct tdm_node_info {
    const char *op;   /* "matmul" */
    const char *name; /* "fc1.matmul" */
    bool backward;
    bool recomputed; /* a forward op, run again in the backward pass */
    tdm_shape shape; /* of the first output */
    tdm_dtype dtype;
    bool of_inputs; /* an input has a part in it; if not, it is made of parameters alone */
    uint64_t flops;
    uint64_t bytes; /* of its inputs and outputs, each counted once */
} tdm_node_info;

TDM_API size_t tdm_graph_node_count(const tdm_graph *graph);
TDM_API tdm_node_info tdm_graph_node_at(const tdm_graph *graph, size_t index);

/* [M, K] x [K, N], `batch` times, of which `share` is needed: causal attention leaves out half. */
typedef struct tdm_product {
    int64_t batch, M, N, K;
    double share;
} tdm_product;
enum { TDM_MAX_PRODUCTS = 4 };
/* The matrix products inside a node that is more than one: those of attention. Their number. */
TDM_API size_t tdm_graph_products_at(const tdm_graph *graph, size_t index,
                                     tdm_product out[TDM_MAX_PRODUCTS]);

/* ---- plans ----------------------------------------------------------------------------------- */

typedef struct tdm_plan tdm_plan;

/* Whose kernels a plan may use. PORTABLE: those whose bits are a function of their inputs alone.
 * VENDOR: also those of a library whose bits depend on CPU, version and threads. */
typedef enum tdm_numerics { TDM_NUMERICS_PORTABLE = 0, TDM_NUMERICS_VENDOR } tdm_numerics;

typedef struct tdm_plan_options {
    const char *backend;   /* NULL: the best kernel for each op; "ref": plain loops only */
    tdm_numerics numerics; /* does not matter where `backend` names one */
    int threads;           /* that a kernel may use; 0: 1 */
    bool forward_only;     /* leave out what only the gradients need */
} tdm_plan_options;

/* The blocks of memory a plan works on. */
typedef enum tdm_space {
    TDM_SPACE_ARENA = 0,  /* activations and scratch: one for each thread that runs plans */
    TDM_SPACE_PARAMS = 1, /* tdm_graph_param_extent floats, read */
    TDM_SPACE_GRADS = 2,  /* tdm_graph_grad_extent floats, written */
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

/*
 * A run in parts. A plan is a list of steps, in order of execution; running parts [0, a), [a, b), ...
 * up to the end is running it. Between parts, on the same thread or another, parameters may be brought
 * and gradients taken away.
 */
TDM_API size_t tdm_plan_step_count(const tdm_plan *plan);
TDM_API void tdm_plan_run_part(tdm_plan *plan, const tdm_step_key *key, size_t begin, size_t end);
/* The parameters, statistics and buffers (indices as in tdm_graph_param_at) that a step reads, each
 * once; their number, at most TDM_MAX_PLAN_READS. */
enum { TDM_MAX_PLAN_READS = 16 };
TDM_API size_t tdm_plan_reads_at(const tdm_plan *plan, size_t step, size_t out[TDM_MAX_PLAN_READS]);
/* The step after which the gradient of a parameter, or what was observed for a statistic, is complete
 * in TDM_SPACE_GRADS, and that no other step reads or writes there; SIZE_MAX where the plan makes none:
 * for a buffer, a statistic that follows nothing, and in plans that go forward only. */
TDM_API size_t tdm_plan_grad_step(const tdm_plan *plan, size_t param_index);
/* The first step that writes to its place there. */
TDM_API size_t tdm_plan_grad_begin(const tdm_plan *plan, size_t param_index);
/* Whether a step is a sum over lanes. After a part that ends with it, *io (where not NULL) holds this
 * lane's own numbers, which the caller replaces by the sum before the run goes on (and before it
 * takes a gradient that is complete with this step). The n-th such step of a plan belongs to the n-th of
 * the other lanes' plans, which may have another number of rows, and other steps in between. */
TDM_API bool tdm_plan_lane_sum_at(const tdm_plan *plan, size_t step, tdm_tensor *io);

/* What a watcher sees after each node that runs. Inputs may have been overwritten in place. */
typedef struct tdm_plan_event {
    size_t node;           /* index in the graph */
    const tdm_tensor *out; /* its outputs; dtype NONE where there is none */
    int out_count;
    uint64_t begin_ns, end_ns; /* on the clock of tdm_clock_ns */
} tdm_plan_event;
/* Returns false to end the run there. */
typedef bool (*tdm_plan_watch_fn)(void *user, const tdm_plan_event *event);
/* A run in front of a watcher: what it computes is the same, bit for bit. Slower by the clock. */
TDM_API void tdm_plan_run_watched(tdm_plan *plan, const tdm_step_key *key, tdm_plan_watch_fn watch,
                                  void *user);
/* A part of such a run. */
TDM_API void tdm_plan_run_part_watched(tdm_plan *plan, const tdm_step_key *key, size_t begin,
                                       size_t end, tdm_plan_watch_fn watch, void *user);
/* Runs the nodes of one op alone, in order, on whatever their inputs hold: to time them. */
TDM_API void tdm_plan_run_only(tdm_plan *plan, const tdm_step_key *key, const char *op);

typedef struct tdm_plan_node_info {
    size_t node; /* index in the graph */
    const char
        *backend;  /* which kernel it got; "view" when nothing runs, and "fused" when it runs as
                          * part of the node in front of it */
    bool in_place; /* its output overwrites an input */
    size_t arena_offset; /* of its first output; SIZE_MAX when that lies in another space */
    size_t bytes;        /* of its first output */
} tdm_plan_node_info;

TDM_API size_t tdm_plan_node_count(const tdm_plan *plan);
TDM_API tdm_plan_node_info tdm_plan_node_at(const tdm_plan *plan, size_t index);

#ifdef __cplusplus
}
#endif
#endif
