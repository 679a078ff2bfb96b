/*
 * no_alloc_test.c: a training step allocates nothing.
 *
 * An MLP with dropout is planned and bound and runs once; then the allocations of a hundred steps of forward,
 * backward and optimiser are counted. With `ref` there must be no allocation at all. With oneDNN there must be
 * none outside dnnl_primitive_execute, which copies its list of arguments (a few small pieces) and must have
 * freed all of it when it returns.
 */
#include "alloc_count.h"

#include <tandem/nn.h>
#include <tandem/optim.h>

#include "graph_bench.h"

enum { RUNS = 100, BATCH = 16, FEATURES = 20, CLASSES = 5, ALLOCATIONS_PER_PRODUCT = 8 };

typedef struct trainer {
    tdm_graph *graph;
    bench bench;
    const tdm_optim_ops *optim;
    tdm_optim_settings settings;
    float *state[TDM_OPTIM_MAX_STATES];
} trainer;

static tdm_graph *build(int activation)
{
    static const int64_t hidden[] = {33, 17};
    tdm_job job = {.model = {.kind = TDM_JOB_MODEL_MLP,
                             .hidden = {hidden, 2},
                             .activation = activation,
                             .dropout = 0.25}};
    tdm_model_options options = {.job = &job,
                                 .sample_shape = tdm_shape_1(FEATURES),
                                 .class_count = CLASSES,
                                 .batch = BATCH,
                                 .training = true,
                                 .loss_scale = 1.0 / BATCH};
    tdm_graph *graph = NULL;
    CHECK_INT(tdm_model_build(&options, &graph, NULL), TDM_OK);
    return graph;
}

static bool trainer_open(trainer *t, int activation, int optim, const char *backend)
{
    *t = (trainer){.graph = build(activation), .optim = tdm_optim_find(optim)};
    t->settings = (tdm_optim_settings){.lr = optim == TDM_JOB_OPTIM_SGD ? 0.05 : 0.002,
                                       .momentum = 0.9,
                                       .beta1 = 0.9,
                                       .beta2 = 0.99,
                                       .alpha = 0.99,
                                       .eps = 1e-8,
                                       .weight_decay = 1e-4};
    if (!t->graph ||
        !bench_open(&t->bench, t->graph,
                    &(tdm_plan_options){.backend = backend, .numerics = TDM_NUMERICS_VENDOR}))
        return false;
    tdm_model_init(t->graph, 1, t->bench.params);
    for (int i = 0; i < t->optim->state_count; i++)
        t->state[i] = calloc(tdm_graph_trained_extent(t->graph), sizeof(float));
    return true;
}

static void trainer_close(trainer *t)
{
    for (int i = 0; i < TDM_OPTIM_MAX_STATES; i++) free(t->state[i]);
    if (t->bench.plan) bench_close(&t->bench);
    tdm_graph_destroy(t->graph);
}

/* One step; always the same rows, so that the loss must decrease. */
static float train(trainer *t, uint64_t step)
{
    bench_fill(&t->bench, 3, CLASSES);
    tdm_plan_run(t->bench.plan, &(tdm_step_key){.seed = 1, .step = step});
    tdm_optim_range range = {.count = tdm_graph_trained_extent(t->graph),
                             .grad = t->bench.grads,
                             .param = t->bench.params,
                             .state = {t->state[0], t->state[1], t->state[2]},
                             .direction = t->bench.grads};
    if (t->optim->update) {
        t->optim->update(&t->settings, step, &range);
    } else {
        double sums[TDM_OPTIM_SUMS];
        t->optim->prepare(&t->settings, step, &range, sums);
        t->optim->apply(&t->settings, &range, sums);
    }
    return *(float *)tdm_plan_output(t->bench.plan, TDM_MODEL_LOSS).data;
}

static alloc_count count_steps(int activation, int optim, const char *backend)
{
    alloc_count counted = {.allocations = {UINT64_MAX, UINT64_MAX}};
    trainer t;
    if (trainer_open(&t, activation, optim, backend)) {
        float first = train(&t, 1), last = 0;
        alloc_count before = alloc_count_now();
        for (uint64_t step = 2; step < 2 + RUNS; step++) {
            tdm_plan_bind(t.bench.plan, TDM_SPACE_ARENA, t.bench.arena); /* is freed as well */
            last = train(&t, step);
        }
        alloc_count after = alloc_count_now();
        counted = alloc_count_between(&before, &after);
        CHECK(isfinite(last) && last < first); /* it has trained */
    }
    trainer_close(&t);
    return counted;
}

static const int all_activations[] = {TDM_JOB_ACTIVATION_RELU, TDM_JOB_ACTIVATION_GELU,
                                      TDM_JOB_ACTIVATION_TANH, TDM_JOB_ACTIVATION_SIGMOID};

static void nothing_with_ref(void)
{
    for (int i = 0; i < 4; i++)
        for (int optim = TDM_JOB_OPTIM_SGD; optim <= TDM_JOB_OPTIM_LION; optim++) {
            alloc_count c = count_steps(all_activations[i], optim, "ref");
            CHECK_INT(c.allocations[ALLOC_COUNT_OUTSIDE], 0);
            CHECK_INT(c.frees[ALLOC_COUNT_OUTSIDE], 0);
            CHECK_INT(c.allocations[ALLOC_COUNT_INSIDE], 0);
            CHECK_INT(c.products, 0);
        }
}

