/*
 * graph_ops_test.c: the ops on shapes, element-wise ops, losses and embeddings: valid and invalid inputs, with
 * the exact messages, the resulting shapes, and values that can be computed by hand. tests/kernel tests
 * gradients.
 */
#include "graph_bench.h"

static tdm_value input(tdm_graph *g, const char *name, tdm_shape shape)
{
    return tdm_graph_input(g, name, TDM_DTYPE_F32, shape);
}

static tdm_value whole(tdm_graph *g, const char *name, tdm_shape shape)
{
    return tdm_graph_input(g, name, TDM_DTYPE_I32, shape);
}

static tdm_value param(tdm_graph *g, const char *name, tdm_shape shape)
{
    return tdm_graph_param(g, name, shape, (tdm_init){0});
}

/* The graph has exactly this error; takes the graph. */
static void refused(tdm_graph *g, tdm_value result, tdm_status status, const char *message)
{
    tdm_error err = {0};
    CHECK_INT(result.id, 0);
    CHECK_INT(tdm_graph_check(g, &err), status);
    CHECK_TEXT(err.message, message);
    tdm_graph_destroy(g);
}

static void has_shape(const tdm_graph *g, tdm_value x, const char *expected)
{
    char text[128];
    tdm_error err = {0};
    tdm_graph_check(g, &err);
    CHECK_TEXT(err.message, "");
    tdm_shape shape = tdm_graph_shape(g, x);
    CHECK(x.id != 0);
    CHECK_TEXT(tdm_shape_text(&shape, text), expected);
}

/* ---- shapes ---------------------------------------------------------------------------------- */

static void transposes(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value x = input(g, "x", tdm_shape_4(2, 3, 4, 5));
    has_shape(g, tdm_graph_transpose(g, x, (int[]){0, 2, 1, 3}), "[2, 4, 3, 5]");
    has_shape(g, tdm_graph_transpose(g, x, (int[]){3, 0, 1, 2}), "[5, 2, 3, 4]");
    refused(
        g, tdm_graph_transpose(g, x, (int[]){0, 2, 2, 3}), TDM_ERR_INVALID,
        "transpose: perm must contain each dimension of [2, 3, 4, 5] once; 2 at index 2 is invalid");
    static const int bad[] = {-1, 2, 1000};
    for (size_t i = 0; i < 3; i++) {
        g = tdm_graph_create();
        x = input(g, "x", tdm_shape_2(2, 3));
        CHECK_INT(tdm_graph_transpose(g, x, (int[]){bad[i], 0}).id, 0);
        CHECK_INT(tdm_graph_check(g, NULL), TDM_ERR_INVALID);
        tdm_graph_destroy(g);
    }
    g = tdm_graph_create();
    x = whole(g, "x", tdm_shape_2(2, 3));
    refused(g, tdm_graph_transpose(g, x, (int[]){1, 0}), TDM_ERR_INVALID,
            "transpose: x must be f32, not i32");
}

