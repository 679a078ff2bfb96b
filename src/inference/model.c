/*
 * model.c: a trained model, loaded from a checkpoint only. The checkpoint contains the resolved job, the
 * class names and the shape of a sample, so nothing else is needed to predict.
 */
#include "base/base.h"
#include "eval/eval.h"
#include "nn/nn.h"
#include "os/os.h"
#include "train/internal.h"

#include <tandem/inference.h>

#include <stdlib.h>
#include <string.h>

struct tdm_model {
    tdm_arena *arena;
    const char *path;
    tdm_checkpoint *checkpoint;
    tdm_job_document *document;
    tdm_model_options options;
    tdm__state state;
};

/* ---- code ------------------------------------------------------------------------------------ */

static bool model_is_library(const tdm_job *job)
{
    return job->model.kind == TDM_JOB_MODEL_LIBRARY && job->model.library;
}

tdm_status tdm_model_code_of(const tdm_checkpoint *checkpoint, const char *path, tdm_arena *arena,
                             tdm_model_code *out, tdm_error *err)
{
    tdm_job_document *document = NULL;
    *out = (tdm_model_code){0};
    TDM_TRY(tdm__checkpoint_job(checkpoint, path, &document, err));
    const tdm_job *job = tdm_job_document_job(document);
    tdm_status status = TDM_OK;
    if (model_is_library(job)) {
        const char *sha256 = job->model.library_sha256;
        out->library = tdm_arena_strdup(arena, job->model.library);
        out->sha256 = sha256 ? tdm_arena_strdup(arena, sha256) : NULL;
        if (!out->library || (sha256 && !out->sha256)) status = tdm_fail_oom(err, "for %s", path);
    }
    tdm_job_document_destroy(document);
    return status;
}

/* The job.yaml of the run at `path`, or of the run that contains the checkpoint; NULL: no memory. */
static const char *run_job_path(tdm_arena *arena, const char *path)
{
    if (tdm_path_is_dir(path)) return tdm_path_join(arena, path, "job.yaml");
    const char *dir = tdm_path_dirname(arena, path);
    return dir ? tdm_path_join(arena, dir, "../job.yaml") : NULL;
}

/* Whether the run's job.yaml, with which the user trained, names the same code. */
static bool library_is_of_run(tdm_arena *arena, const char *path, const tdm_job *job)
{
    const char *own_path = run_job_path(arena, path);
    tdm_job_options options = {.no_file_checks = true};
    tdm_job_document *document = NULL;
    if (!own_path || !job->model.library_sha256) return false;
    bool same = false;
    if (tdm_job_load(own_path, &options, &document, NULL) == TDM_OK) {
        const tdm_job *own = tdm_job_document_job(document);
        same = model_is_library(own) && own->model.library_sha256 &&
               strcmp(own->model.library, job->model.library) == 0 &&
               strcmp(own->model.library_sha256, job->model.library_sha256) == 0;
    }
    tdm_job_document_destroy(document);
    return same;
}

static tdm_status library_refuse(const char *path, const tdm_job *job, tdm_error *err)
{
    const char *sha256 = job->model.library_sha256;
    return tdm_fail(err, TDM_ERR_INVALID,
                    "%s: its model is code, the shared object %s%s%s%s, which would run with "
                    "your permissions; if you trust that file, pass --allow-library FILE to eval "
                    "or predict",
                    path, job->model.library, sha256 ? " (SHA-256 " : "", sha256 ? sha256 : "",
                    sha256 ? ")" : "");
}

static tdm_status model_read(const char *path, void *user, tdm_error *err)
{
    tdm_model *model = user;
    model->path = tdm_arena_strdup(model->arena, path);
    if (!model->path) return tdm_fail_oom(err, "for %s", path);
    return tdm_checkpoint_open(path, &model->checkpoint, err);
}

