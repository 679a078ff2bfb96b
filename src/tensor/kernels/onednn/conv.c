/*
 * conv.c: convolutions and their two gradients by oneDNN's primitives.
 *
 * Images stay as they are, channels last, which oneDNN's best code likes. Weights it likes in blocks
 * of its own choosing: they are put into that order, in scratch, before a convolution or the
 * gradient of x, and the gradient of the weights is put back into ours behind it. They change with
 * every step, so that happens in every run; next to the convolution it costs little.
 *
 * ReLU is not left to oneDNN: its ReLU turns NaN into 0, and a model that diverges would look like
 * one that is dead. Instead the batch is cut into pieces whose result fits into the cache, and
 * negative numbers are struck out of each piece while it is still there.
 *
 * Primitives and memory handles are made in prepare(); run() sets pointers and executes. Scratch is
 * oneDNN's scratchpad, then the weights in its order.
 */
#include "tensor/kernels/onednn/onednn.h"

#include <assert.h>
#include <stdlib.h>

enum {
    ALIGN_BYTES = 64,
    /* Of the result of one piece of a batch: to stay in a core's second-level cache; and below it
     * the calls would cost more than they save. */
    PIECE_MOST_BYTES = 512 << 10,
    PIECE_LEAST_BYTES = 32 << 10
};

typedef enum direction { FORWARD, GRAD_X, GRAD_W } direction;

/* The operands, named as in the forward direction. */
enum { IMAGE, WEIGHTS, RESULT, SCRATCHPAD, BIAS, OPERAND_COUNT };

/* How oneDNN calls them in each direction. */
static const int arg_names[3][OPERAND_COUNT] = {
    {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD, DNNL_ARG_BIAS},
    {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST, DNNL_ARG_SCRATCHPAD, 0},
    {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST, DNNL_ARG_SCRATCHPAD, 0},
};

typedef struct convolution {
    direction way;
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[OPERAND_COUNT];
    int arg_count; /* BIAS is the last, and may be missing */
    /* Between our order of the weights and oneDNN's; NULL where they are the same. */
    dnnl_primitive_t reorder;
    dnnl_exec_arg_t
        reorder_args[3]; /* from, to, scratchpad; those of the convolution are borrowed */
    dnnl_memory_t our_weights;
    size_t weights_offset; /* in scratch */
    int64_t piece_count;   /* of the batch */
    int64_t image_piece_bytes, result_piece_bytes;
} convolution;

/* The tensors of a call, by operand. */
typedef struct operands {
    const tdm_tensor *image, *weights, *result, *bias;
} operands;

static operands operands_of(const tdm_kernel_call *call, direction way)
{
    const tdm_tensor *in = call->in, *out = call->out;
    if (way == FORWARD) return (operands){&in[0], &in[1], &out[0], in[2].dtype ? &in[2] : NULL};
    if (way == GRAD_X) return (operands){&out[0], &in[1], &in[0], NULL};
    return (operands){&in[1], &out[0], &in[0], NULL};
}

static void release_conv(tdm_kernel_call *call)
{
    convolution *c = call->prepared;
    if (!c) return;
    for (int i = 0; i < c->arg_count; i++) dnnl_memory_destroy(c->args[i].memory);
    if (c->our_weights) dnnl_memory_destroy(c->our_weights);
    if (c->reorder) dnnl_primitive_destroy(c->reorder);
    if (c->primitive) dnnl_primitive_destroy(c->primitive);
    free(c);
    call->prepared = NULL;
}

/* ---- describing ------------------------------------------------------------------------------ */

/* The graph has checked the arguments; what oneDNN calls invalid it merely does not do. */
static tdm_status describable(dnnl_status_t status, const char *what, tdm_error *err)
{
    if (status == dnnl_invalid_arguments) status = dnnl_unimplemented;
    return tdm__onednn_check(status, what, err);
}

static tdm_status describe_image(const tdm_tensor *t, int64_t rows, dnnl_memory_desc_t *out,
                                 tdm_error *err)
{
    const int64_t *d = t->shape.dim;
    dnnl_dims_t dims = {rows, d[3], d[1], d[2]};
    return describable(dnnl_memory_desc_init_by_tag(out, 4, dims, dnnl_f32, dnnl_nhwc),
                       "describing an image", err);
}

