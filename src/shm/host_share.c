/*
 * host_share.c: passes the shared memory to the ranks of a host.
 *
 * The lowest rank listens on an abstract UNIX socket; the other ranks got its random name with the
 * addresses of the world. Each of them sends a hello with the world's number and its index, receives the
 * descriptors of the memory and of the node's segment of named regions (os/shm.c), maps both and reports that it is
 * ready; when all ranks are ready, the lowest rank releases them. So this step succeeds on all ranks or fails on all, and every rank's error names
 * the rank that could not map the memory.
 *
 * Other processes: a process of another user is refused at once, by the credentials that the kernel
 * reports; one of the same user if its hello is wrong or late. They receive nothing and do not delay the
 * ranks. Every step has a deadline.
 */
#include "base/base.h"
#include "base/timing.h"
#include "os/os.h"
#include "shm/host_inner.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define HELLO_MAGIC 0x6c656874u
enum { MAX_STRANGERS = 16 };

/* The message of all four steps, in native byte order because it never leaves the machine. */
typedef struct note {
    uint32_t magic, world;
    uint32_t place, count; /* index of the sender; number of ranks on the host */
    uint64_t bytes;        /* of the segment */
    uint32_t step, bad;    /* a note_step; whether the step failed */
} note;

typedef enum note_step { STEP_HELLO = 1, STEP_MEMORY, STEP_READY, STEP_GO } note_step;

size_t tdm__host_draw_name(const char *what, char name[TDM__MAX_HOST_NAME])
{
    uint64_t drawn[2] = {0};
    if (tdm_os_random(drawn, sizeof(drawn), NULL) != TDM_OK) {
        drawn[0] = tdm_clock_ns();
        drawn[1] = (uint64_t)getpid();
    }
    int length = snprintf(name, TDM__MAX_HOST_NAME, "tandem-%s-%08llx%08llx", what,
                          (unsigned long long)drawn[0] & 0xffffffffu,
                          (unsigned long long)drawn[1] & 0xffffffffu);
    return length > 0 && length < TDM__MAX_HOST_NAME ? (size_t)length : 0;
}

static socklen_t socket_address_of(const char *name, size_t bytes, struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(out->sun_path + 1, name, bytes);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + bytes);
}

tdm_status tdm__host_listen(tdm__host *host, tdm_error *err)
{
    struct sockaddr_un address;
    size_t bytes = tdm__host_draw_name("host", host->listen_name);
    socklen_t length = socket_address_of(host->listen_name, bytes, &address);
    host->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (host->listen_fd < 0 ||
        bind(host->listen_fd, (const struct sockaddr *)&address, length) != 0 ||
        listen(host->listen_fd, host->count + MAX_STRANGERS) != 0)
        return tdm_fail(err, TDM_ERR_SYSTEM,
                        "making a socket on which this host's ranks find their shared memory: %s",
                        strerror(errno));
    return TDM_OK;
}

static bool socket_is_same_user(int fd)
{
    struct ucred peer;
    socklen_t bytes = sizeof(peer);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && bytes == sizeof(peer) &&
           peer.uid == geteuid();
}

enum { FD_COUNT = 2 }; /* of the memory, and of the segment of named regions */

/* Sends a note, with these descriptors unless `fds` is NULL. It fits into the buffer of any new socket. */
static bool note_send(int fd, const note *n, const int fds[FD_COUNT])
{
    struct iovec io = {.iov_base = (void *)n, .iov_len = sizeof(*n)};
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(FD_COUNT * sizeof(int))];
    } control = {.space = {0}};
    struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1};
    if (fds) {
        message.msg_control = control.space;
        message.msg_controllen = sizeof(control.space);
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(FD_COUNT * sizeof(int));
        memcpy(CMSG_DATA(c), fds, FD_COUNT * sizeof(int));
    }
    ssize_t sent;
    do sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)sizeof(*n);
}

static note note_of(const tdm__host *host, note_step step, bool bad)
{
    return (note){.magic = HELLO_MAGIC,
                  .world = host->world,
                  .place = (uint32_t)host->index,
                  .count = (uint32_t)host->count,
                  .bytes = host->base ? host->at.end : 0,
                  .step = step,
                  .bad = bad};
}

static bool note_fits(const tdm__host *host, const note *n, note_step step)
{
    return n->magic == HELLO_MAGIC && n->world == host->world &&
           n->count == (uint32_t)host->count && n->place < n->count && n->step == (uint32_t)step;
}

/* ---- the lowest rank --------------------------------------------------------------------------- */

