/*
 * bench_bound.c: measures how fast an all-reduce on one host could be, if only memory accesses took time.
 *
 * Each rank is represented by a thread with its own buffer. A pass has two halves: each thread adds
 * its share of all buffers into its own buffer, reading each once; then it copies the shares of the
 * others into its own buffer. Between the halves the threads wait for each other, which is not
 * counted. If each thread has a CPU, a half takes as long as its slowest thread; if threads share
 * CPUs, it takes from the first start to the last end.
 *
 * Passes alternate between copies through the cache and past it; the faster one counts.
 */
#include "bench_bound.h"

#include <tandem/comm.h>
#include <tandem/os.h>

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

/* The loops use the widest vectors of the CPU, as those of the collectives do. */
#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__) &&                 \
    !defined(__SANITIZE_ADDRESS__)
#define VECTORS __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VECTORS
#endif

enum { HALVES = 2, MIN_PASSES = 3, MAX_THREADS = 1024 };

typedef struct bound bound;

typedef struct worker {
    bound *b;
    int index;
    pthread_t thread;
    double begin_s[HALVES], end_s[HALVES]; /* of the current pass */
} worker;

struct bound {
    int count;
    size_t elements; /* of each buffer */
    float *memory;   /* the buffers, one after another */
    bool crowded;    /* more threads than CPUs */
    bool stream;
    worker *workers;
    pthread_mutex_t lock; /* barrier of the threads: */
    pthread_cond_t moved;
    int arrived;
    unsigned generation;
    bool stop;
};

/* Waits until all threads have arrived. False if they are to end. */
static bool bound_wait_all(bound *b)
{
    pthread_mutex_lock(&b->lock);
    unsigned mine = b->generation;
    if (++b->arrived == b->count) {
        b->arrived = 0;
        b->generation++;
        pthread_cond_broadcast(&b->moved);
    }
    while (b->generation == mine && !b->stop) pthread_cond_wait(&b->moved, &b->lock);
    bool stop = b->stop;
    pthread_mutex_unlock(&b->lock);
    return !stop;
}

static float *bound_buffer(const bound *b, int buffer, size_t element)
{
    return b->memory + (size_t)buffer * b->elements + element;
}

/* sum[i] = left[i] + right[i]; `sum` may be `left`. */
VECTORS static void floats_add(float *sum, const float *left, const float *right, size_t count)
{
#ifndef __clang__
#pragma GCC ivdep
#endif
    for (size_t i = 0; i < count; i++) sum[i] = left[i] + right[i];
}

/* Copies, past the cache if the CPU can. */
static void floats_stream(float *out, const float *in, size_t count)
{
#ifdef __SSE2__
    size_t i = 0;
    for (; i < count && (uintptr_t)(out + i) % sizeof(__m128) != 0; i++) out[i] = in[i];
    for (; i + 4 <= count; i += 4) _mm_stream_ps(out + i, _mm_loadu_ps(in + i));
    for (; i < count; i++) out[i] = in[i];
    _mm_sfence();
#else
    memcpy(out, in, count * sizeof(*out));
#endif
}

/* Adds this thread's share of all buffers, in blocks that stay in the cache. */
static void bound_add_share(const bound *b, int mine)
{
    enum { BLOCK = 2048 };
    tdm_extent share = tdm_group_slice(b->elements, b->count, mine);
    for (size_t at = 0; at < share.count; at += BLOCK) {
        size_t count = share.count - at < BLOCK ? share.count - at : BLOCK;
        float *sum = bound_buffer(b, mine, share.first + at);
        for (int i = 1; i < b->count; i++)
            floats_add(sum, sum, bound_buffer(b, (mine + i) % b->count, share.first + at), count);
    }
}

static void bound_copy_rest(const bound *b, int mine)
{
    for (int i = 1; i < b->count; i++) {
        int from = (mine + i) % b->count;
        tdm_extent share = tdm_group_slice(b->elements, b->count, from);
        float *out = bound_buffer(b, mine, share.first);
        const float *in = bound_buffer(b, from, share.first);
        if (b->stream)
            floats_stream(out, in, share.count);
        else
            memcpy(out, in, share.count * sizeof(*out));
    }
}

