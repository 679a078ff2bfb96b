/*
 * order_file.h: the order of asynchronous updates, as a run records it (sync.kind server).
 *
 * RUN/order.jsonl has one line for each update: its number (from 1), the worker that made it, the number of workers, the
 * batch of its gradient (from 1), the staleness, and the workers that read the model right after it:
 *
 *     {"update":5,"worker":2,"of":4,"batch":5,"staleness":3,"readers":[2]}
 *
 * Together with the job it determines every bit of the run: `sync.order: recorded` repeats it. The lines of updates are
 * written before these updates change the model, so the file is never behind a state that anybody has seen. lines.h
 * describes how it is written, and how it goes back together with the state.
 *
 * Its bytes can come from anywhere, so a reader checks each entry against those before it (tdm_order_follow).
 */
#ifndef TANDEM_TRAIN_ORDER_FILE_H
#define TANDEM_TRAIN_ORDER_FILE_H

#include "parallel/parallel.h"
#include "train/lines.h"

#define TDM__ORDER_NAME "order.jsonl"

typedef struct tdm__order_line {
    uint64_t update; /* from 1 */
    uint64_t of;     /* number of workers */
    tdm_order_entry entry;
} tdm__order_line;

extern const tdm__lines_format tdm__order_format;

/* Parses one line without its newline; false if it is invalid. */
bool tdm__order_line_read(const char *text, size_t length, tdm_arena *arena, tdm__order_line *out);

/* Reads a file of an order and calls `visit` for its entries up to update `max`, from the first one without gaps.
 * TDM_ERR_FORMAT: an invalid line, a missing update, or an entry that `visit` rejects; the message has file and line. *count:
 * the number of entries. */
typedef tdm_status (*tdm__order_visit_fn)(void *user, const tdm_order_entry *entry, tdm_error *err);
tdm_status tdm__order_read(const char *path, int64_t workers, uint64_t max,
                           tdm__order_visit_fn visit, void *user, uint64_t *count, tdm_error *err);

/* Reads the recorded order `from`, a run or a file, for a job with this number of workers and updates. `hash` gets the
 * SHA-256 of the entries. Errors say what is wrong with the file, and what to do. */
tdm_status tdm__order_load(const char *from, int64_t workers, uint64_t updates, tdm_order *order,
                           char hash[TDM_SHA256_HEX], tdm_error *err);

#endif
