/*
 * shared.c: memory that all ranks of a host can access (tdm_comm_shared).
 *
 * tdm_comm_shared returns buffers that collectives read and write in place. On a node with several ranks a buffer is a
 * block of the memory of their windows (shm/host_blocks.c); a rank that is alone gets pages of its process. The comm
 * keeps a list of the buffers, and frees them when it is closed. Data structures that ranks share are regions of
 * tdm_comm_shm.
 */
#include "base/base.h"
#include "comm/comm.h"
#include "comm/engine.h"

#include <tandem/os.h>

#include <stdlib.h>

typedef struct tdm__shared {
    struct tdm__shared *next;
    void *memory;
    uint64_t offset; /* in the host's segment; UINT64_MAX: pages of this process */
    tdm_pages pages;
} tdm__shared;

tdm_status tdm_comm_shared(tdm_comm *comm, size_t bytes, void **out, tdm_error *err)
{
    if (bytes == 0) return tdm_fail(err, TDM_ERR_RANGE, "cannot allocate 0 bytes of shared memory");
    tdm__shared *shared = calloc(1, sizeof(*shared));
    if (!shared) return tdm_fail_oom(err, "for shared memory");
    shared->offset = UINT64_MAX;
    tdm_status status = comm->host ? tdm__host_alloc(comm->host, bytes, &shared->offset, err)
                                   : tdm_pages_map(bytes, false, &shared->pages, err);
    if (status != TDM_OK) {
        free(shared);
        return status;
    }
    shared->memory = comm->host ? tdm__host_at(comm->host, shared->offset) : shared->pages.data;
    *out = shared->memory;
    tdm__comm_lock(comm);
    shared->next = comm->shared;
    comm->shared = shared;
    tdm__comm_unlock(comm);
    return TDM_OK;
}

static void shared_release(tdm_comm *comm, tdm__shared *shared)
{
    if (shared->offset == UINT64_MAX)
        tdm_pages_unmap(&shared->pages);
    else
        tdm__host_free(comm->host, shared->offset);
    free(shared);
}

void tdm_comm_shared_free(tdm_comm *comm, void *memory)
{
    tdm__comm_lock(comm);
    tdm__shared **link = &comm->shared;
    while (*link && (*link)->memory != memory) link = &(*link)->next;
    tdm__shared *found = *link;
    if (found) *link = found->next;
    tdm__comm_unlock(comm);
    if (found) shared_release(comm, found);
}

tdm_shm *tdm_comm_shm(tdm_comm *comm, tdm_error *err)
{
    if (comm->host) return tdm__host_shm(comm->host);
    if (!comm->own_shm && tdm_shm_create_private(&comm->own_shm, err) != TDM_OK) return NULL;
    return comm->own_shm;
}

uint32_t tdm_comm_shm_scope(tdm_comm *comm)
{
    return ++comm->shm_scope;
}

void tdm__shared_free_all(tdm_comm *comm)
{
    while (comm->shared) {
        tdm__shared *shared = comm->shared;
        comm->shared = shared->next;
        shared_release(comm, shared);
    }
}
