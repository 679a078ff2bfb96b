/* onednn.h: what the files of this folder share: the engine of a plan, and the families. */
#ifndef TANDEM_TENSOR_KERNELS_ONEDNN_ONEDNN_H
#define TANDEM_TENSOR_KERNELS_ONEDNN_ONEDNN_H

#include "tensor/kernels/backends.h"

#include <dnnl.h>

/* One for each plan. */
typedef struct tdm__onednn {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
} tdm__onednn;

/* What oneDNN has not implemented becomes TDM_ERR_UNSUPPORTED, so that the next backend is asked. */
tdm_status tdm__onednn_check(dnnl_status_t status, const char *what, tdm_error *err);

extern const tdm_kernel_family tdm__onednn_conv;

#endif
