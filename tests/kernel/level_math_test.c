/*
 * level_math_test.c: the vector functions have the same bits at every level that this CPU has, with and without
 * flush-to-zero, and vf_fma is the exact fused multiply-add. All NaNs are equal. The functions are tested on a
 * dense sample of all floats; `kernel_level_math all` tests all 2^32.
 */
#include "base/base.h"
#include "kernel/vec_math_level.h"

#include "check.h"
#include "tensor/kernels/backends.h"

#include <float.h>
#include <stdlib.h>

enum { CHUNK = 4096, SAMPLE_STRIDE = 3989 };

static uint32_t stride = SAMPLE_STRIDE;

typedef struct level {
    int number;
    const vec_math *math;
} level;

static const level levels[] = {
#if defined(__x86_64__)
    {2, &vec_math_2},
    {3, &vec_math_3},
    {4, &vec_math_4},
#else
    {0, &vec_math_0},
#endif
};
enum { LEVEL_COUNT = sizeof(levels) / sizeof(levels[0]) };

static int levels_here(void)
{
    int count = 0;
    while (count < LEVEL_COUNT && levels[count].number <= tdm_kernel_cpu_level()) count++;
    return count;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Not by comparing floats: subnormal ones may count as zero here. */
static bool is_nan(uint32_t bits)
{
    return (bits & 0x7fffffffu) > 0x7f800000u;
}

/* Counts as one check; reports the first few differences. */
static void check_same(const char *what, int number, const float *in, const float *got,
                       const float *expected, int count)
{
    int apart = 0;
    for (int i = 0; i < count; i++) {
        uint32_t a = bits_of(got[i]), b = bits_of(expected[i]);
        if (a == b || (is_nan(a) && is_nan(b))) continue;
        if (apart++ < 2)
            fprintf(stderr, "%s of %08x at level %d: %08x, not %08x\n", what, bits_of(in[i]),
                    number, a, b);
    }
    CHECK(apart == 0);
}

/* ---- functions of one number ----------------------------------------------------------------- */

typedef struct function {
    const char *name;
    size_t offset; /* in vec_math */
} function;

#define FUNCTION(name)                                                                             \
    {                                                                                              \
#name, offsetof(vec_math, name)                                                            \
    }
static const function functions[] = {
    FUNCTION(exp),        FUNCTION(log),       FUNCTION(tanh),
    FUNCTION(erf),        FUNCTION(sigmoid),   FUNCTION(gelu),
    FUNCTION(gelu_slope), FUNCTION(gelu_tanh), FUNCTION(gelu_tanh_slope),
    FUNCTION(silu),       FUNCTION(silu_slope)};
enum { FUNCTION_COUNT = sizeof(functions) / sizeof(functions[0]) };

static vec_math_fn function_at(const vec_math *math, int index)
{
    vec_math_fn fn;
    memcpy(&fn, (const char *)math + functions[index].offset, sizeof(fn));
    return fn;
}

static void try_numbers(const float *x, int count)
{
    float expected[CHUNK], got[CHUNK];
    for (int f = 0; f < FUNCTION_COUNT; f++) {
        function_at(levels[0].math, f)(x, expected, count);
        for (int l = 1; l < levels_here(); l++) {
            function_at(levels[l].math, f)(x, got, count);
            check_same(functions[f].name, levels[l].number, x, got, expected, count);
        }
    }
}

/* Every stride-th float, and all numbers near those where a formula changes. */
static void try_everywhere(void)
{
    static const float corners[] = {0,     FLT_MIN, FLT_MAX, INFINITY,  0.625f,  0.927734375f,
                                    87.0f, 87.336f, 88.722f, 89.0f,     103.97f, 104.0f,
                                    16.0f, 1.0f,    0.5f,    0x1p-149f, 9.0f,    17.0f};
    float x[CHUNK];
    int used = 0;
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += stride) {
        x[used++] = from_bits((uint32_t)bits);
        if (used < CHUNK && bits + stride <= UINT32_MAX) continue;
        try_numbers(x, used);
        used = 0;
    }
    for (size_t c = 0; c < sizeof(corners) / sizeof(corners[0]); c++)
        for (uint32_t sign = 0; sign < 2; sign++) {
            for (int i = 0; i < CHUNK; i++)
                x[i] = from_bits(((bits_of(corners[c]) + (uint32_t)i - CHUNK / 2) & 0x7fffffffu) |
                                 sign << 31);
            try_numbers(x, CHUNK);
        }
}

static void functions_agree(void)
{
    try_everywhere();
}

static void functions_agree_when_flushing(void)
{
    tdm_kernel_mode before = tdm_kernel_enter(1);
    try_everywhere();
    tdm_kernel_leave(&before);
}

/* ---- of two and three ------------------------------------------------------------------------ */

static const float specials[] = {0.0f,     -0.0f,     1.0f,       -1.0f,         FLT_MIN,
                                 -FLT_MIN, FLT_MAX,   -FLT_MAX,   INFINITY,      -INFINITY,
                                 NAN,      0x1p-149f, -0x1p-149f, 0x1.8p-140f,   0x1.fffffep-127f,
                                 3.0f,     0x1p-75f,  -0x1p-74f,  0x1.000002p0f, 0x1.fffffep0f};
