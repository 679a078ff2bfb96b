/*
 * tiles.h: tiles of a matrix product in registers, and the panels they read.
 *
 * A tile is up to TILE_ROWS x TILE_VECS vectors of sums. For each k it reads one row of a right panel
 * (the numbers of PANEL_COLS columns side by side) and one number for each of its rows from the left
 * factor. What is computed for one sum is defined by product.h and does not depend on any size here.
 *
 * Everything is static: the files that include this are compiled once for each level.
 */
#ifndef TANDEM_TENSOR_KERNELS_PRODUCT_VEC_TILES_H
#define TANDEM_TENSOR_KERNELS_PRODUCT_VEC_TILES_H

#include "tensor/kernels/cpu/vec/vec.h"
#include "tensor/kernels/product/product.h"

#include <assert.h>

/* As many sums as registers hold beside a row of the right panel and a number of the left factor: 24 of
 * 32, or 12 of 16. Without fused multiply-add one is as good as another. */
enum {
#if TDM__LEVEL >= 4
    TILE_ROWS = 12,
    TILE_VECS = 2,
    TILE_ROWS_STEP = 4, /* tiles at the edge have a multiple of this */
#elif TDM__LEVEL == 3
    TILE_ROWS = 6,
    TILE_VECS = 2,
    TILE_ROWS_STEP = 2,
#elif TDM__LEVEL == 2
    TILE_ROWS = 4,
    TILE_VECS = 1,
    TILE_ROWS_STEP = 4,
#else
    TILE_ROWS = 8,
    TILE_VECS = 3,
    TILE_ROWS_STEP = 4,
#endif
    PANEL_COLS = TILE_VECS * TDM__WIDTH
};

static inline int64_t product_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t product_round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* Transposes WIDTH lines of WIDTH numbers: to[k * pitch + i] = from[i][offset + k]. Where the pitch is
 * less than WIDTH, what is stored for one k overlaps the next, which is stored later. */
static inline void panel_turn_square(const float *const from[], int64_t offset, float *to,
                                     int64_t pitch)
{
#if TDM__WIDTH == 16
    __m512 r[16], t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_ps(from[i] + offset);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            __m512d low = _mm512_castps_pd(t[4 * i + h]), high = _mm512_castps_pd(t[4 * i + h + 2]);
            r[4 * i + 2 * h] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
            r[4 * i + 2 * h + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
        }
        /* r[4 i + j] holds, of lines 4 i .. 4 i + 3, numbers j, 4 + j, 8 + j, 12 + j. */
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        __m512 even = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x88);
        __m512 odd = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xdd);
        __m512 even_more = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x88);
        __m512 odd_more = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xdd);
        t[j] = _mm512_shuffle_f32x4(even, even_more, 0x88);
        t[4 + j] = _mm512_shuffle_f32x4(odd, odd_more, 0x88);
        t[8 + j] = _mm512_shuffle_f32x4(even, even_more, 0xdd);
        t[12 + j] = _mm512_shuffle_f32x4(odd, odd_more, 0xdd);
    }
#pragma GCC unroll 16
    for (int k = 0; k < 16; k++) _mm512_storeu_ps(to + k * pitch, t[k]);
#elif TDM__WIDTH == 8
    __m256 r[8], t[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_ps(from[i] + offset);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            __m256d low = _mm256_castps_pd(t[4 * i + h]), high = _mm256_castps_pd(t[4 * i + h + 2]);
            r[4 * i + 2 * h] = _mm256_castpd_ps(_mm256_unpacklo_pd(low, high));
            r[4 * i + 2 * h + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low, high));
        }
        /* r[4 i + j] holds, of lines 4 i .. 4 i + 3, numbers j and 4 + j. */
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++)
        _mm256_storeu_ps(to + j * pitch, _mm256_permute2f128_ps(r[j], r[4 + j], 0x20));
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++)
        _mm256_storeu_ps(to + (4 + j) * pitch, _mm256_permute2f128_ps(r[j], r[4 + j], 0x31));
#else
    for (int k = 0; k < TDM__WIDTH; k++)
        for (int i = 0; i < TDM__WIDTH; i++) to[k * pitch + i] = from[i][offset + k];
#endif
}

/* ---- tiles ----------------------------------------------------------------------------------- */

/* The right factor of a tile: the numbers of its columns at k begin at at[k step]. */
typedef struct tile_right {
    const float *at;
    int64_t step;
} tile_right;

