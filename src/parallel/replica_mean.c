/*
 * replica_mean.c: the mean of the replicas of sync.kind gossip, and their distance from it.
 *
 * No step needs a model in common, so steps do not change the parameter block. Before it is evaluated or saved, it
 * gets the mean of the replicas' models (each divided by its push-sum weight). The mean is a function of the replicas
 * alone: how often it is computed, and when, changes no bit. A process that dies meanwhile leaves an incomplete
 * parameter block, which is computed again before it is used.
 *
 * Invariants: models are added by the tree over the replicas, and squared distances in the order of cells, then of
 * replicas, so no bit depends on the number of ranks or threads.
 */
#include "base/base.h"
#include "comm/comm.h"
#include "parallel/replica_gossip.h"
#include "tensor/kernel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW_CELLS = 16, WINDOW = WINDOW_CELLS * TDM__CELL };

tdm_status tdm__gossip_mean_create(tdm_team *team, tdm_error *err)
{
    tdm__gossip *gossip = team->replicas->gossip;
    size_t count = (size_t)team->replicas->replicas->count;
    gossip->partial = calloc(count * WINDOW_CELLS, sizeof(*gossip->partial));
    gossip->gathered = calloc(2 * count, sizeof(*gossip->gathered));
    if (!gossip->partial || !gossip->gathered) return tdm_fail_oom(err, "for the replicas");
    TDM_TRY(tdm_pages_map((size_t)(1 + TDM_MAX_LANE_PARTS) * WINDOW * sizeof(float), false,
                          &gossip->mean_pages, err));
    gossip->mean = gossip->mean_pages.data;
    gossip->parts = gossip->mean + WINDOW;
    return TDM_OK;
}

void tdm__gossip_mean_destroy(tdm__gossip *gossip)
{
    tdm_pages_unmap(&gossip->mean_pages);
    free(gossip->partial);
    free(gossip->gathered);
}

/* ---- a window -------------------------------------------------------------------------------- */

typedef struct mean_pass {
    tdm_team *team;
    size_t at, count; /* of the window */
    int64_t nodes[TDM_MAX_LANE_PARTS];
    int node_count;
    int64_t first, end; /* replicas of this rank */
} mean_pass;

static const float *mean_source(const tdm_team *team, int64_t replica)
{
    const tdm__replicas *replicas = team->replicas->replicas;
    return tdm__replica_array(replicas, replica, replicas->current[replica], 0);
}

/* Elements of the model of a replica. */
static void mean_read(const tdm_team *team, int64_t replica, size_t at, size_t count, float *out)
{
    const float *array = mean_source(team, replica);
    float weight = tdm__gossip_weight(team, array);
    for (size_t i = 0; i < count; i++) out[i] = array[at + i] / weight;
}

/* The sum over the replicas of a node of the tree; `scratch` has a cell for each level below it. */
static void mean_sum(const tdm_team *team, int64_t node, size_t at, size_t count, float *out,
                     float *scratch)
{
    int64_t replicas = team->replicas->replicas->count;
    if (node >= replicas) {
        mean_read(team, node - replicas, at, count, out);
        return;
    }
    mean_sum(team, 2 * node, at, count, out, scratch);
    mean_sum(team, 2 * node + 1, at, count, scratch, scratch + TDM__CELL);
    for (size_t i = 0; i < count; i++) out[i] += scratch[i];
}

static size_t cell_count(const mean_pass *pass, int64_t cell)
{
    size_t begin = (size_t)cell * TDM__CELL;
    return pass->count - begin < TDM__CELL ? pass->count - begin : TDM__CELL;
}

static void mean_sum_cells(const void *args, int64_t begin, int64_t end)
{
    const mean_pass *pass = args;
    const tdm_team *team = pass->team;
    float *scratch = team->scratch + (size_t)tdm_kernel_thread() * team->scratch_elements;
    for (int64_t cell = begin; cell < end; cell++)
        for (int i = 0; i < pass->node_count; i++) {
            size_t offset = (size_t)cell * TDM__CELL;
            float *out = team->replicas->gossip->parts + (size_t)i * WINDOW + offset;
            mean_sum(team, pass->nodes[i], pass->at + offset, cell_count(pass, cell), out, scratch);
        }
}

/* Squared distances of this rank's replicas, of trained elements only. */
static void mean_measure_cells(const void *args, int64_t begin, int64_t end)
{
    const mean_pass *pass = args;
    const tdm_team *team = pass->team;
    const tdm__gossip *gossip = team->replicas->gossip;
    float *model = team->scratch + (size_t)tdm_kernel_thread() * team->scratch_elements;
    for (int64_t cell = begin; cell < end; cell++)
        for (int64_t r = pass->first; r < pass->end; r++) {
            size_t offset = (size_t)cell * TDM__CELL, at = pass->at + offset;
            size_t count = cell_count(pass, cell);
            double sum = 0;
            mean_read(team, r, at, count, model);
            for (size_t i = 0; i < count && at + i < team->trained_extent; i++) {
                double d = (double)model[i] - (double)gossip->mean[offset + i];
                sum += d * d;
            }
            gossip->partial[r * WINDOW_CELLS + cell] = sum;
        }
}

