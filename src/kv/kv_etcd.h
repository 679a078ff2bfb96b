/*
 * kv_etcd.h: what the files of the etcd store share: its JSON gateway's words, and HTTP.
 *
 * kv_etcd.c knows what to ask whom and what to do when nobody answers; kv_etcd_json.c writes the questions
 * and reads the answers, which come from outside and are believed in nothing; kv_etcd_http.c carries both,
 * by libcurl.
 */
#ifndef TANDEM_KV_KV_ETCD_H
#define TANDEM_KV_KV_ETCD_H

#include "kv/kv.h"

#include <tandem/text.h>

/* ---- questions (kv_etcd_json.c): JSON, into an empty `out` ----------------------------------- */

void tdm__etcd_ask_key(const char *key, tdm_str *out);
void tdm__etcd_ask_prefix(const char *prefix, tdm_str *out); /* to list, and to remove */
void tdm__etcd_ask_put(const char *key, const char *value, uint64_t lease, tdm_str *out);
void tdm__etcd_ask_swap(const char *key, uint64_t expected, const char *value, uint64_t lease,
                        tdm_str *out);
void tdm__etcd_ask_lease(double seconds, tdm_str *out);
void tdm__etcd_ask_id(uint64_t lease, tdm_str *out);
void tdm__etcd_ask_watch(const char *prefix, uint64_t revision, tdm_str *out);
void tdm__etcd_ask_token(const char *user, const char *password, tdm_str *out);

/* ---- answers (kv_etcd_json.c): TDM_ERR_FORMAT where they are not what they should be --------- */

typedef struct tdm__etcd_bytes {
    const char *data;
    size_t count;
    tdm_arena *scratch; /* is reset */
} tdm__etcd_bytes;

enum { TDM__ETCD_TOKEN_BYTES = 2048, TDM__ETCD_WORDS_BYTES = 200 };

tdm_status tdm__etcd_read_items(tdm__etcd_bytes in, tdm_arena *arena, tdm_kv_item **out,
                                size_t *out_count, uint64_t *revision, tdm_error *err);
/* Anything that was done: put, removed, released. */
tdm_status tdm__etcd_read_done(tdm__etcd_bytes in, tdm_error *err);
tdm_status tdm__etcd_read_swap(tdm__etcd_bytes in, bool *swapped, uint64_t *revision,
                               tdm_error *err);
/* A lease granted, or one kept (in a "result"); seconds 0: it has ended. */
tdm_status tdm__etcd_read_lease(tdm__etcd_bytes in, uint64_t *lease, uint64_t *seconds,
                                tdm_error *err);
tdm_status tdm__etcd_read_token(tdm__etcd_bytes in, char out[TDM__ETCD_TOKEN_BYTES],
                                tdm_error *err);

/* What etcd says when it cannot or will not. */
typedef struct tdm__etcd_refusal {
    int code;                          /* as gRPC counts them */
    char words[TDM__ETCD_WORDS_BYTES]; /* to be shown: no control characters */
} tdm__etcd_refusal;
enum {
    TDM__ETCD_INVALID = 3,
    TDM__ETCD_NOT_FOUND = 5,
    TDM__ETCD_DENIED = 7,
    TDM__ETCD_EXHAUSTED = 8,
    TDM__ETCD_FAILED_CONDITION = 9,
    TDM__ETCD_UNAVAILABLE = 14,
    TDM__ETCD_UNAUTHENTICATED = 16
};
tdm_status tdm__etcd_read_refusal(tdm__etcd_bytes in, tdm__etcd_refusal *out, tdm_error *err);

/* One line of a watch. */
typedef struct tdm__etcd_notice {
    bool created;
    bool changed;      /* something happened, or so much that nobody remembers what */
    uint64_t revision; /* with `changed` */
    bool ended;        /* and why */
    tdm__etcd_refusal why;
} tdm__etcd_notice;
tdm_status tdm__etcd_read_notice(tdm__etcd_bytes in, tdm__etcd_notice *out, tdm_error *err);

/* ---- HTTP (kv_etcd_http.c) ------------------------------------------------------------------- */

typedef struct tdm__http tdm__http;

bool tdm__http_usable(char why[160], char library[TDM_LIBRARY_BYTES]);
/* `options` and its texts are borrowed for as long as it lives. */
tdm_status tdm__http_create(const tdm_kv_options *options, tdm__http **out, tdm_error *err);
void tdm__http_destroy(tdm__http *http); /* NULL is fine */

typedef struct tdm__http_call {
    const char *url;
    const char *token; /* "": none */
    const char *body;
    double deadline_s; /* by tdm_clock_s */
    /* For answers that come line by line and need not end: called with each line; may move the deadline;
     * false ends the call, as a success. NULL: the answer is wanted as a whole. */
    bool (*line)(void *user, const char *text, size_t length, double *deadline_s);
    void *user;
} tdm__http_call;

typedef struct tdm__http_answer {
    long code;    /* of HTTP; 0: there was no answer */
    bool sent;    /* the question may have been heard, whatever came of it */
    tdm_str text; /* whole, or the line that was not ended yet; cleared by each call */
} tdm__http_answer;

/* TDM_OK when there was an answer, whatever its code. TDM_ERR_TIMEOUT, TDM_ERR_IO: there was none;
 * TDM_ERR_RANGE: it was too long; TDM_ERR_INVALID: the files for TLS are no good. */
tdm_status tdm__http_post(tdm__http *http, const tdm__http_call *call, tdm__http_answer *answer,
                          tdm_error *err);

#endif
