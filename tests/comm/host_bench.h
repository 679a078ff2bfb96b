/*
 * host_bench.h: several processes that share the memory of a host, for tests.
 *
 * host_bench_run forks one process for each rank. It creates its end of the host, sends its address to the
 * parent over a socketpair, receives the addresses of all ranks, connects, and runs the body. Failed checks of
 * a body become its exit status. Each process has an alarm, which turns a hang into a failure.
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

/* How a process ended. */
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
    /* Called in each rank before it connects, after the addresses were exchanged; may be NULL. */
    void (*before)(int rank, void *context);
    /* Called in the parent when it knows rank 0's address, before the other ranks do; may be NULL. */
    void (*meanwhile)(const char *name, size_t bytes, void *context);
    int *out_ends; /* by rank: how it ended; may be NULL */
    /* by rank, in shared memory: the status of the connection; may be NULL */
    tdm_error *out_errors;
} host_bench_options;

typedef struct host_bench_address {
    uint64_t bytes;
    uint8_t data[HOST_BENCH_MAX_ADDRESS];
} host_bench_address;

/* Runs the body on all ranks. If out_ends is NULL, each must succeed. */
void host_bench_run(const host_bench_options *o);

#endif
