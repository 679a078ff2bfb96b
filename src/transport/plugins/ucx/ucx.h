/*
 * ucx.h: shared declarations of the UCX transport.
 *
 * One UCP worker per rank; messages are active messages with our head as header. Small payloads are
 * sent with the header (eager), large ones are fetched into the engine's buffer when it takes them
 * (rendezvous); over TCP between hosts, those of moderate size are eager as well (ucx.c gives the
 * reason). UCX calls our handlers from within its progress; they only fill queues, which are
 * emptied after UCX has returned. So the engine's callbacks may call send(), take(), drop() and
 * forget() freely, and UCX is never entered recursively.
 *
 * Threads: `lock` protects UCX and all fields below it in tdm__ucx. The functions of the ops table
 * and the pump (pump.c) take it; it is never held while the engine is called back. Functions shared
 * between the files are called with it held unless their comment says otherwise.
 */
#ifndef TANDEM_TRANSPORT_PLUGINS_UCX_UCX_H
#define TANDEM_TRANSPORT_PLUGINS_UCX_UCX_H

#include "transport/transport.h"

#include <pthread.h>
#include <stdatomic.h>
#include <ucp/api/ucp.h>

/* Ids of active messages. All but the first are cards: a head that only identifies its sender. */
enum { TDM__UCX_MESSAGE = 1, TDM__UCX_HELLO, TDM__UCX_GOODBYE, TDM__UCX_GODSPEED };

typedef enum tdm__ucx_state {
    TDM__UCX_WELL = 0,
    TDM__UCX_LEFT,     /* has sent a good-bye: the end of its connections is not reported */
    TDM__UCX_LOST,     /* its connection has failed */
    TDM__UCX_FORGOTTEN /* forget() was called: no communication with it */
} tdm__ucx_state;

typedef struct tdm__ucx tdm__ucx;

typedef struct tdm__ucx_peer {
    tdm__ucx *ucx;
    uint8_t *address; /* NULL: unreachable */
    ucp_ep_h *eps;    /* `streams` of them; NULL until first used */
    int next_stream;
    bool is_eager; /* messages of moderate size to it are eager */
    int pending;   /* sends and takes active in UCX */
    int hellos;    /* hellos received: one per stream */
    int godspeeds; /* answers received to our good-byes */
    int owed;      /* its good-byes not answered yet */
    tdm__ucx_state state;
    ucs_status_t why;
    bool loss_queued;
    struct tdm__ucx_peer *next_lost;
} tdm__ucx_peer;

/* A send or take that is active in UCX, or has ended and is to be called back. */
typedef struct tdm__ucx_operation {
    tdm__ucx *ucx;
    tdm__ucx_peer *peer;
    void *cookie;
    bool is_send;
    tdm_status status;
    tdm__head head; /* UCX reads it until the send ends */
    struct tdm__ucx_operation *next;
} tdm__ucx_operation;

enum { TDM__UCX_BLOCK = 64 };
typedef struct tdm__ucx_block { /* operations are allocated in blocks, freed with the worker */
    struct tdm__ucx_block *next;
    tdm__ucx_operation operations[TDM__UCX_BLOCK];
} tdm__ucx_block;

typedef enum tdm__ucx_payload {
    TDM__UCX_COPIED,    /* in `bytes` after the arrival */
    TDM__UCX_KEPT,      /* in UCX's memory: `data` */
    TDM__UCX_RENDEZVOUS /* at the sender; `data` is UCX's descriptor */
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
    tdm__cancellation cancellation; /* checked while connecting */
    bool is_broken;                 /* leave() waits only briefly */
    bool unmet;     /* connecting was interrupted: destroy() does not close the connections */
    tdm__head card; /* identifies this rank, for hello and good-bye */
    int event_fd;   /* UCX's */
    int wake_fd;    /* readable: wake() was called, or the pump filled the queues */
    int poll_fd;    /* both */
    bool spins;     /* enough CPUs to spin briefly */
    pthread_t pump;
    bool has_pump;
    int stop_fd;                /* readable: the pump must end */
    _Atomic uint64_t called_ns; /* when the engine last called us */
    _Atomic uint64_t active_ns; /* when progress() last had something to do */
    _Atomic int waiting;        /* threads in wait() */

    pthread_mutex_t lock;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_address_t *address;
    tdm__ucx_peer *peers;
    int awaited;  /* our own requests (cards, closing) that have not ended */
    int owed;     /* good-byes of all peers not answered yet */
    bool goodbye; /* destroy() has begun */
    tdm__ucx_operation *ended_first, *ended_last, *spare;
    tdm__ucx_block *blocks;
    /* All arrivals, oldest first; `unheard` is the first that was not reported to the engine. */
    tdm__arrival *arrivals_first, *arrivals_last, *unheard;
    tdm__ucx_peer *lost;
};

/* peers.c */
/* The endpoint for the next message to this peer, created if necessary; NULL: it is lost (queued).
 * */
ucp_ep_h tdm__ucx_endpoint(tdm__ucx_peer *peer);
void tdm__ucx_lose(tdm__ucx_peer *peer, ucs_status_t why);
void tdm__ucx_forget(tdm__transport *transport, int peer); /* takes the lock */
/* Answers received good-byes. */
void tdm__ucx_answer(tdm__ucx *ucx);
/* Connects to all peers and waits until they have connected as well. Takes the lock. */
tdm_status tdm__ucx_meet(tdm__ucx *ucx, tdm_error *err);
/* Sends good-byes to all peers and closes all endpoints, in bounded time. Takes the lock. */
void tdm__ucx_leave(tdm__ucx *ucx);

/* messages.c; these functions take the lock */
void tdm__ucx_send(tdm__transport *transport, int peer, const tdm__head *head, const void *data,
                   void *cookie);
void tdm__ucx_take(tdm__transport *transport, tdm__arrival *arrival, void *into, void *cookie);
void tdm__ucx_drop(tdm__transport *transport, tdm__arrival *arrival);
/* Calls the engine back for all queued events. Returns the number of callbacks. */
int tdm__ucx_deliver(tdm__ucx *ucx);
/* messages.c; these functions do not take the lock */
ucs_status_t tdm__ucx_listen(tdm__ucx *ucx); /* sets the handlers of active messages */
/* Releases arrivals that were not taken, and notifies their senders; no callbacks. */
void tdm__ucx_release_arrivals(tdm__ucx *ucx);
void tdm__ucx_release_operations(tdm__ucx *ucx); /* after the worker was destroyed */

/* pump.c */
bool tdm__ucx_pump_start(tdm__ucx *ucx);
void tdm__ucx_pump_stop(tdm__ucx *ucx); /* called without the lock */

/* Calls UCX's progress once. Returns how much it did. */
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
