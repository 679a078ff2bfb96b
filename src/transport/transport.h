/*
 * transport.h: the ops table through which bytes move between ranks.
 *
 * A transport moves messages: a head of fixed size (tdm__head), which describes the message, and a
 * payload. It reports arrivals by callbacks; it is called to send, to take a payload, to make
 * progress, and to sleep. It knows nothing of collectives, groups or deadlines; those belong to the
 * engine (engine.h), its only caller. A backend is a file or directory in transport/ that exports
 * one `const tdm__transport_ops`; registry.c lists them.
 *
 * Life of a message. The sender's engine calls send(); it must not change `data` until sent() is
 * called back. On the receiver arrived() is called once with the head; the transport keeps the
 * payload until the engine calls take() (within arrived() or much later) or drop(). take() ends
 * with received(), possibly before it returns. Each message of a sender arrives exactly once, or
 * not at all if the peer is lost; the order is unspecified.
 *
 * Invariants: callbacks come only from within progress(), send(), take(), drop() or forget(). After
 * forget(peer) returned, every send and take of that peer has been called back and none of their
 * buffers is accessed again. All calls except wake() are serialised by the engine's lock; wait() is
 * called without it, by one thread at a time.
 */
#ifndef TANDEM_TRANSPORT_TRANSPORT_H
#define TANDEM_TRANSPORT_TRANSPORT_H

#include "net/cancellation.h"
#include "net/endpoint.h"
#include "net/refusal.h"

#include <tandem/comm.h>

/*
 * The start of every message, 64 bytes. Sent as it is in memory, little-endian:
 *
 *     0        4        8        12      16         20     24     25      26       27          28
 *     +--------+--------+--------+-------+----------+------+------+-------+--------+-----------+
 *     | magic  | world  | epoch  | group | sequence | step | kind | dtype | reduce | algorithm |
 *     +--------+--------+--------+-------+----------+------+------+-------+--------+-----------+
 *    28       32        40       48      56       60       64
 *     +--------+--------+--------+-------+--------+--------+
 *     | root   | count  | layout | bytes | source | check  |
 *     +--------+--------+--------+-------+--------+--------+
 */
typedef struct tdm__head {
    uint32_t magic; /* TDM__HEAD_MAGIC */
    uint32_t world; /* random number of the world, chosen by rank 0; rejects messages of others */
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
    uint64_t layout; /* hash of the lanes and everything else that must agree; 0: none */
    uint64_t bytes;  /* of this message's payload */
    uint32_t source; /* the sender's rank in the world */
    uint32_t check;  /* checksum of the 60 bytes above; corrupt heads are dropped */
} tdm__head;
_Static_assert(sizeof(tdm__head) == 64, "the head has no padding");

typedef struct tdm__transport tdm__transport;
typedef struct tdm__arrival tdm__arrival; /* a message whose payload was not taken; private */

typedef struct tdm__transport_events {
    void *user;
    /* A message arrived from `peer`; `head` is valid only during the call, and head->source is
     * peer. */
    void (*arrived)(void *user, int peer, const tdm__head *head, tdm__arrival *arrival);
    void (*received)(void *user, void *cookie, tdm_status status); /* a take() has ended */
    void (*sent)(void *user, void *cookie, tdm_status status);     /* a send() has ended */
    /* The connection to `peer` is permanently lost. Its sends and takes have been called back, or
     * will be with TDM_ERR_PEER_FAILED. `how` is text for messages: "connection reset". */
    void (*lost)(void *user, int peer, const char *how);
} tdm__transport_events;

typedef struct tdm__transport_options {
    int rank, size;
    const int *host_of; /* by rank; hosts are numbered by their lowest rank */
    uint32_t world;
    uint8_t key[TDM__WORLD_KEY];   /* known only to the ranks of this world */
    tdm_comm_security security;    /* texts are borrowed for create() and connect() */
    const char *const *host_names; /* by rank; NULL: unknown */
    tdm__endpoint
        here; /* this rank's end of its connection to rank 0; rank 0: its listening endpoint */
    tdm__endpoint rank_0; /* rank 0's end of it; rank 0: same as `here` */
    int streams;
    bool spins; /* every rank of this host can have its own CPU: a wait may spin briefly */
    tdm__transport_events events;
    tdm__cancellation cancellation; /* of connect() */
    tdm__refusal refusal;           /* of connect() */
} tdm__transport_options;

enum { TDM__MAX_ADDRESS = 4096 };

typedef struct tdm__transport_ops {
    const char *name;
    const char *about;
    /* Whether it works on this machine; `why` and `library` as in tdm_transport_info. */
    bool (*usable)(char why[160], char library[TDM_LIBRARY_BYTES]);
    bool within_host_only; /* cannot reach ranks of other hosts */
    /* First half: creates this rank's endpoint and returns its address. */
    tdm_status (*create)(const tdm__transport_options *options, tdm__transport **out,
                         uint8_t address[TDM__MAX_ADDRESS], size_t *address_bytes, tdm_error *err);
    /* Second half, after all ranks have created theirs. Addresses by rank; those of unreachable
     * ranks have 0 bytes. Connections may be made now or on first use. */
    tdm_status (*connect)(tdm__transport *transport, const uint8_t *const *addresses,
                          const size_t *address_bytes, tdm_error *err);
    void (*destroy)(tdm__transport *transport);
    /* The world is broken: destroy() need not wait for peers that do not answer its goodbye at
     * once. NULL: destroy() never waits. */
    void (*mark_broken)(tdm__transport *transport);

    void (*send)(tdm__transport *transport, int peer, const tdm__head *head, const void *data,
                 void *cookie);
    void (*take)(tdm__transport *transport, tdm__arrival *arrival, void *into, void *cookie);
    void (*drop)(tdm__transport *transport, tdm__arrival *arrival);
    /* Ends all communication with this peer: see the invariants. */
    void (*forget)(tdm__transport *transport, int peer);
    /* Makes progress. Returns the number of callbacks made. */
    int (*progress)(tdm__transport *transport);
    /* Sleeps until progress() may have work, wake() is called, or `timeout_s` is over. May spin
     * briefly first. May return early. */
    void (*wait)(tdm__transport *transport, double timeout_s);
    /* Ends the current wait(), or the next one at once. From any thread and from signal handlers.
     * */
    void (*wake)(tdm__transport *transport);
    /* Seconds on the clock of deadlines; NULL: tdm_clock_s. */
    double (*now_s)(tdm__transport *transport);
    /* A file descriptor that is readable when progress() may have work, for a wait on several
     * transports at once. Called directly before the wait; returns -1 if there is work already.
     * NULL: none. */
    int (*arm)(tdm__transport *transport);
} tdm__transport_ops;

/* Every backend's handle begins with this. */
struct tdm__transport {
    const tdm__transport_ops *ops;
    double round_trip_s; /* longest round trip to another host, once connected; 0: unknown */
};

#define TDM__HEAD_MAGIC 0x6d647431u

/* Sets magic and check (wire.c). */
void tdm__head_seal(tdm__head *head);
/* Whether magic and check are right and the sizes plausible (wire.c). */
bool tdm__head_check(const tdm__head *head, uint32_t world, int size);

#endif
