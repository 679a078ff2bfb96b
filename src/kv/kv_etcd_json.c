/*
 * kv_etcd_json.c: writes requests to etcd's JSON gateway and parses its responses.
 *
 * The gateway maps gRPC to JSON: bytes as base64, 64-bit numbers as strings; zero and empty fields
 * are omitted. Responses may come from any program: a response that does not fit the request is an
 * error, and no output is written. Keys and values that are not text within the limits of the store
 * are errors as well: another program uses this prefix.
 */
#include "base/base.h"
#include "kv/kv_etcd.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- requests -------------------------------------------------------------------------------- */

static void json_put_bytes(tdm_json_writer *w, const char *key, const void *bytes, size_t count)
{
    tdm_str text = TDM_STR_INIT;
    tdm_str_add_base64(&text, bytes, count);
    if (!tdm_str_ok(&text)) w->out->failed = true;
    tdm_json_put_string(w, key, tdm_str_text(&text));
    tdm_str_release(&text);
}

static void json_put_number(tdm_json_writer *w, const char *key, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
    tdm_json_put_string(w, key, text);
}

static void json_put_key(tdm_json_writer *w, const char *key)
{
    json_put_bytes(w, "key", key, strlen(key));
}

/* All keys with the prefix sort before the prefix with its last byte incremented; text has no byte
 * 255. */
static void json_put_prefix(tdm_json_writer *w, const char *prefix)
{
    char end[TDM_KV_KEY_BYTES];
    size_t length = strlen(prefix);
    if (length == 0 || length >= sizeof(end)) {
        json_put_bytes(w, "key", "", 1); /* one zero byte in both: all keys */
        json_put_bytes(w, "range_end", "", 1);
        return;
    }
    memcpy(end, prefix, length + 1);
    end[length - 1] = (char)((unsigned char)end[length - 1] + 1);
    json_put_bytes(w, "key", prefix, length);
    json_put_bytes(w, "range_end", end, length);
}

static void json_put_item(tdm_json_writer *w, const char *key, const char *value, uint64_t lease)
{
    json_put_key(w, key);
    json_put_bytes(w, "value", value, strlen(value));
    if (lease != 0) json_put_number(w, "lease", lease);
}

void tdm__etcd_write_key(const char *key, tdm_str *out)
{
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    json_put_key(&w, key);
    tdm_json_object_end(&w);
}

void tdm__etcd_write_prefix(const char *prefix, tdm_str *out)
{
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    json_put_prefix(&w, prefix);
    tdm_json_object_end(&w);
}

void tdm__etcd_write_put(const char *key, const char *value, uint64_t lease, tdm_str *out)
{
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    json_put_item(&w, key, value, lease);
    tdm_json_object_end(&w);
}

void tdm__etcd_write_swap(const char *key, uint64_t expected, const char *value, uint64_t lease,
                          tdm_str *out)
{
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    tdm_json_key(&w, "compare");
    tdm_json_array_begin(&w);
    tdm_json_object_begin(&w);
    json_put_key(&w, key);
    tdm_json_put_string(&w, "target", "MOD");
    tdm_json_put_string(&w, "result", "EQUAL");
    json_put_number(&w, "mod_revision", expected);
    tdm_json_object_end(&w);
    tdm_json_array_end(&w);
    tdm_json_key(&w, "success");
    tdm_json_array_begin(&w);
    tdm_json_object_begin(&w);
    tdm_json_key(&w, "request_put");
    tdm_json_object_begin(&w);
    json_put_item(&w, key, value, lease);
    tdm_json_object_end(&w);
    tdm_json_object_end(&w);
    tdm_json_array_end(&w);
    tdm_json_object_end(&w);
}

void tdm__etcd_write_lease(double seconds, tdm_str *out)
{
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    json_put_number(&w, "TTL", (uint64_t)ceil(seconds)); /* etcd supports whole seconds only */
    tdm_json_object_end(&w);
}

void tdm__etcd_write_id(uint64_t lease, tdm_str *out)
{
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    json_put_number(&w, "ID", lease);
    tdm_json_object_end(&w);
}

