/*
 * sim_transport_test.c: the parts of the simulator: coroutines, virtual time, messages, news.
 *
 * Ranks here use the tables of transport and control directly, without a comm, so that each guarantee of these
 * tables is tested separately: which messages arrive, when, which never do, and which callbacks are called when
 * a peer is forgotten. Faults are given as options, and their effects in time are checked.
 */
#include "base/base.h"
#include "check.h"
#include "sim/sim.h"

#include <stdlib.h>

enum { MAX_RANKS = 1024, TRAFFIC = 40 };

/* The state of one rank in a test. */
typedef struct side {
    tdm__sim_rank *rank;
    tdm__transport *transport;
    tdm__control *control;
    int arrived_count, sent_count, received_count, lost_count, news_count, failed_count;
    uint64_t sum;
    double arrived_s, lost_s, news_s, sent_s;
    tdm__news_kind news_kind;
    bool drop, keep;
    tdm__arrival *kept;
    uint8_t *buffers[MAX_RANKS];
    int buffer_count;
} side;

typedef struct world {
    side *sides;
    void (*run)(side *s, struct world *w);
    int traffic;
} world;

static void on_arrived(void *user, int peer, const tdm__head *head, tdm__arrival *arrival)
{
    side *s = user;
    CHECK_INT(head->source, peer);
    s->arrived_count++;
    s->arrived_s = s->transport->ops->now_s(s->transport);
    if (s->keep) {
        if (s->kept) s->transport->ops->drop(s->transport, s->kept);
        s->kept = arrival;
        return;
    }
    if (s->drop) {
        s->transport->ops->drop(s->transport, arrival);
        return;
    }
    uint8_t *into = malloc(head->bytes + 1);
    s->buffers[s->buffer_count++] = into;
    into[head->bytes] = 0;
    s->transport->ops->take(s->transport, arrival, into, into);
}

static void on_received(void *user, void *cookie, tdm_status status)
{
    side *s = user;
    s->received_count++;
    s->failed_count += status != TDM_OK;
    if (status == TDM_OK && cookie) s->sum += ((uint8_t *)cookie)[0];
}

static void on_sent(void *user, void *cookie, tdm_status status)
{
    (void)cookie;
    side *s = user;
    s->sent_count++;
    s->sent_s = s->transport->ops->now_s(s->transport);
    s->failed_count += status != TDM_OK;
}

static void on_lost(void *user, int peer, const char *how)
{
    (void)peer;
    (void)how;
    side *s = user;
    s->lost_count++;
    s->lost_s = s->transport->ops->now_s(s->transport);
}

static void on_news(void *user, const tdm__news *news)
{
    side *s = user;
    s->news_count++;
    s->news_kind = news->kind;
    s->news_s = s->transport->ops->now_s(s->transport);
}

static void on_describe(void *user, char *out, size_t bytes)
{
    (void)user;
    snprintf(out, bytes, "tests things");
}

static void body(tdm__sim_rank *rank)
{
    world *w = rank->sim->user;
    side *s = &w->sides[rank->rank];
    *s = (side){.rank = rank};
    tdm__transport_events events = {.user = s,
                                    .arrived = on_arrived,
                                    .received = on_received,
                                    .sent = on_sent,
                                    .lost = on_lost};
    tdm__control_events control_events = {.user = s, .news = on_news, .describe = on_describe};
    CHECK_INT(tdm__sim_transport_make(rank, &events, &s->transport, NULL), TDM_OK);
    CHECK_INT(tdm__sim_control_make(rank, &s->control, NULL), TDM_OK);
    tdm__control_listen(s->control, &control_events);
    w->run(s, w);
    s->control->ops->close(s->control);
    s->transport->ops->destroy(s->transport);
}

static tdm_sim_result play(tdm_sim_options options, void (*run)(side *, world *), world *w)
{
    tdm__sim sim;
    tdm_error err = {0};
    w->sides = calloc((size_t)options.size, sizeof(*w->sides));
    w->run = run;
    tdm_status status = tdm__sim_init(&sim, &options, &err);
    CHECK_INT(status, TDM_OK);
    sim.body = body;
    sim.user = w;
    CHECK_INT(tdm__sim_loop(&sim, &err), TDM_OK);
    tdm_sim_result result = sim.result;
    tdm__sim_release(&sim);
    return result;
}

