/*
 * kv.h: the interface that a store implementation provides.
 *
 * A store is a table of functions and a handle, created by `open`, that begins with a tdm_kv. kv.c
 * checks names, texts and durations before it calls the implementation, so an implementation sees
 * only valid arguments. Outputs are written only on success. A test can provide a store as a struct
 * that begins with a tdm_kv whose `ops` is the test's table, and pass its address to tdm_kv_* and
 * to code that uses them. `usable` and `open` are never called for such a store; tdm_kv_close calls
 * its `close`.
 */
#ifndef TANDEM_KV_KV_H
#define TANDEM_KV_KV_H

#include <tandem/kv.h>
#include <tandem/text.h>

typedef struct tdm__kv_ops tdm__kv_ops;

struct tdm_kv {
    const tdm__kv_ops *ops;
};

struct tdm__kv_ops {
    const char *name;  /* scheme of the URL */
    const char *about; /* one line for `tandem doctor` */

    /* Whether it can be opened; if not, the reason. `library` stays empty if none is used. NULL:
     * always. */
    bool (*usable)(char why[160], char library[TDM_LIBRARY_BYTES]);
    /* `place` is the URL after the colon; options->timeout_s is set. */
    tdm_status (*open)(const tdm_kv_options *options, const char *place, tdm_kv **out,
                       tdm_error *err);
    void (*close)(tdm_kv *kv);
    double (*now)(const tdm_kv *kv); /* NULL: tdm_clock_s */

    tdm_status (*get)(tdm_kv *kv, const char *key, tdm_arena *arena, tdm_kv_item *out,
                      tdm_error *err);
    tdm_status (*list)(tdm_kv *kv, const char *prefix, tdm_arena *arena, tdm_kv_item **out,
                       size_t *out_count, uint64_t *revision, tdm_error *err);
    tdm_status (*put)(tdm_kv *kv, const char *key, const char *value, uint64_t lease,
                      tdm_error *err);
    /* `out_revision`, `revision` of list and `out` of wait are never NULL. */
    tdm_status (*swap)(tdm_kv *kv, const char *key, uint64_t expected, const char *value,
                       uint64_t lease, uint64_t *out_revision, tdm_error *err);
    tdm_status (*remove)(tdm_kv *kv, const char *prefix, tdm_error *err);
    tdm_status (*lease)(tdm_kv *kv, double seconds, uint64_t *out, tdm_error *err);
    tdm_status (*keep)(tdm_kv *kv, uint64_t lease, tdm_error *err);
    tdm_status (*release)(tdm_kv *kv, uint64_t lease, tdm_error *err);
    tdm_status (*wait)(tdm_kv *kv, const char *prefix, uint64_t revision, double seconds,
                       uint64_t *out, tdm_error *err);
};

extern const tdm__kv_ops tdm__kv_local; /* kv_local.c */
extern const tdm__kv_ops tdm__kv_etcd;  /* kv_etcd.c */

/* Writes the id of a shared memory segment as text, because a JSON number cannot hold 64 bits. */
void tdm__put_shm_id(tdm_json_writer *w, uint64_t shm_id);

/* The clock of the store in seconds: monotonic, and the only one that code above the store uses. */
double tdm_kv_now(const tdm_kv *kv);

/* Lists all keys with this prefix, sorted by key. *revision (may be NULL): the revision of the
 * store at that moment. */
tdm_status tdm_kv_list(tdm_kv *kv, const char *prefix, tdm_arena *arena, tdm_kv_item **out,
                       size_t *out_count, uint64_t *revision, tdm_error *err);
/* Writes a key. `lease` 0: it does not expire. TDM_ERR_NOT_FOUND: the lease has expired. */
tdm_status tdm_kv_put(tdm_kv *kv, const char *key, const char *value, uint64_t lease,
                      tdm_error *err);
/* Writes a key if its revision is `expected` (0: the key does not exist). Otherwise
 * TDM_ERR_EXISTS. */
tdm_status tdm_kv_swap(tdm_kv *kv, const char *key, uint64_t expected, const char *value,
                       uint64_t lease, uint64_t *out_revision, tdm_error *err);
/* Removes all keys with this prefix, possibly none. An empty prefix is rejected. */
tdm_status tdm_kv_remove(tdm_kv *kv, const char *prefix, tdm_error *err);

/* A lease expires `seconds` after it was last renewed (tdm_kv_keep). Its keys are removed then, and
 * watchers see that. TDM_ERR_NOT_FOUND from keep: it has expired. Releasing an expired lease is not
 * an error. */
tdm_status tdm_kv_lease(tdm_kv *kv, double seconds, uint64_t *out, tdm_error *err);
tdm_status tdm_kv_keep(tdm_kv *kv, uint64_t lease, tdm_error *err);
tdm_status tdm_kv_release(tdm_kv *kv, uint64_t lease, tdm_error *err);

/*
 * Waits until a key below `prefix` has changed (or was removed) after `revision`, at most
 * `seconds`. *out is the revision of the store then. No change: TDM_OK, and *out may equal
 * `revision`. Changes may be reported late or together, but are never lost: read the keys of
 * interest again after each call.
 */
tdm_status tdm_kv_wait(tdm_kv *kv, const char *prefix, uint64_t revision, double seconds,
                       uint64_t *out, tdm_error *err);

/* The store implementations of this build, for `tandem doctor`. False past the end. */
typedef struct tdm_kv_info {
    const char *name;
    const char *about;
    bool usable;
    char why[160];
    char library[TDM_LIBRARY_BYTES];
} tdm_kv_info;
bool tdm_kv_at(size_t index, tdm_kv_info *out);

#endif
