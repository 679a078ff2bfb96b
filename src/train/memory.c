/*
 * memory.c: what a job needs in memory, whether that is there, and what would make it fit.
 *
 * An estimate builds the graph of the largest lane and plans it as the team will, so activations are
 * counted with their kernels' scratch memory, to the byte; the rest is arithmetic on the sizes that
 * state.c, team.c and eval.c map. Nothing large is mapped here.
 *
 * A job that does not fit is refused with a list of changes, each of which was estimated like the
 * job itself and does fit. First come those that leave the result as it is.
 */
#include "train/internal.h"

#include <tandem/parallel.h>

#include <stdio.h>
#include <string.h>

/* Of what the machine has: the rest is for the program itself and for what grows elsewhere. */
enum { USABLE_PERCENT = 95 };

/* ---- arithmetic that stays at the top instead of wrapping ------------------------------------ */

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
    int64_t workers = cpu.usable_count / job->compute.threads, lanes = tdm_lanes_of(job);
    if (workers > lanes) workers = lanes;
    return workers > 1 ? (int)workers : 1;
}

static const char *backend_of(const tdm_job *job)
{
    return job->compute.backend == TDM_JOB_BACKEND_REF ? "ref" : NULL;
}

static void count_flops(const tdm_graph *graph, const tdm_plan *plan, tdm_memory_estimate *e)
{
    for (size_t i = 0; i < tdm_plan_node_count(plan); i++) {
        tdm_node_info node = tdm_graph_node_at(graph, tdm_plan_node_at(plan, i).node);
        *(node.backward ? &e->backward_flops : &e->forward_flops) += node.flops;
        if (node.recomputed) e->recomputed_flops += node.flops;
    }
}

/* The blocks of numbers that state.c and team.c lay out after the graph. */
static void count_blocks(const tdm_job *job, const tdm_graph *graph, tdm_memory_estimate *e)
{
    size_t trained = tdm_graph_trained_extent(graph), all = tdm_graph_param_extent(graph);
    const tdm_optim_ops *optim = tdm_optim_find(job->optim.kind);
    tdm_optim_settings settings = tdm_optim_settings_of(job);
    e->parameter_bytes = trained * sizeof(float);
    e->buffer_bytes = (all - trained) * sizeof(float);
    for (int k = 0; k < optim->state_count; k++)
        e->optimiser_numbers += tdm_optim_uses_state(optim, &settings, k);
    e->optimiser_bytes = times((uint64_t)e->optimiser_numbers, e->parameter_bytes);
    if (job->optim.ema > 0) {
        e->optimiser_numbers++;
        e->optimiser_bytes = plus(e->optimiser_bytes, all * sizeof(float));
    }
    for (int w = 0; w < e->worker_count; w++)
        e->gradient_buffers += tdm_lane_buffers(e->lane_count,
                                                tdm_lane_slice(e->lane_count, e->worker_count, w));
    e->gradient_bytes = times((uint64_t)e->gradient_buffers,
                              tdm_graph_grad_extent(graph) * sizeof(float));
}

static tdm_status plan_training(const tdm_model_options *model, tdm_memory_estimate *e,
                                tdm_error *err)
{
    tdm_model_options m = *model;
    m.batch = e->lane_rows;
    m.training = true;
    m.loss_scale = 1.0 / (double)e->batch;
    tdm_graph *graph;
    TDM_TRY(tdm_model_build(&m, &graph, err));
    tdm_plan *plan;
    tdm_plan_options options = {.backend = backend_of(m.job),
                                .threads = (int)m.job->compute.threads};
    tdm_status status = tdm_plan_create(graph, &options, &plan, err);
    if (status == TDM_OK) {
        e->arena_bytes = tdm_plan_arena_bytes(plan);
        e->unshared_bytes = tdm_plan_unshared_bytes(plan);
        e->activation_bytes = times((uint64_t)e->worker_count, e->arena_bytes);
        count_flops(graph, plan, e);
        count_blocks(m.job, graph, e);
        tdm_plan_destroy(plan);
    }
    tdm_graph_destroy(graph);
    return status;
}

static tdm_status plan_evaluation(const tdm_model_options *model, int64_t test_count,
                                  tdm_memory_estimate *e, tdm_error *err)
{
    tdm_model_options m = *model;
    m.batch = tdm_model_eval_rows(&m);
    if (m.batch > test_count) m.batch = test_count;
    tdm_graph *graph;
    TDM_TRY(tdm_model_build(&m, &graph, err));
    tdm_plan *plan;
    tdm_plan_options options = {.backend = backend_of(m.job), .threads = 1, .forward_only = true};
    tdm_status status = tdm_plan_create(graph, &options, &plan, err);
    if (status == TDM_OK) {
        e->evaluation_bytes = tdm_plan_arena_bytes(plan);
        tdm_plan_destroy(plan);
    }
    tdm_graph_destroy(graph);
    return status;
}

