/*
 * params.c: the parameter store: creation of the blocks and queries.
 *
 * Each block is a region of the node's memory (node_memory.h), or a file that the ranks of the node map. In a
 * region that is new, every rank touches its share first, so that its pages come from the nearest NUMA node. Blocks
 * that are sharded over all ranks keep their indices: the region reserves address space for the whole block, and
 * only the shares of the node's ranks get memory.
 *
 * A file for an offloaded block is created by the first rank of the node, and unlinked as soon as all its ranks have
 * mapped it: however the ranks end, the disk space is freed with the last of them.
 *
 * Creation is collective, and so is its failure: at its end all ranks agree on the result.
 */
#include "base/base.h"
#include "comm/comm.h"
#include "os/os.h"
#include "parallel/params_inner.h"
#include "parallel/replicas.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_PATH = 4096 };

/* Keeps the first error of several steps that are all executed, because other ranks wait in them as well. */
static tdm_status error_keep_first(tdm_status first, tdm_status next, const tdm_error *why,
                                   tdm_error *err)
{
    if (first != TDM_OK || next == TDM_OK) return first;
    if (err) *err = *why;
    return next;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static size_t block_bytes(const tdm_params *store)
{
    size_t bytes = store->layout->elements * sizeof(float);
    return bytes > 0 ? bytes : sizeof(float);
}

/* The parts of a sharded block that this rank holds. `parts` has bucket_count + 1 entries. */
static size_t block_own_parts(const tdm_params *store, tdm_file_part *parts)
{
    const tdm__layout *layout = store->layout;
    size_t count = 0;
    for (size_t i = 0; i < layout->bucket_count; i++) {
        tdm_extent share = tdm__cells_extent(
            layout, tdm__layout_share(layout, tdm__layout_bucket(layout, i), layout->place));
        if (share.count == 0) continue;
        parts[count++] = (tdm_file_part){share.first * sizeof(float), share.count * sizeof(float)};
    }
    size_t behind = layout->trained_elements * sizeof(float);
    if (block_bytes(store) > behind)
        parts[count++] = (tdm_file_part){behind, block_bytes(store) - behind};
    return count;
}

static tdm_status block_map_file(const tdm_params *store, const char *path, tdm_pages *out,
                                 tdm_error *err)
{
    size_t bytes = block_bytes(store);
    tdm_file_part *parts = calloc(store->layout->bucket_count + 1, sizeof(*parts));
    if (!parts) return tdm_fail_oom(err, "for the parameter store");
    size_t count = block_own_parts(store, parts);
    tdm_status status = tdm_file_map_create_parts(path, bytes, parts, count, out, err);
    free(parts);
    if (status == TDM_OK) unlink(path);
    return status;
}

static void block_file_name(const tdm_params *store, const char *dir, int block, char *out)
{
    uint64_t drawn = 0;
    if (tdm_os_random(&drawn, sizeof(drawn), NULL) != TDM_OK) drawn = tdm_clock_ns();
    snprintf(out, MAX_PATH, "%s/tandem-offload-%ld-%08llx-rank%d-block%d.f32", dir, (long)getpid(),
             (unsigned long long)drawn & 0xffffffffu,
             store->layout->rank_of_place[store->layout->place], block);
}

/* A file that all ranks of the node map. A rank that fails does not leave the others waiting. */
static tdm_status block_make_common_file(const tdm_params *store, tdm__block *block,
                                         char path[MAX_PATH], tdm_error *err)
{
    tdm_group *node = store->layout->mine;
    size_t bytes = block_bytes(store);
    tdm_status status = TDM_OK;
    tdm_error why = {0}, later = {0};
    if (store->leads) status = tdm_file_map_create(path, bytes, &block->pages, &why);
    if (status != TDM_OK) path[0] = '\0';
    status = error_keep_first(
        status, tdm_group_broadcast(node, path, MAX_PATH, TDM_DTYPE_U8, 0, &later), &later, &why);
    path[MAX_PATH - 1] = '\0';
    if (status == TDM_OK && !path[0]) /* the leader reports the reason */
        status = tdm_fail(&why, TDM_ERR_PEER_FAILED,
                          "rank %d could not create a file for this host: see its message",
                          tdm_group_world_rank(node, 0));
    if (status == TDM_OK && !store->leads)
        status = tdm_file_map_open(path, bytes, &block->pages, &why);
    status = error_keep_first(status, tdm_group_barrier(node, &later), &later, &why);
    if (store->leads && path[0]) unlink(path); /* all have mapped it */
    if (status != TDM_OK && err) *err = why;
    return status;
}

static tdm_status block_make_file(const tdm_params *store, tdm__block *block, int index,
                                  const char *directory, tdm_error *err)
{
    char path[MAX_PATH] = "";
    block_file_name(store, directory, index, path);
    tdm_status status;
    if (block->common) {
        status = block_make_common_file(store, block, path, err);
    } else if (!block->whole) {
        status = block_map_file(store, path, &block->pages, err);
    } else {
        status = tdm_file_map_create(path, block_bytes(store), &block->pages, err);
        if (status == TDM_OK) unlink(path);
    }
    if (status == TDM_OK) block->data = block->pages.data;
    return status;
}

static tdm_status block_make(tdm_params *store, int index, bool sharded, const char *offload,
                             tdm_error *err)
{
    tdm__block *block = &store->blocks[index];
    block->whole = !sharded;
    block->common = block->whole && store->node_size > 1;
    block->in_file = offload && index != TDM_BLOCK_PARAMS;
    if (block->in_file) return block_make_file(store, block, index, offload, err);
    return tdm__region_take(&store->memory, "block", index, block_bytes(store),
                            sharded ? TDM__REGION_SPARSE : TDM__REGION_FULL, &block->data, err);
}

/* Writes zeros over zeros, so that the pages are near the rank that updates them. */
static void block_touch(tdm_params *store, const tdm__block *block)
{
    const tdm__layout *layout = store->layout;
    tdm__cells all = {0, layout->trained_cells};
    if (layout->node_count == 1) {
        tdm_extent mine = tdm__cells_extent(layout, tdm__layout_share(layout, all, layout->place));
        memset(block->data + mine.first, 0, mine.count * sizeof(float));
        return;
    }
    for (size_t i = 0; i < layout->bucket_count; i++) {
        tdm_extent mine = tdm__cells_extent(
            layout, tdm__layout_share(layout, tdm__layout_bucket(layout, i), layout->place));
        memset(block->data + mine.first, 0, mine.count * sizeof(float));
    }
}

static bool options_have_block(const tdm_params_options *options, int index)
{
    if (index == TDM_BLOCK_PARAMS) return true;
    if (index == TDM_BLOCK_EMA) return options->has_ema;
    int state = index - TDM_BLOCK_STATE;
    return options->optimiser && state < tdm_optimiser_ops(options->optimiser)->state_count &&
           tdm_optimiser_uses_state(options->optimiser, state);
}

static tdm_status params_make_blocks(tdm_params *store, const tdm_params_options *options,
                                     tdm_error *err)
{
    tdm_status first = TDM_OK;
    for (int i = 0; i < TDM__MAX_BLOCKS; i++) {
        if (!options_have_block(options, i)) continue;
        bool sharded = store->layout->node_count > 1 &&
                       options->zero >= (i == TDM_BLOCK_PARAMS ? 3 : 1);
        tdm_error why = {0};
        tdm_status status = block_make(store, i, sharded, options->offload, &why);
        if (status != TDM_OK) store->blocks[i].data = NULL;
        if (status != TDM_OK && store->blocks[i].in_file)
            status = tdm_error_context(&why, status, "parallel.offload");
        if (store->undo_log) store->undo_log->blocks[i] = store->blocks[i].data;
        first = error_keep_first(first, status, &why, err); /* continue: other ranks may wait */
    }
    return first;
}

/* ---- creation and destruction ---------------------------------------------------------------- */

static tdm_status params_make_tables(tdm_params *store, const tdm_graph *graph, tdm_error *err)
{
    const tdm__layout *layout = store->layout;
    size_t params = tdm_graph_param_count(graph);
    store->params = calloc(params + 1, sizeof(*store->params));
    for (size_t i = 0; store->params && i < params; i++)
        store->params[i] = (tdm_extent){.first = tdm_graph_param_at(graph, i)->offset,
                                        .count = tdm_graph_param_at(graph, i)->elements};
    size_t buckets = layout->bucket_count + 1, nodes = (size_t)layout->node_count + 1;
    store->cuts = calloc((size_t)layout->size + 1, sizeof(*store->cuts));
    store->clipped = calloc((size_t)layout->size + 1, sizeof(*store->clipped));
    if (layout->leaders) {
        store->pending = calloc(buckets, sizeof(*store->pending));
        store->leader_cuts = calloc(buckets * nodes, sizeof(*store->leader_cuts));
    }
    if (!store->params || !store->cuts || !store->clipped ||
        (layout->leaders && (!store->pending || !store->leader_cuts)))
        return tdm_fail_oom(err, "for the parameter store");
    for (size_t i = 0; layout->leaders && i < layout->bucket_count; i++)
        tdm__layout_leader_cuts(layout, tdm__layout_bucket(layout, i),
                                store->leader_cuts + i * nodes);
    return TDM_OK;
}

static void params_bind_optimiser(tdm_params *store, tdm_optimiser *optimiser)
{
    tdm_optim_blocks blocks = {.params = store->blocks[TDM_BLOCK_PARAMS].data,
                               .ema = store->blocks[TDM_BLOCK_EMA].data};
    for (int i = 0; i < TDM_OPTIM_MAX_STATES; i++)
        blocks.states[i] = store->blocks[TDM_BLOCK_STATE + i].data;
    tdm_optimiser_bind(optimiser, &blocks);
}

static tdm_status params_make_undo_log(tdm_params *store, const tdm_params_options *options,
                                       tdm_error *err)
{
    const tdm__layout *layout = store->layout;
    tdm__undo_log *undo_log = calloc(1, sizeof(*undo_log));
    if (!undo_log) return tdm_fail_oom(err, "for the parameter store");
    *undo_log = (tdm__undo_log){
        .memory = &store->memory,
        .slot = store->memory.outlives ? options->slot
                                       : layout->place - layout->first_of_node[layout->node],
        .epoch = options->epoch  ? options->epoch
                 : options->comm ? tdm_comm_epoch(options->comm)
                                 : 1,
        .takes_statistics = options->takes_statistics,
        .is_derived = options->is_gossip,
        .thread_count = options->thread_count > 0 ? options->thread_count : TDM_MAX_THREADS};
    store->undo_log = undo_log;
    return tdm__undo_log_open(undo_log, tdm_optimiser_piece_count(options->optimiser),
                              tdm__statistic_visit(options->graph, (tdm__cells){0, 0}, NULL, NULL),
                              err);
}

/* Takes the regions and makes the files, and continues after an error, because other ranks may wait. */
static tdm_status params_make_memory(tdm_params *store, const tdm_params_options *options,
                                     tdm_error *err)
{
    tdm_error why = {0};
    bool survives = options->shm && options->optimiser && !options->offload;
    tdm_status status = tdm__node_memory_open(survives ? options->shm : NULL, options->comm,
                                              &store->memory, err);
    if (options->optimiser)
        status = error_keep_first(status, params_make_undo_log(store, options, &why), &why, err);
    status = error_keep_first(status, params_make_blocks(store, options, &why), &why, err);
    if (options->optimiser)
        status = error_keep_first(
            status, tdm__replicas_create(store, options, &store->replicas, &why), &why, err);
    if (store->node_size == 1) return status;

    /* The board is of this world, so it does not survive it. */
    size_t bytes = sizeof(tdm__exchange_board) + store->layout->bucket_count * sizeof(uint64_t);
    tdm_status made = tdm__node_memory_open(NULL, options->comm, &store->world_memory, &why);
    if (made == TDM_OK)
        made = tdm__region_take(&store->world_memory, "exchange-board", -1, bytes, TDM__REGION_FULL,
                                &store->board, &why);
    return error_keep_first(status, made, &why, err);
}

static tdm_status params_build(tdm_params *store, const tdm_params_options *options, tdm_error *err)
{
    TDM_TRY(tdm__layout_create(&(tdm__layout_options){.graph = options->graph,
                                                      .comm = options->comm,
                                                      .common = options->zero == 0,
                                                      .bucket_bytes = options->bucket_bytes},
                               &store->layout, err));
    const tdm__layout *layout = store->layout;
    tdm_error why = {0};
    store->node_size = layout->first_of_node[layout->node + 1] -
                       layout->first_of_node[layout->node];
    store->leads = layout->place == layout->first_of_node[layout->node];

    store->optimiser = options->optimiser;
    store->graph = options->graph;

    tdm_status status = params_make_tables(store, options->graph, err);
    status = error_keep_first(status, params_make_memory(store, options, &why), &why, err);
    TDM_TRY(tdm_comm_agree(layout->comm, status, NULL, err));

    for (int i = 0; i < TDM__MAX_BLOCKS && !store->memory.outlives; i++) {
        const tdm__block *block = &store->blocks[i];
        if (block->data && block->common && !block->in_file) block_touch(store, block);
    }
    if (options->optimiser) params_bind_optimiser(store, options->optimiser);
    return layout->world ? tdm_group_barrier(layout->world, err) : TDM_OK;
}

tdm_status tdm_params_create(const tdm_params_options *options, tdm_params **out, tdm_error *err)
{
    if (options->zero < 0 || options->zero > 3)
        return tdm_fail(err, TDM_ERR_RANGE, "parallel.zero is %d; it must be 0, 1, 2 or 3",
                        options->zero);
    tdm_params *store = calloc(1, sizeof(*store));
    if (!store) return tdm_fail_oom(err, "for the parameter store");
    tdm_status status = params_build(store, options, err);
    if (status != TDM_OK) {
        tdm_params_destroy(store);
        return status;
    }
    *out = store;
    return TDM_OK;
}

void tdm_params_destroy(tdm_params *store)
{
    if (!store) return;
    for (size_t i = 0; store->pending && i < store->layout->bucket_count; i++)
        if (store->pending[i]) (void)tdm_request_wait(store->pending[i], NULL);
    if (store->undo_log && store->undo_log->undo_header) {
        tdm__undo_gather_end(store->undo_log);
        tdm__undo_log_release(store->undo_log);
    }
    tdm__replicas_destroy(store, store->replicas);
    for (int i = 0; i < TDM__MAX_BLOCKS; i++) {
        if (!store->blocks[i].in_file) tdm__region_release(&store->memory, store->blocks[i].data);
        tdm_pages_unmap(&store->blocks[i].pages);
    }
    tdm__region_release(&store->world_memory, store->board);
    tdm__node_memory_close(&store->memory);
    tdm__node_memory_close(&store->world_memory);
    free(store->undo_log);
    free(store->clipped);
    free(store->cuts);
    free(store->leader_cuts);
    free(store->pending);
    free(store->params);
    tdm__layout_destroy(store->layout);
    free(store);
}

/* ---- queries --------------------------------------------------------------------------------- */

float *tdm_params_block(const tdm_params *store, int block)
{
    int64_t replica;
    if (block >= TDM_BLOCK_REPLICA) return tdm__replica_block(store->replicas, block, &replica);
    return block < 0 ? NULL : store->blocks[block].data;
}

bool tdm_params_is_whole(const tdm_params *store, int block)
{
    if (block >= TDM_BLOCK_REPLICA)
        return store->layout->node_count == 1 && tdm_params_block(store, block);
    return block >= 0 && block < TDM__MAX_BLOCKS && store->blocks[block].data &&
           store->blocks[block].whole;
}

tdm_params_info tdm_params_info_of(const tdm_params *store)
{
    const tdm__layout *layout = store->layout;
    tdm_params_info info = {.node_count = layout->node_count,
                            .node_size = store->node_size,
                            .bucket_count = layout->bucket_count};
    uint64_t whole = block_bytes(store);
    uint64_t own = whole - layout->trained_elements * sizeof(float); /* buffers */
    for (size_t i = 0; i < layout->bucket_count; i++)
        own += sizeof(float) *
               tdm__cells_extent(
                   layout, tdm__layout_share(layout, tdm__layout_bucket(layout, i), layout->place))
                   .count;
    for (int i = 0; i < TDM__MAX_BLOCKS; i++) {
        const tdm__block *block = &store->blocks[i];
        if (!block->data) continue;
        uint64_t bytes = block->whole ? whole : own;
        if (block->in_file)
            info.file_bytes += bytes;
        else if (block->common || store->memory.outlives)
            info.common_bytes += bytes;
        else
            info.private_bytes += bytes;
    }
    return info;
}

const tdm__layout *tdm__params_layout(const tdm_params *store)
{
    return store->layout;
}

const tdm__node_memory *tdm__params_memory(const tdm_params *store)
{
    return &store->memory;
}

tdm__replicas *tdm__params_replicas(const tdm_params *store)
{
    return store->replicas;
}

tdm__undo_log *tdm__params_undo_log(const tdm_params *store)
{
    return store->undo_log;
}

void tdm_params_snapshot_save(tdm_params *store, const void *snapshot, size_t bytes, uint64_t order)
{
    if (store->undo_log) tdm__undo_snapshot_save(store->undo_log, snapshot, bytes, order);
}
