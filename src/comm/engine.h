/*
 * engine.h: calls in progress: what the files of this room share about them.
 *
 * A call is executed as one or more *programs*, one for each segment of its data, of which a few run
 * side by side. A program is a list of instructions for this rank alone: send, receive, wait for what
 * was started, copy, add, and, within a host, raise a counter in shared memory or wait for a
 * neighbour's. An algorithm (algorithms/) writes the program of a segment; the engine runs it. So the
 * collectives are written once, for all transports, synchronous and asynchronous alike.
 *
 * Running: instructions are executed in order. SEND and RECV are started and do not hold the program
 * up; JOIN holds it until all that it started has ended; AWAIT until a counter is reached. Whoever has
 * the lock moves all programs on, the most urgent call first: a thread that waits for a request, a
 * call of tdm_request_test, or the progress thread, which exists from the first tdm_call_start on.
 *
 * Invariants:
 *  1. A message is known by (group, sequence, step, source). A sender uses a step once in a call. The
 *     receiver's program expects the same (step, source, bytes).
 *  2. Every arrival's head is compared with this rank's own call of that (group, sequence), whether it
 *     is pending, past (the last TDM__HISTORY calls are remembered) or comes later. A difference breaks
 *     the group everywhere (control.h).
 *  3. A request ends only when no transport touches its buffers any more.
 *  4. Whatever ends a call with a status of the peer group breaks its group; a broken group's pending
 *     calls all end.
 *  5. Programs of different ranks agree because they are computed from the same call, the same group
 *     and the same table of choices (choose.c, rank 0's, handed out when the world is made).
 */
#ifndef TANDEM_COMM_ENGINE_H
#define TANDEM_COMM_ENGINE_H

#include "boot/control.h"
#include "comm/reduce.h"
#include "shm/host.h"
#include "trace/recorder.h"
#include "transport/transport.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    TDM__HISTORY = 64,         /* calls of a group that are remembered after their end */
    TDM__MAX_FLIGHT = 8,       /* segments of one call that run side by side */
    TDM__WINDOW_SLOTS = 16,    /* calls of a group that may use its window side by side */
    TDM__WINDOW_FLIGHT = 2,    /* pieces of one call that have staging at once */
    TDM__WINDOW_STAGES = 2,    /* calls that have staging at once: sequence modulo this */
    TDM__WINDOW_INLINE = 4096, /* bytes of a call's data that its cell carries along */
    TDM__NOTICE_STEP = -1      /* as a step: "I wait for you in this call", without payload */
};

#define TDM__LEFT_GRACE_S 2.0 /* the last messages of a rank that has left may be on their way */

/* ---- programs (program.c) --------------------------------------------------------------------- */

typedef enum tdm__op {
    TDM__OP_SEND = 1, /* `bytes` at `from` to group rank `peer`, as `step` */
    TDM__OP_RECV,     /* `bytes` from group rank `peer`, as `step`, to `to` */
    TDM__OP_JOIN,
    TDM__OP_COPY,  /* `bytes` at `from` to `to` */
    TDM__OP_PAIR,  /* `to` = `from` (+) `other`, `bytes` */
    TDM__OP_TREE,  /* trees[tree], see tdm__program_tree */
    TDM__OP_POST,  /* this rank's counter in the window of this call's slot := value; rings bells */
    TDM__OP_AWAIT, /* until the counter of local member `peer` (-1: of all) is at least `value` */
    TDM__OP_CALL   /* runs `function(request, segment)`, for what no other instruction says */
} tdm__op;

typedef struct tdm__program tdm__program;

typedef struct tdm__instruction {
    uint8_t op;
    int stream; /* COPY: whether past the cache; TREE: how many of its destinations */
    int peer;
    uint32_t step;
    uint32_t value;
    const void *from, *other;
    void *to;
    size_t bytes;
    int tree;
    void (*function)(tdm_request *request, int segment);
} tdm__instruction;

/* A run of a tree plan: sources and destinations in the program's arena. */
typedef struct tdm__tree_call {
    const tdm__tree_plan *plan;
    const void **sources;
    void **destinations;
    int destination_count;
    size_t count;
} tdm__tree_call;

