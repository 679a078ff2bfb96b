/*
 * eval.h: evaluation of a model: inference over a data set, and its metrics.
 *
 * Losses, each a double, are summed exactly, and so are counts: a result depends neither on the batch
 * size of the evaluation nor on the number of ranks.
 */
#ifndef TANDEM_EVAL_H
#define TANDEM_EVAL_H

#include <tandem/base.h>
#include <tandem/comm.h>
#include <tandem/data.h>
#include <tandem/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A model for inference. The parameters are borrowed and may change between calls. */
typedef struct tdm_predictor tdm_predictor;

TDM_API void tdm_predictor_destroy(tdm_predictor *predictor);
TDM_API int64_t tdm_predictor_batch(const tdm_predictor *predictor);
TDM_API int64_t tdm_predictor_class_count(const tdm_predictor *predictor);

/* Samples [first, first + count) of the data set, count at most the batch. *out_logits and
 * *out_probabilities are [count, classes], valid until the next call. For a token model,
 * *out_logits is [count, T, V] and *out_probabilities NULL. Allocates nothing. */
TDM_API void tdm_predictor_run(tdm_predictor *predictor, const tdm_dataset *dataset, int64_t first,
                               int64_t count, const float **out_logits,
                               const float **out_probabilities);

typedef struct tdm_metrics {
    int64_t sample_count;
    int64_t target_count; /* number of predictions: one per sample, or one per token */
    double loss;          /* mean cross entropy over the targets */
    double accuracy;      /* in [0, 1], over the targets */
    /* Targets without valid probabilities: a NaN or +infinity among the logits, or only -infinity. They
     * count as wrong, and the loss is NaN. A logit of -infinity excludes a class; if that is the true
     * class, the loss is infinite. */
    int64_t bad_count;
    /* Models of sparse samples: the area under the ROC curve, the probability that a sample of the second class has a
     * higher score than one of the first; equal scores count half. Not if all samples are of one class, if there is a
     * target without a prediction, or if memory runs out. */
    bool has_auc;
    double auc;
} tdm_metrics;

/* The data set must have classes. `confusion` (may be NULL) gets class_count x class_count counts,
 * [truth][prediction]; tokens beyond the class count of a larger model.vocabulary are not counted, nor
 * are targets without a prediction (bad_count). */
TDM_API tdm_metrics tdm_evaluate(tdm_predictor *predictor, const tdm_dataset *dataset,
                                 int64_t *confusion);

/* ---- text generation -------------------------------------------------------------------------- */

typedef struct tdm_generate_options {
    const char *const *characters; /* the class names of the checkpoint: the text of each token */
    int64_t character_count;
    const char *prompt;        /* the beginning of the text; NULL or "": the start of a line */
    int64_t token_count;       /* to generate */
    tdm_choice_options choice; /* how each token is chosen */
    uint64_t seed;             /* of the choices */
} tdm_generate_options;

/* Receives the text of one token after the other. An error ends the generation. */
typedef tdm_status (*tdm_generate_fn)(const char *text, void *user, tdm_error *err);

/*
 * Generates text with a token model. The text is a function of the model and the options: the random
 * number for the n-th token is the n-th of the seed's sequence. If the prompt is longer than the model's
 * context, only its last part is used. TDM_ERR_FORMAT if the prompt has a character without a token.
 */
TDM_API tdm_status tdm_generate(tdm_decoder *decoder, const tdm_generate_options *options,
                                tdm_generate_fn fn, void *user, tdm_error *err);

/* ---- numbers ---------------------------------------------------------------------------------- */

/* Whether all values are finite. */
TDM_API bool tdm_all_finite(const float *values, int64_t count);
/* The index of the largest value; the lowest index if several are equal. */
TDM_API int64_t tdm_argmax(const float *values, int64_t count);

#ifdef __cplusplus
}
#endif
#endif
