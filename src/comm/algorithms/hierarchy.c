/*
 * hierarchy.c: within hosts through their windows, between hosts by messages.
 *
 * Every byte is sent between two hosts once, and all members of a host share that work. For sums
 * and broadcasts the data are divided into m slices, m being the number of members of the smallest
 * host; member j of every host (j < m) owns slice j there: the owners of one slice are a rail. For
 * kinds that have slices, rank q of another host is served by member (q's index on its host) modulo
 * the number of members here. Sums are canonical: host sums are sent between hosts (host_sums.h),
 * one for each host if its ranks have a complete subtree of the lanes.
 *
 * H hosts of L members, P ranks in total, n bytes, one host sum for each host. Sequential steps
 * between hosts, bytes that leave a host, and bytes that a member stages for its neighbours:
 *
 *                          steps      out of a host             staged by a member
 *   barrier                log2 H         0                         0
 *   broadcast                1      n (H - 1)  (root's host)     n (root)
 *   reduce                   1      n      (all but root's)      n (and n / m of results)
 *   all_reduce  H = 2, small 1      n (H - 1)                    n, and n / m of results
 *               else         2      2n (H - 1) / H               the same
 *   reduce_scatter           1      n (H - 1) / H                n
 *   all_gather               1      n (H - 1) / H                n / P, and its share of the others'
 *
 * A host with k host sums sends k times as much where sums are sent. Gather, scatter and all_to_all
 * use messages between ranks.
 *
 * A call runs in rounds, like a staged one within a host (window.c). Round r: all have staged r;
 * sum and start the messages of r; collect the results of r - 1; stage r + 1 and post it; join the
 * messages; finish the sums of r and post it. So the network is busy while memory is copied.
 * Invariants:
 *  1. Data staged for r is read before its reader posts "finished r", and its memory is reused for r + 2
 *     only after all have posted that.
 *  2. Results of r are read before their reader posts "staged r + 2", and are overwritten by those of
 *     r + 2 only after all have posted that.
 */
#include "comm/algorithm.h"
#include "comm/algorithms/build.h"
#include "comm/algorithms/host_sums.h"
#include "comm/group.h"
#include "comm/lanes.h"
#include "comm/program.h"
#include "comm/request.h"
#include "comm/window.h"

#include <stdlib.h>
#include <string.h>

enum {
    LINE = 64,
    SLICE_BYTES = 256 << 10, /* maximum of a round's slices */
    SMALL_BYTES = 64 << 10,  /* maximum of an all_reduce whose owners send everything to each
                              * other */
    BATCH_ROUNDS = 16
};

typedef struct hierarchy_call {
    size_t width; /* bytes of an element */
    size_t slice; /* elements of a slice of a round */
    size_t rounds, next_round;
    int host;        /* this rank's host within the group */
    int local;       /* its index there */
    int rails;       /* number of slices of sums and broadcasts */
    int max_parts;   /* maximum of all ranks */
    int slots;       /* slices that are staged for each part */
    bool one_step;   /* all_reduce */
    uint8_t *buffer; /* sums to send: [host sum][slice], then those computed for other hosts */
    tdm__host_sums sums;
} hierarchy_call;

/* ---- members and slices ----------------------------------------------------------------------- */

static int hierarchy_host_members(const tdm_group *group, int host)
{
    return group->host_size[host];
}

static int hierarchy_smallest_host(const tdm_group *group)
{
    int min = group->size;
    for (int h = 0; h < group->host_count; h++)
        if (hierarchy_host_members(group, h) < min) min = hierarchy_host_members(group, h);
    return min;
}

/* The rank in the group of member `local` of a host. */
static int hierarchy_member_of(const tdm_group *group, int host, int local)
{
    for (int i = 0; i < group->size; i++)
        if (group->host_of[i] == host && group->local_of[i] == local) return i;
    return -1;
}

/* The member of `host` that serves rank `q` of another host. */
static int hierarchy_helper_of(const tdm_group *group, int host, int q)
{
    return group->local_of[q] % hierarchy_host_members(group, host);
}

