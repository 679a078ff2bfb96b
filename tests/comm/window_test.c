/*
 * window_test.c: windows from inside: the programs of all members of a group run side by side, one
 * thread for each, by a small interpreter in place of the engine. Every kind, odd sizes, types, lanes,
 * in place and not, buffers within the host's memory and outside, against plain references, bit for
 * bit; slots used again thousands of times with a slow member; and members that do not agree.
 *
 * Each thread has its own tdm__host, so the same memory at another address, like a process would.
 */
#include "check.h"
#include "comm/match.h"
#include "comm/window_inner.h"

#include <stdlib.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SCALED(full, small) (small)
#else
#define SCALED(full, small) (full)
#endif

enum { MEMBERS_MOST = 16, WORLD = 0x51, ADDRESS_MOST = 4096, LANES_MOST = 64 };
#define PATIENCE_S 60.0

/* ---- a world of threads ------------------------------------------------------------------------- */

typedef struct member {
    int rank, size;
    tdm__host *host;
    tdm_comm comm;
    tdm_group group;
    tdm__transport transport;
    tdm__control control;
    int *zeros, *ranks;
    int failures;
    struct world *world;
} member;

typedef struct world {
    int size;
    member members[MEMBERS_MOST];
    uint8_t addresses[MEMBERS_MOST][ADDRESS_MOST];
    size_t address_bytes[MEMBERS_MOST];
    _Atomic uint64_t window_offset; /* plus 1 */
    _Atomic int set_up;             /* members, where a test needs all of them to be */
    void (*body)(member *m);
} world;

static int no_progress(tdm__transport *transport)
{
    (void)transport;
    return 0;
}

static void no_wake(tdm__transport *transport)
{
    (void)transport;
}

static void short_wait(tdm__transport *transport, double timeout_s)
{
    (void)transport;
    usleep(timeout_s < 50e-6 ? 1 : 50);
}

static void no_word(tdm__control *control, uint32_t group, tdm_status status, const char *text)
{
    (void)control;
    (void)group;
    (void)status;
    (void)text;
}

static const tdm__transport_ops quiet_transport = {
    .name = "none", .progress = no_progress, .wake = no_wake, .wait = short_wait};
static const tdm__control_ops quiet_control = {.broken = no_word};

/* Failures are counted in each thread by itself. */
#define MEMBER_CHECK(m, condition)                                                                 \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            if ((m)->failures++ < 5)                                                               \
                fprintf(stderr, "%s:%d: rank %d of %d: not true: %s\n", __FILE__, __LINE__,        \
                        (m)->rank, (m)->size, #condition);                                         \
        }                                                                                          \
    } while (0)

static void fill_group(member *m)
{
    tdm_comm *comm = &m->comm;
    m->zeros = calloc((size_t)m->size, sizeof *m->zeros);
    m->ranks = calloc((size_t)m->size, sizeof *m->ranks);
    for (int i = 0; i < m->size; i++) m->ranks[i] = i;
    m->transport.ops = &quiet_transport;
    m->control.ops = &quiet_control;
    comm->rank = m->rank;
    comm->size = m->size;
    comm->host = m->host;
    comm->host_of = m->zeros;
    comm->transport = &m->transport;
    comm->control = &m->control;
    comm->matches = tdm__matches_create();
    tdm__recorder_options recording = {.rank = m->rank, .size = m->size, .transport = "none"};
    MEMBER_CHECK(m, tdm__recorder_create(&recording, &comm->recorder, NULL) == TDM_OK);
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->changed, NULL);
    m->group = (tdm_group){.comm = comm,
                           .rank = m->rank,
                           .size = m->size,
                           .ranks = m->ranks,
                           .host_of = m->zeros,
                           .host_count = 1,
                           .local_of = m->ranks,
                           .host_size = calloc(1, sizeof(int))};
    m->group.host_size[0] = m->size;
}

