/*
 * world.h: ranks as real processes, for tests that kill, stop or count them.
 *
 * A rank is a child of the test. It runs a function of the test, or the program of the test again (world_exec),
 * with its rank in the environment (world_place_set) as a launcher would set it. A rank dies with the test, and
 * an alarm limits its lifetime. It begins without failed checks. The process that forks has no other threads.
 *
 *     test process:  world_ranks_start ──► world_kill ──► world_ranks_finish
 *                         │ fork              │ signal         ▲ exit status
 *     ranks 0..N-1:       └──► function(user, rank) ───────────┘
 */
#ifndef TANDEM_TESTS_WORLD_H
#define TANDEM_TESTS_WORLD_H

#include "check.h"

#include <sys/types.h>

enum {
    WORLD_MAX_RANKS = 64,
    WORLD_LIFETIME_S = 150,
    /* How a rank ended, besides its exit status: */
    WORLD_CHECKS_FAILED = 99, /* it returned 0, but checks failed in it */
    WORLD_SIGNALLED = 1000,   /* plus the signal that ended it */
    WORLD_LATE = 2000         /* it did not end in time, and was killed */
};

/* The rank of a process in a fixed world, as its environment describes it. */
typedef struct world_place {
    const char *meeting;   /* a name that only the ranks of this world have */
    const char *transport; /* NULL: chosen by the location of the ranks */
    const char *host;      /* NULL: the real one; ranks with equal names share memory */
    int rank, size;
    int deadline_s; /* of calls; 0: the default */
} world_place;

/* For the process that becomes the rank. */
void world_place_set(const world_place *place);

/* fork(), and in the child an alarm after `lifetime_s` (0: WORLD_LIFETIME_S), SIGKILL when the parent ends, and no
 * failed checks. */
pid_t world_fork(int lifetime_s);

/* Executes the program of the test again, with these arguments, the last of which is NULL. */
_Noreturn void world_exec(const char *argument, ...);

/* Ends a forked rank with this status, or with WORLD_CHECKS_FAILED instead of 0 if checks failed in it. */
_Noreturn void world_exit(int status);

/* Waits for a rank; returns its exit status or one of the values above. The second one kills it after that time. */
int world_end(pid_t pid);
int world_end_within(pid_t pid, double seconds);

/* ---- all ranks of a world ---------------------------------------------------------------------- */

typedef struct world_ranks {
    int size;
    pid_t pids[WORLD_MAX_RANKS];
} world_ranks;

/* The function of a rank; it returns the exit status. */
typedef int (*world_rank_fn)(void *user, int rank);

void world_ranks_start(world_ranks *w, int size, int lifetime_s, world_rank_fn run, void *user);

/* Sends a rank a signal, such as SIGKILL or SIGSTOP. */
void world_kill(const world_ranks *w, int rank, int signal_number);

/* Waits for all ranks and checks that each ended with 0, and the victim by SIGKILL; -1: no victim. */
void world_ranks_finish(const world_ranks *w, int victim);

#endif
