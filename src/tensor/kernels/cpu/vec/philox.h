/*
 * philox.h: many random words at once: the same that tdm_rng_u32 draws one by one.
 *
 * A group is WIDTH / 2 counters, one in each 64-bit element of a vector, which gives 2 WIDTH words
 * in the order of the sequence: two vectors. Philox needs products of 32 by 32 bits, which every
 * level has for 64-bit elements; the intermediate values in the upper halves are ignored.
 */
#ifndef TANDEM_TENSOR_KERNELS_CPU_VEC_PHILOX_H
#define TANDEM_TENSOR_KERNELS_CPU_VEC_PHILOX_H

#include "tensor/kernels/cpu/vec/vec.h"

enum { TDM__PHILOX_GROUP = 2 * TDM__WIDTH }; /* words */

/* The product of the lower halves of each element. */
static inline vul vul_multiply(vul a, vul b)
{
#if TDM__LEVEL >= 4
    return (vul)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif TDM__LEVEL == 3
    return (vul)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif TDM__LEVEL == 2
    return (vul)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
    return (a & 0xffffffffu) * (b & 0xffffffffu);
#endif
}

static inline vul vul_set(uint64_t x)
{
    return x + (vul){0};
}

/* Interleaves the elements of a and b: the lower half of the result, and the upper. */
#if TDM__WIDTH == 16
#define TDM__MIX_LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define TDM__MIX_HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#elif TDM__WIDTH == 8
#define TDM__MIX_LOW(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define TDM__MIX_HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#else
#define TDM__MIX_LOW(a, b) __builtin_shufflevector(a, b, 0, 2)
#define TDM__MIX_HIGH(a, b) __builtin_shufflevector(a, b, 1, 3)
#endif

/* Words [group * 2 WIDTH, (group + 1) * 2 WIDTH) of the sequence that `rng`, fresh from tdm_rng_at,
 * would draw. */
static inline void tdm__philox_group(const tdm_rng *rng, uint32_t group, vi words[2])
{
    vul place;
    for (int i = 0; i < TDM__WIDTH / 2; i++) place[i] = (uint64_t)i;
    vul c0 = place + (uint64_t)group * (TDM__WIDTH / 2); /* bits above 32 are ignored */
    vul c1 = vul_set(rng->counter[1]), c2 = vul_set(rng->counter[2]), c3 = vul_set(rng->counter[3]);
    uint32_t k0 = rng->key[0], k1 = rng->key[1];
    for (int round = 0; round < 10; round++) {
        vul p0 = vul_multiply(vul_set(0xD2511F53u), c0),
            p1 = vul_multiply(vul_set(0xCD9E8D57u), c2);
        c0 = (p1 >> 32) ^ c1 ^ vul_set(k0);
        c2 = (p0 >> 32) ^ c3 ^ vul_set(k1);
        c1 = p1;
        c3 = p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    vul first = (c0 & 0xffffffffu) | (c1 << 32), second = (c2 & 0xffffffffu) | (c3 << 32);
    words[0] = (vi)TDM__MIX_LOW(first, second);
    words[1] = (vi)TDM__MIX_HIGH(first, second);
}

#endif
