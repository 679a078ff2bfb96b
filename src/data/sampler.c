/*
 * sampler.c: the order of samples, as a keyed permutation.
 *
 * The permutation of n things is an unbalanced Feistel network over ceil(log2 n) bits, which is a
 * bijection for any round function, with cycle walking: a value outside 0 ... n-1 is permuted again
 * until it is inside. The domain is smaller than 2n, so that takes fewer than two passes on
 * average. The round keys come from Philox at (seed, stream, step).
 *
 * After twelve rounds, a chi-square test over single positions, pairs and triples finds no pattern.
 * In a small domain a round has few possible outcomes, so whole orders become equally likely only
 * after more rounds: up to 16 things get 32 rounds, and then all orders of 8 are equally likely.
 *
 * The order is part of the results of a job: the number of rounds, the mixing function and the
 * derivation of the keys must never change. The unit test pins values.
 */
#include "base/base.h"
#include "data/internal.h"

/* A multiply-xorshift finaliser: every bit of the sum affects every bit of the result. The
 * constants belong to the order of samples; see tdm_mix64 for other purposes. */
static inline uint64_t permutation_mix(uint64_t value, uint64_t key)
{
    uint64_t z = value + key;
    z ^= z >> 32;
    z *= UINT64_C(0xd6e8feb86659fd93);
    z ^= z >> 32;
    z *= UINT64_C(0xd6e8feb86659fd93);
    z ^= z >> 32;
    return z;
}

#define ROUNDS 12
#define SMALL_BITS 4
#define SMALL_ROUNDS TDM__PERMUTATION_MAX_ROUNDS

static int bits_for(uint64_t count)
{
    return count <= 1 ? 0 : 64 - __builtin_clzll(count - 1);
}

tdm__permutation tdm__permutation_init(uint64_t count, uint64_t seed, uint32_t stream,
                                       uint64_t step)
{
    tdm__permutation permutation;
    permutation.count =
        count; /* only the keys in use are set; setting the others would take time */
    int bits = bits_for(count);
    int high_bits = bits / 2; /* at most 32, so no shift below reaches 64 */
    permutation.round_count = bits <= SMALL_BITS ? SMALL_ROUNDS : ROUNDS;
    permutation.low_bits = bits - high_bits;
    permutation.low_mask = (UINT64_C(1) << permutation.low_bits) - 1;
    permutation.high_mask = (UINT64_C(1) << high_bits) - 1;
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = seed, .stream = stream, .step = step});
    for (int round = 0; round < permutation.round_count; round++)
        permutation.keys[round] = tdm_rng_u32(&rng) * UINT64_C(0x9e3779b97f4a7c15);
    return permutation;
}

static inline uint64_t permutation_pass(const tdm__permutation *permutation, uint64_t value)
{
    uint64_t low = value & permutation->low_mask;
    uint64_t high = value >> permutation->low_bits;
    for (int round = 0; round < permutation->round_count; round += 2) {
        low ^= permutation_mix(high, permutation->keys[round]) & permutation->low_mask;
        high ^= permutation_mix(low, permutation->keys[round + 1]) & permutation->high_mask;
    }
    return high << permutation->low_bits | low;
}

uint64_t tdm__permutation_at(const tdm__permutation *permutation, uint64_t position)
{
    if (permutation->count <= 1) return 0;
    /* The walk ends only for a position inside the domain, so others are wrapped. */
    uint64_t value = position < permutation->count ? position : position % permutation->count;
    do {
        value = permutation_pass(permutation, value);
    } while (value >= permutation->count);
    return value;
}

uint64_t tdm_sampler_at(const tdm_sampler *sampler, uint64_t epoch, uint64_t position)
{
    if (!sampler->shuffle) return position;
    tdm__permutation permutation = tdm__permutation_init(sampler->sample_count, sampler->seed,
                                                         TDM_RNG_STREAM_SHUFFLE, epoch);
    return tdm__permutation_at(&permutation, position);
}
