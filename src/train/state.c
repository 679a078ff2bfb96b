/*
 * state.c: the numbers that training changes, where they lie, and how they begin.
 *
 * One block of pages holds the parameters (with the buffers behind them) and then each of the
 * optimiser's states, all in the layout of the graph. Names in checkpoints: a parameter has its own,
 * a state of it is "optim.STATE.PARAMETER".
 */
#include "train/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN_ELEMENTS = 16 };

static size_t round_up(size_t elements)
{
    return (elements + ALIGN_ELEMENTS - 1) / ALIGN_ELEMENTS * ALIGN_ELEMENTS;
}

static tdm_status name_tensors(tdm__state *s, tdm_error *err)
{
    size_t params = tdm_graph_param_count(s->graph);
    int state_count = s->optim ? s->optim->state_count : 0;
    s->tensors = tdm_arena_array(s->arena, params * (size_t)(1 + state_count), sizeof(*s->tensors));
    if (!s->tensors) return tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory");
    for (size_t i = 0; i < params; i++) {
        const tdm_param_info *p = tdm_graph_param_at(s->graph, i);
        tdm_tensor view = {
            .dtype = TDM_DTYPE_F32, .shape = p->shape, .data = s->params + p->offset};
        s->tensors[s->tensor_count++] = (tdm_named_tensor){p->name, view};
        for (int k = 0; k < state_count && p->trained; k++) {
            char *name = tdm_arena_printf(s->arena, "optim.%s.%s", s->optim->state_names[k],
                                          p->name);
            if (!name) return tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory");
            view.data = s->states[k] + p->offset;
            s->tensors[s->tensor_count++] = (tdm_named_tensor){name, view};
        }
    }
    return TDM_OK;
}

tdm_status tdm__state_init(const tdm_model_options *model, const tdm_optim_ops *optim,
                           tdm__state *out, tdm_error *err)
{
    tdm__state s = {.optim = optim};
    tdm_model_options one_row = *model;
    one_row.batch = 1;
    one_row.training = false;
    s.arena = tdm_arena_create("training state");
    tdm_status status = s.arena
                            ? TDM_OK
                            : tdm_fail(err, TDM_ERR_NO_MEMORY, "train: no memory for the state");
    if (status == TDM_OK) status = tdm_model_build(&one_row, &s.graph, err);
    if (status == TDM_OK) {
        int state_count = optim ? optim->state_count : 0;
        size_t params = round_up(tdm_graph_param_extent(s.graph));
        size_t trained = round_up(tdm_graph_trained_extent(s.graph));
        size_t elements = params + (size_t)state_count * trained;
        status = tdm_pages_map(elements * sizeof(float), true, &s.pages, err);
        s.params = s.pages.data;
        for (int k = 0; k < state_count && status == TDM_OK; k++)
            s.states[k] = s.params + params + (size_t)k * trained;
    }
    if (status == TDM_OK) status = name_tensors(&s, err);
    if (status != TDM_OK) {
        tdm__state_release(&s);
        return status;
    }
    *out = s;
    return TDM_OK;
}

void tdm__state_release(tdm__state *state)
{
    tdm_graph_destroy(state->graph);
    tdm_pages_unmap(&state->pages);
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
    if (how == TDM_JOB_NORMALISE_NONE) return TDM_OK;
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
    return TDM_OK;
}

tdm_status tdm__state_restore(tdm__state *state, const tdm_checkpoint *checkpoint, tdm_error *err)
{
    for (size_t i = 0; i < state->tensor_count; i++) {
        const tdm_named_tensor *to = &state->tensors[i];
        const tdm_named_tensor *from = tdm_checkpoint_find(checkpoint, to->name);
        if (!from)
            return tdm_fail(err, TDM_ERR_JOB_MISMATCH,
                            "the checkpoint has no tensor '%s', which this job's model needs",
                            to->name);
        TDM_TRY(copy_in(from, &to->tensor, "the checkpoint", TDM_ERR_JOB_MISMATCH, err));
    }
    return TDM_OK;
}

const char *tdm__state_find_bad(const tdm__state *state)
{
    for (size_t i = 0; i < state->tensor_count; i++) {
        const float *numbers = state->tensors[i].tensor.data;
        int64_t count = tdm_tensor_elements(&state->tensors[i].tensor);
        for (int64_t k = 0; k < count; k++)
            if (!isfinite(numbers[k])) return state->tensors[i].name;
    }
    return NULL;
}
