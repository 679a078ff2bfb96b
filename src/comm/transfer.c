/*
 * transfer.c: messages between programs and the transport.
 *
 * A send is queued in the comm's list. Queued sends are passed to the transport by urgency of their
 * call, then by its age. A peer gets no more while FLIGHT_BYTES to it are with the transport, so
 * that an urgent message never queues behind many others. If nothing has moved for TDM__TIMING_COMM_STALL_S, more is
 * sent: the data in flight may belong to calls that the peer starts only after it has received what
 * is queued. match.h matches receives with messages, in whichever order they come.
 *
 * Every received header is validated, then compared with this rank's call of that number. Messages
 * for groups that do not exist here yet are kept; messages for broken groups are dropped, which
 * completes the send at the sender. Callbacks only count and match. Breaking groups because the
 * transport lost a peer waits for the decision of the hub (fail.c), and never happens in a callback,
 * since the transport may be in the middle of an operation.
 */
#include "comm/transfer.h"
#include "base/timing.h"
#include "comm/engine.h"
#include "comm/fail.h"
#include "comm/group.h"
#include "comm/match.h"
#include "comm/program.h"
#include "comm/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FLIGHT_BYTES = 2 << 20 };

static void transfer_record(tdm_comm *comm, tdm_trace_kind kind, int peer, const tdm__head *head)
{
    tdm__record(comm->recorder, (tdm_trace_event){
                                    .kind = (uint8_t)kind,
                                    .peer = peer,
                                    .bytes = head->bytes,
                                    .group = head->group,
                                    .sequence = head->sequence,
                                    .step = head->step,
                                    .call = head->kind,
                                    .dtype = head->dtype,
                                });
}

/* ---- list of transfers ------------------------------------------------------------------------ */

static tdm__transfer *transfer_new(tdm_comm *comm, const tdm__transfer *like)
{
    tdm__transfer *t = comm->free_transfers;
    if (t)
        comm->free_transfers = t->next;
    else
        t = malloc(sizeof(*t));
    if (t) *t = *like;
    return t;
}

/* Whether `a` is sent before the earlier `b`: its call is more urgent, or as urgent and older. Thus
 * the last messages of a call do not queue behind the first ones of all calls started since. */
static bool transfer_goes_before(const tdm__transfer *a, const tdm__transfer *b)
{
    int urgency_a = a->request ? a->request->call.priority : 0;
    int urgency_b = b->request ? b->request->call.priority : 0;
    if (urgency_a != urgency_b) return urgency_a < urgency_b;
    return (a->request ? a->request->age : 0) < (b->request ? b->request->age : 0);
}

/* The position of receives and of active transfers does not matter. */
static void transfers_add(tdm_comm *comm, tdm__transfer *t)
{
    tdm__transfer *first = comm->transfers;
    if (!first) {
        t->next = t->previous = t;
        comm->transfers = t;
        return;
    }
    tdm__transfer *before = first->previous; /* the last one */
    while (transfer_goes_before(t, before) && before != first) before = before->previous;
    bool in_front = before == first && transfer_goes_before(t, first);
    tdm__transfer *left = in_front ? first->previous : before;
    t->previous = left;
    t->next = left->next;
    left->next->previous = t;
    left->next = t;
    if (in_front) comm->transfers = t;
}

static void transfers_remove(tdm_comm *comm, tdm__transfer *t)
{
    if (t->next == t) {
        comm->transfers = NULL;
    } else {
        t->next->previous = t->previous;
        t->previous->next = t->next;
        if (comm->transfers == t) comm->transfers = t->next;
    }
    t->next = comm->free_transfers;
    comm->free_transfers = t;
}

void tdm__transfers_free(tdm_comm *comm)
{
    while (comm->transfers) transfers_remove(comm, comm->transfers);
    while (comm->free_transfers) {
        tdm__transfer *t = comm->free_transfers;
        comm->free_transfers = t->next;
        free(t);
    }
}

/* ---- sending ---------------------------------------------------------------------------------- */

