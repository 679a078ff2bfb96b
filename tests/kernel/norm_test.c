/*
 * norm_test.c: layer norm and RMS norm: gradients by differences, every kernel against ref on odd shapes, and
 * errors of the builder.
 */
#include "kernel/double_eval_sequence.h"
#include "kernel/gradient_bench.h"
#include "kernel/kernel_bench.h"

/* ---- gradients ------------------------------------------------------------------------------- */

typedef struct norm_case {
    tdm_shape shape;
    bool rms;
    double eps;
    bool train_x, train_params;
} norm_case;

static tdm_value leaf(tdm_graph *g, const char *name, tdm_shape shape, bool train)
{
    return train ? tdm_graph_param(g, name, shape, unused_init)
                 : tdm_graph_input(g, name, TDM_DTYPE_F32, shape);
}

static void compare_norm(norm_case n)
{
    tdm_graph *g = tdm_graph_create();
    tdm_shape C = tdm_shape_1(n.shape.dim[n.shape.rank - 1]);
    tdm_value x = leaf(g, "x", n.shape, n.train_x), gamma = leaf(g, "gamma", C, n.train_params);
    tdm_value y = n.rms ? tdm_graph_rms_norm(g, x, gamma, n.eps)
                        : tdm_graph_layer_norm(g, x, gamma, leaf(g, "beta", C, n.train_params),
                                               n.eps);
    compare_with(g, weighted_sum(g, "w", tdm_graph_tanh(g, y)), double_eval_sequence);
}

static void gradients_by_differences(void)
{
    for (int form = 0; form < 6; form++) {
        bool rms = form & 1, train_x = form / 2 != 1, train_params = form / 2 != 2;
        compare_norm((norm_case){tdm_shape_2(5, 7), rms, 0, train_x, train_params});
        compare_norm((norm_case){tdm_shape_3(2, 3, 17), rms, 0.1, train_x, train_params});
    }
    compare_norm((norm_case){tdm_shape_1(9), false, 1e-3, true, true});
    compare_norm((norm_case){tdm_shape_1(9), true, 1e-3, true, true});
}

/* The residual stream of a transformer: x is an input of the norm and of a path around it. */
static void gradients_with_fan_out(void)
{
    for (int rms = 0; rms < 2; rms++) {
        tdm_graph *g = tdm_graph_create();
        tdm_value x = tdm_graph_tanh(g, param(g, "x", 4, 6));
        for (int i = 0; i < 2; i++) {
            const char *names[2][3] = {{"g1", "b1", "w1"}, {"g2", "b2", "w2"}};
            tdm_value gamma = leaf(g, names[i][0], tdm_shape_1(6), true);
            tdm_value y = rms ? tdm_graph_rms_norm(g, x, gamma, 0)
                              : tdm_graph_layer_norm(g, x, gamma,
                                                     leaf(g, names[i][1], tdm_shape_1(6), true), 0);
            x = tdm_graph_add(g, x, tdm_graph_matmul(g, y, param(g, names[i][2], 6, 6), NULL));
        }
        compare_with(g, weighted_sum(g, "w", x), double_eval_sequence);
    }
}

/* ---- kernels against ref --------------------------------------------------------------------- */

static const int64_t column_counts[] = {1, 2, 3, 5, 15, 16, 17, 31, 33, 64, 100, 384, 770};
static const int64_t row_counts[] = {1, 2, 7, 8, 9, 40};

/* `offset` moves x away from zero, where a careless variance loses its digits. */
static kernel_bench bench_of(tdm_op_kind op, int64_t rows, int64_t C, float offset)
{
    bool rms = op >= TDM_OP_RMS_NORM;
    tdm_tensor x = {TDM_DTYPE_F32, tdm_shape_2(rows, C), NULL},
               c = {TDM_DTYPE_F32, tdm_shape_1(C), NULL};
    tdm_tensor stats = {TDM_DTYPE_F32, rms ? tdm_shape_1(rows) : tdm_shape_2(rows, 2), NULL};
    kernel_bench b = {.op = op, .call.attrs.eps = 1e-5f};
    tdm_kernel_call *call = &b.call;
    switch (op) {
    case TDM_OP_LAYER_NORM:
    case TDM_OP_RMS_NORM:
        call->in[0] = x, call->in[1] = c, call->out[0] = x, call->out[1] = stats;
        if (!rms) call->in[2] = c;
        break;
    case TDM_OP_LAYER_NORM_GRAD:
    case TDM_OP_RMS_NORM_GRAD:
        call->in[0] = x, call->in[1] = x, call->in[2] = c, call->in[3] = stats, call->out[0] = x;
        break;
    default:
        call->in[0] = x, call->in[1] = x, call->in[2] = stats, call->out[0] = c;
        if (!rms) call->out[1] = c;
        break;
    }
    kernel_bench_open(&b);
    int of_x = op == TDM_OP_LAYER_NORM || op == TDM_OP_RMS_NORM ? 0 : 1;
    for (int64_t i = 0; i < rows * C; i++) ((float *)call->in[of_x].data)[i] += offset;
    return b;
}

