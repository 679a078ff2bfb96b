/*
 * prefetch.c: provides parameters to plans before a step reads them.
 *
 * For a complete block nothing is gathered; it waits for buckets that publish is still delivering, and
 * at the end of a run for all of them, so that none is in progress during the next update.
 *
 * For a sharded block it has its own memory: slots for a few buckets, and address space
 * for the whole block that is mapped to them (prefetch_schedule.h). A bucket is gathered from the shares of all
 * ranks into its slot in the background, one phase ahead of its use. The content of a slot is
 * reused as long as the version of the store stays the same. Gathers use a separate group, so their order
 * relative to a rank's other calls does not matter; among themselves it is that of the phases, the same on
 * every rank, including ranks that only pass. Nothing is allocated after creation.
 */
#include "base/base.h"
#include "comm/comm.h"
#include "os/os.h"
#include "parallel/params_inner.h"
#include "parallel/prefetch_schedule.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct slot {
    size_t bucket;        /* that it holds or will hold; SIZE_MAX: none */
    tdm_request *request; /* while a gather is in progress */
    size_t *cuts;         /* of the gather: size + 1 */
} slot;

struct tdm_prefetch {
    tdm_params *store;
    const tdm__block *block;
    bool is_gathered;
    bool follows; /* the block is complete, and publish may be delivering it */
    tdm_plan **plans;
    tdm__prefetch_schedule *schedules; /* one per plan */
    int plan_count;
    int plan; /* the current one */
    /* For a gathered block: */
    tdm_group *group;
    tdm_overlay overlay;
    float *base;
    size_t *slot_of; /* by bucket */
    slot *slots;
    size_t *cuts; /* of all slots */
    size_t slot_count;
    uint64_t bytes;
    uint64_t version; /* of the store, to which the slots belong */
    size_t entered;   /* number of phases entered */
};

/* ---- gathered blocks: creation --------------------------------------------------------------- */

/* Buffers are behind `tail`: the pages from there on have separate memory. */
typedef struct range_plan {
    size_t page, bytes, tail, slot_bytes;
} range_plan;

static range_plan prefetch_plan_ranges(const tdm_prefetch *prefetch)
{
    const tdm__layout *layout = prefetch->store->layout;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    range_plan s = {.page = page};
    s.bytes = (layout->elements * sizeof(float) + page - 1) / page * page;
    s.tail = layout->elements > layout->trained_elements
                 ? layout->trained_elements * sizeof(float) / page * page
                 : s.bytes;
    if (layout->bucket_count > 0)
        s.slot_bytes = (layout->bucket_first[1] - layout->bucket_first[0]) * TDM__CELL *
                       sizeof(float);
    return s;
}

static tdm_status prefetch_map_slots(tdm_prefetch *prefetch, tdm_error *err)
{
    const tdm__layout *layout = prefetch->store->layout;
    range_plan s = prefetch_plan_ranges(prefetch);
    size_t slots = prefetch->slot_count * s.slot_bytes;
    prefetch->bytes = slots + (s.bytes - s.tail);
    TDM_TRY(tdm_overlay_map(s.bytes, prefetch->bytes, &prefetch->overlay, err));
    prefetch->base = prefetch->overlay.data;
    for (size_t i = 0; i < layout->bucket_count; i++) {
        if (prefetch->slot_of[i] == SIZE_MAX) continue;
        size_t begin = layout->bucket_first[i] * TDM__CELL * sizeof(float);
        size_t end = layout->bucket_first[i + 1] * TDM__CELL * sizeof(float);
        if (end > s.tail) end = s.tail;
        if (begin >= end) continue;
        TDM_TRY(tdm_overlay_lay(&prefetch->overlay, begin, end - begin,
                                prefetch->slot_of[i] * s.slot_bytes, err));
    }
    return tdm_overlay_lay(&prefetch->overlay, s.tail, s.bytes - s.tail, slots, err);
}