/* What happens to the sums of a segment. */
typedef struct tile_end {
    float *const *c;   /* addresses of the rows */
    bool add;          /* to what an earlier segment left there */
    const float *bias; /* to be added, or NULL */
} tile_end;

/*
 * sum[v] += a[0] right[v], fused. The instructions are spelled out where compilers would otherwise load
 * the numbers of all rows first, and then lack registers for the sums.
 */
static inline __attribute__((always_inline)) void tile_row(const int vecs, const float *a,
                                                           const vf *right, vf *sum)
{
#if TDM__LEVEL >= 4
    __m512 left, r0 = (__m512)right[0];
    if (vecs == 2) {
        __asm__("vbroadcastss %5, %2\n\tvfmadd231ps %3, %2, %0\n\tvfmadd231ps %4, %2, %1"
                : "+v"(sum[0]), "+v"(sum[1]), "=&v"(left)
                : "v"(r0), "v"((__m512)right[1]), "m"(*a));
    } else {
        __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(sum[0]) : "v"(r0), "m"(*a));
    }
#elif TDM__LEVEL == 3
    __m256 left, r0 = (__m256)right[0];
    if (vecs == 2) {
        __asm__("vbroadcastss %5, %2\n\tvfmadd231ps %3, %2, %0\n\tvfmadd231ps %4, %2, %1"
                : "+x"(sum[0]), "+x"(sum[1]), "=&x"(left)
                : "x"(r0), "x"((__m256)right[1]), "m"(*a));
    } else {
        __asm__("vbroadcastss %3, %1\n\tvfmadd231ps %2, %1, %0"
                : "+x"(sum[0]), "=&x"(left)
                : "x"(r0), "m"(*a));
    }
#else
#pragma GCC unroll 4
    for (int v = 0; v < vecs; v++) sum[v] = vf_fma(vf_set(*a), right[v], sum[v]);
#endif
}

/* The sums begin at +0; the places where they go are fetched into the cache meanwhile. */
static inline __attribute__((always_inline)) void tile_begin(const int rows, const int vecs,
                                                             const tile_end *end,
                                                             vf sum[TILE_ROWS][TILE_VECS])
{
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) {
            __builtin_prefetch(end->c[i] + v * TDM__WIDTH, 1);
            sum[i][v] = (vf){0};
        }
}

static inline __attribute__((always_inline)) void tile_store_as(const int rows, const int vecs,
                                                                const bool add, const bool biased,
                                                                const tile_end *end,
                                                                vf sum[TILE_ROWS][TILE_VECS])
{
    vf bias[TILE_VECS];
#pragma GCC unroll 4
    for (int v = 0; v < vecs && biased; v++) bias[v] = vf_load(end->bias + v * TDM__WIDTH);
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) {
            float *c = end->c[i] + v * TDM__WIDTH;
            vf x = sum[i][v];
            if (add) x = vf_load(c) + x;
            if (biased) x += bias[v];
            vf_store(c, x);
        }
}

static inline __attribute__((always_inline)) void tile_store(const int rows, const int vecs,
                                                             const tile_end *end,
                                                             vf sum[TILE_ROWS][TILE_VECS])
{
    if (!end->add && !end->bias)
        tile_store_as(rows, vecs, false, false, end, sum);
    else if (!end->bias)
        tile_store_as(rows, vecs, true, false, end, sum);
    else if (!end->add)
        tile_store_as(rows, vecs, false, true, end, sum);
    else
        tile_store_as(rows, vecs, true, true, end, sum);
}

/* The left factor of a tile: element (i, k) is at[i row + k col], where row or col is 1. */
typedef struct tile_left {
    const float *at;
    int64_t row, col;
} tile_left;

/*
 * The sums of `rows` x `vecs` vectors over a segment; `rows` and `vecs` are constants where these are
 * called, and the loops over them unroll. Here the numbers of the rows at one k are side by side.
 */
static inline __attribute__((always_inline)) void tile_multiply(const int rows, const int vecs,
                                                                const tile_left *left,
                                                                const tile_right *r, int64_t length,
                                                                const tile_end *end)
{
    vf sum[TILE_ROWS][TILE_VECS], right[TILE_VECS];
    const float *a = left->at, *b = r->at;
    const int64_t step = left->col, b_step = r->step;
    tile_begin(rows, vecs, end, sum);
#pragma GCC unroll 2
    for (int64_t k = 0; k < length; k++) {
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) right[v] = vf_load(b + v * TDM__WIDTH);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) tile_row(vecs, a + i, right, sum[i]);
        a += step;
        b += b_step;
    }
    tile_store(rows, vecs, end, sum);
}

