/*
 * doubling.c: in each step a rank exchanges data with a rank twice as far away as in the previous
 * step.
 *
 * Sums begin with the nearest partner, so each step computes the sums of one level of the canonical
 * tree. This requires that rank i has block i of the lanes, with blocks of equal size: always true
 * without lanes. If P is not a power of two, the right block may have fewer ranks than its left
 * neighbour; then each of them serves several ranks there.
 *
 * For P ranks, L = log2 P rounded up, and n bytes; sent by the rank that sends most:
 *
 *                            steps   messages   bytes
 *   barrier                    L        L        0
 *   all_reduce      small      L        L        n L               (P a power of two)
 *                              L      P - 1      n (P - 1)         (other P: at most)
 *                   large     2L       2L        2n (P - 1) / P    (P a power of two)
 *   reduce_scatter             L        L        n (P - 1) / P     (P a power of two only)
 *   all_gather                 L     2L at most  n (P - 1) / P     (any P)
 *
 * If P is not a power of two, a large all_reduce uses this algorithm only on explicit request.
 * "Large" is from 8 KB on, for four ranks and more: each step halves the data that is exchanged
 * (one of two partners keeps the lower half, the other the upper), and then the results are doubled
 * in reverse order. The slice that a rank gets is given by the reversed bits of its rank, so
 * reduce_scatter first reorders the slices. In an all_gather, rank i has slices i, i + 1, ...
 * modulo P, and sends what it has to the rank that many ranks before it; a range that wraps around
 * takes two messages. Sums are divided into segments; the other kinds have one. Step numbers: the
 * level k, or 2k and 2k + 1, of a segment's 64, and 32 + k on the way back.
 */
#include "comm/algorithms/build.h"
#include "comm/comm.h"

enum {
    LARGE_BYTES = 8 * 1024,
    STEP_BACK = 32,
    STRIDE = 64,
    SEGMENT_BYTES = 1024 * 1024,
    FLIGHT = 4
};

static bool is_power_of_two(int size)
{
    return (size & (size - 1)) == 0;
}

/* Whether rank i has block i of the lanes, as one part. */
static bool doubling_brings_blocks(const tdm_group *group, const tdm_lanes *lanes)
{
    if (!lanes) return true;
    if (lanes->lane_count % group->size != 0) return false;
    int64_t width = lanes->lane_count / group->size;
    for (int i = 0; i < group->size; i++) {
        int64_t nodes[TDM_MAX_LANE_PARTS];
        if (lanes->first[i] != i * width) return false;
        if (tdm_lane_nodes(lanes, i * width, (i + 1) * width, nodes) != 1) return false;
    }
    return true;
}

static bool doubling_fits(const tdm_group *group, const tdm_call *call)
{
    switch (call->kind) {
    case TDM_CALL_BARRIER:
    case TDM_CALL_ALL_GATHER: return true;
    case TDM_CALL_ALL_REDUCE:
        return (is_power_of_two(group->size) || tdm__call_bytes(call) < LARGE_BYTES ||
                call->algorithm == TDM_ALGORITHM_DOUBLING) &&
               doubling_brings_blocks(group, call->lanes);
    case TDM_CALL_REDUCE_SCATTER:
        return is_power_of_two(group->size) && doubling_brings_blocks(group, call->lanes);
    default: return false;
    }
}

static tdm__cut doubling_cut(const tdm_group *group, const tdm_call *call)
{
    return tdm__cut_make(
        group, call,
        (tdm__cut_options){.segment_bytes = tdm__kind_reduces(call->kind) ? SEGMENT_BYTES : 0,
                           .stride = STRIDE,
                           .flight = FLIGHT,
                           .algorithm = TDM_ALGORITHM_DOUBLING});
}

static void doubling_build_barrier(const tdm__segment *s)
{
    uint32_t step = s->step;
    for (int distance = 1; distance < s->size; distance *= 2) {
        tdm__program_send(s->program, (s->rank + distance) % s->size, step, NULL, 0);
        tdm__program_recv(s->program, (s->rank + s->size - distance) % s->size, step, NULL, 0);
        tdm__program_join(s->program);
        step++;
    }
}

/* ---- exchange of whole buffers ---------------------------------------------------------------- */

/* One level: exchanges sums with the neighbouring block. Returns whether there is one. */
static bool doubling_exchange_whole(const tdm__segment *s, int width, uint32_t step,
                                    const void *from, void *into)
{
    int first = s->rank / (2 * width) * (2 * width), middle = first + width;
    if (middle >= s->size) return false;
    int right_count = s->size - middle < width ? s->size - middle : width;
    if (s->rank < middle) {
        int index = s->rank - first;
        tdm__recv_some(s, middle + index % right_count, step, into, s->count);
        if (index < right_count) tdm__send_some(s, middle + index, step, from, s->count);
    } else {
        int index = s->rank - middle;
        tdm__recv_some(s, first + index, step, into, s->count);
        for (int i = index; i < width; i += right_count)
            tdm__send_some(s, first + i, step, from, s->count);
    }
    tdm__program_join(s->program);
    return true;
}

