/*
 * tcp_messages.c: messages of the engine over links: send, arrival, take, drop, loss of peers.
 *
 * Frames come from an authenticated peer of this world. They are validated nevertheless, so that a
 * defect there does not spread: an invalid frame is the loss of the peer.
 */
#include "transport/tcp_inner.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- callbacks ------------------------------------------------------------------------------- */

static void tcp_call_sent(tdm__tcp *tcp, void *cookie, tdm_status status)
{
    tcp->calls++;
    tcp->events.sent(tcp->events.user, cookie, status);
}

static void tcp_call_received(tdm__tcp *tcp, void *cookie, tdm_status status)
{
    tcp->calls++;
    tcp->events.received(tcp->events.user, cookie, status);
}

/* ---- send ------------------------------------------------------------------------------------ */

static tdm__tcp_send *send_take(tdm__tcp *tcp)
{
    tdm__tcp_send *message = tcp->spare_sends;
    if (message)
        tcp->spare_sends = message->next;
    else
        message = malloc(sizeof(*message));
    return message;
}

static void send_end(tdm__tcp_send *message, tdm_status status)
{
    tdm__tcp *tcp = message->peer->tcp;
    void *cookie = message->cookie;
    message->next = tcp->spare_sends;
    tcp->spare_sends = message;
    tcp_call_sent(tcp, cookie, status);
}

void tdm__tcp_frame_done(tdm__tcp_send *message)
{
    if (--message->frames > 0) return;
    bool is_well = message->peer->state == TDM__TCP_WELL;
    send_end(message, is_well ? TDM_OK : TDM_ERR_PEER_FAILED);
}

/* The link with the fewest queued bytes. */
static tdm__tcp_link *peer_least_busy_link(tdm__tcp_peer *peer)
{
    tdm__tcp_link *best = &peer->links[0];
    for (int i = 1; i < peer->tcp->streams; i++)
        if (peer->links[i].queued_bytes < best->queued_bytes) best = &peer->links[i];
    return best;
}

bool tdm__tcp_answer(tdm__tcp_peer *peer, tdm__tcp_kind kind, uint32_t id)
{
    tdm__tcp_frame *frame = tdm__tcp_frame_take(peer->tcp);
    if (!frame) return false;
    frame->front.start = (tdm__tcp_start){.kind = kind, .id = id};
    tdm__link_send(peer_least_busy_link(peer), frame);
    return true;
}

static tdm_status peer_start_send(tdm__tcp_peer *peer, const tdm__head *head, const void *data,
                                  void *cookie)
{
    tdm__tcp *tcp = peer->tcp;
    if (peer->state != TDM__TCP_WELL) return TDM_ERR_PEER_FAILED;
    tdm__tcp_send *message = send_take(tcp);
    tdm__tcp_frame *frame = tdm__tcp_frame_take(tcp);
    if (!message || !frame) {
        free(message);
        free(frame);
        return TDM_ERR_NO_MEMORY;
    }

    *message = (tdm__tcp_send){.peer = peer, .cookie = cookie, .data = data, .bytes = head->bytes};
    bool is_offer = head->bytes > TDM__MAX_TCP_EAGER;
    frame->front.head = *head;
    frame->front_bytes = sizeof(frame->front);
    frame->front.start.kind = is_offer ? TDM__TCP_OFFER : TDM__TCP_EAGER;
    if (is_offer) {
        message->id = frame->front.start.id = ++peer->next_id;
        message->next = peer->offers;
        peer->offers = message;
    } else {
        message->frames = 1;
        frame->message = message;
        frame->data = data;
        frame->front.start.bytes = head->bytes;
    }

    tdm__link_send(peer_least_busy_link(peer), frame);
    return TDM_OK;
}

void tdm__tcp_send_message(tdm__transport *transport, int peer, const tdm__head *head,
                           const void *data, void *cookie)
{
    tdm__tcp *tcp = (tdm__tcp *)transport;
    tdm_status status = peer_start_send(&tcp->peers[peer], head, data, cookie);
    if (status != TDM_OK) tcp_call_sent(tcp, cookie, status);
}

static tdm__tcp_send *offer_remove(tdm__tcp_peer *peer, uint32_t id)
{
    for (tdm__tcp_send **at = &peer->offers; *at; at = &(*at)->next) {
        tdm__tcp_send *message = *at;
        if (message->id != id) continue;
        *at = message->next;
        message->next = NULL;
        return message;
    }
    return NULL;
}

