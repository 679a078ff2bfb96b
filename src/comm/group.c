/*
 * group.c: groups: their members, hosts and IDs.
 *
 * Members must agree on a group's ID without communication: it is a hash of the list of ranks and
 * the number of groups created earlier from that list. Two lists with the same ID on one rank are
 * detected here and refused. Members on one host share a window: the lowest of them creates it and
 * sends its offset to the others by messages of the group.
 */
#include "comm/group.h"
#include "base/base.h"
#include "comm/comm.h"
#include "comm/engine.h"
#include "comm/fail.h"
#include "comm/lanes.h"
#include "comm/transfer.h"
#include "comm/window.h"

#include <stdlib.h>
#include <string.h>

#define WINDOW_TAG 0xfffffffeu /* of the messages that carry the window's offset */

/* The number of groups created from one list of ranks. */
typedef struct tdm__list_count {
    struct tdm__list_count *next;
    uint64_t hash;
    uint32_t count;
} tdm__list_count;

typedef struct tdm__pair_count {
    int peer;
    uint32_t tag;
    uint32_t count;
    bool receive, used;
} tdm__pair_count;

enum { FIRST_PAIRS = 16 };

tdm_group *tdm__comm_group(const tdm_comm *comm, uint32_t id)
{
    for (tdm_group *g = comm->groups; g; g = g->next)
        if (g->id == id) return g;
    return NULL;
}

/* The entry of this peer and tag, or the free entry where it belongs. The table always has a free
 * entry. */
static tdm__pair_count *group_find_pair(tdm__pair_count *pairs, size_t capacity, int peer,
                                        uint32_t tag, bool receive)
{
    uint64_t key = (uint64_t)(unsigned)peer << 33 | (uint64_t)receive << 32 | tag;
    size_t at = (size_t)tdm_mix64(key) & (capacity - 1);
    while (pairs[at].used &&
           (pairs[at].peer != peer || pairs[at].tag != tag || pairs[at].receive != receive))
        at = (at + 1) & (capacity - 1);
    return &pairs[at];
}

/* Doubles the table; keeps the old one if memory runs out. */
static bool group_grow_pairs(tdm_group *group)
{
    size_t capacity = group->pair_capacity ? 2 * group->pair_capacity : FIRST_PAIRS;
    tdm__pair_count *pairs = calloc(capacity, sizeof(*pairs));
    if (!pairs) return false;
    for (size_t i = 0; i < group->pair_capacity; i++) {
        const tdm__pair_count *old = &group->pair_counts[i];
        if (old->used) *group_find_pair(pairs, capacity, old->peer, old->tag, old->receive) = *old;
    }
    free(group->pair_counts);
    group->pair_counts = pairs;
    group->pair_capacity = capacity;
    return true;
}

bool tdm__group_pair_next(tdm_group *group, int peer, uint32_t tag, bool receive, uint32_t *out)
{
    if (2 * (group->pair_count + 1) > group->pair_capacity && !group_grow_pairs(group))
        return false;
    tdm__pair_count *pair = group_find_pair(group->pair_counts, group->pair_capacity, peer, tag,
                                            receive);
    if (!pair->used) {
        *pair = (tdm__pair_count){.peer = peer, .tag = tag, .receive = receive, .used = true};
        group->pair_count++;
    }
    *out = pair->count++;
    return true;
}

void tdm__group_free(tdm_group *group)
{
    if (!group) return;
    free(group->ranks);
    free(group->host_of);
    free(group->local_of);
    free(group->host_size);
    free(group->pair_counts);
    if (group->has_plan) {
        tdm__tree_plan_release(&group->plan);
        tdm__leaves_release(&group->leaves);
    }
    free(group);
}

/* Numbers the hosts by first appearance, and the members within them. False: out of memory. */
static bool group_find_hosts(tdm_group *group)
{
    const tdm_comm *comm = group->comm;
    int *number = malloc((size_t)comm->size * sizeof(*number)); /* by the comm's host index */
    if (!number) return false;
    memset(number, -1, (size_t)comm->size * sizeof(*number));
    for (int i = 0; i < group->size; i++) {
        int *host = &number[comm->host_of[group->ranks[i]]];
        if (*host < 0) *host = group->host_count++;
        group->host_of[i] = *host;
        group->local_of[i] = group->host_size[*host]++;
    }
    free(number);
    return true;
}

