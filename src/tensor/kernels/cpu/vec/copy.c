/*
 * copy.c: ops that only move numbers: transpose, concatenation, slice.
 *
 * A tensor is viewed as [outer, size, inner] around an axis: a slice, or part of a concatenation,
 * is one run of numbers for each outer index. A transpose first merges the dimensions that stay
 * adjacent; then either whole runs are copied, or squares of WIDTH by WIDTH numbers are transposed
 * in registers, so that both reads and writes follow cache lines.
 */
#include "tensor/kernels/cpu/vec/vec.h"

/* ---- transpose -------------------------------------------------------------------------------- */

/* One dimension of the output: its size, and its strides in input and output. */
typedef struct dim {
    int64_t size, from, to;
} dim;

typedef struct turn {
    const float *x;
    float *y;
    dim outer[TDM_MAX_DIMS]; /* all dimensions but the two below */
    int outer_count;
    dim along;           /* the output's last dimension */
    dim across;          /* the input's last dimension, if it is another one; else of size 1 */
    int64_t strip_count; /* of WIDTH numbers of `across` */
} turn;

/* Merges adjacent dimensions. Returns the number of dimensions that are left, at least one. */
static int joined_dims(const tdm_kernel_call *call, dim out[TDM_MAX_DIMS])
{
    const tdm_shape *from = &call->in[0].shape, *to = &call->out[0].shape;
    int64_t stride[TDM_MAX_DIMS + 1];
    int count = 0;
    stride[from->rank] = 1;
    for (int i = from->rank - 1; i >= 0; i--) stride[i] = stride[i + 1] * from->dim[i];
    for (int i = 0; i < to->rank; i++) {
        dim d = {.size = to->dim[i], .from = stride[call->attrs.perm[i] + 1]};
        if (d.size == 1) continue;
        if (count > 0 && out[count - 1].from == d.size * d.from) {
            out[count - 1].size *= d.size;
            out[count - 1].from = d.from;
        } else {
            out[count++] = d;
        }
    }
    if (count == 0) out[count++] = (dim){.size = 1, .from = 1};
    out[count - 1].to = 1;
    for (int i = count - 2; i >= 0; i--) out[i].to = out[i + 1].to * out[i + 1].size;
    return count;
}

static turn turn_of(const tdm_kernel_call *call)
{
    dim dims[TDM_MAX_DIMS];
    int count = joined_dims(call, dims);
    turn t = {.x = call->in[0].data, .y = call->out[0].data, .across = {.size = 1}};
    t.along = dims[count - 1];
    for (int i = 0; i < count - 1; i++) {
        if (t.along.from != 1 && dims[i].from == 1)
            t.across = dims[i];
        else
            t.outer[t.outer_count++] = dims[i];
    }
    t.strip_count = (t.across.size + TDM__WIDTH - 1) / TDM__WIDTH;
    return t;
}

/* Interleaves the elements of a and b: the lower half of the result, and the upper. */
#if TDM__WIDTH == 16
#define ZIP_LOW(a, b)                                                                              \
    __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define ZIP_HIGH(a, b)                                                                             \
    __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif TDM__WIDTH == 8
#define ZIP_LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define ZIP_LOW(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#endif

/* Perfect shuffles of row i with row i + WIDTH / 2, log2(WIDTH) times. */
static inline void turn_rows(const vf row[TDM__WIDTH], vf out[TDM__WIDTH])
{
    for (int i = 0; i < TDM__WIDTH / 2; i++) {
        out[2 * i] = ZIP_LOW(row[i], row[i + TDM__WIDTH / 2]);
        out[2 * i + 1] = ZIP_HIGH(row[i], row[i + TDM__WIDTH / 2]);
    }
}

static void turn_square(const float *x, int64_t x_stride, float *y, int64_t y_stride)
{
    vf a[TDM__WIDTH], b[TDM__WIDTH];
    for (int i = 0; i < TDM__WIDTH; i++) a[i] = vf_load(x + i * x_stride);
    for (int done = 1; done < TDM__WIDTH; done *= 4) {
        turn_rows(a, b);
        if (2 * done < TDM__WIDTH)
            turn_rows(b, a);
        else
            memcpy(a, b, sizeof(a));
    }
    for (int i = 0; i < TDM__WIDTH; i++) vf_store(y + i * y_stride, a[i]);
}

/* `strip` rows of the output: WIDTH, or fewer at the end. */
static void turn_strip(const turn *t, const float *x, float *y, int64_t strip)
{
    int64_t i = 0;
    for (; strip == TDM__WIDTH && i + TDM__WIDTH <= t->along.size; i += TDM__WIDTH)
        turn_square(x + i * t->along.from, t->along.from, y + i, t->across.to);
    for (; i < t->along.size; i++)
        for (int64_t k = 0; k < strip; k++) y[k * t->across.to + i] = x[i * t->along.from + k];
}

