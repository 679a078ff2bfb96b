/*
 * elastic_sim_store.c: the store of a simulated schedule: correct as long as it answers, and slow, silent or
 * late when the schedule says so.
 *
 * A call travels, has its effect, and travels back; its process may be killed, stopped or cut off in
 * between. A call that finds no store fails after a while, and half of those had their effect nevertheless.
 * Removed keys stay in the table without a value, so that a wait sees their removal. Each change of "epoch"
 * is checked: its number is the last one's successor, whoever put it.
 */
#include "elastic_sim.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct handle {
    tdm_kv kv;
    process *p;
} handle;

typedef enum fate {
    ANSWERED,
    UNHEARD, /* no effect, and no answer */
    UNSEEN   /* had its effect, but no answer came */
} fate;

#define TIMEOUT_S 1.5

static process *process_of(tdm_kv *kv)
{
    return ((handle *)kv)->p;
}

/* ---- the table ---------------------------------------------------------------------------------- */

static int place_of(const store *t, const char *key, bool *is_there)
{
    int low = 0, high = t->count;
    while (low < high) {
        int middle = (low + high) / 2;
        int order = strcmp(t->entries[middle].key, key);
        if (order == 0) {
            *is_there = true;
            return middle;
        }
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *is_there = false;
    return low;
}

static bool begins(const char *key, const char *prefix)
{
    return strncmp(key, prefix, strlen(prefix)) == 0;
}

static void wake(sim *s, const char *key)
{
    for (int i = 0; i < 2 * s->process_count; i++) {
        fiber *f = &s->list[i];
        if (!f->watched || !begins(key, f->watched)) continue;
        f->wake_s = fmin(f->wake_s, s->now_s + sim_between(s, 1e-5, 1e-3));
    }
}

static void check_epoch(sim *s, const char *value)
{
    unsigned number = 0;
    if (!value || sscanf(value, "{\"number\":%u,", &number) != 1)
        sim_fail(s, "the epoch was removed, or is none: %s", value ? value : "");
    else if (number != s->store.epoch + 1)
        sim_fail(s, "epoch %u follows epoch %u", number, s->store.epoch);
    s->store.epoch = number;
    s->store.epoch_s = s->now_s;
    s->epochs++;
}

static void set(sim *s, const char *key, const char *value, uint64_t lease_id)
{
    store *t = &s->store;
    bool is_there = false;
    int at = place_of(t, key, &is_there);
    if (!is_there) {
        if (t->count == t->capacity) {
            t->capacity = t->capacity ? 2 * t->capacity : 64;
            t->entries = realloc(t->entries, (size_t)t->capacity * sizeof(*t->entries));
        }
        memmove(t->entries + at + 1, t->entries + at, (size_t)(t->count - at) * sizeof(entry));
        t->count++;
        t->entries[at] = (entry){.value = NULL};
        snprintf(t->entries[at].key, sizeof(t->entries[at].key), "%s", key);
    }
    entry *e = &t->entries[at];
    free(e->value);
    e->value = value ? strdup(value) : NULL;
    e->revision = ++t->revision;
    e->lease = lease_id;
    if (strcmp(key, PREFIX "epoch") == 0) check_epoch(s, value);
    if (strcmp(key, PREFIX "verdict") == 0 && value) {
        s->has_verdict = true;
        s->verdict = (tdm_status)strtol(strchr(value, ':') + 1, NULL, 10);
    }
    sim_say(s, "      %s %s %s", value ? "put" : "removed", key, value ? value : "");
    wake(s, key);
}

void sim_store_put(sim *s, const char *key, const char *value)
{
    set(s, key, value, 0);
}

const char *sim_store_get(sim *s, const char *key)
{
    bool is_there = false;
    int at = place_of(&s->store, key, &is_there);
    return is_there ? s->store.entries[at].value : NULL;
}

void sim_store_release(sim *s)
{
    for (int i = 0; i < s->store.count; i++) free(s->store.entries[i].value);
    free(s->store.entries);
}

static int lease_at(const store *t, uint64_t id)
{
    for (int i = 0; i < t->lease_count; i++)
        if (t->leases[i].id == id) return i;
    return -1;
}

static void end_lease(sim *s, int index)
{
    uint64_t id = s->store.leases[index].id;
    s->store.leases[index] = s->store.leases[--s->store.lease_count];
    for (int i = 0; i < s->store.count; i++) {
        entry *e = &s->store.entries[i];
        if (e->value && e->lease == id) set(s, e->key, NULL, 0);
    }
}

void sim_store_expire(sim *s)
{
    for (int i = s->store.lease_count - 1; i >= 0; i--)
        if (i < s->store.lease_count && s->store.leases[i].end_s <= s->now_s) end_lease(s, i);
}

double sim_store_next_s(sim *s)
{
    double first_s = NEVER;
    for (int i = 0; i < s->store.lease_count; i++)
        first_s = fmin(first_s, s->store.leases[i].end_s);
    return first_s;
}

/* ---- a call's way ------------------------------------------------------------------------------- */

static double latency_s(sim *s)
{
    return sim_chance(s, 0.02) ? sim_between(s, 0.005, 0.08) : sim_between(s, 2e-5, 1e-3);
}

static bool is_out_of_reach(const process *p)
{
    return p->s->now_s < p->no_store_s || p->s->now_s < p->s->store.down_until_s;
}

static void burn(process *p)
{
    if (p->op_fuse == 0 || --p->op_fuse > 0) return;
    sim_say(p->s, "      is killed at a call to the store");
    sim_kill(p);
}

/* To the store. */
static fate go(tdm_kv *kv)
{
    process *p = process_of(kv);
    sim_sleep(p, latency_s(p->s));
    burn(p);
    if (p->is_dead) return UNHEARD;
    if (!is_out_of_reach(p)) return ANSWERED;
    return sim_chance(p->s, 0.5) ? UNSEEN : UNHEARD;
}

/* And back. */
static tdm_status come_back(tdm_kv *kv, fate f, tdm_status status, tdm_error *err)
{
    process *p = process_of(kv);
    if (f == ANSWERED && sim_chance(p->s, 0.5)) sim_sleep(p, latency_s(p->s));
    if (p->is_dead) return tdm_fail(err, TDM_ERR_IO, "this process is dead");
    if (f == ANSWERED) return status;
    bool is_refused = f == UNHEARD && sim_chance(p->s, 0.5);
    sim_sleep(p, is_refused ? 1e-3 : TIMEOUT_S);
    if (is_refused) return tdm_fail(err, TDM_ERR_IO, "no connection to the store");
    return tdm_fail(err, TDM_ERR_TIMEOUT, "the store did not answer");
}

/* ---- calls -------------------------------------------------------------------------------------- */

static void close_store(tdm_kv *kv)
{
    free(kv);
}

static double now(const tdm_kv *kv)
{
    const process *p = ((const handle *)kv)->p;
    return p->is_dead ? 1e9 : p->s->now_s;
}

static tdm_status list(tdm_kv *kv, const char *prefix, tdm_arena *arena, tdm_kv_item **out,
                       size_t *out_count, uint64_t *revision, tdm_error *err)
{
    fate f = go(kv);
    store *t = &process_of(kv)->s->store;
    tdm_kv_item *items = tdm_arena_array(arena, (size_t)t->count + 1, sizeof(*items));
    size_t count = 0;
    for (int i = 0; f == ANSWERED && i < t->count; i++) {
        const entry *e = &t->entries[i];
        if (!e->value || !begins(e->key, prefix)) continue;
        items[count++] = (tdm_kv_item){.key = tdm_arena_strdup(arena, e->key),
                                       .value = tdm_arena_strdup(arena, e->value),
                                       .revision = e->revision,
                                       .lease = e->lease};
    }
    uint64_t at = t->revision;
    TDM_TRY(come_back(kv, f, TDM_OK, err));
    *out = items;
    *out_count = count;
    *revision = at;
    return TDM_OK;
}

static tdm_status get(tdm_kv *kv, const char *key, tdm_arena *arena, tdm_kv_item *out,
                      tdm_error *err)
{
    tdm_kv_item *items = NULL;
    size_t count = 0;
    uint64_t revision = 0;
    TDM_TRY(list(kv, key, arena, &items, &count, &revision, err));
    if (count == 0 || strcmp(items[0].key, key) != 0)
        return tdm_fail(err, TDM_ERR_NOT_FOUND, "there is no %s", key);
    *out = items[0];
    return TDM_OK;
}

static tdm_status swap(tdm_kv *kv, const char *key, uint64_t expected, const char *value,
                       uint64_t lease_id, uint64_t *out_revision, tdm_error *err)
{
    fate f = go(kv);
    sim *s = process_of(kv)->s;
    tdm_status status = TDM_OK;
    if (f != UNHEARD) {
        bool is_there = false;
        int at = place_of(&s->store, key, &is_there);
        uint64_t revision = is_there && s->store.entries[at].value ? s->store.entries[at].revision
                                                                   : 0;
        if (expected != UINT64_MAX && revision != expected)
            status = TDM_ERR_EXISTS;
        else if (lease_id != 0 && lease_at(&s->store, lease_id) < 0)
            status = TDM_ERR_NOT_FOUND;
        else
            set(s, key, value, lease_id);
        if (status == TDM_OK) *out_revision = s->store.revision;
    }
    if (status != TDM_OK) tdm_fail(err, status, "%s was not put", key);
    return come_back(kv, f, status, err);
}

static tdm_status put(tdm_kv *kv, const char *key, const char *value, uint64_t lease_id,
                      tdm_error *err)
{
    uint64_t revision = 0;
    return swap(kv, key, UINT64_MAX, value, lease_id, &revision, err);
}

static tdm_status remove_keys(tdm_kv *kv, const char *prefix, tdm_error *err)
{
    fate f = go(kv);
    sim *s = process_of(kv)->s;
    for (int i = 0; f != UNHEARD && i < s->store.count; i++)
        if (s->store.entries[i].value && begins(s->store.entries[i].key, prefix))
            set(s, s->store.entries[i].key, NULL, 0);
    return come_back(kv, f, TDM_OK, err);
}

static tdm_status grant(tdm_kv *kv, double seconds, uint64_t *out, tdm_error *err)
{
    fate f = go(kv);
    sim *s = process_of(kv)->s;
    if (f != UNHEARD && s->store.lease_count < MAX_LEASES) {
        *out = ++s->store.last_lease;
        s->store.leases[s->store.lease_count++] = (lease){
            .id = *out, .length_s = seconds, .end_s = s->now_s + seconds};
    }
    return come_back(kv, f, TDM_OK, err);
}

static tdm_status keep(tdm_kv *kv, uint64_t id, tdm_error *err)
{
    fate f = go(kv);
    sim *s = process_of(kv)->s;
    tdm_status status = TDM_OK;
    if (f != UNHEARD) {
        int at = lease_at(&s->store, id);
        if (at < 0)
            status = tdm_fail(err, TDM_ERR_NOT_FOUND, "the lease has ended");
        else
            s->store.leases[at].end_s = s->now_s + s->store.leases[at].length_s;
    }
    return come_back(kv, f, status, err);
}

static tdm_status release(tdm_kv *kv, uint64_t id, tdm_error *err)
{
    fate f = go(kv);
    sim *s = process_of(kv)->s;
    if (f != UNHEARD && lease_at(&s->store, id) >= 0) end_lease(s, lease_at(&s->store, id));
    return come_back(kv, f, TDM_OK, err);
}

static uint64_t last_change(const store *t, const char *prefix)
{
    uint64_t last = 0;
    for (int i = 0; i < t->count; i++)
        if (t->entries[i].revision > last && begins(t->entries[i].key, prefix))
            last = t->entries[i].revision;
    return last;
}

static tdm_status wait(tdm_kv *kv, const char *prefix, uint64_t revision, double seconds,
                       uint64_t *out, tdm_error *err)
{
    process *p = process_of(kv);
    sim *s = p->s;
    double until_s = s->now_s + seconds;
    if (is_out_of_reach(p)) {
        sim_sleep(p, fmin(seconds, 0.01));
        return tdm_fail(err, TDM_ERR_IO, "no connection to the store");
    }
    while (!p->is_dead && s->now_s < until_s && last_change(&s->store, prefix) <= revision) {
        fiber *f = &s->list[s->current];
        f->watched = prefix;
        sim_sleep(p, until_s - s->now_s);
        f->watched = NULL;
    }
    if (p->is_dead) return tdm_fail(err, TDM_ERR_IO, "this process is dead");
    *out = s->store.revision;
    return TDM_OK;
}

static const tdm__kv_ops ops = {.name = "sim",
                                .about = "a simulated one",
                                .close = close_store,
                                .now = now,
                                .get = get,
                                .list = list,
                                .put = put,
                                .swap = swap,
                                .remove = remove_keys,
                                .lease = grant,
                                .keep = keep,
                                .release = release,
                                .wait = wait};

tdm_kv *sim_store_open(process *p)
{
    handle *h = calloc(1, sizeof(*h));
    h->kv.ops = &ops;
    h->p = p;
    return &h->kv;
}
