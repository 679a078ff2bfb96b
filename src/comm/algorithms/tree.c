/*
 * tree.c: up and down a binomial tree, nearest neighbours first: few messages, any number of ranks.
 *
 * Ranks form blocks of 1, 2, 4, ... neighbours, like the tree of lanes. Each block has a holder:
 * the root if it is in the block, else the lowest rank. When two blocks are merged, one holder
 * sends its data to the other. So no root causes a detour, and the data of a holder always
 * belong to neighbours: a contiguous range of the leaves of a reduction. All sums of the canonical
 * tree within that range are computed; the remaining ones (one sum if ranks have one part each) are
 * sent up as a list. Thus the order is canonical for any lanes and any function.
 *
 * For P ranks, L = log2 P rounded up, n bytes and one part per rank; sent by the rank that sends
 * most:
 *
 *                 steps   messages   bytes
 *   barrier        2L        L        0
 *   broadcast       L        L        n L                       (root)
 *   reduce          L        1        n                         (each but root)
 *   all_reduce     2L        L        n L                       (rank 0)
 *   gather          L        1        n / 2                     (one rank; together n L / 2)
 *   scatter         L        L        n (P - 1) / P             (root)
 *
 * A reduction over lanes that are not aligned with the blocks sends up at most 2 log2(lanes) sums
 * instead of one. Kinds without slices are divided into segments, which are pipelined through the
 * tree; the others have one. Step numbers: sums go up as 0 to 63 of a segment's 128, data comes
 * down as 64. This is sufficient because two ranks have at most one edge of the tree in common.
 */
#include "comm/algorithms/build.h"

enum {
    STEP_DOWN = TDM_MAX_LANE_PARTS,
    STRIDE = 2 * TDM_MAX_LANE_PARTS,
    SEGMENT_BYTES = 256 * 1024,
    FLIGHT = 4
};

static bool tree_fits(const tdm_group *group, const tdm_call *call)
{
    (void)group;
    switch (call->kind) {
    case TDM_CALL_BARRIER:
    case TDM_CALL_BROADCAST:
    case TDM_CALL_REDUCE:
    case TDM_CALL_ALL_REDUCE:
    case TDM_CALL_GATHER:
    case TDM_CALL_SCATTER: return true;
    default: return false;
    }
}

static tdm__cut tree_cut(const tdm_group *group, const tdm_call *call)
{
    return tdm__cut_make(
        group, call,
        (tdm__cut_options){.segment_bytes = tdm__kind_has_slices(call->kind) ? 0 : SEGMENT_BYTES,
                           .stride = STRIDE,
                           .flight = FLIGHT,
                           .algorithm = TDM_ALGORITHM_TREE});
}

/* ---- the tree --------------------------------------------------------------------------------- */

/* Two neighbouring blocks that are merged, seen by a rank in one of them. */
typedef struct joint {
    int first, middle, last; /* ranks [first, middle) and [middle, last); empty: last <= middle */
    int left_holder, right_holder; /* of the two blocks */
    int holder;                    /* of the merged block: one of these */
} joint;

static int tree_holder_of(int first, int last, int root)
{
    return root >= first && root < last ? root : first;
}

/* The joint of two blocks of `width` ranks in which this rank's block takes part. */
static joint tree_joint_at(const tdm__segment *s, int root, int width)
{
    int first = s->rank / (2 * width) * (2 * width);
    joint j = {.first = first, .middle = first + width};
    j.last = s->size - first < 2 * width ? s->size : first + 2 * width;
    j.left_holder = tree_holder_of(j.first, j.middle, root);
    j.right_holder = tree_holder_of(j.middle, j.last, root);
    j.holder = tree_holder_of(j.first, j.last, root);
    return j;
}

static bool tree_is_empty(const joint *j)
{
    return j->last <= j->middle;
}

/* The holder that sends its block's data to the other, going up. */
static int tree_giver_of(const joint *j)
{
    return j->holder == j->left_holder ? j->right_holder : j->left_holder;
}

/* The width of the blocks at whose joint this rank sends; if it never does, the first width that is
 * not a block's. */
static int tree_giving_width(const tdm__segment *s, int root)
{
    int width = 1;
    for (; width < s->size; width *= 2) {
        joint j = tree_joint_at(s, root, width);
        if (!tree_is_empty(&j) && tree_giver_of(&j) == s->rank) break;
    }
    return width;
}

