/*
 * ledger_test.c: a ledger as training writes it, and the result of the check for damaged ones: every kind of
 * damage must be found and named.
 *
 * Lines are made with the job's order of samples, as lanes would: sample by sample, in parts, in any order.
 * Everything is written below one temporary directory, which is removed at the end.
 */
#include "check.h"
#include "os/os.h"
#include "train/internal.h"
#include "train/ledger.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

enum { SAMPLES = 60, TRAINED = 48, STEPS = 12, LINE_BYTES = 256 };

static const char *directory;
static tdm_job_document *document;
static tdm__train_schedule schedule;
static char run[64], ledger_path[96];

/* 48 of 60 samples are trained, in batches of 14: 14 14 14 6, three times. */
static const char job_text[] = "name: unit\nseed: 3\n"
                               "data: {train: data.csv, test_fraction: 0.2}\n"
                               "model: {hidden: [8]}\n"
                               "train: {batch: 14, epochs: 3}\n";

static tdm__ledger_line line_of(uint64_t step)
{
    tdm_position at = {.seed = 3};
    while (at.step + 1 < step) tdm__train_schedule_advance(&schedule, &at);
    tdm__ledger_line line = {.step = step,
                             .epoch = at.epoch,
                             .position = at.position,
                             .count = (uint64_t)tdm__train_schedule_batch(&schedule, &at)};
    for (int64_t row = (int64_t)line.count - 1; row >= 0; row--) /* any order is valid */
        line.digest += tdm__ledger_mix(at.epoch,
                                       (uint64_t)tdm__train_schedule_sample(&schedule, &at, row));
    return line;
}

static void put_steps(uint64_t from, uint64_t first, uint64_t last)
{
    tdm__lines ledger;
    tdm_error err = {0};
    CHECK_INT(tdm__lines_open(run, &tdm__ledger_format, from, &ledger, &err), TDM_OK);
    for (uint64_t step = first; step <= last; step++) {
        tdm__ledger_line line = line_of(step);
        tdm__lines_put(&ledger, &line);
    }
    CHECK(ledger.complete);
    tdm__lines_sync(&ledger);
    tdm__lines_close(&ledger);
}

static tdm_ledger_report check_ledger(void)
{
    tdm_ledger_report report = {.problem_count = UINT64_MAX};
    tdm_error err = {0};
    CHECK_INT(tdm_ledger_check(tdm_job_document_job(document), run, &report, &err), TDM_OK);
    return report;
}

/* The text of the ledger, and back. */
static char *slurp(void)
{
    tdm_file_bytes bytes;
    CHECK_INT(tdm_file_read(ledger_path, 0, &bytes, NULL), TDM_OK);
    char *text = calloc(bytes.count + 1, 1);
    if (text) memcpy(text, bytes.data, bytes.count);
    tdm_file_bytes_release(&bytes);
    return text;
}

static void spill(const char *text)
{
    CHECK_INT(tdm_file_replace(ledger_path, text, strlen(text), NULL), TDM_OK);
}

/* The start of a line of the text, counted from 1. */
static char *line_at(char *text, int number)
{
    while (--number > 0) text = strchr(text, '\n') + 1;
    return text;
}

/* ---- good ones ------------------------------------------------------------------------------- */

static void complete_runs_are_verified(void)
{
    put_steps(0, 1, STEPS);
    tdm_ledger_report r = check_ledger();
    CHECK_INT(r.problem_count, 0);
    CHECK_INT(r.first_step, 1);
    CHECK_INT(r.last_step, STEPS);
    CHECK_INT(r.step_count, STEPS);
    CHECK_INT(r.first_epoch, 0);
    CHECK_INT(r.epoch_count, 3);
    CHECK_INT(r.left_over_steps, 0);
    CHECK_INT(r.samples_of_epoch, TRAINED);
    CHECK_INT(r.samples_of_data, TRAINED);
    CHECK(!r.torn);
}

static void going_back_drops_later_lines(void)
{
    put_steps(0, 1, 10);
    put_steps(5, 6, 7); /* from a checkpoint of step 5 */
    tdm_ledger_report r = check_ledger();
    CHECK_INT(r.problem_count, 0);
    CHECK_INT(r.last_step, 7);
    CHECK_INT(r.epoch_count, 1);
    CHECK_INT(r.left_over_steps, 3);
}

/* The rank that takes over writes the line of the last step again: the two lines count once. */
static void the_last_line_may_come_twice(void)
{
    put_steps(0, 1, 6);
    put_steps(6, 6, 8);
    put_steps(9, 9, STEPS); /* and its writer died before the line of step 9 */
    tdm_ledger_report r = check_ledger();
    CHECK_INT(r.problem_count, 0);
    CHECK_INT(r.step_count, STEPS);
}

