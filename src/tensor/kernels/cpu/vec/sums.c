/*
 * sums.c: sums over rows, over an axis, over all elements; and their gradients.
 *
 * A tensor is viewed as [outer, size, inner] around its axis. With inner > 1 the sums are over
 * rows, which are streamed: four at a time are added into a block of columns that stays in the L1
 * cache, and after GROUP_ROWS rows that block is added to the result, so that the error grows with
 * size / GROUP_ROWS and not with size. With inner = 1 each run of numbers is divided into pieces of
 * PIECE, each summed in double precision, and the pieces are added in order. Neither depends on the
 * number of threads, and the bits of a column do not depend on its neighbours.
 */
#include "tensor/kernels/cpu/vec/vec.h"

enum { BLOCK_COLUMNS = 192, GROUP_ROWS = 256, PIECE = 32768 };

typedef struct work {
    int64_t outer, size, inner;
    const float *x;
    float *out;
    double *partial;
    int64_t piece_count; /* of one run */
    int64_t block_count; /* of one row */
    float scale;
} work;

/* Axis -1 means all elements: one outer, one inner. */
static work work_at(const tdm_shape *shape, int axis)
{
    work w = {.outer = 1, .size = 1, .inner = 1};
    if (axis < 0)
        w.size = tdm_shape_elements(shape);
    else
        for (int i = 0; i < shape->rank; i++)
            *(i < axis ? &w.outer : i == axis ? &w.size : &w.inner) *= shape->dim[i];
    w.piece_count = (w.size + PIECE - 1) / PIECE;
    w.block_count = (w.inner + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS;
    return w;
}

/* ---- over rows -------------------------------------------------------------------------------- */

/* to[i] += the sum of x[row][i] over `rows` rows, `stride` apart. */
static void add_rows(const float *x, int64_t rows, int64_t stride, int64_t count, float *to)
{
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) {
        const float *a = x + r * stride, *b = a + stride, *c = b + stride, *d = c + stride;
        for (int64_t i = 0; i < count; i += TDM__WIDTH) {
            int64_t left = count - i;
            vf first = vf_load_up_to(a + i, left, 0) + vf_load_up_to(b + i, left, 0);
            vf second = vf_load_up_to(c + i, left, 0) + vf_load_up_to(d + i, left, 0);
            vf_store(to + i, vf_load(to + i) + (first + second));
        }
    }
    for (; r < rows; r++)
        for (int64_t i = 0; i < count; i += TDM__WIDTH)
            vf_store(to + i, vf_load(to + i) + vf_load_up_to(x + r * stride + i, count - i, 0));
}

/* A unit is one block of columns of one outer index. */
static void range_columns(const void *args, int64_t begin, int64_t end)
{
    const work *w = args;
    float total[BLOCK_COLUMNS], group[BLOCK_COLUMNS]; /* whole vectors, the last one padded */
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t o = unit / w->block_count, column = unit % w->block_count * BLOCK_COLUMNS;
        int64_t count = w->inner - column < BLOCK_COLUMNS ? w->inner - column : BLOCK_COLUMNS;
        const float *x = w->x + o * w->size * w->inner + column;
        memset(total, 0, sizeof(total));
        for (int64_t r = 0; r < w->size; r += GROUP_ROWS) {
            int64_t rows = w->size - r < GROUP_ROWS ? w->size - r : GROUP_ROWS;
            memset(group, 0, sizeof(group));
            add_rows(x + r * w->inner, rows, w->inner, count, group);
            for (int64_t i = 0; i < count; i += TDM__WIDTH)
                vf_store(total + i, vf_load(total + i) + vf_load(group + i));
        }
        float *out = w->out + o * w->inner + column;
        for (int64_t i = 0; i < count; i += TDM__WIDTH)
            vf_store_up_to(out + i, count - i, vf_load(total + i) * w->scale);
    }
}

static void sum_columns(const work *w)
{
    int64_t columns = w->inner < BLOCK_COLUMNS ? w->inner : BLOCK_COLUMNS;
    tdm__vec_split(w->outer * w->block_count, w->size * columns, range_columns, w);
}

