/*
 * order.h: the order of asynchronous updates (sync.kind server, modes async and stale).
 *
 * Workers are logical replicas. A worker reads the model, computes a gradient, and the gradient updates the model, which
 * other workers have changed meanwhile. Which worker makes which update is drawn from a logical clock: the time of a
 * gradient is a function of the seed, the worker and the number of its gradient. So the order is a function of the job,
 * and any number of ranks can execute it.
 */
#ifndef TANDEM_PARALLEL_ORDER_H
#define TANDEM_PARALLEL_ORDER_H

#include "parallel/parallel.h"

typedef struct tdm_order tdm_order;

/* TDM_ERR_JOB_INVALID: sync.speeds does not have one number for each worker. */
tdm_status tdm_order_create(const tdm_job *job, tdm_order **out, tdm_error *err);
void tdm_order_destroy(tdm_order *order);
/* The update `step`, from 0. Costs as many steps as there are since the last call; from the first one, if it is far
 * behind. Before update 0 all workers have read the initial model. */
tdm_order_entry tdm_order_at(tdm_order *order, uint64_t step);
/* The number of updates from `step` on, at most `max`, whose workers have read the model before `step`: their gradients
 * can be computed at the same time. */
uint64_t tdm_order_round(tdm_order *order, uint64_t step, uint64_t max);

#endif
