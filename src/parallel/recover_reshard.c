/*
 * recover_reshard.c: sends pieces of the state from nodes that hold them to nodes that need them.
 *
 * Items are the optimiser pieces, followed by the ranges of statistics. A node holds an item if its mark
 * shows that the last update reached it here; it then has all blocks of it. It needs the states of the items
 * that its ranks update in this epoch, and the parameters of all items, unless these are sharded as well. One
 * exchange of a byte per item gives every leader this information for every node, so they agree on what
 * is sent, and from where: from the lowest node that holds it.
 *
 * Adjacent items with the same source are sent together, up to a window; each leader keeps what its
 * node needs. Elements behind the trained ones never change, but a new node has none of them.
 */
#include "base/base.h"
#include "comm/comm.h"
#include "parallel/recover.h"

#include <stdlib.h>
#include <string.h>

enum { WINDOW = 1 << 18 }; /* elements */

typedef struct item {
    size_t begin, count;
    tdm__mark *mark;
} item;

typedef struct resharder {
    tdm_params *store;
    size_t item_count;
    item *items;
    uint8_t *held; /* node_count x item_count */
    int *owner;    /* by item: the node that updates it now; -1: all do */
    float *window;
    int source; /* of data that every node needs: the lowest node in reach */
    uint64_t mark;
} resharder;

/* ---- items ----------------------------------------------------------------------------------- */

static void resharder_add_statistic(void *user, const tdm_param_info *p, size_t index, size_t begin,
                                    size_t count)
{
    resharder *c = user;
    (void)p;
    (void)index;
    c->items[c->item_count] = (item){begin, count, &c->store->undo_log->cells[index]};
    c->item_count++;
}

static void resharder_list_items(resharder *c)
{
    const tdm__undo_log *j = c->store->undo_log;
    for (size_t i = 0; i < j->piece_count; i++) {
        const tdm_optim_piece *piece = tdm_optimiser_piece_at(c->store->optimiser, i);
        c->items[c->item_count++] = (item){piece->begin, piece->count, &j->marks[i]};
    }
    tdm__statistic_visit(c->store->graph, (tdm__cells){0, c->store->layout->trained_cells},
                         resharder_add_statistic, c);
}

/* The node whose ranks update a cell in this epoch. */
static int cell_owner(const tdm__layout *l, size_t cell)
{
    size_t bucket = 0;
    while (tdm__layout_bucket(l, bucket).end <= cell) bucket++;
    tdm__cells range = tdm__layout_bucket(l, bucket);
    for (int place = 0; place < l->size; place++) {
        tdm__cells share = tdm__layout_share(l, range, place);
        if (cell >= share.first && cell < share.end) return l->node_of_place[place];
    }
    return 0;
}

static tdm_status resharder_prepare(resharder *c, tdm_error *err)
{
    const tdm__layout *l = c->store->layout;
    const tdm__undo_log *j = c->store->undo_log;
    size_t max = j->piece_count + j->cell_count + 1;
    c->items = calloc(max, sizeof(*c->items));
    c->held = calloc(max * (size_t)l->node_count, 1);
    c->owner = calloc(max, sizeof(*c->owner));
    c->window = malloc(WINDOW * sizeof(float));
    if (!c->items || !c->held || !c->owner || !c->window)
        return tdm_fail_oom(err, "for a recovery");
    resharder_list_items(c);
    bool all = l->common || l->node_count == 1;
    for (size_t i = 0; i < c->item_count; i++)
        c->owner[i] = all ? -1 : cell_owner(l, c->items[i].begin / TDM__CELL);
    return TDM_OK;
}

static void resharder_release(resharder *c)
{
    free(c->items);
    free(c->held);
    free(c->owner);
    free(c->window);
}

/* ---- needs ------------------------------------------------------------------------------------ */

static bool item_is_held(const resharder *c, int node, size_t i)
{
    return c->held[(size_t)node * c->item_count + i] != 0;
}

static bool item_needs_states(const resharder *c, int node, size_t i)
{
    return c->owner[i] < 0 || c->owner[i] == node;
}

