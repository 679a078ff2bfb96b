/*
 * epoch_view.c: reads everything the store has about a session, at one revision, into one table of
 * members.
 *
 * The values come from other processes and are checked: a record that is not a JSON object or has
 * an invalid id is ignored; an invalid epoch is an error, because members cannot agree without it.
 * The table has the members of the epoch first, by rank, and then all other members with a record,
 * in order of id. The only call that may block is the one that lists the keys.
 */
#include "base/base.h"
#include "membership/member.h"

#include <stdlib.h>
#include <string.h>

/* The part of `key` after `prefix`; NULL: it does not start with it. */
static const char *key_after(const char *key, const char *prefix)
{
    size_t length = strlen(prefix);
    return strncmp(key, prefix, length) == 0 ? key + length : NULL;
}

static bool id_is_valid(const char *id)
{
    size_t length = strnlen(id, TDM_MEMBER_ID_BYTES);
    return length > 0 && length < TDM_MEMBER_ID_BYTES && !strchr(id, '/');
}

/* NULL: the value is not a JSON object. The functions below accept that, as an object without
 * fields. */
static const tdm_json *item_object(const tdm_kv_item *item, tdm_arena *arena)
{
    const tdm_json *json = NULL;
    if (tdm_json_parse(item->value, strlen(item->value), arena, &json, NULL) != TDM_OK) return NULL;
    return json->type == TDM_JSON_OBJECT ? json : NULL;
}

static const char *json_text(const tdm_json *object, const char *key, const char *fallback)
{
    const char *text = tdm_json_as_string(tdm_json_get(object, key));
    return text ? text : fallback;
}

static uint64_t json_number(const tdm_json *object, const char *key)
{
    uint64_t number = 0;
    const tdm_json *value = tdm_json_get(object, key);
    return value && tdm_json_as_u64(value, &number) ? number : 0;
}

static double json_real(const tdm_json *object, const char *key)
{
    const tdm_json *value = tdm_json_get(object, key);
    return value && value->type == TDM_JSON_NUMBER ? value->number : 0;
}

/* The reverse of tdm__put_shm_id. */
static uint64_t json_shm_id(const tdm_json *object)
{
    return strtoull(json_text(object, "vault", ""), NULL, 16);
}

static bool json_is_true(const tdm_json *object, const char *key)
{
    const tdm_json *value = tdm_json_get(object, key);
    return value && value->type == TDM_JSON_BOOL && value->boolean;
}

tdm__view_member *tdm__view_find(const tdm__view *view, const char *id)
{
    for (int i = 0; i < view->count; i++)
        if (strcmp(view->members[i].id, id) == 0) return &view->members[i];
    return NULL;
}

static tdm__view_member *view_add(tdm__view *view, const char *id, const char *host)
{
    tdm__view_member *m = &view->members[view->count++];
    *m = (tdm__view_member){.id = id, .host = host, .rank = -1};
    return m;
}

/* Allocates the table for all records and the members of the epoch. */
static tdm_status view_allocate(tdm__view *view, size_t epoch_size, tdm_arena *arena,
                                tdm_error *err)
{
    view->members = tdm_arena_array(arena, view->item_count + epoch_size + 1,
                                    sizeof(*view->members));
    view->hosts = tdm_arena_array(arena, view->item_count + 1, sizeof(*view->hosts));
    if (view->members && view->hosts) return TDM_OK;
    return tdm_fail_oom(err, "for the members of a session");
}

static int64_t json_pid(const tdm_json *object)
{
    uint64_t pid = json_number(object, "pid");
    return pid < INT32_MAX ? (int64_t)pid : 0;
}

static tdm_status view_read_epoch(tdm__view *view, const tdm_kv_item *item, tdm_arena *arena,
                                  tdm_error *err)
{
    const tdm_json *epoch = item_object(item, arena);
    const tdm_json *members = tdm_json_get(epoch, "members");
    uint64_t number = json_number(epoch, "number");
    if (!members || members->type != TDM_JSON_ARRAY || members->count == 0 ||
        members->count > TDM__MAX_EPOCH || number == 0 || number > UINT32_MAX)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "the value of \"%s\" in the store is not a valid epoch; was it written by "
                        "another program?",
                        item->key);
    TDM_TRY(view_allocate(view, members->count, arena, err));
    view->number = (uint32_t)number;
    view->epoch_revision = item->revision;
    for (const tdm_json *one = members->first; one; one = one->next) {
        const char *id = json_text(one, "id", ""), *host = json_text(one, "host", "");
        if (!id_is_valid(id) || strnlen(host, TDM_HOST_BYTES) >= TDM_HOST_BYTES ||
            tdm__view_find(view, id))
            return tdm_fail(err, TDM_ERR_FORMAT,
                            "the epoch in \"%s\" of the store has a duplicate or invalid member",
                            item->key);
        tdm__view_member *m = view_add(view, id, host);
        m->rank = view->size++;
        m->pid = json_pid(one); /* its record may be gone when the pid is needed */
    }
    return TDM_OK;
}

