/*
 * control.c: the client of the control connection, one in each rank.
 *
 * It has two threads. The *reader* owns the connection: it reads, writes and sends heartbeats. It never
 * calls an event and waits only for the connection, so answers arrive and heartbeats leave whatever the
 * rest of the process does. The *notifier* calls the events: news from a queue, and the text for the next
 * heartbeat. So an event may wait for a lock whose holder waits for an answer here.
 *
 * States of the connection, as flags of `client`:
 *
 *            close()                reader sends BYE
 *     OPEN -----------> closing ----------------------> said_bye
 *      |                   |                               |
 *      | hub closed the    | the same                      | hub closed the connection,
 *      | connection, sent  |                               | or no answer within BYE_S
 *      | garbage or is     |                               |
 *      | silent            v                               |
 *      +----------------> cut <----------------------------+
 *
 * `cut` is final: the reader ends, and waiting calls return. A rank other than 0 then reports rank 0 as
 * lost, unless one side has sent a BYE. Three flags are independent of the state: `heard_bye` (the hub has
 * sent a BYE, so its end is not a failure), `given_up` (the hub has declared this rank lost) and `hurries`
 * (this rank leaves or has revoked the world, so catch_up no longer waits).
 *
 * `lock` protects all fields below it; the reader holds it except while it sleeps. The news of a rank as
 * lost or left is queued at most once, so only broken groups need a separate limit.
 */
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
#define ANSWER_S 0.3    /* wait for an answer from a hub that is silent, */
#define ANSWER_BEATS 3  /* that is, has missed this number of heartbeats, */
#define MAX_ANSWER_S 3. /* and from one that sends heartbeats: it may be busy */
#define TELL_S 3.       /* wait until the news that arrived before the end is delivered */
#define BYE_S 0.25      /* wait for the answer to our BYE; not for a hub that is silent */
#define STALL_S 1.0
#define PATIENCE 4.0

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
} peer;

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
    bool closing;   /* close() was called */
    bool said_bye;  /* this rank has sent a BYE */
    bool heard_bye; /* the hub has sent a BYE */
    bool given_up;  /* the hub has declared this rank lost */
    bool cut;       /* the connection has ended */
    bool hurries;   /* this rank leaves or has revoked the world: catch_up no longer waits */
    double heard_s, longest_s;
    peer *peers;
    tdm_process_watch hub_process; /* of a hub on this host; set at its first long silence */
    int first_gone;                /* first rank that was lost or left; -1: none */
    char gone_text[300];
    bool has_failed; /* a rank was lost or has revoked the world: see failure_text */
    char failure_text[300];
    char hub_does[TDM__WIRE_TEXT]; /* what rank 0 did last, from its PING */

    tdm__control_events events;
    bool listening;
    char beat[TDM__WIRE_TEXT];
    bool beats_now; /* send the next heartbeat at once */
    news_item *first, *last;
    bool telling; /* the notifier is calling an event */
    int broken_count;

    uint32_t exchange_number;
    bool exchanging, exchanged;
    bool exchange_late; /* one did not end in time: no further exchange is possible */
    uint8_t **blocks;   /* NULL: too large, or out of memory */
    size_t *block_bytes;

    uint32_t question;
    bool answered;
    char answer[TDM__WIRE_TEXT];
} client;

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
    if (c->has_failed) return;
    c->has_failed = true;
    snprintf(c->failure_text, sizeof(c->failure_text), "%.290s", text);
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

static void connection_cut(client *c, tdm_peer_sign sign, const char *how)
{
    if (c->cut) return;
    c->cut = true;
    if (c->given_up) {
        sign = TDM_SIGN_SILENCE;
        how = "it has declared this rank lost after too long a silence";
    }
    if (!c->heard_bye && !c->said_bye && c->control.rank != 0) {
        tdm_peer_loss loss = {.sign = sign, .heard_s = tdm_clock_s() - c->heard_s};
        snprintf(loss.what, sizeof(loss.what), "%.150s", c->hub_does);
        peer_gone(c, 0, TDM__NEWS_LOST, how, &loss);
    }
    pthread_cond_broadcast(&c->changed);
}

/* ---- frames from the hub, with the lock held ------------------------------------------------------------ */

static void exchange_take_blocks(client *c, const tdm__frame *frame)
{
    if (!c->exchanging || c->exchanged || frame->number != c->exchange_number) return;
    size_t size = (size_t)c->control.size, total = 0;
    const uint8_t *from = NULL;
    size_t *bytes = calloc(size, sizeof(*bytes));
    c->exchanged = true;
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

static void take_news(client *c, const tdm__frame *frame)
{
    if (frame->rank == (uint32_t)c->control.rank && frame->kind == TDM__NEWS_LOST)
        c->given_up = true;
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
    }
}

