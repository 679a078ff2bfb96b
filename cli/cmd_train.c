/*
 * cmd_train.c: `tandem train`.
 *
 * The environment decides the role of this process. With a rank from a launcher (`tandem run`,
 * mpirun or srun) it is that rank or, under mpirun and srun, part of a session (tasks.c). Started
 * by an agent, it is a worker of a session, whose membership may change. Otherwise it trains alone
 * (-n 1) or becomes the launcher of a session.
 *
 * Only rank 0 prints, also after another process has become rank 0. Other ranks print only errors
 * that rank 0 cannot report: that they were rejected, or that rank 0 failed.
 *
 * The first Ctrl-C stops training after the current step; a checkpoint is written and the command
 * to resume is printed. The second Ctrl-C ends the process immediately; the last checkpoint stays
 * valid, as after a power failure. SIGTERM, which batch systems send, counts as the first Ctrl-C. A
 * rank ignores the second signal and leaves it to its launcher, which kills the ranks: a batch
 * system may send the first signal both to the launcher and to the ranks.
 *
 * SIGUSR1 requests a checkpoint after the current step; training continues.
 */
#include "elastic.h"
#include "model.h"
#include "progress.h"
#include "tasks.h"
#include "train.h"
#include "world.h"

#include <tandem/os.h>
#include <tandem/parallel.h>

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_HELD_WARNINGS = 16, HELD_WARNING_BYTES = 400 };
static const double held_warning_max_age_s = 60;

typedef struct session {
    progress bar;
    bool json;
    bool quiet;
    bool prints;        /* this process is rank 0 */
    tdm_worker *worker; /* NULL: not started by an agent */
    train_ranks ranks;
    char run_path[TDM_PATH_BYTES]; /* empty until there is a run */
    /* A ring of the recent warnings of a worker that does not print. It prints them if it becomes
     * rank 0. */
    char held_warnings[MAX_HELD_WARNINGS][HELD_WARNING_BYTES];
    double held_warning_s[MAX_HELD_WARNINGS]; /* time of each; 0: none */
    int held_warning_next;
} session;

static volatile sig_atomic_t stop_signals;
static volatile sig_atomic_t save_requested; /* and not yet passed to the training loop */
static volatile sig_atomic_t stop_quietly;   /* --json, or not rank 0: print nothing */
static volatile sig_atomic_t stop_patient;   /* a rank: ignore the second signal */
static volatile sig_atomic_t stop_at_once;   /* ranks are connecting: no step has to be finished */

/* Prints immediately, because the current step may take long. On a terminal the message replaces
 * the progress line. */
static void on_signal(int number)
{
    static const char erase[] = "\r\033[K";
    static const char message[] =
        "stopping after this step (press Ctrl-C again to stop immediately) ...\n";
    (void)number;
    if (stop_at_once || (stop_signals > 0 && !stop_patient)) _exit(CLI_INTERRUPTED);
    if (stop_signals > 0) return;
    stop_signals = 1;
    if (stop_quietly) return;
    int before = errno; /* the interrupted code may be about to read it */
    ssize_t written = 0;
    if (isatty(STDERR_FILENO)) written = write(STDERR_FILENO, erase, sizeof(erase) - 1);
    if (written >= 0) written = write(STDERR_FILENO, message, sizeof(message) - 1);
    (void)written; /* an error cannot be reported */
    errno = before;
}

static void on_save_signal(int number)
{
    (void)number;
    save_requested = 1;
}

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigset_t held;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    action.sa_handler = on_save_signal;
    sigaction(SIGUSR1, &action, NULL);
    sigemptyset(&held); /* the parent process has blocked these */
    sigaddset(&held, SIGINT);
    sigaddset(&held, SIGTERM);
    sigaddset(&held, SIGUSR1);
    sigprocmask(SIG_UNBLOCK, &held, NULL);
}

static bool should_stop(void *user)
{
    (void)user;
    return stop_signals > 0;
}

static bool should_save(void *user)
{
    (void)user;
    bool requested = save_requested != 0;
    if (requested) save_requested = 0;
    return requested;
}

