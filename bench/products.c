/*
 * products.c: the rate of matrix products alone: our portable kernel, oneDNN and OpenBLAS on one thread, beside
 * the rate at which a core can do fused multiply-adds at all.
 *
 * Each shape of a GPT's linear layers is taken three times, as a training step needs it: forward (x w^T), the
 * gradient of the input (dy w) and that of the weights (dy^T x). Our kernel and oneDNN's come from the table that
 * a plan chooses from, so packing of operands is part of the time; OpenBLAS is opened at run time. All take turns,
 * the peak among them, and of each the fastest time counts: a machine that does something else for a while
 * slows down any of them. The peak works in registers alone, at the vector width of the level that the kernels use
 * (TANDEM_ISA lowers all four).
 *
 *     products [--json] [--quick] [--seconds S] [--only TEXT]    (shapes with TEXT in their names)
 *
 * One thread. bench/compute runs it and holds its figures to bars.
 */
#include "tensor/kernel.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { ALIGNMENT = 64, PEAK_ROUNDS = 200000, MIN_ROUNDS = 3, NAME_BYTES = 96 };

typedef enum contender { OURS, ONEDNN, OPENBLAS, CONTENDERS } contender;
static const char *const contender_names[CONTENDERS] = {"ours", "onednn", "openblas"};

typedef enum variant { FORWARD, GRADIENT_X, GRADIENT_W, VARIANTS } variant;
static const char *const variant_names[VARIANTS] = {"x w^T", "dy w", "dy^T x"};

typedef struct layer {
    const char *model, *name;
    int64_t M, N, K; /* rows of the batch, outputs, inputs */
} layer;

/* Batches of 6 windows of 256 tokens, and of 4 of 64: those of bench/jobs. */
static const layer layers[] = {
    {"GPT 10.8 M", "attend", 1536, 1152, 384},  {"GPT 10.8 M", "project", 1536, 384, 384},
    {"GPT 10.8 M", "grow", 1536, 1536, 384},    {"GPT 10.8 M", "shrink", 1536, 384, 1536},
    {"GPT-2 124 M", "attend", 256, 2304, 768},  {"GPT-2 124 M", "project", 256, 768, 768},
    {"GPT-2 124 M", "grow", 256, 3072, 768},    {"GPT-2 124 M", "shrink", 256, 768, 3072},
    {"GPT-2 124 M", "logits", 256, 50257, 768},
};
enum { LAYERS = sizeof(layers) / sizeof(layers[0]) };

/* ---- the peak of a core ------------------------------------------------------------------------- */

/* Each gives the floating-point operations of a round; what it computes is kept from the optimiser by its
 * return through *sink. Twelve chains or more hide the latency of both units. */
#if defined(__x86_64__)
__attribute__((target("avx512f"))) static double peak_512(int64_t rounds, float *sink)
{
    enum { CHAINS = 24, WIDTH = 16 };
    __m512 sums[CHAINS], factor = _mm512_set1_ps(0.999f), term = _mm512_set1_ps(0.001f);
    for (int c = 0; c < CHAINS; c++) sums[c] = _mm512_set1_ps((float)c);
    for (int64_t i = 0; i < rounds; i++)
#pragma GCC unroll 24
        for (int c = 0; c < CHAINS; c++) sums[c] = _mm512_fmadd_ps(sums[c], factor, term);
    for (int c = 1; c < CHAINS; c++) sums[0] = _mm512_add_ps(sums[0], sums[c]);
    *sink += _mm512_cvtss_f32(sums[0]);
    return 2.0 * CHAINS * WIDTH;
}

__attribute__((target("avx2,fma"))) static double peak_256(int64_t rounds, float *sink)
{
    enum { CHAINS = 12, WIDTH = 8 };
    __m256 sums[CHAINS], factor = _mm256_set1_ps(0.999f), term = _mm256_set1_ps(0.001f);
    for (int c = 0; c < CHAINS; c++) sums[c] = _mm256_set1_ps((float)c);
    for (int64_t i = 0; i < rounds; i++)
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++) sums[c] = _mm256_fmadd_ps(sums[c], factor, term);
    for (int c = 1; c < CHAINS; c++) sums[0] = _mm256_add_ps(sums[0], sums[c]);
    *sink += _mm256_cvtss_f32(sums[0]);
    return 2.0 * CHAINS * WIDTH;
}

