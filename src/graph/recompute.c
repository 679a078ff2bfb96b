/*
 * recompute.c: computes activations again in the backward pass instead of keeping them.
 *
 * The forward ops, in their order, are divided into segments, and adjacent segments form groups.
 * Values passed from one group to another are kept, as all values are without this pass. A value
 * used by another segment of its group is computed again once, when the backward pass reaches the
 * group; one used only within its segment, when it reaches the segment. So there are two levels of
 * copies, and a copy of a node is placed immediately before the first backward node that needs its
 * result, so that the plan can reuse the memory until then. A result that no backward node needs is
 * never computed again.
 *
 * `blocks` makes one segment of each block that the model has marked, and one group of each
 * segment. `full` tries cuts at the marks, and at all positions that only a single value passes,
 * with groups of several sizes. It adds up the values that are alive at the same time for each
 * variant, and selects the one that needs least memory; of variants within 5 % of it, the one with
 * the fewest FLOPs.
 *
 * Invariants: a copy has the attributes of its original (including the address of its random
 * numbers), so its result has the same bits. Outputs of the graph and values in the block of
 * gradients are never copied, so statistics are observed once; nor are sums over lanes, so each is
 * exchanged once. The last segment, whose backward pass follows immediately, is never computed
 * again, nor are the results of the last group that others use.
 */
#include "base/base.h"
#include "graph/internal.h"

#include <stdlib.h>
#include <string.h>

/* How a value that the backward pass needs is kept. */
typedef enum fate { INNER = 0, OF_GROUP = 1, KEPT = 2 } fate;

enum { LEVEL_GROUP = 0, LEVEL_INNER = 1, LEVEL_COUNT = 2, MAX_TRIES = 64 };

/* Peaks within this factor count as equal. */
#define NEARLY 1.05

typedef struct job {
    size_t node;
    int level;
} job;

typedef struct pass {
    tdm_graph *graph;
    size_t forward_count; /* nodes before the first backward one */
    bool *live;           /* by node */
    int32_t *producer;    /* by value: the node, or -1 */
    int32_t *root;        /* by value: the value of whose memory it is a view */
    int32_t *segment;     /* by node */
    fate *fates;          /* by value */
    int32_t *copies[LEVEL_COUNT];
    /* The new list of nodes. Value ids from graph->value_count on are copies. */
    tdm__node *nodes;
    int32_t *source; /* by new node: the node it is a copy of, or itself */
    size_t node_count;
    int32_t *origin; /* by copied value: its original */
    size_t copy_count;
    job *stack;
    int64_t *changes;          /* of the live bytes, by new node */
    int32_t *list_root, *last; /* by value, including copies: as root, and the node that uses it
                                * last */
} pass;

typedef struct way {
    bool by_marks;
    int32_t group_segments;
    uint64_t peak_bytes;
    uint64_t flops;
} way;

/* ---- segments --------------------------------------------------------------------------------- */

static int32_t cut_at_marks(pass *p)
{
    int32_t count = 0;
    for (size_t n = 0; n < p->forward_count; n++) {
        bool begins = n > 0 && p->graph->nodes[n].block != p->graph->nodes[n - 1].block;
        count += begins;
        p->segment[n] = count;
    }
    return count + 1;
}

static bool lasts_anyway(const pass *p, int32_t value)
{
    const tdm__value *v = &p->graph->values[value];
    return v->role != TDM__ROLE_COMPUTED || v->is_output || v->grad_of != 0;
}

