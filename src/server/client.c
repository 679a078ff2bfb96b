/*
 * client.c: the client of a group of servers.
 *
 * All work is done inside the calls: a call runs the loop of the connections until its condition holds or its deadline
 * is over, and reads the configuration again while it waits. Pushes are sent in the background of later calls.
 */
#include "base/base.h"
#include "base/timing.h"
#include "kv/kv.h"
#include "os/os.h"
#include "server/mesh.h"
#include "server/place.h"

#include <stdio.h>
#include <stdlib.h>

#define MAX_WAITING_BYTES ((size_t)64 << 20)
enum { MAX_WAITING_PUSHES = 64 };

/* A row that was pulled; valid for pulls at clocks up to `clock` + bound. */
typedef struct cached {
    uint64_t key, clock;
    bool is_used;
} cached;

struct tdm_server_client {
    tdm_server_client_options options;
    tdm__server_place place;
    tdm__loop *loop;
    tdm__mesh *mesh;
    tdm__server_caller *caller;
    tdm__server_config config;
    uint64_t id, clock;
    double looked_s;
    tdm_error failure; /* reported by the next call */
    uint64_t failed_counts[TDM_SERVER_MAX_SHARDS];
    /* The current pull. */
    uint32_t waiting_pulls;
    uint64_t versions[TDM_SERVER_MAX_SHARDS];
    float *out;
    uint64_t *keys;   /* grouped by shard */
    int64_t *places;  /* of each of them in the call */
    uint32_t *shards; /* of each key of a call */
    size_t key_capacity;
    uint64_t first[TDM_SERVER_MAX_SHARDS + 1], ends[TDM_SERVER_MAX_SHARDS];
    cached *cache;
    float *cache_rows;
};

/* ---- callbacks ------------------------------------------------------------------------------------------ */

static void client_send(void *user, uint64_t to, const tdm__server_message *message)
{
    tdm_server_client *c = user;
    tdm__mesh_send(c->mesh, to, message);
}

static void client_keep(tdm_server_client *c, uint64_t key, uint64_t clock, const float *row)
{
    if (!c->cache) return;
    size_t width = c->config.group.width, at = tdm_mix64(key) % c->options.cache_rows;
    c->cache[at] = (cached){.key = key, .clock = clock, .is_used = true};
    memcpy(c->cache_rows + at * width, row, width * sizeof(*row));
}

static void client_rows(void *user, const tdm__server_message *m)
{
    tdm_server_client *c = user;
    size_t width = c->config.group.width;
    const uint8_t *row = m->bytes;
    c->versions[m->shard] = m->version;
    c->waiting_pulls--;
    for (uint64_t i = c->first[m->shard]; i < c->ends[m->shard]; i++) {
        float *out = c->out + (size_t)c->places[i] * width;
        memcpy(out, row, width * sizeof(float));
        row += width * sizeof(float);
        client_keep(c, c->keys[i], m->clock, out);
    }
}

static void client_message(void *user, uint64_t from, const tdm__server_message *message)
{
    tdm_server_client *c = user;
    tdm__server_caller_message(c->caller, from, message, tdm_clock_s());
}

static void client_lost(void *user, uint64_t id)
{
    tdm_server_client *c = user;
    c->looked_s = 0; /* looks at the configuration at once */
    tdm__server_caller_lost(c->caller, id, tdm_clock_s());
}

static bool client_address(void *user, uint64_t id, char out[TDM__SERVER_ADDRESS_BYTES])
{
    const tdm_server_client *c = user;
    const tdm__server_entry *entry = tdm__server_config_find(&c->config, id);
    if (entry) memcpy(out, entry->address, TDM__SERVER_ADDRESS_BYTES);
    return entry != NULL;
}

/* ---- waiting ---------------------------------------------------------------------------------------------- */

static void client_look(tdm_server_client *c, double now_s)
{
    uint64_t revision = 0;
    tdm__server_config *config = malloc(sizeof(*config));
    c->looked_s = now_s;
    if (config && tdm__server_place_read(&c->place, config, &revision, NULL) == TDM_OK &&
        config->epoch > c->config.epoch && config->group.shards == c->config.group.shards &&
        config->group.width == c->config.group.width) {
        tdm__server_config_copy(&c->config, config);
        tdm__server_caller_config(c->caller, config, now_s);
    }
    free(config);
}

