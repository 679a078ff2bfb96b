/*
 * host_sums.h: the sums of a reduction that each host can compute alone.
 *
 * The leaves of a reduction belong to ranks, and ranks to hosts. A host may add two neighbours of
 * the canonical tree only if it has everything below both. The sums that remain when no more
 * additions are possible are its host sums: one if its ranks have a complete subtree, else several.
 * The reduction is then a tree over the sums of all hosts, and has the same bits as without hosts.
 */
#ifndef TANDEM_COMM_ALGORITHMS_HOST_SUMS_H
#define TANDEM_COMM_ALGORITHMS_HOST_SUMS_H

#include "comm/lanes.h"
#include "comm/reduce.h"

typedef struct tdm__host_sum {
    int host;            /* within the group */
    int first, last;     /* its leaves: [first, last) */
    tdm__tree_plan plan; /* over its leaves */
} tdm__host_sum;

typedef struct tdm__host_sums {
    int count; /* of all hosts, from left to right */
    tdm__host_sum *list;
    tdm__tree_plan plan; /* over the sums of all hosts */
} tdm__host_sums;

/* The maximum memory for the host sums of this many leaves, in bytes. */
size_t tdm__host_sums_bytes(int leaf_count);
/* Computes the host sums in the caller's memory of that size, aligned for pointers; nothing to
 * release. */
tdm_status tdm__host_sums_init(tdm__host_sums *sums, const tdm_group *group,
                               const tdm__leaves *leaves, const tdm__tree_plan *plan, void *memory,
                               tdm_error *err);

#endif
