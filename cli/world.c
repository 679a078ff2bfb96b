/*
 * world.c: commands as ranks of a world, and the launcher of such ranks.
 *
 * The launcher checks the job before it starts ranks. The ranks execute the same command; their
 * rank is in the environment. Only rank 0 prints, on the streams that it shares with the launcher.
 * The launcher prints how a rank died, because the rank itself cannot. tdm_launch forwards signals:
 * the first one asks all ranks to stop after their step, the second one kills them.
 */
#include "world.h"

#include <tandem/cluster.h>
#include <tandem/os.h>
#include <tandem/parallel.h>
#include <tandem/train.h>

#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Environment variable: the launcher of this rank has already printed the warnings of the job. */
#define LAUNCHED "TANDEM_LAUNCHED_BY"

/* Deadline of calls between ranks. It is long because a step, a batch of an evaluation or a
 * checkpoint may take long; the death of a rank is detected immediately in any case. */
static const double deadline_s = 600;

/* ---- the rank of this process ---------------------------------------------------------------- */

static bool was_launched(const cli_args *args)
{
    const char *by = getenv(LAUNCHED);
    return by && strcmp(by, args->command->name) == 0;
}

/* Messages that all ranks of a host would print are printed by one of them; warnings only if the
 * launcher has not printed them. */
static void become_rank(const cli_args *args, const tdm_comm_place *place)
{
    bool prints = place->rank == 0 || place->local_rank <= 0;
    cli_hush(!prints ? CLI_SAY_NOTHING : was_launched(args) ? CLI_SAY_ERRORS : CLI_SAY_ALL);
    signal(SIGTTOU, SIG_IGN); /* ranks are in the background of their terminal and write to it */
}

bool world_place(const cli_args *args, tdm_comm_place *out)
{
    tdm_error err;
    *out = (tdm_comm_place){.size = 0};
    tdm_status status = tdm_comm_environment(out, &err);
    if (status == TDM_ERR_NOT_FOUND) *out = (tdm_comm_place){.size = 0};
    if (status != TDM_OK && status != TDM_ERR_NOT_FOUND) {
        cli_error("%s: %s", args->command->name, err.message);
        return false;
    }
    /* A Slurm batch script has a task number as well, but is not a task of srun. */
    if (out->launcher && strcmp(out->launcher, "slurm") == 0 && !getenv("SLURM_STEP_NUM_TASKS"))
        *out = (tdm_comm_place){.size = 0};
    if (out->size > 0) become_rank(args, out);
    return true;
}

int world_count(const cli_args *args, const tdm_job *job, const tdm_comm_place *place,
                int64_t asked, int64_t usual)
{
    const char *command = args->command->name;
    tdm_rank_limit limit = tdm_rank_limit_of(job);
    if (place->size > 0 && asked > 0 && asked != place->size) {
        cli_error("%s: -n %lld conflicts with the launcher: this process is rank %d of %d, started "
                  "by %s; remove -n",
                  command, (long long)asked, place->rank, place->size, place->launcher);
        return 0;
    }
    int64_t count = place->size > 0 ? place->size : asked > 0 ? asked : usual;
    if (count <= limit.count && (place->size > 0 || count <= TDM_MAX_LAUNCH)) return (int)count;
    if (count > limit.count)
        cli_error("%s: %lld workers need at least as many %s, but the job has %lld; use at most "
                  "%lld workers, or increase %s (which changes the result)",
                  command, (long long)count, limit.units, (long long)limit.count,
                  (long long)limit.count, limit.key);
    else
        cli_error("%s: at most %d workers can be started on a host", command, TDM_MAX_LAUNCH);
    return 0;
}

/* ---- a rank ---------------------------------------------------------------------------------- */

bool world_is_peer(tdm_status status)
{
    return status >= TDM_ERR_PEER_FAILED && status <= TDM_ERR_PEER_FENCED;
}

int world_join(const tdm_job *job, const tdm_comm_place *place, tdm_comm **out)
{
    char hash[TDM_SHA256_HEX];
    const char *deadline = getenv("TANDEM_DEADLINE");
    tdm_error err = {0};
    *out = NULL;
    cli_hush(place->rank == 0 ? CLI_SAY_ALL : CLI_SAY_NOTHING);
    if (tdm_job_hash(job, hash, &err) != TDM_OK) return cli_fail(&err);
    tdm_comm_options options = {.job = hash, .deadline_s = deadline && *deadline ? 0 : deadline_s};
    tdm_train_comm(job, &options);
    if (tdm_comm_open(&options, out, &err) == TDM_OK) return CLI_OK;
    /* Only a rejected rank has the reason, so it prints it. */
    if (err.status == TDM_ERR_PEER_REFUSED) cli_hush(CLI_SAY_ALL);
    int code = cli_fail(&err);
    return world_is_peer(err.status) ? CLI_PEER : code;
}

