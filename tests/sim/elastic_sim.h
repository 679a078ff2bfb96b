/*
 * elastic_sim.h: a world of made-up hosts, processes and a store, in virtual time, for the real code of
 * members, epochs and the loop.
 *
 * Everything happens in one thread. A process is two coroutines, the one that trains and its watcher; they
 * give way only in a call to the store, a pause, or a wait for other ranks. So a schedule is decided by its
 * seed alone, and replays. A process that is killed has no effect on anything from that instant on; what is
 * left of its coroutines is run to its end with every call failing, so that its memory comes back.
 *
 * Files: elastic_sim_time.c the clock and the coroutines, elastic_sim_store.c the store, elastic_sim_world.c
 * what the loop calls (ranks that meet, hosts' memory, checkpoints), elastic_sim_faults.c what goes wrong,
 * elastic_sim.c schedules and the command line.
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
    MAX_MEETINGS = 4 * (STEPS + 2) /* of one epoch */
};
#define NEVER 1e18

typedef struct sim sim;

/* ---- processes ---------------------------------------------------------------------------------- */

typedef struct process {
    sim *s;
    int index, host, slot;
    char id[TDM_MEMBER_ID_BYTES];
    tdm_member *member;
    bool is_dead;      /* killed: nothing it does has an effect any more */
    bool has_ended;    /* its coroutines have come to their end */
    double died_s;     /* when others can notice that its connections are closed */
    double stop_s;     /* it does not run before this (SIGSTOP) */
    double no_store_s; /* it cannot reach the store before this */
    double slow_until_s, slow;
    int side;       /* of a cut network */
    int op_fuse;    /* it is killed at this call to the store; 0: not */
    int write_fuse; /* or in this update */
    bool should_stop_watch, watch_has_ended, waits_for_watch;
    bool is_interrupted;
    /* the epoch that it is in */
    struct world *world;
    int rank, meetings;
    bool is_writing; /* in its host's memory */
    tdm_lost lost[MAX_PROCESSES];
    tdm_status status;
    tdm_elastic_result result;
    tdm_error err;
} process;

/* Ranks that meet. Who has arrived cannot take that back. */
typedef struct meeting {
    uint64_t arrived;
    unsigned requests;
    int step;
    uint64_t base;
    uint32_t lanes;
    bool is_saved;
} meeting;

typedef struct world {
    uint32_t number;
    int size;
    int processes[MAX_PROCESSES];
    uint64_t left; /* ranks that have closed it */
    meeting meetings[MAX_MEETINGS];
    bool is_one_state; /* enter has brought all to one state */
    uint32_t lineage;  /* rank 0's */
    int step;          /* which */
} world;

/* A host's memory: the state, and what an update that is under way has done to it. */
typedef struct host {
    bool is_empty;
    uint32_t lineage; /* the epoch that began with what it has */
    uint64_t shm_id;  /* its name */
    int step;
    uint64_t state;
    uint32_t fence; /* ranks of epochs below it must not write */
    bool has_begun; /* to change it into `next` */
    uint64_t next;
    uint64_t done;    /* ranks whose part of it is done */
    double faulted_s; /* the last time anything went wrong on it */
} host;

/* ---- the store ---------------------------------------------------------------------------------- */

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
    entry *entries; /* in order of key */
    int count, capacity;
    lease leases[MAX_LEASES];
    int lease_count;
    uint64_t revision, last_lease;
    double down_until_s;
    uint32_t epoch; /* the last number that was put */
    double epoch_s; /* and when */
} store;

/* ---- time --------------------------------------------------------------------------------------- */

typedef struct fiber {
    process *p;
    double wake_s;       /* NEVER: it has ended, or was not begun */
    const char *watched; /* it waits for a change below this, after `watched_revision` */
    uint64_t watched_revision;
    bool waits_for_world;
} fiber;

typedef enum event_kind {
    EVENT_NONE,
    EVENT_START,      /* a process in slot `b` of host `a` */
    EVENT_TELL_DEAD,  /* the agent says that process `a` is dead */
    EVENT_TELL_HOST,  /* the agent of host `a` says what it has */
    EVENT_HOST_GONE,  /* the record of a dead agent ends */
    EVENT_KILL,       /* process that is number `a` among those that live */
    EVENT_KILL_AT_OP, /* at its `b`-th call to the store from now on */
    EVENT_KILL_IN_WRITE,
    EVENT_STOP,
    EVENT_SLOW,
    EVENT_KILL_HOST,
    EVENT_CUT, /* the network, between hosts or processes */
    EVENT_HEAL,
    EVENT_CUT_STORE, /* from one process */
    EVENT_STORE_DOWN,
    EVENT_JOIN,
    EVENT_LEAVE,
    EVENT_STOP_WISH
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
    bool resets; /* a cut of the network ends connections at once, on both sides */
    int host_count, first_count, min, max;
    double lease_s;
    store store;
    world *worlds;
    int world_count;
    /* what must never go back or apart */
    int checkpoint;           /* the newest one's step */
    uint8_t lines[STEPS + 1]; /* how often each step stands in the ledger */
    int going_back;           /* epochs that began with an older state */
    int committed;            /* the highest step that all hosts of an epoch had */
    double committed_s;
    bool is_stopped; /* somebody wished for the end */
    bool has_verdict;
    tdm_status verdict;
    int finished_step;
    double last_fault_s;
    char failure[500]; /* the first thing that was wrong; empty: nothing */
    /* how much happened */
    long switches, epochs, kills, fenced, dismissed;
};

uint64_t sim_draw(sim *s);
int sim_below(sim *s, int bound);
double sim_between(sim *s, double low, double high);
bool sim_chance(sim *s, double probability);
void sim_say(sim *s, const char *fmt, ...) TDM_PRINTF(2, 3);
void sim_fail(sim *s, const char *fmt, ...) TDM_PRINTF(2, 3);

tdm_status sim_time_init(sim *s);
void sim_time_release(sim *s);
/* Begins a coroutine of `p`: its first (training) or second (watcher). */
void sim_begin(process *p, int which, void (*begin)(void *), void *argument);
void sim_end(process *p, int which);
/* Gives way for so long. Returns at once in a process that is dead. */
void sim_sleep(process *p, double seconds);
/* Gives way until the world has changed, or so long. */
void sim_wait_for_world(process *p, double seconds);
void sim_world_changed(sim *s);
/* Runs until nothing is left to do, or something is wrong. */
void sim_loop(sim *s, double max_s);
void sim_add_event(sim *s, event e);

tdm_kv *sim_store_open(process *p);
void sim_store_release(sim *s);
/* By nobody's hand: agents, users, the checks. */
void sim_store_put(sim *s, const char *key, const char *value);
const char *sim_store_get(sim *s, const char *key);
void sim_store_expire(sim *s);
double sim_store_next_s(sim *s);

extern const tdm_elastic_ops sim_ops;
uint64_t sim_state_of(int step); /* what an undisturbed run has */

process *sim_start(sim *s, int host_index, int slot);
void sim_kill(process *p);
void sim_draw_faults(sim *s);
void sim_happen(sim *s, const event *e);
/* Rank 0 has done a step: its line in the ledger, unless it is there. */
void sim_put_line(sim *s, int step);

#define SESSION "sim"
#define PREFIX "tandem/" SESSION "/"

#endif
