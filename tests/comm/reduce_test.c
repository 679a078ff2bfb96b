/*
 * Reductions compared bit for bit with a plain reference that traverses the tree of lanes one number at a time,
 * on every instruction-set level that this CPU has: all types and operations, all numbers of leaves, odd
 * counts, odd addresses, destinations that are also sources, and guards around everything. The reference adds
 * f16 and bf16 in double precision, where their sums are exact, and rounds once.
 */
#include "comm/reduce_loops.h"
#include "tensor/kernel.h"

#include "check.h"

#include <fenv.h>
#include <pthread.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { ROUNDS = 1, PARTNERS = 3, LEAF_STEP = 3 };
#else
enum { ROUNDS = 4, PARTNERS = 64, LEAF_STEP = 1 };
#endif
enum { MAX_LEAVES = 40, GUARD = 96, GUARD_BYTE = 0xa5, LANES = 64 };

static uint64_t seed = 0x9e3779b97f4a7c15;

static uint64_t draw(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed * 0x2545f4914f6cdd1d;
}

static size_t draw_below(size_t bound)
{
    return (size_t)((draw() >> 32) % bound);
}

/* ---- levels ------------------------------------------------------------------------------------ */

#if defined(__x86_64__)
static const int levels[] = {2, 3, 4};
#else
static const int levels[] = {0};
#endif
enum { LEVELS = sizeof(levels) / sizeof(levels[0]) };

static const tdm__reduce_loops *loops_at(int i)
{
    return levels[i] <= tdm_kernel_level() ? tdm__reduce_loops_at(levels[i]) : NULL;
}

/* ---- the reference: one number ----------------------------------------------------------------- */

typedef struct format {
    int digits, min; /* of the fraction with its leading one; exponent of the smallest step */
    uint64_t infinity, quiet;
    int bits;
} format;

static const format formats[] = {
    [TDM_DTYPE_F32] = {24, -149, 0x7f800000, 0x7fc00000, 32},
    [TDM_DTYPE_F64] = {53, -1074, 0x7ff0000000000000, 0x7ff8000000000000, 64},
    [TDM_DTYPE_F16] = {11, -24, 0x7c00, 0x7e00, 16},
    [TDM_DTYPE_BF16] = {8, -133, 0x7f80, 0x7fc0, 16},
};

static bool is_float(tdm_dtype dtype)
{
    return dtype <= TDM_DTYPE_BF16;
}

static uint64_t sign_of(const format *f)
{
    return UINT64_C(1) << (f->bits - 1);
}

static bool is_nan(const format *f, uint64_t bits)
{
    return (bits & ~sign_of(f)) > f->infinity;
}

/* The value of 16 or 32 bits. Not for NaN. */
static double decode(const format *f, uint64_t bits)
{
    uint64_t size = bits & ~sign_of(f);
    uint64_t one = UINT64_C(1) << (f->digits - 1);
    double value;
    if (size == f->infinity)
        value = INFINITY;
    else if (size < one)
        value = ldexp((double)size, f->min);
    else
        value = ldexp((double)((size & (one - 1)) | one), f->min + (int)(size / one) - 1);
    return bits & sign_of(f) ? -value : value;
}

static uint64_t encode(const format *f, double value)
{
    uint64_t sign = signbit(value) ? sign_of(f) : 0;
    value = fabs(value);
    if (isinf(value)) return sign | f->infinity;
    int exponent = 0;
    frexp(value, &exponent);
    int step = exponent - f->digits;
    if (value == 0 || step < f->min) step = f->min;
    uint64_t fraction = (uint64_t)nearbyint(ldexp(value, -step)); /* ties to even */
    /* A carry out of the fraction increments the exponent; past the largest exponent the result is infinity.
     * */
    uint64_t one = UINT64_C(1) << (f->digits - 1);
    uint64_t size = fraction < one ? fraction : fraction + (uint64_t)(step - f->min) * one;
    return sign | (size < f->infinity ? size : f->infinity);
}

/* Numbers below the normal range of the type that is used for sums are zero. */
static uint64_t flushed(tdm_dtype dtype, uint64_t bits)
{
    const format *f = &formats[dtype];
    bool tiny = (bits & ~sign_of(f)) < UINT64_C(1) << (f->digits - 1);
    return tiny && dtype != TDM_DTYPE_F16 ? bits & sign_of(f) : bits;
}

