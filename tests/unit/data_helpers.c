/*
 * data_helpers.c: see data_helpers.h.
 */
#include "unit/data_helpers.h"

tdm_dataset *parse_bytes(const void *bytes, size_t count, const tdm_data_options *options)
{
    tdm_dataset *dataset = NULL;
    tdm_error err = {0};
    tdm_status status = tdm_dataset_parse(bytes, count, NULL, 0, "t.csv", options, &dataset, &err);
    if (status != TDM_OK) fprintf(stderr, "  (%s)\n", err.message);
    CHECK_INT(status, TDM_OK);
    return dataset;
}

tdm_dataset *parse_text(const char *text, const tdm_data_options *options)
{
    return parse_bytes(text, strlen(text), options);
}

void refuse(const void *bytes, size_t count, const void *labels, size_t label_count,
            const tdm_data_options *options, tdm_status expected, const char *part)
{
    tdm_dataset *dataset = (tdm_dataset *)(uintptr_t)1;
    tdm_error err = {0};
    /* A block of exactly this size, so that the address sanitizer sees a read past its end. */
    uint8_t *copy = malloc(count ? count : 1);
    memcpy(copy, bytes, count);
    tdm_status status = tdm_dataset_parse(copy, count, labels, label_count, "t.csv", options,
                                          &dataset, &err);
    CHECK_INT(status, expected);
    CHECK_INT(err.status, expected);
    CHECK_HAS(err.message, part);
    CHECK((uintptr_t)dataset == 1);
    if (status == TDM_OK) tdm_dataset_destroy(dataset);
    free(copy);
}

void refuse_text(const char *text, const tdm_data_options *options, tdm_status expected,
                 const char *part)
{
    refuse(text, strlen(text), NULL, 0, options, expected, part);
}

float feature(const tdm_dataset *dataset, int64_t sample, int64_t index)
{
    int64_t feature_count = tdm_dataset_info_of(dataset)->feature_count;
    float *row = malloc((size_t)feature_count * sizeof(*row));
    tdm_dataset_gather(dataset, &sample, 1, row, NULL);
    float value = row[index];
    free(row);
    return value;
}

int32_t class_of(const tdm_dataset *dataset, int64_t sample)
{
    int64_t feature_count = tdm_dataset_info_of(dataset)->feature_count;
    float *row = malloc((size_t)feature_count * sizeof(*row));
    int32_t class_number = -2;
    tdm_dataset_gather(dataset, &sample, 1, row, &class_number);
    free(row);
    return class_number;
}

uint8_t *gzip_bytes(const void *bytes, size_t count, size_t *out_count)
{
    size_t capacity = compressBound((uLong)count) + 64;
    uint8_t *packed = malloc(capacity);
    z_stream stream = {0};
    CHECK_INT(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    stream.next_in = (Bytef *)(uintptr_t)bytes;
    stream.avail_in = (uInt)count;
    stream.next_out = packed;
    stream.avail_out = (uInt)capacity;
    CHECK_INT(deflate(&stream, Z_FINISH), Z_STREAM_END);
    *out_count = stream.total_out;
    deflateEnd(&stream);
    return packed;
}

idx_file idx_build(int type, int dim_count, const uint32_t *dims, const void *data, size_t count)
{
    idx_file file = {.bytes = {0, 0, (uint8_t)type, (uint8_t)dim_count}, .count = 4};
    for (int i = 0; i < dim_count && file.count < 64; i++)
        for (int shift = 24; shift >= 0; shift -= 8)
            file.bytes[file.count++] = (uint8_t)(dims[i] >> shift);
    if (count > 0) memcpy(file.bytes + file.count, data, count);
    file.count += count;
    return file;
}

tdm_dataset *idx_parse(const idx_file *images, const idx_file *labels,
                       const tdm_data_options *options)
{
    tdm_dataset *dataset = NULL;
    tdm_error err = {0};
    tdm_status status = tdm_dataset_parse(images->bytes, images->count,
                                          labels ? labels->bytes : NULL, labels ? labels->count : 0,
                                          "img", options, &dataset, &err);
    if (status != TDM_OK) fprintf(stderr, "  (%s)\n", err.message);
    CHECK_INT(status, TDM_OK);
    return dataset;
}
