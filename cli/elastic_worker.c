/*
 * elastic_worker.c: this process as a worker of a session: it reads what its agent put into the
 * environment, joins the session, and reports errors to it.
 *
 * Limits come from the session, not from the job, because --min and --max are options of the
 * launcher. A worker writes an error that concerns all workers to the store before it ends; the
 * first error written is the one that the session reports.
 */
#include "elastic.h"

#include "session.h"
#include "world.h"

#include <tandem/os.h>

#include <stdlib.h>
#include <string.h>

bool elastic_is_worker(void)
{
    const char *member = getenv("TANDEM_MEMBER");
    return member && *member;
}

const char *elastic_transport(const tdm_job *job)
{
    const char *set = getenv("TANDEM_TRANSPORT");
    return job->comm.transport == TDM_JOB_TRANSPORT_AUTO && set && *set
               ? set
               : tdm_job_transport_name(job->comm.transport);
}

static tdm_status read_limits(const elastic_worker *w, tdm_member_options *options, tdm_error *err)
{
    tdm_session_view view;
    tdm_kv *kv = NULL;
    tdm_status status = tdm_kv_open(&w->kv, &kv, err);
    if (status == TDM_OK) status = tdm_session_look(kv, options->session, w->arena, &view, err);
    tdm_kv_close(kv);
    if (status == TDM_ERR_NOT_FOUND) /* it ended and was removed while this host was disconnected */
        return tdm_fail(err, TDM_ERR_PEER_LEFT, "the session '%s' has ended", options->session);
    if (status != TDM_OK) return status;
    options->is_begun = true;
    options->min = view.min;
    options->max = view.max;
    return TDM_OK;
}

/* Selects the shared memory segment for the state. Ranks of one host that do not communicate
 * through shared memory treat each other as separate hosts: each keeps its own state in its own
 * segment. */
static tdm_status worker_open_shm(const tdm_job *job, elastic_worker *w, tdm_error *err)
{
    const char *transport = elastic_transport(job);
    w->shm = tdm_worker_shm(w->worker);
    if (strcmp(transport, "auto") == 0 || strncmp(transport, "shm", 3) == 0) return TDM_OK;
    TDM_TRY(tdm_shm_create(&w->own_shm, err));
    w->shm = w->own_shm;
    return TDM_OK;
}

static tdm_status worker_join(const tdm_job *job, elastic_worker *w, tdm_error *err)
{
    tdm_member_options options = {.session = NULL};
    TDM_TRY(tdm_member_environment(&options, err));
    const char *url = options.kv.url;
    if (session_store_of(job, w->arena, &w->kv) != CLI_OK)
        return tdm_fail(err, TDM_ERR_JOB_INVALID, "the job's store cannot be used on this host");
    w->kv.url = url;
    w->kv.must_exist = true;
    options.kv = w->kv;
    options.wait_s = job->elastic.wait;
    options.lease_s = job->elastic.heartbeat;
    options.needs_all_hosts = job->parallel.zero > 0 && !job->elastic.mirror;
    TDM_TRY(tdm_worker_open(&w->worker, err));
    TDM_TRY(worker_open_shm(job, w, err));
    options.shm_id = tdm_shm_id(w->shm);
    TDM_TRY(read_limits(w, &options, err));
    w->membership = options;
    return tdm_member_create(&options, &w->member, err);
}

int elastic_join(const tdm_job *job, elastic_worker *out)
{
    tdm_error err = {0};
    *out = (elastic_worker){.arena = tdm_arena_create("worker")};
    if (!out->arena) return CLI_FAILED;
    if (worker_join(job, out, &err) == TDM_OK) return CLI_OK;
    int code = cli_fail(&err);
    elastic_leave(out);
    if (err.status == TDM_ERR_PEER_LEFT) return TDM_WORKER_LEFT;
    return world_is_peer(err.status) || err.status == TDM_ERR_TIMEOUT ? CLI_PEER : code;
}

void elastic_leave(elastic_worker *worker)
{
    tdm_member_destroy(worker->member);
    tdm_worker_close(worker->worker);
    tdm_shm_close(worker->own_shm);
    tdm_arena_destroy(worker->arena);
    *worker = (elastic_worker){.arena = NULL};
}

int elastic_fail(elastic_worker *worker, const tdm_error *err)
{
    if (err->status == TDM_ERR_PEER_FENCED) return TDM_WORKER_FENCED;
    if (err->status == TDM_ERR_PEER_LEFT) return TDM_WORKER_LEFT;
    int log = tdm_worker_log_fd(worker->worker);
    if (log >= 0) dprintf(log, "tandem: %s\n", err->message);
    if (err->status == TDM_ERR_PEER_REFUSED) return TDM_WORKER_REFUSED;
    if (world_is_peer(err->status)) return CLI_PEER;
    const char *session = getenv("TANDEM_SESSION");
    tdm_kv *kv = NULL;
    if (session && tdm_kv_open(&worker->kv, &kv, NULL) == TDM_OK)
        (void)tdm_session_end(kv, session, err->status, err->message, tdm_member_id(worker->member),
                              NULL);
    tdm_kv_close(kv);
    cli_hush(CLI_SAY_NOTHING); /* the launcher prints it */
    return cli_fail(err);
}
