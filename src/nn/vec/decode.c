/*
 * decode.c: products of a matrix and one vector, and attention for one query.
 *
 * Both wait for memory: each weight is read once and used once. So a row, or a few side by side to
 * keep several loads under way, is all the blocking that helps. A sum has one partial sum for each
 * place of a vector, and these are added in a fixed order.
 */
#include "nn/decode.h"

#include "tensor/level.h"

typedef float vf __attribute__((vector_size(4 * TDM__WIDTH), aligned(4), may_alias));

enum { ROWS = 4 };

static inline vf load(const float *from)
{
    return *(const vf *)from;
}

static inline float sum_of(vf x)
{
    float sum = 0;
    for (int i = 0; i < TDM__WIDTH; i++) sum += x[i];
    return sum;
}

static inline float dot(const float *a, const float *b, int64_t count)
{
    vf sum = {0};
    int64_t i = 0;
    for (; i + TDM__WIDTH <= count; i += TDM__WIDTH) sum += load(a + i) * load(b + i);
    float total = sum_of(sum);
    for (; i < count; i++) total += a[i] * b[i];
    return total;
}

/* ROWS products at once. Each row's sum is just what dot() gives. */
static inline void dot_rows(const float *w, const float *x, int64_t K, float out[ROWS])
{
    vf sum[ROWS] = {{0}};
    int64_t i = 0;
    for (; i + TDM__WIDTH <= K; i += TDM__WIDTH) {
        vf part = load(x + i);
        for (int r = 0; r < ROWS; r++) sum[r] += load(w + r * K + i) * part;
    }
    for (int r = 0; r < ROWS; r++) out[r] = sum_of(sum[r]);
    for (; i < K; i++)
        for (int r = 0; r < ROWS; r++) out[r] += w[r * K + i] * x[i];
}

static void product(const float *w, const float *x, const float *bias, int64_t N, int64_t K,
                    float *out)
{
    int64_t n = 0;
    for (; n + ROWS <= N; n += ROWS) dot_rows(w + n * K, x, K, out + n);
    for (; n < N; n++) out[n] = dot(w + n * K, x, K);
    for (n = 0; bias && n < N; n++) out[n] += bias[n];
}

static void scores(const float *query, const float *keys, int64_t D, int64_t stride, int64_t count,
                   float scale, float *out)
{
    for (int64_t t = 0; t < count; t++) out[t] = scale * dot(keys + t * stride, query, D);
}

static void mix(const float *weights, const float *values, int64_t D, int64_t stride, int64_t count,
                float *out)
{
    for (int64_t d = 0; d < D; d++) out[d] = 0;
    for (int64_t t = 0; t < count; t++) {
        const float *value = values + t * stride;
        int64_t d = 0;
        for (; d + TDM__WIDTH <= D; d += TDM__WIDTH)
            *(vf *)(out + d) = load(out + d) + weights[t] * load(value + d);
        for (; d < D; d++) out[d] += weights[t] * value[d];
    }
}

const tdm__decode_loops TDM__AT_LEVEL(tdm__decode_loops) = {
    .product = product,
    .scores = scores,
    .mix = mix,
};