static void *member_thread(void *user)
{
    member *m = user;
    world *w = m->world;
    const uint8_t *addresses[MEMBERS_MOST];
    for (int i = 0; i < w->size; i++) addresses[i] = w->addresses[i];
    tdm_error err = {0};
    tdm_status status = tdm__host_connect(m->host, addresses, w->address_bytes, &err);
    MEMBER_CHECK(m, status == TDM_OK);
    if (status != TDM_OK) return NULL;
    fill_group(m);
    if (m->rank == 0) {
        uint64_t offset = 0;
        MEMBER_CHECK(m, tdm__window_make(m->host, m->size, &offset, &err) == TDM_OK);
        atomic_store(&w->window_offset, offset + 1);
    }
    while (atomic_load(&w->window_offset) == 0) usleep(10);
    MEMBER_CHECK(m,
                 tdm__window_enter(&m->group, atomic_load(&w->window_offset) - 1, &err) == TDM_OK);
    w->body(m);
    tdm__window_leave(&m->group);
    tdm__host_destroy(m->host);
    tdm__recorder_destroy(m->comm.recorder);
    tdm__matches_destroy(m->comm.matches);
    free(m->zeros);
    free(m->ranks);
    free(m->group.host_size);
    return NULL;
}

static void run_world(int size, void (*body)(member *m))
{
    world *w = calloc(1, sizeof *w);
    pthread_t threads[MEMBERS_MOST];
    int ranks[MEMBERS_MOST];
    for (int i = 0; i < size; i++) ranks[i] = i;
    w->size = size;
    w->body = body;
    for (int i = 0; i < size; i++) {
        member *m = &w->members[i];
        m->rank = i;
        m->size = size;
        m->world = w;
        tdm__host_options options = {.rank = i, .ranks = ranks, .count = size, .world = WORLD};
        tdm_error err = {0};
        CHECK_INT(tdm__host_create(&options, &m->host, w->addresses[i], &w->address_bytes[i], &err),
                  TDM_OK);
    }
    for (int i = 0; i < size; i++)
        CHECK(pthread_create(&threads[i], NULL, member_thread, &w->members[i]) == 0);
    for (int i = 0; i < size; i++) {
        pthread_join(threads[i], NULL);
        CHECK_INT(w->members[i].failures, 0);
    }
    free(w);
}

/* ---- a small engine ----------------------------------------------------------------------------- */

static uint8_t small_hash(const tdm_call *call)
{
    return call->lanes ? 1 : 0;
}

static tdm__head head_of(const member *m, const tdm_call *call, uint32_t sequence)
{
    tdm__head head = {.world = WORLD,
                      .sequence = sequence,
                      .kind = (uint8_t)call->kind,
                      .dtype = (uint8_t)call->dtype,
                      .reduce = (uint8_t)call->reduce,
                      .algorithm = TDM_ALGORITHM_WINDOW,
                      .root = call->root,
                      .count = call->count,
                      .layout = small_hash(call),
                      .source = (uint32_t)m->rank};
    tdm__head_seal(&head);
    return head;
}

/* Waits for an AWAIT; false when the group has been broken meanwhile. */
static bool wait_for(member *m, tdm__program *p, const tdm__instruction *i)
{
    double until_s = tdm_clock_s() + PATIENCE_S;
    while (m->group.broken.status == TDM_OK) {
        uint32_t bell = tdm__host_bell(m->host);
        if (tdm__window_reached(p, i->peer, i->value)) return true;
        if (m->group.broken.status != TDM_OK) break;
        MEMBER_CHECK(m, tdm_clock_s() < until_s);
        if (tdm_clock_s() >= until_s) return false;
        tdm__host_wait(m->host, bell, PATIENCE_S, NULL, 0);
    }
    return false;
}

static void execute(tdm__program *p, const tdm__instruction *i)
{
    tdm__reducer reducer = tdm__reducer_of(&p->request->call);
    switch (i->op) {
    case TDM__OP_COPY: tdm__copy(i->to, i->from, i->bytes, i->stream); break;
    case TDM__OP_TREE: {
        const tdm__tree_call *tree = &p->trees[i->tree];
        tdm__tree_run(tree->plan, &reducer, tree->sources, tree->destinations,
                      tree->destination_count, tree->count, i->stream);
        break;
    }
    case TDM__OP_POST: tdm__window_post(p, i->value); break;
    case TDM__OP_CALL: i->function(p->request, p->segment); break;
    default: break;
    }
}

