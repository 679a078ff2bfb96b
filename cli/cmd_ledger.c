/*
 * cmd_ledger.c: `tandem ledger`: verifies that every sample of every epoch was trained exactly once.
 *
 * The library compares the ledger with the job (tdm_ledger_check); this file prints the result.
 * docs/ledger.md describes what a ledger proves and what it does not.
 */
#include "model.h"

#include <tandem/os.h>

#include <inttypes.h>

static void samples_text(const tdm_ledger_report *r, tdm_str *out)
{
    if (r->samples_of_epoch == r->samples_of_data)
        tdm_str_addf(out, "each of %" PRIu64 " samples", r->samples_of_epoch);
    else
        tdm_str_addf(out, "%" PRIu64 " of %" PRIu64 " samples (data.last_batch: drop)",
                     r->samples_of_epoch, r->samples_of_data);
}

static void good_text(const tdm_ledger_report *r, tdm_str *out)
{
    uint64_t epochs = r->epoch_count, last = r->first_epoch + epochs - 1;
    if (r->first_step > 1)
        tdm_str_addf(out, "the ledger starts at step %" PRIu64 "\n", r->first_step);
    if (epochs == 1)
        tdm_str_addf(out, "epoch %" PRIu64 ": ", r->first_epoch);
    else if (epochs > 1)
        tdm_str_addf(out, "epochs %" PRIu64 " to %" PRIu64 ": ", r->first_epoch, last);
    if (epochs > 0) {
        samples_text(r, out);
        uint64_t steps = epochs * r->steps_of_epoch;
        tdm_str_addf(out, " trained exactly once%s (%" PRIu64 " step%s)\n",
                     epochs > 1 ? " in each" : "", steps, steps == 1 ? "" : "s");
    }
    if (r->last_step == 0)
        tdm_str_add(out, "no step has been trained yet\n");
    else if (r->left_over_steps > 0 && epochs > 0)
        tdm_str_addf(out,
                     "epoch %" PRIu64 ": no sample trained twice or skipped so far (%" PRIu64
                     " step%s)\n",
                     last + 1, r->left_over_steps, r->left_over_steps == 1 ? "" : "s");
    else if (epochs == 0)
        tdm_str_addf(out,
                     "no epoch is complete yet: no sample trained twice or skipped so far "
                     "(%" PRIu64 " step%s)\n",
                     r->step_count, r->step_count == 1 ? "" : "s");
}

static void problems_text(const tdm_ledger_report *r, tdm_str *out)
{
    uint64_t shown = r->problem_count < TDM_LEDGER_PROBLEMS ? r->problem_count
                                                            : TDM_LEDGER_PROBLEMS;
    tdm_str_addf(out, "WRONG: %" PRIu64 " problem%s in steps %" PRIu64 " to %" PRIu64 "\n",
                 r->problem_count, r->problem_count == 1 ? "" : "s", r->first_step, r->last_step);
    for (uint64_t i = 0; i < shown; i++) tdm_str_addf(out, "  %s\n", r->problems[i]);
    if (shown < r->problem_count)
        tdm_str_addf(out, "  and %" PRIu64 " more\n", r->problem_count - shown);
}

static void report_json(const tdm_ledger_report *r, tdm_str *out)
{
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_bool(&w, "exact", r->problem_count == 0);
    tdm_json_put_uint(&w, "first_step", r->first_step);
    tdm_json_put_uint(&w, "last_step", r->last_step);
    tdm_json_put_uint(&w, "steps", r->step_count);
    tdm_json_put_uint(&w, "first_epoch", r->first_epoch);
    tdm_json_put_uint(&w, "whole_epochs", r->epoch_count);
    tdm_json_put_uint(&w, "left_over_steps", r->left_over_steps);
    tdm_json_put_uint(&w, "samples_of_epoch", r->samples_of_epoch);
    tdm_json_put_uint(&w, "samples_of_data", r->samples_of_data);
    tdm_json_put_bool(&w, "torn", r->torn);
    tdm_json_put_uint(&w, "problem_count", r->problem_count);
    tdm_json_key(&w, "problems");
    tdm_json_array_begin(&w);
    for (uint64_t i = 0; i < r->problem_count && i < TDM_LEDGER_PROBLEMS; i++)
        tdm_json_string(&w, r->problems[i]);
    tdm_json_array_end(&w);
    tdm_json_object_end(&w);
    tdm_str_add_char(out, '\n');
}

static int ledger_check(const cli_args *args, const tdm_job *job)
{
    tdm_ledger_report report;
    tdm_error err = {0};
    if (tdm_ledger_check(job, args->arguments[0], &report, &err) != TDM_OK) return cli_fail(&err);
    tdm_str out = TDM_STR_INIT;
    bool good = report.problem_count == 0;
    if (cli_json(args))
        report_json(&report, &out);
    else if (good)
        good_text(&report, &out);
    else
        problems_text(&report, &out);
    if (!cli_json(args) && report.torn)
        tdm_str_add(&out, "the last line is incomplete, because its writer was killed, and is "
                          "ignored\n");
    int printed = cli_print(&out);
    return good ? printed : CLI_FAILED;
}

static int ledger_run(const cli_args *args)
{
    const char *directory = args->arguments[0];
    tdm_arena *arena = tdm_arena_create("command");
    char *path = arena ? tdm_path_join(arena, directory, "job.yaml") : NULL;
    int code = CLI_USAGE;
    tdm_job_document *document = NULL;
    cli_show_warnings();
    if (path && cli_check_run("ledger", directory) == CLI_OK)
        document = cli_load_job(args, path, &code);
    if (document) code = ledger_check(args, tdm_job_document_job(document));
    tdm_job_document_destroy(document);
    tdm_arena_destroy(arena);
    return code;
}

static const char *const usage[] = {"tandem ledger RUN [--json]", NULL};
static const char *const examples[] = {
    "tandem train job.yaml --set checkpoint.ledger=true", "write a ledger during training",
    "tandem ledger runs/digits-1", "verify that every sample was trained exactly once per epoch",
    NULL};

const cli_command cli_ledger = {
    .name = "ledger",
    .summary = "Verify from a run's ledger that every sample was trained exactly once",
    .usage = usage,
    .help =
        "A run with checkpoint.ledger: true records for each step which samples its lanes have read. "
        "This command compares the records with the job: each step must be present once, in order, "
        "with exactly the samples that the job defines for it, regardless of failures. It prints the "
        "number of verified epochs, or the problems of each step; with problems the exit code is 1. "
        "It does not change the run directory; the run may be finished, dead or in progress.",
    .examples = examples,
    .min_arguments = 1,
    .max_arguments = 1,
    .options = {CLI_OPTION_SET, CLI_OPTION_JSON},
    .run = ledger_run,
};
