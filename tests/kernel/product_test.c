/*
 * product_test.c: the defined order of operations of matrix products and convolutions.
 *
 * Products are compared bit for bit with a plain loop over fmaf that follows product.h, for all
 * transposes, odd sizes and numbers of threads. A process has one instruction-set level, so products and
 * convolutions run once more in a process for each level that this CPU has; the digests of all results
 * must be equal.
 */
#include "check.h"
#include "kernel/kernel_bench.h"
#include "tensor/kernels/product/product.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct matmul_case {
    int64_t M, N, K;
} matmul_case;

static const matmul_case matmuls[] = {
    {1, 1, 1},    {1, 10, 784}, {12, 32, 384},   {13, 33, 385},  {5, 47, 17},   {64, 128, 784},
    {100, 65, 3}, {7, 600, 40}, {250, 70, 1153}, {600, 16, 100}, {31, 1, 2000}, {49, 530, 769},
};
enum { MATMUL_COUNT = sizeof(matmuls) / sizeof(matmuls[0]) };

static tdm_tensor f32_matrix(int64_t rows, int64_t cols)
{
    return (tdm_tensor){TDM_DTYPE_F32, tdm_shape_2(rows, cols), NULL};
}

/* form: bit 0 and 1 the transposes, bit 2 a bias. */
static kernel_bench matmul_bench(const matmul_case *c, int form, int threads)
{
    kernel_bench b = {.op = TDM_OP_MATMUL, .threads = threads};
    b.call.attrs = (tdm_op_attrs){.trans_a = form & 1, .trans_b = form & 2};
    b.call.in[0] = form & 1 ? f32_matrix(c->K, c->M) : f32_matrix(c->M, c->K);
    b.call.in[1] = form & 2 ? f32_matrix(c->N, c->K) : f32_matrix(c->K, c->N);
    if (form & 4) b.call.in[2] = (tdm_tensor){TDM_DTYPE_F32, tdm_shape_1(c->N), NULL};
    b.call.out[0] = f32_matrix(c->M, c->N);
    kernel_bench_open(&b);
    return b;
}

static const tdm_kernel_backend_ops *backend_named(const char *name)
{
    for (size_t i = 0; i < tdm_kernel_backend_count(); i++)
        if (strcmp(tdm_kernel_backend_at(i)->name, name) == 0) return tdm_kernel_backend_at(i);
    return NULL;
}

static float matmul_defined(const kernel_bench *b, const matmul_case *c, int64_t m, int64_t n)
{
    const float *x = b->call.in[0].data, *y = b->call.in[1].data, *bias = b->call.in[2].data;
    int64_t count = tdm__product_segments(c->K);
    float sum = 0;
    for (int64_t s = 0; s < count; s++) {
        float chain = 0;
        for (int64_t k = c->K * s / count; k < c->K * (s + 1) / count; k++)
            chain = fmaf(b->call.attrs.trans_a ? x[k * c->M + m] : x[m * c->K + k],
                         b->call.attrs.trans_b ? y[n * c->K + k] : y[k * c->N + n], chain);
        sum = s > 0 ? sum + chain : chain;
    }
    return b->call.in[2].dtype ? sum + bias[n] : sum;
}

static void products_have_the_defined_bits(void)
{
    for (int i = 0; i < MATMUL_COUNT; i++)
        for (int form = 0; form < 8; form++) {
            const matmul_case *c = &matmuls[i];
            kernel_bench b = matmul_bench(c, form, 1 + (i + form) % 3);
            kernel_bench_run(&b, backend_named("product"));
            const float *result = b.call.out[0].data;
            int64_t wrong = 0, step = c->M * c->N > 4000 ? 7 : 1;
            for (int64_t at = 0; at < c->M * c->N; at += step) {
                float want = matmul_defined(&b, c, at / c->N, at % c->N);
                wrong += memcmp(&want, &result[at], sizeof(want)) != 0;
            }
            CHECK_INT(wrong, 0);
            kernel_bench_close(&b);
        }
}