/* [O, KH, KW, C/groups] as oneDNN counts: group, output, input, height, width. */
static tdm_status describe_weights(const tdm_tensor *w, int groups, bool any,
                                   dnnl_memory_desc_t *out, tdm_error *err)
{
    const int64_t *d = w->shape.dim;
    int64_t row = d[2] * d[3], filter = d[1] * row, per_group = d[0] / groups;
    dnnl_dims_t dims = {groups, per_group, d[3], d[1], d[2]};
    dnnl_dims_t strides = {per_group * filter, filter, 1, row, d[3]};
    int skip = groups == 1, rank = 5 - skip;
    return describable(
        any ? dnnl_memory_desc_init_by_tag(out, rank, dims + skip, dnnl_f32, dnnl_format_tag_any)
            : dnnl_memory_desc_init_by_strides(out, rank, dims + skip, dnnl_f32, strides + skip),
        "describing weights", err);
}

static tdm_status describe_conv(const tdm_kernel_call *call, const operands *o, direction way,
                                int64_t rows, dnnl_convolution_desc_t *out, tdm_error *err)
{
    dnnl_memory_desc_t image, weights, result, bias;
    dnnl_dims_t stride, dilation, before, after;
    TDM_TRY(describe_image(o->image, rows, &image, err));
    TDM_TRY(describe_image(o->result, rows, &result, err));
    TDM_TRY(describe_weights(o->weights, call->attrs.window.groups, true, &weights, err));
    dnnl_dims_t channels = {o->result->shape.dim[3]};
    TDM_TRY(describable(dnnl_memory_desc_init_by_tag(&bias, 1, channels, dnnl_f32, dnnl_a),
                        "describing a bias", err));
    for (int axis = 0; axis < 2; axis++) {
        stride[axis] = call->attrs.window.stride[axis];
        dilation[axis] = call->attrs.window.dilation[axis] - 1;
        before[axis] = call->attrs.window.pad_before[axis];
        after[axis] = call->attrs.window.pad_after[axis];
    }
    dnnl_alg_kind_t direct = dnnl_convolution_direct;
    dnnl_status_t status =
        way == FORWARD
            ? dnnl_dilated_convolution_forward_desc_init(out, dnnl_forward_training, direct, &image,
                                                         &weights, o->bias ? &bias : NULL, &result,
                                                         stride, dilation, before, after)
        : way == GRAD_X
            ? dnnl_dilated_convolution_backward_data_desc_init(
                  out, direct, &image, &weights, &result, stride, dilation, before, after)
            : dnnl_dilated_convolution_backward_weights_desc_init(
                  out, direct, &image, &weights, NULL, &result, stride, dilation, before, after);
    return describable(status, "describing a convolution", err);
}

/* ---- preparing ------------------------------------------------------------------------------- */

static tdm_status user_scratchpad(dnnl_primitive_attr_t *out, tdm_error *err)
{
    TDM_TRY(tdm__onednn_check(dnnl_primitive_attr_create(out), "making attributes", err));
    dnnl_status_t status = dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user);
    if (status != dnnl_success) dnnl_primitive_attr_destroy(*out);
    return tdm__onednn_check(status, "choosing whose scratchpad", err);
}

/* Adds an operand, of which `desc` may still be owned by a primitive descriptor. */
static tdm_status add_operand(tdm__onednn *b, convolution *c, const dnnl_memory_desc_t *desc,
                              tdm_error *err)
{
    assert(c->arg_count < OPERAND_COUNT);
    dnnl_memory_t memory;
    TDM_TRY(tdm__onednn_check(dnnl_memory_create(&memory, desc, b->engine, DNNL_MEMORY_NONE),
                              "making a memory handle", err));
    c->args[c->arg_count] = (dnnl_exec_arg_t){arg_names[c->way][c->arg_count], memory};
    c->arg_count++;
    return TDM_OK;
}

static size_t scratchpad_bytes(dnnl_primitive_desc_t desc)
{
    return dnnl_memory_desc_get_size(
        dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0));
}

