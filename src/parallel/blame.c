/*
 * blame.c: finds the origin of non-finite values in a lane.
 *
 * A lane is run with a watcher that checks all outputs of each op. Ops run in an order
 * in which inputs are computed first, so the first op with a non-finite output produced it from
 * finite inputs: its inputs were outputs before, or parameters or data, which are
 * checked as well. Only a lane whose loss or gradient is non-finite at the end is reported: a model may
 * produce an infinity that does not affect the result.
 *
 * The row of the batch that a value belongs to is known if the output depends on the samples, not on
 * parameters only, and its first dimension is the rows of the lane, or all their tokens: in the forward pass,
 * for tensors of rank two or more. In a lane of one row everything that depends on samples belongs to that row.
 * Nothing here allocates.
 */
#include "parallel/internal.h"

#include <math.h>
#include <string.h>

/* The index of the first non-finite number; `count` if there is none. */
static int64_t nonfinite_first(const float *numbers, int64_t count)
{
    int64_t i = 0;
    while (i < count && isfinite(numbers[i])) i++;
    return i;
}

/* Counts the rows of the lane in which `numbers` has non-finite values. */
static void nonfinite_count_rows(const tdm__lane_run *lane, const float *numbers, int64_t count,
                                 tdm_bad_number *out)
{
    int64_t width = count / lane->rows.count;
    for (int64_t row = lane->rows.count; row-- > 0;) {
        if (nonfinite_first(numbers + row * width, width) == width) continue;
        out->bad_rows++;
        out->first_row = lane->rows.first + row;
    }
}

/* Checks a tensor for non-finite values; if there are any, sets the common fields of *out. */
static bool tensor_check(const tdm__lane_run *lane, const tdm_tensor *t, bool of_rows,
                         tdm_bad_number *out)
{
    if (t->dtype != TDM_DTYPE_F32) return false;
    const float *numbers = t->data;
    int64_t count = tdm_tensor_elements(t), bad = nonfinite_first(numbers, count);
    if (bad == count) return false;
    *out = (tdm_bad_number){.is_nan = isnan(numbers[bad]), .lane = lane->lane, .rows = lane->rows};
    if (of_rows) nonfinite_count_rows(lane, numbers, count, out);
    return true;
}

/* Whether an op's output consists of the rows of the lane, one after another. */
static bool output_is_by_row(const tdm__watcher *w, const tdm_node_info *node, const tdm_tensor *t)
{
    int64_t rows = w->lane->rows.count, first = t->shape.rank >= 2 ? t->shape.dim[0] : 0;
    if (!node->of_inputs) return false;
    if (rows == 1) return true;
    return !node->backward && first > 0 && (first == rows || first == w->token_count);
}

static bool watcher_on_op(void *user, const tdm_plan_event *event)
{
    tdm__watcher *w = user;
    tdm_node_info node = tdm_graph_node_at(w->graph, event->node);
    w->event++;
    if (w->has_found) return true; /* decided at the end of the lane */
    w->node = event->node;
    for (int i = 0; i < event->out_count && !w->has_found; i++) {
        const tdm_tensor *t = &event->out[i];
        bool of_rows = (i == 0 || w->lane->rows.count == 1) && output_is_by_row(w, &node, t);
        if (tensor_check(w->lane, t, of_rows, &w->found)) tdm__watcher_blame(w);
    }
    return true;
}

/* ---- functions of the watcher ------------------------------------------------------------------- */

void tdm__watcher_blame(tdm__watcher *w)
{
    tdm_node_info node = tdm_graph_node_at(w->graph, w->node);
    w->has_found = true;
    w->found_at = w->event;
    w->found.kind = TDM_BAD_OP;
    w->found.name = node.name;
    w->found.op = node.op;
    w->found.backward = node.backward;
}

void tdm__watcher_begin(tdm__watcher *w, const tdm_graph *graph, const tdm__lane_run *lane)
{
    *w = (tdm__watcher){.graph = graph, .lane = lane};
    tdm_tensor x = tdm_plan_input(lane->plan, TDM_MODEL_INPUT);
    if (x.dtype == TDM_DTYPE_I32) w->token_count = tdm_tensor_elements(&x);
    w->has_found = tensor_check(lane, &x, true, &w->found);
    if (w->has_found) w->found.kind = TDM_BAD_DATA;
}

void tdm__watcher_run(tdm__watcher *w, size_t begin, size_t end)
{
    tdm_plan_run_part_watched(w->lane->plan, &w->lane->key, begin, end, watcher_on_op, w);
}

void tdm__watcher_see_sum(tdm__watcher *w, const tdm_tensor *sum)
{
    if (!w->has_found && tensor_check(w->lane, sum, false, &w->found)) tdm__watcher_blame(w);
}

bool tdm__watcher_has_found(const tdm__watcher *w)
{
    const float *loss = tdm_plan_output(w->lane->plan, TDM_MODEL_LOSS).data;
    int64_t extent = (int64_t)tdm_graph_grad_extent(w->graph);
    bool good = isfinite(*loss) && nonfinite_first(w->lane->grads, extent) == extent;
    return !good && w->has_found;
}
