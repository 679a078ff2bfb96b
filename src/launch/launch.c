/*
 * launch.c: starts the ranks of this host, watches them and makes sure that none is left running.
 *
 * One loop waits for output, for signals (through a signalfd; they are blocked meanwhile) and for
 * timeouts. After every wake-up it checks which ranks have exited. Ending has three stages: none,
 * SIGTERM and SIGKILL; each stage has a time at which the next one follows, so the loop terminates.
 * Only processes started here are waited for: the program may have other children.
 *
 * Invariant: on return, every process that was started has been waited for. A process that the
 * kernel cannot kill is reported by an error.
 */
#include "launch/launch.h"
#include "base/base.h"

#include <tandem/os.h>

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    TICK_MS = 100, /* maximum delay until an exit is noticed if its signal is lost */
    SECRET_BYTES = 16,
    SECRET_TEXT = 2 * SECRET_BYTES + 1
};
static const double moment_s = 2; /* for the other ranks to report errors, on a busy host as well */
static const double grace_s = 5;  /* from SIGTERM to SIGKILL */
static const double drain_s = 1;  /* time for output of processes that a rank started */
static const double undead_s = 20; /* from SIGKILL until the launcher gives up */

typedef struct launcher {
    const tdm_launch_options *options;
    tdm__launch_plan plan;
    tdm__launch_rank *ranks;
    int running;
    tdm__launch_queue queues[2];
    struct pollfd *polls;
    int signals; /* a signalfd */
    sigset_t taken, before;
    double grace_s;
    double ask_at_s, kill_at_s, end_at_s; /* INFINITY: not yet */
    bool asked, killed;
    tdm_launch_result result;
} launcher;

/* ---- set-up ---------------------------------------------------------------------------------- */

static tdm_status random_text(char out[SECRET_TEXT], tdm_error *err)
{
    uint8_t bytes[SECRET_BYTES];
    TDM_TRY(tdm_os_random(bytes, sizeof(bytes), err));
    tdm_hex(bytes, sizeof(bytes), out);
    explicit_bzero(bytes, sizeof(bytes));
    return TDM_OK;
}

static tdm_status check_options(launcher *l, tdm_error *err)
{
    const tdm_launch_options *o = l->options;
    tdm__launch_plan *plan = &l->plan;
    tdm_cpu_info cpu;
    tdm_os_cpu_info(&cpu);
    plan->options = o;
    plan->count = o->count > 0 ? o->count : cpu.usable_count;
    plan->first_rank = o->first_rank;
    plan->size = o->size > 0 ? o->size : plan->count;
    if (!o->program || !o->program[0] || !o->program[0][0])
        return tdm_fail(err, TDM_ERR_INVALID, "no program to run");
    if (o->count < 0 || plan->count > TDM_MAX_LAUNCH)
        return tdm_fail(err, TDM_ERR_RANGE,
                        "cannot start %d processes: the number must be from 1 to %d", plan->count,
                        TDM_MAX_LAUNCH);
    if (o->first_rank < 0 || o->size < 0 || plan->first_rank > plan->size - plan->count)
        return tdm_fail(err, TDM_ERR_RANGE,
                        "%d ranks starting at rank %d do not fit into a world of %d", plan->count,
                        plan->first_rank, plan->size);
    if (plan->size > plan->count && !o->rendezvous)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "%d of %d ranks start on this host: set a rendezvous with the other hosts "
                        "(HOST:PORT of rank 0, or a file on a shared file system)",
                        plan->count, plan->size);
    l->grace_s = o->grace_s > 0 ? o->grace_s : grace_s;
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

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *walk)
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
    nftw(result->run, remove_entry, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
    result->run[0] = '\0';
}

/* Removes a temporary run directory after success, or if it is empty. */
static void run_directory_leave(launcher *l, bool well)
{
    if (well) tdm_launch_forget(&l->result);
    if (l->result.run_is_temporary && l->result.run[0] && rmdir(l->result.run) == 0)
        l->result.run[0] = '\0';
}

