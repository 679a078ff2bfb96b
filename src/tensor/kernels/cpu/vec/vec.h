/*
 * vec.h: shared by the vector kernels.
 *
 * tensor/level.h describes how this directory is compiled, and why names end in a level.
 *
 * Vectors are GCC's: `vf` has TDM__WIDTH floats, and arithmetic on it needs no intrinsics.
 *
 * All levels give the same bits (docs/numerics.md). To this end every product and every sum is
 * rounded separately (-ffp-contract=off) unless it is a vf_fma, which is exact at every level; and
 * a reduction has TDM__PLACES partial sums for every width of a vector: element i belongs to
 * position i mod TDM__PLACES, and one fixed tree combines the positions. A kernel that reduces
 * therefore processes TDM__PLACES elements in each iteration of its loop, as TDM__PARTS vectors:
 * one at level 4, two at level 3, four below. The last, incomplete iteration is padded to all
 * positions.
 */
#ifndef TANDEM_TENSOR_KERNELS_CPU_VEC_VEC_H
#define TANDEM_TENSOR_KERNELS_CPU_VEC_VEC_H

#include "tensor/kernels/backends.h"
#include "tensor/level.h"

#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif
#ifdef __aarch64__
#include <arm_neon.h>
#endif

typedef float vf __attribute__((vector_size(4 * TDM__WIDTH), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(4 * TDM__WIDTH), aligned(4), may_alias));

/* Halves of a `vf`, in double precision: for sums. And unsigned words. */
typedef double vd __attribute__((vector_size(4 * TDM__WIDTH), aligned(4), may_alias));
typedef uint64_t vul __attribute__((vector_size(4 * TDM__WIDTH), aligned(4), may_alias));

static inline vf vf_set(float x)
{
    return x - (vf){0}; /* x + 0 would turn -0 into +0 */
}

static inline vf vf_load(const float *from)
{
    return *(const vf *)from;
}

static inline void vf_store(float *to, vf x)
{
    *(vf *)to = x;
}

#if TDM__LEVEL == 2
/*
 * A fused multiply-add without the instruction. The product of two floats is exact in double
 * precision; the sum is rounded to double, and that to float. The second rounding is wrong only if
 * the sum is rounded to a double half way between two floats, or is below the normal range of
 * floats, where half way is elsewhere. This is rare, and these sums are computed again.
 *
 * They are rounded to odd: if the sum is not exact, the neighbour whose last bit is 1 is used, so
 * that the conversion to float can see on which side of half way the exact sum is. `error` is the
 * exact sum minus the rounded one (Knuth's TwoSum). An infinite or undefined sum has no comparable
 * error, and is kept. Doubles are never subnormal here, so flush-to-zero acts only where the
 * instruction would flush as well: on the float inputs, and on the result.
 */
typedef double vd2 __attribute__((vector_size(16)));
typedef int64_t vl2 __attribute__((vector_size(16)));

static inline vd2 vd2_sum_to_odd(vd2 product, vd2 addend)
{
    vd2 sum = product + addend, from_product = sum - addend;
    vd2 error = (product - from_product) + (addend - (sum - from_product));
    vl2 inexact = (vl2)((error < 0) | (error > 0));
    vl2 away = ((vl2)error ^ (vl2)sum) < 0; /* -1 where the rounding made |sum| larger */
    vl2 odd = ((vl2)sum + away) | 1;
    return (vd2)((inexact & odd) | (~inexact & (vl2)sum));
}

static __attribute__((noinline, cold)) __m128 vf_fma_to_odd(vd2 product_low, vd2 product_high,
                                                            vd2 low, vd2 high)
{
    return _mm_movelh_ps(_mm_cvtpd_ps((__m128d)vd2_sum_to_odd(product_low, low)),
                         _mm_cvtpd_ps((__m128d)vd2_sum_to_odd(product_high, high)));
}

