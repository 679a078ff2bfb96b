/*
 * scratch.c: cache of large scratch buffers for programs.
 *
 * New memory costs about ten times as much as copying into it: the kernel must find and zero every
 * page. So the comm keeps the buffers into which a segment received its neighbours' data, up to
 * KEPT_BYTES, and reuses them for programs that need about as much. Small buffers come from the
 * arena (program.c). The comm's lock protects the cache.
 */
#include "comm/scratch.h"
#include "base/base.h"
#include "comm/engine.h"

#include <stdlib.h>

enum {
    ALIGN = 64,
    ROUND_BYTES = 64 * 1024,       /* sizes are multiples of this, so that buffers can be reused */
    KEPT_BYTES = 32 * 1024 * 1024, /* maximum of unused bytes for one comm */
};

struct tdm__block {
    struct tdm__block *next;
    size_t bytes;
    _Alignas(ALIGN) uint8_t data[];
};

/* A cached block that is large enough but not much too large; NULL: none. */
static tdm__block *scratch_take_kept(tdm_comm *comm, size_t bytes)
{
    for (tdm__block **link = &comm->kept_blocks; *link; link = &(*link)->next) {
        tdm__block *block = *link;
        if (block->bytes < bytes || block->bytes / 2 > bytes) continue;
        *link = block->next;
        comm->kept_bytes -= block->bytes;
        return block;
    }
    return NULL;
}

void *tdm__scratch_take(tdm_comm *comm, tdm__block **list, size_t bytes)
{
    if (bytes > SIZE_MAX / 2) return NULL;
    bytes = tdm_align_up(bytes, ROUND_BYTES);
    tdm__block *block = scratch_take_kept(comm, bytes);
    if (!block) {
        block = aligned_alloc(ALIGN, sizeof(*block) + bytes);
        if (!block) return NULL;
        block->bytes = bytes;
    }
    block->next = *list;
    *list = block;
    return block->data;
}

void tdm__scratch_give_back(tdm_comm *comm, tdm__block **list)
{
    while (*list) {
        tdm__block *block = *list;
        *list = block->next;
        if (block->bytes > KEPT_BYTES - comm->kept_bytes) {
            free(block);
            continue;
        }
        comm->kept_bytes += block->bytes;
        block->next = comm->kept_blocks;
        comm->kept_blocks = block;
    }
}

void tdm__scratch_free(tdm_comm *comm)
{
    while (comm->kept_blocks) {
        tdm__block *block = comm->kept_blocks;
        comm->kept_blocks = block->next;
        free(block);
    }
    comm->kept_bytes = 0;
}
