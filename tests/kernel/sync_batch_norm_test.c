/*
 * sync_batch_norm_test.c: with parallel.sync_batchnorm the lanes of a batch compute the same as one lane with
 * all rows: losses, gradients and observed statistics, up to rounding. lanes_bench.h executes the lanes: uneven
 * ones, and lanes of a single row.
 */
#include "nn/nn.h"
#include <tandem/nn.h>

#include "kernel/lanes_bench.h"

enum { CLASSES = 4, FIRST_ROW = 5 };

typedef struct trial {
    const char *name;
    tdm_job job;
    tdm_shape sample;
    size_t norms;   /* of the model: each has a sum over lanes forward, and one backward */
    double allowed; /* differences, relative to the largest number */
} trial;

static tdm_graph *build(const trial *t, int64_t rows, int64_t batch, bool sync)
{
    tdm_error err = {0};
    tdm_graph *graph = NULL;
    tdm_job job = t->job;
    job.parallel.sync_batchnorm = sync;
    tdm_model_options all = {.job = &job, .sample_shape = t->sample, .class_count = CLASSES};
    tdm_model_options lane = tdm_model_of_lane(&all, rows, batch);
    CHECK_INT(tdm_model_build(&lane, &graph, &err), TDM_OK);
    CHECK_TEXT(err.message, "");
    return graph;
}

/* Some numbers are far from zero, and rows differ from lane to lane. */
static void fill(const bench *b, int64_t first, int64_t rows)
{
    memset(b->arena, 0xff, b->arena_bytes);
    tdm_tensor x = tdm_plan_input(b->plan, TDM_MODEL_INPUT);
    tdm_tensor classes = tdm_plan_input(b->plan, TDM_MODEL_CLASSES);
    int64_t width = tdm_tensor_elements(&x) / rows;
    for (int64_t r = 0; r < rows; r++) {
        tdm_rng rng = bench_rng(11, (uint32_t)(first + r));
        ((int32_t *)classes.data)[r] = (int32_t)tdm_rng_below(&rng, CLASSES);
        for (int64_t i = 0; i < width; i++)
            ((float *)x.data)[r * width + i] = bench_random(&rng) + 0.3f * (float)(first + r);
    }
}

static void init(const bench *b, const tdm_graph *graph)
{
    tdm_model_init(graph, 3, b->params);
}

/* The largest difference between the sum over lanes and the whole, over all numbers of one kind of parameter,
 * and the largest number there. */
static double apart(const lanes_bench *lanes, const bench *whole, bool trained, double *largest)
{
    double max = 0;
    *largest = 0;
    for (size_t p = 0; p < tdm_graph_param_count(whole->graph); p++) {
        const tdm_param_info *info = tdm_graph_param_at(whole->graph, p);
        if (info->trained != trained || (!info->trained && !info->statistic)) continue;
        for (size_t i = info->offset; i < info->offset + info->elements; i++) {
            double expected = (double)whole->grads[i];
            max = fmax(max, fabs(lanes_bench_grad(lanes, i) - expected));
            if (isnan(lanes_bench_grad(lanes, i))) max = INFINITY;
            *largest = fmax(*largest, fabs(expected));
        }
    }
    return max;
}

static void compare(const trial *t, const lanes_bench *lanes, const bench *whole)
{
    double largest, loss = *(const float *)tdm_plan_output(whole->plan, TDM_MODEL_LOSS).data;
    CHECK_INT(lanes->sums, lanes->count > 1 ? 2 * t->norms : 0);
    CHECK_NEAR(lanes_bench_loss(lanes), loss, 1e-5 * loss);
    double off = apart(lanes, whole, true, &largest);
    if (!(off <= t->allowed * largest && largest > 1e-3))
        fprintf(stderr, "  %s: gradients %g apart, %g at most\n", t->name, off, largest);
    CHECK(off <= t->allowed * largest && largest > 1e-3);
    off = apart(lanes, whole, false, &largest);
    if (!(off <= t->allowed * largest && largest > 1e-3))
        fprintf(stderr, "  %s: statistics %g apart, %g at most\n", t->name, off, largest);
    CHECK(off <= t->allowed * largest && largest > 1e-3);
}

