/*
 * kill_world.h: ranks that run random collectives without end, one of which is killed or stopped, and checks of
 * what the others report. For kill_test.c (ranks of one host) and hosts_kill.c (of several).
 *
 * The ranks are processes of the test's own program, started with `--rank PIPE`: main() passes that to
 * be_a_rank(). Each writes two records to the pipe, each with one write: that it has joined, and how its last
 * call ended. Every survivor must return in time (see late_s) with an error of the peer group that names the
 * victim; rarely, it may name a neighbour that has left because of the death. The time that this took is
 * measured and printed, and not checked: it depends on the load of the machine. A rank dies with the process
 * that started it.
 */
#ifndef TANDEM_TESTS_COMM_KILL_WORLD_H
#define TANDEM_TESTS_COMM_KILL_WORLD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { MAX_RANKS = 6 };

/* A death is detected as such, long before the deadline of a call; a stop is detected by the deadline. */
static const double kill_deadline_s = 60, stop_deadline_s = 2.5;

/* The main function of a rank; returns its exit code. */
int be_a_rank(int pipe_fd);

typedef struct trial {
    const char *transport; /* NULL: chosen by the location of the ranks */
    const char *rendezvous;
    const char *const *spaces; /* the hosts, as network namespaces; NULL: all ranks are here */
    int ranks_per_host;
    uint64_t seed;
    int size, victim;
    bool stop;
    useconds_t delay_us;
    double deadline_s;
    pid_t pids[MAX_RANKS];
    int pipe_fd;
    double slowest_s[2]; /* of the survivors on the victim's host, and of the others */
    int named_count;     /* survivors whose error names the victim, */
    int second_count;    /* and those whose error names another rank: see is_second_hand() */
} trial;

/* Runs one trial with the fields up to `deadline_s`, and fills the others. False: a check failed; the reason is on
 * stderr. */
bool run_trial(trial *t);

/* The number of errors that name another rank than the victim which is allowed in this number of trials. */
int second_most(int trials);

#endif
