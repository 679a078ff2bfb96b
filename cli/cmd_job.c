/*
 * cmd_job.c: `tandem job`: checks a job file, shows it with all defaults, lists the keys of job files.
 */
#include "cli.h"

#include <string.h>

#include <tandem/nn.h>

static void put_problems(tdm_json_writer *w, const char *key, tdm_job_problems problems)
{
    tdm_json_key(w, key);
    tdm_json_array_begin(w);
    for (size_t i = 0; i < problems.count; i++) {
        tdm_json_object_begin(w);
        tdm_json_put_string(w, "file", problems.items[i].file);
        tdm_json_put_int(w, "line", problems.items[i].line);
        tdm_json_put_int(w, "column", problems.items[i].column);
        tdm_json_put_string(w, "message", problems.items[i].message);
        tdm_json_object_end(w);
    }
    tdm_json_array_end(w);
}

/* Prints the problems and warnings as JSON. */
static int check_json(const cli_args *args, const char *path)
{
    tdm_job_options options = {.overrides = args->sets, .override_count = (size_t)args->set_count};
    tdm_job_document *document = NULL;
    tdm_error err;
    tdm_status status = tdm_job_load(path, &options, &document, &err);
    tdm_job_problems problems = {0}, warnings = {0};
    if (document) problems = tdm_job_document_problems(document);
    if (document) warnings = tdm_job_document_warnings(document);
    if (status == TDM_OK) status = tdm_model_check(tdm_job_document_job(document), &err);
    tdm_str out = TDM_STR_INIT;
    tdm_json_writer w = tdm_json_writer_init(&out, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_string(&w, "file", path);
    tdm_json_put_bool(&w, "ok", status == TDM_OK);
    if (status != TDM_OK && problems.count == 0) tdm_json_put_string(&w, "error", err.message);
    put_problems(&w, "problems", problems);
    put_problems(&w, "warnings", warnings);
    tdm_json_object_end(&w);
    tdm_str_add_char(&out, '\n');
    tdm_job_document_destroy(document);
    int code = cli_print(&out);
    return status == TDM_OK ? code : CLI_USAGE;
}

static int run_check(const cli_args *args, const char *path)
{
    if (cli_json(args)) return check_json(args, path);
    int code;
    tdm_job_document *document = cli_load_job(args, path, &code);
    if (!document) return code;
    tdm_str out = TDM_STR_INIT;
    tdm_error err;
    bool ok = tdm_model_check(tdm_job_document_job(document), &err) == TDM_OK;
    if (ok)
        tdm_str_addf(&out, "%s: the job '%s' is valid\n", path,
                     tdm_job_document_job(document)->name);
    tdm_job_document_destroy(document);
    return ok ? cli_print(&out) : cli_fail(&err);
}

static int run_show(const cli_args *args, const char *path)
{
    int code;
    tdm_job_document *document = cli_load_job(args, path, &code);
    if (!document) return code;
    tdm_str out = TDM_STR_INIT;
    if (cli_json(args))
        tdm_job_show_json(tdm_job_document_job(document), &out);
    else
        tdm_job_show(tdm_job_document_job(document), &out);
    tdm_job_document_destroy(document);
    return cli_print(&out);
}

static const char *key_path(size_t index, const void *user)
{
    (void)user;
    return tdm_job_key_at(index)->path;
}

static int run_keys(const cli_args *args, const char *prefix)
{
    tdm_str out = TDM_STR_INIT;
    tdm_job_keys_format format = cli_has(args, "markdown") ? TDM_JOB_KEYS_MARKDOWN
                                 : cli_json(args)          ? TDM_JOB_KEYS_JSON
                                                           : TDM_JOB_KEYS_TEXT;
    size_t count = tdm_job_keys(format, prefix, &out);
    if (count > 0) return cli_print(&out);
    tdm_str_release(&out);
    const char *near = tdm_text_nearest(prefix, tdm_job_key_count(), key_path, NULL);
    if (near)
        cli_error("job keys: no key begins with '%s'; did you mean '%s'?", prefix, near);
    else
        cli_error("job keys: no key begins with '%s'; 'tandem job keys' lists all", prefix);
    return CLI_USAGE;
}

static int job_run(const cli_args *args)
{
    const char *what = args->arguments[0], *argument = args->arguments[1];
    if (strcmp(what, "keys") == 0) return run_keys(args, argument ? argument : "");
    bool check = strcmp(what, "check") == 0;
    if (!check && strcmp(what, "show") != 0) {
        cli_error("job: unknown subcommand '%s'; use 'check', 'show' or 'keys'", what);
        return CLI_USAGE;
    }
    if (!argument) {
        cli_error("job %s: FILE is missing; usage: tandem job %s FILE", what, what);
        return CLI_USAGE;
    }
    return check ? run_check(args, argument) : run_show(args, argument);
}

static const char *const usage[] = {"tandem job check FILE [--set KEY=VALUE] [--json]",
                                    "tandem job show FILE [--set KEY=VALUE] [--json]",
                                    "tandem job keys [PREFIX] [--json | --markdown]", NULL};
static const char *const examples[] = {"tandem job check job.yaml",
                                       "print all problems of the file",
                                       "tandem job show job.yaml --set train.batch=128",
                                       "the job as it would run, including defaults",
                                       "tandem job keys optim",
                                       "the keys of the optimiser",
                                       NULL};
static const char *const subcommands[] = {"check", "show", "keys", NULL};

const cli_command cli_job = {
    .name = "job",
    .summary = "Check a job file, show it with all defaults, list all keys",
    .usage = usage,
    .help = "'check' reads a job file and prints every problem in it, each with file, line and "
            "column. 'show' prints the job as it would run, with all keys, including defaults, and "
            "absolute paths; the output is a valid job file. 'keys' prints the reference of all "
            "keys, or of those that begin with PREFIX.",
    .examples = examples,
    .subcommands = subcommands,
    .min_arguments = 1,
    .max_arguments = 2,
    .options = {CLI_OPTION_SET,
                CLI_OPTION_JSON,
                {.name = "markdown", .help = "keys: print the page docs/job-file.md."}},
    .run = job_run,
};
