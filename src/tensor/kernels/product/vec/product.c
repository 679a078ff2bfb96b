/*
 * product.c: the matrix product of product.h at one instruction-set level.
 *
 * A product is divided into units, blocks of rows and columns of the result, as many as its threads
 * can use; with one thread it is a single unit. Each unit is computed by one thread. For each block
 * of the unit's columns and each segment of k it copies the right factor into panels: for each k
 * the numbers of PANEL_COLS columns side by side. Then it processes blocks of rows, copies them
 * into panels of TILE_ROWS rows, and multiplies panel by panel. A tile of TILE_ROWS x PANEL_COLS
 * sums stays in registers for the whole segment. Factors that can be read in place are not copied.
 * Incomplete panels are padded with zeros, and tiles at the lower and right edge use a buffer.
 *
 *   right panels   [block_cols / PANEL_COLS][length][PANEL_COLS]    in the L2 cache
 *   left panels    [block_rows / TILE_ROWS][length][TILE_ROWS]
 *
 * Sizes of tiles, blocks and units do not affect the result: product.h defines what does.
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
    UNITS_OF_THREAD = 3,        /* so that other threads can take some from a late one */
    UNIT_COLS = 4 * PANEL_COLS, /* minimum */
    FACTOR_SMALL = 1 << 17      /* numbers: half a megabyte */
};

/* ---- panels ----------------------------------------------------------------------------------- */

/* Zeros for lines that do not exist: as many as the maximum length of a segment. */
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
    int64_t width = tdm_round_up(pitch, TDM__WIDTH);
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

/* Adjacent panels that are filled from lines of one k each. */
typedef struct panel_row {
    float *to;       /* the first of them, at the first k */
    int64_t count;   /* outer indices in all */
    int64_t cols;    /* in a panel; the last may be narrower */
    int64_t apart;   /* from one panel to the next */
    int64_t rounded; /* the last panel is as wide as its indices, rounded up to this */
} panel_row;

/*
 * Panels of `cols`, a constant after inlining, from `from` on, as long as whole vectors can be
 * read. Data stored past a panel's row is overwritten by the next k, or is in the padding after the
 * panel. Returns the number of copied numbers.
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
                                    tdm_round_up(row->count - panel * row->cols, row->rounded));
        int64_t part = product_min(count - at, row->cols - within);
        float *to = row->to + panel * row->apart + k * width + within;
        for (int64_t i = 0; i < part; i += TDM__WIDTH)
            vf_store_up_to(to + i, part - i, vf_load_up_to(from + at + i, part - i, 0));
        at += part;
    }
}

/* Sets the outer indices past the end of the last panel to zero. */
static inline void panel_pad(const panel_row *row, int64_t k)
{
    int64_t last = (row->count - 1) / row->cols, used = row->count - last * row->cols;
    int64_t width = product_min(row->cols, tdm_round_up(used, row->rounded));
    float *to = row->to + last * row->apart + k * width;
    for (int64_t i = used; i < width; i++) to[i] = 0;
}

/* Lines that are one k each: [k, k + length) of the factor, outer indices from `first` on. */
static void panel_from_columns(const tdm__factor *f, int64_t first, int64_t k, int64_t length,
                               const panel_row *row)
{
    enum { AHEAD = 8 }; /* lines that are prefetched */
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
                    panel_scatter(row, from[i] + offset, done + i, begin, count);
                else
                    for (int64_t c = 0; c < count; c += TDM__PRODUCT_SEGMENT)
                        panel_scatter(row, zeros, done + i, begin + c,
                                      product_min(count - c, TDM__PRODUCT_SEGMENT));
            }
            done += some;
        }
        begin += count;
    }
    for (int64_t i = 0; i < length; i++) panel_pad(row, i);
}

/* ---- blocks ----------------------------------------------------------------------------------- */

/* A unit of work: rows [m, m + rows) and columns [n, n + cols) of the result. */
typedef struct product_unit {
    int64_t m, rows, n, cols;
} product_unit;

/* One segment of k and some columns: the content of the right panels at a time. */
typedef struct product_part {
    int64_t k, length;
    int64_t n, cols; /* cols is 0: the part does not exist */
} product_part;

