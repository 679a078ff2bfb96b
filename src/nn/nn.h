/*
 * nn.h: the part of module nn that only other modules use.
 *
 * <tandem/nn.h> declares models. This header adds the decoder that generates text and parts of initialisation;
 * libtandem.so does not export it.
 */
#ifndef TANDEM_NN_NN_H
#define TANDEM_NN_NN_H

#include <tandem/nn.h>

/* The number of rows that eval.batch means: for tokens it counts tokens, in whole rows. */
int64_t tdm_model_eval_rows(const tdm_model_options *options);

/* The model as trained by a lane of `rows` rows of a batch: its loss is its share of the batch's
 * mean. With parallel.sync_batchnorm it may have sums over lanes (tdm_plan_lane_sum_at). */
tdm_model_options tdm_model_of_lane(const tdm_model_options *model, int64_t rows, int64_t batch);
/* The plan options of a job: kernels and number of threads. */
tdm_plan_options tdm_model_plan_options(const tdm_model_options *options);

/* Threads for the kernels of a model: as set in the job; if that is auto, `threads`, or 1 for
 * vendor kernels, whose bits depend on it. */
int tdm_model_threads(const tdm_model_options *options);

/* The initial values [first, first + count) of one parameter, statistic or buffer. */
void tdm_model_init_part(const tdm_graph *graph, uint64_t seed, size_t param_index, size_t first,
                         size_t count, float *out);

/* ---- text generation -------------------------------------------------------------------------- */

/* `params` is the block of a graph that tdm_model_build built with these options. */
tdm_status tdm_decoder_create(const tdm_model_options *model, const float *params,
                              tdm_decoder **out, tdm_error *err);
void tdm_decoder_reset(tdm_decoder *decoder);               /* drops all tokens read */
int64_t tdm_decoder_vocabulary(const tdm_decoder *decoder); /* V */
int64_t tdm_decoder_context(const tdm_decoder *decoder);
/* Reads `count` (at least 1) tokens, each in [0, V). Returns the logits [V] of the next token,
 * valid until the next call. Allocates nothing. */
const float *tdm_decoder_read(tdm_decoder *decoder, const int32_t *tokens, int64_t count);
typedef struct tdm_choice {
    int32_t token;
    double weight;
} tdm_choice;

/*
 * Selects a token from its logits [count] and a number `draw`, uniform in [0, 1). Equal logits are
 * ordered by token. `scratch` has room for `count`. If non-finite logits leave no valid
 * probabilities, the most probable token is selected.
 */
int32_t tdm_choose_token(const float *logits, int64_t count, const tdm_choice_options *options,
                         double draw, tdm_choice *scratch);

#endif
