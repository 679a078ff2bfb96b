/*
 * recover_reshard.c: pieces of the state travel from nodes that hold them to nodes that need them.
 *
 * Items are the optimiser's pieces, then the stretches of statistics. A node holds an item when its mark
 * says that the last update has reached it here; it then has all blocks of it. It needs the states of those
 * that its ranks update in this epoch, and the parameters of all, unless these are shared out, too. All of
 * that every leader knows of every node, from one exchange of a bit for each item; so they agree on what
 * travels, and from where: from the lowest node that holds it.
 *
 * Runs of neighbouring items with one source travel together, up to a window; each leader keeps of them what
 * its node needs. What lies behind the trained elements never changes, but a new node has none of it.
 */
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
    int source; /* of what every node must have: the lowest that was in reach */
    uint64_t mark;
} resharder;

/* ---- items ----------------------------------------------------------------------------------- */

static void add_statistic(void *user, const tdm_param_info *p, size_t index, size_t begin,
                          size_t count)
{
    resharder *c = user;
    (void)p;
    (void)index;
    c->items[c->item_count] = (item){begin, count, &c->store->undo_log->cells[index]};
    c->item_count++;
}

static void list_items(resharder *c)
{
    const tdm__undo_log *j = c->store->undo_log;
    for (size_t i = 0; i < j->piece_count; i++) {
        const tdm_optim_piece *piece = tdm_optimiser_piece_at(c->store->optimiser, i);
        c->items[c->item_count++] = (item){piece->begin, piece->count, &j->marks[i]};
    }
    tdm__statistic_visit(c->store->graph, (tdm__cells){0, c->store->layout->trained_cells},
                         add_statistic, c);
}

/* The node whose ranks update a cell in this epoch. */
static int owner_of(const tdm__layout *l, size_t cell)
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

static tdm_status prepare(resharder *c, tdm_error *err)
{
    const tdm__layout *l = c->store->layout;
    const tdm__undo_log *j = c->store->undo_log;
    size_t max = j->piece_count + j->cell_count + 1;
    c->items = calloc(max, sizeof *c->items);
    c->held = calloc(max * (size_t)l->node_count, 1);
    c->owner = calloc(max, sizeof *c->owner);
    c->window = malloc(WINDOW * sizeof(float));
    if (!c->items || !c->held || !c->owner || !c->window)
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "no memory for a recovery");
    list_items(c);
    bool all = l->common || l->node_count == 1;
    for (size_t i = 0; i < c->item_count; i++)
        c->owner[i] = all ? -1 : owner_of(l, c->items[i].begin / TDM__CELL);
    return TDM_OK;
}

static void release(resharder *c)
{
    free(c->items);
    free(c->held);
    free(c->owner);
    free(c->window);
}

/* ---- who needs what -------------------------------------------------------------------------- */

static bool is_held(const resharder *c, int node, size_t i)
{
    return c->held[(size_t)node * c->item_count + i] != 0;
}

static bool needs_states(const resharder *c, int node, size_t i)
{
    return c->owner[i] < 0 || c->owner[i] == node;
}

/* Whether a node needs block `b` of an item that it does not hold. */
static bool needs(const resharder *c, int node, size_t i, int b)
{
    if (is_held(c, node, i)) return false;
    return c->store->blocks[b].whole || needs_states(c, node, i);
}

static int source_of(const resharder *c, size_t i)
{
    for (int node = 0; node < c->store->layout->node_count; node++)
        if (is_held(c, node, i)) return node;
    return -1;
}

static bool anybody_needs(const resharder *c, size_t i, int b)
{
    for (int node = 0; node < c->store->layout->node_count; node++)
        if (needs(c, node, i, b)) return true;
    return false;
}

/* ---- moving ---------------------------------------------------------------------------------- */

/* Items [first, end) of block `b`, which lie close together, from one node to all. */
static tdm_status move(resharder *c, size_t first, size_t end, int source, int b, tdm_error *err)
{
    const tdm__layout *l = c->store->layout;
    float *block = c->store->blocks[b].data;
    size_t begin = c->items[first].begin;
    size_t count = c->items[end - 1].begin + c->items[end - 1].count - begin;
    float *data = l->node == source ? block + begin : c->window;
    TDM_TRY(tdm_group_broadcast(l->leaders, data, count, TDM_DTYPE_F32, source, err));
    for (size_t i = first; i < end && l->node != source; i++)
        if (needs(c, l->node, i, b))
            memcpy(block + c->items[i].begin, data + (c->items[i].begin - begin),
                   c->items[i].count * sizeof(float));
    return TDM_OK;
}

static tdm_status move_block(resharder *c, int b, tdm_error *err)
{
    for (size_t i = 0, end; i < c->item_count; i = end) {
        end = i + 1;
        if (!anybody_needs(c, i, b)) continue;
        int source = source_of(c, i);
        while (end < c->item_count && anybody_needs(c, end, b) && source_of(c, end) == source &&
               c->items[end].begin > c->items[i].begin &&
               c->items[end].begin + c->items[end].count - c->items[i].begin <= WINDOW)
            end++;
        TDM_TRY(move(c, i, end, source, b, err));
    }
    return TDM_OK;
}

