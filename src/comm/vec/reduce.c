/*
 * reduce.c: sums, minima and maxima of two buffers, one vector at a time.
 *
 * Every element is computed by the same vector operations, including those of the last, shorter
 * vector (it is padded), so the bits depend only on the two elements. Definitions beyond IEEE 754:
 *  1. Every NaN result is the same: quiet, positive, payload zero.
 *  2. MIN and MAX compare by the total order of bits: -0 is less than +0, and NaN wins.
 *  3. f16 and bf16 are added in f32, which has enough digits that rounding twice equals rounding once,
 *     and are rounded to nearest, ties to even.
 *  4. Integers wrap around: they are added as unsigned.
 *
 * f16 is converted by CPU instructions from level 3 on, and by integer arithmetic below it; both
 * are exact, or round identically.
 */
#include "comm/reduce_loops.h"

#include "tensor/level.h"

#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { VECTOR_BYTES = TDM__WIDTH * 4 };

#define VECTOR(type) type __attribute__((vector_size(VECTOR_BYTES)))
#define LOOSE(type) type __attribute__((vector_size(VECTOR_BYTES), aligned(1), may_alias))
typedef VECTOR(float) vf32;
typedef VECTOR(double) vf64;
typedef VECTOR(int16_t) vi16;
typedef VECTOR(int32_t) vi32;
typedef VECTOR(int64_t) vi64;
typedef VECTOR(uint16_t) vu16;
typedef VECTOR(uint32_t) vu32;
typedef VECTOR(uint64_t) vu64;
typedef LOOSE(uint64_t) loose; /* any type, at any address */

static inline vu64 load(const void *p)
{
    return *(const loose *)p;
}

static inline void store(void *p, vu64 v)
{
    *(loose *)p = v;
}

/* Past the cache; `p` is aligned. */
static inline void store_stream(void *p, vu64 v)
{
#if TDM__LEVEL >= 4
    _mm512_stream_si512(p, (__m512i)v);
#elif TDM__LEVEL == 3
    _mm256_stream_si256(p, (__m256i)v);
#elif TDM__LEVEL == 2
    _mm_stream_si128(p, (__m128i)v);
#else
    store(p, v);
#endif
}

static void fence(void)
{
#if TDM__LEVEL >= 2
    _mm_sfence();
#endif
}

/* yes where the mask is all ones, no where it is zero. */
#define PICK(mask, yes, no) (((yes) & (mask)) | ((no) & ~(mask)))

/* ---- f32 and f64 ------------------------------------------------------------------------------ */

static inline vu64 sum_f32(vu64 left, vu64 right)
{
    vf32 sum = (vf32)left + (vf32)right;
    vi32 nan = sum != sum; /* NOLINT(misc-redundant-expression): only NaN differs from itself */
    return (vu64)PICK(nan, (vi32){0} + 0x7fc00000, (vi32)sum);
}

static inline vu64 sum_f64(vu64 left, vu64 right)
{
    vf64 sum = (vf64)left + (vf64)right;
    vi64 nan = sum != sum; /* NOLINT(misc-redundant-expression) */
    return (vu64)PICK(nan, (vi64){0} + 0x7ff8000000000000, (vi64)sum);
}

/* ---- f16 and bf16 ----------------------------------------------------------------------------- */

/* A vector of 16-bit numbers, viewed as 32-bit elements, has the even elements in the lower halves
 * and the odd ones in the upper halves: two vectors of f32 without shuffling. */

static inline vu32 round_bf16(vf32 x)
{
    vu32 bits = (vu32)x;
    vu32 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    vu32 nan = (vu32)(x != x); /* NOLINT(misc-redundant-expression) */
    return PICK(nan, (vu32){0} + 0x7fc0, rounded);
}

static inline vu64 sum_bf16(vu64 left, vu64 right)
{
    vu32 l = (vu32)left, r = (vu32)right;
    vu32 even = round_bf16((vf32)(l << 16) + (vf32)(r << 16));
    vu32 odd = round_bf16((vf32)(l & 0xffff0000) + (vf32)(r & 0xffff0000));
    return (vu64)(even | odd << 16);
}

#if TDM__LEVEL >= 3

/* Half a vector of f16. */
#if TDM__LEVEL >= 4
typedef __m256i half;
#define WIDEN(h) ((vf32)_mm512_cvtph_ps(h))
#define NARROW(x) _mm512_cvtps_ph((__m512)(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#else
typedef __m128i half;
#define WIDEN(h) ((vf32)_mm256_cvtph_ps(h))
#define NARROW(x) _mm256_cvtps_ph((__m256)(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#endif

