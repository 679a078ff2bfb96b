/*
 * gradient_test.c: the gradients of the basic ops against central differences, by gradient_bench.h.
 * The other families have a file each: gradient_more_test.c and its neighbours.
 */
#include "kernel/gradient_bench.h"

static void matmul_in_all_forms(void)
{
    enum { M = 4, K = 5, N = 3 };
    for (int form = 0; form < 8; form++) {
        bool ta = form & 1, tb = form & 2;
        tdm_graph *g = tdm_graph_create();
        tdm_value a = ta ? param(g, "a", K, M) : param(g, "a", M, K);
        tdm_value b = tb ? param(g, "b", N, K) : param(g, "b", K, N);
        tdm_matmul_options options = {.trans_a = ta, .trans_b = tb};
        if (form & 4) options.bias = tdm_graph_param(g, "bias", tdm_shape_1(N), unused_init);
        compare(g, weighted_sum(g, "w", tdm_graph_matmul(g, a, b, &options)));
    }
}

/* Only one side trained: the gradient of the other one must not be needed. */
static void matmul_with_one_side_fixed(void)
{
    for (int side = 0; side < 2; side++) {
        tdm_graph *g = tdm_graph_create();
        tdm_value x = tdm_graph_input(g, "x", TDM_DTYPE_F32, tdm_shape_2(4, 4));
        tdm_value w = param(g, "w", 4, 4);
        compare(g, weighted_sum(g, "c", tdm_graph_matmul(g, side ? x : w, side ? w : x, NULL)));
    }
}

static void matmul_of_a_value_with_itself(void)
{
    for (int form = 0; form < 4; form++) {
        tdm_graph *g = tdm_graph_create();
        tdm_value a = param(g, "a", 4, 4);
        tdm_matmul_options options = {.trans_a = form & 1, .trans_b = form & 2};
        compare(g, weighted_sum(g, "w", tdm_graph_matmul(g, a, a, &options)));
    }
}

static void add_with_fan_out(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value a = param(g, "a", 3, 4), b = param(g, "b", 3, 4);
    tdm_value sum = tdm_graph_add(g, a, b);       /* both gradients are the same value */
    tdm_value twice = tdm_graph_add(g, sum, sum); /* a value used twice by one op */
    tdm_value more = tdm_graph_add(g, tdm_graph_tanh(g, sum), twice);
    compare(g, weighted_sum(g, "w", tdm_graph_add(g, more, a))); /* a parameter used twice */
}

static void add_of_losses(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value a = param(g, "a", 2, 3);
    tdm_value first = weighted_sum(g, "w1", a),
              second = weighted_sum(g, "w2", tdm_graph_tanh(g, a));
    compare(g, tdm_graph_add(g, first, second));
}

static void reshape_and_back(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value a = param(g, "a", 4, 6);
    tdm_value bent = tdm_graph_reshape(g, tdm_graph_reshape(g, a, tdm_shape_3(2, 3, 4)),
                                       tdm_shape_2(8, 3));
    tdm_value b = param(g, "b", 3, 2);
    compare(g, weighted_sum(g, "w", tdm_graph_matmul(g, bent, b, NULL)));
}

static void sum_rows(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value a = param(g, "a", 5, 4);
    compare(g, weighted_sum(g, "w", tdm_graph_sum_rows(g, tdm_graph_tanh(g, a))));
}

static void unary(tdm_value (*op)(tdm_graph *, tdm_value))
{
    tdm_graph *g = tdm_graph_create();
    tdm_value a = param(g, "a", 5, 7);
    compare(g, weighted_sum(g, "w1", op(g, a)));
    /* With more ops before and after it, so that values must be kept, and larger inputs. */
    g = tdm_graph_create();
    tdm_value x = tdm_graph_matmul(g, param(g, "a", 4, 9), param(g, "b", 9, 5), NULL);
    tdm_value y = op(g, tdm_graph_add(g, x, x));
    compare(
        g, tdm_graph_add(g, weighted_sum(g, "w1", tdm_graph_tanh(g, y)),
                         weighted_sum(g, "w2", tdm_graph_matmul(g, y, param(g, "c", 5, 2), NULL))));
}

static void relu(void)
{
    unary(tdm_graph_relu);
}

static void gelu(void)
{
    unary(tdm_graph_gelu);
}

static void tanh_op(void)
{
    unary(tdm_graph_tanh);
}

static void sigmoid(void)
{
    unary(tdm_graph_sigmoid);
}

static void softmax(void)
{
    unary(tdm_graph_softmax);
}

static tdm_value a_third_dropped(tdm_graph *g, tdm_value x)
{
    return tdm_graph_dropout(g, x, 1.0 / 3.0);
}

static void dropout_with_a_fixed_key(void)
{
    unary(a_third_dropped);
    /* two of them draw different masks, each with its own backward pass */
    tdm_graph *g = tdm_graph_create();
    tdm_value a = param(g, "a", 6, 8);
    tdm_value x = tdm_graph_tanh(g, tdm_graph_dropout(g, a, 0.4));
    compare(g, weighted_sum(g, "w", tdm_graph_dropout(g, x, 0.2)));
}

