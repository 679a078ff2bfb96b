/*
 * ref.h: the families of reference kernels that ref.c lists, and helpers shared by their files.
 */
#ifndef TANDEM_TENSOR_KERNELS_REF_REF_H
#define TANDEM_TENSOR_KERNELS_REF_REF_H

#include "tensor/kernels/backends.h"

extern const tdm_kernel_family tdm__ref_matmul;
extern const tdm_kernel_family tdm__ref_activations;
extern const tdm_kernel_family tdm__ref_shape;
extern const tdm_kernel_family tdm__ref_elementwise;
extern const tdm_kernel_family tdm__ref_loss;
extern const tdm_kernel_family tdm__ref_embedding;
extern const tdm_kernel_family tdm__ref_norm;
extern const tdm_kernel_family tdm__ref_attention;
extern const tdm_kernel_family tdm__ref_conv;
extern const tdm_kernel_family tdm__ref_pool;
extern const tdm_kernel_family tdm__ref_batch_norm;
extern const tdm_kernel_family tdm__ref_cast;

/* For ops whose first two inputs may be bf16: scratch for them in f32, and the call with the
 * converted inputs. An f32 call is unchanged. */
tdm_status tdm__ref_prepare_wide(void *backend, tdm_kernel_call *call, tdm_error *err);
tdm_kernel_call tdm__ref_wide(const tdm_kernel_call *call);

/* f(x) of a tdm_activation, which ops apply to each of their results. */
double tdm__ref_activate(int activation, double x);

static inline const float *tdm__ref_in(const tdm_kernel_call *call, int index)
{
    return call->in[index].data;
}

static inline float *tdm__ref_out(const tdm_kernel_call *call, int index)
{
    return call->out[index].data;
}

/* The size of the last dimension; 1 for a scalar. */
static inline int64_t tdm__ref_columns(const tdm_tensor *tensor)
{
    return tensor->shape.rank > 0 ? tensor->shape.dim[tensor->shape.rank - 1] : 1;
}

/* The product of all dimensions but the last. */
static inline int64_t tdm__ref_rows(const tdm_tensor *tensor)
{
    int64_t rows = 1;
    for (int i = 0; i + 1 < tensor->shape.rank; i++) rows *= tensor->shape.dim[i];
    return rows;
}

#endif
