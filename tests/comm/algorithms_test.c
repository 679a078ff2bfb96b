/*
 * algorithms_test.c: executes the programs of every algorithm in memory and compares the results with a plain
 * reference.
 *
 * The numbers of a lane are a function of its index and the element, so the expected sums are computed from the
 * lanes alone, by a simple traversal of the tree. The output of each rank is compared with that bit for bit,
 * for many sizes, counts, types and placements of lanes, in place and not in place, in one segment and in
 * several. Where the canonical order is guaranteed, also with a function that is neither commutative nor
 * associative. Bytes, messages and steps are compared with the numbers in the headers of the algorithms.
 */
#include "comm/comm.h"
#include "program_world.h"

#include <inttypes.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { ROUNDS = 1, MAX_COUNT = 1000, LANES_ROUNDS = 1, MAX_SIZES = 17, ROOTS_APART = 11 };
#else
enum { ROUNDS = 4, MAX_COUNT = 100003, LANES_ROUNDS = 8, MAX_SIZES = 33, ROOTS_APART = 3 };
#endif

enum { GUARD = 64, GUARD_BYTE = 0xa5, LANE_COUNT = 16 };

static const int sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33};
static const size_t counts[] = {0, 1, 2, 7, 64, 1000, 100003};
#define LENGTH(array) ((int)(sizeof(array) / sizeof((array)[0])))

/* ---- numbers ----------------------------------------------------------------------------------- */

/* Neither commutative nor associative: any order other than the tree's gives other numbers. */
static void odd_reduce(void *into, const void *from, size_t count, void *user)
{
    uint16_t *x = into;
    const uint16_t *y = from;
    for (size_t i = 0; i < count; i++) x[i] = (uint16_t)(3 * x[i] + 5 * y[i] + 1);
    ++*(int *)user;
}

/* Element `i` of a lane's numbers. Small whole numbers if a ring adds floats. */
static void fill(void *out, tdm_dtype dtype, int64_t lane, size_t first, size_t count, bool small)
{
    uint8_t *at = out;
    size_t unit = tdm_dtype_bytes(dtype);
    for (size_t i = first; i < first + count; i++, at += unit) {
        uint64_t h = ((uint64_t)lane + 1) * 0x9e3779b97f4a7c15u + i * 0xbf58476d1ce4e5b9u;
        h ^= h >> 29;
        h *= 0x94d049bb133111ebu;
        h ^= h >> 32;
        float f = small ? (float)(h % 8) : (float)(int32_t)h * 0x1p-20f;
        double d = small ? (double)(h % 8) : (double)(int64_t)h * 0x1p-40;
        uint16_t b = (uint16_t)(0x3f80 + (h % 300)); /* around 1 in bf16 */
        uint16_t s = (uint16_t)(0x3c00 + (h % 900)); /* and in f16 */
        switch (dtype) {
        case TDM_DTYPE_F32: memcpy(at, &f, unit); break;
        case TDM_DTYPE_F64: memcpy(at, &d, unit); break;
        case TDM_DTYPE_BF16: memcpy(at, small ? &(uint16_t){0x3f80} : &b, unit); break;
        case TDM_DTYPE_F16: memcpy(at, small ? &(uint16_t){0x3c00} : &s, unit); break;
        default: memcpy(at, &h, unit); break;
        }
    }
}

/* ---- one call of all ranks ----------------------------------------------------------------------- */

typedef struct trial {
    const tdm__algorithm_ops *algorithm;
    tdm_call_kind kind;
    int size;
    size_t count;
    tdm_dtype dtype;
    tdm_reduce reduce;
    int root;
    bool in_place;
    /* in place: the result of a slice is written to the offset of the slice, not to the start */
    bool at_slice;
    const tdm_lanes *lanes;
    const size_t *cuts;
    uint32_t segment_bytes;
    uint64_t seed;
} trial;

typedef struct buffers {
    uint8_t *in, *out; /* in: NULL when in place */
    size_t in_bytes, out_bytes;
    uint8_t *out_before; /* the guard before `out` */
    void **parts;
    uint8_t *part_copies;
    int part_count, own_part; /* index of the part to which the result is written; -1: none */
} buffers;

