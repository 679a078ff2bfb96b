/*
 * team_test.c: teams of real processes: the same bits for any number of ranks and hosts, any transport, and any
 * distribution of the state.
 *
 * Every rank trains the same small model twice: alone, and as a rank of the world. Then rank 0 compares
 * parameters, states and averages bit for bit, and every rank the losses. The cases cover the stages of ZeRO,
 * the kinds of placement (with a rank that is slowed down, so that lanes really move), overlap on and off,
 * buckets of one cell and of everything, optimisers with one, two and three passes, and batches with fewer rows
 * than lanes.
 */
#include "dist/world.h"
#include "nn/nn.h"
#include "os/os.h"
#include "parallel/node_memory.h"
#include "parallel/params.h"
#include "team_bench.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOW = 1, STEPS = 4, MOVING_STEPS = 32 };
#else
enum { SLOW = 0, STEPS = 9, MOVING_STEPS = 32 };
#endif

enum { LANES = 8, FULL_BATCH = 37, LAST_BATCH = 5, WIDTH = 1300 };

static int64_t batch_of(uint64_t step)
{
    return step % 3 == 2 ? LAST_BATCH : FULL_BATCH;
}

/* At rank 0: compares a block, wherever its numbers are stored, with that of the process that trained alone.
 * */
static void check_block(const team_bench *b, int block, const float *expected)
{
    if (!expected) return;
    bool root = tdm_comm_rank(b->shape.comm) == 0;
    size_t count = block == TDM_BLOCK_PARAMS ? b->param_extent : b->trained_extent;
    float *found = calloc(count + 1, sizeof(float));
    CHECK(found != NULL);
    if (!found) return;
    CHECK_INT(tdm_params_read(b->store, block, 0, count, root ? found : NULL, NULL), TDM_OK);
    bool same = !root || memcmp(found, expected, count * sizeof(float)) == 0;
    CHECK(same);
    if (!same)
        fprintf(stderr, "block %d differs: zero %d, balance %d, overlap %d, bucket %zu, optim %d\n",
                block, b->shape.zero, b->shape.balance, !b->shape.no_overlap, b->shape.bucket_bytes,
                b->shape.optim);
    free(found);
}

/* Compares the memory that the first node's ranks map for gradients with the prediction. Real buffers consist
 * of whole cells, and the end of the last one is not touched. */
static void check_prediction(const team_bench *b)
{
    tdm_comm *comm = b->shape.comm;
    tdm_model_options m = team_bench_model(b);
    m = tdm_model_of_lane(&m, tdm_lane_slice(FULL_BATCH, LANES, 0).count, FULL_BATCH);
    tdm_graph *graph = NULL;
    tdm_plan *plan = NULL;
    tdm_plan_options options = tdm_model_plan_options(&m);
    CHECK_INT(tdm_model_build(&m, &graph, NULL), TDM_OK);
    CHECK_INT(tdm_plan_create(graph, &options, &plan, NULL), TDM_OK);
    int nodes = 1;
    for (int r = 0; r < tdm_comm_size(comm); r++)
        if (tdm_comm_node_of(comm, r) >= nodes) nodes++;
    tdm_ranks_memory memory = {0};
    CHECK_INT(tdm_ranks_memory_of(&(tdm_ranks_memory_options){.graph = graph,
                                                              .plan = plan,
                                                              .job = &b->job,
                                                              .rank_count = tdm_comm_size(comm),
                                                              .node_count = nodes,
                                                              .lane_count = LANES,
                                                              .zero = b->shape.zero},
                                  &memory, NULL),
              TDM_OK);
    bool counts = tdm_comm_node_of(comm, tdm_comm_rank(comm)) == 0;
    double bytes = counts ? (double)tdm_team_info_of(b->team).grad_bytes : 0;
    CHECK_INT(tdm_group_all_reduce(tdm_comm_world(comm), &bytes, &bytes, 1, TDM_DTYPE_F64,
                                   TDM_REDUCE_SUM, NULL),
              TDM_OK);
    const size_t cell = TDM_OPTIM_PIECE_ELEMENTS, extent = tdm_graph_grad_extent(graph);
    size_t gap = (extent + cell - 1) / cell * cell - extent;
    double predicted = (double)memory.gradient_bytes + 4.0 * (double)gap * memory.gradient_buffers;
    double spare = 4.0 * (double)cell * memory.node_ranks; /* shares consist of whole cells */
    /* number of ranks of the first node: the prediction is for a node with the most ranks */
    int first = 0;
    for (int r = 0; r < tdm_comm_size(comm); r++) first += tdm_comm_node_of(comm, r) == 0;
    bool near = first != memory.node_ranks || fabs(bytes - predicted) <= spare;
    CHECK(near);
    if (!near)
        fprintf(stderr, "zero %d on %d nodes: %.0f bytes of gradients, predicted %.0f\n",
                b->shape.zero, nodes, bytes, predicted);
    tdm_plan_destroy(plan);
    tdm_graph_destroy(graph);
}

