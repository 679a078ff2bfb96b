/*
 * snapshot_pool.c: memory for the copies that saves take. (See snapshot_pool.h.)
 *
 * Invariant: while the thread runs, `pages` stays as it is; who changes it joins the thread first.
 */
#include "train/snapshot_pool.h"
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

static void await_thread(tdm__snapshot_pool *room)
{
    if (room->has_thread) pthread_join(room->thread, NULL);
    room->has_thread = false;
}

void tdm__snapshot_pool_destroy(tdm__snapshot_pool *room)
{
    if (!room) return;
    await_thread(room);
    tdm_pages_unmap(&room->pages);
    free(room);
}

/* Slice by slice: where memory is short, the system takes back what it has just given, and never lacks more
 * than one of them. */
static void *fill(void *argument)
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

void tdm__snapshot_pool_prepare(tdm__snapshot_pool *room, size_t bytes)
{
    if (bytes == 0 || room->pages.bytes >= bytes) return;
    await_thread(room);
    tdm_pages_unmap(&room->pages);
    if (tdm_pages_map(bytes, false, &room->pages, NULL) != TDM_OK) return;
    room->has_thread = tdm__thread_start(&room->thread, fill, room, NULL) == TDM_OK;
}

tdm_status tdm__snapshot_pool_take(tdm__snapshot_pool *room, size_t bytes, tdm_pages *out,
                                   tdm_error *err)
{
    await_thread(room);
    if (room->pages.bytes < bytes) {
        tdm_pages_unmap(&room->pages);
        TDM_TRY(tdm_pages_map(bytes, false, &room->pages, err));
    }
    *out = room->pages;
    room->pages = (tdm_pages){0};
    return TDM_OK;
}

void tdm__snapshot_pool_give(tdm__snapshot_pool *room, tdm_pages *pages)
{
    await_thread(room);
    tdm_pages_unmap(&room->pages);
    tdm_pages_free_lazily(pages);
    room->pages = *pages;
    *pages = (tdm_pages){0};
}
