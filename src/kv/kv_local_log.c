/*
 * kv_local_log.c: the log of a local store, and each handle's index of it.
 *
 * How changes come to be: kv_local.h. A handle keeps the places of the records that count, in order of
 * key, in memory of its own, and brings that up to date by reading what others have added since; when
 * they began the other area, it reads that from its beginning. Its memory is bounded by what the area
 * can hold, however many changes there are.
 *
 * Invariant: behind `used` of the area that counts, and in all of the other one, lie bytes without any
 * meaning. The file comes from outside: no record is believed to lie within the area until it was
 * looked at.
 */
#include "kv/kv_local.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* 1 bit which area, 23 bits how many eights of bytes of it, 40 bits the revision. */
enum { REVISION_BITS = 40, USED_BITS = 23, MIN_INDEX = 64 };
_Static_assert(TDM__LOCAL_AREA_BYTES / 8 < 1 << USED_BITS, "the end of the log must fit");

static tdm__local_point unpack(uint64_t commit)
{
    return (tdm__local_point){
        .area = (unsigned)(commit >> 63),
        .used = (uint32_t)(commit >> REVISION_BITS & ((1U << USED_BITS) - 1)) * 8,
        .revision = commit & ((UINT64_C(1) << REVISION_BITS) - 1),
    };
}

/* From here on the change exists. */
static void commit(tdm__local *local, tdm__local_point point)
{
    assert(point.used <= TDM__LOCAL_AREA_BYTES && point.used % 8 == 0);
    uint64_t word = (uint64_t)point.area << 63 | (uint64_t)(point.used / 8) << REVISION_BITS |
                    point.revision;
    atomic_store(&local->head->commit, word);
    local->rung = true;
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

/* Whether a whole record lies between `place` and `used`. */
static bool whole(const tdm__local *local, uint32_t place, uint32_t used)
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

static bool room_in_index(tdm__local *local)
{
    if (local->index_count < local->index_capacity) return true;
    size_t capacity = local->index_capacity ? local->index_capacity * 2 : MIN_INDEX;
    uint32_t *grown = realloc(local->index, capacity * sizeof *grown);
    if (!grown) return false;
    local->index = grown;
    local->index_capacity = capacity;
    return true;
}

/* Takes one record into the index, which has room. */
static void apply(tdm__local *local, uint32_t place)
{
    const tdm__local_record *r = record_in(local, place);
    size_t at = tdm__local_find(local, tdm__local_key(r));
    bool there = at < local->index_count &&
                 strcmp(tdm__local_key(tdm__local_at(local, at)), tdm__local_key(r)) == 0;
    uint32_t *entry = local->index + at;
    size_t behind = local->index_count - at;
    if (there && r->removed) {
        memmove(entry, entry + 1, (behind - 1) * sizeof *entry);
        local->index_count--;
    } else if (!r->removed) {
        if (!there) {
            memmove(entry + 1, entry, behind * sizeof *entry);
            local->index_count++;
        }
        *entry = place;
    }
}

tdm_status tdm__local_read(tdm__local *local, tdm_error *err)
{
    tdm__local_point now = unpack(atomic_load(&local->head->commit));
    uint64_t generation = local->head->areas[now.area].generation;
    if (generation != local->seen_generation) {
        local->seen = (tdm__local_point){.area = now.area};
        local->seen_generation = generation;
        local->index_count = 0;
    }
    if (now.used > TDM__LOCAL_AREA_BYTES) now.used = 0; /* which the next test finds */
    if (now.used < local->seen.used)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s is damaged: its log ends before it begins; stop the processes that "
                        "use it and remove the file",
                        local->path);
    while (local->seen.used < now.used) {
        if (!room_in_index(local))
            return tdm_fail(err, TDM_ERR_NO_MEMORY, "%s: no memory for its index", local->path);
        if (!whole(local, local->seen.used, now.used))
            return tdm_fail(err, TDM_ERR_FORMAT,
                            "%s is damaged at byte %u of its log; stop the processes that use it "
                            "and remove the file",
                            local->path, local->seen.used);
        apply(local, local->seen.used);
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
    const char *value; /* NULL: the key goes */
    uint64_t lease;
    uint64_t revision;
} change;

static size_t change_bytes(const change *c)
{
    return record_bytes(strlen(c->key), c->value ? strlen(c->value) : 0);
}

/* The bytes of a record at `to`, where there is room. */
static size_t put_record(char *to, const change *c)
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
    memcpy(to, &r, sizeof r);
    memset(to + sizeof r + key_length, 0, bytes - sizeof r - key_length);
    memcpy(to + sizeof r, c->key, key_length);
    if (value_length > 0) memcpy(to + sizeof r + key_length + 1, c->value, value_length);
    return bytes;
}

