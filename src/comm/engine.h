/*
 * engine.h: calls in progress: the types that the files of this module share.
 *
 * A call is executed as one or more *programs*, one for each segment of its data; a few of them run
 * concurrently. A program is a list of instructions for this rank: send, receive, wait for started
 * transfers, copy, add, and, within a host, raise a counter in shared memory or wait for a
 * neighbour's counter. An algorithm (algorithms/) writes the program of a segment; the engine runs
 * it. Thus each collective is written once for all transports, synchronous and asynchronous.
 *
 * Execution: instructions are executed in order. SEND and RECV are started and do not block the
 * program; JOIN blocks it until all started transfers have ended; AWAIT blocks it until a counter
 * is reached. The thread that has the lock advances all programs, the most urgent call first: a
 * thread that waits for a request, a call of tdm_request_test, or the progress thread, which the
 * first tdm_call_start creates.
 *
 * Invariants:
 *  1. A message is identified by (group, sequence, step, source). A sender uses a step once in a call.
 *     The receiver's program expects the same (step, source, bytes).
 *  2. The header of every message is compared with this rank's call of that (group, sequence), whether
 *     it is pending, past (the last TDM__HISTORY calls are kept) or starts later. A difference breaks
 *     the group on all ranks (control.h).
 *  3. A request ends only when no transport accesses its buffers any more.
 *  4. If a call ends with a TDM_ERR_PEER_* status, its group is broken; all pending calls of a broken
 *     group end.
 *  5. Programs of different ranks agree because they are computed from the same call, the same group
 *     and the same table of choices (choose.c; rank 0's, distributed when the world is opened).
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
    TDM__HISTORY = 64,         /* ended calls of a group that are kept */
    TDM__MAX_FLIGHT = 8,       /* maximum number of concurrent segments of a call */
    TDM__WINDOW_SLOTS = 16,    /* calls of a group that may use its window concurrently */
    TDM__WINDOW_FLIGHT = 2,    /* pieces of one call that have staging memory at once */
    TDM__WINDOW_STAGES = 2,    /* calls that have staging memory at once: sequence modulo this */
    TDM__WINDOW_INLINE = 4096, /* maximum bytes of a call's data in its cell */
    TDM__NOTICE_STEP = -1      /* as a step: notice "I wait for you in this call", without
                                * payload */
};

#define TDM__LEFT_GRACE_S 2.0 /* how long messages of a rank that has left may still arrive */

/* ---- programs (program.c) --------------------------------------------------------------------- */

typedef enum tdm__op {
    TDM__OP_SEND = 1, /* send `bytes` at `from` to group rank `peer`, as `step` */
    TDM__OP_RECV,     /* receive `bytes` from group rank `peer`, as `step`, into `to` */
    TDM__OP_JOIN,
    TDM__OP_COPY,  /* copy `bytes` from `from` to `to` */
    TDM__OP_PAIR,  /* `to` = `from` (+) `other`, `bytes` */
    TDM__OP_TREE,  /* run trees[tree], see tdm__program_tree */
    TDM__OP_POST,  /* set this rank's counter in the call's window slot to value; notify the
                    * others */
    TDM__OP_AWAIT, /* wait until the counter of local member `peer` (-1: of all) is at least
                    * `value` */
    TDM__OP_CALL   /* run `function(request, segment)` */
} tdm__op;

typedef struct tdm__program tdm__program;

typedef struct tdm__instruction {
    uint8_t op;
    int stream; /* COPY: bypass the cache; TREE: number of destinations that bypass it */
    int peer;
    uint32_t step;
    uint32_t value;
    const void *from, *other;
    void *to;
    size_t bytes;
    int tree;
    void (*function)(tdm_request *request, int segment);
} tdm__instruction;

/* One evaluation of a tree plan: sources and destinations are in the program's arena. */
typedef struct tdm__tree_call {
    const tdm__tree_plan *plan;
    const void **sources;
    void **destinations;
    int destination_count;
    size_t count;
} tdm__tree_call;

