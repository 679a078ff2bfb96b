/*
 * csv.c: reads tables from CSV files. One line is a sample, one column the label, all other columns
 * are numbers.
 *
 * The first record determines the number of columns, the column of the label, and whether it is a
 * header. Every later record must have as many cells. A feature must be a finite decimal number. A
 * missing value, "nan" or a text is an error that names line, column and cell, because a guess
 * could spoil a training run silently. Memory for all rows is allocated once, before the first is
 * read: a cell has at least one character and a separator, so the size of the file limits the
 * number of rows.
 */
#include "base/base.h"
#include "data/formats/csv_records.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_LABEL SIZE_MAX

typedef struct csv_reader {
    const tdm__data_source *source;
    const tdm_data_options *options;
    tdm_dataset *dataset; /* being filled */
    tdm__csv_records records;
    tdm__classes classes;
    size_t column_count;
    size_t label_column; /* from 0; NO_LABEL */
    bool has_header;
    uint64_t first_line;       /* of the first record */
    const char **column_names; /* NULL without a header */
    float *features;           /* [row_capacity, feature_count] */
    int32_t *row_classes;      /* [row_capacity] */
    size_t feature_count;
    size_t row_count;
    size_t row_capacity;
} csv_reader;

static tdm_status no_memory(const csv_reader *reader, tdm_error *err)
{
    return tdm_fail_oom(err, "for the table (%s)", reader->source->name);
}

/* ---- which column is the label --------------------------------------------------------------- */

static bool cell_is(const tdm__csv_cell *cell, const char *text)
{
    return cell->length == strlen(text) && memcmp(cell->text, text, cell->length) == 0;
}

/* The names of the header, terminated, for tdm_text_nearest(). */
typedef struct name_list {
    const tdm__csv_records *records;
    char (*shown)[TDM__SHOW_BYTES];
} name_list;

static const char *header_name(size_t index, const void *user)
{
    const name_list *list = user;
    const tdm__csv_cell *cell = &list->records->cells[index];
    return tdm__text_show(cell->text, cell->length, list->shown[index]);
}

static tdm_status fail_no_such_column(csv_reader *reader, const char *label, tdm_error *err)
{
    const tdm__csv_records *records = &reader->records;
    size_t count = records->cell_count < 1000 ? records->cell_count : 1000;
    name_list list = {.records = records, .shown = calloc(count, TDM__SHOW_BYTES)};
    if (!list.shown) return no_memory(reader, err);
    const char *nearest = tdm_text_nearest(label, count, header_name, &list);
    char hint[TDM__SHOW_BYTES + 32] = "";
    if (nearest) snprintf(hint, sizeof(hint), "; did you mean '%s'?", nearest);
    tdm_status status = tdm_fail(
        err, TDM_ERR_INVALID,
        "%s: no column is named '%s' on line %llu, taken as the header; give the name, the "
        "number, first or last%s",
        reader->source->name, label, (unsigned long long)records->record_line, hint);
    free(list.shown);
    return status;
}

static tdm_status find_label_by_name(csv_reader *reader, const char *label, tdm_error *err)
{
    const tdm__csv_records *records = &reader->records;
    if (reader->options->header == TDM_DATA_HEADER_NO)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "%s: the label '%s' is a column name, but data.header says that the file "
                        "has no header; give the column's number, or first, last, none",
                        reader->source->name, label);
    size_t found = NO_LABEL;
    for (size_t i = 0; i < records->cell_count; i++) {
        if (!cell_is(&records->cells[i], label)) continue;
        if (found != NO_LABEL)
            return tdm_fail(err, TDM_ERR_INVALID,
                            "%s: columns %zu and %zu are both named '%s'; give the label column's "
                            "number",
                            reader->source->name, found + 1, i + 1, label);
        found = i;
    }
    if (found == NO_LABEL) return fail_no_such_column(reader, label, err);
    reader->label_column = found;
    reader->has_header = true;
    return TDM_OK;
}