static tdm_extent slice_of(const trial *t, int rank)
{
    if (!t->cuts || t->kind == TDM_CALL_ALL_TO_ALL) return tdm_group_slice(t->count, t->size, rank);
    return (tdm_extent){.first = t->cuts[rank], .count = t->cuts[rank + 1] - t->cuts[rank]};
}

static size_t slice_count(const trial *t, int rank)
{
    return slice_of(t, rank).count;
}

/* The number of elements of a rank's `in` and `out`. */
static size_t in_count(const trial *t, int rank)
{
    switch (t->kind) {
    case TDM_CALL_BARRIER: return 0;
    case TDM_CALL_BROADCAST:
    case TDM_CALL_SCATTER: return rank == t->root ? t->count : 0;
    case TDM_CALL_ALL_GATHER:
    case TDM_CALL_GATHER: return slice_count(t, rank);
    default: return t->count;
    }
}

static size_t out_count(const trial *t, int rank)
{
    switch (t->kind) {
    case TDM_CALL_BARRIER: return 0;
    case TDM_CALL_REDUCE:
    case TDM_CALL_GATHER: return rank == t->root ? t->count : 0;
    case TDM_CALL_REDUCE_SCATTER:
    case TDM_CALL_SCATTER: return slice_count(t, rank);
    case TDM_CALL_ALL_TO_ALL: return slice_count(t, rank) * (size_t)t->size;
    default: return t->count;
    }
}

static bool small_numbers(const trial *t)
{
    return t->algorithm->id == TDM_ALGORITHM_RING;
}

static tdm__reducer reducer_of(const trial *t, int *calls)
{
    return (tdm__reducer){t->dtype, t->reduce, odd_reduce, calls};
}

/* The numbers of a node of the tree, from its lanes; false if all of them are absent. */
static bool node_value(const trial *t, int64_t lane_count, int64_t node, int64_t lanes_here,
                       uint8_t *out)
{
    const uint8_t *absent = t->lanes ? t->lanes->absent : NULL;
    if (node >= lane_count) {
        int64_t lane = node - lane_count;
        if (absent ? absent[lane] != 0 : lane >= lanes_here) return false;
        fill(out, t->dtype, lane, 0, t->count, small_numbers(t));
        return true;
    }
    size_t bytes = t->count * tdm_dtype_bytes(t->dtype);
    uint8_t *right = malloc(bytes + 1);
    bool has_left = node_value(t, lane_count, 2 * node, lanes_here, out);
    bool has_right = node_value(t, lane_count, 2 * node + 1, lanes_here, right);
    int calls = 0;
    tdm__reducer reducer = reducer_of(t, &calls);
    if (has_left && has_right)
        tdm__reduce_pair(&reducer, out, out, right, t->count);
    else if (has_right && bytes)
        memcpy(out, right, bytes);
    free(right);
    return has_left || has_right;
}

static void whole_sum(const trial *t, uint8_t *out)
{
    int64_t lane_count = 1;
    while (lane_count < t->size) lane_count *= 2;
    if (t->lanes) lane_count = t->lanes->lane_count;
    CHECK(node_value(t, lane_count, 1, t->lanes ? lane_count : t->size, out));
}

static uint8_t *guarded(world *w, size_t bytes, uint8_t **out_before)
{
    uint8_t *memory = tdm_arena_alloc(w->arena, bytes + 2 * GUARD, GUARD);
    memset(memory, GUARD_BYTE, bytes + 2 * GUARD);
    *out_before = memory;
    return memory + GUARD;
}

static bool guards_whole(const uint8_t *before, size_t bytes)
{
    for (size_t i = 0; i < GUARD; i++)
        if (before[i] != GUARD_BYTE || before[GUARD + bytes + i] != GUARD_BYTE) return false;
    return true;
}

/* The input of a rank before the call. */
static void fill_input(const trial *t, int rank, uint8_t *in)
{
    size_t first = 0;
    if (t->kind == TDM_CALL_ALL_GATHER || t->kind == TDM_CALL_GATHER)
        first = slice_of(t, rank).first;
    int64_t lane = t->kind == TDM_CALL_ALL_GATHER || t->kind == TDM_CALL_GATHER ? 0 : rank;
    fill(in, t->dtype, lane, first, in_count(t, rank), small_numbers(t));
}

