/*
 * shm_send.c: sends messages to a rank of the same host.
 *
 * A small message is copied into the ring with its head; its send has ended then. A large one is
 * announced. If it is in the host's memory, the receiver copies it from there and confirms;
 * otherwise the receiver requests it, and the bytes go through the ring of pieces. Messages whose
 * head does not fit wait in a queue, in order; answers go first, so that many heads never delay
 * active transfers.
 */
#include "transport/shm_inner.h"

#include <stdlib.h>
#include <string.h>

enum { HEAD_BYTES = sizeof(tdm__record) + sizeof(tdm__head) };

/* ---- outgoing messages ----------------------------------------------------------------------- */

static bool out_add_chunk(tdm__shm *s)
{
    tdm__outgoing **chunks = realloc(s->chunks, (s->chunk_count + 1) * sizeof(tdm__outgoing *));
    if (!chunks) return false;
    s->chunks = chunks;
    tdm__outgoing *chunk = calloc(TDM__SHM_CHUNK, sizeof(*chunk));
    if (!chunk) return false;
    for (uint32_t i = 0; i < TDM__SHM_CHUNK; i++) {
        chunk[i].index = s->chunk_count * TDM__SHM_CHUNK + i;
        chunk[i].next = s->free_out;
        s->free_out = &chunk[i];
    }
    s->chunks[s->chunk_count++] = chunk;
    return true;
}

static tdm__outgoing *out_new(tdm__shm *s, const tdm__outgoing *like)
{
    if (!s->free_out && !out_add_chunk(s)) return NULL;
    tdm__outgoing *out = s->free_out;
    s->free_out = out->next;
    uint32_t index = out->index;
    *out = *like;
    out->index = index;
    out->number = ++s->number;
    return out;
}

static void out_free(tdm__shm *s, tdm__outgoing *out)
{
    out->state = TDM__OUT_FREE;
    out->next = s->free_out;
    s->free_out = out;
}

static uint64_t out_token(const tdm__outgoing *out)
{
    return (uint64_t)out->number << 32 | out->index;
}

/* The announced message with this token; NULL if the token is unknown or belongs to another peer.
 * */
static tdm__outgoing *out_find(const tdm__shm *s, const tdm__shm_peer *peer, uint64_t token)
{
    uint32_t index = (uint32_t)token;
    if (index >= s->chunk_count * TDM__SHM_CHUNK) return NULL;
    tdm__outgoing *out = &s->chunks[index / TDM__SHM_CHUNK][index % TDM__SHM_CHUNK];
    if (out->state != TDM__OUT_ANNOUNCED || out->place != peer->place || out_token(out) != token)
        return NULL;
    return out;
}

static void out_list_add(tdm__out_list *list, tdm__outgoing *out)
{
    out->next = NULL;
    if (list->last)
        list->last->next = out;
    else
        list->first = out;
    list->last = out;
}

static void out_list_pop(tdm__out_list *list)
{
    list->first = list->first->next;
    if (!list->first) list->last = NULL;
}

/* Ends a message that is in no list. */
static void out_end(tdm__shm *s, tdm__outgoing *out, tdm_status status)
{
    void *cookie = out->cookie;
    out_free(s, out);
    tdm__shm_sent(s, cookie, status);
}

/* ---- writing --------------------------------------------------------------------------------- */

static bool peer_has_ring(tdm__shm *s, tdm__shm_peer *peer, tdm_error *err)
{
    return peer->out.ring ||
           tdm__shm_ring_make(s->host, s->own, peer->place, &peer->out, err) == TDM_OK;
}

static void peer_commit(tdm__shm *s, tdm__shm_peer *peer, uint32_t bytes)
{
    tdm__shm_ring_commit(&peer->out, bytes);
    peer->rung = true;
    s->moves++;
}

