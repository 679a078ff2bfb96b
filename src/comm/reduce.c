/*
 * reduce.c: compiles the order of additions, and evaluates it over memory.
 *
 * A plan is built from left to right with a stack: two neighbours are added as soon as the next
 * node joins them higher in the tree than they join each other. Only results on that stack are
 * kept, at most as many as the tree is deep; they get scratch slots that stay in the L1 cache.
 *
 * An evaluation processes memory in blocks. All sources of a block are read before a destination is
 * written, so a destination may be a source. Two leaves and one destination need no scratch and are
 * one loop. User functions run in the same order, on scratch. The floating-point mode is set for
 * each evaluation and restored afterwards, so the result does not depend on the thread.
 */
#include "comm/reduce.h"
#include "base/base.h"

#include "comm/reduce_loops.h"
#include "tensor/kernel.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    SCRATCH_BYTES = 16384,
    MAX_BLOCK = 2048, /* bytes: small enough that a block of each of 16 sources stays in the
                       * cache */
    MAX_DEPTH = 64,   /* of a tree with 63-bit node indices */
    /* Below this, the result will likely be read from the cache: streaming does not pay. */
    MIN_STREAM = 65536,
    MAX_STREAMS = 64 /* destinations that can be streamed to; others are not */
};

const tdm__reduce_loops *tdm__reduce_loops_at(int level)
{
#if defined(__x86_64__)
    return level >= 4   ? &tdm__reduce_loops_4
           : level == 3 ? &tdm__reduce_loops_3
                        : &tdm__reduce_loops_2;
#else
    (void)level;
    return &tdm__reduce_loops_0;
#endif
}

static const tdm__reduce_loops *reduce_loops_here(void)
{
    return tdm__reduce_loops_at(tdm_kernel_level());
}

/* ---- reducers --------------------------------------------------------------------------------- */

int tdm__reduce_type(tdm_dtype dtype)
{
    switch (dtype) {
    case TDM_DTYPE_F32: return 0;
    case TDM_DTYPE_F64: return 1;
    case TDM_DTYPE_F16: return 2;
    case TDM_DTYPE_BF16: return 3;
    case TDM_DTYPE_I32: return 4;
    case TDM_DTYPE_I64: return 5;
    default: return -1;
    }
}

tdm_status tdm__reducer_check(const tdm__reducer *reducer, tdm_error *err)
{
    if (tdm_dtype_bytes(reducer->dtype) == 0)
        return tdm_fail(err, TDM_ERR_UNSUPPORTED, "invalid element type %d for a reduction",
                        (int)reducer->dtype);
    switch (reducer->reduce) {
    case TDM_REDUCE_SUM:
    case TDM_REDUCE_MIN:
    case TDM_REDUCE_MAX:
        if (tdm__reduce_type(reducer->dtype) >= 0) return TDM_OK;
        return tdm_fail(
            err, TDM_ERR_UNSUPPORTED,
            "%s of %s is not supported: sum, min and max support f32, f64, f16, bf16, i32 and "
            "i64; for other types pass your own function (TDM_REDUCE_USER)",
            tdm_reduce_name(reducer->reduce), tdm_dtype_name(reducer->dtype));
    case TDM_REDUCE_USER:
        if (reducer->user_reduce) return TDM_OK;
        return tdm_fail(err, TDM_ERR_INVALID, "TDM_REDUCE_USER needs a function in user_reduce");
    }
    return tdm_fail(err, TDM_ERR_UNSUPPORTED,
                    "invalid reduction %d: valid are sum, min, max and user", (int)reducer->reduce);
}

/* ---- floating-point mode ---------------------------------------------------------------------- */

/* Sums treat subnormal inputs and results as zero, like the kernels of src/tensor; the user's
 * function runs in the default mode. MIN and MAX compare bits and are not affected. */
static bool reducer_flushes(const tdm__reducer *reducer)
{
    return reducer->reduce != TDM_REDUCE_USER;
}

#if defined(__x86_64__)
typedef unsigned int float_mode;
enum {
    MODE_BITS = 0xffc0,  /* all except the exception flags */
    PLAIN_MODE = 0x1f80, /* round to nearest, all exceptions masked */
    FLUSH_MODE = PLAIN_MODE | 0x8040
};

static float_mode mode_read(void)
{
    return __builtin_ia32_stmxcsr() & MODE_BITS;
}

static void mode_write(float_mode mode)
{
    __builtin_ia32_ldmxcsr(mode);
}
#elif defined(__aarch64__)
typedef uint64_t float_mode;
enum { PLAIN_MODE = 0, FLUSH_MODE = 1 << 24 };

static float_mode mode_read(void)
{
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}

