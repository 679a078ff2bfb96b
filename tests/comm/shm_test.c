/*
 * shm_test.c: messages between the processes of one host: random traffic with every kind of payload, messages
 * taken in any order, senders that are ahead of receivers, ranks killed at any moment, neighbours that write
 * garbage, and waits that must neither sleep too long nor spin.
 */
#include "shm_bench.h"

#include "transport/shm_inner.h"

#include <errno.h>
#include <pthread.h>
#include <sys/resource.h>
#include <time.h>

static traffic_shared *shared_new(void)
{
    traffic_shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
                                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    return shared;
}

static tdm__transport *transport_new(host_bench *b, tdm__transport_events events)
{
    tdm__transport_options options = {
        .rank = b->rank, .size = b->size, .world = HOST_BENCH_WORLD, .events = events};
    tdm__transport *transport = NULL;
    tdm_error err = {0};
    CHECK_INT(tdm__shm_create(b->host, &options, &transport, &err), TDM_OK);
    return transport;
}

/* ---- random traffic ---------------------------------------------------------------------------- */

static void random_traffic(host_bench *b)
{
    traffic *t = malloc(sizeof(*t));
    traffic_init(t, b->rank, b->size, HOST_BENCH_SCALE(600, 40) / b->size, 77 + (uint64_t)b->size);
    t->shared = b->context;
    t->host = b->host;
    t->transport = transport_new(b, traffic_events(t));
    traffic_run(t);
    CHECK(traffic_is_over(t));
    for (int i = 0; i < b->size; i++) CHECK(!t->lost[i]);
    t->transport->ops->destroy(t->transport);
    free(t);
}

static void traffic_between(void)
{
    const int sizes[] = {2, 3, 5, 8};
    for (int i = 0; i < 4; i++) {
        traffic_shared *shared = shared_new();
        host_bench_run(
            &(host_bench_options){.size = sizes[i], .body = random_traffic, .context = shared});
        munmap(shared, sizeof(*shared));
    }
}

/* ---- order ------------------------------------------------------------------------------------- */

/* A receiver that needs the last message first: it leaves all others waiting. */
typedef struct keeper {
    traffic_shared *shared;
    tdm__arrival *kept[20000];
    uint8_t into[1 << 16];
    int kept_count, received_count, sent_count, bad_count, lost_count;
    bool last_came;
} keeper;

enum { CROWD = 1200, LAST_STEP = 999999 };

static void keeper_arrived(void *user, int peer, const tdm__head *head, tdm__arrival *arrival)
{
    (void)peer;
    keeper *k = user;
    if (head->step == LAST_STEP) k->last_came = true;
    k->kept[k->kept_count++] = arrival;
}

static void keeper_received(void *user, void *cookie, tdm_status status)
{
    (void)cookie;
    ((keeper *)user)->received_count++;
    if (status != TDM_OK) ((keeper *)user)->bad_count++;
}

static void keeper_sent(void *user, void *cookie, tdm_status status)
{
    (void)cookie;
    ((keeper *)user)->sent_count++;
    if (status != TDM_OK) ((keeper *)user)->bad_count++;
}

static void keeper_lost(void *user, int peer, const char *how)
{
    (void)peer;
    CHECK(how[0] != '\0');
    ((keeper *)user)->lost_count++;
}

static tdm__transport_events keeper_events(keeper *k)
{
    return (tdm__transport_events){.user = k,
                                   .arrived = keeper_arrived,
                                   .received = keeper_received,
                                   .sent = keeper_sent,
                                   .lost = keeper_lost};
}

static void send_to(tdm__transport *t, int from, int to, uint32_t step, const void *data,
                    uint64_t bytes)
{
    tdm__head head = {.world = HOST_BENCH_WORLD,
                      .step = step,
                      .kind = TDM_CALL_SEND,
                      .bytes = bytes,
                      .source = (uint32_t)from};
    tdm__head_seal(&head);
    t->ops->send(t, to, &head, data, NULL);
}

