/*
 * cmd_agent.c: `tandem agent`, which `tandem train` and `tandem join` start on each host. It starts
 * the workers of a session on the host, monitors them, and restarts them.
 *
 * The job comes from a file, or from standard input if the agent is started by ssh. Words after
 * '--' are passed to the `tandem train` of the workers. Warnings go to standard error, which is the
 * launcher's, and to the run's log.
 */
#include "session.h"

#include <tandem/elastic.h>
#include <tandem/os.h>

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { MAX_JOB = 1 << 20 };

static void log_to_terminal(const tdm_log_record *record, void *user)
{
    (void)user;
    if (isatty(STDERR_FILENO)) fputs("\r\033[K", stderr); /* erase a progress line */
    cli_warn("%s", record->message);
}

/* Reads the text of the job from a file, or from standard input for "-". */
static bool read_job(const char *path, tdm_str *out)
{
    if (strcmp(path, "-") != 0) {
        tdm_file_bytes bytes;
        tdm_error err;
        if (tdm_file_read(path, MAX_JOB, &bytes, &err) != TDM_OK) {
            cli_fail(&err);
            return false;
        }
        tdm_str_add_bytes(out, bytes.data, bytes.count);
        tdm_file_bytes_release(&bytes);
    } else {
        char bytes[4096];
        ssize_t got;
        while (out->length < MAX_JOB && (got = read(STDIN_FILENO, bytes, sizeof(bytes))) != 0) {
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) break;
            tdm_str_add_bytes(out, bytes, (size_t)got);
        }
        explicit_bzero(bytes, sizeof(bytes)); /* the secret came in front of the job */
    }
    if (out->length > 0 && tdm_str_ok(out)) return true;
    cli_error("agent: cannot read the job from '%s'", path);
    return false;
}

/* The command line of a worker: this program, which trains the session's job. */
static const char *const *worker_words(const session_agent *agent, const char *self,
                                       const char *job, tdm_arena *arena)
{
    size_t more = 0, n = 0;
    while (agent->words && agent->words[more]) more++;
    const char **words = tdm_arena_array(arena, more + 5, sizeof(*words));
    if (!words) return NULL;
    words[n++] = self;
    words[n++] = "train";
    for (size_t i = 0; i < more; i++) words[n++] = agent->words[i];
    words[n++] = "--";
    words[n++] = job;
    return words;
}

/* Finds the secret of the session and verifies it against the store; returns an exit code. */
static int find_secret(const session_agent *agent, const tdm_session_hold *hold,
                       const tdm_kv_options *kv_options, char out[TDM_SECRET_BYTES])
{
    tdm_kv *kv = NULL;
    tdm_error err;
    tdm_status status = tdm_session_secret(hold, agent->secret, out, &err);
    if (status == TDM_OK) status = tdm_kv_open(kv_options, &kv, &err);
    if (status == TDM_OK) status = tdm_session_secret_check(kv, hold->place.session, out, &err);
    tdm_kv_close(kv);
    return status == TDM_OK ? CLI_OK : cli_fail(&err);
}

static int agent_exit_code(const tdm_agent_result *result)
{
    if (result->exit_code != 0) return result->exit_code;
    if (!result->has_verdict || result->status == TDM_OK) return CLI_OK;
    return result->status == TDM_ERR_INTERRUPTED ? CLI_INTERRUPTED : CLI_FAILED;
}

static int run_agent(const session_agent *agent, const tdm_job *job, const tdm_session_hold *hold,
                     tdm_arena *arena)
{
    const char *self = session_self("agent", arena);
    if (!self) return CLI_USAGE;
    tdm_agent_options options = {.session = hold->place.session,
                                 .host = agent->host,
                                 .program = worker_words(agent, self, hold->place.job, arena),
                                 .dir = agent->dir,
                                 .logs = hold->place.logs,
                                 .count = agent->workers,
                                 .pin = true,
                                 .guest = agent->guest,
                                 .restarts = job->elastic.restarts > 0 ? (int)job->elastic.restarts
                                                                       : -1,
                                 .restart_window_s = job->elastic.restart_window,
                                 .grace_s = job->elastic.grace,
                                 .hold_fd = hold->fd};
    int code = session_store_of(job, arena, &options.kv);
    if (code != CLI_OK) return code;
    options.kv.url = hold->place.store;
    options.kv.must_exist = true;
    char secret[TDM_SECRET_BYTES];
    code = find_secret(agent, hold, &options.kv, secret);
    if (code == CLI_OK) {
        options.secret = secret;
        tdm_agent_result result;
        tdm_error err;
        tdm_log_add_sink(log_to_terminal, NULL, TDM_LOG_WARN);
        tdm_status status = tdm_agent_run(&options, &result, &err);
        tdm_log_remove_sink(log_to_terminal, NULL);
        code = status == TDM_OK ? agent_exit_code(&result) : cli_fail(&err);
    }
    explicit_bzero(secret, sizeof(secret));
    return code;
}

