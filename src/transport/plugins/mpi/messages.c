/*
 * messages.c: messages over MPI: sending, arriving, taking, dropping, forgetting.
 *
 * Envelopes arrive on a private communicator, but are validated nevertheless; invalid ones are
 * dropped. Callbacks are queued while MPI is called, and made afterwards.
 *
 * forget() cancels the receives of a peer; MPI cannot cancel sends. Sends that have not ended after
 * a moment are abandoned: they are called back, and their requests and envelopes are never reused.
 * (MPI does not report a dead peer: most launchers end the whole job.)
 */
#include "base/timing.h"
#include "transport/plugins/mpi/mpi.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- requests -------------------------------------------------------------------------------- */

static bool requests_reserve(tdm__mpi *m, int more)
{
    if (m->count + more <= m->capacity) return true;
    int capacity = m->capacity * 2 > m->count + more ? m->capacity * 2 : m->count + more + 64;
    size_t n = (size_t)capacity;
    MPI_Request *requests = realloc(m->requests, n * sizeof(*requests));
    if (requests) m->requests = requests;
    tdm__mpi_operation **owners = realloc(m->owners, n * sizeof(tdm__mpi_operation *));
    if (owners) m->owners = owners;
    int *indices = realloc(m->indices, n * sizeof(*indices));
    if (indices) m->indices = indices;
    MPI_Status *statuses = realloc(m->statuses, n * sizeof(*statuses));
    if (statuses) m->statuses = statuses;
    if (!requests || !owners || !indices || !statuses) return false;
    m->capacity = capacity;
    return true;
}

static void operation_end(tdm__mpi *m, tdm__mpi_operation *op)
{
    op->next = NULL;
    if (m->ended_first)
        m->ended_last->next = op;
    else
        m->ended_first = op;
    m->ended_last = op;
}

static void operation_free(tdm__mpi_operation *op)
{
    free(op->scratch);
    free(op->envelope);
    free(op);
}

/* Records the request that was just started for `op`, after the others. */
static void request_add(tdm__mpi *m, tdm__mpi_operation *op, int result)
{
    if (result != MPI_SUCCESS) {
        op->status = TDM_ERR_PEER_FAILED;
        return;
    }
    m->owners[m->count] = op;
    m->count++;
    op->requests++;
}

static void request_remove(tdm__mpi *m, int index)
{
    m->count--;
    m->requests[index] = m->requests[m->count];
    m->owners[index] = m->owners[m->count];
}

static int payload_pieces(uint64_t bytes)
{
    return (int)((bytes + TDM__MPI_PIECE - 1) / TDM__MPI_PIECE);
}

static int payload_tag(const tdm__mpi *m, uint32_t number)
{
    return TDM__MPI_TAG + 1 + (int)(number % (uint32_t)(m->max_tag - TDM__MPI_TAG));
}

/* Starts to send or receive a payload, in pieces with one tag: MPI keeps their order. */
static void payload_start(tdm__mpi *m, tdm__mpi_operation *op, uint8_t *bytes, uint64_t count,
                          uint32_t number)
{
    for (uint64_t at = 0; at < count; at += TDM__MPI_PIECE) {
        int piece = count - at < TDM__MPI_PIECE ? (int)(count - at) : TDM__MPI_PIECE;
        MPI_Request *request = &m->requests[m->count];
        int result = op->kind == TDM__MPI_SEND
                         ? MPI_Isend(bytes + at, piece, MPI_BYTE, op->peer, payload_tag(m, number),
                                     m->comm, request)
                         : MPI_Irecv(bytes + at, piece, MPI_BYTE, op->peer, payload_tag(m, number),
                                     m->comm, request);
        request_add(m, op, result);
    }
}

/* ---- send ------------------------------------------------------------------------------------ */

