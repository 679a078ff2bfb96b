/*
 * file_write.c: files replaced atomically.
 *
 * Invariants, at every instant and after every failure:
 *   1. The name refers to the complete old file or the complete new one, never to a mixture.
 *   2. A failed commit leaves the old file in place, even if the last step failed: the new file is
 *      exchanged with the old one, and exchanged back if the directory cannot be synced.
 *   3. No temporary file is left behind, unless the process is killed. Its name is then
 *      ".NAME.PID.tmp" or ".NAME.PID-N.tmp", so that a later run can check whether the writer is alive.
 * On file systems that cannot exchange two names a plain rename is used; only there does a failed sync of
 * the directory leave the new file in place, which the message reports.
 *
 * Large pieces whose address and file offset have the same alignment bypass the page cache: filling the
 * cache with bytes that are not read soon costs more than the rest of a write. Only whole blocks are
 * written that way; the unaligned ends use the page cache.
 */
#include "os/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE (1 << 1)
#endif

#define TEMPORARY_TRIES 1000
#define DIRECT_ALIGN ((size_t)TDM_FILE_ALIGN)
#define MIN_DIRECT ((size_t)256 * 1024) /* smaller pieces take little of the page cache */
#define NAME_BYTES 256                  /* NAME_MAX and the terminator */

struct tdm_file_writer {
    char *path;       /* as given, for messages */
    const char *name; /* the last component, in `path` */
    char temporary[NAME_BYTES];
    bool joined; /* another process has created the file */
    int directory_fd;
    int fd;
    int direct_fd;  /* the same file, opened for direct I/O; -1: not opened yet, or not available */
    bool no_direct; /* direct I/O is not available */
};

static void writer_free(tdm_file_writer *writer)
{
    tdm__close_quietly(writer->direct_fd);
    tdm__close_quietly(writer->fd);
    tdm__close_quietly(writer->directory_fd);
    free(writer->path);
    free(writer);
}

/* ---- create ---------------------------------------------------------------------------------- */

static int open_directory(const tdm_file_writer *writer)
{
    if (tdm__os_test_file_fails(TDM_FAULT_OPEN)) return -1;
    size_t length = (size_t)(writer->name - writer->path);
    if (length == 0) return open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* With its last slash, so that "/" works as well. */
    char *directory = strndup(writer->path, length);
    if (!directory) {
        errno = ENOMEM;
        return -1;
    }
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(directory);
    return fd;
}

static int open_temporary(tdm_file_writer *writer)
{
    if (tdm__os_test_file_fails(TDM_FAULT_OPEN)) return -1;
    for (int i = 0; i < TEMPORARY_TRIES; i++) {
        char suffix[48];
        if (i == 0) {
            snprintf(suffix, sizeof(suffix), ".%ld.tmp", (long)getpid());
        } else {
            snprintf(suffix, sizeof(suffix), ".%ld-%d.tmp", (long)getpid(), i);
        }
        int room = NAME_BYTES - 2 - (int)strlen(suffix); /* a very long name is cut */
        snprintf(writer->temporary, sizeof(writer->temporary), ".%.*s%s", room, writer->name,
                 suffix);
        int fd = openat(writer->directory_fd, writer->temporary,
                        O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (fd >= 0) return fd;
        if (errno != EEXIST && errno != EINTR) return -1;
    }
    return -1; /* errno is EEXIST */
}

/* The file to replace: if `path` is a link, its target, so that the link is kept. An existing
 * file must be a regular one: a device or a pipe must not be replaced. NULL after a failure. */
static char *find_target(const char *path, tdm_status *status, tdm_error *err)
{
    struct stat info;
    *status = TDM_OK;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) {
        *status = tdm_fail(
            err, TDM_ERR_INVALID,
            "cannot write %s: it is a device, a pipe or a socket; give a regular file, or redirect "
            "the output in the shell",
            path);
        return NULL;
    }
    char *target = lstat(path, &info) == 0 && S_ISLNK(info.st_mode) ? realpath(path, NULL) : NULL;
    if (!target) target = strdup(path);
    if (!target) *status = tdm_fail(err, TDM_ERR_NO_MEMORY, "cannot write %s: out of memory", path);
    return target;
}

