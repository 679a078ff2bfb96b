/*
 * kv_etcd_test.c: the store etcd in front of servers that are none: silent, rude, endless, confused.
 *
 * Small servers in threads, on ports of the loopback device, answer each question in one way. Every call
 * must end in time with an error that says something; where another member would answer, it must be
 * found; and a compare-and-swap that may have been heard must never be asked twice. Real etcd servers:
 * tests/cluster/etcd_test.sh. Without libcurl there is only one thing to see, that it is said.
 */
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

typedef enum manner {
    GOOD,
    SILENT,  /* takes the question, and never answers */
    CLOSING, /* takes it, and hangs up */
    RUDE,    /* no HTTP */
    PAGE,    /* a web page */
    BAD_GATEWAY /* the same, with an HTTP status of 502 */,
    LEADERLESS, /* what etcd says when it has lost the others */
    EMPTY,      /* an empty object */
    CONFUSED,   /* the right names, the wrong kinds */
    ENDLESS,    /* bytes without an end */
    MANNER_COUNT
} manner;

typedef struct server {
    pthread_t thread;
    int door;
    int port;
    _Atomic int manner;
    _Atomic int swaps; /* questions for one that were read */
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

static void answer(int fd, int status, const char *body)
{
    char head[200];
    int length = snprintf(
        head, sizeof(head),
        "HTTP/1.1 %d Whatever\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n", status,
        strlen(body));
    send_all(fd, head, (size_t)length);
    send_all(fd, body, strlen(body));
}

static void answer_well(int fd, const char *question)
{
    if (strstr(question, "/v3/kv/txn"))
        answer(fd, 200, "{" HEADER ",\"succeeded\":true}");
    else if (strstr(question, "/v3/lease"))
        answer(fd, 200, "{\"ID\":\"12\",\"TTL\":\"5\"}");
    else if (strstr(question, "/v3/watch"))
        answer(fd, 200,
               "{\"result\":{" HEADER ",\"created\":true}}\n"
               "{\"result\":{" HEADER ",\"events\":[{}]}}\n");
    else
        answer(fd, 200, "{" HEADER ",\"kvs\":[{\"key\":\"eA==\",\"mod_revision\":\"3\"}]}");
}

static void answer_endlessly(const server *s, int fd)
{
    static const char some[1 << 16] = "{";
    static const char head[] = "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n";
    send_all(fd, head, sizeof(head) - 1);
    while (!atomic_load(&s->over) && send(fd, some, sizeof(some), MSG_NOSIGNAL) > 0) {
    }
}

/* Until the other side hangs up. */
static void say_nothing(const server *s, int fd)
{
    char byte;
    struct pollfd one = {.fd = fd, .events = POLLIN};
    while (!atomic_load(&s->over))
        if (poll(&one, 1, 20) > 0 && recv(fd, &byte, 1, 0) <= 0) return;
}

static void serve(server *s, int fd)
{
    char question[4096];
    size_t count = 0;
    struct pollfd one = {.fd = fd, .events = POLLIN};
    /* The bodies asked here are short, and end the question. */
    while (count < sizeof(question) - 1 && poll(&one, 1, 2000) > 0) {
        ssize_t got = recv(fd, question + count, sizeof(question) - 1 - count, 0);
        if (got <= 0) return;
        count += (size_t)got;
        question[count] = '\0';
        const char *body = strstr(question, "\r\n\r\n");
        if (body && body[4] == '{' && question[count - 1] == '}') break;
    }
    if (strstr(question, "/v3/kv/txn")) atomic_fetch_add(&s->swaps, 1);
    switch (atomic_load(&s->manner)) {
    case GOOD: answer_well(fd, question); break;
    case SILENT: say_nothing(s, fd); break;
    case RUDE: send_all(fd, "220 ready for mail\r\n", 20); break;
    case PAGE: answer(fd, 200, "<html><body>Welcome!</body></html>"); break;
    case BAD_GATEWAY: answer(fd, 502, "<html><body>Bad Gateway</body></html>"); break;
    case LEADERLESS:
        answer(fd, 503,
               "{\"error\":\"etcdserver: no leader\",\"message\":\"etcdserver: no leader\","
               "\"code\":14}");
        break;
    case EMPTY: answer(fd, 200, "{}"); break;
    case CONFUSED:
        answer(fd, 200,
               "{\"header\":{\"revision\":\"7\"},\"kvs\":7,\"succeeded\":\"yes\",\"ID\":[],"
               "\"result\":{\"events\":1}}\n");
        break;
    case ENDLESS: answer_endlessly(s, fd); break;
    default: break;
    }
}

static void *run_server(void *user)
{
    server *s = user;
    while (!atomic_load(&s->over)) {
        struct pollfd one = {.fd = s->door, .events = POLLIN};
        if (poll(&one, 1, 20) <= 0) continue;
        int fd = accept(s->door, NULL, NULL);
        if (fd < 0) continue;
        serve(s, fd);
        close(fd);
    }
    return NULL;
}

static void start_server(server *s, manner m)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof(address);
    *s = (server){.door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    atomic_store(&s->manner, (int)m);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (s->door < 0 || bind(s->door, (struct sockaddr *)&address, length) != 0 ||
        listen(s->door, 16) != 0 ||
        getsockname(s->door, (struct sockaddr *)&address, &length) != 0 ||
        pthread_create(&s->thread, NULL, run_server, s) != 0) {
        perror("a server does not start");
        exit(1);
    }
    s->port = ntohs(address.sin_port);
}

static void stop_server(server *s)
{
    atomic_store(&s->over, true);
    pthread_join(s->thread, NULL);
    close(s->door);
}

/* ---- the tests --------------------------------------------------------------------------------- */

static tdm_kv *open_at(const char *where, double timeout_s)
{
    tdm_kv_options options = {.url = where, .timeout_s = timeout_s};
    tdm_kv *kv = NULL;
    tdm_error err = {0};
    if (tdm_kv_open(&options, &kv, &err) != TDM_OK) {
        fprintf(stderr, "%s: %s\n", where, err.message);
        exit(1);
    }
    return kv;
}

static bool usable(void)
{
    tdm_kv_info info;
    for (size_t i = 0; tdm_kv_at(i, &info); i++)
        if (strcmp(info.name, "etcd") == 0) return info.usable;
    return false;
}

static void without_libcurl(void)
{
    tdm_kv_options options = {.url = "etcd:http://127.0.0.1:1"};
    tdm_kv *kv = NULL;
    tdm_error err = {0};
    if (usable()) return;
    CHECK_INT(tdm_kv_open(&options, &kv, &err), TDM_ERR_UNSUPPORTED);
    CHECK_HAS(err.message, "libcurl");
}

static void addresses(void)
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
    if (usable()) tdm_kv_close(open_at("etcd: http://127.0.0.1:1/ , http://127.0.0.1:2", 1));
}