static void lanes_against_whole(const trial *t, int64_t batch, int lane_count)
{
    lanes_bench lanes = {0};
    bench whole;
    for (int i = 0; i < lane_count; i++) {
        int64_t rows = batch / lane_count + (i < batch % lane_count);
        int64_t first = i * (batch / lane_count) +
                        (i < batch % lane_count ? i : batch % lane_count);
        lanes_bench_add(&lanes, build(t, rows, batch, true), FIRST_ROW + first);
        init(&lanes.lanes[i], lanes.graphs[i]);
        fill(&lanes.lanes[i], first, rows);
    }
    tdm_graph *g = build(t, batch, batch, true);
    if (g && bench_open(&whole, g, NULL)) {
        init(&whole, g);
        fill(&whole, 0, batch);
        bench_run(&whole); /* its first row is FIRST_ROW as well, so dropout drops the same */
        lanes_bench_run(&lanes);
        compare(t, &lanes, &whole);
        bench_close(&whole);
    }
    lanes_bench_close(&lanes);
    tdm_graph_destroy(g);
}

#define CONV(channels, step)                                                                       \
    {                                                                                              \
        .kind = TDM_JOB_LAYER_CONV, .size = (channels), .kernel = 3, .stride = (step),             \
        .padding = 1, .dilation = 1, .groups = 1, .bias = true                                     \
    }
#define NORM                                                                                       \
    {                                                                                              \
        .kind = TDM_JOB_LAYER_BATCH_NORM, .momentum = 0.1, .eps = 1e-5                             \
    }

static const tdm_job_layer layer_items[] = {
    CONV(6, 1),
    NORM,
    {.kind = TDM_JOB_LAYER_RELU},
    CONV(8, 2),
    NORM,
    {.kind = TDM_JOB_LAYER_RELU},
    {.kind = TDM_JOB_LAYER_GLOBAL_POOL},
    NORM, /* one number for each row */
    {.kind = TDM_JOB_LAYER_DROPOUT, .rate = 0.25},
};

static void lanes_are_one_batch(void)
{
    trial t = {.name = "layers",
               .job = {.model = {.kind = TDM_JOB_MODEL_LAYERS},
                       .layers = {layer_items, sizeof(layer_items) / sizeof(layer_items[0])}},
               .sample = tdm_shape_3(6, 6, 2),
               .norms = 3,
               .allowed = 2e-5};
    for (int what = TDM_JOB_RECOMPUTE_NONE; what <= TDM_JOB_RECOMPUTE_FULL; what++) {
        t.job.memory.recompute = what;
        lanes_against_whole(&t, 8, 1); /* no values to exchange */
        lanes_against_whole(&t, 8, 2);
        lanes_against_whole(&t, 7, 3);
        lanes_against_whole(&t, 11, 8);
        lanes_against_whole(&t, 6, 6); /* of one row */
    }
}

/* Twenty norms in sequence, each of which passes on the rounding errors of the previous ones. */
static void residual_networks(void)
{
    trial t = {.name = "resnet",
               .job = {.model = {.kind = TDM_JOB_MODEL_RESNET, .depth = TDM_JOB_DEPTH_18}},
               .sample = tdm_shape_3(8, 8, 3),
               .norms = 20,
               .allowed = 2e-4};
    lanes_against_whole(&t, 5, 2);
}

/* Without the key each lane is normalised alone, and one of a single row has no variance. */
static void without_the_key_there_is_nothing_to_exchange(void)
{
    tdm_error err = {0};
    tdm_graph *g = NULL;
    tdm_job job = {.model = {.kind = TDM_JOB_MODEL_LAYERS},
                   .layers = {layer_items, sizeof(layer_items) / sizeof(layer_items[0])}};
    trial t = {.job = job, .sample = tdm_shape_3(6, 6, 2)};
    tdm_plan *plan = NULL;
    tdm_graph *two = build(&t, 2, 4, false);
    CHECK_INT(tdm_plan_create(two, NULL, &plan, &err), TDM_OK);
    for (size_t k = 0; k < tdm_plan_step_count(plan); k++)
        CHECK(!tdm_plan_lane_sum_at(plan, k, NULL));
    tdm_plan_destroy(plan);
    tdm_graph_destroy(two);
    tdm_model_options all = {.job = &job, .sample_shape = t.sample, .class_count = CLASSES};
    tdm_model_options lane = tdm_model_of_lane(&all, 1, 4);
    CHECK_INT(tdm_model_build(&lane, &g, &err), TDM_ERR_JOB_INVALID);
    CHECK_HAS(err.message, "parallel.sync_batchnorm to true");
}

