/*
 * launch.c: tdm_launch: the ranks of this host, from their start until none is left running.
 *
 * An event loop (os/loop.h) reports output, signals, exits and times. The ranks are a set of
 * processes (processes.h), which sends SIGTERM and SIGKILL. After a failure the other ranks have a
 * short time to report errors; then the set is asked to end.
 *
 * Invariant: on return, every process that was started has been waited for. A process that the
 * kernel cannot kill is reported by an error.
 */
#include "launch/launch.h"
#include "base/base.h"
#include "base/timing.h"
#include "launch/processes.h"

#include <tandem/os.h>

#include <errno.h>
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SECRET_BYTES = 16, SECRET_TEXT = 2 * SECRET_BYTES + 1 };

typedef struct launched_rank {
    tdm__process process;
    int rank;
    int wait_status;
    bool has_ended;
} launched_rank;

typedef struct launcher {
    const tdm_launch_options *options;
    int count, first_rank, size;
    char rendezvous[SECRET_TEXT + 32], secret[SECRET_TEXT]; /* used unless the options have them */
    tdm_cpu_set *places; /* one for each rank; NULL: not pinned */

    tdm__loop *loop;
    tdm__processes running;
    launched_rank *ranks;
    tdm__output output;
    tdm__loop_timer ask_timer;   /* the ranks have had their time to report */
    tdm__loop_timer drain_timer; /* see launcher_loop */
    bool has_new_exits;
    bool has_drained;
    tdm_launch_result result;
} launcher;

/* ---- set-up ---------------------------------------------------------------------------------- */

static tdm_status launcher_draw_text(char out[SECRET_TEXT], tdm_error *err)
{
    uint8_t bytes[SECRET_BYTES];
    TDM_TRY(tdm_os_random(bytes, sizeof(bytes), err));
    tdm_hex(bytes, sizeof(bytes), out);
    explicit_bzero(bytes, sizeof(bytes));
    return TDM_OK;
}

static tdm_status launcher_check_options(launcher *l, tdm_error *err)
{
    const tdm_launch_options *o = l->options;
    tdm_cpu_info cpu;
    tdm_os_cpu_info(&cpu);
    l->count = o->count > 0 ? o->count : cpu.usable_count;
    l->first_rank = o->first_rank;
    l->size = o->size > 0 ? o->size : l->count;
    if (!o->program || !o->program[0] || !o->program[0][0])
        return tdm_fail(err, TDM_ERR_INVALID, "no program to run");
    if (o->count < 0 || l->count > TDM_MAX_LAUNCH)
        return tdm_fail(err, TDM_ERR_RANGE,
                        "cannot start %d processes: the number must be from 1 to %d", l->count,
                        TDM_MAX_LAUNCH);
    if (o->first_rank < 0 || o->size < 0 || l->first_rank > l->size - l->count)
        return tdm_fail(err, TDM_ERR_RANGE,
                        "%d ranks starting at rank %d do not fit into a world of %d", l->count,
                        l->first_rank, l->size);
    if (l->size > l->count && !o->rendezvous)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "%d of %d ranks start on this host: set a rendezvous with the other hosts "
                        "(HOST:PORT of rank 0, or a file on a shared file system)",
                        l->count, l->size);
    return TDM_OK;
}

/* The absolute path of the run directory: the one given, or a new temporary one. */
static tdm_status run_directory_make(launcher *l, tdm_error *err)
{
    char *run = l->result.run;
    if (!l->options->run) {
        const char *base = getenv("TMPDIR");
        int length = snprintf(run, sizeof(l->result.run), "%s/tandem-run-XXXXXX",
                              base && base[0] == '/' ? base : "/tmp");
        if (length >= (int)sizeof(l->result.run) || !mkdtemp(run))
            return tdm_os_fail(err, "cannot create a run directory in", base ? base : "/tmp");
        l->result.run_is_temporary = true;
        return TDM_OK;
    }
    TDM_TRY(tdm_dir_make(l->options->run, err));
    tdm_arena *arena = tdm_arena_create("launch");
    const char *absolute = arena ? tdm_path_absolute(arena, l->options->run) : NULL;
    int length = absolute ? snprintf(run, sizeof(l->result.run), "%s", absolute) : -1;
    tdm_arena_destroy(arena);
    if (length > 0 && length < (int)sizeof(l->result.run)) return TDM_OK;
    run[0] = '\0';
    return tdm_fail(err, TDM_ERR_RANGE, "%s: the directory name is too long", l->options->run);
}

