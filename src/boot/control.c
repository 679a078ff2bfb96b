/*
 * control.c: the client of the control connection, one in each rank.
 *
 * It has two threads. The *reader* owns the connection: it reads, writes and sends heartbeats. It never
 * calls an event and waits only for the connection, so answers arrive and heartbeats leave whatever the
 * rest of the process does. The *notifier* calls the events: news from a queue, and the text for the next
 * heartbeat. So an event may wait for a lock whose holder waits for an answer here.
 *
 * States of the connection (client_state):
 *
 *              close()                BYE sent
 *     OPEN ------------> CLOSING ---------------> BYE_SENT
 *      |                    |                        |
 *      | connection ended   | connection ended       | connection ended, or no answer in time
 *      v                    v                        |
 *     CUT -------------> CLOSED <--------------------+
 *           close()
 *
 *     OPEN -> CLOSING, CUT -> CLOSED     client_end_threads
 *     CLOSING -> BYE_SENT                reader_send_bye
 *     OPEN -> CUT                        connection_cut: the hub closed the connection, sent an invalid
 *                                        message, has declared this rank lost, or is silent
 *     CLOSING or BYE_SENT -> CLOSED      connection_cut, also at the end of reader_main
 *
 * In CUT and CLOSED the reader has ended or ends, and waiting calls return. If the connection is cut while
 * neither side has sent a BYE, a rank other than 0 queues the news that rank 0 is lost. A BYE of the hub
 * (`hub_has_left`) does not change the state: the hub closes the connection after it.
 *
 * States of an exchange (exchange_state):
 *
 *            exchange()              all blocks received
 *     IDLE --------------> WAITING --------------------> DONE
 *      ^                      |                           |
 *      |                      | deadline, cancellation    |
 *      |                      v                           |
 *      |                    LATE (final: the numbers of   |
 *      |                          the ranks differ now)   |
 *      +--------------------------------------------------+
 *            exchange() returns; also if a rank has failed
 *
 *     IDLE -> WAITING, to IDLE           control_exchange
 *     WAITING -> DONE                    exchange_take_blocks
 *     WAITING -> LATE                    exchange_failed, exchange_run
 *
 * `lock` protects all fields below it; the reader holds it except while it sleeps. The news of a rank as
 * lost or left is queued at most once, so only broken groups need a separate limit.
 */
#include "base/timing.h"
#include "boot/boot.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_BROKEN = 4096, BLOCK_ALIGN = 16 };

static const char closed_text[] = "its connection to this rank was closed: it exited or was killed";

typedef struct news_item {
    tdm__news news; /* its `text` and `loss` point into this item */
    tdm_peer_loss loss;
    struct news_item *next;
    char text[];
} news_item;

typedef struct peer {
    tdm__entry entry;
    tdm__news_kind gone; /* 0: not yet */
    bool is_suspected;   /* the hub has not answered control_suspect for it yet */
} peer;

typedef enum client_state {
    CLIENT_OPEN = 0,
    CLIENT_CLOSING,  /* close() was called */
    CLIENT_BYE_SENT, /* this rank has sent a BYE and waits for the end of the connection */
    CLIENT_CUT,      /* the connection has ended */
    CLIENT_CLOSED    /* both: it has ended, and close() was called */
} client_state;

typedef enum notifier_state {
    NOTIFIER_WAITING = 0, /* no events yet: see control_listen */
    NOTIFIER_IDLE,
    NOTIFIER_CALLING /* it calls events.news */
} notifier_state;

typedef enum exchange_state {
    EXCHANGE_IDLE = 0,
    EXCHANGE_WAITING,
    EXCHANGE_DONE, /* `blocks` and `block_bytes` are set */
    EXCHANGE_LATE  /* one did not end in time: no further exchange is possible */
} exchange_state;

