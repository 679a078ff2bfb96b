/*
 * eval.h: how good a model is. Inference over a data set, and metrics from it.
 *
 * Losses, each a double, are summed exactly, and so are counts: a result depends neither on the size
 * of the evaluation's batches nor on how many ranks run them.
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

/* A model ready to infer: parameters are borrowed and may change between calls. */
typedef struct tdm_predictor tdm_predictor;

/* `model.batch` is the size of the batches it works in; `params` is 64-byte aligned. NULL: the caller
 * binds the plan to them (TDM_SPACE_PARAMS) before it is run. */
TDM_API tdm_status tdm_predictor_create(const tdm_model_options *model, float *params,
                                        tdm_predictor **out, tdm_error *err);
TDM_API void tdm_predictor_destroy(tdm_predictor *predictor);
TDM_API int64_t tdm_predictor_batch(const tdm_predictor *predictor);
TDM_API int64_t tdm_predictor_class_count(const tdm_predictor *predictor);

/*
 * Where parameters are not all there, but brought while the plan runs (tdm_prefetch of parallel.h): its
 * plan, and who runs it. `run` runs the plan once, from its beginning to its end; with `has_rows`
 * false this rank has nothing to run while others have, and only takes part in what is collective.
 * From then on tdm_evaluate_together is what may be called.
 */
typedef tdm_status (*tdm_predictor_run_fn)(void *user, bool has_rows, tdm_error *err);
TDM_API tdm_plan *tdm_predictor_plan(tdm_predictor *predictor);
TDM_API void tdm_predictor_run_by(tdm_predictor *predictor, tdm_predictor_run_fn run, void *user);

/* Samples [first, first + count) of the data set, count at most the batch. *out_logits and
 * *out_probabilities are [count, classes], valid until the next call. Of a model of tokens,
 * *out_logits is [count, T, V] and *out_probabilities NULL. Allocates nothing. */
TDM_API void tdm_predictor_run(tdm_predictor *predictor, const tdm_dataset *dataset, int64_t first,
                               int64_t count, const float **out_logits,
                               const float **out_probabilities);

typedef struct tdm_metrics {
    int64_t sample_count;
    int64_t target_count; /* classes that were to be predicted: one a sample, or one a token */
    double loss;          /* mean cross entropy of a target */
    double accuracy;      /* in [0, 1], of the targets */
    /* Targets for which the model's numbers make no probabilities: a NaN or +infinity among the
     * logits, or nothing but -infinity. They count as wrong, and then the loss is NaN. A logit of
     * -infinity is a class that the model rules out; where that is the truth, the loss is infinite. */
    int64_t bad_count;
} tdm_metrics;

/* The data set must have classes. `confusion` (may be NULL) gets class_count x class_count counts,
 * [truth][prediction]; spare tokens of a larger model.vocabulary are not counted there, nor are
 * targets without a prediction (bad_count). */
TDM_API tdm_metrics tdm_evaluate(tdm_predictor *predictor, const tdm_dataset *dataset,
                                 int64_t *confusion);

/* The same by all ranks of a world, who share the batches; all get the same metrics, and the same bits
 * for any number of ranks. NULL: a single process. Collective. TDM_ERR_NO_MEMORY, or what a run or the
 * exchange of the results fails with. */
TDM_API tdm_status tdm_evaluate_together(tdm_predictor *predictor, const tdm_dataset *dataset,
                                         tdm_comm *comm, tdm_metrics *out, tdm_error *err);

/* Whether all of them are finite. */
TDM_API bool tdm_all_finite(const float *values, int64_t count);
/* The most probable class; the lowest index where several are equal. */
TDM_API int64_t tdm_argmax(const float *values, int64_t count);

#ifdef __cplusplus
}
#endif
#endif