static void a_torn_line_does_not_count(void)
{
    put_steps(0, 1, 6);
    char *text = slurp();
    text[strlen(text) - 20] = '\0';
    spill(text);
    free(text);
    tdm_ledger_report r = check_ledger();
    CHECK(r.torn);
    CHECK_INT(r.problem_count, 0);
    CHECK_INT(r.last_step, 5);
    put_steps(6, 6, STEPS);
    r = check_ledger();
    CHECK(!r.torn);
    CHECK_INT(r.problem_count, 0);
    CHECK_INT(r.step_count, STEPS);
}

/* A rank of an old epoch has the old file open. */
static void old_writers_write_elsewhere(void)
{
    tdm__lines old;
    put_steps(0, 1, 4);
    CHECK_INT(tdm__lines_open(run, &tdm__ledger_format, 4, &old, NULL), TDM_OK);
    put_steps(4, 5, 6);
    tdm__ledger_line line = line_of(5);
    line.digest++;
    tdm__lines_put(&old, &line);
    tdm__lines_close(&old);
    tdm_ledger_report r = check_ledger();
    CHECK_INT(r.problem_count, 0);
    CHECK_INT(r.last_step, 6);
}

/* Lines that a full disk rejected were in the memory of the previous rank 0. */
static void missing_lines_are_restored_from_memory(void)
{
    tdm__lines ledger;
    tdm__ledger_line *recent = calloc(TDM__LINES_RECENT, sizeof(*recent));
    CHECK(recent);
    for (uint64_t step = 3; step <= STEPS && recent; step++) recent[step] = line_of(step);
    put_steps(0, 1, 4);
    CHECK_INT(tdm__lines_open(run, &tdm__ledger_format, STEPS, &ledger, NULL), TDM_OK);
    tdm__lines_fill(&ledger, recent, STEPS);
    CHECK_INT(ledger.last_number, STEPS);
    tdm__lines_close(&ledger);
    tdm_ledger_report r = check_ledger();
    CHECK_INT(r.problem_count, 0);
    CHECK_INT(r.last_step, STEPS);

    put_steps(0, 1, 1); /* it does not have step 2, which stays a gap */
    CHECK_INT(tdm__lines_open(run, &tdm__ledger_format, STEPS, &ledger, NULL), TDM_OK);
    tdm__lines_fill(&ledger, recent, STEPS);
    tdm__lines_fill(&ledger, NULL, STEPS);
    tdm__lines_close(&ledger);
    CHECK_INT(check_ledger().problem_count, 1);
    free(recent);
}

static void a_ledger_may_begin_later(void)
{
    put_steps(0, 1, 0);
    CHECK_INT(check_ledger().last_step, 0);
    put_steps(0, 3, STEPS);
    tdm_ledger_report r = check_ledger();
    CHECK_INT(r.problem_count, 0);
    CHECK_INT(r.first_step, 3);
    CHECK_INT(r.first_epoch, 1);
    CHECK_INT(r.epoch_count, 2);
}

/* ---- bad ones -------------------------------------------------------------------------------- */

static void expect_problem(const char *words, uint64_t count)
{
    tdm_ledger_report r = check_ledger();
    CHECK_INT(r.problem_count, count);
    CHECK_HAS(r.problems[0], words);
}

static void missing_and_repeated_steps_are_named(void)
{
    put_steps(0, 1, STEPS);
    char *text = slurp();
    char *third = line_at(text, 3), *fourth = line_at(text, 4);
    memmove(third, fourth, strlen(fourth) + 1);
    spill(text);
    expect_problem("step 3 is missing", 1);
    free(text);

    put_steps(2, 6, STEPS);
    expect_problem("steps 3 to 5 are missing", 1);

    put_steps(0, 1, STEPS);
    text = slurp();
    tdm_str more = TDM_STR_INIT;
    tdm_str_add(&more, text);
    tdm_str_add(&more, line_at(text, STEPS));
    spill(tdm_str_text(&more));
    expect_problem("step 12 is repeated in line 13", 1);
    tdm_str_release(&more);
    free(text);
}

/* A lane that read another sample, the same one twice, or none: the digest differs. */
static void other_samples_are_found(void)
{
    for (int kind = 0; kind < 3; kind++) {
        tdm__lines ledger;
        put_steps(0, 1, 4);
        CHECK_INT(tdm__lines_open(run, &tdm__ledger_format, 4, &ledger, NULL), TDM_OK);
        tdm__ledger_line line = line_of(5);
        tdm_position at = {.epoch = 1};
        uint64_t first = tdm__ledger_mix(1,
                                         (uint64_t)tdm__train_schedule_sample(&schedule, &at, 0));
        uint64_t second = tdm__ledger_mix(1,
                                          (uint64_t)tdm__train_schedule_sample(&schedule, &at, 1));
        if (kind == 0) line.digest -= first;
        if (kind == 1) line.digest += second - first;
        if (kind == 2) line.digest += second;
        tdm__lines_put(&ledger, &line);
        tdm__lines_close(&ledger);
        expect_problem("step 5 trained samples other than 0 to 13 of epoch 1", 1);
    }
}

