/*
 * precision_test.c: models trained with compute.precision bf16, compared with the same models in f32.
 *
 * A perceptron, a convolutional network and a small GPT-2 learn a task by plain gradient descent. In bf16 the
 * losses are close to those of f32, and a second run gives the same bits; a plan for inference computes the
 * same as the plan for training. Memory decreases, FLOPs do not change.
 */
#include "graph_bench.h"

#include <tandem/nn.h>

#include <math.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { REF_STEPS = 1 };
#else
enum { REF_STEPS = 3 };
#endif
enum { BATCH = 32, CLASSES = 5, STEPS = 60 };

typedef struct task {
    const char *name;
    const char *yaml;
    tdm_shape sample;
    double lr;
} task;

static const task tasks[] = {
    {"mlp", "model: {kind: mlp, hidden: [48, 40]}\n", {2, {4, 6}}, 0.1},
    {"cnn",
     "layers:\n"
     "  - conv: {channels: 16, bias: no}\n  - batch_norm\n  - relu\n"
     "  - conv: {channels: 24}\n  - relu\n  - max_pool: 2\n  - flatten\n"
     "  - linear: classes\n",
     {3, {8, 8, 3}},
     0.05},
    {"gpt", "model: {kind: gpt, layers: 2, width: 32, heads: 4, context: 16}\n", {1, {16}}, 0.2},
};
enum { TASK_COUNT = sizeof(tasks) / sizeof(tasks[0]) };

static tdm_job_document *parse(const task *t, const char *precision)
{
    char text[1024];
    tdm_error err = {0};
    tdm_job_document *document = NULL;
    const tdm_job_options options = {.no_file_checks = true};
    snprintf(text, sizeof(text), "name: t\ndata: {train: t.%s}\n%scompute: {precision: %s}\n",
             strcmp(t->name, "gpt") == 0 ? "txt" : "csv", t->yaml, precision);
    tdm_status status = tdm_job_parse(text, strlen(text), "t.yaml", NULL, &options, &document,
                                      &err);
    if (status != TDM_OK) fprintf(stderr, "  %s\n", err.message);
    CHECK_INT(status, TDM_OK);
    return document;
}

static tdm_graph *build(const task *t, const tdm_job_document *document, bool training)
{
    tdm_error err = {0};
    tdm_graph *graph = NULL;
    tdm_model_options o = {.job = tdm_job_document_job(document),
                           .sample_shape = t->sample,
                           .class_count = CLASSES,
                           .batch = BATCH,
                           .training = training,
                           .loss_scale = 1.0 / BATCH};
    CHECK_INT(tdm_model_build(&o, &graph, &err), TDM_OK);
    CHECK_TEXT(err.message, "");
    return graph;
}

/* The rows of step `step`. Features: the class determines a stripe of them, with noise. Tokens: each is the
 * previous one plus 2, modulo CLASSES. */
static void fill(const tdm_plan *plan, int step)
{
    tdm_tensor x = tdm_plan_input(plan, TDM_MODEL_INPUT);
    tdm_tensor classes = tdm_plan_input(plan, TDM_MODEL_CLASSES);
    int32_t *want = classes.data;
    tdm_rng rng = bench_rng(9, (uint32_t)step);
    int64_t width = tdm_tensor_elements(&x) / BATCH;
    for (int64_t b = 0; b < BATCH; b++) {
        int32_t first = (int32_t)tdm_rng_below(&rng, CLASSES);
        if (x.dtype == TDM_DTYPE_F32 && want) want[b] = first;
        for (int64_t i = 0; i < width; i++) {
            int32_t now = (int32_t)((first + 2 * i) % CLASSES);
            if (x.dtype == TDM_DTYPE_F32) {
                bool lit = i * CLASSES / width == first;
                ((float *)x.data)[b * width + i] = bench_random(&rng) + (lit ? 1.0f : 0.0f);
            } else {
                ((int32_t *)x.data)[b * width + i] = now;
                if (want) want[b * width + i] = (int32_t)((first + 2 * i + 2) % CLASSES);
            }
        }
    }
}

typedef struct outcome {
    double first, last; /* losses */
    uint64_t hash;      /* of the parameters after the last step */
    size_t arena_bytes;
    uint64_t flops;
    float logit; /* the first loss of the inference that follows */
} outcome;

