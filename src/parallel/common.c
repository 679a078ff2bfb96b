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
 * With updates in order (update_order.c) ranks can be on several nodes. Each node then has all gradients of the step in
 * its memory: the first ranks of the nodes send each other those of their nodes, between two barriers, and add them to
 * their entries of the board. So every node can complete the step alone.
 *
 * Buffers and boards are regions of the node's memory, by slot, and an entry has its step and epoch. In a session
 * they survive: so other ranks can compute the sums of a step when ranks have died (recover.c).
 */
#include "base/base.h"
#include "comm/comm.h"
#include "job/job.h"
#include "os/os.h"
#include "parallel/internal.h"
#include "parallel/replicas.h"

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

/* What all ranks must know of a rank on another node. */
typedef struct remote_report {
    tdm__step_report note;
    uint64_t made; /* bit i: it has the gradient of update i */
    double losses[TDM_ORDER_MAX_WORKERS];
} remote_report;

struct tdm__common {
    board_entry *boards;    /* two, of TDM__UNDO_MAX_SLOTS entries each */
    int64_t *worker_slot;   /* by place: its entry */
    float **buffers;        /* by place: its gradient buffers; NULL: on another node */
    remote_report *reports; /* by place; NULL: there is one node */
    unsigned turn;
};

enum { BOARDS_BYTES = 2 * TDM__UNDO_MAX_SLOTS * sizeof(board_entry) };

/* The number of buffers in the region of a rank. Those of several ranks, or of several epochs, must have the same
 * size: the maximum, of which only touched buffers use memory. A process on its own makes no larger region than it
 * needs, because limits on address space (ulimit -v, vm.overcommit_memory = 2) apply to it. */
static size_t common_region_buffers(const tdm_team *team)
{
    size_t lanes = (size_t)team->options.lane_count, levels = 1;
    if (team->size == 1 && !team->undo_log->memory->outlives) return (size_t)team->buffer_count;
    while (((size_t)1 << levels) < lanes) levels++;
    if (tdm_job_is_async(team->job))
        return (size_t)tdm_replicas_of(team->job) + 2 * levels + 1; /* one for each replica */
    return team->side_by_side || lanes < 2 * levels + 1 ? lanes : 2 * levels + 1;
}

tdm_status tdm__common_parts_load(const tdm__undo_log *j, const tdm__tree *tree,
                                  const tdm__begun *begun, tdm_error *err)
{
    board_entry *boards = NULL;
    TDM_TRY(tdm__region_take(j->memory, "step-boards", -1, BOARDS_BYTES, TDM__REGION_SPARSE,
                             &boards, err));
    for (int i = 0; i < 2 * TDM__UNDO_MAX_SLOTS; i++) {
        const board_entry *from = &boards[i];
        if (from->step != begun->first || from->epoch != begun->epoch || begun->epoch == 0)
            continue;
        float *grads = NULL;
        TDM_TRY(
            tdm__region_find(j->memory, "gradients", i % TDM__UNDO_MAX_SLOTS, NULL, &grads, err));
        for (int64_t k = 0; k < from->part_count && k < TDM_MAX_LANE_PARTS; k++) {
            int64_t node = from->parts[k].node;
            float *at = tdm_shm_at(j->memory->shm, from->parts[k].place);
            if (!grads || node < 1 || node >= 2 * tree->lane_count || !at)
                return tdm_fail(err, TDM_ERR_FORMAT,
                                "a board entry in this host's shared memory is damaged");
            tree->held[node] = at;
        }
    }
    return TDM_OK;
}

/* ---- creation and use ---------------------------------------------------------------------------- */

static bool is_on_this_node(const tdm_team *team, int place)
{
    return team->layout->node_of_place[place] == team->layout->node;
}

tdm_status tdm__common_create(tdm_team *team, tdm_error *err)
{
    const tdm__node_memory *memory = team->undo_log->memory;
    size_t count = (size_t)team->size;
    tdm__common *c = calloc(1, sizeof(*c));
    if (!c) return tdm_fail_oom(err, "for the team");
    team->common = c;
    c->worker_slot = calloc(count, sizeof(*c->worker_slot));
    c->buffers = calloc(count, sizeof(*c->buffers));
    if (!c->worker_slot || !c->buffers) return tdm_fail_oom(err, "for the team");

    TDM_TRY(tdm__region_take(memory, "step-boards", -1, BOARDS_BYTES, TDM__REGION_SPARSE,
                             &c->boards, err));
    c->worker_slot[team->place] = team->undo_log->slot;
    if (team->group)
        TDM_TRY(tdm_group_all_gather(team->group, NULL, c->worker_slot, count, TDM_DTYPE_I64, err));

    /* Those of the others as well, to read them in place. */
    assert((size_t)team->buffer_count <= common_region_buffers(team));
    size_t bytes = common_region_buffers(team) * team->block_extent * sizeof(float);
    for (int i = 0; i < team->size; i++)
        if (is_on_this_node(team, i))
            TDM_TRY(tdm__region_take(memory, "gradients", (int)c->worker_slot[i],
                                     bytes > 0 ? bytes : 64, TDM__REGION_GROWS, &c->buffers[i],
                                     err));
    if (team->layout->node_count > 1) {
        c->reports = calloc(count, sizeof(*c->reports));
        if (!c->reports) return tdm_fail_oom(err, "for the team");
    }
    team->grads = c->buffers[team->place];
    return TDM_OK;
}

