/*
 * tcp_inner.h: shared declarations of the TCP transport: tcp.c (creation and waiting), tcp_meet.c
 * (connecting), tcp_link.c (frames of one connection), tcp_messages.c (messages of the engine).
 *
 * Two ranks have `streams` connections, called links. All are made before the first message and
 * stay until the end: a link that breaks is the loss of the peer. Each link carries frames,
 * little-endian:
 *
 *   0      4      8        16      24                    88
 *   +------+------+--------+-------+---------------------+-----------------+
 *   | kind | id   | offset | bytes | head (tdm__head)    | payload         |
 *   +------+------+--------+-------+---------------------+-----------------+
 *   |<--- tdm__tcp_start, 24 B --->|<- EAGER and OFFER ->|<- `bytes` bytes: EAGER and DATA
 *
 *   EAGER  a message: its head and its payload
 *   OFFER  the head of a message; the payload follows when the receiver has requested it
 *   CLEAR  the receiver has a buffer for offer `id`: send it
 *   DROP   the receiver does not need offer `id`
 *   DATA   `bytes` of offer `id`, from `offset` on; pieces of a message may use different links
 *   BYE    the last frame of a link whose owner closes the comm
 *
 * A payload is read from the socket directly into the engine's buffer if the engine has already
 * taken the message, as in running collectives. Otherwise the link stalls until the next call of
 * progress, which gives the engine time to take it; then the message is kept in separate memory, so
 * that it does not block those after it.
 *
 * Threads: none. All calls except wait() and wake() are serialised by the engine's lock; these two
 * use only file descriptors, which stay open as long as the transport exists.
 *
 * Invariants:
 *  1. A link's memory lives as long as the transport; its socket may be closed in any callback, so
 *     code that has called the engine back checks the state of the link again.
 *  2. An outgoing message is in exactly one place: with its peer (`offers`) until the receiver has
 *     requested it or, as frames, with links. It is called back when the kernel has all its bytes,
 *     or when the peer is lost.
 *  3. Losses are recorded when they are noticed and reported in progress().
 */
#ifndef TANDEM_TRANSPORT_TCP_INNER_H
#define TANDEM_TRANSPORT_TCP_INNER_H

#include "net/stream.h"
#include "transport/transport.h"

#include <stdatomic.h>

enum {
    TDM__MAX_TCP_EAGER = 4 << 20, /* larger payloads are offered first */
    TDM__TCP_PIECE = 1 << 20,     /* bytes of an offered payload per DATA frame */
    TDM__TCP_STAGE = 16 << 10,    /* bytes of a link's staging buffer for the starts of frames */
    TDM__TCP_TLS_BUFFER = 256 << 10
};

typedef enum tdm__tcp_kind {
    TDM__TCP_EAGER = 1,
    TDM__TCP_OFFER,
    TDM__TCP_CLEAR,
    TDM__TCP_DROP,
    TDM__TCP_DATA,
    TDM__TCP_BYE,
    TDM__TCP_KINDS
} tdm__tcp_kind;

/* The start of a frame. Sent as it is in memory, little-endian. In EAGER and OFFER a head follows.
 * */
typedef struct tdm__tcp_start {
    uint32_t kind;
    uint32_t id;     /* of an offer, assigned by its sender; 0 in EAGER and BYE */
    uint64_t offset; /* DATA */
    uint64_t bytes;  /* bytes of payload that follow */
} tdm__tcp_start;
_Static_assert(sizeof(tdm__tcp_start) == 24, "a frame's start has no padding");

typedef struct tdm__tcp tdm__tcp;
typedef struct tdm__tcp_peer tdm__tcp_peer;
typedef struct tdm__tcp_link tdm__tcp_link;

/* An outgoing message of the engine. */
typedef struct tdm__tcp_send {
    tdm__tcp_peer *peer;
    void *cookie;
    const uint8_t *data;
    uint64_t bytes;
    uint32_t id;                /* of the offer */
    int frames;                 /* its frames that are queued in links */
    struct tdm__tcp_send *next; /* in the peer's offers, or in the free list */
} tdm__tcp_send;

/* A frame in a link's queue. */
typedef struct tdm__tcp_frame {
    struct {
        tdm__tcp_start start;
        tdm__head head;
    } front;
    size_t front_bytes;
    const uint8_t *data;    /* front.start.bytes bytes */
    uint64_t gone;          /* bytes of front and data passed to the stream */
    tdm__tcp_send *message; /* NULL: a frame without a message */
    struct tdm__tcp_frame *next;
} tdm__tcp_frame;

typedef struct tdm__tcp_queue {
    tdm__tcp_frame *first, *last;
} tdm__tcp_queue;

