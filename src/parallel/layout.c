/*
 * layout.c: which rank holds, sums and updates which part of the parameter block. Pure arithmetic, except for
 * the groups, which are created once.
 *
 * If `n` cells are divided between `count` ranks, the share of rank i ends at (n * (i + 1) + turn) / count. `turn`
 * is the range's first cell modulo count: so the ranks with an additional cell are not the same ones
 * in every bucket, and over all buckets shares are even. Places follow nodes, so the parts of a node's
 * ranks are adjacent without any further rule, and the part of a node is proportional to its number of ranks.
 *
 * A bucket is also a whole number of pages, because buckets are mapped to slots (prefetch.c).
 */
#include "parallel/layout.h"
#include "base/base.h"

#include <stdlib.h>
#include <unistd.h>

enum { BUCKET_BYTES = 4 << 20, CELL_BYTES = TDM__CELL * sizeof(float) };

/* ---- shares ---------------------------------------------------------------------------------- */

static size_t range_cut(tdm__cells range, size_t index, size_t count)
{
    size_t n = range.end - range.first;
    return range.first + (n * index + range.first % count) / count;
}

/* The first place that shares with `place`. */
static int layout_first_sharer(const tdm__layout *layout, int place)
{
    return layout->common ? layout->first_of_node[layout->node_of_place[place]] : 0;
}

static int layout_sharer_count(const tdm__layout *layout, int place)
{
    if (!layout->common) return layout->size;
    int node = layout->node_of_place[place];
    return layout->first_of_node[node + 1] - layout->first_of_node[node];
}

tdm__cells tdm__layout_share(const tdm__layout *layout, tdm__cells range, int place)
{
    size_t count = (size_t)layout_sharer_count(layout, place);
    size_t index = (size_t)(place - layout_first_sharer(layout, place));
    return (tdm__cells){range_cut(range, index, count), range_cut(range, index + 1, count)};
}

/* The first element of a cell, relative to the beginning of a range. */
static size_t range_offset(const tdm__layout *layout, tdm__cells range, size_t cell)
{
    return tdm__cells_extent(layout, (tdm__cells){range.first, cell}).count;
}

void tdm__layout_cuts(const tdm__layout *layout, tdm__cells range, size_t *out)
{
    size_t count = (size_t)layout_sharer_count(layout, layout->place);
    for (size_t i = 0; i <= count; i++)
        out[i] = range_offset(layout, range, range_cut(range, i, count));
}

void tdm__layout_leader_cuts(const tdm__layout *layout, tdm__cells range, size_t *out)
{
    for (int i = 0; i <= layout->node_count; i++)
        out[i] = range_offset(
            layout, range,
            range_cut(range, (size_t)layout->first_of_node[i], (size_t)layout->size));
}

tdm__cells tdm__layout_bucket(const tdm__layout *layout, size_t bucket)
{
    return (tdm__cells){layout->bucket_first[bucket], layout->bucket_first[bucket + 1]};
}

tdm_extent tdm__cells_extent(const tdm__layout *layout, tdm__cells cells)
{
    size_t first = cells.first * TDM__CELL, end = cells.end * TDM__CELL;
    if (end > layout->trained_elements) end = layout->trained_elements;
    if (first > end) first = end;
    return (tdm_extent){.first = first, .count = end - first};
}

/* ---- creation -------------------------------------------------------------------------------- */

static int rank_node(const tdm__layout *layout, int rank)
{
    return layout->comm ? tdm_comm_node_of(layout->comm, rank) : 0;
}

/* Assigns places by node, and by world rank within a node. The comm numbers nodes by their lowest rank. */
static void layout_place_ranks(tdm__layout *layout)
{
    int *next = layout->first_of_node; /* initially shifted by one node */
    for (int rank = 0; rank < layout->size; rank++) {
        int node = rank_node(layout, rank);
        next[node + 1]++;
        if (node >= layout->node_count) layout->node_count = node + 1;
    }
    for (int node = 0; node < layout->node_count; node++) next[node + 1] += next[node];
    for (int rank = 0; rank < layout->size; rank++) {
        int node = rank_node(layout, rank);
        int place = next[node]++;
        layout->rank_of_place[place] = rank;
        layout->node_of_place[place] = node;
        if (!layout->comm || rank != tdm_comm_rank(layout->comm)) continue;
        layout->place = place;
        layout->node = node;
    }
    for (int node = layout->node_count; node > 0; node--) next[node] = next[node - 1];
    next[0] = 0;
}

static tdm_status layout_make_buckets(tdm__layout *layout, size_t bucket_bytes, tdm_error *err)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t unit = page > CELL_BYTES ? page : CELL_BYTES;
    if (bucket_bytes == 0) bucket_bytes = BUCKET_BYTES;
    size_t cells = (bucket_bytes / unit > 0 ? bucket_bytes / unit : 1) * (unit / CELL_BYTES);
    layout->bucket_count = (layout->trained_cells + cells - 1) / cells;
    layout->bucket_first = calloc(layout->bucket_count + 1, sizeof(*layout->bucket_first));
    if (!layout->bucket_first) return tdm_fail_oom(err, "for the layout");
    for (size_t i = 0; i < layout->bucket_count; i++) layout->bucket_first[i] = i * cells;
    layout->bucket_first[layout->bucket_count] = layout->trained_cells;
    return TDM_OK;
}

