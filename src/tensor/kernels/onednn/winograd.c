/*
 * winograd.c: convolutions of 3 x 3 that move by one, by Winograd's method F(2 x 2, 3 x 3).
 *
 * Four results are computed at once from a tile of 4 x 4 numbers: 16 products in place of 36. Tiles and
 * windows are transformed by our vector code (cpu/vec/winograd.c); the products of one place, over all
 * tiles, channels and filters, are a matrix product, and the 16 of them a batch for oneDNN. The batch of
 * images is done in pieces of whole rows of tiles, so that what lies between the transforms stays in the
 * cache, and an activation goes over each piece of results while it is still there. Constants are 0, 1
 * and 1/2: the result is as near to the truth as that of the direct way.
 *
 * A backend of its own, in front of oneDNN's: what it does not support, that one does. Primitives are
 * made in prepare(); scratch is oneDNN's scratchpad, a row of zeros, the windows twice (as transformed,
 * and in oneDNN's order), the tiles and the products of one piece.
 */
#include "tensor/kernels/onednn/onednn.h"

#include <stdlib.h>

enum { PLACES = 16, LEAST_SIZE = 4, CHANNEL_UNIT = 16, PIECE_TILES = 256, ALIGN_BYTES = 64 };
enum { TILES, WINDOWS, PRODUCTS, SCRATCHPAD, ARG_COUNT };

/* The products of a piece with so many tiles. */
typedef struct stage {
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[ARG_COUNT];
    int64_t tile_count;
} stage;

typedef struct tiling {
    stage full, rest; /* `rest`: of what is left after the full pieces, if anything is */
    int64_t piece_count;
    dnnl_primitive_t reorder; /* of the windows, from our order to oneDNN's; NULL: the same */
    dnnl_exec_arg_t reorder_args[3];
    dnnl_memory_t our_windows;
    tdm__winograd shape;                                               /* sizes only */
    size_t zeros_offset, u_offset, windows_offset, v_offset, m_offset; /* in scratch */
} tiling;

static void release_stage(stage *s)
{
    for (int i = 0; i < ARG_COUNT; i++)
        if (s->args[i].memory) dnnl_memory_destroy(s->args[i].memory);
    if (s->primitive) dnnl_primitive_destroy(s->primitive);
}

static void release(tdm_kernel_call *call)
{
    tiling *t = call->prepared;
    if (!t) return;
    release_stage(&t->full);
    release_stage(&t->rest);
    if (t->our_windows) dnnl_memory_destroy(t->our_windows);
    if (t->reorder) dnnl_primitive_destroy(t->reorder);
    free(t);
    call->prepared = NULL;
}

/* ---- preparing ------------------------------------------------------------------------------- */

static bool suits(const tdm_kernel_call *call)
{
    const int64_t *x = call->in[0].shape.dim, *w = call->in[1].shape.dim;
    const int64_t *y = call->out[0].shape.dim;
    bool suited = call->attrs.window.groups == 1 && w[0] % CHANNEL_UNIT == 0 &&
                  x[3] % CHANNEL_UNIT == 0 && y[0] > 0;
    for (int axis = 0; axis < 2; axis++)
        suited = suited && w[1 + axis] == 3 && call->attrs.window.stride[axis] == 1 &&
                 call->attrs.window.dilation[axis] == 1 && y[1 + axis] >= LEAST_SIZE;
    return suited;
}

static tdm__winograd shape_of(const tdm_kernel_call *call)
{
    const int64_t *x = call->in[0].shape.dim, *y = call->out[0].shape.dim;
    return (tdm__winograd){.H = x[1],
                           .W = x[2],
                           .C = x[3],
                           .O = y[3],
                           .out_H = y[1],
                           .out_W = y[2],
                           .pad_top = call->attrs.window.pad_before[0],
                           .pad_left = call->attrs.window.pad_before[1],
                           .tile_rows = (y[1] + 1) / 2,
                           .tile_cols = (y[2] + 1) / 2};
}

static tdm_status add_arg(tdm__onednn *b, stage *s, int index, int name,
                          const dnnl_memory_desc_t *desc, tdm_error *err)
{
    dnnl_memory_t memory;
    TDM_TRY(tdm__onednn_check(dnnl_memory_create(&memory, desc, b->engine, DNNL_MEMORY_NONE),
                              "making a memory handle", err));
    s->args[index] = (dnnl_exec_arg_t){name, memory};
    return TDM_OK;
}

static tdm_status describe(int64_t rows, int64_t cols, bool transposed, dnnl_memory_desc_t *out,
                           tdm_error *err)
{
    dnnl_dims_t dims = {PLACES, rows, cols};
    dnnl_dims_t strides = {rows * cols, transposed ? 1 : cols, transposed ? rows : 1};
    return tdm__onednn_check(dnnl_memory_desc_init_by_strides(out, 3, dims, dnnl_f32, strides),
                             "describing matrices", err);
}

