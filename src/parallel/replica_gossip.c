/*
 * replica_gossip.c: sync.kind gossip: replicas that send shares of their models to neighbours (push-sum).
 *
 * Array 0 of a replica is its model after the steps of the last round, multiplied by its push-sum weight w, which is
 * the number behind the model. A round begins with the exchange: a replica adds the shares of its array and of
 * those that have it as a target (gossip_graph.c), number by number, the weight included. The model that it trains is
 * that sum divided by its weight. After its steps it adds the change of the model to the sum (stochastic gradient
 * push, Assran et al. 2019). The exchange reads current versions and writes the other ones, so it needs no barrier:
 * that at the end of the round before is sufficient.
 *
 * Between nodes only the models of neighbours are sent, from the home of the one to the home of the other, in windows,
 * once for each rank that needs them.
 *
 * Invariants: the shares of a replica are added in the order of the replicas, so the sum does not depend on which rank
 * or node has them. The sum of all models, and that of the weights, do not change in an exchange, but for rounding.
 */
#include "parallel/replica_gossip.h"
#include "base/base.h"
#include "job/job.h"
#include "tensor/kernel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WINDOW = 1 << 16, MIN_WINDOW = TDM__CELL, REMOTE_ELEMENTS = 1 << 24, CHUNK = 1024 };

/* ---- creation -------------------------------------------------------------------------------- */

/* The number of elements of a message; the windows of all other replicas fit into REMOTE_ELEMENTS, if possible. */
static size_t gossip_window(int64_t replica_count, size_t elements)
{
    size_t window = REMOTE_ELEMENTS / (size_t)replica_count;
    if (window > MAX_WINDOW) window = MAX_WINDOW;
    if (window < MIN_WINDOW) window = MIN_WINDOW;
    return window < elements ? window : elements;
}

size_t tdm__gossip_remote_bytes(int64_t replica_count, size_t elements)
{
    return (size_t)replica_count * gossip_window(replica_count, elements) * sizeof(float);
}

tdm_status tdm__gossip_create(tdm_team *team, tdm_error *err)
{
    tdm__replica_run *run = team->replicas;
    const tdm__layout *layout = team->layout;
    size_t count = (size_t)run->replicas->count;
    tdm__gossip *gossip = calloc(1, sizeof(*gossip));
    if (!gossip) return tdm_fail_oom(err, "for the replicas");
    run->gossip = gossip;
    TDM_TRY(tdm_gossip_graph_init(team->job, &gossip->graph, err));
    size_t targets = (size_t)gossip->graph.target_count, edges = count * (targets + 1);
    gossip->targets = calloc(count * targets, sizeof(*gossip->targets));
    gossip->first = calloc(count + 2, sizeof(*gossip->first));
    gossip->sources = calloc(edges, sizeof(*gossip->sources));
    gossip->places = calloc(count, sizeof(*gossip->places));
    gossip->stamps = calloc(count, sizeof(*gossip->stamps));
    gossip->remote = calloc(count, sizeof(*gossip->remote));
    gossip->sends = calloc(edges, sizeof(*gossip->sends));
    gossip->requests = calloc(edges + count, sizeof(*gossip->requests));
    if (!gossip->targets || !gossip->first || !gossip->sources || !gossip->places ||
        !gossip->stamps || !gossip->remote || !gossip->sends || !gossip->requests)
        return tdm_fail_oom(err, "for the replicas");
    gossip->window = gossip_window((int64_t)count, run->replicas->elements);
    if (layout->node_count == 1) return tdm__gossip_mean_create(team, err);
    TDM_TRY(tdm_pages_map(count * gossip->window * sizeof(float), false, &gossip->pages, err));
    TDM_TRY(
        tdm_group_create(layout->comm, layout->rank_of_place, layout->size, &gossip->group, err));
    return tdm__gossip_mean_create(team, err);
}

void tdm__gossip_destroy(tdm__gossip *gossip)
{
    if (!gossip) return;
    if (gossip->group) tdm_group_destroy(gossip->group);
    tdm__gossip_mean_destroy(gossip);
    tdm_pages_unmap(&gossip->pages);
    free(gossip->targets);
    free(gossip->first);
    free(gossip->sources);
    free(gossip->places);
    free(gossip->stamps);
    free(gossip->remote);
    free(gossip->sends);
    free(gossip->requests);
    free(gossip);
}

void tdm__gossip_forget_mean(tdm__gossip *gossip)
{
    gossip->mean_is_current = false;
}

/* ---- the edges of a round -------------------------------------------------------------------- */