/* Where a second rounding may be wrong. */
static inline vl2 vd2_is_doubtful(vd2 sum)
{
    vl2 size = (vl2)sum & INT64_MAX;
    vl2 half_way = ((vl2)sum & 0x1fffffff) == 0x10000000; /* the bits that a float does not have */
    vl2 tiny = (size < 0x3810000000000000) & (size != 0); /* 2^-126 */
    return half_way | tiny;
}

static inline __m128 vf_fma_emulated(__m128 a, __m128 b, __m128 c)
{
    vd2 product_low = (vd2)_mm_cvtps_pd(a) * (vd2)_mm_cvtps_pd(b);
    vd2 product_high = (vd2)_mm_cvtps_pd(_mm_movehl_ps(a, a)) *
                       (vd2)_mm_cvtps_pd(_mm_movehl_ps(b, b));
    vd2 low = (vd2)_mm_cvtps_pd(c), high = (vd2)_mm_cvtps_pd(_mm_movehl_ps(c, c));
    vd2 sum_low = product_low + low, sum_high = product_high + high;
    vl2 doubtful = vd2_is_doubtful(sum_low) | vd2_is_doubtful(sum_high);
    if (__builtin_expect(!_mm_testz_si128((__m128i)doubtful, (__m128i)doubtful), 0))
        return vf_fma_to_odd(product_low, product_high, low, high);
    return _mm_movelh_ps(_mm_cvtpd_ps((__m128d)sum_low), _mm_cvtpd_ps((__m128d)sum_high));
}
#endif

