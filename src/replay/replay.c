/*
 * replay.c: executes a step of a run again, for inspection.
 *
 * The state after a step is a function of the job, so it need not have been saved: the steps from the newest
 * valid checkpoint before it, or from the initial values, are repeated in one process, for any number of ranks that
 * the run had. Only what affects the result is repeated: evaluations run only if the schedule uses them,
 * and nothing is written to the run directory, where another process may be training. Then the step itself is
 * executed lane by lane and compared with the metrics of the run.
 */
#include "replay/replay.h"
#include "base/base.h"
#include "data/data.h"
#include "eval/eval.h"
#include "job/job.h"
#include "nn/nn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define METRICS_LIMIT_BYTES (UINT64_C(4) << 30)
#define TOO_LARGE 0x1p63 /* the square of such a gradient is not finite */

typedef struct replayer {
    tdm_job job; /* the run's, adapted to a single process */
    const tdm_replay_options *options;
    tdm__train_schedule schedule;
    tdm__state state;
    tdm_team *team;
    tdm_predictor *predictor; /* NULL: evaluations do not affect the result */
    int64_t *indices;
    tdm_position position;
    tdm__dumps dumps;
    tdm_replay_result *result;
    tdm_train_status status;
} replayer;

/* ---- preparation ----------------------------------------------------------------------------- */

static void batch_fill(void *user, int64_t first, int64_t count, void *x, int32_t *classes)
{
    replayer *r = user;
    for (int64_t i = 0; i < count; i++)
        r->indices[i] = tdm__train_schedule_sample(&r->schedule, &r->position, first + i);
    tdm_dataset_gather(r->schedule.data.train, r->indices, count, x, classes);
}

static tdm_status check_step(const replayer *r, tdm_error *err)
{
    const char *run = r->options->run;
    uint64_t step = r->options->step, last = r->schedule.step_count;
    if (step == 0)
        return tdm_fail(err, TDM_ERR_RANGE,
                        "replay: steps count from 1, as in the progress line and the metrics");
    if (step <= last) return TDM_OK;
    return tdm_fail(
        err, TDM_ERR_RANGE,
        "%s: step %llu does not exist: the job ends with step %llu; raise %s with --set to "
        "replay later steps",
        run, (unsigned long long)step, (unsigned long long)last,
        r->job.train.steps > 0 ? "train.steps" : "train.epochs");
}

static tdm_status replay_make_team(replayer *r, tdm_error *err)
{
    if (tdm_job_takes_sparse(&r->job))
        return tdm_fail(err, TDM_ERR_UNSUPPORTED,
                        "%s: steps of a model with a sparse table cannot be replayed; resume the "
                        "run from a checkpoint instead",
                        r->options->run);
    if (tdm_job_trains_apart(&r->job) || tdm_job_is_async(&r->job))
        return tdm_fail(
            err, TDM_ERR_UNSUPPORTED,
            "%s: its replicas train different models (sync.kind), and a step of a single "
            "replica cannot be replayed",
            r->options->run);
    const tdm__train_schedule *c = &r->schedule;
    int64_t lanes = tdm_lanes_of(&r->job);
    tdm_team_options options = {.model = c->model,
                                .store = r->state.store,
                                .optimiser = r->state.optimiser,
                                .lane_count = lanes,
                                .batches = {c->full_batch, c->epoch_rows % c->full_batch},
                                .seed = (uint64_t)r->job.seed,
                                .fill = batch_fill,
                                .user = r};
    r->indices = tdm_arena_array(r->result->arena, (size_t)(c->full_batch / lanes + 1),
                                 sizeof(*r->indices));
    if (!r->indices) return tdm_fail_oom(err, "to replay a step");
    TDM_TRY(tdm_team_create(&options, &r->team, err));
    if (r->job.schedule.kind != TDM_JOB_SCHEDULE_REDUCE_ON_PLATEAU || !c->data.test) return TDM_OK;
    tdm_model_options m = c->model;
    m.batch = tdm_model_eval_rows(&m);
    int64_t test_count = tdm_dataset_info_of(c->data.test)->sample_count;
    if (m.batch > test_count) m.batch = test_count;
    float *measured = tdm_params_block(r->state.store, tdm__state_measured(&r->state, &r->job));
    return tdm_predictor_create(&m, measured, &r->predictor, err);
}

