/*
 * world.h: worlds of real processes for tests: a test starts itself once for each rank, with the rank's number
 * in the environment, and checks how each of them ended.
 *
 * A host is a letter: ranks with the same one share memory, others communicate by UCX; "aab" is a world of
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

static inline pid_t world_start_rank(const world *w, int rank, int number)
{
    pid_t pid = world_fork(WORLD_ALARM_S);
    if (pid != 0) return pid;
    char meeting[64], host[32];
    snprintf(meeting, sizeof(meeting), "world-%d-%d", (int)getppid(), number);
    snprintf(host, sizeof(host), "world-host-%c", w->hosts[rank]);
    world_place_set(&(world_place){.meeting = meeting,
                                   .transport = w->transport,
                                   .host = host,
                                   .rank = rank,
                                   .size = (int)strlen(w->hosts),
                                   .deadline_s = w->deadline_s > 0 ? w->deadline_s : 60});
    world_exec("--rank", w->what, NULL);
}

static inline bool world_has(const char *transport)
{
    tdm_transport_info info;
    for (size_t i = 0; tdm_transport_at(i, &info); i++)
        if (strcmp(info.name, transport) == 0) return info.usable;
    return false;
}

/* Starts all ranks and waits for them. All must succeed, except the victim. */
static inline void world_run(const world *w)
{
    static int number;
    int size = (int)strlen(w->hosts);
    bool several = strspn(w->hosts, (char[]){w->hosts[0], 0}) < (size_t)size;
    const char *needed = w->transport ? w->transport : several ? "tcp" : NULL;
    if (needed && !world_has(needed)) {
        printf("     left out: hosts %s, without %s\n", w->hosts, needed);
        return;
    }
    pid_t pids[MAX_WORLD_RANKS];
    number++;
    for (int i = 0; i < size; i++) pids[i] = world_start_rank(w, i, number);
    for (int i = 0; i < size; i++) {
        int end = world_end(pids[i]);
        int expected = i + 1 == w->victim ? WORLD_SIGNALLED + SIGKILL : 0;
        CHECK_INT(end, expected);
        if (end != expected)
            fprintf(stderr, "%s, hosts %s: rank %d ended with %d\n", w->what, w->hosts, i, end);
    }
}

/* The main function of a rank: joins the world, executes its task, and reports whether all checks succeeded.
 * */
static inline int world_be_a_rank(void (*task)(tdm_comm *comm, const char *what), const char *what)
{
    tdm_comm *comm = NULL;
    tdm_error err = {0};
    if (tdm_comm_open(NULL, &comm, &err) != TDM_OK) {
        fprintf(stderr, "FAIL: %s\n", err.message);
        return 1;
    }
    task(comm, what);
    CHECK(check_count > 0);
    tdm_comm_close(comm);
    return check_failures > 0;
}

#endif
