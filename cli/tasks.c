/*
 * tasks.c: sessions under mpirun and srun.
 *
 * These start a task for each worker that a host shall have, and know nothing of workers that come and go:
 * a task that dies ends the job. So tasks are not the workers. The first task of a host becomes its agent,
 * which starts as many workers as the host has tasks, and starts them again; the first of all is the
 * session's launcher, whose agent is a process of its own. The other tasks sleep until the end, and end with
 * the same code. The session's name comes from the launcher's numbers for this start, so all know it at once;
 * hosts find each other in the store.
 *
 * When the first task of a host is killed, its workers go on. The others of that host look after the session
 * then: they wait for its end, and a signal to them (mpirun ends all tasks when one has died) becomes the
 * wish to stop.
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
static const double begin_s = 60;  /* for the launcher's task to begin the session */
static const double nobody_s = 15; /* without agents and workers: longer than their leases last */

/* ---- which it is ----------------------------------------------------------------------------------- */

/* NULL: a session. Otherwise the reason, which is empty when the user has chosen it. */
static const char *why_fixed(const cli_args *args, const tdm_job *job, const tdm_comm_place *place,
                             char name[TDM_LAUNCH_NAME_BYTES])
{
    if (strcmp(place->launcher, "tandem") == 0 || cli_has(args, "hosts") ||
        !elastic_is_wanted(args, place->size) || strstr(elastic_transport(job), "mpi"))
        return "";
    if (place->size > TDM_MAX_EPOCH_RANKS) return "they are more than a session can have";
    if (place->local_rank < 0 || place->local_size < 1 || !tdm_comm_launch_name(place, name))
        return "their launcher does not tell which of them share a host";
    if (place->local_size < place->size && job->store != TDM_JOB_KV_ETCD)
        return "on several hosts, replacing workers that die needs 'store: etcd' (or --store)";
    return NULL;
}

/* Whether it can stand in keys of the store and in file names. */
static bool is_name(const char *text, size_t bytes)
{
    static const char good[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    return *text && *text != '.' && strlen(text) < bytes && strspn(text, good) == strlen(text);
}

/* By which this host's workers know each other. */
static void name_host(const tdm_comm_place *place, char out[TDM_HOST_BYTES])
{
    const char *set = strcmp(place->launcher, "slurm") == 0 ? getenv("SLURMD_NODENAME") : NULL;
    char own[256] = "";
    if (!set || !*set) {
        if (gethostname(own, sizeof own - 1) != 0) own[0] = '\0';
        set = own;
    }
    /* The first task of a host has a number that no other host's has. */
    if (is_name(set, TDM_HOST_BYTES))
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
        fprintf(stderr, "tandem: when one of these %d ranks dies, the others end: %s\n",
                place->size, why);
    if (why) return false;
    name_host(place, out->host);
    snprintf(out->meeting, sizeof out->meeting, "%s-%s", name, out->host);
    snprintf(out->session, sizeof out->session, "%.24s-%s", job->name, name);
    if (!is_name(out->session, sizeof out->session))
        snprintf(out->session, sizeof out->session, "s-%s", name);
    return true;
}

/* ---- the first task of a host ---------------------------------------------------------------------- */

static bool wants_stop(const tdm_tasks_options *o)
{
    return o->should_stop(o->user);
}

/* The first of all. */
static int launch(const cli_args *args, const tdm_job *job, const tdm_comm_place *place,
                  const tasks_plan *plan, const tdm_tasks_options *o)
{
    const elastic_plan wanted = {.count = place->local_size,
                                 .coming = place->size - place->local_size,
                                 .session = plan->session,
                                 .host = plan->host};
    elastic_hold_signals();
    return wants_stop(o) ? CLI_INTERRUPTED : elastic_launch(args, job, &wanted);
}

/* Waits until the launcher's task has begun the session; texts of the view come from the arena. */
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
        if (status == TDM_OK && out->ended) /* a script may train twice, under the same numbers */
            status = tdm_fail(err, TDM_ERR_NOT_FOUND, "session %s has ended", plan->session);
        if (status == TDM_OK || wants_stop(o) || tdm_clock_s() >= until_s) break;
        (void)poll(NULL, 0, LOOK_MS);
    }
    tdm_kv_close(kv);
    if (status == TDM_OK || !wants_stop(o)) return status;
    return tdm_fail(err, TDM_ERR_INTERRUPTED, "stopped before there was a session");
}

/* The launcher's job, out of the store; one that was too long for it is the same here. */
static const char *job_text(const tdm_kv_options *kv_options, const tasks_plan *plan,
                            const tdm_job *job, tdm_arena *arena)
{
    char key[TDM_KV_KEY_BYTES];
    tdm_kv *kv = NULL;
    tdm_kv_item item = {.value = NULL};
    snprintf(key, sizeof key, "tandem/%s/job", plan->session);
    if (tdm_kv_open(kv_options, &kv, NULL) == TDM_OK) (void)tdm_kv_get(kv, key, arena, &item, NULL);
    tdm_kv_close(kv);
    if (item.value) return item.value;
    tdm_str text = TDM_STR_INIT;
    tdm_job_show(job, &text);
    const char *copy = tdm_arena_strdup(arena, tdm_str_text(&text));
    tdm_str_release(&text);
    return copy;
}