/* Slice `index` of round `r`: a rail's, or a rank's for kinds that have slices. */
static tdm_extent hierarchy_slice_of(const tdm_request *request, size_t r, int index)
{
    const hierarchy_call *s = request->algorithm_data;
    const tdm_call *call = &request->call;
    if (tdm__kind_has_slices(call->kind)) {
        tdm_extent whole = tdm__call_slice(call, request->group->size, index);
        size_t hierarchy_begin = r * s->slice;
        if (hierarchy_begin > whole.count) hierarchy_begin = whole.count;
        size_t left = whole.count - hierarchy_begin;
        return (tdm_extent){.first = whole.first + hierarchy_begin,
                            .count = left < s->slice ? left : s->slice};
    }
    size_t hierarchy_begin = r * s->slice * (size_t)s->rails;
    size_t left = call->count - hierarchy_begin;
    size_t all = left < s->slice * (size_t)s->rails ? left : s->slice * (size_t)s->rails;
    tdm_extent slice = tdm_group_slice(all, s->rails, index);
    return (tdm_extent){.first = hierarchy_begin + slice.first, .count = slice.count};
}

/* The staging of member `local` of this host: slices by part, then results. */
static uint8_t *hierarchy_staging(const tdm_request *request, size_t r, int local, int part,
                                  int index)
{
    const hierarchy_call *s = request->algorithm_data;
    uint8_t *at = tdm__window_staging(request->group->window, request->head.sequence,
                                      (int)(r % TDM__WINDOW_FLIGHT), local);
    return at + ((size_t)part * (size_t)s->slots + (size_t)index) * s->slice * s->width;
}

static uint8_t *hierarchy_result_of(const tdm_request *request, size_t r, int local, int index)
{
    const hierarchy_call *s = request->algorithm_data;
    return hierarchy_staging(request, r, local, s->max_parts, index);
}

static uint8_t *hierarchy_out_at(const tdm_request *request, size_t element)
{
    const hierarchy_call *s = request->algorithm_data;
    return (uint8_t *)request->call.out + element * s->width;
}

/* The first element of this rank's output for kinds that return slices, in elements of the
 * whole. */
static size_t hierarchy_own_first(const tdm_request *request)
{
    return tdm__call_slice(&request->call, request->group->size, request->group->rank).first;
}

static uint32_t hierarchy_step_of(const tdm_request *request, size_t r, int index)
{
    const hierarchy_call *s = request->algorithm_data;
    return (uint32_t)r * (uint32_t)(s->sums.count + 1) + (uint32_t)index;
}

/* Sends unless the message is empty. */
static void hierarchy_send(tdm__program *p, int peer, uint32_t step, const void *from, size_t count)
{
    const hierarchy_call *s = p->request->algorithm_data;
    if (count) tdm__program_send(p, peer, step, from, count * s->width);
}

static void hierarchy_recv(tdm__program *p, int peer, uint32_t step, void *to, size_t count)
{
    const hierarchy_call *s = p->request->algorithm_data;
    if (count) tdm__program_recv(p, peer, step, to, count * s->width);
}

/* ---- sums ------------------------------------------------------------------------------------- */

static uint8_t *hierarchy_sum_buffer(const hierarchy_call *s, int sum)
{
    return s->buffer + (size_t)sum * s->slice * s->width;
}

/* Computes this host's sum `sum` of a slice, and returns its address: a single leaf is not
 * copied. */
