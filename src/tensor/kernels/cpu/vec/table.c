/* table.c: the visible list of the vector kernels, as one backend for each level. */
#include "tensor/kernels/cpu/vec/vec.h"

static const tdm_kernel_family *const families[] = {
    &TDM__AT_LEVEL(tdm__vec_basic),
    NULL,
};

const tdm_kernel_backend_ops TDM__AT_LEVEL(tdm__kernels_cpu) = {
    .name = "cpu",
    .level = TDM__LEVEL,
    .families = families,
};
