/*
 * transport_test.c: a transport alone, between real processes: random traffic with checked bytes, peers that
 * are killed, stopped, or leave, and garbage on its ports.
 *
 *     comm_transport FILTER                  the UCX plugin, by fork
 *     comm_transport --under-mpi SEED        one rank of an mpirun, for the MPI plugin (transport_mpi_test.sh)
 *
 * Every rank computes the complete plan of messages from a seed. A process ends with 0 if everything expected
 * arrived, with the right bytes, and exits before it could wait forever.
 */
#include "base/base.h"
#include "check.h"
#include "comm/count_in.h"
#include "world.h"

#include "transport/plugin.h"
#include "transport/tcp.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MESSAGES = 12, MAX_BYTES_LOG2 = 20, KILLS = 2 };
#else
enum { MESSAGES = 60, MAX_BYTES_LOG2 = 23, KILLS = 8 };
#endif
enum { MAX_RANKS = 8, WINDOW = 12, WORLD = 77777 };

/* ---- what the processes of a test share ---------------------------------------------------------- */

typedef struct shared {
    uint8_t address[MAX_RANKS][TDM__MAX_ADDRESS];
    size_t address_bytes[MAX_RANKS];
    _Atomic int gates[16];
    _Atomic int moved; /* messages received, by all */
    _Atomic int stop;
    _Atomic double killed_s;
} shared;

static bool pass_gate(shared *s, int gate, int count, double seconds)
{
    atomic_fetch_add(&s->gates[gate], 1);
    for (double end_s = tdm_clock_s() + seconds; tdm_clock_s() < end_s; usleep(500))
        if (atomic_load(&s->gates[gate]) >= count) return true;
    return false;
}

/* ---- the plan --------------------------------------------------------------------------------- */

typedef struct planned {
    int to;
    size_t bytes;
} planned;

static planned plan_of(uint64_t seed, int size, int from, int index)
{
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = seed,
                                               .stream = TDM_RNG_STREAM_USER,
                                               .step = (uint64_t)from,
                                               .sample = (uint64_t)index});
    planned p;
    p.to = (from + 1 + (int)tdm_rng_below(&rng, (uint32_t)size - 1)) % size;
    uint32_t log2 = tdm_rng_below(&rng, MAX_BYTES_LOG2 + 1);
    p.bytes = log2 == 0 ? 0 : ((size_t)1 << log2) - tdm_rng_below(&rng, 1u << (log2 - 1));
    return p;
}

static uint64_t key_of(uint64_t seed, int from, int index)
{
    return (seed * 1000003 + (uint64_t)from * 8191 + (uint64_t)index) * 0x9e3779b97f4a7c15u | 1;
}

static void fill(uint8_t *data, size_t bytes, uint64_t key)
{
    for (size_t i = 0; i < bytes / 8; i++) {
        uint64_t word = key * (i + 1);
        memcpy(data + 8 * i, &word, 8);
    }
    for (size_t i = bytes & ~(size_t)7; i < bytes; i++) data[i] = (uint8_t)(key + i);
}

static bool filled(const uint8_t *data, size_t bytes, uint64_t key)
{
    for (size_t i = 0; i < bytes / 8; i++) {
        uint64_t word;
        memcpy(&word, data + 8 * i, 8);
        if (word != key * (i + 1)) return false;
    }
    for (size_t i = bytes & ~(size_t)7; i < bytes; i++)
        if (data[i] != (uint8_t)(key + i)) return false;
    return true;
}

/* ---- one rank --------------------------------------------------------------------------------- */

typedef struct message {
    struct node *node;
    int peer, index;
    size_t bytes;
    uint8_t *data;
    tdm__arrival *waiting; /* arrived and not taken yet */
    bool out, under_way, ended;
    tdm_status status;
} message;

typedef struct node {
    const tdm__transport_ops *ops;
    tdm__transport *transport;
    int rank, size;
    uint64_t seed;
    tdm_rng rng;
    message out[MESSAGES];
    message in[MAX_RANKS][MESSAGES];
    int posted, sending, sent, expected, received, delayed;
    bool lost[MAX_RANKS], gone[MAX_RANKS];
    double lost_s[MAX_RANKS];
    int failures; /* sends and takes that failed with a peer that is alive */
    int wrong;
    shared *shared;
} node;

