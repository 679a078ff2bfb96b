/*
 * elastic.c: the launcher of a session of `tandem train`.
 *
 * The job is already loaded and checked. The launcher passes it on as text, with all keys and
 * absolute paths, so that a worker that is restarted later has the same job even if the file has
 * changed. Rank 0 prints, on streams that it inherited. The launcher prints only failures and the
 * state of the agents.
 */
#include "elastic.h"

#include "session.h"
#include "train.h"
#include "world.h"

#include <tandem/os.h>
#include <tandem/parallel.h>

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_HOSTS = 1024, MAX_WORDS = 8 };

/* ---- hosts and limits ------------------------------------------------------------------------ */

bool elastic_is_fixed(const cli_args *args)
{
    static const char *const options[] = {"hosts", "min", "max", "store"};
    const char *set = getenv("TANDEM_ELASTIC");
    bool is_fixed = set && strcmp(set, "0") == 0;
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
        is_fixed = is_fixed && !cli_has(args, options[i]);
    return is_fixed;
}

bool elastic_is_wanted(const cli_args *args, int64_t count)
{
    return count > 1 || cli_has(args, "hosts") || cli_has(args, "max") || cli_has(args, "min");
}

bool elastic_use_store(cli_args *args, tdm_arena *arena)
{
    const char *url = cli_value(args, "store");
    if (!url) return true;
    const char *place = strncmp(url, "etcd:", 5) == 0 ? url + 5 : NULL;
    bool is_local = strcmp(url, "local") == 0;
    if (!is_local && (!place || !*place)) {
        cli_error("train: '--store' expects etcd:http://HOST:2379 (several separated by commas) or "
                  "local, not '%s'",
                  url);
        return false;
    }
    if (args->set_count + 2 > CLI_MAX_SETS) {
        cli_error("train: too many --set options (maximum %d with --store)", CLI_MAX_SETS - 2);
        return false;
    }
    args->sets[args->set_count++] = is_local ? "store=local" : "store=etcd";
    if (place) args->sets[args->set_count++] = tdm_arena_printf(arena, "etcd.endpoints=%s", place);
    return args->sets[args->set_count - 1] != NULL;
}

/* Parses a host such as "alpha" or "user@beta:4"; `usual` is the number of workers without a
 * colon. */
static bool read_host(char *text, int64_t usual, tdm_session_start *out)
{
    char *colon = strchr(text, ':'), *end = NULL;
    int64_t count = usual;
    if (colon) {
        *colon = '\0';
        errno = 0;
        count = strtoll(colon + 1, &end, 10);
        if (!colon[1] || *end || errno || count < 1 || count > TDM_MAX_LAUNCH) {
            cli_error("train: '--hosts %s:%s': expected HOST:N with N from 1 to %d", text,
                      colon + 1, TDM_MAX_LAUNCH);
            return false;
        }
    }
    const char *at = strchr(text, '@'), *name = at ? at + 1 : text;
    if (!session_name_is_valid(name, TDM_HOST_BYTES) || *name == '-' || *text == '-') {
        cli_error("train: '--hosts': '%s' is not a valid host name", text);
        return false;
    }
    bool is_here = strcmp(text, "localhost") == 0;
    *out = (tdm_session_start){
        .host = is_here ? NULL : name, .target = is_here ? NULL : text, .count = (int)count};
    return true;
}

static const char *name_of(const tdm_session_start *start)
{
    return start->host ? start->host : "localhost";
}

/* Parses --hosts and returns the number of hosts; 0 after an error message. */
static int read_hosts(const cli_args *args, int64_t usual, tdm_session_start *starts,
                      tdm_arena *arena)
{
    char *list = tdm_arena_strdup(arena, cli_value(args, "hosts")), *rest = NULL;
    int count = 0;
    for (char *word = list ? strtok_r(list, ",", &rest) : NULL; word;
         word = strtok_r(NULL, ",", &rest)) {
        if (count == MAX_HOSTS) {
            cli_error("train: '--hosts' accepts at most %d hosts", MAX_HOSTS);
            return 0;
        }
        if (!read_host(word, usual, &starts[count])) return 0;
        for (int i = 0; i < count; i++)
            if (strcmp(name_of(&starts[i]), name_of(&starts[count])) == 0) {
                cli_error("train: '--hosts' names %s twice; use NAME:N for N workers",
                          name_of(&starts[i]));
                return 0;
            }
        count++;
    }
    if (count == 0) cli_error("train: '--hosts' expects host names, such as alpha,beta:4");
    return count;
}

/* Reads the limits and checks them against each other and the number of lanes or replicas. */
static bool read_limits(const cli_args *args, const tdm_job *job, int64_t started,
                        tdm_session_options *options)
{
    tdm_rank_limit limit = tdm_rank_limit_of(job);
    int64_t min = job->elastic.min, max = job->elastic.max;
    if (!cli_int(args, "min", 1, TDM_MAX_RANKS, &min) ||
        !cli_int(args, "max", 1, TDM_MAX_RANKS, &max))
        return false;
    options->is_fixed = elastic_is_fixed(args);
    if (options->is_fixed) min = max = started;
    if (min < 1) min = 1;
    if (max < 1) max = started > min ? started : min;
    if (started > limit.count || max > limit.count) {
        cli_error("train: %lld workers need at least as many %s, but the job has %lld; use at "
                  "most %lld workers, or increase %s (which changes the result)",
                  (long long)(started > max ? started : max), limit.units, (long long)limit.count,
                  (long long)limit.count, limit.key);
        return false;
    }
    if (started > max || min > max) {
        cli_error("train: --min %lld, --max %lld and %lld workers to start conflict: --min and the "
                  "number of workers must not exceed --max",
                  (long long)min, (long long)max, (long long)started);
        return false;
    }
    options->min = (int)min;
    options->max = (int)max;
    return true;
}