/* A message in progress: queued, expected, or passed to the transport (transfer.c). */
typedef struct tdm__transfer {
    struct tdm__transfer *next, *previous; /* in the comm's list, or in the free list */
    tdm_request *request;                  /* NULL: a notice, for which no call waits */
    tdm__program *program;
    int peer; /* rank in the world */
    bool receive;
    bool handed; /* passed to the transport */
    const void *data;
    tdm__head head;
} tdm__transfer;

typedef struct tdm__block tdm__block; /* a large scratch buffer (scratch.c) */

struct tdm__program {
    tdm_request *request;
    int segment;
    tdm_arena *arena;   /* instructions, trees and small scratch; reset for the next segment */
    tdm__block *blocks; /* large scratch buffers; returned before the next segment */
    tdm__instruction *list;
    int count, capacity;
    tdm__tree_call *trees;
    int tree_count, tree_capacity;
    int at;      /* the next instruction */
    int pending; /* unfinished sends and receives */
    bool active, no_memory;
};

/* Functions by which algorithms write programs. If memory runs out they set no_memory in the
 * program, which the engine checks. */
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
/* Memory that lives as long as the segment's program, not zeroed; NULL (and no_memory) if there is
 * none. */
void *tdm__program_scratch(tdm__program *p, size_t bytes);
/* Empties the program. Called from the CALL that is the last instruction, with no transfer pending;
 * the instructions written afterwards are run next. Used where a program would be long. */
void tdm__program_restart(tdm__program *p);

/* Large scratch buffers, which the comm caches for later programs (scratch.c): take one and add it
 * to a list, return a whole list, free all cached ones. NULL if memory runs out. */
void *tdm__scratch_take(tdm_comm *comm, tdm__block **list, size_t bytes);
void tdm__scratch_give_back(tdm_comm *comm, tdm__block **list);
void tdm__scratch_free(tdm_comm *comm);

/* ---- algorithms (choose.c lists them, algorithms/ has one file for each family) --------------- */

/* How a call is divided: `count` elements into segments of `segment` elements (the last may be
 * shorter; a call without data has one segment), of which `flight` run concurrently. */
typedef struct tdm__cut {
    size_t segment;
    int flight;
} tdm__cut;

typedef struct tdm__algorithm_ops {
    tdm_algorithm id;
    bool window; /* uses the group's window: all members are on one host, or HIERARCHY */
    const char *about;
    /* Whether it supports this call on this group. */
    bool (*fits)(const tdm_group *group, const tdm_call *call);
    tdm__cut (*cut)(const tdm_group *group, const tdm_call *call);
    /* Writes this rank's program for one segment: elements [first, first + count) of the call. The
     * algorithm's file header defines what a segment is for kinds with slices. */
    void (*build)(tdm__program *program, size_t first, size_t count);
} tdm__algorithm_ops;

/* Where the members of a group are. If no row of the group's own place applies to a call, the rows
 * for several hosts are used. */
typedef enum tdm__group_place {
    TDM__GROUP_PLACE_HOSTS = 0, /* on several hosts */
    TDM__GROUP_PLACE_HOST,      /* all on one host */
    TDM__GROUP_PLACE_CROWDED    /* on several hosts, at least one of which has several members */
} tdm__group_place;

/* One row of the table: from `bytes` on, groups like this use this algorithm. */
typedef struct tdm__choice {
    uint8_t kind;   /* a tdm_call_kind */
    uint8_t place;  /* a tdm__group_place */
    uint16_t size;  /* minimum group size */
    uint64_t bytes; /* minimum bytes of the call */
    uint8_t algorithm;
    uint32_t segment_bytes; /* 0: the algorithm's default */
} tdm__choice;

typedef struct tdm__choices {
    tdm__choice *rows;
    int count;
    bool mixed_host; /* the table may choose an algorithm other than WINDOW within a host */
} tdm__choices;

/*
 * Loads the built-in table (`path` NULL), or the built-in table with the rows for the same kinds,
 * places and sizes replaced by those of a file written by tdm_tune_write (choices.c). The file is
 * JSON:
 *     {"tandem_tune": 1, "choices": [
 *       {"kind": "all_reduce", "one_host": true, "size": 2, "bytes": 0, "algorithm": "window",
 *        "segment_bytes": 0}, ...]}
 * A version other than 1, a missing key or an unknown name is TDM_ERR_FORMAT; additional keys are
 * ignored.
 */
