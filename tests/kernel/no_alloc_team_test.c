/*
 * no_alloc_team_test.c: in a step of a team in a single process, Tandem's code allocates nothing, in any
 * thread. Allocations of oneDNN inside its products are separated as in no_alloc_test.c.
 */
#include "alloc_count.h"
#include "team_bench.h"

enum { RUNS = 40, FULL_BATCH = 21, LAST_BATCH = 3 };

static void check_no_allocation(team_shape shape)
{
    team_bench b;
    if (team_bench_open(&b, &shape)) {
        /* Each size of batch once, because a first use may allocate. */
        double first = team_bench_step(&b, 0, FULL_BATCH).loss, last = 0;
        team_bench_step(&b, 1, LAST_BATCH);
        alloc_count before = alloc_count_now();
        for (uint64_t step = 2; step < 2 + RUNS; step++) {
            team_bench_step(&b, step, LAST_BATCH);
            last = team_bench_step(&b, step, FULL_BATCH).loss;
        }
        alloc_count after = alloc_count_now(), c = alloc_count_between(&before, &after);
        CHECK_INT(c.allocations[ALLOC_COUNT_OUTSIDE], 0);
        CHECK_INT(c.frees[ALLOC_COUNT_OUTSIDE], 0);
        CHECK_INT(c.live_bytes[ALLOC_COUNT_INSIDE], 0);
        CHECK_INT(c.leaky_products, 0);
        if (shape.backend == TDM_JOB_BACKEND_REF) CHECK_INT(c.products, 0);
        if (shape.numerics == TDM_JOB_NUMERICS_VENDOR) CHECK(c.products > 0);
        CHECK(isfinite(last) && last < first); /* it has trained */
    }
    team_bench_close(&b);
}

static void nothing_with_ref(void)
{
    for (int optim = TDM_JOB_OPTIM_SGD; optim <= TDM_JOB_OPTIM_LION; optim++)
        check_no_allocation((team_shape){.lanes = 8,
                                         .batches = {FULL_BATCH, LAST_BATCH},
                                         .optim = optim,
                                         .backend = TDM_JOB_BACKEND_REF,
                                         .dropout = 0.1,
                                         .clip_norm = optim % 2 ? 1 : 0,
                                         .ema = 0.9});
}

static void nothing_of_ours_with_onednn(void)
{
    check_no_allocation((team_shape){.lanes = 4,
                                     .batches = {FULL_BATCH, LAST_BATCH},
                                     .optim = TDM_JOB_OPTIM_ADAMW,
                                     .numerics = TDM_JOB_NUMERICS_VENDOR,
                                     .dropout = 0.1});
}

static void nothing_on_several_threads(void)
{
    check_no_allocation((team_shape){.lanes = 2,
                                     .batches = {FULL_BATCH, LAST_BATCH},
                                     .optim = TDM_JOB_OPTIM_ADAMW,
                                     .threads = 3,
                                     .dropout = 0.1});
}

static const check_test tests[] = {
    CHECK_TEST(nothing_with_ref),
    CHECK_TEST(nothing_of_ours_with_onednn),
    CHECK_TEST(nothing_on_several_threads),
};

int main(int argc, char **argv)
{
    if (!alloc_count_begin()) {
        fprintf(stderr, "the sanitizer's hooks could not be set\n");
        return 1;
    }
    return check_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