/* Without fused multiply-add: products and sums apart. */
static double peak_128(int64_t rounds, float *sink)
{
    enum { CHAINS = 12, WIDTH = 4 };
    __m128 sums[CHAINS], factor = _mm_set1_ps(0.999f), term = _mm_set1_ps(0.001f);
    for (int c = 0; c < CHAINS; c++) sums[c] = _mm_set1_ps((float)c);
    for (int64_t i = 0; i < rounds; i++)
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++) sums[c] = _mm_add_ps(_mm_mul_ps(sums[c], factor), term);
    for (int c = 1; c < CHAINS; c++) sums[0] = _mm_add_ps(sums[0], sums[c]);
    *sink += _mm_cvtss_f32(sums[0]);
    return 2.0 * CHAINS * WIDTH;
}

static double peak_round(int64_t rounds, float *sink)
{
    if (tdm_kernel_level() >= 4) return peak_512(rounds, sink);
    return tdm_kernel_level() == 3 ? peak_256(rounds, sink) : peak_128(rounds, sink);
}
#elif defined(__aarch64__)
static double peak_round(int64_t rounds, float *sink)
{
    enum { CHAINS = 24, WIDTH = 4 };
    float32x4_t sums[CHAINS], factor = vdupq_n_f32(0.999f), term = vdupq_n_f32(0.001f);
    for (int c = 0; c < CHAINS; c++) sums[c] = vdupq_n_f32((float)c);
    for (int64_t i = 0; i < rounds; i++)
#pragma GCC unroll 24
        for (int c = 0; c < CHAINS; c++) sums[c] = vfmaq_f32(term, sums[c], factor);
    for (int c = 1; c < CHAINS; c++) sums[0] = vaddq_f32(sums[0], sums[c]);
    *sink += vgetq_lane_f32(sums[0], 0);
    return 2.0 * CHAINS * WIDTH;
}
#else
static double peak_round(int64_t rounds, float *sink)
{
    enum { CHAINS = 12 };
    float sums[CHAINS];
    for (int c = 0; c < CHAINS; c++) sums[c] = (float)c;
    for (int64_t i = 0; i < rounds; i++)
        for (int c = 0; c < CHAINS; c++) sums[c] = sums[c] * 0.999f + 0.001f;
    for (int c = 0; c < CHAINS; c++) *sink += sums[c];
    return 2.0 * CHAINS;
}
#endif

/* Of this thread alone, which does all the work: time that other processes take does not count. */
static double thread_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* FLOP/s; the caller keeps the highest. */
static double peak_measure(void)
{
    static volatile float kept;
    float sink = 0;
    double begin_s = thread_s();
    double flop = peak_round(PEAK_ROUNDS, &sink) * PEAK_ROUNDS,
           rate = flop / (thread_s() - begin_s);
    kept = sink;
    (void)kept;
    return rate;
}

/* ---- products ----------------------------------------------------------------------------------- */

/* CBLAS, as far as it is needed; numbers are those of the standard interface. */
enum { CBLAS_ROW_MAJOR = 101, CBLAS_PLAIN = 111, CBLAS_TRANSPOSED = 112 };
typedef void (*sgemm_fn)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                         const float *a, int lda, const float *b, int ldb, float beta, float *c,
                         int ldc);

enum { BACKENDS_MAX = 16 };

typedef struct products {
    sgemm_fn sgemm;             /* NULL: there is no OpenBLAS */
    char openblas[NAME_BYTES];  /* what it says about itself */
    const char *ours;           /* the name of the backend that did the last product of ours */
    void *opened[BACKENDS_MAX]; /* what the kernels of a backend share */
} products;

/* One product: c [m, n] = op(a) op(b), summed over k. */
typedef struct product {
    int64_t m, n, k;
    bool trans_a, trans_b;
    tdm_kernel_call call; /* shapes and data */
    double best_s[CONTENDERS];
} product;

static void die(const char *what, const char *why)
{
    fprintf(stderr, "products: %s: %s\n", what, why);
    exit(1);
}

static void *take(size_t bytes)
{
    void *block = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT);
    if (!block) die("memory", "there is not enough");
    return block;
}

