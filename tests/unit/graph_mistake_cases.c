/*
 * graph_mistake_cases.c: errors of the builder, with their exact messages, and that the first error is kept. A
 * part of graph_test.c, which runs these.
 */

#include "graph_bench.h"
#include "unit/graph_cases.h"

const tdm_init zero_init = {.kind = TDM_INIT_ZERO};

tdm_value input(tdm_graph *g, const char *name, tdm_shape shape)
{
    return tdm_graph_input(g, name, TDM_DTYPE_F32, shape);
}

tdm_value param(tdm_graph *g, const char *name, tdm_shape shape)
{
    return tdm_graph_param(g, name, shape, zero_init);
}

/* The graph has exactly this error; takes the graph. */
static void refused(tdm_graph *g, tdm_value result, tdm_status status, const char *message)
{
    tdm_error err = {0};
    tdm_plan *plan = NULL;
    CHECK_INT(result.id, 0);
    CHECK_INT(tdm_graph_check(g, &err), status);
    CHECK_TEXT(err.message, message);
    err = (tdm_error){0};
    CHECK_INT(tdm_plan_create(g, NULL, &plan, &err), status);
    CHECK_TEXT(err.message, message);
    CHECK(!plan);
    tdm_graph_destroy(g);
}

static void matmul_shapes(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value a = input(g, "a", tdm_shape_2(2, 3)), b = input(g, "b", tdm_shape_2(4, 5));
    refused(g, tdm_graph_matmul(g, a, b, NULL), TDM_ERR_INVALID,
            "matmul: [2, 3] times [4, 5]: the inner sizes 3 and 4 differ");
    g = tdm_graph_create();
    a = input(g, "a", tdm_shape_2(2, 3)), b = input(g, "b", tdm_shape_2(3, 2));
    refused(g, tdm_graph_matmul(g, a, b, &(tdm_matmul_options){.trans_a = true, .trans_b = false}),
            TDM_ERR_INVALID, "matmul: [2, 3]^T times [3, 2]: the inner sizes 2 and 3 differ");
    g = tdm_graph_create();
    a = input(g, "a", tdm_shape_2(2, 3)), b = input(g, "b", tdm_shape_2(3, 2));
    refused(g, tdm_graph_matmul(g, a, b, &(tdm_matmul_options){.trans_b = true}), TDM_ERR_INVALID,
            "matmul: [2, 3] times [3, 2]^T: the inner sizes 3 and 2 differ");
    g = tdm_graph_create();
    a = input(g, "a", tdm_shape_3(2, 3, 1)), b = input(g, "b", tdm_shape_2(3, 2));
    refused(g, tdm_graph_matmul(g, a, b, NULL), TDM_ERR_INVALID,
            "matmul: b must have 3 dimensions, not shape [3, 2]");
    g = tdm_graph_create();
    a = input(g, "a", tdm_shape_2(2, 3)), b = input(g, "b", tdm_shape_1(3));
    refused(g, tdm_graph_matmul(g, a, b, NULL), TDM_ERR_INVALID,
            "matmul: b must have 2 dimensions, not shape [3]");
    g = tdm_graph_create();
    a = input(g, "a", tdm_shape_2(2, 3));
    b = tdm_graph_input(g, "b", TDM_DTYPE_I32, tdm_shape_2(3, 2));
    refused(g, tdm_graph_matmul(g, a, b, NULL), TDM_ERR_INVALID, "matmul: b must be f32, not i32");
}

static void matmul_bias_and_size(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value a = input(g, "a", tdm_shape_2(2, 3)), b = input(g, "b", tdm_shape_2(3, 4));
    tdm_value bias = input(g, "bias", tdm_shape_1(3));
    refused(g, tdm_graph_matmul(g, a, b, &(tdm_matmul_options){.bias = bias}), TDM_ERR_INVALID,
            "matmul: bias must have shape [4], not [3]");
    g = tdm_graph_create();
    a = input(g, "a", tdm_shape_2(2, 3)), b = input(g, "b", tdm_shape_2(3, 4));
    bias = tdm_graph_input(g, "bias", TDM_DTYPE_I32, tdm_shape_1(4));
    refused(g, tdm_graph_matmul(g, a, b, &(tdm_matmul_options){.bias = bias}), TDM_ERR_INVALID,
            "matmul: bias must be f32, not i32");
    g = tdm_graph_create();
    a = input(g, "a", tdm_shape_2((int64_t)1 << 40, 1));
    b = input(g, "b", tdm_shape_2(1, (int64_t)1 << 40));
    refused(g, tdm_graph_matmul(g, a, b, NULL), TDM_ERR_RANGE, "matmul: the result is too large");
    g = tdm_graph_create(); /* the elements can be counted, the bytes cannot */
    a = input(g, "a", tdm_shape_2((int64_t)1 << 31, 1));
    b = input(g, "b", tdm_shape_2(1, (int64_t)1 << 31));
    refused(g, tdm_graph_matmul(g, a, b, NULL), TDM_ERR_RANGE, "matmul: the result is too large");
}

