/*
 * attention.c: attention and its gradient in blocks of BLOCK queries by BLOCK keys.
 *
 * Forward processes the keys block by block and keeps, for each query, the maximum score so far and
 * the sum of exponentials relative to it; when the maximum grows, the sums so far are scaled down
 * (online softmax). Backward recomputes the weights from lse. So the only matrix of (query, key) is
 * one block, and scratch grows with T, not with its square. In the causal case blocks above the
 * diagonal are skipped, and products in blocks on the diagonal have only the terms below it.
 *
 * Every sum over keys, queries or numbers of a head is one chain of fused multiply-adds in their
 * order, continued from block to block; sums of exponentials and dy . y have a partial sum for each
 * logical position (vec.h). So the bits are the same at every level.
 *
 * Each head of each row of the batch is computed by one thread in one order, from numbers that it
 * first copies into its own blocks, padded with zeros to whole vectors and tiles: the bits of the
 * result do not depend on the number of threads. ref/attention.c defines what is computed.
 */
#include "base/base.h"
#include "tensor/kernels/cpu/vec/math.h"
#include "tensor/kernels/cpu/vec/philox.h"
#include "tensor/kernels/cpu/vec/tile.h"

enum { BLOCK = 64 };

static int64_t min_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int thread_index(void)
{
    return tdm_kernel_thread();
}

static size_t thread_count(void)
{
    return (size_t)tdm__kernel_threads();
}

/* ---- one head of one row of the batch --------------------------------------------------------- */

typedef struct head {
    int64_t T, C, D, Dp;    /* Dp: D rounded up to whole vectors */
    int64_t length;         /* number of keys that are used */
    int64_t b, h, index;    /* index: b times heads plus h */
    const float *q, *k, *v; /* rows of 3C numbers, of which D belong to this head */
    bool causal;
    float scale;
    float keep_scale;   /* 0: no dropout */
    int32_t drop_below; /* a word's upper 24 bits below this: dropped */
    tdm_rng rng;
} head;

/* The sizes only: all that prepare() knows. */
static head sizes_of(const tdm_kernel_call *call, const tdm_tensor *qkv)
{
    int64_t T = qkv->shape.dim[1], C = qkv->shape.dim[2] / 3, D = C / call->attrs.heads;
    return (head){.T = T,
                  .C = C,
                  .D = D,
                  .Dp = tdm_round_up(D, TDM__WIDTH),
                  .causal = call->attrs.causal,
                  .scale = (float)(1 / sqrt((double)D))};
}

static head head_of(const tdm_kernel_call *call, const tdm_tensor *qkv, const tdm_tensor *lengths,
                    const tdm_step_key *key, int64_t index)
{
    head a = sizes_of(call, qkv);
    double p = (double)call->attrs.p;
    a.index = index;
    a.b = index / call->attrs.heads;
    a.h = index % call->attrs.heads;
    a.q = (const float *)qkv->data + a.b * a.T * 3 * a.C + a.h * a.D;
    a.k = a.q + a.C;
    a.v = a.k + a.C;
    int64_t length = lengths->dtype ? ((const int32_t *)lengths->data)[a.b] : a.T;
    a.length = length < 0 ? 0 : min_of(length, a.T);
    if (p <= 0) return a;
    a.keep_scale = (float)(1 / (1 - p));
    a.drop_below = (int32_t)ceil(p * 0x1p24);
    a.rng = tdm_rng_at((tdm_rng_address){.seed = key->seed,
                                         .stream = TDM_RNG_STREAM_DROPOUT,
                                         .sub_stream = call->attrs.sub_stream,
                                         .step = key->step,
                                         .sample = key->first_row + (uint64_t)a.b});
    return a;
}

/* Keys below this are used for query t: at least one, unless the length is 0. */
static int64_t key_limit(const head *a, int64_t t)
{
    return a->causal ? min_of(t + 1, a->length) : a->length;
}

/* ---- copies into blocks ----------------------------------------------------------------------- */

/* A head's part of a row is a few cache lines, and the next row is far away: the CPU's prefetcher
 * does not predict that. So these lines are prefetched some rows before they are used. */