static const uint8_t *hierarchy_make_sum(tdm__program *p, size_t r, int index, int sum, void *to)
{
    const tdm_request *request = p->request;
    const hierarchy_call *s = request->algorithm_data;
    const tdm_group *group = request->group;
    const tdm__host_sum *about = &s->sums.list[sum];
    tdm_extent slice = hierarchy_slice_of(request, r, index);
    int count = about->last - about->first;
    const void **sources = tdm__program_scratch(p, (size_t)count * sizeof(*sources));
    if (!sources) return to;
    int found = 0;
    for (int m = 0; m < group->size; m++)
        for (int leaf = request->leaves.first[m]; leaf < request->leaves.first[m + 1]; leaf++) {
            if (leaf < about->first || leaf >= about->last) continue;
            int part = leaf - request->leaves.first[m];
            sources[found++] = m == group->rank
                                   ? tdm__call_part(&request->call, part) + slice.first * s->width
                                   : hierarchy_staging(request, r, group->local_of[m], part, index);
        }
    if (count == 1) return sources[0];
    tdm__program_tree(p, &about->plan, sources, &to, 1, slice.count, 0);
    return to;
}

/* Adds the sums of all hosts, `count` elements at `sources`, into these destinations. */
static void hierarchy_add_hosts(tdm__program *p, const void *const *sources, void *const *places,
                                int place_count, size_t count)
{
    const hierarchy_call *s = p->request->algorithm_data;
    tdm__program_tree(p, &s->sums.plan, sources, places, place_count, count, 0);
}

/* The addresses of this host's sums of a slice, and of the buffers for the others'. NULL: out of
 * memory. */
static const void **hierarchy_make_sums(tdm__program *p, size_t r, int index)
{
    const hierarchy_call *s = p->request->algorithm_data;
    const void **at = tdm__program_scratch(p, (size_t)s->sums.count * sizeof(*at));
    for (int i = 0; at && i < s->sums.count; i++)
        at[i] = s->sums.list[i].host == s->host
                    ? hierarchy_make_sum(p, r, index, i, hierarchy_sum_buffer(s, i))
                    : hierarchy_sum_buffer(s, i);
    return at;
}

/* ---- reduce and all_reduce -------------------------------------------------------------------- */

/* Host h's share of a slice, if the owners share the addition. */
static tdm_extent hierarchy_share_of(const tdm_request *request, size_t r, int host)
{
    const hierarchy_call *s = request->algorithm_data;
    tdm_extent slice = hierarchy_slice_of(request, r, s->local);
    if (s->one_step) return (tdm_extent){.first = 0, .count = slice.count};
    return tdm_group_slice(slice.count, request->group->host_count, host);
}

static bool hierarchy_is_owner(const hierarchy_call *s)
{
    return s->local < s->rails;
}

static int hierarchy_root_host(const tdm_request *request)
{
    return request->group->host_of[request->call.root];
}

/* Sends this host's sums of the peers' shares along the rail, and starts to receive theirs of ours.
 * Returns the addresses of all sums of our share, for finish_sums(). */
static const void **hierarchy_exchange_sums(tdm__program *p, size_t r)
{
    const tdm_request *request = p->request;
    const hierarchy_call *s = request->algorithm_data;
    const tdm_group *group = request->group;
    bool to_root = request->call.kind == TDM_CALL_REDUCE;
    const void **at = hierarchy_make_sums(p, r, s->local);
    if (!at) return NULL;
    tdm_extent own = hierarchy_share_of(request, r, s->host);
    for (int k = 1; k < group->host_count; k++) {
        int host = (s->host + k) % group->host_count; /* each starts with a different host */
        int peer = hierarchy_member_of(group, host, s->local);
        tdm_extent theirs = hierarchy_share_of(request, r, host);
        for (int i = 0; i < s->sums.count; i++) {
            const uint8_t *sum = at[i];
            if (s->sums.list[i].host == s->host &&
                (!to_root || host == hierarchy_root_host(request)))
                hierarchy_send(p, peer, hierarchy_step_of(request, r, i),
                               sum + theirs.first * s->width, theirs.count);
            if (s->sums.list[i].host == host &&
                (!to_root || s->host == hierarchy_root_host(request)))
                hierarchy_recv(p, peer, hierarchy_step_of(request, r, i),
                               hierarchy_sum_buffer(s, i), own.count);
        }
    }
    /* The others' sums are at the start of their buffers; ours cover the whole slice. */
    for (int i = 0; i < s->sums.count; i++)
        if (s->sums.list[i].host == s->host) at[i] = (const uint8_t *)at[i] + own.first * s->width;
    return at;
}

