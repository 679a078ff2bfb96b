/*
 * plan_parts_test.c: a run in parts is equivalent to a whole run, with only those parameters available that a
 * step declares, and with every gradient taken away when it is complete.
 *
 * Each plan runs whole, then step by step on a block of parameters that contains NaN: those that a step reads
 * are copied to the block just before it and overwritten after it. A gradient is copied after the step that
 * completes it, and its memory overwritten; no step may write there afterwards. Outputs and gradients must
 * agree bit for bit. Named models, with and without recomputation, and random graphs.
 */
#include <tandem/nn.h>

#include "graph/graph.h"
#include "graph_bench.h"
#include "kernel/random_graph.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { GRAPH_COUNT = 60 };
#else
enum { GRAPH_COUNT = 300 };
#endif

enum { CLASSES = RANDOM_GRAPH_CLASSES, BATCH = 3 };

typedef struct parts {
    bench whole, cut;
    float *taken; /* gradients, as they were when complete */
    size_t reads; /* of parameters, by steps */
} parts;

/* An output that is a view of a parameter is in the block of parameters. */
static bool is_param(const bench *b, const tdm_tensor *t)
{
    const char *at = t->data, *params = (const char *)b->params;
    return at >= params && at < params + b->param_bytes;
}

static bool same_outputs(const parts *p)
{
    bool same = true;
    for (size_t id = 1; id < p->cut.graph->value_count; id++) {
        if (!p->cut.graph->values[id].is_output) continue;
        tdm_tensor x = tdm_plan_output(p->whole.plan, p->cut.graph->values[id].name);
        tdm_tensor y = tdm_plan_output(p->cut.plan, p->cut.graph->values[id].name);
        same = same && (is_param(&p->cut, &y) || memcmp(x.data, y.data, tdm_tensor_bytes(&x)) == 0);
    }
    return same;
}

/* Whether the copied gradients equal those of the whole run, and no step wrote to their memory afterwards. */
static bool same_gradients(const parts *p)
{
    bool same = true;
    for (size_t i = 0; i < tdm_graph_param_count(p->cut.graph); i++) {
        const tdm_param_info *info = tdm_graph_param_at(p->cut.graph, i);
        size_t bytes = info->elements * sizeof(float);
        if (tdm_plan_grad_step(p->cut.plan, i) == SIZE_MAX) continue;
        const unsigned char *left = (const unsigned char *)(p->cut.grads + info->offset);
        same = same && memcmp(p->whole.grads + info->offset, p->taken + info->offset, bytes) == 0 &&
               left[0] == 0xff && memcmp(left, left + 1, bytes - 1) == 0;
    }
    return same;
}

static void take_gradients(parts *p, size_t step)
{
    for (size_t i = 0; i < tdm_graph_param_count(p->cut.graph); i++) {
        const tdm_param_info *info = tdm_graph_param_at(p->cut.graph, i);
        if (tdm_plan_grad_step(p->cut.plan, i) != step) continue;
        memcpy(p->taken + info->offset, p->cut.grads + info->offset,
               info->elements * sizeof(float));
        memset(p->cut.grads + info->offset, 0xff, info->elements * sizeof(float));
    }
}

static void run_step(parts *p, const tdm_step_key *key, size_t step)
{
    size_t reads[TDM_MAX_PLAN_READS];
    size_t count = tdm_plan_reads_at(p->cut.plan, step, reads);
    for (size_t i = 0; i < count; i++) {
        const tdm_param_info *info = tdm_graph_param_at(p->cut.graph, reads[i]);
        memcpy(p->cut.params + info->offset, p->whole.params + info->offset,
               info->elements * sizeof(float));
    }
    tdm_plan_run_part(p->cut.plan, key, step, step + 1);
    for (size_t i = 0; i < count; i++) {
        const tdm_param_info *info = tdm_graph_param_at(p->cut.graph, reads[i]);
        memset(p->cut.params + info->offset, 0xff, info->elements * sizeof(float));
    }
    p->reads += count;
    take_gradients(p, step);
}

