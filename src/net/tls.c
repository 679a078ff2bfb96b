/*
 * tls.c: TLS 1.3. See the header.
 *
 * OpenSSL runs the handshake: it reads from the socket, and writes to memory (a custom BIO), from which
 * many records are sent with one call. Then its traffic secrets are taken from the key log, and
 * tls_record.c encrypts and decrypts the records of the connection. OpenSSL reads no byte beyond the
 * handshake, because it does not read ahead, and sends no record after it, because session tickets are
 * off: both record counters start at 0.
 */
#include "net/tls.h"
#include "base/base.h"
#include "net/tls_record.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* Space in the output buffer for a record and a key update before it. */
enum { RECORD_ROOM = TDM__TLS_RECORD_CONTENT + 512 };

#define CIPHERS "TLS_AES_128_GCM_SHA256"
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
    bool has_certificates, is_server;
    bool is_refused; /* because of a certificate */
    int fd;          /* during a call */
    int error;       /* errno of a read that failed; 0: none has */
    bool ended;      /* the socket's end was seen */
    bool is_open;    /* the handshake is over, and both directions have keys */
    bool closed;     /* the peer has sent its last record */
    bool broken;     /* by an error of TLS: the connection is unusable */
    uint8_t key[TDM__TLS_KEY];
    uint8_t secrets[2]
                   [TDM__TLS_SECRET]; /* of the client's and the server's records, until is_open */
    bool has_secret[2];
    tdm__tls_keys send, receive;
    uint64_t rekey_records, records; /* limit per key, and number sent with the current key */
    uint64_t rekeys;
    bool must_rekey; /* the peer has requested it */
    buffer out, in;
    uint8_t plain
        [TDM__TLS_RECORD_MAX]; /* content of a record that did not fit into the caller's buffers */
    size_t plain_first, plain_count;
    char subject[160]; /* of a refused certificate */
    char why[320];
};

/* ---- errors ------------------------------------------------------------------------------------- */

/* The text of an OpenSSL error. */
static const char *error_text(unsigned long code)
{
    const char *text = code ? ERR_reason_error_string(code) : NULL;
    if (!text && code && ERR_SYSTEM_ERROR(code)) text = strerror(ERR_GET_REASON(code));
    return text ? text : "no reason given";
}

/* The oldest error of OpenSSL's queue; clears the queue. */
static const char *ssl_error(void)
{
    unsigned long code = ERR_get_error();
    ERR_clear_error();
    return error_text(code);
}

static tdm_status file_invalid(tdm_error *err, const char *what, const char *path, const char *key)
{
    return tdm_fail(err, TDM_ERR_INVALID,
                    "cannot use %s %s: %s; %s must name a PEM file that this user can read", what,
                    path ? path : "(none)", ssl_error(), key);
}

/* ---- BIOs for OpenSSL --------------------------------------------------------------- */

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

/* ---- the pre-shared key ---------------------------------------------------------------------------- */

/* A session with the pre-shared key, as TLS 1.3 requires it; NULL if out of memory. */
static SSL_SESSION *ssl_psk_session(SSL *ssl)
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

static int ssl_offer_psk(SSL *ssl, const EVP_MD *digest, const unsigned char **id, size_t *id_bytes,
                         SSL_SESSION **out)
{
    SSL_SESSION *session = ssl_psk_session(ssl);
    if (!session) return 0;
    if (digest && digest != SSL_CIPHER_get_handshake_digest(SSL_SESSION_get0_cipher(session))) {
        SSL_SESSION_free(
            session); /* the server requires another hash, for which this key is not valid */
        session = NULL;
    }
    *id = (const unsigned char *)IDENTITY;
    *id_bytes = sizeof(IDENTITY) - 1;
    *out = session;
    return 1;
}

static int ssl_find_psk(SSL *ssl, const unsigned char *id, size_t id_bytes, SSL_SESSION **out)
{
    *out = NULL;
    if (id_bytes != sizeof(IDENTITY) - 1 || memcmp(id, IDENTITY, id_bytes) != 0) return 1;
    *out = ssl_psk_session(ssl);
    return *out != NULL;
}