static uint64_t add_float(tdm_dtype dtype, uint64_t a, uint64_t b)
{
    const format *f = &formats[dtype];
    uint64_t out = 0;
    a = flushed(dtype, a);
    b = flushed(dtype, b);
    if (dtype == TDM_DTYPE_F64) {
        double x, y;
        memcpy(&x, &a, 8);
        memcpy(&y, &b, 8);
        x += y;
        memcpy(&out, &x, 8);
    } else if (dtype == TDM_DTYPE_F32) {
        float x, y;
        memcpy(&x, &a, 4);
        memcpy(&y, &b, 4);
        x += y;
        memcpy(&out, &x, 4);
    } else if (is_nan(f, a) || is_nan(f, b)) {
        return f->quiet;
    } else {
        double sum = decode(f, a) + decode(f, b);
        return isnan(sum) ? f->quiet : flushed(dtype, encode(f, sum));
    }
    return is_nan(f, out) ? f->quiet : flushed(dtype, out);
}

static bool less_float(tdm_dtype dtype, uint64_t a, uint64_t b)
{
    const format *f = &formats[dtype];
    bool a_negative = a & sign_of(f), b_negative = b & sign_of(f);
    if (a_negative != b_negative) return a_negative;
    return a_negative ? a > b : a < b;
}

static uint64_t pair(const tdm__reducer *r, uint64_t a, uint64_t b)
{
    bool f = is_float(r->dtype);
    uint64_t mask = r->dtype == TDM_DTYPE_I32 ? 0xffffffff : UINT64_MAX;
    if (r->reduce == TDM_REDUCE_SUM) return f ? add_float(r->dtype, a, b) : (a + b) & mask;
    if (f && (is_nan(&formats[r->dtype], a) || is_nan(&formats[r->dtype], b)))
        return formats[r->dtype].quiet;
    bool less = f                           ? less_float(r->dtype, a, b)
                : r->dtype == TDM_DTYPE_I32 ? (int32_t)a < (int32_t)b
                                            : (int64_t)a < (int64_t)b;
    return less == (r->reduce == TDM_REDUCE_MIN) ? a : b;
}

/* ---- the reference: the tree ------------------------------------------------------------------- */

typedef struct tree_case {
    tdm__reducer reducer;
    int64_t nodes[MAX_LEAVES];
    int leaf_count;
    size_t count;
    const void *sources[MAX_LEAVES];
} tree_case;

static uint64_t element(const tree_case *c, int leaf, size_t index)
{
    size_t width = tdm_dtype_bytes(c->reducer.dtype);
    uint64_t bits = 0;
    memcpy(&bits, (const char *)c->sources[leaf] + index * width, width);
    return bits;
}

/* The value of a node; false if none of its leaves is present. */
static bool value_of(const tree_case *c, int64_t node, size_t index, uint64_t *out)
{
    for (int i = 0; i < c->leaf_count; i++)
        if (c->nodes[i] == node) {
            *out = element(c, i, index);
            return true;
        }
    if (node >= LANES) return false;
    uint64_t left = 0, right = 0;
    bool has_left = value_of(c, 2 * node, index, &left);
    bool has_right = value_of(c, 2 * node + 1, index, &right);
    *out = has_left && has_right ? pair(&c->reducer, left, right) : has_left ? left : right;
    return has_left || has_right;
}

/* ---- random cases ------------------------------------------------------------------------------ */

/* `count` lanes of 64, from left to right; some of them become the nodes above them, if the node contains no
 * other lane. */
static void draw_nodes(tree_case *c, int count)
{
    c->leaf_count = 0;
    for (int lane = 0; lane < LANES; lane++)
        if (draw_below((size_t)(LANES - lane)) < (size_t)(count - c->leaf_count))
            c->nodes[c->leaf_count++] = LANES + lane;
    for (int i = 0; i < count; i++)
        while (draw_below(2) && (i == 0 || c->nodes[i - 1] >> 1 != c->nodes[i] >> 1)) {
            int64_t up = c->nodes[i] >> 1;
            bool alone = up > 1;
            for (int k = 0; k < count && alone; k++) {
                int64_t other = c->nodes[k];
                while (other > up) other >>= 1;
                int64_t above = up;
                while (above > c->nodes[k]) above >>= 1;
                alone = k == i || (other != up && above != c->nodes[k]);
            }
            if (!alone) break;
            c->nodes[i] = up;
        }
}

