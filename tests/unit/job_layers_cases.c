/*
 * job_layers_cases.c: the list of layers of a job: how it is read and shown, and its error messages.
 * The invalid ones are like those of job_bad_jobs.c, and are checked with them.
 */
#include "job/internal.h"
#include "unit/job_cases.h"

#define LAYERS(text) JOB("data: {train: x.csv}\nlayers:\n" text)
#define A_LAYER                                                                                    \
    "an entry of 'layers' must be the name of a layer, such as 'relu', or a name with settings, "

const bad_job bad_layers[] = {
    /* ---- names */
    {LAYERS("  - cnov: 8\n  - rleu\n"), NO_SET,
     "job.yaml:3:5: unknown layer 'cnov'; did you mean 'conv'?\n"
     "job.yaml:4:5: unknown layer 'rleu'; did you mean 'relu'?\n"},
    {LAYERS("  - dense: 8\n  - bn\n  - zebra\n"), NO_SET,
     "job.yaml:3:5: unknown layer 'dense'; did you mean 'linear'?\n"
     "job.yaml:4:5: unknown layer 'bn'; did you mean 'batch_norm'?\n"
     "job.yaml:5:5: unknown layer 'zebra'; 'tandem job keys layers' lists them all\n"},
    {LAYERS("  - residual:\n      - linear: 8\n      - gellu\n"), NO_SET,
     "job.yaml:5:9: unknown layer 'gellu'; did you mean 'gelu'?\n"},
    /* ---- entries that are no layers */
    {LAYERS("  - [relu]\n  - {}\n  -\n  - ~\n"), NO_SET,
     "job.yaml:3:5: " A_LAYER "such as 'linear: 64'; got a list\n"
     "job.yaml:4:5: " A_LAYER "such as 'linear: 64'; got an empty mapping\n"
     "job.yaml:5:4: " A_LAYER "such as 'linear: 64'; got nothing\n"
     "job.yaml:6:5: " A_LAYER "such as 'linear: 64'; got nothing\n"},
    {LAYERS("  - conv: 8\n    kernel: 5\n"), NO_SET,
     "job.yaml:4:5: an entry of 'layers' is one layer, but this one has a second key after 'conv'; "
     "start another entry with '- ', and put settings in braces, as in 'conv: {channels: 8}'\n"},
    {LAYERS("  - &a relu\n  - !x {linear: 3}\n"), NO_SET,
     "job.yaml:3:5: anchors ('&a') are not supported; write the value out where it is used\n"
     "job.yaml:4:5: tags ('!x') are not supported; remove the tag\n"},
    /* ---- settings */
    {LAYERS("  - conv: {chanels: 8}\n"), NO_SET,
     "job.yaml:3:11: 'layers.conv.channels' is missing; give a whole number from 1 to 65536, or the "
     "word classes\n"
     "job.yaml:3:12: unknown key 'layers.conv.chanels'; did you mean 'layers.conv.channels'?\n"},
    {LAYERS("  - conv\n  - linear:\n  - dropout: {}\n"), NO_SET,
     "job.yaml:3:5: 'layers.conv.channels' is missing; give a whole number from 1 to 65536, or the "
     "word classes\n"
     "job.yaml:4:5: 'layers.linear.features' is missing; give a whole number from 1 to 1048576, or "
     "the word classes\n"
     "job.yaml:5:14: 'layers.dropout.rate' is missing; give a number from 0 to below 1\n"},
    {LAYERS(
         "  - linear: many\n  - linear: 0\n  - linear: [3]\n  - linear: {features: -1, bias: 3}\n"),
     NO_SET,
     "job.yaml:3:13: 'layers.linear.features' expects a whole number or the word classes, got "
     "'many'\n"
     "job.yaml:4:13: 'layers.linear.features' expects a whole number from 1 to 1048576, or the word "
     "classes, got '0'\n"
     "job.yaml:5:13: 'layers.linear.features' expects a whole number, got a list\n"
     "job.yaml:6:24: 'layers.linear.features' expects a whole number from 1 to 1048576, or the word "
     "classes, got '-1'\n"
     "job.yaml:6:34: 'layers.linear.bias' expects true or false, got '3'\n"},
    {LAYERS(
         "  - conv: {channels: 8, kernel: 0, stride: 0, padding: -1, dilation: x, groups: 1.5}\n"),
     NO_SET,
     "job.yaml:3:33: 'layers.conv.kernel' expects a whole number from 1 to 1024, got '0'\n"
     "job.yaml:3:44: 'layers.conv.stride' expects a whole number from 1 to 1024, got '0'\n"
     "job.yaml:3:56: 'layers.conv.padding' expects a whole number from 0 to 1024, or the word same, "
     "got '-1'\n"
     "job.yaml:3:70: 'layers.conv.dilation' expects a whole number, got 'x'\n"
     "job.yaml:3:81: 'layers.conv.groups' expects a whole number, got '1.5'; write it in plain "
     "digits, such as 1000\n"},
    {LAYERS("  - relu: 3\n  - flatten: [3]\n  - batch_norm: 1\n  - relu: {slope: 1}\n"), NO_SET,
     "job.yaml:3:11: 'layers.relu' takes no settings, got '3'\n"
     "job.yaml:4:14: 'layers.flatten' takes no settings, got a list\n"
     "job.yaml:5:17: 'layers.batch_norm' takes a mapping with momentum and eps, got '1'\n"
     "job.yaml:6:12: unknown key 'layers.relu.slope'; 'layers.relu' takes no settings\n"},
    {LAYERS("  - dropout: 1\n  - max_pool: {kernel: 2, kernel: 3}\n"), NO_SET,
     "job.yaml:3:14: 'layers.dropout.rate' expects a number from 0 to below 1, got '1'\n"
     "job.yaml:4:27: 'layers.max_pool.kernel' is given twice, first at line 4, column 16; remove "
     "one\n"},
    {LAYERS("  - attention: {heads: 2, causal: maybe}\n"), NO_SET,
     "job.yaml:3:35: 'layers.attention.causal' expects auto, yes or no, got 'maybe'\n"},
    /* ---- settings side by side */
    {LAYERS("  - conv: {channels: 8, kernel: 2}\n  - conv1d: {channels: 9, groups: 2}\n"), NO_SET,
     "job.yaml:3:5: 'layers.conv': padding same requires an odd kernel; set padding to a number\n"
     "job.yaml:4:5: 'layers.conv1d': channels must be a multiple of groups\n"},
    {LAYERS(
         "  - max_pool: {kernel: 2, padding: 2}\n  - residual: []\n  - repeat: {times: 2, layers: "
         "[]}\n"),
     NO_SET,
     "job.yaml:3:5: 'layers.max_pool': padding exceeds half of kernel\n"
     "job.yaml:4:5: 'layers.residual': it contains no layer\n"
     "job.yaml:5:5: 'layers.repeat': it contains no layer\n"},
    {LAYERS("  - repeat: 3\n  - residual: relu\n"), NO_SET,
     "job.yaml:3:5: 'layers.repeat.layers' is missing; give a list of at most 256 layers\n"
     "job.yaml:4:15: 'layers.residual.layers' expects a list of at most 256 layers, got 'relu'\n"},
    {LAYERS("  - relu\n  - embedding: 8\n"), NO_SET,
     "job.yaml:4:5: 'layers.embedding': it reads tokens, so it must be the first layer\n"},
    {LAYERS("  - residual: [embedding: 8]\n"), NO_SET,
     "job.yaml:3:16: 'layers.embedding': it reads tokens, so it must be the first layer\n"},
    /* ---- how many, how deep */
    {LAYERS("  - residual: [residual: [residual: [residual: [residual: [relu]]]]]\n"), NO_SET,
     "job.yaml:3:59: layers are nested more than 4 levels deep; flatten the list\n"},
    {LAYERS("  - repeat: {times: 256, layers: [relu, repeat: {times: 4, layers: [tanh]}]}\n"),
     NO_SET,
     "job.yaml:3:3: 'layers' has more than 1024 layers in total, including repetitions; remove "
     "some\n"},
    /* ---- the list and the kind of model */
    {JOB("data: {train: x.csv}\nmodel: {kind: layers}\n"), NO_SET,
     "job.yaml:2:9: the model layers requires a list of layers: add 'layers:' at the top level of "
     "the job, next to 'model:'\n"},
    {JOB("data: {train: x.csv}\nmodel: {kind: cnn}\nlayers: [relu]\n"), NO_SET,
     "job.yaml:3:1: 'layers' is for the model layers: set 'model.kind' to layers or remove it, or "
     "remove this key\n"},
    {JOB("data: {train: x.csv}\nmodel:\n  layers: [linear: 8, relu]\n"), NO_SET,
     "job.yaml:3:11: 'model.layers' expects a whole number, got a list; a list of layers belongs "
     "at the top level of the job: move 'layers:' out of 'model:'\n"},
    {JOB("data: {train: x.csv}\nlayers: 3\n"), NO_SET,
     "job.yaml:2:9: 'layers' expects a list of at most 256 layers, got '3'\n"},
    {JOB("data: {train: x.csv}\nlayers: {linear: 3}\n"), NO_SET,
     "job.yaml:2:9: 'layers' expects a list of at most 256 layers, got a mapping\n"},
    {JOB("data: {train: x.csv}\nlayers:\n"), NO_SET,
     "job.yaml:2:1: 'layers' has no value; give a list of at most 256 layers, or remove the key\n"},
    {JOB("data: {train: x.csv, format: csv}\nlayers: [embedding: 8]\n"), NO_SET,
     "job.yaml:1:22: a token model (gpt, or layers that start with embedding) is trained on a "
     "text: set 'data.format' to text, or remove it\n"},
    /* ---- the command line */
    {JOB("data: {train: x.csv}\n"), SET("layers=[linear: x, rleu]"),
     "--set: 'layers.linear.features' expects a whole number or the word classes, got 'x'\n"
     "--set: unknown layer 'rleu'; did you mean 'relu'?\n"},
    {JOB("data: {train: x.csv}\n"), SET("layers.conv.channels=3"),
     "--set: 'layers.conv.channels' is part of 'layers', which must be set as a whole: "
     "'layers=[{linear: ...}]'\n"},
    {JOB("data: {train: x.csv}\nlayers: [relu]\n"), SET("model.kind=layers", "layers="),
     "--set: the model layers requires a list of layers: add 'layers:' at the top level of the "
     "job, next to 'model:'\n"},
};

