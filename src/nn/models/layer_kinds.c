/*
 * layer_kinds.c: adds each kind of layer of a job's list to the graph.
 *
 * The requirements of a layer on its input are checked here first, so that an error names the
 * layer's position in the list instead of an op. The checks concern one sample: the rows of the
 * batch are always the first dimension. In a token model no layer may use later positions, since
 * these contain the tokens to be predicted.
 *
 * Initial weights are uniform: with He's bound sqrt(6 / in) before relu, gelu and silu, and
 * Glorot's sqrt(6 / (in + out)) elsewhere; embeddings and positions are normal with a standard
 * deviation of 0.02; biases are zero, gains one.
 */
#include "nn/models/layers.h"

#include <math.h>
#include <stdio.h>

enum { NAME_BYTES = 160 };
static const tdm_init begin_zero = {.kind = TDM_INIT_ZERO}, begin_one = {.kind = TDM_INIT_ONE};
static const tdm_init begin_small = {.kind = TDM_INIT_NORMAL, .scale = 0.02};

tdm_value tdm__layer_refuse(const tdm__stack *stack, const tdm__site *site, const char *fmt, ...)
{
    char message[384];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof(message), fmt, args);
    va_end(args);
    return tdm_graph_refuse(stack->graph, "%s: %s", site->place, message);
}

const char *tdm__sample_text(const tdm__stack *stack, tdm_value x, char text[128])
{
    tdm_shape shape = tdm_graph_shape(stack->graph, x);
    for (int i = 1; i < shape.rank; i++) shape.dim[i - 1] = shape.dim[i];
    if (shape.rank > 0) shape.rank--;
    return tdm_shape_text(&shape, text);
}

/* ---- common functions ------------------------------------------------------------------------- */

typedef struct fans {
    double in, out;
} fans;

static tdm_init init_for(const tdm__site *site, fans f)
{
    return (tdm_init){.kind = TDM_INIT_UNIFORM,
                      .scale = sqrt(6.0 / (site->before_rectifier ? f.in : f.in + f.out))};
}

static tdm_value layer_param(const tdm__stack *stack, const tdm__site *site, const char *what,
                             tdm_shape shape, tdm_init init)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof(name), "%s.%s", site->name, what);
    return tdm_graph_param(stack->graph, name, shape, init);
}

static int64_t size_of(const tdm__stack *stack, const tdm_job_layer *layer)
{
    return layer->size == TDM_JOB_SIZE_CLASSES ? stack->class_count : layer->size;
}

/* Whether x is an image [B, H, W, C] or a sequence [B, T, C], according to `rank`; stores an error
 * if not. */
static bool wants_rank(const tdm__stack *stack, const tdm__site *site, tdm_value x, int rank)
{
    char text[128];
    tdm_shape shape = tdm_graph_shape(stack->graph, x);
    if (shape.rank == rank) return true;
    bool is_raw = shape.rank == 2 && stack->options->sample_shape.rank == 1;
    tdm__layer_refuse(stack, site, "it takes %s, but gets %s%s",
                      rank == 4 ? "images, [height, width, channels]"
                                : "sequences, [length, channels]",
                      tdm__sample_text(stack, x, text),
                      !is_raw     ? ""
                      : rank == 4 ? "; if a sample is an image, set data.shape: [height, width, "
                                    "channels]"
                                  : "; if a sample is a sequence, set data.shape: [length, "
                                    "channels]");
    return false;
}

/* Layers that mix positions are not allowed in a token model. */
static bool may_mix(const tdm__stack *stack, const tdm__site *site)
{
    if (!stack->tokens) return true;
    tdm__layer_refuse(stack, site,
                      "it would use later tokens, which are to be predicted; use attention in a "
                      "model of tokens");
    return false;
}

/* Whether a window of `extent` positions fits into height and width, or into the length. */
static bool window_fits(const tdm__stack *stack, const tdm__site *site, tdm_value x, int64_t extent,
                        int64_t padding)
{
    char text[128];
    tdm_shape shape = tdm_graph_shape(stack->graph, x);
    for (int i = 1; i + 1 < shape.rank; i++) {
        if (shape.dim[i] + 2 * padding >= extent) continue;
        tdm__layer_refuse(stack, site,
                          "a window of %lld does not fit into %s with a padding of %lld",
                          (long long)extent, tdm__sample_text(stack, x, text), (long long)padding);
        return false;
    }
    return true;
}

