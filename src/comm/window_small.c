/*
 * window_small.c: calls whose data fit in a cell of the window.
 *
 * Every member writes what the others need of it into its cell, posts 1, waits for those it needs, and
 * takes or adds up what it wants straight from their cells. Nobody waits for a neighbour that it needs
 * nothing of: a root that broadcasts goes on at once, and so does whoever brings something to a root;
 * the slots keep them from running too far ahead.
 *
 * Steps: 1. Bytes: each member writes b and reads (P - 1) b of its neighbours' (all_reduce, all_gather),
 * or b in all (reduce_scatter, all_to_all), or, with a root, what goes to or comes from it.
 *
 * Two ways lead through the same steps: a program, for calls that were started and may wait long, and
 * tdm__window_run_fast, for synchronous calls whose neighbours are about to come. When they do not come
 * while it spins, it goes on as a request whose word has been said already.
 */
#include "comm/window_inner.h"

#include <stdlib.h>
#include <string.h>

/* What run_fast leaves for the program that goes on from there. */
typedef struct small_state {
    bool posted;
} small_state;

/* ---- who brings what --------------------------------------------------------------------------- */

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

static bool is_root(const tdm_group *group, const tdm_call *call)
{
    return group->rank == call->root;
}

/* Whether the others need something of this rank. */
static bool brings(const tdm_group *group, const tdm_call *call)
{
    switch (call->kind) {
    case TDM_CALL_BROADCAST:
    case TDM_CALL_SCATTER: return is_root(group, call);
    case TDM_CALL_REDUCE:
    case TDM_CALL_GATHER: return !is_root(group, call);
    default: return true;
    }
}

/* Whom this rank needs something of. */
typedef enum need { NEED_NONE, NEED_ROOT, NEED_ALL } need;

static need needs(const tdm_group *group, const tdm_call *call)
{
    switch (call->kind) {
    case TDM_CALL_BROADCAST:
    case TDM_CALL_SCATTER: return is_root(group, call) ? NEED_NONE : NEED_ROOT;
    case TDM_CALL_REDUCE:
    case TDM_CALL_GATHER: return is_root(group, call) ? NEED_ALL : NEED_NONE;
    default: return NEED_ALL;
    }
}

static size_t bytes_of(const tdm_group *group, const tdm_call *call)
{
    size_t width = tdm_dtype_bytes(call->dtype);
    if (call->kind == TDM_CALL_ALL_GATHER || call->kind == TDM_CALL_GATHER)
        return tdm__call_slice(call, group->size, group->rank).count * width;
    return call->count * width;
}

static int own_parts(const tdm_group *group, const tdm_call *call)
{
    if (!call->lanes || !tdm__kind_reduces(call->kind)) return 1;
    int64_t nodes[TDM_MAX_LANE_PARTS];
    return tdm_lane_nodes(call->lanes, call->lanes->first[group->rank],
                          call->lanes->first[group->rank + 1], nodes);
}

static void publish(const tdm_group *group, const tdm__head *head, const tdm_call *call)
{
    tdm__cell *cell = tdm__window_cell(group->window, head->sequence, group->window->local_index);
    cell->in_offset = cell->out_offset = UINT64_MAX;
    tdm__window_say(group, head);
    if (call->kind == TDM_CALL_BARRIER || call->count == 0 || !brings(group, call)) return;
    size_t bytes = bytes_of(group, call);
    int parts = own_parts(group, call);
    for (int i = 0; i < parts; i++)
        memcpy(cell->data + (size_t)i * bytes, tdm__call_part(call, i), bytes);
}

/* ---- taking what the others brought ------------------------------------------------------------- */

/* Sources and plan of a reduction; own numbers from where they lie. `sources` has room for all. */
static void find_sources(const tdm_group *group, const tdm__head *head, const tdm_call *call,
                         const tdm__leaves *leaves, size_t skip, const void **sources)
{
    const tdm__window *w = group->window;
    size_t bytes = bytes_of(group, call);
    for (int m = 0; m < group->size; m++) {
        const uint8_t *data = tdm__window_cell(w, head->sequence, m)->data + skip;
        int first = leaves ? leaves->first[m] : m;
        int count = leaves ? leaves->first[m + 1] - first : 1;
        for (int i = 0; i < count; i++)
            sources[first + i] = m == group->rank ? tdm__call_part(call, i) + skip
                                                  : data + (size_t)i * bytes;
    }
}

static void reduce(const tdm_group *group, const tdm__head *head, const tdm_call *call,
                   const tdm__leaves *leaves, const tdm__tree_plan *plan, const void **sources)
{
    tdm_extent part = {.first = 0, .count = call->count};
    if (call->kind == TDM_CALL_REDUCE_SCATTER)
        part = tdm__call_slice(call, group->size, group->rank);
    find_sources(group, head, call, leaves, part.first * tdm_dtype_bytes(call->dtype), sources);
    tdm__reducer reducer = tdm__reducer_of(call);
    void *out = call->out;
    tdm__tree_run(plan, &reducer, sources, &out, 1, part.count, false);
}

static void copy(void *to, const void *from, size_t bytes)
{
    if (bytes && to != from) memcpy(to, from, bytes);
}

