/*
 * team.c: a rank of a team: its creation, and the step.
 *
 * A step has two halves. First, each rank executes its lanes (run.c). Then the ranks combine their results: gradients
 * are summed over the tree, each rank updates its own cells (update.c), and new parameters are
 * distributed (params.c). How gradients are summed depends on where the ranks are: within one node they
 * are in shared memory and are summed in place (common.c); between nodes, or
 * if gradients are sharded, they are sent in buckets (buckets.c).
 *
 * Invariants: the gradient of every element is the sum over the one tree, whichever rank adds it. All ranks have
 * the same information about a step and so make the same decisions. A step with non-finite values changes nothing.
 * Nothing is allocated after creation, except what the transport needs to send.
 */
#include "base/base.h"
#include "comm/comm.h"
#include "job/job.h"
#include "nn/nn.h"
#include "os/os.h"
#include "parallel/internal.h"
#include "parallel/replicas.h"
#include "tensor/kernel.h"

#include <tandem/trace.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(TDM_MAX_LANES *(uint64_t)TDM_KERNEL_SAFE_RANGE <= (uint64_t)TDM__GRADIENT_BOUND,
               "gradients in the safe range must add up to a finite square over all lanes");

/* ---- the step -------------------------------------------------------------------------------- */

static tdm_status step_exchange(tdm_team *team, tdm_error *err)
{
    tdm__step_report mine = {.lane_seconds = team->lane_seconds,
                             .update_seconds = team->update_seconds,
                             .wait_seconds = team->wait_seconds,
                             .request = team->in.request,
                             .payload_bytes = team->payload_bytes,
                             .dense_bytes = team->dense_bytes,
                             .codec_seconds = team->codec_seconds,
                             .change = tdm__replicas_change(team),
                             .tally = team->in.tally ? *team->in.tally : 0,
                             .in_safe_range = !atomic_load(&team->overflow_risk),
                             .is_taken = team->is_taken};
    mine.lanes = team->lanes_done;
    mine.rows = team->rows_done;
    team->update_seconds = team->wait_seconds = 0;
    return team->buckets ? tdm__buckets_meet(team, &mine, err) : tdm__common_meet(team, &mine, err);
}

/* The lanes of a rank; with updates in order, where each replica executes all lanes of a batch, its replicas. */
static int64_t team_lanes_of(const tdm_team *team, int place)
{
    int64_t lanes = team->first[place + 1] - team->first[place];
    return team->options.lane_count > team->slice_count ? lanes / team->slice_count : lanes;
}

static void team_count_ranks(tdm_team *team)
{
    for (int i = 0; i < team->size; i++) {
        tdm_team_rank *r = &team->ranks[team->layout->rank_of_place[i]];
        const tdm__step_report *n = &team->notes[i];
        r->lanes = team_lanes_of(team, i);
        r->lanes_done += n->lanes;
        r->rows_done += n->rows;
        r->lane_seconds += n->lane_seconds;
        r->update_seconds += n->update_seconds;
        r->wait_seconds += n->wait_seconds;
    }
}

/* The time of a rank for all units that it has. With updates in order, a step executes only some of its replicas. */
static double team_seconds_of(const tdm_team *team, int place)
{
    const tdm__step_report *note = &team->notes[place];
    if (!team->in.order) return note->lane_seconds;
    int64_t lanes = team->first[place + 1] - team->first[place];
    return note->lanes > 0 ? note->lane_seconds * (double)lanes / (double)note->lanes
                           : team->seconds[place]; /* as before */
}

/* Takes over the placement of next_first, which counts in units. */
static void team_move_lanes(tdm_team *team)
{
    tdm__replicas *replicas = tdm__params_replicas(team->options.store);
    for (int i = 0; i <= team->size; i++) {
        team->first[i] = team->next_first[i] * team->unit_lanes;
        if (replicas) replicas->first[i] = team->next_first[i];
    }
}

