/* backends.h: the tables that the backend folders export to registry.c. */
#ifndef TANDEM_TENSOR_KERNELS_BACKENDS_H
#define TANDEM_TENSOR_KERNELS_BACKENDS_H

#include "tensor/kernel.h"

extern const tdm_kernel_backend_ops tdm__kernels_ref;
extern const tdm_kernel_backend_ops tdm__kernels_onednn;

#endif