/* ---- the keys of the records ----------------------------------------------------------------------- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Callback for lines of the key log: "LABEL RANDOM SECRET". */
static void ssl_on_secret(const SSL *ssl, const char *line)
{
    static const char *const labels[] = {"CLIENT_TRAFFIC_SECRET_0 ", "SERVER_TRAFFIC_SECRET_0 "};
    tdm__tls *tls = SSL_get_app_data(ssl);
    for (int i = 0; i < 2; i++) {
        if (strncmp(line, labels[i], strlen(labels[i])) != 0) continue;
        const char *hex = strrchr(line, ' ') + 1;
        if (strlen(hex) != 2 * TDM__TLS_SECRET) return;
        for (int k = 0; k < TDM__TLS_SECRET; k++) {
            int high = hex_digit(hex[2 * k]), low = hex_digit(hex[2 * k + 1]);
            if (high < 0 || low < 0) return;
            tls->secrets[i][k] = (uint8_t)(high << 4 | low);
        }
        tls->has_secret[i] = true;
    }
}

/* The handshake is complete: from now on tls_record.c handles the records. */
static bool tls_take_over_records(tdm__tls *tls)
{
    bool ok = tls->has_secret[0] && tls->has_secret[1] &&
              tdm__tls_keys_init(&tls->send, true, tls->secrets[tls->is_server]) &&
              tdm__tls_keys_init(&tls->receive, false, tls->secrets[!tls->is_server]);
    OPENSSL_cleanse(tls->secrets, sizeof(tls->secrets));
    tls->is_open = ok;
    return ok;
}

/* ---- contexts ---------------------------------------------------------------------------------------- */

static void certificate_subject(const X509 *certificate, char *out, size_t bytes)
{
    snprintf(out, bytes, "no certificate");
    if (certificate) X509_NAME_oneline(X509_get_subject_name(certificate), out, (int)bytes);
}

/* Callback for each certificate of a chain: stores the subject of an invalid peer certificate. */
static int certificate_on_verify(int is_valid, X509_STORE_CTX *chain)
{
    SSL *ssl = X509_STORE_CTX_get_ex_data(chain, SSL_get_ex_data_X509_STORE_CTX_idx());
    tdm__tls *tls = ssl ? SSL_get_app_data(ssl) : NULL;
    if (!is_valid && tls)
        certificate_subject(X509_STORE_CTX_get0_cert(chain), tls->subject, sizeof(tls->subject));
    return is_valid;
}

static tdm_status context_load_certificates(SSL_CTX *ssl, const tdm_comm_security *security,
                                            tdm_error *err)
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
        return file_invalid(err, "the certificate", security->certificate, "comm.tls_certificate");
    if (SSL_CTX_use_PrivateKey_file(ssl, security->private_key, SSL_FILETYPE_PEM) != 1)
        return file_invalid(err, "the private key", security->private_key, "comm.tls_key");
    if (SSL_CTX_check_private_key(ssl) != 1)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "the private key %s does not belong to the certificate %s",
                        security->private_key, security->certificate);
    if (SSL_CTX_load_verify_file(ssl, security->authority) != 1)
        return file_invalid(err, "the authority's certificate", security->authority,
                            "comm.tls_authority");
    SSL_CTX_set_verify(ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
                       certificate_on_verify);
    return TDM_OK;
}