/* Independent of the message's size: else later small messages could delay a large one forever. */
static bool transfer_has_room(const tdm_comm *comm, const tdm__transfer *t)
{
    return comm->flight_bytes[t->peer] < FLIGHT_BYTES + comm->flight_extra;
}

static void transfer_hand_over(tdm_comm *comm, tdm__transfer *t)
{
    t->handed = true;
    comm->moved_s = 0;
    comm->flight_bytes[t->peer] += t->head.bytes;
    if (t->request) {
        t->request->outstanding++;
        transfer_record(comm, TDM_TRACE_SEND, t->peer, &t->head);
    }
    comm->transport->ops->send(comm->transport, t->peer, &t->head, t->data, t);
}

static bool transfer_is_queued(const tdm__transfer *t)
{
    return !t->receive && !t->handed;
}

static void comm_count_queued(tdm_comm *comm, int peer, int more)
{
    comm->queued_counts[peer] += more;
    comm->queued_total += more;
}

bool tdm__transfers_dispatch(tdm_comm *comm)
{
    if (!comm->dispatch) return false;
    comm->dispatch = false;
    bool changed = false;
    for (;;) {
        /* Restarts from the first entry each time: send() may call back, and a callback may remove
         * any entry. */
        tdm__transfer *t = comm->transfers, *found = NULL;
        if (t) do {
                if (transfer_is_queued(t) && transfer_has_room(comm, t)) found = t;
                t = t->next;
            } while (!found && t != comm->transfers);
        if (!found) return changed;
        comm_count_queued(comm, found->peer, -1);
        transfer_hand_over(comm, found);
        changed = true;
    }
}

static void transfer_queue(tdm_comm *comm, tdm__transfer *t)
{
    transfers_add(comm, t);
    if (comm->queued_counts[t->peer] == 0 && transfer_has_room(comm, t)) {
        transfer_hand_over(comm, t);
        return;
    }
    comm_count_queued(comm, t->peer, 1);
    comm->dispatch = true;
}

double tdm__transfers_stalled(tdm_comm *comm, double now, double never, bool *round)
{
    if (comm->queued_total == 0) return never;
    if (comm->moved_s == 0) comm->moved_s = now;
    if (now >= comm->moved_s + TDM__TIMING_COMM_STALL_S) {
        comm->flight_extra += FLIGHT_BYTES;
        comm->dispatch = *round = true;
        comm->moved_s = now;
    }
    return comm->moved_s + TDM__TIMING_COMM_STALL_S;
}

static tdm__head request_head(const tdm_request *request, uint32_t step, size_t bytes)
{
    tdm__head head = request->head;
    head.step = step;
    head.bytes = bytes;
    tdm__head_seal(&head);
    return head;
}

/* The transfer of an instruction, for which the program waits; NULL (and no_memory): out of
 * memory. */
static tdm__transfer *transfer_of(tdm__program *program, const tdm__instruction *instruction)
{
    tdm_request *request = program->request;
    tdm__transfer *t = transfer_new(
        request->group->comm,
        &(tdm__transfer){
            .request = request,
            .program = program,
            .receive = instruction->op == TDM__OP_RECV,
            .peer = request->group->ranks[instruction->peer],
            .data = instruction->from,
            .head = request_head(request, instruction->step, instruction->bytes),
        });
    if (t)
        program->pending++;
    else
        program->no_memory = true;
    return t;
}

void tdm__transfer_send(tdm__program *program, const tdm__instruction *instruction)
{
    tdm__transfer *t = transfer_of(program, instruction);
    if (t) transfer_queue(program->request->group->comm, t);
}

void tdm__transfer_notice(tdm_request *request, int peer)
{
    tdm_comm *comm = request->group->comm;
    tdm__transfer *t = transfer_new(
        comm, &(tdm__transfer){
                  .peer = peer,
                  .head = request_head(request, (uint32_t)TDM__NOTICE_STEP, 0),
              });
    if (t) transfer_queue(comm, t);
}

