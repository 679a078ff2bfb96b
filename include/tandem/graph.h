/*
 * graph.h: models as static graphs of ops, their gradients, and plans that run them.
 *
 * Build a graph once: inputs, parameters, ops. All shapes are known while building. The first error
 * is stored and reported by tdm_graph_check(), so that a model is a list of ops without an `if`
 * after each. tdm_graph_backward() extends the graph by the gradients. A plan then fixes the order
 * of execution, the kernel of each op and the offset of each buffer, and runs steps without
 * allocating, locking or checking anything.
 *
 * Parameters are not part of the plan: they are contiguous in one block of memory that the caller
 * binds, and gradients are in a second one with the same layout. So several plans, on several
 * threads, can share one copy of the parameters.
 *
 * Threading: a graph is built by one thread and is read-only afterwards. A plan is run by one
 * thread at a time; different plans may run concurrently.
 */
#ifndef TANDEM_GRAPH_H
#define TANDEM_GRAPH_H

#include <tandem/base.h>
#include <tandem/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tdm_graph tdm_graph;

/* A value in a graph. id 0 is "none"; every builder function returns "none" if one of its inputs
 * is. */
typedef struct tdm_value {
    int32_t id;
} tdm_value;

#define TDM_VALUE_NONE ((tdm_value){0})

/* The initial values of a parameter. */
typedef enum tdm_init_kind {
    TDM_INIT_ZERO = 0,
    TDM_INIT_UNIFORM, /* in [-scale, scale) */
    TDM_INIT_NORMAL,  /* mean 0, standard deviation `scale` */
    TDM_INIT_ONE
} tdm_init_kind;

typedef struct tdm_init {
    tdm_init_kind kind;
    double scale;
} tdm_init;

TDM_API tdm_graph *tdm_graph_create(void); /* NULL: out of memory */
TDM_API void tdm_graph_destroy(tdm_graph *graph);

/* The first error made while building, if any. */
TDM_API tdm_status tdm_graph_check(const tdm_graph *graph, tdm_error *err);
/* For code that builds models: stores an error, unless there is one already, and returns "none". */
TDM_API tdm_value tdm_graph_refuse(tdm_graph *graph, const char *fmt, ...) TDM_PRINTF(2, 3);
/* Names of ops added after this begin with "scope."; NULL or "" ends it. */
TDM_API void tdm_graph_scope(tdm_graph *graph, const char *scope);

/* A value that the caller provides for each run. f32 or i32. */
TDM_API tdm_value tdm_graph_input(tdm_graph *graph, const char *name, tdm_dtype dtype,
                                  tdm_shape shape);
/* A trained parameter (f32). Names are unique in a graph. */
TDM_API tdm_value tdm_graph_param(tdm_graph *graph, const char *name, tdm_shape shape,
                                  tdm_init init);
/* Part of the model's state that is saved but not trained (f32). */
TDM_API tdm_value tdm_graph_buffer(tdm_graph *graph, const char *name, tdm_shape shape,
                                   tdm_init init);
/*
 * Part of the state that follows the data instead of a gradient: after each step it becomes (1 -
 * momentum) * itself + momentum * (the sum over the batch's lanes of the values passed to
 * tdm_graph_follow, which the caller scales by the lane's share of the rows). Saved like a buffer.
 * Used for the running statistics of batch norm.
 */
TDM_API tdm_value tdm_graph_statistic(tdm_graph *graph, const char *name, tdm_shape shape,
                                      tdm_init init, double momentum);
TDM_API void tdm_graph_follow(tdm_graph *graph, tdm_value statistic, tdm_value observed);
/* Makes a value readable after a run, under `name`. */
TDM_API void tdm_graph_output(tdm_graph *graph, const char *name, tdm_value value);

/*
 * The type of the inputs of matrix products and convolutions added after this: TDM_DTYPE_F32, the
 * default, or TDM_DTYPE_BF16. With bf16 their inputs, also in the backward pass, are rounded to the
 * nearest bf16, each value once for all its readers. Sums, bias, results and everything else are
 * f32: the builder sees only values of type f32. Must be called before tdm_graph_backward.
 */
