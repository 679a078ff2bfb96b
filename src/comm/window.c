/*
 * window.c: the block of a window: its creation, its slots and stages, and the cells in it.
 * window.h has the layout and the invariants.
 *
 * A member whose slot is still in use increments `waiting`, and is notified when a member ends a
 * call.
 */
#include "comm/window.h"
#include "base/base.h"
#include "comm/engine.h"
#include "comm/fail.h"
#include "comm/group.h"
#include "comm/lanes.h"
#include "comm/program.h"
#include "comm/request.h"

#include <stdlib.h>
#include <string.h>

enum {
    STAGE_BYTES = 4 << 20, /* address space; the algorithm decides how much of it a call uses */
    PAGE = 4096,
    WORD_BITS = 64
};

/* ---- layout ----------------------------------------------------------------------------------- */

typedef struct layout {
    size_t cells, staging, bytes; /* offsets from the block's start, and its size */
} layout;

static layout window_layout(int local_count)
{
    size_t n = (size_t)local_count;
    size_t cells = (2 + n) * sizeof(tdm__line); /* users, waiting, done[] */
    size_t staging = cells + TDM__WINDOW_SLOTS * n * sizeof(tdm__cell);
    staging = tdm_align_up(staging, PAGE);
    size_t staged = (size_t)TDM__WINDOW_STAGES * TDM__WINDOW_FLIGHT * n * STAGE_BYTES;
    return (layout){.cells = cells, .staging = staging, .bytes = staging + staged};
}

tdm__cell *tdm__window_cell(const tdm__window *w, uint32_t sequence, int local_index)
{
    size_t slot = sequence % TDM__WINDOW_SLOTS;
    return &w->cells[slot * (size_t)w->local_count + (size_t)local_index];
}

uint8_t *tdm__window_staging(const tdm__window *w, uint32_t sequence, int flight, int local_index)
{
    size_t stage = sequence % TDM__WINDOW_STAGES;
    size_t at = (stage * TDM__WINDOW_FLIGHT + (size_t)flight) * (size_t)w->local_count;
    return w->staging + (at + (size_t)local_index) * w->stage_bytes;
}

/* ---- creation and destruction ----------------------------------------------------------------- */

tdm_status tdm__window_make(tdm__host *host, int local_count, uint64_t *out_offset, tdm_error *err)
{
    uint64_t offset;
    tdm_status status = tdm__host_alloc(host, window_layout(local_count).bytes, &offset, err);
    if (status != TDM_OK)
        return tdm_error_context(err, status,
                                 "cannot create the window of a group with %d members on this host",
                                 local_count);
    tdm__line *users = tdm__host_at(host, offset);
    atomic_store(&users->value, (uint64_t)local_count);
    *out_offset = offset;
    return TDM_OK;
}

/* The index among the host's ranks of a rank of the world. */
static int comm_host_place(const tdm_comm *comm, int rank)
{
    int place = 0;
    for (int i = 0; i < rank; i++) place += comm->host_of[i] == comm->host_of[rank];
    return place;
}

static void window_free(tdm__window *w)
{
    if (!w) return;
    tdm__tree_plan_release(&w->plan);
    free(w->ended);
    free(w->local_members);
    free(w->host_places);
    free(w);
}

static tdm_status window_make_plan(tdm__window *w, int size, tdm_error *err)
{
    tdm__leaves leaves = {0};
    TDM_TRY(tdm__leaves_init(&leaves, NULL, size, err));
    tdm_status status = tdm__tree_plan_init(&w->plan, leaves.nodes, leaves.count, 1, err);
    tdm__leaves_release(&leaves);
    return status;
}