static void make_parts(const trial *t, world *w, int rank, buffers *b, tdm_call *call)
{
    int64_t nodes[TDM_MAX_LANE_PARTS];
    size_t bytes = t->count * tdm_dtype_bytes(t->dtype);
    b->part_count = tdm_lane_nodes(t->lanes, t->lanes->first[rank], t->lanes->first[rank + 1],
                                   nodes);
    b->parts = tdm_arena_array(w->arena, (size_t)b->part_count, sizeof(void *));
    b->part_copies = tdm_arena_alloc(w->arena, (size_t)b->part_count * bytes, 0);
    for (int i = 0; i < b->part_count; i++) {
        /* In place: the first part is in `out`, if that is large enough. */
        bool at_out = t->in_place && !t->cuts && i == 0 && b->out_bytes >= bytes;
        b->parts[i] = at_out ? b->out : tdm_arena_alloc(w->arena, bytes, 0);
        CHECK(node_value(t, t->lanes->lane_count, nodes[i], t->lanes->lane_count, b->parts[i]));
        if (bytes) memcpy(b->part_copies + (size_t)i * bytes, b->parts[i], bytes);
    }
    call->lanes = t->lanes;
    call->parts = (const void *const *)b->parts;
    if (t->cuts && t->in_place && b->part_count && t->kind == TDM_CALL_REDUCE_SCATTER) {
        b->own_part = b->part_count - 1; /* the slice is written to its offset in the last part */
        call->out = (uint8_t *)b->parts[b->own_part] +
                    slice_of(t, rank).first * tdm_dtype_bytes(t->dtype);
    }
}

static void make_buffers(const trial *t, world *w, int rank, buffers *b)
{
    size_t unit = tdm_dtype_bytes(t->dtype);
    tdm_call *call = &w->requests[rank].call;
    size_t in_bytes = in_count(t, rank) * unit, out_bytes = out_count(t, rank) * unit;
    size_t room = out_bytes;
    if (t->in_place && in_bytes > room) room = in_bytes;
    *b = (buffers){.in_bytes = in_bytes, .out_bytes = room, .own_part = -1};
    b->out = guarded(w, room, &b->out_before);
    size_t offset = 0;
    if (t->in_place && out_count(t, rank) == t->count &&
        (t->kind == TDM_CALL_ALL_GATHER || t->kind == TDM_CALL_GATHER))
        offset = slice_of(t, rank).first * unit;
    b->in = t->in_place ? NULL : tdm_arena_alloc(w->arena, in_bytes, 0);
    uint8_t *in = b->in ? b->in : b->out + offset;
    fill_input(t, rank, in);
    *call = (tdm_call){.kind = t->kind,
                       .dtype = t->dtype,
                       .count = t->count,
                       .in = in,
                       .out = b->out,
                       .reduce = t->reduce,
                       .user_reduce = odd_reduce,
                       .root = t->root,
                       .cuts = t->cuts,
                       .algorithm = t->algorithm->id};
    if (t->in_place && t->at_slice && !t->lanes && in_count(t, rank) == t->count &&
        (t->kind == TDM_CALL_REDUCE_SCATTER || t->kind == TDM_CALL_SCATTER))
        call->out = b->out + slice_of(t, rank).first * unit;
    int *calls = tdm_arena_alloc(w->arena, sizeof(*calls), 0);
    call->user = calls;
    if (t->lanes) make_parts(t, w, rank, b, call);
}

/* The expected contents of `out` after the call. */
static void expected_output(const trial *t, int rank, const uint8_t *sum, uint8_t *out)
{
    size_t unit = tdm_dtype_bytes(t->dtype);
    tdm_extent slice = slice_of(t, rank);
    switch (t->kind) {
    case TDM_CALL_REDUCE:
    case TDM_CALL_ALL_REDUCE: memcpy(out, sum, out_count(t, rank) * unit); break;
    case TDM_CALL_REDUCE_SCATTER: memcpy(out, sum + slice.first * unit, slice.count * unit); break;
    case TDM_CALL_ALL_GATHER:
    case TDM_CALL_GATHER: fill(out, t->dtype, 0, 0, out_count(t, rank), small_numbers(t)); break;
    case TDM_CALL_BROADCAST: fill(out, t->dtype, t->root, 0, t->count, small_numbers(t)); break;
    case TDM_CALL_SCATTER:
        fill(out, t->dtype, t->root, slice.first, slice.count, small_numbers(t));
        break;
    case TDM_CALL_ALL_TO_ALL:
        for (int i = 0; i < t->size; i++)
            fill(out + (size_t)i * slice.count * unit, t->dtype, i, slice.first, slice.count,
                 small_numbers(t));
        break;
    default: break;
    }
}

