/*
 * tcp_test.c: the TCP transport in situations that its other tests reach only by chance: links that end in
 * different ways, frames out of order, an engine that sends from within callbacks, a peer that leaves long
 * before its last message is read, and ranks that reached rank 0 by loopback.
 *
 * The first tests have one transport in this process, whose links are pairs of UNIX sockets; the test is the
 * peer. The others have two processes.
 */
#include "check.h"
#include "world.h"

#include "transport/tcp.h"
#include "transport/tcp_inner.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORLD = 4711, STREAMS = 2 };

/* ---- an engine ---------------------------------------------------------------------------------- */

typedef struct engine {
    tdm__transport *transport;
    int arrived, received, sent, lost;
    tdm_status last;
    bool takes;
    int to_send; /* more messages, each from within the callback of the one before */
    uint8_t *data;
    size_t bytes;
} engine;

static void send_one(engine *e, int peer)
{
    tdm__head head = {
        .world = WORLD, .kind = TDM_CALL_SEND, .bytes = e->bytes, .source = (uint32_t)(1 - peer)};
    tdm__head_seal(&head);
    e->to_send--;
    e->transport->ops->send(e->transport, peer, &head, e->data, e);
}

static void on_arrived(void *user, int peer, const tdm__head *head, tdm__arrival *arrival)
{
    engine *e = user;
    (void)peer;
    e->arrived++;
    CHECK(head->bytes <= e->bytes);
    if (e->takes) e->transport->ops->take(e->transport, arrival, e->data, e);
}

static void on_received(void *user, void *cookie, tdm_status status)
{
    engine *e = user;
    CHECK(cookie == e);
    e->received++;
    e->last = status;
}

static void on_sent(void *user, void *cookie, tdm_status status)
{
    engine *e = user;
    CHECK(cookie == e);
    e->sent++;
    e->last = status;
    if (status == TDM_OK && e->to_send > 0) send_one(e, 1);
}

static void on_lost(void *user, int peer, const char *how)
{
    engine *e = user;
    (void)peer;
    CHECK(how[0]);
    e->lost++;
}

static tdm__transport_events events_of(engine *e)
{
    return (tdm__transport_events){e, on_arrived, on_received, on_sent, on_lost};
}

/* ---- one transport, and the test as its peer ------------------------------------------------------ */

typedef struct half {
    engine engine;
    int far[STREAMS];
} half;

static void half_begin(half *h)
{
    tdm__tcp *tcp = calloc(1, sizeof(*tcp));
    *h = (half){.engine = {.transport = &tcp->transport, .bytes = 1 << 20}};
    h->engine.data = calloc(1, h->engine.bytes);
    *tcp = (tdm__tcp){.transport.ops = &tdm__transport_tcp,
                      .size = 2,
                      .streams = STREAMS,
                      .world = WORLD,
                      .events = events_of(&h->engine),
                      .listen_fd = -1,
                      .poll_fd = epoll_create1(EPOLL_CLOEXEC),
                      .wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                      .has_met = true};
    tcp->peers = calloc(2, sizeof(*tcp->peers));
    tcp->host_names = calloc(2, sizeof(*tcp->host_names));
    tdm__tcp_peer *peer = &tcp->peers[1];
    *peer = (tdm__tcp_peer){.tcp = tcp, .rank = 1, .state = TDM__TCP_WELL};
    peer->links = calloc(STREAMS, sizeof(*peer->links));
    for (int i = 0; i < STREAMS; i++) {
        int pair[2];
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
        tdm__tcp_link *link = &peer->links[i];
        link->peer = peer;
        link->state = TDM__TCP_LINK_OPEN;
        link->stream = tdm__stream_of(pair[0]);
        link->events = EPOLLIN;
        h->far[i] = pair[1];
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = link};
        CHECK(epoll_ctl(tcp->poll_fd, EPOLL_CTL_ADD, pair[0], &event) == 0);
    }
}

static void half_end(half *h)
{
    for (int i = 0; i < STREAMS; i++)
        if (h->far[i] >= 0) close(h->far[i]);
    h->engine.transport->ops->destroy(h->engine.transport);
    free(h->engine.data);
}

static void disconnect(half *h, int link)
{
    close(h->far[link]);
    h->far[link] = -1;
}

static void say(half *h, int link, const void *bytes, size_t count)
{
    CHECK(send(h->far[link], bytes, count, MSG_NOSIGNAL) == (ssize_t)count);
}

static void say_bye(half *h, int link)
{
    tdm__tcp_start start = {.kind = TDM__TCP_BYE};
    say(h, link, &start, sizeof(start));
}

