/*
 * errno.c: the mapping of errno to status codes and messages.
 */
#include "os/internal.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

void tdm__close_quietly(int fd)
{
    int kept = errno;
    if (fd >= 0) close(fd);
    errno = kept;
}

/* One row for each errno that callers can act on; all others are TDM_ERR_IO without advice. */
static const struct {
    int error_number;
    tdm_status status;
    const char *advice; /* NULL if the reason is sufficient */
} errno_table[] = {
    {ENOENT, TDM_ERR_NOT_FOUND, NULL},
    {ENOTDIR, TDM_ERR_NOT_FOUND, NULL},
    {EEXIST, TDM_ERR_EXISTS, NULL},
    {ENOSPC, TDM_ERR_NO_SPACE, "free some space or choose another directory"},
    {EDQUOT, TDM_ERR_NO_SPACE, "free some of your quota or choose another directory"},
    {ENOMEM, TDM_ERR_NO_MEMORY, NULL},
    {EACCES, TDM_ERR_IO, "check its permissions"},
    {EPERM, TDM_ERR_IO, "check its permissions"},
    {EROFS, TDM_ERR_IO, "choose a directory that can be written"},
    {EISDIR, TDM_ERR_INVALID, "name a file"},
    {EINVAL, TDM_ERR_INVALID, NULL},
    {ENAMETOOLONG, TDM_ERR_INVALID, NULL},
    {ELOOP, TDM_ERR_INVALID, NULL},
    {EFBIG, TDM_ERR_RANGE, "raise the limit on the size of files (ulimit -f)"},
    {EOVERFLOW, TDM_ERR_RANGE, NULL},
    {ENOSYS, TDM_ERR_UNSUPPORTED, NULL},
    {EOPNOTSUPP, TDM_ERR_UNSUPPORTED, NULL},
    {ETIMEDOUT, TDM_ERR_TIMEOUT, NULL},
    {EAGAIN, TDM_ERR_BUSY, NULL},
    {EBUSY, TDM_ERR_BUSY, NULL},
    {ETXTBSY, TDM_ERR_BUSY, NULL},
    {EINTR, TDM_ERR_INTERRUPTED, NULL},
    {EMFILE, TDM_ERR_SYSTEM, "raise the limit on open files (ulimit -n)"},
    {ENFILE, TDM_ERR_SYSTEM, "the whole machine has too many open files"},
};

#define ERRNO_COUNT (sizeof(errno_table) / sizeof(errno_table[0]))

tdm_status tdm_os_errno_status(int error_number)
{
    for (size_t i = 0; i < ERRNO_COUNT; i++) {
        if (errno_table[i].error_number == error_number) return errno_table[i].status;
    }
    return TDM_ERR_IO;
}

tdm_status tdm_os_fail(tdm_error *err, const char *doing, const char *path)
{
    int error_number = errno;
    const char *advice = NULL;
    for (size_t i = 0; i < ERRNO_COUNT; i++) {
        if (errno_table[i].error_number == error_number) advice = errno_table[i].advice;
    }
    char buffer[128];
    const char *reason = strerror_r(error_number, buffer, sizeof(buffer)); /* the GNU one */
    return tdm_fail(err, tdm_os_errno_status(error_number), "%s %s: %s%s%s", doing, path, reason,
                    advice ? "; " : "", advice ? advice : "");
}
