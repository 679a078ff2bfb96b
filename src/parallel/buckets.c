/*
 * buckets.c: sums gradients by messages, bucket by bucket, during the backward pass.
 *
 * The plan determines after which step each gradient is complete, so the order of complete buckets is known
 * in advance; it is the same on all ranks. When a rank's last lane completes a bucket, this rank's part
 * of the tree is complete for it as well, and the bucket's reduction starts in the background: an
 * all-reduce if every node updates everything, a reduce-scatter to the owners of its cells if the
 * state is sharded. The sums arrive in `sums`, which has memory only for them.
 *
 * With parallel.zero 2 and 3, a rank's last lane does not write to a complete gradient buffer but to
 * an overlay: buckets that are never in use at the same time share the same memory.
 *
 * Reductions other than the tree (ring, central) take one sum from each rank, added here from left to
 * right over its parts. They are not canonical: their bits depend on the number of ranks.
 *
 * Invariants: reductions are started in `order` on all ranks, on a separate group. A
 * slot of the overlay is written only when the reduction of its previous bucket has ended.
 */
#include "base/base.h"
#include "comm/comm.h"
#include "os/os.h"
#include "parallel/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MIN_SLOTS = 4 }; /* of the overlay, if there are as many buckets */

/* A bucket, in the order in which buckets are completed. */
typedef struct entry {
    size_t bucket;
    tdm_extent range;              /* of elements */
    tdm_extent own;                /* the part that this rank updates */
    size_t ready[TDM__MAX_GRAPHS]; /* the step after which it is complete */
    size_t begin[TDM__MAX_GRAPHS]; /* the first step that writes to it */
    size_t *cuts;
    const void **parts;
    tdm_request *request;
    int slot;
    size_t before; /* the previous entry in the slot; SIZE_MAX: none */
} entry;

struct tdm__buckets {
    tdm_group *group;
    size_t count;
    entry *entries;
    size_t *urgent;     /* buckets by first use in a forward pass */
    size_t next;        /* the first entry that this pass has not completed */
    size_t started;     /* in this step */
    tdm_lanes lanes;    /* of the calls in progress */
    double first_start; /* of the step's reductions; 0: none yet */
    bool has_overlay;
    tdm_overlay overlay;
    int slot_count;
    size_t slot_bytes;
    tdm_pages zeros; /* contribution of a rank without rows to reductions other than the tree */
    size_t *cuts;
    const void **parts;
    size_t bucket_bytes;
};

/* ---- the order ----------------------------------------------------------------------------------- */

static void step_extend(size_t step, bool later, size_t *at)
{
    if (*at == SIZE_MAX || (later ? step > *at : step < *at)) *at = step;
}

/* Finds the first and the last step that write to a bucket, in the plans of each graph. */
static void entry_find_steps(const tdm_team *team, entry *e)
{
    for (int g = 0; g < team->graph_count; g++) {
        const tdm_graph *graph = team->graphs[g].graph;
        const tdm_plan *plan = team->plans[g];
        e->ready[g] = e->begin[g] = SIZE_MAX;
        for (size_t i = 0; i < tdm_graph_param_count(graph); i++) {
            const tdm_param_info *p = tdm_graph_param_at(graph, i);
            size_t ready = tdm_plan_grad_step(plan, i);
            if (p->offset >= e->range.first + e->range.count ||
                p->offset + p->elements <= e->range.first || ready == SIZE_MAX)
                continue;
            step_extend(ready, true, &e->ready[g]);
            step_extend(tdm_plan_grad_begin(plan, i), false, &e->begin[g]);
        }
        if (e->ready[g] == SIZE_MAX) e->ready[g] = e->begin[g] = 0; /* nothing in it is trained */
    }
}

static int entry_compare_ready(const void *left, const void *right)
{
    const entry *a = left, *b = right;
    if (a->ready[0] != b->ready[0]) return a->ready[0] < b->ready[0] ? -1 : 1;
    return a->bucket > b->bucket
               ? -1
               : a->bucket < b->bucket; /* the backward pass is in reverse order */
}

/* Ensures that, in every graph, no entry is ready before its predecessor in the order of the first graph. */
static void buckets_make_monotonic(const tdm_team *team, tdm__buckets *b)
{
    for (int g = 0; g < team->graph_count; g++)
        for (size_t i = 1; i < b->count; i++)
            if (b->entries[i].ready[g] < b->entries[i - 1].ready[g])
                b->entries[i].ready[g] = b->entries[i - 1].ready[g];
}

