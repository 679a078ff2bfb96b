/*
 * params_inner.h: what the files of the store share.
 *
 * A block is whole where all of it can be read in this rank's memory: memory of its own, or the node's.
 * Otherwise it is shared out over all ranks, bucket by bucket (layout.h), and only this rank's share has
 * memory; what lies behind the trained cells is on every rank.
 *
 * Between publish and the end of its gathers, the parameters of some buckets are those of the step before.
 * On the leader of a node a bucket is pending while its request is there; the other ranks of the node see
 * on the board, in the node's memory, up to which version it is ready.
 */
#ifndef TANDEM_PARALLEL_STORE_INNER_H
#define TANDEM_PARALLEL_STORE_INNER_H

#include "parallel/params.h"
#include "parallel/undo_log.h"

#include <tandem/os.h>

enum { TDM__MAX_BLOCKS = TDM_BLOCK_STATE + TDM_OPTIM_MAX_STATES };

typedef struct tdm__block {
    float *data;     /* NULL: there is no such block */
    bool whole;      /* all of it is here */
    bool common;     /* it is the node's, in its memory or in its file */
    bool in_file;    /* offloaded */
    tdm_pages pages; /* of this rank; empty where the memory is the node's */
} tdm__block;

/* In the node's memory, where it has several ranks. */
typedef struct tdm__exchange_board {
    _Atomic uint64_t failed; /* the leader could not get a bucket */
    /* First, by bucket: the last version that has come. Then, by place in the node: whether that rank
     * uses the blocks no more. */
    _Atomic uint64_t marks[];
} tdm__exchange_board;

struct tdm_params {
    tdm__layout *layout;
    int node_size;
    bool leads; /* this rank is its node's first */
    tdm__block blocks[TDM__MAX_BLOCKS];
    tdm_extent *params;         /* where each parameter, statistic or buffer of the graph lies */
    tdm__exchange_board *board; /* NULL when this rank is alone in its node */
    uint64_t version;           /* how many times the parameters were published, or settled */
    uint64_t published;         /* the version that gathers bring; 0: none did so far */
    uint64_t arrived;           /* the version of which all buckets have come, as far as we saw */
    tdm_request **pending;      /* by bucket; of a leader */
    size_t pending_count;
    tdm__cells coming;       /* offload: where the update is, or will be soon */
    size_t *leader_cuts;     /* by bucket: node_count + 1 */
    size_t *cuts;            /* for a call that is waited for: size + 1 */
    size_t *clipped;         /* the same, of a part of a bucket */
    tdm__undo_log *undo_log; /* NULL: without a vault */
    tdm_optimiser *optimiser;
    const tdm_graph *graph;
};

/* All ranks fail when one did: each passes its status, and those that have none get the others'. */
tdm_status tdm__params_agree(const tdm_params *store, tdm_status status, tdm_error *err);
/* Whether a bucket of the parameters is up to date in this node's memory; never waits long. */
tdm_status tdm__params_is_ready(tdm_params *store, size_t bucket, bool *out, tdm_error *err);
/* The same, but waits until it is. */
tdm_status tdm__params_await(tdm_params *store, size_t bucket, tdm_error *err);
tdm_status tdm__params_await_all(tdm_params *store, tdm_error *err);
/* Whether any bucket is still to come. */
bool tdm__params_is_pending(tdm_params *store);
/* Blocks in files: these elements are needed soon, or not for a while. Others: nothing. */
void tdm__block_fetch(const tdm__block *block, tdm_extent what);
void tdm__block_let_go(const tdm__block *block, tdm_extent what);

#endif