/* After the messages of exchange_sums were joined: adds our share, and sends results along the
 * rail. */
static void hierarchy_finish_sums(tdm__program *p, size_t r, const void *const *at)
{
    const tdm_request *request = p->request;
    const hierarchy_call *s = request->algorithm_data;
    const tdm_group *group = request->group;
    bool to_root = request->call.kind == TDM_CALL_REDUCE;
    if (to_root && s->host != hierarchy_root_host(request)) return;

    tdm_extent slice = hierarchy_slice_of(request, r, s->local);
    tdm_extent own = hierarchy_share_of(request, r, s->host);
    uint8_t *result = hierarchy_result_of(request, r, s->local, 0);
    bool keeps = !to_root || group->rank == request->call.root;
    uint8_t *out = keeps ? hierarchy_out_at(request, slice.first) : NULL;
    void *places[2] = {result + own.first * s->width};
    if (keeps) places[1] = out + own.first * s->width;
    hierarchy_add_hosts(p, at, places, keeps ? 2 : 1, own.count);

    if (to_root || s->one_step) return;
    for (int k = 1; k < group->host_count; k++) {
        int host = (s->host + k) % group->host_count;
        int peer = hierarchy_member_of(group, host, s->local);
        tdm_extent theirs = hierarchy_share_of(request, r, host);
        uint32_t step = hierarchy_step_of(request, r, s->sums.count);
        hierarchy_send(p, peer, step, places[0], own.count);
        hierarchy_recv(p, peer, step, result + theirs.first * s->width, theirs.count);
    }

    tdm__program_join(p);
    for (int host = 0; host < group->host_count; host++) {
        tdm_extent theirs = hierarchy_share_of(request, r, host);
        if (host != s->host)
            tdm__program_copy(p, out + theirs.first * s->width, result + theirs.first * s->width,
                              theirs.count * s->width, false);
    }
}

/* ---- steps of a round ------------------------------------------------------------------------- */

/* The member of this host that reads slice `index` of its neighbours' input to a sum. */
static int hierarchy_reader_of(const tdm_request *request, int index)
{
    const hierarchy_call *s = request->algorithm_data;
    const tdm_group *group = request->group;
    if (request->call.kind != TDM_CALL_REDUCE_SCATTER) return index;
    return group->host_of[index] == s->host ? group->local_of[index]
                                            : hierarchy_helper_of(group, s->host, index);
}

/* Stages the data that neighbours need of this rank in round `r`. */
static void hierarchy_stage(tdm__program *p, size_t r)
{
    const tdm_request *request = p->request;
    const tdm_call *call = &request->call;
    const hierarchy_call *s = request->algorithm_data;
    int rank = request->group->rank;
    if (call->kind == TDM_CALL_BROADCAST && rank != call->root) return;
    if (call->kind == TDM_CALL_ALL_GATHER) {
        tdm_extent own = hierarchy_slice_of(request, r, rank);
        const uint8_t *in = call->in;
        tdm__program_copy(p, hierarchy_staging(request, r, s->local, 0, 0),
                          in + (own.first - hierarchy_own_first(request)) * s->width,
                          own.count * s->width, false);
        return;
    }
    bool sums = tdm__kind_reduces(call->kind);
    int parts = sums ? request->leaves.first[rank + 1] - request->leaves.first[rank] : 1;
    for (int i = 0; i < parts; i++)
        for (int k = 0; k < s->slots; k++) {
            if (sums && hierarchy_reader_of(request, k) == s->local) continue;
            tdm_extent slice = hierarchy_slice_of(request, r, k);
            const uint8_t *from = sums ? tdm__call_part(call, i) : call->in;
            tdm__program_copy(p, hierarchy_staging(request, r, s->local, i, k),
                              from + slice.first * s->width, slice.count * s->width, false);
        }
}