enum { ROWS_AHEAD = 12, CACHE_LINE = 64 / sizeof(float) };

static inline void fetch_row(const float *row, int64_t numbers)
{
    for (int64_t d = 0; d < numbers; d += CACHE_LINE) __builtin_prefetch(row + d);
}

/* `count` rows of D numbers, times `scale`, as rows of Dp; then zero rows up to `padded`. */
static void pack_rows(const float *from, int64_t from_row, int64_t count, int64_t padded,
                      const head *a, float scale, float *to)
{
    for (int64_t r = 0; r < count; r++, from += from_row, to += a->Dp) {
        if (r + ROWS_AHEAD < count) fetch_row(from + ROWS_AHEAD * from_row, a->D);
        for (int64_t d = 0; d < a->D; d += TDM__WIDTH)
            vf_store(to + d, vf_load_up_to(from + d, a->D - d, 0) * scale);
    }
    memset(to, 0, (size_t)((padded - count) * a->Dp) * sizeof(float));
}

static inline void transpose_4(const float *from, int64_t from_row, float *to)
{
    vf4 r0 = *(const vf4 *)from, r1 = *(const vf4 *)(from + from_row);
    vf4 r2 = *(const vf4 *)(from + 2 * from_row), r3 = *(const vf4 *)(from + 3 * from_row);
    vf4 a = __builtin_shufflevector(r0, r1, 0, 4, 1, 5),
        b = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
    vf4 c = __builtin_shufflevector(r0, r1, 2, 6, 3, 7),
        d = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
    *(vf4 *)to = __builtin_shufflevector(a, b, 0, 1, 4, 5);
    *(vf4 *)(to + BLOCK) = __builtin_shufflevector(a, b, 2, 3, 6, 7);
    *(vf4 *)(to + 2 * BLOCK) = __builtin_shufflevector(c, d, 0, 1, 4, 5);
    *(vf4 *)(to + 3 * BLOCK) = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}

/* `count` rows of D numbers as D rows of BLOCK, with zeros beyond `count`. */
static void pack_transposed(const float *from, int64_t from_row, int64_t count, const head *a,
                            float *to)
{
    int64_t whole_rows = count / 4 * 4, whole_columns = a->D / 4 * 4;
    if (count < BLOCK) memset(to, 0, (size_t)(a->D * BLOCK) * sizeof(float));
    for (int64_t r = 0; r < whole_rows; r += 4) {
        for (int64_t i = r; i < r + 4 && i + ROWS_AHEAD < count; i++)
            fetch_row(from + (i + ROWS_AHEAD) * from_row, a->D);
        for (int64_t d = 0; d < whole_columns; d += 4)
            transpose_4(from + r * from_row + d, from_row, to + d * BLOCK + r);
    }
    for (int64_t r = 0; r < count; r++)
        for (int64_t d = r < whole_rows ? whole_columns : 0; d < a->D; d++)
            to[d * BLOCK + r] = from[r * from_row + d];
}

/* Rows of Dp back to rows of D, times `scale`. */
static void unpack_rows(const float *from, int64_t count, const head *a, float scale, float *to,
                        int64_t to_row)
{
    for (int64_t r = 0; r < count; r++, from += a->Dp, to += to_row) {
        if (r + ROWS_AHEAD < count) fetch_row(to + ROWS_AHEAD * to_row, a->D);
        for (int64_t d = 0; d < a->D; d += TDM__WIDTH)
            vf_store_up_to(to + d, a->D - d, vf_load(from + d) * scale);
    }
}

static void zero_rows(int64_t count, const head *a, float *to, int64_t to_row)
{
    for (int64_t r = 0; r < count; r++) memset(to + r * to_row, 0, (size_t)a->D * sizeof(float));
}

/* ---- blocks of weights ------------------------------------------------------------------------ */

/* Queries t0 .. t0 + rows against keys k0 .. k0 + keys. */
typedef struct pair {
    int64_t t0, rows, k0, keys;
    bool diagonal;
} pair;

static pair pair_of(const head *a, int64_t t0, int64_t k0)
{
    return (pair){.t0 = t0,
                  .rows = min_of(BLOCK, a->T - t0),
                  .k0 = k0,
                  .keys = min_of(BLOCK, a->length - k0),
                  .diagonal = a->causal && t0 == k0};
}

