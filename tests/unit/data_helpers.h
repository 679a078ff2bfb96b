/*
 * data_helpers.h: shared by the tests of the module data: parsing texts and bytes, expecting an error, reading
 * one sample, compressing with gzip, building IDX files.
 */
#ifndef TANDEM_TESTS_DATA_HELPERS_H
#define TANDEM_TESTS_DATA_HELPERS_H

#include "check.h"
#include "data/internal.h"

#include <math.h>
#include <stdlib.h>
#include <zlib.h>

tdm_dataset *parse_bytes(const void *bytes, size_t count, const tdm_data_options *options);

tdm_dataset *parse_text(const char *text, const tdm_data_options *options);

/* The parse must fail with this status and message part, and must not write its output. */
void refuse(const void *bytes, size_t count, const void *labels, size_t label_count,
            const tdm_data_options *options, tdm_status expected, const char *part);

void refuse_text(const char *text, const tdm_data_options *options, tdm_status expected,
                 const char *part);

float feature(const tdm_dataset *dataset, int64_t sample, int64_t index);

int32_t class_of(const tdm_dataset *dataset, int64_t sample);

uint8_t *gzip_bytes(const void *bytes, size_t count, size_t *out_count);

/* "0 0 type ndim" and dimensions, then `count` bytes of data. */
typedef struct idx_file {
    uint8_t bytes[512];
    size_t count;
} idx_file;

idx_file idx_build(int type, int dim_count, const uint32_t *dims, const void *data, size_t count);

#define DIMS(...)                                                                                  \
    (const uint32_t[])                                                                             \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

tdm_dataset *idx_parse(const idx_file *images, const idx_file *labels,
                       const tdm_data_options *options);

#endif