static void complain(node *n, const char *what, int peer, int index)
{
    fprintf(stderr, "rank %d: %s (peer %d, message %d)\n", n->rank, what, peer, index);
    n->wrong++;
}

static void take(node *n, message *m)
{
    tdm__arrival *arrival = m->waiting;
    m->waiting = NULL;
    m->under_way = true;
    m->data = malloc(m->bytes + 1);
    n->ops->take(n->transport, arrival, m->data, m);
}

static void on_arrived(void *user, int peer, const tdm__head *head, tdm__arrival *arrival)
{
    node *n = user;
    if (!tdm__head_check(head, WORLD, n->size) || head->source != (uint32_t)peer ||
        head->step >= MESSAGES || head->count != n->seed) {
        complain(n, "a head that nobody sent", peer, (int)head->step);
        n->ops->drop(n->transport, arrival);
        return;
    }
    message *m = &n->in[peer][head->step];
    planned p = plan_of(n->seed, n->size, peer, (int)head->step);
    if (m->under_way || m->ended || m->waiting || p.to != n->rank || p.bytes != head->bytes)
        complain(n, "not what was planned", peer, (int)head->step);
    m->node = n;
    m->peer = peer;
    m->index = (int)head->step;
    m->bytes = head->bytes;
    m->waiting = arrival;
    if (tdm_rng_below(&n->rng, 3) == 0)
        n->delayed++;
    else
        take(n, m);
}

static void on_received(void *user, void *cookie, tdm_status status)
{
    node *n = user;
    message *m = cookie;
    if (!m->under_way || m->ended) complain(n, "received twice", m->peer, m->index);
    m->under_way = false;
    m->ended = true;
    m->status = status;
    if (status == TDM_OK) {
        if (!filled(m->data, m->bytes, key_of(n->seed, m->peer, m->index)))
            complain(n, "wrong bytes", m->peer, m->index);
        n->received++;
        if (n->shared) atomic_fetch_add(&n->shared->moved, 1);
        free(m->data);
        m->data = NULL;
    } else {
        n->failures++;
        if (!n->lost[m->peer]) n->lost_s[m->peer] = tdm_clock_s();
        n->lost[m->peer] = true;
    }
}

static void on_sent(void *user, void *cookie, tdm_status status)
{
    node *n = user;
    message *m = cookie;
    if (!m->under_way || m->ended) complain(n, "sent twice", m->peer, m->index);
    m->under_way = false;
    m->ended = true;
    m->status = status;
    n->sending--;
    n->sent++;
    if (status == TDM_OK) {
        free(m->data);
        m->data = NULL;
        return;
    }
    n->failures++;
    if (!n->lost[m->peer]) n->lost_s[m->peer] = tdm_clock_s();
    n->lost[m->peer] = true;
}

static void on_lost(void *user, int peer, const char *how)
{
    node *n = user;
    (void)how;
    if (!n->lost[peer]) n->lost_s[peer] = tdm_clock_s();
    n->lost[peer] = true;
}

static void post(node *n)
{
    message *m = &n->out[n->posted];
    planned p = plan_of(n->seed, n->size, n->rank, n->posted);
    *m = (message){.node = n,
                   .peer = p.to,
                   .index = n->posted,
                   .bytes = p.bytes,
                   .data = malloc(p.bytes + 1),
                   .out = true,
                   .under_way = true};
    n->posted++;
    n->sending++;
    fill(m->data, m->bytes, key_of(n->seed, n->rank, m->index));
    tdm__head head = {.world = WORLD,
                      .step = (uint32_t)m->index,
                      .kind = TDM_CALL_SEND,
                      .count = n->seed,
                      .bytes = m->bytes,
                      .source = (uint32_t)n->rank};
    tdm__head_seal(&head);
    n->ops->send(n->transport, m->peer, &head, m->data, m);
}