/* Updates the placement from the times of the ranks, and finds a straggler. */
static void team_balance(tdm_team *team, tdm_step_result *out)
{
    out->straggler = -1;
    if (team->size == 1) return;
    for (int i = 0; i < team->size; i++) team->seconds[i] = team_seconds_of(team, i);
    bool moved = tdm_balance_observe(team->balance, team->seconds, team->next_first);
    int slow = tdm_balance_straggler(team->balance, &out->slow_factor);
    if (slow >= 0) out->straggler = team->layout->rank_of_place[slow];
    if (!moved) return;
    out->moved = team->balance_kind == TDM_JOB_BALANCE_FEEDBACK;
    if (out->moved) {
        team_move_lanes(team);
        return;
    }
    for (int i = 0; i <= team->size; i++) /* observations refer to the current placement */
        team->next_first[i] = team->first[i] / team->unit_lanes;
}

void tdm__team_point(const tdm_team *team, const char *phase, uint64_t part)
{
    if (!team->tested) return;
    int rank = team->layout->rank_of_place[team->place];
    tdm_os_test_point(&(tdm_test_point){phase, team->in.step + 1, rank, part});
}

static tdm_status step_finish(tdm_team *team, tdm_step_result *out, tdm_error *err)
{
    tdm__team_point(team, "reduce", 0);
    TDM_TRY(step_exchange(team, err));
    tdm__team_point(team, "reduce", 1);

    double begin = tdm_clock_s(), waited = team->wait_seconds;
    bool is_taken = true;
    for (int i = 0; i < team->size; i++) {
        is_taken = is_taken && team->notes[i].is_taken;
        out->requests |= team->notes[i].request;
        out->tally += team->notes[i].tally;
        out->payload_bytes += team->notes[i].payload_bytes;
        out->dense_bytes += team->notes[i].dense_bytes;
        if (team->notes[i].codec_seconds > out->codec_seconds)
            out->codec_seconds = team->notes[i].codec_seconds;
    }

    bool in_safe_range = true;
    for (int i = 0; i < team->size; i++)
        in_safe_range = in_safe_range && team->notes[i].in_safe_range;
    if (!tdm__tree_loss(team, 1, &out->loss)) out->loss = (double)NAN;
    if (team->in.order) out->loss /= (double)team->in.inner_count;
    team->bad_element = SIZE_MAX;
    out->finite = isfinite(out->loss) && is_taken;
    if (team->undo_log->is_derived)
        out->finite = out->finite && in_safe_range; /* of all replicas */
    else if (out->finite)
        TDM_TRY(team->in.order ? tdm__order_find_bad(team, &team->bad_element, err)
                               : tdm__update_find_bad(team, &team->bad_element, err));
    if (team->bad_element != SIZE_MAX) out->finite = false;
    if (out->finite && team->in.before_update) team->in.before_update(team->in.user);
    if (out->finite)
        TDM_TRY(team->in.order               ? tdm__order_update_run(team, out, err)
                : team->undo_log->is_derived ? tdm__update_mark(team, out, err)
                                             : tdm__update_run(team, out, err));
    team->update_seconds += tdm_clock_s() - begin - (team->wait_seconds - waited);
    tdm__team_mark(team, "update", begin);

    tdm__team_point(team, "publish", 0);
    begin = tdm_clock_s();
    if (out->finite)
        TDM_TRY(tdm__params_publish(team->options.store,
                                    team->buckets ? tdm__buckets_order(team) : NULL,
                                    team->job->parallel.overlap, err));
    team->wait_seconds += tdm_clock_s() - begin;

    TDM_TRY(tdm__undo_write_begin(team->undo_log, err));
    if (out->finite) tdm__replicas_commit(team);
    uint64_t last = team->in.step + (team->in.order ? (uint64_t)team->in.inner_count - 1 : 0);
    tdm__undo_step_finish(team->undo_log, last, out->finite);
    tdm__undo_write_end(team->undo_log);

    team_balance(team, out);
    team_count_ranks(team); /* with the new placement */
    return TDM_OK;
}