const size_t bad_layer_count = sizeof(bad_layers) / sizeof(bad_layers[0]);

/* All ways to write a layer, and the one way in which it is shown. */
static const struct {
    const char *yaml, *shown;
} good_layers[] = {
    {"[]", "layers: []\n"},
    {"[relu]", "layers:\n  - relu\n"},
    {"[\"relu\", {tanh: }, {silu: ~}, gelu: {}]",
     "layers:\n  - relu\n  - tanh\n  - silu\n  - gelu\n"},
    {"[linear: 64]", "layers:\n  - linear: {features: 64, bias: true}\n"},
    {"[linear: {bias: off, features: classes}]",
     "layers:\n  - linear: {features: classes, bias: false}\n"},
    {"[conv: {channels: 8, padding: 0, kernel: 4}]",
     "layers:\n  - conv: {channels: 8, kernel: 4, stride: 1, padding: 0, dilation: 1, groups: 1, "
     "bias: true}\n"},
    {"[conv1d: 8]",
     "layers:\n  - conv1d: {channels: 8, kernel: 3, stride: 1, padding: same, dilation: 1, groups: "
     "1, bias: true}\n"},
    {"[max_pool: 2, average_pool: {kernel: 3, stride: 2, padding: 1}, batch_norm, rms_norm: {eps: "
     "1e-6}]",
     "layers:\n  - max_pool: {kernel: 2, padding: 0}\n"
     "  - average_pool: {kernel: 3, stride: 2, padding: 1}\n"
     "  - batch_norm: {momentum: 0.1, eps: 1e-05}\n  - rms_norm: {eps: 1e-06}\n"},
    {"[residual: [relu, dropout: .5], repeat: {times: 3, layers: [residual: {layers: [tanh], "
     "shortcut: projection}]}]",
     "layers:\n  - residual:\n      layers:\n        - relu\n        - dropout: {rate: 0.5}\n"
     "      shortcut: auto\n"
     "  - repeat:\n      times: 3\n      layers:\n        - residual:\n            layers:\n"
     "              - tanh\n            shortcut: projection\n"},
    {"[embedding: 8, positions, attention: 2]",
     "layers:\n  - embedding: {width: 8, tied: false}\n  - positions\n"
     "  - attention: {heads: 2, causal: auto, dropout: 0}\n"},
    {"[residual: [residual: [residual: [residual: [conv: {channels: 3}]]]]]", NULL},
};

