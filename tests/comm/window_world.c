/*
 * window_world.c: see window_world.h.
 */
#include "comm/window_world.h"

/* ---- a world of threads ------------------------------------------------------------------------- */

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

static void fill_group(member *m)
{
    tdm_comm *comm = &m->comm;
    size_t n = (size_t)m->size;
    m->host_of = calloc(n, sizeof(*m->host_of));
    m->ranks = calloc(n, sizeof(*m->ranks));
    m->local_of = calloc(n, sizeof(*m->local_of));
    int *host_size = calloc(n, sizeof(*host_size));
    int host_count = 0;
    for (int i = 0; i < m->size; i++) {
        m->ranks[i] = i;
        m->host_of[i] = m->world->host_of[i];
        m->local_of[i] = host_size[m->host_of[i]]++;
        if (m->host_of[i] >= host_count) host_count = m->host_of[i] + 1;
    }
    m->transport.ops = &quiet_transport;
    m->control.ops = &quiet_control;
    comm->rank = m->rank;
    comm->size = m->size;
    comm->host = m->host;
    comm->host_of = m->host_of;
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
                           .host_of = m->host_of,
                           .host_count = host_count,
                           .local_of = m->local_of,
                           .host_size = host_size};
}

static void *member_thread(void *user)
{
    member *m = user;
    world *w = m->world;
    const uint8_t *addresses[MAX_MEMBERS];
    size_t address_bytes[MAX_MEMBERS];
    int host = w->host_of[m->rank], count = 0;
    for (int i = 0; i < w->size; i++)
        if (w->host_of[i] == host) {
            addresses[count] = w->addresses[i];
            address_bytes[count++] = w->address_bytes[i];
        }
    tdm_error err = {0};
    tdm_status status = tdm__host_connect(m->host, addresses, address_bytes, &err);
    MEMBER_CHECK(m, status == TDM_OK);
    if (status != TDM_OK) return NULL;
    fill_group(m);
    _Atomic uint64_t *at = &w->window_offsets[host];
    if (m->local_of[m->rank] == 0) {
        uint64_t offset = 0;
        MEMBER_CHECK(m, tdm__window_make(m->host, count, &offset, &err) == TDM_OK);
        atomic_store(at, offset + 1);
    }
    while (atomic_load(at) == 0) usleep(10);
    MEMBER_CHECK(m, tdm__window_enter(&m->group, atomic_load(at) - 1, &err) == TDM_OK);
    w->body(m);
    tdm__comm_lock(&m->comm);
    tdm__comm_unlock(&m->comm); /* reports errors about broken groups */
    tdm__window_leave(&m->group);
    tdm__host_destroy(m->host);
    tdm__recorder_destroy(m->comm.recorder);
    tdm__matches_destroy(m->comm.matches);
    free(m->host_of);
    free(m->ranks);
    free(m->local_of);
    free(m->group.host_size);
    return NULL;
}

