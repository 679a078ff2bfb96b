/*
 * algorithm.h: the table through which the engine uses the algorithms of collectives.
 *
 * An algorithm divides a call into segments, and writes this rank's program for each segment.
 * algorithms/ has one file for each family; choose.c lists them and selects one for a call.
 * Programs of different ranks fit together because they are computed from the same call, the same
 * group and the same table of choices (choices.h).
 */
#ifndef TANDEM_COMM_ALGORITHM_H
#define TANDEM_COMM_ALGORITHM_H

#include "comm/program.h"

/* How a call is divided: `count` elements into segments of `segment` elements (the last may be
 * shorter; a call without data has one segment), of which `flight` run concurrently. */
typedef struct tdm__cut {
    size_t segment;
    int flight;
} tdm__cut;

typedef struct tdm__algorithm_ops {
    tdm_algorithm id;
    bool window; /* uses the group's window: all members are on one host, or HIERARCHY */
    const char *about;
    /* Whether it supports this call on this group. */
    bool (*fits)(const tdm_group *group, const tdm_call *call);
    tdm__cut (*cut)(const tdm_group *group, const tdm_call *call);
    /* Writes this rank's program for one segment: elements [first, first + count) of the call. The
     * algorithm's file header defines what a segment is for kinds with slices. */
    void (*build)(tdm__program *program, size_t first, size_t count);
} tdm__algorithm_ops;

/* By messages. */
extern const tdm__algorithm_ops tdm__algorithm_direct;
extern const tdm__algorithm_ops tdm__algorithm_ring;
extern const tdm__algorithm_ops tdm__algorithm_doubling;
extern const tdm__algorithm_ops tdm__algorithm_tree;
/* Through windows; HIERARCHY uses messages as well. */
extern const tdm__algorithm_ops tdm__algorithm_hierarchy;
extern const tdm__algorithm_ops tdm__algorithm_window;

/* All of them (choose.c). */
extern const tdm__algorithm_ops *const tdm__algorithms[];
extern const int tdm__algorithm_count;

#endif
