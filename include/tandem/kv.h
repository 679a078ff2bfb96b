/*
 * kv.h: the store through which processes of a run find and watch each other.
 *
 * A small set of named texts with revisions: put, get, list, compare-and-swap, watch, and leases that
 * take what hangs on them along when nobody keeps them. `local` is a file that all processes of one host
 * map, without a server, so nobody's death takes it away. `etcd` is a cluster of servers, for several
 * hosts; it is asked over its JSON gateway.
 *
 * Revisions grow with every change anywhere in the store. Every call has a deadline; one that the store
 * does not answer in time fails with TDM_ERR_TIMEOUT, and may or may not have had its effect: only a
 * compare-and-swap can safely be repeated.
 *
 * Threading: a handle is for one thread at a time; several handles may be open on one store.
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
}; /* the most, terminators included */

/* For tdm_kv_options.probe_s, in programs that a user waits for. */
#define TDM_KV_PROBE_S 2.0

/* NULL and zero: none, or the default in brackets. */
typedef struct tdm_kv_options {
    const char *url; /* "local:PATH", or "etcd:HTTP-URL,HTTP-URL,..." */
    const char *user, *password;
    const char *ca, *certificate, *key; /* files, for https */
    double timeout_s;                   /* of a call (5) */
    double
        probe_s; /* tdm_kv_open fails when the store does not answer within this time (0: it does not ask) */
    bool must_exist; /* local: another process makes the file, and opening it never does */
    /* local: a lease of this handle does not end, though nobody keeps it, while this process lives, is not
     * stopped, and has made progress within so many seconds: others see from the kernel that it is only
     * slow (0: a lease ends by its time alone). */
    double idle_s;
} tdm_kv_options;

/* `local`: makes the file, readable for its owner alone, when there is none, unless it must exist:
 * TDM_ERR_NOT_FOUND then. */
TDM_API tdm_status tdm_kv_open(const tdm_kv_options *options, tdm_kv **out, tdm_error *err);
TDM_API void tdm_kv_close(tdm_kv *kv);
/* The store's clock in seconds: monotonic, and the only one that code above the store looks at. */
TDM_API double tdm_kv_now(const tdm_kv *kv);

typedef struct tdm_kv_item {
    const char *key;
    const char *value; /* text */
    uint64_t revision; /* of its last change */
    uint64_t lease;    /* that it hangs on; 0: none */
} tdm_kv_item;

/* TDM_ERR_NOT_FOUND: there is none. Texts come from `arena`. */
TDM_API tdm_status tdm_kv_get(tdm_kv *kv, const char *key, tdm_arena *arena, tdm_kv_item *out,
                              tdm_error *err);
/* All keys that begin so, in order of key. *revision, which may be NULL: the store's at that moment. */
TDM_API tdm_status tdm_kv_list(tdm_kv *kv, const char *prefix, tdm_arena *arena, tdm_kv_item **out,
                               size_t *out_count, uint64_t *revision, tdm_error *err);
/* `lease` 0: it stays. TDM_ERR_NOT_FOUND: that lease has ended. */
TDM_API tdm_status tdm_kv_put(tdm_kv *kv, const char *key, const char *value, uint64_t lease,
                              tdm_error *err);
/* Puts it when the key's revision is `expected` (0: there is no such key). TDM_ERR_EXISTS when not. */
TDM_API tdm_status tdm_kv_swap(tdm_kv *kv, const char *key, uint64_t expected, const char *value,
                               uint64_t lease, uint64_t *out_revision, tdm_error *err);
/* Removes all keys that begin so; none is fine. An empty prefix is refused. */
TDM_API tdm_status tdm_kv_remove(tdm_kv *kv, const char *prefix, tdm_error *err);

/* A lease ends `seconds` after it was kept last; what hangs on it is removed then, which watchers see.
 * TDM_ERR_NOT_FOUND from keep: it has ended. Releasing one that has ended is fine. */
TDM_API tdm_status tdm_kv_lease(tdm_kv *kv, double seconds, uint64_t *out, tdm_error *err);
TDM_API tdm_status tdm_kv_keep(tdm_kv *kv, uint64_t lease, tdm_error *err);
TDM_API tdm_status tdm_kv_release(tdm_kv *kv, uint64_t lease, tdm_error *err);

/*
 * Waits until something below `prefix` has changed after `revision` (removal included), at most so
 * long; *out is the store's revision then. Nothing changed: TDM_OK, and *out may equal `revision`.
 * Changes may be told late or together, never lost: look again at what matters after each call.
 */
TDM_API tdm_status tdm_kv_wait(tdm_kv *kv, const char *prefix, uint64_t revision, double seconds,
                               uint64_t *out, tdm_error *err);

/* What is built in, for `tandem doctor`: false past the end. */
typedef struct tdm_kv_info {
    const char *name;
    const char *about;
    bool usable;
    char why[160];
    char library[TDM_LIBRARY_BYTES];
} tdm_kv_info;
TDM_API bool tdm_kv_at(size_t index, tdm_kv_info *out);

#ifdef __cplusplus
}
#endif
#endif
