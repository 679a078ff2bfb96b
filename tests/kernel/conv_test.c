/*
 * conv_test.c: convolutions: `ref` against a naive one in double precision, oneDNN and Tandem's products
 * against `ref`, gradients by differences, and errors of the builder.
 *
 * The allowed error of one number is a few units in the last place of the sum of the absolute products, times
 * the square root of their number: the rounding errors of any order. Kernels are run by kernel_bench.h: between
 * guards, twice, with scratch full of garbage.
 */
#include "kernel/double_eval_image.h"
#include "kernel/double_eval_more.h"
#include "kernel/gradient_bench.h"
#include "kernel/kernel_bench.h"

typedef struct conv_case {
    int64_t B, H, W, C, O, KH, KW;
    int stride[2], pad[2], dilation[2], groups;
} conv_case;

static const conv_case typical[] = {
    {2, 28, 28, 1, 6, 5, 5, {1, 1}, {2, 2}, {1, 1}, 1},  /* LeNet's first */
    {2, 12, 12, 6, 16, 5, 5, {1, 1}, {0, 0}, {1, 1}, 1}, /* and second layer */
    {2, 16, 16, 3, 64, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1}, /* a CIFAR stem */
    {1, 30, 30, 3, 16, 7, 7, {2, 2}, {3, 3}, {1, 1}, 1}, /* an ImageNet stem */
    {2, 8, 8, 64, 64, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1},
    {2, 8, 8, 32, 64, 3, 3, {2, 2}, {1, 1}, {1, 1}, 1},
    {2, 8, 8, 64, 32, 1, 1, {1, 1}, {0, 0}, {1, 1}, 1},
    {2, 9, 9, 32, 64, 1, 1, {2, 2}, {0, 0}, {1, 1}, 1},
    {2, 9, 9, 48, 48, 3, 3, {1, 1}, {1, 1}, {1, 1}, 48}, /* depthwise */
    {2, 9, 9, 20, 40, 3, 3, {2, 2}, {1, 1}, {1, 1}, 20}, /* two outputs for each channel */
    {2, 9, 9, 32, 32, 3, 3, {1, 1}, {1, 1}, {1, 1}, 4},
    {3, 1, 40, 16, 24, 1, 5, {1, 1}, {0, 2}, {1, 1}, 1}, /* a sequence */
    {3, 1, 40, 16, 24, 1, 3, {1, 1}, {0, 4}, {1, 4}, 1},
    {1, 5, 5, 3, 4, 3, 3, {1, 1}, {4, 4}, {1, 1}, 1},    /* windows that contain only padding */
    {4, 48, 48, 3, 32, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1}, /* divided into pieces for its ReLU */
    {6, 24, 24, 2, 40, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1},
    /* Phases of grad_x that need more scratch than the whole according to a careless estimate. */
    {8, 32, 32, 64, 96, 3, 3, {2, 2}, {1, 1}, {1, 1}, 1},
    {1, 23, 23, 16, 384, 1, 1, {2, 2}, {0, 0}, {1, 1}, 1},
    {1, 1, 289, 16, 384, 1, 3, {1, 2}, {0, 1}, {1, 1}, 1},
    {2, 1, 4, 8, 16, 1, 3, {1, 12}, {0, 4}, {1, 1}, 1}, /* more padding than windows cover */
};
enum { TYPICAL_COUNT = sizeof(typical) / sizeof(typical[0]), RANDOM_COUNT = 120 };

static int64_t pick(tdm_rng *rng, int64_t min, int64_t max)
{
    return min + (int64_t)tdm_rng_below(rng, (uint64_t)(max - min + 1));
}

