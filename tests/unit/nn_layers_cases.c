/*
 * nn_layers_cases.c: models that a list of layers describes.
 *
 * A list equivalent to a named model must have its parameters in the same order, and compute its logits, loss
 * and gradients bit for bit; others are compared with counts and shapes computed by hand; and invalid lists
 * must give an error with the position of the layer.
 */

#include <tandem/nn.h>

#include "graph_bench.h"
#include "unit/nn_cases.h"

static tdm_job_document *layers_parse(const char *yaml)
{
    tdm_job_document *document = NULL;
    tdm_error err = {0};
    const tdm_job_options options = {.no_file_checks = true};
    CHECK_INT(tdm_job_parse(yaml, strlen(yaml), "job.yaml", NULL, &options, &document, &err),
              TDM_OK);
    CHECK_TEXT(err.message, "");
    return document;
}

typedef struct layers_data {
    tdm_shape shape;
    int64_t classes, batch;
} layers_data;

static tdm_status layers_try(const tdm_job_document *document, const layers_data *data,
                             bool training, tdm_graph **out, tdm_error *err)
{
    tdm_model_options o = {.job = tdm_job_document_job(document),
                           .sample_shape = data->shape,
                           .class_count = data->classes,
                           .batch = data->batch,
                           .training = training,
                           .loss_scale = 1.0 / (double)data->batch};
    return tdm_model_build(&o, out, err);
}

static tdm_graph *layers_build(const tdm_job_document *document, const layers_data *data,
                               bool training)
{
    tdm_graph *graph = NULL;
    tdm_error err = {0};
    CHECK_INT(layers_try(document, data, training, &graph, &err), TDM_OK);
    CHECK_TEXT(err.message, "");
    return graph;
}

/* ---- lists that spell named models ----------------------------------------------------------- */

static void layers_same_parameters(const tdm_graph *a, const tdm_graph *b)
{
    CHECK_INT(tdm_graph_trained_elements(a), tdm_graph_trained_elements(b));
    CHECK_INT(tdm_graph_param_extent(a), tdm_graph_param_extent(b));
    CHECK_INT(tdm_graph_param_count(a), tdm_graph_param_count(b));
    for (size_t i = 0; i < tdm_graph_param_count(a) && i < tdm_graph_param_count(b); i++) {
        const tdm_param_info *p = tdm_graph_param_at(a, i), *q = tdm_graph_param_at(b, i);
        CHECK(tdm_shape_equal(&p->shape, &q->shape));
        CHECK_INT(p->offset, q->offset);
        CHECK_INT(p->trained, q->trained);
    }
}

static void layers_compare_output(const bench *a, const bench *b, const char *name)
{
    tdm_tensor x = tdm_plan_output(a->plan, name), y = tdm_plan_output(b->plan, name);
    CHECK(tdm_shape_equal(&x.shape, &y.shape));
    if (tdm_shape_equal(&x.shape, &y.shape))
        CHECK(memcmp(x.data, y.data, (size_t)tdm_tensor_elements(&x) * sizeof(float)) == 0);
    for (int64_t i = 0; i < tdm_tensor_elements(&x); i++)
        CHECK(isfinite(((const float *)x.data)[i]));
}

/* With the initial values of the named model both compute the same. */
static void layers_same_results(const tdm_graph *named, const tdm_graph *spelled, int64_t classes,
                                bool training)
{
    tdm_plan_options options = {.forward_only = !training};
    bench a, b;
    if (!bench_open(&a, named, &options)) return;
    if (!bench_open(&b, spelled, &options)) return;
    tdm_model_init(named, 5, a.params);
    memcpy(b.params, a.params, a.param_bytes);
    bench_fill(&a, 9, (uint64_t)classes);
    bench_fill(&b, 9, (uint64_t)classes);
    /* numbers and classes of one are also those of the other */
    for (int i = 0; i <= (training ? 1 : 0); i++) {
        const char *name = i == 0 ? TDM_MODEL_INPUT : TDM_MODEL_CLASSES;
        tdm_tensor from = tdm_plan_input(a.plan, name), to = tdm_plan_input(b.plan, name);
        memcpy(to.data, from.data, (size_t)tdm_tensor_elements(&from) * sizeof(float));
    }
    bench_run(&a);
    bench_run(&b);
    layers_compare_output(&a, &b, TDM_MODEL_LOGITS);
    if (training) {
        layers_compare_output(&a, &b, TDM_MODEL_LOSS);
        for (size_t i = 0; i < tdm_graph_param_count(named); i++) {
            const tdm_param_info *p = tdm_graph_param_at(named, i);
            if (p->trained)
                CHECK(memcmp(a.grads + p->offset, b.grads + p->offset,
                             p->elements * sizeof(float)) == 0);
        }
    }
    bench_close(&a);
    bench_close(&b);
}

