/*
 * vec_math_level.c: the functions of vec/math.h and vec/activations.h as pointers, compiled for each level as
 * the kernels are, so that tests can call every level that the machine supports.
 */
#include "kernel/vec_math_level.h"
#include "tensor/kernels/cpu/vec/activations.h"

#define FUNCTION(name, f)                                                                          \
    static void name(const float *x, float *y, int64_t count)                                      \
    {                                                                                              \
        for (int64_t i = 0; i < count; i += TDM__WIDTH)                                            \
            vf_store_up_to(y + i, count - i, f(vf_load_up_to(x + i, count - i, 0)));               \
    }

FUNCTION(of_exp, vexpf)
FUNCTION(of_log, vlogf)
FUNCTION(of_tanh, vtanhf)
FUNCTION(of_erf, verff)
FUNCTION(of_sigmoid, vsigmoidf)
FUNCTION(of_gelu, gelu)
FUNCTION(of_gelu_slope, gelu_slope)
FUNCTION(of_gelu_tanh, gelu_tanh)
FUNCTION(of_gelu_tanh_slope, gelu_tanh_slope)
FUNCTION(of_silu, silu)
FUNCTION(of_silu_slope, silu_slope)

static void of_fma(const float *a, const float *b, const float *c, float *y, int64_t count)
{
    for (int64_t i = 0; i < count; i += TDM__WIDTH) {
        int64_t left = count - i;
        vf_store_up_to(y + i, left,
                       vf_fma(vf_load_up_to(a + i, left, 0), vf_load_up_to(b + i, left, 0),
                              vf_load_up_to(c + i, left, 0)));
    }
}

static void of_min_max(const float *a, const float *b, float *lower, float *upper, int64_t count)
{
    for (int64_t i = 0; i < count; i += TDM__WIDTH) {
        int64_t left = count - i;
        vf x = vf_load_up_to(a + i, left, 0), y = vf_load_up_to(b + i, left, 0);
        vf_store_up_to(lower + i, left, vf_min(x, y));
        vf_store_up_to(upper + i, left, vf_max(x, y));
    }
}

const vec_math TDM__AT_LEVEL(vec_math) = {
    .exp = of_exp,
    .log = of_log,
    .tanh = of_tanh,
    .erf = of_erf,
    .sigmoid = of_sigmoid,
    .gelu = of_gelu,
    .gelu_slope = of_gelu_slope,
    .gelu_tanh = of_gelu_tanh,
    .gelu_tanh_slope = of_gelu_tanh_slope,
    .silu = of_silu,
    .silu_slope = of_silu_slope,
    .fma = of_fma,
    .min_max = of_min_max,
};
