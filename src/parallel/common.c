/*
 * common.c: sums where all ranks see all gradients.
 *
 * Ranks of one node have their gradient buffers in common memory. After its lanes a rank writes on the
 * board which sub-trees it has added up and where they lie, and how it fared; when all have, each rank
 * adds the rest of the tree for its own cells, reading the others' buffers where they are.
 *
 * Invariants: a card is written by its rank alone, before the barrier; after it, until the end of the
 * step, nobody writes to gradients but the owner of a cell to that cell. There are two boards, used in
 * turn, because a rank may begin the next step while another still reads the cards of this one; it
 * cannot be two steps ahead, because every step has a barrier.
 *
 * With a vault, buffers and boards lie in it, by slot, and a card says which step of which epoch it speaks
 * of: so the sums of a step can be added up by others when ranks have died (recover.c).
 */
#include "parallel/internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct card {
    uint64_t step;
    uint32_t epoch;
    tdm__step_report note;
    int64_t part_count;
    struct {
        int64_t node;
        uint64_t place;
        double loss;
    } parts[TDM_MAX_LANE_PARTS];
} card;

struct tdm__common {
    card *boards;         /* two, of `seats` cards each */
    size_t worker_slots;  /* one for each rank; in a vault, for each slot */
    int64_t *worker_slot; /* by place */
    bool owns_board;
    unsigned turn;
};

/* One copy of `bytes` for all: the first rank takes it, the others are told where it is. */
static tdm_status share(tdm_team *team, size_t bytes, void **out, tdm_error *err)
{
    const tdm__layout *l = team->layout;
    uint64_t place = UINT64_MAX;
    void *memory = NULL;
    tdm_status status = TDM_OK;
    if (team->place == 0) {
        status = tdm_comm_shared(l->comm, bytes, &memory, err);
        if (status == TDM_OK) place = tdm_comm_shared_place(l->comm, memory);
    }
    /* Whatever happened: the others wait for an answer. */
    TDM_TRY(tdm_group_broadcast(team->group, &place, 1, TDM_DTYPE_I64, 0, err));
    TDM_TRY(status);
    *out = team->place == 0 ? memory : tdm_comm_shared_at(l->comm, place);
    if (!*out)
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "the first rank of the host has no shared memory");
    return TDM_OK;
}

/* ---- in a vault --------------------------------------------------------------------------------- */

enum { BOARDS_BYTES = 2 * TDM__UNDO_MAX_SLOTS * sizeof(card) };

/* As many buffers as a rank ever needs: they have memory only where they are used. */
static size_t max_buffers(const tdm_team *team)
{
    size_t lanes = (size_t)team->options.lane_count, levels = 1;
    while (((size_t)1 << levels) < lanes) levels++;
    return team->side_by_side || lanes < 2 * levels + 1 ? lanes : 2 * levels + 1;
}

static void name_grads(int slot, char out[TDM_SHM_NAME_BYTES])
{
    snprintf(out, TDM_SHM_NAME_BYTES, "grads-%d", slot);
}

static tdm_status create_in_vault(tdm_team *team, tdm_error *err)
{
    tdm__common *c = team->common;
    tdm__undo_log *j = team->undo_log;
    char name[TDM_SHM_NAME_BYTES];
    void *memory;
    name_grads(j->slot, name);
    assert((size_t)team->buffer_count <= max_buffers(team));
    size_t bytes = max_buffers(team) * team->block_extent * sizeof(float);
    TDM_TRY(tdm_shm_region_take(j->shm, name, bytes, NULL, &memory, err));
    team->grads = memory;
    TDM_TRY(tdm_shm_region_take(j->shm, "cards", BOARDS_BYTES, NULL, &memory, err));
    c->boards = memory;
    c->worker_slots = TDM__UNDO_MAX_SLOTS;
    c->worker_slot[team->place] = j->slot;
    if (team->group)
        TDM_TRY(tdm_group_all_gather(team->group, NULL, c->worker_slot, (size_t)team->size,
                                     TDM_DTYPE_I64, err));
    for (int i = 0; i < team->size; i++) { /* others' buffers, to be read where they lie */
        name_grads((int)c->worker_slot[i], name);
        TDM_TRY(tdm_shm_region_take(j->shm, name, bytes, NULL, &memory, err));
    }
    return TDM_OK;
}

