/*
 * batch_norm_test.c: batch norm: gradients by differences, every kernel against `ref` on odd shapes, statistics
 * of a million rows, the values that the builder returns for running statistics, and errors of the builder.
 */
#include "kernel/double_eval_image.h"
#include "kernel/double_eval_more.h"
#include "kernel/gradient_bench.h"
#include "kernel/kernel_bench.h"

/* ---- gradients ------------------------------------------------------------------------------- */

static bool evaluate(double_eval *e, const tdm__node *node)
{
    return double_eval_image(e, node) || double_eval_more(e, node);
}

static tdm_value leaf(tdm_graph *g, const char *name, tdm_shape shape, bool train)
{
    return train ? tdm_graph_param(g, name, shape, unused_init)
                 : tdm_graph_input(g, name, TDM_DTYPE_F32, shape);
}

/* A variance near one: positive. */
static tdm_value variance_of(tdm_graph *g, tdm_shape C)
{
    return tdm_graph_sigmoid(g, leaf(g, "variance", C, false));
}

/* trained: bit 0 x, bit 1 gamma, bit 2 beta. */
static void compare_norm(tdm_shape shape, bool fixed, double eps, int trained)
{
    tdm_graph *g = tdm_graph_create();
    tdm_shape C = tdm_shape_1(shape.dim[shape.rank - 1]);
    tdm_batch_norm_options o = {.eps = eps};
    tdm_value x = leaf(g, "x", shape, trained & 1);
    o.gamma = leaf(g, "gamma", C, trained & 2);
    o.beta = leaf(g, "beta", C, trained & 4);
    if (fixed) {
        o.mode = TDM_BATCH_NORM_FIXED;
        o.mean = tdm_graph_buffer(g, "mean", C, unused_init);
        o.variance = variance_of(g, C);
    }
    tdm_value y = tdm_graph_batch_norm(g, x, &o);
    compare_with(g, weighted_sum(g, "w", tdm_graph_sigmoid(g, y)), evaluate);
}

static void gradients_by_differences(void)
{
    for (int fixed = 0; fixed < 2; fixed++)
        for (int trained = 1; trained < 8; trained++) {
            compare_norm(tdm_shape_2(7, 5), fixed, 0.01, trained);
            compare_norm(tdm_shape_4(2, 3, 2, 3), fixed, 0.1, trained);
        }
    compare_norm(tdm_shape_2(20, 3), false, 0, 7);
}

/* x is an input of the norm and of a path around it, and the norm's parameters are used twice. */
static void gradients_with_fan_out(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value x = tdm_graph_tanh(g, tdm_graph_param(g, "x", tdm_shape_2(8, 3), unused_init));
    tdm_batch_norm_options o = {.eps = 0.1};
    o.gamma = leaf(g, "gamma", tdm_shape_1(3), true);
    o.beta = leaf(g, "beta", tdm_shape_1(3), true);
    x = tdm_graph_add(g, x, tdm_graph_relu(g, tdm_graph_batch_norm(g, x, &o)));
    x = tdm_graph_add(g, x, tdm_graph_batch_norm(g, tdm_graph_tanh(g, x), &o));
    compare_with(g, weighted_sum(g, "w", x), evaluate);
}

/* ---- kernels --------------------------------------------------------------------------------- */

static const int64_t column_counts[] = {1, 2, 3, 5, 15, 16, 17, 33, 64, 65, 100, 200};
static const int64_t row_counts[] = {2, 3, 63, 64, 65, 130, 1000};

static const tdm_op_kind norm_ops[] = {
    TDM_OP_BATCH_NORM,       TDM_OP_BATCH_NORM_GRAD,       TDM_OP_BATCH_NORM_GRAD_PARAMS,
    TDM_OP_BATCH_NORM_FIXED, TDM_OP_BATCH_NORM_FIXED_GRAD, TDM_OP_BATCH_NORM_FIXED_GRAD_PARAMS,
    TDM_OP_BATCH_NORM_GIVEN, TDM_OP_BATCH_NORM_SHARE};
enum { NORM_OP_COUNT = sizeof(norm_ops) / sizeof(norm_ops[0]) };

