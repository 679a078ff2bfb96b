/*
 * bf16_test.c: 16-bit numbers, from the rounding to the gradients of a graph.
 *
 * Rounding is compared with its definition, bit by bit. Products and convolutions of bf16, by every backend
 * that has them, are compared with sums in double precision of the same inputs, so only the rounding of sums in
 * f32 is allowed. Products of the backend `bf16` are compared bit by bit: every unit that this CPU has, AMX
 * tiles and the vector code of every level, with the order of operations that bf16.h defines, for ordinary and
 * for extreme numbers. A graph in bf16 is compared with the same graph in f32: its numbers, the values that it
 * keeps, and the number of roundings.
 */
#include "graph/graph.h"
#include "graph_bench.h"
#include "kernel/kernel_bench.h"
#include "tensor/kernels/bf16/bf16.h"

#include <math.h>

/* Every n-th of all shapes. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SHAPE_STEP = 53, IS_SLOW = 1 };
#else
enum { SHAPE_STEP = 13, IS_SLOW = 0 };
#endif

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static double bf16_value(uint16_t bits)
{
    return (double)float_of((uint32_t)bits << 16);
}

/* ---- rounding -------------------------------------------------------------------------------- */

/* The nearer one of the two neighbours of x; of two equally near ones the even one. */
static uint16_t rounded_by_definition(uint32_t x)
{
    uint32_t magnitude = x & 0x7fffffffu;
    uint16_t sign = (uint16_t)(x >> 16 & 0x8000u), low = (uint16_t)(magnitude >> 16);
    if (magnitude > 0x7f800000u) return (uint16_t)(x >> 16 | 0x40u);
    if (magnitude == 0x7f800000u) return (uint16_t)(x >> 16);
    if (magnitude < 0x00800000u) return sign;
    double value = (double)float_of(magnitude), below = value - bf16_value(low);
    /* The number after the largest one is infinite, at the distance of the next number. */
    double next = low == 0x7f7f ? 0x1p128 : bf16_value((uint16_t)(low + 1));
    bool up = below > next - value || (below == next - value && (low & 1));
    return (uint16_t)(sign | (low + (up ? 1 : 0)));
}

static const uint16_t lows[] = {0x7fff, 0x8000, 0x8001, 0, 1, 0x7ffe, 0xfffe, 0xffff, 0x1234};
enum { LOW_COUNT = IS_SLOW ? 3 : sizeof(lows) / sizeof(lows[0]), CAST_COUNT = 65536 * LOW_COUNT };

static void rounding_is_to_the_nearest(void)
{
    kernel_bench b = {.op = TDM_OP_CAST};
    b.call.in[0] = (tdm_tensor){.dtype = TDM_DTYPE_F32, .shape = tdm_shape_1(CAST_COUNT)};
    b.call.out[0] = (tdm_tensor){.dtype = TDM_DTYPE_BF16, .shape = tdm_shape_1(CAST_COUNT)};
    kernel_bench_open(&b);
    uint32_t *x = b.call.in[0].data;
    uint16_t *y = b.call.out[0].data;
    for (uint32_t i = 0; i < CAST_COUNT; i++) x[i] = i / LOW_COUNT << 16 | lows[i % LOW_COUNT];
    kernel_bench_run(&b, kernel_bench_ref());
    int wrong = 0;
    for (uint32_t i = 0; i < CAST_COUNT; i++) wrong += y[i] != rounded_by_definition(x[i]);
    CHECK_INT(wrong, 0);
    CHECK_INT(tdm__bf16_of(0x7f7fffffu), 0x7f80); /* the largest f32 is nearer to 2^128 */
    CHECK_INT(tdm__bf16_of(0x7f800001u), 0x7fc0); /* a signalling NaN */
    CHECK_INT(tdm__bf16_of(0x807fffffu), 0x8000); /* below the normal range */
    uint16_t *right = malloc(CAST_COUNT * sizeof(*right));
    memcpy(right, y, CAST_COUNT * sizeof(*right));
    const tdm_kernel_backend_ops *cpu;
    /* Also in the mode of kernels in training, which flushes to zero. */
    for (int flush = 0; flush < 2; flush++) {
        tdm_kernel_mode before = tdm_kernel_enter(2);
        if (!flush) tdm_kernel_leave(&before);
        for (size_t l = 0; (cpu = kernel_bench_cpu(l)); l++)
            for (b.threads = 1; b.threads <= 2; b.threads++) {
                kernel_bench_run(&b, cpu);
                CHECK(memcmp(y, right, CAST_COUNT * sizeof(*right)) == 0);
            }
        kernel_bench_run(&b, kernel_bench_ref());
        CHECK(memcmp(y, right, CAST_COUNT * sizeof(*right)) == 0);
        if (flush) tdm_kernel_leave(&before);
    }
    free(right);
    kernel_bench_close(&b);
}

/* Rows of any length, from any offset: the same bits. */
static void rounding_does_not_depend_on_position(void)
{
    const tdm_kernel_backend_ops *cpu;
    for (size_t l = 0; (cpu = kernel_bench_cpu(l)); l++)
        for (int64_t count = 1; count <= 70; count++) {
            kernel_bench b = {.op = TDM_OP_CAST};
            b.call.in[0] = (tdm_tensor){.dtype = TDM_DTYPE_F32, .shape = tdm_shape_1(count)};
            b.call.out[0] = (tdm_tensor){.dtype = TDM_DTYPE_BF16, .shape = tdm_shape_1(count)};
            kernel_bench_open(&b);
            kernel_bench_run(&b, cpu);
            const float *x = b.call.in[0].data;
            const uint16_t *y = b.call.out[0].data;
            for (int64_t i = 0; i < count; i++) {
                uint32_t bits;
                memcpy(&bits, &x[i], sizeof(bits));
                CHECK_INT(y[i], tdm__bf16_of(bits));
            }
            kernel_bench_close(&b);
        }
}

/* ---- products -------------------------------------------------------------------------------- */