/* Takes one of those that were postponed. */
static void take_delayed(node *n)
{
    int first = (int)tdm_rng_below(&n->rng, (uint32_t)(n->size * MESSAGES));
    for (int k = 0; k < n->size * MESSAGES; k++) {
        int at = (first + k) % (n->size * MESSAGES);
        message *m = &n->in[at / MESSAGES][at % MESSAGES];
        if (!m->waiting) continue;
        n->delayed--;
        take(n, m);
        return;
    }
}

static void node_init(node *n, const tdm__transport_ops *ops, shared *s, int rank, int size,
                      uint64_t seed)
{
    memset(n, 0, sizeof(*n));
    n->ops = ops;
    n->shared = s;
    n->rank = rank;
    n->size = size;
    n->seed = seed;
    n->rng = tdm_rng_at((tdm_rng_address){
        .seed = seed, .stream = TDM_RNG_STREAM_USER, .step = (uint64_t)rank + 1000});
    for (int from = 0; from < size; from++)
        for (int i = 0; i < MESSAGES; i++) n->expected += plan_of(seed, size, from, i).to == rank;
}

static tdm_security security = TDM_SECURITY_AUTO;

static bool node_create(node *n, int streams, uint8_t *address, size_t *bytes)
{
    static const int host_of[MAX_RANKS] = {0};
    tdm__transport_options options = {.rank = n->rank,
                                      .size = n->size,
                                      .host_of = host_of,
                                      .world = WORLD,
                                      .streams = streams,
                                      .key = "a key of this world",
                                      .security.mode = security,
                                      .events = {n, on_arrived, on_received, on_sent, on_lost}};
    tdm_error err = {0};
    tdm_status status = n->ops->create(&options, &n->transport, address, bytes, &err);
    if (status != TDM_OK) fprintf(stderr, "rank %d: %s\n", n->rank, err.message);
    return status == TDM_OK;
}

static bool node_connect(node *n, uint8_t (*address)[TDM__MAX_ADDRESS], size_t *bytes)
{
    const uint8_t *addresses[MAX_RANKS];
    for (int i = 0; i < n->size; i++) addresses[i] = address[i];
    tdm_error err = {0};
    tdm_status status = n->ops->connect(n->transport, addresses, bytes, &err);
    if (status != TDM_OK) fprintf(stderr, "rank %d: %s\n", n->rank, err.message);
    return status == TDM_OK;
}

/* One iteration of the loop that an engine would run. */
static void node_turn(node *n, double wait_s)
{
    if (n->posted < MESSAGES && n->sending < WINDOW) post(n);
    int did = n->ops->progress(n->transport);
    if (n->delayed > 0 && tdm_rng_below(&n->rng, 4) == 0) take_delayed(n);
    if (did == 0 && (n->posted == MESSAGES || n->sending >= WINDOW))
        n->ops->wait(n->transport, n->delayed > 0 ? 0 : wait_s);
}

static bool traffic(node *n, double seconds)
{
    double end_s = tdm_clock_s() + seconds;
    while (n->sent < MESSAGES || n->received < n->expected) {
        node_turn(n, 0.05);
        if (tdm_clock_s() > end_s) {
            fprintf(stderr, "rank %d: sent %d of %d, received %d of %d, then time was over\n",
                    n->rank, n->sent, MESSAGES, n->received, n->expected);
            return false;
        }
    }
    return n->failures == 0 && n->wrong == 0;
}

static void serve(node *n, double seconds)
{
    for (double end_s = tdm_clock_s() + seconds; tdm_clock_s() < end_s;)
        if (n->ops->progress(n->transport) == 0) n->ops->wait(n->transport, 0.01);
}

/* ---- processes -------------------------------------------------------------------------------- */

typedef struct job {
    shared *shared;
    int rank, size, streams;
    uint64_t seed;
    int victim, threads;
    int (*run)(struct job *job, node *n); /* in the child, on a connected node; its exit code */
} job;

