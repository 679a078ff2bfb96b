/*
 * predict.c: predicts what ranks map for a training run, by the rules of layout, parameter store, prefetch and team,
 * without mapping it. Allocates only temporary memory.
 *
 * Invariant: a change of what params.c, prefetch.c or the team map must be repeated here; a test compares
 * the prediction with what ranks really map.
 */
#include "base/base.h"
#include "graph/graph.h"
#include "job/job.h"
#include "parallel/parallel.h"
#include "parallel/prefetch_schedule.h"
#include "parallel/replica_run.h"

#include <stdlib.h>
#include <unistd.h>

/* Minimum number of bucket slots for the last lane's gradient, if there are as many buckets. */
enum { GRADIENT_SLOTS = 4 };

typedef struct prediction {
    const tdm_ranks_memory_options *options;
    tdm__layout *layout;    /* of a single rank: for cells and buckets */
    uint64_t trained_bytes; /* of a block and of a gradient: parameters and statistics */
    uint64_t tail_bytes;    /* buffers behind the trained elements */
    uint64_t slot_bytes;    /* of a bucket */
    int node_ranks;
    bool shared_out; /* with several nodes: the state from zero 1 on, the parameters from 3 on */
    bool by_messages;
} prediction;

/* The shares of the node's ranks in something that is divided between all ranks. */
static uint64_t prediction_shares(const prediction *p, uint64_t bytes)
{
    uint64_t ranks = (uint64_t)p->options->rank_count;
    return (bytes + ranks - 1) / ranks * (uint64_t)p->node_ranks;
}

/* ---- parameters ------------------------------------------------------------------------------ */

static tdm_extent *graph_param_places(const tdm_graph *graph)
{
    size_t count = tdm_graph_param_count(graph);
    tdm_extent *places = calloc(count + 1, sizeof(*places));
    for (size_t i = 0; places && i < count; i++)
        places[i] = (tdm_extent){.first = tdm_graph_param_at(graph, i)->offset,
                                 .count = tdm_graph_param_at(graph, i)->elements};
    return places;
}

/* Memory into which a rank gathers buckets (prefetch.c). */
static tdm_status prediction_gathered_bytes(const prediction *p, uint64_t *out, tdm_error *err)
{
    tdm__prefetch_schedule schedule = {0};
    tdm_extent *places = graph_param_places(p->options->graph);
    size_t *slots = calloc(p->layout->bucket_count + 1, sizeof(*slots));
    tdm_status status = TDM_ERR_NO_MEMORY;
    if (!places || !slots)
        tdm_fail(err, status, "no memory for the memory estimate");
    else
        status = tdm__prefetch_schedule_init(p->layout, places, p->options->plan, &schedule, err);
    if (status == TDM_OK) {
        uint64_t count = tdm__prefetch_slots(&schedule.phases, p->layout->bucket_count, slots);
        uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
        *out = count * p->slot_bytes + (p->tail_bytes > 0 ? p->tail_bytes + page : 0);
        tdm__prefetch_schedule_release(&schedule);
    }
    free(slots);
    free(places);
    return status;
}

static tdm_status prediction_count_parameters(const prediction *p, tdm_ranks_memory *out,
                                              tdm_error *err)
{
    uint64_t gathered = 0, ranks = (uint64_t)p->node_ranks;
    if (!p->shared_out || p->options->zero < 3) {
        out->parameter_bytes = p->trained_bytes + p->tail_bytes;
        return TDM_OK;
    }
    TDM_TRY(prediction_gathered_bytes(p, &gathered, err));
    out->parameter_bytes = prediction_shares(p, p->trained_bytes) +
                           ranks * (p->tail_bytes + gathered);
    return TDM_OK;
}

/* ---- state ----------------------------------------------------------------------------------- */

static void prediction_count_state(const prediction *p, tdm_ranks_memory *out)
{
    bool shared_out = p->shared_out && p->options->zero >= 1;
    uint64_t block = shared_out ? prediction_shares(p, p->trained_bytes) : p->trained_bytes;
    uint64_t copies = shared_out ? (uint64_t)p->node_ranks : 1; /* of buffers, in the average */
    out->state_bytes = (uint64_t)p->options->state_count * block;
    if (p->options->job->optim.ema > 0) out->state_bytes += block + copies * p->tail_bytes;
    if (p->options->job->parallel.offload) out->file_bytes = out->state_bytes;
}

