/*
 * train.h: runs and the training loop.
 *
 * A run is a directory, RUNS/NAME-NUMBER/, with everything about one training run:
 *     job.yaml        the resolved job
 *     log.jsonl       events, one JSON object per line, with rank, step and host
 *     metrics.jsonl   one line every run.log_every_steps steps and one for each evaluation
 *     ledger.jsonl    the samples that each step trained, with checkpoint.ledger
 *     checkpoints/    step-NNNNNNNNNNNN.safetensors
 * Only one session trains in a run at a time. Rank 0 holds a lock on the directory, which the kernel
 * releases when the process ends.
 *
 * Resuming is exact: the state after step N is a function of the job, not of the number of processes
 * that computed it.
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
#include <tandem/resources.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- runs ------------------------------------------------------------------------------------ */

/* Checks by name and first bytes only whether `path` can be a run directory or a checkpoint file.
 * TDM_ERR_NOT_FOUND: nothing is there, or the directory is not a run. TDM_ERR_INVALID: another kind of file. */
TDM_API tdm_status tdm_run_check(const char *path, tdm_error *err);
/* Finds the run of this job with the highest number, below its run.dir, that has a checkpoint, finished or
 * not. TDM_ERR_NOT_FOUND: there is none. Nothing is verified. The result is allocated from `arena`. */
TDM_API tdm_status tdm_run_find(const tdm_job *job, tdm_arena *arena, char **out_path,
                                tdm_error *err);
/* Finds a checkpoint to read: `path` is a run directory (its newest valid checkpoint is chosen) or a
 * checkpoint file. The result is allocated from `arena`. */
TDM_API tdm_status tdm_run_checkpoint(const char *path, tdm_arena *arena, char **out_path,
                                      tdm_error *err);
/* Calls `read` with the checkpoint that tdm_run_checkpoint finds. An active run may prune it before `read`
 * opens it; `read` is then called again with the newest one. */
TDM_API tdm_status tdm_run_read(const char *path, tdm_arena *arena, tdm_checkpoint_read_fn read,
                                void *user, tdm_error *err);

/* ---- ranks ----------------------------------------------------------------------------------- */

/* The number of ranks this host has CPUs for: one per compute.threads CPUs (auto: one per CPU), at most
 * one per lane, at least one. */
TDM_API int tdm_train_rank_count(const tdm_job *job);
/* The job's transport for tdm_comm_options; NULL if the job leaves it open or the environment
 * (TANDEM_TRANSPORT) sets it. */
TDM_API const char *tdm_train_transport(const tdm_job *job);
/* Sets transport, streams and security from the job where the environment does not set them. Strings are
 * borrowed from the job. */
TDM_API void tdm_train_comm(const tdm_job *job, tdm_comm_options *out);

/* ---- training -------------------------------------------------------------------------------- */

typedef enum tdm_train_event {
    TDM_TRAIN_EVENT_START,      /* about to train the first step; run_path is known */
    TDM_TRAIN_EVENT_STEP,       /* a step was finished */
    TDM_TRAIN_EVENT_EVAL,       /* the test set was evaluated: see `test` */
    TDM_TRAIN_EVENT_CHECKPOINT, /* a checkpoint was written: see checkpoint_path */
    TDM_TRAIN_EVENT_END,
    TDM_TRAIN_EVENT_WAIT /* rank 0 waits until the run directory is writable; the log has the reason */
} tdm_train_event;

/* Activity of a rank. Shares are fractions of the step time; the rest to 1 is spent between steps. */
typedef struct tdm_train_rank {
    int host; /* hosts are numbered by their lowest rank */
    char host_name[64];
    int64_t lanes;        /* that it executes now */
    double samples_per_s; /* of its lanes; the sum over all ranks is the total rate */
    double lane_share;    /* executing lanes */
    double update_share;  /* summing gradients and updating */
    double wait_share;    /* waiting for other ranks */
} tdm_train_rank;

typedef struct tdm_train_status {
    tdm_train_event event;
    const char *run_path;
    const char *checkpoint_path; /* the newest written, or NULL */
    uint64_t step, step_count;   /* finished, and total */
    uint64_t epoch, epoch_count; /* from 0; epoch_count is rounded up if train.steps sets the end */
    uint64_t samples;            /* trained so far, in all data epochs */
    /* Of the last step that was not skipped; NaN before the first one. */
    double loss;
    double grad_norm;     /* before clipping; 0 without optim.clip_norm */
    double consensus;     /* sync.kind gossip: RMS distance of the replicas from their mean */
    double divergence;    /* sync.adapt_divergence: of the replicas at the last average */
    double smooth_loss;   /* a moving average */
    double lr;            /* of the last step, from the schedule */
    bool step_skipped;    /* the last step was skipped (train.bad_numbers) */
    uint64_t skipped;     /* number of skipped steps, total */
    double samples_per_s; /* recent */
    double left_s;        /* estimated time to the end */
    bool has_test;
    tdm_metrics test;     /* the last evaluation */
    int rank, rank_count; /* of this process, and of the world */
    /* rank_count entries: recent; at TDM_TRAIN_EVENT_END over all steps of this call; NULL before
     * the first step */
    const tdm_train_rank *ranks;
    int straggler;      /* rank that needs much longer per lane than the others; -1: none */
    double slow_factor; /* its time per lane relative to the others */
    int64_t lane_count;
    uint64_t parameter_count;
    int64_t train_count, test_count, class_count;
    const char *data_path;
} tdm_train_status;