static void layers_spell(const char *named_yaml, const char *layers_yaml, const layers_data *data,
                         bool same_start)
{
    tdm_job_document *named = layers_parse(named_yaml), *spelled = layers_parse(layers_yaml);
    for (int training = 0; training < 2; training++) {
        tdm_graph *a = layers_build(named, data, training);
        tdm_graph *b = layers_build(spelled, data, training);
        if (a && b) {
            layers_same_parameters(a, b);
            layers_same_results(a, b, data->classes, training);
            float *x = calloc(tdm_graph_param_extent(a) + 1, sizeof(float));
            float *y = calloc(tdm_graph_param_extent(a) + 1, sizeof(float));
            tdm_model_init(a, 3, x);
            tdm_model_init(b, 3, y);
            bool same = memcmp(x, y, tdm_graph_param_extent(a) * sizeof(float)) == 0;
            CHECK_INT(same, same_start);
            free(x);
            free(y);
        }
        tdm_graph_destroy(a);
        tdm_graph_destroy(b);
    }
    tdm_job_document_destroy(named);
    tdm_job_document_destroy(spelled);
}

static void layers_spell_the_mlp(void)
{
    const layers_data data = {.shape = tdm_shape_2(2, 3), .classes = 4, .batch = 5};
    layers_spell("data: {train: t}\nmodel: {hidden: [7, 5], dropout: 0.25}\n",
                 "data: {train: t}\nlayers: [flatten, linear: 7, relu, dropout: 0.25, linear: 5, "
                 "relu, dropout: 0.25]\n",
                 &data, true);
    layers_spell("data: {train: t}\nmodel: {hidden: [7], activation: tanh}\n",
                 "data: {train: t}\nlayers: [flatten, linear: 7, tanh, linear: classes]\n", &data,
                 true);
    layers_spell("data: {train: t}\nmodel: {hidden: []}\n", "data: {train: t}\nlayers: [flatten]\n",
                 &data, true);
}

static void layers_spell_the_cnn(void)
{
    const layers_data data = {.shape = tdm_shape_2(8, 8), .classes = 3, .batch = 4};
    layers_spell("data: {train: t}\nmodel: {kind: cnn, channels: [4, 6], hidden: [10]}\n",
                 "data: {train: t}\nlayers: [conv: 4, relu, max_pool: 2, conv: 6, relu, max_pool: "
                 "2, flatten, linear: 10, relu]\n",
                 &data, true);
}

#define CONV_NORM(settings) "conv: {bias: no, " settings "}, batch_norm"
#define BASIC(channels, stride)                                                                    \
    "- residual: [" CONV_NORM("channels: " channels ", stride: " stride) ", relu, " CONV_NORM(     \
        "channels: " channels) "]\n- relu\n"
#define STAGE(channels, stride) BASIC(channels, stride) BASIC(channels, "1")

/* The shortcuts are added automatically. */
static void layers_spell_the_resnet(void)
{
    const layers_data data = {.shape = tdm_shape_3(8, 8, 3), .classes = 10, .batch = 2};
    layers_spell("data: {train: t}\nmodel: {kind: resnet}\n",
                 "data: {train: t}\nlayers:\n- conv: {channels: 64, bias: no}\n- batch_norm\n- relu"
                 "\n" STAGE("64", "1") STAGE("128", "2") STAGE("256", "2")
                     STAGE("512", "2") "- global_pool\n",
                 &data, false);
}

static void layers_spell_gpt(void)
{
    const layers_data data = {.shape = tdm_shape_1(6), .classes = 9, .batch = 3};
    layers_spell("data: {train: t}\n"
                 "model: {kind: gpt, layers: 2, width: 8, heads: 2, context: 6, dropout: 0.1}\n",
                 "data: {train: t}\nmodel: {context: 6}\nlayers:\n"
                 "- embedding: {width: 8, tied: yes}\n- positions\n- dropout: 0.1\n"
                 "- repeat:\n    times: 2\n    layers:\n"
                 "    - residual: [layer_norm, attention: {heads: 2, dropout: 0.1}, dropout: 0.1]\n"
                 "    - residual: [layer_norm, linear: 32, gelu_tanh, linear: 8, dropout: 0.1]\n"
                 "- layer_norm\n",
                 &data, false);
}

