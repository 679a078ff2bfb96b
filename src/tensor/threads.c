/*
 * threads.c: the threads of kernels.
 *
 * A thread that calls kernels with more than one thread has a pool: helpers that are started on
 * first use, sleep between rounds and end with their caller. A round is one call of
 * tdm__threads_spread. Its units are divided into pieces, and each thread has a range of them, so
 * that a thread processes the same numbers in successive rounds; a thread that has finished its
 * range takes pieces from the ends of the others. A helper joins a round while the round is open,
 * and the caller waits at its end only for helpers that have joined: a helper that has no CPU at
 * that moment costs nothing, since the others process its pieces. Callers of spread guarantee that
 * the bits do not depend on which thread computes a piece.
 *
 * Waiting: a few microseconds of spinning, then a futex; no spinning if there are more threads than
 * CPUs (tdm_kernel_crowded_set). After the first round nothing here allocates. A child of fork()
 * has no helpers: it drops the pool and creates a new one when needed.
 *
 * Invariants: `round_*` fields, `ranges` and `workers` change only while `gate` is 0, that is,
 * between rounds; gate is OPEN while helpers may join, plus the number of helpers that have joined.
 */
#include "tensor/kernels/backends.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OPEN 0x80000000u    /* in gate: helpers may join */
#define WAITING 0x40000000u /* in gate: the caller sleeps until the last helper has left */
#define INSIDE 0x3fffffffu  /* in gate: the number of helpers that have joined */
enum { LINE_BYTES = 64, SPIN_NS = 20000, PAUSES = 16, MAX_PIECES = 1 << 30 };

/* Pieces that are not taken yet: the next one in the lower half, the end in the upper half. */
typedef struct range {
    _Alignas(LINE_BYTES) _Atomic uint64_t left;
} range;

typedef struct pool pool;

typedef struct worker {
    pool *pool;
    int index; /* as tdm_kernel_thread; the caller is 0 */
    pthread_t thread;
} worker;

struct pool {
    _Alignas(LINE_BYTES) _Atomic uint32_t round; /* a futex: incremented for each round */
    _Atomic uint32_t sleepers;                   /* helpers that sleep on it, or are about to */
    _Atomic bool ends;
    _Alignas(LINE_BYTES) _Atomic uint32_t gate; /* a futex */
    _Alignas(LINE_BYTES) tdm_kernel_range_fn round_run;
    const void *round_args;
    int64_t round_count, round_grain;
    uint64_t round_control; /* of the caller's floating-point unit */
    int round_threads;
    int capacity;     /* of ranges and workers, including the caller */
    int helper_count; /* number of started helpers */
    bool is_short;    /* no more threads can be created */
    unsigned generation;
    range *ranges;
    worker **workers;
};

/* State of each thread. */
static _Thread_local struct {
    int thread_count; /* maximum for kernels; 0 means 1 */
    int index;
    bool is_inside; /* inside a round: nested calls run on this thread only */
    pool *pool;
} pool_here;

static pthread_once_t pool_once = PTHREAD_ONCE_INIT;
static pthread_key_t pool_key;
static bool pool_has_key;
static atomic_uint pool_forks; /* number of forks since the first process */
static atomic_bool pool_crowded;

/* ---- waiting ---------------------------------------------------------------------------------- */

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int count)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Spins until the bits of `mask` in a word are (or are not) `value`, or the time for spinning is
 * over. */
static void spin_until(_Atomic uint32_t *word, uint32_t mask, bool are, uint32_t value)
{
    if (atomic_load_explicit(&pool_crowded, memory_order_relaxed)) return;
    uint64_t until_ns = tdm_clock_ns() + SPIN_NS;
    do {
        for (int i = 0; i < PAUSES; i++) {
            if (((atomic_load_explicit(word, memory_order_acquire) & mask) == value) == are) return;
            pause_briefly();
        }
    } while (tdm_clock_ns() < until_ns);
}

/* ---- pieces ----------------------------------------------------------------------------------- */

static uint64_t range_of(uint32_t begin, uint32_t end)
{
    return (uint64_t)end << 32 | begin;
}

