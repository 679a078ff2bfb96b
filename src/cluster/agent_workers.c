/*
 * agent_workers.c: the workers of an agent: start, state according to the store, exit.
 *
 * A worker has its own process group, an empty standard input, its log as output, and inherits the
 * launcher's streams, which it uses if it becomes rank 0. It does not die with its agent. Every
 * process gets a new random name, and a slot that no running worker of this host has: a worker that
 * is fenced but still runs keeps its slot, and its replacement gets another one.
 *
 * Every process gets a state whenever the agent has read the store; an exit is possible in each.
 *
 *     NEW --> RANK <--> SILENT ---> ORPHAN        RANK     rank of the epoch, with a record
 *              ^  \      |   (5 s)    ^            SILENT   rank of the epoch, without a record
 *              |   v     v           |            OUTSIDE  was a rank, not in the epoch
 *              +-- OUTSIDE ----------+            ORPHAN   replaced; it may still write to the
 *                         (0.5 s)                          shared memory until it is killed
 *     any but ORPHAN --> LEAVING
 *
 *     transition                           function
 *     between NEW, RANK, SILENT, OUTSIDE   worker_observe
 *     any -> LEAVING                       worker_observe
 *     SILENT, OUTSIDE -> ORPHAN            worker_replace
 *     any -> exit                          worker_on_exit
 *
 * Invariant: a process that was started is in the set of workers or of orphans until it was waited
 * for. Its exit is written to the store before anything else is done about it.
 */
#include "base/base.h"
#include "base/timing.h"
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

static tdm_status worker_spawn(tdm__agent *a, tdm__agent_worker *w, tdm_error *err)
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
        .place = a->places ? &a->places[w->worker_slot - a->worker_slots] : NULL,
        .mask = &a->for_workers,
        .input = -1,
        .output = {output, output},
        .kept = kept,
        .kept_count = a->options->hold_fd > 0 ? 4 : 3};
    tdm_status status = env.failed ? tdm_fail_oom(err, "for the environment of a worker")
                                   : tdm__process_start(&a->workers, &w->process, &options, err);
    tdm__environment_release(&env);
    close(output);
    return status;
}

static tdm_status worker_start(tdm__agent *a, tdm__worker_slot *worker_slot, tdm_error *err)
{
    int slot = tdm__slots_claim(a->slots, (int64_t)getpid());
    if (slot < 0)
        return tdm_fail(err, TDM_ERR_RANGE, "this host has %d workers already", TDM_MAX_SLOTS);

    tdm__agent_worker *w = calloc(1, sizeof(*w));
    tdm_status status = w ? TDM_OK : tdm_fail_oom(err, "for a worker");
    if (w) {
        w->worker_slot = worker_slot;
        w->slot = slot;
        if (!worker_draw_id(a, w)) status = tdm_os_fail(err, "cannot read", "random bytes");
    }
    if (status == TDM_OK) status = worker_spawn(a, w, err);
    /* The worker writes the same process id; the order does not matter. */
    atomic_store(&a->slots[slot].pid, status == TDM_OK ? (int64_t)w->process.child.pid : 0);
    if (status == TDM_OK)
        worker_slot->worker = w;
    else
        free(w);
    return status;
}

static void worker_slot_on_start(tdm__loop_timer *timer)
{
    tdm__worker_slot *worker_slot = timer->user;
    tdm__agent *a = worker_slot->agent;
    tdm_error err = {0};
    if (a->phase != TDM__AGENT_RUNNING) return;

    if (worker_start(a, worker_slot, &err) == TDM_OK)
        tdm_log(TDM_LOG_INFO, "agent", "worker %s started on host %s, process %ld",
                worker_slot->worker->id, a->options->host,
                (long)worker_slot->worker->process.child.pid);
    else if (err.status == TDM_ERR_NOT_FOUND || a->result.restarts == 0)
        tdm__agent_end_session(a, err.status, err.message);
    else
        tdm__agent_plan_restart(a, worker_slot, err.message);
}

/* ---- exit ------------------------------------------------------------------------------------ */

/* Writes the exit to the store first, because other members wait for it. */
static void worker_on_exit(tdm__process *process, pid_t pid, int wait_status, void *user)
{
    tdm__agent *a = user;
    tdm__agent_worker *w = (tdm__agent_worker *)process;
    char how[TDM__EXIT_TEXT_BYTES];
    uint64_t step = atomic_load(&a->slots[w->slot].step);
    tdm__exit_text(wait_status, how);
    if (!WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != 0)
        tdm__agent_put_dead(a, w->id, how, step);
    int64_t holder = (int64_t)pid;
    (void)atomic_compare_exchange_strong(&a->slots[w->slot].pid, &holder, 0);
    tdm_log(TDM_LOG_INFO, "agent", "worker %s (process %ld) ended after step %" PRIu64 ": %s",
            w->id, (long)pid, step, how);

    if (w->state != TDM__WORKER_ORPHAN) {
        w->worker_slot->worker = NULL;
        tdm__agent_judge(a, w->worker_slot, w, wait_status, step);
    }
    free(w);
}

/* ---- fenced workers -------------------------------------------------------------------------- */

static bool view_has_rank(const tdm_session_view *view, const char *id)
{
    for (int i = 0; i < view->rank_count; i++)
        if (strcmp(view->rank_ids[i], id) == 0) return true;
    return false;
}

