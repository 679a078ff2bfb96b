/*
 * kv_local_file.c: the file of a local store: access rights, creation and locking.
 *
 * The file belongs to one user, and others cannot read it. It is created under a file system lock,
 * and its magic number is written last: if its creator is killed, the next process creates it anew.
 * The same applies to a file from before the last reboot, because its clocks and its lock are
 * invalid. All its bytes are allocated at once, because a page that a full disk cannot provide
 * would kill the process that touches it.
 *
 * The lock is a robust mutex: it is passed on when its holder dies. A holder that is stopped
 * (SIGSTOP, a debugger) would block all processes, although the store exists to detect such
 * failures. It is killed after one second. A holder that runs, however slowly, is not touched.
 */
#include "base/base.h"
#include "base/timing.h"
#include "kv/kv_local.h"

#include <tandem/os.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAGIC = 0x564b4454, MAX_OPENS = 10 };

/* ---- lock ------------------------------------------------------------------------------------ */

tdm_status tdm__local_lock(tdm__local *local, tdm_error *err)
{
    /* A change that a dead holder did not commit does not exist: there is nothing to repair. */
    TDM_TRY(tdm__shared_lock_take(&local->head->lock, &local->owner, local->timeout_s, local->path,
                                  err));
    local->is_changed = false;
    struct stat about;
    if (fstat(local->fd, &about) == 0 && about.st_nlink > 0) return TDM_OK;
    tdm__local_unlock(local);
    return tdm_fail(err, TDM_ERR_IO, "%s: this store was removed, so its session has ended",
                    local->path);
}

/* The half of `commit` that changes with every revision, used as futex. */
static uint32_t *commit_futex(tdm__local *local)
{
    uint32_t *words = (uint32_t *)(void *)&local->head->commit;
    return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? words : words + 1;
}

void tdm__local_unlock(tdm__local *local)
{
    tdm__shared_lock_give(&local->head->lock);
    if (local->is_changed)
        (void)syscall(SYS_futex, commit_futex(local), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    local->is_changed = false;
}

void tdm__local_sleep(tdm__local *local, uint64_t revision, uint64_t until_ns)
{
    uint64_t now = tdm_clock_ns();
    if (now >= until_ns) return;
    struct timespec span = tdm_clock_timespec((double)(until_ns - now) * 1e-9);
    (void)syscall(SYS_futex, commit_futex(local), FUTEX_WAIT, (uint32_t)revision, &span, NULL, 0);
}

/* ---- file ------------------------------------------------------------------------------------ */

static void read_boot(char out[40])
{
    memset(out, 0, 40);
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!file) return;
    size_t count = fread(out, 1, 36, file);
    out[count] = '\0';
    fclose(file);
}

static tdm_status file_make_head(tdm__local_head *head, const char boot[40])
{
    atomic_store(&head->magic, 0);
    memset(head, 0, sizeof(*head));
    head->version = TDM__LOCAL_VERSION;
    memcpy(head->boot, boot, sizeof(head->boot));
    head->areas[0].generation = 1;
    atomic_store(&head->commit, 1); /* revision 1 and an empty area: revision 0 means none */
    TDM_TRY(tdm__shared_lock_init(&head->lock, NULL));
    atomic_store(&head->magic, MAGIC);
    return TDM_OK;
}

/* Initialises the file if necessary and maps it. Called with the file locked. */
static tdm_status file_prepare(tdm__local *local, off_t bytes, tdm_error *err)
{
    if (bytes != 0 && bytes != TDM__LOCAL_FILE_BYTES)
        return tdm_fail(err, TDM_ERR_FORMAT, "%s exists and is not a store", local->path);
    if (ftruncate(local->fd, TDM__LOCAL_FILE_BYTES) != 0)
        return tdm_os_fail(err, "cannot allocate space in", local->path);
    errno = posix_fallocate(local->fd, 0, TDM__LOCAL_FILE_BYTES);
    if (errno != 0) return tdm_os_fail(err, "cannot allocate space in", local->path);
    char *memory = mmap(NULL, TDM__LOCAL_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, local->fd,
                        0);
    if (memory == MAP_FAILED) return tdm_os_fail(err, "cannot map", local->path);
    local->head = (tdm__local_head *)(void *)memory;
    local->areas[0] = memory + TDM__LOCAL_HEAD_BYTES;
    local->areas[1] = local->areas[0] + TDM__LOCAL_AREA_BYTES;
    uint32_t magic = atomic_load(&local->head->magic);
    char boot[40];
    read_boot(boot);
    if (magic != 0 && magic != MAGIC)
        return tdm_fail(err, TDM_ERR_FORMAT, "%s exists and is not a store", local->path);
    if (magic == 0 || memcmp(local->head->boot, boot, sizeof(boot)) != 0) {
        if (file_make_head(local->head, boot) != TDM_OK)
            return tdm_fail(err, TDM_ERR_SYSTEM, "%s: cannot create a lock in it", local->path);
    } else if (local->head->version != TDM__LOCAL_VERSION) {
        return tdm_fail(err, TDM_ERR_UNSUPPORTED,
                        "%s is in use by another version of Tandem (store %u, this is %d)",
                        local->path, local->head->version, TDM__LOCAL_VERSION);
    }
    return TDM_OK;
}

