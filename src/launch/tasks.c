/*
 * tasks.c: the tasks that mpirun or srun starts on one host: one leads, the others wait.
 *
 * The leader listens on a socket whose name all tasks can derive. The others connect, send the CPUs
 * to which their launcher has bound them, and sleep until the leader sends its exit code or is
 * gone; they use no CPU time. The leader binds itself to all of these CPUs together, so that the
 * workers it starts can share them: mpirun binds each task to one core, and workers must not share
 * the leader's core. The socket is in the abstract namespace, so nothing is left behind. Both sides
 * check that the other is the same user.
 *
 * Invariant: a leader never waits for the others beyond `meet_s`; tasks that connect later get the
 * exit code as well.
 */
#include "base/base.h"
#include "os/os.h"

#include <tandem/cluster.h>

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { TICK_MS = 100, MAGIC = 0x5441534b, MIN_PAUSE_MS = 5, MAX_PAUSE_MS = 200 };
static const double meet_s = 10; /* time for all tasks to connect, from the start of the leader */
static const double look_s = 60; /* time to look for the leader, as for ranks of a world */

struct tdm_tasks {
    int listener;
    /* first the listener, then the tasks; negative (~fd) once it has reported */
    struct pollfd *others;
    int count, room;
    int reported; /* tasks that have reported their CPUs */
};

/* Sent between processes of one program on one host, in native layout. */
typedef struct report {
    uint32_t magic;
    uint32_t is_known; /* whether the CPUs are known */
    uint64_t processors[TDM_PLACE_MAX_CPUS / 64];
} report;

typedef struct farewell {
    uint32_t magic;
    int32_t code;
} farewell;

/* ---- socket ---------------------------------------------------------------------------------- */

static tdm_status make_address(const char *name, struct sockaddr_un *out, socklen_t *bytes,
                               tdm_error *err)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(out->sun_path + 1, sizeof(out->sun_path) - 1, "tandem-tasks-%lu-%s",
                          (unsigned long)geteuid(), name);
    if (length < 0 || (size_t)length >= sizeof(out->sun_path) - 1)
        return tdm_fail(err, TDM_ERR_INVALID, "'%s' is too long for a socket name", name);
    *bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
    return TDM_OK;
}

