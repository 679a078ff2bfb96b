/*
 * prefetch.c: parameters for plans, there when a step reads them.
 *
 * Where the block is whole a feed has nothing to bring; it waits for what publish is still bringing, and
 * at the end of a run for all of it, so that the next update finds nothing under way.
 *
 * Where the block is shared out a feed has memory of its own: slots for a few buckets, and address space
 * for the whole block that is laid over them (prefetch_schedule.h says how). A bucket is gathered from all
 * ranks' shares into its slot in the background, one phase ahead of its use; what a slot holds is used
 * again as long as the store's version stays the same. Gathers have a group of their own, so their order
 * relative to a rank's other calls does not matter; among themselves it is that of the phases, the same on
 * every rank, also on those that only pass. Nothing is allocated after creation.
 */
#include "parallel/params_inner.h"
#include "parallel/prefetch_schedule.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct slot {
    size_t bucket;        /* that it holds, or will hold; SIZE_MAX: none */
    tdm_request *request; /* while it is under way */
    size_t *cuts;         /* of the gather: size + 1 */
} slot;

struct tdm_prefetch {
    tdm_params *store;
    const tdm__block *block;
    bool is_gathered;
    bool follows; /* the block is whole, and publish may be bringing it */
    tdm_plan **plans;
    tdm__prefetch_schedule *schedules; /* one for each plan */
    int plan_count;
    int plan; /* that runs */
    /* Where it is gathered: */
    tdm_group *group;
    tdm_overlay overlay;
    float *base;
    size_t *slot_of; /* by bucket */
    slot *slots;
    size_t *cuts; /* of all slots */
    size_t slot_count;
    uint64_t bytes;
    uint64_t version; /* of the store, of which the slots hold buckets */
    size_t entered;   /* phases */
};

/* ---- gathered blocks: creation --------------------------------------------------------------- */

/* Behind `tail` lie buffers: the pages from there on have memory of their own. */
typedef struct stretch_plan {
    size_t page, bytes, tail, slot_bytes;
} stretch_plan;

static stretch_plan plan_stretches(const tdm_prefetch *feed)
{
    const tdm__layout *layout = feed->store->layout;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    stretch_plan s = {.page = page};
    s.bytes = (layout->elements * sizeof(float) + page - 1) / page * page;
    s.tail = layout->elements > layout->trained_elements
                 ? layout->trained_elements * sizeof(float) / page * page
                 : s.bytes;
    if (layout->bucket_count > 0)
        s.slot_bytes = (layout->bucket_first[1] - layout->bucket_first[0]) * TDM__CELL *
                       sizeof(float);
    return s;
}

static tdm_status lay(tdm_prefetch *feed, tdm_error *err)
{
    const tdm__layout *layout = feed->store->layout;
    stretch_plan s = plan_stretches(feed);
    size_t slots = feed->slot_count * s.slot_bytes;
    feed->bytes = slots + (s.bytes - s.tail);
    TDM_TRY(tdm_overlay_map(s.bytes, feed->bytes, &feed->overlay, err));
    feed->base = feed->overlay.data;
    for (size_t i = 0; i < layout->bucket_count; i++) {
        if (feed->slot_of[i] == SIZE_MAX) continue;
        size_t begin = layout->bucket_first[i] * TDM__CELL * sizeof(float);
        size_t end = layout->bucket_first[i + 1] * TDM__CELL * sizeof(float);
        if (end > s.tail) end = s.tail;
        if (begin >= end) continue;
        TDM_TRY(tdm_overlay_lay(&feed->overlay, begin, end - begin, feed->slot_of[i] * s.slot_bytes,
                                err));
    }
    return tdm_overlay_lay(&feed->overlay, s.tail, s.bytes - s.tail, slots, err);
}

static tdm_status make_slots(tdm_prefetch *feed, tdm_error *err)
{
    const tdm__layout *layout = feed->store->layout;
    size_t size = (size_t)layout->size + 1;
    feed->slot_of = calloc(layout->bucket_count + 1, sizeof *feed->slot_of);
    if (!feed->slot_of) return tdm_fail(err, TDM_ERR_NO_MEMORY, "no memory for a feed");
    feed->slot_count = tdm__prefetch_slots(&feed->schedules[0].phases, layout->bucket_count,
                                           feed->slot_of);
    feed->slots = calloc(feed->slot_count + 1, sizeof *feed->slots);
    feed->cuts = calloc((feed->slot_count + 1) * size, sizeof *feed->cuts);
    if (!feed->slots || !feed->cuts)
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "no memory for a feed");
    for (size_t i = 0; i < feed->slot_count; i++)
        feed->slots[i] = (slot){.bucket = SIZE_MAX, .cuts = feed->cuts + i * size};
    return lay(feed, err);
}

/* ---- gathered blocks: running ---------------------------------------------------------------- */

