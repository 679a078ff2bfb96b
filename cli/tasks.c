/*
 * tasks.c: sessions under mpirun and srun.
 *
 * mpirun and srun start one task per worker, and end the job when a task dies. So the tasks are not
 * the workers. The first task of each host becomes the agent of the host, which starts as many
 * workers as the host has tasks, and restarts them; the very first task is the session's launcher,
 * whose agent is a separate process. The other tasks sleep until the end and exit with the same
 * code. The name of the session is derived from the job and step numbers of mpirun or srun, so all
 * tasks know it immediately; hosts find each other in the store.
 *
 * When the first task of a host is killed, its workers continue. The other tasks of that host then
 * monitor the session: they wait for its end, and forward a signal (mpirun ends all tasks when one
 * has died) as a request to stop.
 */
#include "tasks.h"

#include "elastic.h"
#include "session.h"

#include <tandem/os.h>

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LOOK_MS = 100, WATCH_MS = 500 };
static const double begin_s = 60;  /* timeout for the launcher's task to start the session */
static const double nobody_s = 15; /* timeout without agents and workers, after their leases */

/* ---- session or fixed world ------------------------------------------------------------------ */

/* Why the tasks are a fixed world; "" if the user has chosen that. NULL: they are a session. */
static const char *why_fixed(const cli_args *args, const tdm_job *job, const tdm_comm_place *place,
                             char name[TDM_LAUNCH_NAME_BYTES])
{
    if (strcmp(place->launcher, "tandem") == 0 || cli_has(args, "hosts") ||
        elastic_is_fixed(args) || strstr(elastic_transport(job), "mpi"))
        return "";
    if (place->size > TDM_MAX_EPOCH_RANKS) return "there are more ranks than a session supports";
    if (place->local_rank < 0 || place->local_size < 1 || !tdm_comm_launch_name(place, name))
        return "the launcher does not report which ranks share a host";
    if (place->local_size < place->size && job->store != TDM_JOB_KV_ETCD)
        return "on several hosts, replacing dead workers requires 'store: etcd' (or --store)";
    return NULL;
}

/* The name of this host in the session. */
static void name_host(const tdm_comm_place *place, char out[TDM_HOST_BYTES])
{
    const char *set = strcmp(place->launcher, "slurm") == 0 ? getenv("SLURMD_NODENAME") : NULL;
    char own[256] = "";
    if (!set || !*set) {
        if (gethostname(own, sizeof(own) - 1) != 0) own[0] = '\0';
        set = own;
    }
    /* The rank of the first task of a host is unique. */
    if (session_name_is_valid(set, TDM_HOST_BYTES))
        snprintf(out, TDM_HOST_BYTES, "%s", set);
    else
        snprintf(out, TDM_HOST_BYTES, "host-%d", place->rank - place->local_rank);
}

bool tasks_are_session(const cli_args *args, const tdm_job *job, const tdm_comm_place *place,
                       tasks_plan *out)
{
    char name[TDM_LAUNCH_NAME_BYTES];
    const char *why = why_fixed(args, job, place, name);
    if (why && *why && place->rank == 0 && !cli_json(args) && !cli_has(args, "quiet"))
        fprintf(stderr, "tandem: when one of these %d ranks dies, the run ends: %s\n", place->size,
                why);
    if (why) return false;
    name_host(place, out->host);
    snprintf(out->meeting, sizeof(out->meeting), "%s-%s", name, out->host);
    snprintf(out->session, sizeof(out->session), "%.24s-%s", job->name, name);
    if (!session_name_is_valid(out->session, sizeof(out->session)))
        snprintf(out->session, sizeof(out->session), "s-%s", name);
    return true;
}

/* ---- the first task of a host ---------------------------------------------------------------- */

static bool is_stop_requested(const tdm_tasks_options *o)
{
    return o->should_stop(o->user);
}

/* The very first task: launches the session. */
static int task_launch(const cli_args *args, const tdm_job *job, const tdm_comm_place *place,
                       const tasks_plan *plan, const tdm_tasks_options *o)
{
    const elastic_plan wanted = {.count = place->local_size,
                                 .coming = place->size - place->local_size,
                                 .session = plan->session,
                                 .host = plan->host};
    elastic_hold_signals();
    return is_stop_requested(o) ? CLI_INTERRUPTED : elastic_launch(args, job, &wanted);
}

