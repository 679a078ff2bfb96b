/*
 * norm.c: layer norm, RMS norm and their gradients, by their definition. Sums are in double
 * precision and in index order. The gradients of x work row by row and may overwrite dy or x.
 */
#include "tensor/kernels/ref/ref.h"

#include <math.h>

static void run_layer_norm(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const float *gamma = tdm__ref_in(call, 1), *beta = tdm__ref_in(call, 2);
    int64_t C = tdm__ref_columns(&call->in[0]), rows = tdm__ref_rows(&call->in[0]);
    for (int64_t r = 0; r < rows; r++) {
        const float *x = tdm__ref_in(call, 0) + r * C;
        float *y = tdm__ref_out(call, 0) + r * C, *stats = tdm__ref_out(call, 1) + r * 2;
        double sum = 0, squares = 0;
        for (int64_t c = 0; c < C; c++) sum += (double)x[c];
        double mean = sum / (double)C;
        for (int64_t c = 0; c < C; c++) squares += ((double)x[c] - mean) * ((double)x[c] - mean);
        double inverse = 1 / sqrt(squares / (double)C + (double)call->attrs.eps);
        for (int64_t c = 0; c < C; c++)
            y[c] = (float)(((double)x[c] - mean) * inverse * (double)gamma[c] + (double)beta[c]);
        stats[0] = (float)mean;
        stats[1] = (float)inverse;
    }
}

/* With n = (x - mean) inverse and g = dy gamma:  dx = inverse (g - mean of g - n mean of (g n)). */
static void run_layer_norm_grad(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const float *gamma = tdm__ref_in(call, 2);
    int64_t C = tdm__ref_columns(&call->in[0]), rows = tdm__ref_rows(&call->in[0]);
    for (int64_t r = 0; r < rows; r++) {
        const float *dy = tdm__ref_in(call, 0) + r * C, *x = tdm__ref_in(call, 1) + r * C;
        const float *stats = tdm__ref_in(call, 3) + r * 2;
        float *dx = tdm__ref_out(call, 0) + r * C;
        double mean = (double)stats[0], inverse = (double)stats[1], sum = 0, dot = 0;
        for (int64_t c = 0; c < C; c++) {
            double g = (double)dy[c] * (double)gamma[c];
            sum += g;
            dot += g * ((double)x[c] - mean) * inverse;
        }
        for (int64_t c = 0; c < C; c++) {
            double g = (double)dy[c] * (double)gamma[c], n = ((double)x[c] - mean) * inverse;
            dx[c] = (float)(inverse * (g - sum / (double)C - n * dot / (double)C));
        }
    }
}

static void run_layer_norm_grad_params(void *backend, const tdm_kernel_call *call,
                                       const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const float *dy = tdm__ref_in(call, 0), *x = tdm__ref_in(call, 1);
    const float *stats = tdm__ref_in(call, 2);
    int64_t C = tdm__ref_columns(&call->in[0]), rows = tdm__ref_rows(&call->in[0]);
    for (int64_t c = 0; c < C; c++) {
        double d_gamma = 0, d_beta = 0;
        for (int64_t r = 0; r < rows; r++) {
            double n = ((double)x[r * C + c] - (double)stats[r * 2]) * (double)stats[r * 2 + 1];
            d_gamma += (double)dy[r * C + c] * n;
            d_beta += (double)dy[r * C + c];
        }
        tdm__ref_out(call, 0)[c] = (float)d_gamma;
        tdm__ref_out(call, 1)[c] = (float)d_beta;
    }
}

static void run_rms_norm(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const float *gamma = tdm__ref_in(call, 1);
    int64_t C = tdm__ref_columns(&call->in[0]), rows = tdm__ref_rows(&call->in[0]);
    for (int64_t r = 0; r < rows; r++) {
        const float *x = tdm__ref_in(call, 0) + r * C;
        float *y = tdm__ref_out(call, 0) + r * C;
        double squares = 0;
        for (int64_t c = 0; c < C; c++) squares += (double)x[c] * (double)x[c];
        double inverse = 1 / sqrt(squares / (double)C + (double)call->attrs.eps);
        for (int64_t c = 0; c < C; c++) y[c] = (float)((double)x[c] * inverse * (double)gamma[c]);
        tdm__ref_out(call, 1)[r] = (float)inverse;
    }
}

/* With n = x inverse and g = dy gamma:  dx = inverse (g - n mean of (g n)). */
static void run_rms_norm_grad(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const float *gamma = tdm__ref_in(call, 2);
    int64_t C = tdm__ref_columns(&call->in[0]), rows = tdm__ref_rows(&call->in[0]);
    for (int64_t r = 0; r < rows; r++) {
        const float *dy = tdm__ref_in(call, 0) + r * C, *x = tdm__ref_in(call, 1) + r * C;
        float *dx = tdm__ref_out(call, 0) + r * C;
        double inverse = (double)tdm__ref_in(call, 3)[r], dot = 0;
        for (int64_t c = 0; c < C; c++)
            dot += (double)dy[c] * (double)gamma[c] * (double)x[c] * inverse;
        for (int64_t c = 0; c < C; c++) {
            double g = (double)dy[c] * (double)gamma[c], n = (double)x[c] * inverse;
            dx[c] = (float)(inverse * (g - n * dot / (double)C));
        }
    }
}

static void run_rms_norm_grad_params(void *backend, const tdm_kernel_call *call,
                                     const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const float *dy = tdm__ref_in(call, 0), *x = tdm__ref_in(call, 1);
    const float *stats = tdm__ref_in(call, 2);
    int64_t C = tdm__ref_columns(&call->in[0]), rows = tdm__ref_rows(&call->in[0]);
    for (int64_t c = 0; c < C; c++) {
        double d_gamma = 0;
        for (int64_t r = 0; r < rows; r++)
            d_gamma += (double)dy[r * C + c] * (double)x[r * C + c] * (double)stats[r];
        tdm__ref_out(call, 0)[c] = (float)d_gamma;
    }
}

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_LAYER_NORM, .dtype = TDM_DTYPE_F32, .run = run_layer_norm},
    {.op = TDM_OP_LAYER_NORM_GRAD, .dtype = TDM_DTYPE_F32, .run = run_layer_norm_grad},
    {.op = TDM_OP_LAYER_NORM_GRAD_PARAMS,
     .dtype = TDM_DTYPE_F32,
     .run = run_layer_norm_grad_params},
    {.op = TDM_OP_RMS_NORM, .dtype = TDM_DTYPE_F32, .run = run_rms_norm},
    {.op = TDM_OP_RMS_NORM_GRAD, .dtype = TDM_DTYPE_F32, .run = run_rms_norm_grad},
    {.op = TDM_OP_RMS_NORM_GRAD_PARAMS, .dtype = TDM_DTYPE_F32, .run = run_rms_norm_grad_params},
};

const tdm_kernel_family tdm__ref_norm = {kernels, sizeof(kernels) / sizeof(kernels[0])};
