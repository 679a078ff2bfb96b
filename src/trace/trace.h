/*
 * trace.h: a trace as its readers share it: the ranks' parts, read and put side by side.
 */
#ifndef TANDEM_TRACE_TRACE_H
#define TANDEM_TRACE_TRACE_H

#include "trace/trace_file.h"

struct tdm_trace {
    size_t count;
    tdm__trace_parsed *parts; /* by rank, each once */
    int64_t reference_ns;
};

/* An event's moment on the one clock of the whole trace. */
static inline int64_t tdm__trace_moment_ns(const tdm_trace_rank *rank, uint64_t time_ns)
{
    return (int64_t)time_ns + rank->unix_offset_ns;
}

/* The part of a rank; NULL when it left none. */
const tdm_trace_rank *tdm__trace_find(const tdm_trace *trace, int rank, size_t *index);
/* A mark's name, with what is no text shown as '?'. */
void tdm__trace_mark_name(const tdm_trace_event *e, tdm_str *out);

#endif
