/* internal.h: shared by the files of the train module. */
#ifndef TANDEM_TRAIN_INTERNAL_H
#define TANDEM_TRAIN_INTERNAL_H

#include "checkpoint/checkpoint.h"
#include "comm/comm.h"
#include "optim/optim.h"
#include "parallel/parallel.h"
#include "resources/resources.h"
#include "sparse/sparse.h"

#include <tandem/comm.h>
#include <tandem/os.h>
#include <tandem/train.h>

#include <stdatomic.h>

/* ---- the run directory (run.c) --------------------------------------------------------------- */

typedef struct tdm__run {
    tdm_arena *arena;
    const char *path;
    const char *checkpoint_dir;
    int rank;              /* other than 0: only the log is written */
    _Atomic uint64_t step; /* finished, for the log, which other threads write as well */
    char host[64];         /* of this process */
    int lock_fd;
    int log_fd;
    int metrics_fd;
    int lines_fd;           /* to the agent; not owned; -1: none */
    bool is_near;           /* rank 0 is on this host */
    uint64_t lines_missing; /* dropped since the last line that was written there */
    atomic_int write_error; /* errno of the last line of log or metrics that failed */
    bool write_error_said;
    tdm_str line;     /* of metrics */
    tdm_str log_line; /* only used under the log's lock */
} tdm__run;

/* Creates DIR/NAME-NUMBER with the lowest number above all existing ones; writes job.yaml. */
tdm_status tdm__run_create(const tdm_job *job, tdm__run *out, tdm_error *err);
/* Opens an existing run. TDM_ERR_BUSY: another process trains in it. With `joins` this is allowed if that process
 * shares the run, as members of one session do. */
tdm_status tdm__run_open(const char *path, bool joins, tdm__run *out, tdm_error *err);
/* Allows other members to join; all of them keep the run from being resumed elsewhere. */
void tdm__run_share(tdm__run *run);
/* For ranks other than 0: writes their warnings and errors, with their rank, to the log of the run that rank 0
 * has open at `path`; from another host through `lines_fd`, if set. */
tdm_status tdm__run_attach(const char *path, int rank, bool same_host, int lines_fd, tdm__run *out,
                           tdm_error *err);
void tdm__run_release(tdm__run *run);
/* Writes job.yaml, the job as it runs from here on. */
tdm_status tdm__run_write_job(tdm__run *run, const tdm_job *job, tdm_error *err);
/* Removes lines after `step` and truncated lines from metrics.jsonl. */
tdm_status tdm__run_rewind(tdm__run *run, uint64_t step, tdm_error *err);
/* Renames checkpoints of later steps. They are all damaged when `step` is that of the newest valid one; with
 * their old names they would count as checkpoints to keep, and valid ones would be removed. */
tdm_status tdm__run_set_aside(tdm__run *run, uint64_t step, tdm_error *err);
/* tdm_run_checkpoint() for a process that may hold the run's lock itself (`is_ours`). */
tdm_status tdm__run_newest(const char *path, bool is_ours, tdm_arena *arena, char **out_path,
                           tdm_error *err);
/* Appends the object in `run->line`. A failure is logged once. */
void tdm__run_put_metrics(tdm__run *run);

/* ---- the state of a model in training (state.c, state_io.c) ----------------------------------- */

/* Steps that were skipped because of non-finite values. Doubles, because they are saved as a tensor. */
typedef struct tdm__skips {
    double in_a_row; /* up to the last step */
    double in_all;
} tdm__skips;

#define TDM__PLATEAU_NAME "schedule.plateau"
#define TDM__EARLY_STOP_NAME "train.early_stop"
#define TDM__SKIPS_NAME "train.bad_numbers"
#define TDM__ROUNDS_NAME "sync.rounds"
#define TDM__FACTOR_NAME "compress.factor"
#define TDM__WEIGHTS_NAME "sync.weights"
#define TDM__PERIOD_NAME "sync.period"
#define TDM__CHOICE_NAME "compress.choice"

enum {
    TDM__BLOCK_NONE = -1,  /* a small tensor that every rank has */
    TDM__BLOCK_TABLE = -2, /* a part of the sparse table; its shape is that of the last save */
};