static int load_and_run(const session_agent *agent, const tdm_session_hold *hold, tdm_arena *arena)
{
    tdm_job_options options = {.no_file_checks = true};
    tdm_job_document *document = NULL;
    tdm_error err = {0};
    int code = CLI_USAGE;
    if (tdm_job_load(hold->place.job, &options, &document, &err) == TDM_OK)
        code = run_agent(agent, tdm_job_document_job(document), hold, arena);
    else
        cli_error("agent: cannot load the session's job: %s",
                  document ? "it is invalid; does this host have the launcher's version of tandem?"
                           : err.message);
    tdm_job_document_destroy(document);
    return code;
}

int session_agent_run(const session_agent *agent)
{
    tdm_session_hold hold = {.fd = -1};
    tdm_error err;
    tdm_arena *arena = tdm_arena_create("agent");
    int code = CLI_FAILED;
    if (!arena) return code;
    if (tdm_session_hold_init(agent->session, agent->store, agent->job_text, &hold, &err) ==
        TDM_OK) {
        code = load_and_run(agent, &hold, arena);
        tdm_session_hold_release(&hold);
    } else {
        code = cli_fail(&err);
        if (err.status == TDM_ERR_INVALID) code = CLI_USAGE;
    }
    tdm_arena_destroy(arena);
    return code;
}

static int agent_run(const cli_args *args)
{
    static const char *const needed[] = {"session", "store", "host", "job"};
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++)
        if (!cli_has(args, needed[i])) {
            cli_error(
                "agent: '--%s' is missing; use 'tandem train' or 'tandem join' to start agents",
                needed[i]);
            return CLI_USAGE;
        }
    int64_t workers = 1;
    if (!cli_int(args, "workers", 1, TDM_MAX_LAUNCH, &workers)) return CLI_USAGE;
    /* Started by ssh: the agent survives the loss of the connection. */
    if (strcmp(cli_value(args, "job"), "-") == 0) signal(SIGHUP, SIG_IGN);
    const char *words[CLI_MAX_ARGUMENTS + 1] = {NULL};
    memcpy(words, args->arguments, (size_t)args->argument_count * sizeof(*words));
    tdm_str text = TDM_STR_INIT;
    int code = CLI_FAILED;
    if (read_job(cli_value(args, "job"), &text)) {
        char secret[TDM_SECRET_BYTES];
        size_t line = tdm_session_secret_line(tdm_str_text(&text), secret);
        const session_agent agent = {.session = cli_value(args, "session"),
                                     .store = cli_value(args, "store"),
                                     .host = cli_value(args, "host"),
                                     .dir = cli_value(args, "dir"),
                                     .job_text = tdm_str_text(&text) + line,
                                     .secret = secret,
                                     .words = words,
                                     .workers = (int)workers,
                                     .guest = cli_has(args, "guest")};
        code = session_agent_run(&agent);
        explicit_bzero(secret, sizeof(secret));
    }
    tdm_str_wipe(&text);
    return code;
}

static const char *const usage[] = {
    "tandem agent --session S --store URL --host NAME --job FILE [options] [-- WORDS]", NULL};

const cli_command cli_agent = {
    .name = "agent",
    .summary = "Run the workers of a session on this host (train and join start it)",
    .usage = usage,
    .help =
        "Starts workers of a session and monitors them. When a worker ends, the agent notifies the "
        "other members immediately and restarts it: the first time immediately, then after a pause "
        "that doubles, at most 'elastic.restarts' times within 'elastic.restart_window'. A crash that "
        "repeats three times at the same step ends the run with an error. The agent ends with the "
        "session.\n\n"
        "SIGTERM stops training after the current step, with a checkpoint. After 'elastic.grace' "
        "seconds, or on the second signal, the workers are killed. SIGUSR1 requests a checkpoint "
        "after the step; training continues.",
    .max_arguments = CLI_MAX_ARGUMENTS,
    .options = {{.name = "session", .value = "S", .help = "The session."},
                {.name = "store", .value = "URL", .help = "Its store: local:FILE or etcd:URLS."},
                {.name = "host", .value = "NAME", .help = "The name of this host in the session."},
                {.name = "workers",
                 .letter = 'n',
                 .value = "N",
                 .help = "The number of workers. Default: 1."},
                {.name = "job",
                 .value = "FILE",
                 .help = "The session's job; '-' reads it from standard input."},
                {.name = "dir", .value = "DIR", .help = "The working directory of the workers."},
                {.name = "guest",
                 .help = "After a signal, these workers leave and the session continues."}},
    .run = agent_run,
};
