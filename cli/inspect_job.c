/*
 * inspect_job.c: prints the ops of a job's model, their kernels, and the memory that training needs.
 *
 * The graph is the one that a worker runs for one lane. The plan is created as in training, so kernels
 * and arena are the real ones. No memory is allocated for it, so a model that does not fit into this
 * machine can be inspected as well. The data is loaded, because it determines the shapes of the model's
 * first and last layers.
 */
#include "inspect.h"
#include "model.h"
#include "table.h"

#include <tandem/graph.h>
#include <tandem/nn.h>
#include <tandem/optim.h>
#include <tandem/os.h>
#include <tandem/parallel.h>
#include <tandem/resources.h>

/* The values of memory.recompute, in order. */
static const char *const way_names[] = {"none", "blocks", "full"};
enum { WAY_COUNT = sizeof(way_names) / sizeof(way_names[0]) };

typedef struct job_view {
    const tdm_job *job;
    const char *path;
    tdm_job_data data;
    tdm_graph *graph; /* of one lane */
    tdm_plan *plan;
    tdm_memory_estimate ways[WAY_COUNT]; /* by memory.recompute */
    const tdm_memory_estimate *own;      /* for the job's value */
    tdm_memory_world world;
    uint64_t budget_bytes;
} job_view;

/* ---- reading --------------------------------------------------------------------------------- */

static tdm_status job_view_read(job_view *v, tdm_error *err)
{
    const tdm_job *job = v->job;
    TDM_TRY(tdm_job_data_load(job, &v->data, err));
    for (int way = 0; way < WAY_COUNT; way++) {
        tdm_job other = *job;
        other.memory.recompute = way;
        TDM_TRY(tdm_memory_estimate_of(&other, &v->data, &v->world, &v->ways[way], err));
    }
    v->own = &v->ways[job->memory.recompute];
    v->budget_bytes = tdm_memory_budget(job);
    return tdm_memory_plan(job, &v->data, v->own, &v->graph, &v->plan, err);
}

/* The recomputed FLOPs, in per cent of a step without recomputation. */
static double extra_percent(const tdm_memory_estimate *e)
{
    uint64_t step = e->forward_flops + e->backward_flops - e->recomputed_flops;
    return step > 0 ? 100.0 * (double)e->recomputed_flops / (double)step : 0;
}

/* ---- text ------------------------------------------------------------------------------------ */

