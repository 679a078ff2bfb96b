/*
 * attention.c: scaled dot-product attention and its gradient, query by query, in double precision.
 *
 * For query t, key j is used if j is below the row's length and, in the causal case, j <= t. A
 * query without such a key gives zeros, and zero gradients. Scratch is a row of weights (forward)
 * and the three gradients of one head (backward).
 *
 * Dropout: the mask of (head, query, key) is word (head T + query) T' + key of the row's sequence,
 * where T' is T rounded up to a multiple of 32, so that kernels of any vector width begin a query
 * with a whole vector of words. They may draw them in any order.
 */
#include "base/base.h"
#include "tensor/kernels/ref/ref.h"

#include <math.h>
#include <string.h>

/* One head of one row of the batch. */
typedef struct head {
    const float *q, *k, *v; /* rows of 3C numbers, of which D belong to this head */
    int64_t T, C, D, length;
    int64_t index; /* of the head */
    double scale;
    bool causal;
    double p;
    tdm_rng rng;
} head;

static head head_of(const tdm_kernel_call *call, const tdm_tensor *qkv, const tdm_tensor *lengths,
                    const tdm_step_key *key, int64_t b, int64_t h)
{
    int64_t T = qkv->shape.dim[1], C = qkv->shape.dim[2] / 3, D = C / call->attrs.heads;
    const float *base = (const float *)qkv->data + b * T * 3 * C + h * D;
    int64_t length = lengths->dtype ? ((const int32_t *)lengths->data)[b] : T;
    return (head){.q = base,
                  .k = base + C,
                  .v = base + 2 * C,
                  .T = T,
                  .C = C,
                  .D = D,
                  .length = length < 0   ? 0
                            : length > T ? T
                                         : length,
                  .index = h,
                  .scale = 1 / sqrt((double)D),
                  .causal = call->attrs.causal,
                  .p = (double)call->attrs.p,
                  .rng = tdm_rng_at((tdm_rng_address){.seed = key->seed,
                                                      .stream = TDM_RNG_STREAM_DROPOUT,
                                                      .sub_stream = call->attrs.sub_stream,
                                                      .step = key->step,
                                                      .sample = key->first_row + (uint64_t)b})};
}

static int64_t key_count(const head *a, int64_t t)
{
    return a->causal && t + 1 < a->length ? t + 1 : a->length;
}

static double head_dot(const float *x, const float *y, int64_t D)
{
    double sum = 0;
    for (int64_t d = 0; d < D; d++) sum += (double)x[d] * (double)y[d];
    return sum;
}

static double head_score(const head *a, int64_t t, int64_t j)
{
    return head_dot(a->q + t * 3 * a->C, a->k + j * 3 * a->C, a->D) * a->scale;
}

/* Must be called before the first head_kept() of a query; keys then come in order. */
static void seek_query(head *a, int64_t t)
{
    uint64_t stride = (uint64_t)(a->T + 31) / 32 * 32;
    if (a->p > 0) tdm_rng_seek(&a->rng, (uint64_t)(a->index * a->T + t) * stride);
}

/* The factor of the next weight. */
static double head_kept(head *a)
{
    if (a->p <= 0) return 1;
    return (double)tdm_rng_uniform(&a->rng) < a->p ? 0 : 1 / (1 - a->p);
}

static void forward_query(head *a, int64_t t, double *weights, float *y, float *lse)
{
    int64_t n = key_count(a, t);
    double largest = -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; j++) {
        weights[j] = head_score(a, t, j);
        /* Keeps NaN: a model that diverges must show it. */
        if (!(weights[j] <= largest)) largest = weights[j];
    }
    for (int64_t j = 0; j < n; j++) sum += exp(weights[j] - largest);
    double log_sum = n > 0 ? log(sum) + largest : 0;
    seek_query(a, t);
    for (int64_t j = 0; j < n; j++) weights[j] = exp(weights[j] - log_sum) * head_kept(a);
    for (int64_t d = 0; d < a->D; d++) {
        double mix = 0;
        for (int64_t j = 0; j < n; j++) mix += weights[j] * (double)a->v[j * 3 * a->C + d];
        y[d] = (float)mix;
    }
    *lse = (float)log_sum;
}