/* The receiver has a buffer: splits the payload into pieces for the links. */
static bool peer_on_clear(tdm__tcp_peer *peer, uint32_t id)
{
    tdm__tcp_send *message = offer_remove(peer, id);
    if (!message) return false;
    message->frames = 1; /* our own reference, until all pieces are queued */
    for (uint64_t offset = 0; offset < message->bytes && peer->state == TDM__TCP_WELL;) {
        uint64_t left = message->bytes - offset;
        uint64_t bytes = left < TDM__TCP_PIECE ? left : TDM__TCP_PIECE;
        tdm__tcp_frame *frame = tdm__tcp_frame_take(peer->tcp);
        if (!frame) {
            tdm__link_break(&peer->links[0], ENOMEM);
            break;
        }
        frame->front.start = (tdm__tcp_start){TDM__TCP_DATA, id, offset, bytes};
        frame->data = message->data + offset;
        frame->message = message;
        message->frames++;
        tdm__link_send(peer_least_busy_link(peer), frame);
        offset += bytes;
    }
    tdm__tcp_frame_done(message);
    return true;
}

static bool peer_on_drop(tdm__tcp_peer *peer, uint32_t id)
{
    tdm__tcp_send *message = offer_remove(peer, id);
    if (message) send_end(message, TDM_OK);
    return message != NULL;
}

/* ---- buffers of unexpected messages ---------------------------------------------------------- */

static uint8_t *buffer_take(tdm__tcp *tcp, uint64_t bytes, size_t *out_capacity)
{
    enum { MIN = 4096 };
    for (int i = 0; i < TDM__TCP_SPARES; i++) {
        tdm__tcp_spare *spare = &tcp->spares[i];
        if (!spare->bytes || spare->capacity < bytes || spare->capacity / 4 > bytes + MIN) continue;
        uint8_t *found = spare->bytes;
        *out_capacity = spare->capacity;
        spare->bytes = NULL;
        return found;
    }
    *out_capacity = bytes < MIN ? MIN : (size_t)bytes;
    return malloc(*out_capacity);
}

/* Keeps the buffer: fresh memory from the kernel costs more than the copy into it. */
static void buffer_give(tdm__tcp *tcp, uint8_t *bytes, size_t capacity)
{
    if (!bytes) return;
    tdm__tcp_spare *place = &tcp->spares[0];
    for (int i = 0; i < TDM__TCP_SPARES && place->bytes; i++)
        if (!tcp->spares[i].bytes || tcp->spares[i].capacity < place->capacity)
            place = &tcp->spares[i];
    if (place->bytes && place->capacity >= capacity) {
        free(bytes);
        return;
    }
    free(place->bytes);
    *place = (tdm__tcp_spare){bytes, capacity};
}

/* ---- arrivals -------------------------------------------------------------------------------- */

static void arrival_add(tdm__tcp_peer *peer, tdm__arrival *a)
{
    a->next = peer->arrivals;
    peer->arrivals = a;
}

/* Detaches the message from its link, which discards the rest of the payload. */
static void arrival_detach(tdm__arrival *a)
{
    for (int i = 0; i < a->peer->tcp->streams; i++) {
        tdm__tcp_link *link = &a->peer->links[i];
        if (link->arrival != a) continue;
        link->arrival = NULL;
        link->into = NULL;
    }
    a->link = NULL;
}

static void arrival_free(tdm__arrival *a)
{
    tdm__tcp_peer *peer = a->peer;
    arrival_detach(a);
    tdm__arrival **at = &peer->arrivals; /* a short list: messages that were not taken at once */
    while (*at != a) at = &(*at)->next;
    *at = a->next;
    buffer_give(peer->tcp, a->bytes, a->capacity);
    free(a);
}

/* Ends a take. */
static void arrival_end(tdm__arrival *a, tdm_status status)
{
    tdm__tcp *tcp = a->peer->tcp;
    void *cookie = a->cookie;
    arrival_free(a);
    tcp_call_received(tcp, cookie, status);
}

/* Handles the start of a message. The engine is called at once: if it takes the message, the
 * payload is received directly into its buffer. */