static void fill_bf16(tdm_tensor *t, uint32_t what)
{
    tdm_rng rng = bench_rng(7, what);
    uint16_t *x = t->data;
    for (int64_t i = 0; i < tdm_tensor_elements(t); i++) {
        float value = bench_random(&rng);
        uint32_t bits;
        memcpy(&bits, &value, sizeof(bits));
        x[i] = tdm__bf16_of(bits);
    }
}

/* Opens the bench, and fills inputs of bf16 as well. */
static void open_bf16(kernel_bench *b)
{
    kernel_bench_open(b);
    for (int i = 0; i < TDM_OP_MAX_INPUTS; i++)
        if (b->call.in[i].dtype == TDM_DTYPE_BF16) fill_bf16(&b->call.in[i], (uint32_t)i);
}

/* The backends with products of bf16; NULL past the last. */
static const tdm_kernel_backend_ops *products_by(size_t index)
{
    static const char *const names[] = {"bf16", "wide", "wide_vendor", "ref"};
    for (size_t i = 0; i < tdm_kernel_backend_count(); i++)
        for (size_t k = 0; k < sizeof(names) / sizeof(names[0]); k++)
            if (strcmp(tdm_kernel_backend_at(i)->name, names[k]) == 0 && index-- == 0)
                return tdm_kernel_backend_at(i);
    return NULL;
}

/* As kernel_bench_run, for a kernel with a state of its backend; false if it does not support the call. */
static bool run_kernel(const tdm_kernel *kernel, void *backend, kernel_bench *b)
{
    int before = tdm_kernel_threads_set(b->threads > 0 ? b->threads : 1);
    tdm_kernel_call call = b->call;
    tdm_error err = {0};
    for (int i = 0; i < TDM_OP_MAX_INPUTS; i++) call.in[i].data = NULL;
    call.out[0].data = NULL;
    tdm_status status = kernel->prepare(backend, &call, &err);
    CHECK(status == TDM_OK || (status == TDM_ERR_UNSUPPORTED && !call.prepared));
    if (status == TDM_OK) {
        for (int i = 0; i < TDM_OP_MAX_INPUTS; i++) call.in[i].data = b->call.in[i].data;
        call.out[0].data = b->call.out[0].data;
        call.scratch = kernel_bench_alloc(call.scratch_bytes);
        kernel_bench_run_prepared(b, kernel, backend, &call);
        kernel_bench_free(call.scratch);
        if (kernel->release) kernel->release(&call);
    }
    tdm_kernel_threads_set(before);
    return status == TDM_OK;
}

/* By a backend that may need to be opened. */
static bool run_by(const tdm_kernel_backend_ops *ops, kernel_bench *b)
{
    const tdm_kernel *kernel = tdm_kernel_find(ops, b->op, TDM_DTYPE_F32);
    void *backend = NULL;
    tdm_error err = {0};
    if (!kernel) return false;
    if (ops->open) CHECK_INT(ops->open(&backend, &err), TDM_OK);
    bool taken = run_kernel(kernel, backend, b);
    if (ops->close) ops->close(backend);
    return taken;
}

/* By one unit of the backend bf16. */
static bool run_unit(const tdm__bf16_unit *unit, kernel_bench *b)
{
    const tdm_kernel *kernel = tdm_kernel_find(&tdm__kernels_bf16, b->op, TDM_DTYPE_F32);
    return run_kernel(kernel, (void *)(uintptr_t)unit, b);
}

typedef struct product {
    int64_t B, M, N, K; /* B 0: plain matrices */
    bool trans_a, trans_b, with_bias;
    tdm_activation activation;
} product;

static tdm_tensor tensor_of(tdm_dtype dtype, tdm_shape shape)
{
    return (tdm_tensor){.dtype = dtype, .shape = shape};
}

static kernel_bench bench_of(const product *p)
{
    int64_t a[2] = {p->trans_a ? p->K : p->M, p->trans_a ? p->M : p->K};
    int64_t b[2] = {p->trans_b ? p->N : p->K, p->trans_b ? p->K : p->N};
    kernel_bench k = {.op = TDM_OP_MATMUL};
    k.call.attrs = (tdm_op_attrs){
        .trans_a = p->trans_a, .trans_b = p->trans_b, .activation = p->activation};
    bool batch = p->B > 0;
    k.call.in[0] = tensor_of(TDM_DTYPE_BF16,
                             batch ? tdm_shape_3(p->B, a[0], a[1]) : tdm_shape_2(a[0], a[1]));
    k.call.in[1] = tensor_of(TDM_DTYPE_BF16,
                             batch ? tdm_shape_3(p->B, b[0], b[1]) : tdm_shape_2(b[0], b[1]));
    if (p->with_bias) k.call.in[2] = tensor_of(TDM_DTYPE_F32, tdm_shape_1(p->N));
    k.call.out[0] = tensor_of(TDM_DTYPE_F32,
                              batch ? tdm_shape_3(p->B, p->M, p->N) : tdm_shape_2(p->M, p->N));
    return k;
}

/* The maximum error of every n-th number of the result, in units of one rounding of the sum of all
 * magnitudes. */
static double worst_of(const product *p, const kernel_bench *k, int64_t every)
{
    const uint16_t *a = k->call.in[0].data, *b = k->call.in[1].data;
    const float *bias = p->with_bias ? k->call.in[2].data : NULL, *c = k->call.out[0].data;
    int64_t count = p->B > 0 ? p->B : 1, M = p->M, N = p->N, K = p->K;
    double worst = 0;
    for (int64_t i = 0; i < count * M * N; i += every) {
        int64_t m = i / N % M, n = i % N, first = i / (M * N);
        double sum = bias ? (double)bias[n] : 0, magnitude = fabs(sum);
        for (int64_t j = 0; j < K; j++) {
            double x = bf16_value(a[first * M * K + (p->trans_a ? j * M + m : m * K + j)]);
            double y = bf16_value(b[first * K * N + (p->trans_b ? n * K + j : j * N + n)]);
            sum += x * y;
            magnitude += fabs(x * y);
        }
        if (p->activation == TDM_ACTIVATION_RELU && sum < 0) sum = 0;
        if (p->activation == TDM_ACTIVATION_TANH) sum = tanh(sum);
        double off = fabs((double)c[i] - sum) / (0x1p-24 * (magnitude + 1));
        if (!(off <= worst)) worst = off;
    }
    return worst;
}

