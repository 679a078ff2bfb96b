/*
 * check_test.c: tests of the harness itself. Each case runs check_main() over small suites in a child, whose
 * output is dropped, and checks its exit status.
 */
#include "check.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the cases of the suites under test -------------------------------------------------------- */

/* Which cases ran, in memory that the child shares with the test. */
static struct {
    int set_ups, tear_downs, after_check, after_require, later;
    char dir[64];
} * seen;

static void passes(void)
{
    CHECK(true);
    CHECK_INT(2 + 2, 4);
    CHECK_NEAR(0.1 + 0.2, 0.3, 1e-9);
    CHECK_TEXT("a", "a");
    CHECK_HAS("abc", "b");
    REQUIRE(true);
}

static void fails_check(void)
{
    CHECK(false);
    seen->after_check++;
}

static void fails_int(void)
{
    CHECK_INT(2 + 2, 5);
}

static void fails_near(void)
{
    CHECK_NEAR(NAN, 0, 1);
}

static void fails_text(void)
{
    CHECK_TEXT(NULL, "a");
}

static void fails_has(void)
{
    CHECK_HAS("abc", "d");
}

static void fails_require(void)
{
    snprintf(seen->dir, sizeof(seen->dir), "%s", check_dir());
    mkdir(check_path("inner"), 0700);
    check_write("inner/file", "text");
    REQUIRE(seen == NULL);
    seen->after_require++;
}

static void runs_later(void)
{
    seen->later++;
    CHECK(strcmp(check_dir(), seen->dir) != 0);
}

static void *fail_in_thread(void *unused)
{
    REQUIRE(seen == NULL);
    return unused;
}

static void fails_in_thread(void)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, fail_in_thread, NULL) == 0);
    pthread_join(thread, NULL);
    seen->after_require++;
}

static void fails_in_child(void)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        REQUIRE(seen == NULL);
        _exit(0);
    }
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK_INT(WEXITSTATUS(status), 1); /* and the child did not run the following cases */
}

static void count_set_up(void)
{
    seen->set_ups++;
}

static void count_tear_down(void)
{
    seen->tear_downs++;
}

/* ---- running them ------------------------------------------------------------------------------- */

static int run_suite(const check_suite *suite, const char *only)
{
    int status = 0;
    memset(seen, 0, sizeof(*seen));
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        check_failures = 0;
        if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) _exit(9);
        char *argv[] = {(char *)"check", (char *)only, NULL};
        _exit(check_main_suites(only ? 2 : 1, argv, &suite, 1));
    }
    CHECK_INT(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

static int run_one(void (*run)(void))
{
    const check_test tests[] = {{"one", run}};
    return run_suite(&(check_suite){.tests = tests, .count = 1}, NULL);
}

static void a_failing_check_fails_the_run(void)
{
    CHECK_INT(run_one(passes), 0);
    CHECK_INT(run_one(fails_check), 1);
    CHECK_INT(seen->after_check, 1);
    CHECK_INT(run_one(fails_int), 1);
    CHECK_INT(run_one(fails_near), 1);
    CHECK_INT(run_one(fails_text), 1);
    CHECK_INT(run_one(fails_has), 1);
}

static void one_failing_case_among_others_fails_the_run(void)
{
    static const check_test tests[] = {CHECK_TEST(passes), CHECK_TEST(fails_check),
                                       CHECK_TEST(runs_later)};
    const check_suite suite = {.tests = tests, .count = 3};
    CHECK_INT(run_suite(&suite, NULL), 1);
    CHECK_INT(seen->later, 1);
    CHECK_INT(run_suite(&suite, "passes"), 0);
    CHECK_INT(seen->later, 0);
    CHECK_INT(run_suite(&suite, "no_such_case"), 1);
}

static void require_stops_the_case_only(void)
{
    static const check_test tests[] = {CHECK_TEST(fails_require), CHECK_TEST(runs_later)};
    const check_suite suite = {
        .tests = tests, .count = 2, .set_up = count_set_up, .tear_down = count_tear_down};
    CHECK_INT(run_suite(&suite, NULL), 1);
    CHECK_INT(seen->after_require, 0);
    CHECK_INT(seen->later, 1);
    CHECK_INT(seen->set_ups, 2);
    CHECK_INT(seen->tear_downs, 2);
    CHECK(seen->dir[0] != 0);
    CHECK(access(seen->dir, F_OK) != 0); /* removed, with its contents */
}

static void require_ends_threads_and_children(void)
{
    CHECK_INT(run_one(fails_in_thread), 1);
    CHECK_INT(seen->after_require, 0);
    CHECK_INT(run_one(fails_in_child), 0);
}

/* ---- fixtures ----------------------------------------------------------------------------------- */

static char first_dir[64];

static void a_case_has_a_directory(void)
{
    snprintf(first_dir, sizeof(first_dir), "%s", check_dir());
    CHECK_TEXT(check_dir(), first_dir);
    CHECK_INT(access(check_write("a", "text"), R_OK), 0);
    CHECK_INT(access(check_path("b"), R_OK), -1);
}

static void the_next_case_has_another(void)
{
    CHECK(access(first_dir, F_OK) != 0);
    CHECK(strcmp(check_dir(), first_dir) != 0);
}

static bool file_exists(void *path)
{
    return access(path, F_OK) == 0;
}

static void waits_end(void)
{
    double from_s = check_now_s();
    CHECK(!check_wait(file_exists, (void *)check_path("none"), 0.01));
    CHECK(check_now_s() - from_s >= 0.01);
    CHECK(check_wait(file_exists, (void *)check_write("some", ""), 60));
    from_s = check_now_s();
    check_sleep_s(0.02);
    CHECK(check_now_s() - from_s >= 0.02);
}

static const check_test tests[] = {
    CHECK_TEST(a_failing_check_fails_the_run),
    CHECK_TEST(one_failing_case_among_others_fails_the_run),
    CHECK_TEST(require_stops_the_case_only),
    CHECK_TEST(require_ends_threads_and_children),
    CHECK_TEST(a_case_has_a_directory),
    CHECK_TEST(the_next_case_has_another),
    CHECK_TEST(waits_end),
};

int main(int argc, char **argv)
{
    seen = mmap(NULL, sizeof(*seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return seen == MAP_FAILED ? 1 : check_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
