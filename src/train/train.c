/*
 * train.c: the loop. The one place that puts data, model, team, evaluation, checkpoints and the
 * policy for failures together.
 *
 * Invariants: the position (step, epoch, place in the epoch) changes only together with the state,
 * by a whole step; a checkpoint is written from exactly such a pair; the test set is evaluated
 * before a checkpoint of the same step is written, so that a resumed run neither repeats nor loses
 * a line of metrics.
 *
 * With several ranks, all of them go through this file in step. What decides the way (results of steps,
 * metrics, errors, the wish to stop) is the same for all, because it comes from a collective call, or
 * follows from what does. Rank 0 alone has the run's folder, and the words for it.
 */
#include "train/internal.h"
#include "train/watch.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SKIPS_EXPLAINED = 3 }; /* of a run; a replay costs as much as a step, or more */

enum { WISH_STOP = 1 }; /* by which ranks agree to stop */

/* What rank 0 tells of the checkpoint from which a run goes on. */
typedef struct restored {
    tdm_position position;
    char path[TDM_PATH_BYTES];
} restored;

typedef struct trainer {
    const tdm_job *job;
    const tdm_train_options *options;
    tdm_comm *comm; /* NULL: a single process */
    bool leads;     /* rank 0 */
    tdm_arena *arena;
    tdm__course course;
    tdm_str job_yaml;
    tdm__run run;
    bool run_open;
    tdm__state state;
    tdm_team *team;
    tdm__watch watch;
    tdm_predictor *predictor;
    tdm_feed *feed;   /* of the predictor */
    int64_t *indices; /* of the samples of a lane */
    bool ended_early; /* by train.early_stop */
    tdm_position position;
    restored resumed;
    tdm_train_status status;
    char state_hash[TDM_SHA256_HEX]; /* of the last checkpoint */
    bool save_failed;                /* the last checkpoint along the way could not be written */
    double step_seconds;             /* spent in steps by this call */
    uint64_t first_sample;           /* samples trained before this call */
    uint64_t first_step;
    double begin_s;       /* of the call */
    double start_seconds; /* from there to the first step */
    double window_begin_s;
    uint64_t window_begin_samples;
} trainer;

/* ---- events and metrics ---------------------------------------------------------------------- */

/* For what all ranks would say. */
static void say(const trainer *t, tdm_log_level level, const char *fmt, ...) TDM_PRINTF(3, 4);
static void say(const trainer *t, tdm_log_level level, const char *fmt, ...)
{
    char text[2048];
    if (!t->leads) return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    tdm_log(level, "train", "%s", text);
}

static void tell(trainer *t, tdm_train_event event)
{
    t->status.event = event;
    t->status.step = t->position.step;
    t->status.epoch = t->position.epoch;
    t->status.samples = t->position.samples;
    t->status.ranks = t->watch.has_rates ? t->watch.ranks : NULL;
    t->status.straggler = t->watch.straggler;
    t->status.slow_factor = t->watch.slow_factor;
    if (t->options->on_event) t->options->on_event(&t->status, t->options->user);
}

