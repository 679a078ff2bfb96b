/*
 * look.c: a step once more, lane by lane, to be looked at: for what made its numbers bad, or for
 * anybody who wants to see it.
 *
 * Every rank runs every lane by itself, in order. The same kernels see the same numbers as in the step,
 * so all of them find the same, and nothing needs to be exchanged but parameters that are shared out.
 * Lanes that meet on their way (run.c) must do so here, too: there each rank runs its own, together with
 * the others', and tells them what it has found.
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

/* A whole buffer for a gradient, whatever the team has. */
static float *any_buffer(tdm_team *team, tdm_pages *own, tdm_error *err)
{
    if (team->buffer_count > 0) return team->grads;
    if (tdm_pages_map(team->block_extent * sizeof(float), false, own, err) != TDM_OK) return NULL;
    return own->data;
}

/* Runs lanes that are set up, side by side; they meet where lanes do. */
static tdm_status run_watched(tdm_team *team, int graph, tdm__watcher *watchers, int count,
                              tdm_error *err)
{
    const tdm__meeting *m = &team->meeting;
    size_t step_count = tdm_plan_step_count(team->plans[graph]), at = 0, sums = 0;
    TDM_TRY(tdm_prefetch_begin(team->feed, graph, err));
    while (at < step_count) {
        size_t end = step_count;
        TDM_TRY(tdm_prefetch_reach(team->feed, at, &end, err));
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
    for (int64_t i = 0; i < team->options.lane_count; i++) {
        if (tdm_lane_slice(team->in.batch, team->options.lane_count, i).count == 0) continue;
        tdm__team_set_up(team, 0, i, grads);
        const tdm__lane_run *lane = &team->run[0];
        tdm__watcher w;
        tdm__watcher_begin(&w, team->graphs[lane->graph].graph, lane);
        TDM_TRY(run_watched(team, lane->graph, &w, 1, err));
        if (tdm__watcher_has_found(&w)) {
            *out = w.found;
            return TDM_OK;
        }
        if (team->bad_element != SIZE_MAX) magnitude += fabs((double)grads[team->bad_element]);
    }
    blame_sum(team, team->graphs[0].graph, magnitude, out);
    return TDM_OK;
}

/* ---- lanes that meet --------------------------------------------------------------------------- */

/* What was found by the rank with the lane in which a bad number was first: bad numbers spread to other
 * lanes by the sums. Names are those of everybody's own graph. */
static tdm_status tell_all(tdm_team *team, int64_t lane, const tdm__watcher *mine,
                           tdm_bad_number *out, tdm_error *err)
{
    struct {
        tdm_bad_number bad;
        uint64_t node;
    } news = {.node = 0};
    int root = 0;
    while (root + 1 < team->size && team->first[root + 1] <= lane) root++;
    if (root == team->place && mine) {
        news.bad = mine->found;
        news.node = mine->node;
    }
    if (team->group)
        TDM_TRY(tdm_group_broadcast(team->group, &news, sizeof(news), TDM_DTYPE_U8, root, err));
    *out = news.bad;
    if (out->kind != TDM_BAD_OP) return TDM_OK;
    int graph = tdm__team_find_graph(team, team->in.batch, out->rows.count);
    if (graph < 0) return tdm_fail(err, TDM_ERR_INTERNAL, "team: ranks have different graphs");
    tdm_node_info node = tdm_graph_node_at(team->graphs[graph].graph, news.node);
    out->name = node.name;
    out->op = node.op;
    return TDM_OK;
}

/* Each rank runs its own lanes, all together as in the step. */
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
    TDM_TRY(run_watched(team, graph, watchers, count, err));
    /* By when it was found, then by lane. */
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
        return tell_all(team, first % TDM_MAX_LANES, best >= 0 ? &watchers[best] : NULL, out, err);
    blame_sum(team, team->graphs[0].graph, magnitude, out);
    return TDM_OK;
}

static tdm_status look_for_lanes(tdm_team *team, tdm_bad_number *out, tdm_error *err)
{
    if (team->side_by_side) {
        tdm__watcher *watchers = calloc((size_t)team->max_run, sizeof(*watchers));
        if (!watchers) return tdm_fail(err, TDM_ERR_NO_MEMORY, "team: no memory");
        tdm_status status = blame_together(team, watchers, out, err);
        free(watchers);
        return status;
    }
    tdm_pages own = {0};
    float *grads = any_buffer(team, &own, err);
    tdm_status status = grads ? blame_lanes(team, grads, out, err) : TDM_ERR_NO_MEMORY;
    tdm_pages_unmap(&own);
    return status;
}

tdm_status tdm_team_replay(tdm_team *team, tdm_bad_number *out, tdm_error *err)
{
    bool found;
    tdm_bad_number bad = {.kind = TDM_BAD_NOWHERE};
    TDM_TRY(blame_params(team, &found, &bad, err));
    if (!found) {
        tdm_kernel_mode before = tdm_kernel_enter(team->thread_count);
        tdm_status status = look_for_lanes(team, &bad, err);
        tdm_kernel_leave(&before);
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
