/*
 * shm_ring.c: the rings of one ordered pair of ranks.
 *
 * Indexes only grow and are taken modulo the size of the ring, a power of two, so full and empty
 * are distinct. A record is contiguous; if it does not fit before the end of the ring, a PAD record
 * fills the rest. Everything read from the other side is validated: an index at most one ring
 * length ahead, a length within the available bytes.
 */
#include "transport/shm_ring.h"

#include <string.h>

enum {
    RING_HEAD_BYTES = 4096,
    MANY_RANKS = 16, /* with at least this many ranks, the rings of a host are small */
};

typedef struct piece_head {
    uint64_t token;
    uint32_t bytes;
    uint8_t unused[52];
} piece_head;
_Static_assert(sizeof(piece_head) == 64, "the data of a piece starts at a cache line");

tdm__shm_ring_sizes tdm__shm_ring_sizes_for(int rank_count)
{
    bool many = rank_count > MANY_RANKS;
    tdm__shm_ring_sizes sizes = {.record_bytes = many ? 16384 : 65536,
                                 .piece_bytes = many ? 8192 - 64 : 32768 - 64};
    sizes.total_bytes = RING_HEAD_BYTES + (uint64_t)sizes.record_bytes +
                        TDM__SHM_RING_PIECES * (sizeof(piece_head) + (uint64_t)sizes.piece_bytes);
    return sizes;
}

static void ring_end_set(const tdm__host *host, uint64_t offset, tdm__shm_ring_end *end)
{
    uint8_t *base = tdm__host_at(host, offset);
    *end = (tdm__shm_ring_end){.ring = (tdm__shm_ring *)base,
                               .records = base + RING_HEAD_BYTES,
                               .sizes = tdm__shm_ring_sizes_for(tdm__host_count(host))};
    end->pieces = end->records + end->sizes.record_bytes;
}

tdm_status tdm__shm_ring_make(tdm__host *host, int from, int to, tdm__shm_ring_end *end,
                              tdm_error *err)
{
    uint64_t offset = 0;
    TDM_TRY(tdm__host_alloc(host, tdm__shm_ring_sizes_for(tdm__host_count(host)).total_bytes,
                            &offset, err));
    ring_end_set(host, offset, end);
    atomic_store_explicit(tdm__host_slot(host, from, to), offset, memory_order_release);
    return TDM_OK;
}

bool tdm__shm_ring_find(const tdm__host *host, int from, int to, tdm__shm_ring_end *end)
{
    uint64_t offset = atomic_load_explicit(tdm__host_slot(host, from, to), memory_order_acquire);
    uint64_t bytes = tdm__shm_ring_sizes_for(tdm__host_count(host)).total_bytes;
    if (offset == 0) return false;
    if (offset % TDM__HOST_PAGE || offset < host->at.small || offset > host->at.end - bytes)
        return false;
    ring_end_set(host, offset, end);
    return true;
}

static uint32_t record_grains(uint32_t bytes)
{
    return (bytes + TDM__SHM_RING_GRAIN - 1) & ~(uint32_t)(TDM__SHM_RING_GRAIN - 1);
}

/* Sets the flag that the writer waits for space, so that the reader's next step rings its bell. */
static void writer_set_starved(tdm__shm_ring_end *end, uint32_t which)
{
    atomic_fetch_or(&end->ring->starved, which);
    tdm__fence_on(&end->ring->starved);
}

/* The number of free bytes in the ring of records, with the reader's current index. */
static uint64_t writer_record_space(tdm__shm_ring_end *end)
{
    uint64_t seen = atomic_load_explicit(&end->ring->record_head, memory_order_acquire);
    uint64_t used = end->record_at - seen;
    if (used > end->sizes.record_bytes) {
        end->garbage = true;
        return 0;
    }
    end->record_seen = seen;
    return end->sizes.record_bytes - used;
}

tdm__record *tdm__shm_ring_begin(tdm__shm_ring_end *end, uint32_t bytes)
{
    uint32_t size = end->sizes.record_bytes;
    uint32_t at = (uint32_t)(end->record_at & (size - 1)), pad = 0;
    if (size - at < record_grains(bytes)) pad = size - at;
    uint64_t need = (uint64_t)pad + record_grains(bytes);
    if (size - (end->record_at - end->record_seen) < need && writer_record_space(end) < need) {
        writer_set_starved(end, TDM__STARVED_RECORDS);
        if (writer_record_space(end) < need) return NULL;
    }
    if (pad) {
        tdm__record *filler = (tdm__record *)(end->records + at);
        *filler = (tdm__record){.kind = TDM__RECORD_PAD, .bytes = pad};
        end->record_at += pad; /* becomes visible together with the record after it */
        at = 0;
    }
    return (tdm__record *)(end->records + at);
}

void tdm__shm_ring_commit(tdm__shm_ring_end *end, uint32_t bytes)
{
    end->record_at += record_grains(bytes);
    atomic_store_explicit(&end->ring->record_tail, end->record_at, memory_order_release);
}

