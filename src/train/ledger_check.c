/*
 * ledger_check.c: verifies from a ledger that every sample was trained exactly once in every data epoch.
 *
 * Each line is compared with the schedule of the job (train_schedule.c): each step must be there
 * once, in order, at its position in its epoch, with its number of samples and the digest of exactly
 * the samples that the sampler gives for it. The sampler is checked as well: it must give no sample twice in an
 * epoch. The file is untrusted: lines out of order and invalid lines are reported, and cost no more than
 * valid ones.
 */
#include "base/base.h"
#include "job/job.h"
#include "train/internal.h"
#include "train/ledger.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define LEDGER_LIMIT_BYTES (UINT64_C(4) << 30)

typedef struct checker {
    tdm__train_schedule schedule;
    tdm_arena *arena;
    tdm_arena *line_arena;
    uint64_t *seen; /* one bit per sample: already trained in seen_epoch */
    size_t seen_words;
    uint64_t seen_epoch;
    uint64_t line; /* from 1 */
    uint64_t expected_step;
    int64_t max_steps; /* of a line */
    tdm_ledger_report *report;
} checker;

static void checker_complain(checker *c, const char *fmt, ...) TDM_PRINTF(2, 3);
static void checker_complain(checker *c, const char *fmt, ...)
{
    tdm_ledger_report *r = c->report;
    if (r->problem_count < TDM_LEDGER_PROBLEMS) {
        va_list args;
        va_start(args, fmt);
        vsnprintf(r->problems[r->problem_count], sizeof(r->problems[0]), fmt, args);
        va_end(args);
    }
    r->problem_count++;
}

/* The expected digest of the step; marks its samples as seen. */
static uint64_t checker_digest(checker *c, const tdm_position *at)
{
    uint64_t digest = 0;
    if (at->epoch != c->seen_epoch || at->position == 0) {
        memset(c->seen, 0, c->seen_words * sizeof(*c->seen));
        c->seen_epoch = at->epoch;
    }
    int64_t batch = tdm__train_schedule_batch(&c->schedule, at);
    for (int64_t row = 0; row < batch; row++) {
        uint64_t index = (uint64_t)tdm__train_schedule_sample(&c->schedule, at, row);
        uint64_t bit = UINT64_C(1) << (index % 64);
        if (index / 64 >= c->seen_words || (c->seen[index / 64] & bit) != 0)
            checker_complain(c, "the sampler gives sample %llu twice in epoch %llu",
                             (unsigned long long)index, (unsigned long long)at->epoch);
        else
            c->seen[index / 64] |= bit;
        digest += tdm__ledger_mix(at->epoch, index);
    }
    return digest;
}

/* Compares a line with the expected step, or round of steps. */
static bool checker_check_step(checker *c, const tdm__ledger_line *line)
{
    tdm_position at = tdm__train_schedule_position(&c->schedule, line->step - line->steps);
    tdm_position next = at;
    uint64_t digest = 0;
    for (uint64_t i = 0; i < line->steps; i++) {
        digest += checker_digest(c, &next);
        tdm__train_schedule_advance(&c->schedule, &next);
    }
    uint64_t count = next.samples - at.samples;
    unsigned long long step = line->step;
    if (line->epoch != at.epoch || line->position != at.position) {
        checker_complain(c,
                         "step %llu began at sample %llu of epoch %llu, not at %llu of epoch %llu",
                         step, (unsigned long long)line->position, (unsigned long long)line->epoch,
                         (unsigned long long)at.position, (unsigned long long)at.epoch);
        return false;
    }
    if (line->count != count) {
        checker_complain(c, "step %llu trained %llu samples, not %llu", step,
                         (unsigned long long)line->count, (unsigned long long)count);
        return false;
    }
    if (line->digest != digest) {
        checker_complain(c, "step %llu trained samples other than %llu to %llu of epoch %llu", step,
                         (unsigned long long)at.position,
                         (unsigned long long)(at.position + count - 1),
                         (unsigned long long)at.epoch);
        return false;
    }
    return true;
}

static void checker_check_line(checker *c, const char *text, size_t length)
{
    tdm_ledger_report *r = c->report;
    tdm__ledger_line line;
    c->line++;
    bool whole = tdm__ledger_read(text, length, c->line_arena, &line);
    tdm_arena_reset(c->line_arena);
    if (!whole) {
        checker_complain(c, "line %llu is not a valid ledger line", (unsigned long long)c->line);
        return;
    }
    if (line.steps > (uint64_t)c->max_steps) {
        checker_complain(c, "line %llu has %llu steps, but a round of this job has at most %lld",
                         (unsigned long long)c->line, (unsigned long long)line.steps,
                         (long long)c->max_steps);
        return;
    }
    uint64_t first = line.step - line.steps + 1;
    if (r->first_step == 0) r->first_step = c->expected_step = first;
    if (first < c->expected_step) {
        checker_complain(c, "step %llu is repeated in line %llu", (unsigned long long)line.step,
                         (unsigned long long)c->line);
        return;
    }
    if (first == c->expected_step + 1)
        checker_complain(c, "step %llu is missing", (unsigned long long)c->expected_step);
    else if (first > c->expected_step)
        checker_complain(c, "steps %llu to %llu are missing", (unsigned long long)c->expected_step,
                         (unsigned long long)first - 1);
    c->expected_step = line.step + 1;
    r->last_step = line.step;
    if (checker_check_step(c, &line)) r->step_count += line.steps;
}

