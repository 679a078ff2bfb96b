/*
 * lowrank.c: PowerSGD (Vogels, Karimireddy and Jaggi, 2019).
 *
 * Both factors are stored by columns: column k of P is p[k rows, (k + 1) rows), and column k of Q likewise, so that
 * every loop reads numbers in sequence. The order of each sum is fixed:
 *   P = M Q    each element has 16 partial sums over the columns of M;
 *   Q = M^T P  the rows of M in groups of ROWS, in order within a group, then group by group;
 *   P Q^T      the rank, in increasing order;
 *   norms and products of columns: in f64, 16 partial sums.
 * So threads can share rows, or blocks of columns, in any way.
 */
#include "codec/internal.h"

#include <math.h>

enum { ROWS = 256, COLUMNS = 256, PASSES = 2 };

/* A column is dependent if orthogonalisation leaves less than this of its norm: f32 has lost the rest. */
static const double dependent = 1e-5;

/* One matrix; pointers are to its first number. */
typedef struct work {
    const tdm_codec *codec;
    size_t rows, cols, elements;
    int rank;
    const float *m, *p, *q;
    float *out;
    float weight;
    tdm__codec_step step;
} work;

static work work_of(const tdm_codec *codec, size_t tensor)
{
    const tdm__codec_matrix *matrix = &codec->matrices[tensor];
    return (work){.codec = codec,
                  .rows = matrix->rows,
                  .cols = matrix->cols,
                  .elements = codec->tensors[tensor].elements,
                  .rank = codec->options.rank};
}

size_t tdm_codec_lowrank_p_elements(const tdm_codec *codec)
{
    return codec->p_elements;
}

size_t tdm_codec_lowrank_q_elements(const tdm_codec *codec)
{
    return codec->q_elements;
}

bool tdm_codec_lowrank_has(const tdm_codec *codec, size_t tensor)
{
    return codec->options.rank > 0 && tensor < codec->count && codec->matrices[tensor].is_lowrank;
}

/* ---- Q of the step before --------------------------------------------------------------------- */

void tdm_codec_lowrank_start(const tdm_codec *codec, const tdm_codec_key *key, float *q)
{
    tdm_kernel_mode mode = tdm__codec_enter();
    for (size_t i = 0; i < codec->count; i++) {
        const tdm__codec_matrix *matrix = &codec->matrices[i];
        for (size_t k = 0; matrix->is_lowrank && k < (size_t)codec->options.rank; k++) {
            float *column = q + matrix->q + k * matrix->cols;
            if (codec->loops->largest(column, matrix->cols) != 0) continue;
            /* Each column begins at a multiple of the block of random numbers. */
            size_t first = k * (size_t)tdm_round_up((int64_t)matrix->cols, TDM_KERNEL_RANDOM_BLOCK);
            tdm_kernel_normal(
                tdm__codec_address(key->seed, key->step, 0, i, TDM__CODEC_PURPOSE_FACTOR), 1, first,
                column, matrix->cols);
        }
    }
    tdm_kernel_leave(&mode);
}

/* ---- P = M Q ---------------------------------------------------------------------------------- */

/* Pieces of a tensor: M is the clipped gradient plus the residual. */
static void range_step(const void *args, int64_t begin, int64_t end)
{
    const work *w = args;
    for (int64_t p = begin; p < end; p++) {
        size_t first = (size_t)p * TDM__CODEC_PIECE;
        size_t last = tdm__codec_min(first + TDM__CODEC_PIECE, w->elements);
        w->codec->loops->accumulate(&w->step, first, last);
        w->codec->pieces[p].is_bad = !w->codec->loops->is_finite(w->step.value + first,
                                                                 last - first);
    }
}

static void range_project(const void *args, int64_t begin, int64_t end)
{
    const work *w = args;
    for (size_t row = (size_t)begin; row < (size_t)end; row++)
        for (size_t k = 0; k < (size_t)w->rank; k++)
            w->out[k * w->rows + row] = w->codec->loops->dot(w->m + row * w->cols,
                                                             w->q + k * w->cols, w->cols);
}

