/*
 * replicas.c: the arrays of logical replicas: memory, versions, and their recovery. See replicas.h.
 *
 * Invariant: a version with a mark is complete. Its mark is cleared before its first byte changes, and set after its
 * last one.
 */
#include "parallel/replicas.h"
#include "base/base.h"
#include "job/job.h"

#include <stdlib.h>
#include <string.h>

enum { RECOVER_WINDOW = 1 << 18 }; /* elements */

int64_t tdm_replicas_of(const tdm_job *job)
{
    enum { AUTO_MAX_REPLICAS = 4 };
    if (!tdm_job_has_replicas(job)) return 0;
    if (job->sync.replicas > 0) return job->sync.replicas;
    int64_t lanes = tdm_job_is_async(job) ? AUTO_MAX_REPLICAS : tdm_lanes_of(job);
    return lanes < AUTO_MAX_REPLICAS ? lanes : AUTO_MAX_REPLICAS;
}

int64_t tdm_tree_lanes_of(const tdm_job *job)
{
    return tdm_lanes_of(job) * (tdm_job_is_async(job) ? tdm_replicas_of(job) : 1);
}

tdm_status tdm__replicas_check(const tdm_job *job, tdm_error *err)
{
    int64_t replicas = tdm_replicas_of(job), lanes = tdm_tree_lanes_of(job);
    if (replicas > 0 && lanes > TDM_MAX_LANES)
        return tdm_fail(err, TDM_ERR_JOB_INVALID,
                        "with sync.kind server each of the %lld replicas has all %lld lanes, but a "
                        "job can have %d in all; set parallel.lanes to %lld",
                        (long long)replicas, (long long)tdm_lanes_of(job), TDM_MAX_LANES,
                        (long long)(TDM_MAX_LANES / replicas));
    if (replicas <= lanes) return TDM_OK;
    return tdm_fail(err, TDM_ERR_JOB_INVALID,
                    "sync.replicas is %lld, but each replica needs a lane, and parallel.lanes is "
                    "%lld%s; set parallel.lanes to %lld or sync.replicas to %lld",
                    (long long)replicas, (long long)lanes,
                    job->parallel.lanes > 0 ? "" : " for a batch of this size", (long long)replicas,
                    (long long)lanes);
}

tdm_rank_limit tdm_rank_limit_of(const tdm_job *job)
{
    int64_t replicas = tdm_replicas_of(job);
    if (replicas > 0 && replicas <= tdm_tree_lanes_of(job))
        return (tdm_rank_limit){replicas, "replicas", "sync.replicas"};
    return (tdm_rank_limit){tdm_lanes_of(job), "lanes", "parallel.lanes"};
}

/* ---- memory ---------------------------------------------------------------------------------- */

static size_t marks_bytes(const tdm__replicas *replicas)
{
    size_t bytes = 2 * (size_t)replicas->count * sizeof(*replicas->marks);
    return (bytes + 4095) / 4096 * 4096;
}

static tdm_status replicas_prepare(tdm__replicas *replicas, const tdm_params *store, tdm_error *err)
{
    const tdm__layout *layout = store->layout;
    size_t bytes;
    replicas->stride = (replicas->elements + TDM__CELL - 1) / TDM__CELL * TDM__CELL;
    replicas->first = calloc((size_t)layout->size + 1, sizeof(*replicas->first));
    replicas->current = calloc((size_t)replicas->count, sizeof(*replicas->current));
    if (!replicas->first || !replicas->current) return tdm_fail_oom(err, "for the replicas");
    if (layout->size > replicas->count)
        return tdm_fail(err, TDM_ERR_JOB_INVALID,
                        "%d ranks cannot share %lld replicas: each executes at least one; use "
                        "between 1 and %lld ranks, or set sync.replicas higher (which changes the "
                        "result)",
                        layout->size, (long long)replicas->count, (long long)replicas->count);
    tdm_place_lanes(replicas->count, layout->size, NULL, replicas->first);
    if (__builtin_mul_overflow(2 * (size_t)replicas->count * (size_t)replicas->array_count,
                               replicas->stride * sizeof(float), &bytes) ||
        __builtin_add_overflow(bytes, marks_bytes(replicas), &bytes))
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "the state of %lld replicas is too large",
                        (long long)replicas->count);
    TDM_TRY(tdm__region_take(&store->memory, "replicas", -1, bytes, TDM__REGION_SPARSE,
                             &replicas->region, err));
    replicas->marks = replicas->region;
    replicas->data = (float *)(void *)((char *)replicas->region + marks_bytes(replicas));
    return TDM_OK;
}

/* With updates in order, every node has the model, and the models that all replicas have read. */
static tdm_status replicas_check_hosts(const tdm_params *store, const tdm_params_options *options,
                                       tdm_error *err)
{
    const tdm__layout *layout = store->layout;
    if (!options->is_ordered || layout->node_count == 1) return TDM_OK;
    if (!layout->common)
        return tdm_fail(err, TDM_ERR_UNSUPPORTED,
                        "sync.kind server keeps the whole state on each host, and the ranks are on "
                        "%d hosts; set parallel.zero to 0",
                        layout->node_count);
    if (options->replica_arrays == 1) return TDM_OK;
    return tdm_fail(err, TDM_ERR_UNSUPPORTED,
                    "sync.kind server compresses within one host only, because the residual of a "
                    "replica would be lost with its host, and the ranks are on %d hosts; remove "
                    "compress, or set compress.feedback to false",
                    layout->node_count);
}