static void train_both(team_shape shape, tdm_comm *comm, int64_t *moved)
{
    team_bench alone, b;
    double losses[MOVING_STEPS];
    uint64_t steps = shape.balance == TDM_JOB_BALANCE_FEEDBACK ? MOVING_STEPS : STEPS;
    shape.comm = NULL;
    if (!team_bench_open(&alone, &shape)) return;
    for (uint64_t step = 0; step < steps; step++)
        losses[step] = team_bench_step(&alone, step, batch_of(step)).loss;
    shape.comm = comm;
    if (team_bench_open(&b, &shape)) {
        if (shape.balance == TDM_JOB_BALANCE_OFF) check_prediction(&b);
        for (uint64_t step = 0; step < steps; step++) {
            tdm_step_result r = team_bench_step(&b, step, batch_of(step));
            CHECK(r.finite);
            CHECK(r.loss == losses[step]);
            *moved += r.moved;
        }
        CHECK_INT(tdm_params_settle(b.store, NULL), TDM_OK);
        check_block(&b, TDM_BLOCK_PARAMS, alone.params);
        check_block(&b, TDM_BLOCK_EMA, alone.ema);
        for (int i = 0; i < TDM_OPTIM_MAX_STATES; i++)
            check_block(&b, TDM_BLOCK_STATE + i, alone.states[i]);
        CHECK_INT(tdm_group_barrier(tdm_comm_world(comm), NULL), TDM_OK);
    }
    team_bench_close(&b);
    team_bench_close(&alone);
}

static void same_bits(tdm_comm *comm)
{
    static const int optims[] = {TDM_JOB_OPTIM_ADAMW, TDM_JOB_OPTIM_LAMB, TDM_JOB_OPTIM_SGD,
                                 TDM_JOB_OPTIM_LION};
    int64_t moved = 0;
    for (int zero = 0; zero <= 3; zero++)
        for (int variant = 0; variant < (SLOW ? 1 : 3); variant++)
            train_both((team_shape){.lanes = LANES,
                                    .batches = {FULL_BATCH, LAST_BATCH},
                                    .optim = optims[(zero + variant) % 4],
                                    .dropout = 0.2,
                                    .width = WIDTH,
                                    .clip_norm = variant == 1 ? 0.05 : 0,
                                    .ema = variant != 2 ? 0.9 : 0,
                                    .zero = zero,
                                    .balance = variant,
                                    .no_overlap = (zero + variant) % 2,
                                    .bucket_bytes = variant == 0 ? 16384 : 0},
                       comm, &moved);
}

/* One rank is slow: lanes move away from it, and no bit changes. */
static void moves(tdm_comm *comm)
{
    int64_t moved = 0;
    for (int zero = 0; zero <= 3; zero += 3) {
        team_shape shape = {.lanes = LANES,
                            .batches = {FULL_BATCH, LAST_BATCH},
                            .width = WIDTH,
                            .zero = zero,
                            .balance = TDM_JOB_BALANCE_FEEDBACK};
        for (int again = 0; again < 5 && (moved == 0 || again == 0); again++)
            train_both(shape, comm, &moved);
    }
    CHECK(moved > 0);
}

/* Sums that are not canonical still train: the model is almost the same. */
static void other_sums(tdm_comm *comm)
{
    for (int reduce = TDM_JOB_REDUCE_RING; reduce <= TDM_JOB_REDUCE_CENTRAL; reduce++)
        for (int zero = 0; zero <= 2; zero++) {
            team_shape shape = {.lanes = LANES,
                                .batches = {FULL_BATCH, LAST_BATCH},
                                .optim = TDM_JOB_OPTIM_SGD,
                                .width = WIDTH};
            team_bench alone, b;
            if (!team_bench_open(&alone, &shape)) return;
            shape.reduce = reduce;
            shape.zero = zero;
            shape.comm = comm;
            if (!team_bench_open(&b, &shape)) return;
            for (uint64_t step = 0; step < STEPS; step++) {
                double want = team_bench_step(&alone, step, batch_of(step)).loss;
                double have = team_bench_step(&b, step, batch_of(step)).loss;
                CHECK(fabs(want - have) < 1e-4);
            }
            CHECK_INT(tdm_group_barrier(tdm_comm_world(comm), NULL), TDM_OK);
            team_bench_close(&b);
            team_bench_close(&alone);
        }
}

