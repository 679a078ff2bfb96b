/* registry.c: the list of named architectures, without those of libraries. */
#include "job/job.h"
#include "nn/internal.h"

static const tdm_model_ops *const models[] = {
    [TDM_JOB_MODEL_MLP] = &tdm__model_mlp,       [TDM_JOB_MODEL_CNN] = &tdm__model_cnn,
    [TDM_JOB_MODEL_RESNET] = &tdm__model_resnet, [TDM_JOB_MODEL_GPT] = &tdm__model_gpt,
    [TDM_JOB_MODEL_LAYERS] = &tdm__model_layers, [TDM_JOB_MODEL_LR] = &tdm__model_lr,
    [TDM_JOB_MODEL_FM] = &tdm__model_fm,         [TDM_JOB_MODEL_WIDE_DEEP] = &tdm__model_wide_deep,
    [TDM_JOB_MODEL_DLRM] = &tdm__model_dlrm,
};

const tdm_model_ops *tdm__model_find(int kind)
{
    if (kind < 0 || (size_t)kind >= sizeof(models) / sizeof(models[0])) return NULL;
    return models[kind];
}

bool tdm_model_takes_tokens(const tdm_job *job)
{
    if (job->model.kind == TDM_JOB_MODEL_LIBRARY) return tdm__library_takes_tokens(job);
    return tdm_job_takes_tokens(job);
}
