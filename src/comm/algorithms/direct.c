/*
 * direct.c: each rank sends to every rank that needs its data. Supports every call.
 *
 * Sums: a rank that needs a sum receives all leaves of it and evaluates the tree itself. So the
 * order is canonical by construction, for any number of ranks, any lanes and any function. Small
 * calls take one step. Larger reductions take two: each rank owns a share of the segment, receives
 * all leaves of it, adds them, and sends the result; segments overlap, so that communication and
 * addition do as well.
 *
 * For P ranks, n bytes and one part per rank; sent by the rank that sends most; sequential steps of
 * a segment:
 *
 *                          steps   messages   bytes
 *   barrier                  1      P - 1      0
 *   broadcast   small        1      P - 1      n (P - 1)               (root)
 *               large        2     2P - 2      2n (P - 1) / P          (root; others n (P - 2) / P)
 *   reduce      small        1        1        n                       (each but root)
 *               large        2        P        n (P - 1) / P + n / P   (each but root)
 *   all_reduce  small        1      P - 1      n (P - 1)
 *               large        2     2P - 2      2n (P - 1) / P
 *   reduce_scatter           1      P - 1      n (P - 1) / P
 *   all_gather               1      P - 1      n (P - 1) / P
 *   gather                   1        1        n / P                   (each but root)
 *   scatter                  1      P - 1      n (P - 1) / P           (root)
 *   all_to_all               1      P - 1      n (P - 1) / P
 *   send, recv               1        1        n
 *
 * A rank with k parts sends k times as much in the step that carries parts. "Small" means n (P - 1)
 * <= 32 KB, and always broadcast and reduce of two ranks. Segments: reductions and large broadcasts
 * are divided (see build.h); the other kinds have one segment. Step numbers: parts are 0 to 63 of a
 * segment's 128, results are 64.
 */
#include "comm/algorithms/build.h"

enum {
    SMALL_BYTES = 32 * 1024,
    STEP_RESULT = TDM_MAX_LANE_PARTS, /* steps before it: parts, by their index at the sender */
    STRIDE = 2 * TDM_MAX_LANE_PARTS
};

static bool direct_fits(const tdm_group *group, const tdm_call *call)
{
    (void)group;
    (void)call;
    return true;
}

/* In one step: each rank that needs the whole receives the whole. */
static bool direct_in_one_step(const tdm_group *group, const tdm_call *call)
{
    size_t others = (size_t)group->size - 1;
    if (others == 0) return true;
    if (others == 1 && call->kind != TDM_CALL_ALL_REDUCE) return true;
    return tdm__call_bytes(call) <= SMALL_BYTES / others;
}

static tdm__cut direct_cut(const tdm_group *group, const tdm_call *call)
{
    bool is_cut = tdm__kind_reduces(call->kind) ||
                  (call->kind == TDM_CALL_BROADCAST && !direct_in_one_step(group, call));
    return tdm__cut_make(
        group, call,
        (tdm__cut_options){.segment_bytes = is_cut ? tdm__share_segment(group, call) : 0,
                           .stride = STRIDE,
                           .flight = tdm__share_flight(group),
                           .algorithm = TDM_ALGORITHM_DIRECT});
}

/* ---- sums ------------------------------------------------------------------------------------- */

/* Sends this rank's leaves, elements `range` of the call, to a peer. */
static void direct_send_leaves(const tdm__segment *s, int peer, tdm_extent range)
{
    const int *first = s->request->leaves.first;
    for (int leaf = first[s->rank]; leaf < first[s->rank + 1]; leaf++)
        tdm__send_some(s, peer, s->step + (uint32_t)(leaf - first[s->rank]),
                       tdm__leaf_at(s, leaf, range.first), range.count);
}

/* Starts to receive the other ranks' leaves; returns the addresses of all leaves, or NULL: out of
 * memory. */