static tdm_status launcher_prepare(launcher *l, tdm_error *err)
{
    char secret[SECRET_TEXT], name[SECRET_TEXT], rendezvous[SECRET_TEXT + 32];
    const char *shared = l->options->secret;
    TDM_TRY(random_text(name, err));
    TDM_TRY(run_directory_make(l, err));
    TDM_TRY(random_text(secret, err));
    snprintf(rendezvous, sizeof(rendezvous), "unix:tandem-%s", name);
    if (l->options->rendezvous && !shared) shared = getenv("TANDEM_SECRET");
    bool alone = l->plan.size == l->plan.count;
    if (!shared && alone)
        shared = secret; /* else all hosts must bring the same: ranks will say so */
    tdm_status status = tdm__launch_plan_init(
        &l->plan, l->options->rendezvous ? l->options->rendezvous : rendezvous, shared,
        l->result.run, err);
    explicit_bzero(secret, sizeof(secret));
    return status;
}

/* Opens a signalfd for SIGCHLD and the signals that are not ignored. */
static tdm_status launcher_open_signals(launcher *l, tdm_error *err)
{
    static const int asking[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
    sigemptyset(&l->taken);
    sigaddset(&l->taken, SIGCHLD);
    for (size_t i = 0; i < sizeof(asking) / sizeof(asking[0]); i++) {
        struct sigaction action;
        if (sigaction(asking[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(&l->taken, asking[i]);
    }
    pthread_sigmask(SIG_BLOCK, &l->taken, &l->before);
    l->plan.mask = l->before;
    l->signals = signalfd(-1, &l->taken, SFD_CLOEXEC | SFD_NONBLOCK);
    return l->signals >= 0 ? TDM_OK : tdm_os_fail(err, "cannot create", "a signalfd");
}

/* ---- exits ----------------------------------------------------------------------------------- */

static void ranks_signal(const launcher *l, int signal_number)
{
    for (int i = 0; i < l->plan.count; i++)
        if (l->ranks[i].pid > 0) kill(-l->ranks[i].pid, signal_number);
}

static void ranks_kill(launcher *l)
{
    if (l->killed) return;
    l->killed = true;
    l->end_at_s = tdm_clock_s() + undead_s;
    ranks_signal(l, SIGKILL);
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
    return so_far->failed_rank < 0 ||
           (so_far->ended_signal == 0 && !so_far->interrupted && !l->killed);
}

/* Whether an exit is more informative than an earlier exit code. A rank that got SIGTERM may exit
 * in any way, but a SIGKILL is from outside until the launcher sends it. */
static bool failure_says_more(const launcher *l, int status)
{
    return status_is_kill(status) && (!l->asked || WTERMSIG(status) == SIGKILL);
}

/* Records the failure to report: the first one. Of several before the launcher kills, a death by a
 * signal is preferred: exit codes are mostly consequences of it. */
static void failures_record(launcher *l)
{
    tdm_launch_result *out = &l->result;
    bool again = out->failed_rank >= 0;
    const tdm__launch_rank *first = NULL;
    for (int i = 0; i < l->plan.count; i++) {
        const tdm__launch_rank *r = &l->ranks[i];
        if (!r->ended || !(again ? failure_says_more(l, r->status) : status_is_failure(r->status)))
            continue;
        if (!first || (status_is_kill(r->status) && !status_is_kill(first->status))) first = r;
    }
    if (!first) return;
    out->failed_rank = first->rank;
    if (WIFSIGNALED(first->status)) {
        out->ended_signal = WTERMSIG(first->status);
        out->exit_code = 128 + out->ended_signal;
        snprintf(out->how, sizeof(out->how), "rank %d was killed by signal %d (%s)", first->rank,
                 out->ended_signal, strsignal(out->ended_signal));
    } else {
        out->exit_code = WEXITSTATUS(first->status);
        snprintf(out->how, sizeof(out->how), "rank %d exited with code %d", first->rank,
                 out->exit_code);
    }
    /* After a signal to the launcher, ranks have the full grace time; after a failure, a short time
     * to report. */
    if (!again) l->ask_at_s = tdm_clock_s() + (out->interrupted ? l->grace_s : moment_s);
}

/* True if the rank has exited; its process id remains reserved until it is waited for. */
static bool rank_has_ended(const tdm__launch_rank *r, siginfo_t *info)
{
    *info = (siginfo_t){.si_pid = 0};
    return r->pid > 0 && waitid(P_PID, (id_t)r->pid, info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info->si_pid == r->pid;
}

static void ranks_reap(launcher *l)
{
    int ends = 0;
    for (int i = 0; i < l->plan.count; i++) {
        tdm__launch_rank *r = &l->ranks[i];
        siginfo_t info;
        if (!rank_has_ended(r, &info)) continue;
        /* Processes that it started are killed as well, unless it succeeded. */
        if (info.si_code != CLD_EXITED || info.si_status != 0) kill(-r->pid, SIGKILL);
        while (waitpid(r->pid, &r->status, 0) < 0 && errno == EINTR) continue;
        r->pid = 0;
        r->ended = true;
        l->running--;
        ends++;
    }
    if (ends > 0 && failure_is_open(l)) failures_record(l);
}

static void launcher_handle_signals(launcher *l)
{
    struct signalfd_siginfo info;
    while (read(l->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo == SIGCHLD) continue;
        if (info.ssi_signo == SIGUSR1) { /* forwarded to the ranks; does not end them */
            for (int i = 0; i < l->plan.count; i++)
                if (l->ranks[i].pid > 0) kill(l->ranks[i].pid, SIGUSR1);
        } else if (l->result.interrupted) {
            ranks_kill(l);
        } else {
            l->result.interrupted = true;
            ranks_signal(l, (int)info.ssi_signo);
        }
    }
}

static void launcher_handle_deadlines(launcher *l)
{
    double now = tdm_clock_s();
    if (now >= l->ask_at_s && !l->asked) {
        l->asked = true;
        l->kill_at_s = now + l->grace_s;
        ranks_signal(l, SIGTERM);
        ranks_signal(l, SIGCONT); /* stopped processes do not handle signals */
    }
    if (now >= l->kill_at_s) ranks_kill(l);
}

/* ---- main loop ------------------------------------------------------------------------------- */

static int launcher_timeout_ms(const launcher *l)
{
    double now = tdm_clock_s(), next = now + TICK_MS * 1e-3;
    if (!l->asked && l->ask_at_s < next) next = l->ask_at_s;
    if (!l->killed && l->kill_at_s < next) next = l->kill_at_s;
    return next > now ? (int)ceil((next - now) * 1e3) : 0;
}

static void launcher_poll(launcher *l)
{
    nfds_t count = 0;
    l->polls[count++] = (struct pollfd){.fd = l->signals, .events = POLLIN};
    for (int q = 0; q < 2; q++) {
        const tdm__launch_queue *queue = &l->queues[q];
        if (queue->text.length > 0 && !queue->broken)
            l->polls[count++] = (struct pollfd){.fd = queue->fd, .events = POLLOUT};
        if (tdm__launch_full(queue)) continue;
        for (int i = 0; i < l->plan.count; i++)
            if (l->ranks[i].streams[q].fd >= 0)
                l->polls[count++] = (struct pollfd){.fd = l->ranks[i].streams[q].fd,
                                                    .events = POLLIN};
    }
    poll(l->polls, count, launcher_timeout_ms(l));
}

static void launcher_move_output(launcher *l)
{
    for (int q = 0; q < 2; q++) {
        for (int i = 0; i < l->plan.count; i++)
            tdm__launch_read(&l->ranks[i].streams[q], &l->queues[q]);
        tdm__launch_write(&l->queues[q]);
    }
}

static bool launcher_has_output(const launcher *l, bool streams_too)
{
    for (int q = 0; q < 2; q++) {
        if (l->queues[q].text.length > 0 && !l->queues[q].broken) return true;
        for (int i = 0; streams_too && i < l->plan.count; i++)
            if (l->ranks[i].streams[q].fd >= 0) return true;
    }
    return false;
}

static void launcher_loop(launcher *l)
{
    double drain_until_s = INFINITY;
    for (;;) {
        launcher_handle_signals(l);
        ranks_reap(l);
        launcher_handle_deadlines(l);
        launcher_move_output(l);
        double now = tdm_clock_s();
        if (l->running == 0 && isinf(drain_until_s)) {
            drain_until_s = now + drain_s;
            continue; /* read the output of the last rank first */
        }
        if (l->running == 0 && !launcher_has_output(l, now < drain_until_s)) return;
        if (l->running == 0 && l->killed && now >= drain_until_s) return;
        if (l->running > 0 && now >= l->end_at_s) return;
        launcher_poll(l);
    }
}

/* ---- launch ---------------------------------------------------------------------------------- */

static tdm_status ranks_start(launcher *l, tdm_error *err)
{
    for (int i = 0; i < l->plan.count; i++) {
        TDM_TRY(tdm__launch_spawn(&l->plan, i, &l->ranks[i], err));
        l->running++;
    }
    return TDM_OK;
}

static tdm_status launcher_allocate(launcher *l, tdm_error *err)
{
    size_t count = (size_t)l->plan.count;
    l->ranks = calloc(count, sizeof(*l->ranks));
    l->polls = calloc(count * 2 + 3, sizeof(*l->polls));
    if (!l->ranks || !l->polls) return tdm_fail_oom(err, "for %d ranks", l->plan.count);
    for (int i = 0; i < l->plan.count; i++) {
        l->ranks[i].rank = l->plan.first_rank + i;
        for (int q = 0; q < 2; q++)
            l->ranks[i].streams[q] = (tdm__launch_stream){
                .fd = -1, .rank = l->ranks[i].rank, .to = STDOUT_FILENO + q};
    }
    for (int q = 0; q < 2; q++) l->queues[q].fd = STDOUT_FILENO + q;
    return TDM_OK;
}

static void launcher_release(launcher *l)
{
    for (int i = 0; l->ranks && i < l->plan.count; i++)
        for (int q = 0; q < 2; q++) tdm__launch_stream_close(&l->ranks[i].streams[q]);
    for (int q = 0; q < 2; q++) tdm_str_release(&l->queues[q].text);
    tdm__launch_plan_release(&l->plan);
    free(l->ranks);
    free(l->polls);
}

static tdm_status launcher_run(launcher *l, tdm_error *err)
{
    TDM_TRY(launcher_prepare(l, err));
    TDM_TRY(launcher_allocate(l, err));
    tdm_status status = launcher_open_signals(l, err);
    if (status == TDM_OK) status = ranks_start(l, err);
    if (status != TDM_OK) ranks_kill(l);
    if (l->signals >= 0) launcher_loop(l);
    if (status == TDM_OK && l->running > 0)
        status = tdm_fail(err, TDM_ERR_TIMEOUT,
                          "%d ranks are still running although they were killed", l->running);
    if (l->signals >= 0) {
        launcher_handle_signals(l); /* drop signals for the ranks */
        close(l->signals);
    }
    pthread_sigmask(SIG_SETMASK, &l->before, NULL);
    return status;
}

tdm_status tdm_launch(const tdm_launch_options *options, tdm_launch_result *out, tdm_error *err)
{
    launcher l = {.options = options,
                  .signals = -1,
                  .ask_at_s = INFINITY,
                  .kill_at_s = INFINITY,
                  .end_at_s = INFINITY,
                  .result = {.failed_rank = -1}};
    TDM_TRY(check_options(&l, err));
    tdm_status status = launcher_run(&l, err);
    l.result.output_errno = l.queues[0].why ? l.queues[0].why : l.queues[1].why;
    bool nothing_ran = status != TDM_OK && l.running == 0;
    run_directory_leave(&l, nothing_ran || (l.result.failed_rank < 0 && !l.result.interrupted));
    launcher_release(&l);
    if (status == TDM_OK) *out = l.result;
    return status;
}
