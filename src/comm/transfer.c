/*
 * transfer.c: messages between programs and the transport.
 *
 * A send waits in the comm's list until its turn: of all that wait, the most urgent call's go first, of
 * equally urgent ones the oldest's, and no peer gets more while it has FLIGHT_BYTES with the transport, so that something urgent never
 * stands behind much that is not. When nothing has moved for STALL_S more may go: what is on its way may
 * be for calls that the peer starts only once it has got what waits behind it. A receive is matched with its message by match.h, whichever comes
 * first.
 *
 * Every head that comes is checked, then compared with this rank's own call of that number. Messages
 * for groups that do not exist here yet wait; messages for broken groups are dropped, which ends the
 * sender's side as well. Callbacks only count and match; whatever breaks a group because the transport
 * lost a peer is put off until the engine's next round (tdm__engine_losses), since the transport may be
 * in the middle of something.
 */
#include "comm/engine.h"
#include "comm/match.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FLIGHT_BYTES = 2 << 20 };
#define STALL_S 0.05
#define LOSS_S 1.0 /* for the control to say why a connection broke; then it is asked */

static void record(tdm_comm *comm, tdm_trace_kind kind, int peer, const tdm__head *head)
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

/* ---- the list --------------------------------------------------------------------------------- */

static tdm__transfer *transfer_new(tdm_comm *comm, const tdm__transfer *like)
{
    tdm__transfer *t = comm->free_transfers;
    if (t)
        comm->free_transfers = t->next;
    else
        t = malloc(sizeof *t);
    if (t) *t = *like;
    return t;
}

/* Whether `a` goes before `b`, which came first: its call is more urgent, or as urgent and older. So the
 * last messages of a call do not stand behind the first ones of all that were started since. */
static bool goes_before(const tdm__transfer *a, const tdm__transfer *b)
{
    int urgency_a = a->request ? a->request->call.priority : 0;
    int urgency_b = b->request ? b->request->call.priority : 0;
    if (urgency_a != urgency_b) return urgency_a < urgency_b;
    return (a->request ? a->request->age : 0) < (b->request ? b->request->age : 0);
}

/* Receives and what is handed over may stand anywhere. */
static void list_add(tdm_comm *comm, tdm__transfer *t)
{
    tdm__transfer *first = comm->transfers;
    if (!first) {
        t->next = t->previous = t;
        comm->transfers = t;
        return;
    }
    tdm__transfer *before = first->previous; /* the last one */
    while (goes_before(t, before) && before != first) before = before->previous;
    bool in_front = before == first && goes_before(t, first);
    tdm__transfer *left = in_front ? first->previous : before;
    t->previous = left;
    t->next = left->next;
    left->next->previous = t;
    left->next = t;
    if (in_front) comm->transfers = t;
}

static void list_remove(tdm_comm *comm, tdm__transfer *t)
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
    while (comm->transfers) list_remove(comm, comm->transfers);
    while (comm->free_transfers) {
        tdm__transfer *t = comm->free_transfers;
        comm->free_transfers = t->next;
        free(t);
    }
}

/* ---- sending ---------------------------------------------------------------------------------- */

/* Whatever its size: else small messages that come later would keep a large one from its turn. */
static bool has_room(const tdm_comm *comm, const tdm__transfer *t)
{
    return comm->flight_bytes[t->peer] < FLIGHT_BYTES + comm->flight_extra;
}

static void hand_over(tdm_comm *comm, tdm__transfer *t)
{
    t->handed = true;
    comm->moved_s = 0;
    comm->flight_bytes[t->peer] += t->head.bytes;
    if (t->request) {
        t->request->outstanding++;
        record(comm, TDM_TRACE_SEND, t->peer, &t->head);
    }
    comm->transport->ops->send(comm->transport, t->peer, &t->head, t->data, t);
}

static bool is_queued(const tdm__transfer *t)
{
    return !t->receive && !t->handed;
}

static void count_queued(tdm_comm *comm, int peer, int more)
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
        /* From the start each time: send() may call back, and a callback may take out any of them. */
        tdm__transfer *t = comm->transfers, *found = NULL;
        if (t) do {
                if (is_queued(t) && has_room(comm, t)) found = t;
                t = t->next;
            } while (!found && t != comm->transfers);
        if (!found) return changed;
        count_queued(comm, found->peer, -1);
        hand_over(comm, found);
        changed = true;
    }
}

static void queue(tdm_comm *comm, tdm__transfer *t)
{
    list_add(comm, t);
    if (comm->queued_counts[t->peer] == 0 && has_room(comm, t)) {
        hand_over(comm, t);
        return;
    }
    count_queued(comm, t->peer, 1);
    comm->dispatch = true;
}

