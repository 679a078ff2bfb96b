/*
 * fuzz_csv.c: CSV files made by a fuzzer.
 *
 * The first four bytes choose the options, the rest is the file (which may be gzip). A data set
 * that is accepted must be consistent: every sample can be gathered with a class in range and finite features,
 * the set can be split, and hashing works.
 */
#include "data/data.h"

#include <math.h>
#include <stdlib.h>

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) abort();                                                                 \
    } while (0)

static void use(const tdm_dataset *dataset)
{
    const tdm_dataset_info *info = tdm_dataset_info_of(dataset);
    REQUIRE(info->sample_count > 0 && info->feature_count > 0);
    float *row = malloc((size_t)info->feature_count * sizeof(*row));
    REQUIRE(row);
    for (int64_t i = 0; i < info->sample_count && i < 64; i++) {
        int32_t class_number;
        tdm_dataset_gather(dataset, &i, 1, row, &class_number);
        REQUIRE(class_number < info->class_count);
        REQUIRE(class_number >= 0 || info->class_count == 0);
        for (int64_t j = 0; j < info->feature_count; j++) REQUIRE(isfinite(row[j]));
    }
    free(row);
    char hex[TDM_SHA256_HEX];
    REQUIRE(tdm_dataset_hash(dataset, hex) == TDM_OK);
    REQUIRE(isfinite(tdm_dataset_largest(dataset)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const labels[] = {NULL, "first", "last", "none", "2", "class"};
    static const char delimiters[] = {0, ';', '\t', ' ', '|', ':'};
    static const char *const names[] = {"0", "1", "a", "b"};
    if (size < 4) return 0;
    tdm_data_options options = {
        .format = TDM_DATA_FORMAT_CSV,
        .header = data[0] % 3,
        .label = labels[data[1] % 6],
        .delimiter = delimiters[data[2] % 6],
        .limit_bytes = 16 << 20,
        .class_names = data[3] & 1 ? names : NULL,
        .class_count = 4,
    };
    if (data[3] & 2) options.format = TDM_DATA_FORMAT_AUTO;
    tdm_dataset *dataset = NULL;
    tdm_error err = {0};
    tdm_status status = tdm_dataset_parse(data + 4, size - 4, NULL, 0, "fuzz", &options, &dataset,
                                          &err);
    if (status != TDM_OK) {
        REQUIRE(dataset == NULL && err.status == status && err.message[0]);
        return 0;
    }
    use(dataset);
    tdm_dataset *rest;
    tdm_dataset *test;
    if (tdm_dataset_split(dataset, 0.25, data[3], &rest, &test, NULL) == TDM_OK) {
        use(rest);
        use(test);
        tdm_dataset_destroy(rest);
        tdm_dataset_destroy(test);
    }
    tdm_dataset_destroy(dataset);
    return 0;
}
