/*
 * host_sums.c: finds the sums that each host can compute alone (host_sums.h).
 *
 * The pairs of the reduction's plan are visited in order: a pair of two sums of one host is a
 * larger sum of that host; any other pair belongs to no host, and neither does any pair above it.
 * The leaves of a sum are all present leaves below one node of the tree, so the plan over them
 * alone has the same pairs.
 */
#include "comm/algorithms/host_sums.h"
#include "base/base.h"
#include "comm/group.h"

#include <stdlib.h>
#include <string.h>

size_t tdm__host_sums_bytes(int leaf_count)
{
    size_t count = (size_t)leaf_count;
    return count * (sizeof(tdm__host_sum) + 2 * sizeof(struct tdm__pair) + sizeof(int64_t));
}

static int rank_of_leaf(const tdm__leaves *leaves, int size, int leaf)
{
    int low = 0, high = size - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (leaf < leaves->first[middle + 1])
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* The lowest common ancestor. */
static int64_t meeting_of(int64_t left, int64_t right)
{
    while (left != right)
        if (left > right)
            left /= 2;
        else
            right /= 2;
    return left;
}

/* Creates a plan whose pairs are stored at *memory, which is advanced. */
static tdm_status plan_at(tdm__tree_plan *out, const int64_t *nodes, int count,
                          struct tdm__pair **memory, tdm_error *err)
{
    tdm__tree_plan plan;
    TDM_TRY(tdm__tree_plan_init(&plan, nodes, count, 1, err));
    *out = plan;
    out->pairs = *memory;
    if (plan.pair_count) memcpy(*memory, plan.pairs, (size_t)plan.pair_count * sizeof(**memory));
    *memory += plan.pair_count;
    tdm__tree_plan_release(&plan);
    return TDM_OK;
}

tdm_status tdm__host_sums_init(tdm__host_sums *sums, const tdm_group *group,
                               const tdm__leaves *leaves, const tdm__tree_plan *plan, void *memory,
                               tdm_error *err)
{
    tdm__host_sum *list = memory;
    int64_t *nodes = (int64_t *)(list + leaves->count);
    struct tdm__pair *pairs = (struct tdm__pair *)(nodes + leaves->count);
    enum { NO_HOST = -1, MERGED = -2 };
    int *owners = malloc((size_t)leaves->count * sizeof(*owners));
    if (!owners) return tdm_fail_oom(err, "for the %d parts of a reduction", leaves->count);

    for (int i = 0; i < leaves->count; i++) {
        owners[i] = group->host_of[rank_of_leaf(leaves, group->size, i)];
        list[i] = (tdm__host_sum){.host = owners[i], .first = i, .last = i + 1};
    }

    for (int i = 0; i < plan->pair_count; i++) {
        int left = plan->pairs[i].left, right = plan->pairs[i].right;
        if (owners[left] >= 0 && owners[left] == owners[right]) {
            list[left].last = list[right].last;
            list[right].host = MERGED;
        } else {
            owners[left] = NO_HOST;
        }
    }
    free(owners);

    int count = 0;
    for (int i = 0; i < leaves->count; i++)
        if (list[i].host != MERGED) list[count++] = list[i];

    for (int i = 0; i < count; i++) {
        nodes[i] = leaves->nodes[list[i].first];
        for (int leaf = list[i].first + 1; leaf < list[i].last; leaf++)
            nodes[i] = meeting_of(nodes[i], leaves->nodes[leaf]);
        TDM_TRY(plan_at(&list[i].plan, leaves->nodes + list[i].first, list[i].last - list[i].first,
                        &pairs, err));
    }

    tdm__host_sums made = {.count = count, .list = list};
    TDM_TRY(plan_at(&made.plan, nodes, count, &pairs, err));
    *sums = made;
    return TDM_OK;
}
