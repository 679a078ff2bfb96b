/*
 * train_save.c: checkpoints of a training: when one is begun, what becomes of it, and the one at the end.
 *
 * Along the way a checkpoint is written behind the steps that follow (saver.h), and what became of it is
 * heard later. When it cannot be written, training goes on with the last good one, and the state of a later
 * step is saved after a pause (retry.h). At the end of a run the state has nowhere else to go: there all ranks
 * wait, and try again until checkpoint.retry_s is over. Where a world ends in good order, ranks wait for the
 * save that is in work. With members that come and go the
 * store is asked, right before a file gets its name, whether this epoch still counts: so whoever was replaced
 * makes nothing visible any more.
 */
#include "train/trainer.h"

#include <tandem/cluster.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define STOP_SHARE 0.8 /* of elastic.grace */

enum { SLICE_NS = 100000000 };

const char *tdm__last_good(const tdm__trainer *t)
{
    return t->status.checkpoint_path ? "the newest checkpoint is the last good state"
                                     : "no checkpoint was written before";
}

/* A store that does not answer is TDM_ERR_TIMEOUT, whatever the reason: no disk gives that. */
static tdm_status may_commit(void *user, tdm_error *err)
{
    tdm__trainer *t = user;
    tdm_error why = {.status = TDM_OK};
    tdm_status status = tdm_member_confirm(t->options->member, t->epoch, &why);
    if (status == TDM_OK) return TDM_OK;
    return tdm_fail(err, tdm__is_peer_status(status) ? status : TDM_ERR_TIMEOUT, "%s", why.message);
}

/* Whether the job itself asks for checkpoints before the end. */
static bool expects_saves(const tdm__trainer *t)
{
    const tdm_job *job = t->job;
    uint64_t last = t->schedule.step_count, epoch = t->schedule.epoch_steps;
    uint64_t epochs = last > 0 && epoch > 0 ? (last - 1) / epoch : 0; /* that end before the end */
    return job->checkpoint.every_minutes > 0 ||
           (job->checkpoint.every_steps > 0 && (uint64_t)job->checkpoint.every_steps < last) ||
           (job->checkpoint.every_epochs > 0 && (uint64_t)job->checkpoint.every_epochs <= epochs);
}

tdm_status tdm__make_saver(tdm__trainer *t, tdm_error *err)
{
    const tdm_job *job = t->job;
    if (!t->room)
        t->room = tdm__snapshot_pool_create(); /* without it the saver has one of its own */
    tdm__saver_options o = {
        .state = &t->state,
        .background = job->checkpoint.background,
        .lazy = true,
        .expected = expects_saves(t),
        .room = t->room,
        .retention = {.keep = job->checkpoint.keep,
                      .keep_every = job->checkpoint.keep_every,
                      .keep_best = job->checkpoint.keep_best,
                      .by_accuracy = job->checkpoint.metric == TDM_JOB_METRIC_TEST_ACCURACY}};
    if (t->options->member) o.gate = (tdm_commit_gate){.may_commit = may_commit, .user = t};
    t->is_saving = t->is_ending = false; /* an end that failed with its world is none */
    return tdm__saver_create(&o, &t->saver, err);
}

/* A step must not change what a save has not copied yet. */
void tdm__before_update(void *user)
{
    tdm__trainer *t = user;
    if (t->saver) tdm__saver_hold(t->saver);
}

/* Tells who asked for a checkpoint what became of it. One that this epoch may not write any more is left to
 * the next. */
static void answer(tdm__trainer *t, const tdm__saved *saved)
{
    tdm_session_saved told = {.status = saved->status, .step = saved->step};
    tdm_error why = {0};
    if (t->answering == 0 || saved->step != t->answering_step || !t->kv) return;
    uint64_t revision = t->answering;
    t->answering = 0;
    if (tdm__is_peer_status(saved->status)) return;
    t->answered = revision;
    snprintf(told.path, sizeof(told.path), "%s", saved->path);
    if (saved->status != TDM_OK)
        snprintf(told.message, sizeof(told.message), "%.*s", (int)sizeof(told.message) - 1,
                 saved->message);
    if (tdm_session_answer_save(t->kv, t->options->membership->session, revision, &told, &why) !=
        TDM_OK)
        tdm__say(t, TDM_LOG_INFO,
                 "the checkpoint of step %llu was asked for; the store is silent: %s",
                 (unsigned long long)saved->step, why.message);
}

