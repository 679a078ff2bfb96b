/*
 * member.h: what the files of members and epochs share: a look at the session's part of the store, the
 * decision what to do about it, and a member.
 *
 * Three layers. epoch*.c read the store once (a view: all keys at one revision) and decide, without side
 * effects, what this member is to do next. member*.c keep a member's record alive and watch the others:
 * tdm__member_tick is one round of that, over a handle of its own, so that a simulator can call it in place
 * of the thread. elastic.c is the loop of the thread that trains. Nothing here blocks or looks at a clock
 * but through the store (and `pause`), and only the swap of "epoch" decides anything.
 */
#ifndef TANDEM_MEMBERSHIP_MEMBER_H
#define TANDEM_MEMBERSHIP_MEMBER_H

#include "kv/kv.h"

#include <tandem/elastic.h>
#include <tandem/os.h>
#include <tandem/text.h>

#include <pthread.h>

enum { TDM__MAX_EPOCH = TDM_MAX_EPOCH_RANKS, TDM__SESSION_BYTES = 128 };

/* ---- a look at the store (epoch_view.c) ------------------------------------------------------ */

typedef struct tdm__view_member {
    const char *id, *host;
    int rank; /* in the epoch that counts; -1: it is not in it */
    int slot;
    int64_t pid;
    uint64_t born;  /* the revision of its first record */
    double lease_s; /* after which it counts as gone */
    bool is_here;   /* its record is there */
    bool is_ready;
    bool is_dead; /* somebody is sure of that */
    const char *dead_why;
    double dead_at;
    bool is_left_out; /* it was in an earlier epoch, or could have been, and is not any more */
    const char *left_why;
    bool is_refused; /* it was left out because it does not fit the others: it cannot join again */
    bool has_reported; /* that it has left the epoch that counts */
    bool is_regroup;   /* and that nothing failed */
    bool is_whole;     /* it has the run's state: it has once come through enter */
    const char *report_why;
    const char **lost; /* whom it could not reach, by their names */
    int lost_count;
    const char **closed; /* of these: whose connection was closed without a good-bye */
    int closed_count;
    const char **refused; /* of these: with whom no connection can be made (certificates) */
    int refused_count;
    const char *refusal; /* why */
    bool should_leave;   /* was asked to */
    bool is_busy;        /* its process is on this host, and makes progress: see elastic.c */
    uint64_t shm_id;     /* in which it keeps its part of the state; 0: unknown */
} tdm__view_member;

/* A host as its agent describes it. */
typedef struct tdm__view_host {
    uint64_t shm_id;
    uint64_t workers, starting; /* that run, and that it is about to start */
} tdm__view_host;

typedef struct tdm__view {
    uint64_t revision;
    uint32_t number; /* of the epoch that counts; 0: there was none yet */
    uint64_t epoch_revision;
    int size;                  /* of it */
    tdm__view_member *members; /* those of the epoch first, by rank; then all others */
    int count;
    tdm__view_host *hosts;
    int host_count;
    uint32_t state_epoch; /* the last one that began with all its members at one state; 0: none */
    uint64_t state_revision;
    tdm__view_member *holders; /* where the newest state is: hosts and vault_ids of its members */
    int holder_count;
    int expected;   /* at the beginning; 0: nobody said */
    bool has_about; /* a launcher has put the session into the store */
    bool should_stop;
    uint64_t save_wish; /* revision of the newest wish for a checkpoint; 0: there is none */
    bool has_verdict;
    tdm_status verdict;
    const char *verdict_text;
    const tdm_kv_item *items; /* all that was there */
    size_t item_count;
} tdm__view;

/* All texts come from `arena`. TDM_ERR_FORMAT: the epoch cannot be read. */
tdm_status tdm__view_read(tdm_kv *kv, const char *prefix, tdm_arena *arena, tdm__view *out,
                          tdm_error *err);
