/*
 * presets.c: sets keys that were not given but follow from others: the sizes of 'model.preset', and
 * 'model.kind' from a list of layers.
 *
 * A preset is a set of defaults: it does not change keys that were given. A job that is shown and
 * parsed again has all of these keys, so it stays the same job.
 */
#include "job/internal.h"

typedef struct preset {
    int64_t layers, width, heads, context, vocabulary;
} preset;

/* Indexed by tdm_job_preset. */
static const preset presets[] = {
    [TDM_JOB_PRESET_GPT2] = {12, 768, 12, 1024, 50257},
    [TDM_JOB_PRESET_GPT2_MEDIUM] = {24, 1024, 16, 1024, 50257},
    [TDM_JOB_PRESET_GPT2_LARGE] = {36, 1280, 20, 1024, 50257},
    [TDM_JOB_PRESET_GPT2_XL] = {48, 1600, 25, 1024, 50257},
};

static void preset_set(const tdm__loader *loader, const char *key, int64_t *field, int64_t value)
{
    if (!loader->slots[tdm__key_find(key)].node) *field = value;
}

void tdm__presets_apply(tdm__loader *loader)
{
    tdm_job *job = loader->job;
    if (loader->slots[tdm__key_find("layers")].node &&
        !loader->slots[tdm__key_find("model.kind")].node)
        job->model.kind = TDM_JOB_MODEL_LAYERS;
    if (!loader->slots[tdm__key_find("model.preset")].ok ||
        job->model.preset == TDM_JOB_PRESET_NONE)
        return;
    const preset *p = &presets[job->model.preset];
    preset_set(loader, "model.layers", &job->model.layers, p->layers);
    preset_set(loader, "model.width", &job->model.width, p->width);
    preset_set(loader, "model.heads", &job->model.heads, p->heads);
    preset_set(loader, "model.context", &job->model.context, p->context);
    preset_set(loader, "model.vocabulary", &job->model.vocabulary, p->vocabulary);
}
