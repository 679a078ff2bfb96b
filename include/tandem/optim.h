/*
 * optim.h: optimisers: from gradients to new parameters.
 *
 * An update works on any range of the block of parameters by itself, because it treats each number
 * alone. So the work can be cut anywhere and given to anybody without changing a bit.
 */
#ifndef TANDEM_OPTIM_H
#define TANDEM_OPTIM_H

#include <tandem/base.h>
#include <tandem/job.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TDM_OPTIM_MAX_STATES = 2 };

typedef struct tdm_optim_settings {
    double lr;
    double momentum;
    bool nesterov;
    double beta1;
    double beta2;
    double eps;
    double weight_decay;
} tdm_optim_settings;

/* A range of numbers: all arrays have `count` elements. */
typedef struct tdm_optim_range {
    size_t count;
    const float *grad;
    float *param;
    float *state[TDM_OPTIM_MAX_STATES];
} tdm_optim_range;

typedef struct tdm_optim_ops {
    const char *name;
    int state_count;
    const char *state_names[TDM_OPTIM_MAX_STATES]; /* as they are named in checkpoints */
    /* `step` counts from 1. State begins at zero. */
    void (*update)(const tdm_optim_settings *settings, uint64_t step, const tdm_optim_range *range);
} tdm_optim_ops;

TDM_API const tdm_optim_ops *tdm_optim_find(int kind); /* a tdm_job_optim */
TDM_API tdm_optim_settings tdm_optim_settings_of(const tdm_job *job);

#ifdef __cplusplus
}
#endif
#endif
