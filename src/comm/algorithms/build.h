/*
 * build.h: shared by the builders of programs: the data of a segment, and how calls are divided.
 *
 * There are two kinds of segments. For kinds without slices (broadcast, reduce, all_reduce) a
 * segment is elements [first, first + count) of the call. For kinds with slices (reduce_scatter,
 * all_gather, gather, scatter, all_to_all), cut.segment is a multiple of the group's size, and
 * segment k is the k-th run of cut.segment / size elements of every slice; a shorter slice has a
 * shorter run or none. So every rank can compute all sizes. Slices may have any length
 * (tdm_call.cuts): only tdm__segment_run defines the runs. In-place calls are safe because a rank
 * writes its slice to its own range of `in`, which no other rank reads. Without cuts no run k
 * extends beyond run k of slice 0, the longest one, so results may then also be written to the
 * start of `in`.
 *
 * Step numbers: segment k has [k * stride, (k + 1) * stride), where the algorithm sets the stride.
 * tdm__cut_make ensures that no call needs more steps than available.
 */
#ifndef TANDEM_COMM_ALGORITHMS_BUILD_H
#define TANDEM_COMM_ALGORITHMS_BUILD_H

#include "comm/algorithm.h"
#include "comm/group.h"
#include "comm/request.h"

/* The segment that a builder writes a program for. */
typedef struct tdm__segment {
    tdm__program *program;
    const tdm_request *request;
    const tdm_call *call;
    int rank, size, root;
    size_t unit;         /* bytes of an element */
    size_t first, count; /* as passed to build() */
    uint32_t step;       /* its first step number */
} tdm__segment;

tdm__segment tdm__segment_of(tdm__program *program, size_t first, size_t count, uint32_t stride);

/* Kinds with slices: this segment's run of slice `rank`, as elements of the whole. */
tdm_extent tdm__segment_run(const tdm__segment *s, int rank);
/* Kinds with slices: the offset of this segment's run within any slice. */
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

/* The address of this rank's leaf `leaf` of the reduction, at `element`. */
const uint8_t *tdm__leaf_at(const tdm__segment *s, int leaf, size_t element);

/* The buffer that an all_to_all sends from: `in`, or in place a copy of it, created once for the
 * call because received blocks overwrite blocks that are yet to be sent. NULL: out of memory. */
const uint8_t *tdm__all_to_all_input(const tdm__segment *s);

/* Send and receive, omitted on both sides if the message is empty. */
void tdm__send_some(const tdm__segment *s, int peer, uint32_t step, const void *from,
                    size_t elements);
void tdm__recv_some(const tdm__segment *s, int peer, uint32_t step, void *to, size_t elements);

bool tdm__kind_has_slices(tdm_call_kind kind);
size_t tdm__call_bytes(const tdm_call *call);

/* Options for dividing a call. */
typedef struct tdm__cut_options {
    size_t segment_bytes; /* approximate bytes of a segment; 0: do not divide */
    uint32_t stride;      /* step numbers of each segment */
    int flight;
    tdm_algorithm algorithm; /* whose row of the table of choices may set another size */
} tdm__cut_options;
tdm__cut tdm__cut_make(const tdm_group *group, const tdm_call *call, tdm__cut_options request);

/* The size of a segment if each of `size` ranks adds its share of it: shares of at most one
 * megabyte (less between hosts), at least four segments if the shares are large enough for that,
 * and at most a few megabytes of scratch. */
size_t tdm__share_segment(const tdm_group *group, const tdm_call *call);
/* The number of these segments that run concurrently. Between three and more hosts that is two,
 * plus as many as are in flight during one round trip at 10 Gbit/s: with more, the ranks that send
 * to one receiver overflow the queue of its switch port, and TCP must retransmit. Ranks may compute
 * different numbers. */
int tdm__share_flight(const tdm_group *group);

#endif