static bool link_on_message(tdm__tcp_link *link, const tdm__tcp_start *start, const tdm__head *head)
{
    tdm__tcp_peer *peer = link->peer;
    tdm__tcp *tcp = peer->tcp;
    bool is_offer = start->kind == TDM__TCP_OFFER;
    if (!tdm__head_check(head, tcp->world, tcp->size) || head->source != (uint32_t)peer->rank ||
        (is_offer ? start->bytes != 0 || start->id == 0
                  : start->bytes != head->bytes || head->bytes > TDM__MAX_TCP_EAGER))
        return false;
    tdm__arrival *a = calloc(1, sizeof(*a));
    if (!a) return false; /* a missing message would block forever */
    a->peer = peer;
    a->head = *head;
    a->id = start->id;
    bool has_payload = !is_offer && head->bytes > 0;
    if (has_payload) {
        a->link = link;
        link->arrival = a;
        link->into = NULL;
    }
    arrival_add(peer, a);
    tcp->calls++;
    tcp->events.arrived(tcp->events.user, peer->rank, head, a);
    if (has_payload && link->arrival == a && !link->into && link->state == TDM__TCP_LINK_OPEN)
        link->state = TDM__TCP_LINK_STALLED;
    return true;
}

bool tdm__tcp_resume(tdm__tcp_link *link)
{
    tdm__arrival *a = link->arrival;
    link->state = TDM__TCP_LINK_OPEN;
    if (!a || link->into) return true;
    a->bytes = buffer_take(link->peer->tcp, a->head.bytes, &a->capacity);
    link->into = a->bytes;
    return a->bytes != NULL;
}

/* Handles a piece of an offered payload. */
static bool link_on_data(tdm__tcp_link *link, const tdm__tcp_start *start)
{
    tdm__arrival *a = link->peer->arrivals;
    while (a && !(a->state == TDM__ARRIVAL_TAKEN && a->id == start->id && start->id != 0))
        a = a->next;
    if (!a || start->bytes == 0 || start->offset > a->head.bytes ||
        start->bytes > a->head.bytes - start->offset)
        return false;
    link->arrival = a;
    link->into = a->into + start->offset;
    link->payload_bytes = start->bytes;
    return true;
}

bool tdm__tcp_on_frame(tdm__tcp_link *link, const tdm__tcp_start *start, const tdm__head *head)
{
    link->arrival = NULL;
    link->into = NULL;
    if (link->state == TDM__TCP_LINK_BYE) return false;
    switch (start->kind) {
    case TDM__TCP_EAGER:
    case TDM__TCP_OFFER: return link_on_message(link, start, head);
    case TDM__TCP_CLEAR: return peer_on_clear(link->peer, start->id);
    case TDM__TCP_DROP: return peer_on_drop(link->peer, start->id);
    case TDM__TCP_DATA: return link_on_data(link, start);
    case TDM__TCP_BYE: link->state = TDM__TCP_LINK_BYE; return true;
    default: return false;
    }
}

void tdm__tcp_on_payload(tdm__tcp_link *link)
{
    tdm__arrival *a = link->arrival;
    link->arrival = NULL;
    link->into = NULL;
    if (!a) return;
    a->got += a->id ? link->payload_bytes : a->head.bytes;
    if (!a->id) a->link = NULL;
    if (a->state == TDM__ARRIVAL_TAKEN && a->got >= a->head.bytes) arrival_end(a, TDM_OK);
}

/* ---- take ------------------------------------------------------------------------------------ */

/* Requests an offered payload. */
static void arrival_request(tdm__arrival *a)
{
    if (a->peer->state != TDM__TCP_WELL)
        arrival_end(a, TDM_ERR_PEER_FAILED);
    else if (!tdm__tcp_answer(a->peer, TDM__TCP_CLEAR, a->id))
        arrival_end(a, TDM_ERR_NO_MEMORY);
}

void tdm__tcp_take(tdm__transport *transport, tdm__arrival *a, void *into, void *cookie)
{
    (void)transport;
    tdm__tcp_link *link = a->link;
    bool is_broken = a->state == TDM__ARRIVAL_BROKEN;
    a->state = TDM__ARRIVAL_TAKEN;
    a->into = into;
    a->cookie = cookie;
    if (is_broken) {
        arrival_end(a, TDM_ERR_PEER_FAILED);
    } else if (a->id) {
        arrival_request(a);
    } else if (!link) {
        if (a->head.bytes > 0) memcpy(into, a->bytes, a->head.bytes);
        arrival_end(a, TDM_OK);
    } else { /* the rest goes to the engine's buffer */
        size_t done = a->bytes ? (size_t)(link->into - a->bytes) : 0;
        if (done > 0) memcpy(into, a->bytes, done);
        link->into = (uint8_t *)into + done;
        buffer_give(a->peer->tcp, a->bytes, a->capacity);
        a->bytes = NULL;
        if (link->state == TDM__TCP_LINK_STALLED) link->state = TDM__TCP_LINK_OPEN;
    }
}

