/*
 * params.h: what the store has for the team. The contract for all others is in parallel.h.
 */
#ifndef TANDEM_PARALLEL_STORE_H
#define TANDEM_PARALLEL_STORE_H

#include "parallel/layout.h"

#include <tandem/parallel.h>

const tdm__layout *tdm__params_layout(const tdm_params *store);
struct tdm__undo_log *tdm__params_undo_log(const tdm_params *store); /* NULL: without a vault */

/*
 * After this rank has updated its share of PARAMS and the others theirs. Starts to bring new parameters
 * to where they are missing: by node-wide barrier where memory is common; between nodes by gathers, the
 * buckets that `order` (bucket_count entries; by first use of the next forward pass) names first as the
 * most urgent. With `overlap` returns at once; the feeds of PARAMS wait for what they need. Collective.
 */
tdm_status tdm__params_publish(tdm_params *store, const size_t *order, bool overlap,
                               tdm_error *err);

/* Before this rank waits for others in the middle of a pass: where they wait for parameters that it brings
 * to their node, it brings them first. Never waits for anybody's pass. */
tdm_status tdm__params_serve(tdm_params *store, tdm_error *err);

/* In offload mode: the update will go over these cells of this rank's share, in order; it has left these,
 * in windows of a megabyte or more, of what was told last. By one thread. */
void tdm__params_will_update(tdm_params *store, tdm__cells cells);
void tdm__params_has_updated(tdm_params *store, tdm__cells cells);

#endif
