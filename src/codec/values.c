/*
 * values.c: numbers as the options quantise them.
 *
 * `count` numbers are an array of scales, one for each chunk, if the form has scales, and then the codes of all
 * numbers. Every chunk has a fixed place, so chunks can be written and read by several threads.
 */
#include "codec/internal.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Bits of the code of a number. */
static size_t value_bits(const tdm_codec *codec)
{
    switch (codec->options.quantise) {
    case TDM_CODEC_QUANTISE_BF16:
    case TDM_CODEC_QUANTISE_F16: return 16;
    case TDM_CODEC_QUANTISE_INT8: return 8;
    case TDM_CODEC_QUANTISE_INT4: return 4;
    case TDM_CODEC_QUANTISE_QSGD: return codec->options.levels <= 7 ? 4 : 8;
    case TDM_CODEC_QUANTISE_SIGN: return 1;
    default: return 32;
    }
}

static int value_levels(const tdm_codec *codec)
{
    return codec->options.quantise == TDM_CODEC_QUANTISE_INT8   ? 127
           : codec->options.quantise == TDM_CODEC_QUANTISE_INT4 ? 7
                                                                : codec->options.levels;
}

static size_t scale_bytes(size_t bits, size_t count)
{
    return bits > 8 ? 0 : (count + TDM_CODEC_CHUNK - 1) / TDM_CODEC_CHUNK * sizeof(float);
}

size_t tdm__codec_value_bytes(const tdm_codec *codec, size_t count)
{
    size_t bits = value_bits(codec);
    return scale_bytes(bits, count) + count / 8 * bits + (count % 8 * bits + 7) / 8;
}

/* The place of the codes of a chunk, of which `first` is the first number. */
static size_t code_offset(size_t bits, size_t first, size_t count)
{
    return scale_bytes(bits, count) + first / 8 * bits;
}

/* ---- writing ---------------------------------------------------------------------------------- */

/* The grid on which the largest magnitude, or the norm, is `levels`. A scale below the normal range counts as 0. */
static tdm__codec_grid chunk_grid(const tdm_codec *codec, const float *x, size_t count)
{
    tdm__codec_grid grid = {.levels = value_levels(codec)};
    float most;
    if (codec->options.quantise == TDM_CODEC_QUANTISE_QSGD) {
        double norm = sqrt(codec->loops->sum_squares(x, count));
        most = norm < (double)FLT_MAX ? (float)norm : FLT_MAX;
    } else {
        uint32_t bits = codec->loops->largest(x, count);
        memcpy(&most, &bits, sizeof(most));
    }
    grid.scale = most / (float)grid.levels;
    if (grid.scale < FLT_MIN) grid.scale = 0;
    grid.inverse = grid.scale > 0 ? (float)grid.levels / most : 0;
    return grid;
}

static void put_grid(const tdm_codec *codec, const float *x, size_t first, size_t size,
                     const tdm_rng *rng, uint8_t *codes, float *scale, float *rest)
{
    const tdm__codec_loops *loops = codec->loops;
    int8_t wide[TDM_CODEC_CHUNK];
    tdm__codec_grid grid = chunk_grid(codec, x, size);
    bool is_packed = value_bits(codec) == 4;
    *scale = grid.scale;
    loops->to_grid(x, size, &grid, rng, first, is_packed ? wide : (int8_t *)codes, rest);
    if (is_packed) loops->pack(wide, size, codes);
}

bool tdm__codec_put_chunk(const tdm_codec *codec, const float *x, size_t first, size_t count,
                          const tdm_rng *rng, uint8_t *out, float *rest)
{
    const tdm__codec_loops *loops = codec->loops;
    size_t bits = value_bits(codec), size = tdm__codec_min(count - first, TDM_CODEC_CHUNK);
    uint8_t *codes = out + code_offset(bits, first, count);
    float scale = 0;
    if (!loops->is_finite(x, size)) return false;
    switch (codec->options.quantise) {
    case TDM_CODEC_QUANTISE_NONE:
        memcpy(codes, x, size * sizeof(*x));
        if (rest) memset(rest, 0, size * sizeof(*rest));
        return true;
    case TDM_CODEC_QUANTISE_BF16:
        loops->to_bf16(x, size, (uint16_t *)(void *)codes, rest);
        return true;
    case TDM_CODEC_QUANTISE_F16:
        loops->to_f16(x, size, (uint16_t *)(void *)codes, rest);
        return true;
    case TDM_CODEC_QUANTISE_SIGN:
        scale = (float)(loops->sum_magnitudes(x, size) / (double)size);
        loops->to_signs(x, size, scale, codes, rest);
        break;
    default: put_grid(codec, x, first, size, rng, codes, &scale, rest); break;
    }
    memcpy(out + first / TDM_CODEC_CHUNK * sizeof(scale), &scale, sizeof(scale));
    return true;
}

/* ---- reading ---------------------------------------------------------------------------------- */

bool tdm__codec_get_chunk(const tdm_codec *codec, const uint8_t *from, size_t first, size_t count,
                          float *out)
{
    const tdm__codec_loops *loops = codec->loops;
    size_t bits = value_bits(codec), size = tdm__codec_min(count - first, TDM_CODEC_CHUNK);
    const uint8_t *codes = from + code_offset(bits, first, count);
    int8_t wide[TDM_CODEC_CHUNK];
    uint32_t scale_bits = 0;
    float scale;
    if (bits <= 8)
        memcpy(&scale_bits, from + first / TDM_CODEC_CHUNK * sizeof(scale), sizeof(scale_bits));
    if (scale_bits >= TDM__CODEC_INFINITY) return false; /* or negative */
    memcpy(&scale, &scale_bits, sizeof(scale));
    switch (codec->options.quantise) {
    case TDM_CODEC_QUANTISE_NONE: memcpy(out, codes, size * sizeof(*out)); break;
    case TDM_CODEC_QUANTISE_BF16:
        loops->of_bf16((const uint16_t *)(const void *)codes, size, out);
        break;
    case TDM_CODEC_QUANTISE_F16:
        loops->of_f16((const uint16_t *)(const void *)codes, size, out);
        break;
    case TDM_CODEC_QUANTISE_SIGN: loops->of_signs(codes, size, scale, out); break;
    default:
        if (bits == 4) loops->unpack(codes, size, wide);
        loops->of_grid(bits == 4 ? wide : (const int8_t *)codes, size, scale, out);
        break;
    }
    return loops->is_finite(out, size);
}
