/*
 * shm_inner.h: what the files of the transport within a host share.
 *
 * shm.c is the table: making, moving on, waiting, forgetting. shm_send.c has what goes out, shm_take.c
 * what comes in; both work on one peer at a time.
 *
 * Invariants:
 *  1. A rank always empties its rings of records, whatever it has been asked to take: a message that
 *     is not taken at once is put aside on the heap. How much that can be is bounded by the credit of
 *     the lane: beyond it, a small message is only announced, like a large one, and its send ends when
 *     it is taken. So no message ever stands in another one's way, and a sender that runs ahead waits.
 *  2. Payloads flow as pieces in the order in which the receiver asked for them, which both sides know.
 *  3. Every callback is made with the lists in order: it may call send(), take(), drop() and forget().
 */
#ifndef TANDEM_TRANSPORT_SHM_INNER_H
#define TANDEM_TRANSPORT_SHM_INNER_H

#include "transport/shm.h"
#include "transport/shm_ring.h"

enum { TDM__SHM_CHUNK = 64 /* outgoing messages that are allocated at once */ };

typedef enum tdm__out_state {
    TDM__OUT_FREE = 0,
    TDM__OUT_QUEUED,    /* there was no room for its head */
    TDM__OUT_ANNOUNCED, /* the other side knows its head */
    TDM__OUT_FLOWING    /* the other side has asked for its payload */
} tdm__out_state;

/* A message that is being sent. Known to the other side by its token: its index and its number. */
typedef struct tdm__outgoing {
    struct tdm__outgoing *next; /* of the peer's queue or flow, or of the free ones */
    uint32_t index, number;
    uint8_t state; /* a tdm__out_state */
    bool in_place; /* announced as lying in the host's memory */
    int place;     /* of the peer */
    tdm__head head;
    const uint8_t *data;
    uint64_t at; /* bytes that have gone */
    void *cookie;
} tdm__outgoing;

typedef enum tdm__in_kind { TDM__IN_EAGER = 1, TDM__IN_PIECES, TDM__IN_PLACE } tdm__in_kind;

/* A message that has come. */
typedef struct tdm__incoming {
    struct tdm__incoming *next, *previous; /* of all; `next` of the free ones */
    struct tdm__incoming *next_answer;     /* of the peer's answers that wait for room */
    struct tdm__incoming *next_take;       /* of the peer's takes, or of its copies */
    uint8_t kind;                          /* a tdm__in_kind */
    bool taken, ended;                     /* take() or drop() was called; it was called back */
    uint8_t answer;                        /* a tdm__record_kind; 0: none waits */
    int place;
    uint64_t token, offset, bytes, at;
    const uint8_t *payload; /* eager: in the ring, or put aside */
    uint8_t *aside;         /* owned */
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
    bool gone; /* forgotten, lost, or it has given us up */
    bool rung; /* it has to be rung before we leave */
    tdm__shm_ring_end out, in;
    tdm__out_list queue, flow;
    tdm__in_list answers, takes, copies;
} tdm__shm_peer;

typedef struct tdm__shm {
    tdm__transport base;
    tdm__host *host;
    tdm__transport_events events;
    uint32_t world;
    int size, count, own; /* of the world; of the host; our place */
    int *place_of;        /* by rank; -1: on another host */
    tdm__shm_peer *peers; /* by place */
    tdm__outgoing **chunks;
    uint32_t chunk_count, number;
    tdm__outgoing *free_out;
    tdm__incoming *incoming, *free_in;
    tdm__incoming *current; /* the one whose arrived() is running, while it is not ended */
    uint64_t callbacks, moves;
    _Atomic uint32_t bell; /* as read before the last look that found nothing */
    _Atomic bool woken;
    _Atomic bool busy; /* there is something to do without anybody's ring */
} tdm__shm;

/* shm.c */
/* Ends everything with this peer. With `always` it counts as lost; else only if something was under
 * way: a peer that parts from us after all is done may just be closing. */
void tdm__shm_lose(tdm__shm *s, tdm__shm_peer *peer, bool always, const char *how);
void tdm__shm_ring_bell(tdm__shm *s, tdm__shm_peer *peer); /* if it has to be */

/* shm_send.c */
void tdm__shm_send(tdm__transport *transport, int rank, const tdm__head *head, const void *data,
                   void *cookie);
/* Writes what there is room for: answers, then heads, then pieces. */
void tdm__shm_flush(tdm__shm *s, tdm__shm_peer *peer);
/* The other side wants, or is done with, a message of ours. False: there is no such message. */
bool tdm__shm_go(tdm__shm *s, tdm__shm_peer *peer, uint64_t token);
bool tdm__shm_done(tdm__shm *s, tdm__shm_peer *peer, uint64_t token);
/* Ends all that goes to this peer; returns whether there was anything. */
bool tdm__shm_end_sends(tdm__shm *s, tdm__shm_peer *peer);
bool tdm__shm_has_sends(const tdm__shm *s, const tdm__shm_peer *peer);
void tdm__shm_free_sends(tdm__shm *s);

/* shm_take.c */
void tdm__shm_take(tdm__transport *transport, tdm__arrival *arrival, void *into, void *cookie);
void tdm__shm_drop(tdm__transport *transport, tdm__arrival *arrival);
/* Reads what has come from this peer. */
void tdm__shm_read(tdm__shm *s, tdm__shm_peer *peer);
/* Its answer has been written. */
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
