/*
 * resnet.c: residual networks of 18, 34 and 50 layers (He et al., 2015), as in torchvision and with
 * its names: conv1, bn1, layer1.0.conv1, ..., fc. The stem for small images (`cifar`) is a 3 x 3
 * convolution; the one for large images (`imagenet`) is a 7 x 7 convolution with stride 2 and a max
 * pool.
 *
 * Initial weights of convolutions are He's normal values with fan-out; norms start at one and zero;
 * batch norm keeps running statistics with momentum 0.1.
 */
#include "nn/internal.h"

#include <math.h>
#include <stdio.h>

enum { STAGE_COUNT = 4, BOTTLENECK_GROWTH = 4 };

typedef struct plan_of_depth {
    bool bottleneck;
    int blocks[STAGE_COUNT];
} plan_of_depth;

/* By tdm_job_depth. */
static const plan_of_depth plans[] = {
    [TDM_JOB_DEPTH_18] = {false, {2, 2, 2, 2}},
    [TDM_JOB_DEPTH_34] = {false, {3, 4, 6, 3}},
    [TDM_JOB_DEPTH_50] = {true, {3, 4, 6, 3}},
};

/* One convolution and its norm: PREFIXconvN.weight, PREFIXbnN.*. */
typedef struct unit {
    const char *prefix;
    const char *conv, *norm;
    int64_t channels;
    int kernel, stride;
    bool rectify;
} unit;

static tdm_value conv_norm(tdm_graph *graph, const tdm_model_options *o, const unit *u, tdm_value x)
{
    char conv[64], norm[64];
    snprintf(conv, sizeof(conv), "%s%s", u->prefix, u->conv);
    snprintf(norm, sizeof(norm), "%s%s", u->prefix, u->norm);
    double fan_out = (double)u->channels * u->kernel * u->kernel;
    tdm__conv_settings settings = {
        .kernel = u->kernel,
        .stride = u->stride,
        .padding = u->kernel / 2,
        .init = {.kind = TDM_INIT_NORMAL, .scale = sqrt(2.0 / fan_out)},
    };
    tdm_graph_scope(graph, conv);
    x = tdm__layer_conv(graph, conv, x, u->channels, &settings);
    tdm_graph_scope(graph, norm);
    x = tdm__layer_batch_norm(graph, o, norm, (tdm__norm_settings){0}, x);
    return u->rectify ? tdm_graph_relu(graph, x) : x;
}

static tdm_value resnet_shortcut(tdm_graph *graph, const tdm_model_options *o, const char *prefix,
                                 int64_t channels, int stride, tdm_value x)
{
    if (stride == 1 && tdm_graph_shape(graph, x).dim[3] == channels) return x;
    unit u = {prefix, "downsample.0", "downsample.1", channels, 1, stride, false};
    return conv_norm(graph, o, &u, x);
}

static tdm_value resnet_block(tdm_graph *graph, const tdm_model_options *o, const char *prefix,
                              bool bottleneck, int64_t width, int stride, tdm_value x)
{
    int64_t out = bottleneck ? width * BOTTLENECK_GROWTH : width;
    tdm_value y;
    tdm_graph_block(graph);
    if (bottleneck) {
        y = conv_norm(graph, o, &(unit){prefix, "conv1", "bn1", width, 1, 1, true}, x);
        y = conv_norm(graph, o, &(unit){prefix, "conv2", "bn2", width, 3, stride, true}, y);
        y = conv_norm(graph, o, &(unit){prefix, "conv3", "bn3", out, 1, 1, false}, y);
    } else {
        y = conv_norm(graph, o, &(unit){prefix, "conv1", "bn1", width, 3, stride, true}, x);
        y = conv_norm(graph, o, &(unit){prefix, "conv2", "bn2", width, 3, 1, false}, y);
    }
    tdm_value short_way = resnet_shortcut(graph, o, prefix, out, stride, x);
    char scope[64];
    snprintf(scope, sizeof(scope), "%sresidual", prefix);
    tdm_graph_scope(graph, scope);
    return tdm_graph_relu(graph, tdm_graph_add(graph, y, short_way));
}

static tdm_value resnet_stem(tdm_graph *graph, const tdm_model_options *o, tdm_value x)
{
    bool large = o->job->model.stem == TDM_JOB_STEM_IMAGENET;
    unit u = {"", "conv1", "bn1", 64, large ? 7 : 3, large ? 2 : 1, true};
    x = conv_norm(graph, o, &u, x);
    if (!large) return x;
    return tdm_graph_max_pool(
        graph, x, &(tdm_pool_options){.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
}

static tdm_value resnet_build(tdm_graph *graph, const tdm_model_options *o, tdm_value x)
{
    const plan_of_depth *plan = &plans[o->job->model.depth];
    x = resnet_stem(graph, o, tdm__as_images(graph, o, x));
    for (int stage = 0; stage < STAGE_COUNT; stage++) {
        for (int i = 0; i < plan->blocks[stage]; i++) {
            char prefix[48];
            snprintf(prefix, sizeof(prefix), "layer%d.%d.", stage + 1, i);
            int stride = stage > 0 && i == 0 ? 2 : 1;
            x = resnet_block(graph, o, prefix, plan->bottleneck, (int64_t)64 << stage, stride, x);
        }
    }
    tdm_graph_scope(graph, "fc");
    tdm_graph_block(graph);
    x = tdm_graph_global_pool(graph, x);
    int64_t in = tdm_graph_shape(graph, x).dim[1];
    tdm_init init = {.kind = TDM_INIT_UNIFORM, .scale = 1.0 / sqrt((double)in)};
    x = tdm__layer_linear(graph, "fc", x, o->class_count, init, TDM_ACTIVATION_NONE);
    tdm_graph_scope(graph, NULL);
    return x;
}

const tdm_model_ops tdm__model_resnet = {.name = "resnet", .build = resnet_build};
