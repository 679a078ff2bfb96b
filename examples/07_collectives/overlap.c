/*
 * overlap.c: sums over all ranks while each rank continues to compute, as training does.
 *
 *     tandem run -n 2 --run traces -- ./overlap
 *     tandem trace traces --chrome picture.json
 *
 * A model has LAYERS layers. Going backwards, each rank computes the gradient of one layer after the
 * other, and starts its all-reduce as soon as it is there; then it computes the next, while the sum
 * is made in the background. The next step needs the first layer first, so that one, which is started
 * last, has the most urgent priority. The gradients are in memory that all ranks of the host see:
 * there they are added where they lie. Marks show in the trace when each gradient was computed.
 */
#include <tandem/comm.h>
#include <tandem/trace.h>

#include <stdio.h>

enum { LAYERS = 8, COUNT = 200000, STEPS = 5, PASSES = 10 };

/* Stands for real work: the gradient of a layer, some milliseconds long. */
static void compute(float *gradient, int rank, int layer)
{
    for (size_t i = 0; i < COUNT; i++) {
        float x = (float)(rank + 1) * 0.001f * (float)(i % 1000);
        for (int pass = 0; pass < PASSES; pass++) x = 0.5f * x + (float)layer;
        gradient[i] = x;
    }
}

static tdm_call sum_of(float *gradient, int layer)
{
    return (tdm_call){.kind = TDM_CALL_ALL_REDUCE,
                      .dtype = TDM_DTYPE_F32,
                      .count = COUNT,
                      .out = gradient, /* without `in`: in place */
                      .reduce = TDM_REDUCE_SUM,
                      .priority = layer};
}

/* Whatever was started is waited for, also after a failure: until then the buffers belong to the calls.
 * The first error is the one that is reported. */
static tdm_status wait_all(tdm_request **requests, tdm_status status, tdm_error *err)
{
    for (int layer = 0; layer < LAYERS; layer++) {
        if (!requests[layer]) continue;
        tdm_status ended = tdm_request_wait(requests[layer], status == TDM_OK ? err : NULL);
        if (status == TDM_OK) status = ended;
    }
    return status;
}

/* Backwards through the layers. With `overlap` all sums are on their way while the next is computed. */
static tdm_status backward(tdm_comm *comm, float *const *gradients, bool overlap, tdm_error *err)
{
    tdm_group *world = tdm_comm_world(comm);
    tdm_request *requests[LAYERS] = {NULL};
    tdm_status status = TDM_OK;
    for (int layer = LAYERS - 1; layer >= 0 && status == TDM_OK; layer--) {
        uint64_t start = tdm_clock_ns();
        compute(gradients[layer], tdm_comm_rank(comm), layer);
        tdm_comm_mark(comm, "gradient", tdm_clock_ns() - start);
        tdm_call call = sum_of(gradients[layer], layer);
        status = overlap ? tdm_call_start(world, &call, &requests[layer], err)
                         : tdm_call_run(world, &call, err);
    }
    return wait_all(requests, status, err);
}

static double sum_of_all(float *const *gradients)
{
    double sum = 0;
    for (int layer = 0; layer < LAYERS; layer++)
        for (size_t i = 0; i < COUNT; i++) sum += (double)gradients[layer][i] * (double)(layer + 1);
    return sum;
}

static tdm_status measure(tdm_comm *comm, float *const *gradients, bool overlap, double *out_s,
                          double *out_sum, tdm_error *err)
{
    TDM_TRY(tdm_group_barrier(tdm_comm_world(comm), err));
    double start = tdm_clock_s();
    for (int i = 0; i < STEPS; i++) TDM_TRY(backward(comm, gradients, overlap, err));
    *out_s = (tdm_clock_s() - start) / STEPS;
    *out_sum = sum_of_all(gradients);
    return TDM_OK;
}

static tdm_status run(tdm_comm *comm, tdm_error *err)
{
    float *gradients[LAYERS];
    for (int layer = 0; layer < LAYERS; layer++) {
        void *memory; /* goes with the comm */
        TDM_TRY(tdm_comm_shared(comm, COUNT * sizeof(float), &memory, err));
        gradients[layer] = memory;
    }
    double one_by_one_s, overlapped_s, one_by_one, overlapped;
    TDM_TRY(measure(comm, gradients, false, &one_by_one_s, &one_by_one, err));
    TDM_TRY(measure(comm, gradients, true, &overlapped_s, &overlapped, err));
    if (one_by_one != overlapped)
        return tdm_fail(err, TDM_ERR_INTERNAL, "the same sums have other bits: %a and %a",
                        one_by_one, overlapped);
    if (tdm_comm_rank(comm) == 0)
        printf("a step: %.2f ms one by one, %.2f ms overlapped; the same bits both ways\n",
               one_by_one_s * 1e3, overlapped_s * 1e3);
    return TDM_OK;
}

int main(void)
{
    tdm_comm *comm = NULL;
    tdm_error err;
    tdm_status status = tdm_comm_open(NULL, &comm, &err);
    if (status == TDM_OK) status = run(comm, &err);
    if (status != TDM_OK) fprintf(stderr, "%s: %s\n", tdm_status_name(status), err.message);
    tdm_comm_close(comm);
    return status == TDM_OK ? 0 : 1;
}
