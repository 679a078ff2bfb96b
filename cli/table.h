/*
 * table.h: aligned tables for the terminal.
 *
 * Cells are added row by row; the widths come from what is in them. Texts from outside (names of
 * classes, of tensors) are made safe to show: control characters become '?', long ones are cut.
 */
#ifndef TANDEM_CLI_TABLE_H
#define TANDEM_CLI_TABLE_H

#include "cli.h"

typedef struct cli_column {
    const char *title;
    bool right; /* numbers stand at the right of their column */
    int max;    /* columns on the screen; longer texts are cut; 0: never cut */
} cli_column;

enum { CLI_TABLE_MAX_COLUMNS = 12 };

typedef struct cli_table {
    const cli_column *columns; /* borrowed */
    int column_count;
    size_t cell_count;
    tdm_str cells; /* one after another, each ended by a zero byte */
} cli_table;

/* At most CLI_TABLE_MOST_COLUMNS. */
void cli_table_init(cli_table *table, const cli_column *columns, int column_count);
/* The next cell of the row, or the first of the next row. */
void cli_table_cell(cli_table *table, const char *fmt, ...) TDM_PRINTF(2, 3);
/* The table with its titles, each line indented; without rows nothing. Releases the table. */
void cli_table_print(cli_table *table, int indent, tdm_str *out);

/* Adds `text` made safe to show, at most `most` columns of it (0: all). Returns its width. */
int cli_add_shown(tdm_str *out, const char *text, int max);

#endif