/* Prints warnings; the rest is in log.jsonl. The error that ends training is printed at the end, so
 * it is not printed here. */
static void log_to_terminal(const tdm_log_record *record, void *user)
{
    session *s = user;
    if (record->level != TDM_LOG_WARN) return;
    if (!s->prints && s->worker) { /* it may become rank 0, whose warning this is */
        int at = s->held_warning_next++ % MAX_HELD_WARNINGS;
        snprintf(s->held_warnings[at], HELD_WARNING_BYTES, "%s", record->message);
        s->held_warning_s[at] = tdm_clock_s();
    }
    if (!s->prints) return;
    progress_clear(&s->bar);
    cli_warn("%s", record->message);
}

static void print_start(const tdm_train_status *st)
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
        fprintf(stderr, ", at step %llu, which is after the last step %llu\n",
                (unsigned long long)st->step, (unsigned long long)st->step_count);
    else if (st->step > 0)
        fprintf(stderr, ", resuming from step %llu of %llu\n", (unsigned long long)st->step,
                (unsigned long long)st->step_count);
    else
        fprintf(stderr, ", %llu steps\n", (unsigned long long)st->step_count);
}

/* Reports the progress to the agent. A worker that has become rank 0 prints from then on. */
static void session_follow_rank(session *s, const tdm_train_status *status)
{
    tdm_worker_tell(s->worker, status->step);
    if (status->run_path) tdm_worker_move_log(s->worker, status->run_path);
    if (status->rank != 0 || s->prints) return;
    s->prints = true;
    tdm_worker_speak(s->worker);
    cli_copy_to(tdm_worker_log_fd(s->worker));
    progress_init(&s->bar, stderr, s->quiet || s->json);
    for (int i = 0; i < MAX_HELD_WARNINGS; i++) {
        int at = (s->held_warning_next + i) % MAX_HELD_WARNINGS;
        double time_s = s->held_warning_s[at];
        if (time_s > 0 && tdm_clock_s() - time_s < held_warning_max_age_s)
            cli_warn("%s", s->held_warnings[at]);
    }
}

static void on_event(const tdm_train_status *status, void *user)
{
    session *s = user;
    if (s->worker) session_follow_rank(s, status);
    if (status->run_path) snprintf(s->run_path, sizeof(s->run_path), "%s", status->run_path);
    if (status->event == TDM_TRAIN_EVENT_END) train_ranks_copy(status, &s->ranks);
    if (s->json || s->quiet || !s->prints) return;
    switch (status->event) {
    case TDM_TRAIN_EVENT_START: print_start(status); break;
    case TDM_TRAIN_EVENT_STEP: progress_show(&s->bar, status, false); break;
    case TDM_TRAIN_EVENT_EVAL: progress_show(&s->bar, status, true); break;
    case TDM_TRAIN_EVENT_CHECKPOINT: break;
    case TDM_TRAIN_EVENT_WAIT:
    case TDM_TRAIN_EVENT_END: progress_clear(&s->bar); break;
    }
}

/* ---- running --------------------------------------------------------------------------------- */

static bool is_auto(const char *resume)
{
    return resume && strcmp(resume, "auto") == 0;
}

/* The path of the job; without a JOB argument, the job.yaml of the run. NULL after an error
 * message. */
static char *find_job(const cli_args *args, const char *resume, tdm_arena *arena)
{
    if (is_auto(resume) && args->argument_count == 0) {
        cli_error("train: '--resume auto' needs a job: use 'tandem train JOB --resume auto' (for a "
                  "run directory named auto, write ./auto)");
        return NULL;
    }
    if (resume && !is_auto(resume) && cli_check_run("train", resume) != CLI_OK) return NULL;
    if (args->argument_count > 0) return tdm_arena_strdup(arena, args->arguments[0]);
    if (resume) return tdm_path_join(arena, resume, "job.yaml");
    cli_error("train: JOB is missing; usage: %s", args->command->usage[0]);
    return NULL;
}

