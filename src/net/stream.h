/*
 * stream.h: a connected, non-blocking socket, plain or with TLS on top; and what an opening proves.
 *
 * A stream starts plain. Both sides prove that they know a key (each caller has its own frames for
 * that), then tdm__stream_secure puts TLS on top where it is wanted; reading and writing stay the same.
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
/* Closes it. `at_once`: what has not been sent is dropped, and the peer sees a reset. */
void tdm__stream_close(tdm__stream *stream, bool at_once);

/* Bytes, 0 at the end, or -1 with errno; EAGAIN: later. */
ssize_t tdm__stream_recv(tdm__stream *stream, const struct iovec *parts, int count);
ssize_t tdm__stream_send(tdm__stream *stream, const struct iovec *parts, int count);
/* Carries on a handshake and sends what TLS holds: 1 when nothing of that is left, 0: later, -1. */
int tdm__stream_flush(tdm__stream *stream);
/* Bytes are in TLS's buffer that the socket must take. */
bool tdm__stream_has_output(const tdm__stream *stream);
/* Whether a send can do anything: false while a handshake waits for the peer. */
bool tdm__stream_can_send(const tdm__stream *stream);

/* How a connection is protected; the numbers are those on the wire. */
typedef enum tdm__protection {
    TDM__PLAIN = 1,
    TDM__ENCRYPTED_PSK,
    TDM__ENCRYPTED_TLS
} tdm__protection;
const char *tdm__protection_name(tdm__protection protection);
/* What this side wants for a connection, by its policy and by whether both ends are of this machine; a UNIX
 * socket is never encrypted. */
tdm__protection tdm__protection_for(tdm_security mode, int fd);
/* Whether both ends are of this machine: a UNIX socket, or one address at both ends. */
bool tdm__stream_is_local(int fd);

/* Puts TLS on top, unless the protection is TDM__PLAIN. */
tdm_status tdm__stream_secure(tdm__stream *stream, tdm__protection protection,
                              const tdm__tls_options *options, tdm_error *err);

/* Why the last call failed, for people: errno's text, or what TLS said. */
const char *tdm__stream_why(const tdm__stream *stream, int error);

#endif