static bool is_same_user(int fd)
{
    struct ucred peer;
    socklen_t bytes = sizeof(peer);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

/* ---- leader ---------------------------------------------------------------------------------- */

/* Accepts all pending connections. */
static void tasks_accept(tdm_tasks *tasks)
{
    while (tasks->count < tasks->room) {
        int fd = accept4(tasks->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
        if (fd < 0) return;
        if (is_same_user(fd))
            tasks->others[++tasks->count] = (struct pollfd){.fd = fd, .events = POLLIN};
        else
            close(fd);
    }
}

/* Adds the reported CPUs to `place`. A task that has reported or is gone is not polled again. */
static void tasks_read_reports(tdm_tasks *tasks, tdm_cpu_set *place)
{
    for (int i = 1; i <= tasks->count; i++) {
        report got = {.magic = 0};
        struct pollfd *other = &tasks->others[i];
        if (other->fd < 0 || !other->revents) continue;
        ssize_t bytes = recv(other->fd, &got, sizeof(got), MSG_TRUNC);
        if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        other->fd = ~other->fd;
        tasks->reported++;
        if (bytes != (ssize_t)sizeof(got) || got.magic != MAGIC || !got.is_known) continue;
        for (size_t k = 0; k < TDM_PLACE_MAX_CPUS / 64; k++)
            place->processors[k] |= got.processors[k];
    }
}

static tdm_status tasks_listen(const char *name, int count, int *out, tdm_error *err)
{
    struct sockaddr_un address;
    socklen_t bytes = 0;
    TDM_TRY(make_address(name, &address, &bytes, err));
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return tdm_os_fail(err, "cannot create", "a socket");
    *out = fd;
    if (bind(fd, (struct sockaddr *)&address, bytes) == 0 && listen(fd, count) == 0) return TDM_OK;
    if (errno != EADDRINUSE)
        return tdm_os_fail(err, "cannot listen on the socket", address.sun_path + 1);
    return tdm_fail(err, TDM_ERR_BUSY,
                    "another process already leads the tasks of this launch (socket @%s)",
                    address.sun_path + 1);
}

static tdm_status tasks_meet(tdm_tasks *tasks, const tdm_tasks_options *o, tdm_error *err)
{
    tdm_cpu_set place;
    bool is_known = tdm_os_cpu_set_here(&place);
    double until_s = tdm_clock_s() + meet_s;
    TDM_TRY(tasks_listen(o->name, o->count, &tasks->listener, err));
    tasks->others[0] = (struct pollfd){.fd = tasks->listener, .events = POLLIN};
    while (tasks->reported < tasks->room && tdm_clock_s() < until_s) {
        if (o->should_stop && o->should_stop(o->user))
            return tdm_fail(err, TDM_ERR_INTERRUPTED, "stopped before the session started");
        if (poll(tasks->others, (nfds_t)tasks->count + 1, TICK_MS) <= 0) continue;
        tasks_read_reports(tasks, &place);
        tasks_accept(tasks);
        /* All tasks are connected: further connections must not wake the leader. */
        if (tasks->count == tasks->room) tasks->others[0].fd = ~tasks->listener;
    }
    /* If the kernel does not allow this (the leader has its own cgroup), the affinity stays as it
     * is. */
    if (is_known) (void)tdm_os_cpu_set_apply(&place);
    return TDM_OK;
}

tdm_status tdm_tasks_lead(const tdm_tasks_options *options, tdm_tasks **out, tdm_error *err)
{
    tdm_tasks *tasks = calloc(1, sizeof(*tasks));
    if (tasks) tasks->others = calloc((size_t)options->count, sizeof(*tasks->others));
    if (!tasks || !tasks->others) {
        free(tasks);
        return tdm_fail_oom(err, "to wait for the tasks of this host");
    }
    tasks->listener = -1;
    tasks->room = options->count - 1;
    tdm_status status = tasks_meet(tasks, options, err);
    if (status == TDM_OK)
        *out = tasks;
    else
        tdm_tasks_end(tasks, status == TDM_ERR_INTERRUPTED ? TDM_WORKER_STOPPED : 1);
    return status;
}

int tdm_tasks_missing(const tdm_tasks *tasks)
{
    return tasks->room - tasks->reported;
}

void tdm_tasks_end(tdm_tasks *tasks, int code)
{
    const farewell last = {.magic = MAGIC, .code = code};
    if (!tasks) return;
    if (tasks->listener >= 0) {
        tasks_accept(tasks); /* tasks that connected late */
        close(tasks->listener);
    }
    for (int i = 1; i <= tasks->count; i++) {
        int fd = tasks->others[i].fd < 0 ? ~tasks->others[i].fd : tasks->others[i].fd;
        (void)send(fd, &last, sizeof(last), MSG_NOSIGNAL);
        close(fd);
    }
    free(tasks->others);
    free(tasks);
}

/* ---- other tasks ----------------------------------------------------------------------------- */

/* Connects to a leader of the same user; -1: not yet. */
static int leader_try(const struct sockaddr_un *address, socklen_t bytes)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (connect(fd, (const struct sockaddr *)address, bytes) == 0 && is_same_user(fd)) return fd;
    close(fd);
    return -1;
}

static tdm_status leader_find(const tdm_tasks_options *o, int *out, tdm_error *err)
{
    struct sockaddr_un address;
    socklen_t bytes = 0;
    TDM_TRY(make_address(o->name, &address, &bytes, err));
    double until_s = tdm_clock_s() + look_s;
    for (int pause_ms = MIN_PAUSE_MS; tdm_clock_s() < until_s;) {
        if (o->should_stop && o->should_stop(o->user))
            return tdm_fail(err, TDM_ERR_INTERRUPTED, "stopped before the session started");
        *out = leader_try(&address, bytes);
        if (*out >= 0) return TDM_OK;
        (void)poll(NULL, 0, pause_ms);
        pause_ms = 2 * pause_ms < MAX_PAUSE_MS ? 2 * pause_ms : MAX_PAUSE_MS;
    }
    return tdm_fail(err, TDM_ERR_TIMEOUT,
                    "the first task of this host, which starts its workers, did not appear within "
                    "%g s or has already exited",
                    look_s);
}

static void leader_report_cpus(int fd)
{
    tdm_cpu_set place;
    report own = {.magic = MAGIC, .is_known = tdm_os_cpu_set_here(&place)};
    if (own.is_known) memcpy(own.processors, place.processors, sizeof(own.processors));
    (void)send(fd, &own, sizeof(own), MSG_NOSIGNAL);
}

tdm_status tdm_tasks_follow(const tdm_tasks_options *options, int *out_code, tdm_error *err)
{
    int fd = -1;
    farewell last = {.magic = 0};
    TDM_TRY(leader_find(options, &fd, err));
    leader_report_cpus(fd);
    ssize_t got;
    do {
        got = recv(fd, &last, sizeof(last),
                   MSG_TRUNC); /* the kernel closes the connection when the leader is gone */
    } while (got < 0 && errno == EINTR);
    close(fd);
    if (got != (ssize_t)sizeof(last) || last.magic != MAGIC)
        return tdm_fail(err, TDM_ERR_PEER_FAILED, "the first task of this host was killed");
    *out_code = last.code;
    return TDM_OK;
}