/* One part of a unit. */
typedef struct product_block {
    const tdm__product *product;
    product_unit unit;
    product_part part, next;
    int64_t block_rows;  /* rows whose left panels exist at a time */
    bool right_in_place; /* full panels of the right factor are read in place */
    float *right, *left; /* panels */
} product_block;

/* Width of the panel that begins at column `at`: PANEL_COLS, or the number of whole vectors
 * needed. */
static int64_t panel_cols(const product_block *b, int64_t at)
{
    return product_min(PANEL_COLS, tdm_round_up(b->part.cols - at, TDM__WIDTH));
}

/* Numbers of a left panel, including padding for data stored past its end. */
static int64_t left_panel_size(int64_t length)
{
    return TILE_ROWS * length + TDM__WIDTH;
}

/* Outer indices [first, first + count) at [k, k + length) of a factor of `size` numbers, as lines
 * to be prefetched. A small factor is in the cache already. */
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

/* The share of the next part's right factor that is prefetched while the rows from `row` on are
 * processed. */
static tile_fetch block_fetch_right(const product_block *b, int64_t row, int64_t rows)
{
    const tdm__product *p = b->product;
    tile_fetch f = factor_fetch(&p->b, p->N * p->K, b->next.n, b->next.cols, b->next.k,
                                b->next.length);
    int64_t begin = f.lines * (row - b->unit.m) / b->unit.rows;
    int64_t end = f.lines * (row - b->unit.m + rows) / b->unit.rows;
    if (f.lines > 0) f.at += begin * f.stride;
    f.lines = end - begin;
    return f;
}

/* The rows that follow those up to `row`: of this part, or the first of the next. */
static tile_fetch block_fetch_left(const product_block *b, int64_t row)
{
    const tdm__product *p = b->product;
    int64_t end = b->unit.m + b->unit.rows;
    const product_part *part = row < end ? &b->part : &b->next;
    int64_t first = row < end ? row : b->unit.m;
    if (part->cols == 0) return (tile_fetch){0};
    return factor_fetch(&p->a, p->M * p->K, first, product_min(b->block_rows, end - first), part->k,
                        part->length);
}

static void block_fill_right(const product_block *b)
{
    for (int64_t at = 0; at < b->part.cols; at += PANEL_COLS)
        panel_from_lines(&b->product->b, b->part.n + at, product_min(PANEL_COLS, b->part.cols - at),
                         b->part.k, b->part.length, b->right + at * b->part.length,
                         panel_cols(b, at));
}

/* Whole lines are read in order. Of a factor in place only the columns of a last, incomplete panel
 * are copied. */
