/*
 * train.h: runs, and the training loop.
 *
 * A run is a folder, RUNS/NAME-NUMBER/, that holds all there is to know about one training:
 *     job.yaml        the job as it was resolved
 *     log.jsonl       what happened, one JSON object a line, with rank, step and host
 *     metrics.jsonl   the numbers: a line for every so many steps and for each evaluation
 *     ledger.jsonl    which samples each step has trained, with checkpoint.ledger
 *     checkpoints/    step-NNNNNNNNNNNN.safetensors
 * One training at a time goes on in a run; a lock on the folder, held by its rank 0, sees to that and
 * goes with the process.
 *
 * Training goes on from a checkpoint exactly: the state after step N is a function of the job, not
 * of how many processes it took to get there.
 */
#ifndef TANDEM_TRAIN_H
#define TANDEM_TRAIN_H

#include <tandem/base.h>
#include <tandem/checkpoint.h>
#include <tandem/comm.h>
#include <tandem/data.h>
#include <tandem/elastic.h>
#include <tandem/eval.h>
#include <tandem/job.h>
#include <tandem/os.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- runs ------------------------------------------------------------------------------------ */

/* Whether `path` can be a run's folder or a checkpoint file, by its name and first bytes alone:
 * TDM_ERR_NOT_FOUND when nothing is there or the folder is not a run's, TDM_ERR_INVALID for another file. */
TDM_API tdm_status tdm_run_check(const char *path, tdm_error *err);
/* The run of this job with the highest number, below its run.dir, that has a checkpoint, finished or not:
 * TDM_ERR_NOT_FOUND when there is none. Nothing is verified. The result comes from `arena`. */
TDM_API tdm_status tdm_run_find(const tdm_job *job, tdm_arena *arena, char **out_path,
                                tdm_error *err);
/* A checkpoint to read from: `path` is a run's folder (its newest good checkpoint is taken) or a
 * checkpoint file. The result comes from `arena`. */
TDM_API tdm_status tdm_run_checkpoint(const char *path, tdm_arena *arena, char **out_path,
                                      tdm_error *err);
/* Calls `read` with that checkpoint. The one of a run may be pruned by a training before `read` has opened
 * it; then `read` is called again with the newest that is there. */
TDM_API tdm_status tdm_run_read(const char *path, tdm_arena *arena, tdm_checkpoint_read_fn read,
                                void *user, tdm_error *err);

/* ---- models from checkpoints ----------------------------------------------------------------- */

/* A trained model with all that inference needs, from a run or a checkpoint file alone. */
typedef struct tdm_model tdm_model;

/* The code that a checkpoint's model is: a shared object, as its job names it. NULLs where it is none. */
typedef struct tdm_model_code {
    const char *library, *sha256;
} tdm_model_code;

/* Reads that from the checkpoint at `path`, without loading the code. */
TDM_API tdm_status tdm_model_code_of(const tdm_checkpoint *checkpoint, const char *path,
                                     tdm_arena *arena, tdm_model_code *out, tdm_error *err);

/*
 * Opening a checkpoint whose model is a shared object executes that file. So it is opened
 * only when `allowed_library` names the file to load (NULL: none), which must have the checkpoint's
 * SHA-256; or when the job of the run at `path`, or of the run that has the checkpoint `path`, names the same file with the same
 * SHA-256. Otherwise TDM_ERR_INVALID.
 */
TDM_API tdm_status tdm_model_open(const char *path, const char *allowed_library, tdm_model **out,
                                  tdm_error *err);
TDM_API void tdm_model_close(tdm_model *model);
TDM_API const char *tdm_model_path(const tdm_model *model); /* the checkpoint's */
TDM_API const tdm_job *tdm_model_job(const tdm_model *model);
TDM_API const tdm_checkpoint_content *tdm_model_content(const tdm_model *model);
/* `batch` 0: the job's eval.batch. The predictor must be destroyed before the model is closed. */
TDM_API tdm_status tdm_model_predictor(tdm_model *model, int64_t batch, tdm_predictor **out,
                                       tdm_error *err);
