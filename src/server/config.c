/*
 * config.c: the configuration of a group: its text in the store, and the rules for the next one.
 *
 * tdm__server_plan is the only place that decides which servers form a chain. Every server calls it with what it has
 * read from the store, and writes the result by compare-and-swap, so two servers never decide differently about one
 * configuration. The rules keep invariant 2 of server.h: a server is removed from a chain only if the lease with which
 * it is in force has ended, or by itself, or if it is not the tail (only a tail answers by itself). Members are removed
 * by members only, so a chain never loses its last one: if all are gone, it waits for one that has the data.
 */
#include "base/base.h"
#include "server/server.h"

#include <stdio.h>
#include <string.h>

void tdm__server_config_copy(tdm__server_config *to, const tdm__server_config *from)
{
    to->epoch = from->epoch;
    to->group = from->group;
    to->server_count = from->server_count;
    memcpy(to->servers, from->servers, from->server_count * sizeof(*from->servers));
    memcpy(to->chains, from->chains, from->group.shards * sizeof(*from->chains));
}

const tdm__server_entry *tdm__server_config_find(const tdm__server_config *config, uint64_t id)
{
    for (uint32_t i = 0; i < config->server_count; i++)
        if (config->servers[i].id == id) return &config->servers[i];
    return NULL;
}

/* ---- settings ------------------------------------------------------------------------------------ */

static tdm_status group_fail(const char *name, double value, const char *allowed, tdm_error *err)
{
    return tdm_fail(err, TDM_ERR_INVALID, "group of servers: %s is %g; it must be %s", name, value,
                    allowed);
}

static tdm_status group_check_rates(const tdm_server_group *g, tdm_error *err)
{
    const struct {
        const char *name;
        double value;
    } rates[] = {{"init_scale", g->init_scale},
                 {"weight_decay", g->weight_decay},
                 {"l1", g->l1},
                 {"l2", g->l2}};
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++)
        if (!(rates[i].value >= 0) || rates[i].value > 1e6)
            return group_fail(rates[i].name, rates[i].value, "from 0 to 1e6", err);
    bool is_ftrl = g->optim == TDM_SERVER_FTRL;
    if (!is_ftrl && (g->l1 > 0 || g->l2 > 0))
        return tdm_fail(err, TDM_ERR_INVALID,
                        "group of servers: l1 and l2 belong to FTRL; set optim to ftrl, or use "
                        "weight_decay");
    if (is_ftrl && g->weight_decay > 0)
        return tdm_fail(err, TDM_ERR_INVALID, "group of servers: FTRL has no weight_decay; use l2");
    return TDM_OK;
}

tdm_status tdm__server_group_check(tdm_server_group *g, tdm_error *err)
{
    if (g->shards == 0) g->shards = 8;
    if (g->replication == 0) g->replication = 1;
    if (g->limit_bytes == 0) g->limit_bytes = UINT64_C(4) << 30;
    if (g->shards > TDM_SERVER_MAX_SHARDS) return group_fail("shards", g->shards, "1 to 256", err);
    if (g->replication > TDM_SERVER_MAX_REPLICATION)
        return group_fail("replication", g->replication, "1 to 8", err);
    if (g->width == 0 || g->width > TDM_SERVER_MAX_WIDTH)
        return group_fail("width", g->width, "1 to 4096", err);
    if (g->mode < TDM_SERVER_ASYNC || g->mode > TDM_SERVER_STALE)
        return group_fail("mode", g->mode, "async, sync or stale", err);
    if (g->optim < TDM_SERVER_SGD || g->optim > TDM_SERVER_ADAM)
        return group_fail("optim", g->optim, "sgd, adagrad, ftrl or adam", err);
    bool is_sync = g->mode == TDM_SERVER_SYNC, is_stale = g->mode == TDM_SERVER_STALE;
    if (is_sync ? g->workers < 1 || g->workers > TDM_SERVER_MAX_WORKERS : g->workers != 0)
        return group_fail("workers", g->workers,
                          is_sync ? "1 to 1024 with mode sync" : "0 unless the mode is sync", err);
    if (!is_stale && g->bound != 0)
        return group_fail("bound", g->bound, "0 unless the mode is stale", err);
    if (g->bound > 1000000) return group_fail("bound", g->bound, "at most 1000000", err);
    if (g->limit_bytes < (UINT64_C(1) << 20) || g->limit_bytes > (UINT64_C(1) << 40))
        return group_fail("limit_bytes", (double)g->limit_bytes, "from 1 MiB to 1 TiB", err);
    return group_check_rates(g, err);
}