void tdm__team_mark(const tdm_team *team, const char *name, double begin_s)
{
    if (!team->options.comm) return;
    tdm_comm_mark(team->options.comm, name, (uint64_t)((tdm_clock_s() - begin_s) * 1e9));
}

tdm_status tdm_team_step(tdm_team *team, const tdm_step_input *in, tdm_step_result *out,
                         tdm_error *err)
{
    tdm_step_result result = {.loss = (double)NAN, .straggler = -1};
    double begin = tdm_clock_s();
    int64_t rows = in->batch > 0 ? tdm_lane_slice(in->batch, team->slice_count, 0).count : 0;
    if (tdm__team_find_graph(team, in->batch, rows) < 0)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "team: a batch of %lld rows is not one of the configured batch sizes",
                        (long long)in->batch);
    team->in = *in;
    tdm_optimiser_begin(team->options.optimiser, in->step, in->lr);
    tdm_kernel_mode before = tdm_kernel_enter(team->thread_count);
    tdm_status status = tdm__team_run_lanes(team, err);
    if (status == TDM_OK) status = step_finish(team, &result, err);
    if (status == TDM_OK) tdm__live_finish(team);
    tdm_kernel_leave(&before);
    tdm__team_mark(team, "step", begin);
    if (status == TDM_OK) *out = result;
    return status;
}

/* ---- the plan cache ---------------------------------------------------------------------------- */

tdm_plan_cache *tdm_plan_cache_create(void)
{
    return calloc(1, sizeof(tdm_plan_cache));
}

static void plan_cache_clear(tdm_plan_cache *plan_cache)
{
    for (size_t i = 0;
         plan_cache->plans && i < (size_t)plan_cache->max_made * (size_t)plan_cache->graph_count;
         i++)
        tdm_plan_destroy(plan_cache->plans[i]);
    for (int i = 0; plan_cache->arenas && i < plan_cache->max_made; i++)
        tdm_pages_unmap(&plan_cache->arenas[i]);
    for (int i = 0; i < plan_cache->graph_count; i++)
        tdm_graph_destroy(plan_cache->graphs[i].graph);
    free(plan_cache->plans);
    free(plan_cache->arenas);
    *plan_cache = (tdm_plan_cache){0};
}

void tdm_plan_cache_destroy(tdm_plan_cache *plan_cache)
{
    if (!plan_cache) return;
    plan_cache_clear(plan_cache);
    free(plan_cache);
}

/* Keeps the graphs; plans depend on the number of threads. */
static void plan_cache_drop_plans(tdm_plan_cache *plan_cache)
{
    for (size_t i = 0;
         plan_cache->plans && i < (size_t)plan_cache->max_made * (size_t)plan_cache->graph_count;
         i++) {
        tdm_plan_destroy(plan_cache->plans[i]);
        plan_cache->plans[i] = NULL;
    }
    for (int i = 0; plan_cache->arenas && i < plan_cache->max_made; i++)
        tdm_pages_unmap(&plan_cache->arenas[i]);
}

static void plan_cache_take(tdm_team *team, tdm_plan_cache *plan_cache)
{
    if (plan_cache->thread_count != team->thread_count) plan_cache_drop_plans(plan_cache);
    memcpy(team->graphs, plan_cache->graphs, sizeof(team->graphs));
    team->graph_count = plan_cache->graph_count;
    team->max_made = plan_cache->max_made;
    team->plans = plan_cache->plans;
    team->arenas = plan_cache->arenas;
    *plan_cache = (tdm_plan_cache){0};
}

static void plan_cache_give(tdm_team *team, tdm_plan_cache *plan_cache)
{
    memcpy(plan_cache->graphs, team->graphs, sizeof(team->graphs));
    plan_cache->graph_count = team->graph_count;
    plan_cache->max_made = team->max_made;
    plan_cache->plans = team->plans;
    plan_cache->arenas = team->arenas;
    plan_cache->thread_count = team->thread_count;
    team->plans = NULL;
    team->arenas = NULL;
    team->graph_count = team->max_made = 0;
}

/* ---- creation -------------------------------------------------------------------------------- */

