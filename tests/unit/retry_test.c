/*
 * retry_test.c: when an operation that a disk rejected is retried, and for how long.
 */
#include "check.h"
#include "train/retry.h"

/* 0.5, 1, 2, 4, 8, 16, and then always 30. */
static void pauses_grow_up_to_a_bound(void)
{
    static const double pauses[] = {0.5, 1, 2, 4, 8, 16, 30, 30};
    tdm__retry retry = {0};
    double now_s = 100;
    for (size_t i = 0; i < sizeof(pauses) / sizeof(pauses[0]); i++) {
        tdm__retry_failed(&retry, now_s);
        CHECK_NEAR(retry.next_s - now_s, pauses[i], 0);
        now_s = retry.next_s;
    }
    CHECK_INT(retry.failures, 8);
    CHECK_NEAR(retry.first_s, 100, 0);
    for (int i = 0; i < 5000; i++) tdm__retry_failed(&retry, now_s);
    CHECK_NEAR(retry.next_s - now_s, 30, 0);
}

static void a_budget_ends_with_a_try(void)
{
    tdm__retry retry = {0};
    tdm__retry_failed(&retry, 10);
    CHECK_INT(tdm__retry_choose(&retry, 0, 10), TDM__RETRY_OVER);
    CHECK_INT(tdm__retry_choose(&retry, 2, 10.4), TDM__RETRY_WAIT);
    CHECK_INT(tdm__retry_choose(&retry, 2, 10.5), TDM__RETRY_NOW);
    CHECK_INT(tdm__retry_choose(&retry, 0.25, 10.2), TDM__RETRY_WAIT);
    CHECK_INT(tdm__retry_choose(&retry, 0.25, 10.25), TDM__RETRY_NOW);
    tdm__retry_failed(&retry, 11);
    CHECK_INT(tdm__retry_choose(&retry, 1.5, 11.25), TDM__RETRY_WAIT);
    CHECK_INT(tdm__retry_choose(&retry, 1.5, 11.5), TDM__RETRY_NOW); /* not after a whole second */
    tdm__retry_failed(&retry, 11.75);
    CHECK_INT(tdm__retry_choose(&retry, 1.5, 99), TDM__RETRY_OVER);
}

static void some_errors_pass(void)
{
    static const tdm_status pass[] = {TDM_ERR_NO_SPACE, TDM_ERR_IO, TDM_ERR_RANGE, TDM_ERR_SYSTEM};
    static const tdm_status stay[] = {TDM_OK,
                                      TDM_ERR_NO_MEMORY,
                                      TDM_ERR_DIVERGED,
                                      TDM_ERR_PEER_FAILED,
                                      TDM_ERR_PEER_FENCED,
                                      TDM_ERR_JOB_INVALID,
                                      TDM_ERR_INTERNAL};
    for (size_t i = 0; i < sizeof(pass) / sizeof(pass[0]); i++) CHECK(tdm__is_disk_status(pass[i]));
    for (size_t i = 0; i < sizeof(stay) / sizeof(stay[0]); i++)
        CHECK(!tdm__is_disk_status(stay[i]));
}

static const check_test tests[] = {
    CHECK_TEST(pauses_grow_up_to_a_bound),
    CHECK_TEST(a_budget_ends_with_a_try),
    CHECK_TEST(some_errors_pass),
};

int main(int argc, char **argv)
{
    return check_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
