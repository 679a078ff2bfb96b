/*
 * agent.c: the main loop of an agent, which keeps the workers of its host running until the session
 * ends.
 *
 * An event loop (os/loop.h) reports signals, exits of workers and times: a planned start of a
 * worker, the next look at the store, the next heartbeat. Several times a second the agent reads
 * the store: the end of the session, a request to stop, an epoch without one of its workers.
 *
 *     RUNNING ---> STOPPING ---> OVER
 *        |                        ^
 *        +------------------------+
 *
 *     transition             function                 because of
 *     RUNNING -> STOPPING    agent_stop_workers       a signal, or a request to stop in the store
 *                            agent_leave_session      a signal, if its workers are guests
 *     any -> OVER            agent_take_verdict       a result in the store
 *                            agent_end_forgotten      the session was removed from the store
 *                            tdm__agent_end_session   an error that concerns all workers
 *
 * Workers are started in RUNNING only. From STOPPING and OVER on they have the grace period; then
 * they are killed (launch/processes.h).
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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- set-up ---------------------------------------------------------------------------------- */

static tdm_status agent_check_options(const tdm_agent_options *given, tdm_agent_options *o,
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

/* ---- shutdown -------------------------------------------------------------------------------- */

static void agent_kill_workers(tdm__agent *a)
{
    tdm__processes_kill(&a->workers);
    tdm__processes_kill(&a->orphans);
}

static void agent_stop_workers(tdm__agent *a)
{
    if (a->phase == TDM__AGENT_RUNNING) a->phase = TDM__AGENT_STOPPING;
    tdm__processes_ask(&a->workers);
}

/* Makes this agent's workers leave; the other members continue without them. */
static void agent_leave_session(tdm__agent *a)
{
    if (a->phase == TDM__AGENT_RUNNING) a->phase = TDM__AGENT_STOPPING;
    tdm__processes_limit(&a->workers);
    for (int i = 0; i < a->count; i++)
        if (a->worker_slots[i].worker)
            tdm__agent_ask_to_leave(a, a->worker_slots[i].worker,
                                    "its agent received a signal to end");
}

static void agent_request_save(tdm__agent *a)
{
    tdm_error err = {0};
    if (tdm_session_ask_save(a->kv, a->options->session, strsignal(SIGUSR1), NULL, &err) != TDM_OK)
        tdm_log(TDM_LOG_WARN, "agent", "cannot write the checkpoint request to the store: %s",
                err.message);
}

static void agent_on_signal(int number, void *user)
{
    tdm__agent *a = user;
    const double now_s = tdm_clock_s();
    const bool is_first = a->signals_seen == 0;
    if (number == SIGUSR1) {
        agent_request_save(a);
        return;
    }
    tdm__agent_look_soon(a);
    if (!is_first && now_s - a->signal_s < TDM__TIMING_AGENT_SAME_SIGNAL_S) return;
    a->signals_seen++;
    a->signal_s = now_s;

    if (a->options->guest && is_first) {
        agent_leave_session(a);
        return;
    }
    if (!a->options->guest)
        (void)tdm_session_request(a->kv, a->options->session, is_first ? "stop" : "now",
                                  is_first ? "a signal" : "a second signal", NULL);
    if (is_first)
        agent_stop_workers(a);
    else
        agent_kill_workers(a);
}

void tdm__agent_on_late(void *user)
{
    tdm__agent *a = user;
    if (a->phase != TDM__AGENT_OVER)
        tdm_log(TDM_LOG_WARN, "agent",
                "workers on host %s did not exit within %g s (elastic.grace) and are killed; "
                "steps since the newest checkpoint are lost",
                a->options->host, a->options->grace_s);
    tdm__processes_kill(&a->orphans);
}

/* ---- store ----------------------------------------------------------------------------------- */

static void agent_take_verdict(tdm__agent *a, const tdm_session_view *view)
{
    a->result.has_verdict = true;
    a->result.status = view->status;
    snprintf(a->result.message, sizeof(a->result.message), "%s", view->message);
    a->phase = TDM__AGENT_OVER;
    tdm__processes_limit(&a->workers);
}

/* The session ended while this host was cut off: the work of its workers can no longer count. */
static void agent_end_forgotten(tdm__agent *a)
{
    tdm_agent_result *result = &a->result;
    char message[1000];
    a->phase = TDM__AGENT_OVER;
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
    if (a->said_short || a->phase != TDM__AGENT_RUNNING ||
        now_s - a->short_since_s < TDM__TIMING_AGENT_SHORT_S)
        return;
    a->said_short = true;
    tdm_log(TDM_LOG_WARN, "agent",
            "%zu of at least %d workers have joined; training begins when the others have joined "
            "('tandem join' adds workers; elastic.min, elastic.wait)",
            view->member_count, view->min);
}

static void agent_on_look(tdm__loop_timer *timer)
{
    tdm__agent *a = timer->user;
    tdm_session_view view;
    tdm_arena *arena = tdm_arena_create("look");
    if (arena && tdm__agent_look(a, arena, &view)) {
        a->is_fixed = view.is_fixed;
        if (view.stopping && a->phase == TDM__AGENT_RUNNING) agent_stop_workers(a);
        if (view.now) agent_kill_workers(a);
        if (view.ended) agent_take_verdict(a, &view);
        agent_report_shortage(a, &view, tdm_clock_s());
        if (a->phase == TDM__AGENT_RUNNING) tdm__agent_replace_fenced(a, &view);
    } else if (a->is_forgotten && a->phase != TDM__AGENT_OVER) {
        agent_end_forgotten(a);
    }
    tdm_arena_destroy(arena);

    bool is_local = strncmp(a->options->kv.url, "local:", 6) == 0;
    tdm__loop_timer_set(
        a->loop, timer,
        tdm_clock_s() + (is_local ? TDM__TIMING_AGENT_LOOK_LOCAL_S : TDM__TIMING_AGENT_LOOK_FAR_S));
}

static void agent_on_beat(tdm__loop_timer *timer)
{
    tdm__agent_beat(timer->user);
}

/* This host has no worker left and will start none. If no host has one, the session ends. */
static void agent_give_up(tdm__agent *a)
{
    tdm_session_view view;
    tdm_arena *arena = tdm_arena_create("look");
    bool known = arena && tdm__agent_look(a, arena, &view);
    if (a->is_forgotten) {
        if (a->phase != TDM__AGENT_OVER) agent_end_forgotten(a);
    } else if (known && view.ended) {
        agent_take_verdict(a, &view);
    } else if (a->options->guest && a->was_refused) {
        a->result.exit_code = TDM_WORKER_PEER;
    } else if (a->options->guest) {
        tdm_log(TDM_LOG_INFO, "agent", "the workers that joined on host %s have left",
                a->options->host);
    } else if (a->workers.stage >= TDM__END_KILLED) {
        tdm__agent_end_session(
            a, TDM_ERR_INTERRUPTED,
            "the workers were killed; steps since the newest checkpoint are lost");
    } else if (known && a->phase == TDM__AGENT_STOPPING && view.member_count == 0) {
        tdm__agent_end_session(a, TDM_ERR_INTERRUPTED,
                               "stopped before the first step; no checkpoint was written");
    } else if (known && a->phase != TDM__AGENT_STOPPING && view.host_count <= 1 &&
               view.member_count == 0 && a->result.restarts > 0) {
        tdm__agent_end_session(a, TDM_ERR_PEER_FAILED,
                               "every worker died more often than elastic.restarts allows within "
                               "elastic.restart_window; see the logs in the run directory");
    }
    tdm_arena_destroy(arena);
}

/* ---- main loop ------------------------------------------------------------------------------- */

static tdm_status agent_prepare(tdm__agent *a, tdm_error *err)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
    const size_t signal_count = sizeof(signals) / sizeof(signals[0]);
    for (int i = 0; i < 2; i++) {
        a->streams[i] = fcntl(STDOUT_FILENO + i, F_DUPFD_CLOEXEC, 3);
        if (a->streams[i] < 0) a->streams[i] = open("/dev/null", O_WRONLY | O_CLOEXEC);
        if (a->streams[i] < 0) return tdm_os_fail(err, "cannot open", "/dev/null");
    }
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

    /* The launcher blocks these signals for the agent, so that none arrives too early. Workers must
     * receive them, except SIGUSR1: it kills by default, so they unblock it when they handle it. */
    TDM_TRY(tdm__loop_create(&a->loop, err));
    TDM_TRY(tdm__loop_signals(a->loop, signals, signal_count, agent_on_signal, a, err));
    a->for_workers = *tdm__loop_mask_before(a->loop);
    for (size_t i = 0; i < signal_count; i++) sigdelset(&a->for_workers, signals[i]);
    sigaddset(&a->for_workers, SIGUSR1);

    TDM_TRY(tdm__agent_enter(a, err));
    tdm__agent_look_soon(a); /* before the first start: the session may have ended */
    tdm__loop_timer_set(a->loop, &a->beat_timer, tdm_clock_s());
    return tdm__agent_open_slots(a, err);
}