static void check_rank(const trial *t, world *w, int rank, const buffers *b, const uint8_t *sum)
{
    size_t unit = tdm_dtype_bytes(t->dtype);
    size_t bytes = out_count(t, rank) * unit;
    uint8_t *expected = malloc(bytes + 1);
    expected_output(t, rank, sum, expected);
    WORLD_CHECK(w, memcmp(w->requests[rank].call.out, expected, bytes) == 0);
    WORLD_CHECK(w, guards_whole(b->out_before, b->out_bytes));
    free(expected);
    if (b->in) {
        uint8_t *before = malloc(b->in_bytes + 1);
        fill_input(t, rank, before);
        WORLD_CHECK(w, memcmp(b->in, before, b->in_bytes) == 0); /* untouched */
        free(before);
    }
    size_t part_bytes = t->count * unit;
    for (int i = 0; i < b->part_count; i++)
        if (b->parts[i] != b->out && i != b->own_part)
            WORLD_CHECK(
                w, memcmp(b->parts[i], b->part_copies + (size_t)i * part_bytes, part_bytes) == 0);
}

static bool trial_fits(const trial *t)
{
    tdm_comm comm = {0};
    tdm_group group = {.comm = &comm, .size = t->size, .host_count = t->size};
    tdm_call call = {.kind = t->kind,
                     .dtype = t->dtype,
                     .count = t->count,
                     .reduce = t->reduce,
                     .lanes = tdm__kind_reduces(t->kind) ? t->lanes : NULL,
                     .algorithm = t->algorithm->id};
    return t->algorithm->fits(&group, &call);
}

/* Runs a trial and checks it; returns the world for counting, or destroys it if that is NULL. */
static void run_trial(const trial *t, world *out)
{
    world own, *w = out ? out : &own;
    world_init(w, t->size, t->seed);
    if (t->segment_bytes) world_segments(w, t->kind, t->algorithm->id, t->segment_bytes);
    buffers *b = tdm_arena_array(w->arena, (size_t)t->size, sizeof(*b));
    for (int r = 0; r < t->size; r++) make_buffers(t, w, r, &b[r]);
    uint8_t *sum = NULL;
    if (tdm__kind_reduces(t->kind)) {
        sum = tdm_arena_alloc(w->arena, t->count * tdm_dtype_bytes(t->dtype), 0);
        whole_sum(t, sum);
    }
    world_run(w, t->algorithm);
    for (int r = 0; r < t->size && !w->failed; r++) check_rank(t, w, r, &b[r], sum);
    if (w->failed)
        fprintf(stderr,
                "  in %s by %s: %d ranks, %zu of %s by %s, root %d, %s, %s, segments %" PRIu32
                ", seed %" PRIu64 "\n",
                tdm_call_kind_name(t->kind), tdm_algorithm_name(t->algorithm->id), t->size,
                t->count, tdm_dtype_name(t->dtype), tdm_reduce_name(t->reduce), t->root,
                t->in_place ? "in place" : "apart", t->lanes ? "lanes" : "no lanes",
                t->segment_bytes, t->seed);
    if (!out) world_release(w);
}

/* ---- lanes -------------------------------------------------------------------------------------- */

typedef struct placement {
    tdm_lanes lanes;
    int64_t first[64];
    uint8_t absent[LANE_COUNT];
} placement;

