/*
 * worker.c: a worker's interface to its agent, and the table of slots.
 *
 * A slot is a position on a host: no two running workers have the same one, even if different
 * agents started them. The table is in the shared memory segment, so it outlives agents. A slot
 * whose process is gone is free. A worker counts its steps there, so that its agent knows after its
 * death which step it had completed.
 *
 * A worker first writes its standard streams to its log. When it becomes rank 0 it switches to the
 * launcher's streams, which it inherited, so it does not need a running agent for that. Output from
 * before the run directory exists is moved there later.
 */
#include "base/base.h"
#include "cluster/log_forward.h"
#include "cluster/session.h"
#include "os/os.h"

#include <tandem/elastic.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct tdm_worker {
    tdm_shm *shm;
    tdm__session_slot *slot;
    int terminal[2]; /* streams of the launcher; -1: none */
    int log;
    int lines; /* pipe to the agent; -1: none */
    char log_name[TDM_HOST_BYTES + 16];
    char log_path[PATH_MAX]; /* empty: the log is already in the run directory */
};

/* ---- slots ----------------------------------------------------------------------------------- */

tdm_status tdm__slots_take(tdm_shm *shm, tdm__session_slot **out, tdm_error *err)
{
    void *memory;
    TDM_TRY(tdm_shm_region_take(shm, TDM__SLOTS_NAME, TDM_MAX_SLOTS * sizeof(tdm__session_slot),
                                NULL, &memory, err));
    *out = memory;
    return TDM_OK;
}

int tdm__slots_claim(tdm__session_slot *slots, int64_t pid)
{
    for (int i = 0; i < TDM_MAX_SLOTS; i++) {
        int64_t holder = atomic_load(&slots[i].pid);
        if (holder != 0 && (kill((pid_t)holder, 0) == 0 || errno != ESRCH)) continue;
        if (!atomic_compare_exchange_strong(&slots[i].pid, &holder, pid)) continue;
        atomic_store(&slots[i].step, 0);
        return i;
    }
    return -1;
}

/* ---- worker ---------------------------------------------------------------------------------- */

static bool environment_number(const char *name, int max, int *out)
{
    const char *text = getenv(name);
    char *end;
    if (!text || !*text) return false;
    long value = strtol(text, &end, 10);
    if (*end || value < 0 || value >= max) return false;
    *out = (int)value;
    return true;
}

/* The file descriptor named by the environment, made close-on-exec; -1 if the variable is not
 * set. */
static int environment_descriptor(const char *name)
{
    int fd;
    if (!environment_number(name, INT_MAX, &fd) || fcntl(fd, F_GETFD) < 0) return -1;
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    return fd;
}

static tdm_status worker_attach(tdm_worker *w, int slot, tdm_error *err)
{
    tdm__session_slot *slots;
    int fd = environment_descriptor("TANDEM_VAULT_FD");
    if (fd < 0)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "TANDEM_MEMBER is set, but TANDEM_VAULT_FD is not an open file "
                        "descriptor: only 'tandem agent' can start workers; use 'tandem train'");
    TDM_TRY(tdm_shm_attach(fd, &w->shm, err));
    TDM_TRY(tdm__slots_take(w->shm, &slots, err));
    w->slot = &slots[slot];
    atomic_store(&w->slot->pid, (int64_t)getpid());
    return TDM_OK;
}

tdm_status tdm_worker_open(tdm_worker **out, tdm_error *err)
{
    const char *host = getenv("TANDEM_HOST"), *log = getenv("TANDEM_LOG");
    int slot;
    if (!getenv("TANDEM_MEMBER"))
        return tdm_fail(err, TDM_ERR_NOT_FOUND, "this process was not started by an agent");
    if (!host || !tdm__session_name_is_good(host, TDM_HOST_BYTES) ||
        !environment_number("TANDEM_SLOT", TDM_MAX_SLOTS, &slot))
        return tdm_fail(err, TDM_ERR_INVALID,
                        "TANDEM_MEMBER is set, but TANDEM_HOST or TANDEM_SLOT is not valid: only "
                        "'tandem agent' can start workers; use 'tandem train'");
    tdm_worker *w = calloc(1, sizeof(*w));
    if (!w) return tdm_fail_oom(err, "for a worker");
    w->terminal[0] = environment_descriptor("TANDEM_OUT_FD");
    w->terminal[1] = environment_descriptor("TANDEM_ERR_FD");
    w->log = -1;
    w->lines = tdm__log_forward_open(getenv("TANDEM_LINES"));
    snprintf(w->log_name, sizeof(w->log_name), "%s.%d.log", host, slot);
    if (log) snprintf(w->log_path, sizeof(w->log_path), "%s", log);
    tdm_status status = worker_attach(w, slot, err);
    if (status == TDM_OK) {
        w->log = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
        *out = w;
    } else {
        tdm_worker_close(w);
    }
    return status;
}

void tdm_worker_close(tdm_worker *worker)
{
    if (!worker) return;
    tdm_shm_close(worker->shm);
    for (int i = 0; i < 2; i++)
        if (worker->terminal[i] >= 0) close(worker->terminal[i]);
    if (worker->log >= 0) close(worker->log);
    if (worker->lines >= 0) close(worker->lines);
    free(worker);
}

tdm_shm *tdm_worker_shm(const tdm_worker *worker)
{
    return worker->shm;
}

void tdm_worker_tell(tdm_worker *worker, uint64_t step)
{
    atomic_store_explicit(&worker->slot->step, step, memory_order_relaxed);
}

int tdm_worker_log_fd(const tdm_worker *worker)
{
    return worker->log;
}

int tdm_worker_log_forward_fd(const tdm_worker *worker)
{
    return worker->lines;
}

void tdm_worker_speak(tdm_worker *worker)
{
    fflush(NULL);
    for (int i = 0; i < 2; i++) {
        if (worker->terminal[i] < 0) continue;
        (void)dup2(worker->terminal[i], STDOUT_FILENO + i);
        close(worker->terminal[i]);
        worker->terminal[i] = -1;
    }
}

/* Copies the output written so far. */
static void worker_copy_log(const char *from, int to)
{
    char bytes[4096];
    int fd = open(from, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    ssize_t got = 0;
    while (fd >= 0 && (got = read(fd, bytes, sizeof(bytes))) > 0)
        if (write(to, bytes, (size_t)got) != got) break;
    if (fd >= 0) close(fd);
}

void tdm_worker_move_log(tdm_worker *worker, const char *run_path)
{
    char path[PATH_MAX + sizeof(worker->log_name) + 8];
    if (!worker->log_path[0] || worker->log < 0) return;
    snprintf(path, sizeof(path), "%s/logs", run_path);
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return; /* this host cannot access the run directory */
    snprintf(path, sizeof(path), "%s/logs/%s", run_path, worker->log_name);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) return;
    fflush(NULL);
    worker_copy_log(worker->log_path, fd);
    bool speaks[2];
    for (int i = 0; i < 2; i++) {
        struct stat stream, log;
        speaks[i] = fstat(STDOUT_FILENO + i, &stream) != 0 || fstat(worker->log, &log) != 0 ||
                    stream.st_ino != log.st_ino || stream.st_dev != log.st_dev;
    }
    for (int i = 0; i < 2; i++)
        if (!speaks[i]) (void)dup2(fd, STDOUT_FILENO + i);
    (void)dup3(fd, worker->log, O_CLOEXEC);
    close(fd);
    (void)unlink(worker->log_path);
    worker->log_path[0] = '\0';
}