/* ---- linear and convolutions ------------------------------------------------------------------ */

static tdm_value add_linear(tdm__stack *stack, const tdm__site *site, const tdm_job_layer *layer,
                            tdm_value x)
{
    tdm_shape shape = tdm_graph_shape(stack->graph, x);
    int64_t in = shape.dim[shape.rank - 1], out = size_of(stack, layer);
    tdm_init init = init_for(site, (fans){(double)in, (double)out});
    tdm_value weight = layer_param(stack, site, "weight", tdm_shape_2(out, in), init);
    tdm_value bias = TDM_VALUE_NONE;
    if (layer->bias) bias = layer_param(stack, site, "bias", tdm_shape_1(out), begin_zero);
    return tdm_graph_linear(stack->graph, x, weight, bias, site->activation);
}

static int64_t padding_of(const tdm_job_layer *layer)
{
    return layer->padding == TDM_JOB_PADDING_SAME ? layer->dilation * (layer->kernel - 1) / 2
                                                  : layer->padding;
}

static bool convolution_fits(const tdm__stack *stack, const tdm__site *site,
                             const tdm_job_layer *layer, tdm_value x, int rank)
{
    if (!wants_rank(stack, site, x, rank) || !may_mix(stack, site)) return false;
    int64_t in = tdm_graph_shape(stack->graph, x).dim[rank - 1], out = size_of(stack, layer);
    if (in % layer->groups != 0 || out % layer->groups != 0) {
        tdm__layer_refuse(
            stack, site,
            "%lld input channels and %lld output channels cannot be divided into %lld groups",
            (long long)in, (long long)out, (long long)layer->groups);
        return false;
    }
    return window_fits(stack, site, x, (layer->kernel - 1) * layer->dilation + 1,
                       padding_of(layer));
}

static tdm_init init_for_window(const tdm__site *site, const tdm_job_layer *layer, int64_t places,
                                int64_t in, int64_t out)
{
    double share = (double)places / (double)layer->groups;
    return init_for(site, (fans){share * (double)in, share * (double)out});
}

static tdm_value add_conv(tdm__stack *stack, const tdm__site *site, const tdm_job_layer *layer,
                          tdm_value x)
{
    if (!convolution_fits(stack, site, layer, x, 4)) return TDM_VALUE_NONE;
    int64_t in = tdm_graph_shape(stack->graph, x).dim[3], out = size_of(stack, layer);
    tdm__conv_settings settings = {
        .kernel = (int)layer->kernel,
        .stride = (int)layer->stride,
        .padding = (int)padding_of(layer),
        .dilation = (int)layer->dilation,
        .groups = (int)layer->groups,
        .with_bias = layer->bias,
        .activation = site->activation,
        .init = init_for_window(site, layer, layer->kernel * layer->kernel, in, out)};
    return tdm__layer_conv(stack->graph, site->name, x, out, &settings);
}

static tdm_value add_conv1d(tdm__stack *stack, const tdm__site *site, const tdm_job_layer *layer,
                            tdm_value x)
{
    if (!convolution_fits(stack, site, layer, x, 3)) return TDM_VALUE_NONE;
    int64_t in = tdm_graph_shape(stack->graph, x).dim[2], out = size_of(stack, layer);
    tdm_init init = init_for_window(site, layer, layer->kernel, in, out);
    tdm_value weight = layer_param(stack, site, "weight",
                                   tdm_shape_3(out, layer->kernel, in / layer->groups), init);
    tdm_conv_options options = {.stride = {1, (int)layer->stride},
                                .padding = {0, (int)padding_of(layer)},
                                .dilation = {1, (int)layer->dilation},
                                .groups = (int)layer->groups,
                                .activation = site->activation};
    if (layer->bias) options.bias = layer_param(stack, site, "bias", tdm_shape_1(out), begin_zero);
    return tdm_graph_conv1d(stack->graph, x, weight, &options);
}

/* ---- pools ------------------------------------------------------------------------------------ */