/* Runs a call as a program. Returns the group's status. */
static tdm_status run_call(member *m, const tdm_call *call)
{
    tdm_group *group = &m->group;
    tdm_request *request = calloc(1, sizeof *request);
    request->group = group;
    request->call = *call;
    request->head = head_of(m, call, group->next_sequence++);
    request->algorithm = &tdm__algorithm_window;
    MEMBER_CHECK(m, request->algorithm->fits(group, call));
    if (tdm__is_reduction(call->kind)) {
        MEMBER_CHECK(m, tdm__leaves_init(&request->leaves, call->lanes, m->size, NULL) == TDM_OK);
        MEMBER_CHECK(m, tdm__tree_plan_init(&request->plan, request->leaves.nodes,
                                            request->leaves.count, 1, NULL) == TDM_OK);
    }
    tdm__program *p = &request->programs[0];
    p->request = request;
    p->arena = tdm_arena_create("test");
    request->algorithm->build(p, 0, call->count);
    while (p->at < p->count) {
        tdm__instruction i = p->list[p->at];
        if (i.op == TDM__OP_AWAIT && !wait_for(m, p, &i)) break;
        p->at++;
        execute(p, &i);
        MEMBER_CHECK(m, !p->no_memory);
    }
    tdm__window_ended(group, request->head.sequence);
    tdm_arena_destroy(p->arena);
    tdm__tree_plan_release(&request->plan);
    tdm__leaves_release(&request->leaves);
    free(request->state);
    free(request->copy);
    free(request);
    return group->broken.status;
}

/* ---- numbers and references ---------------------------------------------------------------------- */

static uint32_t scramble(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ (x >> 16);
}

/* Element `e` of leaf (or rank) `leaf`. Floats are such that their sums round. */
static void write_number(tdm_dtype dtype, uint8_t *at, uint32_t leaf, size_t e)
{
    uint32_t bits = scramble(leaf * 7919u + (uint32_t)e);
    float f32 = (float)(int32_t)bits * 1e-7f;
    double f64 = (double)(int32_t)bits * 1e-7;
    int64_t i64 = (int64_t)bits << 29;
    float whole = (float)(bits % 8); /* sums of a few are exact in bf16 */
    uint32_t whole_bits;
    memcpy(&whole_bits, &whole, sizeof whole_bits);
    uint16_t bf16 = (uint16_t)(whole_bits >> 16);
    switch (dtype) {
    case TDM_DTYPE_F32: memcpy(at, &f32, sizeof f32); break;
    case TDM_DTYPE_F64: memcpy(at, &f64, sizeof f64); break;
    case TDM_DTYPE_BF16: memcpy(at, &bf16, sizeof bf16); break;
    case TDM_DTYPE_I32: memcpy(at, &bits, sizeof bits); break;
    case TDM_DTYPE_I64: memcpy(at, &i64, sizeof i64); break;
    default: *at = (uint8_t)bits;
    }
}

/* left = left + right, by the plainest means. */
static void add_number(tdm_dtype dtype, uint8_t *left, const uint8_t *right)
{
    switch (dtype) {
    case TDM_DTYPE_F32: {
        float a, b;
        memcpy(&a, left, sizeof a);
        memcpy(&b, right, sizeof b);
        a += b;
        memcpy(left, &a, sizeof a);
        break;
    }
    case TDM_DTYPE_F64: {
        double a, b;
        memcpy(&a, left, sizeof a);
        memcpy(&b, right, sizeof b);
        a += b;
        memcpy(left, &a, sizeof a);
        break;
    }
    case TDM_DTYPE_BF16: {
        uint16_t a16, b16;
        memcpy(&a16, left, sizeof a16);
        memcpy(&b16, right, sizeof b16);
        uint32_t a32 = (uint32_t)a16 << 16, b32 = (uint32_t)b16 << 16;
        float a, b;
        memcpy(&a, &a32, sizeof a);
        memcpy(&b, &b32, sizeof b);
        a += b;
        memcpy(&a32, &a, sizeof a32);
        a16 = (uint16_t)(a32 >> 16);
        memcpy(left, &a16, sizeof a16);
        break;
    }
    case TDM_DTYPE_I32: {
        uint32_t a, b;
        memcpy(&a, left, sizeof a);
        memcpy(&b, right, sizeof b);
        a += b;
        memcpy(left, &a, sizeof a);
        break;
    }
    default: {
        uint64_t a, b;
        memcpy(&a, left, sizeof a);
        memcpy(&b, right, sizeof b);
        a += b;
        memcpy(left, &a, sizeof a);
    }
    }
}

