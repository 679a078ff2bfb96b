/*
 * window_inner.h: shared by the files about windows (tdm__window in engine.h): window.c has the
 * block and the call descriptions in it, window_small.c the calls whose data fit in a cell,
 * algorithms/window.c the larger ones, algorithms/hierarchy.c those of several hosts.
 */
#ifndef TANDEM_COMM_WINDOW_INNER_H
#define TANDEM_COMM_WINDOW_INNER_H

#include "comm/engine.h"

/* window.c */

/* Whether all members have ended call `before`; if not, they will notify this rank. */
bool tdm__window_is_free(tdm__window *w, uint32_t before);
/* Writes the description of this rank's call to its cell of the call's slot. */
void tdm__window_say(const tdm_group *group, const tdm__head *head);
/* Whether a neighbour that has posted makes the same call. If not, the group is broken. */
bool tdm__window_agrees(tdm_group *group, const tdm__head *head, int local_index);
bool tdm__window_has_posted(const tdm__window *w, uint32_t sequence, int local_index,
                            uint32_t value);
/* Raises this rank's counter of a call, and notifies the others. */
void tdm__window_raise(const tdm__window *w, uint32_t sequence, uint32_t value);

/* window_small.c */

/* Whether the input of each member fits in its cell: the same on all members. */
bool tdm__window_is_small(const tdm_group *group, const tdm_call *call);
void tdm__window_build_small(tdm__program *program);
/* The maximum number of parts that any rank has in a reduction; 1 without lanes. */
int tdm__window_max_parts(const tdm_group *group, const tdm_call *call);

/* The address of part `part` of this rank's input. */
static inline const uint8_t *tdm__call_part(const tdm_call *call, int part)
{
    return call->lanes ? call->parts[part] : call->in;
}

#endif