static uint64_t set_bytes(const tdm_dataset *set)
{
    if (!set) return 0;
    const tdm_dataset_info *info = tdm_dataset_info_of(set);
    if (info->kind == TDM_DATA_KIND_TOKENS)
        return (uint64_t)info->token_count * tdm_dtype_bytes(info->storage);
    uint64_t row = (uint64_t)info->feature_count * tdm_dtype_bytes(info->storage) +
                   (info->class_count > 0 ? sizeof(int32_t) : 0);
    return (uint64_t)info->sample_count * row;
}

tdm_status tdm_memory_estimate_of(const tdm_job *job, const tdm_job_data *data, int worker_count,
                                  tdm_memory_estimate *out, tdm_error *err)
{
    const tdm_dataset_info *info = tdm_dataset_info_of(data->train);
    tdm_model_options model = {.job = job, .class_count = info->class_count};
    TDM_TRY(tdm_job_sample_shape(job, data->train, &model.sample_shape, err));
    tdm_memory_estimate e = {.worker_count = tdm__workers_of(job, worker_count),
                             .lane_count = tdm_lanes_of(job)};
    e.batch = job->train.batch < info->sample_count ? job->train.batch : info->sample_count;
    e.lane_rows = tdm_lane_slice(e.batch, e.lane_count, 0).count;
    TDM_TRY(plan_training(&model, &e, err));
    if (data->test)
        TDM_TRY(plan_evaluation(&model, tdm_dataset_info_of(data->test)->sample_count, &e, err));
    e.data_bytes = data->whole ? set_bytes(data->whole)
                               : plus(set_bytes(data->train), set_bytes(data->test));
    const uint64_t parts[] = {e.parameter_bytes, e.buffer_bytes,     e.gradient_bytes,
                              e.optimiser_bytes, e.activation_bytes, e.evaluation_bytes,
                              e.data_bytes};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        e.total_bytes = plus(e.total_bytes, parts[i]);
    *out = e;
    return TDM_OK;
}

uint64_t tdm_memory_budget(const tdm_job *job)
{
    if (job->memory.limit > 0) return (uint64_t)job->memory.limit;
    tdm_memory_info info;
    tdm_os_memory_info(&info);
    /* What this process holds already, the data first of all, is part of the estimate. */
    uint64_t there = info.available_bytes ? plus(info.available_bytes, tdm_os_resident_bytes())
                                          : UINT64_MAX;
    if (info.limit_bytes > 0 && info.limit_bytes < there) there = info.limit_bytes;
    return there == UINT64_MAX ? there : there / 100 * USABLE_PERCENT;
}

/* ---- what would make it fit ------------------------------------------------------------------ */

/* A job that does not fit, and the list of changes with which it does. */
typedef struct search {
    const tdm_job *job;
    const tdm_job_data *data;
    int worker_count;
    uint64_t budget;
    tdm_str list;
    int found;
    uint64_t least; /* that any of the tries needs */
} search;

/* One thing, or several, done differently. */
typedef struct change {
    tdm_job job;
    int worker_count;
    const char *note; /* what it costs, or "" */
} change;

static change no_change(const search *s)
{
    return (change){.job = *s->job, .worker_count = s->worker_count, .note = ""};
}

static void add_line(search *s, const change *c, uint64_t bytes)
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
    tdm_str_addf(&s->list, " (needs %s%s)", tdm_text_bytes(bytes, text), c->note);
    s->found++;
}

/* True when the changed job fits; then it is listed. A change that cannot be planned does not. */
static bool try_change(search *s, const change *c)
{
    tdm_memory_estimate e;
    tdm_error ignored;
    if (tdm_memory_estimate_of(&c->job, s->data, c->worker_count, &e, &ignored) != TDM_OK)
        return false;
    if (e.total_bytes < s->least) s->least = e.total_bytes;
    if (e.total_bytes > s->budget) return false;
    add_line(s, c, e.total_bytes);
    return true;
}

static void try_recompute(search *s)
{
    change c = no_change(s);
    bool fits = false;
    while (!fits && c.job.memory.recompute < TDM_JOB_RECOMPUTE_FULL) {
        c.job.memory.recompute++;
        fits = try_change(s, &c);
    }
}

static void try_workers(search *s)
{
    change c = no_change(s);
    bool fits = false;
    while (!fits && c.worker_count > 1) {
        c.worker_count /= 2;
        fits = try_change(s, &c);
    }
}

/* Whether a smaller eval.batch may help, and leaves the result as it is. */
static bool may_evaluate_less(const search *s)
{
    return s->data->test && s->job->schedule.kind != TDM_JOB_SCHEDULE_REDUCE_ON_PLATEAU;
}

static void try_eval_batch(search *s)
{
    change c = no_change(s);
    bool fits = !may_evaluate_less(s);
    while (!fits && c.job.eval.batch > 1) {
        c.job.eval.batch /= 2;
        fits = try_change(s, &c);
    }
}

