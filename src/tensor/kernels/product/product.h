/*
 * product.h: matrix products in f32 with a defined order of operations.
 *
 * Every number of a result is computed in the same way, independent of the instruction-set level,
 * the tile, the cache, the number of threads, and the number of other rows or columns:
 *
 *   1. K is divided into segments: tdm__product_segments(K) of them, number s from K s / count on.
 *   2. Within a segment, one chain of fused multiply-adds over k in increasing order, from +0.
 *   3. The sums of the segments are added in order: ((s0 + s1) + s2) + ...
 *   4. The bias is added, then the activation is applied.
 *
 * Segments keep rounding errors of long sums small, and are the unit that stays in the cache. The
 * rules are part of every trained result: a change raises TDM_NUMERICS_VERSION.
 *
 * The code is compiled once for each level (vec/product.c). Operands are read through a function
 * that finds lines of contiguous numbers, so that a convolution is a product of windows that are
 * never stored as a matrix.
 */
#ifndef TANDEM_TENSOR_KERNELS_PRODUCT_PRODUCT_H
#define TANDEM_TENSOR_KERNELS_PRODUCT_PRODUCT_H

#include "tensor/kernels/backends.h"

enum { TDM__PRODUCT_SEGMENT = 384 }; /* the largest length of a segment of k */

static inline int64_t tdm__product_segments(int64_t K)
{
    return (K + TDM__PRODUCT_SEGMENT - 1) / TDM__PRODUCT_SEGMENT;
}

static inline int64_t tdm__product_segment_begin(int64_t K, int64_t count, int64_t index)
{
    return K * index / count;
}

/*
 * One factor, viewed as [outer, k], where outer is M for the left factor and N for the right one.
 * It consists of lines that are contiguous in memory. If `along_k`, a line is one index of outer
 * and runs along k; otherwise a line is one k and runs along outer. A line may consist of several
 * contiguous pieces of `piece_length` numbers (the last may be shorter).
 *
 * `lines` stores the addresses of piece `piece` of lines [first, first + count); NULL if all
 * numbers of that piece are zero.
 */
typedef struct tdm__factor {
    void (*lines)(const void *source, int64_t first, int64_t count, int64_t piece,
                  const float **out);
    const void *source;
    int64_t piece_length;
    bool along_k;
    int64_t
        stride; /* if lines have one piece each: distance of consecutive lines; 0: not constant */
} tdm__factor;

/* A matrix in memory: lines `stride` numbers apart. */
typedef struct tdm__matrix {
    const float *data;
    int64_t stride;
} tdm__matrix;

/* A factor that is such a matrix; `matrix` is borrowed. `length` is the length of a line. */
tdm__factor tdm__factor_of(const tdm__matrix *matrix, int64_t length, bool along_k);

/* c = act(a b^T + bias), where a is [M, K] and b is [N, K]. */
typedef struct tdm__product {
    int64_t M, N, K;
    tdm__factor a, b;
    float *c; /* rows are c_stride apart, or found by c_lines if that is not NULL */
    int64_t c_stride;
    void (*c_lines)(const void *source, int64_t first, int64_t count, float **out);
    const void *c_source;
    const float *bias; /* NULL: none */
    tdm_activation activation;
} tdm__product;

typedef struct tdm__vec_product {
    /* Bytes of scratch for a product of these sizes on the threads that kernels may use here. */
    size_t (*scratch_bytes)(int64_t M, int64_t N, int64_t K);
    void (*run)(const tdm__product *product, void *scratch);
} tdm__vec_product;

extern const tdm__vec_product tdm__vec_product_0, tdm__vec_product_2, tdm__vec_product_3,
    tdm__vec_product_4;
const tdm__vec_product *tdm__product_here(void); /* at the level in use */

extern const tdm_kernel_family tdm__product_matmul, tdm__product_conv;

#endif
