/*
 * window.c: collectives through shared memory of all members.
 *
 * window_small.c implements small calls. The others use one of two methods. All members select the
 * same one after they have posted, by the location of the buffers (tdm__cell). Nothing is sent over
 * a network. P members, n bytes in total, b = n / P.
 *
 * Direct, if the buffers that others need are in the host's shared memory: data are copied only to
 * their destination. 2 steps (all have arrived; all have finished). Every member reads and writes,
 * at most:
 *   all_reduce      reads n, writes n: it adds its slice of all inputs and writes it to all outputs
 *   reduce          reads n, writes b to root's
 *   reduce_scatter  reads n, writes b        all_gather   reads n, writes n
 *   all_to_all      reads n, writes n        broadcast    reads n, writes n (not the root)
 *   gather          root reads n, writes n   scatter      reads b, writes b
 *
 * Staged, otherwise: in rounds. A round is a piece of each member's slice, small enough to stay in
 * the cache. In round r a member adds its piece (from its own buffer and the others' staging, into
 * its own buffer and into staging), copies the others' results of round r - 1, stages the data that
 * the others need in round r + 1, posts, and waits for all. So there is one post and one wait for
 * each round, and all staging exists twice. Steps: rounds + 1. In addition to the direct method,
 * every member moves:
 *   all_reduce      writes n - b and b, reads n - b of staging     reduce          the same
 *   reduce_scatter  writes n - b                                   all_gather      writes b
 *   all_to_all      writes n - b                                   broadcast, scatter, gather: the
 *                                                                  root's (or to the root) n, once
 *
 * Why the staging of a round may be reused two rounds later: before a member posts round r + 1 it
 * has finished all reads of round r, and no member writes for round r + 2 before all have posted r
 * + 1.
 *
 * The program is written a few rounds at a time; the last instruction writes the next ones. If a
 * call is ended by an error, a neighbour may still write at most one piece to its buffer before it
 * detects that.
 */
#include "comm/window.h"
#include "base/base.h"
#include "comm/algorithm.h"
#include "comm/group.h"
#include "comm/lanes.h"
#include "comm/program.h"
#include "comm/request.h"

#include <stdlib.h>
#include <string.h>

enum {
    LINE = 64,
    ROUND_BYTES = 256 << 10,       /* of all members' pieces, if each member has a CPU */
    CROWDED_ROUND_BYTES = 2 << 20, /* if not: fewer rounds mean fewer context switches */
    CHUNK_BYTES = 1 << 20,         /* of one instruction of the direct method */
    STREAM_BYTES = 4 << 20,        /* minimum of a call whose results are written past the cache */
    BATCH_ROUNDS = 32
};

/* The state of a call. */
typedef struct window_call {
    size_t width; /* bytes of an element */
    size_t slice; /* elements of a member's piece of a round */
    size_t rounds, next_round;
    int max_parts;
    uint32_t base; /* the value that all have posted when round 0 is staged */
    bool late;     /* results are copied one round later: reductions to several ranks */
    bool stream;
} window_call;

/* ---- geometry --------------------------------------------------------------------------------- */

static bool window_is_sliced(tdm_call_kind kind)
{
    return kind >= TDM_CALL_REDUCE_SCATTER && kind <= TDM_CALL_ALL_TO_ALL;
}

/* The piece of member `m` in round `r`: elements of the whole. */
static tdm_extent window_piece_of(const tdm_request *request, size_t r, int m)
{
    const window_call *s = request->algorithm_data;
    const tdm_call *call = &request->call;
    int size = request->group->size;
    size_t begin = r * s->slice;
    if (window_is_sliced(call->kind)) {
        tdm_extent whole = tdm__call_slice(call, size, m);
        if (begin >= whole.count) return (tdm_extent){.first = whole.first, .count = 0};
        size_t left = whole.count - begin;
        return (tdm_extent){.first = whole.first + begin,
                            .count = left < s->slice ? left : s->slice};
    }
    if (call->kind == TDM_CALL_BROADCAST) {
        size_t left = call->count - begin;
        return (tdm_extent){.first = begin,
                            .count = m != call->root   ? 0
                                     : left < s->slice ? left
                                                       : s->slice};
    }
    begin *= (size_t)size;
    size_t left = call->count - begin;
    size_t all = left < s->slice * (size_t)size ? left : s->slice * (size_t)size;
    tdm_extent piece = tdm_group_slice(all, size, m);
    return (tdm_extent){.first = begin + piece.first, .count = piece.count};
}