double tdm__transfers_stalled(tdm_comm *comm, double now, double never, bool *round)
{
    if (comm->queued_total == 0) return never;
    if (comm->moved_s == 0) comm->moved_s = now;
    if (now >= comm->moved_s + STALL_S) {
        comm->flight_extra += FLIGHT_BYTES;
        comm->dispatch = *round = true;
        comm->moved_s = now;
    }
    return comm->moved_s + STALL_S;
}

static tdm__head head_for(const tdm_request *request, uint32_t step, size_t bytes)
{
    tdm__head head = request->head;
    head.step = step;
    head.bytes = bytes;
    tdm__head_seal(&head);
    return head;
}

/* The transfer of a program's instruction, which the program waits for; NULL (noted) without memory. */
static tdm__transfer *transfer_of(tdm__program *program, const tdm__instruction *instruction)
{
    tdm_request *request = program->request;
    tdm__transfer *t = transfer_new(
        request->group->comm, &(tdm__transfer){
                                  .request = request,
                                  .program = program,
                                  .receive = instruction->op == TDM__OP_RECV,
                                  .peer = request->group->ranks[instruction->peer],
                                  .data = instruction->from,
                                  .head = head_for(request, instruction->step, instruction->bytes),
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
    if (t) queue(program->request->group->comm, t);
}

void tdm__transfer_notice(tdm_request *request, int peer)
{
    tdm_comm *comm = request->group->comm;
    tdm__transfer *t = transfer_new(comm,
                                    &(tdm__transfer){
                                        .peer = peer,
                                        .head = head_for(request, (uint32_t)TDM__NOTICE_STEP, 0),
                                    });
    if (t) queue(comm, t);
}

/* Notes that a transfer came to nothing; the first word stays. */
static void note_failure(const tdm__transfer *t, tdm_status status)
{
    tdm_request *request = t->request;
    if (status == TDM_OK || request->ending || request->error.status != TDM_OK) return;
    const char *what = t->receive ? "receiving from" : "sending to";
    if (request->group->comm->peer_states[t->peer] == TDM_PEER_LEFT)
        tdm_fail(&request->error, TDM_ERR_PEER_LEFT, "%s rank %d failed: it has left the world",
                 what, t->peer);
    else
        tdm_fail(&request->error, TDM_ERR_PEER_FAILED, "%s rank %d failed: %s", what, t->peer,
                 tdm_status_text(status));
}

static void sent(void *user, void *cookie, tdm_status status)
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
        record(comm, TDM_TRACE_SENT, t->peer, &t->head);
        note_failure(t, status);
    }
    list_remove(comm, t);
}

/* ---- receiving -------------------------------------------------------------------------------- */

static void take(tdm_comm *comm, tdm__transfer *t, tdm__arrival *arrival, void *to)
{
    t->handed = true;
    t->request->outstanding++;
    comm->transport->ops->take(comm->transport, arrival, to, t);
}

static void received(void *user, void *cookie, tdm_status status)
{
    tdm_comm *comm = user;
    tdm__transfer *t = cookie;
    tdm_request *request = t->request;
    request->outstanding--;
    t->program->pending--;
    record(comm, TDM_TRACE_RECEIVED, t->peer, &t->head);
    note_failure(t, status);
    list_remove(comm, t);
}

/* The message is there, and somebody wants it: is it what was wanted? */
static void match(tdm_comm *comm, tdm__transfer *t, const tdm__head *theirs, tdm__arrival *arrival,
                  void *to)
{
    if (theirs->bytes == t->head.bytes && tdm__heads_agree(&t->request->head, theirs)) {
        take(comm, t, arrival, to);
        return;
    }
    tdm_request *request = t->request;
    t->program->pending--;
    int peer = t->peer;
    list_remove(comm, t);
    comm->transport->ops->drop(comm->transport, arrival);
    tdm__group_mismatch(request->group, peer, &request->head, theirs);
}

