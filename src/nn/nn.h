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

#endif
