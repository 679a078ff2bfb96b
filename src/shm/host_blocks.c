/*
 * host_blocks.c: allocation of blocks in the segment, by any rank.
 *
 * The table has one word per block: its first page and its number of pages. One store of that word
 * creates a block, and one store of zero removes it: a rank that dies at any instruction leaves a
 * consistent table and at worst an unused block. The lock prevents two ranks from choosing the same
 * pages; it is a robust mutex, which the kernel passes on when its holder dies. Freeing needs no lock:
 * the pages are punched out of the segment while the word, marked, still reserves them.
 *
 * Blocks start at pages. Large blocks are in a separate area, at multiples of a huge page. A fresh block
 * is zero because its pages were never touched or were punched out since.
 */
#include "base/timing.h"
#include "os/os.h"
#include "shm/host_inner.h"

#include <tandem/os.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define LARGE_BYTES (4ull << 20) /* blocks of at least this size are large */
#define ASK_BYTES                                                                                  \
    (16ull << 20) /* for blocks of at least this size, check the available memory first */
#define LEAVING (1ull << 63) /* in a record: its pages are being freed */
#define MAX_PAGES (1ull << 31)

enum { HUGE_PAGES = 512 };

/* A record: first page in bits 32 to 62, number of pages in bits 0 to 31. */
static uint64_t record_first(uint64_t record)
{
    return (record & ~LEAVING) >> 32;
}

static uint64_t record_end(uint64_t record)
{
    return record_first(record) + (uint32_t)record;
}

static tdm_status lock_table(tdm__host *host, tdm_error *err)
{
    return tdm__shared_lock_take(&host->segment->lock, &host->owner, TDM__TIMING_SHM_LOCK_S,
                                 "the shared memory of this host's ranks", err);
}

typedef struct extent {
    uint64_t first, end; /* pages */
} extent;

/* Whether [first, first + pages) is free. */
static bool table_is_free(const tdm__host *host, uint32_t high, uint64_t first, uint64_t pages)
{
    for (uint32_t i = 0; i < high; i++) {
        uint64_t record = atomic_load_explicit(&host->records[i], memory_order_acquire);
        if (record && record_first(record) < first + pages && record_end(record) > first)
            return false;
    }
    return true;
}