static void concats(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value x[9];
    for (int i = 0; i < 9; i++) {
        char name[8];
        snprintf(name, sizeof(name), "x%d", i);
        x[i] = input(g, name, tdm_shape_3(2, i, 4));
    }
    has_shape(g, tdm_graph_concat(g, x, 9, 1), "[2, 36, 4]");
    CHECK_INT(tdm_graph_node_count(g), 2);
    has_shape(g, tdm_graph_concat(g, x, 6, 1), "[2, 15, 4]");
    CHECK_INT(tdm_graph_node_count(g), 3);
    refused(g, tdm_graph_concat(g, x + 1, 2, 0), TDM_ERR_INVALID,
            "concat: shapes [2, 1, 4] and [2, 2, 4] differ in more than axis 0");
    static const int axes[] = {-1, 2};
    static const char *const messages[] = {"concat: axis -1 is out of range for shape [2, 3]",
                                           "concat: axis 2 is out of range for shape [2, 3]"};
    for (int i = 0; i < 2; i++) {
        g = tdm_graph_create();
        x[0] = input(g, "x", tdm_shape_2(2, 3));
        refused(g, tdm_graph_concat(g, (tdm_value[]){x[0], x[0]}, 2, axes[i]), TDM_ERR_RANGE,
                messages[i]);
    }
    g = tdm_graph_create();
    x[0] = input(g, "a", tdm_shape_2(2, 3)), x[1] = input(g, "b", tdm_shape_1(2));
    refused(g, tdm_graph_concat(g, x, 2, 1), TDM_ERR_INVALID,
            "concat: shapes [2, 3] and [2] differ in more than axis 1");
    g = tdm_graph_create();
    x[0] = input(g, "a", tdm_shape_1(3)), x[1] = whole(g, "b", tdm_shape_1(3));
    refused(g, tdm_graph_concat(g, x, 2, 0), TDM_ERR_INVALID, "concat: x must be f32, not i32");
    g = tdm_graph_create();
    refused(g, tdm_graph_concat(g, x, 0, 0), TDM_ERR_INVALID, "concat: there are no inputs");
    g = tdm_graph_create();
    x[0] = input(g, "a", tdm_shape_1(3)), x[1] = TDM_VALUE_NONE;
    refused(g, tdm_graph_concat(g, x, 2, 0), TDM_ERR_INVALID, "concat: input 2 is none");
    g = tdm_graph_create();
    x[0] = input(g, "a", tdm_shape_2(INT64_MAX, 0));
    refused(g, tdm_graph_concat(g, (tdm_value[]){x[0], x[0]}, 2, 0), TDM_ERR_RANGE,
            "concat: the result is too large");
}