/* The cells of range `index` of those that a rank updates in part: all cells, or a bucket. */
static tdm__cells prediction_share(const prediction *p, size_t index, size_t rank)
{
    bool common = p->options->zero == 0;
    size_t count = (size_t)(common ? p->node_ranks : p->options->rank_count);
    tdm__cells range = common ? (tdm__cells){0, p->layout->trained_cells}
                              : tdm__layout_bucket(p->layout, index);
    size_t cells = range.end - range.first;
    return (tdm__cells){range.first + cells * rank / count,
                        range.first + cells * (rank + 1) / count};
}

/* The tensors of a payload that the ranks of the node decode: whole ones, also if a rank updates a part of them. */
static uint64_t prediction_decoded_bytes(const prediction *p)
{
    const tdm_graph *graph = p->options->graph;
    size_t ranges = p->options->zero == 0 ? 1 : p->layout->bucket_count;
    uint64_t elements = 0;
    for (size_t rank = 0; rank < (size_t)p->node_ranks; rank++) {
        size_t k = 0;
        for (size_t i = 0; i < tdm_graph_param_count(graph); i++) {
            const tdm_param_info *param = tdm_graph_param_at(graph, i);
            if (!param->trained) continue;
            while (k < ranges && prediction_share(p, k, rank).end * TDM__CELL <= param->offset) k++;
            if (k < ranges &&
                prediction_share(p, k, rank).first * TDM__CELL < param->offset + param->elements)
                elements += param->elements;
        }
    }
    return elements * sizeof(float);
}

/* The replicas of the ranks of the first node, which has the most. With updates in order each node has all. */
static tdm_status prediction_node_replicas(const prediction *p, uint64_t *out, tdm_error *err)
{
    const tdm_ranks_memory_options *o = p->options;
    *out = (uint64_t)tdm_replicas_of(o->job);
    if (tdm_job_is_async(o->job)) return TDM_OK;
    int64_t *first = calloc((size_t)o->rank_count + 1, sizeof(*first));
    if (!first) return tdm_fail_oom(err, "for the memory estimate");
    tdm_place_lanes(tdm_replicas_of(o->job), o->rank_count, NULL, first);
    *out = (uint64_t)first[p->node_ranks];
    free(first);
    return TDM_OK;
}

/* What the compression of a step needs: payloads and what is decoded from them, or factors and their sums. */
static uint64_t prediction_compress_bytes(const prediction *p, const tdm_compress_sizes *sizes,
                                          uint64_t replicas, uint64_t node_replicas)
{
    uint64_t ranks = (uint64_t)p->node_ranks, payload = sizes->payload_bytes;
    uint64_t first = sizes->first_factor * sizeof(float);
    uint64_t second = sizes->second_factor * sizeof(float);
    uint64_t factors = node_replicas * (first + second) + ranks * (first + 2 * second);
    if (payload == 0 || p->options->node_count == 1) return factors + ranks * payload;
    return node_replicas * payload + ranks * replicas * payload +
           replicas * prediction_decoded_bytes(p);
}

/* What replicas keep, in two versions, and the copy of the model that a rank trains. The states of the optimiser are then
 * those of the replicas, beside the momentum of an outer one. */