static tdm_status prefetch_make_slots(tdm_prefetch *prefetch, tdm_error *err)
{
    const tdm__layout *layout = prefetch->store->layout;
    size_t size = (size_t)layout->size + 1;
    prefetch->slot_of = calloc(layout->bucket_count + 1, sizeof(*prefetch->slot_of));
    if (!prefetch->slot_of) return tdm_fail_oom(err, "for the parameter prefetch");
    prefetch->slot_count = tdm__prefetch_slots(&prefetch->schedules[0].phases, layout->bucket_count,
                                               prefetch->slot_of);
    prefetch->slots = calloc(prefetch->slot_count + 1, sizeof(*prefetch->slots));
    prefetch->cuts = calloc((prefetch->slot_count + 1) * size, sizeof(*prefetch->cuts));
    if (!prefetch->slots || !prefetch->cuts) return tdm_fail_oom(err, "for the parameter prefetch");
    for (size_t i = 0; i < prefetch->slot_count; i++)
        prefetch->slots[i] = (slot){.bucket = SIZE_MAX, .cuts = prefetch->cuts + i * size};
    return prefetch_map_slots(prefetch, err);
}

/* ---- gathered blocks: running ---------------------------------------------------------------- */

static tdm_status slot_start(tdm_prefetch *prefetch, size_t bucket, int priority, tdm_error *err)
{
    const tdm__layout *layout = prefetch->store->layout;
    slot *s = &prefetch->slots[prefetch->slot_of[bucket]];
    tdm__cells cells = tdm__layout_bucket(layout, bucket);
    tdm_extent what = tdm__cells_extent(layout, cells);
    s->bucket = SIZE_MAX;
    tdm__layout_cuts(layout, cells, s->cuts);
    tdm_call call = {.kind = TDM_CALL_ALL_GATHER,
                     .dtype = TDM_DTYPE_F32,
                     .count = what.count,
                     .in = prefetch->block->data + what.first + s->cuts[layout->place],
                     .out = prefetch->base + what.first,
                     .cuts = s->cuts,
                     .priority = priority};
    TDM_TRY(tdm_call_start(prefetch->group, &call, &s->request, err));
    s->bucket = bucket;
    return TDM_OK;
}

static tdm_status slot_finish(slot *s, tdm_error *err)
{
    tdm_request *request = s->request;
    if (!request) return TDM_OK;
    s->request = NULL;
    tdm_status status = tdm_request_wait(request, err);
    if (status != TDM_OK) s->bucket = SIZE_MAX;
    return status;
}

/* Starts the gathers of a phase's buckets that no slot holds. */
static tdm_status prefetch_request_phase(tdm_prefetch *prefetch, size_t phase, int priority,
                                         tdm_error *err)
{
    const tdm__bucket_lists *phases = &prefetch->schedules[prefetch->plan].phases;
    if (phase >= phases->count) return TDM_OK;
    for (size_t i = phases->first[phase]; i < phases->first[phase + 1]; i++) {
        slot *s = &prefetch->slots[prefetch->slot_of[phases->bucket[i]]];
        if (s->bucket == phases->bucket[i]) continue;
        TDM_TRY(slot_finish(s, err));
        TDM_TRY(slot_start(prefetch, phases->bucket[i], priority, err));
    }
    return TDM_OK;
}

static tdm_status prefetch_enter_phase(tdm_prefetch *prefetch, tdm_error *err)
{
    const tdm__bucket_lists *phases = &prefetch->schedules[prefetch->plan].phases;
    size_t phase = prefetch->entered++;
    TDM_TRY(prefetch_request_phase(prefetch, phase, -2, err));
    TDM_TRY(prefetch_request_phase(prefetch, phase + 1, -1, err));
    for (size_t i = phases->first[phase]; i < phases->first[phase + 1]; i++)
        TDM_TRY(slot_finish(&prefetch->slots[prefetch->slot_of[phases->bucket[i]]], err));
    return TDM_OK;
}

static tdm_status prefetch_invalidate(tdm_prefetch *prefetch, tdm_error *err)
{
    const tdm__layout *layout = prefetch->store->layout;
    for (size_t i = 0; i < prefetch->slot_count; i++) {
        TDM_TRY(slot_finish(&prefetch->slots[i], err));
        prefetch->slots[i].bucket = SIZE_MAX;
    }
    size_t trained = layout->trained_elements;
    if (layout->elements > trained)
        memcpy(prefetch->base + trained, prefetch->block->data + trained,
               (layout->elements - trained) * sizeof(float));
    prefetch->version = prefetch->store->version;
    return TDM_OK;
}

