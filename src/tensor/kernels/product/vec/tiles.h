/*
 * tiles.h: tiles of a matrix product in registers, and the panels they read.
 *
 * A tile is up to TILE_ROWS x TILE_VECS vectors of sums. For each k it reads one row of a right
 * panel (the numbers of PANEL_COLS columns side by side) and one number for each of its rows from
 * the left factor. product.h defines what is computed for one sum; it does not depend on any size
 * here.
 *
 * Everything is static: the files that include this are compiled once for each level.
 */
#ifndef TANDEM_TENSOR_KERNELS_PRODUCT_VEC_TILES_H
#define TANDEM_TENSOR_KERNELS_PRODUCT_VEC_TILES_H

#include "base/base.h"
#include "tensor/kernels/cpu/vec/vec.h"
#include "tensor/kernels/product/product.h"

#include <assert.h>

/* As many sums as fit into registers beside a row of the right panel and a number of the left
 * factor: 24 of 32, or 12 of 16. Without fused multiply-add the choice does not matter. */
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

/* Transposes WIDTH lines of WIDTH numbers: to[k * pitch + i] = from[i][offset + k]. If the pitch is
 * less than WIDTH, the data stored for one k overlaps the next, which is stored later. */
static inline void panel_turn_square(const float *const from[], int64_t offset, float *to,
                                     int64_t pitch)
{
#if TDM__WIDTH == 16
#pragma GCC unroll 4
    for (int64_t k = 0; k < 16; k += 4) {
        /* r[i]: numbers k .. k + 3 of lines i, 4 + i, 8 + i, 12 + i. */
        __m512 r[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            r[i] = _mm512_castps128_ps512(_mm_loadu_ps(from[i] + offset + k));
            r[i] = _mm512_insertf32x4(r[i], _mm_loadu_ps(from[4 + i] + offset + k), 1);
            r[i] = _mm512_insertf32x4(r[i], _mm_loadu_ps(from[8 + i] + offset + k), 2);
            r[i] = _mm512_insertf32x4(r[i], _mm_loadu_ps(from[12 + i] + offset + k), 3);
        }
        __m512d low = _mm512_castps_pd(_mm512_unpacklo_ps(r[0], r[1]));
        __m512d low_more = _mm512_castps_pd(_mm512_unpacklo_ps(r[2], r[3]));
        __m512d high = _mm512_castps_pd(_mm512_unpackhi_ps(r[0], r[1]));
        __m512d high_more = _mm512_castps_pd(_mm512_unpackhi_ps(r[2], r[3]));
        float *at = to + k * pitch;
        _mm512_storeu_ps(at, _mm512_castpd_ps(_mm512_unpacklo_pd(low, low_more)));
        _mm512_storeu_ps(at + pitch, _mm512_castpd_ps(_mm512_unpackhi_pd(low, low_more)));
        _mm512_storeu_ps(at + 2 * pitch, _mm512_castpd_ps(_mm512_unpacklo_pd(high, high_more)));
        _mm512_storeu_ps(at + 3 * pitch, _mm512_castpd_ps(_mm512_unpackhi_pd(high, high_more)));
    }
#elif TDM__WIDTH == 8
#pragma GCC unroll 2
    for (int64_t k = 0; k < 8; k += 4) {
        /* r[i]: numbers k .. k + 3 of lines i and 4 + i. */
        __m256 r[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            r[i] = _mm256_castps128_ps256(_mm_loadu_ps(from[i] + offset + k));
            r[i] = _mm256_insertf128_ps(r[i], _mm_loadu_ps(from[4 + i] + offset + k), 1);
        }
        __m256d low = _mm256_castps_pd(_mm256_unpacklo_ps(r[0], r[1]));
        __m256d low_more = _mm256_castps_pd(_mm256_unpacklo_ps(r[2], r[3]));
        __m256d high = _mm256_castps_pd(_mm256_unpackhi_ps(r[0], r[1]));
        __m256d high_more = _mm256_castps_pd(_mm256_unpackhi_ps(r[2], r[3]));
        float *at = to + k * pitch;
        _mm256_storeu_ps(at, _mm256_castpd_ps(_mm256_unpacklo_pd(low, low_more)));
        _mm256_storeu_ps(at + pitch, _mm256_castpd_ps(_mm256_unpackhi_pd(low, low_more)));
        _mm256_storeu_ps(at + 2 * pitch, _mm256_castpd_ps(_mm256_unpacklo_pd(high, high_more)));
        _mm256_storeu_ps(at + 3 * pitch, _mm256_castpd_ps(_mm256_unpackhi_pd(high, high_more)));
    }
#else
    for (int k = 0; k < TDM__WIDTH; k++)
        for (int i = 0; i < TDM__WIDTH; i++) to[k * pitch + i] = from[i][offset + k];
#endif
}

