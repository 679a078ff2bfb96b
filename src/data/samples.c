/*
 * samples.c: operations on the samples of a data set in memory: gathering a batch, means and
 * deviations, the largest value, the hash.
 *
 * All of them use the sample index and tdm__dataset_row(), so they work for a part made by a split
 * as well. Windows of tokens need no rows: window i begins at token i * stride of its part. These
 * functions only read: any number of threads may call them on one data set.
 */
#include "base/base.h"
#include "data/data.h"
#include "data/internal.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define HASH_BLOCK 4096

/* Copies `count` features of one stored row, from `first` on, as f32. */
static inline void copy_row(const tdm_dataset *dataset, int64_t row, int64_t first, int64_t count,
                            float *restrict out)
{
    size_t offset = (size_t)row * (size_t)dataset->info.feature_count + (size_t)first;
    if (dataset->info.storage == TDM_DTYPE_F32) {
        memcpy(out, (const float *)dataset->features + offset, (size_t)count * sizeof(*out));
        return;
    }
    const uint8_t *restrict source = (const uint8_t *)dataset->features + offset;
    for (int64_t i = 0; i < count; i++) out[i] = (float)source[i];
}

static inline float feature_at(const tdm_dataset *dataset, int64_t row, int64_t feature)
{
    size_t offset = (size_t)row * (size_t)dataset->info.feature_count + (size_t)feature;
    if (dataset->info.storage == TDM_DTYPE_F32) return ((const float *)dataset->features)[offset];
    return (float)((const uint8_t *)dataset->features)[offset];
}

/* Copies `count` tokens from token `first` on. */
static inline void copy_tokens(const tdm_dataset *dataset, int64_t first, int64_t count,
                               int32_t *restrict out)
{
    if (dataset->info.storage == TDM_DTYPE_U8) {
        const uint8_t *restrict source = (const uint8_t *)dataset->features + first;
        for (int64_t i = 0; i < count; i++) out[i] = source[i];
        return;
    }
    const uint16_t *restrict source = (const uint16_t *)dataset->features + first;
    for (int64_t i = 0; i < count; i++) out[i] = source[i];
}

static void gather_windows(const tdm_dataset *dataset, const int64_t *indices, int64_t count,
                           int32_t *tokens, int32_t *next)
{
    int64_t T = dataset->info.feature_count;
    for (int64_t i = 0; i < count; i++) {
        int64_t first = indices[i] * dataset->stride;
        copy_tokens(dataset, first, T, tokens + i * T);
        if (next) copy_tokens(dataset, first + 1, T, next + i * T);
    }
}

static void gather_classes(const tdm_dataset *dataset, const int64_t *indices, int64_t count,
                           int32_t *classes)
{
    if (!classes) return;
    for (int64_t i = 0; i < count; i++)
        classes[i] = dataset->classes ? dataset->classes[tdm__dataset_row(dataset, indices[i])]
                                      : -1;
}

void tdm_dataset_gather(const tdm_dataset *dataset, const int64_t *indices, int64_t count,
                        void *features, int32_t *classes)
{
    if (dataset->info.kind == TDM_DATA_KIND_TOKENS) {
        gather_windows(dataset, indices, count, features, classes);
        return;
    }
    assert(dataset->info.kind == TDM_DATA_KIND_TABLE);
    int64_t feature_count = dataset->info.feature_count;
    for (int64_t i = 0; i < count; i++)
        copy_row(dataset, tdm__dataset_row(dataset, indices[i]), 0, feature_count,
                 (float *)features + i * feature_count);
    gather_classes(dataset, indices, count, classes);
}

int64_t tdm_dataset_gather_sparse(const tdm_dataset *dataset, const int64_t *indices, int64_t count,
                                  int64_t *offsets, uint64_t *keys, float *values, int32_t *classes)
{
    assert(dataset->info.kind == TDM_DATA_KIND_SPARSE);
    int64_t used = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t row = tdm__dataset_row(dataset, indices[i]), first = dataset->offsets[row];
        size_t entries = (size_t)(dataset->offsets[row + 1] - first);
        offsets[i] = used;
        memcpy(keys + used, dataset->keys + first, entries * sizeof(*keys));
        memcpy(values + used, dataset->values + first, entries * sizeof(*values));
        used += (int64_t)entries;
    }
    offsets[count] = used;
    gather_classes(dataset, indices, count, classes);
    return used;
}

