/*
 * decode.c: products of a matrix and one vector, and attention for one query.
 *
 * Both are limited by memory bandwidth: each weight is read once and used once. So the only useful
 * blocking is to process a few rows side by side, to keep several loads in flight. Sums have a
 * partial sum for each logical position, and functions are those of the kernels
 * (tensor/kernels/cpu/vec/vec.h, math.h), so the bits are the same at every level.
 */
#include "nn/decode.h"

#include "tensor/kernels/cpu/vec/activations.h"

enum { ROWS = 4 };

/* sum += a b over `left` numbers, at most TDM__PLACES. */
static inline void add_products(const float *a, const float *b, int64_t left, vf_places *sum)
{
    for (int p = 0; p < TDM__PARTS; p++) {
        int at = p * TDM__WIDTH;
        sum->part[p] = vf_fma(vf_load_up_to(a + at, left - at, 0),
                              vf_load_up_to(b + at, left - at, 0), sum->part[p]);
    }
}

static inline float vec_dot(const float *a, const float *b, int64_t count)
{
    vf_places sum = {{{0}}};
    int64_t i = 0;
    for (; i + TDM__PLACES <= count; i += TDM__PLACES)
        add_products(a + i, b + i, TDM__PLACES, &sum);
    if (i < count) add_products(a + i, b + i, count - i, &sum);
    return vf_places_sum(&sum);
}

/* ROWS products at once. Each row's sum equals that of dot(). */
static inline void dot_rows(const float *w, const float *x, int64_t K, float out[ROWS])
{
    vf_places sum[ROWS] = {{{{0}}}};
    int64_t i = 0;
    for (; i + TDM__PLACES <= K; i += TDM__PLACES)
        for (int r = 0; r < ROWS; r++) add_products(w + r * K + i, x + i, TDM__PLACES, &sum[r]);
    for (int r = 0; r < ROWS; r++) {
        if (i < K) add_products(w + r * K + i, x + i, K - i, &sum[r]);
        out[r] = vf_places_sum(&sum[r]);
    }
}

static void decode_product(const float *w, const float *x, const float *bias, int64_t N, int64_t K,
                           float *out)
{
    int64_t n = 0;
    for (; n + ROWS <= N; n += ROWS) dot_rows(w + n * K, x, K, out + n);
    for (; n < N; n++) out[n] = vec_dot(w + n * K, x, K);
    for (n = 0; bias && n < N; n++) out[n] += bias[n];
}

static void decode_scores(const float *query, const float *keys, int64_t D, int64_t stride,
                          int64_t count, float scale, float *out)
{
    for (int64_t t = 0; t < count; t++) out[t] = scale * vec_dot(keys + t * stride, query, D);
}

static void decode_softmax(float *x, int64_t count)
{
    float largest = x[0];
    vsum sum = VSUM_ZERO;
    for (int64_t i = 1; i < count; i++) largest = x[i] > largest ? x[i] : largest;
    for (int64_t i = 0; i < count; i += TDM__PLACES)
        for (int p = 0; p < TDM__PARTS; p++) {
            int64_t at = i + p * TDM__WIDTH;
            vf e = vexpf(vf_load_up_to(x + at, count - at, -INFINITY) - largest);
            vf_store_up_to(x + at, count - at, e);
            vsum_add(&sum.part[p], e);
        }
    float factor = (float)(1.0 / vsum_total(&sum));
    for (int64_t i = 0; i < count; i++) x[i] *= factor;
}

/* out[d] is one chain over t. */
static void decode_mix(const float *weights, const float *values, int64_t D, int64_t stride,
                       int64_t count, float *out)
{
    for (int64_t d = 0; d < D; d++) out[d] = 0;
    for (int64_t t = 0; t < count; t++) {
        const float *value = values + t * stride;
        vf weight = vf_set(weights[t]);
        for (int64_t d = 0; d < D; d += TDM__WIDTH)
            vf_store_up_to(out + d, D - d,
                           vf_fma(weight, vf_load_up_to(value + d, D - d, 0),
                                  vf_load_up_to(out + d, D - d, 0)));
    }
}

static void decode_activate(float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i += TDM__WIDTH)
        vf_store_up_to(x + i, count - i, gelu_tanh(vf_load_up_to(x + i, count - i, 0)));
}

const tdm__decode_loops TDM__AT_LEVEL(tdm__decode_loops) = {
    .product = decode_product,
    .scores = decode_scores,
    .softmax = decode_softmax,
    .mix = decode_mix,
    .activate = decode_activate,
};
