/*
 * kv_local.c: the store `local`: a file that all processes of one host map, without a server.
 *
 * Every call takes the lock, updates its index, removes expired leases and does its work. The store
 * survives a process killed at any instruction: see kv_local.h. An expired lease is removed in this
 * order: its keys in one change, then its table entry. A process killed in between leaves an
 * expired lease without keys, which the next process removes.
 *
 * Waiting processes are woken by the change itself, within microseconds. They also wake up when the
 * next lease expires and every TDM__TIMING_KV_LOCAL_CHECK_S, because a process may have been killed
 * between a change and the wake-up call.
 */
#include "kv/kv_local.h"
#include "base/base.h"
#include "base/timing.h"

#include <string.h>
#include <sys/stat.h>

#define CHECK_NS ((uint64_t)(TDM__TIMING_KV_LOCAL_CHECK_S * 1e9))
#define RELEASED 0 /* value of a deadline: the owner released the lease */

static tdm__local *local_of(tdm_kv *kv)
{
    return (tdm__local *)(void *)kv;
}

/* ---- leases ---------------------------------------------------------------------------------- */

static tdm__local_lease *lease_find(tdm__local *local, uint64_t id)
{
    uint32_t top = atomic_load(&local->head->lease_top);
    for (uint32_t i = 0; i < top && i < TDM__LOCAL_LEASES; i++)
        if (atomic_load(&local->head->leases[i].id) == id) return &local->head->leases[i];
    return NULL;
}

/* If the owner is alive but slow, extends the lease by half its length. */
static bool lease_extend(tdm__local_lease *lease, uint64_t now)
{
    if (!(lease->idle_s > 0) || !tdm_process_lives(&lease->owner, lease->idle_s)) return false;
    atomic_store(&lease->deadline_ns, now + atomic_load(&lease->length_ns) / 2);
    return true;
}

/* Removes expired leases; *next is the earliest expiry of the others. */
static tdm_status local_expire_leases(tdm__local *local, uint64_t *next, tdm_error *err)
{
    uint64_t now = tdm_clock_ns();
    uint32_t top = atomic_load(&local->head->lease_top), last = 0;
    *next = UINT64_MAX;
    for (uint32_t i = 0; i < top && i < TDM__LOCAL_LEASES; i++) {
        tdm__local_lease *lease = &local->head->leases[i];
        uint64_t id = atomic_load(&lease->id), deadline = atomic_load(&lease->deadline_ns);
        if (id != 0 && deadline != RELEASED && deadline <= now && lease_extend(lease, now))
            deadline = atomic_load(&lease->deadline_ns);
        if (id != 0 && deadline <= now) {
            TDM_TRY(tdm__local_erase(local, NULL, id, err));
            atomic_store(&lease->id, 0);
        } else if (id != 0) {
            last = i + 1;
            if (deadline < *next) *next = deadline;
        }
    }
    if (last < top) atomic_store(&local->head->lease_top, last);
    return TDM_OK;
}

/* Takes the lock and brings everything up to date; releases the lock on failure. */
static tdm_status local_enter(tdm__local *local, uint64_t *next, tdm_error *err)
{
    uint64_t unused = 0;
    TDM_TRY(tdm__local_lock(local, err));
    tdm_status status = tdm__local_read(local, err);
    if (status == TDM_OK) status = local_expire_leases(local, next ? next : &unused, err);
    if (status != TDM_OK) tdm__local_unlock(local);
    return status;
}

static tdm_status lease_check(tdm__local *local, uint64_t lease, tdm_error *err)
{
    if (lease == 0 || lease_find(local, lease)) return TDM_OK;
    return tdm_fail(err, TDM_ERR_NOT_FOUND, "%s: lease %llu has expired", local->path,
                    (unsigned long long)lease);
}

