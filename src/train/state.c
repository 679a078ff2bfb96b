/*
 * state.c: the numbers that training changes, where they lie, and how they begin.
 *
 * A store holds the parameters (with the buffers behind them), each of the optimiser's states and the
 * average of the weights, all in the layout of the graph. Names in
 * checkpoints: a parameter has its own, a state of it is "optim.STATE.PARAMETER", its average
 * "ema.PARAMETER". What evaluations have said are small tensors of doubles, "schedule.plateau" and
 * "train.early_stop"; the steps that were skipped are counted in "train.bad_numbers". The first of
 * these decides bits and must be in a checkpoint when the job needs it; the others decide only where
 * a run ends, and begin anew when a checkpoint does not have them.
 */
#include "train/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLATEAU_NUMBERS = sizeof(tdm_plateau) / sizeof(double) };
#define PLATEAU_NAME "schedule.plateau"
#define EARLY_STOP_NAME "train.early_stop"
enum { SKIPS_NUMBERS = sizeof(tdm__skips) / sizeof(double) };
#define SKIPS_NAME "train.bad_numbers"

/* The tensor is called PREFIX.NAME, or NAME when the prefix is empty. */
static tdm_status add_tensor(tdm__state *s, const char *prefix, const char *name, tdm_dtype dtype,
                             tdm_shape shape, void *data, tdm_error *err)
{
    const char *full = prefix[0] ? tdm_arena_printf(s->arena, "%s.%s", prefix, name) : name;
    if (!full) return tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory");
    tdm_tensor view = {.dtype = dtype, .shape = shape, .data = data};
    s->tensors[s->tensor_count++] = (tdm_named_tensor){full, view};
    return TDM_OK;
}

static tdm_status name_param(tdm__state *s, const tdm_param_info *p, tdm_error *err)
{
    TDM_TRY(add_tensor(s, "", p->name, TDM_DTYPE_F32, p->shape, s->params + p->offset, err));
    if (!p->trained) return TDM_OK;
    for (int k = 0; k < TDM_OPTIM_MAX_STATES; k++) {
        if (!s->states[k]) continue;
        char prefix[64];
        snprintf(prefix, sizeof(prefix), "optim.%s",
                 tdm_optimiser_ops(s->optimiser)->state_names[k]);
        TDM_TRY(
            add_tensor(s, prefix, p->name, TDM_DTYPE_F32, p->shape, s->states[k] + p->offset, err));
    }
    if (!s->ema) return TDM_OK;
    return add_tensor(s, "ema", p->name, TDM_DTYPE_F32, p->shape, s->ema + p->offset, err);
}

static tdm_status name_tensors(tdm__state *s, const tdm_job *job, tdm_error *err)
{
    size_t params = tdm_graph_param_count(s->graph);
    s->tensors = tdm_arena_array(s->arena, params * (2 + TDM_OPTIM_MAX_STATES) + 3,
                                 sizeof(*s->tensors));
    if (!s->tensors) return tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory");
    for (size_t i = 0; i < params; i++)
        TDM_TRY(name_param(s, tdm_graph_param_at(s->graph, i), err));
    if (s->optimiser && job->schedule.kind == TDM_JOB_SCHEDULE_REDUCE_ON_PLATEAU)
        TDM_TRY(add_tensor(s, "", PLATEAU_NAME, TDM_DTYPE_F64, tdm_shape_1(PLATEAU_NUMBERS),
                           &s->plateau, err));
    if (s->optimiser && job->train.early_stop)
        TDM_TRY(add_tensor(s, "", EARLY_STOP_NAME, TDM_DTYPE_F64, tdm_shape_1(PLATEAU_NUMBERS),
                           &s->early_stop, err));
    if (s->optimiser && job->train.bad_numbers == TDM_JOB_BAD_NUMBERS_SKIP)
        TDM_TRY(add_tensor(s, "", SKIPS_NAME, TDM_DTYPE_F64, tdm_shape_1(SKIPS_NUMBERS), &s->skips,
                           err));
    return TDM_OK;
}

static tdm_status make_optimiser(tdm__state *s, const tdm_job *job, tdm_error *err)
{
    size_t count = tdm_graph_param_count(s->graph), trained = 0;
    tdm_optim_param *params = tdm_arena_array(s->arena, count + 1, sizeof(*params));
    if (!params) return tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory");
    for (size_t i = 0; i < count; i++) {
        const tdm_param_info *p = tdm_graph_param_at(s->graph, i);
        if (p->trained)
            params[trained++] = (tdm_optim_param){
                .name = p->name, .offset = p->offset, .elements = p->elements};
    }
    return tdm_optimiser_create(job, params, trained, &s->optimiser, err);
}

