/*
 * member.h: internal interface of src/membership: the view of a session in the store, the decision
 * what a member does next, and the member itself.
 *
 * There are three layers. epoch*.c read the store once (a view: all keys at one revision) and
 * decide, without side effects, what this member does next. member*.c renew the record of a member
 * and watch the other members: tdm__member_tick is one round of the watcher with a separate store
 * handle, so that a simulator can call it instead of the thread. elastic.c is the loop of the
 * training thread. Waiting and reading the clock happen only through the store (and `pause`), and
 * only the compare-and-swap of the key "epoch" decides anything.
 */
#ifndef TANDEM_MEMBERSHIP_MEMBER_H
#define TANDEM_MEMBERSHIP_MEMBER_H

#include "kv/kv.h"
#include "membership/membership.h"

#include <tandem/os.h>
#include <tandem/text.h>

#include <pthread.h>

enum { TDM__MAX_EPOCH = TDM_MAX_EPOCH_RANKS, TDM__SESSION_BYTES = 128 };

/* ---- view of the store (epoch_view.c) -------------------------------------------------------- */

typedef struct tdm__view_member {
    const char *id, *host;
    int rank; /* in the current epoch; -1: not in it */
    int slot;
    int64_t pid;
    uint64_t born;   /* the revision of its first record */
    double lease_s;  /* without a heartbeat for this time it counts as gone */
    bool has_record; /* in the store */
    bool is_ready;
    bool is_dead; /* its agent has reported its end */
    const char *dead_why;
    double dead_at;
    bool is_excluded; /* by an epoch: it cannot take part any more */
    const char *left_why;
    bool is_refused;   /* excluded because connections with it are refused: cannot join again */
    bool has_reported; /* it has reported that it left the current epoch */
    bool is_regroup;   /* it has reported that it left without a failure */
    bool has_state;    /* it has the run's state: `enter` has succeeded once */
    const char *report_why;
    const char **lost; /* ids of the members that it could not reach */
    int lost_count;
    const char **closed; /* of these: the connection was closed without a BYE */
    int closed_count;
    const char **refused; /* of these: the connection is refused (certificates) */
    int refused_count;
    const char *refusal; /* reason of the refusal */
    bool should_leave;   /* it was asked to leave */
    bool is_busy;        /* its process is on this host and makes progress: see elastic.c */
    uint64_t shm_id;     /* shared memory with its part of the state; 0: unknown */
} tdm__view_member;

/* A host as its agent describes it. */
typedef struct tdm__view_host {
    uint64_t shm_id;
    uint64_t workers, starting; /* running workers, and workers that it is about to start */
} tdm__view_host;

typedef struct tdm__view {
    uint64_t revision;
    uint32_t number; /* of the current epoch; 0: there was none yet */
    uint64_t epoch_revision;
    int size;                  /* of the current epoch */
    tdm__view_member *members; /* of the epoch first, by rank; then all others */
    int count;
    tdm__view_host *hosts;
    int host_count;
    uint32_t state_epoch; /* last epoch that began with one state on all members; 0: none */
    uint64_t state_revision;
    tdm__view_member *holders; /* where the newest state is: host and shm_id of each */
    int holder_count;
    int expected;   /* number of members at the start; 0: unknown */
    bool has_about; /* a launcher has written the session to the store */
    bool should_stop;
    uint64_t save_request; /* revision of the newest request for a checkpoint; 0: none */
    bool has_verdict;      /* the run has ended */
    tdm_status verdict;
    const char *verdict_text;
    const tdm_kv_item *items; /* all keys of the session */
    size_t item_count;
} tdm__view;

/* Reads the session at one revision. All texts are in `arena`. TDM_ERR_FORMAT: the epoch is
 * invalid. */
tdm_status tdm__view_read(tdm_kv *kv, const char *prefix, tdm_arena *arena, tdm__view *out,
                          tdm_error *err);
/* NULL: no member has this id. */
tdm__view_member *tdm__view_find(const tdm__view *view, const char *id);
/* The member has a record and is not reported dead. */
static inline bool tdm__view_alive(const tdm__view_member *m)
{
    return m->has_record && !m->is_dead;
}
/* States of the current epoch: epoch.c has a drawing. */
typedef enum tdm__view_state {
    TDM__VIEW_NONE,   /* there was no epoch yet */
    TDM__VIEW_INTACT, /* all its members are alive and have not left it */
    TDM__VIEW_BROKEN  /* a member is gone or has left: the next epoch is due */
} tdm__view_state;
tdm__view_state tdm__view_epoch_state(const tdm__view *view);
/* The member waits to join and is allowed to. */
bool tdm__view_is_newcomer(const tdm__view *view, const tdm__view_member *m);
/* Whether members that wait to join, or that were asked to leave, are a reason for a new epoch. */
bool tdm__view_newcomers(const tdm__view *view, int max, int *out_count);
bool tdm__view_leavers(const tdm__view *view, int min);

