/*
 * replica_run.c: a rank executes its replicas (replicas.h).
 *
 * Without replicas, a rank adds the gradients of its lanes as far up the tree as its lanes reach (run.c). With
 * replicas, it stops at the node of each replica, which it then replaces by the contribution of the replica:
 *
 *   sync.kind local   It is the change of a model that the replica has trained alone (replica_local.c).
 *   sync.kind gossip  There is none: neighbours exchange their models (replica_gossip.c).
 *   sync.kind server  It is the gradient of one update, from a model that the replica has read (replica_order.c).
 *   compress          It is encoded, with what earlier steps left over (compress.h).
 *
 * The contributions are added by the upper part of the same tree. So a round is executed, committed and recovered as
 * any step: if a rank dies, the round is repeated, or completed from the sums in shared memory.
 *
 * Invariants: a contribution, and the state of the replica after it, are functions of the model, of the state before,
 * and of the samples of the replica. The state is written to the version that is not current, so a step that fails or
 * is not finite changes nothing.
 */
#include "parallel/replica_run.h"
#include "base/base.h"
#include "job/job.h"
#include "nn/nn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- creation -------------------------------------------------------------------------------- */

/* Memory for the copy of the model, and for the states of its optimiser, if it has one. */
static tdm_status replica_run_make_model(tdm_team *team, tdm__replica_run *run, tdm_error *err)
{
    size_t stride = run->replicas->stride;
    int arrays = 0, first = run->replicas->is_gossip; /* behind the model of the replica */
    run->inner = team->options.inner;
    for (int k = 0; k < TDM_OPTIM_MAX_STATES; k++)
        run->state_arrays[k] = run->inner && tdm_optimiser_uses_state(run->inner, k)
                                   ? first + arrays++
                                   : -1;
    run->losses = calloc((size_t)team->options.lane_count, sizeof(*run->losses));
    if (!run->losses) return tdm_fail_oom(err, "for the replicas");
    TDM_TRY(tdm_pages_map((size_t)(1 + arrays) * stride * sizeof(float), false, &run->pages, err));

    run->model = run->pages.data;
    tdm_optim_blocks blocks = {.params = run->model};
    for (int k = 0; k < TDM_OPTIM_MAX_STATES; k++) {
        if (run->state_arrays[k] < 0) continue;
        run->states[k] = run->model + (size_t)(1 + run->state_arrays[k] - first) * stride;
        blocks.states[k] = run->states[k];
    }
    if (run->inner) tdm_optimiser_bind(run->inner, &blocks);
    for (int i = 0; i < team->max_run * team->graph_count; i++)
        tdm_plan_bind(team->plans[i], TDM_SPACE_PARAMS, run->model);
    return TDM_OK;
}

tdm_status tdm__replica_run_create(tdm_team *team, tdm_error *err)
{
    tdm__replicas *replicas = tdm__params_replicas(team->options.store);
    if (!replicas) return TDM_OK;
    tdm__replica_run *run = calloc(1, sizeof(*run));
    if (!run) return tdm_fail_oom(err, "for the replicas");
    team->replicas = run;
    run->replicas = replicas;
    run->lanes = team->options.lane_count / replicas->count;
    run->trains = team->options.inner != NULL;
    run->is_ordered = replicas->is_ordered;
    int arrays = run->is_ordered;
    for (int k = 0; k < TDM_OPTIM_MAX_STATES && run->trains; k++)
        arrays += tdm_optimiser_uses_state(team->options.inner, k);
    if (replicas->is_gossip) TDM_TRY(tdm__gossip_create(team, err));
    if (tdm_job_adapts_to_divergence(team->job)) {
        run->squares = calloc(team->layout->trained_cells + 1, sizeof(*run->squares));
        if (!run->squares) return tdm_fail_oom(err, "for the replicas");
    }
    if (run->trains || run->is_ordered) TDM_TRY(replica_run_make_model(team, run, err));
    return tdm__compress_create(team, replicas, arrays, &run->compress, err);
}

void tdm__replica_run_destroy(tdm_team *team)
{
    tdm__replica_run *run = team->replicas;
    if (!run) return;
    tdm__compress_destroy(run->compress);
    tdm__gossip_destroy(run->gossip);
    tdm_pages_unmap(&run->pages);
    free(run->losses);
    free(run->squares);
    free(run);
    team->replicas = NULL;
}

void tdm__replicas_use_model(tdm_team *team)
{
    const tdm__replica_run *run = team->replicas;
    if (!run || !run->model) return;
    memcpy(run->model, tdm_params_block(team->options.store, TDM_BLOCK_PARAMS),
           team->layout->elements * sizeof(float));
}

void tdm__replicas_commit(tdm_team *team)
{
    tdm__replica_run *run = team->replicas;
    if (!run) return;
    if (run->gossip) tdm__gossip_forget_mean(run->gossip);
    for (int64_t r = 0; r < run->replicas->count; r++) {
        if (run->is_ordered && !(run->changed >> r & 1)) continue;
        bool mine = tdm__replica_keeper(team->options.store, r) == team->place;
        if (run->is_ordered && mine)
            tdm__replica_write_end(run->replicas, r,
                                   team->in.step + (uint64_t)team->in.inner_count - 1);
        tdm__replica_flip(run->replicas, r);
    }
}

/* ---- the lanes of a replica -------------------------------------------------------------------- */

