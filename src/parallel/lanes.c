/*
 * lanes.c: slices and the tree. Nothing here knows about threads or models.
 */
#include "parallel/internal.h"
#include "tensor/kernel.h"

#include <string.h>

/* Fewer rows than this make matrix products inefficient; more lanes than this serve nobody who has
 * not asked for them. Both are part of the results of jobs that leave the lanes to `auto`. */
enum { AUTO_LEAST_ROWS = 16, AUTO_MOST_LANES = 8 };

int64_t tdm_lanes_auto(int64_t batch)
{
    int64_t lanes = 1;
    while (lanes < AUTO_MOST_LANES && batch / (2 * lanes) >= AUTO_LEAST_ROWS) lanes *= 2;
    return lanes;
}

int64_t tdm_lanes_of(const tdm_job *job)
{
    if (job->parallel.lanes > 0) return job->parallel.lanes;
    if (!tdm_model_takes_tokens(job)) return tdm_lanes_auto(job->train.batch);
    int64_t lanes = 1; /* a window of tokens is a batch for a matrix product by itself */
    while (lanes < AUTO_MOST_LANES && 2 * lanes <= job->train.batch) lanes *= 2;
    return lanes;
}

tdm_slice tdm_lane_slice(int64_t row_count, int64_t lane_count, int64_t lane)
{
    int64_t base = row_count / lane_count, extra = row_count % lane_count;
    return (tdm_slice){.first = lane * base + (lane < extra ? lane : extra),
                       .count = base + (lane < extra)};
}

/* Goes through the motions: a lane is done, and neighbours are added as soon as both are there. */
int tdm_lane_buffers(int64_t lane_count, tdm_slice lanes)
{
    int most = 0, in_use = 0;
    for (int64_t i = 0; i < lanes.count; i++) {
        int64_t node = lane_count + lanes.first + i, start = lanes.first + i, width = 1;
        if (++in_use > most) most = in_use;
        while (node > 1 && node % 2 == 1 && start - width >= lanes.first) {
            in_use--;
            start -= width;
            width *= 2;
            node /= 2;
        }
    }
    return most;
}

bool tdm__tree_sum(const tdm__tree *tree, int64_t node, size_t begin, size_t count, float *out,
                   float *scratch)
{
    if (tree->held[node]) {
        memcpy(out, tree->held[node] + begin, count * sizeof(float));
        return true;
    }
    if (node >= tree->lane_count) return false; /* a lane without rows */
    bool left = tdm__tree_sum(tree, 2 * node, begin, count, out, scratch);
    bool right = tdm__tree_sum(tree, 2 * node + 1, begin, count, left ? scratch : out,
                               scratch + count);
    if (left && right) tdm_kernel_add_into(out, scratch, count);
    return left || right;
}
