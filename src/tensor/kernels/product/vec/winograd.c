/*
 * winograd.c: Winograd's method of winograd.h at one instruction-set level.
 *
 * In each direction a tile of `tile` results needs tile + 2 = n numbers of the image; a tile has n
 * x n elements. Vectors run along the channels. For forward and grad_x the tiles of all images are
 * processed in chunks, each by one thread:
 *
 *   u   [n n][segment][panel][k][PANEL_COLS]   transformed windows, as right panels; shared
 *   v   [n n][chunk][C]                        transformed tiles, left factors of the products
 *   m   [n n][chunk][O]                        products
 *
 * For grad_w a thread owns a block of the weights' gradient, BLOCK_O x BLOCK_C of all elements, and
 * processes all tiles: transforming a tile several times costs less than storing all of them.
 *
 *   y   [n n][segment tiles][BLOCK_O]          transformed tiles of dy, left factors
 *   x   [n n][panel][segment tiles][PANEL_COLS] transformed tiles of x, right panels
 *   g   [n n][BLOCK_O][BLOCK_C]                sums
 *
 * The data of the n x n elements are spaced further apart than necessary, so that they do not map
 * to one set of the cache. The formulas are those of Cook and Toom. Tiles of 2 x 2 use the points
 * 0, 1, -1 and infinity, tiles of 4 x 4 the points 0, P, -P, Q, -Q and infinity; P = 5/8 and Q =
 * 3/2 lose less precision than the usual 1 and 2, and their powers are exact in f32.
 */
#include "tensor/kernels/product/winograd.h"

#include "tensor/kernels/product/vec/tiles.h"

enum {
    SIDE_MAX = 6,
    PLACES_MAX = SIDE_MAX * SIDE_MAX,
    APART = 16, /* numbers of padding between elements */
    CHUNK_TILES = 48,
    CHUNK_TILES_MAX = 192,
    WINDOWS_SMALL =
        1 << 18, /* bytes of the windows of an element that stay in the cache with larger chunks */
    BLOCK_O = 64,
    BLOCK_C = 64,
    ALIGN = 16 /* numbers: a cache line */
};

static inline vf vf_times(float factor, vf x)
{
    return vf_set(factor) * x;
}

/* ---- transforms along one direction ----------------------------------------------------------- */

#define P 0.625f
#define Q 1.5f
#define PP (P * P)
#define QQ (Q * Q)
/* One divided by the product of a point's distances from the others. */
#define BY_ZERO (1.0f / (PP * QQ))
#define BY_P (1.0f / (2.0f * PP * (PP - QQ)))
#define BY_Q (1.0f / (2.0f * QQ * (QQ - PP)))

/* Tiles of an image: n numbers to n. */
static inline void turn_image(const bool four, const vf d[], vf t[])
{
    if (!four) {
        t[0] = d[0] - d[2];
        t[1] = d[1] + d[2];
        t[2] = d[2] - d[1];
        t[3] = d[1] - d[3];
        return;
    }
    vf even_p = vf_fma(vf_set(-QQ), d[2], d[4]), odd_p = vf_fma(vf_set(-QQ), d[1], d[3]);
    vf even_q = vf_fma(vf_set(-PP), d[2], d[4]), odd_q = vf_fma(vf_set(-PP), d[1], d[3]);
    t[0] = vf_fma(vf_set(PP * QQ), d[0], vf_fma(vf_set(-(PP + QQ)), d[2], d[4]));
    t[1] = vf_fma(vf_set(P), odd_p, even_p);
    t[2] = vf_fma(vf_set(-P), odd_p, even_p);
    t[3] = vf_fma(vf_set(Q), odd_q, even_q);
    t[4] = vf_fma(vf_set(-Q), odd_q, even_q);
    t[5] = vf_fma(vf_set(PP * QQ), d[1], vf_fma(vf_set(-(PP + QQ)), d[3], d[5]));
}

