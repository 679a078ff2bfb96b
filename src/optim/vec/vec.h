/*
 * vec.h: the optimisers, as compiled for each instruction-set level (see tensor/level.h).
 *
 * How to add one: a file in this directory with plain loops, which ends in a table
 *     const tdm_optim_ops TDM__AT_LEVEL(tdm__optim_NAME) = {...};
 * a line below, and a line in table.c.
 *
 * Plain loops are sufficient: these files are compiled so that every product and every sum is
 * rounded separately (no fused multiply-add), so that vectorised code gives the same bits as scalar
 * code. So an update's bits depend neither on the level, nor on where a range begins, nor on how it
 * is divided. To help the compiler, use `restrict` pointers, settings copied into local floats
 * before the loop, `a ? b : c` on values already computed, sqrtf and fabsf but no other function.
 */
#ifndef TANDEM_OPTIM_VEC_VEC_H
#define TANDEM_OPTIM_VEC_VEC_H

#include <tandem/optim.h>

#include "optim/internal.h"
#include "tensor/level.h"

extern const tdm__optim_loops TDM__AT_LEVEL(tdm__optim_loops);

extern const tdm_optim_ops TDM__AT_LEVEL(tdm__optim_sgd);
extern const tdm_optim_ops TDM__AT_LEVEL(tdm__optim_adagrad);
extern const tdm_optim_ops TDM__AT_LEVEL(tdm__optim_rmsprop);
extern const tdm_optim_ops TDM__AT_LEVEL(tdm__optim_adam);
extern const tdm_optim_ops TDM__AT_LEVEL(tdm__optim_adamw);
extern const tdm_optim_ops TDM__AT_LEVEL(tdm__optim_lamb);
extern const tdm_optim_ops TDM__AT_LEVEL(tdm__optim_lion);

#endif
