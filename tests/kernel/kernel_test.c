/*
 * kernel_test.c: every kernel of every backend against `ref`, using only the table of kernels.
 *
 * A product is compared on odd shapes, in all four transpositions, with and without bias. The allowed error of
 * one element is a few units in the last place of the sum of the absolute products, times the square root of K:
 * the rounding errors of any order. All operands are between guards with a huge number: a write to one is
 * detected, a read of one makes the result wrong. Outputs contain the guard's number at first, and inputs must
 * be unchanged.
 */
#include "base/base.h"
#include "check.h"
#include "tensor/kernel.h"

#include <stdlib.h>
#include <unistd.h>

enum { GUARD_FLOATS = 16, ALIGN_BYTES = 64 };

static const int64_t sizes[] = {1, 2, 3, 7, 16, 17, 31, 64, 65, 129};
enum { SIZE_COUNT = sizeof(sizes) / sizeof(sizes[0]) };

static bool same_bits(const void *a, const void *b, size_t bytes)
{
    return memcmp(a, b, bytes) == 0;
}

static const tdm_kernel_backend_ops *ref_backend(void)
{
    return tdm_kernel_backend_at(tdm_kernel_backend_count() - 1);
}

/* Floats between guards; as a float the pattern is -1.7e38. */
static float *guarded_alloc(size_t count)
{
    size_t bytes = (count + 2 * GUARD_FLOATS) * sizeof(float);
    float *block = aligned_alloc(ALIGN_BYTES,
                                 (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES);
    memset(block, 0xfe, bytes);
    return block + GUARD_FLOATS;
}

static bool guards_hold(const float *data, size_t count)
{
    unsigned char expected[GUARD_FLOATS * sizeof(float)];
    memset(expected, 0xfe, sizeof(expected));
    return same_bits(data - GUARD_FLOATS, expected, sizeof(expected)) &&
           same_bits(data + count, expected, sizeof(expected));
}

static void guarded_free(float *data)
{
    free(data - GUARD_FLOATS);
}

static void fill_random(float *data, size_t count, uint32_t what)
{
    tdm_rng rng = tdm_rng_at((tdm_rng_address){
        .seed = 11, .stream = TDM_RNG_STREAM_USER, .sub_stream = what, .sample = count});
    for (size_t i = 0; i < count; i++) data[i] = 2.0f * tdm_rng_uniform(&rng) - 1.0f;
}

typedef struct product {
    int64_t M, N, K;
    bool trans_a, trans_b, with_bias;
    float *a, *b, *bias, *c;
} product;

static tdm_kernel_call call_of(const product *p)
{
    tdm_kernel_call call = {.attrs = {.trans_a = p->trans_a, .trans_b = p->trans_b}};
    call.in[0] = (tdm_tensor){TDM_DTYPE_F32,
                              p->trans_a ? tdm_shape_2(p->K, p->M) : tdm_shape_2(p->M, p->K), p->a};
    call.in[1] = (tdm_tensor){TDM_DTYPE_F32,
                              p->trans_b ? tdm_shape_2(p->N, p->K) : tdm_shape_2(p->K, p->N), p->b};
    if (p->with_bias) call.in[2] = (tdm_tensor){TDM_DTYPE_F32, tdm_shape_1(p->N), p->bias};
    call.out[0] = (tdm_tensor){TDM_DTYPE_F32, tdm_shape_2(p->M, p->N), p->c};
    return call;
}

static void run_ref(const product *p)
{
    tdm_kernel_call call = call_of(p);
    tdm_kernel_find(ref_backend(), TDM_OP_MATMUL, TDM_DTYPE_F32)
        ->run(NULL, &call, &(tdm_step_key){0});
}

/* Runs `kernel`; false if it does not support this product. Data is set after prepare(), as a plan does, and
 * the call runs twice, because state that the kernel keeps must not affect the result. */
static bool run_kernel(const tdm_kernel *kernel, void *backend, const product *p)
{
    tdm_error err = {0};
    tdm_kernel_call call = call_of(p), bare = call;
    for (int i = 0; i < TDM_OP_MAX_INPUTS; i++) bare.in[i].data = NULL;
    bare.out[0].data = NULL;
    if (kernel->prepare) {
        tdm_status status = kernel->prepare(backend, &bare, &err);
        if (status == TDM_ERR_UNSUPPORTED) return false;
        CHECK_INT(status, TDM_OK);
        if (status != TDM_OK) return false;
    }
    call.prepared = bare.prepared;
    call.scratch_bytes = bare.scratch_bytes;
    size_t scratch_floats = (call.scratch_bytes + 3) / 4;
    float *scratch = guarded_alloc(scratch_floats);
    call.scratch = call.scratch_bytes ? scratch : NULL;
    size_t c_count = (size_t)(p->M * p->N);
    float *first = malloc(c_count * sizeof(float));
    kernel->run(backend, &call, &(tdm_step_key){0});
    memcpy(first, p->c, c_count * sizeof(float));
    memset(p->c, 0xff, c_count * sizeof(float));
    kernel->run(backend, &call, &(tdm_step_key){0});
    CHECK(same_bits(first, p->c, c_count * sizeof(float)));
    CHECK(guards_hold(scratch, scratch_floats));
    if (kernel->release) kernel->release(&call);
    free(first);
    guarded_free(scratch);
    return true;
}

static void make_absolute(float *to, const float *from, size_t count)
{
    for (size_t i = 0; i < count; i++) to[i] = fabsf(from[i]);
}

/* One product by `kernel` and by `ref`. Returns whether the kernel supported it. */
static bool compare_product(const tdm_kernel *kernel, void *backend, product p)
{
    size_t a_count = (size_t)(p.M * p.K), b_count = (size_t)(p.K * p.N), n = (size_t)p.N;
    size_t c_count = (size_t)(p.M * p.N);
    float *inputs[3] = {guarded_alloc(a_count), guarded_alloc(b_count), guarded_alloc(n)};
    float *copies[3] = {guarded_alloc(a_count), guarded_alloc(b_count), guarded_alloc(n)};
    float *results[3] = {guarded_alloc(c_count), guarded_alloc(c_count), guarded_alloc(c_count)};
    const size_t counts[3] = {a_count, b_count, n};
    for (uint32_t i = 0; i < 3; i++) {
        fill_random(inputs[i], counts[i], i);
        memcpy(copies[i], inputs[i], counts[i] * sizeof(float));
    }
    p.a = inputs[0], p.b = inputs[1], p.bias = inputs[2];
    p.c = results[0];
    bool taken = run_kernel(kernel, backend, &p);
    p.c = results[1];
    run_ref(&p);
    for (int i = 0; i < 3; i++) {
        CHECK(same_bits(inputs[i], copies[i], counts[i] * sizeof(float)));
        CHECK(guards_hold(inputs[i], counts[i]) && guards_hold(results[i], c_count));
        make_absolute(copies[i], inputs[i], counts[i]);
    }
    p.a = copies[0], p.b = copies[1], p.bias = copies[2];
    p.c = results[2]; /* the sum of absolute products: what rounding errors are relative to */
    run_ref(&p);
    double units = 0x1p-24 * (2.0 + 2.0 * sqrt((double)p.K)), worst = 0;
    for (size_t i = 0; i < c_count && taken; i++) {
        double off = fabs((double)results[0][i] - (double)results[1][i]);
        double share = off / (units * (double)results[2][i] + 1e-30);
        if (!(share <= worst)) worst = share; /* so that NaN counts as the worst of all */
    }
    if (!(worst <= 1.0))
        fprintf(stderr, "  M %d N %d K %d%s%s%s: %g times the error allowed\n", (int)p.M, (int)p.N,
                (int)p.K, p.trans_a ? ", a^T" : "", p.trans_b ? ", b^T" : "",
                p.with_bias ? ", bias" : "", worst);
    CHECK(worst <= 1.0);
    for (int i = 0; i < 3; i++) {
        guarded_free(inputs[i]);
        guarded_free(copies[i]);
        guarded_free(results[i]);
    }
    return taken;
}

static void compare_products(const tdm_kernel_backend_ops *ops, const tdm_kernel *kernel)
{
    void *backend = NULL;
    tdm_error err;
    if (ops->open) CHECK_INT(ops->open(&backend, &err), TDM_OK);
    int taken = 0, all = 0;
    for (size_t shape = 0; shape < SIZE_COUNT * SIZE_COUNT * SIZE_COUNT; shape++)
        for (int form = 0; form < 8; form++, all++)
            taken += compare_product(kernel, backend,
                                     (product){.M = sizes[shape % SIZE_COUNT],
                                               .N = sizes[shape / SIZE_COUNT % SIZE_COUNT],
                                               .K = sizes[shape / SIZE_COUNT / SIZE_COUNT],
                                               .trans_a = form & 1,
                                               .trans_b = form & 2,
                                               .with_bias = form & 4});
    printf("     %s took %d of %d products\n", ops->name, taken, all);
    CHECK(taken > 0);
    if (ops->close) ops->close(backend);
}

/* The test that compares the kernels of an op with ref, if it is not this one. */
static const char *const compared_by[TDM_OP_COUNT] = {
    [TDM_OP_ADD... TDM_OP_SOFTMAX_GRAD] = "vec",
    [TDM_OP_EMBEDDING... TDM_OP_EMBEDDING_GRAD] = "vec",
    [TDM_OP_BATCH_NORM_SHARE... TDM_OP_BATCH_NORM_GIVEN] = "batch_norm",
    [TDM_OP_LANE_SUM] = "vec",
    [TDM_OP_CROSS_ENTROPY... TDM_OP_CROSS_ENTROPY_GRAD] = "vec",
    [TDM_OP_LOSS... TDM_OP_PENALTY_GRAD] = "loss",
    [TDM_OP_LAYER_NORM... TDM_OP_RMS_NORM_GRAD_PARAMS] = "norm",
    [TDM_OP_ATTENTION... TDM_OP_ATTENTION_GRAD] = "attention",
    [TDM_OP_CONV... TDM_OP_CONV_GRAD_W] = "conv",
    [TDM_OP_MAX_POOL... TDM_OP_AVERAGE_POOL_GRAD] = "pool",
    [TDM_OP_BATCH_NORM... TDM_OP_BATCH_NORM_FIXED_GRAD_PARAMS] = "batch_norm",
};

/* Backends that take inputs of bf16 alone. */
static bool is_of_bf16(const tdm_kernel_backend_ops *ops)
{
    return strncmp(ops->name, "wide", 4) == 0 || strcmp(ops->name, "bf16") == 0;
}

static void check_there_is_a_test(const char *name)
{
    char path[64];
    snprintf(path, sizeof(path), "tests/kernel/%s_test.c", name);
    CHECK(access(path, R_OK) == 0);
}

/* All rows of all backends but ref. A row for an op that is compared neither here nor in a test named above
 * is a failure: a new kernel needs a comparison. */
static void every_kernel_agrees_with_ref(void)
{
    int before = tdm_kernel_threads_set(1);
    for (size_t b = 0; b + 1 < tdm_kernel_backend_count(); b++) {
        const tdm_kernel_backend_ops *ops = tdm_kernel_backend_at(b);
        for (const tdm_kernel_family *const *f = ops->families; *f; f++) {
            for (size_t k = 0; k < (*f)->count; k++) {
                const tdm_kernel *kernel = &(*f)->kernels[k];
                bool of_bf16 = is_of_bf16(ops) || kernel->op == TDM_OP_CAST;
                CHECK_INT(kernel->dtype,
                          kernel->op == TDM_OP_CAST ? TDM_DTYPE_BF16 : TDM_DTYPE_F32);
                if (of_bf16)
                    check_there_is_a_test("bf16");
                else if (kernel->op == TDM_OP_MATMUL)
                    compare_products(ops, kernel);
                else if (compared_by[kernel->op])
                    check_there_is_a_test(compared_by[kernel->op]);
                else
                    CHECK(!"a kernel that nothing holds against ref");
            }
        }
    }
    tdm_kernel_threads_set(before);
}

/* The same with more threads than one, on fewer shapes. */
static void kernels_agree_with_ref_on_two_threads(void)
{
    int before = tdm_kernel_threads_set(2);
    for (size_t b = 0; b + 1 < tdm_kernel_backend_count(); b++) {
        const tdm_kernel_backend_ops *ops = tdm_kernel_backend_at(b);
        const tdm_kernel *kernel = tdm_kernel_find(ops, TDM_OP_MATMUL, TDM_DTYPE_F32);
        void *backend = NULL;
        tdm_error err;
        if (!kernel) continue;
        if (ops->open) CHECK_INT(ops->open(&backend, &err), TDM_OK);
        for (int form = 0; form < 8; form++)
            compare_product(kernel, backend,
                            (product){.M = 65,
                                      .N = 129,
                                      .K = 31,
                                      .trans_a = form & 1,
                                      .trans_b = form & 2,
                                      .with_bias = form & 4});
        if (ops->close) ops->close(backend);
    }
    tdm_kernel_threads_set(before);
}

/* An empty product is not an error: the backend does not support it, and ref writes the bias, or zeros. */
static void empty_products_are_passed_on(void)
{
    static const int64_t shapes[][3] = {{0, 3, 2}, {3, 0, 2}, {3, 2, 0}};
    for (size_t b = 0; b + 1 < tdm_kernel_backend_count(); b++) {
        const tdm_kernel_backend_ops *ops = tdm_kernel_backend_at(b);
        const tdm_kernel *kernel = tdm_kernel_find(ops, TDM_OP_MATMUL, TDM_DTYPE_F32);
        void *backend = NULL;
        tdm_error err;
        if (!kernel || !kernel->prepare) continue;
        if (ops->open) CHECK_INT(ops->open(&backend, &err), TDM_OK);
        for (size_t i = 0; i < 3; i++) {
            product p = {.M = shapes[i][0], .N = shapes[i][1], .K = shapes[i][2]};
            tdm_kernel_call call = call_of(&p);
            CHECK_INT(kernel->prepare(backend, &call, &err), TDM_ERR_UNSUPPORTED);
            CHECK(!call.prepared);
        }
        if (ops->close) ops->close(backend);
    }
    float bias[2] = {5, 6}, c[6] = {9, 9, 9, 9, 9, 9};
    product p = {.M = 3, .N = 2, .K = 0, .with_bias = true, .bias = bias, .c = c};
    run_ref(&p);
    for (int i = 0; i < 6; i++) CHECK(c[i] == bias[i % 2]);
}

/* ref defines the correct result, so it is compared with numbers computed by hand. */
static void ref_product_by_hand(void)
{
    float a[6] = {1, 2, 3, 4, 5, 6}, b[6] = {7, 8, 9, 10, 11, 12}, bias[2] = {0.5f, -0.5f}, c[4];
    product p = {.M = 2, .N = 2, .K = 3, .with_bias = true, .a = a, .b = b, .bias = bias, .c = c};
    run_ref(&p); /* [1 2 3; 4 5 6] [7 8; 9 10; 11 12] */
    CHECK(c[0] == 58.5f && c[1] == 63.5f && c[2] == 139.5f && c[3] == 153.5f);
    p.trans_a = true; /* [1 3 5; 2 4 6] */
    run_ref(&p);
    CHECK(c[0] == 89.5f && c[1] == 97.5f && c[2] == 116.5f && c[3] == 127.5f);
    p.trans_b = true; /* [7 10; 8 11; 9 12] */
    p.with_bias = false;
    run_ref(&p);
    CHECK(c[0] == 76 && c[1] == 103 && c[2] == 100 && c[3] == 136);
    p.trans_a = false;
    run_ref(&p);
    CHECK(c[0] == 50 && c[1] == 68 && c[2] == 122 && c[3] == 167);
}

static float run_unary(tdm_op_kind op, float x)
{
    float y = 9;
    tdm_kernel_call call = {.in = {{TDM_DTYPE_F32, tdm_shape_1(1), &x}},
                            .out = {{TDM_DTYPE_F32, tdm_shape_1(1), &y}}};
    tdm_kernel_find(ref_backend(), op, TDM_DTYPE_F32)->run(NULL, &call, &(tdm_step_key){0});
    return y;
}

/* A model that diverges must show it: no activation may turn NaN into another number. */
static void activations_let_nan_through(void)
{
    static const tdm_op_kind ops[] = {TDM_OP_RELU, TDM_OP_GELU, TDM_OP_TANH, TDM_OP_SIGMOID};
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        CHECK(isnan(run_unary(ops[i], NAN)));
        CHECK(isfinite(run_unary(ops[i], 100.0f)));
        CHECK(isfinite(run_unary(ops[i], -1e30f)));
    }
    CHECK(run_unary(TDM_OP_RELU, -3.0f) == 0 && run_unary(TDM_OP_RELU, 3.0f) == 3.0f);
    CHECK(run_unary(TDM_OP_RELU, INFINITY) == INFINITY && run_unary(TDM_OP_RELU, -INFINITY) == 0);
}