/* ---- tiles ------------------------------------------------------------------------------------ */

/* The right factor of a tile: the numbers of its columns at k begin at at[k step]. */
typedef struct tile_right {
    const float *at;
    int64_t step;
} tile_right;

/*
 * Numbers that will be read soon: `lines` lines of `length` numbers, `stride` apart. Tiles prefetch
 * them into the L2 cache, one cache line for each CHUNK steps of k: more at once would delay the
 * loads of the tile.
 */
typedef struct tile_fetch {
    const float *at;
    int64_t lines, length, stride;
    int64_t done;                  /* numbers of the first line that were fetched already */
    const struct tile_fetch *next; /* what follows, or NULL */
} tile_fetch;

enum { CHUNK = 8, CACHE_LINE = 16 /* numbers */ };

static inline __attribute__((always_inline)) void tile_fetch_next(tile_fetch *f)
{
    if (f->lines == 0) {
        if (f->next) *f = *f->next;
        return;
    }
    __builtin_prefetch(f->at + f->done, 0, 2);
    f->done += CACHE_LINE;
    if (f->done < f->length) return;
    f->done = 0;
    f->at += f->stride;
    f->lines--;
}

/* The destination of the sums of a segment. */
typedef struct tile_end {
    float *const *c;   /* addresses of the rows */
    int64_t col;       /* column of the tile */
    bool add;          /* add to the sums of earlier segments there */
    const float *bias; /* to be added, or NULL */
    tile_fetch *fetch; /* what is needed after this tile, or NULL */
} tile_end;

/*
 * sum[v] += a[0] right[v], fused. The instructions are explicit where compilers would otherwise
 * load the numbers of all rows first, and then lack registers for the sums.
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

/* Sets the sums to +0. */
static inline __attribute__((always_inline)) void tile_begin(const int rows, const int vecs,
                                                             vf sum[TILE_ROWS][TILE_VECS])
{
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) sum[i][v] = (vf){0};
}

/* Before chunk `index` of k: prefetches a row of the destination of the sums, and what is needed
 * next. The row need not begin at a cache line. */
static inline __attribute__((always_inline)) void tile_fetch_more(const int rows, const int vecs,
                                                                  const tile_end *end,
                                                                  int64_t index)
{
    if (index < rows) {
        const float *c = end->c[index] + end->col;
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) __builtin_prefetch(c + v * TDM__WIDTH, 1);
        __builtin_prefetch(c + vecs * TDM__WIDTH - 1, 1);
    }
    if (end->fetch) tile_fetch_next(end->fetch);
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
            float *c = end->c[i] + end->col + v * TDM__WIDTH;
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
 * The sums of `rows` x `vecs` vectors over a segment; `rows` and `vecs` are constants after
 * inlining, and the loops over them are unrolled. Here the numbers of the rows at one k are side by
 * side.
 */
static inline __attribute__((always_inline)) void tile_multiply(const int rows, const int vecs,
                                                                const tile_left *left,
                                                                const tile_right *r, int64_t length,
                                                                const tile_end *end)
{
    vf sum[TILE_ROWS][TILE_VECS], right[TILE_VECS];
    const float *a = left->at, *b = r->at;
    const int64_t step = left->col, b_step = r->step;
    tile_begin(rows, vecs, sum);
    for (int64_t k = 0; k < length; k++) {
        if (k % CHUNK == 0) tile_fetch_more(rows, vecs, end, k / CHUNK);
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) right[v] = vf_load(b + v * TDM__WIDTH);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) tile_row(vecs, a + i, right, sum[i]);
        a += step;
        b += b_step;
    }
    tile_store(rows, vecs, end, sum);
}

/* The same if the rows run along k. Three rows share a pointer, so that all addresses fit into
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
    tile_begin(rows, vecs, sum);
#pragma GCC unroll 8
    for (int j = 0; j < pointers; j++) at[j] = left->at + j * ROWS_OF_POINTER * stride;
    for (int64_t k = 0; k < length; k++) {
        if (k % CHUNK == 0) tile_fetch_more(rows, vecs, end, k / CHUNK);
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

/* The rows of the smallest tile that has at least `rows`, at most TILE_ROWS. */
static inline int64_t tile_height(int64_t rows)
{
    return product_min(TILE_ROWS, tdm_round_up(rows, TILE_ROWS_STEP));
}

static inline tile_fn tile_for(int64_t height, int64_t width)
{
    assert(height >= TILE_ROWS_STEP && height <= TILE_ROWS);
    assert(width >= TDM__WIDTH && width <= PANEL_COLS);
    return tiles[height / TILE_ROWS_STEP - 1][width / TDM__WIDTH - 1];
}

#endif