tdm_status tdm__server_group_match(const tdm_server_group *group, const tdm_server_group *mine,
                                   tdm_error *err)
{
    const struct {
        const char *name;
        double theirs, mine;
    } pairs[] = {{"shards", group->shards, mine->shards},
                 {"replication", group->replication, mine->replication},
                 {"mode", group->mode, mine->mode},
                 {"bound", group->bound, mine->bound},
                 {"workers", group->workers, mine->workers},
                 {"width", group->width, mine->width},
                 {"optim", group->optim, mine->optim},
                 {"seed", (double)group->seed, (double)mine->seed},
                 {"init_scale", group->init_scale, mine->init_scale},
                 {"weight_decay", group->weight_decay, mine->weight_decay},
                 {"l1", group->l1, mine->l1},
                 {"l2", group->l2, mine->l2},
                 {"limit_bytes", (double)group->limit_bytes, (double)mine->limit_bytes}};
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
        if (pairs[i].theirs < pairs[i].mine || pairs[i].theirs > pairs[i].mine)
            return tdm_fail(err, TDM_ERR_PEER_MISMATCH,
                            "%s is %g in this group of servers, and %g here; start this server "
                            "with the group's value, or choose another name for the group",
                            pairs[i].name, pairs[i].theirs, pairs[i].mine);
    return TDM_OK;
}

/* ---- text ---------------------------------------------------------------------------------------- */

static void write_group(const tdm_server_group *g, tdm_json_writer *w)
{
    tdm_json_key(w, "group");
    tdm_json_object_begin(w);
    tdm_json_put_uint(w, "shards", g->shards);
    tdm_json_put_uint(w, "replication", g->replication);
    tdm_json_put_uint(w, "mode", (uint64_t)g->mode);
    tdm_json_put_uint(w, "bound", g->bound);
    tdm_json_put_uint(w, "workers", g->workers);
    tdm_json_put_uint(w, "width", g->width);
    tdm_json_put_uint(w, "optim", (uint64_t)g->optim);
    tdm_json_put_uint(w, "seed", g->seed);
    tdm_json_put_double(w, "init_scale", g->init_scale);
    tdm_json_put_double(w, "weight_decay", g->weight_decay);
    tdm_json_put_double(w, "l1", g->l1);
    tdm_json_put_double(w, "l2", g->l2);
    tdm_json_put_uint(w, "limit_bytes", g->limit_bytes);
    tdm_json_object_end(w);
}

void tdm__server_config_write(const tdm__server_config *config, tdm_str *out)
{
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_uint(&w, "epoch", config->epoch);
    write_group(&config->group, &w);
    tdm_json_key(&w, "servers");
    tdm_json_array_begin(&w);
    for (uint32_t i = 0; i < config->server_count; i++) {
        const tdm__server_entry *server = &config->servers[i];
        tdm_json_object_begin(&w);
        tdm_json_put_uint(&w, "id", server->id);
        tdm_json_put_uint(&w, "lease", server->lease);
        tdm_json_put_uint(&w, "leaving", server->is_leaving);
        tdm_json_put_string(&w, "address", server->address);
        tdm_json_object_end(&w);
    }
    tdm_json_array_end(&w);
    tdm_json_key(&w, "chains");
    tdm_json_array_begin(&w);
    for (uint32_t i = 0; i < config->group.shards; i++) {
        const tdm__server_chain *chain = &config->chains[i];
        tdm_json_object_begin(&w);
        tdm_json_put_uint(&w, "epoch", chain->epoch);
        tdm_json_put_uint(&w, "joining", chain->joining);
        tdm_json_put_uint(&w, "join_epoch", chain->join_epoch);
        tdm_json_key(&w, "members");
        tdm_json_array_begin(&w);
        for (uint32_t m = 0; m < chain->member_count; m++) tdm_json_uint(&w, chain->members[m]);
        tdm_json_array_end(&w);
        tdm_json_object_end(&w);
    }
    tdm_json_array_end(&w);
    tdm_json_object_end(&w);
}

static bool take_u64(const tdm_json *object, const char *key, uint64_t max, uint64_t *out)
{
    return tdm_json_as_u64(tdm_json_get(object, key), out) && *out <= max;
}

