/*
 * casts.c: f32 to bf16 and f16, and back: by integer arithmetic, or by the instructions for f16 of x86-64-v3.
 *
 * Rounding is to nearest, ties to even. A number that rounds to infinity becomes the largest finite number of its
 * sign instead: with error feedback the next step sends the rest. Inputs are finite. An f32 subnormal number is rounded
 * like any other, so a subnormal bf16 can result; kernels count it as 0.
 */
#include "codec/vec/vec.h"

#define BF16_INFINITY 0x7f80u
#define F16_INFINITY 0x7c00u
/* 65520: from here on, rounding gives infinity. And 2^-14, the smallest normal f16. */
#define F16_OVERFLOW 0x477ff000u
#define F16_NORMAL 0x38800000u
#define F16_BIAS 0x38000000u /* the difference of the exponents' biases */

static inline vu bf16_of(vu x)
{
    vu nearest = (x + 0x7fffu + ((x >> 16) & 1u)) >> 16;
    return nearest + (vu)((nearest & 0x7fffu) == BF16_INFINITY); /* the mask is -1 */
}

static inline vu bf16_widen(vu code)
{
    return code << 16;
}

#if TDM__LEVEL < 3
/* A number below 2^-14 is rounded by the sum with 0.5: its last bit has the weight of f16's. */
static inline vu f16_of(vu x)
{
    vu magnitude = x & TDM__CODEC_MAGNITUDE, sign = (x >> 16) & 0x8000u;
    vu normal = (magnitude - F16_BIAS + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    vu small = (vu)((vf)magnitude + 0.5f) - 0x3f000000u;
    vu code = vu_select((vu)(magnitude < F16_NORMAL), small, normal);
    return sign | vu_select((vu)(magnitude >= F16_OVERFLOW), vu_set(F16_INFINITY - 1), code);
}

static inline vu f16_widen(vu code)
{
    vu magnitude = code & 0x7fffu, sign = (code & 0x8000u) << 16;
    vu normal = (magnitude << 13) + F16_BIAS;
    vu small = (vu)(__builtin_convertvector((vi)magnitude, vf) * 0x1p-24f);
    vu infinite = (magnitude << 13) | TDM__CODEC_INFINITY;
    vu wide = vu_select((vu)(magnitude < 0x400u), small, normal);
    return sign | vu_select((vu)(magnitude >= F16_INFINITY), infinite, wide);
}
#endif

static inline vh bf16_narrow(vf x)
{
    vu code = bf16_of((vu)x);
#if TDM__LEVEL == 3 /* compilers take three times as many instructions */
    __m256i pairs = _mm256_packus_epi32((__m256i)code, (__m256i)code);
    return (vh)_mm256_castsi256_si128(_mm256_permute4x64_epi64(pairs, 0x08));
#else
    return __builtin_convertvector(code, vh);
#endif
}

static inline vf bf16_vector(vh codes)
{
    return (vf)bf16_widen(__builtin_convertvector(codes, vu));
}

/* The instructions round in the same way, but give infinity where this gives the largest number. */
static inline vh f16_narrow(vf x)
{
#if TDM__LEVEL >= 4
    __m512 most = _mm512_set1_ps(65504), least = _mm512_set1_ps(-65504);
    __m512 limited = _mm512_max_ps(least, _mm512_min_ps(most, (__m512)x));
    return (vh)_mm512_cvtps_ph(limited, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif TDM__LEVEL == 3
    __m256 most = _mm256_set1_ps(65504), least = _mm256_set1_ps(-65504);
    __m256 limited = _mm256_max_ps(least, _mm256_min_ps(most, (__m256)x));
    return (vh)_mm256_cvtps_ph(limited, _MM_FROUND_TO_NEAREST_INT);
#else
    return __builtin_convertvector(f16_of((vu)x), vh);
#endif
}

static inline vf f16_vector(vh codes)
{
#if TDM__LEVEL >= 4
    return (vf)_mm512_cvtph_ps((__m256i)codes);
#elif TDM__LEVEL == 3
    return (vf)_mm256_cvtph_ps((__m128i)codes);
#else
    return (vf)f16_widen(__builtin_convertvector(codes, vu));
#endif
}

/* A last, incomplete vector goes through an array. */
#define CAST(name, round, widen)                                                                   \
    void TDM__CODEC_LOOP(to_##name)(const float *x, size_t count, uint16_t *out, float *rest)      \
    {                                                                                              \
        int64_t n = (int64_t)count;                                                                \
        for (int64_t i = 0; i < n; i += TDM__WIDTH) {                                              \
            vf number = vf_load_up_to(x + i, n - i, 0);                                            \
            vh narrow = round(number);                                                             \
            vf_store_rest(rest ? rest + i : NULL, n - i, number, widen(narrow));                   \
            if (n - i >= TDM__WIDTH)                                                               \
                *(vh *)(out + i) = narrow;                                                         \
            else                                                                                   \
                memcpy(out + i, &narrow, (size_t)(n - i) * sizeof(*out));                          \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    void TDM__CODEC_LOOP(of_##name)(const uint16_t *codes, size_t count, float *out)               \
    {                                                                                              \
        int64_t n = (int64_t)count;                                                                \
        for (int64_t i = 0; i < n; i += TDM__WIDTH) {                                              \
            vh narrow = {0};                                                                       \
            if (n - i >= TDM__WIDTH)                                                               \
                narrow = *(const vh *)(codes + i);                                                 \
            else                                                                                   \
                memcpy(&narrow, codes + i, (size_t)(n - i) * sizeof(*codes));                      \
            vf_store_up_to(out + i, n - i, widen(narrow));                                         \
        }                                                                                          \
    }

CAST(bf16, bf16_narrow, bf16_vector)
CAST(f16, f16_narrow, f16_vector)