typedef struct client {
    tdm__control control; /* first */
    tdm__facts facts;
    tdm__hub *hub;           /* of rank 0; NULL in the others */
    tdm__rendezvous meeting; /* of rank 0, to remove its file */
    bool has_meeting;
    int wake_fd;
    int *host_of;
    const char **host_names; /* by rank; the names in `peers` */
    pthread_t reader, notifier;
    bool has_reader, has_notifier;
    pthread_mutex_t asking; /* held from a question to its answer */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    tdm__channel channel;
    client_state state;
    bool hub_has_left; /* the hub has sent a BYE, so its end is not a failure */
    double heard_s, longest_s;
    peer *peers;
    tdm_process_watch hub_process; /* of a hub on this host; set at its first long silence */
    int first_gone;                /* first rank that was lost or left; -1: none */
    char gone_text[300];
    char failure_text[300];        /* of a lost rank or a revoked world; empty: neither */
    char hub_does[TDM__WIRE_TEXT]; /* what rank 0 did last, from its PING */

    tdm__control_events events;
    notifier_state notifier_state;
    char beat[TDM__WIRE_TEXT];
    bool beats_now; /* send the next heartbeat at once */
    news_item *first, *last;
    int broken_count;

    uint32_t exchange_number;
    exchange_state exchange_state;
    uint8_t **blocks; /* NULL: too large, or out of memory */
    size_t *block_bytes;

    uint32_t question,
        answered; /* numbers of the last question and of the one that `answer` is for */
    char answer[TDM__WIRE_TEXT];
} client;

static bool client_is_cut(const client *c)
{
    return c->state == CLIENT_CUT || c->state == CLIENT_CLOSED;
}

/* Whether close() was called. */
static bool client_is_closing(const client *c)
{
    return c->state != CLIENT_OPEN && c->state != CLIENT_CUT;
}

static bool client_has_failed(const client *c)
{
    return c->failure_text[0] != '\0';
}

static void client_wake(client *c)
{
    uint64_t one = 1;
    if (write(c->wake_fd, &one, sizeof(one)) < 0) return; /* full: the reader is awake */
}

/* Waits for a change of the state until `until_s` of tdm_clock_s, which is CLOCK_MONOTONIC like the condition. */
static void client_wait(client *c, double until_s)
{
    struct timespec until = tdm_clock_timespec(until_s);
    pthread_cond_timedwait(&c->changed, &c->lock, &until);
}

/* ---- news, with the lock held --------------------------------------------------------------------------- */

static void news_queue(client *c, const tdm__news *news)
{
    if (news->kind == TDM__NEWS_BROKEN && c->broken_count >= MAX_BROKEN) return;
    size_t bytes = strlen(news->text) + 1;
    news_item *new = calloc(1, sizeof(*new) + bytes);
    if (!new) {
        tdm_log(TDM_LOG_ERROR, "comm", "no memory for the news about rank %d: %s", news->rank,
                news->text);
        return;
    }
    new->news = *news;
    memcpy(new->text, news->text, bytes);
    new->news.text = new->text;
    if (news->loss) {
        new->loss = *news->loss;
        new->news.loss = &new->loss;
    }
    if (c->last) {
        c->last->next = new;
    } else {
        c->first = new;
    }
    c->last = new;
    c->broken_count += news->kind == TDM__NEWS_BROKEN;
    pthread_cond_broadcast(&c->changed);
}

static void client_set_failed(client *c, const char *text)
{
    if (client_has_failed(c)) return;
    snprintf(c->failure_text, sizeof(c->failure_text), "%.290s",
             *text ? text : "a rank has ended the world");
    pthread_cond_broadcast(&c->changed);
}

/* A rank is lost or has left. `loss` is NULL for one that has left. */
static void peer_gone(client *c, int rank, tdm__news_kind kind, const char *text,
                      const tdm_peer_loss *loss)
{
    if (c->peers[rank].gone) return;
    c->peers[rank].gone = kind;
    if (c->first_gone < 0) {
        c->first_gone = rank;
        snprintf(
            c->gone_text, sizeof(c->gone_text), "rank %d (%s, process %llu) %s%.150s", rank,
            c->peers[rank].entry.name, (unsigned long long)c->peers[rank].entry.pid,
            kind == TDM__NEWS_LEFT ? "has left" : "is lost: ", kind == TDM__NEWS_LEFT ? "" : text);
        if (kind == TDM__NEWS_LOST) client_set_failed(c, c->gone_text);
    }
    tdm__news news = {.kind = kind,
                      .rank = rank,
                      .group = TDM__ALL_GROUPS,
                      .status = kind == TDM__NEWS_LEFT ? TDM_ERR_PEER_LEFT : TDM_ERR_PEER_FAILED,
                      .text = text,
                      .loss = loss};
    news_queue(c, &news);
}

/* No other reason was reported for the lost connection to a peer (see suspect in control.h). */
static void peer_confirm_loss(client *c, int rank)
{
    c->peers[rank].is_suspected = false;
    tdm__news news = {.kind = TDM__NEWS_CONFIRMED,
                      .rank = rank,
                      .group = TDM__ALL_GROUPS,
                      .status = TDM_ERR_PEER_FAILED,
                      .text = ""};
    news_queue(c, &news);
}

