/*
 * calls.c: converts a call of the program to a request that the engine can run.
 *
 * A call is validated completely before it gets its number: an invalid call is an error of this
 * rank only and leaves the group unchanged. Then in-place buffers are resolved, the algorithm is
 * chosen and the header is built. Small synchronous calls within a host run directly through the
 * window, all others as a request.
 */
#include "base/base.h"
#include "base/timing.h"
#include "comm/algorithm.h"
#include "comm/choices.h"
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

/* ---- validation ------------------------------------------------------------------------------- */

static bool kind_is_pair(tdm_call_kind kind)
{
    return kind == TDM_CALL_SEND || kind == TDM_CALL_RECV;
}

static bool kind_has_peer(tdm_call_kind kind)
{
    return tdm__kind_has_root(kind) || kind_is_pair(kind);
}

/* A slice may overwrite its own range in a part, which no other rank reads. Since slices may have
 * any length, other ranges of a part may contain data that is still to be sent. */
static tdm_status call_check_overlap(const tdm_group *group, const tdm_call *call, int part,
                                     tdm_error *err)
{
    if (call->kind != TDM_CALL_REDUCE_SCATTER || !call->cuts) return TDM_OK;
    size_t unit = tdm_dtype_bytes(call->dtype);
    tdm_extent slice = tdm__call_slice(call, group->size, group->rank);
    uintptr_t out = (uintptr_t)call->out, in = (uintptr_t)call->parts[part];
    if (out == in + slice.first * unit || out >= in + call->count * unit ||
        in >= out + slice.count * unit)
        return TDM_OK;
    return tdm_fail(err, TDM_ERR_INVALID,
                    "`out` overlaps part %d outside this rank's slice of it (from element %zu "
                    "on); use that range, or separate memory",
                    part, slice.first);
}

static tdm_status call_check_reduction(const tdm_group *group, const tdm_call *call, tdm_error *err)
{
    tdm__reducer reducer = tdm__reducer_of(call);
    TDM_TRY(tdm__reducer_check(&reducer, err));
    if (!call->lanes) {
        if (call->in || call->out) return TDM_OK;
        return tdm_fail(err, TDM_ERR_INVALID, "both `in` and `out` are NULL");
    }
    TDM_TRY(tdm__lanes_check(call->lanes, group->size, err));
    int64_t nodes[TDM_MAX_LANE_PARTS];
    const int64_t *first = call->lanes->first;
    int parts = tdm_lane_nodes(call->lanes, first[group->rank], first[group->rank + 1], nodes);
    for (int i = 0; i < parts; i++) {
        if (!call->parts || !call->parts[i])
            return tdm_fail(err, TDM_ERR_INVALID,
                            "rank %d of the group must pass %d parts (tdm_lane_nodes), but part "
                            "%d is NULL",
                            group->rank, parts, i);
        TDM_TRY(call_check_overlap(group, call, i, err));
    }
    return TDM_OK;
}

/* Whether this rank must pass `in`. */
static bool call_needs_in(const tdm_group *group, const tdm_call *call)
{
    switch (call->kind) {
    case TDM_CALL_SEND: return true;
    case TDM_CALL_SCATTER: return group->rank == call->root && !call->out;
    case TDM_CALL_BROADCAST: return group->rank == call->root && !call->out;
    case TDM_CALL_GATHER: return !call->out;
    default: return false;
    }
}

static bool call_needs_out(const tdm_group *group, const tdm_call *call)
{
    switch (call->kind) {
    case TDM_CALL_BARRIER:
    case TDM_CALL_SEND: return false;
    case TDM_CALL_BROADCAST: return group->rank != call->root;
    case TDM_CALL_REDUCE:
    case TDM_CALL_GATHER: return group->rank == call->root;
    default: return true;
    }
}

static tdm_status call_check_buffers(const tdm_group *group, const tdm_call *call, tdm_error *err)
{
    if (call->kind == TDM_CALL_BARRIER || call->count == 0) return TDM_OK;
    if (call_needs_in(group, call) && !call->in)
        return tdm_fail(err, TDM_ERR_INVALID, "`in` is NULL on rank %d", group->rank);
    if (call_needs_out(group, call) && !call->out)
        return tdm_fail(err, TDM_ERR_INVALID, "`out` is NULL on rank %d", group->rank);
    return tdm__kind_reduces(call->kind) ? call_check_reduction(group, call, err) : TDM_OK;
}