/* Softmax and cross entropy with numbers for which a naive exp() overflows or every probability underflows.
 * */
static void softmax_and_loss_at_the_extremes(void)
{
    float x[6] = {0, 1e30f, -1e30f, -200, -200, -200}, y[6], loss[1];
    int32_t classes[2] = {2, 1};
    tdm_kernel_call call = {
        .in = {{TDM_DTYPE_F32, tdm_shape_2(2, 3), x}, {TDM_DTYPE_I32, tdm_shape_1(2), classes}},
        .out = {{TDM_DTYPE_F32, tdm_shape_0(), loss}, {TDM_DTYPE_F32, tdm_shape_2(2, 3), y}},
        .attrs = {.scale = 1.0}};
    const tdm_kernel *kernel = tdm_kernel_find(ref_backend(), TDM_OP_CROSS_ENTROPY, TDM_DTYPE_F32);
    kernel->run(NULL, &call, &(tdm_step_key){0});
    CHECK(y[0] == 0 && y[1] == 1 && y[2] == 0);
    for (int i = 3; i < 6; i++) CHECK_NEAR(y[i], 1.0 / 3.0, 1e-7);
    CHECK_NEAR(loss[0], 2e30 + log(3.0), 1e24);
    classes[0] = 1;
    kernel->run(NULL, &call, &(tdm_step_key){0});
    CHECK_NEAR(loss[0], log(3.0), 1e-6);
}