/* Takes the first piece of a range, or the last one; false: there is none. */
static bool range_take(range *r, bool last, uint32_t *out)
{
    uint64_t left = atomic_load_explicit(&r->left, memory_order_relaxed), rest;
    do {
        uint32_t begin = (uint32_t)left, end = (uint32_t)(left >> 32);
        if (begin >= end) return false;
        *out = last ? end - 1 : begin;
        rest = last ? range_of(begin, end - 1) : range_of(begin + 1, end);
    } while (!atomic_compare_exchange_weak_explicit(&r->left, &left, rest, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

static void piece_run(const pool *p, uint32_t piece)
{
    int64_t begin = piece * p->round_grain, end = begin + p->round_grain;
    p->round_run(p->round_args, begin, end < p->round_count ? end : p->round_count);
}

/* The work of a thread in a round: its own range, then pieces that the others have not begun. */
static void round_work(const pool *p, int index)
{
    uint32_t piece;
    pool_here.is_inside = true;
    while (range_take(&p->ranges[index], false, &piece)) piece_run(p, piece);
    for (int i = 1; i < p->round_threads; i++) {
        int other = (index + i) % p->round_threads;
        while (range_take(&p->ranges[other], true, &piece)) piece_run(p, piece);
    }
    pool_here.is_inside = false;
}

/* ---- helpers ---------------------------------------------------------------------------------- */

static bool gate_join(pool *p)
{
    uint32_t gate = atomic_load_explicit(&p->gate, memory_order_relaxed);
    do {
        if (!(gate & OPEN)) return false;
    } while (!atomic_compare_exchange_weak_explicit(&p->gate, &gate, gate + 1, memory_order_acquire,
                                                    memory_order_relaxed));
    return true;
}

static void gate_leave(pool *p)
{
    uint32_t gate = atomic_fetch_sub_explicit(&p->gate, 1, memory_order_release);
    if ((gate & WAITING) && (gate & INSIDE) == 1) futex_wake(&p->gate, 1);
}

/* Waits until there is another round than `seen`. */
static void round_await(pool *p, uint32_t seen)
{
    spin_until(&p->round, UINT32_MAX, false, seen);
    if (atomic_load_explicit(&p->round, memory_order_acquire) != seen) return;
    atomic_fetch_add(&p->sleepers, 1); /* ordered with the caller, which increments round and then
                                        * reads this */
    while (atomic_load(&p->round) == seen) futex_wait(&p->round, seen);
    atomic_fetch_sub(&p->sleepers, 1);
}

static void *helper_main(void *user)
{
    worker *w = user;
    pool *p = w->pool;
    uint32_t seen = 0;
    pool_here.index = w->index;
    for (;;) {
        round_await(p, seen);
        seen = atomic_load_explicit(&p->round, memory_order_acquire);
        if (atomic_load(&p->ends)) return NULL;
        if (!gate_join(p)) continue;
        if (w->index < p->round_threads) {
            if (tdm__control_word() != p->round_control) tdm__control_set(p->round_control);
            round_work(p, w->index);
        }
        gate_leave(p);
    }
}

/* Blocks all signals except those raised by a thread's own instructions: other threads handle
 * them. */
static void block_signals(sigset_t *before)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
    sigset_t all;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) sigdelset(&all, own[i]);
    pthread_sigmask(SIG_BLOCK, &all, before);
}

static bool helper_start(pool *p, int index)
{
    worker *w = calloc(1, sizeof(*w));
    if (!w) return false;
    *w = (worker){.pool = p, .index = index};
    sigset_t before;
    block_signals(&before);
    bool started = pthread_create(&w->thread, NULL, helper_main, w) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!started) {
        free(w);
        return false;
    }
    (void)pthread_setname_np(w->thread, "tandem-kernel");
    p->workers[index] = w;
    return true;
}

/* ---- pools ------------------------------------------------------------------------------------ */

static void pool_free(pool *p)
{
    for (int i = 1; i <= p->helper_count; i++) free(p->workers[i]);
    free(p->workers);
    free(p->ranges);
    free(p);
}