static void mode_write(float_mode mode)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(mode));
}
#else
#error "define the bits that flush subnormal numbers to zero for this CPU"
#endif

/* Sets the mode for a reducer's loops; returns the previous one. */
static float_mode mode_enter(const tdm__reducer *reducer)
{
    float_mode before = mode_read(), wanted = reducer_flushes(reducer) ? FLUSH_MODE : PLAIN_MODE;
    if (before != wanted) mode_write(wanted);
    return before;
}

static void mode_leave(float_mode before)
{
    if (mode_read() != before) mode_write(before);
}

/* ---- copies ----------------------------------------------------------------------------------- */

/* Bytes from `p` to the next cache line. */
static size_t to_line(const void *p)
{
    return (size_t)(-(uintptr_t)p & (TDM__STREAM_ALIGN - 1));
}

static bool on_line(const void *p)
{
    return to_line(p) == 0;
}

static void bytes_copy(void *out, const void *in, size_t bytes)
{
    if (out != in && bytes > 0) memcpy(out, in, bytes);
}

void tdm__copy_by(const tdm__reduce_loops *loops, void *out, const void *in, size_t bytes,
                  bool stream)
{
    if (!stream || bytes < MIN_STREAM || out == in) {
        bytes_copy(out, in, bytes);
        return;
    }
    size_t head = to_line(out);
    memcpy(out, in, head);
    loops->stream((char *)out + head, (const char *)in + head, bytes - head);
    loops->fence();
}

void tdm__copy(void *out, const void *in, size_t bytes, bool stream)
{
    if (bytes < MIN_STREAM)
        bytes_copy(out, in, bytes);
    else
        tdm__copy_by(reduce_loops_here(), out, in, bytes, stream);
}

/* ---- pairs ------------------------------------------------------------------------------------ */

static tdm__reduce_loop reducer_loop(const tdm__reduce_loops *loops, const tdm__reducer *reducer,
                                     bool stream)
{
    return loops->pairs[tdm__reduce_type(reducer->dtype)][reducer->reduce][stream];
}

/* The user's function overwrites its left operand, which must be copied if `out` is the right
 * one. */
static void reducer_user_pair(const tdm__reducer *reducer, void *out, const void *left,
                              const void *right, size_t count)
{
    size_t width = tdm_dtype_bytes(reducer->dtype);
    if (out != right) {
        bytes_copy(out, left, count * width);
        reducer->user_reduce(out, right, count, reducer->user);
        return;
    }
    _Alignas(64) char block[MAX_BLOCK];
    size_t max = sizeof(block) / width;
    for (size_t at = 0; at < count; at += max) {
        size_t now = count - at < max ? count - at : max;
        bytes_copy(block, (const char *)left + at * width, now * width);
        reducer->user_reduce(block, (const char *)right + at * width, now, reducer->user);
        bytes_copy((char *)out + at * width, block, now * width);
    }
}

void tdm__reduce_pair_by(const tdm__reduce_loops *loops, const tdm__reducer *reducer, void *out,
                         const void *left, const void *right, size_t count)
{
    if (count == 0) return;
    float_mode before = mode_enter(reducer);
    if (reducer->reduce == TDM_REDUCE_USER)
        reducer_user_pair(reducer, out, left, right, count);
    else
        reducer_loop(loops, reducer, false)(out, left, right, count);
    mode_leave(before);
}

void tdm__reduce_pair(const tdm__reducer *reducer, void *out, const void *left, const void *right,
                      size_t count)
{
    tdm__reduce_pair_by(reduce_loops_here(), reducer, out, left, right, count);
}

/* ---- plans ------------------------------------------------------------------------------------ */

/* The number of levels below the root. */
static int node_depth(int64_t node)
{
    return 63 - __builtin_clzll((unsigned long long)node);
}

static bool node_is_below(int64_t node, int64_t top)
{
    int levels = node_depth(node) - node_depth(top);
    return levels >= 0 && node >> levels == top;
}

/* The depth of the lowest common ancestor of a node and its right neighbour; -1 if they overlap or
 * are not in order. */
static int node_meeting_depth(int64_t left, int64_t right)
{
    int depth = node_depth(left) < node_depth(right) ? node_depth(left) : node_depth(right);
    left >>= node_depth(left) - depth;
    right >>= node_depth(right) - depth;
    if (left >= right) return -1;
    while (left != right) {
        left >>= 1;
        right >>= 1;
        depth--;
    }
    return depth;
}

