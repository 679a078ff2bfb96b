/*
 * agent.c: the main loop of an agent, which keeps the workers of its host running until the session
 * ends.
 *
 * One thread waits for signals (through a signalfd, including SIGCHLD) and for timeouts. After each
 * wake-up it collects workers that have exited and starts workers that are due. Several times a
 * second it reads the store: the end of the session, a request to stop, an epoch without one of its
 * workers. Ending has two stages, as in tdm_launch: SIGTERM, then SIGKILL after a delay.
 *
 * Invariant: when tdm_agent_run returns, every process that it started has been waited for, except
 * a process that the kernel cannot kill. If the agent itself is killed, its workers continue, but
 * are not restarted.
 */
#include "cluster/agent.h"
#include "base/base.h"
#include "base/timing.h"
#include "kv/kv.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { TICK_MS = 100 };
static const double look_local_s = 0.2, look_far_s = 1;
static const double short_s = 3;   /* too few workers for this long: log a warning */
static const double undead_s = 20; /* from SIGKILL until the agent gives up */
/* Signals within this time count as one request: a batch system also sends its signal to the
 * launcher, which forwards it. A second request to the launcher reaches the agent through the
 * store. */
static const double same_s = 1;

/* ---- set-up ---------------------------------------------------------------------------------- */

static tdm_status check_options(const tdm_agent_options *given, tdm_agent_options *o,
                                tdm_error *err)
{
    *o = *given;
    if (o->count == 0) o->count = 1;
    if (o->restarts == 0) o->restarts = 5;
    if (o->restarts < 0) o->restarts = 0;
    if (o->restart_window_s <= 0) o->restart_window_s = 300;
    if (o->grace_s <= 0) o->grace_s = 25;
    if (o->backoff_s <= 0) o->backoff_s = 0.5;
    if (!o->program || !o->program[0])
        return tdm_fail(err, TDM_ERR_INVALID, "an agent needs a program for its workers");
    if (!tdm__session_name_is_good(o->session, TDM_SESSION_BYTES))
        return tdm_fail(err, TDM_ERR_INVALID, "'%s' is not a valid session name", o->session);
    if (!tdm__session_name_is_good(o->host, TDM_HOST_BYTES))
        return tdm_fail(err, TDM_ERR_INVALID,
                        "'%s' is not a valid host name; use letters, digits, '.', '_' and '-'",
                        o->host);
    if (o->count < 1 || o->count > TDM_MAX_LAUNCH)
        return tdm_fail(err, TDM_ERR_RANGE,
                        "cannot start %d workers: the number must be from 1 to %d", o->count,
                        TDM_MAX_LAUNCH);
    return TDM_OK;
}