tdm_status tdm__window_enter(tdm_group *group, uint64_t offset, tdm_error *err)
{
    int own_host = group->host_of[group->rank];
    int n = group->host_size[own_host];
    tdm__window *w = calloc(1, sizeof(*w));
    int *members = calloc((size_t)n, sizeof(*members));
    int *places = calloc((size_t)n, sizeof(*places));
    uint64_t *ended = calloc(1, sizeof(*ended));
    if (!w || !members || !places || !ended) {
        free(w);
        free(members);
        free(places);
        free(ended);
        return tdm_fail_oom(err, "for the window of a group of %d ranks", group->size);
    }

    for (int i = 0; i < group->size; i++)
        if (group->host_of[i] == own_host) {
            members[group->local_of[i]] = i;
            places[group->local_of[i]] = comm_host_place(group->comm, group->ranks[i]);
        }

    tdm__host *host = group->comm->host;
    layout at = window_layout(n);
    uint8_t *block = tdm__host_at(host, offset);
    *w = (tdm__window){.host = host,
                       .local_count = n,
                       .local_index = group->local_of[group->rank],
                       .local_members = members,
                       .host_places = places,
                       .offset = offset,
                       .cells = (tdm__cell *)(block + at.cells),
                       .users = (tdm__line *)block,
                       .waiting = (tdm__line *)block + 1,
                       .done = (tdm__line *)block + 2,
                       .staging = block + at.staging,
                       .stage_bytes = STAGE_BYTES,
                       .ended = ended,
                       .ended_words = 1,
                       .crowded = tdm__host_spins(host) == 0};

    if (n == group->size) {
        tdm_status status = window_make_plan(w, n, err);
        if (status != TDM_OK) {
            window_free(w);
            return status;
        }
    }
    group->window = w;
    return TDM_OK;
}

void tdm__window_leave(tdm_group *group)
{
    tdm__window *w = group->window;
    if (!w) return;
    group->window = NULL;
    if (atomic_fetch_sub(&w->users->value, 1) == 1) tdm__host_free(w->host, w->offset);
    window_free(w);
}

/* ---- slots and stages ------------------------------------------------------------------------- */

static uint32_t window_done(const tdm__window *w, int local_index)
{
    return (uint32_t)atomic_load_explicit(&w->done[local_index].value, memory_order_acquire);
}

/* `done` may have wrapped around, like the sequence. */
static bool call_has_ended(uint32_t done, uint32_t sequence)
{
    return (int32_t)(done - sequence) > 0;
}

/* The previous call of this call's slot (or, for a call that uses staging, of its stage). */
static uint32_t request_call_before(const tdm_request *request)
{
    bool small = tdm__window_is_small(request->group, &request->call);
    return request->head.sequence - (uint32_t)(small ? TDM__WINDOW_SLOTS : TDM__WINDOW_STAGES);
}

bool tdm__window_is_near(const tdm_request *request)
{
    const tdm__window *w = request->group->window;
    bool small = tdm__window_is_small(request->group, &request->call);
    uint32_t ahead = request->head.sequence - window_done(w, w->local_index);
    return ahead < (uint32_t)(small ? TDM__WINDOW_SLOTS : 2 * TDM__WINDOW_STAGES);
}

/* Whether all members have ended call `before`. A positive result is cached. */
static bool window_all_ended(tdm__window *w, uint32_t before)
{
    if (call_has_ended(w->all_done, before)) return true;
    uint32_t min = window_done(w, w->local_index);
    for (int i = 0; i < w->local_count; i++) {
        uint32_t done = window_done(w, i);
        if ((int32_t)(done - min) < 0) min = done;
    }
    w->all_done = min;
    return call_has_ended(min, before);
}

bool tdm__window_is_free(tdm__window *w, uint32_t before)
{
    if (window_all_ended(w, before)) {
        if (w->is_waiting) atomic_fetch_sub(&w->waiting->value, 1);
        w->is_waiting = false;
        return true;
    }
    if (w->is_waiting) return false;
    w->is_waiting = true;
    atomic_fetch_add(&w->waiting->value, 1); /* a full fence: check again after it */
    return window_all_ended(w, before);
}

static void window_ring_others(const tdm__window *w)
{
    for (int i = 0; i < w->local_count; i++)
        if (i != w->local_index) tdm__host_ring(w->host, w->host_places[i]);
}

/* Records an end out of order. False: out of memory. */
static bool window_note_ended(tdm__window *w, uint32_t ahead)
{
    size_t words = (size_t)ahead / WORD_BITS + 1;
    if (words > w->ended_words) {
        uint64_t *grown = realloc(w->ended, words * sizeof(*grown));
        if (!grown) return false;
        memset(grown + w->ended_words, 0, (words - w->ended_words) * sizeof(*grown));
        w->ended = grown;
        w->ended_words = words;
    }
    w->ended[ahead / WORD_BITS] |= (uint64_t)1 << (ahead % WORD_BITS);
    return true;
}

