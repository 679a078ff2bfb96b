/*
 * window_inner.h: what the files about windows share (tdm__window in engine.h): window.c has the block
 * and the words that members leave in it, window_small.c the calls whose data fit in a cell,
 * algorithms/window.c the larger ones, algorithms/hierarchy.c those that go beyond the host.
 */
#ifndef TANDEM_COMM_WINDOW_INNER_H
#define TANDEM_COMM_WINDOW_INNER_H

#include "comm/engine.h"

/* window.c */

/* Whether all members have ended call `before`; if not, they will ring. */
bool tdm__window_is_free(tdm__window *w, uint32_t before);
/* Writes what this rank calls to its cell of the call's slot. */
void tdm__window_say(const tdm_group *group, const tdm__head *head);
/* Whether a neighbour, which has posted, calls the same. If not, the group is broken. */
bool tdm__window_agrees(tdm_group *group, const tdm__head *head, int local_index);
bool tdm__window_has_posted(const tdm__window *w, uint32_t sequence, int local_index,
                            uint32_t value);
/* Raises this rank's counter of a call, and rings the others. */
void tdm__window_raise(const tdm__window *w, uint32_t sequence, uint32_t value);

/* window_small.c */

/* Whether what each member brings to the call fits in its cell: the same on all members. */
bool tdm__window_is_small(const tdm_group *group, const tdm_call *call);
void tdm__window_build_small(tdm__program *program);
/* The most parts that any rank brings to a reduction; 1 without lanes. */
int tdm__window_max_parts(const tdm_group *group, const tdm_call *call);

/* Where part `part` of what this rank brings to a call begins. */
static inline const uint8_t *tdm__call_part(const tdm_call *call, int part)
{
    return call->lanes ? call->parts[part] : call->in;
}

#endif
