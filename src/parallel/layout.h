/*
 * layout.h: which rank holds, sums and updates which part of the parameter block.
 *
 * The trained block (parameters, then statistics) is divided into cells of TDM__CELL elements, the grid
 * of the optimiser pieces: no piece crosses the border of a cell. Runs of cells are buckets, the units in
 * which gradients are sent and parameters are gathered. In any range of cells, each rank has a share:
 * the range is divided between the nodes, then each node's part between its ranks, so that the shares of a node
 * are adjacent. Elements behind the trained cells (buffers) never change and are on every rank.
 *
 * Ranks are numbered here by place: in order of their nodes, and within a node of their world rank.
 * Normally that is the world rank itself. `world` is a group in this order.
 *
 * With `common` (parallel.zero: 0) every node updates all cells, and the shares are those of the ranks within a
 * node: the same for all nodes.
 */
#ifndef TANDEM_PARALLEL_LAYOUT_H
#define TANDEM_PARALLEL_LAYOUT_H

#include "optim/optim.h"

#include <tandem/comm.h>
#include <tandem/graph.h>

enum { TDM__CELL = TDM_OPTIM_PIECE_ELEMENTS };

typedef struct tdm__layout {
    int size, place;    /* among all ranks */
    int *rank_of_place; /* world ranks */
    int *node_of_place; /* nodes are numbered by place */
    int *first_of_node; /* node_count + 1 places */
    int node_count, node;
    bool common;
    size_t trained_cells;    /* with the statistics */
    size_t trained_elements; /* tdm_graph_grad_extent */
    size_t elements;         /* of the whole block: tdm_graph_param_extent */
    size_t bucket_count;
    size_t *bucket_first; /* bucket_count + 1 cells, from 0 to trained_cells */
    tdm_comm *comm;       /* NULL: a single process; then the groups are NULL as well */
    tdm_group *world;     /* all ranks, by place */
    tdm_group *mine;      /* the ranks of this node; NULL if there is only this one */
    tdm_group *leaders;   /* the first rank of each node; NULL for others, or with one node */
    /* ranks that share the updates: `mine` with common, else `world`; borrowed */
    tdm_group *sharers;
} tdm__layout;

typedef struct tdm__layout_options {
    const tdm_graph *graph;
    tdm_comm *comm;
    bool common;
    size_t bucket_bytes;
} tdm__layout_options;

/* Collective: makes the groups. */
tdm_status tdm__layout_create(const tdm__layout_options *options, tdm__layout **out,
                              tdm_error *err);
void tdm__layout_destroy(tdm__layout *layout);

/* The cells of a range that the rank at `place` updates. */
typedef struct tdm__cells {
    size_t first, end;
} tdm__cells;
tdm__cells tdm__layout_share(const tdm__layout *layout, tdm__cells range, int place);
/* The shares as cuts of a call over `sharers` (their size + 1 entries), in elements from the beginning of the
 * range; and of a call over `leaders` (node_count + 1 entries). The last entry is the end of the range. */
void tdm__layout_cuts(const tdm__layout *layout, tdm__cells range, size_t *out);
void tdm__layout_leader_cuts(const tdm__layout *layout, tdm__cells range, size_t *out);
tdm__cells tdm__layout_bucket(const tdm__layout *layout, size_t bucket);
/* Elements of the trained block in these cells: the last cell may be incomplete. */
tdm_extent tdm__cells_extent(const tdm__layout *layout, tdm__cells cells);

/* Statistics of a graph are changed in ranges, each within one cell, which are numbered over the whole
 * graph. Calls `visit` for those in these cells. Returns the total number. */
typedef void (*tdm__statistic_fn)(void *user, const tdm_param_info *p, size_t index, size_t begin,
                                  size_t count);
size_t tdm__statistic_visit(const tdm_graph *graph, tdm__cells cells, tdm__statistic_fn visit,
                            void *user);

#endif
