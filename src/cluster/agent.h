/*
 * agent.h: declarations shared by the files of the agent: its workers, its worker slots, its view
 * of the store.
 */
#ifndef TANDEM_CLUSTER_AGENT_H
#define TANDEM_CLUSTER_AGENT_H

#include "cluster/disk_probe.h"
#include "cluster/log_forward.h"
#include "cluster/session.h"
#include "launch/spawn.h"
#include "os/os.h"

#include <tandem/elastic.h>

#include <signal.h>

typedef struct tdm__agent_worker {
    pid_t pid; /* 0: none */
    int slot;
    char id[TDM_MEMBER_ID_BYTES];
    bool was_rank;    /* it was a rank; when it is missing in a later epoch, it is fenced */
    bool leaves;      /* it was asked to leave */
    double outside_s; /* since when it is missing in the current epoch; 0: it is a member */
    double silent_s;  /* since when it is a rank without a record in the store; 0: it has one */
} tdm__agent_worker;

/* One of the workers that this agent keeps running; the process in it may change. */
typedef struct tdm__worker_slot {
    tdm__agent_worker worker;
    double start_at_s; /* INFINITY: no start is due */
    double *starts_s;  /* restarts within the window, oldest first */
    size_t start_count, start_room;
} tdm__worker_slot;

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
    tdm__agent_worker *orphans; /* alive, but fenced: other processes have their worker slots */
    size_t orphan_count, orphan_capacity;
    int streams[2]; /* duplicates of stdout and stderr, for rank 0 */
    int signals;    /* a signalfd */
    sigset_t taken, before, for_workers;

    /* Store. */
    char host_key[TDM_KV_KEY_BYTES];
    /* address for other hosts; empty: from the environment, or unused */
    char address[TDM_HOST_BYTES];
    uint64_t lease;
    double beat_at_s, look_at_s;
    bool store_failed;    /* the last call failed, and that was logged */
    bool has_seen;        /* the session was found in the store */
    bool is_forgotten;    /* the session ended and was removed while this host was cut off */
    bool over;            /* the session has ended */
    bool said_short;      /* the shortage of workers was logged */
    double short_since_s; /* INFINITY: there are enough */
    char run[4096];       /* run directory; empty: not known */

    /* Shutdown. */
    bool stopping, killed;
    bool was_refused; /* a worker: its host does not fit the others */
    int signals_seen;
    double signal_s;  /* time of the last signal that counted */
    double kill_at_s; /* INFINITY: not yet */

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

/* ---- workers (agent_workers.c) --------------------------------------------------------------- */

/* Starts the workers that are due. */
void tdm__agent_start_due(tdm__agent *agent, double now_s);
/* Collects workers that have exited, reports them in the store and applies the restart policy. */
void tdm__agent_reap(tdm__agent *agent);
/* Frees the worker slot of each worker that is missing in the current epoch, for a replacement. */
void tdm__agent_replace_fenced(tdm__agent *agent, const tdm_session_view *view);
void tdm__agent_signal(const tdm__agent *agent, int signal_number, bool orphans_too);
int tdm__agent_alive(const tdm__agent *agent); /* running workers in worker slots */
int tdm__agent_plans(const tdm__agent *agent); /* pending starts */

/* ---- restart policy (restart_policy.c) ------------------------------------------------------- */

/* Decides what follows after a worker exited with this status, after `step` completed steps: a
 * restart of the worker slot, or the end of the session. */
void tdm__agent_judge(tdm__agent *agent, tdm__worker_slot *worker_slot,
                      const tdm__agent_worker *worker, int wait_status, uint64_t step);
/* Schedules a restart of the worker slot, or warns that there were too many. */
void tdm__agent_plan_restart(tdm__agent *agent, tdm__worker_slot *worker_slot, const char *why);
/* "killed by signal 9 (Killed)", "exit code 3". */
void tdm__agent_how(int wait_status, char *out, size_t bytes);

/* ---- shared memory (agent_shm.c) ------------------------------------------------------------- */

/* Opens the shared memory segment that processes of the session on this host already use, or
 * creates one. */
tdm_status tdm__agent_find_shm(tdm__agent *agent, tdm_error *err);

/* ---- address of this host (agent_address.c) -------------------------------------------------- */

void tdm__agent_find_address(tdm__agent *agent);

/* ---- store (agent_store.c) ------------------------------------------------------------------- */

tdm_status tdm__agent_enter(tdm__agent *agent, tdm_error *err);
void tdm__agent_beat(tdm__agent *agent, double now_s);
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