/* A rank dies in the middle of a step: the others get an error in that step. */
static void death(tdm_comm *comm)
{
    int zero = atoi(getenv("TEAM_ZERO"));
    team_shape shape = {.lanes = LANES, .batches = {FULL_BATCH}, .width = WIDTH, .zero = zero};
    team_bench b;
    shape.comm = comm;
    if (!team_bench_open(&b, &shape)) return;
    tdm_status status = TDM_OK;
    tdm_error err = {0};
    double began_s = 0;
    for (uint64_t step = 0; status == TDM_OK; step++) {
        if (step == 3 && tdm_comm_rank(comm) == 1) raise(SIGKILL);
        began_s = tdm_clock_s();
        tdm_step_input in = {.step = step, .batch = FULL_BATCH, .lr = 0.01};
        tdm_step_result r;
        status = tdm_team_step(b.team, &in, &r, &err);
    }
    CHECK_INT(tdm_status_group_of(status), TDM_STATUS_GROUP_PEER);
    CHECK(tdm_clock_s() - began_s < 50); /* calls may take a minute */
    team_bench_close(&b);
}

static void task(tdm_comm *comm, const char *what)
{
    if (strcmp(what, "same_bits") == 0) same_bits(comm);
    if (strcmp(what, "moves") == 0) moves(comm);
    if (strcmp(what, "other_sums") == 0) other_sums(comm);
    if (strcmp(what, "death") == 0) death(comm);
}

/* ---- worlds ---------------------------------------------------------------------------------- */

static void one_host(void)
{
    world_run(&(world){.what = "same_bits", .hosts = "aa"});
    if (!SLOW) world_run(&(world){.what = "same_bits", .hosts = "aaa"});
    if (!SLOW) world_run(&(world){.what = "same_bits", .hosts = "aaaaaaaa"});
}

static void several_hosts(void)
{
    world_run(&(world){.what = "same_bits", .hosts = "aabb"});
    if (!SLOW) world_run(&(world){.what = "same_bits", .hosts = "abc"});
    if (!SLOW) world_run(&(world){.what = "same_bits", .hosts = "abacb"});
}

static void by_messages_alone(void)
{
    world_run(&(world){.what = "same_bits", .hosts = "aaa", .transport = "ucx"});
}

/* Lanes move away from a rank that is slow, and no bit changes. */
static void a_slow_rank(void)
{
    setenv("TANDEM_TEST_SLOW", "1:20", 1);
    world_run(&(world){.what = "moves", .hosts = "aaa"});
    if (!SLOW) world_run(&(world){.what = "moves", .hosts = "aab"});
    unsetenv("TANDEM_TEST_SLOW");
}

static void sums_of_other_kinds(void)
{
    world_run(&(world){.what = "other_sums", .hosts = "aaa"});
    if (!SLOW) world_run(&(world){.what = "other_sums", .hosts = "aab"});
}

static void a_rank_that_dies(void)
{
    for (int zero = 0; zero <= 3; zero += 1 + (zero == 1)) {
        setenv("TEAM_ZERO", (char[]){(char)('0' + zero), 0}, 1);
        world_run(&(world){
            .what = "death", .hosts = zero == 0 ? "aaa" : "aabb", .deadline_s = 20, .victim = 2});
    }
}

/* The gradient buffers of a single process have no spare address space. */
static void a_single_process(void)
{
    team_bench b;
    size_t bytes = 0;
    void *gradients = NULL;
    team_shape shape = {.lanes = 64, .batches = {64}};
    if (team_bench_open(&b, &shape)) {
        tdm_shm *shm = tdm__params_memory(b.store)->shm;
        CHECK_INT(tdm_shm_region_find(shm, "1:gradients-0", &bytes, &gradients, NULL), TDM_OK);
        CHECK_INT(bytes, tdm_team_info_of(b.team).grad_bytes);
    }
    team_bench_close(&b);
}

static const check_test tests[] = {
    CHECK_TEST(a_single_process),  CHECK_TEST(one_host),    CHECK_TEST(several_hosts),
    CHECK_TEST(by_messages_alone), CHECK_TEST(a_slow_rank), CHECK_TEST(sums_of_other_kinds),
    CHECK_TEST(a_rank_that_dies),
};

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--rank") == 0) return world_be_a_rank(task, argv[2]);
    return check_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
