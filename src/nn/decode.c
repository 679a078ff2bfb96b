/*
 * decode.c: GPT-2, one token at a time, with a cache of the keys and values of earlier tokens.
 *
 * It computes the same as models/gpt.c from the same parameters; a test compares the two at every
 * position. It does not run a graph: a graph has fixed shapes, and here the number of keys grows
 * with each token.
 *
 * Positions have learned embeddings, so cached tokens cannot be moved to an earlier position: when
 * the context is full, its later half is read again from position 0. This doubles the cost of a
 * token in the long run, and keeps at least half a context visible.
 *
 * Invariants: 0 <= used <= T; rows [0, used) of each layer's keys and values belong to tokens[0,
 * used). Nothing is allocated after creation.
 */
#include "nn/decode.h"
#include "base/base.h"
#include "nn/nn.h"

#include "nn/internal.h"
#include "tensor/kernel.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYER_NORM_EPS 1e-5

/* A matrix with its bias, or gain and shift of a layer norm. */
typedef struct weights {
    const float *weight;
    const float *bias;
} weights;

typedef struct block {
    weights ln_1, c_attn, attn_proj, ln_2, c_fc, mlp_proj;
    float *keys;   /* [T, C] */
    float *values; /* [T, C] */
} block;

struct tdm_decoder {
    const tdm__decode_loops *loops;
    int64_t V, T, C, heads, layer_count;
    const float *wte, *wpe;
    weights ln_f;
    block *blocks;
    float *cache;    /* all keys and values */
    float *memory;   /* all buffers below */
    float *x;        /* [C]: the residual stream */
    float *y;        /* [C]: normalised, or the result of a branch */
    float *wide;     /* [4 C]: queries, keys, values, or the hidden layer */
    float *mixed;    /* [C]: the heads' results */
    float *weights;  /* [T]: of one head */
    float *logits;   /* [V] */
    int32_t *tokens; /* [T] */
    int64_t used;
    int threads;
};

/* ---- creation --------------------------------------------------------------------------------- */

static const tdm__decode_loops *loops_here(void)
{
#if defined(__x86_64__)
    int level = tdm_kernel_level();
    return level >= 4   ? &tdm__decode_loops_4
           : level == 3 ? &tdm__decode_loops_3
                        : &tdm__decode_loops_2;
#else
    return &tdm__decode_loops_0;
#endif
}

static const float *param_find(const tdm_graph *graph, const float *params, const char *name)
{
    tdm_tensor tensor = tdm_model_param(graph, name, (float *)(uintptr_t)params);
    assert(tensor.dtype == TDM_DTYPE_F32); /* gpt.c uses these names */
    return tensor.data;
}

static weights find_pair(const tdm_graph *graph, const float *params, const char *name)
{
    char text[80];
    snprintf(text, sizeof(text), "%s.weight", name);
    const float *weight = param_find(graph, params, text);
    snprintf(text, sizeof(text), "%s.bias", name);
    return (weights){.weight = weight, .bias = param_find(graph, params, text)};
}

static void find_block(const tdm_graph *graph, const float *params, int64_t layer, block *out)
{
    const struct {
        const char *name;
        weights *to;
    } parts[] = {
        {"ln_1", &out->ln_1}, {"attn.c_attn", &out->c_attn}, {"attn.c_proj", &out->attn_proj},
        {"ln_2", &out->ln_2}, {"mlp.c_fc", &out->c_fc},      {"mlp.c_proj", &out->mlp_proj},
    };
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        char name[64];
        snprintf(name, sizeof(name), "h.%lld.%s", (long long)layer, parts[i].name);
        *parts[i].to = find_pair(graph, params, name);
    }
}

