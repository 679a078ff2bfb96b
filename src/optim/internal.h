/*
 * internal.h: the lists of optimisers, one for each level for which they are compiled.
 * The optimisers themselves, and how to add one: vec/vec.h.
 */
#ifndef TANDEM_OPTIM_INTERNAL_H
#define TANDEM_OPTIM_INTERNAL_H

#include <tandem/optim.h>

typedef struct tdm__optim_list {
    int level;
    const tdm_optim_ops *const *by_kind; /* index: a tdm_job_optim */
    size_t count;
} tdm__optim_list;

extern const tdm__optim_list tdm__optims_0, tdm__optims_2, tdm__optims_3, tdm__optims_4;

/* The list for processors of `level`; the tests try them all. */
const tdm__optim_list *tdm__optims_at(int level);

#endif