static void block_fill_right_rows(const product_block *b)
{
    int64_t first = b->right_in_place ? b->part.cols / PANEL_COLS * PANEL_COLS : 0;
    panel_row row = {.to = b->right + first * b->part.length,
                     .count = b->part.cols - first,
                     .cols = PANEL_COLS,
                     .apart = PANEL_COLS * b->part.length,
                     .rounded = TDM__WIDTH};
    if (row.count > 0)
        panel_from_columns(&b->product->b, b->part.n + first, b->part.k, b->part.length, &row);
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

/* A tile at the edge: its sums go through a buffer, so that nothing outside of c is accessed. */
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
 * Whether a factor is read in place. A left factor whose rows run along k is: a tile reads a few
 * rows from beginning to end. If each line is another k, only if they are few: each is in another
 * page.
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

/* Finds the left panels of rows [row, row + rows): in place, or filled. */
static void block_find_left(const product_block *b, int64_t row, int64_t rows,
                            tile_left lefts[BLOCK_ROWS / TILE_ROWS])
{
    const tdm__factor *a = &b->product->a;
    int64_t apart = left_panel_size(b->part.length);
    bool in_place = reads_in_place(a, true, b->part.length);
    const float *line;
    for (int64_t r = 0; r < rows; r += TILE_ROWS) {
        int64_t count = product_min(TILE_ROWS, rows - r), height = tile_height(count);
        float *panel = b->left + r / TILE_ROWS * apart;
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
        .to = b->left, .count = rows, .cols = TILE_ROWS, .apart = apart, .rounded = TILE_ROWS_STEP};
    if (a->along_k) return;
    /* Of a factor in place, only the rows of a tile at the edge. */
    int64_t edge = in_place ? rows / TILE_ROWS * TILE_ROWS : 0;
    all.to += edge / TILE_ROWS * apart;
    all.count -= edge;
    bool is_whole = in_place && (rows - edge) % TILE_ROWS_STEP == 0;
    if (!is_whole) panel_from_columns(a, row + edge, b->part.k, b->part.length, &all);
}

/* Rows [row, row + rows) of the result, of the part's columns. */
static void block_multiply(const product_block *b, int64_t row, int64_t rows)
{
    const tdm__product *p = b->product;
    bool last = b->part.k + b->part.length == p->K;
    tile_left lefts[BLOCK_ROWS / TILE_ROWS];
    float *c[BLOCK_ROWS];
    tile_fetch right_next = block_fetch_right(b, row, rows);
    tile_fetch fetch = block_fetch_left(b, row + rows);
    fetch.next = &right_next;
    block_find_left(b, row, rows, lefts);
    block_rows_of_c(p, row, rows, b->part.n, c);
    for (int64_t at = 0; at < b->part.cols; at += PANEL_COLS) {
        int64_t cols = product_min(PANEL_COLS, b->part.cols - at), width = panel_cols(b, at);
        tile_right right = block_right(b, at);
        const float *bias = last && p->bias ? p->bias + b->part.n + at : NULL;
        tile_end end = {.col = at, .add = b->part.k > 0, .bias = bias, .fetch = &fetch};
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
    for (int64_t r = 0; r < rows && last && p->activation != TDM_ACTIVATION_NONE; r++)
        tdm__kernel_activate(p->activation, c[r], b->part.cols);
}

/* ---- units ------------------------------------------------------------------------------------ */

/* Columns of a block: more if the segments are short. */
static int64_t block_cols_of(int64_t K)
{
    int64_t segments = tdm__product_segments(K), length = (K + segments - 1) / segments;
    return BLOCK_COLS * TDM__PRODUCT_SEGMENT / length / PANEL_COLS * PANEL_COLS;
}

/* Part `index` of a unit: all segments of a block of columns are added before the next block. */
static product_part unit_part(const product_block *b, int64_t index)
{
    int64_t K = b->product->K, segments = tdm__product_segments(K), block_cols = block_cols_of(K);
    int64_t n = index / segments * block_cols, s = index % segments;
    int64_t k = tdm__product_segment_begin(K, segments, s);
    if (n >= b->unit.cols) return (product_part){0};
    return (product_part){.k = k,
                          .length = tdm__product_segment_begin(K, segments, s + 1) - k,
                          .n = b->unit.n + n,
                          .cols = product_min(block_cols, b->unit.cols - n)};
}

static void unit_run(product_block *b)
{
    int64_t end = b->unit.m + b->unit.rows;
    int64_t blocks = (b->unit.rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    b->block_rows = tdm_round_up((b->unit.rows + blocks - 1) / blocks, TILE_ROWS);
    b->next = unit_part(b, 0);
    for (int64_t i = 1; b->next.cols > 0; i++) {
        b->part = b->next;
        b->next = unit_part(b, i);
        b->right_in_place = reads_in_place(&b->product->b, false, b->part.length);
        if (b->product->b.along_k)
            block_fill_right(b);
        else
            block_fill_right_rows(b);
        for (int64_t row = b->unit.m; row < end; row += b->block_rows)
            block_multiply(b, row, product_min(b->block_rows, end - row));
    }
}

/* ---- the whole product ------------------------------------------------------------------------ */

/* How the result is divided into units. */
typedef struct product_grid {
    const tdm__product *product;
    int64_t row_parts, col_parts;
    float *scratch;
    size_t scratch_size; /* numbers from one thread's to the next */
} product_grid;

/* Scratch of a thread in numbers. Never decreases as M, N or K grow: grad_x of a convolution
 * requests it once for the whole, and then runs smaller products. */
static size_t left_size_of(int64_t M, int64_t K)
{
    int64_t panels = product_min(tdm_round_up(M, TILE_ROWS), BLOCK_ROWS) / TILE_ROWS;
    return (size_t)(panels * left_panel_size(product_min(K, TDM__PRODUCT_SEGMENT)));
}

static size_t right_size_of(int64_t N, int64_t K)
{
    int64_t all = tdm_round_up(N, TDM__WIDTH) * product_min(K, TDM__PRODUCT_SEGMENT);
    return (size_t)(product_min(all, BLOCK_COLS * TDM__PRODUCT_SEGMENT) + 16 * TDM__WIDTH);
}

static size_t scratch_size_of(int64_t M, int64_t N, int64_t K)
{
    const size_t line = 64 / sizeof(float);
    return (left_size_of(M, K) + right_size_of(N, K) + line - 1) / line * line;
}

static size_t product_scratch_bytes(int64_t M, int64_t N, int64_t K)
{
    return (size_t)tdm__kernel_threads() * scratch_size_of(M, N, K) * sizeof(float);
}

/* `parts` limited to a few for each thread; fewer than one for each are unchanged. */
static int64_t grid_parts(int64_t parts, int64_t threads)
{
    return parts < threads ? parts : product_min(parts / threads, UNITS_OF_THREAD) * threads;
}

/*
 * Each part of the columns copies the left factor's panels once more, each part of the rows those
 * of the right factor. A left factor in place costs nothing: then columns are divided, and rows if
 * columns are few. Otherwise the longer side is divided, which repeats the smaller copy.
 */
static void grid_cut(product_grid *g)
{
    const tdm__product *p = g->product;
    int64_t threads = tdm__kernel_threads();
    int64_t of_rows = p->M / (2 * BLOCK_ROWS), of_cols = p->N / UNIT_COLS;
    int64_t row_tiles = (p->M + TILE_ROWS - 1) / TILE_ROWS;
    g->row_parts = g->col_parts = 1;
    if (!tdm__threads_pays(2, p->M * p->N / 2 * p->K / 16)) return;
    bool in_place = reads_in_place(&p->a, true, product_min(p->K, TDM__PRODUCT_SEGMENT));
    if (in_place && of_cols >= threads) {
        g->col_parts = grid_parts(of_cols, threads);
        g->row_parts = product_min(threads * UNITS_OF_THREAD / g->col_parts, of_rows);
        if (g->row_parts == 0) g->row_parts = 1;
    } else if (in_place || p->M >= p->N) {
        g->row_parts = of_rows >= threads ? grid_parts(of_rows, threads)
                                          : product_min(threads, row_tiles);
    } else {
        g->col_parts = product_min(threads, (p->N + PANEL_COLS - 1) / PANEL_COLS);
    }
}

/* [*begin, *begin + *count): part `index` of `parts` of `all`, in whole steps. */
static void grid_part(int64_t all, int64_t step, int64_t index, int64_t parts, int64_t *begin,
                      int64_t *count)
{
    int64_t steps = (all + step - 1) / step;
    *begin = steps * index / parts * step;
    *count = product_min(steps * (index + 1) / parts * step, all) - *begin;
}

static void grid_run(const void *args, int64_t begin, int64_t end)
{
    const product_grid *g = args;
    const tdm__product *p = g->product;
    float *scratch = g->scratch + (size_t)tdm_kernel_thread() * g->scratch_size;
    product_block b = {.product = p, .right = scratch, .left = scratch + right_size_of(p->N, p->K)};
    for (int64_t u = begin; u < end; u++) {
        grid_part(p->M, TILE_ROWS, u / g->col_parts, g->row_parts, &b.unit.m, &b.unit.rows);
        grid_part(p->N, PANEL_COLS, u % g->col_parts, g->col_parts, &b.unit.n, &b.unit.cols);
        unit_run(&b);
    }
}

static void product_run(const tdm__product *p, void *scratch)
{
    product_grid g = {
        .product = p, .scratch = scratch, .scratch_size = scratch_size_of(p->M, p->N, p->K)};
    grid_cut(&g);
    int64_t units = g.row_parts * g.col_parts;
    if (units > 1)
        tdm__threads_spread(units, 1, grid_run, &g);
    else
        grid_run(&g, 0, 1);
}

const tdm__vec_product TDM__AT_LEVEL(tdm__vec_product) = {.scratch_bytes = product_scratch_bytes,
                                                          .run = product_run};
