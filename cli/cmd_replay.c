/*
 * cmd_replay.c: `tandem replay`: runs a step of a run again, lane by lane.
 *
 * The library does the work (tdm_replay); this file prints the progress, the results of each lane, the
 * gradient of each parameter, and whether they agree with the metrics of the run.
 */
#include "model.h"
#include "progress.h"
#include "table.h"

#include <tandem/os.h>
#include <tandem/parallel.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { TENSORS_SHOWN = 10, SAMPLES_SHOWN = 8, MAX_DUMPS = 256 };

typedef struct session {
    progress bar;
    bool silent;
} session;

static void on_event(const tdm_train_status *status, void *user)
{
    session *s = user;
    uint64_t steps = status->step_count - status->step;
    if (s->silent) return;
    if (status->event == TDM_TRAIN_EVENT_START) {
        if (status->checkpoint_path)
            fprintf(stderr, "from %s", cli_short_path(status->checkpoint_path));
        else
            fprintf(stderr, "from the beginning of %s", cli_short_path(status->run_path));
        fprintf(stderr, ": %" PRIu64 " step%s to train before this one\n", steps,
                steps == 1 ? "" : "s");
    } else if (status->event == TDM_TRAIN_EVENT_STEP) {
        progress_show(&s->bar, status, false);
    } else {
        progress_clear(&s->bar);
    }
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Adds the samples of a lane: the first few, or all. */
static void add_samples(const tdm_replay_result *r, const tdm_replay_lane *lane, bool all,
                        tdm_str *out)
{
    for (int64_t i = 0; i < lane->row_count; i++) {
        if (!all && i == SAMPLES_SHOWN) {
            tdm_str_addf(out, " ... (%lld)", (long long)lane->row_count);
            return;
        }
        tdm_str_addf(out, "%s%lld", i > 0 ? " " : "", (long long)r->samples[lane->first_row + i]);
    }
}

static void add_lanes(const tdm_replay_result *r, int64_t only, bool all, tdm_str *out)
{
    static const cli_column columns[] = {{"lane", true, 0},
                                         {"rows", false, 0},
                                         {"loss", true, 0},
                                         {"gradient norm", true, 0},
                                         {"samples", false, 0}};
    cli_table table;
    cli_table_init(&table, columns, 5);
    for (size_t i = 0; i < r->lane_count; i++) {
        const tdm_replay_lane *lane = &r->lanes[i];
        if (only >= 0 && lane->lane != only) continue;
        tdm_str samples = TDM_STR_INIT;
        add_samples(r, lane, all || only >= 0, &samples);
        cli_table_cell(&table, "%lld", (long long)lane->lane);
        cli_table_cell(&table, "%lld to %lld", (long long)lane->first_row,
                       (long long)(lane->first_row + lane->row_count - 1));
        cli_table_cell(&table, "%.6g", lane->loss);
        cli_table_cell(&table, "%.6g%s", lane->grad_norm, lane->finite ? "" : " (non-finite)");
        cli_table_cell(&table, "%s", tdm_str_text(&samples));
        tdm_str_release(&samples);
    }
    cli_table_print(&table, 2, out);
}

static void add_tensors(const tdm_replay_result *r, bool all, tdm_str *out)
{
    static const cli_column columns[] = {{"parameter", false, 60},
                                         {"shape", false, 0},
                                         {"gradient norm", true, 0},
                                         {"largest", true, 0}};
    size_t shown = all || r->tensor_count <= TENSORS_SHOWN ? r->tensor_count : TENSORS_SHOWN;
    cli_table table;
    cli_table_init(&table, columns, 4);
    for (size_t i = 0; i < shown; i++) {
        char shape[128];
        cli_table_cell(&table, "%s", r->tensors[i].name);
        cli_table_cell(&table, "%s", tdm_shape_text(&r->tensors[i].shape, shape));
        cli_table_cell(&table, "%.6g", r->tensors[i].grad_norm);
        cli_table_cell(&table, "%.6g", r->tensors[i].grad_largest);
    }
    tdm_str_add_char(out, '\n');
    cli_table_print(&table, 2, out);
    if (shown < r->tensor_count)
        tdm_str_addf(out, "  and %zu more; --all shows them\n", r->tensor_count - shown);
}

static void add_record(const tdm_replay_result *r, tdm_str *out)
{
    if (!r->recorded) {
        tdm_str_add(out, "recorded       no metrics for this step (run.log_every_steps)\n");
    } else if (r->agrees) {
        tdm_str_add(out, "recorded       the same\n");
    } else if (r->recorded_skipped) {
        tdm_str_add(out, "recorded       step skipped for non-finite numbers: NOT the same\n");
    } else {
        tdm_str_addf(out, "recorded       loss %.9g, learning rate %.9g", r->recorded_loss,
                     r->recorded_lr);
        if (!isnan(r->recorded_grad_norm))
            tdm_str_addf(out, ", gradient norm %.9g", r->recorded_grad_norm);
        tdm_str_add(out, ": NOT the same\n");
    }
}

static void result_text(const cli_args *args, const tdm_replay_result *r, int64_t only,
                        tdm_str *out)
{
    char time_text[32];
    tdm_str_addf(out,
                 "step           %" PRIu64 " of %" PRIu64 ", in epoch %" PRIu64 ", %lld rows in ",
                 r->step, r->step_count, r->epoch, (long long)r->batch);
    tdm_str_addf(out, "%lld lane%s\n", (long long)r->lanes_of_job, r->lanes_of_job == 1 ? "" : "s");
    if (r->checkpoint_path)
        tdm_str_addf(out, "from           %s", cli_short_path(r->checkpoint_path));
    else
        tdm_str_add(out, "from           the beginning");
    uint64_t steps = r->step - 1 - r->from_step;
    tdm_str_addf(out, ", %" PRIu64 " step%s later, in %s\n", steps, steps == 1 ? "" : "s",
                 tdm_text_duration(r->seconds, time_text));
    tdm_str_addf(out, "loss           %.9g\ngradient norm  %.9g, before clipping\n", r->loss,
                 r->grad_norm);
    tdm_str_addf(out, "learning rate  %.9g\n", r->lr);
    add_record(r, out);
    if (!r->finite)
        tdm_str_addf(out, "non-finite     %s\n",
                     r->bad_text ? r->bad_text
                                 : "not reproducible: check the memory of this machine");
    tdm_str_add_char(out, '\n');
    add_lanes(r, only, cli_has(args, "all"), out);
    add_tensors(r, cli_has(args, "all"), out);
    if (r->dump_count > 0)
        tdm_str_addf(out, "\n%zu tensor%s written to %s\n", r->dump_count,
                     r->dump_count == 1 ? "" : "s", cli_value(args, "out"));
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void lane_json(const tdm_replay_result *r, const tdm_replay_lane *lane, tdm_json_writer *w)
{
    tdm_json_object_begin(w);
    tdm_json_put_int(w, "lane", lane->lane);
    tdm_json_put_int(w, "first_row", lane->first_row);
    tdm_json_put_int(w, "rows", lane->row_count);
    tdm_json_put_double(w, "loss", lane->loss);
    tdm_json_put_double(w, "share", lane->share);
    tdm_json_put_double(w, "grad_norm", lane->grad_norm);
    tdm_json_put_bool(w, "finite", lane->finite);
    tdm_json_key(w, "samples");
    tdm_json_array_begin(w);
    for (int64_t i = 0; i < lane->row_count; i++) tdm_json_int(w, r->samples[lane->first_row + i]);
    tdm_json_array_end(w);
    tdm_json_object_end(w);
}

static void tensors_json(const tdm_replay_result *r, tdm_json_writer *w)
{
    tdm_json_key(w, "tensors");
    tdm_json_array_begin(w);
    for (size_t i = 0; i < r->tensor_count; i++) {
        tdm_json_object_begin(w);
        tdm_json_put_string(w, "name", r->tensors[i].name);
        tdm_json_put_double(w, "grad_norm", r->tensors[i].grad_norm);
        tdm_json_put_double(w, "grad_largest", r->tensors[i].grad_largest);
        tdm_json_object_end(w);
    }
    tdm_json_array_end(w);
}

static void result_json(const cli_args *args, const tdm_replay_result *r, int64_t only,
                        tdm_str *out)
{
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_uint(&w, "step", r->step);
    tdm_json_put_uint(&w, "epoch", r->epoch);
    tdm_json_put_uint(&w, "from_step", r->from_step);
    if (r->checkpoint_path) tdm_json_put_string(&w, "checkpoint", r->checkpoint_path);
    tdm_json_put_int(&w, "rows", r->batch);
    tdm_json_put_double(&w, "loss", r->loss);
    tdm_json_put_double(&w, "grad_norm", r->grad_norm);
    tdm_json_put_double(&w, "lr", r->lr);
    tdm_json_put_bool(&w, "finite", r->finite);
    if (r->bad_text) tdm_json_put_string(&w, "bad_numbers", r->bad_text);
    tdm_json_put_bool(&w, "recorded", r->recorded);
    if (r->recorded) {
        tdm_json_put_bool(&w, "agrees", r->agrees);
        tdm_json_put_double(&w, "recorded_loss", r->recorded_loss);
        tdm_json_put_double(&w, "recorded_lr", r->recorded_lr);
        tdm_json_put_double(&w, "recorded_grad_norm", r->recorded_grad_norm);
    }
    tdm_json_put_double(&w, "seconds", r->seconds);
    tdm_json_key(&w, "lanes");
    tdm_json_array_begin(&w);
    for (size_t i = 0; i < r->lane_count; i++)
        if (only < 0 || r->lanes[i].lane == only) lane_json(r, &r->lanes[i], &w);
    tdm_json_array_end(&w);
    tensors_json(r, &w);
    if (r->dump_count > 0) tdm_json_put_string(&w, "dumped", cli_value(args, "out"));
    tdm_json_object_end(&w);
    tdm_str_add_char(out, '\n');
}

/* ---- running --------------------------------------------------------------------------------- */

/* Splits the names of --dump at the commas. False after an error, which has been printed. */
static bool split_dumps(const cli_args *args, tdm_arena *arena, const char **names, size_t *count)
{
    const char *list = cli_value(args, "dump");
    *count = 0;
    if (!list && !cli_has(args, "out")) return true;
    if (!list || !cli_has(args, "out")) {
        cli_error("replay: --dump (the tensors) and --out (the file) must be given together");
        return false;
    }
    while (*list) {
        size_t length = strcspn(list, ",");
        if (length > 0) {
            if (*count == MAX_DUMPS) {
                cli_error("replay: --dump accepts at most %d names", MAX_DUMPS);
                return false;
            }
            names[(*count)++] = tdm_arena_strndup(arena, list, length);
        }
        list += length + (list[length] == ',');
    }
    if (*count == 0) cli_error("replay: --dump contains no name");
    return *count > 0;
}

static int replay_step(const cli_args *args, const tdm_job *job, const tdm_replay_options *asked,
                       int64_t only)
{
    int64_t lanes = tdm_lanes_of(job);
    if (only >= lanes) {
        cli_error("replay: lane %lld does not exist: the job has lanes 0 to %lld", (long long)only,
                  (long long)lanes - 1);
        return CLI_USAGE;
    }
    session s = {.silent = cli_json(args) || cli_has(args, "quiet")};
    progress_init(&s.bar, stderr, s.silent);
    tdm_replay_options options = *asked;
    options.on_event = on_event;
    options.user = &s;
    tdm_replay_result *result = NULL;
    tdm_error err = {0};
    tdm_status status = tdm_replay(job, &options, &result, &err);
    progress_clear(&s.bar);
    if (status != TDM_OK) return cli_fail(&err);
    tdm_str out = TDM_STR_INIT;
    if (cli_json(args))
        result_json(args, result, only, &out);
    else
        result_text(args, result, only, &out);
    tdm_replay_result_destroy(result);
    return cli_print(&out);
}

static int replay_run(const cli_args *args)
{
    const char *names[MAX_DUMPS];
    int64_t step = 0, only = -1, ranks = 1;
    if (!cli_has(args, "step")) {
        cli_error("replay: --step is missing; usage: %s", args->command->usage[0]);
        return CLI_USAGE;
    }
    if (!cli_int(args, "step", 1, INT64_MAX, &step) || !cli_int(args, "lane", 0, 65535, &only) ||
        !cli_int(args, "workers", 1, 1, &ranks))
        return CLI_USAGE;
    tdm_arena *arena = tdm_arena_create("command");
    if (!arena) {
        cli_error("replay: out of memory");
        return CLI_FAILED;
    }
    tdm_replay_options options = {.run = args->arguments[0],
                                  .step = (uint64_t)step,
                                  .dumps = names,
                                  .dump_path = cli_value(args, "out")};
    int code = CLI_USAGE;
    if (split_dumps(args, arena, names, &options.dump_count)) {
        char *path = tdm_path_join(arena, options.run, "job.yaml");
        tdm_job_document *document = NULL;
        cli_show_warnings();
        if (path && cli_check_run("replay", options.run) == CLI_OK)
            document = cli_load_job(args, path, &code);
        if (document) code = replay_step(args, tdm_job_document_job(document), &options, only);
        tdm_job_document_destroy(document);
    }
    tdm_arena_destroy(arena);
    return code;
}

static const char *const usage[] = {
    "tandem replay RUN --step S [--lane L] [--all] [--json]",
    "tandem replay RUN --step S --dump NAME[,NAME...] --out FILE.safetensors", NULL};
static const char *const examples[] = {
    "tandem replay runs/digits-1 --step 120", "show the lanes of step 120",
    "tandem replay runs/gpt-3 --step 900 --lane 5 --dump lane.5/grad/wte.weight --out g.safetensors",
    "show one lane, and write its gradient of one parameter", NULL};

const cli_command cli_replay = {
    .name = "replay",
    .summary = "Run a step of a run again and show it lane by lane",
    .usage = usage,
    .help =
        "Starts from the newest valid checkpoint before the step, or from the beginning if there is "
        "none, trains up to the step in this process, and prints the samples, the loss and the "
        "gradient of each lane, and the gradient of each parameter. The numbers are bit-identical to "
        "those of the run, for any number of ranks and hosts; they are compared with metrics.jsonl. "
        "Steps count from 1, as on the progress line. The run directory is not changed; the run may "
        "be finished, dead or in progress.\n\n"
        "--dump writes tensors: the state before the step, by its names in checkpoints (fc1.weight); "
        "the gradient summed over the lanes (grad/fc1.weight); the part of a lane "
        "(lane.3/grad/fc1.weight); and the output of any forward or backward op of a lane "
        "(lane.3/fc3.matmul; 'tandem inspect JOB' lists the ops).",
    .examples = examples,
    .min_arguments = 1,
    .max_arguments = 1,
    .options = {{.name = "step", .value = "S", .help = "The step, from 1."},
                {.name = "lane",
                 .value = "L",
                 .help = "Show only this lane, with all its samples."},
                {.name = "all", .help = "Show all samples of all lanes, and all parameters."},
                {.name = "dump",
                 .value = "NAMES",
                 .help = "Write these tensors, separated by commas, to the file of --out."},
                {.name = "out", .value = "FILE", .help = "The safetensors file for --dump."},
                {.name = "workers",
                 .letter = 'n',
                 .value = "1",
                 .help = "A replay is always one process; the option is accepted for symmetry."},
                CLI_OPTION_SET,
                {.name = "quiet", .letter = 'q', .help = "Print only the result."},
                CLI_OPTION_JSON},
    .run = replay_run,
};