static tdm_status call_check(const tdm_group *group, const tdm_call *call, tdm_error *err)
{
    if (call->kind < TDM_CALL_BARRIER || call->kind > TDM_CALL_RECV)
        return tdm_fail(err, TDM_ERR_INVALID, "invalid kind of call %d", (int)call->kind);
    if (call->kind != TDM_CALL_BARRIER) {
        size_t unit = tdm_dtype_bytes(call->dtype);
        if (unit == 0) return tdm_fail(err, TDM_ERR_INVALID, "the element type is not set");
        if (call->count > (size_t)INT64_MAX / unit / (size_t)group->size)
            return tdm_fail(err, TDM_ERR_RANGE, "%zu elements exceed the maximum size of a call",
                            call->count);
    }
    if (kind_has_peer(call->kind) && (call->root < 0 || call->root >= group->size))
        return tdm_fail(err, TDM_ERR_RANGE, "root is %d in a group of %d ranks", call->root,
                        group->size);
    if (kind_is_pair(call->kind) && call->root == group->rank)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "rank %d cannot send to or receive from itself; copy instead", call->root);
    if ((unsigned)call->algorithm > TDM_ALGORITHM_WINDOW)
        return tdm_fail(err, TDM_ERR_INVALID, "invalid algorithm %d", (int)call->algorithm);
    if (!(call->deadline_s >= 0 && call->deadline_s <= TDM__MAX_SECONDS))
        return tdm_fail(err, TDM_ERR_RANGE,
                        "invalid deadline of %g s: must be between 0 (default) and %g s",
                        call->deadline_s, TDM__MAX_SECONDS);
    if (call->cuts && tdm__kind_has_cuts(call->kind))
        TDM_TRY(tdm__cuts_check(call->cuts, call->count, group->size, err));
    return call_check_buffers(group, call, err);
}

/* ---- in-place buffers ------------------------------------------------------------------------- */

/* In place: a slice is at its offset in the whole buffer. */
static void call_resolve_slice(const tdm_group *group, tdm_call *call)
{
    tdm_extent slice = tdm__call_slice(call, group->size, group->rank);
    size_t at = slice.first * tdm_dtype_bytes(call->dtype);
    bool is_root = group->rank == call->root;
    bool in_place = !call->in || call->in == call->out;
    switch (call->kind) {
    case TDM_CALL_REDUCE_SCATTER:
        if (!in_place || call->lanes) break; /* with lanes, `in` is ignored */
        call->in = call->out;
        call->out = (uint8_t *)call->out + at;
        break;
    case TDM_CALL_SCATTER:
        if (!is_root)
            call->in = NULL;
        else if (in_place) {
            call->in = call->out;
            call->out = (uint8_t *)call->out + at;
        }
        break;
    case TDM_CALL_ALL_GATHER:
        if (in_place) call->in = (uint8_t *)call->out + at;
        break;
    case TDM_CALL_GATHER:
        if (is_root && in_place)
            call->in = (uint8_t *)call->out + at;
        else if (!call->in)
            call->in = call->out;
        break;
    default: break;
    }
}

static void call_resolve_buffers(const tdm_group *group, tdm_call *call)
{
    if (call->kind == TDM_CALL_BARRIER) {
        call->count = 0;
        call->in = call->out = NULL;
        call->dtype = TDM_DTYPE_U8;
    }
    if (!tdm__kind_reduces(call->kind)) {
        call->reduce = TDM_REDUCE_SUM;
        call->lanes = NULL;
        call->parts = NULL;
    }
    if (!kind_has_peer(call->kind)) call->root = 0;
    if (!tdm__kind_has_cuts(call->kind)) call->cuts = NULL;

    if (call->count == 0) {
        call->lanes = NULL; /* not used, so not validated either */
        return;
    }

    if (call->kind == TDM_CALL_BROADCAST) {
        if (group->rank == call->root && call->in && call->out && call->in != call->out)
            memcpy(call->out, call->in, call->count * tdm_dtype_bytes(call->dtype));
        if (!call->out) call->out = (void *)(uintptr_t)call->in;
        call->in = call->out;
        return;
    }

    if (call->kind == TDM_CALL_REDUCE || call->kind == TDM_CALL_ALL_REDUCE ||
        call->kind == TDM_CALL_ALL_TO_ALL) {
        if (!call->in) call->in = call->out;
        return;
    }
    call_resolve_slice(group, call);
}

static tdm__head call_head(const tdm_group *group, const tdm_call *call, tdm_algorithm algorithm,
                           uint32_t sequence)
{
    bool pair = kind_is_pair(call->kind);
    tdm__head head = {.world = group->comm->control->world,
                      .epoch = group->comm->epoch,
                      .group = group->id,
                      .sequence = sequence,
                      .step = pair ? call->tag : 0,
                      .kind = (uint8_t)(pair ? TDM_CALL_SEND : call->kind),
                      .dtype = (uint8_t)call->dtype,
                      .reduce = (uint8_t)call->reduce,
                      .algorithm = (uint8_t)algorithm,
                      .root = pair ? 0 : call->root,
                      .count = call->count,
                      .layout = tdm__lanes_hash(call->lanes, group->size) ^
                                tdm__cuts_hash(call->cuts, group->size),
                      .magic = TDM__HEAD_MAGIC,
                      .source = (uint32_t)group->comm->rank};
    return head; /* each message sets its step and checksum */
}

