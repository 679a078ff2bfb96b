/*
 * tcp_link.c: sends and receives the frames of one connection.
 *
 * Output: frames wait in two queues, with pieces of large payloads in the second, and one system
 * call sends several frames. Input: one system call reads into the payload's buffer and, after it,
 * into the staging buffer, where the next frames start.
 */
#include "transport/tcp_inner.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

enum {
    MAX_PARTS = 16,       /* iovecs of one send */
    MAX_RECEIVE = 4 << 20 /* bytes per call, so that other links are served as well */
};

/* ---- frames ---------------------------------------------------------------------------------- */

tdm__tcp_frame *tdm__tcp_frame_take(tdm__tcp *tcp)
{
    tdm__tcp_frame *frame = tcp->spare_frames;
    if (frame)
        tcp->spare_frames = frame->next;
    else
        frame = malloc(sizeof(*frame));
    if (frame) {
        frame->front.start = (tdm__tcp_start){0};
        frame->front_bytes = sizeof(frame->front.start);
        frame->data = NULL;
        frame->gone = 0;
        frame->message = NULL;
        frame->next = NULL;
    }
    return frame;
}

static void queue_add(tdm__tcp_queue *queue, tdm__tcp_frame *frame)
{
    frame->next = NULL;
    if (queue->last)
        queue->last->next = frame;
    else
        queue->first = frame;
    queue->last = frame;
}

static tdm__tcp_frame *queue_take(tdm__tcp_queue *queue)
{
    tdm__tcp_frame *frame = queue->first;
    if (!frame) return NULL;
    queue->first = frame->next;
    if (!frame->next) queue->last = NULL;
    frame->next = NULL;
    return frame;
}

/* Releases a frame and notifies its message. */
static void frame_end(tdm__tcp_link *link, tdm__tcp_frame *frame)
{
    tdm__tcp *tcp = link->peer->tcp;
    tdm__tcp_send *message = frame->message;
    frame->next = tcp->spare_frames;
    tcp->spare_frames = frame;
    if (message) tdm__tcp_frame_done(message);
}

/* Whether it may still send or receive. */
static bool link_is_open(const tdm__tcp_link *link)
{
    return link->state == TDM__TCP_LINK_OPEN || link->state == TDM__TCP_LINK_STALLED ||
           link->state == TDM__TCP_LINK_BYE;
}

/* ---- output ---------------------------------------------------------------------------------- */

/* Registers for writability of the socket, or unregisters. */
static void link_watch_output(tdm__tcp_link *link, bool output)
{
    uint32_t events = EPOLLIN | (output ? (uint32_t)EPOLLOUT : 0);
    if (events == link->events || link->stream.fd < 0) return;
    struct epoll_event event = {.events = events, .data.ptr = link};
    if (epoll_ctl(link->peer->tcp->poll_fd, EPOLL_CTL_MOD, link->stream.fd, &event) == 0)
        link->events = events;
}

void tdm__link_break(tdm__tcp_link *link, int why)
{
    if (!link_is_open(link)) return;
    /* After BYE everything has arrived. The peer may also have stopped waiting for this rank's end,
     * and closed its socket with bytes unread, which resets the connection. */
    bool was_closed = why == 0 || why == ECONNRESET || why == EPIPE;
    bool is_end = link->state == TDM__TCP_LINK_BYE && was_closed;
    link->state = is_end ? TDM__TCP_LINK_ENDED : TDM__TCP_LINK_BROKEN;
    link->why = why;
    link->peer->tcp->has_broken = true;
}

static uint64_t frame_bytes(const tdm__tcp_frame *frame)
{
    return frame->front_bytes + frame->front.start.bytes;
}

/* The unsent part of a frame, as iovecs. */
static int frame_parts(const tdm__tcp_frame *frame, struct iovec *parts)
{
    int count = 0;
    uint64_t gone = frame->gone;
    if (gone < frame->front_bytes) {
        parts[count++] = (struct iovec){(uint8_t *)&frame->front + gone, frame->front_bytes - gone};
        gone = frame->front_bytes;
    }
    uint64_t offset = gone - frame->front_bytes;
    if (offset < frame->front.start.bytes)
        parts[count++] = (struct iovec){(uint8_t *)frame->data + offset,
                                        frame->front.start.bytes - offset};
    return count;
}