static tdm_value add_pool(tdm__stack *stack, const tdm__site *site, const tdm_job_layer *layer,
                          tdm_value x)
{
    tdm_shape shape = tdm_graph_shape(stack->graph, x);
    bool is_sequence = shape.rank == 3;
    if (!is_sequence && !wants_rank(stack, site, x, 4)) return TDM_VALUE_NONE;
    if (!may_mix(stack, site)) return TDM_VALUE_NONE;
    if (!window_fits(stack, site, x, layer->kernel, layer->padding)) return TDM_VALUE_NONE;
    int kernel = (int)layer->kernel, padding = (int)layer->padding;
    int stride = layer->stride > 0 ? (int)layer->stride : kernel;
    tdm_pool_options options = {
        .kernel = {kernel, kernel}, .stride = {stride, stride}, .padding = {padding, padding}};
    if (is_sequence) {
        options.kernel[0] = options.stride[0] = 1;
        options.padding[0] = 0;
        x = tdm_graph_reshape(stack->graph, x,
                              tdm_shape_4(shape.dim[0], 1, shape.dim[1], shape.dim[2]));
    }
    x = layer->kind == TDM_JOB_LAYER_MAX_POOL ? tdm_graph_max_pool(stack->graph, x, &options)
                                              : tdm_graph_average_pool(stack->graph, x, &options);
    if (!is_sequence) return x;
    shape = tdm_graph_shape(stack->graph, x);
    return tdm_graph_reshape(stack->graph, x,
                             tdm_shape_3(shape.dim[0], shape.dim[2], shape.dim[3]));
}

static tdm_value add_global_pool(tdm__stack *stack, const tdm__site *site,
                                 const tdm_job_layer *layer, tdm_value x)
{
    (void)layer;
    bool is_sequence = tdm_graph_shape(stack->graph, x).rank == 3;
    if (!is_sequence && !wants_rank(stack, site, x, 4)) return TDM_VALUE_NONE;
    if (!may_mix(stack, site)) return TDM_VALUE_NONE;
    return is_sequence ? tdm_graph_mean(stack->graph, x, 1)
                       : tdm_graph_global_pool(stack->graph, x);
}

/* ---- norms, activations, dropout -------------------------------------------------------------- */

static tdm_value batch_norm(tdm__stack *stack, const tdm__site *site, const char *name,
                            tdm__norm_settings settings, tdm_value x)
{
    tdm_shape shape = tdm_graph_shape(stack->graph, x);
    bool is_one_number = tdm_shape_elements(&shape) < 2 * shape.dim[shape.rank - 1];
    if (stack->options->training && is_one_number && !tdm__norm_is_synced(stack->options))
        return tdm__layer_refuse(
            stack, site,
            "a lane with one row has one number in each channel, which has no variance; make "
            "train.batch larger or parallel.lanes smaller, set data.last_batch to drop, or "
            "parallel.sync_batchnorm to true");
    return tdm__layer_batch_norm(stack->graph, stack->options, name, settings, x);
}

static tdm_value add_batch_norm(tdm__stack *stack, const tdm__site *site,
                                const tdm_job_layer *layer, tdm_value x)
{
    tdm__norm_settings settings = {.momentum = layer->momentum, .eps = layer->eps};
    return batch_norm(stack, site, site->name, settings, x);
}

static tdm_value add_norm(tdm__stack *stack, const tdm__site *site, const tdm_job_layer *layer,
                          tdm_value x)
{
    tdm_shape shape = tdm_graph_shape(stack->graph, x);
    tdm_shape channels = tdm_shape_1(shape.dim[shape.rank - 1]);
    tdm_value gain = layer_param(stack, site, "weight", channels, begin_one);
    if (layer->kind == TDM_JOB_LAYER_RMS_NORM)
        return tdm_graph_rms_norm(stack->graph, x, gain, layer->eps);
    tdm_value shift = layer_param(stack, site, "bias", channels, begin_zero);
    return tdm_graph_layer_norm(stack->graph, x, gain, shift, layer->eps);
}

tdm_activation tdm__layer_activation(int kind)
{
    switch ((tdm_job_layer_kind)kind) {
    case TDM_JOB_LAYER_RELU: return TDM_ACTIVATION_RELU;
    case TDM_JOB_LAYER_GELU: return TDM_ACTIVATION_GELU;
    case TDM_JOB_LAYER_GELU_TANH: return TDM_ACTIVATION_GELU_TANH;
    case TDM_JOB_LAYER_SILU: return TDM_ACTIVATION_SILU;
    case TDM_JOB_LAYER_TANH: return TDM_ACTIVATION_TANH;
    case TDM_JOB_LAYER_SIGMOID: return TDM_ACTIVATION_SIGMOID;
    default: return TDM_ACTIVATION_NONE;
    }
}