static const tdm__transport_ops *open_module(const char *name, const char *path)
{
    tdm_error err = {0};
    const tdm__transport_ops *ops = NULL;
    if (tdm__module_open(name, path, &ops, &err) != TDM_OK) fprintf(stderr, "%s\n", err.message);
    return ops;
}

/* The transport that the tests below use. */
static enum { TCP, TCP_TLS, UCX } subject;

static const tdm__transport_ops *open_subject(void)
{
#ifdef UCX_MODULE
    if (subject == UCX) return open_module("ucx", UCX_MODULE);
#endif
    return &tdm__transport_tcp;
}

static int run_bothered(job *j, node *n);

static void child(job j)
{
    j.threads = count_in("/proc/self/task");
    const tdm__transport_ops *ops = open_subject();
    security = subject == TCP_TLS ? TDM_SECURITY_PSK : TDM_SECURITY_AUTO;
    node *n = malloc(sizeof(*n));
    if (!ops || !n) _exit(20);
    node_init(n, ops, j.shared, j.rank, j.size, j.seed);
    shared *s = j.shared;
    if (!node_create(n, j.streams, s->address[j.rank], &s->address_bytes[j.rank])) _exit(21);
    if (!pass_gate(s, 0, j.size + (j.run == run_bothered), 20)) _exit(22);
    if (!node_connect(n, s->address, s->address_bytes)) _exit(23);
    atomic_fetch_add(&s->gates[4], 1);
    _exit(j.run(&j, n));
}

typedef struct crowd {
    shared *shared;
    pid_t pids[MAX_RANKS];
    int size;
} crowd;

static crowd start(int size, int streams, uint64_t seed, int victim, int (*run)(job *, node *))
{
    crowd c = {.size = size};
    c.shared = mmap(NULL, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                    0);
    for (int i = 0; i < size; i++) {
        c.pids[i] = world_fork(250);
        if (c.pids[i] == 0)
            child((job){.shared = c.shared,
                        .rank = i,
                        .size = size,
                        .streams = streams,
                        .seed = seed,
                        .victim = victim,
                        .run = run});
    }
    return c;
}

static void finish(crowd *c, int victim)
{
    for (int i = 0; i < c->size; i++) {
        int end = world_end(c->pids[i]);
        if (i == victim) continue;
        if (end != 0) fprintf(stderr, "rank %d of %d ended with %d\n", i, c->size, end);
        CHECK_INT(end, 0);
    }
    munmap(c->shared, sizeof(shared));
}

/* ---- traffic ---------------------------------------------------------------------------------- */

static int run_traffic(job *j, node *n)
{
    if (!traffic(n, 60)) return 1;
    if (!pass_gate(j->shared, 1, j->size, 30)) return 2;
    n->ops->destroy(n->transport);
    return n->wrong ? 3 : 0;
}

static void test_traffic(void)
{
    static const struct {
        int size, streams;
    } cases[] = {{2, 1}, {3, 1}, {5, 2}, {2, 3}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        crowd c = start(cases[i].size, cases[i].streams, 100 + i, -1, run_traffic);
        finish(&c, -1);
    }
}

/* Nothing is left after destroy(): descriptors, threads, signal handlers. */
static int run_again(job *j, node *n)
{
    if (!traffic(n, 60) || !pass_gate(j->shared, 1, j->size, 30)) return 1;
    n->ops->destroy(n->transport);
    int fds = count_in("/proc/self/fd"), threads = j->threads;
#ifdef __SANITIZE_THREAD__ /* which starts another thread with our first one */
    threads = count_in("/proc/self/task");
#endif
    if (count_left_in("/proc/self/task", threads) != threads) return 10;
    shared *s = j->shared;
    node_init(n, n->ops, s, j->rank, j->size, j->seed + 1);
    if (!node_create(n, 1, s->address[j->rank], &s->address_bytes[j->rank])) return 2;
    if (!pass_gate(s, 2, j->size, 20)) return 3;
    if (!node_connect(n, s->address, s->address_bytes)) return 4;
    if (!traffic(n, 60) || !pass_gate(s, 3, j->size, 30)) return 5;
    n->ops->destroy(n->transport);
    if (count_in("/proc/self/fd") != fds) return 11;
    if (count_left_in("/proc/self/task", threads) != threads) return 12;
    for (int sig = 1; sig < 32; sig++) {
        struct sigaction action;
        if (sig == SIGALRM || sigaction(sig, NULL, &action) != 0) continue;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        if (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN) return 13;
#endif
    }
    return 0;
}

