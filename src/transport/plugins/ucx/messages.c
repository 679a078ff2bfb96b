/*
 * messages.c: messages over UCX: send, arrival, take, drop.
 *
 * A message is one active message, with our head as its header. UCX decides by size whether the
 * payload is included or fetched later. An included payload stays in UCX's memory if it allows
 * that, and is copied otherwise. Heads are validated: a message is accepted only if its head is
 * right, its length matches the head, and its source is a rank that can send.
 *
 * UCX calls the handlers (on_...) with our lock held by the calling thread.
 *
 * Invariants: an operation is either active in UCX (counted in its peer's `pending`) or in the
 * queue of ended ones, never both; an arrival is in the list until it is taken or dropped.
 */
#include "transport/plugins/ucx/ucx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EAGER_BYTES = 2 << 20 }; /* limit of messages that are sent without a rendezvous */

/* ---- operations ------------------------------------------------------------------------------ */

/* Fills the free list of operations from a new block. */
static void operations_add(tdm__ucx *u)
{
    tdm__ucx_block *block = malloc(sizeof(*block));
    if (!block) return;
    block->next = u->blocks;
    u->blocks = block;
    for (int i = 0; i < TDM__UCX_BLOCK; i++) {
        block->operations[i].next = u->spare;
        u->spare = &block->operations[i];
    }
}

static tdm__ucx_operation *operation_take(tdm__ucx *u, tdm__ucx_peer *peer, void *cookie)
{
    if (!u->spare) operations_add(u);
    tdm__ucx_operation *op = u->spare;
    if (!op) return NULL;
    u->spare = op->next;
    *op = (tdm__ucx_operation){.ucx = u, .peer = peer, .cookie = cookie};
    return op;
}

static void operation_give(tdm__ucx_operation *op)
{
    op->next = op->ucx->spare;
    op->ucx->spare = op;
}

static void operation_end(tdm__ucx_operation *op, ucs_status_t status)
{
    tdm__ucx *u = op->ucx;
    op->status = status == UCS_OK              ? TDM_OK
                 : status == UCS_ERR_NO_MEMORY ? TDM_ERR_NO_MEMORY
                                               : TDM_ERR_PEER_FAILED;
    op->peer->pending--;
    op->next = NULL;
    if (u->ended_first)
        u->ended_last->next = op;
    else
        u->ended_first = op;
    u->ended_last = op;
}

static void operation_on_sent(void *request, ucs_status_t status, void *user)
{
    operation_end(user, status);
    ucp_request_free(request);
}

static void operation_on_received(void *request, ucs_status_t status, size_t length, void *user)
{
    tdm__ucx_operation *op = user;
    if (status == UCS_OK && length != op->head.bytes) status = UCS_ERR_IO_ERROR;
    operation_end(op, status);
    ucp_request_free(request);
}

/* Handles UCX's answer to a start: already ended, failed, or in progress. */
static void operation_started(tdm__ucx_operation *op, ucs_status_ptr_t answer)
{
    if (!answer)
        operation_end(op, UCS_OK);
    else if (UCS_PTR_IS_ERR(answer))
        operation_end(op, UCS_PTR_STATUS(answer));
}

/* Starts a send. Not TDM_OK: it was not started. */
static tdm_status peer_start_send(tdm__ucx *u, tdm__ucx_peer *p, const tdm__head *head,
                                  const void *data, void *cookie)
{
    ucp_ep_h ep = p->state == TDM__UCX_WELL ? tdm__ucx_endpoint(p) : NULL;
    if (!ep) return TDM_ERR_PEER_FAILED;
    tdm__ucx_operation *op = operation_take(u, p, cookie);
    if (!op) return TDM_ERR_NO_MEMORY;
    op->is_send = true;
    op->head = *head;
    p->pending++;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = operation_on_sent,
        .user_data = op,
    };
    if (p->is_eager && head->bytes <= EAGER_BYTES) {
        param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
        param.flags = UCP_AM_SEND_FLAG_EAGER;
    }
    operation_started(op, ucp_am_send_nbx(ep, TDM__UCX_MESSAGE, &op->head, sizeof(op->head), data,
                                          head->bytes, &param));
    return TDM_OK;
}

