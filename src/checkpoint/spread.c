/*
 * spread.c: executes independent pieces of work on a few threads.
 *
 * Each thread takes the next piece when it is free. Threads are started for one call and end with
 * it: the work is on megabytes, so their start costs little in comparison. Below a few megabytes,
 * none are started. It cannot fail: if the system cannot start threads, the calling thread does
 * everything.
 */
#include "checkpoint/internal.h"
#include "os/os.h"

#include <pthread.h>
#include <stdatomic.h>

enum { MAX_THREADS = 8, BYTES_FOR_A_THREAD = 4 << 20 };

typedef struct pieces {
    _Atomic size_t next;
    size_t count;
    tdm__work_fn work;
    void *user;
} pieces;

static void *pieces_take(void *argument)
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
    while (started < wanted && pthread_create(&threads[started], NULL, pieces_take, &p) == 0)
        started++;
    pieces_take(&p);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
}