static bool take_u32(const tdm_json *object, const char *key, uint32_t *out)
{
    uint64_t value = 0;
    if (!take_u64(object, key, UINT32_MAX, &value)) return false;
    *out = (uint32_t)value;
    return true;
}

static bool take_double(const tdm_json *object, const char *key, double *out)
{
    const tdm_json *value = tdm_json_get(object, key);
    if (!value || value->type != TDM_JSON_NUMBER) return false;
    *out = value->number;
    return true;
}

static bool read_group(const tdm_json *object, tdm_server_group *g)
{
    uint64_t mode = 0, optim = 0;
    if (!take_u32(object, "shards", &g->shards) ||
        !take_u32(object, "replication", &g->replication) ||
        !take_u64(object, "mode", TDM_SERVER_STALE, &mode) ||
        !take_u32(object, "bound", &g->bound) || !take_u32(object, "workers", &g->workers) ||
        !take_u32(object, "width", &g->width) ||
        !take_u64(object, "optim", TDM_SERVER_ADAM, &optim) ||
        !take_u64(object, "seed", UINT64_MAX, &g->seed) ||
        !take_double(object, "init_scale", &g->init_scale) ||
        !take_double(object, "weight_decay", &g->weight_decay) ||
        !take_double(object, "l1", &g->l1) || !take_double(object, "l2", &g->l2) ||
        !take_u64(object, "limit_bytes", UINT64_MAX, &g->limit_bytes))
        return false;
    g->mode = (int)mode;
    g->optim = (int)optim;
    return g->shards > 0 && tdm__server_group_check(g, NULL) == TDM_OK;
}

static bool read_server(const tdm_json *object, tdm__server_entry *out)
{
    uint64_t leaving = 0;
    const char *address = tdm_json_as_string(tdm_json_get(object, "address"));
    if (!take_u64(object, "id", UINT64_MAX, &out->id) || out->id == 0 ||
        !take_u64(object, "lease", UINT64_MAX, &out->lease) ||
        !take_u64(object, "leaving", 1, &leaving) || !address ||
        strlen(address) >= sizeof(out->address))
        return false;
    out->is_leaving = leaving == 1;
    snprintf(out->address, sizeof(out->address), "%s", address);
    return true;
}

static bool read_chain(const tdm_json *object, const tdm__server_config *config,
                       tdm__server_chain *out)
{
    const tdm_json *members = tdm_json_get(object, "members");
    if (!members || members->type != TDM_JSON_ARRAY || members->count > TDM__SERVER_MAX_CHAIN ||
        !take_u64(object, "epoch", UINT64_MAX, &out->epoch) ||
        !take_u64(object, "joining", UINT64_MAX, &out->joining) ||
        !take_u64(object, "join_epoch", UINT64_MAX, &out->join_epoch))
        return false;
    out->member_count = 0;
    for (const tdm_json *m = members->first; m; m = m->next) {
        uint64_t id = 0;
        if (!tdm_json_as_u64(m, &id) || !tdm__server_config_find(config, id)) return false;
        out->members[out->member_count++] = id;
    }
    return out->joining == 0 || tdm__server_config_find(config, out->joining);
}

static bool read_config(const tdm_json *root, tdm__server_config *out)
{
    const tdm_json *servers = tdm_json_get(root, "servers"), *chains = tdm_json_get(root, "chains");
    if (!take_u64(root, "epoch", UINT64_MAX, &out->epoch) ||
        !read_group(tdm_json_get(root, "group"), &out->group) || !servers ||
        servers->type != TDM_JSON_ARRAY || servers->count > TDM__SERVER_MAX_SERVERS || !chains ||
        chains->type != TDM_JSON_ARRAY || chains->count != out->group.shards)
        return false;
    out->server_count = 0;
    for (const tdm_json *s = servers->first; s; s = s->next)
        if (!read_server(s, &out->servers[out->server_count++])) return false;
    uint32_t shard = 0;
    for (const tdm_json *c = chains->first; c; c = c->next)
        if (!read_chain(c, out, &out->chains[shard++])) return false;
    return true;
}

tdm_status tdm__server_config_read(const char *text, tdm__server_config *out, tdm_error *err)
{
    const tdm_json *root = NULL;
    tdm_arena *arena = tdm_arena_create("servers");
    if (!arena) return tdm_fail_oom(err, "to read the configuration of the servers");
    tdm_status status = tdm_json_parse(text, strlen(text), arena, &root, err);
    if (status == TDM_OK && !read_config(root, out))
        status = tdm_fail(err, TDM_ERR_FORMAT,
                          "the store has an invalid configuration of this group of servers; stop "
                          "all its servers, then start them again with another name");
    tdm_arena_destroy(arena);
    return status;
}

