/*
 * product.c: a matrix product of bf16, divided into blocks for caches and threads; and the backend.
 *
 * The columns of the result are divided into ranges and k into lengths, such that the part of b
 * there, packed in pairs, fits into the L2 cache. For each of them, all threads pack b; then each
 * thread processes blocks of BLOCK rows of the result: it packs its rows of a into a panel, and
 * multiplies that by all columns of b. Incomplete blocks are padded with zeros. Subnormal numbers
 * are flushed to zero here regardless of the caller's mode.
 *
 * Scratch: b's pairs, then for each thread a panel of a, a read buffer, and a widened panel. Its
 * size does not depend on the unit, so that a plan needs the same memory on every CPU.
 */
#include "base/base.h"
#include "tensor/kernels/bf16/bf16.h"

#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum {
    MAX_LENGTH = 1024,         /* of k at a time */
    MAX_PAIRS_BYTES = 1 << 20, /* of b at a time */
    MAX_COLUMNS = 1024,
    ALIGN_BYTES = 64
};

/* How a product of N columns and K terms is divided. */
typedef struct cut {
    int64_t length;  /* of k, a multiple of STEP */
    int64_t columns; /* a multiple of BLOCK */
} cut;

static int64_t min_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static cut cut_of(int64_t N, int64_t K)
{
    cut c = {.length = min_of(tdm_round_up(K, TDM__BF16_STEP), MAX_LENGTH)};
    int64_t max = MAX_PAIRS_BYTES / (c.length * 2) / TDM__BF16_BLOCK * TDM__BF16_BLOCK;
    c.columns = min_of(tdm_round_up(N, TDM__BF16_BLOCK), min_of(max, MAX_COLUMNS));
    return c;
}

/* Elements of bf16: of b's pairs, of a thread's panel, of its read buffer, and of each thread's
 * total. */
static int64_t pairs_size(const cut *c)
{
    return c->length * c->columns;
}

static int64_t panel_size(const cut *c)
{
    return TDM__BF16_BLOCK * c->length;
}

static int64_t room_size(const cut *c)
{
    return TDM__BF16_BLOCK * (c->length > c->columns ? c->length : c->columns);
}

static int64_t wide_size(const cut *c)
{
    return c->length / TDM__BF16_STEP * TDM__BF16_WIDE_STEP * 2;
}

static int64_t thread_size(const cut *c)
{
    return panel_size(c) + room_size(c) + wide_size(c);
}

size_t tdm__bf16_scratch_bytes(int64_t N, int64_t K)
{
    cut c = cut_of(N, K);
    return (size_t)(pairs_size(&c) + thread_size(&c) * tdm__kernel_threads()) * sizeof(uint16_t);
}

/* One range of columns and of k. */
typedef struct piece {
    const tdm__bf16_product *product;
    cut cut;
    int64_t n, columns; /* the first column, and the number of columns */
    int64_t k, length;  /* likewise */
    int64_t steps, blocks;
    uint32_t *pairs;
    uint16_t *rooms; /* of all threads: panel, read buffer, widened panel */
} piece;

static uint16_t *panel_of(const piece *p)
{
    return p->rooms + tdm_kernel_thread() * thread_size(&p->cut);
}

/* Reads a block and pads it with zeros to BLOCK rows of `width`. */
static void read_block(const tdm__bf16_matrix *matrix, int64_t row, int64_t rows, int64_t col,
                       int64_t cols, uint16_t *to, int64_t width)
{
    matrix->read(matrix->source, row, rows, col, cols, to, width);
    size_t missing = (size_t)(width - cols) * sizeof(*to);
    for (int64_t r = 0; r < rows && missing > 0; r++) memset(to + r * width + cols, 0, missing);
    memset(to + rows * width, 0, (size_t)((TDM__BF16_BLOCK - rows) * width) * sizeof(*to));
}

/* ---- b ---------------------------------------------------------------------------------------- */

