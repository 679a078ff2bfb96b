/*
 * optim_schedule_cases.c: tests of the schedules against values computed by hand, and of the logic of plateaus.
 * tests/parity/optim_parity.py compares them with PyTorch's.
 */

#include "check.h"
#include "optim/optim.h"
#include "unit/optim_cases.h"

static const int64_t schedule_milestones[] = {3, 5};

/* lr 1 and ten steps, unless a case says otherwise. */
static tdm_schedule plain_schedule(int kind)
{
    return (tdm_schedule){.kind = kind,
                          .lr = 1,
                          .gamma = 0.5,
                          .steps = 10,
                          .every_steps = 4,
                          .milestones = {schedule_milestones, 2},
                          .peak_at = 0.3,
                          .start_divisor = 25,
                          .end_divisor = 1e4,
                          .patience = 2,
                          .threshold = 1e-4};
}

static void schedules_have_their_values(void)
{
    static const struct {
        int kind;
        double floor;
        double rates[11]; /* of steps 0 to 10 */
    } cases_of[] = {
        {TDM_JOB_SCHEDULE_CONSTANT, 0, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
        {TDM_JOB_SCHEDULE_STEP, 0, {1, 1, 1, 1, .5, .5, .5, .5, .25, .25, .25}},
        {TDM_JOB_SCHEDULE_MULTI_STEP, 0, {1, 1, 1, .5, .5, .25, .25, .25, .25, .25, .25}},
        {TDM_JOB_SCHEDULE_EXPONENTIAL,
         0,
         {1, .5, .25, .125, .0625, 1. / 32, 1. / 64, 1. / 128, 1. / 256, 1. / 512, 1. / 1024}},
        {TDM_JOB_SCHEDULE_LINEAR, .5, {1, .95, .9, .85, .8, .75, .7, .65, .6, .55, .5}},
        {TDM_JOB_SCHEDULE_COSINE,
         .2,
         {1, 0.980422606518, 0.923606797750, 0.835114100917, 0.723606797750, 0.6, 0.476393202250,
          0.364885899083, 0.276393202250, 0.219577393482, .2}},
        /* Up for two steps: the peak is step 0.3 * 10 - 1; then down to the last, step 9. */
        {TDM_JOB_SCHEDULE_ONE_CYCLE,
         0,
         {.04, .52, 1, 0.950484632, 0.811745654, 0.611262022, 0.388741978, 0.188258346, 0.049519368,
          .000004, .000004}},
        {TDM_JOB_SCHEDULE_INVERSE_SQRT,
         .4,
         {1, 0.707106781187, 0.577350269190, .5, 0.447213595500, 0.408248290464, .4, .4, .4, .4,
          .4}},
    };
    for (size_t n = 0; n < sizeof(cases_of) / sizeof(cases_of[0]); n++) {
        tdm_schedule s = plain_schedule(cases_of[n].kind);
        s.floor = cases_of[n].floor;
        for (uint64_t step = 0; step <= 10; step++)
            CHECK_NEAR(tdm_schedule_lr(&s, step, NULL), cases_of[n].rates[step], 1e-9);
    }
}

static void schedules_end_and_stay(void)
{
    static const int kinds[] = {TDM_JOB_SCHEDULE_COSINE, TDM_JOB_SCHEDULE_LINEAR,
                                TDM_JOB_SCHEDULE_ONE_CYCLE};
    for (int i = 0; i < 3; i++) {
        tdm_schedule s = plain_schedule(kinds[i]);
        double end = tdm_schedule_lr(&s, 10, NULL);
        CHECK(tdm_schedule_lr(&s, 11, NULL) == end && tdm_schedule_lr(&s, 1000000, NULL) == end);
        s.steps = 1; /* the shortest one */
        for (uint64_t step = 0; step < 4; step++) CHECK(isfinite(tdm_schedule_lr(&s, step, NULL)));
        s.peak_at = 1;
        s.steps = 3;
        for (uint64_t step = 0; step < 6; step++) CHECK(isfinite(tdm_schedule_lr(&s, step, NULL)));
    }
}

static void warm_ups_rise_to_the_beginning(void)
{
    for (int kind = 0; kind <= TDM_JOB_SCHEDULE_REDUCE_ON_PLATEAU; kind++) {
        tdm_schedule with = plain_schedule(kind), without = with;
        tdm_plateau plateau = {.lr = 0.5};
        with.warmup = 4;
        with.steps = 14; /* ten are left */
        double top = kind == TDM_JOB_SCHEDULE_INVERSE_SQRT ? 1
                                                           : tdm_schedule_lr(&without, 0, &plateau);
        for (uint64_t step = 0; step < 4; step++)
            CHECK_NEAR(tdm_schedule_lr(&with, step, &plateau), top * (double)(step + 1) / 4, 1e-12);
        for (uint64_t step = 0; step < 12; step++) {
            double expected = tdm_schedule_lr(&without, step, &plateau);
            if (kind == TDM_JOB_SCHEDULE_INVERSE_SQRT) expected = sqrt(4.0 / (double)(step + 5));
            CHECK_NEAR(tdm_schedule_lr(&with, step + 4, &plateau), expected, 1e-12);
        }
    }
    tdm_schedule s = plain_schedule(TDM_JOB_SCHEDULE_COSINE);
    s.warmup = 20; /* longer than the run */
    for (uint64_t step = 0; step < 30; step++) CHECK(isfinite(tdm_schedule_lr(&s, step, NULL)));
}

static void plateaus_lower_the_rate(void)
{
    tdm_schedule s = plain_schedule(TDM_JOB_SCHEDULE_REDUCE_ON_PLATEAU);
    s.floor = 0.2;
    s.cooldown = 1;
    tdm_plateau p = {0};
    CHECK(tdm_schedule_lr(&s, 7, NULL) == 1 && tdm_schedule_lr(&s, 7, &p) == 1);
    /* Two evaluations without improvement are tolerated, the third reduces the rate; the next one is ignored.
     * */
    static const struct {
        double value, lr;
    } schedule[] = {{2, 1},   {1, 1},   {1, 1},    {0.99995, 1}, {1.5, 0.5},  {9, 0.5},
                    {9, 0.5}, {9, 0.5}, {9, 0.25}, {0.5, 0.25},  {NAN, 0.25}, {9, 0.25},
                    {9, 0.2}, {9, 0.2}, {9, 0.2},  {9, 0.2},     {9, 0.2}};
    for (size_t i = 0; i < sizeof(schedule) / sizeof(schedule[0]); i++) {
        double before = tdm_schedule_lr(&s, i, &p);
        bool lowered = tdm_schedule_observe(&s, schedule[i].value, &p);
        CHECK(tdm_schedule_lr(&s, i, &p) == schedule[i].lr);
        CHECK_INT(lowered, schedule[i].lr < before);
    }
    CHECK(p.best == 0.5);
}

static void plateaus_of_what_should_rise(void)
{
    tdm_schedule s = plain_schedule(TDM_JOB_SCHEDULE_REDUCE_ON_PLATEAU);
    s.higher_is_better = true;
    s.patience = 0;
    tdm_plateau p = {0};
    CHECK(!tdm_schedule_observe(&s, NAN, &p) || tdm_schedule_lr(&s, 0, &p) == 0.5);
    p = (tdm_plateau){0};
    CHECK(!tdm_schedule_observe(&s, 0.5, &p));
    CHECK(!tdm_schedule_observe(&s, 0.6, &p));
    CHECK(tdm_schedule_observe(&s, 0.60001, &p)); /* better, but by less than the threshold */
    CHECK(tdm_schedule_lr(&s, 0, &p) == 0.5);
    CHECK(!tdm_schedule_observe(&s, 0.7, &p));
}

static void early_stopping_is_patient(void)
{
    tdm_job_early_stop rule = {
        .metric = TDM_JOB_METRIC_TEST_LOSS, .patience = 2, .min_delta = 0.125};
    tdm_plateau p = {0};
    CHECK(!tdm_early_stop_is_due(&rule, &p));
    CHECK(!tdm_early_stop_observe(&rule, 1, &p));
    CHECK(!tdm_early_stop_observe(&rule, 0.9, &p)); /* not enough */
    CHECK(!tdm_early_stop_observe(&rule, 0.8, &p));
    CHECK(!tdm_early_stop_observe(&rule, NAN, &p));
    CHECK(tdm_early_stop_observe(&rule, 0.7, &p));
    CHECK(tdm_early_stop_is_due(&rule, &p));
    rule.patience = 3; /* with a larger value the run continues */
    CHECK(!tdm_early_stop_is_due(&rule, &p));
    CHECK(!tdm_early_stop_observe(&rule, 0.5, &p) && p.best == 0.5 && p.bad == 0);
    rule.metric = TDM_JOB_METRIC_TEST_ACCURACY;
    rule.patience = 1;
    CHECK(!tdm_early_stop_observe(&rule, 0.75, &p));
    CHECK(tdm_early_stop_observe(&rule, 0.875, &p)); /* exactly min_delta is not an improvement */
}

static const check_test optim_schedule_tests[] = {
    CHECK_TEST(schedules_have_their_values),    CHECK_TEST(schedules_end_and_stay),
    CHECK_TEST(warm_ups_rise_to_the_beginning), CHECK_TEST(plateaus_lower_the_rate),
    CHECK_TEST(plateaus_of_what_should_rise),   CHECK_TEST(early_stopping_is_patient),
};
CHECK_SUITE(optim_schedule, optim_schedule_tests);
