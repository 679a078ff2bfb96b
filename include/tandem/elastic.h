/*
 * elastic.h: membership of a session, and the loop that continues training when members die.
 *
 * A session is one execution of a run, from `tandem train` to its end. Its members are worker
 * processes, each with a unique name that is never reused. They communicate through the store
 * (kv.h), below "tandem/SESSION/":
 *     about            the session: job, run directory, limits, start time (JSON)
 *     hosts/HOST       record of an agent, on its lease: address, health
 *     members/ID       record of a worker, on its lease: host, process, phase, step, speed
 *     dead/ID          a worker is known to be dead (written by its agent), with the reason
 *     reports/N/ID     a member has left epoch N: the reason, and the members it could not reach
 *     epoch            the current epoch: its number and members, in order of rank
 *     door/N           endpoint of rank 0 in epoch N
 *     wishes/...       requests of users: stop, leave, save
 *     saved            result of the last requested checkpoint
 *     verdict          result of the run; after this nothing is started
 * `epoch` is changed only by compare-and-swap, so there is one sequence of epochs, no matter which
 * member proposes them.
 *
 * All values are JSON objects. These fields are read by processes other than their writer; values
 * may have more fields:
 *     about            expected: number of workers started at the beginning
 *     members/ID       host, slot, pid, agent (process that started it), orphan (that agent is gone), born
 *                      (revision of its first record), ready (waits to join, or is a member), epoch (its
 *                      last one; 0: none), phase, step, steps, speed, run, lease_s
 *     dead/ID          why ("killed by signal 9"), at (tdm_kv_now of its host when the death was detected)
 *     reports/N/ID     why, regroup (true: nothing failed), whole (it has the state), lost: [ID, ...],
 *                      closed: [ID, ...], the lost ones whose connection was closed without a goodbye,
 *                      refused: [ID, ...], those to which no connection is possible (certificates),
 *                      refusal: why
 *     epoch            number, members: [{id, host, pid}, ...], left: [{id, why, refused}, ...], by
 *     wishes/stop, wishes/leave/ID, wishes/save/DRAWN   why (optional)
 *     saved            step, path, status (a number; 0: it is on disk), message
 *     verdict          status (a number; 0: success), message, by
 *
 * When a member fails, the others leave the epoch and report. The reporter with the lowest rank
 * waits until every member that is not known to be dead has reported, or its time is up. It then
 * proposes the next epoch: the reporters that reach each other, and members that wait to join, up
 * to the maximum. If the network is partitioned, the larger side continues; of equal sides, the one
 * with the lowest rank. A member that finds an epoch without itself is fenced: it leaves and writes
 * nothing. A member that cannot reach the store for the length of its lease, and for at least 10 s,
 * leaves as well.
 */
#ifndef TANDEM_ELASTIC_H
#define TANDEM_ELASTIC_H

#include <tandem/base.h>
#include <tandem/kv.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TDM_MAX_EPOCH_RANKS = 512 }; /* members of an epoch */
enum {
    TDM_MEMBER_ID_BYTES = 64,
    TDM_HOST_BYTES = 64,
    TDM_ENDPOINT_BYTES = 256,
    TDM_LOST_BYTES = 512
};

typedef struct tdm_member tdm_member;

/* Zero means the default in brackets. */
typedef struct tdm_member_options {
    tdm_kv_options kv;
    const char *session;
    const char *id;   /* never reused: "HOST.SLOT.RANDOM" */
    const char *host; /* members with the same host name share memory */
    int slot;         /* on its host */
    int64_t agent;    /* the process that started it and watches it; 0: none */
    int min, max;     /* members of an epoch (1, no limit) */
    double wait_s;    /* time to wait for the minimum before the run is aborted (600) */
    double lease_s; /* time without a heartbeat until a member counts as gone (adaptive: 1 to 30) */
    double report_s;      /* time for the others to report after an epoch has failed (2) */
    uint64_t shm_id;      /* the shared memory segment with its part of the state (tdm_shm_id) */
    bool needs_all_hosts; /* each host holds a part of the state that no other host has */
    bool is_begun; /* a launcher wrote the session to the store: if missing there, it ended */
} tdm_member_options;

/* Reads TANDEM_MEMBER and the related environment variables, which an agent sets. TDM_ERR_NOT_FOUND
 * if they are not set. The strings live as long as the environment. */
TDM_API tdm_status tdm_member_environment(tdm_member_options *out, tdm_error *err);

/* Registers a member that waits to join. A thread renews its lease, watches the other members and
 * publishes the status from `tdm_member_tell`. */
TDM_API tdm_status tdm_member_create(const tdm_member_options *options, tdm_member **out,
                                     tdm_error *err);
/* Removes the member's record from the store. */
TDM_API void tdm_member_destroy(tdm_member *member);
TDM_API const char *tdm_member_id(const tdm_member *member);

typedef struct tdm_epoch_member {
    char id[TDM_MEMBER_ID_BYTES];
    char host[TDM_HOST_BYTES];
} tdm_epoch_member;