/* The number of columns of row r of the block that are used: at least one. */
static int64_t pair_limit(const pair *p, int64_t r)
{
    return p->diagonal ? min_of(r + 1, p->keys) : p->keys;
}

/* s = left right, [rows, D] x [D, keys]; elements above the diagonal are undefined. */
static void pair_scores(const head *a, const pair *p, const float *left, const float *right,
                        float *s)
{
    tile_product(false, TILE_FULL, (tile_operands){left, a->Dp, 1, right, BLOCK, s, BLOCK},
                 (tile_span){.rows = tdm_round_up(p->rows, TILE_ROWS),
                             .vecs = tdm_round_up(p->keys, TILE_COLS) / TDM__WIDTH,
                             .depth = a->D,
                             .lower_columns = p->diagonal});
}

/* c (+)= w right, [rows, keys] x [keys, Dp]. */
static void pair_mix(const head *a, const pair *p, bool add, const float *w, const float *right,
                     float *c)
{
    tile_operands o = {w, BLOCK, 1, right, a->Dp, c, a->Dp};
    tile_span s = {
        .rows = tdm_round_up(p->rows, TILE_ROWS), .vecs = a->Dp / TDM__WIDTH, .depth = p->keys};
    if (add && p->diagonal)
        tile_product(true, TILE_LOWER, o, s);
    else if (add)
        tile_product(true, TILE_FULL, o, s);
    else if (p->diagonal)
        tile_product(false, TILE_LOWER, o, s);
    else
        tile_product(false, TILE_FULL, o, s);
}

/* c (+)= w^T right, [keys, rows] x [rows, Dp]. A block on the diagonal is the first one of its
 * keys, and nothing is added to it. */
static void pair_mix_back(const head *a, const pair *p, bool add, const float *w,
                          const float *right, float *c)
{
    tile_operands o = {w, 1, BLOCK, right, a->Dp, c, a->Dp};
    tile_span s = {
        .rows = tdm_round_up(p->keys, TILE_ROWS), .vecs = a->Dp / TDM__WIDTH, .depth = p->rows};
    if (add)
        tile_product(true, TILE_FULL, o, s);
    else if (p->diagonal)
        tile_product(false, TILE_UPPER, o, s);
    else
        tile_product(false, TILE_FULL, o, s);
}

/* The mask of the vector at column `at` of a row of which only the first `limit` columns are
 * used. */
static inline vi columns_below(int at, int64_t limit)
{
    vi column;
    for (int i = 0; i < TDM__WIDTH; i++) column[i] = at + i;
    return (vi)(column < (int32_t)limit);
}

/* e^x for x <= 0; 0 instead of a subnormal number, with which products are slow. */
static inline vf exp_of_negative(vf x)
{
    return vf_pick_less(x, vf_set(-87.0f), vf_set(0), vexpf(x));
}

/* The factors of one query's weights in this block: 0 or keep_scale. They are given by word (h T +
 * t) T' + key of the sequence, T' being T rounded up to a multiple of 32: see ref/attention.c. */
static void draw_mask(const head *a, int64_t t, int64_t k0, int64_t keys, float mask[BLOCK])
{
    uint64_t first = (uint64_t)((a->h * a->T + t) * tdm_round_up(a->T, 32) + k0);
    for (int64_t j = 0; j < keys; j += TDM__PHILOX_GROUP) {
        vi words[2];
        tdm__philox_group(&a->rng, (uint32_t)((first + (uint64_t)j) / TDM__PHILOX_GROUP), words);
        for (int half = 0; half < 2; half++) {
            vi dropped = (vi)(((words[half] >> 8) & 0xffffff) < a->drop_below);
            vf_store(mask + j + half * TDM__WIDTH,
                     vf_select(dropped, (vf){0}, vf_set(a->keep_scale)));
        }
    }
}

/* Divides scratch, if there is any yet, into parts of `sizes` floats; returns the total size in
 * bytes. */