static tdm_status context_init(tdm__tls_context *c, const tdm_comm_security *security,
                               tdm_error *err)
{
    c->ssl = SSL_CTX_new(TLS_method());
    c->method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "tandem");
    if (!c->ssl || !c->method || !BIO_meth_set_read_ex(c->method, socket_read) ||
        !BIO_meth_set_write_ex(c->method, memory_write) ||
        !BIO_meth_set_ctrl(c->method, memory_control) ||
        SSL_CTX_set_min_proto_version(c->ssl, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(c->ssl, CIPHERS) != 1)
        return tdm_fail(err, TDM_ERR_SYSTEM, "cannot initialise OpenSSL: %s", ssl_error());
    SSL_CTX_set_session_cache_mode(c->ssl, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_num_tickets(c->ssl, 0);
    SSL_CTX_set_read_ahead(c->ssl, 0);
    SSL_CTX_set_keylog_callback(c->ssl, ssl_on_secret);
    c->has_certificates = security->mode == TDM_SECURITY_TLS;
    if (c->has_certificates) return context_load_certificates(c->ssl, security, err);
    SSL_CTX_set_psk_use_session_callback(c->ssl, ssl_offer_psk);
    SSL_CTX_set_psk_find_session_callback(c->ssl, ssl_find_psk);
    return TDM_OK;
}

tdm_status tdm__tls_context_create(const tdm_comm_security *security, tdm__tls_context **out,
                                   tdm_error *err)
{
    tdm__tls_context *c = calloc(1, sizeof(*c));
    if (!c) return tdm_fail_oom(err, "for TLS");
    ERR_clear_error();
    tdm_status status = context_init(c, security, err);
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

void tdm__tls_library(char library[TDM_LIBRARY_BYTES])
{
    const char *records = tdm__aead_library();
    bool is_same = strcmp(records, "OpenSSL") == 0;
    snprintf(library, TDM_LIBRARY_BYTES, "OpenSSL %s%s%s", OpenSSL_version(OPENSSL_VERSION_STRING),
             is_same ? "" : ", ", is_same ? "" : records);
}

/* ---- connections --------------------------------------------------------------------------------------- */

static bool tls_init(tdm__tls *tls, const tdm__tls_options *options)
{
    BIO *bio = BIO_new(options->context->method);
    tls->ssl = SSL_new(options->context->ssl);
    tls->out.bytes = malloc(options->buffer_bytes);
    tls->in.bytes = malloc(options->buffer_bytes);
    if (!bio || !tls->ssl || !tls->out.bytes || !tls->in.bytes) {
        BIO_free(bio);
        return false;
    }
    tls->out.capacity = tls->in.capacity = options->buffer_bytes;
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
    tdm__tls *tls = calloc(1, sizeof(*tls));
    if (tls) {
        tls->has_certificates = options->context->has_certificates;
        tls->is_server = options->is_server;
        memcpy(tls->key, options->key, sizeof(tls->key));
        tls->rekey_records = options->rekey_records ? options->rekey_records
                                                    : TDM__TLS_REKEY_RECORDS;
    }
    if (!tls || !tls_init(tls, options)) {
        tdm__tls_destroy(tls);
        return tdm_fail_oom(err, "for a TLS connection");
    }
    *out = tls;
    return TDM_OK;
}

void tdm__tls_destroy(tdm__tls *tls)
{
    if (!tls) return;
    SSL_free(tls->ssl);
    tdm__tls_keys_release(&tls->send);
    tdm__tls_keys_release(&tls->receive);
    free(tls->out.bytes);
    free(tls->in.bytes);
    OPENSSL_cleanse(tls, sizeof(*tls));
    free(tls);
}

bool tdm__tls_is_ready(const tdm__tls *tls)
{
    return tls->is_open;
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

bool tdm__tls_is_refused(const tdm__tls *tls)
{
    return tls->is_refused;
}

/* ---- bytes ----------------------------------------------------------------------------------------------- */

/* Sends buffered output. False, with errno, if the socket fails; a full socket is not a failure. */
static bool tls_flush(tdm__tls *tls, int fd)
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

/* Whether the peer refused the certificate of this side. */
static bool error_is_refusal(unsigned long code)
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

/* Stores why OpenSSL ended the handshake, and sends its alert. Returns -1 with errno. */
static int tls_break_handshake(tdm__tls *tls, int fd)
{
    if (tls->error) { /* an error of the socket, not of TLS */
        ERR_clear_error();
        errno = tls->error;
        return -1;
    }
    long verdict = SSL_get_verify_result(tls->ssl);
    unsigned long code = ERR_get_error();
    bool is_refused = tls->has_certificates && error_is_refusal(code);
    if (is_refused)
        certificate_subject(SSL_get_certificate(tls->ssl), tls->subject, sizeof(tls->subject));
    if (tls->has_certificates && verdict != X509_V_OK)
        snprintf(tls->why, sizeof(tls->why), "the peer's certificate (%s) is not valid: %s",
                 *tls->subject ? tls->subject : "none", X509_verify_cert_error_string(verdict));
    else if (is_refused)
        snprintf(tls->why, sizeof(tls->why), "the peer refuses this side's certificate (%s): %s",
                 tls->subject, error_text(code));
    else
        snprintf(tls->why, sizeof(tls->why), "TLS failed: %s", error_text(code));
    ERR_clear_error();
    tls->broken = true;
    tls->is_refused = is_refused || (tls->has_certificates && verdict != X509_V_OK);
    (void)tls_flush(tls, fd);
    errno = EPROTO;
    return -1;
}

/* TLS allows a server to answer with a certificate although a key was offered, and this side cannot
 * verify a certificate: a handshake that did not use the key is rejected. */
static bool tls_used_psk(const tdm__tls *tls)
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
    if (!tls->is_open) {
        ERR_clear_error();
        int done = SSL_do_handshake(tls->ssl);
        int error = done == 1 ? SSL_ERROR_NONE : SSL_get_error(tls->ssl, done);
        if (done != 1 && tls->ended) {
            snprintf(tls->why, sizeof(tls->why), "the peer ended the handshake");
            errno = ECONNRESET;
            return -1;
        }
        if (done != 1 && error != SSL_ERROR_WANT_READ) return tls_break_handshake(tls, fd);
        if (done == 1 && !tls_used_psk(tls)) {
            tls->out.count = tls->out.first = 0; /* do not complete the handshake */
            snprintf(tls->why, sizeof(tls->why), "the peer did not use the key of this world");
            tls->broken = true;
            errno = EPROTO;
            return -1;
        }
        if (done == 1 && !tls_take_over_records(tls)) {
            snprintf(tls->why, sizeof(tls->why),
                     "TLS failed: out of memory for the keys of a connection");
            tls->broken = true;
            errno = ENOMEM;
            return -1;
        }
        if (!tls_flush(tls, fd)) return -1;
        if (done != 1) return 0;
    }
    return tls_flush(tls, fd) ? 1 : -1;
}

/* ---- records ---------------------------------------------------------------------------------------------- */

enum { ALERT_CLOSE = 0, ALERT_UNEXPECTED = 10, ALERT_BAD_RECORD = 20, ALERT_FATAL = 2 };
enum { MESSAGE_KEY_UPDATE = 24, MESSAGE_BYTES = 5 };

/* Encrypts a short TLS message and appends it to the output buffer. */
static bool tls_put_message(tdm__tls *tls, tdm__tls_content type, const uint8_t *message,
                            size_t bytes)
{
    struct iovec part = {(uint8_t *)message, bytes};
    tdm__tls_cursor from = {.parts = &part, .count = 1};
    buffer *out = &tls->out;
    size_t end = out->first + out->count;
    if (out->capacity - end < bytes + TDM__TLS_RECORD_OVERHEAD ||
        !tdm__tls_record_seal(&tls->send, type, &from, bytes, out->bytes + end))
        return false;
    out->count += bytes + TDM__TLS_RECORD_OVERHEAD;
    return true;
}

/* Makes the connection unusable: stores the reason and sends an alert. Returns -1 with errno. */
static int tls_break(tdm__tls *tls, int fd, int alert, const char *why)
{
    const uint8_t message[] = {ALERT_FATAL, (uint8_t)alert};
    snprintf(tls->why, sizeof(tls->why), "TLS failed: %s", why);
    tls->broken = true;
    if (tls_put_message(tls, TDM__TLS_ALERT, message, sizeof(message))) (void)tls_flush(tls, fd);
    errno = EPROTO;
    return -1;
}

/* Whether an alert refuses the certificate of this side: 42 to 48 (except 47, illegal_parameter), and
 * 116, certificate_required. */
static bool alert_is_refusal(int alert)
{
    return (alert >= 42 && alert <= 48 && alert != 47) || alert == 116;
}

/* Handles an alert, which ends the connection. 0: closed in order; -1 with errno: an error. */
static int tls_on_alert(tdm__tls *tls, const uint8_t *message, size_t bytes)
{
    int alert = bytes == 2 ? message[1] : ALERT_UNEXPECTED;
    const char *text = SSL_alert_desc_string_long(alert);
    if (alert == ALERT_CLOSE) {
        tls->closed = true;
        return 0;
    }
    tls->broken = true;
    tls->is_refused = tls->has_certificates && alert_is_refusal(alert);
    if (tls->is_refused) {
        certificate_subject(SSL_get_certificate(tls->ssl), tls->subject, sizeof(tls->subject));
        snprintf(tls->why, sizeof(tls->why), "the peer refuses this side's certificate (%s): %s",
                 tls->subject, text);
    } else {
        snprintf(tls->why, sizeof(tls->why), "TLS failed: the peer sent the alert '%s'", text);
    }
    errno = EPROTO;
    return -1;
}

/* Handles a record with a TLS message. 0, or -1 with errno. */
static int tls_on_message(tdm__tls *tls, int fd, tdm__tls_content type, tdm__tls_cursor from,
                          size_t bytes)
{
    uint8_t message[MESSAGE_BYTES];
    if (bytes > sizeof(message))
        return tls_break(tls, fd, ALERT_UNEXPECTED, "received an unexpected message");
    for (size_t i = 0; i < bytes; i++) {
        while (from.offset == from.parts[from.index].iov_len) {
            from.index++;
            from.offset = 0;
        }
        message[i] = ((const uint8_t *)from.parts[from.index].iov_base)[from.offset++];
    }
    if (type == TDM__TLS_ALERT) return tls_on_alert(tls, message, bytes);
    static const uint8_t key_update[] = {MESSAGE_KEY_UPDATE, 0, 0, 1};
    if (type != TDM__TLS_HANDSHAKE || bytes != MESSAGE_BYTES ||
        memcmp(message, key_update, sizeof(key_update)) != 0 || message[4] > 1)
        return tls_break(tls, fd, ALERT_UNEXPECTED, "received an unexpected message");
    if (message[4] == 1) tls->must_rekey = true;
    if (tdm__tls_keys_update(&tls->receive)) return 0;
    return tls_break(tls, fd, ALERT_UNEXPECTED, "cannot derive a key");
}

/* Reads more into the buffer. False: nothing was read; see `ended` and `error`. */
static bool tls_fill_input(tdm__tls *tls, int fd)
{
    buffer *in = &tls->in;
    if (tls->ended || tls->error) return false;
    if (in->first > 0) memmove(in->bytes, in->bytes + in->first, in->count);
    in->first = 0;
    ssize_t got;
    do got = recv(fd, in->bytes + in->count, in->capacity - in->count, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got > 0) in->count += (size_t)got;
    if (got == 0) tls->ended = true;
    if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK) tls->error = errno;
    return got > 0;
}

/* Copies content left from an earlier record. Returns the number of bytes. */
static size_t tls_take_plain(tdm__tls *tls, tdm__tls_cursor *into)
{
    size_t total = 0;
    while (tls->plain_count > 0 && into->index < into->count) {
        const struct iovec *part = &into->parts[into->index];
        size_t bytes = part->iov_len - into->offset;
        if (bytes > tls->plain_count) bytes = tls->plain_count;
        if (bytes > 0)
            memcpy((uint8_t *)part->iov_base + into->offset, tls->plain + tls->plain_first, bytes);
        tls->plain_first += bytes;
        tls->plain_count -= bytes;
        total += bytes;
        into->offset += bytes;
        if (into->offset < part->iov_len) break;
        into->index++;
        into->offset = 0;
    }
    return total;
}

/* Decrypts the first record of the buffer: into the caller's pieces if it fits, otherwise into `plain`.
 * Returns the bytes stored in the pieces; -1 with errno. */
static ssize_t tls_take_record(tdm__tls *tls, int fd, size_t record_bytes, size_t content_bytes,
                               tdm__tls_cursor *into)
{
    struct iovec aside = {tls->plain, sizeof(tls->plain)};
    bool fits = content_bytes <= tdm__tls_cursor_left(into);
    tdm__tls_cursor at = fits ? *into : (tdm__tls_cursor){.parts = &aside, .count = 1};
    const tdm__tls_cursor before = at;
    tdm__tls_content type = TDM__TLS_DATA;
    size_t bytes = 0;
    tdm__tls_opened opened = tdm__tls_record_open(&tls->receive, tls->in.bytes + tls->in.first,
                                                  record_bytes, &at, &type, &bytes);
    if (opened != TDM__TLS_RECORD_OPENED)
        return tls_break(tls, fd, ALERT_BAD_RECORD,
                         "a record was not encrypted by the peer, or is damaged");
    tls->in.first += record_bytes;
    tls->in.count -= record_bytes;
    if (type != TDM__TLS_DATA) return tls_on_message(tls, fd, type, before, bytes);
    if (fits) {
        *into = at;
        return (ssize_t)bytes;
    }
    tls->plain_first = 0;
    tls->plain_count = bytes;
    return (ssize_t)tls_take_plain(tls, into);
}

/* The return value of a read that can get no more bytes. */
static ssize_t tls_read_result(tdm__tls *tls, size_t total)
{
    if (total > 0) return (ssize_t)total;
    if (tls->broken) {
        errno = EPROTO;
        return -1;
    }
    if (tls->closed || tls->ended) return 0;
    errno = tls->error ? tls->error : EAGAIN;
    return -1;
}

ssize_t tdm__tls_recv(tdm__tls *tls, int fd, const struct iovec *parts, int count)
{
    int ready = tdm__tls_advance(tls, fd);
    if (ready <= 0) {
        if (ready == 0) errno = EAGAIN;
        return -1;
    }
    tdm__tls_cursor into = {.parts = parts, .count = count};
    size_t total = tls_take_plain(tls, &into);
    while (!tls->closed && tdm__tls_cursor_left(&into) > 0) {
        size_t record_bytes = 0, content_bytes = 0;
        tdm__tls_opened whole = tdm__tls_record_measure(
            tls->in.bytes + tls->in.first, tls->in.count, &record_bytes, &content_bytes);
        if (whole == TDM__TLS_RECORD_PARTIAL) {
            if (tls_fill_input(tls, fd)) continue;
            break;
        }
        if (whole == TDM__TLS_RECORD_INVALID) {
            (void)tls_break(tls, fd, ALERT_UNEXPECTED,
                            "received data that is not a TLS 1.3 record");
            return -1;
        }
        ssize_t got = tls_take_record(tls, fd, record_bytes, content_bytes, &into);
        if (got < 0) return -1;
        total += (size_t)got;
    }
    return tls_read_result(tls, total);
}

/* Whether the buffer has space for a record, if necessary after a flush. -1 with errno. */
static int tls_has_space(tdm__tls *tls, int fd)
{
    buffer *out = &tls->out;
    if (out->capacity - out->first - out->count >= RECORD_ROOM) return 1;
    return tls_flush(tls, fd) ? out->count == 0 : -1;
}

/* Changes the key of this side's output when it is due, and notifies the peer. */
static bool tls_rekey(tdm__tls *tls)
{
    static const uint8_t message[MESSAGE_BYTES] = {MESSAGE_KEY_UPDATE, 0, 0, 1, 0};
    if (++tls->records <= tls->rekey_records && !tls->must_rekey) return true;
    tls->must_rekey = false;
    tls->records = 1;
    tls->rekeys++;
    return tls_put_message(tls, TDM__TLS_HANDSHAKE, message, sizeof(message)) &&
           tdm__tls_keys_update(&tls->send);
}

ssize_t tdm__tls_send(tdm__tls *tls, int fd, const struct iovec *parts, int count)
{
    int ready = tdm__tls_advance(tls, fd);
    if (ready <= 0) {
        if (ready == 0) errno = EAGAIN;
        return -1;
    }
    tdm__tls_cursor from = {.parts = parts, .count = count};
    buffer *out = &tls->out;
    size_t left = tdm__tls_cursor_left(&from), total = 0;
    while (left > 0) {
        int room = tls_has_space(tls, fd);
        if (room < 0) return -1;
        if (room == 0) break;
        size_t bytes = left < TDM__TLS_RECORD_CONTENT ? left : TDM__TLS_RECORD_CONTENT;
        if (!tls_rekey(tls) || !tdm__tls_record_seal(&tls->send, TDM__TLS_DATA, &from, bytes,
                                                     out->bytes + out->first + out->count))
            return tls_break(tls, fd, ALERT_UNEXPECTED, "cannot encrypt a record");
        out->count += bytes + TDM__TLS_RECORD_OVERHEAD;
        left -= bytes;
        total += bytes;
    }
    if (!tls_flush(tls, fd)) return -1;
    if (total > 0) return (ssize_t)total;
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
    certificate_subject(certificate, out, bytes);
    X509_free(certificate);
}
