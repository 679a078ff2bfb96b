/*
 * matrix_test.c: every collective, over every transport, on many numbers of ranks, with odd sizes and all
 * types, compared with plain results.
 *
 *     matrix_test TRANSPORT RANKS...   starts a world of each number of RANKS, one after the other
 *     matrix_test --rank               one of its ranks (mpirun starts these as well)
 *
 * The input of a rank is a function of (lane, element), so every rank can compute the expected results. Floats
 * of 32 and 64 bits have different magnitudes, so that a sum in another order has other bits: with lanes, the
 * same 16 lanes are distributed over the ranks, so every world must give the same bits. The small types have
 * whole numbers, whose sums are exact (reduce_test.c tests their rounding).
 */
#include "comm/comm.h"
#include "transport/registry.h"
#include "world.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LANES = 16, MAX_PARTS = 16 };

static const tdm_dtype types[] = {TDM_DTYPE_F32,  TDM_DTYPE_F64, TDM_DTYPE_F16,
                                  TDM_DTYPE_BF16, TDM_DTYPE_I32, TDM_DTYPE_I64};
enum { TYPES = sizeof(types) / sizeof(types[0]) };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const size_t counts[] = {0, 1, 7, 1000, 65537};
#else
static const size_t counts[] = {0, 1, 7, 1000, 65537, 1000003, 10000000};
#endif
enum { COUNTS = sizeof(counts) / sizeof(counts[0]) };
enum {
    PERIOD = 65521
}; /* elements after which numbers repeat: a prime, so that no piece of a call has this length */

/* ---- numbers ------------------------------------------------------------------------------------- */

static double value_of(tdm_dtype type, int lane, size_t i)
{
    uint64_t x = ((uint64_t)lane * 0x9e3779b97f4a7c15u) ^ (i % PERIOD * 0xbf58476d1ce4e5b9u);
    x = (x ^ (x >> 29)) * 0x94d049bb133111ebu;
    int64_t whole = (int64_t)(x >> 60) - 8; /* -8 to 7 */
    if (type != TDM_DTYPE_F32 && type != TDM_DTYPE_F64) return (double)whole;
    double scale = (double)(1u << (x & 15)); /* sums of different magnitudes are rounded */
    return (double)(float)((double)(int64_t)((x >> 32) & 0xffffff) / 16777216.0 * scale);
}

/* Small whole numbers, which are exact. */
static uint16_t half_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    if (value == 0) return 0;
    uint32_t exponent = ((bits >> 23) & 0xff) - 127 + 15;
    return (uint16_t)((bits >> 31) << 15 | exponent << 10 | ((bits >> 13) & 0x3ff));
}

static void put(tdm_dtype type, void *at, size_t i, double value)
{
    float f = (float)value;
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    switch (type) {
    case TDM_DTYPE_F32: ((float *)at)[i] = f; break;
    case TDM_DTYPE_F64: ((double *)at)[i] = value; break;
    case TDM_DTYPE_F16: ((uint16_t *)at)[i] = half_bits(f); break;
    case TDM_DTYPE_BF16: ((uint16_t *)at)[i] = (uint16_t)(bits >> 16); break;
    case TDM_DTYPE_I32: ((int32_t *)at)[i] = (int32_t)value; break;
    default: ((int64_t *)at)[i] = (int64_t)value; break;
    }
}

static double combine(tdm_dtype type, tdm_reduce reduce, double left, double right)
{
    if (reduce == TDM_REDUCE_MIN) return left < right ? left : right;
    if (reduce == TDM_REDUCE_MAX) return left > right ? left : right;
    if (type == TDM_DTYPE_F32) return (double)((float)left + (float)right);
    return left + right;
}

/* The canonical tree over lanes [first, first + count), count a power of two; those from `end` on are
 * absent. */
static double tree(tdm_dtype type, tdm_reduce reduce, int first, int count, int end, size_t i)
{
    if (count == 1) return value_of(type, first, i);
    double left = tree(type, reduce, first, count / 2, end, i);
    if (first + count / 2 >= end) return left;
    return combine(type, reduce, left, tree(type, reduce, first + count / 2, count / 2, end, i));
}

/* ---- a case -------------------------------------------------------------------------------------- */

typedef struct world {
    tdm_comm *comm;
    int rank, size;
    uint8_t *in, *out, *want, *parts[MAX_PARTS];
    long case_count;
} world;

typedef struct trial {
    tdm_call call;
    bool lanes;
} trial;

static size_t unit_of(const trial *t)
{
    return tdm_dtype_bytes(t->call.dtype);
}

/* The number of elements, of `count`, that are computed: the others repeat them. */
static size_t computed(size_t count)
{
    return count < PERIOD ? count : PERIOD;
}

static void repeat(const trial *t, uint8_t *to, size_t count)
{
    for (size_t i = PERIOD; i < count; i += PERIOD)
        memcpy(to + i * unit_of(t), to, computed(count - i) * unit_of(t));
}