/* Runs both ways; false (and a failed check) if they differ. `p` keeps the counts. */
static bool run_alike(const tdm_graph *graph, const tdm_plan_options *options, parts *p)
{
    const tdm_step_key key = {.seed = 7, .step = 3, .first_row = 5};
    *p = (parts){0};
    if (!bench_open(&p->whole, graph, options)) return false;
    bool same = bench_open(&p->cut, graph, options);
    if (same) {
        p->taken = bench_alloc(p->cut.grad_bytes);
        memset(p->cut.params, 0xff, p->cut.param_bytes);
        memset(p->whole.grads, 0xff, p->whole.grad_bytes);
        memset(p->cut.grads, 0xff, p->cut.grad_bytes);
        bench_fill(&p->whole, 11, CLASSES);
        bench_fill(&p->cut, 11, CLASSES);
        tdm_plan_run(p->whole.plan, &key);
        for (size_t k = 0; k < tdm_plan_step_count(p->cut.plan); k++) run_step(p, &key, k);
        same = same_outputs(p) && same_gradients(p);
        free(p->taken);
        bench_close(&p->cut);
    }
    bench_close(&p->whole);
    CHECK(same);
    return same;
}

/* ---- models ---------------------------------------------------------------------------------- */

static tdm_graph *build(const tdm_job *job, tdm_shape sample, bool training)
{
    tdm_error err = {0};
    tdm_graph *graph = NULL;
    tdm_model_options options = {.job = job,
                                 .sample_shape = sample,
                                 .class_count = CLASSES,
                                 .batch = BATCH,
                                 .training = training,
                                 .loss_scale = 1.0 / BATCH};
    CHECK_INT(tdm_model_build(&options, &graph, &err), TDM_OK);
    CHECK_TEXT(err.message, "");
    return graph;
}

/* Which gradients a plan has, and that they are completed one after the other, not at the end. */
static void check_steps(const tdm_graph *graph, bool training)
{
    tdm_error err = {0};
    tdm_plan *plan = NULL;
    tdm_plan_options options = {.forward_only = !training};
    CHECK_INT(tdm_plan_create(graph, &options, &plan, &err), TDM_OK);
    size_t first = SIZE_MAX, last = 0;
    for (size_t i = 0; plan && i < tdm_graph_param_count(graph); i++) {
        const tdm_param_info *info = tdm_graph_param_at(graph, i);
        size_t step = tdm_plan_grad_step(plan, i);
        CHECK((step != SIZE_MAX) == (training && (info->trained || info->statistic)));
        if (step == SIZE_MAX || !info->trained) continue;
        if (step < first) first = step;
        if (step > last) last = step;
    }
    if (training) CHECK(first < last && last < tdm_plan_step_count(plan));
    tdm_plan_destroy(plan);
}

static void check_model(const char *what, const tdm_job *job, tdm_shape sample)
{
    for (int training = 0; training < 2; training++) {
        tdm_graph *graph = build(job, sample, training);
        if (!graph) continue;
        parts p;
        if (!run_alike(graph, &(tdm_plan_options){.forward_only = !training}, &p))
            fprintf(stderr, "  %s, training %d, recompute %d\n", what, training,
                    (int)job->memory.recompute);
        CHECK(p.reads > 0);
        check_steps(graph, training);
        tdm_graph_destroy(graph);
    }
}