/* Cuts wherever at most one value is created before and used after. */
static int32_t cut_at_necks(pass *p)
{
    const tdm_graph *graph = p->graph;
    memset(p->changes, 0, (p->forward_count + 1) * sizeof(*p->changes));
    for (size_t id = 1; id < graph->value_count; id++) p->last[id] = -1;
    for (size_t n = 0; n < p->forward_count; n++)
        for (int i = 0; i < TDM_OP_MAX_INPUTS && p->live[n]; i++)
            p->last[p->root[graph->nodes[n].in[i]]] = (int32_t)n;
    for (size_t id = 1; id < graph->value_count; id++) {
        int32_t made = p->producer[id];
        if (p->root[id] != (int32_t)id || lasts_anyway(p, (int32_t)id) || made < 0 ||
            (size_t)made >= p->forward_count || p->last[id] <= made)
            continue;
        p->changes[made + 1]++; /* it passes the positions before nodes made + 1 to last */
        p->changes[p->last[id] + 1]--;
    }
    int64_t passing = 0;
    int32_t count = 0;
    for (size_t n = 0; n < p->forward_count; n++) {
        passing += p->changes[n];
        bool moves = p->live[n] && graph->nodes[n].op != TDM_OP_RESHAPE;
        count += n > 0 && passing <= 1 && moves;
        p->segment[n] = count;
    }
    return count + 1;
}

/* ---- kept values ------------------------------------------------------------------------------ */

/* Each segment of the last group is a separate group. */
static int32_t group_of(int32_t segment, int32_t segment_count, int32_t group_segments)
{
    int32_t last_group = (segment_count - 1) / group_segments;
    return segment / group_segments < last_group ? segment / group_segments : last_group + segment;
}

static void raise_fate(pass *p, int32_t value, fate min)
{
    fate *f = &p->fates[p->root[value]];
    if (*f < min) *f = min;
}

static void note_use(pass *p, int32_t value, size_t user, int32_t segment_count,
                     int32_t group_segments)
{
    int32_t made = p->producer[p->root[value]];
    if (value == 0 || made < 0) return;
    if (user >= p->forward_count) {
        raise_fate(p, value, KEPT); /* a forward op that was added after the gradients */
        return;
    }
    int32_t from = p->segment[made], to = p->segment[user];
    if (from == to) return;
    bool same_group = group_of(from, segment_count, group_segments) ==
                      group_of(to, segment_count, group_segments);
    raise_fate(p, value, same_group ? OF_GROUP : KEPT);
}

static void decide_fates(pass *p, int32_t segment_count, int32_t group_segments)
{
    const tdm_graph *graph = p->graph;
    for (size_t id = 0; id < graph->value_count; id++) p->fates[id] = INNER;
    for (size_t id = 1; id < graph->value_count; id++) {
        int32_t made = p->producer[id];
        bool is_last = made >= 0 && (size_t)made < p->forward_count &&
                       p->segment[made] == segment_count - 1;
        bool is_sum = made >= 0 && graph->nodes[made].op == TDM_OP_LANE_SUM;
        if (lasts_anyway(p, (int32_t)id) || is_last || is_sum || (size_t)made >= p->forward_count)
            raise_fate(p, (int32_t)id, KEPT);
    }
    for (size_t n = 0; n < graph->node_count; n++)
        for (int i = 0; i < TDM_OP_MAX_INPUTS; i++)
            if (p->live[n] && !graph->nodes[n].backward)
                note_use(p, graph->nodes[n].in[i], n, segment_count, group_segments);
    /* The results of one op are treated alike: the second would otherwise cost the whole op
     * again. */
    for (size_t n = 0; n < p->forward_count; n++) {
        const int32_t *out = graph->nodes[n].out;
        if (out[1] == 0) continue;
        raise_fate(p, out[0], p->fates[p->root[out[1]]]);
        raise_fate(p, out[1], p->fates[p->root[out[0]]]);
    }
    for (size_t id = 1; id < graph->value_count; id++) p->fates[id] = p->fates[p->root[id]];
}

/* ---- copies ----------------------------------------------------------------------------------- */

static int level_of(const pass *p, int32_t value, int level)
{
    return p->fates[value] == OF_GROUP ? LEVEL_GROUP : level;
}

