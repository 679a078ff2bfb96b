/*
 * session.c: the files of a session on a host, in the user's runtime directory.
 *
 * Every process of a session holds SESSION.lock with a shared flock(), which is released when the
 * process exits; workers inherit that of their agent. A session has ended on this host when its
 * lock is free. The process that finds this takes the lock exclusively and removes the files.
 * Session names are random, so files are never reused by another session.
 *
 * Invariant: files of a session are removed only under its exclusive lock. After locking, a process
 * checks that the lock file still has its name.
 */
#include "cluster/session.h"
#include "base/base.h"
#include "base/timing.h"
#include "os/os.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { URL_BYTES = 4096, LOCK_TRIALS = 200 };

/* ---- directory ------------------------------------------------------------------------------- */

/* Creates the directory if it is missing, and checks that only this user can access it. */
static tdm_status runtime_dir_make(tdm_arena *arena, const char *path, tdm_error *err)
{
    struct stat about;
    if (!path) return tdm_fail_oom(err, "for the name of the runtime directory");
    if (mkdir(path, 0700) != 0 && errno == ENOENT) {
        TDM_TRY(tdm_dir_make(tdm_path_dirname(arena, path), err));
        if (mkdir(path, 0700) != 0 && errno != EEXIST)
            return tdm_os_fail(err, "cannot create", path);
    }
    if (lstat(path, &about) != 0)
        return tdm_os_fail(err, "cannot create the runtime directory", path);
    if (!S_ISDIR(about.st_mode) || about.st_uid != geteuid() || (about.st_mode & 077) != 0)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "%s cannot be the runtime directory: it must belong to you and be private "
                        "(chmod 700); or set TANDEM_RUNTIME to another directory",
                        path);
    return TDM_OK;
}

/* Another user can occupy the name in /tmp; then the directory is in the user's home. */
tdm_status tdm_runtime_dir(tdm_arena *arena, const char **out, tdm_error *err)
{
    const char *own = getenv("TANDEM_RUNTIME"), *of_user = getenv("XDG_RUNTIME_DIR");
    const char *home = getenv("HOME");
    tdm_error why = {0};
    if (own && *own) {
        *out = tdm_path_absolute(arena, own);
        return runtime_dir_make(arena, *out, err);
    }
    if (of_user && of_user[0] == '/') {
        *out = tdm_arena_printf(arena, "%s/tandem", of_user);
        return runtime_dir_make(arena, *out, err);
    }
    *out = tdm_arena_printf(arena, "/tmp/tandem-%ld", (long)getuid());
    tdm_status status = runtime_dir_make(arena, *out, &why);
    if (status != TDM_OK && home && home[0] == '/') {
        *out = tdm_arena_printf(arena, "%s/.cache/tandem/run", home);
        if (runtime_dir_make(arena, *out, NULL) == TDM_OK) return TDM_OK;
    }
    return status == TDM_OK ? TDM_OK : tdm_fail(err, status, "%s", why.message);
}

static tdm_status place_fill(const char *dir, const char *session, tdm_arena *arena,
                             tdm_session_place *out, tdm_error *err)
{
    out->session = tdm_arena_strdup(arena, session);
    out->job = tdm_arena_printf(arena, "%s/%s.yaml", dir, session);
    out->logs = tdm_arena_printf(arena, "%s/%s.logs", dir, session);
    out->secret = tdm_arena_printf(arena, "%s/%s.secret", dir, session);
    if (out->session && out->job && out->logs && out->secret) return TDM_OK;
    return tdm_fail_oom(err, "for the names of a session's files");
}

/* ---- removal --------------------------------------------------------------------------------- */

static void session_remove_logs(const char *path)
{
    DIR *logs = opendir(path);
    if (!logs) return;
    for (struct dirent *entry; (entry = readdir(logs));)
        if (entry->d_name[0] != '.') (void)unlinkat(dirfd(logs), entry->d_name, 0);
    closedir(logs);
    (void)rmdir(path);
}