/* Runs both halves of a pass. False if the threads are to end. */
static bool bound_run_pass(worker *w)
{
    for (int half = 0; half < HALVES; half++) {
        if (!bound_wait_all(w->b)) return false;
        w->begin_s[half] = tdm_clock_s();
        if (half == 0)
            bound_add_share(w->b, w->index);
        else
            bound_copy_rest(w->b, w->index);
        w->end_s[half] = tdm_clock_s();
    }
    return bound_wait_all(w->b);
}

static void *bound_work(void *user)
{
    worker *w = user;
    while (bound_run_pass(w)) continue;
    return NULL;
}

static double bound_half_seconds(const bound *b, int half)
{
    double first = b->workers[0].begin_s[half], last = b->workers[0].end_s[half], longest = 0;
    for (int i = 0; i < b->count; i++) {
        const worker *w = &b->workers[i];
        if (w->begin_s[half] < first) first = w->begin_s[half];
        if (w->end_s[half] > last) last = w->end_s[half];
        if (w->end_s[half] - w->begin_s[half] > longest)
            longest = w->end_s[half] - w->begin_s[half];
    }
    return b->crowded ? last - first : longest;
}

/* The calling thread is worker 0. After a pass the others wait at the barrier of the next one,
 * which worker 0 opens, so it may access the shared fields without synchronisation in between. */
static double bound_measure(bound *b, double seconds)
{
    double min[2] = {0, 0}, end_s = tdm_clock_s() + seconds;
    for (int i = 0; i < 2 * MIN_PASSES || tdm_clock_s() < end_s; i++) {
        b->stream = i % 2;
        bound_run_pass(&b->workers[0]);
        double now = bound_half_seconds(b, 0) + bound_half_seconds(b, 1);
        if (i < 2 || now < min[i % 2]) min[i % 2] = now;
    }
    return min[0] < min[1] ? min[0] : min[1];
}

/* Ends the workers [1, started). */
static void bound_end_workers(bound *b, int started)
{
    pthread_mutex_lock(&b->lock);
    b->stop = true;
    pthread_cond_broadcast(&b->moved);
    pthread_mutex_unlock(&b->lock);
    for (int i = 1; i < started; i++) pthread_join(b->workers[i].thread, NULL);
}

static tdm_status bound_run(bound *b, double seconds, double *out_s, tdm_error *err)
{
    for (int i = 0; i < b->count; i++) b->workers[i] = (worker){.b = b, .index = i};
    int started = 1;
    while (started < b->count &&
           pthread_create(&b->workers[started].thread, NULL, bound_work, &b->workers[started]) == 0)
        started++;
    double min = started == b->count ? bound_measure(b, seconds) : 0;
    bound_end_workers(b, started);
    if (started < b->count)
        return tdm_fail(err, TDM_ERR_SYSTEM, "cannot start thread %d of %d", started + 1, b->count);
    *out_s = min;
    return TDM_OK;
}

tdm_status bench_memory_bound(size_t bytes, int thread_count, double seconds, double *out_s,
                              tdm_error *err)
{
    if (thread_count < 1 || thread_count > MAX_THREADS)
        return tdm_fail(err, TDM_ERR_RANGE,
                        "invalid number of threads for the memory bound: must be from 1 to %d, "
                        "not %d",
                        MAX_THREADS, thread_count);
    if (bytes > SIZE_MAX / 2 / (size_t)thread_count)
        return tdm_fail(err, TDM_ERR_RANGE,
                        "%zu bytes for each of %d threads exceed the address space", bytes,
                        thread_count);

    cpu_set_t usable;
    bool is_known = sched_getaffinity(0, sizeof(usable), &usable) == 0;
    bound b = {.count = thread_count,
               .elements = bytes / sizeof(float),
               .crowded = is_known && thread_count > CPU_COUNT(&usable),
               .lock = PTHREAD_MUTEX_INITIALIZER,
               .moved = PTHREAD_COND_INITIALIZER};

    tdm_pages pages = {0};
    b.workers = calloc((size_t)thread_count, sizeof(*b.workers));
    tdm_status status = b.workers
                            ? tdm_pages_map(bytes * (size_t)thread_count + 1, false, &pages, err)
                            : tdm_fail(err, TDM_ERR_NO_MEMORY, "out of memory for %d threads",
                                       thread_count);
    if (status == TDM_OK) {
        memset(pages.data, 0, pages.bytes); /* touches every page */
        b.memory = pages.data;
        status = bound_run(&b, seconds, out_s, err);
        tdm_pages_unmap(&pages);
    }

    free(b.workers);
    return status;
}