tdm_status tdm__choices_load(const char *path, tdm__choices *out, tdm_error *err);
/* As tdm__choices_load with the file `path`, or with the file in the default place (tdm_tune_path)
 * if `path` is NULL and it exists. A default file that cannot be used is ignored with a warning
 * (tune.c). */
tdm_status tdm__choices_find(const char *path, tdm__choices *out, tdm_error *err);
/* Reads the rows of a file, without the built-in ones. */
tdm_status tdm__choices_read(const char *path, tdm__choices *out, tdm_error *err);
void tdm__choices_release(tdm__choices *choices);
/* Serialises a table, so that rank 0 can send its own to all: returns the number of bytes, which
 * are written unless `out` is NULL. The second function parses and validates such bytes. */
size_t tdm__choices_pack(const tdm__choices *choices, uint8_t *out);
tdm_status tdm__choices_unpack(const uint8_t *bytes, size_t count, tdm__choices *out,
                               tdm_error *err);
/* The built-in rows and the list of algorithms (choose.c). */
extern const tdm__choice tdm__choices_builtin[];
extern const int tdm__choices_builtin_count;
extern const tdm__algorithm_ops *const tdm__algorithms[];
extern const int tdm__algorithm_count;
/* The algorithm for a call: the requested one if it supports the call; else the table's choice;
 * else any that supports the call. */
tdm_status tdm__choose(const tdm_group *group, const tdm_call *call, const tdm__algorithm_ops **out,
                       tdm_error *err);

/* ---- lanes (lanes.c) -------------------------------------------------------------------------- */

/* The operands of a reduction: the leaves of its tree, from left to right, rank by rank. */
typedef struct tdm__leaves {
    int count;      /* at least 1 */
    int64_t *nodes; /* by leaf: its heap index, for tdm__tree_plan_init with top 1 */
    int *first;     /* size + 1 entries: rank i has leaves [first[i], first[i + 1]) */
} tdm__leaves;

/* Validates the lanes for a group of `size` ranks: TDM_ERR_INVALID or TDM_ERR_RANGE. */
tdm_status tdm__lanes_check(const tdm_lanes *lanes, int size, tdm_error *err);
/* A hash that is equal on all ranks with the same lanes, never 0; 0 for NULL. */
uint64_t tdm__lanes_hash(const tdm_lanes *lanes, int size);
/* `lanes` NULL: rank i has lane i. */
tdm_status tdm__leaves_init(tdm__leaves *leaves, const tdm_lanes *lanes, int size, tdm_error *err);
void tdm__leaves_release(tdm__leaves *leaves);

/* ---- slices (lanes.c) ------------------------------------------------------------------------- */

/* Whether calls of this kind may set `cuts`: all kinds with slices except all_to_all. */
bool tdm__kind_has_cuts(tdm_call_kind kind);
/* Validates the cuts of a call of `count` elements in a group of `size` ranks. */
tdm_status tdm__cuts_check(const size_t *cuts, size_t count, int size, tdm_error *err);
/* A hash that is equal on all ranks with the same cuts, never 0; 0 for NULL. */
uint64_t tdm__cuts_hash(const size_t *cuts, int size);
/* Slice `rank` of a call: by its cuts, or by tdm_group_slice. */
tdm_extent tdm__call_slice(const tdm_call *call, int size, int rank);
/* Elements of the longest slice. */
size_t tdm__call_max_slice(const tdm_call *call, int size);
/* The number of elements that is divided into segments: for kinds with slices as if all slices were
 * as long as the longest one, for all others the call's count. */
size_t tdm__call_span(const tdm_call *call, int size);

/* ---- the window of a group on one host (window.c) --------------------------------------------- */

/* A local member's description of one call, in shared memory. */
typedef struct tdm__cell {
    /* (sequence << 32) + value of the last POST. Compared by difference, since it may wrap
     * around. */
    _Alignas(64) _Atomic uint64_t counter;
    uint64_t agreed; /* hash of the fields of `head` that must agree */
    /* Offsets of buffers that are in the host's shared memory; else UINT64_MAX. */
    uint64_t in_offset, out_offset;
    _Alignas(64) tdm__head head; /* the member's call: compared if the hashes differ */
    _Alignas(
        64) uint8_t data[TDM__WINDOW_INLINE]; /* small calls: the data; lanes: the parts' offsets */
} tdm__cell;

