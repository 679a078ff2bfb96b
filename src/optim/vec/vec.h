/*
 * vec.h: the optimisers, as they are compiled for each instruction-set level (see tensor/level.h).
 *
 * How to add one: a file in this folder with plain loops, which ends in a table
 *     const tdm_optim_ops TDM__AT_LEVEL(tdm__optim_NAME) = {...};
 * a line below, and a line in table.c. Nothing else.
 *
 * Plain loops are enough: these files are compiled so that every product and every sum is rounded by
 * itself (no fused multiply-add), and the compiler's vectors then give the same bits as one number
 * at a time. So an update's bits depend neither on the level, nor on where a range begins, nor on
 * how it is cut. What helps the compiler: `restrict` pointers, settings copied into local floats
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
