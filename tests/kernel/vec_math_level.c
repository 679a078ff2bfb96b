/*
 * vec_math_level.c: the functions of vec/math.h behind pointers, compiled for each level as the
 * kernels are, so that vec_test.c can try every level that the machine has.
 */
#include "kernel/vec_math_level.h"
#include "tensor/kernels/cpu/vec/math.h"

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

const vec_math TDM__AT_LEVEL(vec_math) = {
    .exp = of_exp, .log = of_log, .tanh = of_tanh, .erf = of_erf, .sigmoid = of_sigmoid};