static void hierarchy_begin_broadcast(tdm__program *p, size_t r)
{
    const tdm_request *request = p->request;
    const hierarchy_call *s = request->algorithm_data;
    const tdm_group *group = request->group;
    bool root = group->rank == request->call.root;
    int from = group->local_of[request->call.root];
    tdm_extent own = hierarchy_slice_of(request, r, hierarchy_is_owner(s) ? s->local : 0);
    if (s->host != hierarchy_root_host(request)) {
        if (hierarchy_is_owner(s))
            hierarchy_recv(p, hierarchy_member_of(group, hierarchy_root_host(request), s->local),
                           hierarchy_step_of(request, r, 0),
                           hierarchy_result_of(request, r, s->local, 0), own.count);
        return;
    }
    for (int host = 0; hierarchy_is_owner(s) && host < group->host_count; host++)
        if (host != s->host)
            hierarchy_send(p, hierarchy_member_of(group, host, s->local),
                           hierarchy_step_of(request, r, 0),
                           hierarchy_staging(request, r, from, 0, s->local), own.count);
    for (int k = 0; k < s->rails; k++) {
        tdm_extent slice = hierarchy_slice_of(request, r, k);
        const uint8_t *data = root ? (const uint8_t *)request->call.in + slice.first * s->width
                                   : hierarchy_staging(request, r, from, 0, k);
        tdm__program_copy(p, hierarchy_out_at(request, slice.first), data, slice.count * s->width,
                          false);
    }
}

static void hierarchy_begin_all_gather(tdm__program *p, size_t r)
{
    const tdm_request *request = p->request;
    const hierarchy_call *s = request->algorithm_data;
    const tdm_group *group = request->group;
    tdm_extent own = hierarchy_slice_of(request, r, group->rank);
    const uint8_t *in = (const uint8_t *)request->call.in +
                        (own.first - hierarchy_own_first(request)) * s->width;
    for (int k = 1; k < group->host_count; k++) {
        int host = (s->host + k) % group->host_count;
        hierarchy_send(
            p, hierarchy_member_of(group, host, hierarchy_helper_of(group, host, group->rank)),
            hierarchy_step_of(request, r, 0), in, own.count);
    }
    for (int m = 0; m < group->size; m++) {
        tdm_extent slice = hierarchy_slice_of(request, r, m);
        if (group->host_of[m] == s->host)
            tdm__program_copy(
                p, hierarchy_out_at(request, slice.first),
                m == group->rank ? in : hierarchy_staging(request, r, group->local_of[m], 0, 0),
                slice.count * s->width, false);
        else if (hierarchy_helper_of(group, s->host, m) == s->local)
            hierarchy_recv(p, m, hierarchy_step_of(request, r, 0),
                           hierarchy_result_of(request, r, s->local, m), slice.count);
    }
}

/* Computes the sums for the ranks of other hosts that this one serves, and for itself. */
static const void **hierarchy_begin_reduce_scatter(tdm__program *p, size_t r)
{
    const tdm_request *request = p->request;
    const hierarchy_call *s = request->algorithm_data;
    const tdm_group *group = request->group;
    int made = s->sums.count;
    for (int q = 0; q < group->size; q++) {
        tdm_extent slice = hierarchy_slice_of(request, r, q);
        if (group->host_of[q] == s->host || hierarchy_helper_of(group, s->host, q) != s->local)
            continue;
        for (int i = 0; i < s->sums.count; i++)
            if (s->sums.list[i].host == s->host)
                hierarchy_send(p, q, hierarchy_step_of(request, r, i),
                               hierarchy_make_sum(p, r, q, i, hierarchy_sum_buffer(s, made++)),
                               slice.count);
    }
    const void **at = hierarchy_make_sums(p, r, group->rank);
    tdm_extent own = hierarchy_slice_of(request, r, group->rank);
    for (int i = 0; at && i < s->sums.count; i++) {
        int host = s->sums.list[i].host;
        if (host != s->host)
            hierarchy_recv(
                p, hierarchy_member_of(group, host, hierarchy_helper_of(group, host, group->rank)),
                hierarchy_step_of(request, r, i), hierarchy_sum_buffer(s, i), own.count);
    }
    return at;
}

