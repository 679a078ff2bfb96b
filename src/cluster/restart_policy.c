/*
 * restart_policy.c: decides what follows when a worker has exited.
 *
 *     exit                                     what follows
 *     code 0, TDM_WORKER_LEFT, _STOPPED        nothing
 *     code 1 to TDM_MAX_WORKER_ERROR           the session ends: any worker would meet this error
 *     a crash, the third one at the same step  the session ends: a bug, which a restart cannot fix,
 *                                              no matter in which workers it occurred
 *     TDM_WORKER_REFUSED                       the worker slot stays empty: the other members would
 *                                              refuse each worker of this host
 *     any other code or signal                 a restart; in a session with a fixed set of workers
 *                                              the session ends
 *
 * The first restart follows at once, the next ones after a delay that doubles. After as many restarts
 * within the window as the job allows, the worker slot stays empty.
 */
#include "base/timing.h"
#include "cluster/agent.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { MAX_CRASHES = 3 };

/* ---- restart --------------------------------------------------------------------------------- */

/* Removes restarts that are older than the window. */
static void restarts_prune(tdm__worker_slot *worker_slot, double since_s)
{
    size_t old = 0;
    while (old < worker_slot->start_count && worker_slot->starts_s[old] < since_s) old++;
    worker_slot->start_count -= old;
    memmove(worker_slot->starts_s, worker_slot->starts_s + old,
            worker_slot->start_count * sizeof(*worker_slot->starts_s));
}

static bool restarts_add(tdm__worker_slot *worker_slot, double at_s)
{
    if (worker_slot->start_count == worker_slot->start_room) {
        size_t room = worker_slot->start_room * 2 + 8;
        double *starts_s = realloc(worker_slot->starts_s, room * sizeof(*starts_s));
        if (!starts_s) return false;
        worker_slot->starts_s = starts_s;
        worker_slot->start_room = room;
    }
    worker_slot->starts_s[worker_slot->start_count++] = at_s;
    return true;
}

static double restart_pause_s(const tdm__agent *a, size_t restarts)
{
    if (restarts == 0) return 0;
    double pause = a->options->backoff_s * pow(2, (double)(restarts - 1 < 20 ? restarts - 1 : 20));
    return fmin(pause, TDM__TIMING_AGENT_MAX_BACKOFF_S);
}

void tdm__agent_plan_restart(tdm__agent *a, tdm__worker_slot *worker_slot, const char *why)
{
    double now_s = tdm_clock_s();
    if (a->phase != TDM__AGENT_RUNNING) return;
    if (a->is_fixed) {
        char message[400];
        snprintf(message, sizeof(message),
                 "worker %d of host %s died (%s), and workers of this run are not replaced "
                 "(TANDEM_ELASTIC=0)",
                 (int)(worker_slot - a->worker_slots), a->options->host, why);
        tdm__agent_end_session(a, TDM_ERR_PEER_FAILED, message);
        return;
    }
    if (worker_slot->start_count > 0)
        restarts_prune(worker_slot, now_s - a->options->restart_window_s);
    double pause = restart_pause_s(a, worker_slot->start_count);
    if (a->options->restarts <= (int)worker_slot->start_count ||
        !restarts_add(worker_slot, now_s + pause)) {
        tdm_log(TDM_LOG_WARN, "agent",
                "worker %d of host %s is not restarted (%s): it was restarted %zu times within %g "
                "s; training continues without it (elastic.restarts, elastic.restart_window)",
                (int)(worker_slot - a->worker_slots), a->options->host, why,
                worker_slot->start_count, a->options->restart_window_s);
        return;
    }
    a->result.restarts++;
    tdm__agent_look_soon(a); /* first: the session may have ended */
    tdm__loop_timer_set(a->loop, &worker_slot->start_timer, tdm_clock_s() + pause);
    if (pause > 0)
        tdm_log(TDM_LOG_INFO, "agent", "worker %d of host %s is restarted in %g s",
                (int)(worker_slot - a->worker_slots), a->options->host, pause);
}

/* ---- end of session -------------------------------------------------------------------------- */

static bool exit_is_crash(int wait_status)
{
    if (!WIFSIGNALED(wait_status)) return false;
    switch (WTERMSIG(wait_status)) {
    case SIGSEGV:
    case SIGABRT:
    case SIGBUS:
    case SIGFPE:
    case SIGILL: return true;
    default: return false;
    }
}