static tdm_status client_turn(tdm_server_client *c, double wait_s, tdm_error *err)
{
    tdm__mesh_tick(c->mesh); /* sends what is queued */
    TDM_TRY(tdm__loop_turn(c->loop, wait_s, err));
    tdm__mesh_tick(c->mesh);
    return TDM_OK;
}

/* A push that the servers did not apply, since the last call. */
static tdm_status client_check(tdm_server_client *c, tdm_error *err)
{
    for (uint32_t s = 0; s < c->config.group.shards; s++) {
        tdm__server_caller_shard about = tdm__server_caller_at(c->caller, s);
        bool is_refused = about.failed_count == 0 && about.failed_status != 0 && about.note[0];
        if (about.failed_count == c->failed_counts[s] && !is_refused) continue;
        uint64_t count = about.failed_count - c->failed_counts[s];
        c->failed_counts[s] = about.failed_count;
        if (!is_refused) tdm__server_caller_clear_note(c->caller, s);
        return tdm_fail(err, (tdm_status)about.failed_status,
                        "group of servers '%s': shard %u did not apply %llu of this client's "
                        "operations: %s",
                        c->place.name, s, (unsigned long long)(is_refused ? 1 : count),
                        about.note[0] ? about.note
                                      : tdm_status_text((tdm_status)about.failed_status));
    }
    return TDM_OK;
}

static bool shard_is_waiting(const tdm__server_caller_shard *about)
{
    return about->done < about->added || about->is_pulling;
}

/* The deadline is over: which server is missing, and why. */
static tdm_status client_late(const tdm_server_client *c, tdm_error *err)
{
    for (uint32_t s = 0; s < c->config.group.shards; s++) {
        tdm__server_caller_shard about = tdm__server_caller_at(c->caller, s);
        if (!shard_is_waiting(&about)) continue;
        const tdm__server_chain *chain = &c->config.chains[s];
        if (chain->member_count == 0)
            return tdm_fail(
                err, TDM_ERR_TIMEOUT,
                "group of servers '%s': shard %u has no server after %g s: %u servers are "
                "here, and the replication needs %u; start more servers",
                c->place.name, s, c->options.timeout_s, c->config.server_count,
                c->config.group.replication);
        uint64_t id = about.is_pulling ? chain->members[chain->member_count - 1]
                                       : chain->members[0];
        const tdm__server_entry *entry = tdm__server_config_find(&c->config, id);
        const char *problem = tdm__mesh_problem(c->mesh, id);
        bool is_connected = tdm__mesh_is_connected(c->mesh, id);
        return tdm_fail(
            err, TDM_ERR_TIMEOUT,
            "group of servers '%s': the server at %s did not answer %s of shard %u within "
            "%g s: %s",
            c->place.name, entry ? entry->address : "an unknown address",
            about.is_pulling ? "a pull" : "a push", s, c->options.timeout_s,
            about.note[0]  ? about.note
            : is_connected ? "it is connected, and slow or stopped"
            : problem[0]   ? problem
                           : "it is not connected");
    }
    return tdm_fail(err, TDM_ERR_TIMEOUT, "group of servers '%s': no answer", c->place.name);
}

typedef bool (*client_condition_fn)(const tdm_server_client *c);

static tdm_status client_wait(tdm_server_client *c, client_condition_fn holds, tdm_error *err)
{
    double until_s = tdm_clock_s() + c->options.timeout_s;
    double pause_s = c->place.is_local ? TDM__TIMING_SERVER_LOOK_LOCAL_S
                                       : TDM__TIMING_SERVER_LOOK_FAR_S;
    double began_s = tdm_clock_s();
    while (!holds(c)) {
        double now_s = tdm_clock_s();
        if (now_s > until_s) return client_late(c, err);
        tdm__server_caller_tick(c->caller, now_s);
        if (now_s - began_s > pause_s && now_s - c->looked_s > pause_s) client_look(c, now_s);
        TDM_TRY(client_turn(c, pause_s / 2, err));
        TDM_TRY(client_check(c, err));
    }
    return TDM_OK;
}

static bool client_is_admitted(const tdm_server_client *c)
{
    for (uint32_t s = 0; s < c->config.group.shards; s++)
        if (tdm__server_caller_at(c->caller, s).done == 0) return false;
    return true;
}