static tdm_value add_activation(tdm__stack *stack, const tdm__site *site,
                                const tdm_job_layer *layer, tdm_value x)
{
    (void)site;
    return tdm_graph_activation(stack->graph, x, tdm__layer_activation(layer->kind));
}

static tdm_value add_dropout(tdm__stack *stack, const tdm__site *site, const tdm_job_layer *layer,
                             tdm_value x)
{
    (void)site;
    return stack->options->training ? tdm_graph_dropout(stack->graph, x, layer->rate) : x;
}

/* ---- shapes ----------------------------------------------------------------------------------- */

static tdm_value add_flatten(tdm__stack *stack, const tdm__site *site, const tdm_job_layer *layer,
                             tdm_value x)
{
    (void)layer;
    tdm_shape shape = tdm_graph_shape(stack->graph, x);
    if (!may_mix(stack, site)) return TDM_VALUE_NONE;
    if (shape.rank == 2) return x;
    int64_t rows = shape.dim[0];
    return tdm_graph_reshape(stack->graph, x,
                             tdm_shape_2(rows, tdm_shape_elements(&shape) / (rows > 0 ? rows : 1)));
}

static tdm_value add_sequence(tdm__stack *stack, const tdm__site *site, const tdm_job_layer *layer,
                              tdm_value x)
{
    (void)layer;
    tdm_shape shape = tdm_graph_shape(stack->graph, x);
    if (!wants_rank(stack, site, x, 4)) return TDM_VALUE_NONE;
    return tdm_graph_reshape(stack->graph, x,
                             tdm_shape_3(shape.dim[0], shape.dim[1] * shape.dim[2], shape.dim[3]));
}

/* ---- sequences -------------------------------------------------------------------------------- */

static tdm_value add_embedding(tdm__stack *stack, const tdm__site *site, const tdm_job_layer *layer,
                               tdm_value x)
{
    tdm_value table = layer_param(stack, site, "weight",
                                  tdm_shape_2(stack->class_count, layer->size), begin_small);
    if (layer->tied) stack->table = table;
    return tdm_graph_embedding(stack->graph, table, x);
}

static tdm_value add_positions(tdm__stack *stack, const tdm__site *site, const tdm_job_layer *layer,
                               tdm_value x)
{
    (void)layer;
    tdm_shape shape = tdm_graph_shape(stack->graph, x);
    if (shape.rank != 4 && !wants_rank(stack, site, x, 3)) return TDM_VALUE_NONE;
    tdm_shape places = shape.rank == 4 ? tdm_shape_3(shape.dim[1], shape.dim[2], shape.dim[3])
                                       : tdm_shape_2(shape.dim[1], shape.dim[2]);
    return tdm_graph_add(stack->graph, x, layer_param(stack, site, "weight", places, begin_small));
}

static tdm_value add_attention(tdm__stack *stack, const tdm__site *site, const tdm_job_layer *layer,
                               tdm_value x)
{
    if (!wants_rank(stack, site, x, 3)) return TDM_VALUE_NONE;
    int64_t C = tdm_graph_shape(stack->graph, x).dim[2];
    if (C % layer->heads != 0)
        return tdm__layer_refuse(stack, site, "%lld channels cannot be divided among %lld heads",
                                 (long long)C, (long long)layer->heads);
    if (stack->tokens && layer->causal == TDM_JOB_CAUSAL_NO) {
        may_mix(stack, site);
        return TDM_VALUE_NONE;
    }
    bool is_causal = layer->causal == TDM_JOB_CAUSAL_YES || stack->tokens;
    tdm_attention_options options = {.heads = (int)layer->heads, .causal = is_causal};
    if (stack->options->training) options.dropout = layer->rate;
    tdm_init init = {.kind = TDM_INIT_UNIFORM, .scale = sqrt(3.0 / (double)C)};
    char name[NAME_BYTES];
    snprintf(name, sizeof(name), "%s.qkv", site->name);
    x = tdm__layer_linear(stack->graph, name, x, 3 * C, init, TDM_ACTIVATION_NONE);
    x = tdm_graph_attention(stack->graph, x, &options);
    snprintf(name, sizeof(name), "%s.out", site->name);
    return tdm__layer_linear(stack->graph, name, x, C, init, TDM_ACTIVATION_NONE);
}