/* A row alone has the same bits as among others. */
static void rows_do_not_depend_on_each_other(void)
{
    matmul_case all = {77, 90, 500}, one = {1, 90, 500};
    kernel_bench b = matmul_bench(&all, 2, 2), single = matmul_bench(&one, 2, 1);
    kernel_bench_run(&b, backend_named("product"));
    memcpy(single.call.in[1].data, b.call.in[1].data, tdm_tensor_bytes(&b.call.in[1]));
    for (int64_t m = 0; m < all.M; m += 19) {
        memcpy(single.call.in[0].data, (float *)b.call.in[0].data + m * all.K,
               (size_t)all.K * sizeof(float));
        kernel_bench_run(&single, backend_named("product"));
        CHECK(memcmp(single.call.out[0].data, (float *)b.call.out[0].data + m * all.N,
                     (size_t)all.N * sizeof(float)) == 0);
    }
    kernel_bench_close(&b);
    kernel_bench_close(&single);
}

/* A caller may request scratch once for several products that are not larger. */
static void scratch_never_falls_as_sizes_grow(void)
{
    static const int64_t sizes[] = {1, 5, 12, 13, 96, 144, 145, 240, 289, 384, 385, 768, 864, 5000};
    enum { COUNT = sizeof(sizes) / sizeof(sizes[0]) };
    const tdm__vec_product *here = tdm__product_here();
    for (int threads = 1; threads <= 3; threads++) {
        int before = tdm_kernel_threads_set(threads);
        for (int i = 0; i < COUNT * COUNT * COUNT; i++) {
            int m = i % COUNT, n = i / COUNT % COUNT, k = i / COUNT / COUNT;
            size_t bytes = here->scratch_bytes(sizes[m], sizes[n], sizes[k]);
            if (m > 0) CHECK(here->scratch_bytes(sizes[m - 1], sizes[n], sizes[k]) <= bytes);
            if (n > 0) CHECK(here->scratch_bytes(sizes[m], sizes[n - 1], sizes[k]) <= bytes);
            if (k > 0) CHECK(here->scratch_bytes(sizes[m], sizes[n], sizes[k - 1]) <= bytes);
        }
        tdm_kernel_threads_set(before);
    }
}

/* ---- levels ---------------------------------------------------------------------------------- */

typedef struct conv_case {
    int64_t B, H, W, C, O, K;
    int stride, pad, dilation, groups;
} conv_case;

static const conv_case convs[] = {
    {2, 11, 9, 1, 6, 5, 1, 2, 1, 1},    {2, 16, 16, 3, 33, 3, 1, 1, 1, 1},
    {1, 17, 15, 3, 16, 7, 2, 3, 1, 1},  {2, 8, 8, 64, 48, 3, 1, 1, 1, 1},
    {3, 9, 10, 32, 16, 3, 2, 1, 1, 1},  {2, 9, 9, 32, 64, 1, 2, 0, 1, 1},
    {2, 7, 7, 24, 40, 1, 1, 0, 1, 1},   {1, 9, 9, 12, 12, 3, 1, 1, 1, 12},
    {2, 10, 9, 20, 40, 3, 3, 1, 2, 4},  {2, 13, 18, 16, 32, 3, 1, 1, 1, 1},
    {3, 33, 30, 32, 16, 3, 1, 1, 1, 1},
};
enum { CONV_COUNT = sizeof(convs) / sizeof(convs[0]) };