static void nothing_of_ours_with_onednn(void)
{
    for (int optim = TDM_JOB_OPTIM_SGD; optim <= TDM_JOB_OPTIM_LION; optim++) {
        alloc_count c = count_steps(TDM_JOB_ACTIVATION_RELU, optim, NULL);
        CHECK_INT(c.allocations[ALLOC_COUNT_OUTSIDE], 0);
        CHECK_INT(c.frees[ALLOC_COUNT_OUTSIDE], 0);
        /* Three layers: three products forward, five backward (the first needs no d_x). */
        CHECK_INT(c.products, RUNS * 8);
        CHECK(c.allocations[ALLOC_COUNT_INSIDE] <= ALLOCATIONS_PER_PRODUCT * c.products);
        CHECK_INT(c.frees[ALLOC_COUNT_INSIDE], c.allocations[ALLOC_COUNT_INSIDE]);
        CHECK_INT(c.live_bytes[ALLOC_COUNT_INSIDE], 0);
        CHECK_INT(c.leaky_products, 0);
        printf("     %.1f allocations in each of oneDNN's products\n",
               (double)c.allocations[ALLOC_COUNT_INSIDE] / (double)c.products);
    }
}

/* The counter itself: it must detect every kind of allocation. */
static void the_counter_counts(void)
{
    alloc_count before = alloc_count_now();
    void *volatile a = malloc(100);
    void *volatile b = calloc(3, 50);
    void *volatile c = strdup("a string that libc allocates");
    alloc_count middle = alloc_count_now();
    a = realloc(a, 100000);
    alloc_count later = alloc_count_now();
    free(a);
    free(b);
    free(c);
    alloc_count end = alloc_count_now();
    alloc_count gained = alloc_count_between(&before, &middle);
    CHECK_INT(gained.allocations[ALLOC_COUNT_OUTSIDE], 3);
    CHECK_INT(gained.frees[ALLOC_COUNT_OUTSIDE], 0);
    CHECK(gained.live_bytes[ALLOC_COUNT_OUTSIDE] >= 100 + 150 + 29);
    alloc_count moved = alloc_count_between(&middle, &later);
    CHECK(moved.allocations[ALLOC_COUNT_OUTSIDE] >= 1);
    CHECK(moved.live_bytes[ALLOC_COUNT_OUTSIDE] > 90000);
    alloc_count all = alloc_count_between(&before, &end);
    CHECK_INT(all.live_bytes[ALLOC_COUNT_OUTSIDE], 0);
    CHECK_INT(all.frees[ALLOC_COUNT_OUTSIDE], all.allocations[ALLOC_COUNT_OUTSIDE]);
}

static void the_counter_counts_aligned_memory(void)
{
    alloc_count before = alloc_count_now();
    void *volatile a = aligned_alloc(64, 128);
    void *volatile b = memalign(32, 10);
    void *c = NULL;
    CHECK_INT(posix_memalign(&c, 64, 100), 0);
    alloc_count middle = alloc_count_now();
    free(a);
    free(b);
    free(c);
    alloc_count end = alloc_count_now();
    alloc_count gained = alloc_count_between(&before, &middle);
    alloc_count all = alloc_count_between(&before, &end);
    CHECK_INT(all.frees[ALLOC_COUNT_OUTSIDE], 3);
    if (!ALLOC_COUNT_SEES_ALIGNED) return;
    CHECK_INT(gained.allocations[ALLOC_COUNT_OUTSIDE], 3);
    CHECK(gained.live_bytes[ALLOC_COUNT_OUTSIDE] >= 128 + 10 + 100);
    CHECK_INT(all.live_bytes[ALLOC_COUNT_OUTSIDE], 0);
}

/* It also counts inside oneDNN: there, destroying an engine frees what creating it allocated. */
static void the_counter_sees_libraries(void)
{
    alloc_count before = alloc_count_now();
    dnnl_engine_t engine;
    CHECK_INT(dnnl_engine_create(&engine, dnnl_cpu, 0), dnnl_success);
    alloc_count middle = alloc_count_now();
    dnnl_engine_destroy(engine);
    alloc_count end = alloc_count_now();
    CHECK(alloc_count_between(&middle, &end).frees[ALLOC_COUNT_OUTSIDE] > 0);
    if (!ALLOC_COUNT_SEES_ALIGNED) return;
    CHECK(alloc_count_between(&before, &middle).allocations[ALLOC_COUNT_OUTSIDE] > 0);
}

static const check_test tests[] = {
    CHECK_TEST(the_counter_counts),          CHECK_TEST(the_counter_counts_aligned_memory),
    CHECK_TEST(the_counter_sees_libraries),  CHECK_TEST(nothing_with_ref),
    CHECK_TEST(nothing_of_ours_with_onednn),
};

int main(int argc, char **argv)
{
    if (!alloc_count_begin()) {
        fprintf(stderr, "the sanitizer's hooks could not be set\n");
        return 1;
    }
    return check_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