static int run_directory_remove_entry(const char *path, const struct stat *info, int type,
                                      struct FTW *walk)
{
    (void)info;
    (void)type;
    (void)walk;
    remove(path);
    return 0;
}

void tdm_launch_forget(tdm_launch_result *result)
{
    if (!result->run_is_temporary || !result->run[0]) return;
    nftw(result->run, run_directory_remove_entry, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
    result->run[0] = '\0';
}

/* Removes a temporary run directory after success, or if it is empty. */
static void run_directory_leave(launcher *l, bool well)
{
    if (well) tdm_launch_forget(&l->result);
    if (l->result.run_is_temporary && l->result.run[0] && rmdir(l->result.run) == 0)
        l->result.run[0] = '\0';
}

/* ---- exits ----------------------------------------------------------------------------------- */

static double launcher_grace_s(const launcher *l)
{
    return l->options->grace_s > 0 ? l->options->grace_s : TDM__TIMING_LAUNCH_GRACE_S;
}

static bool status_is_failure(int status)
{
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

/* Whether a signal killed the process from outside. SIGABRT and SIGPIPE are reactions of the
 * program to an earlier error. */
static bool status_is_kill(int status)
{
    return WIFSIGNALED(status) && WTERMSIG(status) != SIGABRT && WTERMSIG(status) != SIGPIPE;
}

/* Whether a later failure may still replace the one to report. A killed process may take longer to
 * exit (it must release its memory) than other ranks need to see the failure and exit. */
static bool failure_is_open(const launcher *l)
{
    const tdm_launch_result *so_far = &l->result;
    return so_far->failed_rank < 0 || (so_far->ended_signal == 0 && !so_far->interrupted &&
                                       l->running.stage < TDM__END_KILLED);
}

/* Whether an exit is more informative than an earlier exit code. A rank that got SIGTERM may exit
 * in any way, but a SIGKILL is from outside until the launcher sends it. */
static bool failure_says_more(const launcher *l, int status)
{
    return status_is_kill(status) &&
           (l->running.stage == TDM__END_NONE || WTERMSIG(status) == SIGKILL);
}

/* Records the failure to report: the first one. Of several before the launcher kills, a death by a
 * signal is preferred: exit codes are mostly consequences of it. */
static void failures_record(launcher *l)
{
    tdm_launch_result *out = &l->result;
    bool again = out->failed_rank >= 0;
    const launched_rank *first = NULL;
    for (int i = 0; i < l->count; i++) {
        const launched_rank *r = &l->ranks[i];
        if (!r->has_ended ||
            !(again ? failure_says_more(l, r->wait_status) : status_is_failure(r->wait_status)))
            continue;
        if (!first || (status_is_kill(r->wait_status) && !status_is_kill(first->wait_status)))
            first = r;
    }
    if (!first) return;
    out->failed_rank = first->rank;
    if (WIFSIGNALED(first->wait_status)) {
        out->ended_signal = WTERMSIG(first->wait_status);
        out->exit_code = 128 + out->ended_signal;
        snprintf(out->how, sizeof(out->how), "rank %d was killed by signal %d (%s)", first->rank,
                 out->ended_signal, strsignal(out->ended_signal));
    } else {
        out->exit_code = WEXITSTATUS(first->wait_status);
        snprintf(out->how, sizeof(out->how), "rank %d exited with code %d", first->rank,
                 out->exit_code);
    }
    /* After a signal to the launcher, ranks have the full grace time; after a failure, a short time
     * to report. */
    if (!again)
        tdm__loop_timer_set(
            l->loop, &l->ask_timer,
            tdm_clock_s() + (out->interrupted ? launcher_grace_s(l) : TDM__TIMING_LAUNCH_REPORT_S));
}

static void launcher_on_exit(tdm__process *process, pid_t pid, int wait_status, void *user)
{
    launcher *l = user;
    launched_rank *r = (launched_rank *)process; /* its first member */
    (void)pid;
    r->wait_status = wait_status;
    r->has_ended = true;
    l->has_new_exits = true;
}

/* ---- signals and times ----------------------------------------------------------------------- */

static void launcher_on_signal(int number, void *user)
{
    launcher *l = user;
    if (number == SIGUSR1) { /* forwarded to the ranks, not to what they started; ends none */
        for (int i = 0; i < l->count; i++)
            if (l->ranks[i].process.child.pid > 0) kill(l->ranks[i].process.child.pid, SIGUSR1);
    } else if (l->result.interrupted) {
        tdm__processes_kill(&l->running);
    } else {
        l->result.interrupted = true;
        tdm__processes_signal(&l->running, number);
    }
}

static void launcher_on_ask(tdm__loop_timer *timer)
{
    launcher *l = timer->user;
    tdm__processes_ask(&l->running);
    tdm__processes_signal(&l->running, SIGCONT); /* stopped processes do not handle SIGTERM */
}

static void launcher_on_drained(tdm__loop_timer *timer)
{
    launcher *l = timer->user;
    l->has_drained = true;
}

/* ---- start ----------------------------------------------------------------------------------- */

static void rank_fill_environment(const launcher *l, int index, tdm__environment *env)
{
    const tdm_launch_options *o = l->options;
    const char *replaced[10] = {
        "TANDEM_RANK",       "TANDEM_SIZE",   "TANDEM_LOCAL_RANK", "TANDEM_LOCAL_SIZE",
        "TANDEM_RENDEZVOUS", "TANDEM_SECRET", "TANDEM_RUN",
    };
    int n = 7;
    if (o->transport) replaced[n++] = "TANDEM_TRANSPORT"; /* otherwise the launcher's own value */
    if (o->job) replaced[n++] = "TANDEM_JOB";

    /* Ranks of other hosts need the same secret: with a rendezvous it comes from the user. */
    const char *secret = o->secret;
    if (!secret && o->rendezvous) secret = getenv("TANDEM_SECRET");
    if (!secret && l->size == l->count) secret = l->secret;

    tdm__environment_init(env, replaced);
    tdm__environment_add(env, "TANDEM_RANK", "%d", l->first_rank + index);
    tdm__environment_add(env, "TANDEM_SIZE", "%d", l->size);
    tdm__environment_add(env, "TANDEM_LOCAL_RANK", "%d", index);
    tdm__environment_add(env, "TANDEM_LOCAL_SIZE", "%d", l->count);
    tdm__environment_add(env, "TANDEM_RENDEZVOUS", "%s",
                         o->rendezvous ? o->rendezvous : l->rendezvous);
    if (secret) tdm__environment_add(env, "TANDEM_SECRET", "%s", secret);
    tdm__environment_add(env, "TANDEM_RUN", "%s", l->result.run);
    if (o->transport) tdm__environment_add(env, "TANDEM_TRANSPORT", "%s", o->transport);
    if (o->job) tdm__environment_add(env, "TANDEM_JOB", "%s", o->job);
}

/* The first rank inherits the launcher's standard input, unless that is a terminal. */
static bool launcher_has_input(void)
{
    struct stat info;
    return fstat(STDIN_FILENO, &info) == 0 && !isatty(STDIN_FILENO);
}

static tdm_status rank_start(launcher *l, int index, tdm_error *err)
{
    tdm__environment env;
    tdm__spawn_options options = {.program = l->options->program,
                                  .place = l->places ? &l->places[index] : NULL,
                                  .dies_with = getpid(),
                                  .keeps_input = index == 0 && launcher_has_input(),
                                  .input = -1,
                                  .output = {-1, -1}};
    l->ranks[index].rank = l->first_rank + index;
    rank_fill_environment(l, index, &env);
    options.environment = env.items;

    tdm_status status = env.failed ? tdm_fail_oom(err, "for the environment of the ranks") : TDM_OK;
    if (status == TDM_OK && l->options->label)
        status = tdm__output_open(&l->output, index, l->ranks[index].rank, options.output, err);
    if (status == TDM_OK)
        status = tdm__process_start(&l->running, &l->ranks[index].process, &options, err);
    for (int i = 0; i < 2; i++)
        if (options.output[i] >= 0) close(options.output[i]);
    tdm__environment_release(&env);
    return status;
}

static tdm_status launcher_start(launcher *l, tdm_error *err)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
    char name[SECRET_TEXT];
    TDM_TRY(launcher_draw_text(name, err));
    TDM_TRY(launcher_draw_text(l->secret, err));
    snprintf(l->rendezvous, sizeof(l->rendezvous), "unix:tandem-%s", name);
    TDM_TRY(run_directory_make(l, err));
    l->ranks = calloc((size_t)l->count, sizeof(*l->ranks));
    if (!l->ranks) return tdm_fail_oom(err, "for %d ranks", l->count);
    if (l->options->pin) TDM_TRY(tdm__process_places(l->count, &l->places, err));

    TDM_TRY(tdm__loop_create(&l->loop, err));
    if (l->options->label) TDM_TRY(tdm__output_init(&l->output, l->loop, l->count, err));
    TDM_TRY(tdm__loop_signals(l->loop, signals, sizeof(signals) / sizeof(signals[0]),
                              launcher_on_signal, l, err));
    l->running = (tdm__processes){
        .loop = l->loop, .on_exit = launcher_on_exit, .user = l, .grace_s = launcher_grace_s(l)};
    for (int i = 0; i < l->count; i++) TDM_TRY(rank_start(l, i, err));
    return TDM_OK;
}

/* ---- launch ---------------------------------------------------------------------------------- */

/* Processes that a rank started may keep its pipes open after its exit: they have a short time for
 * their output. Lines that were received are written however long that takes, until a second signal
 * arrives. */
static tdm_status launcher_loop(launcher *l, tdm_error *err)
{
    for (;;) {
        if (l->has_new_exits && failure_is_open(l)) failures_record(l);
        l->has_new_exits = false;
        if (l->running.count > 0 && l->running.stage == TDM__END_ABANDONED)
            return tdm_fail(err, TDM_ERR_TIMEOUT,
                            "%d ranks are still running although they were killed",
                            l->running.count);
        if (l->running.count == 0) {
            if (!l->drain_timer.is_set && !l->has_drained)
                tdm__loop_timer_set(l->loop, &l->drain_timer,
                                    tdm_clock_s() + TDM__TIMING_LAUNCH_DRAIN_S);
            if (!tdm__output_is_pending(&l->output, !l->has_drained)) return TDM_OK;
            if (l->has_drained && l->running.stage >= TDM__END_KILLED) return TDM_OK;
        }
        TDM_TRY(tdm__loop_turn(l->loop, INFINITY, err));
    }
}

static void launcher_release(launcher *l)
{
    tdm__output_release(&l->output);
    tdm__loop_destroy(l->loop);
    free(l->ranks);
    free(l->places);
    explicit_bzero(l->secret, sizeof(l->secret));
}

tdm_status tdm_launch(const tdm_launch_options *options, tdm_launch_result *out, tdm_error *err)
{
    launcher l = {.options = options,
                  .ask_timer = {.on_time = launcher_on_ask, .user = &l},
                  .drain_timer = {.on_time = launcher_on_drained, .user = &l},
                  .result = {.failed_rank = -1}};
    tdm_error ignored;
    TDM_TRY(launcher_check_options(&l, err));
    tdm_status status = launcher_start(&l, err);
    if (status == TDM_OK) {
        status = launcher_loop(&l, err);
    } else if (l.running.count > 0) {
        tdm__processes_kill(&l.running);
        (void)launcher_loop(&l, &ignored);
    }

    l.result.output_errno = l.output.queues[0].why ? l.output.queues[0].why
                                                   : l.output.queues[1].why;
    bool nothing_ran = status != TDM_OK && l.running.count == 0;
    run_directory_leave(&l, nothing_ran || (l.result.failed_rank < 0 && !l.result.interrupted));
    launcher_release(&l);
    if (status == TDM_OK) *out = l.result;
    return status;
}
