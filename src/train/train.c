/*
 * train.c: the steps of training. It connects data, model, team, evaluation, checkpoints and the handling of
 * failures.
 *
 * Invariants: the position (step, data epoch, index in the epoch) changes only together with the state,
 * by a whole step. A checkpoint is written from exactly such a pair. The test set is evaluated
 * before a checkpoint of the same step is written, so that a resumed run neither repeats nor loses
 * a line of metrics.
 *
 * With several ranks, all of them execute this file in step. Everything that affects control flow (results of
 * steps, metrics, errors, stop requests) is the same on all ranks, because it comes from a collective call
 * or follows from one. Only rank 0 accesses the run directory and logs on behalf of all ranks.
 */
#include "base/timing.h"
#include "data/data.h"
#include "eval/eval.h"
#include "job/job.h"
#include "membership/membership.h"
#include "nn/nn.h"
#include "train/trainer.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SKIPS_EXPLAINED = 3 }; /* per run; a replay costs at least as much as a step */

/* ---- events and metrics ---------------------------------------------------------------------- */

void tdm__say(const tdm__trainer *t, tdm_log_level level, const char *fmt, ...)
{
    char text[2048];
    if (!t->leads) return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    tdm_log(level, "train", "%s", text);
}

void tdm__tell(tdm__trainer *t, tdm_train_event event)
{
    t->status.event = event;
    t->status.step = t->position.step;
    atomic_store_explicit(&t->run.step, t->position.step, memory_order_relaxed);
    t->status.epoch = t->position.epoch;
    t->status.samples = t->position.samples;
    t->status.ranks = t->watch.has_rates ? t->watch.ranks : NULL;
    t->status.straggler = t->watch.straggler;
    t->status.slow_factor = t->watch.slow_factor;
    if (t->options->on_event) t->options->on_event(&t->status, t->options->user);
}

static tdm_json_writer begin_metrics(tdm__trainer *t)
{
    tdm_str_clear(&t->run.line);
    tdm_json_writer w = tdm_json_writer_init(&t->run.line, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_uint(&w, "step", t->position.step);
    tdm_json_put_uint(&w, "epoch", t->position.epoch);
    tdm_json_put_uint(&w, "samples", t->position.samples);
    return w;
}

static void put_step_metrics(tdm__trainer *t)
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
    if (t->state.is_gossip) tdm_json_put_double(&w, "consensus_distance", t->status.consensus);
    if (tdm_job_adapts_to_divergence(t->job)) {
        tdm_json_put_uint(&w, "period", t->ledger.line.steps);
        tdm_json_put_double(&w, "divergence", t->status.divergence);
    }
    double speed = t->status.samples_per_s; /* rounded to about four digits */
    tdm_json_put_double(&w, "samples_per_s", speed < 100 ? round(100 * speed) / 100 : round(speed));
    tdm__traffic_put(&t->traffic, &w);
    tdm__watch_put(&t->watch, &w);
    tdm_json_object_end(&w);
    tdm__run_put_metrics(&t->run);
}

static void put_test_metrics(tdm__trainer *t)
{
    if (!t->leads) return;
    tdm_json_writer w = begin_metrics(t);
    tdm_json_put_double(&w, "test_loss", t->status.test.loss);
    tdm_json_put_double(&w, "test_accuracy", t->status.test.accuracy);
    if (t->status.test.has_auc) tdm_json_put_double(&w, "test_auc", t->status.test.auc);
    tdm_json_object_end(&w);
    tdm__run_put_metrics(&t->run);
}