/* A unit is one strip of `across` at one index of the outer dimensions. */
static void range_transpose(const void *args, int64_t begin, int64_t end)
{
    const turn *t = args;
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t first = unit % t->strip_count * TDM__WIDTH, rest = unit / t->strip_count;
        const float *x = t->x + first;
        float *y = t->y + first * t->across.to;
        for (int i = t->outer_count - 1; i >= 0; i--) {
            int64_t index = rest % t->outer[i].size;
            rest /= t->outer[i].size;
            x += index * t->outer[i].from;
            y += index * t->outer[i].to;
        }
        int64_t strip = t->across.size - first < TDM__WIDTH ? t->across.size - first : TDM__WIDTH;
        if (t->along.from == 1)
            memcpy(y, x, (size_t)t->along.size * sizeof(float));
        else
            turn_strip(t, x, y, strip);
    }
}

static void run_transpose(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    int64_t elements = tdm_tensor_elements(&call->out[0]);
    if (elements == 0) return;
    turn t = turn_of(call);
    int64_t units = t.strip_count;
    for (int i = 0; i < t.outer_count; i++) units *= t.outer[i].size;
    tdm__vec_split(units, elements / units, range_transpose, &t);
}

/* ---- runs ------------------------------------------------------------------------------------- */

/* Runs of `count` numbers, one for each outer index, optionally surrounded by zeros. */
typedef struct runs {
    const float *x;
    float *y;
    int64_t count, x_stride, y_stride;
    int64_t zeros_before, zeros_after;
} runs;

static void range_runs(const void *args, int64_t begin, int64_t end)
{
    const runs *r = args;
    for (int64_t o = begin; o < end; o++) {
        float *y = r->y + o * r->y_stride;
        memcpy(y, r->x + o * r->x_stride, (size_t)r->count * sizeof(float));
        if (r->zeros_before > 0)
            memset(y - r->zeros_before, 0, (size_t)r->zeros_before * sizeof(float));
        if (r->zeros_after > 0) memset(y + r->count, 0, (size_t)r->zeros_after * sizeof(float));
    }
}

/* The products of the dimensions before and after an axis. */
static void around_axis(const tdm_shape *shape, int axis, int64_t *outer, int64_t *inner)
{
    *outer = *inner = 1;
    for (int i = 0; i < axis; i++) *outer *= shape->dim[i];
    for (int i = axis + 1; i < shape->rank; i++) *inner *= shape->dim[i];
}

static void run_concat(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    int64_t outer, inner, axis = call->attrs.axis, begin = 0;
    around_axis(&call->out[0].shape, (int)axis, &outer, &inner);
    for (int i = 0; i < TDM_OP_MAX_INPUTS && call->in[i].dtype; i++) {
        int64_t size = call->in[i].shape.dim[axis];
        runs r = {.x = call->in[i].data,
                  .y = (float *)call->out[0].data + begin * inner,
                  .count = size * inner,
                  .x_stride = size * inner,
                  .y_stride = call->out[0].shape.dim[axis] * inner};
        if (r.count > 0) tdm__vec_split(outer, r.count, range_runs, &r);
        begin += size;
    }
}

static void run_slice(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    int64_t outer, inner, axis = call->attrs.axis;
    around_axis(&call->in[0].shape, (int)axis, &outer, &inner);
    runs r = {.x = (const float *)call->in[0].data + call->attrs.begin * inner,
              .y = call->out[0].data,
              .count = (call->attrs.end - call->attrs.begin) * inner,
              .x_stride = call->in[0].shape.dim[axis] * inner};
    r.y_stride = r.count;
    if (r.count > 0) tdm__vec_split(outer, r.count, range_runs, &r);
}

static void run_slice_grad(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    (void)key;
    int64_t outer, inner, axis = call->attrs.axis;
    around_axis(&call->out[0].shape, (int)axis, &outer, &inner);
    int64_t size = call->out[0].shape.dim[axis];
    runs r = {.x = call->in[0].data,
              .y = (float *)call->out[0].data + call->attrs.begin * inner,
              .count = (call->attrs.end - call->attrs.begin) * inner,
              .y_stride = size * inner,
              .zeros_before = call->attrs.begin * inner,
              .zeros_after = (size - call->attrs.end) * inner};
    r.x_stride = r.count;
    if (size * inner > 0) tdm__vec_split(outer, size * inner, range_runs, &r);
}

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_TRANSPOSE, .dtype = TDM_DTYPE_F32, .run = run_transpose},
    {.op = TDM_OP_CONCAT, .dtype = TDM_DTYPE_F32, .run = run_concat},
    {.op = TDM_OP_SLICE, .dtype = TDM_DTYPE_F32, .run = run_slice},
    {.op = TDM_OP_SLICE_GRAD, .dtype = TDM_DTYPE_F32, .run = run_slice_grad},
};

const tdm_kernel_family TDM__AT_LEVEL(tdm__vec_copy) = {kernels,
                                                        sizeof(kernels) / sizeof(kernels[0])};
