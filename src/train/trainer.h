/*
 * trainer.h: what the files of the training loop share.
 *
 * Files: train.c (steps and what is due after them, the whole for a fixed world), train_begin.c (getting
 * ready in a world), train_elastic.c (worlds that come and go: epochs).
 */
#ifndef TANDEM_TRAIN_TRAINER_H
#define TANDEM_TRAIN_TRAINER_H

#include "train/internal.h"
#include "train/ledger.h"
#include "train/retry.h"
#include "train/saver.h"
#include "train/watch.h"

#include <tandem/elastic.h>

#include <pthread.h>

/* By which ranks agree on what to do after a step, besides those of elastic.h. */
enum {
    TDM__REQUEST_SAVE = 4,    /* somebody asks for a checkpoint */
    TDM__REQUEST_SAVE_DUE = 8 /* rank 0's clock says that it is time for one */
};

/* What rank 0 tells of the checkpoint from which a run goes on. */
typedef struct tdm__restored {
    tdm_position position;
    char path[TDM_PATH_BYTES];
} tdm__restored;

typedef struct tdm__trainer {
    const tdm_job *job;
    const tdm_train_options *options;
    tdm_comm *comm; /* NULL: a single process */
    bool leads;     /* rank 0 */
    tdm_arena *arena;
    tdm__train_schedule schedule;
    tdm_str job_yaml;
    tdm__run run;
    bool run_open;
    bool has_ended; /* all that is to be kept is on disk */
    tdm__state state;
    tdm_plan_cache *plan_cache; /* handed on from team to team */
    tdm_team *team;
    tdm__watch watch;
    tdm_predictor *predictor;
    int predictor_threads; /* that it was made for */
    tdm_prefetch *feed;    /* of the predictor */
    int64_t *indices;      /* of the samples of a lane */
    bool ended_early;      /* by train.early_stop */
    tdm_position position;
    tdm__restored resumed;
    tdm_train_status status;
    char state_hash[TDM_SHA256_HEX]; /* of the last checkpoint */
    tdm__saver *saver;
    tdm__snapshot_pool *room; /* of one saver after another */
    bool is_saving;           /* one was begun in this world: */
    uint64_t saving_step;
    tdm__saved last_save; /* how the last one ended, at rank 0 */
    char checkpoint_path[TDM_PATH_BYTES];
    bool save_failed;      /* no checkpoint can be written, and that was said */
    tdm__retry save_retry; /* checkpoints that the disk has refused; rank 0 */
    tdm__retry end_retry;  /* the same of the last one; rank 0 */
    bool is_ending;        /* the next one is the last */
    double step_seconds;   /* spent in steps by this call */
    uint64_t first_sample; /* samples trained before this call */
    uint64_t first_step;
    double begin_s;       /* of the call */
    double start_seconds; /* from there to the first step */
    double window_begin_s;
    uint64_t window_begin_samples;
    double saved_s; /* when a checkpoint was written last, or training began */
    /* Checkpoints that somebody asks for. */
    bool save_wished;   /* by should_save, and none was begun since */
    double requested_s; /* when one was begun because of a wish; 0: none was */
    uint64_t asked;     /* rank 0: the newest wish in the store that it has heeded (its revision) */
    uint64_t answered,
        answering;           /* up to that wish there is an answer; one is in work (0: none is) */
    uint64_t answering_step; /* and this is its step */
    /* The ledger: rank 0 writes it, and every rank knows the line of the last step. */
    tdm__ledger ledger;
    uint64_t tally; /* of what this rank has read for the step in progress */
    tdm__ledger_line ledger_line;
    tdm__ledger_recent *ledger_recent; /* with members that come and go; else NULL */
    /* Epochs (train_elastic.c). */
    bool after_done;  /* all that is due after the last step was done */
    bool is_restored; /* this state came from a checkpoint, and nothing was trained since */
    tdm_kv *kv;
    uint32_t epoch;
    bool entered;     /* an epoch before */
    int refused_rank; /* with which no world could be opened; -1: none */
    char refused_why[TDM_LOST_BYTES];
    char run_path[TDM_PATH_BYTES]; /* of the session's run; empty: not known */
    double longest_s;              /* of a step, with what is due after it */
    pthread_mutex_t comm_lock;     /* of `comm`, for who interrupts */
    bool interrupted;
    tdm_train_result *result;
} tdm__trainer;

/* ---- steps (train.c) -------------------------------------------------------------------------- */

