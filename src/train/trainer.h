/*
 * trainer.h: shared by the files of the training loop.
 *
 * train_epoch.c: the loop over membership epochs, from start to end. train.c: steps and the work due after them.
 * train_begin.c: preparation in a world. train_save.c: checkpoints.
 * train_schedule.c: samples and learning rate of a step. train_order.c: the order of asynchronous updates.
 *
 * With sync.kind local and gossip, replicas of the model train alone for a round of steps and are then averaged, or
 * exchange their models. The loop executes a round as it executes one step otherwise: the position advances by all its steps at once, and metrics, evaluations,
 * checkpoints and requests are handled after it.
 */
#ifndef TANDEM_TRAIN_TRAINER_H
#define TANDEM_TRAIN_TRAINER_H

#include "train/internal.h"
#include "train/ledger.h"
#include "train/order_file.h"
#include "train/retry.h"
#include "train/saver.h"
#include "train/traffic.h"
#include "train/watch.h"

#include <tandem/elastic.h>

#include <pthread.h>

/* Request bits by which ranks agree on what to do after a step, in addition to those of elastic.h. */
enum {
    TDM__REQUEST_SAVE = 4,    /* a checkpoint was requested */
    TDM__REQUEST_SAVE_DUE = 8 /* a checkpoint is due by rank 0's clock */
};

/* The checkpoint from which a run continues, as rank 0 broadcasts it. */
typedef struct tdm__restored {
    tdm_position position;
    char path[TDM_PATH_BYTES];
} tdm__restored;

/*
 * How far the loop is with the last step:
 *
 *                            tdm__after_step
 *       +---------+    (metrics, evaluation, save)    +---------+   run_finish   +-------+
 *       | STEPPED |---------------------------------->| SETTLED |--------------->| ENDED |
 *       +---------+<----------------------------------+---------+                +-------+
 *            ^               tdm__count_step                                         ^
 *            |                                        +----------+    run_finish     |
 *            +----------------------------------------| RESTORED |-------------------+
 *                            tdm__count_step          +----------+
 *
 * A run begins in RESTORED (from a checkpoint) or SETTLED (a new run, or a state in memory). A new epoch continues in
 * the phase of the snapshot (snapshot_restore).
 */
typedef enum tdm__train_phase {
    TDM__TRAIN_SETTLED, /* the work due after the last step is done */
    TDM__TRAIN_RESTORED, /* likewise; the state came from a checkpoint, and nothing was trained since */
    TDM__TRAIN_STEPPED, /* that work is not done */
    TDM__TRAIN_ENDED    /* everything to be kept is on disk */
} tdm__train_phase;

/* Checkpoints of this process. */
typedef struct tdm__trainer_saves {
    tdm__saver *saver;
    tdm__snapshot_pool *pool; /* passed from saver to saver */
    bool has_begun;           /* a save was begun in this world, of begun_step */
    uint64_t begun_step;
    double begun_s;                  /* when the last checkpoint was begun, or training started */
    tdm__saved last;                 /* result of the last save, on rank 0 */
    bool is_failing;                 /* checkpoints fail, and this was logged */
    tdm__retry retry;                /* of a failed checkpoint; rank 0 */
    bool is_last;                    /* the next checkpoint is that of the end */
    tdm__retry last_retry;           /* of that one; rank 0 */
    char path[TDM_PATH_BYTES];       /* of the last checkpoint */
    char state_hash[TDM_SHA256_HEX]; /* of the last checkpoint */
} tdm__trainer_saves;

/* Checkpoints that were requested. */
typedef struct tdm__trainer_requests {
    bool is_pending;       /* should_save requested one, and no save was begun since */
    double begun_s;        /* when a requested save was begun; 0: never */
    uint64_t newest;       /* rank 0: revision of the newest request in the store */
    uint64_t answered;     /* revision up to which requests were answered */
    uint64_t serving;      /* revision of the request being served; 0: none */
    uint64_t serving_step; /* step of the save that serves it */
} tdm__trainer_requests;

/* Times and counts for the metrics. */
typedef struct tdm__trainer_clock {
    double begin_s;        /* of the call */
    double start_seconds;  /* from begin_s to the first step */
    double step_seconds;   /* spent in steps by this call */
    double longest_step_s; /* with the work due after it */
    uint64_t first_sample; /* samples trained before this call */
    uint64_t first_step;
    double window_begin_s;
    uint64_t window_begin_samples;
} tdm__trainer_clock;

/* Rank 0 writes the ledger; every rank has the line of the last step. */
typedef struct tdm__trainer_ledger {
    tdm__lines file;
    uint64_t tally; /* digest of the samples this rank read in the current step */
    tdm__ledger_line line;
    tdm__ledger_line *recent; /* in sessions, a ring (lines.h); else NULL */
} tdm__trainer_ledger;

