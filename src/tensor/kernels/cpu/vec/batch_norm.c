/*
 * batch_norm.c: batch norm of x [..., C]: row by row, with channels in vectors.
 *
 * The formulas are those of ref/batch_norm.c. Sums over rows use blocks of BLOCK_ROWS rows: within
 * a block in f32, in registers; the sums of the blocks are in scratch and are combined in double
 * precision, in their order. So a million rows lose no more precision than a block does, x is read
 * from memory once for both statistics (a block's squares are computed about its own mean while it
 * is in the cache, and combined by Chan's formula), and the bits do not depend on the number of
 * threads.
 *
 * Scratch: SUMS numbers for each channel of each block, then COEFFICIENTS for each channel.
 */
#include "tensor/kernels/cpu/vec/vec.h"

#include <math.h>

enum { BLOCK_ROWS = 64, SUMS = 2, COEFFICIENTS = 4 };

typedef struct norm {
    const float *dy, *x;
    float *out;
    int64_t rows, C;
    const float *mean, *variance;
    float *sums;         /* [blocks][SUMS][C] */
    float *coefficients; /* [COEFFICIENTS][C], for the pass over all numbers */
    const tdm_kernel_call *call;
} norm;

static int64_t block_count(int64_t rows)
{
    return (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
}

static tdm_status batch_norm_prepare(void *backend, tdm_kernel_call *call, tdm_error *err)
{
    (void)backend;
    (void)err;
    int64_t rows = tdm__vec_rows(&call->in[0]), C = tdm__vec_columns(&call->in[0]);
    call->scratch_bytes = (size_t)((block_count(rows) * SUMS + COEFFICIENTS) * C) * sizeof(float);
    return TDM_OK;
}

/* For ops that need no sums. */
static tdm_status prepare_pass(void *backend, tdm_kernel_call *call, tdm_error *err)
{
    (void)backend;
    (void)err;
    int64_t C = tdm__vec_columns(&call->in[0]);
    call->scratch_bytes = (size_t)(COEFFICIENTS * C) * sizeof(float);
    return TDM_OK;
}

static norm norm_of(const tdm_kernel_call *call, bool has_sums)
{
    norm n = {.rows = tdm__vec_rows(&call->in[0]),
              .C = tdm__vec_columns(&call->in[0]),
              .out = call->out[0].data,
              .call = call};
    n.sums = call->scratch;
    n.coefficients = n.sums + (has_sums ? block_count(n.rows) * SUMS * n.C : 0);
    return n;
}

static inline int64_t rows_in(const norm *n, int64_t block)
{
    int64_t left = n->rows - block * BLOCK_ROWS;
    return left < BLOCK_ROWS ? left : BLOCK_ROWS;
}

static inline double inverse_deviation(const norm *n, int64_t c)
{
    return 1.0 / sqrt((double)n->variance[c] + (double)n->call->attrs.eps);
}

/* ---- statistics ------------------------------------------------------------------------------- */

/* For one vector of channels of one block: the sum, and the squares about the block's mean. `many`
 * vectors side by side keep the adders busy; it is a constant after inlining. */
static inline void block_moments(const norm *n, int64_t block, int64_t c, int64_t left, int many)
{
    int64_t count = rows_in(n, block);
    const float *x = n->x + block * BLOCK_ROWS * n->C + c;
    float *sums = n->sums + block * SUMS * n->C + c, share = 1.0f / (float)count;
    vf sum[4], centre[4], squares[4];
    for (int k = 0; k < many; k++) sum[k] = squares[k] = vf_set(0);
    for (int64_t r = 0; r < count; r++)
        for (int k = 0; k < many; k++)
            sum[k] += vf_load_up_to(x + r * n->C + k * TDM__WIDTH, left, 0);
    for (int k = 0; k < many; k++) centre[k] = sum[k] * share;
    for (int64_t r = 0; r < count; r++)
        for (int k = 0; k < many; k++) {
            vf d = vf_load_up_to(x + r * n->C + k * TDM__WIDTH, left, 0) - centre[k];
            squares[k] = vf_fma(d, d, squares[k]);
        }
    for (int k = 0; k < many; k++) {
        vf_store_up_to(sums + k * TDM__WIDTH, left, sum[k]);
        vf_store_up_to(sums + n->C + k * TDM__WIDTH, left, squares[k]);
    }
}

static void moments_of_blocks(const void *args, int64_t begin, int64_t end)
{
    const norm *n = args;
    for (int64_t block = begin; block < end; block++) {
        int64_t c = 0;
        for (; c + 4 * TDM__WIDTH <= n->C; c += 4 * TDM__WIDTH)
            block_moments(n, block, c, TDM__WIDTH, 4);
        for (; c < n->C; c += TDM__WIDTH) block_moments(n, block, c, n->C - c, 1);
    }
}

/* Combines the blocks of channel c. A block's squares are about its rounded mean: the square of the
 * rounding error, times the rows, is far below the resolution of f32. */
typedef struct moments {
    double mean, squares;
} moments;

static moments join_moments(const norm *n, int64_t c)
{
    double m = 0, squares = 0, seen = 0;
    for (int64_t block = 0; block < block_count(n->rows); block++) {
        const float *sums = n->sums + block * SUMS * n->C + c;
        double count = (double)rows_in(n, block), both = seen + count;
        double away = (double)sums[0] / count - m;
        m += away * count / both;
        squares += (double)sums[n->C] + away * away * seen * count / both;
        seen = both;
    }
    return (moments){m, squares};
}

/* ---- y ---------------------------------------------------------------------------------------- */

/* y = (x - mean) scale + beta */
static void normalise_rows(const void *args, int64_t begin, int64_t end)
{
    const norm *n = args;
    const float *scale = n->coefficients, *beta = n->call->in[2].data;
    for (int64_t r = begin; r < end; r++)
        for (int64_t c = 0; c < n->C; c += TDM__WIDTH) {
            int64_t left = n->C - c;
            vf x = vf_load_up_to(n->x + r * n->C + c, left, 0);
            vf from_mean = x - vf_load_up_to(n->mean + c, left, 0);
            vf y = vf_fma(from_mean, vf_load_up_to(scale + c, left, 0),
                          vf_load_up_to(beta + c, left, 0));
            vf_store_up_to(n->out + r * n->C + c, left, y);
        }
}

static void rows_normalise(const norm *n)
{
    const float *gamma = n->call->in[1].data;
    for (int64_t c = 0; c < n->C; c++)
        n->coefficients[c] = (float)((double)gamma[c] * inverse_deviation(n, c));
    tdm__vec_split(n->rows, n->C, normalise_rows, n);
}

static void run_batch_norm(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    norm n = norm_of(call, true);
    float *mean = call->out[1].data, *variance = mean + n.C;
    n.x = call->in[0].data;
    tdm__vec_split(block_count(n.rows), BLOCK_ROWS * n.C, moments_of_blocks, &n);
    for (int64_t c = 0; c < n.C; c++) {
        moments m = join_moments(&n, c);
        mean[c] = (float)m.mean;
        variance[c] = (float)(m.squares / (double)n.rows);
    }
    n.mean = mean;
    n.variance = variance;
    rows_normalise(&n);
}

static void run_fixed(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    norm n = norm_of(call, false);
    n.x = call->in[0].data;
    n.mean = call->in[3].data;
    n.variance = call->in[4].data;
    rows_normalise(&n);
}

static void run_given(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    norm n = norm_of(call, false);
    n.x = call->in[0].data;
    n.mean = call->in[3].data;
    n.variance = n.mean + n.C;
    rows_normalise(&n);
}

/* Combining such shares takes a few operations for each channel: `ref` does it. */
static void run_share(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    norm n = norm_of(call, true);
    const float *about = call->in[1].data;
    double scale = call->attrs.scale;
    n.x = call->in[0].data;
    tdm__vec_split(block_count(n.rows), BLOCK_ROWS * n.C, moments_of_blocks, &n);
    for (int64_t c = 0; c < n.C; c++) {
        moments m = join_moments(&n, c);
        double away = m.mean - (double)about[c];
        n.out[c] = (float)(away * (double)n.rows * scale);
        n.out[n.C + c] = (float)(away * away * (double)n.rows * scale);
        n.out[2 * n.C + c] = (float)(m.squares * scale);
    }
}

/* ---- gradients -------------------------------------------------------------------------------- */

/* Of one block: sum dy (x - mean), and sum dy. */
static inline void block_products(const norm *n, int64_t block, int64_t c, int64_t left, int many)
{
    int64_t first = block * BLOCK_ROWS * n->C + c, count = rows_in(n, block);
    float *sums = n->sums + block * SUMS * n->C + c;
    vf along[4], sum[4], mean[4];
    for (int k = 0; k < many; k++) {
        along[k] = sum[k] = vf_set(0);
        mean[k] = vf_load_up_to(n->mean + c + k * TDM__WIDTH, left, 0);
    }
    for (int64_t r = 0; r < count; r++)
        for (int k = 0; k < many; k++) {
            int64_t at = first + r * n->C + k * TDM__WIDTH;
            vf dy = vf_load_up_to(n->dy + at, left, 0);
            along[k] = vf_fma(dy, vf_load_up_to(n->x + at, left, 0) - mean[k], along[k]);
            sum[k] += dy;
        }
    for (int k = 0; k < many; k++) {
        vf_store_up_to(sums + k * TDM__WIDTH, left, along[k]);
        vf_store_up_to(sums + n->C + k * TDM__WIDTH, left, sum[k]);
    }
}

static void products_of_blocks(const void *args, int64_t begin, int64_t end)
{
    const norm *n = args;
    for (int64_t block = begin; block < end; block++) {
        int64_t c = 0;
        for (; c + 4 * TDM__WIDTH <= n->C; c += 4 * TDM__WIDTH)
            block_products(n, block, c, TDM__WIDTH, 4);
        for (; c < n->C; c += TDM__WIDTH) block_products(n, block, c, n->C - c, 1);
    }
}

static void grad_params(const tdm_kernel_call *call, const float *mean, const float *variance)
{
    norm n = norm_of(call, true);
    float *d_gamma = call->out[0].data, *d_beta = call->out[1].data;
    n.dy = call->in[0].data;
    n.x = call->in[1].data;
    n.mean = mean;
    n.variance = variance;
    tdm__vec_split(block_count(n.rows), 2 * BLOCK_ROWS * n.C, products_of_blocks, &n);
    for (int64_t c = 0; c < n.C; c++) {
        double along = 0, sum = 0;
        for (int64_t block = 0; block < block_count(n.rows); block++) {
            along += (double)n.sums[block * SUMS * n.C + c];
            sum += (double)n.sums[(block * SUMS + 1) * n.C + c];
        }
        d_gamma[c] = (float)(along * inverse_deviation(&n, c));
        d_beta[c] = (float)sum;
    }
}

static void run_grad_params(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const float *mean = call->in[2].data;
    grad_params(call, mean, mean + tdm__vec_columns(&call->in[0]));
}

static void run_fixed_grad_params(void *backend, const tdm_kernel_call *call,
                                  const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    grad_params(call, call->in[2].data, call->in[3].data);
}

/* dx = scale (dy - shift - (x - mean) along) */
static void grad_rows(const void *args, int64_t begin, int64_t end)
{
    const norm *n = args;
    const float *scale = n->coefficients, *shift = scale + n->C, *along = shift + n->C;
    for (int64_t r = begin; r < end; r++)
        for (int64_t c = 0; c < n->C; c += TDM__WIDTH) {
            int64_t left = n->C - c;
            vf d = vf_load_up_to(n->dy + r * n->C + c, left, 0);
            vf from_mean = vf_load_up_to(n->x + r * n->C + c, left, 0) -
                           vf_load_up_to(n->mean + c, left, 0);
            d -= vf_load_up_to(shift + c, left, 0);
            d = vf_fma(-from_mean, vf_load_up_to(along + c, left, 0), d);
            vf_store_up_to(n->out + r * n->C + c, left, d * vf_load_up_to(scale + c, left, 0));
        }
}

static void run_grad(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    norm n = norm_of(call, false);
    const float *gamma = call->in[2].data, *d_gamma = call->in[4].data, *d_beta = call->in[5].data;
    n.dy = call->in[0].data;
    n.x = call->in[1].data;
    n.mean = call->in[3].data;
    n.variance = n.mean + n.C;
    for (int64_t c = 0; c < n.C; c++) {
        double inverse = inverse_deviation(&n, c);
        n.coefficients[c] = (float)((double)gamma[c] * inverse);
        n.coefficients[n.C + c] = (float)((double)d_beta[c] / (double)n.rows);
        n.coefficients[2 * n.C + c] = (float)((double)d_gamma[c] * inverse / (double)n.rows);
    }
    tdm__vec_split(n.rows, 2 * n.C, grad_rows, &n);
}

static void scale_rows(const void *args, int64_t begin, int64_t end)
{
    const norm *n = args;
    for (int64_t r = begin; r < end; r++)
        for (int64_t c = 0; c < n->C; c += TDM__WIDTH) {
            int64_t left = n->C - c;
            vf dy = vf_load_up_to(n->dy + r * n->C + c, left, 0);
            vf scale = vf_load_up_to(n->coefficients + c, left, 0);
            vf_store_up_to(n->out + r * n->C + c, left, dy * scale);
        }
}

static void run_fixed_grad(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    norm n = norm_of(call, false);
    const float *gamma = call->in[1].data;
    n.dy = call->in[0].data;
    n.variance = call->in[2].data;
    for (int64_t c = 0; c < n.C; c++)
        n.coefficients[c] = (float)((double)gamma[c] * inverse_deviation(&n, c));
    tdm__vec_split(n.rows, n.C, scale_rows, &n);
}

static const tdm_kernel kernels[] = {
    {TDM_OP_BATCH_NORM, TDM_DTYPE_F32, batch_norm_prepare, run_batch_norm, NULL},
    {TDM_OP_BATCH_NORM_GRAD, TDM_DTYPE_F32, prepare_pass, run_grad, NULL},
    {TDM_OP_BATCH_NORM_GRAD_PARAMS, TDM_DTYPE_F32, batch_norm_prepare, run_grad_params, NULL},
    {TDM_OP_BATCH_NORM_FIXED, TDM_DTYPE_F32, prepare_pass, run_fixed, NULL},
    {TDM_OP_BATCH_NORM_FIXED_GRAD, TDM_DTYPE_F32, prepare_pass, run_fixed_grad, NULL},
    {TDM_OP_BATCH_NORM_FIXED_GRAD_PARAMS, TDM_DTYPE_F32, batch_norm_prepare, run_fixed_grad_params,
     NULL},
    {TDM_OP_BATCH_NORM_SHARE, TDM_DTYPE_F32, batch_norm_prepare, run_share, NULL},
    {TDM_OP_BATCH_NORM_GIVEN, TDM_DTYPE_F32, prepare_pass, run_given, NULL},
};

const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_batch_norm) = {kernels,
                                                              sizeof(kernels) / sizeof(kernels[0])};