/* A message on its way: queued, expected, or with the transport (transfer.c). */
typedef struct tdm__transfer {
    struct tdm__transfer *next, *previous; /* of the comm's list, or of the free ones */
    tdm_request *request;                  /* NULL: a notice, which nobody waits for */
    tdm__program *program;
    int peer; /* rank in the world */
    bool receive;
    bool handed; /* the transport has it */
    const void *data;
    tdm__head head;
} tdm__transfer;

typedef struct tdm__block tdm__block; /* a large piece of scratch (scratch.c) */

struct tdm__program {
    tdm_request *request;
    int segment;
    tdm_arena *arena;   /* instructions, trees and small scratch; reset for the next segment */
    tdm__block *blocks; /* large scratch; given back for the next segment */
    tdm__instruction *list;
    int count, capacity;
    tdm__tree_call *trees;
    int tree_count, tree_capacity;
    int at;      /* the next instruction */
    int pending; /* sends and receives that have not ended */
    bool active, no_memory;
};

/* Writers for algorithms. They note a lack of memory in the program, which the engine looks at. */
void tdm__program_send(tdm__program *p, int peer, uint32_t step, const void *from, size_t bytes);
void tdm__program_recv(tdm__program *p, int peer, uint32_t step, void *to, size_t bytes);
void tdm__program_join(tdm__program *p);
void tdm__program_copy(tdm__program *p, void *to, const void *from, size_t bytes, bool stream);
void tdm__program_pair(tdm__program *p, void *to, const void *left, const void *right,
                       size_t bytes);
void tdm__program_tree(tdm__program *p, const tdm__tree_plan *plan, const void *const *sources,
                       void *const *destinations, int destination_count, size_t count, int stream);
void tdm__program_post(tdm__program *p, uint32_t value);
void tdm__program_await(tdm__program *p, int local_member, uint32_t value);
void tdm__program_call(tdm__program *p, void (*function)(tdm_request *, int));
/* Memory that lives as long as the segment's program, not zeroed; NULL (noted) when there is none. */
void *tdm__program_scratch(tdm__program *p, size_t bytes);
/* Empties the program, which nothing is pending of, from within the CALL that is its last instruction:
 * what is written then is run next. For programs that would be long. */
void tdm__program_restart(tdm__program *p);

/* Large scratch, which the comm keeps for the next program: into a list, back with a whole list, and
 * away with all that is kept (scratch.c). NULL when there is no memory. */
void *tdm__scratch_take(tdm_comm *comm, tdm__block **list, size_t bytes);
void tdm__scratch_give_back(tdm_comm *comm, tdm__block **list);
void tdm__scratch_free(tdm_comm *comm);

/* ---- algorithms (choose.c lists them, algorithms/ has one file for each family) ----------------- */

/* How a call is cut: `count` elements into segments of `segment` elements (the last may be shorter; a
 * call without data has one segment), `flight` of which run side by side. */
typedef struct tdm__cut {
    size_t segment;
    int flight;
} tdm__cut;

typedef struct tdm__algorithm_ops {
    tdm_algorithm id;
    bool window; /* uses the group's window: all members are on one host, or HIERARCHY */
    const char *about;
    /* Whether it can do this call on this group. */
    bool (*fits)(const tdm_group *group, const tdm_call *call);
    tdm__cut (*cut)(const tdm_group *group, const tdm_call *call);
    /* Writes this rank's program for one segment: elements [first, first + count) of the call. For
     * kinds with slices, see the algorithm's header on what a segment is. */
    void (*build)(tdm__program *program, size_t first, size_t count);
} tdm__algorithm_ops;

/* Where the members of a group are. A call for which no row of its own place fits is looked up as one
 * between hosts. */
typedef enum tdm__group_place {
    TDM__GROUP_PLACE_HOSTS = 0, /* on several hosts */
    TDM__GROUP_PLACE_HOST,      /* all on one */
    TDM__GROUP_PLACE_CROWDED    /* on several hosts, of which one at least has several members */
} tdm__group_place;

/* One row of choices: from `bytes` on, for groups like this, take this algorithm. */
typedef struct tdm__choice {
    uint8_t kind;   /* a tdm_call_kind */
    uint8_t place;  /* a tdm__group_place */
    uint16_t size;  /* group size from which on it holds */
    uint64_t bytes; /* of the call, from which on it holds */
    uint8_t algorithm;
    uint32_t segment_bytes; /* 0: the algorithm's own */
} tdm__choice;

