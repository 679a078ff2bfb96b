/*
 * conv.c: convolutions and their two gradients by oneDNN's primitives.
 *
 * Gradients of 3 x 3 windows with stride 1 use Winograd's method F(4 x 4, 3 x 3) if oneDNN supports
 * it: a quarter of the multiplications, at the cost of one digit, about 5e-6 of the largest number.
 * Forward does not use it, since that error would grow from layer to layer (winograd.c has a method
 * without loss). The direct method takes images as they are, channels last; with the blocks of
 * channels that Winograd's method needs, larger windows are faster as well. Operands in another
 * order are reordered in scratch before the convolution, and the result is reordered back after it.
 *
 * oneDNN does not apply the activation: see tdm__onednn_piece. A large batch with the direct method
 * is divided into pieces of equal size, and Tandem's code processes each one while it is in the
 * cache.
 *
 * Primitives and memory handles are created in conv_prepare(); run() sets pointers and executes. Scratch
 * is oneDNN's scratchpad, then the operands in its order.
 */
#include "base/base.h"
#include "tensor/kernels/onednn/onednn.h"

#include <assert.h>
#include <stdlib.h>

enum {
    ALIGN_BYTES = 64,
    /* Minimum of the result of one piece of a batch: below it the calls would cost more than they
     * save. */
    MIN_PIECE_BYTES = 32 << 10,
    BLOCK_CHANNELS = 16,
    WINOGRAD_TILE = 4
};

typedef enum direction { FORWARD, GRAD_X, GRAD_W } direction;

/* Methods, from the most restrictive to the one that always works. */
typedef enum method { WINOGRAD, BLOCKED, PLAIN, METHOD_COUNT } method;

/* The operands, named as in the forward direction. */
enum { IMAGE, WEIGHTS, RESULT, SCRATCHPAD, BIAS, OPERAND_COUNT };

/* oneDNN's names of the operands in each direction. */
static const int arg_names[3][OPERAND_COUNT] = {
    {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD, DNNL_ARG_BIAS},
    {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST, DNNL_ARG_SCRATCHPAD, 0},
    {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST, DNNL_ARG_SCRATCHPAD, 0},
};

/* The conversion of an operand between Tandem's order of the numbers and oneDNN's. */
typedef struct passage {
    dnnl_primitive_t reorder; /* NULL if the two are the same */
    dnnl_exec_arg_t args[3];  /* from, to, scratchpad; those of the convolution are borrowed */
    dnnl_memory_t ours;
    size_t offset; /* of oneDNN's in scratch */
} passage;

enum { PASSAGE_COUNT = RESULT + 1 };

typedef struct convolution {
    direction way;
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[OPERAND_COUNT];
    int arg_count;                   /* BIAS is the last, and optional */
    passage passages[PASSAGE_COUNT]; /* by operand */
    int64_t piece_count;             /* of the batch */
    int64_t image_piece_bytes, result_piece_bytes;
} convolution;

/* The operand that is computed. */
static int output_of(direction way)
{
    return way == FORWARD ? RESULT : way == GRAD_X ? IMAGE : WEIGHTS;
}

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

static tdm_activation activation_of(const tdm_kernel_call *call, direction way)
{
    return way == FORWARD ? (tdm_activation)call->attrs.activation : TDM_ACTIVATION_NONE;
}

static void release_conv(tdm_kernel_call *call)
{
    convolution *c = call->prepared;
    if (!c) return;
    for (int i = 0; i < c->arg_count; i++) dnnl_memory_destroy(c->args[i].memory);
    for (int i = 0; i < PASSAGE_COUNT; i++) {
        if (c->passages[i].ours) dnnl_memory_destroy(c->passages[i].ours);
        if (c->passages[i].reorder) dnnl_primitive_destroy(c->passages[i].reorder);
    }
    if (c->primitive) dnnl_primitive_destroy(c->primitive);
    free(c);
    call->prepared = NULL;
}

/* ---- descriptors ------------------------------------------------------------------------------ */

/* The graph has checked the arguments, so oneDNN's status "invalid" means "not supported". */
static tdm_status conv_check_description(dnnl_status_t status, const char *what, tdm_error *err)
{
    if (status == dnnl_invalid_arguments) status = dnnl_unimplemented;
    return tdm__onednn_check(status, what, err);
}

static tdm_status describe_image(const tdm_tensor *t, int64_t rows, bool any,
                                 dnnl_memory_desc_t *out, tdm_error *err)
{
    const int64_t *d = t->shape.dim;
    dnnl_dims_t dims = {rows, d[3], d[1], d[2]};
    dnnl_format_tag_t order = any ? dnnl_format_tag_any : dnnl_nhwc;
    return conv_check_description(dnnl_memory_desc_init_by_tag(out, 4, dims, dnnl_f32, order),
                                  "describing an image", err);
}