/* A message of `bytes` bytes, of which only `said` are sent. */
static void say_message(half *h, int link, size_t bytes, size_t said)
{
    struct {
        tdm__tcp_start start;
        tdm__head head;
        uint8_t payload[1000];
    } frame = {.start = {.kind = TDM__TCP_EAGER, .bytes = bytes},
               .head = {.world = WORLD, .kind = TDM_CALL_SEND, .bytes = bytes, .source = 1}};
    tdm__head_seal(&frame.head);
    say(h, link, &frame, offsetof(__typeof__(frame), payload) + said);
}

static void turn(half *h)
{
    for (int i = 0; i < 10; i++) h->engine.transport->ops->progress(h->engine.transport);
}

/* Whether a wait() would return at once. */
static bool is_busy(const half *h)
{
    const tdm__tcp *tcp = (const tdm__tcp *)h->engine.transport;
    struct pollfd fd = {.fd = tcp->poll_fd, .events = POLLIN};
    return h->engine.transport->ops->arm(h->engine.transport) < 0 || poll(&fd, 1, 0) != 0;
}

/* The peer left on one link, and died before the other link had its last frame: pending transfers end, and
 * the broken link does not wake the waiting thread again. */
static void a_link_breaks_while_another_has_left(void)
{
    half h;
    half_begin(&h);
    h.engine.takes = true;
    say_message(&h, 1, 900, 100);
    turn(&h);
    say_bye(&h, 0);
    disconnect(&h, 0);
    turn(&h);
    CHECK_INT(h.engine.arrived, 1);
    CHECK_INT(h.engine.lost, 0);
    disconnect(&h, 1);
    turn(&h);
    CHECK_INT(h.engine.received, 1);
    CHECK_INT(h.engine.last, TDM_ERR_PEER_FAILED);
    CHECK_INT(h.engine.lost, 1);
    CHECK(!is_busy(&h));
    half_end(&h);
}

/* The peer said goodbye, and closed with unread data, which is a reset. */
static void a_reset_after_the_last_frame_is_leaving(void)
{
    half h;
    half_begin(&h);
    h.engine.bytes = 10;
    h.engine.to_send = 1;
    send_one(&h.engine, 1);
    say_bye(&h, 0);
    say_bye(&h, 1);
    disconnect(&h, 0);
    disconnect(&h, 1);
    turn(&h);
    CHECK_INT(h.engine.lost, 0);
    CHECK(!is_busy(&h));
    half_end(&h);
}

static void nothing_follows_the_last_frame(void)
{
    half h;
    half_begin(&h);
    say_bye(&h, 0);
    say_message(&h, 0, 10, 10);
    turn(&h);
    CHECK_INT(h.engine.arrived, 0);
    CHECK_INT(h.engine.lost, 1);
    half_end(&h);
}

/* Memory that cannot be read ends the connection; the message does not wait forever. */
static void a_send_that_cannot_be_made_is_a_loss(void)
{
    half h;
    half_begin(&h);
    uint8_t *mine = h.engine.data;
    h.engine.data = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(h.engine.data != MAP_FAILED);
    h.engine.bytes = 4096;
    h.engine.to_send = 1;
    send_one(&h.engine, 1);
    turn(&h);
    CHECK_INT(h.engine.sent, 1);
    CHECK_INT(h.engine.last, TDM_ERR_PEER_FAILED);
    CHECK_INT(h.engine.lost, 1);
    munmap(h.engine.data, 4096);
    h.engine.data = mine;
    half_end(&h);
}

/* ---- two processes -------------------------------------------------------------------------------- */

typedef struct board {
    uint8_t address[2][TDM__MAX_ADDRESS];
    size_t bytes[2];
    _Atomic int listening, gone, full;
} board;

static board *shared;

static bool await(const _Atomic int *value, int min)
{
    for (double end_s = tdm_clock_s() + 100; tdm_clock_s() < end_s; usleep(1000))
        if (*value >= min) return true;
    return false;
}

static bool open_pair(engine *e, int rank, tdm_security mode)
{
    static const int hosts[] = {0, 0};
    tdm__transport_options options = {.rank = rank,
                                      .size = 2,
                                      .host_of = hosts,
                                      .world = WORLD,
                                      .security.mode = mode,
                                      .streams = 1,
                                      .events = events_of(e)};
    tdm_error err = {0};
    const uint8_t *addresses[] = {shared->address[0], shared->address[1]};
    if (tdm__transport_tcp.create(&options, &e->transport, shared->address[rank],
                                  &shared->bytes[rank], &err) != TDM_OK)
        return false;
    shared->listening++;
    return await(&shared->listening, 2) &&
           e->transport->ops->connect(e->transport, addresses, shared->bytes, &err) == TDM_OK;
}

static bool run_until(engine *e, const int *counter, int wanted)
{
    double end_s = tdm_clock_s() + 100;
    while (*counter < wanted && !e->lost && tdm_clock_s() < end_s)
        if (e->transport->ops->progress(e->transport) == 0)
            e->transport->ops->wait(e->transport, 0.01);
    return *counter >= wanted;
}