/* ---- complete blocks -------------------------------------------------------------------------- */

static tdm_status prefetch_await_step(tdm_prefetch *prefetch, size_t step, tdm_error *err)
{
    const tdm__bucket_lists *steps = &prefetch->schedules[prefetch->plan].steps;
    if (step + 1 >= steps->count) return tdm__params_await_all(prefetch->store, err);
    for (size_t i = steps->first[step]; i < steps->first[step + 1]; i++)
        TDM_TRY(tdm__params_await(prefetch->store, steps->bucket[i], err));
    return TDM_OK;
}

static tdm_status prefetch_step_is_ready(tdm_prefetch *prefetch, size_t step, bool *out,
                                         tdm_error *err)
{
    const tdm__bucket_lists *steps = &prefetch->schedules[prefetch->plan].steps;
    *out = step + 1 < steps->count;
    for (size_t i = steps->first[step]; *out && i < steps->first[step + 1]; i++)
        TDM_TRY(tdm__params_is_ready(prefetch->store, steps->bucket[i], out, err));
    return TDM_OK;
}

/* While buckets are pending, a leader returns after each step: other ranks of its node wait for it. */
static tdm_status prefetch_reach_whole(tdm_prefetch *prefetch, size_t step, size_t *until,
                                       tdm_error *err)
{
    size_t end = prefetch->schedules[prefetch->plan].steps.count;
    if (prefetch->follows && tdm__params_is_pending(prefetch->store)) {
        TDM_TRY(prefetch_await_step(prefetch, step, err));
        bool ready = !(prefetch->store->board && prefetch->store->leads);
        size_t next = step + 1;
        while (ready && next < end) {
            TDM_TRY(prefetch_step_is_ready(prefetch, next, &ready, err));
            next += ready;
        }
        end = next;
    }
    *until = end > step ? end : step + 1;
    return TDM_OK;
}

/* ---- the public functions ---------------------------------------------------------------------- */

static tdm_status prefetch_build(tdm_prefetch *prefetch, tdm_plan *const *plans, tdm_error *err)
{
    size_t count = (size_t)prefetch->plan_count;
    prefetch->plans = calloc(count + 1, sizeof(tdm_plan *));
    prefetch->schedules = calloc(count + 1, sizeof(*prefetch->schedules));
    if (!prefetch->plans || !prefetch->schedules)
        return tdm_fail_oom(err, "for the parameter prefetch");
    for (size_t i = 0; i < count; i++) {
        prefetch->plans[i] = plans[i];
        TDM_TRY(tdm__prefetch_schedule_init(prefetch->store->layout, prefetch->store->params,
                                            plans[i], &prefetch->schedules[i], err));
        if (prefetch->is_gathered &&
            !tdm__prefetch_schedule_same(&prefetch->schedules[0], &prefetch->schedules[i]))
            return tdm_fail(err, TDM_ERR_INVALID,
                            "plans 0 and %zu read parameters in different orders", i);
    }
    prefetch->base = prefetch->block->data;
    return prefetch->is_gathered ? prefetch_make_slots(prefetch, err) : TDM_OK;
}