static tdm_status start(tdm_prefetch *feed, size_t bucket, int priority, tdm_error *err)
{
    const tdm__layout *layout = feed->store->layout;
    slot *s = &feed->slots[feed->slot_of[bucket]];
    tdm__cells cells = tdm__layout_bucket(layout, bucket);
    tdm_extent what = tdm__cells_extent(layout, cells);
    s->bucket = SIZE_MAX;
    tdm__layout_cuts(layout, cells, s->cuts);
    tdm_call call = {.kind = TDM_CALL_ALL_GATHER,
                     .dtype = TDM_DTYPE_F32,
                     .count = what.count,
                     .in = feed->block->data + what.first + s->cuts[layout->place],
                     .out = feed->base + what.first,
                     .cuts = s->cuts,
                     .priority = priority};
    TDM_TRY(tdm_call_start(feed->group, &call, &s->request, err));
    s->bucket = bucket;
    return TDM_OK;
}

static tdm_status finish(slot *s, tdm_error *err)
{
    tdm_request *request = s->request;
    if (!request) return TDM_OK;
    s->request = NULL;
    tdm_status status = tdm_request_wait(request, err);
    if (status != TDM_OK) s->bucket = SIZE_MAX;
    return status;
}

/* Starts what a phase needs and no slot holds. */
static tdm_status ask(tdm_prefetch *feed, size_t phase, int priority, tdm_error *err)
{
    const tdm__bucket_lists *phases = &feed->schedules[feed->plan].phases;
    if (phase >= phases->count) return TDM_OK;
    for (size_t i = phases->first[phase]; i < phases->first[phase + 1]; i++) {
        slot *s = &feed->slots[feed->slot_of[phases->bucket[i]]];
        if (s->bucket == phases->bucket[i]) continue;
        TDM_TRY(finish(s, err));
        TDM_TRY(start(feed, phases->bucket[i], priority, err));
    }
    return TDM_OK;
}

static tdm_status enter(tdm_prefetch *feed, tdm_error *err)
{
    const tdm__bucket_lists *phases = &feed->schedules[feed->plan].phases;
    size_t phase = feed->entered++;
    TDM_TRY(ask(feed, phase, -2, err));
    TDM_TRY(ask(feed, phase + 1, -1, err));
    for (size_t i = phases->first[phase]; i < phases->first[phase + 1]; i++)
        TDM_TRY(finish(&feed->slots[feed->slot_of[phases->bucket[i]]], err));
    return TDM_OK;
}

static tdm_status forget(tdm_prefetch *feed, tdm_error *err)
{
    const tdm__layout *layout = feed->store->layout;
    for (size_t i = 0; i < feed->slot_count; i++) {
        TDM_TRY(finish(&feed->slots[i], err));
        feed->slots[i].bucket = SIZE_MAX;
    }
    size_t trained = layout->trained_elements;
    if (layout->elements > trained)
        memcpy(feed->base + trained, feed->block->data + trained,
               (layout->elements - trained) * sizeof(float));
    feed->version = feed->store->version;
    return TDM_OK;
}

/* ---- whole blocks ---------------------------------------------------------------------------- */

static tdm_status wait_for_step(tdm_prefetch *feed, size_t step, tdm_error *err)
{
    const tdm__bucket_lists *steps = &feed->schedules[feed->plan].steps;
    if (step + 1 >= steps->count) return tdm__params_await_all(feed->store, err);
    for (size_t i = steps->first[step]; i < steps->first[step + 1]; i++)
        TDM_TRY(tdm__params_await(feed->store, steps->bucket[i], err));
    return TDM_OK;
}

static tdm_status step_is_ready(tdm_prefetch *feed, size_t step, bool *out, tdm_error *err)
{
    const tdm__bucket_lists *steps = &feed->schedules[feed->plan].steps;
    *out = step + 1 < steps->count;
    for (size_t i = steps->first[step]; *out && i < steps->first[step + 1]; i++)
        TDM_TRY(tdm__params_is_ready(feed->store, steps->bucket[i], out, err));
    return TDM_OK;
}

/* While buckets are under way, a leader comes back after each step: others of its node wait for it. */
static tdm_status reach_whole(tdm_prefetch *feed, size_t step, size_t *until, tdm_error *err)
{
    size_t end = feed->schedules[feed->plan].steps.count;
    if (feed->follows && tdm__params_is_pending(feed->store)) {
        TDM_TRY(wait_for_step(feed, step, err));
        bool ready = !(feed->store->board && feed->store->leads);
        size_t next = step + 1;
        while (ready && next < end) {
            TDM_TRY(step_is_ready(feed, next, &ready, err));
            next += ready;
        }
        end = next;
    }
    *until = end > step ? end : step + 1;
    return TDM_OK;
}

/* ---- the contract ---------------------------------------------------------------------------- */

