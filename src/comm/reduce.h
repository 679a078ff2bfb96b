/*
 * reduce.h: the arithmetic of reductions, by the canonical tree over lanes.
 *
 * A reduction adds the values of some nodes of the lane tree (tdm_lanes) to the value of a node
 * above them. Everything here is pure: the same sources give the same bits on every instruction-set
 * level and for every division of the buffer into pieces. The vector loops are in vec/reduce.c,
 * compiled once for each level.
 *
 * The following rules make the bits independent of anything else. Sums are rounded to nearest and
 * treat inputs and results that are subnormal in the type of the addition (f32 for f16 and bf16) as
 * zero of the same sign, like the kernels of src/tensor, whatever mode the calling thread has set.
 * Every NaN result of a sum, a minimum or a maximum is the same (quiet, positive, payload zero); in
 * MIN and MAX, NaN wins and -0 is less than +0. If there is only one leaf, it is copied bit for
 * bit.
 */
#ifndef TANDEM_COMM_REDUCE_H
#define TANDEM_COMM_REDUCE_H

#include <tandem/comm.h>

/* The operation on two elements. */
typedef struct tdm__reducer {
    tdm_dtype dtype;
    tdm_reduce reduce;
    tdm_reduce_fn user_reduce; /* for TDM_REDUCE_USER */
    void *user;
} tdm__reducer;

static inline tdm__reducer tdm__reducer_of(const tdm_call *call)
{
    return (tdm__reducer){.dtype = call->dtype,
                          .reduce = call->reduce,
                          .user_reduce = call->user_reduce,
                          .user = call->user};
}

/* Kinds of calls that reduce, and kinds that have a root. */
static inline bool tdm__kind_reduces(tdm_call_kind kind)
{
    return kind == TDM_CALL_REDUCE || kind == TDM_CALL_ALL_REDUCE ||
           kind == TDM_CALL_REDUCE_SCATTER;
}

static inline bool tdm__kind_has_root(tdm_call_kind kind)
{
    return kind == TDM_CALL_BROADCAST || kind == TDM_CALL_REDUCE || kind == TDM_CALL_GATHER ||
           kind == TDM_CALL_SCATTER;
}

/* TDM_ERR_UNSUPPORTED, with the supported types, if this type cannot be reduced this way. */
tdm_status tdm__reducer_check(const tdm__reducer *reducer, tdm_error *err);

/* out[i] = left[i] (+) right[i]; `out` may be left or right. */
void tdm__reduce_pair(const tdm__reducer *reducer, void *out, const void *left, const void *right,
                      size_t count);

/* A node of the lane tree, and the address of its values. */
typedef struct tdm__leaf {
    int64_t node; /* heap index: root 1, children 2n and 2n + 1 */
    const void *data;
} tdm__leaf;

/*
 * An evaluation order: leaves from left to right are reduced to the node `top`; a node with only
 * one present child equals that child. Compiled once into a list of pairs, then run for any number
 * of pieces. A sum of up to 16 leaves takes one pass over memory: each source is read once, and
 * only the destinations are written. More leaves are processed in blocks that stay in the cache.
 */
typedef struct tdm__tree_plan {
    int leaf_count;
    int pair_count; /* leaf_count - 1, for leaf_count > 0 */
    struct tdm__pair {
        int left, right, out; /* registers: leaf i is register i; results are written to left's */
        /* Scratch slots for intermediate results; -1: the leaf itself. */
        int left_slot, right_slot, out_slot;
    } * pairs;      /* in execution order */
    int slot_count; /* maximum number of intermediate results at a time */
} tdm__tree_plan;

/* `nodes` from left to right, disjoint, all below `top`; else TDM_ERR_INVALID. */
tdm_status tdm__tree_plan_init(tdm__tree_plan *plan, const int64_t *nodes, int count, int64_t top,
                               tdm_error *err);
void tdm__tree_plan_release(tdm__tree_plan *plan);

/*
 * Evaluates elements [0, count) of all sources by the plan, into each of `destination_count`
 * destinations. A destination is one of the sources or overlaps none. The first `stream`
 * destinations are written past the cache, where that pays and they are not sources.
 */
void tdm__tree_run(const tdm__tree_plan *plan, const tdm__reducer *reducer,
                   const void *const *sources, void *const *destinations, int destination_count,
                   size_t count, int stream);

/* Copies, past the cache where that pays (large pieces that are not read soon). */
void tdm__copy(void *out, const void *in, size_t bytes, bool stream);

#endif
