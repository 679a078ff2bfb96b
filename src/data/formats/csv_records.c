/*
 * csv_records.c: splits CSV text (RFC 4180) into records and cells. It does not interpret numbers.
 *
 * Cells point into the file if possible; only a quoted cell with doubled quotes is copied. Spaces
 * and tabs around a cell are omitted, unless they are inside quotes. Lines end with LF or CRLF,
 * which the last line may omit; blank lines and a byte order mark are skipped. Each cell has the
 * number of the line where it begins, because a quoted cell can contain line breaks.
 *
 * Invariant: next <= end, and `line` is one more than the number of line ends before `next`.
 */
#include "data/formats/csv_records.h"
#include "base/base.h"

#include <stdlib.h>
#include <string.h>

static tdm_status check_start(const tdm__data_source *source, tdm_error *err)
{
    const uint8_t *b = source->bytes;
    if (source->count >= 2 && ((b[0] == 0xff && b[1] == 0xfe) || (b[0] == 0xfe && b[1] == 0xff)))
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: the text is UTF-16; save it as UTF-8 (iconv -f UTF-16 -t UTF-8)",
                        source->name);
    return TDM_OK;
}

tdm_status tdm__csv_records_init(tdm__csv_records *records, const tdm__data_source *source,
                                 char delimiter, tdm_error *err)
{
    *records = (tdm__csv_records){.name = source->name,
                                  .next = (const char *)source->bytes,
                                  .end = (const char *)source->bytes + source->count,
                                  .delimiter = delimiter,
                                  .line = 1};
    TDM_TRY(check_start(source, err));
    if (source->count >= 3 && memcmp(source->bytes, "\xef\xbb\xbf", 3) == 0) records->next += 3;
    records->special[(uint8_t)delimiter] = true;
    records->special['"'] = records->special['\r'] = records->special['\n'] = true;
    records->special[0] = true;
    records->unquoted = tdm_arena_create("CSV record");
    if (!records->unquoted) return tdm_fail_oom(err, "to read it (%s)", source->name);
    return TDM_OK;
}

void tdm__csv_records_release(tdm__csv_records *records)
{
    free(records->cells);
    tdm_arena_destroy(records->unquoted);
    *records = (tdm__csv_records){0};
}

static inline bool is_blank(const tdm__csv_records *records, char c)
{
    return (c == ' ' || c == '\t') && c != records->delimiter;
}

/* The column of the current cell, from 1. */
static size_t column_number(const tdm__csv_records *records)
{
    return records->cell_count + 1;
}

static tdm_status fail_here(const tdm__csv_records *records, uint64_t line, const char *what,
                            tdm_error *err)
{
    return tdm_fail(err, TDM_ERR_FORMAT, "%s: line %llu, column %zu: %s", records->name,
                    (unsigned long long)line, column_number(records), what);
}

static tdm_status fail_long_cell(const tdm__csv_records *records, uint64_t line, const char *hint,
                                 tdm_error *err)
{
    return tdm_fail(err, TDM_ERR_RANGE,
                    "%s: line %llu, column %zu: the cell is longer than %u bytes%s", records->name,
                    (unsigned long long)line, column_number(records), TDM__CSV_MAX_CELL_BYTES,
                    hint);
}

static tdm_status add_cell(tdm__csv_records *records, const char *text, size_t length,
                           uint64_t line, tdm_error *err)
{
    if (records->cell_count == records->cell_capacity) {
        if (records->cell_count >= TDM__CSV_MAX_COLUMNS)
            return tdm_fail(err, TDM_ERR_RANGE, "%s: line %llu: more than %u columns",
                            records->name, (unsigned long long)line, TDM__CSV_MAX_COLUMNS);
        size_t capacity = records->cell_capacity ? records->cell_capacity * 2 : 64;
        tdm__csv_cell *cells = realloc(records->cells, capacity * sizeof(*cells));
        if (!cells)
            return tdm_fail(err, TDM_ERR_NO_MEMORY, "%s: no memory for %zu columns", records->name,
                            capacity);
        records->cells = cells;
        records->cell_capacity = capacity;
    }
    records->cells[records->cell_count++] = (tdm__csv_cell){text, length, line};
    return TDM_OK;
}

/* Copies the text with each pair of quotes as one; `doubled` is the number of pairs. */
static const char *quotes_undouble(tdm__csv_records *records, const char *text, size_t length,
                                   size_t doubled)
{
    char *copy = tdm_arena_alloc(records->unquoted, length - doubled + 1, 1);
    if (!copy) return NULL;
    records->unquoted_used = true;
    char *out = copy;
    for (size_t i = 0; i < length; i++) {
        *out++ = text[i];
        if (text[i] == '"') i++; /* always the first of a pair */
    }
    return copy;
}