/* Sets *bytes to what the reorder needs of scratchpad. */
static tdm_status make_reorder(tdm__onednn *b, convolution *c, const dnnl_memory_desc_t *ours,
                               const dnnl_memory_desc_t *theirs, size_t *bytes, tdm_error *err)
{
    bool back = c->way == GRAD_W;
    dnnl_primitive_attr_t attr;
    dnnl_primitive_desc_t desc;
    TDM_TRY(
        tdm__onednn_check(dnnl_memory_create(&c->our_weights, ours, b->engine, DNNL_MEMORY_NONE),
                          "making a memory handle", err));
    TDM_TRY(user_scratchpad(&attr, err));
    dnnl_status_t made = dnnl_reorder_primitive_desc_create(&desc, back ? theirs : ours, b->engine,
                                                            back ? ours : theirs, b->engine, attr);
    dnnl_primitive_attr_destroy(attr);
    TDM_TRY(tdm__onednn_check(made, "choosing a way to reorder weights", err));
    *bytes = scratchpad_bytes(desc);
    made = dnnl_primitive_create(&c->reorder, desc);
    dnnl_primitive_desc_destroy(desc);
    TDM_TRY(tdm__onednn_check(made, "compiling a reorder", err));
    dnnl_memory_t weights = c->args[WEIGHTS].memory;
    c->reorder_args[0] = (dnnl_exec_arg_t){DNNL_ARG_FROM, back ? weights : c->our_weights};
    c->reorder_args[1] = (dnnl_exec_arg_t){DNNL_ARG_TO, back ? c->our_weights : weights};
    return TDM_OK;
}

static tdm_status make_operands(tdm__onednn *b, tdm_kernel_call *call, convolution *c,
                                const operands *o, dnnl_primitive_desc_t desc, tdm_error *err)
{
    static const dnnl_query_t queries[3][3] = {
        {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md},
        {dnnl_query_diff_src_md, dnnl_query_weights_md, dnnl_query_diff_dst_md},
        {dnnl_query_src_md, dnnl_query_diff_weights_md, dnnl_query_diff_dst_md}};
    const dnnl_memory_desc_t *md[3];
    for (int i = IMAGE; i <= RESULT; i++) {
        md[i] = dnnl_primitive_desc_query_md(desc, queries[c->way][i], 0);
        TDM_TRY(add_operand(b, c, md[i], err));
    }
    TDM_TRY(
        add_operand(b, c, dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0), err));
    if (o->bias)
        TDM_TRY(
            add_operand(b, c, dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 1), err));
    dnnl_memory_desc_t ours;
    TDM_TRY(describe_weights(o->weights, call->attrs.window.groups, false, &ours, err));
    size_t bytes = scratchpad_bytes(desc), reorder_bytes = 0;
    if (!dnnl_memory_desc_equal(&ours, md[WEIGHTS])) {
        TDM_TRY(make_reorder(b, c, &ours, md[WEIGHTS], &reorder_bytes, err));
        c->reorder_args[2] = c->args[SCRATCHPAD];
        if (reorder_bytes > bytes) bytes = reorder_bytes;
        c->weights_offset = (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
        bytes = c->weights_offset + dnnl_memory_desc_get_size(md[WEIGHTS]);
    }
    call->scratch_bytes = bytes;
    return TDM_OK;
}

/* Into how many pieces of equal size to cut a batch of `rows` results of `row_bytes` each. */
static int64_t pieces_of(int64_t rows, int64_t row_bytes)
{
    int64_t count = 1;
    while (count < rows && (rows % count != 0 || rows / count * row_bytes > PIECE_MOST_BYTES))
        count++;
    return rows / count * row_bytes < PIECE_LEAST_BYTES ? 1 : count;
}

static tdm_status make_conv(tdm__onednn *b, tdm_kernel_call *call, convolution *c, tdm_error *err)
{
    operands o = operands_of(call, c->way);
    int64_t rows = o.image->shape.dim[0];
    int64_t image_bytes = (int64_t)tdm_tensor_bytes(o.image);
    int64_t result_bytes = (int64_t)tdm_tensor_bytes(o.result);
    bool relu = c->way == FORWARD && call->attrs.activation == TDM_ACTIVATION_RELU;
    c->piece_count = relu ? pieces_of(rows, result_bytes / rows) : 1;
    c->image_piece_bytes = image_bytes / c->piece_count;
    c->result_piece_bytes = result_bytes / c->piece_count;

    dnnl_convolution_desc_t conv;
    dnnl_primitive_attr_t attr;
    dnnl_primitive_desc_t desc;
    TDM_TRY(describe_conv(call, &o, c->way, rows / c->piece_count, &conv, err));
    TDM_TRY(user_scratchpad(&attr, err));
    dnnl_status_t made = dnnl_primitive_desc_create(&desc, &conv, attr, b->engine, NULL);
    dnnl_primitive_attr_destroy(attr);
    TDM_TRY(describable(made, "choosing a convolution", err));
    tdm_status status = tdm__onednn_check(dnnl_primitive_create(&c->primitive, desc),
                                          "compiling a convolution", err);
    if (status == TDM_OK) status = make_operands(b, call, c, &o, desc, err);
    dnnl_primitive_desc_destroy(desc);
    return status;
}