/* A disk that stays full must not fill the screen, too: what fails is said once, until it works again. */
static void note_failure(tdm__trainer *t, const tdm__saved *saved)
{
    unsigned long long step = saved->step;
    const tdm_checkpoint_removed *removed = &saved->removed;
    bool retries = t->job->checkpoint.retry_s > 0 && tdm__is_disk_status(saved->status);
    tdm__retry *retry = t->is_ending ? &t->end_retry : &t->save_retry;
    tdm__retry_failed(retry, tdm_clock_s());
    if (!retries) retry->next_s = (double)INFINITY;
    if (removed->count > 0) {
        if (retries) retry->next_s = 0; /* at once: there is room now */
        tdm__say(t, TDM_LOG_WARN,
                 "step %llu: the disk is full, so %d old checkpoint%s removed (%.1f MB) that "
                 "checkpoint.keep would have kept; the newest good one stays; the save had "
                 "failed: %s",
                 step, removed->count, removed->count == 1 ? " was" : "s were",
                 (double)removed->bytes / 1e6, saved->message);
    } else if (!t->save_failed && !t->is_ending) {
        t->save_failed = true;
        tdm__say(t, TDM_LOG_WARN, "step %llu: no checkpoint: %s; training goes on%s", step,
                 saved->message,
                 retries ? ", and a later step is saved as soon as that works" : "");
    }
}

static void note_success(tdm__trainer *t, const tdm__saved *saved)
{
    unsigned failures = t->save_retry.failures + t->end_retry.failures;
    double since_s = t->save_retry.failures > 0 ? t->save_retry.first_s : t->end_retry.first_s;
    if (t->save_failed)
        tdm__say(t, TDM_LOG_INFO,
                 "step %llu: checkpoints can be written again; %u %s failed, for %.1f s",
                 (unsigned long long)saved->step, failures, failures == 1 ? "try" : "tries",
                 tdm_clock_s() - since_s);
    t->save_failed = false;
    t->save_retry = t->end_retry = (tdm__retry){0};
}

/* What became of a save. */
static void handle(tdm__trainer *t, const tdm__saved *saved)
{
    unsigned long long step = saved->step;
    t->last_save = *saved;
    answer(t, saved);
    if (saved->status == TDM_OK) {
        snprintf(t->checkpoint_path, sizeof(t->checkpoint_path), "%s", saved->path);
        t->status.checkpoint_path = t->checkpoint_path;
        tdm__say(t, TDM_LOG_INFO, "step %llu: wrote %s in %.1f ms, training waited %.2f ms", step,
                 saved->path, 1000 * saved->seconds, 1000 * saved->stall_s);
        if (saved->message[0])
            tdm__say(t, TDM_LOG_WARN, "old checkpoints stay: %s", saved->message);
        note_success(t, saved);
        tdm__tell(t, TDM_TRAIN_EVENT_CHECKPOINT);
        return;
    }
    note_failure(t, saved);
}

bool tdm__save_retry_due(const tdm__trainer *t)
{
    return t->save_retry.failures > 0 && t->saver && !tdm__saver_busy(t->saver) &&
           tdm_clock_s() >= t->save_retry.next_s;
}

static tdm_status fail_diverged(const tdm__trainer *t, uint64_t step, const char *what,
                                tdm_error *err)
{
    return tdm_fail(err, TDM_ERR_DIVERGED, "step %llu: %s; %s; try a smaller optim.lr",
                    (unsigned long long)step, what, tdm__last_good(t));
}

tdm_status tdm__save_handle_requests(tdm__trainer *t, tdm_error *err)
{
    tdm__saved saved;
    while (t->saver && tdm__saver_poll(t->saver, &saved)) {
        handle(t, &saved);
        if (saved.status == TDM_ERR_DIVERGED)
            return fail_diverged(t, saved.step, saved.message, err);
    }
    return TDM_OK;
}

static char *path_of(tdm__trainer *t)
{
    bool packs = t->job->checkpoint.compress == TDM_JOB_COMPRESS_ZSTD;
    const char *dir = t->run.checkpoint_dir;
    return packs ? tdm_checkpoint_packed_path(t->run.arena, dir, t->position.step)
                 : tdm_checkpoint_path(t->run.arena, dir, t->position.step);
}

static tdm_checkpoint_metrics metrics_of(const tdm__trainer *t)
{
    bool measured = t->predictor && (t->position.step == t->schedule.step_count ||
                                     tdm__train_schedule_eval_due(&t->schedule, &t->position));
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
    tdm__save what = {
        .path = path_of(t), .content = &content, .metrics = metrics_of(t), .waits = t->is_ending};
    tdm_status status = what.path ? TDM_OK : tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory");
    TDM_TRY(tdm__agree(t->comm, status, NULL, err));
    tdm_os_test_point(&(tdm_test_point){"checkpoint", t->position.step, tdm__rank_of(t->comm), 0});
    if (t->leads) tdm__ledger_sync(&t->ledger);
    t->saved_s = tdm_clock_s();
    t->save_wished = false;
    if (t->asked > t->answered) t->answering = t->asked;
    t->answering_step = t->position.step;
    TDM_TRY(tdm__saver_begin(t->saver, &what, &bad, err));
    if (bad) {
        char text[300];
        snprintf(text, sizeof(text), "tensor '%.200s' holds a number that is not finite", bad);
        return fail_diverged(t, t->position.step, text, err);
    }
    tdm_os_test_point(&(tdm_test_point){"checkpoint", t->position.step, tdm__rank_of(t->comm), 1});
    t->is_saving = true;
    t->saving_step = t->position.step;
    return tdm__save_handle_requests(t, err);
}