static const int64_t sizes[] = {1, 2, 15, 16, 17, 31, 32, 33, 48, 65, 100};
enum { SIZE_COUNT = sizeof(sizes) / sizeof(sizes[0]) };

/* Every number of threads gives the same bits, and the sums are correct. */
static void check_product(const tdm_kernel_backend_ops *ops, const product *p, int *taken)
{
    kernel_bench k = bench_of(p);
    open_bf16(&k);
    if (run_by(ops, &k)) {
        double worst = worst_of(p, &k, 1);
        double allowed = 4 + 2 * sqrt((double)p->K);
        if (!(worst <= allowed))
            fprintf(stderr, "  %s: %lld x %lld x %lld: %g roundings off\n", ops->name,
                    (long long)p->M, (long long)p->N, (long long)p->K, worst);
        CHECK(worst <= allowed);
        ++*taken;
    }
    kernel_bench_close(&k);
}

static void products_are_sums_of_products(void)
{
    const tdm_kernel_backend_ops *ops;
    for (size_t i = 0; (ops = products_by(i)); i++) {
        int taken = 0, all = 0;
        for (int s = 0; s < SIZE_COUNT * SIZE_COUNT * SIZE_COUNT; s += SHAPE_STEP)
            for (int form = 0; form < 4; form++, all++) {
                product p = {.M = sizes[s % SIZE_COUNT],
                             .N = sizes[s / SIZE_COUNT % SIZE_COUNT],
                             .K = sizes[s / SIZE_COUNT / SIZE_COUNT],
                             .trans_a = form & 1,
                             .trans_b = form & 2,
                             .with_bias = (s / SHAPE_STEP + form) % 3 == 0,
                             .activation = s % 5 == 0   ? TDM_ACTIVATION_RELU
                                           : s % 5 == 1 ? TDM_ACTIVATION_TANH
                                                        : TDM_ACTIVATION_NONE};
                p.B = s % 11 == 0 ? 3 : 0;
                check_product(ops, &p, &taken);
            }
        printf("     %s took %d of %d products\n", ops->name, taken, all);
        bool takes_all = strcmp(ops->name, "bf16") == 0 || strcmp(ops->name, "ref") == 0;
        CHECK(taken == all || !takes_all);
    }
}

/* Large enough to be divided, for threads and for the cache: the same bits for any number of threads. */
static void large_products_are_right_on_all_threads(void)
{
    static const product large[] = {
        {.M = 300, .N = 1100, .K = 520, .trans_b = true, .with_bias = true},
        {.M = 130, .N = 70, .K = 5000, .trans_a = true},
        {.M = 70, .N = 600, .K = 2100},
        {.B = 5, .M = 90, .N = 130, .K = 200, .trans_b = true},
    };
    const tdm_kernel_backend_ops *ops;
    for (size_t i = 0; (ops = products_by(i)); i++)
        for (size_t l = 0; l < sizeof(large) / sizeof(large[0]) && strcmp(ops->name, "ref") != 0;
             l++) {
            kernel_bench k = bench_of(&large[l]);
            open_bf16(&k);
            if (run_by(ops, &k)) {
                CHECK(worst_of(&large[l], &k, 29) <= 4 + 2 * sqrt((double)large[l].K));
                uint64_t alone = kernel_bench_hash(k.call.out, 1);
                k.threads = 3;
                CHECK(run_by(ops, &k));
                if (!ops->vendor) CHECK(kernel_bench_hash(k.call.out, 1) == alone);
            }
            kernel_bench_close(&k);
        }
}

/* NaN and infinities follow the rules of arithmetic. */
static void bad_numbers_pass(void)
{
    const tdm_kernel_backend_ops *ops;
    for (size_t i = 0; (ops = products_by(i)); i++) {
        product p = {.M = 20, .N = 20, .K = 40, .activation = TDM_ACTIVATION_RELU};
        kernel_bench k = bench_of(&p);
        open_bf16(&k);
        uint16_t *a = k.call.in[0].data, *b = k.call.in[1].data;
        for (int64_t n = 0; n < 20; n++) b[3 * 20 + n] = 0x3f80; /* row 3 is all ones */
        a[5 * 40 + 3] = 0x7fc0;                                  /* NaN */
        a[7 * 40 + 3] = 0x7f80;                                  /* infinite */
        if (run_by(ops, &k)) {
            const float *c = k.call.out[0].data;
            for (int64_t n = 0; n < 20; n++) {
                CHECK(isnan(c[5 * 20 + n]));
                CHECK(isinf(c[7 * 20 + n]) && c[7 * 20 + n] > 0);
                CHECK(isfinite(c[6 * 20 + n]));
            }
        }
        kernel_bench_close(&k);
    }
}

/* ---- convolutions ---------------------------------------------------------------------------- */

typedef struct conv_case {
    int64_t B, H, W, C, O, KH, KW;
    int stride, pad, dilation, groups;
} conv_case;

static const conv_case convs[] = {
    {2, 12, 12, 1, 6, 5, 5, 1, 2, 1, 1},  {2, 9, 9, 6, 16, 5, 5, 1, 0, 1, 1},
    {2, 8, 8, 32, 48, 3, 3, 1, 1, 1, 1},  {2, 9, 9, 33, 32, 3, 3, 2, 1, 1, 1},
    {2, 9, 9, 32, 40, 1, 1, 2, 0, 1, 1},  {2, 9, 9, 12, 12, 3, 3, 1, 1, 1, 12},
    {1, 11, 11, 8, 16, 3, 3, 1, 2, 2, 2}, {3, 1, 30, 34, 32, 1, 5, 1, 0, 1, 1},
    {1, 5, 5, 32, 33, 3, 3, 1, 4, 1, 1},  {5, 10, 10, 33, 37, 3, 3, 3, 1, 1, 1},
    {1, 9, 11, 40, 32, 3, 3, 1, 2, 2, 1}, {2, 8, 9, 32, 32, 2, 4, 2, 1, 2, 1},
};
static const tdm_op_kind conv_ops[] = {TDM_OP_CONV, TDM_OP_CONV_GRAD_X, TDM_OP_CONV_GRAD_W};