/* A counter in a cache line of its own. */
typedef struct tdm__line {
    _Alignas(64) _Atomic uint64_t value;
} tdm__line;

typedef struct tdm__window {
    tdm__host *host;
    int local_count;    /* members on this host */
    int local_index;    /* this rank among them */
    int *local_members; /* by local index: rank in the group */
    int *host_places;   /* by local index: index in the host */
    uint64_t offset;    /* of the shared block */
    tdm__cell *cells;   /* [slot][local_index] */
    tdm__line *users;   /* number of members that have not left the block */
    tdm__line *waiting; /* number of members that wait for a slot or for staging */
    tdm__line *done;    /* by local index: calls [0, value) have ended there, modulo 2^32 */
    uint8_t *staging;   /* [stage][flight][local_index][stage_bytes] */
    size_t stage_bytes;
    uint32_t all_done; /* the minimum of `done` when it was last read */
    bool is_waiting;   /* this rank is counted in `waiting` */
    uint64_t *ended;   /* bit i: call done + i has ended here, out of order */
    size_t ended_words;
    tdm__tree_plan plan; /* of one part for each member, if all are on this host */
    bool crowded;        /* more ranks on the host than CPUs */
} tdm__window;

/*
 * Life cycle: the lowest local member creates the block; all members, including that one, enter it
 * by its offset; each leaves it when its group is destroyed; the last one frees the memory. enter()
 * sets group->window.
 */
tdm_status tdm__window_make(tdm__host *host, int local_count, uint64_t *out_offset, tdm_error *err);
tdm_status tdm__window_enter(tdm_group *group, uint64_t offset, tdm_error *err);
void tdm__window_leave(tdm_group *group);

/*
 * POST and AWAIT of a program. The value 0 is never posted; awaiting 0 waits until the call's slot
 * and staging are free. If a neighbour's header differs from ours, the group is broken
 * (tdm__group_mismatch) and the result is false. `local_member` -1: all.
 */
void tdm__window_post(tdm__program *program, uint32_t value);
bool tdm__window_reached(tdm__program *program, int local_member, uint32_t value);
/* Whether this call should begin: its slot and staging are free, or will be soon. */
bool tdm__window_is_near(const tdm_request *request);
/* Must be called once for every numbered call of a group with a window when it has ended, for every
 * algorithm and status: it frees the call's slot and staging. */
void tdm__window_ended(tdm_group *group, uint32_t sequence);
/*
 * Runs a small synchronous call without a request. False: not possible, and nothing has changed.
 * The caller holds the lock and has found no other pending call of the group; head->sequence is
 * assigned, head->algorithm is TDM_ALGORITHM_WINDOW, and in-place buffers are resolved. Releases
 * the lock while it sleeps. It writes the same data to its cell as the program of the same call, so
 * ranks may use different paths for one call. If true, the call has ended (tdm__window_ended was
 * called) with *status.
 */
bool tdm__window_run_fast(tdm_group *group, const tdm__head *head, const tdm_call *call,
                          double deadline_s, tdm_status *status, tdm_error *err);

tdm__cell *tdm__window_cell(const tdm__window *w, uint32_t sequence, int local_index);
uint8_t *tdm__window_staging(const tdm__window *w, uint32_t sequence, int flight, int local_index);

extern const tdm__algorithm_ops tdm__algorithm_window;
extern const tdm__algorithm_ops tdm__algorithm_hierarchy;

/* ---- groups and requests ---------------------------------------------------------------------- */