static kernel_bench conv_bench(const conv_case *c, int way, int threads)
{
    static const tdm_op_kind ops[] = {TDM_OP_CONV, TDM_OP_CONV_GRAD_X, TDM_OP_CONV_GRAD_W};
    int64_t reach = (c->K - 1) * c->dilation + 1;
    int64_t OH = (c->H + 2 * c->pad - reach) / c->stride + 1;
    int64_t OW = (c->W + 2 * c->pad - reach) / c->stride + 1;
    tdm_tensor x = {TDM_DTYPE_F32, tdm_shape_4(c->B, c->H, c->W, c->C), NULL};
    tdm_tensor w = {TDM_DTYPE_F32, tdm_shape_4(c->O, c->K, c->K, c->C / c->groups), NULL};
    tdm_tensor y = {TDM_DTYPE_F32, tdm_shape_4(c->B, OH, OW, c->O), NULL};
    kernel_bench b = {.op = ops[way], .threads = threads};
    tdm_op_attrs *a = &b.call.attrs;
    a->window.groups = c->groups;
    for (int axis = 0; axis < 2; axis++) {
        a->window.kernel[axis] = (int)c->K;
        a->window.stride[axis] = c->stride;
        a->window.dilation[axis] = c->dilation;
        a->window.pad_before[axis] = a->window.pad_after[axis] = c->pad;
    }
    b.call.in[0] = way == 0 ? x : y;
    b.call.in[1] = way == 2 ? x : w;
    if (way == 0) b.call.in[2] = (tdm_tensor){TDM_DTYPE_F32, tdm_shape_1(c->O), NULL};
    if (way == 0) a->activation = TDM_ACTIVATION_RELU;
    b.call.out[0] = way == 0 ? y : way == 1 ? x : w;
    a->shape = b.call.out[0].shape;
    kernel_bench_open(&b);
    return b;
}

/* Runs the first of Tandem's backends that supports the call, as a plan does. */
static void bench_run_portable(kernel_bench *b)
{
    for (size_t i = 0; i < tdm_kernel_backend_count(); i++) {
        const tdm_kernel_backend_ops *ops = tdm_kernel_backend_at(i);
        tdm_kernel_call call = b->call;
        tdm_error err = {0};
        const tdm_kernel *kernel = tdm_kernel_find(ops, b->op, TDM_DTYPE_F32);
        if (ops->vendor || !kernel || ops->open || !kernel->prepare) continue;
        if (kernel->prepare(NULL, &call, &err) != TDM_OK) continue;
        if (kernel->release) kernel->release(&call);
        kernel_bench_run(b, ops);
        return;
    }
    CHECK(!"no portable kernel");
}

static uint64_t digest_results(int threads)
{
    tdm_kernel_mode before = tdm_kernel_enter(threads);
    uint64_t digest = 0;
    for (int i = 0; i < MATMUL_COUNT + 3 * CONV_COUNT; i++) {
        kernel_bench b = i < MATMUL_COUNT ? matmul_bench(&matmuls[i], i % 8, threads)
                                          : conv_bench(&convs[(i - MATMUL_COUNT) / 3],
                                                       (i - MATMUL_COUNT) % 3, threads);
        bench_run_portable(&b);
        digest = digest * 0x9e3779b97f4a7c15u + kernel_bench_hash(b.call.out, 1);
        kernel_bench_close(&b);
    }
    tdm_kernel_leave(&before);
    return digest;
}

/* In a separate process, which has this level. */
static uint64_t digest_at(const char *level, int threads)
{
    uint64_t digest = 0;
    int pipe_ends[2], status = 1, failures = check_failures;
    CHECK(pipe(pipe_ends) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        setenv("TANDEM_ISA", level, 1);
        digest = digest_results(threads);
        bool sent = write(pipe_ends[1], &digest, sizeof(digest)) == (ssize_t)sizeof(digest);
        _exit(check_failures > failures || !sent);
    }
    close(pipe_ends[1]);
    CHECK(read(pipe_ends[0], &digest, sizeof(digest)) == (ssize_t)sizeof(digest));
    close(pipe_ends[0]);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return digest;
}

static void all_levels_have_the_same_bits(void)
{
    static const char *const names[] = {[0] = "", [2] = "v2", [3] = "v3", [4] = "v4"};
    uint64_t first = digest_at("", 1);
    CHECK(digest_at("", 3) == first);
    for (int level = 2; level <= tdm_kernel_cpu_level(); level++) {
        uint64_t digest = digest_at(names[level], level == 2 ? 1 : 2);
        if (digest != first) fprintf(stderr, "  level %d has other bits\n", level);
        CHECK(digest == first);
    }
}

static const check_test tests[] = {
    /* first: its processes must not inherit a level in use */
    CHECK_TEST(all_levels_have_the_same_bits),
    CHECK_TEST(products_have_the_defined_bits),
    CHECK_TEST(rows_do_not_depend_on_each_other),
    CHECK_TEST(scratch_never_falls_as_sizes_grow),
};

CHECK_MAIN(tests)