/* A list has the same meaning in the file and on the command line, and its text is read as the same list. */
static void test_layers(void)
{
    for (size_t i = 0; i < sizeof(good_layers) / sizeof(good_layers[0]); i++) {
        tdm_str set = TDM_STR_INIT, yaml = TDM_STR_INIT, shown = TDM_STR_INIT;
        tdm_str_addf(&set, "layers=%s", good_layers[i].yaml);
        tdm_str_addf(&yaml, SMALLEST "layers: %s\n", good_layers[i].yaml);
        tdm_job_document *a = parse_good(tdm_str_text(&yaml), NULL);
        tdm_job_document *b = parse_good(SMALLEST, set_list(tdm_str_text(&set), NULL, NULL, NULL));
        const tdm_job *job = a ? tdm_job_document_job(a) : NULL;
        if (job && b) {
            CHECK_INT(job->model.kind, TDM_JOB_MODEL_LAYERS); /* implied */
            CHECK(is_same_list(&job->layers, &tdm_job_document_job(b)->layers));
            tdm_job_show(job, &shown);
            if (good_layers[i].shown) CHECK_HAS(tdm_str_text(&shown), good_layers[i].shown);
            check_round_trip(job, tdm_str_text(&shown), true);
            CHECK_INT(tdm_job_takes_tokens(job), strstr(good_layers[i].yaml, "embedding") != NULL);
        }
        tdm_job_document_destroy(a);
        tdm_job_document_destroy(b);
        tdm_str_release(&set);
        tdm_str_release(&yaml);
        tdm_str_release(&shown);
    }
}