/* Makes the store and finds its blocks. */
static tdm_status make_store(tdm__state *s, const tdm_job *job, tdm_comm *comm, tdm_error *err)
{
    size_t bucket = (size_t)job->parallel.bucket;
    if (bucket == 0)
        TDM_TRY(
            tdm_bucket_choose(comm, tdm_graph_grad_extent(s->graph) * sizeof(float), &bucket, err));
    tdm_store_options options = {.graph = s->graph,
                                 .optimiser = s->optimiser,
                                 .has_ema = s->optimiser && job->optim.ema > 0,
                                 .comm = comm,
                                 .zero = (int)job->parallel.zero,
                                 .offload = s->optimiser ? job->parallel.offload : NULL,
                                 .bucket_bytes = bucket};
    TDM_TRY(tdm_store_create(&options, &s->store, err));
    s->params = tdm_store_block(s->store, TDM_BLOCK_PARAMS);
    s->ema = tdm_store_block(s->store, TDM_BLOCK_EMA);
    for (int k = 0; k < TDM_OPTIM_MAX_STATES; k++)
        s->states[k] = tdm_store_block(s->store, TDM_BLOCK_STATE + k);
    return TDM_OK;
}

tdm_status tdm__state_init(const tdm_model_options *model, tdm__state_use use, tdm_comm *comm,
                           tdm__state *out, tdm_error *err)
{
    tdm__state *s = out;
    *s = (tdm__state){0};
    tdm_model_options one_row = *model;
    one_row.batch = 1;
    one_row.training = false;
    s->arena = tdm_arena_create("training state");
    tdm_status status = s->arena
                            ? TDM_OK
                            : tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory for the state");
    if (status == TDM_OK) status = tdm_model_build(&one_row, &s->graph, err);
    if (status == TDM_OK && use == TDM__STATE_FOR_TRAINING)
        status = make_optimiser(s, model->job, err);
    if (status == TDM_OK) status = make_store(s, model->job, comm, err);
    if (status == TDM_OK) status = name_tensors(s, model->job, err);
    if (status != TDM_OK) tdm__state_release(s);
    return status;
}

void tdm__state_release(tdm__state *state)
{
    tdm_store_destroy(state->store);
    tdm_optimiser_destroy(state->optimiser);
    tdm_graph_destroy(state->graph);
    tdm_arena_destroy(state->arena);
    *state = (tdm__state){0};
}

/* ---- first values ---------------------------------------------------------------------------- */

static tdm_status set_normalisation(tdm__state *s, const tdm_job *job, const tdm_dataset *train,
                                    tdm_error *err)
{
    const tdm_dataset_info *info = tdm_dataset_info_of(train);
    float *shift = tdm_model_param(s->graph, TDM_MODEL_SHIFT, s->params).data;
    float *scale = tdm_model_param(s->graph, TDM_MODEL_SCALE, s->params).data;
    int64_t F = info->feature_count;
    int how = job->data.normalise;
    if (how == TDM_JOB_NORMALISE_NONE || info->kind == TDM_DATA_KIND_TOKENS) return TDM_OK;
    if (how == TDM_JOB_NORMALISE_SCALE ||
        (how == TDM_JOB_NORMALISE_AUTO && info->storage == TDM_DTYPE_U8)) {
        double largest = info->storage == TDM_DTYPE_U8 ? 255.0 : tdm_dataset_largest(train);
        for (int64_t i = 0; i < F && largest > 0; i++) scale[i] = (float)(1.0 / largest);
        return TDM_OK;
    }
    double *moments = calloc(2 * (size_t)F, sizeof(*moments));
    if (!moments) return tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory for the normalisation");
    tdm_dataset_moments(train, moments, moments + F);
    for (int64_t i = 0; i < F; i++) {
        double mean = moments[i], deviation = moments[F + i];
        /* A column that never varies in training can tell nothing: it is switched off. */
        bool varies = deviation > 1e-9 * (fabs(mean) + 1.0);
        shift[i] = (float)mean;
        scale[i] = varies ? (float)(1.0 / deviation) : 0.0f;
    }
    free(moments);
    return TDM_OK;
}

/* `misfit` is the status for a tensor of another shape. */
static tdm_status copy_in(const tdm_named_tensor *from, const tdm_tensor *to, const char *file,
                          tdm_status misfit, tdm_error *err)
{
    char have[128], want[128];
    if (!tdm_shape_equal(&from->tensor.shape, &to->shape))
        return tdm_fail(err, misfit, "%s: tensor '%s' has shape %s; this model's has %s", file,
                        from->name, tdm_shape_text(&from->tensor.shape, have),
                        tdm_shape_text(&to->shape, want));
    if (to->dtype == TDM_DTYPE_F64) { /* not a parameter: it is kept as it is */
        if (from->tensor.dtype != TDM_DTYPE_F64)
            return tdm_fail(err, TDM_ERR_FORMAT, "%s: tensor '%s' is of type %s; it must be f64",
                            file, from->name, tdm_dtype_name(from->tensor.dtype));
        memcpy(to->data, from->tensor.data, tdm_tensor_bytes(to));
        return TDM_OK;
    }
    if (!tdm_tensor_to_f32(from->tensor.dtype, from->tensor.data, tdm_tensor_elements(to),
                           to->data))
        return tdm_fail(err, TDM_ERR_UNSUPPORTED,
                        "%s: tensor '%s' is of type %s; parameters need a floating type", file,
                        from->name, tdm_dtype_name(from->tensor.dtype));
    return TDM_OK;
}