static tdm_status project_tensor(tdm_codec *codec, size_t tensor, work *w, const float *q, float *p,
                                 tdm_error *err)
{
    const tdm__codec_matrix *matrix = &codec->matrices[tensor];
    tdm__codec_spread(w->elements, range_step, w);
    for (size_t piece = 0; piece < tdm__codec_pieces_of(w->elements); piece++)
        if (codec->pieces[piece].is_bad)
            return tdm_fail(err, TDM_ERR_DIVERGED,
                            "codec: the gradient of tensor '%s', or its sum with the residual, has "
                            "a number that is not finite; use a smaller learning rate or clip the "
                            "gradient",
                            codec->tensors[tensor].name);
    w->out = p + matrix->p;
    w->q = q + matrix->q;
    if (matrix->is_lowrank)
        tdm_kernel_spread((int64_t)w->rows, (int64_t)w->cols * w->rank, range_project, w);
    else if (w->elements > 0)
        memcpy(w->out, w->m, w->elements * sizeof(*w->out));
    return TDM_OK;
}

tdm_status tdm_codec_lowrank_project(tdm_codec *codec, float *grad, const float *const *before,
                                     const float *q, float *m, float *p, tdm_error *err)
{
    float clip;
    tdm_kernel_mode mode = tdm__codec_enter();
    tdm_status status = tdm__codec_clip(codec, grad, &clip, err);
    for (size_t i = 0; i < codec->count && status == TDM_OK; i++) {
        size_t at = codec->tensors[i].offset;
        work w = work_of(codec, i);
        w.step = (tdm__codec_step){.grad = grad + at, .clip = clip, .value = m + at};
        if (codec->options.feedback) w.step.residual = before[0] + at;
        w.m = m + at;
        status = project_tensor(codec, i, &w, q, p, err);
    }
    tdm_kernel_leave(&mode);
    return status;
}

/* ---- orthonormal columns ---------------------------------------------------------------------- */

/* Two passes of the modified Gram-Schmidt process: the second removes the rounding errors of the first. */
static void orthogonalise(const tdm__codec_loops *loops, float *p, size_t rows, int rank)
{
    for (int k = 0; k < rank; k++) {
        float *column = p + (size_t)k * rows;
        double before = sqrt(loops->sum_squares(column, rows));
        for (int pass = 0; pass < PASSES; pass++)
            for (int i = 0; i < k; i++) {
                const float *other = p + (size_t)i * rows;
                loops->subtract(column, (float)loops->dot_wide(column, other, rows), other, rows);
            }
        double norm = sqrt(loops->sum_squares(column, rows));
        bool is_kept = norm > dependent * before && norm > 0x1p-120;
        loops->scale(column, rows, is_kept ? (float)(1.0 / norm) : 0);
    }
}

void tdm_codec_lowrank_orthogonalise(const tdm_codec *codec, float *p)
{
    tdm_kernel_mode mode = tdm__codec_enter();
    for (size_t i = 0; i < codec->count; i++)
        if (tdm_codec_lowrank_has(codec, i))
            orthogonalise(codec->loops, p + codec->matrices[i].p, codec->matrices[i].rows,
                          codec->options.rank);
    tdm_kernel_leave(&mode);
}

/* ---- Q = M^T P -------------------------------------------------------------------------------- */

/* Blocks of columns of M, which are rows of Q. */
static void range_back(const void *args, int64_t begin, int64_t end)
{
    const work *w = args;
    const tdm__codec_loops *loops = w->codec->loops;
    for (size_t block = (size_t)begin; block < (size_t)end; block++) {
        size_t first = block * COLUMNS, count = tdm__codec_min(w->cols - first, COLUMNS);
        for (size_t k = 0; k < (size_t)w->rank; k++)
            memset(w->out + k * w->cols + first, 0, count * sizeof(*w->out));
        for (size_t row = 0; row < w->rows; row += ROWS)
            for (size_t k = 0; k < (size_t)w->rank; k++)
                loops->add_rows(w->m + row * w->cols + first, w->cols, w->p + k * w->rows + row,
                                tdm__codec_min(w->rows - row, ROWS), w->out + k * w->cols + first,
                                count);
    }
}

