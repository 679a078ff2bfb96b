/*
 * eval.h: the part of module eval that only other modules use.
 *
 * <tandem/eval.h> declares metrics and evaluation. This header adds predictors that run on the parameters of a
 * training run, and evaluation by several ranks; libtandem.so does not export it.
 */
#ifndef TANDEM_EVAL_EVAL_H
#define TANDEM_EVAL_EVAL_H

#include <tandem/eval.h>

/* `model.batch` is the batch size; `params` is 64-byte aligned. NULL: the caller binds the plan to the
 * parameters (TDM_SPACE_PARAMS) before it is run. */
tdm_status tdm_predictor_create(const tdm_model_options *model, float *params, tdm_predictor **out,
                                tdm_error *err);

/*
 * For sharded parameters, which are gathered while the plan runs (tdm_prefetch of parallel.h): the plan,
 * and the function that runs it. `run` runs the plan once; with `has_rows` false this rank has no batch
 * while others have one, and only takes part in the collectives. From then on only
 * tdm_evaluate_together may be called.
 */
typedef tdm_status (*tdm_predictor_run_fn)(void *user, bool has_rows, tdm_error *err);
tdm_plan *tdm_predictor_plan(tdm_predictor *predictor);
void tdm_predictor_run_by(tdm_predictor *predictor, tdm_predictor_run_fn run, void *user);

/*
 * For models of sparse samples: writes the inputs of `count` samples to `x`, and their classes (NULL: not wanted), instead
 * of tdm_dataset_gather. If tdm_evaluate_together is to be called with several ranks, each calls it in every round, with
 * a count of 0 if it has no batch. Otherwise it must not fail.
 */
typedef tdm_status (*tdm_predictor_fill_fn)(void *user, const tdm_dataset *dataset,
                                            const int64_t *indices, int64_t count, void *x,
                                            int32_t *classes, tdm_error *err);
void tdm_predictor_fill_by(tdm_predictor *predictor, tdm_predictor_fill_fn fill, void *user);

/* Like tdm_evaluate, with the batches divided among all ranks of a world. All ranks get the same metrics,
 * with the same bits for any number of ranks. `comm` NULL: a single process. Collective. Fails with
 * TDM_ERR_NO_MEMORY, or with the error of a run or of the exchange of results. */
tdm_status tdm_evaluate_together(tdm_predictor *predictor, const tdm_dataset *dataset,
                                 tdm_comm *comm, tdm_metrics *out, tdm_error *err);

#endif