static const void **direct_recv_leaves(const tdm__segment *s, tdm_extent range)
{
    const tdm__leaves *leaves = &s->request->leaves;
    const int *first = leaves->first;
    int own_count = first[s->rank + 1] - first[s->rank];
    size_t bytes = range.count * s->unit;
    const void **sources = tdm__program_scratch(s->program,
                                                (size_t)leaves->count * sizeof(*sources));
    uint8_t *scratch = tdm__program_scratch(s->program,
                                            (size_t)(leaves->count - own_count) * bytes);
    if (!sources || !scratch) return NULL;
    for (int rank = 0; rank < s->size; rank++)
        for (int leaf = first[rank]; leaf < first[rank + 1]; leaf++) {
            if (rank == s->rank) {
                sources[leaf] = tdm__leaf_at(s, leaf, range.first);
                continue;
            }
            sources[leaf] = scratch;
            tdm__recv_some(s, rank, s->step + (uint32_t)(leaf - first[rank]), scratch, range.count);
            scratch += bytes;
        }
    return sources;
}

static void direct_add_leaves(const tdm__segment *s, const void **sources, void *to, size_t count)
{
    const tdm__tree_plan *plan = &s->request->plan;
    if (plan->leaf_count == 1)
        tdm__program_copy(s->program, to, sources[0], count * s->unit, false);
    else
        tdm__program_tree(s->program, plan, sources, &to, 1, count, false);
}

/* Every rank sends its leaves of each owner's range; the owner adds them into `to`. */
static void direct_reduce_ranges(const tdm__segment *s,
                                 tdm_extent (*range_of)(const tdm__segment *, int), void *to)
{
    tdm_extent own = range_of(s, s->rank);
    const void **sources = direct_recv_leaves(s, own);
    if (!sources) return;
    for (int i = 1; i < s->size; i++) { /* each starts with a different peer, so that none is
                                         * flooded */
        int peer = (s->rank + i) % s->size;
        direct_send_leaves(s, peer, range_of(s, peer));
    }
    tdm__program_join(s->program);
    direct_add_leaves(s, sources, to, own.count);
}

/* All elements of this segment. */
static tdm_extent direct_all_of(const tdm__segment *s, int rank)
{
    (void)rank;
    return (tdm_extent){.first = s->first, .count = s->count};
}

static void direct_build_reduce(const tdm__segment *s)
{
    bool is_root = s->rank == s->root;
    if (direct_in_one_step(s->request->group, s->call)) {
        tdm_extent range = direct_all_of(s, s->rank);
        const void **sources = is_root ? direct_recv_leaves(s, range) : NULL;
        if (is_root && !sources) return;
        if (!is_root) direct_send_leaves(s, s->root, range);
        tdm__program_join(s->program);
        if (is_root) direct_add_leaves(s, sources, tdm__out_at(s, range.first), range.count);
        return;
    }
    tdm_extent own = tdm__segment_share(s, s->rank);
    void *sum = is_root ? tdm__out_at(s, own.first)
                        : tdm__program_scratch(s->program, own.count * s->unit);
    if (!sum) return;
    direct_reduce_ranges(s, tdm__segment_share, sum);
    for (int i = 0; is_root && i < s->size; i++) {
        tdm_extent share = tdm__segment_share(s, i);
        if (i != s->rank)
            tdm__recv_some(s, i, s->step + STEP_RESULT, tdm__out_at(s, share.first), share.count);
    }
    if (!is_root) tdm__send_some(s, s->root, s->step + STEP_RESULT, sum, own.count);
    tdm__program_join(s->program);
}

/* Sends a finished share to all others except `except`, and receives theirs. */
static void direct_exchange_shares(const tdm__segment *s, int except)
{
    tdm_extent own = tdm__segment_share(s, s->rank);
    for (int i = 1; i < s->size; i++) {
        int peer = (s->rank + s->size - i) % s->size;
        tdm_extent share = tdm__segment_share(s, peer);
        if (peer != except)
            tdm__recv_some(s, peer, s->step + STEP_RESULT, tdm__out_at(s, share.first),
                           share.count);
    }
    for (int i = 1; i < s->size; i++) {
        int peer = (s->rank + i) % s->size;
        if (peer != except)
            tdm__send_some(s, peer, s->step + STEP_RESULT, tdm__out_at(s, own.first), own.count);
    }
    tdm__program_join(s->program);
}

