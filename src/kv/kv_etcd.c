/*
 * kv_etcd.c: the store `etcd`: a cluster of etcd servers, used through their JSON gateway.
 *
 * A request can go to any server. If a server does not respond, or has lost the other servers, the
 * next one is tried, round-robin, until one responds or the call times out. A request that may have
 * been executed is repeated only if that is safe. A compare-and-swap is never repeated, because the
 * caller could not know which attempt succeeded: it fails with TDM_ERR_TIMEOUT, and the caller
 * reads the key.
 *
 * With a user, a token is requested first, and a new one whenever it is rejected. A wait is a watch
 * that starts after the given revision, so no change is lost between two waits, even on different
 * servers. It ends with the first event, or at once if the store has changed since that revision.
 * Leases have whole seconds here, at least two.
 */
#include "kv/kv_etcd.h"
#include "base/base.h"
#include "base/timing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ENDPOINTS = 16, URL_BYTES = 300, MAX_NEW_TOKENS = 2 };

typedef struct etcd {
    tdm_kv kv;
    tdm_kv_options options; /* the strings are copies */
    tdm__http *http;
    tdm__http_response response;
    tdm_arena *scratch;
    tdm_str request;
    char endpoints[MAX_ENDPOINTS][URL_BYTES];
    int endpoint_count, current;
    char token[TDM__ETCD_TOKEN_BYTES]; /* "": none */
} etcd;

static etcd *etcd_of(tdm_kv *kv)
{
    return (etcd *)(void *)kv;
}

static tdm__etcd_bytes response_of(const etcd *e)
{
    return (tdm__etcd_bytes){.data = tdm_str_text(&e->response.text),
                             .count = e->response.text.length,
                             .scratch = e->scratch};
}

/* Timeout for one server, so that the others are tried as well. */
static double attempt_s(const etcd *e)
{
    double share_s = e->options.timeout_s / e->endpoint_count;
    return fmin(fmax(share_s, TDM__TIMING_KV_ETCD_SERVER_S), e->options.timeout_s);
}

/* ---- request to one server ------------------------------------------------------------------- */

/* The result of one attempt. */
typedef enum outcome {
    DONE,
    TOKEN_REJECTED, /* the token was rejected; the request was not executed */
    NOT_EXECUTED,   /* the request was not executed; another server may be able to */
    UNSURE,         /* unknown whether the request was executed */
    REFUSED         /* the request was rejected */
} outcome;

static bool has(const char *text, const char *part)
{
    return strstr(text, part) != NULL;
}

static outcome error_outcome(const tdm__etcd_error *r)
{
    if (r->code == TDM__ETCD_UNAUTHENTICATED || has(r->message, "invalid auth token") ||
        has(r->message, "revision of auth store is old") ||
        has(r->message, "revision in header is old"))
        return TOKEN_REJECTED;
    if (has(r->message, "no leader") || has(r->message, "too many requests") ||
        has(r->message, "not capable") || has(r->message, "connection refused"))
        return NOT_EXECUTED;
    switch (r->code) {
    case TDM__ETCD_INVALID:
    case TDM__ETCD_NOT_FOUND:
    case TDM__ETCD_DENIED:
    case TDM__ETCD_EXHAUSTED:
    case TDM__ETCD_FAILED_CONDITION: return REFUSED;
    default: return UNSURE; /* timed out internally, the leader changed, shutting down, ... */
    }
}

static tdm_status error_fail(const etcd *e, const tdm__etcd_error *r, tdm_error *err)
{
    const char *server = e->endpoints[e->current];
    if (r->code == TDM__ETCD_NOT_FOUND)
        return tdm_fail(err, TDM_ERR_NOT_FOUND, "%s: %s", server, r->message);
    if (r->code == TDM__ETCD_EXHAUSTED)
        return tdm_fail(err, TDM_ERR_NO_SPACE,
                        "%s: %s; see 'etcdctl endpoint status', then compact and defragment the "
                        "database",
                        server, r->message);
    if (r->code == TDM__ETCD_DENIED)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "%s: %s; user '%s' needs a role that may read and write keys below "
                        "\"tandem/\"",
                        server, r->message, e->options.user ? e->options.user : "");
    if (has(r->message, "user name is empty"))
        return tdm_fail(err, TDM_ERR_INVALID,
                        "%s: etcd requires authentication: set etcd.user and etcd.password_file",
                        server);
    if (has(r->message, "authentication failed"))
        return tdm_fail(err, TDM_ERR_INVALID, "%s: etcd rejects the password of user '%s'", server,
                        e->options.user ? e->options.user : "");
    return tdm_fail(err, TDM_ERR_INVALID, "%s: %s", server, r->message);
}

