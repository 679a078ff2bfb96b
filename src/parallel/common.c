/*
 * common.c: sums if all ranks share the memory of the gradients.
 *
 * Ranks of one node have their gradient buffers in shared memory. After its lanes a rank writes to a
 * board which sub-trees it has summed, where they are, and its report. When all ranks have done so, each rank
 * adds the rest of the tree for its own cells, reading the buffers of the others in place.
 *
 * Invariants: an entry of the board is written only by its rank, before the barrier. After the barrier, until the
 * end of the step, gradients are written only by the owner of a cell. There are two boards, used
 * alternately, because a rank may begin the next step while another still reads this one's board; it
 * cannot be two steps ahead, because every step has a barrier.
 *
 * In a session, buffers and boards are in the host's shared memory, by slot, and an entry has its step and
 * epoch: so other ranks can compute the sums of a step when ranks have died (recover.c).
 */
#include "base/base.h"
#include "comm/comm.h"
#include "os/os.h"
#include "parallel/internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One rank's entry on the board. */
typedef struct board_entry {
    uint64_t step;
    uint32_t epoch;
    tdm__step_report note;
    int64_t part_count;
    struct {
        int64_t node;
        uint64_t place;
        double loss;
    } parts[TDM_MAX_LANE_PARTS];
} board_entry;

struct tdm__common {
    board_entry *boards;  /* two, of worker_slots entries each */
    size_t worker_slots;  /* one per rank; in the host's shared memory, one per slot */
    int64_t *worker_slot; /* by place */
    bool owns_board;
    unsigned turn;
};

/* Allocates memory for all ranks: the first rank allocates it, the others get its location. */
static tdm_status common_allocate(tdm_team *team, size_t bytes, void **out, tdm_error *err)
{
    const tdm__layout *l = team->layout;
    uint64_t place = UINT64_MAX;
    void *memory = NULL;
    tdm_status status = TDM_OK;
    if (team->place == 0) {
        status = tdm_comm_shared(l->comm, bytes, &memory, err);
        if (status == TDM_OK) place = tdm_comm_shared_place(l->comm, memory);
    }
    /* In any case: the others wait for the broadcast. */
    TDM_TRY(tdm_group_broadcast(team->group, &place, 1, TDM_DTYPE_I64, 0, err));
    TDM_TRY(status);
    *out = team->place == 0 ? memory : tdm_comm_shared_at(l->comm, place);
    if (!*out)
        return tdm_fail(err, TDM_ERR_NO_MEMORY,
                        "the first rank of the host could not allocate shared memory");
    return TDM_OK;
}

/* ---- in the host's shared memory ----------------------------------------------------------------- */

enum { BOARDS_BYTES = 2 * TDM__UNDO_MAX_SLOTS * sizeof(board_entry) };

/* The maximum number of buffers of a rank: they use memory only when they are touched. */
static size_t common_max_buffers(const tdm_team *team)
{
    size_t lanes = (size_t)team->options.lane_count, levels = 1;
    while (((size_t)1 << levels) < lanes) levels++;
    return team->side_by_side || lanes < 2 * levels + 1 ? lanes : 2 * levels + 1;
}

static void grads_region_name(int slot, char out[TDM_SHM_NAME_BYTES])
{
    snprintf(out, TDM_SHM_NAME_BYTES, "grads-%d", slot);
}

static tdm_status common_create_in_shm(tdm_team *team, tdm_error *err)
{
    tdm__common *c = team->common;
    tdm__undo_log *j = team->undo_log;
    char name[TDM_SHM_NAME_BYTES];
    void *memory;
    grads_region_name(j->slot, name);
    assert((size_t)team->buffer_count <= common_max_buffers(team));
    size_t bytes = common_max_buffers(team) * team->block_extent * sizeof(float);
    TDM_TRY(tdm_shm_region_take(j->shm, name, bytes, NULL, &memory, err));
    team->grads = memory;
    TDM_TRY(tdm_shm_region_take(j->shm, "cards", BOARDS_BYTES, NULL, &memory, err));
    c->boards = memory;
    c->worker_slots = TDM__UNDO_MAX_SLOTS;
    c->worker_slot[team->place] = j->slot;
    if (team->group)
        TDM_TRY(tdm_group_all_gather(team->group, NULL, c->worker_slot, (size_t)team->size,
                                     TDM_DTYPE_I64, err));
    for (int i = 0; i < team->size;
         i++) { /* map the buffers of the others, to read them in place */
        grads_region_name((int)c->worker_slot[i], name);
        TDM_TRY(tdm_shm_region_take(j->shm, name, bytes, NULL, &memory, err));
    }
    return TDM_OK;
}