/* NULL: it is unknown. */
tdm__view_member *tdm__view_find(const tdm__view *view, const char *id);
/* Has a record, and nobody said that it is dead. */
static inline bool tdm__view_alive(const tdm__view_member *m)
{
    return m->is_here && !m->is_dead;
}
/* Somebody of the epoch is gone, or has left it. */
bool tdm__view_is_broken(const tdm__view *view);
/* The epoch that counts goes on well, so that who was asked to leave may go at once if it is not in it. */
bool tdm__view_can_spare(const tdm__view *view);
/* It waits to join, and may. */
bool tdm__view_is_newcomer(const tdm__view *view, const tdm__view_member *m);
/* Whether those who wait, or who were asked to leave, make a new epoch worth while. */
bool tdm__view_newcomers(const tdm__view *view, int max, int *out_count);
bool tdm__view_leavers(const tdm__view *view, int min);

/* ---- the decision (epoch.c, epoch_reach.c) --------------------------------------------------- */

typedef struct tdm__epoch_rules {
    const char *id; /* who decides */
    int min, max;   /* max 0: no limit */
    double wait_s, report_s, settle_s;
    double silence_s; /* after which nobody goes on in an epoch without the store */
    bool needs_all;   /* hosts that have the newest state, to go on from it: each has a part */
} tdm__epoch_rules;

/* What a member remembers between two looks. Times are -1 when they have not begun. */
typedef struct tdm__epoch_history {
    uint32_t left; /* the last epoch that it has left */
    bool took_part;
    uint32_t number; /* the epoch that counted at the last look: the times are about it */
    double broken_s, failed_s, alone_s, enough_s, short_s, due_s, away_s;
} tdm__epoch_history;

typedef enum tdm__decision {
    TDM__DECISION_WAIT,      /* until `until_s`, or until something changes */
    TDM__DECISION_ENTER,     /* the epoch that counts */
    TDM__DECISION_SKIP,      /* it has failed before this member entered it: report that */
    TDM__DECISION_PROPOSE,   /* `next` */
    TDM__DECISION_END,       /* there is a verdict */
    TDM__DECISION_FENCED,    /* others go on without this member */
    TDM__DECISION_DISMISSED, /* as was asked for */
    TDM__DECISION_REFUSED,   /* others go on without this member, which does not fit them */
    TDM__DECISION_GIVE_UP    /* too few for too long */
} tdm__decision;

typedef struct tdm__epoch_plan {
    double until_s;
    const char *what; /* is waited for, for people */
    int here;         /* how many could take part, when that is too few */
    const char *away; /* a host that has the newest state and is waited for; NULL: none */
    tdm__view_member *next[TDM__MAX_EPOCH];
    int next_count;
} tdm__epoch_plan;

extern const char tdm__asked_to_leave[];
void tdm__epoch_history_init(tdm__epoch_history *memo);
/* Pure but for `memo`. Marks in the view who would be left out, and why. */
tdm__decision tdm__epoch_decide(tdm__view *view, const tdm__epoch_rules *rules,
                                tdm__epoch_history *memo, double now_s, tdm__epoch_plan *plan);
/* Of members 0 to count - 1 the largest set in which nobody has lost anybody, as flags: the one with the
 * most that have the state; of equal ones that with the most members; of equal ones that with the lowest. */
void tdm__epoch_reach(tdm__view_member *const *members, int count, bool *keep);

/* ---- texts (epoch_describe.c) ---------------------------------------------------------------- */

/* The next epoch, as it is put; tdm_str_ok says whether there was memory. */
void tdm__epoch_text(const tdm__view *view, const tdm__epoch_plan *plan, const char *by,
                     tdm_str *out);
/* "rank 2 (member a.2.7f31, host a, process 4711)". Returns `buffer`. */
const char *tdm__epoch_name(const tdm__view_member *m, char buffer[256]);
/* One line on what the plan changes. */
void tdm__epoch_describe(const tdm__view *view, const tdm__epoch_plan *plan, double took_s,
                         tdm_str *out);

/* ---- a member -------------------------------------------------------------------------------- */