/* The lock file is removed last: while it exists, so do the others. */
static void session_remove_files(const char *dir, const char *session)
{
    static const char *const ends[] = {"store", "url", "yaml", "secret", "lock"};
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s.logs", dir, session);
    session_remove_logs(path);
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s.%s", dir, session, ends[i]);
        (void)unlink(path);
    }
}

/* Whether `fd` is the file of this name: another process may have removed and recreated it. */
static bool file_has_name(int fd, const char *path)
{
    struct stat opened, named;
    return fstat(fd, &opened) == 0 && lstat(path, &named) == 0 && opened.st_ino == named.st_ino &&
           opened.st_dev == named.st_dev;
}

/* Whether a process holds the session. If not, removes its files. `create` is 0, or O_CREAT if the
 * session has files but no lock file, so that they are removed under the lock as well. */
static bool session_is_held(const char *dir, const char *session, int create)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s.lock", dir, session);
    int fd = open(path, O_RDWR | create | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return false;
    bool held = flock(fd, LOCK_EX | LOCK_NB) != 0;
    if (!held && file_has_name(fd, path)) session_remove_files(dir, session);
    close(fd);
    return held;
}

/* ---- hold ------------------------------------------------------------------------------------ */

/* Opens the lock file and takes a shared lock. Another process holds it exclusively only while it
 * removes files of an earlier session, so the next attempt succeeds. TDM_ERR_BUSY: all attempts
 * failed. */
static tdm_status session_lock(const char *path, int *out, tdm_error *err)
{
    for (int i = 0; i < LOCK_TRIALS; i++) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0) return tdm_os_fail(err, "cannot open", path);
        if (flock(fd, LOCK_SH | LOCK_NB) == 0 && file_has_name(fd, path)) {
            *out = fd;
            return TDM_OK;
        }
        close(fd);
        tdm_clock_sleep(TDM__TIMING_SESSION_LOCK_PAUSE_S);
    }
    return tdm_fail(err, TDM_ERR_BUSY, "%s: the session has just ended", path);
}

/* Atomic for readers, but not durable: a power failure ends the session anyway, so it does not wait
 * for the disk. */
tdm_status tdm__session_put_file(const char *path, const char *text, tdm_error *err)
{
    char temporary[PATH_MAX];
    snprintf(temporary, sizeof(temporary), "%s.%ld", path, (long)getpid());
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return tdm_os_fail(err, "cannot create", temporary);
    size_t length = strlen(text), done = 0;
    while (done < length) {
        ssize_t put = write(fd, text + done, length - done);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) break;
        done += (size_t)put;
    }
    tdm_status status = done == length ? TDM_OK : tdm_os_fail(err, "cannot write", temporary);
    close(fd);
    if (status == TDM_OK && rename(temporary, path) != 0)
        status = tdm_os_fail(err, "cannot create", path);
    if (status != TDM_OK) (void)unlink(temporary);
    return status;
}

static tdm_status session_write_files(const char *dir, const char *store, const char *job_text,
                                      tdm_session_hold *hold, tdm_error *err)
{
    const char *url_path = tdm_arena_printf(hold->arena, "%s/%s.url", dir, hold->place.session);
    hold->place.store = tdm_arena_strdup(hold->arena, store);
    if (!url_path || !hold->place.store) return tdm_fail_oom(err, "for a session's files");
    TDM_TRY(tdm_dir_make(hold->place.logs, err));
    if (job_text && !tdm_path_exists(hold->place.job))
        TDM_TRY(tdm__session_put_file(hold->place.job, job_text, err));
    if (tdm_path_exists(url_path)) return TDM_OK;
    return tdm__session_put_file(url_path, store, err);
}

