/*
 * kv_etcd_test.c: the store etcd with servers that do not behave like etcd: silent, invalid,
 * endless.
 *
 * Small servers in threads, on ports of the loopback device, respond to each request in one way.
 * Every call must fail in time with a message. If another server responds, the call must find it. A
 * compare-and-swap that may have been executed must never be sent again. Tests with real etcd
 * servers are in tests/cluster/etcd_test.sh. Without libcurl, only the error message is tested.
 */
#include "base/base.h"
#include "check.h"
#include "kv/kv.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define HEADER "\"header\":{\"revision\":\"7\"}"

/* How a server responds. */
typedef enum manner {
    GOOD,
    SILENT,      /* reads the request and never responds */
    CLOSING,     /* reads the request and closes the connection */
    NOT_HTTP,    /* responds with another protocol */
    PAGE,        /* responds with a web page */
    BAD_GATEWAY, /* the same, with HTTP status 502 */
    LEADERLESS,  /* the error of an etcd server that has lost the other servers */
    EMPTY,       /* an empty object */
    WRONG_TYPES, /* the right names with values of wrong types */
    ENDLESS,     /* a response that does not end */
    MANNER_COUNT
} manner;

typedef struct server {
    pthread_t thread;
    int listener;
    int port;
    _Atomic int manner;
    _Atomic int swaps; /* compare-and-swap requests that were read */
    _Atomic bool over;
} server;

static void send_all(int fd, const char *bytes, size_t count)
{
    while (count > 0) {
        ssize_t sent = send(fd, bytes, count, MSG_NOSIGNAL);
        if (sent <= 0) return;
        bytes += sent;
        count -= (size_t)sent;
    }
}

static void server_respond(int fd, int status, const char *body)
{
    char head[200];
    int length = snprintf(
        head, sizeof(head),
        "HTTP/1.1 %d Whatever\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n", status,
        strlen(body));
    send_all(fd, head, (size_t)length);
    send_all(fd, body, strlen(body));
}

static void server_respond_well(int fd, const char *request)
{
    if (strstr(request, "/v3/kv/txn"))
        server_respond(fd, 200, "{" HEADER ",\"succeeded\":true}");
    else if (strstr(request, "/v3/lease"))
        server_respond(fd, 200, "{\"ID\":\"12\",\"TTL\":\"5\"}");
    else if (strstr(request, "/v3/watch"))
        server_respond(fd, 200,
                       "{\"result\":{" HEADER ",\"created\":true}}\n"
                       "{\"result\":{" HEADER ",\"events\":[{}]}}\n");
    else
        server_respond(fd, 200, "{" HEADER ",\"kvs\":[{\"key\":\"eA==\",\"mod_revision\":\"3\"}]}");
}

static void server_respond_endlessly(const server *s, int fd)
{
    static const char some[1 << 16] = "{";
    static const char head[] = "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n";
    send_all(fd, head, sizeof(head) - 1);
    while (!atomic_load(&s->over) && send(fd, some, sizeof(some), MSG_NOSIGNAL) > 0) {
    }
}

/* Waits until the client closes the connection. */
static void server_stay_silent(const server *s, int fd)
{
    char byte;
    struct pollfd one = {.fd = fd, .events = POLLIN};
    while (!atomic_load(&s->over))
        if (poll(&one, 1, 20) > 0 && recv(fd, &byte, 1, 0) <= 0) return;
}

static void server_serve(server *s, int fd)
{
    char request[4096];
    size_t count = 0;
    struct pollfd one = {.fd = fd, .events = POLLIN};
    /* The bodies of these requests are short, and a request ends with its body. */
    while (count < sizeof(request) - 1 && poll(&one, 1, 2000) > 0) {
        ssize_t got = recv(fd, request + count, sizeof(request) - 1 - count, 0);
        if (got <= 0) return;
        count += (size_t)got;
        request[count] = '\0';
        const char *body = strstr(request, "\r\n\r\n");
        if (body && body[4] == '{' && request[count - 1] == '}') break;
    }
    if (strstr(request, "/v3/kv/txn")) atomic_fetch_add(&s->swaps, 1);
    switch (atomic_load(&s->manner)) {
    case GOOD: server_respond_well(fd, request); break;
    case SILENT: server_stay_silent(s, fd); break;
    case NOT_HTTP: send_all(fd, "220 ready for mail\r\n", 20); break;
    case PAGE: server_respond(fd, 200, "<html><body>Welcome!</body></html>"); break;
    case BAD_GATEWAY: server_respond(fd, 502, "<html><body>Bad Gateway</body></html>"); break;
    case LEADERLESS:
        server_respond(fd, 503,
                       "{\"error\":\"etcdserver: no leader\",\"message\":\"etcdserver: no leader\","
                       "\"code\":14}");
        break;
    case EMPTY: server_respond(fd, 200, "{}"); break;
    case WRONG_TYPES:
        server_respond(fd, 200,
                       "{\"header\":{\"revision\":\"7\"},\"kvs\":7,\"succeeded\":\"yes\",\"ID\":[],"
                       "\"result\":{\"events\":1}}\n");
        break;
    case ENDLESS: server_respond_endlessly(s, fd); break;
    default: break;
    }
}