void tdm__mpi_send(tdm__transport *transport, int peer, const tdm__head *head, const void *data,
                   void *cookie)
{
    tdm__mpi *m = (tdm__mpi *)transport;
    tdm__mpi_peer *p = &m->peers[peer];
    bool along = head->bytes <= TDM__MPI_INLINE;
    size_t bytes = offsetof(tdm__mpi_envelope, payload) + (along ? head->bytes : 0);
    tdm__mpi_operation *op = NULL;
    tdm_status status = p->state == TDM__MPI_FORGOTTEN ? TDM_ERR_PEER_FAILED : TDM_OK;

    if (status == TDM_OK) {
        op = calloc(1, sizeof(*op));
        if (op) op->envelope = malloc(bytes);
        if (!op || !op->envelope || !requests_reserve(m, 1 + payload_pieces(head->bytes)))
            status = TDM_ERR_NO_MEMORY;
    }
    if (status != TDM_OK) {
        if (op) operation_free(op);
        m->events.sent(m->events.user, cookie, status);
        return;
    }

    op->kind = TDM__MPI_SEND;
    op->peer = peer;
    op->cookie = cookie;
    op->envelope->head = *head;
    op->envelope->zero = 0;
    op->envelope->number = 0;
    if (!along && ++p->next_number == 0) p->next_number = 1;
    if (!along) op->envelope->number = p->next_number;
    if (along && head->bytes > 0) memcpy(op->envelope->payload, data, head->bytes);

    int result = MPI_Isend(op->envelope, (int)bytes, MPI_BYTE, peer, TDM__MPI_TAG, m->comm,
                           &m->requests[m->count]);
    request_add(m, op, result);
    if (!along && op->requests > 0)
        payload_start(m, op, (uint8_t *)data, head->bytes, op->envelope->number);
    if (op->requests == 0) operation_end(m, op);
}

/* ---- arrivals -------------------------------------------------------------------------------- */

static void arrival_append(tdm__mpi *m, tdm__arrival *a)
{
    a->previous = m->arrivals_last;
    a->next = NULL;
    if (a->previous)
        a->previous->next = a;
    else
        m->arrivals_first = a;
    m->arrivals_last = a;
    if (!m->unheard) m->unheard = a;
}

static void arrival_remove(tdm__mpi *m, tdm__arrival *a)
{
    if (m->unheard == a) m->unheard = a->next;
    if (a->previous)
        a->previous->next = a->next;
    else
        m->arrivals_first = a->next;
    if (a->next)
        a->next->previous = a->previous;
    else
        m->arrivals_last = a->previous;
    free(a);
}

/* Handles an envelope that arrived in a buffer of the pool. */
static void envelope_arrived(tdm__mpi *m, const tdm__mpi_envelope *e, const MPI_Status *status)
{
    int got = 0;
    const int front = (int)offsetof(tdm__mpi_envelope, payload);
    if (MPI_Get_count(status, MPI_BYTE, &got) != MPI_SUCCESS || got < front) return;
    if (!tdm__head_check(&e->head, m->world, m->size)) return;
    if (e->head.source != (uint32_t)status->MPI_SOURCE) return;
    bool along = e->number == 0;
    if (along ? (uint64_t)(got - front) != e->head.bytes
              : got != front || e->head.bytes <= TDM__MPI_INLINE)
        return;
    if (m->peers[status->MPI_SOURCE].state == TDM__MPI_FORGOTTEN) return;
    size_t bytes = along ? e->head.bytes : 0;
    tdm__arrival *a = malloc(sizeof(*a) + bytes);
    if (!a) {
        m->starved = status->MPI_SOURCE; /* lost: a missing message would block forever */
        return;
    }
    *a = (tdm__arrival){.peer = status->MPI_SOURCE, .number = e->number, .head = e->head};
    if (bytes > 0) memcpy(a->payload, e->payload, bytes);
    arrival_append(m, a);
}

/* ---- take and drop --------------------------------------------------------------------------- */

/* Starts to receive a payload; NULL on failure. */
static tdm__mpi_operation *arrival_fetch(tdm__mpi *m, const tdm__arrival *a, tdm__mpi_kind kind,
                                         void *into)
{
    tdm__mpi_operation *op = calloc(1, sizeof(*op));
    if (!op || !requests_reserve(m, payload_pieces(a->head.bytes))) {
        free(op);
        return NULL;
    }
    op->kind = kind;
    op->peer = a->peer;
    payload_start(m, op, into, a->head.bytes, a->number);
    return op;
}