bool world_tells(tdm_comm *comm)
{
    if (!comm) return true;
    for (int i = 0; i < tdm_comm_rank(comm); i++)
        if (tdm_comm_peer_state(comm, i) != TDM_PEER_LOST) return false;
    return true;
}

int world_fail(const tdm_error *err, tdm_comm *comm)
{
    cli_hush(world_tells(comm) ? CLI_SAY_ALL : CLI_SAY_NOTHING);
    int code = cli_fail(err);
    return world_is_peer(err->status) ? CLI_PEER : code;
}

/* ---- the launcher ---------------------------------------------------------------------------- */

/* Options that add_options does not copy from the list of options. */
static bool option_is_separate(const char *option)
{
    return strcmp(option, "workers") == 0 || strcmp(option, "set") == 0;
}

/* Appends the given options to the `n` words and returns the new number; a NULL word means out of
 * memory. */
static int add_options(const cli_args *args, tdm_arena *arena, const char **words, int n)
{
    const cli_option *options = args->command->options;
    for (int i = 0; i < CLI_MAX_OPTIONS && options[i].name; i++) {
        if (args->given[i] == 0 || option_is_separate(options[i].name)) continue;
        words[n++] = tdm_arena_printf(arena, "--%s", options[i].name);
        if (options[i].value) words[n++] = args->values[i];
    }
    for (int i = 0; i < args->set_count; i++) {
        words[n++] = "--set";
        words[n++] = args->sets[i];
    }
    return n;
}

const char *const *world_words(const cli_args *args, tdm_arena *arena)
{
    enum { MAX_WORDS = 4 + 2 * CLI_MAX_OPTIONS + 2 * CLI_MAX_SETS + CLI_MAX_ARGUMENTS };
    char self[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (length <= 0) {
        cli_error("%s: cannot read the path of this program from /proc/self/exe; use -n 1",
                  args->command->name);
        return NULL;
    }
    self[length] = '\0';
    const char **words = tdm_arena_array(arena, MAX_WORDS, sizeof(*words));
    int n = 0;
    if (words) {
        words[n++] = tdm_arena_strdup(arena, self);
        words[n++] = args->command->name;
        n = add_options(args, arena, words, n);
        words[n++] = "--"; /* the path of a job may begin with a dash */
        for (int i = 0; i < args->argument_count; i++) words[n++] = args->arguments[i];
        words[n] = NULL;
    }
    bool whole = words != NULL;
    for (int i = 0; i < n; i++) whole = whole && words[i];
    if (whole) return words;
    cli_error("%s: out of memory", args->command->name);
    return NULL;
}

static int launch_report(tdm_launch_result *result)
{
    bool killed = result->ended_signal != 0 && !result->interrupted;
    if (killed) cli_error("%s", result->how);
    /* Keep the traces only if a rank was killed or failed; an invalid or stopped job needs none. */
    if (!killed && result->exit_code != CLI_PEER) tdm_launch_forget(result);
    if (result->run[0])
        cli_error("'tandem trace %s' shows the last events of each rank",
                  cli_short_path(result->run));
    if (result->failed_rank < 0) return CLI_OK;
    return result->ended_signal != 0 && result->interrupted ? CLI_INTERRUPTED : result->exit_code;
}

static int launch_ranks(const cli_args *args, const tdm_job *job, int count, tdm_arena *arena)
{
    char hash[TDM_SHA256_HEX];
    tdm_error err = {0};
    const char *const *program = arena ? world_words(args, arena) : NULL;
    if (!program) return CLI_FAILED;
    if (tdm_job_hash(job, hash, &err) != TDM_OK) return cli_fail(&err);
    if (setenv(LAUNCHED, args->command->name, 1) != 0) {
        cli_error("%s: out of memory", args->command->name);
        return CLI_FAILED;
    }
    const tdm_launch_options options = {.program = program,
                                        .count = count,
                                        .transport = tdm_train_transport(job),
                                        .job = hash,
                                        .pin = true};
    tdm_launch_result result;
    if (tdm_launch(&options, &result, &err) != TDM_OK) return cli_fail(&err);
    return launch_report(&result);
}

int world_launch(const cli_args *args, const tdm_job *job, int count)
{
    tdm_arena *arena = tdm_arena_create("command");
    int code = launch_ranks(args, job, count, arena);
    tdm_arena_destroy(arena);
    return code;
}