static tdm_status local_lease(tdm_kv *kv, double seconds, uint64_t *out, tdm_error *err)
{
    tdm__local *local = local_of(kv);
    TDM_TRY(local_enter(local, NULL, err));
    tdm__local_lease *place = NULL;
    uint32_t i = 0;
    for (; i < TDM__LOCAL_LEASES && !place; i++)
        if (atomic_load(&local->head->leases[i].id) == 0) place = &local->head->leases[i];
    if (!place) {
        tdm__local_unlock(local);
        return tdm_fail(err, TDM_ERR_NO_SPACE, "%s is full: %d leases are in use", local->path,
                        TDM__LOCAL_LEASES);
    }
    uint64_t id = atomic_load(&local->head->last_lease) + 1;
    uint64_t length_ns = (uint64_t)(seconds * 1e9);
    atomic_store(&local->head->last_lease, id);
    if (i > atomic_load(&local->head->lease_top)) atomic_store(&local->head->lease_top, i);
    place->idle_s = local->idle_s;
    if (local->idle_s > 0) tdm_process_watch_init(local->process, &place->owner);
    atomic_store(&place->length_ns, length_ns);
    atomic_store(&place->deadline_ns, tdm_clock_ns() + length_ns);
    atomic_store(&place->id, id);
    tdm__local_unlock(local);
    *out = id;
    return TDM_OK;
}

static tdm_status local_keep(tdm_kv *kv, uint64_t id, tdm_error *err)
{
    tdm__local *local = local_of(kv);
    TDM_TRY(local_enter(local, NULL, err));
    tdm__local_lease *place = id ? lease_find(local, id) : NULL;
    if (place) atomic_store(&place->deadline_ns, tdm_clock_ns() + atomic_load(&place->length_ns));
    tdm__local_unlock(local);
    /* Programs that remove old files see that this one is in use. */
    if (tdm_clock_s() - local->touched_s > TDM__TIMING_KV_LOCAL_TOUCH_S) {
        (void)futimens(local->fd, NULL);
        local->touched_s = tdm_clock_s();
    }
    if (place) return TDM_OK;
    return tdm_fail(err, TDM_ERR_NOT_FOUND, "%s: lease %llu has expired", local->path,
                    (unsigned long long)id);
}

