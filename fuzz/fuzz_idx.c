/*
 * fuzz_idx.c: IDX files of images and labels made by a fuzzer.
 *
 * The first byte chooses options; the next two say where the file of images ends and the file of
 * labels begins (either may be gzip). A data set that is accepted must be consistent: samples can be gathered
 * with classes in range and finite features, the set can be split, and hashing works.
 */
#include <math.h>
#include <stdlib.h>
#include <tandem/data.h>

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) abort();                                                                 \
    } while (0)

static void use(const tdm_dataset *dataset)
{
    const tdm_dataset_info *info = tdm_dataset_info_of(dataset);
    REQUIRE(info->sample_count > 0 && info->feature_count > 0);
    REQUIRE(tdm_shape_elements(&info->sample_shape) == info->feature_count);
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
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"3", "2", "1", "0"};
    if (size < 3) return 0;
    size_t split = (size_t)data[1] << 8 | data[2];
    const uint8_t *images = data + 3;
    size_t count = size - 3;
    if (split > count) split = count;
    tdm_data_options options = {
        .format = data[0] & 1 ? TDM_DATA_FORMAT_IDX : TDM_DATA_FORMAT_AUTO,
        .limit_bytes = 16 << 20,
        .class_names = data[0] & 2 ? names : NULL,
        .class_count = 4,
    };
    bool with_labels = data[0] & 4;
    tdm_dataset *dataset = NULL;
    tdm_error err = {0};
    tdm_status status = tdm_dataset_parse(
        images, with_labels ? split : count, with_labels ? images + split : NULL,
        with_labels ? count - split : 0, "fuzz", &options, &dataset, &err);
    if (status != TDM_OK) {
        REQUIRE(dataset == NULL && err.status == status && err.message[0]);
        return 0;
    }
    use(dataset);
    tdm_dataset *rest;
    tdm_dataset *test;
    if (tdm_dataset_split(dataset, 0.5, data[0], &rest, &test, NULL) == TDM_OK) {
        use(rest);
        use(test);
        tdm_dataset_destroy(rest);
        tdm_dataset_destroy(test);
    }
    tdm_dataset_destroy(dataset);
    return 0;
}
