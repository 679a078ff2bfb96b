/*
 * sim_transport.c: messages between simulated ranks.
 *
 * Small payloads are sent with their head: send() copies them, and sent() follows when the last
 * byte has left, whatever happens to the message. Large ones stay at the sender: the head arrives,
 * take() sends a request back, the payload is copied from buffer to buffer, and only then are
 * sent() and received() called. So code that relies on a send ending before its receiver takes it
 * fails here. Events for a rank that is not running become notes in its inbox, which progress()
 * turns into callbacks.
 *
 * Invariants: a message lives while an event, a note, a list or the engine refers to it. `data` and
 * `cookie` are read only while sender_ended is false; `into` and `take_cookie` only between take()
 * and receiver_ended.
 */
#include "base/base.h"
#include "comm/engine.h"
#include "sim/sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A rank that polls without waiting would stop time: after this many polls that found nothing it
 * waits for a moment, and longer each time. */
enum { LOOKS_FREE = 8 };
#define MIN_PAUSE_S 1e-6
#define MAX_PAUSE_S 1e-3

void tdm__sim_message_release(tdm__arrival *message)
{
    if (--message->references > 0) return;
    message->send_next = message->sim->spent;
    message->sim->spent = message;
}

void tdm__sim_free_spent(tdm__sim *sim)
{
    for (tdm__arrival *message; (message = sim->spent) != NULL;) {
        sim->spent = message->send_next;
        free(message);
    }
}

static tdm__arrival *message_hold(tdm__arrival *message)
{
    message->references++;
    return message;
}

static double polls_pause_s(int count)
{
    return fmin(MAX_PAUSE_S, ldexp(MIN_PAUSE_S, count < 20 ? count : 20));
}

static tdm__sim_rank *transport_sim_rank(tdm__transport *transport)
{
    return ((tdm__sim_transport *)transport)->rank;
}

/* ---- notes ----------------------------------------------------------------------------------- */

static void rank_put_note(tdm__sim_rank *rank, tdm__sim_note_kind kind, tdm_status status, int peer,
                          tdm__arrival *message)
{
    if (rank->no_transport) return;
    tdm__sim_note *note = malloc(sizeof(*note));
    if (!note) {
        rank->sim->no_memory = true;
        return;
    }
    *note = (tdm__sim_note){.kind = kind, .status = status, .peer = peer};
    if (message) note->message = message_hold(message);
    *rank->inbox_end = note;
    rank->inbox_end = &note->next;
    tdm__sim_wake(rank);
}

static tdm__sim_note *rank_take_note(tdm__sim_rank *rank)
{
    tdm__sim_note *note = rank->inbox;
    if (!note) return NULL;
    rank->inbox = note->next;
    if (!rank->inbox) rank->inbox_end = &rank->inbox;
    return note;
}

/* ---- the end of a message -------------------------------------------------------------------- */

static void message_end_send(tdm__arrival *message)
{
    message->sender_ended = true;
    *message->send_link = message->send_next;
    if (message->send_next) message->send_next->send_link = message->send_link;
    tdm__sim_message_release(message);
}

static void message_end_take(tdm__arrival *message)
{
    message->receiver_ended = true;
    *message->take_link = message->take_next;
    if (message->take_next) message->take_next->take_link = message->take_link;
    tdm__sim_message_release(message);
}

/* Calls back; reads the cookie before the message may be freed. */
static void rank_call_sent(tdm__sim_rank *rank, tdm__arrival *message, tdm_status status)
{
    void *cookie = message->cookie;
    message_end_send(message);
    rank->transport->events.sent(rank->transport->events.user, cookie, status);
}

static void rank_call_received(tdm__sim_rank *rank, tdm__arrival *message, tdm_status status)
{
    void *cookie = message->take_cookie;
    message_end_take(message);
    rank->transport->events.received(rank->transport->events.user, cookie, status);
}

static bool rank_has_forgotten(const tdm__sim_rank *rank, int peer)
{
    return rank->forgotten && rank->forgotten[peer];
}

/* ---- operations ------------------------------------------------------------------------------ */

static bool sim_usable(char why[160], char library[TDM_LIBRARY_BYTES])
{
    why[0] = library[0] = 0;
    return true;
}

