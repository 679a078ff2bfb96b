/*
 * codec_value_cases.c: casts, grids and signs, compared with their definitions number by number.
 */
#include "codec_trial.h"

#include <float.h>
#include <math.h>

/* ---- casts ------------------------------------------------------------------------------------ */

typedef struct cast {
    void (*to)(const float *x, size_t count, uint16_t *out, float *rest);
    void (*of)(const uint16_t *codes, size_t count, float *out);
    uint16_t infinity;
} cast;

static float widen(const cast *c, uint16_t code)
{
    float x;
    c->of(&code, 1, &x);
    return x;
}

static uint16_t narrow(const cast *c, float x)
{
    uint16_t code;
    float rest;
    c->to(&x, 1, &code, &rest);
    CHECK(rest == x - widen(c, code));
    return code;
}

/* Every code is its own rounding; half way between two codes, the even one is taken; and next to it, the nearer. */
static void check_cast(const cast *c, uint16_t smallest)
{
    for (uint32_t code = smallest; code < c->infinity; code++) {
        float x = widen(c, (uint16_t)code);
        CHECK_INT(narrow(c, x), code);
        CHECK_INT(narrow(c, -x), code | 0x8000);
        if (code + 1u == c->infinity) break;
        float half = (float)(((double)x + (double)widen(c, (uint16_t)(code + 1))) / 2);
        CHECK_INT(narrow(c, half), code + (code & 1));
        CHECK_INT(narrow(c, nextafterf(half, 0)), code);
        CHECK_INT(narrow(c, nextafterf(half, INFINITY)), code + 1);
    }
    CHECK_INT(narrow(c, 0), 0);
    CHECK_INT(narrow(c, -0.0f), 0x8000);
    CHECK_INT(narrow(c, FLT_MAX), c->infinity - 1);
    CHECK_INT(narrow(c, -FLT_MAX), 0x8000 | (c->infinity - 1));
    CHECK(isinf(widen(c, c->infinity)) && isnan(widen(c, (uint16_t)(c->infinity + 1))));
}

static void casts_round_to_nearest(void)
{
    for (int level = tdm_kernel_cpu_level() ? 2 : 0; level <= tdm_kernel_cpu_level(); level++) {
        const tdm__codec_loops *loops = tdm__codec_loops_at(level);
        const cast bf16 = {loops->to_bf16, loops->of_bf16, 0x7f80};
        const cast f16 = {loops->to_f16, loops->of_f16, 0x7c00};
        tdm_kernel_mode mode = tdm__codec_enter();
        check_cast(&bf16, 0x0080); /* smaller ones are subnormal f32 numbers */
        check_cast(&f16, 1);
        CHECK(widen(&f16, 0x3c00) == 1 && widen(&f16, 1) == 0x1p-24f);
        CHECK(widen(&f16, 0x7bff) == 65504);
        CHECK_INT(narrow(&f16, 65519.99f), 0x7bff);
        CHECK_INT(narrow(&f16, 65520), 0x7bff);
        CHECK_INT(narrow(&f16, 0x1p-25f), 0); /* half way to the smallest one */
        tdm_kernel_leave(&mode);
    }
}

/* ---- grids ------------------------------------------------------------------------------------ */

static const size_t chunks[] = {2 * TDM_CODEC_CHUNK + 77, SIZE_MAX};

/* The scale of a chunk, as docs/compression.md defines it. */
static float expected_scale(const tdm_codec_options *o, const float *x, size_t count, int *levels)
{
    double most = 0, squares = 0, sum = 0;
    for (size_t i = 0; i < count; i++) {
        double size = fabs((double)x[i]);
        most = size > most ? size : most;
        squares += size * size;
        sum += size;
    }
    *levels = o->quantise == TDM_CODEC_QUANTISE_INT8   ? 127
              : o->quantise == TDM_CODEC_QUANTISE_INT4 ? 7
                                                       : o->levels;
    if (o->quantise == TDM_CODEC_QUANTISE_SIGN) return (float)(sum / (double)count);
    return (float)(o->quantise == TDM_CODEC_QUANTISE_QSGD ? sqrt(squares) : most) / (float)*levels;
}

