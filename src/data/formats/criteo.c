/*
 * criteo.c: reads click logs in the layout of Criteo's data sets.
 *
 * A line has 40 columns, separated by tabs: the label, 13 integers (I1 to I13) and 26 categories (C1 to C26) of up to
 * 8 hexadecimal digits. Integers and categories can be missing: then the sample has no entry for the column. A file
 * without labels has 39 columns. The field of an entry is the number of its column, counted from 0 with the label:
 * 1 to 13 for integers, 14 to 39 for categories. An integer has the key field << 32 and its number as the value; a
 * category has the key field << 32 | digits and the value 1.
 */
#include "base/base.h"
#include "data/formats/sparse_rows.h"

#include <stdio.h>
#include <string.h>

enum { INTEGERS = 13, CATEGORIES = 26, FIELDS = INTEGERS + CATEGORIES, HEX_DIGITS = 8 };

typedef struct criteo_reader {
    tdm__lines lines;
    tdm__sparse_rows rows;
    bool has_label;
} criteo_reader;

/* "I3" or "C20". Returns `buffer`. */
static const char *field_name(int field, char buffer[16])
{
    snprintf(buffer, 16, field <= INTEGERS ? "I%d" : "C%d",
             field <= INTEGERS ? field : field - INTEGERS);
    return buffer;
}

/* The column of a field, from 1. */
static int column_of(const criteo_reader *reader, int field)
{
    return reader->has_label ? field + 1 : field;
}

static tdm_status criteo_fail_cell(const criteo_reader *reader, int field, const char *at,
                                   size_t length, const char *what, tdm_error *err)
{
    char shown[TDM__SHOW_BYTES], name[16];
    return tdm_fail(err, TDM_ERR_FORMAT, "%s: line %llu, column %d ('%s'): '%s' is not %s",
                    reader->lines.name, (unsigned long long)reader->lines.number,
                    column_of(reader, field), field_name(field, name),
                    tdm__text_show(at, length, shown), what);
}

/* Digits with an optional minus, in 32 bits. */
static bool integer_parse(const char *text, size_t length, int64_t *out)
{
    bool is_negative = length > 0 && text[0] == '-';
    int64_t number = 0;
    size_t i = is_negative;
    if (i == length || length > 11) return false;
    for (; i < length; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        number = number * 10 + (text[i] - '0');
    }
    *out = is_negative ? -number : number;
    return *out >= INT32_MIN && *out <= INT32_MAX;
}

static bool hex_parse(const char *text, size_t length, uint32_t *out)
{
    uint32_t number = 0;
    if (length == 0 || length > HEX_DIGITS) return false;
    for (size_t i = 0; i < length; i++) {
        char c = text[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return false;
        number = number << 4 | (uint32_t)digit;
    }
    *out = number;
    return true;
}

static tdm_status criteo_cell(criteo_reader *reader, int field, const char *at, size_t length,
                              tdm_error *err)
{
    uint64_t key = (uint64_t)field << 32;
    float value = 1;
    if (length == 0) return TDM_OK;
    if (field <= INTEGERS) {
        int64_t number;
        if (!integer_parse(at, length, &number))
            return criteo_fail_cell(reader, field, at, length,
                                    "a decimal integer of 32 bits; leave the column empty if it is "
                                    "missing",
                                    err);
        value = (float)number;
    } else {
        uint32_t category;
        if (!hex_parse(at, length, &category))
            return criteo_fail_cell(reader, field, at, length,
                                    "a category of 1 to 8 hexadecimal digits; leave the column "
                                    "empty if it is missing",
                                    err);
        key |= category;
    }
    if (!tdm__sparse_rows_add(&reader->rows, key, value))
        return tdm__lines_fail(&reader->lines, at, err, "more entries than the size allows");
    return TDM_OK;
}

static tdm_status criteo_check_columns(const criteo_reader *reader, tdm_error *err)
{
    const char *p = reader->lines.text, *end = p + reader->lines.length;
    int columns = 1, expected = FIELDS + reader->has_label;
    while ((p = memchr(p, '\t', (size_t)(end - p))) && columns < 1000) columns++, p++;
    if (columns == expected) return TDM_OK;
    bool lacks_label = reader->has_label && columns == FIELDS;
    return tdm_fail(err, TDM_ERR_FORMAT,
                    "%s: line %llu has %d%s columns, expected %d, separated by tabs: %sI1 to I13 "
                    "and C1 to C26%s",
                    reader->lines.name, (unsigned long long)reader->lines.number, columns,
                    columns == 1000 ? " or more" : "", expected,
                    reader->has_label ? "the label, " : "",
                    lacks_label ? "; if the file has no labels, set the label to none" : "");
}

static tdm_status criteo_line(criteo_reader *reader, tdm_error *err)
{
    const char *p = reader->lines.text, *end = p + reader->lines.length;
    if (p == end) return TDM_OK;
    TDM_TRY(criteo_check_columns(reader, err));
    for (int field = reader->has_label ? 0 : 1; field <= FIELDS; field++) {
        const char *tab = memchr(p, '\t', (size_t)(end - p));
        size_t length = (size_t)((tab ? tab : end) - p);
        if (field == 0)
            TDM_TRY(tdm__sparse_rows_label(&reader->rows, &reader->lines, p, length, err));
        else
            TDM_TRY(criteo_cell(reader, field, p, length, err));
        p = tab ? tab + 1 : end;
    }
    return tdm__sparse_rows_end(&reader->rows, err);
}

static tdm_status criteo_read(const tdm__data_source *source, const tdm_data_options *options,
                              tdm_dataset *dataset, tdm_error *err)
{
    TDM_TRY(tdm__sparse_check_labels(source, "Criteo", err));
    criteo_reader reader = {.has_label = !options->label || strcmp(options->label, "none") != 0};
    TDM_TRY(tdm__lines_init(&reader.lines, source, err));
    /* A line has 38 tabs or more, and an entry has at least one character and a tab or line end. */
    size_t lines = tdm__lines_count(source), most = source->count / FIELDS + 1;
    size_t row_limit = lines < most ? lines : most, entry_limit = source->count / 2 + 1;
    if (entry_limit / FIELDS > row_limit) entry_limit = row_limit * FIELDS;
    tdm_status status = tdm__sparse_rows_init(&reader.rows, source, options, dataset, row_limit,
                                              entry_limit, reader.has_label, err);
    bool found = true;
    while (status == TDM_OK && found) {
        status = tdm__lines_next(&reader.lines, &found, err);
        if (status == TDM_OK && found) status = criteo_line(&reader, err);
    }
    if (status == TDM_OK) status = tdm__sparse_rows_finish(&reader.rows, err);
    tdm__sparse_rows_release(&reader.rows);
    return status;
}

/* Whether the first line has as many tabs as a sample. */
static bool criteo_sniff(const tdm__data_source *source)
{
    const char *p = (const char *)source->bytes;
    const char *end = memchr(p, '\n', source->count);
    if (!end) end = p + source->count;
    int tabs = 0;
    while ((p = memchr(p, '\t', (size_t)(end - p)))) tabs++, p++;
    return tabs == FIELDS || tabs == FIELDS - 1;
}

const tdm_data_format_ops tdm__data_format_criteo = {
    .name = "criteo",
    .format = TDM_DATA_FORMAT_CRITEO,
    .kind = TDM_DATA_KIND_SPARSE,
    .sniff = criteo_sniff,
    .read = criteo_read,
};
