/*
 * check.h: the test harness. A test is a function; CHECK macros count and report, and never stop
 * the test, so that one run shows all that is wrong. REQUIRE ends the program: for a condition without which
 * the rest of the test has no meaning, or would crash. main() runs them all, or those whose names
 * contain the first argument, and exits with 1 when a check failed.
 */
#ifndef TANDEM_TESTS_CHECK_H
#define TANDEM_TESTS_CHECK_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check_failures;
static int check_count;

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        check_count++;                                                                             \
        if (!(condition)) {                                                                        \
            check_failures++;                                                                      \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);              \
        }                                                                                          \
    } while (0)

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        check_count++;                                                                             \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);              \
            fflush(NULL);                                                                          \
            _Exit(1);                                                                              \
        }                                                                                          \
    } while (0)

#define CHECK_INT(actual, expected)                                                                \
    do {                                                                                           \
        long long check_a_ = (long long)(actual), check_e_ = (long long)(expected);                \
        check_count++;                                                                             \
        if (check_a_ != check_e_) {                                                                \
            check_failures++;                                                                      \
            fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #actual,          \
                    check_a_, check_e_);                                                           \
        }                                                                                          \
    } while (0)

#define CHECK_NEAR(actual, expected, tolerance)                                                    \
    do {                                                                                           \
        double check_a_ = (double)(actual), check_e_ = (double)(expected);                         \
        check_count++;                                                                             \
        if (!(fabs(check_a_ - check_e_) <= (double)(tolerance))) {                                 \
            check_failures++;                                                                      \
            fprintf(stderr, "%s:%d: %s is %.9g, not %.9g\n", __FILE__, __LINE__, #actual,          \
                    check_a_, check_e_);                                                           \
        }                                                                                          \
    } while (0)

static inline bool check_text_equal(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

#define CHECK_TEXT(actual, expected)                                                               \
    do {                                                                                           \
        const char *check_a_ = (actual), *check_e_ = (expected);                                   \
        check_count++;                                                                             \
        if (!check_text_equal(check_a_, check_e_)) {                                               \
            check_failures++;                                                                      \
            fprintf(stderr, "%s:%d: %s is\n  %s\nnot\n  %s\n", __FILE__, __LINE__, #actual,        \
                    check_a_ ? check_a_ : "(null)", check_e_ ? check_e_ : "(null)");               \
        }                                                                                          \
    } while (0)

/* The text must contain the part. */
#define CHECK_HAS(actual, part)                                                                    \
    do {                                                                                           \
        const char *check_a_ = (actual), *check_p_ = (part);                                       \
        check_count++;                                                                             \
        if (!check_a_ || !strstr(check_a_, check_p_)) {                                            \
            check_failures++;                                                                      \
            fprintf(stderr, "%s:%d: %s is\n  %s\nwithout\n  %s\n", __FILE__, __LINE__, #actual,    \
                    check_a_ ? check_a_ : "(null)", check_p_);                                     \
        }                                                                                          \
    } while (0)

typedef struct check_test {
    const char *name;
    void (*run)(void);
} check_test;

/* clang-format off */
#define CHECK_TEST(function) {#function, function}
/* clang-format on */

static inline int check_main(int argc, char **argv, const check_test *tests, size_t count)
{
    const char *only = argc > 1 ? argv[1] : "";
    int failed_tests = 0;
    int run_tests = 0;
    for (size_t i = 0; i < count; i++) {
        if (!strstr(tests[i].name, only)) continue;
        int before = check_failures;
        tests[i].run();
        run_tests++;
        bool ok = check_failures == before;
        failed_tests += !ok;
        printf("%s %s\n", ok ? "ok  " : "FAIL", tests[i].name);
    }
    printf("%d tests, %d checks, %d failed\n", run_tests, check_count, check_failures);
    return failed_tests > 0 || run_tests == 0;
}

#define CHECK_MAIN(tests)                                                                          \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        return check_main(argc, argv, tests, sizeof(tests) / sizeof((tests)[0]));                  \
    }

#endif
