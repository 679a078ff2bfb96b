/*
 * dataset.c: loads a data set from a file or from bytes, and releases it.
 *
 * The steps: read the file, decompress it if it is gzip, find the format, and let it read. Formats
 * do not open files and do not know gzip. A failure releases everything, and its message begins
 * with the name of the file.
 */
#include "base/base.h"
#include "data/data.h"
#include "data/internal.h"

#include <stdlib.h>
#include <tandem/os.h>

/* Plain bytes: borrowed, or decompressed into `owned`. */
typedef struct plain_bytes {
    const uint8_t *bytes;
    size_t count;
    uint8_t *owned;
} plain_bytes;

static uint64_t limit_of(const tdm_data_options *options)
{
    return options->limit_bytes ? options->limit_bytes : TDM__DEFAULT_LIMIT_BYTES;
}

static tdm_status make_plain(const char *name, const void *bytes, size_t count, uint64_t limit,
                             plain_bytes *out, tdm_error *err)
{
    plain_bytes plain = {.bytes = bytes, .count = count};
    if (count == 0)
        return tdm_fail(err, TDM_ERR_FORMAT, "%s: the file is empty; data was expected", name);
    if (tdm__gzip_sniff(bytes, count)) {
        TDM_TRY(tdm__gzip_unpack(name, bytes, count, limit, &plain.owned, &plain.count, err));
        plain.bytes = plain.owned;
        if (plain.count == 0) {
            free(plain.owned);
            return tdm_fail(err, TDM_ERR_FORMAT,
                            "%s: the file is empty after decompression; data was expected", name);
        }
    } else if (count > limit) {
        return tdm_fail(err, TDM_ERR_RANGE,
                        "%s: %zu bytes are more than the limit of %llu; split the file", name,
                        count, (unsigned long long)limit);
    }
    *out = plain;
    return TDM_OK;
}

static tdm_status read_source(const tdm__data_source *source, const tdm_data_options *options,
                              tdm_dataset **out, tdm_error *err)
{
    const tdm_data_format_ops *format;
    TDM_TRY(tdm__data_format_find(source, options, &format, err));
    tdm_dataset *dataset = calloc(1, sizeof(*dataset));
    if (dataset) dataset->arena = tdm_arena_create("data set");
    if (dataset && dataset->arena)
        dataset->info.path = tdm_arena_strdup(dataset->arena, source->name);
    if (!dataset || !dataset->info.path) {
        tdm_dataset_destroy(dataset);
        return tdm_fail_oom(err, "for the data set (%s)", source->name);
    }
    dataset->info.kind = format->kind;
    tdm_status status = format->read(source, options, dataset, err);
    if (status != TDM_OK) {
        tdm_dataset_destroy(dataset);
        return status;
    }
    *out = dataset;
    return TDM_OK;
}

tdm_status tdm_dataset_parse(const void *bytes, size_t count, const void *label_bytes,
                             size_t label_count, const char *name, const tdm_data_options *options,
                             tdm_dataset **out, tdm_error *err)
{
    static const tdm_data_options defaults = {0};
    if (!options) options = &defaults;
    plain_bytes data = {0};
    plain_bytes labels = {0};
    const char *label_name = options->labels_path ? options->labels_path : "the file of labels";
    tdm_status status = make_plain(name, bytes, count, limit_of(options), &data, err);
    if (status == TDM_OK && label_bytes)
        status = make_plain(label_name, label_bytes, label_count, limit_of(options), &labels, err);
    if (status == TDM_OK) {
        tdm__data_source source = {.name = name,
                                   .bytes = data.bytes,
                                   .count = data.count,
                                   .label_name = label_name,
                                   .label_bytes = labels.bytes,
                                   .label_count = labels.count};
        status = read_source(&source, options, out, err);
    }
    free(labels.owned);
    free(data.owned);
    return status;
}

tdm_status tdm_dataset_load(const char *path, const tdm_data_options *options, tdm_dataset **out,
                            tdm_error *err)
{
    static const tdm_data_options defaults = {0};
    if (!options) options = &defaults;
    tdm_file_bytes data;
    tdm_file_bytes labels = {0};
    TDM_TRY(tdm_file_read(path, limit_of(options), &data, err));
    tdm_status status = TDM_OK;
    if (options->labels_path)
        status = tdm_file_read(options->labels_path, limit_of(options), &labels, err);
    if (status == TDM_OK) {
        /* An empty file may have no address; it still counts as a file of labels. */
        const void *label_bytes = labels.data ? labels.data : (const uint8_t *)"";
        status = tdm_dataset_parse(data.data, data.count, options->labels_path ? label_bytes : NULL,
                                   labels.count, path, options, out, err);
    }
    if (options->labels_path) tdm_file_bytes_release(&labels);
    tdm_file_bytes_release(&data);
    return status;
}

void tdm_dataset_destroy(tdm_dataset *dataset)
{
    if (!dataset) return;
    free(dataset->owned_features);
    free(dataset->owned_classes);
    tdm_arena_destroy(dataset->arena);
    free(dataset);
}

const tdm_dataset_info *tdm_dataset_info_of(const tdm_dataset *dataset)
{
    return &dataset->info;
}

const void *tdm_dataset_block(const tdm_dataset *dataset, size_t *bytes)
{
    const tdm_dataset_info *info = &dataset->info;
    if (info->kind == TDM_DATA_KIND_SPARSE) {
        *bytes = dataset->block_bytes;
        return dataset->features;
    }
    int64_t elements = info->kind == TDM_DATA_KIND_TOKENS
                           ? info->token_count
                           : info->sample_count * info->feature_count;
    *bytes = (size_t)elements * tdm_dtype_bytes(info->storage);
    return dataset->features;
}

/* The address of `part` of the block at `from` in its copy at `to`. */
static const void *moved(const void *part, const void *from, const void *to)
{
    return (const char *)to + ((const char *)part - (const char *)from);
}

void tdm_dataset_move(tdm_dataset *dataset, const void *from, const void *to)
{
    dataset->features = moved(dataset->features, from, to);
    if (dataset->info.kind == TDM_DATA_KIND_SPARSE) {
        dataset->offsets = moved(dataset->offsets, from, to);
        dataset->keys = moved(dataset->keys, from, to);
        dataset->values = moved(dataset->values, from, to);
    }
    if (dataset->owned_features != from) return;
    free(dataset->owned_features);
    dataset->owned_features = NULL;
}
