/*
 * tasks.c: the tasks that mpirun or srun has placed on one host, as one of them leads and the others wait.
 *
 * The leader listens at a socket whose name all of them can work out. The others connect, say on which
 * processors their launcher has put them, and sleep until the leader tells its exit code, or is gone; they
 * cost no processor time. The leader puts itself onto all of these processors together, so that what it
 * starts can share them: mpirun binds each task to a core, and workers must not crowd on the leader's. The
 * name is in the system's abstract space, so nothing is left behind, however anybody ends. Both sides look
 * whether the other is the same user.
 *
 * Invariant: a leader never waits for the others beyond `meet_s`; who comes later is told the code, too.
 */
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
static const double meet_s = 10; /* from the leader's start until all others have come */
static const double look_s = 60; /* for a leader to look for, as ranks of a world do */

struct tdm_tasks {
    int listener;
    struct pollfd *others; /* behind the listener's, those that have connected; poll looks past the
                              complement of a descriptor: one that has reported, or is gone */
    int count, room;
    int reported; /* of them, where they run */
};

/* Between processes of one program on one host: as they lie in memory. */
typedef struct report {
    uint32_t magic;
    uint32_t is_known; /* whether the system has told the processors */
    uint64_t processors[TDM_PLACE_MAX_CPUS / 64];
} report;

typedef struct farewell {
    uint32_t magic;
    int32_t code;
} farewell;

/* ---- the socket ------------------------------------------------------------------------------ */

static tdm_status make_address(const char *name, struct sockaddr_un *out, socklen_t *bytes,
                               tdm_error *err)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "tandem-tasks-%lu-%s",
                          (unsigned long)geteuid(), name);
    if (length < 0 || (size_t)length >= sizeof out->sun_path - 1)
        return tdm_fail(err, TDM_ERR_INVALID, "'%s' is too long for a socket name", name);
    *bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
    return TDM_OK;
}

static bool is_same_user(int fd)
{
    struct ucred who;
    socklen_t bytes = sizeof who;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 && who.uid == geteuid();
}

/* ---- the leader ------------------------------------------------------------------------------ */

/* Takes all who have come. */
static void accept_others(tdm_tasks *tasks)
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

/* Adds where they run to `place`, for each that has said it; who has said it, or is gone, is not asked
 * again. */
static void read_reports(tdm_tasks *tasks, tdm_cpu_set *place)
{
    for (int i = 1; i <= tasks->count; i++) {
        report got = {.magic = 0};
        struct pollfd *other = &tasks->others[i];
        if (other->fd < 0 || !other->revents) continue;
        ssize_t bytes = recv(other->fd, &got, sizeof got, MSG_TRUNC);
        if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        other->fd = ~other->fd;
        tasks->reported++;
        if (bytes != (ssize_t)sizeof got || got.magic != MAGIC || !got.is_known) continue;
        for (size_t k = 0; k < TDM_PLACE_MAX_CPUS / 64; k++)
            place->processors[k] |= got.processors[k];
    }
}

static tdm_status listen_at(const char *name, int count, int *out, tdm_error *err)
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

static tdm_status meet(tdm_tasks *tasks, const tdm_tasks_options *o, tdm_error *err)
{
    tdm_cpu_set place;
    bool is_known = tdm_os_cpu_set_here(&place);
    double until_s = tdm_clock_s() + meet_s;
    TDM_TRY(listen_at(o->name, o->count, &tasks->listener, err));
    tasks->others[0] = (struct pollfd){.fd = tasks->listener, .events = POLLIN};
    while (tasks->reported < tasks->room && tdm_clock_s() < until_s) {
        if (o->should_stop && o->should_stop(o->user))
            return tdm_fail(err, TDM_ERR_INTERRUPTED, "stopped before the session started");
        if (poll(tasks->others, (nfds_t)tasks->count + 1, TICK_MS) <= 0) continue;
        read_reports(tasks, &place);
        accept_others(tasks);
        /* Nobody more is taken: who knocks all the same must not keep this awake. */
        if (tasks->count == tasks->room) tasks->others[0].fd = ~tasks->listener;
    }
    /* Where the system does not allow it (a control group of the leader's own), it stays where it is. */
    if (is_known) (void)tdm_os_cpu_set_apply(&place);
    return TDM_OK;
}

tdm_status tdm_tasks_lead(const tdm_tasks_options *options, tdm_tasks **out, tdm_error *err)
{
    tdm_tasks *tasks = calloc(1, sizeof *tasks);
    if (tasks) tasks->others = calloc((size_t)options->count, sizeof *tasks->others);
    if (!tasks || !tasks->others) {
        free(tasks);
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "no memory to wait for the tasks of this host");
    }
    tasks->listener = -1;
    tasks->room = options->count - 1;
    tdm_status status = meet(tasks, options, err);
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
        accept_others(tasks); /* who came late */
        close(tasks->listener);
    }
    for (int i = 1; i <= tasks->count; i++) {
        int fd = tasks->others[i].fd < 0 ? ~tasks->others[i].fd : tasks->others[i].fd;
        (void)send(fd, &last, sizeof last, MSG_NOSIGNAL);
        close(fd);
    }
    free(tasks->others);
    free(tasks);
}

/* ---- the others ------------------------------------------------------------------------------ */

/* Connected, and by the same user; -1: not yet. */
static int try_leader(const struct sockaddr_un *address, socklen_t bytes)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (connect(fd, (const struct sockaddr *)address, bytes) == 0 && is_same_user(fd)) return fd;
    close(fd);
    return -1;
}

static tdm_status find_leader(const tdm_tasks_options *o, int *out, tdm_error *err)
{
    struct sockaddr_un address;
    socklen_t bytes = 0;
    TDM_TRY(make_address(o->name, &address, &bytes, err));
    double until_s = tdm_clock_s() + look_s;
    for (int pause_ms = MIN_PAUSE_MS; tdm_clock_s() < until_s;) {
        if (o->should_stop && o->should_stop(o->user))
            return tdm_fail(err, TDM_ERR_INTERRUPTED, "stopped before the session started");
        *out = try_leader(&address, bytes);
        if (*out >= 0) return TDM_OK;
        (void)poll(NULL, 0, pause_ms);
        pause_ms = 2 * pause_ms < MAX_PAUSE_MS ? 2 * pause_ms : MAX_PAUSE_MS;
    }
    return tdm_fail(err, TDM_ERR_TIMEOUT,
                    "the first task of this host, which starts its workers, did not appear within "
                    "%g s or has already exited",
                    look_s);
}

static void report_place(int fd)
{
    tdm_cpu_set place;
    report own = {.magic = MAGIC, .is_known = tdm_os_cpu_set_here(&place)};
    if (own.is_known) memcpy(own.processors, place.processors, sizeof own.processors);
    (void)send(fd, &own, sizeof own, MSG_NOSIGNAL);
}

tdm_status tdm_tasks_follow(const tdm_tasks_options *options, int *out_code, tdm_error *err)
{
    int fd = -1;
    farewell last = {.magic = 0};
    TDM_TRY(find_leader(options, &fd, err));
    report_place(fd);
    ssize_t got;
    do {
        got = recv(fd, &last, sizeof last,
                   MSG_TRUNC); /* the kernel tells when the leader is gone */
    } while (got < 0 && errno == EINTR);
    close(fd);
    if (got != (ssize_t)sizeof last || last.magic != MAGIC)
        return tdm_fail(err, TDM_ERR_PEER_FAILED, "the first task of this host was killed");
    *out_code = last.code;
    return TDM_OK;
}
