/*
 * data_order_cases.c: the tests of the split and of the order of samples; a part of data_test.c. Both are
 * compared with recorded values: they are part of every trained result, so they must not change.
 */

#include "data/data.h"
#include "unit/data_cases.h"
#include "unit/data_helpers.h"

/* ---- split -------------------------------------------------------------------------------------- */

/* Rows "i,i" for i = 0 ... count-1. */
static tdm_dataset *counted(int count)
{
    tdm_str text = TDM_STR_INIT;
    for (int i = 0; i < count; i++) tdm_str_addf(&text, "%d,%d\n", i, i % 7);
    tdm_dataset *d = parse_text(tdm_str_text(&text), NULL);
    tdm_str_release(&text);
    return d;
}

static void split_counts(void)
{
    static const struct {
        int samples;
        double fraction;
        int test;
    } cases[] = {{2, 0.5, 1},    {2, 0.01, 1}, {2, 0.99, 1},  {10, 0.25, 3},
                 {100, 0.2, 20}, {7, 1e-9, 1}, {7, 0.999, 6}, {1000, 0.1, 100}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tdm_dataset *d = counted(cases[i].samples);
        tdm_dataset *rest = NULL;
        tdm_dataset *test = NULL;
        CHECK_INT(tdm_dataset_split(d, cases[i].fraction, i, &rest, &test, NULL), TDM_OK);
        int64_t rest_count = tdm_dataset_info_of(rest)->sample_count;
        int64_t test_count = tdm_dataset_info_of(test)->sample_count;
        CHECK_INT(test_count, cases[i].test);
        CHECK_INT(rest_count, cases[i].samples - cases[i].test);
        /* Merging the two parts, both in file order, gives every sample once. */
        int64_t r = 0;
        int64_t t = 0;
        for (int k = 0; k < cases[i].samples; k++) {
            bool in_test = t < test_count && (int)feature(test, t, 0) == k;
            tdm_dataset *part = in_test ? test : rest;
            int64_t index = in_test ? t++ : r++;
            CHECK(index < tdm_dataset_info_of(part)->sample_count);
            CHECK_INT(feature(part, index, 0), k);
            CHECK_INT(class_of(part, index), k % 7);
        }
        tdm_dataset_destroy(rest);
        tdm_dataset_destroy(test);
        tdm_dataset_destroy(d);
    }
}

/* Features at another address are the same features, for the whole and for its parts. */
static void check_move(tdm_dataset *d)
{
    tdm_dataset *sets[3] = {NULL, NULL, d}; /* parts first */
    CHECK_INT(tdm_dataset_split(d, 0.4, 5, &sets[0], &sets[1], NULL), TDM_OK);
    char before[3][TDM_SHA256_HEX], after[TDM_SHA256_HEX];
    size_t bytes = 0;
    const void *from = tdm_dataset_block(d, &bytes);
    void *to = malloc(bytes); /* of exactly this size, for the address sanitizer */
    memcpy(to, from, bytes);
    for (int i = 0; i < 3; i++) CHECK_INT(tdm_dataset_hash(sets[i], before[i]), TDM_OK);
    for (int i = 0; i < 3; i++) tdm_dataset_move(sets[i], from, to);
    CHECK(tdm_dataset_block(d, &bytes) == to);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(tdm_dataset_hash(sets[i], after), TDM_OK);
        CHECK_TEXT(after, before[i]);
    }
    ((char *)to)[0] ^= 1; /* they are read from there */
    CHECK_INT(tdm_dataset_hash(d, after), TDM_OK);
    CHECK(strcmp(after, before[2]) != 0);
    for (int i = 0; i < 3; i++) tdm_dataset_destroy(sets[i]);
    free(to);
}

static void features_can_be_moved(void)
{
    check_move(parse_text("1,2,a\n3,4,b\n5,6,a\n7,8,b\n9,10,a\n", NULL));
    tdm_data_options text = {.format = TDM_DATA_FORMAT_TEXT, .context = 3};
    check_move(parse_text("a text of some length, to be cut in two", &text));
}

