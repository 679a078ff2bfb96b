/*
 * overlay.c: address space that is backed by less memory than its size.
 *
 * The memory is a memfd; the address space is reserved without access, and each call of tdm_overlay_lay
 * maps a range of the memfd into it. A call costs a system call and a fault for every page, so mappings
 * are made once at the start, and then only the contents of the slots change.
 */
#include "os/internal.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

tdm_status tdm_overlay_map(size_t bytes, size_t slot_bytes, tdm_overlay *out, tdm_error *err)
{
    size_t space = 0, slots = 0;
    TDM_TRY(tdm__page_round(bytes, &space, err));
    TDM_TRY(tdm__page_round(slot_bytes, &slots, err));
    int fd = memfd_create("tandem-overlay", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)slots) != 0) {
        tdm_status status = tdm__map_fail(err, slots);
        tdm__close_quietly(fd);
        return status;
    }
    void *data = mmap(NULL, space, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) {
        tdm_status status = tdm__map_fail(err, space);
        tdm__close_quietly(fd);
        return status;
    }
    *out = (tdm_overlay){.data = data, .bytes = space, .fd = fd, .slot_bytes = slots};
    return TDM_OK;
}

tdm_status tdm_overlay_lay(tdm_overlay *overlay, size_t at, size_t bytes, size_t slot_at,
                           tdm_error *err)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (at % page || bytes % page || slot_at % page || at > overlay->bytes ||
        bytes > overlay->bytes - at || slot_at > overlay->slot_bytes ||
        bytes > overlay->slot_bytes - slot_at) {
        return tdm_fail(err, TDM_ERR_RANGE,
                        "cannot map %zu bytes at %zu over slot offset %zu: out of range or not "
                        "aligned (%zu bytes over %zu, pages of %zu)",
                        bytes, at, slot_at, overlay->bytes, overlay->slot_bytes, page);
    }
    if (bytes == 0) return TDM_OK;
    uint8_t *place = (uint8_t *)overlay->data + at;
    void *got = mmap(place, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, overlay->fd,
                     (off_t)slot_at);
    return got == MAP_FAILED ? tdm__map_fail(err, bytes) : TDM_OK;
}

void tdm_overlay_unmap(tdm_overlay *overlay)
{
    if (!overlay || !overlay->data) return;
    munmap(overlay->data, overlay->bytes);
    close(overlay->fd);
    *overlay = (tdm_overlay){.fd = -1};
}