/* Starts the messages of round `r`. Returns what hierarchy_finish() needs, or NULL. */
static const void **hierarchy_begin(tdm__program *p, size_t r)
{
    const hierarchy_call *s = p->request->algorithm_data;
    switch (p->request->call.kind) {
    case TDM_CALL_BROADCAST: hierarchy_begin_broadcast(p, r); return NULL;
    case TDM_CALL_ALL_GATHER: hierarchy_begin_all_gather(p, r); return NULL;
    case TDM_CALL_REDUCE_SCATTER: return hierarchy_begin_reduce_scatter(p, r);
    default: return hierarchy_is_owner(s) ? hierarchy_exchange_sums(p, r) : NULL;
    }
}

static void hierarchy_finish(tdm__program *p, size_t r, const void *const *at)
{
    const tdm_request *request = p->request;
    if (!at) return;
    if (request->call.kind != TDM_CALL_REDUCE_SCATTER) {
        hierarchy_finish_sums(p, r, at);
        return;
    }
    tdm_extent own = hierarchy_slice_of(request, r, request->group->rank);
    void *out = hierarchy_out_at(request, own.first - hierarchy_own_first(request));
    hierarchy_add_hosts(p, at, &out, 1, own.count);
}

/* Copies the results of round `r` that neighbours have. */
static void hierarchy_collect(tdm__program *p, size_t r)
{
    const tdm_request *request = p->request;
    const tdm_call *call = &request->call;
    const hierarchy_call *s = request->algorithm_data;
    const tdm_group *group = request->group;
    bool here = s->host == hierarchy_root_host(request);
    if (call->kind == TDM_CALL_REDUCE_SCATTER || (call->kind == TDM_CALL_BROADCAST && here)) return;
    if (call->kind == TDM_CALL_REDUCE && group->rank != call->root) return;
    if (call->kind == TDM_CALL_ALL_GATHER) {
        for (int m = 0; m < group->size; m++) {
            tdm_extent slice = hierarchy_slice_of(request, r, m);
            if (group->host_of[m] != s->host)
                tdm__program_copy(
                    p, hierarchy_out_at(request, slice.first),
                    hierarchy_result_of(request, r, hierarchy_helper_of(group, s->host, m), m),
                    slice.count * s->width, false);
        }
        return;
    }
    for (int k = 0; k < s->rails; k++) {
        tdm_extent slice = hierarchy_slice_of(request, r, k);
        if (k != s->local || call->kind == TDM_CALL_BROADCAST)
            tdm__program_copy(p, hierarchy_out_at(request, slice.first),
                              hierarchy_result_of(request, r, k, 0), slice.count * s->width, false);
    }
}

/* ---- rounds ----------------------------------------------------------------------------------- */

/* The values posted when round `r` is staged, and when it is finished: in the order of posting. */
static uint32_t hierarchy_staged_value(size_t r)
{
    return r == 0 ? 1 : 2 * (uint32_t)r;
}

static uint32_t hierarchy_finished_value(size_t r)
{
    return 2 * (uint32_t)r + 3;
}

static void hierarchy_next_rounds(tdm_request *request, int segment);