static void backends_open(products *p)
{
    tdm_error err;
    for (size_t i = 0; i < tdm_kernel_backend_count() && i < BACKENDS_MAX; i++) {
        const tdm_kernel_backend_ops *ops = tdm_kernel_backend_at(i);
        if (ops->open && ops->open(&p->opened[i], &err) != TDM_OK) die(ops->name, err.message);
    }
}

static void backends_close(products *p)
{
    for (size_t i = 0; i < tdm_kernel_backend_count() && i < BACKENDS_MAX; i++)
        if (tdm_kernel_backend_at(i)->close) tdm_kernel_backend_at(i)->close(p->opened[i]);
}

/* A function by its name; C has no cast from an object's address. */
static void find_function(void *library, const char *name, void *out)
{
    void *address = dlsym(library, name);
    memcpy(out, &address, sizeof(address));
}

static void openblas_open(products *p)
{
    void (*set_threads)(int) = NULL;
    char *(*config)(void) = NULL;
    /* It chooses its kernels when it is opened, and takes those of the year 2004 for a CPU that it does not
     * know, so it is told by the level. */
    const char *type = tdm_kernel_level() >= 4   ? "SkylakeX"
                       : tdm_kernel_level() == 3 ? "Haswell"
                       : tdm_kernel_level() == 2 ? "Nehalem"
                                                 : NULL;
    if (type) setenv("OPENBLAS_CORETYPE", type, 0);
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    void *library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    snprintf(p->openblas, sizeof(p->openblas), "none");
    if (!library) return;
    find_function(library, "cblas_sgemm", &p->sgemm);
    find_function(library, "openblas_set_num_threads", &set_threads);
    find_function(library, "openblas_get_config", &config);
    if (set_threads) set_threads(1);
    if (config) snprintf(p->openblas, sizeof(p->openblas), "%.90s", config());
}

static void product_init(product *p, const layer *l, variant v)
{
    bool forward = v == FORWARD, of_w = v == GRADIENT_W;
    *p = (product){.m = of_w ? l->N : l->M,
                   .n = forward ? l->N : l->K,
                   .k = forward ? l->K
                        : of_w  ? l->M
                                : l->N,
                   .trans_a = of_w,
                   .trans_b = forward};
    for (int i = 0; i < CONTENDERS; i++) p->best_s[i] = 1e30;
    tdm_shape a = {.rank = 2, .dim = {p->m, p->k}}, b = {.rank = 2, .dim = {p->k, p->n}};
    if (p->trans_a) a = (tdm_shape){.rank = 2, .dim = {p->k, p->m}};
    if (p->trans_b) b = (tdm_shape){.rank = 2, .dim = {p->n, p->k}};
    tdm_kernel_call *call = &p->call;
    call->in[0] = (tdm_tensor){.dtype = TDM_DTYPE_F32, .shape = a};
    call->in[1] = (tdm_tensor){.dtype = TDM_DTYPE_F32, .shape = b};
    call->out[0] = (tdm_tensor){.dtype = TDM_DTYPE_F32, .shape = {.rank = 2, .dim = {p->m, p->n}}};
    call->attrs.trans_a = p->trans_a;
    call->attrs.trans_b = p->trans_b;
    for (int i = 0; i < 2; i++) {
        tdm_rng_address address = {.stream = TDM_RNG_STREAM_USER, .sub_stream = (uint32_t)i};
        call->in[i].data = take(tdm_tensor_bytes(&call->in[i]));
        tdm_kernel_uniform(address, 1, 0, call->in[i].data,
                           (size_t)tdm_tensor_elements(&call->in[i]));
    }
    call->out[0].data = take(tdm_tensor_bytes(&call->out[0]));
    memset(call->out[0].data, 0, tdm_tensor_bytes(&call->out[0]));
}

static void product_release(product *p)
{
    free(p->call.in[0].data);
    free(p->call.in[1].data);
    free(p->call.out[0].data);
}

static double product_flop(const product *p)
{
    return 2.0 * (double)p->m * (double)p->n * (double)p->k;
}

/* ---- one contender ------------------------------------------------------------------------------ */

typedef struct runner {
    const products *all;
    product *product;
    contender who;
    const tdm_kernel *kernel; /* and what it shares with others of its backend */
    void *backend;
    tdm_kernel_call call; /* prepared */
} runner;