typedef struct tdm__choices {
    tdm__choice *rows;
    int count;
    bool mixed_host; /* within a host another algorithm than WINDOW may be the table's choice */
} tdm__choices;

/*
 * The built-in table (`path` NULL), or that with the rows of a file (written by tdm_tune_write) in place
 * of the built-in ones for the same kinds, places and sizes, checked (choices.c). The file is JSON:
 *     {"tandem_tune": 1, "choices": [
 *       {"kind": "all_reduce", "one_host": true, "size": 2, "bytes": 0, "algorithm": "window",
 *        "segment_bytes": 0}, ...]}
 * A version other than 1, a missing key or an unknown word is TDM_ERR_FORMAT; keys beyond are ignored.
 */
tdm_status tdm__choices_load(const char *path, tdm__choices *out, tdm_error *err);
/* The same with the file that `path` names, or without one with that in the usual place (tdm_tune_path)
 * when it is there; that one is passed over, with a word in the log, when it cannot be used (tune.c). */
tdm_status tdm__choices_find(const char *path, tdm__choices *out, tdm_error *err);
/* The rows of a file alone. */
tdm_status tdm__choices_read(const char *path, tdm__choices *out, tdm_error *err);
void tdm__choices_release(tdm__choices *choices);
/* As bytes, so that rank 0's can be handed to all: how many they are, written unless `out` is NULL; and
 * back, checked. */
size_t tdm__choices_pack(const tdm__choices *choices, uint8_t *out);
tdm_status tdm__choices_unpack(const uint8_t *bytes, size_t count, tdm__choices *out,
                               tdm_error *err);
/* The built-in rows, and all algorithms (choose.c). */
extern const tdm__choice tdm__choices_builtin[];
extern const int tdm__choices_builtin_count;
extern const tdm__algorithm_ops *const tdm__algorithms[];
extern const int tdm__algorithm_count;
/* The algorithm for a call: the one asked for, if it fits; else the table's; else whatever fits. */
tdm_status tdm__choose(const tdm_group *group, const tdm_call *call, const tdm__algorithm_ops **out,
                       tdm_error *err);

/* ---- lanes (lanes.c) --------------------------------------------------------------------------- */

/* What the ranks bring to a reduction: the leaves of its tree, from left to right, rank by rank. */
typedef struct tdm__leaves {
    int count;      /* at least 1 */
    int64_t *nodes; /* by leaf: its heap number, for tdm__tree_plan_init with top 1 */
    int *first;     /* size + 1 entries: rank i brings leaves [first[i], first[i + 1]) */
} tdm__leaves;

/* Whether these lanes can be those of a group of `size` ranks: TDM_ERR_INVALID or TDM_ERR_RANGE. */
tdm_status tdm__lanes_check(const tdm_lanes *lanes, int size, tdm_error *err);
/* The same on all ranks that bring the same lanes, never 0; 0 for NULL. */
uint64_t tdm__lanes_hash(const tdm_lanes *lanes, int size);
/* `lanes` NULL: rank i brings lane i. */
tdm_status tdm__leaves_init(tdm__leaves *leaves, const tdm_lanes *lanes, int size, tdm_error *err);
void tdm__leaves_release(tdm__leaves *leaves);

/* ---- slices (lanes.c) -------------------------------------------------------------------------- */

/* Whether slices are cut as the call says, where it says so: all kinds with slices but all_to_all. */
bool tdm__kind_has_cuts(tdm_call_kind kind);
/* Whether these cuts can be those of a call of `count` elements in a group of `size` ranks. */
tdm_status tdm__cuts_check(const size_t *cuts, size_t count, int size, tdm_error *err);
/* The same on all ranks that bring the same cuts, never 0; 0 for NULL. */
uint64_t tdm__cuts_hash(const size_t *cuts, int size);
/* Slice `rank` of a call: as its cuts say, or by tdm_group_slice. */
tdm_extent tdm__call_slice(const tdm_call *call, int size, int rank);
/* Elements of the longest slice. */
size_t tdm__call_max_slice(const tdm_call *call, int size);
/* Elements that segments are counted over: of kinds with slices, as if all were as long as the longest;
 * of all others, the call's. */
