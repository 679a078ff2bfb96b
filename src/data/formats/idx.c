/*
 * idx.c: reads IDX files, the format of MNIST: a header, then an array of numbers, big-endian.
 *
 * The header is two zero bytes, a type, a number of dimensions, and each dimension with 32 bits.
 * The first dimension is the number of samples. Features of unsigned bytes remain bytes in memory;
 * the other types become f32. Labels are in a separate file: one dimension, integers from 0, one
 * for each sample.
 *
 * The header is not trusted: the product of the dimensions is computed with overflow checks and
 * must match the length of the file exactly, before anything is allocated or read.
 */
#include "base/base.h"
#include "data/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_IDX_DIMS 7

enum {
    IDX_U8 = 0x08,
    IDX_I8 = 0x09,
    IDX_I16 = 0x0b,
    IDX_I32 = 0x0c,
    IDX_F32 = 0x0d,
    IDX_F64 = 0x0e
};

typedef struct idx_array {
    int type;
    tdm_shape shape;
    int64_t element_count;
    size_t element_bytes;
    const uint8_t *data;
} idx_array;

static size_t bytes_of_type(int type)
{
    switch (type) {
    case IDX_U8:
    case IDX_I8: return 1;
    case IDX_I16: return 2;
    case IDX_I32:
    case IDX_F32: return 4;
    case IDX_F64: return 8;
    default: return 0;
    }
}

static uint32_t read_u32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static double read_number(int type, const uint8_t *p)
{
    switch (type) {
    case IDX_U8: return p[0];
    case IDX_I8: return (int8_t)p[0];
    case IDX_I16: return (int16_t)((uint16_t)p[0] << 8 | p[1]);
    case IDX_I32: return (int32_t)read_u32(p);
    case IDX_F32: {
        uint32_t bits = read_u32(p);
        float value;
        memcpy(&value, &bits, sizeof(value));
        return (double)value;
    }
    default: {
        uint64_t bits = (uint64_t)read_u32(p) << 32 | read_u32(p + 4);
        double value;
        memcpy(&value, &bits, sizeof(value));
        return value;
    }
    }
}

/* ---- header ---------------------------------------------------------------------------------- */

static tdm_status read_dims(const char *name, const uint8_t *bytes, size_t count, idx_array *array,
                            tdm_error *err)
{
    int dim_count = bytes[3];
    size_t header_bytes = 4 + 4 * (size_t)dim_count;
    if (count < header_bytes)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: the file is truncated: a header of %d dimensions takes %zu bytes, and "
                        "it has %zu",
                        name, dim_count, header_bytes, count);
    array->shape.rank = dim_count;
    for (int i = 0; i < dim_count; i++) {
        array->shape.dim[i] = (int64_t)read_u32(bytes + 4 + 4 * i);
        if (array->shape.dim[i] == 0)
            return tdm_fail(err, TDM_ERR_FORMAT, "%s: dimension %d of %d is 0: the file is empty",
                            name, i + 1, dim_count);
    }
    return TDM_OK;
}

static tdm_status check_length(const char *name, size_t count, idx_array *array, tdm_error *err)
{
    char shape[128];
    tdm_shape_text(&array->shape, shape);
    size_t header_bytes = 4 + 4 * (size_t)array->shape.rank;
    array->element_count = tdm_shape_elements(&array->shape);
    if (array->element_count < 0 ||
        (uint64_t)array->element_count > (INT64_MAX - header_bytes) / array->element_bytes)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: the header's dimensions %s are larger than any file; it is damaged, "
                        "or not IDX",
                        name, shape);
    uint64_t wanted = header_bytes + (uint64_t)array->element_count * array->element_bytes;
    if (wanted != count)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: the header says %s of %zu bytes each, %llu bytes in all, but the file "
                        "has %zu; it is %s",
                        name, shape, array->element_bytes, (unsigned long long)wanted, count,
                        count < wanted ? "truncated" : "too long");
    return TDM_OK;
}

