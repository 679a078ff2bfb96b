/*
 * agent_workers.c: starts the workers of an agent and detects their exits.
 *
 * A worker has its own process group, an empty standard input, its log as output, and inherits the
 * launcher's streams, which it uses if it becomes rank 0. It does not die with its agent. Every
 * process gets a new random name, and a slot that no running worker of this host has: a worker that
 * is fenced but still runs keeps its slot, and its replacement gets another one.
 *
 * Invariant: a process that was started is in a worker slot or in the list of orphans until it was
 * waited for. Its exit is written to the store before anything else is done about it.
 */
#include "base/base.h"
#include "cluster/agent.h"

#include <tandem/os.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const replaced[] = {
    "TANDEM_RANK",   "TANDEM_SIZE",       "TANDEM_LOCAL_RANK", "TANDEM_LOCAL_SIZE", "TANDEM_SECRET",
    "TANDEM_MEMBER", "TANDEM_RENDEZVOUS", "TANDEM_SESSION",    "TANDEM_STORE",      "TANDEM_SLOT",
    "TANDEM_HOST",   "TANDEM_VAULT_FD",   "TANDEM_OUT_FD",     "TANDEM_ERR_FD",     "TANDEM_LOG",
    "TANDEM_JOB",    "TANDEM_RUN",        "TANDEM_LINES",      "TANDEM_AGENT",      NULL,
};

static const double moment_s = 0.5; /* time for a fenced worker to exit by itself */
static const double silence_s = 5;  /* time without a record in the store until it is replaced */

/* ---- start ----------------------------------------------------------------------------------- */

static bool worker_draw_id(const tdm__agent *a, tdm__agent_worker *w)
{
    uint32_t drawn;
    if (tdm_os_random(&drawn, sizeof(drawn), NULL) != TDM_OK) return false;
    snprintf(w->id, sizeof(w->id), "%.44s.%d.%08" PRIx32, a->options->host, w->slot, drawn);
    return true;
}

static void worker_fill_environment(const tdm__agent *a, const tdm__agent_worker *w,
                                    const char *log, tdm__environment *env)
{
    tdm__environment_init(env, replaced);
    tdm__environment_add(env, "TANDEM_MEMBER", "%s", w->id);
    tdm__environment_add(env, "TANDEM_SESSION", "%s", a->options->session);
    tdm__environment_add(env, "TANDEM_STORE", "%s", a->options->kv.url);
    tdm__environment_add(env, "TANDEM_HOST", "%s", a->options->host);
    tdm__environment_add(env, "TANDEM_SLOT", "%d", w->slot);
    tdm__environment_add(env, "TANDEM_AGENT", "%ld", (long)getpid());
    tdm__environment_add(env, "TANDEM_VAULT_FD", "%d", tdm_shm_fd(a->shm));
    tdm__environment_add(env, "TANDEM_OUT_FD", "%d", a->streams[0]);
    tdm__environment_add(env, "TANDEM_ERR_FD", "%d", a->streams[1]);
    tdm__environment_add(env, "TANDEM_LOG", "%s", log);
    tdm__environment_add(env, "TANDEM_LINES", "%s", a->lines_path);
    if (a->options->secret) tdm__environment_add(env, "TANDEM_SECRET", "%s", a->options->secret);
    if (a->address[0]) tdm__environment_add(env, "TANDEM_ADDRESS", "%s", a->address);
}

static tdm_status worker_spawn(tdm__agent *a, tdm__worker_slot *worker_slot, tdm__agent_worker *w,
                               tdm_error *err)
{
    char log[4096];
    tdm__environment env;
    int kept[4] = {tdm_shm_fd(a->shm), a->streams[0], a->streams[1], a->options->hold_fd};
    snprintf(log, sizeof(log), "%s/%s.%d.log", a->options->logs, a->options->host, w->slot);
    int output = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (output < 0) return tdm_os_fail(err, "cannot open", log);
    worker_fill_environment(a, w, log, &env);
    tdm__spawn_options options = {
        .program = a->options->program,
        .environment = env.items,
        .dir = a->options->dir && tdm_path_is_dir(a->options->dir) ? a->options->dir : NULL,
        .place = a->places ? &a->places[worker_slot - a->worker_slots] : NULL,
        .mask = &a->for_workers,
        .input = -1,
        .output = {output, output},
        .kept = kept,
        .kept_count = a->options->hold_fd > 0 ? 4 : 3};
    tdm_status status = env.failed ? tdm_fail_oom(err, "for the environment of a worker")
                                   : tdm__spawn(&options, &w->pid, err);
    tdm__environment_release(&env);
    close(output);
    return status;
}