/* ---- shortcuts -------------------------------------------------------------------------------- */

/* The stride that maps the positions of x to those of y, or 0. */
static int64_t stride_between(const tdm_shape *x, const tdm_shape *y)
{
    for (int64_t stride = 1; stride <= x->dim[1]; stride++) {
        bool fits = true;
        for (int i = 1; i + 1 < x->rank; i++)
            fits = fits && (x->dim[i] - 1) / stride + 1 == y->dim[i];
        if (fits) return stride;
    }
    return 0;
}

tdm_value tdm__layer_project(tdm__stack *stack, const tdm__site *site, bool norm, tdm_value x,
                             tdm_value like)
{
    char name[NAME_BYTES], a[128], b[128];
    tdm_shape before = tdm_graph_shape(stack->graph, x);
    tdm_shape after = tdm_graph_shape(stack->graph, like);
    int64_t stride = before.rank == 2 ? 1 : stride_between(&before, &after);
    if (before.rank != after.rank || stride == 0)
        return tdm__layer_refuse(stack, site,
                                 "the branch returns %s for an input of %s, and no projection can "
                                 "do the same",
                                 tdm__sample_text(stack, like, b), tdm__sample_text(stack, x, a));
    snprintf(name, sizeof(name), "%s.shortcut", site->name);
    tdm_graph_scope(stack->graph, name);
    tdm__site here = {.name = name, .place = site->place};
    tdm_job_layer layer = {.size = after.dim[after.rank - 1],
                           .kernel = 1,
                           .stride = stride,
                           .dilation = 1,
                           .groups = 1};
    x = before.rank == 4                     ? add_conv(stack, &here, &layer, x)
        : before.rank == 3 && !stack->tokens ? add_conv1d(stack, &here, &layer, x)
                                             : add_linear(stack, &here, &layer, x);
    if (!norm || !x.id) return x;
    snprintf(name, sizeof(name), "%s.shortcut.norm", site->name);
    return batch_norm(stack, site, name, (tdm__norm_settings){0}, x);
}

/* ---- all kinds -------------------------------------------------------------------------------- */

tdm_value tdm__layer_add(tdm__stack *stack, const tdm__site *site, const tdm_job_layer *layer,
                         tdm_value x)
{
    static tdm_value (*const adds[])(tdm__stack *, const tdm__site *, const tdm_job_layer *,
                                     tdm_value) = {
        [TDM_JOB_LAYER_LINEAR] = add_linear,         [TDM_JOB_LAYER_CONV] = add_conv,
        [TDM_JOB_LAYER_CONV1D] = add_conv1d,         [TDM_JOB_LAYER_MAX_POOL] = add_pool,
        [TDM_JOB_LAYER_AVERAGE_POOL] = add_pool,     [TDM_JOB_LAYER_GLOBAL_POOL] = add_global_pool,
        [TDM_JOB_LAYER_BATCH_NORM] = add_batch_norm, [TDM_JOB_LAYER_LAYER_NORM] = add_norm,
        [TDM_JOB_LAYER_RMS_NORM] = add_norm,         [TDM_JOB_LAYER_RELU] = add_activation,
        [TDM_JOB_LAYER_GELU] = add_activation,       [TDM_JOB_LAYER_GELU_TANH] = add_activation,
        [TDM_JOB_LAYER_SILU] = add_activation,       [TDM_JOB_LAYER_TANH] = add_activation,
        [TDM_JOB_LAYER_SIGMOID] = add_activation,    [TDM_JOB_LAYER_DROPOUT] = add_dropout,
        [TDM_JOB_LAYER_FLATTEN] = add_flatten,       [TDM_JOB_LAYER_SEQUENCE] = add_sequence,
        [TDM_JOB_LAYER_EMBEDDING] = add_embedding,   [TDM_JOB_LAYER_POSITIONS] = add_positions,
        [TDM_JOB_LAYER_ATTENTION] = add_attention,
    };
    return adds[layer->kind](stack, site, layer, x);
}
