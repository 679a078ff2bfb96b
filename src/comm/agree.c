/*
 * agree.c: agreement of all ranks on the result of something that each rank did alone.
 *
 * One all-reduce (MIN) of a few numbers: the lowest rank that failed, and the complement of each flag. If a rank
 * failed, it broadcasts its error, and a barrier follows, because a rank that leaves breaks the world and must not do
 * so before all ranks have the error. If another rank is lost meanwhile, a rank that failed keeps its own error, which is
 * more informative.
 */
#include "base/base.h"
#include "comm/comm.h"

#include <stdio.h>

enum { AGREE_FLAGS = 8 };

/* All ranks get the error of `rank`. `own` is the status of this rank. */
static tdm_status agree_broadcast_error(tdm_comm *comm, int rank, tdm_status own, tdm_error *err)
{
    tdm_group *world = tdm_comm_world(comm);
    tdm_error shared = {.status = TDM_OK}, broken;
    if (tdm_comm_rank(comm) == rank) shared = *err;
    tdm_status sent = tdm_group_broadcast(world, &shared, sizeof(shared), TDM_DTYPE_U8, rank,
                                          &broken);
    if (sent != TDM_OK && own != TDM_OK) return own;
    if (sent != TDM_OK) return tdm_fail(err, sent, "%s", broken.message);
    tdm_group_barrier(world, &(tdm_error){.status = TDM_OK}); /* its result does not matter */
    shared.message[sizeof(shared.message) - 1] = '\0';
    if (rank == 0) return tdm_fail(err, shared.status, "%s", shared.message);
    return tdm_fail(err, shared.status, "rank %d: %s", rank, shared.message);
}

tdm_status tdm_comm_agree(tdm_comm *comm, tdm_status status, unsigned *flags, tdm_error *err)
{
    int size = comm ? tdm_comm_size(comm) : 1;
    if (size == 1 || tdm_status_group_of(status) == TDM_STATUS_GROUP_PEER) return status;
    tdm_error local = {.status = status};
    if (!err) err = &local;

    int64_t numbers[1 + AGREE_FLAGS] = {status == TDM_OK ? size : tdm_comm_rank(comm)};
    for (int i = 0; i < AGREE_FLAGS; i++) numbers[1 + i] = flags && (*flags >> i & 1) ? 0 : 1;
    tdm_error broken;
    tdm_status agreed = tdm_group_all_reduce(tdm_comm_world(comm), NULL, numbers, 1 + AGREE_FLAGS,
                                             TDM_DTYPE_I64, TDM_REDUCE_MIN, &broken);
    if (agreed != TDM_OK && status != TDM_OK) return status;
    if (agreed != TDM_OK) return tdm_fail(err, agreed, "%s", broken.message);

    for (int i = 0; i < AGREE_FLAGS && flags; i++)
        if (numbers[1 + i] == 0) *flags |= 1u << i;
    return numbers[0] == size ? TDM_OK : agree_broadcast_error(comm, (int)numbers[0], status, err);
}
