/*
 * launch.c: starts the ranks of this host, watches them, and sees to it that none is left.
 *
 * One loop waits for output, for signals (by a signalfd; they are blocked meanwhile) and for time to
 * pass, and looks after every wake-up which ranks have ended. Ends come in three strengths: nothing
 * yet, asked (SIGTERM), killed (SIGKILL); each strength has a moment at which the next one follows, so
 * the loop ends. Only processes started here are waited for: the program may have children of its own.
 *
 * Invariant: whatever is returned, every process that was started has been waited for, or (a process
 * that the kernel does not let die) is named by an error.
 */
#include "launch/launch.h"

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
    TICK_MS = 100, /* at most this long until an end is noticed, should its signal get lost */
    SECRET_BYTES = 16,
    SECRET_TEXT = 2 * SECRET_BYTES + 1
};
static const double moment_s = 2;  /* for the others to report what they saw, on a busy host, too */
static const double grace_s = 5;   /* from asking to killing */
static const double drain_s = 1;   /* for output that a rank's own children still hold */
static const double undead_s = 20; /* from killing to giving up */

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

/* ---- before ---------------------------------------------------------------------------------- */

static tdm_status random_text(char out[SECRET_TEXT], tdm_error *err)
{
    uint8_t bytes[SECRET_BYTES];
    TDM_TRY(tdm_os_random(bytes, sizeof bytes, err));
    tdm_hex(bytes, sizeof bytes, out);
    explicit_bzero(bytes, sizeof bytes);
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

/* The run's folder, absolute: the one asked for, or a new one for this run alone. */
static tdm_status make_folder(launcher *l, tdm_error *err)
{
    char *run = l->result.run;
    if (!l->options->run) {
        const char *base = getenv("TMPDIR");
        int length = snprintf(run, sizeof l->result.run, "%s/tandem-run-XXXXXX",
                              base && base[0] == '/' ? base : "/tmp");
        if (length >= (int)sizeof l->result.run || !mkdtemp(run))
            return tdm_os_fail(err, "cannot create a run directory in", base ? base : "/tmp");
        l->result.run_is_temporary = true;
        return TDM_OK;
    }
    TDM_TRY(tdm_dir_make(l->options->run, err));
    tdm_arena *arena = tdm_arena_create("launch");
    const char *absolute = arena ? tdm_path_absolute(arena, l->options->run) : NULL;
    int length = absolute ? snprintf(run, sizeof l->result.run, "%s", absolute) : -1;
    tdm_arena_destroy(arena);
    if (length > 0 && length < (int)sizeof l->result.run) return TDM_OK;
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

/* A folder that was made for this run alone goes when all went well, or nobody put anything there. */
static void leave_folder(launcher *l, bool well)
{
    if (well) tdm_launch_forget(&l->result);
    if (l->result.run_is_temporary && l->result.run[0] && rmdir(l->result.run) == 0)
        l->result.run[0] = '\0';
}

static tdm_status prepare(launcher *l, tdm_error *err)
{
    char secret[SECRET_TEXT], name[SECRET_TEXT], rendezvous[SECRET_TEXT + 32];
    const char *shared = l->options->secret;
    TDM_TRY(random_text(name, err));
    TDM_TRY(make_folder(l, err));
    TDM_TRY(random_text(secret, err));
    snprintf(rendezvous, sizeof rendezvous, "unix:tandem-%s", name);
    if (l->options->rendezvous && !shared) shared = getenv("TANDEM_SECRET");
    bool alone = l->plan.size == l->plan.count;
    if (!shared && alone)
        shared = secret; /* else all hosts must bring the same: ranks will say so */
    tdm_status status = tdm__launch_plan_init(
        &l->plan, l->options->rendezvous ? l->options->rendezvous : rendezvous, shared,
        l->result.run, err);
    explicit_bzero(secret, sizeof secret);
    return status;
}

/* Takes the signals that are not ignored, and news of children. */
static tdm_status take_signals(launcher *l, tdm_error *err)
{
    static const int asking[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
    sigemptyset(&l->taken);
    sigaddset(&l->taken, SIGCHLD);
    for (size_t i = 0; i < sizeof asking / sizeof asking[0]; i++) {
        struct sigaction action;
        if (sigaction(asking[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(&l->taken, asking[i]);
    }
    pthread_sigmask(SIG_BLOCK, &l->taken, &l->before);
    l->plan.mask = l->before;
    l->signals = signalfd(-1, &l->taken, SFD_CLOEXEC | SFD_NONBLOCK);
    return l->signals >= 0 ? TDM_OK : tdm_os_fail(err, "cannot create", "a signalfd");
}

/* ---- ends ------------------------------------------------------------------------------------ */

static void send_all(const launcher *l, int signal_number)
{
    for (int i = 0; i < l->plan.count; i++)
        if (l->ranks[i].pid > 0) kill(-l->ranks[i].pid, signal_number);
}

static void kill_all(launcher *l)
{
    if (l->killed) return;
    l->killed = true;
    l->end_at_s = tdm_clock_s() + undead_s;
    send_all(l, SIGKILL);
}

static bool failed(int status)
{
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

/* Not what a program makes of an error that it was told: abort(), or a pipe that nobody reads. */
static bool struck(int status)
{
    return WIFSIGNALED(status) && WTERMSIG(status) != SIGABRT && WTERMSIG(status) != SIGPIPE;
}

/* Whether another failure may still be the one to report. A process that is killed may take longer to
 * end (it has memory to give back) than others need to see it fail and to end by themselves. */
static bool is_open(const launcher *l)
{
    const tdm_launch_result *so_far = &l->result;
    return so_far->failed_rank < 0 ||
           (so_far->ended_signal == 0 && !so_far->interrupted && !l->killed);
}

/* Whether an end says more than the exit code of an earlier one. Who was asked to end may end in any way;
 * but SIGKILL is then still somebody else's, until it is ours. */
static bool says_more(const launcher *l, int status)
{
    return struck(status) && (!l->asked || WTERMSIG(status) == SIGKILL);
}

/* The first failure is the one to report. Of several before we kill anybody, a death by a signal: exit
 * codes are mostly what others make of it. */
static void note_failures(launcher *l)
{
    tdm_launch_result *out = &l->result;
    bool again = out->failed_rank >= 0;
    const tdm__launch_rank *first = NULL;
    for (int i = 0; i < l->plan.count; i++) {
        const tdm__launch_rank *r = &l->ranks[i];
        if (!r->ended || !(again ? says_more(l, r->status) : failed(r->status))) continue;
        if (!first || (struck(r->status) && !struck(first->status))) first = r;
    }
    if (!first) return;
    out->failed_rank = first->rank;
    if (WIFSIGNALED(first->status)) {
        out->ended_signal = WTERMSIG(first->status);
        out->exit_code = 128 + out->ended_signal;
        snprintf(out->how, sizeof out->how, "rank %d was killed by signal %d (%s)", first->rank,
                 out->ended_signal, strsignal(out->ended_signal));
    } else {
        out->exit_code = WEXITSTATUS(first->status);
        snprintf(out->how, sizeof out->how, "rank %d exited with code %d", first->rank,
                 out->exit_code);
    }
    /* Who was asked to end may take its time; who saw another rank fail has a moment. */
    if (!again) l->ask_at_s = tdm_clock_s() + (out->interrupted ? l->grace_s : moment_s);
}

/* True when it has ended; its number stays its own until it is waited for. */
static bool has_ended(const tdm__launch_rank *r, siginfo_t *info)
{
    *info = (siginfo_t){.si_pid = 0};
    return r->pid > 0 && waitid(P_PID, (id_t)r->pid, info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info->si_pid == r->pid;
}

static void reap(launcher *l)
{
    int ends = 0;
    for (int i = 0; i < l->plan.count; i++) {
        tdm__launch_rank *r = &l->ranks[i];
        siginfo_t info;
        if (!has_ended(r, &info)) continue;
        /* What it started and left behind goes with it, unless it ended well. */
        if (info.si_code != CLD_EXITED || info.si_status != 0) kill(-r->pid, SIGKILL);
        while (waitpid(r->pid, &r->status, 0) < 0 && errno == EINTR) continue;
        r->pid = 0;
        r->ended = true;
        l->running--;
        ends++;
    }
    if (ends > 0 && is_open(l)) note_failures(l);
}

static void handle_signals(launcher *l)
{
    struct signalfd_siginfo info;
    while (read(l->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD) continue;
        if (info.ssi_signo == SIGUSR1) { /* no end, but what it means to the ranks themselves */
            for (int i = 0; i < l->plan.count; i++)
                if (l->ranks[i].pid > 0) kill(l->ranks[i].pid, SIGUSR1);
        } else if (l->result.interrupted) {
            kill_all(l);
        } else {
            l->result.interrupted = true;
            send_all(l, (int)info.ssi_signo);
        }
    }
}

static void handle_time(launcher *l)
{
    double now = tdm_clock_s();
    if (now >= l->ask_at_s && !l->asked) {
        l->asked = true;
        l->kill_at_s = now + l->grace_s;
        send_all(l, SIGTERM);
        send_all(l, SIGCONT); /* who is stopped hears nothing */
    }
    if (now >= l->kill_at_s) kill_all(l);
}

/* ---- the loop -------------------------------------------------------------------------------- */

static int timeout_ms(const launcher *l)
{
    double now = tdm_clock_s(), next = now + TICK_MS * 1e-3;
    if (!l->asked && l->ask_at_s < next) next = l->ask_at_s;
    if (!l->killed && l->kill_at_s < next) next = l->kill_at_s;
    return next > now ? (int)ceil((next - now) * 1e3) : 0;
}

static void wait_for_news(launcher *l)
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
    poll(l->polls, count, timeout_ms(l));
}

static void move_output(launcher *l)
{
    for (int q = 0; q < 2; q++) {
        for (int i = 0; i < l->plan.count; i++)
            tdm__launch_read(&l->ranks[i].streams[q], &l->queues[q]);
        tdm__launch_write(&l->queues[q]);
    }
}

static bool has_output(const launcher *l, bool streams_too)
{
    for (int q = 0; q < 2; q++) {
        if (l->queues[q].text.length > 0 && !l->queues[q].broken) return true;
        for (int i = 0; streams_too && i < l->plan.count; i++)
            if (l->ranks[i].streams[q].fd >= 0) return true;
    }
    return false;
}

static void watch(launcher *l)
{
    double drain_until_s = INFINITY;
    for (;;) {
        handle_signals(l);
        reap(l);
        handle_time(l);
        move_output(l);
        double now = tdm_clock_s();
        if (l->running == 0 && isinf(drain_until_s)) {
            drain_until_s = now + drain_s;
            continue; /* what the last one wrote is there by now */
        }
        if (l->running == 0 && !has_output(l, now < drain_until_s)) return;
        if (l->running == 0 && l->killed && now >= drain_until_s) return;
        if (l->running > 0 && now >= l->end_at_s) return;
        wait_for_news(l);
    }
}

/* ---- the whole ------------------------------------------------------------------------------- */

static tdm_status start_all(launcher *l, tdm_error *err)
{
    for (int i = 0; i < l->plan.count; i++) {
        TDM_TRY(tdm__launch_spawn(&l->plan, i, &l->ranks[i], err));
        l->running++;
    }
    return TDM_OK;
}

static tdm_status make_room(launcher *l, tdm_error *err)
{
    size_t count = (size_t)l->plan.count;
    l->ranks = calloc(count, sizeof *l->ranks);
    l->polls = calloc(count * 2 + 3, sizeof *l->polls);
    if (!l->ranks || !l->polls)
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "no memory for %d ranks", l->plan.count);
    for (int i = 0; i < l->plan.count; i++) {
        l->ranks[i].rank = l->plan.first_rank + i;
        for (int q = 0; q < 2; q++)
            l->ranks[i].streams[q] = (tdm__launch_stream){
                .fd = -1, .rank = l->ranks[i].rank, .to = STDOUT_FILENO + q};
    }
    for (int q = 0; q < 2; q++) l->queues[q].fd = STDOUT_FILENO + q;
    return TDM_OK;
}

static void release(launcher *l)
{
    for (int i = 0; l->ranks && i < l->plan.count; i++)
        for (int q = 0; q < 2; q++) tdm__launch_stream_close(&l->ranks[i].streams[q]);
    for (int q = 0; q < 2; q++) tdm_str_release(&l->queues[q].text);
    tdm__launch_plan_release(&l->plan);
    free(l->ranks);
    free(l->polls);
}

static tdm_status run(launcher *l, tdm_error *err)
{
    TDM_TRY(prepare(l, err));
    TDM_TRY(make_room(l, err));
    tdm_status status = take_signals(l, err);
    if (status == TDM_OK) status = start_all(l, err);
    if (status != TDM_OK) kill_all(l);
    if (l->signals >= 0) watch(l);
    if (status == TDM_OK && l->running > 0)
        status = tdm_fail(err, TDM_ERR_TIMEOUT,
                          "%d ranks are still running although they were killed", l->running);
    if (l->signals >= 0) {
        handle_signals(l); /* none that was meant for the ranks shall hit us now */
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
    tdm_status status = run(&l, err);
    l.result.output_errno = l.queues[0].why ? l.queues[0].why : l.queues[1].why;
    bool nothing_ran = status != TDM_OK && l.running == 0;
    leave_folder(&l, nothing_ran || (l.result.failed_rank < 0 && !l.result.interrupted));
    release(&l);
    if (status == TDM_OK) *out = l.result;
    return status;
}
