/*
 * gossip_test.c: the graphs of sync.kind gossip are connected and lose no mass, and the exchange of push-sum leads all
 * replicas to their mean, with the same bits on any number of ranks.
 */
#include "team_bench.h"

#include "job/job.h"

#include <math.h>
#include <string.h>

enum { MAX_REPLICAS = 64 };

static const int kinds[] = {TDM_JOB_GRAPH_RING, TDM_JOB_GRAPH_TORUS, TDM_JOB_GRAPH_EXPONENTIAL,
                            TDM_JOB_GRAPH_RANDOM};

static tdm_job gossip_job(int kind, int64_t replicas, int64_t degree)
{
    tdm_job job = {.seed = 11};
    job.sync.kind = TDM_JOB_SYNC_GOSSIP;
    job.sync.graph = kind;
    job.sync.replicas = replicas;
    job.sync.degree = degree;
    return job;
}

static tdm_gossip_graph graph_make(int kind, int64_t replicas, int64_t degree)
{
    tdm_job job = gossip_job(kind, replicas, degree);
    tdm_gossip_graph graph = {0};
    tdm_error err = {0};
    CHECK_INT(tdm_gossip_graph_init(&job, &graph, &err), TDM_OK);
    CHECK_TEXT(err.message, "");
    return graph;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

/* A replica sends to others only, to each once, and all shares together are its whole model. */
static void columns_have_the_sum_one(void)
{
    for (size_t k = 0; k < 4; k++)
        for (int64_t n = 2; n <= MAX_REPLICAS; n *= 2)
            for (uint64_t round = 0; round < 20; round++) {
                tdm_gossip_graph g = graph_make(kinds[k], n, 1 + (n > 4));
                double shares = 0;
                for (int i = 0; i <= g.target_count; i++) shares += (double)tdm_gossip_share(&g);
                CHECK_NEAR(shares, 1, 1e-6);
                for (int64_t r = 0; r < n; r++) {
                    int64_t targets[TDM_GOSSIP_MAX_TARGETS];
                    uint64_t seen = UINT64_C(1) << r;
                    tdm_gossip_targets(&g, round, r, targets);
                    for (int i = 0; i < g.target_count; i++) {
                        REQUIRE(targets[i] >= 0 && targets[i] < n);
                        CHECK(!(seen >> targets[i] & 1));
                        seen |= UINT64_C(1) << targets[i];
                    }
                }
            }
}

/* The replicas that have a part of the model of `from` after these rounds. */
static uint64_t reached(const tdm_gossip_graph *g, int64_t from, uint64_t first, uint64_t rounds)
{
    uint64_t has = UINT64_C(1) << from;
    for (uint64_t round = first; round < first + rounds; round++) {
        uint64_t next = has;
        for (int64_t r = 0; r < g->replica_count; r++) {
            int64_t targets[TDM_GOSSIP_MAX_TARGETS];
            if (!(has >> r & 1)) continue;
            tdm_gossip_targets(g, round, r, targets);
            for (int i = 0; i < g->target_count; i++) next |= UINT64_C(1) << targets[i];
        }
        has = next;
    }
    return has;
}

/* Each replica reaches all others, from any round on. The exponential graph needs as many rounds as it has distances,
 * fixed graphs at most as many as there are replicas, and random ones a multiple of the logarithm of their number. */
static void every_graph_is_connected(void)
{
    for (size_t k = 0; k < 4; k++)
        for (int64_t n = 2; n <= MAX_REPLICAS; n *= 2) {
            tdm_gossip_graph g = graph_make(kinds[k], n, 1);
            uint64_t all = n == 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1, levels = 0;
            while ((INT64_C(1) << levels) < n) levels++;
            uint64_t rounds = kinds[k] == TDM_JOB_GRAPH_EXPONENTIAL ? levels
                              : kinds[k] == TDM_JOB_GRAPH_RANDOM    ? 8 + 4 * levels
                                                                    : (uint64_t)n;
            for (uint64_t first = 0; first < 5; first++)
                for (int64_t r = 0; r < n; r++) CHECK(reached(&g, r, first, rounds) == all);
            if (kinds[k] == TDM_JOB_GRAPH_RING && n >= 8) CHECK(reached(&g, 0, 0, 2) != all);
        }
}

static void random_graphs_change_with_round_and_seed(void)
{
    tdm_gossip_graph g = graph_make(TDM_JOB_GRAPH_RANDOM, 64, 1), other = g;
    int same_round = 0, same_seed = 0;
    other.seed++;
    for (int64_t r = 0; r < 64; r++) {
        int64_t a, b, c, again;
        tdm_gossip_targets(&g, 5, r, &a);
        tdm_gossip_targets(&g, 6, r, &b);
        tdm_gossip_targets(&other, 5, r, &c);
        tdm_gossip_targets(&g, 5, r, &again);
        CHECK_INT(a, again);
        same_round += a == b;
        same_seed += a == c;
    }
    CHECK(same_round < 10 && same_seed < 10);
}

static void graphs_that_cannot_be_are_refused(void)
{
    tdm_gossip_graph graph;
    tdm_error err = {0};
    tdm_job job = gossip_job(TDM_JOB_GRAPH_RING, 1, 1);
    CHECK_INT(tdm_gossip_graph_init(&job, &graph, &err), TDM_ERR_JOB_INVALID);
    CHECK_TEXT(err.message, "sync.kind gossip needs at least two replicas, but this job has 1; set "
                            "parallel.lanes and sync.replicas to 2 or more");
    job = gossip_job(TDM_JOB_GRAPH_EXPONENTIAL, 8, 4);
    CHECK_INT(tdm_gossip_graph_init(&job, &graph, &err), TDM_ERR_JOB_INVALID);
    CHECK_TEXT(err.message,
               "sync.degree is 4, but with 8 replicas each has at most 3 neighbours in "
               "this graph; reduce it, or increase sync.replicas");
    job = gossip_job(TDM_JOB_GRAPH_RANDOM, 4, 4);
    CHECK_INT(tdm_gossip_graph_init(&job, &graph, &err), TDM_ERR_JOB_INVALID);
}

/* ---- the exchange ---------------------------------------------------------------------------- */

enum { REPLICAS = 8, ROUNDS = 25 };

typedef struct exchange {
    int kind;
    int64_t degree;
    bool trains;
    float params[8192], weights[REPLICAS]; /* of the last run, from rank 0 */
    double distance;
    size_t extent;
} exchange;

typedef struct exchange_rank {
    team_bench *bench;
    double lr;
} exchange_rank;

static void inner_step(void *user, int64_t index, tdm_inner_step *out)
{
    exchange_rank *rank = user;
    rank->bench->step = 100 + (uint64_t)index;
    rank->bench->batch = 40;
    *out = (tdm_inner_step){.step = 100 + (uint64_t)index, .batch = 40, .lr = rank->lr};
}

/* Replaces the store of the bench by one with replicas, whose models differ. */
static bool exchange_store(team_bench *b, const team_shape *shape)
{
    tdm_params_options o = {.graph = b->graph,
                            .optimiser = b->optimiser,
                            .comm = shape->comm,
                            .bucket_bytes = 1 << 14,
                            .replica_count = REPLICAS,
                            .replica_arrays = 1,
                            .replica_tail = 1,
                            .takes_statistics = true,
                            .is_gossip = true};
    tdm_params_destroy(b->store);
    b->store = NULL;
    CHECK_INT(tdm_params_create(&o, &b->store, NULL), TDM_OK);
    if (!b->store) return false;
    b->params = tdm_params_block(b->store, TDM_BLOCK_PARAMS);
    bool root = !shape->comm || tdm_comm_rank(shape->comm) == 0;
    float *model = calloc(b->param_extent + 1, sizeof(float));
    for (int r = 0; model && r < REPLICAS; r++) {
        for (size_t i = 0; i < b->param_extent; i++)
            model[i] = (float)((i * 7 + (size_t)r * 13) % 31) / 31.0f - 0.5f;
        model[b->param_extent] = 1;
        CHECK_INT(tdm_params_write(b->store, TDM_BLOCK_REPLICA + r, 0, b->param_extent + 1,
                                   root ? model : NULL, NULL),
                  TDM_OK);
    }
    free(model);
    CHECK_INT(tdm_params_settle(b->store, NULL), TDM_OK);
    return true;
}

static void exchange_run(tdm_comm *comm, void *user)
{
    exchange *e = user;
    team_bench b;
    team_shape shape = {.lanes = REPLICAS, .comm = comm, .batches = {40}};
    if (!team_bench_prepare(&b, &shape)) return;
    b.job.seed = 11;
    b.job.parallel.lanes = REPLICAS;
    b.job.sync = gossip_job(e->kind, REPLICAS, e->degree).sync;
    b.job.optim.momentum = b.job.optim.weight_decay = 0;
    b.job.optim.nesterov = false;
    tdm_optim_param params[16];
    size_t count = 0;
    for (size_t i = 0; i < tdm_graph_param_count(b.graph); i++) {
        const tdm_param_info *p = tdm_graph_param_at(b.graph, i);
        if (p->trained) params[count++] = (tdm_optim_param){p->name, p->offset, p->elements};
    }
    tdm_optimiser *inner = NULL;
    tdm_error err = {0};
    CHECK_INT(tdm_optimiser_create(&b.job, params, count, &inner, NULL), TDM_OK);
    bool ready = exchange_store(&b, &shape);
    tdm_team_options o = team_bench_options(&b);
    o.inner = inner;
    if (ready) CHECK_INT(tdm_team_create(&o, &b.team, &err), TDM_OK);
    exchange_rank rank = {&b, e->trains ? 0.05 : 0};
    double distance = 0, weights[REPLICAS] = {0}, before = 0;
    for (uint64_t round = 0; b.team && round < ROUNDS; round++) {
        tdm_step_input in = {.step = round,
                             .batch = 40,
                             .lr = 1,
                             .user = &rank,
                             .inner = inner_step,
                             .inner_count = 1};
        tdm_step_result result = {0};
        CHECK_INT(tdm_team_average(b.team, &distance, weights, NULL), TDM_OK);
        if (round == 0) before = distance;
        double sum = 0;
        for (int r = 0; r < REPLICAS; r++) sum += weights[r];
        CHECK_NEAR(sum, REPLICAS, 1e-5);
        CHECK_INT(tdm_team_step(b.team, &in, &result, &err), TDM_OK);
        CHECK(result.finite);
    }
    if (b.team) CHECK_INT(tdm_team_average(b.team, &distance, weights, NULL), TDM_OK);
    CHECK(before > 0.1);
    if (!e->trains) CHECK(distance < 0.03 * before);
    if (!comm || tdm_comm_rank(comm) == 0) {
        e->distance = distance;
        e->extent = b.trained_extent < 8192 ? b.trained_extent : 8192;
        memcpy(e->params, b.params, e->extent * sizeof(float));
        for (int r = 0; r < REPLICAS; r++) e->weights[r] = (float)weights[r];
    }
    tdm_team_destroy(b.team);
    b.team = NULL;
    tdm_optimiser_destroy(inner);
    team_bench_close(&b);
}

/* Without training, the mean stays, whatever the weights are, and all replicas approach it. */
static void push_sum_finds_the_mean(void)
{
    static exchange e;
    for (size_t k = 0; k < 4; k++) {
        e = (exchange){.kind = kinds[k], .degree = 2};
        exchange_run(NULL, &e);
        REQUIRE(e.extent > 100);
        double far = 0;
        for (size_t i = 0; i < e.extent; i++) {
            double mean = 0;
            for (size_t r = 0; r < REPLICAS; r++)
                mean += (double)((float)((i * 7 + r * 13) % 31) / 31.0f - 0.5f) / REPLICAS;
            far = fmax(far, fabs((double)e.params[i] - mean));
        }
        CHECK(far < 0.02);
        int unequal = 0;
        for (int r = 0; r < REPLICAS; r++) unequal += fabsf(e.weights[r] - 1.0f) > 0.01f;
        CHECK(kinds[k] == TDM_JOB_GRAPH_RANDOM ? unequal > 0 : unequal == 0);
    }
}

static void ranks_do_not_change_a_bit(void)
{
    static exchange alone, several;
    for (size_t k = 0; k < 4; k++) {
        alone = (exchange){.kind = kinds[k], .degree = 2, .trains = true};
        exchange_run(NULL, &alone);
        for (int ranks = 2; ranks <= 5; ranks++) {
            several = (exchange){.kind = kinds[k], .degree = 2, .trains = true};
            team_bench_on_ranks(ranks, exchange_run, &several);
            CHECK(memcmp(alone.params, several.params, alone.extent * sizeof(float)) == 0);
            CHECK(memcmp(alone.weights, several.weights, sizeof(alone.weights)) == 0);
            CHECK(alone.distance == several.distance && alone.distance > 0);
        }
    }
}

static const check_test tests[] = {
    CHECK_TEST(columns_have_the_sum_one),
    CHECK_TEST(every_graph_is_connected),
    CHECK_TEST(random_graphs_change_with_round_and_seed),
    CHECK_TEST(graphs_that_cannot_be_are_refused),
    CHECK_TEST(push_sum_finds_the_mean),
    CHECK_TEST(ranks_do_not_change_a_bit),
};
CHECK_MAIN(tests)
