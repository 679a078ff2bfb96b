/* internal.h: how an architecture plugs in: one table each, listed in registry.c. */
#ifndef TANDEM_NN_INTERNAL_H
#define TANDEM_NN_INTERNAL_H

#include <tandem/nn.h>

typedef struct tdm_model_ops {
    const char *name;
    /* From normalised features [B, F] to logits [B, classes]. Mistakes stay in the graph. */
    tdm_value (*build)(tdm_graph *graph, const tdm_model_options *options, tdm_value x);
} tdm_model_ops;

extern const tdm_model_ops tdm__model_mlp;

/* By tdm_job_model. */
const tdm_model_ops *tdm__model_find(int kind);

/* A fully connected layer, y = x W^T + b, with parameters NAME.weight [out, in] and NAME.bias. */
tdm_value tdm__layer_linear(tdm_graph *graph, const char *name, tdm_value x, int64_t out_features,
                            tdm_init weight_init);
tdm_value tdm__layer_activation(tdm_graph *graph, int activation, tdm_value x);

#endif
