/*
 * process.c: a server as a process: its node, its connections, and a thread that keeps its lease.
 *
 * The calling thread runs the loop: messages and ticks of the node. The agent's thread uses the store, which may block:
 * it renews the lease, reads the configuration and the records of all servers, and proposes the next configuration. It
 * hands each configuration that it has read to the loop, with the time until which the lease is certain.
 */
#include "base/base.h"
#include "base/timing.h"
#include "kv/kv.h"
#include "os/os.h"
#include "os/thread.h"
#include "server/mesh.h"
#include "server/place.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define TICK_S 0.02
/* How much earlier than in the store a lease ends here. */
#define LEASE_MARGIN 0.9

typedef struct process {
    const tdm_server_options *options;
    tdm__server_place place;
    tdm__loop *loop;
    tdm__mesh *mesh;
    tdm__server_node *node;
    tdm__server_entry self;
    tdm_server_group group;
    bool is_announced;
    bool has_warned; /* of the agent's thread, as lost_s */
    double lost_s;
    tdm_error failure;    /* status TDM_OK: none */
    double leave_until_s; /* 0: it does not leave */
    int wake_fd;
    tdm__loop_watch wake_watch;
    pthread_t thread;
    /* Shared with the agent's thread. */
    pthread_mutex_t lock;
    bool ends, leaves;
    tdm__server_agent agent; /* claims and accusation come from the loop */
    bool has_news;
    uint64_t lease;
    double valid_s;
    tdm__server_config config; /* the newest that was read */
    tdm_error agent_failure;
} process;

/* ---- agent --------------------------------------------------------------------------------------------- */

typedef struct agent_look {
    tdm__server_config config, next;
    uint64_t revision;       /* of the configuration; 0: there is none yet */
    uint64_t store_revision; /* of everything */
    tdm__server_record records[TDM__SERVER_MAX_SERVERS];
    size_t record_count;
} agent_look;

static void agent_wake_loop(process *p)
{
    uint64_t one = 1;
    if (write(p->wake_fd, &one, sizeof(one)) < 0 && errno != EAGAIN)
        tdm_log(TDM_LOG_WARN, "server", "cannot wake the server: %s", strerror(errno));
}

static tdm_status agent_take_lease(process *p, uint64_t *lease, tdm_error *err)
{
    char key[TDM_KV_KEY_BYTES];
    tdm_status status = *lease ? tdm_kv_keep(p->place.kv, *lease, err) : TDM_ERR_NOT_FOUND;
    if (status != TDM_ERR_NOT_FOUND) return status;
    *lease = 0;
    uint64_t fresh = 0;
    TDM_TRY(tdm_kv_lease(p->place.kv, p->place.lease_s, &fresh, err));
    (void)snprintf(key, sizeof(key), "%s%016llx", p->place.record_prefix,
                   (unsigned long long)p->self.id);
    TDM_TRY(tdm_kv_put(p->place.kv, key, p->self.address, fresh, err));
    *lease = fresh;
    return TDM_OK;
}

static tdm_status agent_read(process *p, agent_look *look, tdm_error *err)
{
    tdm_kv_item *items = NULL;
    size_t count = 0, prefix = strlen(p->place.record_prefix);
    tdm_arena *arena = tdm_arena_create("servers");
    if (!arena) return tdm_fail_oom(err, "to read the store");
    look->revision = 0;
    look->record_count = 0;
    tdm_status status = tdm_kv_list(p->place.kv, p->place.prefix, arena, &items, &count,
                                    &look->store_revision, err);
    for (size_t i = 0; status == TDM_OK && i < count; i++) {
        if (strcmp(items[i].key, p->place.config_key) == 0) {
            status = tdm__server_config_read(items[i].value, &look->config, err);
            look->revision = items[i].revision;
        } else if (strncmp(items[i].key, p->place.record_prefix, prefix) == 0 &&
                   look->record_count < TDM__SERVER_MAX_SERVERS) {
            look->records[look->record_count++] = (tdm__server_record){
                .id = strtoull(items[i].key + prefix, NULL, 16), .lease = items[i].lease};
        }
    }
    tdm_arena_destroy(arena);
    return status;
}

static tdm_status agent_write(process *p, const tdm__server_config *next, uint64_t revision,
                              tdm_error *err)
{
    tdm_str text = TDM_STR_INIT;
    tdm__server_config_write(next, &text);
    tdm_status status = tdm_str_ok(&text) ? TDM_OK : tdm_fail_oom(err, "for a configuration");
    if (status == TDM_OK && text.length >= TDM_KV_VALUE_BYTES)
        status = tdm_fail(err, TDM_ERR_RANGE, "the configuration is too large: use fewer shards");
    if (status == TDM_OK)
        status = tdm_kv_swap(p->place.kv, p->place.config_key, revision, tdm_str_text(&text), 0,
                             NULL, err);
    tdm_str_release(&text);
    return status;
}