size_t tdm__call_span(const tdm_call *call, int size);

/* ---- the window of a group on one host (window.c) ---------------------------------------------- */

/* A local member's word to the others about one call, in shared memory. */
typedef struct tdm__cell {
    /* (sequence << 32) + value of the last POST. Compared by difference: it may wrap around. */
    _Alignas(64) _Atomic uint64_t counter;
    uint64_t agreed; /* a hash of what must agree in `head` */
    /* Of buffers that lie in the host's memory; UINT64_MAX: do not. */
    uint64_t in_offset, out_offset;
    _Alignas(64) tdm__head head; /* what this member calls: looked at when the hashes differ */
    _Alignas(
        64) uint8_t data[TDM__WINDOW_INLINE]; /* small calls: the data; lanes: the parts' offsets */
} tdm__cell;

/* A counter with a cache line of its own. */
typedef struct tdm__line {
    _Alignas(64) _Atomic uint64_t value;
} tdm__line;

typedef struct tdm__window {
    tdm__host *host;
    int local_count;    /* members on this host */
    int local_index;    /* this rank among them */
    int *local_members; /* by local index: rank in the group */
    int *host_places;   /* by local index: place in the host */
    uint64_t offset;    /* of the shared block */
    tdm__cell *cells;   /* [slot][local_index] */
    tdm__line *users;   /* of the block: how many members have not left it */
    tdm__line *waiting; /* how many members wait for a slot or for staging */
    tdm__line *done;    /* by local index: calls [0, value) have ended there, modulo 2^32 */
    uint8_t *staging;   /* [stage][flight][local_index][stage_bytes] */
    size_t stage_bytes;
    uint32_t all_done; /* the least of `done` when it was last looked at */
    bool is_waiting;   /* this rank is counted in `waiting` */
    uint64_t *ended;   /* bit i: call done + i has ended here, out of order */
    size_t ended_words;
    tdm__tree_plan plan; /* of one part for each member, when all are on this host */
    bool crowded;        /* more ranks on the host than processors */
} tdm__window;

/*
 * Life: the lowest local member makes the block, all enter it (it too) by its offset, each leaves it
 * when its group goes; the last one gives the memory back. enter() sets group->window.
 */
tdm_status tdm__window_make(tdm__host *host, int local_count, uint64_t *out_offset, tdm_error *err);
tdm_status tdm__window_enter(tdm_group *group, uint64_t offset, tdm_error *err);
void tdm__window_leave(tdm_group *group);

/*
 * For the engine. POST and AWAIT of a program: a value of 0 is never posted; to await 0 is to wait
 * until the call's slot and staging are free. When a neighbour's head is another than ours the group
 * is broken (tdm__group_mismatch), and the answer is no. `local_member` -1: all.
 */
void tdm__window_post(tdm__program *program, uint32_t value);
bool tdm__window_reached(tdm__program *program, int local_member, uint32_t value);
/* Whether it makes sense to begin this call: its slot and staging are, or will soon be, free. */
bool tdm__window_is_near(const tdm_request *request);
/* To be called for every numbered call of a group with a window, once it has ended, whatever its
 * algorithm and its end: slots and staging are free for others from here on. */
void tdm__window_ended(tdm_group *group, uint32_t sequence);
/*
 * A small synchronous call without a request. False: not for this path (nothing has happened). The
 * caller holds the lock and has found no other call of the group pending; head->sequence is taken,
 * head->algorithm is TDM_ALGORITHM_WINDOW (chosen, not asked for), `in` and the like are resolved. It
 * releases the lock while it sleeps. It says the same words to the neighbours as the program of the
 * same call does, so that some may run it this way and others the other way. On true the call has
 * ended (tdm__window_ended was called) with *status.
 */
bool tdm__window_run_fast(tdm_group *group, const tdm__head *head, const tdm_call *call,
                          double deadline_s, tdm_status *status, tdm_error *err);

tdm__cell *tdm__window_cell(const tdm__window *w, uint32_t sequence, int local_index);
uint8_t *tdm__window_staging(const tdm__window *w, uint32_t sequence, int flight, int local_index);

