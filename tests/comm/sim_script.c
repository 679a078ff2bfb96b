/*
 * sim_script.c: see sim_script.h.
 */
#include "comm/sim_script.h"

#include <math.h>

/* ---- what ranks bring -------------------------------------------------------------------------- */

uint64_t script_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Elements [first, first + count) of the input of lane or rank `who` for call `index`. */
static void script_fill(const script *s, int index, int64_t who, size_t first, size_t count,
                        void *out)
{
    const script_call *call = &s->calls[index];
    uint64_t key = script_mix(s->seed ^ script_mix((uint64_t)index << 32 ^ (uint64_t)who));
    size_t width = tdm_dtype_bytes(call->dtype);
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = script_mix(key + first + i);
        float f32 = ldexpf((float)(int32_t)bits, -30 + (int)(bits >> 60));
        double f64 = ldexp((double)(int64_t)bits, -60);
        uint16_t f16 = (uint16_t)((bits & 0x83ff) | ((12 + (bits >> 20) % 6) << 10));
        uint16_t bf16 = (uint16_t)((bits & 0x807f) | ((122 + (bits >> 20) % 8) << 7));
        const void *from = call->dtype == TDM_DTYPE_F32    ? (const void *)&f32
                           : call->dtype == TDM_DTYPE_F64  ? (const void *)&f64
                           : call->dtype == TDM_DTYPE_F16  ? (const void *)&f16
                           : call->dtype == TDM_DTYPE_BF16 ? (const void *)&bf16
                                                           : (const void *)&bits;
        memcpy((uint8_t *)out + i * width, from, width);
    }
}

/* A user-defined reduction: composes maps x -> a x + b, which is associative and not commutative. */
static void script_compose(void *into, const void *from, size_t count, void *user)
{
    (void)user;
    for (size_t i = 0; i < count; i++) {
        uint64_t left, right;
        memcpy(&left, (uint8_t *)into + 8 * i, 8);
        memcpy(&right, (const uint8_t *)from + 8 * i, 8);
        uint32_t a = (uint32_t)left * (uint32_t)right;
        uint32_t b = (uint32_t)left * (uint32_t)(right >> 32) + (uint32_t)(left >> 32);
        left = ((uint64_t)b << 32) | a;
        memcpy((uint8_t *)into + 8 * i, &left, 8);
    }
}

/* ---- adding, the plain way --------------------------------------------------------------------- */

static void script_combine(const script_call *call, void *left, const void *right)
{
    if (call->reduce == TDM_REDUCE_USER) {
        script_compose(left, right, call->count, NULL);
    } else if (call->dtype == TDM_DTYPE_F32) {
        SCRIPT_COMBINE(float, l[i] + r[i]);
    } else if (call->dtype == TDM_DTYPE_F64) {
        SCRIPT_COMBINE(double, l[i] + r[i]);
    } else if (call->dtype == TDM_DTYPE_I32) {
        SCRIPT_COMBINE(int32_t, (uint32_t)l[i] + (uint32_t)r[i]);
    } else if (call->dtype == TDM_DTYPE_I64) {
        SCRIPT_COMBINE(int64_t, (uint64_t)l[i] + (uint64_t)r[i]);
    } else {
        tdm__reducer reducer = {.dtype = call->dtype, .reduce = call->reduce};
        tdm__reduce_pair(&reducer, left, left, right, call->count);
    }
}

static bool script_reduces(tdm_call_kind kind)
{
    return kind == TDM_CALL_REDUCE || kind == TDM_CALL_ALL_REDUCE ||
           kind == TDM_CALL_REDUCE_SCATTER;
}

/* The sum of lanes [first, last), a complete sub-tree; NULL if all of them are absent. */
static uint8_t *script_tree(const script *s, int index, int64_t first, int64_t last)
{
    const script_call *call = &s->calls[index];
    if (last - first == 1) {
        if (call->has_lanes ? call->absent[first] : first >= s->groups[call->group].size)
            return NULL;
        size_t bytes = call->count * tdm_dtype_bytes(call->dtype);
        uint8_t *out = tdm_arena_alloc(s->arena, bytes + 1, 64);
        script_fill(s, index, first, 0, call->count, out);
        return out;
    }
    int64_t middle = first + (last - first) / 2;
    uint8_t *left = script_tree(s, index, first, middle);
    uint8_t *right = script_tree(s, index, middle, last);
    if (left && right) script_combine(call, left, right);
    return left ? left : right;
}

static int64_t script_lane_count(const script *s, const script_call *call)
{
    if (call->has_lanes) return call->lanes.lane_count;
    int64_t lane_count = 1;
    while (lane_count < s->groups[call->group].size) lane_count *= 2;
    return lane_count;
}

/* ---- one rank's part in a call ----------------------------------------------------------------- */

