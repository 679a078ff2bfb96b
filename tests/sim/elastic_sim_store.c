/*
 * elastic_sim_store.c: the store of a simulated schedule. Its responses are correct; they are slow,
 * late or missing as the schedule demands.
 *
 * A call has a latency before and after its effect; its process may be killed, stopped or
 * disconnected at both times. A call that cannot reach the store fails after a while; half of these
 * calls have taken effect. Removed keys stay in the table without a value, so that a wait notices
 * their removal. Each change of "epoch" is checked: its number must follow the previous one.
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

typedef enum outcome {
    ANSWERED,
    NOT_RECEIVED, /* no effect and no response */
    NO_RESPONSE   /* the call took effect, but the response is lost */
} outcome;

#define TIMEOUT_S 1.5 /* of a call */

static process *process_of(tdm_kv *kv)
{
    return ((handle *)kv)->p;
}

/* ---- the table ------------------------------------------------------------------------------- */

static int store_find(const store *t, const char *key, bool *is_there)
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

static bool key_begins(const char *key, const char *prefix)
{
    return strncmp(key, prefix, strlen(prefix)) == 0;
}

static void watchers_wake(sim *s, const char *key)
{
    for (int i = 0; i < 2 * s->process_count; i++) {
        fiber *f = &s->list[i];
        if (!f->watched || !key_begins(key, f->watched)) continue;
        f->wake_s = fmin(f->wake_s, s->now_s + sim_between(s, 1e-5, 1e-3));
    }
}

static void epoch_check(sim *s, const char *value)
{
    unsigned number = 0;
    if (!value || sscanf(value, "{\"number\":%u,", &number) != 1)
        sim_fail(s, "the epoch was removed or is invalid: %s", value ? value : "");
    else if (number != s->store.epoch + 1)
        sim_fail(s, "epoch %u follows epoch %u", number, s->store.epoch);
    s->store.epoch = number;
    s->store.epoch_s = s->now_s;
    s->epochs++;
}

static void store_set(sim *s, const char *key, const char *value, uint64_t lease_id)
{
    store *t = &s->store;
    bool is_there = false;
    int at = store_find(t, key, &is_there);
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
    if (strcmp(key, PREFIX "epoch") == 0) epoch_check(s, value);
    if (strcmp(key, PREFIX "verdict") == 0 && value) {
        s->has_verdict = true;
        s->verdict = (tdm_status)strtol(strchr(value, ':') + 1, NULL, 10);
    }
    sim_log(s, "      %s %s %s", value ? "put" : "removed", key, value ? value : "");
    watchers_wake(s, key);
}

void sim_store_put(sim *s, const char *key, const char *value)
{
    store_set(s, key, value, 0);
}

const char *sim_store_get(sim *s, const char *key)
{
    bool is_there = false;
    int at = store_find(&s->store, key, &is_there);
    return is_there ? s->store.entries[at].value : NULL;
}

void sim_store_release(sim *s)
{
    for (int i = 0; i < s->store.count; i++) free(s->store.entries[i].value);
    free(s->store.entries);
}

static int lease_find(const store *t, uint64_t id)
{
    for (int i = 0; i < t->lease_count; i++)
        if (t->leases[i].id == id) return i;
    return -1;
}

static void lease_end(sim *s, int index)
{
    uint64_t id = s->store.leases[index].id;
    s->store.leases[index] = s->store.leases[--s->store.lease_count];
    for (int i = 0; i < s->store.count; i++) {
        entry *e = &s->store.entries[i];
        if (e->value && e->lease == id) store_set(s, e->key, NULL, 0);
    }
}

void sim_store_expire(sim *s)
{
    for (int i = s->store.lease_count - 1; i >= 0; i--)
        if (i < s->store.lease_count && s->store.leases[i].end_s <= s->now_s) lease_end(s, i);
}

double sim_store_next_s(sim *s)
{
    double first_s = NEVER;
    for (int i = 0; i < s->store.lease_count; i++)
        first_s = fmin(first_s, s->store.leases[i].end_s);
    return first_s;
}

