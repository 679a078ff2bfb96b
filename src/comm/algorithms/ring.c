/*
 * ring.c: every rank exchanges data with its two neighbours in a ring, so all links are equally
 * loaded.
 *
 * A sum along a ring is computed in the order of the ring, which differs between slices and depends
 * on the number of ranks: it is not canonical. So a ring is chosen automatically only for
 * reductions that are independent of the order: integers, minima and maxima. Floats are added by a
 * ring only if the call requests this algorithm by name; their bits then depend on P. User
 * functions, which need not commute, are never run by a ring. Every rank must have one part.
 *
 * For P ranks and n bytes; sent by each rank:
 *
 *                    steps       messages   bytes
 *   broadcast        P - 1         1         n                  (the last one sends nothing)
 *   all_reduce       2P - 2      2P - 2      2n (P - 1) / P
 *   reduce_scatter   P - 1        P - 1      n (P - 1) / P
 *   all_gather       P - 1        P - 1      n (P - 1) / P
 *   all_to_all       P - 1        P - 1      n (P - 1) / P      (to another rank in each step)
 *
 * Messages are per segment, and segments are pipelined: a broadcast of S segments takes P - 1 + S -
 * 1 steps of n / S bytes. An all_to_all has one segment. In its step i a rank sends to the rank i
 * positions ahead and receives from the rank i positions behind, so that no rank is flooded. Step
 * numbers: the step, of a segment's 2P.
 */
#include "comm/algorithms/build.h"
#include "comm/comm.h"

enum { CHAIN_BYTES = 256 * 1024, CHAIN_FLIGHT = 8, FLIGHT = 2 };

/* Whether any order gives the same bits. */
static bool is_exact(const tdm_call *call)
{
    if (call->reduce == TDM_REDUCE_MIN || call->reduce == TDM_REDUCE_MAX) return true;
    return call->reduce == TDM_REDUCE_SUM &&
           (call->dtype == TDM_DTYPE_I32 || call->dtype == TDM_DTYPE_I64);
}

static bool ring_brings_one_part(const tdm_group *group, const tdm_lanes *lanes)
{
    for (int i = 0; lanes && i < group->size; i++) {
        int64_t nodes[TDM_MAX_LANE_PARTS];
        if (tdm_lane_nodes(lanes, lanes->first[i], lanes->first[i + 1], nodes) != 1) return false;
    }
    return true;
}

static bool ring_fits(const tdm_group *group, const tdm_call *call)
{
    bool by_name = call->algorithm == TDM_ALGORITHM_RING;
    switch (call->kind) {
    case TDM_CALL_BROADCAST:
    case TDM_CALL_ALL_GATHER:
    case TDM_CALL_ALL_TO_ALL: return true;
    case TDM_CALL_ALL_REDUCE:
    case TDM_CALL_REDUCE_SCATTER:
        return call->reduce != TDM_REDUCE_USER && (is_exact(call) || by_name) &&
               ring_brings_one_part(group, call->lanes);
    default: return false;
    }
}

static uint32_t ring_stride_of(const tdm_group *group)
{
    return 2 * (uint32_t)group->size;
}

static tdm__cut ring_cut(const tdm_group *group, const tdm_call *call)
{
    tdm__cut_options request = {.segment_bytes = tdm__share_segment(group, call),
                                .stride = ring_stride_of(group),
                                .flight = FLIGHT,
                                .algorithm = TDM_ALGORITHM_RING};
    if (call->kind == TDM_CALL_ALL_TO_ALL) request.segment_bytes = 0;
    if (call->kind == TDM_CALL_BROADCAST) {
        request.segment_bytes = CHAIN_BYTES;
        request.flight = CHAIN_FLIGHT;
    }
    return tdm__cut_make(group, call, request);
}

/* The rank that many positions ahead; may be negative. */
static int ring_rank_at(const tdm__segment *s, int places)
{
    return ((s->rank + places) % s->size + s->size) % s->size;
}

static void ring_build_broadcast(const tdm__segment *s)
{
    int place = ring_rank_at(s, -s->root);
    uint8_t *out = tdm__out_at(s, s->first);
    const uint8_t *from = out;
    if (place == 0) {
        from = tdm__in_at(s, s->first);
        tdm__program_copy(s->program, out, from, s->count * s->unit, false);
    } else {
        tdm__recv_some(s, ring_rank_at(s, -1), s->step, out, s->count);
        tdm__program_join(s->program);
    }
    if (place < s->size - 1) tdm__send_some(s, ring_rank_at(s, 1), s->step, from, s->count);
    tdm__program_join(s->program);
}

/* ---- sums and slices -------------------------------------------------------------------------- */

typedef tdm_extent (*range_fn)(const tdm__segment *s, int rank);

