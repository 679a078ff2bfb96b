/*
 * sampler.c: the order in which samples are seen, as a keyed permutation.
 *
 * The permutation of n things is an unbalanced Feistel network over ceil(log2 n) bits, which is a
 * bijection whatever its round function, with cycle walking: a value outside 0 ... n-1 is put
 * through again until it falls inside. The domain is less than 2n, so that takes fewer than two
 * passes on average. The round keys come from Philox at (seed, stream, step).
 *
 * Twelve rounds leave no trace that a chi-square test over single places, pairs and triples finds.
 * In a tiny domain a round has so few outcomes that whole orders are not equally likely until much
 * later, so up to 16 things are given 32 rounds: then all orders of 8 are.
 *
 * The order is part of a job's results: the numbers of rounds, the mixing function and the way keys
 * are drawn must never change. The unit test pins values for that reason.
 */
#include "base/base.h"
#include "data/internal.h"

/* A multiply-xorshift finaliser: every bit of the sum reaches every bit of the result. */
static inline uint64_t mix(uint64_t value, uint64_t key)
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
    permutation.count = count; /* only the keys in use are set: the rest would cost time */
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

static inline uint64_t pass(const tdm__permutation *permutation, uint64_t value)
{
    uint64_t low = value & permutation->low_mask;
    uint64_t high = value >> permutation->low_bits;
    for (int round = 0; round < permutation->round_count; round += 2) {
        low ^= mix(high, permutation->keys[round]) & permutation->low_mask;
        high ^= mix(low, permutation->keys[round + 1]) & permutation->high_mask;
    }
    return high << permutation->low_bits | low;
}

uint64_t tdm__permutation_at(const tdm__permutation *permutation, uint64_t position)
{
    if (permutation->count <= 1) return 0;
    /* A position outside would break the promise that the walk comes back inside: wrap it. */
    uint64_t value = position < permutation->count ? position : position % permutation->count;
    do {
        value = pass(permutation, value);
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