static void *server_main(void *user)
{
    server *s = user;
    while (!atomic_load(&s->over)) {
        struct pollfd one = {.fd = s->listener, .events = POLLIN};
        if (poll(&one, 1, 20) <= 0) continue;
        int fd = accept(s->listener, NULL, NULL);
        if (fd < 0) continue;
        server_serve(s, fd);
        close(fd);
    }
    return NULL;
}

static void start_server(server *s, manner m)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof(address);
    *s = (server){.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    atomic_store(&s->manner, (int)m);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (s->listener < 0 || bind(s->listener, (struct sockaddr *)&address, length) != 0 ||
        listen(s->listener, 16) != 0 ||
        getsockname(s->listener, (struct sockaddr *)&address, &length) != 0 ||
        pthread_create(&s->thread, NULL, server_main, s) != 0) {
        perror("cannot start a server");
        exit(1);
    }
    s->port = ntohs(address.sin_port);
}

static void stop_server(server *s)
{
    atomic_store(&s->over, true);
    pthread_join(s->thread, NULL);
    close(s->listener);
}

/* ---- the tests ------------------------------------------------------------------------------- */

static tdm_kv *kv_open(const char *url, double timeout_s)
{
    tdm_kv_options options = {.url = url, .timeout_s = timeout_s};
    tdm_kv *kv = NULL;
    tdm_error err = {0};
    if (tdm_kv_open(&options, &kv, &err) != TDM_OK) {
        fprintf(stderr, "%s: %s\n", url, err.message);
        exit(1);
    }
    return kv;
}

static bool etcd_is_usable(void)
{
    tdm_kv_info info;
    for (size_t i = 0; tdm_kv_at(i, &info); i++)
        if (strcmp(info.name, "etcd") == 0) return info.usable;
    return false;
}

static void a_missing_libcurl_is_reported(void)
{
    tdm_kv_options options = {.url = "etcd:http://127.0.0.1:1"};
    tdm_kv *kv = NULL;
    tdm_error err = {0};
    if (etcd_is_usable()) return;
    CHECK_INT(tdm_kv_open(&options, &kv, &err), TDM_ERR_UNSUPPORTED);
    CHECK_HAS(err.message, "libcurl");
}

/* Lengths around the padding and the blocks of the encoder; and texts that are not base64. */
static void base64_is_exact(void)
{
    static const size_t lengths[] = {0, 1, 2, 3, 4, 5, 3071, 3072, 3073, 10000};
    static char bytes[10000], out[10004];
    size_t count = 77;
    for (size_t i = 0; i < sizeof(bytes); i++) bytes[i] = (char)(i * 131 + i / 256);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        tdm_str text = TDM_STR_INIT;
        tdm_str_add_base64(&text, bytes, lengths[i]);
        CHECK_INT(text.length, (lengths[i] + 2) / 3 * 4);
        CHECK(tdm_base64_decode(tdm_str_text(&text), text.length, out, &count));
        CHECK_INT(count, lengths[i]);
        CHECK(memcmp(out, bytes, count) == 0);
        tdm_str_release(&text);
    }
    tdm_str text = TDM_STR_INIT;
    tdm_str_add_base64(&text, "tandem/s/\xff", 10);
    CHECK_TEXT(tdm_str_text(&text), "dGFuZGVtL3Mv/w==");
    tdm_str_release(&text);
    static const char *const wrong[] = {
        "a",    "ab",   "abc",   "abcde", "a===",      "====", "=abc",
        "a=bc", "ab=c", " abcd", "abcd ", "abcd\n   ", "ab-d", "ab==abcd"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        CHECK(!tdm_base64_decode(wrong[i], strlen(wrong[i]), out, &count));
}

static void addresses_are_checked(void)
{
    const char *const wrong[] = {"etcd:localhost:2379", "etcd:http://",
                                 "etcd:ftp://a:1",      "etcd:,",
                                 "etcd:http://a:1,b:2", "etcd:http://me:secret@host:1"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        tdm_kv_options options = {.url = wrong[i]};
        tdm_kv *kv = NULL;
        tdm_error err = {0};
        CHECK_INT(tdm_kv_open(&options, &kv, &err), TDM_ERR_INVALID);
        CHECK_HAS(err.message, "address");
    }
    if (etcd_is_usable())
        tdm_kv_close(kv_open("etcd: http://127.0.0.1:1/ , http://127.0.0.1:2", 1));
}

