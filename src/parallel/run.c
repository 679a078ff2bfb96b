/*
 * run.c: a rank executes its lanes.
 *
 * Lanes run one after the other, in order of index. Neighbours in the tree are added as soon as both
 * are complete, so that a rank holds only complete sub-trees (for an aligned block, at most one buffer more than
 * the depth of the tree). If some op sums over all lanes (tdm_graph_lane_sum), the lanes of a rank run
 * concurrently instead, part by part, each with its own activations, and are summed at those ops.
 *
 * A pass over a plan is divided where something must happen between steps: parameters arrive
 * (prefetch), lanes are summed, or a bucket of gradients is complete (buckets.c). Otherwise a pass
 * is one part.
 *
 * The additions of a lane are known before it runs: they depend on the lanes only. So the list of additions
 * is made first (tdm__lane_plan_adds), and executed for each range of the gradient as soon as that is complete.
 */
#include "base/base.h"
#include "comm/comm.h"
#include "parallel/internal.h"
#include "parallel/replicas.h"
#include "tensor/kernel.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include <time.h>

enum { STEPS_AT_A_TIME = 4 }; /* plan steps between checks for failed peers */

int tdm__team_find_graph(const tdm_team *team, int64_t batch, int64_t rows)
{
    for (int i = 0; i < team->graph_count; i++)
        if (team->graphs[i].batch == batch && team->graphs[i].rows == rows) return i;
    return -1;
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* An addition over a whole range, in cells that are distributed over the rank's threads. */
typedef struct sum {
    float *a;
    const float *b; /* NULL: only checks the range of `a` */
    size_t count;
    atomic_bool *overflow_risk;
} sum;

static void sum_add_cells(const void *args, int64_t begin, int64_t end)
{
    const sum *s = args;
    size_t first = (size_t)begin * TDM__CELL, last = (size_t)end * TDM__CELL;
    if (last > s->count) last = s->count;
    bool in_safe_range = s->b ? tdm_kernel_add_into(s->a + first, s->b + first, last - first)
                              : tdm_kernel_in_safe_range(s->a + first, last - first);
    if (!in_safe_range) atomic_store_explicit(s->overflow_risk, true, memory_order_relaxed);
}

bool tdm__add_range(float *a, const float *b, size_t count)
{
    int64_t cells = (int64_t)((count + TDM__CELL - 1) / TDM__CELL);
    atomic_bool overflow_risk = false;
    tdm_kernel_spread(cells, TDM__CELL, sum_add_cells, &(sum){a, b, count, &overflow_risk});
    return !atomic_load(&overflow_risk);
}

/* Losses are summed by the same tree, so that they do not depend on the ranks either. */
bool tdm__tree_loss(const tdm_team *team, int64_t node, double *out)
{
    if (team->has_loss[node]) {
        *out = team->losses[node];
        return true;
    }
    if (node >= team->tree.lane_count) return false;
    double left = 0, right = 0;
    bool has_left = tdm__tree_loss(team, 2 * node, &left);
    bool has_right = tdm__tree_loss(team, 2 * node + 1, &right);
    if (has_left && has_right)
        *out = left + right;
    else if (has_left || has_right)
        *out = has_left ? left : right;
    return has_left || has_right;
}

/* ---- this rank's part of the tree -------------------------------------------------------------- */

static int64_t node_first_lane(const tdm_team *team, int64_t node)
{
    while (node < team->tree.lane_count) node *= 2;
    return node - team->tree.lane_count;
}

/* Called when a node is complete. While it is a right child whose sibling also belongs to this rank, the two are
 * combined; if only one of them has rows, that one is used. */
void tdm__node_complete(tdm_team *team, tdm__lane_run *r, int64_t node)
{
    float **held = team->tree.held;
    int64_t mine = team->first[team->place];
    while (node >= 2 * team->lowest_node && node % 2 == 1 &&
           node_first_lane(team, node - 1) >= mine) {
        float *left = held[node - 1], *right = held[node];
        if (left && right) {
            assert(r->add_count < (int)(sizeof(r->adds) / sizeof(r->adds[0])));
            r->adds[r->add_count++] = (tdm__add){left, right};
        }
        held[node - 1] = held[node] = NULL;
        node /= 2;
        held[node] = left ? left : right;
    }
    if (held[node]) r->sum = held[node];
}

/* Whether this rank adds nothing more to the node that lane `lane` has completed: the parent node
 * belongs to this rank only in part. */
static bool lane_is_complete(const tdm_team *team, int64_t lane)
{
    int64_t mine = team->first[team->place], end = team->first[team->place + 1];
    int64_t node = team->tree.lane_count + lane, width = 1;
    while (node > 1 && node % 2 == 1 && node_first_lane(team, node - 1) >= mine) {
        node /= 2;
        width *= 2;
    }
    if (node == 1) return true;
    int64_t parent = node_first_lane(team, node / 2);
    return parent < mine || parent + 2 * width > end;
}

/* Lists the additions of lane r->lane, which is about to fill r->grads. Changes the tree as if they had
 * been done; the numbers follow. Lanes without rows that come next are handled at once. */
void tdm__lane_plan_adds(tdm_team *team, tdm__lane_run *r, bool last)
{
    int64_t lane = r->lane, end = team->first[team->place + 1];
    r->add_count = 0;
    r->sum = r->grads;
    team->tree.held[team->tree.lane_count + lane] = r->grads;
    tdm__node_complete(team, r, team->tree.lane_count + lane);
    while (lane + 1 < end && team->absent[lane + 1])
        tdm__node_complete(team, r, team->tree.lane_count + ++lane);
    r->is_final = team->lowest_node == 1 && (last || lane_is_complete(team, lane));
}

/* Frees the right operands of a lane's additions after these were done. */
void tdm__lane_free_buffers(tdm_team *team, const tdm__lane_run *r)
{
    const float *last = team->buckets ? tdm__buckets_last_grads(team) : NULL;
    for (int i = 0; i < r->add_count; i++)
        if (r->adds[i].right != last) team->free_grads[team->free_count++] = r->adds[i].right;
}

void tdm__lane_add_all(tdm_team *team, const tdm__lane_run *r)
{
    bool in_safe_range = true;
    for (int i = 0; i < r->add_count; i++)
        in_safe_range = tdm__add_range(r->adds[i].left, r->adds[i].right, team->grad_extent) &&
                        in_safe_range;
    if (r->is_final && r->add_count == 0)
        in_safe_range = tdm__add_range(r->sum, NULL, team->grad_extent);
    if (!in_safe_range) atomic_store(&team->overflow_risk, true);
}

/* ---- setting up a lane ------------------------------------------------------------------------- */

static tdm_step_key lane_key(const tdm_team *team, tdm_slice rows)
{
    return (tdm_step_key){
        .seed = team->options.seed, .step = team->key_step, .first_row = (uint64_t)rows.first};
}

tdm_slice tdm__team_rows(const tdm_team *team, int64_t lane)
{
    return tdm_lane_slice(team->in.batch, team->slice_count, lane % team->slice_count);
}

void tdm__team_set_up(tdm_team *team, int index, int64_t lane, float *grads)
{
    tdm__lane_run *r = &team->run[index];
    tdm_slice rows = tdm__team_rows(team, lane);
    int graph = tdm__team_find_graph(team, team->in.batch, rows.count);
    assert(graph >= 0);
    tdm_plan *plan = team->plans[index * team->graph_count + graph];
    *r = (tdm__lane_run){.lane = lane,
                         .rows = rows,
                         .plan = plan,
                         .graph = graph,
                         .grads = grads,
                         .key = lane_key(team, rows)};
    tdm_plan_bind(plan, TDM_SPACE_GRADS, grads);
    team->lanes_done++;
    team->rows_done += (uint64_t)rows.count;
    team->options.fill(team->options.user, rows.first, rows.count,
                       tdm_plan_input(plan, TDM_MODEL_INPUT).data,
                       tdm_plan_input(plan, TDM_MODEL_CLASSES).data);
}

/* ---- sums over lanes ---------------------------------------------------------------------------- */

/* Sums this rank's sub-trees, then those of all ranks. */
tdm_status tdm__team_meet_at_sum(tdm_team *team, int count, size_t k, tdm_error *err)
{
    tdm__meeting *m = &team->meeting;
    size_t elements = m->elements[k];
    int64_t nodes[TDM_MAX_LANE_PARTS], lane_count = team->options.lane_count;
    const void *parts[TDM_MAX_LANE_PARTS];
    tdm_lanes lanes = {lane_count, team->first, team->absent};
    int64_t mine = team->first[team->place], end = team->first[team->place + 1];
    int node_count = tdm_lane_nodes(&lanes, mine, end, nodes);
    tdm_tensor io;

    for (int i = 0; i < count; i++) {
        const tdm__lane_run *r = &team->run[i];
        tdm_plan_lane_sum_at(r->plan, m->steps[r->graph][k], &io);
        m->tree.held[lane_count + r->lane] = io.data;
    }
    for (int i = 0; i < node_count; i++) {
        float *out = m->rows + (size_t)i * m->row_elements;
        tdm__tree_sum(&m->tree, nodes[i], 0, elements, out, m->levels);
        parts[i] = out;
    }
    for (int64_t l = mine; l < end; l++) m->tree.held[lane_count + l] = NULL;

    float *total = m->rows; /* with one rank, its only part is the root */
    if (team->size > 1) {
        total = m->sum;
        tdm_call call = {.kind = TDM_CALL_ALL_REDUCE,
                         .dtype = TDM_DTYPE_F32,
                         .count = elements,
                         .out = total,
                         .lanes = &lanes,
                         .parts = parts};
        double begin = tdm_clock_s();
        TDM_TRY(tdm_call_run(team->group, &call, err));
        team->wait_seconds += tdm_clock_s() - begin;
    }

    for (int i = 0; i < count; i++) {
        const tdm__lane_run *r = &team->run[i];
        tdm_plan_lane_sum_at(r->plan, m->steps[r->graph][k], &io);
        memcpy(io.data, total, elements * sizeof(float));
    }
    return TDM_OK;
}

/* ---- a pass over the plan ---------------------------------------------------------------------- */

/* Slows down a rank in tests, as load on the machine would. */
static void inject_delay(const tdm_team *team, double seconds)
{
    if (team->slow_factor <= 1) return;
    tdm_clock_sleep(seconds * (team->slow_factor - 1));
}

typedef struct watched_lane {
    const tdm_team *team;
    const tdm__lane_run *lane;
} watched_lane;

static bool lane_show_op(void *user, const tdm_plan_event *event)
{
    const watched_lane *w = user;
    const tdm_graph *graph = w->team->graphs[w->lane->graph].graph;
    if (w->team->visit && w->team->watch)
        w->team->watch(w->team->watcher, w->lane->lane, graph, event);
    if (w->team->tested) {
        bool backward = tdm_graph_node_at(graph, event->node).backward;
        tdm__team_point(w->team, backward ? "backward" : "forward", event->node);
    }
    return true;
}

static void lanes_run_part(tdm_team *team, int count, size_t begin, size_t end)
{
    if (count == 0)
        return; /* and count no time: such a step says nothing about the speed of the rank */
    double from = tdm_clock_s();
    bool shown = (team->visit && team->watch) || team->tested;
    for (int i = 0; i < count; i++) {
        const tdm__lane_run *r = &team->run[i];
        if (shown)
            tdm_plan_run_part_watched(r->plan, &r->key, begin, end, lane_show_op,
                                      &(watched_lane){team, r});
        else
            tdm_plan_run_part(r->plan, &r->key, begin, end);
    }
    inject_delay(team, tdm_clock_s() - from);
    team->lane_seconds += tdm_clock_s() - from;
}

int tdm__team_graph_of_batch(const tdm_team *team)
{
    int graph = 0;
    while (graph + 1 < team->graph_count && team->graphs[graph].batch != team->in.batch) graph++;
    return graph;
}

/* Runs run[0 .. count) from beginning to end. `last`: this rank has no lanes after them. A rank
 * without rows executes a pass as well, in which it computes nothing but takes part in all collective
 * operations of the plan. */
tdm_status tdm__lanes_pass(tdm_team *team, int count, bool last, tdm_error *err)
{
    int graph = count > 0 ? team->run[0].graph : tdm__team_graph_of_batch(team);
    size_t step_count = tdm_plan_step_count(team->plans[graph]), at = 0, sums = 0;
    bool by_bucket = team->buckets &&
                     !team->replicas; /* replicas are complete before they are sent */
    TDM_TRY(tdm_prefetch_begin(team->prefetch, graph, err));
    if (by_bucket) tdm__buckets_begin(team);

    while (at < step_count) {
        size_t end = step_count;
        double begin = tdm_clock_s();
        TDM_TRY(tdm_prefetch_reach(team->prefetch, at, &end, err));
        if (end > step_count) end = step_count;
        if (by_bucket) {
            size_t next = tdm__buckets_next(team, graph, at);
            if (next < end) end = next;
        }
        if (team->cancel && atomic_load(team->cancel))
            return tdm_fail(err, TDM_ERR_PEER_LEFT, "the gradient is not needed any more");
        if (team->group || team->cancel) { /* abort early if a peer failed */
            if (team->group) TDM_TRY(tdm_group_check(team->group, err));
            if (end > at + STEPS_AT_A_TIME) end = at + STEPS_AT_A_TIME;
        }
        bool meets = tdm__meeting_is_before(&team->meeting, graph, sums, end);
        if (meets) end = team->meeting.steps[graph][sums] + 1;
        if (by_bucket && last) TDM_TRY(tdm__buckets_before(team, graph, end, err));
        team->wait_seconds += tdm_clock_s() - begin;
        lanes_run_part(team, count, at, end);
        if (meets) TDM_TRY(tdm__team_meet_at_sum(team, count, sums++, err));
        if (by_bucket) TDM_TRY(tdm__buckets_after(team, graph, count, end, last, err));
        at = end;
    }

    for (int i = 0; i < count; i++) {
        const tdm__lane_run *r = &team->run[i];
        int64_t node = team->tree.lane_count + r->lane;
        team->losses[node] = (double)*(float *)tdm_plan_output(r->plan, TDM_MODEL_LOSS).data;
        team->has_loss[node] = true;
        double begin = tdm_clock_s();
        if (team->options.take) {
            const float *d_x = tdm_plan_output(r->plan, TDM_MODEL_INPUT_GRADIENT).data;
            if (!team->options.take(team->options.user, r->rows.first, r->rows.count, d_x))
                team->is_taken = false;
        }
        if (team->visit) team->visit(team->visitor, r->lane, r->rows, team->losses[node], r->grads);
        if (!by_bucket) tdm__lane_add_all(team, r);
        team->lane_seconds += tdm_clock_s() - begin;
        tdm__lane_free_buffers(team, r);
    }
    return TDM_OK;
}

/* ---- all lanes of a step ------------------------------------------------------------------------ */

float *tdm__team_take_buffer(tdm_team *team, bool last)
{
    float *special = team->buckets && last ? tdm__buckets_last_grads(team) : NULL;
    if (special) return special;
    assert(team->free_count > 0);
    return team->free_grads[--team->free_count];
}

/* The last lane of [first, end) with rows, or -1. */
static int64_t team_last_lane(const tdm_team *team, int64_t first, int64_t end)
{
    for (int64_t l = end - 1; l >= first; l--)
        if (!team->absent[l]) return l;
    return -1;
}

static tdm_status lanes_run_in_turn(tdm_team *team, int64_t first, int64_t end, tdm_error *err)
{
    int64_t last = team_last_lane(team, first, end);
    if (last < 0) return tdm__lanes_pass(team, 0, true, err);
    for (int64_t lane = first; lane <= last; lane++) {
        if (team->absent[lane]) continue;
        tdm__team_set_up(team, 0, lane, tdm__team_take_buffer(team, lane == last));
        tdm__lane_plan_adds(team, &team->run[0], lane == last);
        TDM_TRY(tdm__lanes_pass(team, 1, lane == last, err));
    }
    return TDM_OK;
}

static tdm_status lanes_run_concurrently(tdm_team *team, int64_t first, int64_t end, tdm_error *err)
{
    int64_t last = team_last_lane(team, first, end);
    int count = 0;
    for (int64_t lane = first; lane <= last; lane++) {
        if (team->absent[lane]) continue;
        tdm__team_set_up(team, count, lane, tdm__team_take_buffer(team, lane == last));
        tdm__lane_plan_adds(team, &team->run[count++], lane == last);
    }
    return tdm__lanes_pass(team, count, true, err);
}

/* The number of passes of a rank in this step, at least one. */
static int64_t team_passes(const tdm_team *team, int place)
{
    int64_t passes = 0;
    for (int64_t l = team->first[place]; l < team->first[place + 1]; l++)
        passes += !team->absent[l];
    return team->side_by_side || passes == 0 ? 1 : passes;
}

/* Sharded parameters are gathered by all ranks together, including ranks with fewer lanes
 * than others. Such a rank passes first, so that the last pass is the same one on all ranks: in it
 * they also wait for each other's gradients, and must not be asked for parameters of another pass. */
static tdm_status team_align_passes(tdm_team *team, tdm_error *err)
{
    if (tdm_params_is_whole(team->options.store, TDM_BLOCK_PARAMS)) return TDM_OK;
    int64_t max = 0, mine = team_passes(team, team->place);
    for (int i = 0; i < team->size; i++) {
        int64_t passes = team_passes(team, i);
        if (passes > max) max = passes;
    }
    double begin = tdm_clock_s();
    for (; mine < max; mine++) TDM_TRY(tdm_prefetch_pass(team->prefetch, err));
    team->wait_seconds += tdm_clock_s() - begin;
    return TDM_OK;
}

/* With updates in order, each of this rank's replicas with an update is a part. */
static void team_collect_ordered_parts(tdm_team *team)
{
    int64_t replicas = tdm__params_replicas(team->options.store)->count;
    team->part_count = 0;
    for (int64_t i = 0; i < team->in.inner_count; i++) {
        int64_t node = replicas + team->in.order[i].worker;
        if (!team->tree.held[node]) continue;
        tdm__part *part = &team->parts[team->part_count++];
        *part = (tdm__part){.node = node, .grads = team->tree.held[node]};
        tdm__tree_loss(team, node, &part->loss);
    }
}

static void team_collect_parts(tdm_team *team)
{
    if (team->in.order) {
        team_collect_ordered_parts(team);
        return;
    }
    int64_t nodes[TDM_MAX_LANE_PARTS];
    tdm_lanes lanes = {team->options.lane_count, team->first, team->absent};
    team->part_count = tdm_lane_nodes(&lanes, team->first[team->place],
                                      team->first[team->place + 1], nodes);
    for (int i = 0; i < team->part_count; i++) {
        tdm__part *part = &team->parts[i];
        *part = (tdm__part){.node = nodes[i], .grads = team->tree.held[nodes[i]]};
        if (team->undo_log->is_derived) part->grads = team->grads; /* only the loss is used */
        tdm__tree_loss(team, nodes[i], &part->loss);
        assert(part->grads);
    }
}

tdm_status tdm__team_run_lanes(tdm_team *team, tdm_error *err)
{
    int64_t lane_count = team->options.lane_count;
    int64_t first = team->first[team->place], end = team->first[team->place + 1];
    memset(team->tree.held, 0, 2 * (size_t)lane_count * sizeof(*team->tree.held));
    memset(team->has_loss, 0, 2 * (size_t)lane_count * sizeof(*team->has_loss));
    for (int64_t l = 0; l < lane_count; l++) team->absent[l] = tdm__team_rows(team, l).count == 0;
    team->free_count = 0;
    for (int i = team->live ? tdm__live_buffers(team) : 0; i < team->buffer_count; i++)
        team->free_grads[team->free_count++] = team->grads + (size_t)i * team->block_extent;
    atomic_store(&team->overflow_risk, false);
    team->is_taken = true;
    team->lane_seconds = 0;
    team->lanes_done = team->rows_done = team->payload_bytes = team->dense_bytes = 0;
    team->codec_seconds = 0;
    team->key_step = team->in.step;
    team->lowest_node = 1;
    TDM_TRY(team_align_passes(team, err));
    double begin = tdm_clock_s();
    TDM_TRY(team->replicas       ? tdm__replicas_execute(team, first, end, err)
            : team->side_by_side ? lanes_run_concurrently(team, first, end, err)
                                 : lanes_run_in_turn(team, first, end, err));
    tdm__team_mark(team, "lanes", begin);
    team_collect_parts(team);
    return team->buckets ? tdm__buckets_finish_lanes(team, err) : TDM_OK;
}
