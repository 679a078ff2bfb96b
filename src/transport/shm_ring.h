/*
 * shm_ring.h: what lies in the host's memory for one ordered pair of ranks.
 *
 * Two rings with one writer and one reader each. The ring of records carries heads, small payloads and
 * answers; the ring of pieces carries large payloads through, some 32 KB at a time. Each side keeps its
 * own index in its own memory and only ever reads the other's; what it reads is checked before use, so
 * that a neighbour that died, or went mad, can do no harm. A record or piece is seen from the one store
 * of the writer's index on, when it is complete.
 *
 * Waiting for room: the writer sets its bit in `starved`, and the reader, having made room, takes it
 * away and rings.
 */
#ifndef TANDEM_TRANSPORT_SHM_RING_H
#define TANDEM_TRANSPORT_SHM_RING_H

#include "shm/host_inner.h"
#include "transport/transport.h"

enum {
    TDM__SHM_RING_GRAIN = 64, /* records begin at multiples of it */
    TDM__SHM_RING_PIECES = 8, /* places in the ring of pieces */
    TDM__MAX_EAGER = 4096,    /* bytes of payload that travel with their head */
    TDM__SHM_RING_CREDIT =
        1 << 20 /* bytes of such messages that may wait untaken on the other side */
};

typedef enum tdm__record_kind {
    TDM__RECORD_PAD = 1,  /* nothing, up to the end of the ring */
    TDM__RECORD_EAGER,    /* head and payload */
    TDM__RECORD_ANNOUNCE, /* head; the payload flows as pieces once it is asked for */
    TDM__RECORD_INPLACE,  /* head; the payload lies in the host's memory, at `offset` */
    TDM__RECORD_GO,       /* answer: the payload of `token` is wanted */
    TDM__RECORD_DONE      /* answer: that of `token` has been copied, or nobody wants it */
} tdm__record_kind;

typedef struct tdm__record {
    uint32_t kind;  /* a tdm__record_kind */
    uint32_t bytes; /* of the whole record, without what fills it up to the grain */
    uint64_t token; /* the sender's name for the message */
    uint64_t offset;
    uint64_t unused[5];
} tdm__record;
_Static_assert(sizeof(tdm__record) == TDM__SHM_RING_GRAIN, "a record without a head is one grain");

enum { TDM__STARVED_RECORDS = 1, TDM__STARVED_PIECES = 2 };

typedef struct tdm__shm_ring {
    /* The writer's. */
    _Alignas(64) _Atomic uint64_t record_tail, piece_tail;
    _Atomic uint32_t writer_closed; /* it has given the reader up */
    /* The reader's. */
    _Alignas(64) _Atomic uint64_t record_head, piece_head;
    _Atomic uint64_t eager_taken; /* cost of the eager messages that wait no more */
    _Atomic uint32_t reader_closed;
    _Alignas(64) _Atomic uint32_t starved;
} tdm__shm_ring;

typedef struct tdm__shm_ring_sizes {
    uint32_t record_bytes, piece_bytes; /* of the ring of records; of one piece */
    uint64_t total_bytes;
} tdm__shm_ring_sizes;

/* One side's view of a lane: the writer's or the reader's. */
typedef struct tdm__shm_ring_end {
    tdm__shm_ring *lane; /* NULL: there is none yet */
    uint8_t *records, *pieces;
    tdm__shm_ring_sizes sizes;
    uint64_t record_at, record_seen; /* own index; the other's, as last read */
    uint64_t piece_at, piece_seen;
    uint64_t eager; /* cost of what was sent, or is taken */
    bool garbage;   /* the other's index made no sense */
} tdm__shm_ring_end;

tdm__shm_ring_sizes tdm__shm_ring_sizes_for(int rank_count);
/* The writer makes the lane; the reader finds it once it is there. */
tdm_status tdm__shm_ring_make(tdm__host *host, int from, int to, tdm__shm_ring_end *end,
                              tdm_error *err);
bool tdm__shm_ring_find(const tdm__host *host, int from, int to, tdm__shm_ring_end *end);

/* Writer: room for a record of `bytes`; NULL when there is none now (and `starved` is set). It is seen
 * after commit. */
tdm__record *tdm__shm_ring_begin(tdm__shm_ring_end *end, uint32_t bytes);
void tdm__shm_ring_commit(tdm__shm_ring_end *end, uint32_t bytes);
/* Whether an eager message of this cost may be sent: not when too much waits on the other side. */
bool tdm__shm_ring_has_credit(tdm__shm_ring_end *end, uint64_t cost);
/* Writer: room for one piece, or NULL. It is seen after commit. */
uint8_t *tdm__shm_ring_piece_begin(tdm__shm_ring_end *end);
void tdm__shm_ring_piece_commit(tdm__shm_ring_end *end, uint64_t token, uint32_t bytes);

/* Reader: the next record, copied, and where it lies; false when there is none (or it is garbage). */
bool tdm__shm_ring_next(tdm__shm_ring_end *end, tdm__record *out, const uint8_t **out_at);
void tdm__shm_ring_skip(tdm__shm_ring_end *end, const tdm__record *record);
void tdm__shm_ring_take_eager(tdm__shm_ring_end *end, uint64_t cost);
bool tdm__shm_ring_piece_next(tdm__shm_ring_end *end, uint64_t *out_token, uint32_t *out_bytes,
                              const uint8_t **out_at);
void tdm__shm_ring_piece_skip(tdm__shm_ring_end *end);
/* Reader: whether the writer waits for the room that was made in these rings; answers yes once. */
bool tdm__shm_ring_is_fed(tdm__shm_ring_end *end, uint32_t which);

#endif