/* Writes a whole small message. False: no space, or it must be announced. */
static bool peer_write_eager(tdm__shm *s, tdm__shm_peer *peer, const tdm__head *head,
                             const void *data)
{
    if (head->bytes > TDM__MAX_EAGER) return false;
    uint32_t bytes = HEAD_BYTES + (uint32_t)head->bytes;
    if (!tdm__shm_ring_has_credit(&peer->out, bytes)) return false;
    tdm__record *record = tdm__shm_ring_begin(&peer->out, bytes);
    if (!record) return false;
    *record = (tdm__record){.kind = TDM__RECORD_EAGER, .bytes = bytes};
    uint8_t *at = (uint8_t *)(record + 1);
    memcpy(at, head, sizeof(*head));
    if (head->bytes) memcpy(at + sizeof(*head), data, head->bytes);
    peer->out.eager += bytes;
    peer_commit(s, peer, bytes);
    return true;
}

/* Writes the head only. False: no space. */
static bool peer_write_announce(tdm__shm *s, tdm__shm_peer *peer, tdm__outgoing *out)
{
    tdm__record *record = tdm__shm_ring_begin(&peer->out, HEAD_BYTES);
    if (!record) return false;
    uint64_t offset = tdm__host_offset(s->host, out->data, out->head.bytes);
    out->in_place = out->head.bytes > 0 && offset != UINT64_MAX;
    out->state = TDM__OUT_ANNOUNCED;
    *record = (tdm__record){.kind = out->in_place ? TDM__RECORD_INPLACE : TDM__RECORD_ANNOUNCE,
                            .bytes = HEAD_BYTES,
                            .token = out_token(out),
                            .offset = out->in_place ? offset : 0};
    memcpy(record + 1, &out->head, sizeof(out->head));
    peer_commit(s, peer, HEAD_BYTES);
    return true;
}

static void peer_write_answers(tdm__shm *s, tdm__shm_peer *peer)
{
    while (peer->answers.first) {
        tdm__incoming *in = peer->answers.first;
        tdm__record *record = tdm__shm_ring_begin(&peer->out, sizeof(*record));
        if (!record) return;
        *record = (tdm__record){.kind = in->answer, .bytes = sizeof(*record), .token = in->token};
        peer_commit(s, peer, sizeof(*record));
        peer->answers.first = in->next_answer;
        if (!in->next_answer) peer->answers.last = NULL;
        tdm__shm_answered(s, in);
    }
}

static void peer_write_queue(tdm__shm *s, tdm__shm_peer *peer)
{
    while (peer->queue.first && !peer->answers.first) {
        tdm__outgoing *out = peer->queue.first;
        if (peer_write_eager(s, peer, &out->head, out->data)) {
            out_list_pop(&peer->queue);
            out_end(s, out, TDM_OK);
        } else if (peer_write_announce(s, peer, out)) {
            out_list_pop(&peer->queue);
        } else {
            return;
        }
    }
}

static void peer_write_pieces(tdm__shm *s, tdm__shm_peer *peer)
{
    /* At most one round of the ring, so that other peers are served as well. */
    for (int i = 0; i < TDM__SHM_RING_PIECES && peer->flow.first; i++) {
        tdm__outgoing *out = peer->flow.first;
        uint8_t *to = tdm__shm_ring_piece_begin(&peer->out);
        if (!to) return;
        uint64_t left = out->head.bytes - out->at;
        uint32_t bytes = peer->out.sizes.piece_bytes;
        if (bytes > left) bytes = (uint32_t)left;
        memcpy(to, out->data + out->at, bytes);
        tdm__shm_ring_piece_commit(&peer->out, out_token(out), bytes);
        out->at += bytes;
        peer->rung = true;
        s->moves++;
        /* With a CPU for each rank the receiver can start at once; otherwise it would only take our
         * CPU. */
        if (tdm__host_spins(s->host)) tdm__shm_ring_bell(s, peer);
        if (out->at < out->head.bytes) continue;
        out_list_pop(&peer->flow);
        out_end(s, out, TDM_OK);
        if (peer->gone) return;
    }
    if (peer->flow.first) atomic_store(&s->busy, true);
}

