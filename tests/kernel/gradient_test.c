/*
 * gradient_test.c: every op's gradient against central differences.
 *
 * Each case builds a graph with parameters and one scalar loss. The plan computes loss and gradients
 * in f32, by `ref` and by the best kernels; double_eval.h computes the loss in double precision, and
 * every number of every parameter is moved up and down by a small step. The differences are good to
 * about 1e-9, so the comparison allows only what f32 arithmetic loses.
 */
#include "graph_bench.h"
#include "kernel/double_eval.h"

enum { CLASS_COUNT = 3 };

static const tdm_init unused_init = {.kind = TDM_INIT_ZERO};

static tdm_value param(tdm_graph *g, const char *name, int64_t rows, int64_t cols)
{
    return tdm_graph_param(g, name, tdm_shape_2(rows, cols), unused_init);
}

/* A scalar from any value: its numbers, each times a fixed random weight, summed. */
static tdm_value weighted_sum(tdm_graph *g, const char *weights_name, tdm_value x)
{
    tdm_shape shape = tdm_graph_shape(g, x);
    int64_t count = tdm_shape_elements(&shape);
    tdm_value weights = tdm_graph_input(g, weights_name, TDM_DTYPE_F32, tdm_shape_2(count, 1));
    tdm_value row = tdm_graph_reshape(g, x, tdm_shape_2(1, count));
    return tdm_graph_reshape(g, tdm_graph_matmul(g, row, weights, NULL), tdm_shape_0());
}

/* Copies what the plan is about to read. */
static double_eval eval_of(const bench *b, const tdm_step_key *key)
{
    double_eval e = double_eval_create(b->graph, key);
    for (size_t id = 1; id < b->graph->value_count; id++) {
        const tdm__value *v = &b->graph->values[id];
        const float *from = NULL;
        if (v->role == TDM__ROLE_PARAM) from = b->params + b->graph->params[v->param].offset;
        if (v->role == TDM__ROLE_INPUT && v->dtype == TDM_DTYPE_F32)
            from = tdm_plan_input(b->plan, v->name).data;
        for (size_t i = 0; from && i < double_eval_count(&e, (int32_t)id); i++)
            e.values[id][i] = (double)from[i];
    }
    return e;
}

static void compare_one(double_eval *e, int32_t loss, double *x, double gradient, double largest,
                        const char *what, size_t index)
{
    const double step = 1e-5;
    double at = *x;
    *x = at + step;
    double above = double_eval_run(e, loss);
    CHECK(e->kink > 10 * step || e->kink == INFINITY);
    *x = at - step;
    double below = double_eval_run(e, loss);
    *x = at;
    double expected = (above - below) / (2 * step);
    /* A few units in the last place of the largest gradient, as sums over its like are rounded. */
    double allowed = 4e-6 * largest + 1e-7;
    if (!(fabs(gradient - expected) <= allowed))
        fprintf(stderr, "  %s[%zu]: %.9g, by differences %.9g\n", what, index, gradient, expected);
    CHECK(fabs(gradient - expected) <= allowed);
}

static void compare_params(const bench *b, double_eval *e, int32_t loss)
{
    for (size_t p = 0; p < tdm_graph_param_count(b->graph); p++) {
        const tdm_param_info *info = tdm_graph_param_at(b->graph, p);
        if (!info->trained) continue;
        const float *grad = b->grads + info->offset;
        double largest = 0;
        for (size_t i = 0; i < info->elements; i++) largest = fmax(largest, fabs((double)grad[i]));
        CHECK(largest > 0); /* a case in which nothing flows proves nothing */
        for (size_t i = 0; i < info->elements; i++)
            compare_one(e, loss, &e->values[b->graph->param_values[p]][i], (double)grad[i], largest,
                        info->name, i);
    }
}

static void compare_backend(const tdm_graph *g, tdm_value loss, const char *backend)
{
    const tdm_step_key key = {.seed = 7, .step = 3, .first_row = 5};
    int32_t classes[64];
    bench b;
    if (!bench_open(&b, g, &(tdm_plan_options){.backend = backend})) return;
    memset(b.grads, 0xff, b.grad_bytes);
    bench_fill(&b, 2, CLASS_COUNT);
    double_eval e = eval_of(&b, &key);
    tdm_tensor chosen = tdm_plan_input(b.plan, "classes");
    if (chosen.dtype == TDM_DTYPE_I32) {
        CHECK(tdm_tensor_bytes(&chosen) <= sizeof(classes));
        memcpy(classes, chosen.data, tdm_tensor_bytes(&chosen));
        for (size_t id = 1; id < g->value_count; id++)
            if (g->values[id].dtype == TDM_DTYPE_I32) e.classes[id] = classes;
    }
    tdm_plan_run(b.plan, &key);
    double expected = double_eval_run(&e, loss.id);
    CHECK_NEAR(*(float *)tdm_plan_output(b.plan, "loss").data, expected,
               4e-6 * (fabs(expected) + 1));
    compare_params(&b, &e, loss.id);
    double_eval_release(&e);
    bench_close(&b);
}

/* Takes the graph: adds gradients, compares, destroys. */
static void compare(tdm_graph *g, tdm_value loss)
{
    tdm_error err = {0};
    tdm_graph_output(g, "loss", loss);
    CHECK_INT(tdm_graph_backward(g, loss, &err), TDM_OK);
    CHECK_TEXT(err.message, "");
    if (err.status == TDM_OK) {
        compare_backend(g, loss, "ref");
        compare_backend(g, loss, NULL);
    }
    tdm_graph_destroy(g);
}

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

/* Only one side trained: the other's gradient must not be needed. */
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
    tdm_value sum = tdm_graph_add(g, a, b);       /* both gradients are one value */
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
    /* With more behind and in front of it, so that what it keeps must survive, and larger inputs. */
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
    tdm_graph *g = tdm_graph_create(); /* two of them draw different masks, each its own backward */
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

/* What flows back into the loss is not 1: the loss is only a part of a larger sum. */
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

/* The whole table is covered: a forward op that is added needs a case above, and a line here. */
static void every_op_has_a_gradient_or_none(void)
{
    static const bool no_gradient[TDM_OP_COUNT] = {
        [TDM_OP_RELU_GRAD] = true,    [TDM_OP_GELU_GRAD] = true,
        [TDM_OP_TANH_GRAD] = true,    [TDM_OP_SIGMOID_GRAD] = true,
        [TDM_OP_SOFTMAX_GRAD] = true, [TDM_OP_CROSS_ENTROPY_GRAD] = true,
        [TDM_OP_FILL] = true,
    };
    CHECK_INT(TDM_OP_COUNT, 21);
    for (int op = TDM_OP_NONE + 1; op < TDM_OP_COUNT; op++)
        CHECK_INT(tdm__op_row_of((tdm_op_kind)op)->backward == NULL, no_gradient[op]);
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
