/*
 * kv.c: the interface of every store: selects the implementation by the URL and checks arguments.
 *
 * Keys and values are text: UTF-8, without control characters in keys and without zero bytes in
 * values, both shorter than their limits. Invalid arguments are rejected here, so that all
 * implementations reject the same ones and need no checks. Nothing here waits or has state.
 */
#include "kv/kv.h"
#include "base/base.h"
#include "base/timing.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const tdm__kv_ops *const stores[] = {&tdm__kv_local, &tdm__kv_etcd, NULL};

static const tdm__kv_ops *store_find(const char *url, const char **place)
{
    for (size_t i = 0; stores[i]; i++) {
        size_t length = strlen(stores[i]->name);
        if (strncmp(url, stores[i]->name, length) != 0 || url[length] != ':') continue;
        *place = url + length + 1;
        return stores[i];
    }
    return NULL;
}

/* Checks that the store responds: reads a key, once. */
static tdm_status store_probe(const tdm__kv_ops *ops, const tdm_kv_options *options,
                              const char *place, tdm_error *err)
{
    tdm_kv_options quick = *options;
    tdm_kv *kv = NULL;
    tdm_kv_item item;
    tdm_arena *arena = tdm_arena_create("probe");
    if (!arena) return tdm_fail_oom(err, "for a store");
    if (options->probe_s < options->timeout_s) quick.timeout_s = options->probe_s;
    tdm_status status = ops->open(&quick, place, &kv, err);
    if (status == TDM_OK) status = ops->get(kv, "tandem/probe", arena, &item, err);
    if (kv) ops->close(kv);
    tdm_arena_destroy(arena);
    return status == TDM_ERR_NOT_FOUND ? TDM_OK : status;
}

tdm_status tdm_kv_open(const tdm_kv_options *options, tdm_kv **out, tdm_error *err)
{
    const char *place = "";
    const tdm__kv_ops *ops = options->url ? store_find(options->url, &place) : NULL;
    if (!ops || !*place)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "\"%s\" is not a valid store address; write local:PATH or etcd:URL,URL,...",
                        options->url ? options->url : "");
    if (!(options->timeout_s >= 0) || options->timeout_s > TDM__TIMING_KV_MAX_S)
        return tdm_fail(err, TDM_ERR_RANGE, "%g seconds is not a valid timeout for a store",
                        options->timeout_s);
    if (!(options->idle_s >= 0) || options->idle_s > TDM__TIMING_KV_MAX_S)
        return tdm_fail(err, TDM_ERR_RANGE,
                        "%g seconds is not a valid idle time for a process of a store",
                        options->idle_s);
    tdm_kv_options filled = *options;
    if (!(filled.timeout_s > 0)) filled.timeout_s = TDM__TIMING_KV_CALL_S;
    /* A local file needs no server, so it is not probed. */
    if (filled.probe_s > 0 && ops != &tdm__kv_local) TDM_TRY(store_probe(ops, &filled, place, err));
    return ops->open(&filled, place, out, err);
}

void tdm_kv_close(tdm_kv *kv)
{
    if (kv) kv->ops->close(kv);
}

double tdm_kv_now(const tdm_kv *kv)
{
    return kv->ops->now ? kv->ops->now(kv) : tdm_clock_s();
}

bool tdm_kv_at(size_t index, tdm_kv_info *out)
{
    for (size_t i = 0; stores[i]; i++) {
        if (i != index) continue;
        *out = (tdm_kv_info){.name = stores[i]->name, .about = stores[i]->about};
        out->usable = !stores[i]->usable || stores[i]->usable(out->why, out->library);
        return true;
    }
    return false;
}

/* ---- argument checks ------------------------------------------------------------------------- */

static bool text_is_valid(const char *text, size_t limit, bool allow_control)
{
    size_t length = strnlen(text, limit);
    for (size_t at = 0; at < length;) {
        size_t one = tdm_text_utf8(text + at, length - at, NULL);
        bool is_control = (unsigned char)text[at] < 0x20 || text[at] == 0x7f;
        if (one == 0 || (is_control && !allow_control)) return false;
        at += one;
    }
    return length < limit;
}

