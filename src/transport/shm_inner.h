/*
 * shm_inner.h: shared declarations of the shared-memory transport.
 *
 * shm.c is the ops table: creation, progress, waiting, forgetting. shm_send.c sends, shm_take.c
 * receives; both work on one peer at a time.
 *
 * Invariants:
 *  1. A rank always empties its rings of records, whatever it was asked to take: a message that is
 *     not taken at once is copied to the heap. The credit of the ring bounds how much that can be:
 *     beyond it, a small message is only announced, like a large one, and its send ends when it is
 *     taken. So no message blocks another one, and a sender that runs ahead waits.
 *  2. Payloads are sent in pieces in the order in which the receiver requested them.
 *  3. Every callback is made with consistent lists: it may call send(), take(), drop() and
 *     forget().
 */
#ifndef TANDEM_TRANSPORT_SHM_INNER_H
#define TANDEM_TRANSPORT_SHM_INNER_H

#include "transport/shm.h"
#include "transport/shm_ring.h"

enum { TDM__SHM_CHUNK = 64 /* outgoing messages per allocation */ };

/*
 * The life of a message being sent. A small one for which the ring has space is written at once, and
 * has no state.
 *
 *               send()              its head is written             the receiver sends GO
 *     FREE --------------> QUEUED ----------------------> ANNOUNCED ----------------------> FLOWING
 *      ^                     |                               |                                 |
 *      |  an eager message   |      the receiver sends DONE  |     all pieces are written      |
 *      `---------------------+-------------------------------+---------------------------------'
 *              (or its peer is forgotten or lost)
 *
 *   transition              function (shm_send.c)
 *   FREE -> QUEUED          tdm__shm_send
 *   QUEUED -> ANNOUNCED     peer_write_announce
 *   ANNOUNCED -> FLOWING    tdm__shm_go
 *   ... -> FREE             out_end: sent() is called back
 */
typedef enum tdm__out_state {
    TDM__OUT_FREE = 0,
    TDM__OUT_QUEUED,    /* no space for its head yet */
    TDM__OUT_ANNOUNCED, /* its head was sent */
    TDM__OUT_FLOWING    /* the receiver has requested its payload */
} tdm__out_state;

/* A message being sent. The receiver refers to it by its token: index and number. */
typedef struct tdm__outgoing {
    struct tdm__outgoing *next; /* in the peer's queue or flow, or in the free list */
    uint32_t index, number;
    uint8_t state; /* a tdm__out_state */
    bool in_place; /* announced as being in the host's memory */
    int place;     /* index of the peer */
    tdm__head head;
    const uint8_t *data;
    uint64_t at; /* bytes sent */
    void *cookie;
} tdm__outgoing;

typedef enum tdm__in_kind { TDM__IN_EAGER = 1, TDM__IN_PIECES, TDM__IN_PLACE } tdm__in_kind;

/*
 * The life of a received message:
 *
 *   ARRIVED ----------> TAKEN ----------------------> ENDED ----------------------> freed
 *      |     take()            the payload is copied   ^     its answer is written,
 *      `-----------------------------------------------'     or it needs none
 *                drop()
 *
 *   transition              function (shm_take.c)
 *   ARRIVED                 peer_read_message
 *   ARRIVED -> TAKEN        tdm__shm_take
 *   TAKEN -> ENDED          in_finish: received() is called back
 *   ARRIVED -> ENDED        tdm__shm_drop
 *   freed                   tdm__shm_answered, in_free; an eager message is freed in take() and drop()
 */
typedef enum tdm__in_state { TDM__IN_ARRIVED = 0, TDM__IN_TAKEN, TDM__IN_ENDED } tdm__in_state;