/* 0: even, in order; 1: cut anywhere, also ranks without lanes; 2: and some lanes absent. */
static void place_lanes(placement *p, int size, int how, tdm_rng *rng)
{
    memset(p, 0, sizeof(*p));
    for (int i = 0; i <= size; i++)
        p->first[i] = how == 0 ? (int64_t)i * LANE_COUNT / size
                               : (int64_t)tdm_rng_below(rng, LANE_COUNT + 1);
    p->first[0] = 0;
    p->first[size] = LANE_COUNT;
    for (int i = 1; i <= size; i++) /* sorted, by insertion */
        for (int j = i; j > 0 && p->first[j - 1] > p->first[j]; j--) {
            int64_t swapped = p->first[j];
            p->first[j] = p->first[j - 1];
            p->first[j - 1] = swapped;
        }
    for (int i = 0; i < LANE_COUNT; i++)
        p->absent[i] = how == 2 && i != 5 && tdm_rng_below(rng, 3) == 0;
    p->lanes = (tdm_lanes){
        .lane_count = LANE_COUNT, .first = p->first, .absent = how == 2 ? p->absent : NULL};
}

/* 0: anywhere, also empty slices; 1: one rank has nearly everything; 2: the last slices are the largest. */
static void draw_cuts(size_t *cuts, int size, size_t count, int how, tdm_rng *rng)
{
    size_t lucky = (size_t)tdm_rng_below(rng, (uint64_t)size);
    for (int i = 1; i < size; i++) {
        size_t at = (size_t)i;
        cuts[i] = how == 0   ? (size_t)tdm_rng_below(rng, count + 1)
                  : how == 1 ? (at <= lucky ? 0 : count - count / 50)
                             : count / (size_t)size * at / (size_t)size * at;
    }
    cuts[0] = 0;
    cuts[size] = count;
    for (int i = 1; i <= size; i++)
        for (int j = i; j > 0 && cuts[j - 1] > cuts[j]; j--) {
            size_t swapped = cuts[j];
            cuts[j] = cuts[j - 1];
            cuts[j - 1] = swapped;
        }
}

static tdm_rng rng_of(uint64_t seed)
{
    return tdm_rng_at((tdm_rng_address){.seed = seed, .stream = TDM_RNG_STREAM_USER});
}

static tdm_dtype draw_dtype(tdm_rng *rng)
{
    static const tdm_dtype all[] = {TDM_DTYPE_F32,  TDM_DTYPE_F64, TDM_DTYPE_F16,
                                    TDM_DTYPE_BF16, TDM_DTYPE_I32, TDM_DTYPE_I64};
    return all[tdm_rng_below(rng, (uint64_t)LENGTH(all))];
}

/* A trial in which everything that is not given is random. */
static trial draw_trial(const tdm__algorithm_ops *algorithm, tdm_call_kind kind, int size,
                        size_t count, uint64_t seed)
{
    tdm_rng rng = rng_of(seed);
    trial t = {.algorithm = algorithm,
               .kind = kind,
               .size = size,
               .count = kind == TDM_CALL_BARRIER ? 0 : count,
               .dtype = draw_dtype(&rng),
               .reduce = (tdm_reduce)tdm_rng_below(&rng, TDM_REDUCE_USER + 1),
               .root = (int)tdm_rng_below(&rng, (uint64_t)size),
               .in_place = tdm_rng_below(&rng, 2) == 0,
               .at_slice = tdm_rng_below(&rng, 2) == 0,
               .segment_bytes = tdm_rng_below(&rng, 2) ? (count > 10000 ? 60000 : 1024) : 0,
               .seed = seed};
    if (t.reduce == TDM_REDUCE_USER) t.dtype = TDM_DTYPE_U16;
    if (algorithm->id == TDM_ALGORITHM_RING && t.reduce == TDM_REDUCE_USER) {
        t.reduce = TDM_REDUCE_SUM;
        t.dtype = TDM_DTYPE_F32;
    }
    return t;
}

/* ---- tests -------------------------------------------------------------------------------------- */

static const tdm__algorithm_ops *const over_messages[] = {
    &tdm__algorithm_direct, &tdm__algorithm_ring, &tdm__algorithm_doubling, &tdm__algorithm_tree};

static void every_call_gives_the_plain_result(void)
{
    uint64_t seed = 1;
    int run_count = 0;
    for (int a = 0; a < LENGTH(over_messages); a++)
        for (int k = TDM_CALL_BARRIER; k <= TDM_CALL_ALL_TO_ALL; k++)
            for (int p = 0; p < LENGTH(sizes) && sizes[p] <= MAX_SIZES; p++)
                for (int c = 0; c < LENGTH(counts) && counts[c] <= MAX_COUNT; c++)
                    for (int round = 0; round < (counts[c] > 1000 ? 1 : ROUNDS); round++) {
                        trial t = draw_trial(over_messages[a], (tdm_call_kind)k, sizes[p],
                                             counts[c], seed++);
                        if (!trial_fits(&t)) continue;
                        run_trial(&t, NULL);
                        run_count++;
                    }
    CHECK(run_count > 1000);
}