tdm_status tdm__group_make(tdm_comm *comm, const int *ranks, int count, uint32_t id,
                           tdm_group **out, tdm_error *err)
{
    tdm_group *group = calloc(1, sizeof(*group));
    size_t size = (size_t)count * sizeof(int);
    if (group) {
        group->ranks = malloc(size);
        group->host_of = malloc(size);
        group->local_of = malloc(size);
        group->host_size = calloc((size_t)count, sizeof(int));
    }
    if (!group || !group->ranks || !group->host_of || !group->local_of || !group->host_size)
        goto no_memory;
    memcpy(group->ranks, ranks, size);
    group->comm = comm;
    group->id = id;
    group->size = count;
    group->rank = -1;
    for (int i = 0; i < count; i++)
        if (ranks[i] == comm->rank) group->rank = i;
    if (!group_find_hosts(group)) goto no_memory;
    *out = group;
    return TDM_OK;
no_memory:
    tdm__group_free(group);
    return tdm_fail_oom(err, "for a group of %d ranks", count);
}

/* ---- window ----------------------------------------------------------------------------------- */

static tdm_status window_pass_offset(tdm_group *group, int peer, bool receive, uint64_t *offset,
                                     tdm_error *err)
{
    tdm_call call = {.kind = receive ? TDM_CALL_RECV : TDM_CALL_SEND,
                     .dtype = TDM_DTYPE_U8,
                     .count = sizeof(*offset),
                     .in = receive ? NULL : offset,
                     .out = receive ? offset : NULL,
                     .root = peer,
                     .tag = WINDOW_TAG};
    return tdm_call_run(group, &call, err);
}

tdm_status tdm__group_window(tdm_group *group, tdm_error *err)
{
    tdm_comm *comm = group->comm;
    int host = group->host_of[group->rank];
    int local_count = group->host_size[host];
    if (!comm->host || local_count < 2) return TDM_OK;
    uint64_t offset = 0;
    int lowest = 0;
    while (group->host_of[lowest] != host) lowest++;
    if (lowest != group->rank) {
        TDM_TRY(window_pass_offset(group, lowest, true, &offset, err));
    } else {
        TDM_TRY(tdm__window_make(comm->host, local_count, &offset, err));
        for (int i = lowest + 1; i < group->size; i++)
            if (group->host_of[i] == host)
                TDM_TRY(window_pass_offset(group, i, false, &offset, err));
    }
    return tdm__window_enter(group, offset, err);
}

/* ---- creation and destruction ----------------------------------------------------------------- */

/* The ID of the next group of this list; 0 if memory runs out. */
static uint32_t group_next_id(tdm_comm *comm, const int *ranks, int count)
{
    uint64_t hash = tdm_hash64(ranks, (size_t)count * sizeof(*ranks));
    tdm__list_count *list = comm->list_counts;
    while (list && list->hash != hash) list = list->next;
    if (!list) {
        list = calloc(1, sizeof(*list));
        if (!list) return 0;
        list->hash = hash;
        list->next = comm->list_counts;
        comm->list_counts = list;
    }
    uint32_t id = (uint32_t)tdm_mix64(hash + list->count++);
    return id == 0 || id == TDM__ALL_GROUPS ? 1 : id; /* 0 is the world */
}

void tdm__list_counts_free(tdm_comm *comm)
{
    while (comm->list_counts) {
        tdm__list_count *list = comm->list_counts;
        comm->list_counts = list->next;
        free(list);
    }
}

static tdm_status group_check_ranks(const tdm_comm *comm, const int *ranks, int count,
                                    tdm_error *err)
{
    if (count < 1 || count > comm->size)
        return tdm_fail(err, TDM_ERR_RANGE, "cannot create a group of %d ranks in a world of %d",
                        count, comm->size);

    bool *inside = calloc((size_t)comm->size, sizeof(*inside));
    if (!inside) return tdm_fail_oom(err, "for a group of %d ranks", count);

    tdm_status status = TDM_OK;
    for (int i = 0; i < count && status == TDM_OK; i++) {
        if (ranks[i] < 0 || ranks[i] >= comm->size)
            status = tdm_fail(err, TDM_ERR_RANGE,
                              "cannot create a group with rank %d in a world of %d", ranks[i],
                              comm->size);
        else if (inside[ranks[i]])
            status = tdm_fail(err, TDM_ERR_INVALID,
                              "cannot create a group: rank %d is listed twice", ranks[i]);
        else
            inside[ranks[i]] = true;
    }

    if (status == TDM_OK && !inside[comm->rank])
        status = tdm_fail(err, TDM_ERR_INVALID,
                          "rank %d is not in the list of the group it creates; only members may "
                          "create a group",
                          comm->rank);
    free(inside);
    return status;
}

