/*
 * elastic.h: who takes part in a run, epoch by epoch, and the loop that goes on when somebody dies.
 *
 * A session is one life of a run: from `tandem train` to its end. Its members are worker processes, each
 * with a name of its own that is never used again. They meet in the store (kv.h), below
 * "tandem/SESSION/":
 *     about            the session: job, run folder, limits, when it began (JSON)
 *     hosts/HOST       an agent's record, on its lease: address, health
 *     members/ID       a worker's record, on its lease: host, process, what it does, step, speed
 *     dead/ID          written by whoever is sure that a worker is gone (its agent), with the reason
 *     reports/N/ID     a member of epoch N has left it, and why; whom it could not reach
 *     epoch            the epoch that counts now: its number and members, in order of rank
 *     door/N           where rank 0 of epoch N listens
 *     wishes/...       what users ask for: stop, leave, save
 *     saved            what became of the last checkpoint that was asked for
 *     verdict          the run has ended, and how: nobody starts again
 * `epoch` changes by compare-and-swap alone, so there is one sequence of epochs, whoever proposes them.
 *
 * All values are JSON objects. Fields that others than their writers look at, besides what the writers like:
 *     about            expected: how many workers are started at the beginning
 *     members/ID       host, slot, pid, agent (the process that started it), orphan (that is gone), born
 *                      (revision of its first record), ready (it waits to join, or takes part), epoch (its
 *                      last one; 0: none), phase, step, steps, speed, run, lease_s
 *     dead/ID          why ("killed by signal 9"), at (tdm_kv_now of its host when that was noticed)
 *     reports/N/ID     why, regroup (true: nothing failed), whole (it has the state), lost: [ID, ...],
 *                      closed: [ID, ...], those of them whose connection was closed without a good-bye,
 *                      refused: [ID, ...], those with whom no connection can be made (certificates),
 *                      refusal: why
 *     epoch            number, members: [{id, host, pid}, ...], left: [{id, why, refused}, ...], by
 *     wishes/stop, wishes/leave/ID, wishes/save/DRAWN   why (may be absent)
 *     saved            step, path, status (a number; 0: it is on the disk), message
 *     verdict          status (a number; 0: ended well), message, by
 *
 * When a member fails, the others leave the epoch and report. The lowest of those that reported waits
 * until all who are not known to be dead have done so, or their time is up, and proposes the next epoch:
 * the reporters that reach each other (the larger side where a network is cut; of equal sides the one
 * with the lowest rank), and who waits to join, up to the maximum. Who finds an epoch without itself is
 * fenced: it leaves and writes nothing. A member that cannot reach the store for as long as its lease
 * lasts, and for 10 s at least, knows nothing any more, and leaves as well.
 */
#ifndef TANDEM_ELASTIC_H
#define TANDEM_ELASTIC_H

#include <tandem/base.h>
#include <tandem/kv.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TDM_MAX_EPOCH_RANKS = 512 }; /* of one session at a time */
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
    const char *id;   /* unique for ever: "HOST.SLOT.DRAWN" */
    const char *host; /* by which members that share memory know each other */
    int slot;         /* on its host */
    int64_t agent;    /* the process that started it and watches it; 0: none */
    int min, max;     /* members of an epoch (1, no limit) */
    double wait_s;    /* for the minimum, before the run is given up (600) */
    double
        lease_s; /* without a sign of life after which a member counts as gone (by how regular these
                       * have been: 1 to 30) */
    double report_s;      /* that others have to report when an epoch has failed (2) */
    uint64_t shm_id;      /* the vault in which it keeps its part of the state (tdm_shm_id) */
    bool needs_all_hosts; /* each host has a part of the state alone */
    bool
        is_begun; /* a launcher has put the session into the store: when it is gone, it has ended */
} tdm_member_options;

/* What TANDEM_MEMBER and its company in the environment say (an agent sets them). TDM_ERR_NOT_FOUND
 * when nobody did. Texts live as long as the environment. */
TDM_API tdm_status tdm_member_environment(tdm_member_options *out, tdm_error *err);

/* Registers as one who waits to join. A thread of its own keeps the lease, watches the others, and counts
 * what `tdm_member_tell` says. */
TDM_API tdm_status tdm_member_create(const tdm_member_options *options, tdm_member **out,
                                     tdm_error *err);
/* Takes its record away, and says good-bye. */
TDM_API void tdm_member_destroy(tdm_member *member);
TDM_API const char *tdm_member_id(const tdm_member *member);

typedef struct tdm_epoch_member {
    char id[TDM_MEMBER_ID_BYTES];
    char host[TDM_HOST_BYTES];
} tdm_epoch_member;

