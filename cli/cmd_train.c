/*
 * cmd_train.c: `tandem train`.
 *
 * Ctrl-C once asks the loop to stop after the step in progress; a checkpoint is written and the way
 * to go on is printed. A second Ctrl-C ends the process at once; the last checkpoint stays good, as
 * it would after a power cut. SIGTERM, which batch systems send, counts as the first Ctrl-C.
 */
#include "progress.h"

#include "cli.h"

#include <tandem/os.h>
#include <tandem/train.h>

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct session {
    progress bar;
    bool json;
    bool quiet;
} session;

static volatile sig_atomic_t stop_signals;
static volatile sig_atomic_t stop_quietly; /* --json: nothing but the summary is printed */

/* Says at once what it will do: the step that it waits for may be a long one. On a terminal it takes
 * the place of the progress line. */
static void on_signal(int number)
{
    static const char erase[] = "\r\033[K";
    static const char words[] = "stopping after this step (Ctrl-C again to stop at once) ...\n";
    (void)number;
    if (stop_signals++ > 0) _exit(CLI_INTERRUPTED);
    if (stop_quietly) return;
    int before = errno; /* the interrupted code may be about to look at it */
    ssize_t written = 0;
    if (isatty(STDERR_FILENO)) written = write(STDERR_FILENO, erase, sizeof(erase) - 1);
    if (written >= 0) written = write(STDERR_FILENO, words, sizeof(words) - 1);
    (void)written; /* there is nobody to tell */
    errno = before;
}

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static bool should_stop(void *user)
{
    (void)user;
    return stop_signals > 0;
}

/* Warnings on the terminal; the rest is in the run's log.jsonl. The error that ends the training is
 * printed at the end, so it is left out here. */
static void log_to_terminal(const tdm_log_record *record, void *user)
{
    session *s = user;
    if (record->level != TDM_LOG_WARN) return;
    progress_clear(&s->bar);
    cli_warn("%s", record->message);
}

static void say_start(const tdm_train_status *st)
{
    char parameters[32], train[32], test[32];
    fprintf(stderr, "%s: %s parameters, %s training samples", cli_short_path(st->run_path),
            tdm_text_count(st->parameter_count, parameters),
            tdm_text_count((uint64_t)st->train_count, train));
    if (st->test_count > 0)
        fprintf(stderr, ", %s test samples", tdm_text_count((uint64_t)st->test_count, test));
    fprintf(stderr, ", %lld classes\n%lld lane%s on %d worker%s", (long long)st->class_count,
            (long long)st->lane_count, st->lane_count == 1 ? "" : "s", st->rank_count,
            st->rank_count == 1 ? "" : "s");
    if (st->step > st->step_count)
        fprintf(stderr, ", at step %llu, which is past the end at step %llu already\n",
                (unsigned long long)st->step, (unsigned long long)st->step_count);
    else if (st->step > 0)
        fprintf(stderr, ", going on from step %llu of %llu\n", (unsigned long long)st->step,
                (unsigned long long)st->step_count);
    else
        fprintf(stderr, ", %llu steps\n", (unsigned long long)st->step_count);
}

static void on_event(const tdm_train_status *status, void *user)
{
    session *s = user;
    if (s->json || s->quiet) return;
    switch (status->event) {
    case TDM_TRAIN_EVENT_START: say_start(status); break;
    case TDM_TRAIN_EVENT_STEP: progress_show(&s->bar, status, false); break;
    case TDM_TRAIN_EVENT_EVAL: progress_show(&s->bar, status, true); break;
    case TDM_TRAIN_EVENT_CHECKPOINT: break;
    case TDM_TRAIN_EVENT_END: progress_clear(&s->bar); break;
    }
}

/* ---- the closing words ----------------------------------------------------------------------- */

static void summary_json(const tdm_train_result *r, tdm_str *out)
{
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_string(&w, "run", r->run_path);
    tdm_json_put_string(&w, "checkpoint", r->checkpoint_path);
    tdm_json_put_string(&w, "hash", r->state_hash);
    tdm_json_put_bool(&w, "interrupted", r->interrupted);
    tdm_json_put_bool(&w, "ended_early", r->ended_early);
    tdm_json_put_uint(&w, "steps", r->steps);
    tdm_json_put_uint(&w, "samples", r->samples);
    tdm_json_put_uint(&w, "skipped", r->skipped);
    tdm_json_put_double(&w, "seconds", r->seconds);
    tdm_json_put_double(&w, "start_seconds", r->start_seconds);
    if (!r->nothing_to_do) tdm_json_put_double(&w, "loss", r->loss);
    if (r->has_test) {
        tdm_json_put_double(&w, "test_loss", r->test.loss);
        tdm_json_put_double(&w, "test_accuracy", r->test.accuracy);
        tdm_json_put_int(&w, "test_samples", r->test.sample_count);
    }
    tdm_json_object_end(&w);
    tdm_str_add_char(out, '\n');
}