static void models_run_in_parts(void)
{
    static const int64_t hidden[] = {9, 7}, channels[] = {4, 6};
    tdm_job mlp = {.model = {.kind = TDM_JOB_MODEL_MLP, .hidden = {hidden, 2}, .dropout = 0.25}};
    tdm_job cnn = {.model = {.kind = TDM_JOB_MODEL_CNN,
                             .channels = {channels, 2},
                             .hidden = {hidden, 1},
                             .dropout = 0.25}};
    tdm_job resnet = {.model = {.kind = TDM_JOB_MODEL_RESNET, .depth = TDM_JOB_DEPTH_18}};
    tdm_job gpt = {.model = {.kind = TDM_JOB_MODEL_GPT,
                             .layers = 3,
                             .width = 20,
                             .heads = 4,
                             .context = 7,
                             .dropout = 0.25}};
    for (int recompute = TDM_RECOMPUTE_NONE; recompute <= TDM_RECOMPUTE_FULL; recompute++) {
        mlp.memory.recompute = cnn.memory.recompute = recompute;
        gpt.memory.recompute = resnet.memory.recompute = recompute;
        check_model("mlp", &mlp, tdm_shape_1(12));
        check_model("cnn", &cnn, tdm_shape_2(12, 12));
        check_model("gpt", &gpt, tdm_shape_1(7));
        /* Eleven million parameters: one run with copies of everything is enough. */
        if (recompute == TDM_RECOMPUTE_BLOCKS) check_model("resnet", &resnet, tdm_shape_3(8, 8, 3));
    }
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static void random_graphs_run_in_parts(void)
{
    for (uint64_t seed = 0; seed < GRAPH_COUNT; seed++) {
        tdm_error err = {0};
        tdm_graph *graph = random_graph_make(seed, &err);
        if (!graph) continue;
        parts p;
        if (seed % 2) CHECK_INT(tdm_graph_recompute(graph, TDM_RECOMPUTE_FULL, &err), TDM_OK);
        if (!run_alike(graph, NULL, &p)) fprintf(stderr, "  seed %d\n", (int)seed);
        tdm_graph_destroy(graph);
    }
}

/* A gradient of two parameters that other ops read afterwards: it is complete only when the last of them has
 * read it. */
static void a_gradient_that_others_read_stays(void)
{
    tdm_error err = {0};
    tdm_graph *g = tdm_graph_create();
    tdm_shape shape = tdm_shape_2(4, 6);
    tdm_value x = tdm_graph_input(g, "x", TDM_DTYPE_F32, shape);
    tdm_value a = tdm_graph_param(g, "a", shape, (tdm_init){0});
    tdm_value b = tdm_graph_param(g, "b", tdm_shape_1(24), (tdm_init){0});
    tdm_value w = tdm_graph_param(g, "w", tdm_shape_2(6, 6), (tdm_init){0});
    tdm_value unused = tdm_graph_param(g, "unused", tdm_shape_1(3), (tdm_init){0});
    tdm_value y = tdm_graph_linear(g, x, w, TDM_VALUE_NONE, TDM_ACTIVATION_TANH);
    y = tdm_graph_add(g, tdm_graph_add(g, y, tdm_graph_reshape(g, b, shape)), a);
    y = tdm_graph_add(g, y, tdm_graph_reshape(g, b, shape));
    tdm_value loss = tdm_graph_mse(g, y, x, 1.0);
    tdm_graph_output(g, "loss", loss);
    CHECK_INT(tdm_graph_backward(g, loss, &err), TDM_OK);
    parts p;
    CHECK(run_alike(g, NULL, &p));
    tdm_plan *plan = NULL;
    CHECK_INT(tdm_plan_create(g, NULL, &plan, &err), TDM_OK);
    size_t reads[TDM_MAX_PLAN_READS], of_b = 0;
    for (size_t k = 0; k < tdm_plan_step_count(plan); k++) {
        size_t count = tdm_plan_reads_at(plan, k, reads);
        for (size_t i = 0; i < count; i++) of_b += reads[i] == 1;
    }
    CHECK_INT(of_b, 2); /* through its views */
    CHECK(unused.id && tdm_plan_grad_step(plan, 3) != SIZE_MAX);
    tdm_plan_destroy(plan);
    tdm_graph_destroy(g);
}

static const check_test tests[] = {
    CHECK_TEST(models_run_in_parts),
    CHECK_TEST(random_graphs_run_in_parts),
    CHECK_TEST(a_gradient_that_others_read_stays),
};
CHECK_MAIN(tests)