/* A tensor of the state. */
typedef struct tdm__state_item {
    tdm_named_tensor named; /* has data only if it is not in a block */
    int block;              /* of the parameter store */
    /* Index of the parameter in the graph; SIZE_MAX: none; or of the part of the table. */
    size_t param;
    size_t first, elements; /* in the block */
} tdm__state_item;

/* Parameters, statistics, buffers and optimiser state in a parameter store, with their names. */
typedef struct tdm__state {
    tdm_arena *arena;
    tdm_graph *graph;         /* of one row, for names and layout only */
    tdm_optimiser *optimiser; /* NULL: inference */
    /* sync.kind local and gossip: that of the replicas; `optimiser` is the outer one */
    tdm_optimiser *inner;
    bool
        is_ordered; /* sync.kind server: the first array of a replica is the model that it has read */
    bool
        is_gossip; /* the first array of a replica is its model, and the parameters are their mean */
    int64_t replica_count; /* 0: none */
    int replica_arrays;    /* of each replica */
    int compress_arrays;   /* the last ones of these, of the compression */
    const char *compress_names[TDM_MAX_COMPRESS_ARRAYS];
    size_t factor_elements; /* PowerSGD: behind the residual of each replica, all alike; 0: none */
    tdm_comm *comm;         /* NULL: a single process */
    tdm_params *store;
    tdm_sparse *sparse; /* NULL: the model has no sparse table */
    float *params;      /* block of the store; only valid to read completely if it is not sharded */
    bool has_ema;
    float *statistics; /* on rank 0, to copy statistics beside the average; NULL: not needed */
    /* Progress of the metric, for reduce_on_plateau and for early stopping. */
    tdm_plateau plateau;
    tdm_plateau early_stop;
    tdm__skips skips;
    double choice; /* compress.auto: the tdm_payoff_method, + 1; 0: not yet */
    double rounds; /* sync.kind local and gossip: the number of rounds so far */
    double period; /* sync.adapt_divergence: of the next round, rounded down */
    double *
        weights; /* sync.kind gossip: push-sum weights of the replicas at the last mean; else NULL */
    tdm__state_item *items; /* sorted by name */
    tdm_named_tensor *tensors;
    size_t tensor_count;
    const tdm_commit_gate *gate; /* called before a checkpoint is renamed into place; may be NULL */
    size_t bucket;               /* chosen bucket size; 0: not yet */
    size_t from_file_count;      /* parameters and buffers initialised from model.init_from */
} tdm__state;

/* Which tensors are part of the state. */
typedef enum tdm__state_use {
    TDM__STATE_FOR_TRAINING, /* all */
    TDM__STATE_FOR_INFERENCE /* parameters and buffers only */
} tdm__state_use;

/* Shared memory in which the blocks survive this process, and the membership epoch that uses them. */
typedef struct tdm__home {
    tdm_shm *shm; /* NULL: private memory */
    int slot;
    uint32_t epoch;
} tdm__home;

/* The number of blocks of the parameter store, including those that do not exist. */
int tdm__state_blocks(const tdm__state *state);
/* The block with the residual of a replica. */
int tdm__state_residual(const tdm__state *state, int64_t replica);
/* All tensors are initially zero. `out` must not move: its tensors point into it. `comm` NULL: a single
 * process. With a comm, this and every fallible function below is collective; if rank 0 fails, all ranks get
 * its error. */
tdm_status tdm__state_init(const tdm_model_options *model, tdm__state_use use, tdm_comm *comm,
                           tdm__state *out, tdm_error *err);
void tdm__state_release(tdm__state *state);
/* tdm__state_init in two parts: the part of the process, and the parameter store, which belongs to a world. */
tdm_status tdm__state_prepare(const tdm_model_options *model, tdm__state_use use, tdm__state *out,
                              tdm_error *err);
tdm_status tdm__state_enter(tdm__state *state, const tdm_job *job, tdm_comm *comm,
                            const tdm__home *home, tdm_error *err);
void tdm__state_leave(tdm__state *state);
/* Sets initial values: from the seed, the data (normalisation) and model.init_from. Only rank 0 reads
 * `train`. */
tdm_status tdm__state_begin(tdm__state *state, const tdm_job *job, const tdm_dataset *train,
                            tdm_error *err);