int64_t tdm_dataset_entries(const tdm_dataset *dataset, int64_t index, const uint64_t **keys,
                            const float **values)
{
    assert(dataset->info.kind == TDM_DATA_KIND_SPARSE);
    int64_t row = tdm__dataset_row(dataset, index), first = dataset->offsets[row];
    *keys = dataset->keys + first;
    *values = dataset->values + first;
    return dataset->offsets[row + 1] - first;
}

int32_t tdm_dataset_class(const tdm_dataset *dataset, int64_t index)
{
    assert(dataset->info.kind != TDM_DATA_KIND_TOKENS);
    return dataset->classes ? dataset->classes[tdm__dataset_row(dataset, index)] : -1;
}

int64_t tdm_dataset_number(const tdm_dataset *dataset, int64_t index)
{
    if (dataset->info.kind == TDM_DATA_KIND_TOKENS) return index;
    return tdm__dataset_row(dataset, index);
}

/* Two passes, so that a large mean does not cancel the digits of a small deviation. */
void tdm_dataset_moments(const tdm_dataset *dataset, double *mean, double *deviation)
{
    assert(dataset->info.kind == TDM_DATA_KIND_TABLE);
    int64_t sample_count = dataset->info.sample_count;
    int64_t feature_count = dataset->info.feature_count;
    for (int64_t j = 0; j < feature_count; j++) mean[j] = deviation[j] = 0.0;
    if (sample_count == 0) return;
    for (int64_t i = 0; i < sample_count; i++) {
        int64_t row = tdm__dataset_row(dataset, i);
        for (int64_t j = 0; j < feature_count; j++) mean[j] += (double)feature_at(dataset, row, j);
    }
    for (int64_t j = 0; j < feature_count; j++) mean[j] /= (double)sample_count;
    for (int64_t i = 0; i < sample_count; i++) {
        int64_t row = tdm__dataset_row(dataset, i);
        for (int64_t j = 0; j < feature_count; j++) {
            double distance = (double)feature_at(dataset, row, j) - mean[j];
            deviation[j] += distance * distance;
        }
    }
    for (int64_t j = 0; j < feature_count; j++)
        deviation[j] = sqrt(deviation[j] / (double)sample_count);
}

double tdm_dataset_largest(const tdm_dataset *dataset)
{
    assert(dataset->info.kind == TDM_DATA_KIND_TABLE);
    float largest = 0.0f;
    for (int64_t i = 0; i < dataset->info.sample_count; i++) {
        int64_t row = tdm__dataset_row(dataset, i);
        for (int64_t j = 0; j < dataset->info.feature_count; j++) {
            float value = fabsf(feature_at(dataset, row, j));
            if (value > largest) largest = value;
        }
    }
    return (double)largest;
}

/* ---- hash ------------------------------------------------------------------------------------ */

static void to_little_endian(uint32_t *words, size_t count)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    for (size_t i = 0; i < count; i++) words[i] = __builtin_bswap32(words[i]);
#else
    (void)words;
    (void)count;
#endif
}

/* Features are hashed as f32 however they are stored: the same samples from CSV and IDX have the
 * same hash. */
static void hash_features(const tdm_dataset *dataset, tdm_sha256 *hash)
{
    union {
        float values[HASH_BLOCK];
        uint32_t words[HASH_BLOCK];
    } block;
    int64_t feature_count = dataset->info.feature_count;
    for (int64_t i = 0; i < dataset->info.sample_count; i++) {
        int64_t row = tdm__dataset_row(dataset, i);
        for (int64_t j = 0; j < feature_count; j += HASH_BLOCK) {
            int64_t count = feature_count - j < HASH_BLOCK ? feature_count - j : HASH_BLOCK;
            copy_row(dataset, row, j, count, block.values);
            to_little_endian(block.words, (size_t)count);
            tdm_sha256_update(hash, block.words, (size_t)count * sizeof(block.words[0]));
        }
    }
}

