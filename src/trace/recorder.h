/*
 * recorder.h: the last events of this rank, in memory that outlives the process.
 *
 * Each rank has a ring buffer of TDM_TRACE_EVENTS events in a mapped file (RUN/rank-00003.trace). A
 * SIGKILL loses nothing, because the pages belong to the file. Without a directory the ring is
 * anonymous memory, and is written to a file only on request. Recording takes a fetch-and-add, an
 * exchange and eight stores, from any thread. It never fails and never waits: if the slot is still
 * being written by a thread that was suspended for a whole round of the ring, the event is dropped.
 * trace.h reads the files.
 */
#ifndef TANDEM_TRACE_RECORDER_H
#define TANDEM_TRACE_RECORDER_H

#include <tandem/trace.h>

typedef struct tdm__recorder tdm__recorder;

typedef struct tdm__recorder_options {
    const char *dir; /* NULL: anonymous memory; created if missing */
    int rank, size;
    uint32_t epoch;
    const char *transport;
    uint64_t (*now_ns)(void *user); /* the clock; NULL: tdm_clock_ns */
    void *user;
} tdm__recorder_options;

tdm_status tdm__recorder_create(const tdm__recorder_options *options, tdm__recorder **out,
                                tdm_error *err);
/* Records that the rank closed its comm; the file is kept. NULL is allowed. */
void tdm__recorder_destroy(tdm__recorder *recorder);
/* The file of the ring; NULL for anonymous memory. */
const char *tdm__recorder_path(const tdm__recorder *recorder);

/* Records an event now. `time_ns` 0: the recorder's clock. `reserved` is used by the recorder. */
void tdm__record(tdm__recorder *recorder, tdm_trace_event event);

/* The text "all_reduce #17 of world, 4 MB f32, began 1.2 s ago, waits for ranks 2 and 5" from the
 * newest events, for heartbeats and errors. Returns `out`. */
const char *tdm__recorder_last(const tdm__recorder *recorder, char *out, size_t bytes);

/* Writes a ring in anonymous memory as a file of the same format; a ring that has a file is
 * flushed. */
tdm_status tdm__recorder_dump(const tdm__recorder *recorder, const char *dir, tdm_error *err);
/* The newest `max` events as text, one line for each, with ages. */
void tdm__recorder_text(const tdm__recorder *recorder, size_t max, tdm_str *out);

/* Logs the newest events at this level, one line for each. */
void tdm__recorder_log(const tdm__recorder *recorder, tdm_log_level level);

/* Writes the ring to the log and to `dir` (NULL: the current directory) on each arrival of this
 * signal, from a separate thread (trace_signal.c). Must be destroyed before the recorder; NULL is
 * allowed. */
typedef struct tdm__dumper tdm__dumper;
tdm_status tdm__dumper_create(const tdm__recorder *recorder, int signal_number, const char *dir,
                              tdm__dumper **out, tdm_error *err);
void tdm__dumper_destroy(tdm__dumper *dumper);
/* "USR1", "SIGUSR1" or a number. */
tdm_status tdm__dump_signal_read(const char *text, int *out, tdm_error *err);

#endif