tdm_status tdm__common_snapshot_load(const tdm__undo_log *j, const tdm__tree *tree,
                                     const tdm__begun *begun, tdm_error *err)
{
    void *memory;
    TDM_TRY(tdm_shm_region_take(j->shm, "cards", BOARDS_BYTES, NULL, &memory, err));
    for (size_t i = 0; i < 2 * (size_t)TDM__UNDO_MAX_SLOTS; i++) {
        const card *from = (card *)memory + i;
        if (from->step != begun->step || from->epoch != begun->epoch || begun->epoch == 0) continue;
        char name[TDM_SHM_NAME_BYTES];
        void *grads;
        name_grads((int)(i % TDM__UNDO_MAX_SLOTS), name);
        TDM_TRY(tdm_shm_region_find(j->shm, name, NULL, &grads, err));
        for (int64_t k = 0; k < from->part_count && k < TDM_MAX_LANE_PARTS; k++) {
            int64_t node = from->parts[k].node;
            float *at = tdm_shm_at(j->shm, from->parts[k].place);
            if (node < 1 || node >= 2 * tree->lane_count || !at)
                return tdm_fail(err, TDM_ERR_FORMAT, "a card in this host's memory is damaged");
            tree->held[node] = at;
        }
    }
    return TDM_OK;
}

/* ---- the team's ---------------------------------------------------------------------------------- */

tdm_status tdm__common_create(tdm_team *team, tdm_error *err)
{
    tdm_comm *comm = team->layout->comm;
    team->common = calloc(1, sizeof(*team->common));
    if (!team->common) return tdm_fail(err, TDM_ERR_NO_MEMORY, "team: no memory");
    team->common->worker_slot = calloc((size_t)team->size, sizeof(*team->common->worker_slot));
    if (!team->common->worker_slot) return tdm_fail(err, TDM_ERR_NO_MEMORY, "team: no memory");
    if (team->undo_log) return create_in_vault(team, err);
    for (int i = 0; i < team->size; i++) team->common->worker_slot[i] = i;
    team->common->worker_slots = (size_t)team->size;
    void *memory;
    size_t bytes = (size_t)team->buffer_count * team->block_extent * sizeof(float);
    TDM_TRY(tdm_comm_shared(comm, bytes, &memory, err));
    team->grads = memory;
    TDM_TRY(share(team, 2 * (size_t)team->size * sizeof(card), &memory, err));
    team->common->boards = memory;
    team->common->owns_board = team->place == 0;
    return TDM_OK;
}

void tdm__common_destroy(tdm_team *team)
{
    tdm__common *c = team->common;
    if (!c) return;
    if (team->grads && !team->undo_log) tdm_comm_shared_free(team->layout->comm, team->grads);
    if (c->owns_board) tdm_comm_shared_free(team->layout->comm, c->boards);
    team->grads = NULL;
    free(c->worker_slot);
    free(c);
    team->common = NULL;
}

static uint64_t place_of(const tdm_team *team, const void *memory)
{
    return team->undo_log ? tdm_shm_offset(team->undo_log->shm, memory)
                          : tdm_comm_shared_place(team->layout->comm, memory);
}

static void *memory_at(const tdm_team *team, uint64_t place)
{
    return team->undo_log ? tdm_shm_at(team->undo_log->shm, place)
                          : tdm_comm_shared_at(team->layout->comm, place);
}

static void write_card(const tdm_team *team, const tdm__step_report *mine, card *out)
{
    out->epoch = 0; /* it says nothing while it is written */
    tdm__undo_barrier();
    out->step = team->in.step;
    out->note = *mine;
    out->part_count = team->part_count;
    for (int i = 0; i < team->part_count; i++) {
        const tdm__part *part = &team->parts[i];
        out->parts[i].node = part->node;
        out->parts[i].place = place_of(team, part->grads);
        out->parts[i].loss = part->loss;
    }
    tdm__undo_barrier();
    out->epoch = team->undo_log ? team->undo_log->epoch : 0;
}

static void read_card(tdm_team *team, int place, const card *from)
{
    team->notes[place] = from->note;
    for (int64_t i = 0; i < from->part_count; i++) {
        int64_t node = from->parts[i].node;
        team->tree.held[node] = memory_at(team, from->parts[i].place);
        team->losses[node] = from->parts[i].loss;
        team->has_loss[node] = true;
    }
}

tdm_status tdm__common_meet(tdm_team *team, const tdm__step_report *mine, tdm_error *err)
{
    tdm__common *c = team->common;
    card *board = c->boards + (size_t)(c->turn++ % 2) * c->worker_slots;
    size_t nodes = 2 * (size_t)team->options.lane_count;
    write_card(team, mine, &board[c->worker_slot[team->place]]);
    double begin = tdm_clock_s();
    if (team->group) TDM_TRY(tdm_group_barrier(team->group, err));
    team->wait_seconds += tdm_clock_s() - begin;
    memset(team->tree.held, 0, nodes * sizeof(*team->tree.held));
    memset(team->has_loss, 0, nodes * sizeof(*team->has_loss));
    for (int i = 0; i < team->size; i++) read_card(team, i, &board[c->worker_slot[i]]);
    return TDM_OK;
}
