/*
 * sim_world.c: see the header.
 *
 * For 3 to 5 virtual seconds the schedule kills and starts servers, stops processes, cuts the network between processes
 * and the store, resets connections, and loses, repeats and delays messages. A kill never takes the last live member
 * of a chain, because that loses data by definition. Then all faults end, and everything that was begun must end
 * within a limit.
 *
 * The checker:
 *  1. An acknowledged push is in the final state of its shard, once; so is any other push, at most once; the pushes of
 *     a client are in its order.
 *  2. All states and answers that have one version agree on the pushes up to it (by a hash of the prefix).
 *  3. A pull has at least the version of every answer of its shard that any client had before the pull began.
 *  4. Sync: rounds are complete and in the order of the workers. Stale: no pull is further ahead than the bound.
 */
#include "server/sim_world.h"

#include <stdio.h>
#include <stdlib.h>

#define LEASE_S 0.4
#define AGENT_S 0.1
#define TICK_S 0.05
#define END_S 60.0
#define SETTLE_S 2.0 /* for chains that change without clients */
enum { WIDTH = SIM_WIDTH, SYNC_ROUNDS = 12, MAX_VERSIONS = 4096, MAX_CLIENT_IDS = 128 };

/* ---- the world ------------------------------------------------------------------------------------- */

typedef enum event_kind {
    EVENT_MESSAGE,
    EVENT_LOST,  /* a connection was reset */
    EVENT_TICK,  /* of a node or client */
    EVENT_READ,  /* an agent's request reaches the store */
    EVENT_VIEW,  /* the answer reaches the agent */
    EVENT_SWAP,  /* its compare-and-swap reaches the store */
    EVENT_FAULT, /* the next fault */
    EVENT_CLIENT /* a client reads the store */
} event_kind;

typedef struct event {
    double time_s;
    uint64_t order;
    event_kind kind;
    int slot, incarnation; /* of the receiver */
    int from;
    uint64_t from_id, lease, revision;
    double sent_s;
    tdm__server_message message;
    tdm__server_config *config;
    tdm__server_record records[SIM_SERVERS * 2];
    size_t record_count;
} event;

typedef struct sim_server {
    bool is_up;
    int incarnation;
    uint64_t id, lease;
    double stopped_until_s, store_until_s; /* the process is stopped; the store is out of reach */
    tdm__server_node *node;
    tdm__server_agent agent;
    struct world *world;
} sim_server;

typedef struct sim_client {
    bool is_up;
    int incarnation;
    int32_t worker;
    uint64_t id;
    double stopped_until_s, store_until_s;
    tdm__server_caller *caller;
    uint64_t clock;
    bool is_admitted, has_left;
    int pushes_left;
    bool wants_pull[SIM_SHARDS];
    uint64_t floor[SIM_SHARDS]; /* what a pull must contain */
    uint64_t pull_clock;
    struct world *world;
} sim_client;

typedef struct record {
    uint64_t id, lease;
    double until_s;
} record;

typedef struct world {
    tdm_rng rng;
    double now_s, faults_until_s;
    event *heap[1 << 16];
    size_t heap_count;
    uint64_t order;
    bool is_fifo, is_traced;
    double loss, duplication, slowest_s;
    double last_s[SIM_NODES][SIM_NODES];
    double cut_until_s[SIM_NODES][SIM_NODES];
    sim_server servers[SIM_SERVERS];
    sim_client clients[SIM_CLIENTS];
    tdm__server_config config; /* of the store; its revision is the epoch */
    record records[SIM_SERVERS * 4];
    uint64_t id_count, lease_count;
    tdm__server_mutation mutation;
    /* The checker. */
    uint64_t acked[MAX_CLIENT_IDS][SIM_SHARDS]; /* by id of the client */
    bool has_left[MAX_CLIENT_IDS];              /* the last operation was not a push */
    uint64_t seen_version[SIM_SHARDS];          /* the highest of all answers */
    uint64_t prefix[SIM_SHARDS][MAX_VERSIONS];  /* hash of the state at a version; 0: not seen */
    sim_result *result;
} world;