typedef struct tdm_epoch {
    uint32_t number; /* from 1 */
    /* The last epoch in which all members started from one common state; 0: none. The state of a
     * host is valid if it is from that epoch, or from a later one that failed at its start. Members
     * may have read different values: the value of rank 0 is authoritative. */
    uint32_t lineage;
    int size, rank; /* of this member */
    /* by rank: remaining members keep their order, then new ones */
    const tdm_epoch_member *members;
} tdm_epoch;

/* The status of this member for `tandem ps`: sent with the next heartbeat. Any thread. */
typedef struct tdm_member_status {
    uint64_t step, step_count;
    double samples_per_s;
    const char *run_path;
    const char *phase; /* "starting", "training", "recovering", "saving", "ended" */
} tdm_member_status;
TDM_API void tdm_member_tell(tdm_member *member, const tdm_member_status *status);

/* The endpoint of rank 0 in this epoch. Rank 0 publishes it; the others look it up and wait for it
 * until the epoch has ended (TDM_ERR_PEER_FAILED) or the time is up. */
TDM_API tdm_status tdm_member_publish_endpoint(tdm_member *member, uint32_t epoch,
                                               const char *endpoint, tdm_error *err);
TDM_API tdm_status tdm_member_lookup_endpoint(tdm_member *member, uint32_t epoch, double seconds,
                                              char out[TDM_ENDPOINT_BYTES], tdm_error *err);
/* Whether the epoch is still current according to local information: the lease is valid, and no
 * member of the epoch is known to be gone. For loops that wait. Any thread; cheap. */
TDM_API bool tdm_member_epoch_holds(const tdm_member *member, uint32_t epoch);
/* Checks in the store that the epoch is current. For use before something becomes permanently
 * visible (a checkpoint). TDM_ERR_PEER_FENCED if another epoch is current; otherwise the error of
 * the store. Any thread. */
TDM_API tdm_status tdm_member_confirm(tdm_member *member, uint32_t epoch, tdm_error *err);

/* The revision of the newest request for a checkpoint (tdm_session_ask_save), according to local
 * information; 0: none. Any thread. */
TDM_API uint64_t tdm_member_save_request(tdm_member *member);

/* ---- the training loop ----------------------------------------------------------------------- */

/* Requests of members after a step. The step combines those of all members by OR. */
enum {
    TDM_REQUEST_STOP = 1,   /* end with a checkpoint */
    TDM_REQUEST_REGROUP = 2 /* a member waits to join or was asked to leave */
};

/* How a member of the epoch was lost. */
typedef enum tdm_lost {
    TDM_LOST_NONE = 0, /* not lost */
    TDM_LOST_SILENT,   /* unreachable, but possibly alive */
    TDM_LOST_CLOSED,   /* its connection was closed without a goodbye, as when a process exits */
    TDM_LOST_REFUSED   /* no connection to it is possible: the two do not fit (certificates) */
} tdm_lost;

/* All functions except `interrupt` are called in the thread of tdm_elastic_run. */
typedef struct tdm_elastic_ops {
    /* Opens the world of this epoch and brings all its members to one common state. */
    tdm_status (*enter)(void *user, const tdm_epoch *epoch, tdm_error *err);
    /* Runs one step and the actions due after it. `request`: requests of this member; *requests:
     * those of all members, the same on all. *done: the run has ended, and everything to keep is on
     * disk. */
    tdm_status (*step)(void *user, unsigned request, unsigned *requests, bool *done,
                       tdm_error *err);
    /*
     * Called after enter or step has failed, before leave: whether this member itself could not
     * reach that rank, and how it detected that, for the log. Reports of other ranks do not count,
     * nor ranks that left in good order. It may be called again some milliseconds later. NULL: no
     * rank is named.
     */
    tdm_lost (*lost)(void *user, int rank, char how[TDM_LOST_BYTES]);
    /* Closes the world if it is open. Committed state is kept. */
    void (*leave)(void *user);
    /* Called from another thread, at any time from right before enter until leave: interrupt
     * waiting and computing, for this reason. */
    void (*interrupt)(void *user, const char *why);
} tdm_elastic_ops;

typedef struct tdm_elastic_result {
    bool fenced;     /* the other members continue without this one; it has left */
    bool dismissed;  /* it was asked to leave */
    uint32_t epochs; /* number of epochs in which it was a member */
    uint32_t recoveries;
} tdm_elastic_result;

/*
 * Runs the member until the run ends. Statuses of the peer group from `enter` and `step` end the
 * epoch and lead to the next one. Any other error ends the run for all members with this error as
 * its result. Errors with which other members ended the run are returned as well. TDM_ERR_TIMEOUT
 * if there were too few members for too long. TDM_ERR_PEER_REFUSED if the others continue without
 * this member because it does not fit (its certificate).
 */
TDM_API tdm_status tdm_elastic_run(tdm_member *member, const tdm_elastic_ops *ops, void *user,
                                   tdm_elastic_result *out, tdm_error *err);

#ifdef __cplusplus
}
#endif
#endif