TDM_API void tdm_graph_precision(tdm_graph *graph, tdm_dtype dtype);

/* ---- ops -------------------------------------------------------------------------------------- */

/*
 * Shapes: B rows of a batch, T time, C channels, V classes; images are [B, H, W, C], sequences [B,
 * T, C]; "[..., C]" is any number of leading dimensions. NULL for options means the defaults, as
 * does a zero in a field of them.
 */

typedef struct tdm_matmul_options {
    bool trans_a;
    bool trans_b;
    tdm_value bias;            /* [N], added to each row; default none */
    tdm_activation activation; /* applied to the result; ReLU, tanh and sigmoid are fused into the
                                * node */
} tdm_matmul_options;

/* [M, K] x [K, N] -> [M, N], each optionally transposed; or a batch of them, [B, M, K] x [B, K, N]
 * -> [B, M, N]. */
TDM_API tdm_value tdm_graph_matmul(tdm_graph *graph, tdm_value a, tdm_value b,
                                   const tdm_matmul_options *options);
/* x [..., K], w [N, K] -> [..., N]: a fully connected layer. bias [N] may be none. */
TDM_API tdm_value tdm_graph_linear(tdm_graph *graph, tdm_value x, tdm_value w, tdm_value bias,
                                   tdm_activation activation);

/* Element-wise. In add and mul, the shape of b may also be a suffix of a's. */
TDM_API tdm_value tdm_graph_add(tdm_graph *graph, tdm_value a, tdm_value b);
TDM_API tdm_value tdm_graph_mul(tdm_graph *graph, tdm_value a, tdm_value b);
TDM_API tdm_value tdm_graph_scale(tdm_graph *graph, tdm_value x, double factor);
TDM_API tdm_value tdm_graph_activation(tdm_graph *graph, tdm_value x, tdm_activation activation);
static inline tdm_value tdm_graph_relu(tdm_graph *graph, tdm_value x)
{
    return tdm_graph_activation(graph, x, TDM_ACTIVATION_RELU);
}
static inline tdm_value tdm_graph_gelu(tdm_graph *graph, tdm_value x)
{
    return tdm_graph_activation(graph, x, TDM_ACTIVATION_GELU);
}
static inline tdm_value tdm_graph_gelu_tanh(tdm_graph *graph, tdm_value x)
{
    return tdm_graph_activation(graph, x, TDM_ACTIVATION_GELU_TANH);
}
static inline tdm_value tdm_graph_silu(tdm_graph *graph, tdm_value x)
{
    return tdm_graph_activation(graph, x, TDM_ACTIVATION_SILU);
}
static inline tdm_value tdm_graph_tanh(tdm_graph *graph, tdm_value x)
{
    return tdm_graph_activation(graph, x, TDM_ACTIVATION_TANH);
}
static inline tdm_value tdm_graph_sigmoid(tdm_graph *graph, tdm_value x)
{
    return tdm_graph_activation(graph, x, TDM_ACTIVATION_SIGMOID);
}
/* Zeroes elements with probability p and scales the others by 1 / (1 - p). p in [0, 1). */
TDM_API tdm_value tdm_graph_dropout(tdm_graph *graph, tdm_value x, double p);

/* Shapes and sums. */
TDM_API tdm_value tdm_graph_reshape(tdm_graph *graph, tdm_value x, tdm_shape shape); /* no cost */
/* perm[i] is the dimension of x that becomes dimension i. */
TDM_API tdm_value tdm_graph_transpose(tdm_graph *graph, tdm_value x, const int *perm);
TDM_API tdm_value tdm_graph_concat(tdm_graph *graph, const tdm_value *x, int count, int axis);
TDM_API tdm_value tdm_graph_slice(tdm_graph *graph, tdm_value x, int axis, int64_t begin,
                                  int64_t end);
