/*
 * fused_test.c: products and convolutions that apply an activation to their own result: fast against `ref`
 * across the boundaries of the pieces of large results, against the activation as a separate op, on one thread
 * and on two; their gradients by central differences; and when a plan fuses a product with the activation after
 * it.
 */
#include "kernel/double_eval_more.h"
#include "kernel/gradient_bench.h"
#include "kernel/kernel_bench.h"

enum { FIRST = TDM_ACTIVATION_RELU, LAST = TDM_ACTIVATION_SIGMOID };

static const tdm_op_kind op_of[] = {
    [TDM_ACTIVATION_RELU] = TDM_OP_RELU,           [TDM_ACTIVATION_GELU] = TDM_OP_GELU,
    [TDM_ACTIVATION_GELU_TANH] = TDM_OP_GELU_TANH, [TDM_ACTIVATION_SILU] = TDM_OP_SILU,
    [TDM_ACTIVATION_TANH] = TDM_OP_TANH,           [TDM_ACTIVATION_SIGMOID] = TDM_OP_SIGMOID,
};

/* ---- kernels --------------------------------------------------------------------------------- */

typedef struct product {
    int64_t count, M, N, K; /* count 0: plain matrices */
} product;

/* Of plain matrices, those of 1,000 and 5,000 rows have more than 512 KB and are divided into pieces, unless
 * b alone is larger than a piece. Of batches, the last two are divided. */
static const product shapes[] = {{0, 1, 140, 31},   {0, 3, 140, 31},  {0, 17, 140, 31},
                                 {0, 1000, 140, 9}, {0, 5000, 70, 9}, {0, 270, 500, 270},
                                 {5, 7, 9, 3},      {70, 100, 65, 3}, {3, 500, 300, 5}};
enum { SHAPE_COUNT = sizeof(shapes) / sizeof(shapes[0]) };

static tdm_tensor matrix(const product *p, int64_t rows, int64_t cols)
{
    return (tdm_tensor){TDM_DTYPE_F32,
                        p->count ? tdm_shape_3(p->count, rows, cols) : tdm_shape_2(rows, cols),
                        NULL};
}

/* form: bit 0 a transposed, bit 1 b transposed, bit 2 a bias. */
static kernel_bench bench_of(const product *p, int form, int activation, int threads)
{
    kernel_bench b = {.op = TDM_OP_MATMUL, .threads = threads};
    b.call.attrs = (tdm_op_attrs){
        .trans_a = form & 1, .trans_b = form & 2, .activation = activation};
    b.call.in[0] = form & 1 ? matrix(p, p->K, p->M) : matrix(p, p->M, p->K);
    b.call.in[1] = form & 2 ? matrix(p, p->N, p->K) : matrix(p, p->K, p->N);
    if (form & 4) b.call.in[2] = (tdm_tensor){TDM_DTYPE_F32, tdm_shape_1(p->N), NULL};
    b.call.out[0] = matrix(p, p->M, p->N);
    kernel_bench_open(&b);
    return b;
}

/* By oneDNN, twice, between guards. */
static void run_fast(kernel_bench *b)
{
    tdm_error err = {0};
    void *backend = NULL;
    const tdm_kernel_backend_ops *ops = &tdm__kernels_onednn;
    const tdm_kernel *kernel = tdm_kernel_find(ops, b->op, TDM_DTYPE_F32);
    tdm_kernel_call call = b->call;
    int before = tdm_kernel_threads_set(b->threads);
    CHECK_INT(ops->open(&backend, &err), TDM_OK);
    CHECK_INT(kernel->prepare(backend, &call, &err), TDM_OK);
    call.scratch = kernel_bench_alloc(call.scratch_bytes);
    kernel_bench_run_prepared(b, kernel, backend, &call);
    kernel_bench_free(call.scratch);
    kernel->release(&call);
    ops->close(backend);
    tdm_kernel_threads_set(before);
}

static float *copy_of_result(const kernel_bench *b)
{
    float *copy = malloc(tdm_tensor_bytes(&b->call.out[0]));
    memcpy(copy, b->call.out[0].data, tdm_tensor_bytes(&b->call.out[0]));
    return copy;
}

/* The same result by a plain product and the vector kernel of the activation. */
static void run_apart(kernel_bench *b)
{
    int activation = b->call.attrs.activation;
    b->call.attrs.activation = TDM_ACTIVATION_NONE;
    run_fast(b);
    b->call.attrs.activation = activation;
    tdm_kernel_call call = {.in = {b->call.out[0]}, .out = {b->call.out[0]}};
    tdm_kernel_find(kernel_bench_cpu(0), op_of[activation], TDM_DTYPE_F32)
        ->run(NULL, &call, &(tdm_step_key){0});
}

