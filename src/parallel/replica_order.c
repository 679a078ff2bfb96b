/*
 * replica_order.c: sync.kind server: the gradients of the updates of a step.
 *
 * The contribution of a replica is the gradient of a batch, computed from the model that the replica has read before.
 * Contributions are not added: each of them is one update (update_order.c).
 */
#include "parallel/replica_run.h"

#include <math.h>
#include <string.h>

/* Copies the arrays that this step does not write to the version that will be current. The model is copied after the
 * update that the replica reads. */
static tdm_status replica_carry_over(tdm_team *team, int64_t replica, bool reads, bool contributes,
                                     tdm_error *err)
{
    const tdm__replicas *replicas = team->replicas->replicas;
    int version = replicas->current[replica];
    TDM_TRY(tdm__undo_write_begin(team->undo_log, err));
    tdm__replica_write_begin(replicas, replica);
    for (int k = 0; k < replicas->array_count; k++)
        if (k == 0 ? !reads : !contributes)
            memcpy(tdm__replica_array(replicas, replica, 1 - version, k),
                   tdm__replica_array(replicas, replica, version, k),
                   replicas->elements * sizeof(float));
    tdm__undo_write_end(team->undo_log);
    return TDM_OK;
}

/* Statistics are not inputs of training. Buffers never change. */
void tdm__replica_load_read(tdm_team *team, int64_t replica)
{
    const tdm__replica_run *run = team->replicas;
    const float *model = tdm_params_block(team->options.store, TDM_BLOCK_PARAMS);
    size_t rest = team->grad_extent;
    memcpy(run->model,
           tdm__replica_array(run->replicas, replica, run->replicas->current[replica], 0),
           team->trained_extent * sizeof(float));
    memcpy(run->model + rest, model + rest, (team->layout->elements - rest) * sizeof(float));
}

/* Computes the gradient of update `index`, by the replica of this rank that makes it. */
static tdm_status replica_contribute(tdm_team *team, int64_t index, tdm_error *err)
{
    const tdm_step_input in = team->in;
    int64_t replica = in.order[index].worker;
    tdm_inner_step step = {.step = in.step};
    float *sum = NULL;
    in.inner(in.user, index, &step);
    team->in.batch = step.batch;
    team->key_step = step.step;
    tdm__replica_load_read(team, replica);
    TDM_TRY(tdm__replica_run_lanes(team, replica, &sum, err));
    team->in.batch = in.batch;
    if (!sum)
        return tdm_fail(err, TDM_ERR_INTERNAL, "update %llu has no samples",
                        (unsigned long long)step.step + 1);
    if (team->replicas->compress && tdm__replica_is_finite(team, sum)) {
        TDM_TRY(tdm__undo_write_begin(team->undo_log, err));
        tdm_status status = tdm__compress_encode(team->replicas->compress, replica, sum, err);
        tdm__undo_write_end(team->undo_log);
        if (status == TDM_ERR_DIVERGED) sum[0] = NAN;
        if (status != TDM_OK && status != TDM_ERR_DIVERGED) return status;
    }
    tdm__team_point(team, "replica", (uint64_t)replica);
    if (!tdm__add_range(sum, NULL, team->grad_extent)) atomic_store(&team->overflow_risk, true);
    return TDM_OK;
}

tdm_status tdm__replicas_execute_ordered(tdm_team *team, tdm_error *err)
{
    tdm__replica_run *run = team->replicas;
    if (team->live) TDM_TRY(tdm__live_round(team, err));
    const tdm_order_entry *order = team->in.order;
    int64_t first = run->replicas->first[team->place], end = run->replicas->first[team->place + 1];
    uint64_t readers = 0, workers = 0;
    run->changed = tdm__order_changed(order, team->in.inner_count);
    for (int64_t i = 0; i < team->in.inner_count; i++) {
        readers |= order[i].readers;
        workers |= UINT64_C(1) << order[i].worker;
    }
    for (int64_t r = 0; r < run->replicas->count; r++)
        if ((run->changed >> r & 1) && tdm__replica_keeper(team->options.store, r) == team->place)
            TDM_TRY(replica_carry_over(team, r, readers >> r & 1, workers >> r & 1, err));
    for (int64_t i = 0; i < team->in.inner_count; i++)
        if (order[i].worker >= first && order[i].worker < end && !team->live)
            TDM_TRY(replica_contribute(team, i, err));
    return TDM_OK;
}