static tdm_status team_build_graphs(tdm_team *team, tdm_error *err)
{
    for (int b = 0; b < TDM_TEAM_MAX_BATCHES; b++) {
        int64_t batch = team->options.batches[b];
        if (batch <= 0) continue;
        int64_t min = batch / team->slice_count;
        for (int64_t rows = min; rows <= min + (batch % team->slice_count != 0); rows++) {
            if (rows == 0 || tdm__team_find_graph(team, batch, rows) >= 0) continue;
            tdm_model_options m = tdm_model_of_lane(&team->options.model, rows, batch);
            tdm__lane_graph *g = &team->graphs[team->graph_count];
            TDM_TRY(tdm_model_build(&m, &g->graph, err));
            g->batch = batch;
            g->rows = rows;
            team->graph_count++;
        }
    }
    if (team->graph_count == 0) return tdm_fail(err, TDM_ERR_INVALID, "team: no batch size is set");
    const tdm_graph *graph = team->graphs[0].graph;
    team->trained_extent = tdm_graph_trained_extent(graph);
    team->grad_extent = tdm_graph_grad_extent(graph);
    team->block_extent = (team->grad_extent + TDM__CELL - 1) / TDM__CELL * TDM__CELL;
    return TDM_OK;
}

/* The plans and the arena for concurrent lane `index`. */
static tdm_status team_prepare_plans(tdm_team *team, int index, tdm_error *err)
{
    tdm_plan_options options = tdm_model_plan_options(&team->options.model);
    tdm_plan **plans = team->plans + (size_t)index * (size_t)team->graph_count;
    size_t arena_bytes = 64;
    for (int i = 0; i < team->graph_count; i++) {
        if (!plans[i]) TDM_TRY(tdm_plan_create(team->graphs[i].graph, &options, &plans[i], err));
        if (tdm_plan_arena_bytes(plans[i]) > arena_bytes)
            arena_bytes = tdm_plan_arena_bytes(plans[i]);
    }
    if (!team->arenas[index].data)
        TDM_TRY(tdm_pages_map(arena_bytes, false, &team->arenas[index], err));
    for (int i = 0; i < team->graph_count; i++)
        tdm_plan_bind(plans[i], TDM_SPACE_ARENA, team->arenas[index].data);
    return TDM_OK;
}

static size_t plan_count_lane_sums(const tdm_plan *plan)
{
    size_t count = 0;
    for (size_t s = 0; s < tdm_plan_step_count(plan); s++)
        count += tdm_plan_lane_sum_at(plan, s, NULL);
    return count;
}

/* Lists the steps of each graph's plan that sum over lanes. */
static tdm_status team_list_lane_sums(tdm_team *team, tdm_error *err)
{
    tdm__meeting *m = &team->meeting;
    m->count = plan_count_lane_sums(team->plans[0]);
    if (m->count == 0) return TDM_OK;
    m->elements = calloc(m->count, sizeof(*m->elements));
    if (!m->elements) return tdm_fail_oom(err, "for the team");
    for (int g = 0; g < team->graph_count; g++) {
        size_t k = 0, sums = plan_count_lane_sums(team->plans[g]);
        /* A lane with all rows of its batch has no other lane to sum with. */
        if (sums == 0 && team->graphs[g].rows == team->graphs[g].batch) continue;
        m->steps[g] = calloc(m->count, sizeof(*m->steps[g]));
        if (!m->steps[g]) return tdm_fail_oom(err, "for the team");
        if (sums != m->count ||
            tdm_plan_step_count(team->plans[g]) != tdm_plan_step_count(team->plans[0]))
            return tdm_fail(
                err, TDM_ERR_UNSUPPORTED,
                "lanes of %lld and of %lld rows are computed in different steps, so they "
                "cannot run concurrently; set the batch to a multiple of the lanes",
                (long long)team->graphs[0].rows, (long long)team->graphs[g].rows);
        for (size_t s = 0; s < tdm_plan_step_count(team->plans[g]); s++) {
            tdm_tensor io;
            if (!tdm_plan_lane_sum_at(team->plans[g], s, &io)) continue;
            m->elements[k] = (size_t)tdm_tensor_elements(&io);
            if (m->elements[k] > m->row_elements) m->row_elements = m->elements[k];
            m->steps[g][k++] = s;
        }
    }
    return TDM_OK;
}

