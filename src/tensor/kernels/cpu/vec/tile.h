/*
 * tile.h: small matrix products in registers, for kernels that work on blocks in cache.
 *
 * c (+)= a b, divided into tiles of TILE_ROWS rows by TILE_VECS vectors. b and c are row-major with
 * whole vectors; a is read one number at a time, so it may be transposed: element (i, k) is a[i
 * a_row + k a_col]. Callers pad: rows of c come in multiples of TILE_ROWS, columns in vectors.
 *
 * An element of c is one chain of fused multiply-adds over k in increasing order, from 0 or from
 * the previous value of c. If a is triangular, the chain has only the terms of the triangle. So no
 * bit depends on the sizes of tiles, which differ between levels.
 */
#ifndef TANDEM_TENSOR_KERNELS_CPU_VEC_TILE_H
#define TANDEM_TENSOR_KERNELS_CPU_VEC_TILE_H

#include "tensor/kernels/cpu/vec/vec.h"

/* As many sums as fit into registers beside a row of b and a number of a: 16 of 32, or 8 of 16. */
enum { TILE_ROWS = TDM__LEVEL >= 4 ? 8 : 4, TILE_VECS = 2, TILE_COLS = TILE_VECS * TDM__WIDTH };

typedef struct tile_operands {
    const float *a;
    int64_t a_row, a_col;
    const float *b;
    int64_t b_row;
    float *c;
    int64_t c_row;
} tile_operands;

/* Where element (i, k) of a is used, with k - the tile's first row = j: everywhere; for j <= i; for
 * j >= i. */
typedef enum tile_shape { TILE_FULL, TILE_LOWER, TILE_UPPER } tile_shape;

#define TILE_INLINE static inline __attribute__((always_inline))

/* One k: a[i] b is added to rows [from, to) of the tile. All but `a` and `b` are constants here. */
TILE_INLINE void tile_step(vf sum[TILE_ROWS][TILE_VECS], const int vecs, const int from,
                           const int to, const float *a, int64_t a_row, const float *b)
{
    vf right[TILE_VECS];
#pragma GCC unroll 2
    for (int v = 0; v < vecs; v++) right[v] = vf_load(b + v * TDM__WIDTH);
#pragma GCC unroll 8
    for (int i = from; i < to; i++)
#pragma GCC unroll 2
        for (int v = 0; v < vecs; v++)
            sum[i][v] = vf_fma(vf_set(a[i * a_row]), right[v], sum[i][v]);
}

/* The `count` values of k, at most TILE_ROWS, at which rows of the tile begin or end. */
TILE_INLINE void tile_triangle(vf sum[TILE_ROWS][TILE_VECS], const int vecs, const tile_shape shape,
                               const tile_operands *o, int64_t count)
{
#pragma GCC unroll 8
    for (int j = 0; j < TILE_ROWS; j++)
        if (j < count)
            tile_step(sum, vecs, shape == TILE_LOWER ? j : 0,
                      shape == TILE_LOWER ? TILE_ROWS : j + 1, o->a + j * o->a_col, o->a_row,
                      o->b + j * o->b_row);
}

/* The tile whose first element of c is o->c; `row` is its first row. */
TILE_INLINE void tile(const int vecs, const bool add, const tile_shape shape, tile_operands o,
                      int64_t row, int64_t depth)
{
    vf sum[TILE_ROWS][TILE_VECS];
#pragma GCC unroll 8
    for (int i = 0; i < TILE_ROWS; i++)
#pragma GCC unroll 2
        for (int v = 0; v < vecs; v++)
            sum[i][v] = add ? vf_load(o.c + i * o.c_row + v * TDM__WIDTH) : (vf){0};
    int64_t k = 0, whole = depth; /* [k, whole): all rows are used */
    if (shape == TILE_LOWER && whole > row) whole = row;
    if (shape == TILE_UPPER) {
        k = row;
        o.a += k * o.a_col;
        o.b += k * o.b_row;
        int64_t count = depth - k < TILE_ROWS ? depth - k : TILE_ROWS;
        tile_triangle(sum, vecs, shape, &o, count);
        k += TILE_ROWS;
        o.a += TILE_ROWS * o.a_col;
        o.b += TILE_ROWS * o.b_row;
    }
    for (; k < whole; k++, o.a += o.a_col, o.b += o.b_row)
        tile_step(sum, vecs, 0, TILE_ROWS, o.a, o.a_row, o.b);
    if (shape == TILE_LOWER) tile_triangle(sum, vecs, shape, &o, depth - whole);
#pragma GCC unroll 8
    for (int i = 0; i < TILE_ROWS; i++)
#pragma GCC unroll 2
        for (int v = 0; v < vecs; v++) vf_store(o.c + i * o.c_row + v * TDM__WIDTH, sum[i][v]);
}

/* The extent of a product. */
typedef struct tile_span {
    int64_t rows; /* of c */
    int64_t vecs; /* in a row of c */
    int64_t depth;
    bool lower_columns; /* columns above the diagonal are undefined */
} tile_span;

TILE_INLINE void tile_column(const int vecs, const bool add, const tile_shape shape,
                             const tile_operands *o, const tile_span *s, int64_t column)
{
    for (int64_t row = 0; row < s->rows; row += TILE_ROWS) {
        if (s->lower_columns && column >= row + TILE_ROWS) continue;
        tile_operands at = *o;
        at.a += row * o->a_row;
        at.b += column;
        at.c += row * o->c_row + column;
        tile(vecs, add, shape, at, row, s->depth);
    }
}

/* Columns are the outer loop, so that a few vectors of b's rows stay in the cache while a is
 * read. */
TILE_INLINE void tile_product(const bool add, const tile_shape shape, tile_operands o, tile_span s)
{
    int64_t vec = 0;
    for (; vec + TILE_VECS <= s.vecs; vec += TILE_VECS)
        tile_column(TILE_VECS, add, shape, &o, &s, vec * TDM__WIDTH);
    if (vec < s.vecs) tile_column(1, add, shape, &o, &s, vec * TDM__WIDTH);
}

#endif
