/*
 * tcp.c: the TCP transport: creation, progress, waiting and its end. tcp_inner.h has the rest.
 *
 * The end: every link sends a last frame, BYE, after all others, and closes its sending half. Then
 * what the peer still sends is read and discarded until its end, for a bounded time. The kernel
 * delivers what the peer has not read by then. So a peer receives the last messages of a rank that
 * leaves, and can distinguish a rank that leaves from one that dies.
 */
#include "transport/tcp.h"
#include "base/base.h"
#include "base/timing.h"
#include "net/socket.h"
#include "transport/tcp_inner.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS = 64 };

/* ---- progress and waiting --------------------------------------------------------------------- */

/* Receives on all links. Some have input that epoll does not report: it is in a buffer of this
 * process already, or a send has failed. */
static void tcp_receive_all(tdm__tcp *tcp)
{
    tcp->has_input = false;
    for (int i = 0; i < tcp->size; i++)
        for (int k = 0; tcp->peers[i].links && k < tcp->streams; k++)
            if (tdm__link_receive(&tcp->peers[i].links[k])) tcp->has_input = true;
}

static int tcp_progress(tdm__transport *transport)
{
    tdm__tcp *tcp = (tdm__tcp *)transport;
    struct epoll_event events[EVENTS];
    tcp->calls = 0;
    bool is_active = tcp->has_input || tcp->has_broken;
    if (tcp->has_input) tcp_receive_all(tcp);
    int count = epoll_wait(tcp->poll_fd, events, EVENTS, 0);
    for (int i = 0; i < count; i++) {
        tdm__tcp_link *link = events[i].data.ptr;
        if (!link) { /* wake() */
            uint64_t times;
            (void)!read(tcp->wake_fd, &times, sizeof(times));
            continue;
        }
        is_active = true;
        if (events[i].events & EPOLLOUT) tdm__link_flush(link);
        if ((events[i].events & ~(uint32_t)EPOLLOUT) && tdm__link_receive(link))
            tcp->has_input = true;
    }
    tdm__tcp_report_losses(tcp);
    if (is_active) atomic_store_explicit(&tcp->active_ns, tdm_clock_ns(), memory_order_relaxed);
    return tcp->calls;
}

static int tcp_arm(tdm__transport *transport)
{
    tdm__tcp *tcp = (tdm__tcp *)transport;
    return tcp->has_input || tcp->has_broken ? -1 : tcp->poll_fd;
}

static void tcp_wait(tdm__transport *transport, double timeout_s)
{
    tdm__tcp *tcp = (tdm__tcp *)transport;
    uint64_t active_ns = atomic_load_explicit(&tcp->active_ns, memory_order_relaxed);
    if (timeout_s <= 0 || tcp_arm(transport) < 0) return;
    if (tcp->spins && tdm_clock_ns() - active_ns < TDM__TIMING_TRANSPORT_SPIN_NS) return;
    struct pollfd fd = {.fd = tcp->poll_fd, .events = POLLIN};
    if (timeout_s > 3600) timeout_s = 3600;
    struct timespec limit = tdm_clock_timespec(timeout_s);
    ppoll(&fd, 1, &limit, NULL);
}

static void tcp_wake(tdm__transport *transport)
{
    tdm__tcp *tcp = (tdm__tcp *)transport;
    int before = errno;
    uint64_t one = 1;
    (void)!write(tcp->wake_fd, &one, sizeof(one)); /* if it is full, a wake-up is pending */
    errno = before;
}

/* ---- leaving ---------------------------------------------------------------------------------- */

static void link_send_bye(tdm__tcp_link *link)
{
    tdm__tcp_frame *frame = tdm__tcp_frame_take(link->peer->tcp);
    if (!frame) return;
    frame->front.start.kind = TDM__TCP_BYE;
    tdm__link_send(link, frame);
}

/* Whether bytes of this link, or of its peer, are still to be sent or received; closes the link when
 * there are none. */
static bool link_is_leaving(tdm__tcp_link *link)
{
    enum { MAX_READS = 256 };
    if (link->stream.fd < 0) return false;
    tdm__link_flush(link);
    bool is_sent = !link->current && !link->urgent.first && !link->bulk.first &&
                   !link->unflushed.first;
    if (is_sent && !link->is_shut) {
        link->is_shut = true;
        shutdown(link->stream.fd, SHUT_WR);
    }
    struct iovec part = {link->stage, sizeof(link->stage)};
    ssize_t got = 1;
    for (int i = 0; i < MAX_READS && got > 0; i++) got = tdm__stream_recv(&link->stream, &part, 1);
    if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))) return true;
    tdm__link_close(link, !link->is_shut);
    return false;
}