/* Updates the speed, over about the last second, and the remaining time at that speed. */
static void speed_update(tdm__trainer *t)
{
    double now = tdm_clock_s(), elapsed = now - t->clock.window_begin_s;
    uint64_t samples = t->position.samples - t->clock.window_begin_samples;
    if (elapsed > 0 && (elapsed >= 0.1 || t->status.samples_per_s == 0))
        t->status.samples_per_s = (double)samples / elapsed;
    if (elapsed >= 1.0) {
        t->clock.window_begin_s = now;
        t->clock.window_begin_samples = t->position.samples;
    }
    uint64_t done = t->position.step - t->clock.first_step;
    double per_step = done > 0 ? t->clock.step_seconds / (double)done : 0;
    t->status.left_s = per_step * (double)(t->schedule.step_count - t->position.step);
}

/* ---- non-finite values ----------------------------------------------------------------------- */

/* Finds the origin of the non-finite values of the current step and appends it to `out`. */
static tdm_status nonfinite_explain(tdm__trainer *t, tdm_bad_number *bad, tdm_str *out,
                                    tdm_error *err)
{
    if (t->state.inner || t->order) { /* the models of the replicas have changed since */
        *bad = (tdm_bad_number){.kind = TDM_BAD_NOWHERE};
        tdm_str_addf(out,
                     "a replica got it in one of the steps %llu to %llu, which replicas train "
                     "with models that differ (sync.kind), so the op is not searched for",
                     (unsigned long long)t->position.step + 1,
                     (unsigned long long)t->position.step + t->round_steps);
        return TDM_OK;
    }
    if (t->state.sparse) {
        *bad = (tdm_bad_number){.kind = TDM_BAD_NOWHERE};
        tdm_str_add(out, "with a sparse table, the sample and the op are not searched for");
        return TDM_OK;
    }
    TDM_TRY(tdm_team_replay(t->team, bad, err));
    int64_t index = tdm__train_schedule_sample(&t->schedule, &t->position, bad->first_row);
    tdm__bad_number_text(bad, t->schedule.data.train, index, out);
    return TDM_OK;
}

