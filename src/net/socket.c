/*
 * socket.c: creates, connects and describes sockets. See the header.
 *
 * TCP can connect a socket to itself: if no process listens on a port of this host, the kernel may choose
 * that port as the local port of the connection. Such a connection is reported as ECONNREFUSED.
 */
#include "net/socket.h"

#include <tandem/base.h>

#include <arpa/inet.h>
#include <errno.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44 /* Linux 6.15 */
#endif

_Static_assert(offsetof(struct sockaddr_in, sin_port) == offsetof(struct sockaddr_in6, sin6_port),
               "the port has the same offset in both families");

enum { BACKLOG = 1024 };

static void socket_close_keeping_errno(int fd)
{
    int why = errno;
    close(fd);
    errno = why;
}

/* Sets an option that improves the connection but is not required: errors are ignored. */
static void socket_set_option(int fd, int level, int option, int value)
{
    int why = errno;
    setsockopt(fd, level, option, &value, sizeof(value));
    errno = why;
}

/* Sends small messages without delay. After a network failure, the kernel retransmits at least once a second
 * instead of with growing pauses. */
static void socket_tune(int fd, int family)
{
    if (family != AF_INET && family != AF_INET6) return;
    socket_set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    socket_set_option(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, 1000);
}

int tdm__socket_listen(const struct sockaddr *address, socklen_t bytes)
{
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (address->sa_family != AF_UNIX) socket_set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (address->sa_family == AF_INET6) {
        const struct in6_addr *v6 = &((const struct sockaddr_in6 *)address)->sin6_addr;
        socket_set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, !IN6_IS_ADDR_UNSPECIFIED(v6));
    }
    if (bind(fd, address, bytes) != 0 || listen(fd, BACKLOG) != 0) {
        socket_close_keeping_errno(fd);
        return -1;
    }
    return fd;
}

static bool socket_is_self_connected(int fd)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_bytes = sizeof(here), there_bytes = sizeof(there);
    if (getsockname(fd, (struct sockaddr *)&here, &here_bytes) != 0) return false;
    if (getpeername(fd, (struct sockaddr *)&there, &there_bytes) != 0) return false;
    return here.ss_family != AF_UNIX && here_bytes == there_bytes &&
           memcmp(&here, &there, here_bytes) == 0;
}

int tdm__socket_begin(const struct sockaddr *address, socklen_t bytes)
{
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    socket_tune(fd, address->sa_family);
    if (connect(fd, address, bytes) == 0 || errno == EINPROGRESS) return fd;
    socket_close_keeping_errno(fd);
    return -1;
}

double tdm__socket_round_trip_s(int fd)
{
    struct tcp_info info;
    socklen_t bytes = sizeof(info);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return 0;
    return info.tcpi_min_rtt == UINT32_MAX ? 0 : info.tcpi_min_rtt * 1e-6;
}

bool tdm__socket_is_connected(int fd)
{
    int why = 0;
    socklen_t bytes = sizeof(why);
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &bytes);
    errno = why ? why : ECONNREFUSED;
    return why == 0 && !socket_is_self_connected(fd);
}

/* Waits until the connection is established, or has failed. */
static bool socket_await_connection(int fd, double until_s, const tdm__cancellation *cancellation)
{
    for (;;) {
        double left = until_s - tdm_clock_s(), slice = tdm__cancellation_slice(cancellation, left);
        struct pollfd wait = {.fd = fd, .events = POLLOUT};
        int ready = left > 0 ? poll(&wait, 1, (int)(slice * 1000) + 1) : 0;
        if (ready < 0 && errno == EINTR) continue;
        if (ready == 0 && slice < left && !tdm__cancellation_is_due(cancellation)) continue;
        if (ready <= 0) {
            errno = ETIMEDOUT;
            return false;
        }
        return tdm__socket_is_connected(fd);
    }
}

int tdm__socket_connect(const struct sockaddr *address, socklen_t bytes, double until_s,
                        const tdm__cancellation *cancellation)
{
    int fd = tdm__socket_begin(address, bytes);
    if (fd < 0) return -1;
    if (socket_await_connection(fd, until_s, cancellation)) return fd;
    socket_close_keeping_errno(fd);
    return -1;
}

void tdm__socket_text(const struct sockaddr *address, char *text, size_t bytes)
{
    char host[INET6_ADDRSTRLEN + 32] = "?", port[8] = "?";
    bool is_v6 = address->sa_family == AF_INET6;
    (void)getnameinfo(address, is_v6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in),
                      host, sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(text, bytes, "%s port %s", host, port);
}