static void doubling_add_whole(const tdm__segment *s)
{
    size_t bytes = s->count * s->unit;
    const uint8_t *sum = tdm__leaf_at(s, s->request->leaves.first[s->rank], s->first);
    uint8_t *out = tdm__out_at(s, s->first);
    uint8_t *theirs = tdm__program_scratch(s->program, bytes);
    if (!theirs) return;
    uint32_t step = s->step;
    for (int width = 1; width < s->size; width *= 2, step++) {
        if (!doubling_exchange_whole(s, width, step, sum, theirs)) continue;
        bool is_left = s->rank / width % 2 == 0;
        tdm__program_pair(s->program, out, is_left ? sum : theirs, is_left ? theirs : sum, bytes);
        sum = out;
    }
    tdm__program_copy(s->program, out, sum, bytes, false);
}

/* ---- halving ---------------------------------------------------------------------------------- */

/* A buffer of `size` slices in some order; each step halves the range that this rank processes. */
typedef struct halves {
    const size_t *starts; /* by slice index, and one more: in elements of the buffer */
    int first, last;      /* the range of slices of this rank */
} halves;

static int reverse_bits(int value, int size)
{
    int reversed = 0;
    for (int bit = 1; bit < size; bit *= 2, value /= 2) reversed = 2 * reversed + value % 2;
    return reversed;
}

/* One level: keeps one half of the slices, with the sum of both partners' data written to `to`. */
static void doubling_halve(const tdm__segment *s, halves *h, int width, uint32_t step,
                           const uint8_t *from, uint8_t *to, uint8_t *theirs)
{
    int partner = s->rank ^ width, middle = (h->first + h->last) / 2;
    bool is_left = s->rank < partner;
    size_t begin = h->starts[h->first], centre = h->starts[middle], end = h->starts[h->last];
    size_t kept = is_left ? begin : centre, kept_count = is_left ? centre - begin : end - centre;
    size_t sent = is_left ? centre : begin, sent_count = end - begin - kept_count;
    tdm__recv_some(s, partner, step, theirs, kept_count);
    tdm__send_some(s, partner, step, from + sent * s->unit, sent_count);
    tdm__program_join(s->program);
    const uint8_t *ours = from + kept * s->unit;
    tdm__program_pair(s->program, to + kept * s->unit, is_left ? ours : theirs,
                      is_left ? theirs : ours, kept_count * s->unit);
    if (is_left)
        h->last = middle;
    else
        h->first = middle;
}

/* The way back: receives the other half, whose results the partner has. */
static void doubling_return(const tdm__segment *s, halves *h, int width, uint32_t step, uint8_t *at)
{
    int partner = s->rank ^ width, count = h->last - h->first;
    int first = s->rank < partner ? h->last : h->first - count;
    size_t begin = h->starts[h->first], end = h->starts[h->last];
    size_t their_begin = h->starts[first], their_end = h->starts[first + count];
    tdm__recv_some(s, partner, step, at + their_begin * s->unit, their_end - their_begin);
    tdm__send_some(s, partner, step, at + begin * s->unit, end - begin);
    tdm__program_join(s->program);
    if (first < h->first)
        h->first = first;
    else
        h->last = first + count;
}

static void doubling_add_halves(const tdm__segment *s)
{
    size_t *starts = tdm__program_scratch(s->program, ((size_t)s->size + 1) * sizeof(*starts));
    uint8_t *theirs = tdm__program_scratch(s->program, (s->count / 2 + (size_t)s->size) * s->unit);
    if (!starts || !theirs) return;
    for (int i = 0; i < s->size; i++) starts[i] = tdm_group_slice(s->count, s->size, i).first;
    starts[s->size] = s->count;
    halves h = {.starts = starts, .last = s->size};
    const uint8_t *from = tdm__leaf_at(s, s->request->leaves.first[s->rank], s->first);
    uint8_t *out = tdm__out_at(s, s->first);
    uint32_t level = 0;
    for (int width = 1; width < s->size; width *= 2) {
        doubling_halve(s, &h, width, s->step + level++, from, out, theirs);
        from = out;
    }
    for (int width = s->size / 2; width >= 1; width /= 2)
        doubling_return(s, &h, width, s->step + STEP_BACK + --level, out);
}