struct tdm_group {
    tdm_comm *comm;
    uint32_t id; /* 0: the world */
    int rank, size;
    int *ranks;   /* by member: rank in the world */
    int *host_of; /* by member: index of its host within the group, by first appearance */
    int host_count;
    int *local_of;       /* by member: its index among the members of its host */
    int *host_size;      /* by host within the group */
    tdm__window *window; /* NULL: no neighbour on this host, or no shared memory */
    uint32_t next_sequence;
    bool has_plan; /* leaves and plan for one lane for each member are set: */
    tdm__leaves leaves;
    tdm__tree_plan plan;
    struct tdm__pair_count *pair_counts; /* hash table: messages sent to and received from each
                                          * peer, by tag */
    size_t pair_count, pair_capacity;    /* capacity is a power of two */
    tdm__head history[TDM__HISTORY];     /* of sequence s at s modulo TDM__HISTORY; magic 0: none
                                          * yet */
    tdm_error broken;                    /* status TDM_OK: the group is not broken */
    atomic_bool is_broken;               /* the same, readable without the lock */
    tdm_group *next;                     /* in the comm's list */
};

struct tdm_request {
    tdm_group *group;
    tdm_call call; /* with in-place buffers resolved */
    tdm__head head;
    const tdm__algorithm_ops *algorithm;
    tdm__cut cut;
    size_t segment_count, next_segment, ended_segments;
    size_t segment_bytes; /* bytes of data in a segment */
    uint64_t age;         /* number of requests started before it */
    tdm__program programs[TDM__MAX_FLIGHT];
    bool owns_plan;             /* leaves and plan belong to the request, not to the group */
    tdm__leaves leaves;         /* of a reduction: the operands of each rank */
    tdm__tree_plan plan;        /* of a reduction over all ranks' parts */
    void *state;                /* the algorithm's state; freed with free() */
    double begin_s, deadline_s; /* on the transport's clock */
    double notice_s;            /* when to send the next notice */
    double left_s; /* a member has left; its messages may arrive until then; 0: none has left */
    bool done, ending;
    bool background;  /* the progress thread advances it */
    bool waits;       /* the trace has a WAIT event of it */
    int waits_for;    /* for this rank of the world; -1: for no particular one */
    bool late;        /* its deadline has passed, and the control connection is asked for the
                       * reason */
    double suspect_s; /* until then, wait for the reason of a failed transfer; 0: none has failed */
    int outstanding;  /* transfers that the transport has */
    double ending_s;  /* when its end began */
    void *copy;       /* of the input, if needed; owned */
    tdm_error error;
    tdm_request *next; /* in the comm's pending list, by priority, then by age */
};

struct tdm_comm {
    tdm_comm_options options; /* resolved; the strings are owned */
    int rank, size;
    uint32_t epoch;
    pid_t pid; /* of the process that opened it; a child of fork() has a copy without threads */
    tdm__control *control;
    tdm__transport *transport; /* one transport, or a combination of shm and another */
    tdm__host *host;           /* NULL: alone on this host, or no shared memory */
    int *host_of;              /* by rank */
    tdm_comm_info info;
    tdm__recorder *recorder;
    tdm__dumper *dumper; /* NULL: no signal dumps the recorder */
    tdm__choices choices;