/* True if the limit is reached and the session has ended. */
static bool worker_crashed_again(tdm__agent *a, const tdm__agent_worker *w, int wait_status,
                                 uint64_t step)
{
    char how[TDM__EXIT_TEXT_BYTES], last[300], where[64] = "before their first step", message[900];
    if (!exit_is_crash(wait_status)) return false;
    a->crash_count = step == a->crash_step ? a->crash_count + 1 : 1;
    a->crash_step = step;
    if (a->crash_count < MAX_CRASHES) return false;
    tdm__exit_text(wait_status, how);
    tdm__agent_last_line(a, w->slot, last, sizeof(last));
    if (step > 0) snprintf(where, sizeof(where), "in step %" PRIu64, step + 1);
    snprintf(
        message, sizeof(message),
        "workers repeatedly crash %s, %d times so far, the last one %s: this is a bug in Tandem "
        "or in a library that the job loads, and a restart does not help%s%s; the checkpoints are "
        "valid: fix the bug, then continue with --resume ('tandem replay' runs the step alone)",
        where, a->crash_count, how, last[0] ? "; its last output: " : "", last);
    tdm__agent_end_session(a, TDM_ERR_INTERNAL, message);
    return true;
}

static tdm_status status_of_exit_code(int code)
{
    switch (code) {
    case 2: return TDM_ERR_JOB_INVALID;
    case 3: return TDM_ERR_DIVERGED;
    case 4: return TDM_ERR_JOB_MISMATCH;
    case 5: return TDM_ERR_BUSY;
    default: return TDM_ERR_SYSTEM;
    }
}

/* Ends the session with an error that would affect every worker. The worker's own message is
 * preferred if it is in its log. */
static void session_fail(tdm__agent *a, const tdm__agent_worker *w, int code)
{
    char last[600], message[900];
    tdm__agent_last_line(a, w->slot, last, sizeof(last));
    const char *said = strncmp(last, "tandem: ", 8) == 0 ? last + 8 : last;
    if (said[0])
        snprintf(message, sizeof(message), "%s", said);
    else
        snprintf(message, sizeof(message), "worker %s exited with code %d", w->id, code);
    tdm__agent_end_session(a, status_of_exit_code(code), message);
}

/* The others do not let it in, and would not let in another one that is started here. */
static void worker_refused(tdm__agent *a, const tdm__worker_slot *worker_slot,
                           const tdm__agent_worker *w)
{
    char last[600];
    tdm__agent_last_line(a, w->slot, last, sizeof(last));
    a->was_refused = true;
    if (a->phase == TDM__AGENT_OVER) return;

    /* The others would refuse the workers that have not done a step as well, each at the cost of an
     * epoch. */
    for (int i = 0; i < a->count; i++) {
        const tdm__agent_worker *other = a->worker_slots[i].worker;
        if (other && atomic_load(&a->slots[other->slot].step) == 0)
            tdm__agent_ask_to_leave(a, other, "its host is refused");
    }
    tdm_log(TDM_LOG_WARN, "agent",
            "worker %d of host %s is refused and not started again: %s; correct that, then add "
            "the host with 'tandem join'",
            (int)(worker_slot - a->worker_slots), a->options->host,
            strncmp(last, "tandem: ", 8) == 0 ? last + 8 : last);
}

void tdm__exit_code_take(int *best, int code)
{
    bool is_error = code >= 1 && code <= TDM_MAX_WORKER_ERROR;
    bool has_error = *best >= 1 && *best <= TDM_MAX_WORKER_ERROR;
    if (is_error && !has_error) *best = code;
    if (code == TDM_WORKER_STOPPED && *best == 0) *best = code;
}

void tdm__agent_judge(tdm__agent *a, tdm__worker_slot *worker_slot, const tdm__agent_worker *worker,
                      int wait_status, uint64_t step)
{
    char how[TDM__EXIT_TEXT_BYTES];
    tdm__exit_text(wait_status, how);
    if (worker_crashed_again(a, worker, wait_status, step)) return;
    int code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1;
    tdm__exit_code_take(&a->result.exit_code, code);
    if (code >= 1 && code <= TDM_MAX_WORKER_ERROR)
        session_fail(a, worker, code);
    else if (code == TDM_WORKER_REFUSED)
        worker_refused(a, worker_slot, worker);
    else if (code != TDM_WORKER_DONE && code != TDM_WORKER_LEFT && code != TDM_WORKER_STOPPED)
        tdm__agent_plan_restart(a, worker_slot, how);
}
