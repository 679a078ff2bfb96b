/* internal.h: the pieces of the training room that its files share. */
#ifndef TANDEM_TRAIN_INTERNAL_H
#define TANDEM_TRAIN_INTERNAL_H

#include <tandem/optim.h>
#include <tandem/os.h>
#include <tandem/train.h>

#include <stdatomic.h>

/* ---- a run's folder (run.c) ------------------------------------------------------------------ */

typedef struct tdm__run {
    tdm_arena *arena;
    const char *path;
    const char *checkpoint_dir;
    int lock_fd;
    int log_fd;
    int metrics_fd;
    atomic_int write_error; /* errno of the last line of log or metrics that could not be written */
    bool write_error_said;
    tdm_str line;     /* of metrics */
    tdm_str log_line; /* used under the log's lock only */
} tdm__run;

/* Makes DIR/NAME-NUMBER with the lowest number that is higher than all there, writes job.yaml. */
tdm_status tdm__run_create(const tdm_job *job, tdm__run *out, tdm_error *err);
/* Opens one that is there. TDM_ERR_BUSY when another process trains in it. */
tdm_status tdm__run_open(const char *path, tdm__run *out, tdm_error *err);
void tdm__run_release(tdm__run *run);
/* job.yaml, the job as it runs from here on. */
tdm_status tdm__run_write_job(tdm__run *run, const tdm_job *job, tdm_error *err);
/* Drops what metrics.jsonl has beyond `step`, and in it and log.jsonl what was cut short. */
tdm_status tdm__run_rewind(tdm__run *run, uint64_t step, tdm_error *err);
/* Renames checkpoints of later steps, which are all damaged when `step` is that of the newest good
 * one: with their names they would count among those to keep, and good ones would be removed. */
tdm_status tdm__run_set_aside(tdm__run *run, uint64_t step, tdm_error *err);
/* Appends the object that `run->line` holds. A failure is logged once. */
void tdm__run_put_metrics(tdm__run *run);

/* ---- the state of a model in training (state.c) ---------------------------------------------- */

/* Parameters, buffers and optimiser state in one block of pages, and their names. */
typedef struct tdm__state {
    tdm_arena *arena;
    tdm_graph *graph; /* of one row, for names and layout only */
    const tdm_optim_ops *optim;
    tdm_pages pages;
    float *params;
    float *states[TDM_OPTIM_MAX_STATES];
    tdm_named_tensor *tensors;
    size_t tensor_count;
    size_t from_file_count; /* parameters and buffers that began with values of model.init_from */
} tdm__state;

/* `optim` NULL: parameters only. All zero at first. */
tdm_status tdm__state_init(const tdm_model_options *model, const tdm_optim_ops *optim,
                           tdm__state *out, tdm_error *err);
void tdm__state_release(tdm__state *state);
/* First values: from the seed, from the data (normalisation), from model.init_from. */
tdm_status tdm__state_begin(tdm__state *state, const tdm_job *job, const tdm_dataset *train,
                            tdm_error *err);
/* Everything from a checkpoint; each tensor must be there with the right shape. */
tdm_status tdm__state_restore(tdm__state *state, const tdm_checkpoint *checkpoint, tdm_error *err);
/* The name of the first tensor with a number that is not finite, or NULL. */
const char *tdm__state_find_bad(const tdm__state *state);

/* The job inside a checkpoint. The document is the caller's to destroy. */
tdm_status tdm__checkpoint_job(const tdm_checkpoint *checkpoint, const char *path,
                               tdm_job_document **out, tdm_error *err);

#endif
