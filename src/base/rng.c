/*
 * rng.c: random numbers as a pure function of their address.
 *
 * Philox 4x32-10 maps a 128-bit counter and a 64-bit key to four words. The seed, the stream and the
 * sub-stream of an address give the key by one Philox call, and step and sample are part of the counter,
 * so two different addresses never share a block:
 *     counter[0]  block within the sequence
 *     counter[1]  sample, low 32 bits
 *     counter[2]  step, low 32 bits
 *     counter[3]  step bits 32..47 above, sample bits 32..47 below
 * This layout is part of every trained result and must not change.
 */
#include "base/base.h"

#include <math.h>

enum { ROUND_COUNT = 10 };

static const uint32_t multiplier[2] = {0xD2511F53u, 0xCD9E8D57u};
static const uint32_t weyl[2] = {0x9E3779B9u, 0xBB67AE85u};

void tdm_philox_4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < ROUND_COUNT; round++) {
        uint64_t p0 = (uint64_t)multiplier[0] * c0;
        uint64_t p1 = (uint64_t)multiplier[1] * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += weyl[0];
        k1 += weyl[1];
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

tdm_rng tdm_rng_at(tdm_rng_address a)
{
    const uint32_t seed_key[2] = {(uint32_t)a.seed, (uint32_t)(a.seed >> 32)};
    const uint32_t purpose[4] = {a.stream, a.sub_stream, 0x74616e64u, 0x656d0001u};
    uint32_t derived[4];
    tdm_philox_4x32_10(purpose, seed_key, derived);
    tdm_rng rng = {.used = 4};
    rng.key[0] = derived[0];
    rng.key[1] = derived[1];
    rng.counter[1] = (uint32_t)a.sample;
    rng.counter[2] = (uint32_t)a.step;
    rng.counter[3] = (uint32_t)((a.step >> 32) & 0xffffu) << 16 |
                     (uint32_t)((a.sample >> 32) & 0xffffu);
    return rng;
}

void tdm_rng_seek(tdm_rng *rng, uint64_t index)
{
    rng->counter[0] = (uint32_t)(index / 4);
    tdm_philox_4x32_10(rng->counter, rng->key, rng->block);
    rng->counter[0]++;
    rng->used = (uint32_t)(index % 4);
}

uint32_t tdm_rng_u32(tdm_rng *rng)
{
    if (rng->used == 4) {
        tdm_philox_4x32_10(rng->counter, rng->key, rng->block);
        rng->counter[0]++;
        rng->used = 0;
    }
    return rng->block[rng->used++];
}

uint64_t tdm_rng_u64(tdm_rng *rng)
{
    uint64_t low = tdm_rng_u32(rng);
    return low | (uint64_t)tdm_rng_u32(rng) << 32;
}

float tdm_rng_uniform(tdm_rng *rng)
{
    return (float)(tdm_rng_u32(rng) >> 8) * 0x1p-24f;
}

uint64_t tdm_rng_below(tdm_rng *rng, uint64_t bound)
{
    /* Values in the last, incomplete run of `bound` are drawn again: fewer than half of them. */
    uint64_t limit = UINT64_MAX - UINT64_MAX % bound;
    uint64_t value;
    do value = tdm_rng_u64(rng);
    while (value >= limit);
    return value % bound;
}

double tdm_rng_normal(tdm_rng *rng)
{
    /* u is in (0, 1], so the logarithm is finite. */
    double u = ((double)(tdm_rng_u64(rng) >> 11) + 1.0) * 0x1p-53;
    double v = (double)(tdm_rng_u64(rng) >> 11) * 0x1p-53;
    return sqrt(-2.0 * tdm_math_log(u)) * tdm_math_cos(6.283185307179586476925 * v);
}
