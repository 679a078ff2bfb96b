/*
 * program_world.c: see program_world.h.
 */
#include "comm/program_world.h"

void world_init(world *w, int size, uint64_t seed)
{
    memset(w, 0, sizeof(*w));
    w->size = size;
    w->arena = tdm_arena_create("test");
    w->rng = tdm_rng_at((tdm_rng_address){.seed = seed, .stream = TDM_RNG_STREAM_USER});
    size_t n = (size_t)size;
    w->groups = tdm_arena_array(w->arena, n, sizeof(*w->groups));
    w->requests = tdm_arena_array(w->arena, n, sizeof(*w->requests));
    w->depths = tdm_arena_array(w->arena, n, sizeof(*w->depths));
    w->arriving = tdm_arena_array(w->arena, n, sizeof(*w->arriving));
    w->bytes = tdm_arena_array(w->arena, n, sizeof(*w->bytes));
    w->messages = tdm_arena_array(w->arena, n, sizeof(*w->messages));
    for (int r = 0; r < size; r++) {
        w->groups[r].comm = &w->comm;
        w->groups[r].rank = r;
        w->groups[r].size = size;
        w->groups[r].host_count = size;
        w->requests[r].group = &w->groups[r];
        for (int i = 0; i < TDM__MAX_FLIGHT; i++)
            w->requests[r].programs[i].request = &w->requests[r];
    }
}

void world_release(world *w)
{
    for (int r = 0; r < w->size; r++) {
        tdm_request *q = &w->requests[r];
        tdm__leaves_release(&q->leaves);
        tdm__tree_plan_release(&q->plan);
        free(q->algorithm_data);
        for (int i = 0; i < TDM__MAX_FLIGHT; i++) {
            tdm_arena_destroy(q->programs[i].arena);
            tdm__scratch_give_back(&w->comm, &q->programs[i].blocks);
        }
    }
    tdm__scratch_free(&w->comm);
    free(w->ready);
    tdm_arena_destroy(w->arena);
}

void world_segments(world *w, tdm_call_kind kind, tdm_algorithm algorithm, uint32_t segment_bytes)
{
    w->row = (tdm__choice){.kind = (uint8_t)kind,
                           .place = w->size == 1 ? TDM__GROUP_PLACE_HOST : TDM__GROUP_PLACE_HOSTS,
                           .size = 1,
                           .algorithm = (uint8_t)algorithm,
                           .segment_bytes = segment_bytes};
    w->comm.choices = (tdm__choices){.rows = &w->row, .count = 1};
}

static int world_draw(world *w, int below)
{
    return (int)tdm_rng_below(&w->rng, (uint64_t)below);
}

static void world_begin_segment(world *w, int rank, int slot)
{
    tdm_request *q = &w->requests[rank];
    tdm__program *p = &q->programs[slot];
    tdm_arena *arena = p->arena ? p->arena : tdm_arena_create("program");
    tdm_arena_reset(arena);
    tdm__scratch_give_back(&w->comm, &p->blocks);
    *p = (tdm__program){.request = q, .arena = arena, .active = true};
    p->segment = (int)q->next_segment++;
    size_t first = (size_t)p->segment * q->cut.segment;
    size_t left = tdm__call_span(&q->call, w->size) - first;
    q->algorithm->build(p, first, left < q->cut.segment ? left : q->cut.segment);
    WORLD_CHECK(w, !p->no_memory);
    w->depths[rank][slot] = w->arriving[rank][slot] = 0;
}

static world_message *world_find(world *w, int from, int to, uint32_t step)
{
    uint32_t hash = ((uint32_t)from * 31 + (uint32_t)to) * 2654435761u + step * 40503u;
    world_message **bucket = &w->buckets[(hash >> 8) % WORLD_BUCKETS];
    for (world_message *m = *bucket; m; m = m->next)
        if (m->from == from && m->to == to && m->step == step) return m;
    world_message *m = tdm_arena_alloc(w->arena, sizeof(*m), 0);
    *m = (world_message){.next = *bucket, .from = from, .to = to, .step = step};
    *bucket = m;
    w->open_messages++;
    return m;
}

static void world_match(world *w, world_message *m)
{
    if (!m->sender || !m->receiver) return;
    if (w->ready_count == w->ready_capacity) {
        w->ready_capacity = w->ready_capacity ? 2 * w->ready_capacity : 64;
        w->ready = realloc(w->ready, (size_t)w->ready_capacity * sizeof(world_message *));
    }
    w->ready[w->ready_count++] = m;
}

static void world_start(world *w, int rank, int slot, tdm__program *p, const tdm__instruction *i)
{
    bool sends = i->op == TDM__OP_SEND;
    WORLD_CHECK(w, i->peer >= 0 && i->peer < w->size && i->peer != rank);
    WORLD_CHECK(w, i->step != (uint32_t)TDM__NOTICE_STEP);
    if (w->failed) return;
    world_message *m = world_find(w, sends ? rank : i->peer, sends ? i->peer : rank, i->step);
    WORLD_CHECK(w, sends ? !m->sender : !m->receiver); /* otherwise a step number is used twice */
    if (m->sender || m->receiver) WORLD_CHECK(w, m->bytes == i->bytes);
    if (w->failed) return;
    m->bytes = i->bytes;
    p->pending++;
    if (sends) {
        m->sender = p;
        m->data = i->from;
        m->depth = w->depths[rank][slot] + 1;
        w->bytes[rank] += i->bytes;
        w->messages[rank]++;
    } else {
        m->receiver = p;
        m->into = i->to;
    }
    world_match(w, m);
}