/* Whether a node needs block `b` of an item that it does not hold. */
static bool item_is_needed(const resharder *c, int node, size_t i, int b)
{
    if (item_is_held(c, node, i)) return false;
    return c->store->blocks[b].whole || item_needs_states(c, node, i);
}

static int item_source(const resharder *c, size_t i)
{
    for (int node = 0; node < c->store->layout->node_count; node++)
        if (item_is_held(c, node, i)) return node;
    return -1;
}

static bool item_is_needed_anywhere(const resharder *c, size_t i, int b)
{
    for (int node = 0; node < c->store->layout->node_count; node++)
        if (item_is_needed(c, node, i, b)) return true;
    return false;
}

/* ---- sending ---------------------------------------------------------------------------------- */

/* Sends items [first, end) of block `b`, which are close together, from one node to all. */
static tdm_status items_send(resharder *c, size_t first, size_t end, int source, int b,
                             tdm_error *err)
{
    const tdm__layout *l = c->store->layout;
    float *block = c->store->blocks[b].data;
    size_t begin = c->items[first].begin;
    size_t count = c->items[end - 1].begin + c->items[end - 1].count - begin;
    float *data = l->node == source ? block + begin : c->window;
    TDM_TRY(tdm_group_broadcast(l->leaders, data, count, TDM_DTYPE_F32, source, err));
    for (size_t i = first; i < end && l->node != source; i++)
        if (item_is_needed(c, l->node, i, b))
            memcpy(block + c->items[i].begin, data + (c->items[i].begin - begin),
                   c->items[i].count * sizeof(float));
    return TDM_OK;
}

static tdm_status block_send(resharder *c, int b, tdm_error *err)
{
    for (size_t i = 0, end; i < c->item_count; i = end) {
        end = i + 1;
        if (!item_is_needed_anywhere(c, i, b)) continue;
        int source = item_source(c, i);
        while (end < c->item_count && item_is_needed_anywhere(c, end, b) &&
               item_source(c, end) == source && c->items[end].begin > c->items[i].begin &&
               c->items[end].begin + c->items[end].count - c->items[i].begin <= WINDOW)
            end++;
        TDM_TRY(items_send(c, i, end, source, b, err));
    }
    return TDM_OK;
}

/* Sends the buffers, behind the trained elements. */
static tdm_status buffers_send(const resharder *c, tdm_error *err)
{
    const tdm__layout *l = c->store->layout;
    float *block = c->store->blocks[TDM_BLOCK_PARAMS].data;
    for (size_t at = l->trained_elements; at < l->elements; at += WINDOW) {
        size_t count = l->elements - at < WINDOW ? l->elements - at : WINDOW;
        TDM_TRY(tdm_group_broadcast(l->leaders, block + at, count, TDM_DTYPE_F32, c->source, err));
    }
    return TDM_OK;
}

/* Invalidates items that are about to be overwritten, until all of them are complete: this node may be at an
 * earlier step, and its state would be used if the other nodes were lost meanwhile. */
static void items_invalidate(const resharder *c)
{
    for (size_t i = 0; i < c->item_count; i++) {
        if (item_is_held(c, c->store->layout->node, i)) continue;
        atomic_store(&c->items[i].mark->updated, 0);
        atomic_store(&c->items[i].mark->applied, 0);
    }
    tdm__undo_barrier();
}

static tdm_status resharder_run(resharder *c, tdm_error *err)
{
    const tdm__layout *l = c->store->layout;
    TDM_TRY(tdm__undo_write_begin(c->store->undo_log, err));
    items_invalidate(c);
    tdm_status status = buffers_send(c, err);
    for (int b = 0; b < TDM__MAX_BLOCKS && status == TDM_OK; b++) {
        if (c->store->blocks[b].data) status = block_send(c, b, err);
        tdm__undo_test_point(c->store->undo_log, "carry", 0, (uint64_t)b);
    }
    for (size_t i = 0; i < c->item_count && status == TDM_OK; i++) {
        bool mine = item_is_held(c, l->node, i) || item_needs_states(c, l->node, i);
        atomic_store(&c->items[i].mark->updated, mine ? c->mark : 0);
        atomic_store(&c->items[i].mark->applied, mine ? c->mark : 0);
    }
    tdm__undo_write_end(c->store->undo_log);
    return status;
}