/* ---- the decision (epoch.c, epoch_reach.c) --------------------------------------------------- */

typedef struct tdm__epoch_rules {
    const char *id; /* of the member that decides */
    int min, max;   /* max 0: no limit */
    double wait_s, report_s, settle_s;
    double silence_s; /* longest time that a member stays in an epoch without the store */
    bool needs_all;   /* all hosts of the newest state are needed: each has only a part */
} tdm__epoch_rules;

/* What a member remembers between two views. Times are those of the first view with the condition;
 * -1: it does not hold. */
typedef struct tdm__epoch_history {
    uint32_t left;   /* the last epoch that it has left */
    bool took_part;  /* in any epoch */
    uint32_t number; /* the current epoch of the last view: the times refer to it */
    double broken_s; /* the epoch is broken */
    double failed_s; /* a member has failed, or reported a failure */
    double alone_s;  /* nobody is missing, and no reporter has the state */
    double enough_s; /* the minimum has started, for the first epoch */
    double short_s;  /* there are fewer members than the minimum */
    double due_s;    /* the next epoch can be proposed */
    double away_s;   /* a host with the newest state is missing */
} tdm__epoch_history;

typedef enum tdm__decision {
    TDM__DECISION_WAIT,      /* until `until_s` or a change in the store */
    TDM__DECISION_ENTER,     /* enter the current epoch */
    TDM__DECISION_SKIP,      /* the epoch failed before this member entered it: report that */
    TDM__DECISION_PROPOSE,   /* propose the members in `next` */
    TDM__DECISION_END,       /* the run has ended: there is a verdict */
    TDM__DECISION_FENCED,    /* the run continues without this member */
    TDM__DECISION_DISMISSED, /* this member leaves, as requested */
    TDM__DECISION_REFUSED,   /* fenced, because the other members refuse connections with it */
    TDM__DECISION_GIVE_UP    /* fewer than `min` members for `wait_s` */
} tdm__decision;

typedef struct tdm__epoch_plan {
    double until_s;
    const char *what;         /* what the member waits for, for people */
    int available;            /* number of available members, if it is below the minimum */
    const char *missing_host; /* has the newest state, and the plan waits for it; NULL: none */
    tdm__view_member *next[TDM__MAX_EPOCH];
    int next_count;
} tdm__epoch_plan;

extern const char tdm__asked_to_leave[];
void tdm__epoch_history_init(tdm__epoch_history *history);
/* Changes only `history`, and in the view which members the proposal excludes and why. */
tdm__decision tdm__epoch_decide(tdm__view *view, const tdm__epoch_rules *rules,
                                tdm__epoch_history *history, double now_s, tdm__epoch_plan *plan);
/* Finds the largest set of members in which no member has lost another one, and sets keep[i] for
 * its members. Prefers more members with the state, then more members, then lower ranks. */
void tdm__epoch_reach(tdm__view_member *const *members, int count, bool *keep);

/* ---- texts (epoch_describe.c) ---------------------------------------------------------------- */

/* The next epoch as JSON for the store; tdm_str_ok fails if memory ran out. */
void tdm__epoch_text(const tdm__view *view, const tdm__epoch_plan *plan, const char *by,
                     tdm_str *out);
/* "rank 2 (member a.2.7f31, host a, process 4711)". Returns `buffer`. */
const char *tdm__epoch_name(const tdm__view_member *m, char buffer[256]);
/* One line that describes what the plan changes. */
void tdm__epoch_describe(const tdm__view *view, const tdm__epoch_plan *plan, double took_s,
                         tdm_str *out);

/* ---- a member -------------------------------------------------------------------------------- */