/* The first of another host: the agent there. */
static int serve(const tdm_job *job, const tdm_comm_place *place, const tasks_plan *plan,
                 const tdm_tasks_options *o, tdm_arena *arena)
{
    tdm_kv_options kv;
    tdm_session_view view;
    tdm_error err = {0};
    int code = session_store_of(job, arena, &kv);
    if (code != CLI_OK) return code;
    tdm_status status = await_session(&kv, plan, o, arena, &view, &err);
    elastic_hold_signals();
    if (status == TDM_ERR_INTERRUPTED || wants_stop(o)) return CLI_INTERRUPTED;
    if (status != TDM_OK) {
        cli_error("train: host %s has not found the session within %g s: %s; the first of these %d "
                  "tasks begins it (has it failed? do all have the same job and environment?)",
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

static int lead(const cli_args *args, const tdm_job *job, const tdm_comm_place *place,
                const tasks_plan *plan, const tdm_tasks_options *o)
{
    tdm_tasks *others = NULL;
    tdm_error err = {0};
    tdm_status status = tdm_tasks_lead(o, &others, &err);
    if (status == TDM_ERR_INTERRUPTED) return CLI_INTERRUPTED;
    if (status != TDM_OK) return cli_fail(&err);
    if (tdm_tasks_missing(others) > 0)
        cli_warn("%d of the %d tasks of host %s have not come in time: workers do without their "
                 "processors",
                 tdm_tasks_missing(others), place->local_size, plan->host);
    int code = CLI_FAILED;
    if (place->rank == 0) {
        code = launch(args, job, place, plan, o);
    } else {
        tdm_arena *arena = tdm_arena_create("serve");
        if (arena) code = serve(job, place, plan, o, arena);
        tdm_arena_destroy(arena);
    }
    tdm_tasks_end(others, code);
    return code;
}

/* ---- the others ------------------------------------------------------------------------------------ */

/* One that has processes on this host. */
static bool find_here(const char *session, tdm_arena *arena, tdm_session_place *out)
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

/* Until the session has ended, and nobody is left; its exit code. */
static int watch(tdm_kv *kv, const char *session, const tdm_tasks_options *o)
{
    int code = CLI_PEER;
    bool has_asked = false;
    for (double seen_s = tdm_clock_s(); tdm_clock_s() - seen_s < nobody_s;) {
        tdm_session_view view = {.session = NULL};
        tdm_arena *arena = tdm_arena_create("watch");
        tdm_status status = arena ? tdm_session_look(kv, session, arena, &view, NULL)
                                  : TDM_ERR_NO_MEMORY;
        bool is_there = status == TDM_OK && (view.member_count > 0 || view.host_count > 0);
        if (status == TDM_OK && view.ended) code = end_code(&view);
        bool is_over = status == TDM_ERR_NOT_FOUND || (view.ended && view.member_count == 0);
        tdm_arena_destroy(arena);
        if (is_over) break;
        if (is_there) seen_s = tdm_clock_s();
        if (wants_stop(o) && !has_asked)
            has_asked = tdm_session_request(kv, session, "stop", "a signal", NULL) == TDM_OK;
        (void)poll(NULL, 0, WATCH_MS);
    }
    return code;
}

/* The first task of this host was killed: what it started goes on. The session is held, so that its store
 * stays as long as somebody may want to know how it ended. */
static int outlive(const tasks_plan *plan, const tdm_tasks_options *o)
{
    int code = CLI_PEER;
    tdm_session_place here;
    tdm_session_hold hold = {.fd = -1};
    tdm_kv_options kv_options;
    tdm_kv *kv = NULL;
    tdm_arena *arena = tdm_arena_create("outlive");
    if (arena && find_here(plan->session, arena, &here) &&
        tdm_session_hold_init(plan->session, here.store, NULL, &hold, NULL) == TDM_OK) {
        if (session_store_at(here.store, here.job, arena, &kv_options) == CLI_OK &&
            tdm_kv_open(&kv_options, &kv, NULL) == TDM_OK)
            code = watch(kv, plan->session, o);
        tdm_kv_close(kv);
        tdm_session_hold_release(&hold);
    }
    tdm_arena_destroy(arena);
    return code;
}

static int follow(const tdm_comm_place *place, const tasks_plan *plan, const tdm_tasks_options *o)
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
    /* The launcher's agent is a process of its own, and lives on; which host that is, its launcher does
     * not always tell. */
    cli_warn("the first task of host %s was killed: training goes on%s", plan->host,
             place->local_size == place->size
                 ? ""
                 : ", but workers that die there are not started again, unless it was the first "
                   "task of all");
    return outlive(plan, o);
}

int tasks_train(const cli_args *args, const tdm_job *job, const tdm_comm_place *place,
                const tasks_plan *plan, bool (*should_stop)(void *user))
{
    const tdm_tasks_options options = {
        .name = plan->meeting, .count = place->local_size, .should_stop = should_stop};
    return place->local_rank > 0 ? follow(place, plan, &options)
                                 : lead(args, job, place, plan, &options);
}