tdm_status tdm_session_hold_init(const char *session, const char *store, const char *job_text,
                                 tdm_session_hold *out, tdm_error *err)
{
    tdm_session_hold hold = {.fd = -1, .arena = tdm_arena_create("session")};
    const char *dir = NULL, *lock = NULL;
    char local[PATH_MAX + 16];
    tdm_status status = TDM_OK;
    if (!hold.arena) return tdm_fail_oom(err, "for a session");
    if (!tdm__session_name_is_good(session, TDM_SESSION_BYTES))
        status = tdm_fail(err, TDM_ERR_INVALID, "'%s' is not a valid session name", session);
    if (status == TDM_OK) status = tdm_runtime_dir(hold.arena, &dir, err);
    if (status == TDM_OK) status = place_fill(dir, session, hold.arena, &hold.place, err);
    if (status == TDM_OK) {
        lock = tdm_arena_printf(hold.arena, "%s/%s.lock", dir, session);
        status = lock ? session_lock(lock, &hold.fd, err) : tdm_fail_oom(err, "for a session");
    }
    if (status == TDM_OK) {
        snprintf(local, sizeof(local), "local:%s/%s.store", dir, session);
        status = session_write_files(dir, store ? store : local, job_text, &hold, err);
    }
    if (status != TDM_OK) {
        tdm_session_hold_release(&hold);
        return status;
    }
    *out = hold;
    return TDM_OK;
}

void tdm_session_hold_release(tdm_session_hold *hold)
{
    if (hold->fd >= 0) close(hold->fd);
    const char *dir = NULL;
    if (hold->fd >= 0 && tdm_runtime_dir(hold->arena, &dir, NULL) == TDM_OK)
        (void)session_is_held(dir, hold->place.session, 0);
    tdm_arena_destroy(hold->arena);
    *hold = (tdm_session_hold){.fd = -1};
}

/* ---- list ------------------------------------------------------------------------------------ */

static tdm_status session_read_url(const char *dir, tdm_session_place *place, tdm_arena *arena,
                                   tdm_error *err)
{
    tdm_file_bytes bytes;
    const char *path = tdm_arena_printf(arena, "%s/%s.url", dir, place->session);
    if (!path) return tdm_fail_oom(err, "for a session");
    TDM_TRY(tdm_file_read(path, URL_BYTES, &bytes, err));
    place->store = tdm_arena_strndup(arena, (const char *)bytes.data, bytes.count);
    tdm_file_bytes_release(&bytes);
    return place->store ? TDM_OK : tdm_fail_oom(err, "for a session");
}

/* The session to which a file with this suffix belongs; NULL if the suffix differs. */
static const char *session_of(const char *name, const char *end, tdm_arena *arena)
{
    size_t length = strlen(name), end_length = strlen(end);
    if (length <= end_length || strcmp(name + length - end_length, end) != 0) return NULL;
    const char *session = tdm_arena_strndup(arena, name, length - end_length);
    return session && tdm__session_name_is_good(session, TDM_SESSION_BYTES) ? session : NULL;
}

/* Removes stores without a lock file. A session creates its lock before its store and removes it
 * last: such a store was created by an earlier version of 'tandem ps', which read a session that
 * had just ended. */
static void session_sweep_stores(const char *dir, const char *const *names, size_t count,
                                 tdm_arena *arena)
{
    char lock[PATH_MAX];
    for (size_t i = 0; i < count; i++) {
        const char *session = session_of(names[i], ".store", arena);
        if (!session) continue;
        snprintf(lock, sizeof(lock), "%s/%s.lock", dir, session);
        if (!tdm_path_exists(lock)) (void)session_is_held(dir, session, O_CREAT);
    }
}

tdm_status tdm_session_list(tdm_arena *arena, tdm_session_place **out, size_t *out_count,
                            tdm_error *err)
{
    const char *dir = NULL, *const *names = NULL;
    size_t count = 0, found = 0;
    TDM_TRY(tdm_runtime_dir(arena, &dir, err));
    TDM_TRY(tdm_dir_list(dir, arena, &names, &count, err));
    tdm_session_place *places = tdm_arena_array(arena, count + 1, sizeof(*places));
    if (!places) return tdm_fail_oom(err, "for the list of sessions");
    session_sweep_stores(dir, names, count, arena);
    for (size_t i = 0; i < count; i++) {
        const char *session = session_of(names[i], ".lock", arena);
        if (!session || !session_is_held(dir, session, 0)) continue;
        TDM_TRY(place_fill(dir, session, arena, &places[found], err));
        /* The file may be missing while a session starts or ends. */
        if (session_read_url(dir, &places[found], arena, NULL) == TDM_OK) found++;
    }
    *out = places;
    *out_count = found;
    return TDM_OK;
}