void run_world_on(int size, const int *host_of, const tdm__algorithm_ops *algorithm,
                  void (*body)(member *m))
{
    world *w = calloc(1, sizeof(*w));
    pthread_t threads[MAX_MEMBERS];
    w->size = size;
    w->body = body;
    w->algorithm = algorithm;
    pthread_mutex_init(&w->mail_lock, NULL);
    for (int i = 0; host_of && i < size; i++) w->host_of[i] = host_of[i];
    for (int i = 0; i < size; i++) {
        member *m = &w->members[i];
        int ranks[MAX_MEMBERS], count = 0;
        for (int k = 0; k < size; k++)
            if (w->host_of[k] == w->host_of[i]) ranks[count++] = k;
        m->rank = i;
        m->size = size;
        m->world = w;
        tdm__host_options options = {.rank = i, .ranks = ranks, .count = count, .world = WORLD};
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
    CHECK(w->mails == NULL); /* otherwise a message was sent that is not received, or the reverse */
    pthread_mutex_destroy(&w->mail_lock);
    free(w);
}

void run_world(int size, void (*body)(member *m))
{
    run_world_on(size, NULL, &tdm__algorithm_window, body);
}

/* ---- messages ------------------------------------------------------------------------------------ */

/* Begins one side of a message; copies the bytes if the other side has begun. */
static void begin_mail(member *m, uint32_t sequence, const tdm__instruction *i)
{
    world *w = m->world;
    bool sends = i->op == TDM__OP_SEND;
    int from = sends ? m->rank : i->peer, to = sends ? i->peer : m->rank;
    MEMBER_CHECK(m, i->peer >= 0 && i->peer < m->size && i->peer != m->rank);
    pthread_mutex_lock(&w->mail_lock);
    mail **link = &w->mails;
    while (*link && ((*link)->from != from || (*link)->to != to || (*link)->sequence != sequence ||
                     (*link)->step != i->step))
        link = &(*link)->next;
    mail *one = *link;
    if (!one) {
        one = *link = calloc(1, sizeof(*one));
        *one = (mail){
            .from = from, .to = to, .sequence = sequence, .step = i->step, .bytes = i->bytes};
    }
    MEMBER_CHECK(m, one->bytes == i->bytes);
    MEMBER_CHECK(m, sends ? !one->sent : !one->awaited); /* otherwise a step is used twice */
    if (sends) {
        one->sent = true;
        one->data = i->from;
        one->sender = &m->pending;
        w->bytes_between_hosts += i->bytes;
    } else {
        one->awaited = true;
        one->into = i->to;
        one->receiver = &m->pending;
    }
    m->pending++;
    if (one->sent && one->awaited) {
        if (one->bytes) memcpy(one->into, one->data, one->bytes);
        --*one->sender;
        --*one->receiver;
        *link = one->next;
        free(one);
    }
    pthread_mutex_unlock(&w->mail_lock);
}

/* Waits until all messages that this member has begun have ended. */
static void join_mail(member *m)
{
    double until_s = tdm_clock_s() + PATIENCE_S;
    for (;;) {
        pthread_mutex_lock(&m->world->mail_lock);
        bool over = m->pending == 0;
        pthread_mutex_unlock(&m->world->mail_lock);
        if (over) return;
        MEMBER_CHECK(m, tdm_clock_s() < until_s);
        if (tdm_clock_s() >= until_s) return;
        usleep(20);
    }
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
                      .algorithm = (uint8_t)m->world->algorithm->id,
                      .root = call->root,
                      .count = call->count,
                      .layout = small_hash(call),
                      .source = (uint32_t)m->rank};
    tdm__head_seal(&head);
    return head;
}

/* Executes an AWAIT; false if the group was broken meanwhile. */
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

tdm_status run_call(member *m, const tdm_call *call)
{
    tdm_group *group = &m->group;
    tdm_request *request = calloc(1, sizeof(*request));
    request->group = group;
    request->call = *call;
    request->head = head_of(m, call, group->next_sequence++);
    request->algorithm = m->world->algorithm;
    MEMBER_CHECK(m, request->algorithm->fits(group, call));
    if (tdm__kind_reduces(call->kind)) {
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
        if (i.op == TDM__OP_JOIN) join_mail(m);
        if (i.op == TDM__OP_SEND || i.op == TDM__OP_RECV) begin_mail(m, request->head.sequence, &i);
        p->at++;
        execute(p, &i);
        MEMBER_CHECK(m, !p->no_memory);
    }
    join_mail(m);
    tdm__window_ended(group, request->head.sequence);
    tdm_arena_destroy(p->arena);
    tdm__tree_plan_release(&request->plan);
    tdm__leaves_release(&request->leaves);
    free(request->algorithm_data);
    free(request->copy);
    free(request);
    return group->broken.status;
}

/* ---- numbers and references ---------------------------------------------------------------------- */

uint32_t scramble(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ (x >> 16);
}