/* Restores a checkpoint. *damaged: it is not usable, but an older one may be. */
static tdm_status replay_restore(replayer *r, const char *path, bool *damaged, tdm_error *err)
{
    tdm_checkpoint *checkpoint = NULL;
    tdm_status status = tdm_checkpoint_open(path, &checkpoint, err);
    if (status == TDM_OK)
        status = tdm__train_schedule_check_job(&r->schedule, checkpoint, path, r->options->run,
                                               err);
    if (status == TDM_OK)
        tdm__warn_of_numerics(path, tdm_checkpoint_content_of(checkpoint)->numerics, &r->job,
                              "the replayed steps may differ in their bits from those of the run");
    const tdm_position *position = status == TDM_OK
                                       ? &tdm_checkpoint_content_of(checkpoint)->position
                                       : NULL;
    if (position) status = tdm__train_schedule_check_position(&r->schedule, position, path, err);
    /* An active run removes old checkpoints. */
    *damaged = status == TDM_ERR_FORMAT || status == TDM_ERR_CHECKSUM ||
               status == TDM_ERR_NOT_FOUND;
    if (status == TDM_OK) status = tdm__state_restore(&r->state, checkpoint, false, err);
    if (status == TDM_OK && position) r->position = *position;
    tdm_checkpoint_destroy(checkpoint);
    return status;
}

static tdm_status replay_find_start(replayer *r, tdm_error *err)
{
    tdm_replay_result *result = r->result;
    tdm_checkpoint_entry *entries = NULL; /* newest first */
    size_t count = 0;
    char *dir = tdm_path_join(result->arena, r->options->run, "checkpoints");
    if (!dir) return tdm_fail_oom(err, "to replay a step");
    if (tdm_path_is_dir(dir))
        TDM_TRY(tdm_checkpoint_list(dir, result->arena, &entries, &count, err));
    for (size_t i = 0; i < count; i++) {
        bool damaged = false;
        const char *path = entries[i].path;
        if (entries[i].step >= r->options->step) continue;
        tdm_error why;
        tdm_status status = replay_restore(r, path, &damaged, &why);
        if (status == TDM_OK) {
            result->checkpoint_path = path;
            result->from_step = r->position.step;
            return TDM_OK;
        }
        if (!damaged) return tdm_fail(err, status, "%s", why.message);
        tdm_log(TDM_LOG_WARN, "replay", "skipping a checkpoint: %s", why.message);
    }
    return tdm__state_begin(&r->state, &r->job, r->schedule.data.train, err);
}

static tdm_status replay_prepare(replayer *r, tdm_error *err)
{
    const tdm_replay_options *o = r->options;
    if (!tdm_path_is_dir(o->run))
        return tdm_fail(err, TDM_ERR_NOT_FOUND,
                        "%s: there is no such run; give a run directory, such as runs/digits-1",
                        o->run);
    TDM_TRY(tdm__train_schedule_init(&r->job, &r->schedule, err));
    TDM_TRY(check_step(r, err));
    r->schedule.model.threads = tdm__threads_guess(&r->job, 1);
    TDM_TRY(
        tdm__memory_check(&r->job, &r->schedule.data, NULL, r->schedule.model.threads, true, err));
    TDM_TRY(tdm__state_init(&r->schedule.model, TDM__STATE_FOR_TRAINING, NULL, &r->state, err));
    tdm_position at = tdm__train_schedule_position(&r->schedule, o->step - 1);
    TDM_TRY(tdm__dumps_init(o, &r->schedule, &r->state, &at, r->result->arena, &r->dumps, err));
    TDM_TRY(replay_make_team(r, err));
    r->position.seed = (uint64_t)r->job.seed;
    return replay_find_start(r, err);
}

