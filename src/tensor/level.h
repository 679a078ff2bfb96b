/*
 * level.h: macros for files in directories named `vec`, in any module.
 *
 * Such a file is compiled once for each instruction-set level (TDM__LEVEL: 2, 3, 4 of x86-64; 0
 * elsewhere), with that level's instructions and vector width. Everything in it is static except
 * its table, whose name ends in the level: TDM__AT_LEVEL(tdm__vec_basic) is tdm__vec_basic_4 and so
 * on. So one binary contains all of them, and tdm_kernel_level() returns which one to use.
 *
 * Functions that are not static must not be defined in headers that such files include: the linker
 * would keep only one of the copies, possibly one that the CPU cannot run.
 */
#ifndef TANDEM_TENSOR_LEVEL_H
#define TANDEM_TENSOR_LEVEL_H

#include <stdint.h>

#define TDM__JOIN2(name, level) name##_##level
#define TDM__JOIN(name, level) TDM__JOIN2(name, level)
#define TDM__AT_LEVEL(name) TDM__JOIN(name, TDM__LEVEL)

/* Floats in a vector. */
#if TDM__LEVEL >= 4
#define TDM__WIDTH 16
#elif TDM__LEVEL == 3
#define TDM__WIDTH 8
#else
#define TDM__WIDTH 4
#endif

#endif