/* The first server of a group writes its settings. */
static tdm_status agent_begin_group(process *p, tdm_error *err)
{
    tdm__server_config *first = calloc(1, sizeof(*first));
    if (!first) return tdm_fail_oom(err, "for a configuration");
    first->epoch = 1;
    first->group = p->group;
    tdm_status status = agent_write(p, first, 0, err);
    free(first);
    return status == TDM_ERR_EXISTS ? TDM_OK : status;
}

/* Warns once if nobody has the rows of a shard any more: it cannot be repaired by more servers. */
static void agent_warn_lost(process *p, const agent_look *look, double now_s)
{
    uint32_t lost = 0;
    for (uint32_t s = 0; s < look->config.group.shards; s++) {
        const tdm__server_chain *chain = &look->config.chains[s];
        bool is_alive = chain->member_count == 0;
        for (uint32_t m = 0; m < chain->member_count; m++)
            for (size_t i = 0; i < look->record_count; i++)
                is_alive |= look->records[i].id == chain->members[m];
        lost += !is_alive;
    }
    if (lost == 0) p->lost_s = 0;
    if (lost == 0 || p->has_warned) return;
    if (!(p->lost_s > 0)) p->lost_s = now_s;
    if (now_s - p->lost_s < TDM__TIMING_SERVER_LOST_S) return;
    p->has_warned = true;
    tdm_log(
        TDM_LOG_WARN, "server",
        "all servers that have %u of the %u shards of '%s' are gone; if they do not come back, "
        "stop all servers and start the first one with --restart, which begins with empty shards",
        lost, look->config.group.shards, p->place.name);
}

/* One look at the store. `began_s`: before the lease was renewed. */
static tdm_status agent_step(process *p, agent_look *look, uint64_t *lease, double began_s,
                             tdm_error *err)
{
    TDM_TRY(agent_take_lease(p, lease, err));
    TDM_TRY(agent_read(p, look, err));
    if (look->revision == 0) return agent_begin_group(p, err);
    TDM_TRY(tdm__server_group_match(&look->config.group, &p->group, err));
    pthread_mutex_lock(&p->lock);
    tdm__server_config_copy(&p->config, &look->config);
    p->lease = p->agent.self.lease = *lease;
    p->valid_s = began_s + p->place.lease_s * LEASE_MARGIN;
    p->has_news = true;
    p->agent.self.is_leaving = p->leaves;
    bool plans = tdm__server_agent_plan(&p->agent, &look->config, look->records, look->record_count,
                                        tdm_clock_s(), &look->next);
    pthread_mutex_unlock(&p->lock);
    agent_wake_loop(p);
    agent_warn_lost(p, look, began_s);
    if (!plans) return TDM_OK;
    tdm_status status = agent_write(p, &look->next, look->revision, err);
    return status == TDM_ERR_EXISTS ? TDM_OK : status; /* another server was first */
}

static void *agent_run(void *user)
{
    process *p = user;
    uint64_t lease = 0;
    bool is_over = false;
    agent_look *look = calloc(1, sizeof(*look));
    tdm_error err;
    tdm__thread_raise_priority();
    while (look && !is_over) {
        double began_s = tdm_clock_s();
        tdm_status status = agent_step(p, look, &lease, began_s, &err);
        bool is_final = status == TDM_ERR_PEER_MISMATCH || status == TDM_ERR_FORMAT ||
                        status == TDM_ERR_RANGE;
        if (status != TDM_OK && !is_final)
            tdm_log(TDM_LOG_WARN, "server", "the store: %s", err.message);
        pthread_mutex_lock(&p->lock);
        if (is_final) p->agent_failure = err;
        is_over = p->ends || is_final;
        pthread_mutex_unlock(&p->lock);
        if (is_over) break;
        if (status == TDM_OK)
            status = tdm_kv_wait(p->place.kv, p->place.prefix, look->store_revision,
                                 p->place.lease_s * TDM__TIMING_SERVER_RENEWALS,
                                 &look->store_revision, &err);
        if (status != TDM_OK) tdm_clock_sleep(TDM__TIMING_SERVER_STORE_RETRY_S);
    }
    if (lease != 0) (void)tdm_kv_release(p->place.kv, lease, &err);
    /* The last server removes the group. */
    if (look && lease != 0 && agent_read(p, look, &err) == TDM_OK && look->record_count == 0)
        (void)tdm_kv_remove(p->place.kv, p->place.prefix, &err);
    free(look);
    agent_wake_loop(p);
    return NULL;
}

