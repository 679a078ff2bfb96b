/*
 * prefetch_schedule.c: see prefetch_schedule.h. The buckets of a phase are in order of first use, so
 * that the first one needed is requested first.
 */
#include "parallel/prefetch_schedule.h"
#include "base/base.h"
#include "graph/graph.h"

#include <stdlib.h>
#include <string.h>

enum { PHASE_BUCKETS = 2, FIRST_BUCKETS = 64 };

/* ---- lists ----------------------------------------------------------------------------------- */

static bool lists_append(tdm__bucket_lists *lists, size_t *capacity, size_t bucket)
{
    size_t *end = &lists->first[lists->count];
    if (*end == *capacity) {
        size_t more = 2 * *capacity;
        size_t *grown = realloc(lists->bucket, more * sizeof(*grown));
        if (!grown) return false;
        lists->bucket = grown;
        *capacity = more;
    }
    lists->bucket[(*end)++] = bucket;
    return true;
}

static bool list_has(const tdm__bucket_lists *lists, size_t list, size_t bucket)
{
    for (size_t i = lists->first[list]; i < lists->first[list + 1]; i++)
        if (lists->bucket[i] == bucket) return true;
    return false;
}

/* ---- buckets of steps -------------------------------------------------------------------------- */

/* Adds the buckets of a parameter to the last list, each once. */
static bool lists_add_param(const tdm__layout *layout, tdm_extent param, tdm__bucket_lists *lists,
                            size_t *capacity, size_t *seen)
{
    size_t end = param.first + param.count;
    if (end > layout->trained_elements) end = layout->trained_elements;
    if (param.first >= end) return true; /* buffers are always present */
    size_t unit = (layout->bucket_first[1] - layout->bucket_first[0]) * TDM__CELL;
    for (size_t b = param.first / unit; b <= (end - 1) / unit; b++) {
        if (seen[b] == lists->count + 1) continue;
        seen[b] = lists->count + 1;
        if (!lists_append(lists, capacity, b)) return false;
    }
    return true;
}

static bool schedule_list_steps(const tdm__layout *layout, const tdm_extent *params,
                                const tdm_plan *plan, tdm__bucket_lists *steps)
{
    size_t count = tdm_plan_step_count(plan), capacity = FIRST_BUCKETS;
    size_t *seen = calloc(layout->bucket_count + 1, sizeof(*seen));
    steps->first = calloc(count + 1, sizeof(*steps->first));
    steps->bucket = calloc(capacity, sizeof(*steps->bucket));
    bool ok = seen && steps->first && steps->bucket;
    for (size_t step = 0; ok && step < count; step++) {
        size_t reads[TDM_MAX_PLAN_READS];
        size_t read_count = tdm_plan_reads_at(plan, step, reads);
        steps->first[step + 1] = steps->first[step]; /* the last list is still empty */
        tdm__bucket_lists last = {
            .count = step + 1, .first = steps->first, .bucket = steps->bucket};
        for (size_t i = 0; ok && i < read_count; i++)
            ok = lists_add_param(layout, params[reads[i]], &last, &capacity, seen);
        steps->bucket = last.bucket;
        steps->count = step + 1;
    }
    free(seen);
    return ok;
}

/* ---- phases ---------------------------------------------------------------------------------- */

static size_t steps_max_buckets(const tdm__bucket_lists *steps)
{
    size_t max = PHASE_BUCKETS;
    for (size_t i = 0; i < steps->count; i++) {
        size_t count = steps->first[i + 1] - steps->first[i];
        if (count > max) max = count;
    }
    return max;
}

/* The number of buckets of a step that are not yet in list `phase`. */
static size_t step_new_buckets(const tdm__bucket_lists *steps, size_t step,
                               const tdm__bucket_lists *phases, size_t phase)
{
    size_t fresh = 0;
    for (size_t i = steps->first[step]; i < steps->first[step + 1]; i++)
        fresh += !list_has(phases, phase, steps->bucket[i]);
    return fresh;
}