static bool client_is_flushed(const tdm_server_client *c)
{
    for (uint32_t s = 0; s < c->config.group.shards; s++) {
        tdm__server_caller_shard about = tdm__server_caller_at(c->caller, s);
        if (about.done < about.added) return false;
    }
    return true;
}

static bool client_has_room(const tdm_server_client *c)
{
    for (uint32_t s = 0; s < c->config.group.shards; s++) {
        tdm__server_caller_shard about = tdm__server_caller_at(c->caller, s);
        if (about.added - about.done >= MAX_WAITING_PUSHES ||
            about.waiting_bytes > MAX_WAITING_BYTES / c->config.group.shards)
            return false;
    }
    return true;
}

static bool client_has_pulled(const tdm_server_client *c)
{
    return c->waiting_pulls == 0;
}

/* ---- opening ------------------------------------------------------------------------------------------------ */

static tdm_status client_check_options(const tdm_server_client_options *o,
                                       const tdm_server_group *group, tdm_error *err)
{
    if (!(o->timeout_s > 0) || o->timeout_s > 1800)
        return tdm_fail(
            err, TDM_ERR_INVALID,
            "client of a group of servers: timeout_s is %g; it must be above 0 and at most "
            "1800",
            o->timeout_s);
    if (o->worker < -1 || o->worker >= TDM_SERVER_MAX_WORKERS ||
        (group->mode == TDM_SERVER_SYNC && o->worker >= (int)group->workers))
        return tdm_fail(
            err, TDM_ERR_INVALID,
            "client of a group of servers: worker is %d; it must be -1 (only pulls) or a "
            "number below %u",
            o->worker,
            group->mode == TDM_SERVER_SYNC ? group->workers : (unsigned)TDM_SERVER_MAX_WORKERS);
    if (o->cache_rows > 0 && group->mode != TDM_SERVER_STALE)
        return tdm_fail(
            err, TDM_ERR_INVALID,
            "client of a group of servers: cache_rows needs the mode stale, whose bound "
            "says how old a cached row may be");
    return TDM_OK;
}

/* Waits for the group to exist. */
static tdm_status client_find_group(tdm_server_client *c, tdm_error *err)
{
    double until_s = tdm_clock_s() + c->options.timeout_s;
    uint64_t revision = 0;
    for (;;) {
        tdm_status status = c->place.kv
                                ? TDM_OK
                                : tdm__server_place_open(&c->options.place, false, &c->place, err);
        if (status == TDM_OK)
            status = tdm__server_place_read(&c->place, &c->config, &revision, err);
        if (status != TDM_ERR_NOT_FOUND || tdm_clock_s() > until_s) return status;
        tdm_clock_sleep(TDM__TIMING_SERVER_LOOK_FAR_S);
    }
}

static tdm_status client_open(tdm_server_client *c, tdm_error *err)
{
    TDM_TRY(client_find_group(c, err));
    const tdm_server_group *group = &c->config.group;
    TDM_TRY(client_check_options(&c->options, group, err));
    TDM_TRY(tdm_os_random(&c->id, sizeof(c->id), err));
    TDM_TRY(tdm__loop_create(&c->loop, err));
    const tdm__mesh_options mesh = {.id = c->id,
                                    .name = c->place.name,
                                    .secret = c->place.secret,
                                    .loop = c->loop,
                                    .user = c,
                                    .message = client_message,
                                    .lost = client_lost,
                                    .address = client_address};
    TDM_TRY(tdm__mesh_create(&mesh, &c->mesh, err));
    if (c->options.cache_rows > 0) {
        c->cache = calloc(c->options.cache_rows, sizeof(*c->cache));
        c->cache_rows = malloc((size_t)c->options.cache_rows * group->width * sizeof(float));
        if (!c->cache || !c->cache_rows) return tdm_fail_oom(err, "for cached rows");
    }
    const tdm__server_caller_options caller = {.id = c->id,
                                               .worker = c->options.worker,
                                               .began = (uint64_t)(tdm_clock_unix_s() * 1e6),
                                               .resend_s = TDM__TIMING_SERVER_RESEND_S,
                                               .user = c,
                                               .send = client_send,
                                               .rows = client_rows};
    c->caller = tdm__server_caller_create(&caller, &c->config);
    if (!c->caller) return tdm_fail_oom(err, "for a client");
    TDM_TRY(client_wait(c, client_is_admitted, err));
    c->clock = UINT64_MAX;
    for (uint32_t s = 0; s < group->shards; s++) {
        uint64_t clock = tdm__server_caller_at(c->caller, s).clock;
        if (clock < c->clock) c->clock = clock;
    }
    return TDM_OK;
}