static size_t scratch_divide(float *base, const int64_t *sizes, float **const *parts, int count)
{
    int64_t at = 0;
    for (int i = 0; i < count; i++) {
        if (base) *parts[i] = base + at;
        at += tdm_round_up(sizes[i], 16);
    }
    return (size_t)at * sizeof(float);
}

/* ---- forward ---------------------------------------------------------------------------------- */

/* The buffers of a thread. */
typedef struct forward_scratch {
    float *keys;             /* all keys, transposed: blocks of [D, BLOCK] */
    float *values;           /* all values: rows of Dp */
    float *q, *o;            /* [BLOCK, Dp]: queries, and the results so far */
    float *w;                /* [BLOCK, BLOCK]: scores, then weights */
    float *sum;              /* [BLOCK, PLACES]: sums of exponentials, by logical position */
    float *largest, *shrink; /* [BLOCK] */
} forward_scratch;

static size_t carve_forward(const head *a, float *base, forward_scratch *s)
{
    int64_t padded = tdm_round_up(a->T, BLOCK);
    const int64_t sizes[] = {padded * a->D, padded * a->Dp,      BLOCK * a->Dp, BLOCK * a->Dp,
                             BLOCK * BLOCK, BLOCK * TDM__PLACES, BLOCK,         BLOCK};
    float **const parts[] = {&s->keys, &s->values, &s->q,       &s->o,
                             &s->w,    &s->sum,    &s->largest, &s->shrink};
    return scratch_divide(base, sizes, parts, 8);
}

/* The new maximum score of each query, and the factor of older sums. */
static void raise_largest(const pair *p, forward_scratch *s, bool first)
{
    float before[BLOCK] = {0};
    for (int64_t r = 0; r < p->rows; r++) {
        const float *w = s->w + r * BLOCK;
        int64_t limit = pair_limit(p, r);
        vf_places max;
        for (int k = 0; k < TDM__PARTS; k++)
            max.part[k] = vf_set(first ? -INFINITY : s->largest[r]);
        for (int i = 0; i < limit; i += TDM__PLACES)
            for (int k = 0; k < TDM__PARTS; k++) {
                int at = i + k * TDM__WIDTH;
                vf x = vf_load(w + at);
                if (at + TDM__WIDTH > limit)
                    x = vf_select(columns_below(at, limit), x, vf_set(-INFINITY));
                max.part[k] = vf_max(max.part[k], x);
            }
        before[r] = first ? 0 : s->largest[r];
        s->largest[r] = vf_places_largest(&max);
    }
    for (int64_t r = 0; r < p->rows && !first; r += TDM__WIDTH)
        vf_store(s->shrink + r, exp_of_negative(vf_load(before + r) - vf_load(s->largest + r)));
}

/* Converts the scores of one query to weights, before the division by their sum; returns that, by
 * position. */
static inline vf_places weigh_row(const head *a, const float *mask, float largest, int64_t limit,
                                  float *w)
{
    vf_places sum = {{{0}}};
    for (int i = 0; i < BLOCK; i += TDM__PLACES)
        for (int k = 0; k < TDM__PARTS; k++) {
            int at = i + k * TDM__WIDTH;
            vf x = {0};
            if (at < limit) {
                x = exp_of_negative(vf_load(w + at) - largest);
                if (at + TDM__WIDTH > limit) x = vf_select(columns_below(at, limit), x, (vf){0});
                sum.part[k] += x; /* also where x is 0: a sum is never -0 */
                if (a->keep_scale > 0) x *= vf_load(mask + at);
            }
            vf_store(w + at, x);
        }
    return sum;
}

static void row_weigh(const head *a, const pair *p, forward_scratch *s, bool first)
{
    float mask[BLOCK] = {0};
    raise_largest(p, s, first);
    for (int64_t r = 0; r < p->rows; r++) {
        int64_t limit = pair_limit(p, r);
        if (a->keep_scale > 0) draw_mask(a, p->t0 + r, p->k0, limit, mask);
        float *w = s->w + r * BLOCK;
        vf_places sum = limit == BLOCK ? weigh_row(a, mask, s->largest[r], BLOCK, w)
                                       : weigh_row(a, mask, s->largest[r], limit, w);
        float *before = s->sum + r * TDM__PLACES, *o = s->o + r * a->Dp;
        vf shrink = first ? (vf){0} : vf_set(s->shrink[r]);
        for (int k = 0; k < TDM__PARTS; k++) {
            float *at = before + k * TDM__WIDTH;
            vf_store(at, first ? sum.part[k] : vf_fma(vf_load(at), shrink, sum.part[k]));
        }
        for (int64_t d = 0; d < a->Dp && !first; d += TDM__WIDTH)
            vf_store(o + d, vf_load(o + d) * shrink);
    }
}