/* The typical ones first, then odd ones; a function of the index. */
static conv_case case_at(int index)
{
    if (index < TYPICAL_COUNT) return typical[index];
    tdm_rng rng = tdm_rng_at(
        (tdm_rng_address){.seed = 5, .stream = TDM_RNG_STREAM_USER, .sub_stream = (uint32_t)index});
    conv_case c = {.B = pick(&rng, 1, 3), .KH = pick(&rng, 1, 4), .KW = pick(&rng, 1, 4)};
    c.groups = (int)pick(&rng, 1, 3);
    c.C = c.groups * pick(&rng, 1, 9);
    c.O = c.groups * pick(&rng, 1, 9);
    for (int axis = 0; axis < 2; axis++) {
        c.stride[axis] = (int)pick(&rng, 1, 3);
        c.pad[axis] = (int)pick(&rng, 0, 2);
        c.dilation[axis] = (int)pick(&rng, 1, 3);
    }
    c.H = (c.KH - 1) * c.dilation[0] + 1 + pick(&rng, 0, 6);
    c.W = (c.KW - 1) * c.dilation[1] + 1 + pick(&rng, 0, 6);
    return c;
}

static int64_t windows(int64_t size, int64_t kernel, int stride, int pad, int dilation)
{
    return (size + 2 * pad - (kernel - 1) * dilation - 1) / stride + 1;
}

static tdm_tensor f32(tdm_shape shape)
{
    return (tdm_tensor){TDM_DTYPE_F32, shape, NULL};
}

/* form, of CONV only: bit 0 a bias, bit 1 ReLU. */
static kernel_bench bench_of(tdm_op_kind op, const conv_case *c, int form)
{
    kernel_bench b = {.op = op};
    tdm_op_attrs *a = &b.call.attrs;
    tdm_tensor x = f32(tdm_shape_4(c->B, c->H, c->W, c->C));
    tdm_tensor w = f32(tdm_shape_4(c->O, c->KH, c->KW, c->C / c->groups));
    tdm_tensor y = f32(
        tdm_shape_4(c->B, windows(c->H, c->KH, c->stride[0], c->pad[0], c->dilation[0]),
                    windows(c->W, c->KW, c->stride[1], c->pad[1], c->dilation[1]), c->O));
    a->window.groups = c->groups;
    for (int axis = 0; axis < 2; axis++) {
        a->window.kernel[axis] = (int)(axis ? c->KW : c->KH);
        a->window.stride[axis] = c->stride[axis];
        a->window.dilation[axis] = c->dilation[axis];
        a->window.pad_before[axis] = a->window.pad_after[axis] = c->pad[axis];
    }
    if (op == TDM_OP_CONV) {
        b.call.in[0] = x, b.call.in[1] = w, b.call.out[0] = y;
        if (form & 1) b.call.in[2] = f32(tdm_shape_1(c->O));
        if (form & 2) a->activation = TDM_ACTIVATION_RELU;
    } else if (op == TDM_OP_CONV_GRAD_X) {
        b.call.in[0] = y, b.call.in[1] = w, b.call.out[0] = x;
        a->shape = x.shape;
    } else {
        b.call.in[0] = y, b.call.in[1] = x, b.call.out[0] = w;
        a->shape = w.shape;
    }
    kernel_bench_open(&b);
    return b;
}

/* ---- the naive result, and the sums of absolute products ---------------------------------------- */

static double *doubles(const tdm_tensor *t, bool zero, bool absolute)
{
    int64_t count = tdm_tensor_elements(t);
    double *to = calloc((size_t)count + 1, sizeof(*to));
    const float *from = t->data;
    for (int64_t i = 0; i < count && !zero; i++)
        to[i] = absolute ? fabs((double)from[i]) : (double)from[i];
    return to;
}