/* Whether another server would give the same result. */
static bool is_final(tdm_status status)
{
    return status == TDM_ERR_RANGE || status == TDM_ERR_NO_MEMORY || status == TDM_ERR_INVALID;
}

/* Sends one request to the current server; `err` is set unless the result is DONE. */
static outcome etcd_attempt(etcd *e, const char *path, const char *request, double deadline_s,
                            tdm_status *status, tdm_error *err)
{
    char url[URL_BYTES + 64];
    double until = tdm_clock_s() + attempt_s(e);
    snprintf(url, sizeof(url), "%s/v3/%s", e->endpoints[e->current], path);
    tdm__http_call call = {.url = url,
                           .token = e->token,
                           .body = request,
                           .deadline_s = until < deadline_s ? until : deadline_s};
    *status = tdm__http_post(e->http, &call, &e->response, err);
    if (is_final(*status)) return REFUSED;
    if (*status != TDM_OK) return e->response.sent ? UNSURE : NOT_EXECUTED;
    if (e->response.code == 200) return DONE;
    tdm__etcd_error error;
    if (tdm__etcd_read_error(response_of(e), &error, NULL) != TDM_OK) {
        /* Not a response of etcd: a proxy, or another program. */
        *status = tdm_fail(err, TDM_ERR_IO,
                           "%s: HTTP status %ld; is this the address of an etcd server, version "
                           "3.4 or newer?",
                           url, e->response.code);
        return UNSURE;
    }
    *status = error_fail(e, &error, err);
    return error_outcome(&error);
}

/* Requests a token if there is a user and no token yet. */
static outcome etcd_log_in(etcd *e, double deadline_s, tdm_status *status, tdm_error *err)
{
    if (!e->options.user || e->token[0]) return DONE;
    tdm_str request = TDM_STR_INIT;
    tdm__etcd_write_token(e->options.user, e->options.password ? e->options.password : "",
                          &request);
    outcome o = etcd_attempt(e, "auth/authenticate", tdm_str_text(&request), deadline_s, status,
                             err);
    tdm_str_wipe(&request);
    if (o == DONE) {
        *status = tdm__etcd_read_token(response_of(e), e->token, err);
        if (*status != TDM_OK) o = REFUSED;
    } else if (o == REFUSED && err && has(err->message, "authentication is not enabled")) {
        *status = tdm_fail(err, TDM_ERR_INVALID,
                           "%s: authentication is not enabled in etcd: remove etcd.user, or run "
                           "'etcdctl auth enable'",
                           e->endpoints[e->current]);
    }
    return o == UNSURE || o == TOKEN_REJECTED ? NOT_EXECUTED : o; /* not the call itself */
}

/* ---- request to any server ------------------------------------------------------------------- */

/* The attempts of one call at several servers. */
typedef struct attempts {
    double deadline_s;
    bool is_repeatable;   /* the request may be executed twice */
    bool may_be_executed; /* by a server that did not respond */
    int failures;         /* attempts without a response */
    int new_tokens;       /* requested because the one before was rejected */
    char reason[400];     /* the last error */
} attempts;

/* After an attempt that was not DONE: whether to try the next server. If not, *status is the result
 * of the call. */