/* ---- counts and shapes by hand --------------------------------------------------------------- */

static const struct {
    const char *layers;
    layers_data data;
    uint64_t parameters;
    const char *last_name; /* of the trained parameters */
} layers_counted[] = {
    {"[]", {{1, {6}}, 3, 2}, 6 * 3 + 3, "head.bias"},
    {"[linear: {features: 5, bias: no}]", {{1, {6}}, 3, 2}, 6 * 5 + 5 * 3 + 3, "head.bias"},
    {"[linear: 5, silu, linear: {features: classes, bias: no}]",
     {{1, {6}}, 3, 2},
     6 * 5 + 5 + 5 * 3,
     "2.linear.weight"},
    {"[conv: {channels: 4, kernel: 5, padding: 0, stride: 2}, sigmoid, flatten]",
     {{3, {9, 7, 2}}, 3, 2}, /* 3 x 2 positions */
     4 * 25 * 2 + 4 + 3 * 2 * 4 * 3 + 3,
     "head.bias"},
    {"[conv: {channels: 4, groups: 2, dilation: 2}, gelu, conv: {channels: classes, kernel: 1}, "
     "global_pool]",
     {{3, {5, 5, 2}}, 3, 2},
     4 * 9 * 1 + 4 + 3 * 4 + 3,
     "2.conv.bias"},
    {"[average_pool: {kernel: 3, stride: 2, padding: 1}, rms_norm, flatten]",
     {{3, {5, 4, 2}}, 3, 2}, /* 3 x 2 positions */
     2 + 3 * 2 * 2 * 3 + 3,
     "head.bias"},
    /* Sequences: two dimensions without a convolution of images. */
    {"[conv1d: {channels: 6, kernel: 4, padding: 1}, relu, max_pool: 2, global_pool]",
     {{2, {9, 3}}, 5, 2},
     6 * 4 * 3 + 6 + 6 * 5 + 5,
     "head.bias"},
    {"[linear: 4, positions, residual: [attention: 2], layer_norm, average_pool: 3, flatten]",
     {{2, {9, 3}}, 5, 2}, /* 3 places */
     3 * 4 + 4 + 9 * 4 + (3 * 16 + 12 + 16 + 4) + 8 + 3 * 4 * 5 + 5,
     "head.bias"},
    {"[conv: {channels: 8, kernel: 4, stride: 4, padding: 0}, sequence, positions, repeat: {times: "
     "3, layers: [residual: [layer_norm, attention: 2]]}, global_pool]",
     {{2, {8, 12}}, 5, 2}, /* 2 x 3 patches */
     8 * 16 + 8 + 6 * 8 + 3 * (16 + 4 * 64 + 32) + 8 * 5 + 5,
     "head.bias"},
    /* Projections: of rows, of sequences, of images, with and without a norm. */
    {"[residual: [linear: 5, relu]]", {{1, {6}}, 3, 2}, 30 + 5 + 30 + 15 + 3, "head.bias"},
    {"[residual: {layers: [linear: 6], shortcut: projection}]",
     {{1, {6}}, 3, 2},
     36 + 6 + 36 + 18 + 3,
     "head.bias"},
    {"[residual: [linear: 6], residual: {layers: [tanh], shortcut: identity}]",
     {{1, {6}}, 3, 2},
     36 + 6 + 18 + 3,
     "head.bias"},
    {"[residual: [conv1d: {channels: 4, stride: 3}], flatten]",
     {{2, {10, 3}}, 5, 2}, /* 4 places */
     4 * 9 + 4 + 4 * 3 + 16 * 5 + 5,
     "head.bias"},
    {"[residual: [conv: {channels: 4, stride: 2, bias: no}, batch_norm], residual: [max_pool: "
     "{kernel: 3, stride: 2, padding: 1}], global_pool]",
     {{3, {7, 5, 2}}, 5, 2},
     (4 * 9 * 2 + 8 + 4 * 2 + 8) + 4 * 4 + 4 * 5 + 5,
     "head.bias"},
    /* Tokens: a separate table for the logits, with a bias. */
    {"[embedding: 4, linear: 6]", {{1, {8}}, 5, 2}, 5 * 4 + 24 + 6 + 30 + 5, "head.bias"},
    {"[embedding: {width: 4, tied: yes}, residual: [linear: 6], linear: 4]",
     {{1, {8}}, 5, 2},
     5 * 4 + (24 + 6 + 24) + 24 + 4,
     "2.linear.bias"},
};

