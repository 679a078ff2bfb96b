/* traffic.h: what replicas send, and how late asynchronous updates are, for the metrics. */
#ifndef TANDEM_TRAIN_TRAFFIC_H
#define TANDEM_TRAIN_TRAFFIC_H

#include "train/internal.h"

enum { TDM__STALENESS_COUNTS = 17 }; /* 0 to 15, and more */

/* Plain numbers: a part of the trainer's snapshot. */
typedef struct tdm__traffic {
    /* Of the last step: by all replicas, compressed and as f32. 0: nothing was compressed, or a recovery has completed the
     * step. */
    uint64_t sent_bytes, dense_bytes;
    double codec_seconds;
    /* Of the updates since the last line of metrics. */
    uint64_t staleness[TDM__STALENESS_COUNTS];
    uint64_t staleness_sum, staleness_max;
} tdm__traffic;

/* A completed step. `order`: the entries of its `count` updates; NULL: it is not one of updates in order. `begins`: the
 * step before had a line of metrics, so the staleness is counted anew. */
void tdm__traffic_note(tdm__traffic *traffic, bool begins, const tdm_step_result *result,
                       const tdm_order_entry *order, uint64_t count);
/* dense / sent; 0: unknown. */
double tdm__traffic_ratio(const tdm__traffic *traffic);
/* Writes the fields of a line of metrics. */
void tdm__traffic_put(const tdm__traffic *traffic, tdm_json_writer *out);

#endif
