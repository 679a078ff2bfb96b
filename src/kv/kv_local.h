/*
 * kv_local.h: the layout of the file of a local store, and declarations shared by its three files.
 *
 *      file, 8 MiB    0           256 KiB                    4,128 KiB                 8 MiB
 *                     +-----------+--------------------------+--------------------------+
 *                     | head      | area 0                   | area 1                   |
 *                     +-----------+--------------------------+--------------------------+
 *
 *      head           magic | version | boot | lock | commit | areas[2] | last_lease | lease_top |
 *                     leases[2048]
 *
 *      area           0                                          used                3,968 KiB
 *                     +--------+----------+--------+-- ... --+--------+-----------------+
 *                     | record | record   | record |         | record | meaningless     |
 *                     +--------+----------+--------+-- ... --+--------+-----------------+
 *
 *      record         bytes:      4 | 4          | 4            | 4       | 8        | 8     |
 *                     field:  bytes | key_length | value_length | removed | revision | lease |
 *                     then the key, a zero, the value, and zeros up to a multiple of 8 bytes
 *
 *      commit         bit 63        bits 62 to 40                      bits 39 to 0
 *                     active area   used bytes of that area, over 8    revision of the store
 *
 * The active area is a log: records of keys written and keys removed, one after the other. A change
 * is written after the end of the log, where no process reads, and takes effect by one atomic store
 * to `commit`. A process can therefore be killed at any instruction: a change is complete or does
 * not exist, and no repair is needed. When the area is full, the live records are copied to the
 * other one, and the same single store activates it.
 *
 * Leases are in a separate table. Their deadlines are changed in place, also by single stores. An
 * expired lease is removed by the next process that takes the lock, unless its owner set idle_s and
 * /proc shows that the owner makes progress: then the lease is extended. Everything is read and
 * written under the lock, except `commit`, which waiting processes read.
 */
#ifndef TANDEM_KV_KV_LOCAL_H
#define TANDEM_KV_KV_LOCAL_H

#include "kv/kv.h"
#include "os/lock.h"
#include "os/os.h"

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
    tdm_process_watch owner;      /* to check that it lives; unused if idle_s is 0 */
} tdm__local_lease;

typedef struct tdm__local_area {
    uint64_t generation;    /* incremented whenever an area is started anew */
    uint64_t base_revision; /* removals before this revision are not in the log */
} tdm__local_area;

typedef struct tdm__local_head {
    _Atomic uint32_t magic; /* written last */
    uint32_t version;
    char boot[40]; /* boot id of the system: after a reboot, clocks and locks are invalid */
    tdm__shared_lock lock;
    _Alignas(8) _Atomic uint64_t commit; /* the last change; see above */
    tdm__local_area areas[2];
    _Atomic uint64_t last_lease;
    _Atomic uint32_t lease_top; /* all leases are below this index */
    tdm__local_lease leases[TDM__LOCAL_LEASES];
} tdm__local_head;
_Static_assert(sizeof(tdm__local_head) <= TDM__LOCAL_HEAD_BYTES, "the head must fit");

/* The fixed part of a record of the log. */
typedef struct tdm__local_record {
    uint32_t bytes; /* total size; a multiple of 8 */
    uint32_t key_length;
    uint32_t value_length;
    uint32_t removed; /* 1: the key was removed; the value is empty */
    uint64_t revision;
    uint64_t lease;
} tdm__local_record;

/* The content of `commit`. */
typedef struct tdm__local_point {
    unsigned area; /* 0 or 1 */
    uint32_t used; /* bytes in use */
    uint64_t revision;
} tdm__local_point;

typedef struct tdm__local {
    tdm_kv kv;
    int fd;
    char *path;
    double timeout_s;
    double idle_s; /* for its leases */
    int64_t process;
    tdm__lock_owner owner;
    double touched_s; /* when the file's time was set last */
    tdm__local_head *head;
    char *areas[2];
    /* The index of this handle: positions of records, sorted by key. */
    tdm__local_point seen;
    uint64_t seen_generation;
    uint32_t *index; /* positions of records in the area */
    size_t index_count, index_capacity;
    /* No change after this position has this revision or an earlier one. */
    uint64_t watched_generation, watched_revision;
    uint32_t watched_used;
    bool is_changed; /* by the current holder of the lock: waiting processes must be woken */
} tdm__local;

/* ---- file and lock (kv_local_file.c) --------------------------------------------------------- */

/* `must_exist`: TDM_ERR_NOT_FOUND if the file does not exist; otherwise it is created. */
tdm_status tdm__local_open(const char *path, double timeout_s, bool must_exist, tdm__local **out,
                           tdm_error *err);
void tdm__local_close(tdm__local *local);
/* Takes the lock, even if its previous holder died or was stopped. */
tdm_status tdm__local_lock(tdm__local *local, tdm_error *err);
void tdm__local_unlock(tdm__local *local); /* and wakes waiting processes if there was a change */
/* Sleeps while the store has this revision, at most until `until_ns` (CLOCK_MONOTONIC). */
void tdm__local_sleep(tdm__local *local, uint64_t revision, uint64_t until_ns);

/* ---- log (kv_local_log.c); all under the lock ------------------------------------------------ */

/* Brings the index up to date. TDM_ERR_FORMAT: the file is damaged. */
tdm_status tdm__local_read(tdm__local *local, tdm_error *err);
/* The first position in the index whose key is not less than this one. */
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
/* Writes a key as one change with one revision and updates the index. TDM_ERR_NO_SPACE: full. */
tdm_status tdm__local_write(tdm__local *local, const char *key, const char *value, uint64_t lease,
                            tdm_error *err);
/* Removes the keys with `prefix` or, if that is NULL, the keys of `lease`, as one change. Always
 * has enough space. */
tdm_status tdm__local_erase(tdm__local *local, const char *prefix, uint64_t lease, tdm_error *err);
/* Whether a key below `prefix` has changed after `revision`; also true if this is not known any
 * more. */
bool tdm__local_changed(tdm__local *local, const char *prefix, uint64_t revision);

#endif
