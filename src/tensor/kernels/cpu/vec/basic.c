/*
 * basic.c: element-wise ops: one pass over memory, with the widest vectors of the CPU.
 *
 * An op is a function of one vector, or of two; the templates below apply it to whole tensors. The
 * last, incomplete vector is processed by the same function, so an element's bits depend neither on
 * its index nor on the size of the tensor nor on the number of threads. A vector is read before it
 * is written: the output may overwrite an input of the same size.
 */
#include "tensor/kernels/cpu/vec/activations.h"

#define TEMPLATE static inline __attribute__((always_inline))

/* The arguments of a range. b repeats after b_count elements. */
typedef struct work {
    const float *a, *b, *c;
    float *out;
    int64_t b_count;
    float value;
} work;

static work work_of(const tdm_kernel_call *call)
{
    return (work){.a = call->in[0].data,
                  .b = call->in[1].data,
                  .c = call->in[2].data,
                  .out = call->out[0].data,
                  .b_count = tdm_tensor_elements(&call->in[1]),
                  .value = (float)call->attrs.scale};
}

/* ---- ops of one tensor ------------------------------------------------------------------------ */

/* out[i] = f(a[i]) */
TEMPLATE void map_range(const work *w, int64_t begin, int64_t end, vf (*f)(vf))
{
    for (int64_t i = begin; i < end; i += TDM__WIDTH)
        vf_store_up_to(w->out + i, end - i, f(vf_load_up_to(w->a + i, end - i, 0)));
}

/* out[i] = a[i] slope(b[i]) */
TEMPLATE void slope_range(const work *w, int64_t begin, int64_t end, vf (*slope)(vf))
{
    for (int64_t i = begin; i < end; i += TDM__WIDTH) {
        vf dy = vf_load_up_to(w->a + i, end - i, 0), at = vf_load_up_to(w->b + i, end - i, 0);
        vf_store_up_to(w->out + i, end - i, dy * slope(at));
    }
}