/* The value to use for `value` on a level, or 0 if its copy does not exist yet. */
static int32_t stand_in(const pass *p, int32_t value, int level)
{
    if (value == 0 || p->fates[value] == KEPT) return value;
    return p->copies[level_of(p, value, level)][value];
}

static void append_copy(pass *p, job j)
{
    tdm__node node = p->graph->nodes[j.node];
    node.backward = node.recomputed = true;
    for (int i = 0; i < TDM_OP_MAX_INPUTS; i++) node.in[i] = stand_in(p, node.in[i], j.level);
    for (int o = 0; o < TDM_OP_MAX_OUTPUTS; o++) {
        if (node.out[o] == 0) continue;
        int32_t copy = (int32_t)(p->graph->value_count + p->copy_count);
        p->origin[p->copy_count++] = node.out[o];
        p->copies[j.level][node.out[o]] = copy;
        node.out[o] = copy;
    }
    p->source[p->node_count] = (int32_t)j.node;
    p->nodes[p->node_count++] = node;
}

/* Creates the copy of `value`, and before it all copies that it needs. */
static int32_t pass_recompute(pass *p, int32_t value)
{
    size_t depth = 0;
    int32_t copy = stand_in(p, value, LEVEL_INNER);
    if (value == 0 || copy != 0) return copy;
    p->stack[depth++] = (job){(size_t)p->producer[value], level_of(p, value, LEVEL_INNER)};
    while (depth > 0) {
        job top = p->stack[depth - 1];
        const int32_t *in = p->graph->nodes[top.node].in;
        int waits_for = -1;
        for (int i = 0; i < TDM_OP_MAX_INPUTS && waits_for < 0; i++)
            if (in[i] != 0 && stand_in(p, in[i], top.level) == 0) waits_for = i;
        if (waits_for < 0) {
            append_copy(p, top);
            depth--;
        } else {
            int32_t wanted = in[waits_for];
            p->stack[depth++] = (job){(size_t)p->producer[wanted], level_of(p, wanted, top.level)};
        }
    }
    return stand_in(p, value, LEVEL_INNER);
}

/* Creates the list of nodes with copies. */
static void write_list(pass *p)
{
    const tdm_graph *graph = p->graph;
    p->node_count = p->copy_count = 0;
    for (int k = 0; k < LEVEL_COUNT; k++)
        memset(p->copies[k], 0, graph->value_count * sizeof(*p->copies[k]));
    for (size_t n = 0; n < graph->node_count; n++) {
        tdm__node node = graph->nodes[n];
        for (int i = 0; i < TDM_OP_MAX_INPUTS; i++)
            if (node.backward && p->live[n]) node.in[i] = pass_recompute(p, node.in[i]);
        p->source[p->node_count] = (int32_t)n;
        p->nodes[p->node_count++] = node;
    }
}

/* ---- cost of a variant ------------------------------------------------------------------------ */

static int32_t origin_of(const pass *p, int32_t value)
{
    size_t own = p->graph->value_count;
    return (size_t)value < own ? value : p->origin[(size_t)value - own];
}

static int64_t bytes_of(const pass *p, int32_t value)
{
    const tdm__value *v = &p->graph->values[origin_of(p, value)];
    if (v->role == TDM__ROLE_PARAM || v->grad_of != 0) return 0;
    return tdm_shape_elements(&v->shape) * (int64_t)tdm_dtype_bytes(v->dtype);
}

