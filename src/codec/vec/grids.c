/*
 * grids.c: numbers as small integers times a scale, with stochastic rounding; and as signs.
 *
 * A number x becomes floor(x / scale + u) with u uniform in [0, 1), so its mean is x. u has the upper 24 bits of a
 * random word: word i of the tensor's sequence for number i. The quotient is computed with an offset, levels + 1,
 * which makes it positive, so that the conversion to an integer, which truncates, rounds down.
 */
#include "codec/vec/vec.h"
#include "tensor/kernels/cpu/vec/philox.h"

/* The codes of one vector, in [-levels, levels]: rounding errors of the quotient exceed that by at most 1. */
static inline vi grid_codes(vf x, vi words, const tdm__codec_grid *grid)
{
    int32_t offset = grid->levels + 1;
    vf u = __builtin_convertvector((words >> 8) & 0x00ffffff, vf) * 0x1p-24f;
    vf place = (x * grid->inverse + (float)offset) + u;
    vi code = __builtin_convertvector(place, vi);
    code += (vi)(code > 2 * offset - 1);
    code -= (vi)(code < 1);
    return code - offset;
}

void TDM__CODEC_LOOP(to_grid)(const float *x, size_t count, const tdm__codec_grid *grid,
                              const tdm_rng *rng, size_t first, int8_t *codes, float *rest)
{
    int64_t n = (int64_t)count;
    uint32_t group = (uint32_t)(first / TDM__PHILOX_GROUP);
    for (int64_t i = 0; i < n; i += TDM__PHILOX_GROUP, group++) {
        vi words[2];
        tdm__philox_group(rng, group, words);
        for (int half = 0; half < 2; half++) {
            int64_t at = i + half * TDM__WIDTH, left = n - at;
            if (left <= 0) break;
            vf number = vf_load_up_to(x + at, left, 0);
            vi code = grid_codes(number, words[half], grid);
            vb narrow = __builtin_convertvector(code, vb);
            vf_store_rest(rest ? rest + at : NULL, left, number,
                          __builtin_convertvector(code, vf) * grid->scale);
            if (left >= TDM__WIDTH)
                *(vb *)(codes + at) = narrow;
            else
                memcpy(codes + at, &narrow, (size_t)left);
        }
    }
}

void TDM__CODEC_LOOP(of_grid)(const int8_t *codes, size_t count, float scale, float *out)
{
    for (size_t i = 0; i < count; i++) out[i] = (float)codes[i] * scale;
}

/* ---- two codes to a byte ---------------------------------------------------------------------- */

void TDM__CODEC_LOOP(pack)(const int8_t *restrict codes, size_t count, uint8_t *restrict out)
{
    for (size_t i = 0; i < count / 2; i++)
        out[i] = (uint8_t)((codes[2 * i] & 15) | (codes[2 * i + 1] & 15) << 4);
    if (count % 2 != 0) out[count / 2] = (uint8_t)(codes[count - 1] & 15);
}

/* The sign of a half byte, extended: (h ^ 8) - 8. */
void TDM__CODEC_LOOP(unpack)(const uint8_t *restrict bytes, size_t count, int8_t *restrict codes)
{
    for (size_t i = 0; i < count / 2; i++) {
        codes[2 * i] = (int8_t)(((bytes[i] & 15) ^ 8) - 8);
        codes[2 * i + 1] = (int8_t)(((bytes[i] >> 4) ^ 8) - 8);
    }
    if (count % 2 != 0) codes[count - 1] = (int8_t)(((bytes[count / 2] & 15) ^ 8) - 8);
}

/* ---- signs ------------------------------------------------------------------------------------ */

/* Bit i of the result is the sign of element i. */
static inline uint32_t vf_signs(vf x)
{
#if TDM__LEVEL >= 4
    return _mm512_movepi32_mask((__m512i)x);
#elif TDM__LEVEL == 3
    return (uint32_t)_mm256_movemask_ps((__m256)x);
#elif TDM__LEVEL == 2
    return (uint32_t)_mm_movemask_ps((__m128)x);
#else
    vu bits = (vu)x >> 31;
    uint32_t signs = 0;
    for (int i = 0; i < TDM__WIDTH; i++) signs |= bits[i] << i;
    return signs;
#endif
}

/* `scale` with the signs that begin at bit 0. */
static inline vf vf_of_signs(uint32_t signs, float scale)
{
    vu place;
    for (int i = 0; i < TDM__WIDTH; i++) place[i] = (uint32_t)i;
    vu bits = (vu_set(signs) >> place) << 31;
    return (vf)((vu)vf_set(scale) | bits);
}

/* 16 numbers, of which `left` are there, take 2 bytes: at most as many as they need. */
void TDM__CODEC_LOOP(to_signs)(const float *x, size_t count, float scale, uint8_t *out, float *rest)
{
    int64_t n = (int64_t)count;
    for (int64_t i = 0; i < n; i += TDM__PLACES) {
        uint32_t signs = 0;
        for (int p = 0; p < TDM__PARTS; p++) {
            int64_t at = i + p * TDM__WIDTH;
            vf number = vf_load_up_to(x + at, n - at, 0);
            uint32_t part = vf_signs(number);
            vf_store_rest(rest ? rest + at : NULL, n - at, number, vf_of_signs(part, scale));
            signs |= part << (p * TDM__WIDTH);
        }
        out[i / 8] = (uint8_t)signs;
        if (n - i > 8) out[i / 8 + 1] = (uint8_t)(signs >> 8);
    }
}

void TDM__CODEC_LOOP(of_signs)(const uint8_t *bits, size_t count, float scale, float *out)
{
    int64_t n = (int64_t)count;
    for (int64_t i = 0; i < n; i += TDM__PLACES) {
        uint32_t signs = bits[i / 8];
        if (n - i > 8) signs |= (uint32_t)bits[i / 8 + 1] << 8;
        for (int p = 0; p < TDM__PARTS; p++) {
            int64_t at = i + p * TDM__WIDTH;
            vf_store_up_to(out + at, n - at, vf_of_signs(signs >> (p * TDM__WIDTH), scale));
        }
    }
}