static void compare_fused(const product *p, int form, int activation, int threads)
{
    kernel_bench b = bench_of(p, form, activation, threads);
    int64_t count = tdm_tensor_elements(&b.call.out[0]);
    run_fast(&b);
    float *fast = copy_of_result(&b);
    run_apart(&b);
    /* One product, or pieces of one: whole rows either way, but oneDNN may divide K into other blocks. */
    double allowed = 2e-6 * sqrt((double)p->K);
    CHECK(kernel_bench_apart(fast, b.call.out[0].data, count) <= allowed);
    bool small = count * 4 <= 512 << 10;
    if (small) CHECK(memcmp(fast, b.call.out[0].data, (size_t)count * 4) == 0);
    kernel_bench_run(&b, kernel_bench_ref());
    double apart = kernel_bench_apart(fast, b.call.out[0].data, count);
    if (!(apart <= allowed))
        fprintf(stderr, "  %d x [%d, %d, %d], form %d, activation %d: %g from ref\n", (int)p->count,
                (int)p->M, (int)p->N, (int)p->K, form, activation, apart);
    CHECK(apart <= allowed);
    free(fast);
    kernel_bench_close(&b);
}

static void fused_products_agree_with_ref(void)
{
    for (int s = 0; s < SHAPE_COUNT; s++) {
        bool large = shapes[s].M >= 300;
        for (int a = FIRST; a <= LAST; a++)
            for (int form = large ? (a + s) % 8 : 0; form < 8; form += large ? 8 : 1)
                compare_fused(&shapes[s], form, a, 1);
    }
}

static void fused_products_on_two_threads(void)
{
    for (int s = 0; s < SHAPE_COUNT; s++)
        for (int form = 4; form < 8; form++)
            compare_fused(&shapes[s], form, FIRST + (s + form) % LAST, 2);
}

/* NaN in one row and one column of b affects that row and that column, in any piece. */
static void nan_stays_nan(void)
{
    for (int s = 0; s < SHAPE_COUNT; s++)
        for (int a = FIRST; a <= LAST; a++) {
            const product *p = &shapes[s];
            kernel_bench b = bench_of(p, 4, a, 1);
            int64_t row = p->M - 1, count = tdm_tensor_elements(&b.call.out[0]), wrong = 0;
            ((float *)b.call.in[0].data)[row * p->K] = NAN;
            ((float *)b.call.in[2].data)[p->N / 2] = NAN;
            run_fast(&b);
            const float *y = b.call.out[0].data;
            for (int64_t i = 0; i < count; i++) {
                bool expected = i / p->N == row || i % p->N == p->N / 2;
                wrong += (isnan(y[i]) != 0) != expected;
            }
            CHECK_INT(wrong, 0);
            kernel_bench_close(&b);
        }
}

/* ---- gradients ------------------------------------------------------------------------------- */

static void gradients_of_fused_products(void)
{
    enum { M = 4, K = 5, N = 3 };
    for (int form = 0; form < 8; form++)
        for (int a = FIRST; a <= LAST; a++) {
            bool ta = form & 1, tb = form & 2;
            tdm_graph *g = tdm_graph_create();
            tdm_value x = ta ? param(g, "a", K, M) : param(g, "a", M, K);
            tdm_value w = tb ? param(g, "b", N, K) : param(g, "b", K, N);
            tdm_matmul_options o = {.trans_a = ta, .trans_b = tb, .activation = (tdm_activation)a};
            if (form & 4) o.bias = tdm_graph_param(g, "bias", tdm_shape_1(N), unused_init);
            tdm_value y = tdm_graph_matmul(g, x, w, &o);
            /* y is used again later, so that the value that the gradient reads must be kept. */
            compare_with(g,
                         tdm_graph_add(g, weighted_sum(g, "w1", y),
                                       weighted_sum(g, "w2", tdm_graph_tanh(g, y))),
                         double_eval_more);
        }
}

static void gradients_of_fused_layers(void)
{
    for (int a = FIRST; a <= LAST; a++) {
        tdm_graph *g = tdm_graph_create();
        tdm_value x = tdm_graph_param(g, "x", tdm_shape_3(2, 3, 4), unused_init);
        for (int layer = 0; layer < 2; layer++) {
            tdm_value w = param(g, layer ? "w2" : "w1", layer ? 3 : 6, layer ? 6 : 4);
            tdm_value bias = tdm_graph_param(g, layer ? "b2" : "b1", tdm_shape_1(layer ? 3 : 6),
                                             unused_init);
            x = tdm_graph_linear(g, x, w, bias, (tdm_activation)a);
        }
        compare_with(g, weighted_sum(g, "w", x), double_eval_more);
    }
}

/* ---- what is built, and what a plan makes of it ------------------------------------------------ */

