/*
 * product.c: the matrix product of product.h at one instruction-set level.
 *
 * For each segment of k and each block of columns, all threads bring the right factor into panels: for
 * each k the numbers of PANEL_COLS columns side by side. Then each thread takes blocks of rows, brings
 * them into panels of TILE_ROWS rows, and multiplies panel by panel. A tile of TILE_ROWS x PANEL_COLS
 * sums stays in registers for the whole segment. What a matrix lacks to a full panel is filled up with
 * zeros, and tiles at the lower and right edge pass through a buffer.
 *
 *   right panels   [block_cols / PANEL_COLS][length][PANEL_COLS]    shared, in the second-level cache
 *   left panels    [block_rows / TILE_ROWS][length][TILE_ROWS]      one block for each thread
 *
 * Sizes of tiles and blocks do not influence the result: product.h says what does.
 */
#include "tensor/kernels/product/product.h"

#include "tensor/kernels/cpu/vec/vec.h"

/* As many sums as registers hold beside a row of the right panel and a number of the left one: 24 of 32,
 * or 12 of 16. Without fused multiply-add one is as good as another. */
enum {
#if TDM__LEVEL >= 4
    TILE_ROWS = 12,
    TILE_VECS = 2,
    BLOCK_ROWS = 240,
    BLOCK_COLS = 512,
#elif TDM__LEVEL == 3
    TILE_ROWS = 6,
    TILE_VECS = 2,
    BLOCK_ROWS = 144,
    BLOCK_COLS = 512,
#elif TDM__LEVEL == 2
    TILE_ROWS = 4,
    TILE_VECS = 1,
    BLOCK_ROWS = 128,
    BLOCK_COLS = 256,
#else
    TILE_ROWS = 8,
    TILE_VECS = 3,
    BLOCK_ROWS = 128,
    BLOCK_COLS = 384,
#endif
    PANEL_COLS = TILE_VECS * TDM__WIDTH,
    POINTERS = 64
};

static int64_t product_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t product_round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* ---- panels ---------------------------------------------------------------------------------- */

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

/* Zeros in place of lines that are not there: as many as a segment can be long. */
static const float zeros[TDM__PRODUCT_SEGMENT + TDM__WIDTH];

/* to[k * pitch + i] = from[i][k] for `width` lines (whole vectors of them, or less than one) and `length`
 * numbers each. Up to WIDTH numbers behind the panel may be overwritten. */
static void panel_turn(const float *const from[], int64_t width, int64_t length, float *to,
                       int64_t pitch)
{
    int64_t k = 0;
    for (; k + TDM__WIDTH <= length; k += TDM__WIDTH)
        for (int64_t i = 0; i < width; i += TDM__WIDTH)
            panel_turn_square(from + i, k, to + k * pitch + i, pitch);
    for (; k < length; k++)
        for (int64_t i = 0; i < pitch; i++) to[k * pitch + i] = from[i][k];
}

/* Lines along k: outer indices [first, first + count) of a factor, from k on, into a panel `pitch`
 * numbers wide. */
static void panel_from_lines(const tdm__factor *f, int64_t first, int64_t count, int64_t k,
                             int64_t length, float *to, int64_t pitch)
{
    const float *from[POINTERS];
    int64_t width = product_round_up(pitch, TDM__WIDTH);
    while (length > 0) {
        int64_t piece = k / f->piece_length, offset = k % f->piece_length;
        int64_t part = product_min(length, f->piece_length - offset);
        f->lines(f->source, first, count, piece, from);
        for (int64_t i = 0; i < count; i++) from[i] = from[i] ? from[i] + offset : zeros;
        for (int64_t i = count; i < width; i++) from[i] = zeros;
        panel_turn(from, width, part, to, pitch);
        to += part * pitch;
        k += part;
        length -= part;
    }
}

/* Panels next to each other, as they are filled from lines of one k each. */
typedef struct panel_row {
    float *to;       /* the first of them, at the first k */
    int64_t count;   /* outer indices in all */
    int64_t cols;    /* in a panel; the last may be narrower */
    int64_t apart;   /* from one panel to the next */
    int64_t rounded; /* the last panel is as wide as its indices, rounded up to this */
} panel_row;

