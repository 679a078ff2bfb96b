/*
 * saver_room.c: memory for the copies that saves take. (See saver_room.h.)
 *
 * Invariant: while the thread runs, `pages` stays as it is; who changes it joins the thread first.
 */
#include "train/saver_room.h"

#include <pthread.h>
#include <stdlib.h>

struct tdm__saver_room {
    tdm_pages pages; /* empty: a save has them, or there are none */
    pthread_t thread;
    bool has_thread;
};

tdm__saver_room *tdm__saver_room_create(void)
{
    return calloc(1, sizeof(tdm__saver_room));
}

static void await_thread(tdm__saver_room *room)
{
    if (room->has_thread) pthread_join(room->thread, NULL);
    room->has_thread = false;
}

void tdm__saver_room_destroy(tdm__saver_room *room)
{
    if (!room) return;
    await_thread(room);
    tdm_pages_unmap(&room->pages);
    free(room);
}

static void *fill(void *argument)
{
    tdm__saver_room *room = argument;
    tdm_pages_populate(&room->pages);
    tdm_pages_lend(&room->pages);
    return NULL;
}

void tdm__saver_room_prepare(tdm__saver_room *room, size_t bytes)
{
    if (bytes == 0 || room->pages.bytes >= bytes) return;
    await_thread(room);
    tdm_pages_unmap(&room->pages);
    if (tdm_pages_map(bytes, false, &room->pages, NULL) != TDM_OK) return;
    room->has_thread = pthread_create(&room->thread, NULL, fill, room) == 0;
}

tdm_status tdm__saver_room_take(tdm__saver_room *room, size_t bytes, tdm_pages *out, tdm_error *err)
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

void tdm__saver_room_give(tdm__saver_room *room, tdm_pages *pages)
{
    await_thread(room);
    tdm_pages_unmap(&room->pages);
    tdm_pages_lend(pages);
    room->pages = *pages;
    *pages = (tdm_pages){0};
}