/* Waits until the launcher's task has started the session; the view is allocated in the arena. */
static tdm_status await_session(const tdm_kv_options *kv_options, const tasks_plan *plan,
                                const tdm_tasks_options *o, tdm_arena *arena, tdm_session_view *out,
                                tdm_error *err)
{
    tdm_kv *kv = NULL;
    double until_s = tdm_clock_s() + begin_s;
    tdm_status status;
    for (;;) {
        status = kv ? TDM_OK : tdm_kv_open(kv_options, &kv, err);
        if (status == TDM_OK) status = tdm_session_look(kv, plan->session, arena, out, err);
        if (status == TDM_OK && out->ended) /* a script may train twice with the same job numbers */
            status = tdm_fail(err, TDM_ERR_NOT_FOUND, "session %s has ended", plan->session);
        if (status == TDM_OK || is_stop_requested(o) || tdm_clock_s() >= until_s) break;
        (void)poll(NULL, 0, LOOK_MS);
    }
    tdm_kv_close(kv);
    if (status == TDM_OK || !is_stop_requested(o)) return status;
    return tdm_fail(err, TDM_ERR_INTERRUPTED, "stopped before the session started");
}

/* The launcher's job from the store. A job that is too long for the store is taken from this
 * process. */
static const char *job_text(const tdm_kv_options *kv_options, const tasks_plan *plan,
                            const tdm_job *job, tdm_arena *arena)
{
    char key[TDM_KV_KEY_BYTES];
    tdm_kv *kv = NULL;
    tdm_kv_item item = {.value = NULL};
    snprintf(key, sizeof(key), "tandem/%s/job", plan->session);
    if (tdm_kv_open(kv_options, &kv, NULL) == TDM_OK) (void)tdm_kv_get(kv, key, arena, &item, NULL);
    tdm_kv_close(kv);
    if (item.value) return item.value;
    tdm_str text = TDM_STR_INIT;
    tdm_job_show(job, &text);
    const char *copy = tdm_arena_strdup(arena, tdm_str_text(&text));
    tdm_str_release(&text);
    return copy;
}

/* The first task of another host: runs the agent of that host. */
static int task_run_agent(const tdm_job *job, const tdm_comm_place *place, const tasks_plan *plan,
                          const tdm_tasks_options *o, tdm_arena *arena)
{
    tdm_kv_options kv;
    tdm_session_view view;
    tdm_error err = {0};
    int code = session_store_of(job, arena, &kv);
    if (code != CLI_OK) return code;
    tdm_status status = await_session(&kv, plan, o, arena, &view, &err);
    elastic_hold_signals();
    if (status == TDM_ERR_INTERRUPTED || is_stop_requested(o)) return CLI_INTERRUPTED;
    if (status != TDM_OK) {
        cli_error(
            "train: host %s did not find the session within %g s: %s; the first of the %d "
            "tasks starts it: check whether it failed, and whether all tasks have the same job "
            "and environment",
            plan->host, begin_s, err.message, place->size);
        return CLI_PEER;
    }
    const session_agent agent = {.session = plan->session,
                                 .store = kv.url,
                                 .host = plan->host,
                                 .dir = view.dir,
                                 .job_text = job_text(&kv, plan, job, arena),
                                 .words = view.words,
                                 .workers = place->local_size};
    return agent.job_text ? session_agent_run(&agent) : CLI_FAILED;
}

static int task_lead_host(const cli_args *args, const tdm_job *job, const tdm_comm_place *place,
                          const tasks_plan *plan, const tdm_tasks_options *o)
{
    tdm_tasks *others = NULL;
    tdm_error err = {0};
    tdm_status status = tdm_tasks_lead(o, &others, &err);
    if (status == TDM_ERR_INTERRUPTED) return CLI_INTERRUPTED;
    if (status != TDM_OK) return cli_fail(&err);
    if (tdm_tasks_missing(others) > 0)
        cli_warn(
            "%d of the %d tasks of host %s did not start in time: the workers cannot use their "
            "CPUs",
            tdm_tasks_missing(others), place->local_size, plan->host);
    int code = CLI_FAILED;
    if (place->rank == 0) {
        code = task_launch(args, job, place, plan, o);
    } else {
        tdm_arena *arena = tdm_arena_create("agent");
        if (arena) code = task_run_agent(job, place, plan, o, arena);
        tdm_arena_destroy(arena);
    }
    tdm_tasks_end(others, code);
    return code;
}