tdm_status tdm__replica_run_lanes(tdm_team *team, int64_t replica, float **out, tdm_error *err)
{
    const tdm__replica_run *run = team->replicas;
    int64_t first = replica * run->lanes, node = run->replicas->count + replica;
    for (int64_t l = first; l < first + run->lanes; l++)
        team->absent[l] = tdm__team_rows(team, l).count == 0;

    team->lowest_node = run->replicas->count;
    for (int64_t l = first; l < first + run->lanes; l++) {
        if (team->absent[l]) continue;
        tdm__team_set_up(team, 0, l, tdm__team_take_buffer(team, false));
        tdm__lane_plan_adds(team, &team->run[0], false);
        TDM_TRY(tdm__lanes_pass(team, 1, false, err));
    }
    team->lowest_node = 1;
    *out = team->tree.held[node];
    return TDM_OK;
}

bool tdm__replica_is_finite(const tdm_team *team, const float *sum)
{
    if (tdm__add_range((float *)(uintptr_t)sum, NULL, team->grad_extent)) return true;
    for (size_t i = 0; i < team->grad_extent; i++)
        if (!isfinite(sum[i])) return false;
    return true;
}

/* ---- a replica ---------------------------------------------------------------------------------- */

/* Whether the contributions follow from sums over all replicas. */
static bool replica_sums_first(const tdm_team *team)
{
    const tdm__replica_run *run = team->replicas;
    return run->compress && tdm__compress_sums_first(run->compress);
}

/* Writes the state of the replica after the step, and compresses its contribution. One that is not finite stays as it
 * is, so that the step changes nothing. */
static tdm_status replica_store(tdm_team *team, int64_t replica, float *sum, bool finite,
                                tdm_error *err)
{
    const tdm__replica_run *run = team->replicas;
    int version = 1 - run->replicas->current[replica];
    bool compresses = run->compress && !team->visit;
    bool encodes = compresses && (!sum || tdm__replica_is_finite(team, sum));
    tdm_status status = TDM_OK;
    if (compresses && !encodes) tdm__compress_fail(run->compress, replica);
    if (run->replicas->array_count == 0 && !encodes) return TDM_OK;
    TDM_TRY(tdm__undo_write_begin(team->undo_log, err));
    tdm__replica_write_begin(run->replicas, replica);
    if (run->gossip) tdm__gossip_save(team, replica, finite);
    for (int k = 0; k < TDM_OPTIM_MAX_STATES && run->trains; k++)
        if (run->state_arrays[k] >= 0)
            memcpy(tdm__replica_array(run->replicas, replica, version, run->state_arrays[k]),
                   run->states[k], run->replicas->elements * sizeof(float));
    if (encodes) status = tdm__compress_encode(run->compress, replica, sum, err);
    tdm__team_point(team, "replica", (uint64_t)replica);
    if (status == TDM_OK && !replica_sums_first(team))
        tdm__replica_write_end(run->replicas, replica, team->in.step);
    tdm__undo_write_end(team->undo_log);
    if (status != TDM_ERR_DIVERGED || !sum) return status;
    tdm__compress_fail(run->compress, replica); /* a residual became infinite */
    sum[0] = NAN;
    return TDM_OK;
}

/* Adds the contribution of a replica to those before it, as far up the tree as the replicas of this rank reach; only its
 * statistics, if the rest follows from sums over all replicas. */
static void replica_add(tdm_team *team, int64_t replica, float *sum)
{
    tdm__lane_run *r = &team->run[0];
    int64_t node = team->replicas->replicas->count + replica;
    size_t first = replica_sums_first(team) ? team->trained_extent : 0;
    size_t count = team->grad_extent - first;
    bool in_safe_range = !sum || tdm__add_range(sum + first, NULL, count);
    team->tree.held[node] = sum;
    r->add_count = 0;
    tdm__node_complete(team, r, node);
    for (int i = 0; i < r->add_count; i++)
        in_safe_range = tdm__add_range(r->adds[i].left + first, r->adds[i].right + first, count) &&
                        in_safe_range;
    if (!in_safe_range) atomic_store(&team->overflow_risk, true);
    tdm__lane_free_buffers(team, r);
}

static tdm_status replica_execute(tdm_team *team, int64_t replica, tdm_error *err)
{
    const tdm__replica_run *run = team->replicas;
    float *sum = NULL;
    bool finite = true;
    TDM_TRY(run->trains ? tdm__replica_train(team, replica, &finite, err)
                        : tdm__replica_run_lanes(team, replica, &sum, err));
    if (run->trains && !run->gossip) sum = tdm__replica_difference(team, finite);
    TDM_TRY(replica_store(team, replica, sum, finite, err));
    if (run->gossip) return TDM_OK;
    replica_add(team, replica, sum);
    return TDM_OK;
}

tdm_status tdm__replicas_execute(tdm_team *team, int64_t first, int64_t end, tdm_error *err)
{
    const tdm__replica_run *run = team->replicas;
    if (run->compress) tdm__compress_begin(run->compress);
    if (run->is_ordered) return tdm__replicas_execute_ordered(team, err);
    if (run->squares) TDM_TRY(tdm__replicas_measure_begin(team, err));
    if (run->gossip) TDM_TRY(tdm__gossip_mix(team, first / run->lanes, end / run->lanes, err));
    for (int64_t r = first / run->lanes; r < end / run->lanes; r++)
        TDM_TRY(replica_execute(team, r, err));
    if (run->trains) /* every replica contributes, even if a batch had no rows for it */
        memset(team->absent, 0, (size_t)team->options.lane_count * sizeof(*team->absent));
    bool compresses = run->compress && tdm__compress_is_active(run->compress);
    if (team->buckets) tdm__buckets_begin(team);
    if (team->buckets && run->gossip) tdm__buckets_skip(team);
    if (!compresses || (!team->buckets && !tdm__compress_sums_first(run->compress))) return TDM_OK;
    if (team->buckets) tdm__buckets_skip(team);
    return tdm__compress_exchange(run->compress, err);
}