/* Every call fails in time and with a message. */
static void expect_failures(tdm_kv *kv, int m)
{
    tdm_arena *arena = tdm_arena_create("test");
    tdm_kv_item item, *items = NULL;
    size_t count = 0;
    uint64_t number = 0;
    double began = tdm_kv_now(kv);
    for (int call = 0; call < 7; call += m == ENDLESS ? 6 : 1) {
        tdm_error err = {0};
        tdm_status status = TDM_OK;
        switch (call) {
        case 0: status = tdm_kv_get(kv, "x", arena, &item, &err); break;
        case 1: status = tdm_kv_list(kv, "x", arena, &items, &count, &number, &err); break;
        case 2: status = tdm_kv_put(kv, "x", "1", 0, &err); break;
        case 3: status = tdm_kv_swap(kv, "x", 0, "1", 0, &number, &err); break;
        case 4: status = tdm_kv_lease(kv, 1, &number, &err); break;
        case 5: status = tdm_kv_keep(kv, 1, &err); break;
        default: status = tdm_kv_wait(kv, "x", 1, 0.1, &number, &err); break;
        }
        if (m == WRONG_TYPES && call == 2) continue; /* the response has all that a put needs */
        CHECK(status == TDM_ERR_TIMEOUT || status == TDM_ERR_FORMAT || status == TDM_ERR_RANGE);
        CHECK(err.status == status && err.message[0]);
        if (check_failures) fprintf(stderr, "manner %d, call %d: %s\n", m, call, err.message);
    }
    CHECK(tdm_kv_now(kv) - began < 60);
    tdm_arena_destroy(arena);
}

static void invalid_servers_fail_in_time(void)
{
    if (!etcd_is_usable()) return;
    for (int m = GOOD + 1; m < MANNER_COUNT; m++) {
        server s;
        char url[64];
        start_server(&s, (manner)m);
        snprintf(url, sizeof(url), "etcd:http://127.0.0.1:%d", s.port);
        tdm_kv *kv = kv_open(url, m == ENDLESS ? 5 : 0.15);
        expect_failures(kv, m);
        tdm_kv_close(kv);
        stop_server(&s);
    }
}

static void the_next_server_is_tried(void)
{
    static const manner bad_manners[] = {SILENT, CLOSING, NOT_HTTP, BAD_GATEWAY, LEADERLESS};
    if (!etcd_is_usable()) return;
    server good;
    start_server(&good, GOOD);
    int swapped = 0, tried = 0;
    for (size_t i = 1; i < 2 * sizeof(bad_manners) / sizeof(bad_manners[0]);
         i++) { /* only one call with SILENT: it takes long */
        server bad;
        char url[100];
        uint64_t number = 0;
        tdm_kv_item item;
        tdm_arena *arena = tdm_arena_create("test");
        start_server(&bad, bad_manners[i / 2]);
        snprintf(url, sizeof(url), "etcd:http://127.0.0.1:%d,http://127.0.0.1:%d", bad.port,
                 good.port);
        /* A handle chooses its first server by the clock, so each call uses a new handle. */
        for (int call = 0; call < 4; call++) {
            tdm_kv *kv = kv_open(url, 2.2);
            tdm_error err = {0};
            tdm_status status = TDM_OK;
            switch (call) {
            case 0: status = tdm_kv_get(kv, "x", arena, &item, &err); break;
            case 1: status = tdm_kv_put(kv, "x", "1", 0, &err); break;
            case 2: status = tdm_kv_wait(kv, "x", 1, 5, &number, &err); break;
            default:
                tried++;
                status = tdm_kv_swap(kv, "x", 0, "1", 0, &number, &err);
                swapped += status == TDM_OK;
                if (status == TDM_ERR_TIMEOUT)
                    status = TDM_OK; /* the result is uncertain, as it must report */
            }
            CHECK_INT(status, TDM_OK);
            if (status != TDM_OK)
                fprintf(stderr, "manner %d: %s\n", bad_manners[i / 2], err.message);
            tdm_kv_close(kv);
        }
        tdm_arena_destroy(arena);
        stop_server(&bad);
    }
    /* A swap whose result is uncertain was not sent again; one that cannot have been executed
     * was. */
    CHECK_INT(atomic_load(&good.swaps), swapped);
    printf("     %d of %d swaps done, the others uncertain\n", swapped, tried);
    stop_server(&good);
}

static void a_refused_connection_is_retried(void)
{
    if (!etcd_is_usable()) return;
    server good, stopped;
    char url[100];
    start_server(&good, GOOD);
    start_server(&stopped, GOOD);
    int port = stopped.port;
    stop_server(&stopped);
    snprintf(url, sizeof(url), "etcd:http://127.0.0.1:%d,http://127.0.0.1:%d", port, good.port);
    for (int i = 0; i < 8; i++) { /* no server has received it, so it is sent again */
        tdm_kv *kv = kv_open(url, 8);
        uint64_t revision = 0;
        tdm_error err = {0};
        CHECK_INT(tdm_kv_swap(kv, "x", 0, "1", 0, &revision, &err), TDM_OK);
        CHECK_INT(revision, 7);
        tdm_kv_close(kv);
    }
    CHECK_INT(atomic_load(&good.swaps), 8);
    stop_server(&good);
}

static const check_test tests[] = {
    CHECK_TEST(a_missing_libcurl_is_reported), CHECK_TEST(base64_is_exact),
    CHECK_TEST(addresses_are_checked),         CHECK_TEST(invalid_servers_fail_in_time),
    CHECK_TEST(the_next_server_is_tried),      CHECK_TEST(a_refused_connection_is_retried),
};
CHECK_MAIN(tests)
