/*
 * memory.c: lifetimes, sharing and placement of buffers.
 *
 *  1. Every value gets a storage; a reshape shares its input's. A parameter's gradient is in the
 *     block of gradients, parameters are in theirs, everything else is in the arena.
 *  2. The last use of each storage is found; outputs live past the end, inputs from before the start.
 *  3. In node order, an op that may work in place reuses the storage of an input that is not needed
 *     afterwards; an op that does not work index by index only if no other input is stored there. If
 *     its result is a parameter's gradient, it is the other way round: the input is computed in the
 *     block of gradients.
 *  4. Arena storages are placed largest first, each at the lowest offset that does not overlap a
 *     storage with an overlapping lifetime. This greedy rule is within a few per cent of the optimum
 *     for such graphs.
 */
#include "graph/memory.h"
#include "base/base.h"

#include <stdlib.h>

enum { ALIGN_BYTES = 64 };

static size_t value_bytes(const tdm__value *v)
{
    size_t bytes = (size_t)tdm_shape_elements(&v->shape) * tdm_dtype_bytes(v->dtype);
    return bytes ? bytes : 1;
}

static int32_t add_storage(tdm__memory *m, tdm__storage storage)
{
    m->storages[m->storage_count] = storage;
    return (int32_t)m->storage_count++;
}

static void give_value_storage(const tdm_graph *graph, tdm__memory *m, int32_t id, int32_t first,
                               bool forward_only)
{
    const tdm__value *v = &graph->values[id];
    tdm__storage s = {
        .space = TDM_SPACE_ARENA, .bytes = value_bytes(v), .first = first, .last = first};
    if (v->role == TDM__ROLE_PARAM) {
        s.space = TDM_SPACE_PARAMS;
        s.offset = graph->params[v->param].offset * sizeof(float);
    } else if (v->grad_of != 0 && !forward_only) {
        s.space = TDM_SPACE_GRADS;
        s.offset = graph->params[v->grad_of - 1].offset * sizeof(float);
    }
    if (v->is_output) s.last = INT32_MAX;
    m->of_value[id] = add_storage(m, s);
}

static void storage_touch(tdm__memory *m, int32_t value, int32_t node)
{
    tdm__storage *s = &m->storages[m->of_value[value]];
    if (s->last < node) s->last = node;
}

static void find_life_times(const tdm_graph *graph, const bool *live, bool forward_only,
                            tdm__memory *m)
{
    for (size_t id = 1; id < graph->value_count; id++)
        if (graph->values[id].role != TDM__ROLE_COMPUTED)
            give_value_storage(graph, m, (int32_t)id, -1, forward_only);
    for (size_t n = 0; n < graph->node_count; n++) {
        if (!live[n]) continue;
        const tdm__node *node = &graph->nodes[n];
        for (int i = 0; i < TDM_OP_MAX_INPUTS; i++)
            if (node->in[i]) storage_touch(m, node->in[i], (int32_t)n);
        if (node->op == TDM_OP_RESHAPE) {
            m->of_value[node->out[0]] = m->of_value[node->in[0]];
            if (graph->values[node->out[0]].is_output) storage_touch(m, node->out[0], INT32_MAX);
            continue;
        }
        for (int o = 0; o < TDM_OP_MAX_OUTPUTS; o++)
            if (node->out[o]) give_value_storage(graph, m, node->out[o], (int32_t)n, forward_only);
    }
}

/* Moves all values of storage `gone` to storage `kept`. */
static void storage_merge(const tdm_graph *graph, tdm__memory *m, int32_t gone, int32_t kept)
{
    m->storages[gone].bytes = 0;
    for (size_t id = 1; id < graph->value_count; id++)
        if (m->of_value[id] == gone) m->of_value[id] = kept;
}

/* Stores the output of node `n` over its input. A gradient stays in the block of gradients, and the
 * input, unless it is an input of the graph, is computed there. */
static bool storage_share(const tdm_graph *graph, tdm__memory *m, int32_t n, int32_t in_id,
                          int32_t out_id)
{
    int32_t in_at = m->of_value[in_id], out_at = m->of_value[out_id];
    tdm__storage *in = &m->storages[in_at], *out = &m->storages[out_at];
    if (in->space != TDM_SPACE_ARENA || in->last != n || in->bytes != out->bytes) return false;
    if (out->space == TDM_SPACE_ARENA) {
        in->last = out->last;
        storage_merge(graph, m, out_at, in_at);
        return true;
    }
    if (out->space != TDM_SPACE_GRADS || in->first < 0) return false;
    out->first = in->first;
    storage_merge(graph, m, in_at, out_at);
    return true;
}

/* Whether another input of the node shares the storage of input `i`: the same value, or a view of
 * it. */
static bool has_company(const tdm__memory *m, const tdm__node *node, int i)
{
    for (int k = 0; k < TDM_OP_MAX_INPUTS; k++)
        if (k != i && node->in[k] && m->of_value[node->in[k]] == m->of_value[node->in[i]])
            return true;
    return false;
}

static bool may_lie_over(const tdm__memory *m, const tdm__op_row *row, const tdm__node *node, int i)
{
    if (!(row->in_place >> i & 1) || !node->in[i]) return false;
    return !(row->in_place & TDM__OVER_ALONE) || !has_company(m, node, i);
}

