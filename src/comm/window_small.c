/*
 * window_small.c: calls whose data fit in a cell of the window.
 *
 * Every member writes the data that other members need into its cell, posts 1, waits for the
 * members whose data it needs, and copies or adds the data directly from their cells. A member does
 * not wait for neighbours whose data it does not need: the root of a broadcast continues
 * immediately, as does a member that sends to a root. The slots limit how far they can run ahead.
 *
 * Steps: 1. Bytes: each member writes b and reads (P - 1) b from its neighbours (all_reduce,
 * all_gather), or b in total (reduce_scatter, all_to_all), or, with a root, what it sends or
 * receives.
 *
 * There are two implementations of the same steps: a program, for calls that were started and may
 * wait for a long time, and tdm__window_run_fast, for synchronous calls whose neighbours arrive
 * soon. If they do not arrive while it spins, it continues as a request whose description is
 * already written.
 */
#include "base/base.h"
#include "comm/algorithm.h"
#include "comm/comm.h"
#include "comm/engine.h"
#include "comm/fail.h"
#include "comm/group.h"
#include "comm/lanes.h"
#include "comm/program.h"
#include "comm/request.h"
#include "comm/window.h"

#include <stdlib.h>
#include <string.h>

/* State that run_fast passes to the program that continues the call. */
typedef struct small_state {
    bool posted;
} small_state;

/* ---- inputs ----------------------------------------------------------------------------------- */

int tdm__window_max_parts(const tdm_group *group, const tdm_call *call)
{
    int max = 1;
    if (!call->lanes || !tdm__kind_reduces(call->kind)) return max;
    for (int i = 0; i < group->size; i++) {
        int64_t nodes[TDM_MAX_LANE_PARTS];
        int count = tdm_lane_nodes(call->lanes, call->lanes->first[i], call->lanes->first[i + 1],
                                   nodes);
        if (count > max) max = count;
    }
    return max;
}

bool tdm__window_is_small(const tdm_group *group, const tdm_call *call)
{
    const tdm__window *w = group->window;
    if (!w || w->local_count != group->size) return false;
    if (call->kind == TDM_CALL_BARRIER || call->count == 0) return true;
    size_t width = tdm_dtype_bytes(call->dtype);
    if (call->kind == TDM_CALL_ALL_GATHER || call->kind == TDM_CALL_GATHER)
        return tdm__call_max_slice(call, group->size) <= TDM__WINDOW_INLINE / width;
    if (call->count > TDM__WINDOW_INLINE / width) return false;
    if (!call->lanes) return true;
    size_t parts = (size_t)tdm__window_max_parts(group, call);
    return call->count * width <= TDM__WINDOW_INLINE / parts;
}

static bool call_is_root(const tdm_group *group, const tdm_call *call)
{
    return group->rank == call->root;
}

/* Whether other members need data of this rank. */
static bool call_has_input(const tdm_group *group, const tdm_call *call)
{
    switch (call->kind) {
    case TDM_CALL_BROADCAST:
    case TDM_CALL_SCATTER: return call_is_root(group, call);
    case TDM_CALL_REDUCE:
    case TDM_CALL_GATHER: return !call_is_root(group, call);
    default: return true;
    }
}

/* The members whose data this rank needs. */
typedef enum need { NEED_NONE, NEED_ROOT, NEED_ALL } need;

static need small_needs(const tdm_group *group, const tdm_call *call)
{
    switch (call->kind) {
    case TDM_CALL_BROADCAST:
    case TDM_CALL_SCATTER: return call_is_root(group, call) ? NEED_NONE : NEED_ROOT;
    case TDM_CALL_REDUCE:
    case TDM_CALL_GATHER: return call_is_root(group, call) ? NEED_ALL : NEED_NONE;
    default: return NEED_ALL;
    }
}

static size_t small_bytes(const tdm_group *group, const tdm_call *call)
{
    size_t width = tdm_dtype_bytes(call->dtype);
    if (call->kind == TDM_CALL_ALL_GATHER || call->kind == TDM_CALL_GATHER)
        return tdm__call_slice(call, group->size, group->rank).count * width;
    return call->count * width;
}

static int small_own_parts(const tdm_group *group, const tdm_call *call)
{
    if (!call->lanes || !tdm__kind_reduces(call->kind)) return 1;
    int64_t nodes[TDM_MAX_LANE_PARTS];
    return tdm_lane_nodes(call->lanes, call->lanes->first[group->rank],
                          call->lanes->first[group->rank + 1], nodes);
}

static void small_publish(const tdm_group *group, const tdm__head *head, const tdm_call *call)
{
    tdm__cell *cell = tdm__window_cell(group->window, head->sequence, group->window->local_index);
    cell->in_offset = cell->out_offset = UINT64_MAX;
    tdm__window_describe(group, head);
    if (call->kind == TDM_CALL_BARRIER || call->count == 0 || !call_has_input(group, call)) return;
    size_t bytes = small_bytes(group, call);
    int parts = small_own_parts(group, call);
    for (int i = 0; i < parts; i++)
        memcpy(cell->data + (size_t)i * bytes, tdm__call_part(call, i), bytes);
}