/* Each number becomes one of its two neighbours on the grid. */
static void check_grid(const tdm_codec_options *o)
{
    codec_trial t;
    codec_trial_init(&t, o, chunks);
    codec_trial_pass(&t);
    for (size_t first = 0; first < chunks[0]; first += TDM_CODEC_CHUNK) {
        size_t count = tdm__codec_min(chunks[0] - first, TDM_CODEC_CHUNK);
        int levels;
        double scale = (double)expected_scale(o, t.source + first, count, &levels);
        for (size_t i = first; i < first + count; i++) {
            double place = (double)t.out[i] / scale;
            CHECK_NEAR(place, nearbyint(place), 1e-4);
            CHECK(fabs(place) < levels + 0.001);
            CHECK(fabs((double)(t.source[i] - t.out[i])) < scale * 1.0001);
        }
    }
    codec_trial_release(&t);
}

static void numbers_become_neighbours_on_the_grid(void)
{
    check_grid(&(tdm_codec_options){.quantise = TDM_CODEC_QUANTISE_INT8});
    check_grid(&(tdm_codec_options){.quantise = TDM_CODEC_QUANTISE_INT4});
    for (int levels = 1; levels <= TDM_CODEC_MAX_LEVELS; levels += 6)
        check_grid(&(tdm_codec_options){.quantise = TDM_CODEC_QUANTISE_QSGD, .levels = levels});
}

/* The bits of the first numbers, by the definition in docs/compression.md and tdm_rng. */
static void rounding_uses_the_words_of_the_key(void)
{
    const tdm_codec_options o = {.quantise = TDM_CODEC_QUANTISE_INT8};
    codec_trial t;
    int levels;
    codec_trial_init(&t, &o, chunks);
    codec_trial_pass(&t);
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = t.key.seed,
                                               .stream = TDM_RNG_STREAM_CODEC,
                                               .sub_stream = 0,
                                               .step = t.key.step,
                                               .sample = t.key.replica});
    volatile float scale = expected_scale(&o, t.source, TDM_CODEC_CHUNK, &levels);
    float most = 0;
    for (size_t i = 0; i < TDM_CODEC_CHUNK; i++) most = fmaxf(most, fabsf(t.source[i]));
    volatile float inverse = 127.0f / most;
    for (size_t i = 0; i < TDM_CODEC_CHUNK; i++) {
        volatile float place = t.source[i] * inverse;
        place = place + 128;
        place = place + tdm_rng_uniform(&rng);
        int code = (int)place - 128;
        code = code > 127 ? 127 : code < -127 ? -127 : code;
        CHECK(t.out[i] == (float)code * scale);
    }
    codec_trial_release(&t);
}

/* The mean over many steps is the number: the rounding is unbiased. */
static void rounding_is_unbiased(void)
{
    enum { STEPS = 4000 };
    static const size_t one[] = {TDM_CODEC_CHUNK, SIZE_MAX};
    const tdm_codec_options o = {.quantise = TDM_CODEC_QUANTISE_INT4};
    double sums[TDM_CODEC_CHUNK] = {0};
    codec_trial t;
    int levels;
    codec_trial_init(&t, &o, one);
    for (uint64_t step = 0; step < STEPS; step++) {
        t.key.step = step;
        codec_trial_pass(&t);
        for (size_t i = 0; i < TDM_CODEC_CHUNK; i++) sums[i] += (double)t.out[i];
    }
    double scale = (double)expected_scale(&o, t.source, TDM_CODEC_CHUNK, &levels), total = 0;
    for (size_t i = 0; i < TDM_CODEC_CHUNK; i++) {
        double off = sums[i] / STEPS - (double)t.source[i];
        total += off;
        CHECK(fabs(off) < 5 * scale * 0.5 / sqrt(STEPS)); /* five standard deviations */
    }
    CHECK(fabs(total / TDM_CODEC_CHUNK) < 5 * scale * 0.5 / sqrt(STEPS * TDM_CODEC_CHUNK));
    codec_trial_release(&t);
}