static tdm_status prediction_count_replicas(const prediction *p, tdm_ranks_memory *out,
                                            tdm_error *err)
{
    const tdm_job *job = p->options->job;
    const char *names[TDM_MAX_COMPRESS_ARRAYS];
    int64_t replicas = tdm_replicas_of(job);
    bool trains = tdm_job_trains_apart(job), ordered = tdm_job_is_async(job);
    uint64_t node_replicas = 0;
    uint64_t arrays = (uint64_t)tdm_compress_arrays(job, names) + ordered + tdm_job_is_gossip(job);
    uint64_t block = p->trained_bytes + p->tail_bytes;
    if (replicas == 0) return TDM_OK;
    TDM_TRY(prediction_node_replicas(p, &node_replicas, err));
    tdm_compress_sizes sizes;
    TDM_TRY(tdm_compress_sizes_of(job, p->options->graph, &sizes, err));
    out->gradient_bytes += prediction_compress_bytes(p, &sizes, (uint64_t)replicas, node_replicas);
    if (trains) {
        arrays += (uint64_t)p->options->state_count;
        bool has_momentum = tdm_job_is_local(job) && job->sync.outer != TDM_JOB_OUTER_AVERAGE &&
                            job->sync.outer_momentum > 0;
        out->state_bytes = has_momentum ? p->trained_bytes : 0;
    }
    out->state_bytes += 2 * node_replicas * (arrays * block + sizes.second_factor * sizeof(float));
    if (trains || ordered)
        out->state_bytes += (uint64_t)p->node_ranks * block *
                            (1 + (trains ? (uint64_t)p->options->state_count : 0));
    if (tdm_job_is_gossip(job) && p->options->node_count > 1)
        out->state_bytes += (uint64_t)p->node_ranks *
                            tdm__gossip_remote_bytes(replicas, block / sizeof(float));
    return TDM_OK;
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* The first step that writes to a bucket of gradients, and the step that completes it. */
typedef struct span {
    size_t begin, ready;
} span;

static span bucket_span(const prediction *p, size_t bucket)
{
    const tdm_graph *graph = p->options->graph;
    tdm_extent range = tdm__cells_extent(p->layout, tdm__layout_bucket(p->layout, bucket));
    span s = {SIZE_MAX, 0};
    for (size_t i = 0; i < tdm_graph_param_count(graph); i++) {
        const tdm_param_info *param = tdm_graph_param_at(graph, i);
        size_t ready = tdm_plan_grad_step(p->options->plan, i);
        if (ready == SIZE_MAX || param->offset >= range.first + range.count ||
            param->offset + param->elements <= range.first)
            continue;
        size_t begin = tdm_plan_grad_begin(p->options->plan, i);
        if (ready > s.ready) s.ready = ready;
        if (begin < s.begin) s.begin = begin;
    }
    if (s.begin == SIZE_MAX) s.begin = 0; /* nothing in it is trained */
    return s;
}

static int span_compare_ready(const void *left, const void *right)
{
    const span *a = left, *b = right;
    if (a->ready != b->ready) return a->ready < b->ready ? -1 : 1;
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

/* The number of buckets with memory for the gradient that is never complete (buckets.c): a bucket reuses the slot of
 * the bucket that was complete first, if that was complete before it began. Buckets come in the order in
 * which they are complete, so that is always the oldest one; those before `oldest` have been
 * replaced. Models of a terabyte have millions of buckets, so this visits each of them only once. */
static uint64_t prediction_gradient_slots(const prediction *p)
{
    size_t count = p->layout->bucket_count, oldest = 0;
    span *spans = calloc(count + 1, sizeof(*spans));
    if (!spans) return count; /* as if no slot were reused */
    for (size_t i = 0; i < count; i++) spans[i] = bucket_span(p, i);
    qsort(spans, count, sizeof(*spans), span_compare_ready);
    for (size_t i = 0; i < count; i++)
        if (i - oldest >= GRADIENT_SLOTS && spans[oldest].ready < spans[i].begin) oldest++;
    free(spans);
    return count - oldest;
}

/* Sums over the ranks of the node; rank 0 has the most lanes. */
static int prediction_count_buffers(const prediction *p, bool overlaid, int *max_lanes)
{
    const tdm_ranks_memory_options *o = p->options;
    int64_t *first = calloc((size_t)o->rank_count + 1, sizeof(*first));
    int buffers = 0;
    if (!first) return -1;
    tdm_place_lanes(o->lane_count, o->rank_count, NULL, first);
    *max_lanes = (int)first[1];
    for (int r = 0; r < p->node_ranks; r++) {
        tdm_slice lanes = {.first = first[r], .count = first[r + 1] - first[r]};
        if (o->job->parallel.sync_batchnorm)
            buffers += (int)lanes.count;
        else
            buffers += tdm_lane_buffers(o->lane_count,
                                        (tdm_slice){lanes.first, lanes.count - overlaid});
    }
    free(first);
    if (tdm_job_is_async(
            o->job)) /* the gradient of each replica, and those of the lanes of a batch */
        buffers = (int)tdm_replicas_of(o->job) +
                  p->node_ranks *
                      tdm_lane_buffers(o->lane_count, (tdm_slice){0, tdm_lanes_of(o->job)});
    return buffers;
}

static tdm_status prediction_count_gradients(const prediction *p, tdm_ranks_memory *out,
                                             tdm_error *err)
{
    const tdm_ranks_memory_options *o = p->options;
    uint64_t ranks = (uint64_t)p->node_ranks;
    bool overlaid = p->by_messages && o->zero >= 2;
    int max_lanes = 1;
    out->gradient_buffers = prediction_count_buffers(p, overlaid, &max_lanes);
    if (out->gradient_buffers < 0) return tdm_fail_oom(err, "for the memory estimate");
    out->lanes_side_by_side = o->job->parallel.sync_batchnorm ? max_lanes : 1;
    out->gradient_bytes = (uint64_t)out->gradient_buffers * p->trained_bytes;
    if (!p->by_messages) return TDM_OK;
    out->gradient_bytes += o->zero == 0 ? ranks * p->trained_bytes
                                        : prediction_shares(p, p->trained_bytes);
    if (overlaid) out->gradient_bytes += ranks * prediction_gradient_slots(p) * p->slot_bytes;
    return TDM_OK;
}

/* ---- the complete prediction ------------------------------------------------------------------- */

static tdm_status prediction_prepare(prediction *p, tdm_error *err)
{
    const tdm_ranks_memory_options *o = p->options;
    TDM_TRY(tdm__layout_create(
        &(tdm__layout_options){.graph = o->graph, .bucket_bytes = (size_t)o->job->parallel.bucket},
        &p->layout, err));
    const tdm__layout *layout = p->layout;
    uint64_t trained = tdm_graph_grad_extent(o->graph);
    p->trained_bytes = trained * sizeof(float);
    p->tail_bytes = (tdm_graph_param_extent(o->graph) - trained) * sizeof(float);
    if (layout->bucket_count > 0)
        p->slot_bytes = (layout->bucket_first[1] - layout->bucket_first[0]) * TDM__CELL *
                        sizeof(float);
    p->node_ranks = (o->rank_count + o->node_count - 1) / o->node_count;
    p->shared_out = o->node_count > 1;
    p->by_messages = o->rank_count > 1 && !tdm_job_is_async(o->job) &&
                     (o->node_count > 1 || o->zero >= 2 ||
                      o->job->parallel.reduce != TDM_JOB_REDUCE_TREE);
    return TDM_OK;
}

tdm_status tdm_ranks_memory_of(const tdm_ranks_memory_options *options, tdm_ranks_memory *out,
                               tdm_error *err)
{
    TDM_TRY(tdm__replicas_check(options->job, err));
    tdm_rank_limit limit = {options->lane_count, "lanes", "parallel.lanes"};
    if (tdm_replicas_of(options->job) > 0) limit = tdm_rank_limit_of(options->job);
    if (options->rank_count < 1 || options->rank_count > limit.count)
        return tdm_fail(err, TDM_ERR_JOB_INVALID,
                        "%d ranks cannot share %lld %s: use at most %lld ranks, or set %s higher "
                        "(which changes the result)",
                        options->rank_count, (long long)limit.count, limit.units,
                        (long long)limit.count, limit.key);
    if (options->node_count < 1 || options->node_count > options->rank_count)
        return tdm_fail(err, TDM_ERR_JOB_INVALID,
                        "%d ranks cannot be spread over %d hosts: use 1 to %d hosts, or more ranks",
                        options->rank_count, options->node_count, options->rank_count);
    prediction p = {.options = options};
    tdm_ranks_memory memory = {0};
    tdm_status status = prediction_prepare(&p, err);
    if (status == TDM_OK) {
        memory.node_ranks = p.node_ranks;
        prediction_count_state(&p, &memory);
        status = prediction_count_gradients(&p, &memory, err);
    }
    if (status == TDM_OK) status = prediction_count_replicas(&p, &memory, err);
    if (status == TDM_OK) status = prediction_count_parameters(&p, &memory, err);
    tdm__layout_destroy(p.layout);
    if (status == TDM_OK) *out = memory;
    return status;
}