static void forget_world(world *w, int size)
{
    for (int i = 0; i < size; i++)
        for (int b = 0; b < w->sides[i].buffer_count; b++) free(w->sides[i].buffers[b]);
    free(w->sides);
}

static void post(side *s, int peer, const void *data, size_t bytes)
{
    tdm__head head = {.world = s->rank->sim->world,
                      .kind = TDM_CALL_SEND,
                      .bytes = bytes,
                      .source = (uint32_t)s->rank->rank};
    tdm__head_seal(&head);
    s->transport->ops->send(s->transport, peer, &head, data, NULL);
}

static double now(const side *s)
{
    return s->transport->ops->now_s(s->transport);
}

/* Makes progress until `end_s`. */
static void linger(side *s, double end_s)
{
    while (now(s) < end_s) {
        s->transport->ops->progress(s->transport);
        s->transport->ops->wait(s->transport, end_s - now(s));
    }
    s->transport->ops->progress(s->transport);
}

/* ---- traffic ----------------------------------------------------------------------------------- */

static uint8_t payload[100000];

static void run_traffic(side *s, world *w)
{
    int size = s->rank->sim->options.size;
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = 7, .sample = (uint64_t)s->rank->rank});
    for (int i = 0; i < w->traffic; i++) {
        int peer = (int)tdm_rng_below(&rng, (uint64_t)size);
        post(s, peer, payload, tdm_rng_below(&rng, i % 3 == 0 ? sizeof(payload) : 5000));
        if (i % 4 == 0) s->transport->ops->wait(s->transport, 1e-4 * tdm_rng_uniform(&rng));
        s->transport->ops->progress(s->transport);
    }
    linger(s, 60.0);
}

static void test_traffic(void)
{
    payload[0] = 1;
    uint64_t hashes[3];
    for (int i = 0; i < 3; i++) {
        tdm_sim_options options = {
            .seed = i == 2 ? 2 : 1, .size = 5, .jitter_s = 1e-4, .loss = 0.02, .bandwidth = 1e8};
        world w = {.traffic = TRAFFIC};
        tdm_sim_result result = play(options, run_traffic, &w);
        int arrived = 0, sent = 0, received = 0, failed = 0;
        for (int r = 0; r < 5; r++) {
            arrived += w.sides[r].arrived_count;
            sent += w.sides[r].sent_count;
            received += w.sides[r].received_count;
            failed += w.sides[r].failed_count;
        }
        CHECK_INT(arrived, 5 * TRAFFIC);
        CHECK_INT(sent, 5 * TRAFFIC);
        CHECK_INT(received, 5 * TRAFFIC);
        CHECK_INT(failed, 0);
        CHECK_INT(result.message_count, 5 * TRAFFIC);
        CHECK_INT(result.finished_count, 5);
        CHECK_INT(result.hung_count, 0);
        hashes[i] = result.hash;
        forget_world(&w, 5);
    }
    CHECK(hashes[0] == hashes[1]);
    CHECK(hashes[0] != hashes[2]);
}

static void test_many(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    enum { MANY = 200 };
#else
    enum { MANY = 4000 };
#endif
    tdm_sim_options options = {.seed = 1, .size = MANY, .stack_bytes = 64 * 1024};
    world w = {.traffic = 4};
    tdm_sim_result result = play(options, run_traffic, &w);
    CHECK_INT(result.finished_count, MANY);
    CHECK_INT(result.message_count, 4 * MANY);
    forget_world(&w, MANY);
}

/* ---- times and faults, between two ranks ------------------------------------------------------- */

static void run_one(side *s, world *w)
{
    int bytes = w->traffic;
    if (s->rank->rank == 0) post(s, 1, payload, (size_t)bytes);
    linger(s, 20.0);
}

static world one(const tdm_sim_fault *faults, int count, int bytes, tdm_sim_result *out)
{
    tdm_sim_options options = {
        .size = 2, .latency_s = 1e-3, .bandwidth = 1e6, .faults = faults, .fault_count = count};
    world w = {.traffic = bytes};
    *out = play(options, run_one, &w);
    return w;
}

