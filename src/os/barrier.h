/*
 * barrier.h: where the threads of a team meet.
 *
 * Waiting spins for a moment, because the others are usually just about to arrive, and then sleeps
 * in the kernel (futex), because sometimes they are not. With more threads than processors it does
 * not spin at all. Works between processes too, when it lies in shared memory.
 */
#ifndef TANDEM_OS_BARRIER_H
#define TANDEM_OS_BARRIER_H

#include <stdatomic.h>
#include <stdint.h>

typedef struct tdm_barrier {
    _Atomic uint32_t arrived;
    _Atomic uint32_t round; /* the futex word: changes when all have arrived */
    uint32_t party_count;
    uint32_t spin_count;
} tdm_barrier;

void tdm_barrier_init(tdm_barrier *barrier, uint32_t party_count);
/* Returns when all parties have called it. What they wrote before is visible to all after. */
void tdm_barrier_wait(tdm_barrier *barrier);

#endif
