/*
 * tls.h: TLS 1.3 (OpenSSL) over a non-blocking socket that somebody else owns.
 *
 * A context holds what all connections of a comm have in common: the mode and, for certificates, the
 * files. A connection is made with a key that both sides have derived from the job's secret
 * (TDM_SECURITY_PSK), or proves itself by a certificate of the same authority (TDM_SECURITY_TLS); then
 * the caller checks the peer's names by tdm__tls_is_named.
 *
 * Bytes go through two buffers of the connection, so that one system call moves many records. The
 * handshake needs no call of its own: tdm__tls_recv and tdm__tls_send carry it on.
 */
#ifndef TANDEM_NET_TLS_H
#define TANDEM_NET_TLS_H

#include <tandem/comm.h>

#include <sys/types.h>
#include <sys/uio.h>

/* AES-GCM is good for 2^24.5 records of 16 KB under one key (RFC 8446, 5.5), which a long training sends. */
enum { TDM__TLS_KEY = 32, TDM__TLS_REKEY_RECORDS = 1 << 23 };

typedef struct tdm__tls_context tdm__tls_context;
typedef struct tdm__tls tdm__tls;

/* Reads the files of TDM_SECURITY_TLS. The error names the file and what to do. */
tdm_status tdm__tls_context_create(const tdm_comm_security *security, tdm__tls_context **out,
                                   tdm_error *err);
void tdm__tls_context_destroy(tdm__tls_context *context); /* NULL is fine */
/* The libraries and their versions: "OpenSSL 3.0.19, IPSec MB 1.3.0". */
void tdm__tls_library(char library[TDM_LIBRARY_BYTES]);

typedef struct tdm__tls_options {
    tdm__tls_context *context; /* must outlive the connection */
    bool is_server;
    const uint8_t *key;     /* TDM__TLS_KEY bytes */
    size_t buffer_bytes;    /* of each direction, at least 32 KB */
    uint64_t rekey_records; /* sent under one key; 0: TDM__TLS_REKEY_RECORDS */
} tdm__tls_options;

tdm_status tdm__tls_create(const tdm__tls_options *options, tdm__tls **out, tdm_error *err);
void tdm__tls_destroy(tdm__tls *tls); /* NULL is fine */

/* As recvmsg and sendmsg: bytes that were moved, 0 at the end, or -1 with errno; EAGAIN: later, also
 * while the handshake goes on. EPROTO: the peer has another key or no valid certificate, or what came is
 * not TLS; tdm__tls_why says it. */
ssize_t tdm__tls_recv(tdm__tls *tls, int fd, const struct iovec *parts, int count);
ssize_t tdm__tls_send(tdm__tls *tls, int fd, const struct iovec *parts, int count);
/* Carries the handshake on and sends what waits. 1: the connection is ready; 0: not yet; -1: as above. */
int tdm__tls_advance(tdm__tls *tls, int fd);

bool tdm__tls_is_ready(const tdm__tls *tls);   /* the handshake is over */
bool tdm__tls_has_output(const tdm__tls *tls); /* encrypted bytes wait for room in the socket */
const char *tdm__tls_why(const tdm__tls *tls);
bool tdm__tls_is_refused(const tdm__tls *tls); /* it failed because of a certificate */
uint64_t tdm__tls_rekeys(const tdm__tls *tls); /* how many times this side has changed its key */

/* Whether the peer's certificate is for this host name or address; true without certificates. */
bool tdm__tls_is_named(const tdm__tls *tls, const char *name);
/* The peer's certificate, for messages: "CN = alpha". */
void tdm__tls_subject(const tdm__tls *tls, char *out, size_t bytes);

#endif
