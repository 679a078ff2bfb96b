/*
 * bench.c: measures the training step of a job.
 *
 * Four measurements, each for some seconds and each by the median of many runs, because a machine
 * has other load now and then: steps of a real team on the job's data; the ops of one lane, timed one by one;
 * the matrix products of the lane alone, by the same kernels with the same buffers; and the machine
 * itself. The products inside attention, which Tandem's kernel does not compute with oneDNN, are timed with
 * oneDNN in a separate graph.
 */
#include "base/base.h"
#include "job/job.h"
#include "nn/nn.h"
#include "os/os.h"
#include "tensor/kernel.h"
#include "train/internal.h"

#include <tandem/bench.h>
#include <tandem/parallel.h>

#include <stdlib.h>
#include <string.h>

enum { MIN_RUNS = 3, MAX_RUNS = 2000, MAX_TIMES = 4000000, PEAK_SIZE = 1024 };
#define MEMORY_BYTES ((size_t)256 << 20)

typedef struct bench {
    const tdm_job *job;
    tdm_bench_options options;
    tdm_bench *out;
    tdm_job_data data;
    tdm_model_options model;
    tdm__state state;
    tdm_team *team;
    tdm_sampler sampler;
    uint64_t position;
    int64_t *indices; /* rows of a lane */
    tdm_graph *lane;
    tdm_plan *plan;
    tdm_pages arena, grads;
    double times[MAX_RUNS];   /* of the current measurement */
    double updates[MAX_RUNS]; /* step time outside of lanes */
    double begin_s;
    tdm_status failed; /* of a step, with `error` */
    tdm_error error;
    uint64_t first_bad; /* first step with non-finite values, from 1; 0: none */
} bench;

static int times_compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double times_median(double *times, int count)
{
    qsort(times, (size_t)count, sizeof(*times), times_compare);
    return times[count / 2];
}

/* Runs an action repeatedly for the configured time; returns the median and the minimum. */
typedef void (*action_fn)(void *context);

static double bench_time(bench *b, action_fn action, void *context, double *min, int *count)
{
    double begin = tdm_clock_s();
    int n = 0;
    do {
        double from = tdm_clock_s();
        action(context);
        b->times[n++] = tdm_clock_s() - from;
    } while (n < MAX_RUNS && (n < MIN_RUNS || tdm_clock_s() - begin < b->options.seconds));
    double middle = times_median(b->times, n);
    if (min) *min = b->times[0];
    if (count) *count = n;
    return middle;
}

/* ---- the step -------------------------------------------------------------------------------- */

static void bench_fill(void *user, int64_t first, int64_t count, void *x, int32_t *classes)
{
    bench *b = user;
    int64_t *indices = b->indices;
    for (int64_t i = 0; i < count; i++) {
        uint64_t at = b->position + (uint64_t)(first + i);
        indices[i] = (int64_t)tdm_sampler_at(&b->sampler, at / b->sampler.sample_count,
                                             at % b->sampler.sample_count);
    }
    tdm_dataset_gather(b->data.train, indices, count, x, classes);
}

/* `request`: to stop; returns true if any rank requests that. */
static bool bench_step(bench *b, bool request)
{
    uint64_t step = b->position / (uint64_t)b->out->batch;
    tdm_step_input in = {
        .step = step, .batch = b->out->batch, .lr = b->job->optim.lr, .request = request};
    tdm_step_result r;
    if (b->failed == TDM_OK) b->failed = tdm_team_step(b->team, &in, &r, &b->error);
    if (b->failed != TDM_OK) return true;
    if (!r.finite && b->first_bad == 0) b->first_bad = step + 1;
    b->position += (uint64_t)b->out->batch;
    return r.requests != 0;
}

/* Time that this rank has spent in lanes so far. */
static double bench_lane_seconds(const bench *b)
{
    tdm_team_rank rank;
    tdm_team_rank_of(b->team, b->options.comm ? tdm_comm_rank(b->options.comm) : 0, &rank);
    return rank.lane_seconds;
}

