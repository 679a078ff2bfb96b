/*
 * look.c: a step once more, lane by lane, to be looked at: for what made its numbers bad, or for
 * anybody who wants to see it.
 *
 * Every rank runs every lane by itself, in order. The same kernels see the same numbers as in the step,
 * so all of them find the same, and nothing needs to be exchanged but parameters that are shared out.
 */
#include "parallel/internal.h"
#include "tensor/kernel.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Every lane is good by itself; `magnitude` is what the sum of the bad element may be at most. */
static void blame_sum(const tdm_team *team, const tdm_graph *graph, double magnitude,
                      tdm_bad_number *out)
{
    const double nearly = 0.99; /* sums are rounded */
    bool overflows = magnitude > nearly * (double)FLT_MAX;
    bool is_large = team->bad_element < team->trained_extent &&
                    magnitude > nearly * (double)TDM__GRADIENT_BOUND;
    if (!overflows && !is_large) return;
    for (size_t i = 0; i < tdm_graph_param_count(graph); i++) {
        const tdm_param_info *p = tdm_graph_param_at(graph, i);
        if (team->bad_element < p->offset || team->bad_element >= p->offset + p->elements) continue;
        *out = (tdm_bad_number){.kind = overflows ? TDM_BAD_SUM : TDM_BAD_LARGE, .name = p->name};
    }
}

/* A parameter, statistic or buffer that holds a number that is not finite. */
static tdm_status blame_params(tdm_team *team, bool *found, tdm_bad_number *out, tdm_error *err)
{
    const tdm_graph *graph = team->graphs[0].graph;
    size_t bad;
    TDM_TRY(tdm_store_find_bad(team->options.store, TDM_BLOCK_PARAMS, &bad, err));
    *found = bad != SIZE_MAX;
    for (size_t i = 0; *found && i < tdm_graph_param_count(graph); i++) {
        const tdm_param_info *p = tdm_graph_param_at(graph, i);
        if (bad < p->offset || bad >= p->offset + p->elements) continue;
        float value = 0;
        TDM_TRY(tdm_store_read(team->options.store, TDM_BLOCK_PARAMS, bad, 1,
                               team->place == 0 ? &value : NULL, err));
        double wide = (double)value;
        if (team->group) TDM_TRY(tdm_group_broadcast(team->group, &wide, 1, TDM_DTYPE_F64, 0, err));
        *out = (tdm_bad_number){.kind = TDM_BAD_PARAM, .name = p->name, .is_nan = isnan(wide)};
    }
    return TDM_OK;
}

/* A whole buffer for a gradient, whatever the team has. */
static float *any_buffer(tdm_team *team, tdm_pages *own, tdm_error *err)
{
    if (team->buffer_count > 0) return team->grads;
    if (tdm_pages_map(team->block_extent * sizeof(float), false, own, err) != TDM_OK) return NULL;
    return own->data;
}

static tdm_status blame_lanes(tdm_team *team, float *grads, tdm_bad_number *out, tdm_error *err)
{
    double magnitude = 0;
    for (int64_t i = 0; i < team->options.lane_count; i++) {
        if (tdm_lane_slice(team->in.batch, team->options.lane_count, i).count == 0) continue;
        bool found = false;
        tdm__team_set_up(team, i, grads);
        const tdm__lane_run *lane = &team->run[0];
        TDM_TRY(
            tdm__blame_lane(team->graphs[lane->graph].graph, lane, team->feed, &found, out, err));
        if (found) return TDM_OK;
        if (team->bad_element != SIZE_MAX) magnitude += fabs((double)grads[team->bad_element]);
    }
    blame_sum(team, team->graphs[0].graph, magnitude, out);
    return TDM_OK;
}

tdm_status tdm_team_replay(tdm_team *team, tdm_bad_number *out, tdm_error *err)
{
    bool found;
    tdm_bad_number bad = {.kind = TDM_BAD_NOWHERE};
    TDM_TRY(blame_params(team, &found, &bad, err));
    if (!found) {
        tdm_pages own = {0};
        float *grads = any_buffer(team, &own, err);
        tdm_status status = grads ? blame_lanes(team, grads, &bad, err) : TDM_ERR_NO_MEMORY;
        tdm_pages_unmap(&own);
        TDM_TRY(status);
    }
    *out = bad;
    return TDM_OK;
}

/* ---- for anybody ------------------------------------------------------------------------------- */

void tdm_team_watch(tdm_team *team, tdm_lane_watch_fn watch, void *user)
{
    team->watch = watch;
    team->watcher = user;
}

tdm_status tdm_team_look(tdm_team *team, const tdm_step_input *in, tdm_lane_visit_fn visit,
                         void *user, tdm_error *err)
{
    if (team->size > 1)
        return tdm_fail(err, TDM_ERR_UNSUPPORTED, "a step is looked at by a single process");
    team->in = *in;
    tdm_kernel_mode before = tdm_kernel_enter(team->thread_count);
    team->visit = visit;
    team->visitor = user;
    tdm_status status = tdm__team_run_lanes(team, err);
    team->visit = NULL;
    tdm_kernel_leave(&before);
    TDM_TRY(status);
    double loss = (double)NAN;
    tdm__tree_loss(team, 1, &loss);
    visit(user, -1, (tdm_slice){0, in->batch}, loss, team->tree.held[1]);
    return TDM_OK;
}
