/*
 * model.c: the parts common to all architectures: inputs first (features are normalised, tokens are
 * used as they are), loss or probabilities last, and initial values. The code of a library stays
 * loaded as long as a graph that it built: the graph keeps it.
 */
#include "base/base.h"
#include "graph/graph.h"
#include "job/job.h"
#include "nn/internal.h"
#include "nn/nn.h"
#include "tensor/kernel.h"

#include <string.h>

static void end_library_build(tdm_graph *graph, const tdm_model_options *o, tdm_value logits)
{
    tdm_graph_scope(graph, NULL);
    tdm__library_check_logits(graph, o, logits);
}

/* Adds the backward part, with the job's recompute setting. */
static tdm_status add_gradients(tdm_graph *graph, const tdm_model_options *o, tdm_value loss,
                                tdm_error *err)
{
    static const tdm_recompute kinds[] = {[TDM_JOB_RECOMPUTE_NONE] = TDM_RECOMPUTE_NONE,
                                          [TDM_JOB_RECOMPUTE_BLOCKS] = TDM_RECOMPUTE_BLOCKS,
                                          [TDM_JOB_RECOMPUTE_FULL] = TDM_RECOMPUTE_FULL};
    TDM_TRY(tdm_graph_backward(graph, loss, err));
    return tdm_graph_recompute(graph, kinds[o->job->memory.recompute], err);
}

/* `loss` with the job's penalties. Lanes are added: each contributes its share of the batch's
 * rows. */
static tdm_value add_penalties(tdm_graph *graph, const tdm_model_options *o, tdm_value loss)
{
    const double scales[] = {o->job->train.l1, o->job->train.l2};
    double share = (double)o->batch * o->loss_scale;
    for (int power = 1; power <= 2; power++) {
        if (scales[power - 1] == 0) continue;
        for (size_t i = 0; i < tdm_graph_param_count(graph); i++) {
            const tdm_param_info *p = tdm_graph_param_at(graph, i);
            if (!p->trained || p->shape.rank < 2) continue;
            tdm_value w = tdm_graph_param_value(graph, i);
            tdm_value penalty = tdm_graph_penalty(graph, w, power, scales[power - 1] * share);
            loss = tdm_graph_add(graph, loss, penalty);
        }
    }
    return loss;
}

/* Adds the loss and the gradients. */
static tdm_status finish_training(tdm_graph *graph, const tdm_model_options *o, tdm_value logits,
                                  tdm_value classes, double scale, tdm_error *err)
{
    tdm_cross_entropy_options options = {.scale = scale,
                                         .label_smoothing = o->job->train.label_smoothing};
    tdm_value loss = tdm_graph_cross_entropy_with(graph, logits, classes, &options);
    loss = add_penalties(graph, o, loss);
    tdm_graph_output(graph, TDM_MODEL_LOSS, loss);
    return add_gradients(graph, o, loss, err);
}

static tdm_status build_for_tokens(tdm_graph *graph, const tdm_model_options *o,
                                   const tdm_model_ops *model, tdm_error *err)
{
    if (o->sample_shape.rank != 1) {
        char text[128];
        tdm_graph_refuse(graph, "the model %s takes windows of tokens, but a sample has shape %s",
                         model->name, tdm_shape_text(&o->sample_shape, text));
        return tdm_graph_check(graph, err);
    }
    int64_t T = o->sample_shape.dim[0];
    tdm_shape window = tdm_shape_2(o->batch, T);
    tdm_value x = tdm_graph_input(graph, TDM_MODEL_INPUT, TDM_DTYPE_I32, window);
    tdm_value logits = model->build(graph, o, x);
    if (o->library) end_library_build(graph, o, logits);
    tdm_graph_output(graph, TDM_MODEL_LOGITS, logits);
    if (!o->training) return tdm_graph_check(graph, err);
    tdm_value classes = tdm_graph_input(graph, TDM_MODEL_CLASSES, TDM_DTYPE_I32, window);
    return finish_training(graph, o, logits, classes, o->loss_scale / (double)T, err);
}