/* ---- the next configuration ------------------------------------------------------------------------ */

typedef struct plan {
    const tdm__server_record *records;
    size_t record_count;
    const tdm__server_request *request;
    tdm__server_config *next;
    bool is_changed;
    bool is_alive[TDM__SERVER_MAX_SERVERS]; /* by place in next->servers */
    uint32_t loads[TDM__SERVER_MAX_SERVERS];
} plan;

static uint32_t plan_place(const plan *p, uint64_t id)
{
    const tdm__server_entry *server = tdm__server_config_find(p->next, id);
    return server ? (uint32_t)(server - p->next->servers) : TDM__SERVER_MAX_SERVERS;
}

static bool plan_entry_is_alive(const plan *p, const tdm__server_entry *server)
{
    if (server->lease == 0) {
        for (size_t i = 0; i < p->request->gone_count; i++)
            if (p->request->gone[i] == server->id) return false;
        return true; /* perhaps it does not know yet that it was expelled */
    }
    for (size_t i = 0; i < p->record_count; i++)
        if (p->records[i].id == server->id && p->records[i].lease == server->lease) return true;
    return false;
}

static bool plan_is_alive(const plan *p, uint64_t id)
{
    uint32_t place = plan_place(p, id);
    return place < TDM__SERVER_MAX_SERVERS && p->is_alive[place];
}

/* Whether a server can get more to do. */
static bool plan_can_take(const plan *p, uint32_t place)
{
    const tdm__server_entry *server = &p->next->servers[place];
    return p->is_alive[place] && !server->is_leaving && server->lease != 0;
}

static uint32_t chain_find(const tdm__server_chain *chain, uint64_t id)
{
    uint32_t at = 0;
    while (at < chain->member_count && chain->members[at] != id) at++;
    return at;
}

static void plan_drop_member(plan *p, tdm__server_chain *chain, uint32_t at)
{
    uint32_t place = plan_place(p, chain->members[at]);
    if (place < TDM__SERVER_MAX_SERVERS && p->loads[place] > 0) p->loads[place]--;
    chain->member_count--;
    for (uint32_t i = at; i < chain->member_count; i++) chain->members[i] = chain->members[i + 1];
    chain->members[chain->member_count] = 0;
    p->is_changed = true;
}

static void plan_set_joining(plan *p, tdm__server_chain *chain, uint64_t id)
{
    uint32_t before = plan_place(p, chain->joining), place = plan_place(p, id);
    if (chain->joining != 0 && before < TDM__SERVER_MAX_SERVERS && p->loads[before] > 0)
        p->loads[before]--;
    if (id != 0 && place < TDM__SERVER_MAX_SERVERS) p->loads[place]++;
    chain->joining = id;
    chain->join_epoch = id ? p->next->epoch : 0;
    p->is_changed = true;
}

static void plan_count(plan *p)
{
    tdm__server_config *next = p->next;
    memset(p->loads, 0, sizeof(p->loads));
    for (uint32_t i = 0; i < next->server_count; i++)
        p->is_alive[i] = plan_entry_is_alive(p, &next->servers[i]);
    for (uint32_t s = 0; s < next->group.shards; s++) {
        const tdm__server_chain *chain = &next->chains[s];
        for (uint32_t m = 0; m < chain->member_count; m++) {
            uint32_t place = plan_place(p, chain->members[m]);
            if (place < TDM__SERVER_MAX_SERVERS) p->loads[place]++;
        }
        uint32_t joining = plan_place(p, chain->joining);
        if (chain->joining != 0 && joining < TDM__SERVER_MAX_SERVERS) p->loads[joining]++;
    }
}