static bool tcp_is_leaving(tdm__tcp *tcp)
{
    bool any = false;
    for (int i = 0; i < tcp->size; i++)
        for (int k = 0; tcp->peers[i].links && k < tcp->streams; k++)
            if (link_is_leaving(&tcp->peers[i].links[k])) any = true;
    return any;
}

static void tcp_leave(tdm__tcp *tcp)
{
    for (int i = 0; i < tcp->size; i++)
        for (int k = 0; tcp->peers[i].links && k < tcp->streams; k++)
            if (tcp->peers[i].links[k].stream.fd >= 0) link_send_bye(&tcp->peers[i].links[k]);
    double until_s = tdm_clock_s() + (tcp->is_broken ? TDM__TIMING_TRANSPORT_LEAVE_BROKEN_S
                                                     : TDM__TIMING_TRANSPORT_LEAVE_S);
    while (tcp_is_leaving(tcp) && tdm_clock_s() < until_s) {
        uint64_t times; /* of the wake() that ended the engine */
        (void)!read(tcp->wake_fd, &times, sizeof(times));
        struct pollfd fd = {.fd = tcp->poll_fd, .events = POLLIN};
        poll(&fd, 1, 5);
    }
}

/* ---- creation and destruction ----------------------------------------------------------------- */

static void tcp_ignore_operation(void *user, void *cookie, tdm_status status)
{
    (void)user, (void)cookie, (void)status;
}

static void tcp_ignore_arrival(void *user, int peer, const tdm__head *head, tdm__arrival *arrival)
{
    (void)user, (void)peer, (void)head, (void)arrival;
}

static void tcp_ignore_loss(void *user, int peer, const char *how)
{
    (void)user, (void)peer, (void)how;
}

static void tcp_destroy(tdm__transport *transport)
{
    tdm__tcp *tcp = (tdm__tcp *)transport;
    tcp->events = (tdm__transport_events){.arrived = tcp_ignore_arrival,
                                          .received = tcp_ignore_operation,
                                          .sent = tcp_ignore_operation,
                                          .lost = tcp_ignore_loss};
    if (tcp->peers && tcp->has_met) tcp_leave(tcp);
    for (int i = 0; tcp->peers && i < tcp->size; i++)
        for (int k = 0; tcp->peers[i].links && k < tcp->streams; k++)
            tdm__link_close(&tcp->peers[i].links[k], !tcp->peers[i].links[k].is_shut);
    tdm__tcp_free_messages(tcp);
    for (int i = 0; tcp->peers && i < tcp->size; i++) {
        free(tcp->peers[i].links);
        free(tcp->host_names ? tcp->host_names[i] : NULL);
    }
    free(tcp->peers);
    free(tcp->host_names);
    tdm__tls_context_destroy(tcp->tls);
    const int fds[] = {tcp->listen_fd, tcp->poll_fd, tcp->wake_fd};
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
        if (fds[i] >= 0) close(fds[i]);
    explicit_bzero(tcp->key, sizeof(tcp->key));
    free(tcp);
}

static void tcp_mark_broken(tdm__transport *transport)
{
    ((tdm__tcp *)transport)->is_broken = true;
}

static bool endpoint_is_loopback(const tdm__endpoint *at)
{
    static const uint8_t one[16] = {[15] = 1};
    if (at->family == 4) return at->bytes[0] == 127;
    return at->family == 6 && memcmp(at->bytes, one, sizeof(one)) == 0;
}

/* The address at which this rank listens. A rank on rank 0's host may have reached rank 0 by
 * loopback, an address that other hosts cannot use. It then listens at all addresses, and publishes
 * zeros: other hosts use the address at which they reach rank 0. */
static tdm__endpoint tcp_listen_endpoint(const tdm__transport_options *options)
{
    const int *host_of = options->host_of;
    bool is_beside = host_of && options->rank > 0 && host_of[options->rank] == host_of[0];
    bool has_others = false;
    for (int i = 0; host_of && i < options->size; i++)
        has_others = has_others || host_of[i] != host_of[options->rank];
    if (is_beside && has_others && endpoint_is_loopback(&options->here))
        return (tdm__endpoint){.family = 6};
    return options->here;
}