/* The step of the newest checkpoint, by its name; 0: there is none. */
static tdm_status newest_checkpoint_step(const char *run, tdm_arena *arena, uint64_t *out,
                                         tdm_error *err)
{
    char *dir = tdm_path_join(arena, run, "checkpoints");
    const char *const *names = NULL;
    size_t count = 0;
    *out = 0;
    if (!dir) return tdm_fail_oom(err, "for the ledger");
    if (!tdm_path_is_dir(dir)) return TDM_OK;
    TDM_TRY(tdm_dir_list(dir, arena, &names, &count, err));
    for (size_t i = 0; i < count; i++) {
        uint64_t step;
        if (tdm_checkpoint_step_of(names[i], &step) && step > *out) *out = step;
    }
    return TDM_OK;
}

/* Counts the data epochs whose first and last step are present, and the steps after the last of them. */
static void checker_sum_up(checker *c)
{
    tdm_ledger_report *r = c->report;
    uint64_t steps = c->schedule.epoch_steps;
    r->steps_of_epoch = steps;
    r->samples_of_epoch = (uint64_t)c->schedule.epoch_rows;
    r->samples_of_data = c->schedule.sampler.sample_count;
    if (r->last_step == 0) return;
    r->first_epoch = (r->first_step - 1 + steps - 1) / steps;
    uint64_t end = r->last_step / steps;
    r->epoch_count = end > r->first_epoch ? end - r->first_epoch : 0;
    r->left_over_steps = r->last_step % steps;
}

static tdm_status checker_read_file(checker *c, const char *path, tdm_error *err)
{
    tdm_file_bytes bytes;
    TDM_TRY(tdm_file_read(path, LEDGER_LIMIT_BYTES, &bytes, err));
    const char *at = (const char *)bytes.data, *end = at + bytes.count;
    while (at && at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        if (!newline) { /* the run was killed and not resumed since */
            c->report->torn = true;
            break;
        }
        checker_check_line(c, at, (size_t)(newline - at));
        at = newline + 1;
    }
    tdm_file_bytes_release(&bytes);
    return TDM_OK;
}

static tdm_status checker_run(checker *c, const tdm_job *job, const char *run, tdm_error *err)
{
    uint64_t newest;
    c->arena = tdm_arena_create("ledger");
    c->line_arena = tdm_arena_create("line of a ledger");
    char *path = c->arena ? tdm_path_join(c->arena, run, TDM__LEDGER_NAME) : NULL;
    if (!path || !c->line_arena) return tdm_fail_oom(err, "for the ledger");
    if (!tdm_path_is_file(path))
        return tdm_fail(err, TDM_ERR_NOT_FOUND,
                        "%s: this run has no ledger; set checkpoint.ledger: true before training",
                        run);
    TDM_TRY(tdm__train_schedule_init(job, &c->schedule, err));
    c->max_steps = 1;
    if (tdm_job_trains_apart(job)) c->max_steps = job->sync.period;
    if (tdm_job_adapts_period(job) && job->sync.max_period > c->max_steps)
        c->max_steps = job->sync.max_period;
    if (tdm_job_is_async(job)) c->max_steps = TDM_ORDER_MAX_WORKERS;
    c->seen_words = (size_t)(c->schedule.sampler.sample_count / 64 + 1);
    c->seen = tdm_arena_array(c->arena, c->seen_words, sizeof(*c->seen));
    if (!c->seen) return tdm_fail_oom(err, "for the ledger");
    /* Checkpoints first: an active run writes the lines before the checkpoint. */
    TDM_TRY(newest_checkpoint_step(run, c->arena, &newest, err));
    TDM_TRY(checker_read_file(c, path, err));
    if (newest > c->report->last_step)
        checker_complain(c,
                         "the ledger ends with step %llu, but there is a checkpoint of step %llu",
                         (unsigned long long)c->report->last_step, (unsigned long long)newest);
    checker_sum_up(c);
    return TDM_OK;
}

tdm_status tdm_ledger_check(const tdm_job *job, const char *run, tdm_ledger_report *out,
                            tdm_error *err)
{
    tdm_ledger_report report = {.step_count = 0};
    checker c = {.report = &report, .seen_epoch = UINT64_MAX};
    tdm_status status = checker_run(&c, job, run, err);
    tdm__train_schedule_release(&c.schedule);
    tdm_arena_destroy(c.line_arena);
    tdm_arena_destroy(c.arena);
    if (status == TDM_OK) *out = report;
    return status;
}