static void fill(const trial *t, uint8_t *to, int lane, size_t first, size_t count)
{
    for (size_t i = 0; i < computed(count); i++)
        put(t->call.dtype, to, i, value_of(t->call.dtype, lane, first + i));
    repeat(t, to, count);
}

/* The expected contents of `out` after the call; returns how many elements are checked. */
static size_t expect(const world *w, const trial *t)
{
    const tdm_call *call = &t->call;
    size_t count = call->count, unit = unit_of(t);
    tdm_extent mine = tdm_group_slice(count, w->size, w->rank);
    int lanes = t->lanes ? LANES : w->size, width = 1;
    while (width < lanes) width *= 2;
    switch (call->kind) {
    case TDM_CALL_BROADCAST: fill(t, w->want, call->root, 0, count); return count;
    case TDM_CALL_REDUCE:
        if (w->rank != call->root) return 0;
        mine = (tdm_extent){.count = count};
        break;
    case TDM_CALL_ALL_REDUCE: mine = (tdm_extent){.count = count}; break;
    case TDM_CALL_REDUCE_SCATTER: break;
    case TDM_CALL_ALL_GATHER:
    case TDM_CALL_GATHER:
        if (call->kind == TDM_CALL_GATHER && w->rank != call->root) return 0;
        for (int r = 0; r < w->size; r++) {
            tdm_extent theirs = tdm_group_slice(count, w->size, r);
            fill(t, w->want + theirs.first * unit, r, theirs.first, theirs.count);
        }
        return count;
    case TDM_CALL_SCATTER: fill(t, w->want, call->root, mine.first, mine.count); return mine.count;
    case TDM_CALL_ALL_TO_ALL:
        for (int r = 0; r < w->size; r++)
            fill(t, w->want + (size_t)r * mine.count * unit, r, mine.first, mine.count);
        return mine.count * (size_t)w->size;
    default: return 0;
    }
    for (size_t i = 0; i < computed(mine.count); i++)
        put(call->dtype, w->want, i,
            tree(call->dtype, call->reduce, 0, width, lanes, mine.first + i));
    repeat(t, w->want, mine.count);
    return mine.count;
}

/* This rank's parts of a sum over LANES lanes. Returns their number. */
static int bring_parts(world *w, const trial *t, const tdm_lanes *lanes)
{
    int64_t nodes[TDM_MAX_LANE_PARTS];
    int parts = tdm_lane_nodes(lanes, lanes->first[w->rank], lanes->first[w->rank + 1], nodes);
    for (int k = 0; k < parts && k < MAX_PARTS; k++) {
        int count = LANES;
        int64_t node = nodes[k];
        for (int64_t n = node; n > 1; n /= 2) count /= 2;
        int first = (int)(node * count - LANES);
        for (size_t i = 0; i < computed(t->call.count); i++)
            put(t->call.dtype, w->parts[k], i,
                tree(t->call.dtype, t->call.reduce, first, count, LANES, i));
        repeat(t, w->parts[k], t->call.count);
    }
    return parts;
}

static bool complain(const world *w, const trial *t, const char *what, size_t at)
{
    fprintf(
        stderr,
        "FAIL: rank %d of %d: %s of %zu %s by %s, root %d, %s, algorithm %s: %s (element %zu)\n",
        w->rank, w->size, tdm_call_kind_name(t->call.kind), t->call.count,
        tdm_dtype_name(t->call.dtype), tdm_reduce_name(t->call.reduce), t->call.root,
        t->lanes ? "16 lanes" : "a lane each", tdm_algorithm_name(t->call.algorithm), what, at);
    return false;
}

static bool run_trial(world *w, trial *t)
{
    int64_t first[65];
    for (int r = 0; r <= w->size; r++) first[r] = (int64_t)LANES * r / w->size;
    tdm_lanes lanes = {.lane_count = LANES, .first = first};
    tdm_extent mine = tdm_group_slice(t->call.count, w->size, w->rank);
    bool has_slice = t->call.kind == TDM_CALL_ALL_GATHER || t->call.kind == TDM_CALL_GATHER;
    if (t->lanes) {
        bring_parts(w, t, &lanes);
        t->call.lanes = &lanes;
        t->call.parts = (const void *const *)w->parts;
    } else if (has_slice) {
        fill(t, w->in, w->rank, mine.first, mine.count);
    } else {
        fill(t, w->in, w->rank, 0, t->call.count);
    }
    t->call.in = t->lanes ? NULL : w->in;
    t->call.out = w->out;
    size_t want = expect(w, t) * unit_of(t);
    memset(w->out, 0x5a, t->call.count * unit_of(t) + 64);
    tdm_error err = {0};
    tdm_status status;
    tdm_request *request = NULL;
    w->case_count++;
    if (w->case_count % 3) {
        status = tdm_call_run(tdm_comm_world(w->comm), &t->call, &err);
    } else {
        status = tdm_call_start(tdm_comm_world(w->comm), &t->call, &request, &err);
        if (status == TDM_OK) status = tdm_request_wait(request, &err);
    }
    if (status != TDM_OK) return complain(w, t, err.message, 0);
    if (want == 0 || memcmp(w->out, w->want, want) == 0) return true;
    for (size_t i = 0; i < want; i++)
        if (w->out[i] != w->want[i]) return complain(w, t, "wrong", i / unit_of(t));
    return true;
}

