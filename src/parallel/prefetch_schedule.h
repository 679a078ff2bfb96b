/*
 * prefetch_schedule.h: which buckets a run of a plan needs when, and their slots. Pure functions, so that every rank
 * computes the same schedule by itself.
 *
 * The steps of a plan are divided into phases. A phase is a run of steps that need few buckets together: at most as
 * many as the most demanding step, or two. While a phase runs, the buckets of the next one are gathered. So
 * two buckets may share a slot if they are never needed in the same phase or in two consecutive phases.
 */
#ifndef TANDEM_PARALLEL_PREFETCH_SCHEDULE_H
#define TANDEM_PARALLEL_PREFETCH_SCHEDULE_H

#include "parallel/layout.h"

/* Lists of buckets: list i is bucket[first[i]] to bucket[first[i + 1]]. */
typedef struct tdm__bucket_lists {
    size_t count;
    size_t *first; /* count + 1 */
    size_t *bucket;
} tdm__bucket_lists;

typedef struct tdm__prefetch_schedule {
    tdm__bucket_lists steps;  /* buckets that a step reads */
    tdm__bucket_lists phases; /* buckets that a phase needs, in order of first use */
    size_t *phase_step;       /* first step of each phase, followed by the number of steps */
} tdm__prefetch_schedule;

/* `params` has the position of each parameter (tdm_graph_param_at) in the block. */
tdm_status tdm__prefetch_schedule_init(const tdm__layout *layout, const tdm_extent *params,
                                       const tdm_plan *plan, tdm__prefetch_schedule *out,
                                       tdm_error *err);
void tdm__prefetch_schedule_release(tdm__prefetch_schedule *schedule);
/* Whether two schedules need the same buckets in the same order. */
bool tdm__prefetch_schedule_same(const tdm__prefetch_schedule *a, const tdm__prefetch_schedule *b);
/* Assigns a slot to every bucket; returns the number of slots. SIZE_MAX for buckets that no step reads. */
size_t tdm__prefetch_slots(const tdm__bucket_lists *phases, size_t bucket_count, size_t *slot_of);

#endif
