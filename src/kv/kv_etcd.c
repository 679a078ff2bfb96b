/*
 * kv_etcd.c: the store `etcd`: a cluster of etcd servers, used through their JSON gateway.
 *
 * A request can go to any server. If one does not respond, or has lost the other servers, the next
 * one is tried, round-robin, until one responds or the call times out. A request that may have been
 * executed is repeated only if that is safe: never a compare-and-swap, because the caller could not
 * tell which attempt succeeded. Such a call fails with TDM_ERR_TIMEOUT, and the caller reads the
 * key.
 *
 * With a user, a token is requested first, and a new one whenever it is rejected. A wait is a watch
 * that starts after the given revision, so no change is lost between two waits, even on different
 * servers. It ends with the first event, or at once if the store has changed since that revision.
 * Leases have whole seconds here, at least two.
 */
#include "kv/kv_etcd.h"
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_ENDPOINTS = 16, URL_BYTES = 300, TOKEN_TRIALS = 2 };
#define MIN_ATTEMPT_S 1.0
#define PAUSE_S 0.1
#define GRACE_S 0.05

typedef struct etcd {
    tdm_kv kv;
    tdm_kv_options options; /* the strings are copies */
    tdm__http *http;
    tdm__http_answer answer;
    tdm_arena *scratch;
    tdm_str question;
    char endpoints[MAX_ENDPOINTS][URL_BYTES];
    int endpoint_count, current;
    char token[TDM__ETCD_TOKEN_BYTES]; /* "": none */
} etcd;

static etcd *etcd_of(tdm_kv *kv)
{
    return (etcd *)(void *)kv;
}

static tdm__etcd_bytes answer_of(const etcd *e)
{
    return (tdm__etcd_bytes){.data = tdm_str_text(&e->answer.text),
                             .count = e->answer.text.length,
                             .scratch = e->scratch};
}