/* Errors, in time, with words, for every call. */
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
        if (m == CONFUSED && call == 2) continue; /* all that a put needs was there */
        CHECK(status == TDM_ERR_TIMEOUT || status == TDM_ERR_FORMAT || status == TDM_ERR_RANGE);
        CHECK(err.status == status && err.message[0]);
        if (check_failures) fprintf(stderr, "manner %d, call %d: %s\n", m, call, err.message);
    }
    CHECK(tdm_kv_now(kv) - began < 60);
    tdm_arena_destroy(arena);
}

static void strange_servers(void)
{
    if (!usable()) return;
    for (int m = GOOD + 1; m < MANNER_COUNT; m++) {
        server s;
        char url[64];
        start_server(&s, (manner)m);
        snprintf(url, sizeof(url), "etcd:http://127.0.0.1:%d", s.port);
        tdm_kv *kv = open_at(url, m == ENDLESS ? 5 : 0.15);
        expect_failures(kv, m);
        tdm_kv_close(kv);
        stop_server(&s);
    }
}

static void the_next_one(void)
{
    static const manner gone[] = {SILENT, CLOSING, RUDE, BAD_GATEWAY, LEADERLESS};
    if (!usable()) return;
    server good;
    start_server(&good, GOOD);
    int swapped = 0, tried = 0;
    for (size_t i = 1; i < 2 * sizeof(gone) / sizeof(gone[0]); i++) { /* silence takes long: once */
        server bad;
        char url[100];
        uint64_t number = 0;
        tdm_kv_item item;
        tdm_arena *arena = tdm_arena_create("test");
        start_server(&bad, gone[i / 2]);
        snprintf(url, sizeof(url), "etcd:http://127.0.0.1:%d,http://127.0.0.1:%d", bad.port,
                 good.port);
        /* Whom it asks first is up to it: a new handle for each question. */
        for (int call = 0; call < 4; call++) {
            tdm_kv *kv = open_at(url, 2.2);
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
                if (status == TDM_ERR_TIMEOUT) status = TDM_OK; /* and that is what it must say */
            }
            CHECK_INT(status, TDM_OK);
            if (status != TDM_OK) fprintf(stderr, "manner %d: %s\n", gone[i / 2], err.message);
            tdm_kv_close(kv);
        }
        tdm_arena_destroy(arena);
        stop_server(&bad);
    }
    /* What was in doubt was not asked again; what cannot have been done, was. */
    CHECK_INT(atomic_load(&good.swaps), swapped);
    printf("     %d of %d swaps done, the others in doubt\n", swapped, tried);
    stop_server(&good);
}

static void a_closed_door(void)
{
    if (!usable()) return;
    server good, shut;
    char url[100];
    start_server(&good, GOOD);
    start_server(&shut, GOOD);
    int port = shut.port;
    stop_server(&shut);
    snprintf(url, sizeof(url), "etcd:http://127.0.0.1:%d,http://127.0.0.1:%d", port, good.port);
    for (int i = 0; i < 8; i++) { /* nobody can have heard it there, so it is asked again */
        tdm_kv *kv = open_at(url, 8);
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
    CHECK_TEST(without_libcurl), CHECK_TEST(addresses),     CHECK_TEST(strange_servers),
    CHECK_TEST(the_next_one),    CHECK_TEST(a_closed_door),
};
CHECK_MAIN(tests)
