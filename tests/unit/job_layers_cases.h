/*
 * job_layers_cases.h: the list of layers of a job: what is understood, how it is shown, and every
 * word about what is not. The bad ones are like those of job_bad_jobs.h, and are checked with them.
 */
#ifndef TANDEM_TESTS_JOB_LAYERS_CASES_H
#define TANDEM_TESTS_JOB_LAYERS_CASES_H

#include "unit/job_bad_jobs.h"

#define LAYERS(text) JOB("data: {train: x.csv}\nlayers:\n" text)
#define A_LAYER                                                                                    \
    "an entry of 'layers' must be the name of a layer, such as 'relu', or a name with settings, "

static const bad_job bad_layers[] = {
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

#endif
