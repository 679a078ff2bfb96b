/*
 * params_move.c: reads and writes a parameter store through rank 0.
 *
 * A complete block is read from rank 0's memory, and written with one broadcast to the leaders of the nodes.
 * For a sharded block, each bucket is gathered from, or scattered to, the ranks that have a
 * share of the range in it. Elements behind the trained cells are on every rank, so they are read from
 * rank 0's copy, and written by a broadcast to all.
 *
 * Ranks agree on what is sent because all of them pass the same range. A range outside of the block
 * is rejected by all ranks, before anything is sent.
 */
#include "parallel/params_inner.h"
#include "parallel/replicas.h"

#include <math.h>
#include <string.h>

/* ---- ranges ---------------------------------------------------------------------------------- */

static tdm_status block_find(const tdm_params *store, int block, size_t first, size_t count,
                             const tdm__block **out, tdm_error *err)
{
    if (block < 0 || block >= TDM__MAX_BLOCKS || !store->blocks[block].data)
        return tdm_fail(err, TDM_ERR_NOT_FOUND, "the parameter store has no block %d", block);
    if (first > store->layout->elements || count > store->layout->elements - first)
        return tdm_fail(err, TDM_ERR_RANGE,
                        "elements %zu + %zu are outside of the block of %zu elements", first, count,
                        store->layout->elements);
    *out = &store->blocks[block];
    return TDM_OK;
}

/* The part of a range in a bucket; sets the cuts of the bucket, clipped to that part and relative to it. */
static tdm_extent range_clip(tdm_params *store, size_t bucket, size_t first, size_t count)
{
    const tdm__layout *layout = store->layout;
    tdm__cells cells = tdm__layout_bucket(layout, bucket);
    tdm_extent whole = tdm__cells_extent(layout, cells);
    size_t begin = first > whole.first ? first : whole.first;
    size_t end = whole.first + whole.count;
    if (first + count < end) end = first + count;
    if (begin >= end) return (tdm_extent){.first = begin};
    tdm__layout_cuts(layout, cells, store->cuts);
    for (int i = 0; i <= layout->size; i++) {
        size_t at = whole.first + store->cuts[i];
        store->clipped[i] = (at < begin ? begin : at > end ? end : at) - begin;
    }
    return (tdm_extent){.first = begin, .count = end - begin};
}

/* The part of [first, first + count) behind the trained elements. */
static tdm_extent range_behind(const tdm_params *store, size_t first, size_t count)
{
    size_t trained = store->layout->trained_elements;
    size_t begin = first > trained ? first : trained;
    return (tdm_extent){.first = begin, .count = first + count > begin ? first + count - begin : 0};
}

/* ---- reading and writing --------------------------------------------------------------------- */

static tdm_status block_gather(tdm_params *store, const tdm__block *block, size_t first,
                               size_t count, float *out, tdm_error *err)
{
    const tdm__layout *layout = store->layout;
    for (size_t i = 0; i < layout->bucket_count; i++) {
        tdm_extent part = range_clip(store, i, first, count);
        if (part.count == 0) continue;
        float *from = block->data + part.first + store->clipped[layout->place];
        tdm_call call = {.kind = TDM_CALL_GATHER,
                         .dtype = TDM_DTYPE_F32,
                         .count = part.count,
                         .in = from,
                         .out = out ? out + (part.first - first) : NULL,
                         .cuts = store->clipped};
        TDM_TRY(tdm_call_run(layout->world, &call, err));
        size_t mine = store->clipped[layout->place + 1] - store->clipped[layout->place];
        tdm__block_let_go(block, (tdm_extent){(size_t)(from - block->data), mine});
    }
    tdm_extent rest = range_behind(store, first, count);
    if (out && rest.count > 0)
        memcpy(out + (rest.first - first), block->data + rest.first, rest.count * sizeof(float));
    return TDM_OK;
}

/* ---- arrays of replicas ---------------------------------------------------------------------- */

