/*
 * cnn.c: a small convolutional network for images: for each number of channels a 3 x 3 convolution,
 * an activation and a 2 x 2 max pool, then fully connected layers as in the perceptron. Layers are
 * named conv1, conv2, ... and fc1, fc2, ...; the last one returns the logits.
 */
#include "nn/internal.h"

#include <math.h>
#include <stdio.h>

enum { KERNEL = 3 };

/* Uniform, with He's bound before a rectifying activation, Glorot's otherwise. */
static tdm_init init_for(bool hidden, int64_t in, int64_t out)
{
    double fan = hidden ? (double)in : (double)(in + out);
    return (tdm_init){.kind = TDM_INIT_UNIFORM, .scale = sqrt(6.0 / fan)};
}

static tdm_value cnn_convolve(tdm_graph *graph, const tdm_model_options *o, size_t index,
                              tdm_value x)
{
    char name[32];
    snprintf(name, sizeof(name), "conv%zu", index + 1);
    tdm_graph_scope(graph, name);
    tdm_graph_block(graph);
    tdm_shape shape = tdm_graph_shape(graph, x);
    int64_t channels = o->job->model.channels.values[index];
    tdm__conv_settings settings = {
        .kernel = KERNEL,
        .stride = 1,
        .padding = KERNEL / 2,
        .with_bias = true,
        .activation = tdm__activation_of(o->job->model.activation),
        .init = init_for(true, KERNEL * KERNEL * shape.dim[3], channels)};
    x = tdm__layer_conv(graph, name, x, channels, &settings);
    return tdm_graph_max_pool(graph, x, &(tdm_pool_options){.kernel = {2, 2}});
}

static tdm_value cnn_build(tdm_graph *graph, const tdm_model_options *o, tdm_value x)
{
    const tdm_job *job = o->job;
    x = tdm__as_images(graph, o, x);
    for (size_t i = 0; i < job->model.channels.count; i++) x = cnn_convolve(graph, o, i, x);
    tdm_shape shape = tdm_graph_shape(graph, x);
    x = tdm_graph_reshape(graph, x,
                          tdm_shape_2(shape.dim[0], shape.dim[1] * shape.dim[2] * shape.dim[3]));
    for (size_t i = 0; i <= job->model.hidden.count; i++) {
        bool hidden = i < job->model.hidden.count;
        char name[32];
        snprintf(name, sizeof(name), "fc%zu", i + 1);
        tdm_graph_scope(graph, name);
        tdm_graph_block(graph);
        int64_t in = tdm_graph_shape(graph, x).dim[1];
        int64_t out = hidden ? job->model.hidden.values[i] : o->class_count;
        x = tdm__layer_linear(graph, name, x, out, init_for(hidden, in, out),
                              hidden ? tdm__activation_of(job->model.activation)
                                     : TDM_ACTIVATION_NONE);
        if (hidden && o->training) x = tdm_graph_dropout(graph, x, job->model.dropout);
    }
    tdm_graph_scope(graph, NULL);
    return x;
}

const tdm_model_ops tdm__model_cnn = {.name = "cnn", .build = cnn_build};