/* The maximum of the bytes of values that are alive at the same time, each with its own memory. */
static uint64_t peak_of(pass *p)
{
    size_t values = p->graph->value_count + p->copy_count;
    int32_t *root = p->list_root;
    memset(p->changes, 0, (p->node_count + 1) * sizeof(*p->changes));

    for (size_t id = 0; id < values; id++) {
        root[id] = (int32_t)id;
        p->last[id] = -1;
    }

    for (size_t n = 0; n < p->node_count; n++) {
        const tdm__node *node = &p->nodes[n];
        if (!p->live[p->source[n]]) continue;
        if (node->op == TDM_OP_RESHAPE) root[node->out[0]] = root[node->in[0]];
        for (int i = 0; i < TDM_OP_MAX_INPUTS; i++) p->last[root[node->in[i]]] = (int32_t)n;
        for (int o = 0; o < TDM_OP_MAX_OUTPUTS && node->op != TDM_OP_RESHAPE; o++) {
            p->changes[n] += node->out[o] ? bytes_of(p, node->out[o]) : 0;
            if (node->out[o]) p->last[node->out[o]] = (int32_t)n;
        }
    }

    for (size_t id = 1; id < values; id++) {
        bool is_output = id < p->graph->value_count && p->graph->values[id].is_output;
        if (root[id] == (int32_t)id && p->last[id] >= 0 && !is_output)
            p->changes[p->last[id] + 1] -= bytes_of(p, (int32_t)id);
    }

    int64_t now = 0, max = 0;
    for (size_t n = 0; n < p->node_count; n++) {
        now += p->changes[n];
        if (now > max) max = now;
    }
    return (uint64_t)max;
}

static void count_flops(const pass *p, way *w)
{
    w->flops = 0;
    for (size_t n = 0; n < p->node_count; n++) {
        const tdm__node *node = &p->graph->nodes[p->source[n]];
        if (p->nodes[n].recomputed) w->flops += tdm__op_row_of(node->op)->flops(p->graph, node);
    }
}

static void take_way(pass *p, const way *w)
{
    int32_t segment_count = w->by_marks ? cut_at_marks(p) : cut_at_necks(p);
    decide_fates(p, segment_count, w->group_segments);
    write_list(p);
}

static way choose_way(pass *p)
{
    way tries[MAX_TRIES];
    size_t count = 0, best = 0, chosen = 0;
    for (int by_marks = 1; by_marks >= 0; by_marks--) {
        int32_t segments = by_marks ? cut_at_marks(p) : cut_at_necks(p);
        for (int32_t k = 1; k <= segments && count<MAX_TRIES; k += k / 2> 1 ? k / 2 : 1) {
            way *w = &tries[count++];
            *w = (way){.by_marks = by_marks, .group_segments = k};
            take_way(p, w);
            w->peak_bytes = peak_of(p);
            count_flops(p, w);
        }
    }
    for (size_t i = 1; i < count; i++)
        if (tries[i].peak_bytes < tries[best].peak_bytes) best = i;
    chosen = best;
    for (size_t i = 0; i < count; i++)
        if ((double)tries[i].peak_bytes <= NEARLY * (double)tries[best].peak_bytes &&
            tries[i].flops < tries[chosen].flops)
            chosen = i;
    return tries[chosen];
}

/* ---- the pass --------------------------------------------------------------------------------- */

static void pass_analyse(pass *p, bool *wanted)
{
    const tdm_graph *graph = p->graph;
    tdm__graph_find_live(graph, false, p->live, wanted);
    while (p->forward_count < graph->node_count && !graph->nodes[p->forward_count].backward)
        p->forward_count++;
    for (size_t id = 0; id < graph->value_count; id++) {
        p->producer[id] = -1;
        p->root[id] = (int32_t)id;
    }
    for (size_t n = 0; n < graph->node_count; n++) {
        const tdm__node *node = &graph->nodes[n];
        for (int o = 0; o < TDM_OP_MAX_OUTPUTS; o++)
            if (node->out[o]) p->producer[node->out[o]] = (int32_t)n;
        if (node->op == TDM_OP_RESHAPE) p->root[node->out[0]] = p->root[node->in[0]];
    }
}

