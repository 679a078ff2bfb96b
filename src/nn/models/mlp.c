/*
 * mlp.c: the multi-layer perceptron: fully connected layers with an activation and, in training,
 * dropout between them. Layers are named fc1, fc2, ...; the last one returns the logits. Without a
 * hidden layer it is multinomial logistic regression.
 *
 * Initial weights are uniform: with He's bound sqrt(6 / in) before ReLU and GELU, which halve the
 * variance, and Glorot's sqrt(6 / (in + out)) elsewhere. Initial biases are zero.
 */
#include "nn/internal.h"

#include <math.h>
#include <stdio.h>

static tdm_init weight_init(int activation, bool hidden, int64_t in, int64_t out)
{
    bool rectifies = activation == TDM_JOB_ACTIVATION_RELU || activation == TDM_JOB_ACTIVATION_GELU;
    double fan = hidden && rectifies ? (double)in : (double)(in + out);
    return (tdm_init){.kind = TDM_INIT_UNIFORM, .scale = sqrt(6.0 / fan)};
}

static tdm_value mlp_build(tdm_graph *graph, const tdm_model_options *options, tdm_value x)
{
    const tdm_job *job = options->job;
    size_t layer_count = job->model.hidden.count + 1;
    for (size_t i = 0; i < layer_count; i++) {
        bool hidden = i + 1 < layer_count;
        char name[32];
        snprintf(name, sizeof(name), "fc%zu", i + 1);
        tdm_graph_scope(graph, name);
        tdm_graph_block(graph);
        int64_t in = tdm_graph_shape(graph, x).dim[1];
        int64_t out = hidden ? job->model.hidden.values[i] : options->class_count;
        x = tdm__layer_linear(
            graph, name, x, out, weight_init(job->model.activation, hidden, in, out),
            hidden ? tdm__activation_of(job->model.activation) : TDM_ACTIVATION_NONE);
        if (hidden && options->training) x = tdm_graph_dropout(graph, x, job->model.dropout);
    }
    tdm_graph_scope(graph, NULL);
    return x;
}

const tdm_model_ops tdm__model_mlp = {.name = "mlp", .build = mlp_build};
