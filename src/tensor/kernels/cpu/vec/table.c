/* table.c: the list of the vector kernels, as one backend for each level. */
#include "tensor/kernels/cpu/vec/vec.h"

static const tdm_kernel_family *const families[] = {
    &TDM__AT_LEVEL(tdm__vec_basic),
    &TDM__AT_LEVEL(tdm__vec_norm),
    &TDM__AT_LEVEL(tdm__vec_attention),
    &TDM__AT_LEVEL(tdm__vec_sums),
    &TDM__AT_LEVEL(tdm__vec_classes),
    &TDM__AT_LEVEL(tdm__vec_loss),
    &TDM__AT_LEVEL(tdm__vec_embedding),
    &TDM__AT_LEVEL(tdm__vec_dropout),
    &TDM__AT_LEVEL(tdm__vec_copy),
    &TDM__AT_LEVEL(tdm__vec_pool),
    &TDM__AT_LEVEL(tdm__vec_batch_norm),
    &TDM__AT_LEVEL(tdm__vec_cast),
    NULL,
};

const tdm_kernel_backend_ops TDM__AT_LEVEL(tdm__kernels_cpu) = {
    .name = "cpu",
    .level = TDM__LEVEL,
    .families = families,
};