typedef struct first_use {
    size_t bucket, step;
} first_use;

static int first_use_compare(const void *left, const void *right)
{
    const first_use *a = left, *b = right;
    if (a->step != b->step) return a->step < b->step ? -1 : 1;
    return a->bucket < b->bucket ? -1 : a->bucket > b->bucket;
}

static void first_use_note(const tdm_team *team, const tdm_param_info *p, size_t step,
                           first_use *uses)
{
    const tdm__layout *l = team->layout;
    for (size_t k = 0; k < l->bucket_count; k++) {
        tdm_extent range = tdm__cells_extent(l, tdm__layout_bucket(l, k));
        if (p->offset < range.first + range.count && p->offset + p->elements > range.first &&
            step < uses[k].step)
            uses[k].step = step;
    }
}

static tdm_status buckets_find_urgent(tdm_team *team, tdm__buckets *b, tdm_error *err)
{
    first_use *uses = calloc(b->count + 1, sizeof(*uses));
    b->urgent = calloc(b->count + 1, sizeof(*b->urgent));
    if (!uses || !b->urgent) {
        free(uses);
        return tdm_fail_oom(err, "for the team");
    }
    for (size_t k = 0; k < b->count; k++) uses[k] = (first_use){k, SIZE_MAX};
    for (size_t s = 0; s < tdm_plan_step_count(team->plans[0]); s++) {
        size_t reads[TDM_MAX_PLAN_READS];
        size_t count = tdm_plan_reads_at(team->plans[0], s, reads);
        for (size_t i = 0; i < count; i++)
            first_use_note(team, tdm_graph_param_at(team->graphs[0].graph, reads[i]), s, uses);
    }
    qsort(uses, b->count, sizeof(*uses), first_use_compare);
    for (size_t k = 0; k < b->count; k++) b->urgent[k] = uses[k].bucket;
    free(uses);
    return TDM_OK;
}

/* ---- the overlay ---------------------------------------------------------------------------------- */

/* Whether entry `i` may reuse the memory of `j`, which precedes it in the order: in no graph is
 * it written before `j` is complete. */
static bool entry_may_follow(const tdm_team *team, const tdm__buckets *b, size_t i, size_t j)
{
    for (int g = 0; g < team->graph_count; g++)
        if (b->entries[j].ready[g] >= b->entries[i].begin[g]) return false;
    return true;
}

/* Assigns each entry the slot whose last user ended first, or a new one. */
static tdm_status buckets_assign_slots(tdm_team *team, tdm__buckets *b, tdm_error *err)
{
    size_t *last = calloc(b->count + 1, sizeof(*last)); /* by slot: its last user */
    if (!last) return tdm_fail_oom(err, "for the team");
    for (size_t i = 0; i < b->count; i++) {
        int best = -1;
        for (int s = 0; s < b->slot_count && b->slot_count >= MIN_SLOTS; s++)
            if (entry_may_follow(team, b, i, last[s]) && (best < 0 || last[s] < last[best]))
                best = s;
        b->entries[i].before = best >= 0 ? last[best] : SIZE_MAX;
        if (best < 0) best = b->slot_count++;
        b->entries[i].slot = best;
        last[best] = i;
    }
    free(last);
    return TDM_OK;
}

static tdm_status buckets_make_overlay(tdm_team *team, tdm__buckets *b, tdm_error *err)
{
    TDM_TRY(buckets_assign_slots(team, b, err));
    const tdm__layout *l = team->layout;
    size_t cell_bytes = TDM__CELL * sizeof(float);
    for (size_t i = 0; i < b->count; i++) {
        tdm__cells cells = tdm__layout_bucket(l, b->entries[i].bucket);
        if ((cells.end - cells.first) * cell_bytes > b->slot_bytes)
            b->slot_bytes = (cells.end - cells.first) * cell_bytes;
    }
    TDM_TRY(tdm_overlay_map(team->block_extent * sizeof(float),
                            (size_t)b->slot_count * b->slot_bytes, &b->overlay, err));
    b->has_overlay = true;
    for (size_t i = 0; i < b->count; i++) {
        tdm__cells cells = tdm__layout_bucket(l, b->entries[i].bucket);
        TDM_TRY(tdm_overlay_lay(&b->overlay, cells.first * cell_bytes,
                                (cells.end - cells.first) * cell_bytes,
                                (size_t)b->entries[i].slot * b->slot_bytes, err));
    }
    return TDM_OK;
}