static int tree_levels(int64_t lane_count)
{
    int levels = 0;
    while ((INT64_C(1) << levels) < lane_count) levels++;
    return levels;
}

static tdm_status team_prepare_lane_sums(tdm_team *team, tdm_error *err)
{
    tdm__meeting *m = &team->meeting;
    size_t lanes = (size_t)team->options.lane_count;
    if (m->count == 0) return TDM_OK;
    m->row_elements = (m->row_elements + 15) / 16 * 16;
    size_t rows = (size_t)TDM_MAX_LANE_PARTS + 2 + (size_t)tree_levels(team->options.lane_count);
    m->tree = (tdm__tree){team->options.lane_count, calloc(2 * lanes, sizeof(*m->tree.held))};
    m->rows = aligned_alloc(64, rows * m->row_elements * sizeof(float));
    if (!m->tree.held || !m->rows) return tdm_fail_oom(err, "for the team");
    m->sum = m->rows + (size_t)TDM_MAX_LANE_PARTS * m->row_elements;
    m->levels = m->sum + m->row_elements;
    return TDM_OK;
}

/* Messages are needed with several nodes, with sharded gradients, and for reductions other than the
 * tree. Updates in order are made in the memory of each node (common.c). */
static bool team_needs_messages(const tdm_team *team)
{
    return team->size > 1 && !tdm_job_is_async(team->job) &&
           (team->layout->node_count > 1 || team->job->parallel.zero >= 2 ||
            team->job->parallel.reduce != TDM_JOB_REDUCE_TREE);
}

/* The maximum number of lanes a rank may ever execute, and of gradient buffers for them. */
static void team_find_max(const tdm_team *team, int64_t *lanes, int *buffers)
{
    int64_t lane_count = team->options.lane_count;
    tdm_slice mine = {team->first[team->place],
                      team->first[team->place + 1] - team->first[team->place]};
    bool overlaid = team_needs_messages(team) && team->job->parallel.zero >= 2;
    const tdm__replicas *replicas = tdm__params_replicas(team->options.store);
    *lanes = mine.count;
    if (replicas && replicas->is_ordered) { /* the gradients of all replicas are kept */
        bool moves = team->balance_kind == TDM_JOB_BALANCE_FEEDBACK;
        bool receives = team->layout->node_count > 1 && team->layout->leaders;
        *buffers = (int)(moves || receives ? replicas->count : mine.count / team->slice_count) +
                   tdm_lane_buffers(lane_count, (tdm_slice){0, team->slice_count});
        return;
    }
    if (overlaid) mine.count--; /* the last lane's gradient is never complete in memory */
    *buffers = tdm_lane_buffers(lane_count, mine);
    if (team->balance_kind != TDM_JOB_BALANCE_FEEDBACK || team->size == 1) return;
    *lanes = lane_count - team->size + 1;
    *buffers = 2 * tree_levels(lane_count) +
               1; /* for any range of lanes; touched only when needed */
    if (*buffers > *lanes) *buffers = (int)*lanes;
}

/* Grows the arrays of plans and arenas to `count` concurrent lanes. */
static tdm_status team_reserve_lanes(tdm_team *team, int count, tdm_error *err)
{
    size_t graphs = (size_t)team->graph_count;
    if (count <= team->max_made) return TDM_OK;
    tdm_plan **plans = calloc((size_t)count * graphs, sizeof(*plans));
    tdm_pages *arenas = calloc((size_t)count, sizeof(*arenas));
    if (!plans || !arenas) {
        free(plans);
        free(arenas);
        return tdm_fail_oom(err, "for the team");
    }
    if (team->max_made > 0) {
        memcpy(plans, team->plans, (size_t)team->max_made * graphs * sizeof(*plans));
        memcpy(arenas, team->arenas, (size_t)team->max_made * sizeof(*arenas));
    }
    free(team->plans);
    free(team->arenas);
    team->plans = plans;
    team->arenas = arenas;
    team->max_made = count;
    return TDM_OK;
}

