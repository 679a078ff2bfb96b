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
    tdm_shape sample_shape; /* [T] of windows of tokens */
    int64_t class_count;    /* of tokens: the characters that the data has */
    int64_t batch;          /* rows */
    bool training;          /* with dropout, loss and gradients */
    double loss_scale; /* training: the loss is the rows' sum times this; a row of tokens counts
                          with the mean over them; penalties count times this and batch */
    const struct tdm_model_library *library; /* set by tdm_model_build: see library.h */
    int64_t whole_batch; /* training a lane: rows of the batch that `batch` are part of; 0: they are
                            the batch. For what is taken over all lanes (parallel.sync_batchnorm) */
    int threads;         /* that this process has CPUs for; 0: 1. See tdm_model_threads */
} tdm_model_options;

/*
 * Models of features: inputs "x" f32 [batch, features] and, for training, "classes" i32 [batch];
 * outputs "logits" [batch, classes]; for training "loss", otherwise "probabilities".
 * Models of tokens: inputs "x" i32 [batch, T] and, for training, "classes" i32 [batch, T], the
 * tokens that come next; outputs "logits" [batch, T, V] and, for training, "loss".
 */
#define TDM_MODEL_INPUT "x"
#define TDM_MODEL_CLASSES "classes"
#define TDM_MODEL_LOGITS "logits"
#define TDM_MODEL_PROBABILITIES "probabilities"
#define TDM_MODEL_LOSS "loss"
/* Buffers that every model of features has: raw features become (x - shift) * scale. */
#define TDM_MODEL_SHIFT "input.shift"
#define TDM_MODEL_SCALE "input.scale"

/* Whether the job's model can be had: a library is opened and asked whether it takes the options. */
TDM_API tdm_status tdm_model_check(const tdm_job *job, tdm_error *err);
/* Whether the job's model takes tokens, and so a text, in place of features. False for one that
 * cannot be had; opens a library's file. */
TDM_API bool tdm_model_takes_tokens(const tdm_job *job);
/* How many rows eval.batch makes: for tokens it counts those, in whole rows. */
TDM_API int64_t tdm_model_eval_rows(const tdm_model_options *options);

TDM_API tdm_status tdm_model_build(const tdm_model_options *options, tdm_graph **out,
                                   tdm_error *err);

/* The model as a lane of `rows` rows of a batch trains it: its loss is its share of the batch's mean.
 * With parallel.sync_batchnorm it may have sums over lanes (tdm_plan_lane_sum_at). */
TDM_API tdm_model_options tdm_model_of_lane(const tdm_model_options *model, int64_t rows,
                                            int64_t batch);
/* Threads for the kernels of a model: what its job says, and where that is auto, `threads`; for vendor
 * kernels, whose bits depend on it, auto is 1. */
TDM_API int tdm_model_threads(const tdm_model_options *options);
/* How a job wants its graphs planned: with which kernels, on how many threads. */
TDM_API tdm_plan_options tdm_model_plan_options(const tdm_model_options *options);

/* Fills the block of parameters (tdm_graph_param_extent floats) with its first values. A function
 * of the seed and the model alone. */
TDM_API void tdm_model_init(const tdm_graph *graph, uint64_t seed, float *params);
/* Of these the values [first, first + count) of one parameter, statistic or buffer. */
TDM_API void tdm_model_init_part(const tdm_graph *graph, uint64_t seed, size_t param_index,
                                 size_t first, size_t count, float *out);

/* A view of one parameter or buffer in the block; dtype NONE when there is none of that name. */
TDM_API tdm_tensor tdm_model_param(const tdm_graph *graph, const char *name, float *params);

/* ---- text, token by token -------------------------------------------------------------------- */

/*
 * A model of tokens that reads a text and says after each token what may come next. It remembers
 * the keys and values of what it has read, so a token costs one row of each matrix product, not a
 * whole window. It sees at most the model's context: once that is full, it goes on with the later
 * half of it, which is read again from the start. Parameters are borrowed. One thread at a time.
 */
typedef struct tdm_decoder tdm_decoder;

/* `params` is the block of a graph that tdm_model_build made with these options. */
TDM_API tdm_status tdm_decoder_create(const tdm_model_options *model, const float *params,
                                      tdm_decoder **out, tdm_error *err);
TDM_API void tdm_decoder_destroy(tdm_decoder *decoder);
TDM_API void tdm_decoder_reset(tdm_decoder *decoder);               /* forgets all it has read */
TDM_API int64_t tdm_decoder_vocabulary(const tdm_decoder *decoder); /* V */
TDM_API int64_t tdm_decoder_context(const tdm_decoder *decoder);
/* Reads `count` (at least 1) tokens, each in [0, V). Returns the logits [V] of what comes after the
 * last one, valid until the next call. Allocates nothing. */
TDM_API const float *tdm_decoder_read(tdm_decoder *decoder, const int32_t *tokens, int64_t count);

/* How the next token is chosen. */
typedef struct tdm_choice_options {
    double temperature; /* the logits are divided by it; 0: always the most probable */
    int64_t top_k;      /* only the so many most probable; 0: all */
    double top_p;       /* only the most probable that together have this much; 0 or 1: all */
} tdm_choice_options;

typedef struct tdm_choice {
    int32_t token;
    double weight;
} tdm_choice;

/*
 * Chooses a token by its logits [count] and a number `draw`, uniform in [0, 1). Equal logits stand
 * in order of their number. `scratch` has room for `count`. The most probable is chosen when a
 * logit is not finite in such a way that there is no probability.
 */
TDM_API int32_t tdm_choose_token(const float *logits, int64_t count,
                                 const tdm_choice_options *options, double draw,
                                 tdm_choice *scratch);

#ifdef __cplusplus
}
#endif
#endif
