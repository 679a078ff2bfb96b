/*
 * double_eval_more.c: see double_eval_more.h.
 */
#include "kernel/double_eval_more.h"

/* From the offset of a number to its indices, and back. */
static void more_indices(const tdm_shape *shape, int64_t at, int64_t index[TDM_MAX_DIMS])
{
    for (int i = shape->rank - 1; i >= 0; i--) {
        index[i] = at % shape->dim[i];
        at /= shape->dim[i];
    }
}

static int64_t more_place(const tdm_shape *shape, const int64_t index[TDM_MAX_DIMS])
{
    int64_t at = 0;
    for (int i = 0; i < shape->rank; i++) at = at * shape->dim[i] + index[i];
    return at;
}

static double more_moved(const double_eval *e, const tdm__node *node, int64_t at)
{
    const tdm__value *v = e->graph->values;
    const tdm_op_attrs *a = &node->attrs;
    int64_t to[TDM_MAX_DIMS] = {0}, from[TDM_MAX_DIMS] = {0};
    int k = 0;
    more_indices(&v[node->out[0]].shape, at, to);
    for (int i = 0; i < TDM_MAX_DIMS; i++) from[i] = to[i];
    if (node->op == TDM_OP_TRANSPOSE)
        for (int i = 0; i < v[node->out[0]].shape.rank; i++) from[a->perm[i]] = to[i];
    if (node->op == TDM_OP_SLICE) from[a->axis] += a->begin;
    if (node->op == TDM_OP_CONCAT)
        for (; from[a->axis] >= v[node->in[k]].shape.dim[a->axis]; k++)
            from[a->axis] -= v[node->in[k]].shape.dim[a->axis];
    return e->values[node->in[k]][more_place(&v[node->in[k]].shape, from)];
}

static void more_reduce(const double_eval *e, const tdm__node *node)
{
    const tdm__value *v = e->graph->values;
    const tdm_shape *x = &v[node->in[0]].shape;
    double *y = e->values[node->out[0]];
    memset(y, 0, double_eval_count(e, node->out[0]) * sizeof(double));
    for (int64_t i = 0; i < tdm_shape_elements(x); i++) {
        int64_t index[TDM_MAX_DIMS] = {0}, kept[TDM_MAX_DIMS] = {0};
        int count = 0;
        more_indices(x, i, index);
        for (int d = 0; d < x->rank && node->attrs.axis >= 0; d++)
            if (d != node->attrs.axis) kept[count++] = index[d];
        y[more_place(&v[node->out[0]].shape, kept)] += e->values[node->in[0]][i] *
                                                       node->attrs.scale;
    }
}

static double more_near(double_eval *e, double distance)
{
    if (fabs(distance) < e->kink) e->kink = fabs(distance);
    return distance;
}

static double more_element_loss(double_eval *e, const tdm_op_attrs *a, double x, double t)
{
    double delta = (double)a->delta, off = fabs(x - t);
    switch (a->loss) {
    case TDM_LOSS_MSE: return off * off;
    case TDM_LOSS_L1: return fabs(more_near(e, x - t));
    case TDM_LOSS_HUBER:
        more_near(e, off - delta);
        return off < delta ? off * off / 2 : delta * off - delta * delta / 2;
    case TDM_LOSS_BCE_LOGITS:
        return -t * log(1 / (1 + exp(-x))) - (1 - t) * log(1 - 1 / (1 + exp(-x)));
    default: return t * (log(t) - x);
    }
}

static double more_cross_entropy(const double_eval *e, const tdm__node *node)
{
    const tdm_op_attrs *a = &node->attrs;
    const double *x = e->values[node->in[0]];
    const tdm_shape *shape = &e->graph->values[node->in[0]].shape;
    size_t V = (size_t)shape->dim[shape->rank - 1], rows = double_eval_count(e, node->in[1]);
    double loss = 0, smoothing = (double)a->label_smoothing;
    for (size_t r = 0; r < rows; r++) {
        int32_t class = e->classes[node->in[1]][r];
        double sum = 0;
        if (a->has_ignore && class == a->ignore) continue;
        for (size_t v = 0; v < V; v++) sum += exp(x[r * V + v]);
        for (size_t v = 0; v < V; v++) {
            double target = smoothing / (double)V + ((int32_t)v == class ? 1 - smoothing : 0);
            loss -= target * log(exp(x[r * V + v]) / sum);
        }
    }
    return loss * a->scale;
}

static double more_sum(double_eval *e, const tdm__node *node)
{
    const double *x = e->values[node->in[0]];
    double sum = 0;
    for (size_t i = 0; i < double_eval_count(e, node->in[0]); i++) {
        if (node->op == TDM_OP_LOSS)
            sum += more_element_loss(e, &node->attrs, x[i], e->values[node->in[1]][i]);
        else
            sum += node->attrs.power == 1 ? fabs(more_near(e, x[i])) : x[i] * x[i];
    }
    return sum * node->attrs.scale;
}

static double more_element(const double_eval *e, const tdm__node *node, size_t i)
{
    double x = e->values[node->in[0]][i];
    switch (node->op) {
    case TDM_OP_MUL: return x * e->values[node->in[1]][i % double_eval_count(e, node->in[1])];
    case TDM_OP_SCALE: return x * node->attrs.scale;
    case TDM_OP_SILU: return x * (1 / (1 + exp(-x)));
    default: return x / 2 * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * pow(x, 3))));
    }
}

static double more_looked_up(const double_eval *e, const tdm__node *node, size_t i)
{
    size_t C = (size_t)e->graph->values[node->in[0]].shape.dim[1];
    return e->values[node->in[0]][(size_t)e->classes[node->in[1]][i / C] * C + i % C];
}

bool double_eval_more(double_eval *e, const tdm__node *node)
{
    double *y = e->values[node->out[0]];
    size_t count = double_eval_count(e, node->out[0]);
    switch (node->op) {
    case TDM_OP_TRANSPOSE:
    case TDM_OP_CONCAT:
    case TDM_OP_SLICE:
        for (size_t i = 0; i < count; i++) y[i] = more_moved(e, node, (int64_t)i);
        return true;
    case TDM_OP_REDUCE: more_reduce(e, node); return true;
    case TDM_OP_MUL:
    case TDM_OP_SCALE:
    case TDM_OP_SILU:
    case TDM_OP_GELU_TANH:
        for (size_t i = 0; i < count; i++) y[i] = more_element(e, node, i);
        return true;
    case TDM_OP_EMBEDDING:
        for (size_t i = 0; i < count; i++) y[i] = more_looked_up(e, node, i);
        return true;
    case TDM_OP_CROSS_ENTROPY: y[0] = more_cross_entropy(e, node); return true;
    case TDM_OP_LOSS:
    case TDM_OP_PENALTY: y[0] = more_sum(e, node); return true;
    default: return false;
    }
}