/* ---- messages -------------------------------------------------------------------------------- */

static void launcher_print(void *user, const char *text)
{
    const cli_args *args = user;
    if (cli_json(args)) return;
    if (isatty(STDERR_FILENO)) fputs("\r\033[K", stderr); /* erase a progress line */
    fprintf(stderr, "tandem: %s\n", text);
}

static void print_how_to_resume(const tdm_session_result *result, int64_t count)
{
    char *checkpoint = NULL;
    tdm_arena *arena = tdm_arena_create("checkpoint");
    bool can_resume = arena && result->run[0] &&
                      tdm_run_checkpoint(result->run, arena, &checkpoint, NULL) == TDM_OK;
    if (can_resume)
        fprintf(stderr, "to resume      tandem train --resume %s -n %lld\n",
                cli_short_path(result->run), (long long)count);
    else
        fprintf(stderr, "no checkpoint was written: the next run starts from the beginning\n");
    tdm_arena_destroy(arena);
}

static int launcher_finish(const cli_args *args, const tdm_session_result *result, int64_t count)
{
    if (result->status == TDM_OK) {
        if (result->exit_code != 0) return result->exit_code;
        return result->stopped && result->agent_lost ? CLI_INTERRUPTED : CLI_OK;
    }
    tdm_error err = {.status = result->status};
    snprintf(err.message, sizeof(err.message), "%.999s", result->message);
    int code = cli_fail(&err);
    bool is_peer = world_is_peer(err.status);
    if ((is_peer || err.status == TDM_ERR_INTERRUPTED) && !cli_json(args))
        print_how_to_resume(result, count);
    return is_peer ? CLI_PEER : code;
}

/* ---- launching ------------------------------------------------------------------------------- */

/* Fills the words of a worker's command line after `tandem train`, without the job. */
static bool fill_words(const cli_args *args, tdm_arena *arena, const char **words)
{
    int n = 0;
    if (cli_has(args, "resume")) {
        words[n++] = "--resume";
        words[n] = tdm_path_absolute(arena, cli_value(args, "resume"));
        if (!words[n++]) return false;
    }
    if (cli_has(args, "quiet")) words[n++] = "--quiet";
    if (cli_json(args)) words[n++] = "--json";
    return true;
}

static int session_launch(const cli_args *args, const tdm_job *job, const elastic_plan *plan,
                          tdm_arena *arena, tdm_str *text)
{
    const char *words[MAX_WORDS] = {NULL};
    tdm_session_start *starts = tdm_arena_array(arena, MAX_HOSTS + 1, sizeof(*starts));
    tdm_session_options options = {.name = job->name,
                                   .session = plan->session,
                                   .coming = (int)plan->coming,
                                   .tandem = session_self("train", arena),
                                   .remote_tandem = cli_value(args, "remote-tandem"),
                                   .words = words,
                                   .starts = starts,
                                   .start_count = 1,
                                   .grace_s = job->elastic.grace,
                                   .say = launcher_print,
                                   .user = (void *)(uintptr_t)args};
    if (!starts || !options.tandem || !fill_words(args, arena, words)) return CLI_FAILED;
    int code = session_store_of(job, arena, &options.kv);
    if (code != CLI_OK) return code;
    if (strstr(elastic_transport(job), "mpi")) {
        cli_error("train: the transport mpi requires ranks that mpirun or srun starts: run 'tandem "
                  "train' under one of them, or set comm.transport to auto");
        return CLI_USAGE;
    }
    starts[0] = (tdm_session_start){.host = plan->host, .count = (int)plan->count};
    if (cli_has(args, "hosts")) options.start_count = read_hosts(args, plan->count, starts, arena);
    if (options.start_count == 0) return CLI_USAGE;
    if (cli_has(args, "hosts") && !options.kv.url) {
        cli_error(
            "train: '--hosts' requires a store that all hosts can reach: set 'store: etcd' and "
            "'etcd.endpoints' in the job, or use --store etcd:http://HOST:2379");
        return CLI_USAGE;
    }
    int64_t started = plan->coming;
    for (int i = 0; i < options.start_count; i++) started += starts[i].count;
    if (!read_limits(args, job, started, &options)) return CLI_USAGE;
    tdm_job_show(job, text);
    options.job_text = tdm_str_text(text);
    tdm_session_result result;
    tdm_error err;
    if (tdm_session_launch(&options, &result, &err) != TDM_OK) return cli_fail(&err);
    return launcher_finish(args, &result, plan->count + plan->coming);
}

void elastic_hold_signals(void)
{
    sigset_t held;
    sigemptyset(&held);
    sigaddset(&held, SIGINT);
    sigaddset(&held, SIGTERM);
    sigaddset(&held, SIGUSR1);
    sigprocmask(SIG_BLOCK, &held, NULL);
}

int elastic_launch(const cli_args *args, const tdm_job *job, const elastic_plan *plan)
{
    tdm_arena *arena = tdm_arena_create("command");
    tdm_str text = TDM_STR_INIT;
    int code = arena ? session_launch(args, job, plan, arena, &text) : CLI_FAILED;
    tdm_str_release(&text);
    tdm_arena_destroy(arena);
    return code;
}