static void finish_queries(const head *a, int64_t t0, int64_t rows, const forward_scratch *s,
                           float *y, float *lse)
{
    for (int64_t r = 0; r < rows; r++) {
        vf_places places;
        memcpy(&places, s->sum + r * TDM__PLACES, sizeof(places));
        float sum = vf_places_sum(&places);
        unpack_rows(s->o + r * a->Dp, 1, a, 1 / sum, y + (t0 + r) * a->C, a->C);
        lse[t0 + r] = s->largest[r] + (float)tdm_math_log((double)sum);
    }
}

static void forward_head(const head *a, forward_scratch *s, float *y, float *lse)
{
    int64_t row = 3 * a->C;
    if (a->length == 0) {
        zero_rows(a->T, a, y, a->C);
        memset(lse, 0, (size_t)a->T * sizeof(float));
        return;
    }
    for (int64_t k0 = 0; k0 < a->length; k0 += BLOCK)
        pack_transposed(a->k + k0 * row, row, min_of(BLOCK, a->length - k0), a,
                        s->keys + k0 * a->D);
    pack_rows(a->v, row, a->length, a->length, a, 1, s->values);
    for (int64_t t0 = 0; t0 < a->T; t0 += BLOCK) {
        int64_t rows = min_of(BLOCK, a->T - t0), last = key_limit(a, t0 + rows - 1);
        pack_rows(a->q + t0 * row, row, rows, tdm_round_up(rows, TILE_ROWS), a, a->scale, s->q);
        for (int64_t k0 = 0; k0 < last; k0 += BLOCK) {
            pair p = pair_of(a, t0, k0);
            pair_scores(a, &p, s->q, s->keys + k0 * a->D, s->w);
            row_weigh(a, &p, s, k0 == 0);
            pair_mix(a, &p, k0 > 0, s->w, s->values + k0 * a->Dp, s->o);
        }
        finish_queries(a, t0, rows, s, y, lse);
    }
}

typedef struct run_args {
    const tdm_kernel_call *call;
    const tdm_step_key *key;
    size_t thread_bytes; /* of scratch */
} run_args;

static void run_forward(const void *args, int64_t begin, int64_t end)
{
    const run_args *r = args;
    float *base = (float *)((char *)r->call->scratch + (size_t)thread_index() * r->thread_bytes);
    for (int64_t i = begin; i < end; i++) {
        head a = head_of(r->call, &r->call->in[0], &r->call->in[1], r->key, i);
        forward_scratch s = {0};
        carve_forward(&a, base, &s);
        forward_head(&a, &s, (float *)r->call->out[0].data + a.b * a.T * a.C + a.h * a.D,
                     (float *)r->call->out[1].data + a.index * a.T);
    }
}

/* ---- backward --------------------------------------------------------------------------------- */

typedef struct backward_scratch {
    float *q, *dy, *dq;       /* all queries (scaled) and their gradients: rows of Dp */
    float *shared;            /* [T]: dy . y of each query */
    float *keys;              /* a block of them, as rows of Dp */
    float *keys_t, *values_t; /* [D, BLOCK]: transposed */
    float *dk, *dv;           /* [BLOCK, Dp] */
    float *w, *dw;            /* [BLOCK, BLOCK]: scores, then weights; their gradients */
} backward_scratch;

static size_t carve_backward(const head *a, float *base, backward_scratch *s)
{
    int64_t padded = tdm_round_up(a->T, BLOCK) * a->Dp;
    const int64_t sizes[] = {padded,        padded,        padded,       a->T,
                             BLOCK * a->Dp, BLOCK * a->D,  BLOCK * a->D, BLOCK * a->Dp,
                             BLOCK * a->Dp, BLOCK * BLOCK, BLOCK * BLOCK};
    float **const parts[] = {&s->q,        &s->dy, &s->dq, &s->shared, &s->keys, &s->keys_t,
                             &s->values_t, &s->dk, &s->dv, &s->w,      &s->dw};
    return scratch_divide(base, sizes, parts, 11);
}

