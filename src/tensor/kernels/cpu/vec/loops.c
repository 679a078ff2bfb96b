/*
 * loops.c: loops over long arrays for other modules: see tdm_kernel_add_into, tdm__kernel_activate
 * and tdm__kernel_widen.
 */
#include "tensor/kernels/cpu/vec/activations.h"

typedef uint32_t vu __attribute__((vector_size(4 * TDM__WIDTH), aligned(4), may_alias));

/* The bit patterns of magnitudes are ordered like the magnitudes, NaN last. Adding this to them
 * sets the highest bit for those of TDM_KERNEL_SAFE_RANGE and beyond, and for no others. */
#define MAGNITUDE 0x7fffffffu
#define HIGHEST_BIT 0x80000000u
#define TO_HIGHEST_BIT (HIGHEST_BIT - 0x57000000u)

static inline vu loop_magnitudes(vf x)
{
    return ((vu)x & MAGNITUDE) + TO_HIGHEST_BIT;
}

static bool none_reaches(vu seen)
{
    uint32_t all = 0;
    for (int i = 0; i < TDM__WIDTH; i++) all |= seen[i];
    return (all & HIGHEST_BIT) == 0;
}

static bool add_into(float *a, const float *b, size_t count)
{
    int64_t n = (int64_t)count;
    vu seen = {0};
    for (int64_t i = 0; i < n; i += TDM__WIDTH) {
        vf sum = vf_load_up_to(a + i, n - i, 0) + vf_load_up_to(b + i, n - i, 0);
        seen |= loop_magnitudes(sum);
        vf_store_up_to(a + i, n - i, sum);
    }
    return none_reaches(seen);
}

static bool in_safe_range(const float *a, size_t count)
{
    int64_t n = (int64_t)count;
    vu seen = {0};
    for (int64_t i = 0; i < n; i += TDM__WIDTH)
        seen |= loop_magnitudes(vf_load_up_to(a + i, n - i, 0));
    return none_reaches(seen);
}

/* ---- activations in place --------------------------------------------------------------------- */

typedef struct row {
    float *x;
} row;

#define IN_PLACE(name, f)                                                                          \
    static void range_##name(const void *args, int64_t begin, int64_t end)                         \
    {                                                                                              \
        float *x = ((const row *)args)->x;                                                         \
        for (int64_t i = begin; i < end; i += TDM__WIDTH)                                          \
            vf_store_up_to(x + i, end - i, f(vf_load_up_to(x + i, end - i, 0)));                   \
    }

IN_PLACE(relu, relu)
IN_PLACE(gelu, gelu)
IN_PLACE(gelu_tanh, gelu_tanh)
IN_PLACE(silu, silu)
IN_PLACE(tanh, vtanhf)
IN_PLACE(sigmoid, vsigmoidf)

static void loop_activate(tdm_activation activation, float *x, int64_t count)
{
    static const tdm__vec_range_fn ranges[] = {
        [TDM_ACTIVATION_RELU] = range_relu,           [TDM_ACTIVATION_GELU] = range_gelu,
        [TDM_ACTIVATION_GELU_TANH] = range_gelu_tanh, [TDM_ACTIVATION_SILU] = range_silu,
        [TDM_ACTIVATION_TANH] = range_tanh,           [TDM_ACTIVATION_SIGMOID] = range_sigmoid,
    };
    row r = {x};
    if (activation != TDM_ACTIVATION_NONE) tdm__vec_split(count, 1, ranges[activation], &r);
}

/* ---- bf16 ------------------------------------------------------------------------------------- */

typedef struct wider {
    const uint16_t *from;
    float *to;
} wider;

static void range_widen(const void *args, int64_t begin, int64_t end)
{
    typedef uint16_t vh __attribute__((vector_size(2 * TDM__WIDTH), aligned(2), may_alias));
    const wider *w = args;
    int64_t i = begin;
    for (; i + TDM__WIDTH <= end; i += TDM__WIDTH) {
        vu x = __builtin_convertvector(*(const vh *)(w->from + i), vu) << 16;
        vf_store(w->to + i, (vf)x);
    }
    for (; i < end; i++) {
        uint32_t x = (uint32_t)w->from[i] << 16;
        memcpy(w->to + i, &x, sizeof(x));
    }
}

static void loop_widen(const uint16_t *bf16, float *out, int64_t count)
{
    wider w = {bf16, out};
    tdm__vec_split(count, 1, range_widen, &w);
}

const tdm__vec_loops TDM__AT_LEVEL(tdm__vec_loops) = {
    .add_into = add_into,
    .in_safe_range = in_safe_range,
    .activate = loop_activate,
    .widen = loop_widen,
};