/* ---- sums, upwards ---------------------------------------------------------------------------- */

/* The data that a rank has of the leaves of a reduction: sums of ranges, each stored at its first
 * leaf. */
typedef struct partial_sums {
    const tdm__tree_plan *plan;
    int *ends;          /* by pair: its range is [left, end) */
    const uint8_t **at; /* by leaf: the address of the sum that begins there; NULL: none */
    uint8_t **own;      /* the same, if it may be overwritten */
    uint8_t *to;        /* the destination of the final sum; NULL: any */
} partial_sums;

static bool tree_sums_init(const tdm__segment *s, partial_sums *out, uint8_t *to)
{
    const tdm__tree_plan *plan = &s->request->plan;
    size_t count = (size_t)plan->leaf_count;
    int *ends = tdm__program_scratch(s->program, (count + 1) * sizeof(*ends));
    int *run_ends = tdm__program_scratch(s->program, count * sizeof(*run_ends));
    const uint8_t **at = tdm__program_scratch(s->program, count * sizeof(*at));
    uint8_t **own = tdm__program_scratch(s->program, count * sizeof(*own));
    if (!ends || !run_ends || !at || !own) return false;
    for (int i = 0; i < plan->leaf_count; i++) {
        run_ends[i] = i + 1;
        at[i] = NULL;
        own[i] = NULL;
    }
    for (int i = 0; i < plan->pair_count; i++)
        ends[i] = run_ends[plan->pairs[i].left] = run_ends[plan->pairs[i].right];
    *out = (partial_sums){.plan = plan, .ends = ends, .at = at, .own = own, .to = to};
    for (int leaf = s->request->leaves.first[s->rank]; leaf < s->request->leaves.first[s->rank + 1];
         leaf++)
        at[leaf] = tdm__leaf_at(s, leaf, s->first);
    return true;
}

/* Computes all missing sums whose leaves are in [first, last). */
static void tree_make_sums(const tdm__segment *s, partial_sums *sums, int first, int last)
{
    const tdm__tree_plan *plan = sums->plan;
    size_t bytes = s->count * s->unit;
    for (int i = 0; i < plan->pair_count; i++) {
        int left = plan->pairs[i].left, right = plan->pairs[i].right;
        if (left < first || sums->ends[i] > last || !sums->at[right]) continue;
        uint8_t *to = sums->own[left] ? sums->own[left] : sums->own[right];
        if (i == plan->pair_count - 1 && sums->to) to = sums->to;
        if (!to) to = tdm__program_scratch(s->program, bytes);
        if (!to) return;
        tdm__program_pair(s->program, to, sums->at[left], sums->at[right], bytes);
        sums->at[left] = sums->own[left] = to;
        sums->at[right] = NULL;
    }
}

/* Sends the sums of the leaves [first, last). */
static void tree_send_sums(const tdm__segment *s, const partial_sums *sums, int peer, int first,
                           int last)
{
    uint32_t step = s->step;
    for (int leaf = first; leaf < last; leaf++)
        if (sums->at[leaf]) tdm__send_some(s, peer, step++, sums->at[leaf], s->count);
    tdm__program_join(s->program);
}

/* Receives the sums of the leaves [first, last) that a holder sends: those that remain after all
 * additions. */
static void tree_recv_sums(const tdm__segment *s, partial_sums *sums, int peer, int first, int last)
{
    const tdm__tree_plan *plan = sums->plan;
    bool *inner = tdm__program_scratch(s->program, (size_t)(last - first) + 1);
    if (!inner) return;
    for (int leaf = first; leaf < last; leaf++) inner[leaf - first] = false;
    for (int i = 0; i < plan->pair_count; i++)
        if (plan->pairs[i].left >= first && sums->ends[i] <= last)
            inner[plan->pairs[i].right - first] = true;
    uint32_t step = s->step;
    for (int leaf = first; leaf < last; leaf++) {
        if (inner[leaf - first]) continue;
        uint8_t *into = tdm__program_scratch(s->program, s->count * s->unit);
        if (!into) return;
        tdm__recv_some(s, peer, step++, into, s->count);
        sums->at[leaf] = sums->own[leaf] = into;
    }
    tdm__program_join(s->program);
}