/* Of length out[0]; the caller frees it. */
static double *naive(const kernel_bench *b, bool absolute)
{
    const tdm_kernel_call *call = &b->call;
    int target = b->op == TDM_OP_CONV ? 2 : b->op == TDM_OP_CONV_GRAD_X ? 0 : 1;
    const tdm_tensor *t[3][3] = {{&call->out[0], &call->in[1], &call->in[0]},
                                 {&call->in[1], &call->out[0], &call->in[0]},
                                 {&call->in[0], &call->in[1], &call->out[0]}};
    const tdm_tensor *const *is = t[target];
    image_conv v = {.attrs = &call->attrs,
                    .x = is[0]->shape,
                    .w = is[1]->shape,
                    .y = is[2]->shape,
                    .target = target};
    for (int i = 0; i < 3; i++) v.values[i] = doubles(is[i], i == target, absolute);
    image_conv_visit(&v);
    double *result = v.values[target];
    for (int i = 0; i < 3; i++)
        if (i != target) free(v.values[i]);
    for (int64_t i = 0; i < tdm_tensor_elements(&call->out[0]); i++) {
        double bias = call->in[2].dtype
                          ? (double)((float *)call->in[2].data)[i % is[1]->shape.dim[0]]
                          : 0;
        result[i] += absolute ? fabs(bias) : bias;
        if (call->attrs.activation == TDM_ACTIVATION_RELU) result[i] = fmax(result[i], 0);
    }
    return result;
}

static void compare_to(const kernel_bench *b, const double *expected, double terms, int index,
                       const char *name)
{
    double *sums = naive(b, true), worst = 0;
    const float *got = b->call.out[0].data;
    for (int64_t i = 0; i < tdm_tensor_elements(&b->call.out[0]); i++) {
        double allowed = 0x1p-24 * (2.0 + 2.0 * sqrt(terms)) * sums[i] + 1e-30;
        double share = fabs((double)got[i] - expected[i]) / allowed;
        if (!(share <= worst)) worst = share; /* so that NaN counts as the worst of all */
    }
    if (!(worst <= 1.0))
        fprintf(stderr, "  case %d, op %d, %s: %g times the error allowed\n", index, (int)b->op,
                name, worst);
    CHECK(worst <= 1.0);
    free(sums);
}

/* ---- kernels --------------------------------------------------------------------------------- */

static const tdm_kernel_backend_ops *backend_called(const char *name)
{
    for (size_t i = 0; i < tdm_kernel_backend_count(); i++)
        if (strcmp(tdm_kernel_backend_at(i)->name, name) == 0) return tdm_kernel_backend_at(i);
    return NULL;
}

/* As kernel_bench_run, with a backend that must be opened; false if it does not support the call. */
static bool run_by(const char *name, kernel_bench *b)
{
    const tdm_kernel_backend_ops *ops = backend_called(name);
    const tdm_kernel *kernel = tdm_kernel_find(ops, b->op, TDM_DTYPE_F32);
    int before = tdm_kernel_threads_set(b->threads > 0 ? b->threads : 1);
    tdm_kernel_call call = b->call;
    void *backend = NULL;
    tdm_error err = {0};
    if (ops->open) CHECK_INT(ops->open(&backend, &err), TDM_OK);
    for (int i = 0; i < TDM_OP_MAX_INPUTS; i++) call.in[i].data = NULL;
    call.out[0].data = NULL;
    tdm_status status = kernel->prepare(backend, &call, &err);
    CHECK(status == TDM_OK || (status == TDM_ERR_UNSUPPORTED && !call.prepared));
    if (status == TDM_OK) {
        for (int i = 0; i < TDM_OP_MAX_INPUTS; i++) call.in[i].data = b->call.in[i].data;
        call.out[0].data = b->call.out[0].data;
        call.scratch = kernel_bench_alloc(call.scratch_bytes);
        kernel_bench_run_prepared(b, kernel, backend, &call);
        kernel_bench_free(call.scratch);
        if (kernel->release) kernel->release(&call);
    }
    if (ops->close) ops->close(backend);
    tdm_kernel_threads_set(before);
    return status == TDM_OK;
}

static const tdm_op_kind ops_of_conv[] = {TDM_OP_CONV, TDM_OP_CONV_GRAD_X, TDM_OP_CONV_GRAD_W};

