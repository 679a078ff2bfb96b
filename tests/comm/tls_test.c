/*
 * tls_test.c: TLS over a connected pair of sockets, and the authentication of peers; worlds under each
 * comm.security. A man in the middle is OpenSSL used directly: a server that has another certificate and does
 * not know the key. All data must arrive completely and in order.
 */
#include "comm/control_world.h"
#include "net/aead.h"

#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

static const uint8_t key[TDM__TLS_KEY] = "a key of thirty-two bytes";

typedef struct ends {
    int fd[2];
    tdm__tls_context *context;
    tdm__tls *tls[2]; /* the client, the server */
} ends;

static void open_end(ends *e, int which, const uint8_t *known, uint64_t rekey_records)
{
    tdm__tls_options options = {.context = e->context,
                                .is_server = which == 1,
                                .key = known,
                                .buffer_bytes = 64 << 10,
                                .rekey_records = rekey_records};
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

/* Advances both handshakes: 1 if both are complete, -1 if one has failed. */
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

/* Transfers bytes from one end to the other; returns whether they arrived unchanged. */
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
    open_end(&e, 0, key, 0);
    open_end(&e, 1, key, 0);
    CHECK_INT(shake(&e), 1);
    CHECK(move(&e, 0, 3 << 20) && move(&e, 1, 1 << 20) && move(&e, 0, 1));
    end(&e);
}

static void test_another_key(void)
{
    uint8_t other[TDM__TLS_KEY] = "another";
    ends e = begin();
    open_end(&e, 0, key, 0);
    open_end(&e, 1, other, 0);
    CHECK_INT(shake(&e), -1);
    end(&e);
}

/* A self-signed certificate for this subject alternative name. */
static X509 *certificate_of(EVP_PKEY *pair, const char *names)
{
    X509 *made = X509_new();
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name, names);
    CHECK(made && extension);
    X509_set_version(made, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(made), 1);
    X509_gmtime_adj(X509_getm_notBefore(made), -3600);
    X509_gmtime_adj(X509_getm_notAfter(made), 3600);
    X509_set_pubkey(made, pair);
    X509_NAME *name = X509_get_subject_name(made);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"x", -1, -1, 0);
    X509_set_issuer_name(made, name);
    X509_add_ext(made, extension, -1);
    CHECK(X509_sign(made, pair, EVP_sha256()) > 0);
    X509_EXTENSION_free(extension);
    return made;
}

static SSL_CTX *stranger_context(void)
{
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    EVP_PKEY *pair = EVP_EC_gen("P-256");
    X509 *certificate = certificate_of(pair, "DNS:stranger");
    CHECK(SSL_CTX_use_certificate(context, certificate) == 1);
    CHECK(SSL_CTX_use_PrivateKey(context, pair) == 1);
    X509_free(certificate);
    EVP_PKEY_free(pair);
    return context;
}

/* A server that does not know the key may answer with a certificate instead, which TLS allows: the client
 * must not continue, and must not return any data from it. */
static void test_certificate_in_place_of_the_key(void)
{
    ends e = begin();
    open_end(&e, 0, key, 0);
    SSL_CTX *context = stranger_context();
    SSL *ssl = SSL_new(context);
    CHECK(SSL_set_fd(ssl, e.fd[1]) == 1);
    SSL_set_accept_state(ssl);
    char secret[] = "for ranks alone", read[sizeof(secret)] = "";
    int failed = 0;
    for (int i = 0; i < 100; i++) {
        struct iovec part = {secret, sizeof(secret)};
        if (tdm__tls_send(e.tls[0], e.fd[0], &part, 1) < 0 && errno != EAGAIN) failed = errno;
        if (SSL_do_handshake(ssl) == 1) (void)SSL_read(ssl, read, sizeof(read));
    }
    CHECK_INT(failed, EPROTO);
    CHECK(read[0] == '\0');
    SSL_free(ssl);
    SSL_CTX_free(context);
    end(&e);
}

/* The keys change many times in each direction. */
static void test_keys_change(void)
{
    ends e = begin();
    open_end(&e, 0, key, 3);
    open_end(&e, 1, key, 5);
    CHECK_INT(shake(&e), 1);
    for (int i = 0; i < 20; i++) CHECK(move(&e, i % 2, 300000) && move(&e, 0, 7));
    CHECK(tdm__tls_rekeys(e.tls[0]) > 50 && tdm__tls_rekeys(e.tls[1]) > 20);
    end(&e);
}

/* Unencrypted bytes between the opening of a control connection and its encryption must not be taken for the
 * first encrypted messages. */