static bool view_has_member(const tdm_session_view *view, const char *id)
{
    for (size_t i = 0; i < view->member_count; i++)
        if (strcmp(view->members[i].id, id) == 0) return true;
    return false;
}

/* What the store says now. A worker that leaves stays so until it exits. */
static tdm__worker_state worker_observe(const tdm__agent_worker *w, const tdm_session_view *view)
{
    if (w->state == TDM__WORKER_LEAVING) return TDM__WORKER_LEAVING;
    for (size_t i = 0; i < view->leaver_count; i++)
        if (strcmp(view->leaver_ids[i], w->id) == 0) return TDM__WORKER_LEAVING;
    if (view_has_rank(view, w->id))
        return view_has_member(view, w->id) ? TDM__WORKER_RANK : TDM__WORKER_SILENT;
    return w->state == TDM__WORKER_NEW ? TDM__WORKER_NEW : TDM__WORKER_OUTSIDE;
}

/* Makes the process an orphan and plans the start of another one in its worker slot. */
static void worker_replace(tdm__agent *a, tdm__agent_worker *w, uint32_t epoch)
{
    bool is_fenced = w->state == TDM__WORKER_OUTSIDE;
    if (is_fenced)
        tdm_log(TDM_LOG_INFO, "agent",
                "worker %s (process %ld) is alive, but is not a member of epoch %" PRIu32, w->id,
                (long)w->process.child.pid, epoch);
    else
        tdm_log(TDM_LOG_WARN, "agent",
                "worker %s (process %ld) is alive, but its lease expired more than %.0f s ago and "
                "training cannot continue without it: starting a replacement",
                w->id, (long)w->process.child.pid, TDM__TIMING_AGENT_SILENCE_S);
    w->state = TDM__WORKER_ORPHAN;
    tdm__process_move(&w->process, &a->orphans);
    w->worker_slot->worker = NULL;
    tdm__agent_plan_restart(a, w->worker_slot, is_fenced ? "it was fenced" : "it was silent");
}

/* A worker that notices that it is fenced exits within the limit by itself. For a silent one there
 * cannot be an epoch without it: too few members are left, so the others wait. */
void tdm__agent_replace_fenced(tdm__agent *a, const tdm_session_view *view)
{
    const double now_s = tdm_clock_s();
    for (int i = 0; i < a->count && view->epoch > 0; i++) {
        tdm__agent_worker *w = a->worker_slots[i].worker;
        if (!w) continue;
        tdm__worker_state state = worker_observe(w, view);
        if (state != w->state) w->state_s = now_s;
        w->state = state;

        double limit_s = state == TDM__WORKER_OUTSIDE  ? TDM__TIMING_AGENT_FENCED_S
                         : state == TDM__WORKER_SILENT ? TDM__TIMING_AGENT_SILENCE_S
                                                       : INFINITY;
        if (now_s - w->state_s >= limit_s) worker_replace(a, w, view->epoch);
    }
}

/* ---- all workers ----------------------------------------------------------------------------- */

/* Only an agent in RUNNING starts workers: see worker_slot_on_start. */
int tdm__agent_plans(const tdm__agent *a)
{
    int plans = 0;
    if (a->phase != TDM__AGENT_RUNNING) return 0;
    for (int i = 0; i < a->count; i++) plans += a->worker_slots[i].start_timer.is_set;
    return plans;
}

void tdm__agent_ask_to_leave(tdm__agent *a, const tdm__agent_worker *w, const char *why)
{
    char request[TDM_MEMBER_ID_BYTES + 8];
    snprintf(request, sizeof(request), "leave/%s", w->id);
    (void)tdm_session_request(a->kv, a->options->session, request, why, NULL);
}

tdm_status tdm__agent_open_slots(tdm__agent *a, tdm_error *err)
{
    tdm__processes set = {
        .loop = a->loop, .on_exit = worker_on_exit, .user = a, .grace_s = a->options->grace_s};
    a->orphans = set;
    set.on_late = tdm__agent_on_late;
    a->workers = set;

    a->worker_slots = calloc((size_t)a->options->count, sizeof(*a->worker_slots));
    if (!a->worker_slots) return tdm_fail_oom(err, "for %d workers", a->options->count);
    a->count = a->options->count;
    for (int i = 0; i < a->count; i++) {
        tdm__worker_slot *worker_slot = &a->worker_slots[i];
        worker_slot->agent = a;
        worker_slot->start_timer = (tdm__loop_timer){.on_time = worker_slot_on_start,
                                                     .user = worker_slot};
        tdm__loop_timer_set(a->loop, &worker_slot->start_timer, tdm_clock_s());
    }
    return a->options->pin ? tdm__process_places(a->count, &a->places, err) : TDM_OK;
}

static void set_free(tdm__processes *set)
{
    for (tdm__process *process = set->first, *next; process; process = next) {
        next = process->next;
        free(process); /* first member of a worker */
    }
}

void tdm__agent_close_slots(tdm__agent *a)
{
    set_free(&a->workers); /* usually empty: the kernel could not kill them */
    set_free(&a->orphans);
    for (int i = 0; i < a->count; i++) free(a->worker_slots[i].starts_s);
    free(a->worker_slots);
    free(a->places);
}