/* Element `e` of leaf (or rank) `leaf`. Floats are chosen so that their sums are rounded. */
static void write_number(tdm_dtype dtype, uint8_t *at, uint32_t leaf, size_t e)
{
    uint32_t bits = scramble(leaf * 7919u + (uint32_t)e);
    float f32 = (float)(int32_t)bits * 1e-7f;
    double f64 = (double)(int32_t)bits * 1e-7;
    int64_t i64 = (int64_t)bits << 29;
    float whole = (float)(bits % 8); /* sums of a few are exact in bf16 */
    uint32_t whole_bits;
    memcpy(&whole_bits, &whole, sizeof(whole_bits));
    uint16_t bf16 = (uint16_t)(whole_bits >> 16);
    switch (dtype) {
    case TDM_DTYPE_F32: memcpy(at, &f32, sizeof(f32)); break;
    case TDM_DTYPE_F64: memcpy(at, &f64, sizeof(f64)); break;
    case TDM_DTYPE_BF16: memcpy(at, &bf16, sizeof(bf16)); break;
    case TDM_DTYPE_I32: memcpy(at, &bits, sizeof(bits)); break;
    case TDM_DTYPE_I64: memcpy(at, &i64, sizeof(i64)); break;
    default: *at = (uint8_t)bits;
    }
}

/* left = left + right, in the simplest way. */
static void add_number(tdm_dtype dtype, uint8_t *left, const uint8_t *right)
{
    switch (dtype) {
    case TDM_DTYPE_F32: {
        float a, b;
        memcpy(&a, left, sizeof(a));
        memcpy(&b, right, sizeof(b));
        a += b;
        memcpy(left, &a, sizeof(a));
        break;
    }
    case TDM_DTYPE_F64: {
        double a, b;
        memcpy(&a, left, sizeof(a));
        memcpy(&b, right, sizeof(b));
        a += b;
        memcpy(left, &a, sizeof(a));
        break;
    }
    case TDM_DTYPE_BF16: {
        uint16_t a16, b16;
        memcpy(&a16, left, sizeof(a16));
        memcpy(&b16, right, sizeof(b16));
        uint32_t a32 = (uint32_t)a16 << 16, b32 = (uint32_t)b16 << 16;
        float a, b;
        memcpy(&a, &a32, sizeof(a));
        memcpy(&b, &b32, sizeof(b));
        a += b;
        memcpy(&a32, &a, sizeof(a32));
        a16 = (uint16_t)(a32 >> 16);
        memcpy(left, &a16, sizeof(a16));
        break;
    }
    case TDM_DTYPE_I32: {
        uint32_t a, b;
        memcpy(&a, left, sizeof(a));
        memcpy(&b, right, sizeof(b));
        a += b;
        memcpy(left, &a, sizeof(a));
        break;
    }
    default: {
        uint64_t a, b;
        memcpy(&a, left, sizeof(a));
        memcpy(&b, right, sizeof(b));
        a += b;
        memcpy(left, &a, sizeof(a));
    }
    }
}

/* The sum of the leaves below `node`, of element `e`; false if there are none. */
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
    if (!has_left && has_right) memcpy(out, right, sizeof(right));
    return has_left || has_right;
}

/* ---- one call, checked --------------------------------------------------------------------------- */

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

bool expected(const member *m, const tdm_call *call, const tdm__leaves *leaves, int64_t lane_count,
              size_t e, uint8_t out[8])
{
    tdm_extent mine = tdm__call_slice(call, m->size, m->rank);
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
            tdm_extent theirs = tdm__call_slice(call, m->size, i);
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
    size_t step = count > 5000 ? 61 : 1; /* a prime, so that all positions in a cache line occur */
    for (size_t e = 0; e < count; e += e + step < count || e + 1 == count ? step : count - 1 - e) {
        uint8_t wanted[8] = {0};
        if (!expected(m, call, leaves, lane_count, e, wanted)) continue;
        if (memcmp(out + e * width, wanted, width) == 0) continue;
        MEMBER_CHECK(m, !"the result is right");
        fprintf(stderr, "  %s of %zu %s, element %zu\n", tdm_call_kind_name(call->kind),
                call->count, tdm_dtype_name(call->dtype), e);
        return;
    }
    MEMBER_CHECK(m, out[end * width] == 0xee); /* nothing was written past the end */
}

