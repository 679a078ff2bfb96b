/* recover.h: what the two files of recovery share. */
#ifndef TANDEM_PARALLEL_RECOVER_H
#define TANDEM_PARALLEL_RECOVER_H

#include "parallel/internal.h"
#include "parallel/params_inner.h"
#include "tensor/kernel.h"

#include <stdio.h>

/* How far a rank's node is, as it travels. */
typedef struct tdm__standing {
    int64_t process;
    uint64_t has_state;
    uint64_t steps;      /* that its state will have when what was begun here is finished */
    uint64_t changed;    /* by the last of them that changed anything: so many steps */
    uint64_t has_record; /* of that one's update */
    uint64_t snapshot_order;
    uint64_t lineage; /* the epoch that began with its state */
} tdm__standing;

/* Where all want to be. */
typedef struct tdm__goal {
    bool found;
    uint64_t steps, changed;
    int record_place; /* who has the record of the last update; -1: nobody */
    int snapshot_offset;
} tdm__goal;

/* Whether a node is there, or can get there by itself. */
bool tdm__goal_in_reach(const tdm__goal *goal, const tdm__standing *node);

/* Brings pieces to nodes that need them and do not hold them. *found: nothing is missing. Collective. */
tdm_status tdm__recover_reshard(tdm_params *store, const tdm__standing *all, const tdm__goal *goal,
                                bool *found, tdm_error *err);
/* Says of all pieces that belong on this node that they are those after so many steps. */
void tdm__recover_mark_all(tdm_params *store, uint64_t steps);

#endif
