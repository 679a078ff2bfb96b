/*
 * double_eval_sequence.c: see double_eval_sequence.h.
 */
#include "kernel/double_eval_sequence.h"

static void sequence_norm(const double_eval *e, const tdm__node *node)
{
    bool centred = node->op == TDM_OP_LAYER_NORM;
    const double *x = e->values[node->in[0]], *gamma = e->values[node->in[1]];
    const double *beta = centred ? e->values[node->in[2]] : NULL;
    double *y = e->values[node->out[0]];
    size_t count = double_eval_count(e, node->in[0]), C = double_eval_count(e, node->in[1]);
    for (size_t row = 0; row < count; row += C) {
        double mean = 0, power = 0;
        for (size_t c = 0; c < C; c++) mean += centred ? x[row + c] / (double)C : 0;
        for (size_t c = 0; c < C; c++) power += pow(x[row + c] - mean, 2) / (double)C;
        for (size_t c = 0; c < C; c++)
            y[row + c] = (x[row + c] - mean) / sqrt(power + (double)node->attrs.eps) * gamma[c] +
                         (beta ? beta[c] : 0);
    }
}

/* The factor of the weight of (head, query, key) in row b. */
static double sequence_kept(const double_eval *e, const tdm__node *node, int64_t T,
                            const int64_t at[4])
{
    double p = (double)node->attrs.p;
    if (p <= 0) return 1;
    tdm_rng rng = tdm_rng_at((tdm_rng_address){.seed = e->key->seed,
                                               .stream = TDM_RNG_STREAM_DROPOUT,
                                               .sub_stream = node->attrs.sub_stream,
                                               .step = e->key->step,
                                               .sample = e->key->first_row + (uint64_t)at[0]});
    uint64_t padded = (uint64_t)T;
    while (padded % 32 != 0) padded++;
    uint64_t index = (uint64_t)(at[1] * T + at[2]) * padded + (uint64_t)at[3];
    float u = 0;
    for (uint64_t i = 0; i <= index; i++) u = tdm_rng_uniform(&rng);
    return (double)u < p ? 0 : 1 / (1 - p);
}

static void sequence_attend(const double_eval *e, const tdm__node *node, int64_t b, int64_t h,
                            int64_t t)
{
    const tdm_shape *shape = &e->graph->values[node->out[0]].shape;
    int64_t T = shape->dim[1], C = shape->dim[2], D = C / node->attrs.heads;
    int64_t length = node->in[1] ? e->classes[node->in[1]][b] : T;
    const double *q = e->values[node->in[0]] + (b * T + t) * 3 * C + h * D;
    const double *k = e->values[node->in[0]] + b * T * 3 * C + C + h * D, *v = k + C;
    double *y = e->values[node->out[0]] + (b * T + t) * C + h * D;
    double sum = 0;
    for (int64_t d = 0; d < D; d++) y[d] = 0;
    for (int64_t j = 0; j < T; j++) {
        if (j >= length || (node->attrs.causal && j > t)) continue;
        double score = 0;
        for (int64_t d = 0; d < D; d++) score += q[d] * k[j * 3 * C + d];
        double weight = exp(score / sqrt((double)D));
        double kept = sequence_kept(e, node, T, (int64_t[4]){b, h, t, j});
        for (int64_t d = 0; d < D; d++) y[d] += weight * kept * v[j * 3 * C + d];
        sum += weight;
    }
    for (int64_t d = 0; d < D && sum > 0; d++) y[d] /= sum;
}

bool double_eval_sequence(double_eval *e, const tdm__node *node)
{
    const tdm_shape *shape = &e->graph->values[node->out[0]].shape;
    switch (node->op) {
    case TDM_OP_LAYER_NORM:
    case TDM_OP_RMS_NORM: sequence_norm(e, node); return true;
    case TDM_OP_ATTENTION:
        for (int64_t b = 0; b < shape->dim[0]; b++)
            for (int64_t h = 0; h < node->attrs.heads; h++)
                for (int64_t t = 0; t < shape->dim[1]; t++) sequence_attend(e, node, b, h, t);
        return true;
    default: return false;
    }
}