/* Finds the items that this node holds, and exchanges that with all nodes. */
static tdm_status resharder_exchange(resharder *c, bool here, tdm_error *err)
{
    const tdm__layout *l = c->store->layout;
    uint8_t *own = c->held + (size_t)l->node * c->item_count;
    for (size_t i = 0; i < c->item_count; i++)
        own[i] = here && atomic_load(&c->items[i].mark->updated) == c->mark;
    if (!l->leaders || c->item_count == 0) return TDM_OK;
    return tdm_group_all_gather(l->leaders, NULL, c->held, (size_t)l->node_count * c->item_count,
                                TDM_DTYPE_U8, err);
}

static tdm_status resharder_lead(resharder *c, bool here, bool *found, tdm_error *err)
{
    TDM_TRY(resharder_exchange(c, here, err));
    *found = true;
    for (size_t i = 0; i < c->item_count && *found; i++) *found = item_source(c, i) >= 0;
    return *found && c->store->layout->leaders ? resharder_run(c, err) : TDM_OK;
}

tdm_status tdm__recover_reshard(tdm_params *store, const tdm__standing *all, const tdm__goal *goal,
                                bool *found, tdm_error *err)
{
    const tdm__layout *l = store->layout;
    resharder c = {.store = store, .mark = goal->changed + 1, .source = -1};
    for (int i = l->size - 1; i >= 0; i--)
        if (tdm__goal_in_reach(goal, &all[i])) c.source = l->node_of_place[i];
    bool here = tdm__goal_in_reach(goal, &all[l->place]);
    tdm_status status = tdm_comm_agree(store->layout->comm, resharder_prepare(&c, err), NULL, err);
    uint8_t ok = 0;
    if (status == TDM_OK && store->leads) {
        bool good = false;
        status = resharder_lead(&c, here, &good, err);
        if (status == TDM_OK && good)
            status = tdm__replicas_recover(store, c.mark, here, &good, err);
        ok = good;
    }
    resharder_release(&c);
    TDM_TRY(tdm_comm_agree(store->layout->comm, status, NULL, err));
    if (l->world) TDM_TRY(tdm_group_broadcast(l->world, &ok, 1, TDM_DTYPE_U8, 0, err));
    *found = ok != 0;
    tdm__replicas_attach(store->replicas, ok ? c.mark : 0);
    return TDM_OK;
}

static void resharder_mark_statistic(void *user, const tdm_param_info *p, size_t index,
                                     size_t begin, size_t count)
{
    const resharder *c = user;
    (void)p;
    (void)count;
    const tdm__layout *l = c->store->layout;
    bool mine = l->common || l->node_count == 1 || cell_owner(l, begin / TDM__CELL) == l->node;
    atomic_store(&c->store->undo_log->cells[index].updated, mine ? c->mark : 0);
}

void tdm__recover_mark_all(tdm_params *store, uint64_t steps)
{
    const tdm__layout *l = store->layout;
    resharder c = {.store = store, .mark = steps + 1};
    bool all = l->common || l->node_count == 1;
    for (size_t i = 0; i < store->undo_log->piece_count; i++) {
        const tdm_optim_piece *piece = tdm_optimiser_piece_at(store->optimiser, i);
        bool mine = all || cell_owner(l, piece->begin / TDM__CELL) == l->node;
        atomic_store(&store->undo_log->marks[i].updated, mine ? c.mark : 0);
        atomic_store(&store->undo_log->marks[i].applied, mine ? c.mark : 0);
    }
    tdm__statistic_visit(store->graph, (tdm__cells){0, l->trained_cells}, resharder_mark_statistic,
                         &c);
}