/* Sends all leaves to root, whose sum is written to `out`. */
static void tree_add_up(const tdm__segment *s, int root)
{
    const int *first = s->request->leaves.first;
    partial_sums sums;
    if (s->count == 0) return;
    if (!tree_sums_init(s, &sums, s->rank == root ? tdm__out_at(s, s->first) : NULL)) return;
    tree_make_sums(s, &sums, first[s->rank], first[s->rank + 1]);
    for (int width = 1; width < s->size && !s->program->no_memory; width *= 2) {
        joint j = tree_joint_at(s, root, width);
        if (tree_is_empty(&j)) continue;
        bool is_left = s->rank < j.middle;
        if (tree_giver_of(&j) == s->rank) {
            int from = is_left ? j.first : j.middle, to = is_left ? j.middle : j.last;
            tree_send_sums(s, &sums, j.holder, first[from], first[to]);
            return;
        }
        int from = is_left ? j.middle : j.first, to = is_left ? j.last : j.middle;
        tree_recv_sums(s, &sums, tree_giver_of(&j), first[from], first[to]);
        tree_make_sums(s, &sums, first[j.first], first[j.last]);
    }
    if (!s->program->no_memory) /* at most one leaf here: it has not been written to `out` yet */
        tdm__program_copy(s->program, tdm__out_at(s, s->first), sums.at[0], s->count * s->unit,
                          false);
}

/* ---- downwards -------------------------------------------------------------------------------- */

/* Sends `count` elements from root, which has them at `from`, to all others, which store them at
 * `to`. */
static void tree_send_down(const tdm__segment *s, int root, const void *from, void *to,
                           size_t bytes)
{
    int width = tree_giving_width(s, root);
    if (s->rank != root) {
        joint j = tree_joint_at(s, root, width);
        tdm__program_recv(s->program, j.holder, s->step + STEP_DOWN, to, bytes);
        tdm__program_join(s->program);
        from = to;
    }
    for (width /= 2; width >= 1; width /= 2) {
        joint j = tree_joint_at(s, root, width);
        if (!tree_is_empty(&j))
            tdm__program_send(s->program, tree_giver_of(&j), s->step + STEP_DOWN, from, bytes);
    }
    tdm__program_join(s->program);
}

static void tree_build_barrier(const tdm__segment *s)
{
    int giving = tree_giving_width(s, 0);
    for (int width = 1; width < giving && width < s->size; width *= 2) {
        joint j = tree_joint_at(s, 0, width);
        if (!tree_is_empty(&j)) tdm__program_recv(s->program, tree_giver_of(&j), s->step, NULL, 0);
    }
    tdm__program_join(s->program);
    if (s->rank != 0)
        tdm__program_send(s->program, tree_joint_at(s, 0, giving).holder, s->step, NULL, 0);
    tree_send_down(s, 0, NULL, NULL, 0);
}

static void tree_build_broadcast(const tdm__segment *s)
{
    bool is_root = s->rank == s->root;
    const uint8_t *from = is_root ? tdm__in_at(s, s->first) : NULL;
    uint8_t *to = tdm__out_at(s, s->first);
    if (s->count) tree_send_down(s, s->root, from, to, s->count * s->unit);
    if (is_root) tdm__program_copy(s->program, to, from, s->count * s->unit, false);
}

static void tree_build_all_reduce(const tdm__segment *s)
{
    uint8_t *out = tdm__out_at(s, s->first);
    tree_add_up(s, 0);
    if (s->count) tree_send_down(s, 0, out, out, s->count * s->unit);
}

/* ---- slices of blocks ------------------------------------------------------------------------- */

/* The elements of all slices of ranks [first, last): slices of neighbours are adjacent. */
static tdm_extent tree_slices_of(const tdm__segment *s, int first, int last)
{
    size_t from = tdm__call_slice(s->call, s->size, first).first;
    tdm_extent end = tdm__call_slice(s->call, s->size, last - 1);
    return (tdm_extent){.first = from, .count = end.first + end.count - from};
}

