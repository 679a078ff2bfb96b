/*
 * casts.c: f32 to bf16 and f16, and back, by integer arithmetic.
 *
 * Rounding is to nearest, ties to even. A number that rounds to infinity becomes the largest finite number of its
 * sign instead: with error feedback the next step sends the rest. Inputs are finite. f32 subnormal numbers become
 * 0 of their sign.
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
    vu magnitude = x & TDM__CODEC_MAGNITUDE, top = x >> 16;
    vu nearest = (x + 0x7fffu + (top & 1u)) >> 16;
    nearest += (vu)((nearest & 0x7fffu) == BF16_INFINITY); /* the mask is -1 */
    return vu_select((vu)(magnitude < 0x00800000u), top & 0x8000u, nearest);
}

static inline vu bf16_widen(vu code)
{
    return code << 16;
}

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

/* A last, incomplete vector goes through an array. */
#define CAST(name, round, widen)                                                                   \
    void TDM__CODEC_LOOP(to_##name)(const float *x, size_t count, uint16_t *out, float *rest)      \
    {                                                                                              \
        int64_t n = (int64_t)count;                                                                \
        for (int64_t i = 0; i < n; i += TDM__WIDTH) {                                              \
            vf number = vf_load_up_to(x + i, n - i, 0);                                            \
            vu code = round((vu)number);                                                           \
            vh narrow = __builtin_convertvector(code, vh);                                         \
            vf_store_rest(rest ? rest + i : NULL, n - i, number, (vf)widen(code));                 \
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
            vf_store_up_to(out + i, n - i, (vf)widen(__builtin_convertvector(narrow, vu)));        \
        }                                                                                          \
    }

CAST(bf16, bf16_of, bf16_widen)
CAST(f16, f16_of, f16_widen)
