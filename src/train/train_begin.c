/*
 * train_begin.c: preparation for training in a world: data, model, team, the run directory, and the state to
 * continue from.
 *
 * Each phase that can fail on one rank alone ends with tdm_comm_agree, so that all ranks fail together, with
 * the message of the lowest rank that failed. Some of this is done once per process. Everything that belongs to a
 * world (parameter store, team, prefetch) is created again for each membership epoch; train_epoch.c calls these
 * functions in order.
 */
#include "base/base.h"
#include "comm/comm.h"
#include "eval/eval.h"
#include "nn/nn.h"
#include "train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- data ------------------------------------------------------------------------------------ */

void tdm__note_data(tdm__trainer *t)
{
    const tdm__train_schedule *c = &t->schedule;
    const tdm_dataset_info *info = tdm_dataset_info_of(c->data.train);
    t->status.epoch_count = (c->step_count + c->epoch_steps - 1) / c->epoch_steps;
    t->status.step_count = c->step_count;
    t->status.train_count = info->sample_count;
    t->status.class_count = info->class_count;
    t->status.data_path = info->path;
    t->status.test_count = c->data.test ? tdm_dataset_info_of(c->data.test)->sample_count : 0;
}

/* ---- model, team and evaluation --------------------------------------------------------------- */

static void batch_fill(void *user, int64_t first, int64_t count, void *x, int32_t *classes)
{
    tdm__trainer *t = user;
    int64_t *indices = t->indices;
    if (t->state.sparse) { /* the samples are those of the last pull */
        tdm_sparse_fill(t->state.sparse, first, count, x, classes);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        indices[i] = tdm__train_schedule_sample(&t->schedule, &t->batch_at, first + i);
        if (t->job->checkpoint.ledger)
            t->ledger.tally += tdm__ledger_mix(t->batch_at.epoch, (uint64_t)indices[i]);
    }
    tdm_dataset_gather(t->schedule.data.train, indices, count, x, classes);
}

/* Gets the rows of the sparse table that this rank's lanes need in the next step. */
tdm_status tdm__sparse_pull(tdm__trainer *t, int64_t batch, tdm_error *err)
{
    tdm_slice rows = tdm_team_rows_of(t->team, batch);
    if (!t->state.sparse) return TDM_OK;
    for (int64_t i = 0; i < rows.count; i++) {
        t->indices[i] = tdm__train_schedule_sample(&t->schedule, &t->batch_at, rows.first + i);
        if (t->job->checkpoint.ledger)
            t->ledger.tally += tdm__ledger_mix(t->batch_at.epoch, (uint64_t)t->indices[i]);
    }
    return tdm_sparse_pull(t->state.sparse, t->schedule.data.train, t->indices, rows.count,
                           rows.first, err);
}

static bool batch_take(void *user, int64_t first, int64_t count, const float *d_x)
{
    tdm__trainer *t = user;
    return tdm_sparse_take(t->state.sparse, first, count, d_x);
}

tdm_status tdm__make_team(tdm__trainer *t, tdm_error *err)
{
    const tdm_job *job = t->job;
    int64_t lanes = tdm_lanes_of(job);
    int64_t tail = t->schedule.epoch_rows % t->schedule.full_batch;
    tdm_team_options o = {.model = t->schedule.model,
                          .store = t->state.store,
                          .optimiser = t->state.optimiser,
                          .inner = t->state.inner,
                          .comm = t->comm,
                          .lane_count = lanes,
                          .batches = {t->schedule.full_batch, tail},
                          .seed = (uint64_t)job->seed,
                          .fill = batch_fill,
                          .take = t->state.sparse ? batch_take : NULL,
                          .user = t,
                          .plan_cache = t->plan_cache};
    /* Of a lane; with a sparse table, of all lanes of a rank. */
    int64_t samples = t->schedule.full_batch / (t->state.sparse ? 1 : lanes) + 1;
    if (!t->indices) t->indices = tdm_arena_array(t->arena, (size_t)samples, sizeof(*t->indices));
    if (!t->indices) return tdm_fail_oom(err, "in training");
    tdm_status status = tdm_team_create(&o, &t->team, err);
    /* Errors in the job occur on all ranks, which end together. */
    if (status == TDM_ERR_JOB_INVALID || status == TDM_ERR_UNSUPPORTED)
        status = tdm_comm_agree(t->comm, status, NULL, err);
    TDM_TRY(status);
    TDM_TRY(tdm__watch_init(&t->watch, t->comm, t->team, t->arena, err));
    t->status.lane_count = lanes;
    t->status.parameter_count = tdm_graph_trained_elements(t->state.graph);
    return TDM_OK;
}

