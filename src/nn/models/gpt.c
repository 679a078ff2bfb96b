/*
 * gpt.c: GPT-2 (Radford et al., 2019): a transformer that predicts the next token of a text.
 *
 * Token and position embeddings are added; then come blocks of two residual branches, attention and
 * perceptron, each after a layer norm; then a last layer norm. The logits are products with the
 * token embeddings, which are thus used twice. The activation is GELU with tanh.
 *
 * Parameters have the names of GPT-2 (wte, wpe, h.0.ln_1, h.0.attn.c_attn, ...), and the matrices
 * are [out, in], as everywhere here. Initial weights are normal with a standard deviation of 0.02,
 * those at the end of a residual branch with 0.02 / sqrt(2 layers), so that the sum over all
 * branches does not grow with their number; initial biases are zero. decode.c computes the same,
 * one token at a time.
 */
#include "nn/internal.h"

#include <math.h>
#include <stdio.h>

enum { NAME_BYTES = 64 };

/* The state shared by all blocks. */
typedef struct builder {
    tdm_graph *graph;
    const tdm_model_options *options;
    tdm_init init, init_last; /* of weights; of those that end a residual branch */
    int64_t width;
} builder;

static const char *name_of(char buffer[NAME_BYTES], int64_t layer, const char *part)
{
    snprintf(buffer, NAME_BYTES, "h.%lld.%s", (long long)layer, part);
    return buffer;
}

static tdm_value layer_norm(const builder *b, const char *name, tdm_value x)
{
    char weight[NAME_BYTES + 8], bias[NAME_BYTES + 8];
    snprintf(weight, sizeof(weight), "%s.weight", name);
    snprintf(bias, sizeof(bias), "%s.bias", name);
    tdm_shape shape = tdm_shape_1(b->width);
    tdm_value gamma = tdm_graph_param(b->graph, weight, shape, (tdm_init){.kind = TDM_INIT_ONE});
    tdm_value beta = tdm_graph_param(b->graph, bias, shape, (tdm_init){.kind = TDM_INIT_ZERO});
    return tdm_graph_layer_norm(b->graph, x, gamma, beta, 0);
}

static tdm_value gpt_dropout(const builder *b, tdm_value x)
{
    if (!b->options->training) return x;
    return tdm_graph_dropout(b->graph, x, b->options->job->model.dropout);
}

static tdm_value gpt_attention(const builder *b, int64_t layer, tdm_value x)
{
    char name[NAME_BYTES];
    const tdm_job *job = b->options->job;
    tdm_attention_options options = {.heads = (int)job->model.heads, .causal = true};
    if (b->options->training) options.dropout = job->model.dropout;
    tdm_value y = layer_norm(b, name_of(name, layer, "ln_1"), x);
    y = tdm__layer_linear(b->graph, name_of(name, layer, "attn.c_attn"), y, 3 * b->width, b->init,
                          TDM_ACTIVATION_NONE);
    y = tdm_graph_attention(b->graph, y, &options);
    y = tdm__layer_linear(b->graph, name_of(name, layer, "attn.c_proj"), y, b->width, b->init_last,
                          TDM_ACTIVATION_NONE);
    return tdm_graph_add(b->graph, x, gpt_dropout(b, y));
}

static tdm_value gpt_mlp(const builder *b, int64_t layer, tdm_value x)
{
    char name[NAME_BYTES];
    tdm_value y = layer_norm(b, name_of(name, layer, "ln_2"), x);
    y = tdm__layer_linear(b->graph, name_of(name, layer, "mlp.c_fc"), y, 4 * b->width, b->init,
                          TDM_ACTIVATION_GELU_TANH);
    y = tdm__layer_linear(b->graph, name_of(name, layer, "mlp.c_proj"), y, b->width, b->init_last,
                          TDM_ACTIVATION_NONE);
    return tdm_graph_add(b->graph, x, gpt_dropout(b, y));
}

/* Whether the settings are consistent and fit the data; otherwise an error is stored in the
 * graph. */
static bool gpt_check(tdm_graph *graph, const tdm_model_options *o)
{
    const tdm_job *job = o->job;
    if (job->model.layers < 1 || job->model.width < 1 || job->model.heads < 1 ||
        job->model.width % job->model.heads != 0)
        tdm_graph_refuse(graph,
                         "gpt: %lld layers of width %lld with %lld heads: all must be at least 1, "
                         "and the width a multiple of the heads",
                         (long long)job->model.layers, (long long)job->model.width,
                         (long long)job->model.heads);
    else
        return tdm__tokens_fit(graph, o, "gpt");
    return false;
}

static tdm_value gpt_build(tdm_graph *graph, const tdm_model_options *options, tdm_value x)
{
    const tdm_job *job = options->job;
    if (!gpt_check(graph, options)) return TDM_VALUE_NONE;
    int64_t C = job->model.width, L = job->model.layers;
    int64_t V = tdm__vocabulary_of(options);
    tdm_init init = {.kind = TDM_INIT_NORMAL, .scale = 0.02};
    builder b = {.graph = graph, .options = options, .init = init, .init_last = init, .width = C};
    b.init_last.scale = init.scale / sqrt(2.0 * (double)L);

    tdm_value wte = tdm_graph_param(graph, "wte.weight", tdm_shape_2(V, C), init);
    tdm_value wpe = tdm_graph_param(graph, "wpe.weight", tdm_shape_2(job->model.context, C), init);
    tdm_graph_scope(graph, "embed");
    x = tdm_graph_add(graph, tdm_graph_embedding(graph, wte, x), wpe);
    x = gpt_dropout(&b, x);
    for (int64_t layer = 0; layer < L; layer++) {
        char scope[NAME_BYTES];
        snprintf(scope, sizeof(scope), "h.%lld", (long long)layer);
        tdm_graph_scope(graph, scope);
        tdm_graph_block(graph);
        x = gpt_attention(&b, layer, x);
        x = gpt_mlp(&b, layer, x);
    }
    tdm_graph_scope(graph, "head");
    tdm_graph_block(graph);
    x = layer_norm(&b, "ln_f", x);
    x = tdm_graph_linear(graph, x, wte, TDM_VALUE_NONE, TDM_ACTIVATION_NONE);
    tdm_graph_scope(graph, NULL);
    return x;
}

const tdm_model_ops tdm__model_gpt = {.name = "gpt", .build = gpt_build};