static void test_times(void)
{
    tdm_sim_result result;
    world w = one(NULL, 0, 1000, &result);
    CHECK_NEAR(w.sides[0].sent_s, 1064e-6, 1e-9);
    CHECK_NEAR(w.sides[1].arrived_s, 1e-3 + 1064e-6, 1e-9);
    CHECK_INT(w.sides[1].sum, 1);
    forget_world(&w, 2);
    /* A large message: head, request back, payload. */
    w = one(NULL, 0, 100000, &result);
    CHECK_NEAR(w.sides[1].arrived_s, 1e-3 + 64e-6, 1e-9);
    CHECK_NEAR(w.sides[0].sent_s, 3e-3 + 64e-6 + 100064e-6, 1e-9);
    CHECK_INT(w.sides[1].sum, 1);
    forget_world(&w, 2);
}

static void test_faults_in_time(void)
{
    static const struct {
        tdm_sim_fault fault;
        double arrived_s; /* 0: never */
    } cases[] = {
        {{.kind = TDM_SIM_CUT, .rank = 1, .other = 0, .until_s = 5.0}, 5.0 + 1e-3},
        {{.kind = TDM_SIM_CUT, .rank = 0, .other = 1}, 0.0},
        {{.kind = TDM_SIM_PARTITION, .rank = 1, .until_s = 5.0}, 5.0 + 1e-3},
        {{.kind = TDM_SIM_PARTITION, .rank = 1}, 0.0},
        /* It begins while the message is on its way. */
        {{.kind = TDM_SIM_CUT, .rank = 1, .other = 0, .at_s = 2e-3, .until_s = 5.0}, 5.0 + 1e-3},
        {{.kind = TDM_SIM_CUT, .rank = 1, .other = 0, .at_s = 3e-3}, 1e-3 + 1064e-6},
        {{.kind = TDM_SIM_DELAY, .rank = 1, .factor = 0.5}, 0.5 + 1e-3 + 1064e-6},
        {{.kind = TDM_SIM_SLOW, .rank = 0, .factor = 3.0}, 3e-3 + 3 * 1064e-6},
        {{.kind = TDM_SIM_VANISH, .rank = 0, .other = 1}, 0.0},
        {{.kind = TDM_SIM_VANISH, .rank = 1, .other = 0}, 1e-3 + 1064e-6},
        {{.kind = TDM_SIM_STALL, .rank = 1, .until_s = 4.0}, 4.0},
        {{.kind = TDM_SIM_STALL, .rank = 0, .until_s = 4.0}, 4.0 + 1e-3 + 1064e-6},
        /* Whether the last byte had left when the sender died: no; yes. */
        {{.kind = TDM_SIM_CRASH, .rank = 0, .at_s = 1e-3}, 0.0},
        {{.kind = TDM_SIM_CRASH, .rank = 0, .at_s = 1.5e-3}, 1e-3 + 1064e-6},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tdm_sim_result result;
        world w = one(&cases[i].fault, 1, 1000, &result);
        CHECK_NEAR(w.sides[1].arrived_s, cases[i].arrived_s, 1e-2 * cases[i].arrived_s + 1e-9);
        CHECK_NEAR(w.sides[1].arrived_s, cases[i].arrived_s, 2e-3);
        bool crash = cases[i].fault.kind == TDM_SIM_CRASH;
        CHECK_INT(result.crashed_count, crash);
        CHECK_INT(result.finished_count, 2 - crash);
        CHECK_INT(result.hung_count, 0);
        forget_world(&w, 2);
    }
}

static void test_crash_is_reported(void)
{
    tdm_sim_fault faults[2] = {{.kind = TDM_SIM_CRASH, .rank = 0, .at_s = 1.0}};
    int by_transport = 0;
    for (uint64_t seed = 0; seed < 20; seed++) {
        tdm_sim_options options = {.seed = seed, .size = 2, .faults = faults, .fault_count = 1};
        world w = {.traffic = 10};
        play(options, run_one, &w);
        CHECK_INT(w.sides[1].news_count, 1);
        CHECK_INT(w.sides[1].news_kind, TDM__NEWS_LOST);
        CHECK_NEAR(w.sides[1].lost_count ? w.sides[1].lost_s : w.sides[1].news_s, 1.01, 1e-6);
        by_transport += w.sides[1].lost_count;
        forget_world(&w, 2);
    }
    CHECK(by_transport > 2 && by_transport < 18);
    /* Behind a partition: after it has ended; never, if it does not end. */
    for (int healed = 0; healed < 2; healed++) {
        faults[1] = (tdm_sim_fault){
            .kind = TDM_SIM_PARTITION, .rank = 1, .until_s = healed ? 3.0 : 0.0};
        tdm_sim_options options = {.size = 2, .faults = faults, .fault_count = 2};
        world w = {.traffic = 10};
        play(options, run_one, &w);
        CHECK_INT(w.sides[1].news_count, healed);
        if (healed) CHECK_NEAR(w.sides[1].news_s, 3.0, 0.02);
        forget_world(&w, 2);
    }
}

