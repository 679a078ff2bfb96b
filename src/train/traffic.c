/* traffic.c: what replicas send, and how late asynchronous updates are. See traffic.h. */
#include "train/traffic.h"

#include <math.h>
#include <string.h>

void tdm__traffic_note(tdm__traffic *traffic, bool begins, const tdm_step_result *result,
                       const tdm_order_entry *order, uint64_t count)
{
    traffic->sent_bytes = result->payload_bytes;
    traffic->dense_bytes = result->dense_bytes;
    traffic->codec_seconds = result->codec_seconds;
    if (begins) {
        memset(traffic->staleness, 0, sizeof(traffic->staleness));
        traffic->staleness_sum = traffic->staleness_max = 0;
    }
    for (uint64_t i = 0; order && i < count; i++) {
        uint64_t staleness = order[i].staleness, last = TDM__STALENESS_COUNTS - 1;
        traffic->staleness[staleness < last ? staleness : last]++;
        traffic->staleness_sum += staleness;
        if (staleness > traffic->staleness_max) traffic->staleness_max = staleness;
    }
}

double tdm__traffic_ratio(const tdm__traffic *traffic)
{
    if (traffic->sent_bytes == 0) return 0;
    return (double)traffic->dense_bytes / (double)traffic->sent_bytes;
}

/* Counts up to the last one that is not zero. */
static void staleness_put(const tdm__traffic *traffic, tdm_json_writer *out)
{
    size_t used = 0;
    uint64_t updates = 0;
    for (size_t i = 0; i < TDM__STALENESS_COUNTS; i++) {
        if (traffic->staleness[i] > 0) used = i + 1;
        updates += traffic->staleness[i];
    }
    if (updates == 0) return;
    tdm_json_key(out, "staleness");
    tdm_json_object_begin(out);
    double mean = (double)traffic->staleness_sum / (double)updates;
    tdm_json_put_double(out, "mean", round(1000 * mean) / 1000);
    tdm_json_put_uint(out, "max", traffic->staleness_max);
    tdm_json_key(out, "counts");
    tdm_json_array_begin(out);
    for (size_t i = 0; i < used; i++) tdm_json_uint(out, traffic->staleness[i]);
    tdm_json_array_end(out);
    tdm_json_object_end(out);
}

void tdm__traffic_put(const tdm__traffic *traffic, tdm_json_writer *out)
{
    if (traffic->sent_bytes > 0) {
        tdm_json_put_uint(out, "sent_bytes", traffic->sent_bytes);
        tdm_json_put_double(out, "compression", round(100 * tdm__traffic_ratio(traffic)) / 100);
        tdm_json_put_double(out, "codec_ms", round(1e5 * traffic->codec_seconds) / 100);
    }
    staleness_put(traffic, out);
}
