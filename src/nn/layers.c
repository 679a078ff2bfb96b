/* layers.c: pieces that architectures share. */
#include "nn/internal.h"

#include <stdio.h>

tdm_value tdm__layer_linear(tdm_graph *graph, const char *name, tdm_value x, int64_t out_features,
                            tdm_init weight_init)
{
    char weight_name[96], bias_name[96];
    snprintf(weight_name, sizeof(weight_name), "%s.weight", name);
    snprintf(bias_name, sizeof(bias_name), "%s.bias", name);
    int64_t in_features = tdm_graph_shape(graph, x).dim[1];
    tdm_value weight = tdm_graph_param(graph, weight_name, tdm_shape_2(out_features, in_features),
                                       weight_init);
    tdm_value bias = tdm_graph_param(graph, bias_name, tdm_shape_1(out_features),
                                     (tdm_init){.kind = TDM_INIT_ZERO});
    return tdm_graph_matmul(graph, x, weight, &(tdm_matmul_options){.trans_b = true, .bias = bias});
}

tdm_value tdm__layer_activation(tdm_graph *graph, int activation, tdm_value x)
{
    switch ((tdm_job_activation)activation) {
    case TDM_JOB_ACTIVATION_RELU: return tdm_graph_relu(graph, x);
    case TDM_JOB_ACTIVATION_GELU: return tdm_graph_gelu(graph, x);
    case TDM_JOB_ACTIVATION_TANH: return tdm_graph_tanh(graph, x);
    case TDM_JOB_ACTIVATION_SIGMOID: return tdm_graph_sigmoid(graph, x);
    }
    return TDM_VALUE_NONE;
}