static bool attempts_continue(etcd *e, attempts *a, outcome o, tdm_status *status, tdm_error *err)
{
    if (o == REFUSED) return false;
    if (o == TOKEN_REJECTED) {
        e->token[0] = '\0';
        return e->options.user && ++a->new_tokens <= MAX_NEW_TOKENS;
    }

    /* An earlier error is more informative than the timeout. */
    if (*status != TDM_ERR_TIMEOUT || !a->reason[0])
        snprintf(a->reason, sizeof(a->reason), "%.399s", err->message);
    e->current = (e->current + 1) % e->endpoint_count;
    bool is_round_over = ++a->failures % e->endpoint_count == 0;
    double pause_s = is_round_over ? TDM__TIMING_KV_ETCD_ROUND_S : 0;
    if ((a->may_be_executed && !a->is_repeatable) || tdm_clock_s() + pause_s >= a->deadline_s) {
        *status = tdm_fail(
            err, TDM_ERR_TIMEOUT, "no etcd server answered within %g s%s; last error: %s",
            e->options.timeout_s, a->may_be_executed ? " (the request may have been executed)" : "",
            a->reason);
        return false;
    }
    tdm_clock_sleep(pause_s);
    return true;
}

/* Sends e->request until a server responds; the response is in e->response. */
static tdm_status etcd_request(etcd *e, const char *path, bool is_repeatable, tdm_error *err)
{
    tdm_error local_error, *error = err ? err : &local_error;
    attempts a = {.deadline_s = tdm_clock_s() + e->options.timeout_s,
                  .is_repeatable = is_repeatable};
    tdm_status status = TDM_OK;
    outcome o = NOT_EXECUTED;
    if (!tdm_str_ok(&e->request)) return tdm_fail_oom(err, "for a request to etcd");
    do {
        o = etcd_log_in(e, a.deadline_s, &status, error);
        if (o == DONE) {
            o = etcd_attempt(e, path, tdm_str_text(&e->request), a.deadline_s, &status, error);
            if (o == UNSURE) a.may_be_executed = true;
        }
        if (o == DONE) return TDM_OK;
    } while (attempts_continue(e, &a, o, &status, error));
    return status;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static tdm_str *etcd_new_request(etcd *e)
{
    tdm_str_clear(&e->request);
    return &e->request;
}

static tdm_status etcd_get(tdm_kv *kv, const char *key, tdm_arena *arena, tdm_kv_item *out,
                           tdm_error *err)
{
    etcd *e = etcd_of(kv);
    tdm_kv_item *items = NULL;
    size_t count = 0;
    uint64_t revision = 0;
    tdm__etcd_write_key(key, etcd_new_request(e));
    TDM_TRY(etcd_request(e, "kv/range", true, err));
    TDM_TRY(tdm__etcd_read_items(response_of(e), arena, &items, &count, &revision, err));
    if (count == 0) return tdm_fail(err, TDM_ERR_NOT_FOUND, "etcd has no key \"%s\"", key);
    if (count != 1 || strcmp(items[0].key, key) != 0)
        return tdm_fail(err, TDM_ERR_FORMAT, "%s: the response is for another key than \"%s\"",
                        e->endpoints[e->current], key);
    *out = items[0];
    return TDM_OK;
}

static tdm_status etcd_list(tdm_kv *kv, const char *prefix, tdm_arena *arena, tdm_kv_item **out,
                            size_t *out_count, uint64_t *revision, tdm_error *err)
{
    etcd *e = etcd_of(kv);
    tdm__etcd_write_prefix(prefix, etcd_new_request(e));
    TDM_TRY(etcd_request(e, "kv/range", true, err));
    return tdm__etcd_read_items(response_of(e), arena, out, out_count, revision, err);
}

static tdm_status etcd_put(tdm_kv *kv, const char *key, const char *value, uint64_t lease,
                           tdm_error *err)
{
    etcd *e = etcd_of(kv);
    tdm__etcd_write_put(key, value, lease, etcd_new_request(e));
    TDM_TRY(etcd_request(e, "kv/put", true, err));
    return tdm__etcd_read_done(response_of(e), err);
}

static tdm_status etcd_swap(tdm_kv *kv, const char *key, uint64_t expected, const char *value,
                            uint64_t lease, uint64_t *out_revision, tdm_error *err)
{
    etcd *e = etcd_of(kv);
    bool swapped = false;
    uint64_t revision = 0;
    tdm__etcd_write_swap(key, expected, value, lease, etcd_new_request(e));
    TDM_TRY(etcd_request(e, "kv/txn", false, err));
    TDM_TRY(tdm__etcd_read_swap(response_of(e), &swapped, &revision, err));
    if (!swapped)
        return tdm_fail(err, TDM_ERR_EXISTS, "etcd: \"%s\" is no longer at revision %llu", key,
                        (unsigned long long)expected);
    *out_revision = revision;
    return TDM_OK;
}

static tdm_status etcd_remove(tdm_kv *kv, const char *prefix, tdm_error *err)
{
    etcd *e = etcd_of(kv);
    tdm__etcd_write_prefix(prefix, etcd_new_request(e));
    TDM_TRY(etcd_request(e, "kv/deleterange", true, err));
    return tdm__etcd_read_done(response_of(e), err);
}

/* ---- leases ---------------------------------------------------------------------------------- */

static tdm_status etcd_lease(tdm_kv *kv, double seconds, uint64_t *out, tdm_error *err)
{
    etcd *e = etcd_of(kv);
    uint64_t length = 0;
    tdm__etcd_write_lease(seconds, etcd_new_request(e));
    TDM_TRY(etcd_request(e, "lease/grant", true, err));
    return tdm__etcd_read_lease(response_of(e), out, &length, err);
}

static tdm_status etcd_keep(tdm_kv *kv, uint64_t id, tdm_error *err)
{
    etcd *e = etcd_of(kv);
    uint64_t same = 0, seconds = 0;
    tdm__etcd_write_id(id, etcd_new_request(e));
    TDM_TRY(etcd_request(e, "lease/keepalive", true, err));
    TDM_TRY(tdm__etcd_read_lease(response_of(e), &same, &seconds, err));
    if (same == id && seconds > 0) return TDM_OK;
    return tdm_fail(err, TDM_ERR_NOT_FOUND, "etcd: lease %llu has expired", (unsigned long long)id);
}

static tdm_status etcd_release(tdm_kv *kv, uint64_t id, tdm_error *err)
{
    etcd *e = etcd_of(kv);
    tdm__etcd_write_id(id, etcd_new_request(e));
    tdm_status status = etcd_request(e, "lease/revoke", true, err);
    if (status == TDM_ERR_NOT_FOUND) return TDM_OK;
    TDM_TRY(status);
    return tdm__etcd_read_done(response_of(e), err);
}

/* ---- watch ----------------------------------------------------------------------------------- */

/*
 * States of a watch. watch_line changes the state with each line of the response; watch_run runs
 * one watch until it has left OPENING and OPEN, or its time is up.
 *
 *                 created                   a key has changed
 *      OPENING ------------> OPEN ------------------------------------> CHANGED
 *         |                    |
 *         |                    |   etcd has ended the watch
 *         +--------------------+--------------------------------------> ENDED
 *         |                    |   the line is not a response to a watch
 *         +--------------------+--------------------------------------> INVALID
 *
 * If the store is newer than `revision` when the watch is created, that counts as a change: OPENING
 * changes to CHANGED.
 */
typedef enum watch_state {
    WATCH_OPENING, /* the request was sent */
    WATCH_OPEN,    /* etcd has created the watch: every later change is reported */
    WATCH_CHANGED, /* there may be a change; `revision_seen` is valid */
    WATCH_ENDED,   /* `why` has the reason */
    WATCH_INVALID
} watch_state;

typedef struct watch {
    tdm_arena *scratch;
    uint64_t revision; /* wait for a change after this revision */
    double until_s;    /* deadline for an event once the watch is open */
    watch_state state;
    uint64_t revision_seen;
    tdm__etcd_error why;
} watch;

static bool watch_line(void *user, const char *text, size_t length, double *deadline_s)
{
    watch *w = user;
    tdm__etcd_bytes line = {.data = text, .count = length, .scratch = w->scratch};
    tdm__etcd_watch_response got;
    if (tdm__etcd_read_watch(line, &got, NULL) != TDM_OK) {
        w->state = WATCH_INVALID;
        return false;
    }

    bool is_newer = false;
    if (got.created && w->state == WATCH_OPENING) {
        w->state = WATCH_OPEN;
        *deadline_s = fmax(w->until_s, tdm_clock_s() + TDM__TIMING_KV_ETCD_FIRST_EVENT_S);
        /* etcd would report whether this change was below the prefix only at its next check of
         * lagging watches, ten times a second: let the caller read now. */
        is_newer = got.revision > w->revision;
    }

    if (is_newer || got.event == TDM__ETCD_EVENT_CHANGED) {
        w->state = WATCH_CHANGED;
        w->revision_seen = got.revision;
    } else if (got.event == TDM__ETCD_EVENT_ENDED) {
        w->state = WATCH_ENDED;
        w->why = got.why;
    }
    return w->state == WATCH_OPENING || w->state == WATCH_OPEN;
}

/* Runs one watch at the current server. DONE: something changed, or the watch was open until its
 * deadline. */
static outcome watch_run(etcd *e, watch *w, tdm_status *status, tdm_error *err)
{
    char url[URL_BYTES + 64];
    snprintf(url, sizeof(url), "%s/v3/watch", e->endpoints[e->current]);
    tdm__http_call call = {.url = url,
                           .token = e->token,
                           .body = tdm_str_text(&e->request),
                           .deadline_s = tdm_clock_s() + attempt_s(e),
                           .line = watch_line,
                           .user = w};
    *status = tdm__http_post(e->http, &call, &e->response, err);
    if (w->state == WATCH_CHANGED || (*status == TDM_ERR_TIMEOUT && w->state == WATCH_OPEN))
        return DONE;

    bool is_error = w->state == WATCH_ENDED ||
                    (*status == TDM_OK && e->response.code != 200 &&
                     tdm__etcd_read_error(response_of(e), &w->why, NULL) == TDM_OK);
    if (is_error) {
        *status = error_fail(e, &w->why, err);
        outcome o = error_outcome(&w->why);
        return o == UNSURE ? NOT_EXECUTED : o;
    }
    if (*status == TDM_OK)
        *status = tdm_fail(err, TDM_ERR_IO, "%s: %s (HTTP status %ld)", url,
                           w->state == WATCH_INVALID ? "invalid response to a watch"
                                                     : "a watch was closed without an error",
                           e->response.code);
    return is_final(*status) ? REFUSED : NOT_EXECUTED;
}

static tdm_status etcd_wait(tdm_kv *kv, const char *prefix, uint64_t revision, double seconds,
                            uint64_t *out, tdm_error *err)
{
    etcd *e = etcd_of(kv);
    tdm_error local_error, *error = err ? err : &local_error;
    double limit_s = e->options.timeout_s, begin_s = tdm_clock_s(), until_s = begin_s + seconds;
    attempts a = {.deadline_s = begin_s + fmax(seconds, limit_s)};
    tdm_status status = TDM_OK;
    outcome o = NOT_EXECUTED;
    tdm__etcd_write_watch(prefix, revision, etcd_new_request(e));
    if (!tdm_str_ok(&e->request)) return tdm_fail_oom(err, "for a request to etcd");
    do {
        o = etcd_log_in(e, a.deadline_s, &status, error);
        while (o == DONE) {
            /* A server that died without closing the connection is silent. So a watch is repeated
             * from time to time, which shows that the server responds. */
            watch w = {.scratch = e->scratch,
                       .revision = revision,
                       .until_s = fmin(tdm_clock_s() + limit_s, until_s)};
            o = watch_run(e, &w, &status, error);
            if (o == DONE && (w.state == WATCH_CHANGED || tdm_clock_s() >= until_s)) {
                *out = w.revision_seen > revision ? w.revision_seen : revision;
                return TDM_OK;
            }
        }
    } while (attempts_continue(e, &a, o, &status, error));
    return status;
}

/* ---- open ------------------------------------------------------------------------------------ */

/* Parses "http://a:2379,http://b:2379/" into endpoints. */
static tdm_status etcd_read_endpoints(etcd *e, const char *text, tdm_error *err)
{
    for (const char *at = text + strspn(text, " ,"); *at;) {
        size_t length = strcspn(at, ","), used = length;
        while (used > 0 && (at[used - 1] == '/' || at[used - 1] == ' ')) used--;
        bool scheme = strncmp(at, "http://", 7) == 0 || strncmp(at, "https://", 8) == 0;
        if (!scheme || used < 9 || used >= URL_BYTES || memchr(at, '@', used))
            return tdm_fail(err, TDM_ERR_INVALID,
                            "\"%.*s\" is not a valid etcd address; write http://HOST:PORT or "
                            "https://HOST:PORT, separated by commas",
                            (int)(length < 200 ? length : 200), at);
        if (e->endpoint_count == MAX_ENDPOINTS)
            return tdm_fail(err, TDM_ERR_RANGE, "more than %d etcd addresses", MAX_ENDPOINTS);
        memcpy(e->endpoints[e->endpoint_count++], at, used);
        at += length;
        at += strspn(at, " ,");
    }
    if (e->endpoint_count > 0) return TDM_OK;
    return tdm_fail(err, TDM_ERR_INVALID, "no etcd address in \"%.200s\"", text);
}

static bool endpoint_is_local(const char *endpoint)
{
    return strncmp(endpoint, "http://127.", 11) == 0 ||
           strncmp(endpoint, "http://[::1]", 12) == 0 ||
           strncmp(endpoint, "http://localhost", 16) == 0;
}

/* Each handle starts with another server, to distribute the load. */
static tdm_status etcd_start(etcd *e, const char *place, tdm_error *err)
{
    TDM_TRY(etcd_read_endpoints(e, place, err));
    e->current = (int)(tdm_clock_ns() / 1000 % (uint64_t)e->endpoint_count);
    for (int i = 0; e->options.user && i < e->endpoint_count; i++) {
        if (strncmp(e->endpoints[i], "http:", 5) != 0 || endpoint_is_local(e->endpoints[i]))
            continue;
        tdm_log(TDM_LOG_WARN, "cluster", "%s: the password is sent unencrypted; use https",
                e->endpoints[i]);
    }
    return tdm__http_create(&e->options, &e->http, err);
}

static void etcd_close(tdm_kv *kv)
{
    etcd *e = etcd_of(kv);
    const char *const texts[] = {e->options.user, e->options.password, e->options.ca,
                                 e->options.certificate, e->options.key};
    tdm__http_destroy(e->http);
    tdm_str_release(&e->response.text);
    tdm_str_release(&e->request);
    tdm_arena_destroy(e->scratch);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) free((char *)(uintptr_t)texts[i]);
    free(e);
}

