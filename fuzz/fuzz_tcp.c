/*
 * fuzz_tcp.c: any frames on the links of the TCP transport, and any sequence of calls of the engine.
 *
 * The input is a script for a peer with two links (well-formed frames with any numbers, raw bytes, ends of
 * links) and for the engine (sends, takes, drops and forget(), also from within callbacks). The memory of a
 * send or take is freed in its callback, so that the address sanitizer finds a later use. Every send and take
 * must get exactly one callback, at the latest in forget().
 */
#include "transport/tcp.h"
#include "transport/tcp_inner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

#define NEED(condition, what)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "fuzz_tcp: %s\n", what);                                               \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

enum { STREAMS = 2, MAX_OPEN = 64, MAX_DEPTH = 4, WORLD = 7, MAX_SEND = 9 << 20 };

typedef struct operation {
    bool is_open, is_send;
    uint8_t *memory;
    struct tester *tester;
} operation;

typedef struct tester {
    const uint8_t *at;
    size_t left;
    tdm__tcp *tcp;
    int far[STREAMS];
    operation open[MAX_OPEN];
    tdm__arrival *waiting[MAX_OPEN];
    bool is_forgotten, was_lost;
    int depth; /* of nested callbacks */
} tester;

static uint32_t draw(tester *t, int bytes)
{
    uint32_t value = 0;
    for (int i = 0; i < bytes; i++) {
        value = value << 8 | (t->left > 0 ? *t->at : 0);
        if (t->left > 0) t->at++, t->left--;
    }
    return value;
}

/* ---- the engine --------------------------------------------------------------------------------- */

static operation *new_operation(tester *t, bool is_send, size_t bytes)
{
    for (int i = 0; i < MAX_OPEN; i++) {
        operation *o = &t->open[i];
        if (o->is_open) continue;
        *o = (operation){.is_open = true, .is_send = is_send, .tester = t};
        o->memory = bytes > 0 ? calloc(1, bytes) : NULL;
        if (bytes == 0 || o->memory) return o;
        o->is_open = false;
        return NULL;
    }
    return NULL;
}

static void send_something(tester *t)
{
    static const size_t sizes[] = {0, 1, 70000, 1 << 20, MAX_SEND};
    size_t bytes = sizes[draw(t, 1) % 5];
    operation *o = new_operation(t, true, bytes);
    if (!o) return;
    tdm__head head = {.world = WORLD, .kind = TDM_CALL_SEND, .bytes = bytes};
    tdm__head_seal(&head);
    tdm__transport_tcp.send(&t->tcp->transport, 1, &head, o->memory, o);
}

static void take(tester *t, tdm__arrival *arrival, size_t bytes)
{
    operation *o = new_operation(t, false, bytes);
    if (o)
        tdm__transport_tcp.take(&t->tcp->transport, arrival, o->memory, o);
    else
        tdm__transport_tcp.drop(&t->tcp->transport, arrival);
}

static void forget(tester *t)
{
    if (t->depth > 0) return; /* the engine does not call forget() from a callback */
    tdm__transport_tcp.forget(&t->tcp->transport, 1);
    t->is_forgotten = true;
    for (int i = 0; i < MAX_OPEN; i++) NEED(!t->open[i].is_open, "open after forget()");
}

/* Takes or drops a message that waits. */
static void serve_waiting(tester *t)
{
    uint32_t choice = draw(t, 1);
    tdm__arrival **slot = &t->waiting[choice % MAX_OPEN];
    tdm__arrival *arrival = *slot;
    if (!arrival) return;
    *slot = NULL;
    if (choice & 64 || arrival->head.bytes > MAX_SEND)
        tdm__transport_tcp.drop(&t->tcp->transport, arrival);
    else
        take(t, arrival, arrival->head.bytes);
}

static void act(tester *t)
{
    if (t->depth >= MAX_DEPTH) return;
    t->depth++;
    switch (draw(t, 1) % 6) {
    case 0: send_something(t); break;
    case 1: serve_waiting(t); break;
    default: break;
    }
    t->depth--;
}

static void on_arrived(void *user, int peer, const tdm__head *head, tdm__arrival *arrival)
{
    tester *t = user;
    NEED(peer == 1 && !t->is_forgotten && !t->was_lost, "a message of nobody");
    NEED(tdm__head_check(head, WORLD, 2) && head->source == 1, "a head that is none");
    uint32_t choice = draw(t, 1);
    tdm__arrival **slot = &t->waiting[choice % MAX_OPEN];
    if (!(choice & 128) && !*slot)
        *slot = arrival;
    else if (choice & 64 || head->bytes > MAX_SEND)
        tdm__transport_tcp.drop(&t->tcp->transport, arrival);
    else
        take(t, arrival, head->bytes);
    act(t);
}

static void end(tester *t, operation *o, bool is_send)
{
    NEED(o->tester == t && o->is_open && o->is_send == is_send, "called back twice");
    free(o->memory);
    o->is_open = false;
    act(t);
}

static void on_received(void *user, void *cookie, tdm_status status)
{
    (void)status;
    end(user, cookie, false);
}

static void on_sent(void *user, void *cookie, tdm_status status)
{
    (void)status;
    end(user, cookie, true);
}