static tdm_status team_prepare_lanes(tdm_team *team, tdm_error *err)
{
    size_t lanes = (size_t)team->options.lane_count;
    int64_t max_lanes;
    /* The first lane's plans show whether lanes must run concurrently. */
    TDM_TRY(team_reserve_lanes(team, 1, err));
    tdm_plan_options options = tdm_model_plan_options(&team->options.model);
    for (int i = 0; i < team->graph_count; i++)
        if (!team->plans[i])
            TDM_TRY(tdm_plan_create(team->graphs[i].graph, &options, &team->plans[i], err));

    TDM_TRY(team_list_lane_sums(team, err));
    TDM_TRY(team_prepare_lane_sums(team, err));
    team_find_max(team, &max_lanes, &team->buffer_count);
    team->side_by_side = team->meeting.count > 0;
    team->max_run = team->side_by_side ? (int)max_lanes : 1;
    if (team->side_by_side) team->buffer_count = (int)max_lanes;
    TDM_TRY(team_reserve_lanes(team, team->max_run, err));

    team->run = calloc((size_t)team->max_run, sizeof(*team->run));
    team->absent = calloc(lanes, sizeof(*team->absent));
    team->free_grads = calloc((size_t)team->buffer_count + 1, sizeof(*team->free_grads));
    team->tree = (tdm__tree){team->options.lane_count, calloc(2 * lanes, sizeof(float *))};
    team->losses = calloc(2 * lanes, sizeof(*team->losses));
    team->has_loss = calloc(2 * lanes, sizeof(*team->has_loss));
    team->parts = calloc(TDM_MAX_LANE_PARTS, sizeof(*team->parts));
    team->scratch_elements = (size_t)(2 + tree_levels(team->options.lane_count)) * TDM__CELL;
    team->scratch = aligned_alloc(64, (size_t)team->thread_count * team->scratch_elements *
                                          sizeof(float));
    if (!team->run || !team->absent || !team->free_grads || !team->tree.held || !team->losses ||
        !team->has_loss || !team->parts || !team->scratch)
        return tdm_fail_oom(err, "for the team");

    for (int i = 0; i < team->max_run; i++) TDM_TRY(team_prepare_plans(team, i, err));
    return TDM_OK;
}

/* ---- placement -------------------------------------------------------------------------------- */

/* From parallel.weights, or from the number of CPUs of each rank. */
static tdm_status team_find_weights(tdm_team *team, tdm_error *err)
{
    const tdm_job_int_list *list = &team->job->parallel.weights;
    if (team->balance_kind != TDM_JOB_BALANCE_WEIGHTS) return TDM_OK;
    team->weights = calloc((size_t)team->size, sizeof(*team->weights));
    if (!team->weights) return tdm_fail_oom(err, "for the team");
    if (list->count > 0 && list->count != (size_t)team->size)
        return tdm_fail(err, TDM_ERR_JOB_INVALID,
                        "parallel.weights has %zu numbers, but there are %d ranks; give one per "
                        "rank, or none to use their number of CPUs",
                        list->count, team->size);
    for (int i = 0; i < team->size && list->count > 0; i++)
        team->weights[i] = (double)list->values[team->layout->rank_of_place[i]];
    if (list->count > 0) return TDM_OK;
    tdm_cpu_info cpu;
    tdm_os_cpu_info(&cpu);
    double mine = cpu.usable_count > 0 ? (double)cpu.usable_count : 1.0;
    if (team->size == 1) {
        team->weights[0] = mine;
        return TDM_OK;
    }
    return tdm_group_all_gather(team->group, &mine, team->weights, (size_t)team->size,
                                TDM_DTYPE_F64, err);
}

