/*
 * train_launch.c: `tandem train` as the launcher of its own ranks.
 *
 * The launcher has checked the job before it starts anybody. The ranks are this very program with the
 * same words; they find their places in the environment. Rank 0 does all the talking, on the streams
 * that it has in common with the launcher. What is left to say here is how a rank died, for that
 * it cannot say itself. Signals are passed on by tdm_launch: the first one asks all ranks to stop after
 * their step, the second one kills them.
 */
#include "train.h"

#include <tandem/cluster.h>

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Tells ranks that their launcher has shown the job's warnings already. */
#define LAUNCHED "TANDEM_LAUNCHED_BY"
#define LAUNCHER "train"

bool train_was_launched(void)
{
    const char *by = getenv(LAUNCHED);
    return by && strcmp(by, LAUNCHER) == 0;
}

enum { WORDS_MOST = 16 + 2 * CLI_MAX_SETS };

/* The words of this command, but for -n: a world knows its size. */
static void add_words(const cli_args *args, const char **program)
{
    int n = 0;
    while (program[n]) n++;
    if (cli_has(args, "resume")) {
        program[n++] = "--resume";
        program[n++] = cli_value(args, "resume");
    }
    for (int i = 0; i < args->set_count; i++) {
        program[n++] = "--set";
        program[n++] = args->sets[i];
    }
    if (cli_has(args, "quiet")) program[n++] = "--quiet";
    if (cli_json(args)) program[n++] = "--json";
    if (args->argument_count > 0) {
        program[n++] = "--"; /* a job's name may begin with a dash */
        program[n++] = args->arguments[0];
    }
}

static int report(tdm_launch_result *result)
{
    bool killed = result->ended_signal != 0 && !result->interrupted;
    if (killed) cli_error("%s", result->how);
    /* Traces tell who waited for whom; a job that is wrong, or was stopped, leaves none behind. */
    if (!killed && result->exit_code != CLI_PEER) tdm_launch_forget(result);
    if (result->run[0])
        cli_error("'tandem trace %s' shows what each rank did last", cli_short_path(result->run));
    if (result->failed_rank < 0) return CLI_OK;
    return result->ended_signal != 0 && result->interrupted ? CLI_INTERRUPTED : result->exit_code;
}

int train_launch(const cli_args *args, const tdm_job *job, int count)
{
    char self[PATH_MAX], hash[TDM_SHA256_HEX];
    tdm_error err = {0};
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (length <= 0) {
        cli_error("train: the path of this program cannot be found in /proc/self/exe; -n 1 does "
                  "without it");
        return CLI_FAILED;
    }
    self[length] = '\0';
    if (tdm_job_hash(job, hash, &err) != TDM_OK) return cli_fail(&err);
    const char *program[WORDS_MOST] = {self, "train"};
    add_words(args, program);
    if (setenv(LAUNCHED, LAUNCHER, 1) != 0) {
        cli_error("train: no memory");
        return CLI_FAILED;
    }
    const tdm_launch_options options = {.program = program,
                                        .count = count,
                                        .transport = train_transport(job),
                                        .job = hash,
                                        .pin = true};
    tdm_launch_result result;
    if (tdm_launch(&options, &result, &err) != TDM_OK) return cli_fail(&err);
    return report(&result);
}
