/*
 * host_bench.h: several processes that share a host's memory, for the tests of it.
 *
 * bench_run forks one process for each rank, which makes its end of the host, sends its address to the
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
    MAX_BENCH_RANKS = 16,
    BENCH_WORLD = 0x77001122,
    MAX_BENCH_ADDRESS = 4096,
    BENCH_ALARM_S = 250
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define BENCH_SANITIZED 1 /* slow, and with an address space that cannot be limited */
#else
#define BENCH_SANITIZED 0
#endif
#define BENCH_SCALE(full, small) (BENCH_SANITIZED ? (small) : (full))

/* By what a process ended. */
enum { BENCH_ENDED_WELL = 0, BENCH_ENDED_BADLY = 1, BENCH_KILLED = 2, BENCH_NOT_CONNECTED = 7 };

typedef struct bench {
    int rank, size;
    tdm__host *host;
    void *context;
} bench;

typedef struct bench_options {
    int size;
    bool with_fds;
    void (*body)(bench *b);
    void *context;
    /* Called in the rank before it connects, after the addresses were exchanged; may be NULL. */
    void (*before)(int rank, void *context);
    /* Called in the parent when it knows rank 0's address, before the others do; may be NULL. */
    void (*meanwhile)(const char *name, size_t bytes, void *context);
    int *out_ends;         /* by rank: how it ended; may be NULL */
    tdm_error *out_errors; /* by rank, in shared memory: of the connecting; may be NULL */
} bench_options;

typedef struct bench_address {
    uint64_t bytes;
    uint8_t data[MAX_BENCH_ADDRESS];
} bench_address;

static inline bool bench_write(int fd, const void *data, size_t bytes)
{
    for (const char *at = data; bytes > 0;) {
        ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
        if (n <= 0) return false;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

static inline bool bench_read(int fd, void *data, size_t bytes)
{
    for (char *at = data; bytes > 0;) {
        ssize_t n = read(fd, at, bytes);
        if (n <= 0) return false;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

static inline int bench_open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;
    while (dir && readdir(dir)) count++;
    if (dir) closedir(dir);
    return count;
}

/* One rank's life. Never returns. */
static inline void bench_child(const bench_options *o, int rank, int fd)
{
    alarm(BENCH_ALARM_S);
    check_failures = 0;
    int ranks[MAX_BENCH_RANKS];
    for (int i = 0; i < o->size; i++) ranks[i] = i;
    tdm__host_options options = {.rank = rank,
                                 .ranks = ranks,
                                 .count = o->size,
                                 .world = BENCH_WORLD,
                                 .with_fds = o->with_fds};
    int fds_before = bench_open_fds();
    tdm__host *host = NULL;
    tdm_error err = {0};
    bench_address *mine = calloc(1, sizeof(*mine)), *all = calloc(MAX_BENCH_RANKS, sizeof(*all));
    size_t bytes = 0;
    if (tdm__host_create(&options, &host, mine->data, &bytes, &err) != TDM_OK) {
        fprintf(stderr, "rank %d: %s\n", rank, err.message);
        exit(BENCH_ENDED_BADLY);
    }
    mine->bytes = bytes;
    if (!bench_write(fd, mine, sizeof(*mine)) ||
        !bench_read(fd, all, sizeof(*all) * (size_t)o->size))
        exit(BENCH_ENDED_BADLY);
    const uint8_t *addresses[MAX_BENCH_RANKS];
    size_t lengths[MAX_BENCH_RANKS];
    for (int i = 0; i < o->size; i++) {
        addresses[i] = all[i].data;
        lengths[i] = all[i].bytes;
    }
    if (o->before) o->before(rank, o->context);
    if (tdm__host_connect(host, addresses, lengths, &err) == TDM_OK) {
        bench b = {.rank = rank, .size = o->size, .host = host, .context = o->context};
        o->body(&b);
        tdm__host_destroy(host);
        CHECK_INT(bench_open_fds(), fds_before);
    } else {
        if (o->out_errors)
            o->out_errors[rank] = err;
        else
            fprintf(stderr, "rank %d: %s\n", rank, err.message);
        tdm__host_destroy(host);
        free(mine);
        free(all);
        exit(BENCH_NOT_CONNECTED);
    }
    free(mine);
    free(all);
    exit(check_failures ? BENCH_ENDED_BADLY : BENCH_ENDED_WELL);
}

/* Runs the body on all ranks. Without out_ends, each must end well. */
static inline void bench_run(const bench_options *o)
{
    int fds[MAX_BENCH_RANKS];
    pid_t pids[MAX_BENCH_RANKS];
    fflush(NULL);
    for (int i = 0; i < o->size; i++) {
        int pair[2];
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
        pids[i] = fork();
        if (pids[i] == 0) {
            for (int j = 0; j < i; j++) close(fds[j]);
            close(pair[0]);
            bench_child(o, i, pair[1]);
        }
        close(pair[1]);
        fds[i] = pair[0];
    }
    bench_address *all = calloc(MAX_BENCH_RANKS, sizeof(*all));
    for (int i = 0; i < o->size; i++) CHECK(bench_read(fds[i], &all[i], sizeof(all[i])));
    if (o->meanwhile) o->meanwhile((const char *)all[0].data, all[0].bytes, o->context);
    for (int i = 0; i < o->size; i++)
        CHECK(bench_write(fds[i], all, sizeof(*all) * (size_t)o->size));
    free(all);
    for (int i = 0; i < o->size; i++) {
        int status = 0;
        CHECK(waitpid(pids[i], &status, 0) == pids[i]);
        int end = WIFSIGNALED(status) ? BENCH_KILLED : WEXITSTATUS(status);
        if (o->out_ends)
            o->out_ends[i] = end;
        else
            CHECK_INT(end, BENCH_ENDED_WELL);
        close(fds[i]);
    }
}

#endif