/* From scores w and products dw = dy . v, computes the weights and the gradients of the scores:
 * with p = e^(score - lse) and m the factors of dropout,  w = p m,  dw = p (dw m - shared).
 * Elements beyond the limit become +0, whatever the tiles left there. */
static inline void weigh_row_back(const head *a, const float *mask, float lse, float shared,
                                  int64_t limit, float *w, float *dw)
{
    for (int at = 0; at < BLOCK; at += TDM__WIDTH) {
        vf p = {0}, ds = {0};
        if (at < limit) {
            vf d = vf_load(dw + at);
            p = exp_of_negative(vf_load(w + at) - lse);
            if (a->keep_scale > 0) {
                vf m = vf_load(mask + at);
                ds = p * vf_fma(d, m, vf_set(-shared));
                p *= m;
            } else {
                ds = p * (d - shared);
            }
            if (at + TDM__WIDTH > limit) {
                vi below = columns_below(at, limit);
                p = vf_select(below, p, (vf){0});
                ds = vf_select(below, ds, (vf){0});
            }
        }
        vf_store(w + at, p);
        vf_store(dw + at, ds);
    }
}

static void weigh_back(const head *a, const pair *p, const float *lse, backward_scratch *s)
{
    float mask[BLOCK] = {0};
    for (int64_t r = 0; r < p->rows; r++) {
        int64_t limit = pair_limit(p, r), t = p->t0 + r;
        float *w = s->w + r * BLOCK, *dw = s->dw + r * BLOCK;
        if (a->keep_scale > 0) draw_mask(a, t, p->k0, limit, mask);
        if (limit == BLOCK)
            weigh_row_back(a, mask, lse[t], s->shared[t], BLOCK, w, dw);
        else
            weigh_row_back(a, mask, lse[t], s->shared[t], limit, w, dw);
    }
}

/* All queries against one block of keys. */
static void backward_keys(const head *a, int64_t k0, const float *lse, backward_scratch *s)
{
    int64_t row = 3 * a->C, keys = min_of(BLOCK, a->length - k0), first = a->causal ? k0 : 0;
    pack_rows(a->k + k0 * row, row, keys, keys, a, 1, s->keys);
    pack_transposed(a->k + k0 * row, row, keys, a, s->keys_t);
    pack_transposed(a->v + k0 * row, row, keys, a, s->values_t);
    for (int64_t t0 = first; t0 < a->T; t0 += BLOCK) {
        pair p = pair_of(a, t0, k0);
        const float *q = s->q + t0 * a->Dp, *dy = s->dy + t0 * a->Dp;
        pair_scores(a, &p, q, s->keys_t, s->w);
        pair_scores(a, &p, dy, s->values_t, s->dw);
        weigh_back(a, &p, lse, s);
        pair_mix_back(a, &p, t0 > first, s->w, dy, s->dv);
        pair_mix_back(a, &p, t0 > first, s->dw, q, s->dk);
        pair_mix(a, &p, k0 > 0, s->dw, s->keys, s->dq + t0 * a->Dp);
    }
}

static void share_products(const head *a, const float *dy, const float *y, float *shared)
{
    for (int64_t t = 0; t < a->T; t++, dy += a->C, y += a->C) {
        vf_places sum = {{{0}}};
        if (t + ROWS_AHEAD < a->T) fetch_row(y + ROWS_AHEAD * a->C, a->D);
        for (int64_t i = 0; i < a->D; i += TDM__PLACES)
            for (int k = 0; k < TDM__PARTS; k++) {
                int64_t d = i + k * TDM__WIDTH, left = a->D - d;
                sum.part[k] = vf_fma(vf_load_up_to(dy + d, left, 0), vf_load_up_to(y + d, left, 0),
                                     sum.part[k]);
            }
        shared[t] = vf_places_sum(&sum);
    }
}