static void connection_cut(client *c, tdm_peer_sign sign, const char *how)
{
    if (client_is_cut(c)) return;
    bool said_bye = c->state == CLIENT_BYE_SENT;
    c->state = c->state == CLIENT_OPEN ? CLIENT_CUT : CLIENT_CLOSED;
    if (!c->hub_has_left && !said_bye && c->control.rank != 0) {
        tdm_peer_loss loss = {.sign = sign, .heard_s = tdm_clock_s() - c->heard_s};
        snprintf(loss.what, sizeof(loss.what), "%.150s", c->hub_does);
        peer_gone(c, 0, TDM__NEWS_LOST, how, &loss);
    }
    for (int i = 0; i < c->control.size; i++) /* the hub will not answer any more */
        if (c->peers[i].is_suspected) peer_confirm_loss(c, i);
    pthread_cond_broadcast(&c->changed);
}

/* ---- frames from the hub, with the lock held ------------------------------------------------------------ */

static void exchange_take_blocks(client *c, const tdm__frame *frame)
{
    if (c->exchange_state != EXCHANGE_WAITING || frame->number != c->exchange_number) return;
    size_t size = (size_t)c->control.size, total = 0;
    const uint8_t *from = NULL;
    size_t *bytes = calloc(size, sizeof(*bytes));
    c->exchange_state = EXCHANGE_DONE;
    pthread_cond_broadcast(&c->changed);
    if (!bytes || frame->count != size || !tdm__wire_blocks(frame, bytes, &from)) {
        free(bytes);
        return;
    }
    size_t head = (size * sizeof(uint8_t *) + BLOCK_ALIGN - 1) & ~(size_t)(BLOCK_ALIGN - 1);
    for (size_t i = 0; i < size; i++)
        total += (bytes[i] + BLOCK_ALIGN - 1) & ~(size_t)(BLOCK_ALIGN - 1);
    uint8_t **all = malloc(head + total);
    uint8_t *to = (uint8_t *)all + head;
    for (size_t i = 0; all && i < size; i++) {
        all[i] = to;
        if (bytes[i] > 0) memcpy(to, from, bytes[i]);
        from += bytes[i];
        to += (bytes[i] + BLOCK_ALIGN - 1) & ~(size_t)(BLOCK_ALIGN - 1);
    }
    if (!all) {
        free(bytes);
        bytes = NULL;
    }
    c->blocks = all;
    c->block_bytes = bytes;
}

static void frame_take_news(client *c, const tdm__frame *frame)
{
    if (frame->rank == (uint32_t)c->control.rank && frame->kind == TDM__NEWS_LOST)
        connection_cut(c, TDM_SIGN_SILENCE,
                       "it has declared this rank lost after too long a silence");
    if (frame->rank >= (uint32_t)c->control.size || frame->rank == (uint32_t)c->control.rank)
        return;
    if (frame->kind == TDM__NEWS_LOST || frame->kind == TDM__NEWS_LEFT) {
        tdm_peer_loss loss = {.sign = frame->id <= TDM_SIGN_TOLD ? (tdm_peer_sign)frame->id
                                                                 : TDM_SIGN_TOLD,
                              .heard_s = frame->number * 1e-3};
        memcpy(loss.what, frame->what, sizeof(loss.what));
        peer_gone(c, (int)frame->rank, (tdm__news_kind)frame->kind, frame->text,
                  frame->kind == TDM__NEWS_LOST ? &loss : NULL);
    } else if (frame->kind == TDM__NEWS_BROKEN) {
        bool peers = tdm_status_group_of((tdm_status)frame->status) == TDM_STATUS_GROUP_PEER;
        tdm__news news = {.kind = TDM__NEWS_BROKEN,
                          .rank = (int)frame->rank,
                          .group = frame->group,
                          .status = peers ? (tdm_status)frame->status : TDM_ERR_PEER_FAILED,
                          .text = frame->text};
        if (frame->group == TDM__ALL_GROUPS) client_set_failed(c, frame->text);
        news_queue(c, &news);
    } else if (frame->kind == TDM__NEWS_CONFIRMED && c->peers[frame->rank].is_suspected) {
        peer_confirm_loss(c, (int)frame->rank);
    }
}