/* For a model of tokens: reads a text and says what may come next. To be destroyed before the model
 * is closed. TDM_ERR_UNSUPPORTED for other models. */
TDM_API tdm_status tdm_model_decoder(tdm_model *model, tdm_decoder **out, tdm_error *err);
/* How to read a file of data for this model: as the job says, with the model's classes. */
TDM_API tdm_data_options tdm_model_data_options(const tdm_model *model);

/* The data a job names, read and split. `test` is NULL when the job has none. */
typedef struct tdm_job_data {
    tdm_dataset *whole; /* what train and test are parts of, when they were split; else NULL */
    tdm_dataset *train;
    tdm_dataset *test;
} tdm_job_data;

TDM_API tdm_status tdm_job_data_load(const tdm_job *job, tdm_job_data *out, tdm_error *err);
TDM_API void tdm_job_data_release(tdm_job_data *data);
/* The shape of a sample: data.shape when the job gives one, which must hold as many numbers as a
 * sample of the data set has; else what the data set says. */
TDM_API tdm_status tdm_job_sample_shape(const tdm_job *job, const tdm_dataset *dataset,
                                        tdm_shape *out, tdm_error *err);

/* ---- memory ---------------------------------------------------------------------------------- */

/* What a job needs in memory while it trains, besides the program itself. Planned as for training,
 * but nothing is mapped. */
/* Who trains: so many ranks, spread evenly over so many hosts. 0 ranks: as many as tdm_train would take;
 * 0 hosts: one. */
typedef struct tdm_memory_world {
    int rank_count, host_count;
    int thread_count; /* of each rank; 0: a share of the CPUs of this host */
} tdm_memory_world;

/* What a rank takes with a value of parallel.zero. Of what the ranks of a host have in common it takes
 * an equal part. */
typedef struct tdm_memory_stage {
    uint64_t parameter_bytes; /* with buffers, and memory for what is gathered */
    uint64_t gradient_bytes;
    uint64_t optimiser_bytes; /* with the average of the weights; not what is in files */
    uint64_t activation_bytes;
    uint64_t total_bytes;   /* with evaluation and data */
    uint64_t formula_bytes; /* parameters, gradients and state as published: see docs/memory.md */
} tdm_memory_stage;

enum { TDM_ZERO_STAGES = 4 };

/* All bytes are those of one host, of one with the most ranks, unless it says otherwise. */
typedef struct tdm_memory_estimate {
    int worker_count; /* of all hosts */
    int host_count;
    int host_workers;
    int thread_count; /* of each worker */
    int64_t batch;    /* rows of a step */
    int64_t lane_count;
    int64_t lane_rows;        /* of the largest lane */
    uint64_t parameter_bytes; /* trained: one copy for all workers, unless they share it out */
    uint64_t buffer_bytes;    /* not trained */
    int gradient_buffers;     /* whole ones */
    uint64_t gradient_bytes;
    int optimiser_numbers; /* for each parameter; the average of the weights is one */
    uint64_t optimiser_bytes;
    uint64_t arena_bytes;      /* of activations, for each worker */
    uint64_t unshared_bytes;   /* what that would be if no memory were used again */
    uint64_t activation_bytes; /* of all workers of the host */
    uint64_t evaluation_bytes; /* for each worker */
    uint64_t data_bytes;       /* for each worker */
    uint64_t file_bytes;       /* of optimiser_bytes, what lies in files: not part of the total */
    uint64_t total_bytes;
    uint64_t forward_flops; /* of the largest lane, as the next two */
    uint64_t backward_flops;
    uint64_t recomputed_flops;                /* part of backward_flops, see memory.recompute */
    tdm_memory_stage stages[TDM_ZERO_STAGES]; /* of one rank, by parallel.zero */
} tdm_memory_estimate;

/* `world` NULL: as if all were 0. Needs the data, for shapes and numbers. TDM_ERR_JOB_INVALID when there
 * are more ranks than lanes. */
TDM_API tdm_status tdm_memory_estimate_of(const tdm_job *job, const tdm_job_data *data,
                                          const tdm_memory_world *world, tdm_memory_estimate *out,
                                          tdm_error *err);