/* The maximum number of products that are added to one number of the result. */
static double terms_of(tdm_op_kind op, const conv_case *c, const kernel_bench *b)
{
    if (op == TDM_OP_CONV) return (double)(c->KH * c->KW * c->C / c->groups + 1);
    if (op == TDM_OP_CONV_GRAD_X) return (double)(c->KH * c->KW * c->O / c->groups);
    const int64_t *y = b->call.in[0].shape.dim;
    return (double)(y[0] * y[1] * y[2]);
}

/* ref against naive, and a backend against ref. Returns whether the backend supported the call. */
static bool compare_conv(const char *name, int index, tdm_op_kind op, int form, int threads)
{
    conv_case c = case_at(index);
    kernel_bench b = bench_of(op, &c, form);
    double terms = terms_of(op, &c, &b);
    kernel_bench_run(&b, kernel_bench_ref());
    double *expected = naive(&b, false);
    compare_to(&b, expected, 0, index, "ref");
    free(expected);
    expected = doubles(&b.call.out[0], false, false);
    b.threads = threads;
    bool taken = run_by(name, &b);
    if (taken) compare_to(&b, expected, terms, index, name);
    free(expected);
    kernel_bench_close(&b);
    return taken;
}

static void onednn_agrees(void)
{
    int taken = 0, all = 0;
    if (!backend_called("onednn")) return;
    for (int index = 0; index < TYPICAL_COUNT + RANDOM_COUNT; index++)
        for (int op = 0; op < 3; op++)
            for (int form = 0; form < (op == 0 ? 4 : 1); form++, all++) {
                bool one = compare_conv("onednn", index, ops_of_conv[op], form, 1);
                bool only_padding = index < TYPICAL_COUNT && typical[index].pad[0] > 3;
                CHECK(one || index >= TYPICAL_COUNT || only_padding);
                taken += one;
            }
    printf("     onednn took %d of %d convolutions\n", taken, all);
    CHECK(10 * taken > 9 * all);
}

static void products_agree(void)
{
    for (int index = 0; index < TYPICAL_COUNT + RANDOM_COUNT; index++)
        for (int op = 0; op < 3; op++)
            for (int form = 0; form < (op == 0 ? 4 : 1); form++)
                CHECK(compare_conv("product", index, ops_of_conv[op], form, 1));
}

static void kernels_agree_on_two_threads(void)
{
    for (int index = 0; index < TYPICAL_COUNT; index++)
        for (int op = 0; op < 3; op++) {
            if (backend_called("onednn")) compare_conv("onednn", index, ops_of_conv[op], 3, 2);
            CHECK(compare_conv("product", index, ops_of_conv[op], 3, 2));
        }
}

/* Sizes that fill the tiles and sizes that do not, pieces and remainders, different paddings. */
static const conv_case tiled[] = {
    {1, 4, 4, 16, 16, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1},
    {2, 9, 7, 16, 32, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1},
    {3, 8, 11, 48, 16, 3, 3, {1, 1}, {0, 2}, {1, 1}, 1},
    {5, 17, 16, 16, 16, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1},
    {2, 6, 6, 112, 80, 3, 3, {1, 1}, {0, 0}, {1, 1}, 1},
    {1, 6, 600, 16, 16, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1}, /* a row of tiles is a piece by itself */
    {3, 32, 32, 32, 16, 3, 3, {1, 1}, {1, 1}, {1, 1}, 1},
};