static tdm_status file_lock(tdm__local *local, tdm_error *err)
{
    double deadline = tdm_clock_s() + local->timeout_s;
    while (flock(local->fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return tdm_os_fail(err, "cannot lock", local->path);
        if (tdm_clock_s() > deadline)
            return tdm_fail(err, TDM_ERR_TIMEOUT,
                            "%s: another process creates it and has not finished after %g s",
                            local->path, local->timeout_s);
        tdm_clock_sleep(TDM__TIMING_KV_LOCAL_CREATE_RETRY_S);
    }
    return TDM_OK;
}

/* *gone: another process removed the file before it was locked; the caller may try again. */
static tdm_status file_open(tdm__local *local, bool must_exist, bool *gone, tdm_error *err)
{
    *gone = false;
    int create = must_exist ? 0 : O_CREAT;
    local->fd = open(local->path, O_RDWR | create | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (local->fd < 0) return tdm_os_fail(err, "cannot open", local->path);
    struct stat about;
    if (fstat(local->fd, &about) != 0) return tdm_os_fail(err, "cannot stat", local->path);
    if (!S_ISREG(about.st_mode))
        return tdm_fail(err, TDM_ERR_FORMAT, "%s exists and is not a regular file", local->path);
    if (about.st_uid != geteuid() || (about.st_mode & 077) != 0)
        return tdm_fail(
            err, TDM_ERR_INVALID,
            "%s: a store must belong to its user and be private (owner %u, mode %03o; expected %u "
            "and 600)",
            local->path, (unsigned)about.st_uid, (unsigned)(about.st_mode & 0777),
            (unsigned)geteuid());
    TDM_TRY(file_lock(local, err));
    if (fstat(local->fd, &about) != 0) return tdm_os_fail(err, "cannot stat", local->path);
    *gone = about.st_nlink == 0;
    tdm_status status = *gone ? tdm_fail(err, TDM_ERR_BUSY,
                                         "%s: other processes keep creating and removing it",
                                         local->path)
                              : file_prepare(local, about.st_size, err);
    flock(local->fd, LOCK_UN);
    return status;
}

static void file_close(tdm__local *local)
{
    if (local->head) munmap(local->head, TDM__LOCAL_FILE_BYTES);
    if (local->fd >= 0) close(local->fd);
    local->head = NULL;
    local->fd = -1;
}

tdm_status tdm__local_open(const char *path, double timeout_s, bool must_exist, tdm__local **out,
                           tdm_error *err)
{
    tdm__local *local = calloc(1, sizeof(*local));
    char *own_path = strdup(path);
    if (!local || !own_path) {
        free(local);
        free(own_path);
        return tdm_fail_oom(err, "to open it (%s)", path);
    }
    local->fd = -1;
    local->path = own_path;
    local->timeout_s = timeout_s;
    local->process = getpid();
    local->touched_s = tdm_clock_s();
    bool gone = true;
    tdm_status status = TDM_OK;
    for (int i = 0; i < MAX_OPENS && gone; i++) {
        file_close(local);
        status = file_open(local, must_exist, &gone, err);
    }
    if (status != TDM_OK) {
        tdm__local_close(local);
        return status;
    }
    *out = local;
    return TDM_OK;
}

void tdm__local_close(tdm__local *local)
{
    file_close(local);
    free(local->index);
    free(local->path);
    free(local);
}