/* Tells the call if its transfer has failed. */
static void transfer_check_status(const tdm__transfer *t, tdm_status status)
{
    if (status == TDM_OK) return;
    tdm_error error;
    tdm_fail(&error, TDM_ERR_PEER_FAILED, "%s rank %d failed: %s",
             t->receive ? "receiving from" : "sending to", t->peer, tdm_status_text(status));
    tdm__request_suspect(t->request, t->peer, &error);
}

static void transfer_sent(void *user, void *cookie, tdm_status status)
{
    tdm_comm *comm = user;
    tdm__transfer *t = cookie;
    comm->flight_bytes[t->peer] -= t->head.bytes;
    comm->flight_extra = 0;
    comm->moved_s = 0;
    comm->dispatch = comm->dispatch || comm->queued_counts[t->peer] > 0;
    if (t->request) {
        t->request->outstanding--;
        t->program->pending--;
        transfer_record(comm, TDM_TRACE_SENT, t->peer, &t->head);
        transfer_check_status(t, status);
    }
    transfers_remove(comm, t);
}

/* ---- receiving -------------------------------------------------------------------------------- */

static void arrival_receive(tdm_comm *comm, tdm__transfer *t, tdm__arrival *arrival, void *to)
{
    t->handed = true;
    t->request->outstanding++;
    comm->transport->ops->take(comm->transport, arrival, to, t);
}

static void transfer_received(void *user, void *cookie, tdm_status status)
{
    tdm_comm *comm = user;
    tdm__transfer *t = cookie;
    tdm_request *request = t->request;
    request->outstanding--;
    t->program->pending--;
    transfer_record(comm, TDM_TRACE_RECEIVED, t->peer, &t->head);
    transfer_check_status(t, status);
    transfers_remove(comm, t);
}

/* Passes a message to its receive, if it has the expected size and header. */
static void arrival_match(tdm_comm *comm, tdm__transfer *t, const tdm__head *theirs,
                          tdm__arrival *arrival, void *to)
{
    if (theirs->bytes == t->head.bytes && tdm__heads_agree(&t->request->head, theirs)) {
        arrival_receive(comm, t, arrival, to);
        return;
    }
    tdm_request *request = t->request;
    t->program->pending--;
    int peer = t->peer;
    transfers_remove(comm, t);
    comm->transport->ops->drop(comm->transport, arrival);
    tdm__group_mismatch(request->group, peer, &request->head, theirs);
}

void tdm__transfer_recv(tdm__program *program, const tdm__instruction *instruction)
{
    tdm_comm *comm = program->request->group->comm;
    tdm__transfer *t = transfer_of(program, instruction);
    if (!t) return;
    transfers_add(comm, t);
    tdm__match found;
    if (tdm__matches_take(comm->matches, &t->head, t->peer, false, &found)) {
        arrival_match(comm, t, &found.head, found.arrival, instruction->to);
        return;
    }
    tdm__match entry = {.expected = true,
                        .direct = tdm__is_direct(&t->head),
                        .source = t->peer,
                        .head = t->head,
                        .to = instruction->to,
                        .transfer = t};
    if (tdm__matches_add(comm->matches, &entry)) return;
    program->pending--;
    program->no_memory = true;
    transfers_remove(comm, t);
}

/* This rank's call of that number, pending or past; NULL if it has not made it yet. */
static const tdm__head *group_own_call(tdm_group *group, const tdm__head *theirs)
{
    if (tdm__is_direct(theirs)) return NULL; /* compared when it is matched */
    const tdm_request *request = tdm__request_find(group, theirs);
    if (request) return &request->head;
    const tdm__head *past = &group->history[theirs->sequence % TDM__HISTORY];
    return past->magic && past->sequence == theirs->sequence ? past : NULL;
}

static void arrival_drop(tdm_comm *comm, tdm__arrival *arrival)
{
    comm->transport->ops->drop(comm->transport, arrival);
}

static void arrival_drop_invalid(tdm_comm *comm, int peer, tdm__arrival *arrival)
{
    if (comm->garbage_count++ == 0)
        tdm_log(TDM_LOG_WARN, "comm",
                "dropped a message of another world on the connection of rank %d; further ones "
                "are dropped without a log line",
                peer);
    arrival_drop(comm, arrival);
}

