/*
 * graph.h: the part of module graph that only other modules use.
 *
 * <tandem/graph.h> declares how a model is built and run. This header adds what executors need of a plan: runs
 * in parts, with a watcher, and the places at which gradients become complete. libtandem.so does not export it.
 */
#ifndef TANDEM_GRAPH_GRAPH_H
#define TANDEM_GRAPH_GRAPH_H

#include <tandem/graph.h>

/* The backward pass rounds parameters again instead of keeping the rounded values of the forward
 * pass: for parameters that are gathered for each use. The bits are the same. */
void tdm_graph_round_again(tdm_graph *graph);
/*
 * The sum of x over all lanes of the batch, by the canonical tree (parallel.h); used by batch norm
 * over the whole batch. Its gradient is the sum over lanes of the gradient. In a plan it is a step
 * at which a run must pause (tdm_plan_lane_sum_at); a run that does not pause uses its own x as the
 * sum.
 */
tdm_value tdm_graph_lane_sum(tdm_graph *graph, tdm_value x);

/* Makes the gradient of an f32 input the output `name` of the graph, with the shape of the input. Call it before
 * the first op that uses the input; one input for each graph. */
void tdm_graph_trace_input(tdm_graph *graph, tdm_value input, const char *name);

/* The value that tdm_graph_param, ..._statistic or ..._buffer returned for it. */
tdm_value tdm_graph_param_value(const tdm_graph *graph, size_t index);

/* ---- inspecting a graph ----------------------------------------------------------------------- */

/* [M, K] x [K, N], `batch` times, of which `share` is needed: causal attention omits half. */
typedef struct tdm_product {
    int64_t batch, M, N, K;
    double share;
} tdm_product;
enum { TDM_MAX_PRODUCTS = 4 };
/* The matrix products inside a node that has several: those of attention. Returns their number. */
size_t tdm_graph_products_at(const tdm_graph *graph, size_t index,
                             tdm_product out[TDM_MAX_PRODUCTS]);

/* ---- plans ------------------------------------------------------------------------------------ */

/* The size it would have if no memory were reused. */
size_t tdm_plan_unshared_bytes(const tdm_plan *plan);

/*
 * Running a plan in parts. A plan is a list of steps, in order of execution; running parts [0, a),
 * [a, b), ... up to the end is equivalent to running it. Between parts, on the same thread or
 * another, parameters may be fetched and gradients sent.
 */
size_t tdm_plan_step_count(const tdm_plan *plan);
void tdm_plan_run_part(tdm_plan *plan, const tdm_step_key *key, size_t begin, size_t end);
/* The parameters, statistics and buffers (indices as in tdm_graph_param_at) that a step reads, each
 * once. Returns their number, at most TDM_MAX_PLAN_READS. */
enum { TDM_MAX_PLAN_READS = 16 };
size_t tdm_plan_reads_at(const tdm_plan *plan, size_t step, size_t out[TDM_MAX_PLAN_READS]);
/* The step after which the gradient of a parameter, or the observed value of a statistic, is
 * complete in TDM_SPACE_GRADS; no later step reads or writes it there. SIZE_MAX if the plan
 * computes none: for a buffer, a statistic that follows nothing, and in forward-only plans. */
size_t tdm_plan_grad_step(const tdm_plan *plan, size_t param_index);
/* The first step that writes to its range there. */
size_t tdm_plan_grad_begin(const tdm_plan *plan, size_t param_index);
/* Whether a step is a sum over lanes. After a part that ends with it, *io (if not NULL) contains
 * this lane's own numbers. The caller must replace them by the sum before the run continues (and
 * before it takes a gradient that is complete with this step). The n-th such step of a plan
 * corresponds to the n-th of the other lanes' plans, which may have another number of rows, and
 * other steps in between. */
bool tdm_plan_lane_sum_at(const tdm_plan *plan, size_t step, tdm_tensor *io);

/* The argument of a watcher after each node. Inputs may have been overwritten in place. */
typedef struct tdm_plan_event {
    size_t node;           /* index in the graph */
    const tdm_tensor *out; /* its outputs; dtype NONE for missing ones */
    int out_count;
    uint64_t begin_ns, end_ns; /* on the clock of tdm_clock_ns */
} tdm_plan_event;
/* Returns false to end the run there. */
typedef bool (*tdm_plan_watch_fn)(void *user, const tdm_plan_event *event);
/* Runs the plan with a watcher: the result is the same, bit for bit. Slower, because it reads the
 * clock. */
void tdm_plan_run_watched(tdm_plan *plan, const tdm_step_key *key, tdm_plan_watch_fn watch,
                          void *user);
/* As tdm_plan_run_part, with a watcher. */
void tdm_plan_run_part_watched(tdm_plan *plan, const tdm_step_key *key, size_t begin, size_t end,
                               tdm_plan_watch_fn watch, void *user);
/* Runs only the nodes of one op, in order, on whatever their inputs contain: to measure their
 * time. */
void tdm_plan_run_only(tdm_plan *plan, const tdm_step_key *key, const char *op);

#endif
