/*
 * params.c: the parameter store: creation of the blocks and queries.
 *
 * Blocks of a node with several ranks are allocated by its first rank, the leader, from memory that all of
 * them share (tdm_comm_shared), or from a file that all of them map. Then every rank touches its share
 * first, so that its pages come from the nearest NUMA node. A single rank in its node uses private
 * pages. Blocks that are sharded over all ranks keep their indices: the rank reserves address space for
 * the whole block, and only its share ever gets memory.
 *
 * Files for offloaded blocks are unlinked as soon as all ranks have mapped them: however the ranks
 * end, the disk space is freed with the last of them.
 *
 * Creation is collective, and so is its failure: at its end all ranks agree on the result.
 */
#include "base/base.h"
#include "comm/comm.h"
#include "os/os.h"
#include "parallel/params_inner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LEAVE_S 2.0 /* limit for the node's other ranks to stop using the memory */
/* With an undo log the comm is closed together with the store, and its memory is freed. A stopped rank will not
 * leave before that, and a rank that waited for it would be late for the next epoch. */
#define LEAVE_EPOCH_S 0.1

enum { NAP_NS = 50000, MAX_PATH = 4096 };

/* ---- agreement ------------------------------------------------------------------------------- */

tdm_status tdm__params_agree(const tdm_params *store, tdm_status status, tdm_error *err)
{
    const tdm__layout *layout = store->layout;
    if (!layout->world) return status;
    tdm_error broken = {0}, first = {0};
    int64_t failed = status == TDM_OK ? layout->size : layout->place;
    tdm_status agreed = tdm_group_all_reduce(layout->world, NULL, &failed, 1, TDM_DTYPE_I64,
                                             TDM_REDUCE_MIN, &broken);
    if (agreed == TDM_OK && failed == layout->size) return TDM_OK;
    if (agreed == TDM_OK) { /* get the reason from the first rank that failed */
        if (failed == layout->place) first = (tdm_error){.status = status};
        if (failed == layout->place && err) first = *err;
        agreed = tdm_group_broadcast(layout->world, &first, sizeof(first), TDM_DTYPE_U8,
                                     (int)failed, &broken);
        /* No rank may leave, which breaks the world, before all have received the reason. */
        if (agreed == TDM_OK) (void)tdm_group_barrier(layout->world, &(tdm_error){0});
    }
    if (status != TDM_OK) return status; /* this rank's own reason is more informative */
    if (agreed != TDM_OK) {
        if (err) *err = broken;
        return agreed;
    }
    first.message[sizeof(first.message) - 1] = '\0';
    return tdm_fail(err, first.status, "rank %d: %s", layout->rank_of_place[failed], first.message);
}

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

/* Location of a block, as the leader of a node broadcasts it. */
typedef struct block_location {
    /* UINT64_MAX: the leader failed; an offset in the node's memory, if there is no path */
    uint64_t place;
    char path[MAX_PATH];
} block_location;

static tdm_status block_lead(const tdm_params *store, tdm__block *block, size_t bytes,
                             block_location *n, tdm_error *err)
{
    n->place = UINT64_MAX;
    tdm_status status = TDM_OK;
    void *memory = NULL;
    if (block->in_file) {
        status = tdm_file_map_create(n->path, bytes, &block->pages, err);
        if (status == TDM_OK) n->place = 0;
        memory = block->pages.data;
    } else {
        status = tdm_comm_shared(store->layout->comm, bytes, &memory, err);
        if (status == TDM_OK) n->place = tdm_comm_shared_place(store->layout->comm, memory);
    }
    block->data = memory;
    tdm_status sent = tdm_group_broadcast(store->layout->mine, n, sizeof(*n), TDM_DTYPE_U8, 0, err);
    return status == TDM_OK ? sent : status;
}