/* ---- training up to the step ------------------------------------------------------------------ */

static void replay_report(replayer *r, tdm_train_event event, double begin_s)
{
    tdm_train_status *s = &r->status;
    uint64_t from = r->result->from_step, done = r->position.step - from;
    double elapsed = tdm_clock_s() - begin_s;
    s->event = event;
    s->run_path = r->options->run;
    s->checkpoint_path = r->result->checkpoint_path;
    s->step = r->position.step;
    s->step_count = r->options->step - 1;
    s->epoch = r->position.epoch;
    s->epoch_count = (s->step_count + r->schedule.epoch_steps - 1) / r->schedule.epoch_steps;
    s->samples = r->position.samples;
    s->rank_count = 1;
    s->lane_count = tdm_lanes_of(&r->job);
    s->left_s = done > 0 ? elapsed / (double)done * (double)(s->step_count - s->step) : 0;
    if (elapsed > 0)
        s->samples_per_s = (double)(s->samples -
                                    tdm__train_schedule_position(&r->schedule, from).samples) /
                           elapsed;
    if (r->options->on_event) r->options->on_event(s, r->options->user);
}

/* Applies an evaluation to the learning rate. */
static tdm_status replay_evaluate(replayer *r, tdm_error *err)
{
    tdm_position before = tdm__train_schedule_position(&r->schedule, r->position.step - 1);
    bool is_due = tdm__train_schedule_is_due(r->job.eval.every_steps, r->job.eval.every_epochs,
                                             &before, &r->position);
    if (!r->predictor || !is_due) return TDM_OK;
    TDM_TRY(tdm__state_measure(&r->state, &r->job, err));
    tdm_metrics test = tdm_evaluate(r->predictor, r->schedule.data.test, NULL);
    bool accuracy = r->job.schedule.metric == TDM_JOB_METRIC_TEST_ACCURACY;
    tdm_schedule_observe(&r->schedule.schedule, accuracy ? test.accuracy : test.loss,
                         &r->state.plateau);
    return TDM_OK;
}

static tdm_step_input replay_step_input(const replayer *r)
{
    return (tdm_step_input){
        .step = r->position.step,
        .batch = tdm__train_schedule_batch(&r->schedule, &r->position),
        .lr = tdm_schedule_lr(&r->schedule.schedule, r->position.step, &r->state.plateau)};
}

static tdm_status replay_train_step(replayer *r, tdm_error *err)
{
    tdm_step_input in = replay_step_input(r);
    tdm_step_result result;
    TDM_TRY(tdm_team_step(r->team, &in, &result, err));
    if (!result.finite && r->job.train.bad_numbers != TDM_JOB_BAD_NUMBERS_SKIP)
        return tdm_fail(err, TDM_ERR_DIVERGED,
                        "%s: step %llu has non-finite values, and training ends there; "
                        "replay that step: --step %llu",
                        r->options->run, (unsigned long long)in.step + 1,
                        (unsigned long long)in.step + 1);
    if (result.finite) {
        tdm_train_status *s = &r->status;
        s->smooth_loss = isnan(s->loss) ? result.loss : 0.95 * s->smooth_loss + 0.05 * result.loss;
        s->loss = result.loss;
    }
    r->status.lr = in.lr;
    r->status.step_skipped = !result.finite;
    tdm__train_schedule_advance(&r->schedule, &r->position);
    return replay_evaluate(r, err);
}

