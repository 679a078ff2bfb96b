/*
 * shm_ring.h: the shared memory of one ordered pair of ranks.
 *
 * Two rings with one writer and one reader each. The ring of records holds heads, small payloads
 * and answers; the ring of pieces transfers large payloads, about 32 KB at a time. Each side keeps
 * its own index in private memory and only reads the other's; values read are validated, so that a
 * peer that died or misbehaves does no harm. One store of the writer's index makes a complete record
 * or piece visible.
 *
 * Waiting for space: the writer sets its bit in `starved`; the reader, after freeing space, clears
 * it and rings the bell.
 *
 *   0                    4,096              + record_bytes
 *   +--------------------+------------------+---------+---------+- - - - - -+---------+
 *   | tdm__shm_ring:     | ring of records  | piece 0 | piece 1 |           | piece 7 |
 *   |  the writer's line |                  |         |         |           |         |
 *   |  the reader's line |                  | 64 B of head, then piece_bytes of data  |
 *   |  starved           |                  |         |         |           |         |
 *   +--------------------+------------------+---------+---------+- - - - - -+---------+
 *
 * The ring of records, whose indexes are taken modulo its size:
 *
 *          record_head                                 record_tail
 *   +------+-------------+------------------+----------+---------------------------------+
 *   | free | GO or DONE  | EAGER            | ANNOUNCE | free                            |
 *   |      | tdm__record | record           | record   |   (a record that does not fit   |
 *   |      | 64 B        | tdm__head        | head     |    before the end of the ring   |
 *   |      |             | payload, padding |          |    is preceded by a PAD record) |
 *   +------+-------------+------------------+----------+---------------------------------+
 *
 * A record begins at a multiple of 64 bytes and is contiguous.
 */
#ifndef TANDEM_TRANSPORT_SHM_RING_H
#define TANDEM_TRANSPORT_SHM_RING_H

#include "shm/host_inner.h"
#include "transport/transport.h"

enum {
    TDM__SHM_RING_GRAIN = 64,      /* records start at multiples of it */
    TDM__SHM_RING_PIECES = 8,      /* entries of the ring of pieces */
    TDM__MAX_EAGER = 4096,         /* payload bytes that are sent with their head */
    TDM__SHM_RING_CREDIT = 1 << 20 /* bytes of such messages that the receiver may hold untaken */
};

typedef enum tdm__record_kind {
    TDM__RECORD_PAD = 1,  /* filler up to the end of the ring */
    TDM__RECORD_EAGER,    /* head and payload */
    TDM__RECORD_ANNOUNCE, /* head; the payload is sent in pieces when requested */
    TDM__RECORD_INPLACE,  /* head; the payload is in the host's memory, at `offset` */
    TDM__RECORD_GO,       /* answer: send the payload of `token` */
    TDM__RECORD_DONE      /* answer: the payload of `token` was copied or is not needed */
} tdm__record_kind;

typedef struct tdm__record {
    uint32_t kind;  /* a tdm__record_kind */
    uint32_t bytes; /* of the whole record, without padding to the grain */
    uint64_t token; /* the sender's id of the message */
    uint64_t offset;
    uint64_t unused[5];
} tdm__record;
_Static_assert(sizeof(tdm__record) == TDM__SHM_RING_GRAIN, "a record without a head is one grain");

enum { TDM__STARVED_RECORDS = 1, TDM__STARVED_PIECES = 2 };

typedef struct tdm__shm_ring {
    /* Written by the writer. */
    _Alignas(64) _Atomic uint64_t record_tail, piece_tail;
    _Atomic uint32_t writer_closed; /* it has abandoned the reader */
    /* Written by the reader. */
    _Alignas(64) _Atomic uint64_t record_head, piece_head;
    _Atomic uint64_t eager_taken; /* total cost of the eager messages taken */
    _Atomic uint32_t reader_closed;
    _Alignas(64) _Atomic uint32_t starved;
} tdm__shm_ring;

typedef struct tdm__shm_ring_sizes {
    uint32_t record_bytes, piece_bytes; /* of the ring of records; of one piece */
    uint64_t total_bytes;
} tdm__shm_ring_sizes;

/* One side's view of the rings: the writer's or the reader's. */
typedef struct tdm__shm_ring_end {
    tdm__shm_ring *ring; /* NULL: not created yet */
    uint8_t *records, *pieces;
    tdm__shm_ring_sizes sizes;
    uint64_t record_at, record_seen; /* own index; the other side's, as last read */
    uint64_t piece_at, piece_seen;
    uint64_t eager; /* total cost sent (writer) or taken (reader) */
    bool garbage;   /* the other side's index was invalid */
} tdm__shm_ring_end;

tdm__shm_ring_sizes tdm__shm_ring_sizes_for(int rank_count);
/* The writer creates the rings. */
tdm_status tdm__shm_ring_make(tdm__host *host, int from, int to, tdm__shm_ring_end *end,
                              tdm_error *err);
/* The reader finds the rings once they exist. */
bool tdm__shm_ring_find(const tdm__host *host, int from, int to, tdm__shm_ring_end *end);

/* Writer: space for a record of `bytes`; NULL if there is none now (then `starved` is set). The record
 * becomes visible with commit. */
tdm__record *tdm__shm_ring_begin(tdm__shm_ring_end *end, uint32_t bytes);
void tdm__shm_ring_commit(tdm__shm_ring_end *end, uint32_t bytes);
/* Whether an eager message of this cost may be sent: not if the receiver holds too many untaken bytes. */
bool tdm__shm_ring_has_credit(tdm__shm_ring_end *end, uint64_t cost);
/* Writer: space for one piece, or NULL. It becomes visible with commit. */
uint8_t *tdm__shm_ring_piece_begin(tdm__shm_ring_end *end);
void tdm__shm_ring_piece_commit(tdm__shm_ring_end *end, uint64_t token, uint32_t bytes);

/* Reader: the next record, copied, and its address; false if there is none (or it is invalid). */
bool tdm__shm_ring_next(tdm__shm_ring_end *end, tdm__record *out, const uint8_t **out_at);
void tdm__shm_ring_skip(tdm__shm_ring_end *end, const tdm__record *record);
void tdm__shm_ring_take_eager(tdm__shm_ring_end *end, uint64_t cost);
bool tdm__shm_ring_piece_next(tdm__shm_ring_end *end, uint64_t *out_token, uint32_t *out_bytes,
                              const uint8_t **out_at);
void tdm__shm_ring_piece_skip(tdm__shm_ring_end *end);
/* Reader: whether the writer waits for space that was freed in these rings; true only once. */
bool tdm__shm_ring_is_fed(tdm__shm_ring_end *end, uint32_t which);

#endif
