/*
 * tls.h: TLS 1.3 (OpenSSL) over a non-blocking socket that the caller owns.
 *
 * A context holds what all connections of a comm share: the mode and, for certificates, the files. A
 * connection is authenticated by a key that both sides derived from the job's secret (TDM_SECURITY_PSK)
 * or by certificates of the same authority (TDM_SECURITY_TLS); then the caller checks the peer's names
 * with tdm__tls_is_named.
 *
 * Bytes go through two buffers of the connection, so that one system call moves many records.
 * tdm__tls_recv and tdm__tls_send also advance the handshake.
 */
#ifndef TANDEM_NET_TLS_H
#define TANDEM_NET_TLS_H

#include <tandem/comm.h>

#include <sys/types.h>
#include <sys/uio.h>

/* AES-GCM is safe for 2^24.5 records of 16 KB per key (RFC 8446, 5.5); a long training run sends more. */
enum { TDM__TLS_KEY = 32, TDM__TLS_REKEY_RECORDS = 1 << 23 };

typedef struct tdm__tls_context tdm__tls_context;
typedef struct tdm__tls tdm__tls;

/* Reads the files of TDM_SECURITY_TLS. The error names the file and what to do. */
tdm_status tdm__tls_context_create(const tdm_comm_security *security, tdm__tls_context **out,
                                   tdm_error *err);
void tdm__tls_context_destroy(tdm__tls_context *context); /* accepts NULL */
/* The libraries and their versions: "OpenSSL 3.0.19, IPSec MB 1.3.0". */
void tdm__tls_library(char library[TDM_LIBRARY_BYTES]);

typedef struct tdm__tls_options {
    tdm__tls_context *context; /* must outlive the connection */
    bool is_server;
    const uint8_t *key;     /* TDM__TLS_KEY bytes */
    size_t buffer_bytes;    /* of each direction, at least 32 KB */
    uint64_t rekey_records; /* limit per key; 0: TDM__TLS_REKEY_RECORDS */
} tdm__tls_options;

tdm_status tdm__tls_create(const tdm__tls_options *options, tdm__tls **out, tdm_error *err);
void tdm__tls_destroy(tdm__tls *tls); /* accepts NULL */

/* Like recvmsg and sendmsg: the number of bytes, 0 at the end, or -1 with errno; EAGAIN: retry later, also
 * during the handshake. EPROTO: the peer has another key or no valid certificate, or the received data is
 * not TLS; see tdm__tls_why. */
ssize_t tdm__tls_recv(tdm__tls *tls, int fd, const struct iovec *parts, int count);
ssize_t tdm__tls_send(tdm__tls *tls, int fd, const struct iovec *parts, int count);
/* Advances the handshake and sends buffered output. 1: ready; 0: not yet; -1: as above. */
int tdm__tls_advance(tdm__tls *tls, int fd);

bool tdm__tls_is_ready(const tdm__tls *tls);   /* the handshake is complete */
bool tdm__tls_has_output(const tdm__tls *tls); /* encrypted bytes are buffered */
const char *tdm__tls_why(const tdm__tls *tls);
bool tdm__tls_is_refused(const tdm__tls *tls); /* it failed because of a certificate */
uint64_t tdm__tls_rekeys(const tdm__tls *tls); /* how many times this side has changed its key */

/* Whether the peer's certificate is for this host name or address; true without certificates. */
bool tdm__tls_is_named(const tdm__tls *tls, const char *name);
/* The subject of the peer's certificate, for messages: "CN = alpha". */
void tdm__tls_subject(const tdm__tls *tls, char *out, size_t bytes);

#endif