static void transfer_arrived(void *user, int peer, const tdm__head *head, tdm__arrival *arrival)
{
    tdm_comm *comm = user;
    if (!tdm__head_check(head, comm->control->world, comm->size) || (int)head->source != peer ||
        head->epoch != comm->epoch) {
        arrival_drop_invalid(comm, peer, arrival);
        return;
    }

    tdm_group *group = tdm__comm_group(comm, head->group);
    if ((group ? group->broken.status : comm->revoked.status) != TDM_OK ||
        (!group && tdm__early_word(comm, head->group))) {
        arrival_drop(comm, arrival);
        return;
    }

    const tdm__head *own = group ? group_own_call(group, head) : NULL;
    if (own && !tdm__heads_agree(own, head)) {
        arrival_drop(comm, arrival);
        tdm__group_mismatch(group, peer, own, head);
        return;
    }

    tdm__match found;
    if (head->step == (uint32_t)TDM__NOTICE_STEP && !tdm__is_direct(head)) {
        arrival_drop(comm, arrival);
    } else if (tdm__matches_take(comm->matches, head, peer, true, &found)) {
        arrival_match(comm, found.transfer, head, arrival, found.to);
    } else if (comm->matches->waiting_count >= TDM__MAX_WAITING ||
               !tdm__matches_add(comm->matches, &(tdm__match){.direct = tdm__is_direct(head),
                                                              .source = peer,
                                                              .head = *head,
                                                              .arrival = arrival})) {
        arrival_drop(comm, arrival);
        if (group)
            tdm__group_break(
                group, true, TDM_ERR_PEER_FAILED,
                "rank %d cannot keep more messages for calls it has not made: more than %d have "
                "arrived, the last from rank %d",
                comm->rank, TDM__MAX_WAITING, peer);
    }
}

static void transfer_peer_lost(void *user, int peer, const char *how)
{
    tdm__peer_suspect(user, peer, how);
}

tdm__transport_events tdm__transfer_events(tdm_comm *comm)
{
    return (tdm__transport_events){.user = comm,
                                   .arrived = transfer_arrived,
                                   .received = transfer_received,
                                   .sent = transfer_sent,
                                   .lost = transfer_peer_lost};
}

void tdm__transfers_check(tdm_request *request)
{
    tdm_comm *comm = request->group->comm;
    if (tdm__is_direct(&request->head)) return;
    tdm__match *entry = NULL;
    while ((entry = tdm__matches_next(comm->matches, &request->head, entry)))
        if (!entry->expected && !tdm__heads_agree(&request->head, &entry->head)) {
            tdm__group_mismatch(request->group, entry->source, &request->head, &entry->head);
            return;
        }
}

/* ---- dropping --------------------------------------------------------------------------------- */

static bool match_is_expected_by(const tdm__match *entry, const void *request)
{
    return entry->expected && entry->transfer->request == request;
}

void tdm__transfers_cancel(tdm_request *request)
{
    tdm_comm *comm = request->group->comm;
    tdm__match found;
    size_t chain = 0;
    while (tdm__matches_remove(comm->matches, match_is_expected_by, request, &chain, &found)) {
        found.transfer->program->pending--;
        transfers_remove(comm, found.transfer);
    }
    tdm__transfer *t = comm->transfers;
    while (t) {
        tdm__transfer *next = t->next == comm->transfers ? NULL : t->next;
        if (t->request == request && transfer_is_queued(t)) {
            comm_count_queued(comm, t->peer, -1);
            t->program->pending--;
            transfers_remove(comm, t);
        }
        t = comm->transfers ? next : NULL;
    }
}

static bool match_waits_in(const tdm__match *entry, const void *group)
{
    return !entry->expected && (!group || entry->head.group == *(const uint32_t *)group);
}

void tdm__transfers_drop(tdm_comm *comm, const uint32_t *group)
{
    tdm__match found;
    size_t chain = 0;
    while (tdm__matches_remove(comm->matches, match_waits_in, group, &chain, &found))
        arrival_drop(comm, found.arrival);
}