/* Staging of member `m`: first its pieces for the others, [part][member], then its results. */
static uint8_t *window_staging(const tdm_request *request, size_t r, int m, int part, int target)
{
    const window_call *s = request->algorithm_data;
    uint8_t *at = tdm__window_staging(request->group->window, request->head.sequence,
                                      (int)(r % TDM__WINDOW_FLIGHT), m);
    size_t index = (size_t)part * (size_t)request->group->size + (size_t)target;
    return at + index * s->slice * s->width;
}

/*
 * Where member `m` writes its results of round `r` for the others. With two members: over the
 * staged part of the other. Those cache lines have just been read, and the other member stages into
 * them again after it has read the results, so they move between caches less often. With more
 * members: to its own staging, because other members may read a staged part longer than its owner
 * does.
 */
static uint8_t *window_result_of(const tdm_request *request, size_t r, int m)
{
    const window_call *s = request->algorithm_data;
    if (request->group->size == 2) return window_staging(request, r, 1 - m, 0, m);
    return window_staging(request, r, m, s->max_parts, 0);
}

/* Computes the size of a round. Rounds are even: the last is not much shorter than the others. */
static void window_cut_rounds(const tdm_request *request, window_call *s)
{
    const tdm_call *call = &request->call;
    const tdm__window *w = request->group->window;
    size_t size = (size_t)request->group->size;
    size_t line = s->width < LINE ? LINE / s->width : 1;
    size_t room = w->stage_bytes / ((size_t)s->max_parts * size + 1) / s->width / line * line;
    size_t round_bytes = w->crowded ? CROWDED_ROUND_BYTES : ROUND_BYTES;
    size_t sharers = call->kind == TDM_CALL_BROADCAST ? 2 : size;
    size_t wanted = tdm_align_up(round_bytes / sharers / s->width, line);
    if (wanted > room) wanted = room;
    size_t whole = call->kind == TDM_CALL_BROADCAST ? call->count
                   : window_is_sliced(call->kind)   ? tdm__call_max_slice(call, (int)size)
                                                    : (call->count + size - 1) / size;
    s->rounds = (whole + wanted - 1) / wanted;
    s->slice = tdm_align_up((whole + s->rounds - 1) / s->rounds, line);
    if (s->slice > wanted) s->slice = wanted;
    s->rounds = (whole + s->slice - 1) / s->slice;
}

/* ---- location of buffers ---------------------------------------------------------------------- */

static int window_part_count(const tdm_request *request, int m)
{
    if (!request->call.lanes || !tdm__kind_reduces(request->call.kind)) return 1;
    return request->leaves.first[m + 1] - request->leaves.first[m];
}

static size_t window_in_count(const tdm_request *request)
{
    const tdm_call *call = &request->call;
    if (call->kind != TDM_CALL_ALL_GATHER && call->kind != TDM_CALL_GATHER) return call->count;
    return tdm__call_slice(call, request->group->size, request->group->rank).count;
}

/* Whether others may read this rank's input in place. Not if this rank overwrites it meanwhile,
 * other than element by element after reading it. */
static bool window_offers_input(const tdm_request *request)
{
    const tdm_call *call = &request->call;
    bool root = request->group->rank == call->root;
    if (call->kind == TDM_CALL_BROADCAST || call->kind == TDM_CALL_SCATTER)
        if (!root) return false;
    bool moves = call->kind == TDM_CALL_REDUCE_SCATTER || call->kind == TDM_CALL_SCATTER;
    return !(moves && call->in == call->out);
}