static void test_nothing_precedes_encryption(void)
{
    for (int injected = 0; injected < 2; injected++) {
        ends e = begin();
        tdm__facts facts = {.security = TDM_SECURITY_PSK, .tls = e.context};
        tdm__frame prove = {.type = TDM__FRAME_PROVE, .protection = TDM__ENCRYPTED_PSK};
        tdm__frame said = {.type = TDM__FRAME_REFUSED}, heard;
        tdm__channel here, there;
        tdm__channel_init(&here, e.fd[0], TDM__MAX_WIRE_JOIN);
        tdm__channel_init(&there, e.fd[1], TDM__MAX_WIRE_JOIN);
        for (int i = 0; i <= injected; i++) CHECK(tdm__channel_put_frame(&there, &said));
        CHECK_INT(tdm__channel_flush(&there), TDM__CHANNEL_OK);
        CHECK_INT(tdm__channel_read(&here), TDM__CHANNEL_OK);
        CHECK_INT(tdm__channel_next(&here, &heard), 1); /* the last frame of the opening */
        tdm_error err = {0};
        tdm_status status = tdm__channel_secure(&here, &facts, "secret", &prove, prove.nonce, false,
                                                &err);
        CHECK_INT(status, injected ? TDM_ERR_PEER_REFUSED : TDM_OK);
        tdm__channel_release(&here);
        tdm__channel_release(&there);
        e.fd[0] = e.fd[1] = -1;
        end(&e);
    }
}

/* ---- records ------------------------------------------------------------------------------------ */

/* Both libraries compute the same bytes for any division of the message into pieces. */
static void test_libraries_agree(void)
{
    static const uint8_t aead_key[TDM__AEAD_KEY] = "sixteen bytes..", nonce[TDM__AEAD_NONCE] = {7};
    uint8_t plain[5000], sealed[2][5000], opened[5000], tag[2][TDM__AEAD_TAG];
    fill(plain, sizeof(plain), 1);
    for (int forced = 0; forced < 2; forced++) {
        tdm__aead *seal = tdm__aead_create(true, forced), *open = tdm__aead_create(false, forced);
        REQUIRE(seal && open);
        CHECK(tdm__aead_set_key(seal, aead_key) && tdm__aead_set_key(open, aead_key));
        for (int is_damaged = 0; is_damaged < 2; is_damaged++) {
            CHECK(tdm__aead_begin(seal, nonce, plain, 5) && tdm__aead_begin(open, nonce, plain, 5));
            for (size_t at = 0, some = 1; at < sizeof(plain); at += some, some = some * 3 + 1) {
                if (some > sizeof(plain) - at) some = sizeof(plain) - at;
                CHECK(tdm__aead_update(seal, plain + at, sealed[forced] + at, some));
            }
            CHECK(tdm__aead_seal(seal, tag[forced]));
            sealed[forced][4321] ^= (uint8_t)is_damaged;
            CHECK(tdm__aead_update(open, sealed[forced], opened, 4999));
            CHECK(tdm__aead_update(open, sealed[forced] + 4999, opened + 4999, 1));
            CHECK(tdm__aead_open(open, tag[forced]) == !is_damaged);
            CHECK((memcmp(opened, plain, sizeof(plain)) == 0) == !is_damaged);
        }
        tdm__aead_destroy(seal);
        tdm__aead_destroy(open);
    }
    CHECK(memcmp(sealed[0], sealed[1], sizeof(plain)) == 0);
    CHECK(memcmp(tag[0], tag[1], sizeof(tag[0])) == 0);
}

/* A byte that changes in transit, a record that is left out, one that arrives twice. */
static void test_damaged_records(void)
{
    enum { DAMAGE, OMISSION, REPLAY, LENGTH, CASES };
    for (int what = 0; what < CASES; what++) {
        ends e = begin();
        open_end(&e, 0, key, 0);
        open_end(&e, 1, key, 0);
        CHECK_INT(shake(&e), 1);
        uint8_t raw[256], content[64] = "content", got[64];
        struct iovec out = {content, sizeof(content)}, in = {got, sizeof(got)};
        CHECK_INT(tdm__tls_send(e.tls[0], e.fd[0], &out, 1), sizeof(content));
        ssize_t bytes = recv(e.fd[1], raw, sizeof(raw), 0);
        CHECK_INT(bytes, sizeof(content) + 22);
        if (what == DAMAGE) raw[20] ^= 1;
        if (what == LENGTH) raw[3] = 0xff;
        if (what == OMISSION) {
            CHECK_INT(tdm__tls_send(e.tls[0], e.fd[0], &out, 1), sizeof(content));
        } else {
            CHECK_INT(send(e.fd[0], raw, (size_t)bytes, 0), bytes);
        }
        if (what == REPLAY) {
            CHECK_INT(tdm__tls_recv(e.tls[1], e.fd[1], &in, 1), sizeof(content));
            CHECK_INT(send(e.fd[0], raw, (size_t)bytes, 0), bytes);
        }
        CHECK_INT(tdm__tls_recv(e.tls[1], e.fd[1], &in, 1), -1);
        CHECK_INT(errno, EPROTO);
        CHECK_HAS(tdm__tls_why(e.tls[1]), "TLS failed");
        CHECK_INT(tdm__tls_recv(e.tls[0], e.fd[0], &in, 1), -1); /* by an alert */
        CHECK_HAS(tdm__tls_why(e.tls[0]), what == LENGTH ? "unexpected_message" : "bad record mac");
        end(&e);
    }
}

