/*
 * check.c: the test harness behind check.h.
 *
 * Cases run one after the other in the main thread; one struct has the state of the running case.
 */
#include "check.h"

#include <errno.h>
#include <ftw.h>
#include <setjmp.h>
#include <stddef.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

_Atomic int check_failures;
_Atomic int check_count;

enum { STACK_BYTES = 8 << 20, PATHS = 8, PATH_BYTES = 512 };

static struct {
    bool running; /* a case, which REQUIRE can stop */
    pid_t pid;
    jmp_buf stop;
    const char *frame; /* of the function that runs the case */
    char dir[64];      /* empty: there is none */
    pid_t dir_owner;
    bool dir_is_shared; /* by all cases */
} current;

/* ---- checks ------------------------------------------------------------------------------------ */

bool check_fail(const char *file, int line, const char *condition)
{
    check_failures++;
    fprintf(stderr, "%s:%d: not true: %s\n", file, line, condition);
    return false;
}

bool check_int(long long actual, long long expected, const char *file, int line, const char *what)
{
    check_count++;
    if (actual == expected) return true;
    check_failures++;
    fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", file, line, what, actual, expected);
    return false;
}

bool check_near(double actual, double expected, double tolerance, const char *file, int line,
                const char *what)
{
    check_count++;
    if (fabs(actual - expected) <= tolerance) return true;
    check_failures++;
    fprintf(stderr, "%s:%d: %s is %.9g, not %.9g\n", file, line, what, actual, expected);
    return false;
}

bool check_text_equal(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

bool check_text(const char *actual, const char *expected, const char *file, int line,
                const char *what)
{
    check_count++;
    if (check_text_equal(actual, expected)) return true;
    check_failures++;
    fprintf(stderr, "%s:%d: %s is\n  %s\nnot\n  %s\n", file, line, what, actual ? actual : "(null)",
            expected ? expected : "(null)");
    return false;
}

bool check_has(const char *actual, const char *part, const char *file, int line, const char *what)
{
    check_count++;
    if (actual && strstr(actual, part)) return true;
    check_failures++;
    fprintf(stderr, "%s:%d: %s is\n  %s\nwithout\n  %s\n", file, line, what,
            actual ? actual : "(null)", part);
    return false;
}

void check_stop(void)
{
    /* Threads and simulated ranks have other stacks, far from the stack of the case. */
    const char *here = __builtin_frame_address(0);
    ptrdiff_t distance = current.frame - here;
    bool own_stack = distance >= 0 && distance < STACK_BYTES;
    if (current.running && current.pid == getpid() && own_stack) longjmp(current.stop, 1);
    fflush(NULL);
    _Exit(1);
}

/* ---- fixtures ---------------------------------------------------------------------------------- */

static void check_dir_make(const char *parent)
{
    if (current.dir[0]) return;
    snprintf(current.dir, sizeof(current.dir), "%s/tandem-test-XXXXXX", parent);
    if (!mkdtemp(current.dir)) {
        fprintf(stderr, "cannot create the directory %s: %s\n", current.dir, strerror(errno));
        current.dir[0] = 0;
        check_failures++;
        check_stop();
    }
    current.dir_owner = getpid();
    current.dir_is_shared = !current.running;
}

const char *check_dir(void)
{
    check_dir_make("/tmp");
    return current.dir;
}

const char *check_memory_dir(void)
{
    check_dir_make(access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    return current.dir;
}

static int check_remove_one(const char *path, const struct stat *about, int type, struct FTW *place)
{
    (void)about;
    (void)type;
    (void)place;
    return remove(path) == 0 || errno == ENOENT ? 0 : -1;
}

void check_dir_reset(void)
{
    if (!current.dir[0] || current.dir_owner != getpid()) return;
    if (nftw(current.dir, check_remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0) {
        fprintf(stderr, "cannot remove the directory %s: %s\n", current.dir, strerror(errno));
        check_failures++;
    }
    current.dir[0] = 0;
}

const char *check_path(const char *name)
{
    static char paths[PATHS][PATH_BYTES];
    static unsigned next;
    char *path = paths[next++ % PATHS];
    snprintf(path, PATH_BYTES, "%s/%s", check_dir(), name);
    return path;
}

const char *check_write(const char *name, const char *text)
{
    const char *path = check_path(name);
    FILE *file = fopen(path, "w");
    bool written = file && fputs(text, file) >= 0;
    if (file) written = fclose(file) == 0 && written;
    if (written) return path;
    fprintf(stderr, "cannot write %s: %s\n", path, strerror(errno));
    check_failures++;
    check_stop();
}

double check_now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void check_sleep_s(double seconds)
{
    struct timespec left = {.tv_sec = (time_t)seconds};
    left.tv_nsec = (long)((seconds - (double)left.tv_sec) * 1e9);
    while (nanosleep(&left, &left) != 0 && errno == EINTR) continue;
}

bool check_wait(bool (*done)(void *user), void *user, double seconds)
{
    double until_s = check_now_s() + seconds;
    while (!done(user)) {
        if (check_now_s() >= until_s) return done(user);
        check_sleep_s(0.001);
    }
    return true;
}

/* ---- running ----------------------------------------------------------------------------------- */

/* In a separate function, because longjmp() makes changed locals of its caller undefined. */
static void check_run_guarded(void (*set_up)(void), void (*run)(void))
{
    current.frame = __builtin_frame_address(0);
    current.pid = getpid();
    current.running = true;
    if (setjmp(current.stop) == 0) {
        if (set_up) set_up();
        run();
    }
    current.running = false;
}

static bool check_run_case(const check_suite *suite, const check_test *test)
{
    int before = check_failures;

    check_run_guarded(suite->set_up, test->run);
    if (suite->tear_down) check_run_guarded(NULL, suite->tear_down);
    if (!current.dir_is_shared) check_dir_reset();

    bool ok = check_failures == before;
    printf("%s %s\n", ok ? "ok  " : "FAIL", test->name);
    return ok;
}

int check_main_suites(int argc, char **argv, const check_suite *const *suites, size_t count)
{
    const char *only = argc > 1 ? argv[1] : "";
    int failed_tests = 0, run_tests = 0;
    for (size_t s = 0; s < count; s++) {
        for (size_t i = 0; i < suites[s]->count; i++) {
            if (!strstr(suites[s]->tests[i].name, only)) continue;
            run_tests++;
            failed_tests += !check_run_case(suites[s], &suites[s]->tests[i]);
        }
    }

    check_dir_reset();
    printf("%d tests, %d checks, %d failed\n", run_tests, check_count, check_failures);
    return check_failures > 0 || failed_tests > 0 || run_tests == 0;
}

int check_main(int argc, char **argv, const check_test *tests, size_t count)
{
    const check_suite suite = {.tests = tests, .count = count};
    return check_main_suites(argc, argv, (const check_suite *const[]){&suite}, 1);
}
