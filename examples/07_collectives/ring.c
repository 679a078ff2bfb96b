/*
 * ring.c: an all-reduce by hand: numbers go around a ring of ranks, by send and receive.
 *
 *     tandem run -n 4 -- ./ring
 *
 * In each of size - 1 steps every rank sends the numbers that it got last to its right neighbour,
 * receives those of its left one, and adds them. All send at once, so the sends are started and waited
 * for after the receive: if each waited for its send to end first, and the messages were too long to be
 * put aside on the way, nobody would ever receive. (That mistake would not hang for long: past its
 * deadline each rank gets an error that names the rank it waits for.) In the end the result is compared
 * with what tdm_group_all_reduce makes of the same numbers.
 */
#include <tandem/comm.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 100000, TAG = 7 };

static tdm_status step(tdm_group *group, const int64_t *from_last, int64_t *to, tdm_error *err)
{
    int rank = tdm_group_rank(group), size = tdm_group_size(group);
    tdm_call send = {.kind = TDM_CALL_SEND,
                     .dtype = TDM_DTYPE_I64,
                     .count = COUNT,
                     .in = from_last,
                     .root = (rank + 1) % size,
                     .tag = TAG};
    tdm_call receive = {.kind = TDM_CALL_RECV,
                        .dtype = TDM_DTYPE_I64,
                        .count = COUNT,
                        .out = to,
                        .root = (rank + size - 1) % size,
                        .tag = TAG};
    tdm_request *sending;
    TDM_TRY(tdm_call_start(group, &send, &sending, err));
    tdm_status received = tdm_call_run(group, &receive, err);
    tdm_status sent = tdm_request_wait(sending, received == TDM_OK ? err : NULL);
    return received != TDM_OK ? received : sent;
}

/* Two buffers take turns: what was received last is sent next. */
static tdm_status around(tdm_group *group, int64_t *buffers[2], int64_t *sum, tdm_error *err)
{
    for (int i = 0; i < tdm_group_size(group) - 1; i++) {
        const int64_t *last = buffers[i % 2];
        int64_t *next = buffers[(i + 1) % 2];
        TDM_TRY(step(group, last, next, err));
        for (size_t k = 0; k < COUNT; k++) sum[k] += next[k];
    }
    return TDM_OK;
}

static tdm_status run(tdm_comm *comm, int64_t *memory, tdm_error *err)
{
    tdm_group *world = tdm_comm_world(comm);
    int64_t *buffers[2] = {memory, memory + COUNT};
    int64_t *sum = memory + 2 * COUNT, *expected = memory + 3 * COUNT;
    for (int64_t k = 0; k < COUNT; k++) buffers[0][k] = (tdm_comm_rank(comm) + 1) * k;
    memcpy(sum, buffers[0], COUNT * sizeof(*sum));
    TDM_TRY(tdm_group_all_reduce(world, sum, expected, COUNT, TDM_DTYPE_I64, TDM_REDUCE_SUM, err));
    TDM_TRY(around(world, buffers, sum, err));
    if (memcmp(sum, expected, COUNT * sizeof(*sum)) != 0)
        return tdm_fail(err, TDM_ERR_INTERNAL, "rank %d: the ring's sum is not that of all_reduce",
                        tdm_comm_rank(comm));
    TDM_TRY(tdm_group_barrier(world, err)); /* all have compared */
    if (tdm_comm_rank(comm) == 0)
        printf("%d numbers went around a ring of %d ranks: the sum is right\n", COUNT,
               tdm_comm_size(comm));
    return TDM_OK;
}

int main(void)
{
    tdm_comm *comm = NULL;
    tdm_error err;
    int64_t *memory = calloc((size_t)4 * COUNT, sizeof(*memory));
    if (!memory) return 1;
    tdm_status status = tdm_comm_open(NULL, &comm, &err);
    if (status == TDM_OK) status = run(comm, memory, &err);
    if (status != TDM_OK) fprintf(stderr, "%s: %s\n", tdm_status_name(status), err.message);
    tdm_comm_close(comm);
    free(memory);
    return status == TDM_OK ? 0 : 1;
}
