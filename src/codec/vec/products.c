/*
 * products.c: the products of PowerSGD's thin factors. Each result is a sum in one order, given beside its loop.
 */
#include "codec/vec/vec.h"

enum { COLUMNS = 4 }; /* vectors of sums that stay in registers */

/* 16 partial sums, added in pairs. */
float TDM__CODEC_LOOP(dot)(const float *a, const float *b, size_t count)
{
    int64_t n = (int64_t)count;
    vf_places sum = {{{0}}};
    for (int64_t i = 0; i < n; i += TDM__PLACES)
        for (int p = 0; p < TDM__PARTS; p++) {
            int64_t at = i + p * TDM__WIDTH;
            sum.part[p] += vf_load_up_to(a + at, n - at, 0) * vf_load_up_to(b + at, n - at, 0);
        }
    return vf_places_sum(&sum);
}

void TDM__CODEC_LOOP(subtract)(float *a, float factor, const float *b, size_t count)
{
    int64_t n = (int64_t)count;
    for (int64_t i = 0; i < n; i += TDM__WIDTH) {
        vf product = vf_load_up_to(b + i, n - i, 0) * factor;
        vf_store_up_to(a + i, n - i, vf_load_up_to(a + i, n - i, 0) - product);
    }
}

/* The rows in order, from 0; their sum is then added to out. */
void TDM__CODEC_LOOP(add_rows)(const float *m, size_t stride, const float *a, size_t rows,
                               float *out, size_t count)
{
    int64_t n = (int64_t)count, step = COLUMNS * TDM__WIDTH;
    for (int64_t i = 0; i < n; i += step) {
        vf sum[COLUMNS] = {{0}};
        if (n - i >= step) {
            for (size_t row = 0; row < rows; row++)
                for (int c = 0; c < COLUMNS; c++)
                    sum[c] += vf_load(m + row * stride + i + c * TDM__WIDTH) * a[row];
        } else {
            for (size_t row = 0; row < rows; row++)
                for (int c = 0; c < COLUMNS; c++) {
                    int64_t at = i + c * TDM__WIDTH;
                    sum[c] += vf_load_up_to(m + row * stride + at, n - at, 0) * a[row];
                }
        }
        for (int c = 0; c < COLUMNS; c++) {
            int64_t at = i + c * TDM__WIDTH;
            vf_store_up_to(out + at, n - at, vf_load_up_to(out + at, n - at, 0) + sum[c]);
        }
    }
}

void TDM__CODEC_LOOP(mix)(const float *a, size_t a_stride, const float *q, size_t q_stride,
                          int rank, float *out, size_t count)
{
    int64_t n = (int64_t)count;
    for (int64_t i = 0; i < n; i += TDM__WIDTH) {
        vf sum = {0};
        for (size_t k = 0; k < (size_t)rank; k++)
            sum += vf_load_up_to(q + k * q_stride + i, n - i, 0) * a[k * a_stride];
        vf_store_up_to(out + i, n - i, sum);
    }
}

void TDM__CODEC_LOOP(rest_of)(const float *m, float weight, const float *x, float *out,
                              size_t count)
{
    int64_t n = (int64_t)count;
    for (int64_t i = 0; i < n; i += TDM__WIDTH) {
        vf part = vf_load_up_to(x + i, n - i, 0) * weight;
        vf_store_up_to(out + i, n - i, vf_load_up_to(m + i, n - i, 0) - part);
    }
}
