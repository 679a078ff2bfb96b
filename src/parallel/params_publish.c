/*
 * params_publish.c: distributes new parameters.
 *
 * Within a node this is a barrier: there is one copy. Between nodes the leaders gather each bucket in
 * place, from the nodes that have updated parts of it, in the background. A leader notices the end of a gather when
 * it tests the request; it then writes the version to the board, which the other ranks of its node
 * poll. They poll for at most the deadline of a call, and stop if a peer is lost.
 *
 * For sharded blocks nothing is distributed: their prefetches gather what they need (prefetch.c).
 */
#include "base/base.h"
#include "base/timing.h"
#include "comm/comm.h"
#include "parallel/params_inner.h"
#include "parallel/replicas.h"

#include <sched.h>
#include <time.h>

enum { SPINS = 2000 };

static bool params_must_gather(const tdm_params *store)
{
    return store->layout->node_count > 1 && !store->layout->common &&
           store->blocks[TDM_BLOCK_PARAMS].whole;
}

/* ---- the leader ------------------------------------------------------------------------------ */

static tdm_status bucket_finish(tdm_params *store, size_t bucket, tdm_error *err)
{
    tdm_request *request = store->pending[bucket];
    store->pending[bucket] = NULL;
    store->pending_count--;
    tdm_status status = tdm_request_wait(request, err);
    if (store->pending_count == 0) tdm__undo_gather_end(store->undo_log);
    if (!store->board) return status;
    if (status == TDM_OK)
        store->board->marks[bucket] = store->published;
    else
        store->board->failed = 1;
    return status;
}

/* Tests all pending requests, so that the other ranks of the node see the progress. */
static tdm_status params_poll(tdm_params *store, tdm_error *err)
{
    for (size_t i = 0; i < store->layout->bucket_count && store->pending_count > 0; i++)
        if (store->pending[i] && tdm_request_test(store->pending[i]))
            TDM_TRY(bucket_finish(store, i, err));
    return TDM_OK;
}

static tdm_status bucket_start(tdm_params *store, size_t bucket, int priority, tdm_error *err)
{
    const tdm__layout *layout = store->layout;
    tdm_extent what = tdm__cells_extent(layout, tdm__layout_bucket(layout, bucket));
    tdm_call call = {.kind = TDM_CALL_ALL_GATHER,
                     .dtype = TDM_DTYPE_F32,
                     .count = what.count,
                     .out = store->blocks[TDM_BLOCK_PARAMS].data + what.first,
                     .cuts = store->leader_cuts + bucket * ((size_t)layout->node_count + 1),
                     .priority = priority};
    if (store->pending_count == 0) TDM_TRY(tdm__undo_gather_begin(store->undo_log, err));
    TDM_TRY(tdm_call_start(layout->leaders, &call, &store->pending[bucket], err));
    store->pending_count++;
    return TDM_OK;
}

/* ---- the other ranks of a node ---------------------------------------------------------------- */

static bool bucket_has_arrived(const tdm_params *store, size_t bucket)
{
    return store->board->marks[bucket] >= store->published;
}

/* Fails if a bucket cannot arrive any more. */
static tdm_status params_check_leader(const tdm_params *store, double since_s, tdm_error *err)
{
    const tdm__layout *layout = store->layout;
    TDM_TRY(tdm_group_check(layout->world, err));
    TDM_TRY(tdm_group_check(layout->mine, err));
    int leader = layout->rank_of_place[layout->first_of_node[layout->node]];
    if (store->board->failed)
        return tdm_fail(err, TDM_ERR_PEER_FAILED,
                        "rank %d could not receive the new parameters from the other hosts",
                        leader);
    if (tdm_comm_peer_state(layout->comm, leader) != TDM_PEER_WELL)
        return tdm_fail(err, TDM_ERR_PEER_FAILED,
                        "rank %d, which receives new parameters for this host, is lost", leader);
    double limit_s = tdm_comm_deadline_s(layout->comm);
    if (tdm_clock_s() - since_s <= limit_s) return TDM_OK;
    return tdm_fail(err, TDM_ERR_PEER_TIMEOUT,
                    "rank %d did not receive the new parameters for this host within %g s", leader,
                    limit_s);
}

static tdm_status bucket_await_leader(const tdm_params *store, size_t bucket, tdm_error *err)
{
    for (int i = 0; i < SPINS; i++) {
        if (bucket_has_arrived(store, bucket)) return TDM_OK;
        sched_yield();
    }
    double since_s = tdm_clock_s(), checked_s = 0;
    while (!bucket_has_arrived(store, bucket)) {
        double now_s = tdm_clock_s();
        if (now_s - checked_s >= TDM__TIMING_PARALLEL_LEADER_CHECK_S) {
            TDM_TRY(params_check_leader(store, since_s, err));
            checked_s = now_s;
        }
        tdm_clock_sleep(TDM__TIMING_PARALLEL_BUCKET_CHECK_S);
    }
    return TDM_OK;
}

/* ---- all ranks -------------------------------------------------------------------------------- */

bool tdm__params_is_pending(tdm_params *store)
{
    if (store->leads) return store->pending_count > 0;
    if (store->arrived == store->published) return false;
    for (size_t i = 0; i < store->layout->bucket_count; i++)
        if (!bucket_has_arrived(store, i)) return true;
    store->arrived = store->published;
    return false;
}

tdm_status tdm__params_is_ready(tdm_params *store, size_t bucket, bool *out, tdm_error *err)
{
    if (store->leads) {
        if (store->pending_count > 0) TDM_TRY(params_poll(store, err));
        *out = !store->pending || !store->pending[bucket];
    } else {
        *out = bucket_has_arrived(store, bucket);
    }
    return TDM_OK;
}

tdm_status tdm__params_await(tdm_params *store, size_t bucket, tdm_error *err)
{
    if (!store->leads) return bucket_await_leader(store, bucket, err);
    if (store->pending_count == 0) return TDM_OK;
    TDM_TRY(params_poll(store, err));
    return store->pending[bucket] ? bucket_finish(store, bucket, err) : TDM_OK;
}

tdm_status tdm__params_await_all(tdm_params *store, tdm_error *err)
{
    if (!tdm__params_is_pending(store)) return TDM_OK;
    for (size_t i = 0; i < store->layout->bucket_count; i++)
        TDM_TRY(tdm__params_await(store, i, err));
    return TDM_OK;
}

tdm_status tdm__params_serve(tdm_params *store, tdm_error *err)
{
    return store->leads && store->board ? tdm__params_await_all(store, err) : TDM_OK;
}

tdm_status tdm__params_publish(tdm_params *store, const size_t *order, bool overlap, tdm_error *err)
{
    const tdm__layout *layout = store->layout;
    bool gathers = params_must_gather(store);
    if (gathers)
        TDM_TRY(tdm__params_await_all(store, err)); /* buckets that no rank has waited for */
    store->version++;
    if (gathers) store->published = store->version;
    if (!store->blocks[TDM_BLOCK_PARAMS].whole) return TDM_OK;
    /* Updates in order are complete when all nodes have made them: then the loss of a host loses none. */
    tdm_group *group = store->replicas && store->replicas->is_ordered ? layout->world
                                                                      : layout->mine;
    if (group) TDM_TRY(tdm_group_barrier(group, err));
    if (!gathers) return TDM_OK;
    for (size_t i = 0; layout->leaders && i < layout->bucket_count; i++)
        TDM_TRY(bucket_start(store, order ? order[i] : i, (int)i, err));
    return overlap ? TDM_OK : tdm__params_await_all(store, err);
}
