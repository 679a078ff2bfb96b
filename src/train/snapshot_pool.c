/*
 * snapshot_pool.c: memory for the copies of the state. (See snapshot_pool.h.)
 *
 * Invariant: while the thread runs, `pages` does not change; functions that change it join the thread first.
 */
#include "train/snapshot_pool.h"
#include "os/os.h"
#include "os/thread.h"

#include <pthread.h>
#include <stdlib.h>

#define SLICE_BYTES ((size_t)16 << 20) /* whole huge pages */

struct tdm__snapshot_pool {
    tdm_pages pages; /* empty: a save has them, or there are none */
    pthread_t thread;
    bool has_thread;
};

tdm__snapshot_pool *tdm__snapshot_pool_create(void)
{
    return calloc(1, sizeof(tdm__snapshot_pool));
}

static void pool_join_thread(tdm__snapshot_pool *pool)
{
    if (pool->has_thread) pthread_join(pool->thread, NULL);
    pool->has_thread = false;
}

void tdm__snapshot_pool_destroy(tdm__snapshot_pool *pool)
{
    if (!pool) return;
    pool_join_thread(pool);
    tdm_pages_unmap(&pool->pages);
    free(pool);
}

/* Populates the pages slice by slice: if memory is short, the kernel takes back each slice right after it was
 * freed lazily, so at most one slice is in use. */
static void *pool_populate(void *argument)
{
    const tdm_pages *all = &((tdm__snapshot_pool *)argument)->pages;
    for (size_t at = 0; at < all->bytes; at += SLICE_BYTES) {
        size_t left = all->bytes - at;
        tdm_pages slice = {.data = (char *)all->data + at,
                           .bytes = left < SLICE_BYTES ? left : SLICE_BYTES};
        tdm_pages_populate(&slice);
        tdm_pages_free_lazily(&slice);
    }
    return NULL;
}

void tdm__snapshot_pool_prepare(tdm__snapshot_pool *pool, size_t bytes)
{
    if (bytes == 0 || pool->pages.bytes >= bytes) return;
    pool_join_thread(pool);
    tdm_pages_unmap(&pool->pages);
    if (tdm_pages_map(bytes, false, &pool->pages, NULL) != TDM_OK) return;
    pool->has_thread = tdm__thread_start(&pool->thread, pool_populate, pool, NULL) == TDM_OK;
}

tdm_status tdm__snapshot_pool_take(tdm__snapshot_pool *pool, size_t bytes, tdm_pages *out,
                                   tdm_error *err)
{
    pool_join_thread(pool);
    if (pool->pages.bytes < bytes) {
        tdm_pages_unmap(&pool->pages);
        TDM_TRY(tdm_pages_map(bytes, false, &pool->pages, err));
    }
    *out = pool->pages;
    pool->pages = (tdm_pages){0};
    return TDM_OK;
}

void tdm__snapshot_pool_give(tdm__snapshot_pool *pool, tdm_pages *pages)
{
    pool_join_thread(pool);
    tdm_pages_unmap(&pool->pages);
    tdm_pages_free_lazily(pages);
    pool->pages = *pages;
    *pages = (tdm_pages){0};
}
