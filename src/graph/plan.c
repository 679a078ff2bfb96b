/*
 * plan.c: compiles a graph to a plan that can be run.
 *
 * Creating a plan does everything that can be done once: it finds the nodes that are needed, the
 * kernel of each, its scratch memory, and the location of every buffer. Binding stores pointers;
 * running calls the kernels in order, all at once or in parts. Invariant: after creation neither
 * bind nor run allocates, locks or fails.
 *
 * For runs in parts a plan records which parameters a step reads, directly or through views, and
 * the last step that accesses the memory of a gradient: that memory may hold intermediate numbers
 * before the gradient is complete, but never afterwards, and no later step reads or writes it.
 */
#include "base/base.h"
#include "graph/graph.h"
#include "graph/internal.h"
#include "graph/memory.h"
#include "tensor/tensor.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef struct step {
    size_t node;
    const tdm_kernel *kernel;
    size_t backend;
    tdm_kernel_call call;
} step;

/* A pointer that is updated when its space is bound. */
typedef struct fixup {
    void **pointer;
    tdm_space space;
    size_t offset;
} fixup;

struct tdm_plan {
    const tdm_graph *graph;
    bool *live;
    int *fused;       /* by node: the tdm_activation of the next node that it applies */
    bool *taken_over; /* by node: an activation that runs as part of the preceding node */
    step *steps;      /* of the nodes that are executed, in order */
    size_t step_count;
    tdm_tensor *values; /* by value id */
    int32_t *param_of;  /* by value id: 1 + the parameter that it is, or of which it is a view; 0:
                         * none */
    size_t *grad_steps; /* by parameter: see tdm_plan_grad_step */
    size_t *grad_begins;
    fixup *fixups;
    size_t fixup_count;
    tdm__memory memory;
    void **backends; /* state of opened backends, by registry index; NULL if not used */
    tdm_numerics numerics;
    int threads;
    bool forward_only;
};

static tdm_kernel_mode plan_enter(const tdm_plan *plan)
{
    return plan->numerics == TDM_NUMERICS_VENDOR ? tdm_kernel_enter_vendor(plan->threads)
                                                 : tdm_kernel_enter(plan->threads);
}

void tdm_plan_destroy(tdm_plan *plan)
{
    if (!plan) return;
    for (size_t i = 0; i < plan->step_count; i++)
        if (plan->steps[i].kernel->release) plan->steps[i].kernel->release(&plan->steps[i].call);
    for (size_t b = 0; plan->backends && b < tdm_kernel_backend_count(); b++)
        if (plan->backends[b]) tdm_kernel_backend_at(b)->close(plan->backends[b]);
    free(plan->backends);
    free(plan->live);
    free(plan->fused);
    free(plan->taken_over);
    free(plan->steps);
    free(plan->values);
    free(plan->param_of);
    free(plan->grad_steps);
    free(plan->grad_begins);
    free(plan->fixups);
    tdm__memory_release(&plan->memory);
    free(plan);
}

void tdm__graph_find_live(const tdm_graph *graph, bool forward_only, bool *live, bool *wanted)
{
    for (size_t id = 1; id < graph->value_count; id++)
        wanted[id] = graph->values[id].is_output ||
                     (graph->values[id].grad_of != 0 && !forward_only);
    for (size_t n = graph->node_count; n-- > 0;) {
        const tdm__node *node = &graph->nodes[n];
        for (int o = 0; o < TDM_OP_MAX_OUTPUTS; o++)
            if (node->out[o] && wanted[node->out[o]]) live[n] = true;
        for (int i = 0; i < TDM_OP_MAX_INPUTS; i++)
            if (live[n] && node->in[i]) wanted[node->in[i]] = true;
    }
}

/* The only live node that reads a value; -1 if there are several, or if it is an output. */
static int64_t only_reader(const tdm_plan *plan, int32_t value)
{
    int64_t reader = -1;
    if (plan->graph->values[value].is_output) return -1;
    for (size_t n = 0; n < plan->graph->node_count; n++)
        for (int i = 0; plan->live[n] && i < TDM_OP_MAX_INPUTS; i++) {
            if (plan->graph->nodes[n].in[i] != value) continue;
            if (reader >= 0) return -1;
            reader = (int64_t)n;
        }
    return reader;
}