/* The windows lie in `windows`, or where oneDNN likes them when that is NULL. */
static tdm_status make_stage(tdm__onednn *b, const tdm__winograd *w, int64_t tile_count,
                             const dnnl_memory_desc_t *windows, stage *s, size_t *pad_bytes,
                             tdm_error *err)
{
    dnnl_memory_desc_t tiles, any, products;
    dnnl_dims_t dims = {PLACES, w->C, w->O};
    TDM_TRY(describe(tile_count, w->C, false, &tiles, err));
    TDM_TRY(describe(tile_count, w->O, false, &products, err));
    TDM_TRY(tdm__onednn_check(
        dnnl_memory_desc_init_by_tag(&any, 3, dims, dnnl_f32, dnnl_format_tag_any),
        "describing matrices", err));
    dnnl_matmul_desc_t desc;
    TDM_TRY(tdm__onednn_check(
        dnnl_matmul_desc_init(&desc, &tiles, windows ? windows : &any, NULL, &products),
        "describing products", err));
    dnnl_primitive_attr_t attr;
    dnnl_primitive_desc_t chosen;
    TDM_TRY(tdm__onednn_user_scratchpad(&attr, err));
    dnnl_status_t made = dnnl_primitive_desc_create(&chosen, &desc, attr, b->engine, NULL);
    dnnl_primitive_attr_destroy(attr);
    TDM_TRY(tdm__onednn_check(made, "choosing products", err));
    const dnnl_memory_desc_t *pad = dnnl_primitive_desc_query_md(chosen, dnnl_query_scratchpad_md,
                                                                 0);
    const dnnl_memory_desc_t *theirs = dnnl_primitive_desc_query_md(chosen, dnnl_query_weights_md,
                                                                    0);
    size_t bytes = dnnl_memory_desc_get_size(pad);
    if (bytes > *pad_bytes) *pad_bytes = bytes;
    s->tile_count = tile_count;
    tdm_status status = tdm__onednn_check(dnnl_primitive_create(&s->primitive, chosen),
                                          "compiling products", err);
    if (status == TDM_OK) status = add_arg(b, s, TILES, DNNL_ARG_SRC, &tiles, err);
    if (status == TDM_OK) status = add_arg(b, s, WINDOWS, DNNL_ARG_WEIGHTS, theirs, err);
    if (status == TDM_OK) status = add_arg(b, s, PRODUCTS, DNNL_ARG_DST, &products, err);
    if (status == TDM_OK) status = add_arg(b, s, SCRATCHPAD, DNNL_ARG_SCRATCHPAD, pad, err);
    dnnl_primitive_desc_destroy(chosen);
    return status;
}

static tdm_status make_reorder(tdm__onednn *b, tiling *t, const dnnl_memory_desc_t *theirs,
                               size_t *pad_bytes, tdm_error *err)
{
    dnnl_memory_desc_t ours; /* [O, C] in each place, seen as [C, O] */
    TDM_TRY(describe(t->shape.C, t->shape.O, true, &ours, err));
    if (dnnl_memory_desc_equal(&ours, theirs)) return TDM_OK;
    TDM_TRY(
        tdm__onednn_check(dnnl_memory_create(&t->our_windows, &ours, b->engine, DNNL_MEMORY_NONE),
                          "making a memory handle", err));
    TDM_TRY(tdm__onednn_reorder(b, &ours, theirs, &t->reorder, pad_bytes, err));
    t->reorder_args[0] = (dnnl_exec_arg_t){DNNL_ARG_FROM, t->our_windows};
    t->reorder_args[1] = (dnnl_exec_arg_t){DNNL_ARG_TO, t->full.args[WINDOWS].memory};
    t->reorder_args[2] = t->full.args[SCRATCHPAD];
    return TDM_OK;
}

