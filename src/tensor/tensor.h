/*
 * tensor.h: the part of module tensor that only other modules use: what the kernels of this build and machine are.
 *
 * <tandem/tensor.h> declares types and views. libtandem.so does not export what this header declares.
 */
#ifndef TANDEM_TENSOR_TENSOR_H
#define TANDEM_TENSOR_TENSOR_H

#include <tandem/tensor.h>

/* Everything besides job and data that affects bits, as stored in checkpoints: "portable 1"; with
 * vendor kernels also the level and the library: "vendor 1, x86-64-v3, oneDNN 2.6.3". Returns
 * `buffer`. */
const char *tdm_numerics_text(bool is_vendor, char buffer[TDM_NUMERICS_BYTES]);

/* The vendor's kernel library: "oneDNN 2.6.3". Returns `buffer`; NULL: built without one. */
const char *tdm_tensor_library(char buffer[TDM_LIBRARY_BYTES]);

/* The level of x86-64 (2, 3, 4) whose instructions the kernels use, 0 on other CPUs, and its name:
 * "x86-64-v3", "armv8-a". The environment variable TANDEM_ISA lowers it. */
int tdm_tensor_level(void);
const char *tdm_tensor_level_name(int level);

#endif