/* Publishes the offsets of this rank's buffers. */
static void window_publish(tdm_request *request)
{
    const tdm_group *group = request->group;
    const tdm_call *call = &request->call;
    const tdm__host *host = group->window->host;
    const window_call *s = request->algorithm_data;
    tdm__cell *cell = tdm__window_cell(group->window, request->head.sequence,
                                       group->window->local_index);
    tdm__window_describe(group, &request->head);
    cell->in_offset = cell->out_offset = UINT64_MAX;
    if (call->kind == TDM_CALL_ALL_REDUCE ||
        (call->kind == TDM_CALL_REDUCE && group->rank == call->root))
        cell->out_offset = tdm__host_offset(host, call->out, call->count * s->width);
    if (!window_offers_input(request)) return;
    uint64_t offsets[TDM_MAX_LANE_PARTS] = {0};
    int parts = window_part_count(request, group->rank);
    for (int i = 0; i < parts; i++) {
        offsets[i] = tdm__host_offset(host, tdm__call_part(call, i),
                                      window_in_count(request) * s->width);
        if (offsets[i] == UINT64_MAX) return;
    }
    memcpy(cell->data, offsets, (size_t)parts * sizeof(offsets[0]));
    cell->in_offset = parts ? offsets[0] : 0;
}

static const tdm__cell *window_cell_of(const tdm_request *request, int m)
{
    return tdm__window_cell(request->group->window, request->head.sequence, m);
}

static bool window_shares_input(const tdm_request *request, int m)
{
    return window_cell_of(request, m)->in_offset != UINT64_MAX;
}

/* The address of neighbour `m`'s part, in place. */
static const uint8_t *window_input_of(const tdm_request *request, int m, int part)
{
    if (m == request->group->rank) return tdm__call_part(&request->call, part);
    uint64_t offset;
    memcpy(&offset, window_cell_of(request, m)->data + (size_t)part * sizeof(offset),
           sizeof(offset));
    return tdm__host_at(request->group->window->host, offset);
}

static uint8_t *window_output_of(const tdm_request *request, int m)
{
    if (m == request->group->rank) return request->call.out;
    return tdm__host_at(request->group->window->host, window_cell_of(request, m)->out_offset);
}

/* Whether the direct method can access all its buffers: the same on all members. */
static bool window_can_go_direct(const tdm_request *request)
{
    const tdm_call *call = &request->call;
    if (call->kind == TDM_CALL_BROADCAST || call->kind == TDM_CALL_SCATTER)
        return window_shares_input(request, call->root);
    for (int m = 0; m < request->group->size; m++) {
        bool writes = call->kind == TDM_CALL_ALL_REDUCE ||
                      (call->kind == TDM_CALL_REDUCE && m == call->root);
        if (!window_shares_input(request, m)) return false;
        if (writes && window_cell_of(request, m)->out_offset == UINT64_MAX) return false;
    }
    return true;
}

/* ---- direct ----------------------------------------------------------------------------------- */

/* Adds elements [first, first + count) of all inputs and writes them to these destinations. */
static void window_add_direct(tdm__program *p, tdm_extent part, uint8_t *const *to, int to_count,
                              size_t to_first)
{
    const tdm_request *request = p->request;
    const window_call *s = request->algorithm_data;
    const tdm__tree_plan *plan = &request->plan;
    const void **sources = tdm__program_scratch(p, (size_t)plan->leaf_count * sizeof(*sources));
    void **places = tdm__program_scratch(p, (size_t)to_count * sizeof(*places));
    if (!sources || !places) return;
    size_t chunk = CHUNK_BYTES / s->width;
    for (size_t at = 0; at < part.count; at += chunk) {
        size_t count = part.count - at < chunk ? part.count - at : chunk;
        int leaf = 0;
        for (int m = 0; m < request->group->size; m++)
            for (int i = 0; i < window_part_count(request, m); i++)
                sources[leaf++] = window_input_of(request, m, i) + (part.first + at) * s->width;
        for (int i = 0; i < to_count; i++) places[i] = to[i] + (to_first + at) * s->width;
        tdm__program_tree(p, plan, sources, places, to_count, count, s->stream ? to_count : 0);
    }
}

static void window_copy_direct(tdm__program *p, uint8_t *to, const uint8_t *from, size_t bytes)
{
    const window_call *s = p->request->algorithm_data;
    for (size_t at = 0; at < bytes; at += CHUNK_BYTES) {
        size_t now = bytes - at < CHUNK_BYTES ? bytes - at : CHUNK_BYTES;
        tdm__program_copy(p, to + at, from + at, now, s->stream);
    }
}