/* Windows: 3 numbers to n. */
static inline void turn_window(const bool four, const vf g[], vf u[])
{
    if (!four) {
        vf outer = g[0] + g[2];
        u[0] = g[0];
        u[1] = vf_times(0.5f, outer + g[1]);
        u[2] = vf_times(0.5f, outer - g[1]);
        u[3] = g[2];
        return;
    }
    vf even_p = vf_fma(vf_set(PP), g[2], g[0]), even_q = vf_fma(vf_set(QQ), g[2], g[0]);
    u[0] = vf_times(BY_ZERO, g[0]);
    u[1] = vf_times(BY_P, vf_fma(vf_set(P), g[1], even_p));
    u[2] = vf_times(BY_P, vf_fma(vf_set(-P), g[1], even_p));
    u[3] = vf_times(BY_Q, vf_fma(vf_set(Q), g[1], even_q));
    u[4] = vf_times(BY_Q, vf_fma(vf_set(-Q), g[1], even_q));
    u[5] = g[2];
}

/* Tiles of dy, which are windows of 4: 4 numbers to 6. */
static inline void turn_result(const vf g[], vf u[])
{
    vf even_p = vf_fma(vf_set(PP), g[2], g[0]), odd_p = vf_fma(vf_set(PP), g[3], g[1]);
    vf even_q = vf_fma(vf_set(QQ), g[2], g[0]), odd_q = vf_fma(vf_set(QQ), g[3], g[1]);
    u[0] = vf_times(BY_ZERO, g[0]);
    u[1] = vf_times(BY_P, vf_fma(vf_set(P), odd_p, even_p));
    u[2] = vf_times(BY_P, vf_fma(vf_set(-P), odd_p, even_p));
    u[3] = vf_times(BY_Q, vf_fma(vf_set(Q), odd_q, even_q));
    u[4] = vf_times(BY_Q, vf_fma(vf_set(-Q), odd_q, even_q));
    u[5] = g[3];
}

/* Products back to results: n numbers to 2 or 4. */
static inline void turn_back(const bool four, const vf m[], vf y[])
{
    vf sum = m[1] + m[2], difference = m[1] - m[2];
    if (!four) {
        y[0] = m[0] + sum;
        y[1] = difference - m[3];
        return;
    }
    vf far_sum = m[3] + m[4], far_difference = m[3] - m[4];
    y[0] = m[0] + sum + far_sum;
    y[1] = vf_fma(vf_set(Q), far_difference, vf_times(P, difference));
    y[2] = vf_fma(vf_set(QQ), far_sum, vf_times(PP, sum));
    y[3] = vf_fma(vf_set(Q * QQ), far_difference, vf_fma(vf_set(P * PP), difference, m[5]));
}

/* Products to the gradient of a window: 6 numbers to 3. */
static inline void turn_back_to_window(const vf m[], vf y[])
{
    vf sum = m[1] + m[2], difference = m[1] - m[2];
    vf far_sum = m[3] + m[4], far_difference = m[3] - m[4];
    y[0] = m[0] + sum + far_sum;
    y[1] = vf_fma(vf_set(Q), far_difference, vf_times(P, difference));
    y[2] = vf_fma(vf_set(QQ), far_sum, vf_fma(vf_set(PP), sum, m[5]));
}

/* ---- tiles ------------------------------------------------------------------------------------ */

/* Pixels of an image that a tile covers: addresses of their channels, or of zeros. */
static void tile_pixels(const float *image, int64_t H, int64_t W, int64_t C, int64_t y0, int64_t x0,
                        int64_t side, const float *zeros, const float **out)
{
    for (int64_t r = 0; r < side; r++)
        for (int64_t c = 0; c < side; c++) {
            int64_t y = y0 + r, x = x0 + c;
            bool inside = y >= 0 && y < H && x >= 0 && x < W;
            out[r * side + c] = inside ? image + (y * W + x) * C : zeros;
        }
}

/* Where tile number `tile` of all images begins. */
typedef struct tile_place {
    int64_t image, y, x; /* y and x: of its first result */
} tile_place;

static tile_place tile_place_of(const tdm__winograd *w, int64_t tile)
{
    int64_t row = tile / w->tile_cols;
    return (tile_place){row / w->tile_rows, w->tile * (row % w->tile_rows),
                        w->tile * (tile % w->tile_cols)};
}

