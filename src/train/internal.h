/* internal.h: the pieces of the training room that its files share. */
#ifndef TANDEM_TRAIN_INTERNAL_H
#define TANDEM_TRAIN_INTERNAL_H

#include <tandem/comm.h>
#include <tandem/optim.h>
#include <tandem/os.h>
#include <tandem/parallel.h>
#include <tandem/train.h>

#include <stdatomic.h>

/* ---- a run's folder (run.c) ------------------------------------------------------------------ */

typedef struct tdm__run {
    tdm_arena *arena;
    const char *path;
    const char *checkpoint_dir;
    int rank;              /* other than 0: only the log is written */
    _Atomic uint64_t step; /* finished, for the log, which other threads write to as well */
    char host[64];         /* this process's */
    int lock_fd;
    int log_fd;
    int metrics_fd;
    int lines_fd;           /* to the agent, which is not this object's; -1: none */
    bool is_near;           /* rank 0 is on this host */
    uint64_t lines_missing; /* since the last one that could be given there */
    atomic_int write_error; /* errno of the last line of log or metrics that could not be written */
    bool write_error_said;
    tdm_str line;     /* of metrics */
    tdm_str log_line; /* used under the log's lock only */
} tdm__run;

/* Makes DIR/NAME-NUMBER with the lowest number that is higher than all there, writes job.yaml. */
tdm_status tdm__run_create(const tdm_job *job, tdm__run *out, tdm_error *err);
/* Opens one that is there. TDM_ERR_BUSY when another process trains in it; with `joins` it may, when it
 * shares the run (members of one session do). */
tdm_status tdm__run_open(const char *path, bool joins, tdm__run *out, tdm_error *err);
/* From now on others that join may be in it, too, and keep it from being resumed elsewhere. */
void tdm__run_share(tdm__run *run);
/* For ranks other than 0: their warnings and errors go to the log of the run that rank 0 has open in
 * `path`, with their rank; from another host by way of `lines_fd`, if there is one. */
tdm_status tdm__run_attach(const char *path, int rank, bool same_host, int lines_fd, tdm__run *out,
                           tdm_error *err);
void tdm__run_release(tdm__run *run);
/* job.yaml, the job as it runs from here on. */
tdm_status tdm__run_write_job(tdm__run *run, const tdm_job *job, tdm_error *err);
/* Drops what metrics.jsonl has beyond `step`, and what was cut short. */
tdm_status tdm__run_rewind(tdm__run *run, uint64_t step, tdm_error *err);
/* Renames checkpoints of later steps, which are all damaged when `step` is that of the newest good
 * one: with their names they would count among those to keep, and good ones would be removed. */
tdm_status tdm__run_set_aside(tdm__run *run, uint64_t step, tdm_error *err);
/* tdm_run_checkpoint() for a process that may have the run's lock itself (`is_ours`). */
tdm_status tdm__run_newest(const char *path, bool is_ours, tdm_arena *arena, char **out_path,
                           tdm_error *err);
/* Appends the object that `run->line` holds. A failure is logged once. */
void tdm__run_put_metrics(tdm__run *run);

/* ---- the state of a model in training (state.c, state_io.c) ----------------------------------- */

/* Steps that were skipped because of bad numbers. Doubles, to be kept as a tensor. */
typedef struct tdm__skips {
    double in_a_row; /* up to the last step */
    double in_all;
} tdm__skips;

#define TDM__PLATEAU_NAME "schedule.plateau"
#define TDM__EARLY_STOP_NAME "train.early_stop"
#define TDM__SKIPS_NAME "train.bad_numbers"

enum { TDM__BLOCK_NONE = -1 }; /* a small tensor, which every rank has */

/* A tensor of the state. */
typedef struct tdm__state_item {
    tdm_named_tensor named; /* with data only where it is in no block */
    int block;              /* of the store */
    size_t param;           /* which one of the graph's */
} tdm__state_item;