void tdm__tcp_drop(tdm__transport *transport, tdm__arrival *a)
{
    (void)transport;
    tdm__tcp_peer *peer = a->peer;
    uint32_t id = a->id;
    arrival_free(a);
    if (id && peer->state == TDM__TCP_WELL && !tdm__tcp_answer(peer, TDM__TCP_DROP, id))
        tdm__link_break(&peer->links[0], ENOMEM);
}

/* ---- loss of peers --------------------------------------------------------------------------- */

/* Ends everything in progress with a peer that is no longer healthy. */
static void peer_end(tdm__tcp_peer *peer)
{
    for (tdm__arrival *a = peer->arrivals; a; a = a->next) /* first: callbacks may take them */
        if (a->state == TDM__ARRIVAL_WAITING && (a->id || a->link)) a->state = TDM__ARRIVAL_BROKEN;
    for (int i = 0; i < peer->tcp->streams; i++) tdm__link_close(&peer->links[i], true);
    while (peer->offers) send_end(offer_remove(peer, peer->offers->id), TDM_ERR_PEER_FAILED);
    for (tdm__arrival *a = peer->arrivals; a;) {
        if (a->state == TDM__ARRIVAL_TAKEN) {
            arrival_end(a, TDM_ERR_PEER_FAILED);
            a = peer->arrivals; /* a callback may have freed any of them */
        } else {
            a->link = NULL;
            a = a->next;
        }
    }
}

void tdm__tcp_forget(tdm__transport *transport, int rank)
{
    tdm__tcp_peer *peer = &((tdm__tcp *)transport)->peers[rank];
    if (peer->state == TDM__TCP_FORGOTTEN || peer->state == TDM__TCP_NEAR) return;
    peer->state = TDM__TCP_FORGOTTEN;
    peer_end(peer);
}

static void peer_lose(tdm__tcp_peer *peer, const tdm__tcp_link *link)
{
    char how[200];
    bool was_closed = link->why == 0 || link->why == ECONNRESET || link->why == EPIPE;
    if (was_closed)
        snprintf(how, sizeof(how), "its connection to this rank was closed");
    else
        snprintf(how, sizeof(how), "its connection to this rank broke (%s)",
                 link->why == EPROTO && !link->stream.tls
                     ? "it sent an invalid frame"
                     : tdm__stream_why(&link->stream, link->why));
    peer->state = TDM__TCP_LOST;
    peer_end(peer);
    peer->tcp->calls++;
    peer->tcp->events.lost(peer->tcp->events.user, peer->rank, how);
}

static void peer_check_links(tdm__tcp_peer *peer)
{
    for (int i = 0; i < peer->tcp->streams; i++) {
        tdm__tcp_link *link = &peer->links[i];
        if (link->state == TDM__TCP_LINK_BROKEN) {
            peer_lose(peer, link);
            return;
        }
        if (link->state != TDM__TCP_LINK_ENDED) continue;
        peer->state = TDM__TCP_LEFT;
        tdm__link_close(link, true);
    }
}

void tdm__tcp_report_losses(tdm__tcp *tcp)
{
    if (!tcp->has_broken) return;
    tcp->has_broken = false;
    for (int i = 0; i < tcp->size; i++)
        if (tcp->peers[i].state == TDM__TCP_WELL || tcp->peers[i].state == TDM__TCP_LEFT)
            peer_check_links(&tcp->peers[i]);
}

void tdm__tcp_free_messages(tdm__tcp *tcp)
{
    for (int i = 0; tcp->peers && i < tcp->size; i++) {
        for (tdm__arrival *a = tcp->peers[i].arrivals, *next; a; a = next) {
            next = a->next;
            arrival_free(a);
        }
        for (tdm__tcp_send *at = tcp->peers[i].offers, *next; at; at = next) {
            next = at->next;
            free(at);
        }
    }
    for (int i = 0; i < TDM__TCP_SPARES; i++) free(tcp->spares[i].bytes);
    for (tdm__tcp_send *at = tcp->spare_sends, *next; at; at = next) {
        next = at->next;
        free(at);
    }
    for (tdm__tcp_frame *at = tcp->spare_frames, *next; at; at = next) {
        next = at->next;
        free(at);
    }
}
