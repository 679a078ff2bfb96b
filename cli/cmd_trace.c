/*
 * cmd_trace.c: `tandem trace`: prints the last events of the ranks of a run, which rank waits for which,
 * and the cause; also while the ranks run, and after they were killed.
 */
#include "model.h"

#include <tandem/os.h>
#include <tandem/trace.h>

#include <string.h>

enum { EVENTS_SHOWN = 10 };

/* ---- the command ----------------------------------------------------------------------------------- */

static int write_chrome(const tdm_trace *trace, const char *path)
{
    tdm_str text = TDM_STR_INIT;
    tdm_trace_chrome(trace, &text);
    tdm_str_add_char(&text, '\n');
    if (strcmp(path, "-") == 0) return cli_print(&text);
    tdm_error err;
    int code = CLI_OK;
    if (!tdm_str_ok(&text)) {
        cli_error("trace: out of memory for the Chrome trace");
        code = CLI_FAILED;
    } else if (tdm_file_replace(path, text.data, text.length, &err) != TDM_OK) {
        code = cli_fail(&err);
    }
    tdm_str_release(&text);
    return code;
}

static int show_trace(const tdm_trace *trace, const tdm_trace_show_options *options,
                      const cli_args *args)
{
    const char *chrome = cli_value(args, "chrome");
    tdm_str out = TDM_STR_INIT;
    tdm_error err;
    if (tdm_trace_show(trace, options, &out, &err) != TDM_OK) {
        tdm_str_release(&out);
        cli_error("trace: %s: %s", args->arguments[0], err.message);
        return CLI_FAILED;
    }
    if (!chrome) return cli_print(&out);
    tdm_str_release(&out);
    return write_chrome(trace, chrome);
}

static int trace_run(const cli_args *args)
{
    bool json = cli_json(args);
    int64_t rank = -1, last = json ? TDM_TRACE_EVENTS : EVENTS_SHOWN;
    if (!cli_int(args, "rank", 0, TDM_MAX_RANKS - 1, &rank) ||
        !cli_int(args, "last", 0, TDM_TRACE_EVENTS, &last))
        return CLI_USAGE;
    cli_show_warnings();
    tdm_trace *trace = NULL;
    tdm_error err;
    tdm_status status = tdm_trace_open(args->arguments[0], &trace, &err);
    if (status != TDM_OK) {
        int failed = cli_fail(&err);
        return status == TDM_ERR_NOT_FOUND ? CLI_USAGE : failed;
    }
    tdm_trace_show_options options = {.rank = (int)rank, .last = (size_t)last, .json = json};
    int code = show_trace(trace, &options, args);
    tdm_trace_close(trace);
    return code;
}

static const char *const usage[] = {
    "tandem trace RUN [--rank R] [--last N] [--json] [--chrome FILE]", NULL};
static const char *const examples[] = {
    "tandem trace runs/try",
    "the last events of each rank, and which rank waits for which",
    "tandem trace runs/try --rank 2 --last 100",
    "the last 100 events of rank 2",
    "tandem trace runs/try --chrome trace.json",
    "a timeline for chrome://tracing or ui.perfetto.dev",
    NULL};

const cli_command cli_trace = {
    .name = "trace",
    .summary = "Show the last events of the ranks of a run, and which rank waits for which",
    .usage = usage,
    .help =
        "Each rank records its last 4,096 events in a file of the directory that 'tandem run --run' "
        "names; the file survives if the rank is killed. RUN is that directory, or the directory with "
        "the files. It can be read while the ranks run. Without '--run', and with 'tandem train -n', "
        "the files are kept only if a rank fails; the error message contains their path.\n\n"
        "Ages are relative to the current time if a rank still runs on this machine, otherwise to the "
        "newest event. Ranks of one machine are aligned by its monotonic clock, ranks of different "
        "machines by the wall clock. The last lines show which rank waits for which in which call, "
        "and the culprit: the rank that the others wait for.",
    .examples = examples,
    .min_arguments = 1,
    .max_arguments = 1,
    .options = {{.name = "rank", .letter = 'r', .value = "R", .help = "Show only this rank."},
                {.name = "last",
                 .letter = 'l',
                 .value = "N",
                 .help = "Show the last N events of each rank. Default: 10; with --json, all."},
                {.name = "chrome",
                 .value = "FILE",
                 .help =
                     "Write all events as Chrome trace JSON to FILE (- for standard output): one "
                     "process for each rank, calls and waits as bars, messages as arrows."},
                CLI_OPTION_JSON},
    .run = trace_run,
};