/* The sum of the leaves below `node`, of element `e`; false when there are none. */
static bool sum_of(const tdm__leaves *leaves, int64_t lane_count, int64_t node, tdm_dtype dtype,
                   size_t e, uint8_t out[8])
{
    for (int i = 0; i < leaves->count; i++)
        if (leaves->nodes[i] == node) {
            write_number(dtype, out, (uint32_t)i, e);
            return true;
        }
    if (node >= lane_count) return false;
    uint8_t right[8];
    bool has_left = sum_of(leaves, lane_count, 2 * node, dtype, e, out);
    bool has_right = sum_of(leaves, lane_count, 2 * node + 1, dtype, e, right);
    if (has_left && has_right) add_number(dtype, out, right);
    if (!has_left && has_right) memcpy(out, right, sizeof right);
    return has_left || has_right;
}

/* ---- one call, checked --------------------------------------------------------------------------- */

typedef enum places {
    OUTSIDE, /* all buffers outside the host's memory: staged */
    INSIDE,  /* all inside: direct */
    MIXED,   /* rank 1's outside, the others' inside: staged, one more post */
    PLACES
} places;

typedef struct trial {
    tdm_call call;
    places where;
    bool in_place;
    const tdm_lanes *lanes;
} trial;

typedef struct buffers {
    void *memory[LANES_MOST + 1];
    uint64_t offsets[LANES_MOST + 1]; /* UINT64_MAX: from malloc */
    int count;
} buffers;

static uint8_t *take(member *m, buffers *b, bool inside, size_t bytes)
{
    int i = b->count++;
    b->offsets[i] = UINT64_MAX;
    if (inside) {
        MEMBER_CHECK(m, tdm__host_alloc(m->host, bytes + 1, &b->offsets[i], NULL) == TDM_OK);
        return b->memory[i] = tdm__host_at(m->host, b->offsets[i]);
    }
    return b->memory[i] = malloc(bytes + 1);
}

static void give_back(member *m, buffers *b)
{
    for (int i = 0; i < b->count; i++)
        if (b->offsets[i] == UINT64_MAX)
            free(b->memory[i]);
        else
            tdm__host_free(m->host, b->offsets[i]);
}

static bool takes_slice(tdm_call_kind kind)
{
    return kind == TDM_CALL_ALL_GATHER || kind == TDM_CALL_GATHER;
}

static bool gives_slice(tdm_call_kind kind)
{
    return kind == TDM_CALL_REDUCE_SCATTER || kind == TDM_CALL_SCATTER;
}

