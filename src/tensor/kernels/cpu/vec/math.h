/*
 * math.h: exp, log, tanh, erf and the logistic function for whole vectors, in f32.
 *
 * Each is one formula for all elements of a vector: both sides of a branch are computed and one is
 * selected. All operations are exactly rounded ones and vf_fma, in one order, so that every level
 * gives the same bits for every input (tests/kernel/levels_test.c). Polynomials are those of the
 * Cephes library (exp, log, tanh) and Norbert Juffa's (erf). The maximum error over all numbers is
 * 1.4 units in the last place, and 2.5 for the logistic function; tests/kernel/vec_test.c verifies
 * that. Infinities, zeros, subnormal results and NaN are as in C's own functions.
 */
#ifndef TANDEM_TENSOR_KERNELS_CPU_VEC_MATH_H
#define TANDEM_TENSOR_KERNELS_CPU_VEC_MATH_H

#include "tensor/kernels/cpu/vec/vec.h"

#include <math.h>

/* a where the mask is all ones, b where it is zero. */
static inline vf vf_select(vi mask, vf a, vf b)
{
    return (vf)((mask & (vi)a) | (~mask & (vi)b));
}

/*
 * Hide the origin of a mask or a vector. clang turns `a < b ? a : b` into the instruction for a
 * minimum or a maximum, and a product with `a < b ? 1 : 0` into a selection, at some levels and not
 * at others; but one flushes a subnormal number that the other keeps.
 */
#if defined(__clang__) && defined(__x86_64__)
#define TDM__HIDE_MASK(mask) __asm__("" : "+Yk"(mask))
#define TDM__HIDE(vector) __asm__("" : "+v"(vector))
#elif defined(__clang__) && defined(__aarch64__)
#define TDM__HIDE(vector) __asm__("" : "+w"(vector))
#else
#define TDM__HIDE_MASK(mask) (void)0
#define TDM__HIDE(vector) (void)0
#endif

/* a < b ? x : y; y if a or b is NaN. The bits of x and y are preserved. */
static inline vf vf_pick_less(vf a, vf b, vf x, vf y)
{
#if TDM__LEVEL >= 4
    __mmask16 less = _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ);
    TDM__HIDE_MASK(less);
    return (vf)_mm512_mask_blend_ps(less, (__m512)y, (__m512)x);
#elif TDM__LEVEL == 3
    __m256 less = _mm256_cmp_ps((__m256)a, (__m256)b, _CMP_LT_OQ);
    TDM__HIDE(less);
    return (vf)_mm256_blendv_ps((__m256)y, (__m256)x, less);
#else
    vi less = a < b;
    TDM__HIDE(less);
    return (vf)(((vi)x & less) | ((vi)y & ~less));
#endif
}

/* The smaller and the larger one; x if either is NaN, or if they are equal. If subnormal numbers
 * are flushed, a subnormal result may be kept or become 0 of its sign. */
static inline vf vf_min(vf limit, vf x)
{
#if TDM__LEVEL >= 4
    return (vf)_mm512_min_ps((__m512)limit, (__m512)x);
#elif TDM__LEVEL == 3
    return (vf)_mm256_min_ps((__m256)limit, (__m256)x);
#elif TDM__LEVEL == 2
    return (vf)_mm_min_ps((__m128)limit, (__m128)x);
#else
    return vf_pick_less(limit, x, limit, x);
#endif
}

static inline vf vf_max(vf limit, vf x)
{
#if TDM__LEVEL >= 4
    return (vf)_mm512_max_ps((__m512)limit, (__m512)x);
#elif TDM__LEVEL == 3
    return (vf)_mm256_max_ps((__m256)limit, (__m256)x);
#elif TDM__LEVEL == 2
    return (vf)_mm_max_ps((__m128)limit, (__m128)x);
#else
    return vf_pick_less(x, limit, limit, x);
#endif
}

static inline vf vf_abs(vf x)
{
    return (vf)((vi)x & 0x7fffffff);
}

/* The magnitude of `x` with the sign of `sign`. */
static inline vf vf_copysign(vf x, vf sign)
{
    return (vf)(((vi)x & 0x7fffffff) | ((vi)sign & ~0x7fffffff));
}

typedef int32_t vi4 __attribute__((vector_size(16), aligned(4), may_alias));

/* a > b ? a : b */
static inline vf4 vf4_max(vf4 a, vf4 b)
{
#ifdef __x86_64__
    return (vf4)_mm_max_ps((__m128)a, (__m128)b);
#else
    vi4 mask = (vi4)(a > b);
    return (vf4)((mask & (vi4)a) | (~mask & (vi4)b));
#endif
}

/* The maximum of all positions, by the tree of vf_places_sum. If one is NaN: NaN or another one of
 * them, the same at every level. */
static inline float vf_places_largest(const vf_places *x)
{
    vf4 even = vf4_max(vf_places_quarter(x, 0), vf_places_quarter(x, 2));
    vf4 odd = vf4_max(vf_places_quarter(x, 1), vf_places_quarter(x, 3));
    vf4 four = vf4_max(even, odd);
    float a = four[0] > four[2] ? four[0] : four[2], b = four[1] > four[3] ? four[1] : four[3];
    return a > b ? a : b;
}

/* x 2^n for n in [-160, 160], in two steps so that results may be subnormal or infinite. */
static inline vf vf_scale_by_power(vf x, vi n)
{
    vi half = n >> 1;
    vf first = (vf)((half + 127) << 23), second = (vf)((n - half + 127) << 23);
    return x * first * second;
}