/* ---- latency and faults of a call ------------------------------------------------------------ */

static double call_latency_s(sim *s)
{
    return sim_chance(s, 0.02) ? sim_between(s, 0.005, 0.08) : sim_between(s, 2e-5, 1e-3);
}

static bool process_is_cut_off(const process *p)
{
    return p->s->now_s < p->no_store_s || p->s->now_s < p->s->store.down_until_s;
}

static void process_count_call(process *p)
{
    if (p->op_fuse == 0 || --p->op_fuse > 0) return;
    sim_log(p->s, "      is killed at a call to the store");
    sim_kill(p);
}

/* The way to the store: the call may take effect unless the result is NOT_RECEIVED. */
static outcome call_send(tdm_kv *kv)
{
    process *p = process_of(kv);
    sim_sleep(p, call_latency_s(p->s));
    process_count_call(p);
    if (p->is_dead) return NOT_RECEIVED;
    if (!process_is_cut_off(p)) return ANSWERED;
    return sim_chance(p->s, 0.5) ? NO_RESPONSE : NOT_RECEIVED;
}

/* The way back. */
static tdm_status call_return(tdm_kv *kv, outcome o, tdm_status status, tdm_error *err)
{
    process *p = process_of(kv);
    if (o == ANSWERED && sim_chance(p->s, 0.5)) sim_sleep(p, call_latency_s(p->s));
    if (p->is_dead) return tdm_fail(err, TDM_ERR_IO, "this process is dead");
    if (o == ANSWERED) return status;
    bool is_refused = o == NOT_RECEIVED && sim_chance(p->s, 0.5);
    sim_sleep(p, is_refused ? 1e-3 : TIMEOUT_S);
    if (is_refused) return tdm_fail(err, TDM_ERR_IO, "no connection to the store");
    return tdm_fail(err, TDM_ERR_TIMEOUT, "the store did not respond");
}

/* ---- calls ----------------------------------------------------------------------------------- */

static void store_close(tdm_kv *kv)
{
    free(kv);
}

static double store_now(const tdm_kv *kv)
{
    const process *p = ((const handle *)kv)->p;
    return p->is_dead ? 1e9 : p->s->now_s;
}

static tdm_status store_list(tdm_kv *kv, const char *prefix, tdm_arena *arena, tdm_kv_item **out,
                             size_t *out_count, uint64_t *revision, tdm_error *err)
{
    outcome o = call_send(kv);
    store *t = &process_of(kv)->s->store;
    tdm_kv_item *items = tdm_arena_array(arena, (size_t)t->count + 1, sizeof(*items));
    size_t count = 0;
    for (int i = 0; o == ANSWERED && i < t->count; i++) {
        const entry *e = &t->entries[i];
        if (!e->value || !key_begins(e->key, prefix)) continue;
        items[count++] = (tdm_kv_item){.key = tdm_arena_strdup(arena, e->key),
                                       .value = tdm_arena_strdup(arena, e->value),
                                       .revision = e->revision,
                                       .lease = e->lease};
    }
    uint64_t at = t->revision;
    TDM_TRY(call_return(kv, o, TDM_OK, err));
    *out = items;
    *out_count = count;
    *revision = at;
    return TDM_OK;
}

static tdm_status store_get(tdm_kv *kv, const char *key, tdm_arena *arena, tdm_kv_item *out,
                            tdm_error *err)
{
    tdm_kv_item *items = NULL;
    size_t count = 0;
    uint64_t revision = 0;
    TDM_TRY(store_list(kv, key, arena, &items, &count, &revision, err));
    if (count == 0 || strcmp(items[0].key, key) != 0)
        return tdm_fail(err, TDM_ERR_NOT_FOUND, "%s does not exist", key);
    *out = items[0];
    return TDM_OK;
}