/* The next frames to send, as iovecs. */
static int link_gather(tdm__tcp_link *link, struct iovec parts[MAX_PARTS])
{
    int count = 0;
    if (!link->current) link->current = queue_take(&link->urgent);
    if (!link->current) link->current = queue_take(&link->bulk);
    if (link->current) count = frame_parts(link->current, parts);
    for (const tdm__tcp_frame *at = link->urgent.first; at && count + 2 <= MAX_PARTS; at = at->next)
        count += frame_parts(at, parts + count);
    if (link->urgent.first) return count;
    for (const tdm__tcp_frame *at = link->bulk.first; at && count + 2 <= MAX_PARTS; at = at->next)
        count += frame_parts(at, parts + count);
    return count;
}

/* Accounts for `bytes` sent: moves finished frames to `unflushed`. */
static void link_account(tdm__tcp_link *link, uint64_t bytes)
{
    link->queued_bytes -= bytes;
    for (;;) {
        if (!link->current) link->current = queue_take(&link->urgent);
        if (!link->current) link->current = queue_take(&link->bulk);
        tdm__tcp_frame *frame = link->current;
        if (!frame || bytes == 0) return;
        uint64_t left = frame_bytes(frame) - frame->gone;
        if (bytes < left) {
            frame->gone += bytes;
            return;
        }
        bytes -= left;
        link->current = NULL;
        queue_add(&link->unflushed, frame);
    }
}

/* Handles a failed send. Input that arrived before the end must still be read, so if the connection
 * has ended, the receiving side records the break. */
static void link_stop_sending(tdm__tcp_link *link, int why)
{
    link_watch_output(link, false);
    if (why == EPIPE || why == ECONNRESET || why == ETIMEDOUT)
        link->peer->tcp->has_input = true;
    else
        tdm__link_break(link, why);
}

static bool link_has_frames(const tdm__tcp_link *link)
{
    return link->current || link->urgent.first || link->bulk.first;
}

/* Ends frames whose bytes are all in the kernel. */
static void link_end_flushed(tdm__tcp_link *link)
{
    while (link->unflushed.first && !tdm__stream_has_output(&link->stream))
        frame_end(link, queue_take(&link->unflushed));
}

/* One system call. True: the socket may accept more. */
static bool link_flush_once(tdm__tcp_link *link)
{
    struct iovec parts[MAX_PARTS];
    int count = link_gather(link, parts);
    bool is_full = false;
    if (count > 0) {
        ssize_t gone = tdm__stream_send(&link->stream, parts, count);
        is_full = gone < 0;
        if (gone > 0) link_account(link, (uint64_t)gone);
    } else {
        is_full = tdm__stream_flush(&link->stream) < 0;
    }
    if (is_full && errno != EAGAIN && errno != EWOULDBLOCK) {
        link_stop_sending(link, errno);
        return false;
    }
    link_end_flushed(link);
    if (!link_is_open(link)) return false; /* a callback has closed it */
    bool held = tdm__stream_has_output(&link->stream);
    if (!held && !is_full && link_has_frames(link))
        return true; /* a callback may have added more */
    link_watch_output(link, held || (is_full && tdm__stream_can_send(&link->stream)));
    return false;
}

void tdm__link_flush(tdm__tcp_link *link)
{
    if (link->is_flushing) return;
    link->is_flushing = true;
    while (link_is_open(link) && link_flush_once(link)) continue;
    link->is_flushing = false;
}

void tdm__link_send(tdm__tcp_link *link, tdm__tcp_frame *frame)
{
    bool idle = !link_has_frames(link), is_last = frame->front.start.kind == TDM__TCP_BYE;
    link->queued_bytes += frame_bytes(frame);
    bool is_bulk = is_last || frame->front.start.kind == TDM__TCP_DATA;
    queue_add(is_bulk ? &link->bulk : &link->urgent, frame);
    if (idle) tdm__link_flush(link);
}

void tdm__link_close(tdm__tcp_link *link, bool at_once)
{
    tdm__stream_close(&link->stream, at_once);
    link->state = TDM__TCP_LINK_CLOSED;
    if (link->current) queue_add(&link->unflushed, link->current);
    link->current = NULL;
    link->queued_bytes = 0;
    link->left = 0;
    link->into = NULL;
    link->arrival = NULL;
    tdm__tcp_queue *queues[] = {&link->unflushed, &link->urgent, &link->bulk};
    for (size_t i = 0; i < sizeof(queues) / sizeof(queues[0]); i++)
        while (queues[i]->first) frame_end(link, queue_take(queues[i]));
}

