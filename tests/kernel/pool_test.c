/*
 * pool_test.c: pools: `ref` against a naive one, every other kernel against `ref` on odd windows and channels,
 * gradients by differences, and errors of the builder. Maxima have the same bits everywhere; sums may be
 * rounded in another order.
 */
#include "kernel/double_eval_image.h"
#include "kernel/gradient_bench.h"
#include "kernel/kernel_bench.h"

typedef struct pool_case {
    int64_t B, H, W, C;
    int kernel[2], stride[2], pad[2];
} pool_case;

static const pool_case cases[] = {
    {2, 8, 8, 16, {2, 2}, {2, 2}, {0, 0}},    {2, 7, 9, 5, {3, 3}, {2, 2}, {1, 1}},
    {1, 6, 5, 1, {3, 2}, {1, 1}, {1, 1}},     {3, 9, 7, 17, {2, 3}, {3, 1}, {0, 1}},
    {2, 4, 4, 64, {4, 4}, {4, 4}, {0, 0}},    {1, 5, 5, 33, {2, 2}, {3, 3}, {1, 1}},
    {2, 1, 11, 8, {1, 3}, {1, 2}, {0, 1}},    {2, 5, 3, 70, {5, 3}, {1, 1}, {2, 1}},
    {1, 30, 41, 7, {30, 41}, {1, 1}, {0, 0}}, {0, 4, 4, 3, {2, 2}, {2, 2}, {0, 0}},
};
enum { CASE_COUNT = sizeof(cases) / sizeof(cases[0]) };

static const tdm_op_kind pools[] = {TDM_OP_MAX_POOL, TDM_OP_MAX_POOL_GRAD, TDM_OP_AVERAGE_POOL,
                                    TDM_OP_AVERAGE_POOL_GRAD};

static tdm_tensor of_type(tdm_dtype dtype, tdm_shape shape)
{
    return (tdm_tensor){dtype, shape, NULL};
}

/* The index of the maximum of each window, which must be in the image. */
static void draw_winners(kernel_bench *b, const pool_case *c)
{
    const int64_t *y = b->call.in[1].shape.dim;
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = 8, .stream = TDM_RNG_STREAM_USER});
    for (int64_t i = 0; i < tdm_tensor_elements(&b->call.in[1]); i++) {
        int64_t o[2] = {i / (y[2] * y[3]) % y[1], i / y[3] % y[2]}, size[2] = {c->H, c->W};
        int64_t place = 0;
        for (int axis = 0; axis < 2; axis++) {
            int64_t k, start = o[axis] * c->stride[axis] - c->pad[axis];
            do k = (int64_t)tdm_rng_below(&rng, (uint64_t)c->kernel[axis]);
            while (start + k < 0 || start + k >= size[axis]);
            place = place * c->kernel[axis] + k;
        }
        ((int32_t *)b->call.in[1].data)[i] = (int32_t)place;
    }
}

static kernel_bench bench_of(tdm_op_kind op, const pool_case *c)
{
    kernel_bench b = {.op = op};
    int64_t out[2], size[2] = {c->H, c->W};
    for (int axis = 0; axis < 2; axis++) {
        b.call.attrs.window.kernel[axis] = c->kernel[axis];
        b.call.attrs.window.stride[axis] = c->stride[axis];
        b.call.attrs.window.dilation[axis] = 1;
        b.call.attrs.window.pad_before[axis] = b.call.attrs.window.pad_after[axis] = c->pad[axis];
        out[axis] = (size[axis] + 2 * c->pad[axis] - c->kernel[axis]) / c->stride[axis] + 1;
    }
    tdm_tensor x = of_type(TDM_DTYPE_F32, tdm_shape_4(c->B, c->H, c->W, c->C));
    tdm_tensor y = of_type(TDM_DTYPE_F32, tdm_shape_4(c->B, out[0], out[1], c->C));
    tdm_tensor index = of_type(TDM_DTYPE_I32, y.shape);
    bool forward = op == TDM_OP_MAX_POOL || op == TDM_OP_AVERAGE_POOL;
    b.call.attrs.shape = forward ? tdm_shape_0() : x.shape;
    b.call.in[0] = forward ? x : y;
    b.call.out[0] = forward ? y : x;
    if (op == TDM_OP_MAX_POOL) b.call.out[1] = index;
    if (op == TDM_OP_MAX_POOL_GRAD) b.call.in[1] = index;
    kernel_bench_open(&b);
    if (op == TDM_OP_MAX_POOL_GRAD) draw_winners(&b, c);
    return b;
}