static tdm_status check_prefix(const char *prefix, tdm_error *err)
{
    if (text_is_valid(prefix, TDM_KV_KEY_BYTES, false)) return TDM_OK;
    return tdm_fail(err, TDM_ERR_INVALID,
                    "a key of the store must be text without control characters, shorter than %d "
                    "bytes: not \"%.40s...\"",
                    TDM_KV_KEY_BYTES, prefix);
}

static tdm_status check_key(const char *key, tdm_error *err)
{
    if (!*key) return tdm_fail(err, TDM_ERR_INVALID, "a key of the store must not be empty");
    return check_prefix(key, err);
}

static tdm_status check_value(const char *key, const char *value, tdm_error *err)
{
    if (text_is_valid(value, TDM_KV_VALUE_BYTES, true)) return TDM_OK;
    return tdm_fail(err, TDM_ERR_INVALID,
                    "the value for \"%s\" in the store is not UTF-8 text shorter than %d bytes",
                    key, TDM_KV_VALUE_BYTES);
}

/* ---- calls ----------------------------------------------------------------------------------- */

tdm_status tdm_kv_get(tdm_kv *kv, const char *key, tdm_arena *arena, tdm_kv_item *out,
                      tdm_error *err)
{
    TDM_TRY(check_key(key, err));
    return kv->ops->get(kv, key, arena, out, err);
}

tdm_status tdm_kv_list(tdm_kv *kv, const char *prefix, tdm_arena *arena, tdm_kv_item **out,
                       size_t *out_count, uint64_t *revision, tdm_error *err)
{
    uint64_t unused = 0;
    TDM_TRY(check_prefix(prefix, err));
    return kv->ops->list(kv, prefix, arena, out, out_count, revision ? revision : &unused, err);
}

tdm_status tdm_kv_put(tdm_kv *kv, const char *key, const char *value, uint64_t lease,
                      tdm_error *err)
{
    TDM_TRY(check_key(key, err));
    TDM_TRY(check_value(key, value, err));
    return kv->ops->put(kv, key, value, lease, err);
}

tdm_status tdm_kv_swap(tdm_kv *kv, const char *key, uint64_t expected, const char *value,
                       uint64_t lease, uint64_t *out_revision, tdm_error *err)
{
    uint64_t unused = 0;
    TDM_TRY(check_key(key, err));
    TDM_TRY(check_value(key, value, err));
    return kv->ops->swap(kv, key, expected, value, lease, out_revision ? out_revision : &unused,
                         err);
}

tdm_status tdm_kv_remove(tdm_kv *kv, const char *prefix, tdm_error *err)
{
    if (!*prefix)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "refusing to remove all keys of a store; give a prefix");
    TDM_TRY(check_prefix(prefix, err));
    return kv->ops->remove(kv, prefix, err);
}

tdm_status tdm_kv_lease(tdm_kv *kv, double seconds, uint64_t *out, tdm_error *err)
{
    if (!(seconds > 0) || seconds > TDM__TIMING_KV_MAX_S)
        return tdm_fail(err, TDM_ERR_RANGE,
                        "invalid lease of %g seconds: it must be above 0 and at most a year",
                        seconds);
    return kv->ops->lease(kv, seconds, out, err);
}

tdm_status tdm_kv_keep(tdm_kv *kv, uint64_t lease, tdm_error *err)
{
    return kv->ops->keep(kv, lease, err);
}

tdm_status tdm_kv_release(tdm_kv *kv, uint64_t lease, tdm_error *err)
{
    return kv->ops->release(kv, lease, err);
}

tdm_status tdm_kv_wait(tdm_kv *kv, const char *prefix, uint64_t revision, double seconds,
                       uint64_t *out, tdm_error *err)
{
    uint64_t unused = 0;
    TDM_TRY(check_prefix(prefix, err));
    if (isnan(seconds))
        return tdm_fail(err, TDM_ERR_RANGE, "the time to wait for the store is not a number");
    double bounded = seconds < 0                      ? 0
                     : seconds > TDM__TIMING_KV_MAX_S ? TDM__TIMING_KV_MAX_S
                                                      : seconds;
    return kv->ops->wait(kv, prefix, revision, bounded, out ? out : &unused, err);
}

/* ---- helpers for records --------------------------------------------------------------------- */

void tdm__put_shm_id(tdm_json_writer *w, uint64_t shm_id)
{
    char text[20];
    snprintf(text, sizeof(text), "%016llx", (unsigned long long)shm_id);
    tdm_json_put_string(w, "vault", text);
}
