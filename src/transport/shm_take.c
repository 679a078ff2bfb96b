/*
 * shm_take.c: receives messages from a rank of the same host.
 *
 * Records are read as they arrive. A head is validated, then reported to the engine. A small
 * payload that is not taken within that call is copied to the heap, so that the ring is not
 * blocked. A large one stays with its sender until it is taken: then it is requested and its pieces
 * are copied as they arrive, or it is copied directly from the host's memory, a few megabytes at a
 * time.
 *
 * After such a direct copy we check whether the sender has closed its rings meanwhile: if so, it
 * may have reused its memory, and the copied bytes are discarded.
 */
#include "transport/shm_inner.h"

#include <stdlib.h>
#include <string.h>

#define MAX_COPY (4ull << 20) /* bytes copied at once */

enum { MAX_RECORDS = 64 }; /* records of one peer read at once */

static const char garbage[] = "it wrote invalid data into shared memory";

/* ---- incoming messages ----------------------------------------------------------------------- */

static tdm__arrival *arrival_of(tdm__incoming *in)
{
    return (tdm__arrival *)((uintptr_t)in | 1); /* odd: see shm.h */
}

static tdm__incoming *in_of(tdm__arrival *arrival)
{
    return (tdm__incoming *)((uintptr_t)arrival & ~(uintptr_t)1);
}

static tdm__incoming *in_new(tdm__shm *s, const tdm__incoming *like)
{
    tdm__incoming *in = s->free_in;
    if (in)
        s->free_in = in->next;
    else
        in = malloc(sizeof(*in));
    if (!in) return NULL;
    *in = *like;
    in->next = s->incoming;
    if (in->next) in->next->previous = in;
    s->incoming = in;
    return in;
}

static void in_free(tdm__shm *s, tdm__incoming *in)
{
    if (s->current == in) s->current = NULL;
    if (in->previous)
        in->previous->next = in->next;
    else
        s->incoming = in->next;
    if (in->next) in->next->previous = in->previous;
    free(in->aside);
    in->aside = NULL;
    in->next = s->free_in;
    s->free_in = in;
}

static void in_list_add(tdm__in_list *list, tdm__incoming *in)
{
    in->next_take = NULL;
    if (list->last)
        list->last->next_take = in;
    else
        list->first = in;
    list->last = in;
}

static void in_list_pop(tdm__in_list *list)
{
    list->first = list->first->next_take;
    if (!list->first) list->last = NULL;
}

/* ---- answers --------------------------------------------------------------------------------- */

static void in_answer(tdm__shm *s, tdm__shm_peer *peer, tdm__incoming *in, tdm__record_kind kind)
{
    in->answer = (uint8_t)kind;
    in->next_answer = NULL;
    if (peer->answers.last)
        peer->answers.last->next_answer = in;
    else
        peer->answers.first = in;
    peer->answers.last = in;
    tdm__shm_flush(s, peer);
    tdm__shm_ring_bell(s, peer);
}

void tdm__shm_answered(tdm__shm *s, tdm__incoming *in)
{
    in->answer = 0;
    if (in->state == TDM__IN_ENDED) in_free(s, in);
}

/* Ends the take of a large message, successful or dropped: the sender may reuse its buffer. */
static void in_finish(tdm__shm *s, tdm__shm_peer *peer, tdm__incoming *in, tdm_status status)
{
    void *cookie = in->cookie;
    bool tell = in->kind == TDM__IN_PLACE || in->bytes == 0;
    in->state = TDM__IN_ENDED;
    if (tell && !peer->gone)
        in_answer(s, peer, in, TDM__RECORD_DONE); /* frees it now or later */
    else if (!in->answer)
        in_free(s, in);
    tdm__shm_received(s, cookie, status);
}

/* ---- take ------------------------------------------------------------------------------------ */

static bool peer_has_closed(const tdm__shm_peer *peer)
{
    const tdm__shm_ring_end *in = &peer->in, *out = &peer->out;
    return (in->ring &&
            atomic_load_explicit(&in->ring->writer_closed, memory_order_acquire) != 0) ||
           (out->ring &&
            atomic_load_explicit(&out->ring->reader_closed, memory_order_acquire) != 0);
}

static void peer_take_eager(tdm__shm *s, tdm__shm_peer *peer, tdm__incoming *in)
{
    tdm_status status = in->payload || in->bytes == 0 ? TDM_OK : TDM_ERR_NO_MEMORY;
    if (in->bytes && in->payload) memcpy(in->into, in->payload, in->bytes);
    void *cookie = in->cookie;
    tdm__shm_ring_take_eager(&peer->in, sizeof(tdm__record) + sizeof(tdm__head) + in->bytes);
    in_free(s, in);
    tdm__shm_received(s, cookie, status);
}