/* ---- the tables' finer points ------------------------------------------------------------------ */

static void run_forget(side *s, world *w)
{
    (void)w;
    if (s->rank->rank == 0) {
        post(s, 1, payload, 10);
        post(s, 1, payload, sizeof(payload));
        linger(s, 1.0); /* the small one is dropped, the large one waits for its receiver */
        CHECK_INT(s->sent_count, 1);
        s->transport->ops->forget(s->transport, 1);
        CHECK_INT(s->sent_count, 2);
        CHECK_INT(s->failed_count, 1);
        post(s, 1, payload, 10);
        CHECK_INT(s->failed_count, 2);
    } else {
        s->keep = true;
        linger(s, 2.0);
        CHECK_INT(s->arrived_count, 2);
        /* The last one that arrived is the large one: its sender does not have it any more. */
        uint8_t *into = malloc(sizeof(payload));
        s->transport->ops->take(s->transport, s->kept, into, NULL);
        linger(s, 3.0);
        CHECK_INT(s->received_count, 1);
        CHECK_INT(s->failed_count, 1);
        free(into);
    }
    linger(s, 4.0);
}

static void run_forget_taker(side *s, world *w)
{
    (void)w;
    if (s->rank->rank == 0) {
        post(s, 1, payload, sizeof(payload));
        linger(s, 1.0);
        CHECK_INT(s->sent_count, 1);
    } else {
        while (s->arrived_count == 0) {
            s->transport->ops->progress(s->transport);
            s->transport->ops->wait(s->transport, 1.0);
        }
        CHECK_INT(s->received_count, 0);
        s->transport->ops->forget(s->transport, 0);
        CHECK_INT(s->received_count, 1);
        CHECK_INT(s->failed_count, 1);
        linger(s, 1.0);
        CHECK_INT(s->received_count, 1);
    }
}

static void run_drop(side *s, world *w)
{
    (void)w;
    if (s->rank->rank == 0) {
        post(s, 1, payload, sizeof(payload));
        linger(s, 1.0);
        CHECK_INT(s->sent_count, 1);
        CHECK_INT(s->failed_count, 0);
    } else {
        s->drop = true;
        linger(s, 1.0);
    }
}

static void test_forget_and_drop(void)
{
    void (*const runs[])(side *, world *) = {run_forget, run_forget_taker, run_drop};
    for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        world w = {0};
        tdm_sim_result result = play((tdm_sim_options){.size = 2}, runs[i], &w);
        CHECK_INT(result.finished_count, 2);
        forget_world(&w, 2);
    }
}

/* Polls repeatedly and never waits: time must pass nevertheless. */
static void run_poll(side *s, world *w)
{
    (void)w;
    if (s->rank->rank == 0) post(s, 1, payload, 10);
    while (now(s) < 0.5) s->transport->ops->progress(s->transport);
    CHECK_INT(s->arrived_count, s->rank->rank);
}

static void run_exchange(side *s, world *w)
{
    (void)w;
    for (int round = 0; round < 3; round++) {
        uint8_t mine[20];
        size_t bytes = (size_t)s->rank->rank + (size_t)round;
        memset(mine, 'a' + s->rank->rank, sizeof(mine));
        uint8_t **all = NULL;
        size_t *all_bytes = NULL;
        tdm_status status = s->control->ops->exchange(s->control, mine, bytes, &all, &all_bytes,
                                                      NULL);
        CHECK_INT(status, TDM_OK);
        for (int i = 0; i < 5; i++) {
            CHECK_INT(all_bytes[i], i + round);
            if (all_bytes[i] > 0) CHECK_INT(all[i][all_bytes[i] - 1], 'a' + i);
        }
        free(all);
        free(all_bytes);
    }
}