/* With a known number of features, the number of columns tells whether there is a label. */
static tdm_status check_known_count(const csv_reader *reader, bool *out_no_label, tdm_error *err)
{
    uint64_t known = (uint64_t)reader->options->feature_count, columns = reader->column_count;
    *out_no_label = known > 0 && columns == known;
    if (known == 0 || columns == known || columns == known + 1) return TDM_OK;
    char hint[128] = "";
    if (columns == 1)
        snprintf(hint, sizeof(hint),
                 "; if another character than '%c' separates the columns, set the delimiter "
                 "(data.delimiter in a job)",
                 reader->records.delimiter);
    return tdm_fail(
        err, TDM_ERR_FORMAT,
        "%s: line %llu has %zu column%s; a sample has %llu numbers here, and one column "
        "more with its label%s",
        reader->source->name, (unsigned long long)reader->first_line, reader->column_count,
        columns == 1 ? "" : "s", (unsigned long long)known, hint);
}

static tdm_status choose_label(csv_reader *reader, tdm_error *err)
{
    const char *label = reader->options->label ? reader->options->label : "last";
    reader->label_column = NO_LABEL;
    bool no_label;
    TDM_TRY(check_known_count(reader, &no_label, err));
    if (no_label) return TDM_OK;
    if (strcmp(label, "none") == 0) return TDM_OK;
    if (strcmp(label, "first") == 0) {
        reader->label_column = 0;
    } else if (strcmp(label, "last") == 0) {
        reader->label_column = reader->column_count - 1;
    } else if (label[0] && strspn(label, "0123456789") == strlen(label)) {
        size_t number = strlen(label) < 9 ? (size_t)strtoul(label, NULL, 10) : SIZE_MAX;
        if (number < 1 || number > reader->column_count)
            return tdm_fail(
                err, TDM_ERR_INVALID,
                "%s: column %s for the label does not exist: line %llu has %zu columns, "
                "counted from 1",
                reader->source->name, label, (unsigned long long)reader->first_line,
                reader->column_count);
        reader->label_column = number - 1;
    } else {
        TDM_TRY(find_label_by_name(reader, label, err));
    }
    if (reader->column_count == 1)
        return tdm_fail(
            err, TDM_ERR_FORMAT,
            "%s: line %llu has only one column, the label, and so no features; if another "
            "character than '%c' separates the columns, set "
            "the delimiter",
            reader->source->name, (unsigned long long)reader->first_line,
            reader->records.delimiter);
    return TDM_OK;
}

/* ---- header ---------------------------------------------------------------------------------- */

/*
 * A missing value or "nan" is not a column name. Such a first line is data, and reading it reports
 * the error. If it were taken for a header, a sample would be lost silently.
 */
static bool looks_like_header(const csv_reader *reader)
{
    for (size_t i = 0; i < reader->column_count; i++) {
        if (i == reader->label_column) continue;
        const tdm__csv_cell *cell = &reader->records.cells[i];
        double value;
        if (tdm__number_parse(cell->text, cell->length, &value) == TDM__NUMBER_NOT_A_NUMBER)
            return true;
    }
    return false;
}

static tdm_status keep_names(csv_reader *reader, tdm_error *err)
{
    tdm_arena *arena = reader->dataset->arena;
    const char **columns = tdm_arena_array(arena, reader->column_count, sizeof(*columns));
    const char **features = tdm_arena_array(arena, reader->feature_count, sizeof(*features));
    if (!columns || !features) return no_memory(reader, err);
    size_t feature = 0;
    for (size_t i = 0; i < reader->column_count; i++) {
        const tdm__csv_cell *cell = &reader->records.cells[i];
        if (!tdm__utf8_ok(cell->text, cell->length))
            return tdm_fail(err, TDM_ERR_FORMAT,
                            "%s: line %llu, column %zu: the column name is not valid UTF-8; "
                            "convert the file (iconv -t UTF-8)",
                            reader->source->name, (unsigned long long)cell->line, i + 1);
        columns[i] = tdm_arena_strndup(arena, cell->text, cell->length);
        if (!columns[i]) return no_memory(reader, err);
        if (i != reader->label_column) features[feature++] = columns[i];
    }
    reader->column_names = columns;
    reader->dataset->info.feature_names = features;
    return TDM_OK;
}