/* The same where the rows run along k. Three rows share a pointer: so all addresses fit into
 * registers. */
enum {
    ROWS_OF_POINTER = 3,
    POINTERS_OF_TILE = (TILE_ROWS + ROWS_OF_POINTER - 1) / ROWS_OF_POINTER
};

static inline __attribute__((always_inline)) void tile_multiply_rows(const int rows, const int vecs,
                                                                     const tile_left *left,
                                                                     const tile_right *r,
                                                                     int64_t length,
                                                                     const tile_end *end)
{
    vf sum[TILE_ROWS][TILE_VECS], right[TILE_VECS];
    const float *at[POINTERS_OF_TILE];
    const float *b = r->at;
    const int64_t stride = left->row, b_step = r->step;
    const int pointers = (rows + ROWS_OF_POINTER - 1) / ROWS_OF_POINTER;
    tile_begin(rows, vecs, end, sum);
#pragma GCC unroll 8
    for (int j = 0; j < pointers; j++) at[j] = left->at + j * ROWS_OF_POINTER * stride;
#pragma GCC unroll 2
    for (int64_t k = 0; k < length; k++) {
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) right[v] = vf_load(b + v * TDM__WIDTH);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++)
            tile_row(vecs, at[i / ROWS_OF_POINTER] + i % ROWS_OF_POINTER * stride, right, sum[i]);
#pragma GCC unroll 8
        for (int j = 0; j < pointers; j++) {
            at[j]++;
            __asm__("" : "+r"(at[j])); /* one pointer, not one for each row */
        }
        b += b_step;
    }
    tile_store(rows, vecs, end, sum);
}

typedef void (*tile_fn)(const tile_left *left, const tile_right *right, int64_t length,
                        const tile_end *end);

#define TILE(rows, vecs)                                                                           \
    static void tile_##rows##_##vecs(const tile_left *left, const tile_right *r, int64_t length,   \
                                     const tile_end *end)                                          \
    {                                                                                              \
        if (left->row == 1)                                                                        \
            tile_multiply(rows, vecs, left, r, length, end);                                       \
        else                                                                                       \
            tile_multiply_rows(rows, vecs, left, r, length, end);                                  \
    }

/* Tiles with fewer rows or vectors, for the edges: tiles[rows / TILE_ROWS_STEP - 1][vecs - 1]. */
#if TDM__LEVEL >= 4
TILE(4, 1)
TILE(4, 2)
TILE(8, 1)
TILE(8, 2)
TILE(12, 1)
TILE(12, 2)
static const tile_fn tiles[][TILE_VECS] = {
    {tile_4_1, tile_4_2}, {tile_8_1, tile_8_2}, {tile_12_1, tile_12_2}};
#elif TDM__LEVEL == 3
TILE(2, 1)
TILE(2, 2)
TILE(4, 1)
TILE(4, 2)
TILE(6, 1)
TILE(6, 2)
static const tile_fn tiles[][TILE_VECS] = {
    {tile_2_1, tile_2_2}, {tile_4_1, tile_4_2}, {tile_6_1, tile_6_2}};
#elif TDM__LEVEL == 2
TILE(4, 1)
static const tile_fn tiles[][TILE_VECS] = {{tile_4_1}};
#else
TILE(4, 1)
TILE(4, 2)
TILE(4, 3)
TILE(8, 1)
TILE(8, 2)
TILE(8, 3)
static const tile_fn tiles[][TILE_VECS] = {{tile_4_1, tile_4_2, tile_4_3},
                                           {tile_8_1, tile_8_2, tile_8_3}};
#endif

/* The rows of the smallest tile that has `rows` of them, or TILE_ROWS where they are more. */
static inline int64_t tile_height(int64_t rows)
{
    return product_min(TILE_ROWS, product_round_up(rows, TILE_ROWS_STEP));
}

static inline tile_fn tile_for(int64_t height, int64_t width)
{
    assert(height >= TILE_ROWS_STEP && height <= TILE_ROWS);
    assert(width >= TDM__WIDTH && width <= PANEL_COLS);
    return tiles[height / TILE_ROWS_STEP - 1][width / TDM__WIDTH - 1];
}

#endif