static tdm_status plan_check_nodes(const int64_t *nodes, int count, int64_t top, tdm_error *err)
{
    if (count < 0 || top < 1)
        return tdm_fail(err, TDM_ERR_INVALID, "invalid tree of %d nodes below node %lld", count,
                        (long long)top);
    for (int i = 0; i < count; i++) {
        if (nodes[i] < 1 || !node_is_below(nodes[i], top))
            return tdm_fail(err, TDM_ERR_INVALID,
                            "node %lld of the lane tree is not below node %lld",
                            (long long)nodes[i], (long long)top);
        if (i > 0 && node_meeting_depth(nodes[i - 1], nodes[i]) < 0)
            return tdm_fail(err, TDM_ERR_INVALID,
                            "nodes %lld and %lld of the lane tree overlap or are not in order "
                            "from left to right",
                            (long long)nodes[i - 1], (long long)nodes[i]);
    }
    return TDM_OK;
}

/* A leaf or result that waits for its right neighbour. */
typedef struct waiting {
    int reg;
    int slot;  /* -1: a leaf */
    int depth; /* of the common ancestor with its left neighbour */
} waiting;

typedef struct plan_stack {
    waiting list[MAX_DEPTH + 2];
    int count;
    int slots_used;
} plan_stack;

/* Adds the two topmost entries of the stack. */
static void plan_merge(tdm__tree_plan *plan, plan_stack *s)
{
    waiting right = s->list[--s->count];
    waiting *left = &s->list[s->count - 1];
    struct tdm__pair *pair = &plan->pairs[plan->pair_count++];
    int slot = left->slot >= 0 ? left->slot : right.slot >= 0 ? right.slot : s->slots_used++;
    if (left->slot >= 0 && right.slot >= 0) s->slots_used--;
    if (plan->slot_count < s->slots_used) plan->slot_count = s->slots_used;
    *pair = (struct tdm__pair){.left = left->reg,
                               .right = right.reg,
                               .out = left->reg,
                               .left_slot = left->slot,
                               .right_slot = right.slot,
                               .out_slot = slot};
    left->slot = slot;
}

tdm_status tdm__tree_plan_init(tdm__tree_plan *plan, const int64_t *nodes, int count, int64_t top,
                               tdm_error *err)
{
    TDM_TRY(plan_check_nodes(nodes, count, top, err));
    tdm__tree_plan made = {.leaf_count = count};
    if (count > 1) {
        made.pairs = calloc((size_t)count - 1, sizeof(*made.pairs));
        if (!made.pairs) return tdm_fail_oom(err, "for a reduction of %d parts", count);
    }
    plan_stack stack = {.count = 0};
    for (int i = 0; i < count; i++) {
        int depth = i > 0 ? node_meeting_depth(nodes[i - 1], nodes[i]) : -1;
        while (stack.count > 1 && stack.list[stack.count - 1].depth > depth)
            plan_merge(&made, &stack);
        stack.list[stack.count++] = (waiting){.reg = i, .slot = -1, .depth = depth};
    }
    while (stack.count > 1) plan_merge(&made, &stack);
    *plan = made;
    return TDM_OK;
}

void tdm__tree_plan_release(tdm__tree_plan *plan)
{
    free(plan->pairs);
    *plan = (tdm__tree_plan){.leaf_count = 0};
}

/* ---- evaluation ------------------------------------------------------------------------------- */

typedef struct tree_run {
    const tdm__reduce_loops *loops;
    const tdm__tree_plan *plan;
    const tdm__reducer *reducer;
    tdm__reduce_loop loop; /* NULL: the user's function */
    const void *const *sources;
    void *const *destinations;
    int destination_count;
    size_t width;       /* bytes of an element */
    size_t block_bytes; /* of each slot */
    bool stream;        /* stream to any of the destinations: */
    uint64_t streamed;  /* a bit for each of the first 64 */
    int home;           /* the destination in which results are computed; -1: in scratch */
    char *scratch;      /* the slots */
} tree_run;

static bool tree_is_source(const tree_run *r, const void *p)
{
    for (int i = 0; i < r->plan->leaf_count; i++)
        if (r->sources[i] == p) return true;
    return false;
}

/* Selects which of the first `max` destinations are streamed to, and where results are computed. */
static void tree_find_streamed(tree_run *r, int max)
{
    for (int i = 0; i < r->destination_count && i < max && i < MAX_STREAMS; i++)
        if (!tree_is_source(r, r->destinations[i])) r->streamed |= UINT64_C(1) << i;
    r->stream = r->streamed != 0;
    int plain = 0;
    while (plain < MAX_STREAMS && r->streamed >> plain & 1) plain++;
    r->home = r->loop && plain < r->destination_count ? plain : -1;
}

static char *tree_slot_at(const tree_run *r, int slot)
{
    return r->scratch + (size_t)slot * r->block_bytes;
}