/* What the job may use: memory.limit, or 95 % of what the machine has left and the process's control
 * group allows, whichever is less. UINT64_MAX: unknown, as good as no limit. */
TDM_API uint64_t tdm_memory_budget(const tdm_job *job);

/* ---- ranks ----------------------------------------------------------------------------------- */

/* How many ranks this host has processors for: one for each compute.threads of them (auto: one), at most as many
 * as there are lanes, at least one. */
TDM_API int tdm_train_rank_count(const tdm_job *job);
/* What carries the job's bytes, for tdm_comm_options; NULL where it is left open, or the environment
 * (TANDEM_TRANSPORT) says it. */
TDM_API const char *tdm_train_transport(const tdm_job *job);
/* Transport, streams and security as the job has them, where the environment does not say them. Texts are
 * borrowed from the job. */
TDM_API void tdm_train_comm(const tdm_job *job, tdm_comm_options *out);

/* ---- training -------------------------------------------------------------------------------- */

typedef enum tdm_train_event {
    TDM_TRAIN_EVENT_START,      /* about to train the first step; run_path is known */
    TDM_TRAIN_EVENT_STEP,       /* a step was finished */
    TDM_TRAIN_EVENT_EVAL,       /* the test set was evaluated: see `test` */
    TDM_TRAIN_EVENT_CHECKPOINT, /* a checkpoint was written: see checkpoint_path */
    TDM_TRAIN_EVENT_END,
    TDM_TRAIN_EVENT_WAIT /* rank 0 waits until it can write to the run's folder: the log says why */
} tdm_train_event;

/* What a rank does. Shares are of the time of steps; what is missing from 1 is spent between them. */
typedef struct tdm_train_rank {
    int host; /* hosts are numbered by their lowest rank */
    char host_name[64];
    int64_t lanes;        /* that it executes now */
    double samples_per_s; /* of its lanes; all ranks' together are the training's */
    double lane_share;    /* in lanes */
    double update_share;  /* in adding up gradients and updating */
    double wait_share;    /* waiting for others */
} tdm_train_rank;

typedef struct tdm_train_status {
    tdm_train_event event;
    const char *run_path;
    const char *checkpoint_path; /* the newest written, or NULL */
    uint64_t step, step_count;   /* finished, and in all */
    uint64_t epoch, epoch_count; /* from 0; epoch_count is rounded up when steps rule */
    uint64_t samples;            /* trained so far, in all epochs */
    /* Of the last step that was not skipped; NaN when there was none yet. */
    double loss;
    double grad_norm;     /* before clipping; 0 without optim.clip_norm */
    double smooth_loss;   /* a moving average */
    double lr;            /* of the last step, as the schedule gave it */
    bool step_skipped;    /* the last step was skipped, by train.bad_numbers */
    uint64_t skipped;     /* steps that were skipped, in all */
    double samples_per_s; /* of late */
    double left_s;        /* estimated */
    bool has_test;
    tdm_metrics test;            /* the last evaluation */
    int rank, rank_count;        /* this process's, and how many there are */
    const tdm_train_rank *ranks; /* rank_count of them: of late; at TDM_TRAIN_EVENT_END of all steps
                                     of this call; NULL before the first step */
    int straggler;      /* the rank that takes much longer for a lane than others; -1: none */
    double slow_factor; /* how many times as long */
    int64_t lane_count;
    uint64_t parameter_count;
    int64_t train_count, test_count, class_count;
    const char *data_path;
} tdm_train_status;

typedef void (*tdm_train_fn)(const tdm_train_status *status, void *user);

