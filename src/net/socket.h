/*
 * socket.h: stream sockets, TCP and UNIX.
 *
 * All sockets are non-blocking, closed on exec, and send without delay. No function blocks without a
 * deadline. A function that fails returns -1 (or false) and leaves errno as the system set it.
 */
#ifndef TANDEM_NET_SOCKET_H
#define TANDEM_NET_SOCKET_H

#include "net/cancellation.h"
#include "net/endpoint.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

/* Opens a listening socket. */
int tdm__socket_listen(const struct sockaddr *address, socklen_t bytes);
/* Connects to the address. Fails with ETIMEDOUT at `until_s` of tdm_clock_s, or when it is cancelled (the
 * cancellation may be NULL). */
int tdm__socket_connect(const struct sockaddr *address, socklen_t bytes, double until_s,
                        const tdm__cancellation *cancellation);
/* The same in two parts: begins a connection; and, once the socket is writable, returns whether it is
 * connected. */
int tdm__socket_begin(const struct sockaddr *address, socklen_t bytes);
bool tdm__socket_is_connected(int fd);
/* Writes an address as "10.0.0.1 port 7000". */
void tdm__socket_text(const struct sockaddr *address, char *text, size_t bytes);
/* Writes the address of the peer as "fe80::1%eth0"; "?" for a UNIX socket. */
void tdm__socket_peer_host(int fd, char *text, size_t bytes);
/* Writes it as in a certificate, without the device: "fe80::1". */
void tdm__socket_peer_address(int fd, char *text, size_t bytes);
/* Accepts the next connection; `text` gets the address of the peer, or the process of a UNIX socket. */
int tdm__socket_accept(int listen_fd, char *text, size_t text_bytes);

/* The wildcard address of a family, with the port of `like` (NULL: any free port). Returns its length. */
socklen_t tdm__socket_any(int family, const struct sockaddr *like, struct sockaddr_storage *out);
/* The address of an abstract UNIX socket. Returns its length. */
socklen_t tdm__socket_abstract(const char *name, struct sockaddr_un *out);
/* The local port; 0: none. */
int tdm__socket_port(int fd);
/* The shortest round trip of a TCP connection that the kernel has measured; 0: unknown. */
double tdm__socket_round_trip_s(int fd);
/* The address of this end of a connection, and of the peer. */
tdm__endpoint tdm__socket_here(int fd);
tdm__endpoint tdm__socket_there(int fd);
/* Converts an endpoint to the form of the system calls. Returns its length. */
socklen_t tdm__socket_address(const tdm__endpoint *endpoint, struct sockaddr_storage *out);
/* Whether the peer of a UNIX socket belongs to this user or to root. True for other families. */
bool tdm__socket_same_user(int fd);

#endif
