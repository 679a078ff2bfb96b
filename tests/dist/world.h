/*
 * world.h: worlds of real processes for tests: a test starts itself once for each rank, with the rank's number
 * in the environment, and checks how each of them ended.
 *
 * A host is a letter: ranks with the same one share memory, others communicate by TCP; "aab" is a world of
 * three ranks on two hosts. The ranks die with the test, and an alarm limits the lifetime of each.
 */
#ifndef TANDEM_TESTS_DIST_WORLD_H
#define TANDEM_TESTS_DIST_WORLD_H

#include "../world.h"
#include "check.h"
#include "transport/registry.h"

#include <tandem/comm.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_WORLD_RANKS = 16, WORLD_ALARM_S = 100 };

typedef struct world {
    const char *what;      /* the task of the ranks, as for --rank */
    const char *hosts;     /* one letter for each rank */
    const char *transport; /* NULL: chosen by the hosts */
    int deadline_s;        /* of calls; 0: 60 */
    int victim;            /* the rank that ends by SIGKILL, counted from 1; 0: none */
} world;

/* Whether this build and machine can use the transport. */
bool world_has(const char *transport);
/* Starts all ranks and waits for them. All must succeed, except the victim. */
void world_run(const world *w);
/* The main function of a rank: joins the world, executes its task, and reports whether all checks succeeded. */
int world_be_a_rank(void (*task)(tdm_comm *comm, const char *what), const char *what);

#endif
