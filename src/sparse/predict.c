/*
 * predict.c: the memory of a table, before it is filled.
 *
 * The number of different features is estimated by HyperLogLog (Flajolet et al., 2007): each key selects one of 2^16
 * registers, which keep the largest number of leading zeros of the rest of a hash. It needs one pass over the data and
 * 64 KiB, and its standard error is 1.04 / 2^8. It is a function of the data and the job only.
 */
#include "base/base.h"
#include "sparse/internal.h"

#include <math.h>
#include <string.h>

enum { REGISTER_BITS = 16, REGISTERS = 1 << REGISTER_BITS };
enum {
    ENTRY_BYTES = 64,
    ORDER_BYTES = 32
}; /* of an entry of a batch, without rows; of a sorted row */

uint64_t tdm_sparse_count_keys(const tdm_job *job, const tdm_dataset *dataset)
{
    tdm__sparse_features f = tdm__sparse_features_of(job);
    int64_t samples = tdm_dataset_info_of(dataset)->sample_count;
    uint8_t registers[REGISTERS];
    memset(registers, 0, sizeof(registers));
    for (int64_t i = 0; i < samples; i++) {
        const uint64_t *keys;
        const float *values;
        int64_t count = tdm_dataset_entries(dataset, i, &keys, &values);
        for (int64_t e = 0; e < count; e++) {
            if (!tdm__sparse_feature_is_key(&f, keys[e])) continue;
            uint64_t hash = tdm_mix64(tdm__sparse_feature_key(&f, keys[e]));
            size_t at = (size_t)(hash >> (64 - REGISTER_BITS));
            int zeros = __builtin_clzll(hash << REGISTER_BITS | UINT64_C(1) << (REGISTER_BITS - 1));
            if (zeros + 1 > registers[at]) registers[at] = (uint8_t)(zeros + 1);
        }
    }
    double sum = 0, empty = 0;
    for (size_t i = 0; i < REGISTERS; i++) {
        sum += ldexp(1.0, -registers[i]);
        empty += registers[i] == 0;
    }
    double m = REGISTERS, estimate = 0.7213 / (1 + 1.079 / m) * m * m / sum;
    if (estimate <= 2.5 * m && empty > 0) estimate = m * tdm_math_log(m / empty);
    return (uint64_t)(estimate + 0.5);
}

tdm_sparse_memory tdm_sparse_predict(const tdm_job *job, const tdm_dataset *dataset, int rank_count)
{
    const tdm_dataset_info *info = tdm_dataset_info_of(dataset);
    tdm_table_options options = tdm__sparse_table_options(job, rank_count);
    uint64_t ranks = rank_count > 1 ? (uint64_t)rank_count : 1, keys;
    keys = tdm_sparse_count_keys(job, dataset);
    /* With admission, some of the keys have no row; rows need more memory. */
    tdm_sparse_memory out = {
        .row_count = keys,
        .table_bytes = tdm_table_predict(&options, (keys + ranks - 1) / ranks, 0)};
    /* Entries of the samples of a rank: keys, rows and gradients, and messages with both. */
    int64_t batch = job->train.batch < info->sample_count ? job->train.batch : info->sample_count;
    double mean = info->sample_count > 0 ? (double)info->entry_count / (double)info->sample_count
                                         : 0;
    uint64_t entries = (uint64_t)(mean * (double)batch / (double)ranks) + 1;
    uint64_t row_bytes = (uint64_t)options.width * sizeof(float);
    uint64_t copies = ranks > 1 ? 4 : 2;
    out.work_bytes = entries * (ENTRY_BYTES + copies * row_bytes) + keys / ranks * ORDER_BYTES;
    return out;
}