void tdm__ucx_send(tdm__transport *transport, int peer, const tdm__head *head, const void *data,
                   void *cookie)
{
    tdm__ucx *u = (tdm__ucx *)transport;
    tdm__ucx_called(u);
    pthread_mutex_lock(&u->lock);
    tdm_status status = peer_start_send(u, &u->peers[peer], head, data, cookie);
    pthread_mutex_unlock(&u->lock);
    if (status != TDM_OK) u->events.sent(u->events.user, cookie, status);
}

/* ---- arrivals -------------------------------------------------------------------------------- */

static void arrival_append(tdm__ucx *u, tdm__arrival *a)
{
    a->previous = u->arrivals_last;
    a->next = NULL;
    if (a->previous)
        a->previous->next = a;
    else
        u->arrivals_first = a;
    u->arrivals_last = a;
    if (!u->unheard) u->unheard = a;
}

static void arrival_remove(tdm__ucx *u, tdm__arrival *a)
{
    if (u->unheard == a) u->unheard = a->next;
    if (a->previous)
        a->previous->next = a->next;
    else
        u->arrivals_first = a->next;
    if (a->next)
        a->next->previous = a->previous;
    else
        u->arrivals_last = a->previous;
    free(a);
}

/* Returns to UCX the memory that it holds for this arrival. */
static void arrival_release(tdm__ucx *u, tdm__arrival *a)
{
    if (a->payload != TDM__UCX_COPIED) ucp_am_data_release(u->worker, a->data);
}

/* UCX's handler for a message. UCS_OK: UCX may free it; UCS_INPROGRESS: we keep `data`. */
static ucs_status_t ucx_on_message(void *arg, const void *header, size_t header_bytes, void *data,
                                   size_t bytes, const ucp_am_recv_param_t *param)
{
    tdm__ucx *u = arg;
    tdm__head head;
    if (header_bytes != sizeof(head) || u->goodbye) return UCS_OK;
    memcpy(&head, header, sizeof(head));
    if (!tdm__head_check(&head, u->world, u->size) || head.bytes != bytes) return UCS_OK;
    tdm__ucx_peer *peer = &u->peers[head.source];
    if (peer->state == TDM__UCX_FORGOTTEN || !peer->address) return UCS_OK;

    tdm__ucx_payload payload = param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV   ? TDM__UCX_RENDEZVOUS
                               : param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA ? TDM__UCX_KEPT
                                                                               : TDM__UCX_COPIED;
    if (bytes == 0) payload = TDM__UCX_COPIED;
    tdm__arrival *a = malloc(sizeof(*a) + (payload == TDM__UCX_COPIED ? bytes : 0));
    if (!a) {
        tdm__ucx_lose(peer, UCS_ERR_NO_MEMORY); /* a missing message would block forever */
        return UCS_OK;
    }
    *a = (tdm__arrival){.payload = payload, .peer = (int)head.source, .data = data, .head = head};
    if (payload == TDM__UCX_COPIED && bytes > 0) memcpy(a->bytes, data, bytes);
    arrival_append(u, a);
    return payload == TDM__UCX_COPIED ? UCS_OK : UCS_INPROGRESS;
}

/* The peer that sent a hello or good-bye card; NULL if it is invalid. */
static tdm__ucx_peer *card_peer(tdm__ucx *u, const void *header, size_t header_bytes)
{
    tdm__head head;
    if (header_bytes != sizeof(head)) return NULL;
    memcpy(&head, header, sizeof(head));
    return tdm__head_check(&head, u->world, u->size) ? &u->peers[head.source] : NULL;
}

