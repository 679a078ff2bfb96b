/*
 * recompute_test.c: recomputation must affect nothing but the memory.
 *
 * Random graphs, cut into blocks at random, run with and without recomputation: all outputs and all gradients
 * must agree bit for bit. Towers of residual blocks with dropout, norms and running statistics show what is
 * recomputed, where, and how much smaller the arena becomes.
 */
#include "graph_bench.h"
#include "kernel/random_graph.h"

enum { GRAPH_COUNT = 300, ROWS = 16, WIDTH = 24 };

static bool same_bits(const bench *a, const bench *b)
{
    bool same = memcmp(a->grads, b->grads, a->grad_bytes) == 0;
    for (size_t id = 1; id < a->graph->value_count; id++) {
        if (!a->graph->values[id].is_output) continue;
        tdm_tensor x = tdm_plan_output(a->plan, a->graph->values[id].name);
        tdm_tensor y = tdm_plan_output(b->plan, a->graph->values[id].name);
        same = same && memcmp(x.data, y.data, tdm_tensor_bytes(&x)) == 0;
    }
    return same;
}

/* Runs both graphs twice, on memory that holds no numbers. */
static bool run_alike(const tdm_graph *plain, const tdm_graph *thrifty, uint64_t seed)
{
    bench a, b;
    bool same = true;
    if (!bench_open(&a, plain, NULL)) return false;
    if (bench_open(&b, thrifty, NULL)) {
        for (uint64_t run = 0; run < 2; run++) {
            bench_fill(&a, seed + run, RANDOM_GRAPH_CLASSES);
            bench_fill(&b, seed + run, RANDOM_GRAPH_CLASSES);
            bench_run(&a);
            bench_run(&b);
            same = same && same_bits(&a, &b);
        }
        bench_close(&b);
    }
    bench_close(&a);
    return same;
}

static size_t count_recomputed(const tdm_graph *g)
{
    size_t count = 0;
    for (size_t n = 0; n < tdm_graph_node_count(g); n++)
        count += tdm_graph_node_at(g, n).recomputed;
    return count;
}

static tdm_graph *marked_at_random(uint64_t seed, tdm_error *err)
{
    tdm_graph *g = random_graph_make(seed, err);
    tdm_rng rng = bench_rng(seed, 99);
    int32_t block = 0;
    for (size_t n = 0; g && n < g->node_count; n++) {
        block += tdm_rng_below(&rng, 4) == 0;
        g->nodes[n].block = block;
    }
    return g;
}

static void test_random_graphs(void)
{
    size_t recomputed[] = {0, 0, 0};
    for (uint64_t seed = 0; seed < GRAPH_COUNT; seed++) {
        for (int what = TDM_RECOMPUTE_BLOCKS; what <= TDM_RECOMPUTE_FULL; what++) {
            tdm_error err = {0};
            tdm_graph *plain = random_graph_make(seed, &err);
            tdm_graph *thrifty = marked_at_random(seed, &err);
            if (plain && thrifty) {
                CHECK_INT(tdm_graph_recompute(thrifty, (tdm_recompute)what, &err), TDM_OK);
                bool same = run_alike(plain, thrifty, seed);
                CHECK(same);
                if (!same) fprintf(stderr, "  seed %d, %d\n", (int)seed, what);
                recomputed[what] += count_recomputed(thrifty);
            }
            tdm_graph_destroy(plain);
            tdm_graph_destroy(thrifty);
        }
    }
    CHECK(recomputed[TDM_RECOMPUTE_BLOCKS] > 200); /* so recomputation was tested */
    CHECK(recomputed[TDM_RECOMPUTE_FULL] > 200);
}

/* ---- towers ---------------------------------------------------------------------------------- */

static tdm_value param(tdm_graph *g, const char *prefix, const char *what, tdm_shape shape)
{
    char name[64];
    snprintf(name, sizeof(name), "%s.%s", prefix, what);
    return tdm_graph_param(g, name, shape, (tdm_init){0});
}

