/*
 * gradient_more_test.c: the gradients of ops on shapes, element-wise ops, losses and embeddings against central
 * differences, by gradient_bench.h with double_eval_more.h.
 *
 * The result of a case passes through a tanh if possible, so that the incoming gradient is different for each
 * element, and a gradient at a wrong position is detected.
 */
#include "kernel/double_eval_more.h"
#include "kernel/gradient_bench.h"

static tdm_value param_of(tdm_graph *g, const char *name, tdm_shape shape)
{
    return tdm_graph_param(g, name, shape, unused_init);
}

static tdm_value number_of(tdm_graph *g, const char *name, tdm_shape shape)
{
    return tdm_graph_input(g, name, TDM_DTYPE_F32, shape);
}

static tdm_value ids_of(tdm_graph *g, const char *name, tdm_shape shape)
{
    return tdm_graph_input(g, name, TDM_DTYPE_I32, shape);
}

/* Takes the graph: the loss is a weighted sum of tanh(y). */
static void compare_value(tdm_graph *g, tdm_value y)
{
    compare_with(g, weighted_sum(g, "weights", tdm_graph_tanh(g, y)), double_eval_more);
}

static void compare_loss(tdm_graph *g, tdm_value loss)
{
    compare_with(g, loss, double_eval_more);
}

/* ---- sums and products ----------------------------------------------------------------------- */

typedef tdm_value (*binary_fn)(tdm_graph *, tdm_value, tdm_value);
static const binary_fn binaries[] = {tdm_graph_add, tdm_graph_mul};

/* b as long as a, and every suffix of a's shape down to a single number; each side trained or not. */
static void broadcast_of_every_end(void)
{
    const tdm_shape a = tdm_shape_3(2, 3, 4);
    for (int op = 0; op < 2; op++) {
        for (int rank = 0; rank <= a.rank; rank++) {
            for (int trained = 1; trained < 4; trained++) {
                tdm_shape b = {.rank = rank};
                for (int i = 0; i < rank; i++) b.dim[i] = a.dim[a.rank - rank + i];
                tdm_graph *g = tdm_graph_create();
                tdm_value x = trained & 1 ? param_of(g, "a", a) : number_of(g, "a", a);
                tdm_value y = trained & 2 ? param_of(g, "b", b) : number_of(g, "b", b);
                compare_value(g, binaries[op](g, x, y));
            }
        }
    }
}

/* A leading part of one dimension, of two, or of none except by name. */
static void broadcast_over_other_leading_parts(void)
{
    for (int op = 0; op < 2; op++) {
        tdm_graph *g = tdm_graph_create();
        tdm_value a = param_of(g, "a", tdm_shape_2(1, 5)), b = param_of(g, "b", tdm_shape_1(5));
        compare_value(g, binaries[op](g, a, b));
        g = tdm_graph_create();
        a = param_of(g, "a", tdm_shape_4(2, 3, 1, 17)), b = param_of(g, "b", tdm_shape_2(1, 17));
        compare_value(g, binaries[op](g, tdm_graph_tanh(g, a), tdm_graph_tanh(g, b)));
        g = tdm_graph_create();
        a = param_of(g, "a", tdm_shape_0()), b = param_of(g, "b", tdm_shape_0());
        compare_value(g, binaries[op](g, a, b));
    }
}

static void product_with_itself_and_its_like(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value a = param(g, "a", 3, 5), b = param(g, "b", 3, 5);
    tdm_value square = tdm_graph_mul(g, a, a);
    tdm_value product = tdm_graph_mul(g, square, tdm_graph_add(g, b, square));
    compare_value(g, tdm_graph_mul(g, product, b));
}

static tdm_value scaled(tdm_graph *g, tdm_value x)
{
    return tdm_graph_scale(g, x, -2.5);
}

static void element_wise(void)
{
    static tdm_value (*const ops[])(tdm_graph *, tdm_value) = {scaled, tdm_graph_silu,
                                                               tdm_graph_gelu_tanh};
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        tdm_graph *g = tdm_graph_create();
        compare_value(g, ops[i](g, param(g, "a", 5, 7)));
        g = tdm_graph_create(); /* larger inputs, values that must be kept, two users */
        tdm_value x = tdm_graph_matmul(g, param(g, "a", 4, 9), param(g, "b", 9, 5), NULL);
        tdm_value y = ops[i](g, tdm_graph_add(g, x, x));
        compare_value(g, tdm_graph_mul(g, y, tdm_graph_tanh(g, y)));
    }
}

/* ---- shapes ---------------------------------------------------------------------------------- */

