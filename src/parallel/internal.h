/*
 * internal.h: the tree over lanes, for the files of this room.
 *
 * A node is (level, index): level 0 are the lanes; node (k, i) covers lanes [i 2^k, (i + 1) 2^k).
 * Nodes are numbered as in a heap: the root is 1, the children of n are 2n and 2n + 1, lane l is
 * lane_count + l.
 */
#ifndef TANDEM_PARALLEL_INTERNAL_H
#define TANDEM_PARALLEL_INTERNAL_H

#include <tandem/parallel.h>

typedef struct tdm__tree {
    int64_t lane_count;
    float *
        *held; /* by heap number: the buffer that holds this node's sum; NULL: add its children */
} tdm__tree;

/* The sum of node `node` over elements [begin, begin + count), into `out`. Returns false, and leaves
 * `out` alone, when no lane below it had rows. `scratch` has `count` floats for each level. */
bool tdm__tree_sum(const tdm__tree *tree, int64_t node, size_t begin, size_t count, float *out,
                   float *scratch);

/* ---- bad numbers (blame.c) ------------------------------------------------------------------- */

/* A lane whose inputs are filled in and whose plan is bound. */
typedef struct tdm__lane {
    const tdm_graph *graph;
    tdm_plan *plan;
    tdm_step_key key;
    const float *grads; /* to which the plan is bound */
    int64_t index;
    tdm_slice rows; /* of the batch */
} tdm__lane;

/* Whether a parameter, statistic or buffer holds a number that is not finite; *out then names the
 * first one. */
bool tdm__blame_params(const tdm_graph *graph, const float *params, tdm_bad_number *out);
/* Runs the lane. Whether its loss or its gradient is not finite; *out then says where that began. */
bool tdm__blame_lane(const tdm__lane *lane, tdm_bad_number *out);

#endif