tdm_status tdm_file_writer_create(const char *path, tdm_file_writer **out, tdm_error *err)
{
    tdm_file_writer *writer = calloc(1, sizeof(*writer));
    if (!writer) return tdm_fail(err, TDM_ERR_NO_MEMORY, "cannot write %s: out of memory", path);
    writer->fd = writer->directory_fd = writer->direct_fd = -1;
    tdm_status status;
    writer->path = find_target(path, &status, err);
    if (!writer->path) goto free_writer;
    const char *slash = strrchr(writer->path, '/');
    writer->name = slash ? slash + 1 : writer->path;
    if (!*writer->name || strcmp(writer->name, ".") == 0 || strcmp(writer->name, "..") == 0) {
        status = tdm_fail(err, TDM_ERR_INVALID, "cannot write \"%s\": not a file name", path);
        goto free_writer;
    }
    writer->directory_fd = open_directory(writer);
    if (writer->directory_fd < 0) {
        status = tdm_os_fail(err, "cannot open the directory of", path);
        goto free_writer;
    }
    writer->fd = open_temporary(writer);
    if (writer->fd < 0) {
        status = tdm_os_fail(err, "cannot create a temporary file for", path);
        goto free_writer;
    }
    *out = writer;
    return TDM_OK;

free_writer:
    writer_free(writer);
    return status;
}

char *tdm_file_writer_temporary(const tdm_file_writer *writer, tdm_arena *arena)
{
    size_t length = (size_t)(writer->name - writer->path);
    char *directory = tdm_arena_strndup(arena, writer->path, length);
    char *path = directory ? tdm_arena_printf(arena, "%s%s", directory, writer->temporary) : NULL;
    return path ? tdm_path_absolute(arena, path) : NULL;
}

tdm_status tdm_file_writer_join(const char *temporary, tdm_file_writer **out, tdm_error *err)
{
    tdm_file_writer *writer = calloc(1, sizeof(*writer));
    if (writer) writer->path = strdup(temporary);
    if (!writer || !writer->path) {
        free(writer);
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "cannot write %s: out of memory", temporary);
    }
    writer->joined = true;
    writer->fd = writer->directory_fd = writer->direct_fd = -1;
    if (!tdm__os_test_file_fails(TDM_FAULT_OPEN)) {
        writer->fd = open(temporary, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    }
    if (writer->fd < 0) {
        tdm_status status = tdm_os_fail(err, "cannot open for writing", temporary);
        writer_free(writer);
        return status;
    }
    *out = writer;
    return TDM_OK;
}

/* ---- write ----------------------------------------------------------------------------------- */

/* Writes with one system call, at `offset`, or (-1) at the file position. */
static ssize_t write_some(int fd, const void *bytes, size_t count, off_t offset)
{
    if (tdm__os_test_file_fails(TDM_FAULT_WRITE)) return -1;
    ssize_t written;
    do {
        written = offset < 0 ? write(fd, bytes, count) : pwrite(fd, bytes, count, offset);
    } while (written < 0 && errno == EINTR);
    if (written == 0) errno = EIO; /* the call made no progress and gave no reason */
    return written;
}

tdm_status tdm_file_writer_write(tdm_file_writer *writer, const void *bytes, size_t count,
                                 tdm_error *err)
{
    const uint8_t *next = bytes;
    while (count > 0) {
        ssize_t written = write_some(writer->fd, next, count, -1);
        if (written <= 0) return tdm_os_fail(err, "cannot write", writer->path);
        next += written;
        count -= (size_t)written;
    }
    return TDM_OK;
}

/* Opens the file a second time, for direct I/O. If the file system does not support that, everything is written
 * through the page cache. */