/* What a change leaves out: what begins so, or has this very key, or hangs on that lease. */
typedef struct filter {
    const char *prefix, *key;
    uint64_t lease;
} filter;

static bool goes(const filter *f, const tdm__local_record *r)
{
    if (f->prefix) return begins(tdm__local_key(r), f->prefix);
    if (f->key) return strcmp(tdm__local_key(r), f->key) == 0;
    return r->lease == f->lease;
}

/* Begins the other area with what counts, without what goes, and with `added`, if there is one. */
static tdm_status begin_anew(tdm__local *local, const filter *f, const change *added,
                             uint64_t revision, tdm_error *err)
{
    size_t bytes = added ? change_bytes(added) : 0;
    for (size_t i = 0; i < local->index_count; i++)
        if (!goes(f, tdm__local_at(local, i))) bytes += tdm__local_at(local, i)->bytes;
    if (bytes > TDM__LOCAL_AREA_BYTES)
        return tdm_fail(err, TDM_ERR_NO_SPACE,
                        "%s is full: %zu keys in %d bytes, no space for \"%s\"", local->path,
                        local->index_count, TDM__LOCAL_AREA_BYTES, added ? added->key : "");
    unsigned other = 1 - local->seen.area;
    char *area = local->areas[other];
    size_t used = 0;
    for (size_t i = 0; i < local->index_count; i++) {
        const tdm__local_record *r = tdm__local_at(local, i);
        if (goes(f, r)) continue;
        memcpy(area + used, r, r->bytes);
        used += r->bytes;
    }
    if (added) used += put_record(area + used, added);
    local->head->areas[other] = (tdm__local_area){.generation = local->seen_generation + 1,
                                                  .base_revision = revision};
    commit(local, (tdm__local_point){other, (uint32_t)used, revision});
    return TDM_OK;
}

tdm_status tdm__local_write(tdm__local *local, const char *key, const char *value, uint64_t lease,
                            tdm_error *err)
{
    change c = {.key = key, .value = value, .lease = lease, .revision = local->seen.revision + 1};
    tdm__local_point point = local->seen;
    /* Nothing may fail once the change exists. */
    if (!room_in_index(local))
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "%s: no memory for its index", local->path);
    if (change_bytes(&c) > TDM__LOCAL_AREA_BYTES - point.used) {
        TDM_TRY(begin_anew(local, &(filter){.key = key}, &c, c.revision, err));
    } else {
        point.used += (uint32_t)put_record(local->areas[point.area] + point.used, &c);
        point.revision = c.revision;
        commit(local, point);
    }
    return tdm__local_read(local, err);
}

tdm_status tdm__local_erase(tdm__local *local, const char *prefix, uint64_t lease, tdm_error *err)
{
    filter f = {.prefix = prefix, .lease = lease};
    size_t bytes = 0;
    for (size_t i = 0; i < local->index_count; i++) {
        const tdm__local_record *r = tdm__local_at(local, i);
        if (goes(&f, r)) bytes += record_bytes(r->key_length, 0);
    }
    if (bytes == 0) return TDM_OK;
    tdm__local_point point = local->seen;
    point.revision++;
    if (bytes > TDM__LOCAL_AREA_BYTES - point.used) {
        TDM_TRY(begin_anew(local, &f, NULL, point.revision, err));
        return tdm__local_read(local, err);
    }
    for (size_t i = 0; i < local->index_count; i++) {
        const tdm__local_record *r = tdm__local_at(local, i);
        if (!goes(&f, r)) continue;
        change c = {.key = tdm__local_key(r), .revision = point.revision};
        point.used += (uint32_t)put_record(local->areas[point.area] + point.used, &c);
    }
    commit(local, point);
    return tdm__local_read(local, err);
}
