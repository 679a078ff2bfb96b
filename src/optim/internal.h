/*
 * internal.h: the lists of optimisers, one for each level for which they are compiled, and common
 * loops. The optimisers, and how to add one: vec/vec.h.
 */
#ifndef TANDEM_OPTIM_INTERNAL_H
#define TANDEM_OPTIM_INTERNAL_H

#include "optim/optim.h"

/* Operations on a gradient before an update, and on an average after it. */
typedef struct tdm__optim_loops {
    void (*clamp)(float *values, size_t count, float limit); /* to [-limit, limit]; NaN stays */
    void (*scale)(float *values, size_t count, float factor);
    double (*sum_squares)(const float *values, size_t count);
    void (*average)(float *ema, const float *values, size_t count, double decay);
} tdm__optim_loops;

typedef struct tdm__optim_list {
    int level;
    const tdm_optim_ops *const *by_kind; /* index: a tdm_job_optim */
    size_t count;
    const tdm__optim_loops *loops;
} tdm__optim_list;

extern const tdm__optim_list tdm__optims_0, tdm__optims_2, tdm__optims_3, tdm__optims_4;

/* The list for CPUs of `level`; the tests run all of them. */
const tdm__optim_list *tdm__optims_at(int level);
const tdm__optim_list *tdm__optims_here(void);

/* Finds the entry of optim.groups for each parameter: an index, or SIZE_MAX for none. */
tdm_status tdm__groups_match(const tdm_job *job, const tdm_optim_param *params, size_t param_count,
                             size_t *out_entries, tdm_error *err);

#endif
