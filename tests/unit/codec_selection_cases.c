/*
 * codec_selection_cases.c: which numbers are sent, compared with a sorted list.
 */
#include "codec_trial.h"

#include <math.h>
#include <stdlib.h>

enum { COUNT = 90000 };

typedef struct place {
    uint32_t magnitude, index;
} place;

/* Larger magnitudes first; of equal ones, lower indices. */
static int place_compare(const void *a, const void *b)
{
    const place *x = a, *y = b;
    if (x->magnitude != y->magnitude) return x->magnitude > y->magnitude ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* The decoded block must have exactly the `kept` largest numbers of source. */
static void check_largest(const codec_trial *t, size_t kept)
{
    place *places = malloc(COUNT * sizeof(*places));
    bool *is_kept = calloc(COUNT, sizeof(*is_kept));
    size_t wrong = 0;
    REQUIRE(places && is_kept);
    for (size_t i = 0; i < COUNT; i++)
        places[i] = (place){codec_trial_magnitude(t->source[i]), (uint32_t)i};
    qsort(places, COUNT, sizeof(*places), place_compare);
    for (size_t i = 0; i < kept; i++) is_kept[places[i].index] = true;
    for (size_t i = 0; i < COUNT; i++)
        wrong += memcmp(&t->out[i], is_kept[i] ? &t->source[i] : &(float){0}, sizeof(float)) != 0;
    CHECK_INT(wrong, 0);
    free(places);
    free(is_kept);
}

/* Arrays that are hard to sample. */
static void source_fill(float *x, int kind)
{
    codec_trial_random(x, COUNT, 99);
    for (size_t i = 0; i < COUNT; i++) switch (kind) {
        case 0: break;
        case 1: x[i] = 0.5f; break;                                 /* all equal */
        case 2: x[i] = (float)(i % 7) - 3; break;                   /* few values */
        case 3: x[i] = i % 1000 == 17 ? x[i] : 0; break;            /* mostly zeros */
        case 4: x[i] = x[i] * x[i] * x[i] * x[i] * x[i]; break;     /* a heavy tail */
        case 5: x[i] = (float)i; break;                             /* sorted */
        case 6: x[i] = i > COUNT - 200 ? 1e6f + x[i] : x[i]; break; /* a block that is large */
        case 7: x[i] = i % 64 == 0 ? 100 * x[i] : x[i]; break;      /* a period of the sample */
        default: x[i] = 0; break;
        }
}

static void the_largest_are_sent(void)
{
    static const double ratios[] = {1e-9, 0.001, 0.01, 0.1, 0.5, 0.999, 1};
    static const size_t one[] = {COUNT, SIZE_MAX};
    for (int kind = 0; kind <= 8; kind++)
        for (size_t r = 0; r < sizeof(ratios) / sizeof(ratios[0]); r++) {
            tdm_codec_options o = {.sparsify = TDM_CODEC_SPARSIFY_TOPK, .ratio = ratios[r]};
            codec_trial exact, sampled;
            codec_trial_init(&exact, &o, one);
            source_fill(exact.source, kind);
            codec_trial_pass(&exact);
            size_t kept = (size_t)(ratios[r] * COUNT + 0.5);
            check_largest(&exact, kept < 1 ? 1 : kept);

            o.sparsify = TDM_CODEC_SPARSIFY_TOPK_SAMPLED;
            codec_trial_init(&sampled, &o, one);
            source_fill(sampled.source, kind);
            codec_trial_pass(&sampled);
            CHECK_INT(sampled.bytes, exact.bytes);
            CHECK(memcmp(sampled.payload, exact.payload, exact.bytes) == 0);
            codec_trial_release(&sampled);
            codec_trial_release(&exact);
        }
}

static void of_equal_numbers_the_first_are_sent(void)
{
    static const size_t one[] = {10, SIZE_MAX};
    const tdm_codec_options o = {.sparsify = TDM_CODEC_SPARSIFY_TOPK, .ratio = 0.4};
    static const float source[10] = {1, -2, 0, 2, -1, 1, 2, 0, -1, 1};
    static const float expected[10] = {1, -2, 0, 2, 0, 0, 2, 0, 0, 0};
    codec_trial t;
    codec_trial_init(&t, &o, one);
    memcpy(t.source, source, sizeof(source));
    codec_trial_pass(&t);
    for (int i = 0; i < 10; i++) CHECK_NEAR(t.out[i], expected[i], 0);
    codec_trial_release(&t);
}

static void the_ratio_of_a_step_replaces_that_of_the_options(void)
{
    static const size_t one[] = {COUNT, SIZE_MAX};
    const tdm_codec_options o = {.sparsify = TDM_CODEC_SPARSIFY_TOPK_SAMPLED, .ratio = 0.001};
    static const double ratios[] = {0.25, 0.0625, 0.004, 1};
    codec_trial t;
    codec_trial_init(&t, &o, one);
    for (int i = 0; i < 4; i++) {
        t.key.ratio = ratios[i];
        codec_trial_pass(&t);
        check_largest(&t, (size_t)(ratios[i] * COUNT + 0.5));
    }
    codec_trial_release(&t);
}

/* One number of each range; over many steps each of them is sent equally often. */
static void random_numbers_are_spread(void)
{
    enum { ELEMENTS = 100, KEPT = 30, STEPS = 20000 };
    static const size_t one[] = {ELEMENTS, SIZE_MAX};
    const tdm_codec_options o = {.sparsify = TDM_CODEC_SPARSIFY_RANDOMK, .ratio = 0.3};
    double sums[ELEMENTS] = {0};
    codec_trial t;
    codec_trial_init(&t, &o, one);
    for (size_t i = 0; i < ELEMENTS; i++) t.source[i] = 1;
    for (uint64_t step = 0; step < STEPS; step++) {
        size_t kept = 0;
        t.key.step = step;
        codec_trial_pass(&t);
        for (size_t i = 0; i < ELEMENTS; i++) {
            kept += t.out[i] != 0;
            sums[i] += (double)t.out[i];
        }
        CHECK_INT(kept, KEPT);
    }
    /* Ranges have 3 or 4 numbers, so their chances differ from 30 % a little. */
    for (size_t i = 0; i < ELEMENTS; i++) CHECK_NEAR(sums[i] / STEPS, 1, 0.25);
    codec_trial_release(&t);
}

static void a_threshold_selects_by_magnitude(void)
{
    static const size_t one[] = {COUNT, SIZE_MAX};
    static const double thresholds[] = {1e-30, 1, 2.5, 100};
    for (int k = 0; k < 4; k++) {
        const tdm_codec_options o = {.sparsify = TDM_CODEC_SPARSIFY_THRESHOLD,
                                     .threshold = thresholds[k]};
        codec_trial t;
        size_t wrong = 0;
        codec_trial_init(&t, &o, one);
        t.source[5] = (float)thresholds[k];
        t.source[6] = -(float)thresholds[k];
        codec_trial_pass(&t);
        for (size_t i = 0; i < COUNT; i++) {
            bool is_sent = fabsf(t.source[i]) >= (float)thresholds[k];
            wrong += t.out[i] != (is_sent ? t.source[i] : 0);
        }
        CHECK_INT(wrong, 0);
        codec_trial_release(&t);
    }
}

/* Neighbours and distant numbers: both forms of indices, with gaps of one to four bytes. */
static void indices_take_the_shorter_form(void)
{
    enum { LARGE = 5000000 };
    static const size_t one[] = {LARGE, SIZE_MAX};
    static const size_t strides[] = {1, 2, 5, 8, 9, 127, 128, 129, 16384, 16385, 2097153, 4999999};
    const tdm_codec_options o = {.sparsify = TDM_CODEC_SPARSIFY_THRESHOLD, .threshold = 0.5};
    codec_trial t;
    codec_trial_init(&t, &o, one);
    for (size_t s = 0; s < sizeof(strides) / sizeof(strides[0]); s++) {
        size_t kept = 0, wrong = 0;
        memset(t.source, 0, LARGE * sizeof(float));
        for (size_t i = strides[s] - 1; i < LARGE; i += strides[s], kept++)
            t.source[i] = 1 + (float)(i % 100);
        codec_trial_pass(&t);
        size_t gap = strides[s] <= 128       ? 1
                     : strides[s] <= 16384   ? 2
                     : strides[s] <= 2097152 ? 3
                                             : 4;
        size_t index_bytes = tdm__codec_min(kept * gap, (LARGE + 7) / 8);
        CHECK_INT(t.bytes, 40 + (16 + 4 * kept + index_bytes + 7) / 8 * 8);
        for (size_t i = 0; i < LARGE; i++) wrong += t.out[i] != t.source[i];
        CHECK_INT(wrong, 0);
    }
    codec_trial_release(&t);
}

static const check_test tests[] = {
    CHECK_TEST(the_largest_are_sent),
    CHECK_TEST(of_equal_numbers_the_first_are_sent),
    CHECK_TEST(the_ratio_of_a_step_replaces_that_of_the_options),
    CHECK_TEST(random_numbers_are_spread),
    CHECK_TEST(a_threshold_selects_by_magnitude),
    CHECK_TEST(indices_take_the_shorter_form),
};
CHECK_SUITE(codec_selection, tests);
