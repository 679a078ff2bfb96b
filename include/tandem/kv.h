/*
 * kv.h: the key-value store through which the processes of a session find and watch each other.
 *
 * Keys and values are text; each change has a revision. The operations are put, get, list,
 * compare-and-swap, watch, and leases. The keys of a lease are removed when it is not renewed.
 * `local` is a file that all processes of one host map. It needs no server, so it survives the
 * death of any process. `etcd` is a cluster of servers for several hosts, used through its JSON
 * gateway.
 *
 * Revisions increase with every change in the store. Every call has a timeout. A call that times
 * out fails with TDM_ERR_TIMEOUT and may or may not have taken effect: only a compare-and-swap can
 * be repeated safely.
 *
 * Threading: a handle is used by one thread at a time; several handles may be open on one store.
 */
#ifndef TANDEM_KV_H
#define TANDEM_KV_H

#include <tandem/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tdm_kv tdm_kv;

enum {
    TDM_KV_KEY_BYTES = 256,
    TDM_KV_VALUE_BYTES = 256 * 1024
}; /* maximum, including the terminator */

/* For tdm_kv_options.probe_s, in programs that a user waits for. */
#define TDM_KV_PROBE_S 2.0

/* NULL and zero mean none, or the default in brackets. */
typedef struct tdm_kv_options {
    const char *url; /* "local:PATH", or "etcd:HTTP-URL,HTTP-URL,..." */
    const char *user, *password;
    const char *ca, *certificate, *key; /* files for https */
    double timeout_s;                   /* of a call (5) */
    double probe_s;  /* tdm_kv_open fails if the store does not answer in time (0: no probe) */
    bool must_exist; /* local: do not create the file; another process does */
    /* local: a lease of this handle does not expire while this process lives, is not stopped and
     * has made progress within this time, even if it is not renewed: other processes see in /proc
     * that it is only slow (0: a lease expires by time alone). */
    double idle_s;
} tdm_kv_options;

/* `local`: creates the file, readable only by its owner. TDM_ERR_NOT_FOUND if it does not exist and
 * must_exist is set. */
TDM_API tdm_status tdm_kv_open(const tdm_kv_options *options, tdm_kv **out, tdm_error *err);
TDM_API void tdm_kv_close(tdm_kv *kv);

typedef struct tdm_kv_item {
    const char *key;
    const char *value; /* text */
    uint64_t revision; /* revision of its last change */
    uint64_t lease;    /* its lease; 0: none */
} tdm_kv_item;

/* Reads a key. TDM_ERR_NOT_FOUND: it does not exist. Strings are allocated from `arena`. */
TDM_API tdm_status tdm_kv_get(tdm_kv *kv, const char *key, tdm_arena *arena, tdm_kv_item *out,
                              tdm_error *err);

#ifdef __cplusplus
}
#endif
#endif