/* Reads the job in the checkpoint; with the allowed library, if one is given. */
static tdm_status model_job(tdm_model *model, const char *path, const char *allowed_library,
                            tdm_error *err)
{
    TDM_TRY(tdm__checkpoint_job(model->checkpoint, model->path, &model->document, err));
    const tdm_job *job = tdm_job_document_job(model->document);
    if (!model_is_library(job)) return TDM_OK;
    if (!allowed_library)
        return library_is_of_run(model->arena, path, job) ? TDM_OK
                                                          : library_refuse(model->path, job, err);
    const char *absolute = tdm_path_absolute(model->arena, allowed_library);
    const char *override = absolute ? tdm_arena_printf(model->arena, "model.library=%s", absolute)
                                    : NULL;
    if (!override) return tdm_fail_oom(err, "for %s", path);
    tdm_job_document_destroy(model->document);
    model->document = NULL;
    return tdm__checkpoint_job_with(model->checkpoint, model->path, override, &model->document,
                                    err);
}

static tdm_status model_load(tdm_model *model, const char *path, const char *allowed_library,
                             tdm_error *err)
{
    TDM_TRY(tdm_run_read(path, model->arena, model_read, model, err));
    TDM_TRY(model_job(model, path, allowed_library, err));
    const tdm_checkpoint_content *content = tdm_checkpoint_content_of(model->checkpoint);
    model->options = (tdm_model_options){.job = tdm_job_document_job(model->document),
                                         .sample_shape = content->sample_shape,
                                         .class_count = content->class_count};
    tdm__warn_of_numerics(model->path, content->numerics, model->options.job,
                          "results may differ in their last digits from those during training");
    model->options.threads = tdm__threads_guess(model->options.job, 1);
    TDM_TRY(tdm__state_init(&model->options, TDM__STATE_FOR_INFERENCE, NULL, &model->state, err));
    return tdm__state_restore(&model->state, model->checkpoint,
                              tdm__job_averages(model->options.job), err);
}

tdm_status tdm_model_open(const char *path, const char *allowed_library, tdm_model **out,
                          tdm_error *err)
{
    tdm_model *model = calloc(1, sizeof(*model));
    if (model) model->arena = tdm_arena_create("model");
    if (!model || !model->arena) {
        free(model);
        return tdm_fail_oom(err, "for the model (%s)", path);
    }
    tdm_status status = model_load(model, path, allowed_library, err);
    if (status != TDM_OK) {
        tdm_model_close(model);
        return status;
    }
    *out = model;
    return TDM_OK;
}

void tdm_model_close(tdm_model *model)
{
    if (!model) return;
    tdm__state_release(&model->state);
    tdm_job_document_destroy(model->document);
    tdm_checkpoint_destroy(model->checkpoint);
    tdm_arena_destroy(model->arena);
    free(model);
}

const char *tdm_model_path(const tdm_model *model)
{
    return model->path;
}

const tdm_job *tdm_model_job(const tdm_model *model)
{
    return model->options.job;
}

const tdm_checkpoint_content *tdm_model_content(const tdm_model *model)
{
    return tdm_checkpoint_content_of(model->checkpoint);
}

static tdm_status model_fill(void *user, const tdm_dataset *dataset, const int64_t *indices,
                             int64_t count, void *x, int32_t *classes, tdm_error *err)
{
    const tdm_model *model = user;
    (void)err;
    tdm_sparse_read(model->state.sparse, dataset, indices, count, x, classes);
    return TDM_OK;
}

tdm_status tdm_model_predictor(tdm_model *model, int64_t batch, tdm_predictor **out, tdm_error *err)
{
    tdm_model_options options = model->options;
    options.batch = batch > 0 ? batch : tdm_model_eval_rows(&options);
    TDM_TRY(tdm_predictor_create(&options, model->state.params, out, err));
    if (model->state.sparse) tdm_predictor_fill_by(*out, model_fill, model);
    return TDM_OK;
}

tdm_status tdm_model_decoder(tdm_model *model, tdm_decoder **out, tdm_error *err)
{
    tdm_status status = tdm_decoder_create(&model->options, model->state.params, out, err);
    return status == TDM_OK ? TDM_OK : tdm_error_context(err, status, "%s", model->path);
}

tdm_data_options tdm_model_data_options(const tdm_model *model)
{
    const tdm_checkpoint_content *content = tdm_model_content(model);
    tdm_data_options options = tdm__job_data_options(tdm_model_job(model), NULL);
    options.class_names = content->class_names;
    options.class_count = content->class_count;
    options.stride = options.context;
    return options;
}
