/*
 * build.c: functions shared by the builders of programs (build.h).
 *
 * Everything is computed only from the call, the group and the table of choices, never from buffers
 * or other local state: all ranks must compute the same division into segments and the same steps.
 */
#include "comm/algorithms/build.h"
#include "base/base.h"
#include "comm/choices.h"
#include "comm/engine.h"

#include <stdlib.h>
#include <string.h>

enum {
    SHARE_BYTES = 1024 * 1024,       /* maximum of one rank's share of a segment */
    PAIR_SHARE_BYTES = 512 * 1024,   /* between two hosts: the last sums overlap with nothing */
    WIRE_SHARE_BYTES = 128 * 1024,   /* between more hosts: see tdm__share_flight */
    MIN_SHARE_BYTES = 128 * 1024,    /* below this, messages cost more than overlap gains */
    SCRATCH_BYTES = 4 * 1024 * 1024, /* of all shares of a segment */
    SEGMENTS_WANTED = 4
};
#define MAX_STEPS ((uint64_t)1 << 31)

bool tdm__kind_has_slices(tdm_call_kind kind)
{
    return kind >= TDM_CALL_REDUCE_SCATTER && kind <= TDM_CALL_ALL_TO_ALL;
}

size_t tdm__call_bytes(const tdm_call *call)
{
    return call->kind == TDM_CALL_BARRIER ? 0 : call->count * tdm_dtype_bytes(call->dtype);
}

tdm__segment tdm__segment_of(tdm__program *program, size_t first, size_t count, uint32_t stride)
{
    const tdm_request *request = program->request;
    return (tdm__segment){.program = program,
                          .request = request,
                          .call = &request->call,
                          .rank = request->group->rank,
                          .size = request->group->size,
                          .root = request->call.root,
                          .unit = tdm_dtype_bytes(request->call.dtype),
                          .first = first,
                          .count = count,
                          .step = (uint32_t)program->segment * stride};
}

size_t tdm__segment_offset(const tdm__segment *s)
{
    return s->first / (size_t)s->size;
}

tdm_extent tdm__segment_run(const tdm__segment *s, int rank)
{
    tdm_extent slice = tdm__call_slice(s->call, s->size, rank);
    size_t offset = tdm__segment_offset(s);
    size_t max = s->request->cut.segment / (size_t)s->size;
    if (offset > slice.count) offset = slice.count;
    size_t left = slice.count - offset;
    return (tdm_extent){.first = slice.first + offset, .count = left < max ? left : max};
}

tdm_extent tdm__segment_share(const tdm__segment *s, int rank)
{
    tdm_extent share = tdm_group_slice(s->count, s->size, rank);
    share.first += s->first;
    return share;
}

const uint8_t *tdm__leaf_at(const tdm__segment *s, int leaf, size_t element)
{
    int own = leaf - s->request->leaves.first[s->rank];
    const void *data = s->call->lanes && s->call->parts ? s->call->parts[own] : s->call->in;
    return (const uint8_t *)data + element * s->unit;
}

const uint8_t *tdm__all_to_all_input(const tdm__segment *s)
{
    const tdm_call *call = s->call;
    if (call->in != call->out || call->count == 0) return tdm__in_at(s, 0);
    tdm_request *request = s->program->request;
    if (!request->algorithm_data) {
        request->algorithm_data = malloc(call->count * s->unit);
        if (request->algorithm_data)
            memcpy(request->algorithm_data, call->in, call->count * s->unit);
        else
            s->program->no_memory = true;
    }
    return request->algorithm_data;
}

void tdm__send_some(const tdm__segment *s, int peer, uint32_t step, const void *from,
                    size_t elements)
{
    if (elements) tdm__program_send(s->program, peer, step, from, elements * s->unit);
}

void tdm__recv_some(const tdm__segment *s, int peer, uint32_t step, void *to, size_t elements)
{
    if (elements) tdm__program_recv(s->program, peer, step, to, elements * s->unit);
}

tdm__cut tdm__cut_make(const tdm_group *group, const tdm_call *call, tdm__cut_options request)
{
    size_t unit = tdm_dtype_bytes(call->dtype);
    size_t multiple = tdm__kind_has_slices(call->kind) ? (size_t)group->size : 1;
    size_t span = tdm__call_span(call, group->size);
    size_t whole = tdm_align_up(span ? span : 1, multiple);
    if (request.segment_bytes == 0 || unit == 0 || call->kind == TDM_CALL_BARRIER)
        return (tdm__cut){.segment = whole, .flight = 1};
    size_t measured = tdm__choices_segment(group, call, request.algorithm);
    size_t segment = (measured ? measured : request.segment_bytes) / unit;
    size_t min = (size_t)(span / (MAX_STEPS / request.stride)) + 1;
    if (segment < min) segment = min;
    segment = tdm_align_up(segment, multiple);
    return (tdm__cut){.segment = segment < whole ? segment : whole, .flight = request.flight};
}

/* The maximum of one rank's share of a segment. */
static size_t share_max(const tdm_group *group)
{
    if (group->host_count == 1) return SHARE_BYTES;
    return group->host_count == 2 ? PAIR_SHARE_BYTES : WIRE_SHARE_BYTES;
}

int tdm__share_flight(const tdm_group *group)
{
    enum { FLIGHT = 4, WIRE_FLIGHT = 2, WIRE_FLIGHT_MAX = 16 };
    const double rate = 1.25e9;      /* bytes per second: 10 Gbit/s */
    const double unknown_s = 0.2e-3; /* if the round trip is unknown */
    if (group->host_count <= 2) return FLIGHT;
    double round_trip_s = group->comm->round_trip_s;
    if (round_trip_s <= 0) round_trip_s = unknown_s;
    double segment = (double)share_max(group) * (group->size - 1);
    double flight = WIRE_FLIGHT + rate * round_trip_s / segment;
    return flight < WIRE_FLIGHT_MAX ? (int)flight : WIRE_FLIGHT_MAX;
}

size_t tdm__share_segment(const tdm_group *group, const tdm_call *call)
{
    size_t size = (size_t)group->size;
    size_t bytes = tdm__call_span(call, group->size) * tdm_dtype_bytes(call->dtype);
    size_t share = bytes / size / SEGMENTS_WANTED + 1;
    size_t max = SCRATCH_BYTES / size;
    if (max > share_max(group)) max = share_max(group);
    if (share > max) share = max;
    if (share < MIN_SHARE_BYTES) share = MIN_SHARE_BYTES;
    return share * size;
}