static bool decoder_allocate(tdm_decoder *d)
{
    size_t C = (size_t)d->C, T = (size_t)d->T, V = (size_t)d->V, L = (size_t)d->layer_count;
    if (C > SIZE_MAX / sizeof(float) / 2 / T / L) return false;
    d->blocks = calloc(L, sizeof(*d->blocks));
    d->cache = malloc(2 * L * T * C * sizeof(float));
    d->memory = calloc(C + C + 4 * C + C + T + V, sizeof(float));
    d->tokens = calloc(T, sizeof(*d->tokens));
    if (!d->blocks || !d->cache || !d->memory || !d->tokens) return false;
    d->x = d->memory;
    d->y = d->x + C;
    d->wide = d->y + C;
    d->mixed = d->wide + 4 * C;
    d->weights = d->mixed + C;
    d->logits = d->weights + T;
    for (size_t i = 0; i < L; i++) {
        d->blocks[i].keys = d->cache + 2 * i * T * C;
        d->blocks[i].values = d->blocks[i].keys + T * C;
    }
    return true;
}

/* Building the graph checks the options, and provides the offset of each parameter. */
static tdm_status decoder_prepare(tdm_decoder *d, const tdm_model_options *model,
                                  const float *params, tdm_error *err)
{
    const tdm_job *job = model->job;
    tdm_model_options one_row = *model;
    one_row.batch = 1;
    one_row.training = false;
    tdm_graph *graph;
    TDM_TRY(tdm_model_build(&one_row, &graph, err));
    *d = (tdm_decoder){.loops = loops_here(),
                       .V = tdm__vocabulary_of(model),
                       .T = job->model.context,
                       .C = job->model.width,
                       .heads = job->model.heads,
                       .layer_count = job->model.layers,
                       .threads = tdm_model_threads(model)};
    bool has_memory = decoder_allocate(d);
    for (int64_t i = 0; has_memory && i < d->layer_count; i++)
        find_block(graph, params, i, &d->blocks[i]);
    d->wte = param_find(graph, params, "wte.weight");
    d->wpe = param_find(graph, params, "wpe.weight");
    d->ln_f = find_pair(graph, params, "ln_f");
    tdm_graph_destroy(graph);
    return has_memory ? TDM_OK : tdm_fail_oom(err, "for the decoder");
}

tdm_status tdm_decoder_create(const tdm_model_options *model, const float *params,
                              tdm_decoder **out, tdm_error *err)
{
    if (model->job->model.kind != TDM_JOB_MODEL_GPT)
        return tdm_fail(err, TDM_ERR_UNSUPPORTED,
                        "this model cannot generate text; train one with model.kind: gpt");
    tdm_decoder *d = calloc(1, sizeof(*d));
    if (!d) return tdm_fail_oom(err, "for the decoder");
    tdm_status status = decoder_prepare(d, model, params, err);
    if (status != TDM_OK) {
        tdm_decoder_destroy(d);
        return status;
    }
    *out = d;
    return TDM_OK;
}

void tdm_decoder_destroy(tdm_decoder *decoder)
{
    if (!decoder) return;
    free(decoder->blocks);
    free(decoder->cache);
    free(decoder->memory);
    free(decoder->tokens);
    free(decoder);
}

void tdm_decoder_reset(tdm_decoder *decoder)
{
    decoder->used = 0;
}

int64_t tdm_decoder_vocabulary(const tdm_decoder *decoder)
{
    return decoder->V;
}

int64_t tdm_decoder_context(const tdm_decoder *decoder)
{
    return decoder->T;
}

/* ---- one token -------------------------------------------------------------------------------- */

static void layer_norm(const weights *w, const float *x, int64_t count, float *out)
{
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < count; i++) mean += (double)x[i];
    mean /= (double)count;
    for (int64_t i = 0; i < count; i++) {
        double distance = (double)x[i] - mean;
        variance += distance * distance;
    }
    float shift = (float)mean;
    float factor = (float)(1.0 / sqrt(variance / (double)count + LAYER_NORM_EPS));
    for (int64_t i = 0; i < count; i++)
        out[i] = (x[i] - shift) * factor * w->weight[i] + w->bias[i];
}

