/*
 * tls_test.c: TLS over a connected pair of sockets, and who is believed.
 *
 * The peer in the middle is OpenSSL used directly: a server that has a certificate of its own and does not
 * know the key. What is sent has to come whole and in order.
 */
#include "check.h"

#include "comm/tls.h"

#include <errno.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <tandem/base.h>
#include <unistd.h>

static const uint8_t key[TDM__TLS_KEY] = "a key of thirty-two bytes";

typedef struct ends {
    int fd[2];
    tdm__tls_context *context;
    tdm__tls *tls[2]; /* the client, the server */
} ends;

static void open_end(ends *e, int which, const uint8_t *shared)
{
    tdm__tls_options options = {
        .context = e->context, .is_server = which == 1, .key = shared, .buffer_bytes = 64 << 10};
    CHECK(tdm__tls_create(&options, &e->tls[which], NULL) == TDM_OK);
}

static ends begin(void)
{
    ends e = {.fd = {-1, -1}};
    tdm_comm_security security = {.mode = TDM_SECURITY_PSK};
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, e.fd) == 0);
    CHECK(tdm__tls_context_create(&security, &e.context, NULL) == TDM_OK);
    return e;
}

static void end(ends *e)
{
    for (int i = 0; i < 2; i++) {
        tdm__tls_destroy(e->tls[i]);
        if (e->fd[i] >= 0) close(e->fd[i]);
    }
    tdm__tls_context_destroy(e->context);
}

/* Both handshakes, as far as they go: 1 when both are ready, -1 when one has failed. */
static int shake(ends *e)
{
    for (int i = 0; i < 1000; i++) {
        int client = tdm__tls_advance(e->tls[0], e->fd[0]);
        int server = tdm__tls_advance(e->tls[1], e->fd[1]);
        if (client < 0 || server < 0) return -1;
        if (client > 0 && server > 0) return 1;
    }
    return 0;
}

static void fill(uint8_t *data, size_t bytes, uint32_t from)
{
    for (size_t i = 0; i < bytes; i++) data[i] = (uint8_t)((from + i) * 2654435761u >> 24);
}

/* Moves bytes from one end to the other; whether they came as they were. */
static bool move(ends *e, int from, size_t bytes)
{
    uint8_t *out = malloc(bytes), *in = calloc(1, bytes);
    size_t gone = 0, got = 0;
    bool ok = out && in;
    if (ok) fill(out, bytes, (uint32_t)from);
    while (ok && got < bytes) {
        struct iovec rest = {out + gone, bytes - gone}, room = {in + got, bytes - got};
        ssize_t some = gone < bytes ? tdm__tls_send(e->tls[from], e->fd[from], &rest, 1)
                                    : tdm__tls_advance(e->tls[from], e->fd[from]);
        if (some < 0 && errno != EAGAIN) ok = false;
        if (gone < bytes && some > 0) gone += (size_t)some;
        some = tdm__tls_recv(e->tls[!from], e->fd[!from], &room, 1);
        if (some == 0 || (some < 0 && errno != EAGAIN)) ok = false;
        if (some > 0) got += (size_t)some;
    }
    ok = ok && memcmp(out, in, bytes) == 0;
    free(out);
    free(in);
    return ok;
}

static void test_same_key(void)
{
    ends e = begin();
    open_end(&e, 0, key);
    open_end(&e, 1, key);
    CHECK_INT(shake(&e), 1);
    CHECK(move(&e, 0, 3 << 20) && move(&e, 1, 1 << 20) && move(&e, 0, 1));
    end(&e);
}

static void test_another_key(void)
{
    uint8_t other[TDM__TLS_KEY] = "another";
    ends e = begin();
    open_end(&e, 0, key);
    open_end(&e, 1, other);
    CHECK_INT(shake(&e), -1);
    end(&e);
}

static SSL_CTX *stranger_context(void)
{
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    EVP_PKEY *pair = EVP_EC_gen("P-256");
    X509 *certificate = X509_new();
    CHECK(context && pair && certificate);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -60);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, pair);
    X509_NAME *name = X509_get_subject_name(certificate);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"x", -1, -1, 0);
    X509_set_issuer_name(certificate, name);
    CHECK(X509_sign(certificate, pair, EVP_sha256()) > 0);
    CHECK(SSL_CTX_use_certificate(context, certificate) == 1);
    CHECK(SSL_CTX_use_PrivateKey(context, pair) == 1);
    X509_free(certificate);
    EVP_PKEY_free(pair);
    return context;
}

/* A server that does not know the key may answer with a certificate instead, and TLS lets it: the client
 * must not go on, and nothing that it sends may be read there. */
static void test_certificate_in_place_of_the_key(void)
{
    ends e = begin();
    open_end(&e, 0, key);
    SSL_CTX *context = stranger_context();
    SSL *ssl = SSL_new(context);
    CHECK(SSL_set_fd(ssl, e.fd[1]) == 1);
    SSL_set_accept_state(ssl);
    char secret[] = "for ranks alone", read[sizeof secret] = "";
    int failed = 0;
    for (int i = 0; i < 100; i++) {
        struct iovec part = {secret, sizeof secret};
        if (tdm__tls_send(e.tls[0], e.fd[0], &part, 1) < 0 && errno != EAGAIN) failed = errno;
        if (SSL_do_handshake(ssl) == 1) (void)SSL_read(ssl, read, sizeof read);
    }
    CHECK_INT(failed, EPROTO);
    CHECK(read[0] == '\0');
    SSL_free(ssl);
    SSL_CTX_free(context);
    end(&e);
}

static const check_test tests[] = {
    CHECK_TEST(test_same_key),
    CHECK_TEST(test_another_key),
    CHECK_TEST(test_certificate_in_place_of_the_key),
};

CHECK_MAIN(tests)
