/*
 * codec_test.c: the whole of a codec: options, feedback, states, bits over threads and levels, convergence.
 */
#include "codec_trial.h"

#include <math.h>
#include <stdlib.h>

static const size_t sizes[] = {1023, 0, 1, 70000, 1024, 1025, 5000, SIZE_MAX};

/* ---- options ---------------------------------------------------------------------------------- */

typedef struct refusal {
    tdm_codec_options options;
    const char *text;
} refusal;

static void bad_options_are_refused(void)
{
    static const refusal refusals[] = {
        {{.sparsify = TDM_CODEC_SPARSIFY_TOPK}, "ratio is 0"},
        {{.sparsify = TDM_CODEC_SPARSIFY_RANDOMK, .ratio = 1.5}, "ratio is 1.5"},
        {{.sparsify = TDM_CODEC_SPARSIFY_TOPK, .ratio = NAN}, "ratio is"},
        {{.sparsify = (tdm_codec_sparsify)9}, "9 is not a tdm_codec_sparsify"},
        {{.quantise = (tdm_codec_quantise)-1}, "-1 is not a tdm_codec_quantise"},
        {{.sparsify = TDM_CODEC_SPARSIFY_THRESHOLD}, "threshold is 0"},
        {{.sparsify = TDM_CODEC_SPARSIFY_THRESHOLD, .threshold = 1e300}, "threshold is 1e+300"},
        {{.quantise = TDM_CODEC_QUANTISE_QSGD}, "levels is 0"},
        {{.quantise = TDM_CODEC_QUANTISE_QSGD, .levels = 128}, "levels is 128"},
        {{.quantise = TDM_CODEC_QUANTISE_INT8, .momentum = 0.9}, "momentum needs feedback"},
        {{.quantise = TDM_CODEC_QUANTISE_INT8, .momentum = 1}, "in [0, 1)"},
        {{.mask = true}, "mask needs momentum"},
        {{.nesterov = true}, "nesterov needs momentum"},
        {{.clip_norm = -1}, "clip_norm is -1"},
        {{.clip_norm = INFINITY}, "clip_norm is inf"},
        {{.feedback = true}, "nothing is lost"},
        {{.rank = -1}, "rank is -1"},
        {{.rank = 1000}, "rank is 1000"},
        {{.rank = 2, .quantise = TDM_CODEC_QUANTISE_BF16}, "excludes sparsify and quantise"},
        {{.rank = 2, .min_rate = -1}, "min_rate is -1"},
        {{.rank = 4}, "makes none of 1 tensors smaller"},
    };
    const tdm_codec_tensor tensor = {.name = "w", .elements = 100, .rows = 10};
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        tdm_error err = {0};
        tdm_codec *codec = NULL;
        CHECK_INT(tdm_codec_create(&refusals[i].options, &tensor, 1, &codec, &err),
                  TDM_ERR_INVALID);
        CHECK_HAS(err.message, refusals[i].text);
        CHECK(codec == NULL);
    }
}

static void bad_tensors_are_refused(void)
{
    static const struct {
        tdm_codec_tensor tensors[2];
        const char *text;
    } refusals[] = {
        {{{"a", 0, 10, 0}, {"b", 9, 1, 0}}, "'b' begins at 9"},
        {{{"a", 0, 10, 3}, {"b", 10, 1, 0}}, "3 rows do not divide"},
        {{{"a", 0, 1, 0}, {"b", SIZE_MAX - 1, 10, 0}}, "beyond the address space"},
        {{{"a", 0, (size_t)1 << 32, 0}, {"b", (size_t)1 << 33, 1, 0}}, "4294967296 elements"},
    };
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        tdm_codec *codec = NULL;
        tdm_error err = {0};
        CHECK_INT(tdm_codec_create(&(tdm_codec_options){0}, refusals[i].tensors, 2, &codec, &err),
                  TDM_ERR_INVALID);
        CHECK_HAS(err.message, refusals[i].text);
    }
}