static void lanes_are_added_by_the_tree(void)
{
    uint64_t seed = 1000000;
    int fitted[TDM_ALGORITHM_WINDOW + 1] = {0};
    for (int a = 0; a < LENGTH(over_messages); a++)
        for (int k = TDM_CALL_REDUCE; k <= TDM_CALL_REDUCE_SCATTER; k++)
            for (int p = 0; p < LENGTH(sizes) && sizes[p] <= MAX_SIZES; p++)
                for (int how = 0; how < 3 * LANES_ROUNDS; how++) {
                    tdm_rng rng = rng_of(++seed);
                    placement lanes;
                    place_lanes(&lanes, sizes[p], how % 3, &rng);
                    size_t count = counts[tdm_rng_below(&rng, 6)];
                    trial t = draw_trial(over_messages[a], (tdm_call_kind)k, sizes[p], count, seed);
                    t.lanes = &lanes.lanes;
                    if (!trial_fits(&t)) continue;
                    run_trial(&t, NULL);
                    fitted[over_messages[a]->id]++;
                }
    for (int a = 0; a < LENGTH(over_messages); a++) CHECK(fitted[over_messages[a]->id] > 0);
}

/* Slices of any lengths: with and without lanes, in place at the offset of the slice. */
static void cuts_are_respected(void)
{
    uint64_t seed = 3000000;
    int fitted[TDM_ALGORITHM_WINDOW + 1] = {0};
    for (int a = 0; a < LENGTH(over_messages); a++)
        for (int k = TDM_CALL_REDUCE_SCATTER; k <= TDM_CALL_SCATTER; k++)
            for (int p = 0; p < LENGTH(sizes) && sizes[p] <= MAX_SIZES; p++)
                for (int how = 0; how < 3 * (LANES_ROUNDS + 1); how++) {
                    tdm_rng rng = rng_of(++seed);
                    size_t cuts[64], count = counts[1 + tdm_rng_below(&rng, LENGTH(counts) - 1)];
                    if (count > MAX_COUNT || (count > 1000 && sizes[p] > 5)) count = 1000;
                    draw_cuts(cuts, sizes[p], count, how % 3, &rng);
                    placement lanes;
                    place_lanes(&lanes, sizes[p], (int)tdm_rng_below(&rng, 3), &rng);
                    trial t = draw_trial(over_messages[a], (tdm_call_kind)k, sizes[p], count, seed);
                    t.cuts = cuts;
                    t.at_slice = true;
                    if (k == TDM_CALL_REDUCE_SCATTER && tdm_rng_below(&rng, 2))
                        t.lanes = &lanes.lanes;
                    if (!trial_fits(&t)) continue;
                    run_trial(&t, NULL);
                    fitted[over_messages[a]->id]++;
                }
    for (int a = 0; a < LENGTH(over_messages); a++) CHECK(fitted[over_messages[a]->id] > 0);
}

/* ---- what the headers say ------------------------------------------------------------------------ */

typedef struct claim {
    int steps;
    uint64_t messages, bytes; /* of the rank that sends most */
    bool exactly;             /* otherwise: maximum number */
} claim;

static int log2_up(int size)
{
    int log = 0;
    while (1 << log < size) log++;
    return log;
}

static claim claim_of_direct(tdm_call_kind kind, uint64_t P, uint64_t n, bool large)
{
    uint64_t max = n / P * (P - 1), whole = n * (P - 1);
    switch (kind) {
    case TDM_CALL_BARRIER: return (claim){1, P - 1, 0, true};
    case TDM_CALL_BROADCAST:
        return large && P > 2 ? (claim){2, 2 * P - 2, 2 * max, true}
                              : (claim){1, P - 1, whole, true};
    case TDM_CALL_REDUCE:
        return large && P > 2 ? (claim){2, P, max + n / P, true} : (claim){1, 1, n, true};
    case TDM_CALL_ALL_REDUCE:
        return large ? (claim){2, 2 * P - 2, 2 * max, true} : (claim){1, P - 1, whole, true};
    case TDM_CALL_GATHER: return (claim){1, 1, n / P, true};
    default: return (claim){1, P - 1, max, true};
    }
}