/* A word of a command line, in quotes when a shell would see more in it than a word. */
static void add_word(tdm_str *out, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_-./=,:+@%";
    tdm_str_add_char(out, ' ');
    if (*word && strspn(word, plain) == strlen(word)) {
        tdm_str_add(out, word);
        return;
    }
    tdm_str_add_char(out, '\'');
    for (; *word; word++) {
        if (*word == '\'')
            tdm_str_add(out, "'\\''");
        else
            tdm_str_add_char(out, *word);
    }
    tdm_str_add_char(out, '\'');
}

/* The same command again, overrides included: without them it would be another job. */
static void add_way_on(const cli_args *args, const tdm_train_result *r, tdm_str *out)
{
    tdm_str_add(out, "to go on       tandem train");
    if (args->argument_count > 0) add_word(out, args->arguments[0]);
    tdm_str_add(out, " --resume");
    add_word(out, cli_short_path(r->run_path));
    for (int i = 0; i < args->set_count; i++) {
        tdm_str_add(out, " --set");
        add_word(out, args->sets[i]);
    }
    if (cli_has(args, "workers")) tdm_str_addf(out, " -n %s", cli_value(args, "workers"));
    tdm_str_add_char(out, '\n');
}

/* A window of a text has as many answers as it has tokens, and each counts by itself. */
static void add_test(const tdm_train_result *r, tdm_str *out)
{
    tdm_str_addf(out, "test accuracy  %.2f %% of ", 100 * r->test.accuracy);
    if (r->test.target_count > r->test.sample_count)
        tdm_str_addf(out, "%lld tokens in %lld windows", (long long)r->test.target_count,
                     (long long)r->test.sample_count);
    else
        tdm_str_addf(out, "%lld samples", (long long)r->test.sample_count);
    tdm_str_addf(out, " (loss %.4f)%s\n", r->test.loss,
                 r->interrupted ? ", at the last evaluation" : "");
}

static void summary_text(const cli_args *args, const tdm_train_result *r, tdm_str *out)
{
    char time_text[32], samples[32];
    if (r->nothing_to_do && r->ended_early) {
        tdm_str_addf(out,
                     "nothing to do: the run was ended early, at step %llu; to train it further, "
                     "raise the patience of train.early_stop\n",
                     (unsigned long long)r->steps);
    } else if (r->nothing_to_do && r->steps > r->step_count) {
        tdm_str_addf(out,
                     "nothing to do: the run is at step %llu, past its end at step %llu already; "
                     "to train it further, raise train.epochs or train.steps\n",
                     (unsigned long long)r->steps, (unsigned long long)r->step_count);
    } else if (r->nothing_to_do) {
        tdm_str_addf(out,
                     "nothing to do: the run is at its last step, %llu; to train it further, "
                     "raise train.epochs\n",
                     (unsigned long long)r->steps);
    } else {
        const char *how = r->interrupted   ? "stopped"
                          : r->ended_early ? "done early, without progress,"
                                           : "done";
        tdm_str_addf(out, "%s at step %llu: %s samples in %s", how, (unsigned long long)r->steps,
                     tdm_text_count(r->samples, samples), tdm_text_duration(r->seconds, time_text));
        if (r->samples > 0 && !isnan(r->loss)) tdm_str_addf(out, ", loss %.4f", r->loss);
        tdm_str_add_char(out, '\n');
    }
    if (r->skipped > 0)
        tdm_str_addf(out, "skipped        %llu step%s with NaN or infinity; log.jsonl says why\n",
                     (unsigned long long)r->skipped, r->skipped == 1 ? "" : "s");
    if (r->has_test) add_test(r, out);
    tdm_str_addf(out, "checkpoint     %s\nstate hash     %s\n", cli_short_path(r->checkpoint_path),
                 r->state_hash);
    if (r->interrupted) add_way_on(args, r, out);
}