static tdm_status local_release(tdm_kv *kv, uint64_t id, tdm_error *err)
{
    tdm__local *local = local_of(kv);
    uint64_t next = 0;
    TDM_TRY(local_enter(local, NULL, err));
    tdm__local_lease *place = id ? lease_find(local, id) : NULL;
    tdm_status status = TDM_OK;
    if (place) {
        atomic_store(&place->deadline_ns, RELEASED);
        status = local_expire_leases(local, &next, err);
    }
    tdm__local_unlock(local);
    return status;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static const tdm__local_record *local_look_up(const tdm__local *local, const char *key)
{
    size_t at = tdm__local_find(local, key);
    if (at == local->index_count) return NULL;
    const tdm__local_record *record = tdm__local_at(local, at);
    return strcmp(tdm__local_key(record), key) == 0 ? record : NULL;
}

static bool record_copy(const tdm__local_record *record, tdm_arena *arena, tdm_kv_item *out)
{
    out->key = tdm_arena_strndup(arena, tdm__local_key(record), record->key_length);
    out->value = tdm_arena_strndup(arena, tdm__local_value(record), record->value_length);
    out->revision = record->revision;
    out->lease = record->lease;
    return out->key && out->value;
}

static tdm_status local_get(tdm_kv *kv, const char *key, tdm_arena *arena, tdm_kv_item *out,
                            tdm_error *err)
{
    tdm__local *local = local_of(kv);
    TDM_TRY(local_enter(local, NULL, err));
    const tdm__local_record *record = local_look_up(local, key);
    tdm_kv_item item;
    bool copied = record && record_copy(record, arena, &item);
    tdm__local_unlock(local);
    if (!record) return tdm_fail(err, TDM_ERR_NOT_FOUND, "%s has no key \"%s\"", local->path, key);
    if (!copied) return tdm_fail_oom(err, "for its contents (%s)", local->path);
    *out = item;
    return TDM_OK;
}

static tdm_status local_list(tdm_kv *kv, const char *prefix, tdm_arena *arena, tdm_kv_item **out,
                             size_t *out_count, uint64_t *revision, tdm_error *err)
{
    tdm__local *local = local_of(kv);
    TDM_TRY(local_enter(local, NULL, err));
    size_t first = tdm__local_find(local, prefix), count = 0, length = strlen(prefix);
    while (first + count < local->index_count &&
           strncmp(tdm__local_key(tdm__local_at(local, first + count)), prefix, length) == 0)
        count++;
    tdm_kv_item *items = tdm_arena_array(arena, count > 0 ? count : 1, sizeof(*items));
    bool copied = items != NULL;
    for (size_t i = 0; i < count && copied; i++)
        copied = record_copy(tdm__local_at(local, first + i), arena, &items[i]);
    uint64_t now = local->seen.revision;
    tdm__local_unlock(local);
    if (!copied) return tdm_fail_oom(err, "for its contents (%s)", local->path);
    *out = items;
    *out_count = count;
    *revision = now;
    return TDM_OK;
}

static tdm_status local_put(tdm_kv *kv, const char *key, const char *value, uint64_t lease_id,
                            tdm_error *err)
{
    tdm__local *local = local_of(kv);
    TDM_TRY(local_enter(local, NULL, err));
    tdm_status status = lease_check(local, lease_id, err);
    if (status == TDM_OK) status = tdm__local_write(local, key, value, lease_id, err);
    tdm__local_unlock(local);
    return status;
}

static tdm_status local_swap(tdm_kv *kv, const char *key, uint64_t expected, const char *value,
                             uint64_t lease_id, uint64_t *out_revision, tdm_error *err)
{
    tdm__local *local = local_of(kv);
    TDM_TRY(local_enter(local, NULL, err));
    const tdm__local_record *record = local_look_up(local, key);
    uint64_t found = record ? record->revision : 0;
    tdm_status status = TDM_OK;
    if (found != expected)
        status = tdm_fail(err, TDM_ERR_EXISTS, "%s: \"%s\" is at revision %llu, not %llu",
                          local->path, key, (unsigned long long)found,
                          (unsigned long long)expected);
    if (status == TDM_OK) status = lease_check(local, lease_id, err);
    if (status == TDM_OK) status = tdm__local_write(local, key, value, lease_id, err);
    uint64_t now = local->seen.revision;
    tdm__local_unlock(local);
    if (status == TDM_OK) *out_revision = now;
    return status;
}

static tdm_status local_remove(tdm_kv *kv, const char *prefix, tdm_error *err)
{
    tdm__local *local = local_of(kv);
    TDM_TRY(local_enter(local, NULL, err));
    tdm_status status = tdm__local_erase(local, prefix, 0, err);
    tdm__local_unlock(local);
    return status;
}

static tdm_status local_wait(tdm_kv *kv, const char *prefix, uint64_t revision, double seconds,
                             uint64_t *out, tdm_error *err)
{
    tdm__local *local = local_of(kv);
    uint64_t deadline = tdm_clock_ns() + (uint64_t)(seconds * 1e9), next = 0;
    for (;;) {
        TDM_TRY(local_enter(local, &next, err));
        bool changed = tdm__local_changed(local, prefix, revision);
        uint64_t now_revision = local->seen.revision;
        tdm__local_unlock(local);
        uint64_t now = tdm_clock_ns();
        if (changed || now >= deadline) {
            *out = now_revision;
            return TDM_OK;
        }
        uint64_t until = now + CHECK_NS < deadline ? now + CHECK_NS : deadline;
        tdm__local_sleep(local, now_revision, next < until ? next : until);
    }
}

/* ---- table ----------------------------------------------------------------------------------- */

static tdm_status local_open(const tdm_kv_options *options, const char *place, tdm_kv **out,
                             tdm_error *err)
{
    tdm__local *local = NULL;
    TDM_TRY(tdm__local_open(place, options->timeout_s, options->must_exist, &local, err));
    local->kv.ops = &tdm__kv_local;
    local->idle_s = options->idle_s;
    *out = &local->kv;
    return TDM_OK;
}

static void local_close(tdm_kv *kv)
{
    tdm__local_close(local_of(kv));
}

const tdm__kv_ops tdm__kv_local = {
    .name = "local",
    .about = "for one host: a memory-mapped file",
    .open = local_open,
    .close = local_close,
    .get = local_get,
    .list = local_list,
    .put = local_put,
    .swap = local_swap,
    .remove = local_remove,
    .lease = local_lease,
    .keep = local_keep,
    .release = local_release,
    .wait = local_wait,
};
