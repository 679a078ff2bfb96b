/*
 * random.c: long arrays of random numbers, for the initial values of parameters.
 *
 * The words are those of the address's sequence, in order, at every level. Uniform number i is
 * computed from word i. Normal numbers are computed in blocks of 32 from 32 words, by the
 * Box-Muller transform: the first 16 words give the radii, the others the angles; a radius times
 * the cosine of its angle is a number of the first half, times the sine one of the second.
 * Logarithm, sine and cosine are our own short series, in f32 with every product and sum rounded
 * separately, so that the numbers are the same on every machine. The error is below 4e-7, for a
 * standard deviation of 1.
 */
#include "base/base.h"
#include "tensor/kernels/cpu/vec/philox.h"

#include <assert.h>
#include <math.h>

enum { HALF = 16, BLOCK = TDM_KERNEL_RANDOM_BLOCK, GROUPS = BLOCK / TDM__PHILOX_GROUP };

typedef struct work {
    tdm_rng rng;
    double scale;
    int64_t first; /* block of the sequence */
    float *out;
    int64_t count;
} work;

/* Words [32 block, 32 block + 32) of the sequence. */
static void random_words(const tdm_rng *rng, int64_t block, uint32_t words[BLOCK])
{
    for (int g = 0; g < GROUPS; g++) {
        vi pair[2];
        tdm__philox_group(rng, (uint32_t)(block * GROUPS + g), pair);
        memcpy(words + g * TDM__PHILOX_GROUP, pair, sizeof(pair));
    }
}

static void uniform_block(const uint32_t words[BLOCK], double scale, float out[BLOCK])
{
    for (int i = 0; i < BLOCK; i++)
        out[i] = (float)(((double)(int32_t)(words[i] >> 8) * 0x1p-23 - 1.0) * scale);
}

/* sqrt(-2 log u) for u = (n + 1) / 2^24, by log m = 2 artanh((m - 1) / (m + 1)), m near 1. */
static inline float normal_radius(uint32_t word)
{
    static const float ln_2 = 0.69314718055994530942f;
    union {
        float f;
        int32_t i;
    } u = {.f = (float)((int32_t)(word >> 8) + 1)};
    int32_t exponent = (u.i - 0x3f3504f3) >> 23; /* m is in [sqrt(1/2), sqrt(2)) */
    u.i -= exponent * (1 << 23);
    float s = (u.f - 1.0f) / (u.f + 1.0f), s2 = s * s;
    float series = ((s2 * (1.0f / 9) + 1.0f / 7) * s2 + 1.0f / 5) * s2 + 1.0f / 3;
    float log_m = 2.0f * (s + s * s2 * series);
    float minus_log = (float)(24 - exponent) * ln_2 - log_m;
    return sqrtf(minus_log > 0 ? 2.0f * minus_log : 0.0f);
}

/* Sine and cosine of 2 pi n / 2^24: of the remainder of a quarter turn, then rotated by quarter
 * turns. */
static inline void normal_sine_cosine(uint32_t word, float *sine, float *cosine)
{
    int32_t n = (int32_t)(word >> 8), quarter = (n + (1 << 21)) >> 22;
    float x = (float)(n - quarter * (1 << 22)) * (6.28318530717958647692f * 0x1p-24f), x2 = x * x;
    float s = (((x2 * (1.0f / 362880) - 1.0f / 5040) * x2 + 1.0f / 120) * x2 - 1.0f / 6) * x2 * x +
              x;
    float c = (((x2 * (1.0f / 40320) - 1.0f / 720) * x2 + 1.0f / 24) * x2 - 0.5f) * x2 + 1.0f;
    bool swapped = quarter & 1;
    float a = swapped ? c : s, b = swapped ? s : c;
    *sine = quarter & 2 ? -a : a;
    *cosine = (quarter + 1) & 2 ? -b : b;
}

static void normal_block(const uint32_t words[BLOCK], double scale, float out[BLOCK])
{
    float factor = (float)scale;
    for (int i = 0; i < HALF; i++) {
        float sine, cosine, r = normal_radius(words[i]) * factor;
        normal_sine_cosine(words[HALF + i], &sine, &cosine);
        out[i] = r * cosine;
        out[HALF + i] = r * sine;
    }
}

static inline __attribute__((always_inline)) void fill_range(
    const work *w, int64_t begin, int64_t end,
    void (*fill)(const uint32_t words[BLOCK], double scale, float out[BLOCK]))
{
    for (int64_t block = begin; block < end; block++) {
        uint32_t words[BLOCK];
        float numbers[BLOCK];
        int64_t at = block * BLOCK, left = w->count - at;
        random_words(&w->rng, w->first + block, words);
        if (left >= BLOCK) {
            fill(words, w->scale, w->out + at);
        } else {
            fill(words, w->scale, numbers);
            memcpy(w->out + at, numbers, (size_t)left * sizeof(float));
        }
    }
}

static void range_uniform(const void *args, int64_t begin, int64_t end)
{
    fill_range(args, begin, end, uniform_block);
}

static void range_normal(const void *args, int64_t begin, int64_t end)
{
    fill_range(args, begin, end, normal_block);
}

static void fill_row(tdm_rng_address address, double scale, size_t first, float *out, size_t count,
                     tdm_kernel_range_fn range)
{
    assert(first % BLOCK == 0);
    work w = {.rng = tdm_rng_at(address),
              .scale = scale,
              .first = (int64_t)first / BLOCK,
              .out = out,
              .count = (int64_t)count};
    tdm__vec_split((w.count + BLOCK - 1) / BLOCK, BLOCK, range, &w);
}

static void random_uniform(tdm_rng_address address, double scale, size_t first, float *out,
                           size_t count)
{
    fill_row(address, scale, first, out, count, range_uniform);
}

static void random_normal(tdm_rng_address address, double scale, size_t first, float *out,
                          size_t count)
{
    fill_row(address, scale, first, out, count, range_normal);
}

const tdm__vec_random TDM__AT_LEVEL(tdm__vec_random) = {.uniform = random_uniform,
                                                        .normal = random_normal};
