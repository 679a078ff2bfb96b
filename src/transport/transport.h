/*
 * transport.h: the one table behind which bytes move between ranks.
 *
 * A transport moves messages: a head of fixed size (tdm__head), which says what the message is, and a
 * payload. It is told about arrivals by callbacks, and asked to send, to take a payload, to move on,
 * and to sleep. It knows nothing of collectives, groups or deadlines; those are the engine's
 * (engine.h), which is the only caller. A backend is a file or folder of transport/ that exports one
 * `const tdm__transport_ops`; registry.c lists them.
 *
 * Life of a message. The sender's engine calls send(); the bytes of `data` stay as they are until
 * sent() is called back. On the other side arrived() is called once with the head; the payload is the
 * transport's until the engine calls take() (perhaps within arrived(), perhaps much later) or drop().
 * take() ends with received(), perhaps before it returns. Messages of one sender arrive at least once
 * and at most once, or not at all when the peer is lost; their order is not promised.
 *
 * Invariants: no callback comes but from within progress(), send(), take(), drop() or forget();
 * after forget(peer) returned, every send and take of that peer has been called back and no buffer of
 * theirs is touched again. All calls but wake() are serialised by the engine's lock, and wait() is
 * called without it, by one thread at a time.
 */
#ifndef TANDEM_TRANSPORT_TRANSPORT_H
#define TANDEM_TRANSPORT_TRANSPORT_H

#include "net/cancellation.h"
#include "net/endpoint.h"
#include "net/refusal.h"

#include <tandem/comm.h>

/* What every message begins with. On the wire as it lies in memory, little-endian, 64 bytes. */
typedef struct tdm__head {
    uint32_t magic; /* TDM__HEAD_MAGIC */
    uint32_t world; /* drawn by rank 0 when the world is made: strangers have another */
    uint32_t epoch;
    uint32_t group;    /* the group's number */
    uint32_t sequence; /* of the call in its group */
    uint32_t step;     /* which message of the call; SEND and RECV: the tag */
    uint8_t kind;      /* a tdm_call_kind */
    uint8_t dtype;
    uint8_t reduce;
    uint8_t algorithm;
    int32_t root;
    uint64_t count;  /* elements of the whole call */
    uint64_t layout; /* a hash of the lanes and of whatever else must agree; 0 for none */
    uint64_t bytes;  /* of this message's payload */
    uint32_t source; /* the sender's rank in the world */
    uint32_t check;  /* of the 60 bytes above: garbage is dropped, not believed */
} tdm__head;
_Static_assert(sizeof(tdm__head) == 64, "the head has no padding");

typedef struct tdm__transport tdm__transport;
typedef struct tdm__arrival
    tdm__arrival; /* a message whose payload has not been taken; transport's */

typedef struct tdm__transport_events {
    void *user;
    /* A message has come from `peer`; `head` is valid during the call only and its source is peer. */
    void (*arrived)(void *user, int peer, const tdm__head *head, tdm__arrival *arrival);
    void (*received)(void *user, void *cookie, tdm_status status); /* a take() has ended */
    void (*sent)(void *user, void *cookie, tdm_status status);     /* a send() has ended */
    /* The connection to `peer` is gone for good. Its sends and takes are called back by then, or will
     * be with TDM_ERR_PEER_FAILED. `how` is for people: "connection reset". */
    void (*lost)(void *user, int peer, const char *how);
} tdm__transport_events;

typedef struct tdm__transport_options {
    int rank, size;
    const int *host_of; /* by rank; hosts are numbered by their lowest rank */
    uint32_t world;
    uint8_t key[TDM__WORLD_KEY];   /* known to the ranks of this world alone */
    tdm_comm_security security;    /* texts are borrowed for create() and connect() */
    const char *const *host_names; /* by rank; NULL: not known */
    tdm__endpoint here; /* this rank's end of its connection to rank 0; rank 0: where it listens */
    tdm__endpoint rank_0; /* where this rank reached rank 0; rank 0: as `here` */
    int streams;
    bool spins; /* every rank of this host can have a processor: a wait may spin for a moment */
    tdm__transport_events events;
    tdm__cancellation cancellation; /* of connect() */
    tdm__refusal refusal;           /* of connect() */
} tdm__transport_options;

enum { TDM__MAX_ADDRESS = 4096 };

typedef struct tdm__transport_ops {
    const char *name;
    const char *about;
    /* Whether it can work on this machine; `why` and `library` as in tdm_transport_info. */
    bool (*usable)(char why[160], char library[TDM_LIBRARY_BYTES]);
    bool within_host_only; /* it reaches no rank of another host */
    /* First half: makes this rank's end, and says how others reach it. */
    tdm_status (*create)(const tdm__transport_options *options, tdm__transport **out,
                         uint8_t address[TDM__MAX_ADDRESS], size_t *address_bytes, tdm_error *err);
    /* Second half: all ranks have created theirs. Addresses by rank; those of ranks it cannot reach
     * have 0 bytes. Connections may be made now or when first used. */
    tdm_status (*connect)(tdm__transport *transport, const uint8_t *const *addresses,
                          const size_t *address_bytes, tdm_error *err);
    void (*destroy)(tdm__transport *transport);
    /* The world is broken: destroy() need not wait for peers that do not answer its good-bye at once.
     * NULL: it waits for nobody. */
    void (*hurry)(tdm__transport *transport);

    void (*send)(tdm__transport *transport, int peer, const tdm__head *head, const void *data,
                 void *cookie);
    void (*take)(tdm__transport *transport, tdm__arrival *arrival, void *into, void *cookie);
    void (*drop)(tdm__transport *transport, tdm__arrival *arrival);
    /* Nothing will come from or go to this peer any more: see the invariants. */
    void (*forget)(tdm__transport *transport, int peer);
    /* Moves on what can move. Returns how many callbacks it made. */
    int (*progress)(tdm__transport *transport);
    /* Sleeps until progress() may have something to do, wake() is called, or `timeout_s` is over. May
     * spin for a moment first. May return too early. */
    void (*wait)(tdm__transport *transport, double timeout_s);
    /* Ends a wait() now or the next one at once. From any thread, and from signal handlers. */
    void (*wake)(tdm__transport *transport);
    /* Seconds on the clock that deadlines run by; NULL: tdm_clock's. */
    double (*now_s)(tdm__transport *transport);
    /* A file descriptor that is readable when progress() may have something to do, for a wait on
     * several transports at once; to be called right before the wait, returns -1 when there is
     * something to do already. NULL: it has none. */
    int (*arm)(tdm__transport *transport);
} tdm__transport_ops;

/* Every backend's handle begins with this. */
struct tdm__transport {
    const tdm__transport_ops *ops;
    double round_trip_s; /* to the farthest rank of another host, once connected; 0: not known */
};

#define TDM__HEAD_MAGIC 0x6d647431u

/* Fills magic and check; and whether both are right, and the sizes sane (wire.c). */
void tdm__head_seal(tdm__head *head);
bool tdm__head_check(const tdm__head *head, uint32_t world, int size);

#endif