extern const tdm__algorithm_ops tdm__algorithm_window;
extern const tdm__algorithm_ops tdm__algorithm_hierarchy;

/* ---- groups and requests ----------------------------------------------------------------------- */

struct tdm_group {
    tdm_comm *comm;
    uint32_t id; /* 0: the world */
    int rank, size;
    int *ranks;   /* by member: rank in the world */
    int *host_of; /* by member: number of its host within the group, by first appearance */
    int host_count;
    int *local_of;       /* by member: its place among the members of its host */
    int *host_size;      /* by host within the group */
    tdm__window *window; /* NULL: no neighbour on this host, or no shared memory */
    uint32_t next_sequence;
    bool has_plan; /* of one lane for each member: */
    tdm__leaves leaves;
    tdm__tree_plan plan;
    struct tdm__pair_count *pair_counts; /* messages sent to and received from each peer by tag */
    size_t pair_count, pair_capacity;    /* a table of hashes: capacity is a power of two */
    tdm__head history[TDM__HISTORY];     /* of sequence s at s modulo this; magic 0: none yet */
    tdm_error broken;                    /* status TDM_OK: it is whole */
    atomic_bool is_broken;               /* the same, for a look without the lock */
    tdm_group *next;                     /* of the comm's list */
};

struct tdm_request {
    tdm_group *group;
    tdm_call call; /* with NULL `in` and the like resolved */
    tdm__head head;
    const tdm__algorithm_ops *algorithm;
    tdm__cut cut;
    size_t segment_count, next_segment, ended_segments;
    size_t segment_bytes; /* of data, of a segment */
    uint64_t age;         /* how many were started before it */
    tdm__program programs[TDM__MAX_FLIGHT];
    bool owns_plan;             /* leaves and plan are its own, not the group's */
    tdm__leaves leaves;         /* of the reduction: who brings what, where there is one */
    tdm__tree_plan plan;        /* of the reduction over all ranks' parts, where there is one */
    void *state;                /* of the algorithm; freed with free() */
    double begin_s, deadline_s; /* on the transport's clock */
    double notice_s;            /* when to send the next notice */
    double left_s; /* until then a member that has left may be missing; 0: none has left */
    bool done, ending;
    bool background;  /* the progress thread cares for it */
    bool waits;       /* it is in the trace that it waits, */
    int waits_for;    /* for this rank of the world; -1: for nobody in particular */
    bool late;        /* its time has passed, and the control is being asked why */
    double suspect_s; /* until then the control may say why a transfer has failed; 0: none has */
    int outstanding;  /* transfers that the transport has */
    double ending_s;  /* since when it is ending */
    void *copy;       /* of the input, where it is needed; owned */
    tdm_error error;
    tdm_request *next; /* of the comm's pending list, by priority, then by age */
};

struct tdm_comm {
    tdm_comm_options options; /* resolved; texts owned */
    int rank, size;
    uint32_t epoch;
    pid_t pid; /* of the process that opened it; a child by fork() has a copy without threads */
    tdm__control *control;
    tdm__transport *transport; /* one, or the composite of shm and another */
    tdm__host *host;           /* NULL: alone on this host, or without shared memory */
    int *host_of;              /* by rank */
    tdm_comm_info info;
    tdm__recorder *recorder;
    tdm__dumper *dumper; /* NULL: no signal dumps the recorder */
    tdm__choices choices;