static const void *tree_operand(const tree_run *r, int reg, int slot, size_t at)
{
    return slot >= 0 ? tree_slot_at(r, slot) : (const char *)r->sources[reg] + at * r->width;
}

/* Writes the block's result at `from` to a destination. */
static void tree_put_result(const tree_run *r, int destination, const void *from, size_t at,
                            size_t bytes)
{
    char *to = (char *)r->destinations[destination] + at * r->width;
    if (destination < MAX_STREAMS && (r->streamed >> destination & 1) && on_line(to))
        r->loops->stream(to, from, bytes);
    else
        bytes_copy(to, from, bytes);
}

/* Evaluates elements [at, at + count), which fit in a slot. */
static void tree_run_block(const tree_run *r, size_t at, size_t count)
{
    const void *result = NULL;
    for (int i = 0; i < r->plan->pair_count; i++) {
        const struct tdm__pair *p = &r->plan->pairs[i];
        const void *left = tree_operand(r, p->left, p->left_slot, at);
        const void *right = tree_operand(r, p->right, p->right_slot, at);
        char *out = tree_slot_at(r, p->out_slot);
        /* The last result is written directly to its destination, unless that is streamed to. */
        if (i == r->plan->pair_count - 1 && r->home >= 0)
            out = (char *)r->destinations[r->home] + at * r->width;
        if (r->loop)
            r->loop(out, left, right, count);
        else
            reducer_user_pair(r->reducer, out, left, right, count);
        result = out;
    }
    assert(result); /* there are at least two leaves */
    for (int i = 0; i < r->destination_count; i++)
        if (i != r->home) tree_put_result(r, i, result, at, count * r->width);
}

/* A sum of two operands with one streamed destination: the part before the first cache line is
 * first. */
static void tree_run_pair_stream(const tree_run *r, size_t count)
{
    char *out = r->destinations[0];
    size_t head = to_line(out) / r->width;
    r->loop(out, r->sources[0], r->sources[1], head);
    reducer_loop(r->loops, r->reducer,
                 true)(out + head * r->width, (const char *)r->sources[0] + head * r->width,
                       (const char *)r->sources[1] + head * r->width, count - head);
}

static void tree_run_blocks(const tree_run *run, size_t count)
{
    _Alignas(64) char scratch[SCRATCH_BYTES];
    tree_run r = *run;
    int slots = r.plan->slot_count > 1 ? r.plan->slot_count : 1;
    size_t fits = SCRATCH_BYTES / (size_t)slots / TDM__STREAM_ALIGN * TDM__STREAM_ALIGN;
    r.block_bytes = fits < MAX_BLOCK ? fits : MAX_BLOCK;
    r.scratch = scratch;
    size_t max = r.block_bytes / r.width;
    size_t head = r.stream ? to_line(r.destinations[0]) / r.width : 0;
    for (size_t at = 0, now = head > 0 ? head : max; at < count; at += now, now = max) {
        if (now > count - at) now = count - at;
        tree_run_block(&r, at, now);
    }
}

void tdm__tree_run_by(const tdm__reduce_loops *loops, const tdm__tree_plan *plan,
                      const tdm__reducer *reducer, const void *const *sources,
                      void *const *destinations, int destination_count, size_t count, int stream)
{
    if (count == 0 || plan->leaf_count == 0 || destination_count == 0) return;
    tree_run r = {.loops = loops,
                  .plan = plan,
                  .reducer = reducer,
                  .sources = sources,
                  .destinations = destinations,
                  .destination_count = destination_count,
                  .width = tdm_dtype_bytes(reducer->dtype)};
    if (count * r.width < MIN_STREAM) stream = 0;
    if (plan->leaf_count == 1) {
        for (int i = 0; i < destination_count; i++)
            tdm__copy_by(loops, destinations[i], sources[0], count * r.width, i < stream);
        return;
    }
    float_mode before = mode_enter(reducer);
    if (reducer->reduce != TDM_REDUCE_USER) r.loop = reducer_loop(loops, reducer, false);
    bool simple = plan->leaf_count == 2 && destination_count == 1 && r.loop;
    tree_find_streamed(&r, stream);
    if (simple && !r.stream)
        r.loop(destinations[0], sources[0], sources[1], count);
    else if (simple && to_line(destinations[0]) % r.width == 0)
        tree_run_pair_stream(&r, count);
    else
        tree_run_blocks(&r, count);
    if (r.stream) loops->fence();
    mode_leave(before);
}

void tdm__tree_run(const tdm__tree_plan *plan, const tdm__reducer *reducer,
                   const void *const *sources, void *const *destinations, int destination_count,
                   size_t count, int stream)
{
    tdm__tree_run_by(reduce_loops_here(), plan, reducer, sources, destinations, destination_count,
                     count, stream);
}