/* Enters this server with its lease, and what it wants. */
static void plan_enter_self(plan *p)
{
    tdm__server_config *next = p->next;
    const tdm__server_entry *self = &p->request->self;
    if (self->id == 0) return;
    uint32_t place = plan_place(p, self->id);
    if (place == TDM__SERVER_MAX_SERVERS) {
        if (next->server_count == TDM__SERVER_MAX_SERVERS) return;
        next->servers[next->server_count++] = *self;
        p->is_changed = true;
        plan_count(p);
        return;
    }
    tdm__server_entry *entry = &next->servers[place];
    if (entry->is_leaving != self->is_leaving) p->is_changed = true;
    entry->is_leaving = self->is_leaving;
    if (entry->lease == self->lease) return;
    /* The others may remove a server that was expelled, before it returns with its data. */
    bool is_needed = false;
    for (uint32_t s = 0; entry->lease == 0 && s < next->group.shards; s++)
        is_needed |= chain_find(&next->chains[s], self->id) < next->chains[s].member_count &&
                     next->chains[s].member_count > 1;
    if (is_needed && !p->request->returns) return;
    entry->lease = self->lease;
    p->is_changed = true;
    plan_count(p);
}

static void plan_expel(plan *p)
{
    uint32_t place = plan_place(p, p->request->accused);
    if (p->request->accused == 0 || place == TDM__SERVER_MAX_SERVERS) return;
    tdm__server_entry *entry = &p->next->servers[place];
    if (entry->lease == 0 || p->request->accused == p->request->self.id) return;
    entry->lease = 0;
    p->is_changed = true;
}

/* Removes servers whose lease has ended. Only a member does this: it has the data, and it is certainly alive, whatever
 * the records say. */
static void plan_remove_dead(plan *p, tdm__server_chain *chain)
{
    bool is_member = chain_find(chain, p->request->self.id) < chain->member_count;
    for (uint32_t m = chain->member_count; is_member && m-- > 0;)
        if (!plan_is_alive(p, chain->members[m])) plan_drop_member(p, chain, m);
    if (chain->joining != 0 && !plan_is_alive(p, chain->joining)) plan_set_joining(p, chain, 0);
}

static void plan_accept_claims(plan *p)
{
    for (size_t i = 0; i < p->request->claim_count; i++) {
        const tdm__server_claim *claim = &p->request->claims[i];
        if (claim->shard >= p->next->group.shards) continue;
        tdm__server_chain *chain = &p->next->chains[claim->shard];
        if (chain->epoch != claim->epoch || chain->joining != claim->joining ||
            chain->joining == 0 || chain->member_count == 0 ||
            chain->member_count == TDM__SERVER_MAX_CHAIN ||
            chain->members[chain->member_count - 1] != p->request->self.id)
            continue;
        chain->members[chain->member_count++] = chain->joining;
        chain->joining = chain->join_epoch = 0; /* its load stays */
        p->is_changed = true;
    }
}

/* The server with the lowest load that is not in the chain; MAX_SERVERS: there is none. */
static uint32_t plan_spare(const plan *p, const tdm__server_chain *chain)
{
    uint32_t best = TDM__SERVER_MAX_SERVERS;
    for (uint32_t i = 0; i < p->next->server_count; i++) {
        uint64_t id = p->next->servers[i].id;
        if (!plan_can_take(p, i) || chain->joining == id ||
            chain_find(chain, id) < chain->member_count)
            continue;
        if (best == TDM__SERVER_MAX_SERVERS || p->loads[i] < p->loads[best]) best = i;
    }
    return best;
}

static uint32_t chain_staying(const plan *p, const tdm__server_chain *chain)
{
    uint32_t count = 0;
    for (uint32_t m = 0; m < chain->member_count; m++) {
        uint32_t place = plan_place(p, chain->members[m]);
        count += place < TDM__SERVER_MAX_SERVERS && !p->next->servers[place].is_leaving;
    }
    return count;
}

/* Removes one member that is not needed: one that leaves, or the one with the highest load. Only the tail does this,
 * never for itself: it has everything that a removed member has, and is certainly alive. */
static void plan_shrink(plan *p, tdm__server_chain *chain)
{
    uint32_t replication = p->next->group.replication, chosen = TDM__SERVER_MAX_CHAIN;
    if (chain->member_count < 2 || chain->joining != 0 ||
        chain->members[chain->member_count - 1] != p->request->self.id)
        return;
    bool has_spare = plan_spare(p, chain) < TDM__SERVER_MAX_SERVERS;
    uint32_t staying = chain_staying(p, chain);
    for (uint32_t m = 0; m + 1 < chain->member_count; m++) {
        uint32_t place = plan_place(p, chain->members[m]);
        if (place == TDM__SERVER_MAX_SERVERS) continue;
        if (p->next->servers[place].is_leaving && (staying >= replication || !has_spare)) {
            plan_drop_member(p, chain, m);
            return;
        }
        if (chosen == TDM__SERVER_MAX_CHAIN ||
            p->loads[place] > p->loads[plan_place(p, chain->members[chosen])])
            chosen = m;
    }
    if (staying > replication && chosen < TDM__SERVER_MAX_CHAIN) plan_drop_member(p, chain, chosen);
}

