/*
 * own_model.c: an op and a model that Tandem does not have, as a shared object that a job names.
 *
 * The op is Mish (Misra, 2019), an activation: y = x tanh(softplus(x)), softplus(x) = log(1 + e^x).
 * The model is a residual perceptron: a first layer brings the features to `width` numbers, `blocks`
 * blocks each add to them what two more layers with Mish between them make of them, and a last layer
 * gives the logits. Nothing here but the public headers is Tandem's.
 *
 * Built-in ops have gradients that are built from ops, and a new op works the same way: the gradient of
 * Mish is another new op times what comes from behind. Neither keeps anything between calls, so any
 * number of workers may run them side by side.
 */
#include <tandem/library.h>

#include <math.h>
#include <stdio.h>

/* ---- the op ---------------------------------------------------------------------------------- */

/* log(1 + e^x) without overflow: for large x it is x, and what is added then is small. */
static float softplus(float x)
{
    return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
}

/* One number out for each number in. `attrs` is what tdm_graph_custom was given: nothing, here. */
static tdm_status same_shape(const tdm_shape in[], const void *attrs, tdm_shape *out,
                             tdm_error *err)
{
    (void)attrs;
    (void)err; /* every shape is valid; otherwise tdm_fail(err, ...) would report which is not */
    *out = in[0];
    return TDM_OK;
}

static void run_mish(const tdm_tensor in[], const void *attrs, tdm_tensor out)
{
    (void)attrs;
    const float *x = in[0].data;
    float *y = out.data;
    int64_t count = tdm_shape_elements(&out.shape);
    for (int64_t i = 0; i < count; i++) y[i] = x[i] * tanhf(softplus(x[i]));
}

/* dy/dx = tanh(s) + x (1 - tanh(s)^2) sigmoid(x), where s = softplus(x), whose slope is sigmoid. */
static void run_mish_slope(const tdm_tensor in[], const void *attrs, tdm_tensor out)
{
    (void)attrs;
    const float *x = in[0].data;
    float *slope = out.data;
    int64_t count = tdm_shape_elements(&out.shape);
    for (int64_t i = 0; i < count; i++) {
        float t = tanhf(softplus(x[i]));
        slope[i] = t + x[i] * (1.0f - t * t) / (1.0f + expf(-x[i]));
    }
}

/* What `tandem inspect` counts; an exponential, a logarithm and a tanh taken for ten each. */
static uint64_t mish_flops(const tdm_shape in[], const void *attrs)
{
    (void)attrs;
    return 32 * (uint64_t)tdm_shape_elements(&in[0]);
}

static const tdm_custom_op mish_slope_op = {.name = "mish_slope",
                                            .in_count = 1,
                                            .infer = same_shape,
                                            .run = run_mish_slope,
                                            .flops = mish_flops};

/* The gradient, as ops: d_x = d_y * slope(x). */
static void mish_backward(tdm_graph *graph, const tdm_value in[], tdm_value out, tdm_value d_out,
                          const void *attrs, tdm_value d_in[])
{
    (void)out;
    (void)attrs;
    tdm_value slope = tdm_graph_custom(graph, &mish_slope_op, in, NULL);
    d_in[0] = tdm_graph_mul(graph, d_out, slope);
}

static const tdm_custom_op mish_op = {.name = "mish",
                                      .in_count = 1,
                                      .infer = same_shape,
                                      .run = run_mish,
                                      .backward = mish_backward,
                                      .flops = mish_flops};

static tdm_value mish(tdm_graph *graph, tdm_value x)
{
    return tdm_graph_custom(graph, &mish_op, &x, NULL);
}

/* ---- the model ------------------------------------------------------------------------------- */

/* y = x W^T + b with its parameters, NAME.weight and NAME.bias. */
static tdm_value linear(tdm_graph *graph, const char *name, tdm_value x, int64_t out)
{
    char text[64];
    int64_t in = tdm_graph_shape(graph, x).dim[1];
    tdm_init uniform = {.kind = TDM_INIT_UNIFORM, .scale = in > 0 ? sqrt(3.0 / (double)in) : 0};
    tdm_graph_scope(graph, name); /* what `tandem inspect` calls the ops */
    snprintf(text, sizeof(text), "%s.weight", name);
    tdm_value weight = tdm_graph_param(graph, text, tdm_shape_2(out, in), uniform);
    snprintf(text, sizeof(text), "%s.bias", name);
    tdm_value bias = tdm_graph_param(graph, text, tdm_shape_1(out), (tdm_init){TDM_INIT_ZERO, 0});
    return tdm_graph_linear(graph, x, weight, bias, TDM_ACTIVATION_NONE);
}

/* After a mistake all of these functions pass on "none", and Tandem tells the first one: so there is
 * no `if` after each. */
static tdm_value build(tdm_graph *graph, const tdm_model_options *options, tdm_value x)
{
    int64_t width = tdm_library_int(graph, options, "width");
    int64_t blocks = tdm_library_int(graph, options, "blocks");
    double dropout = tdm_library_real(graph, options, "dropout");
    char name[32];
    x = linear(graph, "in", x, width);
    for (int64_t i = 0; i < blocks; i++) {
        tdm_graph_block(graph); /* for memory.recompute */
        snprintf(name, sizeof(name), "block%d.fc1", (int)i + 1);
        tdm_value branch = mish(graph, linear(graph, name, x, 2 * width));
        if (options->training) branch = tdm_graph_dropout(graph, branch, dropout);
        snprintf(name, sizeof(name), "block%d.fc2", (int)i + 1);
        branch = linear(graph, name, branch, width);
        x = tdm_graph_add(graph, x, branch);
    }
    return linear(graph, "out", mish(graph, x), options->class_count);
}

/* ---- the table that Tandem asks for ---------------------------------------------------------- */

static const tdm_library_option options[] = {
    {.name = "width", .type = TDM_LIBRARY_TYPE_INT, .fallback = "32", .min = 1, .max = 65536},
    {.name = "blocks", .type = TDM_LIBRARY_TYPE_INT, .fallback = "2", .min = 0, .max = 1000},
    {.name = "dropout", .type = TDM_LIBRARY_TYPE_REAL, .fallback = "0", .min = 0, .max = 0.9},
};

static const tdm_model_library library = {
    .abi = TDM_LIBRARY_ABI,
    .name = "mish_resnet",
    .build = build,
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
};

const tdm_model_library *tdm_library_entry(void)
{
    return &library;
}