static kernel_bench bench_of(tdm_op_kind op, int64_t rows, int64_t C, float offset)
{
    tdm_tensor x = {TDM_DTYPE_F32, tdm_shape_2(rows, C), NULL};
    tdm_tensor c = {TDM_DTYPE_F32, tdm_shape_1(C), NULL};
    tdm_tensor stats = {TDM_DTYPE_F32, tdm_shape_2(2, C), NULL};
    tdm_tensor share = {TDM_DTYPE_F32, tdm_shape_2(3, C), NULL};
    kernel_bench b = {.op = op, .call.attrs = {.eps = 1e-5f, .scale = 0.25 / (double)rows}};
    const tdm_tensor in[NORM_OP_COUNT][6] = {
        {x, c, c}, {x, x, c, stats, c, c}, {x, x, stats},    {x, c, c, c, c},
        {x, c, c}, {x, x, c, c},           {x, c, c, stats}, {x, c}};
    int which = 0;
    while (norm_ops[which] != op) which++;
    bool params = op == TDM_OP_BATCH_NORM_GRAD_PARAMS || op == TDM_OP_BATCH_NORM_FIXED_GRAD_PARAMS;
    for (int i = 0; i < 6; i++) b.call.in[i] = in[which][i];
    b.call.out[0] = params ? c : op == TDM_OP_BATCH_NORM_SHARE ? share : x;
    if (params) b.call.out[1] = c;
    if (op == TDM_OP_BATCH_NORM) b.call.out[1] = stats;
    kernel_bench_open(&b);
    /* The input indices of the variances, in the order of the ops, and of x. */
    static const int variance_in[] = {-1, 3, 2, 4, 2, 3, 3, -1};
    static const int x_in[] = {0, 1, 1, 0, -1, 1, 0, 0};
    if (variance_in[which] >= 0) {
        const tdm_tensor *v = &b.call.in[variance_in[which]];
        for (int64_t i = 0; i < tdm_tensor_elements(v); i++)
            ((float *)v->data)[i] = 0.1f + fabsf(((float *)v->data)[i]);
    }
    for (int64_t i = 0; i < rows * C && x_in[which] >= 0; i++)
        ((float *)b.call.in[x_in[which]].data)[i] += offset;
    return b;
}

/* Returns a hash of the result of the best level. */
static uint64_t compare_to_ref(tdm_op_kind op, int64_t rows, int64_t C, float offset, int threads)
{
    kernel_bench b = bench_of(op, rows, C, offset), ref = bench_of(op, rows, C, offset);
    uint64_t hash = 0;
    kernel_bench_run(&ref, kernel_bench_ref());
    b.threads = threads;
    for (size_t level = 0; kernel_bench_cpu(level); level++) {
        kernel_bench_run(&b, kernel_bench_cpu(level));
        if (level == 0) hash = kernel_bench_hash(b.call.out, TDM_OP_MAX_OUTPUTS);
        for (int o = 0; o < TDM_OP_MAX_OUTPUTS; o++) {
            if (!b.call.out[o].dtype) continue;
            int64_t count = tdm_tensor_elements(&b.call.out[o]);
            double largest = kernel_bench_largest(ref.call.out[o].data, count);
            double apart = kernel_bench_apart(b.call.out[o].data, ref.call.out[o].data, count);
            double allowed = (3e-6 + (double)fabsf(offset) * 4e-7) * (largest + 1e-3);
            if (!(apart <= allowed))
                fprintf(stderr,
                        "  op %d, rows %d, C %d, level %d, output %d: %g apart, %g largest\n", op,
                        (int)rows, (int)C, kernel_bench_cpu(level)->level, o, apart, largest);
            CHECK(apart <= allowed);
        }
    }
    kernel_bench_close(&b);
    kernel_bench_close(&ref);
    return hash;
}

/* Far from zero only with many rows: of a few rows, some have almost no variance, and then the rounding of
 * the mean itself dominates. */
static void every_kernel_agrees_with_ref(void)
{
    for (int op = 0; op < NORM_OP_COUNT; op++)
        for (size_t r = 0; r < sizeof(row_counts) / sizeof(row_counts[0]); r++)
            for (size_t c = 0; c < sizeof(column_counts) / sizeof(column_counts[0]); c++)
                for (int offset = 0; offset <= (row_counts[r] > 60 ? 30 : 0); offset += 30)
                    compare_to_ref(norm_ops[op], row_counts[r], column_counts[c], (float)offset, 1);
}

static void threads_do_not_change_the_bits(void)
{
    for (int op = 0; op < NORM_OP_COUNT; op++) {
        uint64_t one = compare_to_ref(norm_ops[op], 1511, 77, 0, 1);
        CHECK(one == compare_to_ref(norm_ops[op], 1511, 77, 0, 2));
        CHECK(one == compare_to_ref(norm_ops[op], 1511, 77, 0, 3));
    }
}

/* A million rows, far from zero: mean and variance keep their digits. The second half of the rows has another
 * mean, which tests the combination of blocks. */