/* Reads the first record and leaves the first row of data as the current record. */
static tdm_status read_start(csv_reader *reader, tdm_error *err)
{
    tdm__csv_records *records = &reader->records;
    bool found;
    TDM_TRY(tdm__csv_records_next(records, &found, err));
    if (!found)
        return tdm_fail(err, TDM_ERR_FORMAT, "%s: only blank lines; data was expected",
                        reader->source->name);
    reader->column_count = records->cell_count;
    reader->first_line = records->record_line;
    TDM_TRY(choose_label(reader, err));
    reader->feature_count = reader->column_count - (reader->label_column != NO_LABEL);
    if (!reader->has_header)
        reader->has_header = reader->options->header == TDM_DATA_HEADER_YES ||
                             (reader->options->header == TDM_DATA_HEADER_AUTO &&
                              looks_like_header(reader));
    if (!reader->has_header) return TDM_OK;
    TDM_TRY(keep_names(reader, err));
    TDM_TRY(tdm__csv_records_next(records, &found, err));
    if (!found)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: nothing follows the header on line %llu; rows of data were expected",
                        reader->source->name, (unsigned long long)reader->first_line);
    return TDM_OK;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static tdm_status rows_reserve(csv_reader *reader, tdm_error *err)
{
    const char *p = (const char *)reader->source->bytes;
    const char *end = p + reader->source->count;
    size_t lines = 1;
    while ((p = memchr(p, '\n', (size_t)(end - p)))) lines++, p++;
    size_t max = (reader->source->count + 1) / (2 * reader->column_count) + 1;
    size_t capacity = lines < max ? lines : max;
    size_t feature_bytes = reader->feature_count * sizeof(float);
    if (capacity > SIZE_MAX / feature_bytes) return no_memory(reader, err);
    reader->features = malloc(capacity * feature_bytes);
    if (!reader->features) return no_memory(reader, err);
    if (reader->label_column != NO_LABEL) {
        reader->row_classes = malloc(capacity * sizeof(*reader->row_classes));
        if (!reader->row_classes) return no_memory(reader, err);
    }
    reader->row_capacity = capacity;
    return TDM_OK;
}

/* "column 3 ('age')" or "column 3". Returns `buffer`. */
static const char *show_column(const csv_reader *reader, size_t column, char buffer[128])
{
    char shown[TDM__SHOW_BYTES];
    int used = snprintf(buffer, 128, "column %zu", column + 1);
    if (reader->column_names) {
        const char *name = reader->column_names[column];
        snprintf(buffer + used, 128 - (size_t)used, " ('%s')",
                 tdm__text_show(name, strlen(name), shown));
    }
    return buffer;
}

static tdm_status fail_cell(const csv_reader *reader, size_t column, tdm__number_result why,
                            tdm_error *err)
{
    static const char *const reasons[] = {
        [TDM__NUMBER_OK] = "is a number",
        [TDM__NUMBER_EMPTY] = "is empty, not a number: fill it in, or remove the row",
        [TDM__NUMBER_NOT_A_NUMBER] = "is not a number; features must be decimal numbers",
        [TDM__NUMBER_NOT_FINITE] = "is not a finite number: fill it in, or remove the row",
        [TDM__NUMBER_TOO_LARGE] = "is too large for a 32-bit float",
        [TDM__NUMBER_TOO_LONG] = "has too many digits; a number may have 255 characters",
    };
    const tdm__csv_cell *cell = &reader->records.cells[column];
    char shown[TDM__SHOW_BYTES];
    char place[128];
    bool guessed = !reader->has_header && reader->options->header == TDM_DATA_HEADER_AUTO &&
                   reader->records.record_line == reader->first_line;
    return tdm_fail(err, TDM_ERR_FORMAT, "%s: line %llu, %s: '%s' %s%s", reader->source->name,
                    (unsigned long long)cell->line, show_column(reader, column, place),
                    tdm__text_show(cell->text, cell->length, shown), reasons[why],
                    guessed ? "; if this line is a header, set data.header: yes in the job" : "");
}