/* A list and the name of another model exclude each other: the command line has precedence, and of two
 * overrides the later one. */
static void test_layers_or_another_model(void)
{
    static const struct {
        const char *yaml, *first, *second;
        int kind;
    } rows[] = {
        {SMALLEST "layers: [linear: 8]\n", "model.kind=cnn", NULL, TDM_JOB_MODEL_CNN},
        {SMALLEST "model: {kind: cnn}\n", "layers=[linear: 8]", NULL, TDM_JOB_MODEL_LAYERS},
        {SMALLEST "layers: [linear: 8]\n", "model.kind=layers", NULL, TDM_JOB_MODEL_LAYERS},
        {SMALLEST, "model.kind=cnn", "layers=[linear: 8]", TDM_JOB_MODEL_LAYERS},
        {SMALLEST, "layers=[linear: 8]", "model.kind=cnn", TDM_JOB_MODEL_CNN},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tdm_job_document *document = parse_good(
            rows[i].yaml, set_list(rows[i].first, rows[i].second, NULL, NULL));
        const tdm_job *job = tdm_job_document_job(document);
        CHECK_INT(job->model.kind, rows[i].kind);
        CHECK_INT(job->layers.count, rows[i].kind == TDM_JOB_MODEL_LAYERS);
        tdm_job_document_destroy(document);
    }
}

/* Sizes of another model give a warning if the user has set them: not in a shown job, nor in a file whose
 * model the command line has changed. */
