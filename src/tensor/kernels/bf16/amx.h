/*
 * amx.h: matrix products of bf16 by the processor's matrix unit (AMX), for the files of this folder.
 *
 * A tile is a register of 16 rows of 64 bytes. One instruction multiplies a tile of 16 x 32 numbers of
 * bf16 by one of 32 x 16 and adds the 16 x 16 results, in f32, to a third. The second factor wants its
 * numbers in pairs: row r of its tile has numbers 2r and 2r + 1 of each column, side by side.
 *
 * Every number of a result is summed up over k in order, from 0 to the end, in one register or in
 * memory between two blocks of k; so its bits depend neither on how a product is cut into blocks, nor on
 * threads, nor on where the operands lie.
 */
#ifndef TANDEM_TENSOR_KERNELS_BF16_AMX_H
#define TANDEM_TENSOR_KERNELS_BF16_AMX_H

#include "tensor/kernels/backends.h"

/* A block of a result is BLOCK x BLOCK numbers, four tiles; a step is STEP numbers of k, one tile deep. */
enum {
    TDM__AMX_BLOCK = 32,
    TDM__AMX_STEP = 32,
    TDM__AMX_PAIRS = 512 /* of 32 columns and a step */
};

/*
 * A matrix that may exist only as a way to look at something else. `read` copies rows [row, row +
 * rows) and of them columns [col, col + cols) to `to`, whose rows are `stride` numbers apart.
 */
typedef struct tdm__amx_matrix {
    void (*read)(const void *source, int64_t row, int64_t rows, int64_t col, int64_t cols,
                 uint16_t *to, int64_t stride);
    const void *source;
} tdm__amx_matrix;

/* Numbers in memory, rows `stride` apart. */
typedef struct tdm__amx_plain {
    const uint16_t *data;
    int64_t stride;
} tdm__amx_plain;

void tdm__amx_read_plain(const void *source, int64_t row, int64_t rows, int64_t col, int64_t cols,
                         uint16_t *to, int64_t stride);

/* c = act(op(a) op(b) + bias): a is [M, K], or [K, M] when transposed, b [K, N] or [N, K]; c has rows
 * of N. */
typedef struct tdm__amx_product {
    int64_t M, N, K;
    bool trans_a, trans_b;
    tdm__amx_matrix a, b;
    float *c;
    const float *bias; /* NULL: none */
    tdm_activation activation;
} tdm__amx_product;

/* Whether this processor has the unit and its kernel lets us use it. */
bool tdm__amx_here(void);
/* Of a product of such sizes, on the threads that kernels may use here. */
size_t tdm__amx_scratch_bytes(int64_t N, int64_t K);
void tdm__amx_run(const tdm__amx_product *p, void *scratch);

extern const tdm_kernel_family tdm__amx_matmul, tdm__amx_conv;

/* ---- tiles: what is compiled for such processors alone (amx_tiles.c) ----------------------------- */

/* Between these a thread can use tiles. */
void tdm__amx_begin(void);
void tdm__amx_end(void);
/* BLOCK columns of b, each `steps` steps long and `stride` numbers from the next, into pairs: PAIRS for
 * each step. */
void tdm__amx_pair_columns(const uint16_t *from, int64_t stride, int64_t steps, uint32_t *pairs);
/* STEP rows of b, of `blocks` blocks of columns, into pairs: PAIRS for each block, `apart` from those of
 * the next. */
void tdm__amx_pair_rows(const uint16_t *from, int64_t stride, int64_t blocks, uint32_t *pairs,
                        int64_t apart);
/* STEP rows of BLOCK numbers become BLOCK rows of STEP. */
void tdm__amx_turn(const uint16_t *from, int64_t stride, uint16_t *to, int64_t to_stride);
/* sum [BLOCK, BLOCK] += the product of BLOCK rows of a and of pairs; or = when it begins. */
void tdm__amx_multiply(const uint16_t *a, int64_t stride, const uint32_t *pairs, int64_t steps,
                       bool begins, float *sum);
/* Rows and columns of `sum`, the bias added where there is one, into c, whose rows are `stride` apart. */
void tdm__amx_write(const float *sum, const float *bias, int64_t rows, int64_t cols, float *c,
                    int64_t stride);
/* And back from there. */
void tdm__amx_fetch(const float *c, int64_t stride, int64_t rows, int64_t cols, float *sum);

#endif