static void doubling_build_all_reduce(const tdm__segment *s)
{
    if (is_power_of_two(s->size) && s->size >= 4 && tdm__call_bytes(s->call) >= LARGE_BYTES)
        doubling_add_halves(s);
    else
        doubling_add_whole(s);
}

/* The maximum number of elements that this rank keeps at one of the levels: at the first it keeps
 * half the slices. */
static size_t doubling_max_kept(const tdm__segment *s, const size_t *starts)
{
    if (s->size == 1) return 0;
    bool is_left = (s->rank & 1) == 0;
    return is_left ? starts[s->size / 2] : starts[s->size] - starts[s->size / 2];
}

static void doubling_build_reduce_scatter(const tdm__segment *s)
{
    size_t *starts = tdm__program_scratch(s->program, ((size_t)s->size + 1) * sizeof(*starts));
    if (!starts) return;
    size_t total = 0;
    for (int place = 0; place < s->size; place++) {
        starts[place] = total;
        total += tdm__segment_run(s, reverse_bits(place, s->size)).count;
    }
    starts[s->size] = total;
    uint8_t *all = tdm__program_scratch(s->program, total * s->unit);
    uint8_t *theirs = tdm__program_scratch(s->program, doubling_max_kept(s, starts) * s->unit);
    if (!all || !theirs) return;
    int leaf = s->request->leaves.first[s->rank];
    for (int place = 0; place < s->size; place++) {
        tdm_extent run = tdm__segment_run(s, reverse_bits(place, s->size));
        tdm__program_copy(s->program, all + starts[place] * s->unit,
                          tdm__leaf_at(s, leaf, run.first), run.count * s->unit, false);
    }
    halves h = {.starts = starts, .last = s->size};
    uint32_t step = s->step;
    for (int width = 1; width < s->size; width *= 2)
        doubling_halve(s, &h, width, step++, all, all, theirs);
    tdm__program_copy(s->program, tdm__out_at(s, tdm__segment_offset(s)),
                      all + starts[h.first] * s->unit, (starts[h.last] - starts[h.first]) * s->unit,
                      false);
}

/* ---- cyclic ranges ---------------------------------------------------------------------------- */

/* The elements of slices [first, first + count) modulo the group's size: before the wrap-around,
 * and after. */
static void doubling_slices_in_circle(const tdm__segment *s, int first, int count,
                                      tdm_extent out[2])
{
    int last = first + count < s->size ? first + count : s->size;
    size_t begin = tdm__call_slice(s->call, s->size, first).first;
    tdm_extent end = tdm__call_slice(s->call, s->size, last - 1);
    out[0] = (tdm_extent){.first = begin, .count = end.first + end.count - begin};
    out[1] = (tdm_extent){0};
    if (first + count > s->size) {
        end = tdm__call_slice(s->call, s->size, first + count - s->size - 1);
        out[1].count = end.first + end.count;
    }
}

static void doubling_build_all_gather(const tdm__segment *s)
{
    tdm_extent own = tdm__call_slice(s->call, s->size, s->rank);
    tdm__program_copy(s->program, tdm__out_at(s, own.first), s->call->in, own.count * s->unit,
                      false);
    uint32_t step = s->step;
    for (int have = 1; have < s->size; have *= 2, step += 2) {
        int from = (s->rank + have) % s->size, to = (s->rank + s->size - have) % s->size;
        int count = s->size - have < have ? s->size - have : have;
        tdm_extent sent[2], got[2];
        doubling_slices_in_circle(s, s->rank, count, sent);
        doubling_slices_in_circle(s, from, count, got);
        for (uint32_t i = 0; i < 2; i++) {
            tdm__recv_some(s, from, step + i, tdm__out_at(s, got[i].first), got[i].count);
            tdm__send_some(s, to, step + i, tdm__out_at(s, sent[i].first), sent[i].count);
        }
        tdm__program_join(s->program);
    }
}

static void doubling_build(tdm__program *program, size_t first, size_t count)
{
    tdm__segment s = tdm__segment_of(program, first, count, STRIDE);
    switch (s.call->kind) {
    case TDM_CALL_BARRIER: doubling_build_barrier(&s); break;
    case TDM_CALL_ALL_REDUCE: doubling_build_all_reduce(&s); break;
    case TDM_CALL_REDUCE_SCATTER: doubling_build_reduce_scatter(&s); break;
    case TDM_CALL_ALL_GATHER: doubling_build_all_gather(&s); break;
    default: break; /* not supported */
    }
}

const tdm__algorithm_ops tdm__algorithm_doubling = {
    .id = TDM_ALGORITHM_DOUBLING,
    .about = "recursive doubling",
    .fits = doubling_fits,
    .cut = doubling_cut,
    .build = doubling_build,
};