static void slices(void)
{
    static const struct {
        int axis;
        int64_t begin, end;
        const char *message;
    } bad[] = {
        {2, 0, 1, "slice: axis 2 is out of range for shape [4, 6]"},
        {-1, 0, 1, "slice: axis -1 is out of range for shape [4, 6]"},
        {1, -1, 2, "slice: [-1, 2) is not a part of axis 1 of [4, 6]"},
        {1, 2, 7, "slice: [2, 7) is not a part of axis 1 of [4, 6]"},
        {0, 2, 2, "slice: [2, 2) is not a part of axis 0 of [4, 6]"},
        {0, 3, 1, "slice: [3, 1) is not a part of axis 0 of [4, 6]"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        tdm_graph *g = tdm_graph_create();
        tdm_value x = input(g, "x", tdm_shape_2(4, 6));
        refused(g, tdm_graph_slice(g, x, bad[i].axis, bad[i].begin, bad[i].end), TDM_ERR_RANGE,
                bad[i].message);
    }
    tdm_graph *g = tdm_graph_create();
    tdm_value x = input(g, "x", tdm_shape_2(4, 6)), part[3];
    has_shape(g, tdm_graph_slice(g, x, 0, 1, 4), "[3, 6]");
    tdm_graph_split(g, x, 1, 3, part);
    for (int i = 0; i < 3; i++) has_shape(g, part[i], "[4, 2]");
    tdm_graph_split(g, x, 0, 3, part);
    for (int i = 0; i < 3; i++) CHECK_INT(part[i].id, 0);
    refused(g, part[0], TDM_ERR_INVALID,
            "split: axis 0 of [4, 6] cannot be cut into 3 equal parts");
    g = tdm_graph_create();
    x = input(g, "x", tdm_shape_1(4));
    tdm_graph_split(g, x, 1, 2, part);
    refused(g, part[1], TDM_ERR_INVALID, "split: axis 1 of [4] cannot be cut into 2 equal parts");
    g = tdm_graph_create();
    tdm_graph_split(g, input(g, "x", tdm_shape_1(4)), 0, 0, part);
    refused(g, TDM_VALUE_NONE, TDM_ERR_INVALID,
            "split: axis 0 of [4] cannot be cut into 0 equal parts");
    g = tdm_graph_create();
    tdm_graph_split(g, TDM_VALUE_NONE, 0, 2, part);
    refused(g, part[0], TDM_ERR_INVALID, "slice: input is not a value of this graph");
}

static void sums(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value x = input(g, "x", tdm_shape_3(2, 3, 4));
    has_shape(g, tdm_graph_sum(g, x, 0), "[3, 4]");
    has_shape(g, tdm_graph_mean(g, x, 1), "[2, 4]");
    has_shape(g, tdm_graph_sum(g, x, 2), "[2, 3]");
    has_shape(g, tdm_graph_mean(g, x, -1), "[]");
    refused(g, tdm_graph_sum(g, x, 3), TDM_ERR_RANGE,
            "reduce: axis 3 is out of range for shape [2, 3, 4]");
    g = tdm_graph_create();
    x = input(g, "x", tdm_shape_1(2));
    refused(g, tdm_graph_mean(g, x, -2), TDM_ERR_RANGE,
            "reduce: axis -2 is out of range for shape [2]");
    g = tdm_graph_create();
    x = whole(g, "x", tdm_shape_1(2));
    refused(g, tdm_graph_sum(g, x, 0), TDM_ERR_INVALID, "reduce: x must be f32, not i32");
    g = tdm_graph_create();
    x = input(g, "x", tdm_shape_2(0, 2));
    has_shape(g, tdm_graph_sum(g, x, 0), "[2]");
    has_shape(g, tdm_graph_mean(g, x, 1), "[0]");
    refused(g, tdm_graph_mean(g, x, 0), TDM_ERR_INVALID, "mean: there are no elements");
}

/* ---- element-wise ---------------------------------------------------------------------------- */

static void broadcasts(void)
{
    static const struct {
        tdm_shape b;
        const char *message;
    } bad[] = {
        {{2, {2, 3}}, "mul: shape [2, 3] is neither [2, 3, 4] nor a suffix of it"},
        {{1, {2}}, "mul: shape [2] is neither [2, 3, 4] nor a suffix of it"},
        {{1, {1}}, "mul: shape [1] is neither [2, 3, 4] nor a suffix of it"},
        {{3, {2, 1, 4}}, "mul: shapes [2, 3, 4] and [2, 1, 4] differ"},
        {{4, {1, 2, 3, 4}}, "mul: shape [1, 2, 3, 4] is neither [2, 3, 4] nor a suffix of it"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        tdm_graph *g = tdm_graph_create();
        tdm_value a = input(g, "a", tdm_shape_3(2, 3, 4)), b = input(g, "b", bad[i].b);
        refused(g, tdm_graph_mul(g, a, b), TDM_ERR_INVALID, bad[i].message);
    }
    tdm_graph *g = tdm_graph_create();
    tdm_value a = input(g, "a", tdm_shape_3(2, 3, 4));
    has_shape(g, tdm_graph_add(g, a, input(g, "b1", tdm_shape_1(4))), "[2, 3, 4]");
    has_shape(g, tdm_graph_mul(g, a, input(g, "b2", tdm_shape_2(3, 4))), "[2, 3, 4]");
    has_shape(g, tdm_graph_add(g, a, input(g, "b3", tdm_shape_0())), "[2, 3, 4]");
    tdm_graph_destroy(g);
    g = tdm_graph_create();
    a = whole(g, "a", tdm_shape_1(2));
    refused(g, tdm_graph_mul(g, a, input(g, "b", tdm_shape_1(2))), TDM_ERR_INVALID,
            "mul: a must be f32, not i32");
    g = tdm_graph_create();
    a = whole(g, "a", tdm_shape_1(2));
    refused(g, tdm_graph_scale(g, a, 2), TDM_ERR_INVALID, "scale: x must be f32, not i32");
}

static void activations_by_number(void)
{
    static const char *const names[] = {
        [TDM_ACTIVATION_RELU] = "relu",           [TDM_ACTIVATION_GELU] = "gelu",
        [TDM_ACTIVATION_GELU_TANH] = "gelu_tanh", [TDM_ACTIVATION_SILU] = "silu",
        [TDM_ACTIVATION_TANH] = "tanh",           [TDM_ACTIVATION_SIGMOID] = "sigmoid"};
    tdm_graph *g = tdm_graph_create();
    tdm_value x = input(g, "x", tdm_shape_1(2));
    CHECK_INT(tdm_graph_activation(g, x, TDM_ACTIVATION_NONE).id, x.id);
    CHECK_INT(tdm_graph_node_count(g), 0);
    for (int i = TDM_ACTIVATION_RELU; i <= TDM_ACTIVATION_SIGMOID; i++) {
        has_shape(g, tdm_graph_activation(g, x, (tdm_activation)i), "[2]");
        CHECK_TEXT(tdm_graph_node_at(g, tdm_graph_node_count(g) - 1).op, names[i]);
    }
    refused(g, tdm_graph_activation(g, x, (tdm_activation)77), TDM_ERR_INVALID,
            "activation: invalid activation 77");
}

/* ---- losses and embeddings ------------------------------------------------------------------- */

static void losses(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value x = input(g, "x", tdm_shape_2(2, 1)), t = input(g, "t", tdm_shape_1(2));
    refused(g, tdm_graph_mse(g, x, t, 1), TDM_ERR_INVALID, "loss: shapes [2, 1] and [2] differ");
    g = tdm_graph_create();
    x = input(g, "x", tdm_shape_1(2)), t = whole(g, "t", tdm_shape_1(2));
    refused(g, tdm_graph_l1(g, x, t, 1), TDM_ERR_INVALID, "loss: target must be f32, not i32");
    g = tdm_graph_create();
    x = input(g, "x", tdm_shape_1(2)), t = param(g, "t", tdm_shape_1(2));
    refused(g, tdm_graph_kl(g, x, t, 1), TDM_ERR_UNSUPPORTED,
            "loss: the target must be a constant; it cannot be trained");
    g = tdm_graph_create();
    x = input(g, "x", tdm_shape_1(2)), t = input(g, "t", tdm_shape_1(2));
    has_shape(g, tdm_graph_bce_logits(g, x, t, 1), "[]");
    refused(g, tdm_graph_huber(g, x, t, 0, 1), TDM_ERR_RANGE,
            "loss: delta is 0; it must be above 0");
    g = tdm_graph_create();
    x = input(g, "x", tdm_shape_1(2));
    has_shape(g, tdm_graph_penalty(g, x, 2, 1), "[]");
    refused(g, tdm_graph_penalty(g, x, 3, 1), TDM_ERR_RANGE,
            "penalty: power is 3; it must be 1 or 2");
    static const double smoothing[] = {-0.5, 1.5};
    static const char *const messages[] = {
        "cross_entropy: label smoothing is -0.5; it must be between 0 and 1",
        "cross_entropy: label smoothing is 1.5; it must be between 0 and 1"};
    for (int i = 0; i < 2; i++) {
        tdm_cross_entropy_options o = {.label_smoothing = smoothing[i]};
        g = tdm_graph_create();
        x = input(g, "x", tdm_shape_3(2, 3, 4)), t = whole(g, "t", tdm_shape_2(2, 3));
        refused(g, tdm_graph_cross_entropy_with(g, x, t, &o), TDM_ERR_RANGE, messages[i]);
    }
    g = tdm_graph_create();
    x = input(g, "x", tdm_shape_3(2, 3, 4)), t = whole(g, "t", tdm_shape_1(6));
    refused(g, tdm_graph_cross_entropy_with(g, x, t, NULL), TDM_ERR_INVALID,
            "cross_entropy: classes must have shape [2, 3], one for each row, not [6]");
}

static void embeddings(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value table = param(g, "table", tdm_shape_2(7, 5));
    has_shape(g, tdm_graph_embedding(g, table, whole(g, "a", tdm_shape_2(2, 3))), "[2, 3, 5]");
    has_shape(g, tdm_graph_embedding(g, table, whole(g, "b", tdm_shape_0())), "[5]");
    refused(g, tdm_graph_embedding(g, table, input(g, "c", tdm_shape_1(3))), TDM_ERR_INVALID,
            "embedding: ids must be i32, not f32");
    g = tdm_graph_create();
    table = param(g, "table", tdm_shape_1(7));
    refused(g, tdm_graph_embedding(g, table, whole(g, "a", tdm_shape_1(3))), TDM_ERR_INVALID,
            "embedding: table must have 2 dimensions, not shape [7]");
    g = tdm_graph_create();
    table = whole(g, "table", tdm_shape_2(7, 5));
    refused(g, tdm_graph_embedding(g, table, whole(g, "a", tdm_shape_1(3))), TDM_ERR_INVALID,
            "embedding: table must be f32, not i32");
    g = tdm_graph_create();
    table = param(g, "table", tdm_shape_2(7, 5));
    tdm_shape full = {.rank = 8, .dim = {1, 1, 1, 1, 1, 1, 1, 1}};
    refused(g, tdm_graph_embedding(g, table, whole(g, "a", full)), TDM_ERR_RANGE,
            "embedding: ids of shape [1, 1, 1, 1, 1, 1, 1, 1] leave no dimension for the columns");
}

/* ---- values by hand -------------------------------------------------------------------------- */

typedef struct hand {
    tdm_graph *graph;
    tdm_value x, t; /* x a parameter, t an input (of classes, if it is i32) */
} hand;

static hand hand_of(tdm_shape x, tdm_dtype t_dtype, tdm_shape t)
{
    hand h = {.graph = tdm_graph_create()};
    h.x = param(h.graph, "x", x);
    h.t = tdm_graph_input(h.graph, "t", t_dtype, t);
    return h;
}

/* Takes the graph: runs it by ref and by the best kernels on x and t (both 4 bytes a number), and
 * compares the first number of y and the gradient of x. NULL for `d_x`: y is not a loss. */
static void gives(hand *h, tdm_value y, const float *x, const void *t, const double *values,
                  const double *d_x)
{
    tdm_error err = {0};
    tdm_graph_output(h->graph, "y", y);
    if (d_x) CHECK_INT(tdm_graph_backward(h->graph, y, &err), TDM_OK);
    CHECK_INT(tdm_graph_check(h->graph, &err), TDM_OK);
    CHECK_TEXT(err.message, "");
    for (int best = 0; best < 2; best++) {
        bench b;
        if (!bench_open(&b, h->graph, &(tdm_plan_options){.backend = best ? NULL : "ref"})) break;
        tdm_tensor in = tdm_plan_input(b.plan, "t"), out = tdm_plan_output(b.plan, "y");
        size_t count = tdm_graph_param_at(h->graph, 0)->elements;
        memset(b.arena, 0xff, b.arena_bytes);
        memcpy(in.data, t, tdm_tensor_bytes(&in));
        memcpy(b.params, x, count * sizeof(float));
        bench_run(&b);
        for (int64_t i = 0; i < tdm_tensor_elements(&out); i++)
            CHECK_NEAR(((float *)out.data)[i], values[i], 2e-6 * (fabs(values[i]) + 1));
        for (size_t i = 0; d_x && i < count; i++) CHECK_NEAR(b.grads[i], d_x[i], 2e-6);
        bench_close(&b);
    }
    tdm_graph_destroy(h->graph);
}

static void moved_numbers(void)
{
    const float x[6] = {1, 2, 3, 4, 5, 6}, t[3] = {10, 20, 30};
    hand h = hand_of(tdm_shape_2(2, 3), TDM_DTYPE_F32, tdm_shape_1(3));
    tdm_value flipped = tdm_graph_transpose(h.graph, tdm_graph_add(h.graph, h.x, h.t),
                                            (int[]){1, 0});
    gives(&h, flipped, x, t, (double[]){11, 14, 22, 25, 33, 36}, NULL);
    h = hand_of(tdm_shape_2(2, 3), TDM_DTYPE_F32, tdm_shape_2(1, 3));
    tdm_value joined = tdm_graph_concat(h.graph, (tdm_value[]){h.t, h.x}, 2, 0);
    gives(&h, tdm_graph_slice(h.graph, joined, 1, 1, 3), x, t, (double[]){20, 30, 2, 3, 5, 6},
          NULL);
    h = hand_of(tdm_shape_2(2, 3), TDM_DTYPE_F32, tdm_shape_1(3));
    tdm_value product = tdm_graph_mul(h.graph, h.x, h.t);
    gives(&h, tdm_graph_mean(h.graph, product, 1), x, t, (double[]){140.0 / 3, 320.0 / 3}, NULL);
    h = hand_of(tdm_shape_2(3, 2), TDM_DTYPE_I32, tdm_shape_1(4));
    gives(&h, tdm_graph_embedding(h.graph, h.x, h.t), x, (int32_t[]){2, 0, 0, 1},
          (double[]){5, 6, 1, 2, 1, 2, 3, 4}, NULL);
}

/* Three positions select row 0, one row 2, none row 1. */
static void gradient_of_a_table(void)
{
    const float x[6] = {1, 2, 3, 4, 5, 6};
    hand h = hand_of(tdm_shape_2(3, 2), TDM_DTYPE_I32, tdm_shape_1(4));
    tdm_value y = tdm_graph_sum(h.graph, tdm_graph_embedding(h.graph, h.x, h.t), -1);
    gives(&h, y, x, (int32_t[]){0, 2, 0, 0}, (double[]){20}, (double[]){3, 3, 0, 0, 1, 1});
}

static void element_losses_by_hand(void)
{
    const float x[3] = {1, -2, 4}, t[3] = {1, 1, 3.5f};
    hand h = hand_of(tdm_shape_1(3), TDM_DTYPE_F32, tdm_shape_1(3));
    gives(&h, tdm_graph_mse(h.graph, h.x, h.t, 0.5), x, t, (double[]){4.625},
          (double[]){0, -3, 0.5});
    h = hand_of(tdm_shape_1(3), TDM_DTYPE_F32, tdm_shape_1(3)); /* the slope at the kink is 0 */
    gives(&h, tdm_graph_l1(h.graph, h.x, h.t, 2), x, t, (double[]){7}, (double[]){0, -2, 2});
    h = hand_of(tdm_shape_1(3), TDM_DTYPE_F32, tdm_shape_1(3)); /* one at delta, one far beyond */
    gives(&h, tdm_graph_huber(h.graph, h.x, h.t, 0.5, 1), x, t, (double[]){0.5 * 2.75 + 0.125},
          (double[]){0, -0.5, 0.5});
    const float log_p[3] = {-1, -2, -3}, p[3] = {0, 0.25f, 0.75f}; /* 0 log 0 is 0 */
    h = hand_of(tdm_shape_1(3), TDM_DTYPE_F32, tdm_shape_1(3));
    gives(&h, tdm_graph_kl(h.graph, h.x, h.t, 1), log_p, p,
          (double[]){0.25 * (log(0.25) + 2) + 0.75 * (log(0.75) + 3)}, (double[]){0, -0.25, -0.75});
    /* e^1000 must not be computed */
    const float far[3] = {1000, -1000, 0}, truth[3] = {0, 0, 0.5f};
    h = hand_of(tdm_shape_1(3), TDM_DTYPE_F32, tdm_shape_1(3));
    gives(&h, tdm_graph_bce_logits(h.graph, h.x, h.t, 1), far, truth, (double[]){1000 + log(2)},
          (double[]){1, 0, 0});
}

static void penalties_by_hand(void)
{
    const float x[3] = {0, -2, 3}, t[1] = {0};
    hand h = hand_of(tdm_shape_1(3), TDM_DTYPE_F32, tdm_shape_0());
    tdm_value sum = tdm_graph_add(h.graph, tdm_graph_penalty(h.graph, h.x, 1, 0.5), h.t);
    gives(&h, sum, x, t, (double[]){2.5}, (double[]){0, -0.5, 0.5});
    h = hand_of(tdm_shape_1(3), TDM_DTYPE_F32, tdm_shape_0());
    sum = tdm_graph_add(h.graph, tdm_graph_penalty(h.graph, h.x, 2, 0.5), h.t);
    gives(&h, sum, x, t, (double[]){6.5}, (double[]){0, -2, 3});
}

/*
 * Two classes with probabilities 1/4 and 3/4 in every row; the class of the middle row is ignored,
 * and would be outside the row.
 */
static void cross_entropy_by_hand(void)
{
    const float log_3 = (float)log(3), x[6] = {0, log_3, 0, log_3, 0, log_3};
    const int32_t t[3] = {1, -100, 0};
    tdm_cross_entropy_options o = {.scale = 0.5, .has_ignore = true, .ignore = -100};
    hand h = hand_of(tdm_shape_2(3, 2), TDM_DTYPE_I32, tdm_shape_1(3));
    gives(&h, tdm_graph_cross_entropy_with(h.graph, h.x, h.t, &o), x, t,
          (double[]){-0.5 * (log(0.75) + log(0.25))},
          (double[]){0.125, -0.125, 0, 0, -0.375, 0.375});
    o.label_smoothing = 0.5; /* targets (1/4, 3/4), none, (3/4, 1/4) */
    h = hand_of(tdm_shape_2(3, 2), TDM_DTYPE_I32, tdm_shape_1(3));
    gives(&h, tdm_graph_cross_entropy_with(h.graph, h.x, h.t, &o), x, t,
          (double[]){-0.5 * (log(0.75) + log(0.25))}, (double[]){0, 0, 0, 0, -0.25, 0.25});
    o = (tdm_cross_entropy_options){.label_smoothing = 1}; /* all even, scale 1 */
    h = hand_of(tdm_shape_2(1, 2), TDM_DTYPE_I32, tdm_shape_1(1));
    gives(&h, tdm_graph_cross_entropy_with(h.graph, h.x, h.t, &o), x, t,
          (double[]){-0.5 * (log(0.75) + log(0.25))}, (double[]){-0.25, 0.25});
    o = (tdm_cross_entropy_options){.has_ignore = true, .ignore = 1}; /* no row is left */
    h = hand_of(tdm_shape_2(1, 2), TDM_DTYPE_I32, tdm_shape_1(1));
    gives(&h, tdm_graph_cross_entropy_with(h.graph, h.x, h.t, &o), x, t, (double[]){0},
          (double[]){0, 0});
}

/* With arguments for which exponentials overflow, and at 0. */
static void activations_at_the_ends(void)
{
    static tdm_value (*const ops[])(tdm_graph *, tdm_value) = {tdm_graph_silu, tdm_graph_gelu_tanh};
    const float x[4] = {1e4f, -1e4f, 0, 30}, t[1] = {0};
    for (size_t i = 0; i < 2; i++) {
        hand h = hand_of(tdm_shape_1(4), TDM_DTYPE_F32, tdm_shape_0());
        gives(&h, ops[i](h.graph, h.x), x, t, (double[]){1e4, 0, 0, 30}, NULL);
        h = hand_of(tdm_shape_1(4), TDM_DTYPE_F32, tdm_shape_0());
        gives(&h, tdm_graph_sum(h.graph, ops[i](h.graph, h.x), -1), x, t, (double[]){10030},
              (double[]){1, 0, 0.5, 1});
    }
}

static const check_test tests[] = {
    CHECK_TEST(transposes),
    CHECK_TEST(concats),
    CHECK_TEST(slices),
    CHECK_TEST(sums),
    CHECK_TEST(broadcasts),
    CHECK_TEST(activations_by_number),
    CHECK_TEST(losses),
    CHECK_TEST(embeddings),
    CHECK_TEST(moved_numbers),
    CHECK_TEST(gradient_of_a_table),
    CHECK_TEST(element_losses_by_hand),
    CHECK_TEST(penalties_by_hand),
    CHECK_TEST(cross_entropy_by_hand),
    CHECK_TEST(activations_at_the_ends),
};
CHECK_MAIN(tests)