/* Rank 0 sends `count` messages, the later ones from within callbacks, and leaves; rank 1 reads none of them
 * before `may_read`. */
static int sender(size_t bytes, int count, tdm_security mode)
{
    engine e = {.bytes = bytes, .data = calloc(1, bytes), .to_send = count};
    if (!open_pair(&e, 0, mode)) return 1;
    send_one(&e, 1);
    for (int still = 0; e.sent < count && still < 200 && !shared->full;) {
        still = e.transport->ops->progress(e.transport) > 0 ? 0 : still + 1;
        e.transport->ops->wait(e.transport, 0.001);
    }
    shared->full = 1; /* its socket is full, or everything is sent */
    if (!run_until(&e, &e.sent, count)) return 2;
    e.transport->ops->destroy(e.transport);
    shared->gone = 1;
    free(e.data);
    return e.lost ? 3 : 0;
}

static void receive_from(size_t bytes, int count, tdm_security mode, const _Atomic int *may_read)
{
    memset(shared, 0, sizeof(*shared));
    int pid = world_fork(0);
    if (pid == 0) _exit(sender(bytes, count, mode));
    engine e = {.bytes = bytes, .data = calloc(1, bytes), .takes = true};
    CHECK(open_pair(&e, 1, mode));
    CHECK(await(may_read, 1));
    CHECK(run_until(&e, &e.received, count));
    CHECK_INT(e.last, TDM_OK);
    e.transport->ops->destroy(e.transport);
    free(e.data);
    CHECK_INT(world_end(pid), 0);
}

/* More than the socket buffers, so that messages end when there is space again. */
static void callbacks_may_send(void)
{
    receive_from(100 << 10, 300, TDM_SECURITY_OFF, &shared->full);
    receive_from(100 << 10, 300, TDM_SECURITY_PSK, &shared->full);
}

/* The sender's kernel has all data, the receiver's does not: the sender has exited when the data is read. */
static void last_messages_outlive_their_sender(void)
{
    receive_from(1 << 20, 1, TDM_SECURITY_OFF, &shared->gone);
    receive_from(1 << 20, 1, TDM_SECURITY_PSK, &shared->gone);
}

/* ---- addresses ------------------------------------------------------------------------------------ */

static tdm__endpoint published(int rank, const int *hosts, tdm__endpoint here)
{
    engine e = {0};
    uint8_t address[TDM__MAX_ADDRESS];
    size_t bytes = 0;
    tdm__endpoint out = {0};
    tdm__transport_options options = {.rank = rank,
                                      .size = 3,
                                      .host_of = hosts,
                                      .world = WORLD,
                                      .security.mode = TDM_SECURITY_OFF,
                                      .here = here,
                                      .rank_0 = here,
                                      .streams = 1,
                                      .events = events_of(&e)};
    CHECK_INT(tdm__transport_tcp.create(&options, &e.transport, address, &bytes, NULL), TDM_OK);
    CHECK_INT(bytes, sizeof(out));
    memcpy(&out, address, sizeof(out));
    e.transport->ops->destroy(e.transport);
    return out;
}

/* With a rendezvous file, ranks on the host of rank 0 reach it by loopback: other hosts must not be given
 * that address, but the one at which they reach rank 0. */
static void loopback_is_not_published_to_other_hosts(void)
{
    static const int one_host[] = {0, 0, 0}, two_hosts[] = {0, 0, 2};
    static const uint8_t zeros[16];
    tdm__endpoint loopback = {.family = 4, .port = 1, .bytes = {127, 0, 0, 1}};
    tdm__endpoint at = published(1, one_host, loopback);
    CHECK(at.family == 4 && memcmp(at.bytes, loopback.bytes, sizeof(at.bytes)) == 0 && at.port > 1);
    at = published(1, two_hosts, loopback);
    CHECK(memcmp(at.bytes, zeros, sizeof(zeros)) == 0 && at.port > 1);
    at = published(2, two_hosts, loopback); /* through a tunnel: no better address is known */
    CHECK(at.family == 4 && memcmp(at.bytes, loopback.bytes, sizeof(at.bytes)) == 0);
}

static const check_test tests[] = {
    CHECK_TEST(a_link_breaks_while_another_has_left),
    CHECK_TEST(a_reset_after_the_last_frame_is_leaving),
    CHECK_TEST(nothing_follows_the_last_frame),
    CHECK_TEST(a_send_that_cannot_be_made_is_a_loss),
    CHECK_TEST(callbacks_may_send),
    CHECK_TEST(last_messages_outlive_their_sender),
    CHECK_TEST(loopback_is_not_published_to_other_hosts),
};

int main(int argc, char **argv)
{
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 1;
    return check_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