static void direct_build_all_reduce(const tdm__segment *s)
{
    if (!direct_in_one_step(s->request->group, s->call)) {
        direct_reduce_ranges(s, tdm__segment_share,
                             tdm__out_at(s, tdm__segment_share(s, s->rank).first));
        direct_exchange_shares(s, s->rank);
        return;
    }
    direct_reduce_ranges(s, direct_all_of, tdm__out_at(s, s->first));
}

static void direct_build_reduce_scatter(const tdm__segment *s)
{
    direct_reduce_ranges(s, tdm__segment_run, tdm__out_at(s, tdm__segment_offset(s)));
}

/* ---- data movement ---------------------------------------------------------------------------- */

static void direct_build_barrier(const tdm__segment *s)
{
    for (int i = 1; i < s->size; i++) {
        tdm__program_send(s->program, (s->rank + i) % s->size, s->step, NULL, 0);
        tdm__program_recv(s->program, (s->rank + s->size - i) % s->size, s->step, NULL, 0);
    }
    tdm__program_join(s->program);
}

static void direct_build_broadcast(const tdm__segment *s)
{
    bool is_root = s->rank == s->root;
    if (is_root)
        tdm__program_copy(s->program, tdm__out_at(s, s->first), tdm__in_at(s, s->first),
                          s->count * s->unit, false);
    if (direct_in_one_step(s->request->group, s->call)) {
        for (int i = 1; is_root && i < s->size; i++)
            tdm__send_some(s, (s->rank + i) % s->size, s->step, tdm__in_at(s, s->first), s->count);
        if (!is_root) tdm__recv_some(s, s->root, s->step, tdm__out_at(s, s->first), s->count);
        tdm__program_join(s->program);
        return;
    }

    /* Root sends each rank its share, and its own share to all; then the others forward theirs. */
    tdm_extent own = tdm__segment_share(s, s->rank), roots = tdm__segment_share(s, s->root);
    if (!is_root) {
        tdm__recv_some(s, s->root, s->step, tdm__out_at(s, own.first), own.count);
        tdm__recv_some(s, s->root, s->step + STEP_RESULT, tdm__out_at(s, roots.first), roots.count);
        tdm__program_join(s->program);
        direct_exchange_shares(s, s->root);
        return;
    }

    for (int i = 1; i < s->size; i++) {
        int peer = (s->rank + i) % s->size;
        tdm_extent share = tdm__segment_share(s, peer);
        tdm__send_some(s, peer, s->step, tdm__in_at(s, share.first), share.count);
    }
    for (int i = 1; i < s->size; i++)
        tdm__send_some(s, (s->rank + i) % s->size, s->step + STEP_RESULT, tdm__in_at(s, own.first),
                       own.count);
    tdm__program_join(s->program);
}

static void direct_copy_own(const tdm__segment *s, size_t to, const void *from, size_t elements)
{
    tdm__program_copy(s->program, tdm__out_at(s, to), from, elements * s->unit, false);
}

static void direct_build_all_gather(const tdm__segment *s)
{
    tdm_extent own = tdm__segment_run(s, s->rank);
    const uint8_t *from = tdm__in_at(s, tdm__segment_offset(s));
    for (int i = 1; i < s->size; i++) {
        int peer = (s->rank + s->size - i) % s->size;
        tdm_extent run = tdm__segment_run(s, peer);
        tdm__recv_some(s, peer, s->step, tdm__out_at(s, run.first), run.count);
    }
    for (int i = 1; i < s->size; i++)
        tdm__send_some(s, (s->rank + i) % s->size, s->step, from, own.count);
    direct_copy_own(s, own.first, from, own.count);
    tdm__program_join(s->program);
}

