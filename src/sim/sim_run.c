/*
 * sim_run.c: tdm_sim_run: creates a comm for each simulated rank and runs the caller's function on
 * it.
 *
 * Each coroutine creates its comm on the simulator's transport and control, runs the function, and
 * closes the comm, as a program would. The comm of a rank that crashed or hangs is closed after the
 * run. tdm_sim_compute represents work during which the progress thread of a real comm advances
 * calls: it does so whenever something arrives.
 */
#include "base/base.h"
#include "comm/assemble.h"
#include "comm/engine.h"
#include "sim/sim.h"

#include <stdlib.h>

static tdm_status rank_open_comm(tdm__sim_rank *rank, tdm_error *err)
{
    const tdm_sim_options *o = &rank->sim->options;
    int *host_of = malloc((size_t)o->size * sizeof(*host_of));
    if (!host_of) return tdm_fail_oom(err, "for rank %d", rank->rank);
    for (int i = 0; i < o->size; i++) host_of[i] = i / o->ranks_per_host;
    tdm__comm_parts parts = {
        .make = tdm__sim_transport_make, .context = rank, .host_of = host_of, .no_threads = true};
    tdm_status status = tdm__sim_control_make(rank, &parts.control, err);
    if (status != TDM_OK) {
        free(host_of);
        return status;
    }
    tdm_comm_options options = {.transport = "sim",
                                .has_place = true,
                                .rank = rank->rank,
                                .size = o->size,
                                .deadline_s = o->deadline_s};
    return tdm__comm_assemble(&options, &parts, &rank->comm, err);
}

static void rank_run(tdm__sim_rank *rank)
{
    if (rank_open_comm(rank, &rank->error) != TDM_OK) return;
    rank->sim->fn(rank->comm, rank->sim->user);
    rank->closing = true;
    tdm_comm_close(rank->comm);
    rank->comm = NULL;
}

static void rank_release_dead(tdm__sim_rank *rank)
{
    if (!rank->comm || rank->closing) return;
    rank->comm->polled = false; /* the coroutine was sleeping in the transport */
    tdm_comm_close(rank->comm);
    rank->comm = NULL;
}

tdm_status tdm_sim_run(const tdm_sim_options *options, tdm_sim_fn fn, void *user,
                       tdm_sim_result *out, tdm_error *err)
{
    tdm__sim sim;
    TDM_TRY(tdm__sim_init(&sim, options, err));
    sim.body = rank_run;
    sim.bury = rank_release_dead;
    sim.fn = fn;
    sim.user = user;
    tdm_status status = tdm__sim_loop(&sim, err);
    for (int i = 0; i < sim.options.size && status == TDM_OK; i++)
        if (sim.ranks[i].error.status != TDM_OK)
            status = tdm_fail(err, sim.ranks[i].error.status, "sim: rank %d could not start: %s", i,
                              sim.ranks[i].error.message);
    tdm_sim_result result = sim.result;
    tdm__sim_release(&sim);
    if (status == TDM_OK) *out = result;
    return status;
}

static tdm__sim_rank *comm_sim_rank(const tdm_comm *comm)
{
    const tdm__transport *transport = comm->transport;
    return transport->ops == &tdm__transport_sim ? ((const tdm__sim_transport *)transport)->rank
                                                 : NULL;
}

double tdm_sim_now_s(const tdm_comm *comm)
{
    const tdm__sim_rank *rank = comm_sim_rank(comm);
    return rank ? rank->sim->now_s : tdm_clock_s();
}

void tdm_sim_compute(tdm_comm *comm, double seconds)
{
    tdm__sim_rank *rank = comm_sim_rank(comm);
    if (!rank || rank->dead || !(seconds > 0.0)) return;
    tdm__sim *sim = rank->sim;
    double end_s = sim->now_s + seconds * tdm__sim_slowness(sim, rank->rank, sim->now_s);
    while (sim->now_s < end_s) {
        tdm__sim_wait(rank, end_s);
        tdm__sim_hear(rank);
        tdm__comm_lock(comm);
        tdm__engine_progress(comm);
        tdm__comm_unlock(comm);
    }
}
