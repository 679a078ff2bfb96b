/*
 * vec.h: shared by the loops of the codec, which are compiled for each instruction-set level (tensor/level.h).
 *
 * Every product and every sum is rounded separately, sums have the 16 partial sums of docs/numerics.md, and
 * conversions use integer arithmetic: so all levels give the same bits.
 */
#ifndef TANDEM_CODEC_VEC_VEC_H
#define TANDEM_CODEC_VEC_VEC_H

#include "codec/internal.h"
#include "tensor/kernels/cpu/vec/vec.h"

typedef uint32_t vu __attribute__((vector_size(4 * TDM__WIDTH), aligned(4), may_alias));
typedef uint16_t vh __attribute__((vector_size(2 * TDM__WIDTH), aligned(2), may_alias));
typedef int8_t vb __attribute__((vector_size(TDM__WIDTH), aligned(1), may_alias));

/* `yes` where the mask has all bits, `no` where it has none. */
static inline vu vu_select(vu mask, vu yes, vu no)
{
    return (mask & yes) | (~mask & no);
}

static inline vu vu_set(uint32_t x)
{
    return x + (vu){0};
}

/* What is lost: to[i] = x - decoded. */
static inline void vf_store_rest(float *to, int64_t left, vf x, vf decoded)
{
    if (to) vf_store_up_to(to, left, x - decoded);
}

/* The loops of each file; table.c lists them. */
#define TDM__CODEC_LOOP(name) TDM__AT_LEVEL(tdm__codec_##name)

void TDM__CODEC_LOOP(accumulate)(const tdm__codec_step *step, size_t begin, size_t end);
bool TDM__CODEC_LOOP(is_finite)(const float *x, size_t count);
uint32_t TDM__CODEC_LOOP(largest)(const float *x, size_t count);
double TDM__CODEC_LOOP(sum_magnitudes)(const float *x, size_t count);
double TDM__CODEC_LOOP(sum_squares)(const float *x, size_t count);
void TDM__CODEC_LOOP(scale)(float *x, size_t count, float factor);
size_t TDM__CODEC_LOOP(collect)(const float *x, size_t count, uint32_t limit, uint32_t first,
                                uint32_t *out);

void TDM__CODEC_LOOP(to_bf16)(const float *x, size_t count, uint16_t *out, float *rest);
void TDM__CODEC_LOOP(of_bf16)(const uint16_t *codes, size_t count, float *out);
void TDM__CODEC_LOOP(to_f16)(const float *x, size_t count, uint16_t *out, float *rest);
void TDM__CODEC_LOOP(of_f16)(const uint16_t *codes, size_t count, float *out);

void TDM__CODEC_LOOP(to_grid)(const float *x, size_t count, const tdm__codec_grid *grid,
                              const tdm_rng *rng, size_t first, int8_t *codes, float *rest);
void TDM__CODEC_LOOP(of_grid)(const int8_t *codes, size_t count, float scale, float *out);
void TDM__CODEC_LOOP(pack)(const int8_t *codes, size_t count, uint8_t *out);
void TDM__CODEC_LOOP(unpack)(const uint8_t *bytes, size_t count, int8_t *codes);
void TDM__CODEC_LOOP(to_signs)(const float *x, size_t count, float scale, uint8_t *out,
                               float *rest);
void TDM__CODEC_LOOP(of_signs)(const uint8_t *bits, size_t count, float scale, float *out);

float TDM__CODEC_LOOP(dot)(const float *a, const float *b, size_t count);
double TDM__CODEC_LOOP(dot_wide)(const float *a, const float *b, size_t count);
void TDM__CODEC_LOOP(subtract)(float *a, float factor, const float *b, size_t count);
void TDM__CODEC_LOOP(add_rows)(const float *m, size_t stride, const float *a, size_t rows,
                               float *out, size_t count);
void TDM__CODEC_LOOP(mix)(const float *a, size_t a_stride, const float *q, size_t q_stride,
                          int rank, float *out, size_t count);
void TDM__CODEC_LOOP(rest_of)(const float *m, float weight, const float *x, float *out,
                              size_t count);

#endif