/* Numbers [begin, begin + count) of the outer indices at one k, into the panels that have them. */
static inline void panel_scatter(const panel_row *row, const float *from, int64_t k, int64_t begin,
                                 int64_t count)
{
    int64_t panel = begin / row->cols, within = begin % row->cols;
    for (int64_t at = 0; at < count; panel++, within = 0) {
        int64_t width = product_min(row->cols,
                                    product_round_up(row->count - panel * row->cols, row->rounded));
        int64_t part = product_min(count - at, row->cols - within);
        float *to = row->to + panel * row->apart + k * width + within;
        /* Whole vectors, where they overlap only what is written later: the next k of this panel, or
         * the room behind it. */
        int64_t i = 0;
        if (count - at >= product_round_up(part, TDM__WIDTH) && within == 0 && part == width)
            for (; i < part; i += TDM__WIDTH) vf_store(to + i, vf_load(from + at + i));
        for (; i < part; i += TDM__WIDTH)
            vf_store_up_to(to + i, part - i, vf_load_up_to(from + at + i, part - i, 0));
        at += part;
    }
}

/* Outer indices that the last panel has too many are zero. */
static inline void panel_pad(const panel_row *row, int64_t k)
{
    int64_t last = (row->count - 1) / row->cols, used = row->count - last * row->cols;
    int64_t width = product_min(row->cols, product_round_up(used, row->rounded));
    float *to = row->to + last * row->apart + k * width;
    for (int64_t i = used; i < width; i++) to[i] = 0;
}

/* Lines that are one k each: [k, k + length) of the factor, outer indices from `first` on. */
static void panel_from_columns(const tdm__factor *f, int64_t first, int64_t k, int64_t length,
                               const panel_row *row, int64_t to_k)
{
    enum { AHEAD = 8 }; /* lines that are fetched into the cache before their turn */
    const float *from[POINTERS];
    for (int64_t begin = 0; begin < row->count;) {
        int64_t piece = (first + begin) / f->piece_length;
        int64_t offset = (first + begin) % f->piece_length;
        int64_t count = product_min(row->count - begin, f->piece_length - offset);
        for (int64_t done = 0; done < length;) {
            int64_t some = product_min(length - done, POINTERS);
            f->lines(f->source, k + done, some, piece, from);
            for (int64_t i = 0; i < some; i++) {
                if (i + AHEAD < some && from[i + AHEAD])
                    for (int64_t c = 0; c < count; c += 16)
                        __builtin_prefetch(from[i + AHEAD] + offset + c);
                if (from[i])
                    panel_scatter(row, from[i] + offset, to_k + done + i, begin, count);
                else
                    for (int64_t c = 0; c < count; c += TDM__PRODUCT_SEGMENT)
                        panel_scatter(row, zeros, to_k + done + i, begin + c,
                                      product_min(count - c, TDM__PRODUCT_SEGMENT));
            }
            done += some;
        }
        begin += count;
    }
    for (int64_t i = 0; i < length; i++) panel_pad(row, to_k + i);
}

/* ---- tiles ----------------------------------------------------------------------------------- */

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

static inline __attribute__((always_inline)) void tile_store(const int rows, const int vecs,
                                                             const tile_end *end,
                                                             vf sum[TILE_ROWS][TILE_VECS])
{
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) {
            float *c = end->c[i] + v * TDM__WIDTH;
            vf x = sum[i][v];
            if (end->add) x = vf_load(c) + x;
            if (end->bias) x += vf_load(end->bias + v * TDM__WIDTH);
            vf_store(c, x);
        }
}

/*
 * The sums of `rows` x `vecs` vectors over a segment; `rows` and `vecs` are constants where these are
 * called, and the loops over them unroll. The left factor is a panel with `rows` numbers for each k.
 */
static inline __attribute__((always_inline)) void tile_multiply(const int rows, const int vecs,
                                                                const float *a, const float *b,
                                                                int64_t length, const tile_end *end)
{
    vf sum[TILE_ROWS][TILE_VECS], right[TILE_VECS];
    tile_begin(rows, vecs, end, sum);
#pragma GCC unroll 2
    for (int64_t k = 0; k < length; k++) {
#pragma GCC unroll 4
        for (int v = 0; v < vecs; v++) right[v] = vf_load(b + v * TDM__WIDTH);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) tile_row(vecs, a + i, right, sum[i]);
        a += rows;
        b += vecs * TDM__WIDTH;
    }
    tile_store(rows, vecs, end, sum);
}

/*
 * The same with a left factor that is a matrix in memory, whose rows are `stride` apart and run along k.
 * Three rows share a pointer: so all addresses fit into registers.
 */
enum {
    ROWS_OF_POINTER = 3,
    POINTERS_OF_TILE = (TILE_ROWS + ROWS_OF_POINTER - 1) / ROWS_OF_POINTER
};