float *tdm__buckets_last_grads(const tdm_team *team)
{
    return team->buckets->has_overlay ? team->buckets->overlay.data : NULL;
}

/* ---- creation ------------------------------------------------------------------------------------- */

static tdm_status buckets_make_entries(tdm_team *team, tdm__buckets *b, tdm_error *err)
{
    const tdm__layout *l = team->layout;
    size_t stride = (size_t)team->size + 1;
    b->count = l->bucket_count;
    b->entries = calloc(b->count + 1, sizeof(*b->entries));
    b->cuts = calloc(b->count * stride + 1, sizeof(*b->cuts));
    b->parts = calloc(b->count * TDM_MAX_LANE_PARTS + 1, sizeof(*b->parts));
    if (!b->entries || !b->cuts || !b->parts) return tdm_fail_oom(err, "for the team");
    for (size_t k = 0; k < b->count; k++) {
        entry *e = &b->entries[k];
        tdm__cells cells = tdm__layout_bucket(l, k);
        e->bucket = k;
        e->range = tdm__cells_extent(l, cells);
        e->own = tdm__cells_extent(l, tdm__layout_share(l, cells, team->place));
        e->before = SIZE_MAX;
        e->cuts = b->cuts + k * stride;
        e->parts = b->parts + k * TDM_MAX_LANE_PARTS;
        if (!l->common) tdm__layout_cuts(l, cells, e->cuts);
        if (e->range.count * sizeof(float) > b->bucket_bytes)
            b->bucket_bytes = e->range.count * sizeof(float);
        entry_find_steps(team, e);
    }
    qsort(b->entries, b->count, sizeof(*b->entries), entry_compare_ready);
    buckets_make_monotonic(team, b);
    return buckets_find_urgent(team, b, err);
}

static tdm_status buckets_make_memory(tdm_team *team, tdm__buckets *b, tdm_error *err)
{
    size_t bytes = team->block_extent * sizeof(float);
    if (team->job->parallel.zero >= 2) TDM_TRY(buckets_make_overlay(team, b, err));
    /* In the node's memory, so that other ranks can use the sums if this rank dies. */
    TDM_TRY(tdm__region_take(team->undo_log->memory, "sums", team->undo_log->slot, bytes,
                             team->layout->common ? TDM__REGION_FULL : TDM__REGION_SPARSE,
                             &team->summed, err));
    if (team->job->parallel.reduce != TDM_JOB_REDUCE_TREE)
        TDM_TRY(tdm_pages_map(b->bucket_bytes + 64, false, &b->zeros, err));
    if (team->buffer_count == 0) return TDM_OK;
    /* In shared memory, other ranks of the node read the parts in place. */
    void *memory;
    TDM_TRY(tdm_comm_shared(team->layout->comm, (size_t)team->buffer_count * bytes, &memory, err));
    team->grads = memory;
    return TDM_OK;
}

tdm_status tdm__buckets_create(tdm_team *team, tdm_error *err)
{
    tdm__buckets *b = calloc(1, sizeof(*b));
    if (!b) return tdm_fail_oom(err, "for the team");
    team->buckets = b;
    TDM_TRY(tdm_group_create(team->layout->comm, team->layout->rank_of_place, team->size, &b->group,
                             err));
    TDM_TRY(buckets_make_entries(team, b, err));
    return buckets_make_memory(team, b, err);
}

void tdm__buckets_destroy(tdm_team *team)
{
    tdm__buckets *b = team->buckets;
    if (!b) return;
    for (size_t i = 0; b->entries && i < b->count; i++)
        if (b->entries[i].request) tdm_request_wait(b->entries[i].request, NULL);
    if (team->grads) tdm_comm_shared_free(team->layout->comm, team->grads);
    team->grads = NULL;
    if (b->has_overlay) tdm_overlay_unmap(&b->overlay);
    tdm__region_release(team->undo_log->memory, team->summed);
    team->summed = NULL;
    tdm_pages_unmap(&b->zeros);
    if (b->group) tdm_group_destroy(b->group);
    free(b->entries);
    free(b->urgent);
    free(b->cuts);
    free(b->parts);
    free(b);
    team->buckets = NULL;
}

const size_t *tdm__buckets_order(const tdm_team *team)
{
    return team->buckets->urgent;
}

size_t tdm__buckets_size(const tdm_team *team)
{
    return team->buckets->bucket_bytes;
}