static kernel_bench conv_bench(const conv_case *c, tdm_op_kind op)
{
    kernel_bench k = {.op = op};
    tdm_op_attrs *a = &k.call.attrs;
    int64_t size[2] = {c->H, c->W}, kernel[2] = {c->KH, c->KW}, out[2];
    for (int axis = 0; axis < 2; axis++) {
        int pad = kernel[axis] == 1 ? 0 : c->pad;
        a->window.kernel[axis] = (int)kernel[axis];
        a->window.stride[axis] = c->stride;
        a->window.dilation[axis] = c->dilation;
        a->window.pad_before[axis] = a->window.pad_after[axis] = pad;
        out[axis] = (size[axis] + 2 * pad - (kernel[axis] - 1) * c->dilation - 1) / c->stride + 1;
    }
    a->window.groups = c->groups;
    tdm_shape x = tdm_shape_4(c->B, c->H, c->W, c->C);
    tdm_shape w = tdm_shape_4(c->O, c->KH, c->KW, c->C / c->groups);
    tdm_shape y = tdm_shape_4(c->B, out[0], out[1], c->O);
    tdm_shape first = op == TDM_OP_CONV ? x : y, second = op == TDM_OP_CONV_GRAD_W ? x : w;
    tdm_shape result = op == TDM_OP_CONV ? y : op == TDM_OP_CONV_GRAD_X ? x : w;
    k.call.in[0] = tensor_of(TDM_DTYPE_BF16, first);
    k.call.in[1] = tensor_of(TDM_DTYPE_BF16, second);
    if (op == TDM_OP_CONV) {
        k.call.in[2] = tensor_of(TDM_DTYPE_F32, tdm_shape_1(c->O));
        a->activation = c->O % 3 == 0 ? TDM_ACTIVATION_RELU : TDM_ACTIVATION_NONE;
    }
    a->shape = result;
    k.call.out[0] = tensor_of(TDM_DTYPE_F32, result);
    return k;
}

/* ref adds in double precision: it is the reference. Winograd's algorithm loses a digit. */
static void convolutions_agree_with_ref(void)
{
    const tdm_kernel_backend_ops *ops;
    for (size_t i = 0; (ops = products_by(i)) && strcmp(ops->name, "ref") != 0; i++) {
        int taken = 0;
        for (size_t c = 0; c < sizeof(convs) / sizeof(convs[0]); c++)
            for (int o = 0; o < 3; o++) {
                kernel_bench k = conv_bench(&convs[c], conv_ops[o]);
                open_bf16(&k);
                int64_t count = tdm_tensor_elements(&k.call.out[0]);
                float *right = malloc((size_t)count * sizeof(*right));
                CHECK(run_by(kernel_bench_ref(), &k));
                memcpy(right, k.call.out[0].data, (size_t)count * sizeof(*right));
                if (run_by(ops, &k)) {
                    double largest = kernel_bench_largest(right, count);
                    double apart = kernel_bench_apart(k.call.out[0].data, right, count);
                    if (!(apart <= 1e-5 * largest + 1e-6))
                        fprintf(stderr, "  %s: convolution %zu, op %d: %g of %g\n", ops->name, c, o,
                                apart, largest);
                    CHECK(apart <= 1e-5 * largest + 1e-6);
                    taken++;
                }
                free(right);
                kernel_bench_close(&k);
            }
        printf("     %s took %d of %zu convolutions\n", ops->name, taken,
               3 * sizeof(convs) / sizeof(convs[0]));
    }
}

/* ---- the order of operations ----------------------------------------------------------------- */

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static float flushed(float x)
{
    return (bits_of(x) & 0x7f800000u) == 0 ? float_of(bits_of(x) & 0x80000000u) : x;
}

/* a b + c with one rounding to 24 bits, then flushed. Near the end of the range libm's fused multiply-add
 * would round to fewer bits: there it computes with numbers 2^64 times as large. */
static float defined_fma(float a, float b, float c)
{
    float result = fmaf(a, b, c);
    if (!(fabsf(result) < 0x1p-100f)) return result;
    float small = fabsf(a) < fabsf(b) ? a : b, large = fabsf(a) < fabsf(b) ? b : a;
    float scaled = fmaf(small * 0x1p64f, large, c * 0x1p64f);
    if (fabsf(scaled) < 0x1p-62f) return copysignf(0.0f, scaled);
    return scaled * 0x1p-64f;
}

static float defined_sum(float a, float b)
{
    return flushed(flushed(a) + flushed(b));
}

/* A product by the definition in bf16.h. */
static void multiply_by_definition(const product *p, const uint16_t *a, const uint16_t *b,
                                   const float *bias, float *c)
{
    for (int64_t i = 0; i < p->M * p->N; i++) {
        int64_t m = i / p->N, n = i % p->N;
        float result = 0;
        for (int64_t first = 0; first < p->K; first += 32) {
            float chain[2] = {0, 0};
            for (int64_t k = first; k < first + 32; k++) {
                uint32_t x = 0, y = 0;
                if (k < p->K) {
                    x = (uint32_t)a[p->trans_a ? k * p->M + m : m * p->K + k] << 16;
                    y = (uint32_t)b[p->trans_b ? n * p->K + k : k * p->N + n] << 16;
                }
                chain[k & 1] = defined_fma(flushed(float_of(x)), flushed(float_of(y)),
                                           chain[k & 1]);
            }
            result = defined_sum(result, defined_sum(chain[0], chain[1]));
        }
        c[i] = bias ? defined_sum(result, bias[n]) : result;
    }
}

typedef enum numbers { MODEST, ANY, FINITE, TINY, HUGE_ONES, ZEROS, EDGE, NUMBERS_COUNT } numbers;