/* Computes a window of the mean on all ranks, and writes it to the parameter block of each node. */
static tdm_status mean_window(mean_pass *pass, tdm_error *err)
{
    tdm_team *team = pass->team;
    tdm__gossip *gossip = team->replicas->gossip;
    const tdm__replicas *replicas = team->replicas->replicas;
    tdm_lanes lanes = {replicas->count, replicas->first, NULL};
    const void *parts[TDM_MAX_LANE_PARTS];
    int64_t cells = (int64_t)((pass->count + TDM__CELL - 1) / TDM__CELL);
    tdm_kernel_spread(cells, TDM__CELL, mean_sum_cells, pass);
    for (int i = 0; i < pass->node_count; i++) parts[i] = gossip->parts + (size_t)i * WINDOW;
    if (team->group) {
        tdm_call call = {.kind = TDM_CALL_ALL_REDUCE,
                         .dtype = TDM_DTYPE_F32,
                         .count = pass->count,
                         .out = gossip->mean,
                         .lanes = &lanes,
                         .parts = parts};
        TDM_TRY(tdm_call_run(team->group, &call, err));
    } else if (pass->node_count > 0) {
        memcpy(gossip->mean, parts[0], pass->count * sizeof(float));
    }
    float scale = 1.0f / (float)replicas->count; /* exact: a power of two */
    for (size_t i = 0; i < pass->count; i++) gossip->mean[i] *= scale;
    tdm_kernel_spread(cells, TDM__CELL, mean_measure_cells, pass);
    for (int64_t r = pass->first; r < pass->end; r++)
        for (int64_t cell = 0; cell < cells; cell++)
            gossip->gathered[r] += gossip->partial[r * WINDOW_CELLS + cell];
    if (team->place != team->layout->first_of_node[team->layout->node]) return TDM_OK;
    TDM_TRY(tdm__undo_write_begin(team->undo_log, err));
    memcpy(tdm_params_block(team->options.store, TDM_BLOCK_PARAMS) + pass->at, gossip->mean,
           pass->count * sizeof(float));
    tdm__undo_write_end(team->undo_log);
    return TDM_OK;
}

/* ---- the mean -------------------------------------------------------------------------------- */

static tdm_status mean_compute(tdm_team *team, tdm_error *err)
{
    tdm__gossip *gossip = team->replicas->gossip;
    const tdm__replicas *replicas = team->replicas->replicas;
    size_t count = (size_t)replicas->count;
    mean_pass pass = {.team = team,
                      .first = replicas->first[team->place],
                      .end = replicas->first[team->place + 1]};
    tdm_lanes lanes = {replicas->count, replicas->first, NULL};
    pass.node_count = tdm_lane_nodes(&lanes, pass.first, pass.end, pass.nodes);
    memset(gossip->gathered, 0, 2 * count * sizeof(*gossip->gathered));
    for (pass.at = 0; pass.at < team->grad_extent; pass.at += WINDOW) {
        pass.count = team->grad_extent - pass.at < WINDOW ? team->grad_extent - pass.at : WINDOW;
        TDM_TRY(mean_window(&pass, err));
    }
    for (int64_t r = pass.first; r < pass.end; r++)
        gossip->gathered[count + (size_t)r] = (double)tdm__gossip_weight(team,
                                                                         mean_source(team, r));
    if (team->group) /* other entries are zero, so adding changes no bit; also a barrier */
        TDM_TRY(tdm_group_all_reduce(team->group, NULL, gossip->gathered, 2 * count, TDM_DTYPE_F64,
                                     TDM_REDUCE_SUM, err));
    double sum = 0;
    for (size_t r = 0; r < count; r++) sum += gossip->gathered[r];
    gossip->distance = sqrt(sum / (double)count);
    gossip->mean_is_current = true;
    return TDM_OK;
}

tdm_status tdm_team_average(tdm_team *team, double *distance, double *weights, tdm_error *err)
{
    tdm__gossip *gossip = team->replicas ? team->replicas->gossip : NULL;
    if (!gossip) return TDM_OK;
    tdm_status status = TDM_OK;
    if (!gossip->mean_is_current) {
        double begin = tdm_clock_s();
        tdm_kernel_mode before = tdm_kernel_enter(team->thread_count);
        status = mean_compute(team, err);
        tdm_kernel_leave(&before);
        tdm__team_mark(team, "mean", begin);
    }
    if (status != TDM_OK) return status;
    size_t count = (size_t)team->replicas->replicas->count;
    memcpy(weights, gossip->gathered + count, count * sizeof(*weights));
    *distance = gossip->distance;
    return TDM_OK;
}