static inline __attribute__((always_inline)) void image_tile(const bool four,
                                                             const float *const at[], int64_t c,
                                                             float *to, int64_t place_stride)
{
    const int side = four ? 6 : 4;
    vf d[SIDE_MAX], t[SIDE_MAX][SIDE_MAX], column[SIDE_MAX];
#pragma GCC unroll 6
    for (int k = 0; k < side; k++) {
#pragma GCC unroll 6
        for (int r = 0; r < side; r++) d[r] = vf_load(at[r * side + k] + c);
        turn_image(four, d, column);
#pragma GCC unroll 6
        for (int r = 0; r < side; r++) t[r][k] = column[r];
    }
#pragma GCC unroll 6
    for (int r = 0; r < side; r++) {
        turn_image(four, t[r], d);
#pragma GCC unroll 6
        for (int k = 0; k < side; k++) vf_store(to + (r * side + k) * place_stride, d[k]);
    }
}

/* ---- forward and grad_x: windows -------------------------------------------------------------- */

typedef struct winograd_work {
    const tdm__winograd *w;
    int64_t side, places;
    int64_t chunk;              /* tiles */
    int64_t segments;           /* of C */
    int64_t u_stride;           /* from element to element */
    int64_t v_stride, m_stride; /* likewise, of a chunk */
    float *u, *rooms;           /* rooms: v and m of each thread */
    int64_t room_size;
    const float *zeros;
} winograd_work;

/* Row k of the panel that begins at column n, in the windows of one element. */
static inline float *window_row(const winograd_work *work, int64_t k, int64_t n)
{
    int64_t C = work->w->C, O = work->w->O, s = 0;
    while (tdm__product_segment_begin(C, work->segments, s + 1) <= k) s++;
    int64_t begin = tdm__product_segment_begin(C, work->segments, s);
    int64_t length = tdm__product_segment_begin(C, work->segments, s + 1) - begin;
    int64_t panel = n / PANEL_COLS * PANEL_COLS, width = product_min(PANEL_COLS, O - panel);
    return work->u + begin * O + panel * length + (k - begin) * width + (n - panel);
}

static inline __attribute__((always_inline)) void window_places(const bool four, const float *g,
                                                                int64_t row, int64_t pixel, vf *out)
{
    const int side = four ? 6 : 4;
    vf line[3], turned[SIDE_MAX], half[SIDE_MAX][3];
    for (int k = 0; k < 3; k++) {
        for (int r = 0; r < 3; r++) line[r] = vf_load(g + r * row + k * pixel);
        turn_window(four, line, turned);
        for (int r = 0; r < side; r++) half[r][k] = turned[r];
    }
    for (int r = 0; r < side; r++) turn_window(four, half[r], out + r * side);
}

/* grad_x: weights are [C, 3, 3, O] and rotated by 180 degrees, so that vectors run along the
 * columns of the panels. Units are rows k. */
static void fill_windows_back(const void *args, int64_t begin, int64_t end)
{
    const winograd_work *work = args;
    const tdm__winograd *w = work->w;
    vf out[PLACES_MAX];
    for (int64_t k = begin; k < end; k++)
        for (int64_t n = 0; n < w->O; n += TDM__WIDTH) {
            const float *last = w->weights + (k * 9 + 8) * w->O + n;
            window_places(true, last, -3 * w->O, -w->O, out);
            float *to = window_row(work, k, n);
            for (int64_t p = 0; p < work->places; p++) vf_store(to + p * work->u_stride, out[p]);
        }
}

/* Forward: weights are [O, 3, 3, C]; vectors run along k and are transposed. Units are WIDTH
 * columns. */
