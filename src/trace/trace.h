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

#endif