static void transpose(void)
{
    static const struct {
        int rank, perm[4];
    } rows[] = {{1, {0}},       {2, {1, 0}},       {2, {0, 1}},       {3, {0, 2, 1}},
                {3, {2, 0, 1}}, {3, {1, 2, 0}},    {4, {0, 2, 1, 3}}, {4, {3, 1, 0, 2}},
                {0, {0}},       {4, {1, 3, 2, 0}}, {3, {2, 1, 0}}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tdm_graph *g = tdm_graph_create();
        tdm_value x = param_of(g, "x", (tdm_shape){.rank = rows[i].rank, .dim = {2, 3, 4, 5}});
        compare_value(g, tdm_graph_transpose(g, x, rows[i].perm));
    }
}

static void concat_along_each_axis(void)
{
    for (int axis = 0; axis < 3; axis++) {
        tdm_graph *g = tdm_graph_create();
        tdm_value x[3];
        static const char *const names[] = {"x0", "x1", "x2"};
        for (int i = 0; i < 3; i++) {
            tdm_shape shape = tdm_shape_3(2, 3, 4);
            shape.dim[axis] = 1 + 2 * i;
            x[i] = i == 1 ? number_of(g, names[i], shape) : param_of(g, names[i], shape);
        }
        compare_value(g, tdm_graph_concat(g, x, 3, axis));
    }
}

/* One value; more than one op can join; and the same value more than once. */
static void concat_of_one_and_of_many(void)
{
    static const int counts[] = {1, 2, 6, 7, 11, 14};
    for (size_t n = 0; n < sizeof(counts) / sizeof(counts[0]); n++) {
        tdm_graph *g = tdm_graph_create();
        tdm_value a = param(g, "a", 2, 2), b = param(g, "b", 2, 3), x[14];
        for (int i = 0; i < counts[n]; i++) x[i] = i % 3 == 1 ? b : a;
        tdm_value all = tdm_graph_tanh(g, tdm_graph_concat(g, x, counts[n], 1));
        tdm_value squares = tdm_graph_mul(g, b, b);
        compare_loss(g,
                     tdm_graph_add(g, weighted_sum(g, "w1", all), weighted_sum(g, "w2", squares)));
    }
}

static void slice_of_each_axis(void)
{
    static const int64_t parts[][2] = {{0, 1}, {1, 3}, {2, 4}, {0, 4}};
    for (int axis = 0; axis < 3; axis++) {
        for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
            tdm_graph *g = tdm_graph_create();
            tdm_value x = param_of(g, "x", tdm_shape_3(4, 4, 4));
            compare_value(g, tdm_graph_slice(g, x, axis, parts[i][0], parts[i][1]));
        }
    }
}

/* Queries, keys and values as attention divides them, each used in another way. */
static void split_and_recombine(void)
{
    for (int axis = 0; axis < 2; axis++) {
        tdm_graph *g = tdm_graph_create();
        tdm_value x = param(g, "x", 6, 9), part[3];
        tdm_graph_split(g, x, axis, 3, part);
        tdm_value product = tdm_graph_mul(g, part[0], tdm_graph_tanh(g, part[2]));
        compare_value(g, tdm_graph_add(g, product, tdm_graph_scale(g, part[1], 3)));
    }
}

static void sums_and_means(void)
{
    static tdm_value (*const ops[])(tdm_graph *, tdm_value, int) = {tdm_graph_sum, tdm_graph_mean};
    for (int op = 0; op < 2; op++) {
        for (int axis = -1; axis < 4; axis++) {
            tdm_graph *g = tdm_graph_create();
            tdm_value x = param_of(g, "x", tdm_shape_4(2, 3, 4, 5));
            compare_value(g, ops[op](g, tdm_graph_scale(g, x, 0.25), axis));
        }
        for (int axis = -1; axis < 1; axis++) {
            tdm_graph *g = tdm_graph_create();
            compare_value(g, ops[op](g, param_of(g, "x", tdm_shape_1(7)), axis));
        }
        tdm_graph *g = tdm_graph_create(); /* over all of a single number */
        compare_value(g, ops[op](g, param_of(g, "x", tdm_shape_0()), -1));
    }
}

/* ---- softmax and cross entropy --------------------------------------------------------------- */