static tdm_status etcd_open(const tdm_kv_options *options, const char *place, tdm_kv **out,
                            tdm_error *err)
{
    etcd *e = calloc(1, sizeof(*e));
    if (!e) return tdm_fail_oom(err, "for a store");
    e->kv.ops = &tdm__kv_etcd;
    e->options = *options;
    e->options.url = NULL;
    const char **texts[] = {&e->options.user, &e->options.password, &e->options.ca,
                            &e->options.certificate, &e->options.key};
    bool has_memory = true;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        bool given = *texts[i] && **texts[i]; /* an empty string counts as none */
        *texts[i] = given ? strdup(*texts[i]) : NULL;
        if (given && !*texts[i]) has_memory = false;
    }
    e->scratch = tdm_arena_create("response of etcd");
    tdm_status status = has_memory && e->scratch ? etcd_start(e, place, err)
                                                 : tdm_fail_oom(err, "for a store");
    if (status != TDM_OK) {
        etcd_close(&e->kv);
        return status;
    }
    *out = &e->kv;
    return TDM_OK;
}

const tdm__kv_ops tdm__kv_etcd = {
    .name = "etcd",
    .about = "for several hosts: a cluster of etcd servers",
    .usable = tdm__http_usable,
    .open = etcd_open,
    .close = etcd_close,
    .get = etcd_get,
    .list = etcd_list,
    .put = etcd_put,
    .swap = etcd_swap,
    .remove = etcd_remove,
    .lease = etcd_lease,
    .keep = etcd_keep,
    .release = etcd_release,
    .wait = etcd_wait,
};
