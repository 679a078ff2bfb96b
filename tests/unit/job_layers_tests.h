/*
 * job_layers_tests.h: the tests on the list of layers, a part of job_test.c, whose helpers they use.
 */
#ifndef TANDEM_TESTS_JOB_LAYERS_TESTS_H
#define TANDEM_TESTS_JOB_LAYERS_TESTS_H

#include "job/job.h"
#include "unit/job_layers_cases.h"

/* In the file and on the command line a list means the same, and it comes back from its text. */
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

/* A list and the name of another model cannot stand together: the command line wins, the later of
 * two overrides too. */
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

/* Sizes of another model warn when they were meant: not in a shown job, nor in a file whose model the
 * command line has changed. */
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

/* One list has at most so many entries, and exactly as many are fine. */
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

#endif