static void compare_tiled(tdm_op_kind op, const conv_case *c, int form, int threads)
{
    kernel_bench b = bench_of(op, c, form);
    kernel_bench_run(&b, kernel_bench_ref());
    double *expected = doubles(&b.call.out[0], false, false);
    b.threads = threads;
    bool taken = run_by("winograd", &b);
    CHECK(taken);
    /* The transforms add up to sixteen numbers of a tile before the products, and nine after them; tiles of 4
     * x 4 also have factors of up to 64. */
    double factor = op == TDM_OP_CONV ? 16 : 64 * 64;
    if (taken) compare_to(&b, expected, factor * terms_of(op, c, &b), form, "winograd");
    free(expected);
    if (taken && (form & 2) &&
        op == TDM_OP_CONV) { /* NaN is kept: it is in every result that depends on it */
        float *x = b.call.in[0].data, *y = b.call.out[0].data;
        x[0] = NAN;
        run_by("winograd", &b);
        CHECK(isnan(y[0]));
        CHECK(!isnan(y[tdm_tensor_elements(&b.call.out[0]) - 1]) || c->H <= 4);
    }
    kernel_bench_close(&b);
}

static void winograd_agrees(void)
{
    for (size_t i = 0; i < sizeof(tiled) / sizeof(tiled[0]); i++)
        for (int form = 0; form < 4; form++)
            for (int threads = 1; threads <= 2; threads++)
                compare_tiled(TDM_OP_CONV, &tiled[i], form, threads);
    for (size_t i = 0; i < sizeof(tiled) / sizeof(tiled[0]); i++)
        for (int op = 1; op < 3; op++)
            for (int threads = 1; threads <= 3; threads++)
                compare_tiled(ops_of_conv[op], &tiled[i], 0, threads);
    /* Unsupported calls: strides, other windows, groups, few channels, small images. */
    conv_case others[] = {tiled[1], tiled[1], tiled[1], tiled[1], tiled[1]};
    others[0].stride[1] = 2;
    others[1].KW = 1;
    others[2].groups = 2;
    others[3].C = 8;
    others[4].H = 3;
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        kernel_bench b = bench_of(TDM_OP_CONV, &others[i], 0);
        CHECK(!run_by("winograd", &b));
        kernel_bench_close(&b);
    }
}

/* NaN must be kept: a model that diverges must not look like one whose units are dead. */
static void relu_lets_nan_through(void)
{
    for (int index = 0; index < TYPICAL_COUNT; index++) {
        conv_case c = case_at(index);
        kernel_bench b = bench_of(TDM_OP_CONV, &c, 3);
        int64_t count = tdm_tensor_elements(&b.call.out[0]), nans[2] = {0};
        ((float *)b.call.in[0].data)[tdm_tensor_elements(&b.call.in[0]) / 2] = NAN;
        for (int by = 0; by < 2; by++) {
            if (by == 0) kernel_bench_run(&b, kernel_bench_ref());
            if (by == 1 && !run_by("product", &b)) nans[1] = nans[0];
            for (int64_t i = 0; i < count && (by == 0 || nans[1] < nans[0]); i++)
                nans[by] += isnan(((float *)b.call.out[0].data)[i]) != 0;
        }
        CHECK(nans[0] > 0 || c.stride[0] > c.KH || c.stride[1] > c.KW);
        CHECK_INT(nans[1], nans[0]);
        kernel_bench_close(&b);
    }
}

static void an_empty_batch_is_passed_on(void)
{
    conv_case c = case_at(0);
    c.B = 0;
    for (int op = 0; op < 3; op++) {
        kernel_bench b = bench_of(ops_of_conv[op], &c, 0);
        CHECK(!run_by("product", &b));
        if (backend_called("onednn")) CHECK(!run_by("onednn", &b));
        kernel_bench_run(&b, kernel_bench_ref());
        for (int64_t i = 0; i < tdm_tensor_elements(&b.call.out[0]); i++)
            CHECK(((float *)b.call.out[0].data)[i] == 0); /* of the weights: no pixel was read */
        kernel_bench_close(&b);
    }
}

/* ---- gradients ------------------------------------------------------------------------------- */

static tdm_value leaf(tdm_graph *g, const char *name, tdm_shape shape, bool train)
{
    return train ? tdm_graph_param(g, name, shape, unused_init)
                 : tdm_graph_input(g, name, TDM_DTYPE_F32, shape);
}

static bool evaluate(double_eval *e, const tdm__node *node)
{
    return double_eval_image(e, node) || double_eval_more(e, node);
}