static size_t out_count_of(const member *m, const tdm_call *call)
{
    tdm_extent mine = tdm__call_slice(call, m->size, m->rank);
    if (gives_slice(call->kind)) return mine.count;
    if (call->kind == TDM_CALL_ALL_TO_ALL) return mine.count * (size_t)m->size;
    return call->count;
}

void run_trial(member *m, trial t)
{
    tdm_call call = t.call;
    call.cuts = t.cuts;
    tdm__leaves leaves = {0};
    MEMBER_CHECK(m, tdm__leaves_init(&leaves, t.lanes, m->size, NULL) == TDM_OK);
    int64_t lane_count = t.lanes ? t.lanes->lane_count : 1;
    while (!t.lanes && lane_count < m->size) lane_count *= 2;
    bool reduction = tdm__kind_reduces(call.kind);
    bool inside = t.where == INSIDE || (t.where == MIXED && m->rank != 1);
    tdm_extent mine = tdm__call_slice(&call, m->size, m->rank);
    size_t width = tdm_dtype_bytes(call.dtype);
    size_t in_count = takes_slice(call.kind) ? mine.count : call.count;
    size_t out_count = out_count_of(m, &call);
    int first_part = reduction ? leaves.first[m->rank] : m->rank;
    int parts = reduction ? leaves.first[m->rank + 1] - first_part : 1;
    buffers b = {.count = 0};
    const void *part_list[MAX_LANES];
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
    bool at_slice = in_place && t.cuts &&
                    gives_slice(call.kind); /* as calls in place are resolved */
    size_t end = over_input ? call.count : out_count;
    ((uint8_t *)call.out)[end * width] = 0xee;
    if (at_slice) call.out = (uint8_t *)call.out + mine.first * width;
    MEMBER_CHECK(m, run_call(m, &call) == TDM_OK);
    check_out(m, &call, &leaves, lane_count, out_count, at_slice ? end - mine.first : end);
    give_back(m, &b);
    tdm__leaves_release(&leaves);
}

void run_cuts(member *m, tdm_call_kind last, int place_count)
{
    static const size_t counts[] = {1, 100, 5003, 200003};
    size_t cuts[MAX_MEMBERS + 1], n = (size_t)m->size;
    int64_t first[MAX_MEMBERS + 1];
    for (int i = 0; i <= m->size; i++) first[i] = 32 * i / m->size;
    tdm_lanes lanes = {.lane_count = 32, .first = first};
    for (int c = 0; c < SCALED(4, 3); c++)
        for (int shape = 0; shape < 4; shape++) {
            if (counts[c] > 5003 && shape != 2) continue; /* large sizes: one shape */
            /* all to the first, all to the last, growing, every other one empty */
            for (size_t i = 1; i < n; i++)
                cuts[i] = shape == 0   ? counts[c]
                          : shape == 1 ? 0
                          : shape == 2 ? counts[c] * i * i / (n * n)
                                       : counts[c] * (i / 2 * 2) / n;
            cuts[0] = 0;
            cuts[n] = counts[c];
            for (int kind = TDM_CALL_REDUCE_SCATTER; kind <= (int)last; kind++)
                for (int where = 0; where < place_count; where++)
                    for (int how = 0; how < 3; how++)
                        run_trial(m, (trial){.call = {.kind = (tdm_call_kind)kind,
                                                      .dtype = TDM_DTYPE_F32,
                                                      .count = counts[c],
                                                      .root = m->size - 1},
                                             .where = (places)where,
                                             .in_place = how == 1,
                                             .cuts = cuts,
                                             .lanes = how == 2 && kind == TDM_CALL_REDUCE_SCATTER
                                                          ? &lanes
                                                          : NULL});
        }
}
