/*
 * agent.h: what an agent's files share: its workers, its seats, its view of the store.
 */
#ifndef TANDEM_CLUSTER_AGENT_H
#define TANDEM_CLUSTER_AGENT_H

#include "cluster/disk_probe.h"
#include "cluster/log_forward.h"
#include "cluster/session.h"
#include "launch/spawn.h"

#include <tandem/elastic.h>

#include <signal.h>

typedef struct tdm__agent_worker {
    pid_t pid; /* 0: none */
    int slot;
    char id[TDM_MEMBER_ID_BYTES];
    bool was_rank;    /* of an epoch; when a later one is without it, it is fenced */
    bool leaves;      /* it was asked to */
    double outside_s; /* since when an epoch is without it; 0: none is */
    double silent_s;  /* since when a rank is without a record in the store; 0: it has one */
} tdm__agent_worker;

/* One of the workers that shall run here; who sits there may change. */
typedef struct tdm__worker_slot {
    tdm__agent_worker worker;
    double start_at_s; /* INFINITY: nobody is to be started */
    double *starts_s;  /* restarts within the window, oldest first */
    size_t start_count, start_room;
} tdm__worker_slot;

/* How the host is. */
typedef struct tdm__health {
    uint64_t memory_free, memory, disk_free, disk; /* 0: not known */
    bool memory_is_low, disk_is_low;
    bool disk_is_silent;
    char trouble[200]; /* empty: all is well */
} tdm__health;

typedef struct tdm__agent {
    const tdm_agent_options *options;
    tdm_kv *kv;
    tdm_shm *shm;
    tdm__session_slot *slots;
    tdm_cpu_set *places; /* one for each seat; NULL: not pinned */
    tdm__worker_slot *worker_slots;
    int count;
    tdm__agent_worker *orphans; /* alive, but fenced: others have their seats */
    size_t orphan_count, orphan_capacity;
    int streams[2]; /* duplicates of ours, for the worker that speaks */
    int signals;    /* a signalfd */
    sigset_t taken, before, for_workers;

    /* The store. */
    char host_key[TDM_KV_KEY_BYTES];
    char address
        [TDM_HOST_BYTES]; /* where other hosts reach this one; empty: the environment says it, or
                                     there are no others */
    uint64_t lease;
    double beat_at_s, look_at_s;
    bool store_failed;    /* the last call did, which was said */
    bool has_seen;        /* the session */
    bool is_forgotten;    /* the session has ended while this host was cut off, and was removed */
    bool over;            /* there is a verdict */
    bool said_short;      /* that there are too few to begin */
    double short_since_s; /* INFINITY: there are enough */
    char run[4096];       /* folder; empty: not known */

    /* The end. */
    bool stopping, killed;
    bool was_refused; /* a worker: its host does not fit the others */
    int signals_seen;
    double signal_s;  /* when the last one came that counted */
    double kill_at_s; /* INFINITY: not yet */

    tdm__health health;
    tdm__disk_probe *disk_probe; /* of the disk; NULL: not yet */

    /* Crashes at one step. */
    uint64_t crash_step;
    int crash_count;

    /* Lines for the run's log, until they are there. */
    tdm__log_forward lines;
    bool knows_lead; /* where rank 0 is */
    bool is_lead;    /* here */
    bool is_first;   /* of this host's agents: it speaks for the workers, and takes others' lines */
    char lines_path[4096]; /* of the pipe */
    tdm_agent_result result;
} tdm__agent;

/* ---- workers (agent_workers.c) --------------------------------------------------------------------- */

/* Starts who is due. */
void tdm__agent_start_due(tdm__agent *agent, double now_s);
/* Looks who has ended, says so in the store, and decides what follows. */
void tdm__agent_reap(tdm__agent *agent);
/* Makes way for another one in the seat of each that an epoch is without. */
void tdm__agent_replace_fenced(tdm__agent *agent, const tdm_session_view *view);
void tdm__agent_signal(const tdm__agent *agent, int signal_number, bool orphans_too);
int tdm__agent_alive(const tdm__agent *agent); /* in seats */
int tdm__agent_plans(const tdm__agent *agent); /* how many will be started */

/* ---- what happens to a worker that has ended (restart_policy.c) ---------------------------------------- */

/* After it died in this way, having finished so many steps: a time for the next one in the seat, or the
 * end of the session. */
void tdm__agent_judge(tdm__agent *agent, tdm__worker_slot *worker_slot,
                      const tdm__agent_worker *worker, int wait_status, uint64_t step);
/* A time for the next one in the seat, or a warning that there were too many. */
void tdm__agent_plan_restart(tdm__agent *agent, tdm__worker_slot *worker_slot, const char *why);
/* "killed by signal 9 (Killed)", "exit code 3". */
void tdm__agent_how(int wait_status, char *out, size_t bytes);

/* ---- this host's memory (agent_shm.c) ------------------------------------------------------------- */

/* That of workers or agents of the session which run here already, or a new one. */
tdm_status tdm__agent_find_shm(tdm__agent *agent, tdm_error *err);

/* ---- where others reach this host (agent_address.c) -------------------------------------------------- */

void tdm__agent_find_address(tdm__agent *agent);

/* ---- the store (agent_store.c) --------------------------------------------------------------------- */

tdm_status tdm__agent_enter(tdm__agent *agent, tdm_error *err);
void tdm__agent_beat(tdm__agent *agent, double now_s);
/* False when the store does not answer. */
bool tdm__agent_look(tdm__agent *agent, tdm_arena *arena, tdm_session_view *out);
void tdm__agent_put_dead(tdm__agent *agent, const char *id, const char *why, uint64_t step);
void tdm__agent_end_session(tdm__agent *agent, tdm_status status, const char *message);
void tdm__agent_leave(tdm__agent *agent);
/* The last line that the worker printed; empty when there is none. */
void tdm__agent_last_line(const tdm__agent *agent, int slot, char *out, size_t bytes);

/* ---- this host (agent_health.c) ---------------------------------------------------------------------- */

/* Measures it, and says when it has become worse, or better. */
void tdm__agent_check_health(tdm__agent *agent);

/* ---- the run's log (agent_log.c) -------------------------------------------------------------------- */

/* The log's sink: lines of JSON for the run's log. */
void tdm__agent_log(const tdm_log_record *record, void *user);
/* After a look: lines go where rank 0 is. */
void tdm__agent_log_look(tdm__agent *agent, const tdm_session_view *view);
/* The last lines, before it leaves. */
void tdm__agent_log_end(tdm__agent *agent);

#endif