static void add_ops(const job_view *v, bool backward, tdm_str *out)
{
    static const cli_column columns[] = {{.title = "name", .max = 60},
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
    static const cli_column columns[] = {{.title = "name", .max = 60},
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

static void add_memory(const job_view *v, tdm_str *out)
{
    const tdm_memory_estimate *e = v->own;
    const cli_column columns[] = {{.title = "memory"},
                                  {.title = "bytes", .right = true},
                                  {.title = e->host_count > 1 ? "on the largest host" : ""}};
    cli_table table;
    char note[128], one[32], other[32];
    const tdm_optim_ops *optim = tdm_optim_find(v->job->optim.kind);
    cli_table_init(&table, columns, 3);
    memory_row(&table, "parameters", e->parameter_bytes,
               v->job->parallel.zero == 3 && e->host_count > 1
                   ? "sharded, with memory for gathered blocks"
                   : "one copy for all workers");
    memory_row(&table, "buffers", e->buffer_bytes, "normalisation of the inputs, statistics");
    snprintf(note, sizeof(note), "%d buffers, for %lld lane%s on %d worker%s", e->gradient_buffers,
             (long long)e->lane_count, e->lane_count == 1 ? "" : "s", e->worker_count,
             e->worker_count == 1 ? "" : "s");
    memory_row(&table, "gradients", e->gradient_bytes, note);
    snprintf(note, sizeof(note), "%s: %d for each parameter%s", optim->name, e->optimiser_numbers,
             e->file_bytes > 0 ? "; in files" : "");
    memory_row(&table, "optimiser", e->optimiser_bytes - e->file_bytes, note);
    snprintf(note, sizeof(note), "%d x %s; %s without sharing", e->host_workers,
             tdm_text_bytes(e->activation_bytes / (uint64_t)e->host_workers, one),
             tdm_text_bytes(e->unshared_bytes, other));
    memory_row(&table, "activations", e->activation_bytes, note);
    if (e->evaluation_bytes > 0) {
        snprintf(note, sizeof(note), "%d x %s: activations at eval.batch %lld", e->host_workers,
                 tdm_text_bytes(e->evaluation_bytes, one), (long long)v->job->eval.batch);
        memory_row(&table, "evaluation", (uint64_t)e->host_workers * e->evaluation_bytes, note);
    }
    if (e->table_bytes > 0) {
        snprintf(note, sizeof(note), "%s expected rows; batches and saves %s",
                 tdm_text_count(e->table_rows, one), tdm_text_bytes(e->table_work_bytes, other));
        memory_row(&table, "table", e->table_bytes + e->table_work_bytes, note);
    }
    snprintf(note, sizeof(note), "%d x %s: training and test samples", e->host_workers,
             tdm_text_bytes(e->data_bytes, one));
    memory_row(&table, "data", (uint64_t)e->host_workers * e->data_bytes, note);
    memory_row(&table, "total", e->total_bytes,
               e->total_bytes <= v->budget_bytes ? "" : "exceeds the limit: train refuses the job");
    if (v->budget_bytes != UINT64_MAX)
        memory_row(&table, "limit", v->budget_bytes,
                   v->job->memory.limit > 0 ? "memory.limit" : "95 % of the available memory");
    cli_table_print(&table, 0, out);
}

static void add_ways(const job_view *v, tdm_str *out)
{
    static const cli_column columns[] = {{.title = "memory.recompute"},
                                         {.title = "activations/worker", .right = true},
                                         {.title = "total", .right = true},
                                         {.title = "extra FLOPs", .right = true},
                                         {.title = ""}};
    cli_table table;
    char text[32];
    cli_table_init(&table, columns, 5);
    for (int way = 0; way < WAY_COUNT; way++) {
        const tdm_memory_estimate *e = &v->ways[way];
        cli_table_cell(&table, "%s", way_names[way]);
        cli_table_cell(&table, "%s", tdm_text_bytes(e->arena_bytes, text));
        cli_table_cell(&table, "%s", tdm_text_bytes(e->total_bytes, text));
        cli_table_cell(&table, "%.1f %%", extra_percent(e));
        cli_table_cell(&table, "%s", e == v->own ? "this job" : "");
    }
    cli_table_print(&table, 0, out);
}

/* The memory of a rank with each value of parallel.zero, next to the published formula. */
static void add_stages(const job_view *v, tdm_str *out)
{
    static const cli_column columns[] = {{.title = "parallel.zero"},
                                         {.title = "parameters", .right = true},
                                         {.title = "gradients", .right = true},
                                         {.title = "state", .right = true},
                                         {.title = "sum", .right = true},
                                         {.title = "formula", .right = true},
                                         {.title = "activations", .right = true},
                                         {.title = "total/rank", .right = true},
                                         {.title = ""}};
    cli_table table;
    char text[32];
    cli_table_init(&table, columns, 9);
    tdm_str_addf(out, "each of %d rank%s on %d host%s\n", v->own->worker_count,
                 v->own->worker_count == 1 ? "" : "s", v->own->host_count,
                 v->own->host_count == 1 ? "" : "s");
    for (int zero = 0; zero < TDM_ZERO_STAGES; zero++) {
        const tdm_memory_stage *s = &v->own->stages[zero];
        const uint64_t cells[] = {
            s->parameter_bytes, s->gradient_bytes,
            s->optimiser_bytes, s->parameter_bytes + s->gradient_bytes + s->optimiser_bytes,
            s->formula_bytes,   s->activation_bytes,
            s->total_bytes,
        };
        cli_table_cell(&table, "%d", zero);
        for (size_t i = 0; i < sizeof(cells) / sizeof(cells[0]); i++)
            cli_table_cell(&table, "%s", tdm_text_bytes(cells[i], text));
        cli_table_cell(&table, "%s", zero == v->job->parallel.zero ? "this job" : "");
    }
    cli_table_print(&table, 0, out);
}

static void add_text(const job_view *v, tdm_str *out)
{
    const tdm_dataset_info *info = tdm_dataset_info_of(v->data.train);
    char a[32], b[32], c[32], shape[128];
    uint64_t rows = (uint64_t)v->own->lane_rows,
             flops = v->own->forward_flops + v->own->backward_flops;
    tdm_str_addf(out, "job         %s (%s)\n", v->job->name, v->path);
    tdm_str_addf(out, "samples     %s of shape %s, %lld classes; %s test samples\n",
                 tdm_text_count((uint64_t)info->sample_count, a),
                 tdm_shape_text(&info->sample_shape, shape), (long long)info->class_count,
                 v->data.test
                     ? tdm_text_count((uint64_t)tdm_dataset_info_of(v->data.test)->sample_count, b)
                     : "no");
    tdm_str_addf(out, "parameters  %s\n", tdm_text_count(tdm_graph_trained_elements(v->graph), a));
    tdm_str_addf(out, "batch       %lld rows in %lld lane%s of %s%lld\n", (long long)v->own->batch,
                 (long long)v->own->lane_count, v->own->lane_count == 1 ? "" : "s",
                 v->own->batch % v->own->lane_count ? "at most " : "",
                 (long long)v->own->lane_rows);
    tdm_str_addf(out, "FLOPs       %s per sample (%s forward, %s backward)",
                 tdm_text_count(flops / rows, a), tdm_text_count(v->own->forward_flops / rows, b),
                 tdm_text_count(v->own->backward_flops / rows, c));
    tdm_str_addf(out, ", %s per step\n\n",
                 tdm_text_count(flops / rows * (uint64_t)v->own->batch, a));
    add_params(v, out);
    tdm_str_addf(out, "\nforward, one lane (%lld rows)\n", (long long)v->own->lane_rows);
    add_ops(v, false, out);
    tdm_str_add(out, "\nbackward\n");
    add_ops(v, true, out);
    tdm_str_add_char(out, '\n');
    add_memory(v, out);
    tdm_str_add_char(out, '\n');
    add_ways(v, out);
    tdm_str_add_char(out, '\n');
    add_stages(v, out);
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

static void put_stages(const job_view *v, tdm_json_writer *w)
{
    tdm_json_key(w, "ranks");
    tdm_json_array_begin(w);
    for (int zero = 0; zero < TDM_ZERO_STAGES; zero++) {
        const tdm_memory_stage *s = &v->own->stages[zero];
        tdm_json_object_begin(w);
        tdm_json_put_int(w, "zero", zero);
        tdm_json_put_bool(w, "this_job", zero == v->job->parallel.zero);
        tdm_json_put_uint(w, "rank_parameter_bytes", s->parameter_bytes);
        tdm_json_put_uint(w, "rank_gradient_bytes", s->gradient_bytes);
        tdm_json_put_uint(w, "rank_optimiser_bytes", s->optimiser_bytes);
        tdm_json_put_uint(w, "rank_activation_bytes", s->activation_bytes);
        tdm_json_put_uint(w, "rank_total_bytes", s->total_bytes);
        tdm_json_put_uint(w, "formula_bytes", s->formula_bytes);
        tdm_json_object_end(w);
    }
    tdm_json_array_end(w);
}

static void put_memory(const job_view *v, tdm_json_writer *w)
{
    const tdm_memory_estimate *e = v->own;
    tdm_json_key(w, "memory");
    tdm_json_object_begin(w);
    tdm_json_put_int(w, "workers", e->worker_count);
    tdm_json_put_int(w, "hosts", e->host_count);
    tdm_json_put_int(w, "workers_per_host", e->host_workers);
    tdm_json_put_uint(w, "parameter_bytes", e->parameter_bytes);
    tdm_json_put_uint(w, "buffer_bytes", e->buffer_bytes);
    tdm_json_put_int(w, "gradient_buffers", e->gradient_buffers);
    tdm_json_put_uint(w, "gradient_bytes", e->gradient_bytes);
    tdm_json_put_uint(w, "optimiser_bytes", e->optimiser_bytes);
    tdm_json_put_uint(w, "arena_bytes_per_worker", e->arena_bytes);
    tdm_json_put_uint(w, "unshared_bytes_per_worker", e->unshared_bytes);
    tdm_json_put_uint(w, "evaluation_bytes", e->evaluation_bytes);
    tdm_json_put_uint(w, "data_bytes", e->data_bytes);
    if (e->table_bytes > 0) {
        tdm_json_put_uint(w, "table_rows", e->table_rows);
        tdm_json_put_uint(w, "table_bytes", e->table_bytes);
        tdm_json_put_uint(w, "table_work_bytes", e->table_work_bytes);
    }
    tdm_json_put_uint(w, "total_bytes", e->total_bytes);
    if (v->budget_bytes != UINT64_MAX) tdm_json_put_uint(w, "budget_bytes", v->budget_bytes);
    tdm_json_put_bool(w, "fits", e->total_bytes <= v->budget_bytes);
    tdm_json_key(w, "recompute");
    tdm_json_array_begin(w);
    for (int way = 0; way < WAY_COUNT; way++) {
        tdm_json_object_begin(w);
        tdm_json_put_string(w, "recompute", way_names[way]);
        tdm_json_put_bool(w, "chosen", &v->ways[way] == e);
        tdm_json_put_uint(w, "arena_bytes", v->ways[way].arena_bytes);
        tdm_json_put_uint(w, "total", v->ways[way].total_bytes);
        tdm_json_put_double(w, "extra_flops_percent", extra_percent(&v->ways[way]));
        tdm_json_object_end(w);
    }
    tdm_json_array_end(w);
    put_stages(v, w);
    tdm_json_object_end(w);
}

static void add_json(const job_view *v, tdm_str *out)
{
    uint64_t rows = (uint64_t)v->own->lane_rows;
    tdm_json_writer w = tdm_json_writer_init(out, 0);
    tdm_json_object_begin(&w);
    tdm_json_put_string(&w, "kind", "job");
    tdm_json_put_string(&w, "path", v->path);
    tdm_json_put_string(&w, "name", v->job->name);
    tdm_json_put_uint(&w, "parameter_count", tdm_graph_trained_elements(v->graph));
    tdm_json_put_int(&w, "batch", v->own->batch);
    tdm_json_put_int(&w, "lanes", v->own->lane_count);
    tdm_json_put_int(&w, "lane_rows", v->own->lane_rows);
    tdm_json_put_uint(&w, "forward_flops_per_sample", v->own->forward_flops / rows);
    tdm_json_put_uint(&w, "backward_flops_per_sample", v->own->backward_flops / rows);
    tdm_json_put_uint(&w, "flops_per_step",
                      (v->own->forward_flops + v->own->backward_flops) / rows *
                          (uint64_t)v->own->batch);
    put_params(v, &w);
    put_ops(v, &w);
    put_memory(v, &w);
    tdm_json_object_end(&w);
    tdm_str_add_char(out, '\n');
}

int inspect_job(const cli_args *args, const char *path)
{
    int code;
    int64_t ranks = 0, hosts = 0;
    if (!cli_int(args, "workers", 1, TDM_MAX_LANES, &ranks) ||
        !cli_int(args, "hosts", 1, TDM_MAX_LANES, &hosts))
        return CLI_USAGE;
    tdm_job_document *document = cli_load_job(args, path, &code);
    if (!document) return code;
    job_view v = {.job = tdm_job_document_job(document),
                  .path = path,
                  .world = {.rank_count = (int)ranks, .host_count = (int)hosts}};
    tdm_error err = {0};
    if (job_view_read(&v, &err) != TDM_OK) {
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