/* Returns when no worker is left and none is to be started; then kills the workers that were fenced
 * and did not notice it. */
static tdm_status agent_loop(tdm__agent *a, tdm_error *err)
{
    while ((a->workers.count > 0 && a->workers.stage != TDM__END_ABANDONED) ||
           tdm__agent_plans(a) > 0)
        TDM_TRY(tdm__loop_turn(a->loop, INFINITY, err));

    tdm__processes_kill(&a->orphans);
    while (a->orphans.count > 0 && a->orphans.stage != TDM__END_ABANDONED)
        TDM_TRY(tdm__loop_turn(a->loop, INFINITY, err));
    return TDM_OK;
}

static void agent_release(tdm__agent *a)
{
    tdm__agent_leave(a);
    tdm_shm_close(a->shm);
    tdm__agent_close_slots(a);
    for (int i = 0; i < 2; i++)
        if (a->streams[i] >= 0) close(a->streams[i]);
    tdm__loop_destroy(a->loop);
    tdm__log_forward_release(&a->lines);
    tdm__disk_probe_release(a->disk_probe);
}

tdm_status tdm_agent_run(const tdm_agent_options *options, tdm_agent_result *out, tdm_error *err)
{
    tdm_agent_options checked;
    TDM_TRY(agent_check_options(options, &checked, err));
    tdm__agent a = {.options = &checked,
                    .streams = {-1, -1},
                    .lines = {.pipe = -1},
                    .look_timer = {.on_time = agent_on_look, .user = &a},
                    .beat_timer = {.on_time = agent_on_beat, .user = &a},
                    .short_since_s = INFINITY,
                    .crash_step = UINT64_MAX};
    tdm_status status = agent_prepare(&a, err);
    if (status == TDM_OK) status = tdm_log_add_sink(tdm__agent_log, &a, TDM_LOG_INFO);
    if (status == TDM_OK) {
        status = agent_loop(&a, err);
        agent_give_up(&a);
        tdm_log_remove_sink(tdm__agent_log, &a);
    }
    agent_release(&a);
    if (status == TDM_OK) *out = a.result;
    return status;
}