/* Copies a range between rank 0 and the home of the replica. `in` NULL: to rank 0's `out`. */
static tdm_status replica_move(tdm_params *store, int block, tdm_extent range, const float *in,
                               float *out, bool writes, tdm_error *err)
{
    const tdm__layout *layout = store->layout;
    int64_t replica = 0;
    float *array = tdm__replica_block(store->replicas, block, &replica);
    if (!array)
        return tdm_fail(err, TDM_ERR_NOT_FOUND, "the parameter store has no block %d", block);
    size_t elements = store->replicas->elements;
    if (range.first > elements || range.count > elements - range.first)
        return tdm_fail(err, TDM_ERR_RANGE,
                        "elements %zu + %zu are outside of the block of %zu elements", range.first,
                        range.count, elements);
    array += range.first;
    if (layout->node_count == 1) {
        if (out && !writes) memcpy(out, array, range.count * sizeof(float));
        if (in && writes) memcpy(array, in, range.count * sizeof(float));
        return TDM_OK;
    }
    if (store->replicas->is_ordered) { /* every node has all replicas */
        if (out && !writes) memcpy(out, array, range.count * sizeof(float));
        if (in && writes) memcpy(array, in, range.count * sizeof(float));
        if (!writes || !layout->leaders) return TDM_OK;
        return tdm_group_broadcast(layout->leaders, array, range.count, TDM_DTYPE_F32, 0, err);
    }
    int home = tdm__replica_home(store, replica);
    for (int i = 0; i <= layout->size; i++) store->clipped[i] = i <= home ? 0 : range.count;
    tdm_call call = {.kind = writes ? TDM_CALL_SCATTER : TDM_CALL_GATHER,
                     .dtype = TDM_DTYPE_F32,
                     .count = range.count,
                     .in = writes ? in : array,
                     .out = writes ? array : out,
                     .cuts = store->clipped};
    return tdm_call_run(layout->world, &call, err);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

tdm_status tdm_params_read(tdm_params *store, int block, size_t first, size_t count, float *out,
                           tdm_error *err)
{
    const tdm__block *b = NULL;
    if (block >= TDM_BLOCK_REPLICA)
        return replica_move(store, block, (tdm_extent){first, count}, NULL, out, false, err);
    TDM_TRY(block_find(store, block, first, count, &b, err));
    if (!b->whole) return block_gather(store, b, first, count, out, err);
    if (!out || count == 0) return TDM_OK;
    if (block == TDM_BLOCK_PARAMS) TDM_TRY(tdm__params_await_all(store, err));
    memcpy(out, b->data + first, count * sizeof(float));
    tdm__block_let_go(b, (tdm_extent){first, count});
    return TDM_OK;
}

static tdm_status block_scatter(tdm_params *store, const tdm__block *block, size_t first,
                                size_t count, const float *in, tdm_error *err)
{
    const tdm__layout *layout = store->layout;
    for (size_t i = 0; i < layout->bucket_count; i++) {
        tdm_extent part = range_clip(store, i, first, count);
        if (part.count == 0) continue;
        float *to = block->data + part.first + store->clipped[layout->place];
        tdm_call call = {.kind = TDM_CALL_SCATTER,
                         .dtype = TDM_DTYPE_F32,
                         .count = part.count,
                         .in = in ? in + (part.first - first) : NULL,
                         .out = to,
                         .cuts = store->clipped};
        TDM_TRY(tdm_call_run(layout->world, &call, err));
        size_t mine = store->clipped[layout->place + 1] - store->clipped[layout->place];
        tdm__block_let_go(block, (tdm_extent){(size_t)(to - block->data), mine});
    }
    tdm_extent rest = range_behind(store, first, count);
    if (rest.count == 0) return TDM_OK;
    float *to = block->data + rest.first;
    if (in) memcpy(to, in + (rest.first - first), rest.count * sizeof(float));
    return tdm_group_broadcast(layout->world, to, rest.count, TDM_DTYPE_F32, 0, err);
}

static tdm_status block_write_whole(tdm_params *store, const tdm__block *b, size_t first,
                                    size_t count, const float *in, tdm_error *err)
{
    if (b == &store->blocks[TDM_BLOCK_PARAMS] && store->leads)
        TDM_TRY(tdm__params_await_all(store, err));
    if (in) memcpy(b->data + first, in, count * sizeof(float));
    tdm_group *leaders = store->layout->leaders;
    if (leaders)
        TDM_TRY(tdm_group_broadcast(leaders, b->data + first, count, TDM_DTYPE_F32, 0, err));
    if (store->leads) tdm__block_let_go(b, (tdm_extent){first, count});
    return TDM_OK;
}

tdm_status tdm_params_write(tdm_params *store, int block, size_t first, size_t count,
                            const float *in, tdm_error *err)
{
    const tdm__block *b = NULL;
    if (block < TDM_BLOCK_REPLICA) TDM_TRY(block_find(store, block, first, count, &b, err));
    if (count == 0) return TDM_OK;
    TDM_TRY(tdm__undo_write_begin(store->undo_log, err));
    tdm_status status = !b ? replica_move(store, block, (tdm_extent){first, count}, in, NULL, true,
                                          err)
                        : b->whole ? block_write_whole(store, b, first, count, in, err)
                                   : block_scatter(store, b, first, count, in, err);
    tdm__undo_write_end(store->undo_log);
    return status;
}

tdm_status tdm_params_settle(tdm_params *store, tdm_error *err)
{
    TDM_TRY(tdm__params_await_all(store, err));
    store->version++;
    return store->layout->world ? tdm_group_barrier(store->layout->world, err) : TDM_OK;
}

/* ---- non-finite values ----------------------------------------------------------------------- */

static size_t block_first_nonfinite(const tdm__block *block, tdm_extent where)
{
    const float *data = block->data + where.first;
    for (size_t i = 0; i < where.count; i++)
        if (!isfinite(data[i])) return where.first + i;
    tdm__block_let_go(block, where);
    return SIZE_MAX;
}

/* The lowest index that any rank found. */
static tdm_status element_agree(const tdm__layout *layout, size_t found, size_t *out,
                                tdm_error *err)
{
    int64_t min = found > INT64_MAX ? INT64_MAX : (int64_t)found;
    if (layout->world)
        TDM_TRY(
            tdm_group_all_reduce(layout->world, &min, &min, 1, TDM_DTYPE_I64, TDM_REDUCE_MIN, err));
    *out = min == INT64_MAX ? SIZE_MAX : (size_t)min;
    return TDM_OK;
}

static tdm_status replica_find_bad(const tdm_params *store, int block, size_t *out, tdm_error *err)
{
    int64_t replica = 0;
    size_t found = SIZE_MAX;
    const float *array = tdm__replica_block(store->replicas, block, &replica);
    bool mine = array && tdm__replica_home(store, replica) == store->layout->place;
    for (size_t i = 0; mine && i < store->replicas->elements && found == SIZE_MAX; i++)
        if (!isfinite(array[i])) found = i;
    return element_agree(store->layout, found, out, err);
}

tdm_status tdm_params_find_bad(tdm_params *store, int block, size_t *out, tdm_error *err)
{
    const tdm__layout *layout = store->layout;
    const tdm__block *b = NULL;
    size_t found = SIZE_MAX;
    if (block >= TDM_BLOCK_REPLICA) return replica_find_bad(store, block, out, err);
    TDM_TRY(block_find(store, block, 0, 0, &b, err));
    for (size_t i = 0; i < layout->bucket_count && found == SIZE_MAX; i++) {
        tdm__cells share = tdm__layout_share(layout, tdm__layout_bucket(layout, i), layout->place);
        found = block_first_nonfinite(b, tdm__cells_extent(layout, share));
    }
    if (found == SIZE_MAX)
        found = block_first_nonfinite(b, range_behind(store, 0, layout->elements));
    return element_agree(layout, found, out, err);
}
