/*
 * kv_etcd.h: declarations shared by the files of the etcd store: JSON requests and responses, and
 * HTTP.
 *
 * kv_etcd.c decides which request to send to which server and handles failures. kv_etcd_json.c
 * writes requests and parses responses, which are untrusted. kv_etcd_http.c transfers both with
 * libcurl.
 */
#ifndef TANDEM_KV_KV_ETCD_H
#define TANDEM_KV_KV_ETCD_H

#include "kv/kv.h"

#include <tandem/text.h>

/* ---- requests (kv_etcd_json.c): JSON, appended to an empty `out` ----------------------------- */

void tdm__etcd_write_key(const char *key, tdm_str *out);
void tdm__etcd_write_prefix(const char *prefix, tdm_str *out); /* for list and remove */
void tdm__etcd_write_put(const char *key, const char *value, uint64_t lease, tdm_str *out);
void tdm__etcd_write_swap(const char *key, uint64_t expected, const char *value, uint64_t lease,
                          tdm_str *out);
void tdm__etcd_write_lease(double seconds, tdm_str *out);
void tdm__etcd_write_id(uint64_t lease, tdm_str *out);
void tdm__etcd_write_watch(const char *prefix, uint64_t revision, tdm_str *out);
void tdm__etcd_write_token(const char *user, const char *password, tdm_str *out);

/* ---- responses (kv_etcd_json.c): TDM_ERR_FORMAT if they are invalid -------------------------- */

typedef struct tdm__etcd_bytes {
    const char *data;
    size_t count;
    tdm_arena *scratch; /* is reset by each call */
} tdm__etcd_bytes;

enum { TDM__ETCD_TOKEN_BYTES = 2048, TDM__ETCD_MESSAGE_BYTES = 200 };

tdm_status tdm__etcd_read_items(tdm__etcd_bytes in, tdm_arena *arena, tdm_kv_item **out,
                                size_t *out_count, uint64_t *revision, tdm_error *err);
/* Response to put, remove and release. */
tdm_status tdm__etcd_read_done(tdm__etcd_bytes in, tdm_error *err);
tdm_status tdm__etcd_read_swap(tdm__etcd_bytes in, bool *swapped, uint64_t *revision,
                               tdm_error *err);
/* A lease that was created or renewed (in a "result"); seconds 0: it has expired. */
tdm_status tdm__etcd_read_lease(tdm__etcd_bytes in, uint64_t *lease, uint64_t *seconds,
                                tdm_error *err);
tdm_status tdm__etcd_read_token(tdm__etcd_bytes in, char out[TDM__ETCD_TOKEN_BYTES],
                                tdm_error *err);

/* An error response of etcd. */
typedef struct tdm__etcd_error {
    int code;                              /* gRPC status code */
    char message[TDM__ETCD_MESSAGE_BYTES]; /* printable: no control characters */
} tdm__etcd_error;
enum {
    TDM__ETCD_INVALID = 3,
    TDM__ETCD_NOT_FOUND = 5,
    TDM__ETCD_DENIED = 7,
    TDM__ETCD_EXHAUSTED = 8,
    TDM__ETCD_FAILED_CONDITION = 9,
    TDM__ETCD_UNAVAILABLE = 14,
    TDM__ETCD_UNAUTHENTICATED = 16
};
tdm_status tdm__etcd_read_error(tdm__etcd_bytes in, tdm__etcd_error *out, tdm_error *err);

/* One line of the response to a watch. */
typedef enum tdm__etcd_event {
    TDM__ETCD_EVENT_NONE,
    TDM__ETCD_EVENT_CHANGED, /* a key has changed, or etcd has compacted the history since then */
    TDM__ETCD_EVENT_ENDED    /* etcd has ended the watch; `why` has the reason */
} tdm__etcd_event;
typedef struct tdm__etcd_watch_response {
    bool created; /* etcd has created the watch */
    tdm__etcd_event event;
    uint64_t revision; /* of the store; 0: not given, never with EVENT_CHANGED */
    tdm__etcd_error why;
} tdm__etcd_watch_response;
tdm_status tdm__etcd_read_watch(tdm__etcd_bytes in, tdm__etcd_watch_response *out, tdm_error *err);

/* ---- HTTP (kv_etcd_http.c) ------------------------------------------------------------------- */

typedef struct tdm__http tdm__http;

bool tdm__http_usable(char why[160], char library[TDM_LIBRARY_BYTES]);
/* `options` and its strings are borrowed for the lifetime of the handle. */
tdm_status tdm__http_create(const tdm_kv_options *options, tdm__http **out, tdm_error *err);
void tdm__http_destroy(tdm__http *http); /* NULL is fine */

typedef struct tdm__http_call {
    const char *url;
    const char *token; /* "": none */
    const char *body;
    double deadline_s; /* a time of tdm_clock_s */
    /* For responses that arrive line by line and may not end: called with each line; may move the
     * deadline; returning false ends the call successfully. NULL: collect the complete response. */
    bool (*line)(void *user, const char *text, size_t length, double *deadline_s);
    void *user;
} tdm__http_call;

typedef struct tdm__http_response {
    long code;    /* HTTP status; 0: no response */
    bool sent;    /* the request may have been received, whatever the result */
    tdm_str text; /* the complete response, or the incomplete last line; cleared by each call */
} tdm__http_response;

/* TDM_OK if there was a response with any status code. TDM_ERR_TIMEOUT, TDM_ERR_IO: no response;
 * TDM_ERR_RANGE: it was too long; TDM_ERR_INVALID: the TLS files are invalid. */
tdm_status tdm__http_post(tdm__http *http, const tdm__http_call *call, tdm__http_response *response,
                          tdm_error *err);

#endif