static int train_finish(const cli_args *args, const tdm_train_result *result, const session *s)
{
    if (!s->prints) /* only rank 0's exit code counts; in a session every worker's */
        return s->worker && result->interrupted ? CLI_INTERRUPTED : CLI_OK;
    tdm_str out = TDM_STR_INIT;
    if (cli_json(args))
        train_summary_json(result, &s->ranks, &out);
    else
        train_summary_text(args, result, &s->ranks, &out);
    int code = cli_print(&out);
    return result->interrupted ? CLI_INTERRUPTED : code;
}

/* Checks the directory, because this rank may not know what rank 0 has just written. */
static bool run_has_checkpoint(const char *run_path)
{
    char *path;
    tdm_arena *arena = tdm_arena_create("checkpoint");
    bool has = arena && *run_path && tdm_run_checkpoint(run_path, arena, &path, NULL) == TDM_OK;
    tdm_arena_destroy(arena);
    return has;
}

/* Prints the error. If another rank failed, the job itself is fine: prints how to resume. */
static int train_fail(const cli_args *args, const tdm_error *err, const session *s, tdm_comm *comm)
{
    int code = world_fail(err, comm);
    if (world_is_peer(err->status) && world_tells(comm) && run_has_checkpoint(s->run_path)) {
        tdm_str command = TDM_STR_INIT;
        train_way_on(args, s->run_path, &command);
        fputs(tdm_str_text(&command), stderr);
        tdm_str_release(&command);
    }
    return code;
}

/* Trains in this process, as a rank of `comm`, as a member of a session, or alone. */
static int train_here(const cli_args *args, const tdm_job *job, tdm_comm *comm,
                      elastic_worker *worker)
{
    session s = {.json = cli_json(args),
                 .quiet = cli_has(args, "quiet"),
                 .prints = !worker && (!comm || tdm_comm_rank(comm) == 0),
                 .worker = worker ? worker->worker : NULL};
    progress_init(&s.bar, stderr, s.quiet || s.json || !s.prints);
    tdm_train_options options = {.comm = comm,
                                 .member = worker ? worker->member : NULL,
                                 .membership = worker ? &worker->membership : NULL,
                                 .shm = worker ? worker->shm : NULL,
                                 .lines_fd = worker ? tdm_worker_log_forward_fd(worker->worker) : 0,
                                 .resume = cli_value(args, "resume"),
                                 .on_event = on_event,
                                 .user = &s,
                                 .should_stop = should_stop,
                                 .should_save = should_save};
    tdm_train_result result;
    tdm_error err = {0};
    tdm_log_add_sink(log_to_terminal, &s, TDM_LOG_WARN);
    tdm_status status = tdm_train(job, &options, &result, &err);
    tdm_log_remove_sink(log_to_terminal, &s);
    progress_clear(&s.bar);
    int code = status == TDM_OK ? train_finish(args, &result, &s)
               : worker         ? elastic_fail(worker, &err)
                                : train_fail(args, &err, &s, comm);
    train_ranks_release(&s.ranks);
    return code;
}

/* ---- roles ----------------------------------------------------------------------------------- */

/* '--resume auto': the newest run of the job that has a checkpoint, or a new one. Every rank finds
 * the same run, because no run is created before all ranks are connected. */
static int find_run(cli_args *args, const tdm_job *job, tdm_arena *arena)
{
    char *path = NULL;
    tdm_error err = {0};
    if (!is_auto(cli_value(args, "resume"))) return CLI_OK;
    tdm_status status = tdm_run_find(job, arena, &path, &err);
    if (status != TDM_OK && status != TDM_ERR_NOT_FOUND) return cli_fail(&err);
    cli_set_value(args, "resume", path);
    return path ? cli_check_run("train", path) : CLI_OK;
}

/* Joins the world as this rank and trains. */
static int train_as_rank(const cli_args *args, const tdm_job *job, const tdm_comm_place *place)
{
    tdm_comm *comm = NULL;
    stop_at_once = 1;
    if (stop_signals > 0) return CLI_INTERRUPTED;
    int code = world_join(job, place, &comm);
    stop_at_once = 0;
    if (code == CLI_OK) code = train_here(args, job, comm, NULL);
    tdm_comm_close(comm);
    return code;
}