/* Makes progress until *count is `wanted`, or for a long time. */
static bool run_until(tdm__transport *t, const int *count, int wanted)
{
    double until_s = tdm_clock_s() + STUCK_S;
    while (*count < wanted && tdm_clock_s() < until_s)
        if (t->ops->progress(t) == 0) t->ops->wait(t, 0.05);
    CHECK(*count >= wanted);
    return *count >= wanted;
}

static void run_until_word(tdm__transport *t, _Atomic int *word, int wanted)
{
    double until_s = tdm_clock_s() + STUCK_S;
    while (atomic_load(word) < wanted && tdm_clock_s() < until_s)
        if (t->ops->progress(t) == 0) t->ops->wait(t, 0.005);
    CHECK(atomic_load(word) >= wanted);
}

static void last_first(host_bench *b)
{
    keeper *k = calloc(1, sizeof(*k));
    k->shared = b->context;
    tdm__transport *t = transport_new(b, keeper_events(k));
    uint8_t *data = calloc(1, 4096);
    if (b->rank == 0) {
        for (uint32_t i = 0; i < CROWD; i++) send_to(t, 0, 1, i, data, 4096);
        send_to(t, 0, 1, LAST_STEP, data, 4096);
        run_until_word(t, &k->shared->word[0], 1);
        /* A sender that is ahead is delayed: the amount of data that waits untaken is bounded. */
        CHECK(k->sent_count <= TDM__SHM_RING_CREDIT / 4096);
        CHECK(k->sent_count > 50);
        atomic_store(&k->shared->word[1], 1); /* now they may be taken */
        run_until(t, &k->sent_count, CROWD + 1);
    } else {
        double until_s = tdm_clock_s() + STUCK_S;
        while (!k->last_came && tdm_clock_s() < until_s)
            if (t->ops->progress(t) == 0) t->ops->wait(t, 0.05);
        CHECK(k->last_came);
        atomic_store(&k->shared->word[0], 1);
        run_until_word(t, &k->shared->word[1], 1);
        for (int i = k->kept_count - 1; i >= 0; i--) t->ops->take(t, k->kept[i], k->into, NULL);
        run_until(t, &k->received_count, CROWD + 1);
    }
    CHECK_INT(k->bad_count, 0);
    atomic_fetch_add(&k->shared->done_count, 1);
    run_until_word(t, &k->shared->done_count, 2);
    t->ops->destroy(t);
    free(data);
    free(k);
}

static void the_last_may_be_first(void)
{
    traffic_shared *shared = shared_new();
    host_bench_run(&(host_bench_options){.size = 2, .body = last_first, .context = shared});
    munmap(shared, sizeof(*shared));
}

/* ---- death ------------------------------------------------------------------------------------- */

/* The last rank is killed during the traffic; the others are notified a little later. */
static void traffic_with_a_death(host_bench *b)
{
    traffic *t = malloc(sizeof(*t));
    traffic_init(t, b->rank, b->size, HOST_BENCH_SCALE(150, 20), 1234);
    t->shared = b->context;
    t->host = b->host;
    t->may_die = true;
    t->transport = transport_new(b, traffic_events(t));
    if (b->rank == b->size - 1) {
        long after_ns = 100000 + (long)atomic_load(&t->shared->word[0]) * 997331L % 60000000;
        pid_t me = getpid();
        if (fork() == 0) {
            nanosleep(&(struct timespec){.tv_nsec = after_ns}, NULL);
            kill(me, SIGKILL);
            nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
            atomic_store(&t->shared->dead, b->size);
            _exit(0);
        }
        t->left_from[0] = 1 << 20; /* it never ends by itself */
    }
    traffic_run(t);
    CHECK(t->forgotten[b->size - 1]);
    t->transport->ops->destroy(t->transport);
    free(t);
}

