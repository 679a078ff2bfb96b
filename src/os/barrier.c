/*
 * barrier.c: a central barrier: the last to arrive starts the next round and wakes the sleepers.
 * The counter is reset before the round changes, and nobody can arrive for the next round before
 * having seen the change, so one counter is enough.
 */
#include "os/barrier.h"

#include <tandem/os.h>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SPIN_COUNT = 4000 };

void tdm_barrier_init(tdm_barrier *barrier, uint32_t party_count)
{
    tdm_cpu_info cpu;
    tdm_os_cpu_info(&cpu);
    atomic_init(&barrier->arrived, 0);
    atomic_init(&barrier->round, 0);
    barrier->party_count = party_count;
    barrier->spin_count = party_count <= (uint32_t)cpu.usable_count ? SPIN_COUNT : 0;
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void tdm_barrier_wait(tdm_barrier *barrier)
{
    uint32_t round = atomic_load_explicit(&barrier->round, memory_order_acquire);
    uint32_t before = atomic_fetch_add_explicit(&barrier->arrived, 1, memory_order_acq_rel);
    if (before + 1 == barrier->party_count) {
        atomic_store_explicit(&barrier->arrived, 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&barrier->round, 1, memory_order_release);
        if (barrier->party_count > 1)
            syscall(SYS_futex, &barrier->round, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
        return;
    }
    for (uint32_t i = 0; i < barrier->spin_count; i++) {
        if (atomic_load_explicit(&barrier->round, memory_order_acquire) != round) return;
        relax();
    }
    while (atomic_load_explicit(&barrier->round, memory_order_acquire) == round)
        syscall(SYS_futex, &barrier->round, FUTEX_WAIT, round, NULL, NULL, 0);
}