/* Prepares the product as a plan does, without data. False: this backend does not do it. */
static bool runner_prepare(runner *r, size_t backend)
{
    const tdm_kernel_backend_ops *ops = tdm_kernel_backend_at(backend);
    const tdm_kernel *kernel = tdm_kernel_find(ops, TDM_OP_MATMUL, TDM_DTYPE_F32);
    tdm_error err = {0};
    tdm_kernel_call call = r->product->call;
    if (!kernel) return false;
    for (int i = 0; i < 2; i++) call.in[i].data = NULL;
    call.out[0].data = NULL;
    if (kernel->prepare && kernel->prepare(r->all->opened[backend], &call, &err) != TDM_OK) {
        if (err.status != TDM_ERR_UNSUPPORTED) die(ops->name, err.message);
        return false;
    }
    for (int i = 0; i < 2; i++) call.in[i].data = r->product->call.in[i].data;
    call.out[0].data = r->product->call.out[0].data;
    if (call.scratch_bytes > 0) {
        call.scratch = take(call.scratch_bytes);
        memset(call.scratch, 0, call.scratch_bytes);
    }
    r->kernel = kernel;
    r->backend = r->all->opened[backend];
    r->call = call;
    return true;
}

/* Ours is what a portable plan takes: the first backend that does it and is not a vendor's. False: this
 * contender is not there. */
static bool runner_init(runner *r, products *all, product *p, contender who)
{
    *r = (runner){.all = all, .product = p, .who = who};
    if (who == OPENBLAS) return all->sgemm != NULL;
    for (size_t i = 0; i < tdm_kernel_backend_count() && i < BACKENDS_MAX; i++) {
        const tdm_kernel_backend_ops *ops = tdm_kernel_backend_at(i);
        bool is_meant = who == OURS ? !ops->vendor : strcmp(ops->name, "onednn") == 0;
        if (!is_meant || !runner_prepare(r, i)) continue;
        if (who == OURS) all->ours = ops->name;
        return true;
    }
    return false;
}

static void runner_release(runner *r)
{
    free(r->call.scratch);
    if (r->kernel && r->kernel->release) r->kernel->release(&r->call);
}

static void runner_run(const runner *r)
{
    const product *p = r->product;
    if (r->who != OPENBLAS) {
        const tdm_step_key key = {0};
        r->kernel->run(r->backend, &r->call, &key);
        return;
    }
    int m = (int)p->m, n = (int)p->n, k = (int)p->k;
    r->all->sgemm(CBLAS_ROW_MAJOR, p->trans_a ? CBLAS_TRANSPOSED : CBLAS_PLAIN,
                  p->trans_b ? CBLAS_TRANSPOSED : CBLAS_PLAIN, m, n, k, 1, p->call.in[0].data,
                  p->trans_a ? m : k, p->call.in[1].data, p->trans_b ? k : n, 0,
                  p->call.out[0].data, n);
}

/* Whether contenders agree: a wrong product is fast. Compares some sums in double precision. */
static void runner_check(const runner *r)
{
    const product *p = r->product;
    const float *a = p->call.in[0].data, *b = p->call.in[1].data, *c = p->call.out[0].data;
    memset(p->call.out[0].data, 0xff, tdm_tensor_bytes(&p->call.out[0]));
    runner_run(r);
    for (int64_t t = 0; t < 64; t++) {
        int64_t i = t * 7919 % p->m, j = t * 104729 % p->n;
        double sum = 0, size = 0;
        for (int64_t k = 0; k < p->k; k++) {
            double x = (double)(p->trans_a ? a[k * p->m + i] : a[i * p->k + k]);
            double y = (double)(p->trans_b ? b[j * p->k + k] : b[k * p->n + j]);
            sum += x * y;
            size += x * y < 0 ? -x * y : x * y;
        }
        double off = sum - (double)c[i * p->n + j];
        if (!((off < 0 ? -off : off) <= 1e-4 * size))
            die(contender_names[r->who], "its product is wrong");
    }
}

/* ---- the whole ---------------------------------------------------------------------------------- */

typedef struct settings {
    bool json;
    double seconds;   /* for a product */
    const char *only; /* names with this text in them; NULL: all */
} settings;

