/*
 * sparse_rows.c: see sparse_rows.h.
 */
#include "data/formats/sparse_rows.h"
#include "base/base.h"

#include <stdlib.h>

/* ---- lines -------------------------------------------------------------------------------------- */

tdm_status tdm__lines_init(tdm__lines *lines, const tdm__data_source *source, tdm_error *err)
{
    const uint8_t *b = source->bytes;
    *lines = (tdm__lines){
        .name = source->name, .next = (const char *)b, .end = (const char *)b + source->count};
    if (source->count >= 2 && ((b[0] == 0xff && b[1] == 0xfe) || (b[0] == 0xfe && b[1] == 0xff)))
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: the text is UTF-16; save it as UTF-8 (iconv -f UTF-16 -t UTF-8)",
                        source->name);
    if (source->count >= 3 && memcmp(b, "\xef\xbb\xbf", 3) == 0) lines->next += 3;
    return TDM_OK;
}

tdm_status tdm__lines_next(tdm__lines *lines, bool *out_found, tdm_error *err)
{
    *out_found = lines->next < lines->end;
    if (!*out_found) return TDM_OK;
    const char *text = lines->next;
    const char *stop = memchr(text, '\n', (size_t)(lines->end - text));
    lines->next = stop ? stop + 1 : lines->end;
    if (!stop) stop = lines->end;
    if (stop > text && stop[-1] == '\r') stop--;
    lines->text = text;
    lines->length = (size_t)(stop - text);
    lines->number++;
    const char *zero = memchr(text, 0, lines->length);
    if (zero) return tdm__lines_fail(lines, zero, err, "a NUL byte; this is not a text file");
    return TDM_OK;
}

size_t tdm__lines_count(const tdm__data_source *source)
{
    const char *p = (const char *)source->bytes, *end = p + source->count;
    size_t count = 1;
    while ((p = memchr(p, '\n', (size_t)(end - p)))) count++, p++;
    return count;
}

tdm_status tdm__lines_fail(const tdm__lines *lines, const char *at, tdm_error *err, const char *fmt,
                           ...)
{
    va_list args;
    va_start(args, fmt);
    tdm_error local;
    tdm_error *target = err ? err : &local;
    tdm_status status = tdm_vfail(target, TDM_ERR_FORMAT, fmt, args);
    va_end(args);
    return tdm_error_context(target, status, "%s: line %llu, column %zu", lines->name,
                             (unsigned long long)lines->number, (size_t)(at - lines->text) + 1);
}

/* ---- samples ------------------------------------------------------------------------------------ */

static tdm_status rows_no_memory(const tdm__sparse_rows *rows, tdm_error *err)
{
    return tdm_fail_oom(err, "for the samples (%s)", rows->source->name);
}

tdm_status tdm__sparse_rows_init(tdm__sparse_rows *rows, const tdm__data_source *source,
                                 const tdm_data_options *options, tdm_dataset *dataset,
                                 size_t row_capacity, size_t entry_capacity, bool has_labels,
                                 tdm_error *err)
{
    *rows = (tdm__sparse_rows){.source = source,
                               .dataset = dataset,
                               .row_capacity = row_capacity,
                               .entry_capacity = entry_capacity};
    if (row_capacity > SIZE_MAX / 64 || entry_capacity > SIZE_MAX / 64)
        return rows_no_memory(rows, err);
    size_t keys_at = (row_capacity + 1) * sizeof(*rows->offsets);
    size_t values_at = keys_at + entry_capacity * sizeof(*rows->keys);
    rows->block_bytes = values_at + entry_capacity * sizeof(*rows->values);
    rows->block = malloc(rows->block_bytes);
    if (!rows->block) return rows_no_memory(rows, err);
    rows->offsets = rows->block;
    rows->keys = (uint64_t *)(void *)((char *)rows->block + keys_at);
    rows->values = (float *)(void *)((char *)rows->block + values_at);
    rows->offsets[0] = 0;
    if (!has_labels) return TDM_OK;
    rows->row_classes = malloc((row_capacity + 1) * sizeof(*rows->row_classes));
    if (!rows->row_classes) return rows_no_memory(rows, err);
    tdm_status status = tdm__classes_init(&rows->classes, dataset->arena, options, err);
    return status == TDM_OK ? TDM_OK : tdm_error_context(err, status, "%s", source->name);
}

void tdm__sparse_rows_release(tdm__sparse_rows *rows)
{
    free(rows->block);
    free(rows->row_classes);
    tdm__classes_release(&rows->classes);
    *rows = (tdm__sparse_rows){0};
}