/* Restores everything from a checkpoint, which rank 0 has; other ranks pass NULL. Each tensor must exist with the
 * right shape. With `averaged`, trained parameters get the values of their averages. */
tdm_status tdm__state_restore(tdm__state *state, const tdm_checkpoint *checkpoint, bool averaged,
                              tdm_error *err);
/* Writes a checkpoint. `path` and `content` (except its tensors) matter on rank 0 only. If its disk
 * fails, all ranks get the error and may continue training. All ranks get the state hash. */
tdm_status tdm__state_save(tdm__state *state, const char *path,
                           const tdm_checkpoint_content *content, char hash[TDM_SHA256_HEX],
                           tdm_error *err);
/* Computes the hash only. */
tdm_status tdm__state_hash(tdm__state *state, const tdm_position *position,
                           char hash[TDM_SHA256_HEX], tdm_error *err);
/* Whether a job evaluates and predicts with averaged weights. */
bool tdm__job_averages(const tdm_job *job);
/* The block to evaluate with: the average or the parameters. */
int tdm__state_measured(const tdm__state *state, const tdm_job *job);
/* Before an evaluation: copies the current statistics beside the average. */
tdm_status tdm__state_measure(tdm__state *state, const tdm_job *job, tdm_error *err);
/* The name of the first tensor with a non-finite value, or NULL. */
tdm_status tdm__state_find_bad(tdm__state *state, const char **out, tdm_error *err);

/* ---- the schedule of a job (train_schedule.c) -------------------------------------------------- */

typedef struct tdm__train_schedule {
    const tdm_job *job; /* borrowed */
    char job_hash[TDM_SHA256_HEX];
    char data_hash[TDM_SHA256_HEX];
    char test_hash[TDM_SHA256_HEX]; /* of the test set; empty until ranks compare it */
    tdm_job_data data;
    tdm_model_options model; /* of the job, for this data */
    tdm_sampler sampler;
    int64_t full_batch;   /* rows of all batches except the last of an epoch */
    int64_t epoch_rows;   /* trained rows per epoch */
    uint64_t epoch_steps; /* steps per epoch */
    uint64_t step_count;  /* at which the job ends */
    tdm_schedule schedule;
} tdm__train_schedule;

/* Loads the data. */
tdm_status tdm__train_schedule_init(const tdm_job *job, tdm__train_schedule *out, tdm_error *err);
void tdm__train_schedule_release(tdm__train_schedule *schedule);
/* Compares the data that the ranks read: all ranks fail if one has other data than rank 0. The test set rarely
 * affects the result, but all ranks evaluate with it. Collective. */
tdm_status tdm__train_schedule_compare(tdm__train_schedule *schedule, tdm_comm *comm,
                                       tdm_error *err);
/* The number of rows of the step at this position; the index in the training set of one of its rows; the next
 * position. No allocation. */
int64_t tdm__train_schedule_batch(const tdm__train_schedule *schedule, const tdm_position *at);
int64_t tdm__train_schedule_sample(const tdm__train_schedule *schedule, const tdm_position *at,
                                   int64_t row);
void tdm__train_schedule_advance(const tdm__train_schedule *schedule, tdm_position *at);
/* The position after `step` steps. */
tdm_position tdm__train_schedule_position(const tdm__train_schedule *schedule, uint64_t step);
/* The number of steps that are executed together from `step` on, with the learning rate `lr`: one, or with sync.kind
 * local the steps until the next average. `period`: with sync.adapt_divergence. */
uint64_t tdm__train_schedule_round(const tdm__train_schedule *schedule, uint64_t step, double lr,
                                   double period);
/* The period after a round of `steps` steps from `step` on, in which the replicas had this divergence. */
double tdm__train_schedule_period(const tdm__train_schedule *schedule, uint64_t step,
                                  uint64_t steps, double period, double divergence);
/* Whether something done every `every_steps` steps and `every_epochs` epochs (0: never) is due: whether a multiple of
 * them is after `before` and not after `now`. */
bool tdm__train_schedule_is_due(int64_t every_steps, int64_t every_epochs,
                                const tdm_position *before, const tdm_position *now);
/* Checks that a position can occur in this job: the numbers of steps, epochs and samples agree. Else
 * TDM_ERR_FORMAT for `path`. */