void tdm__common_destroy(tdm_team *team)
{
    tdm__common *c = team->common;
    if (!c) return;
    for (int i = 0; i < team->size && c->buffers; i++)
        if (c->buffers[i]) tdm__region_release(team->undo_log->memory, c->buffers[i]);
    tdm__region_release(team->undo_log->memory, c->boards);
    team->grads = NULL;
    free(c->buffers);
    free(c->worker_slot);
    free(c->reports);
    free(c);
    team->common = NULL;
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
        out->parts[i].place = tdm_shm_offset(team->undo_log->memory->shm, part->grads);
        out->parts[i].loss = part->loss;
    }
    tdm__undo_barrier();
    out->epoch = team->undo_log->epoch;
}

static void board_entry_read(tdm_team *team, int place, const board_entry *from)
{
    team->notes[place] = from->note;
    for (int64_t i = 0; i < from->part_count; i++) {
        int64_t node = from->parts[i].node;
        team->tree.held[node] = tdm_shm_at(team->undo_log->memory->shm, from->parts[i].place);
        team->losses[node] = from->parts[i].loss;
        team->has_loss[node] = true;
    }
}

/* Reads the entries of the ranks of this node. */
static void board_read(tdm_team *team, const board_entry *board)
{
    const tdm__common *c = team->common;
    size_t nodes = 2 * (size_t)team->options.lane_count;
    memset(team->tree.held, 0, nodes * sizeof(*team->tree.held));
    memset(team->has_loss, 0, nodes * sizeof(*team->has_loss));
    for (int i = 0; i < team->size; i++)
        if (is_on_this_node(team, i)) board_entry_read(team, i, &board[c->worker_slot[i]]);
}

/* ---- several nodes -------------------------------------------------------------------------------- */

/* Sends the gradient of an update to all nodes. By the first rank of each node. */
static tdm_status gradient_send(tdm_team *team, int64_t update, int source, double loss,
                                tdm_error *err)
{
    int64_t node = tdm__params_replicas(team->options.store)->count + team->in.order[update].worker;
    bool receives = source != team->layout->node;
    float *grads = receives ? tdm__team_take_buffer(team, false) : team->tree.held[node];
    if (!grads)
        return tdm_fail(err, TDM_ERR_INTERNAL, "the gradient of update %llu is missing",
                        (unsigned long long)(team->in.step + (uint64_t)update) + 1);
    TDM_TRY(tdm_group_broadcast(team->layout->leaders, grads, team->grad_extent, TDM_DTYPE_F32,
                                source, err));
    if (receives)
        team->parts[team->part_count++] = (tdm__part){.node = node, .grads = grads, .loss = loss};
    return TDM_OK;
}

/* All ranks get the reports of all; every node gets the gradients of the others. After this no rank of a node has
 * more to write than the entry of the first one, which the barrier after it completes. */
static tdm_status gradients_exchange(tdm_team *team, const tdm__step_report *mine,
                                     board_entry *board, tdm_error *err)
{
    tdm__common *c = team->common;
    const tdm__layout *layout = team->layout;
    int64_t replicas = tdm__params_replicas(team->options.store)->count;
    remote_report *own = &c->reports[team->place];
    *own = (remote_report){.note = *mine};
    for (int64_t i = 0; i < team->in.inner_count; i++) {
        int64_t node = replicas + team->in.order[i].worker;
        if (!team->tree.held[node]) continue;
        own->made |= UINT64_C(1) << i;
        tdm__tree_loss(team, node, &own->losses[i]);
    }
    TDM_TRY(tdm_group_all_gather(team->group, NULL, c->reports,
                                 (size_t)team->size * sizeof(*c->reports), TDM_DTYPE_U8, err));
    for (int i = 0; i < team->size; i++) team->notes[i] = c->reports[i].note;
    if (!layout->leaders) return TDM_OK;

    board_read(team, board);
    for (int64_t i = 0; i < team->in.inner_count; i++) {
        int place = 0;
        while (place < team->size && !(c->reports[place].made >> i & 1)) place++;
        if (place == team->size)
            return tdm_fail(err, TDM_ERR_INTERNAL, "no rank has the gradient of update %llu",
                            (unsigned long long)(team->in.step + (uint64_t)i) + 1);
        TDM_TRY(
            gradient_send(team, i, layout->node_of_place[place], c->reports[place].losses[i], err));
    }
    board_entry_write(team, mine, &board[c->worker_slot[team->place]]);
    return TDM_OK;
}

/* ---- the end of the lanes -------------------------------------------------------------------------- */

tdm_status tdm__common_meet(tdm_team *team, const tdm__step_report *mine, tdm_error *err)
{
    tdm__common *c = team->common;
    board_entry *board = c->boards + (size_t)(c->turn++ % 2) * TDM__UNDO_MAX_SLOTS;
    board_entry_write(team, mine, &board[c->worker_slot[team->place]]);
    double begin = tdm_clock_s();
    if (c->reports) TDM_TRY(gradients_exchange(team, mine, board, err));
    if (team->group) TDM_TRY(tdm_group_barrier(team->group, err));
    team->wait_seconds += tdm_clock_s() - begin;
    board_read(team, board);
    return TDM_OK;
}