static tdm_status block_follow(const tdm_params *store, tdm__block *block, size_t bytes,
                               block_location *n, tdm_error *err)
{
    TDM_TRY(tdm_group_broadcast(store->layout->mine, n, sizeof(*n), TDM_DTYPE_U8, 0, err));
    if (n->place == UINT64_MAX) /* the leader reports the reason */
        return tdm_fail(err, TDM_ERR_PEER_FAILED,
                        "rank %d could not allocate memory for this host: see its message",
                        tdm_group_world_rank(store->layout->mine, 0));
    n->path[sizeof(n->path) - 1] = '\0';
    if (block->in_file) TDM_TRY(tdm_file_map_open(n->path, bytes, &block->pages, err));
    block->data = block->in_file ? block->pages.data
                                 : tdm_comm_shared_at(store->layout->comm, n->place);
    if (block->data) return TDM_OK;
    return tdm_fail(err, TDM_ERR_PEER_FAILED, "the shared memory of rank %d is gone",
                    tdm_group_world_rank(store->layout->mine, 0));
}

/* Creates a block of a node with several ranks. A rank that fails does not leave the others waiting. */
static tdm_status block_make_common(const tdm_params *store, tdm__block *block, size_t bytes,
                                    const char *path, tdm_error *err)
{
    block_location n = {0};
    if (path) snprintf(n.path, sizeof(n.path), "%s", path);
    tdm_status status = store->leads ? block_lead(store, block, bytes, &n, err)
                                     : block_follow(store, block, bytes, &n, err);
    if (!block->in_file) return status;
    tdm_error met = {0};
    tdm_status all = tdm_group_barrier(store->layout->mine, &met); /* all have mapped it */
    if (store->leads && n.place != UINT64_MAX) unlink(n.path);
    return error_keep_first(status, all, &met, err);
}

/* In shared memory a block belongs to the node, whichever rank uses a part of it. */
static tdm_status block_make_shm(tdm_params *store, int index, tdm_error *err)
{
    char name[TDM_SHM_NAME_BYTES];
    void *memory;
    snprintf(name, sizeof(name), "block-%d", index);
    TDM_TRY(
        tdm_shm_region_take(store->undo_log->shm, name, block_bytes(store), NULL, &memory, err));
    store->blocks[index].data = memory;
    store->undo_log->blocks[index] = memory;
    return TDM_OK;
}

static tdm_status block_make(tdm_params *store, int index, bool shared_out, const char *offload,
                             tdm_error *err)
{
    tdm__block *block = &store->blocks[index];
    block->whole = !shared_out;
    if (store->undo_log) return block_make_shm(store, index, err);
    block->common = !shared_out && store->node_size > 1;
    block->in_file = offload && index != TDM_BLOCK_PARAMS;
    char path[MAX_PATH] = "";
    if (block->in_file) block_file_name(store, offload, index, path);
    size_t bytes = block_bytes(store);
    if (block->common)
        return block_make_common(store, block, bytes, block->in_file ? path : NULL, err);
    tdm_status status;
    if (block->in_file && shared_out)
        status = block_map_file(store, path, &block->pages, err);
    else if (block->in_file) {
        status = tdm_file_map_create(path, bytes, &block->pages, err);
        if (status == TDM_OK) unlink(path);
    } else if (shared_out)
        status = tdm_pages_reserve(bytes, &block->pages, err);
    else
        status = tdm_pages_map(bytes, false, &block->pages, err);
    if (status == TDM_OK) block->data = block->pages.data;
    return status;
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
        bool shared_out = store->layout->node_count > 1 &&
                          options->zero >= (i == TDM_BLOCK_PARAMS ? 3 : 1);
        tdm_error why = {0};
        tdm_status status = block_make(store, i, shared_out, options->offload, &why);
        if (status != TDM_OK) store->blocks[i].data = NULL;
        if (status != TDM_OK && store->blocks[i].in_file)
            status = tdm_error_context(&why, status, "parallel.offload");
        first = error_keep_first(first, status, &why, err); /* continue: other ranks may wait */
    }
    return first;
}

