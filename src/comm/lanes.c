/*
 * lanes.c: the operands that each rank has in a reduction, and the slice that each rank owns.
 *
 * The tree of a reduction is built over lanes, whose number is a power of two. A rank has a range
 * of lanes and passes the sums of the largest complete subtrees in it. A range in a tree of 2^k
 * lanes consists of at most 2k - 2 such subtrees. With the limit of 2^32 lanes, TDM_MAX_LANE_PARTS
 * is therefore sufficient for any range. Everything here is a pure function of lanes and size, so
 * all ranks compute the same leaves without communication.
 */
#include "comm/lanes.h"
#include "base/base.h"
#include "comm/comm.h"

#include <stdlib.h>

#define MAX_LANES ((int64_t)1 << 32)

tdm_extent tdm_group_slice(size_t count, int size, int rank)
{
    size_t min = count / (size_t)size;
    size_t longer = count % (size_t)size; /* number of slices that have one element more */
    size_t r = (size_t)rank;
    return (tdm_extent){.first = r * min + (r < longer ? r : longer), .count = min + (r < longer)};
}

bool tdm__kind_has_cuts(tdm_call_kind kind)
{
    return kind >= TDM_CALL_REDUCE_SCATTER && kind <= TDM_CALL_SCATTER;
}

tdm_status tdm__cuts_check(const size_t *cuts, size_t count, int size, tdm_error *err)
{
    if (cuts[0] != 0 || cuts[size] != count)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "cuts: the slices cover elements %zu to %zu, not 0 to %zu", cuts[0],
                        cuts[size], count);
    for (int i = 0; i < size; i++)
        if (cuts[i] > cuts[i + 1])
            return tdm_fail(err, TDM_ERR_INVALID,
                            "cuts: slice %d begins at element %zu, but slice %d at element %zu", i,
                            cuts[i], i + 1, cuts[i + 1]);
    return TDM_OK;
}

tdm_extent tdm__call_slice(const tdm_call *call, int size, int rank)
{
    if (!call->cuts || !tdm__kind_has_cuts(call->kind))
        return tdm_group_slice(call->count, size, rank);
    return (tdm_extent){.first = call->cuts[rank],
                        .count = call->cuts[rank + 1] - call->cuts[rank]};
}

size_t tdm__call_max_slice(const tdm_call *call, int size)
{
    if (!call->cuts || !tdm__kind_has_cuts(call->kind))
        return tdm_group_slice(call->count, size, 0).count;
    size_t max = 0;
    for (int i = 0; i < size; i++)
        if (call->cuts[i + 1] - call->cuts[i] > max) max = call->cuts[i + 1] - call->cuts[i];
    return max;
}

size_t tdm__call_span(const tdm_call *call, int size)
{
    bool sliced = tdm__kind_has_cuts(call->kind) || call->kind == TDM_CALL_ALL_TO_ALL;
    return sliced ? tdm__call_max_slice(call, size) * (size_t)size : call->count;
}

static bool lanes_all_absent(const tdm_lanes *lanes, int64_t first, int64_t last)
{
    if (!lanes->absent) return false;
    for (int64_t lane = first; lane < last; lane++)
        if (!lanes->absent[lane]) return false;
    return true;
}

int tdm_lane_nodes(const tdm_lanes *lanes, int64_t first, int64_t last, int64_t *out)
{
    int count = 0;
    while (first < last && count < TDM_MAX_LANE_PARTS) {
        /* The largest subtree that begins here: by the lowest bit of `first`, and not past
         * `last`. */
        int64_t width = first ? first & -first : lanes->lane_count;
        while (width > last - first) width /= 2;
        if (!lanes_all_absent(lanes, first, first + width))
            out[count++] = (lanes->lane_count + first) / width;
        first += width;
    }
    return count;
}