/* `status` is the result of tdm__classes_number(); OK means that the label is not UTF-8. */
static tdm_status fail_label(const csv_reader *reader, tdm_status status, tdm_error *err)
{
    const tdm__csv_cell *cell = &reader->records.cells[reader->label_column];
    char place[128];
    char shown[TDM__SHOW_BYTES];
    char hint[128];
    const char *name = reader->source->name;
    unsigned long long line = cell->line;
    show_column(reader, reader->label_column, place);
    tdm__text_show(cell->text, cell->length, shown);
    if (cell->length == 0)
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: line %llu, %s: the label is missing; every row needs one", name, line,
                        place);
    switch (status) {
    case TDM_OK:
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: line %llu, %s: the label '%s' is not valid UTF-8; convert the file "
                        "(iconv -t UTF-8)",
                        name, line, place, shown);
    case TDM_ERR_RANGE:
        return tdm_fail(err, TDM_ERR_RANGE,
                        "%s: line %llu, %s: more than %d different labels; is this column really "
                        "the label?",
                        name, line, place, TDM__MAX_CLASSES);
    case TDM_ERR_NOT_FOUND:
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: line %llu, %s: the label '%s' is not one of the %d classes of the "
                        "training set%s",
                        name, line, place, shown, (int)reader->classes.count,
                        tdm__classes_hint(&reader->classes, cell->text, cell->length, hint));
    default: return no_memory(reader, err);
    }
}

static tdm_status read_label(csv_reader *reader, int32_t *out, tdm_error *err)
{
    const tdm__csv_cell *cell = &reader->records.cells[reader->label_column];
    if (cell->length == 0) return fail_label(reader, TDM_ERR_FORMAT, err);
    int32_t count_before = reader->classes.count;
    tdm_status status = tdm__classes_number(&reader->classes, cell->text, cell->length, out);
    if (status != TDM_OK) return fail_label(reader, status, err);
    bool is_new = reader->classes.count > count_before;
    if (is_new && !tdm__utf8_ok(cell->text, cell->length)) return fail_label(reader, TDM_OK, err);
    return TDM_OK;
}

static tdm_status read_row(csv_reader *reader, tdm_error *err)
{
    const tdm__csv_records *records = &reader->records;
    if (records->cell_count != reader->column_count)
        return tdm_fail(err, TDM_ERR_FORMAT, "%s: line %llu has %zu columns, but line %llu has %zu",
                        reader->source->name, (unsigned long long)records->record_line,
                        records->cell_count, (unsigned long long)reader->first_line,
                        reader->column_count);
    if (reader->row_count == reader->row_capacity)
        return tdm_fail(err, TDM_ERR_INTERNAL, "%s: line %llu: more rows than the size allows",
                        reader->source->name, (unsigned long long)records->record_line);
    float *out = reader->features + reader->row_count * reader->feature_count;
    for (size_t i = 0; i < reader->column_count; i++) {
        if (i == reader->label_column) continue;
        const tdm__csv_cell *cell = &records->cells[i];
        double value;
        tdm__number_result result = tdm__number_parse(cell->text, cell->length, &value);
        if (result != TDM__NUMBER_OK) return fail_cell(reader, i, result, err);
        *out++ = (float)value;
    }
    if (reader->row_classes)
        TDM_TRY(read_label(reader, &reader->row_classes[reader->row_count], err));
    reader->row_count++;
    return TDM_OK;
}

/* ---- the end --------------------------------------------------------------------------------- */

static tdm_status finish_classes(csv_reader *reader, tdm_error *err)
{
    tdm__classes *classes = &reader->classes;
    tdm_dataset_info *info = &reader->dataset->info;
    int32_t *numbers = malloc((size_t)classes->count * sizeof(*numbers));
    const char **names = tdm_arena_array(classes->arena, (size_t)classes->count, sizeof(*names));
    if (!numbers || !names) {
        free(numbers);
        return no_memory(reader, err);
    }
    tdm_status status = tdm__classes_sort(classes, numbers, err);
    if (status == TDM_OK) {
        memcpy(names, classes->names, (size_t)classes->count * sizeof(*names));
        for (size_t i = 0; i < reader->row_count; i++)
            reader->row_classes[i] = numbers[reader->row_classes[i]];
        info->class_names = names;
        info->class_count = classes->count;
    }
    free(numbers);
    return status;
}

