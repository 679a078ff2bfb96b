/* table.c: the list of optimisers, once for each level. */
#include "optim/vec/vec.h"

static const tdm_optim_ops *const by_kind[] = {
    [TDM_JOB_OPTIM_SGD] = &TDM__AT_LEVEL(tdm__optim_sgd),
    [TDM_JOB_OPTIM_ADAGRAD] = &TDM__AT_LEVEL(tdm__optim_adagrad),
    [TDM_JOB_OPTIM_RMSPROP] = &TDM__AT_LEVEL(tdm__optim_rmsprop),
    [TDM_JOB_OPTIM_ADAM] = &TDM__AT_LEVEL(tdm__optim_adam),
    [TDM_JOB_OPTIM_ADAMW] = &TDM__AT_LEVEL(tdm__optim_adamw),
    [TDM_JOB_OPTIM_LAMB] = &TDM__AT_LEVEL(tdm__optim_lamb),
    [TDM_JOB_OPTIM_LION] = &TDM__AT_LEVEL(tdm__optim_lion),
};

const tdm__optim_list TDM__AT_LEVEL(tdm__optims) = {
    .level = TDM__LEVEL,
    .by_kind = by_kind,
    .count = sizeof(by_kind) / sizeof(by_kind[0]),
    .loops = &TDM__AT_LEVEL(tdm__optim_loops),
};