/* ---- the other tasks ------------------------------------------------------------------------- */

/* Finds the session on this host. */
static bool session_find_here(const char *session, tdm_arena *arena, tdm_session_place *out)
{
    tdm_session_place *places;
    size_t count = 0;
    if (tdm_session_list(arena, &places, &count, NULL) != TDM_OK) return false;
    for (size_t i = 0; i < count; i++)
        if (strcmp(places[i].session, session) == 0) {
            *out = places[i];
            return true;
        }
    return false;
}

static int end_code(const tdm_session_view *view)
{
    bool is_good = view->status == TDM_OK;
    if ((is_good && view->stopping) || view->status == TDM_ERR_INTERRUPTED) return CLI_INTERRUPTED;
    return is_good ? CLI_OK : CLI_PEER;
}

/* Waits until the session has ended and has no members; returns its exit code. */
static int session_await_end(tdm_kv *kv, const char *session, const tdm_tasks_options *o)
{
    int code = CLI_PEER;
    bool has_asked = false;
    for (double seen_s = tdm_clock_s(); tdm_clock_s() - seen_s < nobody_s;) {
        tdm_session_view view = {.session = NULL};
        tdm_arena *arena = tdm_arena_create("watch");
        tdm_status status = arena ? tdm_session_look(kv, session, arena, &view, NULL)
                                  : TDM_ERR_NO_MEMORY;
        bool is_alive = status == TDM_OK && (view.member_count > 0 || view.host_count > 0);
        if (status == TDM_OK && view.ended) code = end_code(&view);
        bool is_over = status == TDM_ERR_NOT_FOUND || (view.ended && view.member_count == 0);
        tdm_arena_destroy(arena);
        if (is_over) break;
        if (is_alive) seen_s = tdm_clock_s();
        if (is_stop_requested(o) && !has_asked)
            has_asked = tdm_session_request(kv, session, "stop", "a signal", NULL) == TDM_OK;
        (void)poll(NULL, 0, WATCH_MS);
    }
    return code;
}

/* The first task of this host was killed, and its workers continue. Waits for the end of the
 * session. The session is held, so that its store exists until its result has been read. */
static int task_watch_session(const tasks_plan *plan, const tdm_tasks_options *o)
{
    int code = CLI_PEER;
    tdm_session_place here;
    tdm_session_hold hold = {.fd = -1};
    tdm_kv_options kv_options;
    tdm_kv *kv = NULL;
    tdm_arena *arena = tdm_arena_create("watch");
    if (arena && session_find_here(plan->session, arena, &here) &&
        tdm_session_hold_init(plan->session, here.store, NULL, &hold, NULL) == TDM_OK) {
        if (session_store_at(here.store, here.job, arena, &kv_options) == CLI_OK &&
            tdm_kv_open(&kv_options, &kv, NULL) == TDM_OK)
            code = session_await_end(kv, plan->session, o);
        tdm_kv_close(kv);
        tdm_session_hold_release(&hold);
    }
    tdm_arena_destroy(arena);
    return code;
}

static int task_follow(const tdm_comm_place *place, const tasks_plan *plan,
                       const tdm_tasks_options *o)
{
    int code = CLI_PEER;
    tdm_error err = {0};
    tdm_status status = tdm_tasks_follow(o, &code, &err);
    if (status == TDM_OK) return code;
    if (status == TDM_ERR_INTERRUPTED) return CLI_INTERRUPTED;
    if (place->local_rank == 1) cli_hush(CLI_SAY_ALL);
    if (status != TDM_ERR_PEER_FAILED) {
        cli_error("train: %s", err.message);
        return CLI_PEER;
    }
    /* The launcher's agent is a separate process and survives; but mpirun and srun do not always
     * report which host that is. */
    cli_warn("the first task of host %s was killed: training continues%s", plan->host,
             place->local_size == place->size
                 ? ""
                 : ", but workers that die on that host are not restarted unless it is the host of "
                   "the very first task");
    return task_watch_session(plan, o);
}

int tasks_train(const cli_args *args, const tdm_job *job, const tdm_comm_place *place,
                const tasks_plan *plan, bool (*should_stop)(void *user))
{
    const tdm_tasks_options options = {
        .name = plan->meeting, .count = place->local_size, .should_stop = should_stop};
    return place->local_rank > 0 ? task_follow(place, plan, &options)
                                 : task_lead_host(args, job, place, plan, &options);
}