    pthread_mutex_t lock;    /* protects all fields below and all calls of the transport except wait
                              * and wake */
    pthread_cond_t changed;  /* signalled if a request has ended, or no thread polls any more */
    bool polled;             /* a thread sleeps in the transport */
    tdm_request *polled_for; /* the thread that polls is woken when this request ends; NULL: by
                              * any */
    bool closing;
    tdm__cancellation joining; /* cancels waits while the world is opened */
    bool has_thread;
    pthread_t thread; /* the progress thread */
    tdm_group *groups, *world;
    tdm_request *pending;
    tdm_request *ended;       /* ended requests that were not waited for yet */
    uint8_t *peer_states;     /* by rank: a tdm_peer_state */
    tdm_peer_loss *losses;    /* by rank: how it was lost */
    size_t *flight_bytes;     /* by rank: bytes being sent by the transport */
    int *queued_counts;       /* by rank: number of queued sends */
    int queued_total;         /* number of queued sends to all ranks */
    double round_trip_s;      /* to the farthest host; 0: unknown */
    size_t flight_extra;      /* additional bytes allowed in flight to a peer, after a stall */
    double moved_s;           /* first seen with queued sends and no progress; 0: not yet */
    size_t active_bytes;      /* of active segments (run.c) */
    uint64_t started_count;   /* number of requests so far */
    tdm__transfer *transfers; /* all that are not free; sends in the order of urgency */
    tdm__transfer *free_transfers;
    tdm_request *free_requests;
    tdm__block *kept_blocks; /* cached scratch buffers (scratch.c) */
    size_t kept_bytes;
    bool has_losses;  /* there are peers in state TDM__PEER_LOSING to handle */
    double losses_s;  /* handle them then: the control connection may report the reason before */
    bool losses_ripe; /* the control connection was queried, and all its news were processed */
    bool catching_up; /* a thread queries it */
    char loss_text[128];
    bool dispatch; /* a queued send may be possible now */
    int waiters;   /* number of threads that sleep on `changed` */
    bool no_threads;
    bool shares_memory;      /* some host of the world has windows; equal on all ranks */
    uint32_t garbage_count;  /* number of messages dropped for invalid headers */
    tdm_error revoked;       /* if set, all groups are broken, including new ones */
    struct tdm__tell *tells; /* notifications to send once the lock is released */
    bool has_dumped;         /* the first error wrote the last events to the log */
    bool dumps;              /* they are to be written once the lock is released */
    struct tdm__tell *early; /* broken groups that do not exist here (yet), newest first */
    int left_count;          /* number of ranks that have left */
    struct tdm__list_count *list_counts; /* number of groups created, by list of ranks (group.c) */
    tdm_arena *texts;                    /* strings of the options; NULL: not owned */
    struct tdm__shared *shared;          /* allocations of tdm_comm_shared */
    tdm_shm *own_shm;                    /* without other ranks on this node; NULL: not yet */
    uint32_t shm_scope;                  /* the last number of tdm_comm_shm_scope */
    struct tdm__matches *matches;        /* unmatched receives and messages (match.c) */
};

/* Whether a monotonic counter has reached a value, even if both have wrapped around. */
static inline bool tdm__reached(uint64_t counter, uint64_t value)
{
    return (int64_t)(counter - value) >= 0;
}

/* All functions below are called with the lock held, unless noted otherwise. */

/* engine.c */
enum { TDM__PEER_LOSING = 3 }; /* state of a peer: the transport has just lost it */
double tdm__comm_now(tdm_comm *comm);
/* Advances everything once. Returns whether anything changed. */
bool tdm__engine_progress(tdm_comm *comm);
/* Waits until the request has ended. */
void tdm__engine_wait(tdm_comm *comm, tdm_request *request);
/* Ensures that the progress thread runs. False: it cannot be created; calls make progress only
 * while a thread waits or tests. */
bool tdm__engine_background(tdm_comm *comm);
void tdm__engine_stop(tdm_comm *comm); /* without the lock: ends the progress thread */
void tdm__comm_lock(tdm_comm *comm);
/* Unlocks, and sends the pending notifications. */
void tdm__comm_unlock(tdm_comm *comm);
void tdm__engine_news(void *comm, const tdm__news *news);       /* without the lock */
void tdm__engine_describe(void *comm, char *out, size_t bytes); /* without the lock */

/* fail.c: errors. */
/* Breaks a group here and, with `tell`, on all its members. The first error is kept. */
void tdm__group_break(tdm_group *group, bool tell, tdm_status status, const char *fmt, ...)
    TDM_PRINTF(4, 5);
/* Reports that two ranks disagree, and breaks the group on all members. */
void tdm__group_mismatch(tdm_group *group, int their_world_rank, const tdm__head *mine,
                         const tdm__head *theirs);
/* Whether two headers describe the same call. */
bool tdm__heads_agree(const tdm__head *mine, const tdm__head *theirs);
/* "all_reduce of 1024 f32 by sum": describes a header, for messages. */
const char *tdm__head_text(const tdm__head *head, char *out, size_t bytes);
/* "all_reduce #17 of world": identifies a call. */
const char *tdm__call_name(const tdm_group *group, const tdm__head *head, char *out, size_t bytes);
/* Handles the death of a peer: drops its transfers and breaks its groups. */
void tdm__peer_lost(tdm_comm *comm, int peer, bool tell, tdm_peer_loss loss, const char *how);
void tdm__engine_losses(tdm_comm *comm); /* handles the losses reported by the transport */
/* Records that a group which does not exist here is broken: other ranks created it and failed
 * before this rank creates it, or it was broken and destroyed. Messages for it are dropped. */