static inline vu64 sum_f16(vu64 left, vu64 right)
{
    half l[2], r[2], sums[2];
    memcpy(l, &left, sizeof(l));
    memcpy(r, &right, sizeof(r));
    for (int i = 0; i < 2; i++) sums[i] = NARROW(WIDEN(l[i]) + WIDEN(r[i]));
    vi16 bits;
    memcpy(&bits, sums, sizeof(bits));
    vi16 nan = (bits & 0x7fff) > 0x7c00;
    return (vu64)PICK(nan, (vi16){0} + 0x7e00, bits);
}

#else

/* 32-bit elements with an f16 each in their lower halves, as f32. */
static inline vf32 widen(vu32 h)
{
    vu32 sign = (h & 0x8000) << 16, exponent = h & 0x7c00, fraction = h & 0x03ff;
    /* Subnormal: a multiple of 2^-24, which f32 represents as a normal number. */
    vu32 tiny = (vu32)(__builtin_convertvector((vi32)fraction, vf32) * 0x1p-24f);
    vu32 normal = ((h & 0x7fff) << 13) + (112u << 23);
    vu32 special = 0x7f800000 | fraction << 13;
    vu32 bits = PICK((vu32)(exponent == 0), tiny, normal);
    bits = PICK((vu32)(exponent == 0x7c00), special, bits);
    return (vf32)(bits | sign);
}

static inline vu32 narrow(vf32 x)
{
    vu32 bits = (vu32)x, sign = (bits >> 16) & 0x8000, size = bits & 0x7fffffff;
    /* Below 2^-14: adding 1/2 aligns the last digit of f16 with that of f32, so the addition
     * rounds. */
    vu32 tiny = (vu32)((vf32)size + 0.5f) - 0x3f000000;
    vu32 normal = (size - (112u << 23) + 0x0fff + ((size >> 13) & 1)) >> 13;
    vu32 rounded = PICK((vu32)(size < (113u << 23)), tiny, normal);
    /* From 65,520 on, rounds to infinity. */
    rounded = PICK((vu32)(size >= 0x477ff000), (vu32){0} + 0x7c00, rounded);
    return PICK((vu32)(size > 0x7f800000), (vu32){0} + 0x7e00, rounded | sign);
}

static inline vu64 sum_f16(vu64 left, vu64 right)
{
    vu32 l = (vu32)left, r = (vu32)right;
    vu32 even = narrow(widen(l & 0xffff) + widen(r & 0xffff));
    vu32 odd = narrow(widen(l >> 16) + widen(r >> 16));
    return (vu64)(even | odd << 16);
}

#endif

/* ---- minimum and maximum ---------------------------------------------------------------------- */

/* Floats are mapped to integers of the same order and compared as such. `infinity` is the bit
 * pattern of infinity: a larger magnitude is a NaN. */
#define FLOAT_EXTREMES(name, vec, sign_shift, size_mask, infinity, quiet)                          \
    static inline vec order_##name(vec bits)                                                       \
    {                                                                                              \
        return bits ^ ((bits >> (sign_shift)) & (size_mask));                                      \
    }                                                                                              \
    static inline vec pick_##name(vec left, vec right, vec take_left)                              \
    {                                                                                              \
        vec nan = ((left & (size_mask)) > (infinity)) | ((right & (size_mask)) > (infinity));      \
        vec taken = PICK(take_left, left, right);                                                  \
        return PICK(nan, (vec){0} + (quiet), taken);                                               \
    }                                                                                              \
    static inline vu64 min_##name(vu64 left, vu64 right)                                           \
    {                                                                                              \
        vec l = (vec)left, r = (vec)right;                                                         \
        return (vu64)pick_##name(l, r, order_##name(l) < order_##name(r));                         \
    }                                                                                              \
    static inline vu64 max_##name(vu64 left, vu64 right)                                           \
    {                                                                                              \
        vec l = (vec)left, r = (vec)right;                                                         \
        return (vu64)pick_##name(l, r, order_##name(l) > order_##name(r));                         \
    }

FLOAT_EXTREMES(f32, vi32, 31, 0x7fffffff, 0x7f800000, 0x7fc00000)
FLOAT_EXTREMES(f64, vi64, 63, 0x7fffffffffffffff, 0x7ff0000000000000, 0x7ff8000000000000)
FLOAT_EXTREMES(f16, vi16, 15, 0x7fff, 0x7c00, 0x7e00)
FLOAT_EXTREMES(bf16, vi16, 15, 0x7fff, 0x7f80, 0x7fc0)