static inline __attribute__((always_inline)) void tile_multiply_rows(const int rows, const int vecs,
                                                                     const float *a, int64_t stride,
                                                                     const float *b, int64_t length,
                                                                     const tile_end *end)
{
    vf sum[TILE_ROWS][TILE_VECS], right[TILE_VECS];
    const float *at[POINTERS_OF_TILE];
    const int pointers = (rows + ROWS_OF_POINTER - 1) / ROWS_OF_POINTER;
    tile_begin(rows, vecs, end, sum);
#pragma GCC unroll 8
    for (int j = 0; j < pointers; j++) at[j] = a + j * ROWS_OF_POINTER * stride;
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
        b += vecs * TDM__WIDTH;
    }
    tile_store(rows, vecs, end, sum);
}

/* `a_stride` is 0 for a panel. */
typedef void (*tile_fn)(const float *a, int64_t a_stride, const float *b, int64_t length,
                        const tile_end *end);

#define TILE(rows, vecs)                                                                           \
    static void tile_##rows##_##vecs(const float *a, int64_t a_stride, const float *b,             \
                                     int64_t length, const tile_end *end)                          \
    {                                                                                              \
        if (a_stride == 0)                                                                         \
            tile_multiply(rows, vecs, a, b, length, end);                                          \
        else                                                                                       \
            tile_multiply_rows(rows, vecs, a, a_stride, b, length, end);                           \
    }

/* Tiles with fewer rows or vectors, for the edges: tiles[rows / TILE_ROWS_STEP - 1][vecs - 1]. */
#if TDM__LEVEL >= 4
enum { TILE_ROWS_STEP = 4 };
TILE(4, 1)
TILE(4, 2) TILE(8, 1) TILE(8, 2) TILE(12, 1) TILE(12, 2) static const tile_fn tiles[][TILE_VECS] = {
    {tile_4_1, tile_4_2}, {tile_8_1, tile_8_2}, {tile_12_1, tile_12_2}};
#elif TDM__LEVEL == 3
enum { TILE_ROWS_STEP = 2 };
TILE(2, 1)
TILE(2, 2) TILE(4, 1) TILE(4, 2) TILE(6, 1) TILE(6, 2) static const tile_fn tiles[][TILE_VECS] = {
    {tile_2_1, tile_2_2}, {tile_4_1, tile_4_2}, {tile_6_1, tile_6_2}};
#elif TDM__LEVEL == 2
enum { TILE_ROWS_STEP = 4 };
TILE(4, 1)
static const tile_fn tiles[][TILE_VECS] = {{tile_4_1}};
#else
enum { TILE_ROWS_STEP = 4 };
TILE(4, 1)
TILE(4, 2) TILE(4, 3) TILE(8, 1) TILE(8, 2) TILE(8, 3) static const tile_fn tiles[][TILE_VECS] = {
    {tile_4_1, tile_4_2, tile_4_3}, {tile_8_1, tile_8_2, tile_8_3}};
#endif

/* ---- blocks ---------------------------------------------------------------------------------- */

/* One segment of k and one block of columns. */
typedef struct product_block {
    const tdm__product *product;
    int64_t k, length;    /* the segment */
    int64_t n, cols;      /* the columns */
    int64_t block_rows;   /* rows that one unit of work takes */
    int64_t row_blocks;   /* and how many such blocks there are */
    int64_t col_groups;   /* parts of the columns; a unit is a block of rows and one of them */
    float *right, *lefts; /* panels: shared, and one block for each thread */
    size_t left_size;     /* numbers from one thread's to the next */
} product_block;

/* Width of the panel that begins at column `at`: all of PANEL_COLS, or the vectors that are needed. */
static int64_t panel_cols(const product_block *b, int64_t at)
{
    return product_min(PANEL_COLS, product_round_up(b->cols - at, TDM__WIDTH));
}

/* Numbers of a left panel, and room for what is stored behind its end. */
static int64_t left_panel_size(int64_t length)
{
    return TILE_ROWS * length + TDM__WIDTH;
}

static int64_t panel_rows(int64_t left)
{
    return product_min(TILE_ROWS, product_round_up(left, TILE_ROWS_STEP));
}

/* Units are panels. */
static void block_fill_right(const void *args, int64_t begin, int64_t end)
{
    const product_block *b = args;
    for (int64_t panel = begin; panel < end; panel++) {
        int64_t at = panel * PANEL_COLS;
        panel_from_lines(&b->product->b, b->n + at, product_min(PANEL_COLS, b->cols - at), b->k,
                         b->length, b->right + at * b->length, panel_cols(b, at));
    }
}

