/*
 * table.h: aligned tables for the terminal.
 *
 * Cells are added row by row; the widths are computed from the cells. Texts from files (names of classes
 * and tensors) are made safe for the terminal: control characters become '?', long texts are cut.
 */
#ifndef TANDEM_CLI_TABLE_H
#define TANDEM_CLI_TABLE_H

#include "cli.h"

typedef struct cli_column {
    const char *title;
    bool right; /* align right */
    int max;    /* maximum width; longer texts are cut; 0: no maximum */
} cli_column;

enum { CLI_TABLE_MAX_COLUMNS = 12 };

typedef struct cli_table {
    const cli_column *columns; /* borrowed */
    int column_count;
    size_t cell_count;
    tdm_str cells; /* consecutive, each terminated by a zero byte */
} cli_table;

/* `column_count` is at most CLI_TABLE_MAX_COLUMNS; `columns` is borrowed. */
void cli_table_init(cli_table *table, const cli_column *columns, int column_count);
/* Adds the next cell of the row, or the first cell of the next row. */
void cli_table_cell(cli_table *table, const char *fmt, ...) TDM_PRINTF(2, 3);
/* Prints the table with its titles, each line indented; nothing if there are no rows. Releases the table. */
void cli_table_print(cli_table *table, int indent, tdm_str *out);

/* Adds `text` made safe for the terminal, at most `max` columns of it (0: all). Returns its width. */
int cli_add_shown(tdm_str *out, const char *text, int max);

#endif