static void softmax_with_any_leading_part(void)
{
    const tdm_shape shapes[] = {tdm_shape_1(5), tdm_shape_3(2, 3, 4), tdm_shape_4(2, 1, 3, 2),
                                tdm_shape_2(3, 1)};
    for (int i = 0; i < 3; i++) {
        tdm_graph *g = tdm_graph_create();
        compare_value(g, tdm_graph_softmax(g, param_of(g, "x", shapes[i])));
    }
    /* with one column the result does not depend on x: a term that does is added */
    tdm_graph *g = tdm_graph_create();
    tdm_value x = param_of(g, "x", shapes[3]);
    compare_value(g, tdm_graph_add(g, tdm_graph_softmax(g, x), x));
}

static void cross_entropy_with_all_options(void)
{
    const tdm_shape shapes[] = {tdm_shape_1(CLASS_COUNT), tdm_shape_2(6, CLASS_COUNT),
                                tdm_shape_3(2, 4, CLASS_COUNT + 2),
                                tdm_shape_4(2, 1, 5, CLASS_COUNT)};
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        for (int form = 0; form < 4; form++) {
            tdm_shape leading = shapes[s];
            leading.rank--;
            tdm_graph *g = tdm_graph_create();
            tdm_value x = param_of(g, "x", shapes[s]), classes = ids_of(g, "classes", leading);
            tdm_cross_entropy_options o = {.scale = form & 1 ? 0.125 : 0,
                                           .label_smoothing = form & 1 ? 0.1 : 0,
                                           .has_ignore = (form & 2) && leading.rank > 0,
                                           .ignore = 1};
            tdm_value loss = tdm_graph_cross_entropy_with(g, x, classes, &o);
            /* The incoming gradient is not 1. */
            if (form & 1) loss = tdm_graph_mul(g, loss, loss);
            compare_loss(g, loss);
        }
    }
}

/* ---- element-wise losses and penalties ------------------------------------------------------- */

static tdm_value huber_by_half(tdm_graph *g, tdm_value x, tdm_value target, double scale)
{
    return tdm_graph_huber(g, x, target, 0.5, scale);
}

static void element_losses(void)
{
    static tdm_value (*const losses[])(tdm_graph *, tdm_value, tdm_value, double) = {
        tdm_graph_mse, tdm_graph_l1, huber_by_half, tdm_graph_bce_logits, tdm_graph_kl};
    const tdm_shape shapes[] = {tdm_shape_0(), tdm_shape_1(7), tdm_shape_3(2, 3, 4)};
    for (int l = 0; l < 5; l++) {
        for (int s = 0; s < 3; s++) {
            tdm_graph *g = tdm_graph_create();
            /* Probabilities, as the last two require them. */
            tdm_value target = tdm_graph_sigmoid(g, number_of(g, "t", shapes[s]));
            tdm_value x = param_of(g, "x", shapes[s]);
            compare_loss(g, losses[l](g, x, target, 0.75));
            g = tdm_graph_create(); /* a part of a larger sum, and x is used again */
            target = tdm_graph_sigmoid(g, number_of(g, "t", shapes[s]));
            x = tdm_graph_scale(g, param_of(g, "x", shapes[s]), 1.5);
            tdm_value loss = losses[l](g, x, target, -2);
            loss = tdm_graph_mul(g, loss, loss);
            compare_loss(g, tdm_graph_add(g, loss, weighted_sum(g, "w", tdm_graph_tanh(g, x))));
        }
    }
}

static void penalties(void)
{
    for (int power = 1; power <= 2; power++) {
        tdm_graph *g = tdm_graph_create();
        tdm_value w = param(g, "w", 4, 5), x = number_of(g, "x", tdm_shape_2(3, 4));
        tdm_value fit = weighted_sum(g, "c", tdm_graph_matmul(g, x, w, NULL));
        tdm_value penalty = tdm_graph_penalty(g, w, power, 0.3);
        compare_loss(g, tdm_graph_add(g, fit, tdm_graph_mul(g, penalty, penalty)));
        g = tdm_graph_create(); /* alone, and of a value instead of a parameter */
        w = tdm_graph_scale(g, param_of(g, "w", tdm_shape_3(2, 1, 3)), -0.5);
        compare_loss(g, tdm_graph_penalty(g, w, power, -4));
    }
}

/* ---- embeddings ------------------------------------------------------------------------------ */

/* Ids are drawn below CLASS_COUNT, so positions share rows, and the last rows are not selected. */
static void embedding(void)
{
    const tdm_shape shapes[] = {tdm_shape_0(), tdm_shape_1(9), tdm_shape_2(3, 4),
                                tdm_shape_3(2, 2, 2)};
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        tdm_graph *g = tdm_graph_create();
        tdm_value table = param(g, "table", CLASS_COUNT + 2, 5);
        compare_value(g, tdm_graph_embedding(g, table, ids_of(g, "ids", shapes[s])));
    }
}