void tdm__shm_flush(tdm__shm *s, tdm__shm_peer *peer)
{
    if (peer->gone || (!peer->answers.first && !peer->queue.first && !peer->flow.first)) return;
    if (!peer_has_ring(s, peer, NULL)) return; /* answers only: a send without rings has failed */
    peer_write_answers(s, peer);
    if (!peer->gone) peer_write_queue(s, peer);
    if (!peer->gone) peer_write_pieces(s, peer);
    if (!peer->gone && peer->out.garbage)
        tdm__shm_lose(s, peer, true, "it wrote invalid data into shared memory");
}

void tdm__shm_send(tdm__transport *transport, int rank, const tdm__head *head, const void *data,
                   void *cookie)
{
    tdm__shm *s = (tdm__shm *)transport;
    int place = rank >= 0 && rank < s->size ? s->place_of[rank] : -1;
    if (place < 0) {
        tdm__shm_sent(s, cookie, TDM_ERR_UNSUPPORTED);
        return;
    }

    tdm__shm_peer *peer = &s->peers[place];
    tdm_error err;
    if (peer->gone) {
        tdm__shm_sent(s, cookie, TDM_ERR_PEER_FAILED);
    } else if (!peer_has_ring(s, peer, &err)) {
        tdm_log(TDM_LOG_ERROR, "comm", "cannot create a ring to send to rank %d: %s", rank,
                err.message);
        tdm__shm_sent(s, cookie, err.status);
    } else if (!peer->queue.first && !peer->answers.first &&
               peer_write_eager(s, peer, head, data)) {
        tdm__shm_ring_bell(s, peer);
        tdm__shm_sent(s, cookie, TDM_OK);
    } else {
        tdm__outgoing *out = out_new(s, &(tdm__outgoing){.state = TDM__OUT_QUEUED,
                                                         .place = place,
                                                         .head = *head,
                                                         .data = data,
                                                         .cookie = cookie});
        if (!out) {
            tdm__shm_sent(s, cookie, TDM_ERR_NO_MEMORY);
            return;
        }
        out_list_add(&peer->queue, out);
        tdm__shm_flush(s, peer);
        tdm__shm_ring_bell(s, peer);
    }
}

bool tdm__shm_go(tdm__shm *s, tdm__shm_peer *peer, uint64_t token)
{
    tdm__outgoing *out = out_find(s, peer, token);
    if (!out || out->in_place || out->head.bytes == 0) return false;
    out->state = TDM__OUT_FLOWING;
    out_list_add(&peer->flow, out);
    return true;
}

bool tdm__shm_done(tdm__shm *s, tdm__shm_peer *peer, uint64_t token)
{
    tdm__outgoing *out = out_find(s, peer, token);
    if (!out) return false;
    out_end(s, out, TDM_OK);
    return true;
}

/* ---- end ------------------------------------------------------------------------------------- */

bool tdm__shm_has_sends(const tdm__shm *s, const tdm__shm_peer *peer)
{
    for (uint32_t i = 0; i < s->chunk_count * TDM__SHM_CHUNK; i++) {
        const tdm__outgoing *out = &s->chunks[i / TDM__SHM_CHUNK][i % TDM__SHM_CHUNK];
        if (out->state != TDM__OUT_FREE && out->place == peer->place) return true;
    }
    return false;
}

bool tdm__shm_end_sends(tdm__shm *s, tdm__shm_peer *peer)
{
    bool any = false;
    peer->queue = peer->flow = (tdm__out_list){0};
    for (uint32_t i = 0; i < s->chunk_count * TDM__SHM_CHUNK; i++) {
        tdm__outgoing *out = &s->chunks[i / TDM__SHM_CHUNK][i % TDM__SHM_CHUNK];
        if (out->state == TDM__OUT_FREE || out->place != peer->place) continue;
        any = true;
        out_end(s, out, TDM_ERR_PEER_FAILED);
    }
    return any;
}

void tdm__shm_free_sends(tdm__shm *s)
{
    for (uint32_t i = 0; i < s->chunk_count; i++) free(s->chunks[i]);
    free(s->chunks);
}