/* ---- input ----------------------------------------------------------------------------------- */

/* One system call: reads the rest of the payload to its destination, and what follows into the
 * staging buffer. A discarded payload goes through the staging buffer. `out_room`: bytes there was
 * space for. */
static ssize_t link_read(tdm__tcp_link *link, size_t *out_room)
{
    if (link->stage_count == 0) link->stage_first = 0;
    struct iovec parts[2];
    int count = 0;
    size_t payload = link->into ? (size_t)link->left : 0;
    if (payload > 0) parts[count++] = (struct iovec){link->into, payload};
    size_t end = link->stage_first + link->stage_count;
    parts[count++] = (struct iovec){link->stage + end, sizeof(link->stage) - end};
    *out_room = payload + sizeof(link->stage) - end;
    ssize_t got = tdm__stream_recv(&link->stream, parts, count);
    if (got <= 0) return got;
    size_t direct = (size_t)got < payload ? (size_t)got : payload;
    if (direct > 0) link->into += direct;
    link->left -= direct;
    link->stage_count += (size_t)got - direct;
    return got;
}

/* Moves staged bytes into the payload. */
static void link_unstage(tdm__tcp_link *link)
{
    size_t bytes = link->stage_count < link->left ? link->stage_count : (size_t)link->left;
    if (link->into) {
        memcpy(link->into, link->stage + link->stage_first, bytes);
        link->into += bytes;
    }
    link->stage_first += bytes;
    link->stage_count -= bytes;
    link->left -= bytes;
}

/* Handles the frame that starts in the staging buffer. False: it is incomplete. */
static bool link_next_frame(tdm__tcp_link *link)
{
    tdm__tcp_start start;
    tdm__head head = {0};
    if (link->stage_count < sizeof(start)) return false;
    const uint8_t *at = link->stage + link->stage_first;
    memcpy(&start, at, sizeof(start));
    bool has_head = start.kind == TDM__TCP_EAGER || start.kind == TDM__TCP_OFFER;
    size_t front = sizeof(start) + (has_head ? sizeof(head) : 0);
    if (link->stage_count < front) return false;
    if (has_head) memcpy(&head, at + sizeof(start), sizeof(head));
    link->stage_first += front;
    link->stage_count -= front;
    link->left = start.kind == TDM__TCP_EAGER || start.kind == TDM__TCP_DATA ? start.bytes : 0;
    if (!tdm__tcp_on_frame(link, &start, &head)) tdm__link_break(link, EPROTO);
    return true;
}

/* Handles all frames and payload bytes in the staging buffer. */
static void link_handle_stage(tdm__tcp_link *link)
{
    while (link_is_open(link) && link->state != TDM__TCP_LINK_STALLED) {
        if (link->left > 0) {
            if (link->stage_count == 0) return;
            link_unstage(link);
            if (link->left > 0) return;
            tdm__tcp_on_payload(link);
        } else if (!link_next_frame(link)) {
            break;
        }
    }
    if (link->stage_first > 0 && link->stage_first + link->stage_count > sizeof(link->stage) / 2) {
        memmove(link->stage, link->stage + link->stage_first, link->stage_count);
        link->stage_first = 0;
    }
}

bool tdm__link_receive(tdm__tcp_link *link)
{
    if (link->state == TDM__TCP_LINK_STALLED && !tdm__tcp_resume(link))
        tdm__link_break(link, ENOMEM);
    if (link->stage_count > 0) link_handle_stage(link); /* left from a stall */
    for (size_t total = 0; link_is_open(link);) {
        if (total >= MAX_RECEIVE || link->state == TDM__TCP_LINK_STALLED) return true;
        uint64_t before = link->left;
        size_t room = 0;
        ssize_t got = link_read(link, &room);
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
        if (got <= 0) {
            tdm__link_break(link, got < 0 ? errno : 0);
            return false;
        }
        total += (size_t)got;
        if (before > 0 && link->left == 0) tdm__tcp_on_payload(link);
        link_handle_stage(link);
        if ((size_t)got < room) return link->state == TDM__TCP_LINK_STALLED; /* no more input */
    }
    return false;
}