static void a_bad_key_is_refused(void)
{
    codec_trial t;
    tdm_error err = {0};
    codec_trial_init(&t, &codec_combinations[10].options, sizes);
    t.key.ratio = 1.01;
    CHECK_INT(codec_trial_encode(&t, &err), TDM_ERR_INVALID);
    CHECK_HAS(err.message, "the ratio of step 11 is 1.01");
    t.key.ratio = NAN;
    CHECK_INT(codec_trial_encode(&t, &err), TDM_ERR_INVALID);
    codec_trial_release(&t);
}

static void states_have_names(void)
{
    for (size_t i = 0; i < codec_combination_count; i++) {
        const tdm_codec_options *o = &codec_combinations[i].options;
        tdm_codec *codec;
        REQUIRE(tdm_codec_create(o, NULL, 0, &codec, NULL) == TDM_OK);
        CHECK_INT(tdm_codec_state_count(codec), o->momentum > 0 ? 2 : o->feedback ? 1 : 0);
        CHECK_TEXT(tdm_codec_state_name(codec, 0), "residual");
        CHECK_TEXT(tdm_codec_state_name(codec, 1), "velocity");
        tdm_codec_destroy(codec);
    }
    tdm_codec_destroy(NULL);
}

/* ---- feedback and momentum -------------------------------------------------------------------- */

/* The velocity and the sum of a step, by the formulas of docs/compression.md. */
static void expected_step(const codec_trial *t, const tdm_codec_options *o, float clip, size_t i,
                          float *velocity, float *sum)
{
    volatile float g = clip * t->source[i], v = t->before[1][i], m = (float)o->momentum;
    volatile float product = m * v, u = t->before[0][i];
    if (o->momentum > 0 && o->nesterov) {
        product = v + g;
        v = m * product;
        u = u + v;
        u = u + g;
    } else if (o->momentum > 0) {
        v = product + g;
        u = u + v;
    } else {
        u = o->feedback ? u + g : g;
    }
    *velocity = v;
    *sum = u;
}

static float expected_clip(const codec_trial *t, const tdm_codec_options *o)
{
    double squares = 0;
    for (size_t i = 0; i < t->count; i++)
        for (size_t j = 0; j < t->tensors[i].elements; j++) {
            double x = (double)t->source[t->tensors[i].offset + j];
            squares += x * x;
        }
    return o->clip_norm > 0 && sqrt(squares) > o->clip_norm ? (float)(o->clip_norm / sqrt(squares))
                                                            : 1;
}

/* What is sent and what is kept add up to the gradient, the residual and the velocity, exactly. */
static void nothing_is_lost(void)
{
    for (size_t c = 0; c < codec_combination_count; c++) {
        const tdm_codec_options *o = &codec_combinations[c].options;
        codec_trial t;
        codec_trial_init(&t, o, sizes);
        codec_trial_pass(&t);
        float clip = expected_clip(&t, o);
        size_t wrong = 0;
        for (size_t i = 0; i < t.count; i++)
            for (size_t j = 0; j < t.tensors[i].elements && o->feedback; j++) {
                size_t at = t.tensors[i].offset + j;
                float velocity, sum;
                expected_step(&t, o, clip, at, &velocity, &sum);
                wrong += t.after[0][at] != sum - t.out[at];
                bool is_sent = t.out[at] != 0 && t.tensors[i].elements >= o->min_elements;
                if (o->momentum > 0 && !o->mask) wrong += t.after[1][at] != velocity;
                if (o->mask) wrong += t.after[1][at] != (is_sent ? 0 : velocity);
            }
        if (wrong > 0) CHECK_TEXT(codec_combinations[c].name, "");
        CHECK_INT(wrong, 0);
        codec_trial_release(&t);
    }
}

