/*
 * threads_test.c: the threads of kernels: every unit is processed once, for any division, number of threads,
 * size of the work, and caller; nested calls; the control word of the floating-point unit; children of fork();
 * and CPU time if there are more threads than CPUs.
 */
#include "check.h"
#include "tensor/kernels/backends.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_UNITS = 5000, MAX_THREADS = 40 };
/* Under the thread sanitizer, a child of a process with threads must not start any. */
#if defined(__has_feature)
#define HAS_FEATURE(x) __has_feature(x)
#else
#define HAS_FEATURE(x) 0
#endif
#if defined(__SANITIZE_THREAD__) || HAS_FEATURE(thread_sanitizer)
enum { ROUNDS = 5000, CHILDREN_HAVE_THREADS = false };
#elif defined(__SANITIZE_ADDRESS__) || HAS_FEATURE(address_sanitizer)
enum { ROUNDS = 20000, CHILDREN_HAVE_THREADS = true };
#else
enum { ROUNDS = 100000, CHILDREN_HAVE_THREADS = true };
#endif

typedef struct tally {
    /* plain memory: the thread sanitizer detects rounds that are not ordered */
    unsigned char *done;
    _Atomic uint64_t seen; /* a bit for each thread */
} tally;

static void count_units(const void *args, int64_t begin, int64_t end)
{
    tally *t = (tally *)(uintptr_t)args;
    atomic_fetch_or(&t->seen, UINT64_C(1) << tdm_kernel_thread());
    for (int64_t i = begin; i < end; i++) t->done[i]++;
}

static void count_nested(const void *args, int64_t begin, int64_t end)
{
    const tally *t = args;
    int index = tdm_kernel_thread();
    for (int64_t i = begin; i < end; i++) {
        tally inner = {.done = t->done + i * 10};
        tdm__threads_spread(10, 1, count_units, &inner);
        if (atomic_load(&inner.seen) != UINT64_C(1) << index) t->done[i * 10] = 99;
    }
}

static bool all_are(const unsigned char *done, int64_t count, int value)
{
    for (int64_t i = 0; i < count; i++)
        if (done[i] != value) return false;
    return done[count] == 0;
}

static bool spread_once(int thread_count, int64_t count, int64_t grain)
{
    unsigned char *done = calloc(MAX_UNITS + 1, 1);
    tally t = {.done = done};
    int before = tdm_kernel_threads_set(thread_count);
    tdm__threads_spread(count, grain, count_units, &t);
    tdm_kernel_threads_set(before);
    bool fine = all_are(done, count, 1) && atomic_load(&t.seen) >> thread_count == 0;
    free(done);
    return fine;
}

static void every_unit_is_done_once(void)
{
    static const int64_t counts[] = {0, 1, 2, 3, 7, 64, 65, 1000, MAX_UNITS};
    static const int threads[] = {1, 2, 3, 5, 8, 17, MAX_THREADS, 2};
    for (size_t t = 0; t < sizeof(threads) / sizeof(threads[0]); t++)
        for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
            for (int64_t grain = 1; grain < 2000; grain = grain * 5 + 1)
                CHECK(spread_once(threads[t], counts[c], grain));
}

static void many_rounds_of_little_work(void)
{
    unsigned char done[65] = {0};
    tally t = {.done = done};
    int failures = 0, before = tdm_kernel_threads_set(4);
    for (int i = 0; i < ROUNDS; i++) {
        if (i % 1000 == 0) tdm_kernel_crowded_set(i / 1000 % 2);
        tdm_kernel_threads_set(2 + i % 7);
        tdm__threads_spread(64, 1 + i % 5, count_units, &t);
        failures += !all_are(done, 64, 1);
        memset(done, 0, sizeof(done));
    }
    tdm_kernel_crowded_set(false);
    tdm_kernel_threads_set(before);
    CHECK_INT(failures, 0);
    CHECK(atomic_load(&t.seen) != 1); /* helpers took part */
}

static void nested_calls_stay_on_their_thread(void)
{
    unsigned char done[MAX_UNITS + 1] = {0};
    tally t = {.done = done};
    int before = tdm_kernel_threads_set(4);
    for (int i = 0; i < 20; i++) {
        memset(done, 0, sizeof(done));
        tdm__threads_spread(MAX_UNITS / 10, 3, count_nested, &t);
        CHECK(all_are(done, MAX_UNITS, 1));
    }
    tdm_kernel_threads_set(before);
}

/* Small work stays on the calling thread, as one piece. */
static void note_call(const void *args, int64_t begin, int64_t end)
{
    int64_t *range = (int64_t *)(uintptr_t)args;
    range[0] += end - begin;
    range[1]++;
}

static void little_work_is_not_spread(void)
{
    int64_t range[2] = {0, 0};
    int before = tdm_kernel_threads_set(3);
    tdm_kernel_spread(1000, 10, note_call, range);
    tdm_kernel_threads_set(before);
    CHECK_INT(range[0], 1000);
    CHECK_INT(range[1], 1);
}

/* ---- callers, control words, children ----------------------------------------------------------- */

static void *call_from_a_thread(void *user)
{
    int *failures = user;
    for (int i = 0; i < 50; i++) *failures += !spread_once(3, 500, 1 + i % 7);
    return NULL;
}

static void each_caller_has_a_pool(void)
{
    pthread_t threads[6];
    int failures[6] = {0};
    for (int i = 0; i < 6; i++)
        CHECK_INT(pthread_create(&threads[i], NULL, call_from_a_thread, &failures[i]), 0);
    for (int i = 0; i < 6; i++) {
        pthread_join(threads[i], NULL);
        CHECK_INT(failures[i], 0);
    }
}