static void direct_build_gather(const tdm__segment *s)
{
    tdm_extent own = tdm__segment_run(s, s->rank);
    const uint8_t *from = tdm__in_at(s, tdm__segment_offset(s));
    for (int i = 0; s->rank == s->root && i < s->size; i++) {
        tdm_extent run = tdm__segment_run(s, i);
        if (i != s->rank) tdm__recv_some(s, i, s->step, tdm__out_at(s, run.first), run.count);
    }
    if (s->rank == s->root)
        direct_copy_own(s, own.first, from, own.count);
    else
        tdm__send_some(s, s->root, s->step, from, own.count);
    tdm__program_join(s->program);
}

static void direct_build_scatter(const tdm__segment *s)
{
    tdm_extent own = tdm__segment_run(s, s->rank);
    size_t to = tdm__segment_offset(s);
    if (s->rank != s->root) {
        tdm__recv_some(s, s->root, s->step, tdm__out_at(s, to), own.count);
        tdm__program_join(s->program);
        return;
    }
    for (int i = 1; i < s->size; i++) {
        int peer = (s->rank + i) % s->size;
        tdm_extent run = tdm__segment_run(s, peer);
        tdm__send_some(s, peer, s->step, tdm__in_at(s, run.first), run.count);
    }
    tdm__program_join(s->program); /* in place, this overwrites slice 0 */
    direct_copy_own(s, to, tdm__in_at(s, own.first), own.count);
}

static void direct_build_all_to_all(const tdm__segment *s)
{
    const uint8_t *in = tdm__all_to_all_input(s);
    if (s->program->no_memory) return;
    size_t block = tdm_group_slice(s->call->count, s->size, s->rank).count;
    size_t offset = tdm__segment_offset(s);
    tdm_extent own = tdm__segment_run(s, s->rank);
    for (int i = 1; i < s->size; i++) {
        int peer = (s->rank + s->size - i) % s->size;
        tdm__recv_some(s, peer, s->step, tdm__out_at(s, (size_t)peer * block + offset), own.count);
    }
    for (int i = 1; i < s->size; i++) {
        int peer = (s->rank + i) % s->size;
        tdm_extent run = tdm__segment_run(s, peer);
        tdm__send_some(s, peer, s->step, in + run.first * s->unit, run.count);
    }
    direct_copy_own(s, (size_t)s->rank * block + offset, in + own.first * s->unit, own.count);
    tdm__program_join(s->program);
}

static void direct_build(tdm__program *program, size_t first, size_t count)
{
    tdm__segment s = tdm__segment_of(program, first, count, STRIDE);
    switch (s.call->kind) {
    case TDM_CALL_BARRIER: direct_build_barrier(&s); break;
    case TDM_CALL_BROADCAST: direct_build_broadcast(&s); break;
    case TDM_CALL_REDUCE: direct_build_reduce(&s); break;
    case TDM_CALL_ALL_REDUCE: direct_build_all_reduce(&s); break;
    case TDM_CALL_REDUCE_SCATTER: direct_build_reduce_scatter(&s); break;
    case TDM_CALL_ALL_GATHER: direct_build_all_gather(&s); break;
    case TDM_CALL_GATHER: direct_build_gather(&s); break;
    case TDM_CALL_SCATTER: direct_build_scatter(&s); break;
    case TDM_CALL_ALL_TO_ALL: direct_build_all_to_all(&s); break;
    case TDM_CALL_SEND:
        tdm__program_send(program, s.root, s.call->tag, s.call->in, s.count * s.unit);
        tdm__program_join(program);
        break;
    case TDM_CALL_RECV:
        tdm__program_recv(program, s.root, s.call->tag, s.call->out, s.count * s.unit);
        tdm__program_join(program);
        break;
    }
}

const tdm__algorithm_ops tdm__algorithm_direct = {
    .id = TDM_ALGORITHM_DIRECT,
    .about = "each rank sends to every rank that needs its data",
    .fits = direct_fits,
    .cut = direct_cut,
    .build = direct_build,
};