static void compare_to_ref(tdm_op_kind op, int64_t rows, int64_t C, float offset, int threads)
{
    kernel_bench b = bench_of(op, rows, C, offset), ref = bench_of(op, rows, C, offset);
    kernel_bench_run(&ref, kernel_bench_ref());
    b.threads = threads;
    for (size_t level = 0; kernel_bench_cpu(level); level++) {
        kernel_bench_run(&b, kernel_bench_cpu(level));
        for (int o = 0; o < TDM_OP_MAX_OUTPUTS; o++) {
            if (!b.call.out[o].dtype) continue;
            int64_t count = tdm_tensor_elements(&b.call.out[o]);
            double largest = kernel_bench_largest(ref.call.out[o].data, count);
            double apart = kernel_bench_apart(b.call.out[o].data, ref.call.out[o].data, count);
            /* Rounding of x itself is relative to its distance from the mean. */
            double allowed = (4e-6 + (double)fabsf(offset) * 4e-7) * (largest + 1e-3);
            if (!(apart <= allowed))
                fprintf(stderr,
                        "  op %d, rows %d, C %d, level %d, output %d: %g apart, %g largest\n", op,
                        (int)rows, (int)C, kernel_bench_cpu(level)->level, o, apart, largest);
            CHECK(apart <= allowed);
        }
    }
    kernel_bench_close(&b);
    kernel_bench_close(&ref);
}

/* Far from zero only if a row has enough numbers that they differ by more than the rounding of x. */
static void every_kernel_agrees_with_ref(void)
{
    for (tdm_op_kind op = TDM_OP_LAYER_NORM; op <= TDM_OP_RMS_NORM_GRAD_PARAMS; op++)
        for (size_t r = 0; r < sizeof(row_counts) / sizeof(row_counts[0]); r++)
            for (size_t c = 0; c < sizeof(column_counts) / sizeof(column_counts[0]); c++)
                for (int offset = 0; offset <= (column_counts[c] < 15 ? 0 : 30); offset += 30)
                    compare_to_ref(op, row_counts[r], column_counts[c], (float)offset, 1);
}

/* Enough numbers for several threads; two threads must give the bits of one. */
static void threads_do_not_change_the_bits(void)
{
    for (tdm_op_kind op = TDM_OP_LAYER_NORM; op <= TDM_OP_RMS_NORM_GRAD_PARAMS; op++) {
        compare_to_ref(op, 300, 513, 0, 2);
        kernel_bench b = bench_of(op, 300, 513, 0);
        uint64_t hashes[3];
        for (int threads = 1; threads <= 3; threads++) {
            b.threads = threads;
            kernel_bench_run(&b, kernel_bench_cpu(0));
            hashes[threads - 1] = kernel_bench_hash(b.call.out, TDM_OP_MAX_OUTPUTS);
        }
        CHECK(hashes[0] == hashes[1] && hashes[0] == hashes[2]);
        kernel_bench_close(&b);
    }
}

/* A row of NaN stays NaN and affects no other row; a constant row gives beta, not NaN. */
static void rows_are_apart(void)
{
    for (size_t level = 0;; level++) {
        const tdm_kernel_backend_ops *ops = kernel_bench_cpu(level);
        kernel_bench b = bench_of(TDM_OP_LAYER_NORM, 3, 20, 0);
        float *x = b.call.in[0].data, *y = b.call.out[0].data, *beta = b.call.in[2].data;
        x[20] = NAN;
        for (int c = 40; c < 60; c++) x[c] = 3;
        kernel_bench_run(&b, ops ? ops : kernel_bench_ref());
        for (int c = 0; c < 20; c++) {
            CHECK(isfinite(y[c]) && isnan(y[20 + c]));
            CHECK_NEAR(y[40 + c], beta[c], 1e-6);
        }
        kernel_bench_close(&b);
        if (!ops) break;
    }
}

/* ---- mistakes -------------------------------------------------------------------------------- */

static void expect_mistake(tdm_graph *g, const char *part)
{
    tdm_error err = {0};
    CHECK(tdm_graph_check(g, &err) != TDM_OK);
    CHECK_HAS(err.message, part);
    tdm_graph_destroy(g);
}

static tdm_value with_shape(tdm_graph *g, const char *name, tdm_shape shape)
{
    return tdm_graph_input(g, name, TDM_DTYPE_F32, shape);
}

static void mistakes_are_named(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value x = with_shape(g, "x", tdm_shape_2(3, 4)), c = with_shape(g, "c", tdm_shape_1(5));
    tdm_graph_layer_norm(g, x, c, c, 0);
    expect_mistake(g, "layer_norm: gamma must have shape [4], not [5]");
    g = tdm_graph_create();
    x = with_shape(g, "x", tdm_shape_2(3, 4)), c = with_shape(g, "c", tdm_shape_1(4));
    tdm_graph_layer_norm(g, x, c, with_shape(g, "beta", tdm_shape_2(1, 4)), 0);
    expect_mistake(g, "beta must have shape [4], not [1, 4]");
    g = tdm_graph_create();
    x = with_shape(g, "x", tdm_shape_0());
    tdm_graph_rms_norm(g, x, x, 0);
    expect_mistake(g, "rms_norm: x must have a last dimension to normalise");
    g = tdm_graph_create();
    x = tdm_graph_input(g, "x", TDM_DTYPE_I32, tdm_shape_2(3, 4));
    tdm_graph_rms_norm(g, x, with_shape(g, "c", tdm_shape_1(4)), 0);
    expect_mistake(g, "x must be f32, not i32");
    g = tdm_graph_create();
    x = with_shape(g, "x", tdm_shape_2(3, 4)), c = with_shape(g, "c", tdm_shape_1(4));
    tdm_graph_layer_norm(g, x, c, c, -1);
    expect_mistake(g, "eps is -1");
}

static const check_test tests[] = {
    CHECK_TEST(gradients_by_differences),
    CHECK_TEST(gradients_with_fan_out),
    CHECK_TEST(every_kernel_agrees_with_ref),
    CHECK_TEST(threads_do_not_change_the_bits),
    CHECK_TEST(rows_are_apart),
    CHECK_TEST(mistakes_are_named),
};
CHECK_MAIN(tests)