/* A group of all ranks by place: the comm's own, if that has the same order. */
static tdm_status layout_make_world(tdm__layout *layout, tdm_error *err)
{
    bool in_order = true;
    for (int i = 0; i < layout->size; i++) in_order &= layout->rank_of_place[i] == i;
    if (in_order) {
        layout->world = tdm_comm_world(layout->comm);
        return TDM_OK;
    }
    return tdm_group_create(layout->comm, layout->rank_of_place, layout->size, &layout->world, err);
}

static tdm_status layout_make_leaders(tdm__layout *layout, tdm_error *err)
{
    if (layout->node_count == layout->size) { /* every rank is a leader */
        layout->leaders = layout->world;
        return TDM_OK;
    }
    int *leaders = calloc((size_t)layout->node_count, sizeof(*leaders));
    if (!leaders) return tdm_fail_oom(err, "for the layout");
    for (int i = 0; i < layout->node_count; i++)
        leaders[i] = layout->rank_of_place[layout->first_of_node[i]];
    tdm_status status = tdm_group_create(layout->comm, leaders, layout->node_count,
                                         &layout->leaders, err);
    free(leaders);
    return status;
}

static tdm_status layout_make_groups(tdm__layout *layout, tdm_error *err)
{
    if (!layout->comm) return TDM_OK;
    TDM_TRY(layout_make_world(layout, err));
    int first = layout->first_of_node[layout->node];
    int count = layout->first_of_node[layout->node + 1] - first;
    if (count > 1)
        TDM_TRY(tdm_group_create(layout->comm, layout->rank_of_place + first, count, &layout->mine,
                                 err));
    if (layout->place == first && layout->node_count > 1) TDM_TRY(layout_make_leaders(layout, err));
    layout->sharers = layout->common ? layout->mine : layout->world;
    return TDM_OK;
}

static tdm_status layout_build(tdm__layout *layout, const tdm__layout_options *options,
                               tdm_error *err)
{
    layout->comm = options->comm;
    layout->common = options->common;
    layout->size = options->comm ? tdm_comm_size(options->comm) : 1;
    layout->elements = tdm_graph_param_extent(options->graph);
    layout->trained_elements = tdm_graph_grad_extent(options->graph);
    layout->trained_cells = (layout->trained_elements + TDM__CELL - 1) / TDM__CELL;
    size_t size = (size_t)layout->size;
    layout->rank_of_place = calloc(size, sizeof(int));
    layout->node_of_place = calloc(size, sizeof(int));
    layout->first_of_node = calloc(size + 1, sizeof(int));
    if (!layout->rank_of_place || !layout->node_of_place || !layout->first_of_node)
        return tdm_fail_oom(err, "for the layout of %zu ranks", size);
    layout_place_ranks(layout);
    TDM_TRY(layout_make_buckets(layout, options->bucket_bytes, err));
    return layout_make_groups(layout, err);
}

tdm_status tdm__layout_create(const tdm__layout_options *options, tdm__layout **out, tdm_error *err)
{
    tdm__layout *layout = calloc(1, sizeof(*layout));
    if (!layout) return tdm_fail_oom(err, "for the layout");
    tdm_status status = layout_build(layout, options, err);
    if (status != TDM_OK) {
        tdm__layout_destroy(layout);
        return status;
    }
    *out = layout;
    return TDM_OK;
}

void tdm__layout_destroy(tdm__layout *layout)
{
    if (!layout) return;
    if (layout->leaders && layout->leaders != layout->world) tdm_group_destroy(layout->leaders);
    if (layout->mine) tdm_group_destroy(layout->mine);
    if (layout->world && layout->world != tdm_comm_world(layout->comm))
        tdm_group_destroy(layout->world);
    free(layout->bucket_first);
    free(layout->first_of_node);
    free(layout->node_of_place);
    free(layout->rank_of_place);
    free(layout);
}

size_t tdm__statistic_visit(const tdm_graph *graph, tdm__cells cells, tdm__statistic_fn visit,
                            void *user)
{
    size_t index = 0;
    for (size_t i = 0; i < tdm_graph_param_count(graph); i++) {
        const tdm_param_info *p = tdm_graph_param_at(graph, i);
        size_t end = p->offset + p->elements;
        for (size_t begin = p->offset; p->statistic && begin < end; index++) {
            size_t border = (begin / TDM__CELL + 1) * TDM__CELL;
            size_t count = (border < end ? border : end) - begin;
            if (visit && begin / TDM__CELL >= cells.first && begin / TDM__CELL < cells.end)
                visit(user, p, index, begin, count);
            begin += count;
        }
    }
    return index;
}