/* Passes the blocks to the data set, cut to size. */
static void hand_over(csv_reader *reader)
{
    tdm_dataset *dataset = reader->dataset;
    float *features = realloc(reader->features,
                              reader->row_count * reader->feature_count * sizeof(*features));
    dataset->owned_features = features ? features : reader->features;
    dataset->features = dataset->owned_features;
    reader->features = NULL;
    if (reader->row_classes) {
        int32_t *classes = realloc(reader->row_classes, reader->row_count * sizeof(*classes));
        dataset->owned_classes = classes ? classes : reader->row_classes;
        dataset->classes = dataset->owned_classes;
        reader->row_classes = NULL;
    }
    dataset->info.sample_count = (int64_t)reader->row_count;
    dataset->info.feature_count = (int64_t)reader->feature_count;
    dataset->info.sample_shape = tdm_shape_1((int64_t)reader->feature_count);
    dataset->info.storage = TDM_DTYPE_F32;
}

static tdm_status read_table(csv_reader *reader, tdm_error *err)
{
    TDM_TRY(read_start(reader, err));
    TDM_TRY(rows_reserve(reader, err));
    for (bool found = true; found;) {
        TDM_TRY(read_row(reader, err));
        TDM_TRY(tdm__csv_records_next(&reader->records, &found, err));
    }
    if (reader->row_classes) TDM_TRY(finish_classes(reader, err));
    hand_over(reader);
    return TDM_OK;
}

static tdm_status check_options(const tdm__data_source *source, char delimiter, tdm_error *err)
{
    if (source->label_bytes)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "%s: a CSV file has its labels in a column, so a separate file of labels "
                        "(%s) is not allowed; remove it",
                        source->name, source->label_name);
    bool bad = (uint8_t)delimiter >= 0x80 || strchr("\"\r\n.+-_", delimiter) ||
               (delimiter >= '0' && delimiter <= '9') || (delimiter >= 'A' && delimiter <= 'Z') ||
               (delimiter >= 'a' && delimiter <= 'z');
    if (bad)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "%s: byte %d cannot separate columns; use a comma, a semicolon, a tab or "
                        "another character that is not part of a number, a word or a quote",
                        source->name, (int)(uint8_t)delimiter);
    return TDM_OK;
}

static tdm_status csv_read(const tdm__data_source *source, const tdm_data_options *options,
                           tdm_dataset *dataset, tdm_error *err)
{
    char delimiter = options->delimiter ? options->delimiter : ',';
    TDM_TRY(check_options(source, delimiter, err));
    csv_reader reader = {.source = source, .options = options, .dataset = dataset};
    tdm_status status = tdm__csv_records_init(&reader.records, source, delimiter, err);
    if (status == TDM_OK) {
        status = tdm__classes_init(&reader.classes, dataset->arena, options, err);
        if (status != TDM_OK) tdm_error_context(err, status, "%s", source->name);
    }
    if (status == TDM_OK) status = read_table(&reader, err);
    free(reader.features);
    free(reader.row_classes);
    tdm__classes_release(&reader.classes);
    tdm__csv_records_release(&reader.records);
    return status;
}

/* Text contains no NUL bytes; the first few thousand bytes are checked. */
static bool csv_sniff(const tdm__data_source *source)
{
    const uint8_t *bytes = source->bytes;
    size_t count = source->count;
    bool utf16 = count >= 2 &&
                 ((bytes[0] == 0xff && bytes[1] == 0xfe) || (bytes[0] == 0xfe && bytes[1] == 0xff));
    return utf16 || !memchr(bytes, 0, count < 4096 ? count : 4096);
}

const tdm_data_format_ops tdm__data_format_csv = {
    .name = "csv",
    .format = TDM_DATA_FORMAT_CSV,
    .kind = TDM_DATA_KIND_TABLE,
    .sniff = csv_sniff,
    .read = csv_read,
};
