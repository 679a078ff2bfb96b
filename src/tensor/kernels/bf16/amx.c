/*
 * amx.c: a matrix product cut into blocks for the matrix unit, its caches and threads; and the backend.
 *
 * The columns of the result are cut into stretches, k into lengths, such that what b has there, put
 * into pairs, fits into the second-level cache. For each of them: all threads bring b into pairs; then
 * each takes BLOCK rows of the result after another, copies its rows of a into a panel, and multiplies
 * that by all of b's columns. What a matrix lacks to a whole block is filled up with zeros.
 *
 * Scratch: b's pairs, then for each thread a panel of a, and room to read into.
 */
#include "tensor/kernels/bf16/amx.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    LENGTH_MOST = 1024,         /* of k at a time */
    PAIRS_BYTES_MOST = 1 << 20, /* of b at a time */
    COLUMNS_MOST = 1024,
    ALIGN_BYTES = 64,
    /* What the kernel must allow a process: the state of tiles is large. */
    REQUEST_PERMISSION = 0x1023,
    TILE_DATA = 18
};

/* How a product of N columns and K terms is cut. */
typedef struct cut {
    int64_t length;  /* of k, a multiple of STEP */
    int64_t columns; /* a multiple of BLOCK */
} cut;

static int64_t round_up(int64_t count, int64_t to)
{
    return (count + to - 1) / to * to;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static cut cut_of(int64_t N, int64_t K)
{
    cut c = {.length = least(round_up(K, TDM__AMX_STEP), LENGTH_MOST)};
    int64_t most = PAIRS_BYTES_MOST / (c.length * 2) / TDM__AMX_BLOCK * TDM__AMX_BLOCK;
    c.columns = least(round_up(N, TDM__AMX_BLOCK), least(most, COLUMNS_MOST));
    return c;
}

/* Elements of bf16: of b's pairs, of a thread's panel, and of its room to read into. */
static int64_t pairs_size(const cut *c)
{
    return c->length * c->columns;
}

static int64_t panel_size(const cut *c)
{
    return TDM__AMX_BLOCK * c->length;
}

static int64_t room_size(const cut *c)
{
    return TDM__AMX_BLOCK * (c->length > c->columns ? c->length : c->columns);
}

size_t tdm__amx_scratch_bytes(int64_t N, int64_t K)
{
    cut c = cut_of(N, K);
    int64_t each = panel_size(&c) + room_size(&c);
    return (size_t)(pairs_size(&c) + each * tdm__kernel_threads()) * sizeof(uint16_t);
}

/* One stretch of columns and length of k. */
typedef struct piece {
    const tdm__amx_product *product;
    cut cut;
    int64_t n, columns; /* the columns, and how many there really are */
    int64_t k, length;  /* likewise */
    int64_t steps, blocks;
    uint32_t *pairs;
    uint16_t *rooms; /* of all threads: panel, then room to read into */
} piece;

static uint16_t *panel_of(const piece *p)
{
    return p->rooms + tdm_kernel_thread() * (panel_size(&p->cut) + room_size(&p->cut));
}

/* Reads a block and fills it up with zeros to BLOCK rows of `width`. */
static void read_block(const tdm__amx_matrix *matrix, int64_t row, int64_t rows, int64_t col,
                       int64_t cols, uint16_t *to, int64_t width)
{
    matrix->read(matrix->source, row, rows, col, cols, to, width);
    size_t missing = (size_t)(width - cols) * sizeof(*to);
    for (int64_t r = 0; r < rows && missing > 0; r++) memset(to + r * width + cols, 0, missing);
    memset(to + rows * width, 0, (size_t)((TDM__AMX_BLOCK - rows) * width) * sizeof(*to));
}

/* ---- b --------------------------------------------------------------------------------------- */

/* Units are blocks of columns, each read along k. */
static void pair_transposed(const void *args, int64_t begin, int64_t end)
{
    const piece *p = args;
    uint16_t *room = panel_of(p) + panel_size(&p->cut);
    int64_t width = p->steps * TDM__AMX_STEP;
    for (int64_t b = begin; b < end; b++) {
        int64_t first = b * TDM__AMX_BLOCK;
        read_block(&p->product->b, p->n + first, least(TDM__AMX_BLOCK, p->columns - first), p->k,
                   p->length, room, width);
        tdm__amx_pair_columns(room, width, p->steps, p->pairs + b * p->steps * TDM__AMX_PAIRS);
    }
}

/* Units are steps of k, each read along the columns. */
static void pair_plain(const void *args, int64_t begin, int64_t end)
{
    const piece *p = args;
    uint16_t *room = panel_of(p) + panel_size(&p->cut);
    int64_t width = p->blocks * TDM__AMX_BLOCK;
    for (int64_t s = begin; s < end; s++) {
        int64_t first = s * TDM__AMX_STEP;
        read_block(&p->product->b, p->k + first, least(TDM__AMX_STEP, p->length - first), p->n,
                   p->columns, room, width);
        tdm__amx_pair_rows(room, width, p->blocks, p->pairs + s * TDM__AMX_PAIRS,
                           p->steps * TDM__AMX_PAIRS);
    }
}

/* ---- a, and the result ----------------------------------------------------------------------- */

static void fill_panel(const piece *p, int64_t m, int64_t rows, uint16_t *panel)
{
    const tdm__amx_product *product = p->product;
    int64_t width = p->steps * TDM__AMX_STEP;
    uint16_t *room = panel + panel_size(&p->cut);
    if (!product->trans_a) {
        read_block(&product->a, m, rows, p->k, p->length, panel, width);
        return;
    }
    for (int64_t s = 0; s < p->steps; s++) {
        int64_t first = s * TDM__AMX_STEP;
        read_block(&product->a, p->k + first, least(TDM__AMX_STEP, p->length - first), m, rows,
                   room, TDM__AMX_BLOCK);
        tdm__amx_turn(room, TDM__AMX_BLOCK, panel + first, width);
    }
}

/* Units are blocks of rows of the result. */
static void multiply_rows(const void *args, int64_t begin, int64_t end)
{
    const piece *p = args;
    const tdm__amx_product *product = p->product;
    bool begins = p->k == 0, ends = p->k + p->length == product->K;
    const float *bias = ends ? product->bias : NULL;
    bool active = ends && product->activation != TDM_ACTIVATION_NONE;
    float sum[TDM__AMX_BLOCK * TDM__AMX_BLOCK] __attribute__((aligned(ALIGN_BYTES)));
    uint16_t *panel = panel_of(p);
    tdm__amx_begin();
    for (int64_t u = begin; u < end; u++) {
        int64_t m = u * TDM__AMX_BLOCK, rows = least(TDM__AMX_BLOCK, product->M - m);
        fill_panel(p, m, rows, panel);
        for (int64_t b = 0; b < p->blocks; b++) {
            int64_t n = p->n + b * TDM__AMX_BLOCK, cols = least(TDM__AMX_BLOCK, product->N - n);
            float *c = product->c + m * product->N + n;
            if (!begins) tdm__amx_fetch(c, product->N, rows, cols, sum);
            tdm__amx_multiply(panel, p->steps * TDM__AMX_STEP,
                              p->pairs + b * p->steps * TDM__AMX_PAIRS, p->steps, begins, sum);
            tdm__amx_write(sum, bias ? bias + n : NULL, rows, cols, c, product->N);
            for (int64_t r = 0; r < rows && active; r++)
                tdm__kernel_activate(product->activation, c + r * product->N, cols);
        }
    }
    tdm__amx_end();
}

void tdm__amx_run(const tdm__amx_product *product, void *scratch)
{
    piece p = {.product = product, .cut = cut_of(product->N, product->K), .pairs = scratch};
    p.rooms = (uint16_t *)scratch + pairs_size(&p.cut);
    int64_t units = (product->M + TDM__AMX_BLOCK - 1) / TDM__AMX_BLOCK;
    for (p.n = 0; p.n < product->N; p.n += p.cut.columns) {
        p.columns = least(p.cut.columns, product->N - p.n);
        p.blocks = (p.columns + TDM__AMX_BLOCK - 1) / TDM__AMX_BLOCK;
        for (p.k = 0; p.k < product->K; p.k += p.cut.length) {
            p.length = least(p.cut.length, product->K - p.k);
            p.steps = (p.length + TDM__AMX_STEP - 1) / TDM__AMX_STEP;
            if (product->trans_b)
                tdm_kernel_spread(p.blocks, p.length * TDM__AMX_BLOCK, pair_transposed, &p);
            else
                tdm_kernel_spread(p.steps, p.columns * TDM__AMX_STEP, pair_plain, &p);
            /* A product costs about an eighth of what moving a number does. */
            tdm_kernel_spread(units, TDM__AMX_BLOCK * p.columns * p.steps, multiply_rows, &p);
        }
    }
}

void tdm__amx_read_plain(const void *source, int64_t row, int64_t rows, int64_t col, int64_t cols,
                         uint16_t *to, int64_t stride)
{
    const tdm__amx_plain *plain = source;
    const uint16_t *from = plain->data + row * plain->stride + col;
    for (int64_t r = 0; r < rows; r++)
        memcpy(to + r * stride, from + r * plain->stride, (size_t)cols * sizeof(*to));
}

/* ---- the backend ----------------------------------------------------------------------------- */

/* Bits of leaf 7, and of the states that the system saves: vectors of 512 bits, and tiles. */
enum { HAS_TILES = 1 << 24, HAS_BF16 = 1 << 22, SAVES_ALL = 0x600e6 };

bool tdm__amx_here(void)
{
    unsigned a, b, c, d, low, high;
    if (tdm_kernel_level() < 4 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    if (!(d & HAS_TILES) || !(d & HAS_BF16)) return false;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & SAVES_ALL) != SAVES_ALL) return false;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

static const tdm_kernel_family *const families[] = {&tdm__amx_matmul, &tdm__amx_conv, NULL};

const tdm_kernel_backend_ops tdm__kernels_amx = {
    .name = "amx",
    .level = 4,
    .families = families,
};

#endif
