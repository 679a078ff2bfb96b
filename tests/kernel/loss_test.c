/*
 * loss_test.c: the element-wise losses, the penalties and their gradients by the vector kernels, at every level
 * that this machine can run, against `ref`: with odd sizes, on one thread and two, in place, and with
 * non-finite numbers.
 */
#include "kernel/kernel_bench.h"

static const int64_t sizes[] = {0, 1, 7, 15, 16, 17, 1000, 65537};
enum { SIZE_COUNT = sizeof(sizes) / sizeof(sizes[0]) };

/* The five losses, then the penalties of power 1 and 2. */
enum { LOSS_COUNT = TDM_LOSS_KL + 1, KIND_COUNT = LOSS_COUNT + 2 };

static const double scale = 0.37;

static tdm_tensor f32(tdm_shape shape)
{
    return (tdm_tensor){TDM_DTYPE_F32, shape, NULL};
}

/* x in [-1, 1) times `spread`; targets in [0, 1), some of them 0 and 1. */
static kernel_bench bench_of(int kind, bool grad, int64_t count, float spread)
{
    bool penalty = kind >= LOSS_COUNT;
    kernel_bench b = {.op = penalty ? TDM_OP_PENALTY : TDM_OP_LOSS};
    if (grad) b.op = penalty ? TDM_OP_PENALTY_GRAD : TDM_OP_LOSS_GRAD;
    b.call.attrs = (tdm_op_attrs){
        .loss = kind, .scale = scale, .delta = 0.4f, .power = kind - LOSS_COUNT + 1};
    int in_count = 0;
    b.call.in[in_count++] = f32(tdm_shape_1(count));
    if (!penalty) b.call.in[in_count++] = f32(tdm_shape_1(count));
    if (grad) b.call.in[in_count] = f32(tdm_shape_0());
    b.call.out[0] = f32(grad ? tdm_shape_1(count) : tdm_shape_0());
    kernel_bench_open(&b);
    float *x = b.call.in[0].data, *t = b.call.in[1].data;
    for (int64_t i = 0; i < count; i++) x[i] *= spread;
    for (int64_t i = 0; !penalty && i < count; i++)
        t[i] = i % 11 == 3 ? 0 : i % 11 == 5 ? 1 : fabsf(t[i]);
    if (grad) *(float *)b.call.in[in_count].data = 1.3f;
    return b;
}

static float *result_of(kernel_bench *b, const tdm_kernel_backend_ops *ops, int threads)
{
    b->threads = threads;
    kernel_bench_run(b, ops);
    size_t bytes = tdm_tensor_bytes(&b->call.out[0]);
    float *copy = malloc(bytes + 1);
    memcpy(copy, b->call.out[0].data, bytes);
    return copy;
}

/* All NaNs are equal; infinity equals itself. */
static bool agree(float got, float expected, double absolute)
{
    if (isnan(expected) || isnan(got)) return isnan(expected) && isnan(got);
    if (isinf(expected) || isinf(got)) return got == expected;
    double off = fabs((double)got - (double)expected);
    return off <= 1e-6 * fabs((double)expected) + absolute;
}

/* Gradients may overwrite x. */
static void compare_in_place(kernel_bench *b, const tdm_kernel_backend_ops *ops,
                             const float *expected)
{
    size_t bytes = tdm_tensor_bytes(&b->call.in[0]);
    float *kept = malloc(bytes + 1);
    memcpy(kept, b->call.in[0].data, bytes);
    tdm_kernel_call call = b->call;
    call.out[0].data = call.in[0].data;
    tdm_kernel_find(ops, b->op, TDM_DTYPE_F32)->run(NULL, &call, &b->key);
    CHECK(memcmp(call.out[0].data, expected, bytes) == 0);
    memcpy(b->call.in[0].data, kept, bytes);
    free(kept);
}

/* `absolute` is the allowed error for each number of the input: rounding of ln t - x or of sigma - t, which
 * are near 1 and cancel. */
static void compare(kernel_bench *b, bool grad, double absolute)
{
    int64_t count = tdm_tensor_elements(&b->call.out[0]);
    if (!grad) absolute *= (double)tdm_tensor_elements(&b->call.in[0]);
    float *expected = result_of(b, kernel_bench_ref(), 1);
    for (size_t l = 0; kernel_bench_cpu(l); l++) {
        float *one = result_of(b, kernel_bench_cpu(l), 1);
        float *two = result_of(b, kernel_bench_cpu(l), 2);
        CHECK(memcmp(one, two, tdm_tensor_bytes(&b->call.out[0])) == 0);
        if (grad) compare_in_place(b, kernel_bench_cpu(l), one);
        int64_t wrong = 0;
        for (int64_t i = 0; i < count; i++) wrong += !agree(one[i], expected[i], absolute);
        if (wrong > 0)
            fprintf(stderr, "  level %d, op %d, loss %d, %d numbers: %.9g, not %.9g\n",
                    kernel_bench_cpu(l)->level, (int)b->op, b->call.attrs.loss,
                    (int)tdm_tensor_elements(&b->call.in[0]), (double)one[0], (double)expected[0]);
        CHECK_INT(wrong, 0);
        free(one);
        free(two);
    }
    free(expected);
    kernel_bench_close(b);
}

static void odd_sizes(void)
{
    for (int kind = 0; kind < KIND_COUNT; kind++)
        for (int s = 0; s < SIZE_COUNT; s++)
            for (int grad = 0; grad < 2; grad++) {
                kernel_bench b = bench_of(kind, grad, sizes[s], 1);
                compare(&b, grad, 1e-7);
                b = bench_of(kind, grad, sizes[s], 25);
                compare(&b, grad, 1e-7);
            }
}

/* One non-finite number, at any index: the sum and that number's gradient contain it as in ref. */
static void what_is_not_finite_shows(void)
{
    static const float strange[] = {NAN, INFINITY, -INFINITY};
    for (int kind = 0; kind < KIND_COUNT; kind++)
        for (int i = 0; i < 3 * 4 * 2; i++) {
            bool grad = i & 1;
            int64_t count = 21, at = (const int64_t[]){0, 8, 16, 20}[i / 2 % 4];
            for (int in = 0; in < (kind < LOSS_COUNT ? 2 : 1); in++) {
                kernel_bench b = bench_of(kind, grad, count, 1);
                ((float *)b.call.in[in].data)[at] = strange[i / 8];
                float *loss = result_of(&b, kernel_bench_ref(), 1);
                if (!grad) CHECK(!isfinite(loss[0]));
                free(loss);
                compare(&b, grad, 1e-7);
            }
        }
}

/* A confident, correct prediction: the remaining loss is e^-20, far below the rounding of 1 + e^-20. */
static void a_small_loss_is_not_lost(void)
{
    for (size_t l = 0; kernel_bench_cpu(l); l++)
        for (int sign = -1; sign <= 1; sign += 2) {
            kernel_bench b = bench_of(TDM_LOSS_BCE_LOGITS, false, 1, 1);
            *(float *)b.call.in[0].data = 20.0f * (float)sign;
            *(float *)b.call.in[1].data = sign > 0 ? 1 : 0;
            float *loss = result_of(&b, kernel_bench_cpu(l), 1);
            CHECK_NEAR(loss[0], scale * log1p(exp(-20)), 1e-15);
            free(loss);
            kernel_bench_close(&b);
        }
}

static const check_test tests[] = {
    CHECK_TEST(odd_sizes),
    CHECK_TEST(what_is_not_finite_shows),
    CHECK_TEST(a_small_loss_is_not_lost),
};
CHECK_MAIN(tests)