static void layers_have_these_parameters(void)
{
    for (size_t i = 0; i < sizeof(layers_counted) / sizeof(layers_counted[0]); i++) {
        char yaml[512];
        snprintf(yaml, sizeof(yaml), "data: {train: t}\nmodel: {context: 8}\nlayers: %s\n",
                 layers_counted[i].layers);
        tdm_job_document *document = layers_parse(yaml);
        for (int training = 0; training < 2; training++) {
            tdm_graph *g = layers_build(document, &layers_counted[i].data, training);
            if (!g) continue;
            CHECK_INT(tdm_graph_trained_elements(g), layers_counted[i].parameters);
            const char *last = "";
            for (size_t k = 0; k < tdm_graph_param_count(g); k++)
                if (tdm_graph_param_at(g, k)->trained) last = tdm_graph_param_at(g, k)->name;
            CHECK_TEXT(last, layers_counted[i].last_name);
            tdm_graph_destroy(g);
        }
        tdm_job_document_destroy(document);
    }
}

static void layers_are_named_by_their_places(void)
{
    static const char *const names[] = {
        "input.shift",
        "input.scale",
        "0.conv.weight",
        "1.residual.0.batch_norm.weight",
        "1.residual.0.batch_norm.bias",
        "1.residual.0.batch_norm.running_mean",
        "1.residual.0.batch_norm.running_var",
        "1.residual.2.conv.weight",
        "1.residual.2.conv.bias",
        "1.residual.shortcut.weight",
        "1.residual.shortcut.norm.weight",
        "1.residual.shortcut.norm.bias",
        "1.residual.shortcut.norm.running_mean",
        "1.residual.shortcut.norm.running_var",
        "2.repeat.0.0.residual.0.layer_norm.weight",
        "2.repeat.0.0.residual.0.layer_norm.bias",
        "2.repeat.1.0.residual.0.layer_norm.weight",
        "2.repeat.1.0.residual.0.layer_norm.bias",
        "4.attention.qkv.weight",
        "4.attention.qkv.bias",
        "4.attention.out.weight",
        "4.attention.out.bias",
        "head.weight",
        "head.bias",
    };
    const layers_data data = {.shape = tdm_shape_2(4, 4), .classes = 3, .batch = 2};
    tdm_job_document *document = layers_parse(
        "data: {train: t}\nlayers:\n- conv: {channels: 2, bias: no}\n"
        "- residual: [batch_norm, relu, conv: 4]\n"
        "- repeat: {times: 2, layers: [residual: [layer_norm]]}\n- sequence\n- attention: 2\n"
        "- global_pool\n");
    tdm_graph *g = layers_build(document, &data, true);
    if (g) CHECK_INT(tdm_graph_param_count(g), sizeof(names) / sizeof(names[0]));
    for (size_t i = 0; g && i < tdm_graph_param_count(g); i++)
        CHECK_TEXT(tdm_graph_param_at(g, i)->name, names[i]);
    tdm_graph_destroy(g);
    tdm_job_document_destroy(document);
}