static void split_is_pinned(void)
{
    static const int expected[8] = {0, 2, 4, 10, 12, 23, 26, 30};
    tdm_dataset *d = counted(40);
    tdm_dataset *rest = NULL;
    tdm_dataset *test = NULL;
    CHECK_INT(tdm_dataset_split(d, 0.2, 1, &rest, &test, NULL), TDM_OK);
    CHECK_INT(tdm_dataset_info_of(test)->sample_count, 8);
    for (int64_t i = 0; i < 8; i++) CHECK_INT(feature(test, i, 0), expected[i]);
    /* A part of a part still has the rows of the original. */
    tdm_dataset *rest_of_rest = NULL;
    tdm_dataset *test_of_rest = NULL;
    CHECK_INT(tdm_dataset_split(rest, 0.5, 2, &rest_of_rest, &test_of_rest, NULL), TDM_OK);
    CHECK_INT(tdm_dataset_info_of(test_of_rest)->sample_count, 16);
    for (int64_t i = 0; i < 16; i++) {
        int value = (int)feature(test_of_rest, i, 0);
        CHECK_INT(class_of(test_of_rest, i), value % 7);
        for (int k = 0; k < 8; k++) CHECK(value != expected[k]);
    }
    tdm_dataset_destroy(rest_of_rest);
    tdm_dataset_destroy(test_of_rest);
    tdm_dataset_destroy(rest);
    tdm_dataset_destroy(test);
    tdm_error err = {0};
    CHECK_INT(tdm_dataset_split(d, 0.0, 1, &rest, &test, &err), TDM_ERR_INVALID);
    CHECK_HAS(err.message, "must be between 0 and 1");
    CHECK_INT(tdm_dataset_split(d, 1.0, 1, &rest, &test, &err), TDM_ERR_INVALID);
    CHECK_INT(tdm_dataset_split(d, (double)NAN, 1, &rest, &test, &err), TDM_ERR_INVALID);
    tdm_dataset_destroy(d);
    d = counted(1);
    CHECK_INT(tdm_dataset_split(d, 0.5, 1, &rest, &test, &err), TDM_ERR_INVALID);
    CHECK_HAS(err.message, "it has 1 sample");
    tdm_dataset_destroy(d);
}

/* ---- order ----------------------------------------------------------------------------------- */

static void sampler_is_a_bijection(void)
{
    uint8_t seen[5000];
    for (uint64_t n = 1; n <= 5000; n = n < 70 ? n + 1 : n * 3 / 2 + 1) {
        for (uint64_t trial = 0; trial < 12; trial++) {
            tdm_sampler sampler = {.seed = trial * 7919, .sample_count = n, .shuffle = true};
            memset(seen, 0, sizeof(seen));
            for (uint64_t i = 0; i < n; i++) {
                uint64_t at = tdm_sampler_at(&sampler, trial % 4, i);
                CHECK(at < n);
                if (at < n) seen[at]++;
            }
            for (uint64_t i = 0; i < n; i++) CHECK_INT(seen[i], 1);
        }
    }
    /* Sizes that are too large to enumerate: indices are in range, and neighbours differ. */
    static const uint64_t large[] = {UINT64_C(1) << 32, (UINT64_C(1) << 40) + 1, UINT64_MAX};
    for (size_t k = 0; k < 3; k++) {
        tdm_sampler sampler = {.seed = 3, .sample_count = large[k], .shuffle = true};
        for (uint64_t i = 0; i < 1000; i++) {
            CHECK(tdm_sampler_at(&sampler, 0, i) < large[k]);
            CHECK(tdm_sampler_at(&sampler, 0, i) != tdm_sampler_at(&sampler, 0, i + 1));
        }
    }
}

static void sampler_is_pinned(void)
{
    static const struct {
        uint64_t count, seed, epoch, at[6];
    } golden[] = {
        {10, 0, 0, {3, 9, 1, 4, 8, 5}},
        {1797, 1, 0, {528, 340, 1684, 1044, 175, 1144}},
        {1797, 1, 1, {1469, 1315, 1093, 1228, 1790, 395}},
        {60000, 42, 3, {24074, 21176, 55274, 44102, 26079, 52633}},
        {UINT64_C(1) << 40,
         7,
         0,
         {63778914714, 123612525439, 555958757413, 859294403636, 725270006223, 134982833709}},
    };
    for (size_t i = 0; i < sizeof(golden) / sizeof(golden[0]); i++) {
        tdm_sampler sampler = {
            .seed = golden[i].seed, .sample_count = golden[i].count, .shuffle = true};
        for (uint64_t k = 0; k < 6; k++)
            CHECK_INT(tdm_sampler_at(&sampler, golden[i].epoch, k), golden[i].at[k]);
    }
    tdm_sampler plain = {.seed = 5, .sample_count = 100};
    for (uint64_t i = 0; i < 100; i++) CHECK_INT(tdm_sampler_at(&plain, i, i), i);
    /* One sample, none, and a position outside: defined, and without an endless loop. */
    tdm_sampler one = {.sample_count = 1, .shuffle = true};
    CHECK_INT(tdm_sampler_at(&one, 9, 0), 0);
    one.sample_count = 0;
    CHECK_INT(tdm_sampler_at(&one, 9, 0), 0);
    one.sample_count = 3;
    CHECK(tdm_sampler_at(&one, 9, 1000) < 3);
}