static void a_million_rows(void)
{
    enum { ROWS = 1000003, C = 5 };
    for (size_t level = 0; kernel_bench_cpu(level); level++) {
        kernel_bench b = bench_of(TDM_OP_BATCH_NORM, ROWS, C, 100);
        float *x = b.call.in[0].data, *stats = b.call.out[1].data;
        double mean[C] = {0}, variance[C] = {0};
        for (int64_t i = ROWS / 2 * C; i < ROWS * C; i++) x[i] += 1;
        for (int64_t i = 0; i < ROWS * C; i++) mean[i % C] += (double)x[i] / ROWS;
        for (int64_t i = 0; i < ROWS * C; i++)
            variance[i % C] += pow((double)x[i] - mean[i % C], 2) / ROWS;
        kernel_bench_run(&b, kernel_bench_cpu(level));
        for (int c = 0; c < C; c++) {
            CHECK_NEAR(stats[c], mean[c], 1e-7 * mean[c]);
            CHECK_NEAR(stats[C + c], variance[c], 2e-6 * variance[c]);
        }
        kernel_bench_close(&b);
    }
}

/* Results that overwrite dy or x have the same bits as results in separate memory. */
static void in_place_is_the_same(void)
{
    static const struct {
        tdm_op_kind op;
        int over;
    } forms[] = {{TDM_OP_BATCH_NORM, 0},       {TDM_OP_BATCH_NORM_GRAD, 0},
                 {TDM_OP_BATCH_NORM_GRAD, 1},  {TDM_OP_BATCH_NORM_FIXED, 0},
                 {TDM_OP_BATCH_NORM_GIVEN, 0}, {TDM_OP_BATCH_NORM_FIXED_GRAD, 0}};
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++)
        for (size_t level = 0;; level++) {
            const tdm_kernel_backend_ops *ops = kernel_bench_cpu(level);
            bool last = !ops;
            if (last) ops = kernel_bench_ref();
            kernel_bench b = bench_of(forms[i].op, 150, 19, 0);
            const tdm_kernel *kernel = tdm_kernel_find(ops, b.op, TDM_DTYPE_F32);
            tdm_kernel_call call = b.call;
            tdm_error err = {0};
            kernel_bench_run(&b, ops);
            if (kernel->prepare) CHECK_INT(kernel->prepare(NULL, &call, &err), TDM_OK);
            call.scratch = kernel_bench_alloc(call.scratch_bytes);
            call.out[0].data = call.in[forms[i].over].data;
            kernel->run(NULL, &call, &b.key);
            CHECK(memcmp(call.out[0].data, b.call.out[0].data, tdm_tensor_bytes(&call.out[0])) ==
                  0);
            kernel_bench_free(call.scratch);
            kernel_bench_close(&b);
            if (last) break;
        }
}

/* ---- running statistics, and mistakes ------------------------------------------------------------ */

/* As in PyTorch: the biased variance normalises, the unbiased one updates the running statistics. */
static void what_was_observed(void)
{
    enum { ROWS = 6, C = 2 };
    tdm_graph *g = tdm_graph_create();
    tdm_value mean, variance, x = leaf(g, "x", tdm_shape_4(ROWS / 2, 2, 1, C), false);
    tdm_batch_norm_options o = {.observed_mean = &mean, .observed_variance = &variance};
    o.gamma = leaf(g, "gamma", tdm_shape_1(C), true);
    o.beta = leaf(g, "beta", tdm_shape_1(C), true);
    tdm_value running_mean = tdm_graph_statistic(g, "mean", tdm_shape_1(C), unused_init, 0.1);
    tdm_value running = tdm_graph_statistic(g, "variance", tdm_shape_1(C), unused_init, 0.1);
    tdm_value y = tdm_graph_batch_norm(g, x, &o);
    tdm_graph_follow(g, running_mean, mean);
    tdm_graph_follow(g, running, variance);
    tdm_value loss = weighted_sum(g, "w", y);
    tdm_error err = {0};
    tdm_graph_output(g, "loss", loss);
    CHECK_INT(tdm_graph_backward(g, loss, &err), TDM_OK);
    bench b;
    if (bench_open(&b, g, &(tdm_plan_options){0})) {
        float values[ROWS * C];
        bench_fill(&b, 3, 1);
        memcpy(values, tdm_plan_input(b.plan, "x").data, sizeof(values));
        tdm_plan_run(b.plan, &(tdm_step_key){0});
        for (int c = 0; c < C; c++) {
            double m = 0, v = 0;
            for (int i = c; i < ROWS * C; i += C) m += (double)values[i] / ROWS;
            for (int i = c; i < ROWS * C; i += C) v += pow((double)values[i] - m, 2) / (ROWS - 1);
            CHECK_NEAR(b.grads[tdm_graph_param_at(g, 2)->offset + (size_t)c], m, 1e-6);
            CHECK_NEAR(b.grads[tdm_graph_param_at(g, 3)->offset + (size_t)c], v, 1e-6);
        }
        bench_close(&b);
    }
    tdm_graph_destroy(g);
}