/* The state of a replica is in the memory of one host. A host may join at any time, so this is not an error. */
static tdm_job_balance team_find_balance(const tdm_team *team, const tdm__replicas *replicas)
{
    tdm_job_balance kind = (tdm_job_balance)team->job->parallel.balance;
    if (!replicas || replicas->is_ordered || team->layout->node_count == 1 ||
        kind == TDM_JOB_BALANCE_OFF)
        return kind;
    if (team->place == 0)
        tdm_log(TDM_LOG_WARN, "parallel",
                "parallel.balance moves replicas within one host only, and these ranks are on %d "
                "hosts, so each has an equal share of the replicas",
                team->layout->node_count);
    return TDM_JOB_BALANCE_OFF;
}

static tdm_status team_place_lanes(tdm_team *team, tdm_error *err)
{
    size_t size = (size_t)team->size;
    team->first = calloc(size + 1, sizeof(*team->first));
    team->next_first = calloc(size + 1, sizeof(*team->next_first));
    team->seconds = calloc(size, sizeof(*team->seconds));
    team->notes = calloc(size, sizeof(*team->notes));
    team->ranks = calloc(size, sizeof(*team->ranks));
    const tdm__replicas *replicas = tdm__params_replicas(team->options.store);
    team->unit_lanes = replicas ? team->options.lane_count / replicas->count : 1;
    int64_t units = team->options.lane_count / team->unit_lanes;
    team->balance = tdm_balance_create(units, team->size);
    if (!team->first || !team->next_first || !team->seconds || !team->notes || !team->ranks ||
        !team->balance)
        return tdm_fail_oom(err, "for the team");
    team->balance_kind = team_find_balance(team, replicas);
    TDM_TRY(team_find_weights(team, err));
    tdm_place_lanes(units, team->size, team->weights, team->next_first);
    team_move_lanes(team);
    for (int i = 0; i < team->size; i++) {
        tdm_team_rank *r = &team->ranks[team->layout->rank_of_place[i]];
        r->lanes = team_lanes_of(team, i);
        if (team->options.comm)
            r->host = tdm_comm_host_of(team->options.comm, team->layout->rank_of_place[i]);
    }
    return TDM_OK;
}

static void team_read_test_options(tdm_team *team)
{
    team->slow_factor = tdm_os_test_slow_factor(team->layout->rank_of_place[team->place]);
    team->tested = tdm_os_test_has_points();
}

static tdm_status team_check_options(const tdm_team_options *o, tdm_error *err)
{
    int size = o->comm ? tdm_comm_size(o->comm) : 1;
    if (o->lane_count < 1 || o->lane_count > TDM_MAX_LANES ||
        (o->lane_count & (o->lane_count - 1)) != 0)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "team: invalid number of lanes %lld; it must be a power of two up to %d",
                        (long long)o->lane_count, TDM_MAX_LANES);
    if (size > o->lane_count && !tdm_job_is_async(o->model.job))
        return tdm_fail(
            err, TDM_ERR_JOB_INVALID,
            "%d ranks cannot share %lld lanes: each executes at least one; use between 1 and %lld "
            "ranks, or set parallel.lanes higher (which changes the result)",
            size, (long long)o->lane_count, (long long)o->lane_count);
    return tdm__replicas_check(o->model.job, err);
}

static tdm_status team_prepare(tdm_team *team, tdm_error *err)
{
    TDM_TRY(team_build_graphs(team, err));
    if (team->size > 1)
        TDM_TRY(tdm_group_create(team->layout->comm, team->layout->rank_of_place, team->size,
                                 &team->group, err));
    TDM_TRY(team_place_lanes(team, err));
    team_read_test_options(team);
    TDM_TRY(team_prepare_lanes(team, err));
    TDM_TRY(tdm_prefetch_create(team->options.store, TDM_BLOCK_PARAMS, team->plans,
                                team->max_run * team->graph_count, &team->prefetch, err));
    TDM_TRY(tdm__replica_run_create(team, err));
    TDM_TRY(team_needs_messages(team) ? tdm__buckets_create(team, err)
                                      : tdm__common_create(team, err));
    TDM_TRY(tdm__live_create(team, err));
    return tdm__update_create(team, err);
}