static void hash_classes(const tdm_dataset *dataset, tdm_sha256 *hash)
{
    uint32_t block[HASH_BLOCK];
    for (int64_t i = 0; i < dataset->info.sample_count; i += HASH_BLOCK) {
        int64_t left = dataset->info.sample_count - i;
        size_t count = left < HASH_BLOCK ? (size_t)left : HASH_BLOCK;
        for (size_t k = 0; k < count; k++) {
            int64_t row = tdm__dataset_row(dataset, i + (int64_t)k);
            block[k] = (uint32_t)dataset->classes[row];
        }
        to_little_endian(block, count);
        tdm_sha256_update(hash, block, count * sizeof(block[0]));
    }
}

/* Tokens are hashed as 32-bit numbers however they are stored, together with the positions of
 * the windows. */
static void hash_tokens(const tdm_dataset *dataset, tdm_sha256 *hash)
{
    union {
        int32_t tokens[HASH_BLOCK];
        uint32_t words[HASH_BLOCK];
    } block;
    int64_t token_count = dataset->info.token_count;
    tdm_sha256_text(hash, "tokens");
    tdm_sha256_u64(hash, (uint64_t)token_count);
    tdm_sha256_u64(hash, (uint64_t)dataset->stride);
    for (int64_t i = 0; i < token_count; i += HASH_BLOCK) {
        int64_t left = token_count - i;
        size_t count = left < HASH_BLOCK ? (size_t)left : HASH_BLOCK;
        copy_tokens(dataset, i, (int64_t)count, block.tokens);
        to_little_endian(block.words, count);
        tdm_sha256_update(hash, block.words, count * sizeof(block.words[0]));
    }
}

static void hash_keys(const uint64_t *keys, size_t count, tdm_sha256 *hash)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    for (size_t i = 0; i < count; i++) tdm_sha256_u64(hash, keys[i]);
#else
    tdm_sha256_update(hash, keys, count * sizeof(*keys));
#endif
}

/* The number of entries of each sample, and its keys and values in the order of the file. */
static void hash_entries(const tdm_dataset *dataset, tdm_sha256 *hash)
{
    union {
        float values[HASH_BLOCK];
        uint32_t words[HASH_BLOCK];
    } block;
    tdm_sha256_text(hash, "sparse");
    for (int64_t i = 0; i < dataset->info.sample_count; i++) {
        int64_t row = tdm__dataset_row(dataset, i);
        int64_t first = dataset->offsets[row], end = dataset->offsets[row + 1];
        tdm_sha256_u64(hash, (uint64_t)(end - first));
        hash_keys(dataset->keys + first, (size_t)(end - first), hash);
        for (int64_t k = first; k < end; k += HASH_BLOCK) {
            size_t count = end - k < HASH_BLOCK ? (size_t)(end - k) : HASH_BLOCK;
            memcpy(block.values, dataset->values + k, count * sizeof(block.values[0]));
            to_little_endian(block.words, count);
            tdm_sha256_update(hash, block.words, count * sizeof(block.words[0]));
        }
    }
}

tdm_status tdm_dataset_hash(const tdm_dataset *dataset, char hex[TDM_SHA256_HEX])
{
    const tdm_dataset_info *info = &dataset->info;
    tdm_sha256 *hash = tdm_sha256_create();
    if (!hash) return TDM_ERR_NO_MEMORY;
    tdm_sha256_text(hash, "tandem data set 1");
    tdm_sha256_u64(hash, (uint64_t)info->sample_count);
    tdm_sha256_u64(hash, (uint64_t)info->sample_shape.rank);
    for (int i = 0; i < info->sample_shape.rank; i++)
        tdm_sha256_u64(hash, (uint64_t)info->sample_shape.dim[i]);
    tdm_sha256_u64(hash, (uint64_t)info->class_count);
    for (int64_t i = 0; i < info->class_count; i++) tdm_sha256_text(hash, info->class_names[i]);
    if (info->kind == TDM_DATA_KIND_TOKENS)
        hash_tokens(dataset, hash);
    else if (info->kind == TDM_DATA_KIND_SPARSE)
        hash_entries(dataset, hash);
    else
        hash_features(dataset, hash);
    if (dataset->classes) hash_classes(dataset, hash);
    tdm_sha256_finish(hash, hex);
    tdm_sha256_destroy(hash);
    return TDM_OK;
}
