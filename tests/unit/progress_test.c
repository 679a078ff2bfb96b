/*
 * progress_test.c: the text of the progress line at every width, and the output without a terminal.
 * tests/cli/progress_test.sh tests it on a real terminal.
 */
#include "check.h"
#include "progress.h"

#include <stdlib.h>
#include <unistd.h>

static tdm_train_status status_at(uint64_t step)
{
    return (tdm_train_status){.step = step,
                              .step_count = 1000,
                              .epoch = step / 100,
                              .epoch_count = 10,
                              .smooth_loss = 0.1234,
                              .samples_per_s = 12345,
                              .left_s = 65,
                              .has_test = true,
                              .test = {.accuracy = 0.9876}};
}

static const char *text_at(const tdm_train_status *status, int columns, tdm_str *out)
{
    tdm_str_clear(out);
    progress_text(status, columns, out);
    return tdm_str_text(out);
}

static void test_it_never_reaches_the_edge(void)
{
    static const uint64_t steps[] = {0, 1, 999, 1000};
    tdm_str out = TDM_STR_INIT;
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        tdm_train_status status = status_at(steps[i]);
        for (int columns = 2; columns < 300; columns++) {
            size_t length = strlen(text_at(&status, columns, &out));
            CHECK(length > 0);
            CHECK(length < (size_t)columns);
            CHECK(!strpbrk(tdm_str_text(&out), "\r\n\033"));
        }
    }
    tdm_str_release(&out);
}

static void test_the_largest_numbers_fit(void)
{
    tdm_train_status status = {.step = UINT64_MAX,
                               .step_count = UINT64_MAX,
                               .epoch = UINT64_MAX,
                               .epoch_count = UINT64_MAX,
                               .smooth_loss = -1.7e308,
                               .samples_per_s = 1.7e308,
                               .left_s = 1e300,
                               .has_test = true,
                               .skipped = UINT64_MAX,
                               .rank_count = INT32_MAX,
                               .straggler = INT32_MAX,
                               .test = {.accuracy = 1}};
    tdm_str out = TDM_STR_INIT;
    for (int columns = 2; columns < 200; columns++)
        CHECK(strlen(text_at(&status, columns, &out)) < (size_t)columns);
    status.smooth_loss = NAN;
    CHECK_HAS(text_at(&status, 300, &out), "loss nan");
    CHECK_HAS(tdm_str_text(&out), "18446744073709551615 skipped");
    tdm_str_release(&out);
}

static void test_parts_go_least_important_first(void)
{
    tdm_train_status status = status_at(200);
    tdm_str out = TDM_STR_INIT;
    CHECK_TEXT(
        text_at(&status, 200, &out),
        "[========>                               ]  step 200/1000   epoch 3/10   loss 0.1234  "
        "test 98.76 %    12k/s   1 min 05 s left");
    CHECK_TEXT(text_at(&status, 80, &out),
               "[=>     ]  step 200/1000   loss 0.1234  test 98.76 %    12k/s   1 min 05 s left");
    CHECK_TEXT(text_at(&status, 70, &out),
               "[=>    ]  step 200/1000   loss 0.1234  test 98.76 %   1 min 05 s left");
    CHECK_TEXT(text_at(&status, 60, &out),
               "step 200/1000   loss 0.1234  test 98.76 %   1 min 05 s left");
    CHECK_TEXT(text_at(&status, 50, &out), "step 200/1000   loss 0.1234   1 min 05 s left");
    CHECK_TEXT(text_at(&status, 30, &out), "step 200/1000   loss 0.1234");
    CHECK_TEXT(text_at(&status, 20, &out), "step 200/1000 ");
    CHECK_TEXT(text_at(&status, 10, &out), "step 200/");
    CHECK_TEXT(text_at(&status, 2, &out), "s");
    tdm_str_release(&out);
}

/* The number of characters of the bar that are `c`. */
static int count_in_bar(const char *text, char c)
{
    int count = 0;
    for (const char *p = text; *p && *p != ']'; p++) count += *p == c;
    return count;
}

static void test_a_slow_rank_is_named(void)
{
    tdm_str out = TDM_STR_INIT;
    tdm_train_status status = status_at(10);
    status.rank_count = 4;
    status.straggler = 3;
    CHECK_HAS(text_at(&status, 200, &out), "  rank 3 slow  ");
    status.straggler = -1;
    CHECK(!strstr(text_at(&status, 200, &out), "slow"));
    status.straggler = 0; /* of a single process */
    status.rank_count = 1;
    CHECK(!strstr(text_at(&status, 200, &out), "slow"));
    tdm_str_release(&out);
}

static void test_the_bar_grows(void)
{
    tdm_str out = TDM_STR_INIT;
    int before = -1;
    for (uint64_t step = 0; step <= 1000; step++) {
        tdm_train_status status = status_at(step);
        int full = count_in_bar(text_at(&status, 200, &out), '=');
        CHECK(full >= before);
        before = full;
    }
    CHECK_INT(before, 40);
    tdm_train_status status = status_at(0);
    CHECK_INT(count_in_bar(text_at(&status, 200, &out), '='), 0);
    CHECK_INT(count_in_bar(tdm_str_text(&out), '>'), 1);
    status.step_count = 0; /* no steps left */
    CHECK_INT(count_in_bar(text_at(&status, 200, &out), '='), 0);
    tdm_str_release(&out);
}

/* To a file: whole lines, at most one for each step, without terminal codes. */
static void test_without_a_terminal(void)
{
    char text[4096] = {0};
    FILE *file = tmpfile();
    CHECK(file != NULL);
    if (!file) return;
    progress p;
    progress_init(&p, file, false);
    CHECK(!p.terminal);
    tdm_train_status status = status_at(10);
    progress_show(&p, &status, false);
    progress_show(&p, &status, true);
    CHECK_INT(ftell(file), 0); /* too early */
    p.last_draw_s -= 11;
    progress_show(&p, &status, false);
    p.last_draw_s -= 11;
    progress_show(&p, &status, true); /* the same step */
    status = status_at(11);
    progress_show(&p, &status, false);
    p.last_draw_s -= 2;
    progress_show(&p, &status, false);
    progress_show(&p, &status, true); /* an evaluation, more than a second later */
    progress_clear(&p);
    rewind(file);
    size_t count = fread(text, 1, sizeof(text) - 1, file);
    CHECK(count > 0);
    CHECK_TEXT(text, "step 10/1000  loss 0.1234  test 98.76 %  12k samples/s  1 min 05 s left\n"
                     "step 11/1000  loss 0.1234  test 98.76 %  12k samples/s  1 min 05 s left\n");
    fclose(file);
}

static void test_quiet(void)
{
    FILE *file = tmpfile();
    CHECK(file != NULL);
    if (!file) return;
    progress p;
    progress_init(&p, file, true);
    p.last_draw_s -= 100;
    tdm_train_status status = status_at(1000);
    progress_show(&p, &status, true);
    progress_clear(&p);
    CHECK_INT(ftell(file), 0);
    fclose(file);
}

static const check_test tests[] = {
    CHECK_TEST(test_it_never_reaches_the_edge),
    CHECK_TEST(test_the_largest_numbers_fit),
    CHECK_TEST(test_parts_go_least_important_first),
    CHECK_TEST(test_a_slow_rank_is_named),
    CHECK_TEST(test_the_bar_grows),
    CHECK_TEST(test_without_a_terminal),
    CHECK_TEST(test_quiet),
};

CHECK_MAIN(tests)
