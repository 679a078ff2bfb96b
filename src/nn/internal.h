/* internal.h: the interface of architectures: one table each, listed in registry.c. */
#ifndef TANDEM_NN_INTERNAL_H
#define TANDEM_NN_INTERNAL_H

#include "os/os.h"

#include <tandem/library.h>
#include <tandem/nn.h>

typedef struct tdm_model_ops {
    const char *name;
    /* From normalised features [B, F] to logits [B, classes], or from tokens i32 [B, T] to logits
     * [B, T, V]. Errors are stored in the graph. */
    tdm_value (*build)(tdm_graph *graph, const tdm_model_options *options, tdm_value x);
} tdm_model_ops;

extern const tdm_model_ops tdm__model_mlp, tdm__model_cnn, tdm__model_resnet, tdm__model_gpt,
    tdm__model_layers, tdm__model_lr, tdm__model_fm, tdm__model_wide_deep, tdm__model_dlrm;

/* By tdm_job_model; NULL for that of a library. */
const tdm_model_ops *tdm__model_find(int kind);

/* ---- library.c, library_options.c ------------------------------------------------------------- */

typedef struct tdm__library {
    tdm_shared_object object;
    const tdm_model_library *model; /* inside it */
} tdm__library;

/* Opens the job's library and checks everything that does not need a graph. The caller closes the
 * object. */
tdm_status tdm__library_open(const tdm_job *job, tdm__library *out, tdm_error *err);
bool tdm__library_takes_tokens(const tdm_job *job);
tdm_status tdm__library_check_options(const tdm_job *job, const tdm_model_library *model,
                                      tdm_error *err);
/* Stores an error in the graph if the logits are invalid. */
void tdm__library_check_logits(tdm_graph *graph, const tdm_model_options *options,
                               tdm_value logits);
/* Fails if the graph's parameters differ from those of `reference`: one row, inference. */
tdm_status tdm__library_compare(const tdm_graph *graph, const tdm_graph *reference,
                                const tdm_model_options *options, tdm_error *err);

tdm_activation tdm__activation_of(int job_activation);

/* A fully connected layer over the last dimension, y = act(x W^T + b): NAME.weight [out, in],
 * NAME.bias. */
tdm_value tdm__layer_linear(tdm_graph *graph, const char *name, tdm_value x, int64_t out_features,
                            tdm_init weight_init, tdm_activation activation);

typedef struct tdm__conv_settings {
    int kernel, stride, padding; /* the same in both directions */
    int dilation, groups;        /* 0: 1 */
    bool with_bias;
    tdm_activation activation;
    tdm_init init;
} tdm__conv_settings;

/* x [B, H, W, C]: NAME.weight [out, kernel, kernel, C / groups] and, optionally, NAME.bias. */
tdm_value tdm__layer_conv(tdm_graph *graph, const char *name, tdm_value x, int64_t out_channels,
                          const tdm__conv_settings *settings);
typedef struct tdm__norm_settings {
    double momentum; /* 0: 0.1 */
    double eps;      /* 0: 1e-5 */
} tdm__norm_settings;

/* Whether batch norms use statistics over all lanes of the batch instead of these rows. */
bool tdm__norm_is_synced(const tdm_model_options *options);
/* NAME.weight, NAME.bias, and the running statistics NAME.running_mean and NAME.running_var, which
 * training updates and inference uses. */
tdm_value tdm__layer_batch_norm(tdm_graph *graph, const tdm_model_options *options,
                                const char *name, tdm__norm_settings settings, tdm_value x);
/* The vocabulary size of a token model. */
int64_t tdm__vocabulary_of(const tdm_model_options *options);
/* Checks model.context and model.vocabulary against the data. If they do not fit, stores an error,
 * which begins with the model's name, in the graph. */
bool tdm__tokens_fit(tdm_graph *graph, const tdm_model_options *options, const char *model);
/* Features [B, F] as images [B, H, W, C] of the samples' shape. */
tdm_value tdm__as_images(tdm_graph *graph, const tdm_model_options *options, tdm_value x);

#endif
