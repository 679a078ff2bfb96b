/*
 * tile.h: small matrix products in registers, for kernels that work on blocks in cache.
 *
 * c (+)= a b, cut into tiles of TILE_ROWS rows by TILE_VECS vectors. b and c are row-major with whole
 * vectors; a is read one number at a time, so it may lie either way round: element (i, k) is
 * a[i a_row + k a_col]. Callers pad: rows of c come in multiples of TILE_ROWS, columns in vectors.
 * The order of summation is that of k, whatever the shape.
 */
#ifndef TANDEM_TENSOR_KERNELS_CPU_VEC_TILE_H
#define TANDEM_TENSOR_KERNELS_CPU_VEC_TILE_H

#include "tensor/kernels/cpu/vec/vec.h"

/* As many sums as registers hold beside a row of b and a number of a: 16 of 32, or 8 of 16. */
enum { TILE_ROWS = TDM__LEVEL >= 4 ? 8 : 4, TILE_VECS = 2, TILE_COLS = TILE_VECS * TDM__WIDTH };

typedef struct tile_operands {
    const float *a;
    int64_t a_row, a_col;
    const float *b;
    int64_t b_row;
    float *c;
    int64_t c_row;
} tile_operands;

/* `vecs` and `add` are constants where this is called, and the loops over them unroll. */
static inline __attribute__((always_inline)) void tile(const int vecs, const bool add,
                                                       const tile_operands *o, int64_t depth)
{
    vf sum[TILE_ROWS][TILE_VECS];
    const float *a = o->a, *b = o->b;
    const int64_t a_row = o->a_row, a_col = o->a_col, b_row = o->b_row;
#pragma GCC unroll 8
    for (int i = 0; i < TILE_ROWS; i++)
#pragma GCC unroll 2
        for (int v = 0; v < vecs; v++)
            sum[i][v] = add ? vf_load(o->c + i * o->c_row + v * TDM__WIDTH) : (vf){0};
    for (int64_t k = 0; k < depth; k++, b += b_row, a += a_col) {
        vf right[TILE_VECS];
#pragma GCC unroll 2
        for (int v = 0; v < vecs; v++) right[v] = vf_load(b + v * TDM__WIDTH);
#pragma GCC unroll 8
        for (int i = 0; i < TILE_ROWS; i++)
#pragma GCC unroll 2
            for (int v = 0; v < vecs; v++) sum[i][v] += a[i * a_row] * right[v];
    }
#pragma GCC unroll 8
    for (int i = 0; i < TILE_ROWS; i++)
#pragma GCC unroll 2
        for (int v = 0; v < vecs; v++) vf_store(o->c + i * o->c_row + v * TDM__WIDTH, sum[i][v]);
}

/* What is wanted of a product. Where a is zero on one side of the diagonal, or c is not wanted there,
 * the tiles on that side are left out. */
typedef struct tile_span {
    int64_t rows; /* of c */
    int64_t vecs; /* in a row of c */
    int64_t depth;
    bool lower_columns; /* only columns below row + TILE_ROWS are wanted */
    bool lower_depth;   /* a is zero from depth row + TILE_ROWS on */
    bool upper_depth;   /* a is zero below depth row */
} tile_span;

static inline __attribute__((always_inline)) void tile_column(const int vecs, const bool add,
                                                              const tile_operands *o,
                                                              const tile_span *s, int64_t column)
{
    for (int64_t row = 0; row < s->rows; row += TILE_ROWS) {
        if (s->lower_columns && column >= row + TILE_ROWS) continue;
        int64_t from = s->upper_depth ? row : 0, to = s->depth;
        if (s->lower_depth && to > row + TILE_ROWS) to = row + TILE_ROWS;
        tile_operands at = *o;
        at.a += row * o->a_row + from * o->a_col;
        at.b += from * o->b_row + column;
        at.c += row * o->c_row + column;
        tile(vecs, add, &at, to - from);
    }
}

/* Columns are the outer loop, so that a few vectors of b's rows stay close while a goes by. */
static inline __attribute__((always_inline)) void tile_product(const bool add, tile_operands o,
                                                               tile_span s)
{
    int64_t vec = 0;
    for (; vec + TILE_VECS <= s.vecs; vec += TILE_VECS)
        tile_column(TILE_VECS, add, &o, &s, vec * TDM__WIDTH);
    if (vec < s.vecs) tile_column(1, add, &o, &s, vec * TDM__WIDTH);
}

#endif
