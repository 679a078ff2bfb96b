/*
 * file_read.c: a whole regular file in memory.
 *
 * Large files are mapped, so that opening a data set is cheap until its bytes are used. Small files,
 * files of unknown size (0 in /proc) and files that cannot be mapped are read. Directories, pipes and
 * devices are rejected; O_NONBLOCK avoids hanging on a pipe without a writer. Tandem replaces files and
 * never truncates them, so a mapping stays valid; a mapped file that another program truncates kills the
 * reader, as with every program that maps files.
 */
#include "os/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAP_FROM_BYTES (256u * 1024u)

static tdm_status fail_limit(const char *path, uint64_t bytes, uint64_t limit, tdm_error *err)
{
    return tdm_fail(err, TDM_ERR_RANGE, "%s has at least %llu bytes; the maximum is %llu", path,
                    (unsigned long long)bytes, (unsigned long long)limit);
}

static tdm_status fail_kind(const char *path, mode_t mode, tdm_error *err)
{
    const char *kind = S_ISDIR(mode)    ? "a directory"
                       : S_ISFIFO(mode) ? "a pipe"
                       : S_ISSOCK(mode) ? "a socket"
                                        : "a device";
    return tdm_fail(err, TDM_ERR_INVALID, "cannot read %s: it is %s; give a regular file", path,
                    kind);
}

/* Reads to the end of the file, whose size may differ from `expected`. */
static tdm_status read_all(int fd, const char *path, size_t expected, uint64_t limit,
                           tdm_file_bytes *out, tdm_error *err)
{
    /* One more byte than expected, to detect the end. */
    size_t capacity = expected + 1 < 4096 ? 4096 : expected + 1;
    size_t count = 0;
    tdm_status status = TDM_OK;
    uint8_t *data = malloc(capacity);
    if (!data) goto no_memory;
    for (;;) {
        if (count == capacity) {
            if (capacity > SIZE_MAX / 2) goto no_memory;
            uint8_t *larger = realloc(data, capacity * 2);
            if (!larger) goto no_memory;
            data = larger;
            capacity *= 2;
        }
        ssize_t got = read(fd, data + count, capacity - count);
        if (got == 0) break;
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            status = tdm_os_fail(err, "cannot read", path);
            goto release;
        }
        count += (size_t)got;
        if (limit && count > limit) {
            status = fail_limit(path, count, limit, err);
            goto release;
        }
    }
    *out = (tdm_file_bytes){.data = data, .count = count, .mapped = false};
    return TDM_OK;

no_memory:
    status = tdm_fail(err, TDM_ERR_NO_MEMORY, "cannot read %s: out of memory after %zu bytes", path,
                      count);
release:
    free(data);
    return status;
}

static tdm_status read_open(int fd, const char *path, uint64_t limit, tdm_file_bytes *out,
                            tdm_error *err)
{
    struct stat info;
    if (fstat(fd, &info) != 0) return tdm_os_fail(err, "cannot read the size of", path);
    if (!S_ISREG(info.st_mode)) return fail_kind(path, info.st_mode, err);
    uint64_t size = info.st_size > 0 ? (uint64_t)info.st_size : 0;
    if (limit && size > limit) return fail_limit(path, size, limit, err);
    if (size >= SIZE_MAX / 2) return fail_limit(path, size, SIZE_MAX / 2, err);
    if (size >= MAP_FROM_BYTES) {
        void *data = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data != MAP_FAILED) {
            *out = (tdm_file_bytes){.data = data, .count = (size_t)size, .mapped = true};
            return TDM_OK;
        }
    }
    return read_all(fd, path, (size_t)size, limit, out, err);
}

tdm_status tdm_file_read(const char *path, uint64_t limit_bytes, tdm_file_bytes *out,
                         tdm_error *err)
{
    int fd = -1;
    if (!tdm__os_test_file_fails(TDM_FAULT_OPEN)) {
        do {
            fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
        } while (fd < 0 && errno == EINTR);
    }
    if (fd < 0) {
        struct stat info; /* a socket cannot be opened: the message names its type */
        int kept = errno;
        if (kept == ENXIO && stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
            return fail_kind(path, info.st_mode, err);
        }
        errno = kept;
        return tdm_os_fail(err, "cannot open", path);
    }
    tdm_status status = read_open(fd, path, limit_bytes, out, err);
    tdm__close_quietly(fd);
    return status;
}

void tdm_file_bytes_release(tdm_file_bytes *bytes)
{
    if (!bytes) return;
    if (bytes->mapped) {
        munmap((void *)(uintptr_t)bytes->data, bytes->count);
    } else {
        free((void *)(uintptr_t)bytes->data);
    }
    *bytes = (tdm_file_bytes){0};
}
