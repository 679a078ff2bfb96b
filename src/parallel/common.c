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
 */
#include "parallel/internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct card {
    tdm__note note;
    int64_t part_count;
    struct {
        int64_t node;
        uint64_t place;
        double loss;
    } parts[TDM_LANE_PARTS_MOST];
} card;

struct tdm__common {
    card *boards; /* two, of `size` cards each */
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

tdm_status tdm__common_create(tdm_team *team, tdm_error *err)
{
    tdm_comm *comm = team->layout->comm;
    team->common = calloc(1, sizeof(*team->common));
    if (!team->common) return tdm_fail(err, TDM_ERR_NO_MEMORY, "team: no memory");
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
    if (team->grads) tdm_comm_shared_free(team->layout->comm, team->grads);
    if (c->owns_board) tdm_comm_shared_free(team->layout->comm, c->boards);
    team->grads = NULL;
    free(c);
    team->common = NULL;
}

static void write_card(const tdm_team *team, const tdm__note *mine, card *out)
{
    out->note = *mine;
    out->part_count = team->part_count;
    for (int i = 0; i < team->part_count; i++) {
        const tdm__part *part = &team->parts[i];
        out->parts[i].node = part->node;
        out->parts[i].place = tdm_comm_shared_place(team->layout->comm, part->grads);
        out->parts[i].loss = part->loss;
    }
}

static void read_card(tdm_team *team, int place, const card *from)
{
    team->notes[place] = from->note;
    for (int64_t i = 0; i < from->part_count; i++) {
        int64_t node = from->parts[i].node;
        team->tree.held[node] = tdm_comm_shared_at(team->layout->comm, from->parts[i].place);
        team->losses[node] = from->parts[i].loss;
        team->has_loss[node] = true;
    }
}

tdm_status tdm__common_meet(tdm_team *team, const tdm__note *mine, tdm_error *err)
{
    tdm__common *c = team->common;
    card *board = c->boards + (size_t)(c->turn++ % 2) * (size_t)team->size;
    size_t nodes = 2 * (size_t)team->options.lane_count;
    write_card(team, mine, &board[team->place]);
    double begin = tdm_clock_s();
    TDM_TRY(tdm_group_barrier(team->group, err));
    team->wait_seconds += tdm_clock_s() - begin;
    memset(team->tree.held, 0, nodes * sizeof(*team->tree.held));
    memset(team->has_loss, 0, nodes * sizeof(*team->has_loss));
    for (int i = 0; i < team->size; i++) read_card(team, i, &board[i]);
    return TDM_OK;
}