static tdm_status replay_train(replayer *r, tdm_error *err)
{
    const tdm_replay_options *o = r->options;
    double begin = tdm_clock_s();
    r->status.loss = r->status.smooth_loss = (double)NAN;
    replay_report(r, TDM_TRAIN_EVENT_START, begin);
    while (r->position.step + 1 < o->step) {
        if (o->should_stop && o->should_stop(o->user))
            return tdm_fail(err, TDM_ERR_INTERRUPTED, "replay: interrupted at step %llu",
                            (unsigned long long)r->position.step);
        TDM_TRY(replay_train_step(r, err));
        replay_report(r, TDM_TRAIN_EVENT_STEP, begin);
    }
    replay_report(r, TDM_TRAIN_EVENT_END, begin);
    return TDM_OK;
}

/* ---- the step -------------------------------------------------------------------------------- */

/* The norm of a parameter's gradient; *largest: the largest magnitude, or NaN if there is one. */
static double grad_norm_of_param(const float *grad, size_t count, double *largest)
{
    double sum = 0, max = 0;
    for (size_t i = 0; i < count; i++) {
        double x = fabs((double)grad[i]);
        sum += x * x;
        if (x > max || isnan(x)) max = x;
    }
    *largest = max;
    return sqrt(sum);
}

static double grad_norm_of_all(const tdm_graph *graph, const float *grad, bool *finite)
{
    double squares = 0;
    for (size_t i = 0; i < tdm_graph_param_count(graph); i++) {
        const tdm_param_info *p = tdm_graph_param_at(graph, i);
        double largest;
        if (!p->trained) continue;
        double norm = grad_norm_of_param(grad + p->offset, p->elements, &largest);
        squares += norm * norm;
        if (!(largest < TOO_LARGE)) *finite = false;
    }
    return sqrt(squares);
}

static int compare_norms(const void *a, const void *b)
{
    const tdm_replay_tensor *x = a, *y = b;
    bool x_bad = isnan(x->grad_norm), y_bad = isnan(y->grad_norm);
    if (x_bad != y_bad) return x_bad ? -1 : 1;
    if (!x_bad && x->grad_norm != y->grad_norm) return x->grad_norm > y->grad_norm ? -1 : 1;
    return strcmp(x->name, y->name);
}

static void replay_note_sum(replayer *r, double loss, const float *grad)
{
    tdm_replay_result *out = r->result;
    const tdm_graph *graph = r->state.graph;
    out->loss = loss;
    out->finite = isfinite(loss);
    out->grad_norm = grad_norm_of_all(graph, grad, &out->finite);
    for (size_t i = 0; i < tdm_graph_param_count(graph); i++) {
        const tdm_param_info *p = tdm_graph_param_at(graph, i);
        if (!p->trained) continue;
        tdm_replay_tensor *t = &out->tensors[out->tensor_count++];
        t->name = p->name;
        t->shape = p->shape;
        t->grad_norm = grad_norm_of_param(grad + p->offset, p->elements, &t->grad_largest);
    }
    qsort(out->tensors, out->tensor_count, sizeof(*out->tensors), compare_norms);
}

static void replay_visit_lane(void *user, int64_t lane, tdm_slice rows, double loss,
                              const float *grad)
{
    replayer *r = user;
    tdm_replay_result *out = r->result;
    tdm__dumps_take_grads(&r->dumps, &r->state, lane, grad);
    if (lane < 0) {
        replay_note_sum(r, loss, grad);
        return;
    }
    tdm_replay_lane *l = &out->lanes[out->lane_count++];
    *l = (tdm_replay_lane){.lane = lane, .first_row = rows.first, .row_count = rows.count};
    l->share = loss;
    l->loss = loss * (double)out->batch / (double)rows.count;
    l->finite = isfinite(loss);
    l->grad_norm = grad_norm_of_all(r->state.graph, grad, &l->finite);
}

static void replay_watch_op(void *user, int64_t lane, const tdm_graph *graph,
                            const tdm_plan_event *event)
{
    replayer *r = user;
    tdm_node_info node = tdm_graph_node_at(graph, event->node);
    tdm__dumps_take_op(&r->dumps, lane, node.name, event->out, event->out_count);
}