/* Membership epochs (train_epoch.c). */
typedef struct tdm__trainer_session {
    tdm_kv *kv; /* NULL: a fixed world */
    uint32_t epoch;
    bool has_entered; /* this process took part in an epoch before */
    int refused_rank; /* with which no world could be opened; -1: none */
    char refused_why[TDM_LOST_BYTES];
    char run_path[TDM_PATH_BYTES]; /* of the session's run; empty: unknown */
    pthread_mutex_t
        comm_lock; /* protects the comm and the next field from the interrupting thread */
    bool is_interrupted;
} tdm__trainer_session;

typedef struct tdm__trainer {
    const tdm_job *job;
    const tdm_train_options *options;
    tdm_comm *comm; /* NULL: a single process */
    bool leads;     /* rank 0 */
    tdm_arena *arena;

    /* What is trained. */
    tdm__train_schedule schedule;
    tdm_position position;
    tdm_position
        batch_at; /* of the batch that lanes are reading: `position`, or later in a round */
    tdm__restored resumed;
    tdm__train_phase phase;
    bool ended_early; /* by train.early_stop */
    tdm__state state;
    tdm_plan_cache *plan_cache; /* passed from team to team */
    tdm_team *team;
    tdm_order *order; /* sync.kind server: of the updates; NULL: none */
    tdm__traffic traffic;
    tdm_order_entry order_entries[TDM_ORDER_MAX_WORKERS]; /* of the current round */
    tdm_order_state order_state;                          /* sync.order live: after the last step */
    tdm_live_round live;                                  /* sync.order live: the current round */
    tdm__order_line *order_recent;   /* in sessions, a ring (lines.h); else NULL */
    char order_hash[TDM_SHA256_HEX]; /* of the entries of sync.order_from */
    uint64_t round_steps;            /* of the current step, or round of steps */
    int64_t *indices;                /* of the samples of a lane */
    tdm__watch watch;
    tdm_predictor *predictor;
    int predictor_threads;  /* it was created for */
    tdm_prefetch *prefetch; /* of the predictor */

    /* What is recorded. */
    tdm_str job_yaml;
    tdm__run run;
    bool run_open;
    tdm_train_status status;
    tdm_train_result *result;
    tdm__trainer_clock clock;
    tdm__trainer_ledger ledger;
    tdm__lines order_file; /* rank 0: of the order of updates */
    tdm_recovery recovery; /* at the beginning of this epoch */
    tdm__trainer_saves saves;
    tdm__trainer_requests requests;
    tdm__trainer_session session;
} tdm__trainer;

/* ---- steps (train.c) -------------------------------------------------------------------------- */

/* Logs on rank 0 only. */
void tdm__say(const tdm__trainer *t, tdm_log_level level, const char *fmt, ...) TDM_PRINTF(3, 4);
void tdm__tell(tdm__trainer *t, tdm_train_event event);
/* The requests of this rank. Called once per step: should_save reports a request only once. */
unsigned tdm__requests_of(tdm__trainer *t);
/* Executes one step without the work due after it. *requests: of all ranks. */
tdm_status tdm__one_step(tdm__trainer *t, unsigned request, unsigned *requests, tdm_error *err);
/* Advances the position by `steps` and records the result of a completed step, or round of steps. */
void tdm__count_step(tdm__trainer *t, const tdm_step_result *result, uint64_t steps);
/* The number of steps of the next round: one, unless the job has replicas that train or update by themselves. */
uint64_t tdm__round_steps(tdm__trainer *t);
/* The number of updates of the model so far: steps, or with sync.kind local, rounds of steps. */
uint64_t tdm__updates_of(const tdm__trainer *t);
/* The position before the last step, or round of steps. */
tdm_position tdm__position_before(const tdm__trainer *t);
/* Whether an evaluation is due after the last step. */
bool tdm__eval_due(const tdm__trainer *t);
/* Metrics, evaluation, and the begin of a checkpoint. `requests`: of all ranks. */
tdm_status tdm__after_step(tdm__trainer *t, unsigned requests, tdm_error *err);
/* Writes the metrics lines of the last step again. Rank 0. */
void tdm__put_log_lines(tdm__trainer *t);
tdm_status tdm__sum_up(tdm__trainer *t, tdm_train_result *out, tdm_error *err);
/* With sync.kind gossip: computes the mean of the replicas, which is evaluated and saved. Collective. */
tdm_status tdm__average(tdm__trainer *t, tdm_error *err);
/* With compress.auto: chooses a method, or takes over the choice. If `says`, before the first step of a run, logs whether
 * compression pays. Collective. (train_compress.c) */
