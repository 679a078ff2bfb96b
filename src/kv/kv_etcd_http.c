/*
 * kv_etcd_http.c: sends requests over HTTP with libcurl.
 *
 * libcurl is loaded when the first store needs it, not linked: it depends on two dozen libraries,
 * which a process that trains on one host should not have to load. The build needs its headers;
 * without them every call fails with TDM_ERR_UNSUPPORTED. Connections stay open between calls.
 * Proxies are never used, since a store is in the same network, and redirects are not followed.
 * With https, the server's certificate and name are always verified.
 *
 * Every call has a deadline, and a response has at most MAX_RESPONSE bytes.
 */
#include "base/base.h"
#include "base/timing.h"
#include "kv/kv_etcd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef TDM__WITH_CURL

#include <curl/curl.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#define LIBRARY "libcurl.so.4"

enum { MAX_RESPONSE = 64 << 20, POLL_MS = (int)(TDM__TIMING_KV_ETCD_POLL_S * 1e3) };

/* The functions of libcurl used here. */
typedef struct curl_table {
    CURLcode (*global_init)(long flags);
    char *(*version)(void);
    CURL *(*easy_init)(void);
    void (*easy_reset)(CURL *easy);
    CURLcode (*easy_setopt)(CURL *easy, CURLoption option, ...);
    CURLcode (*easy_getinfo)(CURL *easy, CURLINFO info, ...);
    const char *(*easy_strerror)(CURLcode code);
    void (*easy_cleanup)(CURL *easy);
    CURLM *(*multi_init)(void);
    CURLMcode (*multi_add_handle)(CURLM *multi, CURL *easy);
    CURLMcode (*multi_remove_handle)(CURLM *multi, CURL *easy);
    CURLMcode (*multi_perform)(CURLM *multi, int *running);
    CURLMcode (*multi_poll)(CURLM *multi, struct curl_waitfd *more, unsigned count, int timeout_ms,
                            int *ready);
    CURLMsg *(*multi_info_read)(CURLM *multi, int *left);
    CURLMcode (*multi_cleanup)(CURLM *multi);
    struct curl_slist *(*slist_append)(struct curl_slist *list, const char *text);
    void (*slist_free_all)(struct curl_slist *list);
} curl_table;

typedef struct curl_name {
    const char *name;
    size_t offset;
} curl_name;

#define NAME(function)                                                                             \
    {                                                                                              \
        "curl_" #function, offsetof(curl_table, function)                                          \
    }
static const curl_name names[] = {
    NAME(global_init),    NAME(version),          NAME(easy_init),           NAME(easy_reset),
    NAME(easy_setopt),    NAME(easy_getinfo),     NAME(easy_strerror),       NAME(easy_cleanup),
    NAME(multi_init),     NAME(multi_add_handle), NAME(multi_remove_handle), NAME(multi_perform),
    NAME(multi_poll),     NAME(multi_info_read),  NAME(multi_cleanup),       NAME(slist_append),
    NAME(slist_free_all),
};

struct tdm__http {
    curl_table curl;
    const tdm_kv_options *options;
    CURLM *multi;
    CURL *easy;
    char error_text[CURL_ERROR_SIZE];
};

/* It is never unloaded: some of its dependencies do not support that. */
static tdm_status curl_load(curl_table *out, tdm_error *err)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library)
        return tdm_fail(err, TDM_ERR_UNSUPPORTED,
                        "the etcd store needs libcurl, which is not installed (%s); install the "
                        "Debian package libcurl4",
                        LIBRARY);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        void *function = dlsym(library, names[i].name);
        if (!function)
            return tdm_fail(err, TDM_ERR_UNSUPPORTED, "%s is too old: it lacks %s", LIBRARY,
                            names[i].name);
        memcpy((char *)out + names[i].offset, &function, sizeof(function));
    }
    return TDM_OK;
}

