/*
 * batch_norm.c: batch norm by its definition, for x [..., C]: channel by channel, over all rows.
 *
 * With n rows, mean m, biased variance v and s = 1 / sqrt(v + eps):
 *     y = gamma (x - m) s + beta,  d_beta = sum dy,  d_gamma = sum dy (x - m) s,
 *     dx = gamma s (dy - d_beta / n - (x - m) s d_gamma / n),
 * and with given statistics dx = gamma s dy. Statistics of a batch whose rows are in several lanes
 * are combined from those of each lane: for n of N numbers with mean m and sum of squares q about
 * it, a number a that is the same in all lanes, p = n / N,
 *     p (m - a), p (m - a)^2, q / N;  added up: u, w, r;  mean = a + u, variance = r + (w - u^2);
 * the last bracket is the variance of the lanes' means, and never below zero. Sums are computed in
 * double precision, in row order. Everything except the sums is element-wise, so results may
 * overwrite dy or x.
 */
#include "tensor/kernels/ref/ref.h"

#include <math.h>

static double inverse_deviation(const tdm_kernel_call *call, const float *variance, int64_t c)
{
    return 1.0 / sqrt((double)variance[c] + (double)call->attrs.eps);
}

static void rows_normalise(const tdm_kernel_call *call, const float *mean, const float *variance)
{
    int64_t rows = tdm__ref_rows(&call->in[0]), C = tdm__ref_columns(&call->in[0]);
    const float *x = tdm__ref_in(call, 0);
    float *y = tdm__ref_out(call, 0);
    for (int64_t c = 0; c < C; c++) {
        double scale = (double)tdm__ref_in(call, 1)[c] * inverse_deviation(call, variance, c);
        double beta = (double)tdm__ref_in(call, 2)[c];
        for (int64_t r = 0; r < rows; r++)
            y[r * C + c] = (float)(((double)x[r * C + c] - (double)mean[c]) * scale + beta);
    }
}

typedef struct moments {
    double mean, squares;
} moments;

static moments moments_of(const float *x, int64_t rows, int64_t C, int64_t c)
{
    double sum = 0, squares = 0;
    for (int64_t r = 0; r < rows; r++) sum += (double)x[r * C + c];
    double m = sum / (double)rows;
    for (int64_t r = 0; r < rows; r++)
        squares += ((double)x[r * C + c] - m) * ((double)x[r * C + c] - m);
    return (moments){m, squares};
}

static void run_batch_norm(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    int64_t rows = tdm__ref_rows(&call->in[0]), C = tdm__ref_columns(&call->in[0]);
    const float *x = tdm__ref_in(call, 0);
    float *mean = tdm__ref_out(call, 1), *variance = mean + C;
    for (int64_t c = 0; c < C; c++) {
        moments m = moments_of(x, rows, C, c);
        mean[c] = (float)m.mean;
        variance[c] = (float)(m.squares / (double)rows);
    }
    rows_normalise(call, mean, variance);
}

static void run_share(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    int64_t rows = tdm__ref_rows(&call->in[0]), C = tdm__ref_columns(&call->in[0]);
    float *out = tdm__ref_out(call, 0);
    double scale = call->attrs.scale;
    for (int64_t c = 0; c < C; c++) {
        moments m = moments_of(tdm__ref_in(call, 0), rows, C, c);
        double away = m.mean - (double)tdm__ref_in(call, 1)[c];
        out[c] = (float)(away * (double)rows * scale);
        out[C + c] = (float)(away * away * (double)rows * scale);
        out[2 * C + c] = (float)(m.squares * scale);
    }
}

static void run_join(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    int64_t C = tdm__ref_columns(&call->in[0]);
    const float *sums = tdm__ref_in(call, 0), *about = tdm__ref_in(call, 1);
    float *mean = tdm__ref_out(call, 0), *variance = mean + C;
    for (int64_t c = 0; c < C; c++) {
        double away = (double)sums[c], apart = (double)sums[C + c] - away * away;
        if (apart < 0) apart = 0; /* by rounding */
        float within = sums[2 * C + c];
        mean[c] = (float)((double)about[c] + away);
        variance[c] = (float)((double)within + apart);
    }
}

static void run_given(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const float *mean = tdm__ref_in(call, 3);
    rows_normalise(call, mean, mean + tdm__ref_columns(&call->in[0]));
}

