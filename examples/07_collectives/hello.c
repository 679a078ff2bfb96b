/*
 * hello.c: the hello-world of collectives.
 *
 *     tandem run -n 4 -- ./hello
 *
 * Every rank joins the world, gets a word from rank 0, adds its number to everybody's, and rank 0 says
 * who was there. Without `tandem run` it is a world of one. Any call may fail, because another rank may
 * be gone: then the error says which rank, and what it did last.
 */
#include <tandem/comm.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static tdm_status hello(tdm_comm *comm, tdm_error *err)
{
    tdm_group *world = tdm_comm_world(comm);
    int rank = tdm_comm_rank(comm), size = tdm_comm_size(comm);

    /* Rank 0's words to everybody. */
    uint8_t word[16] = {0};
    if (rank == 0) snprintf((char *)word, sizeof(word), "hello");
    TDM_TRY(tdm_group_broadcast(world, word, sizeof(word), TDM_DTYPE_U8, 0, err));

    /* Everybody's number to everybody, added. */
    int64_t sum = 0, mine = rank;
    TDM_TRY(tdm_group_all_reduce(world, &mine, &sum, 1, TDM_DTYPE_I64, TDM_REDUCE_SUM, err));

    /* Everybody's process to rank 0, one behind the other. */
    int64_t pid = getpid();
    int64_t *pids = calloc((size_t)size, sizeof(*pids));
    if (!pids) return tdm_fail(err, TDM_ERR_NO_MEMORY, "no memory for %d numbers", size);
    tdm_status status = tdm_group_gather(world, &pid, pids, (size_t)size, TDM_DTYPE_I64, 0, err);
    if (status == TDM_OK && rank == 0) {
        tdm_comm_info info;
        tdm_comm_info_get(comm, &info);
        printf("%s from %d ranks on %d host%s by %s; their numbers add up to %lld\n", (char *)word,
               size, info.host_count, info.host_count == 1 ? "" : "s", info.transport,
               (long long)sum);
        for (int i = 0; i < size; i++) printf("rank %d is process %lld\n", i, (long long)pids[i]);
    }
    free(pids);
    return status;
}

int main(void)
{
    tdm_comm *comm = NULL;
    tdm_error err;
    tdm_status status = tdm_comm_open(NULL, &comm, &err); /* all from the environment */
    if (status == TDM_OK) status = hello(comm, &err);
    if (status != TDM_OK) fprintf(stderr, "%s: %s\n", tdm_status_name(status), err.message);
    tdm_comm_close(comm);
    return status == TDM_OK ? 0 : 1;
}