static void other_shapes(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value a = input(g, "a", tdm_shape_2(2, 3)), b = input(g, "b", tdm_shape_2(3, 2));
    refused(g, tdm_graph_add(g, a, b), TDM_ERR_INVALID, "add: shapes [2, 3] and [3, 2] differ");
    g = tdm_graph_create();
    a = input(g, "a", tdm_shape_2(2, 3));
    refused(g, tdm_graph_reshape(g, a, tdm_shape_2(2, 4)), TDM_ERR_INVALID,
            "reshape: [2, 4] does not hold as many numbers as [2, 3]");
    g = tdm_graph_create();
    a = input(g, "a", tdm_shape_2(2, 3));
    refused(g, tdm_graph_reshape(g, a, tdm_shape_2(-2, -3)), TDM_ERR_INVALID,
            "reshape: [-2, -3] does not hold as many numbers as [2, 3]");
    g = tdm_graph_create();
    a = input(g, "a", tdm_shape_1(6));
    refused(g, tdm_graph_sum_rows(g, a), TDM_ERR_INVALID,
            "sum_rows: x must have 2 dimensions, not shape [6]");
    g = tdm_graph_create();
    a = input(g, "a", tdm_shape_0());
    refused(g, tdm_graph_softmax(g, a), TDM_ERR_INVALID,
            "softmax: x must have at least one dimension: its columns");
    g = tdm_graph_create();
    a = input(g, "a", tdm_shape_2(2, 0));
    refused(g, tdm_graph_softmax(g, a), TDM_ERR_INVALID, "softmax: x has no columns");
}