static tdm_status prepare(void *backend, tdm_kernel_call *call, direction way, tdm_error *err)
{
    operands o = operands_of(call, way);
    if (tdm_tensor_elements(o.image) == 0 || tdm_tensor_elements(o.result) == 0)
        return tdm_fail(err, TDM_ERR_UNSUPPORTED, "oneDNN: an empty image");
    convolution *c = calloc(1, sizeof(*c));
    if (!c) return tdm_fail(err, TDM_ERR_NO_MEMORY, "oneDNN: no memory for a convolution");
    c->way = way;
    call->prepared = c;
    tdm_status status = make_conv(backend, call, c, err);
    if (status != TDM_OK) release_conv(call);
    return status;
}

static tdm_status prepare_conv(void *backend, tdm_kernel_call *call, tdm_error *err)
{
    return prepare(backend, call, FORWARD, err);
}

static tdm_status prepare_grad_x(void *backend, tdm_kernel_call *call, tdm_error *err)
{
    return prepare(backend, call, GRAD_X, err);
}

static tdm_status prepare_grad_w(void *backend, tdm_kernel_call *call, tdm_error *err)
{
    return prepare(backend, call, GRAD_W, err);
}

/* ---- running --------------------------------------------------------------------------------- */

/* Shapes, handles and memory were all settled in prepare(): a failure here is a defect. */
static void execute(const tdm__onednn *b, dnnl_primitive_t primitive, int arg_count,
                    const dnnl_exec_arg_t *args)
{
    dnnl_status_t status = dnnl_primitive_execute(primitive, b->stream, arg_count, args);
    assert(status == dnnl_success);
    (void)status;
}

static void strike_out_negatives(float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) x[i] = x[i] < 0 ? 0 : x[i]; /* NaN stays */
}

static void run_conv(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)key;
    const tdm__onednn *b = backend;
    const convolution *c = call->prepared;
    operands o = operands_of(call, c->way);
    bool relu = c->way == FORWARD && call->attrs.activation == TDM_ACTIVATION_RELU;
    void *weights = c->reorder ? (char *)call->scratch + c->weights_offset : o.weights->data;
    dnnl_memory_set_data_handle(c->args[WEIGHTS].memory, weights);
    dnnl_memory_set_data_handle(c->args[SCRATCHPAD].memory, call->scratch);
    if (c->reorder) dnnl_memory_set_data_handle(c->our_weights, o.weights->data);
    if (o.bias) dnnl_memory_set_data_handle(c->args[BIAS].memory, o.bias->data);
    if (c->reorder && c->way != GRAD_W) execute(b, c->reorder, 3, c->reorder_args);
    for (int64_t i = 0; i < c->piece_count; i++) {
        char *image = (char *)o.image->data + i * c->image_piece_bytes;
        char *result = (char *)o.result->data + i * c->result_piece_bytes;
        dnnl_memory_set_data_handle(c->args[IMAGE].memory, image);
        dnnl_memory_set_data_handle(c->args[RESULT].memory, result);
        execute(b, c->primitive, c->arg_count, c->args);
        if (relu) strike_out_negatives((float *)result, c->result_piece_bytes / 4);
    }
    if (c->reorder && c->way == GRAD_W) execute(b, c->reorder, 3, c->reorder_args);
}

#define KERNEL(kind, prepare_fn)                                                                   \
    {                                                                                              \
        .op = kind, .dtype = TDM_DTYPE_F32, .prepare = prepare_fn, .run = run_conv,                \
        .release = release_conv                                                                    \
    }

static const tdm_kernel kernels[] = {
    KERNEL(TDM_OP_CONV, prepare_conv),
    KERNEL(TDM_OP_CONV_GRAD_X, prepare_grad_x),
    KERNEL(TDM_OP_CONV_GRAD_W, prepare_grad_w),
};

const tdm_kernel_family tdm__onednn_conv = {kernels, sizeof(kernels) / sizeof(kernels[0])};