tdm_status tdm__prepare_compression(tdm__trainer *t, bool says, tdm_error *err);
tdm_status tdm__measure_test(tdm__trainer *t, tdm_error *err);
void tdm__start_clock(tdm__trainer *t);
/* Log lines at the start and at the end. */
void tdm__say_start(const tdm__trainer *t);
void tdm__say_end(tdm__trainer *t, const tdm_train_result *result);
uint64_t tdm__skipped_of(const tdm__trainer *t);

/* ---- checkpoints (train_save.c) ---------------------------------------------------------------- */

const char *tdm__last_good(const tdm__trainer *t); /* as text */
tdm_status tdm__make_saver(tdm__trainer *t, tdm_error *err);
/* Begins to save the current state. */
tdm_status tdm__save_begin(tdm__trainer *t, tdm_error *err);
/* Handles the results of finished saves. Local; fails if one found non-finite values. */
tdm_status tdm__save_handle_finished(tdm__trainer *t, tdm_error *err);
void tdm__before_update(void *trainer); /* callback of every step */
/* Waits for the save in progress. */
tdm_status tdm__save_finish(tdm__trainer *t, tdm_error *err);
/* Whether a failed save is due to be retried. Rank 0. */
bool tdm__save_retry_due(const tdm__trainer *t);
/* After rank 0's attempt failed with `status` (the same on all ranks): waits until the next attempt is due. *again:
 * there is one, within checkpoint.retry_s of the first failure. `retry` is rank 0's. Collective. */
tdm_status tdm__retry_await(const tdm__trainer *t, const tdm__retry *retry, tdm_status status,
                            bool *again, tdm_error *err);
/* Ensures that the current state is in a checkpoint; fails after at most checkpoint.retry_s. */
tdm_status tdm__save_end(tdm__trainer *t, tdm_error *err);

/* ---- the order of asynchronous updates (train_order.c) ----------------------------------------- */

/* These do nothing unless sync.kind is server. Once in a process: reads a recorded order. */
tdm_status tdm__order_prepare(tdm__trainer *t, tdm_error *err);
void tdm__order_release(tdm__trainer *t);
/* TDM_ERR_JOB_MISMATCH: ranks have read different recorded orders. Collective. */
tdm_status tdm__order_compare(tdm__trainer *t, tdm_error *err);
/* Opens the run's record of the order to continue after `step` updates. Rank 0. */
tdm_status tdm__order_open(tdm__trainer *t, uint64_t step, const tdm_recovery *recovery,
                           tdm_error *err);
/* With sync.order live, all ranks get the state of the order. Collective. */
tdm_status tdm__order_share(tdm__trainer *t, tdm_error *err);
/* Records the updates of the current round. */
void tdm__order_put_round(tdm__trainer *t);

/* ---- preparation (train_begin.c) ---------------------------------------------------------------- */

/* The part without communication. */
tdm_status tdm__begin_alone(tdm__trainer *t, tdm_error *err);
/* Copies the properties of the data to the status. */
void tdm__note_data(tdm__trainer *t);
tdm_status tdm__make_team(tdm__trainer *t, tdm_error *err);
/* Before a step: gets the rows of the sparse table that this rank needs for a batch at t->batch_at. Does nothing
 * without a table. Collective. */
tdm_status tdm__sparse_pull(tdm__trainer *t, int64_t batch, tdm_error *err);
tdm_status tdm__make_predictor(tdm__trainer *t, tdm_error *err);
/* Restores the newest valid checkpoint of the run at `path`. */
tdm_status tdm__restore(tdm__trainer *t, const char *path, tdm_error *err);
/* Rank 0's part of tdm__open_run; does nothing if rank 0 has the run open. */
tdm_status tdm__lead_run(tdm__trainer *t, const char *path, bool joins, tdm_error *err);
/* Opens or creates the run directory on rank 0 and distributes its path. `path` NULL: a new run. */
tdm_status tdm__open_run(tdm__trainer *t, const char *path, bool joins, tdm_error *err);
/* Opens the ledger at the step that the run continues from. Rank 0. */
tdm_status tdm__open_ledger(tdm__trainer *t, uint64_t step, tdm_error *err);
void tdm__end(tdm__trainer *t);
void tdm__note_failure(const tdm__trainer *t, const tdm_error *err);

/* ---- membership epochs (train_epoch.c) --------------------------------------------------------- */

/* Trains to the end: as a member of a session, or in a world whose ranks do not change. */
tdm_status tdm__train_epochs(tdm__trainer *t, tdm_train_result *out, tdm_error *err);

#endif