/* As in GPT-2: the table is also the head; positions are learned, and are used by every row. */
static void tied_embedding_with_positions(void)
{
    enum { B = 3, T = 4, C = 5, V = CLASS_COUNT + 1 };
    tdm_graph *g = tdm_graph_create();
    tdm_value table = param(g, "table", V, C), positions = param(g, "positions", T, C);
    tdm_value x = tdm_graph_embedding(g, table, ids_of(g, "ids", tdm_shape_2(B, T)));
    x = tdm_graph_gelu_tanh(g, tdm_graph_add(g, x, positions));
    x = tdm_graph_matmul(g, tdm_graph_reshape(g, x, tdm_shape_2(B * T, C)), table,
                         &(tdm_matmul_options){.trans_b = true});
    tdm_cross_entropy_options o = {.scale = 1.0 / (B * T), .label_smoothing = 0.05};
    compare_loss(g, tdm_graph_cross_entropy_with(g, tdm_graph_reshape(g, x, tdm_shape_3(B, T, V)),
                                                 ids_of(g, "classes", tdm_shape_2(B, T)), &o));
}

/* A table that is a sum: its gradient is passed unchanged to both terms, and one of them has another use. */
static void embedding_of_a_sum(void)
{
    enum { V = CLASS_COUNT + 1, C = 3 };
    for (int with_penalty = 0; with_penalty < 2; with_penalty++) {
        for (int same = 0; same < 2; same++) {
            tdm_graph *g = tdm_graph_create();
            tdm_value p = param(g, "p", V, C), q = same ? p : param(g, "q", V, C);
            tdm_value ids = ids_of(g, "ids", tdm_shape_1(5));
            tdm_value y = tdm_graph_embedding(g, tdm_graph_add(g, p, q), ids);
            tdm_value loss = weighted_sum(g, "weights", tdm_graph_tanh(g, y));
            if (with_penalty) loss = tdm_graph_add(g, loss, tdm_graph_penalty(g, p, 2, 0.3));
            compare_loss(g, loss);
        }
    }
}

/* A table that is computed, tied to a head, read twice, and read at as many positions as it has rows: the
 * incoming gradient of the positions is then as large as the table. */
static void embedding_of_a_computed_table(void)
{
    enum { V = CLASS_COUNT + 1, C = 3 };
    for (int computed = 0; computed < 2; computed++) {
        tdm_graph *g = tdm_graph_create();
        tdm_value table = param(g, "table", V, C), ids = ids_of(g, "ids", tdm_shape_1(V));
        if (computed) table = scaled(g, table);
        tdm_value x = tdm_graph_embedding(g, table, ids);
        compare_value(g, tdm_graph_matmul(g, tdm_graph_tanh(g, x), table,
                                          &(tdm_matmul_options){.trans_b = true}));
        g = tdm_graph_create();
        table = param(g, "table", V, C), ids = ids_of(g, "ids", tdm_shape_1(V));
        if (computed) table = scaled(g, table);
        x = tdm_graph_embedding(g, table, ids);
        compare_value(g, tdm_graph_add(g, x, tdm_graph_embedding(g, table, ids)));
        g = tdm_graph_create();
        table = param(g, "table", V, C), ids = ids_of(g, "ids", tdm_shape_1(V));
        if (computed) table = scaled(g, table);
        x = tdm_graph_embedding(g, table, ids);
        compare_value(g, tdm_graph_add(g, x, table));
    }
}

static const check_test tests[] = {
    CHECK_TEST(broadcast_of_every_end),
    CHECK_TEST(broadcast_over_other_leading_parts),
    CHECK_TEST(product_with_itself_and_its_like),
    CHECK_TEST(element_wise),
    CHECK_TEST(transpose),
    CHECK_TEST(concat_along_each_axis),
    CHECK_TEST(concat_of_one_and_of_many),
    CHECK_TEST(slice_of_each_axis),
    CHECK_TEST(split_and_recombine),
    CHECK_TEST(sums_and_means),
    CHECK_TEST(softmax_with_any_leading_part),
    CHECK_TEST(cross_entropy_with_all_options),
    CHECK_TEST(element_losses),
    CHECK_TEST(penalties),
    CHECK_TEST(embedding),
    CHECK_TEST(tied_embedding_with_positions),
    CHECK_TEST(embedding_of_a_sum),
    CHECK_TEST(embedding_of_a_computed_table),
};
CHECK_MAIN(tests)