typedef void (*tdm_train_fn)(const tdm_train_status *status, void *user);

typedef struct tdm_train_options {
    tdm_comm *comm;        /* the ranks that train; NULL: this process alone */
    const char *resume;    /* a run directory; NULL: start a new run */
    tdm_train_fn on_event; /* may be NULL; called by the training thread, on every rank */
    void *user;
    /* If it returns true on any rank, training ends after the current step, with a checkpoint. May be
     * NULL. */
    bool (*should_stop)(void *user);
    /* If it returns true on any rank, a checkpoint is saved after the current step and training continues.
     * Called once per step. A request within one second after such a checkpoint counts as the same request,
     * because a signal may reach the ranks one after another. May be NULL. */
    bool (*should_save)(void *user);
    /* Instead of `comm`: this process is a member of a session (elastic.h). It opens and closes the worlds of
     * the membership epochs itself, and training continues when other members die. `membership` is what the
     * member was created with. `shm` holds the state, so that it survives processes; NULL: the state is private,
     * and after a death training continues from the newest checkpoint. */
    tdm_member *member;
    const tdm_member_options *membership;
    tdm_shm *shm;
    int lines_fd; /* ranks that are not on rank 0's host write their log lines here
                   * (tdm_worker_log_forward_fd); 0 or less: none */
} tdm_train_options;

enum { TDM_PATH_BYTES = 4096 }; /* maximum path length of Linux, with the terminator */

typedef struct tdm_train_result {
    char run_path[TDM_PATH_BYTES];
    char checkpoint_path[TDM_PATH_BYTES];
    char state_hash[TDM_SHA256_HEX]; /* as `tandem hash` prints it */
    bool interrupted;                /* by should_stop, before the last step */
    uint32_t recoveries;             /* membership epochs that ended because a member was lost */
    bool ended_early;                /* by train.early_stop, in this or an earlier session */
    bool nothing_to_do;              /* the run had already reached its end */
    uint64_t steps;                  /* total */
    uint64_t step_count;             /* at which the job ends; a resumed run may be past it */
    bool ends_by_steps;              /* train.steps sets the end, not train.epochs */
    uint64_t samples;                /* trained by this call */
    uint64_t skipped;                /* steps skipped by train.bad_numbers, total */
    double seconds;                  /* spent in steps by this call */
    double start_seconds;            /* from the call to the first step */
    double loss; /* of the last step that was not skipped; NaN: none was trained */
    bool has_test;
    tdm_metrics test;
} tdm_train_result;

/*
 * Trains. With a comm this is collective: all ranks pass the same job and options and get the same
 * result or an error. If preparation fails on some ranks, the error is that of the lowest such rank. If a rank dies
 * or does not respond, the status is of the peer group and the message names the rank. Only rank 0 needs
 * access to the run directory; every rank needs the data.
 *
 * With a member: TDM_ERR_PEER_FENCED if the other members continued without this one. TDM_ERR_PEER_LEFT if it was
 * asked to leave or was in reserve until the end. Neither is a result of the run. All remaining members return
 * the same result.
 *
 * TDM_ERR_NO_MEMORY: the job needs more than tdm_memory_budget; checked when only the data is in memory and
 * nothing was written; the message has the numbers and lists settings that fit. TDM_ERR_DIVERGED: loss or gradient are
 * not finite and the job does not skip such steps, more steps in a row than allowed were skipped, or the state
 * itself is not finite; the newest checkpoint is the last good state, and the message names the op that produced the first
 * non-finite value. TDM_ERR_JOB_MISMATCH: `resume` belongs to another job or other data. If the last
 * checkpoint cannot be written, its status is returned; if an earlier one cannot be written, a warning is
 * logged and training continues.
 */
TDM_API tdm_status tdm_train(const tdm_job *job, const tdm_train_options *options,
                             tdm_train_result *out, tdm_error *err);

/* ---- replaying a step of a run ---------------------------------------------------------------- */

