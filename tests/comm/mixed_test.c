/*
 * mixed_test.c: the composite transport, with real processes: ranks of two "hosts" on one machine.
 *
 * Ranks 0 and 1 share the memory of one host, ranks 2 and 3 that of another. The far transport is a second shm
 * over a third memory that all four share, in a wrapper that makes its arrivals even, like those of every other
 * transport. So the same random traffic uses both transports at once, with a far transport that has a
 * descriptor to wait for, and with one that has none.
 */
#include "shm_bench.h"

typedef struct far_end {
    tdm__transport base;
    tdm__transport *inner;
    tdm__transport_events events;
} far_end;

static void far_arrived(void *user, int peer, const tdm__head *head, tdm__arrival *arrival)
{
    far_end *f = user;
    CHECK(tdm__shm_is_arrival(arrival));
    f->events.arrived(f->events.user, peer, head, (tdm__arrival *)((uintptr_t)arrival - 1));
}

static void far_received(void *user, void *cookie, tdm_status status)
{
    ((far_end *)user)->events.received(((far_end *)user)->events.user, cookie, status);
}

static void far_sent(void *user, void *cookie, tdm_status status)
{
    ((far_end *)user)->events.sent(((far_end *)user)->events.user, cookie, status);
}

static void far_lost(void *user, int peer, const char *how)
{
    ((far_end *)user)->events.lost(((far_end *)user)->events.user, peer, how);
}

static void far_send(tdm__transport *t, int peer, const tdm__head *head, const void *data,
                     void *cookie)
{
    tdm__transport *inner = ((far_end *)t)->inner;
    CHECK(peer / 2 != (int)head->source / 2); /* messages to neighbours do not use this transport */
    inner->ops->send(inner, peer, head, data, cookie);
}

static void far_take(tdm__transport *t, tdm__arrival *arrival, void *into, void *cookie)
{
    tdm__transport *inner = ((far_end *)t)->inner;
    inner->ops->take(inner, (tdm__arrival *)((uintptr_t)arrival + 1), into, cookie);
}

static void far_drop(tdm__transport *t, tdm__arrival *arrival)
{
    tdm__transport *inner = ((far_end *)t)->inner;
    inner->ops->drop(inner, (tdm__arrival *)((uintptr_t)arrival + 1));
}

static void far_forget(tdm__transport *t, int peer)
{
    tdm__transport *inner = ((far_end *)t)->inner;
    inner->ops->forget(inner, peer);
}

static int far_progress(tdm__transport *t)
{
    tdm__transport *inner = ((far_end *)t)->inner;
    return inner->ops->progress(inner);
}

static int far_arm(tdm__transport *t)
{
    tdm__transport *inner = ((far_end *)t)->inner;
    return inner->ops->arm(inner);
}

static void far_destroy(tdm__transport *t)
{
    tdm__transport *inner = ((far_end *)t)->inner;
    inner->ops->destroy(inner);
    free(t);
}

static const tdm__transport_ops far_with_fd = {.name = "far",
                                               .destroy = far_destroy,
                                               .send = far_send,
                                               .take = far_take,
                                               .drop = far_drop,
                                               .forget = far_forget,
                                               .progress = far_progress,
                                               .arm = far_arm};
static const tdm__transport_ops far_without_fd = {.name = "far",
                                                  .destroy = far_destroy,
                                                  .send = far_send,
                                                  .take = far_take,
                                                  .drop = far_drop,
                                                  .forget = far_forget,
                                                  .progress = far_progress};

typedef struct plan {
    traffic_shared shared;
    bool with_fd;
    /* The names of the memories of the two hosts, by host, for the ranks that are not the lowest there. */
    host_bench_address names[2];
    _Atomic int named[2];
} plan;

/* The host of this rank and its neighbour, besides the memory that all four share. */
static tdm__host *near_host(host_bench *b, plan *p)
{
    int group = b->rank / 2;
    const int ranks[] = {group * 2, group * 2 + 1};
    tdm__host_options options = {.rank = b->rank,
                                 .ranks = ranks,
                                 .count = 2,
                                 .world = HOST_BENCH_WORLD,
                                 .with_fds = p->with_fd};
    tdm__host *host = NULL;
    uint8_t address[HOST_BENCH_MAX_ADDRESS];
    size_t bytes = 0;
    tdm_error err = {0};
    CHECK_INT(tdm__host_create(&options, &host, address, &bytes, &err), TDM_OK);
    if (b->rank % 2 == 0) {
        memcpy(p->names[group].data, address, bytes);
        p->names[group].bytes = bytes;
        atomic_store(&p->named[group], 1);
    }
    while (!atomic_load(&p->named[group])) usleep(500);
    const uint8_t *addresses[] = {p->names[group].data, address};
    const size_t lengths[] = {p->names[group].bytes, bytes};
    CHECK_INT(tdm__host_connect(host, addresses, lengths, &err), TDM_OK);
    return host;
}

static void mixed_traffic(host_bench *b)
{
    plan *p = b->context;
    traffic *t = malloc(sizeof(*t));
    traffic_init(t, b->rank, b->size, HOST_BENCH_SCALE(120, 15), 4242);
    t->shared = &p->shared;
    t->host = near_host(b, p);
    const int host_of[] = {0, 0, 1, 1};
    tdm__transport_options options = {.rank = b->rank,
                                      .size = b->size,
                                      .host_of = host_of,
                                      .world = HOST_BENCH_WORLD,
                                      .events = traffic_events(t)};
    tdm_error err = {0};
    tdm__transport *near_transport = NULL;
    CHECK_INT(tdm__shm_create(t->host, &options, &near_transport, &err), TDM_OK);
    far_end *f = calloc(1, sizeof(*f));
    f->base.ops = p->with_fd ? &far_with_fd : &far_without_fd;
    f->events = options.events;
    options.events = (tdm__transport_events){.user = f,
                                             .arrived = far_arrived,
                                             .received = far_received,
                                             .sent = far_sent,
                                             .lost = far_lost};
    CHECK_INT(tdm__shm_create(b->host, &options, &f->inner, &err), TDM_OK);
    CHECK_INT(tdm__mixed_create(near_transport, &f->base, &options, "shm+far", &t->transport, &err),
              TDM_OK);
    CHECK_TEXT(t->transport->ops->name, "shm+far");
    traffic_run(t);
    CHECK(traffic_is_over(t));
    for (int i = 0; i < b->size; i++) CHECK(!t->lost[i]);
    /* A wake ends the next wait of either kind, and forget() reaches the right transport. */
    double begin_s = tdm_clock_s();
    t->transport->ops->wake(t->transport);
    t->transport->ops->wait(t->transport, STUCK_S);
    CHECK(tdm_clock_s() - begin_s < STUCK_S - 1);
    for (int i = 0; i < b->size; i++)
        if (i != b->rank) t->transport->ops->forget(t->transport, i);
    t->transport->ops->destroy(t->transport);
    tdm__host_destroy(t->host);
    free(t);
}

static void run_plan(bool with_fd)
{
    plan *p = mmap(NULL, sizeof(*p), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    p->with_fd = with_fd;
    host_bench_run(
        &(host_bench_options){.size = 4, .with_fds = with_fd, .body = mixed_traffic, .context = p});
    munmap(p, sizeof(*p));
}

static void far_end_with_a_descriptor(void)
{
    run_plan(true);
}

static void far_end_without_one(void)
{
    run_plan(false);
}

static const check_test tests[] = {CHECK_TEST(far_end_with_a_descriptor),
                                   CHECK_TEST(far_end_without_one)};

CHECK_MAIN(tests)
