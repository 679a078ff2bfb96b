/* vec_math_level.h: the vector functions of one level; see vec_math_level.c. */
#ifndef TANDEM_TESTS_KERNEL_VEC_MATH_LEVEL_H
#define TANDEM_TESTS_KERNEL_VEC_MATH_LEVEL_H

#include <stdint.h>

typedef void (*vec_math_fn)(const float *x, float *y, int64_t count);

typedef struct vec_math {
    vec_math_fn exp, log, tanh, erf, sigmoid;
    vec_math_fn gelu, gelu_slope, gelu_tanh, gelu_tanh_slope, silu, silu_slope;
    void (*fma)(const float *a, const float *b, const float *c, float *y, int64_t count);
    void (*min_max)(const float *a, const float *b, float *lower, float *upper, int64_t count);
} vec_math;

extern const vec_math vec_math_0, vec_math_2, vec_math_3, vec_math_4;

#endif