/* All that leaves the result as it is, at once. */
static void try_everything(search *s)
{
    change c = no_change(s);
    c.job.memory.recompute = TDM_JOB_RECOMPUTE_FULL;
    c.worker_count = 1;
    if (may_evaluate_less(s)) c.job.eval.batch = 1;
    try_change(s, &c);
}

#define CHANGES_RESULT ", but changes the result"

/* The lanes that the job names must not outnumber the rows. */
static void try_train_batch(search *s)
{
    change c = no_change(s);
    c.note = CHANGES_RESULT;
    bool fits = false;
    while (!fits && c.job.train.batch > 1 && c.job.train.batch / 2 >= c.job.parallel.lanes) {
        c.job.train.batch /= 2;
        int64_t lanes = tdm_lanes_of(&c.job);
        if (c.worker_count > lanes) c.worker_count = (int)lanes;
        fits = try_change(s, &c);
    }
}

static void try_lanes(search *s)
{
    change c = no_change(s);
    c.note = CHANGES_RESULT;
    bool fits = false;
    int64_t lanes = 2 * tdm_lanes_of(s->job);
    for (; !fits && lanes <= s->job->train.batch && lanes <= TDM_LANES_MOST; lanes *= 2) {
        c.job.parallel.lanes = lanes;
        fits = try_change(s, &c);
    }
}

/* The least there is: one lane at a time, and then one row. */
static void try_last_resort(search *s)
{
    change c = no_change(s);
    c.note = CHANGES_RESULT;
    c.job.memory.recompute = TDM_JOB_RECOMPUTE_FULL;
    c.worker_count = 1;
    if (may_evaluate_less(s)) c.job.eval.batch = 1;
    c.job.parallel.lanes = 1;
    if (try_change(s, &c)) return;
    c.job.train.batch = 1;
    try_change(s, &c);
}

/* ---- the check ------------------------------------------------------------------------------- */

static void describe(const tdm_memory_estimate *e, tdm_str *out)
{
    char text[32];
    tdm_str_addf(out, "parameters %s",
                 tdm_text_bytes(plus(e->parameter_bytes, e->buffer_bytes), text));
    tdm_str_addf(out, ", gradients %s", tdm_text_bytes(e->gradient_bytes, text));
    tdm_str_addf(out, ", optimiser %s", tdm_text_bytes(e->optimiser_bytes, text));
    tdm_str_addf(out, ", activations %s for %d worker%s", tdm_text_bytes(e->activation_bytes, text),
                 e->worker_count, e->worker_count == 1 ? "" : "s");
    if (e->evaluation_bytes > 0)
        tdm_str_addf(out, ", evaluation %s", tdm_text_bytes(e->evaluation_bytes, text));
    tdm_str_addf(out, ", data %s", tdm_text_bytes(e->data_bytes, text));
}

static tdm_status refuse(search *s, const tdm_memory_estimate *e, bool resumes, tdm_error *err)
{
    char needs[32], there[32], least[32];
    tdm_str parts = TDM_STR_INIT;
    describe(e, &parts);
    try_recompute(s);
    try_workers(s);
    try_eval_batch(s);
    if (s->found == 0) try_everything(s);
    if (!resumes) {
        try_train_batch(s);
        try_lanes(s);
        if (s->found == 0) try_last_resort(s);
    }
    tdm_text_bytes(e->total_bytes, needs);
    tdm_text_bytes(s->budget, there);
    tdm_text_bytes(s->least, least);
    const char *whose = s->job->memory.limit > 0 ? "memory.limit allows" : "there is";
    if (s->found > 0)
        tdm_fail(err, TDM_ERR_NO_MEMORY, "the job needs %s of memory, and %s %s: %s. %s it fit:%s",
                 needs, whose, there, tdm_str_text(&parts),
                 s->found == 1 ? "This makes" : "Each of these makes", tdm_str_text(&s->list));
    else
        tdm_fail(
            err, TDM_ERR_NO_MEMORY,
            "the job needs %s of memory, and %s %s: %s. Neither recomputation nor fewer workers "
            "nor smaller batches make it fit, the least is %s; take a smaller model, an "
            "optimiser with less state, or a machine with more memory",
            needs, whose, there, tdm_str_text(&parts), least);
    tdm_str_release(&parts);
    tdm_str_release(&s->list);
    return TDM_ERR_NO_MEMORY;
}

tdm_status tdm__memory_check(const tdm_job *job, const tdm_job_data *data, int worker_count,
                             bool resumes, tdm_error *err)
{
    int workers = tdm__workers_of(job, worker_count);
    if (workers > tdm_lanes_of(job)) return TDM_OK; /* the team will have a word on that */
    tdm_memory_estimate e;
    TDM_TRY(tdm_memory_estimate_of(job, data, workers, &e, err));
    search s = {.job = job,
                .data = data,
                .worker_count = workers,
                .budget = tdm_memory_budget(job),
                .list = TDM_STR_INIT,
                .least = e.total_bytes};
    return e.total_bytes > s.budget ? refuse(&s, &e, resumes, err) : TDM_OK;
}
