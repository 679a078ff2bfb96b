/*
 * lanes.h: the operands that each rank has in a reduction, and the slice of a call that each rank
 * owns.
 *
 * Everything here is a pure function of the call and the group's size, so all ranks compute the
 * same result without communication.
 */
#ifndef TANDEM_COMM_LANES_H
#define TANDEM_COMM_LANES_H

#include <tandem/comm.h>

/* ---- leaves ----------------------------------------------------------------------------------- */

/* The operands of a reduction: the leaves of its tree, from left to right, rank by rank. */
typedef struct tdm__leaves {
    int count;      /* at least 1 */
    int64_t *nodes; /* by leaf: its heap index, for tdm__tree_plan_init with top 1 */
    int *first;     /* size + 1 entries: rank i has leaves [first[i], first[i + 1]) */
} tdm__leaves;

/* Validates the lanes for a group of `size` ranks: TDM_ERR_INVALID or TDM_ERR_RANGE. */
tdm_status tdm__lanes_check(const tdm_lanes *lanes, int size, tdm_error *err);
/* A hash that is equal on all ranks with the same lanes, never 0; 0 for NULL. */
uint64_t tdm__lanes_hash(const tdm_lanes *lanes, int size);
/* `lanes` NULL: rank i has lane i. */
tdm_status tdm__leaves_init(tdm__leaves *leaves, const tdm_lanes *lanes, int size, tdm_error *err);
void tdm__leaves_release(tdm__leaves *leaves);

/* ---- slices ----------------------------------------------------------------------------------- */

/* Whether calls of this kind may set `cuts`: all kinds with slices except all_to_all. */
bool tdm__kind_has_cuts(tdm_call_kind kind);
/* Validates the cuts of a call of `count` elements in a group of `size` ranks. */
tdm_status tdm__cuts_check(const size_t *cuts, size_t count, int size, tdm_error *err);
/* A hash that is equal on all ranks with the same cuts, never 0; 0 for NULL. */
uint64_t tdm__cuts_hash(const size_t *cuts, int size);
/* Slice `rank` of a call: by its cuts, or by tdm_group_slice. */
tdm_extent tdm__call_slice(const tdm_call *call, int size, int rank);
/* Elements of the longest slice. */
size_t tdm__call_max_slice(const tdm_call *call, int size);
/* The number of elements that is divided into segments: for kinds with slices as if all slices were
 * as long as the longest one, for all others the call's count. */
size_t tdm__call_span(const tdm_call *call, int size);

#endif