    pthread_mutex_t lock;    /* all below, and every call of the transport but wait and wake */
    pthread_cond_t changed;  /* a request has ended, or the poller's place is free */
    bool polled;             /* somebody sleeps in the transport, */
    tdm_request *polled_for; /* and is to be woken when this request ends; NULL: no matter which */
    bool closing;
    tdm__cancellation joining; /* of what waits while the world is opened */
    bool has_thread;
    pthread_t thread; /* the progress thread */
    tdm_group *groups, *world;
    tdm_request *pending;
    tdm_request *ended;       /* and not yet waited for */
    uint8_t *peer_states;     /* by rank: a tdm_peer_state */
    tdm_peer_loss *losses;    /* by rank: of those that are lost */
    size_t *flight_bytes;     /* by rank: handed to the transport, to be sent */
    int *queued_counts;       /* by rank: sends that wait for their turn, */
    int queued_total;         /* and of all ranks together */
    double round_trip_s;      /* to the farthest host; 0: not known */
    size_t flight_extra;      /* more may be on the way to a peer: nothing has moved for a while */
    double moved_s;           /* when sends were first seen waiting since one moved; 0: not yet */
    size_t active_bytes;      /* of segments under way (run.c) */
    uint64_t started_count;   /* requests so far */
    tdm__transfer *transfers; /* all that are not free; sends in the order of urgency */
    tdm__transfer *free_transfers;
    tdm_request *free_requests;
    tdm__block *kept_blocks; /* scratch for programs to come (scratch.c) */
    size_t kept_bytes;
    bool has_losses; /* peers with the state TDM__PEER_LOSING are to be dealt with */
    double
        losses_s; /* from this time on: who has just left or failed breaks connections, too, and the
                        control may say more */
    bool losses_ripe; /* the control has been asked, and all that it knew was told */
    bool catching_up; /* a thread asks it */
    char loss_text[128];
    bool dispatch; /* a queued send may have its turn */
    int waiters;   /* threads that sleep on `changed` */
    bool no_threads;
    bool shares_memory;      /* neighbours on any host of the world have windows; same on all */
    uint32_t garbage_count;  /* messages that were dropped because their heads made no sense */
    tdm_error revoked;       /* all groups are broken, and new ones are, too */
    struct tdm__tell *tells; /* what the others are to be told once the lock is free */
    bool has_dumped;         /* the first error put the last events into the log */
    bool dumps;              /* is to, once the lock is free */
    struct tdm__tell *early; /* groups that are broken, and not here; the last first */
    int left_count;          /* ranks that have left */
    struct tdm__list_count *list_counts; /* groups made so far, by list of ranks (group.c) */
    tdm_arena *texts;                    /* of the options; NULL: they are not ours */
    struct tdm__shared *shared;          /* what tdm_comm_shared gave out */
    struct tdm__matches *matches;        /* receives that wait, arrivals that wait (match.c) */
};

/* A counter that grows for ever has reached a value, also when both have wrapped around. */
static inline bool tdm__reached(uint64_t counter, uint64_t value)
{
    return (int64_t)(counter - value) >= 0;
}

/* All below: with the lock held, unless it says otherwise. */

/* engine.c */
enum { TDM__PEER_LOSING = 3 }; /* a state of a peer: the transport has just lost it */
double tdm__comm_now(tdm_comm *comm);
/* Moves everything on. Returns whether anything changed. */
bool tdm__engine_progress(tdm_comm *comm);
/* Waits until the request has ended. */
void tdm__engine_wait(tdm_comm *comm, tdm_request *request);
/* Sees to it that the progress thread runs. False: there is none, and calls move on only while somebody
 * waits or tests. */
bool tdm__engine_background(tdm_comm *comm);
void tdm__engine_stop(tdm_comm *comm); /* without the lock: ends the progress thread */
void tdm__comm_lock(tdm_comm *comm);
/* Unlocks, and tells the others what is to be told. */
void tdm__comm_unlock(tdm_comm *comm);
void tdm__engine_news(void *comm, const tdm__news *news);       /* without the lock */
void tdm__engine_describe(void *comm, char *out, size_t bytes); /* without the lock */

/* fail.c: what goes wrong. */
/* Breaks a group here, and (with `tell`) on all its members. The first word stays. */
void tdm__group_break(tdm_group *group, bool tell, tdm_status status, const char *fmt, ...)
    TDM_PRINTF(4, 5);
/* Two ranks disagree: says so, and breaks the group everywhere. */
void tdm__group_mismatch(tdm_group *group, int their_world_rank, const tdm__head *mine,
                         const tdm__head *theirs);
/* Whether both heads are of the same call. */
bool tdm__heads_agree(const tdm__head *mine, const tdm__head *theirs);
/* "all_reduce of 1024 f32 by sum": what a head says, for messages. */
const char *tdm__head_text(const tdm__head *head, char *out, size_t bytes);
/* "all_reduce #17 of world": which call it is. */
const char *tdm__call_name(const tdm_group *group, const tdm__head *head, char *out, size_t bytes);
/* A peer is dead: forgets it and breaks its groups. */
void tdm__peer_lost(tdm_comm *comm, int peer, bool tell, tdm_peer_loss loss, const char *how);
void tdm__engine_losses(tdm_comm *comm); /* those that the transport has reported */
/* Keeps in mind that a group which is not here is broken: others may have made it, and given up before
 * this rank comes to it; or it was broken, and has gone. What is sent for it will not be taken. */
