/*
 * random_test.c: the initial values of parameters: the same at every level, with every number of threads and
 * for every length of the row, and with the right distribution.
 */
#include "base/base.h"
#include "check.h"
#include "tensor/kernels/backends.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LONG = 1 << 20 };

static const tdm_rng_address address = {.seed = 7, .stream = TDM_RNG_STREAM_INIT, .sub_stream = 3};

static int levels(const tdm__vec_random *out[4])
{
#if defined(__x86_64__)
    static const tdm__vec_random *const all[] = {&tdm__vec_random_2, &tdm__vec_random_3,
                                                 &tdm__vec_random_4};
    int count = 0;
    for (int i = 0; i < 3 && 2 + i <= tdm_kernel_level(); i++) out[count++] = all[i];
    return count;
#else
    out[0] = &tdm__vec_random_0;
    return 1;
#endif
}

static void every_level_draws_the_same(void)
{
    static const size_t counts[] = {1, 15, 16, 17, 31, 32, 33, 1000, 70001};
    const tdm__vec_random *at[4];
    int level_count = levels(at);
    float *a = malloc(70002 * sizeof(float)), *b = malloc(70002 * sizeof(float));
    for (int i = 1; i < level_count; i++)
        for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
            size_t n = counts[c];
            a[n] = b[n] = -5;
            at[0]->normal(address, 0.5, 0, a, n);
            at[i]->normal(address, 0.5, 0, b, n);
            CHECK(memcmp(a, b, (n + 1) * sizeof(float)) == 0); /* and nothing after it */
            at[0]->uniform(address, 0.1, 0, a, n);
            at[i]->uniform(address, 0.1, 0, b, n);
            CHECK(memcmp(a, b, (n + 1) * sizeof(float)) == 0);
        }
    free(a);
    free(b);
}

static void uniform_numbers_are_the_words(void)
{
    float x[100];
    tdm_rng rng = tdm_rng_at(address);
    tdm_kernel_uniform(address, 0.3, 0, x, 100);
    for (int i = 0; i < 100; i++)
        CHECK(x[i] == (float)((2.0 * (double)tdm_rng_uniform(&rng) - 1.0) * 0.3));
}

/* Against the formula in double precision, from the same words. */
static void normal_numbers_are_near_the_formula(void)
{
    enum { COUNT = 32 * 4000 };
    static const double pi = 3.14159265358979323846;
    float *x = malloc(COUNT * sizeof(float));
    tdm_kernel_normal(address, 1, 0, x, COUNT);
    tdm_rng rng = tdm_rng_at(address);
    double worst = 0;
    for (int block = 0; block < COUNT; block += 32) {
        uint32_t words[32];
        for (int i = 0; i < 32; i++) words[i] = tdm_rng_u32(&rng) >> 8;
        for (int i = 0; i < 16; i++) {
            double r = sqrt(-2 * log((words[i] + 1.0) * 0x1p-24));
            double angle = 2 * pi * words[16 + i] * 0x1p-24;
            double off = fmax(fabs(r * cos(angle) - (double)x[block + i]),
                              fabs(r * sin(angle) - (double)x[block + 16 + i]));
            if (off > worst) worst = off;
        }
    }
    CHECK(worst < 1e-6);
    free(x);
}

static void normal_numbers_are_normal(void)
{
    float *x = malloc(LONG * sizeof(float));
    tdm_kernel_normal(address, 2, 0, x, LONG);
    double sum = 0, squares = 0, fourth = 0, pairs = 0;
    int beyond = 0;
    for (int i = 0; i < LONG; i++) {
        double z = (double)x[i] / 2;
        sum += z;
        squares += z * z;
        fourth += z * z * z * z;
        if (i > 0) pairs += z * (double)x[i - 1] / 2;
        beyond += fabs(z) > 1.959963985;
    }
    /* Four standard deviations of each estimate. */
    CHECK(fabs(sum / LONG) < 4 / sqrt(LONG));
    CHECK(fabs(squares / LONG - 1) < 4 * sqrt(2.0 / LONG));
    CHECK(fabs(fourth / LONG - 3) < 4 * sqrt(96.0 / LONG));
    CHECK(fabs(pairs / LONG) < 4 / sqrt(LONG));
    CHECK(fabs((double)beyond / LONG - 0.05) < 4 * sqrt(0.05 * 0.95 / LONG));
    free(x);
}

static void a_stretch_is_part_of_the_row(void)
{
    float all[1000], part[1000];
    for (size_t first = 0; first < 1000; first += TDM_KERNEL_RANDOM_BLOCK) {
        tdm_kernel_normal(address, 2, 0, all, 1000);
        tdm_kernel_normal(address, 2, first, part, 1000 - first);
        CHECK(memcmp(all + first, part, (1000 - first) * sizeof(float)) == 0);
        tdm_kernel_uniform(address, 2, 0, all, 1000);
        tdm_kernel_uniform(address, 2, first, part, 1000 - first);
        CHECK(memcmp(all + first, part, (1000 - first) * sizeof(float)) == 0);
    }
}

static void threads_do_not_matter(void)
{
    float *a = malloc(LONG * sizeof(float)), *b = malloc(LONG * sizeof(float));
    tdm_kernel_mode before = tdm_kernel_enter(1);
    tdm_kernel_normal(address, 1, 0, a, LONG);
    tdm_kernel_threads_set(3);
    tdm_kernel_normal(address, 1, 0, b, LONG);
    tdm_kernel_leave(&before);
    CHECK(memcmp(a, b, LONG * sizeof(float)) == 0);
    free(a);
    free(b);
}

static const check_test tests[] = {
    CHECK_TEST(every_level_draws_the_same),          CHECK_TEST(uniform_numbers_are_the_words),
    CHECK_TEST(normal_numbers_are_near_the_formula), CHECK_TEST(normal_numbers_are_normal),
    CHECK_TEST(a_stretch_is_part_of_the_row),        CHECK_TEST(threads_do_not_matter),
};

CHECK_MAIN(tests)
