/*
 * replicas.h: the state of logical replicas in a parameter store.
 *
 * A job can have strategies whose workers keep state beside the model: local SGD (the optimiser's state of each
 * replica of the model), compression (residuals and velocities). The job fixes a number of replicas, a power of two;
 * replica r has the lanes [r, r + 1) x lanes / replicas. All of this state belongs to a replica, and a rank executes
 * a contiguous range of replicas. So the result does not depend on the number of ranks.
 *
 * A replica has `array_count` arrays in the layout of the parameter block. In a parameter store they are the blocks
 * TDM_BLOCK_REPLICA + replica x array_count + array. Each array has two versions:
 *
 *     region "replicas":  marks  | replica 0                           | replica 1 ...
 *                                | version 0        | version 1        |
 *                                | array 0, 1, ...  | array 0, 1, ...  |
 *
 * A step reads the current version and writes the other one, which becomes current when the step is complete. So a
 * rank that dies in a step leaves the state before it intact. The mark of a version is as that of an optimiser piece
 * (undo_log.h): step + 2 of the step that wrote it; 0: invalid. A version is written in a write section, and its mark
 * is 0 meanwhile.
 *
 * The arrays of a replica are in the memory of the node of its home, the rank that executes it. If a step changes single
 * replicas (is_ordered), every node keeps the arrays of all of them, as it keeps the model, and makes the same updates.
 * When the membership changes, arrays are copied to the nodes that need them (tdm__replicas_recover).
 */
#ifndef TANDEM_PARALLEL_REPLICAS_H
#define TANDEM_PARALLEL_REPLICAS_H

#include "parallel/params_inner.h"

typedef struct tdm__replicas {
    int64_t count;
    int array_count;
    size_t stride; /* elements of an array */
    size_t
        elements; /* the used part of it: those of the block, and tdm_params_options.replica_tail */
    int64_t *first; /* by place, size + 1: the replicas of each rank */
    int *current;   /* by replica: the version that holds the state */
    /* A step changes single replicas: the state of a replica is the newest version up to a mark, and not that of
     * exactly this mark. */
    bool is_ordered;
    /* Array 0 is the model of the replica, and the number behind it its push-sum weight. */
    bool is_gossip;
    void *region;
    _Atomic uint64_t *marks; /* 2 x count */
    float *data;
} tdm__replicas;

/* TDM_ERR_JOB_INVALID: more replicas than lanes, or more lanes than possible. */
tdm_status tdm__replicas_check(const tdm_job *job, tdm_error *err);
/* NULL in `*out` if there are no replicas. TDM_ERR_JOB_INVALID: more ranks than replicas. Collective. */
tdm_status tdm__replicas_create(const tdm_params *store, const tdm_params_options *options,
                                tdm__replicas **out, tdm_error *err);
void tdm__replicas_destroy(const tdm_params *store, tdm__replicas *replicas);

/* The place that executes a replica. */
int tdm__replica_home(const tdm_params *store, int64_t replica);
/* The place of this node that writes the versions of a replica here: its home, or if that is on another node and updates
 * are in order, the first place of this node. -1: this node does not keep the replica. */
int tdm__replica_keeper(const tdm_params *store, int64_t replica);
float *tdm__replica_array(const tdm__replicas *replicas, int64_t replica, int version, int array);
/* An array of the current version, by its block of the parameter store; NULL: there is none. */
float *tdm__replica_block(const tdm__replicas *replicas, int block, int64_t *replica);

/* Around the writing of the other version in step `step`. In a write section. */
void tdm__replica_write_begin(const tdm__replicas *replicas, int64_t replica);
void tdm__replica_write_end(const tdm__replicas *replicas, int64_t replica, uint64_t step);
/* The step is complete: the version that it wrote is current. */
void tdm__replica_flip(tdm__replicas *replicas, int64_t replica);
/* Makes the newest version up to `mark` current. */
void tdm__replica_use(tdm__replicas *replicas, int64_t replica, uint64_t mark);

/* Marks as invalid what this node holds; clears it as well. In a write section, by the first rank of the node. */
void tdm__replicas_invalidate(const tdm__replicas *replicas);
void tdm__replicas_clear(tdm__replicas *replicas);
/* Marks the current versions of the replicas that this node keeps. In a write section, by the first rank of the node. */
void tdm__replicas_mark(const tdm_params *store, uint64_t mark);
/* Makes the versions with this mark current; version 0 where there is none. */
void tdm__replicas_attach(tdm__replicas *replicas, uint64_t mark);
/* Copies the versions with this mark to the nodes that keep them. `here`: this node may hold some. *found: none is
 * missing. By the first ranks of all nodes, together. */
tdm_status tdm__replicas_recover(const tdm_params *store, uint64_t mark, bool here, bool *found,
                                 tdm_error *err);

#endif
