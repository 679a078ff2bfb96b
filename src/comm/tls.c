/*
 * tls.c: TLS 1.3 by OpenSSL. See the header.
 *
 * OpenSSL reads from the socket into a buffer of its own that holds many records, and decrypts them there. It
 * writes to memory (a BIO of ours), from where many records go to the socket by one call. A record is
 * encrypted only while that memory has room for a whole one, so OpenSSL never holds a record that it would
 * have to be given again.
 */
#include "comm/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { RECORD = 16384, RECORD_ROOM = RECORD + 512 };

#define CIPHERS "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"
#define IDENTITY "tandem"

struct tdm__tls_context {
    SSL_CTX *ssl;
    BIO_METHOD *method;
    bool has_certificates;
};

typedef struct buffer {
    uint8_t *bytes;
    size_t first, count, capacity;
} buffer;

struct tdm__tls {
    SSL *ssl;
    bool has_certificates;
    int fd;      /* during a call */
    int error;   /* errno of a read that failed; 0: none has */
    bool ended;  /* the socket's end was seen */
    bool broken; /* by an error of TLS: nothing goes on */
    uint8_t key[TDM__TLS_KEY];
    uint64_t rekey_records, records; /* the most under one key, and those sent under this one */
    uint64_t rekeys;
    buffer out;
    uint8_t record[RECORD]; /* where small pieces meet before they are encrypted */
    char subject[160];      /* of a certificate that was refused */
    char why[320];
};

/* ---- errors ------------------------------------------------------------------------------------- */

/* The text of an error of OpenSSL's. */
static const char *error_text(unsigned long code)
{
    const char *text = code ? ERR_reason_error_string(code) : NULL;
    if (!text && code && ERR_SYSTEM_ERROR(code)) text = strerror(ERR_GET_REASON(code));
    return text ? text : "no reason given";
}

/* The oldest error of OpenSSL's queue, which is empty afterwards. */
static const char *ssl_error(void)
{
    unsigned long code = ERR_get_error();
    ERR_clear_error();
    return error_text(code);
}

static tdm_status bad_file(tdm_error *err, const char *what, const char *path, const char *key)
{
    return tdm_fail(err, TDM_ERR_INVALID,
                    "%s %s cannot be used: %s; %s must name a PEM file that this user can read",
                    what, path ? path : "(none)", ssl_error(), key);
}

/* ---- below OpenSSL ------------------------------------------------------------------ */

static int socket_read(BIO *bio, char *into, size_t bytes, size_t *out_bytes)
{
    tdm__tls *tls = BIO_get_data(bio);
    ssize_t got;
    BIO_clear_retry_flags(bio);
    *out_bytes = 0;
    do got = recv(tls->fd, into, bytes, 0);
    while (got < 0 && errno == EINTR);
    if (got > 0) {
        *out_bytes = (size_t)got;
        return 1;
    }
    if (got == 0)
        tls->ended = true;
    else if (errno == EAGAIN || errno == EWOULDBLOCK)
        BIO_set_retry_read(bio);
    else
        tls->error = errno;
    return 0;
}

static int memory_write(BIO *bio, const char *from, size_t bytes, size_t *out_bytes)
{
    tdm__tls *tls = BIO_get_data(bio);
    buffer *out = &tls->out;
    size_t end = out->first + out->count;
    BIO_clear_retry_flags(bio);
    if (bytes > out->capacity - end) { /* a handshake with long certificates */
        size_t capacity = end + bytes;
        uint8_t *grown = realloc(out->bytes, capacity);
        if (!grown) return 0;
        out->bytes = grown;
        out->capacity = capacity;
    }
    memcpy(out->bytes + end, from, bytes);
    out->count += bytes;
    *out_bytes = bytes;
    return 1;
}

static long memory_control(BIO *bio, int command, long number, void *pointer)
{
    (void)bio, (void)number, (void)pointer;
    return command == BIO_CTRL_FLUSH ? 1 : 0;
}

/* ---- the key that both sides have ------------------------------------------------------------------ */