static int openssl_finds_key(SSL *ssl, const unsigned char *id, size_t id_bytes, SSL_SESSION **out)
{
    static const unsigned char cipher[] = {0x13, 0x01};
    (void)id, (void)id_bytes;
    *out = SSL_SESSION_new();
    return SSL_SESSION_set1_master_key(*out, key, sizeof(key)) &&
           SSL_SESSION_set_cipher(*out, SSL_CIPHER_find(ssl, cipher)) &&
           SSL_SESSION_set_protocol_version(*out, TLS1_3_VERSION);
}

/* Against OpenSSL's own records: padded ones, changes of keys that request ours, the end. */
static void test_records_of_openssl(void)
{
    ends e = begin();
    open_end(&e, 0, key, 4);
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    SSL_CTX_set_num_tickets(context, 0);
    SSL_CTX_set_psk_find_session_callback(context, openssl_finds_key);
    CHECK(SSL_CTX_set_block_padding(context, 512) == 1);
    SSL *ssl = SSL_new(context);
    CHECK(SSL_set_fd(ssl, e.fd[1]) == 1);
    SSL_set_accept_state(ssl);
    for (int i = 0; i < 100 && !SSL_is_init_finished(ssl); i++) {
        (void)tdm__tls_advance(e.tls[0], e.fd[0]);
        (void)SSL_do_handshake(ssl);
    }
    static uint8_t out[40000], in[40000];
    fill(out, sizeof(out), 3);
    for (int i = 0; i < 20; i++) {
        if (i % 4 == 1) CHECK(SSL_key_update(ssl, SSL_KEY_UPDATE_REQUESTED) == 1);
        size_t bytes = 1 + (size_t)i * 2000;
        CHECK_INT(SSL_write(ssl, out, (int)bytes), bytes);
        memset(in, 0, sizeof(in));
        for (size_t got = 0; got < bytes;) { /* into small pieces, and into a large one */
            size_t third = (bytes - got) / 3;
            struct iovec parts[] = {{in + got, third}, {in + got + third, bytes - got - third}};
            ssize_t some = tdm__tls_recv(e.tls[0], e.fd[0], parts, 2);
            REQUIRE(some > 0);
            got += (size_t)some;
        }
        CHECK(memcmp(out, in, bytes) == 0);
        struct iovec parts[] = {{out, bytes / 2}, {out + bytes / 2, bytes - bytes / 2}};
        CHECK_INT(tdm__tls_send(e.tls[0], e.fd[0], parts, 2), bytes);
        memset(in, 0, sizeof(in));
        for (size_t got = 0; got < bytes;) {
            int some = SSL_read(ssl, in + got, (int)(bytes - got));
            REQUIRE(some > 0);
            got += (size_t)some;
        }
        CHECK(memcmp(out, in, bytes) == 0);
    }
    struct iovec room = {in, sizeof(in)};
    CHECK(SSL_shutdown(ssl) >= 0);
    CHECK_INT(tdm__tls_recv(e.tls[0], e.fd[0], &room, 1), 0);
    SSL_free(ssl);
    SSL_CTX_free(context);
    end(&e);
}

/* ---- worlds ------------------------------------------------------------------------------------- */

static char directory[64], certificate_path[96], key_path[96], meeting_path[96];

static void write_certificate(const char *names)
{
    EVP_PKEY *pair = EVP_EC_gen("P-256");
    X509 *certificate = certificate_of(pair, names);
    FILE *file = fopen(certificate_path, "w");
    CHECK(file && PEM_write_X509(file, certificate) == 1 && fclose(file) == 0);
    file = fopen(key_path, "w");
    CHECK(file && PEM_write_PrivateKey(file, pair, NULL, NULL, 0, NULL, NULL) == 1 &&
          fclose(file) == 0);
    X509_free(certificate);
    EVP_PKEY_free(pair);
}