tdm_status tdm_server_client_open(const tdm_server_client_options *options, tdm_server_client **out,
                                  tdm_error *err)
{
    tdm_server_client *c = calloc(1, sizeof(*c));
    if (!c) return tdm_fail_oom(err, "for a client of a group of servers");
    c->options = *options;
    if (!(c->options.timeout_s > 0)) c->options.timeout_s = TDM__TIMING_SERVER_CALL_S;
    tdm_status status = client_open(c, err);
    c->options.place = (tdm_server_place){0}; /* borrowed during the call only */
    if (status == TDM_OK) {
        *out = c;
        return TDM_OK;
    }
    c->config.epoch = 0;
    tdm_server_client_close(c, NULL);
    return status;
}

/* ---- calls ----------------------------------------------------------------------------------------------------- */

/* Groups the keys of a call by shard: c->shards and c->first. */
static tdm_status client_divide(tdm_server_client *c, const uint64_t *keys, int64_t count,
                                tdm_error *err)
{
    uint32_t shard_count = c->config.group.shards;
    if (count < 0 || count > TDM_SERVER_MAX_BATCH ||
        (uint64_t)count * c->config.group.width > (UINT64_C(8) << 20))
        return tdm_fail(
            err, TDM_ERR_RANGE,
            "group of servers '%s': a call with %lld keys; use several calls with at most "
            "8,388,608 numbers each",
            c->place.name, (long long)count);
    if ((size_t)count > c->key_capacity) {
        size_t capacity = (size_t)count;
        free(c->keys);
        free(c->places);
        free(c->shards);
        c->keys = malloc(capacity * sizeof(*c->keys));
        c->places = malloc(capacity * sizeof(*c->places));
        c->shards = malloc(capacity * sizeof(*c->shards));
        c->key_capacity = c->keys && c->places && c->shards ? capacity : 0;
        if (c->key_capacity == 0) return tdm_fail_oom(err, "for the keys of a call");
    }
    memset(c->first, 0, sizeof(c->first));
    for (int64_t i = 0; i < count; i++) {
        c->shards[i] = tdm__server_shard_of(keys[i], shard_count);
        c->first[c->shards[i] + 1]++;
    }
    for (uint32_t s = 0; s < shard_count; s++) c->first[s + 1] += c->first[s];
    return TDM_OK;
}

tdm_status tdm_server_client_push(tdm_server_client *c, const uint64_t *keys, const float *grads,
                                  int64_t count, double lr, tdm_error *err)
{
    const tdm_server_group *group = &c->config.group;
    bool is_async = group->mode == TDM_SERVER_ASYNC;
    size_t width = group->width;
    if (c->options.worker < 0)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "group of servers '%s': a client with worker -1 can only pull",
                        c->place.name);
    TDM_TRY(client_check(c, err));
    TDM_TRY(
        client_wait(c, group->mode == TDM_SERVER_SYNC ? client_is_flushed : client_has_room, err));
    TDM_TRY(client_divide(c, keys, count, err));
    uint64_t clock = c->clock + 1;
    tdm__blob *blobs[TDM_SERVER_MAX_SHARDS] = {NULL};
    uint64_t *key_out[TDM_SERVER_MAX_SHARDS] = {NULL};
    float *grad_out[TDM_SERVER_MAX_SHARDS] = {NULL};
    for (uint32_t s = 0; s < group->shards; s++) {
        const tdm__server_op head = {.kind = TDM__SERVER_OP_PUSH,
                                     .worker = c->options.worker,
                                     .clock = clock,
                                     .lr = lr,
                                     .count = (uint32_t)(c->first[s + 1] - c->first[s])};
        if (is_async && head.count == 0) continue;
        tdm__server_op_view view = {.keys = NULL};
        blobs[s] = tdm__server_op_make(&head, group->width, &view);
        if (!blobs[s]) {
            for (uint32_t k = 0; k < s; k++) tdm__blob_release(blobs[k]);
            return tdm_fail_oom(err, "for a push");
        }
        key_out[s] = (uint64_t *)(uintptr_t)view.keys;
        grad_out[s] = (float *)(uintptr_t)view.grads;
    }
    for (int64_t i = 0; i < count; i++) {
        uint32_t s = c->shards[i];
        *key_out[s]++ = keys[i];
        memcpy(grad_out[s], grads + (size_t)i * width, width * sizeof(float));
        grad_out[s] += width;
    }
    double now_s = tdm_clock_s();
    bool is_added = true;
    for (uint32_t s = 0; s < group->shards; s++)
        if (blobs[s]) is_added &= tdm__server_caller_add(c->caller, s, blobs[s], now_s) != 0;
    if (!is_added) return tdm_fail_oom(err, "for a push");
    c->clock = clock;
    return client_turn(c, 0, err);
}

