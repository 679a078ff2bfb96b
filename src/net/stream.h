/*
 * stream.h: a connected, non-blocking socket, plain or with TLS.
 *
 * A stream starts plain. Both sides prove that they know a key (each user of streams has its own frames
 * for that), then tdm__stream_secure adds TLS if required; reading and writing stay the same.
 */
#ifndef TANDEM_NET_STREAM_H
#define TANDEM_NET_STREAM_H

#include "net/tls.h"

#include <tandem/base.h>

typedef struct tdm__stream {
    int fd;        /* -1: none */
    tdm__tls *tls; /* NULL: plain */
} tdm__stream;

static inline tdm__stream tdm__stream_of(int fd)
{
    return (tdm__stream){.fd = fd};
}
/* Closes the socket. `at_once`: drops unsent data, and the peer sees a reset. */
void tdm__stream_close(tdm__stream *stream, bool at_once);

/* Return the number of bytes, 0 at the end, or -1 with errno; EAGAIN: retry later. */
ssize_t tdm__stream_recv(tdm__stream *stream, const struct iovec *parts, int count);
ssize_t tdm__stream_send(tdm__stream *stream, const struct iovec *parts, int count);
/* Advances a handshake and sends TLS's buffered output: 1 if nothing is left, 0: retry later, -1. */
int tdm__stream_flush(tdm__stream *stream);
/* Whether TLS has buffered output for the socket. */
bool tdm__stream_has_output(const tdm__stream *stream);
/* Whether a send can do anything: false while a handshake waits for the peer. */
bool tdm__stream_can_send(const tdm__stream *stream);

/* How a connection is protected; the values are sent over the network. */
typedef enum tdm__protection {
    TDM__PLAIN = 1,
    TDM__ENCRYPTED_PSK,
    TDM__ENCRYPTED_TLS
} tdm__protection;
const char *tdm__protection_name(tdm__protection protection);
/* The protection that this side requires, from its policy and from whether both ends are on this machine;
 * a UNIX socket is never encrypted. */
tdm__protection tdm__protection_for(tdm_security mode, int fd);
/* Whether both ends are on this machine: a UNIX socket, or the same address at both ends. */
bool tdm__stream_is_local(int fd);

/* Adds TLS, unless the protection is TDM__PLAIN. */
tdm_status tdm__stream_secure(tdm__stream *stream, tdm__protection protection,
                              const tdm__tls_options *options, tdm_error *err);

/* Why the last call failed, as text: from errno or from TLS. */
const char *tdm__stream_why(const tdm__stream *stream, int error);

#endif