static void measure(products *all, product *p, const settings *s, double *peak)
{
    runner runners[CONTENDERS];
    bool runs[CONTENDERS];
    for (int i = 0; i < CONTENDERS; i++) {
        runs[i] = runner_init(&runners[i], all, p, (contender)i);
        if (runs[i]) runner_check(&runners[i]);
    }
    double until_s = tdm_clock_s() + s->seconds;
    for (int round = 0; round < MIN_ROUNDS || tdm_clock_s() < until_s; round++) {
        double rate = peak_measure();
        if (rate > *peak) *peak = rate;
        for (int i = 0; i < CONTENDERS; i++) {
            if (!runs[i]) continue;
            for (int again = 0; again < 2;
                 again++) { /* the first brings its own data into the caches */
                double begin_s = thread_s();
                runner_run(&runners[i]);
                double took_s = thread_s() - begin_s;
                if (took_s < p->best_s[i]) p->best_s[i] = took_s;
            }
        }
    }
    for (int i = 0; i < CONTENDERS; i++) runner_release(&runners[i]);
}

static void print_rate(const product *p, contender who, bool json)
{
    bool has = p->best_s[who] < 1e29;
    double rate = product_flop(p) / p->best_s[who] / 1e9;
    if (json && has)
        printf(",\"%s\":%.2f", contender_names[who], rate);
    else if (json)
        printf(",\"%s\":null", contender_names[who]);
    else if (has)
        printf(" %9.1f", rate);
    else
        printf(" %9s", "-");
}

static void print_row(const char *name, const product *p, bool first, bool json)
{
    if (json)
        printf("%s{\"name\":\"%s\",\"m\":%lld,\"n\":%lld,\"k\":%lld", first ? "" : ",", name,
               (long long)p->m, (long long)p->n, (long long)p->k);
    else
        printf("%-40s", name);
    for (int i = 0; i < CONTENDERS; i++) print_rate(p, (contender)i, json);
    printf(json ? "}" : "\n");
    fflush(stdout);
}

static void read_settings(int argc, char **argv, settings *out)
{
    *out = (settings){.seconds = 1};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            out->json = true;
        else if (strcmp(argv[i], "--quick") == 0)
            out->seconds = 0;
        else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
            out->seconds = strtod(argv[++i], NULL);
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            out->only = argv[++i];
        else
            die(argv[i], "usage: products [--json] [--quick] [--seconds S] [--only TEXT]");
    }
}

int main(int argc, char **argv)
{
    settings s;
    products all = {.ours = "none"};
    double peak = 0;
    read_settings(argc, argv, &s);
    backends_open(&all);
    openblas_open(&all);
    tdm_kernel_mode before = tdm_kernel_enter(1);
    for (int i = 0; i < 20; i++) { /* until the core has its frequency */
        double rate = peak_measure();
        if (rate > peak) peak = rate;
    }
    if (s.json)
        printf("{\"level\":%d,\"openblas\":\"%s\",\"rows\":[", tdm_kernel_level(), all.openblas);
    else
        printf("level %d; %s\n%-40s %9s %9s %9s  GFLOP/s, 1 thread\n", tdm_kernel_level(),
               all.openblas, "", contender_names[OURS], contender_names[ONEDNN],
               contender_names[OPENBLAS]);
    int shown = 0;
    for (int i = 0; i < LAYERS * VARIANTS; i++) {
        const layer *l = &layers[i / VARIANTS];
        variant v = (variant)(i % VARIANTS);
        char name[NAME_BYTES];
        snprintf(name, sizeof(name), "%s %s, %s", l->model, l->name, variant_names[v]);
        if (s.only && !strstr(name, s.only)) continue;
        product p;
        product_init(&p, l, v);
        measure(&all, &p, &s, &peak);
        print_row(name, &p, shown++ == 0, s.json);
        product_release(&p);
    }
    tdm_kernel_leave(&before);
    backends_close(&all);
    if (s.json)
        printf("],\"backend\":\"%s\",\"peak\":%.2f}\n", all.ours, peak / 1e9);
    else
        printf("%-40s %9.1f\nours is the backend '%s'\n", "fused multiply-adds in registers",
               peak / 1e9, all.ours);
    return 0;
}
