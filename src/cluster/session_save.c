/*
 * session_save.c: checkpoints on request during training: the request and its result.
 *
 * A request is a key below "wishes/save/" with a random name, so that requests of several users do
 * not overwrite each other. Rank 0 writes the checkpoint, puts the result into "saved", and only
 * then removes the requests that it had seen before it began. A process that waits for its request
 * to disappear therefore finds the result, or that of a later checkpoint, which serves as well. If
 * rank 0 dies meanwhile, its successor handles the request.
 */
#include "base/base.h"
#include "base/timing.h"
#include "cluster/cluster.h"
#include "cluster/session.h"
#include "kv/kv.h"
#include "os/os.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

tdm_status tdm_session_ask_save(tdm_kv *kv, const char *session, const char *why,
                                char out_request[TDM_SAVE_REQUEST_BYTES], tdm_error *err)
{
    uint64_t drawn;
    char request[TDM_SAVE_REQUEST_BYTES + 8], name[TDM_SAVE_REQUEST_BYTES];
    TDM_TRY(tdm_os_random(&drawn, sizeof(drawn), err));
    snprintf(name, sizeof(name), "%016" PRIx64, drawn);
    snprintf(request, sizeof(request), "save/%s", name);
    TDM_TRY(tdm_session_request(kv, session, request, why, err));
    if (out_request) memcpy(out_request, name, sizeof(name));
    return TDM_OK;
}

/* ---- result ---------------------------------------------------------------------------------- */

static tdm_status saved_put(tdm_kv *kv, const char *session, const tdm_session_saved *saved,
                            tdm_error *err)
{
    char key[TDM_KV_KEY_BYTES];
    tdm_str text = TDM_STR_INIT;
    tdm_json_writer w = tdm_json_writer_init(&text, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_int(&w, "status", (int64_t)saved->status);
    tdm_json_put_uint(&w, "step", saved->step);
    tdm_json_put_string(&w, "path", saved->path);
    tdm_json_put_string(&w, "message", saved->message);
    tdm_json_object_end(&w);
    tdm_status status = tdm_str_ok(&text) ? tdm_kv_put(kv, tdm__session_key(key, session, "saved"),
                                                       tdm_str_text(&text), 0, err)
                                          : tdm_fail_oom(err, "for the result of a checkpoint");
    tdm_str_release(&text);
    return status;
}

static tdm_status requests_remove(tdm_kv *kv, const char *session, uint64_t revision,
                                  tdm_arena *arena, tdm_error *err)
{
    char prefix[TDM_KV_KEY_BYTES];
    tdm_kv_item *items;
    size_t count;
    tdm__session_key(prefix, session, "wishes/save/");
    TDM_TRY(tdm_kv_list(kv, prefix, arena, &items, &count, NULL, err));
    for (size_t i = 0; i < count; i++)
        if (items[i].revision <= revision) TDM_TRY(tdm_kv_remove(kv, items[i].key, err));
    return TDM_OK;
}

tdm_status tdm_session_answer_save(tdm_kv *kv, const char *session, uint64_t revision,
                                   const tdm_session_saved *saved, tdm_error *err)
{
    tdm_arena *arena = tdm_arena_create("answer");
    if (!arena) return tdm_fail_oom(err, "for the result of a checkpoint");
    tdm_status status = saved_put(kv, session, saved, err);
    if (status == TDM_OK) status = requests_remove(kv, session, revision, arena, err);
    tdm_arena_destroy(arena);
    return status;
}

/* ---- wait ------------------------------------------------------------------------------------ */

static tdm_status saved_read(const char *value, tdm_arena *arena, tdm_session_saved *out,
                             tdm_error *err)
{
    const tdm_json *object = NULL;
    TDM_TRY(tdm_json_parse(value, strlen(value), arena, &object, err));
    const char *path = tdm_json_as_string(tdm_json_get(object, "path"));
    const char *message = tdm_json_as_string(tdm_json_get(object, "message"));
    int64_t status, step;
    if (!tdm_json_as_i64(tdm_json_get(object, "status"), &status) ||
        !tdm_json_as_i64(tdm_json_get(object, "step"), &step) || !path || !message)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "the result of the checkpoint in the store is not valid");
    out->status = (tdm_status)status;
    out->step = (uint64_t)step;
    snprintf(out->path, sizeof(out->path), "%s", path);
    snprintf(out->message, sizeof(out->message), "%s", message);
    return TDM_OK;
}

/* Reads the store once. *there: the request still exists. */
static tdm_status request_look_up(tdm_kv *kv, const char *session, const char *request,
                                  tdm_arena *arena, uint64_t *revision, bool *there,
                                  tdm_session_saved *out, tdm_error *err)
{
    char prefix[TDM_KV_KEY_BYTES];
    tdm_kv_item *items;
    size_t count;
    const char *saved = NULL;
    bool ended = true;
    tdm__session_key(prefix, session, "%s", "");
    TDM_TRY(tdm_kv_list(kv, prefix, arena, &items, &count, revision, err));
    *there = false;
    for (size_t i = 0; i < count; i++) {
        const char *key = items[i].key + strlen(prefix);
        if (strcmp(key, "about") == 0) ended = false;
        if (strcmp(key, "saved") == 0) saved = items[i].value;
        if (strncmp(key, "wishes/save/", 12) == 0 && strcmp(key + 12, request) == 0) *there = true;
    }
    for (size_t i = 0; i < count; i++)
        if (strcmp(items[i].key + strlen(prefix), "verdict") == 0) ended = true;
    if (!*there && saved) return saved_read(saved, arena, out, err);
    if (!ended) return TDM_OK;
    return tdm_fail(err, TDM_ERR_NOT_FOUND,
                    "the run ended before this checkpoint was written; its last checkpoint is the "
                    "one at its end");
}

tdm_status tdm_session_await_save(tdm_kv *kv, const char *session, const char *request,
                                  double seconds, tdm_session_saved *out, tdm_error *err)
{
    double until_s = tdm_kv_now(kv) + seconds;
    char prefix[TDM_KV_KEY_BYTES];
    tdm__session_key(prefix, session, "%s", "");
    for (;;) {
        tdm_arena *arena = tdm_arena_create("look");
        uint64_t revision = 0;
        bool there = true;
        tdm_status status = arena ? request_look_up(kv, session, request, arena, &revision, &there,
                                                    out, err)
                                  : tdm_fail_oom(err, "to wait");
        tdm_arena_destroy(arena);
        if (status != TDM_OK || !there) return status;
        double left_s = until_s - tdm_kv_now(kv);
        if (left_s <= 0)
            return tdm_fail(err, TDM_ERR_TIMEOUT,
                            "no checkpoint was written within %.0f s; the request remains and is "
                            "handled after the next step",
                            seconds);
        TDM_TRY(tdm_kv_wait(kv, prefix, revision, fmin(left_s, TDM__TIMING_SESSION_SAVE_LOOK_S),
                            NULL, err));
    }
}
