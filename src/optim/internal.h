/* internal.h: the tables that registry.c lists. */
#ifndef TANDEM_OPTIM_INTERNAL_H
#define TANDEM_OPTIM_INTERNAL_H

#include <tandem/optim.h>

extern const tdm_optim_ops tdm__optim_sgd;
extern const tdm_optim_ops tdm__optim_adamw;

#endif