/* Result of one lane. */
typedef struct tdm_replay_lane {
    int64_t lane;
    int64_t first_row, row_count; /* of the batch */
    double loss;                  /* the mean over its rows */
    double share;                 /* its contribution to the loss of the step */
    double grad_norm;             /* of its contribution to the gradient */
    bool finite;                  /* all its numbers are finite */
} tdm_replay_lane;

/* Gradient of one parameter in the step, before clipping. */
typedef struct tdm_replay_tensor {
    const char *name;
    tdm_shape shape;
    double grad_norm;
    double grad_largest; /* magnitude */
} tdm_replay_tensor;

typedef struct tdm_replay_result {
    tdm_arena *arena;            /* owns everything this struct points to */
    const char *checkpoint_path; /* where the replay started; NULL: at the initial state */
    uint64_t from_step;          /* steps completed in that checkpoint */
    uint64_t step, step_count;   /* the step, from 1, and the last step of the job */
    uint64_t epoch;              /* from 0 */
    double seconds;              /* total time */
    int64_t batch;               /* rows */
    int64_t lanes_of_job;
    double lr, loss, grad_norm; /* before clipping */
    bool finite;
    const char *bad_text;   /* if not finite: origin of the first non-finite value; else NULL */
    tdm_replay_lane *lanes; /* lanes with rows */
    size_t lane_count;
    int64_t *samples;           /* for each row of the batch: its index in the data file, from 0 */
    tdm_replay_tensor *tensors; /* largest norm first */
    size_t tensor_count;
    /* Values the run logged for this step (run.log_every_steps); NaN if it logged none. */
    bool recorded;
    bool recorded_skipped;
    double recorded_loss, recorded_lr, recorded_grad_norm;
    bool agrees; /* with the logged values */
    size_t dump_count;
} tdm_replay_result;

typedef struct tdm_replay_options {
    const char *run; /* run directory; only read */
    uint64_t step;   /* from 1 */
    /*
     * Tensors to write to the file `dump_path`. State before the step: the name in the checkpoint.
     * "grad/NAME": the gradient of the step, summed over lanes. "lane.L/grad/NAME": the contribution of lane L.
     * "lane.L/OP": the output of an op of a lane, forward or backward ('tandem inspect JOB' lists the
     * names); "lane.L/OP:1": its second output.
     */
    const char *const *dumps;
    size_t dump_count;
    const char *dump_path;
    tdm_train_fn on_event; /* START, STEP and END while training up to the step; may be NULL */
    void *user;
    bool (*should_stop)(void *user); /* ends with TDM_ERR_INTERRUPTED; may be NULL */
} tdm_replay_options;

/*
 * Replays a step of a run: trains in this process, in memory, from the newest valid checkpoint before the step or
 * from the initial state, then executes the step lane by lane. The numbers are those of the run, bit for bit,
 * for any number of ranks it had (with parallel.reduce: tree). `job` is the job of the run. TDM_ERR_RANGE: the job
 * does not have that step. TDM_ERR_DIVERGED: training ends before the step. TDM_ERR_NOT_FOUND: unknown name
 * in `dumps`.
 */
TDM_API tdm_status tdm_replay(const tdm_job *job, const tdm_replay_options *options,
                              tdm_replay_result **out, tdm_error *err);
TDM_API void tdm_replay_result_destroy(tdm_replay_result *result);

/* ---- the ledger of a run ----------------------------------------------------------------------- */

enum { TDM_LEDGER_PROBLEMS = 16, TDM_LEDGER_PROBLEM_BYTES = 200 };

/* Result of checking a run's ledger (checkpoint.ledger). */
typedef struct tdm_ledger_report {
    uint64_t first_step, last_step; /* from 1; 0: the ledger is empty */
    uint64_t step_count;            /* steps in order, with exactly the expected samples */
    uint64_t first_epoch;           /* first data epoch that is complete */
    uint64_t epoch_count;           /* number of complete data epochs */
    uint64_t left_over_steps;       /* steps after the last complete data epoch */
    uint64_t steps_of_epoch;
    uint64_t samples_of_epoch; /* trained in one data epoch */
    uint64_t samples_of_data;  /* in the data set; larger with data.last_batch: drop */
    bool torn;                 /* the last line was truncated by a crash and is ignored */
    /* 0: every sample was trained exactly once in each of these data epochs */
    uint64_t problem_count;
    char problems[TDM_LEDGER_PROBLEMS][TDM_LEDGER_PROBLEM_BYTES]; /* the first ones, as text */
} tdm_ledger_report;

/* Compares a run's ledger with the sample order of the job; loads the data for that. The run may be active.
 * TDM_ERR_NOT_FOUND: the run has no ledger. */
TDM_API tdm_status tdm_ledger_check(const tdm_job *job, const char *run, tdm_ledger_report *out,
                                    tdm_error *err);

#ifdef __cplusplus
}
#endif
#endif