/* A received message. */
typedef struct tdm__incoming {
    struct tdm__incoming *next, *previous; /* in the list of all; `next` also in the free list */
    struct tdm__incoming *next_answer;     /* in the peer's queue of answers */
    struct tdm__incoming *next_take;       /* in the peer's takes or copies */
    uint8_t kind;                          /* a tdm__in_kind */
    uint8_t state;                         /* a tdm__in_state */
    uint8_t answer;                        /* a tdm__record_kind; 0: none is queued */
    int place;
    uint64_t token, offset, bytes, at;
    const uint8_t *payload; /* eager: in the ring, or in `aside` */
    uint8_t *aside;         /* heap copy; owned */
    uint8_t *into;
    void *cookie;
} tdm__incoming;

typedef struct tdm__out_list {
    tdm__outgoing *first, *last;
} tdm__out_list;

typedef struct tdm__in_list {
    tdm__incoming *first, *last;
} tdm__in_list;

typedef struct tdm__shm_peer {
    int place, rank;
    bool gone; /* forgotten, lost, or it has closed its rings: never used again */
    bool rung; /* its bell must be rung before the current call returns */
    tdm__shm_ring_end out, in;
    tdm__out_list queue, flow;
    tdm__in_list answers, takes, copies;
} tdm__shm_peer;

typedef struct tdm__shm {
    tdm__transport base;
    tdm__host *host;
    tdm__transport_events events;
    uint32_t world;
    int size, count, own; /* size of the world; ranks on the host; our index */
    int *place_of;        /* by rank; -1: on another host */
    tdm__shm_peer *peers; /* by index on the host */
    tdm__outgoing **chunks;
    uint32_t chunk_count, number;
    tdm__outgoing *free_out;
    tdm__incoming *incoming, *free_in;
    tdm__incoming *current; /* the one whose arrived() is running, until it has ended */
    uint64_t callbacks, moves;
    _Atomic uint32_t bell; /* value read before the last check that found nothing */
    _Atomic bool woken;
    _Atomic bool busy; /* there is work that no bell will announce */
} tdm__shm;

/* shm.c */
/* Ends everything with this peer. With `always` it counts as lost; otherwise only if something was
 * in progress: a peer that closes its rings when all is done may just be closing its comm. */
void tdm__shm_lose(tdm__shm *s, tdm__shm_peer *peer, bool always, const char *how);
void tdm__shm_ring_bell(tdm__shm *s, tdm__shm_peer *peer); /* if necessary */

/* shm_send.c */
void tdm__shm_send(tdm__transport *transport, int rank, const tdm__head *head, const void *data,
                   void *cookie);
/* Writes what fits: answers, then heads, then pieces. */
void tdm__shm_flush(tdm__shm *s, tdm__shm_peer *peer);
/* Handles an answer: the receiver requests a message, or is done with it. False: unknown message.
 * */
bool tdm__shm_go(tdm__shm *s, tdm__shm_peer *peer, uint64_t token);
bool tdm__shm_done(tdm__shm *s, tdm__shm_peer *peer, uint64_t token);
/* Ends all sends to this peer; returns whether there were any. */
bool tdm__shm_end_sends(tdm__shm *s, tdm__shm_peer *peer);
bool tdm__shm_has_sends(const tdm__shm *s, const tdm__shm_peer *peer);
void tdm__shm_free_sends(tdm__shm *s);

/* shm_take.c */
void tdm__shm_take(tdm__transport *transport, tdm__arrival *arrival, void *into, void *cookie);
void tdm__shm_drop(tdm__transport *transport, tdm__arrival *arrival);
/* Reads what this peer has sent. */
void tdm__shm_read(tdm__shm *s, tdm__shm_peer *peer);
/* Called when its answer has been written. */
void tdm__shm_answered(tdm__shm *s, tdm__incoming *in);
bool tdm__shm_end_takes(tdm__shm *s, tdm__shm_peer *peer);
void tdm__shm_free_takes(tdm__shm *s);

static inline void tdm__shm_sent(tdm__shm *s, void *cookie, tdm_status status)
{
    s->callbacks++;
    s->events.sent(s->events.user, cookie, status);
}

static inline void tdm__shm_received(tdm__shm *s, void *cookie, tdm_status status)
{
    s->callbacks++;
    s->events.received(s->events.user, cookie, status);
}

#endif