/* ---- digits ---------------------------------------------------------------------------------- */

enum { ROWS = 40, C = 3, LANES = 4 };

/* A norm of the rows of one lane alone, with the observed statistics as outputs. */
static tdm_graph *norm_graph(bool has_mean)
{
    tdm_graph *g = tdm_graph_create();
    tdm_shape channels = tdm_shape_1(C);
    tdm_value x = tdm_graph_input(g, "x", TDM_DTYPE_F32, tdm_shape_2(ROWS, C)), mean, variance;
    tdm_batch_norm_options o = {.gamma = tdm_graph_param(g, "gamma", channels, (tdm_init){0}),
                                .beta = tdm_graph_param(g, "beta", channels, (tdm_init){0}),
                                .observed_mean = &mean,
                                .observed_variance = &variance,
                                .lane_rows = ROWS,
                                .batch_rows = ROWS * LANES};
    if (has_mean) o.mean = tdm_graph_buffer(g, "mean", channels, (tdm_init){0});
    tdm_graph_output(g, "y", tdm_graph_batch_norm(g, x, &o));
    tdm_graph_output(g, "observed mean", tdm_graph_scale(g, mean, 1));
    tdm_graph_output(g, "observed variance", tdm_graph_scale(g, variance, 1));
    return g;
}

/* Numbers around `centre`, and a channel in which all are equal; squared relative to `about`. */
static void check_digits(float centre, float about, double allowed)
{
    lanes_bench b = {0};
    double mean[C] = {0}, variance[C] = {0};
    for (int i = 0; i < LANES; i++) {
        lanes_bench_add(&b, norm_graph(about != 0), i * (int64_t)ROWS);
        tdm_tensor x = tdm_plan_input(b.lanes[i].plan, "x");
        tdm_rng rng = bench_rng(4, (uint32_t)i);
        for (int k = 0; k < ROWS * C; k++)
            ((float *)x.data)[k] = centre + (k % C == C - 1 ? 0 : bench_random(&rng));
        for (int k = 0; k < ROWS * C; k++)
            mean[k % C] += (double)((float *)x.data)[k] / (ROWS * LANES);
        for (size_t k = 0; k < C && about != 0; k++)
            b.lanes[i].params[tdm_graph_param_at(b.graphs[i], 2)->offset + k] = about;
    }
    for (int i = 0; i < LANES; i++)
        for (int k = 0; k < ROWS * C; k++) {
            double d = (double)((float *)tdm_plan_input(b.lanes[i].plan, "x").data)[k] -
                       mean[k % C];
            variance[k % C] += d * d / (ROWS * LANES - 1);
        }
    lanes_bench_run(&b);
    CHECK_INT(b.sums, 1);
    const float *m = tdm_plan_output(b.lanes[1].plan, "observed mean").data;
    const float *v = tdm_plan_output(b.lanes[1].plan, "observed variance").data;
    for (int c = 0; c < C; c++) {
        CHECK_NEAR(m[c], mean[c], 2e-7 * fabs((double)centre) + 1e-7);
        CHECK(v[c] >= 0 && fabs((double)v[c] - variance[c]) <= allowed);
    }
    lanes_bench_close(&b);
}

static void variances_keep_their_digits(void)
{
    check_digits(0, 0, 1e-6);
    check_digits(3, 0, 5e-6);
    check_digits(1000, 1001, 1e-5); /* a running mean that is nearly right */
    check_digits(30, 0, 5e-4);      /* and one that is still at its initial value */
}

static const check_test tests[] = {
    CHECK_TEST(lanes_are_one_batch),
    CHECK_TEST(residual_networks),
    CHECK_TEST(without_the_key_there_is_nothing_to_exchange),
    CHECK_TEST(variances_keep_their_digits),
};
CHECK_MAIN(tests)
