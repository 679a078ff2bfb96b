/*
 * agent.h: declarations shared by the files of the agent: its workers, its worker slots, its view
 * of the store.
 */
#ifndef TANDEM_CLUSTER_AGENT_H
#define TANDEM_CLUSTER_AGENT_H

#include "cluster/disk_probe.h"
#include "cluster/log_forward.h"
#include "cluster/session.h"
#include "launch/processes.h"
#include "os/os.h"

#include <tandem/elastic.h>

#include <signal.h>

/* What the store says about a worker process: see agent_workers.c. */
typedef enum tdm__worker_state {
    TDM__WORKER_NEW,     /* it has not been a rank yet */
    TDM__WORKER_RANK,    /* it is a rank of the current epoch */
    TDM__WORKER_SILENT,  /* it is a rank, but its record in the store has expired */
    TDM__WORKER_OUTSIDE, /* it was a rank, and the current epoch is without it */
    TDM__WORKER_LEAVING, /* it was asked to leave */
    TDM__WORKER_ORPHAN,  /* it still runs, but another process has its worker slot */
} tdm__worker_state;

typedef struct tdm__worker_slot tdm__worker_slot;

/* A running process; allocated. */
typedef struct tdm__agent_worker {
    tdm__process process; /* first */
    tdm__worker_slot *worker_slot;
    int slot;
    char id[TDM_MEMBER_ID_BYTES];
    tdm__worker_state state;
    double state_s; /* since when it is in this state */
} tdm__agent_worker;

/* One of the workers that this agent keeps running; the process in it may change. */
struct tdm__worker_slot {
    struct tdm__agent *agent;
    tdm__agent_worker *worker;   /* NULL: none */
    tdm__loop_timer start_timer; /* a start is planned */
    double *starts_s;            /* restarts within the window, oldest first */
    size_t start_count, start_room;
};

/* The agent itself: see agent.c. */
typedef enum tdm__agent_phase {
    TDM__AGENT_RUNNING,
    TDM__AGENT_STOPPING, /* its workers were asked to end; it starts none */
    TDM__AGENT_OVER,     /* the session has ended */
} tdm__agent_phase;

/* The condition of the host. */
typedef struct tdm__health {
    uint64_t memory_free, memory, disk_free, disk; /* 0: not known */
    bool memory_is_low, disk_is_low;
    bool disk_is_silent;
    char trouble[200]; /* empty: none */
} tdm__health;

typedef struct tdm__agent {
    const tdm_agent_options *options;
    tdm_kv *kv;
    tdm_shm *shm;
    tdm__session_slot *slots;
    tdm_cpu_set *places; /* one for each worker slot; NULL: not pinned */
    tdm__worker_slot *worker_slots;
    int count;
    int streams[2]; /* duplicates of stdout and stderr, for rank 0 */

    tdm__loop *loop;
    tdm__processes workers; /* of the worker slots */
    tdm__processes orphans; /* alive, but fenced or silent */
    sigset_t for_workers;   /* initial signal mask */
    tdm__agent_phase phase;
    int signals_seen;
    double signal_s; /* time of the last signal that counted */

    /* Store. */
    char host_key[TDM_KV_KEY_BYTES];
    /* address for other hosts; empty: from the environment, or unused */
    char address[TDM_HOST_BYTES];
    uint64_t lease;
    tdm__loop_timer beat_timer, look_timer;
    bool store_failed;    /* the last call failed, and that was logged */
    bool has_seen;        /* the session was found in the store */
    bool is_forgotten;    /* the session ended and was removed while this host was cut off */
    bool said_short;      /* the shortage of workers was logged */
    double short_since_s; /* INFINITY: there are enough */
    char run[4096];       /* run directory; empty: not known */

    bool is_fixed;    /* workers are not replaced: the session ends when one dies */
    bool was_refused; /* the others refuse the workers of this host */
    tdm__health health;
    tdm__disk_probe *disk_probe; /* NULL: not yet created */

    /* Crashes at the same step. */
    uint64_t crash_step;
    int crash_count;

    /* Log lines on their way to the run's log. */
    tdm__log_forward lines;
    bool knows_lead; /* it is known on which host rank 0 is */
    bool is_lead;    /* rank 0 is on this host */
    bool is_first;   /* first agent of this host: handles the lines of workers and of other hosts */
    char lines_path[4096]; /* path of the pipe */
    tdm_agent_result result;
} tdm__agent;

