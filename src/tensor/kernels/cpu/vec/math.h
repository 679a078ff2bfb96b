/*
 * math.h: functions of one number on whole vectors, for the vector kernels.
 *
 * Everything is static inline and without branches: special cases are chosen by masks. NaN goes
 * through as NaN. Errors are given in units of the last place (ulp) against the exact value; the
 * kernel tests hold them to that.
 */
#ifndef TANDEM_TENSOR_KERNELS_CPU_VEC_MATH_H
#define TANDEM_TENSOR_KERNELS_CPU_VEC_MATH_H

#include "tensor/kernels/cpu/vec/vec.h"

#include <math.h>

static inline vf vf_load(const float *from)
{
    return *(const vf *)from;
}

static inline void vf_store(float *to, vf x)
{
    *(vf *)to = x;
}

static inline vf vf_set(float x)
{
    return x - (vf){0};
}

/* a where the mask is all ones, b where it is zero. */
static inline vf vf_select(vi mask, vf a, vf b)
{
    return (vf)((mask & (vi)a) | (~mask & (vi)b));
}

/* As the processor has it: b where either is NaN. */
static inline vf vf_max(vf a, vf b)
{
    return vf_select((vi)(a > b), a, b);
}

/* The places of a vector joined to one number, in halves: 0 with WIDTH/2, and so on. */
typedef float vf4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef float vf8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t vi4 __attribute__((vector_size(16), aligned(4), may_alias));

static inline vf4 vf4_max(vf4 a, vf4 b)
{
    vi4 mask = (vi4)(a > b);
    return (vf4)((mask & (vi4)a) | (~mask & (vi4)b));
}

#if TDM__WIDTH == 16
#define TDM__LOW_HALF(x) __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7)
#define TDM__HIGH_HALF(x) __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15)
#endif

static inline float vf_sum(vf x)
{
#if TDM__WIDTH == 16
    vf8 eight = TDM__LOW_HALF(x) + TDM__HIGH_HALF(x);
#elif TDM__WIDTH == 8
    vf8 eight = x;
#endif
#if TDM__WIDTH >= 8
    vf4 four = __builtin_shufflevector(eight, eight, 0, 1, 2, 3) +
               __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
#else
    vf4 four = x;
#endif
    return (four[0] + four[2]) + (four[1] + four[3]);
}

/* The largest of them; any of them when one is NaN. */
static inline float vf_largest(vf x)
{
#if TDM__WIDTH == 16
    vf8 low = TDM__LOW_HALF(x), high = TDM__HIGH_HALF(x);
    vf4 four = vf4_max(vf4_max(__builtin_shufflevector(low, low, 0, 1, 2, 3),
                               __builtin_shufflevector(low, low, 4, 5, 6, 7)),
                       vf4_max(__builtin_shufflevector(high, high, 0, 1, 2, 3),
                               __builtin_shufflevector(high, high, 4, 5, 6, 7)));
#elif TDM__WIDTH == 8
    vf4 four = vf4_max(__builtin_shufflevector(x, x, 0, 1, 2, 3),
                       __builtin_shufflevector(x, x, 4, 5, 6, 7));
#else
    vf4 four = x;
#endif
    float a = four[0] > four[2] ? four[0] : four[2], b = four[1] > four[3] ? four[1] : four[3];
    return a > b ? a : b;
}

/*
 * e^x within 2 ulp. 0 below -87.33 (where the result would not be a normal number), infinity above
 * 88.72. x = n ln 2 + r with |r| <= ln(2)/2; e^r by a polynomial (Cephes), 2^n through the exponent.
 */
static inline vf vexpf(vf x)
{
    const float round = 0x1.8p23f;
    vf shifted = x * 0x1.715476p0f + round;
    vf n = shifted - round;
    vf r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    vf p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    vf y = (vf)((vi)p + ((vi)shifted << 23));
    y = vf_select((vi)(x < -0x1.5d589ep6f), (vf){0}, y);
    y = vf_select((vi)(x > 0x1.62e42ep6f), vf_set(INFINITY), y);
    return vf_select((vi)(x != x), x, y);
}

#endif