static tdm_status build(tdm_prefetch *feed, tdm_plan *const *plans, tdm_error *err)
{
    size_t count = (size_t)feed->plan_count;
    feed->plans = calloc(count + 1, sizeof(tdm_plan *));
    feed->schedules = calloc(count + 1, sizeof *feed->schedules);
    if (!feed->plans || !feed->schedules)
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "no memory for a feed");
    for (size_t i = 0; i < count; i++) {
        feed->plans[i] = plans[i];
        TDM_TRY(tdm__prefetch_schedule_init(feed->store->layout, feed->store->params, plans[i],
                                            &feed->schedules[i], err));
        if (feed->is_gathered &&
            !tdm__prefetch_schedule_same(&feed->schedules[0], &feed->schedules[i]))
            return tdm_fail(err, TDM_ERR_INVALID,
                            "plans 0 and %zu of a feed read parameters in different orders", i);
    }
    feed->base = feed->block->data;
    return feed->is_gathered ? make_slots(feed, err) : TDM_OK;
}

tdm_status tdm_prefetch_create(tdm_params *store, int block, tdm_plan *const *plans, int plan_count,
                               tdm_prefetch **out, tdm_error *err)
{
    if (plan_count < 1 || (block != TDM_BLOCK_PARAMS && block != TDM_BLOCK_EMA) ||
        !store->blocks[block].data)
        return tdm_fail(err, TDM_ERR_INVALID, "there is no feed of block %d for %d plans", block,
                        plan_count);
    tdm_prefetch *feed = calloc(1, sizeof *feed);
    if (!feed) return tdm_fail(err, TDM_ERR_NO_MEMORY, "no memory for a feed");
    feed->store = store;
    feed->block = &store->blocks[block];
    feed->is_gathered = !feed->block->whole;
    feed->follows = feed->block->whole && block == TDM_BLOCK_PARAMS;
    feed->plan_count = plan_count;
    feed->version = UINT64_MAX;
    tdm_status status = build(feed, plans, err);
    status = tdm__params_agree(store, status, err);
    if (status == TDM_OK && feed->is_gathered)
        status = tdm_group_create(store->layout->comm, store->layout->rank_of_place,
                                  store->layout->size, &feed->group, err);
    if (status != TDM_OK) {
        tdm_prefetch_destroy(feed);
        return status;
    }
    for (int i = 0; i < plan_count; i++)
        tdm_plan_bind(feed->plans[i], TDM_SPACE_PARAMS, feed->base);
    *out = feed;
    return TDM_OK;
}

void tdm_prefetch_destroy(tdm_prefetch *feed)
{
    if (!feed) return;
    for (size_t i = 0; feed->slots && i < feed->slot_count; i++)
        (void)finish(&feed->slots[i], NULL);
    if (feed->group) tdm_group_destroy(feed->group);
    tdm_overlay_unmap(&feed->overlay);
    for (int i = 0; feed->schedules && i < feed->plan_count; i++)
        tdm__prefetch_schedule_release(&feed->schedules[i]);
    free(feed->schedules);
    free(feed->plans);
    free(feed->cuts);
    free(feed->slots);
    free(feed->slot_of);
    free(feed);
}

tdm_status tdm_prefetch_begin(tdm_prefetch *feed, int plan, tdm_error *err)
{
    if (plan < 0 || plan >= feed->plan_count)
        return tdm_fail(err, TDM_ERR_RANGE, "there is no plan %d in a feed of %d", plan,
                        feed->plan_count);
    feed->plan = plan;
    feed->entered = 0;
    if (!feed->is_gathered) return TDM_OK;
    if (feed->version != feed->store->version) TDM_TRY(forget(feed, err));
    return ask(feed, 0, -2, err);
}

tdm_status tdm_prefetch_reach(tdm_prefetch *feed, size_t step, size_t *until, tdm_error *err)
{
    if (!feed->is_gathered) return reach_whole(feed, step, until, err);
    const tdm__prefetch_schedule *s = &feed->schedules[feed->plan];
    while (feed->entered < s->phases.count && s->phase_step[feed->entered] <= step)
        TDM_TRY(enter(feed, err));
    size_t end = s->phase_step[feed->entered];
    *until = end > step ? end : step + 1;
    return TDM_OK;
}

tdm_status tdm_prefetch_pass(tdm_prefetch *feed, tdm_error *err)
{
    if (!feed->is_gathered) return feed->follows ? tdm__params_await_all(feed->store, err) : TDM_OK;
    TDM_TRY(tdm_prefetch_begin(feed, 0, err));
    while (feed->entered < feed->schedules[0].phases.count) TDM_TRY(enter(feed, err));
    return TDM_OK;
}

tdm_status tdm_prefetch_run(tdm_prefetch *feed, int plan, const tdm_step_key *key, tdm_error *err)
{
    TDM_TRY(tdm_prefetch_begin(feed, plan, err));
    size_t end = feed->schedules[plan].steps.count;
    for (size_t step = 0, until = 0; step < end; step = until) {
        TDM_TRY(tdm_prefetch_reach(feed, step, &until, err));
        tdm_plan_run_part(feed->plans[plan], key, step, until < end ? until : end);
    }
    return TDM_OK;
}

uint64_t tdm_prefetch_bytes(const tdm_prefetch *feed)
{
    return feed->bytes;
}