/* Copies the row from the cache, if it is new enough. */
static bool client_copy_cached(const tdm_server_client *c, uint64_t key, float *out)
{
    if (!c->cache) return false;
    size_t width = c->config.group.width, at = tdm_mix64(key) % c->options.cache_rows;
    const cached *entry = &c->cache[at];
    if (!entry->is_used || entry->key != key || entry->clock + c->config.group.bound < c->clock)
        return false;
    memcpy(out, c->cache_rows + at * width, width * sizeof(*out));
    return true;
}

tdm_status tdm_server_client_pull(tdm_server_client *c, const uint64_t *keys, int64_t count,
                                  float *out, uint64_t *out_versions, tdm_error *err)
{
    const tdm_server_group *group = &c->config.group;
    TDM_TRY(client_check(c, err));
    TDM_TRY(client_divide(c, keys, count, err));
    for (uint32_t s = 0; s < group->shards; s++) c->ends[s] = c->first[s];
    for (int64_t i = 0; i < count; i++) {
        if (client_copy_cached(c, keys[i], out + (size_t)i * group->width)) continue;
        uint64_t at = c->ends[c->shards[i]]++;
        c->keys[at] = keys[i];
        c->places[at] = i;
    }
    c->out = out;
    c->waiting_pulls = 0;
    bool waits_for_round = group->mode != TDM_SERVER_ASYNC && c->options.worker >= 0;
    double now_s = tdm_clock_s();
    for (uint32_t s = 0; s < group->shards; s++) {
        uint32_t asked = (uint32_t)(c->ends[s] - c->first[s]);
        if (asked == 0) continue;
        c->waiting_pulls++;
        if (!tdm__server_caller_pull(c->caller, s, waits_for_round ? c->clock : 0,
                                     c->keys + c->first[s], asked, now_s))
            return tdm_fail_oom(err, "for a pull");
    }
    tdm_status status = client_wait(c, client_has_pulled, err);
    for (uint32_t s = 0; s < group->shards; s++) tdm__server_caller_forget(c->caller, s);
    if (status != TDM_OK) return status;
    if (out_versions) memcpy(out_versions, c->versions, group->shards * sizeof(*out_versions));
    return TDM_OK;
}

tdm_status tdm_server_client_flush(tdm_server_client *c, tdm_error *err)
{
    TDM_TRY(client_wait(c, client_is_flushed, err));
    return client_check(c, err);
}

const tdm_server_group *tdm_server_client_group(const tdm_server_client *c)
{
    return &c->config.group;
}

tdm_status tdm_server_client_close(tdm_server_client *c, tdm_error *err)
{
    tdm_status status = TDM_OK;
    if (!c) return TDM_OK;
    if (c->config.epoch != 0 && c->caller) {
        status = tdm_server_client_flush(c, err);
        for (uint32_t s = 0; status == TDM_OK && s < c->config.group.shards; s++) {
            tdm__server_op_view view;
            const tdm__server_op head = {.kind = TDM__SERVER_OP_LEAVE, .worker = c->options.worker};
            tdm__blob *blob = tdm__server_op_make(&head, c->config.group.width, &view);
            if (blob) (void)tdm__server_caller_add(c->caller, s, blob, tdm_clock_s());
        }
        if (status == TDM_OK) status = tdm_server_client_flush(c, err);
    }
    tdm__server_caller_destroy(c->caller);
    tdm__mesh_destroy(c->mesh);
    tdm__loop_destroy(c->loop);
    tdm__server_place_close(&c->place);
    free(c->keys);
    free(c->places);
    free(c->shards);
    free(c->cache);
    free(c->cache_rows);
    free(c);
    return status;
}
