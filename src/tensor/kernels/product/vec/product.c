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
#include "tensor/kernels/product/vec/tiles.h"

enum {
#if TDM__LEVEL >= 4
    BLOCK_ROWS = 240,
    BLOCK_COLS = 512,
#elif TDM__LEVEL == 3
    BLOCK_ROWS = 144,
    BLOCK_COLS = 256,
#else
    BLOCK_ROWS = 128,
    BLOCK_COLS = 384,
#endif
    POINTERS = 64,
    LINES_IN_PLACE = 128,
    RESULT_BYTES_SMALL = 1 << 20,
    FACTOR_SMALL = 1 << 17 /* numbers: half a megabyte */
};

/* ---- panels ---------------------------------------------------------------------------------- */

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

/*
 * Panels of `cols`, a constant where this is called, from `from` on, as long as whole vectors can be read.
 * What is stored behind a panel's row is overwritten by the next k, or is room behind the panel. Returns
 * how many numbers it has copied.
 */
static inline __attribute__((always_inline)) int64_t panel_scatter_full(const int64_t cols,
                                                                        const float *from,
                                                                        int64_t count, float *to,
                                                                        int64_t apart)
{
    const int64_t whole = (cols + TDM__WIDTH - 1) / TDM__WIDTH * TDM__WIDTH;
    int64_t at = 0;
    for (; at + whole <= count; at += cols, to += apart)
#pragma GCC unroll 4
        for (int64_t i = 0; i < cols; i += TDM__WIDTH) vf_store(to + i, vf_load(from + at + i));
    return at;
}