/* x + dropout(linear(gelu(linear(norm(x))))); the norm's statistics are followed. */
static tdm_value residual(tdm_graph *g, int index, tdm_value x)
{
    char prefix[16], name[32];
    snprintf(prefix, sizeof(prefix), "b%d", index);
    tdm_graph_scope(g, prefix);
    tdm_graph_block(g);
    tdm_value mean = {0};
    tdm_value y = tdm_graph_batch_norm(
        g, x,
        &(tdm_batch_norm_options){.gamma = param(g, prefix, "gamma", tdm_shape_1(WIDTH)),
                                  .beta = param(g, prefix, "beta", tdm_shape_1(WIDTH)),
                                  .observed_mean = &mean});
    snprintf(name, sizeof(name), "%s.mean", prefix);
    tdm_graph_follow(g, tdm_graph_statistic(g, name, tdm_shape_1(WIDTH), (tdm_init){0}, 0.1), mean);
    y = tdm_graph_linear(g, y, param(g, prefix, "up", tdm_shape_2(4 * WIDTH, WIDTH)),
                         TDM_VALUE_NONE, TDM_ACTIVATION_GELU);
    y = tdm_graph_linear(g, y, param(g, prefix, "down", tdm_shape_2(WIDTH, 4 * WIDTH)),
                         TDM_VALUE_NONE, TDM_ACTIVATION_NONE);
    return tdm_graph_add(g, x, tdm_graph_dropout(g, y, 0.25));
}

static tdm_graph *tower(int block_count, tdm_recompute what)
{
    tdm_error err = {0};
    tdm_graph *g = tdm_graph_create();
    tdm_value x = tdm_graph_input(g, "x", TDM_DTYPE_F32, tdm_shape_2(ROWS, WIDTH));
    tdm_value classes = tdm_graph_input(g, "classes", TDM_DTYPE_I32, tdm_shape_1(ROWS));
    x = tdm_graph_linear(g, x, param(g, "in", "w", tdm_shape_2(WIDTH, WIDTH)), TDM_VALUE_NONE,
                         TDM_ACTIVATION_TANH);
    for (int i = 0; i < block_count; i++) x = residual(g, i, x);
    tdm_graph_block(g);
    tdm_graph_scope(g, "head");
    x = tdm_graph_linear(g, x, param(g, "head", "w", tdm_shape_2(RANDOM_GRAPH_CLASSES, WIDTH)),
                         TDM_VALUE_NONE, TDM_ACTIVATION_NONE);
    tdm_value loss = tdm_graph_cross_entropy(g, x, classes, 1.0);
    tdm_graph_output(g, "loss", loss);
    CHECK_INT(tdm_graph_backward(g, loss, &err), TDM_OK);
    CHECK_INT(tdm_graph_recompute(g, what, &err), TDM_OK);
    return g;
}

static size_t arena_of(const tdm_graph *g)
{
    tdm_error err = {0};
    tdm_plan *plan = NULL;
    CHECK_INT(tdm_plan_create(g, &(tdm_plan_options){.backend = "ref"}, &plan, &err), TDM_OK);
    size_t bytes = plan ? tdm_plan_arena_bytes(plan) : 0;
    tdm_plan_destroy(plan);
    return bytes;
}

static void test_towers(void)
{
    static const int heights[] = {1, 2, 5, 24};
    size_t arenas[4][3];
    for (size_t i = 0; i < 4; i++) {
        tdm_graph *plain = tower(heights[i], TDM_RECOMPUTE_NONE);
        CHECK_INT(count_recomputed(plain), 0);
        arenas[i][0] = arena_of(plain);
        for (int what = TDM_RECOMPUTE_BLOCKS; what <= TDM_RECOMPUTE_FULL; what++) {
            tdm_graph *thrifty = tower(heights[i], (tdm_recompute)what);
            CHECK(run_alike(plain, thrifty, 5));
            arenas[i][what] = arena_of(thrifty);
            tdm_graph_destroy(thrifty);
        }
        tdm_graph_destroy(plain);
    }
    const size_t *high = arenas[3];
    CHECK(high[TDM_RECOMPUTE_BLOCKS] < high[TDM_RECOMPUTE_NONE] / 4);
    CHECK(high[TDM_RECOMPUTE_FULL] < high[TDM_RECOMPUTE_BLOCKS] * 3 / 4);
    /* An additional block needs memory for its result with `blocks`, and for almost all its values without.
     * */
    size_t result = ROWS * WIDTH * sizeof(float);
    size_t blocks_more = (high[TDM_RECOMPUTE_BLOCKS] - arenas[2][TDM_RECOMPUTE_BLOCKS]) / (24 - 5);
    CHECK(blocks_more >= result && blocks_more < result + result / 4);
    CHECK((high[TDM_RECOMPUTE_NONE] - arenas[2][TDM_RECOMPUTE_NONE]) / (24 - 5) > 8 * result);
}

