/*
 * launch_spawn.c: starts the process of one rank: its environment, CPUs and pipes.
 *
 * Common settings are prepared once; each rank adds its position in the world. A rank dies with the
 * launcher (see spawn.c). The first rank inherits the launcher's standard input, unless that is a
 * terminal.
 */
#include "base/base.h"
#include "launch/launch.h"
#include "launch/spawn.h"

#include <tandem/os.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

enum { OWN_VARIABLES = 4, COMMON_VARIABLES = 5, VARIABLE_BYTES = 48 };

static const char *const ours[] = {
    "TANDEM_RANK",   "TANDEM_SIZE", "TANDEM_LOCAL_RANK", "TANDEM_LOCAL_SIZE", "TANDEM_RENDEZVOUS",
    "TANDEM_SECRET", "TANDEM_RUN",  "TANDEM_TRANSPORT",  "TANDEM_JOB",
};

/* ---- environment ----------------------------------------------------------------------------- */

static const char *value_of(const char *entry, const char *name)
{
    size_t length = strlen(name);
    return strncmp(entry, name, length) == 0 && entry[length] == '=' ? entry + length + 1 : NULL;
}

static bool is_ours(const char *entry, const tdm_launch_options *options)
{
    for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++) {
        if (!value_of(entry, ours[i])) continue;
        /* Variables without an option are passed through. */
        bool passes = (strcmp(ours[i], "TANDEM_TRANSPORT") == 0 && !options->transport) ||
                      (strcmp(ours[i], "TANDEM_JOB") == 0 && !options->job);
        return !passes;
    }
    return false;
}

static bool add_variable(tdm__launch_plan *plan, const char *name, const char *value)
{
    char *entry = NULL;
    if (!value) return true;
    if (asprintf(&entry, "%s=%s", name, value) < 0) return false;
    plan->environment[plan->common_count++] = entry;
    return true;
}

/* Divides the CPUs equally; with more ranks than CPUs the kernel schedules them. */
static bool plan_choose_cpus(tdm__launch_plan *plan)
{
    char text[TDM_CPU_SET_TEXT_BYTES];
    plan->places = calloc((size_t)plan->count, sizeof(*plan->places));
    if (!plan->places) return false;
    if (!tdm_os_cpu_sets(plan->count, plan->places)) {
        tdm_log(TDM_LOG_INFO, "cluster", "%d ranks are not pinned: there are fewer CPUs",
                plan->count);
        free(plan->places);
        plan->places = NULL;
        return true;
    }
    for (int i = 0; i < plan->count; i++) {
        const tdm_cpu_set *place = &plan->places[i];
        tdm_log(TDM_LOG_INFO, "cluster", "rank %d on CPUs %s%s", plan->first_rank + i,
                tdm_os_cpu_set_text(place, text),
                place->memory_node >= 0 ? " and their memory" : "");
    }
    return true;
}

tdm_status tdm__launch_plan_init(tdm__launch_plan *plan, const char *rendezvous, const char *secret,
                                 const char *run, tdm_error *err)
{
    const tdm_launch_options *options = plan->options;
    size_t inherited = 0;
    while (environ && environ[inherited]) inherited++;
    plan->launcher = getpid();
    plan->environment = calloc(inherited + COMMON_VARIABLES + OWN_VARIABLES + 1,
                               sizeof(*plan->environment));
    bool good = plan->environment != NULL;
    for (size_t i = 0; good && i < inherited; i++) {
        if (is_ours(environ[i], options)) continue;
        char *copy = strdup(environ[i]);
        good = copy != NULL;
        if (good) plan->environment[plan->common_count++] = copy;
    }
    good = good && add_variable(plan, "TANDEM_RENDEZVOUS", rendezvous) &&
           add_variable(plan, "TANDEM_SECRET", secret) && add_variable(plan, "TANDEM_RUN", run) &&
           add_variable(plan, "TANDEM_TRANSPORT", options->transport) &&
           add_variable(plan, "TANDEM_JOB", options->job) &&
           (!options->pin || plan_choose_cpus(plan));
    if (good) return TDM_OK;
    tdm__launch_plan_release(plan);
    return tdm_fail_oom(err, "for the environment and CPU sets of the ranks");
}

void tdm__launch_plan_release(tdm__launch_plan *plan)
{
    for (size_t i = 0; plan->environment && i < plan->common_count; i++) {
        explicit_bzero(plan->environment[i], strlen(plan->environment[i])); /* one is the secret */
        free(plan->environment[i]);
    }
    free(plan->environment);
    free(plan->places);
    plan->environment = NULL;
    plan->places = NULL;
}

/* ---- process --------------------------------------------------------------------------------- */

/* Appends the variables of this rank to the common ones. */
static void plan_fill_rank_variables(const tdm__launch_plan *plan, int index,
                                     char texts[OWN_VARIABLES][VARIABLE_BYTES])
{
    const struct {
        const char *name;
        int value;
    } own[OWN_VARIABLES] = {{"TANDEM_RANK", plan->first_rank + index},
                            {"TANDEM_SIZE", plan->size},
                            {"TANDEM_LOCAL_RANK", index},
                            {"TANDEM_LOCAL_SIZE", plan->count}};
    for (int i = 0; i < OWN_VARIABLES; i++) {
        snprintf(texts[i], VARIABLE_BYTES, "%s=%d", own[i].name, own[i].value);
        plan->environment[plan->common_count + (size_t)i] = texts[i];
    }
    plan->environment[plan->common_count + OWN_VARIABLES] = NULL;
}

static bool input_is_ours(void)
{
    struct stat info;
    return fstat(STDIN_FILENO, &info) == 0 && !isatty(STDIN_FILENO);
}

static void close_pipe(int pipe_ends[2])
{
    for (int i = 0; i < 2; i++)
        if (pipe_ends[i] >= 0) close(pipe_ends[i]);
}

tdm_status tdm__launch_spawn(const tdm__launch_plan *plan, int index, tdm__launch_rank *out,
                             tdm_error *err)
{
    char own[OWN_VARIABLES][VARIABLE_BYTES];
    int output[2][2] = {{-1, -1}, {-1, -1}};
    plan_fill_rank_variables(plan, index, own);
    tdm__spawn_options options = {.program = plan->options->program,
                                  .environment = plan->environment,
                                  .place = plan->places ? &plan->places[index] : NULL,
                                  .mask = &plan->mask,
                                  .dies_with = plan->launcher,
                                  .keeps_input = index == 0 && input_is_ours(),
                                  .input = -1,
                                  .output = {-1, -1}};
    tdm_status status = TDM_OK;
    for (int i = 0; i < 2 && status == TDM_OK && plan->options->label; i++) {
        if (pipe2(output[i], O_CLOEXEC) != 0)
            status = tdm_os_fail(err, "cannot create", "a pipe");
        else
            options.output[i] = output[i][1];
    }
    if (status == TDM_OK) status = tdm__spawn(&options, &out->pid, err);
    for (int i = 0; i < 2; i++) {
        if (status == TDM_OK && output[i][0] >= 0) {
            out->streams[i].fd = output[i][0];
            fcntl(output[i][0], F_SETFL, O_NONBLOCK);
            output[i][0] = -1;
        }
        close_pipe(output[i]);
    }
    return status;
}