/* [O, KH, KW, C/groups] in oneDNN's order: group, output, input, height, width. */
static tdm_status describe_weights(const tdm_tensor *w, int groups, bool any,
                                   dnnl_memory_desc_t *out, tdm_error *err)
{
    const int64_t *d = w->shape.dim;
    int64_t row = d[2] * d[3], filter = d[1] * row, per_group = d[0] / groups;
    dnnl_dims_t dims = {groups, per_group, d[3], d[1], d[2]};
    dnnl_dims_t strides = {per_group * filter, filter, 1, row, d[3]};
    int skip = groups == 1, rank = 5 - skip;
    return conv_check_description(
        any ? dnnl_memory_desc_init_by_tag(out, rank, dims + skip, dnnl_f32, dnnl_format_tag_any)
            : dnnl_memory_desc_init_by_strides(out, rank, dims + skip, dnnl_f32, strides + skip),
        "describing weights", err);
}

/* Whether a method is suitable: fewer channels would not fill the blocks, and smaller results not
 * Winograd's tiles; a small window takes less time than reordering. */
static bool conv_method_suits(const tdm_kernel_call *call, const operands *o, direction way,
                              method m)
{
    const int64_t *w = o->weights->shape.dim;
    if (m == PLAIN || way == FORWARD) return m == PLAIN;
    bool suited = call->attrs.window.groups == 1 && w[0] % BLOCK_CHANNELS == 0 &&
                  w[3] % BLOCK_CHANNELS == 0 && w[1] * w[2] >= 9;
    if (m == BLOCKED) return suited;
    for (int axis = 0; axis < 2; axis++)
        suited = suited && w[1 + axis] == 3 && o->result->shape.dim[1 + axis] >= WINOGRAD_TILE &&
                 call->attrs.window.stride[axis] == 1 && call->attrs.window.dilation[axis] == 1;
    return suited;
}

static tdm_status describe_conv(const tdm_kernel_call *call, const operands *o, direction way,
                                int64_t rows, method m, dnnl_convolution_desc_t *out,
                                tdm_error *err)
{
    dnnl_memory_desc_t image, weights, result, bias;
    dnnl_dims_t stride, dilation, before, after;
    TDM_TRY(describe_image(o->image, rows, m != PLAIN, &image, err));
    TDM_TRY(describe_image(o->result, rows, m != PLAIN, &result, err));
    TDM_TRY(describe_weights(o->weights, call->attrs.window.groups, true, &weights, err));
    dnnl_dims_t channels = {o->result->shape.dim[3]};
    TDM_TRY(
        conv_check_description(dnnl_memory_desc_init_by_tag(&bias, 1, channels, dnnl_f32, dnnl_a),
                               "describing a bias", err));
    for (int axis = 0; axis < 2; axis++) {
        stride[axis] = call->attrs.window.stride[axis];
        dilation[axis] = call->attrs.window.dilation[axis] - 1;
        before[axis] = call->attrs.window.pad_before[axis];
        after[axis] = call->attrs.window.pad_after[axis];
    }
    dnnl_alg_kind_t kind = m == WINOGRAD ? dnnl_convolution_winograd : dnnl_convolution_direct;
    dnnl_status_t status =
        way == FORWARD
            ? dnnl_dilated_convolution_forward_desc_init(out, dnnl_forward_training, kind, &image,
                                                         &weights, o->bias ? &bias : NULL, &result,
                                                         stride, dilation, before, after)
        : way == GRAD_X
            ? dnnl_dilated_convolution_backward_data_desc_init(out, kind, &image, &weights, &result,
                                                               stride, dilation, before, after)
            : dnnl_dilated_convolution_backward_weights_desc_init(
                  out, kind, &image, &weights, NULL, &result, stride, dilation, before, after);
    return conv_check_description(status, "describing a convolution", err);
}

/* ---- preparing -------------------------------------------------------------------------------- */

/* Adds an operand; `desc` may be owned by a primitive descriptor. */
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

