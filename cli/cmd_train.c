/*
 * cmd_train.c: `tandem train`.
 *
 * Where the environment gives this process a place in a world (under this command's own launcher,
 * `tandem run`, mpirun or srun), it is that rank, or, under mpirun and srun, part of a session (tasks.c);
 * where an agent has started it, it is a worker of a session, whose ranks may come and go. Otherwise it
 * trains alone (-n 1), or becomes the launcher.
 * Rank 0 does the talking, also when another process has become rank 0. Other ranks say only what rank 0
 * cannot know: that they were not let in, or that rank 0 itself is gone.
 *
 * Ctrl-C once asks the loop to stop after the step in progress; a checkpoint is written and the way
 * to go on is printed. A second Ctrl-C ends the process at once; the last checkpoint stays good, as
 * it would after a power cut. SIGTERM, which batch systems send, counts as the first Ctrl-C. A rank
 * leaves the second one to its launcher, which kills: a batch system may well send the first one to
 * the launcher and to the ranks.
 *
 * SIGUSR1 asks for a checkpoint after the step in progress; training goes on.
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

enum { MAX_UNSAID = 16, UNSAID_BYTES = 400 };
static const double unsaid_old_s = 60;

typedef struct session {
    progress bar;
    bool json;
    bool quiet;
    bool tells;         /* rank 0 */
    tdm_worker *worker; /* NULL: no agent has started this process */
    train_ranks ranks;
    char run_path[TDM_PATH_BYTES]; /* empty until there is a run */
    char unsaid[MAX_UNSAID]
               [UNSAID_BYTES];   /* a worker's warnings of late, in turn, while it is silent */
    double unsaid_s[MAX_UNSAID]; /* when; 0: none */
    int unsaid_next;
} session;

static volatile sig_atomic_t stop_signals;
static volatile sig_atomic_t save_wished;  /* and not handed on yet */
static volatile sig_atomic_t stop_quietly; /* --json, or not rank 0: there is nothing to print */
static volatile sig_atomic_t stop_patient; /* a rank: its launcher decides when it is enough */
static volatile sig_atomic_t stop_at_once; /* ranks meet: there is no step that could be finished */

/* Says at once what it will do: the step that it waits for may be a long one. On a terminal it takes
 * the place of the progress line. */
static void on_signal(int number)
{
    static const char erase[] = "\r\033[K";
    static const char words[] = "stopping after this step (Ctrl-C again to stop at once) ...\n";
    (void)number;
    if (stop_at_once || (stop_signals > 0 && !stop_patient)) _exit(CLI_INTERRUPTED);
    if (stop_signals > 0) return;
    stop_signals = 1;
    if (stop_quietly) return;
    int before = errno; /* the interrupted code may be about to look at it */
    ssize_t written = 0;
    if (isatty(STDERR_FILENO)) written = write(STDERR_FILENO, erase, sizeof(erase) - 1);
    if (written >= 0) written = write(STDERR_FILENO, words, sizeof(words) - 1);
    (void)written; /* there is nobody to tell */
    errno = before;
}

static void on_save_signal(int number)
{
    (void)number;
    save_wished = 1;
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
    sigemptyset(&held); /* by who started this process, until now */
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
    bool requested = save_wished != 0;
    if (requested) save_wished = 0;
    return requested;
}

/* Warnings on the terminal; the rest is in the run's log.jsonl. The error that ends the training is
 * printed at the end, so it is left out here. */