static void fill_windows(const void *args, int64_t begin, int64_t end)
{
    const winograd_work *work = args;
    const tdm__winograd *w = work->w;
    vf places[16];
    float buffer[16][TDM__WIDTH][TDM__WIDTH], turned[TDM__WIDTH * TDM__WIDTH];
    for (int64_t unit = begin; unit < end; unit++)
        for (int64_t k = 0; k < w->C; k += TDM__WIDTH) {
            int64_t n = unit * TDM__WIDTH;
            for (int64_t i = 0; i < TDM__WIDTH; i++) {
                const float *g = w->weights + (n + i) * 9 * w->C + k;
                window_places(false, g, 3 * w->C, w->C, places);
                for (int p = 0; p < 16; p++) vf_store(buffer[p][i], places[p]);
            }
            for (int p = 0; p < 16; p++) {
                const float *from[TDM__WIDTH];
                for (int i = 0; i < TDM__WIDTH; i++) from[i] = buffer[p][i];
                panel_turn_square(from, 0, turned, TDM__WIDTH);
                for (int i = 0; i < TDM__WIDTH; i++)
                    vf_store(window_row(work, k + i, n) + p * work->u_stride,
                             vf_load(turned + i * TDM__WIDTH));
            }
        }
}

/* ---- forward and grad_x: a chunk of tiles ----------------------------------------------------- */

static inline __attribute__((always_inline)) void chunk_transform(const bool four,
                                                                  const winograd_work *work,
                                                                  int64_t first, int64_t count,
                                                                  float *v)
{
    const tdm__winograd *w = work->w;
    const float *at[PLACES_MAX];
    for (int64_t i = 0; i < count; i++) {
        tile_place p = tile_place_of(w, first + i);
        tile_pixels(w->image + p.image * w->H * w->W * w->C, w->H, w->W, w->C, p.y - w->pad_top,
                    p.x - w->pad_left, work->side, work->zeros, at);
        for (int64_t c = 0; c < w->C; c += TDM__WIDTH)
            image_tile(four, at, c, v + i * w->C + c, work->v_stride);
    }
}

/* The products of all elements. */
static void chunk_multiply(const winograd_work *work, int64_t count, const float *v, float *m)
{
    const tdm__winograd *w = work->w;
    float *rows[TILE_ROWS];
    for (int64_t p = 0; p < work->places; p++)
        for (int64_t s = 0; s < work->segments; s++) {
            int64_t begin = tdm__product_segment_begin(w->C, work->segments, s);
            int64_t length = tdm__product_segment_begin(w->C, work->segments, s + 1) - begin;
            const float *u = work->u + p * work->u_stride + begin * w->O;
            for (int64_t n = 0; n < w->O; n += PANEL_COLS) {
                int64_t width = product_min(PANEL_COLS, w->O - n);
                for (int64_t i = 0; i < count; i += TILE_ROWS) {
                    /* A chunk has space for whole tiles: excess results are not read. */
                    int64_t height = tile_height(count - i);
                    tile_left left = {v + p * work->v_stride + i * w->C + begin, w->C, 1};
                    for (int64_t r = 0; r < height; r++)
                        rows[r] = m + p * work->m_stride + (i + r) * w->O + n;
                    tile_for(height, width)(&left, &(tile_right){u + n * length, width}, length,
                                            &(tile_end){.c = rows, .add = s > 0});
                }
            }
        }
}

static inline __attribute__((always_inline)) void chunk_results(const bool four,
                                                                const winograd_work *work,
                                                                int64_t first, int64_t count,
                                                                const float *m)
{
    const tdm__winograd *w = work->w;
    const int side = four ? 6 : 4, tile = four ? 4 : 2;
    for (int64_t i = 0; i < count; i++) {
        tile_place p = tile_place_of(w, first + i);
        float *to = w->result + ((p.image * w->out_H + p.y) * w->out_W + p.x) * w->O;
        int64_t rows = product_min(tile, w->out_H - p.y), cols = product_min(tile, w->out_W - p.x);
        for (int64_t o = 0; o < w->O; o += TDM__WIDTH) {
            const float *from = m + i * w->O + o;
            vf line[SIDE_MAX], turned[4], half[4][SIDE_MAX];
#pragma GCC unroll 6
            for (int k = 0; k < side; k++) {
#pragma GCC unroll 6
                for (int r = 0; r < side; r++)
                    line[r] = vf_load(from + (r * side + k) * work->m_stride);
                turn_back(four, line, turned);
#pragma GCC unroll 4
                for (int r = 0; r < tile; r++) half[r][k] = turned[r];
            }
#pragma GCC unroll 4
            for (int r = 0; r < tile; r++) {
                turn_back(four, half[r], turned);
#pragma GCC unroll 4
                for (int k = 0; k < tile; k++) {
                    if (r >= rows || k >= cols) continue;
                    vf y = turned[k];
                    if (w->bias) y += vf_load(w->bias + o);
                    vf_store(to + (r * w->out_W + k) * w->O + o, y);
                }
            }
        }
        if (w->activation == TDM_ACTIVATION_NONE) continue;
        for (int64_t r = 0; r < rows; r++)
            tdm__kernel_activate(w->activation, to + r * w->out_W * w->O, cols * w->O);
    }
}

