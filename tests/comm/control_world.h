/*
 * control_world.h: worlds of real processes, for the tests of the control connection.
 *
 * The process that forks never opens a world, so it has no threads when it forks. A rank performs its checks
 * itself; its exit status is 0 if all of them succeeded.
 */
#ifndef TANDEM_TESTS_CONTROL_WORLD_H
#define TANDEM_TESTS_CONTROL_WORLD_H

#include "check.h"

#include "boot/boot.h"
#include "comm/count_in.h"
#include "net/socket.h"
#include "world.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOW = 1 };
#else
enum { SLOW = 0 };
#endif

enum { MAX_RANKS = 16, RANK_S = 150 };

/* ---- processes ------------------------------------------------------------------------------------------ */

/* Shared by the ranks and the test. */
typedef struct board {
    _Atomic int joined, may_go, saw;
    _Atomic int pids[MAX_RANKS];
    _Atomic int warnings;
    /* Number of ranks that have begun a warning: the first one writes `warning` before it is counted. */
    _Atomic int warners;
    char warning[400];
    char report[1000];
    double seen_s[MAX_RANKS]; /* when the news arrived */
} board;

extern board *shared;

typedef struct world {
    int size;
    const char *rendezvous;
    const char *secret, *job;
    double join_s;
    tdm_security security;
    int victim; /* the rank that is killed or stopped; -1: none */
    int (*rank)(const struct world *world, int rank);
    int pids[MAX_RANKS];
} world;

void pause_s(double seconds);
/* Waits until *value is at least `min`; false if that takes longer. */
bool await(const _Atomic int *value, int min, double seconds);
/* After this, the next warning counts as the first one. */
void forget_warnings(void);
int start_one(const world *w, int rank);
/* Starts all ranks, with an empty board. */
void start(world *w);
/* The exit status of a rank; 1000 + signal if a signal ended it. */
int finish_one(int pid);
/* Waits for all ranks; all but the victim must succeed. */
void finish(const world *w);
tdm_comm_options options_of(const world *w, int rank);
/* In a rank: joins the world. */
tdm__control *join(const world *w, int rank);
/* Names that no other run of this test uses, and a port that is free now. */
const char *unix_name(void);
const char *tcp_name(int family);
const char *file_name(void);
/* Tests that mostly wait: all of them run concurrently, each in a process with a separate board. */
void run_at_once(void (*const *tests)(void), int count);
/* The main function of a test. */
int world_main(int argc, char **argv, const check_test *tests, size_t count);

#endif