/* Trains as a worker that an agent has started, until the session ends or the worker is removed. */
static int train_as_worker(cli_args *args, const char *path)
{
    int code = CLI_USAGE;
    elastic_worker worker;
    args->argument_count = 0; /* its job is a copy: a run is resumed with the run's own job */
    stop_quietly = 1;
    stop_patient = 1;
    signal(SIGTTOU, SIG_IGN); /* it is in the background of its terminal and writes to it */
    tdm_job_document *document = cli_load_job(args, path, &code);
    if (!document) return code;
    code = elastic_join(tdm_job_document_job(document), &worker);
    if (code == CLI_OK) {
        code = train_here(args, tdm_job_document_job(document), NULL, &worker);
        elastic_leave(&worker);
    }
    tdm_job_document_destroy(document);
    return code;
}

/* A signal before this point ends the command; a later one stays pending for the session's
 * launcher. */
static int launch_session(const cli_args *args, const tdm_job *job, int64_t count)
{
    const elastic_plan plan = {.count = count};
    elastic_hold_signals();
    return stop_signals > 0 ? CLI_INTERRUPTED : elastic_launch(args, job, &plan);
}

/* Rejects the options of sessions in a rank of a fixed world, which cannot start workers. */
static bool check_rank_options(const cli_args *args, const tdm_comm_place *place)
{
    static const char *const names[] = {"hosts", "min", "max", "store"};
    for (size_t i = 0; place->size > 0 && i < sizeof(names) / sizeof(names[0]); i++)
        if (cli_has(args, names[i])) {
            cli_error("train: '--%s' applies only if this command starts the workers, but it is "
                      "rank %d of %d, started by %s",
                      names[i], place->rank, place->size, place->launcher);
            return false;
        }
    return true;
}

static int train_job(cli_args *args, const char *path, const tdm_comm_place *place, int64_t asked,
                     tdm_arena *arena)
{
    int code = CLI_USAGE;
    tasks_plan plan;
    tdm_job_document *document = cli_load_job(args, path, &code);
    if (!document) return code;
    const tdm_job *job = tdm_job_document_job(document);
    bool has_hosts = cli_has(args, "hosts");
    int count = world_count(args, job, place, asked, has_hosts ? 1 : tdm_train_rank_count(job));
    int found = count < 1 ? CLI_USAGE : find_run(args, job, arena);
    if (found != CLI_OK)
        code = found;
    else if (place->size > 1 && tasks_are_session(args, job, place, &plan))
        code = tasks_train(args, job, place, &plan, should_stop);
    else if (!check_rank_options(args, place))
        code = CLI_USAGE;
    else if (place->size > 1)
        code = train_as_rank(args, job, place);
    else if (place->size == 0 && elastic_is_wanted(args, count))
        code = launch_session(args, job, count);
    else
        code = train_here(args, job, NULL, NULL);
    tdm_job_document_destroy(document);
    return code;
}

static int train_run(const cli_args *given)
{
    cli_args with_store = *given, *args = &with_store;
    stop_quietly = cli_json(args);
    catch_signals(); /* first, so that a signal during the loading of data counts as well */
    int64_t workers = 0;
    tdm_comm_place place;
    if (elastic_is_worker())
        place = (tdm_comm_place){.size = 0};
    else if (!world_place(args, &place))
        return CLI_USAGE;
    stop_patient = place.size > 1;
    if (place.rank > 0) stop_quietly = 1;
    if (!cli_int(args, "workers", 1, TDM_MAX_RANKS, &workers)) return CLI_USAGE;
    tdm_arena *arena = tdm_arena_create("command");
    char *path = arena ? find_job(args, cli_value(args, "resume"), arena) : NULL;
    int code = CLI_USAGE;
    if (path && elastic_is_worker())
        code = train_as_worker(args, path);
    else if (path && elastic_use_store(args, arena))
        code = train_job(args, path, &place, workers, arena);
    tdm_arena_destroy(arena);
    return code;
}

