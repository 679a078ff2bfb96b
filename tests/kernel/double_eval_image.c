/*
 * double_eval_image.c: see double_eval_image.h.
 */
#include "kernel/double_eval_image.h"

/* The output whose window has its position k at i, or -1. */
static int64_t image_output(const tdm_op_attrs *a, int axis, int64_t i, int64_t k, int64_t count)
{
    for (int64_t o = 0; o < count; o++)
        if (o * a->window.stride[axis] + k * a->window.dilation[axis] ==
            i + a->window.pad_before[axis])
            return o;
    return -1;
}

/* All channels of one position of the image, one position of the window, and the output to which they
 * contribute. */
static void image_conv_channels(const image_conv *v, int64_t x_at, int64_t w_at, int64_t y_at)
{
    int64_t per_in = v->w.dim[3], per_out = v->w.dim[0] / v->attrs->window.groups;
    int64_t filter = v->w.dim[1] * v->w.dim[2] * per_in;
    for (int64_t o = 0; o < v->w.dim[0]; o++)
        for (int64_t c = 0; c < per_in; c++) {
            double *x = &v->values[0][x_at * v->x.dim[3] + o / per_out * per_in + c];
            double *w = &v->values[1][o * filter + w_at * per_in + c];
            double *y = &v->values[2][y_at * v->y.dim[3] + o];
            if (v->target == 0) *x += *w * *y;
            if (v->target == 1) *w += *x * *y;
            if (v->target == 2) *y += *x * *w;
        }
}

void image_conv_visit(const image_conv *v)
{
    int64_t places = v->x.dim[0] * v->x.dim[1] * v->x.dim[2];
    for (int64_t p = 0; p < places; p++) {
        int64_t w = p % v->x.dim[2], h = p / v->x.dim[2] % v->x.dim[1];
        int64_t b = p / (v->x.dim[1] * v->x.dim[2]);
        for (int64_t k = 0; k < v->w.dim[1] * v->w.dim[2]; k++) {
            int64_t oh = image_output(v->attrs, 0, h, k / v->w.dim[2], v->y.dim[1]);
            int64_t ow = image_output(v->attrs, 1, w, k % v->w.dim[2], v->y.dim[2]);
            if (oh >= 0 && ow >= 0)
                image_conv_channels(v, p, k, (b * v->y.dim[1] + oh) * v->y.dim[2] + ow);
        }
    }
}

static void image_conv_node(double_eval *e, const tdm__node *node)
{
    const tdm__value *v = e->graph->values;
    double *y = e->values[node->out[0]];
    size_t count = double_eval_count(e, node->out[0]), O = (size_t)v[node->in[1]].shape.dim[0];
    for (size_t i = 0; i < count; i++) y[i] = node->in[2] ? e->values[node->in[2]][i % O] : 0;
    image_conv_visit(&(image_conv){.attrs = &node->attrs,
                                   .x = v[node->in[0]].shape,
                                   .w = v[node->in[1]].shape,
                                   .y = v[node->out[0]].shape,
                                   .values = {e->values[node->in[0]], e->values[node->in[1]], y},
                                   .target = 2});
    for (size_t i = 0; i < count; i++) y[i] = double_eval_fused(e, &node->attrs, y[i]);
}

/* ---- pools ----------------------------------------------------------------------------------- */

static bool image_in_window(const tdm_op_attrs *a, int axis, int64_t o, int64_t i)
{
    int64_t k = i + a->window.pad_before[axis] - o * a->window.stride[axis];
    return k >= 0 && k < a->window.kernel[axis];
}

double image_pool(const tdm_op_attrs *a, const double *x, const tdm_shape *s, const int64_t at[4],
                  bool largest, double *gap)
{
    double best = -INFINITY, next = -INFINITY, sum = 0, count = 0;
    for (int64_t h = 0; h < s->dim[1]; h++)
        for (int64_t w = 0; w < s->dim[2]; w++) {
            if (!image_in_window(a, 0, at[1], h) || !image_in_window(a, 1, at[2], w)) continue;
            double v = x[((at[0] * s->dim[1] + h) * s->dim[2] + w) * s->dim[3] + at[3]];
            sum += v;
            count += 1;
            if (v > next) next = v;
            if (v > best) next = best, best = v;
        }
    *gap = best - next;
    return largest ? best : sum / count;
}

static void image_pool_node(double_eval *e, const tdm__node *node)
{
    const tdm_shape *x = &e->graph->values[node->in[0]].shape;
    const tdm_shape *y = &e->graph->values[node->out[0]].shape;
    bool largest = node->op == TDM_OP_MAX_POOL;
    for (int64_t i = 0; i < tdm_shape_elements(y); i++) {
        int64_t at[4] = {i / (y->dim[1] * y->dim[2] * y->dim[3]),
                         i / (y->dim[2] * y->dim[3]) % y->dim[1], i / y->dim[3] % y->dim[2],
                         i % y->dim[3]};
        double gap;
        e->values[node->out[0]][i] = image_pool(&node->attrs, e->values[node->in[0]], x, at,
                                                largest, &gap);
        if (largest && gap < e->kink) e->kink = gap;
    }
}

/* ---- batch norm ------------------------------------------------------------------------------ */

static void image_batch_norm_node(double_eval *e, const tdm__node *node)
{
    size_t count = double_eval_count(e, node->in[0]), C = double_eval_count(e, node->in[1]);
    const double *x = e->values[node->in[0]];
    const double *gamma = e->values[node->in[1]], *beta = e->values[node->in[2]];
    bool fixed = node->op == TDM_OP_BATCH_NORM_FIXED;
    for (size_t c = 0; c < C; c++) {
        double mean = 0, variance = 0, rows = (double)(count / C);
        for (size_t i = c; i < count; i += C) mean += x[i] / rows;
        for (size_t i = c; i < count; i += C) variance += (x[i] - mean) * (x[i] - mean) / rows;
        if (fixed) mean = e->values[node->in[3]][c], variance = e->values[node->in[4]][c];
        if (!fixed) e->values[node->out[1]][c] = mean, e->values[node->out[1]][C + c] = variance;
        double deviation = sqrt(variance + (double)node->attrs.eps);
        for (size_t i = c; i < count; i += C)
            e->values[node->out[0]][i] = (x[i] - mean) / deviation * gamma[c] + beta[c];
    }
}

bool double_eval_image(double_eval *e, const tdm__node *node)
{
    switch (node->op) {
    case TDM_OP_CONV: image_conv_node(e, node); return true;
    case TDM_OP_MAX_POOL:
    case TDM_OP_AVERAGE_POOL: image_pool_node(e, node); return true;
    case TDM_OP_BATCH_NORM:
    case TDM_OP_BATCH_NORM_FIXED: image_batch_norm_node(e, node); return true;
    default: return false;
    }
}
