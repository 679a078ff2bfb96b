/*
 * host_bench.h: several processes that share a host's memory, for the tests of it.
 *
 * host_bench_run forks one process for each rank, which makes its end of the host, sends its address to the
 * parent over a socketpair, gets everybody's back, connects, and runs the body. A body's failed checks
 * become its exit status. Each process has an alarm, so that a hang is a failure and not a hang.
 */
#ifndef TANDEM_TESTS_HOST_BENCH_H
#define TANDEM_TESTS_HOST_BENCH_H

#include "check.h"
#include "shm/host_inner.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    HOST_BENCH_MAX_RANKS = 16,
    HOST_BENCH_WORLD = 0x77001122,
    HOST_BENCH_MAX_ADDRESS = 4096,
    HOST_BENCH_ALARM_S = 250
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HOST_BENCH_SANITIZED 1 /* slow, and with an address space that cannot be limited */
#else
#define HOST_BENCH_SANITIZED 0
#endif
#define HOST_BENCH_SCALE(full, small) (HOST_BENCH_SANITIZED ? (small) : (full))

/* By what a process ended. */
enum {
    HOST_BENCH_ENDED_WELL = 0,
    HOST_BENCH_ENDED_BADLY = 1,
    HOST_BENCH_KILLED = 2,
    HOST_BENCH_NOT_CONNECTED = 7
};

typedef struct host_bench {
    int rank, size;
    tdm__host *host;
    void *context;
} host_bench;

typedef struct host_bench_options {
    int size;
    bool with_fds;
    void (*body)(host_bench *b);
    void *context;
    /* Called in the rank before it connects, after the addresses were exchanged; may be NULL. */
    void (*before)(int rank, void *context);
    /* Called in the parent when it knows rank 0's address, before the others do; may be NULL. */
    void (*meanwhile)(const char *name, size_t bytes, void *context);
    int *out_ends;         /* by rank: how it ended; may be NULL */
    tdm_error *out_errors; /* by rank, in shared memory: of the connecting; may be NULL */
} host_bench_options;

typedef struct host_bench_address {
    uint64_t bytes;
    uint8_t data[HOST_BENCH_MAX_ADDRESS];
} host_bench_address;

/* Runs the body on all ranks. Without out_ends, each must end well. */
void host_bench_run(const host_bench_options *o);

#endif
