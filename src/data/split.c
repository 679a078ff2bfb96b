/*
 * split.c: splits a data set into training and test part, by a seed.
 *
 * The test part is the first m positions of a keyed permutation of the samples, where m =
 * round(fraction * n), between 1 and n-1. So it depends on n, fraction and seed only. Both parts
 * list their samples in file order and borrow the memory of the original data set.
 *
 * Windows of a text overlap, so a random selection would put most tokens of the test part into the
 * training part as well. A text is cut at one position instead, and the test part is what follows.
 */
#include "base/base.h"
#include "data/internal.h"

#include <math.h>
#include <stdlib.h>

static tdm_dataset *create_part(const tdm_dataset *whole, int64_t count, int64_t **out_rows)
{
    tdm_dataset *part = calloc(1, sizeof(*part));
    if (!part) return NULL;
    part->info = whole->info;
    part->info.sample_count = count;
    part->features = whole->features;
    part->classes = whole->classes;
    part->offsets = whole->offsets;
    part->keys = whole->keys;
    part->values = whole->values;
    part->arena = tdm_arena_create("part of a data set");
    int64_t *rows = part->arena ? tdm_arena_array(part->arena, (size_t)count, sizeof(*rows)) : NULL;
    if (!rows) {
        tdm_dataset_destroy(part);
        return NULL;
    }
    part->rows = rows;
    *out_rows = rows;
    return part;
}

/* The entries of all samples of a part. */
static int64_t entries_count(const tdm_dataset *part)
{
    int64_t count = 0;
    if (part->info.kind != TDM_DATA_KIND_SPARSE) return 0;
    for (int64_t i = 0; i < part->info.sample_count; i++) {
        int64_t row = tdm__dataset_row(part, i);
        count += part->offsets[row + 1] - part->offsets[row];
    }
    return count;
}

static int64_t test_count_of(int64_t sample_count, double fraction)
{
    int64_t wanted = (int64_t)llround(fraction * (double)sample_count);
    if (wanted < 1) return 1;
    return wanted < sample_count ? wanted : sample_count - 1;
}

/* One byte per sample: 1 for those of the test part. NULL if memory runs out. */
static uint8_t *test_rows_choose(int64_t sample_count, int64_t test_count, uint64_t seed)
{
    uint8_t *chosen = calloc((size_t)sample_count, 1);
    if (!chosen) return NULL;
    tdm__permutation order = tdm__permutation_init((uint64_t)sample_count, seed,
                                                   TDM_RNG_STREAM_SPLIT, 0);
    for (int64_t i = 0; i < test_count; i++) chosen[tdm__permutation_at(&order, (uint64_t)i)] = 1;
    return chosen;
}

/* ---- texts ----------------------------------------------------------------------------------- */

int64_t tdm__window_count(int64_t token_count, int64_t context, int64_t stride)
{
    return token_count > context ? (token_count - context - 1) / stride + 1 : 0;
}

static tdm_dataset *create_text_part(const tdm_dataset *whole, int64_t first, int64_t token_count,
                                     int64_t stride)
{
    tdm_dataset *part = calloc(1, sizeof(*part));
    if (!part) return NULL;
    part->info = whole->info;
    part->info.token_count = token_count;
    part->info.sample_count = tdm__window_count(token_count, whole->info.feature_count, stride);
    part->features = (const uint8_t *)whole->features +
                     (size_t)first * tdm_dtype_bytes(whole->info.storage);
    part->stride = stride;
    return part;
}

static tdm_status split_text(const tdm_dataset *whole, double fraction, tdm_dataset **out_rest,
                             tdm_dataset **out_test, tdm_error *err)
{
    const tdm_dataset_info *info = &whole->info;
    int64_t T = info->feature_count, n = info->token_count;
    int64_t test_count = test_count_of(n, fraction);
    if (test_count <= T || n - test_count <= T)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "%s: its %lld tokens cannot be split into %lld and %lld: each part needs "
                        "at least %lld, a window and the token after it; choose another fraction, "
                        "a smaller model.context, or a longer text",
                        info->path, (long long)n, (long long)(n - test_count),
                        (long long)test_count, (long long)T + 1);
    tdm_dataset *rest = create_text_part(whole, 0, n - test_count, whole->stride);
    tdm_dataset *test = create_text_part(whole, n - test_count, test_count, T);
    if (!rest || !test) {
        tdm_dataset_destroy(rest);
        tdm_dataset_destroy(test);
        return tdm_fail_oom(err, "to split it (%s)", info->path);
    }
    *out_rest = rest;
    *out_test = test;
    return TDM_OK;
}

/* ---- all of them ----------------------------------------------------------------------------- */

tdm_status tdm_dataset_split(const tdm_dataset *dataset, double fraction, uint64_t seed,
                             tdm_dataset **out_rest, tdm_dataset **out_test, tdm_error *err)
{
    const tdm_dataset_info *info = &dataset->info;
    if (!(fraction > 0.0 && fraction < 1.0))
        return tdm_fail(err, TDM_ERR_INVALID,
                        "%s: the fraction to split off is %g; it must be between 0 and 1",
                        info->path, fraction);
    if (info->kind == TDM_DATA_KIND_TOKENS)
        return split_text(dataset, fraction, out_rest, out_test, err);
    if (info->sample_count < 2)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "%s: cannot be split in two: it has %lld sample, and each part needs one",
                        info->path, (long long)info->sample_count);

    int64_t test_count = test_count_of(info->sample_count, fraction);
    int64_t *rest_rows = NULL;
    int64_t *test_rows = NULL;
    tdm_dataset *rest = create_part(dataset, info->sample_count - test_count, &rest_rows);
    tdm_dataset *test = create_part(dataset, test_count, &test_rows);
    uint8_t *chosen = test_rows_choose(info->sample_count, test_count, seed);
    if (!rest || !test || !chosen) {
        free(chosen);
        tdm_dataset_destroy(test);
        tdm_dataset_destroy(rest);
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "%s: no memory to split %lld samples", info->path,
                        (long long)info->sample_count);
    }
    for (int64_t i = 0; i < info->sample_count; i++) {
        int64_t **rows = chosen[i] ? &test_rows : &rest_rows;
        *(*rows)++ = tdm__dataset_row(dataset, i);
    }
    free(chosen);
    rest->info.entry_count = entries_count(rest);
    test->info.entry_count = entries_count(test);
    *out_rest = rest;
    *out_test = test;
    return TDM_OK;
}
