/*
 * optim.h: the table of optimisation methods.
 *
 * An entry of the table (tdm_optim_ops) implements one method on a range of numbers. docs/ARCHITECTURE.md shows
 * where to add one.
 */
#ifndef TANDEM_OPTIM_H
#define TANDEM_OPTIM_H

#include <tandem/base.h>
#include <tandem/job.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- methods ---------------------------------------------------------------------------------- */

enum { TDM_OPTIM_MAX_STATES = 3, TDM_OPTIM_SUMS = 2 };

typedef struct tdm_optim_settings {
    double lr;
    double momentum;
    bool nesterov;
    double beta1;
    double beta2;
    double alpha;
    bool centred;
    double eps;
    double weight_decay;
} tdm_optim_settings;

/* A range of numbers: all arrays have `count` elements. A state that is not used may be NULL. */
typedef struct tdm_optim_range {
    size_t count;
    const float *grad;
    float *param;
    float *state[TDM_OPTIM_MAX_STATES];
    float *direction; /* for prepare() and apply(); may be equal to `grad` */
} tdm_optim_range;

/*
 * A method has either update(), which processes each number independently, or prepare() and
 * apply(), between which sums over the whole tensor are computed. `step` counts from 1. The initial
 * state is zero.
 */
typedef struct tdm_optim_ops {
    const char *name;
    int state_count;
    const char *state_names[TDM_OPTIM_MAX_STATES]; /* names in checkpoints */
    /* Whether these settings need the state; NULL: every state is needed. */
    bool (*uses_state)(const tdm_optim_settings *settings, int state);
    void (*update)(const tdm_optim_settings *settings, uint64_t step, const tdm_optim_range *range);
    /* Updates the state, writes the direction of the step, and returns the sums of this range. */
    void (*prepare)(const tdm_optim_settings *settings, uint64_t step, const tdm_optim_range *range,
                    double sums[TDM_OPTIM_SUMS]);
    /* Updates the parameters; `sums` are those of the whole tensor. */
    void (*apply)(const tdm_optim_settings *settings, const tdm_optim_range *range,
                  const double sums[TDM_OPTIM_SUMS]);
} tdm_optim_ops;

TDM_API const tdm_optim_ops *tdm_optim_find(int kind); /* a tdm_job_optim */

#ifdef __cplusplus
}
#endif
#endif
