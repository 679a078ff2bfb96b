/*
 * comm.c: creates a comm from its parts, and destroys it.
 *
 * The parts are the control connection (membership and its changes), a transport, and possibly the
 * shared memory of a host. open.c creates the real ones, the simulator its own. The comm owns them.
 */
#include "comm/comm.h"
#include "base/base.h"
#include "comm/assemble.h"
#include "comm/choices.h"
#include "comm/engine.h"
#include "comm/fail.h"
#include "comm/group.h"
#include "comm/match.h"
#include "comm/request.h"
#include "comm/scratch.h"
#include "comm/transfer.h"
#include "comm/window.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- creation --------------------------------------------------------------------------------- */

static bool comm_init_lock(tdm_comm *comm)
{
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes) != 0) return false;
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    bool made = pthread_cond_init(&comm->changed, &attributes) == 0;
    pthread_condattr_destroy(&attributes);
    if (made && pthread_mutex_init(&comm->lock, NULL) != 0) {
        pthread_cond_destroy(&comm->changed);
        made = false;
    }
    return made;
}

static bool comm_allocate(tdm_comm *comm)
{
    size_t size = (size_t)comm->size;
    comm->peer_states = calloc(size, sizeof(*comm->peer_states));
    comm->losses = calloc(size, sizeof(*comm->losses));
    comm->flight_bytes = calloc(size, sizeof(*comm->flight_bytes));
    comm->queued_counts = calloc(size, sizeof(*comm->queued_counts));
    comm->matches = tdm__matches_create();
    return comm->peer_states && comm->losses && comm->flight_bytes && comm->queued_counts &&
           comm->matches;
}

static uint64_t comm_trace_clock(void *user)
{
    return (uint64_t)(tdm__comm_now(user) * 1e9);
}

static void comm_set_info(tdm_comm *comm)
{
    tdm_comm_info *info = &comm->info;
    info->transport = comm->transport->ops->name;
    info->host_index = comm->host_of[comm->rank];
    for (int i = 0; i < comm->size; i++) {
        if (comm->host_of[i] >= info->host_count) info->host_count = comm->host_of[i] + 1;
        if (comm->host_of[i] != info->host_index) continue;
        if (i < comm->rank) info->local_rank++;
        info->local_size++;
    }
}

static tdm_status comm_make_recorder(tdm_comm *comm, tdm_error *err)
{
    tdm__recorder_options options = {.dir = comm->options.trace,
                                     .rank = comm->rank,
                                     .size = comm->size,
                                     .epoch = comm->epoch,
                                     .transport = comm->transport->ops->name};
    if (comm->transport->ops->now_s) {
        options.now_ns = comm_trace_clock;
        options.user = comm;
    }
    TDM_TRY(tdm__recorder_create(&options, &comm->recorder, err));
    tdm__record(comm->recorder, (tdm_trace_event){.kind = TDM_TRACE_OPEN, .peer = -1});
    if (!comm->options.dump_signal || comm->no_threads) return TDM_OK;
    return tdm__dumper_create(comm->recorder, comm->options.dump_signal, comm->options.trace,
                              &comm->dumper, err);
}

static tdm_status comm_make_world(tdm_comm *comm, tdm_error *err)
{
    int *ranks = malloc((size_t)comm->size * sizeof(*ranks));
    if (!ranks) return tdm_fail_oom(err, "for the world");
    for (int i = 0; i < comm->size; i++) ranks[i] = i;
    tdm_status status = tdm__group_make(comm, ranks, comm->size, 0, &comm->groups, err);
    free(ranks);
    comm->world = comm->groups;
    return status;
}

/* Allocates the comm's internal structures; control and transport exist. */
static tdm_status comm_init_fields(tdm_comm *comm, const tdm__comm_parts *parts, tdm_error *err)
{
    if (!comm_allocate(comm)) return tdm_fail_oom(err, "for the world");
    if (!comm->choices.rows) TDM_TRY(tdm__choices_load(NULL, &comm->choices, err));
    tdm__transport_events events = tdm__transfer_events(comm);
    TDM_TRY(parts->make(parts->context, &events, &comm->transport, err));
    comm->round_trip_s = comm->transport->round_trip_s;
    comm_set_info(comm);
    TDM_TRY(comm_make_recorder(comm, err));
    return comm_make_world(comm, err);
}

