/*
 * vec.h: what the vector kernels share.
 *
 * How this folder is compiled, and why names end in a level: tensor/level.h.
 *
 * Vectors are GCC's: `vf` holds TDM__WIDTH floats, and arithmetic on it needs no intrinsics.
 * Reductions keep one partial sum for each vector place and add those in a fixed order at the end:
 * the same bits in every run on machines of one level.
 */
#ifndef TANDEM_TENSOR_KERNELS_CPU_VEC_VEC_H
#define TANDEM_TENSOR_KERNELS_CPU_VEC_VEC_H

#include "tensor/kernels/backends.h"
#include "tensor/level.h"

typedef float vf __attribute__((vector_size(4 * TDM__WIDTH), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(4 * TDM__WIDTH), aligned(4), may_alias));

/* The families of this folder; table.c lists them. */
extern const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_basic);

#endif
