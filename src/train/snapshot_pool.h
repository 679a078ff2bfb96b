/*
 * snapshot_pool.h: memory for the copies that saves take, kept from one save to the next.
 *
 * Memory that a process has not touched before costs more than the copy into it: the system finds it page
 * by page, and clears it. So a room takes it once, by a thread of its own while training begins, and lends
 * it to the system between saves: whoever needs it gets it, and then the next save pays again.
 *
 * A room outlives the worlds and savers that use it. Threading: one thread calls.
 */
#ifndef TANDEM_TRAIN_SAVER_ROOM_H
#define TANDEM_TRAIN_SAVER_ROOM_H

#include <tandem/os.h>

typedef struct tdm__snapshot_pool tdm__snapshot_pool;

/* NULL: no memory. */
tdm__snapshot_pool *tdm__snapshot_pool_create(void);
/* Waits for its thread, if there is one. NULL is fine. */
void tdm__snapshot_pool_destroy(tdm__snapshot_pool *room);
/* A save of so many bytes is going to come. Does not wait; what goes wrong shows when it is taken. */
void tdm__snapshot_pool_prepare(tdm__snapshot_pool *room, size_t bytes);
/* At least so many bytes, with anything in them; the caller's own from now on. */
tdm_status tdm__snapshot_pool_take(tdm__snapshot_pool *room, size_t bytes, tdm_pages *out,
                                   tdm_error *err);
/* Takes them (which become empty) for the next save. */
void tdm__snapshot_pool_give(tdm__snapshot_pool *room, tdm_pages *pages);

#endif
