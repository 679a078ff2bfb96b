/*
 * request.c: requests and their programs: start, progress, end.
 *
 * A request is divided into segments, up to `cut.flight` of which have a program at a time. A
 * program runs until it must wait (JOIN, AWAIT), and is tried again in the engine's next round.
 *
 * Many calls may be pending. The memory they use for data in transit, here and at peers that are
 * late, is bounded: no segment begins while others with TDM_CALLS_ACTIVE_BYTES are active, unless
 * it is small. Segments of a group's oldest call are exempt, which prevents a deadlock: ranks may
 * have different calls active, each waiting for one that another rank has not begun. The oldest of
 * all pending calls is, or will be, active at all its members.
 *
 * Requests and the arenas of their programs are reused, so calls in the steady state allocate
 * nothing.
 */
#include "comm/request.h"
#include "comm/engine.h"
#include "comm/fail.h"
#include "comm/group.h"
#include "comm/lanes.h"
#include "comm/program.h"
#include "comm/scratch.h"
#include "comm/transfer.h"
#include "comm/window.h"

#include <stdlib.h>
#include <string.h>

enum { SMALL_BYTES = 256 << 10 };

/* ---- creation and release --------------------------------------------------------------------- */

tdm_request *tdm__request_create(tdm_group *group)
{
    tdm_comm *comm = group->comm;
    tdm_request *request = comm->free_requests;
    if (request) {
        comm->free_requests = request->next;
        tdm_arena *arenas[TDM__MAX_FLIGHT];
        for (int i = 0; i < TDM__MAX_FLIGHT; i++) arenas[i] = request->programs[i].arena;
        memset(request, 0, sizeof(*request));
        for (int i = 0; i < TDM__MAX_FLIGHT; i++) request->programs[i].arena = arenas[i];
    } else {
        request = calloc(1, sizeof(*request));
        if (!request) return NULL;
    }
    request->group = group;
    request->waits_for = -1;
    for (int i = 0; i < TDM__MAX_FLIGHT; i++) request->programs[i].request = request;
    return request;
}

void tdm__request_release(tdm_request *request)
{
    tdm_comm *comm = request->group->comm;
    for (tdm_request **link = &comm->ended; *link; link = &(*link)->next)
        if (*link == request) {
            *link = request->next;
            break;
        }
    if (request->owns_plan) {
        tdm__tree_plan_release(&request->plan);
        tdm__leaves_release(&request->leaves);
    }
    for (int i = 0; i < TDM__MAX_FLIGHT; i++)
        tdm__scratch_give_back(comm, &request->programs[i].blocks);
    free(request->algorithm_data);
    free(request->copy);
    request->algorithm_data = request->copy = NULL;
    request->next = comm->free_requests;
    comm->free_requests = request;
}

tdm_request *tdm__request_find(tdm_group *group, const tdm__head *head)
{
    for (tdm_request *r = group->comm->pending; r; r = r->next)
        if (r->group == group && r->head.sequence == head->sequence &&
            (r->head.kind >= TDM_CALL_SEND) == (head->kind >= TDM_CALL_SEND))
            return r;
    return NULL;
}

static void request_record(const tdm_request *request, tdm_trace_kind kind, tdm_status status)
{
    const tdm__head *head = &request->head;
    tdm__record(
        request->group->comm->recorder,
        (tdm_trace_event){
            .kind = (uint8_t)kind,
            .peer = head->kind >= TDM_CALL_SEND ? request->group->ranks[request->call.root] : -1,
            .bytes = head->count * tdm_dtype_bytes((tdm_dtype)head->dtype),
            .group = head->group,
            .sequence = head->sequence,
            .step = head->step,
            .call = (uint8_t)request->call.kind,
            .dtype = head->dtype,
            .status = (uint16_t)status,
        });
}

void tdm__request_start(tdm_request *request)
{
    tdm_comm *comm = request->group->comm;
    size_t span = tdm__call_span(&request->call, request->group->size);
    if (request->cut.segment == 0) request->cut.segment = span ? span : 1;
    size_t segment = request->cut.segment;
    request->segment_count = span ? (span + segment - 1) / segment : 1;
    request->segment_bytes = segment * tdm_dtype_bytes(request->call.dtype);
    if (request->cut.flight < 1) request->cut.flight = 1;
    if (request->cut.flight > TDM__MAX_FLIGHT) request->cut.flight = TDM__MAX_FLIGHT;
    request->age = comm->started_count++;
    tdm_request **link = &comm->pending;
    while (*link && (*link)->call.priority <= request->call.priority) link = &(*link)->next;
    request->next = *link;
    *link = request;
    request->state = TDM__REQUEST_RUNNING;
    request_record(request, TDM_TRACE_BEGIN, TDM_OK);
    tdm__transfers_check(request);
}

