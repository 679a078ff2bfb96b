/*
 * recorder.h: the last events of this rank, in memory that outlives it.
 *
 * Each rank has one ring of TDM_TRACE_EVENTS events in a mapping of a file (RUN/rank-00003.trace), so that
 * a SIGKILL loses nothing: the pages belong to the file. Without a folder the ring is anonymous memory,
 * and is written to a file only when asked. Recording is a fetch-and-add, an
 * exchange and eight stores, from any thread; it never fails and never waits: an event that finds its
 * slot still being written, by a thread that slept for a whole round of the ring, is dropped. The reader is in trace.h.
 */
#ifndef TANDEM_TRACE_RECORDER_H
#define TANDEM_TRACE_RECORDER_H

#include <tandem/trace.h>

typedef struct tdm__recorder tdm__recorder;

typedef struct tdm__recorder_options {
    const char *dir; /* NULL: anonymous memory; made when it is not there */
    int rank, size;
    uint32_t epoch;
    const char *transport;
    uint64_t (*now_ns)(void *user); /* the clock; NULL: tdm_clock_ns */
    void *user;
} tdm__recorder_options;

tdm_status tdm__recorder_create(const tdm__recorder_options *options, tdm__recorder **out,
                                tdm_error *err);
/* The rank ends in good order, and the file stays. NULL is fine. */
void tdm__recorder_destroy(tdm__recorder *recorder);
/* The file in which the ring lies; NULL for anonymous memory. */
const char *tdm__recorder_path(const tdm__recorder *recorder);

/* Records an event, now. `time_ns` 0: the recorder's clock. `reserved` is the recorder's own. */
void tdm__record(tdm__recorder *recorder, tdm_trace_event event);

/* The text "all_reduce #17 of world, 4 MB f32, began 1.2 s ago, waits for ranks 2 and 5" from the newest
 * events; for heartbeats and for errors. Returns `out`. */
const char *tdm__recorder_last(const tdm__recorder *recorder, char *out, size_t bytes);

/* Writes the ring as a file of the same format, for rings in anonymous memory (nothing to do for
 * those in files but a sync). */
tdm_status tdm__recorder_dump(const tdm__recorder *recorder, const char *dir, tdm_error *err);
/* The newest `most` events as text, a line for each, with ages. */
void tdm__recorder_text(const tdm__recorder *recorder, size_t max, tdm_str *out);

/* The newest events to the log, a line for each, on this level. */
void tdm__recorder_log(const tdm__recorder *recorder, tdm_log_level level);

/* Dumps the ring to the log and to `dir` (NULL: the current folder) whenever this signal comes, from a
 * thread of its own (trace_signal.c). To be destroyed before the recorder; NULL is fine. */
typedef struct tdm__dumper tdm__dumper;
tdm_status tdm__dumper_create(const tdm__recorder *recorder, int signal_number, const char *dir,
                              tdm__dumper **out, tdm_error *err);
void tdm__dumper_destroy(tdm__dumper *dumper);
/* "USR1", "SIGUSR1" or a number. */
tdm_status tdm__dump_signal_read(const char *text, int *out, tdm_error *err);

#endif