bool tdm__shm_ring_has_credit(tdm__shm_ring_end *end, uint64_t cost)
{
    uint64_t taken = atomic_load_explicit(&end->ring->eager_taken, memory_order_relaxed);
    uint64_t waiting = end->eager - taken;
    if (waiting > TDM__SHM_RING_CREDIT) {
        end->garbage = true; /* more was taken than sent, or sent than allowed */
        return false;
    }
    return waiting + cost <= TDM__SHM_RING_CREDIT;
}

static uint8_t *ring_piece_at(const tdm__shm_ring_end *end, uint64_t index)
{
    return end->pieces +
           (index % TDM__SHM_RING_PIECES) * (sizeof(piece_head) + (uint64_t)end->sizes.piece_bytes);
}

static bool writer_has_piece_space(tdm__shm_ring_end *end)
{
    end->piece_seen = atomic_load_explicit(&end->ring->piece_head, memory_order_acquire);
    if (end->piece_at - end->piece_seen > TDM__SHM_RING_PIECES) end->garbage = true;
    return end->piece_at - end->piece_seen < TDM__SHM_RING_PIECES;
}

uint8_t *tdm__shm_ring_piece_begin(tdm__shm_ring_end *end)
{
    if (end->piece_at - end->piece_seen >= TDM__SHM_RING_PIECES && !writer_has_piece_space(end)) {
        writer_set_starved(end, TDM__STARVED_PIECES);
        if (!writer_has_piece_space(end)) return NULL;
    }
    return ring_piece_at(end, end->piece_at) + sizeof(piece_head);
}

void tdm__shm_ring_piece_commit(tdm__shm_ring_end *end, uint64_t token, uint32_t bytes)
{
    piece_head *head = (piece_head *)ring_piece_at(end, end->piece_at);
    *head = (piece_head){.token = token, .bytes = bytes};
    end->piece_at++;
    atomic_store_explicit(&end->ring->piece_tail, end->piece_at, memory_order_release);
}

/* ---- the reader ------------------------------------------------------------------------------ */

/* Reads and validates the record at the reader's index; false if it is invalid. */
static bool reader_check_record(tdm__shm_ring_end *end, tdm__record *out, const uint8_t **out_at)
{
    uint32_t size = end->sizes.record_bytes;
    uint32_t at = (uint32_t)(end->record_at & (size - 1));
    uint64_t there = end->record_seen - end->record_at;
    if (there > size - at) there = size - at;
    if (there < sizeof(*out)) return false;
    memcpy(out, end->records + at, sizeof(*out));
    *out_at = end->records + at;
    return out->bytes >= sizeof(*out) && out->bytes <= there && record_grains(out->bytes) <= there;
}

bool tdm__shm_ring_next(tdm__shm_ring_end *end, tdm__record *out, const uint8_t **out_at)
{
    for (int pads = 0; pads < 2 && !end->garbage; pads++) {
        if (end->record_at == end->record_seen) {
            uint64_t tail = atomic_load_explicit(&end->ring->record_tail, memory_order_acquire);
            if (tail == end->record_at) return false;
            end->record_seen = tail;
            if (tail - end->record_at > end->sizes.record_bytes || tail % TDM__SHM_RING_GRAIN)
                end->garbage = true;
        }
        if (end->garbage || !reader_check_record(end, out, out_at)) break;
        if (out->kind != TDM__RECORD_PAD) return true;
        tdm__shm_ring_skip(end, out);
    }
    end->garbage = true;
    return false;
}

void tdm__shm_ring_skip(tdm__shm_ring_end *end, const tdm__record *record)
{
    end->record_at += record_grains(record->bytes);
    atomic_store_explicit(&end->ring->record_head, end->record_at, memory_order_release);
}

void tdm__shm_ring_take_eager(tdm__shm_ring_end *end, uint64_t cost)
{
    end->eager += cost;
    atomic_store_explicit(&end->ring->eager_taken, end->eager, memory_order_relaxed);
}

bool tdm__shm_ring_piece_next(tdm__shm_ring_end *end, uint64_t *out_token, uint32_t *out_bytes,
                              const uint8_t **out_at)
{
    if (end->piece_at == end->piece_seen) {
        end->piece_seen = atomic_load_explicit(&end->ring->piece_tail, memory_order_acquire);
        if (end->piece_at == end->piece_seen) return false;
        if (end->piece_seen - end->piece_at > TDM__SHM_RING_PIECES) end->garbage = true;
    }
    if (end->garbage) return false;
    piece_head head;
    const uint8_t *at = ring_piece_at(end, end->piece_at);
    memcpy(&head, at, sizeof(head));
    if (head.bytes == 0 || head.bytes > end->sizes.piece_bytes) {
        end->garbage = true;
        return false;
    }
    *out_token = head.token;
    *out_bytes = head.bytes;
    *out_at = at + sizeof(head);
    return true;
}

void tdm__shm_ring_piece_skip(tdm__shm_ring_end *end)
{
    end->piece_at++;
    atomic_store_explicit(&end->ring->piece_head, end->piece_at, memory_order_release);
}

bool tdm__shm_ring_is_fed(tdm__shm_ring_end *end, uint32_t which)
{
    tdm__fence_on(&end->ring->starved);
    if (!(atomic_load_explicit(&end->ring->starved, memory_order_relaxed) & which)) return false;
    return (atomic_fetch_and(&end->ring->starved, ~which) & which) != 0;
}