/* ---- results ---------------------------------------------------------------------------------- */

/* Finds sources and plan of a reduction; this rank's own data are read in place. `sources` has room
 * for all. */
static void small_find_sources(const tdm_group *group, const tdm__head *head, const tdm_call *call,
                               const tdm__leaves *leaves, size_t skip, const void **sources)
{
    const tdm__window *w = group->window;
    size_t bytes = small_bytes(group, call);
    for (int m = 0; m < group->size; m++) {
        const uint8_t *data = tdm__window_cell(w, head->sequence, m)->data + skip;
        int first = leaves ? leaves->first[m] : m;
        int count = leaves ? leaves->first[m + 1] - first : 1;
        for (int i = 0; i < count; i++)
            sources[first + i] = m == group->rank ? tdm__call_part(call, i) + skip
                                                  : data + (size_t)i * bytes;
    }
}

static void small_reduce(const tdm_group *group, const tdm__head *head, const tdm_call *call,
                         const tdm__leaves *leaves, const tdm__tree_plan *plan,
                         const void **sources)
{
    tdm_extent part = {.first = 0, .count = call->count};
    if (call->kind == TDM_CALL_REDUCE_SCATTER)
        part = tdm__call_slice(call, group->size, group->rank);
    small_find_sources(group, head, call, leaves, part.first * tdm_dtype_bytes(call->dtype),
                       sources);
    tdm__reducer reducer = tdm__reducer_of(call);
    void *out = call->out;
    tdm__tree_run(plan, &reducer, sources, &out, 1, part.count, false);
}

static void small_copy(void *to, const void *from, size_t bytes)
{
    if (bytes && to != from) memcpy(to, from, bytes);
}

/* Copies the results of all kinds except reductions. */
static void small_collect(const tdm_group *group, const tdm__head *head, const tdm_call *call)
{
    const tdm__window *w = group->window;
    size_t width = tdm_dtype_bytes(call->dtype);
    tdm_extent mine = tdm__call_slice(call, group->size, group->rank);
    /* In place, the input may already be overwritten: the cell still contains it. */
    bool moves = call->kind == TDM_CALL_ALL_TO_ALL || call->kind == TDM_CALL_SCATTER;
    uint8_t *out = call->out;
    for (int m = 0; m < group->size; m++) {
        const uint8_t *data = m == group->rank && !moves
                                  ? call->in
                                  : tdm__window_cell(w, head->sequence, m)->data;
        tdm_extent theirs = tdm__call_slice(call, group->size, m);
        switch (call->kind) {
        case TDM_CALL_BROADCAST:
            if (m == call->root) small_copy(out, data, call->count * width);
            break;
        case TDM_CALL_SCATTER:
            if (m == call->root) small_copy(out, data + mine.first * width, mine.count * width);
            break;
        case TDM_CALL_ALL_GATHER:
            small_copy(out + theirs.first * width, data, theirs.count * width);
            break;
        case TDM_CALL_GATHER:
            if (call_is_root(group, call))
                small_copy(out + theirs.first * width, data, theirs.count * width);
            break;
        case TDM_CALL_ALL_TO_ALL:
            small_copy(out + (size_t)m * mine.count * width, data + mine.first * width,
                       mine.count * width);
            break;
        default: break;
        }
    }
}

static bool small_reduces(const tdm_group *group, const tdm_call *call)
{
    return tdm__kind_reduces(call->kind) &&
           (call->kind != TDM_CALL_REDUCE || call_is_root(group, call));
}

/* Whether the members whose data this rank needs make the same call; if not, the group is broken. A
 * rank that needs no data checks the members that have already posted: if two ranks both act as
 * root, or none does, the later one detects it. */
static bool small_all_agree(tdm_group *group, const tdm__head *head, const tdm_call *call)
{
    const tdm__window *w = group->window;
    need of = small_needs(group, call);
    int first = of == NEED_ROOT ? call->root : 0;
    int last = of == NEED_ROOT ? call->root : w->local_count - 1;
    for (int i = first; i <= last; i++) {
        if (i == w->local_index) continue;
        if (of == NEED_NONE && !tdm__window_has_posted(w, head->sequence, i, 1)) continue;
        if (!tdm__window_agrees(group, head, i)) return false;
    }
    return true;
}

/* ---- as a program ----------------------------------------------------------------------------- */

static void small_describe(tdm_request *request, int segment)
{
    (void)segment;
    small_publish(request->group, &request->head, &request->call);
}