/* Runs when the thread that owns the pool ends. */
static void pool_end(void *user)
{
    pool *p = user;
    pool_here.pool = NULL;
    if (p->generation == atomic_load(&pool_forks)) {
        atomic_store(&p->ends, true);
        atomic_fetch_add(&p->round, 1);
        futex_wake(&p->round, INT32_MAX);
        for (int i = 1; i <= p->helper_count; i++) pthread_join(p->workers[i]->thread, NULL);
    }
    pool_free(p);
}

static void note_fork(void)
{
    atomic_fetch_add(&pool_forks, 1);
}

static void init_once(void)
{
    pool_has_key = pthread_key_create(&pool_key, pool_end) == 0 &&
                   pthread_atfork(NULL, NULL, note_fork) == 0;
}

static pool *pool_of_this_thread(void)
{
    pool *p = pool_here.pool;
    if (p && p->generation == atomic_load_explicit(&pool_forks, memory_order_relaxed)) return p;
    pthread_once(&pool_once, init_once);
    if (!pool_has_key) return NULL;
    if (p) {
        pthread_setspecific(pool_key, NULL);
        pool_free(p); /* its helpers belong to the parent process */
    }
    p = aligned_alloc(LINE_BYTES, (sizeof(*p) + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES);
    if (p) {
        *p = (pool){.generation = atomic_load(&pool_forks)};
        if (pthread_setspecific(pool_key, p) != 0) {
            free(p);
            p = NULL;
        }
    }
    pool_here.pool = p;
    return p;
}

/* Allocates for that many threads; false: out of memory. */
static bool pool_reserve(pool *p, int thread_count)
{
    if (thread_count <= p->capacity) return true;
    range *ranges = aligned_alloc(LINE_BYTES, (size_t)thread_count * sizeof(*ranges));
    worker **workers = calloc((size_t)thread_count, sizeof(*workers));
    if (!ranges || !workers) {
        free(ranges);
        free(workers);
        return false;
    }
    for (int i = 0; i < thread_count; i++) atomic_init(&ranges[i].left, 0);
    for (int i = 1; i <= p->helper_count; i++) workers[i] = p->workers[i];
    free(p->ranges);
    free(p->workers);
    p->ranges = ranges;
    p->workers = workers;
    p->capacity = thread_count;
    return true;
}

/* Starts missing helpers; returns the number of threads, including the caller. */
static int pool_grow(pool *p, int thread_count)
{
    if (thread_count > p->helper_count + 1 && !p->is_short) {
        p->is_short = !pool_reserve(p, thread_count);
        while (!p->is_short && p->helper_count + 1 < thread_count) {
            p->is_short = !helper_start(p, p->helper_count + 1);
            p->helper_count += !p->is_short;
        }
    }
    return thread_count < p->helper_count + 1 ? thread_count : p->helper_count + 1;
}

/* ---- rounds ----------------------------------------------------------------------------------- */

static void round_open(pool *p)
{
    atomic_store_explicit(&p->gate, OPEN, memory_order_release);
    atomic_fetch_add(&p->round, 1);
    if (atomic_load(&p->sleepers) == 0) return;
    /* Any helper may wake up first: if some have no part in this round, all are woken. */
    bool all = p->helper_count + 1 > p->round_threads;
    futex_wake(&p->round, all ? INT32_MAX : p->round_threads - 1);
}

/* Closes the round; waits for the helpers that have joined. */
static void round_close(pool *p)
{
    uint32_t gate = atomic_fetch_and_explicit(&p->gate, ~OPEN, memory_order_acq_rel) & ~OPEN;
    if (gate != 0) {
        spin_until(&p->gate, INSIDE, true, 0);
        gate = atomic_load_explicit(&p->gate, memory_order_acquire);
    }
    while (gate & INSIDE) {
        if (p->generation != atomic_load(&pool_forks))
            break; /* a child of fork(): they do not exist here */
        if (!(gate & WAITING)) {
            if (!atomic_compare_exchange_weak_explicit(&p->gate, &gate, gate | WAITING,
                                                       memory_order_acquire, memory_order_acquire))
                continue;
            gate |= WAITING;
        }
        futex_wait(&p->gate, gate);
        gate = atomic_load_explicit(&p->gate, memory_order_acquire);
    }
    atomic_store_explicit(&p->gate, 0, memory_order_relaxed);
}

void tdm__threads_spread(int64_t count, int64_t grain, tdm_kernel_range_fn run, const void *args)
{
    int thread_count = tdm__kernel_threads();
    while ((count + grain - 1) / grain > MAX_PIECES) grain *= 2;
    int64_t pieces = (count + grain - 1) / grain;
    if (pieces < thread_count) thread_count = (int)pieces;
    pool *p = thread_count > 1 && !pool_here.is_inside ? pool_of_this_thread() : NULL;
    if (p) thread_count = pool_grow(p, thread_count);
    if (!p || thread_count < 2) {
        run(args, 0, count);
        return;
    }
    p->round_run = run;
    p->round_args = args;
    p->round_count = count;
    p->round_grain = grain;
    p->round_control = tdm__control_word();
    p->round_threads = thread_count;
    for (int i = 0; i < thread_count; i++)
        atomic_store_explicit(&p->ranges[i].left,
                              range_of((uint32_t)(pieces * i / thread_count),
                                       (uint32_t)(pieces * (i + 1) / thread_count)),
                              memory_order_relaxed);
    round_open(p);
    round_work(p, 0);
    round_close(p);
}

void tdm_kernel_spread(int64_t count, int64_t unit_cost, tdm_kernel_range_fn run, const void *args)
{
    if (!tdm__threads_pays(count, unit_cost))
        run(args, 0, count);
    else
        tdm__threads_spread(count, tdm__threads_grain(unit_cost), run, args);
}

/* ---- number of threads and mode --------------------------------------------------------------- */

int tdm__kernel_threads(void)
{
    return pool_here.thread_count > 1 ? pool_here.thread_count : 1;
}

int tdm_kernel_thread(void)
{
    return pool_here.index;
}

void tdm_kernel_crowded_set(bool is_crowded)
{
    atomic_store(&pool_crowded, is_crowded);
}

int tdm_kernel_threads_set(int thread_count)
{
    int before = tdm__kernel_threads();
    pool_here.thread_count = thread_count;
#ifdef TDM__WITH_ONEDNN
    tdm__onednn_threads_set(thread_count);
#endif
    return before;
}

uint64_t tdm_kernel_flush_enter(void)
{
    uint64_t control = tdm__control_word();
    if ((control & TDM__CONTROL_FLUSH) != TDM__CONTROL_FLUSH)
        tdm__control_set(control | TDM__CONTROL_FLUSH);
    return control;
}

void tdm_kernel_flush_leave(uint64_t control)
{
    if (tdm__control_word() != control) tdm__control_set(control);
}

tdm_kernel_mode tdm_kernel_enter(int thread_count)
{
    tdm_kernel_mode before = {.thread_count = tdm_kernel_threads_set(thread_count),
                              .control = tdm_kernel_flush_enter()};
#ifdef TDM__WITH_ONEDNN
    tdm__onednn_threads_set(1);
#endif
    return before;
}

/* Helpers copy the control word of their caller in each round; the vendor's threads are set
 * here. */
tdm_kernel_mode tdm_kernel_enter_vendor(int thread_count)
{
    tdm_kernel_mode before = tdm_kernel_enter(thread_count);
    before.is_vendor = thread_count > 1;
#ifdef TDM__WITH_ONEDNN
    tdm__onednn_threads_set(thread_count);
    if (before.is_vendor) tdm__onednn_control_set(tdm__control_word());
#endif
    return before;
}

void tdm_kernel_leave(const tdm_kernel_mode *before)
{
    tdm_kernel_flush_leave(before->control);
#ifdef TDM__WITH_ONEDNN
    if (before->is_vendor) tdm__onednn_control_set(before->control);
#endif
    tdm_kernel_threads_set(before->thread_count);
}