static ucs_status_t ucx_on_hello(void *arg, const void *header, size_t header_bytes, void *data,
                                 size_t bytes, const ucp_am_recv_param_t *param)
{
    (void)data, (void)bytes, (void)param;
    tdm__ucx_peer *peer = card_peer(arg, header, header_bytes);
    if (peer) peer->hellos++;
    return UCS_OK;
}

static ucs_status_t ucx_on_goodbye(void *arg, const void *header, size_t header_bytes, void *data,
                                   size_t bytes, const ucp_am_recv_param_t *param)
{
    (void)data, (void)bytes, (void)param;
    tdm__ucx *u = arg;
    tdm__ucx_peer *peer = card_peer(u, header, header_bytes);
    if (!peer || peer->owed >= u->streams) return UCS_OK;
    if (peer->state == TDM__UCX_WELL) peer->state = TDM__UCX_LEFT;
    peer->owed++;
    u->owed++;
    return UCS_OK;
}

static ucs_status_t ucx_on_godspeed(void *arg, const void *header, size_t header_bytes, void *data,
                                    size_t bytes, const ucp_am_recv_param_t *param)
{
    (void)data, (void)bytes, (void)param;
    tdm__ucx_peer *peer = card_peer(arg, header, header_bytes);
    if (peer) peer->godspeeds++;
    return UCS_OK;
}

ucs_status_t tdm__ucx_listen(tdm__ucx *ucx)
{
    static const struct {
        unsigned id;
        ucp_am_recv_callback_t function;
    } handlers[] = {{TDM__UCX_MESSAGE, ucx_on_message},
                    {TDM__UCX_HELLO, ucx_on_hello},
                    {TDM__UCX_GOODBYE, ucx_on_goodbye},
                    {TDM__UCX_GODSPEED, ucx_on_godspeed}};
    for (size_t i = 0; i < sizeof(handlers) / sizeof(handlers[0]); i++) {
        ucp_am_handler_param_t handler = {
            .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                          UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
            .id = handlers[i].id,
            .flags = UCP_AM_FLAG_WHOLE_MSG,
            .cb = handlers[i].function,
            .arg = ucx,
        };
        ucs_status_t status = ucp_worker_set_am_recv_handler(ucx->worker, &handler);
        if (status != UCS_OK) return status;
    }
    return UCS_OK;
}

/* ---- take and drop --------------------------------------------------------------------------- */

/* Starts to fetch a payload from its sender. Not TDM_OK: it was not started. */
static tdm_status arrival_start_fetch(tdm__ucx *u, tdm__arrival *a, void *into, void *cookie)
{
    tdm__ucx_peer *p = &u->peers[a->peer];
    if (p->state == TDM__UCX_LOST || p->state == TDM__UCX_FORGOTTEN) return TDM_ERR_PEER_FAILED;
    tdm__ucx_operation *op = operation_take(u, p, cookie);
    if (!op) return TDM_ERR_NO_MEMORY;
    op->head = a->head;
    p->pending++;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
        .cb.recv_am = operation_on_received,
        .user_data = op,
    };
    operation_started(op, ucp_am_recv_data_nbx(u->worker, a->data, into, a->head.bytes, &param));
    arrival_remove(u, a);
    return TDM_OK;
}

void tdm__ucx_take(tdm__transport *transport, tdm__arrival *arrival, void *into, void *cookie)
{
    tdm__ucx *u = (tdm__ucx *)transport;
    tdm__ucx_called(u);
    tdm_status status = TDM_OK;
    if (arrival->payload == TDM__UCX_RENDEZVOUS) {
        pthread_mutex_lock(&u->lock);
        status = arrival_start_fetch(u, arrival, into, cookie);
        pthread_mutex_unlock(&u->lock);
        if (status == TDM_OK) return;
    } else if (arrival->head.bytes > 0) {
        const void *from = arrival->payload == TDM__UCX_KEPT ? arrival->data : arrival->bytes;
        memcpy(into, from, arrival->head.bytes);
    }
    tdm__ucx_drop(transport, arrival);
    u->events.received(u->events.user, cookie, status);
}