bool tdm__http_usable(char why[160], char library[TDM_LIBRARY_BYTES])
{
    curl_table curl;
    tdm_error err = {0};
    why[0] = '\0';
    library[0] = '\0';
    if (curl_load(&curl, &err) != TDM_OK) {
        snprintf(why, 160, "%.159s", err.message);
        return false;
    }
    const char *version = curl.version();
    snprintf(library, TDM_LIBRARY_BYTES, "%.*s", (int)strcspn(version, " "), version);
    return true;
}

/* ---- SIGPIPE --------------------------------------------------------------------------------- */

/* Writing to a connection that the peer has closed raises SIGPIPE, and TLS libraries do not prevent
 * it. Programs may not ignore it, so this thread blocks it during calls. */
typedef struct sigpipe_block {
    sigset_t before;
    bool pending; /* one was pending before the call; leave it */
} sigpipe_block;

static sigpipe_block sigpipe_begin(void)
{
    sigpipe_block q;
    sigset_t pipe_only, pending;
    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    sigemptyset(&pending);
    sigpending(&pending);
    q.pending = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_only, &q.before);
    return q;
}

static void sigpipe_end(const sigpipe_block *q)
{
    sigset_t pipe_only;
    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    if (!q->pending)
        while (sigtimedwait(&pipe_only, NULL, &(struct timespec){0}) == SIGPIPE) {
        }
    pthread_sigmask(SIG_SETMASK, &q->before, NULL);
}

/* ---- open ------------------------------------------------------------------------------------ */

tdm_status tdm__http_create(const tdm_kv_options *options, tdm__http **out, tdm_error *err)
{
    tdm__http *http = calloc(1, sizeof(*http));
    if (!http) return tdm_fail_oom(err, "for a store");
    http->options = options;
    tdm_status status = curl_load(&http->curl, err);
    if (status == TDM_OK && http->curl.global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK) {
        http->multi = http->curl.multi_init();
        http->easy = http->curl.easy_init();
    }
    if (status == TDM_OK && (!http->multi || !http->easy))
        status = tdm_fail(err, TDM_ERR_NO_MEMORY, "cannot initialise libcurl");
    if (status != TDM_OK) {
        tdm__http_destroy(http);
        return status;
    }
    *out = http;
    return TDM_OK;
}

void tdm__http_destroy(tdm__http *http)
{
    if (!http) return;
    sigpipe_block q = sigpipe_begin(); /* TLS sends a close notification */
    if (http->easy) http->curl.easy_cleanup(http->easy);
    if (http->multi) http->curl.multi_cleanup(http->multi);
    sigpipe_end(&q);
    free(http);
}

/* ---- request --------------------------------------------------------------------------------- */

typedef enum exchange_state {
    EXCHANGE_RECEIVING,
    EXCHANGE_ENOUGH,  /* the caller wants no more lines */
    EXCHANGE_TOO_LONG /* the response is longer than MAX_RESPONSE, or memory ran out */
} exchange_state;

typedef struct exchange {
    const tdm__http_call *call;
    tdm__http_response *response;
    double deadline_s;
    size_t searched; /* bytes of the text that contain no newline */
    exchange_state state;
} exchange;

/* Passes complete lines to the caller and keeps the rest. */
static void exchange_cut_lines(exchange *x)
{
    tdm_str *text = &x->response->text;
    size_t first = 0;
    while (x->state == EXCHANGE_RECEIVING) {
        const char *end = memchr(text->data + x->searched, '\n', text->length - x->searched);
        if (!end) break;
        size_t length = (size_t)(end - (text->data + first));
        if (length > 0 && !x->call->line(x->call->user, text->data + first, length, &x->deadline_s))
            x->state = EXCHANGE_ENOUGH;
        first += length + 1;
        x->searched = first;
    }
    if (first > 0) memmove(text->data, text->data + first, text->length - first + 1);
    text->length -= first;
    x->searched = text->length;
}