static bool tcp_fill(tdm__tcp *tcp, const tdm__transport_options *options)
{
    tcp->poll_fd = epoll_create1(EPOLL_CLOEXEC);
    tcp->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    tcp->peers = calloc((size_t)options->size, sizeof(*tcp->peers));
    tcp->host_names = calloc((size_t)options->size, sizeof(*tcp->host_names));
    if (tcp->poll_fd < 0 || tcp->wake_fd < 0 || !tcp->peers || !tcp->host_names) return false;
    for (int i = 0; i < options->size; i++) {
        tcp->peers[i] = (tdm__tcp_peer){.tcp = tcp, .rank = i};
        if (!options->host_names || !options->host_names[i]) continue;
        tcp->host_names[i] = strdup(options->host_names[i]);
        if (!tcp->host_names[i]) return false;
    }
    struct epoll_event event = {.events = EPOLLIN};
    return epoll_ctl(tcp->poll_fd, EPOLL_CTL_ADD, tcp->wake_fd, &event) == 0;
}

static tdm_status tcp_create(const tdm__transport_options *options, tdm__transport **out,
                             uint8_t address[TDM__MAX_ADDRESS], size_t *address_bytes,
                             tdm_error *err)
{
    tdm__tcp *tcp = calloc(1, sizeof(*tcp));
    if (!tcp) return tdm_fail_oom(err, "for the transport tcp");
    tcp->transport.ops = &tdm__transport_tcp;
    tcp->rank = options->rank;
    tcp->size = options->size;
    tcp->streams = options->streams > 0 ? options->streams : 1;
    tcp->world = options->world;
    memcpy(tcp->key, options->key, sizeof(tcp->key));
    tcp->mode = options->security.mode;
    tcp->events = options->events;
    tcp->cancellation = options->cancellation;
    tcp->refusal = options->refusal;
    tcp->here = tcp_listen_endpoint(options);
    tcp->rank_0 = options->rank_0;
    tcp->listen_fd = tcp->poll_fd = tcp->wake_fd = -1;
    tcp->spins = options->spins;
    tdm_status status = TDM_OK;
    if (!tcp_fill(tcp, options))
        status = tdm_fail(err, TDM_ERR_SYSTEM,
                          "tcp: no memory or file descriptors left; `ulimit -n` shows the limit");
    if (status == TDM_OK && tcp->mode != TDM_SECURITY_OFF)
        status = tdm__tls_context_create(&options->security, &tcp->tls, err);
    if (status == TDM_OK) status = tdm__tcp_listen(tcp, address, address_bytes, err);
    if (status != TDM_OK) {
        tcp_destroy(&tcp->transport);
        return status;
    }
    *out = &tcp->transport;
    return TDM_OK;
}

static tdm_status tcp_connect(tdm__transport *transport, const uint8_t *const *addresses,
                              const size_t *address_bytes, tdm_error *err)
{
    tdm__tcp *tcp = (tdm__tcp *)transport;
    tdm_status status = tdm__tcp_meet(tcp, addresses, address_bytes, err);
    close(tcp->listen_fd); /* all ranks are connected, or will not be */
    tcp->listen_fd = -1;
    tcp->cancellation = (tdm__cancellation){0};
    tcp->refusal = (tdm__refusal){0};
    tcp->has_met = status == TDM_OK;
    for (int i = 0; tcp->has_met && i < tcp->size; i++) {
        if (!tcp->peers[i].links) continue;
        double round_trip_s = tdm__socket_round_trip_s(tcp->peers[i].links[0].stream.fd);
        if (round_trip_s > transport->round_trip_s) transport->round_trip_s = round_trip_s;
    }
    tcp->has_input = true; /* a peer may have sent before this rank was ready */
    return status;
}

static bool tcp_usable(char why[160], char library[TDM_LIBRARY_BYTES])
{
    why[0] = '\0';
    tdm__tls_library(library);
    return true;
}

const tdm__transport_ops tdm__transport_tcp = {
    .name = "tcp",
    .about = "ranks of any hosts, over TCP with TLS",
    .usable = tcp_usable,
    .create = tcp_create,
    .connect = tcp_connect,
    .destroy = tcp_destroy,
    .mark_broken = tcp_mark_broken,
    .send = tdm__tcp_send_message,
    .take = tdm__tcp_take,
    .drop = tdm__tcp_drop,
    .forget = tdm__tcp_forget,
    .progress = tcp_progress,
    .wait = tcp_wait,
    .wake = tcp_wake,
    .arm = tcp_arm,
};