uint8_t *script_bytes(const script *s, size_t bytes)
{
    uint8_t *out = tdm_arena_alloc(s->arena, bytes + 1, 64);
    if (!out) abort();
    return out;
}

uint8_t *script_piece(const script *s, int index, int64_t who, tdm_extent extent)
{
    uint8_t *out = script_bytes(s, extent.count * tdm_dtype_bytes(s->calls[index].dtype));
    script_fill(s, index, who, extent.first, extent.count, out);
    return out;
}

static void script_part_reduce(script *s, int index, int rank, script_part *part)
{
    script_call *call = &s->calls[index];
    size_t width = tdm_dtype_bytes(call->dtype);
    int size = s->groups[call->group].size;
    tdm_extent whole = {.count = call->count};
    int64_t lane_count = script_lane_count(s, call);
    if (!call->expected) call->expected = script_tree(s, index, 0, lane_count);
    if (call->has_lanes) {
        int64_t nodes[TDM_MAX_LANE_PARTS];
        int count = tdm_lane_nodes(&call->lanes, call->first[rank], call->first[rank + 1], nodes);
        for (int i = 0; i < count; i++) {
            int64_t first = nodes[i], last = nodes[i] + 1;
            for (; first < lane_count; first *= 2) last *= 2;
            part->parts[i] = script_tree(s, index, first - lane_count, last - lane_count);
        }
        part->call.lanes = &call->lanes;
        part->call.parts = part->parts;
    } else {
        part->call.in = script_piece(s, index, rank, whole);
    }
    if (call->kind == TDM_CALL_REDUCE && rank != call->root) return;
    tdm_extent mine = call->kind == TDM_CALL_REDUCE_SCATTER
                          ? tdm_group_slice(call->count, size, rank)
                          : whole;
    part->out_bytes = mine.count * width;
    part->expected = call->expected + mine.first * width;
    part->out = script_bytes(s, part->out_bytes);
    if (call->kind == TDM_CALL_ALL_REDUCE && call->in_place && !call->has_lanes) {
        memcpy(part->out, part->call.in, part->out_bytes);
        part->call.in = NULL;
    }
}

static void script_part_all_to_all(const script *s, int index, int rank, script_part *part)
{
    const script_call *call = &s->calls[index];
    int size = s->groups[call->group].size;
    size_t width = tdm_dtype_bytes(call->dtype);
    tdm_extent mine = tdm_group_slice(call->count, size, rank);
    part->call.in = script_piece(s, index, rank, (tdm_extent){.count = call->count});
    part->out_bytes = mine.count * width * (size_t)size;
    part->out = script_bytes(s, part->out_bytes);
    part->expected = script_bytes(s, part->out_bytes);
    for (int i = 0; i < size; i++)
        script_fill(s, index, i, mine.first, mine.count,
                    part->expected + (size_t)i * mine.count * width);
}

/* The kinds that copy the vector of one owner: broadcast, gathers, scatter. */
static void script_part_move(const script *s, int index, int rank, script_part *part)
{
    const script_call *call = &s->calls[index];
    size_t width = tdm_dtype_bytes(call->dtype);
    tdm_extent whole = {.count = call->count};
    tdm_extent mine = tdm_group_slice(call->count, s->groups[call->group].size, rank);
    bool root = rank == call->root;
    tdm_extent gets = call->kind == TDM_CALL_SCATTER           ? mine
                      : call->kind == TDM_CALL_GATHER && !root ? (tdm_extent){0}
                                                               : whole;
    if (call->kind == TDM_CALL_ALL_GATHER || call->kind == TDM_CALL_GATHER)
        part->call.in = script_piece(s, index, 0, mine);
    else if (root)
        part->call.in = script_piece(s, index, 0, whole);
    if (call->kind == TDM_CALL_GATHER && !root) return;
    part->out_bytes = gets.count * width;
    part->out = script_bytes(s, part->out_bytes);
    part->expected = script_piece(s, index, 0, gets);
    if (!call->in_place) return;
    if (call->kind == TDM_CALL_BROADCAST && root) {
        memcpy(part->out, part->call.in, part->out_bytes);
        part->call.in = NULL;
    } else if (call->kind == TDM_CALL_ALL_GATHER) {
        memcpy(part->out + mine.first * width, part->call.in, mine.count * width);
        part->call.in = NULL;
    }
}

void script_part_make(script *s, int index, int rank, script_part *part)
{
    const script_call *call = &s->calls[index];
    *part = (script_part){.call = {.kind = call->kind,
                                   .dtype = call->dtype,
                                   .count = call->count,
                                   .reduce = call->reduce,
                                   .user_reduce = script_compose,
                                   .root = call->root,
                                   .algorithm = call->algorithm}};
    if (script_reduces(call->kind))
        script_part_reduce(s, index, rank, part);
    else if (call->kind == TDM_CALL_ALL_TO_ALL)
        script_part_all_to_all(s, index, rank, part);
    else if (call->kind != TDM_CALL_BARRIER)
        script_part_move(s, index, rank, part);
    part->call.out = part->out;
}