static void ranks_are_killed(void)
{
    for (int round = 0; round < HOST_BENCH_SCALE(12, 3); round++) {
        traffic_shared *shared = shared_new();
        atomic_store(&shared->word[0], round * 7 + 1);
        int ends[3];
        host_bench_run(&(host_bench_options){
            .size = 3, .body = traffic_with_a_death, .context = shared, .out_ends = ends});
        CHECK_INT(ends[0], HOST_BENCH_ENDED_WELL);
        CHECK_INT(ends[1], HOST_BENCH_ENDED_WELL);
        CHECK_INT(ends[2], HOST_BENCH_KILLED);
        munmap(shared, sizeof(*shared));
    }
}

/* Rank 1 gives up rank 0, which is alive: rank 0's sends end, and it is notified. */
static void given_up(host_bench *b)
{
    keeper *k = calloc(1, sizeof(*k));
    k->shared = b->context;
    tdm__transport *t = transport_new(b, keeper_events(k));
    uint64_t offset = 0;
    const size_t bytes = 1 << 20;
    CHECK_INT(tdm__host_alloc(b->host, bytes, &offset, NULL), TDM_OK);
    uint8_t *heap = calloc(1, bytes);
    if (b->rank == 0) {
        send_to(t, 0, 1, 1, heap, 100);
        send_to(t, 0, 1, 2, heap, bytes);
        send_to(t, 0, 1, 3, tdm__host_at(b->host, offset), bytes);
        run_until(t, &k->sent_count, 3);
        CHECK_INT(k->bad_count, 2);
        CHECK_INT(k->lost_count, 1);
        send_to(t, 0, 1, 4, heap, 100); /* fails at once */
        CHECK_INT(k->bad_count, 3);
    } else {
        run_until(t, &k->kept_count, 3);
        t->ops->take(t, k->kept[1], heap, NULL);
        t->ops->forget(t, 0);
        t->ops->forget(t, 0); /* a second call has no effect */
        CHECK_INT(k->received_count, 1);
        CHECK_INT(k->bad_count, 1);
        t->ops->take(t, k->kept[2], heap, NULL); /* too late */
        CHECK_INT(k->bad_count, 2);
        t->ops->drop(t, k->kept[0]);
        CHECK_INT(k->lost_count, 0);
    }
    atomic_fetch_add(&k->shared->done_count, 1);
    run_until_word(t, &k->shared->done_count, 2);
    t->ops->destroy(t);
    free(heap);
    free(k);
}

static void a_living_rank_is_given_up(void)
{
    traffic_shared *shared = shared_new();
    host_bench_run(&(host_bench_options){.size = 2, .body = given_up, .context = shared});
    munmap(shared, sizeof(*shared));
}

/* ---- nonsense ---------------------------------------------------------------------------------- */

/* A record with a valid form and impossible contents. */
static void write_lie(tdm__shm_ring_end *out, int which, uint64_t segment_bytes)
{
    out->record_at = out->ring->record_tail;
    out->record_seen = out->ring->record_head;
    tdm__head head = {.world = HOST_BENCH_WORLD,
                      .kind = TDM_CALL_SEND,
                      .bytes = which == 0 ? 64 : 8192,
                      .source = 1};
    if (which == 3) head.world++;
    if (which == 4) head.source = 2;
    tdm__head_seal(&head);
    if (which == 5) head.count++;
    uint32_t bytes = sizeof(tdm__record) + (which == 2 ? 0 : sizeof(head));
    tdm__record *record = tdm__shm_ring_begin(out, bytes);
    CHECK(record);
    if (!record) return;
    *record = (tdm__record){.kind = TDM__RECORD_ANNOUNCE, .bytes = bytes, .token = 0x700000001};
    if (which == 0) record->kind = TDM__RECORD_EAGER; /* without its payload */
    if (which == 1) {
        record->kind = TDM__RECORD_INPLACE;
        record->offset = segment_bytes - 4096;
    }
    if (which == 2) record->kind = TDM__RECORD_GO; /* for a message that was never announced */
    if (which != 2) memcpy(record + 1, &head, sizeof(head));
    tdm__shm_ring_commit(out, bytes);
}

