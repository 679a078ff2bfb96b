/*
 * scratch.c: large pieces of memory that programs need for a moment, kept for the next ones.
 *
 * Fresh memory costs about ten times what copying into it does: the kernel must find and zero every page.
 * So what a segment received its neighbours' numbers into is kept by the comm, up to KEPT_BYTES, and
 * handed to the next program that wants about as much. Small pieces are the arena's (program.c). All
 * under the comm's lock.
 */
#include "comm/engine.h"

#include <stdlib.h>

enum {
    ALIGN = 64,
    ROUND_BYTES = 64 * 1024,       /* sizes are multiples of this, so that pieces fit again */
    KEPT_BYTES = 32 * 1024 * 1024, /* at most, by one comm, while nobody uses them */
};

struct tdm__block {
    struct tdm__block *next;
    size_t bytes;
    _Alignas(ALIGN) uint8_t data[];
};

/* A kept block that is large enough and not wastefully so; NULL: none. */
static tdm__block *take_kept(tdm_comm *comm, size_t bytes)
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
    bytes = (bytes + ROUND_BYTES - 1) / ROUND_BYTES * ROUND_BYTES;
    tdm__block *block = take_kept(comm, bytes);
    if (!block) {
        block = aligned_alloc(ALIGN, sizeof *block + bytes);
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
