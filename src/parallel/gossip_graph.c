/*
 * gossip_graph.c: the graphs of sync.kind gossip. See parallel.h.
 *
 * Numbers of replicas are powers of two. All graphs look the same from each replica, except random ones, so that the
 * shares that a replica receives add up to 1 as well. In a random graph they do not: a replica can receive more or
 * fewer shares than it sends, and its push-sum weight records by how much its model has grown.
 */
#include "base/base.h"
#include "job/job.h"
#include "parallel/parallel.h"

static int64_t gossip_levels(int64_t replica_count)
{
    int64_t levels = 0;
    while ((INT64_C(1) << levels) < replica_count) levels++;
    return levels;
}

/* Rows of the torus: it is a square, or twice as wide as high. */
static int64_t torus_rows(int64_t replica_count)
{
    return INT64_C(1) << gossip_levels(replica_count) / 2;
}

/* Adds a target, unless it is the replica itself or listed already: small rings and grids meet themselves. */
static int target_add(int64_t *targets, int count, int64_t replica, int64_t target)
{
    if (target == replica) return count;
    for (int i = 0; i < count; i++)
        if (targets[i] == target) return count;
    targets[count] = target;
    return count + 1;
}

static int ring_targets(int64_t replica_count, int64_t replica, int64_t *out)
{
    int count = target_add(out, 0, replica, (replica + 1) % replica_count);
    return target_add(out, count, replica, (replica + replica_count - 1) % replica_count);
}

static int torus_targets(int64_t replica_count, int64_t replica, int64_t *out)
{
    int64_t rows = torus_rows(replica_count), columns = replica_count / rows;
    int64_t row = replica / columns, column = replica % columns;
    int count = target_add(out, 0, replica, row * columns + (column + 1) % columns);
    count = target_add(out, count, replica, row * columns + (column + columns - 1) % columns);
    count = target_add(out, count, replica, (row + 1) % rows * columns + column);
    return target_add(out, count, replica, (row + rows - 1) % rows * columns + column);
}

/* Distances 1, 2, 4, ...: the next ones in each round, so that after levels / degree rounds all have been used. */
static void exponential_targets(const tdm_gossip_graph *graph, uint64_t round, int64_t replica,
                                int64_t *out)
{
    uint64_t levels = (uint64_t)gossip_levels(graph->replica_count);
    uint64_t degree = levels > 0 ? (uint64_t)graph->target_count : 0;
    for (uint64_t i = 0; i < degree; i++) {
        uint64_t level = (round % levels * (degree % levels) + i) % levels;
        out[i] = (replica + (INT64_C(1) << level)) % graph->replica_count;
    }
}

static void random_targets(const tdm_gossip_graph *graph, uint64_t round, int64_t replica,
                           int64_t *out)
{
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = graph->seed,
                                               .stream = TDM_RNG_STREAM_GOSSIP,
                                               .sub_stream = (uint32_t)replica,
                                               .step = round});
    uint64_t mask = (uint64_t)graph->replica_count - 1;
    for (int count = 0; count < graph->target_count;)
        count = target_add(out, count, replica, (int64_t)(tdm_rng_u64(&rng) & mask));
}

tdm_status tdm_gossip_graph_init(const tdm_job *job, tdm_gossip_graph *out, tdm_error *err)
{
    int64_t replicas = tdm_replicas_of(job), targets[TDM_GOSSIP_MAX_TARGETS];
    int64_t degree = job->sync.degree, max = replicas - 1;
    if (replicas < 2)
        return tdm_fail(err, TDM_ERR_JOB_INVALID,
                        "sync.kind gossip needs at least two replicas, but this job has %lld; set "
                        "parallel.lanes and sync.replicas to 2 or more",
                        (long long)replicas);
    if (job->sync.graph == TDM_JOB_GRAPH_EXPONENTIAL) max = gossip_levels(replicas);
    if (max > TDM_GOSSIP_MAX_TARGETS) max = TDM_GOSSIP_MAX_TARGETS;
    *out = (tdm_gossip_graph){
        .kind = job->sync.graph, .replica_count = replicas, .seed = (uint64_t)job->seed};
    if (job->sync.graph == TDM_JOB_GRAPH_RING) {
        out->target_count = ring_targets(replicas, 0, targets);
    } else if (job->sync.graph == TDM_JOB_GRAPH_TORUS) {
        out->target_count = torus_targets(replicas, 0, targets);
    } else {
        if (degree < 1 || degree > max)
            return tdm_fail(err, TDM_ERR_JOB_INVALID,
                            "sync.degree is %lld, but with %lld replicas each has at most %lld "
                            "neighbours in this graph; reduce it, or increase sync.replicas",
                            (long long)degree, (long long)replicas, (long long)max);
        out->target_count = (int)degree;
    }
    return TDM_OK;
}

void tdm_gossip_targets(const tdm_gossip_graph *graph, uint64_t round, int64_t replica,
                        int64_t *out)
{
    switch (graph->kind) {
    case TDM_JOB_GRAPH_RING: ring_targets(graph->replica_count, replica, out); break;
    case TDM_JOB_GRAPH_TORUS: torus_targets(graph->replica_count, replica, out); break;
    case TDM_JOB_GRAPH_RANDOM: random_targets(graph, round, replica, out); break;
    default: exponential_targets(graph, round, replica, out); break;
    }
}