/* Creates the passage of operand `index`; raises *pad_bytes to the scratchpad it needs. */
static tdm_status make_passage(tdm__onednn *b, convolution *c, int index,
                               const dnnl_memory_desc_t *ours, size_t *pad_bytes, tdm_error *err)
{
    passage *p = &c->passages[index];
    bool back = index == output_of(c->way);
    dnnl_memory_t inner = c->args[index].memory;
    const dnnl_memory_desc_t *theirs;
    dnnl_memory_get_memory_desc(inner, &theirs);
    TDM_TRY(tdm__onednn_check(dnnl_memory_create(&p->ours, ours, b->engine, DNNL_MEMORY_NONE),
                              "making a memory handle", err));
    TDM_TRY(tdm__onednn_reorder(b, back ? theirs : ours, back ? ours : theirs, &p->reorder,
                                pad_bytes, err));
    p->args[0] = (dnnl_exec_arg_t){DNNL_ARG_FROM, back ? inner : p->ours};
    p->args[1] = (dnnl_exec_arg_t){DNNL_ARG_TO, back ? p->ours : inner};
    p->args[2] = c->args[SCRATCHPAD];
    return TDM_OK;
}

/* Creates the passages that are needed, and computes the scratch size. */
static tdm_status make_passages(tdm__onednn *b, tdm_kernel_call *call, convolution *c,
                                const operands *o, int64_t rows, size_t pad_bytes, tdm_error *err)
{
    dnnl_memory_desc_t ours[PASSAGE_COUNT];
    TDM_TRY(describe_image(o->image, rows, false, &ours[IMAGE], err));
    TDM_TRY(describe_image(o->result, rows, false, &ours[RESULT], err));
    TDM_TRY(describe_weights(o->weights, call->attrs.window.groups, false, &ours[WEIGHTS], err));
    size_t inner_bytes = 0;
    for (int i = 0; i < PASSAGE_COUNT; i++) {
        const dnnl_memory_desc_t *theirs;
        dnnl_memory_get_memory_desc(c->args[i].memory, &theirs);
        if (dnnl_memory_desc_equal(&ours[i], theirs)) continue;
        TDM_TRY(make_passage(b, c, i, &ours[i], &pad_bytes, err));
        c->passages[i].offset = inner_bytes; /* after the scratchpad, whose size is not known yet */
        inner_bytes += tdm_align_up(dnnl_memory_desc_get_size(theirs), ALIGN_BYTES);
    }
    for (int i = 0; i < PASSAGE_COUNT; i++)
        c->passages[i].offset += tdm_align_up(pad_bytes, ALIGN_BYTES);
    call->scratch_bytes = tdm_align_up(pad_bytes, ALIGN_BYTES) + inner_bytes;
    return TDM_OK;
}

static tdm_status make_operands(tdm__onednn *b, convolution *c, const operands *o,
                                dnnl_primitive_desc_t desc, tdm_error *err)
{
    static const dnnl_query_t queries[3][3] = {
        {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md},
        {dnnl_query_diff_src_md, dnnl_query_weights_md, dnnl_query_diff_dst_md},
        {dnnl_query_src_md, dnnl_query_diff_weights_md, dnnl_query_diff_dst_md}};
    for (int i = IMAGE; i <= RESULT; i++)
        TDM_TRY(add_operand(b, c, dnnl_primitive_desc_query_md(desc, queries[c->way][i], 0), err));
    TDM_TRY(
        add_operand(b, c, dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0), err));
    if (o->bias)
        TDM_TRY(
            add_operand(b, c, dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 1), err));
    return TDM_OK;
}

/* The number of pieces of equal size for a batch of `rows` results of `row_bytes` each. */
static int64_t pieces_of(int64_t rows, int64_t row_bytes)
{
    int64_t max = tdm__onednn_piece(rows, row_bytes), count = 1;
    while (rows % count != 0 || rows / count > max) count++;
    return rows / count * row_bytes < MIN_PIECE_BYTES ? 1 : count;
}

/* TDM_ERR_UNSUPPORTED if oneDNN does not support this method for this case. */
static tdm_status choose_conv(tdm__onednn *b, const tdm_kernel_call *call, const convolution *c,
                              const operands *o, method m, dnnl_primitive_desc_t *out,
                              tdm_error *err)
{
    dnnl_convolution_desc_t conv;
    dnnl_primitive_attr_t attr;
    int64_t rows = o->image->shape.dim[0] / c->piece_count;
    TDM_TRY(describe_conv(call, o, c->way, rows, m, &conv, err));
    TDM_TRY(tdm__onednn_user_scratchpad(&attr, err));
    dnnl_status_t made = dnnl_primitive_desc_create(out, &conv, attr, b->engine, NULL);
    dnnl_primitive_attr_destroy(attr);
    return conv_check_description(made, "choosing a convolution", err);
}