tdm_status tdm_prefetch_create(tdm_params *store, int block, tdm_plan *const *plans, int plan_count,
                               tdm_prefetch **out, tdm_error *err)
{
    if (plan_count < 1 || (block != TDM_BLOCK_PARAMS && block != TDM_BLOCK_EMA) ||
        !store->blocks[block].data)
        return tdm_fail(err, TDM_ERR_INVALID, "cannot prefetch block %d for %d plans", block,
                        plan_count);
    tdm_prefetch *prefetch = calloc(1, sizeof(*prefetch));
    if (!prefetch) return tdm_fail_oom(err, "for the parameter prefetch");
    prefetch->store = store;
    prefetch->block = &store->blocks[block];
    prefetch->is_gathered = !prefetch->block->whole;
    prefetch->follows = prefetch->block->whole && block == TDM_BLOCK_PARAMS;
    prefetch->plan_count = plan_count;
    prefetch->version = UINT64_MAX;
    tdm_status status = prefetch_build(prefetch, plans, err);
    status = tdm_comm_agree(store->layout->comm, status, NULL, err);
    if (status == TDM_OK && prefetch->is_gathered)
        status = tdm_group_create(store->layout->comm, store->layout->rank_of_place,
                                  store->layout->size, &prefetch->group, err);
    if (status != TDM_OK) {
        tdm_prefetch_destroy(prefetch);
        return status;
    }
    for (int i = 0; i < plan_count; i++)
        tdm_plan_bind(prefetch->plans[i], TDM_SPACE_PARAMS, prefetch->base);
    *out = prefetch;
    return TDM_OK;
}

void tdm_prefetch_destroy(tdm_prefetch *prefetch)
{
    if (!prefetch) return;
    for (size_t i = 0; prefetch->slots && i < prefetch->slot_count; i++)
        (void)slot_finish(&prefetch->slots[i], NULL);
    if (prefetch->group) tdm_group_destroy(prefetch->group);
    tdm_overlay_unmap(&prefetch->overlay);
    for (int i = 0; prefetch->schedules && i < prefetch->plan_count; i++)
        tdm__prefetch_schedule_release(&prefetch->schedules[i]);
    free(prefetch->schedules);
    free(prefetch->plans);
    free(prefetch->cuts);
    free(prefetch->slots);
    free(prefetch->slot_of);
    free(prefetch);
}

tdm_status tdm_prefetch_begin(tdm_prefetch *prefetch, int plan, tdm_error *err)
{
    if (plan < 0 || plan >= prefetch->plan_count)
        return tdm_fail(err, TDM_ERR_RANGE, "plan %d is not one of the %d prefetched plans", plan,
                        prefetch->plan_count);
    prefetch->plan = plan;
    prefetch->entered = 0;
    if (!prefetch->is_gathered) return TDM_OK;
    if (prefetch->version != prefetch->store->version) TDM_TRY(prefetch_invalidate(prefetch, err));
    return prefetch_request_phase(prefetch, 0, -2, err);
}

tdm_status tdm_prefetch_reach(tdm_prefetch *prefetch, size_t step, size_t *until, tdm_error *err)
{
    if (!prefetch->is_gathered) return prefetch_reach_whole(prefetch, step, until, err);
    const tdm__prefetch_schedule *s = &prefetch->schedules[prefetch->plan];
    while (prefetch->entered < s->phases.count && s->phase_step[prefetch->entered] <= step)
        TDM_TRY(prefetch_enter_phase(prefetch, err));
    size_t end = s->phase_step[prefetch->entered];
    *until = end > step ? end : step + 1;
    return TDM_OK;
}

tdm_status tdm_prefetch_pass(tdm_prefetch *prefetch, tdm_error *err)
{
    if (!prefetch->is_gathered)
        return prefetch->follows ? tdm__params_await_all(prefetch->store, err) : TDM_OK;
    TDM_TRY(tdm_prefetch_begin(prefetch, 0, err));
    while (prefetch->entered < prefetch->schedules[0].phases.count)
        TDM_TRY(prefetch_enter_phase(prefetch, err));
    return TDM_OK;
}

tdm_status tdm_prefetch_run(tdm_prefetch *prefetch, int plan, const tdm_step_key *key,
                            tdm_error *err)
{
    TDM_TRY(tdm_prefetch_begin(prefetch, plan, err));
    size_t end = prefetch->schedules[plan].steps.count;
    for (size_t step = 0, until = 0; step < end; step = until) {
        TDM_TRY(tdm_prefetch_reach(prefetch, step, &until, err));
        tdm_plan_run_part(prefetch->plans[plan], key, step, until < end ? until : end);
    }
    return TDM_OK;
}

uint64_t tdm_prefetch_bytes(const tdm_prefetch *prefetch)
{
    return prefetch->bytes;
}