/* Splits into `count` equal parts along an axis. */
TDM_API void tdm_graph_split(tdm_graph *graph, tdm_value x, int axis, int count, tdm_value *out);
TDM_API tdm_value tdm_graph_sum_rows(tdm_graph *graph, tdm_value x); /* [B, N] -> [N] */
/* Over one axis, which is removed, or over all (axis -1), to a scalar. */
TDM_API tdm_value tdm_graph_sum(tdm_graph *graph, tdm_value x, int axis);
TDM_API tdm_value tdm_graph_mean(tdm_graph *graph, tdm_value x, int axis);

/* Norms over the last dimension. eps 0: 1e-5. */
TDM_API tdm_value tdm_graph_layer_norm(tdm_graph *graph, tdm_value x, tdm_value gamma,
                                       tdm_value beta, double eps);
TDM_API tdm_value tdm_graph_rms_norm(tdm_graph *graph, tdm_value x, tdm_value gamma, double eps);
/* (x - shift) * scale for each column of x [B, N]; shift and scale are [N]. */
TDM_API tdm_value tdm_graph_normalise(tdm_graph *graph, tdm_value x, tdm_value shift,
                                      tdm_value scale);
TDM_API tdm_value tdm_graph_softmax(tdm_graph *graph, tdm_value x); /* over the last dimension */

typedef enum tdm_batch_norm_mode {
    TDM_BATCH_NORM_TRAIN = 0, /* with the statistics of these rows; updates the running ones */
    TDM_BATCH_NORM_FIXED      /* with the running statistics: inference, and frozen layers */
} tdm_batch_norm_mode;

typedef struct tdm_batch_norm_options {
    tdm_batch_norm_mode mode;
    double eps;               /* 0: 1e-5 */
    tdm_value gamma, beta;    /* [C], parameters */
    tdm_value mean, variance; /* [C], FIXED: the statistics to use; not needed by TRAIN */
    /* TRAIN, if not NULL: the statistics of these rows, [C] each, to update the running statistics
     * (tdm_graph_follow, scaled by the lane's share of the rows). This variance is unbiased,
     * although the rows are normalised with the biased one, as is usual. */
    tdm_value *observed_mean, *observed_variance;
    /* TRAIN, if not 0: x contains lane_rows of the batch_rows rows of a batch whose other rows are
     * in other lanes, and all statistics are those of the whole batch: one sum over lanes
     * (tdm_graph_lane_sum) forward, one backward. Lanes' means are squared relative to `mean` (or
     * zero if there is none): the closer it is to the batch's mean, the more accurate, so the
     * running mean is a good choice. */
    int64_t lane_rows, batch_rows;
} tdm_batch_norm_options;

/* x [..., C]: each channel over all other dimensions. In TRAIN each channel must have at least two
 * numbers: in these rows, or, with batch_rows, in the batch. */
TDM_API tdm_value tdm_graph_batch_norm(tdm_graph *graph, tdm_value x,
                                       const tdm_batch_norm_options *options);

/* table [V, C], ids i32 [...] -> [..., C]. Ids must be in [0, V). */
TDM_API tdm_value tdm_graph_embedding(tdm_graph *graph, tdm_value table, tdm_value ids);

/* Index 0 is height, 1 is width; 1-D convolutions have height 1. Zero means: kernel from the
 * weights, stride 1, no padding, dilation 1, groups 1. */
typedef struct tdm_conv_options {
    int stride[2], padding[2], dilation[2];
    int groups;
    tdm_value bias;            /* [O] */
    tdm_activation activation; /* applied to the result; ReLU, tanh and sigmoid are fused into the
                                * node */
} tdm_conv_options;

/* x [B, H, W, C], w [O, KH, KW, C/groups] -> [B, H', W', O]. groups = C is depthwise. */
TDM_API tdm_value tdm_graph_conv2d(tdm_graph *graph, tdm_value x, tdm_value w,
                                   const tdm_conv_options *options);
/* x [B, T, C], w [O, K, C/groups] -> [B, T', O]; uses stride[1], padding[1] and dilation[1]. */
TDM_API tdm_value tdm_graph_conv1d(tdm_graph *graph, tdm_value x, tdm_value w,
                                   const tdm_conv_options *options);