static uint16_t number_of(tdm_rng *rng, numbers kind)
{
    static const uint16_t edges[] = {
        0x2000, 0x2000, 0x2080, 0x0d80, 0x8d80, 0x2180, 0xa000, 0x0080, 0x8080, 0x3f80, 0x0000,
    }; /* 2^-63, whose square is 2^-126; 2^-100; 2^-60; 2^-126; 1; 0 */
    uint32_t x = tdm_rng_u32(rng), y = tdm_rng_u32(rng);
    uint16_t fraction = (uint16_t)(x & 0x807fu);
    switch (kind) {
    case MODEST: return (uint16_t)(fraction | (120 + y % 10) << 7);
    case ANY: return (uint16_t)x;
    case FINITE: return (uint16_t)(fraction | y % 255 << 7);
    case TINY: return (uint16_t)(fraction | (45 + y % 40) << 7);
    case HUGE_ONES: return (uint16_t)(fraction | (184 + y % 8) << 7);
    case ZEROS:
        if (y % 8 == 0) return (uint16_t)(x & 0x8000u);
        if (y % 8 == 1) return fraction;
        return (uint16_t)(fraction | (62 + (y >> 3) % 6) << 7);
    default: return edges[y % (sizeof(edges) / sizeof(edges[0]))];
    }
}

static void fill_numbers(tdm_tensor *t, uint32_t what, numbers kind)
{
    tdm_rng rng = bench_rng(13, what * NUMBERS_COUNT + (uint32_t)kind);
    for (int64_t i = 0; i < tdm_tensor_elements(t); i++)
        ((uint16_t *)t->data)[i] = number_of(&rng, kind);
}

/* The number of elements with other bits; all NaNs are equal. */
static int64_t count_differences(const float *a, const float *b, int64_t count)
{
    int64_t different = 0;
    for (int64_t i = 0; i < count; i++)
        different += bits_of(a[i]) != bits_of(b[i]) && !(isnan(a[i]) && isnan(b[i]));
    return different;
}

static void check_units(const product *p, numbers kind)
{
    kernel_bench k = bench_of(p);
    kernel_bench_open(&k);
    for (int i = 0; i < 2; i++) fill_numbers(&k.call.in[i], (uint32_t)(p->K * 2 + i), kind);
    int64_t count = p->M * p->N;
    float *right = malloc((size_t)count * sizeof(*right));
    multiply_by_definition(p, k.call.in[0].data, k.call.in[1].data,
                           p->with_bias ? k.call.in[2].data : NULL, right);
    const tdm__bf16_unit *unit;
    for (size_t u = 0; (unit = tdm__bf16_unit_at(u)); u++)
        for (k.threads = 1; k.threads <= 2; k.threads++) {
            CHECK(run_unit(unit, &k));
            int64_t different = count_differences(k.call.out[0].data, right, count);
            if (different > 0)
                fprintf(stderr, "  %s: %lld x %lld x %lld, numbers %d: %lld of %lld differ\n",
                        unit->name, (long long)p->M, (long long)p->N, (long long)p->K, (int)kind,
                        (long long)different, (long long)count);
            CHECK(different == 0);
        }
    free(right);
    kernel_bench_close(&k);
}

/* Every unit, for all kinds of numbers, sizes and transposes. */
static void units_follow_the_definition(void)
{
    static const int64_t rows[] = {1, 2, 3, 5, 6, 31, 33, 40}, cols[] = {1, 7, 16, 17, 32, 45, 70};
    static const int64_t depths[] = {1, 2, 3, 15, 30, 31, 32, 33, 63, 64, 97, 200, 1100};
    const tdm__bf16_unit *unit;
    printf("     units:");
    for (size_t u = 0; (unit = tdm__bf16_unit_at(u)); u++) printf(" %s", unit->name);
    printf("\n");
    int form = 0;
    for (size_t d = 0; d < sizeof(depths) / sizeof(depths[0]); d += IS_SLOW ? 3 : 1)
        for (int kind = 0; kind < NUMBERS_COUNT; kind++, form++) {
            product p = {.M = rows[form % 8],
                         .N = cols[form % 7],
                         .K = depths[d],
                         .trans_a = form & 1,
                         .trans_b = form & 2,
                         .with_bias = form % 3 == 0};
            check_units(&p, (numbers)kind);
        }
    /* A number that is exactly 2^-126, from which a much smaller product is subtracted. */
    check_units(&(product){.M = 64, .N = 64, .K = 32}, EDGE);
    check_units(&(product){.M = 64, .N = 64, .K = 4, .trans_b = true}, EDGE);
}

/* Recorded bits: the same on any CPU, with any compiler. All NaNs are equal. */
static uint64_t hash_of_numbers(const tdm__bf16_unit *unit, numbers kind)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (int form = 0; form < 4; form++) {
        product p = {.M = 37 + form,
                     .N = 50 - form,
                     .K = form == 3 ? 1100 : 41 + 30 * form,
                     .trans_a = form & 1,
                     .trans_b = form & 2};
        kernel_bench k = bench_of(&p);
        kernel_bench_open(&k);
        for (int i = 0; i < 2; i++) fill_numbers(&k.call.in[i], (uint32_t)(2 * form + i), kind);
        CHECK(run_unit(unit, &k));
        const float *c = k.call.out[0].data;
        for (int64_t i = 0; i < p.M * p.N; i++)
            hash = (hash ^ (isnan(c[i]) ? 0x7fc00000u : bits_of(c[i]))) * 0x100000001b3u;
        kernel_bench_close(&k);
    }
    return hash;
}

static void products_have_the_recorded_bits(void)
{
    static const uint64_t recorded[NUMBERS_COUNT] = {
        0x1bbcb48a16001df4, 0x9836cba9725961d7, 0xaa280707a746e63e, 0xcc9baca33038307f,
        0x3a9406069f32f6ba, 0x27191c99875f1bfa, 0x29cd426bea8c4a0d};
    const tdm__bf16_unit *unit;
    for (size_t u = 0; (unit = tdm__bf16_unit_at(u)); u++)
        for (int kind = 0; kind < NUMBERS_COUNT; kind++) {
            uint64_t hash = hash_of_numbers(unit, (numbers)kind);
            if (hash != recorded[kind])
                fprintf(stderr, "  %s: numbers %d: 0x%016llx\n", unit->name, kind,
                        (unsigned long long)hash);
            CHECK(hash == recorded[kind]);
        }
}

