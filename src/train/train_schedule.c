/*
 * train_schedule.c: the schedule of a job: the samples and the learning rate of each step, and the last
 * step. It is a function of the job and the data only; the training loop, `tandem replay` and `tandem
 * ledger` use it.
 */
#include "base/base.h"
#include "job/job.h"
#include "train/internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Hashes the data that affect the result: the training set, and the test set if the schedule uses it. */
static tdm_status schedule_hash_data(tdm__train_schedule *c, tdm_error *err)
{
    char both[2 * TDM_SHA256_HEX] = "";
    tdm_status status = tdm_dataset_hash(c->data.train, c->data_hash);
    if (status == TDM_OK && c->data.test &&
        c->job->schedule.kind == TDM_JOB_SCHEDULE_REDUCE_ON_PLATEAU) {
        char test_hash[TDM_SHA256_HEX];
        status = tdm_dataset_hash(c->data.test, test_hash);
        if (status == TDM_OK) {
            snprintf(both, sizeof(both), "%s%s", c->data_hash, test_hash);
            status = tdm_sha256_of(both, strlen(both), c->data_hash);
        }
    }
    if (status != TDM_OK) return tdm_fail(err, status, "train: no memory to hash the data");
    return TDM_OK;
}

static tdm_status schedule_divide_epochs(tdm__train_schedule *c, tdm_error *err)
{
    const tdm_job *job = c->job;
    const tdm_dataset_info *info = tdm_dataset_info_of(c->data.train);
    bool drop = job->data.last_batch == TDM_JOB_LAST_BATCH_DROP;
    int64_t n = info->sample_count;
    c->full_batch = job->train.batch < n ? job->train.batch : n;
    c->epoch_rows = drop ? n / job->train.batch * job->train.batch : n;
    if (c->epoch_rows == 0)
        return tdm_fail(
            err, TDM_ERR_JOB_INVALID,
            "%s: %lld training samples are fewer than one batch of %lld; lower train.batch, or "
            "set data.last_batch: keep",
            info->path, (long long)n, (long long)job->train.batch);
    c->epoch_steps = (uint64_t)((c->epoch_rows + c->full_batch - 1) / c->full_batch);
    c->step_count = job->train.steps > 0 ? (uint64_t)job->train.steps
                                         : (uint64_t)job->train.epochs * c->epoch_steps;
    return TDM_OK;
}

static tdm_status schedule_load(tdm__train_schedule *c, tdm_error *err)
{
    const tdm_job *job = c->job;
    TDM_TRY(tdm_job_hash(job, c->job_hash, err));
    TDM_TRY(tdm_job_data_load(job, &c->data, err));
    const tdm_dataset_info *info = tdm_dataset_info_of(c->data.train);
    c->model = (tdm_model_options){.job = job, .class_count = info->class_count};
    TDM_TRY(tdm_job_sample_shape(job, c->data.train, &c->model.sample_shape, err));
    c->sampler = (tdm_sampler){.seed = (uint64_t)job->seed,
                               .sample_count = (uint64_t)info->sample_count,
                               .shuffle = job->data.shuffle};
    TDM_TRY(schedule_divide_epochs(c, err));
    c->schedule = tdm_schedule_of(job, c->step_count);
    return TDM_OK;
}

/* Compares the hashes of the data that the ranks read. */
static tdm_status data_compare(const tdm_dataset *set, char hash[TDM_SHA256_HEX], tdm_comm *comm,
                               tdm_error *err)
{
    int differs;
    TDM_TRY(tdm__same_text(comm, hash, TDM_SHA256_HEX, &differs, err));
    if (differs < 0) return TDM_OK;
    tdm_fail(err, TDM_ERR_JOB_MISMATCH,
             "rank %d read different data from %s than rank 0; put the same files on all hosts",
             differs, tdm_dataset_info_of(set)->path);
    return tdm_comm_agree(comm, TDM_ERR_JOB_MISMATCH, NULL, err);
}

tdm_status tdm__train_schedule_compare(tdm__train_schedule *schedule, tdm_comm *comm,
                                       tdm_error *err)
{
    const tdm_dataset *test = schedule->data.test;
    if (tdm__size_of(comm) == 1) return TDM_OK;
    tdm_status status = TDM_OK;
    if (test && !schedule->test_hash[0] && tdm_dataset_hash(test, schedule->test_hash) != TDM_OK)
        status = tdm_fail_oom(err, "to hash the data");
    TDM_TRY(tdm_comm_agree(comm, status, NULL, err));
    TDM_TRY(data_compare(schedule->data.train, schedule->data_hash, comm, err));
    return test ? data_compare(test, schedule->test_hash, comm, err) : TDM_OK;
}

tdm_status tdm__train_schedule_init(const tdm_job *job, tdm__train_schedule *out, tdm_error *err)
{
    *out = (tdm__train_schedule){.job = job};
    tdm_status status = schedule_load(out, err);
    if (status == TDM_OK) status = schedule_hash_data(out, err);
    if (status != TDM_OK) tdm__train_schedule_release(out);
    return status;
}

void tdm__train_schedule_release(tdm__train_schedule *schedule)
{
    tdm_job_data_release(&schedule->data);
    *schedule = (tdm__train_schedule){0};
}

int64_t tdm__train_schedule_batch(const tdm__train_schedule *schedule, const tdm_position *at)
{
    int64_t left = schedule->epoch_rows - (int64_t)at->position;
    return left < schedule->full_batch ? left : schedule->full_batch;
}

int64_t tdm__train_schedule_sample(const tdm__train_schedule *schedule, const tdm_position *at,
                                   int64_t row)
{
    return (int64_t)tdm_sampler_at(&schedule->sampler, at->epoch, at->position + (uint64_t)row);
}

