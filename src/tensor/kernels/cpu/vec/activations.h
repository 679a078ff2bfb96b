/*
 * activations.h: the activations and their slopes, each a function of one vector.
 *
 * Two files use them: basic.c for the ops, and loops.c, which applies one to numbers that a product
 * has just written. The bits of an element are the same in both. All of them keep NaN: a model that
 * diverges must not look like one whose units are dead.
 */
#ifndef TANDEM_TENSOR_KERNELS_CPU_VEC_ACTIVATIONS_H
#define TANDEM_TENSOR_KERNELS_CPU_VEC_ACTIVATIONS_H

#include "tensor/kernels/cpu/vec/math.h"

static inline vf relu(vf x)
{
    return vf_pick_less(x, vf_set(0), vf_set(0), x);
}

static inline vf relu_slope(vf y)
{
    vf slope = vf_pick_less(vf_set(0), y, vf_set(1), vf_set(0));
    TDM__HIDE(slope);
    return slope;
}

static const float root_half = 0.70710678118654752440f, density_peak = 0.3989422804014326779f;

static inline vf gelu(vf x)
{
    vf half = 0.5f * x;
    return vf_fma(half, verff(x * root_half), half);
}

static inline vf gelu_slope(vf x)
{
    vf phi = vf_fma(vf_set(0.5f), verff(x * root_half), vf_set(0.5f));
    return vf_fma(x, vexpf(-0.5f * (x * x)) * density_peak, phi);
}

/* 0.5 x (1 + tanh u) = x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3). */
static const float two_root_2_over_pi = 1.5957691216057307f, cubic = 0.044715f;

static inline vf two_u(vf x)
{
    return two_root_2_over_pi * vf_fma(cubic * x, x * x, x);
}

static inline vf gelu_tanh(vf x)
{
    return x * vsigmoidf(two_u(x));
}

/* Beyond 16 the slope is 0 or 1, and powers of x would only overflow. */
static inline vf gelu_tanh_slope(vf x)
{
    x = vf_min(vf_set(16), vf_max(vf_set(-16), x));
    vf s = vsigmoidf(two_u(x)), one = vf_set(1.0f);
    vf du = two_root_2_over_pi * vf_fma(3.0f * cubic * x, x, one);
    return vf_fma(x * (s * (one - s)), du, s);
}

static inline vf silu(vf x)
{
    return x * vsigmoidf(x);
}

static inline vf silu_slope(vf x)
{
    vf s = vsigmoidf(x);
    return s * vf_fma(x, 1.0f - s, vf_set(1.0f));
}

static inline vf tanh_slope(vf y)
{
    return vf_fma(-y, y, vf_set(1.0f));
}

static inline vf sigmoid_slope(vf y)
{
    return y * (1.0f - y);
}

#endif
