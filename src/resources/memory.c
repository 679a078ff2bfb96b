/*
 * memory.c: estimates the memory of a job, checks that it is available, and suggests changes that make it fit.
 *
 * An estimate builds the graph of the largest lane and plans it as the team will, so activations are
 * counted exactly, with the scratch memory of their kernels. The parallel module predicts the memory of
 * parameters, gradients and state. The rest is arithmetic. Nothing large is mapped here.
 *
 * A job that does not fit is refused with a list of changes. Each was estimated like the job itself and
 * does fit. Changes that do not affect the result come first. If no single change is enough, one
 * combination is suggested, without unnecessary parts.
 */
#include "job/job.h"
#include "nn/nn.h"
#include "optim/optim.h"
#include "os/os.h"
#include "parallel/parallel.h"
#include "resources/resources.h"
#include "sparse/sparse.h"

#include <stdio.h>
#include <string.h>

/* Percentage of the available memory; the rest is for the program and for other growth. */
enum { USABLE_PERCENT = 95 };

/* ---- saturating arithmetic ------------------------------------------------------------------- */

static uint64_t plus(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

/* ---- the estimate ---------------------------------------------------------------------------- */

int tdm__workers_of(const tdm_job *job, int worker_count)
{
    if (worker_count > 0) return worker_count;
    tdm_cpu_info cpu;
    tdm_os_cpu_info(&cpu);
    int64_t threads = job->compute.threads > 0 ? job->compute.threads : 1;
    int64_t workers = cpu.usable_count / threads, limit = tdm_rank_limit_of(job).count;
    if (workers > limit) workers = limit;
    return workers > 1 ? (int)workers : 1;
}

int tdm__threads_guess(const tdm_job *job, int host_workers)
{
    tdm_cpu_info info;
    if (job->compute.threads > 0) return (int)job->compute.threads;
    tdm_os_cpu_info(&info);
    int threads = info.usable_count / (host_workers > 0 ? host_workers : 1);
    return threads > 1 ? threads : 1;
}

static void count_flops(const tdm_graph *graph, const tdm_plan *plan, tdm_memory_estimate *e)
{
    for (size_t i = 0; i < tdm_plan_node_count(plan); i++) {
        tdm_node_info node = tdm_graph_node_at(graph, tdm_plan_node_at(plan, i).node);
        *(node.backward ? &e->backward_flops : &e->forward_flops) += node.flops;
        if (node.recomputed) e->recomputed_flops += node.flops;
    }
}

/* Numbers the optimiser keeps per parameter, without the average of the weights. */
static int count_states(const tdm_job *job)
{
    const tdm_optim_ops *optim = tdm_optim_find(job->optim.kind);
    tdm_optim_settings settings = tdm_optim_settings_of(job);
    int count = 0;
    for (int k = 0; k < optim->state_count; k++) count += tdm_optim_uses_state(optim, &settings, k);
    return count;
}

/*
 * Parameters, gradients and state of a rank in 32-bit numbers, by the formulas that "ZeRO: Memory Optimizations
 * Toward Training Trillion Parameter Models" (Rajbhandari et al., 2020) gives for 16-bit ones. Stage 0:
 * everything on every rank; 1: the state divided by the number of ranks; 2: gradients as well; 3: parameters as well.
 */
static uint64_t zero_formula_bytes(const tdm_memory_estimate *e, uint64_t parameters, int zero)
{
    uint64_t block = times(parameters, sizeof(float)), ranks = (uint64_t)e->worker_count;
    uint64_t state = times((uint64_t)e->optimiser_numbers, block);
    uint64_t shared = plus(zero >= 1 ? state : 0, zero >= 2 ? block : 0);
    shared = plus(shared, zero >= 3 ? block : 0);
    uint64_t own = plus(zero < 1 ? state : 0, plus(zero < 2 ? block : 0, zero < 3 ? block : 0));
    return plus(own, shared / ranks);
}

/* Sets the bytes of a host for the stage of the job. */
static void estimate_take_stage(const tdm_ranks_memory *m, const tdm_graph *graph,
                                tdm_memory_estimate *e)
{
    size_t trained = tdm_graph_trained_extent(graph), all = tdm_graph_param_extent(graph);
    e->buffer_bytes = (all - trained) * sizeof(float);
    if (e->buffer_bytes > m->parameter_bytes) e->buffer_bytes = m->parameter_bytes;
    e->parameter_bytes = m->parameter_bytes - e->buffer_bytes;
    e->gradient_bytes = m->gradient_bytes;
    e->gradient_buffers = m->gradient_buffers;
    e->optimiser_bytes = m->state_bytes;
    e->file_bytes = m->file_bytes;
    e->activation_bytes = times((uint64_t)m->node_ranks * (uint64_t)m->lanes_side_by_side,
                                e->arena_bytes);
}

/* Between hosts, gradients in flight also use buffers of the transport. */
static uint64_t in_flight_bytes(const tdm_graph *graph)
{
    uint64_t bytes = tdm_graph_grad_extent(graph) * sizeof(float);
    return bytes < TDM_CALLS_ACTIVE_BYTES ? bytes : TDM_CALLS_ACTIVE_BYTES;
}

/* Predicts the memory of parameter store and team for each stage. */
static tdm_status estimate_stages(const tdm_job *job, const tdm_graph *graph, const tdm_plan *plan,
                                  tdm_memory_estimate *e, tdm_error *err)
{
    tdm_ranks_memory_options options = {.graph = graph,
                                        .plan = plan,
                                        .job = job,
                                        .state_count = count_states(job),
                                        .rank_count = e->worker_count,
                                        .node_count = e->host_count,
                                        .lane_count = tdm_tree_lanes_of(job)};
    e->optimiser_numbers = options.state_count + (job->optim.ema > 0);
    for (int zero = 0; zero < TDM_ZERO_STAGES; zero++) {
        tdm_ranks_memory m;
        tdm_memory_stage *stage = &e->stages[zero];
        options.zero = zero;
        TDM_TRY(tdm_ranks_memory_of(&options, &m, err));
        uint64_t ranks = (uint64_t)m.node_ranks;
        e->host_workers = m.node_ranks;
        stage->parameter_bytes = m.parameter_bytes / ranks;
        if (e->host_count > 1) m.gradient_bytes += ranks * in_flight_bytes(graph);
        stage->gradient_bytes = m.gradient_bytes / ranks;
        stage->optimiser_bytes = (m.state_bytes - m.file_bytes) / ranks;
        stage->activation_bytes = times((uint64_t)m.lanes_side_by_side, e->arena_bytes);
        stage->formula_bytes = zero_formula_bytes(e, tdm_graph_trained_elements(graph), zero);
        if (zero == job->parallel.zero) estimate_take_stage(&m, graph, e);
    }
    return TDM_OK;
}

static tdm_status estimate_training(const tdm_model_options *model, tdm_memory_estimate *e,
                                    tdm_error *err)
{
    tdm_model_options m = tdm_model_of_lane(model, e->lane_rows, e->batch);
    tdm_graph *graph;
    TDM_TRY(tdm_model_build(&m, &graph, err));
    tdm_plan *plan;
    tdm_plan_options options = tdm_model_plan_options(&m);
    tdm_status status = tdm_plan_create(graph, &options, &plan, err);
    if (status == TDM_OK) {
        e->arena_bytes = tdm_plan_arena_bytes(plan);
        e->unshared_bytes = tdm_plan_unshared_bytes(plan);
        count_flops(graph, plan, e);
        status = estimate_stages(m.job, graph, plan, e, err);
        tdm_plan_destroy(plan);
    }
    tdm_graph_destroy(graph);
    return status;
}

static tdm_status estimate_evaluation(const tdm_model_options *model, int64_t test_count,
                                      tdm_memory_estimate *e, tdm_error *err)
{
    tdm_model_options m = *model;
    m.batch = tdm_model_eval_rows(&m);
    if (m.batch > test_count) m.batch = test_count;
    tdm_graph *graph;
    TDM_TRY(tdm_model_build(&m, &graph, err));
    tdm_plan *plan;
    tdm_plan_options options = tdm_model_plan_options(&m);
    options.forward_only = true;
    tdm_status status = tdm_plan_create(graph, &options, &plan, err);
    if (status == TDM_OK) {
        e->evaluation_bytes = tdm_plan_arena_bytes(plan);
        tdm_plan_destroy(plan);
    }
    tdm_graph_destroy(graph);
    return status;
}

static uint64_t dataset_bytes(const tdm_dataset *set)
{
    if (!set) return 0;
    const tdm_dataset_info *info = tdm_dataset_info_of(set);
    if (info->kind == TDM_DATA_KIND_TOKENS)
        return (uint64_t)info->token_count * tdm_dtype_bytes(info->storage);
    if (info->kind == TDM_DATA_KIND_SPARSE)
        return plus(times((uint64_t)info->entry_count, sizeof(uint64_t) + sizeof(float)),
                    times((uint64_t)info->sample_count, sizeof(int64_t) + sizeof(int32_t)));
    uint64_t row = (uint64_t)info->feature_count * tdm_dtype_bytes(info->storage) +
                   (info->class_count > 0 ? sizeof(int32_t) : 0);
    return (uint64_t)info->sample_count * row;
}

/* Each rank has an equal share of the rows. */
static void estimate_table(const tdm_job *job, const tdm_dataset *train, tdm_memory_estimate *e)
{
    if (!tdm_job_takes_sparse(job)) return;
    tdm_sparse_memory m = tdm_sparse_predict(job, train, e->worker_count);
    uint64_t ranks = (uint64_t)e->host_workers;
    e->table_rows = m.row_count;
    e->table_bytes = times(ranks, m.table_bytes);
    e->table_work_bytes = times(ranks, m.work_bytes);
}

/* Every rank evaluates its share of the test set and has a copy of the data. */
static void estimate_add_up(tdm_memory_estimate *e)
{
    uint64_t each = plus(e->evaluation_bytes, e->data_bytes);
    const uint64_t parts[] = {e->parameter_bytes,  e->buffer_bytes,
                              e->gradient_bytes,   e->optimiser_bytes - e->file_bytes,
                              e->activation_bytes, times((uint64_t)e->host_workers, each),
                              e->table_bytes,      e->table_work_bytes};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        e->total_bytes = plus(e->total_bytes, parts[i]);
    for (int zero = 0; zero < TDM_ZERO_STAGES; zero++) {
        tdm_memory_stage *s = &e->stages[zero];
        uint64_t table = plus(e->table_bytes, e->table_work_bytes) / (uint64_t)e->host_workers;
        s->total_bytes = plus(plus(s->parameter_bytes, s->gradient_bytes),
                              plus(s->optimiser_bytes, plus(s->activation_bytes, each)));
        s->total_bytes = plus(s->total_bytes, table);
    }
}

tdm_status tdm_memory_estimate_of(const tdm_job *job, const tdm_job_data *data,
                                  const tdm_memory_world *world, tdm_memory_estimate *out,
                                  tdm_error *err)
{
    const tdm_dataset_info *info = tdm_dataset_info_of(data->train);
    tdm_model_options model = {.job = job, .class_count = info->class_count};
    TDM_TRY(tdm_job_sample_shape(job, data->train, &model.sample_shape, err));
    tdm_memory_estimate e = {.worker_count = tdm__workers_of(job, world ? world->rank_count : 0),
                             .host_count = world && world->host_count > 0 ? world->host_count : 1,
                             .lane_count = tdm_lanes_of(job)};
    e.batch = job->train.batch < info->sample_count ? job->train.batch : info->sample_count;
    e.lane_rows = tdm_lane_slice(e.batch, e.lane_count, 0).count;
    e.thread_count = world && world->thread_count > 0
                         ? world->thread_count
                         : tdm__threads_guess(job,
                                              (e.worker_count + e.host_count - 1) / e.host_count);
    model.threads = e.thread_count;
    TDM_TRY(estimate_training(&model, &e, err));
    if (data->test)
        TDM_TRY(
            estimate_evaluation(&model, tdm_dataset_info_of(data->test)->sample_count, &e, err));
    e.data_bytes = data->whole ? dataset_bytes(data->whole)
                               : plus(dataset_bytes(data->train), dataset_bytes(data->test));
    estimate_table(job, data->train, &e);
    estimate_add_up(&e);
    *out = e;
    return TDM_OK;
}

tdm_status tdm_memory_plan(const tdm_job *job, const tdm_job_data *data,
                           const tdm_memory_estimate *estimate, tdm_graph **out_graph,
                           tdm_plan **out_plan, tdm_error *err)
{
    const tdm_dataset_info *info = tdm_dataset_info_of(data->train);
    tdm_model_options model = {.job = job, .class_count = info->class_count};
    TDM_TRY(tdm_job_sample_shape(job, data->train, &model.sample_shape, err));
    tdm_model_options lane = tdm_model_of_lane(&model, estimate->lane_rows, estimate->batch);
    lane.threads = estimate->thread_count;

    tdm_graph *graph;
    TDM_TRY(tdm_model_build(&lane, &graph, err));
    tdm_plan_options options = tdm_model_plan_options(&lane);
    tdm_status status = tdm_plan_create(graph, &options, out_plan, err);
    if (status == TDM_OK)
        *out_graph = graph;
    else
        tdm_graph_destroy(graph);
    return status;
}

uint64_t tdm_memory_budget(const tdm_job *job)
{
    if (job->memory.limit > 0) return (uint64_t)job->memory.limit;
    tdm_memory_info info;
    tdm_os_memory_info(&info);
    /* Memory this process holds already, mainly the data, is part of the estimate. */
    uint64_t there = info.available_bytes ? plus(info.available_bytes, tdm_os_resident_bytes())
                                          : UINT64_MAX;
    if (info.limit_bytes > 0 && info.limit_bytes < there) there = info.limit_bytes;
    return there == UINT64_MAX ? there : there / 100 * USABLE_PERCENT;
}

/* ---- suggestions ----------------------------------------------------------------------------- */

/* A job that does not fit, and the list of changes with which it fits. */
typedef struct search {
    const tdm_job *job;
    const tdm_job_data *data;
    int worker_count;
    int host_count;
    int cpu_count; /* of a host, at most; for fewer workers with more threads */
    uint64_t budget;
    uint64_t needed; /* by the unchanged job */
    tdm_str list;
    int found;
    uint64_t min; /* the smallest need of all attempts */
} search;

/* One or several changes to the job. */
typedef struct change {
    tdm_job job;
    int worker_count;
    bool changes_result;
    uint64_t bytes; /* what it needs; UINT64_MAX if it cannot be planned */
} change;

static change change_none(const search *s)
{
    return (change){.job = *s->job, .worker_count = s->worker_count, .bytes = s->needed};
}

static void search_add_line(search *s, const change *c)
{
    static const char *const ways[] = {"none", "blocks", "full"};
    const tdm_job *a = s->job, *b = &c->job;
    const char *comma = "";
    char text[32];
    tdm_str_add(&s->list, "\n  ");
    if (a->memory.recompute != b->memory.recompute) {
        tdm_str_addf(&s->list, "memory.recompute: %s", ways[b->memory.recompute]);
        comma = ", ";
    }
    const struct {
        const char *key;
        int64_t before, after;
    } numbers[] = {
        {"-n ", s->worker_count, c->worker_count},
        {"eval.batch: ", a->eval.batch, b->eval.batch},
        {"train.batch: ", a->train.batch, b->train.batch},
        {"parallel.lanes: ", a->parallel.lanes, b->parallel.lanes},
    };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (numbers[i].before == numbers[i].after) continue;
        tdm_str_addf(&s->list, "%s%s%lld", comma, numbers[i].key, (long long)numbers[i].after);
        comma = ", ";
    }
    if (a->optim.kind != b->optim.kind) tdm_str_addf(&s->list, "%soptim.kind: lion", comma);
    tdm_str_addf(&s->list, " (needs %s%s)", tdm_text_bytes(c->bytes, text),
                 c->changes_result ? ", but changes the result" : "");
    s->found++;
}