/* Buffers, behind all that is trained. */
static tdm_status move_rest(const resharder *c, tdm_error *err)
{
    const tdm__layout *l = c->store->layout;
    float *block = c->store->blocks[TDM_BLOCK_PARAMS].data;
    for (size_t at = l->trained_elements; at < l->elements; at += WINDOW) {
        size_t count = l->elements - at < WINDOW ? l->elements - at : WINDOW;
        TDM_TRY(tdm_group_broadcast(l->leaders, block + at, count, TDM_DTYPE_F32, c->source, err));
    }
    return TDM_OK;
}

/* What is about to be overwritten here holds nothing, until all of it has come: this node may be of an
 * earlier step, at which it would be believed, should the others be lost meanwhile. */
static void forget(const resharder *c)
{
    for (size_t i = 0; i < c->item_count; i++) {
        if (is_held(c, c->store->layout->node, i)) continue;
        atomic_store(&c->items[i].mark->updated, 0);
        atomic_store(&c->items[i].mark->applied, 0);
    }
    tdm__undo_barrier();
}

static tdm_status reshard(resharder *c, tdm_error *err)
{
    const tdm__layout *l = c->store->layout;
    TDM_TRY(tdm__undo_write_begin(c->store->undo_log, err));
    forget(c);
    tdm_status status = move_rest(c, err);
    for (int b = 0; b < TDM__MAX_BLOCKS && status == TDM_OK; b++) {
        if (c->store->blocks[b].data) status = move_block(c, b, err);
        tdm__undo_test_point(c->store->undo_log, "carry", 0, (uint64_t)b);
    }
    for (size_t i = 0; i < c->item_count && status == TDM_OK; i++) {
        bool mine = is_held(c, l->node, i) || needs_states(c, l->node, i);
        atomic_store(&c->items[i].mark->updated, mine ? c->mark : 0);
        atomic_store(&c->items[i].mark->applied, mine ? c->mark : 0);
    }
    tdm__undo_write_end(c->store->undo_log);
    return status;
}

/* What this node holds, then what all do. */
static tdm_status compare(resharder *c, bool here, tdm_error *err)
{
    const tdm__layout *l = c->store->layout;
    uint8_t *own = c->held + (size_t)l->node * c->item_count;
    for (size_t i = 0; i < c->item_count; i++)
        own[i] = here && atomic_load(&c->items[i].mark->updated) == c->mark;
    if (!l->leaders || c->item_count == 0) return TDM_OK;
    return tdm_group_all_gather(l->leaders, NULL, c->held, (size_t)l->node_count * c->item_count,
                                TDM_DTYPE_U8, err);
}

static tdm_status lead(resharder *c, bool here, bool *found, tdm_error *err)
{
    TDM_TRY(compare(c, here, err));
    *found = true;
    for (size_t i = 0; i < c->item_count && *found; i++) *found = source_of(c, i) >= 0;
    return *found && c->store->layout->leaders ? reshard(c, err) : TDM_OK;
}

tdm_status tdm__recover_reshard(tdm_params *store, const tdm__standing *all, const tdm__goal *goal,
                                bool *found, tdm_error *err)
{
    const tdm__layout *l = store->layout;
    resharder c = {.store = store, .mark = goal->changed + 1, .source = -1};
    for (int i = l->size - 1; i >= 0; i--)
        if (tdm__goal_in_reach(goal, &all[i])) c.source = l->node_of_place[i];
    bool here = tdm__goal_in_reach(goal, &all[l->place]);
    tdm_status status = tdm__params_agree(store, prepare(&c, err), err);
    uint8_t ok = 0;
    if (status == TDM_OK && store->leads) {
        bool good = false;
        status = lead(&c, here, &good, err);
        ok = good;
    }
    release(&c);
    TDM_TRY(tdm__params_agree(store, status, err));
    if (l->world) TDM_TRY(tdm_group_broadcast(l->world, &ok, 1, TDM_DTYPE_U8, 0, err));
    *found = ok != 0;
    return TDM_OK;
}

static void mark_statistic(void *user, const tdm_param_info *p, size_t index, size_t begin,
                           size_t count)
{
    const resharder *c = user;
    (void)p;
    (void)count;
    const tdm__layout *l = c->store->layout;
    bool mine = l->common || l->node_count == 1 || owner_of(l, begin / TDM__CELL) == l->node;
    atomic_store(&c->store->undo_log->cells[index].updated, mine ? c->mark : 0);
}

void tdm__recover_mark_all(tdm_params *store, uint64_t steps)
{
    const tdm__layout *l = store->layout;
    resharder c = {.store = store, .mark = steps + 1};
    bool all = l->common || l->node_count == 1;
    for (size_t i = 0; i < store->undo_log->piece_count; i++) {
        const tdm_optim_piece *piece = tdm_optimiser_piece_at(store->optimiser, i);
        bool mine = all || owner_of(l, piece->begin / TDM__CELL) == l->node;
        atomic_store(&store->undo_log->marks[i].updated, mine ? c.mark : 0);
        atomic_store(&store->undo_log->marks[i].applied, mine ? c.mark : 0);
    }
    tdm__statistic_visit(store->graph, (tdm__cells){0, l->trained_cells}, mark_statistic, &c);
}