void tdm__mpi_take(tdm__transport *transport, tdm__arrival *arrival, void *into, void *cookie)
{
    tdm__mpi *m = (tdm__mpi *)transport;
    tdm_status status = TDM_OK;
    if (arrival->number == 0) {
        if (arrival->head.bytes > 0) memcpy(into, arrival->payload, arrival->head.bytes);
    } else if (m->peers[arrival->peer].state == TDM__MPI_FORGOTTEN) {
        status = TDM_ERR_PEER_FAILED;
    } else {
        tdm__mpi_operation *op = arrival_fetch(m, arrival, TDM__MPI_TAKE, into);
        if (op) {
            op->cookie = cookie;
            arrival_remove(m, arrival);
            if (op->requests == 0) operation_end(m, op);
            return;
        }
        status = TDM_ERR_NO_MEMORY;
    }
    arrival_remove(m, arrival);
    m->events.received(m->events.user, cookie, status);
}

void tdm__mpi_drop(tdm__transport *transport, tdm__arrival *arrival)
{
    tdm__mpi *m = (tdm__mpi *)transport;
    if (arrival->number != 0 && m->peers[arrival->peer].state == TDM__MPI_WELL) {
        /* The sender waits until the payload is received. */
        void *scratch = malloc(arrival->head.bytes);
        tdm__mpi_operation *op = scratch ? arrival_fetch(m, arrival, TDM__MPI_DROP, scratch) : NULL;
        if (op) {
            op->scratch = scratch;
            if (op->requests == 0) operation_end(m, op);
        } else {
            free(scratch);
        }
    }
    arrival_remove(m, arrival);
}

/* ---- progress -------------------------------------------------------------------------------- */

/* Handles the end of the request at `index`. */
static void request_ended(tdm__mpi *m, int index, const MPI_Status *status, bool whole)
{
    if (index < TDM__MPI_POOL) {
        envelope_arrived(m, &m->pool[index], status);
        MPI_Start(&m->requests[index]);
        return;
    }
    tdm__mpi_operation *op = m->owners[index];
    int error = whole ? MPI_SUCCESS : status->MPI_ERROR;
    if (error != MPI_SUCCESS) op->status = TDM_ERR_PEER_FAILED;
    op->requests--;
    if (op->requests == 0) operation_end(m, op);
}

static int index_compare_descending(const void *a, const void *b)
{
    return *(const int *)b - *(const int *)a;
}

/* Tests the requests. Returns how many have ended. */
static int mpi_test_requests(tdm__mpi *m)
{
    int ended = 0;
    int result = MPI_Testsome(m->count, m->requests, &ended, m->indices, m->statuses);
    if (ended == MPI_UNDEFINED || (result != MPI_SUCCESS && result != MPI_ERR_IN_STATUS)) return 0;
    for (int i = 0; i < ended; i++)
        request_ended(m, m->indices[i], &m->statuses[i], result == MPI_SUCCESS);
    /* In descending order: the request that replaces a removed one has been handled already. */
    qsort(m->indices, (size_t)ended, sizeof(int), index_compare_descending);
    for (int i = 0; i < ended && m->indices[i] >= TDM__MPI_POOL; i++)
        request_remove(m, m->indices[i]);
    return ended;
}

static int mpi_deliver(tdm__mpi *m)
{
    int count = 0;
    for (;; count++) {
        if (m->ended_first) {
            tdm__mpi_operation *op = m->ended_first;
            m->ended_first = op->next;
            tdm__mpi_operation ended = *op;
            operation_free(op);
            if (ended.kind == TDM__MPI_SEND)
                m->events.sent(m->events.user, ended.cookie, ended.status);
            else if (ended.kind == TDM__MPI_TAKE)
                m->events.received(m->events.user, ended.cookie, ended.status);
        } else if (m->unheard) {
            tdm__arrival *a = m->unheard;
            m->unheard = a->next;
            if (m->peers[a->peer].state == TDM__MPI_FORGOTTEN) {
                tdm__mpi_drop(&m->transport, a);
                continue;
            }
            tdm__head head = a->head;
            m->events.arrived(m->events.user, a->peer, &head, a);
        } else if (m->starved >= 0) {
            int peer = m->starved;
            m->starved = -1;
            m->events.lost(m->events.user, peer, "out of memory for a message from it");
        } else {
            return count;
        }
    }
}