static tdm_status open_and_sum(const world *w, int rank, tdm_security mode, tdm_error *err)
{
    tdm_comm_options options = options_of(w, rank);
    options.transport = "tcp";
    options.security = (tdm_comm_security){.mode = mode,
                                           .certificate = certificate_path,
                                           .private_key = key_path,
                                           .authority = certificate_path};
    tdm_comm *comm = NULL;
    setenv("TANDEM_HOST", "alpha", 1);
    TDM_TRY(tdm_comm_open(&options, &comm, err));
    int ones[1000], sums[1000];
    for (int i = 0; i < 1000; i++) ones[i] = 1;
    tdm_status status = tdm_group_all_reduce(tdm_comm_world(comm), ones, sums, 1000, TDM_DTYPE_I32,
                                             TDM_REDUCE_SUM, err);
    CHECK(status != TDM_OK || sums[999] == w->size);
    tdm_comm_close(comm);
    return status;
}

static int rank_with_certificate(const world *w, int rank)
{
    tdm_error err = {0};
    tdm_status status = open_and_sum(w, rank, TDM_SECURITY_TLS, &err);
    CHECK_INT(status, TDM_OK);
    if (status != TDM_OK) fprintf(stderr, "rank %d: %s\n", rank, err.message);
    return 0;
}

static int rank_with_key(const world *w, int rank)
{
    tdm_error err = {0};
    tdm_status status = open_and_sum(w, rank, TDM_SECURITY_PSK, &err);
    CHECK_INT(status, TDM_OK);
    if (status != TDM_OK) fprintf(stderr, "rank %d: %s\n", rank, err.message);
    return 0;
}

/* Rank 0 with the name of its certificate, rank 1 with another one. */
static int rank_of_another_name(const world *w, int rank)
{
    tdm_error err = {0};
    tdm_status status = open_and_sum(w, rank, TDM_SECURITY_TLS, &err);
    CHECK_INT(status, rank == 0 ? TDM_ERR_PEER_TIMEOUT : TDM_ERR_PEER_REFUSED);
    CHECK_HAS(err.message, "certificate of another name");
    return 0;
}

static void run_world(int size, const char *rendezvous, const char *secret,
                      int (*rank)(const world *, int))
{
    world w = {.size = size,
               .rendezvous = rendezvous,
               .secret = secret,
               .job = "",
               .join_s = rank == rank_of_another_name ? 5 : 60,
               .victim = -1,
               .rank = rank};
    start(&w);
    finish(&w);
}

/* A rank alone has a connection to itself, which no key or certificate protects. */
static void test_one_rank_alone(void)
{
    write_certificate("DNS:elsewhere");
    run_world(1, NULL, NULL, rank_with_key);
    run_world(1, NULL, NULL, rank_with_certificate);
}

static void test_worlds_by_key(void)
{
    run_world(3, tcp_name(AF_INET), "secret", rank_with_key);
    run_world(3, meeting_path, NULL, rank_with_key);
    run_world(2, unix_name(), NULL, rank_with_key);
}

/* By the host's name, and by its address. */
static void test_worlds_by_certificate(void)
{
    write_certificate("DNS:alpha");
    run_world(3, meeting_path, NULL, rank_with_certificate);
    run_world(2, unix_name(), NULL, rank_with_certificate);
    write_certificate("IP:127.0.0.1");
    run_world(3, tcp_name(AF_INET), "secret", rank_with_certificate);
    write_certificate("DNS:beta");
    run_world(2, tcp_name(AF_INET), "secret", rank_of_another_name);
}

static const check_test tests[] = {
    CHECK_TEST(test_same_key),
    CHECK_TEST(test_another_key),
    CHECK_TEST(test_certificate_in_place_of_the_key),
    CHECK_TEST(test_keys_change),
    CHECK_TEST(test_nothing_precedes_encryption),
    CHECK_TEST(test_libraries_agree),
    CHECK_TEST(test_damaged_records),
    CHECK_TEST(test_records_of_openssl),
    CHECK_TEST(test_one_rank_alone),
    CHECK_TEST(test_worlds_by_key),
    CHECK_TEST(test_worlds_by_certificate),
};

int main(int argc, char **argv)
{
    snprintf(directory, sizeof(directory), "/tmp/tandem-tls-%ld", (long)getpid());
    snprintf(certificate_path, sizeof(certificate_path), "%s/cert.pem", directory);
    snprintf(key_path, sizeof(key_path), "%s/key.pem", directory);
    snprintf(meeting_path, sizeof(meeting_path), "%s/meet", directory);
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || mkdir(directory, 0700) != 0) return 1;
    int code = check_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
    unlink(certificate_path);
    unlink(key_path);
    unlink(meeting_path);
    rmdir(directory);
    return code;
}