tdm_status tdm__lanes_check(const tdm_lanes *lanes, int size, tdm_error *err)
{
    int64_t count = lanes->lane_count;
    if (count < 1 || (count & (count - 1)) != 0)
        return tdm_fail(err, TDM_ERR_INVALID, "lanes: the lane count %lld is not a power of two",
                        (long long)count);
    if (count > MAX_LANES)
        return tdm_fail(err, TDM_ERR_RANGE,
                        "lanes: the lane count %lld exceeds the maximum of %lld", (long long)count,
                        (long long)MAX_LANES);
    if (!lanes->first) return tdm_fail(err, TDM_ERR_INVALID, "lanes: the list `first` is NULL");
    if (lanes->first[0] != 0 || lanes->first[size] != count)
        return tdm_fail(
            err, TDM_ERR_INVALID, "lanes: the ranks have lanes %lld to %lld, not 0 to %lld",
            (long long)lanes->first[0], (long long)lanes->first[size], (long long)count);
    for (int i = 0; i < size; i++)
        if (lanes->first[i] > lanes->first[i + 1])
            return tdm_fail(err, TDM_ERR_INVALID,
                            "lanes: rank %d begins at lane %lld, but rank %d at lane %lld", i,
                            (long long)lanes->first[i], i + 1, (long long)lanes->first[i + 1]);
    if (lanes_all_absent(lanes, 0, count))
        return tdm_fail(err, TDM_ERR_INVALID,
                        "lanes: all %lld are absent; at least one must be present",
                        (long long)count);
    return TDM_OK;
}

uint64_t tdm__lanes_hash(const tdm_lanes *lanes, int size)
{
    if (!lanes) return 0;
    uint64_t hash = tdm_hash64_add(TDM_HASH64_INIT, (uint64_t)lanes->lane_count);
    for (int i = 0; i <= size; i++) hash = tdm_hash64_add(hash, (uint64_t)lanes->first[i]);
    if (lanes->absent)
        for (int64_t lane = 0; lane < lanes->lane_count; lane++)
            if (lanes->absent[lane]) hash = tdm_hash64_add(hash, (uint64_t)lane);
    return hash ? hash : 1;
}

uint64_t tdm__cuts_hash(const size_t *cuts, int size)
{
    if (!cuts) return 0;
    uint64_t hash = tdm_hash64_add(TDM_HASH64_INIT, UINT64_MAX); /* differs from any lane count */
    for (int i = 0; i <= size; i++) hash = tdm_hash64_add(hash, cuts[i]);
    return hash ? hash : 1;
}

/* Counts the leaves and, if `nodes` is not NULL, writes them. */
static int lanes_list_leaves(const tdm_lanes *lanes, int size, int64_t *nodes, int *first)
{
    int count = 0;
    for (int i = 0; i < size; i++) {
        int64_t own[TDM_MAX_LANE_PARTS];
        int own_count = tdm_lane_nodes(lanes, lanes->first[i], lanes->first[i + 1], own);
        if (first) first[i] = count;
        for (int j = 0; nodes && j < own_count; j++) nodes[count + j] = own[j];
        count += own_count;
    }
    if (first) first[size] = count;
    return count;
}

tdm_status tdm__leaves_init(tdm__leaves *leaves, const tdm_lanes *lanes, int size, tdm_error *err)
{
    int64_t lane_count = 1;
    while (lane_count < size) lane_count *= 2;
    if (lanes) TDM_TRY(tdm__lanes_check(lanes, size, err));
    int count = lanes ? lanes_list_leaves(lanes, size, NULL, NULL) : size;
    int64_t *nodes = malloc(((size_t)count + 1) * sizeof(*nodes));
    int *first = malloc(((size_t)size + 1) * sizeof(*first));
    if (!nodes || !first) {
        free(nodes);
        free(first);
        return tdm_fail_oom(err, "for the %d leaves of a reduction", count);
    }
    if (lanes) {
        lanes_list_leaves(lanes, size, nodes, first);
    } else {
        for (int i = 0; i < size; i++) nodes[i] = lane_count + i;
        for (int i = 0; i <= size; i++) first[i] = i;
    }
    *leaves = (tdm__leaves){.count = count, .nodes = nodes, .first = first};
    return TDM_OK;
}

void tdm__leaves_release(tdm__leaves *leaves)
{
    free(leaves->nodes);
    free(leaves->first);
    *leaves = (tdm__leaves){0};
}