static void one_node_where_the_slope_is_in_the_result(void)
{
    for (int a = TDM_ACTIVATION_NONE; a <= LAST; a++) {
        tdm_graph *g = tdm_graph_create();
        tdm_value x = tdm_graph_input(g, "x", TDM_DTYPE_F32, tdm_shape_2(4, 3));
        tdm_value w = param(g, "w", 5, 3);
        tdm_graph_linear(g, x, w, TDM_VALUE_NONE, (tdm_activation)a);
        bool costly = a == TDM_ACTIVATION_TANH || a == TDM_ACTIVATION_SIGMOID;
        bool together = a == TDM_ACTIVATION_NONE || a == TDM_ACTIVATION_RELU || costly;
        CHECK_INT(tdm_graph_node_count(g), together ? 1 : 2);
        uint64_t cells = 4 * 5, more = costly ? 8 : a == TDM_ACTIVATION_RELU ? 1 : 0;
        CHECK_INT(tdm_graph_node_at(g, 0).flops, 2 * cells * 3 + more * cells);
        tdm_graph_destroy(g);
    }
}

/* Two products each followed by an activation as a separate op. `seen`: bit 0, the input of the first
 * activation is an output as well; bit 1, another op reads it. */
static tdm_graph *two_layers(int activation, int seen)
{
    tdm_error err;
    tdm_graph *g = tdm_graph_create();
    tdm_value x = tdm_graph_input(g, "x", TDM_DTYPE_F32, tdm_shape_2(6, 5));
    tdm_value bias = tdm_graph_param(g, "bias", tdm_shape_1(7), unused_init);
    tdm_value h = tdm_graph_matmul(g, x, param(g, "w1", 5, 7), &(tdm_matmul_options){.bias = bias});
    tdm_value y = tdm_graph_activation(g, h, (tdm_activation)activation);
    if (seen & 1) tdm_graph_output(g, "h", h);
    if (seen & 2) y = tdm_graph_add(g, y, h);
    y = tdm_graph_matmul(g, y, param(g, "w2", 7, 4), NULL);
    y = tdm_graph_activation(g, y, (tdm_activation)activation);
    tdm_graph_output(g, "y", y);
    tdm_value loss = tdm_graph_sum(g, y, -1);
    tdm_graph_output(g, "loss", loss);
    CHECK_INT(tdm_graph_backward(g, loss, &err), TDM_OK);
    return g;
}

static int count_fused(const tdm_plan *plan)
{
    int count = 0;
    for (size_t i = 0; i < tdm_plan_node_count(plan); i++) {
        tdm_plan_node_info info = tdm_plan_node_at(plan, i);
        bool fused = strcmp(info.backend, "fused") == 0;
        if (fused) CHECK(info.in_place);
        count += fused;
    }
    return count;
}

/* Runs one plan and keeps its output "y" (24 numbers); returns how many activations were fused. */
static int run_plan(const tdm_graph *g, const char *backend, bool forward_only, float y[24])
{
    bench b;
    if (!bench_open(&b, g, &(tdm_plan_options){.backend = backend, .forward_only = forward_only}))
        return -1;
    bench_fill(&b, 4, 3);
    tdm_plan_run(b.plan, &(tdm_step_key){0});
    memcpy(y, tdm_plan_output(b.plan, "y").data, 24 * sizeof(float));
    int fused = count_fused(b.plan);
    bench_close(&b);
    return fused;
}

/* Only if there are no gradients and the value has no other reader; and it changes no bit. */
static void forward_plans_take_activations_over(void)
{
    static const int expected[] = {2, 1, 1, 1};
    for (int a = FIRST; a <= LAST; a++)
        for (int seen = 0; seen < 4; seen++) {
            float trained[24], forward[24], by_ref[24];
            tdm_graph *g = two_layers(a, seen);
            CHECK_INT(run_plan(g, NULL, false, trained), 0);
            CHECK_INT(run_plan(g, NULL, true, forward), expected[seen]);
            CHECK(memcmp(trained, forward, sizeof(trained)) == 0);
            CHECK_INT(run_plan(g, "ref", true, by_ref), expected[seen]);
            CHECK(kernel_bench_apart(forward, by_ref, 24) <= 1e-5);
            tdm_graph_destroy(g);
        }
}

static const check_test tests[] = {
    CHECK_TEST(fused_products_agree_with_ref),
    CHECK_TEST(fused_products_on_two_threads),
    CHECK_TEST(nan_stays_nan),
    CHECK_TEST(gradients_of_fused_products),
    CHECK_TEST(gradients_of_fused_layers),
    CHECK_TEST(one_node_where_the_slope_is_in_the_result),
    CHECK_TEST(forward_plans_take_activations_over),
};
CHECK_MAIN(tests)
