/*
 * prefetch_schedule.h: which buckets a run needs when, and in which slots they lie. Pure: no memory is
 * moved here, so that every rank makes the same plan by itself.
 *
 * The steps of a plan are cut into phases. A phase is a run of steps whose buckets together are few: the
 * most that a single step needs, or two. While a phase runs, the buckets of the next one are brought. So
 * two buckets may share a slot when they never meet in a phase, or in two phases that follow each other.
 */
#ifndef TANDEM_PARALLEL_FEED_SCHEDULE_H
#define TANDEM_PARALLEL_FEED_SCHEDULE_H

#include "parallel/layout.h"

/* Lists of buckets: list i is bucket[first[i]] to bucket[first[i + 1]]. */
typedef struct tdm__bucket_lists {
    size_t count;
    size_t *first; /* count + 1 */
    size_t *bucket;
} tdm__bucket_lists;

typedef struct tdm__prefetch_schedule {
    tdm__bucket_lists steps;  /* what a step reads */
    tdm__bucket_lists phases; /* what a phase needs, in order of first use */
    size_t *phase_step;       /* where phases begin; one more: the number of steps */
} tdm__prefetch_schedule;

/* `params` has the place of each parameter (tdm_graph_param_at) in the block. */
tdm_status tdm__prefetch_schedule_init(const tdm__layout *layout, const tdm_extent *params,
                                       const tdm_plan *plan, tdm__prefetch_schedule *out,
                                       tdm_error *err);
void tdm__prefetch_schedule_release(tdm__prefetch_schedule *schedule);
/* Whether two runs need the same buckets in the same order. */
bool tdm__prefetch_schedule_same(const tdm__prefetch_schedule *a, const tdm__prefetch_schedule *b);
/* Gives every bucket a slot; returns their number. SIZE_MAX for buckets that nothing reads. */
size_t tdm__prefetch_slots(const tdm__bucket_lists *phases, size_t bucket_count, size_t *slot_of);

#endif
