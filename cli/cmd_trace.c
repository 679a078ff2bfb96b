/*
 * cmd_trace.c: `tandem trace`: prints the last events of the ranks of a run, which rank waits for which,
 * and the cause; also while the ranks run, and after they were killed.
 */
#include "model.h"

#include <tandem/os.h>
#include <tandem/trace.h>

#include <string.h>

enum { EVENTS_SHOWN = 10 };

typedef struct view {
    const tdm_trace *trace;
    int64_t rank; /* -1: all */
    int64_t last; /* events of each */
} view;

static const char *state_of(const tdm_trace_rank *r)
{
    if (r->closed) return "closed";
    if (r->running) return "running";
    return r->here ? "killed or crashed" : "on another machine, or before the last reboot";
}

static double age_s(const view *v, const tdm_trace_rank *r, const tdm_trace_event *e)
{
    int64_t moment = (int64_t)e->time_ns + r->unix_offset_ns;
    return (double)(tdm_trace_reference_ns(v->trace) - moment) * 1e-9;
}

static size_t first_shown(const view *v, const tdm_trace_rank *r)
{
    return r->event_count > (size_t)v->last ? r->event_count - (size_t)v->last : 0;
}

static void show_rank(const view *v, const tdm_trace_rank *r, tdm_str *out)
{
    char events[32], lost[32];
    tdm_str_addf(out, "rank %d of %d", r->rank, r->size);
    if (r->host[0]) tdm_str_addf(out, " on %s", r->host);
    tdm_str_addf(out, ", process %lld", (long long)r->pid);
    if (r->transport[0]) tdm_str_addf(out, ", %s", r->transport);
    if (r->epoch > 0) tdm_str_addf(out, ", epoch %u", r->epoch);
    tdm_str_addf(out, ": %s; %s event%s", state_of(r), tdm_text_count(r->event_count, events),
                 r->event_count == 1 ? "" : "s");
    if (r->lost_count > 0)
        tdm_str_addf(out, ", %s older ones overwritten", tdm_text_count(r->lost_count, lost));
    tdm_str_add_char(out, '\n');
    for (size_t i = first_shown(v, r); i < r->event_count; i++) {
        tdm_str_addf(out, "%14.6f s ago  ", age_s(v, r, &r->events[i]));
        tdm_trace_event_text(&r->events[i], out);
        tdm_str_add_char(out, '\n');
    }
}

/* ---- JSON ------------------------------------------------------------------------------------------ */

/* Writes the name of a mark. It may have been cut within a character, so only printable ASCII is kept. */
static void put_mark(tdm_json_writer *w, const tdm_trace_event *e)
{
    char name[sizeof(e->text) + 1] = "";
    for (size_t i = 0; i < sizeof(e->text) && e->text[i]; i++)
        name[i] = e->text[i] > ' ' && e->text[i] < 0x7f ? e->text[i] : '?';
    tdm_json_put_string(w, "mark", name);
}

static void json_event(const view *v, const tdm_trace_rank *r, const tdm_trace_event *e,
                       tdm_json_writer *w)
{
    tdm_str text = TDM_STR_INIT;
    tdm_trace_event_text(e, &text);
    tdm_json_object_begin(w);
    tdm_json_put_double(w, "age_s", age_s(v, r, e));
    tdm_json_put_uint(w, "time_ns", e->time_ns);
    tdm_json_put_string(w, "kind", tdm_trace_kind_name(e->kind));
    if (e->call) {
        tdm_json_put_string(w, "call", tdm_call_kind_name(e->call));
        tdm_json_put_uint(w, "group", e->group);
        tdm_json_put_uint(w, "sequence", e->sequence);
        tdm_json_put_uint(w, "step", e->step);
    }
    if (e->peer >= 0) tdm_json_put_int(w, "peer", e->peer);
    if (e->bytes) tdm_json_put_uint(w, "bytes", e->bytes);
    if (e->detail) tdm_json_put_uint(w, "detail", e->detail);
    if (e->kind == TDM_TRACE_MARK) put_mark(w, e);
    if (e->status) tdm_json_put_string(w, "status", tdm_status_name((tdm_status)e->status));
    tdm_json_put_string(w, "text", tdm_str_text(&text));
    tdm_json_object_end(w);
    tdm_str_release(&text);
}