/* Numbers [begin, begin + count) of the outer indices at one k, into the panels that have them. */
static inline void panel_scatter(const panel_row *row, const float *from, int64_t k, int64_t begin,
                                 int64_t count)
{
    int64_t panel = begin / row->cols, within = begin % row->cols, at = 0;
    if (within == 0) {
        float *to = row->to + panel * row->apart + k * row->cols;
        at = row->cols == PANEL_COLS ? panel_scatter_full(PANEL_COLS, from, count, to, row->apart)
                                     : panel_scatter_full(TILE_ROWS, from, count, to, row->apart);
        panel += at / row->cols;
    }
    for (; at < count; panel++, within = 0) {
        int64_t width = product_min(row->cols,
                                    product_round_up(row->count - panel * row->cols, row->rounded));
        int64_t part = product_min(count - at, row->cols - within);
        float *to = row->to + panel * row->apart + k * width + within;
        for (int64_t i = 0; i < part; i += TDM__WIDTH)
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

/* ---- blocks ---------------------------------------------------------------------------------- */

/* One segment of k and some columns: what the right panels hold at a time. */
typedef struct product_part {
    int64_t k, length;
    int64_t n, cols; /* cols is 0: there is no such part */
} product_part;

/* One part of a product. */
typedef struct product_block {
    const tdm__product *product;
    product_part part, next;
    int64_t block_rows;   /* rows that one unit of work takes */
    int64_t row_blocks;   /* and how many such blocks there are */
    int64_t col_groups;   /* parts of the columns; a unit is a block of rows and one of them */
    bool right_in_place;  /* full panels of the right factor are read where they are */
    float *right, *lefts; /* panels: shared, and one block for each thread */
    size_t left_size;     /* numbers from one thread's to the next */
} product_block;

/* Width of the panel that begins at column `at`: all of PANEL_COLS, or the vectors that are needed. */
static int64_t panel_cols(const product_block *b, int64_t at)
{
    return product_min(PANEL_COLS, product_round_up(b->part.cols - at, TDM__WIDTH));
}

/* Numbers of a left panel, and room for what is stored behind its end. */
static int64_t left_panel_size(int64_t length)
{
    return TILE_ROWS * length + TDM__WIDTH;
}

/* Outer indices [first, first + count) at [k, k + length) of a factor of `size` numbers, as lines to be
 * fetched. A small factor is in the cache already. */
static tile_fetch factor_fetch(const tdm__factor *f, int64_t size, int64_t first, int64_t count,
                               int64_t k, int64_t length)
{
    const float *at;
    if (f->stride == 0 || count <= 0 || length <= 0 || size <= FACTOR_SMALL) return (tile_fetch){0};
    f->lines(f->source, f->along_k ? first : k, 1, 0, &at);
    return (tile_fetch){.at = at + (f->along_k ? k : first),
                        .lines = f->along_k ? count : length,
                        .length = f->along_k ? length : count,
                        .stride = f->stride};
}

/* What unit `u` of `units` fetches of the next part's right factor: its share of the lines. */
static tile_fetch block_fetch_right(const product_block *b, int64_t u, int64_t units)
{
    const tdm__product *p = b->product;
    tile_fetch f = factor_fetch(&p->b, p->N * p->K, b->next.n, b->next.cols, b->next.k,
                                b->next.length);
    int64_t begin = f.lines * u / units, end = f.lines * (u + 1) / units;
    if (f.lines > 0) f.at += begin * f.stride;
    f.lines = end - begin;
    return f;
}

/* The rows that a thread multiplies after those from `row` on: of this part, or the first of the next. */
static tile_fetch block_fetch_left(const product_block *b, int64_t row, bool is_last)
{
    const tdm__product *p = b->product;
    const product_part *part = is_last ? &b->next : &b->part;
    int64_t next = is_last ? 0 : row + b->block_rows;
    if (part->cols == 0) return (tile_fetch){0};
    return factor_fetch(&p->a, p->M * p->K, next, product_min(b->block_rows, p->M - next), part->k,
                        part->length);
}

/* Units are panels. */
static void block_fill_right(const void *args, int64_t begin, int64_t end)
{
    const product_block *b = args;
    for (int64_t panel = begin; panel < end; panel++) {
        int64_t at = panel * PANEL_COLS;
        panel_from_lines(&b->product->b, b->part.n + at, product_min(PANEL_COLS, b->part.cols - at),
                         b->part.k, b->part.length, b->right + at * b->part.length,
                         panel_cols(b, at));
    }
}

/* Units are indices k of the segment: whole lines are read one after another. Of a factor in place only
 * the columns of a last, incomplete panel are copied. */
static void block_fill_right_rows(const void *args, int64_t begin, int64_t end)
{
    const product_block *b = args;
    int64_t first = b->right_in_place ? b->part.cols / PANEL_COLS * PANEL_COLS : 0;
    panel_row row = {.to = b->right + first * b->part.length,
                     .count = b->part.cols - first,
                     .cols = PANEL_COLS,
                     .apart = PANEL_COLS * b->part.length,
                     .rounded = TDM__WIDTH};
    if (row.count > 0)
        panel_from_columns(&b->product->b, b->part.n + first, b->part.k + begin, end - begin, &row,
                           begin);
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
static void block_edge_tile(tile_fn tile, const tile_left *left, const tile_right *right,
                            int64_t length, const tile_end *end, int64_t rows, int64_t cols)
{
    float buffer[TILE_ROWS * PANEL_COLS] = {0}, bias[PANEL_COLS] = {0}, *c[TILE_ROWS];
    for (int64_t i = 0; i < TILE_ROWS; i++) c[i] = buffer + i * PANEL_COLS;
    for (int64_t i = 0; i < rows && end->add; i++)
        memcpy(c[i], end->c[i] + end->col, (size_t)cols * sizeof(float));
    if (end->bias) memcpy(bias, end->bias, (size_t)cols * sizeof(float));
    tile(
        left, right, length,
        &(tile_end){.c = c, .add = end->add, .bias = end->bias ? bias : NULL, .fetch = end->fetch});
    for (int64_t i = 0; i < rows; i++)
        memcpy(end->c[i] + end->col, c[i], (size_t)cols * sizeof(float));
}

/*
 * Whether a factor is read where it is. A left factor whose rows run along k is: a tile reads a few rows
 * from beginning to end. Where each line is another k, only a few of them: they are in as many pages.
 */
static bool reads_in_place(const tdm__factor *f, bool is_left, int64_t length)
{
    return f->stride > 0 && (f->along_k ? is_left : length <= LINES_IN_PLACE);
}

/* The right factor of the panel that begins at column `at`. */
static tile_right block_right(const product_block *b, int64_t at)
{
    const tdm__factor *f = &b->product->b;
    const float *line;
    if (!b->right_in_place || b->part.cols - at < PANEL_COLS)
        return (tile_right){b->right + at * b->part.length, panel_cols(b, at)};
    f->lines(f->source, b->part.k, 1, 0, &line);
    return (tile_right){line + b->part.n + at, f->stride};
}

/* Finds the left panels of rows [row, row + rows): in place, or filled into `room`. */
static void block_find_left(const product_block *b, int64_t row, int64_t rows, float *room,
                            tile_left lefts[BLOCK_ROWS / TILE_ROWS])
{
    const tdm__factor *a = &b->product->a;
    int64_t apart = left_panel_size(b->part.length);
    bool in_place = reads_in_place(a, true, b->part.length);
    const float *line;
    for (int64_t r = 0; r < rows; r += TILE_ROWS) {
        int64_t count = product_min(TILE_ROWS, rows - r), height = tile_height(count);
        float *panel = room + r / TILE_ROWS * apart;
        lefts[r / TILE_ROWS] = (tile_left){.at = panel, .row = 1, .col = height};
        if (in_place && count == height && a->along_k) {
            a->lines(a->source, row + r, 1, 0, &line);
            lefts[r / TILE_ROWS] = (tile_left){.at = line + b->part.k, .row = a->stride, .col = 1};
        } else if (in_place && count == height) {
            a->lines(a->source, b->part.k, 1, 0, &line);
            lefts[r / TILE_ROWS] = (tile_left){.at = line + row + r, .row = 1, .col = a->stride};
        } else if (a->along_k) {
            panel_from_lines(a, row + r, count, b->part.k, b->part.length, panel, height);
        }
    }
    panel_row all = {
        .to = room, .count = rows, .cols = TILE_ROWS, .apart = apart, .rounded = TILE_ROWS_STEP};
    if (a->along_k) return;
    /* Of a factor in place, only the rows of a tile at the edge. */
    int64_t edge = in_place ? rows / TILE_ROWS * TILE_ROWS : 0;
    all.to += edge / TILE_ROWS * apart;
    all.count -= edge;
    bool is_whole = in_place && (rows - edge) % TILE_ROWS_STEP == 0;
    if (!is_whole) panel_from_columns(a, row + edge, b->part.k, b->part.length, &all, 0);
}

/* Rows [row, row + rows) of the result, of columns [from, to) of the block. */
static void block_multiply(const product_block *b, int64_t row, int64_t rows, int64_t from,
                           int64_t to, tile_fetch *fetch, float *room)
{
    const tdm__product *p = b->product;
    bool last = b->part.k + b->part.length == p->K;
    tile_left lefts[BLOCK_ROWS / TILE_ROWS];
    float *c[BLOCK_ROWS];
    block_find_left(b, row, rows, room, lefts);
    block_rows_of_c(p, row, rows, b->part.n, c);
    for (int64_t at = from; at < to; at += PANEL_COLS) {
        int64_t cols = product_min(PANEL_COLS, b->part.cols - at), width = panel_cols(b, at);
        tile_right right = block_right(b, at);
        const float *bias = last && p->bias ? p->bias + b->part.n + at : NULL;
        tile_end end = {.col = at, .add = b->part.k > 0, .bias = bias, .fetch = fetch};
        for (int64_t r = 0; r < rows; r += TILE_ROWS) {
            int64_t count = product_min(TILE_ROWS, rows - r), height = tile_height(count);
            tile_fn tile = tile_for(height, width);
            end.c = c + r;
            if (count == height && cols == width)
                tile(&lefts[r / TILE_ROWS], &right, b->part.length, &end);
            else
                block_edge_tile(tile, &lefts[r / TILE_ROWS], &right, b->part.length, &end, count,
                                cols);
        }
    }
    if (!last || p->activation == TDM_ACTIVATION_NONE) return;
    for (int64_t r = 0; r < rows; r++)
        tdm__kernel_activate(p->activation, c[r] + from, product_min(to, b->part.cols) - from);
}

/* Units are blocks of rows, and in each the groups of columns. */
static void block_units(const void *args, int64_t begin, int64_t end)
{
    const product_block *b = args;
    float *left = b->lefts + (size_t)tdm_kernel_thread() * b->left_size;
    int64_t panels = (b->part.cols + PANEL_COLS - 1) / PANEL_COLS;
    int64_t units = b->row_blocks * b->col_groups;
    for (int64_t u = begin; u < end; u++) {
        int64_t row = u / b->col_groups * b->block_rows, group = u % b->col_groups;
        tile_fetch right = block_fetch_right(b, u, units);
        tile_fetch fetch = block_fetch_left(b, row, u + 1 == end);
        fetch.next = &right;
        block_multiply(b, row, product_min(b->block_rows, b->product->M - row),
                       panels * group / b->col_groups * PANEL_COLS,
                       panels * (group + 1) / b->col_groups * PANEL_COLS, &fetch, left);
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

/* Numbers of scratch. These never fall as M, N or K grow: grad_x of a convolution asks once for the
 * whole of it, and then runs products that are smaller. */
static size_t left_size_of(int64_t M, int threads)
{
    int64_t share = product_round_up((M + threads - 1) / threads, TILE_ROWS);
    int64_t panels = product_min(share, BLOCK_ROWS) / TILE_ROWS;
    return (size_t)(panels * left_panel_size(TDM__PRODUCT_SEGMENT));
}

static size_t right_size_of(int64_t N, int64_t K)
{
    int64_t all = product_round_up(N, TDM__WIDTH) * product_min(K, TDM__PRODUCT_SEGMENT);
    return (size_t)(product_min(all, BLOCK_COLS * TDM__PRODUCT_SEGMENT) + 16 * TDM__WIDTH);
}

/* Columns of a block: more where the segments are short. */
static int64_t block_cols_of(int64_t length)
{
    return BLOCK_COLS * TDM__PRODUCT_SEGMENT / length / PANEL_COLS * PANEL_COLS;
}

static size_t product_scratch_bytes(int64_t M, int64_t N, int64_t K)
{
    int threads = tdm__kernel_threads();
    return (right_size_of(N, K) + (size_t)threads * left_size_of(M, threads)) * sizeof(float);
}

/* Part `index` of the product. A result that fits into the cache is gone over once for each segment; of
 * a larger one, all segments of a block of columns are added before the next block. */
static product_part product_part_of(const tdm__product *p, int64_t index)
{
    int64_t segments = tdm__product_segments(p->K);
    int64_t block_cols = block_cols_of((p->K + segments - 1) / segments);
    int64_t blocks = (p->N + block_cols - 1) / block_cols;
    bool is_small = p->M * p->N * (int64_t)sizeof(float) <= RESULT_BYTES_SMALL;
    if (index >= blocks * segments) return (product_part){0};
    int64_t s = is_small ? index / blocks : index % segments;
    int64_t n = (is_small ? index % blocks : index / segments) * block_cols;
    int64_t k = tdm__product_segment_begin(p->K, segments, s);
    return (product_part){.k = k,
                          .length = tdm__product_segment_begin(p->K, segments, s + 1) - k,
                          .n = n,
                          .cols = product_min(block_cols, p->N - n)};
}

static void product_run_block(product_block *b)
{
    const tdm__product *p = b->product;
    int threads = tdm__kernel_threads();
    int64_t panels = (b->part.cols + PANEL_COLS - 1) / PANEL_COLS;
    b->col_groups = b->row_blocks < threads ? product_min(panels, threads) : 1;
    b->right_in_place = reads_in_place(&p->b, false, b->part.length);
    if (p->b.along_k)
        tdm__vec_split(panels, b->part.length * PANEL_COLS, block_fill_right, b);
    else
        tdm__vec_split(b->part.length, b->part.cols, block_fill_right_rows, b);
    /* A number of a tile costs a sixteenth of moving one. */
    tdm__vec_split(b->row_blocks * b->col_groups,
                   b->block_rows * b->part.cols / b->col_groups * b->part.length / 16, block_units,
                   b);
}

static void product_run(const tdm__product *p, void *scratch)
{
    int threads = tdm__kernel_threads();
    product_block b = {.product = p, .block_rows = rows_of_unit(p->M, threads)};
    b.row_blocks = (p->M + b.block_rows - 1) / b.block_rows;
    b.left_size = left_size_of(p->M, threads);
    b.right = scratch;
    b.lefts = b.right + right_size_of(p->N, p->K);
    b.next = product_part_of(p, 0);
    for (int64_t i = 1; b.next.cols > 0; i++) {
        b.part = b.next;
        b.next = product_part_of(p, i);
        product_run_block(&b);
    }
}

const tdm__vec_product TDM__AT_LEVEL(tdm__vec_product) = {.scratch_bytes = product_scratch_bytes,
                                                          .run = product_run};