/* The input of a batch of the test set. All ranks pull together; one without a batch has no samples. */
static tdm_status predictor_fill(void *user, const tdm_dataset *dataset, const int64_t *indices,
                                 int64_t count, void *x, int32_t *classes, tdm_error *err)
{
    tdm__trainer *t = user;
    TDM_TRY(tdm_sparse_pull(t->state.sparse, dataset, indices, count, 0, err));
    if (count > 0) tdm_sparse_fill(t->state.sparse, 0, count, x, classes);
    return TDM_OK;
}

static tdm_status predictor_run(void *user, bool has_rows, tdm_error *err)
{
    tdm__trainer *t = user;
    if (!has_rows) return tdm_prefetch_pass(t->prefetch, err);
    return tdm_prefetch_run(t->prefetch, 0, &(tdm_step_key){0}, err);
}

/* All ranks evaluate the test set together, with parameters from a prefetch. */
tdm_status tdm__make_predictor(tdm__trainer *t, tdm_error *err)
{
    if (!t->schedule.data.test) return TDM_OK;
    tdm_model_options m = t->schedule.model;
    m.batch = tdm_model_eval_rows(&m);
    if (m.batch > t->status.test_count) m.batch = t->status.test_count;
    if (t->predictor && t->predictor_threads != tdm_model_threads(&m)) {
        tdm_predictor_destroy(t->predictor);
        t->predictor = NULL;
    }
    t->predictor_threads = tdm_model_threads(&m);
    if (!t->predictor) TDM_TRY(tdm_predictor_create(&m, NULL, &t->predictor, err));
    tdm_plan *plan = tdm_predictor_plan(t->predictor);
    int block = tdm__state_measured(&t->state, t->job);
    TDM_TRY(tdm_prefetch_create(t->state.store, block, &plan, 1, &t->prefetch, err));
    tdm_predictor_run_by(t->predictor, predictor_run, t);
    if (t->state.sparse) tdm_predictor_fill_by(t->predictor, predictor_fill, t);
    return TDM_OK;
}

/* Rank 0 opens the checkpoint and checks that it belongs to the job. */
static tdm_status checkpoint_open(tdm__trainer *t, const char *run, tdm__restored *out,
                                  tdm_checkpoint **checkpoint, tdm_error *err)
{
    char *path;
    TDM_TRY(tdm__run_newest(run, true, t->arena, &path, err));
    TDM_TRY(tdm_checkpoint_open(path, checkpoint, err));
    out->position = tdm_checkpoint_content_of(*checkpoint)->position;
    snprintf(out->path, sizeof(out->path), "%s", path);
    TDM_TRY(tdm__train_schedule_check_job(&t->schedule, *checkpoint, path, run, err));
    tdm__warn_of_numerics(
        path, tdm_checkpoint_content_of(*checkpoint)->numerics, t->job,
        "training continues, but not with the bits of a run that was never interrupted");
    return tdm__train_schedule_check_position(&t->schedule, &out->position, path, err);
}

tdm_status tdm__restore(tdm__trainer *t, const char *path, tdm_error *err)
{
    tdm__restored *r = &t->resumed;
    tdm_checkpoint *checkpoint = NULL;
    tdm_status status = t->leads ? checkpoint_open(t, path, r, &checkpoint, err) : TDM_OK;
    status = tdm_comm_agree(t->comm, status, NULL, err);
    if (status == TDM_OK) status = tdm__state_restore(&t->state, checkpoint, false, err);
    tdm_checkpoint_destroy(checkpoint);
    TDM_TRY(status);
    if (t->comm)
        TDM_TRY(tdm_group_broadcast(tdm_comm_world(t->comm), r, sizeof(*r), TDM_DTYPE_U8, 0, err));
    r->path[sizeof(r->path) - 1] = '\0';
    t->position = r->position;
    t->status.checkpoint_path = r->path;
    return TDM_OK;
}

/* ---- the run directory ----------------------------------------------------------------------- */

tdm_status tdm__lead_run(tdm__trainer *t, const char *path, bool joins, tdm_error *err)
{
    if (t->run_open && t->run.rank == 0) return TDM_OK; /* open since an earlier epoch */
    if (t->run_open) tdm__run_release(&t->run);
    t->run_open = false;
    tdm_status status = path ? tdm__run_open(path, joins, &t->run, err)
                             : tdm__run_create(t->job, &t->run, err);
    t->run_open = status == TDM_OK;
    if (status == TDM_OK && t->options->member) tdm__run_share(&t->run);
    return status;
}