/* Like bench_time, but the ranks agree on when to stop. */
static void bench_time_steps(bench *b)
{
    double begin = tdm_clock_s();
    int n = 0;
    bool ends = false;
    do {
        double lanes = bench_lane_seconds(b), from = tdm_clock_s();
        bool enough = n + 1 >= MAX_RUNS ||
                      (n + 1 >= MIN_RUNS && from - begin >= b->options.seconds);
        ends = bench_step(b, enough);
        b->times[n] = tdm_clock_s() - from;
        b->updates[n] = b->times[n] - (bench_lane_seconds(b) - lanes);
        n++;
    } while (!ends);
    b->out->step_s = times_median(b->times, n);
    b->out->min_step_s = b->times[0];
    b->out->update_s = times_median(b->updates, n);
    b->out->step_count = n;
}

static tdm_status bench_prepare(bench *b, tdm_error *err)
{
    const tdm_job *job = b->job;
    tdm_bench *out = b->out;
    if (tdm_job_trains_apart(job) || tdm_job_is_async(job))
        return tdm_fail(
            err, TDM_ERR_UNSUPPORTED,
            "bench: replicas of this job train by themselves (sync.kind), so there is no "
            "common step to measure; add --set sync.kind=all_reduce");
    if (tdm_job_takes_sparse(job))
        return tdm_fail(err, TDM_ERR_UNSUPPORTED,
                        "bench: models with a sparse table are not measured by this command; "
                        "metrics.jsonl of a run has the samples per second");
    TDM_TRY(tdm__same_settings(b->options.comm, job, false, err));
    TDM_TRY(tdm_job_data_load(job, &b->data, err));
    const tdm_dataset_info *info = tdm_dataset_info_of(b->data.train);
    b->model = (tdm_model_options){.job = job, .class_count = info->class_count};
    TDM_TRY(tdm_job_sample_shape(job, b->data.train, &b->model.sample_shape, err));
    TDM_TRY(tdm__share_cpus(b->options.comm, job, true, &b->model.threads, err));
    out->thread_count = tdm_model_threads(&b->model);
    TDM_TRY(tdm__memory_check(job, &b->data, b->options.comm, out->thread_count, false, err));

    b->sampler = (tdm_sampler){.seed = (uint64_t)job->seed,
                               .sample_count = (uint64_t)info->sample_count,
                               .shuffle = job->data.shuffle};
    out->batch = job->train.batch < info->sample_count ? job->train.batch : info->sample_count;
    out->lane_count = tdm_lanes_of(job);
    out->lane_rows = tdm_lane_slice(out->batch, out->lane_count, 0).count;
    out->rank_count = b->options.comm ? tdm_comm_size(b->options.comm) : 1;
    TDM_TRY(tdm__state_init(&b->model, TDM__STATE_FOR_TRAINING, b->options.comm, &b->state, err));

    b->indices = calloc((size_t)out->lane_rows, sizeof(*b->indices));
    if (!b->indices) return tdm_fail_oom(err, "to measure");

    tdm_team_options o = {.model = b->model,
                          .store = b->state.store,
                          .optimiser = b->state.optimiser,
                          .comm = b->options.comm,
                          .lane_count = out->lane_count,
                          .batches = {out->batch},
                          .seed = (uint64_t)job->seed,
                          .fill = bench_fill,
                          .user = b};
    TDM_TRY(tdm_team_create(&o, &b->team, err));
    return tdm__state_begin(&b->state, job, b->data.train, err);
}

/* Minimum traffic of the optimiser: gradient in, parameters and states in and out. */
static uint64_t bench_update_bytes(const bench *b)
{
    uint64_t streams = 3 + (b->state.has_ema ? 2 : 0);
    for (int k = 0; k < TDM_OPTIM_MAX_STATES; k++)
        streams += tdm_params_block(b->state.store, TDM_BLOCK_STATE + k) ? 2 : 0;
    return streams * sizeof(float) * tdm_graph_trained_elements(b->state.graph);
}