static uint64_t draw_bits(tdm_dtype dtype)
{
    if (!is_float(dtype)) return draw();
    const format *f = &formats[dtype];
    uint64_t one = UINT64_C(1) << (f->digits - 1);
    const uint64_t special[] = {0, f->infinity, f->quiet, f->infinity + 1, f->quiet + 5,
                                1, one - 1,     one,      f->infinity - 1, f->infinity / 2};
    uint64_t sign = draw_below(2) ? sign_of(f) : 0;
    if (draw_below(12) == 0) return sign | special[draw_below(sizeof(special) / sizeof(*special))];
    if (draw_below(4) == 0) return draw() & (sign_of(f) | (sign_of(f) - 1));
    /* Mostly numbers whose sums are rounded. */
    uint64_t exponent = f->infinity / one / 2 - 3 + draw_below(6);
    return sign | exponent * one | (draw() & (one - 1));
}

typedef struct buffer {
    uint8_t *memory, *data;
    size_t bytes;
} buffer;

/* Guards around `bytes`, which begin at an odd address if `odd` is set. */
static buffer buffer_make(size_t bytes, size_t odd)
{
    buffer b = {.bytes = bytes};
    b.memory = aligned_alloc(64, (bytes + 3 * GUARD + 63) / 64 * 64);
    memset(b.memory, GUARD_BYTE, bytes + 3 * GUARD);
    b.data = b.memory + GUARD / 64 * 64 + odd;
    return b;
}

static bool guards_whole(const buffer *b)
{
    bool whole = true;
    for (const uint8_t *p = b->memory; p < b->data; p++) whole = whole && *p == GUARD_BYTE;
    for (const uint8_t *p = b->data + b->bytes; p < b->memory + b->bytes + 2 * GUARD; p++)
        whole = whole && *p == GUARD_BYTE;
    return whole;
}

static void fill(buffer *b, tdm_dtype dtype)
{
    size_t width = tdm_dtype_bytes(dtype);
    for (size_t i = 0; i < b->bytes / width; i++) {
        uint64_t bits = draw_bits(dtype);
        memcpy(b->data + i * width, &bits, width);
    }
}

static size_t odd_start(size_t width)
{
    size_t kind = draw_below(4);
    return kind == 0 ? 0 : kind == 1 ? draw_below(32) : width * draw_below(32 / width);
}

/* The destination of a run: new memory, or a source. */
typedef struct targets {
    buffer fresh[2];
    void *list[4];
    int count;
} targets;

static void aim(targets *t, const buffer *sources, int leaf_count, int shape, size_t bytes,
                size_t width)
{
    t->count = 0;
    for (int i = 0; i < 2; i++) {
        t->fresh[i] = buffer_make(bytes, odd_start(width));
        if (shape >> i & 1) t->list[t->count++] = t->fresh[i].data;
    }
    if (shape & 4) t->list[t->count++] = sources[draw_below((size_t)leaf_count)].data;
    if (shape & 8) { /* the last of them is the first source */
        void *other = sources[leaf_count - 1].data;
        if (t->count > 0 && t->list[t->count - 1] == other) return;
        t->list[t->count++] = t->list[0];
        t->list[0] = other;
        if (t->count == 1) t->list[0] = other;
    }
}

static bool run_level(const tree_case *c, const tdm__tree_plan *plan, buffer *sources, int level,
                      int shape, const uint8_t *expected)
{
    size_t width = tdm_dtype_bytes(c->reducer.dtype), bytes = c->count * width;
    buffer mine[MAX_LEAVES];
    const void *from[MAX_LEAVES];
    for (int i = 0; i < c->leaf_count; i++) {
        mine[i] = buffer_make(bytes, odd_start(width));
        memcpy(mine[i].data, sources[i].data, bytes);
        from[i] = mine[i].data;
    }
    targets t;
    aim(&t, mine, c->leaf_count, shape, bytes, width);
    tdm__tree_run_by(loops_at(level), plan, &c->reducer, from, t.list, t.count, c->count,
                     (int)draw_below(5));
    bool same = true;
    for (int i = 0; i < t.count; i++) same = same && memcmp(t.list[i], expected, bytes) == 0;
    for (int i = 0; i < c->leaf_count; i++) {
        bool target = false;
        for (int k = 0; k < t.count; k++) target = target || t.list[k] == mine[i].data;
        same = same && (target || memcmp(mine[i].data, sources[i].data, bytes) == 0);
        same = same && guards_whole(&mine[i]);
        free(mine[i].memory);
    }
    for (int i = 0; i < 2; i++) {
        same = same && guards_whole(&t.fresh[i]);
        free(t.fresh[i].memory);
    }
    return same;
}