typedef struct tdm_pool_options {
    int kernel[2], stride[2], padding[2]; /* stride 0: equal to the kernel; padding: at most half of
                                           * it */
} tdm_pool_options;

typedef enum tdm_pool {
    TDM_POOL_MAX = 0,
    TDM_POOL_AVERAGE /* padding does not count */
} tdm_pool;
TDM_API tdm_value tdm_graph_pool(tdm_graph *graph, tdm_value x, tdm_pool kind,
                                 const tdm_pool_options *options);
static inline tdm_value tdm_graph_max_pool(tdm_graph *graph, tdm_value x,
                                           const tdm_pool_options *options)
{
    return tdm_graph_pool(graph, x, TDM_POOL_MAX, options);
}
static inline tdm_value tdm_graph_average_pool(tdm_graph *graph, tdm_value x,
                                               const tdm_pool_options *options)
{
    return tdm_graph_pool(graph, x, TDM_POOL_AVERAGE, options);
}
TDM_API tdm_value tdm_graph_global_pool(tdm_graph *graph, tdm_value x); /* [B, H, W, C] -> [B, C] */

typedef struct tdm_attention_options {
    int heads;
    bool causal;
    double dropout;    /* of the attention's weights */
    tdm_value lengths; /* i32 [B]: keys at and past it are masked; none: no mask */
} tdm_attention_options;

/* Scaled dot-product attention of qkv [B, T, 3C] (queries, keys and values concatenated, each
 * `heads` parts of C/heads) -> [B, T, C]. Blocked: there is never a T x T matrix in memory. */
TDM_API tdm_value tdm_graph_attention(tdm_graph *graph, tdm_value qkv,
                                      const tdm_attention_options *options);

/* ---- losses: scalars -------------------------------------------------------------------------- */

typedef struct tdm_cross_entropy_options {
    double scale;           /* the loss is the rows' sum times this; 1/B gives the mean; 0: 1 */
    double label_smoothing; /* this share of the target is spread evenly over all classes */
    bool has_ignore;        /* rows of class `ignore` contribute nothing */
    int32_t ignore;
} tdm_cross_entropy_options;

/* The cross entropy of softmax(logits [..., V]) against classes (i32 [...], each in [0, V)): the
 * sum over the rows times `scale`. */
TDM_API tdm_value tdm_graph_cross_entropy_with(tdm_graph *graph, tdm_value logits,
                                               tdm_value classes,
                                               const tdm_cross_entropy_options *options);
static inline tdm_value tdm_graph_cross_entropy(tdm_graph *graph, tdm_value logits,
                                                tdm_value classes, double scale)
{
    tdm_cross_entropy_options options = {scale, 0, false, 0};
    return tdm_graph_cross_entropy_with(graph, logits, classes, &options);
}

/* The sum of a loss over all elements of x and target, times `scale`. `delta` (> 0) is used by
 * TDM_LOSS_HUBER only. */
TDM_API tdm_value tdm_graph_element_loss(tdm_graph *graph, tdm_element_loss kind, tdm_value x,
                                         tdm_value target, double delta, double scale);
static inline tdm_value tdm_graph_mse(tdm_graph *graph, tdm_value x, tdm_value target, double scale)
{
    return tdm_graph_element_loss(graph, TDM_LOSS_MSE, x, target, 0, scale);
}
static inline tdm_value tdm_graph_l1(tdm_graph *graph, tdm_value x, tdm_value target, double scale)
{
    return tdm_graph_element_loss(graph, TDM_LOSS_L1, x, target, 0, scale);
}
static inline tdm_value tdm_graph_huber(tdm_graph *graph, tdm_value x, tdm_value target,
                                        double delta, double scale)
{
    return tdm_graph_element_loss(graph, TDM_LOSS_HUBER, x, target, delta, scale);
}
static inline tdm_value tdm_graph_bce_logits(tdm_graph *graph, tdm_value x, tdm_value target,
                                             double scale)
{
    return tdm_graph_element_loss(graph, TDM_LOSS_BCE_LOGITS, x, target, 0, scale);
}
static inline tdm_value tdm_graph_kl(tdm_graph *graph, tdm_value x, tdm_value target, double scale)
{
    return tdm_graph_element_loss(graph, TDM_LOSS_KL, x, target, 0, scale);
}
/* scale * sum |w| for power 1, scale * sum w^2 for power 2; to be added to a loss. */
TDM_API tdm_value tdm_graph_penalty(tdm_graph *graph, tdm_value w, int power, double scale);

