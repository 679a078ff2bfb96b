/*
 * check.h: the test harness. A case is a function; check_main() runs all cases, or those whose
 * names contain the first argument of the program, and returns 1 when a check failed or no case
 * ran.
 *
 * CHECK macros count and report failures, and the case continues, so that one run shows all that
 * is wrong. REQUIRE stops the case: use it where the rest of the case would crash. Tear-down and
 * later cases still run. Outside of the function and the stack of the case (in a forked child, a
 * thread, a simulated rank) REQUIRE ends the process with 1.
 *
 * A program of several files has one suite in each: see CHECK_SUITE. check.c is linked to every
 * test.
 */
#ifndef TANDEM_TESTS_CHECK_H
#define TANDEM_TESTS_CHECK_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Atomic, because threads of a case check as well. */
extern _Atomic int check_failures;
extern _Atomic int check_count;

/* ---- checks ------------------------------------------------------------------------------------ */

/* Each counts one check, reports a failure to stderr and returns whether the check succeeded. */
bool check_fail(const char *file, int line, const char *condition); /* false */
static inline bool check_true(bool holds, const char *file, int line, const char *condition)
{
    check_count++;
    return holds || check_fail(file, line, condition);
}
bool check_int(long long actual, long long expected, const char *file, int line, const char *what);
bool check_near(double actual, double expected, double tolerance, const char *file, int line,
                const char *what);
bool check_text(const char *actual, const char *expected, const char *file, int line,
                const char *what);
bool check_has(const char *actual, const char *part, const char *file, int line, const char *what);

/* Whether both texts are equal, or both NULL. */
bool check_text_equal(const char *a, const char *b);

/* Ends the case, or the process: see the top of this file. */
_Noreturn void check_stop(void);

#define CHECK(condition) ((void)check_true((condition), __FILE__, __LINE__, #condition))

/* These evaluate `actual` before `expected`: a call can fill in the variable that is compared
 * with its result. */
#define CHECK_INT(actual, expected)                                                                \
    do {                                                                                           \
        long long check_a_ = (long long)(actual), check_e_ = (long long)(expected);                \
        check_int(check_a_, check_e_, __FILE__, __LINE__, #actual);                                \
    } while (0)

#define CHECK_NEAR(actual, expected, tolerance)                                                    \
    do {                                                                                           \
        double check_a_ = (double)(actual), check_e_ = (double)(expected);                         \
        check_near(check_a_, check_e_, (double)(tolerance), __FILE__, __LINE__, #actual);          \
    } while (0)

#define CHECK_TEXT(actual, expected)                                                               \
    do {                                                                                           \
        const char *check_a_ = (actual), *check_e_ = (expected);                                   \
        check_text(check_a_, check_e_, __FILE__, __LINE__, #actual);                               \
    } while (0)

/* The text must contain the part. */
#define CHECK_HAS(actual, part)                                                                    \
    do {                                                                                           \
        const char *check_a_ = (actual), *check_p_ = (part);                                       \
        check_has(check_a_, check_p_, __FILE__, __LINE__, #actual);                                \
    } while (0)

/* A macro with a branch, so that compilers and analysers know that the condition holds after it. */
#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (condition) {                                                                           \
            check_count++;                                                                         \
        } else {                                                                                   \
            check_true(false, __FILE__, __LINE__, #condition);                                     \
            check_stop();                                                                          \
        }                                                                                          \
    } while (0)

/* ---- cases and suites -------------------------------------------------------------------------- */

typedef struct check_test {
    const char *name;
    void (*run)(void);
} check_test;

/* The cases of one file. `set_up` runs before each case and `tear_down` after it, also after a
 * failed REQUIRE; both can be NULL. */
typedef struct check_suite {
    const check_test *tests;
    size_t count;
    void (*set_up)(void);
    void (*tear_down)(void);
} check_suite;

int check_main(int argc, char **argv, const check_test *tests, size_t count);
int check_main_suites(int argc, char **argv, const check_suite *const *suites, size_t count);

/* clang-format off */
#define CHECK_TEST(function) {#function, function}
/* clang-format on */

/* CHECK_SUITE(NAME, TESTS[, .set_up = FUNCTION, .tear_down = FUNCTION]): the suite of a file, by
 * its array of tests. A header of the program declares it: `extern const check_suite NAME;`. */
#define CHECK_SUITE(name, ...) CHECK_SUITE_OF(name, __VA_ARGS__, )
#define CHECK_SUITE_OF(name, array, ...)                                                           \
    const check_suite name = {                                                                     \
        .tests = (array), .count = sizeof(array) / sizeof((array)[0]), __VA_ARGS__}

/* CHECK_MAIN(TESTS): main() of a program that has all its cases in one array. */
#define CHECK_MAIN(tests)                                                                          \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        return check_main(argc, argv, tests, sizeof(tests) / sizeof((tests)[0]));                  \
    }

/* CHECK_MAIN_AROUND(TESTS, SET_UP, TEAR_DOWN): the same with functions around each case, or NULL. */
#define CHECK_MAIN_AROUND(tests, before, after)                                                    \
    static CHECK_SUITE(check_only_suite, tests, .set_up = (before), .tear_down = (after));         \
    CHECK_MAIN_SUITES(&check_only_suite)

/* CHECK_MAIN_SUITES(&SUITE, ...): main() of a program with several suites. */
#define CHECK_MAIN_SUITES(...)                                                                     \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        static const check_suite *const suites[] = {__VA_ARGS__};                                  \
        return check_main_suites(argc, argv, suites, sizeof(suites) / sizeof(suites[0]));          \
    }

/* ---- fixtures ---------------------------------------------------------------------------------- */

/* A temporary directory, created by the first call within a case and removed after the case.
 * Where the first call comes before check_main(), all cases share the directory; check_main()
 * removes it at its end. Forked children use the directory of their parent and do not remove
 * it. */
const char *check_dir(void);

/* Removes the directory now; the next check_dir() creates another one. */
void check_dir_reset(void);

/* The same in memory (/dev/shm) where the host has it, for cases that sync often. Call it before
 * check_dir(). */
const char *check_memory_dir(void);

/* The path of a file in that directory. The text is valid until the eighth next call. */
const char *check_path(const char *name);

/* Writes the file NAME in that directory and returns its path. */
const char *check_write(const char *name, const char *text);

/* Seconds of the monotonic clock. */
double check_now_s(void);

/* Sleeps for the whole time, also when signals arrive. */
void check_sleep_s(double seconds);

/* Waits until `done(user)` is true, for at most that long; returns what it returned last. */
bool check_wait(bool (*done)(void *user), void *user, double seconds);

#endif
