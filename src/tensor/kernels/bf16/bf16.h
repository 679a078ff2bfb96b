/*
 * bf16.h: matrix products of bf16 with one order of operations on every CPU.
 *
 * The order is that of Intel's instruction TDPBF16PS. Every number of a result is computed from +0:
 *
 *   1. k is divided into steps of STEP = 32 numbers. If K is not a multiple of STEP, the missing numbers
 *      count as +0 in both factors.
 *   2. Within a step, two chains of fused multiply-adds in f32, each from +0: one over the numbers of
 *      even k, one over those of odd k, both in increasing k.
 *   3. The sum of a step is (even chain) + (odd chain). It is added to the result so far.
 *   4. The bias is added, then the activation is applied.
 *
 * Everything rounds to nearest, ties to even. Subnormal f32 numbers (below 2^-126) count as zero of
 * their sign, in the factors and in every intermediate result; whether a result is subnormal is
 * decided after it is rounded to 24 bits, as on x86-64. Which NaN results is not defined.
 *
 * Two units compute it: AMX tiles (amx.c) if the CPU has them, and vector code compiled for every
 * level (vec/tiles.c). The bits depend neither on the unit, nor on how a product is divided into
 * blocks, nor on threads. They are part of every trained result: a change of the order raises the
 * numerics version.
 */
#ifndef TANDEM_TENSOR_KERNELS_BF16_BF16_H
#define TANDEM_TENSOR_KERNELS_BF16_BF16_H

#include "tensor/kernels/backends.h"

/* A block of a result is BLOCK x BLOCK numbers; a step is STEP numbers of k. */
enum {
    TDM__BF16_BLOCK = 32,
    TDM__BF16_STEP = 32,
    TDM__BF16_PAIRS = 512,             /* of BLOCK columns and a step */
    TDM__BF16_WIDE_STEP = 32 * 32 + 16 /* floats of a widened step of BLOCK rows: see `widen` */
};

/*
 * A matrix that may exist only as a view of other data. `read` copies columns [col, col + cols) of
 * rows [row, row + rows) to `to`, whose rows are `stride` numbers apart.
 */
typedef struct tdm__bf16_matrix {
    void (*read)(const void *source, int64_t row, int64_t rows, int64_t col, int64_t cols,
                 uint16_t *to, int64_t stride);
    const void *source;
} tdm__bf16_matrix;

/* Numbers in memory, rows `stride` apart. */
typedef struct tdm__bf16_plain {
    const uint16_t *data;
    int64_t stride;
} tdm__bf16_plain;

void tdm__bf16_read_plain(const void *source, int64_t row, int64_t rows, int64_t col, int64_t cols,
                          uint16_t *to, int64_t stride);

/* ---- units ------------------------------------------------------------------------------------ */

/*
 * Packed formats.
 *   pairs: b, for each block of BLOCK columns and each step PAIRS words: two tiles of 16 columns, each
 *          [16 pairs of k][16 columns]; a word has the number of even k in its lower half and that of
 *          odd k in its upper half.
 *   panel: BLOCK rows of a, bf16, along k.
 *   wide:  the same in f32, [step][BLOCK rows][STEP], after each step 16 words for the unit's use.
 */
typedef struct tdm__bf16_vec {
    /* BLOCK columns of b, each `steps` steps long and `stride` numbers from the next, into pairs. */
    void (*pair_columns)(const uint16_t *from, int64_t stride, int64_t steps, uint32_t *pairs);
    /* STEP rows of b, of `blocks` blocks of columns, into pairs; those of the next block are
     * `apart` words further. */
    void (*pair_rows)(const uint16_t *from, int64_t stride, int64_t blocks, uint32_t *pairs,
                      int64_t apart);
    /* STEP rows of BLOCK numbers become BLOCK rows of STEP. */
    void (*turn)(const uint16_t *from, int64_t stride, uint16_t *to, int64_t to_stride);
    /* Converts a panel to the wide format. */
    void (*widen)(const uint16_t *panel, int64_t stride, int64_t steps, float *wide);
    /* sum [BLOCK, BLOCK] += (or =, if it is the first) the product of a wide panel and of pairs,
     * over `length` numbers of k; only the first `rows` and `cols` of it are needed. */
    void (*multiply)(const float *wide, const uint32_t *pairs, int64_t length, bool begins,
                     int64_t rows, int64_t cols, float *sum);
    /* Writes rows and columns of `sum`, plus the optional bias, to c, whose rows are `stride`
     * apart; and reads them back, padded with zeros. */
    void (*write)(const float *sum, const float *bias, int64_t rows, int64_t cols, float *c,
                  int64_t stride);
    void (*fetch)(const float *c, int64_t stride, int64_t rows, int64_t cols, float *sum);
} tdm__bf16_vec;

extern const tdm__bf16_vec tdm__bf16_vec_0, tdm__bf16_vec_2, tdm__bf16_vec_3, tdm__bf16_vec_4;

/* Tiles. A thread may use them between begin and end; multiply takes a panel in bf16. */
typedef struct tdm__bf16_tiles {
    void (*begin)(void);
    void (*end)(void);
    void (*multiply)(const uint16_t *panel, int64_t stride, const uint32_t *pairs, int64_t steps,
                     bool begins, float *sum);
} tdm__bf16_tiles;

extern const tdm__bf16_tiles
    tdm__bf16_amx; /* x86-64 only; may be called only if the CPU supports it */

typedef struct tdm__bf16_unit {
    const char *name;
    int level;
    const tdm__bf16_vec *vec;
    const tdm__bf16_tiles *tiles; /* NULL: vec->multiply */
} tdm__bf16_unit;

/* The units that this CPU and the level in use support, best first; NULL past the last. The backend
 * uses the first; the others are for tests. */
const tdm__bf16_unit *tdm__bf16_unit_at(size_t index);

/* ---- products --------------------------------------------------------------------------------- */

/* c = act(op(a) op(b) + bias): a is [M, K], or [K, M] if transposed, b [K, N] or [N, K]; c has rows
 * of N. */
typedef struct tdm__bf16_product {
    const tdm__bf16_unit *unit;
    int64_t M, N, K;
    bool trans_a, trans_b;
    tdm__bf16_matrix a, b;
    float *c;
    const float *bias; /* NULL: none */
    tdm_activation activation;
} tdm__bf16_product;

/* For a product of these sizes, on the threads that kernels may use here; the same for all
 * units. */
size_t tdm__bf16_scratch_bytes(int64_t N, int64_t K);
void tdm__bf16_run(const tdm__bf16_product *p, void *scratch);

/* The state of the backend, passed to kernels, is a tdm__bf16_unit. */
extern const tdm_kernel_family tdm__bf16_matmul, tdm__bf16_conv;

#endif
