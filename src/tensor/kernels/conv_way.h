/*
 * conv_way.h: the three ops of a convolution, for backends that compute all of them in the same
 * way. Tensors have their names of the forward direction in all three ops.
 */
#ifndef TANDEM_TENSOR_KERNELS_CONV_WAY_H
#define TANDEM_TENSOR_KERNELS_CONV_WAY_H

#include "tensor/kernel.h"

typedef enum tdm__conv_way { FORWARD, GRAD_X, GRAD_W } tdm__conv_way;

typedef struct tdm__conv_operands {
    const tdm_tensor *x, *w, *y;
} tdm__conv_operands;

static inline tdm__conv_operands tdm__conv_operands_of(const tdm_kernel_call *call,
                                                       tdm__conv_way way)
{
    const tdm_tensor *in = call->in, *out = call->out;
    if (way == FORWARD) return (tdm__conv_operands){&in[0], &in[1], &out[0]};
    if (way == GRAD_X) return (tdm__conv_operands){&out[0], &in[1], &in[0]};
    return (tdm__conv_operands){&in[1], &out[0], &in[0]};
}

#endif