void tdm_codec_lowrank_back(const tdm_codec *codec, const float *m, const float *p, float *q)
{
    tdm_kernel_mode mode = tdm__codec_enter();
    for (size_t i = 0; i < codec->count; i++) {
        if (!tdm_codec_lowrank_has(codec, i)) continue;
        work w = work_of(codec, i);
        w.m = m + codec->tensors[i].offset;
        w.p = p + codec->matrices[i].p;
        w.out = q + codec->matrices[i].q;
        tdm_kernel_spread((int64_t)((w.cols + COLUMNS - 1) / COLUMNS),
                          (int64_t)w.rows * COLUMNS * w.rank, range_back, &w);
    }
    tdm_kernel_leave(&mode);
}

/* ---- P Q^T ------------------------------------------------------------------------------------ */

static void range_reconstruct(const void *args, int64_t begin, int64_t end)
{
    const work *w = args;
    for (size_t row = (size_t)begin; row < (size_t)end; row++)
        w->codec->loops->mix(w->p + row, w->rows, w->q, w->cols, w->rank, w->out + row * w->cols,
                             w->cols);
}

static void reconstruct_tensor(const tdm_codec *codec, size_t tensor, const float *p,
                               const float *q, size_t begin, size_t end, float *out)
{
    const tdm__codec_matrix *matrix = &codec->matrices[tensor];
    size_t at = codec->tensors[tensor].offset, width = matrix->is_lowrank ? matrix->cols : 1;
    size_t first = begin > at ? (begin - at) / width : 0;
    size_t last = (tdm__codec_min(end - at, codec->tensors[tensor].elements) + width - 1) / width;
    work w = work_of(codec, tensor);
    w.p = p + matrix->p + first;
    w.q = q + matrix->q;
    w.out = out + at + first * width;
    if (matrix->is_lowrank)
        tdm_kernel_spread((int64_t)(last - first), (int64_t)w.cols * w.rank, range_reconstruct, &w);
    else /* no number becomes -0, as in a product: so adding 0 changes none */
        for (size_t i = 0; i < last - first; i++) w.out[i] = w.p[i] + 0.0f;
}

void tdm_codec_lowrank_reconstruct(const tdm_codec *codec, const float *p, const float *q,
                                   size_t begin, size_t end, float *out)
{
    tdm_kernel_mode mode = tdm__codec_enter();
    for (size_t i = 0; i < codec->count; i++) {
        const tdm_codec_tensor *t = &codec->tensors[i];
        if (t->elements > 0 && t->offset < end && t->offset + t->elements > begin)
            reconstruct_tensor(codec, i, p, q, begin, end, out);
    }
    tdm_kernel_leave(&mode);
}

/* The rows in parts, so that P Q^T of a part is in the cache. */
static void range_residual(const void *args, int64_t begin, int64_t end)
{
    const work *w = args;
    float part[COLUMNS];
    for (size_t row = (size_t)begin; row < (size_t)end; row++)
        for (size_t first = 0; first < w->cols; first += COLUMNS) {
            size_t count = tdm__codec_min(w->cols - first, COLUMNS), at = row * w->cols + first;
            w->codec->loops->mix(w->p + row, w->rows, w->q + first, w->cols, w->rank, part, count);
            w->codec->loops->rest_of(w->m + at, w->weight, part, w->out + at, count);
        }
}

void tdm_codec_lowrank_residual(const tdm_codec *codec, const float *m, const float *p,
                                const float *q, double weight, float *residual)
{
    tdm_kernel_mode mode = tdm__codec_enter();
    for (size_t i = 0; i < codec->count; i++) {
        size_t at = codec->tensors[i].offset;
        work w = work_of(codec, i);
        w.m = m + at;
        w.p = p + codec->matrices[i].p;
        w.q = q + codec->matrices[i].q;
        w.out = residual + at;
        w.weight = (float)weight;
        if (tdm_codec_lowrank_has(codec, i))
            tdm_kernel_spread((int64_t)w.rows, (int64_t)w.cols * w.rank, range_residual, &w);
        else if (w.elements > 0)
            memset(w.out, 0, w.elements * sizeof(*w.out));
    }
    tdm_kernel_leave(&mode);
}