static void log_to_terminal(const tdm_log_record *record, void *user)
{
    session *s = user;
    if (record->level != TDM_LOG_WARN) return;
    if (!s->tells && s->worker) { /* it may be about rank 0, whom this one will follow */
        int at = s->unsaid_next++ % MAX_UNSAID;
        snprintf(s->unsaid[at], UNSAID_BYTES, "%s", record->message);
        s->unsaid_s[at] = tdm_clock_s();
    }
    if (!s->tells) return;
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

/* A worker's rank may change, and so may who speaks: from then on its words go to the terminal. */
static void follow_rank(session *s, const tdm_train_status *status)
{
    tdm_worker_tell(s->worker, status->step);
    if (status->run_path) tdm_worker_move_log(s->worker, status->run_path);
    if (status->rank != 0 || s->tells) return;
    s->tells = true;
    tdm_worker_speak(s->worker);
    cli_copy_to(tdm_worker_log_fd(s->worker));
    progress_init(&s->bar, stderr, s->quiet || s->json);
    for (int i = 0; i < MAX_UNSAID; i++) {
        int at = (s->unsaid_next + i) % MAX_UNSAID;
        if (s->unsaid_s[at] > 0 && tdm_clock_s() - s->unsaid_s[at] < unsaid_old_s)
            cli_warn("%s", s->unsaid[at]);
    }
}

static void on_event(const tdm_train_status *status, void *user)
{
    session *s = user;
    if (s->worker) follow_rank(s, status);
    if (status->run_path) snprintf(s->run_path, sizeof(s->run_path), "%s", status->run_path);
    if (status->event == TDM_TRAIN_EVENT_END) train_ranks_copy(status, &s->ranks);
    if (s->json || s->quiet || !s->tells) return;
    switch (status->event) {
    case TDM_TRAIN_EVENT_START: say_start(status); break;
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

/* Without a job, the run's own job.yaml is taken. */
static char *find_job(const cli_args *args, const char *resume, tdm_arena *arena)
{
    if (is_auto(resume) && args->argument_count == 0) {
        cli_error("train: '--resume auto' looks for the newest run of a job: which one? usage: "
                  "tandem train JOB --resume auto (a folder of that name is ./auto)");
        return NULL;
    }
    if (resume && !is_auto(resume) && cli_check_run("train", resume) != CLI_OK) return NULL;
    if (args->argument_count > 0) return tdm_arena_strdup(arena, args->arguments[0]);
    if (resume) return tdm_path_join(arena, resume, "job.yaml");
    cli_error("train: which job? usage: %s", args->command->usage[0]);
    return NULL;
}

static int finish(const cli_args *args, const tdm_train_result *result, const session *s)
{
    if (!s->tells) /* rank 0's code is the one that counts, and in a session anybody's */
        return s->worker && result->interrupted ? CLI_INTERRUPTED : CLI_OK;
    tdm_str out = TDM_STR_INIT;
    if (cli_json(args))
        train_summary_json(result, &s->ranks, &out);
    else
        train_summary_text(args, result, &s->ranks, &out);
    int code = cli_print(&out);
    return result->interrupted ? CLI_INTERRUPTED : code;
}

/* By what lies there: a rank may not have heard of what rank 0 has just written. */
static bool has_checkpoint(const char *run_path)
{
    char *path;
    tdm_arena *arena = tdm_arena_create("way");
    bool has = arena && *run_path && tdm_run_checkpoint(run_path, arena, &path, NULL) == TDM_OK;
    tdm_arena_destroy(arena);
    return has;
}

/* A rank that is gone is no fault of the job: say how to go on. */
static int fail(const cli_args *args, const tdm_error *err, const session *s, tdm_comm *comm)
{
    int code = world_fail(err, comm);
    if (world_is_peer(err->status) && world_tells(comm) && has_checkpoint(s->run_path)) {
        tdm_str way = TDM_STR_INIT;
        train_way_on(args, s->run_path, &way);
        fputs(tdm_str_text(&way), stderr);
        tdm_str_release(&way);
    }
    return code;
}

/* Trains in this process, as a rank of `comm`, as a member of a session, or alone. */
static int train(const cli_args *args, const tdm_job *job, tdm_comm *comm, elastic_worker *worker)
{
    session s = {.json = cli_json(args),
                 .quiet = cli_has(args, "quiet"),
                 .tells = !worker && (!comm || tdm_comm_rank(comm) == 0),
                 .worker = worker ? worker->worker : NULL};
    progress_init(&s.bar, stderr, s.quiet || s.json || !s.tells);
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
    int code = status == TDM_OK ? finish(args, &result, &s)
               : worker         ? elastic_fail(worker, &err)
                                : fail(args, &err, &s, comm);
    train_ranks_release(&s.ranks);
    return code;
}

/* ---- as one of many --------------------------------------------------------------------------- */

/* '--resume auto': the newest run of the job that has a checkpoint, or a new one. Every rank finds the same:
 * no run is made before all of them have met. */
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

/* Joins the world as this rank, and trains. */
static int train_as_rank(const cli_args *args, const tdm_job *job, const tdm_comm_place *place)
{
    tdm_comm *comm = NULL;
    stop_at_once = 1;
    if (stop_signals > 0) return CLI_INTERRUPTED;
    int code = world_join(job, place, &comm);
    stop_at_once = 0;
    if (code == CLI_OK) code = train(args, job, comm, NULL);
    tdm_comm_close(comm);
    return code;
}

/* An agent has started this process: it takes part as long as the others let it. */
static int train_as_worker(cli_args *args, const char *path)
{
    int code = CLI_USAGE;
    elastic_worker worker;
    args->argument_count = 0; /* its job is a copy: the way on is by the run's own */
    stop_quietly = 1;
    stop_patient = 1;
    signal(SIGTTOU, SIG_IGN); /* it stands in the background of its terminal, and writes to it */
    tdm_job_document *document = cli_load_job(args, path, &code);
    if (!document) return code;
    code = elastic_join(tdm_job_document_job(document), &worker);
    if (code == CLI_OK) {
        code = train(args, tdm_job_document_job(document), NULL, &worker);
        elastic_leave(&worker);
    }
    tdm_job_document_destroy(document);
    return code;
}

/* A signal counts before there is a session, or waits for its launcher. */
static int launch_session(const cli_args *args, const tdm_job *job, int64_t count)
{
    const elastic_plan plan = {.count = count};
    elastic_hold_signals();
    return stop_signals > 0 ? CLI_INTERRUPTED : elastic_launch(args, job, &plan);
}

/* Ranks inherit that SIGUSR1 waits, until they listen to it. */
static int launch_world(const cli_args *args, const tdm_job *job, int count)
{
    sigset_t held;
    sigemptyset(&held);
    sigaddset(&held, SIGUSR1);
    sigprocmask(SIG_BLOCK, &held, NULL);
    return world_launch(args, job, count);
}

/* Of a session: a rank of a fixed world cannot start others. */
static bool check_place(const cli_args *args, const tdm_comm_place *place)
{
    static const char *const names[] = {"hosts", "min", "max", "store"};
    for (size_t i = 0; place->size > 0 && i < sizeof(names) / sizeof(names[0]); i++)
        if (cli_has(args, names[i])) {
            cli_error("train: '--%s' is for workers that this command starts, but it is rank %d of "
                      "%d, started by %s",
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
    else if (!check_place(args, place))
        code = CLI_USAGE;
    else if (place->size == 0 && elastic_is_wanted(args, count))
        code = launch_session(args, job, count);
    else if (count == 1)
        code = train(args, job, NULL, NULL);
    else if (place->size > 0)
        code = train_as_rank(args, job, place);
    else if (stop_signals > 0)
        code = CLI_INTERRUPTED; /* before anybody was there to be told */
    else
        code = launch_world(args, job, count);
    tdm_job_document_destroy(document);
    return code;
}

static int run(const cli_args *given)
{
    cli_args with_store = *given, *args = &with_store;
    stop_quietly = cli_json(args);
    catch_signals(); /* first of all: a signal while the data is read counts, too */
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
    "train, into a new folder below runs/",
    "tandem train job.yaml -n 1 --set train.epochs=3",
    "one worker, three epochs",
    "tandem train job.yaml -n 4 --min 2 --max 8",
    "four workers; goes on with two, takes up to eight",
    "tandem train job.yaml --hosts a:4,b:4 --store etcd:http://a:2379",
    "on two hosts, by ssh",
    "srun -n 64 tandem train job.yaml --store etcd:http://a:2379",
    "with as many workers as Slurm has tasks",
    "tandem train --resume runs/digits-1",
    "go on where the run stopped",
    "tandem train job.yaml --resume auto",
    "go on with the newest run of the job, or begin",
    NULL};

const cli_command cli_train = {
    .name = "train",
    .summary = "Train the model that a job file describes",
    .usage = usage,
    .help =
        "Trains into a new folder, runs/NAME-NUMBER/, which holds the resolved job, the log and "
        "the metrics (JSON lines) and the checkpoints. On a terminal a line shows how it goes.\n\n"
        "The result does not depend on the number of workers: the job fixes the lanes into which "
        "a batch is cut, and any number of workers up to that can execute them. Each worker is a "
        "process, a rank of a world; -n starts them on this host, --hosts on several by ssh. When "
        "one dies, the others finish its step and go on, and it is started again; 'tandem join' and "
        "'tandem leave' add and remove workers, 'tandem ps' shows them. Under mpirun "
        "and srun there are as many workers as tasks, and the same holds; on several hosts that needs "
        "'store: etcd'. Under 'tandem run', or with TANDEM_ELASTIC=0 or the transport mpi, each "
        "process is the rank that its launcher made it; when one dies there, the others end with a "
        "message that names it, and the run can be resumed with any number.\n\n"
        "Ctrl-C once finishes the step, writes a checkpoint and tells how to go on; twice stops "
        "at once. --resume goes on exactly: the end is the same as without the interruption. "
        "SIGUSR1 (or 'tandem checkpoint now') writes a checkpoint after the step, and training goes "
        "on.",
    .examples = examples,
    .max_arguments = 1,
    .options =
        {{.name = "workers",
          .letter = 'n',
          .value = "N",
          .help = "How many workers execute the lanes, from 1 to the number of lanes. Default: "
                  "one for each processor (for each 'compute.threads' of them), at most the "
                  "number of lanes."},
         {.name = "resume",
          .letter = 'r',
          .value = "RUN",
          .help = "Go on with this run, from its newest good checkpoint. The job must be the "
                  "same in all that decides the result; without JOB the run's own is taken. "
                  "'auto' means the newest run of JOB that has a checkpoint, or a new one if there "
                  "is none, so a batch script may always say so."},
         {.name = "min",
          .value = "N",
          .help =
              "The fewest ranks with which training goes on; with fewer it waits (elastic.min)."},
         {.name = "max",
          .value = "M",
          .help = "The most ranks that may take part (elastic.max; as many as are started)."},
         {.name = "hosts",
          .value = "A,B:4",
          .help = "Start the workers on these hosts, by ssh: N of each, or as many as stand behind "
                  "a colon; -n is 1 then. Data and program must be there. Needs 'store: etcd'."},
         {.name = "store",
          .value = "URL",
          .help = "Where workers find each other: etcd:http://HOST:2379, or local ('store' and "
                  "'etcd.endpoints' of the job)."},
         {.name = "remote-tandem",
          .value = "PATH",
          .help = "This program on the other hosts (tandem, in PATH there)."},
         CLI_OPTION_SET,
         {.name = "quiet", .letter = 'q', .help = "Print only the summary at the end."},
         CLI_OPTION_JSON},
    .run = run,
};