static void group_add(tdm_comm *comm, tdm_group *group)
{
    group->next = comm->groups;
    comm->groups = group;
    group->broken = comm->revoked;
    if (comm->revoked.status != TDM_OK) atomic_store(&group->is_broken, true);
    for (int i = 0; i < group->size; i++)
        if (comm->peer_states[group->ranks[i]] == TDM_PEER_LOST)
            tdm__group_break(group, false, TDM_ERR_PEER_FAILED,
                             "rank %d failed before this group was created", group->ranks[i]);
    const tdm_error *word = tdm__early_word(comm, group->id);
    if (word) tdm__group_break(group, false, word->status, "%s", word->message);
    tdm__record(comm->recorder, (tdm_trace_event){.kind = TDM_TRACE_GROUP,
                                                  .peer = -1,
                                                  .group = group->id,
                                                  .bytes = (uint64_t)group->size});
}

tdm_status tdm_group_create(tdm_comm *comm, const int *ranks, int count, tdm_group **out,
                            tdm_error *err)
{
    TDM_TRY(group_check_ranks(comm, ranks, count, err));

    tdm__comm_lock(comm);
    uint32_t id = group_next_id(comm, ranks, count);
    tdm_group *group = NULL;
    tdm_status status = TDM_OK;
    if (id == 0)
        status = tdm_fail_oom(err, "for a group of %d ranks", count);
    else if (tdm__comm_group(comm, id))
        status = tdm_fail(err, TDM_ERR_EXISTS,
                          "two groups of this rank have the same ID %08x by coincidence; create "
                          "this one with its ranks in another order",
                          id);
    if (status == TDM_OK) status = tdm__group_make(comm, ranks, count, id, &group, err);
    if (status == TDM_OK) group_add(comm, group);
    tdm__comm_unlock(comm);

    if (status != TDM_OK) return status;
    tdm_error error;
    status = tdm__group_window(group, &error);
    if (status != TDM_OK) {
        tdm__comm_lock(comm); /* the other members need not wait for this rank */
        tdm__group_break(group, true, TDM_ERR_PEER_FAILED, "rank %d could not create a group: %s",
                         comm->rank, error.message);
        tdm__comm_unlock(comm);
        tdm_fail(err, status, "cannot create a group of %d ranks: %s", count, error.message);
        tdm_group_destroy(group);
        return status;
    }

    *out = group;
    return TDM_OK;
}

void tdm_group_destroy(tdm_group *group)
{
    if (!group || group->id == 0) return; /* the world is destroyed with its comm */
    tdm_comm *comm = group->comm;
    tdm__comm_lock(comm);
    tdm_group **link = &comm->groups;
    while (*link && *link != group) link = &(*link)->next;
    if (*link) *link = group->next;
    tdm__transfers_drop(comm, &group->id);
    if (group->broken.status != TDM_OK)
        tdm__early_keep(comm, group->id, group->broken.status, group->broken.message);
    tdm__comm_unlock(comm);
    if (group->window) tdm__window_leave(group);
    tdm__group_free(group);
}

int tdm_group_rank(const tdm_group *group)
{
    return group->rank;
}

int tdm_group_size(const tdm_group *group)
{
    return group->size;
}

int tdm_group_world_rank(const tdm_group *group, int rank)
{
    return rank >= 0 && rank < group->size ? group->ranks[rank] : -1;
}

tdm_status tdm_group_check(const tdm_group *group, tdm_error *err)
{
    if (!atomic_load_explicit(&group->is_broken, memory_order_acquire)) return TDM_OK;
    tdm_comm *comm = group->comm;
    tdm__comm_lock(comm);
    tdm_error broken = group->broken;
    tdm__comm_unlock(comm);
    return broken.status == TDM_OK ? TDM_OK : tdm_fail(err, broken.status, "%s", broken.message);
}