/* Finds the origin of non-finite values. Such a step changes nothing, so it can be executed. */
static tdm_status replay_explain(replayer *r, const tdm_step_input *in, tdm_error *err)
{
    tdm_step_result result;
    TDM_TRY(tdm_team_step(r->team, in, &result, err));
    if (result.finite) return TDM_OK;
    tdm_bad_number bad;
    TDM_TRY(tdm_team_replay(r->team, &bad, err));
    tdm_str text = TDM_STR_INIT;
    int64_t index = tdm__train_schedule_sample(&r->schedule, &r->position, bad.first_row);
    tdm__bad_number_text(&bad, r->schedule.data.train, index, &text);
    r->result->bad_text = tdm_arena_strdup(r->result->arena, tdm_str_text(&text));
    tdm_str_release(&text);
    return TDM_OK;
}

static tdm_status replay_step(replayer *r, tdm_error *err)
{
    tdm_replay_result *out = r->result;
    tdm_step_input in = replay_step_input(r);
    int64_t lanes = tdm_lanes_of(&r->job);
    out->epoch = r->position.epoch;
    out->batch = in.batch;
    out->lr = in.lr;
    out->lanes_of_job = lanes;
    out->lanes = tdm_arena_array(out->arena, (size_t)lanes, sizeof(*out->lanes));
    out->samples = tdm_arena_array(out->arena, (size_t)in.batch, sizeof(*out->samples));
    out->tensors = tdm_arena_array(out->arena, tdm_graph_param_count(r->state.graph) + 1,
                                   sizeof(*out->tensors));
    if (!out->lanes || !out->samples || !out->tensors) return tdm_fail_oom(err, "to replay a step");
    for (int64_t i = 0; i < in.batch; i++)
        out->samples[i] = tdm_dataset_number(
            r->schedule.data.train, tdm__train_schedule_sample(&r->schedule, &r->position, i));
    tdm__dumps_take_state(&r->dumps, &r->state);
    if (tdm__dumps_want_ops(&r->dumps)) tdm_team_watch(r->team, replay_watch_op, r);
    TDM_TRY(tdm_team_look(r->team, &in, replay_visit_lane, r, err));
    return out->finite ? TDM_OK : replay_explain(r, &in, err);
}

/* ---- comparison with the metrics of the run ---------------------------------------------------- */

static double json_number(const tdm_json *object, const char *key)
{
    const tdm_json *value = tdm_json_get(object, key);
    return value && value->type == TDM_JSON_NUMBER ? value->number : (double)NAN;
}

static bool equal_or_absent(double recorded, double found, double tolerance)
{
    return isnan(recorded) || fabs(recorded - found) <= tolerance * fabs(found);
}

static void record_compare(replayer *r, const tdm_json *object)
{
    tdm_replay_result *out = r->result;
    /* Other reductions give other last bits for each number of ranks. */
    double tolerance = r->job.parallel.reduce == TDM_JOB_REDUCE_TREE ? 0 : 1e-3;
    /* The norm is summed in another order here. */
    double norm_tolerance = tolerance > 0 ? tolerance : 1e-9;
    out->recorded = true;
    out->recorded_loss = json_number(object, "loss");
    out->recorded_lr = json_number(object, "lr");
    out->recorded_grad_norm = json_number(object, "grad_norm");
    out->recorded_skipped = isnan(out->recorded_loss);
    out->agrees = out->recorded_skipped == !out->finite &&
                  equal_or_absent(out->recorded_lr, out->lr, tolerance) &&
                  (out->recorded_skipped ||
                   (equal_or_absent(out->recorded_loss, out->loss, tolerance) &&
                    equal_or_absent(out->recorded_grad_norm, out->grad_norm, norm_tolerance)));
}