/* Copies directly from the host's memory, in order of arrival. */
static void peer_copy_in_place(tdm__shm *s, tdm__shm_peer *peer)
{
    uint64_t max = MAX_COPY;
    while (peer->copies.first && max > 0 && !peer->gone) {
        tdm__incoming *in = peer->copies.first;
        uint64_t bytes = in->bytes - in->at;
        if (bytes > max) bytes = max;
        memcpy(in->into + in->at, (uint8_t *)tdm__host_at(s->host, in->offset) + in->at, bytes);
        in->at += bytes;
        max -= bytes;
        s->moves++;
        if (in->at < in->bytes) break;
        tdm__fence_on(&peer->in.ring->writer_closed);
        if (peer_has_closed(peer)) return; /* handled by tdm__shm_read */
        in_list_pop(&peer->copies);
        in_finish(s, peer, in, TDM_OK);
    }
    if (peer->copies.first && !peer->gone) atomic_store(&s->busy, true);
}

void tdm__shm_take(tdm__transport *transport, tdm__arrival *arrival, void *into, void *cookie)
{
    tdm__shm *s = (tdm__shm *)transport;
    tdm__incoming *in = in_of(arrival);
    tdm__shm_peer *peer = &s->peers[in->place];
    in->state = TDM__IN_TAKEN;
    in->into = into;
    in->cookie = cookie;
    if (in->kind == TDM__IN_EAGER) {
        peer_take_eager(s, peer, in);
    } else if (peer->gone) {
        in_free(s, in);
        tdm__shm_received(s, cookie, TDM_ERR_PEER_FAILED);
    } else if (in->bytes == 0) {
        in_finish(s, peer, in, TDM_OK);
    } else if (in->kind == TDM__IN_PLACE) {
        in_list_add(&peer->copies, in);
        if (peer->copies.first == in)
            peer_copy_in_place(s, peer);
        else
            atomic_store(&s->busy, true);
    } else {
        in_list_add(&peer->takes, in);
        in_answer(s, peer, in, TDM__RECORD_GO);
    }
}