/* a b + c with one rounding, exactly so at every level. */
static inline vf vf_fma(vf a, vf b, vf c)
{
#if TDM__LEVEL >= 4
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif TDM__LEVEL == 3
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif TDM__LEVEL == 2
    return (vf)vf_fma_emulated((__m128)a, (__m128)b, (__m128)c);
#elif defined(__aarch64__)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    vf sum = c;
    for (int i = 0; i < TDM__WIDTH; i++) sum[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return sum;
#endif
}

#if TDM__LEVEL == 3
/* All ones in the first `count` elements, from 0 to WIDTH. */
static inline __m256i vf_part_mask(int64_t count)
{
    static const int32_t ones_zeros[2 * TDM__WIDTH] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_si256((const __m256i *)(ones_zeros + TDM__WIDTH - count));
}
#endif

/* An incomplete vector: `count` numbers, from 0 to WIDTH - 1; the other elements are `rest`.
 * Nothing beyond them is read or written. */
static inline vf vf_load_part(const float *from, int64_t count, float rest)
{
#if TDM__LEVEL >= 4
    return (vf)_mm512_mask_loadu_ps((__m512)vf_set(rest), (__mmask16)((1u << count) - 1), from);
#elif TDM__LEVEL == 3
    __m256i mask = vf_part_mask(count);
    return (vf)_mm256_blendv_ps((__m256)vf_set(rest), _mm256_maskload_ps(from, mask), (__m256)mask);
#else
    vf x = vf_set(rest);
    for (int64_t i = 0; i < count; i++) x[i] = from[i];
    return x;
#endif
}

static inline void vf_store_part(float *to, int64_t count, vf x)
{
#if TDM__LEVEL >= 4
    _mm512_mask_storeu_ps(to, (__mmask16)((1u << count) - 1), (__m512)x);
#elif TDM__LEVEL == 3
    _mm256_maskstore_ps(to, vf_part_mask(count), (__m256)x);
#else
    for (int64_t i = 0; i < count; i++) to[i] = x[i];
#endif
}

/* A vector of `left` numbers, at most WIDTH: the body of every loop, so that all elements are
 * processed by the same instructions. `left` may be 0 or less. */
static inline vf vf_load_up_to(const float *from, int64_t left, float rest)
{
    if (left >= TDM__WIDTH) return vf_load(from);
    return vf_load_part(from, left > 0 ? left : 0, rest);
}

static inline void vf_store_up_to(float *to, int64_t left, vf x)
{
    if (left >= TDM__WIDTH)
        vf_store(to, x);
    else
        vf_store_part(to, left > 0 ? left : 0, x);
}

/* ---- reductions over logical positions -------------------------------------------------------- */

enum { TDM__PLACES = 16, TDM__PARTS = TDM__PLACES / TDM__WIDTH };

/* The partial results of a reduction in f32; part p has positions [p WIDTH, (p + 1) WIDTH). */
typedef struct vf_places {
    vf part[TDM__PARTS];
} vf_places;

typedef float vf4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef float vf8 __attribute__((vector_size(32), aligned(4), may_alias));

/* A quarter of the positions: 4 q, 4 q + 1, 4 q + 2, 4 q + 3. */
static inline vf4 vf_places_quarter(const vf_places *x, int q)
{
    vf4 quarter;
    memcpy(&quarter, (const char *)x + q * sizeof(quarter), sizeof(quarter));
    return quarter;
}

/* The sum of all: position i with i + 8, of these i with i + 4, and of these (0 + 2) + (1 + 3). */
static inline float vf_places_sum(const vf_places *x)
{
    vf4 even = vf_places_quarter(x, 0) + vf_places_quarter(x, 2);
    vf4 odd = vf_places_quarter(x, 1) + vf_places_quarter(x, 3);
    vf4 four = even + odd;
    return (four[0] + four[2]) + (four[1] + four[3]);
}

/* Sums in double precision of the elements of one vector. */
typedef struct vsum_part {
    vd low, high;
} vsum_part;

/* Sums in double precision of all positions. */
typedef struct vsum {
    vsum_part part[TDM__PARTS];
} vsum;

#define VSUM_ZERO ((vsum){{{{0}, {0}}}})

/* The elements of x in double precision: the lower half of them and the upper. */
static inline vsum_part vsum_of(vf x)
{
    typedef float half __attribute__((vector_size(2 * TDM__WIDTH)));
    half part[2];
    memcpy(part, &x, sizeof(part));
    return (vsum_part){__builtin_convertvector(part[0], vd), __builtin_convertvector(part[1], vd)};
}

static inline void vsum_add(vsum_part *sum, vf x)
{
    vsum_part wide = vsum_of(x);
    sum->low += wide.low;
    sum->high += wide.high;
}

/* A product of two floats is exact in double precision: this rounds once. */
static inline void vsum_add_product(vsum_part *sum, vf x, vf y)
{
    vsum_part a = vsum_of(x), b = vsum_of(y);
    sum->low += a.low * b.low;
    sum->high += a.high * b.high;
}

/* The tree of vf_places_sum, continued: position i with i + 8, i + 4, i + 2, i + 1. */
static inline double vsum_total(const vsum *sum)
{
    double places[TDM__PLACES];
    memcpy(places, sum, sizeof(places));
    for (int i = 0; i < 8; i++) places[i] += places[i + 8];
    for (int i = 0; i < 4; i++) places[i] += places[i + 4];
    return (places[0] + places[2]) + (places[1] + places[3]);
}

/* The rows and columns of [..., C]. */
static inline int64_t tdm__vec_columns(const tdm_tensor *t)
{
    return t->shape.rank > 0 ? t->shape.dim[t->shape.rank - 1] : 1;
}

static inline int64_t tdm__vec_rows(const tdm_tensor *t)
{
    int64_t rows = 1;
    for (int i = 0; i + 1 < t->shape.rank; i++) rows *= t->shape.dim[i];
    return rows;
}

/* Threads: see tdm__threads_pays in kernels/backends.h. */
typedef tdm_kernel_range_fn tdm__vec_range_fn;

static inline void tdm__vec_split(int64_t count, int64_t unit_cost, tdm__vec_range_fn run,
                                  const void *args)
{
    if (tdm__threads_pays(count, unit_cost))
        tdm__threads_spread(count, tdm__threads_grain(unit_cost), run, args);
    else
        run(args, 0, count);
}

/* The families of this directory; table.c lists them. */
extern const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_basic);
extern const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_pool);
extern const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_batch_norm);
extern const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_cast);
extern const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_norm), TDM__AT_LEVEL(tdm__vec_attention);
extern const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_sums);
extern const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_classes);
extern const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_loss);
extern const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_embedding);
extern const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_dropout);
extern const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_copy);

#endif