static claim claim_of_ring(tdm_call_kind kind, uint64_t P, uint64_t n)
{
    uint64_t max = n / P * (P - 1);
    switch (kind) {
    case TDM_CALL_BROADCAST: return (claim){(int)P - 1, 1, n, true};
    case TDM_CALL_ALL_REDUCE: return (claim){2 * (int)P - 2, 2 * P - 2, 2 * max, true};
    default: return (claim){(int)P - 1, P - 1, max, true};
    }
}

static claim claim_of_doubling(tdm_call_kind kind, uint64_t P, uint64_t n, bool large)
{
    int L = log2_up((int)P);
    uint64_t log = (uint64_t)L, max = n / P * (P - 1);
    bool power = (P & (P - 1)) == 0;
    switch (kind) {
    case TDM_CALL_BARRIER: return (claim){L, log, 0, true};
    case TDM_CALL_ALL_GATHER: return (claim){L, 2 * log, max, false};
    case TDM_CALL_ALL_REDUCE:
        if (!power) return (claim){L, P - 1, n * (P - 1), false};
        return large && P >= 4 ? (claim){2 * L, 2 * log, 2 * max, true}
                               : (claim){L, log, n * log, true};
    default: return (claim){L, log, max, true};
    }
}

static claim claim_of_tree(tdm_call_kind kind, uint64_t P, uint64_t n)
{
    int L = log2_up((int)P);
    uint64_t log = (uint64_t)L, max = n / P * (P - 1);
    bool power = (P & (P - 1)) == 0;
    switch (kind) {
    case TDM_CALL_BARRIER: return (claim){2 * L, log, 0, power};
    case TDM_CALL_REDUCE: return (claim){L, 1, n, power};
    case TDM_CALL_ALL_REDUCE: return (claim){2 * L, log, n * log, power};
    case TDM_CALL_GATHER: return (claim){L, 1, power ? n / 2 : max, power};
    case TDM_CALL_SCATTER: return (claim){L, log, max, power};
    default: return (claim){L, log, n * log, power};
    }
}

static claim claim_of(const trial *t, bool large)
{
    uint64_t P = (uint64_t)t->size, n = t->count * tdm_dtype_bytes(t->dtype);
    if (P == 1) return (claim){0, 0, 0, true};
    switch (t->algorithm->id) {
    case TDM_ALGORITHM_RING: return claim_of_ring(t->kind, P, n);
    case TDM_ALGORITHM_DOUBLING: return claim_of_doubling(t->kind, P, n, large);
    case TDM_ALGORITHM_TREE: return claim_of_tree(t->kind, P, n);
    default: return claim_of_direct(t->kind, P, n, large);
    }
}

static void check_claim(const trial *t, bool large)
{
    world w;
    run_trial(t, &w);
    claim said = claim_of(t, large);
    uint64_t bytes = 0, messages = 0;
    for (int r = 0; r < t->size; r++) {
        if (w.bytes[r] > bytes) bytes = w.bytes[r];
        if (w.messages[r] > messages) messages = w.messages[r];
    }
    CHECK(said.exactly ? w.steps == said.steps : w.steps <= said.steps);
    CHECK(said.exactly ? messages == said.messages : messages <= said.messages);
    CHECK(said.exactly ? bytes == said.bytes : bytes <= said.bytes);
    if (w.steps > said.steps || messages > said.messages || bytes > said.bytes ||
        (said.exactly && (w.steps < said.steps || messages < said.messages || bytes < said.bytes)))
        fprintf(stderr,
                "  in %s by %s of %d ranks, root %d: %d steps, %" PRIu64 " messages, %" PRIu64
                " bytes; the header says %d, %" PRIu64 ", %" PRIu64 "\n",
                tdm_call_kind_name(t->kind), tdm_algorithm_name(t->algorithm->id), t->size, t->root,
                w.steps, messages, bytes, said.steps, said.messages, said.bytes);
    world_release(&w);
}