/* dy and y: rows of C numbers; d_qkv: rows of 3C, as q. */
static void backward_head(const head *a, backward_scratch *s, const float *dy, const float *y,
                          const float *lse, float *d_qkv)
{
    int64_t row = 3 * a->C, padded = tdm_round_up(a->T, TILE_ROWS);
    float *d_keys = d_qkv + a->C, *d_values = d_keys + a->C;
    pack_rows(a->q, row, a->T, padded, a, a->scale, s->q);
    pack_rows(dy, a->C, a->T, padded, a, 1, s->dy);
    share_products(a, dy, y, s->shared);
    for (int64_t k0 = 0; k0 < a->length; k0 += BLOCK) {
        int64_t keys = min_of(BLOCK, a->length - k0);
        backward_keys(a, k0, lse, s);
        unpack_rows(s->dk, keys, a, 1, d_keys + k0 * row, row);
        unpack_rows(s->dv, keys, a, 1, d_values + k0 * row, row);
    }
    zero_rows(a->T - a->length, a, d_keys + a->length * row, row);
    zero_rows(a->T - a->length, a, d_values + a->length * row, row);
    if (a->length > 0)
        unpack_rows(s->dq, a->T, a, a->scale, d_qkv, row);
    else
        zero_rows(a->T, a, d_qkv, row);
}

static void run_backward(const void *args, int64_t begin, int64_t end)
{
    const run_args *r = args;
    const tdm_kernel_call *call = r->call;
    float *base = (float *)((char *)call->scratch + (size_t)thread_index() * r->thread_bytes);
    for (int64_t i = begin; i < end; i++) {
        head a = head_of(call, &call->in[1], &call->in[4], r->key, i);
        int64_t at = a.b * a.T * a.C + a.h * a.D;
        backward_scratch s = {0};
        carve_backward(&a, base, &s);
        backward_head(&a, &s, (const float *)call->in[0].data + at,
                      (const float *)call->in[2].data + at,
                      (const float *)call->in[3].data + a.index * a.T,
                      (float *)call->out[0].data + a.b * a.T * 3 * a.C + a.h * a.D);
    }
}

/* ---- the kernels ------------------------------------------------------------------------------ */

static size_t forward_bytes(const tdm_kernel_call *call)
{
    forward_scratch unused = {0};
    head a = sizes_of(call, &call->in[0]);
    return carve_forward(&a, NULL, &unused);
}

static size_t backward_bytes(const tdm_kernel_call *call)
{
    backward_scratch unused = {0};
    head a = sizes_of(call, &call->in[1]);
    return carve_backward(&a, NULL, &unused);
}

static tdm_status prepare_attention(void *backend, tdm_kernel_call *call, tdm_error *err)
{
    (void)backend;
    (void)err;
    call->scratch_bytes = forward_bytes(call) * thread_count();
    return TDM_OK;
}

static tdm_status prepare_attention_grad(void *backend, tdm_kernel_call *call, tdm_error *err)
{
    (void)backend;
    (void)err;
    call->scratch_bytes = backward_bytes(call) * thread_count();
    return TDM_OK;
}

static void run_attention(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    const tdm_shape *qkv = &call->in[0].shape;
    run_args args = {call, key, forward_bytes(call)};
    tdm__vec_split(qkv->dim[0] * call->attrs.heads, qkv->dim[1] * qkv->dim[2] / call->attrs.heads,
                   run_forward, &args);
}

static void run_attention_grad(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    const tdm_shape *qkv = &call->in[1].shape;
    run_args args = {call, key, backward_bytes(call)};
    tdm__vec_split(qkv->dim[0] * call->attrs.heads, qkv->dim[1] * qkv->dim[2] / call->attrs.heads,
                   run_backward, &args);
}

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_ATTENTION,
     .dtype = TDM_DTYPE_F32,
     .prepare = prepare_attention,
     .run = run_attention},
    {.op = TDM_OP_ATTENTION_GRAD,
     .dtype = TDM_DTYPE_F32,
     .prepare = prepare_attention_grad,
     .run = run_attention_grad},
};

const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_attention) = {kernels,
                                                             sizeof(kernels) / sizeof(kernels[0])};