static void run_case(tree_case *c, int shapes)
{
    size_t width = tdm_dtype_bytes(c->reducer.dtype), bytes = c->count * width;
    buffer sources[MAX_LEAVES];
    for (int i = 0; i < c->leaf_count; i++) {
        sources[i] = buffer_make(bytes, 0);
        fill(&sources[i], c->reducer.dtype);
        c->sources[i] = sources[i].data;
    }
    uint8_t *expected = malloc(bytes + 1);
    for (size_t k = 0; k < c->count; k++) {
        uint64_t bits = 0;
        value_of(c, 1, k, &bits);
        memcpy(expected + k * width, &bits, width);
    }
    tdm__tree_plan plan;
    tdm_error err;
    CHECK_INT(tdm__tree_plan_init(&plan, c->nodes, c->leaf_count, 1, &err), TDM_OK);
    CHECK_INT(plan.pair_count, c->leaf_count - 1);
    for (int level = 0; level < LEVELS; level++)
        for (int i = 0; i < shapes && loops_at(level); i++) {
            int shape = 1 + (int)draw_below(15);
            bool same = run_level(c, &plan, sources, level, shape, expected);
            CHECK(same);
            if (!same)
                fprintf(stderr, "  %s of %s, %d leaves, %zu elements, level %d, shape %d\n",
                        tdm_reduce_name(c->reducer.reduce), tdm_dtype_name(c->reducer.dtype),
                        c->leaf_count, c->count, levels[level], shape);
        }
    tdm__tree_plan_release(&plan);
    for (int i = 0; i < c->leaf_count; i++) free(sources[i].memory);
    free(expected);
}

static const tdm_dtype types[] = {TDM_DTYPE_F32,  TDM_DTYPE_F64, TDM_DTYPE_F16,
                                  TDM_DTYPE_BF16, TDM_DTYPE_I32, TDM_DTYPE_I64};
enum { TYPES = sizeof(types) / sizeof(types[0]) };

static void all_trees(void)
{
    static const size_t counts[] = {1, 2, 3, 7, 15, 17, 33, 63, 65, 127, 131};
    for (int type = 0; type < TYPES; type++)
        for (int reduce = TDM_REDUCE_SUM; reduce <= TDM_REDUCE_MAX; reduce++)
            for (int leaves = 1; leaves <= MAX_LEAVES; leaves += LEAF_STEP)
                for (int round = 0; round < ROUNDS; round++) {
                    tree_case c = {.reducer = {.dtype = types[type], .reduce = (tdm_reduce)reduce}};
                    draw_nodes(&c, leaves);
                    c.count = counts[draw_below(sizeof(counts) / sizeof(*counts))];
                    run_case(&c, 2);
                }
}

/* More than a block, and enough that streaming stores are used. */
static void large_trees(void)
{
    static const int leaf_counts[] = {1, 2, 2, 3, 5, 16, 17};
    for (int type = 0; type < TYPES; type++)
        for (size_t i = 0; i < sizeof(leaf_counts) / sizeof(*leaf_counts); i++) {
            tree_case c = {.reducer = {.dtype = types[type], .reduce = (tdm_reduce)draw_below(3)}};
            draw_nodes(&c, leaf_counts[i]);
            c.count = 70000 / tdm_dtype_bytes(types[type]) + draw_below(99);
            run_case(&c, 4);
        }
}

/* ---- each value of 16 bits ---------------------------------------------------------------------- */

