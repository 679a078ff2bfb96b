/*
 * pages.c: zeroed memory from the system.
 *
 * A mapping of at least one huge page begins and ends at a multiple of 2 MiB, so that the kernel can back
 * all of it with huge pages; for that, more is mapped and both ends are unmapped. Shared mappings are
 * anonymous as well: they exist as long as a process that has them.
 *
 * Reserved address space uses no huge pages unless its owner requests them, because one written byte would
 * cost two megabytes, and no memory is committed for it, because most of it is never used.
 */
#include "base/base.h"
#include "os/internal.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define HUGE_BYTES ((size_t)2 * 1024 * 1024)

static void *map_aligned(size_t bytes, size_t align, int flags)
{
    size_t extra = align > 1 ? align : 0;
    uint8_t *raw = mmap(NULL, bytes + extra, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (raw == MAP_FAILED) return NULL;
    if (!extra) return raw;
    size_t head = (align - (uintptr_t)raw % align) % align;
    if (head > 0) munmap(raw, head);
    if (extra > head) munmap(raw + head + bytes, extra - head);
    return raw + head;
}

tdm_status tdm__page_round(size_t bytes, size_t *out, tdm_error *err)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (bytes > SIZE_MAX - page) {
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "cannot map %zu bytes: size overflow", bytes);
    }
    *out = tdm_align_up(bytes == 0 ? 1 : bytes, page);
    return TDM_OK;
}

tdm_status tdm__map_fail(tdm_error *err, size_t bytes)
{
    char reason[128];
    char size_text[32];
    const char *why = strerror_r(errno, reason, sizeof(reason));
    return tdm_fail(err, TDM_ERR_NO_MEMORY,
                    "cannot map %s of memory: %s; use a smaller model or batch, or more memory",
                    tdm_text_bytes(bytes, size_text), why);
}

tdm_status tdm_pages_map(size_t bytes, bool shared, tdm_pages *out, tdm_error *err)
{
    bool huge = bytes >= HUGE_BYTES;
    size_t unit = huge ? HUGE_BYTES : (size_t)sysconf(_SC_PAGESIZE);
    if (bytes > SIZE_MAX - 2 * HUGE_BYTES) {
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "cannot map %zu bytes: size overflow", bytes);
    }
    size_t rounded = tdm_align_up(bytes == 0 ? 1 : bytes, unit);
    int flags = MAP_ANONYMOUS | (shared ? MAP_SHARED : MAP_PRIVATE);
    void *data = map_aligned(rounded, huge ? unit : 1, flags);
    if (!data) return tdm__map_fail(err, rounded);
    if (huge) (void)madvise(data, rounded, MADV_HUGEPAGE); /* optional: normal pages work as well */
    *out = (tdm_pages){.data = data, .bytes = rounded};
    return TDM_OK;
}

tdm_status tdm_pages_reserve(size_t bytes, tdm_pages *out, tdm_error *err)
{
    size_t rounded = 0;
    TDM_TRY(tdm__page_round(bytes, &rounded, err));
    void *data = mmap(NULL, rounded, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) return tdm__map_fail(err, rounded);
    (void)madvise(data, rounded, MADV_NOHUGEPAGE); /* optional as well */
    *out = (tdm_pages){.data = data, .bytes = rounded};
    return TDM_OK;
}

void tdm_pages_prefer_huge(const tdm_pages *pages, size_t from)
{
    size_t first = tdm_align_up(from, HUGE_BYTES);
    if (first >= pages->bytes) return;
    /* Optional: normal pages work as well. */
    (void)madvise((uint8_t *)pages->data + first, pages->bytes - first, MADV_HUGEPAGE);
}

void tdm_pages_populate(const tdm_pages *pages)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    volatile uint8_t *bytes = pages->data;
    /* In slices, so that another thread that maps memory waits for one slice at most. */
    for (size_t at = 0; at < pages->bytes; at += HUGE_BYTES) {
        size_t count = pages->bytes - at < HUGE_BYTES ? pages->bytes - at : HUGE_BYTES;
        if (madvise((uint8_t *)pages->data + at, count, MADV_POPULATE_WRITE) == 0) continue;
        for (size_t i = at; i < at + count; i += page) bytes[i] = 0; /* an older kernel */
    }
}

void tdm_pages_free_lazily(const tdm_pages *pages)
{
    if (pages->data) (void)madvise(pages->data, pages->bytes, MADV_FREE);
}

void tdm_pages_unmap(tdm_pages *pages)
{
    if (!pages) return;
    if (pages->data) munmap(pages->data, pages->bytes);
    *pages = (tdm_pages){0};
}