/* Lists the sources of each replica, in the order of their numbers, with the replica itself. */
static void gossip_list_sources(tdm__gossip *gossip, uint64_t round)
{
    int64_t count = gossip->graph.replica_count;
    int targets = gossip->graph.target_count;
    size_t *end = gossip->first + 1; /* while they are listed, end[r] is where the next one goes */
    memset(gossip->first, 0, ((size_t)count + 2) * sizeof(*gossip->first));
    for (int64_t r = 0; r < count; r++) {
        tdm_gossip_targets(&gossip->graph, round, r, gossip->targets + r * targets);
        end[r + 1]++;
        for (int k = 0; k < targets; k++) end[gossip->targets[r * targets + k] + 1]++;
    }
    for (int64_t r = 1; r <= count; r++) end[r] += end[r - 1];
    for (int64_t r = 0; r < count; r++) {
        gossip->sources[end[r]++] = r;
        for (int k = 0; k < targets; k++)
            gossip->sources[end[gossip->targets[r * targets + k]]++] = r;
    }
}

static void gossip_list_places(const tdm_team *team)
{
    const tdm__replicas *replicas = team->replicas->replicas;
    int place = 0;
    for (int64_t r = 0; r < replicas->count; r++) {
        while (replicas->first[place + 1] <= r) place++;
        team->replicas->gossip->places[r] = place;
    }
}

/* Lists which models this rank sends and receives. A model is sent to a rank once, even if several of its replicas need
 * it. */
static void gossip_list_messages(tdm_team *team)
{
    tdm__gossip *gossip = team->replicas->gossip;
    const tdm__replicas *replicas = team->replicas->replicas;
    const int *nodes = team->layout->node_of_place;
    size_t count = (size_t)replicas->count, used = 0;
    memset(gossip->stamps, 0, count * sizeof(*gossip->stamps));
    memset(gossip->remote, 0, count * sizeof(*gossip->remote));
    gossip->send_count = 0;
    for (int64_t r = 0; r < replicas->count; r++)
        for (size_t i = gossip->first[r]; i < gossip->first[r + 1]; i++) {
            int64_t source = gossip->sources[i];
            int from = gossip->places[source], to = gossip->places[r];
            if (nodes[from] == nodes[to]) continue;
            if (to == team->place && !gossip->remote[source])
                gossip->remote[source] = (float *)gossip->pages.data + used++ * gossip->window;
            if (from != team->place || gossip->stamps[source] == to + 1) continue;
            gossip->stamps[source] = to + 1;
            gossip->sends[gossip->send_count++] = (tdm__gossip_send){source, to};
        }
}

/* ---- the exchange ---------------------------------------------------------------------------- */

static const float *gossip_current(const tdm_team *team, int64_t replica)
{
    const tdm__replicas *replicas = team->replicas->replicas;
    return tdm__replica_array(replicas, replica, replicas->current[replica], 0);
}

static float *gossip_next(const tdm_team *team, int64_t replica)
{
    const tdm__replicas *replicas = team->replicas->replicas;
    return tdm__replica_array(replicas, replica, 1 - replicas->current[replica], 0);
}

static tdm_status gossip_start(tdm__gossip *gossip, bool sends, int64_t replica, int place,
                               float *data, size_t count, tdm_error *err)
{
    tdm_call call = {.kind = sends ? TDM_CALL_SEND : TDM_CALL_RECV,
                     .dtype = TDM_DTYPE_U8,
                     .count = count * sizeof(float),
                     .in = sends ? data : NULL,
                     .out = sends ? NULL : data,
                     .root = place,
                     .tag = (uint32_t)replica};
    return tdm_call_start(gossip->group, &call, &gossip->requests[gossip->request_count++], err);
}

/* Exchanges elements [at, at + count) of the models that cross nodes. */
static tdm_status gossip_exchange(tdm_team *team, size_t at, size_t count, tdm_error *err)
{
    tdm__gossip *gossip = team->replicas->gossip;
    tdm_status status = TDM_OK;
    tdm_error why = {0};
    gossip->request_count = 0;
    for (int64_t r = 0; r < gossip->graph.replica_count && status == TDM_OK; r++)
        if (gossip->remote[r])
            status = gossip_start(gossip, false, r, gossip->places[r], gossip->remote[r], count,
                                  err);
    for (size_t i = 0; i < gossip->send_count && status == TDM_OK; i++) {
        const tdm__gossip_send *s = &gossip->sends[i];
        float *from = (float *)(uintptr_t)gossip_current(team, s->replica) + at;
        status = gossip_start(gossip, true, s->replica, s->place, from, count, err);
    }
    if (status != TDM_OK) gossip->request_count--; /* the last one was not started */
    double begin = tdm_clock_s();
    for (size_t i = 0; i < gossip->request_count; i++) { /* all of them: they use this memory */
        tdm_status ended = tdm_request_wait(gossip->requests[i], &why);
        if (status == TDM_OK && ended != TDM_OK) status = tdm_fail(err, ended, "%s", why.message);
    }
    team->wait_seconds += tdm_clock_s() - begin;
    return status;
}