/* Units are indices k of the segment: whole lines are read one after another. */
static void block_fill_right_rows(const void *args, int64_t begin, int64_t end)
{
    const product_block *b = args;
    panel_row row = {.to = b->right,
                     .count = b->cols,
                     .cols = PANEL_COLS,
                     .apart = PANEL_COLS * b->length,
                     .rounded = TDM__WIDTH};
    panel_from_columns(&b->product->b, b->n, b->k + begin, end - begin, &row, begin);
}

static void block_rows_of_c(const tdm__product *p, int64_t row, int64_t count, int64_t col,
                            float **out)
{
    if (p->c_lines) {
        p->c_lines(p->c_source, row, count, out);
        for (int64_t i = 0; i < count; i++) out[i] += col;
    } else {
        for (int64_t i = 0; i < count; i++) out[i] = p->c + (row + i) * p->c_stride + col;
    }
}

/* A tile at the edge: its sums go through a buffer, so that nothing outside of c is touched. */
static void block_edge_tile(tile_fn tile, const float *a, int64_t a_stride, const float *b,
                            int64_t length, const tile_end *end, int64_t rows, int64_t cols)
{
    float buffer[TILE_ROWS * PANEL_COLS] = {0}, bias[PANEL_COLS] = {0}, *c[TILE_ROWS];
    for (int64_t i = 0; i < TILE_ROWS; i++) c[i] = buffer + i * PANEL_COLS;
    for (int64_t i = 0; i < rows && end->add; i++)
        memcpy(c[i], end->c[i], (size_t)cols * sizeof(float));
    if (end->bias) memcpy(bias, end->bias, (size_t)cols * sizeof(float));
    tile(a, a_stride, b, length, &(tile_end){c, end->add, end->bias ? bias : NULL});
    for (int64_t i = 0; i < rows; i++) memcpy(end->c[i], c[i], (size_t)cols * sizeof(float));
}

/* Whether the left factor can be read where it is: rows along k at equal distances. */
static bool reads_in_place(const tdm__product *p)
{
    return p->a.along_k && p->a.stride > 0;
}

/* The left panels of rows [row, row + rows): in place, or filled into `room`. The stride of a panel in
 * place is that of its rows; of one in `room` it is 0. */
typedef struct block_left {
    const float *panel[BLOCK_ROWS / TILE_ROWS];
    int64_t stride[BLOCK_ROWS / TILE_ROWS];
} block_left;

static void block_find_left(const product_block *b, int64_t row, int64_t rows, float *room,
                            block_left *left)
{
    const tdm__factor *a = &b->product->a;
    int64_t apart = left_panel_size(b->length);
    const float *line;
    for (int64_t r = 0, i = 0; r < rows; r += TILE_ROWS, i++) {
        int64_t count = product_min(TILE_ROWS, rows - r);
        left->panel[i] = room + i * apart;
        left->stride[i] = 0;
        if (reads_in_place(b->product) && count % TILE_ROWS_STEP == 0) {
            a->lines(a->source, row + r, 1, 0, &line);
            left->panel[i] = line + b->k;
            left->stride[i] = a->stride;
        } else if (a->along_k) {
            panel_from_lines(a, row + r, count, b->k, b->length, room + i * apart,
                             panel_rows(count));
        }
    }
    panel_row all = {
        .to = room, .count = rows, .cols = TILE_ROWS, .apart = apart, .rounded = TILE_ROWS_STEP};
    if (!a->along_k) panel_from_columns(a, row, b->k, b->length, &all, 0);
}

/* Rows [row, row + rows) of the result, of columns [from, to) of the block. */
static void block_multiply(const product_block *b, int64_t row, int64_t rows, int64_t from,
                           int64_t to, float *room)
{
    const tdm__product *p = b->product;
    bool last = b->k + b->length == p->K;
    block_left left;
    float *c[TILE_ROWS];
    block_find_left(b, row, rows, room, &left);
    for (int64_t at = from; at < to; at += PANEL_COLS) {
        int64_t cols = product_min(PANEL_COLS, b->cols - at), width = panel_cols(b, at);
        const float *right = b->right + at * b->length;
        const float *bias = last && p->bias ? p->bias + b->n + at : NULL;
        tile_end end = {c, b->k > 0, bias};
        for (int64_t r = 0; r < rows; r += TILE_ROWS) {
            int64_t count = product_min(TILE_ROWS, rows - r), height = panel_rows(rows - r);
            tile_fn tile = tiles[height / TILE_ROWS_STEP - 1][width / TDM__WIDTH - 1];
            const float *a = left.panel[r / TILE_ROWS];
            int64_t stride = left.stride[r / TILE_ROWS];
            block_rows_of_c(p, row + r, count, b->n + at, c);
            if (count == height && cols == width)
                tile(a, stride, right, b->length, &end);
            else
                block_edge_tile(tile, a, stride, right, b->length, &end, count, cols);
        }
    }
    if (!last || p->activation == TDM_ACTIVATION_NONE) return;
    for (int64_t r = 0; r < rows; r++) {
        block_rows_of_c(p, row + r, 1, b->n + from, c);
        tdm__kernel_activate(p->activation, c[0], product_min(to, b->cols) - from);
    }
}