/* How long signs of life take, by what was observed (member_lease.c). */
typedef struct tdm__heartbeat_stats {
    double fixed_s; /* not 0: the user's */
    double mean_s, deviation_s, last_s;
    int count;
} tdm__heartbeat_stats;
void tdm__heartbeat_init(tdm__heartbeat_stats *heartbeats, double fixed_s);
/* A sign of life has just been given. */
void tdm__heartbeat_add(tdm__heartbeat_stats *heartbeats, double now_s);
/* Without one for so long, the member counts as gone. */
double tdm__heartbeat_lease_s(const tdm__heartbeat_stats *heartbeats);
/* From one to the next. */
double tdm__heartbeat_interval_s(const tdm__heartbeat_stats *heartbeats);

struct tdm_member {
    char session[TDM__SESSION_BYTES], id[TDM_MEMBER_ID_BYTES], host[TDM_HOST_BYTES];
    char prefix[TDM__SESSION_BYTES + 16]; /* "tandem/SESSION/" */
    int slot, min, max;
    bool needs_all_hosts, is_begun;
    uint64_t shm_id;
    int64_t agent; /* our parent at first; 0: none */
    double wait_s, report_s;
    /* The training thread's, the watcher's, and one for whoever asks, under `confirm_lock`. */
    tdm_kv *kv, *watch_kv, *confirm_kv;
    pthread_mutex_t confirm_lock;
    void (*pause)(void *user, double seconds);
    void *pause_user;
    pthread_t thread;
    bool has_thread;

    /* The watcher's own. */
    tdm_arena *watch_arena;
    tdm__heartbeat_stats heartbeats;
    double lease_asked_s; /* the lease's length */
    double beat_s;        /* when the next sign of life is due */
    double record_s;      /* when the record was put last */
    double newcomers_s, epoch_seen_s, verdict_s;
    int newcomer_count;
    uint32_t seen_epoch;
    bool store_is_silent;
    uint32_t leases_epoch;           /* whose members have ... */
    double leases_s[TDM__MAX_EPOCH]; /* ... promised signs of life so often */

    /* Shared, under `lock`, which nobody holds while the store is asked. */
    pthread_mutex_t lock;
    bool should_stop; /* the thread */
    uint64_t lease, born;
    bool is_ready, record_is_old;
    bool is_orphan; /* the agent is gone */
    uint32_t epoch; /* the last one taken part in, for people */
    tdm_member_status status;
    char status_run[1024], status_phase[32];
    double heard_s; /* when the store answered last */
    unsigned request;
    uint64_t save_wish;
    uint32_t active; /* the epoch between enter and leave; 0: none */
    bool is_broken;  /* it is over */
    char why[400];   /* and why */
    const tdm_elastic_ops *ops;
    void *user;
};

/* As tdm_member_create, but with handles of the caller's (they are taken), and without a thread: call
 * tdm__member_tick in its place, again and again. */
typedef struct tdm__member_parts {
    tdm_kv *kv, *watch_kv, *confirm_kv;
    void (*pause)(void *user, double seconds);
    void *user;
} tdm__member_parts;
tdm_status tdm__member_create_with(const tdm_member_options *options,
                                   const tdm__member_parts *parts, tdm_member **out,
                                   tdm_error *err);
/* One round: a sign of life when it is due, a look at the others, and a wait until something happens or
 * the next sign of life is due. */
void tdm__member_tick(tdm_member *member);
tdm_status tdm__member_put_record(tdm_member *member, tdm_kv *kv, uint64_t lease, tdm_error *err);
/* How long the store may be silent before this member leaves. */
double tdm__member_silence_limit_s(const tdm_member *member);
void tdm__member_heard(tdm_member *member, double now_s);
/* "tandem/SESSION/" and more. */
void tdm__member_key(const tdm_member *member, char out[TDM_KV_KEY_BYTES], const char *fmt, ...)
    TDM_PRINTF(3, 4);

#endif
