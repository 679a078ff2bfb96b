/*
 * ledger_check.c: does a ledger prove that every sample was trained exactly once in every epoch?
 *
 * It is read line by line against the way of the job through its data (train_schedule.c): each step must be
 * there once, in order, at its place in its epoch, with its number of samples and the digest of exactly
 * the samples that the sampler has for it. Besides, the sampler itself is held to its word: over an
 * epoch it must give no sample twice. The file is hostile: what is in no order, or no line at all, is
 * told, and costs no more than a line that is in order.
 */
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
    uint64_t *seen; /* a bit for each sample: already trained in the epoch at hand */
    size_t seen_words;
    uint64_t seen_epoch;
    uint64_t line; /* from 1 */
    uint64_t expected_step;
    tdm_ledger_report *report;
} checker;

static void complain(checker *c, const char *fmt, ...) TDM_PRINTF(2, 3);
static void complain(checker *c, const char *fmt, ...)
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

/* Where the job is before this step, from 1. */
static tdm_position position_before(const tdm__train_schedule *schedule, uint64_t step)
{
    tdm_position at = {.step = step - 1, .seed = (uint64_t)schedule->job->seed};
    at.epoch = at.step / schedule->epoch_steps;
    at.position = at.step % schedule->epoch_steps * (uint64_t)schedule->full_batch;
    return at;
}

/* The digest that the step should have; marks its samples. */
static uint64_t digest_of(checker *c, const tdm_position *at)
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
            complain(c, "the sampler gives sample %llu a second time in epoch %llu",
                     (unsigned long long)index, (unsigned long long)at->epoch);
        else
            c->seen[index / 64] |= bit;
        digest += tdm__ledger_mix(at->epoch, index);
    }
    return digest;
}

/* A step in its place: is it what the job has there? */
static bool step_is_right(checker *c, const tdm__ledger_line *line)
{
    tdm_position at = position_before(&c->schedule, line->step);
    uint64_t count = (uint64_t)tdm__train_schedule_batch(&c->schedule, &at);
    uint64_t digest = digest_of(c, &at);
    unsigned long long step = line->step;
    if (line->epoch != at.epoch || line->position != at.position) {
        complain(c, "step %llu began at sample %llu of epoch %llu, not at %llu of epoch %llu", step,
                 (unsigned long long)line->position, (unsigned long long)line->epoch,
                 (unsigned long long)at.position, (unsigned long long)at.epoch);
        return false;
    }
    if (line->count != count) {
        complain(c, "step %llu has trained %llu samples, not %llu", step,
                 (unsigned long long)line->count, (unsigned long long)count);
        return false;
    }
    if (line->digest != digest) {
        complain(c, "step %llu has trained other samples than samples %llu to %llu of epoch %llu",
                 step, (unsigned long long)at.position,
                 (unsigned long long)(at.position + count - 1), (unsigned long long)at.epoch);
        return false;
    }
    return true;
}

static void check_line(checker *c, const char *text, size_t length)
{
    tdm_ledger_report *r = c->report;
    tdm__ledger_line line;
    c->line++;
    bool whole = tdm__ledger_read(text, length, c->line_arena, &line);
    tdm_arena_reset(c->line_arena);
    if (!whole) {
        complain(c, "line %llu is not one of a ledger", (unsigned long long)c->line);
        return;
    }
    if (r->first_step == 0) r->first_step = c->expected_step = line.step;
    if (line.step < c->expected_step) {
        complain(c, "step %llu is there again, in line %llu", (unsigned long long)line.step,
                 (unsigned long long)c->line);
        return;
    }
    if (line.step == c->expected_step + 1)
        complain(c, "step %llu is missing", (unsigned long long)c->expected_step);
    else if (line.step > c->expected_step)
        complain(c, "steps %llu to %llu are missing", (unsigned long long)c->expected_step,
                 (unsigned long long)line.step - 1);
    c->expected_step = line.step + 1;
    r->last_step = line.step;
    if (step_is_right(c, &line)) r->step_count++;
}

/* The step of the newest checkpoint, by its name; 0: there is none. */
static tdm_status newest_step(const char *run, tdm_arena *arena, uint64_t *out, tdm_error *err)
{
    char *dir = tdm_path_join(arena, run, "checkpoints");
    const char *const *names = NULL;
    size_t count = 0;
    *out = 0;
    if (!dir) return tdm_fail(err, TDM_ERR_NO_MEMORY, "ledger: no memory");
    if (!tdm_path_is_dir(dir)) return TDM_OK;
    TDM_TRY(tdm_dir_list(dir, arena, &names, &count, err));
    for (size_t i = 0; i < count; i++) {
        uint64_t step;
        if (tdm_checkpoint_step_of(names[i], &step) && step > *out) *out = step;
    }
    return TDM_OK;
}

/* Epochs of which the first and the last step are there, and what is left over of the last one. */
static void sum_up(checker *c)
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

static tdm_status read_ledger(checker *c, const char *path, tdm_error *err)
{
    tdm_file_bytes bytes;
    TDM_TRY(tdm_file_read(path, LEDGER_LIMIT_BYTES, &bytes, err));
    const char *at = (const char *)bytes.data, *end = at + bytes.count;
    while (at && at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        if (!newline) { /* the run was killed, and has not gone on since */
            c->report->torn = true;
            break;
        }
        check_line(c, at, (size_t)(newline - at));
        at = newline + 1;
    }
    tdm_file_bytes_release(&bytes);
    return TDM_OK;
}

static tdm_status check(checker *c, const tdm_job *job, const char *run, tdm_error *err)
{
    uint64_t newest;
    c->arena = tdm_arena_create("ledger");
    c->line_arena = tdm_arena_create("line of a ledger");
    char *path = c->arena ? tdm_path_join(c->arena, run, TDM__LEDGER_NAME) : NULL;
    if (!path || !c->line_arena) return tdm_fail(err, TDM_ERR_NO_MEMORY, "ledger: no memory");
    if (!tdm_path_is_file(path))
        return tdm_fail(err, TDM_ERR_NOT_FOUND,
                        "%s: this run keeps no ledger; set checkpoint.ledger: true before training",
                        run);
    TDM_TRY(tdm__train_schedule_init(job, &c->schedule, err));
    c->seen_words = (size_t)(c->schedule.sampler.sample_count / 64 + 1);
    c->seen = tdm_arena_array(c->arena, c->seen_words, sizeof(*c->seen));
    if (!c->seen) return tdm_fail(err, TDM_ERR_NO_MEMORY, "ledger: no memory");
    /* Checkpoints first: where training goes on meanwhile, lines come before them. */
    TDM_TRY(newest_step(run, c->arena, &newest, err));
    TDM_TRY(read_ledger(c, path, err));
    if (newest > c->report->last_step)
        complain(c, "the ledger ends with step %llu, but there is a checkpoint of step %llu",
                 (unsigned long long)c->report->last_step, (unsigned long long)newest);
    sum_up(c);
    return TDM_OK;
}

tdm_status tdm_ledger_check(const tdm_job *job, const char *run, tdm_ledger_report *out,
                            tdm_error *err)
{
    tdm_ledger_report report = {.step_count = 0};
    checker c = {.report = &report, .seen_epoch = UINT64_MAX};
    tdm_status status = check(&c, job, run, err);
    tdm__train_schedule_release(&c.schedule);
    tdm_arena_destroy(c.line_arena);
    tdm_arena_destroy(c.arena);
    if (status == TDM_OK) *out = report;
    return status;
}
