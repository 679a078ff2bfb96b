/*
 * stream.c: sockets, plain or with TLS on top. See the header.
 */
#include "comm/stream.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void tdm__stream_close(tdm__stream *stream, bool at_once)
{
    tdm__tls_destroy(stream->tls);
    stream->tls = NULL;
    if (stream->fd < 0) return;
    struct linger none = {.l_onoff = 1};
    if (at_once) (void)setsockopt(stream->fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
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
    case TDM__ENCRYPTED_PSK: return "TLS by the job's secret";
    case TDM__ENCRYPTED_TLS: return "TLS by certificates";
    }
    return "something unknown";
}

/* The bytes of an address without the port; 0: it has none. */
static size_t address_bytes(const struct sockaddr_storage *address, uint8_t out[16])
{
    if (address->ss_family == AF_INET) {
        memcpy(out, &((const struct sockaddr_in *)address)->sin_addr, 4);
        return 4;
    }
    if (address->ss_family != AF_INET6) return 0;
    memcpy(out, &((const struct sockaddr_in6 *)address)->sin6_addr, 16);
    return 16;
}

/* Within the machine, and only with a process of the same user (boot_socket.h). */
static bool is_unix(int fd)
{
    int family = 0;
    socklen_t bytes = sizeof family;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &bytes) == 0 && family == AF_UNIX;
}

bool tdm__stream_is_local(int fd)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t here_bytes = sizeof here, there_bytes = sizeof there;
    if (getsockname(fd, (struct sockaddr *)&here, &here_bytes) != 0) return false;
    if (getpeername(fd, (struct sockaddr *)&there, &there_bytes) != 0) return false;
    if (is_unix(fd)) return true;
    uint8_t own[16], other[16];
    size_t bytes = address_bytes(&here, own);
    return bytes > 0 && bytes == address_bytes(&there, other) && memcmp(own, other, bytes) == 0;
}

tdm__protection tdm__protection_for(tdm_security mode, int fd)
{
    if (is_unix(fd))
        return TDM__PLAIN; /* rank 0's own connection is one; no certificate names it */
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