typedef struct guest {
    int fd; /* -1: unused */
    int place;
    note_step step; /* the expected note; STEP_GO: none */
    double until_s;
    size_t got;
    note heard;
} guest;

typedef struct party {
    tdm__host *host;
    guest *guests;
    struct pollfd *polls;
    int capacity, ready_count;
    int failed_place; /* -1: none */
    bool given_up;    /* the wait was cancelled */
    bool *seen;       /* by index */
} party;

static void guest_close(party *p, guest *g)
{
    if (g->step == STEP_READY && p->failed_place < 0) p->failed_place = g->place;
    close(g->fd);
    g->fd = -1;
}

/* Handles a complete note from a guest. */
static void guest_on_note(party *p, guest *g)
{
    const note *n = &g->heard;
    if (g->step == STEP_HELLO) {
        note answer = note_of(p->host, STEP_MEMORY, false);
        const int fds[FD_COUNT] = {p->host->memory_fd, tdm_shm_fd(p->host->shm)};
        if (!note_fits(p->host, n, STEP_HELLO) || n->place == 0 || p->seen[n->place] ||
            !note_send(g->fd, &answer, fds)) {
            guest_close(p, g);
            return;
        }
        g->place = (int)n->place;
        p->seen[g->place] = true;
        g->step = STEP_READY;
        g->until_s = tdm_clock_s() + TDM__TIMING_SHM_JOIN_S;
    } else if (!note_fits(p->host, n, STEP_READY) || n->place != (uint32_t)g->place || n->bad) {
        guest_close(p, g);
    } else {
        g->step = STEP_GO;
        p->ready_count++;
    }
    g->got = 0;
}

static void guest_read(party *p, guest *g)
{
    ssize_t got = recv(g->fd, (uint8_t *)&g->heard + g->got, sizeof(g->heard) - g->got,
                       MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
        if (g->step == STEP_GO) {
            /* It was ready and has died: the control connection will report it. */
            g->step = STEP_READY;
        }
        guest_close(p, g);
        return;
    }
    g->got += (size_t)got;
    if (g->got == sizeof(g->heard)) guest_on_note(p, g);
}