static tdm_status worker_start(tdm__agent *a, tdm__worker_slot *worker_slot, tdm_error *err)
{
    tdm__agent_worker w = {.slot = tdm__slots_claim(a->slots, (int64_t)getpid())};
    if (w.slot < 0)
        return tdm_fail(err, TDM_ERR_RANGE, "this host has %d workers already", TDM_MAX_SLOTS);
    tdm_status status = worker_draw_id(a, &w) ? TDM_OK
                                              : tdm_os_fail(err, "cannot read", "random bytes");
    if (status == TDM_OK) status = worker_spawn(a, worker_slot, &w, err);
    /* The worker writes the same process id; the order does not matter. */
    atomic_store(&a->slots[w.slot].pid, status == TDM_OK ? (int64_t)w.pid : 0);
    if (status == TDM_OK) worker_slot->worker = w;
    return status;
}

void tdm__agent_start_due(tdm__agent *a, double now_s)
{
    for (int i = 0; i < a->count; i++) {
        tdm__worker_slot *worker_slot = &a->worker_slots[i];
        tdm_error err = {0};
        if (worker_slot->worker.pid > 0 || now_s < worker_slot->start_at_s) continue;
        worker_slot->start_at_s = INFINITY;
        if (a->over || a->stopping) continue;
        if (worker_start(a, worker_slot, &err) == TDM_OK) {
            tdm_log(TDM_LOG_INFO, "agent", "worker %s started on host %s, process %ld",
                    worker_slot->worker.id, a->options->host, (long)worker_slot->worker.pid);
        } else if (err.status == TDM_ERR_NOT_FOUND || a->result.restarts == 0) {
            tdm__agent_end_session(a, err.status, err.message);
        } else {
            tdm__agent_plan_restart(a, worker_slot, err.message);
        }
    }
}

/* ---- exit ------------------------------------------------------------------------------------ */