static size_t place(size_t *at, size_t bytes)
{
    size_t offset = *at;
    *at += (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    return offset;
}

static tdm_status make_tiling(tdm__onednn *b, tdm_kernel_call *call, tiling *t, tdm_error *err)
{
    t->shape = shape_of(call);
    const tdm__winograd *w = &t->shape;
    int64_t rows = call->in[0].shape.dim[0] * w->tile_rows;
    int64_t piece_rows = (int64_t)tdm__kernel_threads() * PIECE_TILES / w->tile_cols;
    if (piece_rows < 1) piece_rows = 1;
    if (piece_rows > rows) piece_rows = rows;
    t->piece_count = rows / piece_rows;
    size_t pad_bytes = 0, at = 0, number = sizeof(float);
    TDM_TRY(make_stage(b, w, piece_rows * w->tile_cols, NULL, &t->full, &pad_bytes, err));
    const dnnl_memory_desc_t *windows;
    dnnl_memory_get_memory_desc(t->full.args[WINDOWS].memory, &windows);
    if (rows % piece_rows > 0)
        TDM_TRY(
            make_stage(b, w, rows % piece_rows * w->tile_cols, windows, &t->rest, &pad_bytes, err));
    TDM_TRY(make_reorder(b, t, windows, &pad_bytes, err));
    place(&at, pad_bytes);
    t->zeros_offset = place(&at, (size_t)w->C * number);
    t->u_offset = place(&at, (size_t)(PLACES * w->C * w->O) * number);
    t->windows_offset = t->reorder ? place(&at, dnnl_memory_desc_get_size(windows)) : t->u_offset;
    t->v_offset = place(&at, (size_t)(PLACES * t->full.tile_count * w->C) * number);
    t->m_offset = place(&at, (size_t)(PLACES * t->full.tile_count * w->O) * number);
    call->scratch_bytes = at;
    return TDM_OK;
}

static tdm_status prepare(void *backend, tdm_kernel_call *call, tdm_error *err)
{
    if (!suits(call))
        return tdm_fail(err, TDM_ERR_UNSUPPORTED, "Winograd: not a convolution for it");
    tiling *t = calloc(1, sizeof(*t));
    if (!t) return tdm_fail(err, TDM_ERR_NO_MEMORY, "Winograd: no memory for a convolution");
    call->prepared = t;
    tdm_status status = make_tiling(backend, call, t, err);
    if (status != TDM_OK) release(call);
    return status;
}

/* ---- running --------------------------------------------------------------------------------- */

static void run_stage(const tdm__onednn *b, const stage *s, tdm__winograd *w, char *scratch,
                      void *windows)
{
    const tdm__vec_winograd *loops = tdm__winograd_here();
    w->tile_count = s->tile_count;
    loops->tiles(w);
    void *const data[ARG_COUNT] = {w->v, windows, w->m, scratch};
    for (int i = 0; i < ARG_COUNT; i++) dnnl_memory_set_data_handle(s->args[i].memory, data[i]);
    tdm__onednn_execute(b, s->primitive, ARG_COUNT, s->args);
    loops->results(w);
    w->first_tile += s->tile_count;
}

/* Rows of results that lie above tile row `row` of all. */
static int64_t result_rows(const tdm__winograd *w, int64_t row)
{
    return row / w->tile_rows * w->out_H + row % w->tile_rows * 2;
}

static void run(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)key;
    const tdm__onednn *b = backend;
    const tiling *t = call->prepared;
    char *scratch = call->scratch;
    tdm__winograd w = t->shape;
    w.image = call->in[0].data;
    w.weights = call->in[1].data;
    w.bias = call->in[2].data;
    w.result = call->out[0].data;
    w.zeros = (float *)(scratch + t->zeros_offset);
    w.u = (float *)(scratch + t->u_offset);
    w.v = (float *)(scratch + t->v_offset);
    w.m = (float *)(scratch + t->m_offset);
    for (int64_t c = 0; c < w.C; c++) ((float *)(scratch + t->zeros_offset))[c] = 0;
    tdm__winograd_here()->windows(&w);
    if (t->reorder) {
        dnnl_memory_set_data_handle(t->our_windows, w.u);
        dnnl_memory_set_data_handle(t->full.args[WINDOWS].memory, scratch + t->windows_offset);
        dnnl_memory_set_data_handle(t->full.args[SCRATCHPAD].memory, scratch);
        tdm__onednn_execute(b, t->reorder, 3, t->reorder_args);
    }
    int64_t pieces = t->piece_count + (t->rest.primitive ? 1 : 0);
    for (int64_t i = 0; i < pieces; i++) {
        int64_t from = result_rows(&w, w.first_tile / w.tile_cols);
        run_stage(b, i < t->piece_count ? &t->full : &t->rest, &w, scratch,
                  scratch + t->windows_offset);
        int64_t to = result_rows(&w, w.first_tile / w.tile_cols), row = w.out_W * w.O;
        tdm__kernel_activate((tdm_activation)call->attrs.activation, w.result + from * row,
                             (to - from) * row);
    }
}

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_CONV, .dtype = TDM_DTYPE_F32, .prepare = prepare, .run = run, .release = release},
};

static const tdm_kernel_family convolutions = {kernels, sizeof(kernels) / sizeof(kernels[0])};
static const tdm_kernel_family *const families[] = {&convolutions, NULL};

const tdm_kernel_backend_ops tdm__kernels_winograd = {
    .name = "winograd",
    .vendor = true,
    .open = tdm__onednn_open,
    .close = tdm__onednn_close,
    .families = families,
};
