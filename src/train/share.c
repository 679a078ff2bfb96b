/*
 * share.c: one copy of the data for the ranks of a node.
 *
 * Every rank reads the data itself, because it needs all properties of the data set. Then the lowest
 * rank of each node copies the features, which are nearly all of it, into shared memory, and all ranks of
 * the node use that copy. The samples do not change, so no result does. The ranks of a node read the same
 * file; if one has read another number of bytes, the file changed while training started, which is an
 * error.
 */
#include "base/base.h"
#include "comm/comm.h"
#include "data/data.h"
#include "os/os.h"
#include "train/internal.h"

#include <assert.h>
#include <string.h>

/* Location and size of a node's copy, by rank; exchanged between ranks. */
typedef struct offer {
    uint64_t place; /* UINT64_MAX: none */
    uint64_t bytes;
} offer;
enum { OFFER_NUMBERS = sizeof(offer) / sizeof(int64_t) };

static int node_leader(tdm_comm *comm)
{
    int rank = tdm_comm_rank(comm), leader = 0;
    while (tdm_comm_node_of(comm, leader) != tdm_comm_node_of(comm, rank)) leader++;
    return leader;
}

/* Whether any node has several ranks; the same on all ranks. */
static bool node_is_shared(tdm_comm *comm)
{
    for (int i = 0; i < tdm__size_of(comm); i++)
        for (int k = 0; k < i; k++)
            if (tdm_comm_node_of(comm, k) == tdm_comm_node_of(comm, i)) return true;
    return false;
}

static offer offer_create(tdm_comm *comm, const void *block, size_t bytes)
{
    offer own = {.place = UINT64_MAX, .bytes = bytes};
    void *copy;
    if (!tdm__leads_node(comm) || bytes == 0) return own;
    if (tdm_comm_shared(comm, bytes, &copy, NULL) != TDM_OK) return own;
    memcpy(copy, block, bytes);
    own.place = tdm_comm_shared_place(comm, copy);
    if (own.place == UINT64_MAX) tdm_comm_shared_free(comm, copy);
    return own;
}

/* `set` owns its block; `parts` (may be NULL) are in it. `offers` has one entry per rank. */
static tdm_status dataset_share(tdm_dataset *set, tdm_dataset *const parts[2], tdm_comm *comm,
                                offer *offers, tdm_error *err)
{
    size_t bytes;
    const void *from = tdm_dataset_block(set, &bytes);
    int rank = tdm_comm_rank(comm), leader = node_leader(comm);
    offers[rank] = offer_create(comm, from, bytes);
    TDM_TRY(tdm_group_all_gather(tdm_comm_world(comm), NULL, offers,
                                 (size_t)tdm_comm_size(comm) * OFFER_NUMBERS, TDM_DTYPE_I64, err));
    if (offers[leader].bytes != bytes)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: ranks read different data: the file changed while training started",
                        tdm_dataset_info_of(set)->path);
    const void *to = offers[leader].place != UINT64_MAX
                         ? tdm_comm_shared_at(comm, offers[leader].place)
                         : NULL;
    if (!to) return TDM_OK;
    for (int i = 0; i < 2; i++)
        if (parts[i]) tdm_dataset_move(parts[i], from, to);
    tdm_dataset_move(set, from, to);
    return TDM_OK;
}

tdm_status tdm__data_share(tdm_job_data *data, tdm_comm *comm, tdm_error *err)
{
    if (tdm__size_of(comm) == 1 || !node_is_shared(comm)) return TDM_OK;
    tdm_arena *arena = tdm_arena_create("offers");
    offer *offers = arena ? tdm_arena_array(arena, (size_t)tdm_comm_size(comm), sizeof(*offers))
                          : NULL;
    tdm_status status = tdm__agree(comm, offers ? TDM_OK : tdm_fail_oom(err, "in training"), NULL,
                                   err);
    assert(offers || status != TDM_OK);
    tdm_dataset *none[2] = {NULL, NULL}, *both[2] = {data->train, data->test};
    if (status == TDM_OK && data->whole)
        status = dataset_share(data->whole, both, comm, offers, err);
    if (status == TDM_OK && !data->whole)
        status = dataset_share(data->train, none, comm, offers, err);
    if (status == TDM_OK && !data->whole && data->test)
        status = dataset_share(data->test, none, comm, offers, err);
    tdm_arena_destroy(arena);
    return status;
}

/* ---- in the host's shared memory --------------------------------------------------------------- */

enum { HEAD_BYTES = 64 }; /* header of a copy: whether it is complete */

static void dataset_keep(tdm_dataset *set, tdm_dataset *const parts[2], const char *name,
                         tdm_shm *shm)
{
    size_t bytes;
    bool is_new;
    void *memory;
    const void *from = tdm_dataset_block(set, &bytes);
    if (bytes == 0 ||
        tdm_shm_region_take(shm, name, HEAD_BYTES + bytes, &is_new, &memory, NULL) != TDM_OK)
        return;
    _Atomic uint32_t *complete = memory;
    char *to = (char *)memory + HEAD_BYTES;
    if (is_new) {
        memcpy(to, from, bytes);
        atomic_store(complete, 1);
    }
    /* The process that copies may have died or not be done: then this process keeps its copy. */
    if (atomic_load(complete) == 0 || memcmp(to, from, bytes) != 0) return;
    for (int i = 0; i < 2; i++)
        if (parts[i]) tdm_dataset_move(parts[i], from, to);
    tdm_dataset_move(set, from, to);
}

void tdm__data_keep(tdm_job_data *data, tdm_shm *shm)
{
    tdm_dataset *none[2] = {NULL, NULL}, *both[2] = {data->train, data->test};
    if (!shm) return;
    if (data->whole) {
        dataset_keep(data->whole, both, "data", shm);
        return;
    }
    dataset_keep(data->train, none, "data-train", shm);
    if (data->test) dataset_keep(data->test, none, "data-test", shm);
}
