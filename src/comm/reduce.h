/*
 * reduce.h: the arithmetic of reductions, by the canonical tree over lanes.
 *
 * A reduction adds the numbers of some nodes of the tree of lanes (tdm_lanes) to the numbers of a node
 * above them. Everything here is pure: same sources, same bits, on every instruction-set level, for
 * every cut of the buffer into pieces. Vector loops live in vec/reduce.c, once for each level.
 *
 * So that nothing else has a say in the bits: sums are rounded to nearest and take numbers below the
 * normal range of the type they are added in (f32 for f16 and bf16) for zero of the same sign, in and
 * out, whatever the calling thread has set: as the kernels of src/tensor do. Every NaN that comes out
 * of a sum, a minimum or a maximum is the same one (quiet, positive, payload zero); in MIN and MAX, NaN
 * wins and -0 is less than +0. What is not added, because there is one leaf only, is copied bit for bit.
 */
#ifndef TANDEM_COMM_REDUCE_H
#define TANDEM_COMM_REDUCE_H

#include <tandem/comm.h>

/* What to do with two elements. */
typedef struct tdm__reducer {
    tdm_dtype dtype;
    tdm_reduce reduce;
    tdm_reduce_fn user_reduce; /* REDUCE_USER */
    void *user;
} tdm__reducer;

static inline tdm__reducer tdm__reducer_of(const tdm_call *call)
{
    return (tdm__reducer){.dtype = call->dtype,
                          .reduce = call->reduce,
                          .user_reduce = call->user_reduce,
                          .user = call->user};
}

/* Which kinds of calls add up, and which have a root. */
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

/* TDM_ERR_UNSUPPORTED, with what there is, when this type cannot be reduced like that. */
tdm_status tdm__reducer_check(const tdm__reducer *reducer, tdm_error *err);

/* out[i] = left[i] (+) right[i]; `out` may be left or right. */
void tdm__reduce_pair(const tdm__reducer *reducer, void *out, const void *left, const void *right,
                      size_t count);

/* A node of the tree of lanes, and where its numbers are. */
typedef struct tdm__leaf {
    int64_t node; /* heap number: root 1, children 2n and 2n + 1 */
    const void *data;
} tdm__leaf;

/*
 * What to evaluate: leaves by their place from left to right become the node `top`; nodes that have
 * one present child only are that child. Compiled once into a list of pairs, then run for any number
 * of pieces. A sum of up to 16 leaves is made in one pass over memory, each source read once and
 * nothing but the destinations written; more leaves in blocks that stay in the cache.
 */
typedef struct tdm__tree_plan {
    int leaf_count;
    int pair_count; /* leaf_count - 1, for leaf_count > 0 */
    struct tdm__pair {
        int left, right, out; /* registers: leaf i is register i; results are written to left's */
        /* Slots of scratch, in which results lie until they are needed; -1: the leaf itself. */
        int left_slot, right_slot, out_slot;
    } * pairs;      /* in an order that can be run from the first to the last */
    int slot_count; /* as many results as wait at a time */
} tdm__tree_plan;

/* `nodes` from left to right, disjoint, all below `top`. TDM_ERR_INVALID when they are not. */
tdm_status tdm__tree_plan_init(tdm__tree_plan *plan, const int64_t *nodes, int count, int64_t top,
                               tdm_error *err);
void tdm__tree_plan_release(tdm__tree_plan *plan);

/*
 * Evaluates elements [0, count) of all sources by the plan, into each of `destination_count` places;
 * a destination may be one of the sources, or overlap none. Of the destinations the first `stream` are
 * written past the cache, where that pays and they are not sources.
 */
void tdm__tree_run(const tdm__tree_plan *plan, const tdm__reducer *reducer,
                   const void *const *sources, void *const *destinations, int destination_count,
                   size_t count, int stream);

/* Copies past the cache where that pays (large pieces that nobody here reads soon). */
void tdm__copy(void *out, const void *in, size_t bytes, bool stream);

#endif