static void decoder_add(float *x, const float *y, int64_t count)
{
    for (int64_t i = 0; i < count; i++) x[i] += y[i];
}

/* A product of a matrix and a vector; rows are distributed over threads. */
typedef struct product {
    const tdm__decode_loops *loops;
    const float *weight, *x, *bias;
    int64_t K;
    float *out;
} product;

static void product_range(const void *args, int64_t begin, int64_t end)
{
    const product *p = args;
    p->loops->product(p->weight + begin * p->K, p->x, p->bias ? p->bias + begin : NULL, end - begin,
                      p->K, p->out + begin);
}

static void decoder_multiply(const tdm_decoder *d, const weights *w, const float *x, int64_t N,
                             int64_t K, float *out)
{
    product p = {d->loops, w->weight, x, w->bias, K, out};
    tdm_kernel_spread(N, K, product_range, &p);
}

static void decoder_attend(tdm_decoder *d, const block *b)
{
    int64_t C = d->C, D = C / d->heads, at = d->used;
    layer_norm(&b->ln_1, d->x, C, d->y);
    decoder_multiply(d, &b->c_attn, d->y, 3 * C, C, d->wide);
    memcpy(b->keys + at * C, d->wide + C, (size_t)C * sizeof(float));
    memcpy(b->values + at * C, d->wide + 2 * C, (size_t)C * sizeof(float));
    float scale = (float)(1.0 / sqrt((double)D));
    for (int64_t h = 0; h < d->heads; h++) {
        d->loops->scores(d->wide + h * D, b->keys + h * D, D, C, at + 1, scale, d->weights);
        d->loops->softmax(d->weights, at + 1);
        d->loops->mix(d->weights, b->values + h * D, D, C, at + 1, d->mixed + h * D);
    }
    decoder_multiply(d, &b->attn_proj, d->mixed, C, C, d->y);
    decoder_add(d->x, d->y, C);
}

static void decoder_mlp(tdm_decoder *d, const block *b)
{
    int64_t C = d->C;
    layer_norm(&b->ln_2, d->x, C, d->y);
    decoder_multiply(d, &b->c_fc, d->y, 4 * C, C, d->wide);
    d->loops->activate(d->wide, 4 * C);
    decoder_multiply(d, &b->mlp_proj, d->wide, C, 4 * C, d->y);
    decoder_add(d->x, d->y, C);
}

/* Reads a token at the next position, which must be free. */
static void read_one(tdm_decoder *d, int32_t token)
{
    int64_t C = d->C;
    const float *what = d->wte + (int64_t)token * C, *where = d->wpe + d->used * C;
    d->tokens[d->used] = token;
    for (int64_t i = 0; i < C; i++) d->x[i] = what[i] + where[i];
    for (int64_t i = 0; i < d->layer_count; i++) {
        decoder_attend(d, &d->blocks[i]);
        decoder_mlp(d, &d->blocks[i]);
    }
    d->used++;
}

static void start_again_with_later_half(tdm_decoder *d)
{
    int64_t kept = d->T / 2, first = d->T - kept;
    d->used = 0;
    for (int64_t i = 0; i < kept; i++) read_one(d, d->tokens[first + i]); /* i < first + i */
}

const float *tdm_decoder_read(tdm_decoder *decoder, const int32_t *tokens, int64_t count)
{
    tdm_decoder *d = decoder;
    assert(count >= 1);
    int before = tdm_kernel_threads_set(d->threads);
    for (int64_t i = 0; i < count; i++) {
        assert(tokens[i] >= 0 && tokens[i] < d->V);
        if (d->used == d->T) start_again_with_later_half(d);
        read_one(d, tokens[i]);
    }
    layer_norm(&d->ln_f, d->x, d->C, d->y);
    decoder_multiply(d, &(weights){.weight = d->wte}, d->y, d->V, d->C, d->logits);
    tdm_kernel_threads_set(before);
    return d->logits;
}