static tdm_status agent_open_signals(tdm__agent *a, tdm_error *err)
{
    static const int asking[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
    sigemptyset(&a->taken);
    sigaddset(&a->taken, SIGCHLD);
    for (size_t i = 0; i < sizeof(asking) / sizeof(asking[0]); i++) {
        struct sigaction action;
        if (sigaction(asking[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(&a->taken, asking[i]);
    }
    pthread_sigmask(SIG_BLOCK, &a->taken, &a->before);
    /* The launcher blocks these signals for the agent, so that none arrives too early. Workers must
     * receive them. */
    a->for_workers = a->before;
    for (size_t i = 0; i < sizeof(asking) / sizeof(asking[0]); i++)
        sigdelset(&a->for_workers, asking[i]);
    sigaddset(&a->for_workers, SIGUSR1); /* until a worker handles it; by default it kills */
    a->signals = signalfd(-1, &a->taken, SFD_CLOEXEC | SFD_NONBLOCK);
    return a->signals >= 0 ? TDM_OK : tdm_os_fail(err, "cannot create", "a signalfd");
}

static tdm_status agent_allocate(tdm__agent *a, tdm_error *err)
{
    a->count = a->options->count;
    a->worker_slots = calloc((size_t)a->count, sizeof(*a->worker_slots));
    a->places = a->options->pin ? calloc((size_t)a->count, sizeof(*a->places)) : NULL;
    if (!a->worker_slots || (a->options->pin && !a->places))
        return tdm_fail_oom(err, "for %d workers", a->count);
    if (a->places && !tdm_os_cpu_sets(a->count, a->places)) {
        free(a->places); /* more workers than CPUs: let the kernel schedule them */
        a->places = NULL;
    }
    for (int i = 0; i < 2; i++) {
        a->streams[i] = fcntl(STDOUT_FILENO + i, F_DUPFD_CLOEXEC, 3);
        if (a->streams[i] < 0) a->streams[i] = open("/dev/null", O_WRONLY | O_CLOEXEC);
        if (a->streams[i] < 0) return tdm_os_fail(err, "cannot open", "/dev/null");
    }
    return TDM_OK;
}

static tdm_status agent_prepare(tdm__agent *a, tdm_error *err)
{
    TDM_TRY(agent_allocate(a, err));
    tdm__agent_find_address(a);
    TDM_TRY(tdm_dir_make(a->options->logs, err));
    snprintf(a->lines_path, sizeof(a->lines_path), "%s/%s.lines", a->options->logs,
             a->options->host);
    tdm__log_forward_init(&a->lines, a->lines_path);
    tdm_kv_options kv = a->options->kv;
    kv.idle_s = TDM__TIMING_KV_OWNER_IDLE_S;
    TDM_TRY(tdm_kv_open(&kv, &a->kv, err));
    TDM_TRY(tdm__agent_find_shm(a, err));
    TDM_TRY(tdm__slots_take(a->shm, &a->slots, err));
    TDM_TRY(agent_open_signals(a, err));
    return tdm__agent_enter(a, err);
}

/* ---- shutdown -------------------------------------------------------------------------------- */

static void agent_kill_workers(tdm__agent *a)
{
    if (a->killed) return;
    a->killed = true;
    tdm__agent_signal(a, SIGKILL, true);
}

/* Sends SIGTERM to the workers, once. */
static void agent_stop_workers(tdm__agent *a)
{
    if (a->stopping) return;
    a->stopping = true;
    a->kill_at_s = tdm_clock_s() + a->options->grace_s;
    tdm__agent_signal(a, SIGTERM, false);
}

/* Makes this agent's workers leave; the other members continue without them. */
static void agent_leave_session(tdm__agent *a)
{
    a->stopping = true; /* no more workers are started */
    a->kill_at_s = tdm_clock_s() + a->options->grace_s;
    for (int i = 0; i < a->count; i++) {
        char request[TDM_MEMBER_ID_BYTES + 8];
        if (a->worker_slots[i].worker.pid <= 0) continue;
        snprintf(request, sizeof(request), "leave/%s", a->worker_slots[i].worker.id);
        (void)tdm_session_request(a->kv, a->options->session, request,
                                  "its agent received a "
                                  "signal to end",
                                  NULL);
    }
}

static void agent_request_save(tdm__agent *a)
{
    tdm_error err = {0};
    if (tdm_session_ask_save(a->kv, a->options->session, strsignal(SIGUSR1), NULL, &err) != TDM_OK)
        tdm_log(TDM_LOG_WARN, "agent", "cannot write the checkpoint request to the store: %s",
                err.message);
}

static void agent_handle_signals(tdm__agent *a)
{
    struct signalfd_siginfo info;
    while (read(a->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        if (info.ssi_signo == SIGCHLD) continue;
        if (info.ssi_signo == SIGUSR1) {
            agent_request_save(a);
            continue;
        }
        double now_s = tdm_clock_s();
        a->look_at_s = 0;
        bool is_first = a->signals_seen == 0;
        if (!is_first && now_s - a->signal_s < same_s) continue;
        a->signals_seen++;
        a->signal_s = now_s;
        if (a->options->guest && is_first) {
            agent_leave_session(a);
            continue;
        }
        if (!a->options->guest)
            (void)tdm_session_request(a->kv, a->options->session, is_first ? "stop" : "now",
                                      is_first ? "a signal" : "a second signal", NULL);
        if (is_first)
            agent_stop_workers(a);
        else
            agent_kill_workers(a);
    }
}

static void agent_handle_deadline(tdm__agent *a, double now_s)
{
    if (now_s < a->kill_at_s || a->killed) return;
    if (!a->over && tdm__agent_alive(a) > 0)
        tdm_log(TDM_LOG_WARN, "agent",
                "workers on host %s did not exit within %g s (elastic.grace) and are killed; "
                "steps since the newest checkpoint are lost",
                a->options->host, a->options->grace_s);
    agent_kill_workers(a);
}

/* ---- store ----------------------------------------------------------------------------------- */

static void agent_take_verdict(tdm__agent *a, const tdm_session_view *view)
{
    a->result.has_verdict = true;
    a->result.status = view->status;
    snprintf(a->result.message, sizeof(a->result.message), "%s", view->message);
    a->over = true;
    if (isinf(a->kill_at_s)) a->kill_at_s = tdm_clock_s() + a->options->grace_s;
}

/* The session ended while this host was cut off: the work of its workers can no longer count. */
static void agent_end_forgotten(tdm__agent *a)
{
    tdm_agent_result *result = &a->result;
    char message[1000];
    a->over = true;
    result->has_verdict = tdm__session_ended(a->kv, a->options->session, &result->status, message,
                                             NULL) == TDM_OK;
    if (result->has_verdict) snprintf(result->message, sizeof(result->message), "%s", message);
    tdm_log(TDM_LOG_INFO, "agent",
            "the session ended while host %s could not reach the store; killing its workers",
            a->options->host);
    agent_kill_workers(a);
}

/* Until there is a rank 0 no worker prints anything, so the session could seem to hang. */
static void agent_report_shortage(tdm__agent *a, const tdm_session_view *view, double now_s)
{
    bool is_short = view->epoch == 0 && (int)view->member_count < view->min;
    if (!is_short) a->short_since_s = INFINITY;
    if (is_short && isinf(a->short_since_s)) a->short_since_s = now_s;
    if (a->said_short || a->over || a->stopping || now_s - a->short_since_s < short_s) return;
    a->said_short = true;
    tdm_log(TDM_LOG_WARN, "agent",
            "%zu of at least %d workers have joined; training begins when the others have joined "
            "('tandem join' adds workers; elastic.min, elastic.wait)",
            view->member_count, view->min);
}

static void agent_read_store(tdm__agent *a, double now_s)
{
    tdm_session_view view;
    if (now_s < a->look_at_s) return;
    bool is_local = strncmp(a->options->kv.url, "local:", 6) == 0;
    tdm_arena *arena = tdm_arena_create("look");
    if (arena && tdm__agent_look(a, arena, &view)) {
        if (view.ended) agent_take_verdict(a, &view);
        if (view.stopping) agent_stop_workers(a);
        if (view.now) agent_kill_workers(a);
        agent_report_shortage(a, &view, now_s);
        if (!a->over && !a->stopping) tdm__agent_replace_fenced(a, &view);
    } else if (a->is_forgotten && !a->over) {
        agent_end_forgotten(a);
    }
    tdm_arena_destroy(arena);
    a->look_at_s = tdm_clock_s() + (is_local ? look_local_s : look_far_s);
}

/* This host has no worker left and will start none. If no host has one, the session ends. */
static void agent_give_up(tdm__agent *a)
{
    tdm_session_view view;
    tdm_arena *arena = tdm_arena_create("look");
    bool known = arena && tdm__agent_look(a, arena, &view);
    if (a->is_forgotten) {
        if (!a->over) agent_end_forgotten(a);
    } else if (known && view.ended) {
        agent_take_verdict(a, &view);
    } else if (a->options->guest && a->was_refused) {
        a->result.exit_code = TDM_WORKER_PEER;
    } else if (a->options->guest) {
        tdm_log(TDM_LOG_INFO, "agent", "the workers that joined on host %s have left",
                a->options->host);
    } else if (a->killed) {
        tdm__agent_end_session(
            a, TDM_ERR_INTERRUPTED,
            "the workers were killed; steps since the newest checkpoint are lost");
    } else if (known && a->stopping && view.member_count == 0) {
        tdm__agent_end_session(a, TDM_ERR_INTERRUPTED,
                               "stopped before the first step; no checkpoint was written");
    } else if (known && !a->stopping && view.host_count <= 1 && view.member_count == 0 &&
               a->result.restarts > 0) {
        tdm__agent_end_session(a, TDM_ERR_PEER_FAILED,
                               "every worker died more often than elastic.restarts allows within "
                               "elastic.restart_window; see the logs in the run directory");
    }
    tdm_arena_destroy(arena);
}

/* ---- main loop ------------------------------------------------------------------------------- */

static int agent_timeout_ms(const tdm__agent *a, double now_s)
{
    double next_s = now_s + TICK_MS * 1e-3;
    for (int i = 0; i < a->count; i++)
        if (a->worker_slots[i].start_at_s < next_s) next_s = a->worker_slots[i].start_at_s;
    if (!a->killed && a->kill_at_s < next_s) next_s = a->kill_at_s;
    return next_s > now_s ? (int)ceil((next_s - now_s) * 1e3) : 0;
}

static void agent_loop(tdm__agent *a)
{
    for (;;) {
        agent_handle_signals(a);
        tdm__agent_reap(a);
        double now_s = tdm_clock_s();
        agent_read_store(a, now_s); /* before a worker is started in a session that has ended */
        tdm__agent_start_due(a, now_s);
        agent_handle_deadline(a, now_s);
        tdm__agent_beat(a, now_s);
        if (tdm__agent_alive(a) == 0 && tdm__agent_plans(a) == 0) return;
        struct pollfd ready = {.fd = a->signals, .events = POLLIN};
        (void)poll(&ready, 1, agent_timeout_ms(a, tdm_clock_s()));
    }
}

/* Kills workers that were fenced and did not notice it. */
static void agent_kill_orphans(tdm__agent *a)
{
    double until_s = tdm_clock_s() + undead_s;
    tdm__agent_signal(a, SIGKILL, true);
    while (a->orphan_count > 0 && tdm_clock_s() < until_s) {
        struct pollfd ready = {.fd = a->signals, .events = POLLIN};
        struct signalfd_siginfo info;
        (void)poll(&ready, 1, TICK_MS);
        while (read(a->signals, &info, sizeof(info)) == (ssize_t)sizeof(info)) continue;
        tdm__agent_reap(a);
    }
}

static void agent_release(tdm__agent *a)
{
    tdm__agent_leave(a);
    tdm_shm_close(a->shm);
    for (int i = 0; a->worker_slots && i < a->count; i++) free(a->worker_slots[i].starts_s);
    for (int i = 0; i < 2; i++)
        if (a->streams[i] >= 0) close(a->streams[i]);
    if (a->signals >= 0) {
        close(a->signals);
        pthread_sigmask(SIG_SETMASK, &a->before, NULL);
    }
    free(a->worker_slots);
    free(a->places);
    free(a->orphans);
    tdm__log_forward_release(&a->lines);
    tdm__disk_probe_release(a->disk_probe);
}

tdm_status tdm_agent_run(const tdm_agent_options *options, tdm_agent_result *out, tdm_error *err)
{
    tdm_agent_options checked;
    TDM_TRY(check_options(options, &checked, err));
    tdm__agent a = {.options = &checked,
                    .streams = {-1, -1},
                    .signals = -1,
                    .lines = {.pipe = -1},
                    .kill_at_s = INFINITY,
                    .short_since_s = INFINITY,
                    .crash_step = UINT64_MAX};
    tdm_status status = agent_prepare(&a, err);
    if (status == TDM_OK) status = tdm_log_add_sink(tdm__agent_log, &a, TDM_LOG_INFO);
    if (status == TDM_OK) {
        agent_loop(&a);
        agent_kill_orphans(&a);
        agent_give_up(&a);
        tdm_log_remove_sink(tdm__agent_log, &a);
    }
    agent_release(&a);
    if (status == TDM_OK) *out = a.result;
    return status;
}
