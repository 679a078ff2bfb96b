/*
 * decode.h: the loops of the decoder, which are compiled once for each instruction-set level (see
 * tensor/level.h).
 */
#ifndef TANDEM_NN_DECODE_H
#define TANDEM_NN_DECODE_H

#include <stdint.h>

typedef struct tdm__decode_loops {
    /* out [N] = w [N, K] x [K], plus bias [N] unless that is NULL. */
    void (*product)(const float *w, const float *x, const float *bias, int64_t N, int64_t K,
                    float *out);
    /* out [count] = scale * (key[t] . query), each of D numbers, one key `stride` after another. */
    void (*scores)(const float *query, const float *keys, int64_t D, int64_t stride, int64_t count,
                   float scale, float *out);
    /* x [count] = e^x over their sum. */
    void (*softmax)(float *x, int64_t count);
    /* out [D] = the sum over t of weights[t] * value[t]. */
    void (*mix)(const float *weights, const float *values, int64_t D, int64_t stride, int64_t count,
                float *out);
    /* x = GELU of x, by tanh. */
    void (*activate)(float *x, int64_t count);
} tdm__decode_loops;

extern const tdm__decode_loops tdm__decode_loops_0, tdm__decode_loops_2, tdm__decode_loops_3,
    tdm__decode_loops_4;

#endif
