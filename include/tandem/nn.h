/*
 * nn.h: models. A named architecture is a function that adds its ops to a graph; a job selects one
 * and sets its options.
 *
 * A model is built several times: for training and for inference, and for each batch size. The
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
    tdm_shape sample_shape; /* [T] for windows of tokens */
    int64_t class_count;    /* for tokens: the number of characters in the data */
    int64_t batch;          /* rows */
    bool training;          /* with dropout, loss and gradients */
    double loss_scale; /* training: the loss is the sum over rows times this; a row of tokens counts
                        * with its mean; penalties count times this and batch */
    const struct tdm_model_library *library; /* set by tdm_model_build: see library.h */
    int64_t whole_batch; /* training a lane: rows of the whole batch; 0: `batch` is all of it. For
                          * statistics over all lanes (parallel.sync_batchnorm) */
    int threads;         /* number of CPUs available to this process; 0: 1. See tdm_model_threads */
} tdm_model_options;

/*
 * Models of features: inputs "x" f32 [batch, features] and, for training, "classes" i32 [batch];
 * outputs "logits" [batch, classes]; for training "loss", otherwise "probabilities". Models of
 * tokens: inputs "x" i32 [batch, T] and, for training, "classes" i32 [batch, T], the next tokens;
 * outputs "logits" [batch, T, V] and, for training, "loss".
 */
#define TDM_MODEL_INPUT "x"
#define TDM_MODEL_CLASSES "classes"
#define TDM_MODEL_LOGITS "logits"
#define TDM_MODEL_PROBABILITIES "probabilities"
#define TDM_MODEL_LOSS "loss"
/* Models of sparse samples, in training: the gradient of the input, an output of the same shape. */
#define TDM_MODEL_INPUT_GRADIENT "d_x"
/* Buffers of every model of features: raw features become (x - shift) * scale. */
#define TDM_MODEL_SHIFT "input.shift"
#define TDM_MODEL_SCALE "input.scale"

/* Checks whether the job's model is available: a library is opened, and validates the options. */
TDM_API tdm_status tdm_model_check(const tdm_job *job, tdm_error *err);
/* Whether the job's model takes tokens, and thus text, instead of features. False if it is not
 * available; opens the file of a library. */
TDM_API bool tdm_model_takes_tokens(const tdm_job *job);

TDM_API tdm_status tdm_model_build(const tdm_model_options *options, tdm_graph **out,
                                   tdm_error *err);

/* Fills the block of parameters (tdm_graph_param_extent floats) with its initial values, a function
 * of the seed and the model only. */
TDM_API void tdm_model_init(const tdm_graph *graph, uint64_t seed, float *params);

/* A view of one parameter or buffer in the block; dtype NONE if there is none of that name. */
TDM_API tdm_tensor tdm_model_param(const tdm_graph *graph, const char *name, float *params);

/* ---- text generation -------------------------------------------------------------------------- */

/*
 * A token model that reads a text token by token and predicts the next token. It caches the keys
 * and values of the tokens it has read, so a token costs one row of each matrix product, not a
 * whole window. Its limit is the model's context: once that is full, it continues with the later
 * half, which is read again from the start. Parameters are borrowed. One thread at a time.
 */
typedef struct tdm_decoder tdm_decoder;

TDM_API void tdm_decoder_destroy(tdm_decoder *decoder);

/* How the next token is chosen. */
typedef struct tdm_choice_options {
    double temperature; /* the logits are divided by it; 0: always the most probable token */
    int64_t top_k;      /* only the top_k most probable tokens; 0: all */
    double top_p;       /* only the most probable tokens whose probabilities sum to this; 0 or 1:
                         * all */
} tdm_choice_options;

#ifdef __cplusplus
}
#endif
#endif
