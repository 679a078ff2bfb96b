/*
 * host_bench.c: see host_bench.h.
 */
#include "comm/host_bench.h"

#include "comm/count_in.h"
#include "world.h"

static bool host_bench_write(int fd, const void *data, size_t bytes)
{
    for (const char *at = data; bytes > 0;) {
        ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
        if (n <= 0) return false;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

static bool host_bench_read(int fd, void *data, size_t bytes)
{
    for (char *at = data; bytes > 0;) {
        ssize_t n = read(fd, at, bytes);
        if (n <= 0) return false;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* Runs one rank. Never returns. */
static void host_bench_child(const host_bench_options *o, int rank, int fd)
{
    int ranks[HOST_BENCH_MAX_RANKS];
    for (int i = 0; i < o->size; i++) ranks[i] = i;
    tdm__host_options options = {.rank = rank,
                                 .ranks = ranks,
                                 .count = o->size,
                                 .world = HOST_BENCH_WORLD,
                                 .with_fds = o->with_fds};
    int fds_before = count_in("/proc/self/fd");
    tdm__host *host = NULL;
    tdm_error err = {0};
    host_bench_address *mine = calloc(1, sizeof(*mine)),
                       *all = calloc(HOST_BENCH_MAX_RANKS, sizeof(*all));
    size_t bytes = 0;
    if (tdm__host_create(&options, &host, mine->data, &bytes, &err) != TDM_OK) {
        fprintf(stderr, "rank %d: %s\n", rank, err.message);
        exit(HOST_BENCH_ENDED_BADLY);
    }
    mine->bytes = bytes;
    if (!host_bench_write(fd, mine, sizeof(*mine)) ||
        !host_bench_read(fd, all, sizeof(*all) * (size_t)o->size))
        exit(HOST_BENCH_ENDED_BADLY);
    const uint8_t *addresses[HOST_BENCH_MAX_RANKS];
    size_t lengths[HOST_BENCH_MAX_RANKS];
    for (int i = 0; i < o->size; i++) {
        addresses[i] = all[i].data;
        lengths[i] = all[i].bytes;
    }
    if (o->before) o->before(rank, o->context);
    if (tdm__host_connect(host, addresses, lengths, &err) == TDM_OK) {
        host_bench b = {.rank = rank, .size = o->size, .host = host, .context = o->context};
        o->body(&b);
        tdm__host_destroy(host);
        CHECK_INT(count_in("/proc/self/fd"), fds_before);
    } else {
        if (o->out_errors)
            o->out_errors[rank] = err;
        else
            fprintf(stderr, "rank %d: %s\n", rank, err.message);
        tdm__host_destroy(host);
        free(mine);
        free(all);
        exit(HOST_BENCH_NOT_CONNECTED);
    }
    free(mine);
    free(all);
    exit(check_failures ? HOST_BENCH_ENDED_BADLY : HOST_BENCH_ENDED_WELL);
}

void host_bench_run(const host_bench_options *o)
{
    int fds[HOST_BENCH_MAX_RANKS];
    pid_t pids[HOST_BENCH_MAX_RANKS];
    for (int i = 0; i < o->size; i++) {
        int pair[2];
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
        pids[i] = world_fork(HOST_BENCH_ALARM_S);
        if (pids[i] == 0) {
            for (int j = 0; j < i; j++) close(fds[j]);
            close(pair[0]);
            host_bench_child(o, i, pair[1]);
        }
        close(pair[1]);
        fds[i] = pair[0];
    }
    host_bench_address *all = calloc(HOST_BENCH_MAX_RANKS, sizeof(*all));
    for (int i = 0; i < o->size; i++) CHECK(host_bench_read(fds[i], &all[i], sizeof(all[i])));
    if (o->meanwhile) o->meanwhile((const char *)all[0].data, all[0].bytes, o->context);
    for (int i = 0; i < o->size; i++)
        CHECK(host_bench_write(fds[i], all, sizeof(*all) * (size_t)o->size));
    free(all);
    for (int i = 0; i < o->size; i++) {
        int end = world_end(pids[i]);
        if (end >= WORLD_SIGNALLED) end = HOST_BENCH_KILLED;
        if (o->out_ends)
            o->out_ends[i] = end;
        else
            CHECK_INT(end, HOST_BENCH_ENDED_WELL);
        close(fds[i]);
    }
}