static tdm_value normalised(tdm_graph *g, tdm_value x)
{
    tdm_shape columns = tdm_shape_1(tdm_graph_shape(g, x).dim[1]);
    tdm_value shift = tdm_graph_buffer(g, "shift", columns, unused_init);
    tdm_value scale = tdm_graph_input(g, "scale", TDM_DTYPE_F32, columns);
    return tdm_graph_normalise(g, x, shift, scale);
}

static void normalise(void)
{
    unary(normalised);
}

static void cross_entropy(void)
{
    for (int form = 0; form < 2; form++) {
        tdm_graph *g = tdm_graph_create();
        tdm_value a = param(g, "a", 6, CLASS_COUNT);
        tdm_value classes = tdm_graph_input(g, "classes", TDM_DTYPE_I32, tdm_shape_1(6));
        tdm_value logits = form ? tdm_graph_add(g, a, tdm_graph_tanh(g, a)) : a;
        compare(g, tdm_graph_cross_entropy(g, logits, classes, form ? 1.0 / 6 : 2.5));
    }
}

/* The incoming gradient of the loss is not 1: the loss is only a part of a larger sum. */
static void cross_entropy_within_a_sum(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value a = param(g, "a", 4, CLASS_COUNT);
    tdm_value classes = tdm_graph_input(g, "classes", TDM_DTYPE_I32, tdm_shape_1(4));
    tdm_value loss = tdm_graph_cross_entropy(g, a, classes, 0.25);
    loss = tdm_graph_add(g, loss, loss);
    compare(g, tdm_graph_add(g, loss, weighted_sum(g, "w", tdm_graph_softmax(g, a))));
}

static tdm_value layer(tdm_graph *g, const char *weight, const char *bias, tdm_value x, int64_t out)
{
    tdm_value w = param(g, weight, out, tdm_graph_shape(g, x).dim[1]);
    tdm_value b = tdm_graph_param(g, bias, tdm_shape_1(out), unused_init);
    return tdm_graph_matmul(g, x, w, &(tdm_matmul_options){.trans_b = true, .bias = b});
}

static void whole_mlp(void)
{
    static tdm_value (*const activations[])(tdm_graph *, tdm_value) = {
        tdm_graph_relu, tdm_graph_gelu, tdm_graph_tanh, tdm_graph_sigmoid};
    for (size_t i = 0; i < 4; i++) {
        tdm_graph *g = tdm_graph_create();
        tdm_value x = tdm_graph_input(g, "x", TDM_DTYPE_F32, tdm_shape_2(8, 6));
        x = normalised(g, x);
        x = tdm_graph_dropout(g, activations[i](g, layer(g, "w1", "b1", x, 7)), 0.25);
        x = tdm_graph_dropout(g, activations[i](g, layer(g, "w2", "b2", x, 5)), 0.25);
        x = layer(g, "w3", "b3", x, CLASS_COUNT);
        tdm_value classes = tdm_graph_input(g, "classes", TDM_DTYPE_I32, tdm_shape_1(8));
        compare(g, tdm_graph_cross_entropy(g, x, classes, 1.0 / 8));
    }
}

/* The whole table is covered, except ops that exist only for backward passes, constants, and statistics of a
 * batch, whose gradient is part of that of the normalised values. */
static void every_op_has_a_gradient_or_none(void)
{
    for (int op = TDM_OP_NONE + 1; op < TDM_OP_COUNT; op++) {
        const tdm__op_row *row = tdm__op_row_of((tdm_op_kind)op);
        bool none = op == TDM_OP_FILL || op == TDM_OP_BATCH_NORM_SHARE ||
                    op == TDM_OP_BATCH_NORM_JOIN || strstr(row->name, "_grad");
        if (none != (row->backward == NULL)) fprintf(stderr, "  %s\n", row->name);
        CHECK_INT(row->backward == NULL, none);
    }
}

static const check_test tests[] = {
    CHECK_TEST(matmul_in_all_forms),
    CHECK_TEST(matmul_with_one_side_fixed),
    CHECK_TEST(matmul_of_a_value_with_itself),
    CHECK_TEST(add_with_fan_out),
    CHECK_TEST(add_of_losses),
    CHECK_TEST(reshape_and_back),
    CHECK_TEST(sum_rows),
    CHECK_TEST(relu),
    CHECK_TEST(gelu),
    CHECK_TEST(tanh_op),
    CHECK_TEST(sigmoid),
    CHECK_TEST(softmax),
    CHECK_TEST(dropout_with_a_fixed_key),
    CHECK_TEST(normalise),
    CHECK_TEST(cross_entropy),
    CHECK_TEST(cross_entropy_within_a_sum),
    CHECK_TEST(whole_mlp),
    CHECK_TEST(every_op_has_a_gradient_or_none),
};
CHECK_MAIN(tests)
