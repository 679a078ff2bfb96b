/*
 * trace.h: a trace as shared by its readers: the parts of all ranks with aligned clocks.
 */
#ifndef TANDEM_TRACE_TRACE_H
#define TANDEM_TRACE_TRACE_H

#include "trace/trace_file.h"

struct tdm_trace {
    size_t count;
    tdm__trace_parsed *parts; /* ordered by rank, one for each */
    int64_t reference_ns;
};

/* The time of an event on the common clock of the trace. */
static inline int64_t tdm__trace_moment_ns(const tdm_trace_rank *rank, uint64_t time_ns)
{
    return (int64_t)time_ns + rank->unix_offset_ns;
}

/* The part of a rank; NULL if it has none. */
const tdm_trace_rank *tdm__trace_find(const tdm_trace *trace, int rank, size_t *index);
/* A mark's name, with invalid or unprintable characters shown as '?'. */
void tdm__trace_mark_name(const tdm_trace_event *e, tdm_str *out);

const char *tdm_trace_kind_name(tdm_trace_kind kind);
size_t tdm_trace_rank_count(const tdm_trace *trace);
const tdm_trace_rank *tdm_trace_rank_at(const tdm_trace *trace, size_t index); /* ordered by rank */
/* The time relative to which ages are printed, in ns of the wall clock: now if one of the ranks
 * runs on this machine, else the time of the newest event. */
int64_t tdm_trace_reference_ns(const tdm_trace *trace);

/* The state of a rank according to its last events. */
enum { TDM_MAX_TRACE_WAITS = 64 };
typedef struct tdm_trace_stand {
    bool in_call;
    tdm_trace_event call; /* if in_call: the BEGIN of its oldest unfinished call */
    tdm_trace_event last; /* its newest event; kind NONE if it has none */
    int wait_count;       /* ranks that the call waits for, and since when, by the rank's clock */
    int waits_for[TDM_MAX_TRACE_WAITS];
    uint64_t since_ns[TDM_MAX_TRACE_WAITS];
} tdm_trace_stand;
void tdm_trace_stand_of(const tdm_trace *trace, size_t index, tdm_trace_stand *out);
/* Describes which ranks wait for which, and which rank is the cause, as text. */
void tdm_trace_summary(const tdm_trace *trace, tdm_str *out);
/* One line of text: "began all_reduce #17 of world: f32, 4.00 MB". */
void tdm_trace_event_text(const tdm_trace_event *event, tdm_str *out);

#endif