static void every_value(tdm_dtype dtype)
{
    enum { VALUES = 65536 };
    uint16_t *left = malloc(VALUES * 2), *right = malloc(VALUES * 2),
             *expected = malloc(VALUES * 2), *out = malloc(VALUES * 2);
    for (int reduce = TDM_REDUCE_SUM; reduce <= TDM_REDUCE_MAX; reduce++)
        for (int partner = 0; partner < PARTNERS; partner++) {
            tdm__reducer r = {.dtype = dtype, .reduce = (tdm_reduce)reduce};
            uint16_t other = partner == 0 ? 0 : partner == 1 ? 0x8000 : (uint16_t)draw_bits(dtype);
            for (int i = 0; i < VALUES; i++) {
                left[i] = (uint16_t)i;
                right[i] = other;
                expected[i] = (uint16_t)pair(&r, left[i], right[i]);
            }
            for (int level = 0; level < LEVELS; level++) {
                if (!loops_at(level)) continue;
                tdm__reduce_pair_by(loops_at(level), &r, out, left, right, VALUES);
                CHECK(memcmp(out, expected, VALUES * 2) == 0);
                tdm__reduce_pair_by(loops_at(level), &r, out, right, left, VALUES);
                CHECK(memcmp(out, expected, VALUES * 2) == 0);
            }
        }
    free(left);
    free(right);
    free(expected);
    free(out);
}

static void every_f16(void)
{
    every_value(TDM_DTYPE_F16);
}

static void every_bf16(void)
{
    every_value(TDM_DTYPE_BF16);
}

/* ---- pairs, user functions, settings ------------------------------------------------------------ */

static void pairs_in_place(void)
{
    const tdm__reducer r = {.dtype = TDM_DTYPE_I64, .reduce = TDM_REDUCE_SUM};
    int64_t a[37], b[37], expected[37];
    for (int place = 0; place < 2; place++) {
        for (int i = 0; i < 37; i++) {
            a[i] = INT64_MAX - i;
            b[i] = 3 * i;
            expected[i] = (int64_t)((uint64_t)a[i] + (uint64_t)b[i]);
        }
        tdm__reduce_pair(&r, place ? b : a, a, b, 37);
        CHECK(memcmp(place ? b : a, expected, sizeof(a)) == 0);
    }
    tdm__reduce_pair(&r, a, a, b, 0);
}

/* Neither commutative nor associative: any other order gives another result. */
static void mix(void *into, const void *from, size_t count, void *user)
{
    uint16_t *a = into;
    const uint16_t *b = from;
    for (size_t i = 0; i < count; i++) a[i] = (uint16_t)(a[i] * 31 + (b[i] ^ 0x55));
    *(size_t *)user += count;
}

static uint16_t mix_tree(const tree_case *c, int64_t node, size_t index, bool *there)
{
    for (int i = 0; i < c->leaf_count; i++)
        if (c->nodes[i] == node) {
            *there = true;
            return (uint16_t)element(c, i, index);
        }
    *there = false;
    if (node >= LANES) return 0;
    bool has_left, has_right;
    uint16_t left = mix_tree(c, 2 * node, index, &has_left);
    uint16_t right = mix_tree(c, 2 * node + 1, index, &has_right);
    *there = has_left || has_right;
    if (!has_left || !has_right) return has_left ? left : right;
    return (uint16_t)(left * 31 + (right ^ 0x55));
}

static void user_functions(void)
{
    for (int leaves = 1; leaves <= MAX_LEAVES; leaves++) {
        size_t calls = 0;
        tree_case c = {.count = leaves % 4 ? 77 : 3001};
        c.reducer = (tdm__reducer){TDM_DTYPE_U16, TDM_REDUCE_USER, mix, &calls};
        draw_nodes(&c, leaves);
        uint16_t *data[MAX_LEAVES], *expected = malloc(c.count * 2), *out = malloc(c.count * 2);
        for (int i = 0; i < leaves; i++) {
            c.sources[i] = data[i] = malloc(c.count * 2);
            for (size_t k = 0; k < c.count; k++) data[i][k] = (uint16_t)draw();
        }
        bool there;
        for (size_t k = 0; k < c.count; k++) expected[k] = mix_tree(&c, 1, k, &there);
        tdm__tree_plan plan;
        CHECK_INT(tdm__tree_plan_init(&plan, c.nodes, leaves, 1, NULL), TDM_OK);
        void *to[] = {out, data[leaves - 1]};
        tdm__tree_run(&plan, &c.reducer, c.sources, to, 2, c.count, leaves % 2);
        CHECK(memcmp(out, expected, c.count * 2) == 0);
        CHECK(memcmp(data[leaves - 1], expected, c.count * 2) == 0);
        CHECK_INT(calls, c.count * (size_t)(leaves - 1));
        for (int i = 0; i < leaves; i++) free(data[i]);
        free(expected);
        free(out);
        tdm__tree_plan_release(&plan);
    }
}