static tdm__arrival *message_create(const tdm__sim_rank *rank, int peer, const tdm__head *head,
                                    const void *data, void *cookie)
{
    bool eager = head->bytes <= TDM__SIM_EAGER_BYTES;
    size_t carried = eager ? (size_t)head->bytes : 0;
    tdm__arrival *message = malloc(sizeof(*message) + carried);
    if (!message) return NULL;
    *message = (tdm__arrival){.sim = rank->sim,
                              .references = 1,
                              .source = rank->rank,
                              .target = peer,
                              .eager = eager,
                              .data = data,
                              .cookie = cookie,
                              .head = *head};
    if (carried > 0) memcpy(message->payload, data, carried);
    return message;
}

static void sim_send(tdm__transport *transport, int peer, const tdm__head *head, const void *data,
                     void *cookie)
{
    tdm__sim_rank *rank = transport_sim_rank(transport);
    tdm__sim *sim = rank->sim;
    const tdm__transport_events *events = &rank->transport->events;
    if (rank->dead || rank_has_forgotten(rank, peer)) {
        events->sent(events->user, cookie, TDM_ERR_PEER_FAILED);
        return;
    }
    tdm__arrival *message = message_create(rank, peer, head, data, cookie);
    if (!message) {
        sim->no_memory = true;
        events->sent(events->user, cookie, TDM_ERR_NO_MEMORY);
        return;
    }
    message->send_next = rank->sending;
    message->send_link = &rank->sending;
    if (rank->sending) rank->sending->send_link = &message->send_next;
    rank->sending = message;
    sim->result.message_count++;

    uint64_t bytes = message->eager ? head->bytes : 0;
    message->left_s = tdm__sim_depart_s(sim, rank->rank, bytes);
    if (message->eager)
        tdm__sim_post(sim, (tdm__sim_event){.time_s = message->left_s,
                                            .kind = TDM__SIM_LEFT,
                                            .rank = rank->rank,
                                            .other = peer,
                                            .message = message_hold(message)});
    double flight_s = tdm__sim_flight_s(sim, rank->rank, peer, bytes, message->left_s);
    if (tdm__sim_vanishes(sim, rank->rank, peer) || !isfinite(flight_s)) return;
    tdm__sim_post(sim, (tdm__sim_event){.time_s = message->left_s + flight_s,
                                        .kind = TDM__SIM_ARRIVE,
                                        .rank = peer,
                                        .other = rank->rank,
                                        .message = message_hold(message)});
}

/* Sends a request about a large message, without payload, from its receiver to its sender. */
static void message_send_request(tdm__sim *sim, tdm__arrival *message, tdm__sim_event_kind kind)
{
    double flight_s = tdm__sim_flight_s(sim, message->target, message->source, 0, sim->now_s);
    if (!isfinite(flight_s)) return;
    tdm__sim_post(sim, (tdm__sim_event){.time_s = sim->now_s + flight_s,
                                        .kind = kind,
                                        .rank = message->source,
                                        .other = message->target,
                                        .message = message_hold(message)});
}

static void sim_take(tdm__transport *transport, tdm__arrival *message, void *into, void *cookie)
{
    tdm__sim_rank *rank = transport_sim_rank(transport);
    message->into = into;
    message->take_cookie = cookie;
    /* The engine's reference is passed to the list. */
    message->take_next = rank->taking;
    message->take_link = &rank->taking;
    if (rank->taking) rank->taking->take_link = &message->take_next;
    rank->taking = message;
    if (message->eager) {
        if (message->head.bytes > 0) memcpy(into, message->payload, (size_t)message->head.bytes);
        rank_call_received(rank, message, TDM_OK);
    } else if (rank->dead || rank_has_forgotten(rank, message->source)) {
        rank_call_received(rank, message, TDM_ERR_PEER_FAILED);
    } else {
        message_send_request(rank->sim, message, TDM__SIM_GO);
    }
}

static void sim_drop(tdm__transport *transport, tdm__arrival *message)
{
    tdm__sim_rank *rank = transport_sim_rank(transport);
    message->receiver_ended = true;
    if (!message->eager && !rank->dead) message_send_request(rank->sim, message, TDM__SIM_DROPPED);
    tdm__sim_message_release(message);
}

static void sim_forget(tdm__transport *transport, int peer)
{
    tdm__sim_rank *rank = transport_sim_rank(transport);
    if (!rank->forgotten) rank->forgotten = calloc((size_t)rank->sim->options.size, 1);
    if (rank->forgotten)
        rank->forgotten[peer] = 1;
    else
        rank->sim->no_memory = true;
    /* A callback may change the lists: restart after each. */
    for (tdm__arrival *m = rank->sending; m;) {
        bool theirs = m->target == peer;
        if (theirs) rank_call_sent(rank, m, TDM_ERR_PEER_FAILED);
        m = theirs ? rank->sending : m->send_next;
    }
    for (tdm__arrival *m = rank->taking; m;) {
        bool theirs = m->source == peer;
        if (theirs) rank_call_received(rank, m, TDM_ERR_PEER_FAILED);
        m = theirs ? rank->taking : m->take_next;
    }
}