static tdm_status run_follow(tdm__trainer *t, const char *path, tdm_error *err)
{
    int rank = tdm_comm_rank(t->comm);
    bool same_host = tdm_comm_host_of(t->comm, rank) == tdm_comm_host_of(t->comm, 0);
    bool is_same = t->run_open && t->run.rank != 0 && t->run.is_near == same_host;
    if (is_same && strcmp(t->run.path, path) == 0) {
        t->run.rank = rank;
        return TDM_OK;
    }
    if (t->run_open) tdm__run_release(&t->run);
    t->run_open = false;
    TDM_TRY(tdm__run_attach(path, rank, same_host, t->options->lines_fd, &t->run, err));
    t->run_open = true;
    return TDM_OK;
}

tdm_status tdm__open_run(tdm__trainer *t, const char *path, bool joins, tdm_error *err)
{
    tdm_status status = t->leads ? tdm__lead_run(t, path, joins, err) : TDM_OK;
    TDM_TRY(tdm_comm_agree(t->comm, status, NULL, err));
    if (t->leads) snprintf(t->session.run_path, sizeof(t->session.run_path), "%s", t->run.path);
    if (t->comm) {
        TDM_TRY(tdm_group_broadcast(tdm_comm_world(t->comm), t->session.run_path,
                                    sizeof(t->session.run_path), TDM_DTYPE_U8, 0, err));
        t->session.run_path[sizeof(t->session.run_path) - 1] = '\0';
        if (!t->leads) TDM_TRY(run_follow(t, t->session.run_path, err));
    }
    t->status.run_path = t->run.path;
    return TDM_OK;
}

tdm_status tdm__open_ledger(tdm__trainer *t, uint64_t step, tdm_error *err)
{
    tdm__lines_close(&t->ledger.file);
    if (!t->leads || !t->job->checkpoint.ledger) return TDM_OK;
    return tdm__lines_open(t->run.path, &tdm__ledger_format, step, &t->ledger.file, err);
}

/* ---- the process ------------------------------------------------------------------------------- */

/* The job as stored in checkpoints: without the keys that set who trains, how, and where output is written. So
 * the same state has the same file, however it was computed. */
static void job_show_canonical(const tdm_job *job, tdm_str *out)
{
    tdm_job j = *job;
    j.store = TDM_JOB_KV_LOCAL;
    j.parallel.zero = 0;
    j.parallel.offload = NULL;
    j.parallel.balance = TDM_JOB_BALANCE_OFF;
    j.parallel.weights = (tdm_job_int_list){0};
    j.parallel.bucket = 0;
    j.parallel.overlap = true;
    memset(&j.comm, 0, sizeof(j.comm));
    j.comm.streams = 1;
    j.memory.limit = 0;
    if (j.compute.numerics == TDM_JOB_NUMERICS_PORTABLE) j.compute.threads = 0;
    memset(&j.checkpoint, 0, sizeof(j.checkpoint));
    memset(&j.elastic, 0, sizeof(j.elastic));
    memset(&j.etcd, 0, sizeof(j.etcd));
    j.checkpoint.keep = 1;
    j.elastic.min = 1;
    j.elastic.restart_window = 1;
    j.run.dir = "runs";
    j.run.log_every_steps = 1;
    tdm_job_show(&j, out);
}

tdm_status tdm__begin_alone(tdm__trainer *t, tdm_error *err)
{
    t->position.seed = (uint64_t)t->job->seed;
    t->arena = tdm_arena_create("training");
    if (!t->arena) return tdm_fail_oom(err, "in training");
    job_show_canonical(t->job, &t->job_yaml);
    if (!tdm_str_ok(&t->job_yaml)) return tdm_fail_oom(err, "in training");
    return TDM_OK;
}

void tdm__end(tdm__trainer *t)
{
    if (t->run_open) tdm__run_release(&t->run);
    tdm__saver_destroy(t->saves.saver);
    tdm__snapshot_pool_destroy(t->saves.pool);
    tdm__lines_close(&t->ledger.file);
    free(t->ledger.recent);
    tdm_prefetch_destroy(t->prefetch);
    tdm_predictor_destroy(t->predictor);
    tdm_team_destroy(t->team);
    tdm_plan_cache_destroy(t->plan_cache);
    tdm__order_release(t);
    tdm__state_release(&t->state);
    tdm__train_schedule_release(&t->schedule);
    tdm_str_release(&t->job_yaml);
    tdm_arena_destroy(t->arena);
}
