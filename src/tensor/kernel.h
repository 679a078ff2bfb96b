/*
 * kernel.h: the interface of all compute kernels.
 *
 * A kernel is one row: the op it computes, the type, and its priority. A backend is a directory
 * that exports one tdm_kernel_backend_ops; registry.c lists the backends, best first. The graph
 * module selects a row once, at plan time, then calls prepare() once and run() in every step.
 *
 * Invariants: run() allocates nothing, takes no lock, checks no shape, and writes only its outputs
 * and its scratch. Every reduction inside run() has a fixed order, so that the same inputs give the
 * same bits. `ref` has a row for every op; every other row is tested against it.
 */
#ifndef TANDEM_TENSOR_KERNEL_H
#define TANDEM_TENSOR_KERNEL_H

#include "base/base.h"

#include <tandem/tensor.h>

/*
 * Ops. B rows of a batch, T time, C channels, H heads, V classes, N/M/K of a matrix product; images
 * are [B, H, W, C], sequences [B, T, C]. "[..., C]" is any number of leading dimensions. An op whose
 * name ends in _GRAD exists only in backward passes.
 */
typedef enum tdm_op_kind {
    TDM_OP_NONE = 0,
    TDM_OP_MATMUL,    /* a, b, [bias N] -> act(op(a) op(b) + bias); both rank 2, or both rank 3 with
                      equal first sizes (batched); trans_a, trans_b; a and b f32, or both bf16 */
    TDM_OP_ADD,       /* a, b -> a + b; b's shape is a's, or a suffix of it (broadcast) */
    TDM_OP_MUL,       /* a, b -> a b; likewise */
    TDM_OP_SCALE,     /* x -> x * scale */
    TDM_OP_COPY,      /* x -> x */
    TDM_OP_FILL,      /* all elements are `scale`, in `shape` */
    TDM_OP_RESHAPE,   /* x -> the same numbers in another shape: a view, never run */
    TDM_OP_TRANSPOSE, /* x -> dimensions in the order perm[] */
    TDM_OP_CONCAT,    /* up to 6 x -> joined along `axis` */
    TDM_OP_SLICE,     /* x -> x[begin, end) along `axis` */
    TDM_OP_SLICE_GRAD,     /* dy -> zeros in `shape`, with dy at [begin, end) along `axis` */
    TDM_OP_SUM_ROWS,       /* x [B, N] -> [N] */
    TDM_OP_REDUCE,         /* x -> sum over `axis` times scale (axis -1: over all, to a scalar) */
    TDM_OP_REDUCE_GRAD,    /* dy -> dy broadcast over `axis` of `shape`, times scale */
    TDM_OP_RELU,           /* x -> y; and gradients: dy, y -> dx or dy, x -> dx as noted */
    TDM_OP_RELU_GRAD,      /* dy, y, which may be bf16: rounding preserves what is 0 and what is
                            * not */
    TDM_OP_GELU,           /* with erf */
    TDM_OP_GELU_GRAD,      /* dy, x */
    TDM_OP_GELU_TANH,      /* with the tanh approximation of GPT-2 */
    TDM_OP_GELU_TANH_GRAD, /* dy, x */
    TDM_OP_SILU,
    TDM_OP_SILU_GRAD, /* dy, x */
    TDM_OP_TANH,
    TDM_OP_TANH_GRAD, /* dy, y */
    TDM_OP_SIGMOID,
    TDM_OP_SIGMOID_GRAD,           /* dy, y */
    TDM_OP_DROPOUT,                /* x [B, ...] -> x m / (1 - p); its own gradient */
    TDM_OP_NORMALISE,              /* x [B, N], shift [N], scale [N] -> (x - shift) scale */
    TDM_OP_SOFTMAX,                /* x [..., V] -> [..., V] over the last dimension */
    TDM_OP_SOFTMAX_GRAD,           /* dy, y -> dx */
    TDM_OP_LAYER_NORM,             /* x [..., C], gamma [C], beta [C] -> y, stats [rows, 2] (mean,
                                    * 1/deviation) */
    TDM_OP_LAYER_NORM_GRAD,        /* dy, x, gamma, stats -> dx */
    TDM_OP_LAYER_NORM_GRAD_PARAMS, /* dy, x, stats -> d_gamma [C], d_beta [C] */
    TDM_OP_RMS_NORM,               /* x [..., C], gamma [C] -> y, stats [rows] (1/rms) */
    TDM_OP_RMS_NORM_GRAD,          /* dy, x, gamma, stats -> dx */
    TDM_OP_RMS_NORM_GRAD_PARAMS,   /* dy, x, stats -> d_gamma [C] */
    TDM_OP_BATCH_NORM,      /* x [..., C], gamma, beta -> y, stats [2, C] (mean, biased variance) */
    TDM_OP_BATCH_NORM_GRAD, /* dy, x, gamma, stats, d_gamma, d_beta -> dx */
    TDM_OP_BATCH_NORM_GRAD_PARAMS, /* dy, x, stats -> d_gamma [C], d_beta [C] */
    TDM_OP_BATCH_NORM_FIXED, /* x, gamma, beta, mean [C], variance [C] -> y, with given statistics */
    TDM_OP_BATCH_NORM_FIXED_GRAD,        /* dy, gamma, variance -> dx */
    TDM_OP_BATCH_NORM_FIXED_GRAD_PARAMS, /* dy, x, mean, variance -> d_gamma [C], d_beta [C] */
    TDM_OP_EMBEDDING,                    /* table [V, C], ids i32 [...] -> [..., C] */
    TDM_OP_EMBEDDING_GRAD, /* dy [..., C], ids i32 [...], [base] -> [V, C], added to base where there
                              is one; V is attrs.shape.dim[0] */
    TDM_OP_CONV,           /* x [B, H, W, C], w [O, KH, KW, C/groups], [bias O] -> [B, H', W', O] */
    TDM_OP_CONV_GRAD_X,    /* dy, w -> dx of `shape` */
    TDM_OP_CONV_GRAD_W,    /* dy, x -> dw of `shape` */
    TDM_OP_MAX_POOL,       /* x [B, H, W, C] -> y, index i32 (of the winner in its window) */
    TDM_OP_MAX_POOL_GRAD,  /* dy, index -> dx of `shape` */
    TDM_OP_AVERAGE_POOL,   /* x -> y; padding does not count */
    TDM_OP_AVERAGE_POOL_GRAD, /* dy -> dx of `shape` */
    TDM_OP_ATTENTION,      /* qkv [B, T, 3C], [lengths i32 [B]] -> y [B, T, C], lse [B, heads, T] */
    TDM_OP_ATTENTION_GRAD, /* dy, qkv, y, lse, [lengths] -> d_qkv */
    TDM_OP_CROSS_ENTROPY, /* logits [..., V], classes i32 [...] -> loss [], probabilities [..., V] */
    TDM_OP_CROSS_ENTROPY_GRAD, /* probabilities, classes, d_loss [] -> d_logits */
    TDM_OP_LOSS,         /* x, target -> loss []: `loss` selects one of the element-wise ones */
    TDM_OP_LOSS_GRAD,    /* x, target, d_loss [] -> dx */
    TDM_OP_PENALTY,      /* w -> scale * sum |w| (power 1) or scale * sum w^2 (power 2), a scalar */
    TDM_OP_PENALTY_GRAD, /* w, d [] -> dw */
    TDM_OP_BATCH_NORM_SHARE, /* x [..., C], about [C] -> [3, C]: these rows' share of the sums over
                              * a batch: of x - about, of (their mean - about)^2 for each number, of
                              * (x - their mean)^2; times scale, 1 / numbers of a channel in the
                              * batch */
    TDM_OP_BATCH_NORM_JOIN,  /* these sums over all lanes, about -> stats [2, C] of the batch */
    TDM_OP_BATCH_NORM_GIVEN, /* x, gamma, beta, stats [2, C] -> y; these rows are `scale` of them */
    TDM_OP_LANE_SUM, /* x -> x, to which the caller of the plan adds that of the other lanes */
    TDM_OP_CAST,     /* x f32 -> the same, rounded to bf16 (tdm__bf16_of in kernels/backends.h) */
    TDM_OP_CUSTOM,   /* defined by the node's tdm_custom_op */
    TDM_OP_COUNT
} tdm_op_kind;