static tdm_status init_from_file(tdm__state *s, const char *path, tdm_error *err)
{
    tdm_safetensors *file;
    TDM_TRY(tdm_safetensors_open(path, &file, err));
    size_t found = 0, count = tdm_graph_param_count(s->graph);
    tdm_status status = TDM_OK;
    for (size_t i = 0; i < count && status == TDM_OK; i++) {
        const char *name = tdm_graph_param_at(s->graph, i)->name;
        const tdm_named_tensor *from = tdm_safetensors_find(file, name);
        if (!from) continue;
        tdm_tensor to = tdm_model_param(s->graph, name, s->params);
        status = copy_in(from, &to, path, TDM_ERR_JOB_INVALID, err);
        found++;
    }
    if (status == TDM_OK && found == 0)
        status = tdm_fail(
            err, TDM_ERR_JOB_INVALID,
            "%s: none of its %zu tensors has the name of a parameter of this model (the "
            "first is '%s'); see 'tandem inspect' for both",
            path, tdm_safetensors_count(file), tdm_graph_param_at(s->graph, 0)->name);
    if (status == TDM_OK) s->from_file_count = found;
    tdm_safetensors_destroy(file);
    return status;
}

tdm_status tdm__state_begin(tdm__state *state, const tdm_job *job, const tdm_dataset *train,
                            tdm_error *err)
{
    tdm_model_init(state->graph, (uint64_t)job->seed, state->params);
    TDM_TRY(set_normalisation(state, job, train, err));
    if (job->model.init_from) TDM_TRY(init_from_file(state, job->model.init_from, err));
    if (state->ema) /* the average begins where the weights do */
        memcpy(state->ema, state->params, tdm_graph_param_extent(state->graph) * sizeof(float));
    return TDM_OK;
}

/* The tensor of a checkpoint from which `name` is restored; NULL when it has none. */
static const tdm_named_tensor *find_source(const tdm_checkpoint *checkpoint, const char *name,
                                           bool averaged)
{
    char average[512];
    if (averaged && snprintf(average, sizeof(average), "ema.%s", name) < (int)sizeof(average)) {
        const tdm_named_tensor *found = tdm_checkpoint_find(checkpoint, average);
        if (found) return found; /* buffers have none */
    }
    return tdm_checkpoint_find(checkpoint, name);
}

/* Whether a run may go on from a checkpoint without this tensor. */
static bool begins_anew(const char *name)
{
    return strcmp(name, EARLY_STOP_NAME) == 0 || strcmp(name, SKIPS_NAME) == 0;
}

tdm_status tdm__state_restore(tdm__state *state, const tdm_checkpoint *checkpoint, bool averaged,
                              tdm_error *err)
{
    for (size_t i = 0; i < state->tensor_count; i++) {
        const tdm_named_tensor *to = &state->tensors[i];
        const tdm_named_tensor *from = find_source(checkpoint, to->name, averaged);
        if (!from && begins_anew(to->name)) continue;
        if (!from)
            return tdm_fail(err, TDM_ERR_JOB_MISMATCH,
                            "the checkpoint has no tensor '%s', which this job's model needs",
                            to->name);
        TDM_TRY(copy_in(from, &to->tensor, "the checkpoint", TDM_ERR_JOB_MISMATCH, err));
    }
    return TDM_OK;
}

/* ---- averages -------------------------------------------------------------------------------- */

bool tdm__job_averages(const tdm_job *job)
{
    return job->optim.ema > 0 && job->eval.weights != TDM_JOB_WEIGHTS_RAW;
}

float *tdm__state_measured(tdm__state *state, const tdm_job *job)
{
    if (!state->ema || !tdm__job_averages(job)) return state->params;
    size_t trained = tdm_graph_trained_extent(state->graph);
    size_t all = tdm_graph_param_extent(state->graph);
    memcpy(state->ema + trained, state->params + trained, (all - trained) * sizeof(float));
    return state->ema;
}

const char *tdm__state_find_bad(const tdm__state *state)
{
    for (size_t i = 0; i < state->tensor_count; i++) {
        if (state->tensors[i].tensor.dtype != TDM_DTYPE_F32) continue;
        const float *numbers = state->tensors[i].tensor.data;
        int64_t count = tdm_tensor_elements(&state->tensors[i].tensor);
        for (int64_t k = 0; k < count; k++)
            if (!isfinite(numbers[k])) return state->tensors[i].name;
    }
    return NULL;
}