/* TAKEN follows WAITING when the engine takes the message; BROKEN follows WAITING when its peer is
 * lost before the payload is complete: a later take then fails. */
typedef enum tdm__arrival_state {
    TDM__ARRIVAL_WAITING = 0, /* the engine has not taken it yet */
    TDM__ARRIVAL_TAKEN,       /* its payload is received into the engine's buffer */
    TDM__ARRIVAL_BROKEN
} tdm__arrival_state;

/* A message whose payload was not taken yet, or is being received for a take. */
struct tdm__arrival {
    tdm__tcp_peer *peer;
    tdm__tcp_link *link; /* that receives the payload; NULL: complete, or an offer */
    tdm__head head;
    uint32_t id; /* of an offer; 0: an EAGER message */
    tdm__arrival_state state;
    void *cookie;
    uint8_t *into;  /* TAKEN: the engine's buffer */
    uint8_t *bytes; /* our buffer, if it was not taken at once */
    size_t capacity;
    uint64_t got;
    struct tdm__arrival *next; /* in the peer's list */
};

/*
 * The life of a link, on its receiving side:
 *
 *            connected           its frame BYE                 the peer has closed it
 *    NONE ------------> OPEN --------------------> BYE ----------------------------> ENDED
 *                       ^  |                        |                                  |
 *        the payload    |  | the next payload       | any other error                  |
 *        has a buffer   |  v was not taken          |                                  |
 *                     STALLED                       |                                  |
 *                       |                           v                                  v
 *            OPEN, -----+--------------------> BROKEN -----------------------------> CLOSED
 *                          any end, an error
 *                          or an invalid frame
 *
 *   transition                function
 *   NONE -> OPEN              meeting_make_link (tcp_meet.c)
 *   OPEN -> STALLED           link_on_message (tcp_messages.c)
 *   STALLED -> OPEN           tdm__tcp_resume, tdm__tcp_take (tcp_messages.c)
 *   OPEN -> BYE               tdm__tcp_on_frame (tcp_messages.c)
 *   ... -> ENDED, BROKEN      tdm__link_break (tcp_link.c)
 *   any -> CLOSED             tdm__link_close (tcp_link.c): also from OPEN, STALLED and BYE, when
 *                             the engine forgets the peer or this rank leaves
 *
 * In ENDED and BROKEN, progress() closes the link: tdm__tcp_report_losses decides from the state
 * whether the peer has left or is lost. The sending side has no states but `is_shut`.
 */
typedef enum tdm__tcp_link_state {
    TDM__TCP_LINK_NONE = 0,
    TDM__TCP_LINK_OPEN,
    TDM__TCP_LINK_STALLED, /* waits one call of progress() for the engine to take the message */
    TDM__TCP_LINK_BYE,     /* the peer sends nothing more */
    TDM__TCP_LINK_ENDED,
    TDM__TCP_LINK_BROKEN,
    TDM__TCP_LINK_CLOSED /* it has no socket any more */
} tdm__tcp_link_state;

struct tdm__tcp_link {
    tdm__tcp_peer *peer;
    tdm__tcp_link_state state;
    int why; /* ENDED and BROKEN: errno; 0: the stream has ended */
    tdm__stream stream;
    uint32_t events;             /* registered with epoll */
    tdm__tcp_queue urgent, bulk; /* frames; bulk: DATA */
    tdm__tcp_frame *current;     /* the one that is partly sent */
    tdm__tcp_queue unflushed;    /* passed to TLS, which still buffers bytes of them */
    uint64_t queued_bytes;
    bool is_flushing; /* within tdm__link_flush, whose callbacks may send more */
    bool is_shut;     /* the sending half is closed; only while this rank leaves */
    /* receiving */
    uint8_t stage[TDM__TCP_STAGE];
    size_t stage_first, stage_count;
    uint64_t payload_bytes; /* DATA: of the current piece */
    uint64_t left;          /* bytes left of it, or of a message's payload */
    uint8_t *into;          /* NULL: they are discarded */
    tdm__arrival *arrival;  /* the message they belong to; NULL with left > 0: none */
};

enum { TDM__TCP_SPARES = 8 };
typedef struct tdm__tcp_spare {
    uint8_t *bytes; /* NULL: none */
    size_t capacity;
} tdm__tcp_spare;

/*
 * The life of a peer:
 *
 *           begins to connect         a link has ended           a link has broken
 *    NEAR -------------------> WELL -------------------> LEFT --------------------> LOST
 *                                `------------------------------------------------>  |
 *                                             a link has broken                      |
 *    WELL, LEFT, LOST -----------> FORGOTTEN: the engine has called forget() <-------'
 *
 *   transition                  function
 *   NEAR -> WELL                meet_begin (tcp_meet.c)
 *   WELL -> LEFT                peer_check_links (tcp_messages.c)
 *   WELL, LEFT -> LOST          peer_lose (tcp_messages.c)
 *   ... -> FORGOTTEN            tdm__tcp_forget (tcp_messages.c)
 */
