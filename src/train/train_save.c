/*
 * train_save.c: checkpoints of a run: when one is begun, how its result is handled, and the last one.
 *
 * During training a checkpoint is written in the background (saver.h), and its result is polled later.
 * If it cannot be written, training continues, and the state of a later step is saved after a pause
 * (retry.h). At the end of a run there is no later step: all ranks wait and retry for up to
 * checkpoint.retry_s. When a world ends in good order, ranks wait for the save in progress. In a session,
 * the store is asked right before the file is renamed whether this epoch is still current, so a fenced
 * worker makes nothing visible.
 */
#include "base/base.h"
#include "base/timing.h"
#include "cluster/cluster.h"
#include "membership/membership.h"
#include "os/os.h"
#include "train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define STOP_SHARE 0.8 /* part of elastic.grace for retries after a stop request */

const char *tdm__last_good(const tdm__trainer *t)
{
    return t->status.checkpoint_path ? "the newest checkpoint is the last good state"
                                     : "no checkpoint was written before";
}

/* A store that does not respond is TDM_ERR_TIMEOUT, which no disk error has. */
static tdm_status save_may_commit(void *user, tdm_error *err)
{
    tdm__trainer *t = user;
    tdm_error why = {.status = TDM_OK};
    tdm_status status = tdm_member_confirm(t->options->member, t->session.epoch, &why);
    if (status == TDM_OK) return TDM_OK;
    return tdm_fail(err,
                    tdm_status_group_of(status) == TDM_STATUS_GROUP_PEER ? status : TDM_ERR_TIMEOUT,
                    "%s", why.message);
}

/* Whether the job sets checkpoints before the end. */
static bool expects_saves(const tdm__trainer *t)
{
    const tdm_job *job = t->job;
    uint64_t last = t->schedule.step_count, epoch = t->schedule.epoch_steps;
    uint64_t epochs = last > 0 && epoch > 0 ? (last - 1) / epoch
                                            : 0; /* data epochs that end before the run does */
    return job->checkpoint.every_minutes > 0 ||
           (job->checkpoint.every_steps > 0 && (uint64_t)job->checkpoint.every_steps < last) ||
           (job->checkpoint.every_epochs > 0 && (uint64_t)job->checkpoint.every_epochs <= epochs);
}

tdm_status tdm__make_saver(tdm__trainer *t, tdm_error *err)
{
    const tdm_job *job = t->job;
    if (!t->saves.pool)
        t->saves.pool = tdm__snapshot_pool_create(); /* if NULL, the saver creates one */
    tdm__saver_options o = {
        .state = &t->state,
        .background = job->checkpoint.background,
        .lazy = true,
        .expected = expects_saves(t),
        .pool = t->saves.pool,
        .retention = {.keep = job->checkpoint.keep,
                      .keep_every = job->checkpoint.keep_every,
                      .keep_best = job->checkpoint.keep_best,
                      .by_accuracy = job->checkpoint.metric == TDM_JOB_METRIC_TEST_ACCURACY}};
    if (t->options->member) o.gate = (tdm_commit_gate){.may_commit = save_may_commit, .user = t};
    t->saves.has_begun = t->saves.is_last = false; /* reset a failed end of the previous world */
    return tdm__saver_create(&o, &t->saves.saver, err);
}

/* A step must not change blocks that a save has not copied yet, nor make updates that are not recorded. */
void tdm__before_update(void *user)
{
    tdm__trainer *t = user;
    if (t->saves.saver) tdm__saver_hold(t->saves.saver);
    tdm__order_put_round(t);
}

/* Answers the request for this checkpoint in the store. If this epoch may not write it any more, the
 * request is left to the next epoch. */
static void save_request_answer(tdm__trainer *t, const tdm__saved *saved)
{
    tdm_session_saved reply = {.status = saved->status, .step = saved->step};
    tdm_error why = {0};
    if (t->requests.serving == 0 || saved->step != t->requests.serving_step || !t->session.kv)
        return;
    uint64_t revision = t->requests.serving;
    t->requests.serving = 0;
    if (tdm_status_group_of(saved->status) == TDM_STATUS_GROUP_PEER) return;
    t->requests.answered = revision;
    snprintf(reply.path, sizeof(reply.path), "%s", saved->path);
    if (saved->status != TDM_OK)
        snprintf(reply.message, sizeof(reply.message), "%.*s", (int)sizeof(reply.message) - 1,
                 saved->message);
    if (tdm_session_answer_save(t->session.kv, t->options->membership->session, revision, &reply,
                                &why) != TDM_OK)
        tdm__say(t, TDM_LOG_INFO,
                 "the requested checkpoint of step %llu cannot be reported in the store: %s",
                 (unsigned long long)saved->step, why.message);
}