/* A session as TLS 1.3 wants a shared key; NULL when out of memory. */
static SSL_SESSION *session_of(SSL *ssl)
{
    static const unsigned char aes_128_gcm_sha256[] = {0x13, 0x01};
    const tdm__tls *tls = SSL_get_app_data(ssl);
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, aes_128_gcm_sha256);
    SSL_SESSION *session = SSL_SESSION_new();
    if (session && cipher && SSL_SESSION_set1_master_key(session, tls->key, TDM__TLS_KEY) &&
        SSL_SESSION_set_cipher(session, cipher) &&
        SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION))
        return session;
    SSL_SESSION_free(session);
    return NULL;
}

static int offer_key(SSL *ssl, const EVP_MD *digest, const unsigned char **id, size_t *id_bytes,
                     SSL_SESSION **out)
{
    SSL_SESSION *session = session_of(ssl);
    if (!session) return 0;
    if (digest && digest != SSL_CIPHER_get_handshake_digest(SSL_SESSION_get0_cipher(session))) {
        SSL_SESSION_free(session); /* the server wants another hash: this key does not fit */
        session = NULL;
    }
    *id = (const unsigned char *)IDENTITY;
    *id_bytes = sizeof IDENTITY - 1;
    *out = session;
    return 1;
}

static int find_key(SSL *ssl, const unsigned char *id, size_t id_bytes, SSL_SESSION **out)
{
    *out = NULL;
    if (id_bytes != sizeof IDENTITY - 1 || memcmp(id, IDENTITY, id_bytes) != 0) return 1;
    *out = session_of(ssl);
    return *out != NULL;
}

/* ---- contexts ---------------------------------------------------------------------------------------- */

static void subject_of(const X509 *certificate, char *out, size_t bytes)
{
    snprintf(out, bytes, "no certificate");
    if (certificate) X509_NAME_oneline(X509_get_subject_name(certificate), out, (int)bytes);
}

/* Called for each certificate of a chain: notes the peer's when it is not valid. */
static int note_verdict(int is_valid, X509_STORE_CTX *chain)
{
    SSL *ssl = X509_STORE_CTX_get_ex_data(chain, SSL_get_ex_data_X509_STORE_CTX_idx());
    tdm__tls *tls = ssl ? SSL_get_app_data(ssl) : NULL;
    if (!is_valid && tls)
        subject_of(X509_STORE_CTX_get0_cert(chain), tls->subject, sizeof tls->subject);
    return is_valid;
}

static tdm_status load_certificates(SSL_CTX *ssl, const tdm_comm_security *security, tdm_error *err)
{
    if (!security->certificate || !security->private_key || !security->authority)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "comm.security is tls, but %s is not set: set comm.tls_certificate, "
                        "comm.tls_key and comm.tls_authority (or TANDEM_TLS_CERTIFICATE, "
                        "TANDEM_TLS_KEY and TANDEM_TLS_AUTHORITY) to PEM files",
                        !security->certificate   ? "comm.tls_certificate"
                        : !security->private_key ? "comm.tls_key"
                                                 : "comm.tls_authority");
    if (SSL_CTX_use_certificate_chain_file(ssl, security->certificate) != 1)
        return bad_file(err, "the certificate", security->certificate, "comm.tls_certificate");
    if (SSL_CTX_use_PrivateKey_file(ssl, security->private_key, SSL_FILETYPE_PEM) != 1)
        return bad_file(err, "the private key", security->private_key, "comm.tls_key");
    if (SSL_CTX_check_private_key(ssl) != 1)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "the private key %s does not belong to the certificate %s",
                        security->private_key, security->certificate);
    if (SSL_CTX_load_verify_file(ssl, security->authority) != 1)
        return bad_file(err, "the authority's certificate", security->authority,
                        "comm.tls_authority");
    SSL_CTX_set_verify(ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, note_verdict);
    return TDM_OK;
}