static int host_workers(const tdm_memory_world *world)
{
    return (world->rank_count + world->host_count - 1) / world->host_count;
}

/* Estimates a change. A change that cannot be planned does not fit. */
static bool change_fits(search *s, change *c)
{
    tdm_memory_estimate e;
    tdm_error ignored;
    c->bytes = UINT64_MAX;
    tdm_memory_world world = {.rank_count = c->worker_count, .host_count = s->host_count};
    if (world.host_count > world.rank_count) world.host_count = world.rank_count;
    world.thread_count = s->job->compute.threads > 0 ? (int)s->job->compute.threads
                                                     : s->cpu_count / host_workers(&world);
    if (world.thread_count < 1) world.thread_count = 1;
    if (tdm_memory_estimate_of(&c->job, s->data, &world, &e, &ignored) != TDM_OK) return false;
    c->bytes = e.total_bytes;
    if (c->bytes < s->min) s->min = c->bytes;
    return c->bytes <= s->budget;
}

/* Increases a change by one step; false at its limit. */
typedef bool (*change_step_fn)(const search *s, change *c);

static bool change_recompute_more(const search *s, change *c)
{
    (void)s;
    if (c->job.memory.recompute == TDM_JOB_RECOMPUTE_FULL) return false;
    c->job.memory.recompute++;
    return true;
}

