/*
 * sparse_rows.h: what the formats of sparse samples share: the lines of a text file, and the memory of a data set
 * that grows sample by sample.
 */
#ifndef TANDEM_DATA_FORMATS_SPARSE_ROWS_H
#define TANDEM_DATA_FORMATS_SPARSE_ROWS_H

#include "data/internal.h"

/* ---- lines -------------------------------------------------------------------------------------- */

/* The lines of a file, without LF or CRLF; a byte order mark is skipped. */
typedef struct tdm__lines {
    const char *name; /* the file, in messages */
    const char *next, *end;
    uint64_t number; /* of the current line, from 1 */
    const char *text;
    size_t length;
} tdm__lines;

/* Borrows the source. TDM_ERR_FORMAT for UTF-16. */
tdm_status tdm__lines_init(tdm__lines *lines, const tdm__data_source *source, tdm_error *err);
/* Moves to the next line; *out_found is false at the end. TDM_ERR_FORMAT for a NUL byte. */
tdm_status tdm__lines_next(tdm__lines *lines, bool *out_found, tdm_error *err);
/* The number of lines in the source, at least 1. */
size_t tdm__lines_count(const tdm__data_source *source);
/* Fails with "FILE: line 3, column 14: WHAT"; the column is that of `at` in the current line, in bytes from 1. */
tdm_status tdm__lines_fail(const tdm__lines *lines, const char *at, tdm_error *err, const char *fmt,
                           ...) TDM_PRINTF(4, 5);

/* ---- samples ------------------------------------------------------------------------------------ */

/*
 * One block has the offsets, the keys and the values, each with the largest size that the file can need; unused
 * pages at the end of each are never written. A sample is complete after tdm__sparse_rows_end.
 */
typedef struct tdm__sparse_rows {
    const tdm__data_source *source;
    tdm_dataset *dataset; /* being filled */
    tdm__classes classes;
    void *block;
    size_t block_bytes;
    int64_t *offsets;
    uint64_t *keys;
    float *values;
    int32_t *row_classes; /* NULL: without labels */
    size_t row_count, row_capacity;
    size_t entry_count, entry_capacity;
    size_t most; /* entries of a sample */
} tdm__sparse_rows;

/* The capacities limit what is added. Release it in every case, also after a failure. */
tdm_status tdm__sparse_rows_init(tdm__sparse_rows *rows, const tdm__data_source *source,
                                 const tdm_data_options *options, tdm_dataset *dataset,
                                 size_t row_capacity, size_t entry_capacity, bool has_labels,
                                 tdm_error *err);
void tdm__sparse_rows_release(tdm__sparse_rows *rows);
/* Whether the current sample can have one more entry. */
static inline bool tdm__sparse_rows_add(tdm__sparse_rows *rows, uint64_t key, float value)
{
    if (rows->entry_count == rows->entry_capacity) return false;
    rows->keys[rows->entry_count] = key;
    rows->values[rows->entry_count++] = value;
    return true;
}
/* Sets the class of the current sample; `at` is in the current line. */
tdm_status tdm__sparse_rows_label(tdm__sparse_rows *rows, const tdm__lines *lines, const char *at,
                                  size_t length, tdm_error *err);
/* Ends the current sample, and begins the next one. */
tdm_status tdm__sparse_rows_end(tdm__sparse_rows *rows, tdm_error *err);
/* Passes the block to the data set. TDM_ERR_FORMAT if there are no samples. */
tdm_status tdm__sparse_rows_finish(tdm__sparse_rows *rows, tdm_error *err);

/* Labels of sparse formats are in the file itself. */
tdm_status tdm__sparse_check_labels(const tdm__data_source *source, const char *format,
                                    tdm_error *err);

#endif