/* ---- custom ops ------------------------------------------------------------------------------- */

enum { TDM_CUSTOM_MAX_INPUTS = 6 };

/*
 * A custom op, in f32: one output. `run` follows the rules of all kernels: it allocates nothing and
 * returns the same bits for the same inputs. The struct must outlive the graph.
 */
typedef struct tdm_custom_op {
    const char *name;
    int in_count;
    tdm_status (*infer)(const tdm_shape in[], const void *attrs, tdm_shape *out, tdm_error *err);
    void (*run)(const tdm_tensor in[], const void *attrs, tdm_tensor out);
    /* Builds the gradient from ops: given d_out, sets d_in[i] for the inputs that need one (others
     * may stay none). NULL: not differentiable. */
    void (*backward)(tdm_graph *graph, const tdm_value in[], tdm_value out, tdm_value d_out,
                     const void *attrs, tdm_value d_in[]);
    uint64_t (*flops)(const tdm_shape in[],
                      const void *attrs); /* NULL: 1 for each output element */
} tdm_custom_op;

/* `attrs` (may be NULL) is borrowed and must outlive the graph's plans: memory of tdm_graph_memory
 * does. */
TDM_API tdm_value tdm_graph_custom(tdm_graph *graph, const tdm_custom_op *op, const tdm_value in[],
                                   const void *attrs);

/* Zeroed memory that lives as long as the graph. NULL, with an error stored, if memory runs out or
 * the graph already has an error. */
TDM_API void *tdm_graph_memory(tdm_graph *graph, size_t bytes);
/* Calls release(what) when the graph is destroyed, for objects that its ops need, in reverse order.
 * On failure it is released immediately: `what` is taken in either case. */
TDM_API tdm_status tdm_graph_keep(tdm_graph *graph, void (*release)(void *what), void *what,
                                  tdm_error *err);

TDM_API tdm_shape tdm_graph_shape(const tdm_graph *graph, tdm_value value);
/* TDM_DTYPE_NONE for "none". */
TDM_API tdm_dtype tdm_graph_dtype(const tdm_graph *graph, tdm_value value);

/* Adds the gradient of the scalar `loss` with respect to every parameter. Once per graph. */
TDM_API tdm_status tdm_graph_backward(tdm_graph *graph, tdm_value loss, tdm_error *err);

/*
 * Trades arithmetic for memory. Before tdm_graph_backward, a model marks where its blocks begin;
 * afterwards, tdm_graph_recompute makes the backward pass compute activations again instead of
 * keeping them. The results are the same, bit for bit.
 */
typedef enum tdm_recompute {
    TDM_RECOMPUTE_NONE = 0, /* all activations that the backward pass needs are kept */
    TDM_RECOMPUTE_BLOCKS,   /* only values passed from one block to another are kept */
    /* Uses the variant that keeps least: cuts at the marks, or wherever a single value passes;
     * optionally a second level, groups of several segments, for which only values passed between
     * groups are kept. Up to two additional forward passes. Of variants within 5 % of the minimum,
     * the cheapest. */
    TDM_RECOMPUTE_FULL
} tdm_recompute;

/* Starts a new block with the next op. */
TDM_API void tdm_graph_block(tdm_graph *graph);
/* Once per graph, after tdm_graph_backward. The last block is never recomputed. */
TDM_API tdm_status tdm_graph_recompute(tdm_graph *graph, tdm_recompute what, tdm_error *err);

/* ---- inspecting a graph ----------------------------------------------------------------------- */

