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
 * Invariant: a leader never waits for the others beyond TDM__TIMING_TASKS_MEET_S; tasks that connect
 * later get the exit code as well.
 */
#include "base/base.h"
#include "base/timing.h"
#include "os/loop.h"
#include "os/os.h"

#include <tandem/cluster.h>

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { MAGIC = 0x5441534b };

typedef struct other_task {
    tdm__loop_watch watch; /* watched until it has reported */
    tdm_tasks *tasks;
} other_task;

struct tdm_tasks {
    tdm__loop *loop; /* while the tasks meet; NULL afterwards */
    tdm__loop_watch listener;
    other_task *others;
    int count, room;
    int reported;      /* tasks that have reported their CPUs, or are gone */
    tdm_cpu_set place; /* the CPUs of all that have reported */
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

static tdm_status tasks_address(const char *name, struct sockaddr_un *out, socklen_t *bytes,
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

static bool peer_is_same_user(int fd)
{
    struct ucred peer;
    socklen_t bytes = sizeof(peer);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

/* ---- leader ---------------------------------------------------------------------------------- */

/* Adds the reported CPUs to those of all. */
static void task_on_report(tdm__loop_watch *watch, unsigned ready)
{
    tdm_tasks *tasks = ((other_task *)watch->user)->tasks;
    report got = {.magic = 0};
    (void)ready;
    ssize_t bytes = recv(watch->fd, &got, sizeof(got), MSG_TRUNC);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return;
    (void)tdm__loop_watch_set(tasks->loop, watch, 0, NULL);
    tasks->reported++;
    if (bytes != (ssize_t)sizeof(got) || got.magic != MAGIC || !got.is_known) return;
    for (size_t k = 0; k < TDM_PLACE_MAX_CPUS / 64; k++)
        tasks->place.processors[k] |= got.processors[k];
}

/* Accepts all pending connections. */
static void tasks_accept(tdm_tasks *tasks)
{
    while (tasks->count < tasks->room) {
        int fd = accept4(tasks->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
        if (fd < 0) return;
        if (!peer_is_same_user(fd)) {
            close(fd);
            continue;
        }
        other_task *other = &tasks->others[tasks->count++];
        *other = (other_task){.watch = {.fd = fd, .on_ready = task_on_report, .user = other},
                              .tasks = tasks};
        if (tasks->loop)
            (void)tdm__loop_watch_set(tasks->loop, &other->watch, TDM__LOOP_READ, NULL);
    }
    /* All tasks are connected: further connections must not wake the leader. */
    if (tasks->loop) (void)tdm__loop_watch_set(tasks->loop, &tasks->listener, 0, NULL);
}

static void tasks_on_connection(tdm__loop_watch *watch, unsigned ready)
{
    (void)ready;
    tasks_accept(watch->user);
}

static tdm_status tasks_listen(const char *name, int count, int *out, tdm_error *err)
{
    struct sockaddr_un address;
    socklen_t bytes = 0;
    TDM_TRY(tasks_address(name, &address, &bytes, err));
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
    bool is_known = tdm_os_cpu_set_here(&tasks->place);
    double until_s = tdm_clock_s() + TDM__TIMING_TASKS_MEET_S;
    TDM_TRY(tasks_listen(o->name, o->count, &tasks->listener.fd, err));
    TDM_TRY(tdm__loop_create(&tasks->loop, err));
    if (tasks->room > 0)
        TDM_TRY(tdm__loop_watch_set(tasks->loop, &tasks->listener, TDM__LOOP_READ, err));
    while (tasks->reported < tasks->room && tdm_clock_s() < until_s) {
        if (o->should_stop && o->should_stop(o->user))
            return tdm_fail(err, TDM_ERR_INTERRUPTED, "stopped before the session started");
        TDM_TRY(tdm__loop_turn(tasks->loop, TDM__TIMING_TASKS_STOP_CHECK_S, err));
    }
    /* If the kernel does not allow this (the leader has its own cgroup), the affinity stays as it
     * is. */
    if (is_known) (void)tdm_os_cpu_set_apply(&tasks->place);
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
    tasks->listener = (tdm__loop_watch){.fd = -1, .on_ready = tasks_on_connection, .user = tasks};
    tasks->room = options->count - 1;
    tdm_status status = tasks_meet(tasks, options, err);
    tdm__loop_destroy(tasks->loop);
    tasks->loop = NULL;
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
    if (tasks->listener.fd >= 0) {
        tasks_accept(tasks); /* tasks that connected late */
        close(tasks->listener.fd);
    }
    for (int i = 0; i < tasks->count; i++) {
        (void)send(tasks->others[i].watch.fd, &last, sizeof(last), MSG_NOSIGNAL);
        close(tasks->others[i].watch.fd);
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
    if (connect(fd, (const struct sockaddr *)address, bytes) == 0 && peer_is_same_user(fd))
        return fd;
    close(fd);
    return -1;
}

static tdm_status leader_find(const tdm_tasks_options *o, int *out, tdm_error *err)
{
    struct sockaddr_un address;
    socklen_t bytes = 0;
    TDM_TRY(tasks_address(o->name, &address, &bytes, err));
    double until_s = tdm_clock_s() + TDM__TIMING_TASKS_FIND_S;
    for (double pause_s = TDM__TIMING_TASKS_MIN_PAUSE_S; tdm_clock_s() < until_s;) {
        if (o->should_stop && o->should_stop(o->user))
            return tdm_fail(err, TDM_ERR_INTERRUPTED, "stopped before the session started");
        *out = leader_try(&address, bytes);
        if (*out >= 0) return TDM_OK;
        tdm_clock_sleep(pause_s);
        pause_s = fmin(2 * pause_s, TDM__TIMING_TASKS_MAX_PAUSE_S);
    }
    return tdm_fail(err, TDM_ERR_TIMEOUT,
                    "the first task of this host, which starts its workers, did not appear within "
                    "%g s or has already exited",
                    TDM__TIMING_TASKS_FIND_S);
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
        got = recv(fd, &last, sizeof(last), MSG_TRUNC); /* fails when the leader is gone */
    } while (got < 0 && errno == EINTR);
    close(fd);
    if (got != (ssize_t)sizeof(last) || last.magic != MAGIC)
        return tdm_fail(err, TDM_ERR_PEER_FAILED, "the first task of this host was killed");
    *out_code = last.code;
    return TDM_OK;
}
