/*
 * lane_sum_test.c: sums over lanes, and their gradients, with lanes that the test executes.
 *
 * Two lanes with a sum between them must equal one graph that contains both and adds them. No pass may remove
 * such a sum, fuse it with another op, or recompute it.
 */
#include "kernel/lanes_bench.h"

enum { ROWS = 6, WIDTH = 5, HALVES = 2 };

static tdm_value leaf(tdm_graph *g, const char *name, int64_t rows, int64_t columns)
{
    return tdm_graph_param(g, name, tdm_shape_2(rows, columns), (tdm_init){0});
}

/* The value that a lane adds to the sum: tanh of its rows times w. */
static tdm_value part_of(tdm_graph *g, tdm_value w, const char *x_name)
{
    tdm_value x = tdm_graph_input(g, x_name, TDM_DTYPE_F32, tdm_shape_2(ROWS, WIDTH));
    return tdm_graph_linear(g, x, w, TDM_VALUE_NONE, TDM_ACTIVATION_TANH);
}

/* The value that a lane computes from the sum. */
static tdm_value loss_of(tdm_graph *g, tdm_value v, tdm_value sum, const char *target_name)
{
    tdm_value target = tdm_graph_input(g, target_name, TDM_DTYPE_F32, tdm_shape_2(ROWS, WIDTH));
    tdm_value y = tdm_graph_linear(g, sum, v, TDM_VALUE_NONE, TDM_ACTIVATION_SIGMOID);
    return tdm_graph_mse(g, y, target, 0.1);
}

static tdm_graph *lane_graph(const char *x, const char *target, tdm_recompute recompute)
{
    tdm_error err = {0};
    tdm_graph *g = tdm_graph_create();
    tdm_value w = leaf(g, "w", WIDTH, WIDTH), v = leaf(g, "v", WIDTH, WIDTH);
    tdm_value part = part_of(g, w, x);
    tdm_graph_block(g);
    tdm_value sum = tdm_graph_scale(g, tdm_graph_lane_sum(g, tdm_graph_scale(g, part, 2)), 0.5);
    tdm_value again = tdm_graph_linear(g, sum, w, TDM_VALUE_NONE, TDM_ACTIVATION_TANH);
    tdm_graph_block(g);
    tdm_value loss = loss_of(g, v, again, target);
    tdm_graph_output(g, "loss", loss);
    CHECK_INT(tdm_graph_backward(g, loss, &err), TDM_OK);
    CHECK_INT(tdm_graph_recompute(g, recompute, &err), TDM_OK);
    return g;
}

/* Both lanes in one graph. */
static tdm_graph *whole_graph(void)
{
    tdm_error err = {0};
    tdm_graph *g = tdm_graph_create();
    tdm_value w = leaf(g, "w", WIDTH, WIDTH), v = leaf(g, "v", WIDTH, WIDTH);
    tdm_value sum = tdm_graph_add(g, part_of(g, w, "x0"), part_of(g, w, "x1"));
    tdm_value again = tdm_graph_linear(g, sum, w, TDM_VALUE_NONE, TDM_ACTIVATION_TANH);
    tdm_value loss = tdm_graph_add(g, loss_of(g, v, again, "t0"), loss_of(g, v, again, "t1"));
    tdm_graph_output(g, "loss", loss);
    CHECK_INT(tdm_graph_backward(g, loss, &err), TDM_OK);
    return g;
}

static void fill_input(const bench *b, const char *name, int which)
{
    tdm_tensor t = tdm_plan_input(b->plan, name);
    tdm_rng rng = bench_rng(5, (uint32_t)which);
    for (int64_t i = 0; t.data && i < tdm_tensor_elements(&t); i++)
        ((float *)t.data)[i] = bench_random(&rng);
}

static void fill_inputs(const bench *b)
{
    static const char *const names[] = {"x0", "x1", "t0", "t1"};
    memset(b->arena, 0xff, b->arena_bytes);
    for (int i = 0; i < 4; i++) fill_input(b, names[i], i);
}

static void run_lanes(lanes_bench *b, tdm_recompute recompute)
{
    *b = (lanes_bench){0};
    lanes_bench_add(b, lane_graph("x0", "t0", recompute), 0);
    lanes_bench_add(b, lane_graph("x1", "t1", recompute), ROWS);
    CHECK_INT(b->count, HALVES);
    for (int i = 0; i < b->count; i++) fill_inputs(&b->lanes[i]);
    lanes_bench_run(b);
}