/* Numbers between tensors are never touched, and states before a step stay. */
static void other_numbers_stay(void)
{
    for (size_t c = 0; c < codec_combination_count; c++) {
        codec_trial t;
        codec_trial_init(&t, &codec_combinations[c].options, sizes);
        uint64_t before = tdm_hash64(t.before[0], t.extent * sizeof(float)) ^
                          tdm_hash64(t.before[1], t.extent * sizeof(float));
        codec_trial_pass(&t);
        CHECK(before == (tdm_hash64(t.before[0], t.extent * sizeof(float)) ^
                         tdm_hash64(t.before[1], t.extent * sizeof(float))));
        for (size_t i = 0; i < t.count; i++)
            for (size_t j = 0; j < CODEC_TRIAL_GAP; j++) {
                size_t at = t.tensors[i].offset + t.tensors[i].elements + j;
                CHECK(t.out[at] == CODEC_TRIAL_GUARD && t.grad[at] == CODEC_TRIAL_GUARD);
                CHECK(t.after[0][at] == CODEC_TRIAL_GUARD && t.after[1][at] == CODEC_TRIAL_GUARD);
            }
        codec_trial_release(&t);
    }
}

static void states_can_be_replaced_in_place(void)
{
    for (size_t c = 0; c < codec_combination_count; c++) {
        codec_trial t;
        codec_trial_init(&t, &codec_combinations[c].options, sizes);
        codec_trial_pass(&t);
        uint64_t apart = codec_trial_hash(&t);
        float *saved[TDM_CODEC_MAX_STATES] = {t.after[0], t.after[1]};
        t.after[0] = t.before[0];
        t.after[1] = t.before[1];
        codec_trial_pass(&t);
        CHECK(codec_trial_hash(&t) == apart);
        t.after[0] = saved[0];
        t.after[1] = saved[1];
        codec_trial_release(&t);
    }
}

/* ---- numbers that are not finite -------------------------------------------------------------- */

static void bad_numbers_are_reported(void)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t c = 0; c < codec_combination_count; c++)
        for (size_t k = 0; k < sizeof(bad) / sizeof(bad[0]); k++) {
            codec_trial t;
            tdm_error err = {0};
            codec_trial_init(&t, &codec_combinations[c].options, sizes);
            t.tensors[3].name = "other";
            t.source[t.tensors[3].offset + 40000 + k] = bad[k];
            CHECK_INT(codec_trial_encode(&t, &err), TDM_ERR_DIVERGED);
            CHECK_HAS(err.message, "not finite");
            t.source[t.tensors[3].offset + 40000 + k] = 0;
            CHECK_INT(codec_trial_encode(&t, &err), TDM_OK);
            codec_trial_release(&t);
        }
}

/* The largest numbers, whose norm overflows f32, pass, unless the codec multiplies or adds them; and two finite
 * numbers whose sum is not finite. */
static void huge_numbers_are_not_bad(void)
{
    for (size_t c = 0; c < codec_combination_count; c++) {
        const tdm_codec_options *o = &codec_combinations[c].options;
        codec_trial t;
        tdm_error err = {0};
        codec_trial_init(&t, o, sizes);
        bool grows = o->momentum > 0 || o->sparsify == TDM_CODEC_SPARSIFY_RANDOMK;
        float huge = grows ? 1e36f : 3.4e38f;
        for (size_t i = 0; i < t.extent; i++) {
            t.source[i] = i % 2 ? huge : -huge;
            t.before[0][i] = t.before[1][i] = 0;
        }
        codec_trial_pass(&t);
        for (size_t i = 0; i < t.extent; i++) t.source[i] = t.before[0][i] = 3e38f;
        if (o->feedback && !(o->clip_norm > 0))
            CHECK_INT(codec_trial_encode(&t, &err), TDM_ERR_DIVERGED);
        codec_trial_release(&t);
    }
}