static tdm_status read_header(const char *name, const uint8_t *bytes, size_t count, idx_array *out,
                              tdm_error *err)
{
    if (count < 4)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: %zu bytes are too few for IDX, whose header takes at least 8", name,
                        count);
    if (bytes[0] != 0 || bytes[1] != 0)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: not an IDX file: it begins with bytes 0x%02x 0x%02x, not with two "
                        "zeros",
                        name, bytes[0], bytes[1]);
    idx_array array = {.type = bytes[2], .element_bytes = bytes_of_type(bytes[2])};
    if (array.element_bytes == 0)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: byte 2: unknown IDX type 0x%02x; known are 0x08 (unsigned byte), 0x09 "
                        "(signed byte), 0x0b (int16), 0x0c (int32), 0x0d (float32), 0x0e (float64)",
                        name, bytes[2]);
    if (bytes[3] < 1 || bytes[3] > MAX_IDX_DIMS)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: byte 3: %d dimensions; an IDX file here has 1 to %d", name, bytes[3],
                        MAX_IDX_DIMS);
    TDM_TRY(read_dims(name, bytes, count, &array, err));
    TDM_TRY(check_length(name, count, &array, err));
    array.data = bytes + 4 + 4 * (size_t)array.shape.rank;
    *out = array;
    return TDM_OK;
}

/* ---- features -------------------------------------------------------------------------------- */

static tdm_status convert_features(const tdm__data_source *source, const idx_array *array,
                                   float *out, int64_t feature_count, tdm_error *err)
{
    const uint8_t *p = array->data;
    for (int64_t i = 0; i < array->element_count; i++, p += array->element_bytes) {
        double number = read_number(array->type, p);
        out[i] = (float)number;
        if (isfinite(out[i])) continue;
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: sample %lld, feature %lld (both from 0): %g is %s", source->name,
                        (long long)(i / feature_count), (long long)(i % feature_count), number,
                        isfinite(number) ? "too large for a 32-bit float" : "not a finite number");
    }
    return TDM_OK;
}

static tdm_status read_features(const tdm__data_source *source, const idx_array *array,
                                tdm_dataset *dataset, tdm_error *err)
{
    tdm_dataset_info *info = &dataset->info;
    info->sample_count = array->shape.dim[0];
    info->feature_count = array->element_count / info->sample_count;
    info->sample_shape.rank = array->shape.rank - 1;
    for (int i = 1; i < array->shape.rank; i++) info->sample_shape.dim[i - 1] = array->shape.dim[i];
    info->storage = array->type == IDX_U8 ? TDM_DTYPE_U8 : TDM_DTYPE_F32;

    /* check_length() has compared the count with existing bytes, so four times the count cannot
     * overflow. */
    size_t bytes = (size_t)array->element_count * tdm_dtype_bytes(info->storage);
    dataset->owned_features = malloc(bytes);
    if (!dataset->owned_features)
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "%s: no memory for %zu bytes of features",
                        source->name, bytes);
    dataset->features = dataset->owned_features;
    if (array->type == IDX_U8) {
        memcpy(dataset->owned_features, array->data, bytes);
        return TDM_OK;
    }
    return convert_features(source, array, dataset->owned_features, info->feature_count, err);
}

/* ---- labels ---------------------------------------------------------------------------------- */

static tdm_status check_label_array(const tdm__data_source *source, const idx_array *array,
                                    int64_t sample_count, tdm_error *err)
{
    char shape[128];
    if (array->shape.rank != 1)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: a file of labels has one dimension, and this has %s; are the files of "
                        "images and labels swapped?",
                        source->label_name, tdm_shape_text(&array->shape, shape));
    if (array->type == IDX_F32 || array->type == IDX_F64)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: the labels are floating-point numbers; classes must be whole numbers",
                        source->label_name);
    if (array->shape.dim[0] != sample_count)
        return tdm_fail(err, TDM_ERR_FORMAT, "%s: %lld labels, but %s has %lld samples",
                        source->label_name, (long long)array->shape.dim[0], source->name,
                        (long long)sample_count);
    return TDM_OK;
}

static tdm_status read_label_numbers(const tdm__data_source *source, const idx_array *array,
                                     int32_t *out, int32_t *out_largest, tdm_error *err)
{
    int32_t largest = 0;
    const uint8_t *p = array->data;
    for (int64_t i = 0; i < array->element_count; i++, p += array->element_bytes) {
        int32_t label = (int32_t)read_number(array->type, p);
        if (label < 0 || label >= TDM__MAX_CLASSES)
            return tdm_fail(err, TDM_ERR_FORMAT,
                            "%s: sample %lld (from 0): the label %d is outside 0 to %d",
                            source->label_name, (long long)i, label, TDM__MAX_CLASSES - 1);
        out[i] = label;
        if (label > largest) largest = label;
    }
    *out_largest = largest;
    return TDM_OK;
}

