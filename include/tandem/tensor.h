/*
 * tensor.h: types, shapes and views of numbers in memory.
 *
 * A tdm_tensor is a view: dtype, shape and a pointer into memory that it does not own. Elements are
 * contiguous in row-major order. Views are small and passed by value.
 */
#ifndef TANDEM_TENSOR_H
#define TANDEM_TENSOR_H

#include <tandem/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tdm_dtype {
    TDM_DTYPE_NONE = 0,
    TDM_DTYPE_F32,
    TDM_DTYPE_F64,
    TDM_DTYPE_F16,
    TDM_DTYPE_BF16,
    TDM_DTYPE_I8,
    TDM_DTYPE_I16,
    TDM_DTYPE_I32,
    TDM_DTYPE_I64,
    TDM_DTYPE_U8,
    TDM_DTYPE_U16,
    TDM_DTYPE_U32,
    TDM_DTYPE_U64,
    TDM_DTYPE_BOOL,
    TDM_DTYPE_COUNT
} tdm_dtype;

TDM_API size_t tdm_dtype_bytes(tdm_dtype dtype);     /* 0 for NONE and unknown values */
TDM_API const char *tdm_dtype_name(tdm_dtype dtype); /* "f32"; "none" if unknown */

#define TDM_MAX_DIMS 8

typedef struct tdm_shape {
    int rank; /* 0: a scalar */
    int64_t dim[TDM_MAX_DIMS];
} tdm_shape;

/* Shapes of 0 (a scalar) to 4 dimensions. */
static inline tdm_shape tdm_shape_4(int64_t a, int64_t b, int64_t c, int64_t d)
{
    tdm_shape shape = {4, {a, b, c, d}};
    return shape;
}
static inline tdm_shape tdm_shape_3(int64_t a, int64_t b, int64_t c)
{
    tdm_shape shape = {3, {a, b, c}};
    return shape;
}
static inline tdm_shape tdm_shape_2(int64_t a, int64_t b)
{
    tdm_shape shape = {2, {a, b}};
    return shape;
}
static inline tdm_shape tdm_shape_1(int64_t a)
{
    tdm_shape shape = {1, {a}};
    return shape;
}
static inline tdm_shape tdm_shape_0(void)
{
    tdm_shape shape = {0, {0}};
    return shape;
}
TDM_API bool tdm_shape_equal(const tdm_shape *a, const tdm_shape *b);
/* The number of elements; -1 if a dimension is negative or the product overflows. */
TDM_API int64_t tdm_shape_elements(const tdm_shape *shape);
/* "[64, 784]"; returns `buffer`. */
TDM_API const char *tdm_shape_text(const tdm_shape *shape, char buffer[128]);

typedef struct tdm_tensor {
    tdm_dtype dtype;
    tdm_shape shape;
    void *data;
} tdm_tensor;

static inline int64_t tdm_tensor_elements(const tdm_tensor *tensor)
{
    return tdm_shape_elements(&tensor->shape);
}
TDM_API size_t tdm_tensor_bytes(const tdm_tensor *tensor); /* 0 if the shape is invalid */

/*
 * Converts numbers of any floating type to f32. Returns false if `from` is not a floating type. F16
 * and BF16 convert exactly; F64 rounds to nearest.
 */
TDM_API bool tdm_tensor_to_f32(tdm_dtype from, const void *source, int64_t count, float *out);

/* Element-wise functions, used alone or fused into the preceding matmul or convolution. */
typedef enum tdm_activation {
    TDM_ACTIVATION_NONE = 0,
    TDM_ACTIVATION_RELU,
    TDM_ACTIVATION_GELU,      /* with erf */
    TDM_ACTIVATION_GELU_TANH, /* the tanh approximation that GPT-2 uses */
    TDM_ACTIVATION_SILU,
    TDM_ACTIVATION_TANH,
    TDM_ACTIVATION_SIGMOID
} tdm_activation;

/* Losses that are a sum over the elements of a value x and its target. */
typedef enum tdm_element_loss {
    TDM_LOSS_MSE = 0, /* (x - target)^2 */
    TDM_LOSS_L1,
    TDM_LOSS_HUBER, /* quadratic below delta, linear above */
    TDM_LOSS_BCE_LOGITS,
    TDM_LOSS_KL /* x: log-probabilities, target: probabilities */
} tdm_element_loss;

/*
 * The position of a step in a run. Random numbers inside a step (dropout) are a function of this
 * and of the row within the global batch, never of the rank that computes it.
 */
typedef struct tdm_step_key {
    uint64_t seed;
    uint64_t step;
    uint64_t first_row; /* index in the global batch of row 0 of this call's batch */
} tdm_step_key;

/*
 * The version of the bits that kernels compute. Raise it with every change after which some job
 * gives different bits: another order of operations in a kernel, optimiser or reduction, another
 * approximation of a function, another way to draw random numbers, another choice of kernel for an
 * op. Do not raise it for a change of speed or memory use only. tests/golden detects changed bits.
 * Checkpoints contain the version; resuming with a different one logs a warning. Files without a
 * version count as version 0.
 */
enum { TDM_NUMERICS_VERSION = 1, TDM_NUMERICS_BYTES = 96 };
#ifdef __cplusplus
}
#endif
#endif