/* True if the worker has exited and was waited for. */
static bool worker_has_ended(tdm__agent_worker *w, int *wait_status)
{
    siginfo_t info = {.si_pid = 0};
    if (w->pid <= 0 || waitid(P_PID, (id_t)w->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid != w->pid)
        return false;
    /* Processes that it started are killed as well, unless it succeeded. */
    if (info.si_code != CLD_EXITED || info.si_status != 0) kill(-w->pid, SIGKILL);
    while (waitpid(w->pid, wait_status, 0) < 0 && errno == EINTR) continue;
    return true;
}

/* Writes the exit to the store first, because other members wait for it. Returns the last completed
 * step. */
static uint64_t worker_record_end(tdm__agent *a, tdm__agent_worker *w, int wait_status)
{
    char how[64];
    uint64_t step = atomic_load(&a->slots[w->slot].step);
    tdm__agent_how(wait_status, how, sizeof(how));
    if (!WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != 0)
        tdm__agent_put_dead(a, w->id, how, step);
    int64_t holder = (int64_t)w->pid;
    (void)atomic_compare_exchange_strong(&a->slots[w->slot].pid, &holder, 0);
    tdm_log(TDM_LOG_INFO, "agent", "worker %s (process %ld) ended after step %" PRIu64 ": %s",
            w->id, (long)w->pid, step, how);
    return step;
}

void tdm__agent_reap(tdm__agent *a)
{
    int wait_status;
    for (int i = 0; i < a->count; i++) {
        tdm__worker_slot *worker_slot = &a->worker_slots[i];
        if (!worker_has_ended(&worker_slot->worker, &wait_status)) continue;
        tdm__agent_worker ended = worker_slot->worker;
        worker_slot->worker = (tdm__agent_worker){.pid = 0};
        uint64_t step = worker_record_end(a, &ended, wait_status);
        tdm__agent_judge(a, worker_slot, &ended, wait_status, step);
    }
    for (size_t i = 0; i < a->orphan_count;) {
        if (!worker_has_ended(&a->orphans[i], &wait_status)) {
            i++;
            continue;
        }
        worker_record_end(a, &a->orphans[i], wait_status);
        a->orphans[i] = a->orphans[--a->orphan_count];
    }
}

/* ---- fenced workers -------------------------------------------------------------------------- */

static bool is_rank(const tdm_session_view *view, const char *id)
{
    for (int i = 0; i < view->rank_count; i++)
        if (strcmp(view->rank_ids[i], id) == 0) return true;
    return false;
}

static bool is_member(const tdm_session_view *view, const char *id)
{
    for (size_t i = 0; i < view->member_count; i++)
        if (strcmp(view->members[i].id, id) == 0) return true;
    return false;
}

static bool worker_become_orphan(tdm__agent *a, const tdm__agent_worker *w)
{
    if (a->orphan_count == a->orphan_capacity) {
        size_t room = a->orphan_capacity * 2 + 4;
        tdm__agent_worker *orphans = realloc(a->orphans, room * sizeof(*orphans));
        if (!orphans) return false;
        a->orphans = orphans;
        a->orphan_capacity = room;
    }
    a->orphans[a->orphan_count++] = *w;
    return true;
}

/* Whether an epoch has been without this worker for some time. A worker that leaves, or has noticed
 * that it is fenced, exits within that time by itself. */
static bool worker_is_fenced(tdm__agent_worker *w, const tdm_session_view *view)
{
    for (size_t i = 0; i < view->leaver_count; i++)
        w->leaves = w->leaves || strcmp(view->leaver_ids[i], w->id) == 0;
    if (is_rank(view, w->id)) {
        w->was_rank = true;
        w->outside_s = 0;
        return false;
    }
    if (!w->was_rank || w->leaves) return false;
    double now_s = tdm_clock_s();
    if (w->outside_s == 0) w->outside_s = now_s;
    return now_s - w->outside_s >= moment_s;
}

/* Whether its lease has expired, but there is no epoch without it: too few members are left for
 * one, so the others wait, and a replacement must be started. */
static bool worker_is_silent(tdm__agent_worker *w, const tdm_session_view *view)
{
    if (w->leaves || !is_rank(view, w->id) || is_member(view, w->id)) {
        w->silent_s = 0;
        return false;
    }
    double now_s = tdm_clock_s();
    if (w->silent_s == 0) w->silent_s = now_s;
    return now_s - w->silent_s >= silence_s;
}

void tdm__agent_replace_fenced(tdm__agent *a, const tdm_session_view *view)
{
    for (int i = 0; i < a->count && view->epoch > 0; i++) {
        tdm__worker_slot *worker_slot = &a->worker_slots[i];
        tdm__agent_worker *w = &worker_slot->worker;
        if (w->pid <= 0) continue;
        bool fenced = worker_is_fenced(w, view), silent = worker_is_silent(w, view);
        if ((!fenced && !silent) || !worker_become_orphan(a, w)) continue;
        if (fenced)
            tdm_log(TDM_LOG_INFO, "agent",
                    "worker %s (process %ld) is alive, but is not a member of epoch %" PRIu32,
                    w->id, (long)w->pid, view->epoch);
        else
            tdm_log(
                TDM_LOG_WARN, "agent",
                "worker %s (process %ld) is alive, but its lease expired more than %.0f s ago and "
                "training cannot continue without it: starting a replacement",
                w->id, (long)w->pid, silence_s);
        *w = (tdm__agent_worker){.pid = 0};
        tdm__agent_plan_restart(a, worker_slot, fenced ? "it was fenced" : "it was silent");
    }
}

/* ---- all workers ----------------------------------------------------------------------------- */

void tdm__agent_signal(const tdm__agent *a, int signal_number, bool orphans_too)
{
    for (int i = 0; i < a->count; i++)
        if (a->worker_slots[i].worker.pid > 0) kill(-a->worker_slots[i].worker.pid, signal_number);
    for (size_t i = 0; orphans_too && i < a->orphan_count; i++)
        kill(-a->orphans[i].pid, signal_number);
}

int tdm__agent_alive(const tdm__agent *a)
{
    int alive = 0;
    for (int i = 0; i < a->count; i++) alive += a->worker_slots[i].worker.pid > 0;
    return alive;
}

int tdm__agent_plans(const tdm__agent *a)
{
    int plans = 0;
    for (int i = 0; i < a->count; i++) plans += isfinite(a->worker_slots[i].start_at_s) != 0;
    return plans;
}
