/*
 * file_map.c: memory-mapped files, for data that is larger than memory.
 *
 * A file is created, disk space is allocated for all or parts of it, and it is mapped: from then on no
 * write to these parts can fail. An existing file is removed first, so processes that have mapped it keep
 * the old one. On failure the new file is removed.
 *
 * A file exists as long as its name or a mapping. To leave no file behind even after a crash, remove the
 * name as soon as all processes have mapped it: the kernel frees the space with the last process.
 */
#include "os/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Allocates disk space for a part of the file. False, with the reason in errno, if that fails. If the file
 * system cannot allocate space, zeros are written. */
static bool take_space(int fd, const tdm_file_part *part)
{
    if (part->count == 0) return true;
    if (tdm__os_test_file_fails(TDM_FAULT_WRITE)) return false;
    int failed;
    do {
        failed = fallocate(fd, 0, (off_t)part->first, (off_t)part->count) == 0 ? 0 : errno;
        if (failed == EOPNOTSUPP)
            failed = posix_fallocate(fd, (off_t)part->first, (off_t)part->count);
    } while (failed == EINTR);
    errno = failed;
    return failed == 0;
}

static tdm_status map(int fd, const char *path, size_t bytes, tdm_pages *out, tdm_error *err)
{
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) return tdm_os_fail(err, "cannot map", path);
    *out = (tdm_pages){.data = data, .bytes = bytes};
    return TDM_OK;
}

static tdm_status take_parts(int fd, const char *path, size_t bytes, const tdm_file_part *parts,
                             size_t part_count, tdm_error *err)
{
    if (ftruncate(fd, (off_t)bytes) != 0) return tdm_os_fail(err, "cannot enlarge", path);
    for (size_t i = 0; i < part_count; i++) {
        if (parts[i].first > bytes || parts[i].count > bytes - parts[i].first)
            return tdm_fail(err, TDM_ERR_RANGE, "cannot allocate %zu + %zu of the %zu bytes of %s",
                            parts[i].first, parts[i].count, bytes, path);
        if (take_space(fd, &parts[i])) continue;
        char size_text[32];
        tdm_status status = tdm_os_fail(err, "cannot allocate disk space for", path);
        return tdm_error_context(err, status, "%s on the disk are needed",
                                 tdm_text_bytes(parts[i].count, size_text));
    }
    return TDM_OK;
}

tdm_status tdm_file_map_create_parts(const char *path, size_t bytes, const tdm_file_part *parts,
                                     size_t part_count, tdm_pages *out, tdm_error *err)
{
    size_t rounded = 0;
    TDM_TRY(tdm__page_round(bytes, &rounded, err));
    if (unlink(path) != 0 && errno != ENOENT) return tdm_os_fail(err, "cannot replace", path);
    int fd = tdm__os_test_file_fails(TDM_FAULT_OPEN)
                 ? -1
                 : open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 && errno == ENOENT)
        return tdm_fail(
            err, TDM_ERR_NOT_FOUND,
            "cannot create %s: its directory does not exist; create it, or choose another", path);
    if (fd < 0) return tdm_os_fail(err, "cannot create", path);
    tdm_status status = take_parts(fd, path, rounded, parts, part_count, err);
    if (status == TDM_OK) status = map(fd, path, rounded, out, err);
    close(fd);
    if (status != TDM_OK) unlink(path);
    return status;
}

tdm_status tdm_file_map_create(const char *path, size_t bytes, tdm_pages *out, tdm_error *err)
{
    size_t rounded = 0;
    TDM_TRY(tdm__page_round(bytes, &rounded, err));
    return tdm_file_map_create_parts(path, bytes, &(tdm_file_part){.count = rounded}, 1, out, err);
}

tdm_status tdm_file_map_open(const char *path, size_t bytes, tdm_pages *out, tdm_error *err)
{
    size_t rounded = 0;
    TDM_TRY(tdm__page_round(bytes, &rounded, err));
    int fd = tdm__os_test_file_fails(TDM_FAULT_OPEN) ? -1
                                                     : open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return tdm_os_fail(err, "cannot open", path);
    struct stat info;
    tdm_status status = TDM_OK;
    if (fstat(fd, &info) != 0)
        status = tdm_os_fail(err, "cannot read the size of", path);
    else if (!S_ISREG(info.st_mode) || (uint64_t)info.st_size < rounded)
        status = tdm_fail(err, TDM_ERR_FORMAT, "%s is not a file of at least %zu bytes", path,
                          rounded);
    if (status == TDM_OK) status = map(fd, path, rounded, out, err);
    close(fd);
    return status;
}