/* ---- requests --------------------------------------------------------------------------------- */

static bool pair_fits(const tdm_group *group, const tdm_call *call)
{
    return group->size > 1 && kind_is_pair(call->kind);
}

static tdm__cut pair_cut(const tdm_group *group, const tdm_call *call)
{
    (void)group;
    return (tdm__cut){.segment = call->count ? call->count : 1, .flight = 1};
}

static void pair_build(tdm__program *p, size_t first, size_t count)
{
    (void)first;
    const tdm_call *call = &p->request->call;
    size_t bytes = count * tdm_dtype_bytes(call->dtype);
    if (call->kind == TDM_CALL_SEND)
        tdm__program_send(p, call->root, call->tag, call->in, bytes);
    else
        tdm__program_recv(p, call->root, call->tag, call->out, bytes);
}

/* SEND and RECV: one message, numbered by peer and tag. */
static const tdm__algorithm_ops algorithm_pair = {.id = TDM_ALGORITHM_AUTO,
                                                  .about = "one message",
                                                  .fits = pair_fits,
                                                  .cut = pair_cut,
                                                  .build = pair_build};

/* The leaves of a reduction and the order in which they are added: the group's, created once, for
 * one lane per rank; else the call's. */
static tdm_status request_plan_reduction(tdm_request *request, tdm_error *err)
{
    tdm_group *group = request->group;
    if (!tdm__kind_reduces(request->call.kind)) return TDM_OK;
    if (!request->call.lanes && group->has_plan) {
        request->leaves = group->leaves;
        request->plan = group->plan;
        return TDM_OK;
    }
    tdm__leaves leaves;
    tdm__tree_plan plan;
    TDM_TRY(tdm__leaves_init(&leaves, request->call.lanes, group->size, err));
    tdm_status status = tdm__tree_plan_init(&plan, leaves.nodes, leaves.count, 1, err);
    if (status != TDM_OK) {
        tdm__leaves_release(&leaves);
        return status;
    }
    request->leaves = leaves;
    request->plan = plan;
    if (request->call.lanes) {
        request->owns_plan = true;
    } else {
        group->leaves = leaves;
        group->plan = plan;
        group->has_plan = true;
    }
    return TDM_OK;
}

static tdm_status request_prepare(tdm_request *request, tdm_error *err)
{
    tdm_group *group = request->group;
    tdm_call *call = &request->call;
    if (kind_is_pair(call->kind)) {
        request->algorithm = &algorithm_pair;
    } else {
        TDM_TRY(tdm__choose(group, call, &request->algorithm, err));
        TDM_TRY(request_plan_reduction(request, err));
    }
    request->cut = request->algorithm->cut(group, call);
    request->begin_s = tdm__comm_now(group->comm);
    request->deadline_s = request->begin_s + (call->deadline_s > 0
                                                  ? call->deadline_s
                                                  : group->comm->options.deadline_s);
    return TDM_OK;
}

static bool group_has_left(const tdm_group *group)
{
    if (group->comm->left_count == 0) return false;
    for (int i = 0; i < group->size; i++)
        if (group->comm->peer_states[group->ranks[i]] == TDM_PEER_LEFT) return true;
    return false;
}

/* Numbers the request and starts it. After this only the call itself can fail. */
static tdm_status request_begin(tdm_request *request, tdm_error *err)
{
    tdm_group *group = request->group;
    const tdm_call *call = &request->call;
    uint32_t sequence;
    if (kind_is_pair(call->kind)) {
        if (!tdm__group_pair_next(group, call->root, call->tag, call->kind == TDM_CALL_RECV,
                                  &sequence))
            return tdm_fail_oom(err, "for a call");
    } else {
        sequence = group->next_sequence++;
    }
    request->head = call_head(group, call, request->algorithm->id, sequence);
    if (!kind_is_pair(call->kind)) group->history[sequence % TDM__HISTORY] = request->head;
    if (group_has_left(group)) request->left_s = request->begin_s + TDM__TIMING_COMM_LEFT_S;
    tdm__request_start(request);
    return TDM_OK;
}

static tdm_status group_broken_status(const tdm_group *group, tdm_error *err)
{
    return group->broken.status == TDM_OK
               ? TDM_OK
               : tdm_fail(err, group->broken.status, "%s", group->broken.message);
}

static tdm_status call_start_locked(tdm_group *group, const tdm_call *call, tdm_request **out,
                                    tdm_error *err)
{
    tdm_request *request = tdm__request_create(group);
    if (!request) return tdm_fail_oom(err, "for a call");
    request->call = *call;
    tdm_status status = request_prepare(request, err);
    if (status == TDM_OK) status = request_begin(request, err);
    if (status != TDM_OK) {
        tdm__request_release(request);
        return status;
    }
    *out = request;
    return TDM_OK;
}

