/*
 * build.h: what the builders of programs share: where a segment's data lie, and how calls are cut.
 *
 * Two kinds of segments. Kinds without slices (broadcast, reduce, all_reduce): elements
 * [first, first + count) of the call. Kinds with slices (reduce_scatter, all_gather, gather, scatter,
 * all_to_all): cut.segment is a multiple of the group's size, and segment k is the k-th run of
 * cut.segment / size elements of every slice; a slice that ends earlier has a shorter run or none. So
 * every rank knows all sizes. Slices may be of any length (tdm_call.cuts): nothing is known of runs but
 * what tdm__segment_run says. Calls in place are safe because a rank writes its slice where that lies in
 * `in`, and nobody else reads that slice of it. Without cuts no run k reaches beyond run k of slice 0,
 * the longest, so then results may also go to the start of `in`.
 *
 * Step numbers: segment k has [k * stride, (k + 1) * stride), where the stride is the algorithm's, and
 * tdm__cut_make sees to it that no call needs more than there are.
 */
#ifndef TANDEM_COMM_ALGORITHMS_BUILD_H
#define TANDEM_COMM_ALGORITHMS_BUILD_H

#include "comm/engine.h"

/* What a builder wants to know about its segment. */
typedef struct tdm__segment {
    tdm__program *program;
    const tdm_request *request;
    const tdm_call *call;
    int rank, size, root;
    size_t unit;         /* bytes of an element */
    size_t first, count; /* as handed to build() */
    uint32_t step;       /* the first of its numbers */
} tdm__segment;

tdm__segment tdm__segment_of(tdm__program *program, size_t first, size_t count, uint32_t stride);

/* Kinds with slices: this segment's run of slice `rank`, as elements of the whole. */
tdm_extent tdm__segment_run(const tdm__segment *s, int rank);
/* And where that run begins within any slice. */
size_t tdm__segment_offset(const tdm__segment *s);

/* Kinds without slices: rank `rank`'s share of the segment, as elements of the whole. */
tdm_extent tdm__segment_share(const tdm__segment *s, int rank);

static inline const uint8_t *tdm__in_at(const tdm__segment *s, size_t element)
{
    return (const uint8_t *)s->call->in + element * s->unit;
}

static inline uint8_t *tdm__out_at(const tdm__segment *s, size_t element)
{
    return (uint8_t *)s->call->out + element * s->unit;
}

/* This rank's leaf `leaf` of the reduction, from `element` on. */
const uint8_t *tdm__leaf_at(const tdm__segment *s, int leaf, size_t element);

/* What an all_to_all sends from: `in`, or in place a copy of it, made once for the call, because blocks
 * come in where others have yet to go out. NULL without memory. */
const uint8_t *tdm__all_to_all_input(const tdm__segment *s);

/* Messages that are left out when they would be empty, on both sides. */
void tdm__send_some(const tdm__segment *s, int peer, uint32_t step, const void *from,
                    size_t elements);
void tdm__recv_some(const tdm__segment *s, int peer, uint32_t step, void *to, size_t elements);

bool tdm__kind_has_slices(tdm_call_kind kind);
size_t tdm__call_bytes(const tdm_call *call);

/* How the cut is wanted. */
typedef struct tdm__cut_options {
    size_t segment_bytes; /* about so many of a segment; 0: do not cut */
    uint32_t stride;      /* step numbers for each segment */
    int flight;
    tdm_algorithm algorithm; /* whose row of the table of choices may know a better size */
} tdm__cut_options;
tdm__cut tdm__cut_make(const tdm_group *group, const tdm_call *call, tdm__cut_options request);

/* A segment's size when each of `size` ranks adds its share of it: shares of at most a megabyte (less
 * between hosts), at least four segments where shares stay large enough for that, and no more than a few
 * megabytes of scratch. */
size_t tdm__share_segment(const tdm_group *group, const tdm_call *call);
/* How many of these segments run side by side. Between three and more hosts that is two, and as many more as are
 * on the way during one round trip at 10 Gbit/s: with more than that, the ranks that send to one receiver
 * overflow the queue of its port in the switch, and TCP has to repeat packets. Each rank may come to another
 * number. */
int tdm__share_flight(const tdm_group *group);

/* The size that the table of choices has for this call by this algorithm; 0: none (choose.c). */
size_t tdm__choices_segment(const tdm_group *group, const tdm_call *call, tdm_algorithm algorithm);

/* The algorithms over messages. */
extern const tdm__algorithm_ops tdm__algorithm_direct;
extern const tdm__algorithm_ops tdm__algorithm_ring;
extern const tdm__algorithm_ops tdm__algorithm_doubling;
extern const tdm__algorithm_ops tdm__algorithm_tree;

#endif