static bool has_direct(tdm_file_writer *writer)
{
    if (writer->direct_fd >= 0) return true;
    if (writer->no_direct) return false;
    char link[64];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", writer->fd);
    /* A larger page could contain bytes of direct and of cached writes. */
    if (sysconf(_SC_PAGESIZE) <= (long)DIRECT_ALIGN)
        writer->direct_fd = open(link, O_WRONLY | O_CLOEXEC | O_DIRECT);
    writer->no_direct = writer->direct_fd < 0;
    return !writer->no_direct;
}

/* The number of bytes, of `count`, that can be written directly; *first is the number of bytes before them.
 * 0: none. */
static size_t direct_part(uint64_t offset, const uint8_t *bytes, size_t count, size_t *first)
{
    size_t inside = (size_t)(offset % DIRECT_ALIGN);
    *first = inside > 0 ? DIRECT_ALIGN - inside : 0;
    if ((uintptr_t)bytes % DIRECT_ALIGN != inside || count < MIN_DIRECT + *first) return 0;
    return (count - *first) / DIRECT_ALIGN * DIRECT_ALIGN;
}

static tdm_status put_at(tdm_file_writer *writer, uint64_t offset, const uint8_t *next,
                         size_t count, tdm_error *err)
{
    while (count > 0) {
        ssize_t written = write_some(writer->fd, next, count, (off_t)offset);
        if (written <= 0) return tdm_os_fail(err, "cannot write", writer->path);
        next += written;
        offset += (uint64_t)written;
        count -= (size_t)written;
    }
    return TDM_OK;
}

/* Writes whole blocks directly. If a direct write fails, the rest is written through the page cache, without a
 * message. */
static tdm_status put_blocks(tdm_file_writer *writer, uint64_t offset, const uint8_t *next,
                             size_t count, tdm_error *err)
{
    while (count > 0 && has_direct(writer)) {
        ssize_t written = write_some(writer->direct_fd, next, count, (off_t)offset);
        if (written < 0 && errno != EINVAL && errno != EOPNOTSUPP)
            return tdm_os_fail(err, "cannot write", writer->path);
        if (written <= 0 || (size_t)written % DIRECT_ALIGN != 0) {
            tdm__close_quietly(writer->direct_fd);
            writer->direct_fd = -1;
            writer->no_direct = true;
        }
        if (written <= 0) break;
        next += written;
        offset += (uint64_t)written;
        count -= (size_t)written;
    }
    return put_at(writer, offset, next, count, err);
}

void tdm_file_writer_cache(tdm_file_writer *writer)
{
    writer->no_direct = true;
}

tdm_status tdm_file_writer_write_at(tdm_file_writer *writer, uint64_t offset, const void *bytes,
                                    size_t count, tdm_error *err)
{
    const uint8_t *next = bytes;
    if (offset > INT64_MAX || count > (uint64_t)INT64_MAX - offset) {
        return tdm_fail(err, TDM_ERR_RANGE, "cannot write %s: file size overflow", writer->path);
    }
    size_t first = 0, blocks = 0;
    if (!writer->no_direct) blocks = direct_part(offset, next, count, &first);
    if (blocks == 0) return put_at(writer, offset, next, count, err);
    TDM_TRY(put_at(writer, offset, next, first, err));
    TDM_TRY(put_blocks(writer, offset + first, next + first, blocks, err));
    first += blocks;
    return put_at(writer, offset + first, next + first, count - first, err);
}

/* ---- commit ---------------------------------------------------------------------------------- */

static bool sync_fd(int fd)
{
    if (tdm__os_test_file_fails(TDM_FAULT_FSYNC)) return false;
    while (fsync(fd) != 0) {
        if (errno != EINTR) return false;
    }
    return true;
}

tdm_status tdm_file_writer_sync(tdm_file_writer *writer, tdm_error *err)
{
    return sync_fd(writer->fd) ? TDM_OK : tdm_os_fail(err, "cannot sync", writer->path);
}

