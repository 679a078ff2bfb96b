/*
 * shm_send.c: what goes out to a neighbour.
 *
 * A small message is copied into the ring with its head, and has ended. A large one is announced. If it
 * lies in the host's memory, the receiver copies it from there and says so; if not, it asks for it, and
 * the bytes flow through the ring of pieces. Messages whose head finds no room wait in a queue, in
 * order; answers go first, so that a crowd of heads never holds up what is under way.
 */
#include "transport/shm_inner.h"

#include <stdlib.h>
#include <string.h>

enum { HEAD_BYTES = sizeof(tdm__record) + sizeof(tdm__head) };

/* ---- the messages ------------------------------------------------------------------------------ */

static bool add_chunk(tdm__shm *s)
{
    tdm__outgoing **chunks = realloc(s->chunks, (s->chunk_count + 1) * sizeof(tdm__outgoing *));
    if (!chunks) return false;
    s->chunks = chunks;
    tdm__outgoing *chunk = calloc(TDM__SHM_CHUNK, sizeof *chunk);
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
    if (!s->free_out && !add_chunk(s)) return NULL;
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

static uint64_t token_of(const tdm__outgoing *out)
{
    return (uint64_t)out->number << 32 | out->index;
}

/* The announced message of that name; NULL for a name that we never gave, or not to this peer. */
static tdm__outgoing *out_find(const tdm__shm *s, const tdm__shm_peer *peer, uint64_t token)
{
    uint32_t index = (uint32_t)token;
    if (index >= s->chunk_count * TDM__SHM_CHUNK) return NULL;
    tdm__outgoing *out = &s->chunks[index / TDM__SHM_CHUNK][index % TDM__SHM_CHUNK];
    if (out->state != TDM__OUT_ANNOUNCED || out->place != peer->place || token_of(out) != token)
        return NULL;
    return out;
}

static void list_add(tdm__out_list *list, tdm__outgoing *out)
{
    out->next = NULL;
    if (list->last)
        list->last->next = out;
    else
        list->first = out;
    list->last = out;
}

static void list_pop(tdm__out_list *list)
{
    list->first = list->first->next;
    if (!list->first) list->last = NULL;
}

/* Ends a message that is in no list any more. */
static void out_end(tdm__shm *s, tdm__outgoing *out, tdm_status status)
{
    void *cookie = out->cookie;
    out_free(s, out);
    tdm__shm_sent(s, cookie, status);
}

/* ---- writing ----------------------------------------------------------------------------------- */

static bool has_lane(tdm__shm *s, tdm__shm_peer *peer, tdm_error *err)
{
    return peer->out.lane ||
           tdm__shm_ring_make(s->host, s->own, peer->place, &peer->out, err) == TDM_OK;
}

static void commit(tdm__shm *s, tdm__shm_peer *peer, uint32_t bytes)
{
    tdm__shm_ring_commit(&peer->out, bytes);
    peer->rung = true;
    s->moves++;
}

/* A small message, as a whole. False: no room, or it has to be announced. */
static bool write_eager(tdm__shm *s, tdm__shm_peer *peer, const tdm__head *head, const void *data)
{
    if (head->bytes > TDM__MAX_EAGER) return false;
    uint32_t bytes = HEAD_BYTES + (uint32_t)head->bytes;
    if (!tdm__shm_ring_has_credit(&peer->out, bytes)) return false;
    tdm__record *record = tdm__shm_ring_begin(&peer->out, bytes);
    if (!record) return false;
    *record = (tdm__record){.kind = TDM__RECORD_EAGER, .bytes = bytes};
    uint8_t *at = (uint8_t *)(record + 1);
    memcpy(at, head, sizeof *head);
    if (head->bytes) memcpy(at + sizeof *head, data, head->bytes);
    peer->out.eager += bytes;
    commit(s, peer, bytes);
    return true;
}

/* The head alone. False: no room. */
static bool write_announce(tdm__shm *s, tdm__shm_peer *peer, tdm__outgoing *out)
{
    tdm__record *record = tdm__shm_ring_begin(&peer->out, HEAD_BYTES);
    if (!record) return false;
    uint64_t offset = tdm__host_offset(s->host, out->data, out->head.bytes);
    out->in_place = out->head.bytes > 0 && offset != UINT64_MAX;
    out->state = TDM__OUT_ANNOUNCED;
    *record = (tdm__record){.kind = out->in_place ? TDM__RECORD_INPLACE : TDM__RECORD_ANNOUNCE,
                            .bytes = HEAD_BYTES,
                            .token = token_of(out),
                            .offset = out->in_place ? offset : 0};
    memcpy(record + 1, &out->head, sizeof out->head);
    commit(s, peer, HEAD_BYTES);
    return true;
}

static void write_answers(tdm__shm *s, tdm__shm_peer *peer)
{
    while (peer->answers.first) {
        tdm__incoming *in = peer->answers.first;
        tdm__record *record = tdm__shm_ring_begin(&peer->out, sizeof *record);
        if (!record) return;
        *record = (tdm__record){.kind = in->answer, .bytes = sizeof *record, .token = in->token};
        commit(s, peer, sizeof *record);
        peer->answers.first = in->next_answer;
        if (!in->next_answer) peer->answers.last = NULL;
        tdm__shm_answered(s, in);
    }
}

static void write_queue(tdm__shm *s, tdm__shm_peer *peer)
{
    while (peer->queue.first && !peer->answers.first) {
        tdm__outgoing *out = peer->queue.first;
        if (write_eager(s, peer, &out->head, out->data)) {
            list_pop(&peer->queue);
            out_end(s, out, TDM_OK);
        } else if (write_announce(s, peer, out)) {
            list_pop(&peer->queue);
        } else {
            return;
        }
    }
}

static void write_pieces(tdm__shm *s, tdm__shm_peer *peer)
{
    /* As many as the ring has places: the others want to be served as well. */
    for (int i = 0; i < TDM__SHM_RING_PIECES && peer->flow.first; i++) {
        tdm__outgoing *out = peer->flow.first;
        uint8_t *to = tdm__shm_ring_piece_begin(&peer->out);
        if (!to) return;
        uint64_t left = out->head.bytes - out->at;
        uint32_t bytes = peer->out.sizes.piece_bytes;
        if (bytes > left) bytes = (uint32_t)left;
        memcpy(to, out->data + out->at, bytes);
        tdm__shm_ring_piece_commit(&peer->out, token_of(out), bytes);
        out->at += bytes;
        peer->rung = true;
        s->moves++;
        /* With a processor for each rank the other side can begin at once; else it would only take
         * ours away. */
        if (tdm__host_spins(s->host)) tdm__shm_ring_bell(s, peer);
        if (out->at < out->head.bytes) continue;
        list_pop(&peer->flow);
        out_end(s, out, TDM_OK);
        if (peer->gone) return;
    }
    if (peer->flow.first) atomic_store(&s->busy, true);
}

void tdm__shm_flush(tdm__shm *s, tdm__shm_peer *peer)
{
    if (peer->gone || (!peer->answers.first && !peer->queue.first && !peer->flow.first)) return;
    if (!has_lane(s, peer, NULL)) return; /* answers only: a send without a lane has failed */
    write_answers(s, peer);
    if (!peer->gone) write_queue(s, peer);
    if (!peer->gone) write_pieces(s, peer);
    if (!peer->gone && peer->out.garbage)
        tdm__shm_lose(s, peer, true, "what it wrote into shared memory makes no sense");
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
    } else if (!has_lane(s, peer, &err)) {
        tdm_log(TDM_LOG_ERROR, "comm", "no room to send to rank %d: %s", rank, err.message);
        tdm__shm_sent(s, cookie, err.status);
    } else if (!peer->queue.first && !peer->answers.first && write_eager(s, peer, head, data)) {
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
        list_add(&peer->queue, out);
        tdm__shm_flush(s, peer);
        tdm__shm_ring_bell(s, peer);
    }
}

bool tdm__shm_go(tdm__shm *s, tdm__shm_peer *peer, uint64_t token)
{
    tdm__outgoing *out = out_find(s, peer, token);
    if (!out || out->in_place || out->head.bytes == 0) return false;
    out->state = TDM__OUT_FLOWING;
    list_add(&peer->flow, out);
    return true;
}

bool tdm__shm_done(tdm__shm *s, tdm__shm_peer *peer, uint64_t token)
{
    tdm__outgoing *out = out_find(s, peer, token);
    if (!out) return false;
    out_end(s, out, TDM_OK);
    return true;
}

/* ---- the end ----------------------------------------------------------------------------------- */

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