static size_t exchange_receive(char *bytes, size_t size, size_t count, void *user)
{
    exchange *x = user;
    size_t total = size * count;
    if (x->state == EXCHANGE_ENOUGH) return total;
    bool fits = total <= MAX_RESPONSE - x->response->text.length;
    if (fits) tdm_str_add_bytes(&x->response->text, bytes, total);
    if (!fits || !tdm_str_ok(&x->response->text)) {
        x->state = EXCHANGE_TOO_LONG;
        return 0;
    }
    if (x->call->line && total > 0) exchange_cut_lines(x);
    return total;
}

static bool exchange_set_options(tdm__http *http, exchange *x, struct curl_slist *headers)
{
    const tdm_kv_options *o = http->options;
    CURL *easy = http->easy;
    double left = x->deadline_s - tdm_clock_s();
    http->curl.easy_reset(easy);
    http->error_text[0] = '\0';
    CURLcode (*set)(CURL *, CURLoption, ...) = http->curl.easy_setopt;
    bool fine = set(easy, CURLOPT_URL, x->call->url) == CURLE_OK &&
                set(easy, CURLOPT_POSTFIELDS, x->call->body) == CURLE_OK &&
                set(easy, CURLOPT_HTTPHEADER, headers) == CURLE_OK &&
                set(easy, CURLOPT_WRITEFUNCTION, exchange_receive) == CURLE_OK &&
                set(easy, CURLOPT_WRITEDATA, x) == CURLE_OK &&
                set(easy, CURLOPT_ERRORBUFFER, http->error_text) == CURLE_OK &&
                set(easy, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
                set(easy, CURLOPT_PROXY, "") == CURLE_OK &&
                set(easy, CURLOPT_CONNECTTIMEOUT_MS, left > 0.001 ? (long)(left * 1e3) : 1L) ==
                    CURLE_OK;
    /* Options that an old libcurl does not have are not required. */
    (void)set(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    (void)set(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    if (strncmp(x->call->url, "https:", 6) != 0) return fine;
    fine = fine && set(easy, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2) == CURLE_OK &&
           set(easy, CURLOPT_SSL_VERIFYPEER, 1L) == CURLE_OK &&
           set(easy, CURLOPT_SSL_VERIFYHOST, 2L) == CURLE_OK;
    if (o->ca) fine = fine && set(easy, CURLOPT_CAINFO, o->ca) == CURLE_OK;
    if (o->certificate) fine = fine && set(easy, CURLOPT_SSLCERT, o->certificate) == CURLE_OK;
    if (o->key) fine = fine && set(easy, CURLOPT_SSLKEY, o->key) == CURLE_OK;
    return fine;
}

static struct curl_slist *exchange_make_headers(tdm__http *http, const tdm__http_call *call)
{
    char token[TDM__ETCD_TOKEN_BYTES + 32];
    const char *lines[] = {"Content-Type: application/json", "Expect:",
                           /* a server that lost its cluster must end the watch */
                           call->line ? "Grpc-Metadata-hasleader: true" : NULL,
                           call->token[0] ? token : NULL};
    snprintf(token, sizeof(token), "Authorization: %s", call->token);
    struct curl_slist *list = NULL;
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        if (!lines[i]) continue;
        struct curl_slist *longer = http->curl.slist_append(list, lines[i]);
        if (!longer) {
            http->curl.slist_free_all(list);
            return NULL;
        }
        list = longer;
    }
    return list;
}

/* Runs the request until there is a response, or the caller wants no more.
 * CURLE_OPERATION_TIMEDOUT: too late. */
static CURLcode exchange_run(tdm__http *http, exchange *x)
{
    for (;;) {
        int running = 0, left = 0;
        if (http->curl.multi_perform(http->multi, &running) != CURLM_OK) return CURLE_FAILED_INIT;
        if (x->state == EXCHANGE_ENOUGH) return CURLE_OK;
        if (running == 0) {
            const CURLMsg *message = http->curl.multi_info_read(http->multi, &left);
            return message && message->msg == CURLMSG_DONE ? message->data.result
                                                           : CURLE_FAILED_INIT;
        }
        double left_ms = (x->deadline_s - tdm_clock_s()) * 1e3;
        if (left_ms <= 0) return CURLE_OPERATION_TIMEDOUT;
        int wait_ms = left_ms < POLL_MS ? (int)left_ms + 1 : POLL_MS;
        if (http->curl.multi_poll(http->multi, NULL, 0, wait_ms, NULL) != CURLM_OK)
            return CURLE_FAILED_INIT;
    }
}

static tdm_status exchange_post(tdm__http *http, const tdm__http_call *call,
                                tdm__http_response *response, tdm_error *err)
{
    exchange x = {.call = call, .response = response, .deadline_s = call->deadline_s};
    struct curl_slist *headers = exchange_make_headers(http, call);
    long request_bytes = 0;
    response->code = 0;
    response->sent = false;
    tdm_str_clear(&response->text);
    if (!headers || !exchange_set_options(http, &x, headers) ||
        http->curl.multi_add_handle(http->multi, http->easy) != CURLM_OK) {
        http->curl.slist_free_all(headers);
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "%s: libcurl cannot create a request", call->url);
    }
    CURLcode result = exchange_run(http, &x);
    (void)http->curl.easy_getinfo(http->easy, CURLINFO_RESPONSE_CODE, &response->code);
    (void)http->curl.easy_getinfo(http->easy, CURLINFO_REQUEST_SIZE, &request_bytes);
    response->sent = request_bytes > 0;
    http->curl.multi_remove_handle(http->multi, http->easy);
    http->curl.slist_free_all(headers);
    if (result == CURLE_OK) return TDM_OK;
    if (x.state == EXCHANGE_TOO_LONG)
        return tdm_fail(err, TDM_ERR_RANGE, "%s: the response is longer than %d bytes", call->url,
                        MAX_RESPONSE);
    if (result == CURLE_OPERATION_TIMEDOUT)
        return tdm_fail(err, TDM_ERR_TIMEOUT, "%s: no response in time", call->url);
    bool ours = result == CURLE_SSL_CERTPROBLEM || result == CURLE_SSL_CACERT_BADFILE;
    return tdm_fail(err, ours ? TDM_ERR_INVALID : TDM_ERR_IO, "%s: %.300s", call->url,
                    http->error_text[0] ? http->error_text : http->curl.easy_strerror(result));
}

tdm_status tdm__http_post(tdm__http *http, const tdm__http_call *call, tdm__http_response *response,
                          tdm_error *err)
{
    sigpipe_block q = sigpipe_begin();
    tdm_status status = exchange_post(http, call, response, err);
    sigpipe_end(&q);
    return status;
}

#else /* without the headers of libcurl */

#define WITHOUT                                                                                    \
    "this build has no libcurl, which the etcd store needs: install Debian's "                     \
    "libcurl4-openssl-dev and rebuild"

bool tdm__http_usable(char why[160], char library[TDM_LIBRARY_BYTES])
{
    library[0] = '\0';
    snprintf(why, 160, "%s", WITHOUT);
    return false;
}

tdm_status tdm__http_create(const tdm_kv_options *options, tdm__http **out, tdm_error *err)
{
    (void)options;
    (void)out;
    return tdm_fail(err, TDM_ERR_UNSUPPORTED, "%s", WITHOUT);
}

void tdm__http_destroy(tdm__http *http)
{
    (void)http;
}

tdm_status tdm__http_post(tdm__http *http, const tdm__http_call *call, tdm__http_response *response,
                          tdm_error *err)
{
    (void)http;
    (void)response;
    return tdm_fail(err, TDM_ERR_UNSUPPORTED, "%s: %s", call->url, WITHOUT);
}

#endif