static void user_pairs(void)
{
    enum { COUNT = 3000 };
    static uint16_t a[COUNT], b[COUNT], c[COUNT], expected[COUNT];
    size_t calls = 0;
    const tdm__reducer r = {TDM_DTYPE_U16, TDM_REDUCE_USER, mix, &calls};
    for (int place = 0; place < 3; place++) {
        for (int i = 0; i < COUNT; i++) {
            a[i] = (uint16_t)draw();
            b[i] = (uint16_t)draw();
            expected[i] = (uint16_t)(a[i] * 31 + (b[i] ^ 0x55));
        }
        uint16_t *out = place == 0 ? a : place == 1 ? b : c;
        tdm__reduce_pair(&r, out, a, b, COUNT);
        CHECK(memcmp(out, expected, sizeof(expected)) == 0);
    }
    CHECK_INT(calls, 3 * COUNT);
}

/* The caller's settings of the floating-point unit have no effect on sums and are preserved: numbers below
 * the normal range are zero in sums, and unchanged in a user-defined function. */
static void settings(void)
{
    float a[19], b[19], expected[19], out[19];
    const tdm__reducer r = {.dtype = TDM_DTYPE_F32, .reduce = TDM_REDUCE_SUM};
    for (int i = 0; i < 19; i++) {
        a[i] = i % 2 ? 1e-40f * (float)i : 1.0f;
        b[i] = i % 2 ? 3e-41f : 1e-9f;
    }
    tdm__reduce_pair(&r, expected, a, b, 19);
    CHECK(expected[1] == 0 && expected[0] == 1.0f);
    tdm_kernel_mode before = tdm_kernel_enter(1);
    fesetround(FE_UPWARD);
    tdm__reduce_pair(&r, out, a, b, 19);
    CHECK_INT(fegetround(), FE_UPWARD);
    volatile float tiny = 1e-40f;
    CHECK(tiny * 2 == 0); /* in this thread, numbers below the normal range are zero again */
    fesetround(FE_TONEAREST);
    tdm_kernel_leave(&before);
    CHECK(memcmp(out, expected, sizeof(out)) == 0);
}

/* Numbers of all magnitudes, many of them near the edge of the normal range, of both signs; none infinite. */
static void draw_edges(float *out, int count)
{
    for (int i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)draw();
        if (i % 4) bits = (bits & 0x807fffff) | (uint32_t)draw_below(3) << 23;
        if ((bits & 0x7f800000) == 0x7f800000) bits &= 0xbfffffff;
        memcpy(&out[i], &bits, sizeof(bits));
    }
}

typedef struct adding {
    const float *a, *b;
    float *pair, *tree;
    const tdm__tree_plan *plan;
} adding;

static void *add_elsewhere(void *user)
{
    enum { COUNT = 4099 };
    const adding *t = user;
    const tdm__reducer r = {.dtype = TDM_DTYPE_F32, .reduce = TDM_REDUCE_SUM};
    tdm__reduce_pair(&r, t->pair, t->a, t->b, COUNT);
    const void *sources[] = {t->a, t->b, t->a};
    tdm__tree_run(t->plan, &r, sources, (void *const[]){t->tree}, 1, COUNT, 0);
    return NULL;
}

/* Sums have the same bits as those of the kernels of training, also in a thread with default settings. */
static void sums_are_those_of_training(void)
{
    enum { COUNT = 4099 };
    static float a[COUNT], b[COUNT], pair[COUNT], tree[COUNT], expected[COUNT];
    const int64_t nodes[] = {4, 5, 6};
    tdm__tree_plan plan;
    CHECK_INT(tdm__tree_plan_init(&plan, nodes, 3, 1, NULL), TDM_OK);
    draw_edges(a, COUNT);
    draw_edges(b, COUNT);
    adding t = {.a = a, .b = b, .pair = pair, .tree = tree, .plan = &plan};
    pthread_t thread;
    CHECK_INT(pthread_create(&thread, NULL, add_elsewhere, &t), 0);
    pthread_join(thread, NULL);
    tdm_kernel_mode before = tdm_kernel_enter(1);
    memcpy(expected, a, sizeof(expected));
    tdm_kernel_add_into(expected, b, COUNT);
    CHECK(memcmp(pair, expected, sizeof(expected)) == 0);
    tdm_kernel_add_into(expected, a, COUNT);
    CHECK(memcmp(tree, expected, sizeof(expected)) == 0);
    memset(pair, 1, sizeof(pair));
    memset(tree, 1, sizeof(tree));
    add_elsewhere(&t); /* and in one that flushes already */
    CHECK(memcmp(tree, expected, sizeof(expected)) == 0);
    tdm_kernel_leave(&before);
    tdm__tree_plan_release(&plan);
}