uint64_t tdm__buckets_bytes(const tdm_team *team)
{
    const tdm__buckets *b = team->buckets;
    uint64_t bytes = (uint64_t)b->slot_count * b->slot_bytes;
    for (size_t i = 0; i < b->count; i++)
        bytes += (team->layout->common ? b->entries[i].range : b->entries[i].own).count *
                 sizeof(float);
    return bytes;
}

/* ---- reductions ----------------------------------------------------------------------------------- */

/* Adds this rank's parts of a bucket, in place of the first, for reductions that take one input. */
static const void *entry_sum_parts(tdm_team *team, const entry *e, int part_count)
{
    if (part_count == 0) return team->buckets->zeros.data;
    float *sum = (float *)(uintptr_t)e->parts[0];
    for (int i = 1; i < part_count; i++) {
        bool in_safe_range = tdm__add_range(sum, e->parts[i], e->range.count);
        if (!in_safe_range) atomic_store(&team->overflow_risk, true);
    }
    return sum;
}

static tdm_status entry_start(tdm_team *team, entry *e, tdm_error *err)
{
    tdm__buckets *b = team->buckets;
    bool common = team->layout->common;
    int64_t nodes[TDM_MAX_LANE_PARTS];
    int part_count = tdm_lane_nodes(&b->lanes, team->first[team->place],
                                    team->first[team->place + 1], nodes);
    for (int i = 0; i < part_count; i++) e->parts[i] = team->tree.held[nodes[i]] + e->range.first;

    tdm_call call = {.kind = common ? TDM_CALL_ALL_REDUCE : TDM_CALL_REDUCE_SCATTER,
                     .dtype = TDM_DTYPE_F32,
                     .count = e->range.count,
                     .out = team->summed + (common ? e->range.first : e->own.first),
                     .cuts = common ? NULL : e->cuts,
                     .priority = (int)(e - b->entries)};

    switch (team->job->parallel.reduce) {
    case TDM_JOB_REDUCE_RING:
        call.in = entry_sum_parts(team, e, part_count);
        call.algorithm = TDM_ALGORITHM_RING;
        break;
    case TDM_JOB_REDUCE_CENTRAL:
        call.kind = TDM_CALL_REDUCE;
        call.in = entry_sum_parts(team, e, part_count);
        call.out = team->summed + e->range.first;
        call.algorithm = TDM_ALGORITHM_DIRECT;
        call.cuts = NULL;
        break;
    default:
        call.lanes = &b->lanes;
        call.parts = e->parts;
        break;
    }
    return tdm_call_start(b->group, &call, &e->request, err);
}

/* Waits for the reduction of an entry, if it is in progress. */
static tdm_status entry_wait(entry *e, tdm_error *err)
{
    if (!e->request) return TDM_OK;
    tdm_request *request = e->request;
    e->request = NULL;
    return tdm_request_wait(request, err);
}

/* Waits in the middle of a pass, where other ranks may need parameters from this rank to proceed. */
static tdm_status entry_wait_in_pass(tdm_team *team, entry *e, tdm_error *err)
{
    if (e->request) TDM_TRY(tdm__params_serve(team->options.store, err));
    return entry_wait(e, err);
}

/* Distributes the sums of the central reduction: each rank gets the cells it updates. */
static tdm_status entry_distribute(tdm_team *team, entry *e, tdm_error *err)
{
    tdm__buckets *b = team->buckets;
    bool common = team->layout->common;
    tdm_call call = {.kind = common ? TDM_CALL_BROADCAST : TDM_CALL_SCATTER,
                     .dtype = TDM_DTYPE_F32,
                     .count = e->range.count,
                     .in = team->summed + e->range.first,
                     .out = team->summed + (common ? e->range.first : e->own.first),
                     .cuts = common ? NULL : e->cuts};
    if (!common && team->place == 0) call.out = team->summed + e->range.first; /* in place */
    return tdm_call_run(b->group, &call, err);
}

/* ---- during a pass -------------------------------------------------------------------------------- */

void tdm__buckets_begin(tdm_team *team)
{
    tdm__buckets *b = team->buckets;
    b->next = 0;
    /* Calls borrow it, so it must not change during a call: before the last pass there is none. */
    b->lanes = (tdm_lanes){team->options.lane_count, team->first, team->absent};
}

size_t tdm__buckets_next(const tdm_team *team, int graph, size_t step)
{
    const tdm__buckets *b = team->buckets;
    size_t next = SIZE_MAX;
    if (b->next < b->count) next = b->entries[b->next].ready[graph] + 1;
    if (next <= step) next = step + 1;
    for (size_t i = 0; b->has_overlay && i < b->count; i++) {
        size_t begin = b->entries[i].begin[graph];
        if (begin > step && begin < next) next = begin;
    }
    return next;
}