void tdm__etcd_write_watch(const char *prefix, uint64_t revision, tdm_str *out)
{
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    tdm_json_key(&w, "create_request");
    tdm_json_object_begin(&w);
    json_put_prefix(&w, prefix);
    json_put_number(&w, "start_revision", revision + 1);
    tdm_json_object_end(&w);
    tdm_json_object_end(&w);
}

void tdm__etcd_write_token(const char *user, const char *password, tdm_str *out)
{
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_string(&w, "name", user);
    tdm_json_put_string(&w, "password", password);
    tdm_json_object_end(&w);
}

/* ---- responses ------------------------------------------------------------------------------- */

static tdm_status response_invalid(tdm_error *err, const char *what)
{
    return tdm_fail(err, TDM_ERR_FORMAT,
                    "etcd's response %s; is this the address of an etcd server?", what);
}

static tdm_status response_parse(tdm__etcd_bytes in, const tdm_json **out, tdm_error *err)
{
    tdm_error why = {0};
    tdm_arena_reset(in.scratch);
    if (tdm_json_parse(in.data, in.count, in.scratch, out, &why) != TDM_OK)
        return tdm_fail(
            err, why.status == TDM_ERR_NO_MEMORY ? why.status : TDM_ERR_FORMAT,
            "cannot parse etcd's response: %.300s; is this the address of an etcd server?",
            why.message);
    if ((*out)->type != TDM_JSON_OBJECT) return response_invalid(err, "is not a JSON object");
    return TDM_OK;
}

/* A 64-bit number: a string of digits or a number; missing means 0. */
static bool json_get_number(const tdm_json *object, const char *key, uint64_t *out)
{
    const tdm_json *value = tdm_json_get(object, key);
    *out = 0;
    if (!value || value->type == TDM_JSON_NULL) return true;
    if (value->type == TDM_JSON_NUMBER) return tdm_json_as_u64(value, out);
    const char *text = tdm_json_as_string(value);
    size_t length = text ? strlen(text) : 0;
    if (length == 0 || length > 19 || strspn(text, "0123456789") != length) return false;
    for (size_t i = 0; i < length; i++) *out = *out * 10 + (uint64_t)(text[i] - '0');
    return *out <= INT64_MAX;
}

/* Missing means false; anything but true and false is invalid. */
static bool json_get_bool(const tdm_json *object, const char *key, bool *out)
{
    const tdm_json *value = tdm_json_get(object, key);
    *out = value && value->type == TDM_JSON_BOOL && value->boolean;
    return !value || value->type == TDM_JSON_BOOL;
}

/* The revision of the store, which every response has except that of a watch that has ended. */
static tdm_status json_get_revision(const tdm_json *object, uint64_t *out, tdm_error *err)
{
    const tdm_json *header = tdm_json_get(object, "header");
    if (!header || header->type != TDM_JSON_OBJECT || !json_get_number(header, "revision", out) ||
        *out == 0)
        return response_invalid(err, "has no revision");
    return TDM_OK;
}

/* A base64 text shorter than `limit` bytes; missing means empty. */
static tdm_status json_get_text(const tdm_json *object, const char *key, size_t limit,
                                tdm_arena *arena, const char **out, tdm_error *err)
{
    const tdm_json *value = tdm_json_get(object, key);
    const char *coded = value ? tdm_json_as_string(value) : "";
    if (!coded) return response_invalid(err, "has a key or value that is not text");
    size_t length = strlen(coded), count = 0;
    if (length / 4 * 3 >= limit + 3)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "etcd has a %s of %zu bytes below Tandem's prefix; does another program "
                        "use this prefix?",
                        key, length / 4 * 3);
    unsigned char *text = tdm_arena_alloc(arena, length / 4 * 3 + 1, 1);
    if (!text) return tdm_fail_oom(err, "for etcd's response");
    bool fine = tdm_base64_decode(coded, length, text, &count) && count < limit;
    for (size_t at = 0; fine && at < count;) {
        size_t one = tdm_text_utf8(text + at, count - at, NULL);
        fine = one > 0 && text[at] != '\0';
        at += one;
    }
    if (!fine)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "etcd has a %s that is not text below Tandem's prefix; does another "
                        "program use this prefix?",
                        key);
    text[count] = '\0';
    *out = (const char *)text;
    return TDM_OK;
}

