/*
 * nn.h: models. A named architecture is a function that adds its ops to a graph; a job says which
 * one and with what settings.
 *
 * One model is built several times: for training and for inference, and for each batch size. The
 * parameters are the same each time: same names, same order, same layout.
 */
#ifndef TANDEM_NN_H
#define TANDEM_NN_H

#include <tandem/base.h>
#include <tandem/graph.h>
#include <tandem/job.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tdm_model_options {
    const tdm_job *job;
    tdm_shape sample_shape;
    int64_t class_count;
    int64_t batch;     /* rows */
    bool training;     /* with dropout, loss and gradients */
    double loss_scale; /* training: the loss is the rows' sum times this */
} tdm_model_options;

/* Inputs: "x" f32 [batch, features] and, for training, "classes" i32 [batch].
 * Outputs: "logits"; for training "loss", otherwise "probabilities". */
#define TDM_MODEL_INPUT "x"
#define TDM_MODEL_CLASSES "classes"
#define TDM_MODEL_LOGITS "logits"
#define TDM_MODEL_PROBABILITIES "probabilities"
#define TDM_MODEL_LOSS "loss"
/* Buffers that every model has: raw features become (x - shift) * scale. */
#define TDM_MODEL_SHIFT "input.shift"
#define TDM_MODEL_SCALE "input.scale"

TDM_API tdm_status tdm_model_build(const tdm_model_options *options, tdm_graph **out,
                                   tdm_error *err);

/* Fills the block of parameters (tdm_graph_param_extent floats) with its first values. A function
 * of the seed and the model alone. */
TDM_API void tdm_model_init(const tdm_graph *graph, uint64_t seed, float *params);

/* A view of one parameter or buffer in the block; dtype NONE when there is none of that name. */
TDM_API tdm_tensor tdm_model_param(const tdm_graph *graph, const char *name, float *params);

#ifdef __cplusplus
}
#endif
#endif