/* A parameter, statistic or buffer. Offsets are in elements of the block of f32 that contains them
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
/* Elements of the block of parameters. */
typedef struct tdm_graph_extents {
    size_t trained;            /* of the trained part, including gaps */
    size_t grads;              /* of that and the statistics: the size of a block of gradients */
    size_t params;             /* of all of it */
    uint64_t trained_elements; /* the number of trained parameters, without gaps */
} tdm_graph_extents;
TDM_API tdm_graph_extents tdm_graph_extents_of(const tdm_graph *graph);
static inline size_t tdm_graph_trained_extent(const tdm_graph *graph)
{
    return tdm_graph_extents_of(graph).trained;
}
static inline size_t tdm_graph_grad_extent(const tdm_graph *graph)
{
    return tdm_graph_extents_of(graph).grads;
}
static inline size_t tdm_graph_param_extent(const tdm_graph *graph)
{
    return tdm_graph_extents_of(graph).params;
}
static inline uint64_t tdm_graph_trained_elements(const tdm_graph *graph)
{
    return tdm_graph_extents_of(graph).trained_elements;
}

typedef struct tdm_node_info {
    const char *op;   /* "matmul" */
    const char *name; /* "fc1.matmul" */
    bool backward;
    bool recomputed; /* a forward op that the backward pass runs again */
    tdm_shape shape; /* of the first output */
    tdm_dtype dtype;
    bool of_inputs; /* depends on an input; if not, only on parameters */
    uint64_t flops;
    uint64_t bytes; /* of its inputs and outputs, each counted once */
} tdm_node_info;

TDM_API size_t tdm_graph_node_count(const tdm_graph *graph);
TDM_API tdm_node_info tdm_graph_node_at(const tdm_graph *graph, size_t index);

/* ---- plans ------------------------------------------------------------------------------------ */

typedef struct tdm_plan tdm_plan;

/* The kernels a plan may use. PORTABLE: those whose bits are a function of their inputs only.
 * VENDOR: also those of a library whose bits depend on CPU, version and threads. */
typedef enum tdm_numerics { TDM_NUMERICS_PORTABLE = 0, TDM_NUMERICS_VENDOR } tdm_numerics;

typedef struct tdm_plan_options {
    const char *backend;   /* NULL: the best kernel for each op; "ref": plain loops only */
    tdm_numerics numerics; /* ignored if `backend` is set */
    int threads;           /* number of threads that a kernel may use; 0: 1 */
    bool forward_only;     /* omit everything that only the gradients need */
} tdm_plan_options;

/* The blocks of memory that a plan uses. */
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
/* The required size of the arena in bytes. Plans of one thread may share one arena of the largest
 * size. */
TDM_API size_t tdm_plan_arena_bytes(const tdm_plan *plan);
/* Sets the base address of a space, 64-byte aligned. May be called again between runs; costs a few
 * stores per tensor and allocates nothing. All three spaces must be bound before a run (GRADS only
 * after tdm_graph_backward). */
TDM_API void tdm_plan_bind(tdm_plan *plan, tdm_space space, void *base);
/* Views into the arena, to be filled before and read after a run. dtype NONE: no such name. The
 * pointers change when the arena is bound again. A run may overwrite its inputs. */
TDM_API tdm_tensor tdm_plan_input(const tdm_plan *plan, const char *name);
TDM_API tdm_tensor tdm_plan_output(const tdm_plan *plan, const char *name);
TDM_API void tdm_plan_run(tdm_plan *plan, const tdm_step_key *key);

typedef struct tdm_plan_node_info {
    size_t node; /* index in the graph */
    const char
        *backend;  /* the kernel's backend; "view" if nothing runs, "fused" if it runs as part of
                    * the preceding node */
    bool in_place; /* its output overwrites an input */
    size_t arena_offset; /* of its first output; SIZE_MAX if that is in another space */
    size_t bytes;        /* of its first output */
} tdm_plan_node_info;

TDM_API size_t tdm_plan_node_count(const tdm_plan *plan);
TDM_API tdm_plan_node_info tdm_plan_node_at(const tdm_plan *plan, size_t index);

#ifdef __cplusplus
}
#endif
#endif