/* ---- limit of active bytes -------------------------------------------------------------------- */

static bool request_is_oldest(const tdm_request *request)
{
    const tdm_group *group = request->group;
    for (const tdm_request *r = group->comm->pending; r; r = r->next)
        if (r->group == group && r->head.kind < TDM_CALL_SEND &&
            (int32_t)(r->head.sequence - request->head.sequence) < 0)
            return false;
    return true;
}

/* Whether the next segment may begin now. Calls through windows have their own limit there. */
static bool request_may_begin(const tdm_request *request)
{
    if (request->head.kind >= TDM_CALL_SEND) return true;
    if (request->algorithm->window) return tdm__window_is_near(request);
    return request->group->comm->active_bytes < TDM_CALLS_ACTIVE_BYTES ||
           request->segment_bytes <= SMALL_BYTES || request_is_oldest(request);
}

static void request_count_active(const tdm_request *request, bool begins)
{
    if (request->algorithm->window || request->head.kind >= TDM_CALL_SEND) return;
    size_t *active = &request->group->comm->active_bytes;
    *active = begins ? *active + request->segment_bytes : *active - request->segment_bytes;
}

/* ---- end -------------------------------------------------------------------------------------- */

static void request_finish(tdm_request *request)
{
    tdm_comm *comm = request->group->comm;
    for (int i = 0; i < request->cut.flight; i++) /* after an error some have not ended */
        if (request->programs[i].active) request_count_active(request, false);
    tdm_request **link = &comm->pending;
    while (*link && *link != request) link = &(*link)->next;
    if (*link) *link = request->next;
    request->next = comm->ended;
    comm->ended = request;
    if (request->group->window && request->head.kind < TDM_CALL_SEND)
        tdm__window_ended(request->group, request->head.sequence);
    request_record(request, TDM_TRACE_END, request->error.status);
    request->state = TDM__REQUEST_DONE;
    if (comm->waiters) pthread_cond_broadcast(&comm->changed);
    if (comm->polled_for == request) comm->transport->ops->wake(comm->transport);
}

void tdm__request_suspect(tdm_request *request, int peer, const tdm_error *error)
{
    if (!tdm__request_is_open(request) || request->error.status != TDM_OK) return;
    request->error = *error;
    request->failed_peer = peer;
    if (request->state == TDM__REQUEST_RUNNING) request->state = TDM__REQUEST_SUSPECT;
}

void tdm__request_end(tdm_request *request, const tdm_error *error)
{
    if (!tdm__request_is_open(request)) return;
    request->state = TDM__REQUEST_ENDING;
    request->ending_s = tdm__comm_now(request->group->comm);
    request->error = *error;
    tdm__transfers_cancel(request);
}

/* Whether its programs may continue. */
static bool request_runs(const tdm_request *request)
{
    return tdm__request_is_open(request) && request->error.status == TDM_OK;
}

/* ---- programs --------------------------------------------------------------------------------- */

static bool segment_begin(tdm_request *request, tdm__program *p)
{
    if (!p->arena) p->arena = tdm_arena_create("segment of a call");
    if (!p->arena) return false;
    tdm_arena_reset(p->arena);
    tdm__scratch_give_back(request->group->comm, &p->blocks);
    p->list = NULL;
    p->trees = NULL;
    p->count = p->capacity = p->tree_count = p->tree_capacity = p->at = p->pending = 0;
    p->no_memory = false;
    p->segment = (int)request->next_segment++;
    p->active = true;
    request_count_active(request, true);
    size_t first = (size_t)p->segment * request->cut.segment;
    size_t left = tdm__call_span(&request->call, request->group->size) - first;
    request->algorithm->build(p, first, left < request->cut.segment ? left : request->cut.segment);
    return !p->no_memory;
}