/* Units are blocks of rows, and in each the groups of columns. */
static void block_units(const void *args, int64_t begin, int64_t end)
{
    const product_block *b = args;
    float *left = b->lefts + (size_t)tdm_kernel_thread() * b->left_size;
    int64_t panels = (b->cols + PANEL_COLS - 1) / PANEL_COLS;
    for (int64_t u = begin; u < end; u++) {
        int64_t row = u / b->col_groups * b->block_rows, group = u % b->col_groups;
        block_multiply(b, row, product_min(b->block_rows, b->product->M - row),
                       panels * group / b->col_groups * PANEL_COLS,
                       panels * (group + 1) / b->col_groups * PANEL_COLS, left);
    }
}

/* ---- the whole product ----------------------------------------------------------------------- */

/* Rows of a unit: a block, or less so that there is work for all threads. */
static int64_t rows_of_unit(int64_t M, int threads)
{
    int64_t share = product_round_up((M + threads - 1) / threads, TILE_ROWS);
    if (share >= BLOCK_ROWS) {
        int64_t blocks = (M + BLOCK_ROWS - 1) / BLOCK_ROWS;
        blocks = product_round_up(blocks, threads);
        share = product_round_up((M + blocks - 1) / blocks, TILE_ROWS);
    }
    return share;
}

static size_t left_size_of(int64_t M, int threads)
{
    int64_t panels = rows_of_unit(M, threads) / TILE_ROWS;
    return (size_t)(panels * left_panel_size(TDM__PRODUCT_SEGMENT));
}

static size_t right_size_of(int64_t N)
{
    return (size_t)(product_min(product_round_up(N, TDM__WIDTH), BLOCK_COLS) *
                        TDM__PRODUCT_SEGMENT +
                    16 * TDM__WIDTH);
}

static size_t product_scratch_bytes(int64_t M, int64_t N, int64_t K)
{
    (void)K;
    int threads = tdm__kernel_threads();
    return (right_size_of(N) + (size_t)threads * left_size_of(M, threads)) * sizeof(float);
}

static void product_run(const tdm__product *p, void *scratch)
{
    int threads = tdm__kernel_threads();
    product_block b = {.product = p, .block_rows = rows_of_unit(p->M, threads)};
    b.row_blocks = (p->M + b.block_rows - 1) / b.block_rows;
    b.left_size = left_size_of(p->M, threads);
    b.right = scratch;
    b.lefts = b.right + right_size_of(p->N);
    int64_t segments = tdm__product_segments(p->K);
    for (int64_t s = 0; s < segments; s++) {
        b.k = tdm__product_segment_begin(p->K, segments, s);
        b.length = tdm__product_segment_begin(p->K, segments, s + 1) - b.k;
        for (b.n = 0; b.n < p->N; b.n += BLOCK_COLS) {
            b.cols = product_min(BLOCK_COLS, p->N - b.n);
            int64_t panels = (b.cols + PANEL_COLS - 1) / PANEL_COLS;
            b.col_groups = b.row_blocks < threads ? product_min(panels, threads) : 1;
            if (p->b.along_k)
                tdm__vec_split(panels, b.length * PANEL_COLS, block_fill_right, &b);
            else
                tdm__vec_split(b.length, b.cols, block_fill_right_rows, &b);
            /* A number of a tile costs a sixteenth of moving one. */
            tdm__vec_split(b.row_blocks * b.col_groups,
                           b.block_rows * b.cols / b.col_groups * b.length / 16, block_units, &b);
        }
    }
}

const tdm__vec_product TDM__AT_LEVEL(tdm__vec_product) = {.scratch_bytes = product_scratch_bytes,
                                                          .run = product_run};