enum { SPECIAL_COUNT = sizeof(specials) / sizeof(specials[0]) };

static void min_and_max_agree(void)
{
    float a[CHUNK], b[CHUNK], lower[2][CHUNK], upper[2][CHUNK];
    int count = 0;
    for (int i = 0; i < SPECIAL_COUNT; i++)
        for (int k = 0; k < SPECIAL_COUNT; k++, count++)
            a[count] = specials[i], b[count] = specials[k];
    for (int flush = 0; flush < 2; flush++) {
        tdm_kernel_mode before = {0};
        if (flush) before = tdm_kernel_enter(1);
        for (int l = 0; l < levels_here(); l++) {
            levels[l].math->min_max(a, b, lower[l > 0], upper[l > 0], count);
            if (l == 0) continue;
            check_same("min", levels[l].number, a, lower[1], lower[0], count);
            check_same("max", levels[l].number, a, upper[1], upper[0], count);
        }
        if (flush) tdm_kernel_leave(&before);
    }
}

typedef struct triple {
    float a, b, c;
} triple;

/* A random float: any bits, or near 1, or tiny, or with few bits, so that ties are frequent. */
static float draw(tdm_rng *rng)
{
    uint32_t word = tdm_rng_u32(rng), kind = tdm_rng_u32(rng) % 5;
    uint32_t mantissa = word & 0x007fffffu, sign = word & 0x80000000u;
    if (kind == 0) return from_bits(word);
    if (kind == 1) return from_bits(sign | mantissa | 0x3f800000u);
    if (kind == 2) return from_bits(sign | mantissa | (uint32_t)(tdm_rng_u32(rng) % 80) << 23);
    if (kind == 3) return from_bits(sign | (mantissa & 0x00700001u) | 0x3f000000u);
    return from_bits(sign | mantissa | (64 + (uint32_t)(tdm_rng_u32(rng) % 128)) << 23);
}

/* Sums that almost cancel, that are almost a tie, or any. */
static triple draw_triple(tdm_rng *rng)
{
    triple t = {draw(rng), draw(rng), draw(rng)};
    uint32_t kind = tdm_rng_u32(rng) % 4;
    double product = (double)t.a * (double)t.b;
    if (kind == 0) t.c = from_bits(bits_of(-(float)product) + tdm_rng_u32(rng) % 3 - 1);
    if (kind == 1) { /* c 24 to 27 bits above or below the product: the rounded part is a tie */
        int apart = (int)(tdm_rng_u32(rng) % 4) + 23;
        t.c = (float)ldexp(product, tdm_rng_u32(rng) % 2 ? apart : -apart);
    }
    if (kind == 2) { /* a product of few bits in the middle of c's last place, plus one more bit */
        t.a = from_bits((bits_of(t.a) & 0xffffff00u) | 1u);
        t.c = (float)ldexp(product, 24) * 1.5f;
    }
    return t;
}

/* Against the C library's, which the C standard requires to be exact; if flushing, against the instruction.
 * */
static void fma_is_exact(void)
{
    float a[CHUNK], b[CHUNK], c[CHUNK], expected[CHUNK], got[CHUNK];
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = 8, .stream = TDM_RNG_STREAM_USER});
    int rounds = stride == 1 ? 20000 : 400;
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < CHUNK; i++) {
            triple t = draw_triple(&rng);
            a[i] = t.a, b[i] = t.b, c[i] = t.c;
            expected[i] = fmaf(t.a, t.b, t.c);
        }
        for (int l = 0; l < levels_here(); l++) {
            levels[l].math->fma(a, b, c, got, CHUNK);
            check_same("fma", levels[l].number, a, got, expected, CHUNK);
        }
        tdm_kernel_mode before = tdm_kernel_enter(1);
        levels[levels_here() - 1].math->fma(a, b, c, expected, CHUNK);
        for (int l = 0; l < levels_here() - 1; l++) {
            levels[l].math->fma(a, b, c, got, CHUNK);
            check_same("flushing fma", levels[l].number, a, got, expected, CHUNK);
        }
        tdm_kernel_leave(&before);
    }
}

static void fma_of_specials(void)
{
    enum { COUNT = SPECIAL_COUNT * SPECIAL_COUNT };
    float a[COUNT], b[COUNT], c[COUNT], expected[COUNT], got[COUNT];
    for (int s = 0; s < SPECIAL_COUNT; s++) {
        for (int i = 0; i < COUNT; i++) {
            a[i] = specials[i / SPECIAL_COUNT], b[i] = specials[i % SPECIAL_COUNT];
            c[i] = specials[s];
            expected[i] = fmaf(a[i], b[i], c[i]);
        }
        for (int l = 0; l < levels_here(); l++) {
            levels[l].math->fma(a, b, c, got, COUNT);
            check_same("fma", levels[l].number, a, got, expected, COUNT);
        }
    }
}

int main(int argc, char **argv)
{
    static const check_test tests[] = {
        CHECK_TEST(functions_agree),   CHECK_TEST(functions_agree_when_flushing),
        CHECK_TEST(min_and_max_agree), CHECK_TEST(fma_is_exact),
        CHECK_TEST(fma_of_specials),
    };
    if (argc > 1 && strcmp(argv[1], "all") == 0) {
        stride = 1;
        argc = 1;
    }
    return check_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
