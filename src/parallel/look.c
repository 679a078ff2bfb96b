/*
 * look.c: executes a step again, lane by lane: to find the origin of non-finite values, or for
 * inspection.
 *
 * Every rank runs every lane by itself, in order. The same kernels get the same inputs as in the step,
 * so all ranks find the same, and nothing needs to be exchanged except sharded parameters.
 * Lanes that are summed in the middle of a pass (run.c) must be summed here as well: in that case each rank runs
 * its own lanes, together with the other ranks, and broadcasts its result.
 */
#include "base/base.h"
#include "parallel/internal.h"
#include "tensor/kernel.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Every lane is finite by itself; `magnitude` is an upper bound of the sum of the non-finite element. */
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

/* Finds a parameter, statistic or buffer with a non-finite value. */
static tdm_status blame_params(tdm_team *team, bool *found, tdm_bad_number *out, tdm_error *err)
{
    const tdm_graph *graph = team->graphs[0].graph;
    size_t bad;
    TDM_TRY(tdm_params_find_bad(team->options.store, TDM_BLOCK_PARAMS, &bad, err));
    *found = bad != SIZE_MAX;
    for (size_t i = 0; *found && i < tdm_graph_param_count(graph); i++) {
        const tdm_param_info *p = tdm_graph_param_at(graph, i);
        if (bad < p->offset || bad >= p->offset + p->elements) continue;
        float value = 0;
        TDM_TRY(tdm_params_read(team->options.store, TDM_BLOCK_PARAMS, bad, 1,
                                team->place == 0 ? &value : NULL, err));
        double wide = (double)value;
        if (team->group) TDM_TRY(tdm_group_broadcast(team->group, &wide, 1, TDM_DTYPE_F64, 0, err));
        *out = (tdm_bad_number){.kind = TDM_BAD_PARAM, .name = p->name, .is_nan = isnan(wide)};
    }
    return TDM_OK;
}

/* A complete gradient buffer: one of the team, or a temporary one. */
static float *team_any_buffer(tdm_team *team, tdm_pages *own, tdm_error *err)
{
    if (team->buffer_count > 0) return team->grads;
    if (tdm_pages_map(team->block_extent * sizeof(float), false, own, err) != TDM_OK) return NULL;
    return own->data;
}

/* Runs lanes that are set up, concurrently, with their sums over lanes. */
static tdm_status watchers_run(tdm_team *team, int graph, tdm__watcher *watchers, int count,
                               tdm_error *err)
{
    const tdm__meeting *m = &team->meeting;
    size_t step_count = tdm_plan_step_count(team->plans[graph]), at = 0, sums = 0;
    TDM_TRY(tdm_prefetch_begin(team->prefetch, graph, err));
    while (at < step_count) {
        size_t end = step_count;
        TDM_TRY(tdm_prefetch_reach(team->prefetch, at, &end, err));
        if (end > step_count) end = step_count;
        bool meets = tdm__meeting_is_before(m, graph, sums, end);
        if (meets) end = m->steps[graph][sums] + 1;
        for (int i = 0; i < count; i++) tdm__watcher_run(&watchers[i], at, end);
        if (meets) TDM_TRY(tdm__team_meet_at_sum(team, count, sums, err));
        for (int i = 0; meets && i < count; i++) {
            const tdm__lane_run *r = watchers[i].lane;
            tdm_tensor sum;
            if (tdm_plan_lane_sum_at(r->plan, m->steps[r->graph][sums], &sum))
                tdm__watcher_see_sum(&watchers[i], &sum);
        }
        sums += meets;
        at = end;
    }
    return TDM_OK;
}

static tdm_status blame_lanes(tdm_team *team, float *grads, tdm_bad_number *out, tdm_error *err)
{
    double magnitude = 0;
    for (int64_t i = 0; i < team->slice_count; i++) {
        if (tdm__team_rows(team, i).count == 0) continue;
        tdm__team_set_up(team, 0, i, grads);
        const tdm__lane_run *lane = &team->run[0];
        tdm__watcher w;
        tdm__watcher_begin(&w, team->graphs[lane->graph].graph, lane);
        TDM_TRY(watchers_run(team, lane->graph, &w, 1, err));
        if (tdm__watcher_has_found(&w)) {
            *out = w.found;
            return TDM_OK;
        }
        if (team->bad_element != SIZE_MAX) magnitude += fabs((double)grads[team->bad_element]);
    }
    blame_sum(team, team->graphs[0].graph, magnitude, out);
    return TDM_OK;
}

/* ---- lanes that are summed --------------------------------------------------------------------- */

/* Broadcasts the result of the rank with the lane in which a non-finite value was first: the sums spread it
 * to other lanes. Names are those of each rank's own graph. */