static void keep_tiny(void *into, const void *from, size_t count, void *user)
{
    (void)user;
    volatile float *x = into;
    for (size_t i = 0; i < count; i++) x[i] += ((const float *)from)[i];
}

/* The other types of floats flush as well, except f16, whose smallest numbers are normal in f32, in which
 * they are added; a user-defined function runs with the default settings, also in a thread that flushes. */
static void other_types_flush(void)
{
    const double small = 1e-310;
    double f64[2] = {small, -small}, zero64[2] = {0, -0.0}, out64[2];
    tdm__reducer r = {.dtype = TDM_DTYPE_F64, .reduce = TDM_REDUCE_SUM};
    tdm__reduce_pair(&r, out64, f64, zero64, 2);
    CHECK(memcmp(out64, zero64, sizeof(out64)) == 0);
    const uint16_t bf16[2] = {0x0040, 0x8001}, none[2] = {0, 0x8000};
    uint16_t out16[2];
    r.dtype = TDM_DTYPE_BF16;
    tdm__reduce_pair(&r, out16, bf16, none, 2);
    CHECK(memcmp(out16, none, sizeof(out16)) == 0);
    r.dtype = TDM_DTYPE_F16;
    tdm__reduce_pair(&r, out16, bf16, none, 2);
    CHECK(memcmp(out16, bf16, sizeof(out16)) == 0);
    tdm_kernel_mode before = tdm_kernel_enter(1);
    const uint32_t a[1] = {1}, b[1] = {2};
    uint32_t out[1];
    r = (tdm__reducer){.dtype = TDM_DTYPE_F32, .reduce = TDM_REDUCE_USER, .user_reduce = keep_tiny};
    tdm__reduce_pair(&r, out, a, b, 1);
    CHECK_INT(out[0], 3);
    tdm_kernel_leave(&before);
}

/* ---- copies ------------------------------------------------------------------------------------ */

static void copies(void)
{
    static const size_t sizes[] = {0, 1, 63, 64, 4097, 65535, 65536, 65537, 200001};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        for (int level = 0; level < LEVELS; level++)
            for (int stream = 0; stream < 2 && loops_at(level); stream++) {
                buffer from = buffer_make(sizes[i], draw_below(32));
                buffer to = buffer_make(sizes[i], draw_below(32));
                for (size_t k = 0; k < sizes[i]; k++) from.data[k] = (uint8_t)draw();
                tdm__copy_by(loops_at(level), to.data, from.data, sizes[i], stream);
                CHECK(memcmp(to.data, from.data, sizes[i]) == 0 && guards_whole(&to));
                tdm__copy(to.data, to.data, sizes[i], stream);
                CHECK(memcmp(to.data, from.data, sizes[i]) == 0 && guards_whole(&to));
                free(from.memory);
                free(to.memory);
            }
}

/* ---- what is refused --------------------------------------------------------------------------- */

static void bad_plans(void)
{
    static const struct {
        int64_t nodes[3];
        int count;
        int64_t top;
    } cases[] = {
        {{2, 2}, 2, 1},      {{3, 2}, 2, 1},  {{2, 4}, 2, 1}, {{4, 2}, 2, 1}, {{4, 5, 2}, 3, 1},
        {{0, 1}, 2, 1},      {{-4, 3}, 2, 1}, {{4}, 1, 3},    {{1}, 1, 2},    {{8, 9}, 2, 5},
        {{8, 11, 10}, 3, 1}, {{1}, 1, 0},     {{1}, -1, 1},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        tdm__tree_plan plan = {.leaf_count = -7};
        tdm_error err = {.status = TDM_OK};
        CHECK_INT(tdm__tree_plan_init(&plan, cases[i].nodes, cases[i].count, cases[i].top, &err),
                  TDM_ERR_INVALID);
        CHECK_INT(plan.leaf_count, -7);
        CHECK(strlen(err.message) > 10);
    }
    const int64_t deep[] = {INT64_C(1) << 62, (INT64_C(1) << 62) + 1, INT64_MAX};
    tdm__tree_plan plan;
    CHECK_INT(tdm__tree_plan_init(&plan, deep, 3, 1, NULL), TDM_OK);
    CHECK_INT(plan.pairs[0].right, 1);
    CHECK_INT(plan.pairs[1].right, 2);
    tdm__tree_plan_release(&plan);
    CHECK_INT(tdm__tree_plan_init(&plan, NULL, 0, 1, NULL), TDM_OK);
    char untouched = 'x';
    const tdm__reducer r = {.dtype = TDM_DTYPE_F32};
    tdm__tree_run(&plan, &r, NULL, (void *[]){&untouched}, 1, 1, false);
    CHECK_INT(untouched, 'x');
    tdm__tree_plan_release(&plan);
}