/* What element `e` of this rank's `out` must be; false: it must not have been touched. */
static bool expected(const member *m, const tdm_call *call, const tdm__leaves *leaves,
                     int64_t lane_count, size_t e, uint8_t out[8])
{
    tdm_extent mine = tdm_group_slice(call->count, m->size, m->rank);
    bool root = m->rank == call->root;
    switch (call->kind) {
    case TDM_CALL_REDUCE:
        if (!root) return false; /* fall through */
    case TDM_CALL_ALL_REDUCE: return sum_of(leaves, lane_count, 1, call->dtype, e, out);
    case TDM_CALL_REDUCE_SCATTER:
        return sum_of(leaves, lane_count, 1, call->dtype, mine.first + e, out);
    case TDM_CALL_BROADCAST: write_number(call->dtype, out, (uint32_t)call->root, e); return true;
    case TDM_CALL_SCATTER:
        write_number(call->dtype, out, (uint32_t)call->root, mine.first + e);
        return true;
    case TDM_CALL_GATHER:
        if (!root) return false; /* fall through */
    case TDM_CALL_ALL_GATHER:
        for (int i = 0; i < m->size; i++) {
            tdm_extent theirs = tdm_group_slice(call->count, m->size, i);
            if (e - theirs.first < theirs.count)
                write_number(call->dtype, out, (uint32_t)i, e - theirs.first);
        }
        return true;
    case TDM_CALL_ALL_TO_ALL:
        write_number(call->dtype, out, (uint32_t)(e / mine.count), mine.first + e % mine.count);
        return true;
    default: return false;
    }
}

static void check_out(member *m, const tdm_call *call, const tdm__leaves *leaves,
                      int64_t lane_count, size_t count, size_t end)
{
    size_t width = tdm_dtype_bytes(call->dtype);
    const uint8_t *out = call->out;
    size_t step = count > 5000 ? 61 : 1; /* a prime, so that all places in a line come up */
    for (size_t e = 0; e < count; e += e + step < count || e + 1 == count ? step : count - 1 - e) {
        uint8_t wanted[8] = {0};
        if (!expected(m, call, leaves, lane_count, e, wanted)) continue;
        if (memcmp(out + e * width, wanted, width) == 0) continue;
        MEMBER_CHECK(m, !"the result is right");
        fprintf(stderr, "  %s of %zu %s, element %zu\n", tdm_call_kind_name(call->kind),
                call->count, tdm_dtype_name(call->dtype), e);
        return;
    }
    MEMBER_CHECK(m, out[end * width] == 0xee); /* nobody wrote past the end */
}

static size_t out_count_of(const member *m, const tdm_call *call)
{
    tdm_extent mine = tdm_group_slice(call->count, m->size, m->rank);
    if (gives_slice(call->kind)) return mine.count;
    if (call->kind == TDM_CALL_ALL_TO_ALL) return mine.count * (size_t)m->size;
    return call->count;
}

static void run_trial(member *m, trial t)
{
    tdm_call call = t.call;
    tdm__leaves leaves = {0};
    MEMBER_CHECK(m, tdm__leaves_init(&leaves, t.lanes, m->size, NULL) == TDM_OK);
    int64_t lane_count = t.lanes ? t.lanes->lane_count : 1;
    while (!t.lanes && lane_count < m->size) lane_count *= 2;
    bool reduction = tdm__is_reduction(call.kind);
    bool inside = t.where == INSIDE || (t.where == MIXED && m->rank != 1);
    tdm_extent mine = tdm_group_slice(call.count, m->size, m->rank);
    size_t width = tdm_dtype_bytes(call.dtype);
    size_t in_count = takes_slice(call.kind) ? mine.count : call.count;
    size_t out_count = out_count_of(m, &call);
    int first_part = reduction ? leaves.first[m->rank] : m->rank;
    int parts = reduction ? leaves.first[m->rank + 1] - first_part : 1;
    buffers b = {.count = 0};
    const void *part_list[LANES_MOST];
    for (int i = 0; i < parts; i++) {
        size_t larger = out_count > call.count ? out_count : call.count;
        uint8_t *in = take(m, &b, inside, larger * width);
        for (size_t e = 0; e < in_count; e++)
            write_number(call.dtype, in + e * width, (uint32_t)(first_part + i), e);
        part_list[i] = in;
    }
    call.in = parts ? part_list[0] : NULL;
    call.lanes = t.lanes;
    call.parts = t.lanes ? part_list : NULL;
    bool in_place = t.in_place && parts == 1 && !takes_slice(call.kind);
    bool over_input = in_place &&
                      out_count < call.count; /* it ends with the input, not the output */
    call.out = in_place ? (uint8_t *)b.memory[0] : take(m, &b, inside, out_count * width);
    ((uint8_t *)call.out)[(over_input ? call.count : out_count) * width] = 0xee;
    MEMBER_CHECK(m, run_call(m, &call) == TDM_OK);
    check_out(m, &call, &leaves, lane_count, out_count, over_input ? call.count : out_count);
    give_back(m, &b);
    tdm__leaves_release(&leaves);
}