void tdm__ucx_drop(tdm__transport *transport, tdm__arrival *arrival)
{
    tdm__ucx *u = (tdm__ucx *)transport;
    pthread_mutex_lock(&u->lock);
    arrival_release(u, arrival);
    arrival_remove(u, arrival);
    pthread_mutex_unlock(&u->lock);
}

/* ---- callbacks ------------------------------------------------------------------------------- */

/* The next event for the engine. */
typedef struct news {
    enum { NOTHING, SENT, RECEIVED, ARRIVED, LOST } kind;
    void *cookie;
    tdm_status status;
    int peer;
    tdm__head head;
    tdm__arrival *arrival;
    ucs_status_t why;
} news;

/* The first arrival that was not reported to the engine yet; NULL: none. */
static tdm__arrival *arrival_next_unreported(tdm__ucx *u)
{
    while (u->unheard) {
        tdm__arrival *a = u->unheard;
        u->unheard = a->next;
        tdm__ucx_peer *p = &u->peers[a->peer];
        if (p->state == TDM__UCX_FORGOTTEN) {
            arrival_release(u, a);
            arrival_remove(u, a);
            continue;
        }
        /* This side's endpoint reports the end of the connection, even if this rank never sends. */
        if (!p->eps && p->state == TDM__UCX_WELL) tdm__ucx_endpoint(p);
        return a;
    }
    return NULL;
}

static news ucx_next_news(tdm__ucx *u)
{
    tdm__ucx_operation *op = u->ended_first;
    if (op) {
        u->ended_first = op->next;
        news n = {
            .kind = op->is_send ? SENT : RECEIVED, .cookie = op->cookie, .status = op->status};
        operation_give(op);
        return n;
    }
    tdm__arrival *a = arrival_next_unreported(u);
    if (a) return (news){.kind = ARRIVED, .peer = a->peer, .head = a->head, .arrival = a};
    while (u->lost) {
        tdm__ucx_peer *p = u->lost;
        u->lost = p->next_lost;
        if (p->state == TDM__UCX_LOST)
            return (news){.kind = LOST, .peer = (int)(p - u->peers), .why = p->why};
    }
    return (news){.kind = NOTHING};
}

static void ucx_report_lost(const tdm__transport_events *e, const news *n)
{
    char how[120];
    snprintf(how, sizeof(how), "its connection to this rank broke (UCX: %s)",
             ucs_status_string(n->why));
    e->lost(e->user, n->peer, how);
}

int tdm__ucx_deliver(tdm__ucx *u)
{
    const tdm__transport_events *e = &u->events;
    for (int count = 0;; count++) {
        pthread_mutex_lock(&u->lock);
        news n = ucx_next_news(u);
        pthread_mutex_unlock(&u->lock);
        switch (n.kind) {
        case SENT: e->sent(e->user, n.cookie, n.status); break;
        case RECEIVED: e->received(e->user, n.cookie, n.status); break;
        case ARRIVED: e->arrived(e->user, n.peer, &n.head, n.arrival); break;
        case LOST: ucx_report_lost(e, &n); break;
        case NOTHING: return count;
        }
    }
}

void tdm__ucx_release_arrivals(tdm__ucx *u)
{
    for (tdm__arrival *a = u->arrivals_first, *next; a; a = next) {
        next = a->next;
        arrival_release(u, a);
        free(a);
    }
    u->arrivals_first = u->arrivals_last = u->unheard = NULL;
}

void tdm__ucx_release_operations(tdm__ucx *u)
{
    for (tdm__ucx_block *block = u->blocks, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    u->blocks = NULL;
    u->ended_first = u->spare = NULL;
}
