/*
 * layers.c: layers that architectures share: an op together with its parameters, with PyTorch's
 * names (NAME.weight, NAME.bias, NAME.running_mean, NAME.running_var).
 */
#include "nn/internal.h"

#include <stdio.h>

enum { NAME_BYTES = 96 };

static const char *param_name(char buffer[NAME_BYTES], const char *name, const char *what)
{
    snprintf(buffer, NAME_BYTES, "%s.%s", name, what);
    return buffer;
}

tdm_activation tdm__activation_of(int job_activation)
{
    switch ((tdm_job_activation)job_activation) {
    case TDM_JOB_ACTIVATION_RELU: return TDM_ACTIVATION_RELU;
    case TDM_JOB_ACTIVATION_GELU: return TDM_ACTIVATION_GELU;
    case TDM_JOB_ACTIVATION_TANH: return TDM_ACTIVATION_TANH;
    case TDM_JOB_ACTIVATION_SIGMOID: return TDM_ACTIVATION_SIGMOID;
    }
    return TDM_ACTIVATION_NONE;
}

tdm_value tdm__layer_linear(tdm_graph *graph, const char *name, tdm_value x, int64_t out_features,
                            tdm_init weight_init, tdm_activation activation)
{
    char text[NAME_BYTES];
    tdm_shape shape = tdm_graph_shape(graph, x);
    int64_t in_features = shape.rank > 0 ? shape.dim[shape.rank - 1] : 0;
    tdm_value weight = tdm_graph_param(graph, param_name(text, name, "weight"),
                                       tdm_shape_2(out_features, in_features), weight_init);
    tdm_value bias = tdm_graph_param(graph, param_name(text, name, "bias"),
                                     tdm_shape_1(out_features), (tdm_init){.kind = TDM_INIT_ZERO});
    return tdm_graph_linear(graph, x, weight, bias, activation);
}

tdm_value tdm__layer_conv(tdm_graph *graph, const char *name, tdm_value x, int64_t out_channels,
                          const tdm__conv_settings *s)
{
    char text[NAME_BYTES];
    int groups = s->groups > 0 ? s->groups : 1;
    int64_t in_channels = tdm_graph_shape(graph, x).dim[3] / groups;
    tdm_value weight = tdm_graph_param(graph, param_name(text, name, "weight"),
                                       tdm_shape_4(out_channels, s->kernel, s->kernel, in_channels),
                                       s->init);
    tdm_conv_options options = {.stride = {s->stride, s->stride},
                                .padding = {s->padding, s->padding},
                                .dilation = {s->dilation, s->dilation},
                                .groups = groups,
                                .activation = s->activation};
    if (s->with_bias)
        options.bias = tdm_graph_param(graph, param_name(text, name, "bias"),
                                       tdm_shape_1(out_channels), (tdm_init){TDM_INIT_ZERO, 0});
    return tdm_graph_conv2d(graph, x, weight, &options);
}

bool tdm__norm_is_synced(const tdm_model_options *o)
{
    return o->training && o->job->parallel.sync_batchnorm && o->whole_batch > o->batch;
}

tdm_value tdm__layer_batch_norm(tdm_graph *graph, const tdm_model_options *o, const char *name,
                                tdm__norm_settings settings, tdm_value x)
{
    char text[NAME_BYTES];
    tdm_shape shape = tdm_graph_shape(graph, x);
    tdm_shape channels = tdm_shape_1(shape.rank > 0 ? shape.dim[shape.rank - 1] : 0);
    const tdm_init zero = {TDM_INIT_ZERO, 0}, one = {TDM_INIT_ONE, 0};
    double momentum = settings.momentum > 0 ? settings.momentum : 0.1;
    tdm_value observed_mean = TDM_VALUE_NONE, observed_variance = TDM_VALUE_NONE;

    tdm_batch_norm_options options = {
        .mode = o->training ? TDM_BATCH_NORM_TRAIN : TDM_BATCH_NORM_FIXED,
        .eps = settings.eps,
        .gamma = tdm_graph_param(graph, param_name(text, name, "weight"), channels, one),
        .beta = tdm_graph_param(graph, param_name(text, name, "bias"), channels, zero),
    };
    options.mean = tdm_graph_statistic(graph, param_name(text, name, "running_mean"), channels,
                                       zero, momentum);
    options.variance = tdm_graph_statistic(graph, param_name(text, name, "running_var"), channels,
                                           one, momentum);

    if (o->training) {
        options.observed_mean = &observed_mean;
        options.observed_variance = &observed_variance;
    }
    if (tdm__norm_is_synced(o)) {
        options.lane_rows = o->batch;
        options.batch_rows = o->whole_batch;
    }

    tdm_value y = tdm_graph_batch_norm(graph, x, &options);
    if (o->training) {
        /* Lanes are added: each contributes its share of the batch's rows. */
        double share = (double)o->batch * o->loss_scale;
        tdm_graph_follow(graph, options.mean, tdm_graph_scale(graph, observed_mean, share));
        tdm_graph_follow(graph, options.variance, tdm_graph_scale(graph, observed_variance, share));
    }
    return y;
}

tdm_value tdm__as_images(tdm_graph *graph, const tdm_model_options *o, tdm_value x)
{
    const tdm_shape *s = &o->sample_shape;
    char text[128];
    if (s->rank != 2 && s->rank != 3)
        return tdm_graph_refuse(
            graph,
            "this model needs images, but a sample has shape %s; if a sample is an image, set "
            "data.shape: [height, width, channels]",
            tdm_shape_text(s, text));
    return tdm_graph_reshape(
        graph, x, tdm_shape_4(o->batch, s->dim[0], s->dim[1], s->rank == 3 ? s->dim[2] : 1));
}

int64_t tdm__vocabulary_of(const tdm_model_options *o)
{
    return o->job->model.vocabulary > 0 ? o->job->model.vocabulary : o->class_count;
}

bool tdm__tokens_fit(tdm_graph *graph, const tdm_model_options *o, const char *model)
{
    int64_t T = o->sample_shape.dim[0], context = o->job->model.context;
    if (T != context)
        tdm_graph_refuse(graph, "%s: a sample has %lld tokens, but model.context is %lld", model,
                         (long long)T, (long long)context);
    else if (tdm__vocabulary_of(o) < o->class_count)
        tdm_graph_refuse(graph,
                         "%s: the data has %lld different tokens, but model.vocabulary is %lld; "
                         "raise it, or set it to auto",
                         model, (long long)o->class_count, (long long)tdm__vocabulary_of(o));
    else
        return true;
    return false;
}