/* ---- the tests ----------------------------------------------------------------------------------- */

static void all_kinds(member *m)
{
    static const size_t counts[] = {0, 1, 7, 1000, 5003, 100003, 1 << 20};
    static const tdm_dtype dtypes[] = {TDM_DTYPE_F32, TDM_DTYPE_F64, TDM_DTYPE_BF16,
                                       TDM_DTYPE_I32, TDM_DTYPE_I64, TDM_DTYPE_U8};
    int index = 0;
    for (int kind = TDM_CALL_BARRIER; kind <= TDM_CALL_ALL_TO_ALL; kind++)
        for (int c = 0; c < SCALED(7, 6); c++)
            for (int d = 0; d < 6; d++)
                for (int where = 0; where < PLACES; where++) {
                    bool reduction = tdm__is_reduction((tdm_call_kind)kind);
                    if (reduction && dtypes[d] == TDM_DTYPE_U8) continue;
                    if (counts[c] > 5003 && d > 0 && (index % 5 != 0)) {
                        index++;
                        continue; /* large ones: one in five for types beyond the first */
                    }
                    if (counts[c] > 100003 && (m->size > 8 || d > 0)) continue;
                    if (SCALED(0, 1) && m->size > 5 && counts[c] > 5003) continue;
                    index++;
                    run_trial(m, (trial){.call = {.kind = (tdm_call_kind)kind,
                                                  .dtype = dtypes[d],
                                                  .count = counts[c],
                                                  .root = index % m->size},
                                         .where = (places)where,
                                         .in_place = index % 3 == 0});
                }
}

static void kinds_of_calls(void)
{
    static const int sizes[] = {1, 2, 3, 4, 5, 8, 16};
    for (int i = 0; i < 7; i++) run_world(sizes[i], all_kinds);
}

/* Lanes: uneven, some absent, some ranks without any. */
static void all_lanes(member *m)
{
    static const size_t counts[] = {1, 100, 5003, 70001};
    int64_t first[MEMBERS_MOST + 1];
    uint8_t absent[LANES_MOST] = {0};
    absent[3] = absent[8] = absent[9] = absent[31] = 1;
    for (int shape = 0; shape < 3; shape++) {
        for (int i = 0; i <= m->size; i++) {
            first[i] = 32 * i / m->size;
            if (shape == 1 && i > 0 && i < m->size) first[i] = 32 * i / m->size | 1;
            if (shape == 2 && i > 0 && i < m->size) first[i] = i < m->size / 2 + 1 ? 5 : 27;
        }
        tdm_lanes lanes = {.lane_count = 32, .first = first, .absent = shape > 0 ? absent : NULL};
        for (int c = 0; c < 4; c++)
            for (int kind = TDM_CALL_REDUCE; kind <= TDM_CALL_REDUCE_SCATTER; kind++)
                for (int where = 0; where < PLACES; where++)
                    run_trial(m, (trial){.call = {.kind = (tdm_call_kind)kind,
                                                  .dtype = TDM_DTYPE_F32,
                                                  .count = counts[c],
                                                  .root = m->size - 1},
                                         .where = (places)where,
                                         .lanes = &lanes});
    }
}

static void lanes_of_calls(void)
{
    for (int size = 2; size <= 8; size += 3) run_world(size, all_lanes);
}