/* The index of the node with that name, or -1. */
static long place_of(const tdm_graph *g, const char *name)
{
    for (size_t n = 0; n < tdm_graph_node_count(g); n++)
        if (strcmp(tdm_graph_node_at(g, n).name, name) == 0) return (long)n;
    return -1;
}

static void test_what_is_recomputed(void)
{
    tdm_graph *g = tower(3, TDM_RECOMPUTE_BLOCKS);
    /* Needed by the gradients of a norm and of two products. */
    CHECK(place_of(g, "b1.batch_norm.again") > 0);
    CHECK(place_of(g, "b1.matmul.again") > 0);
    CHECK(place_of(g, "b1.gelu.again") > 0);
    /* Not needed: the gradient of a sum needs no sum, nor that of a mask the masked value. */
    CHECK_INT(place_of(g, "b1.dropout.again"), -1);
    CHECK_INT(place_of(g, "b1.add.again"), -1);
    /* Observed once. */
    CHECK_INT(place_of(g, "b1.copy.again"), -1);
    /* The last block, and the ops before the first block: of the latter only those between ops. */
    CHECK_INT(place_of(g, "head.matmul.again"), -1);
    CHECK_INT(place_of(g, "head.cross_entropy.again"), -1);
    CHECK_INT(place_of(g, "tanh.again"), -1);
    /* Directly before their use: after the backward pass of the following block. */
    CHECK(place_of(g, "b2.batch_norm.again") < place_of(g, "b2.batch_norm.batch_norm_grad"));
    CHECK(place_of(g, "b2.batch_norm.batch_norm_grad") < place_of(g, "b1.batch_norm.again"));
    CHECK(place_of(g, "b1.batch_norm.again") < place_of(g, "b1.batch_norm.batch_norm_grad"));
    CHECK(place_of(g, "b1.batch_norm.batch_norm_grad") < place_of(g, "b0.batch_norm.again"));
    for (size_t n = 0; n < tdm_graph_node_count(g); n++) {
        tdm_node_info node = tdm_graph_node_at(g, n);
        CHECK(!node.recomputed || node.backward);
    }
    tdm_graph_destroy(g);
}

/* Without marks the last block is the only one, so `blocks` has no effect; `full` finds positions to cut. */
static void test_without_marks(void)
{
    for (int what = TDM_RECOMPUTE_BLOCKS; what <= TDM_RECOMPUTE_FULL; what++) {
        tdm_error err = {0};
        tdm_graph *g = tower(24, TDM_RECOMPUTE_NONE);
        size_t before = arena_of(g);
        for (size_t n = 0; n < g->node_count; n++) g->nodes[n].block = 0;
        CHECK_INT(tdm_graph_recompute(g, (tdm_recompute)what, &err), TDM_OK);
        if (what == TDM_RECOMPUTE_BLOCKS) CHECK_INT(count_recomputed(g), 0);
        if (what == TDM_RECOMPUTE_FULL) CHECK(arena_of(g) < before / 4);
        tdm_graph_destroy(g);
    }
}

static void test_mistakes(void)
{
    tdm_error err = {0};
    tdm_graph *g = tdm_graph_create();
    CHECK_INT(tdm_graph_recompute(g, TDM_RECOMPUTE_BLOCKS, &err), TDM_ERR_INVALID);
    CHECK_TEXT(
        err.message,
        "graph: it has no gradients yet; call tdm_graph_backward before tdm_graph_recompute");
    tdm_graph_destroy(g);
    g = tower(2, TDM_RECOMPUTE_BLOCKS);
    CHECK_INT(tdm_graph_recompute(g, TDM_RECOMPUTE_FULL, &err), TDM_ERR_EXISTS);
    CHECK_TEXT(err.message, "graph: it already recomputes its activations");
    tdm_graph_destroy(g);
}

static const check_test tests[] = {
    CHECK_TEST(test_random_graphs), CHECK_TEST(test_towers),   CHECK_TEST(test_what_is_recomputed),
    CHECK_TEST(test_without_marks), CHECK_TEST(test_mistakes),
};
CHECK_MAIN(tests)