static tdm_status call_prepare(tdm_group *group, const tdm_call *given, tdm_call *out,
                               tdm_error *err)
{
    *out = *given;
    tdm_status status = call_check(group, given, err);
    if (status != TDM_OK)
        return tdm_error_context(err, status, "%s", tdm_call_kind_name(given->kind));
    call_resolve_buffers(group, out);
    return TDM_OK;
}

static tdm_status request_finish(tdm_request *request, tdm_error *err)
{
    tdm_status status = request->error.status;
    if (status != TDM_OK) tdm_fail(err, status, "%s", request->error.message);
    tdm__request_release(request);
    return status;
}

static bool group_is_idle(const tdm_group *group)
{
    for (const tdm_request *r = group->comm->pending; r; r = r->next)
        if (r->group == group) return false;
    return true;
}

/* Whether this call uses the window on every rank. Some ranks may not be able to take the fast path
 * now; they follow the table, which may choose another algorithm. */
static bool call_is_for_window(const tdm_group *group, const tdm_call *call)
{
    if (call->algorithm == TDM_ALGORITHM_WINDOW) return true;
    if (call->algorithm != TDM_ALGORITHM_AUTO) return false;
    const tdm__algorithm_ops *chosen = NULL;
    return !group->comm->choices.mixed_host || (tdm__choose(group, call, &chosen, NULL) == TDM_OK &&
                                                chosen->id == TDM_ALGORITHM_WINDOW);
}

/* Runs a small call within a host. True if it has ended, with *status. */
static bool call_run_fast(tdm_group *group, const tdm_call *call, tdm_status *status,
                          tdm_error *err)
{
    if (!group->window || group->host_count > 1 || kind_is_pair(call->kind) ||
        !group_is_idle(group) || group_has_left(group) || !call_is_for_window(group, call))
        return false;
    tdm_comm *comm = group->comm;
    uint32_t sequence = group->next_sequence++;
    tdm__head head = call_head(group, call, TDM_ALGORITHM_WINDOW, sequence);
    group->history[sequence % TDM__HISTORY] = head;
    double deadline_s = call->deadline_s > 0 ? call->deadline_s : comm->options.deadline_s;
    if (tdm__window_run_fast(group, &head, call, deadline_s, status, err)) return true;
    group->next_sequence--; /* nothing has changed: the request gets this number */
    return false;
}

tdm_status tdm_call_run(tdm_group *group, const tdm_call *given, tdm_error *err)
{
    tdm_call call;
    TDM_TRY(call_prepare(group, given, &call, err));
    tdm_comm *comm = group->comm;
    tdm__comm_lock(comm);
    tdm_request *request = NULL;
    tdm_status status = group_broken_status(group, err);
    if (status == TDM_OK && !call_run_fast(group, &call, &status, err)) {
        status = call_start_locked(group, &call, &request, err);
        if (status == TDM_OK) {
            tdm__engine_wait(comm, request);
            status = request_finish(request, err);
        }
    }
    tdm__comm_unlock(comm);
    return status;
}

tdm_status tdm_call_start(tdm_group *group, const tdm_call *given, tdm_request **out,
                          tdm_error *err)
{
    tdm_call call;
    TDM_TRY(call_prepare(group, given, &call, err));
    tdm_comm *comm = group->comm;
    tdm__comm_lock(comm);
    tdm_status status = group_broken_status(group, err);
    tdm_request *request = NULL;
    if (status == TDM_OK) status = call_start_locked(group, &call, &request, err);
    if (status == TDM_OK) {
        request->background = true;
        *out = request;
        /* The progress thread does the rest, so that the caller can continue. */
        bool changed = false;
        if (!tdm__engine_background(comm)) tdm__request_run(request, &changed);
    }
    tdm__comm_unlock(comm);
    return status;
}

bool tdm_request_test(tdm_request *request)
{
    tdm_comm *comm = request->group->comm;
    tdm__comm_lock(comm);
    if (request->state != TDM__REQUEST_DONE) {
        tdm__engine_progress(comm);
        if (request->state != TDM__REQUEST_DONE) tdm__engine_timers(comm);
    }
    bool done = request->state == TDM__REQUEST_DONE;
    tdm__comm_unlock(comm);
    return done;
}

tdm_status tdm_request_wait(tdm_request *request, tdm_error *err)
{
    tdm_comm *comm = request->group->comm;
    tdm__comm_lock(comm);
    tdm__engine_wait(comm, request);
    tdm_status status = request_finish(request, err);
    tdm__comm_unlock(comm);
    return status;
}