static void other_places_are_found(void)
{
    static const struct {
        const char *from, *to, *words;
    } cases[] = {
        {"\"position\":14", "\"position\":15", "step 2 began at sample 15 of epoch 0, not at 14"},
        {"\"epoch\":1", "\"epoch\":2", "step 5 began at sample 0 of epoch 2, not at 0 of epoch 1"},
        {"\"count\":6", "\"count\":7", "step 4 trained 7 samples, not 6"},
        {"\"step\":3,", "\"stop\":3,", "line 3 is not a valid ledger line"},
        {"\"digest\":\"", "\"digest\":\"x", "line 1 is not a valid ledger line"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        put_steps(0, 1, STEPS);
        char *text = slurp(), *at = strstr(text, cases[i].from);
        CHECK(at != NULL);
        tdm_str changed = TDM_STR_INIT;
        tdm_str_add_bytes(&changed, text, (size_t)(at - text));
        tdm_str_add(&changed, cases[i].to);
        tdm_str_add(&changed, at + strlen(cases[i].from));
        spill(tdm_str_text(&changed));
        tdm_ledger_report r = check_ledger();
        CHECK(r.problem_count >= 1);
        CHECK_HAS(r.problems[0], cases[i].words);
        tdm_str_release(&changed);
        free(text);
    }
}

static void a_ledger_behind_the_checkpoints_is_found(void)
{
    char path[160];
    put_steps(0, 1, 4);
    snprintf(path, sizeof(path), "%s/checkpoints", run);
    CHECK_INT(tdm_dir_make(path, NULL), TDM_OK);
    snprintf(path, sizeof(path), "%s/checkpoints/step-000000000006.safetensors", run);
    CHECK_INT(tdm_file_replace(path, "", 0, NULL), TDM_OK);
    expect_problem("ends with step 4, but there is a checkpoint of step 6", 1);
    remove(path);
}

/* Many problems are counted, and the first ones reported; bytes that are not text have no effect. */
static void garbage_is_reported(void)
{
    char text[4 * TDM_LEDGER_PROBLEMS + 1];
    for (size_t i = 0; i + 4 < sizeof(text); i += 2) memcpy(text + i, "\xff\n", 2);
    text[sizeof(text) - 5] = '\0';
    spill(text);
    tdm_ledger_report r = check_ledger();
    CHECK(r.problem_count > TDM_LEDGER_PROBLEMS);
    CHECK_HAS(r.problems[TDM_LEDGER_PROBLEMS - 1], "is not a valid ledger line");
    put_steps(12, 1, 3); /* which also drops all of them */
    CHECK_INT(check_ledger().problem_count, 0);
    spill("{\"step\":18446744073709551615,\"epoch\":0,\"position\":0,\"count\":1,"
          "\"digest\":\"0000000000000000\"}\n");
    CHECK(check_ledger().problem_count > 0);
}

static void a_missing_ledger_names_the_key_to_set(void)
{
    tdm_ledger_report report;
    tdm_error err = {0};
    remove(ledger_path);
    CHECK_INT(tdm_ledger_check(tdm_job_document_job(document), run, &report, &err),
              TDM_ERR_NOT_FOUND);
    CHECK_HAS(err.message, "checkpoint.ledger");
}

/* A full disk loses lines; this is reported once, and the check finds the gap. */
static void on_log(const tdm_log_record *record, void *user)
{
    if (record->level == TDM_LOG_WARN) ++*(int *)user;
}

static void a_full_disk_is_reported_once(void)
{
    int warnings = 0, full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    if (full < 0) return;
    tdm__lines ledger = {
        .format = &tdm__ledger_format, .fd = full, .complete = true, .path = "ledger"};
    tdm__ledger_line line = line_of(1);
    CHECK_INT(tdm_log_add_sink(on_log, &warnings, TDM_LOG_WARN), TDM_OK);
    tdm__lines_put(&ledger, &line);
    line = line_of(2);
    tdm__lines_put(&ledger, &line);
    tdm__lines_put(&ledger, &line);
    CHECK(ledger.complete); /* nothing is lost yet */
    CHECK_INT(ledger.waiting_count, 2);
    CHECK_INT(warnings, 1);
    tdm__lines_close(&ledger);
    tdm_log_remove_sink(on_log, &warnings);
    CHECK_INT(warnings, 2); /* now they are lost */
}

/* Lines that the disk rejects for a while are in the file at the end, in order. */
static void a_temporary_error_leaves_no_gap(void)
{
    int warnings = 0, full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    tdm__lines ledger;
    tdm_error err = {0};
    if (full < 0) return;
    remove(ledger_path);
    CHECK_INT(tdm__lines_open(run, &tdm__ledger_format, 0, &ledger, &err), TDM_OK);
    CHECK_INT(tdm_log_add_sink(on_log, &warnings, TDM_LOG_WARN), TDM_OK);
    int good = ledger.fd;
    for (uint64_t step = 1; step <= schedule.step_count; step++) {
        tdm__ledger_line line = line_of(step);
        ledger.fd = step >= 3 && step < 8 ? full : good;
        tdm__lines_put(&ledger, &line);
    }
    tdm__lines_sync(&ledger);
    tdm_log_remove_sink(on_log, &warnings);
    CHECK(ledger.complete);
    CHECK_INT(warnings, 1);
    tdm__lines_close(&ledger);
    close(full);
    CHECK_INT(check_ledger().problem_count, 0);
}

/* A sync that fails may have lost all lines since the previous one: these lines are written once more. (A
 * pipe accepts lines, and fails to sync them.) */
static void a_failed_sync_leaves_no_gap(void)
{
    int warnings = 0, ends[2];
    tdm__lines ledger;
    tdm_error err = {0};
    if (pipe(ends) != 0) return;
    remove(ledger_path);
    CHECK_INT(tdm__lines_open(run, &tdm__ledger_format, 0, &ledger, &err), TDM_OK);
    CHECK_INT(tdm_log_add_sink(on_log, &warnings, TDM_LOG_WARN), TDM_OK);
    int good = ledger.fd;
    for (uint64_t step = 1; step <= schedule.step_count; step++) {
        tdm__ledger_line line = line_of(step);
        ledger.fd = step >= 3 && step < 8 ? ends[1] : good;
        tdm__lines_put(&ledger, &line);
        if (step % 2 == 0) tdm__lines_sync(&ledger);
    }
    tdm_log_remove_sink(on_log, &warnings);
    CHECK(ledger.complete);
    CHECK_INT(warnings, 1);
    CHECK_INT(ledger.waiting_count, 0); /* the last line is synced as well */
    tdm__lines_close(&ledger);
    close(ends[0]);
    close(ends[1]);
    CHECK_INT(check_ledger().problem_count, 0);
}

/* ---- all of them ----------------------------------------------------------------------------- */

static const check_test tests[] = {
    CHECK_TEST(complete_runs_are_verified),
    CHECK_TEST(going_back_drops_later_lines),
    CHECK_TEST(the_last_line_may_come_twice),
    CHECK_TEST(a_torn_line_does_not_count),
    CHECK_TEST(old_writers_write_elsewhere),
    CHECK_TEST(missing_lines_are_restored_from_memory),
    CHECK_TEST(a_ledger_may_begin_later),
    CHECK_TEST(a_temporary_error_leaves_no_gap),
    CHECK_TEST(a_failed_sync_leaves_no_gap),
    CHECK_TEST(missing_and_repeated_steps_are_named),
    CHECK_TEST(other_samples_are_found),
    CHECK_TEST(other_places_are_found),
    CHECK_TEST(a_ledger_behind_the_checkpoints_is_found),
    CHECK_TEST(garbage_is_reported),
    CHECK_TEST(a_missing_ledger_names_the_key_to_set),
    CHECK_TEST(a_full_disk_is_reported_once),
};

int main(int argc, char **argv)
{
    char path[96];
    tdm_str data = TDM_STR_INIT;
    tdm_error err = {0};
    directory = check_dir();
    snprintf(run, sizeof(run), "%s/unit-1", directory);
    snprintf(ledger_path, sizeof(ledger_path), "%s/%s", run, TDM__LEDGER_NAME);
    snprintf(path, sizeof(path), "%s/data.csv", directory);
    for (int i = 0; i < SAMPLES; i++) tdm_str_addf(&data, "%d,%d,%d\n", i % 2, i, i * i % 7);
    CHECK_INT(tdm_file_replace(path, data.data, data.length, &err), TDM_OK);
    CHECK_INT(tdm_dir_make(run, &err), TDM_OK);
    CHECK_INT(
        tdm_job_parse(job_text, strlen(job_text), "job.yaml", directory, NULL, &document, &err),
        TDM_OK);
    int code = 1;
    if (document &&
        tdm__train_schedule_init(tdm_job_document_job(document), &schedule, &err) == TDM_OK)
        code = check_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
    else
        fprintf(stderr, "%s\n", err.message);
    tdm__train_schedule_release(&schedule);
    tdm_job_document_destroy(document);
    tdm_str_release(&data);
    return code;
}