static tdm_status prepare_attention(void *backend, tdm_kernel_call *call, tdm_error *err)
{
    (void)backend;
    (void)err;
    call->scratch_bytes = (size_t)call->in[0].shape.dim[1] * sizeof(double);
    return TDM_OK;
}

static void run_attention(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    int64_t B = call->in[0].shape.dim[0], T = call->in[0].shape.dim[1], H = call->attrs.heads;
    for (int64_t b = 0; b < B; b++) {
        for (int64_t h = 0; h < H; h++) {
            head a = head_of(call, &call->in[0], &call->in[1], key, b, h);
            for (int64_t t = 0; t < T; t++)
                forward_query(&a, t, call->scratch,
                              tdm__ref_out(call, 0) + (b * T + t) * a.C + h * a.D,
                              tdm__ref_out(call, 1) + (b * H + h) * T + t);
        }
    }
}

/* The sums of one head's gradients, [T, D] each. */
typedef struct sums {
    double *q, *k, *v;
} sums;

/*
 * With weights p, masks m and score gradients ds:  dv_j += p_j m_j dy,  ds_j = p_j (m_j dy.v_j - dy.y),
 * dq += ds_j k_j / sqrt(D),  dk_j += ds_j q / sqrt(D).
 */
static void backward_query(head *a, int64_t t, const float *dy, const float *y, float lse, sums d)
{
    double shared = head_dot(dy, y, a->D);
    seek_query(a, t);
    for (int64_t j = 0, n = key_count(a, t); j < n; j++) {
        const float *q = a->q + t * 3 * a->C, *k = a->k + j * 3 * a->C, *v = a->v + j * 3 * a->C;
        double weight = exp(head_score(a, t, j) - (double)lse), mask = head_kept(a);
        double ds = weight * (head_dot(dy, v, a->D) * mask - shared) * a->scale;
        for (int64_t i = 0; i < a->D; i++) {
            d.q[t * a->D + i] += ds * (double)k[i];
            d.k[j * a->D + i] += ds * (double)q[i];
            d.v[j * a->D + i] += weight * mask * (double)dy[i];
        }
    }
}

static tdm_status prepare_attention_grad(void *backend, tdm_kernel_call *call, tdm_error *err)
{
    (void)backend;
    (void)err;
    int64_t T = call->in[1].shape.dim[1], D = call->in[1].shape.dim[2] / 3 / call->attrs.heads;
    call->scratch_bytes = (size_t)(3 * T * D) * sizeof(double);
    return TDM_OK;
}

static void run_attention_grad(void *backend, const tdm_kernel_call *call, const tdm_step_key *key)
{
    (void)backend;
    int64_t B = call->in[1].shape.dim[0], T = call->in[1].shape.dim[1], H = call->attrs.heads;
    for (int64_t b = 0; b < B; b++) {
        for (int64_t h = 0; h < H; h++) {
            head a = head_of(call, &call->in[1], &call->in[4], key, b, h);
            double *scratch = call->scratch;
            sums d = {scratch, scratch + T * a.D, scratch + 2 * T * a.D};
            memset(scratch, 0, (size_t)(3 * T * a.D) * sizeof(double));
            for (int64_t t = 0; t < T; t++) {
                int64_t at = (b * T + t) * a.C + h * a.D;
                backward_query(&a, t, tdm__ref_in(call, 0) + at, tdm__ref_in(call, 2) + at,
                               tdm__ref_in(call, 3)[(b * H + h) * T + t], d);
            }
            for (int64_t i = 0; i < T * a.D; i++) {
                float *out = tdm__ref_out(call, 0) + (b * T + i / a.D) * 3 * a.C + h * a.D +
                             i % a.D;
                out[0] = (float)d.q[i];
                out[a.C] = (float)d.k[i];
                out[2 * a.C] = (float)d.v[i];
            }
        }
    }
}

static const tdm_kernel kernels[] = {
    {.op = TDM_OP_ATTENTION,
     .dtype = TDM_DTYPE_F32,
     .prepare = prepare_attention,
     .run = run_attention},
    {.op = TDM_OP_ATTENTION_GRAD,
     .dtype = TDM_DTYPE_F32,
     .prepare = prepare_attention_grad,
     .run = run_attention_grad},
};

const tdm_kernel_family tdm__ref_attention = {kernels, sizeof(kernels) / sizeof(kernels[0])};
