/*
 * engine.h: the comm: what a rank knows of its world, and the engine that advances its calls.
 *
 * A call is executed as one or more *programs*, one for each segment of its data; a few of them run
 * concurrently. The ideas of the module, each with a header:
 *
 *   group.h      the ranks that make a call together, and the numbers of their calls
 *   request.h    a call in progress                   lanes.h      its operands and slices
 *   choices.h    the table that selects an algorithm  algorithm.h  what writes a program
 *   program.h    the instructions for a segment       scratch.h    their large buffers
 *   transfer.h   messages in progress                 match.h      receives and their messages
 *   window.h     collectives in shared memory         reduce.h     the arithmetic
 *   fail.h       what breaks a group
 *
 * Execution: the thread that has the lock advances all programs, the most urgent call first: a
 * thread that waits for a request, a call of tdm_request_test, or the progress thread, which the
 * first tdm_call_start creates.
 *
 * Invariants:
 *  1. A message is identified by (group, sequence, step, source). The receiver's program expects
 *     the same (step, source, bytes).
 *  2. The header of every message is compared with this rank's call of that (group, sequence),
 *     whether it is pending, past (the last TDM__HISTORY calls are kept) or starts later. A
 *     difference breaks the group on all ranks (control.h).
 *  3. A request ends only when no transport accesses its buffers any more.
 *  4. If a call ends with a TDM_ERR_PEER_* status, its group is broken; all pending calls of a
 *     broken group end.
 */
#ifndef TANDEM_COMM_ENGINE_H
#define TANDEM_COMM_ENGINE_H

#include "boot/control.h"
#include "comm/choices.h"
#include "shm/host.h"
#include "trace/recorder.h"
#include "transport/transport.h"

#include <pthread.h>

enum {
    TDM__PEER_SUSPECTED =
        3 /* state of a peer: the transport has lost it, the hub has not confirmed it */
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
    tdm_request *ended;     /* ended requests that were not waited for yet */
    uint8_t *peer_states;   /* by rank: a tdm_peer_state */
    tdm_peer_loss *losses;  /* by rank: how it was lost */
    size_t *flight_bytes;   /* by rank: bytes being sent by the transport */
    int *queued_counts;     /* by rank: number of queued sends */
    int queued_total;       /* number of queued sends to all ranks */
    double round_trip_s;    /* to the farthest host; 0: unknown */
    size_t flight_extra;    /* additional bytes allowed in flight to a peer, after a stall */
    double moved_s;         /* first seen with queued sends and no progress; 0: not yet */
    size_t active_bytes;    /* of active segments (request.c) */
    uint64_t started_count; /* number of requests so far */
    struct tdm__transfer *transfers; /* all that are not free; sends in the order of urgency */
    struct tdm__transfer *free_transfers;
    tdm_request *free_requests;
    struct tdm__block *kept_blocks; /* cached scratch buffers (scratch.c) */
    size_t kept_bytes;
    bool has_suspects;   /* without a hub (in the simulator): there are suspected peers */
    char loss_text[128]; /* how the transport lost the last suspected peer */
    bool dispatch;       /* a queued send may be possible now */
    int waiters;         /* number of threads that sleep on `changed` */
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

/* All functions below are called with the lock held, unless noted otherwise. */

/* The time on the transport's clock, in seconds. */
double tdm__comm_now(tdm_comm *comm);
void tdm__comm_lock(tdm_comm *comm);   /* without the lock */
void tdm__comm_unlock(tdm_comm *comm); /* also sends the pending notifications */

/* Advances everything once. Returns whether anything changed. */
bool tdm__engine_progress(tdm_comm *comm);
/* Waits until the request has ended. */
void tdm__engine_wait(tdm_comm *comm, tdm_request *request);
/* Ensures that the progress thread runs. False: it cannot be created; calls make progress only
 * while a thread waits or tests. */
bool tdm__engine_background(tdm_comm *comm);
/* Ends the progress thread. Without the lock. */
void tdm__engine_stop(tdm_comm *comm);
/* Writes this rank's last activity, for the errors of other ranks. Without the lock. */
void tdm__engine_describe(void *comm, char *out, size_t bytes);

/* Frees all memory of tdm_comm_shared (shared.c). Without the lock. */
void tdm__shared_free_all(tdm_comm *comm);

#endif
