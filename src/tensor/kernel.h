/*
 * kernel.h: the one table behind which all computing stands.
 *
 * A kernel is one row: what it computes (op), on which type, with what preference. A backend is a
 * folder that exports one tdm_kernel_backend_ops; registry.c lists the backends, best first. The
 * graph room chooses a row once, at plan time, then calls prepare() once and run() in every step.
 *
 * Invariants: run() allocates nothing, takes no lock, checks no shape, and writes only its outputs
 * and its scratch. Every reduction inside run() has a fixed order, so that the same inputs give the
 * same bits. `ref` has a row for every op; every other row is tested against it.
 */
#ifndef TANDEM_TENSOR_KERNEL_H
#define TANDEM_TENSOR_KERNEL_H

#include <tandem/tensor.h>

/* Ops. B rows of a batch, N/M/K of a matrix product, V classes. */
typedef enum tdm_op_kind {
    TDM_OP_NONE = 0,
    TDM_OP_MATMUL,    /* a, b, [bias N] -> op(a) op(b) + bias; trans_a, trans_b */
    TDM_OP_ADD,       /* a, b -> a + b, equal shapes */
    TDM_OP_COPY,      /* x -> x */
    TDM_OP_RESHAPE,   /* x -> the same numbers in another shape: a view, never run */
    TDM_OP_SUM_ROWS,  /* x [B, N] -> [N] */
    TDM_OP_RELU,      /* x -> max(x, 0) */
    TDM_OP_RELU_GRAD, /* dy, y -> dx */
    TDM_OP_GELU,      /* x -> x Phi(x), by erf */
    TDM_OP_GELU_GRAD, /* dy, x -> dx */
    TDM_OP_TANH,
    TDM_OP_TANH_GRAD, /* dy, y -> dx */
    TDM_OP_SIGMOID,
    TDM_OP_SIGMOID_GRAD,       /* dy, y -> dx */
    TDM_OP_DROPOUT,            /* x [B, ...] -> x m / (1 - p); its own gradient */
    TDM_OP_NORMALISE,          /* x [B, N], shift [N], scale [N] -> (x - shift) scale */
    TDM_OP_SOFTMAX,            /* x [B, V] -> [B, V] */
    TDM_OP_SOFTMAX_GRAD,       /* dy, y -> dx */
    TDM_OP_CROSS_ENTROPY,      /* logits [B, V], classes i32 [B] -> loss [], probabilities [B, V] */
    TDM_OP_CROSS_ENTROPY_GRAD, /* probabilities, classes, d_loss [] -> d_logits */
    TDM_OP_FILL,               /* -> all elements `scale` */
    TDM_OP_COUNT
} tdm_op_kind;

/* What an op needs to know beside its inputs. Zero where an op has no use for a field. */
typedef struct tdm_op_attrs {
    bool trans_a, trans_b; /* MATMUL */
    double scale;        /* CROSS_ENTROPY: the loss is the rows' sum times this; FILL: the value */
    float p;             /* DROPOUT: the probability of dropping */
    uint32_t sub_stream; /* DROPOUT: which one of the graph's */
    tdm_shape shape;     /* RESHAPE, FILL */
} tdm_op_attrs;

enum { TDM_OP_MAX_INPUTS = 4, TDM_OP_MAX_OUTPUTS = 2 };

typedef struct tdm_kernel_call {
    tdm_tensor in[TDM_OP_MAX_INPUTS]; /* dtype NONE where there is none */
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

typedef struct tdm_kernel_backend_ops {
    const char *name;
    /* Optional: what all kernels of one plan share (an engine, a stream). Used by one thread. */
    tdm_status (*open)(void **out, tdm_error *err);
    void (*close)(void *backend);
    const tdm_kernel *kernels;
    size_t kernel_count;
} tdm_kernel_backend_ops;

/* Backends, best first; `ref` is the last and has every op. */
size_t tdm_kernel_backend_count(void);
const tdm_kernel_backend_ops *tdm_kernel_backend_at(size_t index);
/* The row for (op, dtype); NULL when this backend has none. */
const tdm_kernel *tdm_kernel_find(const tdm_kernel_backend_ops *backend, tdm_op_kind op,
                                  tdm_dtype dtype);

/* The number of threads that kernels called from this thread may use. Returns the one before. */
int tdm_kernel_threads_set(int thread_count);

#endif
