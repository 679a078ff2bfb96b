/*
 * place.c: see the header.
 *
 * Keys in the store, below "tandem/NAME+servers/":
 *
 *      config          the configuration; changed by compare-and-swap only
 *      servers/ID      a server; on its lease
 *      secret          a hash of the secret
 */
#include "server/place.h"
#include "base/base.h"
#include "base/timing.h"
#include "cluster/cluster.h"
#include "kv/kv.h"

#include <stdio.h>
#include <stdlib.h>

static bool name_is_good(const char *name)
{
    size_t length = name ? strlen(name) : 0;
    if (length == 0 || length >= TDM_SERVER_NAME_BYTES) return false;
    for (const char *c = name; *c; c++) {
        bool is_letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
                         (*c >= '0' && *c <= '9');
        if (!is_letter && (c == name || !strchr("._-", *c))) return false;
    }
    return true;
}

static tdm_status place_open_store(const tdm_server_place *given, bool creates, tdm_arena *arena,
                                   tdm__server_place *out, tdm_error *err)
{
    const char *dir = NULL, *url = given->store;
    if (!url || !*url) {
        TDM_TRY(tdm_runtime_dir(arena, &dir, err));
        url = tdm_arena_printf(arena, "local:%s/servers.store", dir);
        if (!url) return tdm_fail_oom(err, "for the name of a store");
    }
    out->is_local = strncmp(url, "local:", 6) == 0;
    out->lease_s = out->is_local ? TDM__TIMING_SERVER_LEASE_LOCAL_S
                                 : TDM__TIMING_SERVER_LEASE_FAR_S;
    const tdm_kv_options options = {.url = url,
                                    .user = given->user,
                                    .password = given->password,
                                    .ca = given->ca,
                                    .certificate = given->certificate,
                                    .key = given->key,
                                    .timeout_s = TDM__TIMING_SERVER_STORE_S,
                                    .probe_s = TDM_KV_PROBE_S,
                                    .must_exist = !creates};
    tdm_status status = tdm_kv_open(&options, &out->kv, err);
    if (status == TDM_ERR_NOT_FOUND && out->is_local)
        return tdm_fail(err, status,
                        "the group of servers '%s' does not exist, nor does its store %s; start a "
                        "server first (tandem server)",
                        given->name, url);
    return status;
}

static tdm_status place_find_secret(const tdm_server_place *given, bool creates, tdm_arena *arena,
                                    tdm__server_place *out, tdm_error *err)
{
    const char *dir = NULL, *path = NULL;
    if (given->secret && *given->secret) {
        if (strlen(given->secret) >= sizeof(out->secret))
            return tdm_fail(err, TDM_ERR_INVALID, "the secret has more than %d characters",
                            TDM_SECRET_BYTES - 1);
        (void)snprintf(out->secret, sizeof(out->secret), "%s", given->secret);
        return TDM_OK;
    }
    if (out->is_local) {
        TDM_TRY(tdm_runtime_dir(arena, &dir, err));
        path = tdm_arena_printf(arena, "%s/%s.servers.secret", dir, out->name);
        if (!path) return tdm_fail_oom(err, "for the name of a file");
    }
    tdm_status status = tdm_secret_find(path, creates, out->secret, err);
    if (status != TDM_ERR_NOT_FOUND) return status;
    return tdm_fail(err, status,
                    "this process does not have the secret of the group of servers '%s': set "
                    "TANDEM_SECRET to the same text for all servers and clients, or "
                    "TANDEM_SECRET_FILE to a file of mode 600 that contains it",
                    out->name);
}

/* The store has a hash of the secret, salted with the name, so that a process with another one ends at once. */
static tdm_status place_check_secret(tdm__server_place *place, bool creates, tdm_arena *arena,
                                     tdm_error *err)
{
    uint8_t raw[TDM_SHA256_BYTES];
    char hash[TDM_SHA256_HEX], key[TDM__SERVER_KEY_BYTES];
    tdm_kv_item item = {.value = NULL};
    const char *salt = place->prefix;
    if (tdm_hmac_sha256(place->secret, strlen(place->secret), salt, strlen(salt), raw) != TDM_OK)
        return tdm_fail_oom(err, "for a hash");
    tdm_hex(raw, sizeof(raw), hash);
    (void)snprintf(key, sizeof(key), "tandem/%s+servers/secret", place->name);
    if (creates) {
        tdm_status status = tdm_kv_swap(place->kv, key, 0, hash, 0, NULL, err);
        if (status != TDM_ERR_EXISTS) return status;
    }
    tdm_status status = tdm_kv_get(place->kv, key, arena, &item, err);
    if (status == TDM_ERR_NOT_FOUND)
        return tdm_fail(err, status,
                        "the group of servers '%s' does not exist; start a server first",
                        place->name);
    if (status == TDM_OK && strcmp(item.value, hash) != 0)
        return tdm_fail(
            err, TDM_ERR_PEER_REFUSED,
            "the secret of this process differs from that of the group of servers '%s': "
            "set TANDEM_SECRET (or TANDEM_SECRET_FILE) to the secret with which its "
            "first server was started",
            place->name);
    return status;
}