/* ---- shutdown (agent.c) ---------------------------------------------------------------------- */

/* The workers did not exit in time and are about to be killed; `user` is the agent. */
void tdm__agent_on_late(void *user);

/* ---- workers (agent_workers.c) --------------------------------------------------------------- */

/* Prepares the worker slots and plans the first start of each. */
tdm_status tdm__agent_open_slots(tdm__agent *agent, tdm_error *err);
void tdm__agent_close_slots(tdm__agent *agent);
/* Frees the worker slot of each worker that is missing in the current epoch, for a replacement. */
void tdm__agent_replace_fenced(tdm__agent *agent, const tdm_session_view *view);
int tdm__agent_plans(const tdm__agent *agent); /* planned starts */
/* Asks a worker to leave the session. */
void tdm__agent_ask_to_leave(tdm__agent *agent, const tdm__agent_worker *worker, const char *why);

/* ---- restart policy (restart_policy.c) ------------------------------------------------------- */

/* Decides what follows after a worker exited with this status, after `step` completed steps: a
 * restart of the worker slot, or the end of the session. */
void tdm__agent_judge(tdm__agent *agent, tdm__worker_slot *worker_slot,
                      const tdm__agent_worker *worker, int wait_status, uint64_t step);
/* Schedules a restart of the worker slot, or warns that there were too many. */
void tdm__agent_plan_restart(tdm__agent *agent, tdm__worker_slot *worker_slot, const char *why);

/* ---- shared memory (agent_shm.c) ------------------------------------------------------------- */

/* Opens the shared memory segment that processes of the session on this host already use, or
 * creates one. */
tdm_status tdm__agent_find_shm(tdm__agent *agent, tdm_error *err);

/* ---- address of this host (agent_address.c) -------------------------------------------------- */

void tdm__agent_find_address(tdm__agent *agent);

/* ---- store (agent_store.c) ------------------------------------------------------------------- */

tdm_status tdm__agent_enter(tdm__agent *agent, tdm_error *err);
/* Keeps the lease and updates the record of this agent, and plans the next time. */
void tdm__agent_beat(tdm__agent *agent);
/* Reads the store in this turn of the loop. */
void tdm__agent_look_soon(tdm__agent *agent);
/* False if the store does not respond. */
bool tdm__agent_look(tdm__agent *agent, tdm_arena *arena, tdm_session_view *out);
void tdm__agent_put_dead(tdm__agent *agent, const char *id, const char *why, uint64_t step);
void tdm__agent_end_session(tdm__agent *agent, tdm_status status, const char *message);
void tdm__agent_leave(tdm__agent *agent);
/* The last line that the worker printed; empty if none. */
void tdm__agent_last_line(const tdm__agent *agent, int slot, char *out, size_t bytes);

/* ---- host health (agent_health.c) ------------------------------------------------------------ */

/* Measures memory and disk, and logs when they become low or recover. */
void tdm__agent_check_health(tdm__agent *agent);

/* ---- run log (agent_log.c) ------------------------------------------------------------------- */

/* Log sink: adds a line of JSON for the run's log. */
void tdm__agent_log(const tdm_log_record *record, void *user);
/* Called after reading the store: sends waiting lines to the host of rank 0. */
void tdm__agent_log_look(tdm__agent *agent, const tdm_session_view *view);
/* Delivers the last lines before the agent exits. */
void tdm__agent_log_end(tdm__agent *agent);

#endif