static void on_lost(void *user, int peer, const char *how)
{
    tester *t = user;
    NEED(peer == 1 && how[0] && !t->was_lost && !t->is_forgotten, "lost twice");
    t->was_lost = true;
    act(t);
}

/* ---- the peer ----------------------------------------------------------------------------------- */

static void say(const tester *t, int link, const void *bytes, size_t count)
{
    if (t->far[link] >= 0) (void)!send(t->far[link], bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void say_frame(tester *t, int link, uint32_t kind)
{
    static const uint8_t zeros[4096];
    struct {
        tdm__tcp_start start;
        tdm__head head;
    } front = {.start = {.kind = kind}};
    bool has_head = kind == TDM__TCP_EAGER || kind == TDM__TCP_OFFER;
    front.start.id = kind == TDM__TCP_EAGER ? 0 : draw(t, 1) % 8;
    uint64_t bytes = (uint64_t)draw(t, 2) << draw(t, 1) % 12;
    if (has_head) {
        front.head = (tdm__head){
            .world = WORLD, .kind = TDM_CALL_SEND, .bytes = bytes, .source = 1};
        tdm__head_seal(&front.head);
    }
    if (kind == TDM__TCP_DATA) front.start.offset = (uint64_t)draw(t, 2) << draw(t, 1) % 12;
    if (kind == TDM__TCP_EAGER || kind == TDM__TCP_DATA) front.start.bytes = bytes;
    say(t, link, &front, has_head ? sizeof(front) : sizeof(front.start));
    for (uint64_t left = front.start.bytes < 1 << 16 ? front.start.bytes : 0; left > 0;) {
        size_t some = left < sizeof(zeros) ? (size_t)left : sizeof(zeros);
        say(t, link, zeros, some);
        left -= some;
    }
}

static void say_raw(tester *t, int link)
{
    size_t count = draw(t, 1);
    if (count > t->left) count = t->left;
    say(t, link, t->at, count);
    t->at += count;
    t->left -= count;
}

static void listen_to(const tester *t, int link)
{
    static uint8_t forgotten[1 << 16];
    while (t->far[link] >= 0 && recv(t->far[link], forgotten, sizeof(forgotten), MSG_DONTWAIT) > 0)
        continue;
}

static void step(tester *t)
{
    uint32_t choice = draw(t, 1);
    int link = choice >> 7;
    switch (choice % 16) {
    case 0: say_raw(t, link); break;
    case 1: forget(t); break;
    case 2:
        if (t->far[link] >= 0) close(t->far[link]);
        t->far[link] = -1;
        break;
    case 3: listen_to(t, link); break;
    case 4: send_something(t); break;
    case 5: serve_waiting(t); break;
    case 6:
    case 7:
    case 8: t->tcp->transport.ops->progress(&t->tcp->transport); break;
    default: say_frame(t, link, choice % 16 - 8);
    }
}

/* ---- both --------------------------------------------------------------------------------------- */

static bool begin(tester *t)
{
    tdm__tcp *tcp = t->tcp = calloc(1, sizeof(*tcp));
    if (!tcp) return false;
    tcp->transport.ops = &tdm__transport_tcp;
    tcp->size = 2;
    tcp->streams = STREAMS;
    tcp->world = WORLD;
    tcp->events = (tdm__transport_events){t, on_arrived, on_received, on_sent, on_lost};
    tcp->listen_fd = -1;
    tcp->poll_fd = epoll_create1(EPOLL_CLOEXEC);
    tcp->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    tcp->peers = calloc(2, sizeof(*tcp->peers));
    tdm__tcp_link *links = calloc(STREAMS, sizeof(*links));
    if (!tcp->peers || !links) {
        free(links);
        return false;
    }
    tcp->peers[1] = (tdm__tcp_peer){.tcp = tcp, .rank = 1, .state = TDM__TCP_WELL, .links = links};
    for (int i = 0; i < STREAMS; i++) t->far[i] = -1;
    for (int i = 0; i < STREAMS; i++) {
        int pair[2] = {-1, -1};
        links[i].peer = &tcp->peers[1];
        links[i].events = EPOLLIN;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &links[i]};
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0)
            return false;
        links[i].state = TDM__TCP_LINK_OPEN;
        links[i].stream = tdm__stream_of(pair[0]);
        t->far[i] = pair[1];
        if (epoll_ctl(tcp->poll_fd, EPOLL_CTL_ADD, pair[0], &event) != 0) return false;
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    tester *t = calloc(1, sizeof(*t));
    if (!t) return 0;
    t->at = bytes;
    t->left = count;
    bool is_ready = begin(t);
    while (is_ready && t->left > 0) step(t);
    if (is_ready && count % 2 == 0) forget(t);
    for (int i = 0; i < STREAMS; i++)
        if (t->far[i] >= 0) close(t->far[i]);
    for (int i = 0; is_ready && i < 8; i++) tdm__transport_tcp.progress(&t->tcp->transport);
    for (int i = 0; i < MAX_OPEN && is_ready; i++)
        NEED(!t->open[i].is_open, "open after the peer's end");
    t->tcp->has_met = is_ready;
    tdm__transport_tcp.destroy(&t->tcp->transport);
    free(t);
    return 0;
}
