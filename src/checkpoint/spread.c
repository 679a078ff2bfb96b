/*
 * spread.c: independent pieces of work over a few threads.
 *
 * Pieces are taken in order, by whoever is free. Threads are started for one call and end with it: what is
 * spread here goes over megabytes, beside which that is nothing. Below a few megabytes there are none.
 * Nothing can fail: where the system gives no threads, the calling one does it all.
 */
#include "checkpoint/internal.h"

#include <pthread.h>
#include <stdatomic.h>

enum { MAX_THREADS = 8, BYTES_FOR_A_THREAD = 4 << 20 };

typedef struct pieces {
    _Atomic size_t next;
    size_t count;
    tdm__work_fn work;
    void *user;
} pieces;

static void *take(void *argument)
{
    pieces *p = argument;
    for (size_t i = atomic_fetch_add(&p->next, 1); i < p->count;
         i = atomic_fetch_add(&p->next, 1)) {
        p->work(p->user, i);
    }
    return NULL;
}

static int helpers_for(size_t count, uint64_t bytes)
{
    if (count < 2 || bytes < 2 * (uint64_t)BYTES_FOR_A_THREAD) return 0;
    tdm_cpu_info cpu;
    tdm_os_cpu_info(&cpu);
    uint64_t max = bytes / BYTES_FOR_A_THREAD;
    if (max > count) max = count;
    if (max > (uint64_t)cpu.usable_count) max = (uint64_t)cpu.usable_count;
    if (max > MAX_THREADS) max = MAX_THREADS;
    return max > 1 ? (int)max - 1 : 0;
}

void tdm__spread(size_t count, uint64_t bytes, tdm__work_fn work, void *user)
{
    pieces p = {.count = count, .work = work, .user = user};
    pthread_t threads[MAX_THREADS];
    int wanted = helpers_for(count, bytes), started = 0;
    while (started < wanted && pthread_create(&threads[started], NULL, take, &p) == 0) started++;
    take(&p);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
}