/* A step with non-finite values changes nothing and omits the update, so its time is not that of a step. */
static tdm_status bench_check_steps(const bench *b, tdm_error *err)
{
    if (b->failed != TDM_OK && err) *err = b->error;
    if (b->first_bad == 0 || b->failed != TDM_OK) return b->failed;
    return tdm_fail(err, TDM_ERR_DIVERGED,
                    "bench: the loss or the gradient of step %llu is not finite, so no more steps "
                    "could be measured; set a lower optim.lr than %g (it is used from the first "
                    "step on, without a schedule)",
                    (unsigned long long)b->first_bad, b->job->optim.lr);
}

static tdm_status bench_measure_steps(bench *b, tdm_error *err)
{
    tdm_bench *out = b->out;
    double first = tdm_clock_s();
    out->start_s = first - b->begin_s;
    bench_step(b, false);
    out->first_step_s = tdm_clock_s() - first;
    bench_step(b, false);
    TDM_TRY(bench_check_steps(b, err));
    bench_time_steps(b);
    TDM_TRY(bench_check_steps(b, err));
    out->peak_resident_bytes = tdm_os_peak_resident_bytes();
    out->update_bytes = bench_update_bytes(b);
    out->parameter_count = tdm_graph_trained_elements(b->state.graph);
    return TDM_OK;
}

/* ---- the ops of a lane ----------------------------------------------------------------------- */

static tdm_status bench_prepare_lane(bench *b, tdm_error *err)
{
    tdm_model_options m = tdm_model_of_lane(&b->model, b->out->lane_rows, b->out->batch);
    TDM_TRY(tdm_model_build(&m, &b->lane, err));
    tdm_plan_options options = tdm_model_plan_options(&b->model);
    TDM_TRY(tdm_plan_create(b->lane, &options, &b->plan, err));
    TDM_TRY(tdm_pages_map(tdm_plan_arena_bytes(b->plan), false, &b->arena, err));
    TDM_TRY(tdm_pages_map(tdm_graph_grad_extent(b->lane) * sizeof(float), false, &b->grads, err));
    tdm_plan_bind(b->plan, TDM_SPACE_ARENA, b->arena.data);
    tdm_plan_bind(b->plan, TDM_SPACE_PARAMS, b->state.params);
    tdm_plan_bind(b->plan, TDM_SPACE_GRADS, b->grads.data);
    return TDM_OK;
}

/* The times of the ops, in the order of the plan. */
typedef struct op_times {
    double *times; /* of all runs: op_count per run */
    size_t next;
} op_times;

static bool op_times_add(void *user, const tdm_plan_event *event)
{
    op_times *n = user;
    n->times[n->next++] = (double)(event->end_ns - event->begin_ns) * 1e-9;
    return true;
}

static tdm_step_key bench_key(const bench *b)
{
    return (tdm_step_key){.seed = (uint64_t)b->job->seed};
}

static void bench_fill_lane(bench *b)
{
    bench_fill(b, 0, b->out->lane_rows, tdm_plan_input(b->plan, TDM_MODEL_INPUT).data,
               tdm_plan_input(b->plan, TDM_MODEL_CLASSES).data);
}

static tdm_status bench_list_ops(bench *b, tdm_error *err)
{
    tdm_bench *out = b->out;
    size_t nodes = tdm_plan_node_count(b->plan);
    out->ops = calloc(nodes + 1, sizeof(*out->ops));
    if (!out->ops) return tdm_fail_oom(err, "to measure");
    for (size_t i = 0; i < nodes; i++) {
        tdm_plan_node_info place = tdm_plan_node_at(b->plan, i);
        tdm_node_info node = tdm_graph_node_at(b->lane, place.node);
        if (strcmp(place.backend, "view") == 0 || strcmp(place.backend, "fused") == 0)
            continue; /* does not run as an op */
        out->ops[out->op_count++] = (tdm_bench_op){.op = node.op,
                                                   .name = node.name,
                                                   .kernel = place.backend,
                                                   .backward = node.backward,
                                                   .flops = node.flops,
                                                   .bytes = node.bytes};
        out->flops += node.flops * (uint64_t)out->lane_count;
    }
    return TDM_OK;
}