void tdm__socket_peer_host(int fd, char *text, size_t bytes)
{
    struct sockaddr_storage there = {0};
    socklen_t there_bytes = sizeof(there);
    char port[8];
    snprintf(text, bytes, "?");
    if (getpeername(fd, (struct sockaddr *)&there, &there_bytes) == 0 && there.ss_family != AF_UNIX)
        getnameinfo((struct sockaddr *)&there, there_bytes, text, (socklen_t)bytes, port,
                    sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
}

void tdm__socket_peer_address(int fd, char *text, size_t bytes)
{
    tdm__socket_peer_host(fd, text, bytes);
    text[strcspn(text, "%")] = '\0';
}

static void socket_describe_peer(const struct sockaddr_storage *address, int fd, char *text,
                                 size_t bytes)
{
    if (address->ss_family != AF_UNIX) {
        tdm__socket_text((const struct sockaddr *)address, text, bytes);
    } else {
        struct ucred who = {0};
        socklen_t who_bytes = sizeof(who);
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &who_bytes);
        snprintf(text, bytes, "process %ld of this host", (long)who.pid);
    }
}

int tdm__socket_accept(int listen_fd, char *text, size_t text_bytes)
{
    struct sockaddr_storage address = {0};
    socklen_t bytes = sizeof(address);
    int fd = accept4(listen_fd, (struct sockaddr *)&address, &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return -1;
    socket_tune(fd, address.ss_family);
    socket_describe_peer(&address, fd, text, text_bytes);
    return fd;
}

socklen_t tdm__socket_any(int family, const struct sockaddr *like, struct sockaddr_storage *out)
{
    *out = (struct sockaddr_storage){.ss_family = (sa_family_t)family};
    if (family == AF_INET) {
        struct sockaddr_in *v4 = (struct sockaddr_in *)out;
        if (like) v4->sin_port = ((const struct sockaddr_in *)like)->sin_port;
        return sizeof(*v4);
    }
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
    if (like) v6->sin6_port = ((const struct sockaddr_in6 *)like)->sin6_port;
    return sizeof(*v6);
}

socklen_t tdm__socket_abstract(const char *name, struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    size_t length = strnlen(name, sizeof(out->sun_path) - 1);
    memcpy(out->sun_path + 1, name, length);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

int tdm__socket_port(int fd)
{
    struct sockaddr_storage address = {0};
    socklen_t bytes = sizeof(address);
    if (getsockname(fd, (struct sockaddr *)&address, &bytes) != 0) return 0;
    in_port_t port = 0; /* at the same offset in both families */
    memcpy(&port, (const char *)&address + offsetof(struct sockaddr_in, sin_port), sizeof(port));
    return ntohs(port);
}

static tdm__endpoint endpoint_of(const struct sockaddr_storage *address)
{
    tdm__endpoint out = {0};
    if (address->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
        out = (tdm__endpoint){.family = 4, .port = ntohs(v4->sin_port)};
        memcpy(out.bytes, &v4->sin_addr, sizeof(v4->sin_addr));
    } else if (address->ss_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;
        out = (tdm__endpoint){.family = 6, .port = ntohs(v6->sin6_port)};
        memcpy(out.bytes, &v6->sin6_addr, sizeof(v6->sin6_addr));
        out.scope = v6->sin6_scope_id;
    }
    return out;
}

tdm__endpoint tdm__socket_here(int fd)
{
    struct sockaddr_storage address = {0};
    socklen_t bytes = sizeof(address);
    if (getsockname(fd, (struct sockaddr *)&address, &bytes) != 0) return (tdm__endpoint){0};
    return endpoint_of(&address);
}

tdm__endpoint tdm__socket_there(int fd)
{
    struct sockaddr_storage address = {0};
    socklen_t bytes = sizeof(address);
    if (getpeername(fd, (struct sockaddr *)&address, &bytes) != 0) return (tdm__endpoint){0};
    return endpoint_of(&address);
}

socklen_t tdm__socket_address(const tdm__endpoint *endpoint, struct sockaddr_storage *out)
{
    *out = (struct sockaddr_storage){0};
    if (endpoint->family == 4) {
        struct sockaddr_in *v4 = (struct sockaddr_in *)out;
        *v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(endpoint->port)};
        memcpy(&v4->sin_addr, endpoint->bytes, sizeof(v4->sin_addr));
        return sizeof(*v4);
    }
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
    *v6 = (struct sockaddr_in6){.sin6_family = AF_INET6,
                                .sin6_port = htons(endpoint->port),
                                .sin6_scope_id = endpoint->scope};
    memcpy(&v6->sin6_addr, endpoint->bytes, sizeof(v6->sin6_addr));
    return sizeof(*v6);
}

bool tdm__socket_same_user(int fd)
{
    int family = 0;
    socklen_t family_bytes = sizeof(family);
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &family_bytes) != 0) return false;
    if (family != AF_UNIX) return true;
    struct ucred who = {.uid = (uid_t)-1};
    socklen_t bytes = sizeof(who);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 &&
           (who.uid == geteuid() || who.uid == 0);
}