/* The combinations that are tested in this world: all of the small ones, some of the large ones. */
static bool is_tried(const world *w, tdm_call_kind kind, size_t count, int type)
{
    int draw = ((int)kind * 7 + type * 3 + w->size) % 6;
    if (count <= 1000) return true;
    if (count <= 65537) return w->size <= 5 || draw < 2;
    if (count <= 1000003) return draw == 0 && w->size <= 5;
    return w->size <= 3 && type == (w->size == 2 ? 0 : 3) &&
           (kind == TDM_CALL_ALL_REDUCE || kind == TDM_CALL_BROADCAST);
}

static bool run_all(world *w)
{
    for (int kind = TDM_CALL_BARRIER; kind <= TDM_CALL_ALL_TO_ALL; kind++)
        for (int c = 0; c < COUNTS; c++)
            for (int type = 0; type < TYPES; type++) {
                if (!is_tried(w, (tdm_call_kind)kind, counts[c], type)) continue;
                bool sums = kind >= TDM_CALL_REDUCE && kind <= TDM_CALL_REDUCE_SCATTER;
                trial t = {.call = {.kind = (tdm_call_kind)kind,
                                    .dtype = types[type],
                                    .count = counts[c],
                                    .root = (kind + c + type) % w->size}};
                if (!run_trial(w, &t)) return false;
                if (!sums) continue;
                trial lanes = {.call = t.call, .lanes = true};
                lanes.call.reduce = (tdm_reduce)((c + type) % 3);
                if (!run_trial(w, &lanes)) return false;
            }
    return true;
}

static int be_a_rank(void)
{
    tdm_error err = {0};
    world w = {0};
    if (tdm_comm_open(NULL, &w.comm, &err) != TDM_OK) {
        fprintf(stderr, "FAIL: %s\n", err.message);
        return 1;
    }
    w.rank = tdm_comm_rank(w.comm);
    w.size = tdm_comm_size(w.comm);
    size_t bytes = (counts[COUNTS - 1] > 1000003 && w.size > 3 ? 1000003 : counts[COUNTS - 1]) * 8 +
                   64;
    w.in = calloc(1, bytes + 64 * 8);
    w.out = calloc(1, bytes + 64 * 8);
    w.want = calloc(1, bytes + 64 * 8);
    bool well = w.in && w.out && w.want;
    for (int i = 0; i < MAX_PARTS && well; i++) well = (w.parts[i] = calloc(1, bytes)) != NULL;
    well = well && run_all(&w);
    tdm_comm_info info;
    tdm_comm_info_get(w.comm, &info);
    if (well && w.rank == 0)
        printf("%s, %d ranks: %ld calls right\n", info.transport, w.size, w.case_count);
    tdm_comm_close(w.comm);
    free(w.in);
    free(w.out);
    free(w.want);
    for (int i = 0; i < MAX_PARTS; i++) free(w.parts[i]);
    return well ? 0 : 1;
}

/* ---- worlds --------------------------------------------------------------------------------------- */

typedef struct matrix_world {
    const char *transport;
    int size;
} matrix_world;

static int start_rank(void *user, int rank)
{
    const matrix_world *m = user;
    char text[64];
    snprintf(text, sizeof(text), "matrix-%d-%d", (int)getppid(), m->size);
    world_place_set(&(world_place){.meeting = text,
                                   .transport = m->transport,
                                   .rank = rank,
                                   .size = m->size,
                                   .deadline_s = 120});
    world_exec("--rank", NULL);
}

static bool run_world(const char *transport, int size)
{
    world_ranks ranks;
    matrix_world m = {.transport = transport, .size = size};
    world_ranks_start(&ranks, size, 390, start_rank, &m);
    world_ranks_finish(&ranks, -1);
    return check_failures == 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--rank") == 0) return be_a_rank();
    if (argc < 2) return 2;
    tdm_transport_info info;
    for (size_t i = 0; tdm_transport_at(i, &info); i++)
        if (strcmp(info.name, argv[1]) == 0 && !info.usable) {
            printf("SKIPPED: %s cannot be used here: %s\n", argv[1], info.why);
            return 77;
        }
    for (int i = 2; i < argc; i++)
        if (!run_world(argv[1], atoi(argv[i]))) return 1;
    return 0;
}