static void take_frame(client *c, const tdm__frame *frame)
{
    switch (frame->type) {
    case TDM__FRAME_GATHERED: exchange_take_blocks(c, frame); break;
    case TDM__FRAME_NEWS: take_news(c, frame); break;
    case TDM__FRAME_ANSWER:
        if (frame->id != c->question) break;
        memcpy(c->answer, frame->text, sizeof(c->answer));
        c->answered = true;
        pthread_cond_broadcast(&c->changed);
        break;
    case TDM__FRAME_BYE: c->heard_bye = true; break;
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
    while ((got = tdm__channel_next(&c->channel, &frame)) > 0) take_frame(c, &frame);
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
    double max_s = PATIENCE * c->longest_s, min_s = c->facts.silence_s;
    if (max_s > 10 * min_s) max_s = 10 * min_s;
    if (max_s < min_s) max_s = min_s;
    double beats_s = 20 * tdm__beat_s(c->control.size);
    if (c->control.size > 1024 && max_s < beats_s) max_s = beats_s;
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

static void *reader_main(void *user)
{
    client *c = user;
    tdm__thread_raise_priority();
    pthread_mutex_lock(&c->lock);
    double beat_s = tdm__beat_s(c->control.size), next_s = tdm_clock_s(), turn_s = next_s;
    double end_s = 0;
    while (!c->cut && (!end_s || tdm_clock_s() < end_s)) {
        double now_s = tdm_clock_s();
        if (now_s - turn_s > STALL_S + beat_s)
            c->heard_s += now_s - turn_s; /* this process was stopped */
        turn_s = now_s;
        connection_read(c, now_s);
        if (c->cut) break;
        if (c->closing && !c->said_bye) {
            tdm__frame bye = {.type = TDM__FRAME_BYE};
            c->said_bye = true;
            bool silent = now_s - c->heard_s > ANSWER_BEATS * beat_s;
            end_s = silent ? now_s : now_s + BYE_S;
            if (!tdm__channel_put_frame(&c->channel, &bye)) break;
        }
        if (!c->said_bye && (now_s >= next_s || c->beats_now)) {
            c->beats_now = false;
            beat_send(c);
            next_s = now_s + beat_s;
            hub_check_silence(c, now_s);
        }
        if (!c->cut && tdm__channel_flush(&c->channel) != TDM__CHANNEL_OK) {
            connection_read(c, now_s); /* what it sent before the end */
            connection_cut(c, TDM_SIGN_CLOSED, closed_text);
        }
        if (c->cut) break;
        if (c->said_bye && !tdm__channel_has_output(&c->channel))
            shutdown(c->channel.stream.fd, SHUT_WR);
        reader_sleep(c, end_s ? end_s : next_s);
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
    c->telling = true;
    pthread_mutex_unlock(&c->lock);
    if (c->events.news) c->events.news(c->events.user, &first->news);
    free(first);
    pthread_mutex_lock(&c->lock);
    c->telling = false;
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
    while (!c->closing) {
        double now_s = tdm_clock_s();
        if (c->listening && c->first) {
            news_deliver(c);
        } else if (c->listening && now_s >= next_s) {
            beat_update_text(c);
            next_s = now_s + beat_s;
        } else {
            client_wait(c, c->listening ? next_s : now_s + 60);
        }
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- operations ----------------------------------------------------------------------------------------- */

static void listen_events(tdm__control *control, const tdm__control_events *events)
{
    client *c = (client *)control;
    pthread_mutex_lock(&c->lock);
    c->events = *events;
    c->listening = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

/* Deadline of an answer: later for a hub that sends heartbeats than for one that is silent. */
static double answer_until_s(const client *c, double asked_s)
{
    double beating_s = c->heard_s + ANSWER_BEATS * tdm__beat_s(c->control.size);
    double until_s = asked_s + ANSWER_S > beating_s ? asked_s + ANSWER_S : beating_s;
    return until_s < asked_s + MAX_ANSWER_S ? until_s : asked_s + MAX_ANSWER_S;
}

static bool is_leaving(const client *c)
{
    return c->hurries || c->closing;
}

/* Waits until all queued news is delivered: it may explain a failure better than the caller can. */
static void news_wait_delivered(client *c, double until_s)
{
    while (c->listening && !is_leaving(c) && (c->first || c->telling) && tdm_clock_s() < until_s)
        client_wait(c, until_s);
}

/* Sends a question to the hub and waits for the answer. False: the connection is cut, or no answer arrives in
 * time. With `patient_s` above 0 the wait ends at that time or when this rank hurries; otherwise it ends at
 * answer_until_s. */
static bool hub_ask(client *c, tdm__frame *frame, double patient_s, char *out, size_t bytes)
{
    pthread_mutex_lock(&c->asking);
    pthread_mutex_lock(&c->lock);
    double asked_s = tdm_clock_s();
    frame->type = TDM__FRAME_ASK;
    frame->id = ++c->question;
    c->answered = false;
    bool ok = !c->cut && tdm__channel_put_frame(&c->channel, frame);
    client_wake(c);
    while (ok && !c->answered && !c->cut && !(patient_s > 0 && is_leaving(c))) {
        double until_s = patient_s > 0 ? patient_s : answer_until_s(c, asked_s);
        if (tdm_clock_s() >= until_s) break;
        client_wait(c, until_s);
    }
    ok = ok && c->answered;
    if (ok) snprintf(out, bytes, "%s", c->answer);
    if (c->cut && !ok) news_wait_delivered(c, tdm_clock_s() + TELL_S);
    pthread_mutex_unlock(&c->lock);
    pthread_mutex_unlock(&c->asking);
    return ok;
}

/* Asks twice: the hub may answer the first question in the same turn in which it finds a connection closed, and
 * before it does so. It answers the second one after that turn. */
static void catch_up(tdm__control *control, double until_s)
{
    client *c = (client *)control;
    char answer[TDM__WIRE_TEXT];
    for (int i = 0; i < 2; i++) {
        tdm__frame frame = {.kind = TDM__ASK_REPORT};
        if (!hub_ask(c, &frame, until_s, answer, sizeof(answer))) break;
    }
    pthread_mutex_lock(&c->lock);
    news_wait_delivered(c, until_s);
    pthread_mutex_unlock(&c->lock);
}

static tdm_status exchange_failed(client *c, uint32_t number, tdm_error *err)
{
    if (c->first_gone >= 0)
        return tdm_fail(err,
                        c->peers[c->first_gone].gone == TDM__NEWS_LEFT ? TDM_ERR_PEER_LEFT
                                                                       : TDM_ERR_PEER_FAILED,
                        "the ranks can no longer exchange data: %s", c->gone_text);
    if (c->cut || c->has_failed)
        return tdm_fail(err, TDM_ERR_PEER_FAILED, "the ranks can no longer exchange data: %s",
                        c->has_failed ? c->failure_text : "rank 0 is gone");
    if (c->exchange_late)
        return tdm_fail(err, TDM_ERR_PEER_TIMEOUT,
                        "the ranks can no longer exchange data: an earlier exchange timed out");
    c->exchange_late = true;
    pthread_mutex_unlock(&c->lock);
    tdm__frame frame = {.kind = TDM__ASK_LACKING, .number = number};
    char who[TDM__WIRE_TEXT] = "";
    if (!hub_ask(c, &frame, 0, who, sizeof(who)) || !*who) snprintf(who, sizeof(who), "unknown");
    pthread_mutex_lock(&c->lock);
    return tdm_fail(err, TDM_ERR_PEER_TIMEOUT,
                    "exchange %u timed out after %.3g s; missing ranks: %s", number,
                    c->facts.deadline_s, who);
}

/* Waits until the exchange has succeeded or failed. False: the caller has cancelled it. */
static bool exchange_wait(client *c, double until_s)
{
    const tdm__cancellation *cancellation = &c->control.cancellation;
    double now_s = tdm_clock_s();
    while (!c->exchanged && !c->cut && c->first_gone < 0 && !c->has_failed && now_s < until_s) {
        client_wait(c, now_s + tdm__cancellation_slice(cancellation, until_s - now_s));
        pthread_mutex_unlock(&c->lock);
        bool over = tdm__cancellation_is_due(cancellation);
        pthread_mutex_lock(&c->lock);
        if (over && !c->exchanged) return false;
        now_s = tdm_clock_s();
    }
    return true;
}

static tdm_status exchange_locked(client *c, const tdm__frame *frame, uint8_t ***out_all,
                                  size_t **out_bytes, tdm_error *err)
{
    if (c->cut || c->first_gone >= 0 || c->has_failed || c->exchange_late)
        return exchange_failed(c, frame->number, err);
    if (!tdm__channel_put_frame(&c->channel, frame))
        return tdm_fail_oom(err, "to exchange %zu bytes", frame->byte_count);
    client_wake(c);
    if (!exchange_wait(c, tdm_clock_s() + c->facts.deadline_s)) {
        c->exchange_late = true;
        return tdm_fail(err, TDM_ERR_PEER_FAILED,
                        "rank %d stops waiting for the other ranks: epoch %u has ended",
                        c->control.rank, c->facts.epoch);
    }
    if (!c->exchanged) return exchange_failed(c, frame->number, err);
    c->exchange_number++;
    if (!c->blocks)
        return tdm_fail(err, TDM_ERR_NO_MEMORY,
                        "the exchanged data exceeds %d MB, or memory has run out",
                        TDM__MAX_WIRE_GATHERED >> 20);
    *out_all = c->blocks;
    *out_bytes = c->block_bytes;
    return TDM_OK;
}

static tdm_status exchange(tdm__control *control, const void *mine, size_t bytes,
                           uint8_t ***out_all, size_t **out_bytes, tdm_error *err)
{
    client *c = (client *)control;
    if (bytes > TDM__MAX_WIRE_BLOCK)
        return tdm_fail(err, TDM_ERR_RANGE,
                        "a rank can exchange at most %d MB at once, not %zu bytes",
                        TDM__MAX_WIRE_BLOCK >> 20, bytes);
    pthread_mutex_lock(&c->lock);
    tdm_status status = TDM_ERR_BUSY;
    if (c->exchanging) {
        tdm_fail(err, status, "another thread of this rank is already exchanging data");
    } else {
        c->exchanging = true;
        c->exchanged = false;
        c->blocks = NULL;
        c->block_bytes = NULL;
        tdm__frame frame = {.type = TDM__FRAME_EXCHANGE,
                            .number = c->exchange_number,
                            .bytes = mine,
                            .byte_count = bytes};
        status = exchange_locked(c, &frame, out_all, out_bytes, err);
        c->exchanging = false;
    }
    pthread_mutex_unlock(&c->lock);
    return status;
}

/* With the lock held. */
static void client_hurry(client *c)
{
    c->hurries = true;
    pthread_cond_broadcast(&c->changed);
}

static void hurry(tdm__control *control)
{
    client *c = (client *)control;
    pthread_mutex_lock(&c->lock);
    client_hurry(c);
    pthread_mutex_unlock(&c->lock);
}

static void broken(tdm__control *control, uint32_t group, tdm_status status, const char *text)
{
    client *c = (client *)control;
    tdm__frame frame = {.type = TDM__FRAME_NEWS,
                        .kind = TDM__NEWS_BROKEN,
                        .rank = (uint32_t)control->rank,
                        .group = group,
                        .status = (uint32_t)status};
    snprintf(frame.text, sizeof(frame.text), "%s", text);
    pthread_mutex_lock(&c->lock);
    if (group == TDM__ALL_GROUPS) client_hurry(c);
    if (!c->cut && !c->said_bye && tdm__channel_put_frame(&c->channel, &frame)) client_wake(c);
    pthread_mutex_unlock(&c->lock);
}

static void report(tdm__control *control, const int *ranks, int count, char *out, size_t bytes)
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
    if (bytes > 0 && (!tdm_str_ok(&list) || !hub_ask(c, &frame, 0, out, bytes))) {
        pthread_mutex_lock(&c->lock);
        const char *why = c->heard_bye ? "has left" : c->cut ? "is gone" : "does not respond";
        pthread_mutex_unlock(&c->lock);
        snprintf(out, bytes, "%s: no details, because rank 0 %s", tdm_str_text(&names), why);
    }
    tdm_str_release(&list);
    tdm_str_release(&names);
}

static bool has_failed(tdm__control *control, tdm_error *why)
{
    client *c = (client *)control;
    pthread_mutex_lock(&c->lock);
    bool is = c->has_failed;
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
    c->closing = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    client_wake(c);
    if (c->has_notifier) pthread_join(c->notifier, NULL);
    if (c->has_reader) pthread_join(c->reader, NULL);
}

static void close_control(tdm__control *control)
{
    if (!control) return;
    client *c = (client *)control;
    client_end_threads(c);
    tdm__hub_destroy(c->hub);
    if (c->has_meeting) tdm__rendezvous_remove(&c->meeting);
    client_release(c);
}

static const tdm__control_ops ops = {
    .listen = listen_events,
    .exchange = exchange,
    .broken = broken,
    .report = report,
    .catch_up = catch_up,
    .hurry = hurry,
    .has_failed = has_failed,
    .close = close_control,
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