/* ---- callbacks of node and mesh --------------------------------------------------------------------------- */

static void process_send(void *user, uint64_t to, const tdm__server_message *message)
{
    process *p = user;
    tdm__mesh_send(p->mesh, to, message);
}

static void process_claim(void *user, const tdm__server_claim *claim)
{
    process *p = user;
    pthread_mutex_lock(&p->lock);
    tdm__server_agent_claim(&p->agent, claim);
    pthread_mutex_unlock(&p->lock);
}

static void process_accuse(void *user, uint64_t server, uint32_t shard)
{
    process *p = user;
    tdm_log(TDM_LOG_WARN, "server", "server %016llx does not answer for shard %u; %s",
            (unsigned long long)server, shard, tdm__mesh_problem(p->mesh, server));
    pthread_mutex_lock(&p->lock);
    p->agent.accused = server;
    pthread_mutex_unlock(&p->lock);
}

static void process_failed(void *user, const tdm_error *err)
{
    process *p = user;
    p->failure = *err;
}

static bool process_is_connected(void *user, uint64_t client)
{
    const process *p = user;
    return tdm__mesh_is_connected(p->mesh, client);
}

static void process_message(void *user, uint64_t from, const tdm__server_message *message)
{
    process *p = user;
    tdm__server_node_message(p->node, from, message, tdm_clock_s());
}

static void process_lost(void *user, uint64_t id)
{
    process *p = user;
    tdm__server_node_lost(p->node, id, tdm_clock_s());
}

static bool process_address(void *user, uint64_t id, char out[TDM__SERVER_ADDRESS_BYTES])
{
    process *p = user;
    pthread_mutex_lock(&p->lock);
    const tdm__server_entry *entry = tdm__server_config_find(&p->config, id);
    if (entry) memcpy(out, entry->address, TDM__SERVER_ADDRESS_BYTES);
    pthread_mutex_unlock(&p->lock);
    return entry != NULL;
}

/* ---- loop ----------------------------------------------------------------------------------------------------- */

/* Gives the node what the agent has read. */
static void process_take_news(process *p)
{
    pthread_mutex_lock(&p->lock);
    bool has_news = p->has_news;
    uint64_t lease = p->lease;
    double valid_s = p->valid_s;
    p->has_news = false;
    if (p->agent_failure.status != TDM_OK) p->failure = p->agent_failure;
    tdm__server_config *config = has_news ? malloc(sizeof(*config)) : NULL;
    if (config) tdm__server_config_copy(config, &p->config);
    pthread_mutex_unlock(&p->lock);
    if (!config) return;
    tdm__server_node_config(p->node, config, lease, valid_s, tdm_clock_s());
    bool is_in = false;
    for (uint32_t s = 0; s < config->group.shards; s++) {
        const tdm__server_chain *chain = &config->chains[s];
        for (uint32_t m = 0; m < chain->member_count; m++) is_in |= chain->members[m] == p->self.id;
    }
    bool has_others = false;
    for (uint32_t i = 0; i < config->server_count; i++)
        has_others |= config->servers[i].id != p->self.id && !config->servers[i].is_leaving;
    /* Nothing is left to hand over, or there is nobody to take it. */
    if (p->leave_until_s > 0 && (!is_in || !has_others)) p->leave_until_s = 1e-9;
    if (!p->is_announced && tdm__server_node_is_valid(p->node, tdm_clock_s())) {
        p->is_announced = true;
        if (p->options->on_ready) p->options->on_ready(p->options->user, p->self.address);
    }
    free(config);
}

