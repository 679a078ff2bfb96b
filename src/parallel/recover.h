/* recover.h: shared by recover.c and recover_reshard.c. */
#ifndef TANDEM_PARALLEL_RECOVER_H
#define TANDEM_PARALLEL_RECOVER_H

#include "parallel/internal.h"
#include "parallel/params_inner.h"
#include "parallel/replicas.h"
#include "tensor/kernel.h"

#include <stdio.h>

/* How far a rank's node is; exchanged between ranks. */
typedef struct tdm__standing {
    int64_t process;
    uint64_t has_state;
    uint64_t steps;      /* of its state when the update begun here is completed */
    uint64_t changed;    /* number of steps up to the last one that changed the blocks */
    uint64_t has_record; /* of the update of that step */
    uint64_t snapshot_order;
    uint64_t lineage; /* the epoch that last adopted its state */
    uint64_t from;    /* number of steps before the update begun here */
} tdm__standing;

/* The state that all nodes are to reach. */
typedef struct tdm__goal {
    bool found;
    uint64_t steps, changed;
    uint64_t from;    /* the state before the last update, which a node can complete by itself */
    int record_place; /* rank (place) with the record of the last update; -1: none */
    int snapshot_offset;
} tdm__goal;

/* Whether a node has reached the goal or can do so by itself. */
bool tdm__goal_in_reach(const tdm__goal *goal, const tdm__standing *node);

/* Sends pieces to nodes that need and do not hold them. *found: none is missing. Collective. */
tdm_status tdm__recover_reshard(tdm_params *store, const tdm__standing *all, const tdm__goal *goal,
                                bool *found, tdm_error *err);
/* Marks all pieces that belong on this node as updated up to `steps` steps. */
void tdm__recover_mark_all(tdm_params *store, uint64_t steps);

#endif
