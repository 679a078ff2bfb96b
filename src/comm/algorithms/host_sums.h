/*
 * host_sums.h: the sums of a reduction that each host can make by itself.
 *
 * The leaves of a reduction belong to ranks, and ranks to hosts. A host may add two neighbours of the
 * canonical tree only when it has all that lies below both; what is left when it has made all such sums
 * are its host sums: one, when its ranks hold a whole sub-tree, more when they do not. The reduction is
 * then a tree over the sums of all hosts, and its bits are the same as without hosts.
 */
#ifndef TANDEM_COMM_ALGORITHMS_HOST_SUMS_H
#define TANDEM_COMM_ALGORITHMS_HOST_SUMS_H

#include "comm/engine.h"

typedef struct tdm__host_sum {
    int host;            /* within the group */
    int first, last;     /* its leaves: [first, last) */
    tdm__tree_plan plan; /* over them */
} tdm__host_sum;

typedef struct tdm__host_sums {
    int count; /* of all hosts, from left to right */
    tdm__host_sum *list;
    tdm__tree_plan plan; /* over them all */
} tdm__host_sums;

/* Bytes that the sums of so many leaves need at most. */
size_t tdm__host_sums_bytes(int leaf_count);
/* Finds them, in the caller's memory of that size, aligned for pointers; nothing is to be released. */
tdm_status tdm__host_sums_init(tdm__host_sums *sums, const tdm_group *group,
                               const tdm__leaves *leaves, const tdm__tree_plan *plan, void *memory,
                               tdm_error *err);

#endif