/* Attributes of an op. Fields that an op does not use are zero. */
typedef struct tdm_op_attrs {
    bool trans_a, trans_b; /* MATMUL */
    int activation;        /* MATMUL, CONV: a tdm_activation, applied to the result */
    double scale;          /* losses: the sum times this; FILL: the value; SCALE, REDUCE, PENALTY */
    float p;               /* DROPOUT, ATTENTION: the probability of dropping */
    uint32_t sub_stream;   /* DROPOUT, ATTENTION: index among those of the graph */
    tdm_shape shape;       /* RESHAPE, FILL, gradients of ops that shrink: the other shape */
    int axis;              /* CONCAT, SLICE, REDUCE */
    int64_t begin, end;    /* SLICE */
    int perm[TDM_MAX_DIMS]; /* TRANSPOSE */
    float eps;              /* norms */
    int heads;              /* ATTENTION */
    bool causal;            /* ATTENTION */
    float label_smoothing;  /* CROSS_ENTROPY */
    bool has_ignore;        /* CROSS_ENTROPY: rows of class `ignore` do not count */
    int64_t ignore;
    int loss;    /* LOSS: a tdm_element_loss */
    float delta; /* HUBER */
    int power;   /* PENALTY: 1 or 2 */
    struct {     /* CONV and pools; index 0 is height, 1 is width */
        int kernel[2], stride[2], pad_before[2], pad_after[2], dilation[2];
        int groups;
    } window;
    /* CUSTOM: the op (a tdm_custom_op, defined in the graph module), its own attributes, its
     * kernel. */
    const void *custom;
    const void *custom_attrs;
    void (*custom_run)(const tdm_tensor in[], const void *attrs, tdm_tensor out);
} tdm_op_attrs;

