/*
 * launch_spawn.c: one rank's process: environment, fork, exec.
 *
 * All that needs memory is done before the fork; between fork and exec the child makes system calls
 * only. It asks the kernel for SIGKILL upon its parent's death and then looks whether the parent is
 * still there, so no moment is left in which the launcher could die unnoticed. Its program's start is
 * reported by a pipe that exec closes: bytes in it are the errno of what failed.
 */
#include "cluster/launch.h"

#include <tandem/os.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { OWN_VARIABLES = 4, COMMON_VARIABLES = 5, VARIABLE_BYTES = 48 };

static const char *const ours[] = {
    "TANDEM_RANK",   "TANDEM_SIZE", "TANDEM_LOCAL_RANK", "TANDEM_LOCAL_SIZE", "TANDEM_RENDEZVOUS",
    "TANDEM_SECRET", "TANDEM_RUN",  "TANDEM_TRANSPORT",  "TANDEM_JOB",
};

/* ---- the environment --------------------------------------------------------------------------- */

static const char *value_of(const char *entry, const char *name)
{
    size_t length = strlen(name);
    return strncmp(entry, name, length) == 0 && entry[length] == '=' ? entry + length + 1 : NULL;
}

static bool is_ours(const char *entry, const tdm_launch_options *options)
{
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++) {
        if (!value_of(entry, ours[i])) continue;
        /* What was not asked for otherwise passes through. */
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

/* Equal shares of the machine; with more ranks than processors the system had better decide. */
static bool choose_places(tdm__launch_plan *plan)
{
    char text[TDM_PLACE_TEXT_BYTES];
    plan->places = calloc((size_t)plan->count, sizeof *plan->places);
    if (!plan->places) return false;
    if (!tdm_os_places(plan->count, plan->places)) {
        tdm_log(TDM_LOG_INFO, "cluster", "%d ranks are not pinned: there are fewer processors",
                plan->count);
        free(plan->places);
        plan->places = NULL;
        return true;
    }
    for (int i = 0; i < plan->count; i++) {
        const tdm_place *place = &plan->places[i];
        tdm_log(TDM_LOG_INFO, "cluster", "rank %d on processors %s%s", plan->first_rank + i,
                tdm_os_place_text(place, text), place->memory_node >= 0 ? " and their memory" : "");
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
                               sizeof *plan->environment);
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
           add_variable(plan, "TANDEM_JOB", options->job) && (!options->pin || choose_places(plan));
    if (good) return TDM_OK;
    tdm__launch_plan_release(plan);
    return tdm_fail(err, TDM_ERR_NO_MEMORY, "no memory for the ranks' environment and places");
}

void tdm__launch_plan_release(tdm__launch_plan *plan)
{
    for (size_t i = 0; plan->environment && i < plan->common_count; i++) free(plan->environment[i]);
    free(plan->environment);
    free(plan->places);
    plan->environment = NULL;
    plan->places = NULL;
}

/* ---- the child ----------------------------------------------------------------------------------- */

typedef struct child {
    const tdm__launch_plan *plan;
    char own[OWN_VARIABLES][VARIABLE_BYTES];
    int report; /* where errno goes */
    int output[2];
    bool keeps_input;
    const tdm_place *place; /* NULL: anywhere */
} child;

static void fill_own(child *c, int index)
{
    const tdm__launch_plan *plan = c->plan;
    const struct {
        const char *name;
        int value;
    } own[OWN_VARIABLES] = {{"TANDEM_RANK", plan->first_rank + index},
                            {"TANDEM_SIZE", plan->size},
                            {"TANDEM_LOCAL_RANK", index},
                            {"TANDEM_LOCAL_SIZE", plan->count}};
    for (int i = 0; i < OWN_VARIABLES; i++) {
        snprintf(c->own[i], sizeof c->own[i], "%s=%d", own[i].name, own[i].value);
        plan->environment[plan->common_count + (size_t)i] = c->own[i];
    }
    plan->environment[plan->common_count + OWN_VARIABLES] = NULL;
}

static bool settle(const child *c)
{
    if (setpgid(0, 0) != 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return false;
    if (getppid() != c->plan->launcher) _exit(1); /* it died before we asked */
    if (c->place && !tdm_os_place_take(c->place)) return false;
    if (!c->keeps_input) {
        int empty = open("/dev/null", O_RDONLY);
        if (empty < 0 || dup2(empty, STDIN_FILENO) < 0) return false;
        if (empty != STDIN_FILENO) close(empty);
    }
    for (int i = 0; i < 2; i++)
        if (c->output[i] >= 0 && dup2(c->output[i], STDOUT_FILENO + i) < 0) return false;
    return signal(SIGPIPE, SIG_DFL) != SIG_ERR &&
           sigprocmask(SIG_SETMASK, &c->plan->mask, NULL) == 0;
}

__attribute__((noreturn)) static void become(const child *c)
{
    const char *const *program = c->plan->options->program;
    if (settle(c)) execvpe(program[0], (char *const *)(uintptr_t)program, c->plan->environment);
    int error_number = errno;
    ssize_t put = write(c->report, &error_number, sizeof error_number);
    _exit(put == sizeof error_number ? 127 : 126);
}

/* ---- the parent ---------------------------------------------------------------------------------- */

static bool input_is_ours(void)
{
    struct stat info;
    return fstat(STDIN_FILENO, &info) == 0 && !isatty(STDIN_FILENO);
}

/* The child's errno, or 0 when its program runs. */
static int read_report(int fd)
{
    int error_number = 0;
    ssize_t got;
    do {
        got = read(fd, &error_number, sizeof error_number);
    } while (got < 0 && errno == EINTR);
    return got == sizeof error_number ? error_number : 0;
}

static tdm_status fail_program(const char *program, int error_number, tdm_error *err)
{
    const char *hint = "";
    if (error_number == ENOENT)
        hint = strchr(program, '/') ? "" : " in PATH; a program of the current folder is ./NAME";
    else if (error_number == EACCES)
        hint = "; is it a program, and may it be executed?";
    return tdm_fail(err, tdm_os_errno_status(error_number), "cannot run %s: %s%s", program,
                    strerror(error_number), hint);
}

static void close_pipe(int pipe_ends[2])
{
    for (int i = 0; i < 2; i++)
        if (pipe_ends[i] >= 0) close(pipe_ends[i]);
}

/* Forks, and waits for the program's start. The pipes' far ends are closed here in any case. */
static tdm_status start(child *c, int report[2], tdm__launch_rank *out, tdm_error *err)
{
    pid_t pid = fork();
    if (pid == 0) become(c);
    if (pid < 0)
        return tdm_os_fail(err, "cannot start a process for", c->plan->options->program[0]);
    setpgid(pid, pid); /* so that it is done before we return, whoever runs first */
    close(report[1]);
    report[1] = -1;
    int error_number = read_report(report[0]);
    if (error_number != 0) {
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) continue;
        return fail_program(c->plan->options->program[0], error_number, err);
    }
    out->pid = pid;
    return TDM_OK;
}

tdm_status tdm__launch_spawn(const tdm__launch_plan *plan, int index, tdm__launch_rank *out,
                             tdm_error *err)
{
    child c = {.plan = plan, .output = {-1, -1}};
    int report[2] = {-1, -1}, output[2][2] = {{-1, -1}, {-1, -1}};
    fill_own(&c, index);
    if (plan->places) c.place = &plan->places[index];
    c.keeps_input = index == 0 && input_is_ours();
    tdm_status status = TDM_OK;
    if (pipe2(report, O_CLOEXEC) != 0) status = tdm_os_fail(err, "cannot make", "a pipe");
    for (int i = 0; i < 2 && status == TDM_OK && plan->options->label; i++) {
        if (pipe2(output[i], O_CLOEXEC) != 0)
            status = tdm_os_fail(err, "cannot make", "a pipe");
        else
            c.output[i] = output[i][1];
    }
    c.report = report[1];
    if (status == TDM_OK) status = start(&c, report, out, err);
    close_pipe(report);
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
