/*
 * blame.c: where the bad numbers of a lane came from.
 *
 * A lane is run in front of a watcher that looks at everything each op leaves. Ops run in an order
 * in which inputs come before what is made of them, so the first op with a bad number among its
 * outputs made it from good ones: its inputs were outputs before, or parameters or data, which are
 * looked at as well. Only a lane whose loss or gradient is bad in the end is blamed: a model may
 * well make an infinity on its way and do without it.
 *
 * Which row of the batch a number belongs to is known where the output is made of the samples, not of
 * parameters alone, and has the rows of the lane as its first dimension, or all their tokens: forward,
 * and in matrices or more. In a lane of one row all that is made of samples is that row's. Nothing here
 * allocates.
 */
#include "parallel/internal.h"

#include <math.h>
#include <string.h>

/* The first bad number in f32; `count` when there is none. */
static int64_t first_bad(const float *numbers, int64_t count)
{
    int64_t i = 0;
    while (i < count && isfinite(numbers[i])) i++;
    return i;
}

/* Counts the rows of the lane in which `numbers` has bad ones. */
static void find_rows(const tdm__lane_run *lane, const float *numbers, int64_t count,
                      tdm_bad_number *out)
{
    int64_t width = count / lane->rows.count;
    for (int64_t row = lane->rows.count; row-- > 0;) {
        if (first_bad(numbers + row * width, width) == width) continue;
        out->bad_rows++;
        out->first_row = lane->rows.first + row;
    }
}

/* Whether there is a bad number in a tensor; *out then gets what all kinds have in common. */
static bool look_at(const tdm__lane_run *lane, const tdm_tensor *t, bool of_rows,
                    tdm_bad_number *out)
{
    if (t->dtype != TDM_DTYPE_F32) return false;
    const float *numbers = t->data;
    int64_t count = tdm_tensor_elements(t), bad = first_bad(numbers, count);
    if (bad == count) return false;
    *out = (tdm_bad_number){.is_nan = isnan(numbers[bad]), .lane = lane->lane, .rows = lane->rows};
    if (of_rows) find_rows(lane, numbers, count, out);
    return true;
}

/* Whether the numbers of an op's output are those of the lane's rows, one row after another. */
static bool is_of_rows(const tdm__watcher *w, const tdm_node_info *node, const tdm_tensor *t)
{
    int64_t rows = w->lane->rows.count, first = t->shape.rank >= 2 ? t->shape.dim[0] : 0;
    if (!node->of_inputs) return false;
    if (rows == 1) return true;
    return !node->backward && first > 0 && (first == rows || first == w->token_count);
}

static bool watch(void *user, const tdm_plan_event *event)
{
    tdm__watcher *w = user;
    tdm_node_info node = tdm_graph_node_at(w->graph, event->node);
    w->event++;
    if (w->has_found) return true; /* the lane's end decides */
    w->node = event->node;
    for (int i = 0; i < event->out_count && !w->has_found; i++) {
        const tdm_tensor *t = &event->out[i];
        bool of_rows = (i == 0 || w->lane->rows.count == 1) && is_of_rows(w, &node, t);
        if (look_at(w->lane, t, of_rows, &w->found)) tdm__watcher_blame(w);
    }
    return true;
}

/* ---- for those who run lanes ------------------------------------------------------------------- */

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
    w->has_found = look_at(lane, &x, true, &w->found);
    if (w->has_found) w->found.kind = TDM_BAD_DATA;
}

void tdm__watcher_run(tdm__watcher *w, size_t begin, size_t end)
{
    tdm_plan_run_part_watched(w->lane->plan, &w->lane->key, begin, end, watch, w);
}

void tdm__watcher_see_sum(tdm__watcher *w, const tdm_tensor *sum)
{
    if (!w->has_found && look_at(w->lane, sum, false, &w->found)) tdm__watcher_blame(w);
}

bool tdm__watcher_has_found(const tdm__watcher *w)
{
    const float *loss = tdm_plan_output(w->lane->plan, TDM_MODEL_LOSS).data;
    int64_t extent = (int64_t)tdm_graph_grad_extent(w->graph);
    bool good = isfinite(*loss) && first_bad(w->lane->grads, extent) == extent;
    return !good && w->has_found;
}