typedef struct tdm_train_options {
    tdm_comm *comm;        /* the ranks that train; NULL: this process alone */
    const char *resume;    /* a run's folder; NULL: a new run */
    tdm_train_fn on_event; /* may be NULL; called by the training thread, on every rank */
    void *user;
    /* When it returns true on any rank, training ends after the current step, with a checkpoint. May
     * be NULL. */
    bool (*should_stop)(void *user);
    /* When it returns true on any rank, a checkpoint is saved after the current step, and training goes on.
     * Asked once a step; what comes within a second after such a checkpoint counts as the same wish, since
     * a signal may reach one rank after another. May be NULL. */
    bool (*should_save)(void *user);
    /* Instead of `comm`: this process takes part in the epochs of a session (elastic.h), whose worlds it
     * opens and closes by itself, and training goes on when others die. `membership` is what the member
     * was made with. State lies in the host's vault, so that no process takes it along; NULL: it does not,
     * and after a death training goes back to the newest checkpoint. */
    tdm_member *member;
    const tdm_member_options *membership;
    tdm_shm *shm;
    int lines_fd; /* to which ranks that are not on rank 0's host give their lines (tdm_worker_log_forward_fd);
                   * 0 or less: none */
} tdm_train_options;

enum { TDM_PATH_BYTES = 4096 }; /* Linux's longest path, terminator included */

typedef struct tdm_train_result {
    char run_path[TDM_PATH_BYTES];
    char checkpoint_path[TDM_PATH_BYTES];
    char state_hash[TDM_SHA256_HEX]; /* as `tandem hash` prints it */
    bool interrupted;                /* by should_stop, before the last step */
    uint32_t recoveries;             /* epochs that ended because somebody was gone */
    bool ended_early;                /* by train.early_stop, now or before */
    bool nothing_to_do;              /* the run had reached its end already */
    uint64_t steps;                  /* in all */
    uint64_t step_count;             /* at which the job ends; a resumed run may be past it */
    bool ends_by_steps;              /* it ends by train.steps, not by train.epochs */
    uint64_t samples;                /* trained by this call */
    uint64_t skipped;                /* steps skipped by train.bad_numbers, in all */
    double seconds;                  /* spent in steps by this call */
    double start_seconds;            /* from the call to the first step */
    double loss;                     /* of the last step not skipped; NaN: none was trained */
    bool has_test;
    tdm_metrics test;
} tdm_train_result;

/*
 * Trains. With a comm this is collective: all ranks bring the same job and options, and get the same
 * result, or an error: where getting ready fails on some rank, that of the lowest such one; where a
 * rank dies or does not answer, a status of the peer group that names it. Rank 0 alone needs to see
 * the run's folder; the data must be there for every rank.
 *
 * With a member: TDM_ERR_PEER_FENCED when the others go on without it, TDM_ERR_PEER_LEFT when it was asked
 * to leave, or was in reserve until the end; both say nothing about the run. The end of the run is the same for all members that are left.
 *
 * TDM_ERR_NO_MEMORY, before anything but the data is in memory or on disk, when the job needs more
 * than tdm_memory_budget; the message has the numbers and what would make it fit. TDM_ERR_DIVERGED
 * when loss or gradient are not finite and the job does not skip such steps, or too many of them in a
 * row, and when the state itself is not: the newest checkpoint is the last good state; the message
 * names the op that made the first bad number. TDM_ERR_JOB_MISMATCH when `resume` belongs to another
 * job or other data. When the last checkpoint cannot be written, its status is returned; when an
 * earlier one cannot, that is logged and training goes on.
 */
TDM_API tdm_status tdm_train(const tdm_job *job, const tdm_train_options *options,
                             tdm_train_result *out, tdm_error *err);

/* ---- a step of a run once more ---------------------------------------------------------------- */

/* What a lane did. */
typedef struct tdm_replay_lane {
    int64_t lane;
    int64_t first_row, row_count; /* of the batch */
    double loss;                  /* the mean over its rows */
    double share;                 /* what it adds to the loss of the step */
    double grad_norm;             /* of what it adds to the gradient */
    bool finite;                  /* whether all of its numbers are */
} tdm_replay_lane;

/* What the step's gradient was for a parameter, before clipping. */
typedef struct tdm_replay_tensor {
    const char *name;
    tdm_shape shape;
    double grad_norm;
    double grad_largest; /* magnitude */
} tdm_replay_tensor;