static uint64_t hash_of(const float *numbers, size_t count)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &numbers[i], sizeof(bits));
        hash = (hash ^ bits) * 0x100000001b3u;
    }
    return hash;
}

/* The logits of the trained parameters for the rows of step 0. */
static float infer(const task *t, const tdm_job_document *document, const float *params)
{
    bench b;
    float logit = NAN;
    tdm_graph *graph = build(t, document, false);
    if (bench_open(&b, graph, NULL)) {
        memcpy(b.params, params, b.param_bytes);
        fill(b.plan, 0);
        tdm_plan_run(b.plan, &(tdm_step_key){0});
        logit = *(float *)tdm_plan_output(b.plan, TDM_MODEL_LOGITS).data;
    }
    bench_close(&b);
    tdm_graph_destroy(graph);
    return logit;
}

static outcome train(const task *t, const char *precision, const char *backend, int steps)
{
    outcome out = {0};
    bench b;
    tdm_job_document *document = parse(t, precision);
    tdm_graph *graph = build(t, document, true);
    tdm_plan_options options = {.backend = backend};
    if (bench_open(&b, graph, &options)) {
        tdm_model_init(graph, 5, b.params);
        for (int step = 0; step < steps; step++) {
            fill(b.plan, step);
            tdm_plan_run(b.plan, &(tdm_step_key){.seed = 5, .step = (uint64_t)step});
            out.last = (double)*(float *)tdm_plan_output(b.plan, TDM_MODEL_LOSS).data;
            if (step == 0) out.first = out.last;
            for (size_t i = 0; i < tdm_graph_trained_extent(graph); i++)
                b.params[i] -= (float)t->lr * b.grads[i];
        }
        out.hash = hash_of(b.params, tdm_graph_param_extent(graph));
        out.logit = infer(t, document, b.params);
        out.arena_bytes = b.arena_bytes;
        for (size_t n = 0; n < tdm_graph_node_count(graph); n++)
            out.flops += tdm_graph_node_at(graph, n).flops;
    }
    bench_close(&b);
    tdm_graph_destroy(graph);
    tdm_job_document_destroy(document);
    return out;
}

static void models_learn_in_bf16_as_in_f32(void)
{
    for (int i = 0; i < TASK_COUNT; i++) {
        outcome full = train(&tasks[i], "f32", NULL, STEPS);
        outcome narrow = train(&tasks[i], "bf16", NULL, STEPS);
        outcome again = train(&tasks[i], "bf16", NULL, STEPS);
        printf("     %s: loss %.4f to %.4f in f32, to %.4f in bf16; arena %zu, %zu bytes\n",
               tasks[i].name, full.first, full.last, narrow.last, full.arena_bytes,
               narrow.arena_bytes);
        CHECK(full.last < 0.5 * full.first);
        CHECK(narrow.last < 0.5 * narrow.first);
        CHECK_NEAR(narrow.first, full.first, 0.02 * full.first);
        CHECK_NEAR(narrow.last, full.last, 0.05 * full.first);
        CHECK(narrow.hash != full.hash);
        CHECK(narrow.hash == again.hash && narrow.last == again.last);
        CHECK_INT(narrow.flops, full.flops);
        CHECK(fabsf(narrow.logit - full.logit) < 0.1f * (1 + fabsf(full.logit)));
        CHECK(narrow.logit == again.logit);
    }
}

/* `ref` defines the expected result: the first losses agree much better than those of f32 and bf16. */
static void ref_agrees(void)
{
    for (int i = 0; i < TASK_COUNT; i++) {
        outcome best = train(&tasks[i], "bf16", NULL, REF_STEPS);
        outcome ref = train(&tasks[i], "bf16", "ref", REF_STEPS);
        CHECK_NEAR(best.first, ref.first, 1e-4 * ref.first);
        CHECK_NEAR(best.last, ref.last, 1e-3 * ref.first);
    }
}

static const check_test tests[] = {
    CHECK_TEST(models_learn_in_bf16_as_in_f32),
    CHECK_TEST(ref_agrees),
};
CHECK_MAIN(tests)
