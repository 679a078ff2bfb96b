/*
 * vec.h: what the vector kernels share.
 *
 * Files in this folder are compiled once for each instruction-set level (TDM__LEVEL: 2, 3, 4 of
 * x86-64; 0 elsewhere), with that level's vector width. Everything in them is static but the tables,
 * whose names end in the level: TDM__AT_LEVEL(tdm__vec_basic) is tdm__vec_basic_4 and so on. So one
 * binary holds them all, and the registry takes the best that the processor can run.
 *
 * Vectors are GCC's: `vf` holds TDM__WIDTH floats, and arithmetic on it needs no intrinsics.
 * Reductions keep one partial sum for each vector place and add those in a fixed order at the end:
 * the same bits in every run on machines of one level.
 */
#ifndef TANDEM_TENSOR_KERNELS_CPU_VEC_VEC_H
#define TANDEM_TENSOR_KERNELS_CPU_VEC_VEC_H

#include "tensor/kernels/backends.h"

#define TDM__JOIN2(name, level) name##_##level
#define TDM__JOIN(name, level) TDM__JOIN2(name, level)
#define TDM__AT_LEVEL(name) TDM__JOIN(name, TDM__LEVEL)

#if TDM__LEVEL >= 4
#define TDM__WIDTH 16
#elif TDM__LEVEL == 3
#define TDM__WIDTH 8
#else
#define TDM__WIDTH 4
#endif

typedef float vf __attribute__((vector_size(4 * TDM__WIDTH), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(4 * TDM__WIDTH), aligned(4), may_alias));

/* The families of this folder; table.c lists them. */
extern const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_basic);

#endif