/* Logs a failure once, until a checkpoint succeeds: a disk that stays full must not flood the log. */
static void save_note_failure(tdm__trainer *t, const tdm__saved *saved)
{
    unsigned long long step = saved->step;
    const tdm_checkpoint_removed *removed = &saved->removed;
    bool retries = t->job->checkpoint.retry_s > 0 && tdm__is_disk_status(saved->status);
    tdm__retry *retry = t->saves.is_last ? &t->saves.last_retry : &t->saves.retry;
    tdm__retry_failed(retry, tdm_clock_s());
    if (!retries) retry->next_s = (double)INFINITY;
    if (removed->count > 0) {
        if (retries) retry->next_s = 0; /* immediately: space was freed */
        tdm__say(t, TDM_LOG_WARN,
                 "step %llu: the disk is full: removed %d old checkpoint%s (%.1f MB) that "
                 "checkpoint.keep would have kept; the newest valid one is kept; the save had "
                 "failed: %s",
                 step, removed->count, removed->count == 1 ? "" : "s", (double)removed->bytes / 1e6,
                 saved->message);
    } else if (!t->saves.is_failing && !t->saves.is_last) {
        t->saves.is_failing = true;
        tdm__say(t, TDM_LOG_WARN, "step %llu: no checkpoint: %s; training continues%s", step,
                 saved->message, retries ? ", and a later step is saved as soon as possible" : "");
    }
}

static void save_note_success(tdm__trainer *t, const tdm__saved *saved)
{
    unsigned failures = t->saves.retry.failures + t->saves.last_retry.failures;
    double since_s = t->saves.retry.failures > 0 ? t->saves.retry.first_s
                                                 : t->saves.last_retry.first_s;
    if (t->saves.is_failing)
        tdm__say(t, TDM_LOG_INFO,
                 "step %llu: checkpoints can be written again, after %u failed attempt%s in %.1f s",
                 (unsigned long long)saved->step, failures, failures == 1 ? "" : "s",
                 tdm_clock_s() - since_s);
    t->saves.is_failing = false;
    t->saves.retry = t->saves.last_retry = (tdm__retry){0};
}

/* Handles the result of a save. */
static void save_handle(tdm__trainer *t, const tdm__saved *saved)
{
    unsigned long long step = saved->step;
    t->saves.last = *saved;
    save_request_answer(t, saved);
    if (saved->status == TDM_OK) {
        snprintf(t->saves.path, sizeof(t->saves.path), "%s", saved->path);
        t->status.checkpoint_path = t->saves.path;
        tdm__say(t, TDM_LOG_INFO, "step %llu: wrote %s in %.1f ms, training waited %.2f ms", step,
                 saved->path, 1000 * saved->seconds, 1000 * saved->stall_s);
        if (saved->message[0])
            tdm__say(t, TDM_LOG_WARN, "old checkpoints were not removed: %s", saved->message);
        save_note_success(t, saved);
        tdm__tell(t, TDM_TRAIN_EVENT_CHECKPOINT);
        return;
    }
    save_note_failure(t, saved);
}

bool tdm__save_retry_due(const tdm__trainer *t)
{
    return t->saves.retry.failures > 0 && t->saves.saver && !tdm__saver_busy(t->saves.saver) &&
           tdm_clock_s() >= t->saves.retry.next_s;
}

static tdm_status fail_diverged(const tdm__trainer *t, uint64_t step, const char *what,
                                tdm_error *err)
{
    return tdm_fail(err, TDM_ERR_DIVERGED, "step %llu: %s; %s; try a smaller optim.lr",
                    (unsigned long long)step, what, tdm__last_good(t));
}