static tdm_status bench_measure_ops(bench *b, tdm_error *err)
{
    tdm_bench *out = b->out;
    TDM_TRY(bench_list_ops(b, err));
    size_t count = out->op_count;
    size_t max_runs = MAX_TIMES / (count + 1);
    if (max_runs > MAX_RUNS) max_runs = MAX_RUNS;
    if (max_runs < MIN_RUNS) max_runs = MIN_RUNS;
    op_times n = {.times = calloc(count * max_runs + 1, sizeof(double))};
    if (!n.times) return tdm_fail_oom(err, "to measure");
    tdm_step_key key = bench_key(b);
    double begin = tdm_clock_s();
    int runs = 0;
    do {
        bench_fill_lane(b);
        tdm_plan_run_watched(b->plan, &key, op_times_add, &n);
        runs++;
    } while ((size_t)runs < max_runs &&
             (runs < MIN_RUNS || tdm_clock_s() - begin < b->options.seconds));
    for (size_t i = 0; i < count; i++) {
        for (int r = 0; r < runs; r++) b->times[r] = n.times[(size_t)r * count + i];
        out->ops[i].seconds = times_median(b->times, runs);
        out->lane_s += out->ops[i].seconds;
    }
    free(n.times);
    return TDM_OK;
}

/* ---- matrix products alone ------------------------------------------------------------------- */

static const char *const product_ops[] = {"matmul", "conv", "conv_grad_x", "conv_grad_w"};
enum { PRODUCT_OP_COUNT = sizeof(product_ops) / sizeof(product_ops[0]) };

static void products_run(void *context)
{
    bench *b = context;
    tdm_step_key key = bench_key(b);
    for (int i = 0; i < PRODUCT_OP_COUNT; i++) tdm_plan_run_only(b->plan, &key, product_ops[i]);
}

/* A graph of products only, with its own inputs. */
typedef struct product_bench {
    tdm_graph *graph;
    tdm_plan *plan;
    tdm_pages arena;
} product_bench;

/* Runs the product only: rounding of its inputs to bf16 is a separate op. */
static void product_run(void *context)
{
    product_bench *p = context;
    tdm_plan_run_only(p->plan, &(tdm_step_key){0}, "matmul");
}

/* Measures a product of one shape and type. */
static tdm_status product_time(bench *b, const tdm_product *kind, tdm_dtype dtype, double *out,
                               tdm_error *err)
{
    product_bench p = {.graph = tdm_graph_create()};
    if (!p.graph) return tdm_fail_oom(err, "to measure");
    tdm_graph_precision(p.graph, dtype);
    tdm_value x = tdm_graph_input(p.graph, "x", TDM_DTYPE_F32,
                                  tdm_shape_3(kind->batch, kind->M, kind->K));
    tdm_value y = tdm_graph_input(p.graph, "y", TDM_DTYPE_F32,
                                  tdm_shape_3(kind->batch, kind->K, kind->N));
    tdm_graph_output(p.graph, "product", tdm_graph_matmul(p.graph, x, y, NULL));
    tdm_plan_options options = tdm_model_plan_options(&b->model);
    options.backend = NULL;
    tdm_status status = tdm_plan_create(p.graph, &options, &p.plan, err);
    if (status == TDM_OK)
        status = tdm_pages_map(tdm_plan_arena_bytes(p.plan), false, &p.arena, err);
    if (status == TDM_OK) {
        memset(p.arena.data, 0, p.arena.bytes);
        tdm_plan_bind(p.plan, TDM_SPACE_ARENA, p.arena.data);
        tdm_plan_run(p.plan, &(tdm_step_key){0});
        double seconds = b->options.seconds;
        b->options.seconds = seconds / 8;
        *out = bench_time(b, product_run, &p, NULL, NULL);
        b->options.seconds = seconds;
    }
    tdm_plan_destroy(p.plan);
    tdm_graph_destroy(p.graph);
    tdm_pages_unmap(&p.arena);
    return status;
}

/* Attention of one shape is timed once, however many blocks have it. */
typedef struct known_times {
    tdm_product kinds[64];
    double seconds[64];
    size_t count;
} known_times;