static int finish(const cli_args *args, const tdm_train_result *result)
{
    tdm_str out = TDM_STR_INIT;
    if (cli_json(args))
        summary_json(result, &out);
    else
        summary_text(args, result, &out);
    int code = cli_print(&out);
    return result->interrupted ? CLI_INTERRUPTED : code;
}

/* ---- running --------------------------------------------------------------------------------- */

/* Whether it can be a run at all; complains when it cannot. */
static bool is_run(const char *path, tdm_arena *arena)
{
    char *job = tdm_path_join(arena, path, "job.yaml");
    if (*path && job && tdm_path_is_file(job)) return true;
    if (tdm_path_is_dir(path))
        cli_error("train: '%s' is not a run: it has no job.yaml", path);
    else
        cli_error("train: '%s' is not a run: it is no folder; give one such as runs/digits-1",
                  path);
    return false;
}

/* Without a job, the run's own job.yaml is taken. */
static char *find_job(const cli_args *args, const char *resume, tdm_arena *arena)
{
    if (resume && !is_run(resume, arena)) return NULL;
    if (args->argument_count > 0) return tdm_arena_strdup(arena, args->arguments[0]);
    if (resume) return tdm_path_join(arena, resume, "job.yaml");
    cli_error("train: which job? usage: %s", args->command->usage[0]);
    return NULL;
}

static int train(const cli_args *args, const tdm_job *job, int64_t workers)
{
    session s = {.json = cli_json(args), .quiet = cli_has(args, "quiet")};
    progress_init(&s.bar, stderr, s.quiet || s.json);
    (void)workers;
    tdm_train_options options = {.resume = cli_value(args, "resume"),
                                 .on_event = on_event,
                                 .user = &s,
                                 .should_stop = should_stop};
    tdm_train_result result;
    tdm_error err = {0};
    tdm_log_add_sink(log_to_terminal, &s, TDM_LOG_WARN);
    tdm_status status = tdm_train(job, &options, &result, &err);
    tdm_log_remove_sink(log_to_terminal, &s);
    progress_clear(&s.bar);
    return status == TDM_OK ? finish(args, &result) : cli_fail(&err);
}

static int run(const cli_args *args)
{
    stop_quietly = cli_json(args);
    catch_signals(); /* first of all: a signal while the data is read counts, too */
    int64_t workers = 0;
    if (!cli_int(args, "workers", 1, 65536, &workers)) return CLI_USAGE;
    tdm_arena *arena = tdm_arena_create("command");
    char *path = arena ? find_job(args, cli_value(args, "resume"), arena) : NULL;
    int code = CLI_USAGE;
    tdm_job_document *document = path ? cli_load_job(args, path, &code) : NULL;
    if (document) code = train(args, tdm_job_document_job(document), workers);
    tdm_job_document_destroy(document);
    tdm_arena_destroy(arena);
    return code;
}

static const char *const usage[] = {"tandem train JOB [options]",
                                    "tandem train [JOB] --resume RUN [options]", NULL};
static const char *const examples[] = {"tandem train job.yaml",
                                       "train, into a new folder below runs/",
                                       "tandem train job.yaml -n 1 --set train.epochs=3",
                                       "one worker, three epochs",
                                       "tandem train --resume runs/digits-1",
                                       "go on where the run stopped",
                                       NULL};

const cli_command cli_train = {
    .name = "train",
    .summary = "Train the model that a job file describes",
    .usage = usage,
    .help =
        "Trains into a new folder, runs/NAME-NUMBER/, which holds the resolved job, the log and "
        "the metrics (JSON lines) and the checkpoints. On a terminal a line shows how it goes.\n\n"
        "The result does not depend on the number of workers: the job fixes the lanes into which "
        "a batch is cut, and any number of workers up to that can execute them.\n\n"
        "Ctrl-C once finishes the step, writes a checkpoint and tells how to go on; twice stops "
        "at once. --resume goes on exactly: the end is the same as without the interruption.",
    .examples = examples,
    .arguments_most = 1,
    .options =
        {{.name = "workers",
          .letter = 'n',
          .value = "N",
          .help = "How many workers execute the lanes, from 1 to the number of lanes. Default: "
                  "one for each processor, at most the number of lanes."},
         {.name = "resume",
          .letter = 'r',
          .value = "RUN",
          .help = "Go on with this run, from its newest good checkpoint. The job must be the "
                  "same in all that decides the result; without JOB the run's own is taken."},
         CLI_OPTION_SET,
         {.name = "quiet", .letter = 'q', .help = "Print only the summary at the end."},
         CLI_OPTION_JSON},
    .run = run,
};