static void process_on_wake(tdm__loop_watch *watch, unsigned ready)
{
    process *p = watch->user;
    uint64_t count = 0;
    (void)ready;
    if (read(p->wake_fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
        tdm_log(TDM_LOG_WARN, "server", "cannot read a wake-up: %s", strerror(errno));
    process_take_news(p);
}

static tdm_status process_loop(process *p, tdm_error *err)
{
    double tick_s = 0;
    for (;;) {
        double now_s = tdm_clock_s();
        if (now_s >= tick_s) {
            tdm__server_node_tick(p->node, now_s);
            tick_s = now_s + TICK_S;
        }
        tdm__mesh_tick(p->mesh);
        if (p->failure.status != TDM_OK) {
            if (err) *err = p->failure;
            return p->failure.status;
        }
        if (p->leave_until_s == 0 && p->options->should_stop &&
            p->options->should_stop(p->options->user)) {
            p->leave_until_s = now_s + TDM__TIMING_SERVER_LEAVE_S;
            pthread_mutex_lock(&p->lock);
            p->leaves = true;
            pthread_mutex_unlock(&p->lock);
        }
        if (p->leave_until_s > 0 && now_s > p->leave_until_s) return TDM_OK;
        TDM_TRY(tdm__loop_turn(p->loop, TICK_S, err));
    }
}

/* Removes the configuration of a group whose servers are all gone. */
static tdm_status process_restart(process *p, tdm_error *err)
{
    agent_look *look = calloc(1, sizeof(*look));
    if (!look) return tdm_fail_oom(err, "to restart a group of servers");
    tdm_status status = agent_read(p, look, err);
    if (status == TDM_OK && look->record_count > 0)
        status = tdm_fail(err, TDM_ERR_EXISTS,
                          "%zu servers of the group '%s' are running: stop them before a restart",
                          look->record_count, p->place.name);
    if (status == TDM_OK) status = tdm_kv_remove(p->place.kv, p->place.config_key, err);
    free(look);
    return status;
}

static tdm_status process_open(process *p, tdm_error *err)
{
    TDM_TRY(tdm__server_group_check(&p->group, err));
    TDM_TRY(tdm__server_place_open(&p->options->place, true, &p->place, err));
    if (p->options->restarts) TDM_TRY(process_restart(p, err));
    const char *listen = p->options->listen;
    if (!p->place.is_local && (!listen || !*listen))
        return tdm_fail(err, TDM_ERR_INVALID,
                        "a server of a group in etcd needs an address for the others: --listen "
                        "HOST:PORT (port 0: any)");
    TDM_TRY(tdm_os_random(&p->self.id, sizeof(p->self.id), err));
    if (p->self.id == 0) p->self.id = 1;
    TDM_TRY(tdm__loop_create(&p->loop, err));
    const tdm__mesh_options mesh = {.id = p->self.id,
                                    .name = p->place.name,
                                    .secret = p->place.secret,
                                    .loop = p->loop,
                                    .user = p,
                                    .message = process_message,
                                    .lost = process_lost,
                                    .address = process_address};
    TDM_TRY(tdm__mesh_create(&mesh, &p->mesh, err));
    TDM_TRY(tdm__mesh_listen(p->mesh, listen && *listen ? listen : NULL, p->self.address, err));
    p->agent.self = p->self;
    p->agent.lease_s = p->place.lease_s;
    const tdm__server_node_options node = {.id = p->self.id,
                                           .state = &tdm__server_table_state,
                                           .relink_s = TDM__TIMING_SERVER_RELINK_S,
                                           .accuse_s = TDM__TIMING_SERVER_ACCUSE_S,
                                           .worker_s = TDM__TIMING_SERVER_WORKER_S,
                                           .forget_s = TDM__TIMING_SERVER_FORGET_S,
                                           .user = p,
                                           .send = process_send,
                                           .claim = process_claim,
                                           .accuse = process_accuse,
                                           .failed = process_failed,
                                           .is_connected = process_is_connected};
    p->node = tdm__server_node_create(&node);
    if (!p->node) return tdm_fail_oom(err, "for a server");
    p->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (p->wake_fd < 0) return tdm_os_fail(err, "cannot create", "an event descriptor");
    p->wake_watch = (tdm__loop_watch){.fd = p->wake_fd, .on_ready = process_on_wake, .user = p};
    TDM_TRY(tdm__loop_watch_set(p->loop, &p->wake_watch, TDM__LOOP_READ, err));
    return TDM_OK;
}

tdm_status tdm_server_run(const tdm_server_options *options, tdm_error *err)
{
    process *p = calloc(1, sizeof(*p));
    if (!p) return tdm_fail_oom(err, "for a server");
    p->options = options;
    p->group = options->group;
    p->wake_fd = -1;
    pthread_mutex_init(&p->lock, NULL);
    tdm_status status = process_open(p, err);
    if (status == TDM_OK) status = tdm__thread_start(&p->thread, agent_run, p, err);
    if (status == TDM_OK) {
        status = process_loop(p, err);
        pthread_mutex_lock(&p->lock);
        p->ends = true;
        pthread_mutex_unlock(&p->lock);
        pthread_join(p->thread, NULL);
    }
    tdm__server_node_destroy(p->node);
    tdm__mesh_destroy(p->mesh);
    if (p->wake_fd >= 0) {
        tdm__loop_watch_set(p->loop, &p->wake_watch, 0, NULL);
        close(p->wake_fd);
    }
    tdm__loop_destroy(p->loop);
    tdm__server_place_close(&p->place);
    pthread_mutex_destroy(&p->lock);
    free(p);
    return status;
}