void tdm__early_keep(tdm_comm *comm, uint32_t group, tdm_status status, const char *text);
/* The error of a group that was broken before it was created here; NULL: none. */
const tdm_error *tdm__early_word(const tdm_comm *comm, uint32_t group);
void tdm__early_free(tdm_comm *comm);
/* Handles deadlines, notices and requests that end slowly. Returns the time of the next such event.
 * May release the lock temporarily. */
double tdm__engine_timers(tdm_comm *comm);

/* run.c: requests. */
tdm_request *tdm__request_create(tdm_group *group); /* NULL: out of memory */
void tdm__request_start(tdm_request *request);      /* call, head and algorithm must be set */
void tdm__request_run(tdm_request *request, bool *changed);
void tdm__request_end(tdm_request *request, const tdm_error *error);
void tdm__request_release(tdm_request *request); /* only after its end */
tdm_request *tdm__request_find(tdm_group *group, const tdm__head *head);
/* The ranks of the world that a request waits for, at most `max`; returns their number. */
int tdm__request_missing(tdm_request *request, int *out, int max);

/* transfer.c: messages. */
void tdm__transfer_send(tdm__program *program, const tdm__instruction *instruction);
void tdm__transfer_recv(tdm__program *program, const tdm__instruction *instruction);
void tdm__transfer_notice(tdm_request *request, int peer);
bool tdm__transfers_dispatch(tdm_comm *comm);
/* Checks whether queued sends are stalled. Returns when to check again, `never` if none is queued.
 * If they are, allows more bytes in flight for the next round and sets *round. */
double tdm__transfers_stalled(tdm_comm *comm, double now, double never, bool *round);
void tdm__transfers_cancel(tdm_request *request); /* those that the transport does not have */
void tdm__transfers_free(tdm_comm *comm);         /* when the comm is closed */
tdm__transport_events tdm__transfer_events(tdm_comm *comm);
/* Compares the messages that have already arrived for this call with the call. */
void tdm__transfers_check(tdm_request *request);
/* Drops messages that have arrived for this group (NULL: for any) and will not be received. */
void tdm__transfers_drop(tdm_comm *comm, const uint32_t *group);

/* group.c */
tdm_status tdm__group_make(tdm_comm *comm, const int *ranks, int count, uint32_t id,
                           tdm_group **out, tdm_error *err);
void tdm__group_free(tdm_group *group);
tdm_group *tdm__comm_group(const tdm_comm *comm, uint32_t id);
void tdm__list_counts_free(tdm_comm *comm);
/* Creates the window of the members on this host: collective among them. Without the lock. */
tdm_status tdm__group_window(tdm_group *group, tdm_error *err);
/* The sequence number of this group's next message to or from `peer` with this tag. */
bool tdm__group_pair_next(tdm_group *group, int peer, uint32_t tag, bool receive, uint32_t *out);

/* shared.c */
void tdm__shared_free_all(tdm_comm *comm);

/* comm.c: creates a comm from a given control connection and transport (the simulator has its own).
 * Takes both. A transport needs the comm as target of its events when it is created, hence the
 * callback `make`, which is called once the comm exists. */
typedef struct tdm__comm_parts {
    tdm__control *control;
    tdm_status (*make)(void *context, const tdm__transport_events *events, tdm__transport **out,
                       tdm_error *err);
    void *context; /* argument of make */
    tdm__host *host;
    tdm__choices choices;           /* rank 0's; taken */
    int *host_of;                   /* by rank; taken, allocated by malloc */
    bool shares_memory;             /* as in tdm_comm */
    bool no_threads;                /* single-threaded: no progress thread, no control thread */
    tdm__cancellation cancellation; /* until the comm is complete */
} tdm__comm_parts;
tdm_status tdm__comm_assemble(const tdm_comm_options *options, const tdm__comm_parts *parts,
                              tdm_comm **out, tdm_error *err);

#endif