/* The maximum is found at its index. */
static void check_index(const kernel_bench *b, int64_t i)
{
    const tdm_op_attrs *a = &b->call.attrs;
    const tdm_shape *x = &b->call.in[0].shape, *y = &b->call.out[0].shape;
    int64_t C = y->dim[3], OW = y->dim[2], OH = y->dim[1];
    int64_t k = ((int32_t *)b->call.out[1].data)[i];
    int64_t h = i / (OW * C) % OH * a->window.stride[0] - a->window.pad_before[0] +
                k / a->window.kernel[1];
    int64_t w = i / C % OW * a->window.stride[1] - a->window.pad_before[1] +
                k % a->window.kernel[1];
    CHECK(h >= 0 && h < x->dim[1] && w >= 0 && w < x->dim[2]);
    int64_t at = ((i / (OH * OW * C) * x->dim[1] + h) * x->dim[2] + w) * C + i % C;
    CHECK(((float *)b->call.in[0].data)[at] == ((float *)b->call.out[0].data)[i]);
}

static void ref_agrees_with_the_definition(void)
{
    for (int i = 0; i < CASE_COUNT; i++)
        for (int op = 0; op < 4; op += 2) {
            kernel_bench b = bench_of(pools[op], &cases[i]);
            int64_t in_count = tdm_tensor_elements(&b.call.in[0]);
            double *x = calloc((size_t)in_count + 1, sizeof(*x)), gap;
            for (int64_t k = 0; k < in_count; k++) x[k] = (double)((float *)b.call.in[0].data)[k];
            kernel_bench_run(&b, kernel_bench_ref());
            const int64_t *y = b.call.out[0].shape.dim;
            for (int64_t k = 0; k < tdm_tensor_elements(&b.call.out[0]); k++) {
                int64_t at[4] = {k / (y[1] * y[2] * y[3]), k / (y[2] * y[3]) % y[1],
                                 k / y[3] % y[2], k % y[3]};
                double expected = image_pool(&b.call.attrs, x, &b.call.in[0].shape, at, op == 0,
                                             &gap);
                CHECK_NEAR(((float *)b.call.out[0].data)[k], expected, op ? 1e-7 : 0);
                if (op == 0) check_index(&b, k);
            }
            free(x);
            kernel_bench_close(&b);
        }
}

/* Returns a hash of the result of the best level. */
static uint64_t compare_to_ref(tdm_op_kind op, const pool_case *c, int threads)
{
    kernel_bench b = bench_of(op, c), ref = bench_of(op, c);
    uint64_t hash = 0;
    kernel_bench_run(&ref, kernel_bench_ref());
    b.threads = threads;
    for (size_t level = 0; kernel_bench_cpu(level); level++) {
        kernel_bench_run(&b, kernel_bench_cpu(level));
        if (level == 0) hash = kernel_bench_hash(b.call.out, TDM_OP_MAX_OUTPUTS);
        int64_t count = tdm_tensor_elements(&b.call.out[0]);
        double apart = kernel_bench_apart(b.call.out[0].data, ref.call.out[0].data, count);
        CHECK(apart <= (op == TDM_OP_MAX_POOL ? 0 : 5e-7));
        if (op == TDM_OP_MAX_POOL)
            CHECK(memcmp(b.call.out[1].data, ref.call.out[1].data, (size_t)count * 4) == 0);
    }
    kernel_bench_close(&b);
    kernel_bench_close(&ref);
    return hash;
}

static void every_kernel_agrees_with_ref(void)
{
    for (int i = 0; i < CASE_COUNT; i++)
        for (int op = 0; op < 4; op++) compare_to_ref(pools[op], &cases[i], 1);
}

static void threads_do_not_change_the_bits(void)
{
    static const pool_case large = {6, 33, 31, 37, {3, 3}, {2, 2}, {1, 1}};
    for (int op = 0; op < 4; op++) {
        uint64_t one = compare_to_ref(pools[op], &large, 1);
        CHECK(one == compare_to_ref(pools[op], &large, 2));
        CHECK(one == compare_to_ref(pools[op], &large, 3));
    }
}

/* Of equal numbers the first is the maximum, NaN is larger than all, and minus infinity is a number like
 * others. */
