/*
 * kv_local_log.c: the log of a local store, and each handle's index of it.
 *
 * kv_local.h explains how changes are committed. A handle keeps the positions of the live records,
 * sorted by key, in its own memory, and updates them by reading the records that were added since.
 * If the other area was activated, it reads that from the beginning. The memory is bounded by the
 * capacity of the area, regardless of the number of changes.
 *
 * Invariant: bytes after `used` in the active area, and all bytes of the other area, are
 * meaningless. The file is untrusted: a record is used only after a check that it is within the
 * area.
 */
#include "base/base.h"
#include "kv/kv_local.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* 1 bit for the area, 23 bits for the used length in units of 8 bytes, 40 bits for the revision. */
enum { REVISION_BITS = 40, USED_BITS = 23, MIN_INDEX = 64 };
_Static_assert(TDM__LOCAL_AREA_BYTES / 8 < 1 << USED_BITS, "the end of the log must fit");

static tdm__local_point commit_unpack(uint64_t commit)
{
    return (tdm__local_point){
        .area = (unsigned)(commit >> 63),
        .used = (uint32_t)(commit >> REVISION_BITS & ((1U << USED_BITS) - 1)) * 8,
        .revision = commit & ((UINT64_C(1) << REVISION_BITS) - 1),
    };
}

/* Commits the change: from here on it exists. */
static void commit_store(tdm__local *local, tdm__local_point point)
{
    assert(point.used <= TDM__LOCAL_AREA_BYTES && point.used % 8 == 0);
    uint64_t word = (uint64_t)point.area << 63 | (uint64_t)(point.used / 8) << REVISION_BITS |
                    point.revision;
    atomic_store(&local->head->commit, word);
    local->is_changed = true;
}

static const tdm__local_record *record_in(const tdm__local *local, uint32_t place)
{
    return (const tdm__local_record *)(const void *)(local->areas[local->seen.area] + place);
}

const tdm__local_record *tdm__local_at(const tdm__local *local, size_t place)
{
    return record_in(local, local->index[place]);
}