static tdm_json_writer begin_metrics(trainer *t)
{
    tdm_str_clear(&t->run.line);
    tdm_json_writer w = tdm_json_writer_init(&t->run.line, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_uint(&w, "step", t->position.step);
    tdm_json_put_uint(&w, "epoch", t->position.epoch);
    tdm_json_put_uint(&w, "samples", t->position.samples);
    return w;
}

static void put_step_metrics(trainer *t)
{
    if (!t->leads) return;
    tdm__watch_late(&t->watch);
    tdm_json_writer w = begin_metrics(t);
    bool skipped = t->status.step_skipped; /* NaN is written as null */
    tdm_json_put_double(&w, "loss", skipped ? (double)NAN : t->status.loss);
    tdm_json_put_double(&w, "lr", t->status.lr);
    if (t->job->optim.clip_norm > 0)
        tdm_json_put_double(&w, "grad_norm", skipped ? (double)NAN : t->status.grad_norm);
    if (t->job->train.bad_numbers == TDM_JOB_BAD_NUMBERS_SKIP)
        tdm_json_put_uint(&w, "skipped", t->status.skipped);
    double speed = t->status.samples_per_s; /* four digits or so are meant */
    tdm_json_put_double(&w, "samples_per_s", speed < 100 ? round(100 * speed) / 100 : round(speed));
    tdm__watch_put(&t->watch, &w);
    tdm_json_object_end(&w);
    tdm__run_put_metrics(&t->run);
}

static void put_test_metrics(trainer *t)
{
    if (!t->leads) return;
    tdm_json_writer w = begin_metrics(t);
    tdm_json_put_double(&w, "test_loss", t->status.test.loss);
    tdm_json_put_double(&w, "test_accuracy", t->status.test.accuracy);
    tdm_json_object_end(&w);
    tdm__run_put_metrics(&t->run);
}

/* Speed over the last second or so, and what is left at that speed. */
static void measure(trainer *t)
{
    double now = tdm_clock_s(), elapsed = now - t->window_begin_s;
    uint64_t samples = t->position.samples - t->window_begin_samples;
    if (elapsed > 0 && (elapsed >= 0.1 || t->status.samples_per_s == 0))
        t->status.samples_per_s = (double)samples / elapsed;
    if (elapsed >= 1.0) {
        t->window_begin_s = now;
        t->window_begin_samples = t->position.samples;
    }
    uint64_t done = t->position.step - t->first_step;
    double per_step = done > 0 ? t->step_seconds / (double)done : 0;
    t->status.left_s = per_step * (double)(t->course.step_count - t->position.step);
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

static const char *last_good(const trainer *t)
{
    return t->status.checkpoint_path ? "the newest checkpoint is the last good state"
                                     : "no checkpoint was written before";
}

static tdm_status save(trainer *t, tdm_error *err)
{
    const char *bad;
    TDM_TRY(tdm__state_find_bad(&t->state, &bad, err));
    if (bad)
        return tdm_fail(err, TDM_ERR_DIVERGED,
                        "step %llu: tensor '%s' holds a number that is not finite; %s; try a "
                        "smaller optim.lr",
                        (unsigned long long)t->position.step, bad, last_good(t));
    const tdm_dataset_info *info = tdm_dataset_info_of(t->course.data.train);
    tdm_checkpoint_content content = {.position = t->position,
                                      .job_hash = t->course.job_hash,
                                      .data_hash = t->course.data_hash,
                                      .job_yaml = tdm_str_text(&t->job_yaml),
                                      .class_names = info->class_names,
                                      .class_count = info->class_count,
                                      .sample_shape = t->course.model.sample_shape};
    char *path = tdm_checkpoint_path(t->run.arena, t->run.checkpoint_dir, t->position.step);
    tdm_status status = path ? TDM_OK : tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory");
    TDM_TRY(tdm__agree(t->comm, status, NULL, err));
    TDM_TRY(tdm__state_save(&t->state, path, &content, t->state_hash, err));
    t->status.checkpoint_path = path;
    say(t, TDM_LOG_INFO, "step %llu: wrote %s", (unsigned long long)t->position.step, path);
    tell(t, TDM_TRAIN_EVENT_CHECKPOINT);
    tdm_error prune_err;
    if (t->leads &&
        tdm_checkpoint_prune(t->run.checkpoint_dir, t->job->checkpoint.keep, &prune_err) != TDM_OK)
        say(t, TDM_LOG_WARN, "old checkpoints stay: %s", prune_err.message);
    return TDM_OK;
}

/* A checkpoint along the way: when it cannot be written, training goes on with the last good one. */
static tdm_status save_along_the_way(trainer *t, bool *saved, tdm_error *err)
{
    tdm_status status = save(t, err);
    *saved = status == TDM_OK;
    if (status == TDM_OK) t->save_failed = false;
    if (status == TDM_OK || status == TDM_ERR_DIVERGED || tdm__is_peer_status(status))
        return status;
    /* Said once, until it works again: a full disk must not fill the screen, too. */
    if (t->save_failed) return TDM_OK;
    t->save_failed = true;
    say(t, TDM_LOG_WARN, "step %llu: no checkpoint: %s; training goes on",
        (unsigned long long)t->position.step, err ? err->message : tdm_status_text(status));
    return TDM_OK;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void fill(void *user, int64_t first, int64_t count, void *x, int32_t *classes)
{
    trainer *t = user;
    int64_t *indices = t->indices;
    for (int64_t i = 0; i < count; i++)
        indices[i] = tdm__course_sample(&t->course, &t->position, first + i);
    tdm_dataset_gather(t->course.data.train, indices, count, x, classes);
}

/* ---- bad numbers ----------------------------------------------------------------------------- */

/* Looks for the cause of the bad step in progress, and appends it to `out`. */
static tdm_status explain(trainer *t, tdm_bad_number *bad, tdm_str *out, tdm_error *err)
{
    TDM_TRY(tdm_team_replay(t->team, bad, err));
    int64_t index = tdm__course_sample(&t->course, &t->position, bad->first_row);
    tdm__bad_number_text(bad, t->course.data.train, index, out);
    return TDM_OK;
}

static const char *what_is_bad(const trainer *t, const tdm_step_result *result,
                               const tdm_bad_number *bad)
{
    const tdm_graph *graph = t->state.graph;
    if (isnan(result->loss)) return "the loss is NaN";
    if (isinf(result->loss)) return "the loss is infinite";
    if (bad->kind == TDM_BAD_LARGE) return "the gradient is so large that its square is not finite";
    return tdm_graph_grad_extent(graph) > tdm_graph_trained_extent(graph)
               ? "the gradient or a statistic is not finite"
               : "the gradient is not finite";
}

static tdm_status stop_at_bad_step(trainer *t, const tdm_step_result *result, const char *tensor,
                                   tdm_error *err)
{
    const tdm__skips *skips = &t->state.skips;
    tdm_str why = TDM_STR_INIT;
    tdm_bad_number bad;
    tdm_status status = explain(t, &bad, &why, err);
    if (status != TDM_OK) {
        tdm_str_release(&why);
        return status;
    }
    if (skips->in_a_row > 0)
        tdm_str_addf(&why, "; %.0f step%s before it went the same way and %s skipped",
                     skips->in_a_row, skips->in_a_row > 1 ? "s" : "",
                     skips->in_a_row > 1 ? "were" : "was");
    if (tensor) tdm_str_addf(&why, "; '%s' is no longer finite, so no later step can be", tensor);
    tdm_fail(err, TDM_ERR_DIVERGED, "step %llu: %s: %s; %s; %s",
             (unsigned long long)t->position.step + 1, what_is_bad(t, result, &bad),
             tdm_str_text(&why), last_good(t), tdm__bad_number_advice(&bad, t->job));
    tdm_str_release(&why);
    return tdm__agree(t->comm, TDM_ERR_DIVERGED, NULL, err); /* all end here, together */
}

/* Loss or gradient of the step in progress are not finite, and nothing was changed by it. Fails, or
 * counts it as skipped. The causes of the first few are looked for and said. */
static tdm_status heed_bad_step(trainer *t, const tdm_step_result *result, tdm_error *err)
{
    tdm__skips *skips = &t->state.skips;
    const char *tensor = NULL;
    bool skip = t->job->train.bad_numbers == TDM_JOB_BAD_NUMBERS_SKIP &&
                skips->in_a_row < (double)t->job->train.bad_numbers_most;
    if (skip) TDM_TRY(tdm__state_find_bad(&t->state, &tensor, err));
    if (!skip || tensor) return stop_at_bad_step(t, result, tensor, err);
    skips->in_a_row++;
    skips->in_all++;
    if (skips->in_all > SKIPS_EXPLAINED) return TDM_OK;
    tdm_str why = TDM_STR_INIT;
    tdm_bad_number bad;
    tdm_status status = explain(t, &bad, &why, err);
    if (status == TDM_OK)
        say(t, TDM_LOG_WARN, "step %llu is skipped: %s: %s%s",
            (unsigned long long)t->position.step + 1, what_is_bad(t, result, &bad),
            tdm_str_text(&why),
            skips->in_all == SKIPS_EXPLAINED ? "; further ones are only counted" : "");
    tdm_str_release(&why);
    return status;
}

/* ---- steps, one by one ----------------------------------------------------------------------- */

/* It may come from a file, which may hold anything. */
static uint64_t skipped_of(const trainer *t)
{
    double count = t->state.skips.in_all;
    return count >= 1 && count <= (double)t->position.step ? (uint64_t)count : 0;
}

static void note_step(trainer *t, const tdm_step_result *result, double lr)
{
    tdm_train_status *s = &t->status;
    s->lr = lr;
    s->step_skipped = !result->finite;
    s->skipped = skipped_of(t);
    if (!result->finite) return;
    t->state.skips.in_a_row = 0;
    s->smooth_loss = isnan(s->loss) ? result->loss : 0.95 * s->smooth_loss + 0.05 * result->loss;
    s->loss = result->loss;
    s->grad_norm = result->grad_norm;
}

static unsigned wish_of(const trainer *t)
{
    return t->options->should_stop && t->options->should_stop(t->options->user) ? WISH_STOP : 0;
}

static tdm_status one_step(trainer *t, unsigned *wishes, tdm_error *err)
{
    int64_t batch = tdm__course_batch(&t->course, &t->position);
    double lr = tdm_schedule_lr(&t->course.schedule, t->position.step, &t->state.plateau);
    double begin = tdm_clock_s();
    tdm_step_input in = {.step = t->position.step, .batch = batch, .lr = lr, .wish = wish_of(t)};
    tdm_step_result result;
    TDM_TRY(tdm_team_step(t->team, &in, &result, err));
    t->step_seconds += tdm_clock_s() - begin;
    if (!result.finite) TDM_TRY(heed_bad_step(t, &result, err));
    tdm__course_advance(&t->course, &t->position);
    note_step(t, &result, lr);
    tdm__watch_heed(&t->watch, &result, t->position.step, t->leads);
    measure(t);
    *wishes = result.wishes;
    return TDM_OK;
}

static tdm_status measure_test(trainer *t, tdm_error *err)
{
    TDM_TRY(tdm_store_settle(t->state.store, err));
    TDM_TRY(tdm__state_measure(&t->state, t->job, err));
    TDM_TRY(
        tdm_evaluate_together(t->predictor, t->course.data.test, t->comm, &t->status.test, err));
    t->status.has_test = true;
    return TDM_OK;
}

static double metric_of(const trainer *t, int metric)
{
    return metric == TDM_JOB_METRIC_TEST_ACCURACY ? t->status.test.accuracy : t->status.test.loss;
}

static tdm_status evaluate(trainer *t, tdm_error *err)
{
    if (!t->predictor) return TDM_OK;
    TDM_TRY(measure_test(t, err));
    put_test_metrics(t);
    say(t, TDM_LOG_INFO, "step %llu: test loss %.4f, accuracy %.2f %%",
        (unsigned long long)t->position.step, t->status.test.loss, 100 * t->status.test.accuracy);
    if (t->status.test.bad_count > 0)
        say(t, TDM_LOG_WARN,
            "step %llu: the model gives NaN or infinity for %lld of %lld test samples",
            (unsigned long long)t->position.step, (long long)t->status.test.bad_count,
            (long long)t->status.test.target_count);
    tell(t, TDM_TRAIN_EVENT_EVAL);
    return TDM_OK;
}

/* What follows from an evaluation that was due. One at the end of a run that is not due has no
 * consequences, so that continuing such a run takes the way of one that never ended there. */
static void heed(trainer *t)
{
    const tdm_job *job = t->job;
    if (job->schedule.kind == TDM_JOB_SCHEDULE_REDUCE_ON_PLATEAU &&
        tdm_schedule_observe(&t->course.schedule, metric_of(t, job->schedule.metric),
                             &t->state.plateau))
        say(t, TDM_LOG_INFO, "step %llu: no progress, the learning rate is now %g",
            (unsigned long long)t->position.step, t->state.plateau.lr);
    if (job->train.early_stop &&
        tdm_early_stop_observe(job->train.early_stop, metric_of(t, job->train.early_stop->metric),
                               &t->state.early_stop)) {
        t->ended_early = true;
        say(t, TDM_LOG_INFO, "step %llu: no progress in %lld evaluations, the run ends",
            (unsigned long long)t->position.step, (long long)job->train.early_stop->patience);
    }
}

static tdm_status after_step(trainer *t, bool *saved, tdm_error *err)
{
    const tdm_job *job = t->job;
    bool epoch_ended = t->position.position == 0;
    if (tdm__is_due(job->run.log_every_steps, t->position.step) ||
        t->position.step == t->course.step_count)
        put_step_metrics(t);
    tell(t, TDM_TRAIN_EVENT_STEP);
    bool last = t->position.step == t->course.step_count;
    bool eval_due = tdm__course_eval_due(&t->course, &t->position);
    if (last || eval_due) TDM_TRY(evaluate(t, err));
    if (eval_due && t->predictor) heed(t);
    *saved = false;
    if (!last && !t->ended_early &&
        (tdm__is_due(job->checkpoint.every_steps, t->position.step) ||
         (epoch_ended && tdm__is_due(job->checkpoint.every_epochs, t->position.epoch))))
        TDM_TRY(save_along_the_way(t, saved, err));
    return TDM_OK;
}

static tdm_status loop(trainer *t, tdm_train_result *out, tdm_error *err)
{
    bool saved = false;
    t->window_begin_s = tdm_clock_s();
    t->start_seconds = t->window_begin_s - t->begin_s;
    t->window_begin_samples = t->position.samples;
    tdm__watch_start(&t->watch);
    unsigned wishes = wish_of(t);
    TDM_TRY(tdm__agree(t->comm, TDM_OK, &wishes, err));
    while (t->position.step < t->course.step_count && !t->ended_early) {
        if (!t->comm) wishes = wish_of(t); /* of many, each step's wishes are agreed on by it */
        if (wishes & WISH_STOP) {
            out->interrupted = true;
            break;
        }
        TDM_TRY(one_step(t, &wishes, err));
        TDM_TRY(after_step(t, &saved, err));
    }
    return saved ? TDM_OK : save(t, err);
}

/* ---- getting ready --------------------------------------------------------------------------- */

static tdm_status load_data(trainer *t, tdm_error *err)
{
    tdm__course *c = &t->course;
    TDM_TRY(tdm__same_settings(t->comm, t->job, t->options->resume != NULL, err));
    TDM_TRY(tdm__course_init_together(t->job, t->comm, c, err));
    const tdm_dataset_info *info = tdm_dataset_info_of(c->data.train);
    t->status.epoch_count = (c->step_count + c->epoch_steps - 1) / c->epoch_steps;
    t->status.step_count = c->step_count;
    t->status.train_count = info->sample_count;
    t->status.class_count = info->class_count;
    t->status.data_path = info->path;
    t->status.test_count = c->data.test ? tdm_dataset_info_of(c->data.test)->sample_count : 0;
    return TDM_OK;
}

static tdm_status make_team(trainer *t, tdm_error *err)
{
    const tdm_job *job = t->job;
    int64_t lanes = tdm_lanes_of(job);
    int64_t tail = t->course.epoch_rows % t->course.full_batch;
    tdm_team_options o = {.model = t->course.model,
                          .store = t->state.store,
                          .optimiser = t->state.optimiser,
                          .comm = t->comm,
                          .lane_count = lanes,
                          .batches = {t->course.full_batch, tail},
                          .seed = (uint64_t)job->seed,
                          .fill = fill,
                          .user = t};
    t->indices = tdm_arena_array(t->arena, (size_t)(t->course.full_batch / lanes + 1),
                                 sizeof(*t->indices));
    if (!t->indices) return tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory");
    tdm_status status = tdm_team_create(&o, &t->team, err);
    /* What is wrong with the job all ranks find, and end together. */
    if (status == TDM_ERR_JOB_INVALID || status == TDM_ERR_UNSUPPORTED)
        status = tdm__agree(t->comm, status, NULL, err);
    TDM_TRY(status);
    TDM_TRY(tdm__watch_init(&t->watch, t->comm, t->team, t->arena, err));
    t->status.lane_count = lanes;
    t->status.parameter_count = tdm_graph_trained_elements(t->state.graph);
    return TDM_OK;
}

static tdm_status run_predictor(void *user, bool has_rows, tdm_error *err)
{
    trainer *t = user;
    if (!has_rows) return tdm_feed_pass(t->feed, err);
    return tdm_feed_run(t->feed, 0, &(tdm_step_key){0}, err);
}

/* The test set is measured by all ranks, with parameters as a feed brings them. */
static tdm_status make_predictor(trainer *t, tdm_error *err)
{
    if (!t->course.data.test) return TDM_OK;
    tdm_model_options m = t->course.model;
    m.batch = tdm_model_eval_rows(&m);
    if (m.batch > t->status.test_count) m.batch = t->status.test_count;
    TDM_TRY(tdm_predictor_create(&m, NULL, &t->predictor, err));
    tdm_plan *plan = tdm_predictor_plan(t->predictor);
    int block = tdm__state_measured(&t->state, t->job);
    TDM_TRY(tdm_feed_create(t->state.store, block, &plan, 1, &t->feed, err));
    tdm_predictor_run_by(t->predictor, run_predictor, t);
    return TDM_OK;
}

/* Rank 0's part before the numbers are spread. */
static tdm_status open_checkpoint(trainer *t, restored *out, tdm_checkpoint **checkpoint,
                                  tdm_error *err)
{
    char *path;
    TDM_TRY(tdm_run_checkpoint(t->options->resume, t->arena, &path, err));
    TDM_TRY(tdm_checkpoint_open(path, checkpoint, err));
    out->position = tdm_checkpoint_content_of(*checkpoint)->position;
    snprintf(out->path, sizeof(out->path), "%s", path);
    TDM_TRY(tdm__course_check_job(&t->course, *checkpoint, path, t->options->resume, err));
    return tdm__course_check_position(&t->course, &out->position, path, err);
}

/* Rank 0's part after that: from here on the run's folder is changed. */
static tdm_status take_over(trainer *t, const restored *r, tdm_error *err)
{
    TDM_TRY(tdm__run_rewind(&t->run, r->position.step, err));
    TDM_TRY(tdm__run_set_aside(&t->run, r->position.step, err));
    return tdm__run_write_job(&t->run, t->job, err);
}

static tdm_status restore(trainer *t, tdm_error *err)
{
    restored *r = &t->resumed;
    tdm_checkpoint *checkpoint = NULL;
    tdm_status status = t->leads ? open_checkpoint(t, r, &checkpoint, err) : TDM_OK;
    status = tdm__agree(t->comm, status, NULL, err);
    if (status == TDM_OK) status = tdm__state_restore(&t->state, checkpoint, false, err);
    tdm_checkpoint_destroy(checkpoint);
    TDM_TRY(status);
    if (t->leads) status = take_over(t, r, err);
    TDM_TRY(tdm__agree(t->comm, status, NULL, err));
    if (t->comm)
        TDM_TRY(tdm_group_broadcast(tdm_comm_world(t->comm), r, sizeof(*r), TDM_DTYPE_U8, 0, err));
    r->path[sizeof(r->path) - 1] = '\0';
    t->position = r->position;
    t->status.checkpoint_path = r->path;
    return TDM_OK;
}

/* The folder of the run: rank 0 makes or opens it, the others learn where it is. */
static tdm_status open_run(trainer *t, tdm_error *err)
{
    tdm_status status = TDM_OK;
    const char *resume = t->options->resume;
    if (t->leads)
        status = resume ? tdm__run_open(resume, &t->run, err)
                        : tdm__run_create(t->job, &t->run, err);
    t->run_open = t->leads && status == TDM_OK;
    TDM_TRY(tdm__agree(t->comm, status, NULL, err));
    if (t->comm) {
        char path[TDM_PATH_BYTES] = "";
        if (t->leads) snprintf(path, sizeof(path), "%s", t->run.path);
        TDM_TRY(
            tdm_group_broadcast(tdm_comm_world(t->comm), path, sizeof(path), TDM_DTYPE_U8, 0, err));
        path[sizeof(path) - 1] = '\0';
        int rank = tdm_comm_rank(t->comm);
        bool same_host = tdm_comm_host_of(t->comm, rank) == tdm_comm_host_of(t->comm, 0);
        if (!t->leads) TDM_TRY(tdm__run_attach(path, rank, same_host, &t->run, err));
    }
    t->run_open = true;
    t->status.run_path = t->run.path;
    return TDM_OK;
}

/* What a rank does by itself before others wait for it. */
static tdm_status begin_alone(trainer *t, tdm_error *err)
{
    t->position.seed = (uint64_t)t->job->seed;
    t->arena = tdm_arena_create("training");
    if (!t->arena) return tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory");
    tdm_job_show(t->job, &t->job_yaml);
    if (!tdm_str_ok(&t->job_yaml)) return tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory");
    return TDM_OK;
}

static tdm_status begin(trainer *t, tdm_error *err)
{
    int ranks = tdm__size_of(t->comm);
    bool resumes = t->options->resume != NULL;
    t->status.rank = tdm__rank_of(t->comm);
    t->status.rank_count = ranks;
    t->watch.straggler = -1;
    TDM_TRY(tdm__agree(t->comm, begin_alone(t, err), NULL, err));
    TDM_TRY(load_data(t, err));
    TDM_TRY(tdm__agree(t->comm, tdm__memory_check(t->job, &t->course.data, t->comm, resumes, err),
                       NULL, err));
    TDM_TRY(tdm__state_init(&t->course.model, TDM__STATE_FOR_TRAINING, t->comm, &t->state, err));
    TDM_TRY(make_team(t, err));
    TDM_TRY(make_predictor(t, err));
    if (!resumes) TDM_TRY(tdm__state_begin(&t->state, t->job, t->course.data.train, err));
    /* The folder comes last, so that a job that cannot start leaves none behind. */
    TDM_TRY(open_run(t, err));
    if (resumes) TDM_TRY(restore(t, err));
    t->ended_early = t->job->train.early_stop &&
                     tdm_early_stop_is_due(t->job->train.early_stop, &t->state.early_stop);
    t->status.loss = t->status.smooth_loss = (double)NAN;
    t->status.skipped = skipped_of(t);
    t->first_sample = t->position.samples;
    t->first_step = t->position.step;
    return TDM_OK;
}

static void end(trainer *t)
{
    if (t->run_open) tdm__run_release(&t->run);
    tdm_feed_destroy(t->feed);
    tdm_predictor_destroy(t->predictor);
    tdm_team_destroy(t->team);
    tdm__state_release(&t->state);
    tdm__course_release(&t->course);
    tdm_str_release(&t->job_yaml);
    tdm_arena_destroy(t->arena);
}

/* Where nothing was trained, the state is the checkpoint's own: this job may have tensors that it
 * lacks, or lack some that it has (those of train.early_stop and train.bad_numbers). */
static tdm_status hash_of_file(const char *path, char out[TDM_SHA256_HEX], tdm_error *err)
{
    tdm_checkpoint *checkpoint;
    TDM_TRY(tdm_checkpoint_open(path, &checkpoint, err));
    const tdm_checkpoint_content *c = tdm_checkpoint_content_of(checkpoint);
    tdm_status status = tdm_state_hash(&c->position, c->tensors, c->tensor_count, out, err);
    tdm_checkpoint_destroy(checkpoint);
    return status;
}

static tdm_status sum_up(trainer *t, tdm_train_result *out, tdm_error *err)
{
    snprintf(out->run_path, sizeof(out->run_path), "%s", t->run.path);
    snprintf(out->checkpoint_path, sizeof(out->checkpoint_path), "%s", t->status.checkpoint_path);
    out->steps = t->position.step;
    out->samples = t->position.samples - t->first_sample;
    out->skipped = t->status.skipped;
    out->seconds = t->step_seconds;
    out->start_seconds = t->start_seconds;
    out->loss = t->status.loss;
    out->has_test = t->status.has_test;
    out->test = t->status.test;
    out->ended_early = t->ended_early && t->position.step < t->course.step_count;
    out->step_count = t->course.step_count;
    if (!out->nothing_to_do) { /* it was saved last */
        memcpy(out->state_hash, t->state_hash, sizeof(out->state_hash));
        return TDM_OK;
    }
    tdm_status status = TDM_OK;
    if (t->leads) status = hash_of_file(t->status.checkpoint_path, out->state_hash, err);
    TDM_TRY(tdm__agree(t->comm, status, NULL, err));
    if (!t->comm) return TDM_OK;
    return tdm_group_broadcast(tdm_comm_world(t->comm), out->state_hash, sizeof(out->state_hash),
                               TDM_DTYPE_U8, 0, err);
}

static tdm_status run(trainer *t, tdm_train_result *out, tdm_error *err)
{
    TDM_TRY(begin(t, err));
    char count[32];
    say(t, TDM_LOG_INFO,
        "%s: %s parameters, %lld training and %lld test samples, %lld "
        "lanes, %d ranks, from step %llu to %llu",
        t->run.path, tdm_text_count(t->status.parameter_count, count),
        (long long)t->status.train_count, (long long)t->status.test_count,
        (long long)t->status.lane_count, t->status.rank_count, (unsigned long long)t->position.step,
        (unsigned long long)t->course.step_count);
    if (t->state.from_file_count > 0)
        say(t, TDM_LOG_INFO, "%zu of %zu parameters and buffers start from %s",
            t->state.from_file_count, tdm_graph_param_count(t->state.graph),
            t->job->model.init_from);
    out->nothing_to_do = t->position.step >= t->course.step_count || t->ended_early;
    tell(t, TDM_TRAIN_EVENT_START);
    if (!out->nothing_to_do) TDM_TRY(loop(t, out, err));
    if (out->nothing_to_do && t->predictor) TDM_TRY(measure_test(t, err));
    TDM_TRY(sum_up(t, out, err));
    say(t, TDM_LOG_INFO, "%s at step %llu, state %s", out->interrupted ? "stopped" : "finished",
        (unsigned long long)out->steps, out->state_hash);
    if (!out->nothing_to_do) tdm__watch_total(&t->watch, t->step_seconds);
    tell(t, TDM_TRAIN_EVENT_END);
    return TDM_OK;
}

/* The error is in the log once: from rank 0, or, when that is gone, from those who saw it go. */
static void note_failure(const trainer *t, const tdm_error *err)
{
    bool alone = !t->leads && tdm_comm_peer_state(t->comm, 0) == TDM_PEER_LOST;
    if (t->run_open && (t->leads || alone)) tdm_log(TDM_LOG_ERROR, "train", "%s", err->message);
}

tdm_status tdm_train(const tdm_job *job, const tdm_train_options *options, tdm_train_result *out,
                     tdm_error *err)
{
    static const tdm_train_options defaults = {0};
    tdm_error local = {0};
    if (!err) err = &local;
    if (!options) options = &defaults;
    trainer t = {.job = job,
                 .options = options,
                 .comm = tdm__size_of(options->comm) > 1 ? options->comm : NULL,
                 .leads = tdm__rank_of(options->comm) == 0,
                 .begin_s = tdm_clock_s(),
                 .run = {.lock_fd = -1, .log_fd = -1, .metrics_fd = -1}};
    tdm_train_result result = {.steps = 0};
    tdm_status status = run(&t, &result, err);
    if (status != TDM_OK) {
        tdm__call_off(t.comm, err);
        note_failure(&t, err);
    }
    end(&t);
    if (status == TDM_OK) *out = result;
    return status;
}