/* Marks the members that this epoch or earlier ones excluded. Only members in the table: those with
 * a record. */
static void view_read_excluded(tdm__view *view, const tdm_kv_item *item, tdm_arena *arena)
{
    const tdm_json *left = tdm_json_get(item_object(item, arena), "left");
    if (!left || left->type != TDM_JSON_ARRAY) return;
    for (const tdm_json *one = left->first; one; one = one->next) {
        tdm__view_member *m = tdm__view_find(view, json_text(one, "id", ""));
        if (!m || m->rank >= 0) continue;
        m->is_excluded = true;
        m->left_why = json_text(one, "why", "");
        m->is_refused = json_is_true(one, "refused");
    }
}

static void view_read_member(tdm__view *view, const char *id, const tdm_kv_item *item,
                             tdm_arena *arena)
{
    const tdm_json *record = item_object(item, arena);
    if (!record || !id_is_valid(id)) return;
    const char *host = json_text(record, "host", "");
    if (strnlen(host, TDM_HOST_BYTES) >= TDM_HOST_BYTES) return;
    tdm__view_member *m = tdm__view_find(view, id);
    if (!m) m = view_add(view, id, host);
    m->has_record = true;
    m->is_ready = json_is_true(record, "ready");
    uint64_t slot = json_number(record, "slot");
    m->slot = slot < INT32_MAX ? (int)slot : INT32_MAX;
    m->pid = json_pid(record);
    m->born = json_number(record, "born");
    if (m->born == 0) m->born = item->revision;
    m->lease_s = json_real(record, "lease_s");
    m->shm_id = json_shm_id(record);
}

static void view_read_dead(tdm__view *view, const char *id, const tdm_kv_item *item,
                           tdm_arena *arena)
{
    tdm__view_member *m = tdm__view_find(view, id);
    if (!m) return;
    const tdm_json *object = item_object(item, arena);
    m->is_dead = true;
    m->dead_why = json_text(object, "why", "it exited");
    m->dead_at = json_real(object, "at");
}

/* The names in a list of a report. */
static tdm_status report_read_names(const tdm_json *list, const tdm_kv_item *item, tdm_arena *arena,
                                    const char ***out, int *count, tdm_error *err)
{
    if (!list || list->type != TDM_JSON_ARRAY || list->count == 0) return TDM_OK;
    *out = tdm_arena_array(arena, list->count, sizeof(**out));
    if (!*out) return tdm_fail_oom(err, "for %s", item->key);
    for (const tdm_json *one = list->first; one; one = one->next) {
        const char *id = tdm_json_as_string(one);
        if (id) (*out)[(*count)++] = id;
    }
    return TDM_OK;
}

static tdm_status view_read_report(tdm__view *view, const char *rest, const tdm_kv_item *item,
                                   tdm_arena *arena, tdm_error *err)
{
    char *end = NULL;
    unsigned long long number = strtoull(rest, &end, 10);
    if (number != view->number || *end != '/') return TDM_OK;
    tdm__view_member *m = tdm__view_find(view, end + 1);
    if (!m || m->rank < 0) return TDM_OK;
    const tdm_json *report = item_object(item, arena);
    m->has_reported = true;
    m->is_regroup = json_is_true(report, "regroup");
    m->has_state = json_is_true(report, "whole");
    m->report_why = json_text(report, "why", "");
    m->refusal = json_text(report, "refusal", "");
    TDM_TRY(report_read_names(tdm_json_get(report, "lost"), item, arena, &m->lost, &m->lost_count,
                              err));
    TDM_TRY(report_read_names(tdm_json_get(report, "closed"), item, arena, &m->closed,
                              &m->closed_count, err));
    return report_read_names(tdm_json_get(report, "refused"), item, arena, &m->refused,
                             &m->refused_count, err);
}

static void view_read_verdict(tdm__view *view, const tdm_kv_item *item, tdm_arena *arena)
{
    const tdm_json *verdict = item_object(item, arena);
    uint64_t status = verdict ? json_number(verdict, "status") : TDM_ERR_INTERNAL;
    bool is_known = status == TDM_OK;
    for (size_t i = 0; !is_known && tdm_status_at(i) >= 0; i++)
        is_known = (uint64_t)tdm_status_at(i) == status;
    view->has_verdict = true;
    view->verdict = is_known ? (tdm_status)status : TDM_ERR_INTERNAL;
    view->verdict_text = json_text(verdict, "message", "");
}

static void view_read_host(tdm__view *view, const tdm_kv_item *item, tdm_arena *arena)
{
    const tdm_json *record = item_object(item, arena);
    if (!record) return;
    view->hosts[view->host_count++] = (tdm__view_host){.shm_id = json_shm_id(record),
                                                       .workers = json_number(record, "workers"),
                                                       .starting = json_number(record, "starting")};
}

