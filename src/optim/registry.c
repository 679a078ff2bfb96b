/* registry.c: selects the optimisers compiled for this CPU (vec/table.c lists them). */
#include "optim/internal.h"
#include "tensor/kernel.h"

const tdm__optim_list *tdm__optims_at(int level)
{
#if defined(__x86_64__)
    return level >= 4 ? &tdm__optims_4 : level == 3 ? &tdm__optims_3 : &tdm__optims_2;
#else
    (void)level;
    return &tdm__optims_0;
#endif
}

const tdm__optim_list *tdm__optims_here(void)
{
    return tdm__optims_at(tdm_kernel_level());
}

const tdm_optim_ops *tdm_optim_find(int kind)
{
    const tdm__optim_list *list = tdm__optims_here();
    return kind < 0 || (size_t)kind >= list->count ? NULL : list->by_kind[kind];
}

tdm_optim_settings tdm_optim_settings_of(const tdm_job *job)
{
    return (tdm_optim_settings){.lr = job->optim.lr,
                                .momentum = job->optim.momentum,
                                .nesterov = job->optim.nesterov,
                                .beta1 = job->optim.beta1,
                                .beta2 = job->optim.beta2,
                                .alpha = job->optim.alpha,
                                .centred = job->optim.centred,
                                .eps = job->optim.eps,
                                .weight_decay = job->optim.weight_decay};
}

bool tdm_optim_uses_state(const tdm_optim_ops *ops, const tdm_optim_settings *settings, int state)
{
    return state < ops->state_count && (!ops->uses_state || ops->uses_state(settings, state));
}