/* ---- over runs -------------------------------------------------------------------------------- */

/* A unit is one piece of one run. */
static void range_pieces(const void *args, int64_t begin, int64_t end)
{
    const work *w = args;
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t o = unit / w->piece_count, first = unit % w->piece_count * PIECE;
        int64_t count = w->size - first < PIECE ? w->size - first : PIECE;
        const float *x = w->x + o * w->size + first;
        vsum sum = VSUM_ZERO;
        for (int64_t i = 0; i < count; i += TDM__PLACES)
            for (int p = 0; p < TDM__PARTS; p++) {
                int64_t at = i + p * TDM__WIDTH;
                vsum_add(&sum.part[p], vf_load_up_to(x + at, count - at, 0));
            }
        w->partial[unit] = vsum_total(&sum);
    }
}

static void sum_runs(const work *w, double scale)
{
    int64_t piece = w->size < PIECE ? w->size : PIECE;
    tdm__vec_split(w->outer * w->piece_count, piece, range_pieces, w);
    for (int64_t o = 0; o < w->outer; o++) {
        double sum = 0;
        for (int64_t i = 0; i < w->piece_count; i++) sum += w->partial[o * w->piece_count + i];
        w->out[o] = (float)(sum * scale);
    }
}

/* ---- the ops ---------------------------------------------------------------------------------- */

static tdm_status prepare_reduce(void *backend, tdm_kernel_call *call, tdm_error *err)
{
    (void)backend;
    (void)err;
    work w = work_at(&call->in[0].shape, call->attrs.axis);
    if (w.inner == 1) call->scratch_bytes = (size_t)(w.outer * w.piece_count) * sizeof(double);
    return TDM_OK;
}

static void run_reduce(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    work w = work_at(&call->in[0].shape, call->attrs.axis);
    w.x = call->in[0].data;
    w.out = call->out[0].data;
    w.partial = call->scratch;
    w.scale = (float)call->attrs.scale;
    if (w.inner == 1)
        sum_runs(&w, call->attrs.scale);
    else
        sum_columns(&w);
}

static void run_sum_rows(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    work w = work_at(&call->in[0].shape, 0);
    w.x = call->in[0].data;
    w.out = call->out[0].data;
    w.scale = 1;
    sum_columns(&w);
}

/* Broadcasts each of dy [outer, inner] over the axis. A unit is one outer index. */
static void range_spread(const void *args, int64_t begin, int64_t end)
{
    const work *w = args;
    for (int64_t o = begin; o < end; o++) {
        const float *dy = w->x + o * w->inner;
        float *dx = w->out + o * w->size * w->inner;
        for (int64_t s = 0; s < w->size && w->inner > 1; s++)
            for (int64_t i = 0; i < w->inner; i += TDM__WIDTH)
                vf_store_up_to(dx + s * w->inner + i, w->inner - i,
                               vf_load_up_to(dy + i, w->inner - i, 0) * w->scale);
        for (int64_t s = 0; s < w->size && w->inner == 1; s += TDM__WIDTH)
            vf_store_up_to(dx + s, w->size - s, vf_set(dy[0] * w->scale));
    }
}

static void run_reduce_grad(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    work w = work_at(&call->out[0].shape, call->attrs.axis);
    w.x = call->in[0].data;
    w.out = call->out[0].data;
    w.scale = (float)call->attrs.scale;
    tdm__vec_split(w.outer, w.size * w.inner, range_spread, &w);
}

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_SUM_ROWS, .dtype = TDM_DTYPE_F32, .run = run_sum_rows},
    {.op = TDM_OP_REDUCE, .dtype = TDM_DTYPE_F32, .prepare = prepare_reduce, .run = run_reduce},
    {.op = TDM_OP_REDUCE_GRAD, .dtype = TDM_DTYPE_F32, .run = run_reduce_grad},
};

const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_sums) = {kernels,
                                                        sizeof(kernels) / sizeof(kernels[0])};