/* Timeout for one server, so that the others are tried as well. */
static double attempt_s(const etcd *e)
{
    double share = e->options.timeout_s / e->endpoint_count;
    if (share < MIN_ATTEMPT_S) share = MIN_ATTEMPT_S;
    return share < e->options.timeout_s ? share : e->options.timeout_s;
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

static outcome refusal_outcome(const tdm__etcd_refusal *r)
{
    if (r->code == TDM__ETCD_UNAUTHENTICATED || has(r->words, "invalid auth token") ||
        has(r->words, "revision of auth store is old") ||
        has(r->words, "revision in header is old"))
        return TOKEN_REJECTED;
    if (has(r->words, "no leader") || has(r->words, "too many requests") ||
        has(r->words, "not capable") || has(r->words, "connection refused"))
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

static tdm_status refusal_fail(const etcd *e, const tdm__etcd_refusal *r, tdm_error *err)
{
    const char *server = e->endpoints[e->current];
    if (r->code == TDM__ETCD_NOT_FOUND)
        return tdm_fail(err, TDM_ERR_NOT_FOUND, "%s: %s", server, r->words);
    if (r->code == TDM__ETCD_EXHAUSTED)
        return tdm_fail(err, TDM_ERR_NO_SPACE,
                        "%s: %s; see 'etcdctl endpoint status', then compact and defragment the "
                        "database",
                        server, r->words);
    if (r->code == TDM__ETCD_DENIED)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "%s: %s; user '%s' needs a role that may read and write keys below "
                        "\"tandem/\"",
                        server, r->words, e->options.user ? e->options.user : "");
    if (has(r->words, "user name is empty"))
        return tdm_fail(err, TDM_ERR_INVALID,
                        "%s: etcd requires authentication: set etcd.user and etcd.password_file",
                        server);
    if (has(r->words, "authentication failed"))
        return tdm_fail(err, TDM_ERR_INVALID, "%s: etcd rejects the password of user '%s'", server,
                        e->options.user ? e->options.user : "");
    return tdm_fail(err, TDM_ERR_INVALID, "%s: %s", server, r->words);
}

/* Whether another server would give the same result. */
static bool is_final(tdm_status status)
{
    return status == TDM_ERR_RANGE || status == TDM_ERR_NO_MEMORY || status == TDM_ERR_INVALID;
}

/* Sends one request to the current server; `err` is set unless the result is DONE. */
static outcome etcd_attempt(etcd *e, const char *path, const char *question, double deadline_s,
                            tdm_status *status, tdm_error *err)
{
    char url[URL_BYTES + 64];
    double until = tdm_clock_s() + attempt_s(e);
    snprintf(url, sizeof(url), "%s/v3/%s", e->endpoints[e->current], path);
    tdm__http_call call = {.url = url,
                           .token = e->token,
                           .body = question,
                           .deadline_s = until < deadline_s ? until : deadline_s};
    *status = tdm__http_post(e->http, &call, &e->answer, err);
    if (is_final(*status)) return REFUSED;
    if (*status != TDM_OK) return e->answer.sent ? UNSURE : NOT_EXECUTED;
    if (e->answer.code == 200) return DONE;
    tdm__etcd_refusal refusal;
    if (tdm__etcd_read_refusal(answer_of(e), &refusal, NULL) != TDM_OK) {
        /* Not a response of etcd: a proxy, or another program. */
        *status = tdm_fail(err, TDM_ERR_IO,
                           "%s: HTTP status %ld; is this the address of an etcd server, version "
                           "3.4 or newer?",
                           url, e->answer.code);
        return UNSURE;
    }
    *status = refusal_fail(e, &refusal, err);
    return refusal_outcome(&refusal);
}

/* Requests a token if there is a user and no token yet. */
static outcome etcd_log_in(etcd *e, double deadline_s, tdm_status *status, tdm_error *err)
{
    if (!e->options.user || e->token[0]) return DONE;
    tdm_str question = TDM_STR_INIT;
    tdm__etcd_ask_token(e->options.user, e->options.password ? e->options.password : "", &question);
    outcome o = etcd_attempt(e, "auth/authenticate", tdm_str_text(&question), deadline_s, status,
                             err);
    if (question.data) explicit_bzero(question.data, question.length);
    tdm_str_release(&question);
    if (o == DONE) {
        *status = tdm__etcd_read_token(answer_of(e), e->token, err);
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

/* The state of one call over several servers. */
typedef struct search {
    double deadline_s;
    bool once;        /* it must not be repeated once it may have been executed */
    bool sent;        /* it may have been executed */
    int trials;       /* since a server responded */
    int renewals;     /* of the token */
    char reason[400]; /* the last error */
} search;

static tdm_status search_give_up(const etcd *e, const search *s, tdm_error *err)
{
    return tdm_fail(err, TDM_ERR_TIMEOUT, "no etcd server answered within %g s%s; last error: %s",
                    e->options.timeout_s, s->sent ? " (the request may have been executed)" : "",
                    s->reason);
}

/* After an attempt that was not DONE: whether to try the next server. If not, *status is the result
 * of the call. */
static bool search_continue(etcd *e, search *s, outcome o, tdm_status *status, tdm_error *err)
{
    if (o == REFUSED) return false;
    if (o == TOKEN_REJECTED) {
        e->token[0] = '\0';
        return e->options.user && ++s->renewals <= TOKEN_TRIALS;
    }
    /* An earlier error is more informative than the timeout. */
    if (*status != TDM_ERR_TIMEOUT || !s->reason[0])
        snprintf(s->reason, sizeof(s->reason), "%.399s", err->message);
    e->current = (e->current + 1) % e->endpoint_count;
    bool round = ++s->trials % e->endpoint_count == 0;
    if ((s->sent && s->once) || tdm_clock_s() + (round ? PAUSE_S : 0) >= s->deadline_s) {
        *status = search_give_up(e, s, err);
        return false;
    }
    if (round) tdm_clock_sleep(PAUSE_S);
    return true;
}

/* Sends e->question until a server responds; the response is in e->answer. */
static tdm_status etcd_request(etcd *e, const char *path, bool repeatable, tdm_error *err)
{
    tdm_error own, *error = err ? err : &own;
    search s = {.deadline_s = tdm_clock_s() + e->options.timeout_s, .once = !repeatable};
    tdm_status status = TDM_OK;
    outcome o = NOT_EXECUTED;
    if (!tdm_str_ok(&e->question)) return tdm_fail_oom(err, "for a request to etcd");
    do {
        o = etcd_log_in(e, s.deadline_s, &status, error);
        if (o == DONE) {
            o = etcd_attempt(e, path, tdm_str_text(&e->question), s.deadline_s, &status, error);
            if (o == UNSURE) s.sent = true;
        }
        if (o == DONE) return TDM_OK;
    } while (search_continue(e, &s, o, &status, error));
    return status;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static tdm_str *etcd_question(etcd *e)
{
    tdm_str_clear(&e->question);
    e->question.failed = false;
    return &e->question;
}

static tdm_status etcd_get(tdm_kv *kv, const char *key, tdm_arena *arena, tdm_kv_item *out,
                           tdm_error *err)
{
    etcd *e = etcd_of(kv);
    tdm_kv_item *items = NULL;
    size_t count = 0;
    uint64_t revision = 0;
    tdm__etcd_ask_key(key, etcd_question(e));
    TDM_TRY(etcd_request(e, "kv/range", true, err));
    TDM_TRY(tdm__etcd_read_items(answer_of(e), arena, &items, &count, &revision, err));
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
    tdm__etcd_ask_prefix(prefix, etcd_question(e));
    TDM_TRY(etcd_request(e, "kv/range", true, err));
    return tdm__etcd_read_items(answer_of(e), arena, out, out_count, revision, err);
}

static tdm_status etcd_put(tdm_kv *kv, const char *key, const char *value, uint64_t lease,
                           tdm_error *err)
{
    etcd *e = etcd_of(kv);
    tdm__etcd_ask_put(key, value, lease, etcd_question(e));
    TDM_TRY(etcd_request(e, "kv/put", true, err));
    return tdm__etcd_read_done(answer_of(e), err);
}

static tdm_status etcd_swap(tdm_kv *kv, const char *key, uint64_t expected, const char *value,
                            uint64_t lease, uint64_t *out_revision, tdm_error *err)
{
    etcd *e = etcd_of(kv);
    bool swapped = false;
    uint64_t revision = 0;
    tdm__etcd_ask_swap(key, expected, value, lease, etcd_question(e));
    TDM_TRY(etcd_request(e, "kv/txn", false, err));
    TDM_TRY(tdm__etcd_read_swap(answer_of(e), &swapped, &revision, err));
    if (!swapped)
        return tdm_fail(err, TDM_ERR_EXISTS, "etcd: \"%s\" is no longer at revision %llu", key,
                        (unsigned long long)expected);
    *out_revision = revision;
    return TDM_OK;
}

static tdm_status etcd_remove(tdm_kv *kv, const char *prefix, tdm_error *err)
{
    etcd *e = etcd_of(kv);
    tdm__etcd_ask_prefix(prefix, etcd_question(e));
    TDM_TRY(etcd_request(e, "kv/deleterange", true, err));
    return tdm__etcd_read_done(answer_of(e), err);
}

/* ---- leases ---------------------------------------------------------------------------------- */

static tdm_status etcd_lease(tdm_kv *kv, double seconds, uint64_t *out, tdm_error *err)
{
    etcd *e = etcd_of(kv);
    uint64_t length = 0;
    tdm__etcd_ask_lease(seconds, etcd_question(e));
    TDM_TRY(etcd_request(e, "lease/grant", true, err));
    return tdm__etcd_read_lease(answer_of(e), out, &length, err);
}

static tdm_status etcd_keep(tdm_kv *kv, uint64_t id, tdm_error *err)
{
    etcd *e = etcd_of(kv);
    uint64_t same = 0, seconds = 0;
    tdm__etcd_ask_id(id, etcd_question(e));
    TDM_TRY(etcd_request(e, "lease/keepalive", true, err));
    TDM_TRY(tdm__etcd_read_lease(answer_of(e), &same, &seconds, err));
    if (same == id && seconds > 0) return TDM_OK;
    return tdm_fail(err, TDM_ERR_NOT_FOUND, "etcd: lease %llu has expired", (unsigned long long)id);
}

static tdm_status etcd_release(tdm_kv *kv, uint64_t id, tdm_error *err)
{
    etcd *e = etcd_of(kv);
    tdm__etcd_ask_id(id, etcd_question(e));
    tdm_status status = etcd_request(e, "lease/revoke", true, err);
    if (status == TDM_ERR_NOT_FOUND) return TDM_OK;
    TDM_TRY(status);
    return tdm__etcd_read_done(answer_of(e), err);
}

/* ---- watch ----------------------------------------------------------------------------------- */

typedef struct watch {
    tdm_arena *scratch;
    uint64_t revision; /* wait for a change after this revision */
    double until_s;    /* deadline for an event once the watch is established */
    tdm__etcd_notice notice;
    bool is_established;
    bool is_invalid; /* the response is not that of a watch */
} watch;

static bool watch_line(void *user, const char *text, size_t length, double *deadline_s)
{
    watch *w = user;
    tdm__etcd_bytes line = {.data = text, .count = length, .scratch = w->scratch};
    if (tdm__etcd_read_notice(line, &w->notice, NULL) != TDM_OK) {
        w->is_invalid = true;
        return false;
    }
    if (w->notice.created && !w->is_established) {
        w->is_established = true;
        double min = tdm_clock_s() + GRACE_S;
        *deadline_s = w->until_s > min ? w->until_s : min;
        /* The store has already changed. etcd would report whether the change was below the prefix
         * only at its next check of lagging watches, ten times a second: let the caller read
         * now. */
        if (w->notice.revision > w->revision) w->notice.changed = true;
    }
    return !w->notice.changed && !w->notice.ended;
}

/* Runs one watch at the current server. DONE: it lasted until the end, or something changed. */
static outcome watch_run(etcd *e, watch *w, tdm_status *status, tdm_error *err)
{
    char url[URL_BYTES + 64];
    snprintf(url, sizeof(url), "%s/v3/watch", e->endpoints[e->current]);
    tdm__http_call call = {.url = url,
                           .token = e->token,
                           .body = tdm_str_text(&e->question),
                           .deadline_s = tdm_clock_s() + attempt_s(e),
                           .line = watch_line,
                           .user = w};
    *status = tdm__http_post(e->http, &call, &e->answer, err);
    if (w->notice.changed || (*status == TDM_ERR_TIMEOUT && w->is_established)) return DONE;
    tdm__etcd_refusal *why = &w->notice.why;
    bool known = w->notice.ended || (*status == TDM_OK && e->answer.code != 200 &&
                                     tdm__etcd_read_refusal(answer_of(e), why, NULL) == TDM_OK);
    if (known) {
        *status = refusal_fail(e, why, err);
        outcome o = refusal_outcome(why);
        return o == UNSURE ? NOT_EXECUTED : o;
    }
    if (*status == TDM_OK)
        *status = tdm_fail(err, TDM_ERR_IO, "%s: %s (HTTP status %ld)", url,
                           w->is_invalid ? "invalid response to a watch"
                                         : "a watch was closed without an error",
                           e->answer.code);
    return is_final(*status) ? REFUSED : NOT_EXECUTED;
}

static tdm_status etcd_wait(tdm_kv *kv, const char *prefix, uint64_t revision, double seconds,
                            uint64_t *out, tdm_error *err)
{
    etcd *e = etcd_of(kv);
    tdm_error own, *error = err ? err : &own;
    double max = e->options.timeout_s, began = tdm_clock_s(), until = began + seconds;
    search s = {.deadline_s = seconds > max ? until : began + max};
    tdm_status status = TDM_OK;
    outcome o = NOT_EXECUTED;
    tdm__etcd_ask_watch(prefix, revision, etcd_question(e));
    if (!tdm_str_ok(&e->question)) return tdm_fail_oom(err, "for a request to etcd");
    do {
        watch w = {.scratch = e->scratch};
        o = etcd_log_in(e, s.deadline_s, &status, error);
        while (o == DONE) {
            /* A broken connection is silent: the server must respond from time to time. */
            double piece = tdm_clock_s() + max;
            w = (watch){.scratch = e->scratch,
                        .revision = revision,
                        .until_s = piece < until ? piece : until};
            o = watch_run(e, &w, &status, error);
            if (o == DONE && (w.notice.changed || tdm_clock_s() >= until)) {
                bool newer = w.notice.changed && w.notice.revision > revision;
                *out = newer ? w.notice.revision : revision;
                return TDM_OK;
            }
        }
    } while (search_continue(e, &s, o, &status, error));
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
    tdm_str_release(&e->answer.text);
    tdm_str_release(&e->question);
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
    bool fine = true;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        bool given = *texts[i] && **texts[i]; /* an empty string counts as none */
        *texts[i] = given ? strdup(*texts[i]) : NULL;
        if (given && !*texts[i]) fine = false;
    }
    e->scratch = tdm_arena_create("response of etcd");
    tdm_status status = fine && e->scratch ? etcd_start(e, place, err)
                                           : tdm_fail_oom(err, "for a store");
    if (status != TDM_OK) {
        etcd_close(&e->kv);
        return status;
    }
    *out = &e->kv;
    return TDM_OK;
}

static double etcd_now(const tdm_kv *kv)
{
    (void)kv;
    return tdm_clock_s();
}

const tdm__kv_ops tdm__kv_etcd = {
    .name = "etcd",
    .about = "for several hosts: a cluster of etcd servers",
    .usable = tdm__http_usable,
    .open = etcd_open,
    .close = etcd_close,
    .now = etcd_now,
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