void tdm__transfer_recv(tdm__program *program, const tdm__instruction *instruction)
{
    tdm_comm *comm = program->request->group->comm;
    tdm__transfer *t = transfer_of(program, instruction);
    if (!t) return;
    list_add(comm, t);
    tdm__match found;
    if (tdm__matches_take(comm->matches, &t->head, t->peer, false, &found)) {
        match(comm, t, &found.head, found.arrival, instruction->to);
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
    list_remove(comm, t);
}

/* This rank's own call of that number, if it has come to it: pending or past. */
static const tdm__head *own_call(tdm_group *group, const tdm__head *theirs)
{
    if (tdm__is_direct(theirs)) return NULL; /* compared when it is matched */
    const tdm_request *request = tdm__request_find(group, theirs);
    if (request) return &request->head;
    const tdm__head *past = &group->history[theirs->sequence % TDM__HISTORY];
    return past->magic && past->sequence == theirs->sequence ? past : NULL;
}

static void drop(tdm_comm *comm, tdm__arrival *arrival)
{
    comm->transport->ops->drop(comm->transport, arrival);
}

static void garbage(tdm_comm *comm, int peer, tdm__arrival *arrival)
{
    if (comm->garbage_count++ == 0)
        tdm_log(TDM_LOG_WARN, "comm",
                "dropped a message that is not of this world, from the connection of rank %d; more "
                "of them are dropped without a word",
                peer);
    drop(comm, arrival);
}

static void arrived(void *user, int peer, const tdm__head *head, tdm__arrival *arrival)
{
    tdm_comm *comm = user;
    if (!tdm__head_check(head, comm->control->world, comm->size) || (int)head->source != peer ||
        head->epoch != comm->epoch) {
        garbage(comm, peer, arrival);
        return;
    }
    tdm_group *group = tdm__comm_group(comm, head->group);
    if ((group ? group->broken.status : comm->revoked.status) != TDM_OK ||
        (!group && tdm__early_word(comm, head->group))) {
        drop(comm, arrival);
        return;
    }
    const tdm__head *own = group ? own_call(group, head) : NULL;
    if (own && !tdm__heads_agree(own, head)) {
        drop(comm, arrival);
        tdm__group_mismatch(group, peer, own, head);
        return;
    }
    tdm__match found;
    if (head->step == (uint32_t)TDM__NOTICE_STEP && !tdm__is_direct(head)) {
        drop(comm, arrival);
    } else if (tdm__matches_take(comm->matches, head, peer, true, &found)) {
        match(comm, found.transfer, head, arrival, found.to);
    } else if (comm->matches->waiting_count >= TDM__MAX_WAITING ||
               !tdm__matches_add(comm->matches, &(tdm__match){.direct = tdm__is_direct(head),
                                                              .source = peer,
                                                              .head = *head,
                                                              .arrival = arrival})) {
        drop(comm, arrival);
        if (group)
            tdm__group_break(
                group, true, TDM_ERR_PEER_FAILED,
                "rank %d has no room for more messages that wait for a call: more than "
                "%d have come, the last from rank %d",
                comm->rank, TDM__MAX_WAITING, peer);
    }
}

static void lost(void *user, int peer, const char *how)
{
    tdm_comm *comm = user;
    if (comm->peer_states[peer] != TDM_PEER_WELL) return;
    comm->peer_states[peer] = TDM__PEER_LOSING;
    if (!comm->has_losses) {
        comm->losses_s = tdm__comm_now(comm) + (comm->no_threads ? 0 : LOSS_S);
        comm->losses_ripe = comm->no_threads;
    }
    comm->losses[peer].sign = TDM_SIGN_TRANSPORT;
    comm->has_losses = true;
    snprintf(comm->loss_text, sizeof comm->loss_text, "%s", how);
}

tdm__transport_events tdm__transfer_events(tdm_comm *comm)
{
    return (tdm__transport_events){
        .user = comm, .arrived = arrived, .received = received, .sent = sent, .lost = lost};
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

/* ---- clearing away ---------------------------------------------------------------------------- */

static bool expected_by(const tdm__match *entry, const void *request)
{
    return entry->expected && entry->transfer->request == request;
}

void tdm__transfers_cancel(tdm_request *request)
{
    tdm_comm *comm = request->group->comm;
    tdm__match found;
    size_t chain = 0;
    while (tdm__matches_remove(comm->matches, expected_by, request, &chain, &found)) {
        found.transfer->program->pending--;
        list_remove(comm, found.transfer);
    }
    tdm__transfer *t = comm->transfers;
    while (t) {
        tdm__transfer *next = t->next == comm->transfers ? NULL : t->next;
        if (t->request == request && is_queued(t)) {
            count_queued(comm, t->peer, -1);
            t->program->pending--;
            list_remove(comm, t);
        }
        t = comm->transfers ? next : NULL;
    }
}

static bool waits_in(const tdm__match *entry, const void *group)
{
    return !entry->expected && (!group || entry->head.group == *(const uint32_t *)group);
}

void tdm__transfers_drop(tdm_comm *comm, const uint32_t *group)
{
    tdm__match found;
    size_t chain = 0;
    while (tdm__matches_remove(comm->matches, waits_in, group, &chain, &found))
        drop(comm, found.arrival);
}