/* The bits of a call, by one unit on some number of threads. */
static uint64_t hash_of_unit(const tdm__bf16_unit *unit, kernel_bench *k, int threads)
{
    k->threads = threads;
    CHECK(run_unit(unit, k));
    return kernel_bench_hash(k->call.out, 1);
}

static void check_units_agree(kernel_bench *k)
{
    uint64_t right = hash_of_unit(tdm__bf16_unit_at(0), k, 1);
    const tdm__bf16_unit *unit;
    for (size_t u = 0; (unit = tdm__bf16_unit_at(u)); u++)
        for (int threads = 1; threads <= 3; threads += 2)
            CHECK(hash_of_unit(unit, k, threads) == right);
}

/* Large products, batches, activations, and all convolutions: each unit, on one and three threads. */
static void units_agree(void)
{
    static const product large[] = {
        {.M = 300, .N = 1100, .K = 520, .trans_b = true, .with_bias = true},
        {.M = 70, .N = 600, .K = 2100, .activation = TDM_ACTIVATION_RELU},
        {.M = 45, .N = 33, .K = 1500, .trans_a = true, .activation = TDM_ACTIVATION_GELU},
        {.B = 5, .M = 90, .N = 130, .K = 200, .trans_b = true},
    };
    for (size_t l = IS_SLOW ? 2 : 0; l < sizeof(large) / sizeof(large[0]); l++) {
        kernel_bench k = bench_of(&large[l]);
        open_bf16(&k);
        check_units_agree(&k);
        kernel_bench_close(&k);
    }
    for (size_t c = 0; c < sizeof(convs) / sizeof(convs[0]); c++)
        for (int o = 0; o < 3; o++) {
            bool few = convs[c].groups > 1 || convs[c].C < 32 || convs[c].O < 32;
            kernel_bench k = conv_bench(&convs[c], conv_ops[o]);
            open_bf16(&k);
            if (few)
                CHECK(!run_unit(tdm__bf16_unit_at(0), &k)); /* for `wide`, on every CPU */
            else
                check_units_agree(&k);
            kernel_bench_close(&k);
        }
}

/* Numbers below the normal range count as zero in any mode of the caller. */
static void units_flush_in_every_mode(void)
{
    product p = {.M = 33, .N = 40, .K = 70, .with_bias = true};
    check_units(&p, TINY);
    tdm_kernel_mode before = tdm_kernel_enter(1);
    check_units(&p, TINY);
    kernel_bench k = bench_of(&p);
    kernel_bench_open(&k);
    for (int i = 0; i < 2; i++) fill_numbers(&k.call.in[i], (uint32_t)i, ZEROS);
    uint64_t inside = hash_of_unit(tdm__bf16_unit_at(0), &k, 1);
    tdm_kernel_leave(&before);
    CHECK(hash_of_unit(tdm__bf16_unit_at(0), &k, 1) == inside);
    kernel_bench_close(&k);
}

/* ---- graphs ---------------------------------------------------------------------------------- */

enum { B = 24, C = 40, LAYERS = 3, CLASSES = 7 };

/* Layers as in a transformer's perceptron: each keeps only what products need of its input. */
static tdm_graph *perceptron(tdm_dtype precision, tdm_recompute recompute)
{
    tdm_graph *graph = tdm_graph_create();
    tdm_init init = {.kind = TDM_INIT_NORMAL, .scale = 0.2};
    tdm_error err = {0};
    tdm_graph_precision(graph, precision);
    tdm_value x = tdm_graph_input(graph, "x", TDM_DTYPE_F32, tdm_shape_2(B, C));
    tdm_value classes = tdm_graph_input(graph, "classes", TDM_DTYPE_I32, tdm_shape_1(B));
    for (int i = 0; i < LAYERS; i++) {
        char name[3][16];
        for (int k = 0; k < 3; k++) snprintf(name[k], sizeof(name[k]), "%c%d", "uvg"[k], i);
        tdm_value u = tdm_graph_param(graph, name[0], tdm_shape_2(C, C), init);
        tdm_value v = tdm_graph_param(graph, name[1], tdm_shape_2(C, C), init);
        tdm_value g = tdm_graph_param(graph, name[2], tdm_shape_1(C),
                                      (tdm_init){.kind = TDM_INIT_ONE});
        tdm_graph_block(graph);
        tdm_value y = tdm_graph_rms_norm(graph, x, g, 0);
        tdm_value left = tdm_graph_linear(graph, y, u, TDM_VALUE_NONE, TDM_ACTIVATION_RELU);
        tdm_value right = tdm_graph_linear(graph, y, v, TDM_VALUE_NONE, TDM_ACTIVATION_NONE);
        x = tdm_graph_add(graph, x, tdm_graph_add(graph, left, right));
    }
    tdm_graph_block(graph);
    tdm_value last = tdm_graph_param(graph, "last", tdm_shape_2(CLASSES, C), init);
    tdm_value logits = tdm_graph_linear(graph, x, last, TDM_VALUE_NONE, TDM_ACTIVATION_NONE);
    tdm_value loss = tdm_graph_cross_entropy(graph, logits, classes, 1.0 / B);
    tdm_graph_output(graph, "loss", loss);
    CHECK_INT(tdm_graph_backward(graph, loss, &err), TDM_OK);
    CHECK_INT(tdm_graph_recompute(graph, recompute, &err), TDM_OK);
    return graph;
}

/* Runs it once and copies the gradients to `grads`. Returns the loss. */
static float run_graph(tdm_graph *graph, const char *backend, float *grads)
{
    bench b;
    float loss = NAN;
    tdm_plan_options options = {.backend = backend};
    if (bench_open(&b, graph, &options)) {
        bench_fill_params(&b, 1);
        bench_fill(&b, 2, CLASSES);
        tdm_plan_run(b.plan, &(tdm_step_key){0});
        loss = *(float *)tdm_plan_output(b.plan, "loss").data;
        memcpy(grads, b.grads, b.grad_bytes);
    }
    bench_close(&b);
    return loss;
}