void tdm__train_schedule_advance(const tdm__train_schedule *schedule, tdm_position *at)
{
    int64_t batch = tdm__train_schedule_batch(schedule, at);
    at->step++;
    at->samples += (uint64_t)batch;
    at->position += (uint64_t)batch;
    if ((int64_t)at->position < schedule->epoch_rows) return;
    at->position = 0;
    at->epoch++;
}

uint64_t tdm__train_schedule_round(const tdm__train_schedule *schedule, uint64_t step, double lr,
                                   double period)
{
    const tdm_job *job = schedule->job;
    uint64_t left = schedule->step_count > step ? schedule->step_count - step : 1;
    uint64_t count = (uint64_t)job->sync.period;
    if (!tdm_job_trains_apart(job)) return 1;
    if (tdm_job_is_local(job) && step < (uint64_t)job->sync.start_step) return 1;
    if (tdm_job_adapts_to_divergence(job)) {
        count = period >= 1 ? (uint64_t)period : 1;
    } else if (tdm_job_adapts_period(job)) {
        double grown = lr > 0 ? floor((job->sync.adapt_lr / lr) * (job->sync.adapt_lr / lr))
                              : (double)job->sync.max_period;
        if (grown > (double)job->sync.max_period) grown = (double)job->sync.max_period;
        if (grown > (double)count) count = (uint64_t)grown;
    }
    return count < left ? count : left;
}

double tdm__train_schedule_period(const tdm__train_schedule *schedule, uint64_t step,
                                  uint64_t steps, double period, double divergence)
{
    const tdm_job *job = schedule->job;
    double target = job->sync.adapt_divergence, factor = 2;
    bool is_whole = step >= (uint64_t)job->sync.start_step && (double)steps >= floor(period);
    if (!tdm_job_adapts_to_divergence(job) || !is_whole) return period;
    if (divergence > 0) factor = target / divergence;
    if (factor > 2) factor = 2;
    if (factor < 0.5) factor = 0.5;
    period *= factor;
    if (period > (double)job->sync.max_period) period = (double)job->sync.max_period;
    return period < 1 ? 1 : period;
}

/* Whether a multiple of `every` (0: never) is in (before, now]. */
static bool is_due_between(int64_t every, uint64_t before, uint64_t now)
{
    return every > 0 && now / (uint64_t)every > before / (uint64_t)every;
}

bool tdm__train_schedule_is_due(int64_t every_steps, int64_t every_epochs,
                                const tdm_position *before, const tdm_position *now)
{
    return is_due_between(every_steps, before->step, now->step) ||
           is_due_between(every_epochs, before->epoch, now->epoch);
}

tdm_position tdm__train_schedule_position(const tdm__train_schedule *schedule, uint64_t step)
{
    tdm_position at = {.step = step, .seed = (uint64_t)schedule->job->seed};
    at.epoch = at.step / schedule->epoch_steps;
    at.position = at.step % schedule->epoch_steps * (uint64_t)schedule->full_batch;
    at.samples = at.epoch * (uint64_t)schedule->epoch_rows + at.position;
    return at;
}

tdm_status tdm__train_schedule_check_position(const tdm__train_schedule *schedule,
                                              const tdm_position *at, const char *path,
                                              tdm_error *err)
{
    uint64_t rows = (uint64_t)schedule->epoch_rows, batch = (uint64_t)schedule->full_batch;
    uint64_t steps, samples;
    bool fits = at->position < rows && at->position % batch == 0 &&
                at->seed == (uint64_t)schedule->job->seed &&
                !__builtin_mul_overflow(at->epoch, schedule->epoch_steps, &steps) &&
                !__builtin_mul_overflow(at->epoch, rows, &samples) &&
                at->step - at->position / batch == steps && at->samples - at->position == samples;
    if (fits) return TDM_OK;
    return tdm_fail(err, TDM_ERR_FORMAT,
                    "%s: its position (step %llu, epoch %llu, sample %llu of it) is impossible in "
                    "this job; the file is damaged: remove it to resume from the one before",
                    path, (unsigned long long)at->step, (unsigned long long)at->epoch,
                    (unsigned long long)at->position);
}

tdm_status tdm__train_schedule_check_job(const tdm__train_schedule *schedule,
                                         const tdm_checkpoint *checkpoint, const char *path,
                                         const char *run, tdm_error *err)
{
    const tdm_checkpoint_content *content = tdm_checkpoint_content_of(checkpoint);
    if (strcmp(content->job_hash, schedule->job_hash) != 0) {
        tdm_job_document *document;
        TDM_TRY(tdm__checkpoint_job(checkpoint, path, &document, err));
        tdm_str diff = TDM_STR_INIT;
        size_t count = tdm_job_diff(schedule->job, tdm_job_document_job(document), &diff);
        /* Keys that affect the result were added since; the old job has their defaults. */
        bool is_old = !content->numerics && count == 0 && tdm_str_ok(&diff);
        if (!is_old)
            tdm_fail(
                err, TDM_ERR_JOB_MISMATCH,
                "%s belongs to another job, so resuming would not give the same result. Start a new "
                "run, or undo these differences:\n%s",
                run, tdm_str_text(&diff));
        tdm_str_release(&diff);
        tdm_job_document_destroy(document);
        if (!is_old) return TDM_ERR_JOB_MISMATCH;
    }
    if (content->data_hash && strcmp(content->data_hash, schedule->data_hash) != 0)
        return tdm_fail(
            err, TDM_ERR_JOB_MISMATCH,
            "%s was trained on other data than %s contains now, so resuming would not give "
            "the same result; restore the data, or start a new run",
            run, tdm_dataset_info_of(schedule->data.train)->path);
    return TDM_OK;
}