/* The deepest names are complete: no two are truncated to the same text. */
static void layers_have_names_for_all_depths(void)
{
    const layers_data data = {.shape = tdm_shape_1(3), .classes = 2, .batch = 2};
    tdm_job_document *document = layers_parse(
        "data: {train: t}\nlayers: [repeat: {times: 1, layers: [residual: [repeat: {times: 2, "
        "layers: [residual: [batch_norm, linear: 3]]}]]}]\n");
    tdm_graph *g = layers_build(document, &data, true);
    if (g) {
        CHECK_INT(tdm_graph_param_count(g), 2 + 2 * (4 + 2) + 2);
        CHECK_TEXT(tdm_graph_param_at(g, 13)->name,
                   "0.repeat.0.0.residual.0.repeat.1.0.residual.1.linear.bias");
    }
    tdm_graph_destroy(g);
    tdm_job_document_destroy(document);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static const struct {
    const char *layers;
    layers_data data;
    const char *message;
} layers_refused[] = {
    {"[relu, conv: 4]",
     {{1, {64}}, 3, 2},
     "layers[1] conv: it takes images, [height, width, channels], but gets [64]; if a sample is "
     "an image, set data.shape: [height, width, channels]"},
    {"[conv: 4, flatten, conv: 4]",
     {{2, {4, 4}}, 3, 2},
     "layers[2] conv: it takes images, [height, width, channels], but gets [64]"},
    {"[conv1d: 4]",
     {{1, {64}}, 3, 2},
     "layers[0] conv1d: it takes sequences, [length, channels], but gets [64]; if a sample is a "
     "sequence, set data.shape: [length, channels]"},
    {"[conv: 4, attention: 2]",
     {{2, {4, 4}}, 3, 2},
     "layers[1] attention: it takes sequences, [length, channels], but gets [4, 4, 4]"},
    {"[sequence]", {{2, {4, 4}}, 3, 2}, "layers[0] sequence: it takes images"},
    {"[positions]", {{1, {4}}, 3, 2}, "layers[0] positions: it takes sequences"},
    {"[global_pool]", {{1, {4}}, 3, 2}, "layers[0] global_pool: it takes images"},
    {"[max_pool: 2, max_pool: 2, max_pool: 2]",
     {{3, {6, 4, 1}}, 3, 2},
     "layers[2] max_pool: a window of 2 does not fit into [1, 1, 1] with a padding of 0"},
    {"[conv: {channels: 4, kernel: 3, dilation: 4, padding: 1}]",
     {{3, {6, 20, 1}}, 3, 2},
     "layers[0] conv: a window of 9 does not fit into [6, 20, 1] with a padding of 1"},
    {"[conv: {channels: 4, groups: 2}]",
     {{3, {6, 6, 3}}, 3, 2},
     "layers[0] conv: 3 input channels and 4 output channels cannot be divided into 2 groups"},
    {"[conv: {channels: classes, groups: 2}, global_pool]",
     {{3, {6, 6, 2}}, 3, 2},
     "layers[0] conv: 2 input channels and 3 output channels cannot be divided into 2 groups"},
    {"[attention: 2]",
     {{2, {6, 3}}, 3, 2},
     "layers[0] attention: 3 channels cannot be divided among 2 heads"},
    {"[residual: [relu, conv: 4]]", {{1, {64}}, 3, 2}, "layers[0].residual[1] conv: it takes"},
    {"[repeat: {times: 2, layers: [max_pool: 2]}, flatten]",
     {{3, {3, 3, 1}}, 3, 2},
     "layers[0].repeat[0] max_pool: a window of 2 does not fit into [1, 1, 1]"},
    {"[residual: {layers: [linear: 5], shortcut: identity}]",
     {{1, {4}}, 3, 2},
     "layers[0] residual: the branch returns [5] for an input of [4], so the two cannot be "
     "added; set shortcut to auto or projection"},
    {"[residual: [conv: 2, flatten]]",
     {{2, {4, 4}}, 3, 2},
     "layers[0] residual: the branch returns [32] for an input of [4, 4, 1], and no "
     "projection can do the same"},
    {"[residual: [conv: {channels: 2, kernel: 1, padding: 2}], global_pool]",
     {{2, {4, 4}}, 3, 2},
     "layers[0] residual: the branch returns [8, 8, 2] for an input of [4, 4, 1], and no projection"},
    {"[batch_norm]",
     {{1, {4}}, 3, 1},
     "layers[0] batch_norm: a lane with one row has one number in each channel"},
    {"[conv: 4]",
     {{2, {4, 4}}, 3, 2},
     "layers: the list ends with shape [4, 4, 4] for each sample instead of one row of numbers; end "
     "it with global_pool or flatten"},
    {"[linear: 5]", {{2, {4, 4}}, 3, 2}, "layers: the list ends with shape [4, 5] for each sample"},
    {"[linear: classes, relu, linear: 8]",
     {{1, {4}}, 3, 2},
     "layers: a layer has the size classes, so the list must end with one number for each of the 3 "
     "classes, but it ends with [8]"},
    {"[embedding: 4, conv1d: 4]",
     {{1, {8}}, 3, 2},
     "layers[1] conv1d: it would use later tokens, which are to be predicted"},
    {"[embedding: 4, max_pool: 2]",
     {{1, {8}}, 3, 2},
     "layers[1] max_pool: it would use later tokens"},
    {"[embedding: 4, global_pool]",
     {{1, {8}}, 3, 2},
     "layers[1] global_pool: it would use later tokens"},
    {"[embedding: 4, flatten]", {{1, {8}}, 3, 2}, "layers[1] flatten: it would use later tokens"},
    {"[embedding: 4, attention: {heads: 2, causal: no}]",
     {{1, {8}}, 3, 2},
     "layers[1] attention: it would use later tokens"},
    {"[embedding: {width: 4, tied: yes}, linear: 5]",
     {{1, {8}}, 3, 2},
     "layers: the embedding is tied and has 4 numbers per token, but the list ends with 5"},
    {"[embedding: {width: 4, tied: yes}, linear: classes]",
     {{1, {8}}, 3, 2},
     "layers: the embedding is tied, so its table computes the logits"},
    {"[embedding: 4]", {{1, {7}}, 3, 2}, "layers: a sample has 7 tokens, but model.context is 8"},
    {"[linear: 1048576, linear: 1048576, linear: 1048576]",
     {{1, {1048576}}, 3, 2},
     NULL}, /* the limit of memory is irrelevant, because only the graph is built */
};

static void layers_refusals(void)
{
    for (size_t i = 0; i < sizeof(layers_refused) / sizeof(layers_refused[0]); i++) {
        char yaml[512];
        snprintf(yaml, sizeof(yaml), "data: {train: t}\nmodel: {context: 8}\nlayers: %s\n",
                 layers_refused[i].layers);
        tdm_job_document *document = layers_parse(yaml);
        tdm_graph *g = NULL;
        tdm_error err = {0};
        tdm_status status = layers_try(document, &layers_refused[i].data, true, &g, &err);
        if (layers_refused[i].message) {
            CHECK_INT(status, TDM_ERR_JOB_INVALID);
            CHECK_HAS(err.message, layers_refused[i].message);
        } else {
            CHECK_INT(status, TDM_OK);
        }
        tdm_graph_destroy(g);
        tdm_job_document_destroy(document);
    }
}

/* Bidirectional for samples of numbers, causal for tokens: a later token changes no earlier logit. */
static void layers_of_tokens_look_back_only(void)
{
    const layers_data data = {.shape = tdm_shape_1(8), .classes = 5, .batch = 1};
    tdm_job_document *document = layers_parse(
        "data: {train: t}\nmodel: {context: 8}\n"
        "layers: [embedding: 4, positions, residual: [attention: 2], linear: 6, tanh]\n");
    tdm_graph *g = layers_build(document, &data, false);
    bench b;
    if (g && bench_open(&b, g, &(tdm_plan_options){.forward_only = true})) {
        float logits[2][8 * 5];
        bench_fill_params(&b, 7);
        for (int i = 0; i < 2; i++) {
            bench_fill(&b, 3, 5);
            int32_t *tokens = tdm_plan_input(b.plan, TDM_MODEL_INPUT).data;
            if (i == 1) tokens[5] = (tokens[5] + 1) % 5;
            bench_run(&b);
            memcpy(logits[i], tdm_plan_output(b.plan, TDM_MODEL_LOGITS).data, sizeof(logits[i]));
        }
        CHECK(memcmp(logits[0], logits[1], 5 * 5 * sizeof(float)) == 0);
        CHECK(memcmp(logits[0] + 25, logits[1] + 25, 15 * sizeof(float)) != 0);
        bench_close(&b);
    }
    tdm_graph_destroy(g);
    tdm_job_document_destroy(document);
}

static const check_test nn_layers_tests[] = {
    CHECK_TEST(layers_spell_the_mlp),
    CHECK_TEST(layers_spell_the_cnn),
    CHECK_TEST(layers_spell_the_resnet),
    CHECK_TEST(layers_spell_gpt),
    CHECK_TEST(layers_have_these_parameters),
    CHECK_TEST(layers_are_named_by_their_places),
    CHECK_TEST(layers_have_names_for_all_depths),
    CHECK_TEST(layers_refusals),
    CHECK_TEST(layers_of_tokens_look_back_only),
};
CHECK_SUITE(nn_layers, nn_layers_tests);