tdm_status tdm__comm_assemble(const tdm_comm_options *options, const tdm__comm_parts *parts,
                              tdm_comm **out, tdm_error *err)
{
    tdm_comm *comm = calloc(1, sizeof(*comm));
    if (!comm || !comm_init_lock(comm)) {
        free(comm);
        if (parts->host) tdm__host_destroy(parts->host);
        parts->control->ops->close(parts->control);
        free(parts->host_of);
        tdm__choices choices = parts->choices;
        tdm__choices_release(&choices);
        return tdm_fail_oom(err, "for the world");
    }

    comm->options = *options;
    comm->pid = getpid();
    comm->control = parts->control;
    comm->host = parts->host;
    comm->host_of = parts->host_of;
    comm->no_threads = parts->no_threads;
    comm->shares_memory = parts->shares_memory;
    comm->rank = parts->control->rank;
    comm->size = parts->control->size;
    comm->epoch = options->epoch;
    comm->choices = parts->choices;
    comm->joining = parts->cancellation;

    tdm_error error = {0};
    tdm_status status = comm_init_fields(comm, parts, &error);
    if (status == TDM_OK) {
        tdm__control_events events = {
            .user = comm, .news = tdm__engine_news, .describe = tdm__engine_describe};
        tdm__control_listen(comm->control, &events);
        status = tdm__group_window(comm->groups, &error);
    }
    comm->joining = (tdm__cancellation){0};

    if (status != TDM_OK) {
        tdm__control_explain(comm->control, &error);
        status = error.status;
        /* The other ranks need not wait for this one. */
        comm->control->ops->broken(comm->control, TDM__ALL_GROUPS, TDM_ERR_PEER_FAILED,
                                   error.message);
        if (err) *err = error;
        tdm_comm_close(comm);
        return status;
    }

    *out = comm;
    return TDM_OK;
}

/* ---- destruction ------------------------------------------------------------------------------ */

static void comm_free_requests(tdm_comm *comm)
{
    /* Requests that were never waited for: an error of the program, or its exit after an error. */
    while (comm->pending) {
        tdm_request *request = comm->pending;
        comm->pending = request->next;
        tdm__request_release(request);
    }
    while (comm->free_requests) {
        tdm_request *request = comm->free_requests;
        comm->free_requests = request->next;
        for (int i = 0; i < TDM__MAX_FLIGHT; i++) tdm_arena_destroy(request->programs[i].arena);
        free(request);
    }
}

/* Ends calls that were started and never waited for, so that their buffers are no longer
 * accessed. */
static void comm_end_calls(tdm_comm *comm)
{
    if (!comm->transport || !comm->recorder) return;
    tdm_error error;
    tdm_fail(&error, TDM_ERR_PEER_LEFT, "rank %d is closing its comm", comm->rank);
    tdm__comm_lock(comm);
    for (tdm_request *r = comm->pending; r; r = r->next) tdm__request_end(r, &error);
    while (comm->pending) {
        tdm_request *first = comm->pending;
        tdm__engine_wait(comm, first);
        tdm__request_release(first);
    }
    while (comm->ended) tdm__request_release(comm->ended); /* requests that were never waited for */
    tdm__transfers_drop(comm, NULL);
    tdm__comm_unlock(comm);
}