static void two_lanes_are_one_graph(void)
{
    lanes_bench b;
    bench whole;
    tdm_graph *g = whole_graph();
    run_lanes(&b, TDM_RECOMPUTE_NONE);
    CHECK_INT(b.sums, 2); /* one forward, one backward */
    if (bench_open(&whole, g, NULL)) {
        fill_inputs(&whole);
        bench_run(&whole);
        CHECK_NEAR(lanes_bench_loss(&b), *(float *)tdm_plan_output(whole.plan, "loss").data, 1e-5);
        double largest = 0;
        for (size_t p = 0; p < 2; p++) {
            const tdm_param_info *info = tdm_graph_param_at(g, p);
            for (size_t i = info->offset; i < info->offset + info->elements; i++) {
                CHECK_NEAR(lanes_bench_grad(&b, i), whole.grads[i], 2e-6);
                largest = fmax(largest, fabs((double)whole.grads[i]));
            }
        }
        CHECK(largest > 1e-2); /* so the comparison covers something */
        bench_close(&whole);
    }
    lanes_bench_close(&b);
    tdm_graph_destroy(g);
}

static void sums_are_not_computed_again(void)
{
    lanes_bench plain;
    run_lanes(&plain, TDM_RECOMPUTE_NONE);
    for (int what = TDM_RECOMPUTE_BLOCKS; what <= TDM_RECOMPUTE_FULL; what++) {
        lanes_bench b;
        size_t copies = 0;
        run_lanes(&b, (tdm_recompute)what);
        CHECK_INT(b.sums, plain.sums);
        for (int i = 0; i < b.count; i++)
            CHECK(memcmp(b.lanes[i].grads, plain.lanes[i].grads, b.lanes[i].grad_bytes) == 0);
        for (size_t n = 0; n < tdm_graph_node_count(b.graphs[0]); n++) {
            tdm_node_info info = tdm_graph_node_at(b.graphs[0], n);
            copies += info.recomputed;
            CHECK(!info.recomputed || strcmp(info.op, "lane_sum") != 0);
        }
        CHECK(copies > 0 || what == TDM_RECOMPUTE_FULL); /* so the pass was tested */
        lanes_bench_close(&b);
    }
    lanes_bench_close(&plain);
}

/* Without other lanes: the lane's own numbers, in any shape; and only f32. */
static void alone_it_is_x(void)
{
    tdm_error err = {0};
    for (int rank = 0; rank <= 4; rank++) {
        tdm_graph *g = tdm_graph_create();
        tdm_shape shape = {.rank = rank, .dim = {2, 3, 4, 5}};
        tdm_value x = tdm_graph_input(g, "x", TDM_DTYPE_F32, shape);
        tdm_graph_output(g, "y", tdm_graph_lane_sum(g, x));
        tdm_graph_output(g, "z", tdm_graph_scale(g, x, 1));
        bench b;
        if (bench_open(&b, g, NULL)) {
            tdm_tensor io = {0};
            bench_fill(&b, 3, 2);
            bench_run(&b);
            tdm_tensor y = tdm_plan_output(b.plan, "y"), z = tdm_plan_output(b.plan, "z");
            CHECK(memcmp(y.data, z.data, tdm_tensor_bytes(&y)) == 0);
            CHECK(tdm_plan_lane_sum_at(b.plan, 0, &io) && io.data == y.data);
            CHECK(tdm_shape_equal(&io.shape, &shape));
            CHECK(!tdm_plan_lane_sum_at(b.plan, 1, NULL));
            bench_close(&b);
        }
        tdm_graph_destroy(g);
    }
    tdm_graph *g = tdm_graph_create();
    tdm_graph_lane_sum(g, tdm_graph_input(g, "ids", TDM_DTYPE_I32, tdm_shape_1(3)));
    CHECK_INT(tdm_graph_check(g, &err), TDM_ERR_INVALID);
    CHECK_TEXT(err.message, "lane_sum: x must be f32, not i32");
    tdm_graph_destroy(g);
}

static const check_test tests[] = {
    CHECK_TEST(two_lanes_are_one_graph),
    CHECK_TEST(sums_are_not_computed_again),
    CHECK_TEST(alone_it_is_x),
};
CHECK_MAIN(tests)