void tdm__early_keep(tdm_comm *comm, uint32_t group, tdm_status status, const char *text);
/* What was heard of a group before it was made here: NULL when nothing was. */
const tdm_error *tdm__early_word(const tdm_comm *comm, uint32_t group);
void tdm__early_free(tdm_comm *comm);
/* Deadlines, notices, and requests that are slow to end. Gives the time of the next such thing. May let
 * go of the lock for a moment. */
double tdm__engine_timers(tdm_comm *comm);

/* run.c: requests. */
tdm_request *tdm__request_create(tdm_group *group); /* NULL: no memory */
void tdm__request_start(tdm_request *request);      /* its call, head and algorithm are set */
void tdm__request_run(tdm_request *request, bool *changed);
void tdm__request_end(tdm_request *request, const tdm_error *error);
void tdm__request_release(tdm_request *request); /* once it has ended */
tdm_request *tdm__request_find(tdm_group *group, const tdm__head *head);
/* The ranks of the world that a request waits for, at most `most`; returns their number. */
int tdm__request_missing(tdm_request *request, int *out, int max);

/* transfer.c: messages. */
void tdm__transfer_send(tdm__program *program, const tdm__instruction *instruction);
void tdm__transfer_recv(tdm__program *program, const tdm__instruction *instruction);
void tdm__transfer_notice(tdm_request *request, int peer);
bool tdm__transfers_dispatch(tdm_comm *comm);
/* When to look again whether sends that wait for their turn wait for ever; `never` when none waits. May
 * find that they do, and give them a turn in the next round: then *round. */
double tdm__transfers_stalled(tdm_comm *comm, double now, double never, bool *round);
void tdm__transfers_cancel(tdm_request *request); /* all that the transport has not got */
void tdm__transfers_free(tdm_comm *comm);         /* at the end */
tdm__transport_events tdm__transfer_events(tdm_comm *comm);
/* Compares what has come for this call already with the call. */
void tdm__transfers_check(tdm_request *request);
/* Drops what has come for the group of this number (or for any, NULL) and will not be taken. */
void tdm__transfers_drop(tdm_comm *comm, const uint32_t *group);

/* group.c */
tdm_status tdm__group_make(tdm_comm *comm, const int *ranks, int count, uint32_t id,
                           tdm_group **out, tdm_error *err);
void tdm__group_free(tdm_group *group);
tdm_group *tdm__comm_group(const tdm_comm *comm, uint32_t id);
void tdm__list_counts_free(tdm_comm *comm);
/* The window for members of this host: collective among them. Without the lock. */
tdm_status tdm__group_window(tdm_group *group, tdm_error *err);
/* The number of this group's next message to or from `peer` with this tag. */
bool tdm__group_pair_next(tdm_group *group, int peer, uint32_t tag, bool receive, uint32_t *out);

/* shared.c */
void tdm__shared_free_all(tdm_comm *comm);

/* comm.c: a comm on a given control and transport (the simulator makes its own). Takes both. A
 * transport is told at its making where its events go, and they go to the comm: hence `make`, which is
 * called once there is one. */
typedef struct tdm__comm_parts {
    tdm__control *control;
    tdm_status (*make)(void *context, const tdm__transport_events *events, tdm__transport **out,
                       tdm_error *err);
    void *context; /* of make */
    tdm__host *host;
    tdm__choices choices; /* rank 0's; taken */
    int *host_of;         /* by rank; taken, from malloc */
    bool shares_memory;   /* as in tdm_comm */
    bool no_threads;      /* there is one thread only: no progress thread, no control thread */
    tdm__cancellation cancellation; /* until it is assembled */
} tdm__comm_parts;
tdm_status tdm__comm_assemble(const tdm_comm_options *options, const tdm__comm_parts *parts,
                              tdm_comm **out, tdm_error *err);

#endif
