/*
 * trace.h: reads the recorder's files: the last events of each rank.
 *
 * Every rank of a world keeps its last 4,096 events in a memory-mapped file of the run directory,
 * which survives when the rank is killed. A trace consists of all such files of a directory, with
 * their clocks aligned. `tandem trace` prints it, or writes it as JSON for chrome://tracing and
 * Perfetto. The files are untrusted input and are validated.
 */
#ifndef TANDEM_TRACE_H
#define TANDEM_TRACE_H

#include <tandem/comm.h>
#include <tandem/text.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TDM_TRACE_EVENTS = 4096 };

typedef enum tdm_trace_kind {
    TDM_TRACE_NONE = 0,
    TDM_TRACE_OPEN,     /* the rank joined the world */
    TDM_TRACE_CLOSE,    /* the rank left the world */
    TDM_TRACE_GROUP,    /* a group was created; bytes is its size */
    TDM_TRACE_BEGIN,    /* a call began */
    TDM_TRACE_END,      /* a call ended; status */
    TDM_TRACE_WAIT,     /* a call starts to wait for `peer` */
    TDM_TRACE_RESUME,   /* a call no longer waits */
    TDM_TRACE_SEND,     /* a message of `bytes` to `peer` was passed to the transport */
    TDM_TRACE_SENT,     /* the buffer of a sent message may be reused */
    TDM_TRACE_RECEIVED, /* a message of `bytes` from `peer` has arrived */
    TDM_TRACE_COMPUTE,  /* `bytes` were added in the last `detail` ns */
    TDM_TRACE_LOST,     /* `peer` was detected to be dead */
    TDM_TRACE_BROKEN,   /* the group is broken; status */
    TDM_TRACE_MARK      /* set by the program: tdm_comm_mark */
} tdm_trace_kind;

/* 64 bytes in the file. */
typedef struct tdm_trace_event {
    uint64_t time_ns; /* monotonic clock of the rank */
    uint64_t bytes;
    uint64_t detail;
    uint32_t group;
    uint32_t sequence;
    int32_t peer; /* rank in the world; -1 for none */
    uint16_t status;
    uint8_t kind; /* a tdm_trace_kind */
    uint8_t call; /* a tdm_call_kind; 0 for none */
    uint8_t dtype;
    uint8_t reserved[3]; /* used by the recorder; zero after reading */
    uint32_t step;
    char text[16]; /* a mark's name, truncated; not always terminated by 0 */
} tdm_trace_event;

/* Adds a mark to this rank's trace: a point in time, or the end of an interval of `ns`. */
TDM_API void tdm_comm_mark(tdm_comm *comm, const char *name, uint64_t ns);
/* Writes this rank's ring buffer to `dir` now, even if the comm was opened without a trace
 * directory. */
TDM_API tdm_status tdm_comm_dump(tdm_comm *comm, const char *dir, tdm_error *err);

typedef struct tdm_trace_rank {
    int rank, size;
    uint32_t epoch;
    int64_t pid;
    char host[64];
    char transport[16];
    int64_t unix_offset_ns; /* add to time_ns for wall-clock time; equal for all ranks of a host */
    bool closed;            /* the rank closed its comm */
    bool running;           /* not closed, and its process is alive on this machine */
    bool here;              /* its process ran on this machine since the last boot */
    size_t event_count;     /* oldest first */
    uint64_t lost_count;    /* events that were overwritten */
    const tdm_trace_event *events;
} tdm_trace_rank;

typedef struct tdm_trace tdm_trace;

/* Reads the files of a directory (or of its subdirectory `trace`), even while they are being
 * written. TDM_ERR_NOT_FOUND if there are none. A file that is damaged, or belongs to a different
 * world than the newest file, is skipped with a warning in the log. */
TDM_API tdm_status tdm_trace_open(const char *dir, tdm_trace **out, tdm_error *err);
TDM_API void tdm_trace_close(tdm_trace *trace);

typedef struct tdm_trace_show_options {
    int rank;    /* -1: all ranks */
    size_t last; /* events of each rank */
    bool json;   /* else text */
} tdm_trace_show_options;
/* Prints the ranks with their last events, and a summary: which ranks wait for which, and which rank is the
 * cause. Ages are relative to the current time if a rank runs on this machine, else to the newest event.
 * TDM_ERR_NOT_FOUND if the trace does not contain the rank. */
TDM_API tdm_status tdm_trace_show(const tdm_trace *trace, const tdm_trace_show_options *options,
                                  tdm_str *out, tdm_error *err);
/* The trace as Chrome's trace event JSON: one process for each rank, calls and waits as bars,
 * messages as arrows. */
TDM_API void tdm_trace_chrome(const tdm_trace *trace, tdm_str *out);

#ifdef __cplusplus
}
#endif
#endif
