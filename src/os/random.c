/*
 * random.c: cryptographically secure random bytes from the kernel.
 */
#include "os/internal.h"

#include <errno.h>
#include <sys/random.h>

tdm_status tdm_os_random(void *out, size_t bytes, tdm_error *err)
{
    uint8_t *at = out;
    while (bytes > 0) {
        ssize_t got = getrandom(at, bytes, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return tdm_os_fail(err, "cannot read", "random bytes");
        at += got;
        bytes -= (size_t)got;
    }
    return TDM_OK;
}