typedef struct tdm_replay_result {
    tdm_arena *arena;            /* of all that is pointed to here */
    const char *checkpoint_path; /* from which it went on; NULL: from the beginning */
    uint64_t from_step;          /* steps that were done there */
    uint64_t step, step_count;   /* the step, from 1, and the job's last */
    uint64_t epoch;              /* from 0 */
    double seconds;              /* spent in all */
    int64_t batch;               /* rows */
    int64_t lanes_of_job;
    double lr, loss, grad_norm; /* before clipping */
    bool finite;
    const char *bad_text;   /* when it is not: where the bad number comes from; NULL otherwise */
    tdm_replay_lane *lanes; /* those with rows */
    size_t lane_count;
    int64_t *samples; /* of each row of the batch: its number in the file of data, from 0 */
    tdm_replay_tensor *tensors; /* largest norm first */
    size_t tensor_count;
    /* What the run itself noted down for this step (run.log_every_steps): NaN where it did not. */
    bool recorded;
    bool recorded_skipped;
    double recorded_loss, recorded_lr, recorded_grad_norm;
    bool agrees; /* with what is recorded */
    size_t dump_count;
} tdm_replay_result;

typedef struct tdm_replay_options {
    const char *run; /* its folder, which is only read */
    uint64_t step;   /* from 1 */
    /*
     * Tensors to write to the file `dump_path`: the state before the step by its names in
     * checkpoints; "grad/NAME" the step's gradient, summed over the lanes; "lane.L/grad/NAME" what a
     * lane adds to it; "lane.L/OP" what an op of a lane makes ('tandem inspect JOB' names them),
     * forward or backward; "lane.L/OP:1" its second output.
     */
    const char *const *dumps;
    size_t dump_count;
    const char *dump_path;
    tdm_train_fn on_event; /* START, STEP and END of the way to the step; may be NULL */
    void *user;
    bool (*should_stop)(void *user); /* TDM_ERR_INTERRUPTED then; may be NULL */
} tdm_replay_options;

/*
 * Does a step of a run once more: from the newest good checkpoint before it, or from the beginning, it
 * trains on in this process and its memory, then looks at the step lane by lane. The numbers are
 * those of the run, bit for bit, however many ranks it had (with parallel.reduce: tree). `job` is the
 * run's. TDM_ERR_RANGE for a step that the job does not have; TDM_ERR_DIVERGED when training ends
 * before the step; TDM_ERR_NOT_FOUND for a name in `dumps` that nothing has.
 */
TDM_API tdm_status tdm_replay(const tdm_job *job, const tdm_replay_options *options,
                              tdm_replay_result **out, tdm_error *err);
TDM_API void tdm_replay_result_destroy(tdm_replay_result *result);

/* ---- the ledger of a run ----------------------------------------------------------------------- */

enum { TDM_LEDGER_PROBLEMS = 16, TDM_LEDGER_PROBLEM_BYTES = 200 };

/* What a run's ledger says (checkpoint.ledger). */
typedef struct tdm_ledger_report {
    uint64_t first_step, last_step; /* from 1; 0: it is empty */
    uint64_t step_count;      /* steps in their place, with exactly the samples they should have */
    uint64_t first_epoch;     /* of those that are there as a whole */
    uint64_t epoch_count;     /* of them */
    uint64_t left_over_steps; /* of the epoch after the last whole one */
    uint64_t steps_of_epoch;
    uint64_t samples_of_epoch; /* that an epoch trains */
    uint64_t samples_of_data;  /* that there are: more with data.last_batch: drop */
    bool torn;                 /* its last line was cut short by a kill: it does not count */
    uint64_t problem_count; /* 0: every sample was trained exactly once in each of these epochs */
    char problems[TDM_LEDGER_PROBLEMS][TDM_LEDGER_PROBLEM_BYTES]; /* the first ones, in words */
} tdm_ledger_report;

/* Holds a run's ledger against the job's way through its data, which is loaded for that. The run may be in
 * progress. TDM_ERR_NOT_FOUND when it keeps none. */
TDM_API tdm_status tdm_ledger_check(const tdm_job *job, const char *run, tdm_ledger_report *out,
                                    tdm_error *err);

#ifdef __cplusplus
}
#endif
#endif