static void tiny_numbers_count_as_zero(void)
{
    for (size_t c = 0; c < codec_combination_count; c++) {
        const tdm_codec_options *o = &codec_combinations[c].options;
        codec_trial t;
        codec_trial_init(&t, o, sizes);
        for (size_t i = 0; i < t.extent; i++)
            t.source[i] = t.before[0][i] = t.before[1][i] = i % 3 ? 0 : 1e-39f;
        codec_trial_pass(&t);
        codec_trial_pass(&t);
        for (int k = 0; k < tdm_codec_state_count(t.codec); k++)
            for (size_t i = 0; i < t.count; i++)
                for (size_t j = 0; j < t.tensors[i].elements; j++)
                    CHECK(fabsf(t.after[k][t.tensors[i].offset + j]) <= 1e-39f);
        codec_trial_release(&t);
    }
}

/* ---- bits ------------------------------------------------------------------------------------- */

/* The hash of a combination at a level, with a number of threads. */
static uint64_t hash_at(const tdm_codec_options *o, int level, int thread_count)
{
    static const size_t large[] = {1023, 0, 1, 300000, 1024, 1025, 5000, SIZE_MAX};
    codec_trial t;
    codec_trial_init(&t, o, large);
    t.codec->loops = tdm__codec_loops_at(level);
    int before = tdm_kernel_threads_set(thread_count);
    codec_trial_pass(&t);
    CHECK_INT(tdm_kernel_threads_set(before), thread_count);
    uint64_t hash = codec_trial_hash(&t);
    codec_trial_release(&t);
    return hash;
}

/* The recorded number covers all combinations: other compilers and CPUs give the same one. */
static void bits_do_not_depend_on_levels_and_threads(void)
{
    uint64_t all = TDM_HASH64_INIT;
    for (size_t c = 0; c < codec_combination_count; c++) {
        const tdm_codec_options *o = &codec_combinations[c].options;
        uint64_t expected = hash_at(o, 0, 1);
        for (int level = 2; level <= tdm_kernel_cpu_level(); level++) {
            if (hash_at(o, level, 1) != expected) CHECK_TEXT(codec_combinations[c].name, "");
            CHECK(hash_at(o, level, 1) == expected);
        }
        CHECK(hash_at(o, tdm_kernel_cpu_level(), 3) == expected);
        all = tdm_hash64_add(all, expected);
    }
    char text[32];
    snprintf(text, sizeof(text), "%016llx", (unsigned long long)all);
    CHECK_TEXT(text, "443325b4cee4aac6");
}

/* ---- convergence ------------------------------------------------------------------------------ */

enum { PLACES = 3000, STEPS = 600, REPLICAS = 2 };

/*
 * Minimises the sum over i of a_i (x_i - 1)^2 / 2 with two replicas, each of which sees the gradient with a different
 * constant offset; the offsets add up to zero. Returns the distance from the minimum, relative to that at the start.
 */
static double descend(const tdm_codec_options *o, double rate)
{
    static const size_t one[] = {PLACES, SIZE_MAX};
    codec_trial t[REPLICAS];
    double distance = 0;
    float *x = calloc(PLACES, sizeof(*x)), *sum = calloc(PLACES, sizeof(*sum));
    REQUIRE(x && sum);
    for (int r = 0; r < REPLICAS; r++) {
        codec_trial_init(&t[r], o, one);
        for (int k = 0; k < TDM_CODEC_MAX_STATES; k++)
            memset(t[r].before[k], 0, PLACES * sizeof(float));
    }
    for (uint64_t step = 0; step < STEPS; step++) {
        memset(sum, 0, PLACES * sizeof(*sum));
        for (int r = 0; r < REPLICAS; r++) {
            t[r].key = (tdm_codec_key){.seed = 1, .step = step, .replica = (uint32_t)r};
            for (size_t i = 0; i < PLACES; i++) {
                float steepness = 0.2f + 0.8f * (float)(i % 17) / 16;
                float offset = (r ? 0.5f : -0.5f) * (float)(i % 5) / 4;
                t[r].source[i] = steepness * (x[i] - 1) + offset;
            }
            codec_trial_pass(&t[r]);
            for (int k = 0; k < TDM_CODEC_MAX_STATES; k++)
                memcpy(t[r].before[k], t[r].after[k], PLACES * sizeof(float));
            for (size_t i = 0; i < PLACES; i++) sum[i] += t[r].out[i];
        }
        double now = rate * (1 - (double)step / STEPS);
        for (size_t i = 0; i < PLACES; i++) x[i] -= (float)now * sum[i] / REPLICAS;
    }
    for (size_t i = 0; i < PLACES; i++) distance += (double)(x[i] - 1) * (double)(x[i] - 1);
    for (int r = 0; r < REPLICAS; r++) codec_trial_release(&t[r]);
    free(x);
    free(sum);
    return sqrt(distance / PLACES);
}

