/* csv_records.h: the reader of CSV records, shared by csv.c and csv_records.c. */
#ifndef TANDEM_DATA_CSV_RECORDS_H
#define TANDEM_DATA_CSV_RECORDS_H

#include "data/internal.h"

#define TDM__CSV_MAX_COLUMNS (1u << 20)
#define TDM__CSV_MAX_CELL_BYTES (1u << 20)

typedef struct tdm__csv_cell {
    const char *text; /* not terminated; valid until the next record */
    size_t length;
    uint64_t line; /* number of the line where it begins, from 1 */
} tdm__csv_cell;

typedef struct tdm__csv_records {
    const char *name; /* the file, in messages */
    const char *next;
    const char *end;
    char delimiter;
    uint64_t line; /* of `next` */
    bool special[256];
    tdm__csv_cell *cells; /* the current record */
    size_t cell_count;
    size_t cell_capacity;
    uint64_t record_line;
    tdm_arena *unquoted; /* texts of cells with doubled quotes */
    bool unquoted_used;
} tdm__csv_records;

/* Borrows the source and its name. Release it in every case, also after a failure. */
tdm_status tdm__csv_records_init(tdm__csv_records *records, const tdm__data_source *source,
                                 char delimiter, tdm_error *err);
void tdm__csv_records_release(tdm__csv_records *records);
/* Reads the next record, without blank lines; *out_found is false at the end of the file. */
tdm_status tdm__csv_records_next(tdm__csv_records *records, bool *out_found, tdm_error *err);

#endif