static void share_in_place(const tdm_graph *graph, const bool *live, tdm__memory *m)
{
    for (size_t n = 0; n < graph->node_count; n++) {
        const tdm__node *node = &graph->nodes[n];
        const tdm__op_row *row = tdm__op_row_of(node->op);
        if (!live[n] || !row->in_place) continue;
        int32_t out_id = node->out[row->in_place_out];
        for (int i = 0; i < TDM_OP_MAX_INPUTS && !m->in_place[n]; i++)
            if (may_lie_over(m, row, node, i))
                m->in_place[n] = storage_share(graph, m, (int32_t)n, node->in[i], out_id);
    }
}

static void add_scratch(const tdm_graph *graph, const bool *live, const size_t *scratch_bytes,
                        tdm__memory *m)
{
    for (size_t n = 0; n < graph->node_count; n++)
        if (live[n] && scratch_bytes[n] > 0)
            m->of_scratch[n] = add_storage(m, (tdm__storage){.space = TDM_SPACE_ARENA,
                                                             .bytes = scratch_bytes[n],
                                                             .first = (int32_t)n,
                                                             .last = (int32_t)n});
}

/* The size of the arena without sharing. It bounds all offsets, so overflow is checked here. */
static tdm_status count_unshared(tdm__memory *m, tdm_error *err)
{
    for (size_t i = 0; i < m->storage_count; i++)
        if (m->storages[i].space == TDM_SPACE_ARENA &&
            __builtin_add_overflow(m->unshared_bytes,
                                   tdm_align_up(m->storages[i].bytes, ALIGN_BYTES),
                                   &m->unshared_bytes))
            return tdm_fail(err, TDM_ERR_RANGE,
                            "plan: the values exceed the address space; make the model or the "
                            "batch smaller");
    return TDM_OK;
}

static int larger_first(const void *a, const void *b, void *context)
{
    const tdm__storage *s = context;
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (s[x].bytes != s[y].bytes) return s[x].bytes < s[y].bytes ? 1 : -1;
    return (x > y) - (x < y);
}

static bool overlap_in_time(const tdm__storage *a, const tdm__storage *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* The lowest offset for `s` that overlaps no placed storage; `placed` is sorted by offset. */
static size_t lowest_fit(const tdm__storage *all, const int32_t *placed, size_t placed_count,
                         const tdm__storage *s)
{
    size_t offset = 0;
    for (size_t i = 0; i < placed_count; i++) {
        const tdm__storage *other = &all[placed[i]];
        if (!overlap_in_time(other, s)) continue;
        if (other->offset >= offset + tdm_align_up(s->bytes, ALIGN_BYTES)) break;
        size_t end = other->offset + tdm_align_up(other->bytes, ALIGN_BYTES);
        if (end > offset) offset = end;
    }
    return offset;
}

static tdm_status storage_place(tdm__memory *m, tdm_error *err)
{
    int32_t *order = calloc(2 * m->storage_count + 1, sizeof(*order));
    if (!order) return tdm_fail_oom(err, "for the plan");
    int32_t *placed = order + m->storage_count;
    size_t count = 0;
    for (size_t i = 0; i < m->storage_count; i++)
        if (m->storages[i].space == TDM_SPACE_ARENA && m->storages[i].bytes > 0)
            order[count++] = (int32_t)i;
    qsort_r(order, count, sizeof(*order), larger_first, m->storages);
    for (size_t i = 0; i < count; i++) {
        tdm__storage *s = &m->storages[order[i]];
        s->offset = lowest_fit(m->storages, placed, i, s);
        size_t at = i;
        for (; at > 0 && m->storages[placed[at - 1]].offset > s->offset; at--)
            placed[at] = placed[at - 1];
        placed[at] = order[i];
        size_t end = s->offset + tdm_align_up(s->bytes, ALIGN_BYTES);
        if (end > m->arena_bytes) m->arena_bytes = end;
    }
    free(order);
    return TDM_OK;
}

tdm_status tdm__memory_plan(const tdm_graph *graph, const bool *live, const size_t *scratch_bytes,
                            bool forward_only, tdm__memory *out, tdm_error *err)
{
    tdm__memory m = {0};
    m.storages = calloc(graph->value_count + graph->node_count, sizeof(*m.storages));
    m.of_value = malloc(graph->value_count * sizeof(*m.of_value));
    m.of_scratch = malloc((graph->node_count + 1) * sizeof(*m.of_scratch));
    m.in_place = calloc(graph->node_count + 1, sizeof(*m.in_place));
    if (!m.storages || !m.of_value || !m.of_scratch || !m.in_place) {
        tdm__memory_release(&m);
        return tdm_fail_oom(err, "for the plan");
    }
    for (size_t i = 0; i < graph->value_count; i++) m.of_value[i] = -1;
    for (size_t i = 0; i < graph->node_count; i++) m.of_scratch[i] = -1;
    find_life_times(graph, live, forward_only, &m);
    add_scratch(graph, live, scratch_bytes, &m);
    tdm_status status = count_unshared(&m, err);
    if (status == TDM_OK) {
        share_in_place(graph, live, &m);
        status = storage_place(&m, err);
    }
    if (status != TDM_OK) {
        tdm__memory_release(&m);
        return status;
    }
    *out = m;
    return TDM_OK;
}

void tdm__memory_release(tdm__memory *memory)
{
    free(memory->storages);
    free(memory->of_value);
    free(memory->of_scratch);
    free(memory->in_place);
    *memory = (tdm__memory){0};
}