/* The position of a sample is uniform over epochs: chi-square with n-1 degrees of freedom has mean n-1 and
 * variance 2(n-1); six deviations are a bound that a uniform order meets with any seed. */
static void sampler_is_uniform(void)
{
    static const uint64_t counts[] = {2, 3, 5, 8, 13, 37, 64, 100};
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        uint64_t n = counts[c];
        uint64_t epochs = 200 * n;
        for (uint64_t position = 0; position < n; position += n - 1) {
            uint64_t hits[100] = {0};
            tdm_sampler sampler = {.seed = 17, .sample_count = n, .shuffle = true};
            for (uint64_t e = 0; e < epochs; e++) hits[tdm_sampler_at(&sampler, e, position)]++;
            double chi = 0;
            for (uint64_t i = 0; i < n; i++) chi += pow((double)hits[i] - 200.0, 2) / 200.0;
            CHECK(chi < (double)(n - 1) + 6 * sqrt(2.0 * (double)(n - 1)));
        }
    }
}

/* Whole orders are equally likely as well: all 120 of five samples, which a network with few rounds does not
 * achieve. */
static void sampler_orders_are_uniform(void)
{
    enum { N = 5, ORDERS = 120, EACH = 200 };
    int hits[ORDERS] = {0};
    tdm_sampler sampler = {.seed = 23, .sample_count = N, .shuffle = true};
    for (uint64_t epoch = 0; epoch < ORDERS * EACH; epoch++) {
        uint64_t at[N];
        int rank = 0;
        for (int i = 0; i < N; i++) at[i] = tdm_sampler_at(&sampler, epoch, (uint64_t)i);
        for (int i = 0; i < N; i++) {
            int smaller = 0; /* among the following ones: the digits of the order's rank */
            for (int k = i + 1; k < N; k++) smaller += at[k] < at[i];
            rank = rank * (N - i) + smaller;
        }
        hits[rank]++;
    }
    double chi = 0;
    for (int i = 0; i < ORDERS; i++) chi += pow(hits[i] - EACH, 2) / EACH;
    CHECK(chi < (ORDERS - 1) + 6 * sqrt(2.0 * (ORDERS - 1)));
}

/* The correlation of two orders of n samples has deviation 1/sqrt(n-1). */
static void sampler_epochs_are_unrelated(void)
{
    enum { N = 1797 };
    tdm_sampler sampler = {.seed = 1, .sample_count = N, .shuffle = true};
    double mean = (N - 1) / 2.0;
    double variance = ((double)N * N - 1) / 12.0;
    for (uint64_t epoch = 0; epoch < 20; epoch++) {
        double same = 0; /* with the next epoch */
        double next = 0; /* with the next position */
        for (uint64_t i = 0; i + 1 < N; i++) {
            double at = (double)tdm_sampler_at(&sampler, epoch, i) - mean;
            same += at * ((double)tdm_sampler_at(&sampler, epoch + 1, i) - mean);
            next += at * ((double)tdm_sampler_at(&sampler, epoch, i + 1) - mean);
        }
        CHECK_NEAR(same / N / variance, 0, 5 / sqrt(N));
        CHECK_NEAR(next / N / variance, 0, 5 / sqrt(N));
    }
}

static const check_test data_order_tests[] = {
    CHECK_TEST(split_counts),
    CHECK_TEST(split_is_pinned),
    CHECK_TEST(features_can_be_moved),
    CHECK_TEST(sampler_is_a_bijection),
    CHECK_TEST(sampler_is_pinned),
    CHECK_TEST(sampler_is_uniform),
    CHECK_TEST(sampler_orders_are_uniform),
    CHECK_TEST(sampler_epochs_are_unrelated),
};
CHECK_SUITE(data_order, data_order_tests);
