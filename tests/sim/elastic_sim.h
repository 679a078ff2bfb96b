/*
 * elastic_sim.h: simulated hosts, processes and a store, in virtual time, for the real code of
 * members, epochs and the loop.
 *
 * Everything runs in one thread. A process consists of two coroutines, one that trains and one for
 * the watcher. They yield only in a call to the store, in a pause, and while they wait for other
 * ranks. So a schedule depends on its seed only and can be replayed. A killed process has no effect
 * from that moment on. Its coroutines run to their end with all calls failing, so that their memory
 * is freed.
 *
 *     elastic_sim_time.c      the clock and the coroutines
 *     elastic_sim_store.c     the store
 *     elastic_sim_world.c     the functions that the loop calls: barriers of ranks, the memory of
 *                             hosts, checkpoints
 *     elastic_sim_faults.c    processes, agents and faults
 *     elastic_sim.c           schedules and the command line
 */
#ifndef TANDEM_TESTS_SIM_ELASTIC_SIM_H
#define TANDEM_TESTS_SIM_ELASTIC_SIM_H

#include "kv/kv.h"
#include "membership/member.h"
#include "sim/sim.h"

enum {
    MAX_HOSTS = 3,
    MAX_PROCESSES = 48,
    MAX_FIBERS = 2 * MAX_PROCESSES,
    MAX_EVENTS = 256,
    MAX_WORLDS = 256,
    MAX_LEASES = 512,
    STEPS = 16, /* of a run */
    LANES = 12,
    MAX_BARRIERS = 4 * (STEPS + 2) /* of one epoch */
};
#define NEVER 1e18

typedef struct sim sim;

/* ---- processes ------------------------------------------------------------------------------- */

typedef struct process {
    sim *s;
    int index, host, slot;
    char id[TDM_MEMBER_ID_BYTES];
    tdm_member *member;
    bool is_dead;      /* killed: it has no effect any more */
    bool has_ended;    /* its coroutines have ended */
    double died_s;     /* when others can notice that its connections are closed */
    double stop_s;     /* it does not run before this (SIGSTOP) */
    double no_store_s; /* it cannot reach the store before this */
    double slow_until_s, slow;
    int side;       /* in a network partition */
    int op_fuse;    /* number of calls to the store until it is killed; 0: not */
    int write_fuse; /* number of updates until it is killed; 0: not */
    bool should_stop_watch, watch_has_ended, waits_for_watch;
    bool is_interrupted;
    /* Its epoch. */
    struct world *world;
    int rank, barriers;
    bool is_writing; /* in its host's memory */
    tdm_lost lost[MAX_PROCESSES];
    tdm_status status;
    tdm_elastic_result result;
    tdm_error err;
} process;

/* A barrier of the ranks of an epoch. */
typedef struct barrier {
    uint64_t arrived; /* ranks; an arrival is final */
    unsigned requests;
    int step;
    uint64_t base;
    uint32_t lanes;
    bool is_saved;
} barrier;

typedef struct world {
    uint32_t number;
    int size;
    int processes[MAX_PROCESSES];
    uint64_t left; /* ranks that have closed it */
    barrier barriers[MAX_BARRIERS];
    bool is_one_state; /* all its hosts have the same state */
    uint32_t lineage;  /* of rank 0 */
    int step;          /* the step of that state */
} world;

/* The memory of a host: the state, and the progress of an update. */
typedef struct host {
    bool is_empty;
    uint32_t lineage; /* the epoch that began with its state */
    uint64_t shm_id;
    int step;
    uint64_t state;
    uint32_t fence; /* ranks of earlier epochs must not write */
    bool has_begun; /* the update to `next` has begun */
    uint64_t next;
    uint64_t done;    /* ranks that have updated their part */
    double faulted_s; /* time of the last fault on this host */
} host;

/* ---- the store ------------------------------------------------------------------------------- */

typedef struct entry {
    char key[TDM_KV_KEY_BYTES];
    char *value; /* NULL: removed */
    uint64_t revision, lease;
} entry;

typedef struct lease {
    uint64_t id;
    double length_s, end_s;
} lease;

typedef struct store {
    entry *entries; /* sorted by key */
    int count, capacity;
    lease leases[MAX_LEASES];
    int lease_count;
    uint64_t revision, last_lease;
    double down_until_s;
    uint32_t epoch; /* number of the current epoch */
    double epoch_s; /* when it was written */
} store;