tdm_status tdm__replicas_create(const tdm_params *store, const tdm_params_options *options,
                                tdm__replicas **out, tdm_error *err)
{
    *out = NULL;
    if (options->replica_count == 0) return TDM_OK;
    TDM_TRY(replicas_check_hosts(store, options, err));
    tdm__replicas *replicas = calloc(1, sizeof(*replicas));
    if (!replicas) return tdm_fail_oom(err, "for the replicas");
    replicas->count = options->replica_count;
    replicas->array_count = options->replica_arrays;
    replicas->elements = store->layout->elements + options->replica_tail;
    replicas->is_ordered = options->is_ordered;
    replicas->is_gossip = options->is_gossip;
    tdm_status status = replicas_prepare(replicas, store, err);
    if (status != TDM_OK) {
        tdm__replicas_destroy(store, replicas);
        return status;
    }
    *out = replicas;
    return TDM_OK;
}

void tdm__replicas_destroy(const tdm_params *store, tdm__replicas *replicas)
{
    if (!replicas) return;
    tdm__region_release(&store->memory, replicas->region);
    free(replicas->first);
    free(replicas->current);
    free(replicas);
}

int tdm__replica_home(const tdm_params *store, int64_t replica)
{
    const tdm__replicas *replicas = store->replicas;
    int place = 0;
    while (replicas->first[place + 1] <= replica) place++;
    return place;
}

/* Whether a node keeps the arrays of a replica. */
static bool replica_is_kept(const tdm_params *store, int64_t replica, int node)
{
    return store->replicas->is_ordered ||
           store->layout->node_of_place[tdm__replica_home(store, replica)] == node;
}

int tdm__replica_keeper(const tdm_params *store, int64_t replica)
{
    const tdm__layout *layout = store->layout;
    int home = tdm__replica_home(store, replica);
    if (layout->node_of_place[home] == layout->node) return home;
    return store->replicas->is_ordered ? layout->first_of_node[layout->node] : -1;
}

float *tdm__replica_array(const tdm__replicas *replicas, int64_t replica, int version, int array)
{
    size_t arrays = (size_t)replicas->array_count;
    size_t index = ((size_t)replica * 2 + (size_t)version) * arrays + (size_t)array;
    return replicas->data + index * replicas->stride;
}

float *tdm__replica_block(const tdm__replicas *replicas, int block, int64_t *replica)
{
    if (!replicas || replicas->array_count == 0 || block < TDM_BLOCK_REPLICA) return NULL;
    int64_t index = block - TDM_BLOCK_REPLICA, arrays = replicas->array_count;
    if (index >= replicas->count * arrays) return NULL;
    *replica = index / arrays;
    return tdm__replica_array(replicas, *replica, replicas->current[*replica],
                              (int)(index % arrays));
}

/* ---- versions -------------------------------------------------------------------------------- */

static _Atomic uint64_t *version_mark(const tdm__replicas *replicas, int64_t replica, int version)
{
    return &replicas->marks[2 * replica + version];
}

void tdm__replica_write_begin(const tdm__replicas *replicas, int64_t replica)
{
    atomic_store(version_mark(replicas, replica, 1 - replicas->current[replica]), 0);
    tdm__undo_barrier();
}

void tdm__replica_write_end(const tdm__replicas *replicas, int64_t replica, uint64_t step)
{
    tdm__undo_barrier();
    atomic_store(version_mark(replicas, replica, 1 - replicas->current[replica]), step + 2);
}

void tdm__replica_flip(tdm__replicas *replicas, int64_t replica)
{
    replicas->current[replica] = 1 - replicas->current[replica];
}

void tdm__replicas_invalidate(const tdm__replicas *replicas)
{
    if (!replicas) return;
    for (int64_t i = 0; i < 2 * replicas->count; i++) atomic_store(&replicas->marks[i], 0);
    tdm__undo_barrier();
}

void tdm__replicas_clear(tdm__replicas *replicas)
{
    if (!replicas) return;
    for (int64_t r = 0; r < replicas->count; r++)
        for (int k = 0; k < replicas->array_count; k++)
            tdm__numbers_clear(tdm__replica_array(replicas, r, 0, k), replicas->stride);
}

void tdm__replicas_mark(const tdm_params *store, uint64_t mark)
{
    const tdm__replicas *replicas = store->replicas;
    if (!replicas) return;
    for (int64_t r = 0; r < replicas->count; r++) {
        if (!replica_is_kept(store, r, store->layout->node)) continue;
        atomic_store(version_mark(replicas, r, replicas->current[r]), mark);
        atomic_store(version_mark(replicas, r, 1 - replicas->current[r]), 0);
    }
}

