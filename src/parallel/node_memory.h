/*
 * node_memory.h: the named regions that a parameter store and its team share with the other ranks of their node.
 *
 * Regions are in a shared memory segment (os.h). In a session that is the segment of the agent: regions have fixed
 * names, survive their processes, and are never released. In a fixed world it is the segment of the comm, or a private
 * one without a comm: the names have a number that only this store uses, and the last rank that releases a
 * region removes it.
 *
 *   region                 content                                                            file
 *   block-B                block B of the store                                               params.c
 *   exchange-board         versions of the buckets that the first rank of the node received   params_publish.c
 *   undo-header            progress of the blocks, and one entry for each slot                undo_log.h
 *   piece-marks            for each optimiser piece: its last update                          undo_log.h
 *   statistic-marks        the same for each range of statistics                              undo_log.h
 *   undo-records-S         undo records of the threads of slot S                              undo_log.h
 *   gradients-S            gradient buffers of slot S                                         common.c
 *   step-boards            which sub-trees of lanes each slot has summed, and where           common.c
 *   sums-S                 sums of slot S, received by messages                               buckets.c
 */
#ifndef TANDEM_PARALLEL_NODE_MEMORY_H
#define TANDEM_PARALLEL_NODE_MEMORY_H

#include "os/os.h"

#include <tandem/comm.h>

typedef struct tdm__node_memory {
    tdm_shm *shm;     /* NULL: not available */
    tdm_shm *own_shm; /* NULL: borrowed */
    bool outlives;    /* the regions survive this process */
    uint32_t scope;   /* number in the names; 0: none, because the regions survive */
} tdm__node_memory;

typedef enum tdm__region_use {
    TDM__REGION_FULL,   /* all of it is used: an error if the machine has not enough memory */
    TDM__REGION_GROWS,  /* the first part of it is used, which may grow */
    TDM__REGION_SPARSE, /* parts of it are used, by several ranks: no huge pages */
} tdm__region_use;

/* `session` NULL: the comm's segment; `comm` NULL as well: a private one. Collective with a comm. */
tdm_status tdm__node_memory_open(tdm_shm *session, tdm_comm *comm, tdm__node_memory *out,
                                 tdm_error *err);
void tdm__node_memory_close(tdm__node_memory *memory);

/* Takes the region "NAME" or, if `index` is not negative, "NAME-INDEX"; *out is a pointer of any type. */
tdm_status tdm__region_take(const tdm__node_memory *memory, const char *name, int index,
                            size_t bytes, tdm__region_use use, void *out, tdm_error *err);
/* Takes a region of any size that may not exist; *out is then NULL. */
tdm_status tdm__region_find(const tdm__node_memory *memory, const char *name, int index,
                            size_t *bytes, void *out, tdm_error *err);
/* No effect on a region that survives the process. NULL is allowed. */
void tdm__region_release(const tdm__node_memory *memory, const void *region);

#endif