static tdm_status build_for_features(tdm_graph *graph, const tdm_model_options *o,
                                     const tdm_model_ops *model, tdm_error *err)
{
    int64_t features = tdm_shape_elements(&o->sample_shape);
    tdm_shape columns = tdm_shape_1(features);
    tdm_value raw = tdm_graph_input(graph, TDM_MODEL_INPUT, TDM_DTYPE_F32,
                                    tdm_shape_2(o->batch, features));
    tdm_value shift = tdm_graph_buffer(graph, TDM_MODEL_SHIFT, columns, (tdm_init){0});
    tdm_value scale = tdm_graph_buffer(graph, TDM_MODEL_SCALE, columns,
                                       (tdm_init){.kind = TDM_INIT_ONE});
    tdm_graph_scope(graph, "input");
    tdm_value x = tdm_graph_normalise(graph, raw, shift, scale);
    tdm_graph_scope(graph, NULL);
    tdm_value logits = model->build(graph, o, x);
    if (o->library) end_library_build(graph, o, logits);
    tdm_graph_output(graph, TDM_MODEL_LOGITS, logits);
    if (!o->training) {
        tdm_graph_output(graph, TDM_MODEL_PROBABILITIES, tdm_graph_softmax(graph, logits));
        return tdm_graph_check(graph, err);
    }
    tdm_value classes = tdm_graph_input(graph, TDM_MODEL_CLASSES, TDM_DTYPE_I32,
                                        tdm_shape_1(o->batch));
    return finish_training(graph, o, logits, classes, o->loss_scale, err);
}

/* Models of sparse samples: their input is what a sparse table computes from the samples. */
static tdm_status build_for_sparse(tdm_graph *graph, const tdm_model_options *o,
                                   const tdm_model_ops *model, tdm_error *err)
{
    if (o->class_count != 2) {
        tdm_graph_refuse(graph,
                         "the model %s predicts one of two classes, but the data has %lld; keep "
                         "the samples of two classes, or choose another model",
                         model->name, (long long)o->class_count);
        return tdm_graph_check(graph, err);
    }
    int64_t columns = tdm_job_columns_of(o->job).columns;
    tdm_value x = tdm_graph_input(graph, TDM_MODEL_INPUT, TDM_DTYPE_F32,
                                  tdm_shape_2(o->batch, columns));
    if (o->training) tdm_graph_trace_input(graph, x, TDM_MODEL_INPUT_GRADIENT);
    tdm_value logits = model->build(graph, o, x);
    tdm_graph_output(graph, TDM_MODEL_LOGITS, logits);
    if (!o->training) {
        tdm_graph_output(graph, TDM_MODEL_PROBABILITIES, tdm_graph_softmax(graph, logits));
        return tdm_graph_check(graph, err);
    }
    tdm_value classes = tdm_graph_input(graph, TDM_MODEL_CLASSES, TDM_DTYPE_I32,
                                        tdm_shape_1(o->batch));
    return finish_training(graph, o, logits, classes, o->loss_scale, err);
}

/* Everything except creating the graph, and opening and closing libraries. */
static tdm_status build_into(tdm_graph *graph, const tdm_model_options *options,
                             const tdm_model_ops *model, tdm_error *err)
{
    if (options->job->compute.precision == TDM_JOB_PRECISION_BF16)
        tdm_graph_precision(graph, TDM_DTYPE_BF16);
    if (options->job->parallel.zero == 3) tdm_graph_round_again(graph);
    bool takes_tokens = options->library ? options->library->takes_tokens
                                         : tdm_job_takes_tokens(options->job);
    if (tdm_job_takes_sparse(options->job)) return build_for_sparse(graph, options, model, err);
    return takes_tokens ? build_for_tokens(graph, options, model, err)
                        : build_for_features(graph, options, model, err);
}

