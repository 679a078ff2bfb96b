/*
 * fuzz_sparse.c: files with sparse samples made by a fuzzer.
 *
 * The first two bytes choose the format and the options, the rest is the file (which may be gzip). A data set that is
 * accepted must be consistent: every sample can be gathered, entries have finite values and keys of the format, the
 * set can be split, and hashing works.
 */
#include "data/data.h"

#include <math.h>
#include <stdlib.h>

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) abort();                                                                 \
    } while (0)

enum { CRITEO_FIELDS = 39 };

static void check_entry(uint64_t key, float value, bool is_criteo)
{
    REQUIRE(isfinite(value));
    uint64_t field = key >> 32;
    REQUIRE(is_criteo ? field >= 1 && field <= CRITEO_FIELDS : field == 0);
}

static void use(const tdm_dataset *dataset, bool is_criteo)
{
    const tdm_dataset_info *info = tdm_dataset_info_of(dataset);
    REQUIRE(info->kind == TDM_DATA_KIND_SPARSE && info->sample_count > 0);
    size_t most = (size_t)info->feature_count;
    uint64_t *keys = malloc((most + 1) * sizeof(*keys));
    float *values = malloc((most + 1) * sizeof(*values));
    REQUIRE(keys && values);
    int64_t entry_count = 0;
    for (int64_t i = 0; i < info->sample_count; i++) {
        int64_t offsets[2];
        int32_t class_number;
        int64_t count = tdm_dataset_gather_sparse(dataset, &i, 1, offsets, keys, values,
                                                  &class_number);
        REQUIRE(offsets[0] == 0 && offsets[1] == count && count <= info->feature_count);
        REQUIRE(class_number < info->class_count);
        REQUIRE(class_number >= 0 || info->class_count == 0);
        for (int64_t k = 0; k < count; k++) {
            check_entry(keys[k], values[k], is_criteo);
            REQUIRE(k == 0 || keys[k] > keys[k - 1]);
        }
        entry_count += count;
    }
    REQUIRE(entry_count == info->entry_count);
    free(values);
    free(keys);
    char hex[TDM_SHA256_HEX];
    REQUIRE(tdm_dataset_hash(dataset, hex) == TDM_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"0", "1", "-1", "+1"};
    if (size < 2) return 0;
    tdm_data_options options = {
        .format = data[0] & 1 ? TDM_DATA_FORMAT_CRITEO : TDM_DATA_FORMAT_LIBSVM,
        .kind = TDM_DATA_KIND_SPARSE,
        .label = data[0] & 2 ? "none" : NULL,
        .first_index_is_0 = data[0] & 4,
        .limit_bytes = 16 << 20,
        .class_names = data[1] & 1 ? names : NULL,
        .class_count = 4,
    };
    if (data[1] & 2) options.format = TDM_DATA_FORMAT_AUTO;
    tdm_dataset *dataset = NULL;
    tdm_error err = {0};
    tdm_status status = tdm_dataset_parse(data + 2, size - 2, NULL, 0, "fuzz", &options, &dataset,
                                          &err);
    if (status != TDM_OK) {
        REQUIRE(dataset == NULL && err.status == status && err.message[0]);
        return 0;
    }
    /* The fields tell which format was recognised. */
    int64_t first = 0, offsets[2];
    const tdm_dataset_info *info = tdm_dataset_info_of(dataset);
    uint64_t *keys = calloc((size_t)info->feature_count, sizeof(*keys));
    float *values = calloc((size_t)info->feature_count, sizeof(*values));
    REQUIRE(keys && values);
    bool is_criteo = false;
    for (; first < info->sample_count && !is_criteo; first++)
        is_criteo = tdm_dataset_gather_sparse(dataset, &first, 1, offsets, keys, values, NULL) >
                        0 &&
                    keys[0] >> 32 > 0;
    free(values);
    free(keys);
    if (options.format != TDM_DATA_FORMAT_AUTO)
        REQUIRE(is_criteo == (options.format == TDM_DATA_FORMAT_CRITEO));
    use(dataset, is_criteo);
    tdm_dataset *rest;
    tdm_dataset *test;
    if (tdm_dataset_split(dataset, 0.25, data[1], &rest, &test, NULL) == TDM_OK) {
        use(rest, is_criteo);
        use(test, is_criteo);
        tdm_dataset_destroy(rest);
        tdm_dataset_destroy(test);
    }
    tdm_dataset_destroy(dataset);
    return 0;
}