#define ACTIVATION(name, f, slope)                                                                 \
    static void range_##name(const void *w, int64_t begin, int64_t end)                            \
    {                                                                                              \
        map_range(w, begin, end, f);                                                               \
    }                                                                                              \
    static void range_##name##_grad(const void *w, int64_t begin, int64_t end)                     \
    {                                                                                              \
        slope_range(w, begin, end, slope);                                                         \
    }                                                                                              \
    static void run_##name(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)    \
    {                                                                                              \
        (void)backend;                                                                             \
        (void)key;                                                                                 \
        work w = work_of(call);                                                                    \
        tdm__vec_split(tdm_tensor_elements(&call->out[0]), 1, range_##name, &w);                   \
    }                                                                                              \
    static void run_##name##_grad(void *backend, const tdm_kernel_call *call,                      \
                                  const tdm_step_key *key)                                         \
    {                                                                                              \
        (void)backend;                                                                             \
        (void)key;                                                                                 \
        work w = work_of(call);                                                                    \
        tdm__vec_split(tdm_tensor_elements(&call->out[0]), 1, range_##name##_grad, &w);            \
    }

ACTIVATION(relu, relu, relu_slope)
ACTIVATION(gelu, gelu, gelu_slope)
ACTIVATION(gelu_tanh, gelu_tanh, gelu_tanh_slope)
ACTIVATION(silu, silu, silu_slope)
ACTIVATION(tanh, vtanhf, tanh_slope)
ACTIVATION(sigmoid, vsigmoidf, sigmoid_slope)

/* The slope of ReLU from a result that was rounded to bf16. */
static void range_relu_grad_bf16(const void *args, int64_t begin, int64_t end)
{
    typedef uint16_t vh __attribute__((vector_size(2 * TDM__WIDTH), aligned(2), may_alias));
    typedef uint32_t vu __attribute__((vector_size(4 * TDM__WIDTH)));
    const work *w = args;
    const uint16_t *y = (const uint16_t *)(const void *)w->b;
    for (int64_t i = begin; i < end; i += TDM__WIDTH) {
        vh at = {0};
        if (end - i >= TDM__WIDTH)
            at = *(const vh *)(y + i);
        else
            memcpy(&at, y + i, (size_t)(end - i) * sizeof(*y));
        vf slope = relu_slope((vf)(__builtin_convertvector(at, vu) << 16));
        vf_store_up_to(w->out + i, end - i, vf_load_up_to(w->a + i, end - i, 0) * slope);
    }
}

static void run_relu_grad_by(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    work w = work_of(call);
    if (call->in[1].dtype == TDM_DTYPE_BF16)
        tdm__vec_split(tdm_tensor_elements(&call->out[0]), 1, range_relu_grad_bf16, &w);
    else
        run_relu_grad(backend, call, key);
}

/* ---- ops of two tensors, the second possibly shorter ------------------------------------------ */

typedef void (*stretch_fn)(const float *a, const float *b, const float *c, float *out,
                           int64_t count);

/* Divides a range where b (and c, which is as long as b) repeats. Not for a b of one number: every
 * vector would have one element. */
TEMPLATE void repeat_range(const work *w, int64_t begin, int64_t end, stretch_fn stretch)
{
    for (int64_t i = begin; i < end;) {
        int64_t at = i % w->b_count, count = w->b_count - at;
        if (count > end - i) count = end - i;
        stretch(w->a + i, w->b + at, w->c ? w->c + at : NULL, w->out + i, count);
        i += count;
    }
}

static void stretch_add(const float *a, const float *b, const float *c, float *out, int64_t count)
{
    (void)c;
    for (int64_t i = 0; i < count; i += TDM__WIDTH)
        vf_store_up_to(out + i, count - i,
                       vf_load_up_to(a + i, count - i, 0) + vf_load_up_to(b + i, count - i, 0));
}

static void stretch_mul(const float *a, const float *b, const float *c, float *out, int64_t count)
{
    (void)c;
    for (int64_t i = 0; i < count; i += TDM__WIDTH)
        vf_store_up_to(out + i, count - i,
                       vf_load_up_to(a + i, count - i, 0) * vf_load_up_to(b + i, count - i, 0));
}

static void stretch_normalise(const float *a, const float *b, const float *c, float *out,
                              int64_t count)
{
    for (int64_t i = 0; i < count; i += TDM__WIDTH) {
        int64_t left = count - i;
        vf off = vf_load_up_to(a + i, left, 0) - vf_load_up_to(b + i, left, 0);
        vf_store_up_to(out + i, left, off * vf_load_up_to(c + i, left, 0));
    }
}

static void range_add(const void *args, int64_t begin, int64_t end)
{
    const work *w = args;
    if (w->b_count > 1) {
        repeat_range(w, begin, end, stretch_add);
        return;
    }
    for (int64_t i = begin; i < end; i += TDM__WIDTH)
        vf_store_up_to(w->out + i, end - i, vf_load_up_to(w->a + i, end - i, 0) + w->b[0]);
}

static void range_mul(const void *args, int64_t begin, int64_t end)
{
    const work *w = args;
    if (w->b_count > 1) {
        repeat_range(w, begin, end, stretch_mul);
        return;
    }
    for (int64_t i = begin; i < end; i += TDM__WIDTH)
        vf_store_up_to(w->out + i, end - i, vf_load_up_to(w->a + i, end - i, 0) * w->b[0]);
}

static void range_normalise(const void *args, int64_t begin, int64_t end)
{
    repeat_range(args, begin, end, stretch_normalise);
}

/* ---- ops with a number ------------------------------------------------------------------------ */

static void range_scale(const void *args, int64_t begin, int64_t end)
{
    const work *w = args;
    for (int64_t i = begin; i < end; i += TDM__WIDTH)
        vf_store_up_to(w->out + i, end - i, vf_load_up_to(w->a + i, end - i, 0) * w->value);
}

static void range_fill(const void *args, int64_t begin, int64_t end)
{
    const work *w = args;
    for (int64_t i = begin; i < end; i += TDM__WIDTH)
        vf_store_up_to(w->out + i, end - i, vf_set(w->value));
}

static void range_copy(const void *args, int64_t begin, int64_t end)
{
    const work *w = args;
    if (w->out != w->a) memcpy(w->out + begin, w->a + begin, (size_t)(end - begin) * sizeof(float));
}

#define ELEMENTWISE(name)                                                                          \
    static void run_##name(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)    \
    {                                                                                              \
        (void)backend;                                                                             \
        (void)key;                                                                                 \
        work w = work_of(call);                                                                    \
        tdm__vec_split(tdm_tensor_elements(&call->out[0]), 1, range_##name, &w);                   \
    }

ELEMENTWISE(add)
ELEMENTWISE(mul)
ELEMENTWISE(normalise)
ELEMENTWISE(scale)
ELEMENTWISE(fill)
ELEMENTWISE(copy)

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_ADD, .dtype = TDM_DTYPE_F32, .run = run_add},
    {.op = TDM_OP_MUL, .dtype = TDM_DTYPE_F32, .run = run_mul},
    {.op = TDM_OP_SCALE, .dtype = TDM_DTYPE_F32, .run = run_scale},
    {.op = TDM_OP_COPY, .dtype = TDM_DTYPE_F32, .run = run_copy},
    {.op = TDM_OP_LANE_SUM, .dtype = TDM_DTYPE_F32, .run = run_copy},
    {.op = TDM_OP_FILL, .dtype = TDM_DTYPE_F32, .run = run_fill},
    {.op = TDM_OP_RELU, .dtype = TDM_DTYPE_F32, .run = run_relu},
    {.op = TDM_OP_RELU_GRAD, .dtype = TDM_DTYPE_F32, .run = run_relu_grad_by},
    {.op = TDM_OP_GELU, .dtype = TDM_DTYPE_F32, .run = run_gelu},
    {.op = TDM_OP_GELU_GRAD, .dtype = TDM_DTYPE_F32, .run = run_gelu_grad},
    {.op = TDM_OP_GELU_TANH, .dtype = TDM_DTYPE_F32, .run = run_gelu_tanh},
    {.op = TDM_OP_GELU_TANH_GRAD, .dtype = TDM_DTYPE_F32, .run = run_gelu_tanh_grad},
    {.op = TDM_OP_SILU, .dtype = TDM_DTYPE_F32, .run = run_silu},
    {.op = TDM_OP_SILU_GRAD, .dtype = TDM_DTYPE_F32, .run = run_silu_grad},
    {.op = TDM_OP_TANH, .dtype = TDM_DTYPE_F32, .run = run_tanh},
    {.op = TDM_OP_TANH_GRAD, .dtype = TDM_DTYPE_F32, .run = run_tanh_grad},
    {.op = TDM_OP_SIGMOID, .dtype = TDM_DTYPE_F32, .run = run_sigmoid},
    {.op = TDM_OP_SIGMOID_GRAD, .dtype = TDM_DTYPE_F32, .run = run_sigmoid_grad},
    {.op = TDM_OP_NORMALISE, .dtype = TDM_DTYPE_F32, .run = run_normalise},
};

const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_basic) = {kernels,
                                                         sizeof(kernels) / sizeof(kernels[0])};