static tdm_status params_make_board(tdm_params *store, tdm_error *err)
{
    tdm__block block = {0};
    size_t marks = store->layout->bucket_count + (size_t)store->node_size;
    size_t bytes = sizeof(tdm__exchange_board) + marks * sizeof(uint64_t);
    tdm_status status = block_make_common(store, &block, bytes, NULL, err);
    if (status == TDM_OK) store->board = (tdm__exchange_board *)(void *)block.data;
    return status;
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
    tdm__undo_log *undo_log = calloc(1, sizeof(*undo_log));
    if (!undo_log) return tdm_fail_oom(err, "for the parameter store");
    *undo_log = (tdm__undo_log){.shm = options->shm,
                                .slot = options->slot,
                                .epoch = options->epoch  ? options->epoch
                                         : options->comm ? tdm_comm_epoch(options->comm)
                                                         : 1,
                                .thread_count = options->thread_count > 0 ? options->thread_count
                                                                          : 1};
    store->optimiser = options->optimiser;
    store->graph = options->graph;
    tdm_status status = tdm__undo_log_open(
        undo_log, tdm_optimiser_piece_count(options->optimiser),
        tdm__statistic_visit(options->graph, (tdm__cells){0, 0}, NULL, NULL), err);
    if (status == TDM_OK)
        store->undo_log = undo_log;
    else
        free(undo_log);
    return status;
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

    tdm_status status = params_make_tables(store, options->graph, err);
    if (options->shm && options->optimiser && !options->offload)
        status = error_keep_first(status, params_make_undo_log(store, options, &why), &why, err);
    status = error_keep_first(status, params_make_blocks(store, options, &why), &why, err);
    if (store->node_size > 1)
        status = error_keep_first(status, params_make_board(store, &why), &why, err);
    TDM_TRY(tdm__params_agree(store, status, err));

    for (int i = 0; i < TDM__MAX_BLOCKS; i++) {
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

static bool peer_has_left(const tdm_params *store, int index)
{
    const tdm__layout *layout = store->layout;
    int rank = layout->rank_of_place[layout->first_of_node[layout->node] + index];
    return store->board->marks[layout->bucket_count + (size_t)index] != 0 ||
           tdm_comm_peer_state(layout->comm, rank) != TDM_PEER_WELL;
}

/* Whether no other rank of the node uses its memory any more; waits a short time for that. */
static bool peers_have_left(const tdm_params *store)
{
    double until_s = tdm_clock_s() + (store->undo_log ? LEAVE_EPOCH_S : LEAVE_S);
    for (int i = 1; i < store->node_size; i++)
        while (!peer_has_left(store, i)) {
            if (tdm_clock_s() > until_s) return false;
            tdm_clock_sleep(NAP_NS * 1e-9);
        }
    return true;
}

/* Frees the node's memory if no rank uses it any more. Otherwise it is freed with the comm. */
static void params_leave_common(tdm_params *store)
{
    const tdm__layout *layout = store->layout;
    if (!store->board) return;
    if (!store->leads) {
        int index = layout->place - layout->first_of_node[layout->node];
        store->board->marks[layout->bucket_count + (size_t)index] = 1;
        return;
    }
    if (!peers_have_left(store)) return;
    for (int i = 0; i < TDM__MAX_BLOCKS; i++) {
        const tdm__block *block = &store->blocks[i];
        if (block->common && !block->in_file && block->data)
            tdm_comm_shared_free(layout->comm, block->data);
    }
    tdm_comm_shared_free(layout->comm, store->board);
}

void tdm_params_destroy(tdm_params *store)
{
    if (!store) return;
    for (size_t i = 0; store->pending && i < store->layout->bucket_count; i++)
        if (store->pending[i]) (void)tdm_request_wait(store->pending[i], NULL);
    if (store->undo_log) tdm__undo_gather_end(store->undo_log);
    params_leave_common(store);
    for (int i = 0; i < TDM__MAX_BLOCKS; i++) tdm_pages_unmap(&store->blocks[i].pages);
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
    return block < 0 || block >= TDM__MAX_BLOCKS ? NULL : store->blocks[block].data;
}

bool tdm_params_is_whole(const tdm_params *store, int block)
{
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
        else if (block->common || store->undo_log)
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

tdm__undo_log *tdm__params_undo_log(const tdm_params *store)
{
    return store->undo_log;
}

void tdm_params_snapshot_save(tdm_params *store, const void *snapshot, size_t bytes, uint64_t order)
{
    if (store->undo_log) tdm__undo_snapshot_save(store->undo_log, snapshot, bytes, order);
}