/* For what all ranks would say. */
void tdm__say(const tdm__trainer *t, tdm_log_level level, const char *fmt, ...) TDM_PRINTF(3, 4);
void tdm__tell(tdm__trainer *t, tdm_train_event event);
/* The wishes of this rank by itself. Asked once for each step: a wish of should_save is not told twice. */
unsigned tdm__requests_of(tdm__trainer *t);
/* One step; nothing of what is due after it. *wishes: of all ranks. */
tdm_status tdm__one_step(tdm__trainer *t, unsigned request, unsigned *requests, tdm_error *err);
/* The numbers of a step that has ended: the position moves on. */
void tdm__count_step(tdm__trainer *t, const tdm_step_result *result, double lr);
/* Metrics, evaluation, and the beginning of a checkpoint. `wishes`: of all ranks. */
tdm_status tdm__after_step(tdm__trainer *t, unsigned requests, tdm_error *err);
/* The lines of metrics that belong to the last step, all of which is known. Rank 0. */
void tdm__put_log_lines(tdm__trainer *t);
tdm_status tdm__sum_up(tdm__trainer *t, tdm_train_result *out, tdm_error *err);
tdm_status tdm__measure_test(tdm__trainer *t, tdm_error *err);
void tdm__start_clock(tdm__trainer *t);
/* The sentence at the beginning, and the one at the end. */
void tdm__say_start(const tdm__trainer *t);
void tdm__say_end(tdm__trainer *t, const tdm_train_result *result);
uint64_t tdm__skipped_of(const tdm__trainer *t);

/* ---- checkpoints (train_save.c) ---------------------------------------------------------------- */

const char *tdm__last_good(const tdm__trainer *t); /* in words */
tdm_status tdm__make_saver(tdm__trainer *t, tdm_error *err);
/* Begins to save the state as it is. */
tdm_status tdm__save_begin(tdm__trainer *t, tdm_error *err);
/* Hears of saves that have ended. Local; fails when one found numbers that are not finite. */
tdm_status tdm__save_handle_requests(tdm__trainer *t, tdm_error *err);
void tdm__before_update(void *trainer); /* of every step */
/* Waits for the one in work. */
tdm_status tdm__save_finish(tdm__trainer *t, tdm_error *err);
/* Whether it is time to try again what failed along the way. Rank 0. */
bool tdm__save_retry_due(const tdm__trainer *t);
/* After rank 0's try has failed with `status`, the same for all: waits until the next one is due. *again: there
 * is one, within checkpoint.retry_s of the first failure. `retry` is rank 0's. Collective. */
tdm_status tdm__retry_await(const tdm__trainer *t, const tdm__retry *retry, tdm_status status,
                            bool *again, tdm_error *err);
/* The state as it is now is in a checkpoint, or this fails, after checkpoint.retry_s at most. */
tdm_status tdm__save_end(tdm__trainer *t, tdm_error *err);

/* ---- getting ready (train_begin.c) ------------------------------------------------------------- */

/* What a rank does by itself before others wait for it. */
tdm_status tdm__begin_alone(tdm__trainer *t, tdm_error *err);
/* What is known of the data. */
void tdm__note_data(tdm__trainer *t);
tdm_status tdm__make_team(tdm__trainer *t, tdm_error *err);
tdm_status tdm__make_predictor(tdm__trainer *t, tdm_error *err);
/* From the newest good checkpoint of the run at `path`. */
tdm_status tdm__restore(tdm__trainer *t, const char *path, tdm_error *err);
/* Rank 0's part of the next: nothing when it has the run already. */
tdm_status tdm__lead_run(tdm__trainer *t, const char *path, bool joins, tdm_error *err);
/* The folder of the run: rank 0 makes or opens it, the others learn where it is. `path` NULL: a new run. */
tdm_status tdm__open_run(tdm__trainer *t, const char *path, bool joins, tdm_error *err);
/* The ledger, from the step that the run goes on from. Rank 0. */
tdm_status tdm__open_ledger(tdm__trainer *t, uint64_t step, tdm_error *err);
/* All of it, for a fixed world. */
tdm_status tdm__begin(tdm__trainer *t, tdm_error *err);
void tdm__end(tdm__trainer *t);
void tdm__note_failure(const tdm__trainer *t, const tdm_error *err);

/* ---- epochs (train_elastic.c) ------------------------------------------------------------------ */

tdm_status tdm__train_elastic(tdm__trainer *t, tdm_train_result *out, tdm_error *err);

#endif