/*
 * If no gradient needs the input of an activation, the preceding product or convolution applies it
 * to its own result. The node of the activation stays as a view: as the last reader of that result,
 * it would have worked in place.
 */
static void plan_fuse_activations(tdm_plan *plan)
{
    for (size_t n = 0; n < plan->graph->node_count && plan->forward_only; n++) {
        const tdm__node *node = &plan->graph->nodes[n];
        bool can = node->op == TDM_OP_MATMUL || node->op == TDM_OP_CONV;
        if (!plan->live[n] || !can || node->attrs.activation != TDM_ACTIVATION_NONE) continue;
        int64_t reader = only_reader(plan, node->out[0]);
        if (reader < 0) continue;
        plan->fused[n] = tdm__activation_of_op(plan->graph->nodes[reader].op);
        plan->taken_over[reader] = plan->fused[n] != TDM_ACTIVATION_NONE;
    }
}

static tdm_tensor view_of(const tdm__value *v)
{
    return (tdm_tensor){.dtype = v->dtype, .shape = v->shape};
}

/* Tries one backend for one step; TDM_ERR_UNSUPPORTED: the next one should be tried. */
static tdm_status try_backend(tdm_plan *plan, size_t index, step *s, tdm_error *err)
{
    const tdm_kernel_backend_ops *backend = tdm_kernel_backend_at(index);
    const tdm_kernel *kernel = tdm_kernel_find(backend, plan->graph->nodes[s->node].op,
                                               s->call.out[0].dtype);
    if (!kernel) return tdm_fail(err, TDM_ERR_UNSUPPORTED, "no kernel");
    if (backend->open && !plan->backends[index])
        TDM_TRY(backend->open(&plan->backends[index], err));
    if (kernel->prepare) TDM_TRY(kernel->prepare(plan->backends[index], &s->call, err));
    s->kernel = kernel;
    s->backend = index;
    return TDM_OK;
}

/* Whether a plan may use this backend: only the one it names, or none of a vendor for portable
 * bits. */
static bool plan_may_use(const tdm_plan *plan, const char *only,
                         const tdm_kernel_backend_ops *backend)
{
    if (only) return strcmp(only, backend->name) == 0;
    return plan->numerics == TDM_NUMERICS_VENDOR || !backend->vendor;
}

static tdm_status choose_kernel(tdm_plan *plan, const char *only, step *s, tdm_error *err)
{
    const tdm__node *node = &plan->graph->nodes[s->node];
    for (size_t b = 0; b < tdm_kernel_backend_count(); b++) {
        if (!plan_may_use(plan, only, tdm_kernel_backend_at(b))) continue;
        tdm_status status = try_backend(plan, b, s, err);
        if (status != TDM_ERR_UNSUPPORTED) return status;
    }
    return tdm_fail(err, TDM_ERR_UNSUPPORTED, "%s: no kernel computes this op%s%s", node->name,
                    only ? " in backend " : "", only ? only : "");
}

static tdm_status choose_kernels(tdm_plan *plan, const char *only, tdm_error *err)
{
    const tdm_graph *graph = plan->graph;
    for (size_t n = 0; n < graph->node_count; n++) {
        const tdm__node *node = &graph->nodes[n];
        if (!plan->live[n] || node->op == TDM_OP_RESHAPE || plan->taken_over[n]) continue;
        step s = {.node = n, .call = {.attrs = node->attrs}};
        if (plan->fused[n] != TDM_ACTIVATION_NONE) s.call.attrs.activation = plan->fused[n];
        for (int i = 0; i < TDM_OP_MAX_INPUTS; i++)
            if (node->in[i]) s.call.in[i] = view_of(&graph->values[node->in[i]]);
        for (int o = 0; o < TDM_OP_MAX_OUTPUTS; o++)
            if (node->out[o]) s.call.out[o] = view_of(&graph->values[node->out[o]]);
        TDM_TRY(choose_kernel(plan, only, &s, err));
        plan->steps[plan->step_count++] = s;
    }
    return TDM_OK;
}

static void add_fixup(tdm_plan *plan, void **pointer, int32_t storage)
{
    const tdm__storage *s = &plan->memory.storages[storage];
    plan->fixups[plan->fixup_count++] = (fixup){pointer, s->space, s->offset};
}

