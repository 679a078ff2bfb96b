/*
 * params_offload.c: blocks in files, and how a pass over them uses little memory.
 *
 * The update processes its share in order. Cells are requested in advance, so that the disk
 * reads during the computation, but at most AHEAD_CELLS of a block: the share may be larger
 * than memory. Processed cells are written out and dropped from this process. All of this is
 * advice to the kernel: without it everything works, but slower or with more memory.
 */
#include "parallel/params_inner.h"

#include <sys/mman.h>
#include <unistd.h>

enum { AHEAD_CELLS = 1024 }; /* 16 MB of each block */

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

/* The pages of a range; with `inner`, only those that no other range overlaps. */
static bool block_pages(const tdm__block *block, tdm_extent what, bool inner, void **out,
                        size_t *out_bytes)
{
    if (!block->in_file || what.count == 0) return false;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = (uintptr_t)(block->data + what.first);
    uintptr_t end = begin + what.count * sizeof(float);
    begin = inner ? (begin + page - 1) / page * page : begin / page * page;
    end = inner ? end / page * page : (end + page - 1) / page * page;
    if (begin >= end) return false;
    *out = (uint8_t *)block->data - (uintptr_t)block->data + begin;
    *out_bytes = end - begin;
    return true;
}

void tdm__block_fetch(const tdm__block *block, tdm_extent what)
{
    void *at;
    size_t bytes;
    if (block_pages(block, what, false, &at, &bytes)) (void)madvise(at, bytes, MADV_WILLNEED);
}

void tdm__block_let_go(const tdm__block *block, tdm_extent what)
{
    void *at;
    size_t bytes;
    if (!block_pages(block, what, true, &at, &bytes)) return;
    (void)madvise(at, bytes, MADV_PAGEOUT); /* begins to write */
    (void)madvise(at, bytes,
                  MADV_DONTNEED); /* the mapping is shared, so the file keeps the numbers */
}

/* Requests cells of all blocks in files, up to the end of the announced update. */
static void params_fetch(tdm_params *store, tdm__cells cells)
{
    if (cells.first < store->coming.first) cells.first = store->coming.first;
    if (cells.end > store->coming.end) cells.end = store->coming.end;
    if (cells.first >= cells.end) return;
    for (int i = TDM_BLOCK_EMA; i < TDM__MAX_BLOCKS; i++)
        tdm__block_fetch(&store->blocks[i], tdm__cells_extent(store->layout, cells));
}

void tdm__params_will_update(tdm_params *store, tdm__cells cells)
{
    store->coming = cells;
    params_fetch(store, (tdm__cells){cells.first, cells.first + AHEAD_CELLS});
}

void tdm__params_has_updated(tdm_params *store, tdm__cells cells)
{
    for (int i = TDM_BLOCK_EMA; i < TDM__MAX_BLOCKS; i++)
        tdm__block_let_go(&store->blocks[i], tdm__cells_extent(store->layout, cells));
    params_fetch(store, (tdm__cells){cells.first + AHEAD_CELLS, cells.end + AHEAD_CELLS});
}