/* This rank's share of a reduction to all ranks or to the root. Slices begin at cache lines. */
static void window_reduce_direct(tdm__program *p)
{
    const tdm_request *request = p->request;
    const window_call *s = request->algorithm_data;
    int size = request->group->size;
    bool all = request->call.kind == TDM_CALL_ALL_REDUCE;
    uint8_t **places = tdm__program_scratch(p, (size_t)size * sizeof(*places));
    if (!places) return;
    int count = 0;
    for (int m = 0; m < size; m++)
        if (all || m == request->call.root) places[count++] = window_output_of(request, m);
    size_t line = s->width < LINE ? LINE / s->width : 1;
    size_t lines = tdm_align_up(request->call.count, line) / line;
    tdm_extent part = tdm_group_slice(lines, size, request->group->rank);
    size_t first = part.first * line, end = first + part.count * line;
    if (end > request->call.count) end = request->call.count;
    if (first > end) first = end;
    window_add_direct(p, (tdm_extent){.first = first, .count = end - first}, places, count, first);
}

static void window_write_direct(tdm__program *p)
{
    const tdm_request *request = p->request;
    const tdm_call *call = &request->call;
    const window_call *s = request->algorithm_data;
    int size = request->group->size, rank = request->group->rank;
    uint8_t *out = call->out;
    tdm_extent mine = tdm__call_slice(call, size, rank);
    if (call->kind == TDM_CALL_ALL_REDUCE || call->kind == TDM_CALL_REDUCE) window_reduce_direct(p);
    if (call->kind == TDM_CALL_REDUCE_SCATTER) window_add_direct(p, mine, &out, 1, 0);
    for (int k = 0; k < size; k++) {
        int m = (rank + k) % size; /* not all from the same member at the same time */
        tdm_extent theirs = tdm__call_slice(call, size, m);
        if (call->kind == TDM_CALL_ALL_GATHER ||
            (call->kind == TDM_CALL_GATHER && rank == call->root))
            window_copy_direct(p, out + theirs.first * s->width, window_input_of(request, m, 0),
                               theirs.count * s->width);
        if (call->kind == TDM_CALL_ALL_TO_ALL)
            window_copy_direct(p, out + (size_t)m * mine.count * s->width,
                               window_input_of(request, m, 0) + mine.first * s->width,
                               mine.count * s->width);
        if (call->kind == TDM_CALL_BROADCAST && m == call->root)
            window_copy_direct(p, out, window_input_of(request, m, 0), call->count * s->width);
        if (call->kind == TDM_CALL_SCATTER && m == call->root)
            window_copy_direct(p, out, window_input_of(request, m, 0) + mine.first * s->width,
                               mine.count * s->width);
    }
    tdm__program_post(p, 2);
    tdm__program_await(p, -1, 2);
}

/* ---- staged: steps of a round ----------------------------------------------------------------- */

/* Stages the data that the others need of this rank in round `r`. */
static void window_stage(tdm__program *p, size_t r)
{
    const tdm_request *request = p->request;
    const tdm_call *call = &request->call;
    const window_call *s = request->algorithm_data;
    int rank = request->group->rank;
    bool root = rank == call->root;
    const uint8_t *in = call->in;
    switch (call->kind) {
    case TDM_CALL_BROADCAST:
    case TDM_CALL_ALL_GATHER:
    case TDM_CALL_GATHER: {
        if (call->kind == TDM_CALL_BROADCAST ? !root : call->kind == TDM_CALL_GATHER && root)
            return;
        tdm_extent piece = window_piece_of(request, r, rank);
        if (call->kind != TDM_CALL_BROADCAST)
            piece.first -= tdm__call_slice(call, request->group->size, rank).first;
        tdm__program_copy(p, window_staging(request, r, rank, 0, 0), in + piece.first * s->width,
                          piece.count * s->width, false);
        return;
    }
    case TDM_CALL_SCATTER:
        if (!root) return;
        break;
    default: break;
    }
    for (int i = 0; i < window_part_count(request, rank); i++)
        for (int m = 0; m < request->group->size; m++) {
            tdm_extent piece = window_piece_of(request, r, m);
            if (m == rank) continue;
            tdm__program_copy(p, window_staging(request, r, rank, i, m),
                              tdm__call_part(call, i) + piece.first * s->width,
                              piece.count * s->width, false);
        }
}

/* Adds this rank's piece of round `r`: into its destination (past the cache, if the call is large),
 * and into the staging for the others, which read it soon. */