/* Writes the list and the copied values to the graph. */
static tdm_status pass_commit(pass *p, tdm_error *err)
{
    tdm_graph *graph = p->graph;
    for (size_t i = 0; i < p->copy_count; i++) {
        tdm__value value = graph->values[p->origin[i]];
        if (tdm__graph_add_value(graph, value) == 0) return tdm_graph_check(graph, err);
    }
    for (size_t n = 0; n < p->node_count; n++) {
        if (!p->nodes[n].recomputed) continue;
        p->nodes[n].name = tdm_arena_printf(graph->arena, "%s.again", p->nodes[n].name);
        if (!p->nodes[n].name)
            return tdm__graph_break(graph, TDM_ERR_NO_MEMORY, "graph: no memory");
    }
    free(graph->nodes);
    graph->nodes = p->nodes;
    graph->node_count = graph->node_capacity = p->node_count;
    p->nodes = NULL;
    return TDM_OK;
}

static void pass_release(pass *p)
{
    free(p->live);
    free(p->producer);
    free(p->root);
    free(p->segment);
    free(p->fates);
    for (int k = 0; k < LEVEL_COUNT; k++) free(p->copies[k]);
    free(p->nodes);
    free(p->source);
    free(p->origin);
    free(p->stack);
    free(p->changes);
    free(p->list_root);
    free(p->last);
}

/* Each node has at most one copy on each level. */
static bool pass_allocate(pass *p)
{
    size_t nodes = p->graph->node_count + 1, values = p->graph->value_count;
    size_t more = 1 + LEVEL_COUNT;
    p->live = calloc(nodes, sizeof(*p->live));
    p->producer = calloc(values, sizeof(*p->producer));
    p->root = calloc(values, sizeof(*p->root));
    p->segment = calloc(nodes, sizeof(*p->segment));
    p->fates = calloc(values, sizeof(*p->fates));
    bool ok = p->live && p->producer && p->root && p->segment && p->fates;
    for (int k = 0; k < LEVEL_COUNT; k++) {
        p->copies[k] = calloc(values, sizeof(*p->copies[k]));
        ok = ok && p->copies[k];
    }
    p->nodes = calloc(more * nodes, sizeof(*p->nodes));
    p->source = calloc(more * nodes, sizeof(*p->source));
    p->origin = calloc(more * values, sizeof(*p->origin));
    p->stack = calloc(more * nodes, sizeof(*p->stack));
    p->changes = calloc(more * nodes + 1, sizeof(*p->changes));
    p->list_root = calloc(more * values, sizeof(*p->list_root));
    p->last = calloc(more * values, sizeof(*p->last));
    return ok && p->nodes && p->source && p->origin && p->stack && p->changes && p->list_root &&
           p->last;
}

void tdm_graph_block(tdm_graph *graph)
{
    graph->block++;
}

tdm_status tdm_graph_recompute(tdm_graph *graph, tdm_recompute what, tdm_error *err)
{
    TDM_TRY(tdm_graph_check(graph, err));
    if (!graph->has_backward)
        return tdm_fail(err, TDM_ERR_INVALID,
                        "graph: it has no gradients yet; call tdm_graph_backward before "
                        "tdm_graph_recompute");
    if (graph->has_recompute)
        return tdm_fail(err, TDM_ERR_EXISTS, "graph: it already recomputes its activations");
    if (what == TDM_RECOMPUTE_NONE) return TDM_OK;
    pass p = {.graph = graph};
    bool *wanted = calloc(graph->value_count, sizeof(*wanted));
    tdm_status status = TDM_OK;
    if (!wanted || !pass_allocate(&p)) status = tdm_fail_oom(err, "for the graph");
    if (status == TDM_OK) {
        pass_analyse(&p, wanted);
        way w = {.by_marks = true, .group_segments = 1};
        if (what == TDM_RECOMPUTE_FULL) w = choose_way(&p);
        take_way(&p, &w);
        status = pass_commit(&p, err);
        graph->has_recompute = true;
    }
    free(wanted);
    pass_release(&p);
    return status;
}