static void test_nothing_left(void)
{
    crowd c = start(3, 1, 200, -1, run_again);
    finish(&c, -1);
}

/* ---- peers that end ---------------------------------------------------------------------------- */

/* The number of pending transfers with this peer. */
static int under_way(const node *n, int peer)
{
    int count = 0;
    for (int i = 0; i < MESSAGES; i++)
        count += n->in[peer][i].under_way + (n->out[i].peer == peer && n->out[i].under_way);
    return count;
}

/* The number of messages still to be received or sent, over the living ranks. */
static void tell_missing(const node *n, int victim)
{
    for (int i = 0; i < MESSAGES; i++) {
        const message *m = &n->out[i];
        if (i >= n->posted || !m->ended)
            fprintf(stderr, "rank %d: message %d to %d, %zu bytes, is %s\n", n->rank, i, m->peer,
                    m->bytes, i >= n->posted ? "not posted" : "not sent");
        for (int from = 0; from < n->size; from++) {
            const message *in = &n->in[from][i];
            planned p = plan_of(n->seed, n->size, from, i);
            if (from == victim || p.to != n->rank || in->ended) continue;
            fprintf(stderr, "rank %d: message %d from %d, %zu bytes, %s\n", n->rank, i, from,
                    p.bytes,
                    in->waiting     ? "is not taken"
                    : in->under_way ? "is on its way"
                                    : "has not arrived");
        }
    }
}

/* Traffic without end; when the victim is lost it is forgotten, and all transfers with it must have ended. */
static int run_kill(job *j, node *n)
{
    if (j->rank == j->victim) {
        for (;;) {
            node_turn(n, 0.01);
            if (n->sent == MESSAGES && n->received == n->expected) {
                pass_gate(j->shared, 3, 1, 0);
                for (;;) serve(n, 1);
            }
        }
    }
    double end_s = tdm_clock_s() + 30;
    while (!n->lost[j->victim]) {
        node_turn(n, 0.05);
        if (tdm_clock_s() > end_s) return 1;
    }
    double late_s = n->lost_s[j->victim] - atomic_load(&j->shared->killed_s);
    n->ops->forget(n->transport, j->victim);
    n->gone[j->victim] = true;
    if (under_way(n, j->victim) != 0) return 2;
    for (int i = 0; i < n->size; i++)
        if (i != j->victim && n->lost[i]) return 3;
    if (late_s > 10) {
        fprintf(stderr, "rank %d: noticed after %.3f s\n", j->rank, late_s);
        return 4;
    }
    /* The others must continue without any effect. */
    int left = n->expected;
    for (int i = 0; i < MESSAGES; i++)
        left -= plan_of(n->seed, n->size, j->victim, i).to == n->rank;
    for (end_s = tdm_clock_s() + 30;;) {
        int got = 0;
        for (int from = 0; from < n->size; from++)
            for (int i = 0; i < MESSAGES && from != j->victim; i++)
                got += n->in[from][i].ended && n->in[from][i].status == TDM_OK;
        if (got == left && n->sent == MESSAGES) break;
        node_turn(n, 0.05);
        if (tdm_clock_s() > end_s) {
            tell_missing(n, j->victim);
            return 5;
        }
    }
    if (n->wrong) return 6;
    if (!pass_gate(j->shared, 1, j->size - 1, 30)) return 7;
    n->ops->destroy(n->transport);
    return 0;
}