typedef struct tdm_epoch {
    uint32_t number; /* from 1 */
    /* The last epoch that began with all its members at one state; 0: none did. What a host has of the
     * state counts when it has it from that epoch, or from a later one that failed as it began. Members may
     * have looked at different moments: rank 0's number is the one that counts. */
    uint32_t lineage;
    int size, rank; /* this member's */
    const tdm_epoch_member
        *members; /* by rank: those that stay keep their order; newcomers behind */
} tdm_epoch;

/* What this member does, for `tandem ps`: sent with the next sign of life. Any thread. */
typedef struct tdm_member_status {
    uint64_t step, step_count;
    double samples_per_s;
    const char *run_path;
    const char *phase; /* "starting", "training", "recovering", "saving", "ended" */
} tdm_member_status;
TDM_API void tdm_member_tell(tdm_member *member, const tdm_member_status *status);

/* Where rank 0 listens in this epoch: put by rank 0, awaited by the others, who give up when the epoch
 * is over (TDM_ERR_PEER_FAILED) or the time is. */
TDM_API tdm_status tdm_member_publish_endpoint(tdm_member *member, uint32_t epoch, const char *door,
                                               tdm_error *err);
TDM_API tdm_status tdm_member_lookup_endpoint(tdm_member *member, uint32_t epoch, double seconds,
                                              char out[TDM_ENDPOINT_BYTES], tdm_error *err);
/* Whether the epoch still counts, as far as this process knows without asking: the lease is kept, and
 * nobody of the epoch is known to be gone. For loops that wait; any thread; cheap. */
TDM_API bool tdm_member_epoch_holds(const tdm_member *member, uint32_t epoch);
/* The same, but asks the store: before something is made visible for good (a checkpoint). Fails with
 * TDM_ERR_PEER_FENCED when another epoch counts, or with what keeps the store from answering. Any thread. */
TDM_API tdm_status tdm_member_confirm(tdm_member *member, uint32_t epoch, tdm_error *err);

/* Somebody has asked for a checkpoint (tdm_session_ask_save): the revision of the newest wish, as far as
 * is known without asking; 0: nobody has. Any thread. */
TDM_API uint64_t tdm_member_save_request(tdm_member *member);

/* ---- the loop --------------------------------------------------------------------------------- */

/* What members want after a step; or-ed over all by the step itself. */
enum {
    TDM_REQUEST_STOP = 1,   /* end with a checkpoint */
    TDM_REQUEST_REGROUP = 2 /* somebody waits to join, or was asked to leave */
};

/* How a member of the epoch was lost. */
typedef enum tdm_lost {
    TDM_LOST_NONE = 0, /* it was not */
    TDM_LOST_SILENT,   /* it cannot be reached, and may live */
    TDM_LOST_CLOSED,   /* its connection was closed without a good-bye, as when a process ends */
    TDM_LOSS_REFUSED   /* no connection with it can be made: the two do not fit (certificates) */
} tdm_lost;

/* All calls but `interrupt` come from the thread of tdm_elastic_run. */
typedef struct tdm_elastic_ops {
    /* Opens the world of this epoch, and brings all its members to one state, whatever they were. */
    tdm_status (*enter)(void *user, const tdm_epoch *epoch, tdm_error *err);
    /* Goes on by one step, with what is due after it. `wish`: this member's; *wishes: of all of them, the
     * same for all. *done: the run has ended, and all that is to be kept is on disk. */
    tdm_status (*step)(void *user, unsigned request, unsigned *requests, bool *done,
                       tdm_error *err);
    /* After enter or step has failed, before leave: whether this member itself could not reach that rank
     * (told by others does not count, nor who left in good order), and how it noticed, for the log. It may
     * be asked again some milliseconds later.
     * NULL: nobody is named. */
    tdm_lost (*lost)(void *user, int rank, char how[TDM_LOST_BYTES]);
    /* Closes the world, if it is open. What was committed stays where it is. */
    void (*leave)(void *user);
    /* From another thread, at any time from right before enter until leave: break off what waits or
     * computes, because of this. */
    void (*interrupt)(void *user, const char *why);
} tdm_elastic_ops;

typedef struct tdm_elastic_result {
    bool fenced;     /* the others go on without this member; it has left quietly */
    bool dismissed;  /* it was asked to leave */
    uint32_t epochs; /* that it took part in */
    uint32_t recoveries;
} tdm_elastic_result;

/*
 * Takes part until the run ends. Statuses of the peer group from `enter` and `step` end the epoch and
 * lead to the next one; any other error ends the run for all, with this error as its verdict. Others'
 * verdicts come back as errors, too. TDM_ERR_TIMEOUT when there were too few members for too long.
 * TDM_ERR_PEER_REFUSED when the others continue without this member because it does not fit (its certificate).
 */
TDM_API tdm_status tdm_elastic_run(tdm_member *member, const tdm_elastic_ops *ops, void *user,
                                   tdm_elastic_result *out, tdm_error *err);

#ifdef __cplusplus
}
#endif
#endif
