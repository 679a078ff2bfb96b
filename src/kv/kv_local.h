/*
 * kv_local.h: the file of a local store, as all processes map it, and what its three files share.
 *
 * The file holds a head and two areas of equal size. One area counts; it is a log: records of keys put
 * and keys removed, one behind the other. A change is written behind the end of the log, where nobody
 * looks, and then comes into being by one store to `commit`, which says which area counts, up to where,
 * and the revision. So a process can be killed at any instruction: a change is whole or is not there,
 * and there is nothing to repair. When the area is full, what still counts is copied to the other one,
 * and the same single store makes that one count.
 *
 * Leases lie beside it, in a table. Their deadlines change in place, by single stores as well; one that
 * is over is ended by whoever takes the lock next, unless its owner asked to be looked at in /proc first,
 * and that shows that it makes progress: then the lease is extended. Everything is read and written under the lock alone,
 * but for `commit`, which sleepers look at.
 */
#ifndef TANDEM_KV_KV_LOCAL_H
#define TANDEM_KV_KV_LOCAL_H

#include "kv/kv.h"
#include "os/lock.h"

#include <tandem/os.h>

#include <pthread.h>
#include <stdatomic.h>

enum {
    TDM__LOCAL_VERSION = 2,
    TDM__LOCAL_FILE_BYTES = 8 << 20,
    TDM__LOCAL_HEAD_BYTES = 256 << 10,
    TDM__LOCAL_AREA_BYTES = (TDM__LOCAL_FILE_BYTES - TDM__LOCAL_HEAD_BYTES) / 2,
    TDM__LOCAL_LEASES = 2048
};

typedef struct tdm__local_lease {
    _Atomic uint64_t id; /* 0: free; written last */
    _Atomic uint64_t length_ns;
    _Atomic uint64_t deadline_ns; /* of CLOCK_MONOTONIC */
    double idle_s;                /* tdm_kv_options.idle_s of its owner */
    tdm_process_watch owner;      /* that it lives; without meaning when idle_s is 0 */
} tdm__local_lease;

typedef struct tdm__local_area {
    uint64_t generation;    /* grows whenever one of the two is begun anew */
    uint64_t base_revision; /* what was removed before this is not in the log */
} tdm__local_area;

typedef struct tdm__local_head {
    _Atomic uint32_t magic; /* written last */
    uint32_t version;
    char boot[40]; /* of which start of the system: clocks and locks mean nothing to the next one */
    tdm__shared_lock lock;
    _Alignas(8) _Atomic uint64_t commit; /* see tdm__local_commit */
    tdm__local_area areas[2];
    _Atomic uint64_t last_lease;
    _Atomic uint32_t lease_top; /* no lease lies at or behind it */
    tdm__local_lease leases[TDM__LOCAL_LEASES];
} tdm__local_head;
_Static_assert(sizeof(tdm__local_head) <= TDM__LOCAL_HEAD_BYTES, "the head must fit");

/* A record of the log; behind it the key and the value, both terminated, and up to 7 zeros. */
typedef struct tdm__local_record {
    uint32_t bytes; /* all of it; a multiple of 8 */
    uint32_t key_length;
    uint32_t value_length;
    uint32_t removed; /* 1: the key is gone, and there is no value */
    uint64_t revision;
    uint64_t lease;
} tdm__local_record;

typedef struct tdm__local_point {
    unsigned area; /* 0 or 1 */
    uint32_t used; /* of it, in bytes */
    uint64_t revision;
} tdm__local_point;

typedef struct tdm__local {
    tdm_kv kv;
    int fd;
    char *path;
    double timeout_s;
    double idle_s; /* of its leases */
    int64_t process;
    tdm__lock_owner owner;
    double touched_s; /* when the file's time was set last */
    tdm__local_head *head;
    char *areas[2];
    /* What this handle knows of the log: where keys lie, in their order. */
    tdm__local_point seen;
    uint64_t seen_generation;
    uint32_t *index; /* places of records in the area */
    size_t index_count, index_capacity;
    /* No change behind this place came at or before that revision. */
    uint64_t watched_generation, watched_revision;
    uint32_t watched_used;
    bool rung; /* there was a change: wake the sleepers */
} tdm__local;

/* ---- the file and its lock (kv_local_file.c) ------------------------------------------------- */

/* `must_exist`: TDM_ERR_NOT_FOUND when there is no file; otherwise it is made. */
tdm_status tdm__local_open(const char *path, double timeout_s, bool must_exist, tdm__local **out,
                           tdm_error *err);
void tdm__local_close(tdm__local *local);
/* Takes the lock, whatever happened to who had it before. */
tdm_status tdm__local_lock(tdm__local *local, tdm_error *err);
void tdm__local_unlock(tdm__local *local); /* and wakes the sleepers, if there was a change */
/* Sleeps while the revision is this one, at most until then (CLOCK_MONOTONIC). */
void tdm__local_sleep(tdm__local *local, uint64_t revision, uint64_t until_ns);

/* ---- the log (kv_local_log.c); all under the lock -------------------------------------------- */

/* Brings the index up to date. TDM_ERR_FORMAT: the file is damaged. */
tdm_status tdm__local_read(tdm__local *local, tdm_error *err);
/* The first place of the index whose key is not before this one. */
size_t tdm__local_find(const tdm__local *local, const char *key);
const tdm__local_record *tdm__local_at(const tdm__local *local, size_t place);
static inline const char *tdm__local_key(const tdm__local_record *record)
{
    return (const char *)(record + 1);
}
static inline const char *tdm__local_value(const tdm__local_record *record)
{
    return tdm__local_key(record) + record->key_length + 1;
}
/* Both make one change, of one revision, and leave the index up to date. TDM_ERR_NO_SPACE: full. */
tdm_status tdm__local_write(tdm__local *local, const char *key, const char *value, uint64_t lease,
                            tdm_error *err);
/* Removes what begins with `prefix` or, when that is NULL, what hangs on `lease`. Never full. */
tdm_status tdm__local_erase(tdm__local *local, const char *prefix, uint64_t lease, tdm_error *err);
/* Whether something below `prefix` has changed after `revision`; true also where nobody knows any more. */
bool tdm__local_changed(tdm__local *local, const char *prefix, uint64_t revision);

#endif
