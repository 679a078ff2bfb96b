/*
 * double_eval.c: see double_eval.h.
 */
#include "kernel/double_eval.h"

size_t double_eval_count(const double_eval *e, int32_t id)
{
    return (size_t)tdm_shape_elements(&e->graph->values[id].shape);
}

double_eval double_eval_create(const tdm_graph *graph, const tdm_step_key *key)
{
    double_eval e = {.graph = graph, .key = key};
    e.values = calloc(graph->value_count, sizeof(*e.values));
    e.classes = calloc(graph->value_count, sizeof(*e.classes));
    for (size_t id = 1; id < graph->value_count; id++)
        e.values[id] = calloc(double_eval_count(&e, (int32_t)id) + 1, sizeof(double));
    for (size_t id = 1; id < graph->value_count; id++)
        e.classes[id] = calloc(double_eval_count(&e, (int32_t)id) + 1, sizeof(int32_t));
    return e;
}

void double_eval_release(double_eval *e)
{
    for (size_t id = 1; id < e->graph->value_count; id++) free(e->values[id]);
    for (size_t id = 1; id < e->graph->value_count; id++) free(e->classes[id]);
    free(e->values);
    free(e->classes);
}

static double double_eval_activation(double_eval *e, tdm_op_kind op, double x)
{
    switch (op) {
    case TDM_OP_RELU:
        if (fabs(x) < e->kink) e->kink = fabs(x);
        return fmax(x, 0);
    case TDM_OP_GELU: return x * 0.5 * erfc(-x / sqrt(2.0));
    case TDM_OP_TANH: return tanh(x);
    case TDM_OP_SIGMOID: return 1 / (1 + exp(-x));
    default: return x; /* copy, reshape */
    }
}

double double_eval_fused(double_eval *e, const tdm_op_attrs *attrs, double x)
{
    static const tdm_op_kind ops[] = {[TDM_ACTIVATION_RELU] = TDM_OP_RELU,
                                      [TDM_ACTIVATION_TANH] = TDM_OP_TANH,
                                      [TDM_ACTIVATION_SIGMOID] = TDM_OP_SIGMOID};
    return attrs->activation ? double_eval_activation(e, ops[attrs->activation], x) : x;
}

static void double_eval_matmul(double_eval *e, const tdm__node *node)
{
    const tdm__value *v = e->graph->values;
    const double *a = e->values[node->in[0]], *b = e->values[node->in[1]];
    const double *bias = node->in[2] ? e->values[node->in[2]] : NULL;
    int64_t M = v[node->out[0]].shape.dim[0], N = v[node->out[0]].shape.dim[1];
    int64_t a_cols = v[node->in[0]].shape.dim[1], b_cols = v[node->in[1]].shape.dim[1];
    int64_t K = node->attrs.trans_a ? v[node->in[0]].shape.dim[0] : a_cols;
    for (int64_t m = 0; m < M; m++)
        for (int64_t n = 0; n < N; n++) {
            double sum = bias ? bias[n] : 0;
            for (int64_t k = 0; k < K; k++)
                sum += (node->attrs.trans_a ? a[k * a_cols + m] : a[m * a_cols + k]) *
                       (node->attrs.trans_b ? b[n * b_cols + k] : b[k * b_cols + n]);
            e->values[node->out[0]][m * N + n] = double_eval_fused(e, &node->attrs, sum);
        }
}

static void double_eval_dropout(const double_eval *e, const tdm__node *node)
{
    const double *x = e->values[node->in[0]];
    double *y = e->values[node->out[0]];
    double p = (double)node->attrs.p;
    size_t count = double_eval_count(e, node->in[0]);
    size_t row = count / (size_t)e->graph->values[node->in[0]].shape.dim[0];
    tdm_rng rng = {0};
    for (size_t i = 0; i < count; i++) {
        if (i % row == 0)
            rng = tdm_rng_at((tdm_rng_address){.seed = e->key->seed,
                                               .stream = TDM_RNG_STREAM_DROPOUT,
                                               .sub_stream = node->attrs.sub_stream,
                                               .step = e->key->step,
                                               .sample = e->key->first_row + i / row});
        y[i] = (double)tdm_rng_uniform(&rng) < p ? 0 : x[i] / (1 - p);
    }
}

/* Softmax, and the cross entropy when there are classes. */
static double double_eval_softmax(const double *x, double *y, int64_t B, int64_t V,
                                  const int32_t *classes)
{
    double loss = 0;
    for (int64_t b = 0; b < B; b++) {
        double sum = 0;
        for (int64_t v = 0; v < V; v++) sum += exp(x[b * V + v]);
        for (int64_t v = 0; v < V; v++) y[b * V + v] = exp(x[b * V + v]) / sum;
        if (classes) loss -= log(y[b * V + classes[b]]);
    }
    return loss;
}

static void double_eval_node(double_eval *e, const tdm__node *node)
{
    const double *x = e->values[node->in[0]];
    double *y = e->values[node->out[0]];
    size_t count = double_eval_count(e, node->out[0]);
    size_t b_count = node->in[1] ? double_eval_count(e, node->in[1]) : 1;
    const tdm_shape *shape = &e->graph->values[node->in[0]].shape;
    int64_t N = shape->rank > 0 ? shape->dim[shape->rank - 1] : 1; /* B rows of N columns */
    int64_t B = node->in[0] && N > 0 ? tdm_shape_elements(shape) / N : 0;
    switch (node->op) {
    case TDM_OP_MATMUL: double_eval_matmul(e, node); return;
    case TDM_OP_ADD:
        for (size_t i = 0; i < count; i++) y[i] = x[i] + e->values[node->in[1]][i % b_count];
        return;
    case TDM_OP_SUM_ROWS:
        memset(y, 0, count * sizeof(double));
        for (int64_t i = 0; i < B * N; i++) y[i % N] += x[i];
        return;
    case TDM_OP_DROPOUT: double_eval_dropout(e, node); return;
    case TDM_OP_NORMALISE:
        for (int64_t i = 0; i < B * N; i++)
            y[i] = (x[i] - e->values[node->in[1]][i % N]) * e->values[node->in[2]][i % N];
        return;
    case TDM_OP_SOFTMAX: double_eval_softmax(x, y, B, N, NULL); return;
    case TDM_OP_CROSS_ENTROPY:
        y[0] = node->attrs.scale *
               double_eval_softmax(x, e->values[node->out[1]], B, N, e->classes[node->in[1]]);
        return;
    default:
        for (size_t i = 0; i < count; i++) y[i] = double_eval_activation(e, node->op, x[i]);
        return;
    }
}

double double_eval_run(double_eval *e, int32_t id)
{
    e->kink = INFINITY;
    for (size_t n = 0; n < e->graph->node_count; n++)
        if (!e->graph->nodes[n].backward && !(e->more && e->more(e, &e->graph->nodes[n])))
            double_eval_node(e, &e->graph->nodes[n]);
    return e->values[id][0];
}
