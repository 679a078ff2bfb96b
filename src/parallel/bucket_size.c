/*
 * bucket_size.c: chooses the size of the buckets in which gradients are sent.
 *
 * Small buckets are sent early, so that more of them overlap with the backward pass; but each has
 * a fixed cost, and below some size the network is not saturated. So the sizes are measured on
 * the network itself, with a few buckets in flight as in training, and the smallest size that is nearly as fast as
 * the best is chosen. Ranks of one node do not need buckets, so nothing is measured there.
 */
#include "parallel/layout.h"
#include "parallel/parallel.h"

#include <tandem/os.h>

#include <string.h>

enum {
    SIZE_DEFAULT = 4 << 20,
    MIN_SIZE = 64 << 10,
    TRIAL_BYTES = 8 << 20, /* for each size */
    IN_FLIGHT = 4,
    BUCKETS_WANTED = 8, /* at least, so that there is something to overlap */
    CANDIDATE_COUNT = 5
};

static const double nearly = 0.9; /* of the best */

static size_t whole_cells(size_t bytes)
{
    size_t cell = TDM__CELL * sizeof(float);
    size_t cells = bytes / cell;
    return (cells > 0 ? cells : 1) * cell;
}

/* Measures the time to reduce TRIAL_BYTES in buckets of this size. */
static tdm_status bucket_size_time(tdm_group *group, float *memory, size_t bytes, double *out,
                                   tdm_error *err)
{
    tdm_request *requests[IN_FLIGHT] = {0};
    size_t count = TRIAL_BYTES / bytes, elements = bytes / sizeof(float);
    tdm_status status = tdm_group_barrier(group, err);
    double begin = tdm_clock_s();
    for (size_t i = 0; i < count + IN_FLIGHT; i++) {
        tdm_request **slot = &requests[i % IN_FLIGHT];
        tdm_error later = {0};
        if (*slot) {
            tdm_status ended = tdm_request_wait(*slot, &later);
            if (status == TDM_OK && ended != TDM_OK) {
                status = ended;
                if (err) *err = later;
            }
        }
        *slot = NULL;
        if (i >= count || status != TDM_OK) continue;
        float *data = memory + (i % IN_FLIGHT) * elements;
        tdm_call call = {.kind = TDM_CALL_ALL_REDUCE,
                         .dtype = TDM_DTYPE_F32,
                         .count = elements,
                         .in = data,
                         .out = data};
        status = tdm_call_start(group, &call, slot, err);
    }
    *out = tdm_clock_s() - begin;
    return status;
}

static tdm_status bucket_size_measure(tdm_group *group, size_t max, size_t *out, tdm_error *err)
{
    static const size_t candidates[CANDIDATE_COUNT] = {256 << 10, 512 << 10, 1 << 20, 2 << 20,
                                                       4 << 20};
    double times[CANDIDATE_COUNT], best = 1e300;
    tdm_pages pages;
    TDM_TRY(tdm_pages_map(IN_FLIGHT * candidates[CANDIDATE_COUNT - 1], false, &pages, err));
    tdm_status status = TDM_OK;
    for (int i = 0; i < CANDIDATE_COUNT && status == TDM_OK; i++) {
        status = bucket_size_time(group, pages.data, candidates[i], &times[i], err);
        /* Use the slowest rank's time, the same on all ranks. */
        if (status == TDM_OK)
            status = tdm_group_all_reduce(group, NULL, &times[i], 1, TDM_DTYPE_F64, TDM_REDUCE_MAX,
                                          err);
        if (status == TDM_OK && times[i] < best) best = times[i];
    }
    tdm_pages_unmap(&pages);
    TDM_TRY(status);
    int chosen = 0;
    while (times[chosen] * nearly > best) chosen++;
    *out = candidates[chosen] < max ? candidates[chosen] : max;
    return TDM_OK;
}

tdm_status tdm_bucket_choose(tdm_comm *comm, uint64_t grad_bytes, size_t *out, tdm_error *err)
{
    bool several = false;
    for (int i = 1; comm && i < tdm_comm_size(comm); i++)
        several = several || tdm_comm_node_of(comm, i) != tdm_comm_node_of(comm, 0);
    size_t max = grad_bytes / BUCKETS_WANTED > MIN_SIZE ? (size_t)(grad_bytes / BUCKETS_WANTED)
                                                        : MIN_SIZE;
    size_t size = SIZE_DEFAULT < max ? SIZE_DEFAULT : max;
    /* Small gradients take little time in any case. */
    if (several && grad_bytes > TRIAL_BYTES)
        TDM_TRY(bucket_size_measure(tdm_comm_world(comm), max, &size, err));
    *out = whole_cells(size);
    return TDM_OK;
}