tdm_status tdm__server_place_open(const tdm_server_place *given, bool creates,
                                  tdm__server_place *out, tdm_error *err)
{
    *out = (tdm__server_place){0};
    if (!name_is_good(given->name))
        return tdm_fail(err, TDM_ERR_INVALID,
                        "'%s' is not a valid name of a group of servers: use up to %d letters, "
                        "digits, '.', '_' and '-'",
                        given->name ? given->name : "", TDM_SERVER_NAME_BYTES - 1);
    (void)snprintf(out->name, sizeof(out->name), "%s", given->name);
    (void)snprintf(out->prefix, sizeof(out->prefix), "tandem/%s+servers/", out->name);
    (void)snprintf(out->config_key, sizeof(out->config_key), "tandem/%s+servers/config", out->name);
    (void)snprintf(out->record_prefix, sizeof(out->record_prefix), "tandem/%s+servers/servers/",
                   out->name);
    tdm_arena *arena = tdm_arena_create("servers");
    if (!arena) return tdm_fail_oom(err, "to find a group of servers");
    tdm_status status = place_open_store(given, creates, arena, out, err);
    if (status == TDM_OK) status = place_find_secret(given, creates, arena, out, err);
    if (status == TDM_OK) status = place_check_secret(out, creates, arena, err);
    tdm_arena_destroy(arena);
    if (status != TDM_OK) tdm__server_place_close(out);
    return status;
}

void tdm__server_place_close(tdm__server_place *place)
{
    tdm_kv_close(place->kv);
    place->kv = NULL;
    explicit_bzero(place->secret, sizeof(place->secret));
}

tdm_status tdm__server_place_read(tdm__server_place *place, tdm__server_config *out,
                                  uint64_t *out_revision, tdm_error *err)
{
    tdm_kv_item item = {.value = NULL};
    tdm_arena *arena = tdm_arena_create("servers");
    if (!arena) return tdm_fail_oom(err, "to read a configuration");
    tdm_status status = tdm_kv_get(place->kv, place->config_key, arena, &item, err);
    if (status == TDM_ERR_NOT_FOUND)
        status = tdm_fail(err, status,
                          "the group of servers '%s' does not exist; start a server first",
                          place->name);
    if (status == TDM_OK) status = tdm__server_config_read(item.value, out, err);
    if (status == TDM_OK) *out_revision = item.revision;
    tdm_arena_destroy(arena);
    return status;
}

static void describe_id(const tdm__server_config *config, uint64_t id, tdm_str *out)
{
    for (uint32_t i = 0; i < config->server_count; i++)
        if (config->servers[i].id == id) tdm_str_addf(out, " %u", i);
}

tdm_status tdm_server_describe(const tdm_server_place *given, tdm_str *out, tdm_error *err)
{
    static const char *const modes[] = {"async", "sync", "stale"};
    static const char *const optims[] = {"sgd", "adagrad", "ftrl", "adam"};
    tdm__server_place place;
    uint64_t revision = 0;
    tdm__server_config *config = calloc(1, sizeof(*config));
    if (!config) return tdm_fail_oom(err, "to describe a group of servers");
    tdm_status status = tdm__server_place_open(given, false, &place, err);
    if (status == TDM_OK) {
        status = tdm__server_place_read(&place, config, &revision, err);
        tdm__server_place_close(&place);
    }
    if (status != TDM_OK) {
        free(config);
        return status;
    }
    const tdm_server_group *group = &config->group;
    tdm_str_addf(out, "%s: %u shards, replication %u, mode %s, width %u, %s; configuration %llu\n",
                 given->name, group->shards, group->replication, modes[group->mode], group->width,
                 optims[group->optim], (unsigned long long)config->epoch);
    for (uint32_t i = 0; i < config->server_count; i++) {
        const tdm__server_entry *server = &config->servers[i];
        tdm_str_addf(out, "server %u: %s%s%s\n", i, server->address,
                     server->is_leaving ? ", leaving" : "", server->lease == 0 ? ", expelled" : "");
    }
    for (uint32_t s = 0; s < group->shards; s++) {
        const tdm__server_chain *chain = &config->chains[s];
        tdm_str_addf(out, "shard %u: servers", s);
        for (uint32_t m = 0; m < chain->member_count; m++)
            describe_id(config, chain->members[m], out);
        if (chain->member_count == 0) tdm_str_add(out, " none");
        if (chain->joining) {
            tdm_str_add(out, ", joining");
            describe_id(config, chain->joining, out);
        }
        tdm_str_add_char(out, '\n');
    }
    free(config);
    return tdm_str_ok(out) ? TDM_OK : tdm_fail_oom(err, "to describe a group of servers");
}
