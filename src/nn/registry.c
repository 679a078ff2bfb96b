/* registry.c: the visible list of named architectures. */
#include "nn/internal.h"

static const tdm_model_ops *const models[] = {
    [TDM_JOB_MODEL_MLP] = &tdm__model_mlp,
};

const tdm_model_ops *tdm__model_find(int kind)
{
    if (kind < 0 || (size_t)kind >= sizeof(models) / sizeof(models[0])) return NULL;
    return models[kind];
}