/* Parameters, statistics, buffers and optimiser state in a store, and their names. */
typedef struct tdm__state {
    tdm_arena *arena;
    tdm_graph *graph;         /* of one row, for names and layout only */
    tdm_optimiser *optimiser; /* NULL: the state is only looked at */
    tdm_comm *comm;           /* NULL: a single process */
    tdm_params *store;
    float *params; /* the store's; for those who know that they are whole */
    bool has_ema;
    float *statistics; /* at rank 0, on their way to the average; NULL: not needed */
    /* What evaluations have said: for reduce_on_plateau and for early stopping. */
    tdm_plateau plateau;
    tdm_plateau early_stop;
    tdm__skips skips;
    tdm__state_item *items; /* in order of name */
    tdm_named_tensor *tensors;
    size_t tensor_count;
    const tdm_commit_gate *gate; /* asked before a checkpoint gets its name; NULL: nobody is */
    size_t bucket;               /* as it was chosen; 0: not yet */
    size_t from_file_count; /* parameters and buffers that began with values of model.init_from */
} tdm__state;

/* What is part of the state besides the model itself. */
typedef enum tdm__state_use {
    TDM__STATE_FOR_TRAINING, /* all of it */
    TDM__STATE_FOR_INFERENCE /* parameters and buffers only */
} tdm__state_use;

/* Where blocks outlive this process, and in which epoch it uses them. */
typedef struct tdm__home {
    tdm_shm *shm; /* NULL: they do not */
    int slot;
    uint32_t epoch;
} tdm__home;

/* All zero at first. `out` must stay where it is: its tensors point into it. `comm` NULL: a single
 * process. With one, this and all below that can fail is collective; when rank 0 fails, all get its
 * error. */
tdm_status tdm__state_init(const tdm_model_options *model, tdm__state_use use, tdm_comm *comm,
                           tdm__state *out, tdm_error *err);
void tdm__state_release(tdm__state *state);
/* The same in two parts: what a process has once, and the store, which belongs to a world. */
tdm_status tdm__state_prepare(const tdm_model_options *model, tdm__state_use use, tdm__state *out,
                              tdm_error *err);
tdm_status tdm__state_enter(tdm__state *state, const tdm_job *job, tdm_comm *comm,
                            const tdm__home *home, tdm_error *err);
void tdm__state_leave(tdm__state *state);
/* First values: from the seed, from the data (normalisation), from model.init_from. `train` is looked
 * at by rank 0 only. */
tdm_status tdm__state_begin(tdm__state *state, const tdm_job *job, const tdm_dataset *train,
                            tdm_error *err);
/* Everything from a checkpoint, which rank 0 has; others give NULL. Each tensor must be there with the
 * right shape. With `averaged`, trained parameters get the values of their averages. */
tdm_status tdm__state_restore(tdm__state *state, const tdm_checkpoint *checkpoint, bool averaged,
                              tdm_error *err);
/* Writes a checkpoint; all of `content` but its tensors, and `path`, matter at rank 0 only. When its disk
 * fails, all get its error, and may go on training. All get the state's hash. */
tdm_status tdm__state_save(tdm__state *state, const char *path,
                           const tdm_checkpoint_content *content, char hash[TDM_SHA256_HEX],
                           tdm_error *err);
/* The hash alone. */
tdm_status tdm__state_hash(tdm__state *state, const tdm_position *position,
                           char hash[TDM_SHA256_HEX], tdm_error *err);
/* Whether a job's model is measured, and predicts, with averaged weights. */
bool tdm__job_averages(const tdm_job *job);
/* The block to measure with: the average or the parameters. */
int tdm__state_measured(const tdm__state *state, const tdm_job *job);
/* Before measuring: brings the statistics of now beside the average. */
tdm_status tdm__state_measure(tdm__state *state, const tdm_job *job, tdm_error *err);
/* The name of the first tensor with a number that is not finite, or NULL. */
tdm_status tdm__state_find_bad(tdm__state *state, const char **out, tdm_error *err);