static tdm_status build_with(const tdm_model_options *options, const tdm_model_ops *model,
                             tdm_graph **out, tdm_error *err)
{
    tdm_graph *graph = tdm_graph_create();
    if (!graph) return tdm_fail_oom(err, "for the graph");
    tdm_status status = build_into(graph, options, model, err);
    if (status != TDM_OK) {
        tdm_graph_destroy(graph);
        return status;
    }
    *out = graph;
    return TDM_OK;
}

static void close_library(void *handle)
{
    tdm_shared_object_close(&(tdm_shared_object){handle});
}

/* Checks that the graph has the same parameters as all graphs of its model. */
static tdm_status check_params(const tdm_model_options *options, const tdm_model_ops *model,
                               const tdm_graph *graph, tdm_error *err)
{
    tdm_model_options one_row = *options;
    one_row.batch = 1;
    one_row.training = false;
    tdm_graph *reference = NULL;
    TDM_TRY(build_with(&one_row, model, &reference, err));
    tdm_status status = tdm__library_compare(graph, reference, options, err);
    tdm_graph_destroy(reference);
    return status;
}

/* The graph keeps the library before anything is built: objects are released in reverse order, so
 * the code is still loaded when objects that the library added to the graph are released. */
static tdm_status build_from_library(const tdm_model_options *options, tdm_graph **out,
                                     tdm_error *err)
{
    tdm__library library;
    TDM_TRY(tdm__library_open(options->job, &library, err));
    const tdm_model_ops model = {.name = library.model->name, .build = library.model->build};
    tdm_model_options o = *options;
    o.library = library.model;
    tdm_graph *graph = tdm_graph_create();
    if (!graph) {
        tdm_shared_object_close(&library.object);
        return tdm_fail_oom(err, "for the graph");
    }
    tdm_status status = tdm_graph_keep(graph, close_library, library.object.handle, err);
    if (status != TDM_OK) {
        tdm_graph_destroy(graph);
        return status;
    }
    status = build_into(graph, &o, &model, err);
    if (status == TDM_OK) status = check_params(&o, &model, graph, err);
    if (status != TDM_OK) {
        tdm_error_context(err, status, "%s: the model %s", options->job->model.library, model.name);
        tdm_graph_destroy(graph); /* and the library, which owns the name */
        return status;
    }
    *out = graph;
    return TDM_OK;
}

tdm_status tdm_model_build(const tdm_model_options *options, tdm_graph **out, tdm_error *err)
{
    if (options->class_count < 2)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "model: the data has %lld classes; at least 2 are needed",
                        (long long)options->class_count);
    if (options->job->model.kind == TDM_JOB_MODEL_LIBRARY)
        return build_from_library(options, out, err);
    const tdm_model_ops *model = tdm__model_find(options->job->model.kind);
    if (!model) return tdm_fail(err, TDM_ERR_UNSUPPORTED, "model: unknown kind");
    tdm_model_options o = *options;
    o.library = NULL;
    tdm_status status = build_with(&o, model, out, err);
    if (status != TDM_ERR_INVALID) return status;
    if (err)
        err->status = TDM_ERR_JOB_INVALID; /* built-in models are correct: the job's shapes are
                                            * not */
    return TDM_ERR_JOB_INVALID;
}

tdm_status tdm_model_check(const tdm_job *job, tdm_error *err)
{
    tdm__library library;
    if (job->model.kind == TDM_JOB_MODEL_LIBRARY) {
        TDM_TRY(tdm__library_open(job, &library, err));
        tdm_shared_object_close(&library.object);
        return TDM_OK;
    }
    if (!tdm__model_find(job->model.kind))
        return tdm_fail(err, TDM_ERR_UNSUPPORTED, "model: unknown kind");
    return TDM_OK;
}

tdm_model_options tdm_model_of_lane(const tdm_model_options *model, int64_t rows, int64_t batch)
{
    tdm_model_options m = *model;
    m.batch = rows;
    m.training = true;
    m.loss_scale = 1.0 / (double)batch;
    m.whole_batch = batch;
    return m;
}