static int extent_compare(const void *a, const void *b)
{
    const extent *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

/* The first gap of `pages` pages within [from, to); UINT64_MAX if there is none. */
static uint64_t table_find_gap(const tdm__host *host, uint32_t high, extent within, uint64_t pages,
                               uint64_t align)
{
    extent *used = malloc(((size_t)high + 1) * sizeof(*used));
    if (!used) return UINT64_MAX;
    size_t count = 0;
    for (uint32_t i = 0; i < high; i++) {
        uint64_t record = atomic_load_explicit(&host->records[i], memory_order_acquire);
        if (record) used[count++] = (extent){record_first(record), record_end(record)};
    }
    if (count) qsort(used, count, sizeof(*used), extent_compare);
    uint64_t at = tdm__host_round(within.first, align);
    for (size_t i = 0; i < count; i++) {
        if (used[i].end <= at) continue;
        if (used[i].first >= at + pages) break;
        at = tdm__host_round(used[i].end, align);
    }
    free(used);
    return at + pages <= within.end ? at : UINT64_MAX;
}

/* Chooses pages in the area for this kind of block or, if that is full, in the other. Lock held. */
static uint64_t table_choose_pages(tdm__host *host, uint32_t high, uint64_t pages, bool large)
{
    const extent areas[2] = {{host->at.small / TDM__HOST_PAGE, host->at.large / TDM__HOST_PAGE},
                             {host->at.large / TDM__HOST_PAGE, host->at.end / TDM__HOST_PAGE}};
    uint64_t align = large ? HUGE_PAGES : 1;
    for (int turn = 0; turn < 2; turn++) {
        int area = (turn == 0) == large;
        uint64_t at = atomic_load_explicit(&host->segment->cursor_page[area], memory_order_relaxed);
        at = tdm__host_round(at, align);
        /* Directly after the last block, or in the first gap. */
        if (at < areas[area].first || at >= areas[area].end || at + pages > areas[area].end ||
            !table_is_free(host, high, at, pages))
            at = table_find_gap(host, high, areas[area], pages, align);
        if (at == UINT64_MAX) continue;
        atomic_store_explicit(&host->segment->cursor_page[area], at + pages, memory_order_relaxed);
        return at;
    }
    return UINT64_MAX;
}

/* Adds the block to the table. Lock held. */
static tdm_status table_add_block(tdm__host *host, uint64_t pages, bool large, uint64_t *out,
                                  tdm_error *err)
{
    uint32_t high = atomic_load_explicit(&host->segment->record_high, memory_order_relaxed);
    if (high > TDM__MAX_HOST_BLOCKS) high = TDM__MAX_HOST_BLOCKS;
    uint32_t place = 0;
    while (place < high && atomic_load_explicit(&host->records[place], memory_order_relaxed))
        place++;
    if (place == TDM__MAX_HOST_BLOCKS)
        return tdm_fail(err, TDM_ERR_NO_MEMORY,
                        "this host's shared memory has reached its limit of %d blocks",
                        TDM__MAX_HOST_BLOCKS);
    uint64_t first = table_choose_pages(host, high, pages, large);
    if (first == UINT64_MAX)
        return tdm_fail(err, TDM_ERR_NO_MEMORY,
                        "this host's shared memory (%llu MB of address space) has no space for "
                        "another %llu KB",
                        (unsigned long long)(host->at.end >> 20),
                        (unsigned long long)pages * (TDM__HOST_PAGE / 1024));
    if (place == high)
        atomic_store_explicit(&host->segment->record_high, high + 1, memory_order_relaxed);
    atomic_store_explicit(&host->records[place], first << 32 | pages, memory_order_release);
    *out = first * TDM__HOST_PAGE;
    return TDM_OK;
}

tdm_status tdm__host_alloc(tdm__host *host, size_t bytes, uint64_t *out_offset, tdm_error *err)
{
    uint64_t pages = bytes / TDM__HOST_PAGE + (bytes % TDM__HOST_PAGE != 0);
    if (pages == 0) pages = 1;
    if (pages >= MAX_PAGES || pages * TDM__HOST_PAGE > host->at.end)
        return tdm_fail(
            err, TDM_ERR_NO_MEMORY,
            "cannot allocate %zu bytes of shared memory: the segment has %llu MB of address space",
            bytes, (unsigned long long)(host->at.end >> 20));
    if (bytes >= ASK_BYTES) {
        tdm_memory_info info;
        tdm_os_memory_info(&info);
        if (info.available_bytes && bytes > info.available_bytes)
            return tdm_fail(err, TDM_ERR_NO_MEMORY,
                            "cannot allocate %zu MB of shared memory: the machine has %llu MB left",
                            bytes >> 20, (unsigned long long)(info.available_bytes >> 20));
    }
    TDM_TRY(lock_table(host, err));
    tdm_status status = table_add_block(host, pages, bytes >= LARGE_BYTES, out_offset, err);
    tdm__shared_lock_give(&host->segment->lock);
    return status;
}

void tdm__host_free(tdm__host *host, uint64_t offset)
{
    uint32_t high = atomic_load_explicit(&host->segment->record_high, memory_order_relaxed);
    for (uint32_t i = 0; i < high && i < TDM__MAX_HOST_BLOCKS; i++) {
        uint64_t record = atomic_load_explicit(&host->records[i], memory_order_acquire);
        if (!record || record & LEAVING || record_first(record) * TDM__HOST_PAGE != offset)
            continue;
        if (!atomic_compare_exchange_strong(&host->records[i], &record, record | LEAVING)) break;
        uint64_t bytes = (record_end(record) - record_first(record)) * TDM__HOST_PAGE;
        if (fallocate(host->memory_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
                      (off_t)bytes) != 0 &&
            madvise(host->base + offset, bytes, MADV_REMOVE) != 0)
            memset(host->base + offset, 0, bytes); /* the next user must find zeros */
        atomic_store_explicit(&host->records[i], 0, memory_order_release);
        return;
    }
    tdm_log(TDM_LOG_WARN, "comm", "cannot free shared memory at offset %llu: it is not allocated",
            (unsigned long long)offset);
}

void *tdm__host_at(const tdm__host *host, uint64_t offset)
{
    return host->base + offset;
}

uint64_t tdm__host_offset(const tdm__host *host, const void *memory, size_t bytes)
{
    uintptr_t at = (uintptr_t)memory, base = (uintptr_t)host->base;
    if (!host->base || at < base || at - base > host->at.end || bytes > host->at.end - (at - base))
        return UINT64_MAX;
    return at - base;
}