/* ---- the way of a job through its data (train_schedule.c) --------------------------------------------- */

typedef struct tdm__train_schedule {
    const tdm_job *job; /* borrowed */
    char job_hash[TDM_SHA256_HEX];
    char data_hash[TDM_SHA256_HEX];
    tdm_job_data data;
    tdm_model_options model; /* the job's, for this data */
    tdm_sampler sampler;
    int64_t full_batch;   /* rows of all batches but the last of an epoch */
    int64_t epoch_rows;   /* rows of an epoch that are trained */
    uint64_t epoch_steps; /* steps of an epoch */
    uint64_t step_count;  /* at which the job ends */
    tdm_schedule schedule;
} tdm__train_schedule;

/* Loads the data. */
tdm_status tdm__train_schedule_init(const tdm_job *job, tdm__train_schedule *out, tdm_error *err);
/* The same on every rank; they compare what they have read, and those of a node keep one copy of it.
 * Collective. */
tdm_status tdm__train_schedule_init_together(const tdm_job *job, tdm_comm *comm,
                                             tdm__train_schedule *out, tdm_error *err);
void tdm__train_schedule_release(tdm__train_schedule *schedule);
/* Ranks compare what they have read, each by a hash, which becomes rank 0's; those that bring none do not
 * count. All fail together where one differs. Collective. */
tdm_status tdm__data_compare(const tdm_dataset *set, char hash[TDM_SHA256_HEX], tdm_comm *comm,
                             tdm_error *err);
/* Rows of the step at this position; the sample, in the training set, of one of them; the next
 * position. No allocation. */
int64_t tdm__train_schedule_batch(const tdm__train_schedule *schedule, const tdm_position *at);
int64_t tdm__train_schedule_sample(const tdm__train_schedule *schedule, const tdm_position *at,
                                   int64_t row);
void tdm__train_schedule_advance(const tdm__train_schedule *schedule, tdm_position *at);
/* Whether something that is done every so often (0: never) is due after `count`. */
bool tdm__is_due(int64_t every, uint64_t count);
/* Whether an evaluation, with its consequences, is due at this position. */
bool tdm__train_schedule_eval_due(const tdm__train_schedule *schedule, const tdm_position *at);
/* Whether a position is one that this job comes by: the numbers of steps, epochs and samples agree.
 * TDM_ERR_FORMAT for that of `path` otherwise. */
tdm_status tdm__train_schedule_check_position(const tdm__train_schedule *schedule,
                                              const tdm_position *at, const char *path,
                                              tdm_error *err);
/* Whether the checkpoint `path` of the run `run` comes from this job, but for what does not decide the
 * result, and from this data. TDM_ERR_JOB_MISMATCH otherwise. */
tdm_status tdm__train_schedule_check_job(const tdm__train_schedule *schedule,
                                         const tdm_checkpoint *checkpoint, const char *path,
                                         const char *run, tdm_error *err);

/* ---- bad numbers, in words (numbers.c) ------------------------------------------------------- */

/* Appends what a replay found. `index` is the sample of bad->first_row in `train`. */
void tdm__bad_number_text(const tdm_bad_number *bad, const tdm_dataset *train, int64_t index,
                          tdm_str *out);
/* What to do about it. */
const char *tdm__bad_number_advice(const tdm_bad_number *bad, const tdm_job *job);

/* ---- memory (memory.c) ----------------------------------------------------------------------- */

/* How many workers there are when `worker_count` were asked for; 0: to be chosen. */
int tdm__workers_of(const tdm_job *job, int worker_count);
/* Threads of each of so many workers of this host, before there is a world. */
int tdm__threads_guess(const tdm_job *job, int host_workers);
/* TDM_ERR_NO_MEMORY when the job does not fit this host, with all ranks that run on it; `resumes` when
 * it may not change what decides bits. `threads`: of each rank. */