static void hierarchy_write_rounds(tdm__program *p)
{
    hierarchy_call *s = p->request->algorithm_data;
    for (int i = 0; i < BATCH_ROUNDS && s->next_round < s->rounds; i++) {
        size_t r = s->next_round++;
        tdm__program_await(p, -1, hierarchy_staged_value(r));
        const void **at = hierarchy_begin(p, r);
        if (r > 0) {
            tdm__program_await(p, -1, hierarchy_finished_value(r - 1));
            hierarchy_collect(p, r - 1);
        }
        if (r + 1 < s->rounds) {
            hierarchy_stage(p, r + 1);
            tdm__program_post(p, hierarchy_staged_value(r + 1));
        }
        tdm__program_join(p);
        hierarchy_finish(p, r, at);
        tdm__program_post(p, hierarchy_finished_value(r));
    }
    if (s->next_round < s->rounds) {
        tdm__program_call(p, hierarchy_next_rounds);
    } else if (s->rounds > 0) {
        tdm__program_await(p, -1, hierarchy_finished_value(s->rounds - 1));
        hierarchy_collect(p, s->rounds - 1);
    }
}

static void hierarchy_next_rounds(tdm_request *request, int segment)
{
    tdm__program *p = &request->programs[segment];
    tdm__program_restart(p);
    hierarchy_write_rounds(p);
}

/* Waits for all members of this host; their first members exchange messages in log2 steps; then all
 * continue. */
static void hierarchy_write_barrier(tdm__program *p)
{
    const tdm_request *request = p->request;
    const tdm_group *group = request->group;
    int host = group->host_of[group->rank], hosts = group->host_count;
    tdm__program_await(p, -1, 1);
    uint32_t step = 0;
    for (int far = 1; group->local_of[group->rank] == 0 && far < hosts; far *= 2) {
        tdm__program_send(p, hierarchy_member_of(group, (host + far) % hosts, 0), step, NULL, 0);
        tdm__program_recv(p, hierarchy_member_of(group, (host + hosts - far) % hosts, 0), step,
                          NULL, 0);
        tdm__program_join(p);
        step++;
    }
    tdm__program_post(p, 2);
    tdm__program_await(p, 0, 2);
}

static void hierarchy_describe(tdm_request *request, int segment)
{
    (void)segment;
    const tdm__window *w = request->group->window;
    tdm__cell *cell = tdm__window_cell(w, request->head.sequence, w->local_index);
    cell->in_offset = cell->out_offset = UINT64_MAX;
    tdm__window_describe(request->group, &request->head);
}

/* ---- the call --------------------------------------------------------------------------------- */

static int hierarchy_slots_of(const tdm_group *group, tdm_call_kind kind)
{
    if (kind == TDM_CALL_REDUCE_SCATTER) return group->size;
    return kind == TDM_CALL_ALL_GATHER ? 1 : hierarchy_smallest_host(group);
}

/* The number of slices that results have. */
static int hierarchy_result_slots(const tdm_group *group, tdm_call_kind kind)
{
    return kind == TDM_CALL_ALL_GATHER ? group->size : 1;
}

/* The number of elements of a slice that fit into the staging. */
static size_t hierarchy_room_for(const tdm_group *group, const tdm_call *call)
{
    size_t width = tdm_dtype_bytes(call->dtype);
    size_t pieces = (size_t)tdm__window_max_parts(group, call) *
                        (size_t)hierarchy_slots_of(group, call->kind) +
                    (size_t)hierarchy_result_slots(group, call->kind);
    size_t bytes = group->window->stage_bytes / pieces;
    if (bytes > SLICE_BYTES) bytes = SLICE_BYTES;
    return bytes / LINE * LINE / width;
}

static bool hierarchy_fits(const tdm_group *group, const tdm_call *call)
{
    if (!group->window || group->host_count < 2 || hierarchy_smallest_host(group) < 2) return false;
    switch (call->kind) {
    case TDM_CALL_BARRIER: return true;
    case TDM_CALL_BROADCAST:
    case TDM_CALL_REDUCE:
    case TDM_CALL_ALL_REDUCE:
    case TDM_CALL_REDUCE_SCATTER:
    case TDM_CALL_ALL_GATHER: return hierarchy_room_for(group, call) > 0;
    default: return false;
    }
}

static tdm__cut hierarchy_cut(const tdm_group *group, const tdm_call *call)
{
    return (tdm__cut){.segment = tdm__call_span(call, group->size), .flight = 1};
}