/* trained: bit 0 x, bit 1 w, bit 2 the bias. */
static void compare_gradient(const conv_case *c, tdm_activation activation, int trained)
{
    tdm_graph *g = tdm_graph_create();
    tdm_conv_options o = {.groups = c->groups, .activation = activation};
    for (int axis = 0; axis < 2; axis++) {
        o.stride[axis] = c->stride[axis];
        o.padding[axis] = c->pad[axis];
        o.dilation[axis] = c->dilation[axis];
    }
    tdm_value x = leaf(g, "x", tdm_shape_4(c->B, c->H, c->W, c->C), trained & 1);
    tdm_value w = leaf(g, "w", tdm_shape_4(c->O, c->KH, c->KW, c->C / c->groups), trained & 2);
    o.bias = leaf(g, "bias", tdm_shape_1(c->O), trained & 4);
    tdm_value y = tdm_graph_conv2d(g, x, w, &o);
    compare_with(g, weighted_sum(g, "v", tdm_graph_sigmoid(g, y)), evaluate);
}

static void gradients_by_differences(void)
{
    static const conv_case small[] = {
        {2, 4, 5, 2, 3, 3, 2, {1, 1}, {1, 0}, {1, 1}, 1},
        {2, 5, 4, 2, 4, 2, 3, {2, 1}, {0, 2}, {1, 2}, 2},
        {1, 5, 5, 3, 3, 3, 3, {2, 2}, {1, 1}, {1, 1}, 3},
        {2, 3, 3, 4, 2, 1, 1, {1, 1}, {0, 0}, {1, 1}, 1},
    };
    for (size_t i = 0; i < 4; i++)
        for (int trained = 1; trained < 8; trained++)
            compare_gradient(&small[i], TDM_ACTIVATION_NONE, trained);
    for (int a = TDM_ACTIVATION_NONE; a <= TDM_ACTIVATION_SIGMOID; a++)
        compare_gradient(&small[0], (tdm_activation)a, 7);
}

static void sequences_by_differences(void)
{
    for (int form = 0; form < 2; form++) {
        tdm_graph *g = tdm_graph_create();
        tdm_conv_options o = {.stride = {7, form ? 2 : 0}, .padding = {7, 2}, .dilation = {7, 2}};
        o.bias = tdm_graph_param(g, "bias", tdm_shape_1(3), unused_init);
        tdm_value x = tdm_graph_param(g, "x", tdm_shape_3(2, 7, 4), unused_init);
        tdm_value w = tdm_graph_param(g, "w", tdm_shape_3(3, 3, 4), unused_init);
        tdm_value y = tdm_graph_conv1d(g, x, w, &o);
        CHECK_INT(tdm_graph_shape(g, y).rank, 3);
        CHECK_INT(tdm_graph_shape(g, y).dim[1], form ? 4 : 7);
        compare_with(g, weighted_sum(g, "v", tdm_graph_sigmoid(g, y)), evaluate);
    }
}

/* ---- the builder ----------------------------------------------------------------------------- */

/* Which activations are fused, and the cost of a convolution. */
static void what_is_built(void)
{
    for (int a = TDM_ACTIVATION_NONE; a <= TDM_ACTIVATION_SIGMOID; a++) {
        tdm_graph *g = tdm_graph_create();
        tdm_value x = leaf(g, "x", tdm_shape_4(2, 6, 5, 4), false);
        tdm_value w = leaf(g, "w", tdm_shape_4(8, 3, 3, 2), true);
        tdm_conv_options o = {.groups = 2, .activation = (tdm_activation)a};
        tdm_shape y = tdm_graph_shape(g, tdm_graph_conv2d(g, x, w, &o));
        tdm_shape expected = tdm_shape_4(2, 4, 3, 8);
        CHECK(tdm_shape_equal(&y, &expected));
        bool costly = a == TDM_ACTIVATION_TANH || a == TDM_ACTIVATION_SIGMOID;
        bool together = a == TDM_ACTIVATION_NONE || a == TDM_ACTIVATION_RELU || costly;
        CHECK_INT(tdm_graph_node_count(g), together ? 1 : 2);
        uint64_t cells = 2 * 4 * 3 * 8, more = costly ? 8 : a == TDM_ACTIVATION_RELU ? 1 : 0;
        CHECK_INT(tdm_graph_node_at(g, 0).flops, 2 * cells * 3 * 3 * 2 + more * cells);
        tdm_graph_destroy(g);
    }
}