static void expect_mistake(tdm_graph *g, const char *part)
{
    tdm_error err = {0};
    CHECK(tdm_graph_check(g, &err) != TDM_OK);
    CHECK_HAS(err.message, part);
    tdm_graph_destroy(g);
}

static void mistakes_are_named(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value x = leaf(g, "x", tdm_shape_2(3, 4), false), c = leaf(g, "c", tdm_shape_1(5), false);
    tdm_graph_batch_norm(g, x, &(tdm_batch_norm_options){.gamma = c, .beta = c});
    expect_mistake(g, "batch_norm: gamma must have shape [4], not [5]");

    g = tdm_graph_create();
    x = leaf(g, "x", tdm_shape_4(1, 1, 1, 4), false), c = leaf(g, "c", tdm_shape_1(4), false);
    tdm_graph_batch_norm(g, x, &(tdm_batch_norm_options){.gamma = c, .beta = c});
    expect_mistake(g, "one number in a channel has no variance");

    g = tdm_graph_create();
    x = leaf(g, "x", tdm_shape_2(3, 4), false), c = leaf(g, "c", tdm_shape_1(4), false);
    tdm_graph_batch_norm(g, x, &(tdm_batch_norm_options){.gamma = c, .beta = c, .eps = -1});
    expect_mistake(g, "eps is -1");

    g = tdm_graph_create();
    x = leaf(g, "x", tdm_shape_2(3, 4), false), c = leaf(g, "c", tdm_shape_1(4), false);
    tdm_graph_batch_norm(
        g, x, &(tdm_batch_norm_options){.mode = TDM_BATCH_NORM_FIXED, .gamma = c, .beta = c});
    expect_mistake(g, "batch_norm_fixed: input is not a value");

    g = tdm_graph_create();
    x = leaf(g, "x", tdm_shape_2(3, 4), false), c = leaf(g, "c", tdm_shape_1(4), true);
    tdm_graph_batch_norm(
        g, x,
        &(tdm_batch_norm_options){
            .mode = TDM_BATCH_NORM_FIXED, .gamma = c, .beta = c, .mean = c, .variance = c});
    expect_mistake(g, "mean and variance are fixed");

    static const struct {
        int64_t lane_rows, batch_rows;
        bool train_mean;
        const char *message;
    } of_lanes[] = {{0, 6, false, "a lane must have at least 1 row"},
                    {7, 6, false, "a lane must have at least 1 row"},
                    {1, -1, false, "a lane must have at least 1 row"},
                    {1, 1, false, "one number in a channel has no variance"},
                    {1, 2, true, "mean is fixed"}};
    for (size_t i = 0; i < sizeof(of_lanes) / sizeof(of_lanes[0]); i++) {
        g = tdm_graph_create();
        x = leaf(g, "x", tdm_shape_2(1, 4), false), c = leaf(g, "c", tdm_shape_1(4), true);
        tdm_batch_norm_options o = {.gamma = c,
                                    .beta = c,
                                    .lane_rows = of_lanes[i].lane_rows,
                                    .batch_rows = of_lanes[i].batch_rows};
        if (of_lanes[i].train_mean) o.mean = c;
        tdm_graph_batch_norm(g, x, &o);
        expect_mistake(g, of_lanes[i].message);
    }
}

/* A gradient that would be wrong is an error instead. */
static void losses_of_statistics_are_refused(void)
{
    tdm_error err = {0};
    tdm_graph *g = tdm_graph_create();
    tdm_value mean, x = leaf(g, "x", tdm_shape_2(3, 4), true),
                    c = leaf(g, "c", tdm_shape_1(4), true);
    tdm_batch_norm_options o = {.gamma = c, .beta = c, .observed_mean = &mean};
    tdm_value y = tdm_graph_batch_norm(g, x, &o);
    tdm_value loss = tdm_graph_add(g, weighted_sum(g, "v", y), weighted_sum(g, "w", mean));
    CHECK(tdm_graph_backward(g, loss, &err) != TDM_OK);
    CHECK_HAS(err.message, "may not depend on the observed statistics");
    tdm_graph_destroy(g);
}

static const check_test tests[] = {
    CHECK_TEST(gradients_by_differences),
    CHECK_TEST(gradients_with_fan_out),
    CHECK_TEST(every_kernel_agrees_with_ref),
    CHECK_TEST(threads_do_not_change_the_bits),
    CHECK_TEST(a_million_rows),
    CHECK_TEST(in_place_is_the_same),
    CHECK_TEST(what_was_observed),
    CHECK_TEST(mistakes_are_named),
    CHECK_TEST(losses_of_statistics_are_refused),
};
CHECK_MAIN(tests)