/* Turns a note into a callback. Returns the number of callbacks. */
static int rank_read_note(tdm__sim_rank *rank, const tdm__sim_note *note)
{
    const tdm__transport_events *events = &rank->transport->events;
    tdm__arrival *message = note->message;
    switch (note->kind) {
    case TDM__SIM_NOTE_ARRIVED:
        if (rank_has_forgotten(rank, note->peer)) return 0;
        events->arrived(events->user, note->peer, &message->head, message_hold(message));
        return 1;
    case TDM__SIM_NOTE_RECEIVED:
        if (message->receiver_ended) return 0;
        rank_call_received(rank, message, note->status);
        return 1;
    case TDM__SIM_NOTE_SENT:
        if (message->sender_ended) return 0;
        rank_call_sent(rank, message, note->status);
        return 1;
    case TDM__SIM_NOTE_LOST:
        events->lost(events->user, note->peer, "the simulated connection was reset");
        return 1;
    }
    return 0;
}

static int rank_read_inbox(tdm__sim_rank *rank)
{
    int call_count = 0;
    for (tdm__sim_note *note; (note = rank_take_note(rank)) != NULL;) {
        call_count += rank_read_note(rank, note);
        if (note->message) tdm__sim_message_release(note->message);
        free(note);
    }
    return call_count;
}

static int sim_progress(tdm__transport *transport)
{
    tdm__sim_rank *rank = transport_sim_rank(transport);
    int call_count = rank_read_inbox(rank);
    if (rank->dead || call_count > 0 || ++rank->look_count <= LOOKS_FREE) {
        if (call_count > 0) rank->look_count = 0;
        return call_count;
    }
    /* Without the lock that progress() is called with, as if the program had waited. */
    if (rank->comm) tdm__comm_unlock(rank->comm);
    tdm__sim_wait(rank, rank->sim->now_s + polls_pause_s(rank->look_count - LOOKS_FREE));
    tdm__sim_hear(rank);
    if (rank->comm) tdm__comm_lock(rank->comm);
    call_count = rank_read_inbox(rank);
    if (call_count > 0) rank->look_count = 0;
    return call_count;
}

static void sim_wait(tdm__transport *transport, double timeout_s)
{
    tdm__sim_rank *rank = transport_sim_rank(transport);
    rank->look_count = 0;
    if (rank->dead) {
        rank->dead_s += fmax(timeout_s, MAX_PAUSE_S);
        return;
    }
    if (!rank->woken && !rank->inbox && !rank->letters) {
        double min_s = polls_pause_s(rank->wait_count++);
        tdm__sim_wait(rank, rank->sim->now_s + fmax(timeout_s, min_s));
    }
    if (rank->inbox || rank->letters) rank->wait_count = 0;
    rank->woken = false;
    tdm__sim_hear(rank);
}

static void sim_wake(tdm__transport *transport)
{
    tdm__sim_wake(transport_sim_rank(transport));
}

static double sim_now_s(tdm__transport *transport)
{
    const tdm__sim_rank *rank = transport_sim_rank(transport);
    return rank->sim->now_s + rank->dead_s;
}

void tdm__sim_transport_clear(tdm__sim_rank *rank)
{
    for (tdm__sim_note *note; (note = rank_take_note(rank)) != NULL;) {
        if (note->message) tdm__sim_message_release(note->message);
        free(note);
    }
    while (rank->sending) message_end_send(rank->sending);
    while (rank->taking) message_end_take(rank->taking);
    free(rank->forgotten);
    rank->forgotten = NULL;
    free(rank->transport);
    rank->transport = NULL;
    rank->no_transport = true;
}

static void sim_destroy(tdm__transport *transport)
{
    tdm__sim_transport_clear(transport_sim_rank(transport));
}

const tdm__transport_ops tdm__transport_sim = {
    .name = "sim",
    .about = "many ranks in one process, in virtual time, with a seed; only through tdm_sim_run",
    .usable = sim_usable,
    .destroy = sim_destroy,
    .send = sim_send,
    .take = sim_take,
    .drop = sim_drop,
    .forget = sim_forget,
    .progress = sim_progress,
    .wait = sim_wait,
    .wake = sim_wake,
    .now_s = sim_now_s,
};