static const char *const usage[] = {"tandem train JOB [options]",
                                    "tandem train [JOB] --resume RUN [options]", NULL};
static const char *const examples[] = {
    "tandem train job.yaml",
    "train, in a new directory below runs/",
    "tandem train job.yaml -n 1 --set train.epochs=3",
    "one worker, three epochs",
    "tandem train job.yaml -n 4 --min 2 --max 8",
    "four workers; continues with at least two, accepts up to eight",
    "tandem train job.yaml --hosts a:4,b:4 --store etcd:http://a:2379",
    "on two hosts, started by ssh",
    "srun -n 64 tandem train job.yaml --store etcd:http://a:2379",
    "one worker per Slurm task",
    "tandem train --resume runs/digits-1",
    "resume a run where it stopped",
    "tandem train job.yaml --resume auto",
    "resume the newest run of the job, or start a new one",
    NULL};

const cli_command cli_train = {
    .name = "train",
    .summary = "Train the model that a job file describes",
    .usage = usage,
    .help =
        "Trains in a new directory, runs/NAME-NUMBER/, with the resolved job, the log and the "
        "metrics (JSON lines) and the checkpoints. On a terminal, a line shows the progress.\n\n"
        "The result does not depend on the number of workers: the job fixes the number of lanes of "
        "a batch, and any number of workers up to that can execute them. Each worker is a process; "
        "-n starts workers on this host, --hosts on several hosts by ssh. When a worker dies, the "
        "others finish its step and continue, and it is restarted. 'tandem join' and 'tandem leave' "
        "add and remove workers, 'tandem ps' lists them. Under mpirun and srun there is one worker "
        "per task; on several hosts this needs 'store: etcd'. Under 'tandem run', or with the "
        "transport mpi or TANDEM_ELASTIC=0, the set of workers is fixed: when a worker dies, the "
        "others end with a message that names it, and the run can be resumed with any number of "
        "workers.\n\n"
        "The first Ctrl-C finishes the step, writes a checkpoint and prints how to resume; the "
        "second one stops immediately. A resumed run ends with the same bits as an uninterrupted "
        "one. SIGUSR1 (or 'tandem checkpoint now') writes a checkpoint after the step, and training "
        "continues.",
    .examples = examples,
    .max_arguments = 1,
    .options =
        {{.name = "workers",
          .letter = 'n',
          .value = "N",
          .help = "The number of workers, from 1 to the number of lanes. Default: one per CPU (per "
                  "'compute.threads' CPUs), at most the number of lanes."},
         {.name = "resume",
          .letter = 'r',
          .value = "RUN",
          .help =
              "Resume this run from its newest valid checkpoint. The job must agree on all keys "
              "that affect the result; without JOB, the job of the run is used. 'auto' resumes "
              "the newest run of JOB that has a checkpoint, or starts a new run if there is "
              "none; it is meant for batch scripts."},
         {.name = "min",
          .value = "N",
          .help = "The minimum number of ranks; with fewer, training waits (elastic.min)."},
         {.name = "max",
          .value = "M",
          .help = "The maximum number of ranks (elastic.max). Default: the number of workers that "
                  "are started."},
         {.name = "hosts",
          .value = "A,B:4",
          .help = "Start the workers on these hosts by ssh: -n workers on each (default 1), or the "
                  "number after a colon. Data and program must exist on each host. Requires "
                  "'store: etcd'."},
         {.name = "store",
          .value = "URL",
          .help = "The store of the session: etcd:http://HOST:2379, or local. It overrides 'store' "
                  "and 'etcd.endpoints' of the job."},
         {.name = "remote-tandem",
          .value = "PATH",
          .help = "The path of tandem on the other hosts. Default: tandem, found in PATH."},
         CLI_OPTION_SET,
         {.name = "quiet", .letter = 'q', .help = "Print only the summary at the end."},
         CLI_OPTION_JSON},
    .run = train_run,
};
