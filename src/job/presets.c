/*
 * presets.c: what keys that were not given are because of those that were.
 *
 * Published sizes of models have names, and a list of layers says by itself which model it is for.
 * A preset is a set of defaults: it fills the keys that were not given, and what was given stays. A
 * job that is shown and read again has all of them given, and so is the same job.
 */
#include "job/internal.h"

typedef struct preset {
    int64_t layers, width, heads, context, vocabulary;
} preset;

/* By tdm_job_preset. */
static const preset presets[] = {
    [TDM_JOB_PRESET_GPT2] = {12, 768, 12, 1024, 50257},
    [TDM_JOB_PRESET_GPT2_MEDIUM] = {24, 1024, 16, 1024, 50257},
    [TDM_JOB_PRESET_GPT2_LARGE] = {36, 1280, 20, 1024, 50257},
    [TDM_JOB_PRESET_GPT2_XL] = {48, 1600, 25, 1024, 50257},
};

static void set(const tdm__loader *loader, const char *key, int64_t *field, int64_t value)
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
    set(loader, "model.layers", &job->model.layers, p->layers);
    set(loader, "model.width", &job->model.width, p->width);
    set(loader, "model.heads", &job->model.heads, p->heads);
    set(loader, "model.context", &job->model.context, p->context);
    set(loader, "model.vocabulary", &job->model.vocabulary, p->vocabulary);
}
