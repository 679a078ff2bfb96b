/*
 * hosts_program.c: a rank that runs collectives in a loop, checks every result, and prints what happens.
 *
 *     hosts_program SECONDS DEADLINE [COUNT]
 *
 * Prints "joined TRANSPORT HOSTS", a line "round N" about every half second, and at the end either "done N"
 * (exit 0) or "failed STATUS after S s: TEXT" (exit 3), where S counts from the start of the round that failed.
 * A wrong result is "WRONG" and exit 4. All ranks stop in the same round, because they agree on it by a sum.
 */
#include <tandem/comm.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct runner {
    tdm_group *world;
    int rank, size;
    size_t count;
    int32_t *data;
} runner;

/* A sum over all ranks, a broadcast whose root changes, and slices of all ranks. */
static tdm_status run_round(runner *r, int round, bool stop, bool *out_stop, bool *out_wrong,
                            tdm_error *err)
{
    for (size_t i = 0; i < r->count; i++) r->data[i] = (int32_t)i + r->rank + round;
    r->data[0] = stop;
    TDM_TRY(tdm_group_all_reduce(r->world, NULL, r->data, r->count, TDM_DTYPE_I32, TDM_REDUCE_SUM,
                                 err));
    *out_stop = r->data[0] > 0;
    int32_t ranks = r->size * (r->size - 1) / 2;
    for (size_t i = 1; i < r->count; i++)
        if (r->data[i] != r->size * ((int32_t)i + round) + ranks) *out_wrong = true;

    int root = round % r->size;
    r->data[0] = r->rank == root ? round * 3 : -1;
    TDM_TRY(tdm_group_broadcast(r->world, r->data, 1, TDM_DTYPE_I32, root, err));
    if (r->data[0] != round * 3) *out_wrong = true;

    int32_t mine = r->rank * 100 + round;
    TDM_TRY(tdm_group_all_gather(r->world, &mine, r->data, (size_t)r->size, TDM_DTYPE_I32, err));
    for (int i = 0; i < r->size; i++)
        if (r->data[i] != i * 100 + round) *out_wrong = true;
    return TDM_OK;
}

static int run_rounds(runner *r, double seconds)
{
    double end_s = tdm_clock_s() + seconds, say_s = 0;
    bool stop = false, wrong = false;
    for (int round = 0; !stop; round++) {
        double begin_s = tdm_clock_s();
        tdm_error err = {0};
        tdm_status status = run_round(r, round, begin_s > end_s, &stop, &wrong, &err);
        if (status != TDM_OK) {
            printf("failed %s after %.1f s: %s\n", tdm_status_name(status), tdm_clock_s() - begin_s,
                   err.message);
            return 3;
        }
        if (wrong) {
            printf("WRONG in round %d\n", round);
            return 4;
        }
        if (begin_s > say_s || stop) printf("%s %d\n", stop ? "done" : "round", round);
        if (begin_s > say_s) say_s = begin_s + 0.5;
    }
    return 0;
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < 3) return 2;
    tdm_comm_options options = {.deadline_s = strtod(argv[2], NULL), .join_s = 30};
    tdm_comm *comm = NULL;
    tdm_error err = {0};
    tdm_status status = tdm_comm_open(&options, &comm, &err);
    if (status != TDM_OK) {
        printf("not joined %s: %s\n", tdm_status_name(status), err.message);
        return 5;
    }
    tdm_comm_info info;
    tdm_comm_info_get(comm, &info);
    printf("joined %s %d\n", info.transport, info.host_count);
    runner r = {.world = tdm_comm_world(comm),
                .rank = tdm_comm_rank(comm),
                .size = tdm_comm_size(comm),
                .count = argc > 3 ? strtoull(argv[3], NULL, 10) : 20000};
    if (r.count < (size_t)r.size + 1) r.count = (size_t)r.size + 1;
    r.data = malloc(r.count * sizeof(*r.data));
    int code = r.data ? run_rounds(&r, strtod(argv[1], NULL)) : 2;
    tdm_comm_close(comm);
    free(r.data);
    return code;
}