static void world_deliver(world *w, int index)
{
    world_message *m = w->ready[index];
    w->ready[index] = w->ready[--w->ready_count];
    if (m->bytes) memcpy(m->into, m->data, m->bytes);
    m->sender->pending--;
    m->receiver->pending--;
    w->open_messages--;
    int slot = (int)(m->receiver - m->receiver->request->programs);
    int *arriving = &w->arriving[m->to][slot];
    if (m->depth > *arriving) *arriving = m->depth;
    if (m->depth > w->steps) w->steps = m->depth;
}

/* Executes one instruction; false if it must wait. */
static bool world_execute(world *w, int rank, int slot)
{
    tdm_request *q = &w->requests[rank];
    tdm__program *p = &q->programs[slot];
    const tdm__instruction *i = &p->list[p->at];
    tdm__reducer reducer = {q->call.dtype, q->call.reduce, q->call.user_reduce, q->call.user};
    switch ((tdm__op)i->op) {
    case TDM__OP_SEND:
    case TDM__OP_RECV: world_start(w, rank, slot, p, i); break;
    case TDM__OP_JOIN:
        if (p->pending) return false;
        w->depths[rank][slot] = w->arriving[rank][slot];
        break;
    case TDM__OP_COPY: memcpy(i->to, i->from, i->bytes); break;
    case TDM__OP_PAIR:
        tdm__reduce_pair(&reducer, i->to, i->from, i->other,
                         i->bytes / tdm_dtype_bytes(reducer.dtype));
        break;
    case TDM__OP_TREE: {
        const tdm__tree_call *t = &p->trees[i->tree];
        tdm__tree_run(t->plan, &reducer, t->sources, t->destinations, t->destination_count,
                      t->count, i->stream);
        break;
    }
    case TDM__OP_POST:
    case TDM__OP_AWAIT:
    case TDM__OP_CALL: WORLD_CHECK(w, !"an instruction for windows"); break;
    }
    p->at++;
    return true;
}

/* Executes an instruction of one program of a rank, if possible. */
static bool world_move(world *w, int rank)
{
    tdm_request *q = &w->requests[rank];
    int offset = world_draw(w, q->cut.flight);
    for (int i = 0; i < q->cut.flight; i++) {
        int slot = (i + offset) % q->cut.flight;
        tdm__program *p = &q->programs[slot];
        if (!p->active && q->next_segment < q->segment_count) {
            world_begin_segment(w, rank, slot);
            return true;
        }
        if (!p->active) continue;
        if (p->at < p->count && world_execute(w, rank, slot)) return true;
        if (p->at == p->count && p->pending == 0) {
            p->active = false;
            q->ended_segments++;
            return true;
        }
    }
    return false;
}

void world_run(world *w, const tdm__algorithm_ops *algorithm)
{
    int left = 0;
    for (int r = 0; r < w->size; r++) {
        tdm_request *q = &w->requests[r];
        q->algorithm = algorithm;
        q->cut = algorithm->cut(q->group, &q->call);
        WORLD_CHECK(w, q->cut.segment > 0 && q->cut.flight > 0);
        WORLD_CHECK(w, q->cut.segment == w->requests[0].cut.segment);
        if (w->failed) return;
        if (q->cut.flight > TDM__MAX_FLIGHT) q->cut.flight = TDM__MAX_FLIGHT;
        size_t span = tdm__call_span(&q->call, w->size);
        q->segment_count = span ? (span + q->cut.segment - 1) / q->cut.segment : 1;
        if (tdm__kind_reduces(q->call.kind)) {
            WORLD_CHECK(w, tdm__leaves_init(&q->leaves, q->call.lanes, w->size, NULL) == TDM_OK);
            WORLD_CHECK(w, tdm__tree_plan_init(&q->plan, q->leaves.nodes, q->leaves.count, 1,
                                               NULL) == TDM_OK);
        }
        left++;
    }
    while (left > 0 && !w->failed) {
        bool moved = false;
        if (w->ready_count && world_draw(w, 3) == 0) {
            world_deliver(w, world_draw(w, w->ready_count));
            continue;
        }
        int offset = world_draw(w, w->size);
        for (int i = 0; i < w->size && !moved; i++) {
            int r = (i + offset) % w->size;
            tdm_request *q = &w->requests[r];
            if (q->state == TDM__REQUEST_DONE) continue;
            moved = world_move(w, r);
            if (q->ended_segments == q->segment_count) {
                q->state = TDM__REQUEST_DONE;
                left--;
            }
        }
        if (!moved && w->ready_count)
            world_deliver(w, world_draw(w, w->ready_count));
        else
            WORLD_CHECK(w, moved); /* otherwise they wait for each other forever */
    }
    WORLD_CHECK(w, w->failed || w->open_messages == 0); /* otherwise a message is not received */
}