static tdm_status json_get_item(const tdm_json *kv, tdm_arena *arena, tdm_kv_item *out,
                                tdm_error *err)
{
    if (kv->type != TDM_JSON_OBJECT || !json_get_number(kv, "mod_revision", &out->revision) ||
        out->revision == 0 || !json_get_number(kv, "lease", &out->lease))
        return response_invalid(err, "has a key without a revision");
    TDM_TRY(json_get_text(kv, "key", TDM_KV_KEY_BYTES, arena, &out->key, err));
    if (!*out->key) return response_invalid(err, "has an empty key");
    return json_get_text(kv, "value", TDM_KV_VALUE_BYTES, arena, &out->value, err);
}

tdm_status tdm__etcd_read_items(tdm__etcd_bytes in, tdm_arena *arena, tdm_kv_item **out,
                                size_t *out_count, uint64_t *revision, tdm_error *err)
{
    const tdm_json *response = NULL;
    uint64_t now = 0;
    TDM_TRY(response_parse(in, &response, err));
    TDM_TRY(json_get_revision(response, &now, err));
    const tdm_json *kvs = tdm_json_get(response, "kvs");
    if (kvs && kvs->type != TDM_JSON_ARRAY) return response_invalid(err, "has no list of keys");
    bool more = false;
    if (!json_get_bool(response, "more", &more) || more)
        return response_invalid(err, "is incomplete");
    size_t count = kvs ? kvs->count : 0;
    tdm_kv_item *items = tdm_arena_array(arena, count > 0 ? count : 1, sizeof(*items));
    if (!items) return tdm_fail_oom(err, "for etcd's response");
    size_t i = 0;
    for (const tdm_json *kv = kvs ? kvs->first : NULL; kv; kv = kv->next, i++) {
        TDM_TRY(json_get_item(kv, arena, &items[i], err));
        if (i > 0 && strcmp(items[i - 1].key, items[i].key) >= 0)
            return response_invalid(err, "has keys out of order");
    }
    *out = items;
    *out_count = count;
    *revision = now;
    return TDM_OK;
}

tdm_status tdm__etcd_read_done(tdm__etcd_bytes in, tdm_error *err)
{
    const tdm_json *response = NULL;
    uint64_t now = 0;
    TDM_TRY(response_parse(in, &response, err));
    return json_get_revision(response, &now, err);
}

tdm_status tdm__etcd_read_swap(tdm__etcd_bytes in, bool *swapped, uint64_t *revision,
                               tdm_error *err)
{
    const tdm_json *response = NULL;
    uint64_t now = 0;
    bool succeeded = false;
    TDM_TRY(response_parse(in, &response, err));
    TDM_TRY(json_get_revision(response, &now, err));
    if (!json_get_bool(response, "succeeded", &succeeded))
        return response_invalid(err, "lacks the result");
    *swapped = succeeded;
    *revision = now;
    return TDM_OK;
}

tdm_status tdm__etcd_read_lease(tdm__etcd_bytes in, uint64_t *lease, uint64_t *seconds,
                                tdm_error *err)
{
    const tdm_json *response = NULL;
    uint64_t id = 0, length = 0;
    TDM_TRY(response_parse(in, &response, err));
    const tdm_json *result = tdm_json_get(response, "result");
    if (result && result->type == TDM_JSON_OBJECT) response = result;
    if (!json_get_number(response, "ID", &id) || id == 0 ||
        !json_get_number(response, "TTL", &length))
        return response_invalid(err, "has no lease");
    *lease = id;
    *seconds = length;
    return TDM_OK;
}