static bool change_fewer_workers(const search *s, change *c)
{
    (void)s;
    if (c->worker_count <= 1) return false;
    c->worker_count /= 2;
    return true;
}

/* Only if it does not affect the result. */
static bool change_smaller_eval(const search *s, change *c)
{
    if (!s->data->test || s->job->schedule.kind == TDM_JOB_SCHEDULE_REDUCE_ON_PLATEAU) return false;
    if (c->job.eval.batch <= 1) return false;
    c->job.eval.batch /= 2;
    return true;
}

/* Keeps at least one row per lane that the job sets. */
static bool change_smaller_batch(const search *s, change *c)
{
    (void)s;
    if (c->job.train.batch <= 1 || c->job.train.batch / 2 < c->job.parallel.lanes) return false;
    c->changes_result = true;
    c->job.train.batch /= 2;
    int64_t lanes = tdm_lanes_of(&c->job);
    if (c->worker_count > lanes) c->worker_count = (int)lanes;
    return true;
}

static bool change_more_lanes(const search *s, change *c)
{
    (void)s;
    int64_t lanes = 2 * tdm_lanes_of(&c->job);
    if (lanes > c->job.train.batch || lanes > TDM_MAX_LANES) return false;
    c->changes_result = true;
    c->job.parallel.lanes = lanes;
    return true;
}

