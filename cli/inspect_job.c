/*
 * inspect_job.c: what the model of a job computes, by which kernels, in how much memory.
 *
 * The graph is the one that a worker runs for one lane: the plan is made just as training makes it,
 * so kernels and arena are the real ones. Nothing is allocated for it, so a model that does not fit
 * this machine can be looked at all the same. The data is read, because the model's first and last
 * layers have its shape.
 */
#include "inspect.h"
#include "model.h"
#include "table.h"

#include <tandem/graph.h>
#include <tandem/nn.h>
#include <tandem/optim.h>
#include <tandem/os.h>
#include <tandem/parallel.h>

typedef struct job_view {
    const tdm_job *job;
    const char *path;
    tdm_job_data data;
    int64_t batch, lanes, rows; /* of a step; in the largest lane */
    int workers;
    tdm_graph *graph; /* of one lane */
    tdm_plan *plan;
    uint64_t eval_arena_bytes;
    /* totals */
    uint64_t forward_flops, backward_flops; /* of one lane */
    uint64_t param_bytes, buffer_bytes, grad_bytes, state_bytes, data_bytes;
    int grad_buffers;
} job_view;

/* ---- looking --------------------------------------------------------------------------------- */

static const char *backend_of(const tdm_job *job)
{
    return job->compute.backend == TDM_JOB_BACKEND_REF ? "ref" : NULL;
}

static tdm_status plan_training(job_view *v, const tdm_model_options *model, tdm_error *err)
{
    tdm_model_options m = *model;
    m.batch = v->rows;
    m.training = true;
    m.loss_scale = 1.0 / (double)v->batch;
    TDM_TRY(tdm_model_build(&m, &v->graph, err));
    tdm_plan_options options = {.backend = backend_of(v->job), .threads = 1};
    return tdm_plan_create(v->graph, &options, &v->plan, err);
}

