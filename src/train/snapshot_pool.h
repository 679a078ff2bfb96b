/*
 * snapshot_pool.h: memory for the copies of the state, kept from one save to the next.
 *
 * Memory that a process has not touched before costs more than the copy into it: the kernel allocates and clears
 * it page by page. So the pool allocates it once, in a thread while training starts, and frees it lazily
 * (MADV_FREE) between saves: under memory pressure the kernel takes it, and the next save pays again.
 *
 * A pool outlives the worlds and savers that use it. Threading: called by one thread.
 */
#ifndef TANDEM_TRAIN_SNAPSHOT_POOL_H
#define TANDEM_TRAIN_SNAPSHOT_POOL_H

#include <tandem/os.h>

typedef struct tdm__snapshot_pool tdm__snapshot_pool;

/* NULL: no memory. */
tdm__snapshot_pool *tdm__snapshot_pool_create(void);
/* Waits for its thread, if there is one. May be NULL. */
void tdm__snapshot_pool_destroy(tdm__snapshot_pool *pool);
/* Announces a save of `bytes` bytes. Does not wait; errors are reported by take. */
void tdm__snapshot_pool_prepare(tdm__snapshot_pool *pool, size_t bytes);
/* Takes at least `bytes` bytes with undefined contents, owned by the caller. */
tdm_status tdm__snapshot_pool_take(tdm__snapshot_pool *pool, size_t bytes, tdm_pages *out,
                                   tdm_error *err);
/* Returns the pages, which become empty, for the next save. */
void tdm__snapshot_pool_give(tdm__snapshot_pool *pool, tdm_pages *pages);

#endif
