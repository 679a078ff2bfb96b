/*
 * session_view.c: reads the state of a session from the store for users and commands; writes
 * requests and the result.
 *
 * The store is read in one call, so the view is consistent. Its values come from other processes
 * and are untrusted: a value of the wrong type counts as missing.
 */
#include "base/base.h"
#include "base/timing.h"
#include "cluster/session.h"
#include "kv/kv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *tdm__session_key(char buffer[TDM_KV_KEY_BYTES], const char *session, const char *fmt,
                             ...)
{
    int length = snprintf(buffer, TDM_KV_KEY_BYTES, "tandem/%s/", session);
    va_list args;
    va_start(args, fmt);
    if (length > 0 && length < TDM_KV_KEY_BYTES)
        vsnprintf(buffer + length, TDM_KV_KEY_BYTES - (size_t)length, fmt, args);
    va_end(args);
    return buffer;
}

bool tdm__session_name_is_good(const char *name, size_t bytes)
{
    static const char good[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t length = strlen(name);
    return length > 0 && length < bytes && name[0] != '.' && strspn(name, good) == length;
}

bool tdm__session_is_of_host(const char *agent, const char *host)
{
    size_t length = strlen(host);
    return strncmp(agent, host, length) == 0 && (!agent[length] || agent[length] == '+');
}

/* ---- read ------------------------------------------------------------------------------------ */

static const tdm_json *value_parse(const char *value, tdm_arena *arena)
{
    const tdm_json *object = NULL;
    if (tdm_json_parse(value, strlen(value), arena, &object, NULL) != TDM_OK) return NULL;
    return object->type == TDM_JSON_OBJECT ? object : NULL;
}

static int64_t int_of(const tdm_json *object, const char *key, int64_t fallback)
{
    int64_t value;
    return tdm_json_as_i64(tdm_json_get(object, key), &value) ? value : fallback;
}

static double number_of(const tdm_json *object, const char *key)
{
    const tdm_json *value = tdm_json_get(object, key);
    return value && value->type == TDM_JSON_NUMBER ? value->number : 0;
}

static bool bool_of(const tdm_json *object, const char *key)
{
    const tdm_json *value = tdm_json_get(object, key);
    return value && value->type == TDM_JSON_BOOL && value->boolean;
}

static const char *text_of(const tdm_json *object, const char *key, const char *fallback)
{
    const char *text = tdm_json_as_string(tdm_json_get(object, key));
    return text ? text : fallback;
}

/* The part of the key after this prefix, or NULL. */
static const char *key_below(const char *key, const char *word)
{
    size_t length = strlen(word);
    return strncmp(key, word, length) == 0 ? key + length : NULL;
}

static void view_read_words(const tdm_json *about, tdm_arena *arena, tdm_session_view *out)
{
    const tdm_json *list = tdm_json_get(about, "words");
    size_t count = list && list->type == TDM_JSON_ARRAY ? list->count : 0, n = 0;
    const char **words = tdm_arena_array(arena, count + 1, sizeof(*words));
    for (const tdm_json *word = count > 0 ? list->first : NULL; words && word; word = word->next)
        if (tdm_json_as_string(word)) words[n++] = tdm_json_as_string(word);
    out->words = words;
}

static void view_read_about(const tdm_json *about, tdm_arena *arena, tdm_session_view *out)
{
    out->name = text_of(about, "name", "?");
    out->dir = text_of(about, "dir", NULL);
    out->launcher_pid = int_of(about, "launcher", 0);
    out->began_s = number_of(about, "began");
    out->expected = (int)int_of(about, "expected", 0);
    out->min = (int)int_of(about, "min", 1);
    out->max = (int)int_of(about, "max", 0);
    out->is_fixed = int_of(about, "fixed", 0) != 0;
    view_read_words(about, arena, out);
}

static void view_read_member(const char *id, const tdm_json *record, tdm_session_member *out)
{
    *out = (tdm_session_member){.id = id,
                                .host = text_of(record, "host", "?"),
                                .phase = text_of(record, "phase", "?"),
                                .run = text_of(record, "run", NULL),
                                .slot = (int)int_of(record, "slot", -1),
                                .pid = int_of(record, "pid", 0),
                                .agent = int_of(record, "agent", 0),
                                .is_orphan = bool_of(record, "orphan"),
                                .rank = -1,
                                .step = (uint64_t)int_of(record, "step", 0),
                                .steps = (uint64_t)int_of(record, "steps", 0),
                                .speed = number_of(record, "speed"),
                                .sent_bytes = (uint64_t)int_of(record, "sent", 0),
                                .compression = number_of(record, "compression")};
    if (out->run && !*out->run) out->run = NULL;
}

static void view_read_host(const char *name, const tdm_json *record, tdm_session_host *out)
{
    *out = (tdm_session_host){.name = name,
                              .pid = int_of(record, "pid", 0),
                              .workers = (int)int_of(record, "workers", 0),
                              .starting = (int)int_of(record, "starting", 0),
                              .processors = (int)int_of(record, "processors", 0),
                              .load = number_of(record, "load"),
                              .memory_free_bytes = (uint64_t)int_of(record, "memory_free", 0),
                              .memory_bytes = (uint64_t)int_of(record, "memory", 0),
                              .disk_free_bytes = (uint64_t)int_of(record, "disk_free", 0),
                              .disk_bytes = (uint64_t)int_of(record, "disk", 0),
                              .trouble = text_of(record, "trouble", NULL)};
}

static void view_read_epoch(const tdm_json *epoch, tdm_arena *arena, tdm_session_view *out)
{
    const tdm_json *list = tdm_json_get(epoch, "members");
    size_t room = list && list->type == TDM_JSON_ARRAY ? list->count + 1 : 1;
    const char **ids = tdm_arena_array(arena, room, sizeof(*ids));
    const char **hosts = tdm_arena_array(arena, room, sizeof(*hosts));
    out->epoch = (uint32_t)int_of(epoch, "number", 0);
    out->rank_ids = ids;
    out->rank_hosts = hosts;
    for (const tdm_json *item = ids && hosts && room > 1 ? list->first : NULL; item;
         item = item->next) {
        const char *id = text_of(item, "id", "");
        ids[out->rank_count] = id;
        hosts[out->rank_count] = text_of(item, "host", "?");
        for (size_t i = 0; i < out->member_count; i++)
            if (strcmp(out->members[i].id, id) == 0) out->members[i].rank = out->rank_count;
        out->rank_count++;
    }
}

static int member_compare(const void *a, const void *b)
{
    const tdm_session_member *x = a, *y = b;
    if ((x->rank < 0) != (y->rank < 0)) return x->rank < 0 ? 1 : -1;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    return strcmp(x->id, y->id);
}

/* Drops members that an agent has reported dead: their records exist until their leases expire. */
static void view_drop_dead(tdm_session_view *view, const tdm_kv_item *items, size_t count,
                           size_t prefix_length)
{
    for (size_t i = 0; i < count; i++) {
        const char *id = key_below(items[i].key + prefix_length, "dead/");
        for (size_t k = 0; id && k < view->member_count; k++)
            if (strcmp(view->members[k].id, id) == 0)
                view->members[k--] = view->members[--view->member_count];
    }
}

/* Drops agents whose workers report that their parent is gone: the records of such agents exist
 * until their leases expire. */
static void view_drop_gone_agents(tdm_session_view *view)
{
    size_t kept = 0;
    for (size_t i = 0; i < view->host_count; i++) {
        const tdm_session_host *host = &view->hosts[i];
        bool is_gone = false;
        for (size_t k = 0; k < view->member_count; k++) {
            const tdm_session_member *m = &view->members[k];
            is_gone = is_gone || (m->is_orphan && m->agent == host->pid &&
                                  tdm__session_is_of_host(host->name, m->host));
        }
        if (!is_gone) view->hosts[kept++] = *host;
    }
    view->host_count = kept;
}

/* Takes step, speed and run of the session from the rank with the newest values. */
static void view_sum_up(tdm_session_view *view)
{
    qsort(view->members, view->member_count, sizeof(*view->members), member_compare);
    for (size_t i = 0; i < view->member_count; i++) {
        const tdm_session_member *m = &view->members[i];
        if (!view->run && m->run) view->run = m->run;
        if (m->rank < 0) continue;
        if (m->step > view->step) view->step = m->step;
        if (m->steps > view->steps) view->steps = m->steps;
        if (m->speed > view->speed) view->speed = m->speed;
        if (m->sent_bytes == 0) continue;
        view->sent_bytes = m->sent_bytes;
        view->compression = m->compression;
    }
}

static void view_read_item(const char *key, const tdm_json *value, tdm_arena *arena,
                           tdm_session_view *out, const tdm_json **epoch)
{
    const char *name;
    if (strcmp(key, "about") == 0)
        view_read_about(value, arena, out);
    else if (strcmp(key, "epoch") == 0)
        *epoch = value;
    else if ((name = key_below(key, "members/")))
        view_read_member(name, value, &out->members[out->member_count++]);
    else if ((name = key_below(key, "hosts/")))
        view_read_host(name, value, &out->hosts[out->host_count++]);
    else if ((name = key_below(key, "wishes/leave/")))
        out->leaver_ids[out->leaver_count++] = name;
    else if (strcmp(key, "wishes/stop") == 0)
        out->stopping = true;
    else if (strcmp(key, "wishes/now") == 0)
        out->stopping = out->now = true;
    else if (strcmp(key, "verdict") == 0) {
        out->ended = true;
        out->status = (tdm_status)int_of(value, "status", TDM_ERR_INTERNAL);
        out->message = text_of(value, "message", "");
    }
}

tdm_status tdm_session_look(tdm_kv *kv, const char *session, tdm_arena *arena,
                            tdm_session_view *out, tdm_error *err)
{
    char prefix[TDM_KV_KEY_BYTES];
    tdm_kv_item *items;
    size_t count;
    TDM_TRY(tdm_kv_list(kv, tdm__session_key(prefix, session, "%s", ""), arena, &items, &count,
                        NULL, err));
    tdm_session_view view = {.session = tdm_arena_strdup(arena, session)};
    view.members = tdm_arena_array(arena, count + 1, sizeof(*view.members));
    view.hosts = tdm_arena_array(arena, count + 1, sizeof(*view.hosts));
    view.leaver_ids = tdm_arena_array(arena, count + 1, sizeof(*view.leaver_ids));
    if (!view.session || !view.members || !view.hosts || !view.leaver_ids)
        return tdm_fail_oom(err, "for the contents of the store");
    const tdm_json *epoch = NULL;
    for (size_t i = 0; i < count; i++) {
        const char *key = items[i].key + strlen(prefix);
        if (strcmp(key, "job") == 0 || strcmp(key, "secret_hash") == 0) continue;
        if (strcmp(key, "run") == 0) { /* plain text, written by the first rank 0 */
            view.run = items[i].value;
            continue;
        }
        const tdm_json *value = value_parse(items[i].value, arena);
        if (value) view_read_item(key, value, arena, &view, &epoch);
    }
    if (!view.name)
        return tdm_fail(err, TDM_ERR_NOT_FOUND, "the store has no session '%s'", session);
    view_drop_dead(&view, items, count, strlen(prefix));
    view_drop_gone_agents(&view);
    if (epoch) view_read_epoch(epoch, arena, &view);
    view_sum_up(&view);
    *out = view;
    return TDM_OK;
}

tdm_status tdm_session_names(tdm_kv *kv, tdm_arena *arena, const char *const **out,
                             size_t *out_count, tdm_error *err)
{
    tdm_kv_item *items;
    size_t count, found = 0;
    TDM_TRY(tdm_kv_list(kv, "tandem/", arena, &items, &count, NULL, err));
    const char **names = tdm_arena_array(arena, count + 1, sizeof(*names));
    if (!names) return tdm_fail_oom(err, "for the list of sessions");
    for (size_t i = 0; i < count; i++) {
        const char *name = items[i].key + strlen("tandem/"), *end = strchr(name, '/');
        if (!end || strcmp(end, "/about") != 0) continue;
        names[found] = tdm_arena_strndup(arena, name, (size_t)(end - name));
        if (names[found] && tdm__session_name_is_good(names[found], TDM_SESSION_BYTES)) found++;
    }
    *out = names;
    *out_count = found;
    return TDM_OK;
}

/* ---- requests and result --------------------------------------------------------------------- */

/* Session names have no '+', so this key is not below the prefix of a session. */
static const char *ended_key(char key[TDM_KV_KEY_BYTES], const char *session)
{
    snprintf(key, TDM_KV_KEY_BYTES, "tandem/%s+ended", session);
    return key;
}

void tdm__session_begin(tdm_kv *kv, const char *session)
{
    char key[TDM_KV_KEY_BYTES];
    (void)tdm_kv_remove(kv, ended_key(key, session), NULL);
}

/* The result is copied first: a process that finds the session gone then finds the copy. */
void tdm__session_forget(tdm_kv *kv, const char *session)
{
    char key[TDM_KV_KEY_BYTES];
    tdm_kv_item verdict;
    uint64_t lease;
    tdm_arena *arena = tdm_arena_create("verdict");
    if (arena &&
        tdm_kv_get(kv, tdm__session_key(key, session, "verdict"), arena, &verdict, NULL) ==
            TDM_OK &&
        tdm_kv_lease(kv, TDM__TIMING_SESSION_RESULT_S, &lease, NULL) == TDM_OK)
        (void)tdm_kv_put(kv, ended_key(key, session), verdict.value, lease, NULL);
    tdm_arena_destroy(arena);
    (void)tdm_kv_remove(kv, tdm__session_key(key, session, "%s", ""), NULL);
}

tdm_status tdm__session_ended(tdm_kv *kv, const char *session, tdm_status *status,
                              char message[1000], tdm_error *err)
{
    char key[TDM_KV_KEY_BYTES];
    tdm_kv_item item;
    tdm_arena *arena = tdm_arena_create("verdict");
    if (!arena) return tdm_fail_oom(err, "for the result of the session");
    tdm_status got = tdm_kv_get(kv, ended_key(key, session), arena, &item, err);
    if (got == TDM_OK) {
        const tdm_json *value = value_parse(item.value, arena);
        *status = (tdm_status)int_of(value, "status", TDM_ERR_INTERNAL);
        snprintf(message, 1000, "%s", text_of(value, "message", ""));
    }
    tdm_arena_destroy(arena);
    return got;
}

tdm_status tdm_session_request(tdm_kv *kv, const char *session, const char *request,
                               const char *why, tdm_error *err)
{
    char key[TDM_KV_KEY_BYTES];
    tdm_str text = TDM_STR_INIT;
    tdm_json_writer w = tdm_json_writer_init(&text, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_string(&w, "why", why);
    tdm_json_object_end(&w);
    tdm_status status = tdm_kv_put(kv, tdm__session_key(key, session, "wishes/%s", request),
                                   tdm_str_text(&text), 0, err);
    tdm_str_release(&text);
    return status;
}

tdm_status tdm_session_end(tdm_kv *kv, const char *session, tdm_status status, const char *message,
                           const char *by, tdm_error *err)
{
    char key[TDM_KV_KEY_BYTES];
    tdm_str text = TDM_STR_INIT;
    tdm_json_writer w = tdm_json_writer_init(&text, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_int(&w, "status", (int64_t)status);
    tdm_json_put_string(&w, "message", message);
    tdm_json_put_string(&w, "by", by);
    tdm_json_object_end(&w);
    tdm_status put = tdm_kv_swap(kv, tdm__session_key(key, session, "verdict"), 0,
                                 tdm_str_text(&text), 0, NULL, err);
    tdm_str_release(&text);
    return put == TDM_ERR_EXISTS ? TDM_OK : put;
}
