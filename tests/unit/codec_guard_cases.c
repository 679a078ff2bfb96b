/*
 * codec_guard_cases.c: nothing beyond the end of an array is read or written, for all lengths of the last vector.
 *
 * Sanitizers do not see the vector loops of every build, so the arrays end at a page that cannot be accessed.
 */
#include "codec_trial.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ARRAYS = 8, PAGES = 8 };

/* Arrays of up to PAGES pages, each with a forbidden page behind it. */
typedef struct guards {
    uint8_t *end[ARRAYS];
    size_t page;
} guards;

static void guards_init(guards *g)
{
    g->page = (size_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i < ARRAYS; i++) {
        uint8_t *begin = mmap(NULL, (PAGES + 1) * g->page, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        REQUIRE(begin != MAP_FAILED);
        g->end[i] = begin + PAGES * g->page;
        REQUIRE(mprotect(g->end[i], g->page, PROT_NONE) == 0);
    }
}

static void guards_release(guards *g)
{
    for (int i = 0; i < ARRAYS; i++) munmap(g->end[i] - PAGES * g->page, (PAGES + 1) * g->page);
}

/* The last `bytes` bytes before the forbidden page. */
static void *guards_take(const guards *g, int array, size_t bytes)
{
    REQUIRE(bytes <= PAGES * g->page);
    return g->end[array] - bytes;
}

static float *guards_random(const guards *g, int array, size_t count)
{
    float *x = guards_take(g, array, count * sizeof(*x));
    codec_trial_random(x, count, (uint32_t)array);
    return x;
}

static void check_payload(const guards *g, const tdm_codec_options *o, int level, size_t elements)
{
    const tdm_codec_tensor tensor = {.name = "t", .elements = elements};
    const tdm_codec_key key = {.seed = 1};
    tdm_error err = {0};
    tdm_codec *codec;
    size_t bytes;
    REQUIRE(tdm_codec_create(o, &tensor, 1, &codec, &err) == TDM_OK);
    codec->loops = tdm__codec_loops_at(level);
    float *grad = guards_random(g, 0, elements), *out = guards_random(g, 1, elements);
    const float *before[] = {guards_random(g, 2, elements), guards_random(g, 3, elements)};
    float *after[] = {guards_random(g, 4, elements), guards_random(g, 5, elements)};
    void *payload = guards_take(g, 6, tdm_codec_max_bytes(codec));
    if (tdm_codec_encode(codec, &key, grad, before, after, payload, &bytes, &err) != TDM_OK)
        CHECK_TEXT(err.message, "");
    void *exact = guards_take(g, 7, bytes);
    memcpy(exact, payload, bytes);
    if (tdm_codec_decode(codec, exact, bytes, out, &err) != TDM_OK) CHECK_TEXT(err.message, "");
    tdm_codec_destroy(codec);
}

static void payloads_stay_within_their_arrays(void)
{
    guards g;
    guards_init(&g);
    for (size_t c = 0; c < codec_combination_count; c++)
        for (int level = tdm_kernel_cpu_level() ? 2 : 0; level <= tdm_kernel_cpu_level(); level++)
            for (size_t elements = 1; elements < 2200; elements += elements % 1024 < 70 ? 1 : 67)
                check_payload(&g, &codec_combinations[c].options, level, elements);
    guards_release(&g);
}

static void check_factors(const guards *g, int level, size_t rows, size_t cols)
{
    const tdm_codec_options o = {.rank = 2, .feedback = true, .min_rate = 1e-9};
    const tdm_codec_tensor tensor = {"m", 0, rows * cols, rows};
    const tdm_codec_key key = {.seed = 1};
    tdm_error err = {0};
    tdm_codec *codec;
    REQUIRE(tdm_codec_create(&o, &tensor, 1, &codec, &err) == TDM_OK);
    codec->loops = tdm__codec_loops_at(level);
    float *grad = guards_random(g, 0, rows * cols), *out = guards_random(g, 1, rows * cols);
    const float *before[] = {guards_random(g, 2, rows * cols)};
    float *m = guards_random(g, 3, rows * cols);
    float *p = guards_random(g, 4, tdm_codec_lowrank_p_elements(codec));
    float *q = guards_random(g, 5, tdm_codec_lowrank_q_elements(codec));
    memset(q, 0, cols * sizeof(*q));
    tdm_codec_lowrank_start(codec, &key, q);
    if (tdm_codec_lowrank_project(codec, grad, before, q, m, p, &err) != TDM_OK)
        CHECK_TEXT(err.message, "");
    tdm_codec_lowrank_orthogonalise(codec, p);
    tdm_codec_lowrank_back(codec, m, p, q);
    tdm_codec_lowrank_reconstruct(codec, p, q, 0, SIZE_MAX, out);
    tdm_codec_lowrank_residual(codec, m, p, q, 1, m);
    tdm_codec_destroy(codec);
}

static void factors_stay_within_their_arrays(void)
{
    guards g;
    guards_init(&g);
    for (int level = tdm_kernel_cpu_level() ? 2 : 0; level <= tdm_kernel_cpu_level(); level++)
        for (size_t cols = 2; cols < 80; cols++) check_factors(&g, level, 2 + cols % 37, cols);
    check_factors(&g, tdm_kernel_cpu_level(), 9, 600);
    check_factors(&g, tdm_kernel_cpu_level(), 600, 9);
    guards_release(&g);
}

static const check_test tests[] = {
    CHECK_TEST(payloads_stay_within_their_arrays),
    CHECK_TEST(factors_stay_within_their_arrays),
};
CHECK_SUITE(codec_guards, tests);