static void test_kill(void)
{
    for (int i = 0; i < KILLS; i++) {
        int victim = i % 3;
        crowd c = start(3, 1 + i % 2, 300 + (uint64_t)i, victim, run_kill);
        /* At some moment of the traffic; with the last messages, before and after it. */
        int messages = i == 0 ? 0 : i * 3 * MESSAGES / KILLS;
        double end_s = tdm_clock_s() + 20;
        while (tdm_clock_s() < end_s &&
               (atomic_load(&c.shared->gates[4]) < 3 || atomic_load(&c.shared->moved) < messages))
            usleep(200);
        usleep(i == 0 ? 100000 : 0);
        atomic_store(&c.shared->killed_s, tdm_clock_s());
        kill(c.pids[victim], SIGKILL);
        finish(&c, victim);
    }
}

/* A peer that is stopped is forgotten; when it continues, it must not write to the memory of its old buffers.
 * */
static int run_stop(job *j, node *n)
{
    if (j->rank == j->victim) {
        while (!atomic_load(&j->shared->stop)) node_turn(n, 0.01);
        for (double end_s = tdm_clock_s() + 1.0; tdm_clock_s() < end_s;) node_turn(n, 0.01);
        return 0;
    }
    double end_s = tdm_clock_s() + 20;
    while (atomic_load(&j->shared->gates[2]) == 0 && tdm_clock_s() < end_s) node_turn(n, 0.001);
    for (end_s = tdm_clock_s() + 0.2; tdm_clock_s() < end_s;) node_turn(n, 0.01);
    double before_s = tdm_clock_s();
    n->ops->forget(n->transport, j->victim);
    if (tdm_clock_s() - before_s > 10) return 1;
    if (under_way(n, j->victim) != 0) return 2;
    for (int i = 0; i < MESSAGES; i++) {
        message *m = &n->in[j->victim][i];
        if (m->data) memset(m->data, 0x5a, m->bytes);
    }
    if (!pass_gate(j->shared, 1, j->size - 1, 20)) return 3; /* the parent continues the victim */
    while (!atomic_load(&j->shared->stop)) serve(n, 0.01);
    serve(n, 1.0);
    for (int i = 0; i < MESSAGES; i++) {
        const message *m = &n->in[j->victim][i];
        for (size_t k = 0; m->data && k < m->bytes; k++)
            if (m->data[k] != 0x5a) return 4;
    }
    n->ops->destroy(n->transport);
    return n->wrong ? 5 : 0;
}

static void test_stop(void)
{
    for (int i = 0; i < KILLS / 2; i++) {
        int victim = i % 3;
        crowd c = start(3, 1, 400 + (uint64_t)i, victim, run_stop);
        int messages = (i + 1) * 3 * MESSAGES / (KILLS / 2 + 2);
        double end_s = tdm_clock_s() + 20;
        while (tdm_clock_s() < end_s && atomic_load(&c.shared->moved) < messages) usleep(100);
        kill(c.pids[victim], SIGSTOP);
        atomic_store(&c.shared->gates[2], 1);
        end_s = tdm_clock_s() + 20;
        while (tdm_clock_s() < end_s && atomic_load(&c.shared->gates[1]) < 2) usleep(1000);
        atomic_store(&c.shared->stop, 1);
        kill(c.pids[victim], SIGCONT);
        finish(&c, victim);
    }
}

/* A rank that leaves normally does not count as lost. */
static int run_leave(job *j, node *n)
{
    if (!traffic(n, 60) || !pass_gate(j->shared, 1, j->size, 30)) return 1;
    if (j->rank == 0) {
        n->ops->destroy(n->transport);
        return 0;
    }
    serve(n, 0.5);
    for (int i = 0; i < n->size; i++)
        if (n->lost[i]) return 2;
    n->ops->forget(n->transport, 0);
    if (!pass_gate(j->shared, 2, j->size - 1, 30)) return 3;
    n->ops->destroy(n->transport);
    return 0;
}

static void test_leave(void)
{
    crowd c = start(3, 2, 500, -1, run_leave);
    finish(&c, -1);
}

/* ---- strangers -------------------------------------------------------------------------------- */

