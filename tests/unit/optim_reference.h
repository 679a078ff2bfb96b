/*
 * optim_reference.h: every optimiser in double precision, one number at a time, written from the papers and
 * from PyTorch's documentation and not from src/optim.
 */
#ifndef TANDEM_TESTS_OPTIM_REFERENCE_H
#define TANDEM_TESTS_OPTIM_REFERENCE_H

#include <math.h>

#include <tandem/optim.h>

/* One number with its states, in the order in which the optimiser names them. */
typedef struct exact_number {
    double param;
    double state[TDM_OPTIM_MAX_STATES];
} exact_number;

void exact_step(int kind, const tdm_optim_settings *s, uint64_t step, const float *grad,
                exact_number *x, size_t count);

#endif