void tdm_comm_close(tdm_comm *comm)
{
    if (!comm || comm->pid != getpid()) return; /* a child of fork() is not a rank */
    bool is_broken = comm->world && comm->world->broken.status != TDM_OK;

    if (comm->transport) tdm__engine_stop(comm);
    comm_end_calls(comm);
    if (comm->recorder)
        tdm__record(comm->recorder, (tdm_trace_event){.kind = TDM_TRACE_CLOSE, .peer = -1});
    comm->control->ops->close(comm->control); /* no notifications after this */

    while (comm->groups) {
        tdm_group *group = comm->groups;
        comm->groups = group->next;
        if (group->window) tdm__window_leave(group);
        tdm__group_free(group);
    }
    tdm__shared_free_all(comm);
    tdm_shm_close(comm->own_shm);

    if (comm->transport) {
        if (is_broken && comm->transport->ops->mark_broken)
            comm->transport->ops->mark_broken(comm->transport);
        comm->transport->ops->destroy(comm->transport);
    }
    if (comm->host) tdm__host_destroy(comm->host);
    tdm__dumper_destroy(comm->dumper);
    tdm__recorder_destroy(comm->recorder);

    comm_free_requests(comm);
    tdm__scratch_free(comm);
    tdm__transfers_free(comm);
    tdm__matches_destroy(comm->matches);
    tdm__list_counts_free(comm);
    tdm__early_free(comm);
    tdm__choices_release(&comm->choices);
    free(comm->peer_states);
    free(comm->losses);
    free(comm->flight_bytes);
    free(comm->queued_counts);
    free(comm->host_of);
    pthread_cond_destroy(&comm->changed);
    pthread_mutex_destroy(&comm->lock);
    tdm_arena_destroy(comm->texts);
    free(comm);
}

/* ---- queries ---------------------------------------------------------------------------------- */

int tdm_comm_rank(const tdm_comm *comm)
{
    return comm->rank;
}

int tdm_comm_size(const tdm_comm *comm)
{
    return comm->size;
}

uint32_t tdm_comm_epoch(const tdm_comm *comm)
{
    return comm->epoch;
}

tdm_group *tdm_comm_world(tdm_comm *comm)
{
    return comm->world;
}

void tdm_comm_info_get(const tdm_comm *comm, tdm_comm_info *out)
{
    *out = comm->info;
}

int tdm_comm_host_of(const tdm_comm *comm, int rank)
{
    return rank >= 0 && rank < comm->size ? comm->host_of[rank] : -1;
}

int tdm_comm_node_of(const tdm_comm *comm, int rank)
{
    if (rank < 0 || rank >= comm->size) return -1;
    return comm->shares_memory ? comm->host_of[rank] : rank;
}

double tdm_comm_deadline_s(const tdm_comm *comm)
{
    return comm->options.deadline_s;
}

tdm_peer_state tdm_comm_peer_state(tdm_comm *comm, int rank)
{
    if (rank < 0 || rank >= comm->size) return TDM_PEER_LOST;
    tdm__comm_lock(comm);
    int state = comm->peer_states[rank];
    tdm__comm_unlock(comm);
    return state == TDM__PEER_SUSPECTED ? TDM_PEER_LOST : (tdm_peer_state)state;
}

bool tdm_comm_peer_loss(tdm_comm *comm, int rank, tdm_peer_loss *out)
{
    if (rank < 0 || rank >= comm->size) return false;
    tdm__comm_lock(comm);
    /* A closed connection is noticed when the transport is called, and no call may be left. */
    tdm__engine_drain(comm);
    bool lost = comm->peer_states[rank] == TDM_PEER_LOST ||
                comm->peer_states[rank] == TDM__PEER_SUSPECTED;
    if (lost) *out = comm->losses[rank];
    tdm__comm_unlock(comm);
    return lost;
}

void tdm_comm_revoke(tdm_comm *comm, const char *why)
{
    tdm__comm_lock(comm);
    if (comm->revoked.status == TDM_OK)
        tdm_fail(&comm->revoked, TDM_ERR_PEER_FAILED, "rank %d revoked the world: %s", comm->rank,
                 why);
    tdm_error error = comm->revoked;
    for (tdm_group *g = comm->groups; g; g = g->next)
        tdm__group_break(g, false, error.status, "%s", error.message);
    tdm__comm_unlock(comm);
    comm->control->ops->broken(comm->control, TDM__ALL_GROUPS, error.status, error.message);
}