enum { LIES = 6, SPOILS = 4 };

/* Every round corrupts something else: indices, records, pieces; or sends a false value. */
static void go_mad(host_bench *b, int round)
{
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = (uint64_t)round, .stream = 3});
    tdm__shm_ring_end out = {0}, in = {0};
    CHECK(tdm__shm_ring_find(b->host, 1, 0, &out) && tdm__shm_ring_find(b->host, 0, 1, &in));
    int which = round % (SPOILS + LIES);
    if (which == 0) out.ring->record_tail += tdm_rng_u32(&rng) | 1;
    if (which == 1) in.ring->record_head += tdm_rng_u32(&rng) | 1;
    if (which == 2) {
        for (int i = 0; i < 4000; i++) {
            size_t at = tdm_rng_below(&rng, out.sizes.record_bytes / 8);
            ((_Atomic uint64_t *)out.records)[at] = tdm_rng_u64(&rng);
        }
        out.ring->record_tail += 64;
    }
    if (which == 3) {
        in.ring->piece_head += 1000;
        out.ring->piece_tail += 1 + tdm_rng_below(&rng, 20);
    }
    if (which >= SPOILS) write_lie(&out, which - SPOILS, b->host->at.end);
    tdm__host_ring(b->host, 0);
}

/* Rank 1 writes garbage to its rings; rank 0 survives, and rank 2 is not affected. */
static void mad_neighbour(host_bench *b)
{
    keeper *k = calloc(1, sizeof(*k));
    k->shared = b->context;
    tdm__transport *t = transport_new(b, keeper_events(k));
    uint8_t *data = calloc(1, 1 << 16);
    if (b->rank == 1) {
        send_to(t, 1, 0, 1, data, 1 << 15);
        send_to(t, 1, 0, 2, data, 40);
        run_until(t, &k->kept_count, 2);
        go_mad(b, atomic_load(&k->shared->word[1]));
        atomic_store(&k->shared->word[0], 1);
        /* It makes no progress, so that the corruption stays. */
        while (atomic_load(&k->shared->done_count) < 2) usleep(1000);
    } else {
        int other = 2 - b->rank;
        for (uint32_t i = 0; i < 50; i++) send_to(t, b->rank, other, i, data, i * 900);
        if (b->rank == 0)
            for (uint32_t i = 0; i < 2; i++) send_to(t, 0, 1, i, data, i * 30000);
        double until_s = tdm_clock_s() + STUCK_S;
        while ((k->received_count < 50 || (b->rank == 0 && k->lost_count == 0)) &&
               tdm_clock_s() < until_s) {
            if (t->ops->progress(t) == 0) t->ops->wait(t, 0.02);
            while (k->kept_count > 0) t->ops->take(t, k->kept[--k->kept_count], k->into, NULL);
            if (b->rank == 0 && atomic_load(&k->shared->word[0]) && k->lost_count == 0)
                send_to(t, 0, 1, 7, data, 4096); /* so that every index is read */
        }
        CHECK(k->received_count >= 50);
        CHECK_INT(k->lost_count, b->rank == 0);
        atomic_fetch_add(&k->shared->done_count, 1);
        run_until_word(t, &k->shared->done_count, 2);
    }
    t->ops->destroy(t);
    free(data);
    free(k);
}

static void invalid_messages_are_ignored(void)
{
    for (int round = 0; round < HOST_BENCH_SCALE(3, 1) * (SPOILS + LIES); round++) {
        traffic_shared *shared = shared_new();
        atomic_store(&shared->word[1], round);
        host_bench_run(&(host_bench_options){.size = 3, .body = mad_neighbour, .context = shared});
        munmap(shared, sizeof(*shared));
    }
}

/* ---- waiting ----------------------------------------------------------------------------------- */

static void *wakes_later(void *user)
{
    tdm__transport *t = user;
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    t->ops->wake(t);
    return NULL;
}

