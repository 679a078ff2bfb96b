/*
 * share.c: one copy of the data for the ranks of a node.
 *
 * Every rank has read the data by itself, because it needs all that a data set knows. Then the lowest
 * rank of each node copies the features, which are nearly all of it, into memory that its node has in
 * common, and everybody reads them there. Which sample is which does not change, so no bit does. Ranks
 * of a node read the same file; when one has read another number of bytes the file was changed while
 * training started, and that is an error.
 */
#include "train/internal.h"

#include <assert.h>
#include <string.h>

/* Where a node's copy lies, and how large it is; by rank, as it travels. */
typedef struct offer {
    uint64_t place; /* UINT64_MAX: there is none */
    uint64_t bytes;
} offer;
enum { OFFER_NUMBERS = sizeof(offer) / sizeof(int64_t) };

static int leader_of(tdm_comm *comm)
{
    int rank = tdm_comm_rank(comm), leader = 0;
    while (tdm_comm_node_of(comm, leader) != tdm_comm_node_of(comm, rank)) leader++;
    return leader;
}

/* Whether any node has several ranks: the same answer for all. */
static bool has_neighbours(tdm_comm *comm)
{
    for (int i = 0; i < tdm__size_of(comm); i++)
        for (int k = 0; k < i; k++)
            if (tdm_comm_node_of(comm, k) == tdm_comm_node_of(comm, i)) return true;
    return false;
}

static offer make_offer(tdm_comm *comm, const void *block, size_t bytes)
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

/* `set` owns its block; `parts` (some may be NULL) lie in it. `offers` has room for all ranks. */
static tdm_status share_block(tdm_dataset *set, tdm_dataset *const parts[2], tdm_comm *comm,
                              offer *offers, tdm_error *err)
{
    size_t bytes;
    const void *from = tdm_dataset_block(set, &bytes);
    int rank = tdm_comm_rank(comm), leader = leader_of(comm);
    offers[rank] = make_offer(comm, from, bytes);
    TDM_TRY(tdm_group_all_gather(tdm_comm_world(comm), NULL, offers,
                                 (size_t)tdm_comm_size(comm) * OFFER_NUMBERS, TDM_DTYPE_I64, err));
    if (offers[leader].bytes != bytes)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: ranks have read different data: it was changed while training started",
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
    if (tdm__size_of(comm) == 1 || !has_neighbours(comm)) return TDM_OK;
    tdm_arena *arena = tdm_arena_create("offers");
    offer *offers = arena ? tdm_arena_array(arena, (size_t)tdm_comm_size(comm), sizeof(*offers))
                          : NULL;
    tdm_status status = tdm__agree(
        comm, offers ? TDM_OK : tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory"), NULL, err);
    assert(offers || status != TDM_OK);
    tdm_dataset *none[2] = {NULL, NULL}, *both[2] = {data->train, data->test};
    if (status == TDM_OK && data->whole) status = share_block(data->whole, both, comm, offers, err);
    if (status == TDM_OK && !data->whole)
        status = share_block(data->train, none, comm, offers, err);
    if (status == TDM_OK && !data->whole && data->test)
        status = share_block(data->test, none, comm, offers, err);
    tdm_arena_destroy(arena);
    return status;
}

/* ---- in a vault ------------------------------------------------------------------------------ */

enum { HEAD_BYTES = 64 }; /* in front of a copy: whether it is complete */

static void keep_block(tdm_dataset *set, tdm_dataset *const parts[2], const char *name,
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
    /* One who died, or is still at it, may have left it incomplete: then everybody keeps its own. */
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
        keep_block(data->whole, both, "data", shm);
        return;
    }
    keep_block(data->train, none, "data-train", shm);
    if (data->test) keep_block(data->test, none, "data-test", shm);
}