tdm_status tdm__train_schedule_check_position(const tdm__train_schedule *schedule,
                                              const tdm_position *at, const char *path,
                                              tdm_error *err);
/* Checks that the checkpoint `path` of the run `run` comes from this job, except for keys that do not affect the
 * result, and from this data. Else TDM_ERR_JOB_MISMATCH. */
tdm_status tdm__train_schedule_check_job(const tdm__train_schedule *schedule,
                                         const tdm_checkpoint *checkpoint, const char *path,
                                         const char *run, tdm_error *err);

/* ---- messages about non-finite values (numbers.c) ---------------------------------------------- */

/* Appends the result of a replay. `index` is the sample of bad->first_row in `train`. */
void tdm__bad_number_text(const tdm_bad_number *bad, const tdm_dataset *train, int64_t index,
                          tdm_str *out);
/* What the user can do about it. */
const char *tdm__bad_number_advice(const tdm_bad_number *bad, const tdm_job *job);

/* ---- CPUs (cpus.c) ---------------------------------------------------------------------------- */

/* The number of threads of this rank; informs the kernels whether each thread has a CPU. With `logs`, rank 0 warns
 * about hosts with more threads than CPUs. Collective. */
tdm_status tdm__share_cpus(tdm_comm *comm, const tdm_job *job, bool logs, int *threads,
                           tdm_error *err);

/* What affects the result beside job and data on this machine: see tdm_numerics_text. */
const char *tdm__numerics_of(const tdm_job *job, char buffer[TDM_NUMERICS_BYTES]);
/* TDM_ERR_JOB_MISMATCH if the ranks have different numerics. Collective. */
tdm_status tdm__same_numerics(tdm_comm *comm, const tdm_job *job, tdm_error *err);
/* Warns if a checkpoint was computed with other numerics, with the consequence `follows`. */
void tdm__warn_of_numerics(const char *path, const char *there, const tdm_job *job,
                           const char *follows);

/* ---- ranks (ranks.c) -------------------------------------------------------------------------- */

/* 0 and 1 without a comm. */
int tdm__rank_of(tdm_comm *comm);
int tdm__size_of(tdm_comm *comm);
/* This rank failed where others may wait for it: aborts their calls with this error's message. */
void tdm__call_off(tdm_comm *comm, const tdm_error *err);
/* Compares texts of `bytes` bytes, zero-padded. *differs: the lowest rank whose text is not empty and not that of
 * rank 0; -1: none. `text` becomes rank 0's. Collective. */
tdm_status tdm__same_text(tdm_comm *comm, char *text, size_t bytes, int *differs, tdm_error *err);
/* TDM_ERR_JOB_MISMATCH, with the key, if ranks have different settings that are not part of the job
 * hash but determine which calls they make (duration, ZeRO, checkpoint interval), or if only some of them
 * resume. Collective. */
tdm_status tdm__same_settings(tdm_comm *comm, const tdm_job *job, bool resumes, tdm_error *err);
/* Whether another rank shares the memory of this rank's node. */
bool tdm__shares_node(tdm_comm *comm);
typedef struct tdm__host_name {
    char text[64];
} tdm__host_name;
/* Host names of all ranks; `out` has one entry per rank. Collective. */
tdm_status tdm__host_names(tdm_comm *comm, tdm__host_name *out, tdm_error *err);

/* ---- one copy of the data for a node (share.c) ------------------------------------------------- */

/* Moves the features to a region of the segment, and frees all other copies. `hash` is that of the data. Every process
 * of the node calls this; if the region is not available, the process keeps its copy. Not collective. The region
 * exists until the segment is closed. */
void tdm__data_share(tdm_job_data *data, const char *hash, tdm_shm *shm);

/* ---- the job in a checkpoint (checkpoint_job.c) ------------------------------------------------ */

/* Parses the job in a checkpoint; files that it names are not checked. The caller destroys the document. */
tdm_status tdm__checkpoint_job(const tdm_checkpoint *checkpoint, const char *path,
                               tdm_job_document **out, tdm_error *err);
/* The same, with one key changed: `override` is "KEY=VALUE". */
tdm_status tdm__checkpoint_job_with(const tdm_checkpoint *checkpoint, const char *path,
                                    const char *override, tdm_job_document **out, tdm_error *err);

#endif