tdm_status tdm__save_handle_finished(tdm__trainer *t, tdm_error *err)
{
    tdm__saved saved;
    while (t->saves.saver && tdm__saver_poll(t->saves.saver, &saved)) {
        save_handle(t, &saved);
        if (saved.status == TDM_ERR_DIVERGED)
            return fail_diverged(t, saved.step, saved.message, err);
    }
    return TDM_OK;
}

static char *checkpoint_path_of(tdm__trainer *t)
{
    bool packs = t->job->checkpoint.compress == TDM_JOB_COMPRESS_ZSTD;
    const char *dir = t->run.checkpoint_dir;
    return packs ? tdm_checkpoint_packed_path(t->run.arena, dir, t->position.step)
                 : tdm_checkpoint_path(t->run.arena, dir, t->position.step);
}

static tdm_checkpoint_metrics metrics_of(const tdm__trainer *t)
{
    bool measured = t->predictor &&
                    (t->position.step == t->schedule.step_count || tdm__eval_due(t));
    if (!measured) return (tdm_checkpoint_metrics){(double)NAN, (double)NAN};
    return (tdm_checkpoint_metrics){t->status.test.loss, t->status.test.accuracy};
}

tdm_status tdm__save_begin(tdm__trainer *t, tdm_error *err)
{
    const char *bad = NULL;
    const tdm_dataset_info *info = tdm_dataset_info_of(t->schedule.data.train);
    char numerics[TDM_NUMERICS_BYTES];
    tdm_checkpoint_content content = {.position = t->position,
                                      .job_hash = t->schedule.job_hash,
                                      .data_hash = t->schedule.data_hash,
                                      .numerics = tdm__numerics_of(t->job, numerics),
                                      .job_yaml = tdm_str_text(&t->job_yaml),
                                      .class_names = info->class_names,
                                      .class_count = info->class_count,
                                      .sample_shape = t->schedule.model.sample_shape};
    tdm__save what = {.path = checkpoint_path_of(t),
                      .content = &content,
                      .metrics = metrics_of(t),
                      .waits = t->saves.is_last};

    tdm_status status = what.path ? TDM_OK : tdm_fail_oom(err, "in training");
    TDM_TRY(tdm_comm_agree(t->comm, status, NULL, err));
    tdm_os_test_point(&(tdm_test_point){"checkpoint", t->position.step, tdm__rank_of(t->comm), 0});
    if (t->leads) tdm__lines_sync(&t->ledger.file);
    if (t->leads) tdm__lines_sync(&t->order_file);

    TDM_TRY(tdm__average(t, err));
    t->saves.begun_s = tdm_clock_s();
    t->requests.is_pending = false;
    if (t->requests.newest > t->requests.answered) t->requests.serving = t->requests.newest;
    t->requests.serving_step = t->position.step;
    TDM_TRY(tdm__saver_begin(t->saves.saver, &what, &bad, err));
    if (bad) {
        char text[300];
        snprintf(text, sizeof(text), "tensor '%.200s' has a non-finite value", bad);
        return fail_diverged(t, t->position.step, text, err);
    }

    tdm_os_test_point(&(tdm_test_point){"checkpoint", t->position.step, tdm__rank_of(t->comm), 1});
    t->saves.has_begun = true;
    t->saves.begun_step = t->position.step;
    return tdm__save_handle_finished(t, err);
}

tdm_status tdm__save_finish(tdm__trainer *t, tdm_error *err)
{
    tdm__saved saved;
    bool has = false;
    if (!t->saves.saver) return TDM_OK;
    TDM_TRY(tdm__saver_finish(t->saves.saver, &has, &saved, err));
    if (has) save_handle(t, &saved);
    if (has && saved.status == TDM_ERR_DIVERGED)
        return fail_diverged(t, saved.step, saved.message, err);
    return TDM_OK;
}

/* Waits for the last save and distributes rank 0's result. *good: the current state is in that checkpoint. */
static tdm_status last_save_wait(tdm__trainer *t, bool *good, tdm_error *err)
{
    TDM_TRY(tdm__save_finish(t, err));
    if (t->comm)
        TDM_TRY(tdm_group_broadcast(tdm_comm_world(t->comm), &t->saves.last, sizeof(t->saves.last),
                                    TDM_DTYPE_U8, 0, err));
    *good = t->saves.has_begun && t->saves.begun_step == t->position.step &&
            t->saves.last.status == TDM_OK && t->saves.last.step == t->position.step;
    return TDM_OK;
}

