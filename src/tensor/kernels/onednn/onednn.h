/* onednn.h: shared by the files of this directory: the engine of a plan, helpers, the families. */
#ifndef TANDEM_TENSOR_KERNELS_ONEDNN_ONEDNN_H
#define TANDEM_TENSOR_KERNELS_ONEDNN_ONEDNN_H

#include "tensor/kernels/backends.h"

#include <dnnl.h>

/* One for each plan. */
typedef struct tdm__onednn {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
} tdm__onednn;

tdm_status tdm__onednn_open(void **out, tdm_error *err);
void tdm__onednn_close(void *backend);
/* Maps "unimplemented" of oneDNN to TDM_ERR_UNSUPPORTED, so that the next backend is tried. */
tdm_status tdm__onednn_check(dnnl_status_t status, const char *what, tdm_error *err);
/* Attributes for scratch memory provided by the user. Owned by the caller. */
tdm_status tdm__onednn_user_scratchpad(dnnl_primitive_attr_t *out, tdm_error *err);
/* A primitive that converts numbers from one order to another. Raises *pad_bytes to the scratchpad
 * it needs. Owned by the caller. */
tdm_status tdm__onednn_reorder(tdm__onednn *b, const dnnl_memory_desc_t *from,
                               const dnnl_memory_desc_t *to, dnnl_primitive_t *out,
                               size_t *pad_bytes, tdm_error *err);
/* Runs a primitive whose shapes, handles and memory were set up in prepare(). */
void tdm__onednn_execute(const tdm__onednn *b, dnnl_primitive_t primitive, int arg_count,
                         const dnnl_exec_arg_t *args);
/*
 * oneDNN does not apply activations, because its ReLU turns NaN into 0: a model that diverges would
 * look like one whose units are dead. Instead a large result is computed in pieces that fit into
 * the cache, and Tandem's code processes each piece while it is there. Returns how many of `count`
 * units, each of `unit_bytes` of result, form such a piece; all of them if they are few.
 */
int64_t tdm__onednn_piece(int64_t count, int64_t unit_bytes);

extern const tdm_kernel_family tdm__onednn_conv, tdm__onednn_matmul;

#endif