/* ---- integers --------------------------------------------------------------------------------- */

#define WHOLE(name, vec, unsigned_vec)                                                             \
    static inline vu64 sum_##name(vu64 left, vu64 right)                                           \
    {                                                                                              \
        return (vu64)((unsigned_vec)left + (unsigned_vec)right);                                   \
    }                                                                                              \
    static inline vu64 min_##name(vu64 left, vu64 right)                                           \
    {                                                                                              \
        vec l = (vec)left, r = (vec)right;                                                         \
        return (vu64)PICK(l < r, l, r);                                                            \
    }                                                                                              \
    static inline vu64 max_##name(vu64 left, vu64 right)                                           \
    {                                                                                              \
        vec l = (vec)left, r = (vec)right;                                                         \
        return (vu64)PICK(l > r, l, r);                                                            \
    }

WHOLE(i32, vi32, vu32)
WHOLE(i64, vi64, vu64)

/* ---- loops ------------------------------------------------------------------------------------ */

#define LOOP(op, element_bytes, suffix, put)                                                       \
    static void op##suffix(void *out, const void *left, const void *right, size_t count)           \
    {                                                                                              \
        size_t bytes = count * (element_bytes), at = 0;                                            \
        char *o = out;                                                                             \
        const char *l = left, *r = right;                                                          \
        for (; bytes - at >= 4 * (size_t)VECTOR_BYTES; at += 4 * (size_t)VECTOR_BYTES) {           \
            vu64 results[4];                                                                       \
            for (size_t k = 0; k < 4; k++)                                                         \
                results[k] = op(load(l + at + k * VECTOR_BYTES), load(r + at + k * VECTOR_BYTES)); \
            for (size_t k = 0; k < 4; k++) put(o + at + k * VECTOR_BYTES, results[k]);             \
        }                                                                                          \
        for (; bytes - at >= VECTOR_BYTES; at += VECTOR_BYTES)                                     \
            put(o + at, op(load(l + at), load(r + at)));                                           \
        if (at < bytes) {                                                                          \
            vu64 a = {0}, b = {0};                                                                 \
            memcpy(&a, l + at, bytes - at);                                                        \
            memcpy(&b, r + at, bytes - at);                                                        \
            a = op(a, b);                                                                          \
            memcpy(o + at, &a, bytes - at);                                                        \
        }                                                                                          \
    }

#define LOOPS(type, element_bytes)                                                                 \
    LOOP(sum_##type, element_bytes, _loop, store)                                                  \
    LOOP(min_##type, element_bytes, _loop, store)                                                  \
    LOOP(max_##type, element_bytes, _loop, store)                                                  \
    LOOP(sum_##type, element_bytes, _stream, store_stream)                                         \
    LOOP(min_##type, element_bytes, _stream, store_stream)                                         \
    LOOP(max_##type, element_bytes, _stream, store_stream)

LOOPS(f32, 4)
LOOPS(f64, 8)
LOOPS(f16, 2)
LOOPS(bf16, 2)
LOOPS(i32, 4)
LOOPS(i64, 8)

static void stream(void *out, const void *in, size_t bytes)
{
    char *o = out;
    const char *from = in;
    size_t at = 0;
    for (; bytes - at >= 4 * (size_t)VECTOR_BYTES; at += 4 * (size_t)VECTOR_BYTES) {
        vu64 lines[4];
        for (size_t k = 0; k < 4; k++) lines[k] = load(from + at + k * VECTOR_BYTES);
        for (size_t k = 0; k < 4; k++) store_stream(o + at + k * VECTOR_BYTES, lines[k]);
    }
    memcpy(o + at, from + at, bytes - at);
}

#define ROW(type)                                                                                  \
    {                                                                                              \
        [TDM_REDUCE_SUM] = {sum_##type##_loop, sum_##type##_stream},                               \
        [TDM_REDUCE_MIN] = {min_##type##_loop, min_##type##_stream},                               \
        [TDM_REDUCE_MAX] = {max_##type##_loop, max_##type##_stream},                               \
    }

const tdm__reduce_loops TDM__AT_LEVEL(tdm__reduce_loops) = {
    .level = TDM__LEVEL,
    .pairs = {ROW(f32), ROW(f64), ROW(f16), ROW(bf16), ROW(i32), ROW(i64)},
    .stream = stream,
    .fence = fence,
};