static void party_accept(party *p)
{
    guest *place = NULL;
    for (int i = 0; i < p->capacity && !place; i++)
        if (p->guests[i].fd < 0) place = &p->guests[i];
    if (!place) return;
    int fd = accept4(p->host->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    if (!socket_is_same_user(fd)) {
        close(fd);
        return;
    }
    *place = (guest){
        .fd = fd, .step = STEP_HELLO, .until_s = tdm_clock_s() + TDM__TIMING_SHM_HELLO_S};
}

/* One iteration: waits for new connections, up to the limit, and for notes of all guests. */
static void party_serve(party *p, double until_s)
{
    int guests = 0;
    for (int i = 0; i < p->capacity; i++) {
        guest *g = &p->guests[i];
        if (g->fd >= 0 && g->step != STEP_GO && tdm_clock_s() > g->until_s) guest_close(p, g);
        p->polls[i + 1] = (struct pollfd){.fd = g->fd, .events = POLLIN};
        guests += g->fd >= 0;
    }
    int listen_fd = guests < p->capacity ? p->host->listen_fd : -1;
    p->polls[0] = (struct pollfd){.fd = listen_fd, .events = POLLIN};
    double left_s = tdm__cancellation_slice(&p->host->cancellation, until_s - tdm_clock_s());
    int left_ms = left_s <= 0 ? 0 : left_s > 0.1 ? 100 : (int)(left_s * 1000) + 1;
    if (poll(p->polls, (nfds_t)p->capacity + 1, left_ms) <= 0) return;
    for (int i = 0; i < p->capacity; i++)
        if (p->polls[i + 1].revents && p->guests[i].fd >= 0) guest_read(p, &p->guests[i]);
    if (p->polls[0].revents) party_accept(p);
}

static tdm_status host_wait_cancelled(const tdm__host *host, tdm_error *err)
{
    return tdm_fail(err, TDM_ERR_PEER_FAILED,
                    "rank %d stopped waiting for the other ranks of this host",
                    host->ranks[host->index]);
}

static tdm_status party_fail_missing(const party *p, tdm_error *err)
{
    if (p->given_up) return host_wait_cancelled(p->host, err);
    if (p->failed_place >= 0)
        return tdm_fail(err, TDM_ERR_PEER_FAILED,
                        "rank %d could not map this host's shared memory, or exited meanwhile",
                        p->host->ranks[p->failed_place]);
    char list[200] = "";
    size_t length = 0;
    for (int i = 1; i < p->host->count && length < sizeof(list) - 24; i++)
        if (!p->seen[i])
            length += (size_t)snprintf(list + length, sizeof(list) - length, "%s%d",
                                       length ? ", " : "", p->host->ranks[i]);
    return tdm_fail(
        err, TDM_ERR_PEER_TIMEOUT,
        "not all ranks of this host requested its shared memory within %.0f s; missing: "
        "%s",
        TDM__TIMING_SHM_JOIN_S, length ? list : "an answer");
}

tdm_status tdm__host_hand_out(tdm__host *host, tdm_error *err)
{
    int capacity = host->count - 1 + MAX_STRANGERS;
    party p = {.host = host,
               .guests = calloc((size_t)capacity, sizeof(guest)),
               .polls = calloc((size_t)capacity + 1, sizeof(struct pollfd)),
               .seen = calloc((size_t)host->count, sizeof(bool)),
               .capacity = capacity,
               .failed_place = -1};
    tdm_status status = TDM_OK;
    if (!p.guests || !p.polls || !p.seen) {
        status = tdm_fail_oom(err, "for the ranks of this host");
        goto free_all;
    }
    for (int i = 0; i < capacity; i++) p.guests[i].fd = -1;
    double until_s = tdm_clock_s() + TDM__TIMING_SHM_JOIN_S;
    while (p.ready_count < host->count - 1 && p.failed_place < 0 && !p.given_up &&
           tdm_clock_s() < until_s) {
        party_serve(&p, until_s);
        p.given_up = p.ready_count < host->count - 1 &&
                     tdm__cancellation_is_due(&host->cancellation);
    }
    bool bad = p.ready_count < host->count - 1 || p.failed_place >= 0;
    if (bad) status = party_fail_missing(&p, err);
    note go = note_of(host, STEP_GO, bad);
    for (int i = 0; i < capacity; i++) {
        if (p.guests[i].fd < 0) continue;
        if (p.guests[i].step != STEP_HELLO) (void)note_send(p.guests[i].fd, &go, NULL);
        close(p.guests[i].fd);
    }
free_all:
    free(p.guests);
    free(p.polls);
    free(p.seen);
    close(host->listen_fd);
    host->listen_fd = -1;
    return status;
}

/* ---- all other ranks --------------------------------------------------------------------------- */

static tdm_status host_connect_lowest(tdm__host *host, const uint8_t *name, size_t name_bytes,
                                      int *out_fd, tdm_error *err)
{
    struct sockaddr_un address;
    if (name_bytes == 0 || name_bytes >= TDM__MAX_HOST_NAME)
        return tdm_fail(err, TDM_ERR_FORMAT, "rank %d sent no address of its shared memory",
                        host->ranks[0]);
    socklen_t length = socket_address_of((const char *)name, name_bytes, &address);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return tdm_fail(err, TDM_ERR_SYSTEM, "cannot create a socket to request shared memory: %s",
                        strerror(errno));
    double until_s = tdm_clock_s() + TDM__TIMING_SHM_JOIN_S;
    while (connect(fd, (const struct sockaddr *)&address, length) != 0) {
        bool busy = errno == EAGAIN || errno == EINTR;
        if (busy && tdm_clock_s() < until_s && !tdm__cancellation_is_due(&host->cancellation)) {
            tdm_clock_sleep(TDM__TIMING_SHM_CONNECT_RETRY_S);
            continue;
        }
        tdm_status status = tdm_fail(
            err, busy ? TDM_ERR_PEER_TIMEOUT : TDM_ERR_PEER_FAILED,
            "cannot request this host's shared memory from rank %d: %s; it may have exited, or run in "
            "another network namespace",
            host->ranks[0], strerror(errno));
        close(fd);
        return status;
    }
    if (!socket_is_same_user(fd)) {
        close(fd);
        return tdm_fail(err, TDM_ERR_PEER_REFUSED, "the socket of rank %d belongs to another user",
                        host->ranks[0]);
    }
    *out_fd = fd;
    return TDM_OK;
}

/* Keeps the descriptors of a message in the unused entries of `out`, and closes all others. */
static void message_take_fds(struct msghdr *message, int out[FD_COUNT])
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd = -1, place = 0;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
            while (out && place < FD_COUNT && out[place] >= 0) place++;
            if (out && place < FD_COUNT)
                out[place] = fd;
            else
                close(fd);
        }
    }
}