static tdm_status prepare_context(tdm__tls_context *c, const tdm_comm_security *security,
                                  tdm_error *err)
{
    c->ssl = SSL_CTX_new(TLS_method());
    c->method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "tandem");
    if (!c->ssl || !c->method || !BIO_meth_set_read_ex(c->method, socket_read) ||
        !BIO_meth_set_write_ex(c->method, memory_write) ||
        !BIO_meth_set_ctrl(c->method, memory_control) ||
        SSL_CTX_set_min_proto_version(c->ssl, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(c->ssl, CIPHERS) != 1)
        return tdm_fail(err, TDM_ERR_SYSTEM, "OpenSSL cannot be used: %s", ssl_error());
    SSL_CTX_set_session_cache_mode(c->ssl, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_num_tickets(c->ssl, 0);
    SSL_CTX_set_read_ahead(c->ssl, 1);
    c->has_certificates = security->mode == TDM_SECURITY_TLS;
    if (c->has_certificates) return load_certificates(c->ssl, security, err);
    SSL_CTX_set_psk_use_session_callback(c->ssl, offer_key);
    SSL_CTX_set_psk_find_session_callback(c->ssl, find_key);
    return TDM_OK;
}

tdm_status tdm__tls_context_create(const tdm_comm_security *security, tdm__tls_context **out,
                                   tdm_error *err)
{
    tdm__tls_context *c = calloc(1, sizeof *c);
    if (!c) return tdm_fail(err, TDM_ERR_NO_MEMORY, "no memory for TLS");
    ERR_clear_error();
    tdm_status status = prepare_context(c, security, err);
    if (status != TDM_OK) {
        tdm__tls_context_destroy(c);
        return status;
    }
    *out = c;
    return TDM_OK;
}

void tdm__tls_context_destroy(tdm__tls_context *c)
{
    if (!c) return;
    SSL_CTX_free(c->ssl);
    BIO_meth_free(c->method);
    free(c);
}

const char *tdm__tls_library(void)
{
    return OpenSSL_version(OPENSSL_VERSION_STRING);
}

/* ---- connections --------------------------------------------------------------------------------------- */

static bool prepare(tdm__tls *tls, const tdm__tls_options *options)
{
    BIO *bio = BIO_new(options->context->method);
    tls->ssl = SSL_new(options->context->ssl);
    tls->out.bytes = malloc(options->buffer_bytes);
    if (!bio || !tls->ssl || !tls->out.bytes) {
        BIO_free(bio);
        return false;
    }
    tls->out.capacity = options->buffer_bytes;
    SSL_set_default_read_buffer_len(tls->ssl, options->buffer_bytes);
    BIO_set_data(bio, tls);
    BIO_set_init(bio, 1);
    SSL_set_bio(tls->ssl, bio, bio);
    SSL_set_app_data(tls->ssl, tls);
    if (options->is_server)
        SSL_set_accept_state(tls->ssl);
    else
        SSL_set_connect_state(tls->ssl);
    return true;
}

tdm_status tdm__tls_create(const tdm__tls_options *options, tdm__tls **out, tdm_error *err)
{
    tdm__tls *tls = calloc(1, sizeof *tls);
    if (tls) {
        tls->has_certificates = options->context->has_certificates;
        memcpy(tls->key, options->key, sizeof tls->key);
        tls->rekey_records = options->rekey_records ? options->rekey_records
                                                    : TDM__TLS_REKEY_RECORDS;
    }
    if (!tls || !prepare(tls, options)) {
        tdm__tls_destroy(tls);
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "no memory for a TLS connection");
    }
    *out = tls;
    return TDM_OK;
}

void tdm__tls_destroy(tdm__tls *tls)
{
    if (!tls) return;
    SSL_free(tls->ssl);
    free(tls->out.bytes);
    OPENSSL_cleanse(tls->key, sizeof tls->key);
    free(tls);
}

bool tdm__tls_is_ready(const tdm__tls *tls)
{
    return SSL_is_init_finished(tls->ssl);
}

bool tdm__tls_has_output(const tdm__tls *tls)
{
    return tls->out.count > 0;
}

uint64_t tdm__tls_rekeys(const tdm__tls *tls)
{
    return tls->rekeys;
}

const char *tdm__tls_why(const tdm__tls *tls)
{
    return tls->why;
}

/* ---- bytes ----------------------------------------------------------------------------------------------- */