size_t tdm__local_find(const tdm__local *local, const char *key)
{
    size_t low = 0, high = local->index_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(tdm__local_key(tdm__local_at(local, middle)), key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool begins(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static size_t record_bytes(size_t key_length, size_t value_length)
{
    return (sizeof(tdm__local_record) + key_length + value_length + 2 + 7) / 8 * 8;
}

/* Whether a complete record is between `place` and `used`. */
static bool record_is_complete(const tdm__local *local, uint32_t place, uint32_t used)
{
    if (used - place < sizeof(tdm__local_record)) return false;
    const tdm__local_record *r = record_in(local, place);
    if (r->key_length == 0 || r->key_length >= TDM_KV_KEY_BYTES ||
        r->value_length >= TDM_KV_VALUE_BYTES)
        return false;
    return r->bytes == record_bytes(r->key_length, r->value_length) && r->bytes <= used - place &&
           strnlen(tdm__local_key(r), (size_t)r->key_length + 1) == r->key_length &&
           strnlen(tdm__local_value(r), (size_t)r->value_length + 1) == r->value_length;
}

static bool index_reserve(tdm__local *local)
{
    if (local->index_count < local->index_capacity) return true;
    size_t capacity = local->index_capacity ? local->index_capacity * 2 : MIN_INDEX;
    uint32_t *grown = realloc(local->index, capacity * sizeof(*grown));
    if (!grown) return false;
    local->index = grown;
    local->index_capacity = capacity;
    return true;
}

/* Adds one record to the index, which has space for it. */
static void index_apply(tdm__local *local, uint32_t place)
{
    const tdm__local_record *r = record_in(local, place);
    size_t at = tdm__local_find(local, tdm__local_key(r));
    bool there = at < local->index_count &&
                 strcmp(tdm__local_key(tdm__local_at(local, at)), tdm__local_key(r)) == 0;
    uint32_t *entry = local->index + at;
    size_t behind = local->index_count - at;
    if (there && r->removed) {
        memmove(entry, entry + 1, (behind - 1) * sizeof(*entry));
        local->index_count--;
    } else if (!r->removed) {
        if (!there) {
            memmove(entry + 1, entry, behind * sizeof(*entry));
            local->index_count++;
        }
        *entry = place;
    }
}

tdm_status tdm__local_read(tdm__local *local, tdm_error *err)
{
    tdm__local_point now = commit_unpack(atomic_load(&local->head->commit));
    uint64_t generation = local->head->areas[now.area].generation;
    if (generation != local->seen_generation) {
        local->seen = (tdm__local_point){.area = now.area};
        local->seen_generation = generation;
        local->index_count = 0;
    }
    if (now.used > TDM__LOCAL_AREA_BYTES) now.used = 0; /* detected by the next check */
    if (now.used < local->seen.used)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s is damaged: its log ends before it begins; stop the processes that "
                        "use it and remove the file",
                        local->path);
    while (local->seen.used < now.used) {
        if (!index_reserve(local)) return tdm_fail_oom(err, "for its index (%s)", local->path);
        if (!record_is_complete(local, local->seen.used, now.used))
            return tdm_fail(err, TDM_ERR_FORMAT,
                            "%s is damaged at byte %u of its log; stop the processes that use it "
                            "and remove the file",
                            local->path, local->seen.used);
        index_apply(local, local->seen.used);
        local->seen.used += record_in(local, local->seen.used)->bytes;
    }
    local->seen = now;
    return TDM_OK;
}

bool tdm__local_changed(tdm__local *local, const char *prefix, uint64_t revision)
{
    uint64_t base = local->head->areas[local->seen.area].base_revision;
    if (revision == local->seen.revision) return false;
    if (revision < base || revision > local->seen.revision) return true;
    bool known = local->watched_generation == local->seen_generation &&
                 local->watched_revision <= revision;
    uint32_t place = known ? local->watched_used : 0;
    while (place < local->seen.used) {
        const tdm__local_record *r = record_in(local, place);
        if (r->revision > revision && begins(tdm__local_key(r), prefix)) return true;
        place += r->bytes;
    }
    local->watched_generation = local->seen_generation;
    local->watched_revision = local->seen.revision;
    local->watched_used = place;
    return false;
}

/* ---- writing --------------------------------------------------------------------------------- */

typedef struct change {
    const char *key;
    const char *value; /* NULL: the key is removed */
    uint64_t lease;
    uint64_t revision;
} change;

static size_t change_bytes(const change *c)
{
    return record_bytes(strlen(c->key), c->value ? strlen(c->value) : 0);
}

/* Writes a record at `to`, which has enough space. Returns its size. */
static size_t record_write(char *to, const change *c)
{
    size_t key_length = strlen(c->key), value_length = c->value ? strlen(c->value) : 0;
    size_t bytes = record_bytes(key_length, value_length);
    tdm__local_record r = {
        .bytes = (uint32_t)bytes,
        .key_length = (uint32_t)key_length,
        .value_length = (uint32_t)value_length,
        .removed = c->value == NULL,
        .revision = c->revision,
        .lease = c->lease,
    };
    memcpy(to, &r, sizeof(r));
    memset(to + sizeof(r) + key_length, 0, bytes - sizeof(r) - key_length);
    memcpy(to + sizeof(r), c->key, key_length);
    if (value_length > 0) memcpy(to + sizeof(r) + key_length + 1, c->value, value_length);
    return bytes;
}

/* What a change removes: the keys with a prefix, one key, or the keys of a lease. */
typedef struct filter {
    const char *prefix, *key;
    uint64_t lease;
} filter;

static bool filter_matches(const filter *f, const tdm__local_record *r)
{
    if (f->prefix) return begins(tdm__local_key(r), f->prefix);
    if (f->key) return strcmp(tdm__local_key(r), f->key) == 0;
    return r->lease == f->lease;
}

/* Starts the other area with the live records, without those that match the filter, and with
 * `added`, if any. */
static tdm_status area_rewrite(tdm__local *local, const filter *f, const change *added,
                               uint64_t revision, tdm_error *err)
{
    size_t bytes = added ? change_bytes(added) : 0;
    for (size_t i = 0; i < local->index_count; i++)
        if (!filter_matches(f, tdm__local_at(local, i))) bytes += tdm__local_at(local, i)->bytes;
    if (bytes > TDM__LOCAL_AREA_BYTES)
        return tdm_fail(err, TDM_ERR_NO_SPACE,
                        "%s is full: %zu keys in %d bytes, no space for \"%s\"", local->path,
                        local->index_count, TDM__LOCAL_AREA_BYTES, added ? added->key : "");
    unsigned other = 1 - local->seen.area;
    char *area = local->areas[other];
    size_t used = 0;
    for (size_t i = 0; i < local->index_count; i++) {
        const tdm__local_record *r = tdm__local_at(local, i);
        if (filter_matches(f, r)) continue;
        memcpy(area + used, r, r->bytes);
        used += r->bytes;
    }
    if (added) used += record_write(area + used, added);
    local->head->areas[other] = (tdm__local_area){.generation = local->seen_generation + 1,
                                                  .base_revision = revision};
    commit_store(local, (tdm__local_point){other, (uint32_t)used, revision});
    return TDM_OK;
}

tdm_status tdm__local_write(tdm__local *local, const char *key, const char *value, uint64_t lease,
                            tdm_error *err)
{
    change c = {.key = key, .value = value, .lease = lease, .revision = local->seen.revision + 1};
    tdm__local_point point = local->seen;
    /* Nothing may fail after the commit. */
    if (!index_reserve(local)) return tdm_fail_oom(err, "for its index (%s)", local->path);
    if (change_bytes(&c) > TDM__LOCAL_AREA_BYTES - point.used) {
        TDM_TRY(area_rewrite(local, &(filter){.key = key}, &c, c.revision, err));
    } else {
        point.used += (uint32_t)record_write(local->areas[point.area] + point.used, &c);
        point.revision = c.revision;
        commit_store(local, point);
    }
    return tdm__local_read(local, err);
}

tdm_status tdm__local_erase(tdm__local *local, const char *prefix, uint64_t lease, tdm_error *err)
{
    filter f = {.prefix = prefix, .lease = lease};
    size_t bytes = 0;
    for (size_t i = 0; i < local->index_count; i++) {
        const tdm__local_record *r = tdm__local_at(local, i);
        if (filter_matches(&f, r)) bytes += record_bytes(r->key_length, 0);
    }
    if (bytes == 0) return TDM_OK;
    tdm__local_point point = local->seen;
    point.revision++;
    if (bytes > TDM__LOCAL_AREA_BYTES - point.used) {
        TDM_TRY(area_rewrite(local, &f, NULL, point.revision, err));
        return tdm__local_read(local, err);
    }
    for (size_t i = 0; i < local->index_count; i++) {
        const tdm__local_record *r = tdm__local_at(local, i);
        if (!filter_matches(&f, r)) continue;
        change c = {.key = tdm__local_key(r), .revision = point.revision};
        point.used += (uint32_t)record_write(local->areas[point.area] + point.used, &c);
    }
    commit_store(local, point);
    return tdm__local_read(local, err);
}
