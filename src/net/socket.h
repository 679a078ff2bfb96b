/*
 * socket.h: sockets as the control connection wants them: stream, non-blocking, closed on exec,
 * without delay, and bounded in time. Failures leave errno as the system set it.
 */
#ifndef TANDEM_NET_SOCKET_H
#define TANDEM_NET_SOCKET_H

#include "net/cancellation.h"
#include "net/endpoint.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

/* A listening socket, or -1. */
int tdm__socket_listen(const struct sockaddr *address, socklen_t bytes);
/* A connected one, or -1 with errno when that fails or takes until `until_s`, or the patience (NULL is
 * fine) is over. */
int tdm__socket_connect(const struct sockaddr *address, socklen_t bytes, double until_s,
                        const tdm__cancellation *cancellation);
/* The same in two halves: a socket whose connection has begun, or -1; and, once it can be written to, whether
 * that came to something (else errno says why). */
int tdm__socket_begin(const struct sockaddr *address, socklen_t bytes);
bool tdm__socket_is_connected(int fd);
/* "10.0.0.1 port 7000"; and the peer's address alone ("?" of a UNIX socket): "fe80::1%eth0". */
void tdm__socket_text(const struct sockaddr *address, char *text, size_t bytes);
void tdm__socket_peer_host(int fd, char *text, size_t bytes);
/* The same as certificates have it, without the device: "fe80::1". */
void tdm__socket_peer_address(int fd, char *text, size_t bytes);
/* The next one that knocks, or -1; `text` gets where it comes from. */
int tdm__socket_accept(int listen_fd, char *text, size_t text_bytes);

/* All addresses of a family, with the port of `like` (NULL: any free port). Returns its length. */
socklen_t tdm__socket_any(int family, const struct sockaddr *like, struct sockaddr_storage *out);
socklen_t tdm__socket_abstract(const char *name, struct sockaddr_un *out);
int tdm__socket_port(int fd);
/* The round trip of a TCP connection, the shortest that the kernel has seen; 0: not known. */
double tdm__socket_round_trip_s(int fd);
/* Both ends of a socket; and an endpoint as the system wants it, with its length. */
tdm__endpoint tdm__socket_here(int fd);
tdm__endpoint tdm__socket_there(int fd);
socklen_t tdm__socket_address(const tdm__endpoint *endpoint, struct sockaddr_storage *out);
/* Of a UNIX socket: whether the other side is of this user, or root. True for other families. */
bool tdm__socket_same_user(int fd);

#endif