tdm_status tdm_team_create(const tdm_team_options *options, tdm_team **out, tdm_error *err)
{
    TDM_TRY(team_check_options(options, err));
    tdm_team *team = calloc(1, sizeof(*team));
    if (!team) return tdm_fail_oom(err, "for the team");
    team->options = *options;
    team->job = options->model.job;
    team->slice_count = options->lane_count;
    if (tdm_job_is_async(team->job)) team->options.lane_count = tdm_tree_lanes_of(team->job);
    team->layout = tdm__params_layout(options->store);
    team->undo_log = tdm__params_undo_log(options->store);
    team->size = team->layout->size;
    team->place = team->layout->place;
    team->thread_count = tdm_model_threads(&options->model);
    team->bad_element = SIZE_MAX;
    team->lowest_node = 1;
    atomic_init(&team->overflow_risk, false);
    if (options->plan_cache) plan_cache_take(team, options->plan_cache);
    tdm_status status = team_prepare(team, err);
    if (status != TDM_OK) {
        tdm_team_destroy(team);
        return status;
    }
    *out = team;
    return TDM_OK;
}

static void team_release_lanes(tdm_team *team)
{
    tdm_plan_cache rest = {0};
    tdm_plan_cache *plan_cache = team->options.plan_cache ? team->options.plan_cache : &rest;
    plan_cache_give(team, plan_cache);
    plan_cache_clear(&rest);
    for (int g = 0; g < TDM__MAX_GRAPHS; g++) free(team->meeting.steps[g]);
    free(team->meeting.elements);
    free(team->meeting.tree.held);
    free(team->meeting.rows);
    free(team->run);
    free(team->absent);
    free(team->free_grads);
    free(team->tree.held);
    free(team->losses);
    free(team->has_loss);
    free(team->parts);
    free(team->scratch);
}

void tdm_team_destroy(tdm_team *team)
{
    if (!team) return;
    tdm__live_destroy(team);
    tdm__buckets_destroy(team);
    tdm__common_destroy(team);
    tdm__replica_run_destroy(team);
    tdm_prefetch_destroy(team->prefetch);
    if (team->group) tdm_group_destroy(team->group);
    team_release_lanes(team);
    tdm_balance_destroy(team->balance);
    free(team->weights);
    free(team->first);
    free(team->next_first);
    free(team->seconds);
    free(team->notes);
    free(team->ranks);
    free(team->own);
    free(team);
}

/* ---- queries ----------------------------------------------------------------------------------- */

tdm_team_info tdm_team_info_of(const tdm_team *team)
{
    tdm_team_info info = {.rank_count = team->size, .lane_count = team->slice_count};
    for (int i = 0; i < team->max_made; i++) info.arena_bytes += team->arenas[i].bytes;
    info.grad_bytes = (size_t)team->buffer_count * team->block_extent * sizeof(float);
    if (team->buckets) {
        info.grad_bytes += tdm__buckets_bytes(team);
        info.bucket_bytes = tdm__buckets_size(team);
    }
    const tdm__lane_graph *g = &team->graphs[0];
    uint64_t flops = 0;
    for (size_t n = 0; n < tdm_graph_node_count(g->graph); n++)
        flops += tdm_graph_node_at(g->graph, n).flops;
    info.flops_per_row = flops / (uint64_t)g->rows;
    return info;
}

tdm_slice tdm_team_rows_of(const tdm_team *team, int64_t batch)
{
    int64_t first = team->first[team->place], last = team->first[team->place + 1] - 1;
    tdm_slice a = tdm_lane_slice(batch, team->slice_count, first);
    tdm_slice b = tdm_lane_slice(batch, team->slice_count, last);
    return (tdm_slice){.first = a.first, .count = b.first + b.count - a.first};
}

void tdm_team_rank_of(const tdm_team *team, int rank, tdm_team_rank *out)
{
    *out = team->ranks[rank];
}