/* ---- waiting for a disk -------------------------------------------------------------------------- */

/* Time limit for retries. A run that was asked to stop is killed after elastic.grace; it should report
 * the failure before that. */
static double retry_budget_s(const tdm__trainer *t)
{
    const tdm_train_options *o = t->options;
    double budget_s = t->job->checkpoint.retry_s, stop_s = STOP_SHARE * t->job->elastic.grace;
    bool stops = o->should_stop && o->should_stop(o->user);
    return stops && stop_s < budget_s ? stop_s : budget_s;
}

/* Rank 0's decision. Sleeps a little if it is to wait: the other ranks wait for the broadcast, and must not
 * time out. */
static tdm__retry_choice retry_choose(const tdm__trainer *t, const tdm__retry *retry)
{
    tdm__retry_choice choice = tdm__retry_choose(retry, retry_budget_s(t), tdm_clock_s());
    if (choice == TDM__RETRY_WAIT) tdm_clock_sleep(TDM__TIMING_TRAIN_RETRY_CHECK_S);
    return choice;
}

tdm_status tdm__retry_await(const tdm__trainer *t, const tdm__retry *retry, tdm_status status,
                            bool *again, tdm_error *err)
{
    bool retries = t->job->checkpoint.retry_s > 0 && tdm__is_disk_status(status);
    int32_t choice = retries ? TDM__RETRY_WAIT : TDM__RETRY_OVER;
    while (choice == TDM__RETRY_WAIT) {
        if (t->leads) choice = (int32_t)retry_choose(t, retry);
        if (t->comm)
            TDM_TRY(tdm_group_broadcast(tdm_comm_world(t->comm), &choice, sizeof(choice),
                                        TDM_DTYPE_U8, 0, err));
    }
    *again = choice == TDM__RETRY_NOW;
    return TDM_OK;
}

/* ---- the end ------------------------------------------------------------------------------------- */

static void save_log_waiting(tdm__trainer *t)
{
    if (t->job->checkpoint.retry_s <= 0 || !tdm__is_disk_status(t->saves.last.status)) return;
    t->saves.is_failing = true;
    tdm__say(t, TDM_LOG_WARN,
             "step %llu: the last checkpoint cannot be written: %s; retrying for up to %.0f s "
             "(checkpoint.retry_s); fix the problem meanwhile",
             (unsigned long long)t->position.step, t->saves.last.message,
             t->job->checkpoint.retry_s);
}

static tdm_status last_save_fail(const tdm__trainer *t, int tries, tdm_error *err)
{
    const tdm__saved *last = &t->saves.last;
    /* If the store is unavailable, this epoch ends, and the next one saves again. */
    tdm_status status = last->status == TDM_ERR_TIMEOUT ? TDM_ERR_PEER_TIMEOUT : last->status;
    if (tries == 1) return tdm_fail(err, status, "%s", last->message);
    return tdm_fail(err, status, "%.800s; the last checkpoint was attempted %d times",
                    last->message, tries);
}

tdm_status tdm__save_end(tdm__trainer *t, tdm_error *err)
{
    bool good = false, again = true;
    int tries = 0;
    t->saves.is_last = true;
    TDM_TRY(last_save_wait(t, &good, err));
    while (!good && again) {
        TDM_TRY(tdm__save_begin(t, err));
        TDM_TRY(last_save_wait(t, &good, err));
        tries++;
        if (good) break;
        if (tries == 1) save_log_waiting(t);
        TDM_TRY(tdm__retry_await(t, &t->saves.last_retry, t->saves.last.status, &again, err));
    }
    const tdm__saved *last = &t->saves.last;
    if (!good) return last_save_fail(t, tries, err);
    if (!t->leads) { /* other ranks know the path from the broadcast only */
        snprintf(t->saves.path, sizeof(t->saves.path), "%s", last->path);
        t->status.checkpoint_path = t->saves.path;
    }
    memcpy(t->saves.state_hash, last->state_hash, sizeof(t->saves.state_hash));
    return TDM_OK;
}