static void window_add(tdm__program *p, size_t r)
{
    const tdm_request *request = p->request;
    const tdm_call *call = &request->call;
    const window_call *s = request->algorithm_data;
    int rank = request->group->rank;
    const void **sources = tdm__program_scratch(p, (size_t)request->plan.leaf_count *
                                                       sizeof(*sources));
    if (!sources) return;
    tdm_extent piece = window_piece_of(request, r, rank);
    int leaf = 0;
    for (int m = 0; m < request->group->size; m++)
        for (int i = 0; i < window_part_count(request, m); i++)
            sources[leaf++] = m == rank ? tdm__call_part(call, i) + piece.first * s->width
                                        : window_staging(request, r, m, i, rank);
    void *places[2];
    int count = 0;
    size_t first = piece.first;
    if (call->kind == TDM_CALL_REDUCE_SCATTER)
        first -= tdm__call_slice(call, request->group->size, rank).first;
    bool kept = call->kind != TDM_CALL_REDUCE || rank == call->root;
    if (kept) places[count++] = (uint8_t *)call->out + first * s->width;
    if (call->kind == TDM_CALL_ALL_REDUCE || !kept)
        places[count++] = window_result_of(request, r, rank);
    tdm__program_tree(p, &request->plan, sources, places, count, piece.count, kept && s->stream);
}

/* Copies the others' data for this rank of round `r`. */
static void window_collect(tdm__program *p, size_t r)
{
    const tdm_request *request = p->request;
    const tdm_call *call = &request->call;
    const window_call *s = request->algorithm_data;
    int size = request->group->size, rank = request->group->rank;
    uint8_t *out = call->out;
    tdm_extent mine = tdm__call_slice(call, size, rank);
    bool root = rank == call->root;
    if (call->kind == TDM_CALL_REDUCE_SCATTER) return;
    if ((call->kind == TDM_CALL_REDUCE || call->kind == TDM_CALL_GATHER) && !root) return;
    for (int k = 0; k < size; k++) {
        int m = (rank + k) % size; /* not all from the same member at the same time */
        tdm_extent piece = window_piece_of(request, r, m), own = window_piece_of(request, r, rank);
        const uint8_t *from = NULL;
        size_t first = piece.first, count = piece.count;
        switch (call->kind) {
        case TDM_CALL_ALL_REDUCE:
        case TDM_CALL_REDUCE:
            if (m != rank) from = window_result_of(request, r, m);
            break;
        case TDM_CALL_BROADCAST:
            from = m != rank ? window_staging(request, r, m, 0, 0)
                             : (const uint8_t *)call->in + first * s->width;
            break;
        case TDM_CALL_ALL_GATHER:
        case TDM_CALL_GATHER:
            from = m != rank ? window_staging(request, r, m, 0, 0)
                             : (const uint8_t *)call->in + (first - mine.first) * s->width;
            break;
        default: /* scatter and all_to_all: this rank's piece of the data of `m` */
            if (call->kind == TDM_CALL_SCATTER && m != call->root) break;
            from = m != rank ? window_staging(request, r, m, 0, rank)
                             : (const uint8_t *)call->in + own.first * s->width;
            first = own.first - mine.first;
            if (call->kind == TDM_CALL_ALL_TO_ALL) first += (size_t)m * mine.count;
            count = own.count;
            break;
        }
        if (from) tdm__program_copy(p, out + first * s->width, from, count * s->width, s->stream);
    }
}

/* ---- staged: rounds --------------------------------------------------------------------------- */

static void window_next_rounds(tdm_request *request, int segment);

static void window_write_rounds(tdm__program *p)
{
    window_call *s = p->request->algorithm_data;
    for (int i = 0; i < BATCH_ROUNDS && s->next_round < s->rounds; i++) {
        size_t r = s->next_round++;
        bool last = r + 1 == s->rounds;
        tdm__program_await(p, -1, s->base + (uint32_t)r);
        if (tdm__kind_reduces(p->request->call.kind)) window_add(p, r);
        if (!s->late) window_collect(p, r);
        if (s->late && r > 0) window_collect(p, r - 1);
        if (!last) window_stage(p, r + 1);
        if (!last || s->late) tdm__program_post(p, s->base + (uint32_t)r + 1);
    }
    if (s->next_round < s->rounds) {
        tdm__program_call(p, window_next_rounds);
    } else if (s->late) {
        tdm__program_await(p, -1, s->base + (uint32_t)s->rounds);
        window_collect(p, s->rounds - 1);
    }
}