static void run_exchange_crash(side *s, world *w)
{
    (void)w;
    if (s->rank->rank == 2) linger(s, 9.0); /* crashes before that */
    uint8_t **all = NULL;
    size_t *all_bytes = NULL;
    tdm_error err = {0};
    CHECK_INT(s->control->ops->exchange(s->control, "x", 1, &all, &all_bytes, &err),
              TDM_ERR_PEER_FAILED);
    CHECK_HAS(err.message, "rank 2");
    CHECK_NEAR(now(s), 1.01, 1e-6);
}

static void run_broken(side *s, world *w)
{
    (void)w;
    if (s->rank->rank == 1) s->control->ops->broken(s->control, 3, TDM_ERR_PEER_FAILED, "because");
    linger(s, 1.0);
    CHECK_INT(s->news_count, s->rank->rank == 1 ? 0 : 1);
    if (s->news_count) CHECK_INT(s->news_kind, TDM__NEWS_BROKEN);
    if (s->rank->rank == 0) {
        char text[200];
        s->control->ops->report(s->control, (int[]){1, 2}, 2, text, sizeof(text));
        CHECK_TEXT(text, "rank 1: tests things; rank 2: tests things");
    }
    linger(s, 2.0);
}

static void test_polling(void)
{
    world w = {0};
    tdm_sim_result result = play((tdm_sim_options){.size = 2}, run_poll, &w);
    CHECK_INT(result.finished_count, 2);
    forget_world(&w, 2);
}

static void test_control(void)
{
    world w = {0};
    CHECK_INT(play((tdm_sim_options){.size = 5}, run_exchange, &w).finished_count, 5);
    forget_world(&w, 5);
    tdm_sim_fault crash = {.kind = TDM_SIM_CRASH, .rank = 2, .at_s = 1.0};
    tdm_sim_options options = {.size = 4, .faults = &crash, .fault_count = 1};
    CHECK_INT(play(options, run_exchange_crash, &w).finished_count, 3);
    forget_world(&w, 4);
    CHECK_INT(play((tdm_sim_options){.size = 3}, run_broken, &w).finished_count, 3);
    forget_world(&w, 3);
    /* From a certain number of ranks on, one event delivers the news to all. */
    CHECK_INT(play((tdm_sim_options){.size = 100}, run_broken, &w).finished_count, 100);
    forget_world(&w, 100);
}

static void run_for_ever(side *s, world *w)
{
    (void)w;
    linger(s, s->rank->rank == 1 ? 1e9 : 1.0);
}

static void test_hung(void)
{
    world w = {0};
    tdm_sim_result result = play((tdm_sim_options){.size = 3, .max_s = 100.0}, run_for_ever, &w);
    CHECK_INT(result.finished_count, 2);
    CHECK_INT(result.hung_count, 1);
    forget_world(&w, 3);
}

static void test_refusals(void)
{
    static const tdm_sim_fault faults[] = {
        {.kind = TDM_SIM_CRASH, .rank = 2},
        {.kind = TDM_SIM_CUT, .other = -1},
        {.kind = (tdm_sim_fault_kind)0},
        {.kind = TDM_SIM_STALL, .at_s = NAN},
    };
    tdm__sim sim;
    tdm_error err = {0};
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        tdm_sim_options options = {.size = 2, .faults = &faults[i], .fault_count = 1};
        CHECK(tdm__sim_init(&sim, &options, &err) != TDM_OK);
        CHECK_HAS(err.message, "fault 0");
    }
    CHECK_INT(tdm__sim_init(&sim, &(tdm_sim_options){.size = 0}, &err), TDM_ERR_RANGE);
    CHECK_INT(tdm__sim_init(&sim, &(tdm_sim_options){.size = 2, .loss = 1.0}, &err), TDM_ERR_RANGE);
    CHECK_INT(tdm__sim_init(&sim, &(tdm_sim_options){.size = 2, .latency_s = -1.0}, &err),
              TDM_ERR_RANGE);
}

static const check_test tests[] = {
    CHECK_TEST(test_traffic),
    CHECK_TEST(test_many),
    CHECK_TEST(test_times),
    CHECK_TEST(test_faults_in_time),
    CHECK_TEST(test_crash_is_reported),
    CHECK_TEST(test_forget_and_drop),
    CHECK_TEST(test_polling),
    CHECK_TEST(test_control),
    CHECK_TEST(test_hung),
    CHECK_TEST(test_refusals),
};
CHECK_MAIN(tests)