/* Range i starts at rank i + 1 and ends, with the data of all ranks added, at rank i. */
static void ring_add(const tdm__segment *s, range_fn range_of, uint8_t *to)
{
    int leaf = s->request->leaves.first[s->rank];
    size_t max = 0;
    for (int i = 0; i < s->size; i++)
        if (range_of(s, i).count > max) max = range_of(s, i).count;
    max *= s->unit;
    uint8_t *two[2] = {tdm__program_scratch(s->program, max),
                       tdm__program_scratch(s->program, max)};
    if (!two[0] || !two[1]) return;
    tdm_extent range = range_of(s, ring_rank_at(s, -1));
    const uint8_t *sum = tdm__leaf_at(s, leaf, range.first);
    for (int i = 0; i < s->size - 1; i++) {
        uint8_t *into = two[i % 2];
        uint32_t step = s->step + (uint32_t)i;
        tdm__send_some(s, ring_rank_at(s, 1), step, sum, range.count);
        range = range_of(s, ring_rank_at(s, -2 - i));
        tdm__recv_some(s, ring_rank_at(s, -1), step, into, range.count);
        tdm__program_join(s->program);
        tdm__program_pair(s->program, i == s->size - 2 ? to : into, into,
                          tdm__leaf_at(s, leaf, range.first), range.count * s->unit);
        sum = into;
    }
    if (s->size == 1) tdm__program_copy(s->program, to, sum, range.count * s->unit, false);
}

/* Every rank has its own range in `out`; the ranges are forwarded until all ranks have all. */
static void ring_pass(const tdm__segment *s, range_fn range_of, uint32_t step)
{
    for (int i = 0; i < s->size - 1; i++) {
        tdm_extent sent = range_of(s, ring_rank_at(s, -i)),
                   got = range_of(s, ring_rank_at(s, -i - 1));
        tdm__send_some(s, ring_rank_at(s, 1), step, tdm__out_at(s, sent.first), sent.count);
        tdm__recv_some(s, ring_rank_at(s, -1), step, tdm__out_at(s, got.first), got.count);
        tdm__program_join(s->program);
        step++;
    }
}

static void ring_build_all_reduce(const tdm__segment *s)
{
    ring_add(s, tdm__segment_share, tdm__out_at(s, tdm__segment_share(s, s->rank).first));
    ring_pass(s, tdm__segment_share, s->step + (uint32_t)s->size);
}

static void ring_build_all_gather(const tdm__segment *s)
{
    tdm_extent own = tdm__segment_run(s, s->rank);
    tdm__program_copy(s->program, tdm__out_at(s, own.first), tdm__in_at(s, tdm__segment_offset(s)),
                      own.count * s->unit, false);
    ring_pass(s, tdm__segment_run, s->step);
}

static void ring_build_all_to_all(const tdm__segment *s)
{
    const uint8_t *in = tdm__all_to_all_input(s);
    if (s->program->no_memory) return;
    tdm_extent own = tdm_group_slice(s->call->count, s->size, s->rank);
    for (int i = 1; i < s->size; i++) {
        int to = ring_rank_at(s, i), from = ring_rank_at(s, -i);
        tdm_extent slice = tdm_group_slice(s->call->count, s->size, to);
        tdm__send_some(s, to, s->step + (uint32_t)i, in + slice.first * s->unit, slice.count);
        tdm__recv_some(s, from, s->step + (uint32_t)i, tdm__out_at(s, (size_t)from * own.count),
                       own.count);
        tdm__program_join(s->program);
    }
    tdm__program_copy(s->program, tdm__out_at(s, (size_t)s->rank * own.count),
                      in + own.first * s->unit, own.count * s->unit, false);
}

static void ring_build(tdm__program *program, size_t first, size_t count)
{
    tdm__segment s = tdm__segment_of(program, first, count,
                                     ring_stride_of(program->request->group));
    switch (s.call->kind) {
    case TDM_CALL_BROADCAST: ring_build_broadcast(&s); break;
    case TDM_CALL_ALL_REDUCE: ring_build_all_reduce(&s); break;
    case TDM_CALL_REDUCE_SCATTER:
        ring_add(&s, tdm__segment_run, tdm__out_at(&s, tdm__segment_offset(&s)));
        break;
    case TDM_CALL_ALL_GATHER: ring_build_all_gather(&s); break;
    case TDM_CALL_ALL_TO_ALL: ring_build_all_to_all(&s); break;
    default: break; /* not supported */
    }
}

const tdm__algorithm_ops tdm__algorithm_ring = {
    .id = TDM_ALGORITHM_RING,
    .about = "around a ring of neighbours",
    .fits = ring_fits,
    .cut = ring_cut,
    .build = ring_build,
};