/* Dropout's mask is a function of the address alone: the same for a row in any batch. */
static void dropout_masks_follow_the_row(void)
{
    enum { B = 8, N = 33 };
    float x[B * N], whole[B * N], part[2 * N];
    for (int i = 0; i < B * N; i++) x[i] = 1;
    const tdm_kernel *kernel = tdm_kernel_find(ref_backend(), TDM_OP_DROPOUT, TDM_DTYPE_F32);
    tdm_kernel_call call = {.in = {{TDM_DTYPE_F32, tdm_shape_2(B, N), x}},
                            .out = {{TDM_DTYPE_F32, tdm_shape_2(B, N), whole}},
                            .attrs = {.p = 0.25f, .sub_stream = 2}};
    kernel->run(NULL, &call, &(tdm_step_key){.seed = 1, .step = 2, .first_row = 100});
    int dropped = 0;
    for (int i = 0; i < B * N; i++) {
        CHECK(whole[i] == 0 || whole[i] == 1.0f / 0.75f);
        dropped += whole[i] == 0;
    }
    CHECK(dropped > B * N / 8 && dropped < B * N * 3 / 8);
    call.in[0].shape = call.out[0].shape = tdm_shape_2(2, N);
    call.out[0].data = part;
    kernel->run(NULL, &call, &(tdm_step_key){.seed = 1, .step = 2, .first_row = 103});
    CHECK(same_bits(part, whole + 3 * N, sizeof(part)));
    static const tdm_step_key others[] = {{1, 3, 103}, {2, 2, 103}, {1, 2, 104}};
    for (size_t i = 0; i < 3; i++) {
        kernel->run(NULL, &call, &others[i]);
        CHECK(!same_bits(part, whole + 3 * N, sizeof(part)));
    }
    call.attrs.sub_stream = 3;
    kernel->run(NULL, &call, &(tdm_step_key){.seed = 1, .step = 2, .first_row = 103});
    CHECK(!same_bits(part, whole + 3 * N, sizeof(part)));
}

static const check_test tests[] = {
    CHECK_TEST(ref_product_by_hand),
    CHECK_TEST(every_kernel_agrees_with_ref),
    CHECK_TEST(kernels_agree_with_ref_on_two_threads),
    CHECK_TEST(empty_products_are_passed_on),
    CHECK_TEST(activations_let_nan_through),
    CHECK_TEST(softmax_and_loss_at_the_extremes),
    CHECK_TEST(dropout_masks_follow_the_row),
};
CHECK_MAIN(tests)