/* Units are blocks of columns, each read along k. */
static void pair_transposed(const void *args, int64_t begin, int64_t end)
{
    const piece *p = args;
    uint16_t *room = panel_of(p) + panel_size(&p->cut);
    int64_t width = p->steps * TDM__BF16_STEP;
    for (int64_t b = begin; b < end; b++) {
        int64_t first = b * TDM__BF16_BLOCK;
        read_block(&p->product->b, p->n + first, min_of(TDM__BF16_BLOCK, p->columns - first), p->k,
                   p->length, room, width);
        p->product->unit->vec->pair_columns(room, width, p->steps,
                                            p->pairs + b * p->steps * TDM__BF16_PAIRS);
    }
}

/* Units are steps of k, each read along the columns. */
static void pair_plain(const void *args, int64_t begin, int64_t end)
{
    const piece *p = args;
    uint16_t *room = panel_of(p) + panel_size(&p->cut);
    int64_t width = p->blocks * TDM__BF16_BLOCK;
    for (int64_t s = begin; s < end; s++) {
        int64_t first = s * TDM__BF16_STEP;
        read_block(&p->product->b, p->k + first, min_of(TDM__BF16_STEP, p->length - first), p->n,
                   p->columns, room, width);
        p->product->unit->vec->pair_rows(room, width, p->blocks, p->pairs + s * TDM__BF16_PAIRS,
                                         p->steps * TDM__BF16_PAIRS);
    }
}

/* ---- a, and the result ------------------------------------------------------------------------ */

static void fill_panel(const piece *p, int64_t m, int64_t rows, uint16_t *panel)
{
    const tdm__bf16_product *product = p->product;
    int64_t width = p->steps * TDM__BF16_STEP;
    uint16_t *room = panel + panel_size(&p->cut);
    if (!product->trans_a) {
        read_block(&product->a, m, rows, p->k, p->length, panel, width);
        return;
    }
    for (int64_t s = 0; s < p->steps; s++) {
        int64_t first = s * TDM__BF16_STEP;
        read_block(&product->a, p->k + first, min_of(TDM__BF16_STEP, p->length - first), m, rows,
                   room, TDM__BF16_BLOCK);
        product->unit->vec->turn(room, TDM__BF16_BLOCK, panel + first, width);
    }
}

/* Units are blocks of rows of the result. */
static void multiply_rows(const void *args, int64_t begin, int64_t end)
{
    const piece *p = args;
    const tdm__bf16_product *product = p->product;
    const tdm__bf16_vec *vec = product->unit->vec;
    const tdm__bf16_tiles *tiles = product->unit->tiles;
    bool begins = p->k == 0, ends = p->k + p->length == product->K;
    const float *bias = ends ? product->bias : NULL;
    bool active = ends && product->activation != TDM_ACTIVATION_NONE;
    float sum[TDM__BF16_BLOCK * TDM__BF16_BLOCK] __attribute__((aligned(ALIGN_BYTES)));
    uint16_t *panel = panel_of(p);
    float *wide = (float *)(panel + panel_size(&p->cut) + room_size(&p->cut));
    uint64_t control = tdm__control_word();
    bool flushes = (control & TDM__CONTROL_FLUSH) == TDM__CONTROL_FLUSH;
    if (!flushes) tdm__control_set(control | TDM__CONTROL_FLUSH);
    if (tiles) tiles->begin();
    for (int64_t u = begin; u < end; u++) {
        int64_t m = u * TDM__BF16_BLOCK, rows = min_of(TDM__BF16_BLOCK, product->M - m);
        fill_panel(p, m, rows, panel);
        if (!tiles) vec->widen(panel, p->steps * TDM__BF16_STEP, p->steps, wide);
        for (int64_t b = 0; b < p->blocks; b++) {
            int64_t n = p->n + b * TDM__BF16_BLOCK, cols = min_of(TDM__BF16_BLOCK, product->N - n);
            const uint32_t *pairs = p->pairs + b * p->steps * TDM__BF16_PAIRS;
            float *c = product->c + m * product->N + n;
            if (!begins) vec->fetch(c, product->N, rows, cols, sum);
            if (tiles)
                tiles->multiply(panel, p->steps * TDM__BF16_STEP, pairs, p->steps, begins, sum);
            else
                vec->multiply(wide, pairs, p->length, begins, rows, cols, sum);
            vec->write(sum, bias ? bias + n : NULL, rows, cols, c, product->N);
            for (int64_t r = 0; r < rows && active; r++)
                tdm__kernel_activate(product->activation, c + r * product->N, cols);
        }
    }
    if (tiles) tiles->end();
    if (!flushes) tdm__control_set(control);
}