tdm_status tdm__sparse_rows_label(tdm__sparse_rows *rows, const tdm__lines *lines, const char *at,
                                  size_t length, tdm_error *err)
{
    char shown[TDM__SHOW_BYTES];
    char hint[128];
    int32_t before = rows->classes.count, class_number = 0;
    if (length == 0)
        return tdm__lines_fail(lines, at, err, "the label is missing; every sample needs one");
    if (rows->row_count == rows->row_capacity)
        return tdm_fail(err, TDM_ERR_INTERNAL, "%s: line %llu: more samples than the size allows",
                        lines->name, (unsigned long long)lines->number);
    tdm_status status = tdm__classes_number(&rows->classes, at, length, &class_number);
    tdm__text_show(at, length, shown);
    switch (status) {
    case TDM_OK: break;
    case TDM_ERR_RANGE:
        return tdm__lines_fail(lines, at, err,
                               "more than %d different labels; is the first column really a class?",
                               TDM__MAX_CLASSES);
    case TDM_ERR_NOT_FOUND:
        return tdm__lines_fail(
            lines, at, err, "the label '%s' is not one of the %d classes of the training set%s",
            shown, (int)rows->classes.count, tdm__classes_hint(&rows->classes, at, length, hint));
    default: return rows_no_memory(rows, err);
    }
    if (rows->classes.count > before && !tdm__utf8_ok(at, length))
        return tdm__lines_fail(
            lines, at, err, "the label '%s' is not valid UTF-8; convert the file (iconv -t UTF-8)",
            shown);
    rows->row_classes[rows->row_count] = class_number;
    return TDM_OK;
}

tdm_status tdm__sparse_rows_end(tdm__sparse_rows *rows, tdm_error *err)
{
    if (rows->row_count == rows->row_capacity)
        return tdm_fail(err, TDM_ERR_INTERNAL, "%s: more samples than the size allows",
                        rows->source->name);
    size_t count = rows->entry_count - (size_t)rows->offsets[rows->row_count];
    if (count > rows->most) rows->most = count;
    rows->offsets[++rows->row_count] = (int64_t)rows->entry_count;
    return TDM_OK;
}

static tdm_status rows_finish_classes(tdm__sparse_rows *rows, tdm_error *err)
{
    tdm_dataset_info *info = &rows->dataset->info;
    size_t count = (size_t)rows->classes.count;
    int32_t *numbers = malloc(count * sizeof(*numbers));
    const char **names = tdm_arena_array(rows->dataset->arena, count, sizeof(*names));
    tdm_status status = numbers && names ? TDM_OK : rows_no_memory(rows, err);
    if (status == TDM_OK) status = tdm__classes_sort(&rows->classes, numbers, err);
    if (status == TDM_OK) {
        memcpy(names, rows->classes.names, count * sizeof(*names));
        for (size_t i = 0; i < rows->row_count; i++)
            rows->row_classes[i] = numbers[rows->row_classes[i]];
        info->class_names = names;
        info->class_count = (int64_t)count;
    }
    free(numbers);
    return status;
}

tdm_status tdm__sparse_rows_finish(tdm__sparse_rows *rows, tdm_error *err)
{
    if (rows->row_count == 0)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: it has no samples, only blank lines or comments; data was expected",
                        rows->source->name);
    if (rows->most == 0)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: none of its %zu samples has a feature; is it another format?",
                        rows->source->name, rows->row_count);
    if (rows->row_classes) TDM_TRY(rows_finish_classes(rows, err));
    tdm_dataset *dataset = rows->dataset;
    dataset->features = dataset->owned_features = rows->block;
    dataset->block_bytes = rows->block_bytes;
    dataset->offsets = rows->offsets;
    dataset->keys = rows->keys;
    dataset->values = rows->values;
    dataset->classes = dataset->owned_classes = rows->row_classes;
    rows->block = NULL;
    rows->row_classes = NULL;
    tdm_dataset_info *info = &dataset->info;
    info->sample_count = (int64_t)rows->row_count;
    info->entry_count = (int64_t)rows->entry_count;
    info->feature_count = (int64_t)rows->most;
    info->sample_shape = tdm_shape_1((int64_t)rows->most);
    info->storage = TDM_DTYPE_F32;
    return TDM_OK;
}

tdm_status tdm__sparse_check_labels(const tdm__data_source *source, const char *format,
                                    tdm_error *err)
{
    if (!source->label_bytes) return TDM_OK;
    return tdm_fail(err, TDM_ERR_INVALID,
                    "%s: a %s file has its labels in the first column, so a separate file of "
                    "labels (%s) is not allowed; remove it",
                    source->name, format, source->label_name);
}