typedef struct words {
    uint64_t expected;
    _Atomic int wrong;
    _Atomic uint64_t seen;
} words;

static void compare_words(const void *args, int64_t begin, int64_t end)
{
    words *w = (words *)(uintptr_t)args;
    (void)begin;
    (void)end;
    atomic_fetch_or(&w->seen, UINT64_C(1) << tdm_kernel_thread());
    if (tdm__control_word() != w->expected) atomic_fetch_add(&w->wrong, 1);
    /* Gives the others time to join: this piece takes longer than waking a thread. */
    for (int i = 0; i < 50 && atomic_load(&w->seen) != 7; i++)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

static void helpers_compute_as_their_caller(void)
{
    tdm_kernel_mode outside = tdm_kernel_enter(3);
    words w = {.expected = tdm__control_word()};
    tdm__threads_spread(30, 1, compare_words, &w);
    CHECK_INT(atomic_load(&w.wrong), 0);
    CHECK_INT(atomic_load(&w.seen), 7);
    tdm_kernel_leave(&outside);
    CHECK(tdm__control_word() != w.expected);
    int before = tdm_kernel_threads_set(3);
    words plain = {.expected = tdm__control_word()};
    tdm__threads_spread(30, 1, compare_words, &plain);
    CHECK_INT(atomic_load(&plain.wrong), 0);
    tdm_kernel_threads_set(before);
}

/* True in `user`: children computed the expected result. */
static void *fork_and_spread(void *user)
{
    bool *is_fine = user, fine = spread_once(3, 100, 1); /* now the pool exists */
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60); /* a child that waits for threads that it does not have is ended by this */
        fine = fine && spread_once(3, 100, 1) && spread_once(5, 1000, 1);
        pid_t inner = fork();
        if (inner == 0) _exit(spread_once(4, 100, 1) ? 0 : 1);
        int status = -1;
        waitpid(inner, &status, 0);
        _exit(fine && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    *is_fine = WIFEXITED(status) && WEXITSTATUS(status) == 0 && spread_once(3, 100, 1);
    return NULL;
}

static void children_start_separate_threads(void)
{
    pthread_t thread;
    bool is_fine = false;
    if (!CHILDREN_HAVE_THREADS) return;
    for (int i = 0; i < 10; i++) {
        fork_and_spread(&is_fine);
        CHECK(is_fine);
    }
    CHECK_INT(pthread_create(&thread, NULL, fork_and_spread, &is_fine), 0);
    pthread_join(thread, NULL);
    CHECK(is_fine);
}

static void handle(int signal)
{
    (void)signal;
}

/* A helper must never receive a signal to the process, which would interrupt its system calls. */
static void helpers_take_no_signals(void)
{
    sigset_t usual, before;
    struct sigaction action = {.sa_handler = handle}, old;
    sigaction(SIGUSR1, &action, &old);
    CHECK(spread_once(4, 100, 1));
    sigemptyset(&usual);
    sigaddset(&usual, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &usual, &before);
    kill(getpid(), SIGUSR1);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    sigset_t pending;
    sigpending(&pending);
    CHECK(sigismember(&pending, SIGUSR1)); /* so no thread received it */
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    sigaction(SIGUSR1, &old, NULL);
}

/* ---- more threads than CPUs ---------------------------------------------------------------------- */

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void compute(const void *args, int64_t begin, int64_t end)
{
    float *x = (float *)(uintptr_t)args;
    for (int64_t i = begin; i < end; i++)
        for (int k = 0; k < 200; k++) x[i] = x[i] * 0.999f + 0.5f;
}

static double cpu_of_rounds(int thread_count)
{
    static float x[4096];
    int before = tdm_kernel_threads_set(thread_count);
    tdm__threads_spread(4096, 64, compute, x);
    double began_s = cpu_s();
    for (int i = 0; i < 300; i++) tdm__threads_spread(4096, 64, compute, x);
    double took_s = cpu_s() - began_s;
    tdm_kernel_threads_set(before);
    return took_s;
}

/* Eight threads on one CPU take about the CPU time of one: they do not spin while they wait. */
static void crowded_threads_do_not_spin(void)
{
    cpu_set_t all, one;
    if (!CHILDREN_HAVE_THREADS) return;
    sched_getaffinity(0, sizeof(all), &all);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
    for (int i = 0, kept = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &one) && kept++ > 0) CPU_CLR(i, &one);
    pid_t pid = fork(); /* so that new helpers inherit the mask */
    if (pid == 0) {
        sched_setaffinity(0, sizeof(one), &one);
        tdm_kernel_crowded_set(true);
        double alone_s = cpu_of_rounds(1), shared_s = cpu_of_rounds(8);
        if (shared_s > 2 * alone_s)
            fprintf(stderr, "8 threads took %.3f s of CPU time, one %.3f s\n", shared_s, alone_s);
        _exit(shared_s <= 2 * alone_s ? 0 : 1);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static const check_test tests[] = {
    CHECK_TEST(every_unit_is_done_once),
    CHECK_TEST(many_rounds_of_little_work),
    CHECK_TEST(nested_calls_stay_on_their_thread),
    CHECK_TEST(little_work_is_not_spread),
    CHECK_TEST(each_caller_has_a_pool),
    CHECK_TEST(helpers_compute_as_their_caller),
    CHECK_TEST(children_start_separate_threads),
    CHECK_TEST(helpers_take_no_signals),
    CHECK_TEST(crowded_threads_do_not_spin),
};

CHECK_MAIN(tests)