/* The newest version of a replica that is not later than `mark`; -1: none. */
static int version_find(const tdm__replicas *replicas, int64_t replica, uint64_t mark)
{
    uint64_t marks[2] = {atomic_load(version_mark(replicas, replica, 0)),
                         atomic_load(version_mark(replicas, replica, 1))};
    int found = -1;
    for (int v = 0; v < 2; v++) {
        bool fits = replicas->is_ordered ? marks[v] > 0 && marks[v] <= mark : marks[v] == mark;
        if (fits && (found < 0 || marks[v] > marks[found])) found = v;
    }
    return found;
}

void tdm__replica_use(tdm__replicas *replicas, int64_t replica, uint64_t mark)
{
    replicas->current[replica] = mark > 0 && version_find(replicas, replica, mark) == 1;
}

void tdm__replicas_attach(tdm__replicas *replicas, uint64_t mark)
{
    for (int64_t r = 0; replicas && r < replicas->count; r++) tdm__replica_use(replicas, r, mark);
}

/* ---- recovery -------------------------------------------------------------------------------- */

/* The nodes that hold each replica: node_count x count. */
static tdm_status replicas_exchange(const tdm_params *store, uint64_t mark, bool here,
                                    uint8_t *held, tdm_error *err)
{
    const tdm__replicas *replicas = store->replicas;
    const tdm__layout *layout = store->layout;
    uint8_t *own = held + (size_t)layout->node * (size_t)replicas->count;
    for (int64_t r = 0; r < replicas->count; r++)
        own[r] = here && version_find(replicas, r, mark) >= 0;
    if (!layout->leaders) return TDM_OK;
    return tdm_group_all_gather(layout->leaders, NULL, held,
                                (size_t)layout->node_count * (size_t)replicas->count, TDM_DTYPE_U8,
                                err);
}

static int replica_source(const tdm_params *store, const uint8_t *held, int64_t replica)
{
    for (int node = 0; node < store->layout->node_count; node++)
        if (held[node * store->replicas->count + replica]) return node;
    return -1;
}

/* Sends the version of a replica from a node to those that need it; all leaders take part in the broadcast. */
static tdm_status replica_send(const tdm_params *store, int64_t replica, uint64_t mark, int source,
                               bool takes, float *window, tdm_error *err)
{
    const tdm__replicas *replicas = store->replicas;
    const tdm__layout *layout = store->layout;
    int from = version_find(replicas, replica, mark) == 1;
    size_t elements = replicas->stride * (size_t)replicas->array_count;
    if (takes)
        for (int v = 0; v < 2; v++) atomic_store(version_mark(replicas, replica, v), 0);
    tdm__undo_barrier();

    for (size_t at = 0; at < elements; at += RECOVER_WINDOW) {
        size_t count = elements - at < RECOVER_WINDOW ? elements - at : RECOVER_WINDOW;
        float *data = window;
        if (layout->node == source) data = tdm__replica_array(replicas, replica, from, 0) + at;
        if (takes) data = tdm__replica_array(replicas, replica, 0, 0) + at;
        TDM_TRY(tdm_group_broadcast(layout->leaders, data, count, TDM_DTYPE_F32, source, err));
    }

    tdm__undo_barrier();
    if (takes) atomic_store(version_mark(replicas, replica, 0), mark);
    return TDM_OK;
}

static tdm_status replicas_send(const tdm_params *store, uint64_t mark, const uint8_t *held,
                                float *window, tdm_error *err)
{
    const tdm__layout *layout = store->layout;
    tdm_status status = TDM_OK;
    TDM_TRY(tdm__undo_write_begin(store->undo_log, err));
    for (int64_t r = 0; r < store->replicas->count && status == TDM_OK; r++) {
        bool needed = false, takes = false;
        for (int node = 0; node < layout->node_count; node++) {
            bool lacks = replica_is_kept(store, r, node) &&
                         !held[node * store->replicas->count + r];
            needed = needed || lacks;
            takes = takes || (lacks && node == layout->node);
        }
        if (!needed) continue;
        int source = replica_source(store, held, r);
        status = replica_send(store, r, mark, source, takes, window, err);
    }
    tdm__undo_write_end(store->undo_log);
    return status;
}

tdm_status tdm__replicas_recover(const tdm_params *store, uint64_t mark, bool here, bool *found,
                                 tdm_error *err)
{
    const tdm__replicas *replicas = store->replicas;
    *found = true;
    if (!replicas || replicas->array_count == 0) return TDM_OK;
    size_t nodes = (size_t)store->layout->node_count;
    uint8_t *held = calloc(nodes * (size_t)replicas->count, 1);
    float *window = malloc(RECOVER_WINDOW * sizeof(float));
    tdm_status status = held && window ? TDM_OK : tdm_fail_oom(err, "for a recovery");
    if (status == TDM_OK) status = replicas_exchange(store, mark, here, held, err);
    for (int64_t r = 0; r < replicas->count && status == TDM_OK && *found; r++)
        *found = replica_source(store, held, r) >= 0;
    if (status == TDM_OK && *found && store->layout->leaders)
        status = replicas_send(store, mark, held, window, err);
    free(window);
    free(held);
    return status;
}
