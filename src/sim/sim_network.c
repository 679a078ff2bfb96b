/*
 * sim_network.c: delays between simulated ranks, and the effect of faults on them.
 *
 * A rank's outgoing link is serial: messages leave one after the other, each in bytes / bandwidth.
 * Then each travels independently: latency, jitter, and resend_s for each loss of one of its
 * packets; so messages overtake each other. A partition or a cut delays messages until it ends, as
 * a reliable connection would. Faults are functions of time, evaluated on demand; only a crash is
 * an event.
 */
#include "base/base.h"
#include "sim/sim.h"

#include <math.h>

/* Bytes per packet, for the number of packets that can be lost. */
#define PACKET_BYTES 1400.0
/* Maximum number of consecutive losses of a packet. */
enum { MAX_RESENDS = 12 };

static bool fault_is_active(const tdm_sim_fault *fault, double at_s)
{
    return at_s >= fault->at_s && (fault->until_s <= 0.0 || at_s < fault->until_s);
}

/* Whether a fault separates two ranks while it is active. */
static bool fault_separates(const tdm_sim_fault *fault, int a, int b)
{
    if (fault->kind == TDM_SIM_PARTITION) return (a < fault->rank) != (b < fault->rank);
    if (fault->kind != TDM_SIM_CUT) return false;
    return (a == fault->rank && b == fault->other) || (b == fault->rank && a == fault->other);
}

/* When the last of all active faults that `hold` selects is over; one may start before another
 * ends. */
static double faults_end_s(const tdm__sim *sim, bool (*hold)(const tdm_sim_fault *, int, int),
                           int a, int b, double at_s)
{
    for (int i = 0; i < sim->options.fault_count; i++) {
        const tdm_sim_fault *fault = &sim->options.faults[i];
        if (!hold(fault, a, b) || !fault_is_active(fault, at_s)) continue;
        if (fault->until_s <= 0.0) return INFINITY;
        at_s = fault->until_s;
        i = -1; /* restart: this time may be within an earlier fault */
    }
    return at_s;
}

static bool fault_stalls(const tdm_sim_fault *fault, int rank, int unused)
{
    (void)unused;
    return fault->kind == TDM_SIM_STALL && fault->rank == rank;
}

double tdm__sim_open_s(const tdm__sim *sim, int a, int b, double at_s)
{
    return faults_end_s(sim, fault_separates, a, b, at_s);
}

double tdm__sim_awake_s(const tdm__sim *sim, int rank, double at_s)
{
    return faults_end_s(sim, fault_stalls, rank, rank, at_s);
}

double tdm__sim_slowness(const tdm__sim *sim, int rank, double at_s)
{
    double factor = 1.0;
    for (int i = 0; i < sim->options.fault_count; i++) {
        const tdm_sim_fault *fault = &sim->options.faults[i];
        if (fault->kind == TDM_SIM_SLOW && fault->rank == rank && fault_is_active(fault, at_s))
            factor *= fault->factor;
    }
    return factor;
}

static double faults_delay_s(const tdm__sim *sim, int from, int to, double at_s)
{
    double sum = 0.0;
    for (int i = 0; i < sim->options.fault_count; i++) {
        const tdm_sim_fault *fault = &sim->options.faults[i];
        if (fault->kind == TDM_SIM_DELAY && (fault->rank == from || fault->rank == to) &&
            fault_is_active(fault, at_s))
            sum += fault->factor;
    }
    return sum;
}

/* The number of resends until all packets have arrived: packets travel in parallel, so it is the
 * maximum over all packets. One draw from the distribution of that maximum. */
static int message_resends(tdm__sim *sim, uint64_t bytes)
{
    if (sim->options.loss <= 0.0) return 0;
    double packets = 1.0 + floor((double)bytes / PACKET_BYTES);
    double drawn = (double)tdm_rng_uniform(&sim->rng);
    double lost = sim->options.loss;
    int count = 0;
    while (count < MAX_RESENDS && drawn >= pow(1.0 - lost, packets)) {
        lost *= sim->options.loss;
        count++;
    }
    return count;
}

double tdm__sim_flight_s(tdm__sim *sim, int from, int to, uint64_t bytes, double at_s)
{
    const tdm_sim_options *o = &sim->options;
    double way_s = o->latency_s;
    if (o->jitter_s > 0.0) way_s += o->jitter_s * (double)tdm_rng_uniform(&sim->rng);
    double again_s = o->resend_s * message_resends(sim, bytes);
    if (o->fault_count == 0) return way_s + again_s;
    way_s *= fmax(tdm__sim_slowness(sim, from, at_s), tdm__sim_slowness(sim, to, at_s));
    double open_s = tdm__sim_open_s(sim, from, to, at_s);
    return way_s + again_s + faults_delay_s(sim, from, to, at_s) + (open_s - at_s);
}

double tdm__sim_depart_s(tdm__sim *sim, int rank, uint64_t bytes)
{
    tdm__sim_rank *r = &sim->ranks[rank];
    if (r->out_s < sim->now_s) r->out_s = sim->now_s;
    double slowness = tdm__sim_slowness(sim, rank, r->out_s);
    r->out_s += ((double)bytes + (double)sizeof(tdm__head)) / sim->options.bandwidth * slowness;
    return r->out_s;
}

bool tdm__sim_vanishes(tdm__sim *sim, int from, int to)
{
    for (int i = 0; i < sim->options.fault_count; i++) {
        const tdm_sim_fault *fault = &sim->options.faults[i];
        if (fault->kind != TDM_SIM_VANISH || sim->vanished[i] || fault->rank != from ||
            fault->other != to || !fault_is_active(fault, sim->now_s))
            continue;
        sim->vanished[i] = true;
        return true;
    }
    return false;
}