/* A new chain begins when as many servers as copies are there. */
static void plan_begin(plan *p, tdm__server_chain *chain)
{
    uint32_t able = 0;
    for (uint32_t i = 0; i < p->next->server_count; i++) able += plan_can_take(p, i);
    if (chain->epoch != 0 || chain->member_count > 0 || able < p->next->group.replication) return;
    while (chain->member_count < p->next->group.replication) {
        uint32_t place = plan_spare(p, chain);
        chain->members[chain->member_count++] = p->next->servers[place].id;
        p->loads[place]++;
    }
    p->is_changed = true;
}

static void plan_repair(plan *p, tdm__server_chain *chain)
{
    if (chain->member_count == 0 || chain->joining != 0 ||
        chain_staying(p, chain) >= p->next->group.replication ||
        chain->member_count == TDM__SERVER_MAX_CHAIN)
        return;
    uint32_t place = plan_spare(p, chain);
    if (place < TDM__SERVER_MAX_SERVERS) plan_set_joining(p, chain, p->next->servers[place].id);
}

/* Moves one chain from the server with the highest load to the one with the lowest. */
static void plan_balance(plan *p)
{
    tdm__server_config *next = p->next;
    uint32_t high = TDM__SERVER_MAX_SERVERS, low = TDM__SERVER_MAX_SERVERS;
    for (uint32_t s = 0; s < next->group.shards; s++)
        if (next->chains[s].joining != 0 || next->chains[s].member_count != next->group.replication)
            return;
    for (uint32_t i = 0; i < next->server_count; i++) {
        if (!plan_can_take(p, i)) continue;
        if (high == TDM__SERVER_MAX_SERVERS || p->loads[i] > p->loads[high]) high = i;
        if (low == TDM__SERVER_MAX_SERVERS || p->loads[i] < p->loads[low]) low = i;
    }
    if (high == TDM__SERVER_MAX_SERVERS || p->loads[high] < p->loads[low] + 2) return;
    for (uint32_t s = 0; s < next->group.shards; s++) {
        tdm__server_chain *chain = &next->chains[s];
        if (chain_find(chain, next->servers[high].id) == chain->member_count ||
            chain_find(chain, next->servers[low].id) < chain->member_count)
            continue;
        plan_set_joining(p, chain, next->servers[low].id);
        return;
    }
}

/* Entries of servers that are gone and in no chain. */
static void plan_remove_entries(plan *p)
{
    tdm__server_config *next = p->next;
    for (uint32_t i = next->server_count; i-- > 0;) {
        if (p->is_alive[i] || p->loads[i] > 0 || next->servers[i].id == p->request->self.id)
            continue;
        next->server_count--;
        for (uint32_t k = i; k < next->server_count; k++) next->servers[k] = next->servers[k + 1];
        p->is_changed = true;
        plan_count(p);
    }
}

static bool chain_equal(const tdm__server_chain *a, const tdm__server_chain *b)
{
    return a->member_count == b->member_count && a->joining == b->joining &&
           a->join_epoch == b->join_epoch &&
           memcmp(a->members, b->members, a->member_count * sizeof(*a->members)) == 0;
}

bool tdm__server_plan(const tdm__server_config *config, const tdm__server_record *records,
                      size_t record_count, const tdm__server_request *request,
                      tdm__server_config *next)
{
    plan p = {.records = records, .record_count = record_count, .request = request, .next = next};
    tdm__server_config_copy(next, config);
    next->epoch++;
    plan_count(&p);
    plan_enter_self(&p);
    plan_expel(&p);
    plan_accept_claims(&p);
    for (uint32_t s = 0; s < next->group.shards; s++) {
        plan_remove_dead(&p, &next->chains[s]);
        plan_shrink(&p, &next->chains[s]);
        plan_begin(&p, &next->chains[s]);
        plan_repair(&p, &next->chains[s]);
    }
    plan_balance(&p);
    plan_remove_entries(&p);
    for (uint32_t s = 0; s < next->group.shards; s++) {
        next->chains[s].epoch = config->chains[s].epoch +
                                !chain_equal(&next->chains[s], &config->chains[s]);
    }
    return p.is_changed;
}
