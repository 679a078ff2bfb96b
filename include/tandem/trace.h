/*
 * trace.h: what ranks did last, read from the recorder's files.
 *
 * Every rank of a world keeps its last 4,096 events in a file of the run's folder, written through
 * shared memory: also a rank that was killed has left its last act there. A trace is all such files of
 * a folder, with their clocks put side by side. `tandem trace` prints it, and writes it as JSON that
 * chrome://tracing and Perfetto draw. Files come from outside and are checked as such.
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
    TDM_TRACE_CLOSE,    /* and left it */
    TDM_TRACE_GROUP,    /* made a group: bytes is its size */
    TDM_TRACE_BEGIN,    /* a call began */
    TDM_TRACE_END,      /* a call ended; status */
    TDM_TRACE_WAIT,     /* a call waits for `peer`, since now */
    TDM_TRACE_RESUME,   /* and goes on */
    TDM_TRACE_SEND,     /* a message of `bytes` to `peer` was handed to the transport */
    TDM_TRACE_SENT,     /* and may be forgotten */
    TDM_TRACE_RECEIVED, /* a message of `bytes` from `peer` is there */
    TDM_TRACE_COMPUTE,  /* `bytes` were added, `detail` ns long, until now */
    TDM_TRACE_LOST,     /* `peer` is known to be dead */
    TDM_TRACE_BROKEN,   /* the group is broken; status */
    TDM_TRACE_MARK      /* the program's own: tdm_comm_mark */
} tdm_trace_kind;
TDM_API const char *tdm_trace_kind_name(tdm_trace_kind kind);

/* 64 bytes in the file. */
typedef struct tdm_trace_event {
    uint64_t time_ns; /* of the rank's monotonic clock */
    uint64_t bytes;
    uint64_t detail;
    uint32_t group;
    uint32_t sequence;
    int32_t peer; /* rank in the world; -1 for none */
    uint16_t status;
    uint8_t kind; /* a tdm_trace_kind */
    uint8_t call; /* a tdm_call_kind; 0 for none */
    uint8_t dtype;
    uint8_t reserved[3]; /* the recorder's; zero once read */
    uint32_t step;
    char text[16]; /* a mark's name, cut; not always ended by 0 */
} tdm_trace_event;

/* A mark of the program's own in this rank's trace: a point, or the end of something `ns` long. */
TDM_API void tdm_comm_mark(tdm_comm *comm, const char *name, uint64_t ns);
/* Writes this rank's ring to `dir` now, whether or not the comm was opened with a trace folder. */
TDM_API tdm_status tdm_comm_dump(tdm_comm *comm, const char *dir, tdm_error *err);

typedef struct tdm_trace_rank {
    int rank, size;
    uint32_t epoch;
    int64_t pid;
    char host[64];
    char transport[16];
    int64_t unix_offset_ns; /* add to time_ns for the wall clock; one for all ranks of a host */
    bool closed;            /* ended in good order */
    bool running;           /* not closed, and its process lives on this machine now */
    bool here;              /* its process was one of this machine, since its last start */
    size_t event_count;     /* oldest first */
    uint64_t lost_count;    /* events that were overwritten */
    const tdm_trace_event *events;
} tdm_trace_rank;

typedef struct tdm_trace tdm_trace;

/* Reads the files of a folder (or of its subfolder `trace`), also while they are written.
 * TDM_ERR_NOT_FOUND when there is none. A file that is damaged, or belongs to another world than the
 * newest one does, is left out and named by a warning in the log. */
TDM_API tdm_status tdm_trace_open(const char *dir, tdm_trace **out, tdm_error *err);
TDM_API void tdm_trace_close(tdm_trace *trace);
TDM_API size_t tdm_trace_rank_count(const tdm_trace *trace);
TDM_API const tdm_trace_rank *tdm_trace_rank_at(const tdm_trace *trace, size_t index); /* by rank */
/* The moment from which ages count, in ns of the wall clock: now while one of the ranks runs on this
 * machine, else that of the newest event. */
TDM_API int64_t tdm_trace_reference_ns(const tdm_trace *trace);

/* Where a rank stands by its last events. */
enum { TDM_MAX_TRACE_WAITS = 64 };
typedef struct tdm_trace_stand {
    bool in_call;
    tdm_trace_event call; /* in_call: the BEGIN of its oldest call that has not ended */
    tdm_trace_event last; /* its newest event; kind NONE: it has none */
    int wait_count;       /* ranks for which that call waits, and since when, by the rank's clock */
    int waits_for[TDM_MAX_TRACE_WAITS];
    uint64_t since_ns[TDM_MAX_TRACE_WAITS];
} tdm_trace_stand;
TDM_API void tdm_trace_stand_of(const tdm_trace *trace, size_t index, tdm_trace_stand *out);
/* Who waits for whom, and because of whom, in lines for people. */
TDM_API void tdm_trace_summary(const tdm_trace *trace, tdm_str *out);
/* One line for people: "began all_reduce #17 of world: f32, 4.00 MB". */
TDM_API void tdm_trace_event_text(const tdm_trace_event *event, tdm_str *out);
/* The whole as Chrome's trace event JSON: one process for each rank, calls and waits as bars, messages
 * as arrows. */
TDM_API void tdm_trace_chrome(const tdm_trace *trace, tdm_str *out);

#ifdef __cplusplus
}
#endif
#endif