static int count_ops(const tdm_graph *graph, const char *op, bool backward)
{
    int count = 0;
    for (size_t i = 0; i < tdm_graph_node_count(graph); i++) {
        tdm_node_info node = tdm_graph_node_at(graph, i);
        count += strcmp(node.op, op) == 0 && node.backward == backward;
    }
    return count;
}

static double distance(const float *a, const float *b, size_t count)
{
    double apart = 0, size = 0;
    for (size_t i = 0; i < count; i++) {
        apart += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)b[i] * (double)b[i];
    }
    return sqrt(apart / size);
}

static void each_value_is_rounded_once(void)
{
    tdm_graph *graph = perceptron(TDM_DTYPE_BF16, TDM_RECOMPUTE_NONE);
    CHECK_INT(count_ops(graph, "cast", false), 3 * LAYERS + 2); /* y, u, v; x and the last one */
    CHECK_INT(count_ops(graph, "cast", true), 2 * LAYERS + 1);  /* one for each product's dy */
    CHECK_INT(count_ops(graph, "matmul", true), 2 * (2 * LAYERS + 1));
    tdm_graph_destroy(graph);
    graph = perceptron(TDM_DTYPE_F32, TDM_RECOMPUTE_NONE);
    CHECK_INT(count_ops(graph, "cast", false) + count_ops(graph, "cast", true), 0);
    tdm_graph_destroy(graph);
}

static void gradients_are_near_those_of_f32(void)
{
    tdm_graph *narrow = perceptron(TDM_DTYPE_BF16, TDM_RECOMPUTE_NONE);
    tdm_graph *full = perceptron(TDM_DTYPE_F32, TDM_RECOMPUTE_NONE);
    size_t count = tdm_graph_grad_extent(full);
    CHECK_INT(tdm_graph_grad_extent(narrow), count);
    float *a = calloc(count, sizeof(*a)), *b = calloc(count, sizeof(*b));
    double right = (double)run_graph(full, NULL, b);
    for (int by_ref = 0; by_ref < 2; by_ref++) {
        double loss = (double)run_graph(narrow, by_ref ? "ref" : NULL, a);
        double apart = distance(a, b, count);
        printf("     %s: loss %.6f for %.6f, gradients off by %.2g\n", by_ref ? "ref" : "best",
               loss, right, apart);
        CHECK(fabs(loss - right) < 0.01 * right && loss != right);
        CHECK(apart < 0.03 && apart > 1e-4);
    }
    free(a);
    free(b);
    tdm_graph_destroy(narrow);
    tdm_graph_destroy(full);
}

static void recompute_keeps_the_bits(void)
{
    tdm_graph *plain = perceptron(TDM_DTYPE_BF16, TDM_RECOMPUTE_NONE);
    size_t count = tdm_graph_grad_extent(plain);
    float *a = calloc(count, sizeof(*a)), *b = calloc(count, sizeof(*b));
    float loss = run_graph(plain, NULL, a);
    for (int kind = TDM_RECOMPUTE_BLOCKS; kind <= TDM_RECOMPUTE_FULL; kind++) {
        tdm_graph *again = perceptron(TDM_DTYPE_BF16, (tdm_recompute)kind);
        CHECK(count_ops(again, "cast", true) > count_ops(plain, "cast", true));
        CHECK(run_graph(again, NULL, b) == loss);
        CHECK(memcmp(a, b, count * sizeof(*a)) == 0);
        tdm_graph_destroy(again);
    }
    free(a);
    free(b);
    tdm_graph_destroy(plain);
}

enum { ROWS = 4096, WIDTH = 16 };

/* A plan of a chain of linear layers and their gradients. */
static tdm_plan *chain(tdm_dtype precision, int layers, tdm_graph **out)
{
    tdm_graph *graph = tdm_graph_create();
    tdm_init init = {.kind = TDM_INIT_NORMAL, .scale = 0.2};
    tdm_error err = {0};
    tdm_graph_precision(graph, precision);
    tdm_value x = tdm_graph_input(graph, "x", TDM_DTYPE_F32, tdm_shape_2(ROWS, WIDTH));
    for (int i = 0; i < layers; i++) {
        char name[16];
        snprintf(name, sizeof(name), "w%d", i);
        tdm_value w = tdm_graph_param(graph, name, tdm_shape_2(WIDTH, WIDTH), init);
        x = tdm_graph_linear(graph, x, w, TDM_VALUE_NONE, TDM_ACTIVATION_NONE);
    }
    tdm_value loss = tdm_graph_penalty(graph, x, 2, 1);
    tdm_graph_output(graph, "loss", loss);
    CHECK_INT(tdm_graph_backward(graph, loss, &err), TDM_OK);
    tdm_plan *plan = NULL;
    CHECK_INT(tdm_plan_create(graph, NULL, &plan, &err), TDM_OK);
    *out = graph;
    return plan;
}

/* The additional bytes of the arena for each additional layer. */
static size_t bytes_of_a_layer(tdm_dtype precision)
{
    size_t bytes[2];
    for (int i = 0; i < 2; i++) {
        tdm_graph *graph;
        tdm_plan *plan = chain(precision, 6 + 2 * i, &graph);
        bytes[i] = tdm_plan_arena_bytes(plan);
        tdm_plan_destroy(plan);
        tdm_graph_destroy(graph);
    }
    return (bytes[1] - bytes[0]) / 2;
}

/* An f32 result is not kept after it was rounded, if it has no other use. */
static void rounded_inputs_are_kept_in_place_of_their_originals(void)
{
    size_t value = (size_t)ROWS * WIDTH * sizeof(float), weight = WIDTH * WIDTH * 2;
    CHECK_INT(bytes_of_a_layer(TDM_DTYPE_F32), value);
    CHECK_INT(bytes_of_a_layer(TDM_DTYPE_BF16), value / 2 + weight);
}