enum { TDM_OP_MAX_INPUTS = 6, TDM_OP_MAX_OUTPUTS = 2 };

typedef struct tdm_kernel_call {
    tdm_tensor in[TDM_OP_MAX_INPUTS]; /* dtype NONE for missing ones */
    tdm_tensor out[TDM_OP_MAX_OUTPUTS];
    tdm_op_attrs attrs;
    size_t scratch_bytes; /* prepare() may set it; the plan then provides `scratch` */
    void *scratch;
    void *prepared; /* prepare() may set it; release() frees it */
} tdm_kernel_call;

typedef struct tdm_kernel {
    tdm_op_kind op;
    tdm_dtype dtype; /* of the first output */
    /* Optional. Data pointers are not known yet. TDM_ERR_UNSUPPORTED: try the next backend. */
    tdm_status (*prepare)(void *backend, tdm_kernel_call *call, tdm_error *err);
    void (*run)(void *backend, const tdm_kernel_call *call, const tdm_step_key *key);
    void (*release)(tdm_kernel_call *call); /* optional */
} tdm_kernel;

/* The rows of one file of a backend. */
typedef struct tdm_kernel_family {
    const tdm_kernel *kernels;
    size_t count;
} tdm_kernel_family;

typedef struct tdm_kernel_backend_ops {
    const char *name;
    int level;   /* level of x86-64 (2, 3, 4) that its code needs; 0: any CPU */
    bool vendor; /* its bits depend on CPU, library version or threads: not for portable plans */
    /* Optional: state that all kernels of one plan share (an engine, a stream). Used by one
     * thread. */
    tdm_status (*open)(void **out, tdm_error *err);
    void (*close)(void *backend);
    const tdm_kernel_family *const *families; /* NULL-terminated */
} tdm_kernel_backend_ops;

