/* onednn.h: what the files of this folder share: the engine of a plan, small steps, the families. */
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
/* What oneDNN has not implemented becomes TDM_ERR_UNSUPPORTED, so that the next backend is asked. */
tdm_status tdm__onednn_check(dnnl_status_t status, const char *what, tdm_error *err);
/* Attributes that say: scratch memory is ours. Owned by the caller. */
tdm_status tdm__onednn_user_scratchpad(dnnl_primitive_attr_t *out, tdm_error *err);
/* A primitive that brings numbers from one order into another. *pad_bytes becomes what it needs of
 * scratchpad, unless it is more already. Owned by the caller. */
tdm_status tdm__onednn_reorder(tdm__onednn *b, const dnnl_memory_desc_t *from,
                               const dnnl_memory_desc_t *to, dnnl_primitive_t *out,
                               size_t *pad_bytes, tdm_error *err);
/* Runs a primitive whose shapes, handles and memory were all settled in prepare(). */
void tdm__onednn_execute(const tdm__onednn *b, dnnl_primitive_t primitive, int arg_count,
                         const dnnl_exec_arg_t *args);
/*
 * Activations are not left to oneDNN, whose ReLU turns NaN into 0: a model that diverges would look
 * like one that is dead. Instead a large result is made in pieces that fit into the cache, and our own
 * code goes over each piece while it is still there. This says how many of `count` units, each of
 * `unit_bytes` of result, make such a piece; all of them when they are few.
 */
int64_t tdm__onednn_piece(int64_t count, int64_t unit_bytes);

extern const tdm_kernel_family tdm__onednn_conv, tdm__onednn_matmul;

#endif
