/*
 * table.c: aligned tables. Widths are in columns of a terminal: wide East Asian characters and emoji
 * count two, combining marks none. Invalid UTF-8, and every character that could move the cursor or
 * change the direction of the text, is shown as '?', because names come from untrusted files.
 */
#include "table.h"

#include <string.h>

typedef struct range {
    uint32_t first, last;
} range;

static const range no_width[] = {{0x300, 0x36f},   {0x483, 0x489},   {0x591, 0x5bd},
                                 {0x610, 0x61a},   {0x64b, 0x65f},   {0x200d, 0x200d},
                                 {0x20d0, 0x20ff}, {0xfe00, 0xfe0f}, {0xfe20, 0xfe2f}};
static const range two_wide[] = {{0x1100, 0x115f},   {0x2e80, 0x303e},   {0x3041, 0xa4cf},
                                 {0xac00, 0xd7a3},   {0xf900, 0xfaff},   {0xfe30, 0xfe6f},
                                 {0xff00, 0xff60},   {0xffe0, 0xffe6},   {0x1f300, 0x1f64f},
                                 {0x1f680, 0x1f6ff}, {0x1f900, 0x1f9ff}, {0x20000, 0x3fffd}};
static const range not_shown[] = {{0, 0x1f},        {0x7f, 0x9f},     {0x200b, 0x200c},
                                  {0x200e, 0x200f}, {0x2028, 0x202e}, {0x2060, 0x206f},
                                  {0xfeff, 0xfeff}, {0xfff9, 0xfffb}};

#define IN(code, ranges) is_in(code, ranges, sizeof(ranges) / sizeof((ranges)[0]))

static bool is_in(uint32_t code, const range *ranges, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (code >= ranges[i].first && code <= ranges[i].last) return true;
    return false;
}

/* The character at `text` as it is shown: its bytes (NULL for '?') and its width. Returns the number of
 * bytes. */
static size_t next_shown(const char *text, const char **out_shown, int *out_width)
{
    uint32_t code;
    size_t bytes = tdm_text_utf8(text, strnlen(text, 4), &code);
    *out_width = 1;
    *out_shown = text;
    if (bytes == 0 || IN(code, not_shown))
        *out_shown = NULL;
    else if (IN(code, no_width))
        *out_width = 0;
    else if (IN(code, two_wide))
        *out_width = 2;
    return bytes > 0 ? bytes : 1;
}

static int shown_width(const char *text)
{
    int width = 0, one;
    const char *shown;
    while (*text) {
        text += next_shown(text, &shown, &one);
        width += one;
    }
    return width;
}

int cli_add_shown(tdm_str *out, const char *text, int max)
{
    int width = 0, one;
    bool cut = max > 3 && shown_width(text) > max;
    while (*text) {
        const char *shown;
        size_t bytes = next_shown(text, &shown, &one);
        if (cut && width + one > max - 3) break;
        if (shown)
            tdm_str_add_bytes(out, shown, bytes);
        else
            tdm_str_add_char(out, '?');
        width += one;
        text += bytes;
    }
    if (!cut) return width;
    tdm_str_add(out, "...");
    return width + 3;
}

void cli_table_init(cli_table *table, const cli_column *columns, int column_count)
{
    *table = (cli_table){.columns = columns, .column_count = column_count};
}

void cli_table_cell(cli_table *table, const char *fmt, ...)
{
    tdm_str raw = TDM_STR_INIT;
    va_list args;
    va_start(args, fmt);
    tdm_str_addv(&raw, fmt, args);
    va_end(args);
    const cli_column *column = &table->columns[table->cell_count % (size_t)table->column_count];
    cli_add_shown(&table->cells, tdm_str_text(&raw), column->max);
    tdm_str_add_char(&table->cells, '\0');
    if (!tdm_str_ok(&raw)) table->cells.failed = true;
    tdm_str_release(&raw);
    table->cell_count++;
}

static void add_spaces(tdm_str *out, int count)
{
    for (int i = 0; i < count; i++) tdm_str_add_char(out, ' ');
}

static void add_cell(tdm_str *out, const cli_column *column, const char *text, int width, bool last)
{
    int gap = width - shown_width(text);
    if (column->right) add_spaces(out, gap);
    tdm_str_add(out, text);
    if (!last) add_spaces(out, (column->right ? 0 : gap) + 2);
}

/* Ends a line without trailing blanks. */
static void end_line(tdm_str *out)
{
    while (!out->failed && out->length > 0 && out->data[out->length - 1] == ' ') out->length--;
    tdm_str_add_char(out, '\n');
}

void cli_table_print(cli_table *table, int indent, tdm_str *out)
{
    int widths[CLI_TABLE_MAX_COLUMNS] = {0}, columns = table->column_count;
    if (!tdm_str_ok(&table->cells)) out->failed = true;
    if (table->cell_count > 0 && !out->failed) {
        for (int c = 0; c < columns; c++) widths[c] = shown_width(table->columns[c].title);
        const char *cell = table->cells.data;
        for (size_t i = 0; i < table->cell_count; i++, cell += strlen(cell) + 1) {
            int width = shown_width(cell);
            if (width > widths[i % (size_t)columns]) widths[i % (size_t)columns] = width;
        }
        add_spaces(out, indent);
        for (int c = 0; c < columns; c++)
            add_cell(out, &table->columns[c], table->columns[c].title, widths[c], c == columns - 1);
        cell = table->cells.data;
        for (size_t i = 0; i < table->cell_count; i++, cell += strlen(cell) + 1) {
            int c = (int)(i % (size_t)columns);
            if (c == 0) {
                end_line(out);
                add_spaces(out, indent);
            }
            add_cell(out, &table->columns[c], cell, widths[c], c == columns - 1);
        }
        end_line(out);
    }
    tdm_str_release(&table->cells);
    *table = (cli_table){0};
}