/* Units are chunks. */
static void winograd_chunks(const void *args, int64_t begin, int64_t end)
{
    const winograd_work *work = args;
    const tdm__winograd *w = work->w;
    int64_t tiles_in_all = w->B * w->tile_rows * w->tile_cols;
    float *v = work->rooms + tdm_kernel_thread() * work->room_size;
    float *m = v + work->places * work->v_stride;
    for (int64_t u = begin; u < end; u++) {
        int64_t first = u * work->chunk, count = product_min(work->chunk, tiles_in_all - first);
        if (w->tile == 4) {
            chunk_transform(true, work, first, count, v);
            chunk_multiply(work, count, v, m);
            chunk_results(true, work, first, count, m);
        } else {
            chunk_transform(false, work, first, count, v);
            chunk_multiply(work, count, v, m);
            chunk_results(false, work, first, count, m);
        }
    }
}

/* Computes all sizes; returns the scratch size in numbers. */
static size_t winograd_lay_out(const tdm__winograd *w, float *scratch, winograd_work *work)
{
    int64_t side = w->tile + 2, tiles_in_all = w->B * w->tile_rows * w->tile_cols;
    int threads = tdm__kernel_threads();
    *work = (winograd_work){
        .w = w, .side = side, .places = side * side, .segments = tdm__product_segments(w->C)};
    /* With windows that do not stay in the cache, a chunk has more tiles for each read of them. */
    bool small = w->C * w->O * (int64_t)sizeof(float) <= WINDOWS_SMALL;
    work->chunk = small ? CHUNK_TILES : CHUNK_TILES_MAX;
    int64_t share = tdm_round_up((tiles_in_all + threads - 1) / threads, TILE_ROWS);
    work->chunk = tdm_round_up(product_min(work->chunk, share), TILE_ROWS);
    work->u_stride = w->C * w->O + APART;
    work->v_stride = work->chunk * w->C + APART;
    work->m_stride = work->chunk * w->O + APART;
    int64_t u_size = work->places * work->u_stride, zeros_size = tdm_round_up(w->C, ALIGN);
    work->room_size = work->places * (work->v_stride + work->m_stride);
    work->zeros = scratch;
    work->u = scratch + zeros_size;
    work->rooms = work->u + u_size;
    return (size_t)(zeros_size + u_size + threads * work->room_size);
}

static size_t winograd_scratch_bytes(const tdm__winograd *w)
{
    winograd_work work;
    return winograd_lay_out(w, NULL, &work) * sizeof(float);
}

static void winograd_run(const tdm__winograd *w, void *scratch)
{
    winograd_work work;
    winograd_lay_out(w, scratch, &work);
    memset(scratch, 0, (size_t)w->C * sizeof(float));
    if (w->back)
        tdm__vec_split(w->C, 40 * w->O, fill_windows_back, &work);
    else
        tdm__vec_split(w->O / TDM__WIDTH, 25 * w->C * TDM__WIDTH, fill_windows, &work);
    int64_t tiles_in_all = w->B * w->tile_rows * w->tile_cols;
    tdm__vec_split((tiles_in_all + work.chunk - 1) / work.chunk,
                   work.places * work.chunk * w->O * (w->C / 16 + 1), winograd_chunks, &work);
}

/* ---- grad_w ----------------------------------------------------------------------------------- */