void tdm__bf16_run(const tdm__bf16_product *product, void *scratch)
{
    piece p = {.product = product, .cut = cut_of(product->N, product->K), .pairs = scratch};
    p.rooms = (uint16_t *)scratch + pairs_size(&p.cut);
    int64_t units = (product->M + TDM__BF16_BLOCK - 1) / TDM__BF16_BLOCK;
    for (p.n = 0; p.n < product->N; p.n += p.cut.columns) {
        p.columns = min_of(p.cut.columns, product->N - p.n);
        p.blocks = (p.columns + TDM__BF16_BLOCK - 1) / TDM__BF16_BLOCK;
        for (p.k = 0; p.k < product->K; p.k += p.cut.length) {
            p.length = min_of(p.cut.length, product->K - p.k);
            p.steps = (p.length + TDM__BF16_STEP - 1) / TDM__BF16_STEP;
            if (product->trans_b)
                tdm_kernel_spread(p.blocks, p.length * TDM__BF16_BLOCK, pair_transposed, &p);
            else
                tdm_kernel_spread(p.steps, p.columns * TDM__BF16_STEP, pair_plain, &p);
            /* A product costs about an eighth of moving a number. */
            tdm_kernel_spread(units, TDM__BF16_BLOCK * p.columns * p.steps, multiply_rows, &p);
        }
    }
}

void tdm__bf16_read_plain(const void *source, int64_t row, int64_t rows, int64_t col, int64_t cols,
                          uint16_t *to, int64_t stride)
{
    const tdm__bf16_plain *plain = source;
    const uint16_t *from = plain->data + row * plain->stride + col;
    for (int64_t r = 0; r < rows; r++)
        memcpy(to + r * stride, from + r * plain->stride, (size_t)cols * sizeof(*to));
}

/* ---- units ------------------------------------------------------------------------------------ */

static const tdm__bf16_unit units[] = {
#if defined(__x86_64__)
    {"amx", 4, &tdm__bf16_vec_4, &tdm__bf16_amx},
    {"v4", 4, &tdm__bf16_vec_4, NULL},
    {"v3", 3, &tdm__bf16_vec_3, NULL},
    {"v2", 2, &tdm__bf16_vec_2, NULL},
#else
    {"vec", 0, &tdm__bf16_vec_0, NULL},
#endif
};

#if defined(__x86_64__)
/* Bits of CPUID leaf 7, and of the states that the system saves: 512-bit vectors, and tiles; and
 * the permission that a process must request for tiles, because their state is large. */
enum {
    HAS_TILES = 1 << 24,
    HAS_BF16 = 1 << 22,
    SAVES_ALL = 0x600e6,
    REQUEST_PERMISSION = 0x1023,
    TILE_DATA = 18
};

static bool has_tiles(void)
{
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    if (!(d & HAS_TILES) || !(d & HAS_BF16)) return false;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & SAVES_ALL) != SAVES_ALL) return false;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#else
static bool has_tiles(void)
{
    return false;
}
#endif

const tdm__bf16_unit *tdm__bf16_unit_at(size_t index)
{
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
        if (units[i].level <= tdm_kernel_level() && (!units[i].tiles || has_tiles()) &&
            index-- == 0)
            return &units[i];
    return NULL;
}

/* ---- the backend ------------------------------------------------------------------------------ */

static tdm_status bf16_open(void **out, tdm_error *err)
{
    (void)err;
    *out = (void *)(uintptr_t)tdm__bf16_unit_at(0);
    return TDM_OK;
}

static void bf16_close(void *backend)
{
    (void)backend; /* a constant */
}

static const tdm_kernel_family *const families[] = {&tdm__bf16_matmul, &tdm__bf16_conv, NULL};

const tdm_kernel_backend_ops tdm__kernels_bf16 = {
    .name = "bf16",
    .open = bf16_open,
    .close = bf16_close,
    .families = families,
};