static bool product_is_same(const tdm_product *a, const tdm_product *b)
{
    return a->batch == b->batch && a->M == b->M && a->N == b->N && a->K == b->K;
}

static tdm_status product_time_cached(bench *b, known_times *known, const tdm_product *kind,
                                      double *out, tdm_error *err)
{
    size_t max = sizeof(known->seconds) / sizeof(known->seconds[0]);
    for (size_t k = 0; k < known->count; k++) {
        if (!product_is_same(&known->kinds[k], kind)) continue;
        *out = known->seconds[k];
        return TDM_OK;
    }
    TDM_TRY(product_time(b, kind, TDM_DTYPE_F32, out, err)); /* the type in the attention kernel */
    if (known->count == max) return TDM_OK;
    known->kinds[known->count] = *kind;
    known->seconds[known->count++] = *out;
    return TDM_OK;
}

static tdm_status bench_time_attention(bench *b, double *out, tdm_error *err)
{
    known_times known = {.count = 0};
    for (size_t n = 0; n < tdm_graph_node_count(b->lane); n++) {
        tdm_product kinds[TDM_MAX_PRODUCTS];
        size_t count = tdm_graph_products_at(b->lane, n, kinds);
        for (size_t i = 0; i < count; i++) {
            double seconds = 0;
            TDM_TRY(product_time_cached(b, &known, &kinds[i], &seconds, err));
            *out += seconds * kinds[i].share;
        }
    }
    return TDM_OK;
}

static tdm_status bench_measure_products(bench *b, tdm_error *err)
{
    tdm_bench *out = b->out;
    bench_fill_lane(b);
    double lane_s = bench_time(b, products_run, b, NULL, NULL);
    TDM_TRY(bench_time_attention(b, &lane_s, err));
    double lanes = (double)tdm_lane_slice(out->lane_count, out->rank_count, 0).count;
    out->products_s = lane_s * lanes;
    return TDM_OK;
}

/* ---- the machine ----------------------------------------------------------------------------- */

typedef struct memory_pass {
    float *a, *b;
    size_t piece; /* elements */
    int64_t pieces;
} memory_pass;

static void memory_pass_add(const void *args, int64_t begin, int64_t end)
{
    const memory_pass *m = args;
    size_t first = (size_t)begin * m->piece, count = (size_t)(end - begin) * m->piece;
    tdm_kernel_add_into(m->a + first, m->b + first, count);
}

static void memory_pass_run(void *context)
{
    memory_pass *m = context;
    tdm_kernel_spread(m->pieces, (int64_t)m->piece, memory_pass_add, m);
}

static tdm_status bench_measure_peak(bench *b, tdm_dtype dtype, double *flops, tdm_error *err)
{
    tdm_product cube = {1, PEAK_SIZE, PEAK_SIZE, PEAK_SIZE, 1};
    double seconds = 0;
    TDM_TRY(product_time(b, &cube, dtype, &seconds, err));
    *flops = 2.0 * PEAK_SIZE * PEAK_SIZE * PEAK_SIZE / seconds;
    return TDM_OK;
}

/* Peak FLOP/s for an op: bf16 for ops that the job computes in bf16. */
static double op_peak(const tdm_bench *out, const tdm_bench_op *op)
{
    for (int i = 0; i < PRODUCT_OP_COUNT && out->peak_bf16_flops > 0; i++)
        if (strcmp(op->op, product_ops[i]) == 0) return out->peak_bf16_flops;
    return out->peak_flops;
}