static void expect_mistake(tdm_shape x, tdm_shape w, tdm_conv_options o, const char *part)
{
    tdm_error err = {0};
    tdm_graph *g = tdm_graph_create();
    tdm_graph_conv2d(g, leaf(g, "x", x, false), leaf(g, "w", w, false), &o);
    CHECK(tdm_graph_check(g, &err) != TDM_OK);
    CHECK_HAS(err.message, part);
    tdm_graph_destroy(g);
}

static void mistakes_are_named(void)
{
    tdm_shape x = tdm_shape_4(2, 6, 5, 4), w = tdm_shape_4(8, 3, 3, 4);
    expect_mistake(tdm_shape_3(2, 6, 5), w, (tdm_conv_options){0},
                   "conv: x must have 4 dimensions, not shape [2, 6, 5]");
    expect_mistake(x, tdm_shape_2(8, 3), (tdm_conv_options){0}, "w must have 4 dimensions");
    expect_mistake(x, tdm_shape_4(8, 3, 3, 3), (tdm_conv_options){0},
                   "w is for 3 channels in a group, but x has 4");
    expect_mistake(x, w, (tdm_conv_options){.groups = 3}, "cannot be divided into 3 groups");
    expect_mistake(x, w, (tdm_conv_options){.groups = -1}, "cannot be divided into -1 groups");
    expect_mistake(x, tdm_shape_4(8, 3, 6, 4), (tdm_conv_options){0},
                   "width: a window of 6 does not fit into 5");
    expect_mistake(x, w, (tdm_conv_options){.dilation = {3, 1}, .padding = {0, 0}},
                   "height: a window of 7 does not fit into 6");
    expect_mistake(x, w, (tdm_conv_options){.stride = {1, -2}}, "width: kernel 3, stride -2");
    expect_mistake(x, w, (tdm_conv_options){.padding = {-1, 0}}, "padding -1 not negative");
    tdm_error err = {0};
    tdm_graph *g = tdm_graph_create();
    tdm_value bias = leaf(g, "bias", tdm_shape_1(7), false);
    tdm_graph_conv2d(g, leaf(g, "x", x, false), leaf(g, "w", w, false),
                     &(tdm_conv_options){.bias = bias});
    CHECK(tdm_graph_check(g, &err) != TDM_OK);
    CHECK_HAS(err.message, "bias must have shape [8], not [7]");
    tdm_graph_destroy(g);
    g = tdm_graph_create();
    tdm_graph_conv1d(g, leaf(g, "x", x, false), leaf(g, "w", w, false), NULL);
    CHECK(tdm_graph_check(g, &err) != TDM_OK);
    CHECK_HAS(err.message, "conv1d: x must be [B, T, C]");
    tdm_graph_destroy(g);
}

static const check_test tests[] = {
    CHECK_TEST(onednn_agrees),
    CHECK_TEST(products_agree),
    CHECK_TEST(kernels_agree_on_two_threads),
    CHECK_TEST(winograd_agrees),
    CHECK_TEST(relu_lets_nan_through),
    CHECK_TEST(an_empty_batch_is_passed_on),
    CHECK_TEST(gradients_by_differences),
    CHECK_TEST(sequences_by_differences),
    CHECK_TEST(what_is_built),
    CHECK_TEST(mistakes_are_named),
};
CHECK_MAIN(tests)