static void json_rank(const view *v, size_t index, tdm_json_writer *w)
{
    const tdm_trace_rank *r = tdm_trace_rank_at(v->trace, index);
    tdm_trace_stand stand;
    tdm_trace_stand_of(v->trace, index, &stand);
    tdm_json_object_begin(w);
    tdm_json_put_int(w, "rank", r->rank);
    tdm_json_put_int(w, "size", r->size);
    tdm_json_put_uint(w, "epoch", r->epoch);
    tdm_json_put_int(w, "pid", r->pid);
    tdm_json_put_string(w, "host", r->host);
    tdm_json_put_string(w, "transport", r->transport);
    tdm_json_put_bool(w, "closed", r->closed);
    tdm_json_put_bool(w, "running", r->running);
    tdm_json_put_string(w, "state", state_of(r));
    tdm_json_put_uint(w, "lost_events", r->lost_count);
    tdm_json_put_bool(w, "in_call", stand.in_call);
    tdm_json_key(w, "waits_for");
    tdm_json_array_begin(w);
    for (int i = 0; i < stand.wait_count; i++) tdm_json_int(w, stand.waits_for[i]);
    tdm_json_array_end(w);
    tdm_json_key(w, "events");
    tdm_json_array_begin(w);
    for (size_t i = first_shown(v, r); i < r->event_count; i++) json_event(v, r, &r->events[i], w);
    tdm_json_array_end(w);
    tdm_json_object_end(w);
}

static void json_summary(const tdm_trace *trace, tdm_json_writer *w)
{
    tdm_str text = TDM_STR_INIT;
    tdm_trace_summary(trace, &text);
    tdm_json_key(w, "summary");
    tdm_json_array_begin(w);
    char *line = text.data, *end;
    for (; line && (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        tdm_json_string(w, line);
    }
    tdm_json_array_end(w);
    if (!tdm_str_ok(&text)) w->out->failed = true;
    tdm_str_release(&text);
}

static void show_json(const view *v, tdm_str *out)
{
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    tdm_json_key(&w, "ranks");
    tdm_json_array_begin(&w);
    for (size_t i = 0; i < tdm_trace_rank_count(v->trace); i++)
        if (v->rank < 0 || tdm_trace_rank_at(v->trace, i)->rank == v->rank) json_rank(v, i, &w);
    tdm_json_array_end(&w);
    json_summary(v->trace, &w);
    tdm_json_object_end(&w);
    tdm_str_add_char(out, '\n');
}

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

static bool has_rank(const view *v)
{
    for (size_t i = 0; i < tdm_trace_rank_count(v->trace); i++)
        if (tdm_trace_rank_at(v->trace, i)->rank == v->rank) return true;
    return false;
}

static int show_trace(const view *v, const cli_args *args)
{
    if (v->rank >= 0 && !has_rank(v)) {
        cli_error("trace: %s: no trace of rank %lld", args->arguments[0], (long long)v->rank);
        return CLI_FAILED;
    }
    const char *chrome = cli_value(args, "chrome");
    if (chrome) return write_chrome(v->trace, chrome);
    tdm_str out = TDM_STR_INIT;
    if (cli_json(args)) {
        show_json(v, &out);
        return cli_print(&out);
    }
    for (size_t i = 0; i < tdm_trace_rank_count(v->trace); i++) {
        const tdm_trace_rank *r = tdm_trace_rank_at(v->trace, i);
        if (v->rank >= 0 && r->rank != v->rank) continue;
        show_rank(v, r, &out);
        tdm_str_add_char(&out, '\n');
    }
    tdm_trace_summary(v->trace, &out);
    return cli_print(&out);
}

static int trace_run(const cli_args *args)
{
    view v = {.rank = -1, .last = cli_json(args) ? TDM_TRACE_EVENTS : EVENTS_SHOWN};
    if (!cli_int(args, "rank", 0, TDM_MAX_RANKS - 1, &v.rank) ||
        !cli_int(args, "last", 0, TDM_TRACE_EVENTS, &v.last))
        return CLI_USAGE;
    cli_show_warnings();
    tdm_trace *trace = NULL;
    tdm_error err;
    tdm_status status = tdm_trace_open(args->arguments[0], &trace, &err);
    if (status != TDM_OK) {
        int failed = cli_fail(&err);
        return status == TDM_ERR_NOT_FOUND ? CLI_USAGE : failed;
    }
    v.trace = trace;
    int code = show_trace(&v, args);
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
