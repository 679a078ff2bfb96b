/*
 * shape.c: plain loops for the ops that move numbers or add them along an axis.
 *
 * A tensor is viewed as [outer, size of the axis, inner]: the dimensions before the axis, the axis,
 * and the dimensions after it. So a slice or a part of a concatenation is one contiguous run of
 * numbers for each outer index. Sums are in double precision and in index order.
 */
#include "tensor/kernels/ref/ref.h"

#include <string.h>

typedef struct axis_view {
    int64_t outer, size, inner;
} axis_view;

/* Axis -1 means all elements: one outer, one inner. */
static axis_view view_at(const tdm_shape *shape, int axis)
{
    axis_view v = {1, 1, 1};
    if (axis < 0) return (axis_view){1, tdm_shape_elements(shape), 1};
    for (int i = 0; i < shape->rank; i++)
        *(i < axis ? &v.outer : i == axis ? &v.size : &v.inner) *= shape->dim[i];
    return v;
}

/* The output is written in order; the index into the input advances like an odometer. */
static void run_transpose(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const float *x = tdm__ref_in(call, 0);
    float *y = tdm__ref_out(call, 0);
    const tdm_shape *from = &call->in[0].shape, *to = &call->out[0].shape;
    int64_t stride[TDM_MAX_DIMS + 1], step[TDM_MAX_DIMS], index[TDM_MAX_DIMS] = {0};
    stride[from->rank] = 1;
    for (int i = from->rank - 1; i >= 0; i--) stride[i] = stride[i + 1] * from->dim[i];
    for (int i = 0; i < to->rank; i++) step[i] = stride[call->attrs.perm[i] + 1];
    int64_t at = 0;
    for (int64_t n = tdm_shape_elements(to), i = 0; i < n; i++) {
        y[i] = x[at];
        for (int d = to->rank - 1; d >= 0; d--) {
            at += step[d];
            if (++index[d] < to->dim[d]) break;
            at -= step[d] * to->dim[d];
            index[d] = 0;
        }
    }
}

static void run_concat(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    float *y = tdm__ref_out(call, 0);
    axis_view to = view_at(&call->out[0].shape, call->attrs.axis);
    int64_t begin = 0;
    for (int k = 0; k < TDM_OP_MAX_INPUTS && call->in[k].dtype; k++) {
        const float *x = tdm__ref_in(call, k);
        int64_t size = call->in[k].shape.dim[call->attrs.axis], run = size * to.inner;
        for (int64_t o = 0; o < to.outer && run > 0; o++)
            memcpy(y + (o * to.size + begin) * to.inner, x + o * run, (size_t)run * sizeof(float));
        begin += size;
    }
}

static void run_slice(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const float *x = tdm__ref_in(call, 0);
    float *y = tdm__ref_out(call, 0);
    axis_view from = view_at(&call->in[0].shape, call->attrs.axis);
    int64_t run = (call->attrs.end - call->attrs.begin) * from.inner;
    for (int64_t o = 0; o < from.outer && run > 0; o++)
        memcpy(y + o * run, x + (o * from.size + call->attrs.begin) * from.inner,
               (size_t)run * sizeof(float));
}

static void run_slice_grad(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const float *dy = tdm__ref_in(call, 0);
    float *dx = tdm__ref_out(call, 0);
    axis_view to = view_at(&call->out[0].shape, call->attrs.axis);
    int64_t before = call->attrs.begin * to.inner, whole = to.size * to.inner;
    int64_t run = (call->attrs.end - call->attrs.begin) * to.inner;
    for (int64_t o = 0; o < to.outer && run > 0; o++) {
        memset(dx + o * whole, 0, (size_t)before * sizeof(float));
        memcpy(dx + o * whole + before, dy + o * run, (size_t)run * sizeof(float));
        memset(dx + o * whole + before + run, 0, (size_t)(whole - before - run) * sizeof(float));
    }
}

static void run_reduce(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const float *x = tdm__ref_in(call, 0);
    float *y = tdm__ref_out(call, 0);
    axis_view from = view_at(&call->in[0].shape, call->attrs.axis);
    for (int64_t o = 0; o < from.outer; o++) {
        for (int64_t i = 0; i < from.inner; i++) {
            double sum = 0;
            for (int64_t s = 0; s < from.size; s++)
                sum += (double)x[(o * from.size + s) * from.inner + i];
            y[o * from.inner + i] = (float)(sum * call->attrs.scale);
        }
    }
}

static void run_reduce_grad(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    const float *dy = tdm__ref_in(call, 0);
    float *dx = tdm__ref_out(call, 0);
    axis_view to = view_at(&call->out[0].shape, call->attrs.axis);
    for (int64_t o = 0; o < to.outer; o++)
        for (int64_t s = 0; s < to.size; s++)
            for (int64_t i = 0; i < to.inner; i++)
                dx[(o * to.size + s) * to.inner + i] = (float)((double)dy[o * to.inner + i] *
                                                               call->attrs.scale);
}

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_TRANSPOSE, .dtype = TDM_DTYPE_F32, .run = run_transpose},
    {.op = TDM_OP_CONCAT, .dtype = TDM_DTYPE_F32, .run = run_concat},
    {.op = TDM_OP_SLICE, .dtype = TDM_DTYPE_F32, .run = run_slice},
    {.op = TDM_OP_SLICE_GRAD, .dtype = TDM_DTYPE_F32, .run = run_slice_grad},
    {.op = TDM_OP_REDUCE, .dtype = TDM_DTYPE_F32, .run = run_reduce},
    {.op = TDM_OP_REDUCE_GRAD, .dtype = TDM_DTYPE_F32, .run = run_reduce_grad},
};

const tdm_kernel_family tdm__ref_shape = {kernels, sizeof(kernels) / sizeof(kernels[0])};