static void plan_connect(tdm_plan *plan)
{
    const tdm_graph *graph = plan->graph;
    const tdm__memory *m = &plan->memory;
    assert(m->of_value && m->of_scratch && m->storages);
    for (size_t id = 1; id < graph->value_count; id++) {
        plan->values[id] = view_of(&graph->values[id]);
        if (m->of_value[id] >= 0) add_fixup(plan, &plan->values[id].data, m->of_value[id]);
    }
    for (size_t k = 0; k < plan->step_count; k++) {
        step *s = &plan->steps[k];
        const tdm__node *node = &graph->nodes[s->node];
        for (int i = 0; i < TDM_OP_MAX_INPUTS; i++)
            if (node->in[i]) add_fixup(plan, &s->call.in[i].data, m->of_value[node->in[i]]);
        for (int o = 0; o < TDM_OP_MAX_OUTPUTS; o++)
            if (node->out[o]) add_fixup(plan, &s->call.out[o].data, m->of_value[node->out[o]]);
        if (m->of_scratch[s->node] >= 0) add_fixup(plan, &s->call.scratch, m->of_scratch[s->node]);
    }
}

static void find_params(tdm_plan *plan)
{
    const tdm_graph *graph = plan->graph;
    for (size_t id = 1; id < graph->value_count; id++)
        if (graph->values[id].role == TDM__ROLE_PARAM)
            plan->param_of[id] = graph->values[id].param + 1;
    for (size_t n = 0; n < graph->node_count; n++)
        if (graph->nodes[n].op == TDM_OP_RESHAPE)
            plan->param_of[graph->nodes[n].out[0]] = plan->param_of[graph->nodes[n].in[0]];
}