/* e^x = 2^n e^r, |r| <= ln(2) / 2. */
static inline vf vexpf(vf x)
{
    const vf to_integer = vf_set(0x1.8p23f); /* adding it rounds to an integer */
    x = vf_min(vf_set(89.0f), vf_max(vf_set(-104.0f), x));
    vf shifted = vf_fma(x, vf_set(1.44269504088896341f), to_integer);
    vf n = shifted - to_integer;
    vf r = vf_fma(n, vf_set(-0.693359375f), x);
    r = vf_fma(n, vf_set(2.12194440e-4f), r);
    vf p = vf_set(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set(5.0000001201e-1f));
    p = vf_fma(p, r * r, r);
    p = p + 1.0f;
#if TDM__LEVEL >= 4
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    return vf_scale_by_power(p, (vi)shifted - (vi)to_integer);
#endif
}

/* ln x = e ln 2 + ln m, m in [sqrt(1/2), sqrt(2)). */
static inline vf vlogf(vf x)
{
    const vf zero = vf_set(0), smallest = vf_set(0x1p-126f);
    vf normal = vf_pick_less(x, smallest, x * 0x1p23f, x);
    vf e = vf_pick_less(x, smallest, vf_set(-23.0f), zero);
    vi exponent = (((vi)normal >> 23) & 0xff) - 126;
    vf m = (vf)(((vi)normal & 0x007fffff) | 0x3f000000); /* in [1/2, 1) */
    const vf root_half = vf_set(0.707106781186547524f);
    e = e + __builtin_convertvector(exponent, vf);
    e = vf_pick_less(m, root_half, e - 1.0f, e);
    vf r = vf_pick_less(m, root_half, m + m, m) - 1.0f;
    vf z = r * r;
    vf p = vf_set(7.0376836292e-2f);
    p = vf_fma(p, r, vf_set(-1.1514610310e-1f));
    p = vf_fma(p, r, vf_set(1.1676998740e-1f));
    p = vf_fma(p, r, vf_set(-1.2420140846e-1f));
    p = vf_fma(p, r, vf_set(1.4249322787e-1f));
    p = vf_fma(p, r, vf_set(-1.6668057665e-1f));
    p = vf_fma(p, r, vf_set(2.0000714765e-1f));
    p = vf_fma(p, r, vf_set(-2.4999993993e-1f));
    p = vf_fma(p, r, vf_set(3.3333331174e-1f));
    vf y = p * (r * z);
    y = vf_fma(e, vf_set(-2.12194440e-4f), y);
    y = vf_fma(z, vf_set(-0.5f), y);
    y = vf_fma(e, vf_set(0.693359375f), r + y);
    /* Where the formula does not hold: infinity and NaN are kept; 0 gives -infinity, less gives
     * NaN. */
    const vf infinity = vf_set(INFINITY);
    y = vf_pick_less(x, infinity, y, x);
    vf of_zero = vf_pick_less(x, zero, zero / zero, -infinity);
    return vf_pick_less(zero, x, y, vf_pick_less(x, smallest, of_zero, x));
}

/* An odd polynomial near zero, 1 - 2 / (e^2x + 1) elsewhere. */
static inline vf vtanhf(vf x)
{
    vf size = vf_abs(x), s = x * x;
    vf p = vf_set(-5.70498872745e-3f);
    p = vf_fma(p, s, vf_set(2.06390887954e-2f));
    p = vf_fma(p, s, vf_set(-5.37397155531e-2f));
    p = vf_fma(p, s, vf_set(1.33314422036e-1f));
    p = vf_fma(p, s, vf_set(-3.33332819422e-1f));
    vf near = vf_fma(p * s, x, x);
    vf far = 1.0f - 2.0f / (vexpf(size + size) + 1.0f);
    return vf_pick_less(size, vf_set(0.625f), near, vf_copysign(far, x));
}

/* An odd polynomial near zero, 1 - e^polynomial elsewhere. */
static inline vf verff(vf x)
{
    vf t = vf_abs(x), s = x * x;
    vf q = vf_fma(vf_set(-1.72853470e-5f), t, vf_set(3.83197126e-4f));
    vf u = vf_fma(vf_set(-3.88396438e-3f), t, vf_set(2.42546219e-2f));
    q = vf_fma(q, s, u);
    q = vf_fma(q, t, vf_set(-1.06777877e-1f));
    q = vf_fma(q, t, vf_set(-6.34846687e-1f));
    q = vf_fma(q, t, vf_set(-1.28717512e-1f));
    q = vf_fma(q, t, -t);
    vf far = vf_copysign(1.0f - vexpf(q), x);
    vf p = vf_fma(vf_set(-5.96761703e-4f), s, vf_set(4.99119423e-3f));
    p = vf_fma(p, s, vf_set(-2.67681349e-2f));
    p = vf_fma(p, s, vf_set(1.12819925e-1f));
    p = vf_fma(p, s, vf_set(-3.76125336e-1f));
    p = vf_fma(p, s, vf_set(1.28379166e-1f));
    vf near = vf_fma(p, x, x);
    return vf_pick_less(t, vf_set(0.927734375f), near, far);
}

/* 1 / (1 + e^-x), by way of e^-|x|, which never overflows. */
static inline vf vsigmoidf(vf x)
{
    vf e = vexpf(-vf_abs(x));
    return vf_pick_less(x, vf_set(0), e, vf_set(1.0f)) / (1.0f + e);
}

#endif