static void hierarchy_cut_rounds(hierarchy_call *s, const tdm_group *group, const tdm_call *call)
{
    size_t line = s->width < LINE ? LINE / s->width : 1;
    size_t room = hierarchy_room_for(group, call);
    size_t rails = (size_t)s->rails;
    size_t whole = tdm__kind_has_slices(call->kind) ? tdm__call_max_slice(call, group->size)
                                                    : (call->count + rails - 1) / rails;
    if (whole == 0) return;
    s->rounds = (whole + room - 1) / room;
    s->slice = ((whole + s->rounds - 1) / s->rounds + line - 1) / line * line;
    if (s->slice > room) s->slice = room;
    s->rounds = (whole + s->slice - 1) / s->slice;
}

/* The number of sums that need memory: those of this rank's slice, and those it computes for
 * others. */
static int hierarchy_sums_at_once(const tdm_request *request)
{
    const hierarchy_call *s = request->algorithm_data;
    const tdm_group *group = request->group;
    int own = 0, served = 0;
    if (request->call.kind != TDM_CALL_REDUCE_SCATTER) return s->sums.count;
    for (int i = 0; i < s->sums.count; i++) own += s->sums.list[i].host == s->host;
    for (int q = 0; q < group->size; q++)
        served += group->host_of[q] != s->host &&
                  hierarchy_helper_of(group, s->host, q) == s->local;
    return s->sums.count + own * served;
}

/* Creates the state of a call and its buffers. False: out of memory. */
static bool hierarchy_make_state(tdm_request *request)
{
    const tdm_group *group = request->group;
    const tdm_call *call = &request->call;
    bool sums = tdm__kind_reduces(call->kind);
    hierarchy_call *s = calloc(1, sizeof(*s) +
                                      (sums ? tdm__host_sums_bytes(request->leaves.count) : 0));
    if (!s) return false;
    free(request->algorithm_data);
    request->algorithm_data = s;
    s->width = tdm_dtype_bytes(call->dtype);
    s->host = group->host_of[group->rank];
    s->local = group->local_of[group->rank];
    s->rails = hierarchy_smallest_host(group);
    s->max_parts = tdm__window_max_parts(group, call);
    s->slots = hierarchy_slots_of(group, call->kind);
    s->one_step = group->host_count == 2 || call->kind == TDM_CALL_REDUCE ||
                  tdm__call_bytes(call) <= SMALL_BYTES;
    hierarchy_cut_rounds(s, group, call);
    if (!sums) return true;
    if (tdm__host_sums_init(&s->sums, group, &request->leaves, &request->plan, s + 1, NULL) !=
        TDM_OK)
        return false;
    free(request->copy);
    request->copy = malloc((size_t)hierarchy_sums_at_once(request) * s->slice * s->width + 1);
    s->buffer = request->copy;
    return s->buffer != NULL;
}

static void hierarchy_build(tdm__program *program, size_t first, size_t count)
{
    (void)first;
    (void)count;
    tdm_request *request = program->request;
    bool barrier = request->call.kind == TDM_CALL_BARRIER;
    if (!barrier && !hierarchy_make_state(request)) {
        program->no_memory = true;
        return;
    }
    const hierarchy_call *s = request->algorithm_data;
    bool empty = !barrier && s->rounds == 0;
    tdm__program_await(program, -1, 0);
    tdm__program_call(program, hierarchy_describe);
    if (!barrier && !empty) hierarchy_stage(program, 0);
    tdm__program_post(program, 1);
    if (barrier)
        hierarchy_write_barrier(program);
    else if (empty)
        tdm__program_await(program, -1, 1);
    else
        hierarchy_write_rounds(program);
}

const tdm__algorithm_ops tdm__algorithm_hierarchy = {
    .id = TDM_ALGORITHM_HIERARCHY,
    .window = true,
    .about = "within hosts through shared memory, between hosts by messages",
    .fits = hierarchy_fits,
    .cut = hierarchy_cut,
    .build = hierarchy_build,
};