typedef struct winograd_grad {
    const tdm__winograd *w;
    float *d_weights;
    int64_t block_o, block_c;             /* of a unit */
    int64_t x_stride, y_stride, g_stride; /* from element to element */
    float *rooms;
    int64_t room_size;
    const float *zeros;
} winograd_grad;

enum { PLACES = 36, SEGMENT = TDM__WINOGRAD_TILES };

/* Tiles [first, first + count) of x, channels [c0, c0 + cols), as right panels. */
static void grad_fill_x(const winograd_grad *g, int64_t first, int64_t count, int64_t c0,
                        int64_t cols, float *x)
{
    const tdm__winograd *w = g->w;
    const float *at[PLACES];
    for (int64_t i = 0; i < count; i++) {
        tile_place p = tile_place_of(w, first + i);
        tile_pixels(w->image + p.image * w->H * w->W * w->C, w->H, w->W, w->C, p.y - w->pad_top,
                    p.x - w->pad_left, 6, g->zeros, at);
        for (int64_t c = 0; c < cols; c += TDM__WIDTH) {
            int64_t panel = c / PANEL_COLS * PANEL_COLS;
            int64_t width = product_min(PANEL_COLS, cols - panel);
            image_tile(true, at, c0 + c, x + panel * count + i * width + (c - panel), g->x_stride);
        }
    }
}

/* The same tiles of dy, channels [o0, o0 + rows), each tile side by side. */
static void grad_fill_y(const winograd_grad *g, int64_t first, int64_t count, int64_t o0,
                        int64_t rows, float *y)
{
    const tdm__winograd *w = g->w;
    const float *at[16];
    for (int64_t i = 0; i < count; i++) {
        tile_place p = tile_place_of(w, first + i);
        tile_pixels(w->result + p.image * w->out_H * w->out_W * w->O, w->out_H, w->out_W, w->O, p.y,
                    p.x, 4, g->zeros, at);
        for (int64_t o = 0; o < rows; o += TDM__WIDTH) {
            vf line[4], turned[SIDE_MAX], half[SIDE_MAX][4];
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) {
#pragma GCC unroll 4
                for (int r = 0; r < 4; r++) line[r] = vf_load(at[r * 4 + k] + o0 + o);
                turn_result(line, turned);
#pragma GCC unroll 6
                for (int r = 0; r < 6; r++) half[r][k] = turned[r];
            }
#pragma GCC unroll 6
            for (int r = 0; r < 6; r++) {
                turn_result(half[r], turned);
#pragma GCC unroll 6
                for (int k = 0; k < 6; k++)
                    vf_store(y + (r * 6 + k) * g->y_stride + i * rows + o, turned[k]);
            }
        }
    }
}

/* g[element] (+)= y[element]^T x[element]. */
static void grad_multiply(const winograd_grad *g, int64_t count, int64_t rows, int64_t cols,
                          const float *y, const float *x, bool add, float *sums)
{
    float *to[TILE_ROWS];
    for (int64_t p = 0; p < PLACES; p++)
        for (int64_t c = 0; c < cols; c += PANEL_COLS) {
            int64_t width = product_min(PANEL_COLS, cols - c);
            for (int64_t o = 0; o < rows; o += TILE_ROWS) {
                int64_t height = tile_height(rows - o);
                tile_left left = {y + p * g->y_stride + o, 1, rows};
                for (int64_t r = 0; r < height; r++)
                    to[r] = sums + p * g->g_stride + (o + r) * g->block_c + c;
                tile_right right = {x + p * g->x_stride + c * count, width};
                tile_for(height, width)(&left, &right, count, &(tile_end){.c = to, .add = add});
            }
        }
}