/* Thousands of calls, small and staged, of which some let their root run ahead; one member is slow. */
static void many_calls(member *m)
{
    const int calls = SCALED(6000, 600);
    uint32_t drawn = 12345;
    for (int k = 0; k < calls; k++) {
        drawn = scramble(drawn + (uint32_t)k);
        if (m->rank == (int)(drawn >> 8) % m->size && drawn % 16 == 0) usleep(drawn % 300);
        bool large = drawn % 11 == 0;
        size_t count = large ? 3000 + drawn % 5000 : drawn % 200;
        tdm_call_kind kind = (tdm_call_kind)(TDM_CALL_BARRIER + (int)(drawn >> 4) % 9);
        run_trial(m, (trial){.call = {.kind = kind,
                                      .dtype = TDM_DTYPE_I32,
                                      .count = count,
                                      .root = (int)(drawn >> 16) % m->size}});
    }
}

static void slots_are_used_again(void)
{
    run_world(2, many_calls);
    run_world(5, many_calls);
}

/* The sequence wraps around: all counters compare by difference. */
static void wrapped_calls(member *m)
{
    m->group.next_sequence = UINT32_MAX - 40;
    atomic_store(&m->group.window->done[m->rank].value, UINT32_MAX - 40);
    for (int slot = 0; slot < TDM__WINDOW_SLOTS; slot++)
        atomic_store(&tdm__window_cell(m->group.window, (uint32_t)slot, m->rank)->counter,
                     (uint64_t)(UINT32_MAX - 60) << 32);
    m->group.window->all_done = UINT32_MAX - 40 - TDM__WINDOW_SLOTS;
    atomic_fetch_add(&m->world->set_up, 1);
    while (atomic_load(&m->world->set_up) < m->size) usleep(10);
    while (m->group.next_sequence != 40)
        run_trial(m, (trial){.call = {.kind = TDM_CALL_ALL_REDUCE,
                                      .dtype = TDM_DTYPE_F32,
                                      .count = m->group.next_sequence % 3 ? 100 : 3000}});
}

static void numbers_wrap_around(void)
{
    run_world(3, wrapped_calls);
}

/* Ends out of order: `done` follows when the gap is filled, however far ahead the others were. */
static void ends_in_any_order(member *m)
{
    tdm__window *w = m->group.window;
    for (uint32_t s = 1; s < 200; s += 2) tdm__window_ended(&m->group, s);
    CHECK_INT(w->done[m->rank].value, 0);
    for (uint32_t s = 0; s < 200; s += 2) {
        tdm__window_ended(&m->group, s);
        CHECK_INT(w->done[m->rank].value, s + 2);
    }
    tdm__window_ended(&m->group, 200);
    CHECK_INT(w->done[m->rank].value, 201);
}

static void ends_out_of_order(void)
{
    run_world(1, ends_in_any_order);
}

/* Rank 1 calls something else: everybody who waits for it hears so. */
static void calls_that_differ(member *m)
{
    uint8_t *out = calloc(100000, 4), *in = calloc(100000, 4);
    tdm_call call = {
        .kind = TDM_CALL_ALL_REDUCE, .dtype = TDM_DTYPE_F32, .count = 100000, .in = in, .out = out};
    MEMBER_CHECK(m, run_call(m, &call) == TDM_OK);
    if (m->rank == 1) {
        call.kind = TDM_CALL_BARRIER; /* a small call against a large one */
        call.count = 0;
    }
    MEMBER_CHECK(m, run_call(m, &call) == TDM_ERR_PEER_MISMATCH);
    MEMBER_CHECK(m, strstr(m->group.broken.message, "rank 1") != NULL);
    MEMBER_CHECK(m, strstr(m->group.broken.message, "barrier") != NULL);
    MEMBER_CHECK(m, strstr(m->group.broken.message, "all_reduce of 100000 f32") != NULL);
    free(in);
    free(out);
}

static void mismatches_are_noticed(void)
{
    run_world(2, calls_that_differ);
    run_world(4, calls_that_differ);
}

static const check_test tests[] = {
    CHECK_TEST(kinds_of_calls),       CHECK_TEST(lanes_of_calls),
    CHECK_TEST(slots_are_used_again), CHECK_TEST(numbers_wrap_around),
    CHECK_TEST(ends_out_of_order),    CHECK_TEST(mismatches_are_noticed),
};

CHECK_MAIN(tests)