/* All kinds but reductions. */
static void collect(const tdm_group *group, const tdm__head *head, const tdm_call *call)
{
    const tdm__window *w = group->window;
    size_t width = tdm_dtype_bytes(call->dtype);
    tdm_extent mine = tdm__call_slice(call, group->size, group->rank);
    /* In place, what is to go out may have been written over: the cell still has it. */
    bool moves = call->kind == TDM_CALL_ALL_TO_ALL || call->kind == TDM_CALL_SCATTER;
    uint8_t *out = call->out;
    for (int m = 0; m < group->size; m++) {
        const uint8_t *data = m == group->rank && !moves
                                  ? call->in
                                  : tdm__window_cell(w, head->sequence, m)->data;
        tdm_extent theirs = tdm__call_slice(call, group->size, m);
        switch (call->kind) {
        case TDM_CALL_BROADCAST:
            if (m == call->root) copy(out, data, call->count * width);
            break;
        case TDM_CALL_SCATTER:
            if (m == call->root) copy(out, data + mine.first * width, mine.count * width);
            break;
        case TDM_CALL_ALL_GATHER:
            copy(out + theirs.first * width, data, theirs.count * width);
            break;
        case TDM_CALL_GATHER:
            if (is_root(group, call)) copy(out + theirs.first * width, data, theirs.count * width);
            break;
        case TDM_CALL_ALL_TO_ALL:
            copy(out + (size_t)m * mine.count * width, data + mine.first * width,
                 mine.count * width);
            break;
        default: break;
        }
    }
}

static bool reduces(const tdm_group *group, const tdm_call *call)
{
    return tdm__kind_reduces(call->kind) && (call->kind != TDM_CALL_REDUCE || is_root(group, call));
}

/* Whether those this rank needs something of call the same; if not, the group is broken. Who needs
 * nothing of anybody looks at those who are here: of two that think of themselves as the root, or as
 * none, the later one sees the other. */
static bool all_agree(tdm_group *group, const tdm__head *head, const tdm_call *call)
{
    const tdm__window *w = group->window;
    need of = needs(group, call);
    int first = of == NEED_ROOT ? call->root : 0;
    int last = of == NEED_ROOT ? call->root : w->local_count - 1;
    for (int i = first; i <= last; i++) {
        if (i == w->local_index) continue;
        if (of == NEED_NONE && !tdm__window_has_posted(w, head->sequence, i, 1)) continue;
        if (!tdm__window_agrees(group, head, i)) return false;
    }
    return true;
}

/* ---- as a program ------------------------------------------------------------------------------ */

static void say(tdm_request *request, int segment)
{
    (void)segment;
    publish(request->group, &request->head, &request->call);
}

static void take(tdm_request *request, int segment)
{
    const tdm_group *group = request->group;
    const tdm_call *call = &request->call;
    if (needs(group, call) == NEED_NONE && !all_agree(request->group, &request->head, call)) return;
    if (call->count == 0 || call->kind == TDM_CALL_BARRIER) return;
    if (!tdm__kind_reduces(call->kind)) {
        collect(group, &request->head, call);
        return;
    }
    if (!reduces(group, call)) return;
    tdm__program *program = &request->programs[segment];
    bool lanes = call->lanes != NULL;
    const tdm__tree_plan *plan = lanes ? &request->plan : &group->window->plan;
    const void **sources = tdm__program_scratch(program,
                                                (size_t)plan->leaf_count * sizeof *sources);
    if (!sources) return;
    reduce(group, &request->head, call, lanes ? &request->leaves : NULL, plan, sources);
}

void tdm__window_build_small(tdm__program *program)
{
    tdm_request *request = program->request;
    const tdm_group *group = request->group;
    const small_state *state = request->state;
    if (!state || !state->posted) {
        tdm__program_await(program, -1, 0);
        tdm__program_call(program, say);
        tdm__program_post(program, 1);
    }
    need of = needs(group, &request->call);
    if (of != NEED_NONE) tdm__program_await(program, of == NEED_ROOT ? request->call.root : -1, 1);
    tdm__program_call(program, take);
}

/* ---- at once ----------------------------------------------------------------------------------- */

enum { FAST_RANKS = 64 }; /* sources on the stack; larger groups go the long way */

/* Spins for those this rank needs something of. */
static bool all_here(const tdm_group *group, const tdm__head *head, const tdm_call *call)
{
    const tdm__window *w = group->window;
    need of = needs(group, call);
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

/* The neighbours are late: goes on as a request, which has said its word already. */
static tdm_status wait_for_rest(tdm_group *group, const tdm__head *head, const tdm_call *call,
                                double deadline_s, tdm_error *err)
{
    tdm_request *request = tdm__request_create(group);
    small_state *state = malloc(sizeof *state);
    if (!request || !state) {
        free(state);
        if (request) tdm__request_release(request);
        tdm__group_break(group, true, TDM_ERR_PEER_FAILED, "rank %d has no memory left for a call",
                         group->comm->rank);
        return tdm_fail(err, TDM_ERR_NO_MEMORY, "no memory for a call");
    }
    *state = (small_state){.posted = true};
    request->call = *call;
    request->head = *head;
    request->algorithm = &tdm__algorithm_window;
    request->cut = tdm__algorithm_window.cut(group, call);
    request->state = state;
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
    publish(group, head, call);
    tdm__window_raise(w, head->sequence, 1);
    if (!all_here(group, head, call)) {
        *status = wait_for_rest(group, head, call, deadline_s, err);
        return true;
    }
    if (!all_agree(group, head, call)) {
        *status = tdm_fail(err, group->broken.status, "%s", group->broken.message);
    } else {
        const void *sources[FAST_RANKS];
        if (call->count > 0 && reduces(group, call))
            reduce(group, head, call, NULL, &w->plan, sources);
        else if (call->count > 0 && !tdm__kind_reduces(call->kind) &&
                 call->kind != TDM_CALL_BARRIER)
            collect(group, head, call);
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