tdm_status tdm__etcd_read_token(tdm__etcd_bytes in, char out[TDM__ETCD_TOKEN_BYTES], tdm_error *err)
{
    const tdm_json *response = NULL;
    TDM_TRY(response_parse(in, &response, err));
    const tdm_json *value = tdm_json_get(response, "token");
    const char *token = value ? tdm_json_as_string(value) : NULL;
    size_t length = token ? strlen(token) : 0;
    bool fine = length > 0 && length < TDM__ETCD_TOKEN_BYTES;
    for (size_t i = 0; fine && i < length; i++) fine = token[i] > ' ' && token[i] < 0x7f;
    if (!fine) return response_invalid(err, "to a password is not a token");
    memcpy(out, token, length + 1);
    return TDM_OK;
}

/* Copies as much of a text as fits, in complete printable characters. */
static void message_copy(const char *text, char out[TDM__ETCD_MESSAGE_BYTES])
{
    size_t length = 0;
    for (;;) {
        size_t one = tdm_text_utf8(text + length, strnlen(text + length, 4), NULL);
        if (one == 0 || length + one >= TDM__ETCD_MESSAGE_BYTES) break;
        memcpy(out + length, text + length, one);
        if ((unsigned char)text[length] < ' ' || text[length] == 0x7f) out[length] = ' ';
        length += one;
    }
    out[length] = '\0';
}

/* Reads an object with "code" or "grpc_code", and "message" or "error". */
static bool json_get_error(const tdm_json *object, tdm__etcd_error *out)
{
    uint64_t code = 0;
    const char *key = tdm_json_get(object, "grpc_code") ? "grpc_code" : "code";
    const tdm_json *message = tdm_json_get(object, "message");
    if (!message) message = tdm_json_get(object, "error");
    const char *text = message ? tdm_json_as_string(message) : NULL;
    if (!text || !json_get_number(object, key, &code) || code == 0 || code > 1000) return false;
    out->code = (int)code;
    message_copy(text, out->message);
    return true;
}

tdm_status tdm__etcd_read_error(tdm__etcd_bytes in, tdm__etcd_error *out, tdm_error *err)
{
    const tdm_json *response = NULL;
    tdm__etcd_error found;
    TDM_TRY(response_parse(in, &response, err));
    if (!json_get_error(response, &found))
        return response_invalid(err, "is an error without a message");
    *out = found;
    return TDM_OK;
}

tdm_status tdm__etcd_read_watch(tdm__etcd_bytes in, tdm__etcd_watch_response *out, tdm_error *err)
{
    const tdm_json *response = NULL;
    tdm__etcd_watch_response found = {0};
    bool canceled = false;
    uint64_t compacted = 0;
    TDM_TRY(response_parse(in, &response, err));
    const tdm_json *error = tdm_json_get(response, "error");
    if (error) {
        found.event = TDM__ETCD_EVENT_ENDED;
        if (!json_get_error(error, &found.why))
            return response_invalid(err, "is an error without a message");
        *out = found;
        return TDM_OK;
    }
    const tdm_json *result = tdm_json_get(response, "result");
    if (!result || result->type != TDM_JSON_OBJECT)
        return response_invalid(err, "to a watch has no result");
    const tdm_json *header = tdm_json_get(result, "header");
    const tdm_json *events = tdm_json_get(result, "events");
    const tdm_json *reason = tdm_json_get(result, "cancel_reason");
    if (!json_get_bool(result, "created", &found.created) ||
        !json_get_bool(result, "canceled", &canceled) ||
        !json_get_number(result, "compact_revision", &compacted) ||
        (header && !json_get_number(header, "revision", &found.revision)) ||
        (events && events->type != TDM_JSON_ARRAY))
        return response_invalid(err, "to a watch has invalid fields");
    if (compacted > 0) {
        found.event = TDM__ETCD_EVENT_CHANGED;
        if (found.revision < compacted) found.revision = compacted;
    } else if (canceled) {
        const char *text = reason ? tdm_json_as_string(reason) : NULL;
        found.event = TDM__ETCD_EVENT_ENDED;
        found.why.code = TDM__ETCD_UNAVAILABLE;
        message_copy(text ? text : "it ended the watch", found.why.message);
    } else if (events && events->count > 0) {
        if (found.revision == 0) return response_invalid(err, "to a watch has no revision");
        found.event = TDM__ETCD_EVENT_CHANGED;
    }
    *out = found;
    return TDM_OK;
}