static void small_take(tdm_request *request, int segment)
{
    const tdm_group *group = request->group;
    const tdm_call *call = &request->call;
    if (small_needs(group, call) == NEED_NONE &&
        !small_all_agree(request->group, &request->head, call))
        return;
    if (call->count == 0 || call->kind == TDM_CALL_BARRIER) return;
    if (!tdm__kind_reduces(call->kind)) {
        small_collect(group, &request->head, call);
        return;
    }
    if (!small_reduces(group, call)) return;
    tdm__program *program = &request->programs[segment];
    bool lanes = call->lanes != NULL;
    const tdm__tree_plan *plan = lanes ? &request->plan : &group->window->plan;
    const void **sources = tdm__program_scratch(program,
                                                (size_t)plan->leaf_count * sizeof(*sources));
    if (!sources) return;
    small_reduce(group, &request->head, call, lanes ? &request->leaves : NULL, plan, sources);
}

void tdm__window_build_small(tdm__program *program)
{
    tdm_request *request = program->request;
    const tdm_group *group = request->group;
    const small_state *state = request->algorithm_data;
    if (!state || !state->posted) {
        tdm__program_await(program, -1, 0);
        tdm__program_call(program, small_describe);
        tdm__program_post(program, 1);
    }
    need of = small_needs(group, &request->call);
    if (of != NEED_NONE) tdm__program_await(program, of == NEED_ROOT ? request->call.root : -1, 1);
    tdm__program_call(program, small_take);
}

/* ---- fast path -------------------------------------------------------------------------------- */

enum { FAST_RANKS = 64 }; /* sources on the stack; larger groups use a request */

/* Spins until the members whose data this rank needs have posted. */
static bool small_all_posted(const tdm_group *group, const tdm__head *head, const tdm_call *call)
{
    const tdm__window *w = group->window;
    need of = small_needs(group, call);
    uint32_t spins = tdm__host_spins(w->host);
    if (of == NEED_NONE) return true;
    int first = of == NEED_ROOT ? call->root : 0;
    int last = of == NEED_ROOT ? call->root : w->local_count - 1;
    for (int i = first; i <= last; i++) {
        if (i == w->local_index) continue;
        while (!tdm__window_has_posted(w, head->sequence, i, 1)) {
            if (spins == 0) return false;
            spins--;
            tdm__relax();
        }
    }
    return true;
}

/* The neighbours are late: continues as a request whose description is already written. */
static tdm_status small_wait(tdm_group *group, const tdm__head *head, const tdm_call *call,
                             double deadline_s, tdm_error *err)
{
    tdm_request *request = tdm__request_create(group);
    small_state *state = malloc(sizeof(*state));
    if (!request || !state) {
        free(state);
        if (request) tdm__request_release(request);
        tdm__group_break(group, true, TDM_ERR_PEER_FAILED, "rank %d has no memory for a call",
                         group->comm->rank);
        return tdm_fail_oom(err, "for a call");
    }
    *state = (small_state){.posted = true};
    request->call = *call;
    request->head = *head;
    request->algorithm = &tdm__algorithm_window;
    request->cut = tdm__algorithm_window.cut(group, call);
    request->algorithm_data = state;
    request->begin_s = tdm__comm_now(group->comm);
    request->deadline_s = request->begin_s + deadline_s;
    tdm__request_start(request);
    tdm__engine_wait(group->comm, request);
    tdm_status status = request->error.status;
    if (status != TDM_OK) tdm_fail(err, status, "%s", request->error.message);
    tdm__request_release(request); /* its end has freed the slot */
    return status;
}

bool tdm__window_run_fast(tdm_group *group, const tdm__head *head, const tdm_call *call,
                          double deadline_s, tdm_status *status, tdm_error *err)
{
    if (!tdm__window_is_small(group, call) || call->lanes || group->size > FAST_RANKS) return false;
    tdm__window *w = group->window;
    if (!tdm__window_is_free(w, head->sequence - TDM__WINDOW_SLOTS)) return false;

    small_publish(group, head, call);
    tdm__window_raise(w, head->sequence, 1);
    if (!small_all_posted(group, head, call)) {
        *status = small_wait(group, head, call, deadline_s, err);
        return true;
    }

    if (!small_all_agree(group, head, call)) {
        *status = tdm_fail(err, group->broken.status, "%s", group->broken.message);
    } else {
        const void *sources[FAST_RANKS];
        if (call->count > 0 && small_reduces(group, call))
            small_reduce(group, head, call, NULL, &w->plan, sources);
        else if (call->count > 0 && !tdm__kind_reduces(call->kind) &&
                 call->kind != TDM_CALL_BARRIER)
            small_collect(group, head, call);
        *status = TDM_OK;
    }

    tdm__window_ended(group, head->sequence);
    tdm__record(group->comm->recorder,
                (tdm_trace_event){.kind = TDM_TRACE_END,
                                  .peer = -1,
                                  .bytes = call->count * tdm_dtype_bytes(call->dtype),
                                  .group = head->group,
                                  .sequence = head->sequence,
                                  .call = head->kind,
                                  .dtype = head->dtype,
                                  .status = (uint16_t)*status});
    return true;
}