static tdm_status view_read_state(tdm__view *view, const tdm_kv_item *item, tdm_arena *arena,
                                  tdm_error *err)
{
    const tdm_json *state = item_object(item, arena), *holders = tdm_json_get(state, "holders");
    uint64_t epoch = json_number(state, "epoch");
    view->state_revision = item->revision;
    if (epoch > UINT32_MAX || !holders || holders->type != TDM_JSON_ARRAY) return TDM_OK;
    view->state_epoch = (uint32_t)epoch;
    view->holders = tdm_arena_array(arena, holders->count + 1, sizeof(*view->holders));
    if (!view->holders) return tdm_fail_oom(err, "for %s", item->key);
    for (const tdm_json *one = holders->first; one; one = one->next)
        view->holders[view->holder_count++] = (tdm__view_member){.host = json_text(one, "host", ""),
                                                                 .shm_id = json_shm_id(one)};
    return TDM_OK;
}

/* Reads the keys other than records; the table of members is complete. */
static tdm_status view_read_key(tdm__view *view, const char *key, const tdm_kv_item *item,
                                tdm_arena *arena, tdm_error *err)
{
    const char *rest = NULL;
    if ((rest = key_after(key, "dead/")) != NULL) {
        view_read_dead(view, rest, item, arena);
    } else if ((rest = key_after(key, "reports/")) != NULL) {
        return view_read_report(view, rest, item, arena, err);
    } else if ((rest = key_after(key, "wishes/leave/")) != NULL) {
        tdm__view_member *m = tdm__view_find(view, rest);
        if (m) m->should_leave = true;
    } else if (strcmp(key, "epoch") == 0) {
        view_read_excluded(view, item, arena);
    } else if (strcmp(key, "wishes/stop") == 0) {
        view->should_stop = true;
    } else if (key_after(key, "wishes/save/") != NULL) {
        if (item->revision > view->save_request) view->save_request = item->revision;
    } else if (key_after(key, "hosts/") != NULL) {
        view_read_host(view, item, arena);
    } else if (strcmp(key, "state") == 0) {
        return view_read_state(view, item, arena, err);
    } else if (strcmp(key, "verdict") == 0) {
        view_read_verdict(view, item, arena);
    } else if (strcmp(key, "about") == 0) {
        uint64_t expected = json_number(item_object(item, arena), "expected");
        view->has_about = true;
        view->expected = expected < TDM__MAX_EPOCH ? (int)expected : TDM__MAX_EPOCH;
    }
    return TDM_OK;
}

tdm_status tdm__view_read(tdm_kv *kv, const char *prefix, tdm_arena *arena, tdm__view *out,
                          tdm_error *err)
{
    tdm__view view = {0};
    tdm_kv_item *items = NULL;
    TDM_TRY(tdm_kv_list(kv, prefix, arena, &items, &view.item_count, &view.revision, err));
    view.items = items;
    size_t skip = strlen(prefix);
    for (size_t i = 0; i < view.item_count; i++)
        if (strcmp(items[i].key + skip, "epoch") == 0)
            TDM_TRY(view_read_epoch(&view, &items[i], arena, err));
    if (!view.members) TDM_TRY(view_allocate(&view, 0, arena, err));
    for (size_t i = 0; i < view.item_count; i++) {
        const char *id = key_after(items[i].key + skip, "members/");
        if (id) view_read_member(&view, id, &items[i], arena);
    }
    for (size_t i = 0; i < view.item_count; i++)
        TDM_TRY(view_read_key(&view, items[i].key + skip, &items[i], arena, err));
    *out = view;
    return TDM_OK;
}

tdm__view_state tdm__view_epoch_state(const tdm__view *view)
{
    if (view->number == 0) return TDM__VIEW_NONE;
    for (int i = 0; i < view->size; i++)
        if (view->members[i].has_reported || !tdm__view_alive(&view->members[i]))
            return TDM__VIEW_BROKEN;
    return TDM__VIEW_INTACT;
}

bool tdm__view_is_newcomer(const tdm__view *view, const tdm__view_member *m)
{
    if (m->rank >= 0 || !tdm__view_alive(m) || !m->is_ready || m->is_excluded) return false;
    /* A newcomer that was asked to leave does so at once, unless the next epoch may need it. */
    return !m->should_leave || tdm__view_epoch_state(view) != TDM__VIEW_INTACT;
}

bool tdm__view_newcomers(const tdm__view *view, int max, int *out_count)
{
    int count = 0;
    for (int i = view->size; i < view->count; i++)
        count += tdm__view_is_newcomer(view, &view->members[i]);
    *out_count = count;
    int limit = max > 0 && max < TDM__MAX_EPOCH ? max : TDM__MAX_EPOCH;
    return count > 0 && view->size < limit;
}

bool tdm__view_leavers(const tdm__view *view, int min)
{
    int leaving = 0, waiting = 0;
    for (int i = 0; i < view->size; i++) leaving += view->members[i].should_leave;
    tdm__view_newcomers(view, 0, &waiting);
    return leaving > 0 && view->size > 1 && view->size + waiting > min;
}