/* Reads a quoted cell. Begins after the opening quote; ends after the closing quote and the
 * blanks behind it. */
static tdm_status read_quoted(tdm__csv_records *records, tdm_error *err)
{
    const char *start = records->next;
    const char *p = start;
    uint64_t first_line = records->line;
    size_t doubled = 0;
    for (;; p++) {
        if ((size_t)(p - start) > TDM__CSV_MAX_CELL_BYTES)
            return fail_long_cell(records, first_line, "; is its closing quote missing?", err);
        if (p == records->end)
            return fail_here(records, first_line, "the quote that opens here is never closed", err);
        if (*p == '\n') records->line++;
        if (*p == 0)
            return fail_here(records, records->line, "a NUL byte; this is not a text file", err);
        if (*p != '"') continue;
        if (p + 1 == records->end || p[1] != '"') break;
        doubled++;
        p++;
    }
    size_t length = (size_t)(p - start);
    const char *text = start;
    if (doubled > 0) {
        text = quotes_undouble(records, start, length, doubled);
        if (!text) return tdm_fail_oom(err, "for %s", records->name);
    }
    p++;
    while (p < records->end && is_blank(records, *p)) p++;
    if (p < records->end && *p != records->delimiter && *p != '\n' && *p != '\r')
        return fail_here(records, records->line,
                         *p ? "text follows the closing quote; write a quote inside a quoted "
                              "cell twice"
                            : "a NUL byte; this is not a text file",
                         err);
    records->next = p;
    return add_cell(records, text, length - doubled, first_line, err);
}

/* Reads an unquoted cell, up to the delimiter, the end of the line, or the end of the file. */
static tdm_status read_plain(tdm__csv_records *records, tdm_error *err)
{
    const char *start = records->next;
    const char *p = start;
    while (p < records->end && !records->special[(uint8_t)*p]) p++;
    if (p < records->end && *p == '"')
        return fail_here(records, records->line,
                         "a quote in the middle of a cell; put the whole cell in quotes, and write "
                         "the quote inside twice",
                         err);
    if (p < records->end && *p == 0)
        return fail_here(records, records->line, "a NUL byte; this is not a text file", err);
    records->next = p;
    while (p > start && is_blank(records, p[-1])) p--;
    if ((size_t)(p - start) > TDM__CSV_MAX_CELL_BYTES)
        return fail_long_cell(records, records->line, "", err);
    return add_cell(records, start, (size_t)(p - start), records->line, err);
}

static tdm_status read_cell(tdm__csv_records *records, tdm_error *err)
{
    while (records->next < records->end && is_blank(records, *records->next)) records->next++;
    if (records->next < records->end && *records->next == '"') {
        records->next++;
        return read_quoted(records, err);
    }
    return read_plain(records, err);
}

/* Skips LF or CRLF if it is next. */
static bool skip_line_end(tdm__csv_records *records)
{
    const char *p = records->next;
    if (p < records->end && *p == '\r' && p + 1 < records->end && p[1] == '\n') p++;
    if (p == records->end || *p != '\n') return false;
    records->next = p + 1;
    records->line++;
    return true;
}

static void skip_blank_lines(tdm__csv_records *records)
{
    for (;;) {
        const char *start = records->next;
        while (records->next < records->end && is_blank(records, *records->next)) records->next++;
        if (records->next == records->end) return;
        if (skip_line_end(records)) continue;
        records->next = start;
        return;
    }
}

tdm_status tdm__csv_records_next(tdm__csv_records *records, bool *out_found, tdm_error *err)
{
    skip_blank_lines(records);
    if (records->next == records->end) {
        *out_found = false;
        return TDM_OK;
    }
    if (records->unquoted_used) {
        tdm_arena_reset(records->unquoted);
        records->unquoted_used = false;
    }
    records->cell_count = 0;
    records->record_line = records->line;
    for (;;) {
        TDM_TRY(read_cell(records, err));
        if (records->next == records->end) break;
        if (*records->next == records->delimiter) {
            records->next++;
            continue;
        }
        if (skip_line_end(records)) break;
        return tdm_fail(err, TDM_ERR_FORMAT,
                        "%s: line %llu, column %zu: a carriage return without a line feed; lines "
                        "must end in LF or CRLF",
                        records->name, (unsigned long long)records->line, records->cell_count);
    }
    *out_found = true;
    return TDM_OK;
}
