/*
 * trace_calls.c: the recorder's public functions: marks set by the program, and a dump on request.
 */
#include "comm/engine.h"

#include <string.h>

void tdm_comm_mark(tdm_comm *comm, const char *name, uint64_t ns)
{
    tdm_trace_event event = {.kind = TDM_TRACE_MARK, .peer = -1, .detail = ns};
    memcpy(event.text, name, strnlen(name, sizeof(event.text)));
    tdm__record(comm->recorder, event);
}

tdm_status tdm_comm_dump(tdm_comm *comm, const char *dir, tdm_error *err)
{
    return tdm__recorder_dump(comm->recorder, dir, err);
}