/* How the new file got its name, which determines how to undo that. */
typedef enum placement { PLACED_NOT, PLACED_FRESH, PLACED_EXCHANGED, PLACED_OVER } placement;

static placement file_place(const tdm_file_writer *writer)
{
    int directory = writer->directory_fd;
    if (tdm__os_test_file_fails(TDM_FAULT_RENAME)) return PLACED_NOT;
    struct stat info;
    if (fstatat(directory, writer->name, &info, AT_SYMLINK_NOFOLLOW) == 0) {
        if (S_ISDIR(info.st_mode)) {
            errno = EISDIR;
            return PLACED_NOT;
        }
        if (renameat2(directory, writer->temporary, directory, writer->name, RENAME_EXCHANGE) ==
            0) {
            return PLACED_EXCHANGED;
        }
        if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP && errno != ENOENT) {
            return PLACED_NOT;
        }
        return renameat(directory, writer->temporary, directory, writer->name) == 0 ? PLACED_OVER
                                                                                    : PLACED_NOT;
    }
    if (errno != ENOENT) return PLACED_NOT;
    return renameat(directory, writer->temporary, directory, writer->name) == 0 ? PLACED_FRESH
                                                                                : PLACED_NOT;
}

/* Restores the old names. False if that is impossible. Keeps errno. */
static bool file_unplace(const tdm_file_writer *writer, placement placed)
{
    int kept = errno;
    int directory = writer->directory_fd;
    bool done = false;
    if (placed == PLACED_EXCHANGED) {
        done = renameat2(directory, writer->temporary, directory, writer->name, RENAME_EXCHANGE) ==
               0;
    } else if (placed == PLACED_FRESH) {
        done = renameat(directory, writer->name, directory, writer->temporary) == 0;
    }
    errno = kept;
    return done;
}

static tdm_status writer_commit(tdm_file_writer *writer, tdm_error *err)
{
    if (!sync_fd(writer->fd)) return tdm_os_fail(err, "cannot sync", writer->path);
    int fd = writer->fd;
    writer->fd = -1;
    if (close(fd) != 0 && errno != EINTR) return tdm_os_fail(err, "cannot close", writer->path);
    placement placed = file_place(writer);
    if (placed == PLACED_NOT) return tdm_os_fail(err, "cannot replace", writer->path);
    if (sync_fd(writer->directory_fd)) return TDM_OK;
    if (file_unplace(writer, placed)) {
        return tdm_os_fail(err, "cannot sync the directory of", writer->path);
    }
    return tdm_os_fail(err, "the file was replaced, but cannot sync the directory of",
                       writer->path);
}

tdm_status tdm_file_writer_commit(tdm_file_writer *writer, tdm_error *err)
{
    tdm_status status = writer_commit(writer, err);
    /* Now the temporary name, if it still exists, refers to the file that is not needed: the old one after a
     * success, otherwise the new one. */
    unlinkat(writer->directory_fd, writer->temporary, 0);
    writer_free(writer);
    return status;
}

void tdm_file_writer_abandon(tdm_file_writer *writer)
{
    if (!writer) return;
    struct stat mine, there;
    /* Another process may have removed the file, and another writer may use the name now. */
    if (!writer->joined && fstat(writer->fd, &mine) == 0 &&
        fstatat(writer->directory_fd, writer->temporary, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
        mine.st_ino == there.st_ino && mine.st_dev == there.st_dev) {
        unlinkat(writer->directory_fd, writer->temporary, 0);
    }
    writer_free(writer);
}

tdm_status tdm_file_replace(const char *path, const void *bytes, size_t count, tdm_error *err)
{
    tdm_file_writer *writer = NULL;
    TDM_TRY(tdm_file_writer_create(path, &writer, err));
    tdm_status status = tdm_file_writer_write(writer, bytes, count, err);
    if (status != TDM_OK) {
        tdm_file_writer_abandon(writer);
        return status;
    }
    return tdm_file_writer_commit(writer, err);
}
