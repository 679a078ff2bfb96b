/*
 * lanes.c: slices and the tree. Independent of threads and models.
 */
#include "parallel/internal.h"
#include "tensor/kernel.h"

#include <string.h>

/*
 * Constants for `auto`. A lane costs a pass over its gradient, and its products must be large enough to
 * be fast; so it should have this many rows of the product that has the fewest. A token is a row, and
 * so is each position of an image, so windows and images count as many rows. Two lanes, so that there can
 * be two workers, may have a quarter of it each, except for ResNets, whose lanes are expensive. All of this
 * affects the results of jobs that leave the lanes at `auto`; bench/parallel-lanes measures the cost.
 */
enum {
    AUTO_MAX_LANES = 8,
    AUTO_ROWS = 64,
    AUTO_IMAGES = 32,
    AUTO_DEEP_IMAGES = 64, /* a ResNet reorders large weights for every lane */
    AUTO_TOKENS = 256,
    AUTO_TWO = 4
};

static bool has_convolution(const tdm_job_layer_list *layers)
{
    for (size_t i = 0; i < layers->count; i++) {
        const tdm_job_layer *layer = &layers->items[i];
        if (layer->kind == TDM_JOB_LAYER_CONV || layer->kind == TDM_JOB_LAYER_CONV1D) return true;
        if (has_convolution(&layer->layers)) return true;
    }
    return false;
}

/* The minimum number of rows of a lane. */
static int64_t rows_of_a_lane(const tdm_job *job)
{
    if (tdm_model_takes_tokens(job)) {
        int64_t context = job->model.context > 0 ? job->model.context : 1;
        return (AUTO_TOKENS + context - 1) / context;
    }
    if (job->model.kind == TDM_JOB_MODEL_RESNET) return AUTO_DEEP_IMAGES;
    bool images = job->model.kind == TDM_JOB_MODEL_CNN ||
                  (job->model.kind == TDM_JOB_MODEL_LAYERS && has_convolution(&job->layers));
    return images ? AUTO_IMAGES : AUTO_ROWS;
}

int64_t tdm_lanes_of(const tdm_job *job)
{
    if (job->parallel.lanes > 0) return job->parallel.lanes;
    int64_t batch = job->train.batch, rows = rows_of_a_lane(job), lanes = 1;
    bool is_deep = job->model.kind == TDM_JOB_MODEL_RESNET;
    int64_t rows_of_two = is_deep ? rows : (rows + AUTO_TWO - 1) / AUTO_TWO;
    while (lanes < AUTO_MAX_LANES && batch / (2 * lanes) >= (lanes == 1 ? rows_of_two : rows))
        lanes *= 2;
    return lanes;
}

/* Lane i begins at i x rows / lanes, rounded up: the larger slices are spread evenly, so that ranks
 * with the same number of lanes have the same number of rows, and the first slice is one of the larger ones. */
tdm_slice tdm_lane_slice(int64_t row_count, int64_t lane_count, int64_t lane)
{
    int64_t base = row_count / lane_count, extra = row_count % lane_count;
    int64_t first = lane * base + (lane * extra + lane_count - 1) / lane_count;
    int64_t end = (lane + 1) * base + ((lane + 1) * extra + lane_count - 1) / lane_count;
    return (tdm_slice){.first = first, .count = end - first};
}

/* Simulates the execution: neighbours are added as soon as both are complete. */
int tdm_lane_buffers(int64_t lane_count, tdm_slice lanes)
{
    int max = 0, in_use = 0;
    for (int64_t i = 0; i < lanes.count; i++) {
        int64_t node = lane_count + lanes.first + i, start = lanes.first + i, width = 1;
        if (++in_use > max) max = in_use;
        while (node > 1 && node % 2 == 1 && start - width >= lanes.first) {
            in_use--;
            start -= width;
            width *= 2;
            node /= 2;
        }
    }
    return max;
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