/* Handles the metrics line of the step, which starts with `begin`. The file may contain anything. */
static bool record_read_line(replayer *r, const char *begin, const char *line, size_t length)
{
    if (length < strlen(begin) || memcmp(line, begin, strlen(begin)) != 0) return false;
    const tdm_json *object = NULL;
    if (tdm_json_parse(line, length, r->result->arena, &object, NULL) != TDM_OK) return false;
    if (!tdm_json_get(object, "loss")) return false; /* a line of an evaluation */
    record_compare(r, object);
    return true;
}

static tdm_status record_find(replayer *r, tdm_error *err)
{
    char *path = tdm_path_join(r->result->arena, r->options->run, "metrics.jsonl");
    char *begin = tdm_arena_printf(r->result->arena, "{\"step\":%llu,",
                                   (unsigned long long)r->options->step);
    tdm_file_bytes file;
    if (!path || !begin) return tdm_fail_oom(err, "to replay a step");
    r->result->recorded_loss = r->result->recorded_lr = r->result->recorded_grad_norm = (double)NAN;
    if (!tdm_path_is_file(path)) return TDM_OK;
    TDM_TRY(tdm_file_read(path, METRICS_LIMIT_BYTES, &file, err));
    const char *at = (const char *)file.data, *end = at ? at + file.count : at;
    while (at && at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t length = newline ? (size_t)(newline - at) : (size_t)(end - at);
        if (record_read_line(r, begin, at, length)) break;
        at += length + 1;
    }
    tdm_file_bytes_release(&file);
    return TDM_OK;
}

/* ---- the complete replay ----------------------------------------------------------------------- */

static tdm_status replay_run(replayer *r, tdm_error *err)
{
    double begin = tdm_clock_s();
    TDM_TRY(replay_prepare(r, err));
    TDM_TRY(replay_train(r, err));
    TDM_TRY(replay_step(r, err));
    TDM_TRY(record_find(r, err));
    TDM_TRY(tdm__dumps_write(&r->dumps, r->options, err));
    r->result->step = r->options->step;
    r->result->step_count = r->schedule.step_count;
    r->result->dump_count = r->dumps.count;
    r->result->seconds = tdm_clock_s() - begin;
    return TDM_OK;
}

/* Copies the names: they belong to the graph, which is destroyed. */
static tdm_status result_copy_names(tdm_replay_result *result, tdm_error *err)
{
    for (size_t i = 0; i < result->tensor_count; i++) {
        result->tensors[i].name = tdm_arena_strdup(result->arena, result->tensors[i].name);
        if (!result->tensors[i].name) return tdm_fail_oom(err, "to replay a step");
    }
    return TDM_OK;
}

tdm_status tdm_replay(const tdm_job *job, const tdm_replay_options *options,
                      tdm_replay_result **out, tdm_error *err)
{
    replayer r = {.job = *job, .options = options};
    /* The distribution of work does not affect the result, and a single process has none. */
    r.job.parallel.zero = 0;
    r.job.parallel.offload = NULL;
    r.job.parallel.balance = TDM_JOB_BALANCE_OFF;
    r.result = calloc(1, sizeof(*r.result));
    if (r.result) r.result->arena = tdm_arena_create("replay");
    tdm_status status = r.result && r.result->arena ? replay_run(&r, err)
                                                    : tdm_fail_oom(err, "to replay a step");
    if (status == TDM_OK) status = result_copy_names(r.result, err);
    tdm_predictor_destroy(r.predictor);
    tdm_team_destroy(r.team);
    tdm__state_release(&r.state);
    tdm__train_schedule_release(&r.schedule);
    if (status != TDM_OK) {
        tdm_replay_result_destroy(r.result);
        return status;
    }
    *out = r.result;
    return TDM_OK;
}

void tdm_replay_result_destroy(tdm_replay_result *result)
{
    if (!result) return;
    tdm_arena_destroy(result->arena);
    free(result);
}