static void frame_take(client *c, const tdm__frame *frame)
{
    switch (frame->type) {
    case TDM__FRAME_GATHERED: exchange_take_blocks(c, frame); break;
    case TDM__FRAME_NEWS: frame_take_news(c, frame); break;
    case TDM__FRAME_ANSWER:
        if (frame->id != c->question) break;
        memcpy(c->answer, frame->text, sizeof(c->answer));
        c->answered = frame->id;
        pthread_cond_broadcast(&c->changed);
        break;
    case TDM__FRAME_BYE: c->hub_has_left = true; break;
    case TDM__FRAME_PING: memcpy(c->hub_does, frame->text, sizeof(c->hub_does)); break;
    default: break;
    }
}

static void connection_read(client *c, double now_s)
{
    size_t before = c->channel.in_count;
    tdm__channel_state state = tdm__channel_read(&c->channel);
    int why = errno;
    if (c->channel.in_count > before) {
        if (now_s - c->heard_s > c->longest_s) c->longest_s = now_s - c->heard_s;
        c->heard_s = now_s;
    }
    tdm__frame frame;
    int got = 0;
    while ((got = tdm__channel_next(&c->channel, &frame)) > 0) frame_take(c, &frame);
    if (got < 0) connection_cut(c, TDM_SIGN_CLOSED, "it sent an invalid message");
    if (state == TDM__CHANNEL_ERROR && why != ECONNRESET && why != EPIPE)
        connection_cut(c, TDM_SIGN_CLOSED, strerror(why));
    else if (state != TDM__CHANNEL_OK)
        connection_cut(c, TDM_SIGN_CLOSED, closed_text);
}

/* ---- the reader ----------------------------------------------------------------------------------------- */

static void beat_send(client *c)
{
    if (tdm__channel_has_output(&c->channel)) return;
    tdm__frame frame = {.type = TDM__FRAME_BEAT};
    memcpy(frame.text, c->beat, sizeof(frame.text));
    tdm__channel_put_frame(&c->channel, &frame);
}

static void hub_check_silence(client *c, double now_s)
{
    double min_s = c->facts.silence_s;
    double max_s = tdm__silence_max_s(min_s, c->longest_s, c->control.size);
    if (c->control.rank == 0 || now_s - c->heard_s <= max_s) return;
    const tdm__entry *hub = &c->peers[0].entry, *own = &c->peers[c->control.rank].entry;
    if (hub->host == own->host &&
        tdm__silence_is_slowness(&c->hub_process, hub->pid, now_s - c->heard_s, min_s))
        return;
    char text[80];
    snprintf(text, sizeof(text), "no heartbeat for %.1f s", now_s - c->heard_s);
    connection_cut(c, TDM_SIGN_SILENCE, text);
}

/* Releases the lock and sleeps until the connection can be read or written, client_wake, or `until_s`. */
static void reader_sleep(client *c, double until_s)
{
    struct pollfd wait[2] = {{.fd = c->channel.stream.fd, .events = POLLIN},
                             {.fd = c->wake_fd, .events = POLLIN}};
    if (tdm__channel_wants_room(&c->channel)) wait[0].events |= POLLOUT;
    if (c->channel.has_more) until_s = 0;
    pthread_mutex_unlock(&c->lock);
    double left_s = until_s - tdm_clock_s();
    poll(wait, 2, left_s > 0 ? (int)(left_s * 1000) + 1 : 0);
    uint64_t times;
    if (wait[1].revents && read(c->wake_fd, &times, sizeof(times)) < 0) times = 0;
    pthread_mutex_lock(&c->lock);
}

/* Returns until when to wait for the end of the connection; a hub that is silent is not waited for. */
static double reader_send_bye(client *c, double now_s)
{
    tdm__frame bye = {.type = TDM__FRAME_BYE};
    bool is_silent = now_s - c->heard_s >
                     TDM__TIMING_BOOT_ANSWER_BEATS * tdm__beat_s(c->control.size);
    c->state = CLIENT_BYE_SENT;
    bool is_queued = tdm__channel_put_frame(&c->channel, &bye);
    return is_silent || !is_queued ? now_s : now_s + TDM__TIMING_BOOT_BYE_S;
}