tdm_status tdm__sim_transport_make(void *context, const tdm__transport_events *events,
                                   tdm__transport **out, tdm_error *err)
{
    tdm__sim_rank *rank = context;
    tdm__sim_transport *transport = calloc(1, sizeof(*transport));
    if (!transport) return tdm_fail_oom(err, "for rank %d", rank->rank);
    transport->base.ops = &tdm__transport_sim;
    transport->rank = rank;
    transport->events = *events;
    rank->transport = transport;
    *out = &transport->base;
    return TDM_OK;
}

/* ---- events ---------------------------------------------------------------------------------- */

/* Whether a message (or its payload) that is due now is held up: its sender died before the last
 * byte had left, or the network is cut; then it arrives when the network is open again. */
static bool message_is_held_up(tdm__sim *sim, const tdm__sim_event *event)
{
    tdm__arrival *message = event->message;
    const tdm__sim_rank *source = &sim->ranks[message->source];
    if (source->state == TDM__SIM_CRASHED && message->left_s > source->stopped_s) return true;
    double open_s = tdm__sim_open_s(sim, message->source, message->target, sim->now_s);
    if (open_s <= sim->now_s) return false;
    if (isfinite(open_s)) {
        tdm__sim_event again = *event;
        again.time_s = open_s + sim->options.latency_s;
        message_hold(message);
        tdm__sim_post(sim, again);
    }
    return true;
}

static void message_on_data(tdm__sim *sim, const tdm__sim_event *event)
{
    tdm__arrival *message = event->message;
    tdm__sim_rank *source = &sim->ranks[message->source];
    tdm__sim_rank *target = &sim->ranks[message->target];
    if (message_is_held_up(sim, event)) return;
    if (target->state == TDM__SIM_CRASHED) return;
    if (message->sender_ended) {
        if (!message->receiver_ended)
            rank_put_note(target, TDM__SIM_NOTE_RECEIVED, TDM_ERR_PEER_FAILED, source->rank,
                          message);
        return;
    }
    if (!message->receiver_ended) {
        memcpy(message->into, message->data, (size_t)message->head.bytes);
        rank_put_note(target, TDM__SIM_NOTE_RECEIVED, TDM_OK, source->rank, message);
    }
    rank_put_note(source, TDM__SIM_NOTE_SENT, TDM_OK, target->rank, message);
}

/* Handles the request for a large message. */
static void message_on_go(tdm__sim *sim, const tdm__sim_event *event)
{
    tdm__arrival *message = event->message;
    const tdm__sim_rank *source = &sim->ranks[message->source];
    if (source->state == TDM__SIM_CRASHED) return;
    /* If the sender has abandoned it, the answer has no payload. */
    uint64_t bytes = message->sender_ended ? 0 : message->head.bytes;
    message->left_s = tdm__sim_depart_s(sim, message->source, bytes);
    double flight_s = tdm__sim_flight_s(sim, message->source, message->target, bytes,
                                        message->left_s);
    if (!isfinite(flight_s)) return;
    tdm__sim_post(sim, (tdm__sim_event){.time_s = message->left_s + flight_s,
                                        .kind = TDM__SIM_DATA,
                                        .rank = message->target,
                                        .other = message->source,
                                        .message = message_hold(message)});
}

void tdm__sim_message_event(tdm__sim *sim, const tdm__sim_event *event)
{
    tdm__arrival *message = event->message;
    tdm__sim_rank *rank = &sim->ranks[event->rank];
    switch (event->kind) {
    case TDM__SIM_ARRIVE:
        if (!message_is_held_up(sim, event) && rank->state != TDM__SIM_CRASHED)
            rank_put_note(rank, TDM__SIM_NOTE_ARRIVED, TDM_OK, event->other, message);
        break;
    case TDM__SIM_GO: message_on_go(sim, event); break;
    case TDM__SIM_DATA: message_on_data(sim, event); break;
    case TDM__SIM_CUT_OFF:
        if (rank->state != TDM__SIM_CRASHED)
            rank_put_note(rank, TDM__SIM_NOTE_LOST, TDM_OK, event->other, NULL);
        break;
    default: /* LEFT, DROPPED */
        if (rank->state != TDM__SIM_CRASHED && !message->sender_ended)
            rank_put_note(rank, TDM__SIM_NOTE_SENT, TDM_OK, event->other, message);
        break;
    }
}
