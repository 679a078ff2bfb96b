/* registry.c: the visible list of optimisers. */
#include "optim/internal.h"

static const tdm_optim_ops *const optimisers[] = {
    [TDM_JOB_OPTIM_SGD] = &tdm__optim_sgd,
    [TDM_JOB_OPTIM_ADAMW] = &tdm__optim_adamw,
};

const tdm_optim_ops *tdm_optim_find(int kind)
{
    if (kind < 0 || (size_t)kind >= sizeof(optimisers) / sizeof(optimisers[0])) return NULL;
    return optimisers[kind];
}

tdm_optim_settings tdm_optim_settings_of(const tdm_job *job)
{
    return (tdm_optim_settings){.lr = job->optim.lr,
                                .momentum = job->optim.momentum,
                                .nesterov = job->optim.nesterov,
                                .beta1 = job->optim.beta1,
                                .beta2 = job->optim.beta2,
                                .eps = job->optim.eps,
                                .weight_decay = job->optim.weight_decay};
}