/* Lion keeps one number per parameter. Jobs with settings that it rejects are not changed. */
static bool change_lean_optimiser(const search *s, change *c)
{
    (void)s;
    if (c->job.optim.kind == TDM_JOB_OPTIM_LION || c->job.optim.nesterov || c->job.optim.centred)
        return false;
    c->changes_result = true;
    c->job.optim.kind = TDM_JOB_OPTIM_LION;
    return true;
}

/* Keeps the fewest gradients. */
static bool change_one_lane(const search *s, change *c)
{
    (void)s;
    if (tdm_lanes_of(&c->job) == 1) return false;
    c->changes_result = true;
    c->job.parallel.lanes = 1;
    c->worker_count = 1;
    return true;
}

/* Increases a change until it fits (returns true) or reaches its limit; keeps the best one. */
static bool change_apply(search *s, change *c, change_step_fn step)
{
    change best = *c, next = *c;
    while (step(s, &next)) {
        if (change_fits(s, &next)) {
            *c = next;
            return true;
        }
        if (next.bytes < best.bytes) best = next;
    }
    *c = best;
    return false;
}

static void search_try_single(search *s, change_step_fn step)
{
    change c = change_none(s);
    if (change_apply(s, &c, step)) search_add_line(s, &c);
}

/* Reverts parts that a later part made unnecessary, the most expensive in time first. */
static void change_revert_unneeded(search *s, change *c)
{
    int64_t lanes = tdm_lanes_of(&c->job);
    int max = s->worker_count < lanes ? s->worker_count : (int)lanes;
    for (int workers = max; workers > c->worker_count; workers /= 2) {
        change t = *c;
        t.worker_count = workers;
        if (change_fits(s, &t)) *c = t;
    }
    for (int way = s->job->memory.recompute; way < c->job.memory.recompute; way++) {
        change t = *c;
        t.job.memory.recompute = way;
        if (change_fits(s, &t)) *c = t;
    }
    for (int64_t rows = s->job->eval.batch; rows > c->job.eval.batch; rows /= 2) {
        change t = *c;
        t.job.eval.batch = rows;
        if (change_fits(s, &t)) *c = t;
    }
}

