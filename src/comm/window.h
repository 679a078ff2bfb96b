/*
 * window.h: what the engine asks of a group's window (tdm__window in engine.h).
 *
 * A call uses slot (sequence modulo TDM__WINDOW_SLOTS) of the window: one cell for each local member,
 * and one inline area of TDM__FAST_BYTES beside each cell for calls that are small. A slot is free for
 * a call when every local member has ended the call that had it before; each member says in `done` how
 * many calls it has ended, and remembers what it last saw of the others, so that this is looked up
 * once in many calls.
 *
 * Small calls ("fast") go through the inline areas: publish, POST 1, AWAIT all 1, combine. Whether a
 * call is fast is a function of the call and the group alone, and the steps are the same whether it is
 * run without a request (tdm__window_run_fast) or as a program: so one member may run it at once while
 * another has started it in the background.
 */
#ifndef TANDEM_COMM_WINDOW_H
#define TANDEM_COMM_WINDOW_H

#include "comm/engine.h"

enum {
    TDM__FAST_BYTES = 4096
}; /* of input that a member brings to a fast call, all parts together */

/* Bytes of the shared block for so many members. */
size_t tdm__window_bytes(int local_count);
/* Fills group->window on the block at `offset` of the comm's host; the block is zeroed at first. */
tdm_status tdm__window_create(tdm_group *group, uint64_t offset, tdm_error *err);
void tdm__window_destroy(
    tdm__window *window); /* this rank's part; the block is the group's to free */

/* Whether local member `local_index` has ended the call that had this call's slot before. */
bool tdm__window_free(const tdm__window *w, uint32_t sequence, int local_index);
/* When the slot is free: writes this rank's head and buffers' offsets (and, for fast calls, its data)
 * to its cell, and says true. The first POST of the request's program makes them visible. */
bool tdm__window_begin(tdm_request *request);
/* All local members have posted: whether their heads are like the request's. If not, the group is broken
 * by tdm__group_mismatch. */
bool tdm__window_agrees(tdm_request *request);
/* This rank has ended calls [0, ended_count) of the group. Rings bells only when that may free a slot
 * that somebody waits for. */
void tdm__window_ended(tdm__window *w, uint32_t ended_count);

bool tdm__window_is_fast(const tdm_group *group, const tdm_call *call);
typedef enum tdm__fast {
    TDM__FAST_UNUSED, /* not a fast call, or its slot is not free yet: nothing was done */
    TDM__FAST_POSTED, /* published and posted, but not all have come: go on with a request */
    TDM__FAST_ENDED,  /* the result is there */
    TDM__FAST_BROKEN  /* the neighbours' heads differ: tdm__group_mismatch has been called */
} tdm__fast;
/* Runs a fast call without a request, spinning for the neighbours for as long as is sensible (not at
 * all when there are more ranks than processors). `call` is resolved, `head` is sealed. A request that
 * goes on from POSTED has `posted` set: its begin() writes nothing, and its program does not POST 1. */
tdm__fast tdm__window_run_fast(tdm_group *group, const tdm__head *head, const tdm_call *call);

#endif