static void ties_and_strange_numbers(void)
{
    static const pool_case c = {1, 2, 8, 19, {2, 2}, {2, 2}, {0, 0}};
    for (size_t level = 0;; level++) {
        const tdm_kernel_backend_ops *ops = kernel_bench_cpu(level);
        kernel_bench b = bench_of(TDM_OP_MAX_POOL, &c);
        float *x = b.call.in[0].data, *y = b.call.out[0].data;
        int32_t *index = b.call.out[1].data;
        for (int i = 0; i < 2 * 8 * 19; i++) {
            int w = i / 19 % 8;
            x[i] = w < 2 ? 5.0f : w < 4 ? -INFINITY : w < 6 ? 1.0f : (float)i;
        }
        for (int ch = 0; ch < 19; ch++) x[(8 + 4) * 19 + ch] = NAN; /* row 1, third window */
        kernel_bench_run(&b, ops ? ops : kernel_bench_ref());
        for (int ch = 0; ch < 19; ch++) {
            CHECK(y[ch] == 5.0f && index[ch] == 0);
            CHECK(y[19 + ch] == -INFINITY && index[19 + ch] == 0);
            CHECK(isnan(y[38 + ch]) && index[38 + ch] == 2);
            CHECK(index[57 + ch] == 3);
        }
        kernel_bench_close(&b);
        if (!ops) break;
    }
}

/* ---- gradients and the builder --------------------------------------------------------------- */

static void gradients_by_differences(void)
{
    static const tdm_pool_options options[] = {
        {.kernel = {2, 2}},
        {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}},
        {.kernel = {2, 3}, .stride = {1, 2}, .padding = {1, 0}},
    };
    for (size_t i = 0; i < 7; i++) {
        tdm_graph *g = tdm_graph_create();
        tdm_value x = tdm_graph_param(g, "x", tdm_shape_4(2, 5, 6, 3), unused_init);
        tdm_value y = i == 6  ? tdm_graph_global_pool(g, x)
                      : i % 2 ? tdm_graph_average_pool(g, x, &options[i / 2])
                              : tdm_graph_max_pool(g, x, &options[i / 2]);
        compare_with(g, weighted_sum(g, "w", tdm_graph_sigmoid(g, y)), double_eval_image);
    }
}

static void expect_mistake(tdm_shape x, tdm_pool_options o, const char *part)
{
    tdm_error err = {0};
    tdm_graph *g = tdm_graph_create();
    tdm_graph_max_pool(g, tdm_graph_input(g, "x", TDM_DTYPE_F32, x), &o);
    CHECK(tdm_graph_check(g, &err) != TDM_OK);
    CHECK_HAS(err.message, part);
    tdm_graph_destroy(g);
}

static void mistakes_are_named(void)
{
    tdm_shape x = tdm_shape_4(2, 6, 5, 4);
    expect_mistake(tdm_shape_2(6, 5), (tdm_pool_options){.kernel = {2, 2}},
                   "max_pool: x must have 4 dimensions, not shape [6, 5]");
    expect_mistake(x, (tdm_pool_options){0}, "height: kernel 0, stride 0");
    expect_mistake(x, (tdm_pool_options){.kernel = {7, 2}},
                   "height: a window of 7 does not fit into 6");
    expect_mistake(x, (tdm_pool_options){.kernel = {3, 3}, .padding = {1, 2}},
                   "padding 2 is more than half of the kernel's 3");
    expect_mistake(x, (tdm_pool_options){.kernel = {2, 2}, .padding = {-1, 0}},
                   "padding -1 not negative");
    tdm_error err = {0};
    tdm_graph *g = tdm_graph_create();
    tdm_graph_global_pool(g, tdm_graph_input(g, "x", TDM_DTYPE_F32, tdm_shape_1(3)));
    CHECK(tdm_graph_check(g, &err) != TDM_OK);
    CHECK_HAS(err.message, "average_pool: x must have 4 dimensions, not shape [3]");
    tdm_graph_destroy(g);
}

static const check_test tests[] = {
    CHECK_TEST(ref_agrees_with_the_definition), CHECK_TEST(every_kernel_agrees_with_ref),
    CHECK_TEST(threads_do_not_change_the_bits), CHECK_TEST(ties_and_strange_numbers),
    CHECK_TEST(gradients_by_differences),       CHECK_TEST(mistakes_are_named),
};
CHECK_MAIN(tests)