/* The block that a rank holds before it sends it, and the receiver; for root everything, and -1. */
static tdm_extent tree_held_by(const tdm__segment *s, int width, int *out_holder)
{
    *out_holder = -1;
    if (s->rank == s->root) return tree_slices_of(s, 0, s->size);
    joint j = tree_joint_at(s, s->root, width);
    *out_holder = j.holder;
    return s->rank < j.middle ? tree_slices_of(s, j.first, j.middle)
                              : tree_slices_of(s, j.middle, j.last);
}

/* The slices that this rank's block receives at a joint of which it is the holder. */
static tdm_extent tree_given_at(const tdm__segment *s, const joint *j)
{
    return s->rank < j->middle ? tree_slices_of(s, j->middle, j->last)
                               : tree_slices_of(s, j->first, j->middle);
}

static void tree_build_gather(const tdm__segment *s)
{
    int holder;
    int giving = tree_giving_width(s, s->root);
    tdm_extent held = tree_held_by(s, giving, &holder);
    tdm_extent own = tdm__call_slice(s->call, s->size, s->rank);
    if (held.count == own.count && holder >= 0) { /* no rank sends to this one */
        tdm__send_some(s, holder, s->step, s->call->in, own.count);
        tdm__program_join(s->program);
        return;
    }
    uint8_t *all = holder < 0 ? s->call->out
                              : tdm__program_scratch(s->program, held.count * s->unit);
    if (s->program->no_memory || held.count == 0) return;
    for (int width = 1; width < giving && width < s->size; width *= 2) {
        joint j = tree_joint_at(s, s->root, width);
        if (tree_is_empty(&j)) continue;
        tdm_extent given = tree_given_at(s, &j);
        tdm__recv_some(s, tree_giver_of(&j), s->step, all + (given.first - held.first) * s->unit,
                       given.count);
    }
    tdm__program_copy(s->program, all + (own.first - held.first) * s->unit, s->call->in,
                      own.count * s->unit, false);
    tdm__program_join(s->program);
    if (holder >= 0) tdm__send_some(s, holder, s->step, all, held.count);
    tdm__program_join(s->program);
}

static void tree_build_scatter(const tdm__segment *s)
{
    int holder;
    int giving = tree_giving_width(s, s->root);
    tdm_extent held = tree_held_by(s, giving, &holder);
    tdm_extent own = tdm__call_slice(s->call, s->size, s->rank);
    if (held.count == 0) return;
    const uint8_t *all = s->call->in;
    if (holder >= 0) {
        bool is_last = held.count == own.count; /* nothing to forward */
        void *into = is_last ? s->call->out
                             : tdm__program_scratch(s->program, held.count * s->unit);
        if (!into) return;
        tdm__recv_some(s, holder, s->step, into, held.count);
        tdm__program_join(s->program);
        all = into;
    }
    for (int width = giving / 2; width >= 1; width /= 2) {
        joint j = tree_joint_at(s, s->root, width);
        if (tree_is_empty(&j)) continue;
        tdm_extent given = tree_given_at(s, &j);
        tdm__send_some(s, tree_giver_of(&j), s->step, all + (given.first - held.first) * s->unit,
                       given.count);
    }
    tdm__program_join(s->program); /* in place, this overwrites slice 0 of root */
    tdm__program_copy(s->program, s->call->out, all + (own.first - held.first) * s->unit,
                      own.count * s->unit, false);
}

static void tree_build(tdm__program *program, size_t first, size_t count)
{
    tdm__segment s = tdm__segment_of(program, first, count, STRIDE);
    switch (s.call->kind) {
    case TDM_CALL_BARRIER: tree_build_barrier(&s); break;
    case TDM_CALL_BROADCAST: tree_build_broadcast(&s); break;
    case TDM_CALL_REDUCE: tree_add_up(&s, s.root); break;
    case TDM_CALL_ALL_REDUCE: tree_build_all_reduce(&s); break;
    case TDM_CALL_GATHER: tree_build_gather(&s); break;
    case TDM_CALL_SCATTER: tree_build_scatter(&s); break;
    default: break; /* not supported */
    }
}

const tdm__algorithm_ops tdm__algorithm_tree = {
    .id = TDM_ALGORITHM_TREE,
    .about = "up and down a binomial tree",
    .fits = tree_fits,
    .cut = tree_cut,
    .build = tree_build,
};