static tdm_status store_swap(tdm_kv *kv, const char *key, uint64_t expected, const char *value,
                             uint64_t lease_id, uint64_t *out_revision, tdm_error *err)
{
    outcome o = call_send(kv);
    sim *s = process_of(kv)->s;
    tdm_status status = TDM_OK;
    if (o != NOT_RECEIVED) {
        bool is_there = false;
        int at = store_find(&s->store, key, &is_there);
        uint64_t revision = is_there && s->store.entries[at].value ? s->store.entries[at].revision
                                                                   : 0;
        if (expected != UINT64_MAX && revision != expected)
            status = TDM_ERR_EXISTS;
        else if (lease_id != 0 && lease_find(&s->store, lease_id) < 0)
            status = TDM_ERR_NOT_FOUND;
        else
            store_set(s, key, value, lease_id);
        if (status == TDM_OK) *out_revision = s->store.revision;
    }
    if (status != TDM_OK) tdm_fail(err, status, "%s was not written", key);
    return call_return(kv, o, status, err);
}

static tdm_status store_put(tdm_kv *kv, const char *key, const char *value, uint64_t lease_id,
                            tdm_error *err)
{
    uint64_t revision = 0;
    return store_swap(kv, key, UINT64_MAX, value, lease_id, &revision, err);
}

static tdm_status store_remove(tdm_kv *kv, const char *prefix, tdm_error *err)
{
    outcome o = call_send(kv);
    sim *s = process_of(kv)->s;
    for (int i = 0; o != NOT_RECEIVED && i < s->store.count; i++)
        if (s->store.entries[i].value && key_begins(s->store.entries[i].key, prefix))
            store_set(s, s->store.entries[i].key, NULL, 0);
    return call_return(kv, o, TDM_OK, err);
}

static tdm_status store_lease(tdm_kv *kv, double seconds, uint64_t *out, tdm_error *err)
{
    outcome o = call_send(kv);
    sim *s = process_of(kv)->s;
    if (o != NOT_RECEIVED && s->store.lease_count < MAX_LEASES) {
        *out = ++s->store.last_lease;
        s->store.leases[s->store.lease_count++] = (lease){
            .id = *out, .length_s = seconds, .end_s = s->now_s + seconds};
    }
    return call_return(kv, o, TDM_OK, err);
}

static tdm_status store_keep(tdm_kv *kv, uint64_t id, tdm_error *err)
{
    outcome o = call_send(kv);
    sim *s = process_of(kv)->s;
    tdm_status status = TDM_OK;
    if (o != NOT_RECEIVED) {
        int at = lease_find(&s->store, id);
        if (at < 0)
            status = tdm_fail(err, TDM_ERR_NOT_FOUND, "the lease has ended");
        else
            s->store.leases[at].end_s = s->now_s + s->store.leases[at].length_s;
    }
    return call_return(kv, o, status, err);
}

static tdm_status store_release(tdm_kv *kv, uint64_t id, tdm_error *err)
{
    outcome o = call_send(kv);
    sim *s = process_of(kv)->s;
    if (o != NOT_RECEIVED && lease_find(&s->store, id) >= 0)
        lease_end(s, lease_find(&s->store, id));
    return call_return(kv, o, TDM_OK, err);
}

static uint64_t last_change(const store *t, const char *prefix)
{
    uint64_t last = 0;
    for (int i = 0; i < t->count; i++)
        if (t->entries[i].revision > last && key_begins(t->entries[i].key, prefix))
            last = t->entries[i].revision;
    return last;
}

static tdm_status store_wait(tdm_kv *kv, const char *prefix, uint64_t revision, double seconds,
                             uint64_t *out, tdm_error *err)
{
    process *p = process_of(kv);
    sim *s = p->s;
    double until_s = s->now_s + seconds;
    if (process_is_cut_off(p)) {
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
                                .about = "simulated",
                                .close = store_close,
                                .now = store_now,
                                .get = store_get,
                                .list = store_list,
                                .put = store_put,
                                .swap = store_swap,
                                .remove = store_remove,
                                .lease = store_lease,
                                .keep = store_keep,
                                .release = store_release,
                                .wait = store_wait};

tdm_kv *sim_store_open(process *p)
{
    handle *h = calloc(1, sizeof(*h));
    h->kv.ops = &ops;
    h->p = p;
    return &h->kv;
}
