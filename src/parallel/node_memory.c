/*
 * node_memory.c: takes and releases the named regions of a parameter store. See node_memory.h.
 */
#include "parallel/node_memory.h"
#include "base/base.h"
#include "comm/comm.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* Smaller regions are not compared with the available memory. */
enum { MIN_CHECKED_BYTES = 16 << 20 };

tdm_status tdm__node_memory_open(tdm_shm *session, tdm_comm *comm, tdm__node_memory *out,
                                 tdm_error *err)
{
    *out = (tdm__node_memory){.shm = session, .outlives = session != NULL};
    if (session) return TDM_OK;
    out->scope = comm ? tdm_comm_shm_scope(comm) : 1; /* in any case: all ranks count */
    if (comm) {
        out->shm = tdm_comm_shm(comm, err);
        return out->shm ? TDM_OK : TDM_ERR_NO_MEMORY;
    }
    TDM_TRY(tdm_shm_create_private(&out->own_shm, err));
    out->shm = out->own_shm;
    return TDM_OK;
}

void tdm__node_memory_close(tdm__node_memory *memory)
{
    tdm_shm_close(memory->own_shm);
    *memory = (tdm__node_memory){.shm = NULL};
}

static void region_name(const tdm__node_memory *memory, const char *name, int index,
                        char out[TDM_SHM_NAME_BYTES])
{
    char scope[16] = "", number[16] = "";
    if (memory->scope > 0) snprintf(scope, sizeof(scope), "%u:", (unsigned)memory->scope);
    if (index >= 0) snprintf(number, sizeof(number), "-%d", index);
    snprintf(out, TDM_SHM_NAME_BYTES, "%s%s%s", scope, name, number);
}

tdm_status tdm__region_take(const tdm__node_memory *memory, const char *name, int index,
                            size_t bytes, tdm__region_use use, void *out, tdm_error *err)
{
    char full_name[TDM_SHM_NAME_BYTES], wanted[32], left[32];
    tdm_memory_info machine = {0};
    void *region = NULL;
    if (!memory->shm) return tdm_fail_oom(err, "for the node's shared memory");
    if (use == TDM__REGION_FULL && !memory->outlives && bytes >= MIN_CHECKED_BYTES)
        tdm_os_memory_info(&machine);
    if (machine.available_bytes > 0 && bytes > machine.available_bytes)
        return tdm_fail(err, TDM_ERR_NO_MEMORY,
                        "cannot allocate %s of memory: the machine has %s left; use a smaller "
                        "model or batch, or more memory",
                        tdm_text_bytes(bytes, wanted),
                        tdm_text_bytes(machine.available_bytes, left));

    region_name(memory, name, index, full_name);
    TDM_TRY(tdm_shm_region_take(memory->shm, full_name, bytes, NULL, &region, err));
    if (use == TDM__REGION_SPARSE) (void)madvise(region, bytes, MADV_NOHUGEPAGE);
    memcpy(out, &region, sizeof(region));
    return TDM_OK;
}

tdm_status tdm__region_find(const tdm__node_memory *memory, const char *name, int index,
                            size_t *bytes, void *out, tdm_error *err)
{
    char full_name[TDM_SHM_NAME_BYTES];
    void *region = NULL;
    region_name(memory, name, index, full_name);
    tdm_status status = tdm_shm_region_find(memory->shm, full_name, bytes, &region, err);
    if (status != TDM_OK && status != TDM_ERR_NOT_FOUND) return status;
    memcpy(out, &region, sizeof(region));
    return TDM_OK;
}

void tdm__region_release(const tdm__node_memory *memory, const void *region)
{
    if (!memory->outlives && memory->shm) tdm_shm_region_release(memory->shm, region);
}