/* Applies the changes of a NULL-terminated list in order; adds the result to the list as soon as it fits. */
static bool search_try_sequence(search *s, change *c, const change_step_fn *steps)
{
    for (; *steps; steps++) {
        if (!change_apply(s, c, *steps)) continue;
        change_revert_unneeded(s, c);
        search_add_line(s, c);
        return true;
    }
    return false;
}

/* Finds the first combination that fits, starting with the least drastic. */
static void search_try_combinations(search *s, bool resumes)
{
    static const change_step_fn same_result[] = {change_recompute_more, change_fewer_workers,
                                                 change_smaller_eval, NULL};
    static const change_step_fn others[][4] = {
        {change_smaller_batch},
        {change_more_lanes},
        {change_lean_optimiser},
        {change_one_lane, change_smaller_batch},
        {change_lean_optimiser, change_one_lane, change_smaller_batch}};
    change base = change_none(s);
    bool done = search_try_sequence(s, &base, same_result) || resumes;
    for (size_t i = 0; !done && i < sizeof(others) / sizeof(others[0]); i++) {
        change c = base;
        done = search_try_sequence(s, &c, others[i]);
    }
}

/* ---- the check ------------------------------------------------------------------------------- */

static void estimate_describe(const tdm_memory_estimate *e, tdm_str *out)
{
    char text[32];
    tdm_str_addf(out, "parameters %s",
                 tdm_text_bytes(plus(e->parameter_bytes, e->buffer_bytes), text));
    tdm_str_addf(out, ", gradients %s", tdm_text_bytes(e->gradient_bytes, text));
    tdm_str_addf(out, ", optimiser %s", tdm_text_bytes(e->optimiser_bytes - e->file_bytes, text));
    tdm_str_addf(out, ", activations %s for %d worker%s", tdm_text_bytes(e->activation_bytes, text),
                 e->host_workers, e->host_workers == 1 ? "" : "s");
    uint64_t ranks = (uint64_t)e->host_workers;
    if (e->evaluation_bytes > 0)
        tdm_str_addf(out, ", evaluation %s",
                     tdm_text_bytes(times(ranks, e->evaluation_bytes), text));
    if (e->table_bytes > 0)
        tdm_str_addf(out, ", table %s",
                     tdm_text_bytes(plus(e->table_bytes, e->table_work_bytes), text));
    tdm_str_addf(out, ", data %s", tdm_text_bytes(times(ranks, e->data_bytes), text));
}