static void element_wise_types(void)
{
    static const struct {
        tdm_value (*op)(tdm_graph *, tdm_value);
        const char *message;
    } rows[] = {
        {tdm_graph_relu, "relu: x must be f32, not i32"},
        {tdm_graph_gelu, "gelu: x must be f32, not i32"},
        {tdm_graph_tanh, "tanh: x must be f32, not i32"},
        {tdm_graph_sigmoid, "sigmoid: x must be f32, not i32"},
        {tdm_graph_sum_rows, "sum_rows: x must be f32, not i32"},
        {tdm_graph_softmax, "softmax: x must be f32, not i32"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tdm_graph *g = tdm_graph_create();
        tdm_value x = tdm_graph_input(g, "x", TDM_DTYPE_I32, tdm_shape_2(2, 2));
        refused(g, rows[i].op(g, x), TDM_ERR_INVALID, rows[i].message);
    }
    tdm_graph *g = tdm_graph_create();
    tdm_value i32 = tdm_graph_input(g, "x", TDM_DTYPE_I32, tdm_shape_1(2));
    tdm_value f32 = input(g, "y", tdm_shape_1(2));
    refused(g, tdm_graph_add(g, f32, i32), TDM_ERR_INVALID, "add: b must be f32, not i32");
}

static void dropout_mistakes(void)
{
    static const struct {
        double p;
        const char *message;
    } rows[] = {
        {1, "dropout: p is 1; it must be at least 0 and below 1"},
        {-0.1, "dropout: p is -0.1; it must be at least 0 and below 1"},
        {2.5, "dropout: p is 2.5; it must be at least 0 and below 1"},
    };
    for (size_t i = 0; i < 3; i++) {
        tdm_graph *g = tdm_graph_create();
        tdm_value x = input(g, "x", tdm_shape_2(2, 2));
        refused(g, tdm_graph_dropout(g, x, rows[i].p), TDM_ERR_RANGE, rows[i].message);
    }
    tdm_graph *g = tdm_graph_create();
    tdm_value x = input(g, "x", tdm_shape_2(2, 2));
    CHECK_INT(tdm_graph_dropout(g, x, NAN).id, 0);
    CHECK_INT(tdm_graph_check(g, NULL), TDM_ERR_RANGE);
    tdm_graph_destroy(g);
    g = tdm_graph_create();
    x = input(g, "x", tdm_shape_0());
    refused(g, tdm_graph_dropout(g, x, 0.5), TDM_ERR_INVALID,
            "dropout: x must have at least one dimension: its rows");
    g = tdm_graph_create(); /* no weights: an invalid op */
    x = input(g, "x", tdm_shape_2(2, 2));
    CHECK_INT(tdm_graph_dropout(g, x, 0).id, x.id);
    CHECK_INT(tdm_graph_node_count(g), 0);
    tdm_graph_destroy(g);
}

static void normalise_mistakes(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value x = input(g, "x", tdm_shape_2(2, 3));
    tdm_value shift = input(g, "shift", tdm_shape_1(2)), scale = input(g, "scale", tdm_shape_1(3));
    refused(g, tdm_graph_normalise(g, x, shift, scale), TDM_ERR_INVALID,
            "normalise: shift must have shape [3], not [2]");
    g = tdm_graph_create();
    x = input(g, "x", tdm_shape_2(2, 3));
    shift = input(g, "shift", tdm_shape_1(3)), scale = input(g, "scale", tdm_shape_2(1, 3));
    refused(g, tdm_graph_normalise(g, x, shift, scale), TDM_ERR_INVALID,
            "normalise: scale must have shape [3], not [1, 3]");
    g = tdm_graph_create();
    x = input(g, "x", tdm_shape_1(3));
    shift = input(g, "shift", tdm_shape_1(3));
    refused(g, tdm_graph_normalise(g, x, shift, shift), TDM_ERR_INVALID,
            "normalise: x must have 2 dimensions, not shape [3]");
    g = tdm_graph_create();
    x = input(g, "x", tdm_shape_2(2, 3));
    shift = input(g, "shift", tdm_shape_1(3)), scale = param(g, "scale", tdm_shape_1(3));
    refused(g, tdm_graph_normalise(g, x, shift, scale), TDM_ERR_UNSUPPORTED,
            "normalise: shift and scale are fixed; they cannot be trained");
}

static void cross_entropy_mistakes(void)
{
    tdm_graph *g = tdm_graph_create();
    tdm_value x = input(g, "x", tdm_shape_2(4, 3));
    tdm_value classes = tdm_graph_input(g, "c", TDM_DTYPE_I32, tdm_shape_1(3));
    refused(g, tdm_graph_cross_entropy(g, x, classes, 1), TDM_ERR_INVALID,
            "cross_entropy: classes must have shape [4], one for each row, not [3]");
    g = tdm_graph_create();
    x = input(g, "x", tdm_shape_2(4, 3)), classes = input(g, "c", tdm_shape_1(4));
    refused(g, tdm_graph_cross_entropy(g, x, classes, 1), TDM_ERR_INVALID,
            "cross_entropy: classes must be i32, not f32");
    g = tdm_graph_create();
    x = input(g, "x", tdm_shape_1(4));
    classes = tdm_graph_input(g, "c", TDM_DTYPE_I32, tdm_shape_1(4));
    refused(g, tdm_graph_cross_entropy(g, x, classes, 1), TDM_ERR_INVALID,
            "cross_entropy: classes must have shape [], one for each row, not [4]");
}

static void leaf_mistakes(void)
{
    tdm_graph *g = tdm_graph_create();
    refused(g, tdm_graph_input(g, "x", TDM_DTYPE_F64, tdm_shape_1(1)), TDM_ERR_UNSUPPORTED,
            "input 'x': the type must be f32 or i32");
    g = tdm_graph_create();
    refused(g, input(g, "x", tdm_shape_1(-1)), TDM_ERR_RANGE,
            "input 'x': the shape is negative or too large");
    g = tdm_graph_create();
    refused(g, input(g, "x", tdm_shape_2(INT64_MAX, 2)), TDM_ERR_RANGE,
            "input 'x': the shape is negative or too large");
    g = tdm_graph_create();
    refused(g, input(g, "x", tdm_shape_1(INT64_MAX)), TDM_ERR_RANGE,
            "input 'x': the shape is negative or too large");
    g = tdm_graph_create();
    refused(g, param(g, "w", tdm_shape_2(3, 0)), TDM_ERR_RANGE,
            "parameter 'w': the shape is empty or too large");
    g = tdm_graph_create();
    refused(g, param(g, "w", tdm_shape_1(INT64_MAX / 8)), TDM_ERR_RANGE,
            "parameter 'w': the shape is empty or too large");
    g = tdm_graph_create(); /* the sum of all counts, not only each one */
    CHECK(param(g, "w", tdm_shape_1(INT64_MAX / 32)).id != 0);
    CHECK(param(g, "v", tdm_shape_1(INT64_MAX / 64)).id != 0);
    refused(g, param(g, "u", tdm_shape_1(INT64_MAX / 32)), TDM_ERR_RANGE,
            "parameter 'u': the shape is empty or too large");
}

static void duplicate_names(void)
{
    tdm_graph *g = tdm_graph_create();
    input(g, "x", tdm_shape_1(1));
    refused(g, input(g, "x", tdm_shape_1(1)), TDM_ERR_EXISTS,
            "graph: there are two inputs named 'x'");
    g = tdm_graph_create();
    param(g, "w", tdm_shape_1(1));
    refused(g, tdm_graph_buffer(g, "w", tdm_shape_1(1), zero_init), TDM_ERR_EXISTS,
            "graph: there are two parameters named 'w'");
    g = tdm_graph_create();
    tdm_value x = input(g, "x", tdm_shape_1(1));
    tdm_graph_output(g, "y", tdm_graph_relu(g, x));
    tdm_graph_output(g, "y", tdm_graph_tanh(g, x));
    refused(g, TDM_VALUE_NONE, TDM_ERR_EXISTS, "graph: there are two outputs named 'y'");
    g = tdm_graph_create(); /* an input, a parameter and an output may share a name */
    x = input(g, "same", tdm_shape_1(1));
    tdm_graph_output(g, "same", tdm_graph_add(g, x, param(g, "same", tdm_shape_1(1))));
    CHECK_INT(tdm_graph_check(g, NULL), TDM_OK);
    tdm_graph_destroy(g);
}

static void output_mistakes(void)
{
    const char *message = "output 'y': it must be computed by an op and not be an output already";
    tdm_graph *g = tdm_graph_create();
    tdm_graph_output(g, "y", input(g, "x", tdm_shape_1(1)));
    refused(g, TDM_VALUE_NONE, TDM_ERR_INVALID, message);
    g = tdm_graph_create();
    tdm_graph_output(g, "y", param(g, "x", tdm_shape_1(1)));
    refused(g, TDM_VALUE_NONE, TDM_ERR_INVALID, message);
    g = tdm_graph_create();
    tdm_value relu = tdm_graph_relu(g, input(g, "x", tdm_shape_1(1)));
    tdm_graph_output(g, "z", relu);
    tdm_graph_output(g, "y", relu);
    refused(g, TDM_VALUE_NONE, TDM_ERR_INVALID, message);
    g = tdm_graph_create();
    tdm_graph_output(g, "y", TDM_VALUE_NONE);
    refused(g, TDM_VALUE_NONE, TDM_ERR_INVALID, "output: input is not a value of this graph");
}

static void values_of_nowhere(void)
{
    static const int32_t ids[] = {0, -1, 2, 1000};
    for (size_t i = 0; i < 4; i++) {
        tdm_graph *g = tdm_graph_create();
        input(g, "x", tdm_shape_1(1));
        CHECK_INT(tdm_graph_shape(g, (tdm_value){ids[i]}).rank, 0);
        refused(g, tdm_graph_relu(g, (tdm_value){ids[i]}), TDM_ERR_INVALID,
                "relu: input is not a value of this graph");
    }
}

/* The first error is kept; later ones are not reported, and add nothing. */
static void mistakes_stick(void)
{
    tdm_error err = {0};
    tdm_graph *g = tdm_graph_create();
    tdm_value x = input(g, "x", tdm_shape_2(2, 3)), good = tdm_graph_relu(g, x);
    CHECK_INT(tdm_graph_check(g, &err), TDM_OK);
    tdm_graph_scope(g, "fc1");
    tdm_value bad = tdm_graph_matmul(g, x, x, NULL);
    CHECK_INT(bad.id, 0);
    size_t nodes = tdm_graph_node_count(g), params = tdm_graph_param_count(g);
    CHECK_INT(tdm_graph_relu(g, bad).id, 0);
    CHECK_INT(tdm_graph_add(g, good, good).id, 0);
    CHECK_INT(tdm_graph_dropout(g, good, 7).id, 0);
    CHECK_INT(input(g, "x", tdm_shape_1(1)).id, 0);
    CHECK_INT(param(g, "w", tdm_shape_1(1)).id, 0);
    tdm_graph_output(g, "y", good);
    CHECK_INT(tdm_graph_node_count(g), nodes);
    CHECK_INT(tdm_graph_param_count(g), params);
    CHECK_INT(tdm_graph_backward(g, good, &err), TDM_ERR_INVALID);
    refused(g, bad, TDM_ERR_INVALID,
            "fc1.matmul: [2, 3] times [2, 3]: the inner sizes 3 and 2 differ");
}

static const check_test graph_mistakes_tests[] = {
    CHECK_TEST(matmul_shapes),          CHECK_TEST(matmul_bias_and_size),
    CHECK_TEST(other_shapes),           CHECK_TEST(element_wise_types),
    CHECK_TEST(dropout_mistakes),       CHECK_TEST(normalise_mistakes),
    CHECK_TEST(cross_entropy_mistakes), CHECK_TEST(leaf_mistakes),
    CHECK_TEST(duplicate_names),        CHECK_TEST(output_mistakes),
    CHECK_TEST(values_of_nowhere),      CHECK_TEST(mistakes_stick),
};
CHECK_SUITE(graph_mistakes, graph_mistakes_tests);