static void headers_match_the_behaviour(void)
{
    static const int some[] = {1, 2, 3, 4, 5, 8, 12, 16, 17};
    for (int a = 0; a < LENGTH(over_messages); a++)
        for (int k = TDM_CALL_BARRIER; k <= TDM_CALL_ALL_TO_ALL; k++)
            for (int p = 0; p < LENGTH(some); p++)
                for (int large = 0; large < 2; large++) {
                    trial t = {.algorithm = over_messages[a],
                               .kind = (tdm_call_kind)k,
                               .size = some[p],
                               .count = (size_t)some[p] * (!large  ? 16
                                                           : p < 6 ? 8192
                                                                   : 3600),
                               .dtype = TDM_DTYPE_I32,
                               .seed = (uint64_t)p};
                    if (k == TDM_CALL_BARRIER) t.count = 0;
                    bool has_root = k == TDM_CALL_BROADCAST || k == TDM_CALL_REDUCE ||
                                    k == TDM_CALL_GATHER || k == TDM_CALL_SCATTER;
                    for (t.root = 0; t.root < (has_root ? t.size : 1); t.root += ROOTS_APART)
                        if (trial_fits(&t)) check_claim(&t, large);
                }
}

/* A segment is cut so that every rank adds its share of it, and each part of a rank is sent separately. */
static void parts_are_sent_as_they_are(void)
{
    int64_t first[] = {0, 3, 4}; /* rank 0 has nodes of 2 lanes and of 1 lane, rank 1 one lane */
    tdm_lanes lanes = {.lane_count = 4, .first = first};
    trial t = {.algorithm = &tdm__algorithm_direct,
               .kind = TDM_CALL_REDUCE_SCATTER,
               .size = 2,
               .count = 1000,
               .dtype = TDM_DTYPE_F32,
               .lanes = &lanes};
    world w;
    run_trial(&t, &w);
    CHECK_INT(w.bytes[0], 2 * 4000 / 2);
    CHECK_INT(w.bytes[1], 4000 / 2);
    world_release(&w);
    t.algorithm = &tdm__algorithm_tree;
    t.kind = TDM_CALL_REDUCE;
    t.root = 1;
    run_trial(&t, &w);
    CHECK_INT(w.bytes[0], 2 * 4000); /* nothing can be added before rank 1's lane has arrived */
    world_release(&w);
}

/* Large scratch memory is returned and reused by the next program, and the amount that is kept is limited. */
static void scratch_is_kept_within_bounds(void)
{
    enum { MB = 1024 * 1024 };
    tdm_comm comm = {0};
    tdm__block *list = NULL;
    uint8_t *first = tdm__scratch_take(&comm, &list, MB - 5);
    CHECK(first && (uintptr_t)first % 64 == 0);
    memset(first, 1, MB - 5);
    CHECK(tdm__scratch_take(&comm, &list, MB) != first); /* it is in use */
    tdm__scratch_give_back(&comm, &list);
    CHECK(!list);
    CHECK_INT(comm.kept_bytes, 2 * MB);
    uint8_t *small = tdm__scratch_take(&comm, &list, MB / 4);
    CHECK_INT(comm.kept_bytes, 2 * MB); /* a large piece is not used for it */
    uint8_t *again = tdm__scratch_take(&comm, &list, MB);
    CHECK_INT(comm.kept_bytes, MB);
    CHECK(small && again);
    tdm__scratch_give_back(&comm, &list);
    for (int i = 0; i < 5; i++) CHECK(tdm__scratch_take(&comm, &list, 10 * MB) != NULL);
    tdm__scratch_give_back(&comm, &list);
    CHECK(comm.kept_bytes > 20 * MB && comm.kept_bytes <= 32 * MB);
    CHECK(!tdm__scratch_take(&comm, &list, SIZE_MAX - 3));
    tdm__scratch_free(&comm);
    CHECK_INT(comm.kept_bytes, 0);
}

static const check_test tests[] = {
    CHECK_TEST(every_call_gives_the_plain_result),
    CHECK_TEST(lanes_are_added_by_the_tree),
    CHECK_TEST(cuts_are_respected),
    CHECK_TEST(headers_match_the_behaviour),
    CHECK_TEST(parts_are_sent_as_they_are),
    CHECK_TEST(scratch_is_kept_within_bounds),
};
CHECK_MAIN(tests)