/* Sends what waits. False, with errno, when the socket fails; a full one does not. */
static bool flush(tdm__tls *tls, int fd)
{
    buffer *out = &tls->out;
    while (out->count > 0) {
        ssize_t gone = send(fd, out->bytes + out->first, out->count, MSG_NOSIGNAL);
        if (gone < 0 && errno == EINTR) continue;
        if (gone < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
        out->count -= (size_t)gone;
        out->first = out->count > 0 ? out->first + (size_t)gone : 0;
    }
    return true;
}

/* Whether the peer has refused the certificate of this side. */
static bool is_refusal(unsigned long code)
{
    if (ERR_GET_LIB(code) != ERR_LIB_SSL) return false;
    switch (ERR_GET_REASON(code)) {
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED: return true;
    default: return false;
    }
}

/* Notes why OpenSSL refuses to go on, and sends its alert. Returns -1 with errno. */
static int breaks(tdm__tls *tls, int fd)
{
    if (tls->error) { /* the socket's, not of TLS */
        ERR_clear_error();
        errno = tls->error;
        return -1;
    }
    long verdict = SSL_get_verify_result(tls->ssl);
    unsigned long code = ERR_get_error();
    bool is_refused = tls->has_certificates && is_refusal(code);
    if (is_refused) subject_of(SSL_get_certificate(tls->ssl), tls->subject, sizeof tls->subject);
    if (tls->has_certificates && verdict != X509_V_OK)
        snprintf(tls->why, sizeof tls->why, "the peer's certificate (%s) is not valid: %s",
                 *tls->subject ? tls->subject : "none", X509_verify_cert_error_string(verdict));
    else if (is_refused)
        snprintf(tls->why, sizeof tls->why, "the peer refuses this side's certificate (%s): %s",
                 tls->subject, error_text(code));
    else
        snprintf(tls->why, sizeof tls->why, "TLS failed: %s", error_text(code));
    ERR_clear_error();
    tls->broken = true;
    (void)flush(tls, fd);
    errno = EPROTO;
    return -1;
}

/* TLS lets a server answer with a certificate although it was offered a key, and this side has nothing to
 * judge a certificate by: what did not use the key is not believed. */
static bool used_the_key(const tdm__tls *tls)
{
    return tls->has_certificates || SSL_session_reused(tls->ssl) == 1;
}

int tdm__tls_advance(tdm__tls *tls, int fd)
{
    if (tls->broken) {
        errno = EPROTO;
        return -1;
    }
    tls->fd = fd;
    if (!SSL_is_init_finished(tls->ssl)) {
        ERR_clear_error();
        int done = SSL_do_handshake(tls->ssl);
        int error = done == 1 ? SSL_ERROR_NONE : SSL_get_error(tls->ssl, done);
        if (done != 1 && tls->ended) {
            snprintf(tls->why, sizeof tls->why, "the peer ended the handshake");
            errno = ECONNRESET;
            return -1;
        }
        if (done != 1 && error != SSL_ERROR_WANT_READ) return breaks(tls, fd);
        if (done == 1 && !used_the_key(tls)) {
            tls->out.count = tls->out.first = 0; /* it gets no end of the handshake */
            snprintf(tls->why, sizeof tls->why, "the peer did not use the key of this world");
            tls->broken = true;
            errno = EPROTO;
            return -1;
        }
        if (!flush(tls, fd)) return -1;
        if (done != 1) return 0;
    }
    return flush(tls, fd) ? 1 : -1;
}

/* Decrypts into one piece. Bytes, 0 at the end, or -1 with errno. */
static ssize_t read_piece(tdm__tls *tls, int fd, uint8_t *into, size_t bytes)
{
    size_t got = 0;
    if (SSL_read_ex(tls->ssl, into, bytes, &got) == 1) return (ssize_t)got;
    int error = SSL_get_error(tls->ssl, 0);
    if (error == SSL_ERROR_ZERO_RETURN || (tls->ended && error != SSL_ERROR_SSL)) return 0;
    if (error != SSL_ERROR_WANT_READ) return breaks(tls, fd);
    errno = EAGAIN;
    return -1;
}

ssize_t tdm__tls_recv(tdm__tls *tls, int fd, const struct iovec *parts, int count)
{
    int ready = tdm__tls_advance(tls, fd);
    if (ready <= 0) {
        if (ready == 0) errno = EAGAIN;
        return -1;
    }
    ssize_t total = 0;
    ERR_clear_error(); /* SSL_get_error looks at the whole queue */
    for (int i = 0; i < count; i++) {
        size_t done = 0;
        while (done < parts[i].iov_len) {
            ssize_t got = read_piece(tls, fd, (uint8_t *)parts[i].iov_base + done,
                                     parts[i].iov_len - done);
            if (got <= 0) return total > 0 && !tls->broken ? total : got;
            done += (size_t)got;
            total += got;
        }
    }
    return total;
}

/* Where a walk over pieces stands. */
typedef struct cursor {
    const struct iovec *parts;
    int count, at;
    size_t offset;
} cursor;

/* The bytes of the next record: where they lie if one piece has enough, else gathered. */
static const uint8_t *next_record(cursor *c, uint8_t gathered[RECORD], size_t *out_bytes)
{
    const uint8_t *from = (const uint8_t *)c->parts[c->at].iov_base + c->offset;
    size_t left = c->parts[c->at].iov_len - c->offset;
    if (left >= RECORD || c->at + 1 == c->count) {
        size_t bytes = left < RECORD ? left : RECORD;
        c->offset += bytes;
        *out_bytes = bytes;
        return from;
    }
    size_t total = 0;
    while (total < RECORD && c->at < c->count) {
        size_t room = RECORD - total;
        left = c->parts[c->at].iov_len - c->offset;
        if (left > room) left = room;
        memcpy(gathered + total, (const uint8_t *)c->parts[c->at].iov_base + c->offset, left);
        total += left;
        c->offset += left;
        if (c->offset < c->parts[c->at].iov_len) break;
        c->at++;
        c->offset = 0;
    }
    *out_bytes = total;
    return gathered;
}

/* Whether the buffer has room for a record, perhaps after a flush. -1 with errno. */
static int has_room(tdm__tls *tls, int fd)
{
    buffer *out = &tls->out;
    if (out->capacity - out->first - out->count >= RECORD_ROOM) return 1;
    if (!flush(tls, fd)) return -1;
    if (out->first > 0 && out->count > 0) {
        memmove(out->bytes, out->bytes + out->first, out->count);
        out->first = 0;
    }
    return out->capacity - out->count >= RECORD_ROOM;
}

/* Changes the key for what this side sends, when it is time; the next write tells the peer. */
static bool rekey(tdm__tls *tls)
{
    if (++tls->records <= tls->rekey_records) return true;
    tls->records = 1;
    tls->rekeys++;
    return SSL_key_update(tls->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) == 1;
}

ssize_t tdm__tls_send(tdm__tls *tls, int fd, const struct iovec *parts, int count)
{
    int ready = tdm__tls_advance(tls, fd);
    if (ready <= 0) {
        if (ready == 0) errno = EAGAIN;
        return -1;
    }
    cursor c = {.parts = parts, .count = count};
    ssize_t total = 0;
    ERR_clear_error();
    for (;;) {
        while (c.at < count && c.offset == parts[c.at].iov_len) {
            c.at++;
            c.offset = 0;
        }
        if (c.at == count) break;
        int room = has_room(tls, fd);
        if (room < 0) return -1;
        if (room == 0) break;
        size_t bytes = 0, written = 0;
        const uint8_t *from = next_record(&c, tls->record, &bytes);
        if (!rekey(tls) || SSL_write_ex(tls->ssl, from, bytes, &written) != 1)
            return breaks(tls, fd);
        total += (ssize_t)bytes;
    }
    if (!flush(tls, fd)) return -1;
    if (total > 0) return total;
    errno = EAGAIN;
    return -1;
}

/* ---- certificates ---------------------------------------------------------------------------------------- */

bool tdm__tls_is_named(const tdm__tls *tls, const char *name)
{
    if (!tls->has_certificates) return true;
    X509 *certificate = SSL_get1_peer_certificate(tls->ssl);
    bool fits = certificate && *name &&
                (X509_check_ip_asc(certificate, name, 0) == 1 ||
                 X509_check_host(certificate, name, 0, 0, NULL) == 1);
    X509_free(certificate);
    ERR_clear_error();
    return fits;
}

void tdm__tls_subject(const tdm__tls *tls, char *out, size_t bytes)
{
    X509 *certificate = SSL_get1_peer_certificate(tls->ssl);
    subject_of(certificate, out, bytes);
    X509_free(certificate);
}