int tdm__mpi_progress(tdm__transport *transport)
{
    tdm__mpi *m = (tdm__mpi *)transport;
    int ended = 0, turns = 0;
    enum { MAX_TURNS = 8 };
    for (int now; turns < MAX_TURNS && (now = mpi_test_requests(m)) > 0; turns++) ended += now;
    int count = mpi_deliver(m);
    if (ended > 0 || count > 0)
        atomic_store_explicit(&m->active_ns, tdm_clock_ns(), memory_order_relaxed);
    return count;
}

/* ---- forget and stop ------------------------------------------------------------------------- */

static bool peer_busy(const tdm__mpi *m, int peer)
{
    for (int i = TDM__MPI_POOL; i < m->count; i++)
        if (m->owners[i]->peer == peer) return true;
    return false;
}

/* Abandons the operations of a peer that have not ended; their requests stay with MPI. */
static void peer_abandon(tdm__mpi *m, int peer)
{
    for (int i = m->count - 1; i >= TDM__MPI_POOL; i--) {
        tdm__mpi_operation *op = m->owners[i];
        if (peer >= 0 && op->peer != peer) continue;
        MPI_Request_free(&m->requests[i]);
        request_remove(m, i);
        op->status = TDM_ERR_PEER_FAILED;
        op->envelope = NULL; /* MPI may still read it */
        if (--op->requests == 0) operation_end(m, op);
    }
}

void tdm__mpi_forget(tdm__transport *transport, int peer)
{
    tdm__mpi *m = (tdm__mpi *)transport;
    if (m->peers[peer].state == TDM__MPI_FORGOTTEN) return;
    m->peers[peer].state = TDM__MPI_FORGOTTEN;
    m->peer_lost = true;
    for (int i = TDM__MPI_POOL; i < m->count; i++)
        if (m->owners[i]->peer == peer && m->owners[i]->kind != TDM__MPI_SEND) {
            m->owners[i]->status = TDM_ERR_PEER_FAILED;
            MPI_Cancel(&m->requests[i]);
        }
    const struct timespec moment = {.tv_nsec = TDM__TIMING_MPI_NAP_NS};
    for (double end_s = tdm_clock_s() + TDM__TIMING_COMM_CLEANUP_S; peer_busy(m, peer);) {
        if (mpi_test_requests(m) > 0) continue;
        if (tdm_clock_s() > end_s) break;
        nanosleep(&moment, NULL);
    }
    peer_abandon(m, peer);
    mpi_deliver(m);
}

tdm_status tdm__mpi_start(tdm__mpi *m, tdm_error *err)
{
    if (!requests_reserve(m, TDM__MPI_POOL))
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "mpi: out of memory for the transport");
    for (int i = 0; i < TDM__MPI_POOL; i++) {
        MPI_Recv_init(&m->pool[i], (int)sizeof(m->pool[i]), MPI_BYTE, MPI_ANY_SOURCE, TDM__MPI_TAG,
                      m->comm, &m->requests[i]);
        m->owners[i] = NULL;
    }
    m->count = TDM__MPI_POOL;
    m->started = true;
    if (MPI_Startall(TDM__MPI_POOL, m->requests) == MPI_SUCCESS) return TDM_OK;
    return tdm_fail(err, TDM_ERR_SYSTEM, "mpi: MPI_Startall failed");
}

void tdm__mpi_stop(tdm__mpi *m)
{
    /* The last messages may still be in transit. */
    const struct timespec moment = {.tv_nsec = TDM__TIMING_MPI_NAP_NS};
    for (double end_s = tdm_clock_s() + TDM__TIMING_TRANSPORT_LEAVE_S;
         m->count > TDM__MPI_POOL && tdm_clock_s() < end_s;)
        if (mpi_test_requests(m) == 0) nanosleep(&moment, NULL);
    peer_abandon(m, -1);
    for (int i = 0; i < TDM__MPI_POOL && m->started; i++) {
        MPI_Cancel(&m->requests[i]);
        MPI_Wait(&m->requests[i], MPI_STATUS_IGNORE); /* local: MPI guarantees it for a receive */
        MPI_Request_free(&m->requests[i]);
    }
    for (tdm__arrival *a = m->arrivals_first, *next; a; a = next) {
        next = a->next;
        free(a);
    }
    for (tdm__mpi_operation *op = m->ended_first, *next; op; op = next) {
        next = op->next;
        operation_free(op);
    }
    free(m->requests);
    free(m->owners);
    free(m->indices);
    free(m->statuses);
}