tdm_status tdm__memory_check(const tdm_job *job, const tdm_job_data *data, tdm_comm *comm,
                             int threads, bool resumes, tdm_error *err);

/* ---- CPUs (cpus.c) ---------------------------------------------------------------------------- */

/* How many threads this rank computes with; kernels learn whether they have a CPU each. Collective.
 * `says`: rank 0 warns where a host has more threads than CPUs. */
tdm_status tdm__share_cpus(tdm_comm *comm, const tdm_job *job, bool says, int *threads,
                           tdm_error *err);

/* What decides bits beside job and data, here: see tdm_numerics_text. */
const char *tdm__numerics_of(const tdm_job *job, char buffer[TDM_NUMERICS_BYTES]);
/* TDM_ERR_JOB_MISMATCH when ranks differ in that. Collective. */
tdm_status tdm__same_numerics(tdm_comm *comm, const tdm_job *job, tdm_error *err);
/* Says that a checkpoint was computed otherwise than here, if it was, and what follows from it. */
void tdm__warn_of_numerics(const char *path, const char *there, const tdm_job *job,
                           const char *follows);

/* ---- ranks (ranks.c) -------------------------------------------------------------------------- */

/* 0 and 1 without a comm. */
int tdm__rank_of(tdm_comm *comm);
int tdm__size_of(tdm_comm *comm);
/* Whether a status tells of the world and not of what this rank does. */
bool tdm__is_peer_status(tdm_status status);
/* Ends a phase that each rank went through by itself: all get TDM_OK, or the error of the lowest rank
 * that failed. `wishes` (may be NULL), up to eight bits, are or-ed over the ranks. Collective; a
 * status of the peer group is passed through. */
tdm_status tdm__agree(tdm_comm *comm, tdm_status status, unsigned *requests, tdm_error *err);
/* This rank has failed where others may wait for it: ends their calls with this error's words. */
void tdm__call_off(tdm_comm *comm, const tdm_error *err);
/* *differs becomes the lowest rank that has another text (`bytes` long, zeros behind its end) than rank
 * 0, and is not empty; -1: none. `text` becomes rank 0's. Collective. */
tdm_status tdm__same_text(tdm_comm *comm, char *text, size_t bytes, int *differs, tdm_error *err);
/* TDM_ERR_JOB_MISMATCH, naming the key, when ranks were started with different settings that are not
 * part of the job's hash, but decide which calls they make (how long to train, ZeRO, how often to
 * save), or when some resume and others do not. Collective. */
tdm_status tdm__same_settings(tdm_comm *comm, const tdm_job *job, bool resumes, tdm_error *err);
/* Whether this is the lowest rank of those that see the same memory. */
bool tdm__leads_node(tdm_comm *comm);
typedef struct tdm__host_name {
    char text[64];
} tdm__host_name;
/* Of every rank; `out` has as many as there are ranks. Collective. */
tdm_status tdm__host_names(tdm_comm *comm, tdm__host_name *out, tdm_error *err);

/* ---- one copy of the data for a node (share.c) ------------------------------------------------- */

/* Puts features into memory that the ranks of a node have in common, and frees all other copies. Where
 * that memory is not to be had, every rank keeps its own. Collective. */
tdm_status tdm__data_share(tdm_job_data *data, tdm_comm *comm, tdm_error *err);
/* The same in a vault, by each process for itself: the first one puts them there. Not collective. */
void tdm__data_keep(tdm_job_data *data, tdm_shm *shm);

/* ---- checkpoints (model.c) ------------------------------------------------------------------- */

/* The job inside a checkpoint. The document is the caller's to destroy. */
tdm_status tdm__checkpoint_job(const tdm_checkpoint *checkpoint, const char *path,
                               tdm_job_document **out, tdm_error *err);

#endif