static const char *nonfinite_describe(const tdm__trainer *t, const tdm_step_result *result,
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

static tdm_status nonfinite_stop(tdm__trainer *t, const tdm_step_result *result, const char *tensor,
                                 tdm_error *err)
{
    const tdm__skips *skips = &t->state.skips;
    tdm_str why = TDM_STR_INIT;
    tdm_bad_number bad;
    TDM_TRY(tdm__save_finish(t, err)); /* keep the last good state */
    tdm_status status = nonfinite_explain(t, &bad, &why, err);
    if (status != TDM_OK) {
        tdm_str_release(&why);
        return status;
    }
    if (skips->in_a_row > 0)
        tdm_str_addf(&why, "; %.0f %s%s before it failed in the same way and %s skipped",
                     skips->in_a_row, t->state.inner ? "round" : "step",
                     skips->in_a_row > 1 ? "s" : "", skips->in_a_row > 1 ? "were" : "was");
    if (tensor) tdm_str_addf(&why, "; '%s' is no longer finite, so no later step can be", tensor);
    const char *apart =
        "try a smaller optim.lr, optim.clip_norm, or data.normalise: standard; with "
        "sync.kind: all_reduce the message names the op and the sample";
    tdm_fail(err, TDM_ERR_DIVERGED, "step %llu: %s: %s; %s; %s",
             (unsigned long long)t->position.step + 1, nonfinite_describe(t, result, &bad),
             tdm_str_text(&why), tdm__last_good(t),
             t->state.sparse              ? "try a smaller table.lr or optim.lr"
             : t->state.inner || t->order ? apart
                                          : tdm__bad_number_advice(&bad, t->job));
    tdm_str_release(&why);
    return tdm_comm_agree(t->comm, TDM_ERR_DIVERGED, NULL, err); /* all ranks end here */
}

/* "step 5 is", or "steps 5 to 8 are" for a round. */
static void name_skipped(const tdm__trainer *t, char out[80])
{
    uint64_t step = t->position.step + 1;
    if (t->round_steps == 1)
        snprintf(out, 80, "step %llu is", (unsigned long long)step);
    else
        snprintf(out, 80, "steps %llu to %llu are", (unsigned long long)step,
                 (unsigned long long)(step + t->round_steps - 1));
}

/* Loss or gradient of the current step are not finite; the step has changed nothing. Fails, or counts it as
 * skipped; of a round, all its steps. The origin is found and logged for the first few times. */
static tdm_status on_nonfinite_step(tdm__trainer *t, const tdm_step_result *result, tdm_error *err)
{
    tdm__skips *skips = &t->state.skips;
    const char *tensor = NULL;
    bool skip = t->job->train.bad_numbers == TDM_JOB_BAD_NUMBERS_SKIP &&
                skips->in_a_row < (double)t->job->train.max_bad_numbers;
    if (skip) TDM_TRY(tdm__state_find_bad(&t->state, &tensor, err));
    if (!skip || tensor) return nonfinite_stop(t, result, tensor, err);
    double steps = (double)t->round_steps, most = SKIPS_EXPLAINED * steps, before = skips->in_all;
    skips->in_a_row++;
    skips->in_all += steps;
    if (before >= most) return TDM_OK;
    char skipped[80];
    name_skipped(t, skipped);
    tdm_str why = TDM_STR_INIT;
    tdm_bad_number bad;
    tdm_status status = nonfinite_explain(t, &bad, &why, err);
    if (status == TDM_OK)
        tdm__say(t, TDM_LOG_WARN, "%s skipped: %s: %s%s", skipped,
                 nonfinite_describe(t, result, &bad), tdm_str_text(&why),
                 skips->in_all >= most ? "; further ones are only counted" : "");
    tdm_str_release(&why);
    return status;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* The count may come from a file, so it is checked. */
uint64_t tdm__skipped_of(const tdm__trainer *t)
{
    double count = t->state.skips.in_all;
    return count >= 1 && count <= (double)t->position.step ? (uint64_t)count : 0;
}

static void status_note_step(tdm__trainer *t, const tdm_step_result *result, double lr)
{
    tdm_train_status *s = &t->status;
    s->lr = lr;
    s->step_skipped = !result->finite;
    s->skipped = tdm__skipped_of(t);
    if (!result->finite) return;
    t->state.skips.in_a_row = 0;
    s->smooth_loss = isnan(s->loss) ? result->loss : 0.95 * s->smooth_loss + 0.05 * result->loss;
    s->loss = result->loss;
    s->grad_norm = result->grad_norm;
}

/* Decided by rank 0's clock. */
static bool is_save_due(const tdm__trainer *t)
{
    double every_s = 60 * t->job->checkpoint.every_minutes;
    bool by_clock = every_s > 0 && tdm_clock_s() - t->saves.begun_s >= every_s;
    return t->leads && (by_clock || tdm__save_retry_due(t));
}

/* A request by should_save on this rank, or one in the session's store, which rank 0 handles for all. */
static bool is_save_requested(tdm__trainer *t)
{
    const tdm_train_options *o = t->options;
    bool is_told = o->should_save && o->should_save(o->user);
    bool is_same = t->requests.begun_s > 0 &&
                   tdm_clock_s() - t->requests.begun_s < TDM__TIMING_TRAIN_SAME_REQUEST_S;
    if (is_told && !is_same) t->requests.is_pending = true;
    uint64_t asked = t->leads && o->member ? tdm_member_save_request(o->member) : 0;
    bool is_asked = asked > t->requests.answered && asked != t->requests.serving;
    if (is_asked) t->requests.newest = asked;
    return t->requests.is_pending || is_asked;
}

unsigned tdm__requests_of(tdm__trainer *t)
{
    const tdm_train_options *o = t->options;
    unsigned request = 0;
    if (o->should_stop && o->should_stop(o->user)) request |= TDM_REQUEST_STOP;
    if (is_save_requested(t)) request |= TDM__REQUEST_SAVE;
    if (is_save_due(t)) request |= TDM__REQUEST_SAVE_DUE;
    return request;
}

static double step_lr(const tdm__trainer *t, uint64_t step)
{
    return tdm_schedule_lr(&t->schedule.schedule, step, &t->state.plateau);
}

uint64_t tdm__updates_of(const tdm__trainer *t)
{
    return t->state.inner ? (uint64_t)t->state.rounds : t->position.step;
}

tdm_position tdm__position_before(const tdm__trainer *t)
{
    uint64_t steps = t->ledger.line.step == t->position.step ? t->ledger.line.steps : 0;
    return tdm__train_schedule_position(&t->schedule, t->position.step - steps);
}

/* Settings of an inner step of a round; the lanes read its batch. */
static void round_begin_step(void *user, int64_t index, tdm_inner_step *out)
{
    tdm__trainer *t = user;
    uint64_t step = t->position.step + (uint64_t)index;
    uint64_t batch = t->order ? t->order_entries[index].batch : step;
    tdm_position at = tdm__train_schedule_position(&t->schedule, batch);
    if (!tdm_job_is_live(t->job)) t->batch_at = at; /* else that of another thread */
    *out = (tdm_inner_step){.step = batch,
                            .batch = tdm__train_schedule_batch(&t->schedule, &at),
                            .lr = step_lr(t, step)};
    if (!t->order || !t->job->sync.staleness_lr) return;
    uint32_t staleness = t->order_entries[index].staleness;
    if (staleness > 1) out->lr /= (double)staleness;
}

/* With sync.order live: lanes read this batch from now on. In the thread that computes gradients. */
static void live_begin_batch(void *user, uint64_t batch, tdm_inner_step *out)
{
    tdm__trainer *t = user;
    t->batch_at = tdm__train_schedule_position(&t->schedule, batch);
    out->batch = tdm__train_schedule_batch(&t->schedule, &t->batch_at);
}

/* Whether work after a step is due at this position at the latest. */
static bool is_round_end(const tdm__trainer *t, uint64_t step)
{
    const tdm_job *job = t->job;
    tdm_position before = tdm__train_schedule_position(&t->schedule, step - 1);
    tdm_position now = tdm__train_schedule_position(&t->schedule, step);
    return tdm__train_schedule_is_due(job->eval.every_steps, job->eval.every_epochs, &before,
                                      &now) ||
           tdm__train_schedule_is_due(job->checkpoint.every_steps, job->checkpoint.every_epochs,
                                      &before, &now) ||
           tdm__train_schedule_is_due(job->run.log_every_steps, 0, &before, &now);
}

uint64_t tdm__round_steps(tdm__trainer *t)
{
    uint64_t step = t->position.step, left = t->schedule.step_count - step, max = 1;
    if (!t->order)
        return tdm__train_schedule_round(&t->schedule, step, step_lr(t, step), t->state.period);
    /* How updates are divided into rounds affects no bit, so a round ends where something is due. */
    while (max < left && max < TDM_ORDER_MAX_WORKERS && !is_round_end(t, step + max)) max++;
    if (tdm_job_is_live(t->job)) return max; /* at most: the team decides */
    uint64_t steps = tdm_order_round(t->order, step, max);
    for (uint64_t i = 0; i < steps; i++) t->order_entries[i] = tdm_order_at(t->order, step + i);
    return steps;
}

/* Whether the last step has a line of metrics. */
static bool is_line_due(const tdm__trainer *t)
{
    tdm_position before = tdm__position_before(t);
    return t->position.step == t->schedule.step_count ||
           tdm__train_schedule_is_due(t->job->run.log_every_steps, 0, &before, &t->position);
}

void tdm__count_step(tdm__trainer *t, const tdm_step_result *result, uint64_t steps)
{
    tdm_position before = t->position;
    tdm__traffic_note(&t->traffic, is_line_due(t), result, t->order ? t->order_entries : NULL,
                      steps);
    for (uint64_t i = 0; i < steps; i++) tdm__train_schedule_advance(&t->schedule, &t->position);
    t->ledger.line = (tdm__ledger_line){.step = t->position.step,
                                        .epoch = before.epoch,
                                        .position = before.position,
                                        .count = t->position.samples - before.samples,
                                        .digest = result->tally,
                                        .steps = steps};
    tdm__lines_remember(&tdm__ledger_format, t->ledger.recent, &t->ledger.line);
    if (t->state.inner) t->state.rounds++;
    if (result->finite) {
        t->status.divergence = result->divergence;
        t->state.period = tdm__train_schedule_period(&t->schedule, before.step, steps,
                                                     t->state.period, result->divergence);
    }
    double lr = step_lr(t, t->position.step - 1);
    atomic_store_explicit(&t->run.step, t->position.step, memory_order_relaxed);
    status_note_step(t, result, lr);
    t->phase = TDM__TRAIN_STEPPED;
}

static double outer_lr(const tdm_job *job)
{
    bool averages = tdm_job_is_gossip(job) || job->sync.outer == TDM_JOB_OUTER_AVERAGE;
    return averages ? 1 : job->sync.outer_lr;
}

tdm_status tdm__one_step(tdm__trainer *t, unsigned request, unsigned *requests, tdm_error *err)
{
    int64_t batch = tdm__train_schedule_batch(&t->schedule, &t->position);
    double lr = step_lr(t, t->position.step);
    double begin = tdm_clock_s();
    uint64_t steps = tdm__round_steps(t);
    bool is_live = tdm_job_is_live(t->job);
    t->round_steps = steps;
    if (!is_live) t->batch_at = t->position;
    t->live = (tdm_live_round){.state = &t->order_state,
                               .max = steps,
                               .entries = t->order_entries,
                               .batch = live_begin_batch,
                               .user = t};
    tdm_step_input in = {.step = tdm__updates_of(t),
                         .batch = batch,
                         .lr = t->state.inner ? outer_lr(t->job) : lr,
                         .request = request,
                         .tally = &t->ledger.tally,
                         .before_update = tdm__before_update,
                         .user = t,
                         .inner_count = (int64_t)steps,
                         .inner = round_begin_step,
                         .order = t->order ? t->order_entries : NULL,
                         .live = is_live ? &t->live : NULL};
    tdm_step_result result;
    t->ledger.tally = 0;
    TDM_TRY(tdm__sparse_pull(t, batch, err));
    TDM_TRY(tdm_team_step(t->team, &in, &result, err));
    if (t->state.sparse && result.finite)
        TDM_TRY(tdm_sparse_push(t->state.sparse, lr / t->job->optim.lr, t->position.step + 1, err));
    t->clock.step_seconds += tdm_clock_s() - begin;
    if (is_live) t->round_steps = steps = t->live.count;
    if (!result.finite) TDM_TRY(on_nonfinite_step(t, &result, err));
    for (uint64_t i = 0; i < steps && is_live; i++)
        TDM_TRY(tdm_order_follow(&t->order_state, &t->order_entries[i], err));
    tdm__count_step(t, &result, steps);
    tdm__watch_record_step(&t->watch, &result, t->position.step, t->leads);
    speed_update(t);
    *requests = result.requests;
    return TDM_OK;
}

tdm_status tdm__average(tdm__trainer *t, tdm_error *err)
{
    return tdm_team_average(t->team, &t->status.consensus, t->state.weights, err);
}

tdm_status tdm__measure_test(tdm__trainer *t, tdm_error *err)
{
    TDM_TRY(tdm__average(t, err));
    TDM_TRY(tdm_params_settle(t->state.store, err));
    TDM_TRY(tdm__state_measure(&t->state, t->job, err));
    TDM_TRY(
        tdm_evaluate_together(t->predictor, t->schedule.data.test, t->comm, &t->status.test, err));
    t->status.has_test = true;
    return TDM_OK;
}

static double eval_metric(const tdm__trainer *t, int metric)
{
    return metric == TDM_JOB_METRIC_TEST_ACCURACY ? t->status.test.accuracy : t->status.test.loss;
}

static tdm_status test_evaluate(tdm__trainer *t, tdm_error *err)
{
    if (!t->predictor) return TDM_OK;
    TDM_TRY(tdm__measure_test(t, err));
    put_test_metrics(t);
    tdm__say(t, TDM_LOG_INFO, "step %llu: test loss %.4f, accuracy %.2f %%",
             (unsigned long long)t->position.step, t->status.test.loss,
             100 * t->status.test.accuracy);
    if (t->status.test.has_auc)
        tdm__say(t, TDM_LOG_INFO, "step %llu: test AUC %.4f", (unsigned long long)t->position.step,
                 t->status.test.auc);
    if (t->status.test.bad_count > 0)
        tdm__say(t, TDM_LOG_WARN,
                 "step %llu: the model gives NaN or infinity for %lld of %lld test samples",
                 (unsigned long long)t->position.step, (long long)t->status.test.bad_count,
                 (long long)t->status.test.target_count);
    tdm__tell(t, TDM_TRAIN_EVENT_EVAL);
    return TDM_OK;
}

/* Applies the schedule and early stopping to an evaluation that was due. An evaluation at the end of a run that
 * was not due has no effect, so that a continued run computes the same as one that never ended there. */
static void eval_apply(tdm__trainer *t)
{
    const tdm_job *job = t->job;
    if (job->schedule.kind == TDM_JOB_SCHEDULE_REDUCE_ON_PLATEAU &&
        tdm_schedule_observe(&t->schedule.schedule, eval_metric(t, job->schedule.metric),
                             &t->state.plateau))
        tdm__say(t, TDM_LOG_INFO, "step %llu: no progress, the learning rate is now %g",
                 (unsigned long long)t->position.step, t->state.plateau.lr);
    if (job->train.early_stop &&
        tdm_early_stop_observe(job->train.early_stop, eval_metric(t, job->train.early_stop->metric),
                               &t->state.early_stop)) {
        t->ended_early = true;
        tdm__say(t, TDM_LOG_INFO, "step %llu: no progress in %lld evaluations, the run ends",
                 (unsigned long long)t->position.step, (long long)job->train.early_stop->patience);
    }
}

static bool is_checkpoint_due(const tdm__trainer *t)
{
    tdm_position before = tdm__position_before(t);
    return tdm__train_schedule_is_due(t->job->checkpoint.every_steps,
                                      t->job->checkpoint.every_epochs, &before, &t->position);
}

bool tdm__eval_due(const tdm__trainer *t)
{
    tdm_position before = tdm__position_before(t);
    return tdm__train_schedule_is_due(t->job->eval.every_steps, t->job->eval.every_epochs, &before,
                                      &t->position);
}

void tdm__put_log_lines(tdm__trainer *t)
{
    bool last = t->position.step == t->schedule.step_count;
    if (is_line_due(t)) put_step_metrics(t);
    if (t->predictor && (last || tdm__eval_due(t))) put_test_metrics(t);
}

tdm_status tdm__after_step(tdm__trainer *t, unsigned requests, tdm_error *err)
{
    bool last = t->position.step == t->schedule.step_count;
    if (t->leads) tdm__lines_put(&t->ledger.file, &t->ledger.line);
    TDM_TRY(tdm__save_handle_finished(t, err));
    if (is_line_due(t)) {
        TDM_TRY(tdm__average(t, err));
        put_step_metrics(t);
    }
    tdm__tell(t, TDM_TRAIN_EVENT_STEP);
    bool eval_due = tdm__eval_due(t);
    if (last || eval_due) TDM_TRY(test_evaluate(t, err));
    if (eval_due && t->predictor) eval_apply(t);
    bool must_save = (requests & (TDM__REQUEST_SAVE | TDM__REQUEST_SAVE_DUE)) != 0;
    /* Not for saves by the clock: a request right after such a save is a new request. */
    if (requests & TDM__REQUEST_SAVE) t->requests.begun_s = tdm_clock_s();
    if (!last && !t->ended_early && (must_save || is_checkpoint_due(t)))
        TDM_TRY(tdm__save_begin(t, err));
    t->phase = TDM__TRAIN_SETTLED;
    return TDM_OK;
}

void tdm__start_clock(tdm__trainer *t)
{
    t->clock.window_begin_s = tdm_clock_s();
    t->clock.window_begin_samples = t->position.samples;
    if (t->saves.begun_s <= 0) t->saves.begun_s = t->clock.window_begin_s;
    if (!t->session.has_entered)
        t->clock.start_seconds = t->clock.window_begin_s - t->clock.begin_s;
    t->watch.first_seconds = t->clock.step_seconds;
    tdm__watch_start(&t->watch);
}

/* If nothing was trained, the state is the checkpoint's: this job may have tensors that the file lacks, or lack
 * some that it has (those of train.early_stop and train.bad_numbers). */
static tdm_status checkpoint_hash(const char *path, char out[TDM_SHA256_HEX], tdm_error *err)
{
    tdm_checkpoint *checkpoint;
    TDM_TRY(tdm_checkpoint_open(path, &checkpoint, err));
    const tdm_checkpoint_content *c = tdm_checkpoint_content_of(checkpoint);
    tdm_status status = tdm_state_hash(&c->position, c->tensors, c->tensor_count, out, err);
    tdm_checkpoint_destroy(checkpoint);
    return status;
}

tdm_status tdm__sum_up(tdm__trainer *t, tdm_train_result *out, tdm_error *err)
{
    snprintf(out->run_path, sizeof(out->run_path), "%s", t->run.path);
    snprintf(out->checkpoint_path, sizeof(out->checkpoint_path), "%s", t->status.checkpoint_path);
    out->steps = t->position.step;
    out->samples = t->position.samples - t->clock.first_sample;
    out->skipped = t->status.skipped;
    out->seconds = t->clock.step_seconds;
    out->start_seconds = t->clock.start_seconds;
    out->loss = t->status.loss;
    out->has_test = t->status.has_test;
    out->test = t->status.test;
    out->ended_early = t->ended_early && t->position.step < t->schedule.step_count;
    out->step_count = t->schedule.step_count;
    out->ends_by_steps = t->job->train.steps > 0;
    if (!out->nothing_to_do) { /* from the last save */
        memcpy(out->state_hash, t->saves.state_hash, sizeof(out->state_hash));
        return TDM_OK;
    }
    tdm_status status = TDM_OK;
    /* A process killed after its last checkpoint may have left a partial file. Nothing is saved here, which
     * would remove it. */
    if (t->leads) (void)tdm_checkpoint_prune(t->run.checkpoint_dir, 0, NULL);
    if (t->leads) status = checkpoint_hash(t->status.checkpoint_path, out->state_hash, err);
    TDM_TRY(tdm_comm_agree(t->comm, status, NULL, err));
    if (!t->comm) return TDM_OK;
    return tdm_group_broadcast(tdm_comm_world(t->comm), out->state_hash, sizeof(out->state_hash),
                               TDM_DTYPE_U8, 0, err);
}

/* A column of measurements makes as many classes as it has values, which is rarely intended. */
static void say_numeric_target(const tdm__trainer *t)
{
    const tdm_job_data *data = &t->schedule.data;
    const tdm_dataset *set = data->whole ? data->whole : data->train;
    if (!tdm_dataset_has_numeric_target(set)) return;
    const tdm_dataset_info *info = tdm_dataset_info_of(set);
    tdm__say(t, TDM_LOG_WARN,
             "%s: the labels are %lld distinct numbers for %lld samples, which looks like a "
             "regression target; each becomes a class (%.40s, %.40s, ... %.40s), and regression is "
             "not supported yet; if another column holds the classes, name it in data.label",
             info->path, (long long)info->class_count, (long long)info->sample_count,
             info->class_names[0], info->class_names[1], info->class_names[info->class_count - 1]);
}

void tdm__say_start(const tdm__trainer *t)
{
    char count[32], numerics[TDM_NUMERICS_BYTES];
    tdm__say(t, TDM_LOG_INFO,
             "%s: %s parameters, %lld training and %lld test samples, %lld "
             "lanes, %d ranks, from step %llu to %llu",
             t->run.path, tdm_text_count(t->status.parameter_count, count),
             (long long)t->status.train_count, (long long)t->status.test_count,
             (long long)t->status.lane_count, t->status.rank_count,
             (unsigned long long)t->position.step, (unsigned long long)t->schedule.step_count);
    tdm__say(t, TDM_LOG_INFO, "numerics '%s', %d thread%s on rank 0",
             tdm__numerics_of(t->job, numerics), tdm_model_threads(&t->schedule.model),
             tdm_model_threads(&t->schedule.model) == 1 ? "" : "s");
    say_numeric_target(t);
    if (tdm_job_is_local(t->job) && tdm_replicas_of(t->job) == 1)
        tdm__say(t, TDM_LOG_WARN,
                 "the job has one replica, so 'sync.kind: local' averages nothing; set "
                 "sync.replicas%s to the number of models to train",
                 t->status.lane_count == 1 ? " and parallel.lanes" : "");
    if (t->state.from_file_count > 0)
        tdm__say(t, TDM_LOG_INFO, "%zu of %zu parameters and buffers start from %s",
                 t->state.from_file_count, tdm_graph_param_count(t->state.graph),
                 t->job->model.init_from);
}

void tdm__say_end(tdm__trainer *t, const tdm_train_result *result)
{
    tdm__say(t, TDM_LOG_INFO, "%s at step %llu, state %s",
             result->interrupted ? "stopped" : "finished", (unsigned long long)result->steps,
             result->state_hash);
    if (!result->nothing_to_do) tdm__watch_total(&t->watch, t->clock.step_seconds);
    tdm__tell(t, TDM_TRAIN_EVENT_END);
}

/* Logs the error once: on rank 0, or, if rank 0 is lost, on the ranks that noticed it. */
void tdm__note_failure(const tdm__trainer *t, const tdm_error *err)
{
    bool alone = !t->leads && t->comm && tdm_comm_peer_state(t->comm, 0) == TDM_PEER_LOST;
    /* Members that were fenced or left have nothing to report about the run. */
    if (err->status == TDM_ERR_PEER_FENCED || err->status == TDM_ERR_PEER_LEFT) return;
    if (t->run_open && (t->leads || alone)) tdm_log(TDM_LOG_ERROR, "train", "%s", err->message);
}

tdm_status tdm_train(const tdm_job *job, const tdm_train_options *options, tdm_train_result *out,
                     tdm_error *err)
{
    static const tdm_train_options defaults = {0};
    tdm_error local = {0};
    if (!err) err = &local;
    if (!options) options = &defaults;
    tdm__trainer t = {.job = job,
                      .options = options,
                      .comm = tdm__size_of(options->comm) > 1 ? options->comm : NULL,
                      .leads = tdm__rank_of(options->comm) == 0,
                      .clock = {.begin_s = tdm_clock_s()},
                      .ledger = {.file = {.fd = -1}},
                      .order_file = {.fd = -1},
                      .run = {.lock_fd = -1, .log_fd = -1, .metrics_fd = -1}};

    tdm_train_result result = {.steps = 0};
    tdm_status status = tdm__train_epochs(&t, &result, err);

    if (status != TDM_OK) {
        tdm__call_off(t.comm, err);
        tdm__note_failure(&t, err);
    }
    tdm__end(&t);
    if (status == TDM_OK) *out = result;
    return status;
}