/* The last step of a node up to this one: views have none. */
static size_t step_before(const tdm_plan *plan, int32_t node)
{
    size_t low = 0, high = plan->step_count;
    while (low + 1 < high) {
        size_t middle = low + (high - low) / 2;
        if (plan->steps[middle].node <= (size_t)node)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void find_grad_steps(tdm_plan *plan)
{
    const tdm_graph *graph = plan->graph;
    for (size_t p = 0; p < graph->param_count; p++)
        plan->grad_steps[p] = plan->grad_begins[p] = SIZE_MAX;
    for (size_t id = 1; id < graph->value_count && !plan->forward_only; id++) {
        int32_t storage = plan->memory.of_value[id], of = graph->values[id].grad_of;
        if (of == 0 || storage < 0) continue;
        size_t *at = &plan->grad_steps[of - 1];
        size_t last = step_before(plan, plan->memory.storages[storage].last);
        if (*at == SIZE_MAX || *at < last) *at = last;
        size_t first = step_before(plan, plan->memory.storages[storage].first);
        if (first < plan->grad_begins[of - 1]) plan->grad_begins[of - 1] = first;
    }
}

static tdm_status plan_memory(tdm_plan *plan, tdm_error *err)
{
    size_t *scratch = calloc(plan->graph->node_count + 1, sizeof(*scratch));
    if (!scratch) return tdm_fail_oom(err, "for the plan");
    for (size_t k = 0; k < plan->step_count; k++)
        scratch[plan->steps[k].node] = plan->steps[k].call.scratch_bytes;
    tdm_status status = tdm__memory_plan(plan->graph, plan->live, scratch, plan->forward_only,
                                         &plan->memory, err);
    free(scratch);
    return status;
}

static bool plan_allocate(tdm_plan *plan)
{
    const tdm_graph *graph = plan->graph;
    size_t max_fixup = graph->value_count +
                       graph->node_count * (TDM_OP_MAX_INPUTS + TDM_OP_MAX_OUTPUTS + 1);
    plan->live = calloc(graph->node_count + 1, sizeof(*plan->live));
    plan->fused = calloc(graph->node_count + 1, sizeof(*plan->fused));
    plan->taken_over = calloc(graph->node_count + 1, sizeof(*plan->taken_over));
    plan->steps = calloc(graph->node_count + 1, sizeof(*plan->steps));
    plan->values = calloc(graph->value_count, sizeof(*plan->values));
    plan->param_of = calloc(graph->value_count, sizeof(*plan->param_of));
    plan->grad_steps = calloc(graph->param_count + 1, sizeof(*plan->grad_steps));
    plan->grad_begins = calloc(graph->param_count + 1, sizeof(*plan->grad_begins));
    plan->fixups = calloc(max_fixup, sizeof(*plan->fixups));
    plan->backends = calloc(tdm_kernel_backend_count(), sizeof(*plan->backends));
    return plan->live && plan->fused && plan->taken_over && plan->steps && plan->values &&
           plan->param_of && plan->grad_steps && plan->grad_begins && plan->fixups &&
           plan->backends;
}

static tdm_status plan_build(tdm_plan *plan, const char *only, tdm_error *err)
{
    const tdm_graph *graph = plan->graph;
    bool *wanted = calloc(graph->value_count, sizeof(*wanted));
    if (!wanted || !plan_allocate(plan)) {
        free(wanted);
        return tdm_fail_oom(err, "for the plan");
    }
    tdm__graph_find_live(graph, plan->forward_only, plan->live, wanted);
    plan_fuse_activations(plan);
    free(wanted);
    tdm_kernel_mode before = plan_enter(plan);
    tdm_status status = choose_kernels(plan, only, err);
    tdm_kernel_leave(&before);
    TDM_TRY(status);
    TDM_TRY(plan_memory(plan, err));
    for (size_t n = 0; n < graph->node_count; n++)
        assert(!plan->taken_over[n] || plan->memory.in_place[n]);
    plan_connect(plan);
    find_params(plan);
    find_grad_steps(plan);
    return TDM_OK;
}

tdm_status tdm_plan_create(const tdm_graph *graph, const tdm_plan_options *options, tdm_plan **out,
                           tdm_error *err)
{
    char library[TDM_LIBRARY_BYTES];
    TDM_TRY(tdm_graph_check(graph, err));
    if (options && options->numerics == TDM_NUMERICS_VENDOR && !tdm_tensor_library(library))
        return tdm_fail(err, TDM_ERR_UNSUPPORTED,
                        "compute.numerics: vendor needs oneDNN, and this build has none; install "
                        "it (libdnnl-dev) and build again, or use portable");
    tdm_plan *plan = calloc(1, sizeof(*plan));
    if (!plan) return tdm_fail_oom(err, "for the plan");
    plan->graph = graph;
    plan->numerics = options ? options->numerics : TDM_NUMERICS_PORTABLE;
    plan->threads = options && options->threads > 0 ? options->threads : 1;
    plan->forward_only = options && options->forward_only;
    tdm_status status = plan_build(plan, options ? options->backend : NULL, err);
    if (status != TDM_OK) {
        tdm_plan_destroy(plan);
        return status;
    }
    *out = plan;
    return TDM_OK;
}

size_t tdm_plan_arena_bytes(const tdm_plan *plan)
{
    return plan->memory.arena_bytes;
}

size_t tdm_plan_unshared_bytes(const tdm_plan *plan)
{
    return plan->memory.unshared_bytes;
}

void tdm_plan_bind(tdm_plan *plan, tdm_space space, void *base)
{
    assert((uintptr_t)base % 64 == 0);
    for (size_t i = 0; i < plan->fixup_count; i++)
        if (plan->fixups[i].space == space)
            *plan->fixups[i].pointer = (char *)base + plan->fixups[i].offset;
}

static tdm_tensor find_named(const tdm_plan *plan, const char *name, bool output)
{
    const tdm_graph *graph = plan->graph;
    for (size_t id = 1; id < graph->value_count; id++) {
        const tdm__value *v = &graph->values[id];
        bool fits = output ? v->is_output : v->role == TDM__ROLE_INPUT;
        if (fits && strcmp(v->name, name) == 0) return plan->values[id];
    }
    return (tdm_tensor){.dtype = TDM_DTYPE_NONE};
}

tdm_tensor tdm_plan_input(const tdm_plan *plan, const char *name)
{
    return find_named(plan, name, false);
}

tdm_tensor tdm_plan_output(const tdm_plan *plan, const char *name)
{
    return find_named(plan, name, true);
}

void tdm_plan_run_part(tdm_plan *plan, const tdm_step_key *key, size_t begin, size_t end)
{
    assert(begin <= end && end <= plan->step_count);
    tdm_kernel_mode before = plan_enter(plan);
    for (size_t k = begin; k < end; k++) {
        const step *s = &plan->steps[k];
        s->kernel->run(plan->backends[s->backend], &s->call, key);
    }
    tdm_kernel_leave(&before);
}

void tdm_plan_run(tdm_plan *plan, const tdm_step_key *key)
{
    tdm_plan_run_part(plan, key, 0, plan->step_count);
}

size_t tdm_plan_step_count(const tdm_plan *plan)
{
    return plan->step_count;
}

size_t tdm_plan_reads_at(const tdm_plan *plan, size_t index, size_t out[TDM_MAX_PLAN_READS])
{
    static_assert(TDM_OP_MAX_INPUTS <= (int)TDM_MAX_PLAN_READS, "each input may be a parameter");
    const tdm__node *node = &plan->graph->nodes[plan->steps[index].node];
    size_t count = 0;
    for (int i = 0; i < TDM_OP_MAX_INPUTS; i++) {
        int32_t param = node->in[i] ? plan->param_of[node->in[i]] : 0;
        bool is_new = param != 0;
        for (size_t k = 0; k < count; k++) is_new = is_new && out[k] + 1 != (size_t)param;
        if (is_new) out[count++] = (size_t)param - 1;
    }
    return count;
}

size_t tdm_plan_grad_begin(const tdm_plan *plan, size_t param_index)
{
    return plan->grad_begins[param_index];
}

size_t tdm_plan_grad_step(const tdm_plan *plan, size_t param_index)
{
    return plan->grad_steps[param_index];
}

bool tdm_plan_lane_sum_at(const tdm_plan *plan, size_t index, tdm_tensor *io)
{
    const step *s = &plan->steps[index];
    if (plan->graph->nodes[s->node].op != TDM_OP_LANE_SUM) return false;
    if (io) *io = s->call.out[0];
    return true;
}

void tdm_plan_run_watched(tdm_plan *plan, const tdm_step_key *key, tdm_plan_watch_fn watch,
                          void *user)
{
    tdm_plan_run_part_watched(plan, key, 0, plan->step_count, watch, user);
}

void tdm_plan_run_part_watched(tdm_plan *plan, const tdm_step_key *key, size_t begin, size_t end,
                               tdm_plan_watch_fn watch, void *user)
{
    tdm_kernel_mode before = plan_enter(plan);
    bool go_on = true;
    for (size_t k = begin; k < end && go_on; k++) {
        const step *s = &plan->steps[k];
        tdm_plan_event event = {.node = s->node,
                                .out = s->call.out,
                                .out_count = TDM_OP_MAX_OUTPUTS,
                                .begin_ns = tdm_clock_ns()};
        s->kernel->run(plan->backends[s->backend], &s->call, key);
        event.end_ns = tdm_clock_ns();
        go_on = watch(user, &event);
    }
    tdm_kernel_leave(&before);
}

void tdm_plan_run_only(tdm_plan *plan, const tdm_step_key *key, const char *op)
{
    tdm_kernel_mode before = plan_enter(plan);
    for (size_t k = 0; k < plan->step_count; k++) {
        const step *s = &plan->steps[k];
        if (strcmp(tdm__op_row_of(plan->graph->nodes[s->node].op)->name, op) == 0)
            s->kernel->run(plan->backends[s->backend], &s->call, key);
    }
    tdm_kernel_leave(&before);
}

size_t tdm_plan_node_count(const tdm_plan *plan)
{
    size_t count = 0;
    for (size_t n = 0; n < plan->graph->node_count; n++) count += plan->live[n];
    return count;
}

tdm_plan_node_info tdm_plan_node_at(const tdm_plan *plan, size_t index)
{
    size_t n = 0, seen = 0;
    for (; n < plan->graph->node_count; n++)
        if (plan->live[n] && seen++ == index) break;
    int32_t out = plan->graph->nodes[n].out[0];
    const tdm__storage *s = &plan->memory.storages[plan->memory.of_value[out]];
    tdm_plan_node_info info = {
        .node = n,
        .backend = plan->taken_over[n] ? "fused" : "view",
        .in_place = plan->memory.in_place[n],
        .arena_offset = s->space == TDM_SPACE_ARENA ? s->offset : SIZE_MAX,
        .bytes = tdm_tensor_bytes(&plan->values[out]),
    };
    for (size_t k = 0; k < plan->step_count; k++)
        if (plan->steps[k].node == n)
            info.backend = tdm_kernel_backend_at(plan->steps[k].backend)->name;
    return info;
}