static tdm_status search_refuse(search *s, const tdm_memory_estimate *e, bool resumes,
                                tdm_error *err)
{
    char needs[32], there[32], min[32];
    tdm_str parts = TDM_STR_INIT;
    estimate_describe(e, &parts);

    search_try_single(s, change_recompute_more);
    search_try_single(s, change_fewer_workers);
    search_try_single(s, change_smaller_eval);
    if (!resumes) {
        search_try_single(s, change_smaller_batch);
        search_try_single(s, change_more_lanes);
        search_try_single(s, change_lean_optimiser);
    }
    if (s->found == 0) search_try_combinations(s, resumes);

    tdm_text_bytes(e->total_bytes, needs);
    tdm_text_bytes(s->budget, there);
    tdm_text_bytes(s->min, min);
    char limit[64];
    snprintf(limit, sizeof(limit),
             s->job->memory.limit > 0 ? "memory.limit allows %s" : "only %s is available", there);
    if (s->found > 0)
        tdm_fail(err, TDM_ERR_NO_MEMORY, "the job needs %s of memory, but %s: %s. %s it fit:%s",
                 needs, limit, tdm_str_text(&parts),
                 s->found == 1 ? "This makes" : "Each of these makes", tdm_str_text(&s->list));
    else
        tdm_fail(
            err, TDM_ERR_NO_MEMORY,
            "the job needs %s of memory, but %s: %s. Neither recomputation nor fewer workers%s "
            "make it fit, and the minimum is %s; use a smaller model, an optimiser with less state (sgd "
            "with 'optim.momentum: 0' keeps none), or a machine with more memory",
            needs, limit, tdm_str_text(&parts), resumes ? "" : " nor smaller batches", min);

    tdm_str_release(&parts);
    tdm_str_release(&s->list);
    return TDM_ERR_NO_MEMORY;
}

/* Upper bound of the CPUs of a host: as many as would still give each of its workers `threads` threads, and no
 * more than the machine has. A worker itself may be pinned to a few. */
static int max_cpus(const tdm_memory_world *world, int threads)
{
    tdm_cpu_info info;
    int max = (threads + 1) * host_workers(world) - 1;
    tdm_os_cpu_info(&info);
    return world->host_count == 1 && info.online_count < max ? info.online_count : max;
}

tdm_status tdm__memory_check(const tdm_job *job, const tdm_job_data *data, tdm_comm *comm,
                             int threads, bool resumes, tdm_error *err)
{
    tdm_memory_world world = {
        .rank_count = comm ? tdm_comm_size(comm) : 1, .host_count = 1, .thread_count = threads};
    for (int r = 0; comm && r < world.rank_count; r++)
        if (tdm_comm_node_of(comm, r) >= world.host_count) world.host_count++;
    if (world.rank_count > tdm_rank_limit_of(job).count) return TDM_OK; /* reported by the team */
    tdm_memory_estimate e;
    TDM_TRY(tdm_memory_estimate_of(job, data, &world, &e, err));
    search s = {.job = job,
                .data = data,
                .worker_count = world.rank_count,
                .host_count = world.host_count,
                .cpu_count = max_cpus(&world, threads),
                .budget = tdm_memory_budget(job),
                .needed = e.total_bytes,
                .list = TDM_STR_INIT,
                .min = e.total_bytes};
    return e.total_bytes > s.budget ? search_refuse(&s, &e, resumes, err) : TDM_OK;
}