static tdm__transport *to_be_woken;

static void on_alarm(int number)
{
    (void)number;
    to_be_woken->ops->wake(to_be_woken);
}

static double cpu_s(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static void waits(host_bench *b)
{
    keeper *k = calloc(1, sizeof(*k));
    tdm__transport *t = transport_new(b, keeper_events(k));
    CHECK_INT(t->ops->progress(t), 0);
    double begin_s = tdm_clock_s(), cpu_begin_s = cpu_s();
    t->ops->wait(t, 0.3);
    CHECK(tdm_clock_s() - begin_s >= 0.29);
    CHECK(cpu_s() - cpu_begin_s < 0.1); /* asleep, not spinning */
    /* Woken by a thread, before the wait, and by a signal handler. */
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, wakes_later, t) == 0);
    begin_s = tdm_clock_s();
    t->ops->wait(t, STUCK_S);
    CHECK(tdm_clock_s() - begin_s < STUCK_S - 1);
    pthread_join(thread, NULL);
    t->ops->progress(t);
    t->ops->wake(t);
    CHECK_INT(t->ops->progress(t), 0);
    t->ops->wait(t, STUCK_S);
    CHECK(tdm_clock_s() - begin_s < STUCK_S - 1);
    to_be_woken = t;
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    pid_t me = getpid(), child = fork();
    if (child == 0) {
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        kill(me, SIGUSR1);
        _exit(0);
    }
    t->ops->progress(t);
    t->ops->wait(t, STUCK_S);
    CHECK(tdm_clock_s() - begin_s < STUCK_S - 1);
    waitpid(child, NULL, 0);
    /* A message to this rank itself uses the same path, and arm() takes it into account. */
    while (t->ops->progress(t) > 0) {
    }
    int fd = t->ops->arm(t);
    if (fd < 0) { /* the last wake is still pending: once */
        t->ops->progress(t);
        fd = t->ops->arm(t);
    }
    CHECK(fd >= 0);
    send_to(t, b->rank, b->rank, 5, k->into, 9);
    char byte;
    CHECK(recv(fd, &byte, 1, MSG_DONTWAIT) == 1);
    CHECK_INT(t->ops->arm(t), -1);
    CHECK(t->ops->progress(t) > 0);
    CHECK_INT(k->kept_count, 1);
    t->ops->destroy(t);
    free(k);
}

static void waiting(void)
{
    host_bench_run(&(host_bench_options){.size = 1, .body = waits});
    host_bench_run(&(host_bench_options){.size = 1, .body = waits, .with_fds = true});
}

/* Without a neighbour of that rank, a send has no ring to use; without memory the error has the reason.
 * */
static void no_way(host_bench *b)
{
    keeper *k = calloc(1, sizeof(*k));
    tdm__transport *t = transport_new(b, keeper_events(k));
    send_to(t, b->rank, 7, 1, k->into, 9);
    send_to(t, b->rank, -1, 1, k->into, 9);
    CHECK_INT(k->sent_count, 2);
    CHECK_INT(k->bad_count, 2);
    char why[160], library[TDM_LIBRARY_BYTES];
    CHECK(tdm__transport_shm.usable(why, library));
    CHECK_TEXT(why, "");
    CHECK(tdm__transport_shm.within_host_only && !tdm__transport_shm.create);
    t->ops->destroy(t);
    free(k);
}

static void nowhere(void)
{
    host_bench_run(&(host_bench_options){.size = 1, .body = no_way});
}

static const check_test tests[] = {
    CHECK_TEST(traffic_between),
    CHECK_TEST(the_last_may_be_first),
    CHECK_TEST(ranks_are_killed),
    CHECK_TEST(a_living_rank_is_given_up),
    CHECK_TEST(invalid_messages_are_ignored),
    CHECK_TEST(waiting),
    CHECK_TEST(nowhere),
};

CHECK_MAIN(tests)