typedef enum tdm__tcp_state {
    TDM__TCP_NEAR = 0, /* not reached by this transport */
    TDM__TCP_WELL,
    TDM__TCP_LEFT, /* it sends nothing more; what it has sent before has arrived */
    TDM__TCP_LOST,
    TDM__TCP_FORGOTTEN
} tdm__tcp_state;

struct tdm__tcp_peer {
    tdm__tcp *tcp;
    int rank;
    tdm__tcp_state state;
    tdm__tcp_link *links; /* `streams` of them */
    tdm__tcp_send *offers;
    tdm__arrival *arrivals; /* all reported to the engine, including those being taken */
    uint32_t next_id;
};

struct tdm__tcp {
    tdm__transport transport;
    int rank, size, streams;
    uint32_t world;
    uint8_t key[TDM__WORLD_KEY];
    tdm_security mode;
    tdm__tls_context *tls; /* NULL: not needed */
    tdm__transport_events events;
    tdm__cancellation cancellation;
    tdm__refusal refusal;
    tdm__endpoint here, rank_0;
    char **host_names; /* by rank; entries may be NULL */
    int listen_fd;     /* until all ranks are connected */
    int poll_fd, wake_fd;
    bool spins;
    bool is_broken;
    _Atomic uint64_t active_ns;
    tdm__tcp_peer *peers;
    bool has_met;
    _Atomic bool has_broken; /* some link is ENDED or BROKEN: progress() must check */
    _Atomic bool has_input;  /* some link has input that epoll will not report */
    int calls;               /* callbacks made in the current call */
    tdm__tcp_send *spare_sends;
    tdm__tcp_frame *spare_frames;
    tdm__tcp_spare spares[TDM__TCP_SPARES];
};

/* tcp_meet.c */
/* Starts to listen; writes the endpoint to `address`. */
tdm_status tdm__tcp_listen(tdm__tcp *tcp, uint8_t *address, size_t *out_bytes, tdm_error *err);
/* Makes all links. */
tdm_status tdm__tcp_meet(tdm__tcp *tcp, const uint8_t *const *addresses,
                         const size_t *address_bytes, tdm_error *err);

/* tcp_link.c */
/* Takes the frame; sends what is possible now. */
void tdm__link_send(tdm__tcp_link *link, tdm__tcp_frame *frame);
/* Sends what is possible now. */
void tdm__link_flush(tdm__tcp_link *link);
/* Receives and handles available input. True: it stopped although there may be more. */
bool tdm__link_receive(tdm__tcp_link *link);
/* Closes the link and ends its frames: their messages are called back. `at_once`: the kernel drops
 * what it has not delivered. */
void tdm__link_close(tdm__tcp_link *link, bool at_once);
/* Records the end of the connection, for the next call of progress. `why`: errno; 0: the stream has
 * ended. */
void tdm__link_break(tdm__tcp_link *link, int why);
/* A frame without payload and message. NULL: out of memory. */
tdm__tcp_frame *tdm__tcp_frame_take(tdm__tcp *tcp);

/* tcp_messages.c */
void tdm__tcp_send_message(tdm__transport *transport, int peer, const tdm__head *head,
                           const void *data, void *cookie);
void tdm__tcp_take(tdm__transport *transport, tdm__arrival *arrival, void *into, void *cookie);
void tdm__tcp_drop(tdm__transport *transport, tdm__arrival *arrival);
void tdm__tcp_forget(tdm__transport *transport, int peer);
/* Handles a frame whose payload (if any) follows: sets its destination in link->left, into and
 * arrival. False: it is invalid. */
bool tdm__tcp_on_frame(tdm__tcp_link *link, const tdm__tcp_start *start, const tdm__head *head);
/* Ends a stall: if the engine has still not taken the message, its payload is received into memory
 * of the transport. False: out of memory. */
bool tdm__tcp_resume(tdm__tcp_link *link);
/* The payload of link->arrival is complete. */
void tdm__tcp_on_payload(tdm__tcp_link *link);
/* A link has passed a frame of this message to the kernel, or dropped it. */
void tdm__tcp_frame_done(tdm__tcp_send *message);
/* Reports losses that links have recorded. */
void tdm__tcp_report_losses(tdm__tcp *tcp);
void tdm__tcp_free_messages(tdm__tcp *tcp);

/* Sends an answer about offer `id`. False: out of memory. */
bool tdm__tcp_answer(tdm__tcp_peer *peer, tdm__tcp_kind kind, uint32_t id);

#endif