typedef struct gossip_mix {
    const tdm_team *team;
    int64_t replica;
    size_t at; /* of the window */
    float share;
} gossip_mix;

/* Adds the shares of the sources for a range of the window, chunk by chunk, so that sums stay in the cache. */
static void gossip_mix_range(const void *args, int64_t begin, int64_t end)
{
    const gossip_mix *m = args;
    const tdm__gossip *gossip = m->team->replicas->gossip;
    size_t first = gossip->first[m->replica], last = gossip->first[m->replica + 1];
    float *out = gossip_next(m->team, m->replica) + m->at;
    for (int64_t from = begin; from < end; from += CHUNK) {
        int64_t to = end - from < CHUNK ? end : from + CHUNK;
        for (size_t i = first; i < last; i++) {
            int64_t source = gossip->sources[i];
            const float *in = gossip->remote[source] ? gossip->remote[source]
                                                     : gossip_current(m->team, source) + m->at;
            for (int64_t k = from; k < to && i == first; k++) out[k] = m->share * in[k];
            for (int64_t k = from; k < to && i > first; k++) out[k] += m->share * in[k];
        }
    }
}

tdm_status tdm__gossip_mix(tdm_team *team, int64_t first, int64_t end, tdm_error *err)
{
    tdm__gossip *gossip = team->replicas->gossip;
    size_t elements = team->replicas->replicas->elements;
    size_t window = gossip->group ? gossip->window : elements;
    gossip_list_sources(gossip, team->in.step);
    gossip_list_places(team);
    gossip->send_count = 0;
    if (gossip->group) gossip_list_messages(team);
    for (size_t at = 0; at < elements; at += window) {
        size_t count = elements - at < window ? elements - at : window;
        if (gossip->group) TDM_TRY(gossip_exchange(team, at, count, err));
        double begin = tdm_clock_s();
        TDM_TRY(tdm__undo_write_begin(team->undo_log, err));
        for (int64_t r = first; r < end; r++) {
            gossip_mix m = {team, r, at, tdm_gossip_share(&gossip->graph)};
            if (at == 0) tdm__replica_write_begin(team->replicas->replicas, r);
            tdm_kernel_spread((int64_t)count, 1, gossip_mix_range, &m);
        }
        tdm__undo_write_end(team->undo_log);
        team->lane_seconds += tdm_clock_s() - begin;
    }
    return TDM_OK;
}

/* ---- the model of a replica ------------------------------------------------------------------ */

float tdm__gossip_weight(const tdm_team *team, const float *array)
{
    return array[team->layout->elements];
}

typedef struct gossip_model {
    const float *array;
    float *model, *out;
    float weight;
} gossip_model;

static void gossip_load_range(const void *args, int64_t begin, int64_t end)
{
    const gossip_model *m = args;
    for (int64_t i = begin; i < end; i++) m->model[i] = m->array[i] / m->weight;
}

void tdm__gossip_load(tdm_team *team, int64_t replica)
{
    float *mixed = gossip_next(team, replica), *model = team->replicas->model;
    const float *params = tdm_params_block(team->options.store, TDM_BLOCK_PARAMS);
    size_t changing = team->grad_extent;
    gossip_model m = {.array = mixed, .model = model, .weight = tdm__gossip_weight(team, mixed)};
    tdm_kernel_spread((int64_t)changing, 1, gossip_load_range, &m);
    memcpy(model + changing, params + changing,
           (team->layout->elements - changing) * sizeof(float)); /* buffers never change */
}

/* With a weight of 1, the new model itself: the difference would add a rounding. */
static void gossip_save_range(const void *args, int64_t begin, int64_t end)
{
    const gossip_model *m = args;
    if (m->weight == 1.0f) {
        memcpy(m->out + begin, m->model + begin, (size_t)(end - begin) * sizeof(float));
        return;
    }
    for (int64_t i = begin; i < end; i++) m->out[i] += m->model[i] - m->out[i] / m->weight;
}

void tdm__gossip_save(tdm_team *team, int64_t replica, bool finite)
{
    float *out = gossip_next(team, replica);
    gossip_model m = {
        .model = team->replicas->model, .out = out, .weight = tdm__gossip_weight(team, out)};
    tdm_kernel_spread((int64_t)team->grad_extent, 1, gossip_save_range, &m);
    if (!finite || !tdm__replica_is_finite(team, out)) atomic_store(&team->overflow_risk, true);
}