static void run_batch_norm_fixed(void *backend, const tdm_kernel_call *call,
                                 const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    rows_normalise(call, tdm__ref_in(call, 3), tdm__ref_in(call, 4));
}

static void grad_params(const tdm_kernel_call *call, const float *mean, const float *variance)
{
    int64_t rows = tdm__ref_rows(&call->in[0]), C = tdm__ref_columns(&call->in[0]);
    const float *dy = tdm__ref_in(call, 0), *x = tdm__ref_in(call, 1);
    for (int64_t c = 0; c < C; c++) {
        double d_gamma = 0, d_beta = 0;
        for (int64_t r = 0; r < rows; r++) {
            d_beta += (double)dy[r * C + c];
            d_gamma += (double)dy[r * C + c] * ((double)x[r * C + c] - (double)mean[c]);
        }
        tdm__ref_out(call, 0)[c] = (float)(d_gamma * inverse_deviation(call, variance, c));
        tdm__ref_out(call, 1)[c] = (float)d_beta;
    }
}

static void run_grad_params(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const float *mean = tdm__ref_in(call, 2);
    grad_params(call, mean, mean + tdm__ref_columns(&call->in[0]));
}

static void run_fixed_grad_params(void *backend, const tdm_kernel_call *call,
                                  const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    grad_params(call, tdm__ref_in(call, 2), tdm__ref_in(call, 3));
}

static void run_grad(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    int64_t rows = tdm__ref_rows(&call->in[0]), C = tdm__ref_columns(&call->in[0]);
    const float *dy = tdm__ref_in(call, 0), *x = tdm__ref_in(call, 1), *mean = tdm__ref_in(call, 3);
    float *dx = tdm__ref_out(call, 0);
    for (int64_t c = 0; c < C; c++) {
        double inverse = inverse_deviation(call, mean + C, c);
        double scale = (double)tdm__ref_in(call, 2)[c] * inverse;
        double along = (double)tdm__ref_in(call, 4)[c] * inverse / (double)rows;
        double shift = (double)tdm__ref_in(call, 5)[c] / (double)rows;
        for (int64_t i = c; i < rows * C; i += C) {
            double from_mean = (double)x[i] - (double)mean[c];
            dx[i] = (float)(scale * ((double)dy[i] - shift - from_mean * along));
        }
    }
}

static void run_fixed_grad(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    int64_t rows = tdm__ref_rows(&call->in[0]), C = tdm__ref_columns(&call->in[0]);
    const float *dy = tdm__ref_in(call, 0);
    float *dx = tdm__ref_out(call, 0);
    for (int64_t c = 0; c < C; c++) {
        double scale = (double)tdm__ref_in(call, 1)[c] *
                       inverse_deviation(call, tdm__ref_in(call, 2), c);
        for (int64_t i = c; i < rows * C; i += C) dx[i] = (float)(scale * (double)dy[i]);
    }
}

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_BATCH_NORM, .dtype = TDM_DTYPE_F32, .run = run_batch_norm},
    {.op = TDM_OP_BATCH_NORM_GRAD, .dtype = TDM_DTYPE_F32, .run = run_grad},
    {.op = TDM_OP_BATCH_NORM_GRAD_PARAMS, .dtype = TDM_DTYPE_F32, .run = run_grad_params},
    {.op = TDM_OP_BATCH_NORM_FIXED, .dtype = TDM_DTYPE_F32, .run = run_batch_norm_fixed},
    {.op = TDM_OP_BATCH_NORM_FIXED_GRAD, .dtype = TDM_DTYPE_F32, .run = run_fixed_grad},
    {.op = TDM_OP_BATCH_NORM_FIXED_GRAD_PARAMS,
     .dtype = TDM_DTYPE_F32,
     .run = run_fixed_grad_params},
    {.op = TDM_OP_BATCH_NORM_SHARE, .dtype = TDM_DTYPE_F32, .run = run_share},
    {.op = TDM_OP_BATCH_NORM_JOIN, .dtype = TDM_DTYPE_F32, .run = run_join},
    {.op = TDM_OP_BATCH_NORM_GIVEN, .dtype = TDM_DTYPE_F32, .run = run_given},
};

const tdm_kernel_family tdm__ref_batch_norm = {kernels, sizeof(kernels) / sizeof(kernels[0])};