static bool schedule_list_phases(tdm__prefetch_schedule *s)
{
    const tdm__bucket_lists *steps = &s->steps;
    tdm__bucket_lists *phases = &s->phases;
    size_t max = steps_max_buckets(steps), capacity = FIRST_BUCKETS;
    phases->first = calloc(steps->count + 2, sizeof(*phases->first));
    s->phase_step = calloc(steps->count + 2, sizeof(*s->phase_step));
    phases->bucket = calloc(capacity, sizeof(*phases->bucket));
    if (!phases->first || !phases->bucket || !s->phase_step) return false;
    phases->count = 1; /* the first phase begins with step 0, whatever that reads */
    for (size_t step = 0; step < steps->count; step++) {
        size_t now = phases->count - 1;
        size_t held = phases->first[now + 1] - phases->first[now];
        if (held + step_new_buckets(steps, step, phases, now) > max) {
            s->phase_step[++now] = step;
            phases->count = now + 1;
            phases->first[now + 1] = phases->first[now];
        }
        for (size_t i = steps->first[step]; i < steps->first[step + 1]; i++)
            if (!list_has(phases, now, steps->bucket[i]) &&
                !lists_append(phases, &capacity, steps->bucket[i]))
                return false;
    }
    s->phase_step[phases->count] = steps->count;
    return true;
}

tdm_status tdm__prefetch_schedule_init(const tdm__layout *layout, const tdm_extent *params,
                                       const tdm_plan *plan, tdm__prefetch_schedule *out,
                                       tdm_error *err)
{
    tdm__prefetch_schedule s = {0};
    if (schedule_list_steps(layout, params, plan, &s.steps) && schedule_list_phases(&s)) {
        *out = s;
        return TDM_OK;
    }
    tdm__prefetch_schedule_release(&s);
    return tdm_fail_oom(err, "for the parameter prefetch");
}

void tdm__prefetch_schedule_release(tdm__prefetch_schedule *schedule)
{
    free(schedule->steps.first);
    free(schedule->steps.bucket);
    free(schedule->phases.first);
    free(schedule->phases.bucket);
    free(schedule->phase_step);
    *schedule = (tdm__prefetch_schedule){0};
}

bool tdm__prefetch_schedule_same(const tdm__prefetch_schedule *a, const tdm__prefetch_schedule *b)
{
    const tdm__bucket_lists *x = &a->phases, *y = &b->phases;
    if (x->count != y->count || memcmp(x->first, y->first, (x->count + 1) * sizeof(*x->first)) != 0)
        return false;
    size_t needs = x->first[x->count];
    return needs == 0 || memcmp(x->bucket, y->bucket, needs * sizeof(*x->bucket)) == 0;
}

/* ---- slots ----------------------------------------------------------------------------------- */

/* Marks with `mark` the slots of all buckets that must not share one with `bucket`. */
static void slots_mark_taken(const tdm__bucket_lists *phases, size_t bucket, const size_t *slot_of,
                             size_t *taken, size_t mark)
{
    for (size_t p = 0; p < phases->count; p++) {
        if (!list_has(phases, p, bucket)) continue;
        size_t begin = phases->first[p > 0 ? p - 1 : 0];
        size_t end = phases->first[p + 2 <= phases->count ? p + 2 : phases->count];
        for (size_t i = begin; i < end; i++)
            if (slot_of[phases->bucket[i]] != SIZE_MAX) taken[slot_of[phases->bucket[i]]] = mark;
    }
}

size_t tdm__prefetch_slots(const tdm__bucket_lists *phases, size_t bucket_count, size_t *slot_of)
{
    size_t slots = 0;
    for (size_t i = 0; i < bucket_count; i++) slot_of[i] = SIZE_MAX;
    size_t *taken = calloc(bucket_count + 1, sizeof(*taken));
    size_t needs = phases->first[phases->count];
    for (size_t i = 0; i < needs; i++) {
        size_t bucket = phases->bucket[i];
        if (slot_of[bucket] != SIZE_MAX) continue;
        size_t slot = 0;
        if (!taken)
            slot = slots; /* no memory to find a free slot: one slot per bucket */
        else
            slots_mark_taken(phases, bucket, slot_of, taken, i + 1);
        while (taken && slot < slots && taken[slot] == i + 1) slot++;
        slot_of[bucket] = slot;
        if (slot == slots) slots++;
    }
    free(taken);
    return slots;
}