/* Measures a pass over memory; the ranks of a host run it at the same time and divide its length. */
static tdm_status bench_measure_memory(bench *b, double *bytes_per_s, tdm_error *err)
{
    tdm_comm_info info = {.local_size = 1};
    if (b->options.comm) tdm_comm_info_get(b->options.comm, &info);
    memory_pass m = {.piece = 16384};
    m.pieces = (int64_t)(MEMORY_BYTES / sizeof(float) / m.piece) / info.local_size;
    if (m.pieces < 1) m.pieces = 1;
    size_t elements = (size_t)m.pieces * m.piece;
    tdm_pages pages;
    TDM_TRY(tdm_pages_map(2 * elements * sizeof(float), false, &pages, err));
    memset(pages.data, 0, pages.bytes);
    m.a = pages.data;
    m.b = m.a + elements;
    tdm_kernel_mode before = tdm_kernel_enter(b->out->thread_count);
    double min = 0;
    bench_time(b, memory_pass_run, &m, &min, NULL);
    tdm_kernel_leave(&before);
    *bytes_per_s = 3.0 * (double)(elements * sizeof(float)) / min;
    tdm_pages_unmap(&pages);
    return TDM_OK;
}

/* Adds up the ranks: each has measured its share of the machine at the same time. */
static tdm_status bench_add_ranks(bench *b, tdm_error *err)
{
    tdm_bench *out = b->out;
    tdm_group *world = tdm_comm_world(b->options.comm);
    double rates[] = {out->peak_flops, out->peak_bf16_flops, out->peak_bytes};
    TDM_TRY(tdm_group_all_reduce(world, NULL, rates, 3, TDM_DTYPE_F64, TDM_REDUCE_SUM, err));
    out->peak_flops = rates[0];
    out->peak_bf16_flops = rates[1];
    out->peak_bytes = rates[2];
    int64_t max = (int64_t)out->peak_resident_bytes;
    TDM_TRY(tdm_group_all_reduce(world, NULL, &max, 1, TDM_DTYPE_I64, TDM_REDUCE_MAX, err));
    out->peak_resident_bytes = (uint64_t)max;
    return TDM_OK;
}

static tdm_status bench_measure_machine(bench *b, tdm_error *err)
{
    tdm_bench *out = b->out;
    if (b->options.comm) TDM_TRY(tdm_group_barrier(tdm_comm_world(b->options.comm), err));
    TDM_TRY(bench_measure_peak(b, TDM_DTYPE_F32, &out->peak_flops, err));
    if (b->job->compute.precision == TDM_JOB_PRECISION_BF16)
        TDM_TRY(bench_measure_peak(b, TDM_DTYPE_BF16, &out->peak_bf16_flops, err));
    TDM_TRY(bench_measure_memory(b, &out->peak_bytes, err));
    for (size_t i = 0; i < out->op_count; i++) {
        tdm_bench_op *op = &out->ops[i];
        double compute = (double)op->flops / op_peak(out, op);
        double memory = (double)op->bytes / out->peak_bytes;
        op->bound_s = compute > memory ? compute : memory;
    }
    return b->options.comm ? bench_add_ranks(b, err) : TDM_OK;
}

/* ---- the complete measurement ------------------------------------------------------------------ */

static tdm_status bench_measure(bench *b, tdm_error *err)
{
    TDM_TRY(bench_prepare(b, err));
    TDM_TRY(bench_measure_steps(b, err));
    TDM_TRY(bench_prepare_lane(b, err));
    TDM_TRY(bench_measure_ops(b, err));
    TDM_TRY(bench_measure_products(b, err));
    return bench_measure_machine(b, err);
}

tdm_status tdm_bench_step(const tdm_job *job, const tdm_bench_options *options, tdm_bench *out,
                          tdm_error *err)
{
    *out = (tdm_bench){0};
    bench b = {.job = job, .out = out, .begin_s = tdm_clock_s()};
    if (options) b.options = *options;
    if (b.options.seconds <= 0) b.options.seconds = 2;
    tdm_status status = bench_measure(&b, err);
    tdm_plan_destroy(b.plan);
    /* The graph owns the names of the ops, so the result keeps it. */
    out->graph = b.lane;
    tdm_pages_unmap(&b.arena);
    tdm_pages_unmap(&b.grads);
    tdm_team_destroy(b.team);
    tdm__state_release(&b.state);
    tdm_job_data_release(&b.data);
    free(b.indices);
    if (status != TDM_OK) tdm_bench_release(out);
    return status;
}

void tdm_bench_release(tdm_bench *result)
{
    free(result->ops);
    tdm_graph_destroy(result->graph);
    *result = (tdm_bench){0};
}