tdm_status tdm__save_finish(tdm__trainer *t, tdm_error *err)
{
    tdm__saved saved;
    bool has = false;
    if (!t->saver) return TDM_OK;
    TDM_TRY(tdm__saver_finish(t->saver, &has, &saved, err));
    if (has) handle(t, &saved);
    if (has && saved.status == TDM_ERR_DIVERGED)
        return fail_diverged(t, saved.step, saved.message, err);
    return TDM_OK;
}

/* How the last save went, as rank 0 knows it. *good: the state as it is now is in that checkpoint. */
static tdm_status look_at_last(tdm__trainer *t, bool *good, tdm_error *err)
{
    TDM_TRY(tdm__save_finish(t, err));
    if (t->comm)
        TDM_TRY(tdm_group_broadcast(tdm_comm_world(t->comm), &t->last_save, sizeof(t->last_save),
                                    TDM_DTYPE_U8, 0, err));
    *good = t->is_saving && t->saving_step == t->position.step && t->last_save.status == TDM_OK &&
            t->last_save.step == t->position.step;
    return TDM_OK;
}

/* ---- waiting for a disk -------------------------------------------------------------------------- */

/* For how long the disk may be tried. A run that was asked to stop is killed after elastic.grace: it
 * should be able to say before that why it failed. */
static double retry_budget_s(const tdm__trainer *t)
{
    const tdm_train_options *o = t->options;
    double budget_s = t->job->checkpoint.retry_s, stop_s = STOP_SHARE * t->job->elastic.grace;
    bool stops = o->should_stop && o->should_stop(o->user);
    return stops && stop_s < budget_s ? stop_s : budget_s;
}

/* Rank 0's word, a moment later if there is nothing to do yet: the others wait for it, and must not take
 * it for dead. */
static tdm__retry_choice choose(const tdm__trainer *t, const tdm__retry *retry)
{
    tdm__retry_choice choice = tdm__retry_choose(retry, retry_budget_s(t), tdm_clock_s());
    if (choice == TDM__RETRY_WAIT) tdm_clock_sleep(SLICE_NS * 1e-9);
    return choice;
}

tdm_status tdm__retry_await(const tdm__trainer *t, const tdm__retry *retry, tdm_status status,
                            bool *again, tdm_error *err)
{
    bool retries = t->job->checkpoint.retry_s > 0 && tdm__is_disk_status(status);
    int32_t choice = retries ? TDM__RETRY_WAIT : TDM__RETRY_OVER;
    while (choice == TDM__RETRY_WAIT) {
        if (t->leads) choice = (int32_t)choose(t, retry);
        if (t->comm)
            TDM_TRY(tdm_group_broadcast(tdm_comm_world(t->comm), &choice, sizeof(choice),
                                        TDM_DTYPE_U8, 0, err));
    }
    *again = choice == TDM__RETRY_NOW;
    return TDM_OK;
}

/* ---- the end ------------------------------------------------------------------------------------- */

static void say_waiting(tdm__trainer *t)
{
    if (t->job->checkpoint.retry_s <= 0 || !tdm__is_disk_status(t->last_save.status)) return;
    t->save_failed = true;
    tdm__say(t, TDM_LOG_WARN,
             "step %llu: the last checkpoint cannot be written: %s; it is tried again for %.0f s "
             "(checkpoint.retry_s): mend that meanwhile",
             (unsigned long long)t->position.step, t->last_save.message,
             t->job->checkpoint.retry_s);
}

static tdm_status fail_at_end(const tdm__trainer *t, int tries, tdm_error *err)
{
    const tdm__saved *last = &t->last_save;
    /* Without the store this epoch ends, and the next one, which needs the store, too, saves again. */
    tdm_status status = last->status == TDM_ERR_TIMEOUT ? TDM_ERR_PEER_TIMEOUT : last->status;
    if (tries == 1) return tdm_fail(err, status, "%s", last->message);
    return tdm_fail(err, status, "%.800s; the last checkpoint was tried %d times", last->message,
                    tries);
}

tdm_status tdm__save_end(tdm__trainer *t, tdm_error *err)
{
    bool good = false, again = true;
    int tries = 0;
    t->is_ending = true;
    TDM_TRY(look_at_last(t, &good, err));
    while (!good && again) {
        TDM_TRY(tdm__save_begin(t, err));
        TDM_TRY(look_at_last(t, &good, err));
        tries++;
        if (good) break;
        if (tries == 1) say_waiting(t);
        TDM_TRY(tdm__retry_await(t, &t->end_retry, t->last_save.status, &again, err));
    }
    const tdm__saved *last = &t->last_save;
    if (!good) return fail_at_end(t, tries, err);
    if (!t->leads) { /* which heard of it by these words alone */
        snprintf(t->checkpoint_path, sizeof(t->checkpoint_path), "%s", last->path);
        t->status.checkpoint_path = t->checkpoint_path;
    }
    memcpy(t->state_hash, last->state_hash, sizeof(t->state_hash));
    return TDM_OK;
}