static tdm_status finding_broadcast(tdm_team *team, int64_t lane, const tdm__watcher *mine,
                                    tdm_bad_number *out, tdm_error *err)
{
    struct {
        tdm_bad_number bad;
        uint64_t node;
    } finding = {.node = 0};
    int root = 0;
    while (root + 1 < team->size && team->first[root + 1] <= lane) root++;
    if (root == team->place && mine) {
        finding.bad = mine->found;
        finding.node = mine->node;
    }
    if (team->group)
        TDM_TRY(
            tdm_group_broadcast(team->group, &finding, sizeof(finding), TDM_DTYPE_U8, root, err));
    *out = finding.bad;
    if (out->kind != TDM_BAD_OP) return TDM_OK;
    int graph = tdm__team_find_graph(team, team->in.batch, out->rows.count);
    if (graph < 0) return tdm_fail(err, TDM_ERR_INTERNAL, "team: ranks have different graphs");
    tdm_node_info node = tdm_graph_node_at(team->graphs[graph].graph, finding.node);
    out->name = node.name;
    out->op = node.op;
    return TDM_OK;
}

/* Each rank runs its own lanes, concurrently as in the step. */
static tdm_status blame_together(tdm_team *team, tdm__watcher *watchers, tdm_bad_number *out,
                                 tdm_error *err)
{
    int count = 0, best = -1;
    for (int64_t l = team->first[team->place]; l < team->first[team->place + 1]; l++) {
        if (team->absent[l]) continue;
        tdm__team_set_up(team, count, l, team->grads + (size_t)count * team->block_extent);
        const tdm__lane_run *lane = &team->run[count];
        tdm__watcher_begin(&watchers[count++], team->graphs[lane->graph].graph, lane);
    }

    int graph = count > 0 ? team->run[0].graph : tdm__team_graph_of_batch(team);
    TDM_TRY(watchers_run(team, graph, watchers, count, err));

    /* by the time it was found, then by lane */
    int64_t mine = INT64_MAX;
    double magnitude = 0;
    for (int i = 0; i < count; i++) {
        const tdm__watcher *w = &watchers[i];
        int64_t when = w->found_at * TDM_MAX_LANES + w->lane->lane;
        if (team->bad_element != SIZE_MAX)
            magnitude += fabs((double)w->lane->grads[team->bad_element]);
        if (!tdm__watcher_has_found(w) || when >= mine) continue;
        mine = when;
        best = i;
    }

    int64_t first = mine;
    if (team->group) {
        TDM_TRY(
            tdm_group_all_reduce(team->group, NULL, &first, 1, TDM_DTYPE_I64, TDM_REDUCE_MIN, err));
        TDM_TRY(tdm_group_all_reduce(team->group, NULL, &magnitude, 1, TDM_DTYPE_F64,
                                     TDM_REDUCE_SUM, err));
    }

    if (first != INT64_MAX)
        return finding_broadcast(team, first % TDM_MAX_LANES, best >= 0 ? &watchers[best] : NULL,
                                 out, err);
    blame_sum(team, team->graphs[0].graph, magnitude, out);
    return TDM_OK;
}

static tdm_status blame_find(tdm_team *team, tdm_bad_number *out, tdm_error *err)
{
    if (team->side_by_side) {
        tdm__watcher *watchers = calloc((size_t)team->max_run, sizeof(*watchers));
        if (!watchers) return tdm_fail_oom(err, "for the team");
        tdm_status status = blame_together(team, watchers, out, err);
        free(watchers);
        return status;
    }
    tdm_pages own = {0};
    float *grads = team_any_buffer(team, &own, err);
    tdm_status status = grads ? blame_lanes(team, grads, out, err) : TDM_ERR_NO_MEMORY;
    tdm_pages_unmap(&own);
    return status;
}

tdm_status tdm_team_replay(tdm_team *team, tdm_bad_number *out, tdm_error *err)
{
    bool found;
    tdm_bad_number bad = {.kind = TDM_BAD_NOWHERE};
    team->key_step = team->in.step;
    tdm__replicas_use_model(team);
    TDM_TRY(blame_params(team, &found, &bad, err));
    if (!found) {
        tdm_kernel_mode before = tdm_kernel_enter(team->thread_count);
        tdm_status status = blame_find(team, &bad, err);
        tdm_kernel_leave(&before);
        TDM_TRY(status);
    }
    *out = bad;
    return TDM_OK;
}

/* ---- inspection ---------------------------------------------------------------------------------- */

void tdm_team_watch(tdm_team *team, tdm_lane_watch_fn watch, void *user)
{
    team->watch = watch;
    team->watcher = user;
}

tdm_status tdm_team_look(tdm_team *team, const tdm_step_input *in, tdm_lane_visit_fn visit,
                         void *user, tdm_error *err)
{
    if (team->size > 1)
        return tdm_fail(err, TDM_ERR_UNSUPPORTED,
                        "a step can only be inspected in a single process");
    team->in = *in;
    tdm__replicas_use_model(team);
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