bool script_part_right(const script_part *part)
{
    return part->out_bytes == 0 || memcmp(part->out, part->expected, part->out_bytes) == 0;
}

/* ---- drawing ----------------------------------------------------------------------------------- */

int script_below(tdm_rng *rng, int bound)
{
    return (int)tdm_rng_below(rng, (uint64_t)bound);
}

bool script_chance(tdm_rng *rng, int percent)
{
    return script_below(rng, 100) < percent;
}

/* Lanes, cut anywhere, some of them absent but never all. */
static void script_draw_lanes(tdm_rng *rng, script_call *call, int size)
{
    int64_t lane_count = (int64_t)1 << script_below(rng, 6);
    for (int i = 1; i < size; i++) { /* sorted by insertion */
        int64_t cut = script_below(rng, (int)lane_count + 1);
        int at = i;
        for (; at > 1 && call->first[at - 1] > cut; at--) call->first[at] = call->first[at - 1];
        call->first[at] = cut;
    }
    call->first[size] = lane_count;
    if (script_chance(rng, 40))
        for (int64_t i = 0; i < lane_count; i++) call->absent[i] = script_chance(rng, 25);
    call->absent[script_below(rng, (int)lane_count)] = 0;
    call->has_lanes = true;
    call->lanes = (tdm_lanes){
        .lane_count = lane_count, .first = call->first, .absent = call->absent};
}

static void script_draw_call(tdm_rng *rng, script *s, script_call *call)
{
    static const tdm_dtype sums[] = {TDM_DTYPE_F32,  TDM_DTYPE_F64, TDM_DTYPE_F16,
                                     TDM_DTYPE_BF16, TDM_DTYPE_I32, TDM_DTYPE_I64};
    static const tdm_algorithm algorithms[] = {TDM_ALGORITHM_DIRECT, TDM_ALGORITHM_DOUBLING,
                                               TDM_ALGORITHM_TREE, TDM_ALGORITHM_HIERARCHY,
                                               TDM_ALGORITHM_RING};
    call->kind = (tdm_call_kind)(TDM_CALL_BARRIER + script_below(rng, SCRIPT_RING));
    call->group = script_below(rng, s->group_count);
    int size = s->groups[call->group].size;
    bool reduces = script_reduces(call->kind);
    call->dtype = reduces ? sums[script_below(rng, 6)]
                          : (tdm_dtype)(TDM_DTYPE_F32 + script_below(rng, TDM_DTYPE_COUNT - 1));
    int scale = script_below(rng, 10);
    call->count = (size_t)script_below(rng, scale < 5 ? 40 : scale < 9 ? 700 : 9000);
    call->root = script_below(rng, size);
    call->in_place = script_chance(rng, 30);
    call->async = script_chance(rng, 30);
    call->wait_before = script_below(rng, MAX_SCRIPT_CALLS + 1);
    call->pause_s = script_chance(rng, 50) ? 0.0 : 1e-3 * (double)tdm_rng_uniform(rng);
    bool exact = call->dtype == TDM_DTYPE_I32 || call->dtype == TDM_DTYPE_I64;
    if (reduces) {
        call->reduce = (tdm_reduce)script_below(rng, call->dtype == TDM_DTYPE_I64 ? 4 : 3);
        if (script_chance(rng, 40)) script_draw_lanes(rng, call, size);
    }
    /* The order of a ring's sums of floats is that of the ring, not that of the tree. */
    bool any_order = !reduces || exact || call->reduce != TDM_REDUCE_SUM;
    if (script_chance(rng, 50)) call->algorithm = algorithms[script_below(rng, any_order ? 5 : 4)];
}

void script_draw(tdm_rng *rng, script *s, uint64_t seed, int size)
{
    *s = (script){.seed = seed, .size = size, .arena = tdm_arena_create("script")};
    s->group_count = 1 + script_below(rng, MAX_SCRIPT_GROUPS);
    for (int g = 0; g < s->group_count; g++) {
        script_group *group = &s->groups[g];
        for (int i = 0; i < size; i++) group->ranks[i] = i;
        group->size = g == 0 ? size : 1 + script_below(rng, size);
        for (int i = 0; g > 0 && i < group->size; i++) {
            int other = i + script_below(rng, size - i);
            int kept = group->ranks[i];
            group->ranks[i] = group->ranks[other];
            group->ranks[other] = kept;
        }
    }
    s->call_count = 1 + script_below(rng, MAX_SCRIPT_CALLS);
    for (int i = 0; i < s->call_count; i++) script_draw_call(rng, s, &s->calls[i]);
}

int script_member(const script_group *group, int rank)
{
    for (int i = 0; i < group->size; i++)
        if (group->ranks[i] == rank) return i;
    return -1;
}