/* Drops the lowest `count` (below 64) bits. */
static void window_shift_ended(tdm__window *w, unsigned count)
{
    for (size_t i = 0; i < w->ended_words; i++) {
        uint64_t above = i + 1 < w->ended_words ? w->ended[i + 1] : 0;
        w->ended[i] = w->ended[i] >> count | above << (WORD_BITS - count);
    }
}

void tdm__window_ended(tdm_group *group, uint32_t sequence)
{
    tdm__window *w = group->window;
    if (!w) return;
    uint32_t done = window_done(w, w->local_index);
    if (sequence == done && w->ended_words == 1 && w->ended[0] < 2) {
        done++; /* by far the most frequent case: no call ended out of order */
    } else {
        if (!window_note_ended(w, sequence - done)) {
            tdm__group_break(group, true, TDM_ERR_PEER_FAILED,
                             "rank %d has no memory to record the end of a call",
                             group->comm->rank);
            return;
        }
        while (w->ended[0] & 1) {
            window_shift_ended(w, 1);
            done++;
        }
    }
    /* A full fence before `waiting` is read: waiting members increment it first and then read
     * `done`. */
    atomic_exchange(&w->done[w->local_index].value, done);
    if (atomic_load_explicit(&w->waiting->value, memory_order_relaxed) > 0) window_ring_others(w);
}

/* ---- call descriptions ------------------------------------------------------------------------ */

/* A hash of the fields that two headers of one call must have in common (tdm__heads_agree). */
static uint64_t head_agreed_hash(const tdm__head *head)
{
    uint64_t small = (uint64_t)head->kind | (uint64_t)head->dtype << 8 |
                     (uint64_t)head->reduce << 16 | (uint64_t)head->algorithm << 24 |
                     (uint64_t)(uint32_t)head->root << 32;
    uint64_t hash = tdm_hash64_add(head->group, small);
    return tdm_hash64_add(tdm_hash64_add(hash, head->count), head->layout);
}

void tdm__window_describe(const tdm_group *group, const tdm__head *head)
{
    const tdm__window *w = group->window;
    tdm__cell *cell = tdm__window_cell(w, head->sequence, w->local_index);
    cell->agreed = head_agreed_hash(head);
    cell->head = *head;
}

bool tdm__window_agrees(tdm_group *group, const tdm__head *head, int local_index)
{
    const tdm__window *w = group->window;
    const tdm__cell *cell = tdm__window_cell(w, head->sequence, local_index);
    if (cell->agreed == tdm__window_cell(w, head->sequence, w->local_index)->agreed) return true;
    tdm__head theirs = cell->head;
    tdm__group_mismatch(group, group->ranks[w->local_members[local_index]], head, &theirs);
    return false;
}

bool tdm__window_has_posted(const tdm__window *w, uint32_t sequence, int local_index,
                            uint32_t value)
{
    const tdm__cell *cell = tdm__window_cell(w, sequence, local_index);
    uint64_t counter = atomic_load_explicit(&cell->counter, memory_order_acquire);
    uint64_t wanted = ((uint64_t)sequence << 32) + value;
    return (int64_t)(counter - wanted) >= 0; /* both may have wrapped around */
}

void tdm__window_raise(const tdm__window *w, uint32_t sequence, uint32_t value)
{
    tdm__cell *cell = tdm__window_cell(w, sequence, w->local_index);
    atomic_store_explicit(&cell->counter, ((uint64_t)sequence << 32) + value, memory_order_release);
    window_ring_others(w);
}

void tdm__window_post(tdm__program *program, uint32_t value)
{
    const tdm_request *request = program->request;
    tdm__window_raise(request->group->window, request->head.sequence, value);
}

bool tdm__window_reached(tdm__program *program, int local_member, uint32_t value)
{
    tdm_request *request = program->request;
    tdm_group *group = request->group;
    tdm__window *w = group->window;
    uint32_t sequence = request->head.sequence;
    if (value == 0)
        return local_member < 0
                   ? tdm__window_is_free(w, request_call_before(request))
                   : call_has_ended(window_done(w, local_member), request_call_before(request));
    int first = local_member < 0 ? 0 : local_member;
    int last = local_member < 0 ? w->local_count - 1 : local_member;
    for (int i = first; i <= last; i++)
        if (i != w->local_index && !tdm__window_has_posted(w, sequence, i, value)) return false;
    if (value > 1) return true; /* compared when it posted 1 */
    for (int i = first; i <= last; i++)
        if (i != w->local_index && !tdm__window_agrees(group, &request->head, i)) return false;
    return true;
}
