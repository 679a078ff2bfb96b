/*
 * params.h: functions of the parameter store for the team. parallel.h has the public contract.
 */
#ifndef TANDEM_PARALLEL_PARAMS_H
#define TANDEM_PARALLEL_PARAMS_H

#include "parallel/layout.h"
#include "parallel/parallel.h"

const tdm__layout *tdm__params_layout(const tdm_params *store);
/* The regions of the store, for those of the team. */
const struct tdm__node_memory *tdm__params_memory(const tdm_params *store);
struct tdm__replicas *tdm__params_replicas(const tdm_params *store); /* NULL: none */
struct tdm__undo_log *tdm__params_undo_log(
    const tdm_params *store); /* NULL: without an optimiser */

/*
 * Called after all ranks have updated their share of PARAMS. Starts to distribute the new parameters: by a
 * barrier within a node that shares memory; between nodes by gathers, in the order of urgency that `order`
 * gives (bucket_count entries, by first use in the next forward pass). With `overlap` returns at once, and
 * prefetches of PARAMS wait for the buckets they need. Collective.
 */
tdm_status tdm__params_publish(tdm_params *store, const size_t *order, bool overlap,
                               tdm_error *err);

/* Called before this rank waits for others in the middle of a pass: if they wait for parameters that this rank
 * receives for their node, it receives them first. Never waits for the pass of another rank. */
tdm_status tdm__params_serve(tdm_params *store, tdm_error *err);

/* With offload: announces that the update will process these cells of this rank's share, in order; and that it has
 * processed these, in windows of a megabyte or more. Called by one thread. */
void tdm__params_will_update(tdm_params *store, tdm__cells cells);
void tdm__params_has_updated(tdm_params *store, tdm__cells cells);

#endif