/* The TCP ports on which a process listens. */
static int ports_of(pid_t pid, uint16_t *out, int max)
{
    char path[64], line[512], link[64];
    unsigned long inodes[256];
    int inode_count = 0, count = 0;
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir)) && inode_count < 256;) {
        ssize_t length = readlinkat(dirfd(dir), e->d_name, link, sizeof(link) - 1);
        if (length <= 0) continue;
        link[length] = '\0';
        if (sscanf(link, "socket:[%lu]", &inodes[inode_count]) == 1) inode_count++;
    }
    if (dir) closedir(dir);
    FILE *file = fopen("/proc/net/tcp", "re");
    while (file && fgets(line, sizeof(line), file)) {
        unsigned port, state;
        unsigned long inode;
        if (sscanf(line, " %*d: %*x:%x %*x:%*x %x %*s %*s %*s %*s %*s %lu", &port, &state,
                   &inode) != 3 ||
            state != 10)
            continue;
        for (int i = 0; i < inode_count; i++)
            if (inodes[i] == inode && count < max) out[count++] = (uint16_t)port;
    }
    if (file) fclose(file);
    return count;
}

static void bother(uint16_t port, uint64_t seed)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    uint8_t garbage[4096];
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = seed, .stream = TDM_RNG_STREAM_USER});
    for (size_t i = 0; i < sizeof(garbage); i++) garbage[i] = (uint8_t)tdm_rng_below(&rng, 256);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0) {
        size_t bytes = seed % 3 == 0 ? 0 : seed % 3 == 1 ? sizeof(http) - 1 : 1 + seed % 4096;
        const void *data = seed % 3 == 1 ? (const void *)http : garbage;
        if (bytes > 0 && send(fd, data, bytes, MSG_NOSIGNAL) < 0) errno = 0;
        usleep(seed % 5 == 0 ? 3000 : 0);
    }
    if (fd >= 0) close(fd);
}

static int run_bothered(job *j, node *n)
{
    if (subject == UCX && !pass_gate(j->shared, 2, j->size + 1, 30))
        return 1; /* the first unauthenticated peers have connected */
    return run_traffic(j, n);
}

/* Unauthenticated peers connect before the ranks do, at the same time, and (UCX keeps listening) afterwards.
 * */
static void test_strangers(void)
{
    crowd c = start(3, 1, 600, -1, run_bothered);
    double end_s = tdm_clock_s() + 20;
    while (tdm_clock_s() < end_s && atomic_load(&c.shared->gates[0]) < c.size) usleep(1000);
    uint64_t seed = 1;
    int ports = 0;
    for (int round = 0; round < 40; round++)
        for (int i = 0; i < c.size; i++) {
            uint16_t port[8];
            int count = ports_of(c.pids[i], port, 8);
            ports += count;
            for (int k = 0; k < count; k++) bother(port[k], seed++);
            if (round == 5 && i == 0) {
                atomic_fetch_add(&c.shared->gates[0], 1);
                atomic_fetch_add(&c.shared->gates[2], 1);
            }
        }
    CHECK(ports > 0);
    for (int i = 0; i < c.size && subject != UCX; i++) { /* no process listens any more */
        uint16_t port[8];
        CHECK_INT(ports_of(c.pids[i], port, 8), 0);
    }
    finish(&c, -1);
}

/* Each of these for each transport. */
#define FOR(name, what, test)                                                                      \
    static void name##_##test(void)                                                                \
    {                                                                                              \
        subject = what;                                                                            \
        test_##test();                                                                             \
    }
#define FOR_ALL(name, what)                                                                        \
    FOR(name, what, traffic)                                                                       \
    FOR(name, what, nothing_left)                                                                  \
    FOR(name, what, kill)                                                                          \
    FOR(name, what, stop)                                                                          \
    FOR(name, what, leave)                                                                         \
    FOR(name, what, strangers)