/* The last instruction of the program so far: restarts the program with the next rounds. */
static void window_next_rounds(tdm_request *request, int segment)
{
    tdm__program *p = &request->programs[segment];
    tdm__program_restart(p);
    window_write_rounds(p);
}

/* ---- the program ------------------------------------------------------------------------------ */

/* All have posted, so all know the location of all buffers: selects the method. */
static void window_choose_method(tdm_request *request, int segment)
{
    tdm__program *p = &request->programs[segment];
    window_call *s = request->algorithm_data;
    if (window_can_go_direct(request)) {
        window_write_direct(p);
        return;
    }
    s->base = 1;
    for (int m = 0; m < request->group->size; m++)
        if (window_shares_input(request, m)) s->base = 2;
    if (s->base == 2) {
        if (window_shares_input(request, request->group->rank)) window_stage(p, 0);
        tdm__program_post(p, 2);
    }
    window_write_rounds(p);
}

/* An all_to_all in place works on a copy: received blocks overwrite blocks that are yet to be
 * sent. */
static bool window_copy_input(tdm_request *request)
{
    tdm_call *call = &request->call;
    const window_call *s = request->algorithm_data;
    if (call->kind != TDM_CALL_ALL_TO_ALL || call->in != call->out) return true;
    size_t bytes = call->count * s->width;
    free(request->copy);
    request->copy = malloc(bytes);
    if (!request->copy) return false;
    memcpy(request->copy, call->in, bytes);
    call->in = request->copy;
    return true;
}

static void window_describe(tdm_request *request, int segment)
{
    tdm__program *p = &request->programs[segment];
    if (!window_copy_input(request)) {
        p->no_memory = true;
        return;
    }
    window_publish(request);
    /* A member whose input cannot be read in place stages the first round before it posts. */
    if (!window_shares_input(request, request->group->rank)) window_stage(p, 0);
    tdm__program_post(p, 1);
    tdm__program_await(p, -1, 1);
    tdm__program_call(p, window_choose_method);
}

static bool window_fits(const tdm_group *group, const tdm_call *call)
{
    const tdm__window *w = group->window;
    if (!w || w->local_count != group->size) return false;
    if (call->kind < TDM_CALL_BARRIER || call->kind > TDM_CALL_ALL_TO_ALL) return false;
    if (tdm__window_is_small(group, call)) return true;
    size_t pieces = (size_t)tdm__window_max_parts(group, call) * (size_t)group->size + 1;
    return w->stage_bytes / pieces >= LINE;
}

static tdm__cut window_cut(const tdm_group *group, const tdm_call *call)
{
    return (tdm__cut){.segment = tdm__call_span(call, group->size), .flight = 1};
}

static void window_build(tdm__program *program, size_t first, size_t count)
{
    (void)first;
    (void)count;
    tdm_request *request = program->request;
    const tdm_call *call = &request->call;
    if (tdm__window_is_small(request->group, call)) {
        tdm__window_build_small(program);
        return;
    }
    window_call *s = calloc(1, sizeof(*s));
    if (!s) {
        program->no_memory = true;
        return;
    }
    free(request->algorithm_data);
    request->algorithm_data = s;
    s->width = tdm_dtype_bytes(call->dtype);
    s->max_parts = tdm__window_max_parts(request->group, call);
    s->late = call->kind == TDM_CALL_ALL_REDUCE || call->kind == TDM_CALL_REDUCE;
    /* In place, the cache lines of the results have just been read and are still in the cache. */
    s->stream = call->count * s->width >= STREAM_BYTES && call->in != call->out;
    window_cut_rounds(request, s);
    tdm__program_await(program, -1, 0);
    tdm__program_call(program, window_describe);
}

const tdm__algorithm_ops tdm__algorithm_window = {
    .id = TDM_ALGORITHM_WINDOW,
    .window = true,
    .about = "through shared memory of all members, on one host",
    .fits = window_fits,
    .cut = window_cut,
    .build = window_build,
};