/* ---- time ------------------------------------------------------------------------------------ */

typedef struct fiber {
    process *p;
    double wake_s;       /* NEVER: it has ended or has not begun */
    const char *watched; /* it waits for a change of a key with this prefix; NULL: it does not */
    bool waits_for_world;
} fiber;

typedef enum event_kind {
    EVENT_NONE,
    EVENT_START,       /* a process in slot `b` of host `a` */
    EVENT_REPORT_DEAD, /* the agent reports that process `a` is dead */
    EVENT_REPORT_HOST, /* the agent of host `a` writes its record */
    EVENT_HOST_GONE,   /* the record of a dead agent expires */
    EVENT_KILL,        /* kills living process number `a`; the same number below */
    EVENT_KILL_AT_OP,  /* kills it at its `b`-th call to the store from now on */
    EVENT_KILL_IN_WRITE,
    EVENT_STOP,
    EVENT_SLOW,
    EVENT_KILL_HOST,
    EVENT_PARTITION, /* of the network, between hosts or processes */
    EVENT_HEAL,
    EVENT_CUT_STORE, /* one process cannot reach the store */
    EVENT_STORE_DOWN,
    EVENT_JOIN,
    EVENT_LEAVE,
    EVENT_STOP_REQUEST
} event_kind;

typedef struct event {
    double time_s;
    event_kind kind;
    int a, b;
    double length_s;
} event;

struct sim {
    uint64_t seed, draw;
    bool is_loud;
    double now_s;
    tdm__fibers fibers;
    fiber list[MAX_FIBERS];
    int current; /* fiber; -1: the scheduler */
    event events[MAX_EVENTS];
    int event_count;
    process processes[MAX_PROCESSES];
    int process_count;
    host hosts[MAX_HOSTS];
    bool resets; /* a partition closes connections at once, on both sides */
    int host_count, first_count, min, max;
    double lease_s;
    store store;
    world *worlds;
    int world_count;
    /* Progress, for the checks. */
    int checkpoint;           /* step of the newest one */
    uint8_t lines[STEPS + 1]; /* number of lines of each step in the ledger */
    int rollbacks;            /* epochs that began with an older state */
    int committed;            /* the highest step that all hosts of an epoch had */
    double committed_s;
    bool is_stopped; /* a stop was requested */
    bool has_verdict;
    tdm_status verdict;
    int finished_step;
    double last_fault_s;
    char failure[500]; /* the first failed check; empty: none */
    /* Statistics. */
    long switches, epochs, kills, fenced, dismissed;
};

uint64_t sim_draw(sim *s);
int sim_below(sim *s, int bound);
double sim_between(sim *s, double low, double high);
bool sim_chance(sim *s, double probability);
void sim_log(sim *s, const char *fmt, ...) TDM_PRINTF(2, 3);
void sim_fail(sim *s, const char *fmt, ...) TDM_PRINTF(2, 3);

tdm_status sim_time_init(sim *s);
void sim_time_release(sim *s);
/* Starts a coroutine of `p`: the first (training) or the second (watcher). */
void sim_begin(process *p, int which, void (*begin)(void *), void *argument);
void sim_end(process *p, int which);
/* Yields for this time. Returns at once in a dead process. */
void sim_sleep(process *p, double seconds);
/* Yields until the world has changed, at most for this time. */
void sim_wait_for_world(process *p, double seconds);
void sim_world_changed(sim *s);
/* Runs until all processes have ended, or a check fails. */
void sim_loop(sim *s, double max_s);
void sim_add_event(sim *s, event e);

tdm_kv *sim_store_open(process *p);
void sim_store_release(sim *s);
/* Calls without a process, for agents, users and checks. */
void sim_store_put(sim *s, const char *key, const char *value);
const char *sim_store_get(sim *s, const char *key);
void sim_store_expire(sim *s);
double sim_store_next_s(sim *s);

extern const tdm_elastic_ops sim_ops;
uint64_t sim_state_of(int step); /* in a run without failures */

process *sim_start(sim *s, int host_index, int slot);
void sim_kill(process *p);
void sim_draw_faults(sim *s);
void sim_execute(sim *s, const event *e);
/* Rank 0 has completed a step: adds its line to the ledger, unless it exists. */
void sim_put_line(sim *s, int step);

#define SESSION "sim"
#define PREFIX "tandem/" SESSION "/"

#endif