static tdm_status plan_evaluation(job_view *v, const tdm_model_options *model, tdm_error *err)
{
    tdm_model_options m = *model;
    m.batch = tdm_model_eval_rows(&m);
    tdm_graph *graph;
    TDM_TRY(tdm_model_build(&m, &graph, err));
    tdm_plan *plan;
    tdm_plan_options options = {.backend = backend_of(v->job), .threads = 1, .forward_only = true};
    tdm_status status = tdm_plan_create(graph, &options, &plan, err);
    if (status == TDM_OK) {
        v->eval_arena_bytes = tdm_plan_arena_bytes(plan);
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

/* Numbers that the optimiser keeps for each parameter, an average of the weights among them. */
static int state_count(const tdm_job *job)
{
    const tdm_optim_ops *optim = tdm_optim_find(job->optim.kind);
    tdm_optim_settings settings = tdm_optim_settings_of(job);
    int count = job->optim.ema > 0;
    for (int k = 0; k < optim->state_count; k++) count += tdm_optim_uses_state(optim, &settings, k);
    return count;
}

static void count_totals(job_view *v)
{
    for (size_t i = 0; i < tdm_plan_node_count(v->plan); i++) {
        tdm_node_info node = tdm_graph_node_at(v->graph, tdm_plan_node_at(v->plan, i).node);
        *(node.backward ? &v->backward_flops : &v->forward_flops) += node.flops;
    }
    size_t trained = tdm_graph_trained_extent(v->graph), all = tdm_graph_param_extent(v->graph);
    v->param_bytes = trained * sizeof(float);
    v->buffer_bytes = (all - trained) * sizeof(float);
    v->state_bytes = (uint64_t)state_count(v->job) * v->param_bytes;
    for (int w = 0; w < v->workers; w++)
        v->grad_buffers += tdm_lane_buffers(v->lanes, tdm_lane_slice(v->lanes, v->workers, w));
    v->grad_bytes = (uint64_t)v->grad_buffers * v->param_bytes;
    v->data_bytes = v->data.whole ? set_bytes(v->data.whole)
                                  : set_bytes(v->data.train) + set_bytes(v->data.test);
}

static tdm_status look(job_view *v, tdm_error *err)
{
    const tdm_job *job = v->job;
    TDM_TRY(tdm_job_data_load(job, &v->data, err));
    const tdm_dataset_info *info = tdm_dataset_info_of(v->data.train);
    tdm_model_options model = {.job = job, .class_count = info->class_count};
    TDM_TRY(tdm_job_sample_shape(job, v->data.train, &model.sample_shape, err));
    tdm_cpu_info cpu;
    tdm_os_cpu_info(&cpu);
    v->lanes = tdm_lanes_of(job);
    v->workers = (int)(cpu.usable_count < v->lanes ? cpu.usable_count : v->lanes);
    v->batch = job->train.batch < info->sample_count ? job->train.batch : info->sample_count;
    v->rows = tdm_lane_slice(v->batch, v->lanes, 0).count;
    TDM_TRY(plan_training(v, &model, err));
    if (v->data.test) TDM_TRY(plan_evaluation(v, &model, err));
    count_totals(v);
    return TDM_OK;
}

/* ---- text ------------------------------------------------------------------------------------ */

static void add_ops(const job_view *v, bool backward, tdm_str *out)
{
    static const cli_column columns[] = {{.title = "name", .most = 60},
                                         {.title = "op"},
                                         {.title = "output"},
                                         {.title = "kernel"},
                                         {.title = "FLOPs", .right = true},
                                         {.title = "bytes", .right = true},
                                         {.title = "place"}};
    cli_table table;
    char text[128], count[32];
    cli_table_init(&table, columns, 7);
    for (size_t i = 0; i < tdm_plan_node_count(v->plan); i++) {
        tdm_plan_node_info place = tdm_plan_node_at(v->plan, i);
        tdm_node_info node = tdm_graph_node_at(v->graph, place.node);
        if (node.backward != backward) continue;
        cli_table_cell(&table, "%s", node.name);
        cli_table_cell(&table, "%s", node.op);
        cli_table_cell(&table, "%s", tdm_shape_text(&node.shape, text));
        cli_table_cell(&table, "%s", place.backend);
        cli_table_cell(&table, "%s", tdm_text_count(node.flops, count));
        cli_table_cell(&table, "%s", tdm_text_bytes(place.bytes, count));
        cli_table_cell(&table, "%s",
                       place.in_place                   ? "in place"
                       : place.arena_offset == SIZE_MAX ? "gradients"
                                                        : "arena");
    }
    cli_table_print(&table, 2, out);
}

static void add_params(const job_view *v, tdm_str *out)
{
    static const cli_column columns[] = {{.title = "name", .most = 60},
                                         {.title = "shape"},
                                         {.title = "numbers", .right = true},
                                         {.title = "kind"}};
    cli_table table;
    char text[128], count[32];
    cli_table_init(&table, columns, 4);
    for (size_t i = 0; i < tdm_graph_param_count(v->graph); i++) {
        const tdm_param_info *p = tdm_graph_param_at(v->graph, i);
        cli_table_cell(&table, "%s", p->name);
        cli_table_cell(&table, "%s", tdm_shape_text(&p->shape, text));
        cli_table_cell(&table, "%s", tdm_text_count(p->elements, count));
        cli_table_cell(&table, "%s", p->trained ? "trained" : "buffer");
    }
    cli_table_print(&table, 2, out);
}

static void memory_row(cli_table *table, const char *what, uint64_t bytes, const char *note)
{
    char text[32];
    cli_table_cell(table, "%s", what);
    cli_table_cell(table, "%s", tdm_text_bytes(bytes, text));
    cli_table_cell(table, "%s", note);
}

static uint64_t total_bytes(const job_view *v)
{
    return v->param_bytes + v->buffer_bytes + v->grad_bytes + v->state_bytes + v->data_bytes +
           v->eval_arena_bytes + (uint64_t)v->workers * tdm_plan_arena_bytes(v->plan);
}

static void add_memory(const job_view *v, tdm_str *out)
{
    static const cli_column columns[] = {
        {.title = "memory"}, {.title = "bytes", .right = true}, {.title = ""}};
    cli_table table;
    char note[128], one[32], other[32];
    const tdm_optim_ops *optim = tdm_optim_find(v->job->optim.kind);
    const char *many = v->workers == 1 ? "" : "s";
    cli_table_init(&table, columns, 3);
    memory_row(&table, "parameters", v->param_bytes, "one copy for all workers");
    memory_row(&table, "buffers", v->buffer_bytes, "normalisation of the inputs");
    snprintf(note, sizeof(note), "%d x %s, for %lld lane%s on %d worker%s", v->grad_buffers,
             tdm_text_bytes(v->param_bytes, one), (long long)v->lanes, v->lanes == 1 ? "" : "s",
             v->workers, many);
    memory_row(&table, "gradients", v->grad_bytes, note);
    snprintf(note, sizeof(note), "%s: %d for each parameter", optim->name, state_count(v->job));
    memory_row(&table, "optimiser", v->state_bytes, note);
    snprintf(note, sizeof(note), "%d x %s; %s without sharing", v->workers,
             tdm_text_bytes(tdm_plan_arena_bytes(v->plan), one),
             tdm_text_bytes(tdm_plan_unshared_bytes(v->plan), other));
    memory_row(&table, "activations", (uint64_t)v->workers * tdm_plan_arena_bytes(v->plan), note);
    if (v->eval_arena_bytes > 0) {
        snprintf(note, sizeof(note), "activations at eval.batch %lld",
                 (long long)v->job->eval.batch);
        memory_row(&table, "evaluation", v->eval_arena_bytes, note);
    }
    memory_row(&table, "data", v->data_bytes, "training and test samples");
    memory_row(&table, "total", total_bytes(v), "");
    cli_table_print(&table, 0, out);
}

static void add_text(const job_view *v, tdm_str *out)
{
    const tdm_dataset_info *info = tdm_dataset_info_of(v->data.train);
    char a[32], b[32], c[32], shape[128];
    uint64_t rows = (uint64_t)v->rows, flops = v->forward_flops + v->backward_flops;
    tdm_str_addf(out, "job         %s (%s)\n", v->job->name, v->path);
    tdm_str_addf(out, "samples     %s of shape %s, %lld classes; %s to test\n",
                 tdm_text_count((uint64_t)info->sample_count, a),
                 tdm_shape_text(&info->sample_shape, shape), (long long)info->class_count,
                 v->data.test
                     ? tdm_text_count((uint64_t)tdm_dataset_info_of(v->data.test)->sample_count, b)
                     : "none");
    tdm_str_addf(out, "parameters  %s\n", tdm_text_count(tdm_graph_trained_elements(v->graph), a));
    tdm_str_addf(out, "batch       %lld rows in %lld lane%s of %s%lld\n", (long long)v->batch,
                 (long long)v->lanes, v->lanes == 1 ? "" : "s",
                 v->batch % v->lanes ? "at most " : "", (long long)v->rows);
    tdm_str_addf(out, "FLOPs       %s a sample (%s forward, %s backward)",
                 tdm_text_count(flops / rows, a), tdm_text_count(v->forward_flops / rows, b),
                 tdm_text_count(v->backward_flops / rows, c));
    tdm_str_addf(out, ", %s a step\n\n", tdm_text_count(flops / rows * (uint64_t)v->batch, a));
    add_params(v, out);
    tdm_str_addf(out, "\nforward, of one lane (%lld rows)\n", (long long)v->rows);
    add_ops(v, false, out);
    tdm_str_add(out, "\nbackward\n");
    add_ops(v, true, out);
    tdm_str_add_char(out, '\n');
    add_memory(v, out);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_shape(tdm_json_writer *w, const tdm_shape *shape)
{
    tdm_json_key(w, "shape");
    tdm_json_array_begin(w);
    for (int i = 0; i < shape->rank; i++) tdm_json_int(w, shape->dim[i]);
    tdm_json_array_end(w);
}

static void put_ops(const job_view *v, tdm_json_writer *w)
{
    tdm_json_key(w, "ops");
    tdm_json_array_begin(w);
    for (size_t i = 0; i < tdm_plan_node_count(v->plan); i++) {
        tdm_plan_node_info place = tdm_plan_node_at(v->plan, i);
        tdm_node_info node = tdm_graph_node_at(v->graph, place.node);
        tdm_json_object_begin(w);
        tdm_json_put_string(w, "name", node.name);
        tdm_json_put_string(w, "op", node.op);
        tdm_json_put_bool(w, "backward", node.backward);
        put_shape(w, &node.shape);
        tdm_json_put_string(w, "dtype", tdm_dtype_name(node.dtype));
        tdm_json_put_string(w, "kernel", place.backend);
        tdm_json_put_bool(w, "in_place", place.in_place);
        tdm_json_put_uint(w, "flops", node.flops);
        tdm_json_put_uint(w, "bytes", place.bytes);
        tdm_json_object_end(w);
    }
    tdm_json_array_end(w);
}

static void put_params(const job_view *v, tdm_json_writer *w)
{
    tdm_json_key(w, "parameters");
    tdm_json_array_begin(w);
    for (size_t i = 0; i < tdm_graph_param_count(v->graph); i++) {
        const tdm_param_info *p = tdm_graph_param_at(v->graph, i);
        tdm_json_object_begin(w);
        tdm_json_put_string(w, "name", p->name);
        put_shape(w, &p->shape);
        tdm_json_put_bool(w, "trained", p->trained);
        tdm_json_object_end(w);
    }
    tdm_json_array_end(w);
}

static void put_memory(const job_view *v, tdm_json_writer *w)
{
    tdm_json_key(w, "memory");
    tdm_json_object_begin(w);
    tdm_json_put_int(w, "workers", v->workers);
    tdm_json_put_uint(w, "parameter_bytes", v->param_bytes);
    tdm_json_put_uint(w, "buffer_bytes", v->buffer_bytes);
    tdm_json_put_int(w, "gradient_buffers", v->grad_buffers);
    tdm_json_put_uint(w, "gradient_bytes", v->grad_bytes);
    tdm_json_put_uint(w, "optimiser_bytes", v->state_bytes);
    tdm_json_put_uint(w, "arena_bytes_per_worker", tdm_plan_arena_bytes(v->plan));
    tdm_json_put_uint(w, "unshared_bytes_per_worker", tdm_plan_unshared_bytes(v->plan));
    tdm_json_put_uint(w, "evaluation_bytes", v->eval_arena_bytes);
    tdm_json_put_uint(w, "data_bytes", v->data_bytes);
    tdm_json_put_uint(w, "total_bytes", total_bytes(v));
    tdm_json_object_end(w);
}

static void add_json(const job_view *v, tdm_str *out)
{
    uint64_t rows = (uint64_t)v->rows;
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_string(&w, "kind", "job");
    tdm_json_put_string(&w, "path", v->path);
    tdm_json_put_string(&w, "name", v->job->name);
    tdm_json_put_uint(&w, "parameter_count", tdm_graph_trained_elements(v->graph));
    tdm_json_put_int(&w, "batch", v->batch);
    tdm_json_put_int(&w, "lanes", v->lanes);
    tdm_json_put_int(&w, "lane_rows", v->rows);
    tdm_json_put_uint(&w, "forward_flops_per_sample", v->forward_flops / rows);
    tdm_json_put_uint(&w, "backward_flops_per_sample", v->backward_flops / rows);
    tdm_json_put_uint(&w, "flops_per_step",
                      (v->forward_flops + v->backward_flops) / rows * (uint64_t)v->batch);
    put_params(v, &w);
    put_ops(v, &w);
    put_memory(v, &w);
    tdm_json_object_end(&w);
    tdm_str_add_char(out, '\n');
}

int inspect_job(const cli_args *args, const char *path)
{
    int code;
    tdm_job_document *document = cli_load_job(args, path, &code);
    if (!document) return code;
    job_view v = {.job = tdm_job_document_job(document), .path = path};
    tdm_error err = {0};
    if (look(&v, &err) != TDM_OK) {
        code = cli_fail(&err);
    } else {
        tdm_str out = TDM_STR_INIT;
        if (cli_json(args))
            add_json(&v, &out);
        else
            add_text(&v, &out);
        code = cli_print(&out);
    }
    tdm_plan_destroy(v.plan);
    tdm_graph_destroy(v.graph);
    tdm_job_data_release(&v.data);
    tdm_job_document_destroy(document);
    return code;
}
