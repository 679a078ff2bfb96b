/*
 * params_inner.h: shared by the files of the parameter store.
 *
 * A block is whole if this rank can read all of it in the memory of its node.
 * Otherwise it is sharded over all ranks, bucket by bucket (layout.h), and only this rank's share has
 * memory; elements behind the trained cells are on every rank.
 *
 * Between publish and the end of its gathers, some buckets have the parameters of the previous step.
 * On the leader of a node a bucket is pending while its request exists; the other ranks of the node read
 * from the board, in the node's memory, which version is complete.
 */
#ifndef TANDEM_PARALLEL_PARAMS_INNER_H
#define TANDEM_PARALLEL_PARAMS_INNER_H

#include "parallel/params.h"
#include "parallel/undo_log.h"

#include <tandem/os.h>

enum { TDM__MAX_BLOCKS = TDM_BLOCK_STATE + TDM_OPTIM_MAX_STATES };

typedef struct tdm__block {
    float *data;     /* NULL: the block does not exist */
    bool whole;      /* complete on this node */
    bool common;     /* complete and shared by several ranks, in the node's memory or a file */
    bool in_file;    /* offloaded */
    tdm_pages pages; /* of the file; empty if the node's memory is used */
} tdm__block;

/* A region of the node, if it has several ranks. */
typedef struct tdm__exchange_board {
    _Atomic uint64_t failed;  /* the leader could not receive a bucket */
    _Atomic uint64_t marks[]; /* by bucket: the last complete version */
} tdm__exchange_board;

struct tdm_params {
    tdm__layout *layout;
    tdm__node_memory memory;       /* of the blocks, and of the team */
    tdm__node_memory world_memory; /* of the board */
    int node_size;
    bool leads; /* this rank is the first of its node */
    tdm__block blocks[TDM__MAX_BLOCKS];
    tdm_extent *params;         /* position of each parameter, statistic or buffer of the graph */
    tdm__exchange_board *board; /* NULL if the node has one rank */
    uint64_t version;           /* number of times the parameters were published or settled */
    uint64_t published;         /* the version that gathers deliver; 0: none yet */
    uint64_t arrived;           /* the last version known to be complete */
    tdm_request **pending;      /* by bucket; on a leader */
    size_t pending_count;
    tdm__cells coming;              /* offload: current and next cells of the update */
    size_t *leader_cuts;            /* by bucket: node_count + 1 */
    size_t *cuts;                   /* for a blocking call: size + 1 */
    size_t *clipped;                /* likewise, for a part of a bucket */
    tdm__undo_log *undo_log;        /* NULL: without an optimiser */
    struct tdm__replicas *replicas; /* NULL: none */
    tdm_optimiser *optimiser;
    const tdm_graph *graph;
};

/* Whether a bucket of the parameters is up to date in this node's memory; does not wait long. */
tdm_status tdm__params_is_ready(tdm_params *store, size_t bucket, bool *out, tdm_error *err);
/* Waits until a bucket is up to date. */
tdm_status tdm__params_await(tdm_params *store, size_t bucket, tdm_error *err);
tdm_status tdm__params_await_all(tdm_params *store, tdm_error *err);
/* Whether any bucket is not yet complete. */
bool tdm__params_is_pending(tdm_params *store);
/* For blocks in files: these elements are needed soon, or not for a while. No effect on other blocks. */
void tdm__block_fetch(const tdm__block *block, tdm_extent what);
void tdm__block_let_go(const tdm__block *block, tdm_extent what);

/* Sets numbers to zero. Untouched memory stays untouched. (recover.c) */
void tdm__numbers_clear(float *numbers, size_t count);

#endif