int tdm_model_threads(const tdm_model_options *options)
{
    const tdm_job *job = options->job;
    if (job->compute.threads > 0) return (int)job->compute.threads;
    bool is_vendor = job->compute.numerics == TDM_JOB_NUMERICS_VENDOR;
    return options->threads > 1 && !is_vendor ? options->threads : 1;
}

tdm_plan_options tdm_model_plan_options(const tdm_model_options *options)
{
    const tdm_job *job = options->job;
    return (tdm_plan_options){.backend = job->compute.backend == TDM_JOB_BACKEND_REF ? "ref" : NULL,
                              .numerics = job->compute.numerics == TDM_JOB_NUMERICS_VENDOR
                                              ? TDM_NUMERICS_VENDOR
                                              : TDM_NUMERICS_PORTABLE,
                              .threads = tdm_model_threads(options)};
}

int64_t tdm_model_eval_rows(const tdm_model_options *options)
{
    int64_t rows = options->job->eval.batch;
    if (tdm_model_takes_tokens(options->job)) {
        int64_t T = tdm_shape_elements(&options->sample_shape);
        rows = T > 0 ? rows / T : rows;
    }
    return rows > 1 ? rows : 1;
}

static void param_draw(const tdm_init *init, tdm_rng_address address, size_t first, float *out,
                       size_t count)
{
    if (init->kind == TDM_INIT_UNIFORM) {
        tdm_kernel_uniform(address, init->scale, first, out, count);
    } else {
        tdm_kernel_normal(address, init->scale, first, out, count);
    }
}

/* Starts at any index: the block of random numbers that contains `first` is drawn separately. */
static void draw_part(const tdm_init *init, tdm_rng_address address, size_t first, float *out,
                      size_t count)
{
    size_t skip = first % TDM_KERNEL_RANDOM_BLOCK;
    if (skip > 0) {
        float block[TDM_KERNEL_RANDOM_BLOCK];
        size_t some = TDM_KERNEL_RANDOM_BLOCK - skip < count ? TDM_KERNEL_RANDOM_BLOCK - skip
                                                             : count;
        param_draw(init, address, first - skip, block, TDM_KERNEL_RANDOM_BLOCK);
        memcpy(out, block + skip, some * sizeof(float));
        first += some;
        out += some;
        count -= some;
    }
    if (count > 0) param_draw(init, address, first, out, count);
}

void tdm_model_init_part(const tdm_graph *graph, uint64_t seed, size_t param_index, size_t first,
                         size_t count, float *out)
{
    const tdm_init *init = &tdm_graph_param_at(graph, param_index)->init;
    tdm_rng_address address = {
        .seed = seed, .stream = TDM_RNG_STREAM_INIT, .sub_stream = (uint32_t)param_index};
    switch (init->kind) {
    case TDM_INIT_ZERO:
    case TDM_INIT_ONE:
        for (size_t i = 0; i < count; i++) out[i] = init->kind == TDM_INIT_ONE;
        break;
    case TDM_INIT_UNIFORM:
    case TDM_INIT_NORMAL: draw_part(init, address, first, out, count); break;
    }
}

void tdm_model_init(const tdm_graph *graph, uint64_t seed, float *params)
{
    for (size_t i = 0; i < tdm_graph_param_count(graph); i++) {
        const tdm_param_info *p = tdm_graph_param_at(graph, i);
        tdm_model_init_part(graph, seed, i, 0, p->elements, params + p->offset);
    }
}

tdm_tensor tdm_model_param(const tdm_graph *graph, const char *name, float *params)
{
    for (size_t i = 0; i < tdm_graph_param_count(graph); i++) {
        const tdm_param_info *p = tdm_graph_param_at(graph, i);
        if (strcmp(p->name, name) == 0)
            return (tdm_tensor){
                .dtype = TDM_DTYPE_F32, .shape = p->shape, .data = params + p->offset};
    }
    return (tdm_tensor){.dtype = TDM_DTYPE_NONE};
}