tdm_status tdm__common_parts_load(const tdm__undo_log *j, const tdm__tree *tree,
                                  const tdm__begun *begun, tdm_error *err)
{
    void *memory;
    TDM_TRY(tdm_shm_region_take(j->shm, "cards", BOARDS_BYTES, NULL, &memory, err));
    for (size_t i = 0; i < 2 * (size_t)TDM__UNDO_MAX_SLOTS; i++) {
        const board_entry *from = (board_entry *)memory + i;
        if (from->step != begun->step || from->epoch != begun->epoch || begun->epoch == 0) continue;
        char name[TDM_SHM_NAME_BYTES];
        void *grads;
        grads_region_name((int)(i % TDM__UNDO_MAX_SLOTS), name);
        TDM_TRY(tdm_shm_region_find(j->shm, name, NULL, &grads, err));
        for (int64_t k = 0; k < from->part_count && k < TDM_MAX_LANE_PARTS; k++) {
            int64_t node = from->parts[k].node;
            float *at = tdm_shm_at(j->shm, from->parts[k].place);
            if (node < 1 || node >= 2 * tree->lane_count || !at)
                return tdm_fail(err, TDM_ERR_FORMAT,
                                "a board entry in this host's shared memory is damaged");
            tree->held[node] = at;
        }
    }
    return TDM_OK;
}

/* ---- creation and use ---------------------------------------------------------------------------- */

tdm_status tdm__common_create(tdm_team *team, tdm_error *err)
{
    tdm_comm *comm = team->layout->comm;
    team->common = calloc(1, sizeof(*team->common));
    if (!team->common) return tdm_fail_oom(err, "for the team");
    team->common->worker_slot = calloc((size_t)team->size, sizeof(*team->common->worker_slot));
    if (!team->common->worker_slot) return tdm_fail_oom(err, "for the team");
    if (team->undo_log) return common_create_in_shm(team, err);
    for (int i = 0; i < team->size; i++) team->common->worker_slot[i] = i;
    team->common->worker_slots = (size_t)team->size;
    void *memory;
    size_t bytes = (size_t)team->buffer_count * team->block_extent * sizeof(float);
    TDM_TRY(tdm_comm_shared(comm, bytes, &memory, err));
    team->grads = memory;
    TDM_TRY(common_allocate(team, 2 * (size_t)team->size * sizeof(board_entry), &memory, err));
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

static uint64_t memory_place(const tdm_team *team, const void *memory)
{
    return team->undo_log ? tdm_shm_offset(team->undo_log->shm, memory)
                          : tdm_comm_shared_place(team->layout->comm, memory);
}

static void *memory_at(const tdm_team *team, uint64_t place)
{
    return team->undo_log ? tdm_shm_at(team->undo_log->shm, place)
                          : tdm_comm_shared_at(team->layout->comm, place);
}

static void board_entry_write(const tdm_team *team, const tdm__step_report *mine, board_entry *out)
{
    out->epoch = 0; /* invalid while it is written */
    tdm__undo_barrier();
    out->step = team->in.step;
    out->note = *mine;
    out->part_count = team->part_count;
    for (int i = 0; i < team->part_count; i++) {
        const tdm__part *part = &team->parts[i];
        out->parts[i].node = part->node;
        out->parts[i].place = memory_place(team, part->grads);
        out->parts[i].loss = part->loss;
    }
    tdm__undo_barrier();
    out->epoch = team->undo_log ? team->undo_log->epoch : 0;
}

static void board_entry_read(tdm_team *team, int place, const board_entry *from)
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
    board_entry *board = c->boards + (size_t)(c->turn++ % 2) * c->worker_slots;
    size_t nodes = 2 * (size_t)team->options.lane_count;
    board_entry_write(team, mine, &board[c->worker_slot[team->place]]);
    double begin = tdm_clock_s();
    if (team->group) TDM_TRY(tdm_group_barrier(team->group, err));
    team->wait_seconds += tdm_clock_s() - begin;
    memset(team->tree.held, 0, nodes * sizeof(*team->tree.held));
    memset(team->has_loss, 0, nodes * sizeof(*team->has_loss));
    for (int i = 0; i < team->size; i++) board_entry_read(team, i, &board[c->worker_slot[i]]);
    return TDM_OK;
}
