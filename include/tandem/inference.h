/*
 * inference.h: trained models, opened from a run or a checkpoint.
 *
 * A checkpoint contains the job, the class names and the shape of a sample, so neither the data nor the job file
 * is needed.
 */
#ifndef TANDEM_INFERENCE_H
#define TANDEM_INFERENCE_H

#include <tandem/base.h>
#include <tandem/checkpoint.h>
#include <tandem/data.h>
#include <tandem/eval.h>
#include <tandem/job.h>
#include <tandem/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A trained model with everything inference needs, loaded from a run or a checkpoint file. */
typedef struct tdm_model tdm_model;

/* The shared object that implements a checkpoint's model, as its job names it. NULLs for built-in models. */
typedef struct tdm_model_code {
    const char *library, *sha256;
} tdm_model_code;

/* Reads `tdm_model_code` from the checkpoint at `path` without loading the code. */
TDM_API tdm_status tdm_model_code_of(const tdm_checkpoint *checkpoint, const char *path,
                                     tdm_arena *arena, tdm_model_code *out, tdm_error *err);

/*
 * Opens a model. A checkpoint whose model is a shared object executes that file, so it is opened only in two
 * cases: `allowed_library` (may be NULL) names the file to load, and its SHA-256 is the checkpoint's; or the job of
 * the run at `path`, or of the run that contains the checkpoint `path`, names the same file with the
 * same SHA-256. Otherwise TDM_ERR_INVALID.
 */
TDM_API tdm_status tdm_model_open(const char *path, const char *allowed_library, tdm_model **out,
                                  tdm_error *err);
TDM_API void tdm_model_close(tdm_model *model);
TDM_API const char *tdm_model_path(const tdm_model *model); /* of the checkpoint */
TDM_API const tdm_job *tdm_model_job(const tdm_model *model);
TDM_API const tdm_checkpoint_content *tdm_model_content(const tdm_model *model);
/* `batch` 0: the job's eval.batch. Destroy the predictor before closing the model. */
TDM_API tdm_status tdm_model_predictor(tdm_model *model, int64_t batch, tdm_predictor **out,
                                       tdm_error *err);
/* A decoder for token models: reads a text and predicts the next token. Destroy it before closing the
 * model. TDM_ERR_UNSUPPORTED for other models. */
TDM_API tdm_status tdm_model_decoder(tdm_model *model, tdm_decoder **out, tdm_error *err);
/* Options for reading a data file for this model: the job's, with the model's classes. */
TDM_API tdm_data_options tdm_model_data_options(const tdm_model *model);

#ifdef __cplusplus
}
#endif
#endif