/* The deepest case: partial results wait on every level, and slots are small. */
static void deepest_plan(void)
{
    enum { DEEP = 62 };
    int64_t nodes[DEEP];
    int32_t values[DEEP][300];
    const void *sources[DEEP];
    /* From the left: a leaf on every level that is a left child, so that the sum nests to the right. */
    for (int i = 0; i < DEEP - 1; i++) nodes[i] = ((INT64_C(1) << (i + 1)) - 1) * 2;
    nodes[DEEP - 1] = (INT64_C(1) << DEEP) - 1;
    for (int i = 0; i < DEEP; i++) {
        sources[i] = values[i];
        for (int k = 0; k < 300; k++) values[i][k] = i * 1000 + k;
    }
    tdm__tree_plan plan;
    tdm_error err;
    CHECK_INT(tdm__tree_plan_init(&plan, nodes, DEEP, 1, &err), TDM_OK);
    CHECK_INT(plan.pairs[0].left, DEEP - 2);
    int32_t out[300];
    const tdm__reducer r = {.dtype = TDM_DTYPE_I32, .reduce = TDM_REDUCE_SUM};
    tdm__tree_run(&plan, &r, sources, (void *[]){out}, 1, 300, false);
    for (int k = 0; k < 300; k++) CHECK_INT(out[k], DEEP * (DEEP - 1) / 2 * 1000 + DEEP * k);
    tdm__tree_plan_release(&plan);
}

static void bad_reducers(void)
{
    tdm_error err;
    tdm__reducer r = {.dtype = TDM_DTYPE_U8, .reduce = TDM_REDUCE_SUM};
    CHECK_INT(tdm__reducer_check(&r, &err), TDM_ERR_UNSUPPORTED);
    CHECK_HAS(err.message, "sum of u8 is not supported");
    CHECK_HAS(err.message, "bf16");
    r = (tdm__reducer){.dtype = TDM_DTYPE_U8, .reduce = TDM_REDUCE_USER};
    CHECK_INT(tdm__reducer_check(&r, &err), TDM_ERR_INVALID);
    r.user_reduce = mix;
    CHECK_INT(tdm__reducer_check(&r, &err), TDM_OK);
    r = (tdm__reducer){.dtype = TDM_DTYPE_F32, .reduce = (tdm_reduce)9};
    CHECK_INT(tdm__reducer_check(&r, &err), TDM_ERR_UNSUPPORTED);
    r = (tdm__reducer){.dtype = TDM_DTYPE_NONE, .reduce = TDM_REDUCE_MAX};
    CHECK_INT(tdm__reducer_check(&r, &err), TDM_ERR_UNSUPPORTED);
    for (int type = 0; type < TYPES; type++)
        for (int reduce = TDM_REDUCE_SUM; reduce <= TDM_REDUCE_MAX; reduce++) {
            r = (tdm__reducer){.dtype = types[type], .reduce = (tdm_reduce)reduce};
            CHECK_INT(tdm__reducer_check(&r, &err), TDM_OK);
        }
}

static const check_test tests[] = {
    CHECK_TEST(all_trees),
    CHECK_TEST(large_trees),
    CHECK_TEST(every_f16),
    CHECK_TEST(every_bf16),
    CHECK_TEST(pairs_in_place),
    CHECK_TEST(user_functions),
    CHECK_TEST(user_pairs),
    CHECK_TEST(settings),
    CHECK_TEST(sums_are_those_of_training),
    CHECK_TEST(other_types_flush),
    CHECK_TEST(copies),
    CHECK_TEST(bad_plans),
    CHECK_TEST(deepest_plan),
    CHECK_TEST(bad_reducers),
};

CHECK_MAIN(tests)