/* With feedback every codec reaches the minimum, although the replicas disagree about it. */
static void a_quadratic_converges(void)
{
    static const struct {
        tdm_codec_options options;
        double rate;
    } runs[] = {
        {{0}, 0.5},
        {{.quantise = TDM_CODEC_QUANTISE_BF16, .feedback = true}, 0.5},
        {{.quantise = TDM_CODEC_QUANTISE_F16, .feedback = true}, 0.5},
        {{.quantise = TDM_CODEC_QUANTISE_INT8, .feedback = true}, 0.5},
        {{.quantise = TDM_CODEC_QUANTISE_INT8}, 0.5},
        {{.quantise = TDM_CODEC_QUANTISE_INT4, .feedback = true}, 0.3},
        {{.quantise = TDM_CODEC_QUANTISE_QSGD, .levels = 64, .feedback = true}, 0.3},
        {{.quantise = TDM_CODEC_QUANTISE_SIGN, .feedback = true}, 0.3},
        {{.sparsify = TDM_CODEC_SPARSIFY_TOPK, .ratio = 0.05, .feedback = true}, 0.1},
        {{.sparsify = TDM_CODEC_SPARSIFY_TOPK_SAMPLED, .ratio = 0.05, .feedback = true}, 0.1},
        {{.sparsify = TDM_CODEC_SPARSIFY_RANDOMK, .ratio = 0.1, .feedback = true}, 0.1},
        {{.sparsify = TDM_CODEC_SPARSIFY_THRESHOLD, .threshold = 0.5, .feedback = true}, 0.1},
        {{.sparsify = TDM_CODEC_SPARSIFY_TOPK,
          .ratio = 0.05,
          .quantise = TDM_CODEC_QUANTISE_INT8,
          .feedback = true},
         0.1},
        {{.sparsify = TDM_CODEC_SPARSIFY_TOPK,
          .ratio = 0.05,
          .feedback = true,
          .momentum = 0.5,
          .mask = true},
         0.05},
    };
    for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        double distance = descend(&runs[i].options, runs[i].rate);
        CHECK(distance < 0.03);
    }
}

static const check_test tests[] = {
    CHECK_TEST(bad_options_are_refused),
    CHECK_TEST(bad_tensors_are_refused),
    CHECK_TEST(a_bad_key_is_refused),
    CHECK_TEST(states_have_names),
    CHECK_TEST(nothing_is_lost),
    CHECK_TEST(other_numbers_stay),
    CHECK_TEST(states_can_be_replaced_in_place),
    CHECK_TEST(bad_numbers_are_reported),
    CHECK_TEST(huge_numbers_are_not_bad),
    CHECK_TEST(tiny_numbers_count_as_zero),
    CHECK_TEST(bits_do_not_depend_on_levels_and_threads),
    CHECK_TEST(a_quadratic_converges),
};
static CHECK_SUITE(codec_whole, tests);
CHECK_MAIN_SUITES(&codec_whole, &codec_values, &codec_selection, &codec_payload, &codec_lowrank,
                  &codec_guards)