static void test_keys_without_effect(void)
{
    static const struct {
        const char *yaml, *set, *key; /* NULL: no warning */
    } rows[] = {
        {SMALLEST "model: {hidden: [8], dropout: 0.1, activation: gelu}\n", NULL, NULL},
        {SMALLEST "model: {hidden: [8]}\nlayers: [relu]\n", NULL, "'model.hidden' has no effect"},
        {SMALLEST "layers: [relu]\n", "model.dropout=0", "the model layers does not use it"},
        {SMALLEST "model: {kind: resnet, channels: [8]}\n", NULL, "(cnn would)"},
        {SMALLEST "model: {kind: resnet, channels: [32, 64]}\n", NULL, NULL},
        {SMALLEST "model: {kind: cnn, channels: [8]}\n", "model.kind=mlp", NULL},
        {SMALLEST "model: {kind: cnn, channels: [8]}\n", "layers=[relu]", NULL},
        {SMALLEST "model: {kind: gpt, context: 8, width: 8, dropout: 0.1}\n", NULL, NULL},
        {SMALLEST "sync: {period: 4}\n", NULL, "no effect unless 'sync.kind' is local"},
        {SMALLEST "sync: {kind: local, speeds: [1]}\n", NULL,
         "'sync.speeds' has no effect unless 'sync.mode' is async or stale"},
        {SMALLEST "sync: {kind: local, outer_lr: 0.5}\n", NULL,
         "no effect unless 'sync.outer' is sgd or nesterov"},
        {SMALLEST "sync: {kind: local, outer: sgd, outer_lr: 0.5}\n", NULL, NULL},
        {SMALLEST "sync: {kind: local, max_period: 9}\n", NULL,
         "no effect unless 'sync.adapt_lr' or 'sync.adapt_divergence' is above 0"},
        {SMALLEST "sync: {kind: server, mode: stale, staleness: 2}\n", NULL, NULL},
        {SMALLEST "compress: {ratio: 0.5}\n", NULL,
         "no effect unless 'compress.sparsify', 'compress.quantise', 'compress.rank' or 'compress.auto' is set"},
        {SMALLEST "compress: {quantise: int8, ratio: 0.5}\n", NULL,
         "no effect unless 'compress.sparsify' is topk, topk_sampled or randomk"},
        {SMALLEST "compress: {quantise: int8, levels: 3}\n", NULL,
         "no effect unless 'compress.quantise' is qsgd"},
        {SMALLEST "compress: {sparsify: threshold, warmup: 3}\n", NULL,
         "'compress.warmup' has no effect unless"},
        {SMALLEST "compress: {sparsify: topk, mask: false}\n", NULL,
         "no effect unless 'compress.momentum' is above 0"},
        {SMALLEST "compress: {sparsify: topk, warmup: 3, ratio: 0.5}\n", NULL, NULL},
        {SMALLEST "model: {width: 8}\n", NULL, "the model mlp does not use it (gpt would)"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tdm_job_document *document = parse_good(rows[i].yaml,
                                                set_list(rows[i].set, NULL, NULL, NULL));
        tdm_job_problems warnings = tdm_job_document_warnings(document);
        CHECK_INT(warnings.count, rows[i].key != NULL);
        if (warnings.count > 0 && rows[i].key) CHECK_HAS(warnings.items[0].message, rows[i].key);
        tdm_str shown = TDM_STR_INIT;
        tdm_job_show(tdm_job_document_job(document), &shown);
        tdm_job_document *again = parse_good(tdm_str_text(&shown), NULL);
        if (!rows[i].set) CHECK_INT(tdm_job_document_warnings(again).count, warnings.count);
        tdm_job_document_destroy(again);
        tdm_str_release(&shown);
        tdm_job_document_destroy(document);
    }
}

/* One list has at most that many entries; exactly the limit is accepted. */
static void test_layers_are_bounded(void)
{
    for (size_t count = TDM__LAYERS_LISTED; count <= TDM__LAYERS_LISTED + 1; count++) {
        tdm_str yaml = TDM_STR_INIT;
        tdm_str_add(&yaml, SMALLEST "layers:\n");
        for (size_t i = 0; i < count; i++) tdm_str_add(&yaml, "- relu\n");
        tdm_job_document *document = parse_bytes(yaml.data, yaml.length, NULL);
        bool is_fine = tdm_job_document_job(document) != NULL;
        CHECK_INT(is_fine, count == TDM__LAYERS_LISTED);
        if (!is_fine)
            CHECK_TEXT(tdm_job_document_problems(document).items[0].message,
                       "'layers' takes at most 256 layers, got 257");
        tdm_job_document_destroy(document);
        tdm_str_release(&yaml);
    }
}

static void test_diff_of_layers(void)
{
    static const char *const cases[][3] = {
        {"[relu, linear: 3]", "[relu, linear: 4]",
         "layers[1]: {linear: {features: 3, bias: true}} here, {linear: {features: 4, bias: true}} "
         "there\n"},
        {"[relu]", "[relu, tanh]", "layers[1]: nothing here, tanh there\n"},
        {"[relu, tanh]", "[]", "layers[0]: relu here, nothing there\n"},
        {"[residual: [relu, repeat: {times: 2, layers: [relu]}]]",
         "[residual: [relu, repeat: {times: 2, layers: [gelu, tanh]}]]",
         "layers[0].residual[1].repeat[0]: relu here, gelu there\n"},
        {"[repeat: {times: 2, layers: [relu]}]", "[repeat: {times: 3, layers: [tanh]}]",
         "layers[0]: {repeat: {times: 2, layers: [relu]}} here, {repeat: {times: 3, layers: [tanh]}} "
         "there\n"},
        {"[relu]", "[relu]", ""},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tdm_job_document *jobs[2];
        for (int k = 0; k < 2; k++) {
            char set[128];
            snprintf(set, sizeof(set), "layers=%s", cases[i][k]);
            jobs[k] = parse_good(SMALLEST, set_list(set, NULL, NULL, NULL));
        }
        tdm_str text = TDM_STR_INIT;
        size_t count = tdm_job_diff(tdm_job_document_job(jobs[0]), tdm_job_document_job(jobs[1]),
                                    &text);
        CHECK_INT(count, cases[i][2][0] ? 1 : 0);
        CHECK_TEXT(tdm_str_text(&text), cases[i][2]);
        tdm_str_release(&text);
        tdm_job_document_destroy(jobs[0]);
        tdm_job_document_destroy(jobs[1]);
    }
}

static const check_test job_layers_tests[] = {
    CHECK_TEST(test_layers),
    CHECK_TEST(test_layers_or_another_model),
    CHECK_TEST(test_keys_without_effect),
    CHECK_TEST(test_layers_are_bounded),
    CHECK_TEST(test_diff_of_layers),
};
CHECK_SUITE(job_layers, job_layers_tests);