/* The result of a hidden layer is kept once, in bf16: the gradient of its ReLU uses that. Rounding weights
 * again in the backward pass keeps the bits, and keeps no rounded weights in between. */
static void what_is_kept_can_be_less(void)
{
    tdm_graph *plain = tdm_graph_create(), *again = tdm_graph_create();
    tdm_graph *graphs[2] = {plain, again};
    tdm_init init = {.kind = TDM_INIT_NORMAL, .scale = 0.2};
    tdm_error err = {0};
    for (int g = 0; g < 2; g++) {
        tdm_graph *graph = graphs[g];
        tdm_graph_precision(graph, TDM_DTYPE_BF16);
        if (g == 1) tdm_graph_round_again(graph);
        tdm_value x = tdm_graph_input(graph, "x", TDM_DTYPE_F32, tdm_shape_2(B, C));
        for (int i = 0; i < LAYERS; i++) {
            char name[16];
            snprintf(name, sizeof(name), "w%d", i);
            tdm_value w = tdm_graph_param(graph, name, tdm_shape_2(C, C), init);
            x = tdm_graph_linear(graph, x, w, TDM_VALUE_NONE, TDM_ACTIVATION_RELU);
        }
        tdm_value loss = tdm_graph_penalty(graph, x, 2, 1);
        tdm_graph_output(graph, "loss", loss);
        CHECK_INT(tdm_graph_backward(graph, loss, &err), TDM_OK);
        int by_bf16 = 0;
        for (size_t n = 0; n < graph->node_count; n++)
            by_bf16 += graph->nodes[n].op == TDM_OP_RELU_GRAD &&
                       graph->values[graph->nodes[n].in[1]].dtype == TDM_DTYPE_BF16;
        CHECK_INT(by_bf16, LAYERS - 1); /* the last one has no bf16 copy */
    }
    /* d_x of all layers but the first reads the weights; x needs no gradient. */
    CHECK_INT(count_ops(again, "cast", true), count_ops(plain, "cast", true) + LAYERS - 1);
    size_t count = tdm_graph_grad_extent(plain);
    for (int by_ref = 0; by_ref < 2; by_ref++) {
        float *a = calloc(count, sizeof(*a)), *b = calloc(count, sizeof(*b));
        float one = run_graph(plain, by_ref ? "ref" : NULL, a);
        CHECK(run_graph(again, by_ref ? "ref" : NULL, b) == one && one > 0);
        CHECK(memcmp(a, b, count * sizeof(*a)) == 0);
        free(a);
        free(b);
    }
    tdm_graph_destroy(plain);
    tdm_graph_destroy(again);
}

/* From y in bf16 as from y. */
static void relu_goes_by_signs(void)
{
    for (int64_t count = 1; count < 70; count += 3) {
        kernel_bench b = {.op = TDM_OP_RELU_GRAD};
        b.call.in[0] = tensor_of(TDM_DTYPE_F32, tdm_shape_1(count));
        b.call.in[1] = tensor_of(TDM_DTYPE_BF16, tdm_shape_1(count));
        b.call.out[0] = tensor_of(TDM_DTYPE_F32, tdm_shape_1(count));
        open_bf16(&b);
        const tdm_kernel_backend_ops *ops;
        for (size_t l = 0; (ops = l == 0 ? kernel_bench_ref() : kernel_bench_cpu(l - 1)); l++) {
            kernel_bench_run(&b, ops);
            const float *dy = b.call.in[0].data, *dx = b.call.out[0].data;
            const uint16_t *y = b.call.in[1].data;
            for (int64_t i = 0; i < count; i++)
                CHECK(dx[i] == (bf16_value(y[i]) > 0 ? dy[i] : 0.0f));
        }
        kernel_bench_close(&b);
    }
}

/* Weights are read only by their roundings, and their gradients are complete when they are computed. */
static void plans_list_the_parameters_of_a_step(void)
{
    tdm_graph *graph;
    tdm_plan *plan = chain(TDM_DTYPE_BF16, LAYERS, &graph);
    size_t reads[TDM_MAX_PLAN_READS], read_count = 0;
    for (size_t s = 0; s < tdm_plan_step_count(plan); s++)
        read_count += tdm_plan_reads_at(plan, s, reads);
    CHECK_INT(read_count, LAYERS);
    for (size_t p = 0; p < LAYERS; p++)
        CHECK(tdm_plan_grad_step(plan, p) < tdm_plan_step_count(plan));
    tdm_plan_destroy(plan);
    tdm_graph_destroy(graph);
}

static void other_precisions_are_refused(void)
{
    tdm_graph *graph = tdm_graph_create();
    tdm_error err = {0};
    tdm_graph_precision(graph, TDM_DTYPE_F16);
    CHECK_INT(tdm_graph_check(graph, &err), TDM_ERR_UNSUPPORTED);
    CHECK_HAS(err.message, "f16");
    tdm_graph_destroy(graph);
}

static const check_test tests[] = {
    CHECK_TEST(rounding_is_to_the_nearest),
    CHECK_TEST(rounding_does_not_depend_on_position),
    CHECK_TEST(products_are_sums_of_products),
    CHECK_TEST(large_products_are_right_on_all_threads),
    CHECK_TEST(bad_numbers_pass),
    CHECK_TEST(convolutions_agree_with_ref),
    CHECK_TEST(units_follow_the_definition),
    CHECK_TEST(products_have_the_recorded_bits),
    CHECK_TEST(units_agree),
    CHECK_TEST(units_flush_in_every_mode),
    CHECK_TEST(each_value_is_rounded_once),
    CHECK_TEST(gradients_are_near_those_of_f32),
    CHECK_TEST(recompute_keeps_the_bits),
    CHECK_TEST(rounded_inputs_are_kept_in_place_of_their_originals),
    CHECK_TEST(what_is_kept_can_be_less),
    CHECK_TEST(relu_goes_by_signs),
    CHECK_TEST(plans_list_the_parameters_of_a_step),
    CHECK_TEST(other_precisions_are_refused),
};
CHECK_MAIN(tests)