static void problem(world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void problem(world *w, const char *format, ...)
{
    va_list args;
    if (w->result->problem[0]) return;
    va_start(args, format);
    vsnprintf(w->result->problem, sizeof(w->result->problem), format, args);
    va_end(args);
}

static double uniform(world *w, double low, double high)
{
    return low + (high - low) * (double)tdm_rng_uniform(&w->rng);
}

static bool chance(world *w, double probability)
{
    return (double)tdm_rng_uniform(&w->rng) < probability;
}

/* ---- events -------------------------------------------------------------------------------------------- */

static bool precedes(const event *a, const event *b)
{
    if (a->time_s < b->time_s) return true;
    if (b->time_s < a->time_s) return false;
    return a->order < b->order;
}

static void post(world *w, const event *given)
{
    event *e = malloc(sizeof(*e));
    if (!e || w->heap_count == sizeof(w->heap) / sizeof(w->heap[0])) abort();
    *e = *given;
    e->order = w->order++;
    size_t at = w->heap_count++;
    for (; at > 0 && precedes(e, w->heap[(at - 1) / 2]); at = (at - 1) / 2)
        w->heap[at] = w->heap[(at - 1) / 2];
    w->heap[at] = e;
}

static event *take(world *w)
{
    if (w->heap_count == 0) return NULL;
    event *first = w->heap[0], *last = w->heap[--w->heap_count];
    size_t at = 0;
    for (size_t below; (below = 2 * at + 1) < w->heap_count; at = below) {
        if (below + 1 < w->heap_count && precedes(w->heap[below + 1], w->heap[below])) below++;
        if (!precedes(w->heap[below], last)) break;
        w->heap[at] = w->heap[below];
    }
    w->heap[at] = last;
    return first;
}

static void event_free(event *e)
{
    free((void *)(uintptr_t)e->message.bytes);
    free(e->config);
    free(e);
}

/* ---- network --------------------------------------------------------------------------------------------- */

static int slot_of(const world *w, uint64_t id)
{
    for (int i = 0; i < SIM_SERVERS; i++)
        if (w->servers[i].is_up && w->servers[i].id == id) return i;
    for (int i = 0; i < SIM_CLIENTS; i++)
        if (w->clients[i].is_up && w->clients[i].id == id) return SIM_SERVERS + i;
    return -1;
}

static int incarnation_of(const world *w, int slot)
{
    return slot < SIM_SERVERS ? w->servers[slot].incarnation
                              : w->clients[slot - SIM_SERVERS].incarnation;
}

static void deliver(world *w, int from, uint64_t from_id, int to, const tdm__server_message *m)
{
    bool is_cut = w->now_s < w->cut_until_s[from][to];
    if (is_cut || chance(w, w->loss)) return;
    int copies = 1 + chance(w, w->duplication);
    for (int i = 0; i < copies; i++) {
        double at_s = w->now_s + uniform(w, 0.0002, 0.002);
        if (chance(w, 0.05)) at_s += uniform(w, 0, w->slowest_s);
        if (w->is_fifo && at_s < w->last_s[from][to]) at_s = w->last_s[from][to];
        w->last_s[from][to] = at_s;
        event e = {.time_s = at_s,
                   .kind = EVENT_MESSAGE,
                   .slot = to,
                   .incarnation = incarnation_of(w, to),
                   .from = from,
                   .from_id = from_id,
                   .message = *m};
        uint8_t *bytes = malloc(m->byte_count + 1);
        if (!bytes) abort();
        if (m->byte_count > 0) memcpy(bytes, m->bytes, m->byte_count);
        e.message.bytes = bytes;
        post(w, &e);
    }
}

static void server_send(void *user, uint64_t to, const tdm__server_message *m)
{
    sim_server *s = user;
    int slot = slot_of(s->world, to);
    if (m->kind == TDM__SERVER_COPY && m->flag) s->world->result->copies++;
    if (slot >= 0) deliver(s->world, (int)(s - s->world->servers), s->id, slot, m);
}

static void client_send(void *user, uint64_t to, const tdm__server_message *m)
{
    sim_client *c = user;
    int slot = slot_of(c->world, to);
    if (slot >= 0) deliver(c->world, SIM_SERVERS + (int)(c - c->world->clients), c->id, slot, m);
}

/* All messages on the way between two processes are lost, and both notice. */
static void reset_connection(world *w, int a, int b)
{
    for (size_t i = 0; i < w->heap_count; i++) {
        event *e = w->heap[i];
        if (e->kind == EVENT_MESSAGE &&
            ((e->slot == a && e->from == b) || (e->slot == b && e->from == a)))
            e->incarnation = -1; /* nobody gets it */
    }
    for (int i = 0; i < 2; i++)
        post(w, &(event){.time_s = w->now_s + uniform(w, 0.0001, 0.003),
                         .kind = EVENT_LOST,
                         .slot = i ? a : b,
                         .incarnation = incarnation_of(w, i ? a : b),
                         .from = i ? b : a});
}

/* ---- servers ------------------------------------------------------------------------------------------------ */

static void server_claim(void *user, const tdm__server_claim *claim)
{
    sim_server *s = user;
    tdm__server_agent_claim(&s->agent, claim);
}

static void server_accuse(void *user, uint64_t id, uint32_t shard)
{
    sim_server *s = user;
    (void)shard;
    s->agent.accused = id;
}

static void server_failed(void *user, const tdm_error *err)
{
    sim_server *s = user;
    problem(s->world, "server %llu failed: %s", (unsigned long long)s->id, err->message);
}

static bool server_is_connected(void *user, uint64_t client)
{
    const sim_server *s = user;
    int slot = slot_of(s->world, client);
    return slot >= SIM_SERVERS &&
           s->world->now_s >= s->world->cut_until_s[slot][s - s->world->servers];
}

static void server_start(world *w, int slot)
{
    sim_server *s = &w->servers[slot];
    int incarnation = s->incarnation + 1;
    *s = (sim_server){.is_up = true, .incarnation = incarnation, .world = w};
    s->id = ++w->id_count;
    const tdm__server_node_options options = {.id = s->id,
                                              .state = &sim_model_ops,
                                              .relink_s = 0.15,
                                              .accuse_s = 0.6,
                                              .worker_s = 0.8,
                                              .forget_s = 30,
                                              .mutation = w->mutation,
                                              .user = s,
                                              .send = server_send,
                                              .claim = server_claim,
                                              .accuse = server_accuse,
                                              .failed = server_failed,
                                              .is_connected = server_is_connected};
    s->node = tdm__server_node_create(&options);
    if (!s->node) abort();
    s->agent.self.id = s->id;
    s->agent.lease_s = LEASE_S;
    event e = {.slot = slot, .incarnation = incarnation, .kind = EVENT_TICK};
    e.time_s = w->now_s + uniform(w, 0, TICK_S);
    post(w, &e);
    e.kind = EVENT_READ;
    e.sent_s = w->now_s;
    e.time_s = w->now_s + uniform(w, 0.001, 0.01);
    post(w, &e);
}

static void server_kill(world *w, int slot)
{
    sim_server *s = &w->servers[slot];
    s->is_up = false;
    if (w->is_traced) printf("%.3f kill %llu\n", w->now_s, (unsigned long long)s->id);
    tdm__server_node_destroy(s->node);
    s->node = NULL;
    for (int other = 0; other < SIM_NODES; other++)
        if (other != slot && chance(w, 0.8)) reset_connection(w, slot, other);
}

/* ---- store ------------------------------------------------------------------------------------------------- */

static void store_expire(world *w)
{
    for (size_t i = 0; i < sizeof(w->records) / sizeof(w->records[0]); i++)
        if (w->records[i].id != 0 && w->records[i].until_s <= w->now_s) w->records[i] = (record){0};
}

static record *store_find(world *w, uint64_t id, uint64_t lease)
{
    for (size_t i = 0; i < sizeof(w->records) / sizeof(w->records[0]); i++)
        if (w->records[i].id == id && w->records[i].lease == lease) return &w->records[i];
    return NULL;
}

/* An agent renews its lease, or takes a new one, and reads everything. */
static void store_read(world *w, const event *e)
{
    sim_server *s = &w->servers[e->slot];
    event answer = {.kind = EVENT_VIEW,
                    .slot = e->slot,
                    .incarnation = e->incarnation,
                    .sent_s = e->sent_s,
                    .time_s = w->now_s + uniform(w, 0.0005, 0.01)};
    store_expire(w);
    record *mine = s->lease ? store_find(w, s->id, s->lease) : NULL;
    if (!mine) {
        mine = store_find(w, 0, 0);
        if (!mine) abort();
        *mine = (record){.id = s->id, .lease = ++w->lease_count};
        answer.sent_s = e->sent_s;
    }
    mine->until_s = w->now_s + LEASE_S;
    answer.lease = mine->lease;
    for (size_t i = 0; i < sizeof(w->records) / sizeof(w->records[0]); i++)
        if (w->records[i].id != 0 && answer.record_count < SIM_SERVERS * 2)
            answer.records[answer.record_count++] = (tdm__server_record){w->records[i].id,
                                                                         w->records[i].lease};
    answer.config = malloc(sizeof(*answer.config));
    if (!answer.config) abort();
    tdm__server_config_copy(answer.config, &w->config);
    post(w, &answer);
}

static void agent_view(world *w, const event *e)
{
    sim_server *s = &w->servers[e->slot];
    s->lease = s->agent.self.lease = e->lease;
    tdm__server_node_config(s->node, e->config, e->lease, e->sent_s + LEASE_S, w->now_s);
    event swap = {.kind = EVENT_SWAP,
                  .slot = e->slot,
                  .incarnation = e->incarnation,
                  .revision = e->config->epoch,
                  .time_s = w->now_s + uniform(w, 0.0005, 0.01)};
    swap.config = malloc(sizeof(*swap.config));
    if (!swap.config) abort();
    if (tdm__server_agent_plan(&s->agent, e->config, e->records, e->record_count, w->now_s,
                               swap.config)) {
        post(w, &swap);
    } else {
        free(swap.config);
        post(w, &(event){.kind = EVENT_READ,
                         .slot = e->slot,
                         .incarnation = e->incarnation,
                         .time_s = w->now_s + uniform(w, AGENT_S / 2, AGENT_S)});
    }
}

static void trace_config(const world *w, int slot)
{
    printf("%.3f config %llu by %llu:", w->now_s, (unsigned long long)w->config.epoch,
           (unsigned long long)w->servers[slot].id);
    for (uint32_t i = 0; i < w->config.server_count; i++)
        printf(" %llu/%llu", (unsigned long long)w->config.servers[i].id,
               (unsigned long long)w->config.servers[i].lease);
    for (uint32_t s = 0; s < SIM_SHARDS; s++) {
        const tdm__server_chain *chain = &w->config.chains[s];
        printf(" | shard %u epoch %llu:", s, (unsigned long long)chain->epoch);
        for (uint32_t m = 0; m < chain->member_count; m++)
            printf(" %llu", (unsigned long long)chain->members[m]);
        if (chain->joining) printf(" + %llu", (unsigned long long)chain->joining);
    }
    printf("\n");
}

static void store_swap(world *w, const event *e)
{
    if (e->revision == w->config.epoch) {
        tdm__server_config_copy(&w->config, e->config);
        w->result->configs++;
        if (w->is_traced) trace_config(w, e->slot);
    }
    post(w, &(event){.kind = EVENT_READ,
                     .slot = e->slot,
                     .incarnation = e->incarnation,
                     .time_s = w->now_s + uniform(w, 0.0005, 0.01)});
}

/* Whether a server is in force: a process with the lease that the configuration has. One without is already a failure
 * that the chain must survive. */
static bool is_in_force(const world *w, uint64_t id)
{
    const tdm__server_entry *entry = tdm__server_config_find(&w->config, id);
    for (size_t i = 0; entry && i < sizeof(w->records) / sizeof(w->records[0]); i++)
        if (w->records[i].id == id && w->records[i].lease == entry->lease &&
            w->records[i].until_s > w->now_s)
            return slot_of(w, id) >= 0;
    return false;
}

/* Whether a server has asked the store to change the configuration. */
static bool has_swap(const world *w, int slot)
{
    for (size_t i = 0; i < w->heap_count; i++)
        if (w->heap[i]->kind == EVENT_SWAP && w->heap[i]->slot == slot) return true;
    return false;
}

/* Whether each chain keeps a member that is in force. If there was another failure before, a server that is just
 * replacing it lives on until it has. */
static bool kill_is_allowed(const world *w, int slot)
{
    uint64_t id = w->servers[slot].id;
    bool swaps = has_swap(w, slot);
    for (int i = 0; i < SIM_SHARDS; i++) {
        const tdm__server_chain *chain = &w->config.chains[i];
        bool is_member = false, has_other = false, has_all = true;
        for (uint32_t m = 0; m < chain->member_count; m++) {
            bool is_other = chain->members[m] != id, is_good = is_in_force(w, chain->members[m]);
            is_member |= !is_other;
            has_other |= is_other && is_good;
            has_all &= !is_other || is_good;
        }
        if (is_member && (!has_other || (swaps && !has_all))) return false;
    }
    return true;
}

/* ---- checker ------------------------------------------------------------------------------------------------- */

static void check_prefix(world *w, uint32_t shard, uint64_t version, uint64_t hash)
{
    if (version >= MAX_VERSIONS) abort();
    uint64_t *seen = &w->prefix[shard][version];
    hash |= UINT64_C(1) << 63;
    if (*seen == 0) *seen = hash;
    if (*seen != hash)
        problem(w, "shard %u has two contents at version %llu", shard, (unsigned long long)version);
}

static void check_seen(world *w, uint32_t shard, uint64_t version)
{
    if (version > w->seen_version[shard]) w->seen_version[shard] = version;
}

static void client_rows(void *user, const tdm__server_message *m)
{
    sim_client *c = user;
    world *w = c->world;
    float row[WIDTH];
    memcpy(row, m->bytes, sizeof(row));
    uint64_t hash = (uint64_t)row[0] | (uint64_t)row[1] << 20 | (uint64_t)row[2] << 40;
    if (m->version < c->floor[m->shard])
        problem(w, "a pull of shard %u got version %llu after %llu had been seen", m->shard,
                (unsigned long long)m->version, (unsigned long long)c->floor[m->shard]);
    check_prefix(w, m->shard, m->version, hash);
    check_seen(w, m->shard, m->version);
    if (w->config.group.mode == TDM_SERVER_STALE &&
        c->pull_clock > m->clock + w->config.group.bound)
        problem(w, "a worker at round %llu pulled at round %llu of the slowest",
                (unsigned long long)c->pull_clock, (unsigned long long)m->clock);
    c->wants_pull[m->shard] = false;
    w->result->pulled++;
}

static void client_done(void *user, uint32_t shard, uint64_t number)
{
    sim_client *c = user;
    c->world->acked[c->id][shard] = number;
    c->world->has_left[c->id] = c->has_left;
    check_seen(c->world, shard, tdm__server_caller_at(c->caller, shard).version);
    c->world->result->acked++;
}

static void check_final_shard(world *w, uint32_t shard, const sim_model *m)
{
    uint64_t last[MAX_CLIENT_IDS] = {0};
    for (size_t i = 0; i < m->count; i++) {
        uint64_t client = m->pushes[i] >> 32, number = m->pushes[i] & 0xffffffff;
        if (number <= last[client])
            problem(w, "push %llu of client %llu was applied twice or late",
                    (unsigned long long)number, (unsigned long long)client);
        /* Number 1 is the join; every other one is a push, or in sync mode one that came too late. */
        if (w->config.group.mode != TDM_SERVER_SYNC &&
            number != (last[client] ? last[client] + 1 : 2))
            problem(w, "push %llu of client %llu was lost", (unsigned long long)last[client] + 1,
                    (unsigned long long)client);
        last[client] = number;
    }
    for (uint64_t id = 0; w->config.group.mode != TDM_SERVER_SYNC && id < MAX_CLIENT_IDS; id++) {
        uint64_t acked = w->acked[id][shard];
        if (acked > 0) acked -= w->has_left[id];
        if (acked > 1 && last[id] < acked)
            problem(w, "acknowledged push %llu of client %llu was lost", (unsigned long long)acked,
                    (unsigned long long)id);
    }
    uint32_t workers = w->config.group.workers;
    for (size_t i = 0; workers > 0 && i < m->count; i++)
        if (m->clocks[i] != i / workers + 1)
            problem(w, "round %zu of shard %u is not complete", i / workers + 1, shard);
}

static bool clients_are_done(const world *w)
{
    for (int i = 0; i < SIM_CLIENTS; i++) {
        const sim_client *c = &w->clients[i];
        for (uint32_t s = 0; s < SIM_SHARDS; s++) {
            tdm__server_caller_shard about = tdm__server_caller_at(c->caller, s);
            if (about.done < about.added || c->wants_pull[s]) return false;
        }
        if (c->pushes_left > 0 || !c->has_left) return false;
    }
    return true;
}

/* All members agree with the tail on its prefix. */
static void check_end(world *w)
{
    for (uint32_t s = 0; s < SIM_SHARDS; s++) {
        const tdm__server_chain *chain = &w->config.chains[s];
        int tail = slot_of(w, chain->members[chain->member_count - 1]);
        tdm__server_shard_info info, other;
        if (tail < 0 || !tdm__server_node_shard(w->servers[tail].node, s, &info)) {
            problem(w, "shard %u has no tail at the end", s);
            return;
        }
        check_final_shard(w, s, info.state);
        check_prefix(w, s, info.applied, sim_model_hash(info.state) & ((UINT64_C(1) << 60) - 1));
        for (uint32_t m = 0; m + 1 < chain->member_count; m++) {
            int slot = slot_of(w, chain->members[m]);
            if (slot < 0 || !tdm__server_node_shard(w->servers[slot].node, s, &other)) continue;
            if (other.applied == info.applied &&
                sim_model_hash(other.state) != sim_model_hash(info.state))
                problem(w, "two members of shard %u have different states", s);
        }
    }
}

/* ---- clients -------------------------------------------------------------------------------------------------- */

static void client_start(world *w, int number)
{
    sim_client *c = &w->clients[number];
    int incarnation = c->incarnation + 1, left = c->pushes_left;
    *c = (sim_client){.is_up = true, .incarnation = incarnation, .worker = number, .world = w};
    c->id = ++w->id_count;
    c->pushes_left = incarnation == 1 ? 12 + (int)tdm_rng_below(&w->rng, 20) : left;
    if (w->config.group.mode == TDM_SERVER_SYNC) c->pushes_left = SYNC_ROUNDS;
    const tdm__server_caller_options options = {.id = c->id,
                                                .worker = number,
                                                .began = c->id,
                                                .resend_s = 0.2,
                                                .user = c,
                                                .send = client_send,
                                                .rows = client_rows,
                                                .done = client_done};
    c->caller = tdm__server_caller_create(&options, &w->config);
    if (!c->caller || c->id >= MAX_CLIENT_IDS) abort();
    event e = {.slot = SIM_SERVERS + number, .incarnation = incarnation, .kind = EVENT_TICK};
    e.time_s = w->now_s + uniform(w, 0, TICK_S);
    post(w, &e);
    e.kind = EVENT_CLIENT;
    post(w, &e);
}

static void client_push_round(sim_client *c)
{
    world *w = c->world;
    uint64_t clock = c->clock + 1;
    for (uint32_t s = 0; s < SIM_SHARDS; s++) {
        tdm__server_op_view view;
        const tdm__server_op head = {
            .kind = TDM__SERVER_OP_PUSH, .worker = c->worker, .clock = clock, .lr = 1, .count = 1};
        tdm__blob *blob = tdm__server_op_make(&head, WIDTH, &view);
        if (!blob) abort();
        memset(blob->data + sizeof(head), 0, blob->bytes - sizeof(head));
        if (!tdm__server_caller_add(c->caller, s, blob, w->now_s)) abort();
    }
    c->clock = clock;
    c->pushes_left--;
}

static bool client_is_idle(const sim_client *c)
{
    for (uint32_t s = 0; s < SIM_SHARDS; s++) {
        tdm__server_caller_shard about = tdm__server_caller_at(c->caller, s);
        if (about.done < about.added || c->wants_pull[s]) return false;
    }
    return true;
}

static uint64_t client_admitted_clock(const sim_client *c)
{
    uint64_t clock = UINT64_MAX;
    for (uint32_t s = 0; s < SIM_SHARDS; s++) {
        uint64_t one = tdm__server_caller_at(c->caller, s).clock;
        if (one < clock) clock = one;
    }
    return clock;
}

static void client_leave(sim_client *c)
{
    world *w = c->world;
    c->has_left = true;
    for (uint32_t s = 0; s < SIM_SHARDS; s++) {
        tdm__server_op_view view;
        const tdm__server_op head = {.kind = TDM__SERVER_OP_LEAVE, .worker = c->worker};
        tdm__blob *blob = tdm__server_op_make(&head, WIDTH, &view);
        if (!blob || !tdm__server_caller_add(c->caller, s, blob, w->now_s)) abort();
    }
}

/* Makes pushes and pulls, several at a time unless the mode is sync. */
static void client_step(sim_client *c)
{
    world *w = c->world;
    bool is_async = w->config.group.mode == TDM_SERVER_ASYNC;
    tdm__server_caller_shard first = tdm__server_caller_at(c->caller, 0);
    if (!is_async && !client_is_idle(c)) return;
    if (first.done == 0 || tdm__server_caller_at(c->caller, 1).done == 0) return; /* not admitted */
    if (!c->is_admitted) {
        c->is_admitted = true;
        c->clock = client_admitted_clock(c);
        if (w->config.group.mode == TDM_SERVER_SYNC) c->pushes_left -= (int)c->clock;
    }
    if (c->pushes_left == 0 && !c->has_left && client_is_idle(c)) {
        client_leave(c);
        return;
    }
    if (c->pushes_left > 0 && first.added - first.done < 6 && chance(w, 0.7)) client_push_round(c);
    for (uint32_t s = 0; s < SIM_SHARDS; s++) {
        uint64_t key = tdm_rng_u64(&w->rng);
        if (c->wants_pull[s] || c->pushes_left == 0 || !chance(w, 0.4)) continue;
        c->wants_pull[s] = true;
        c->floor[s] = w->seen_version[s];
        c->pull_clock = is_async ? 0 : c->clock;
        if (!tdm__server_caller_pull(c->caller, s, c->pull_clock, &key, 1, w->now_s)) abort();
    }
}

static void client_crash(world *w, int number)
{
    sim_client *c = &w->clients[number];
    c->is_up = false;
    tdm__server_caller_destroy(c->caller);
    c->caller = NULL;
    client_start(w, number);
}

/* ---- faults ---------------------------------------------------------------------------------------------------- */

static void fault_server(world *w)
{
    int slot = (int)tdm_rng_below(&w->rng, SIM_SERVERS);
    sim_server *s = &w->servers[slot];
    if (!s->is_up)
        server_start(w, slot);
    else if (kill_is_allowed(w, slot)) {
        server_kill(w, slot);
        w->result->kills++;
    }
}

static void fault_any(world *w)
{
    int a = (int)tdm_rng_below(&w->rng, SIM_NODES), b = (int)tdm_rng_below(&w->rng, SIM_NODES);
    double until_s = w->now_s + uniform(w, 0.01, chance(w, 0.3) ? 1.5 : 0.3);
    if (until_s > w->faults_until_s) until_s = w->faults_until_s;
    switch (tdm_rng_below(&w->rng, 9)) {
    case 0:
    case 1:
    case 2: fault_server(w); break;
    case 3: /* the process is stopped */
        if (a < SIM_SERVERS)
            w->servers[a].stopped_until_s = until_s;
        else
            w->clients[a - SIM_SERVERS].stopped_until_s = until_s;
        break;
    case 4:
        if (a < SIM_SERVERS) w->servers[a].store_until_s = until_s;
        break;
    case 5: /* one direction, or both */
        w->cut_until_s[a][b] = until_s;
        if (chance(w, 0.7)) w->cut_until_s[b][a] = until_s;
        break;
    case 6: /* one process and all others */
        for (int i = 0; i < SIM_NODES; i++) w->cut_until_s[a][i] = w->cut_until_s[i][a] = until_s;
        break;
    case 7:
        if (a != b) reset_connection(w, a, b);
        break;
    default:
        if (a >= SIM_SERVERS && w->id_count < MAX_CLIENT_IDS - 40 && chance(w, 0.5))
            client_crash(w, a - SIM_SERVERS);
        break;
    }
}

static void faults_end(world *w)
{
    w->loss = w->duplication = 0;
    for (int i = 0; i < SIM_SERVERS; i++)
        if (!w->servers[i].is_up) server_start(w, i);
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

/* When the receiver of an event runs again; 0: now. */
static double stopped_until(const world *w, const event *e)
{
    if (e->kind == EVENT_FAULT || e->kind == EVENT_READ || e->kind == EVENT_SWAP) return 0;
    return e->slot < SIM_SERVERS ? w->servers[e->slot].stopped_until_s
                                 : w->clients[e->slot - SIM_SERVERS].stopped_until_s;
}

static void run_server_event(world *w, event *e)
{
    sim_server *s = &w->servers[e->slot];
    bool has_store = w->now_s >= s->store_until_s;
    switch (e->kind) {
    case EVENT_MESSAGE: tdm__server_node_message(s->node, e->from_id, &e->message, w->now_s); break;
    case EVENT_LOST:
        if (e->from < SIM_SERVERS) tdm__server_node_lost(s->node, w->servers[e->from].id, w->now_s);
        break;
    case EVENT_TICK:
        tdm__server_node_tick(s->node, w->now_s);
        post(w, &(event){.kind = EVENT_TICK,
                         .slot = e->slot,
                         .incarnation = e->incarnation,
                         .time_s = w->now_s + TICK_S});
        break;
    case EVENT_READ:
    case EVENT_SWAP: {
        /* A process that is stopped sends nothing; what it had sent arrives. */
        bool is_stopped = w->now_s < s->stopped_until_s && e->kind == EVENT_READ;
        if (has_store && !is_stopped) {
            if (e->kind == EVENT_READ && !(e->sent_s > 0)) e->sent_s = w->now_s;
            if (e->kind == EVENT_READ) store_read(w, e);
            if (e->kind == EVENT_SWAP) store_swap(w, e);
            break;
        }
        post(w, &(event){.kind = EVENT_READ,
                         .slot = e->slot,
                         .incarnation = e->incarnation,
                         .time_s = (is_stopped ? s->stopped_until_s : w->now_s) + 0.05});
        break;
    }
    case EVENT_VIEW:
        if (has_store)
            agent_view(w, e);
        else
            post(w, &(event){.kind = EVENT_READ,
                             .slot = e->slot,
                             .incarnation = e->incarnation,
                             .time_s = w->now_s + 0.05});
        break;
    default: break;
    }
}

static void run_client_event(world *w, event *e)
{
    sim_client *c = &w->clients[e->slot - SIM_SERVERS];
    switch (e->kind) {
    case EVENT_MESSAGE:
        tdm__server_caller_message(c->caller, e->from_id, &e->message, w->now_s);
        break;
    case EVENT_LOST:
        if (e->from < SIM_SERVERS)
            tdm__server_caller_lost(c->caller, w->servers[e->from].id, w->now_s);
        break;
    case EVENT_TICK:
        tdm__server_caller_tick(c->caller, w->now_s);
        client_step(c);
        break;
    case EVENT_CLIENT: tdm__server_caller_config(c->caller, &w->config, w->now_s); break;
    default: break;
    }
    if (e->kind == EVENT_TICK || e->kind == EVENT_CLIENT)
        post(w, &(event){.kind = e->kind,
                         .slot = e->slot,
                         .incarnation = e->incarnation,
                         .time_s = w->now_s +
                                   (e->kind == EVENT_TICK ? uniform(w, 0.01, TICK_S) : 0.05)});
}

static void run_event(world *w, event *e)
{
    double until_s = stopped_until(w, e);
    if (e->kind == EVENT_FAULT) {
        if (w->now_s >= w->faults_until_s) {
            faults_end(w);
            return;
        }
        fault_any(w);
        double next_s = w->now_s + uniform(w, 0.02, 0.35);
        if (next_s > w->faults_until_s) next_s = w->faults_until_s;
        post(w, &(event){.kind = EVENT_FAULT, .time_s = next_s});
        return;
    }
    if (w->now_s >= w->faults_until_s) until_s = 0;
    bool is_up = e->slot < SIM_SERVERS ? w->servers[e->slot].is_up
                                       : w->clients[e->slot - SIM_SERVERS].is_up;
    if (!is_up || incarnation_of(w, e->slot) != e->incarnation) return;
    if (w->now_s < until_s) {
        event later = *e;
        later.time_s = until_s;
        e->message.bytes = NULL; /* moved */
        e->config = NULL;
        post(w, &later);
        return;
    }
    if (e->slot < SIM_SERVERS)
        run_server_event(w, e);
    else
        run_client_event(w, e);
}

/* For a person: where everything waits. */
static void world_print(const world *w)
{
    printf("mode %d, replication %u, bound %u\n", w->config.group.mode, w->config.group.replication,
           w->config.group.bound);
    for (uint32_t s = 0; s < SIM_SHARDS; s++) {
        const tdm__server_chain *chain = &w->config.chains[s];
        printf("shard %u epoch %llu joining %llu members", s, (unsigned long long)chain->epoch,
               (unsigned long long)chain->joining);
        for (uint32_t m = 0; m < chain->member_count; m++)
            printf(" %llu", (unsigned long long)chain->members[m]);
        printf("\n");
        for (int i = 0; i < SIM_SERVERS; i++) {
            tdm__server_shard_info info;
            const sim_server *server = &w->servers[i];
            if (!server->is_up || !tdm__server_node_shard(server->node, s, &info)) continue;
            printf("  server %llu: valid %d member %d complete %d epoch %llu applied %llu "
                   "committed %llu round %llu\n",
                   (unsigned long long)server->id,
                   tdm__server_node_is_valid(server->node, w->now_s), info.is_member,
                   info.is_complete, (unsigned long long)info.epoch,
                   (unsigned long long)info.applied, (unsigned long long)info.committed,
                   (unsigned long long)info.registry->round);
        }
        for (int i = 0; i < SIM_CLIENTS; i++) {
            tdm__server_caller_shard about = tdm__server_caller_at(w->clients[i].caller, s);
            printf("  client %llu: added %llu done %llu clock %llu left %d pulls %d: %s\n",
                   (unsigned long long)w->clients[i].id, (unsigned long long)about.added,
                   (unsigned long long)about.done, (unsigned long long)w->clients[i].clock,
                   w->clients[i].pushes_left, w->clients[i].wants_pull[s], about.note);
        }
    }
}

static void world_init(world *w, uint64_t seed, tdm__server_mutation mutation, sim_result *out)
{
    w->rng = tdm_rng_at((tdm_rng_address){.seed = seed, .stream = TDM_RNG_STREAM_USER});
    w->result = out;
    w->mutation = mutation;
    w->is_traced = getenv("TANDEM_SEED") != NULL;
    w->faults_until_s = uniform(w, 3, 5);
    w->is_fifo = chance(w, 0.7);
    w->loss = chance(w, 0.5) ? uniform(w, 0, 0.05) : 0;
    w->duplication = chance(w, 0.5) ? uniform(w, 0, 0.1) : 0;
    w->slowest_s = chance(w, 0.3) ? 0.4 : 0.02;
    w->config = (tdm__server_config){.epoch = 1};
    tdm_server_group *group = &w->config.group;
    group->shards = SIM_SHARDS;
    group->replication = 2 + (uint32_t)tdm_rng_below(&w->rng, 2);
    group->width = WIDTH;
    if (chance(w, 0.2)) {
        group->mode = TDM_SERVER_SYNC;
        group->workers = SIM_CLIENTS;
    } else if (chance(w, 0.25)) {
        group->mode = TDM_SERVER_STALE;
        group->bound = 1 + (uint32_t)tdm_rng_below(&w->rng, 3);
    }
    for (int i = 0; i < SIM_CLIENTS; i++) client_start(w, i);
    for (int i = 0; i < SIM_SERVERS; i++)
        if (i < 3 || chance(w, 0.5)) server_start(w, i);
    post(w, &(event){.kind = EVENT_FAULT, .time_s = 0.2});
}

void sim_run(uint64_t seed, tdm__server_mutation mutation, sim_result *out)
{
    world *w = calloc(1, sizeof(*w));
    if (!w) abort();
    *out = (sim_result){0};
    world_init(w, seed, mutation, out);
    double done_s = 0;
    for (event *e; !out->problem[0] && (e = take(w));) {
        w->now_s = e->time_s;
        out->events++;
        run_event(w, e);
        event_free(e);
        bool is_done = w->now_s > w->faults_until_s && clients_are_done(w);
        if (!is_done) done_s = w->now_s;
        if (w->now_s > done_s + SETTLE_S) break;
        if (w->now_s > END_S) problem(w, "not everything ended within %g s", END_S);
    }
    if (!out->problem[0]) check_end(w);
    if (out->problem[0] && w->is_traced) world_print(w);
    out->virtual_s = w->now_s;
    while (w->heap_count > 0) event_free(take(w));
    for (int i = 0; i < SIM_SERVERS; i++) tdm__server_node_destroy(w->servers[i].node);
    for (int i = 0; i < SIM_CLIENTS; i++) tdm__server_caller_destroy(w->clients[i].caller);
    free(w);
}