/* The sums of a block to the gradient of the windows. */
static void grad_finish(const winograd_grad *g, int64_t o0, int64_t rows, int64_t c0, int64_t cols,
                        const float *sums)
{
    const tdm__winograd *w = g->w;
    for (int64_t o = 0; o < rows; o++)
        for (int64_t c = 0; c < cols; c += TDM__WIDTH) {
            const float *from = sums + o * g->block_c + c;
            float *to = g->d_weights + (o0 + o) * 9 * w->C + c0 + c;
            vf line[SIDE_MAX], turned[3], half[3][SIDE_MAX];
            for (int k = 0; k < 6; k++) {
                for (int r = 0; r < 6; r++) line[r] = vf_load(from + (r * 6 + k) * g->g_stride);
                turn_back_to_window(line, turned);
                for (int r = 0; r < 3; r++) half[r][k] = turned[r];
            }
            for (int r = 0; r < 3; r++) {
                turn_back_to_window(half[r], turned);
                for (int k = 0; k < 3; k++) vf_store(to + (3 * r + k) * w->C, turned[k]);
            }
        }
}

/* Units are blocks of the gradient. */
static void grad_blocks(const void *args, int64_t begin, int64_t end)
{
    const winograd_grad *g = args;
    const tdm__winograd *w = g->w;
    int64_t across = (w->C + g->block_c - 1) / g->block_c;
    int64_t tiles_in_all = w->B * w->tile_rows * w->tile_cols;
    int64_t segments = (tiles_in_all + SEGMENT - 1) / SEGMENT;
    float *x = g->rooms + tdm_kernel_thread() * g->room_size;
    float *y = x + PLACES * g->x_stride, *sums = y + PLACES * g->y_stride;
    for (int64_t u = begin; u < end; u++) {
        int64_t o0 = u / across * g->block_o, rows = product_min(g->block_o, w->O - o0);
        int64_t c0 = u % across * g->block_c, cols = product_min(g->block_c, w->C - c0);
        for (int64_t s = 0; s < segments; s++) {
            int64_t first = tiles_in_all * s / segments;
            int64_t count = tiles_in_all * (s + 1) / segments - first;
            grad_fill_x(g, first, count, c0, cols, x);
            grad_fill_y(g, first, count, o0, rows, y);
            grad_multiply(g, count, rows, cols, y, x, s > 0, sums);
        }
        grad_finish(g, o0, rows, c0, cols, sums);
    }
}

static size_t grad_lay_out(const tdm__winograd *w, float *scratch, winograd_grad *g)
{
    int threads = tdm__kernel_threads();
    *g = (winograd_grad){
        .w = w, .block_o = product_min(BLOCK_O, w->O), .block_c = product_min(BLOCK_C, w->C)};
    /* Enough units for all threads. */
    while (g->block_o > 16 &&
           ((w->O + g->block_o - 1) / g->block_o) * ((w->C + g->block_c - 1) / g->block_c) <
               threads)
        g->block_o = tdm_round_up(g->block_o / 2, 16);
    g->x_stride = SEGMENT * g->block_c + APART;
    g->y_stride = SEGMENT * g->block_o + APART;
    g->g_stride = g->block_o * g->block_c + APART;
    g->room_size = PLACES * (g->x_stride + g->y_stride + g->g_stride);
    int64_t zeros_size = tdm_round_up(w->C > w->O ? w->C : w->O, ALIGN);
    g->zeros = scratch;
    g->rooms = scratch + zeros_size;
    return (size_t)(zeros_size + threads * g->room_size);
}

static size_t grad_scratch_bytes(const tdm__winograd *w)
{
    winograd_grad g;
    return grad_lay_out(w, NULL, &g) * sizeof(float);
}

static void grad_run(const tdm__winograd *w, float *d_weights, void *scratch)
{
    winograd_grad g;
    grad_lay_out(w, scratch, &g);
    g.d_weights = d_weights;
    memset(scratch, 0, (size_t)(w->C > w->O ? w->C : w->O) * sizeof(float));
    int64_t units = ((w->O + g.block_o - 1) / g.block_o) * ((w->C + g.block_c - 1) / g.block_c);
    tdm__vec_split(units, w->B * w->tile_rows * w->tile_cols * g.block_o * g.block_c, grad_blocks,
                   &g);
}

const tdm__vec_winograd TDM__AT_LEVEL(tdm__vec_winograd) = {
    .scratch_bytes = winograd_scratch_bytes,
    .run = winograd_run,
    .grad_w_scratch_bytes = grad_scratch_bytes,
    .grad_w = grad_run,
};