void tdm__shm_drop(tdm__transport *transport, tdm__arrival *arrival)
{
    tdm__shm *s = (tdm__shm *)transport;
    tdm__incoming *in = in_of(arrival);
    tdm__shm_peer *peer = &s->peers[in->place];
    in->state = TDM__IN_ENDED;
    if (in->kind == TDM__IN_EAGER)
        tdm__shm_ring_take_eager(&peer->in, sizeof(tdm__record) + sizeof(tdm__head) + in->bytes);
    if (in->kind == TDM__IN_EAGER || peer->gone)
        in_free(s, in);
    else
        in_answer(s, peer, in, TDM__RECORD_DONE);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Handles the head of a message. False: it is invalid. */
static bool peer_read_message(tdm__shm *s, tdm__shm_peer *peer, const tdm__record *record,
                              const uint8_t *at)
{
    tdm__head head;
    if (record->bytes < sizeof(*record) + sizeof(head)) return false;
    memcpy(&head, at + sizeof(*record), sizeof(head));
    uint64_t inside = record->bytes - sizeof(*record) - sizeof(head);
    bool eager = record->kind == TDM__RECORD_EAGER, in_place = record->kind == TDM__RECORD_INPLACE;
    if (!tdm__head_check(&head, s->world, s->size) || head.source != (uint32_t)peer->rank ||
        inside != (eager ? head.bytes : 0))
        return false;
    if (in_place &&
        (record->offset > s->host->at.end || head.bytes > s->host->at.end - record->offset))
        return false;

    tdm__incoming *in = in_new(
        s, &(tdm__incoming){.kind = eager      ? TDM__IN_EAGER
                                    : in_place ? TDM__IN_PLACE
                                               : TDM__IN_PIECES,
                            .place = peer->place,
                            .token = record->token,
                            .offset = record->offset,
                            .bytes = head.bytes,
                            .payload = eager ? at + sizeof(*record) + sizeof(head) : NULL});
    if (!in) {
        tdm__shm_lose(s, peer, true, "out of memory for a message from it");
        return true;
    }

    s->current = in;
    s->callbacks++;
    s->events.arrived(s->events.user, peer->rank, &head, arrival_of(in));
    if (s->current == in && eager && in->state == TDM__IN_ARRIVED) {
        /* Not taken yet: copied to the heap, so that the ring is not blocked. */
        in->aside = in->bytes ? malloc(in->bytes) : NULL;
        if (in->aside) memcpy(in->aside, in->payload, in->bytes);
        in->payload = in->aside;
    }
    s->current = NULL;
    return true;
}

static bool peer_read_record(tdm__shm *s, tdm__shm_peer *peer, const tdm__record *record,
                             const uint8_t *at)
{
    switch (record->kind) {
    case TDM__RECORD_EAGER:
    case TDM__RECORD_ANNOUNCE:
    case TDM__RECORD_INPLACE: return peer_read_message(s, peer, record, at);
    case TDM__RECORD_GO: return tdm__shm_go(s, peer, record->token);
    case TDM__RECORD_DONE: return tdm__shm_done(s, peer, record->token);
    default: return false;
    }
}

static void peer_read_records(tdm__shm *s, tdm__shm_peer *peer)
{
    tdm__record record;
    const uint8_t *at;
    int count = 0;
    for (; count < MAX_RECORDS && !peer->gone; count++) {
        if (!tdm__shm_ring_next(&peer->in, &record, &at)) break;
        if (!peer_read_record(s, peer, &record, at)) peer->in.garbage = true;
        tdm__shm_ring_skip(&peer->in, &record);
        s->moves++;
    }
    if (count == MAX_RECORDS) atomic_store(&s->busy, true);
    if (count > 0 && tdm__shm_ring_is_fed(&peer->in, TDM__STARVED_RECORDS)) peer->rung = true;
}

static void peer_read_pieces(tdm__shm *s, tdm__shm_peer *peer)
{
    uint64_t token;
    uint32_t bytes;
    const uint8_t *at;
    int count = 0;
    for (; count < TDM__SHM_RING_PIECES && !peer->gone; count++) {
        if (!tdm__shm_ring_piece_next(&peer->in, &token, &bytes, &at)) break;
        tdm__incoming *in = peer->takes.first;
        if (!in || in->token != token || bytes > in->bytes - in->at) {
            peer->in.garbage = true;
            break;
        }
        memcpy(in->into + in->at, at, bytes);
        tdm__shm_ring_piece_skip(&peer->in);
        in->at += bytes;
        s->moves++;
        if (in->at < in->bytes) continue;
        in_list_pop(&peer->takes);
        in_finish(s, peer, in, TDM_OK);
    }
    if (count == TDM__SHM_RING_PIECES) atomic_store(&s->busy, true);
    if (count > 0 && tdm__shm_ring_is_fed(&peer->in, TDM__STARVED_PIECES)) peer->rung = true;
}

void tdm__shm_read(tdm__shm *s, tdm__shm_peer *peer)
{
    if (peer->gone) return;
    bool closed = peer_has_closed(peer); /* read first: everything sent before it is read now */
    if (!peer->in.ring && !tdm__shm_ring_find(s->host, peer->place, s->own, &peer->in)) {
        if (closed) tdm__shm_lose(s, peer, false, "it closed its connection to this rank");
        return;
    }
    peer_read_records(s, peer);
    if (!peer->gone) peer_read_pieces(s, peer);
    if (!peer->gone && peer->copies.first) peer_copy_in_place(s, peer);
    if (peer->gone) return;
    if (peer->in.garbage)
        tdm__shm_lose(s, peer, true, garbage);
    else if (closed && peer->in.record_at ==
                           atomic_load_explicit(&peer->in.ring->record_tail, memory_order_acquire))
        tdm__shm_lose(s, peer, false, "it closed its connection to this rank");
}

/* ---- end ------------------------------------------------------------------------------------- */

bool tdm__shm_end_takes(tdm__shm *s, tdm__shm_peer *peer)
{
    bool any = false;
    tdm__incoming *answers = peer->answers.first;
    tdm__in_list ended[] = {peer->takes, peer->copies};
    peer->answers = peer->takes = peer->copies = (tdm__in_list){0};
    for (tdm__incoming *in = answers, *next; in; in = next) {
        next = in->next_answer;
        in->answer = 0;
        if (in->state == TDM__IN_ENDED) in_free(s, in);
    }
    for (int i = 0; i < 2; i++)
        for (tdm__incoming *in = ended[i].first, *next; in; in = next) {
            next = in->next_take;
            void *cookie = in->cookie;
            any = true;
            in_free(s, in);
            tdm__shm_received(s, cookie, TDM_ERR_PEER_FAILED);
        }
    return any;
}

void tdm__shm_free_takes(tdm__shm *s)
{
    while (s->incoming) in_free(s, s->incoming);
    for (tdm__incoming *in = s->free_in, *next; in; in = next) {
        next = in->next;
        free(in);
    }
}