/* Reads one note, and its descriptors into those entries of `fds` that are -1. */
static tdm_status host_read_note(tdm__host *host, int fd, note_step step, note *out,
                                 int fds[FD_COUNT], tdm_error *err)
{
    double until_s = tdm_clock_s() + TDM__TIMING_SHM_JOIN_S;
    size_t got = 0;
    while (got < sizeof(*out)) {
        double left_s = until_s - tdm_clock_s();
        if (left_s <= 0)
            return tdm_fail(
                err, TDM_ERR_PEER_TIMEOUT,
                "rank %d did not answer the request for this host's shared memory within %.0f s",
                host->ranks[0], TDM__TIMING_SHM_JOIN_S);
        if (tdm__cancellation_is_due(&host->cancellation)) return host_wait_cancelled(host, err);
        struct pollfd poller = {.fd = fd, .events = POLLIN};
        left_s = tdm__cancellation_slice(&host->cancellation, left_s);
        if (poll(&poller, 1, (int)(left_s * 1000) + 1) <= 0) continue;
        union {
            struct cmsghdr align;
            char space[CMSG_SPACE(FD_COUNT * sizeof(int))];
        } control;
        struct iovec io = {.iov_base = (uint8_t *)out + got, .iov_len = sizeof(*out) - got};
        struct msghdr message = {.msg_iov = &io,
                                 .msg_iovlen = 1,
                                 .msg_control = control.space,
                                 .msg_controllen = sizeof(control.space)};
        ssize_t read_bytes = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (read_bytes < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (read_bytes <= 0)
            return tdm_fail(err, TDM_ERR_PEER_FAILED,
                            "rank %d closed the connection for this host's shared memory: it has "
                            "exited or failed, or another process connected as this rank",
                            host->ranks[0]);
        message_take_fds(&message, fds);
        got += (size_t)read_bytes;
    }
    if (!note_fits(host, out, step))
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "rank %d sent a message about the shared memory of another world",
                        host->ranks[0]);
    return TDM_OK;
}

/* Checks that the memory has the announced size and that the size is sealed. */
static tdm_status host_check_memory(const tdm__host *host, uint64_t bytes, tdm_error *err)
{
    struct stat about;
    const int must = F_SEAL_SHRINK | F_SEAL_GROW;
    if (host->memory_fd < 0 || fstat(host->memory_fd, &about) != 0 || about.st_size < 0 ||
        (uint64_t)about.st_size != bytes || (fcntl(host->memory_fd, F_GET_SEALS) & must) != must)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "the descriptor sent by rank %d is not the shared memory of this host",
                        host->ranks[0]);
    return TDM_OK;
}

tdm_status tdm__host_ask(tdm__host *host, const uint8_t *name, size_t name_bytes, tdm_error *err)
{
    int fd = -1;
    TDM_TRY(host_connect_lowest(host, name, name_bytes, &fd, err));
    note hello = note_of(host, STEP_HELLO, false), heard = {0};
    int fds[FD_COUNT] = {-1, -1};
    tdm_status status = TDM_OK;
    if (!note_send(fd, &hello, NULL))
        status = tdm_fail(err, TDM_ERR_PEER_FAILED, "cannot request shared memory from rank %d: %s",
                          host->ranks[0], strerror(errno));
    if (status == TDM_OK) status = host_read_note(host, fd, STEP_MEMORY, &heard, fds, err);
    host->memory_fd = fds[0];
    if (status == TDM_OK) {
        status = host_check_memory(host, heard.bytes, err);
        if (status == TDM_OK) status = tdm__host_map(host, heard.bytes, err);
        if (status == TDM_OK) status = tdm_shm_attach(fds[1], &host->shm, err);
        if (status == TDM_OK) status = tdm__host_enter(host, err);
        note ready = note_of(host, STEP_READY, status != TDM_OK);
        if (!note_send(fd, &ready, NULL) && status == TDM_OK)
            status = tdm_fail(err, TDM_ERR_PEER_FAILED,
                              "rank %d exited while shared memory was "
                              "passed on",
                              host->ranks[0]);
    }
    if (status == TDM_OK) status = host_read_note(host, fd, STEP_GO, &heard, NULL, err);
    if (status == TDM_OK && heard.bad)
        status = tdm_fail(
            err, TDM_ERR_PEER_FAILED,
            "a rank of this host could not map its shared memory: see rank %d's error",
            host->ranks[0]);
    if (fds[1] >= 0) close(fds[1]); /* tdm_shm_attach has duplicated it */
    close(fd);
    return status;
}