/* The level of x86-64 (2, 3, 4) whose instructions the kernels use; 0 on other CPUs. It is the
 * CPU's level, or the lower one set by the environment variable TANDEM_ISA (v2, v3, v4) at the
 * first call. */
int tdm_kernel_level(void);
/* The highest level that this CPU and its operating system support. */
int tdm_kernel_cpu_level(void);
/* Backends for this CPU, best first; `ref` is the last and has every op. */
size_t tdm_kernel_backend_count(void);
const tdm_kernel_backend_ops *tdm_kernel_backend_at(size_t index);
/* The row for (op, dtype); NULL if this backend has none. */
const tdm_kernel *tdm_kernel_find(const tdm_kernel_backend_ops *backend, tdm_op_kind op,
                                  tdm_dtype dtype);

/* A number is in the safe range if its magnitude is below this: then it is neither NaN nor
 * infinite, and the sum of up to 65,536 such numbers over a tree stays below 2^63, so that its
 * square is finite as well. */
#define TDM_KERNEL_SAFE_RANGE 0x1p47f

/* a[i] += b[i], at memory speed; the two do not overlap. The bits do not depend on the level: one
 * addition, one rounding. True if all sums are in the safe range. One thread. */
bool tdm_kernel_add_into(float *a, const float *b, size_t count);
/* Whether all numbers are in the safe range; reads them once, at memory speed. One thread. */
bool tdm_kernel_in_safe_range(const float *a, size_t count);

/* Random numbers of one sequence, the same at every level: uniform in [-scale, scale), or normal
 * with mean 0 and standard deviation `scale` (defined in src/tensor/kernels/cpu/vec/random.c).
 * Starts at number `first`, a multiple of the block. */
enum { TDM_KERNEL_RANDOM_BLOCK = 32 };
void tdm_kernel_uniform(tdm_rng_address address, double scale, size_t first, float *out,
                        size_t count);
void tdm_kernel_normal(tdm_rng_address address, double scale, size_t first, float *out,
                       size_t count);

/* Calls `run` for ranges that together cover [0, count), on as many threads as kernels may use
 * here; a unit costs as much as `unit_cost` numbers. */
typedef void (*tdm_kernel_range_fn)(const void *args, int64_t begin, int64_t end);
void tdm_kernel_spread(int64_t count, int64_t unit_cost, tdm_kernel_range_fn run, const void *args);

/* The index of the calling thread among them, from 0: for scratch memory. */
int tdm_kernel_thread(void);

/*
 * The mode of kernels that are called from this thread between enter and leave: the number of
 * threads, and f32 subnormal numbers (below 1.2e-38) are treated as zero, as inputs and as results.
 * CPUs are a hundred times slower with them, and decaying momenta pass through that range.
 */
typedef struct tdm_kernel_mode {
    int thread_count;
    bool is_vendor;
    uint64_t control; /* of the floating-point unit */
} tdm_kernel_mode;
tdm_kernel_mode tdm_kernel_enter(int thread_count); /* returns the previous mode */
/* The same, and a vendor's kernels use as many threads; after tdm_kernel_enter they use one. */
tdm_kernel_mode tdm_kernel_enter_vendor(int thread_count);
void tdm_kernel_leave(const tdm_kernel_mode *before);
/* Only the second part: for functions that may be called in any mode. Returns the previous control word, for
 * tdm_kernel_flush_leave. */
uint64_t tdm_kernel_flush_enter(void);
void tdm_kernel_flush_leave(uint64_t control);

/* Sets the number of threads that kernels called from this thread may use. Returns the previous
 * one. */
int tdm_kernel_threads_set(int thread_count);
/* Sets whether this host has more compute threads than CPUs: then threads of this process that wait
 * for each other sleep immediately instead of spinning first. Default: false. */
void tdm_kernel_crowded_set(bool is_crowded);

#endif