/* Maps labels to the given classes by their decimal text, so they may be other than 0, 1, 2. */
static tdm_status map_to_given(const tdm__data_source *source, tdm__classes *classes,
                               int32_t *labels, int64_t count, int32_t largest, tdm_error *err)
{
    int32_t *numbers = malloc(((size_t)largest + 1) * sizeof(*numbers));
    if (!numbers) return tdm_fail_oom(err, "for %s", source->label_name);
    for (int32_t i = 0; i <= largest; i++) {
        char text[16];
        size_t length = (size_t)snprintf(text, sizeof(text), "%d", i);
        if (tdm__classes_number(classes, text, length, &numbers[i]) != TDM_OK) numbers[i] = -1;
    }
    tdm_status status = TDM_OK;
    for (int64_t i = 0; i < count && status == TDM_OK; i++) {
        if (numbers[labels[i]] < 0)
            status = tdm_fail(err, TDM_ERR_FORMAT,
                              "%s: sample %lld (from 0): the label %d is not one of the %d "
                              "classes of the training set",
                              source->label_name, (long long)i, labels[i], classes->count);
        else
            labels[i] = numbers[labels[i]];
    }
    free(numbers);
    return status;
}

static tdm_status name_classes(const tdm__data_source *source, const tdm_data_options *options,
                               int32_t largest, tdm_dataset *dataset, tdm_error *err)
{
    tdm_arena *arena = dataset->arena;
    tdm_dataset_info *info = &dataset->info;
    tdm__classes classes;
    tdm_status status = tdm__classes_init(&classes, arena, options, err);
    if (status != TDM_OK) {
        tdm_error_context(err, status, "%s", source->label_name);
    } else if (classes.fixed) {
        status = map_to_given(source, &classes, dataset->owned_classes, info->sample_count, largest,
                              err);
    }
    int64_t count = classes.fixed ? classes.count : (int64_t)largest + 1;
    const char **names = tdm_arena_array(arena, (size_t)count, sizeof(*names));
    for (int64_t i = 0; names && i < count; i++) {
        names[i] = classes.fixed ? classes.names[i] : tdm_arena_printf(arena, "%lld", (long long)i);
        if (!names[i]) names = NULL;
    }
    tdm__classes_release(&classes);
    TDM_TRY(status);
    if (!names) return tdm_fail_oom(err, "for %s", source->label_name);
    info->class_names = names;
    info->class_count = count;
    return TDM_OK;
}

static tdm_status read_labels(const tdm__data_source *source, const tdm_data_options *options,
                              tdm_dataset *dataset, tdm_error *err)
{
    idx_array array = {0};
    TDM_TRY(read_header(source->label_name, source->label_bytes, source->label_count, &array, err));
    TDM_TRY(check_label_array(source, &array, dataset->info.sample_count, err));
    int32_t *labels = malloc((size_t)dataset->info.sample_count * sizeof(*labels));
    if (!labels) return tdm_fail_oom(err, "for %s", source->label_name);
    dataset->owned_classes = labels;
    dataset->classes = labels;
    int32_t largest = 0;
    TDM_TRY(read_label_numbers(source, &array, labels, &largest, err));
    return name_classes(source, options, largest, dataset, err);
}

/* ---- the format ------------------------------------------------------------------------------ */

static tdm_status idx_read(const tdm__data_source *source, const tdm_data_options *options,
                           tdm_dataset *dataset, tdm_error *err)
{
    idx_array array = {0};
    TDM_TRY(read_header(source->name, source->bytes, source->count, &array, err));
    if (array.shape.rank < 2)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: features need two dimensions or more, and this has %lld numbers in "
                        "one: it looks like a file of labels; are images and labels swapped?",
                        source->name, (long long)array.shape.dim[0]);
    TDM_TRY(read_features(source, &array, dataset, err));
    return source->label_bytes ? read_labels(source, options, dataset, err) : TDM_OK;
}

/* Text never begins with two zero bytes. The rest is checked, with messages, when it is read. */
static bool idx_sniff(const tdm__data_source *source)
{
    return source->count >= 2 && source->bytes[0] == 0 && source->bytes[1] == 0;
}

const tdm_data_format_ops tdm__data_format_idx = {
    .name = "idx",
    .format = TDM_DATA_FORMAT_IDX,
    .kind = TDM_DATA_KIND_TABLE,
    .sniff = idx_sniff,
    .read = idx_read,
};