static void keys_give_different_words(void)
{
    const tdm_codec_options o = {.quantise = TDM_CODEC_QUANTISE_INT4};
    const tdm_codec_key keys[] = {{1, 1, 1, 0}, {2, 1, 1, 0}, {1, 2, 1, 0}, {1, 1, 2, 0}};
    static const size_t twice[] = {3000, 3000, SIZE_MAX};
    uint64_t hashes[4];
    codec_trial t;
    codec_trial_init(&t, &o, twice);
    memcpy(t.source + t.tensors[1].offset, t.source, 3000 * sizeof(float));
    for (int i = 0; i < 4; i++) {
        t.key = keys[i];
        codec_trial_pass(&t);
        hashes[i] = tdm_hash64(t.out, 3000 * sizeof(float));
        CHECK(hashes[i] != tdm_hash64(t.out + t.tensors[1].offset, 3000 * sizeof(float)));
        for (int j = 0; j < i; j++) CHECK(hashes[i] != hashes[j]);
    }
    codec_trial_release(&t);
}

/* ---- signs ------------------------------------------------------------------------------------ */

static void signs_have_the_mean_magnitude(void)
{
    const tdm_codec_options o = {.quantise = TDM_CODEC_QUANTISE_SIGN};
    codec_trial t;
    codec_trial_init(&t, &o, chunks);
    codec_trial_pass(&t);
    for (size_t first = 0; first < chunks[0]; first += TDM_CODEC_CHUNK) {
        size_t count = tdm__codec_min(chunks[0] - first, TDM_CODEC_CHUNK);
        int levels;
        float scale = expected_scale(&o, t.source + first, count, &levels);
        for (size_t i = first; i < first + count; i++) {
            CHECK_NEAR(fabsf(t.out[i]), scale, 1e-6);
            CHECK(!signbit(t.out[i]) == !signbit(t.source[i]));
        }
    }
    codec_trial_release(&t);
}

/* The bytes of a payload: a head, a word for each tensor, and what the format prescribes for the numbers. */
static void payloads_have_the_expected_lengths(void)
{
    static const struct {
        tdm_codec_options options;
        size_t bytes; /* of 1025 numbers */
    } forms[] = {
        {{0}, 4 * 1025},
        {{.quantise = TDM_CODEC_QUANTISE_BF16}, 2 * 1025},
        {{.quantise = TDM_CODEC_QUANTISE_F16}, 2 * 1025},
        {{.quantise = TDM_CODEC_QUANTISE_INT8}, 8 + 1025},
        {{.quantise = TDM_CODEC_QUANTISE_INT4}, 8 + 513},
        {{.quantise = TDM_CODEC_QUANTISE_QSGD, .levels = 7}, 8 + 513},
        {{.quantise = TDM_CODEC_QUANTISE_QSGD, .levels = 8}, 8 + 1025},
        {{.quantise = TDM_CODEC_QUANTISE_SIGN}, 8 + 129},
        {{.quantise = TDM_CODEC_QUANTISE_SIGN, .min_elements = 1026}, 4 * 1025},
        {{.sparsify = TDM_CODEC_SPARSIFY_RANDOMK, .ratio = 0.1}, 16 + 4 * 103},
    };
    static const size_t one[] = {1025, SIZE_MAX};
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        codec_trial t;
        codec_trial_init(&t, &forms[i].options, one);
        codec_trial_pass(&t);
        CHECK_INT(t.bytes, 32 + 8 + (forms[i].bytes + 7) / 8 * 8);
        codec_trial_release(&t);
    }
}

static const check_test tests[] = {
    CHECK_TEST(casts_round_to_nearest),
    CHECK_TEST(numbers_become_neighbours_on_the_grid),
    CHECK_TEST(rounding_uses_the_words_of_the_key),
    CHECK_TEST(rounding_is_unbiased),
    CHECK_TEST(keys_give_different_words),
    CHECK_TEST(signs_have_the_mean_magnitude),
    CHECK_TEST(payloads_have_the_expected_lengths),
};
CHECK_SUITE(codec_values, tests);