static tdm_status make_conv(tdm__onednn *b, tdm_kernel_call *call, convolution *c, tdm_error *err)
{
    operands o = operands_of(call, c->way);
    int64_t rows = o.image->shape.dim[0];
    int64_t image_bytes = (int64_t)tdm_tensor_bytes(o.image);
    int64_t result_bytes = (int64_t)tdm_tensor_bytes(o.result);
    bool active = activation_of(call, c->way) != TDM_ACTIVATION_NONE;
    dnnl_primitive_desc_t desc;
    tdm_status status = TDM_ERR_UNSUPPORTED;
    for (method m = WINOGRAD; m < METHOD_COUNT && status == TDM_ERR_UNSUPPORTED; m++) {
        if (!conv_method_suits(call, &o, c->way, m)) continue;
        bool cut = m == PLAIN && active;
        c->piece_count = cut ? pieces_of(rows, result_bytes / rows) : 1;
        status = choose_conv(b, call, c, &o, m, &desc, err);
    }
    TDM_TRY(status);
    c->image_piece_bytes = image_bytes / c->piece_count;
    c->result_piece_bytes = result_bytes / c->piece_count;
    status = tdm__onednn_check(dnnl_primitive_create(&c->primitive, desc),
                               "compiling a convolution", err);
    if (status == TDM_OK) status = make_operands(b, c, &o, desc, err);
    if (status == TDM_OK)
        status = make_passages(b, call, c, &o, rows / c->piece_count, scratchpad_bytes(desc), err);
    dnnl_primitive_desc_destroy(desc);
    return status;
}

static tdm_status conv_prepare(void *backend, tdm_kernel_call *call, direction way, tdm_error *err)
{
    operands o = operands_of(call, way);
    if (tdm_tensor_elements(o.image) == 0 || tdm_tensor_elements(o.result) == 0)
        return tdm_fail(err, TDM_ERR_UNSUPPORTED, "oneDNN: an empty image");
    convolution *c = calloc(1, sizeof(*c));
    if (!c) return tdm_fail_oom(err, "for a convolution");
    c->way = way;
    call->prepared = c;
    tdm_status status = make_conv(backend, call, c, err);
    if (status != TDM_OK) release_conv(call);
    return status;
}

static tdm_status prepare_conv(void *backend, tdm_kernel_call *call, tdm_error *err)
{
    return conv_prepare(backend, call, FORWARD, err);
}

static tdm_status prepare_grad_x(void *backend, tdm_kernel_call *call, tdm_error *err)
{
    return conv_prepare(backend, call, GRAD_X, err);
}

static tdm_status prepare_grad_w(void *backend, tdm_kernel_call *call, tdm_error *err)
{
    return conv_prepare(backend, call, GRAD_W, err);
}

/* ---- running ---------------------------------------------------------------------------------- */

/* Sets the address of an operand for oneDNN: in place, or in scratch at the end of a passage. */
static void conv_set_operand(const convolution *c, const tdm_kernel_call *call, int index,
                             void *data)
{
    const passage *p = &c->passages[index];
    if (p->reorder) dnnl_memory_set_data_handle(p->ours, data);
    dnnl_memory_set_data_handle(c->args[index].memory,
                                p->reorder ? (char *)call->scratch + p->offset : data);
}

static void conv_run_passage(const tdm__onednn *b, const convolution *c, int index)
{
    if (c->passages[index].reorder)
        tdm__onednn_execute(b, c->passages[index].reorder, 3, c->passages[index].args);
}

static void run_conv(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)key;
    const tdm__onednn *b = backend;
    const convolution *c = call->prepared;
    operands o = operands_of(call, c->way);
    int output = output_of(c->way);
    dnnl_memory_set_data_handle(c->args[SCRATCHPAD].memory, call->scratch);
    if (o.bias) dnnl_memory_set_data_handle(c->args[BIAS].memory, o.bias->data);
    conv_set_operand(c, call, WEIGHTS, o.weights->data);
    if (output != WEIGHTS) conv_run_passage(b, c, WEIGHTS);
    for (int64_t i = 0; i < c->piece_count; i++) {
        char *image = (char *)o.image->data + i * c->image_piece_bytes;
        char *result = (char *)o.result->data + i * c->result_piece_bytes;
        conv_set_operand(c, call, IMAGE, image);
        conv_set_operand(c, call, RESULT, result);
        if (output != IMAGE) conv_run_passage(b, c, IMAGE);
        if (output != RESULT) conv_run_passage(b, c, RESULT);
        tdm__onednn_execute(b, c->primitive, c->arg_count, c->args);
        conv_run_passage(b, c, output);
        tdm__kernel_activate(activation_of(call, c->way), (float *)result,
                             c->result_piece_bytes / 4);
    }
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
