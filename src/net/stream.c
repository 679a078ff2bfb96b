/*
 * stream.c: dispatches to the socket or to TLS. See the header.
 */
#include "net/stream.h"
#include "net/socket.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void tdm__stream_close(tdm__stream *stream, bool at_once)
{
    tdm__tls_destroy(stream->tls);
    stream->tls = NULL;
    if (stream->fd < 0) return;
    struct linger none = {.l_onoff = 1};
    if (at_once) (void)setsockopt(stream->fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
    close(stream->fd);
    stream->fd = -1;
}

ssize_t tdm__stream_recv(tdm__stream *stream, const struct iovec *parts, int count)
{
    if (stream->tls) return tdm__tls_recv(stream->tls, stream->fd, parts, count);
    struct msghdr message = {.msg_iov = (struct iovec *)parts, .msg_iovlen = (size_t)count};
    ssize_t got;
    do got = recvmsg(stream->fd, &message, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    return got;
}

ssize_t tdm__stream_send(tdm__stream *stream, const struct iovec *parts, int count)
{
    if (stream->tls) return tdm__tls_send(stream->tls, stream->fd, parts, count);
    struct msghdr message = {.msg_iov = (struct iovec *)parts, .msg_iovlen = (size_t)count};
    ssize_t gone;
    do gone = sendmsg(stream->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (gone < 0 && errno == EINTR);
    return gone;
}

int tdm__stream_flush(tdm__stream *stream)
{
    if (!stream->tls) return 1;
    int ready = tdm__tls_advance(stream->tls, stream->fd);
    return ready > 0 && tdm__tls_has_output(stream->tls) ? 0 : ready;
}

bool tdm__stream_has_output(const tdm__stream *stream)
{
    return stream->tls && tdm__tls_has_output(stream->tls);
}

bool tdm__stream_can_send(const tdm__stream *stream)
{
    return !stream->tls || tdm__tls_is_ready(stream->tls);
}

const char *tdm__protection_name(tdm__protection protection)
{
    switch (protection) {
    case TDM__PLAIN: return "none";
    case TDM__ENCRYPTED_PSK: return "TLS with the job's secret";
    case TDM__ENCRYPTED_TLS: return "TLS with certificates";
    }
    return "an unknown method";
}

bool tdm__stream_is_local(int fd)
{
    tdm__endpoint here = tdm__socket_here(fd), there = tdm__socket_there(fd);
    return here.family == there.family && memcmp(here.bytes, there.bytes, sizeof(here.bytes)) == 0;
}

tdm__protection tdm__protection_for(tdm_security mode, int fd)
{
    if (tdm__socket_here(fd).family == 0)
        return TDM__PLAIN; /* a UNIX socket, such as rank 0's own connection: no certificate names it */
    switch (mode) {
    case TDM_SECURITY_OFF: return TDM__PLAIN;
    case TDM_SECURITY_PSK: return TDM__ENCRYPTED_PSK;
    case TDM_SECURITY_TLS: return TDM__ENCRYPTED_TLS;
    case TDM_SECURITY_AUTO: break;
    }
    return tdm__stream_is_local(fd) ? TDM__PLAIN : TDM__ENCRYPTED_PSK;
}

tdm_status tdm__stream_secure(tdm__stream *stream, tdm__protection protection,
                              const tdm__tls_options *options, tdm_error *err)
{
    return protection == TDM__PLAIN ? TDM_OK : tdm__tls_create(options, &stream->tls, err);
}

const char *tdm__stream_why(const tdm__stream *stream, int error)
{
    if (error == 0) return "it was closed";
    if (stream->tls && *tdm__tls_why(stream->tls)) return tdm__tls_why(stream->tls);
    return strerror(error);
}