static void *reader_main(void *user)
{
    client *c = user;
    tdm__thread_raise_priority();
    pthread_mutex_lock(&c->lock);
    double beat_s = tdm__beat_s(c->control.size), next_s = tdm_clock_s(), turn_s = next_s;
    double end_s = 0; /* BYE_SENT: when to stop waiting */

    while (!client_is_cut(c) && (c->state != CLIENT_BYE_SENT || tdm_clock_s() < end_s)) {
        double now_s = tdm_clock_s();
        if (now_s - turn_s > TDM__TIMING_BOOT_STALL_S + beat_s)
            c->heard_s += now_s - turn_s; /* this process was stopped */
        turn_s = now_s;

        connection_read(c, now_s);
        if (client_is_cut(c)) break;

        if (c->state == CLIENT_CLOSING) end_s = reader_send_bye(c, now_s);
        if (c->state == CLIENT_OPEN && (now_s >= next_s || c->beats_now)) {
            c->beats_now = false;
            beat_send(c);
            next_s = now_s + beat_s;
            hub_check_silence(c, now_s);
        }
        if (!client_is_cut(c) && tdm__channel_flush(&c->channel) != TDM__CHANNEL_OK) {
            connection_read(c, now_s); /* what it sent before the end */
            connection_cut(c, TDM_SIGN_CLOSED, closed_text);
        }
        if (client_is_cut(c)) break;

        if (c->state == CLIENT_BYE_SENT && !tdm__channel_has_output(&c->channel))
            shutdown(c->channel.stream.fd, SHUT_WR);
        reader_sleep(c, c->state == CLIENT_BYE_SENT ? end_s : next_s);
    }

    connection_cut(c, TDM_SIGN_CLOSED, "its connection to this rank was closed by this rank");
    shutdown(c->channel.stream.fd, SHUT_RDWR); /* a hub that ends does not wait for our close() */
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- the notifier --------------------------------------------------------------------------------------- */

static void news_deliver(client *c)
{
    news_item *first = c->first;
    c->first = first->next;
    if (!c->first) c->last = NULL;
    c->broken_count -= first->news.kind == TDM__NEWS_BROKEN;
    c->notifier_state = NOTIFIER_CALLING;
    pthread_mutex_unlock(&c->lock);
    if (c->events.news) c->events.news(c->events.user, &first->news);
    free(first);
    pthread_mutex_lock(&c->lock);
    c->notifier_state = NOTIFIER_IDLE;
    pthread_cond_broadcast(&c->changed);
}

static void beat_update_text(client *c)
{
    char text[TDM__WIRE_TEXT] = "";
    pthread_mutex_unlock(&c->lock);
    if (c->events.describe) c->events.describe(c->events.user, text, sizeof(text));
    text[sizeof(text) - 1] = '\0';
    pthread_mutex_lock(&c->lock);
    bool is_first = !*c->beat;
    memcpy(c->beat, text, sizeof(c->beat));
    if (!is_first) return;
    c->beats_now = true; /* so that the hub has a text from the start */
    client_wake(c);
}

static void *notifier_main(void *user)
{
    client *c = user;
    tdm__thread_raise_priority();
    pthread_mutex_lock(&c->lock);
    double next_s = tdm_clock_s(), beat_s = tdm__beat_s(c->control.size);
    while (!client_is_closing(c)) {
        double now_s = tdm_clock_s();
        bool can_call = c->notifier_state != NOTIFIER_WAITING;
        if (can_call && c->first) {
            news_deliver(c);
        } else if (can_call && now_s >= next_s) {
            beat_update_text(c);
            next_s = now_s + beat_s;
        } else {
            client_wait(c, can_call ? next_s : now_s + beat_s);
        }
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- operations ----------------------------------------------------------------------------------------- */

static void control_listen(tdm__control *control, const tdm__control_events *events)
{
    client *c = (client *)control;
    pthread_mutex_lock(&c->lock);
    c->events = *events;
    c->notifier_state = NOTIFIER_IDLE;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

/* Deadline of an answer: later for a hub that sends heartbeats than for one that is silent. */
static double answer_until_s(const client *c, double asked_s)
{
    double min_s = asked_s + TDM__TIMING_BOOT_ANSWER_S;
    double max_s = asked_s + TDM__TIMING_BOOT_MAX_ANSWER_S;
    double beating_s = c->heard_s + TDM__TIMING_BOOT_ANSWER_BEATS * tdm__beat_s(c->control.size);
    return beating_s < min_s ? min_s : beating_s < max_s ? beating_s : max_s;
}

/* Waits until all queued news is delivered: it may explain a failure better than the caller can. */
static void news_wait_delivered(client *c)
{
    double until_s = tdm_clock_s() + TDM__TIMING_BOOT_MAX_ANSWER_S;
    while (c->notifier_state != NOTIFIER_WAITING && !client_is_closing(c) &&
           (c->first || c->notifier_state == NOTIFIER_CALLING) && tdm_clock_s() < until_s)
        client_wait(c, until_s);
}

/* Sends a question to the hub and waits for the answer. False: the connection is cut, or no answer arrives in
 * time. */
static bool hub_ask(client *c, tdm__frame *frame, char *out, size_t bytes)
{
    pthread_mutex_lock(&c->asking);
    pthread_mutex_lock(&c->lock);
    double asked_s = tdm_clock_s();
    frame->type = TDM__FRAME_ASK;
    frame->id = ++c->question;
    bool ok = !client_is_cut(c) && tdm__channel_put_frame(&c->channel, frame);
    client_wake(c);
    while (ok && c->answered != frame->id && !client_is_cut(c)) {
        double until_s = answer_until_s(c, asked_s);
        if (tdm_clock_s() >= until_s) break;
        client_wait(c, until_s);
    }
    ok = ok && c->answered == frame->id;
    if (ok) snprintf(out, bytes, "%s", c->answer);
    if (client_is_cut(c) && !ok) news_wait_delivered(c);
    pthread_mutex_unlock(&c->lock);
    pthread_mutex_unlock(&c->asking);
    return ok;
}

static void control_suspect(tdm__control *control, int rank)
{
    client *c = (client *)control;
    tdm__frame frame = {.type = TDM__FRAME_ASK, .kind = TDM__ASK_SUSPECT, .number = (uint32_t)rank};
    pthread_mutex_lock(&c->lock);
    if (!c->peers[rank].is_suspected) {
        c->peers[rank].is_suspected = true;
        if (client_is_cut(c) || !tdm__channel_put_frame(&c->channel, &frame))
            peer_confirm_loss(c, rank);
        client_wake(c);
    }
    pthread_mutex_unlock(&c->lock);
}

static tdm_status exchange_failed(client *c, uint32_t number, tdm_error *err)
{
    if (c->first_gone >= 0)
        return tdm_fail(err,
                        c->peers[c->first_gone].gone == TDM__NEWS_LEFT ? TDM_ERR_PEER_LEFT
                                                                       : TDM_ERR_PEER_FAILED,
                        "the ranks can no longer exchange data: %s", c->gone_text);
    if (client_is_cut(c) || client_has_failed(c))
        return tdm_fail(err, TDM_ERR_PEER_FAILED, "the ranks can no longer exchange data: %s",
                        client_has_failed(c) ? c->failure_text : "rank 0 is gone");
    if (c->exchange_state == EXCHANGE_LATE)
        return tdm_fail(err, TDM_ERR_PEER_TIMEOUT,
                        "the ranks can no longer exchange data: an earlier exchange timed out");
    c->exchange_state = EXCHANGE_LATE;
    pthread_mutex_unlock(&c->lock);
    tdm__frame frame = {.kind = TDM__ASK_LACKING, .number = number};
    char who[TDM__WIRE_TEXT] = "";
    if (!hub_ask(c, &frame, who, sizeof(who)) || !*who) snprintf(who, sizeof(who), "unknown");
    pthread_mutex_lock(&c->lock);
    return tdm_fail(err, TDM_ERR_PEER_TIMEOUT,
                    "exchange %u timed out after %.3g s; missing ranks: %s", number,
                    c->facts.deadline_s, who);
}

/* Whether an exchange cannot end: the connection is cut, or a rank has failed or left. */
static bool exchange_is_hopeless(const client *c)
{
    return client_is_cut(c) || c->first_gone >= 0 || client_has_failed(c);
}

/* Waits until the exchange has succeeded or failed. False: the caller has cancelled it. */
static bool exchange_wait(client *c, double until_s)
{
    const tdm__cancellation *cancellation = &c->control.cancellation;
    double now_s = tdm_clock_s();
    while (c->exchange_state == EXCHANGE_WAITING && !exchange_is_hopeless(c) && now_s < until_s) {
        client_wait(c, now_s + tdm__cancellation_slice(cancellation, until_s - now_s));
        pthread_mutex_unlock(&c->lock);
        bool over = tdm__cancellation_is_due(cancellation);
        pthread_mutex_lock(&c->lock);
        if (over && c->exchange_state == EXCHANGE_WAITING) return false;
        now_s = tdm_clock_s();
    }
    return true;
}

/* Runs the exchange, in state WAITING. */
static tdm_status exchange_run(client *c, const tdm__frame *frame, uint8_t ***out_all,
                               size_t **out_bytes, tdm_error *err)
{
    if (exchange_is_hopeless(c)) return exchange_failed(c, frame->number, err);
    if (!tdm__channel_put_frame(&c->channel, frame))
        return tdm_fail_oom(err, "to exchange %zu bytes", frame->byte_count);
    client_wake(c);

    if (!exchange_wait(c, tdm_clock_s() + c->facts.deadline_s)) {
        c->exchange_state = EXCHANGE_LATE;
        return tdm_fail(err, TDM_ERR_PEER_FAILED,
                        "rank %d stops waiting for the other ranks: epoch %u has ended",
                        c->control.rank, c->facts.epoch);
    }
    if (c->exchange_state != EXCHANGE_DONE) return exchange_failed(c, frame->number, err);

    c->exchange_number++;
    if (!c->blocks)
        return tdm_fail(err, TDM_ERR_NO_MEMORY,
                        "the exchanged data exceeds %d MB, or memory has run out",
                        TDM__MAX_WIRE_GATHERED >> 20);
    *out_all = c->blocks;
    *out_bytes = c->block_bytes;
    return TDM_OK;
}

static tdm_status control_exchange(tdm__control *control, const void *mine, size_t bytes,
                                   uint8_t ***out_all, size_t **out_bytes, tdm_error *err)
{
    client *c = (client *)control;
    if (bytes > TDM__MAX_WIRE_BLOCK)
        return tdm_fail(err, TDM_ERR_RANGE,
                        "a rank can exchange at most %d MB at once, not %zu bytes",
                        TDM__MAX_WIRE_BLOCK >> 20, bytes);
    pthread_mutex_lock(&c->lock);
    tdm_status status = TDM_ERR_BUSY;
    if (c->exchange_state == EXCHANGE_LATE) {
        status = exchange_failed(c, c->exchange_number, err);
    } else if (c->exchange_state != EXCHANGE_IDLE) {
        tdm_fail(err, status, "another thread of this rank is already exchanging data");
    } else {
        c->exchange_state = EXCHANGE_WAITING;
        c->blocks = NULL;
        c->block_bytes = NULL;
        tdm__frame frame = {.type = TDM__FRAME_EXCHANGE,
                            .number = c->exchange_number,
                            .bytes = mine,
                            .byte_count = bytes};
        status = exchange_run(c, &frame, out_all, out_bytes, err);
        if (c->exchange_state != EXCHANGE_LATE) c->exchange_state = EXCHANGE_IDLE;
    }
    pthread_mutex_unlock(&c->lock);
    return status;
}

static void control_broken(tdm__control *control, uint32_t group, tdm_status status,
                           const char *text)
{
    client *c = (client *)control;
    tdm__frame frame = {.type = TDM__FRAME_NEWS,
                        .kind = TDM__NEWS_BROKEN,
                        .rank = (uint32_t)control->rank,
                        .group = group,
                        .status = (uint32_t)status};
    snprintf(frame.text, sizeof(frame.text), "%s", text);
    pthread_mutex_lock(&c->lock);
    bool can_send = c->state == CLIENT_OPEN || c->state == CLIENT_CLOSING;
    if (can_send && tdm__channel_put_frame(&c->channel, &frame)) client_wake(c);
    pthread_mutex_unlock(&c->lock);
}

static void control_report(tdm__control *control, const int *ranks, int count, char *out,
                           size_t bytes)
{
    client *c = (client *)control;
    tdm_str list = TDM_STR_INIT, names = TDM_STR_INIT;
    for (int i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= control->size) continue;
        tdm__wire_put_u32((uint32_t)ranks[i], &list);
        if (names.length + 100 < TDM__WIRE_TEXT)
            tdm_str_addf(&names, "%srank %d (%s, process %llu)", names.length > 0 ? ", " : "",
                         ranks[i], c->peers[ranks[i]].entry.name,
                         (unsigned long long)c->peers[ranks[i]].entry.pid);
    }
    tdm__frame frame = {.kind = TDM__ASK_REPORT,
                        .count = (uint32_t)(list.length / 4),
                        .bytes = (const uint8_t *)list.data,
                        .byte_count = list.length};
    if (bytes > 0 && (!tdm_str_ok(&list) || !hub_ask(c, &frame, out, bytes))) {
        pthread_mutex_lock(&c->lock);
        const char *why = c->hub_has_left    ? "has left"
                          : client_is_cut(c) ? "is gone"
                                             : "does not respond";
        pthread_mutex_unlock(&c->lock);
        snprintf(out, bytes, "%s: no details, because rank 0 %s", tdm_str_text(&names), why);
    }
    tdm_str_release(&list);
    tdm_str_release(&names);
}

static bool control_has_failed(tdm__control *control, tdm_error *why)
{
    client *c = (client *)control;
    pthread_mutex_lock(&c->lock);
    bool is = client_has_failed(c);
    if (is) tdm_fail(why, TDM_ERR_PEER_FAILED, "%s", c->failure_text);
    pthread_mutex_unlock(&c->lock);
    return is;
}

static void client_release(client *c)
{
    while (c->first) {
        news_item *next = c->first->next;
        free(c->first);
        c->first = next;
    }
    tdm__channel_release(&c->channel);
    if (c->wake_fd >= 0) close(c->wake_fd);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    pthread_mutex_destroy(&c->asking);
    free(c->host_of);
    free(c->host_names);
    tdm__tls_context_destroy(c->facts.tls);
    free(c->peers);
    explicit_bzero(c->control.key, sizeof(c->control.key));
    free(c);
}

static void client_end_threads(client *c)
{
    pthread_mutex_lock(&c->lock);
    c->state = client_is_cut(c) ? CLIENT_CLOSED : CLIENT_CLOSING;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    client_wake(c);
    if (c->has_notifier) pthread_join(c->notifier, NULL);
    if (c->has_reader) pthread_join(c->reader, NULL);
}

static void control_close(tdm__control *control)
{
    if (!control) return;
    client *c = (client *)control;
    client_end_threads(c);
    tdm__hub_destroy(c->hub);
    if (c->has_meeting) tdm__rendezvous_remove(&c->meeting);
    client_release(c);
}

static const tdm__control_ops ops = {
    .listen = control_listen,
    .exchange = control_exchange,
    .broken = control_broken,
    .report = control_report,
    .suspect = control_suspect,
    .has_failed = control_has_failed,
    .close = control_close,
};

/* ---- lifetime ------------------------------------------------------------------------------------------- */

static tdm_status client_prepare(client *c, const tdm__control_parts *parts, tdm_error *err)
{
    int size = parts->facts->size;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&c->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_init(&c->asking, NULL);
    c->channel = parts->joined->channel;
    c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    c->host_of = calloc((size_t)size, sizeof(*c->host_of));
    c->peers = calloc((size_t)size, sizeof(*c->peers));
    c->host_names = calloc((size_t)size, sizeof(*c->host_names));
    if (c->wake_fd < 0 || !c->host_of || !c->peers || !c->host_names)
        return tdm_fail(err, TDM_ERR_SYSTEM, "cannot create the control connection: %s",
                        strerror(errno));
    for (int i = 0; i < size; i++) {
        c->peers[i].entry = parts->joined->entries[i];
        c->host_of[i] = (int)parts->joined->entries[i].host;
        c->host_names[i] = c->peers[i].entry.name;
    }
    c->facts = *parts->facts;
    c->control = (tdm__control){.ops = &ops,
                                .rank = parts->facts->rank,
                                .size = size,
                                .world = parts->joined->world,
                                .here = parts->joined->here,
                                .rank_0 = parts->joined->rank_0,
                                .host_names = c->host_names,
                                .host_of = c->host_of,
                                .cancellation = parts->facts->cancellation};
    memcpy(c->control.key, parts->joined->key, sizeof(c->control.key));
    c->heard_s = tdm_clock_s();
    c->first_gone = -1;
    return TDM_OK;
}

tdm_status tdm__control_create(const tdm__control_parts *parts, tdm__control **out, tdm_error *err)
{
    client *c = calloc(1, sizeof(*c));
    if (!c) {
        tdm__channel_release(&parts->joined->channel);
        free(parts->joined->entries);
        return tdm_fail_oom(err, "for the control connection");
    }
    tdm_status status = client_prepare(c, parts, err);
    free(parts->joined->entries);
    if (status == TDM_OK) {
        status = tdm__thread_start(&c->reader, reader_main, c, err);
        c->has_reader = status == TDM_OK;
    }
    if (status == TDM_OK) {
        status = tdm__thread_start(&c->notifier, notifier_main, c, err);
        c->has_notifier = status == TDM_OK;
    }
    if (status != TDM_OK) {
        client_end_threads(c);
        c->facts.tls = NULL; /* still owned by the caller */
        client_release(c);
        return status;
    }
    c->hub = parts->hub;
    if (parts->meeting) {
        c->meeting = *parts->meeting;
        tdm__rendezvous_wipe(&c->meeting); /* only tdm__rendezvous_remove uses it */
        c->has_meeting = true;
    }
    *out = &c->control;
    return TDM_OK;
}