#define LIST_ALL(name)                                                                             \
    CHECK_TEST(name##_traffic), CHECK_TEST(name##_nothing_left), CHECK_TEST(name##_kill),          \
        CHECK_TEST(name##_stop), CHECK_TEST(name##_leave), CHECK_TEST(name##_strangers)
FOR_ALL(tcp, TCP)
FOR_ALL(tls, TCP_TLS)
#ifdef UCX_MODULE
FOR_ALL(ucx, UCX)
#endif

/* ---- the module's own words -------------------------------------------------------------------- */

static void test_module_errors(void)
{
    tdm_error err = {0};
    const tdm__transport_ops *ops = NULL;
    CHECK_INT(tdm__module_find("pigeon", &ops, &err), TDM_ERR_NOT_FOUND);
    CHECK_HAS(err.message, "pigeon");
    CHECK_INT(tdm__module_open("ucx", "/nowhere/libtandem-ucx.so", &ops, &err), TDM_ERR_FORMAT);
    CHECK_HAS(err.message, "libucx0");
    CHECK_INT(tdm__module_open("ucx", "libm.so.6", &ops, &err), TDM_ERR_FORMAT);
    CHECK_HAS(err.message, "not a Tandem transport");
    CHECK(ops == NULL);
#ifdef UCX_MODULE
    CHECK_INT(tdm__module_open("mpi", UCX_MODULE, &ops, &err), TDM_ERR_FORMAT);
    CHECK_HAS(err.message, "another transport");
    CHECK_INT(tdm__module_open("ucx", UCX_MODULE, &ops, &err), TDM_OK);
    char why[160] = "x", library[TDM_LIBRARY_BYTES] = "";
    CHECK(ops && ops->usable(why, library));
    CHECK_HAS(library, "UCX 1.");
#endif
}

/* ---- under mpirun ------------------------------------------------------------------------------ */

#ifdef MPI_MODULE
static int under_mpi(int rank, int size, uint64_t seed)
{
    alarm(250);
    const tdm__transport_ops *ops = open_module("mpi", MPI_MODULE);
    node *n = malloc(sizeof(*n));
    static uint8_t addresses[MAX_RANKS][TDM__MAX_ADDRESS];
    size_t bytes[MAX_RANKS] = {0};
    if (!ops || !n || rank < 0 || size < 1 || size > MAX_RANKS) return 20;
    node_init(n, ops, NULL, rank, size, seed);
    if (!node_create(n, 1, addresses[rank], &bytes[rank])) return 21;
    for (int i = 0; i < size; i++) bytes[i] = bytes[rank];
    if (!node_connect(n, addresses, bytes)) return 22;
    bool good = traffic(n, 60);
    n->ops->destroy(n->transport);
    free(n);
    return good ? 0 : 1;
}

static int number(const char *text)
{
    return text ? (int)strtol(text, NULL, 10) : -1;
}

/* -1: no threading mode of MPI was requested. */
static int mpi_modes(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--has-mpi") == 0) return 0;
    if (argc > 3 && strcmp(argv[1], "--under-mpi-as") == 0)
        return under_mpi(number(argv[2]), number(argv[3]), 1);
    if (argc < 3 || strcmp(argv[1], "--under-mpi") != 0) return -1;
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *size = getenv("OMPI_COMM_WORLD_SIZE");
    if (!rank) rank = getenv("PMI_RANK");
    if (!size) size = getenv("PMI_SIZE");
    return under_mpi(number(rank), number(size), (uint64_t)number(argv[2]));
}
#endif

static const check_test tests[] = {
    CHECK_TEST(test_module_errors),
    LIST_ALL(tcp),
    LIST_ALL(tls),
#ifdef UCX_MODULE
    LIST_ALL(ucx),
#endif
};

int main(int argc, char **argv)
{
#ifdef __SANITIZE_THREAD__
    if (argc > 1 && strcmp(argv[1], "--has-mpi") == 0)
        return 1; /* an error inside Open MPI itself */
#endif
#ifdef MPI_MODULE
    int code = mpi_modes(argc, argv);
    fflush(NULL);
    if (code >= 0) _exit(code); /* MPI leaks memory: leak detection is off */
#else
    if (argc > 1 && strncmp(argv[1], "--", 2) == 0) return 1;
#endif
#ifndef UCX_MODULE
    fprintf(stderr, "built without UCX (libucx-dev): its transport is not tested\n");
#endif
    return check_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