/* Executes an instruction that does not wait. */
static void program_execute(tdm__program *p, const tdm__instruction *instruction)
{
    tdm_request *request = p->request;
    tdm__reducer reducer = tdm__reducer_of(&request->call);
    switch ((tdm__op)instruction->op) {
    case TDM__OP_SEND: tdm__transfer_send(p, instruction); break;
    case TDM__OP_RECV: tdm__transfer_recv(p, instruction); break;
    case TDM__OP_COPY:
        tdm__copy(instruction->to, instruction->from, instruction->bytes, instruction->stream);
        break;
    case TDM__OP_PAIR:
        tdm__reduce_pair(&reducer, instruction->to, instruction->from, instruction->other,
                         instruction->bytes / tdm_dtype_bytes(reducer.dtype));
        break;
    case TDM__OP_TREE: {
        const tdm__tree_call *tree = &p->trees[instruction->tree];
        tdm__tree_run(tree->plan, &reducer, tree->sources, tree->destinations,
                      tree->destination_count, tree->count, instruction->stream);
        break;
    }
    case TDM__OP_POST: tdm__window_post(p, instruction->value); break;
    case TDM__OP_CALL: instruction->function(request, p->segment); break;
    case TDM__OP_JOIN:
    case TDM__OP_AWAIT: break;
    }
}

/* Runs until it must wait. Instructions are copied first: CALL may add some and move the list. */
static void program_run(tdm__program *p, bool *changed)
{
    tdm_request *request = p->request;
    while (p->at < p->count && request_runs(request) && !p->no_memory) {
        tdm__instruction instruction = p->list[p->at];
        if (instruction.op == TDM__OP_JOIN && p->pending > 0) return;
        if (instruction.op == TDM__OP_AWAIT &&
            !tdm__window_reached(p, instruction.peer, instruction.value))
            return;
        p->at++;
        *changed = true;
        program_execute(p, &instruction);
    }
    if (p->at == p->count && p->pending == 0 && request_runs(request)) {
        p->active = false;
        request_count_active(request, false);
        request->ended_segments++;
        *changed = true;
    }
}

static void request_run_segments(tdm_request *request, bool *changed)
{
    for (int i = 0; i < request->cut.flight && request_runs(request); i++) {
        tdm__program *p = &request->programs[i];
        if (!p->active) {
            if (request->next_segment >= request->segment_count || !request_may_begin(request))
                continue;
            if (!segment_begin(request, p)) p->no_memory = true;
            *changed = true;
        }
        program_run(p, changed);
        if (p->no_memory)
            tdm__group_break(request->group, true, TDM_ERR_PEER_FAILED,
                             "rank %d has no memory for a call of %zu elements",
                             request->group->comm->rank, request->call.count);
    }
}

/* A transfer has failed. The cause may be another rank's death, so the call stops and waits until the hub
 * has decided about the peer. Then the loss of the peer, or of another rank, ends the call. */
static void request_on_failed_transfer(tdm_request *request)
{
    tdm_comm *comm = request->group->comm;
    int peer = request->failed_peer;
    if (comm->peer_states[peer] == TDM_PEER_LEFT)
        tdm__group_break(request->group, !comm->closing, TDM_ERR_PEER_LEFT,
                         "a transfer with rank %d failed: it has left the world", peer);
    else
        tdm__peer_suspect(comm, peer, "a transfer failed");
}

void tdm__request_run(tdm_request *request, bool *changed)
{
    if (request->state == TDM__REQUEST_SUSPECT) request_on_failed_transfer(request);
    request_run_segments(request, changed);
    bool over = request->state == TDM__REQUEST_ENDING
                    ? request->outstanding == 0
                    : request_runs(request) && request->ended_segments == request->segment_count;
    if (!over) return;
    request_finish(request);
    *changed = true;
}

/* ---- missing ranks ---------------------------------------------------------------------------- */

static void missing_add(int rank, int *out, int *count, int max)
{
    for (int i = 0; i < *count; i++)
        if (out[i] == rank) return;
    if (*count < max) out[(*count)++] = rank;
}

int tdm__request_missing(tdm_request *request, int *out, int max)
{
    const tdm_group *group = request->group;
    const tdm__window *w = group->window;
    int count = 0;
    for (const tdm__transfer *t = group->comm->transfers; t; t = t->next) {
        if (t->request == request) missing_add(t->peer, out, &count, max);
        if (t->next == group->comm->transfers) break;
    }
    for (int i = 0; i < request->cut.flight; i++) {
        tdm__program *p = &request->programs[i];
        if (!p->active || p->at >= p->count || p->list[p->at].op != TDM__OP_AWAIT) continue;
        tdm__instruction await = p->list[p->at];
        for (int k = 0; k < w->local_count; k++)
            if (k != w->local_index && (await.peer < 0 || await.peer == k) &&
                !tdm__window_reached(p, k, await.value))
                missing_add(group->ranks[w->local_members[k]], out, &count, max);
    }
    return count;
}