tdm_status tdm__buckets_before(tdm_team *team, int graph, size_t end, tdm_error *err)
{
    tdm__buckets *b = team->buckets;
    for (size_t i = 0; b->has_overlay && i < b->count; i++) {
        const entry *e = &b->entries[i];
        if (e->begin[graph] >= end || e->before == SIZE_MAX || i < b->next) continue;
        TDM_TRY(entry_wait_in_pass(team, &b->entries[e->before], err));
    }
    return TDM_OK;
}

/* Adds an entry that is complete in the lanes of this pass to the rank's sums. */
static void entry_add(tdm_team *team, int count, const entry *e)
{
    bool in_safe_range = true;
    for (int i = 0; i < count; i++) {
        const tdm__lane_run *r = &team->run[i];
        for (int k = 0; k < r->add_count; k++)
            in_safe_range = tdm__add_range(r->adds[k].left + e->range.first,
                                           r->adds[k].right + e->range.first, e->range.count) &&
                            in_safe_range;
        if (r->is_final && r->add_count == 0)
            in_safe_range = tdm__add_range(r->sum + e->range.first, NULL, e->range.count) &&
                            in_safe_range;
    }
    if (!in_safe_range) atomic_store(&team->overflow_risk, true);
}

tdm_status tdm__buckets_after(tdm_team *team, int graph, int count, size_t end, bool last,
                              tdm_error *err)
{
    tdm__buckets *b = team->buckets;
    while (b->next < b->count && b->entries[b->next].ready[graph] < end) {
        entry *e = &b->entries[b->next++];
        double begin = tdm_clock_s();
        entry_add(team, count, e);
        if (count > 0) team->lane_seconds += tdm_clock_s() - begin;
        /* An overlay has no memory for complete buckets, so it cannot wait. */
        if (!last || (!team->job->parallel.overlap && !b->has_overlay)) continue;
        if (b->started++ == 0) b->first_start = tdm_clock_s();
        TDM_TRY(entry_start(team, e, err));
        if (!team->job->parallel.overlap) TDM_TRY(entry_wait_in_pass(team, e, err));
    }
    return TDM_OK;
}

void tdm__buckets_skip(tdm_team *team)
{
    team->buckets->started = team->buckets->count;
}

tdm_status tdm__buckets_finish_lanes(tdm_team *team, tdm_error *err)
{
    tdm__buckets *b = team->buckets;
    if (b->first_start > 0) tdm__team_mark(team, "overlap", b->first_start);
    b->first_start = 0;
    while (b->started < b->count) TDM_TRY(entry_start(team, &b->entries[b->started++], err));
    return TDM_OK;
}

/* ---- completing the step --------------------------------------------------------------------------- */

static tdm_status reports_exchange(tdm_team *team, const tdm__step_report *mine, tdm_error *err)
{
    double loss = 0;
    const void *parts[TDM_MAX_LANE_PARTS];
    for (int i = 0; i < team->part_count; i++) parts[i] = &team->parts[i].loss;
    TDM_TRY(tdm_group_all_gather(team->group, mine, team->notes, (size_t)team->size * sizeof(*mine),
                                 TDM_DTYPE_U8, err));
    tdm_lanes lanes = {team->options.lane_count, team->first, team->absent};
    tdm_call call = {.kind = TDM_CALL_ALL_REDUCE,
                     .dtype = TDM_DTYPE_F64,
                     .count = 1,
                     .out = &loss,
                     .lanes = &lanes,
                     .parts = parts};
    TDM_TRY(tdm_call_run(team->group, &call, err));
    team->losses[1] = loss;
    team->has_loss[1] = true;
    return TDM_OK;
}

tdm_status tdm__buckets_meet(tdm_team *team, const tdm__step_report *mine, tdm_error *err)
{
    tdm__buckets *b = team->buckets;
    double begin = tdm_clock_s();
    for (size_t i = 0; i < b->count; i++) TDM_TRY(entry_wait(&b->entries[i], err));
    for (size_t i = 0; i < b->count && team->job->parallel.reduce == TDM_JOB_REDUCE_CENTRAL; i++)
        TDM_TRY(entry_distribute(team, &b->entries[i], err));
    b->started = 0;
    tdm__team_mark(team, "sums awaited", begin);
    TDM_TRY(reports_exchange(team, mine, err));
    team->wait_seconds += tdm_clock_s() - begin;
    return TDM_OK;
}
