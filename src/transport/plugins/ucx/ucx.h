/*
 * ucx.h: what the files of the UCX transport share.
 *
 * One UCP worker for each rank; messages are active messages whose header is our head. Small payloads
 * come with the header (eager), large ones are fetched into the engine's own buffer when it takes them
 * (rendezvous); over TCP between hosts, those of moderate size come along as well (ucx.c says why). UCX
 * calls our handlers from within its progress; they only put things into queues, and the queues are emptied after UCX has returned. So the engine's callbacks may call send(), take(),
 * drop() and forget() freely and UCX is never entered twice.
 *
 * Threads: `lock` guards UCX itself and all that is below it in tdm__ucx. It is taken by the functions
 * of the table and by the pump (pump.c), and is never held while the engine is called back. Functions
 * shared between the files are called with it held unless they say otherwise.
 */
#ifndef TANDEM_TRANSPORT_PLUGINS_UCX_UCX_H
#define TANDEM_TRANSPORT_PLUGINS_UCX_UCX_H

#include "transport/transport.h"

#include <pthread.h>
#include <stdatomic.h>
#include <ucp/api/ucp.h>

/* Numbers of active messages. All but the first are cards: a head that only names its sender. */
enum { TDM__UCX_MESSAGE = 1, TDM__UCX_HELLO, TDM__UCX_GOODBYE, TDM__UCX_GODSPEED };

typedef enum tdm__ucx_state {
    TDM__UCX_WELL = 0,
    TDM__UCX_LEFT,     /* has said good-bye: its connections end without a word */
    TDM__UCX_LOST,     /* its connection has failed */
    TDM__UCX_FORGOTTEN /* by forget(): nothing goes to it or comes from it */
} tdm__ucx_state;

typedef struct tdm__ucx tdm__ucx;

typedef struct tdm__ucx_peer {
    tdm__ucx *ucx;
    uint8_t *address; /* NULL: not to be reached */
    ucp_ep_h *eps;    /* `streams` of them; NULL until first used */
    int next_stream;
    bool is_eager; /* messages of moderate size go to it without being asked for */
    int pending;   /* sends and takes that UCX has */
    int hellos;    /* that came from it: one for each stream */
    int godspeeds; /* its answers to our good-byes */
    int owed;      /* its good-byes that we have not answered */
    tdm__ucx_state state;
    ucs_status_t why;
    bool loss_queued;
    struct tdm__ucx_peer *next_lost;
} tdm__ucx_peer;

/* A send or a take that UCX has, or that has ended and is to be called back. */
typedef struct tdm__ucx_operation {
    tdm__ucx *ucx;
    tdm__ucx_peer *peer;
    void *cookie;
    bool is_send;
    tdm_status status;
    tdm__head head; /* UCX reads it until the send has ended */
    struct tdm__ucx_operation *next;
} tdm__ucx_operation;

enum { TDM__UCX_BLOCK = 64 };
typedef struct tdm__ucx_block { /* operations are allocated in blocks, freed with the worker */
    struct tdm__ucx_block *next;
    tdm__ucx_operation operations[TDM__UCX_BLOCK];
} tdm__ucx_block;

typedef enum tdm__ucx_payload {
    TDM__UCX_COPIED,    /* in `bytes` behind the arrival */
    TDM__UCX_KEPT,      /* in UCX's memory: `data` */
    TDM__UCX_RENDEZVOUS /* with the sender; `data` is UCX's descriptor */
} tdm__ucx_payload;

struct tdm__arrival {
    tdm__ucx_payload payload;
    int peer;
    void *data;
    tdm__head head;
    struct tdm__arrival *previous, *next;
    uint8_t bytes[];
};

struct tdm__ucx {
    tdm__transport transport;
    int rank, size, streams;
    uint32_t world;
    tdm__transport_events events;
    tdm__cancellation cancellation; /* while it connects */
    bool hurried;                   /* leave() waits for a moment only */
    bool unmet;     /* connections were being made, and will not be: destroy() leaves them */
    tdm__head card; /* this rank's name, for hello and good-bye */
    int event_fd;   /* UCX's */
    int wake_fd;    /* ours: wake() was called, or the pump has put something into the queues */
    int poll_fd;    /* both */
    bool spins;     /* there are processors enough to spin for a moment */
    pthread_t pump;
    bool has_pump;
    int stop_fd;                /* readable: the pump is to end */
    _Atomic uint64_t called_ns; /* when the engine last called us */
    _Atomic uint64_t active_ns; /* when progress() last had something to do */
    _Atomic int waiting;        /* threads in wait() */

    pthread_mutex_t lock;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_address_t *address;
    tdm__ucx_peer *peers;
    int awaited;  /* requests of our own (cards, closing) that have not ended */
    int owed;     /* good-byes of all peers that have not been answered */
    bool goodbye; /* destroy() has begun */
    tdm__ucx_operation *ended_first, *ended_last, *spare;
    tdm__ucx_block *blocks;
    /* All arrivals, from the oldest; `unheard` is the first that the engine does not know. */
    tdm__arrival *arrivals_first, *arrivals_last, *unheard;
    tdm__ucx_peer *lost;
};

/* peers.c */
/* The endpoint for the next message to this peer, made now if need be; NULL: it is lost (queued). */
ucp_ep_h tdm__ucx_endpoint(tdm__ucx_peer *peer);
void tdm__ucx_lose(tdm__ucx_peer *peer, ucs_status_t why);
void tdm__ucx_forget(tdm__transport *transport, int peer); /* takes the lock */
/* Answers the good-byes that have come. */
void tdm__ucx_answer(tdm__ucx *ucx);
/* Connects with all peers and waits until they have, too. Takes the lock. */
tdm_status tdm__ucx_meet(tdm__ucx *ucx, tdm_error *err);
/* Says good-bye to everybody and closes all endpoints, in a bounded time. Takes the lock. */
void tdm__ucx_leave(tdm__ucx *ucx);

/* messages.c; these take the lock */
void tdm__ucx_send(tdm__transport *transport, int peer, const tdm__head *head, const void *data,
                   void *cookie);
void tdm__ucx_take(tdm__transport *transport, tdm__arrival *arrival, void *into, void *cookie);
void tdm__ucx_drop(tdm__transport *transport, tdm__arrival *arrival);
/* Calls the engine back for all that is queued. Returns how often. */
int tdm__ucx_deliver(tdm__ucx *ucx);
/* messages.c; these do not */
ucs_status_t tdm__ucx_listen(tdm__ucx *ucx); /* sets the handlers of active messages */
/* Gives back what was not taken, and tells its senders; the engine hears nothing. */
void tdm__ucx_release_arrivals(tdm__ucx *ucx);
void tdm__ucx_release_operations(tdm__ucx *ucx); /* after the worker's end */

/* pump.c */
bool tdm__ucx_pump_start(tdm__ucx *ucx);
void tdm__ucx_pump_stop(tdm__ucx *ucx); /* without the lock */

/* One turn of UCX's. Returns how much it did. */
static inline unsigned tdm__ucx_turn(tdm__ucx *ucx)
{
    unsigned did = ucp_worker_progress(ucx->worker);
    if (ucx->owed > 0) tdm__ucx_answer(ucx);
    return did;
}

static inline void tdm__ucx_called(tdm__ucx *ucx)
{
    atomic_store_explicit(&ucx->called_ns, tdm_clock_ns(), memory_order_relaxed);
}

#endif
