/*
 * membership.h: the interface of module membership for the modules above it.
 *
 * <tandem/elastic.h> declares how a program becomes a member of a session. This header adds the
 * loop over membership epochs and what a member tells the others; libtandem.so does not export it.
 */
#ifndef TANDEM_MEMBERSHIP_MEMBERSHIP_H
#define TANDEM_MEMBERSHIP_MEMBERSHIP_H

#include <tandem/elastic.h>

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
    uint64_t sent_bytes; /* by all replicas in a step, compressed; 0: nothing is compressed */
    double compression;  /* their size as f32, relative to that */
    const char *run_path;
    const char *phase; /* "starting", "training", "recovering", "saving", "ended" */
} tdm_member_status;
void tdm_member_tell(tdm_member *member, const tdm_member_status *status);

/* The endpoint of rank 0 in this epoch. Rank 0 publishes it; the others look it up and wait for it
 * until the epoch has ended (TDM_ERR_PEER_FAILED) or the time is up. */
tdm_status tdm_member_publish_endpoint(tdm_member *member, uint32_t epoch, const char *endpoint,
                                       tdm_error *err);
tdm_status tdm_member_lookup_endpoint(tdm_member *member, uint32_t epoch, double seconds,
                                      char out[TDM_ENDPOINT_BYTES], tdm_error *err);
/* Whether the epoch is still current according to local information: the lease is valid, and no
 * member of the epoch is known to be gone. For loops that wait. Any thread; cheap. */
bool tdm_member_epoch_holds(const tdm_member *member, uint32_t epoch);
/* Checks in the store that the epoch is current. For use before something becomes permanently
 * visible (a checkpoint). TDM_ERR_PEER_FENCED if another epoch is current; otherwise the error of
 * the store. Any thread. */
tdm_status tdm_member_confirm(tdm_member *member, uint32_t epoch, tdm_error *err);

/* The revision of the newest request for a checkpoint (tdm_session_ask_save), according to local
 * information; 0: none. Any thread. */
uint64_t tdm_member_save_request(tdm_member *member);

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
tdm_status tdm_elastic_run(tdm_member *member, const tdm_elastic_ops *ops, void *user,
                           tdm_elastic_result *out, tdm_error *err);

#endif