/* Statistics of the intervals between heartbeats (member_lease.c). */
typedef struct tdm__heartbeat_stats {
    double fixed_s; /* lease set by the user; 0: adaptive */
    double mean_s, deviation_s, last_s;
    int count;
} tdm__heartbeat_stats;
void tdm__heartbeat_init(tdm__heartbeat_stats *heartbeats, double fixed_s);
/* A heartbeat has just been sent. */
void tdm__heartbeat_add(tdm__heartbeat_stats *heartbeats, double now_s);
/* Length of the lease: without a heartbeat for this time, the member counts as gone. */
double tdm__heartbeat_lease_s(const tdm__heartbeat_stats *heartbeats);
/* Time from one heartbeat to the next. */
double tdm__heartbeat_interval_s(const tdm__heartbeat_stats *heartbeats);

/* What this process does with the epoch: member.c has a drawing. */
typedef enum tdm__member_state {
    TDM__MEMBER_OUTSIDE, /* before `enter`, or after `leave` */
    TDM__MEMBER_ACTIVE,  /* between `enter` and `leave` */
    TDM__MEMBER_BROKEN   /* the same, and the epoch has ended */
} tdm__member_state;

struct tdm_member {
    char session[TDM__SESSION_BYTES], id[TDM_MEMBER_ID_BYTES], host[TDM_HOST_BYTES];
    char prefix[TDM__SESSION_BYTES + 16]; /* "tandem/SESSION/" */
    int slot, min, max;
    bool needs_all_hosts, is_begun;
    uint64_t shm_id;
    int64_t agent; /* process id of the agent, the initial parent; 0: none */
    double wait_s, report_s;
    /* Handles of the training thread, of the watcher, and one for any thread that holds
     * confirm_lock. */
    tdm_kv *kv, *watch_kv, *confirm_kv;
    pthread_mutex_t confirm_lock;
    void (*pause)(void *user, double seconds);
    void *pause_user;
    pthread_t thread;
    bool has_thread;

    /* Used by the watcher only. */
    tdm_arena *watch_arena;
    tdm__heartbeat_stats heartbeats;
    double lease_asked_s; /* length of the lease */
    double beat_s;        /* when the next heartbeat is due */
    double record_s;      /* when the record was last written */
    double newcomers_s, epoch_seen_s, verdict_s;
    int newcomer_count;
    uint32_t seen_epoch;
    bool store_is_silent;
    uint32_t leases_epoch;           /* the epoch that leases_s refers to */
    double leases_s[TDM__MAX_EPOCH]; /* lease lengths of its members, by rank; 0: unknown */

    /* Held while ops->interrupt runs, so that the epoch does not end meanwhile; taken before `lock`. */
    pthread_mutex_t interrupt_lock;
    /* Shared, under `lock`, which is never held during a call to the store or a call of `ops`. */
    pthread_mutex_t lock;
    bool should_stop; /* the watcher thread ends */
    uint64_t lease, born;
    bool is_ready, record_is_old;
    bool is_orphan; /* the agent is gone */
    tdm__member_state state;
    uint32_t epoch; /* the current or last epoch of this member; 0: none yet */
    tdm_member_status status;
    char status_run[1024], status_phase[32];
    double heard_s; /* when the last call was sent that the store answered */
    unsigned request;
    uint64_t save_request;
    char why[400];              /* in state BROKEN: why the epoch has ended */
    const tdm_elastic_ops *ops; /* in states ACTIVE and BROKEN */
    void *user;
};

/* As tdm_member_create, but with the caller's handles, which are taken, and without a thread: the
 * caller calls tdm__member_tick repeatedly instead. */
typedef struct tdm__member_parts {
    tdm_kv *kv, *watch_kv, *confirm_kv;
    void (*pause)(void *user, double seconds);
    void *user;
} tdm__member_parts;
tdm_status tdm__member_create_with(const tdm_member_options *options,
                                   const tdm__member_parts *parts, tdm_member **out,
                                   tdm_error *err);
/* One round of the watcher: sends a heartbeat if it is due, evaluates the view, and waits for a
 * change in the store or until the next heartbeat is due. */
void tdm__member_tick(tdm_member *member);
tdm_status tdm__member_put_record(tdm_member *member, tdm_kv *kv, uint64_t lease, tdm_error *err);
/* How long the store may not respond before this member leaves. */
double tdm__member_silence_limit_s(const tdm_member *member);
void tdm__member_heard(tdm_member *member, double now_s);
/* Formats a key below "tandem/SESSION/". */
void tdm__member_key(const tdm_member *member, char out[TDM_KV_KEY_BYTES], const char *fmt, ...)
    TDM_PRINTF(3, 4);

#endif
